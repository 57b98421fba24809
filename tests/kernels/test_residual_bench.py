"""The GPU bench of the residual kernels, as far as it goes without a GPU: its rows, its peer's absence, its refusal."""

import importlib.util
from pathlib import Path

import pytest

for package in ("torch", "triton"):
    pytest.importorskip(package, reason=f"the package {package} is not installed; get it with: pip install {package}")

import torch  # noqa: E402

pytestmark = pytest.mark.interpreted

SPEC = importlib.util.spec_from_file_location(
    "residual_bench", Path(__file__).parents[2] / "kernels" / "bench" / "residual.py"
)
bench = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(bench)


def once(run):
    """A clock that runs the call and says half a second."""
    run()
    return 0.5


def test_rows_of_every_pass_and_implementation_and_the_wanted_ratio(monkeypatch):
    monkeypatch.setattr(bench, "peer", lambda: lambda *tensors: bench.ours(*tensors, rule="gdn"))
    rows = list(bench.measured([(1, 5, 1)], 8, once, "cpu"))
    assert {(row["impl"], row["pass"]) for row in rows} == {
        (name, what)
        for name in ("fla gdn", "kernels rdn", "kernels rla", "kernels gdn")
        for what in ("forward", "forward+backward")
    }
    assert all(row["ms"] == 500.0 and not row["note"] for row in rows)
    assert [row["of_peer"] for row in rows if row["impl"] != "fla gdn"] == [1.0] * 6
    (wanted,) = [row for row in rows if row["target"] is not None]
    assert (wanted["impl"], wanted["pass"], wanted["target"]) == ("kernels rdn", "forward+backward", 1.3)
    assert "1.00 of fla target 1.3" in " ".join(bench.as_text({"machine": {}, "rows": rows}).split())


def test_a_peer_that_is_not_installed_is_said_to_be_so(monkeypatch):
    monkeypatch.setattr(bench, "peer", lambda: None)
    first, *_ = bench.measured([(1, 3, 1)], 8, once, "cpu")
    assert first["ms"] is None
    assert "pip install flash-linear-attention" in first["note"]


def test_an_implementation_that_fails_has_a_note(monkeypatch):
    def broken(*tensors):
        raise RuntimeError("out of memory\nand more")

    monkeypatch.setattr(bench, "peer", lambda: broken)
    first, *_, last = bench.measured([(1, 3, 1)], 8, once, "cpu")
    assert first["note"] == "RuntimeError: out of memory"
    assert last["of_peer"] is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to measure on")
def test_without_a_gpu_it_says_so_and_measures_nothing(capsys):
    assert bench.main([]) == 2
    assert "no GPU" in capsys.readouterr().err
