"""`attnlab bench hashattention`: its rows say of planted times what is planted, and its small runs what they must."""

import json
from pathlib import Path

import numpy as np
import pytest

for package in ("numba", "torch", "threadpoolctl", "faiss"):
    pytest.importorskip(package, reason=f"the package {package} is not installed; attnlab doctor says how to get it")

from attnlab import bench  # noqa: E402
from attnlab.bench import Seconds, _machine, hashattention  # noqa: E402
from tests.bench_rows import by_id, planted  # noqa: E402

PAPERS = Path(__file__).parents[1] / "docs" / "papers"
TARGETS = {
    "hashattention.top64.random.over_faiss": (2.5, "higher"),
    "hashattention.top64.random.over_bare_scan": (1.3, "lower"),
    "hashattention.top64.crowded.over_faiss": (2.5, "higher"),
    "hashattention.top64.crowded.over_bare_scan": (1.3, "lower"),
    "hashattention.sixteenth.over_faiss": (6.0, "higher"),
    "hashattention.sixteenth.over_topk": (10.0, "higher"),
    "hashattention.top64.queries32.over_faiss": (3.0, "higher"),
    "hashattention.decode.over_sdpa": (15.0, "higher"),
}


def scans(over=3.0, of_scan=1.2, part=7.0, topk=11.0):
    """Seconds of every task: the slower mode of faiss takes twice the faster one."""
    top = {"ours": 1.1, "kernel": 1.0, "bare_scan": 1 / of_scan, "faiss_heap": over * 1.1, "faiss_counting": 2 * over}
    sixteenth = {"ours": 1.0, "faiss_heap": 2 * part, "faiss_counting": part, "topk": topk, "argpartition": 5.0}
    wider = {"ours": 1.0, "faiss_heap": 9.0, "faiss_counting": 8.0}
    return planted(
        **{f"top64.bits{bits}.{who}": s for bits in hashattention.WIDER for who, s in wider.items()},
        **{f"top64.{kind}.{who}": s for kind in ("random", "crowded") for who, s in top.items()},
        **{f"sixteenth.{who}": s for who, s in sixteenth.items()},
    )


def many(over=4.0):
    seconds = {"ours": 1.0, "faiss_heap": over, "faiss_counting": 2 * over}
    return planted(**{f"top64.queries32.{who}": s for who, s in seconds.items()})


def step(over=20.0, rate=0.9):
    square = 2 * _machine.SQUARE**3 / 80e9
    encode = 2 * hashattention.N_ENCODE * (2 * 128 * 128 + 128 * 32) / (rate * 80e9)
    limits = {f"{name}.{who}": square for name in ("sgemm", "copy") for who in ("numpy", "torch")}
    parts = {"decode.ours": 16e-3, "decode.encode": 1e-3, "decode.select": 2e-3, "decode.sdpa": over * 1e-3}
    parts["decode.all"] = over * 0.5e-3
    return planted(**limits, **parts, encode=encode)


def rows_of(scan=None, lots=None, steps=None):
    seconds = (scan or scans(), lots or many(), steps or step())
    makers = (hashattention.scan_rows, hashattention.many_rows, hashattention.step_rows)
    return by_id([row for make, times in zip(makers, seconds, strict=True) for row in make(times)])


def test_every_target_is_a_row_and_planted_ratios_meet_it():
    rows = rows_of()
    judged = {id: (row["target"], row["better"]) for id, row in rows.items() if row["target"] is not None}
    assert judged == TARGETS
    assert {row["status"] for row in rows.values() if row["target"] is not None} == {"met"}
    assert [rows[id]["value"] for id in TARGETS] == [3.0, 1.2, 3.0, 1.2, 7.0, 11.0, 4.0, 20.0]
    assert rows["hashattention.encode.of_sgemm"]["value"] == 0.9
    assert rows["hashattention.decode.all_over_sdpa"]["value"] == 2
    assert rows["hashattention.sixteenth.over_argpartition"]["value"] == 5
    assert {rows[f"hashattention.top64.bits{bits}.over_faiss"]["value"] for bits in (64, 128, 256)} == {8}


