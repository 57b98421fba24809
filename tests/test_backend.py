"""An implementation asked for by name runs or says in one sentence why not; nothing stands in for it."""

import importlib.util
import sys

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

    rooms = [backend.load(impl, "race").attention for impl in backend.available("race")]
    names = [[p for p in inspect.signature(room).parameters if p != "dtype"] for room in rooms]
    assert all(own == names[0] for own in names), names
    assert importlib.util.find_spec("attnlab.race.api") is not None


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
