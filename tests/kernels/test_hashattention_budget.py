"""What the stored compile table says of HashAttention's kernels, and what it covers; test_budget asks if it is true."""

import re

import pytest

pytest.importorskip("triton", reason="the package triton is not installed; get it with: pip install triton")

import torch

from attnlab.bench import kernels
from attnlab_kernels import hashattention
from attnlab_kernels.testing import aot, operations, traffic

PRODUCT = ("hash_encode_kernel", "hash_attend_shared_kernel")


def cases():
    return [
        case
        for case in aot.collect(operations.compiled())
        if case.launch.kernel.fn.__module__ == hashattention.__name__
    ]


def test_every_kernel_is_compiled_in_more_than_one_way():
    found = [case.launch.kernel.fn.__name__ for case in cases()]
    assert set(found) == {name for name in vars(hashattention) if re.fullmatch(r"hash_.*_kernel", name)}
    assert all(found.count(name) > 1 for name in found)


def test_the_stored_table_has_each_of_them_for_each_card_without_a_spill():
    budget = aot.read_budget()
    for case in cases():
        for target in aot.TARGETS:
            entry = budget[f"{case.id}.{target}"]
            assert entry["spill_bytes"] == 0
            assert entry["shared_bytes"] <= aot.LIMITS[target].block_shared_bytes
            assert (entry["tensor_core_instructions"] > 0) == (case.launch.kernel.fn.__name__ in PRODUCT), case.id


@pytest.mark.aot
@pytest.mark.parametrize(("target", "language"), [("sm_90", "ptx"), ("gfx942", "llir")])
@pytest.mark.parametrize("name", ["hash_count_kernel", "hash_place_kernel"])
def test_a_word_costs_one_popcount(name, target, language, monkeypatch):
    """One instruction for each key, query head and word of a tile."""
    for case in cases():
        options = case.launch.options
        if case.launch.kernel.fn.__name__ == name and options["BR"] > 1:
            made = []
            monkeypatch.setattr(aot, "_nvidia", lambda case, target, compiled, log, put=made: put.append(compiled))
            monkeypatch.setattr(aot, "_amd", lambda case, target, compiled, put=made: put.append(compiled))
            aot.compile_case(case, target)
            wanted = options["BR"] * options["W"] * options["BN"] // (32 * options["num_warps"])
            assert popcounts(made[0].asm[language]) == wanted, case.id


def popcounts(code):
    """Population counts of what an exclusive or left: Triton's histogram also counts bits, those of votes."""
    differences = set(re.findall(r"xor\.b32\s+(%\w+),|(%\w+) = xor ", code))
    counted = re.findall(r"popc\.b32\s+%\w+, (%\w+);|@llvm\.ctpop\.i32\(i32 (%\w+)\)", code)
    return sum("".join(names) in {"".join(either) for either in differences} for names in counted)


def test_tensors_that_are_not_on_a_gpu_are_refused_with_what_would_help():
    codes = torch.zeros(1, 1, 1, 1, dtype=torch.int32)
    with pytest.raises(RuntimeError, match="tensors must be on a GPU, got cpu; with TRITON_INTERPRET=1"):
        hashattention.select(codes, codes, budget=1)


@pytest.mark.parametrize("tokens", [4096, 4095])
def test_the_bench_judges_traffic_at_the_length_of_the_bounds_alone(tokens):
    count = traffic.Count(1000, {"one_kernel": {"x": 1500}}, 0).as_dict()
    both = {"scan": count, "gather": count}
    counts = {"tokens": tokens, "cases": {"b32-bf16": both, "b32-bf16-shared": both}}
    rows = {row["id"]: row for row in kernels.hash_traffic_rows(counts)}
    assert set(rows) == {f"hashattention.{name}.traffic_ratio" for name in ("scan", "gather", "gather.shared")}
    row = rows["hashattention.scan.traffic_ratio"]
    assert (row["value"], row["target"]) == (1.5, traffic.HASH_TARGETS["scan"] if tokens == 4096 else None)
    assert row["note"] == "one_kernel 1.500"
