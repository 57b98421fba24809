"""Kernels without a GPU: a process of its own interprets them, right or wrong, and the sentences say no more."""

import asyncio
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from attnlab import backend, draws, interpreted, parity
from attnlab.race import draw_planes

ABSENT = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(ABSENT), reason=str(ABSENT and backend.why_not("triton", "race")))

SENTENCE = "compiled, resource-checked and interpreted; not run on a GPU"
# What a process runs before anything else: a room of RACE, and an interpreter, for a test.
SITE = """
import sys, types
from importlib.machinery import ModuleSpec

def attention(**arguments):
    import os, signal, time
    import numpy as np
    from attnlab.backend import Unsupported
    from attnlab.race import reference
    right = reference.attention(**arguments, dtype=np.float32)
    {body}

def install():
    {install}

for name, part in (("attnlab.race.triton_impl", attention), ("attnlab_kernels.testing.interpreter", install)):
    sys.modules[name] = module = types.ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    setattr(module, part.__name__, part)
"""
ENTRY = {"registers": 40, "spill_bytes": 0, "shared_bytes": 2048, "occupancy": 1.0, "warps": 4}


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    """Also where there is one."""
    monkeypatch.setattr(backend, "_gpu", lambda: False)


@pytest.fixture
def room(tmp_path, monkeypatch):
    """Call it with code: that is RACE's triton room in every process started from here, with `right` at hand."""

    def write(body, install="pass"):
        (tmp_path / "sitecustomize.py").write_text(SITE.format(body=body, install=install))
        monkeypatch.syspath_prepend(tmp_path)

    return write


@pytest.fixture
def budget(tmp_path, monkeypatch):
    """Call it with entries: those are in budget.json."""

    def write(entries):
        path = tmp_path / "budget.json"
        path.write_text(json.dumps(entries))
        monkeypatch.setattr(interpreted, "_budget", lambda: path)

    return write


def case(**changes):
    q, k, v = (draws.normal(0, stream, 9, 3 * n).reshape(1, 9, 3, n) for stream, n in ((1, 5), (2, 5), (3, 4)))
    return {"q": q, "k": k, "v": v, "planes": draw_planes(2, 2, 5), "sharpness": 1.5, "causal": True} | changes


def verify(**changes):
    (report,) = parity.verify("race", case(**changes), terms=9 + 8, impls=["triton"])
    return report


# -- which implementations --


def test_only_what_lacks_a_gpu_and_nothing_else_is_interpreted(monkeypatch):
    assert [impl for impl in backend.IMPLEMENTATIONS if backend.lacks_only_gpu(impl, "race")] == ["triton"]
    assert not backend.lacks_only_gpu("triton", "dense")
    for package in ("torch", "triton"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            assert not backend.lacks_only_gpu("triton", "race")
    for name in ("_gpu", "interpreting"):
        with monkeypatch.context() as patch:
            patch.setattr(backend, name, lambda: True)
            assert not backend.lacks_only_gpu("triton", "race")
    assert backend.lacks_only_gpu("triton", "race")


def test_without_triton_the_row_says_how_to_get_it_and_no_process_starts(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    report = verify()
    assert not report.ran
    assert report.why_not == "the package triton is not installed; get it with: pip install triton"
    assert (report.evidence, report.table) == ("", ())


def test_asked_for_by_name_it_raises_and_nothing_stands_in():
    from attnlab.race import attention

    with pytest.raises(backend.Unavailable, match="torch sees no GPU"):
        attention(**case(), impl="triton")


# -- the kernel itself --


def test_the_interpreted_kernel_agrees_and_the_report_says_what_that_is_worth(budget):
    budget({f"{kernel}.x.{target}": ENTRY for kernel in ("write", "read") for target in interpreted.SHARED_LIMITS})
    report = verify()
    assert report.ok, report.why_not or report.reason
    assert report.max_rel <= report.tolerance
    assert report.device == "CPU, interpreted"
    assert report.time_ms is None
    assert report.evidence == SENTENCE
    assert [row["target"] for row in report.table] == list(interpreted.SHARED_LIMITS)
    assert not backend.interpreting()  # this process is left as it was
    json.dumps(report.record(), allow_nan=False)


def test_what_the_kernel_does_not_cover_is_refused_in_its_own_words():
    report = verify(planes=draw_planes(2, 7, 5))
    assert not report.ran
    assert report.why_not == "the triton implementation covers planes from 1 to 6, got 7."
    assert report.evidence == ""


# -- a process that answers, rightly and wrongly --


def test_the_stand_in_of_these_tests_agrees_when_it_is_right(room):
    room("return right")
    assert verify().ok


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return 1.001 * right", r"row \[.*\] is off by"),
        ("right[0, 3] = np.nan; return right", r"NaN in the result, first in row \[0, 3, 0\]"),
        ("return right[:, 1:]", r"shape \(1, 8, 3, 4\) where the reference has"),
        ("return right + 0j", "complex numbers"),
        ("raise ZeroDivisionError('no mass')", "^ZeroDivisionError: no mass$"),
        ("return None", "^TypeError: attention must return an array of numbers, got object$"),
        ("os._exit(7)", "^the interpreting process ended with status 7: it said nothing$"),
        ("os.write(2, b'first\\nlast words\\n'); os.kill(os.getpid(), signal.SIGKILL)", "status -9: last words$"),
        ("os._exit(0)", "^the interpreting process ended with status 0: it said nothing$"),
    ],
)
def test_a_wrong_kernel_is_a_failure_and_not_a_pass(room, body, reason):
    room(body)
    report = verify()
    assert report.ran
    assert not report.ok
    assert re.search(reason, report.reason), report.reason


