"""An implementation asked for by name runs or says in one sentence why not; nothing stands in for it."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import attnlab
from attnlab import backend

ONE = np.ones((1, 1, 1, 2))


def test_the_reference_can_always_run():
    assert backend.available("race")[0] == "reference"
    assert backend.why_not("reference", "race") is None


@pytest.mark.parametrize("package", ["numba", "torch"])
def test_a_blocked_package_is_named_with_the_line_that_gets_it(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    reason = backend.why_not(package, "race")
    assert package in reason
    assert f"pip install {package}" in reason


def test_what_cannot_run_raises_and_does_not_become_the_reference(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(backend.Unavailable, match="numba is not installed"):
        attnlab.race.attention(ONE, ONE, ONE, np.ones((1, 1, 2)), impl="numba")


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="impl must be one of 'reference', 'numba', 'torch', 'triton', got 'cuda'"):
        backend.why_not("cuda", "race")


def test_a_room_that_does_not_exist_is_said_to_be_missing():
    assert "no reference implementation" in backend.why_not("reference", "no_such_mechanism")


def test_every_room_in_the_table_takes_the_same_arguments_in_the_same_order():
    import inspect

    packages = {row: [name for name in row.packages if importlib.util.find_spec(name) is None] for row in backend.ROWS}
    rooms = [importlib.import_module(f"attnlab.race.{row.room}") for row, missing in packages.items() if not missing]
    names = [[p for p in inspect.signature(room.attention).parameters if p != "dtype"] for room in rooms]
    assert all(own == names[0] for own in names), names
    assert names[0] == [p for p in inspect.signature(attnlab.race.attention).parameters if p != "impl"]


@pytest.mark.parametrize("name", ["q", "v", "sharpness"])
def test_a_gradient_is_given_or_refused_and_never_dropped(name):
    torch = pytest.importorskip("torch")
    arguments = {key: torch.ones(1, 2, 1, 2) for key in "qkv"} | {
        "planes": torch.ones(1, 1, 2),
        "sharpness": torch.tensor(1.0),
    }
    arguments[name].requires_grad_()
    for impl in ("reference", "numba"):
        if backend.why_not(impl, "race") is None:
            with pytest.raises(backend.Unsupported, match=f"impl='{impl}' has no gradients, and {name} requires one"):
                attnlab.race.attention(**arguments, impl=impl)
    assert attnlab.race.attention(**arguments, impl="torch").requires_grad


# -- triton: a GPU, or its interpreter --

ABSENT = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
TRITON = pytest.mark.skipif(bool(ABSENT), reason=str(ABSENT and backend.why_not("triton", "race")))
INTERPRETED = "with TRITON_INTERPRET=1 set before Python starts it runs interpreted"


def says(code: str, **environment: str) -> str:
    """What `code` prints in a fresh process that sees no GPU."""
    root = Path(__file__).parents[1]
    path = os.pathsep.join([str(root), str(root / "kernels")])
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", f"import os\nfrom attnlab import backend\n{code}"],
        capture_output=True,
        text=True,
        env=inherited | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""} | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


ROW = "print(backend.why_not('triton', 'race'), backend.device('triton'), 'triton' in backend.available('race'))"


@TRITON
def test_without_a_gpu_the_sentence_says_how_kernels_run_anyway():
    reason = says("print(backend.why_not('triton', 'race'))")
    assert "torch sees no GPU" in reason
    assert INTERPRETED in reason
    assert reason.count(". ") == 0


@TRITON
@pytest.mark.parametrize(("value", "interprets"), [("1", True), ("0", False)])
def test_a_process_that_interprets_can_run_the_row_and_says_where(value, interprets):
    assert (says(ROW, TRITON_INTERPRET=value) == "None CPU, interpreted True") is interprets


@TRITON
def test_an_interpreter_asked_for_after_triton_was_imported_is_too_late():
    late = "os.environ['TRITON_INTERPRET'] = '1'"
    assert says(f"{late}\nimport triton\n{ROW}") == "None CPU, interpreted True"
    assert INTERPRETED in says(f"import triton\n{late}\n{ROW}")


def test_the_interpreter_is_no_substitute_for_a_package(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setitem(sys.modules, "triton", None)
    wanted = "the package triton is not installed; get it with: pip install triton"
    assert backend.why_not("triton", "race") == wanted
    monkeypatch.delenv("TRITON_INTERPRET")
    assert backend.why_not("triton", "race") == wanted


@TRITON
def test_a_tensor_on_the_cpu_is_refused_and_not_moved():
    import torch

    from attnlab.race import triton_impl

    one, planes = torch.ones(1, 1, 1, 2), np.ones((1, 1, 2))
    with pytest.raises(backend.Unsupported, match="q must be on a GPU for impl='triton', got a tensor on cpu"):
        triton_impl.attention(one, one, one, planes)
    with pytest.raises(backend.Unsupported, match="v must be on a GPU"):
        triton_impl.attention(ONE, ONE, one, planes)


@pytest.mark.parametrize(("value", "runs"), [("1", False), ("0", True), ("", True), ("false", True)])
def test_numba_without_its_compiler_says_so(value, runs):
    """As Numba itself reads the variable: what is no number does not count."""
    pytest.importorskip("numba", reason="the package numba is not installed; get it with: pip install numba")
    code = "from attnlab import backend; print(backend.why_not('numba', 'residual'))"
    said = says(code, NUMBA_DISABLE_JIT=value)
    assert (said == "None") is runs
    assert runs or "NUMBA_DISABLE_JIT" in said
