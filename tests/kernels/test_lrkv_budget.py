"""What the stored compile table says of LRKV's kernels, and what it covers; test_budget asks if it is true."""

import re

import pytest

pytest.importorskip("triton", reason="the package triton is not installed; get it with: pip install triton")

import torch

from attnlab.bench import kernels
from attnlab_kernels import lrkv
from attnlab_kernels.testing import aot, operations, traffic


def cases():
    return [case for case in aot.collect(operations.compiled()) if case.launch.kernel.fn.__module__ == lrkv.__name__]


def test_every_kernel_is_compiled():
    found = {case.launch.kernel.fn.__name__ for case in cases()}
    assert found == {name for name in vars(lrkv) if re.fullmatch(r"lrkv_.*_kernel", name)}


def test_the_stored_table_has_each_of_them_for_each_card_without_a_spill():
    budget = aot.read_budget()
    for case in cases():
        for target in aot.TARGETS:
            entry = budget[f"{case.id}.{target}"]
            assert entry["spill_bytes"] == 0
            assert entry["shared_bytes"] <= aot.LIMITS[target].block_shared_bytes


@pytest.mark.parametrize("rank", traffic.LRKV_TARGETS)
def test_decoding_32_heads_of_width_128_takes_128_registers_in_16_warps(rank):
    """Half of what a thread may have: a multiprocessor's registers hold 16 warps of it, where 255 leave 8."""
    found = [
        entry for key, entry in aot.read_budget().items()
        if re.fullmatch(rf"lrkv_decode_kernel\.r{rank}-bf16-k128v128-h32g1\.sm_\d+", key)
    ]  # fmt: skip
    assert len(found) == 3
    assert all((entry["registers"] <= 128, entry["warps"]) == (True, 16) for entry in found)


def latents_of(rank, stride):
    """The launch that decodes 32 heads from latents whose rows lie `stride` numbers apart."""
    given = operations.lrkv_arguments(operations.LrkvCase(torch.bfloat16, rank))
    for name in ("k_latent", "v_latent"):
        given[name] = torch.empty(1, 4096, 32, stride, dtype=torch.bfloat16, device="meta")[..., :rank]
    return next(case for case in aot.cases("aligned", lambda: lrkv.forward(**given)) if "decode" in case.id).launch


@pytest.mark.parametrize(("rank", "stride", "unit"), [(56, 56, 8), (54, 56, 8), (54, 54, 2), (55, 55, 1)])
def test_strides_say_how_wide_a_latent_may_be_loaded(rank, stride, unit):
    """In numbers of two bytes: rows of 54 padded to 56 load 16 bytes at a time, unpadded 4."""
    options = latents_of(rank, stride).options
    assert (options["UNIT"], options["V_UNIT"]) == (unit, unit)


def test_a_cache_that_is_not_on_a_gpu_is_refused_with_what_would_help():
    x = torch.zeros(1, 1, 1, 1)
    with pytest.raises(RuntimeError, match="tensors must be on a GPU, got cpu; with TRITON_INTERPRET=1"):
        lrkv.attention(x, x, x)


@pytest.mark.parametrize("tokens", [4096, 4095])
def test_the_bench_judges_traffic_at_the_length_of_the_bounds_alone(tokens):
    count = traffic.Count(1000, {"one_kernel": {"x": 1020}}, 0).as_dict()
    counts = {"tokens": tokens, "cases": {"r56-bf16-k128v128-h32g1": {"decode": count}}}
    (row,) = kernels.lrkv_traffic_rows(counts)
    assert (row["id"], row["value"]) == ("lrkv.decode.r56.traffic_ratio", 1.02)
    assert (row["target"], row["note"]) == (1.05 if tokens == 4096 else None, "one_kernel 1.020")