def test_a_room_that_cannot_be_imported_is_a_failure_too(tmp_path, monkeypatch):
    kernels = tmp_path / "attnlab_kernels"
    (kernels / "testing").mkdir(parents=True)
    for name, text in (("race", "raise OSError('half a kernel')"), ("testing/interpreter", "def install(): pass")):
        (kernels / f"{name}.py").write_text(text)
    for folder in (kernels, kernels / "testing"):
        (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    report = verify()
    assert report.ran
    assert not report.ok
    assert report.reason == "OSError: half a kernel"


def test_a_kernel_that_prints_answers_all_the_same(room):
    room("print('noise'); os.write(1, b'more of it'); return right")
    assert verify().ok


def test_every_argument_arrives_as_it_was_handed_over(room):
    room(
        "seen = {name: (str(getattr(x, 'dtype', type(x).__name__)), np.shape(x)) for name, x in arguments.items()}\n"
        "    raise ValueError(str(seen))"
    )
    kinds = {
        **dict.fromkeys("qk", ("float32", (1, 9, 3, 5))),
        **{"v": ("float32", (1, 9, 3, 4)), "planes": ("float32", (2, 2, 5)), "sharpness": ("float", ())},
        **{"causal": ("bool", ()), "variant": ("str", ())},
    }
    (seen,) = re.findall(r"\{.*\}", verify(variant="algorithm", sharpness=np.float32(1.5)).reason)
    assert {name: eval(seen)[name] for name in kinds} == kinds


def test_a_refusal_of_the_room_and_an_interpreter_that_is_not_there_are_no_failures(room):
    room("raise Unsupported('it covers less.')")
    assert (verify().ran, verify().why_not) == (False, "it covers less.")
    room("return right", install="raise RuntimeError('the interpreter has no _patch_lang')")
    report = verify()
    assert not report.ran
    assert report.why_not == "it cannot be interpreted here: RuntimeError: the interpreter has no _patch_lang"


def test_a_kernel_that_takes_too_long_is_ended_with_a_sentence(room, monkeypatch):
    room("time.sleep(600)")
    monkeypatch.setattr(interpreted, "LIMIT_S", 1.0)
    runs = parity.begin("race", case())
    (report,) = parity.verify("race", case(), terms=9 + 8, impls=["triton"], runs=runs)
    assert not report.ran
    assert report.why_not == "interpreting this kernel took longer than 1 s and was ended; smaller sizes take less."
    assert runs["triton"].process.returncode == -signal.SIGKILL


def test_a_process_that_nobody_waits_for_ends_by_itself(room, monkeypatch):
    room("time.sleep(600)")
    monkeypatch.setattr(interpreted, "LIMIT_S", 1.0)
    run = interpreted.Run("triton", "race", case())
    assert run.process.wait(60) == -signal.SIGALRM
    assert not run.busy()
    run.stop()


def test_a_reference_that_fails_leaves_no_process_behind(room, monkeypatch):
    room("time.sleep(600)")
    runs = parity.begin("race", case())
    assert runs["triton"].busy()
    monkeypatch.setattr(parity.backend, "load", lambda *_: None)
    with pytest.raises(AttributeError, match="attention"):
        parity.verify("race", case(), terms=17, impls=["triton"], runs=runs)
    assert runs["triton"].process.returncode == -signal.SIGKILL


def test_a_record_of_the_mechanism_arrives_as_it_was():
    from attnlab.lrkv import Rope
    from tests.lrkv.cases import with_option

    given = with_option("latent_rope", B=1, T=1, S=5, H=2, G=1)
    parts, records = interpreted._taken_apart("lrkv", given)
    assert records == {"rope": "Rope", "latent_rope": "Rope"}
    assert interpreted._unfit(parts) == ""
    whole = interpreted._put_together("lrkv", parts, records)
    assert whole.keys() == given.keys()
    assert isinstance(whole["rope"], Rope)
    assert whole["latent_rope"] is not whole["rope"]
    assert whole["latent_rope"].layout == given["latent_rope"].layout
    assert np.array_equal(whole["latent_rope"].frequency, given["latent_rope"].frequency)


# -- what is not started --


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"v": np.zeros((1, 9, 3, 2500))}, "at most 65,536 numbers in all arguments, got 67,790."),
        ({"state": ({}, {})}, "interpreting takes arrays, numbers and words, got state of type tuple."),
        ({"k": np.array([[None]])}, "interpreting takes arrays, numbers and words, got k of type ndarray."),
    ],
)
def test_what_is_no_teaching_size_or_no_array_is_refused_before_a_process_starts(monkeypatch, changes, sentence):
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    run = interpreted.Run("triton", "race", case(**changes))
    assert not run.busy()
    with pytest.raises(backend.Unsupported, match=re.escape(sentence)):
        run.answer()
    run.stop()