@pytest.mark.parametrize(
    ("given", "id"),
    [
        ({"scan": scans(over=2.4)}, "hashattention.top64.random.over_faiss"),
        ({"scan": scans(of_scan=1.31)}, "hashattention.top64.crowded.over_bare_scan"),
        ({"scan": scans(part=5.9)}, "hashattention.sixteenth.over_faiss"),
        ({"scan": scans(topk=9.9)}, "hashattention.sixteenth.over_topk"),
        ({"lots": many(2.9)}, "hashattention.top64.queries32.over_faiss"),
        ({"steps": step(14.9)}, "hashattention.decode.over_sdpa"),
    ],
)
def test_what_misses_its_target_is_short(given, id):
    assert rows_of(**given)[id]["status"] == "short"


def test_times_are_of_a_code_and_query():
    rows = by_id(hashattention.time_rows(scans(), many(), step()))
    per = {"top64.random.kernel": 50 * 2**20, "sixteenth.ours": 50 * 2**17, "top64.queries32.ours": 32 * 2**23}
    for name, calls in per.items():
        assert rows[f"hashattention.times.{name}"]["value"] == float(f"{1e9 / calls:.4g}")
    assert rows["hashattention.times.decode.sdpa"]["value"] == 20_000
    assert rows["hashattention.times.decode.ours"]["value"] == 1000


def test_what_is_measured_are_the_same_neighbours():
    case = hashattention.Case(hashattention.codes(1, 3), hashattention.codes(2, 3000, distinct=40), 50)
    assert case.differences() == 0
    for task in case.tasks("kernel", "faiss_heap", "faiss_counting", "topk").values():
        task()
    far = np.sort(np.bitwise_count(case.keys.ravel() ^ case.queries.reshape(-1, 1)), axis=1)[:, :50]
    for peer in (case._faiss_heap, case._faiss_counting, case._topk):
        distances = np.asarray(peer()()[0])
        np.testing.assert_array_equal(np.sort(distances, axis=1), far)


@pytest.mark.parametrize("bits", hashattention.WIDER)
def test_wider_codes_have_the_same_neighbours_too(bits):
    keys = hashattention.codes(2, 3000, bits=bits)
    assert keys.shape == (1, 3000, 1, bits // 32)
    case = hashattention.Case(hashattention.codes(1, 2, bits=bits), keys, 50)
    assert case.differences() == 0
    far = np.stack([np.sort(hashattention._far(query, keys))[:50] for query in case.queries[0, :, 0]])
    np.testing.assert_array_equal(np.sort(case._faiss_heap()()[0], axis=1), far)


def test_a_wrong_index_is_counted():
    case = hashattention.Case(hashattention.codes(1, 2), hashattention.codes(2, 500), 20)
    right = case.ours()
    case.ours = lambda: np.where(right == right[0, 0, 0, 0], 499, right)
    assert case.differences() >= 1


def test_a_step_reads_one_token_in_32():
    from attnlab.hashattention import numba_impl

    step = hashattention.Step(2**14)
    assert (step.k.shape, step.v.shape) == ((1, 2**14, 1, 128),) * 2
    assert {q.shape for q in step.queries} == {(1, 1, 1, 128)}
    assert {sets.shape[-1] for sets in step.select()} == {2**14 // 32}
    retrieved = 2**14 // 32 - 256
    assert len(np.unique(step.select())) > 256 + 0.8 * 16 * retrieved  # one query finds little of what another read
    assert step.differences() == 0
    assert step.all().shape == (1, 1, 1, 128)
    for q, codes in zip(step.queries, step.encode(), strict=True):
        np.testing.assert_array_equal(codes, numba_impl.encode(q, hashattention.maps()))


def test_one_core_has_no_second_thread():
    row = hashattention.thread_row(None)
    assert (row["value"], row["note"]) == (None, "this machine has one core")
    assert hashattention.thread_row({f"long.{n}": [Seconds(1 / n, 1)] * 3 for n in (1, 2)})["value"] == 2


def test_the_recorded_run_holds_these_rows():
    recorded = json.loads((PAPERS / "hashattention_bench.json").read_text())
    ids = {row["id"]: row for row in recorded["rows"]}
    assert TARGETS.keys() <= ids.keys()
    assert all(ids[id]["target"] == target for id, (target, _) in TARGETS.items())
    assert recorded["verdict"] == bench.verdict(recorded["rows"])
    assert all(row["value"] == 0 for id, row in ids.items() if id.endswith(".differences"))
