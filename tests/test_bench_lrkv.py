"""`attnlab bench lrkv`: its rows say of planted times what is planted, and its small runs what they must."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

for package in ("numba", "torch", "threadpoolctl"):
    pytest.importorskip(package, reason=f"the package {package} is not installed; attnlab doctor says how to get it")

from attnlab import bench  # noqa: E402
from attnlab.bench import _memory, _read, lrkv  # noqa: E402
from tests.bench_rows import by_id, planted  # noqa: E402

PAPERS = Path(__file__).parents[1] / "docs" / "papers"
TARGETS = {
    f"lrkv.decode.n{n}.r{rank}.{name}": target
    for n in (8192, 131072)
    for rank, sdpa in ((56, 2.1), (32, 3.5), (16, 6.0))
    for name, target in (("of_read", 0.85), ("over_sdpa", sdpa), ("over_torch", 1.5))
}


def steps(of_read=0.9, over_sdpa=7.0, over_torch=2.0):
    """Seconds of every task: the slower way to read takes twice the faster one."""
    times = {"mha.sdpa": over_sdpa, "mha.products": 3.0}
    for rank in lrkv.RANKS:
        times |= {f"r{rank}.read.torch": 2 * of_read, f"r{rank}.read.ours": of_read, f"r{rank}.ours": 1.0}
        times[f"r{rank}.torch"] = over_torch
    return planted(**times)


@pytest.mark.parametrize("n", lrkv.LENGTHS)
def test_every_target_is_a_row_and_planted_ratios_meet_it(n):
    rows = by_id(lrkv.step_rows(n, steps()))
    wanted = {id: target for id, target in TARGETS.items() if f".n{n}." in id}
    assert {id: row["target"] for id, row in rows.items() if row["target"] is not None} == wanted
    assert {row["status"] for row in rows.values() if row["target"] is not None} == {"met"}
    assert {row["value"] for id, row in rows.items() if id.endswith("over_products")} == {3.0}
    assert {row["better"] for row in rows.values()} == {"higher"}
    values = {
        name: {row["value"] for id, row in rows.items() if id.endswith(name)} for name in ("read", "sdpa", "torch")
    }
    assert values == {"read": {0.9}, "sdpa": {7.0}, "torch": {2.0}}
    rate = lrkv.LENGTHS[n] * 4 * n * 2 * (128 + 32 * 16) / 0.9e9
    assert f"read at {rate:.1f} GB/s" in rows[f"lrkv.decode.n{n}.r16.of_read"]["note"]


@pytest.mark.parametrize(
    ("given", "id"),
    [
        ({"of_read": 0.84}, "lrkv.decode.n8192.r16.of_read"),
        ({"over_sdpa": 5.9}, "lrkv.decode.n8192.r16.over_sdpa"),
        ({"over_sdpa": 3.4}, "lrkv.decode.n8192.r32.over_sdpa"),
        ({"over_sdpa": 2.0}, "lrkv.decode.n8192.r56.over_sdpa"),
        ({"over_torch": 1.4}, "lrkv.decode.n8192.r56.over_torch"),
    ],
)
def test_what_misses_its_target_is_short(given, id):
    assert by_id(lrkv.step_rows(8192, steps(**given)))[id]["status"] == "short"


def test_no_room_for_the_caches_is_said_in_the_same_rows(monkeypatch):
    monkeypatch.setattr(_memory, "available_bytes", lambda: 2**32)
    why = lrkv._missing(2**17)
    needed = 8 * 2**17 * 32 * 128 + sum(lrkv.cache_bytes(2**17, rank) for rank in lrkv.RANKS) + lrkv.LIMIT
    assert why == f"caches of 131,072 tokens need {needed / 2**30:.1f} GiB, and 4.0 are free"
    rows = by_id(lrkv.left_out_rows(2**17, why))
    assert {id: row["target"] for id, row in rows.items()} == {id: t for id, t in TARGETS.items() if "n131072" in id}
    assert {row["value"] for row in rows.values()} == {None}
    assert lrkv._missing(2**10) == ""


def test_what_is_measured_computes_the_same_attention():
    made = lrkv.Steps(300, (16,))
    ours, theirs = made.ours(16), made.torch(16)().numpy()
    np.testing.assert_allclose(theirs, ours, atol=1e-5)
    fused, products = (way().numpy() for way in made.mha().values())
    np.testing.assert_allclose(fused[0, :, 0], products[:, 0], atol=1e-5)
    assert [row["status"] for row in lrkv.error_rows(made)] == ["met"]
    cache = [x for name, x in made.factored[16].items() if "factor" not in name]
    assert sum(x.nbytes for x in cache) == lrkv.cache_bytes(300, 16)
    for read in made.read(16, 2).values():
        read()


def test_turning_and_expanding_give_the_same_numbers():
    tasks = lrkv.turned_tasks()
    turned, made_whole = (tasks[f"turned.{name}"]() for name in ("read", "expanded"))
    np.testing.assert_allclose(turned, made_whole, atol=1e-5)
    rows = by_id(lrkv.turned_rows(planted(**{"turned.cached": 8.0, "turned.read": 12.0, "turned.expanded": 30.0})))
    assert rows["lrkv.turned.over_cached"]["value"] == 1.5
    assert rows["lrkv.expanded.over_factored"]["value"] == 20  # one step against eight


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_reading_reads_everything(threads, monkeypatch):
    seen = []
    monkeypatch.setattr(_read, "_read", lambda x, n, y: seen.append((x, n)))
    x = np.zeros((3, 320), np.float32)
    _read.read([x], threads)
    first = x.__array_interface__["data"][0]
    spans = sorted((at - first, at - first + 4 * n) for at, n in seen)
    assert spans[0][0] == 0
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(spans))
    assert spans[-1][1] >= x.nbytes - 4 * 32 * threads


def test_one_core_has_no_second_thread_and_times_are_of_a_step():
    assert lrkv.thread_row(None)["note"] == "this machine has one core"
    assert lrkv.thread_row(planted(**{"long.1": 1.0, "long.2": 0.5}))["value"] == 2
    rows = by_id(lrkv.time_rows(planted(**{"turned.read": 8e-3, "n8192.r16.ours": 2e-3})))
    assert {id: row["value"] for id, row in rows.items()} == {
        "lrkv.times.turned.read": 1,
        "lrkv.times.n8192.r16.ours": 2,
    }


def test_the_recorded_run_holds_these_rows():
    recorded = json.loads((PAPERS / "lrkv_bench.json").read_text())
    ids = {row["id"]: row for row in recorded["rows"]}
    assert {id: ids[id]["target"] for id in TARGETS} == TARGETS
    assert recorded["verdict"] == bench.verdict(recorded["rows"])
    assert recorded["verdict"] in (PAPERS / "lrkv_bench.txt").read_text()
    assert all(ids[f"{id.rpartition('.')[0]}.of_tolerance"]["status"] == "met" for id in TARGETS)
