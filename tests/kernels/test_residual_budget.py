"""What the stored compile table says of the residual kernels, and what it covers. That it is true is test_budget's."""

import pytest

pytest.importorskip("triton", reason="the package triton is not installed; get it with: pip install triton")

from attnlab.bench import kernels
from attnlab_kernels import residual
from attnlab_kernels.testing import aot, operations, traffic


def cases():
    return [
        case for case in aot.collect(operations.compiled()) if case.launch.kernel.fn.__module__ == residual.__name__
    ]


def test_every_kernel_every_configuration_and_every_switch_is_compiled():
    found = cases()
    assert {case.launch.kernel.fn.__name__ for case in found} == {
        name for name in vars(residual) if name.startswith("residual_") and name.endswith("_kernel")
    }
    ids = " ".join(case.id for case in found)
    for name in (*residual.CONFIGS, "tied", "log_cosh-ungated", "inference", "decode"):
        assert name in ids, name


def test_the_stored_table_has_each_of_them_for_each_card_without_a_spill():
    budget = aot.read_budget()
    for case in cases():
        for target in aot.TARGETS:
            entry = budget[f"{case.id}.{target}"]
            assert entry["spill_bytes"] == 0
            assert entry["shared_bytes"] <= aot.LIMITS[target].block_shared_bytes
            without = case.launch.kernel.fn.__name__ in ("residual_sum_kernel", "residual_decode_kernel")
            assert (entry["tensor_core_instructions"] == 0) == without, case.id


@pytest.mark.parametrize("tokens", [64, 63])
def test_the_bench_judges_traffic_at_the_length_of_the_bounds_alone(tokens):
    count = traffic.Count(1000, {"one_kernel": {"x": 5000}}, 8000).as_dict()
    counts = {"tokens": tokens, "cases": {"rdn-bf16-k128v128": {"forward": count}}}
    rows = {row["id"]: row for row in kernels.residual_traffic_rows(counts)}
    row = rows["residual.forward.rdn.traffic_ratio"]
    assert (row["value"], row["target"]) == (5.0, 5.7 if tokens == 64 else None)
    assert row["note"] == "one_kernel 5.000"
    assert rows["residual.forward.rdn.dot_flops"]["value"] == 8000 / tokens
