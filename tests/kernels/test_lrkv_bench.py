"""The GPU bench of LRKV, as far as it goes without a GPU: its rows, its torch path, its refusal."""

import importlib.util
from pathlib import Path

import pytest

for package in ("torch", "triton"):
    pytest.importorskip(package, reason=f"the package {package} is not installed; get it with: pip install {package}")

import torch  # noqa: E402

pytestmark = pytest.mark.interpreted

SPEC = importlib.util.spec_from_file_location("lrkv_bench", Path(__file__).parents[2] / "kernels" / "bench" / "lrkv.py")
bench = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(bench)

SMALL = (2, 16)  # heads, width


def once(run):
    """A clock that runs the call and says half a second."""
    run()
    return 0.5


def test_rows_of_every_attempt_and_the_wanted_share(monkeypatch):
    monkeypatch.setattr(bench, "WANTED_SHAPE", (1, 40))
    rows = list(bench.measured([(1, 40)], (56,), SMALL, once, "cpu", 1e5))
    assert [row["impl"] for row in rows] == ["torch dense", "torch factored", "kernels"]
    assert all(row["ms"] == 500.0 and not row["note"] for row in rows)
    assert [row["of_dense"] for row in rows] == [None, 1.0, 1.0]
    cache = 2 * 40 * (2 * 16 + 2 * 2 * 56)  # bytes
    assert rows[-1]["of_copy"] == pytest.approx(2 * cache / 1e5)
    (wanted,) = [row for row in rows if row["target"] is not None]
    assert (wanted["impl"], wanted["target"]) == ("kernels", 0.70)
    assert "of copy target 0.70" in " ".join(bench.as_text({"machine": {}, "rows": rows}).split())


def test_a_copy_reads_and_writes():
    assert bench.copy_bytes_per_s(once, "cpu", 400) == 2 * 400 / 0.5


def test_the_torch_paths_agree_with_the_kernels_and_a_wrong_one_is_told(monkeypatch):
    given = bench.step(1, 40, *SMALL, 8, "cpu")
    assert bench.disagreement(given) <= bench.AGREE
    q, k, v = given.q.transpose(1, 2), *bench.expanded(given)
    dense = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    assert (dense - bench.by_torch(given)).abs().max() <= 0.02 * dense.abs().max()
    monkeypatch.setattr(bench, "whole", lambda given: bench.by_torch(given).flip(-1))
    assert bench.disagreement(given) > 1


def test_an_attempt_that_fails_has_a_note(monkeypatch):
    def broken(given):
        raise RuntimeError("out of memory\nand more")

    monkeypatch.setattr(bench, "by_torch", broken)
    _, failed, last = bench.measured([(1, 20)], (8,), SMALL, once, "cpu", 1.0)
    assert (failed["note"], failed["of_copy"]) == ("RuntimeError: out of memory", None)
    assert last["of_dense"] == 1.0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to measure on")
def test_without_a_gpu_it_says_so_and_measures_nothing(capsys):
    assert bench.main([]) == 2
    assert "no GPU" in capsys.readouterr().err
