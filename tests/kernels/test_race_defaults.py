"""Results and gradients in the configuration that each type gets without being asked, at every kind of length."""

import pytest

pytest.importorskip("triton", reason="the package triton is not installed; get it with: pip install triton")

from attnlab_kernels import race
from tests.kernels.race_cases import BF16, FP16, FP32, Case, assert_trained, trained

pytestmark = pytest.mark.interpreted


@pytest.mark.parametrize("causal", [False, True], ids=["noncausal", "causal"])
@pytest.mark.parametrize("dtype", [FP32, FP16, BF16], ids=["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("tiles", [(0, 0), (0, 1), (1, -1), (1, 0), (1, 1), (3, 5)], ids=str)
def test_gradients_at_any_number_of_tokens(dtype, causal, tiles):
    whole, more = tiles
    case = Case(T=whole * race.CONFIGS[race.default_config(dtype)].grad_tile + more, dtype=dtype)
    assert_trained(trained(race.attention, case.inputs(), case.sent(), causal=causal), case, causal=causal)


@pytest.mark.parametrize("causal", [False, True], ids=["noncausal", "causal"])
@pytest.mark.parametrize("dtype", [FP32, FP16, BF16], ids=["fp32", "fp16", "bf16"])
def test_gradients_at_the_documented_size(dtype, causal):
    """Four planes, four tables, width 128: as many buckets in a program as it is made for."""
    case = Case(T=40, K=128, V=128, P=4, L=4, dtype=dtype)
    assert_trained(trained(race.attention, case.inputs(), case.sent(), causal=causal), case, causal=causal)
