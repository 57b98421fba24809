"""The compile table of the real kernels: nothing spills, everything fits, and every number is the stored one."""

import pytest

pytest.importorskip("triton", reason="the package triton is not installed; get it with: pip install triton")

from attnlab_kernels import hashattention, lrkv, race, residual
from attnlab_kernels.testing import aot, operations

NO_PRODUCT = (
    *("scan_kernel", "delta_kernel", "decode_kernel", "residual_sum_kernel", "residual_decode_kernel"),
    *("hash_count_kernel", "hash_cut_kernel", "hash_place_kernel", "hash_attend_kernel", "hash_merge_kernel"),
    "lrkv_merge_kernel",
)


@pytest.mark.aot
@pytest.mark.slow
def test_every_kernel_compiles_for_every_card_as_the_budget_says():
    assert aot.check(aot.table(aot.collect(operations.compiled())), aot.read_budget()) == []


def test_the_table_covers_every_kernel_every_configuration_and_every_card():
    cases = aot.collect(operations.compiled())
    kernels = {
        name for module in (hashattention, lrkv, race, residual) for name in vars(module) if name.endswith("_kernel")
    }
    assert {case.launch.kernel.fn.__name__ for case in cases} == kernels
    assert aot.read_budget().keys() == {f"{case.id}.{target}" for case in cases for target in aot.TARGETS}
    for name, config in race.CONFIGS.items():
        assert any(name in case.id for case in cases), name
        if name == "short":  # in float32 the numbers of "fp32" but for the chunk, which nothing is compiled for
            assert config == race.CONFIGS["fp32"]._replace(chunk=config.chunk)


def test_every_kernel_uses_tensor_cores_but_those_without_a_product():
    found = aot.read_budget()
    assert found
    for key, entry in found.items():
        assert (entry["tensor_core_instructions"] == 0) == (key.split(".")[0] in NO_PRODUCT), key