def test_the_largest_dials_of_a_panel_are_a_teaching_size():
    from attnlab.race import view
    from attnlab.race.params import RaceParams

    arguments, _ = view.verification(RaceParams(tokens=256, tables=16, planes=6, head_width=64))
    assert interpreted._unfit(arguments) == ""


def test_a_process_that_cannot_be_started_is_a_sentence(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    report = verify()
    assert not report.ran
    assert re.match(r"no process could be started to interpret this kernel: .*No such file", report.why_not)


# -- the compile table --


def test_the_table_takes_the_worst_of_each_target(budget):
    worse = {"registers": 255, "spill_bytes": 8, "shared_bytes": 18950, "occupancy": 0.125, "warps": 8}
    budget({"write.a.sm_80": ENTRY, "write.b.sm_80": worse, "read.a.sm_80": ENTRY, "read.a.gfx942": ENTRY})
    assert interpreted.compiled() == [
        {
            **{"target": "sm_80", "compiled": 3, "kernels": 2, "registers": 255, "spilled_bytes": 8},
            **{"shared_kb": 18.5, "shared_limit_kb": 163, "occupancy_percent": 12.5},
        },
        {
            **{"target": "gfx942", "compiled": 1, "kernels": 1, "registers": 40, "spilled_bytes": 0},
            **{"shared_kb": 2.0, "shared_limit_kb": 64, "occupancy_percent": 100.0},
        },
    ]
    assert interpreted.evidence() == SENTENCE


def test_without_a_table_for_this_triton_the_sentence_says_so(budget, monkeypatch):
    budget({"write.a.sm_80": ENTRY})
    monkeypatch.setattr(interpreted.importlib.metadata, "version", lambda name: "3.9.0")
    assert interpreted.compiled() == []
    assert interpreted.evidence() == "interpreted; no compile table for triton 3.9.0; not run on a GPU"
    monkeypatch.setattr(interpreted.importlib.metadata, "version", lambda name: interpreted.TRITON)
    assert interpreted.evidence() == SENTENCE
    monkeypatch.setattr(interpreted, "_budget", lambda: None)
    missing = f"interpreted; no compile table for triton {interpreted.TRITON}; not run on a GPU"
    assert interpreted.evidence() == missing


def test_the_table_is_found_without_importing_triton():
    code = "import sys; from attnlab import interpreted; interpreted.compiled(); print('triton' in sys.modules)"
    root = Path(__file__).parents[1]
    path = os.pathsep.join([str(root), str(root / "kernels")])
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "False\n"


def test_version_targets_and_limits_are_those_of_the_table_that_the_tests_compile():
    from attnlab_kernels.testing import aot

    pins = (Path(__file__).parents[1] / "constraints.txt").read_text()
    assert re.search(r"^triton==(\S+)", pins, re.MULTILINE)[1] == interpreted.TRITON
    assert {target: limits.block_shared_bytes for target, limits in aot.LIMITS.items()} == interpreted.SHARED_LIMITS
    assert list(aot.TARGETS) == list(interpreted.SHARED_LIMITS)
    assert interpreted._budget() in (aot.BUDGET, None)
    assert sum(row["compiled"] for row in interpreted.compiled()) == len(aot.read_budget())


# -- a panel meanwhile --


@pytest.fixture
def panel():
    for package in ("anywidget", "ipywidgets"):
        pytest.importorskip(package, reason=f"the package {package} is not installed")
    from attnlab.race.widget import RacePanel

    panel = RacePanel()
    yield panel
    panel.close()


def ask(panel, **dials):
    state = panel.state | {"dials": panel.state["dials"] | dials}
    panel._receive(panel, {"kind": "verify", "state": state}, [])


def rows(panel):
    return {row["impl"]: row for row in panel.report["rows"]}


def test_a_panel_shows_the_rest_at_once_and_serves_others_until_the_kernel_is_done(room, panel, tmp_path):
    go = tmp_path / "go"
    room(f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\n    return right")

    async def kernel():
        ask(panel, tables=3)
        while panel.report is None:
            await asyncio.sleep(0)
        assert list(rows(panel)) == list(parity.FAST)
        assert rows(panel)["triton"] == {"impl": "triton", "ran": None}
        assert panel.error == ""
        panel.turn(planes=5)
        go.touch()
        await panel._verifying
        assert rows(panel)["triton"]["ok"]
        assert rows(panel)["triton"]["evidence"] == interpreted.evidence()
        assert panel.report["dials"] | {"planes": 5} == panel.state["dials"] | {"tables": 3}

    asyncio.run(kernel())


def test_a_later_question_takes_the_place_of_an_earlier_one(room, panel, monkeypatch):
    room("if len(arguments['planes']) == 4: time.sleep(600)\n    return right")
    started = []
    honest = parity.begin
    monkeypatch.setattr(parity, "begin", lambda *a, **kw: started.append(honest(*a, **kw)) or started[-1])

    async def kernel():
        ask(panel, tables=4)
        await asyncio.sleep(0)
        first = panel._verifying
        ask(panel, tables=3)
        await asyncio.gather(first, panel._verifying)

    asyncio.run(kernel())
    assert panel.report["dials"]["tables"] == 3
    assert rows(panel)["triton"]["ok"]
    assert [runs["triton"].process.returncode for runs in started] == [-signal.SIGKILL, 0]


def test_what_goes_wrong_meanwhile_is_shown_and_raised_and_the_process_ended(room, panel, monkeypatch):
    room("time.sleep(600)")
    started = []
    honest = parity.begin
    monkeypatch.setattr(parity, "begin", lambda *a, **kw: started.append(honest(*a, **kw)) or started[-1])

    def broken(*arguments, **options):
        raise RuntimeError("the kernel of race is on fire")

    monkeypatch.setattr(parity, "verify", broken)

    async def kernel():
        ask(panel)
        await panel._verifying

    with pytest.raises(RuntimeError, match="on fire"):
        asyncio.run(kernel())
    assert panel.error == "RuntimeError: the kernel of race is on fire"
    assert started[0]["triton"].process.returncode == -signal.SIGKILL
