"""The GPU bench of HashAttention, as far as it goes without a GPU: its rows, its torch path, its refusal."""

import importlib.util
from pathlib import Path

import pytest

for package in ("torch", "triton"):
    pytest.importorskip(package, reason=f"the package {package} is not installed; get it with: pip install {package}")

import torch  # noqa: E402

from attnlab_kernels import hashattention  # noqa: E402

pytestmark = pytest.mark.interpreted

SPEC = importlib.util.spec_from_file_location(
    "hashattention_bench", Path(__file__).parents[2] / "kernels" / "bench" / "hashattention.py"
)
bench = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(bench)

SMALL = (2, 1, 16)  # heads, groups, width


def once(run):
    """A clock that runs the call and says half a second."""
    run()
    return 0.5


def test_rows_of_every_attempt_and_the_wanted_share(monkeypatch):
    monkeypatch.setattr(bench, "WANTED_TOKENS", 300)
    rows = list(bench.measured([(1, 300)], SMALL, once, "cpu"))
    names = ("torch dense", "torch topk", "kernels step", "kernels scan", "kernels gather")
    assert tuple(row["impl"] for row in rows) == names
    assert all(row["ms"] == 500.0 and not row["note"] for row in rows)
    assert [row["of_dense"] for row in rows] == [None, *[1.0] * 4]
    (wanted,) = [row for row in rows if row["target"] is not None]
    assert (wanted["impl"], wanted["target"]) == ("kernels step", 0.28)
    assert "1.000 of dense target 0.28" in " ".join(bench.as_text({"machine": {}, "rows": rows}).split())


def test_the_torch_path_reads_the_kernels_tokens_and_a_wrong_one_is_told(monkeypatch):
    given = bench.step(1, 300, *SMALL, "cpu")
    assert bench.disagreement(given) <= bench.AGREE
    right = bench.torch_lists(given)
    monkeypatch.setattr(bench, "torch_lists", lambda given: right.flip(-1))
    assert bench.disagreement(given) == float("inf")


def test_an_attempt_that_fails_has_a_note(monkeypatch):
    def broken(given):
        raise RuntimeError("out of memory\nand more")

    monkeypatch.setattr(bench, "dense", broken)
    first, *_, last = bench.measured([(1, 300)], SMALL, once, "cpu")
    assert first["note"] == "RuntimeError: out of memory"
    assert last["of_dense"] is None


def test_nothing_is_appended_but_the_newest_token():
    given = bench.step(1, 300, *SMALL, "cpu")
    before = [x.clone() for x in (given.keys, given.values, given.codes)]
    bench.whole(given)
    for x, was in zip((given.keys, given.values, given.codes), before, strict=True):
        assert torch.equal(x, was)
    assert torch.equal(hashattention.encode(given.k, given.key_maps), given.codes[:, -1:])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to measure on")
def test_without_a_gpu_it_says_so_and_measures_nothing(capsys):
    assert bench.main([]) == 2
    assert "no GPU" in capsys.readouterr().err
