"""HashAttention's kernels on a GPU: what only a GPU shows. Real widths and lengths, the card's own exponential and
histogram, and programs that run at the same time. The small cases of test_hashattention_kernels run there too.

None of this has run yet: there was no GPU. Tolerances are therefore what rounding allows, not what was seen.
"""

import itertools

import numpy as np
import pytest

for package in ("torch", "triton"):
    pytest.importorskip(package, reason=f"the package {package} is not installed; get it with: pip install {package}")

import torch  # noqa: E402

from attnlab_kernels import hashattention  # noqa: E402
from tests.kernels.hashattention_cases import BF16, FP16, FP32, Case, over_lists, wanted_lists  # noqa: E402

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
TYPES = pytest.mark.parametrize("dtype", [FP32, FP16, BF16], ids=["fp32", "fp16", "bf16"])
TOLERANCE = {FP32: 2.0**-18, FP16: 2.0**-10, BF16: 2.0**-7}  # of the largest number of an output


@pytest.mark.parametrize("bits", [32, 64, 256, 300, 1024])
@pytest.mark.parametrize("codes", ["random", "few", "far", "equal"])
@pytest.mark.parametrize(("S", "budget"), [(40_000, 1250), (5000, 0.5), (4096, 1)])
def test_sets_of_real_lengths_are_those_of_the_reference(S, budget, codes, bits):
    case = Case(B=2, S=S, H=8, G=2, C=2, bits=bits, codes=codes, budget=budget, sinks=128, window=128)
    queries, keys = case.coded()
    wide = hashattention.empty_codes(*keys.shape[:3], 32 * keys.shape[3], DEVICE).copy_(keys)
    want = wanted_lists(case, queries, keys)
    for laid in (wide, keys.to(DEVICE)):
        np.testing.assert_array_equal(hashattention.select(queries.to(DEVICE), laid, **case.sizes).cpu(), want)


@TYPES
@pytest.mark.parametrize("L", [8, 2])
@pytest.mark.parametrize("width", [64, 128, 256, 80])
def test_real_widths_over_lists_are_those_of_float64(width, L, dtype):
    case = Case(B=2, T=2, S=3000, H=8, G=2, K=width, V=width, dtype=dtype)
    given = [x.to(DEVICE) for x in case.rows()]
    index = torch.rand(2, 2, L, 3000, device=DEVICE).argsort(-1)[..., :1000].sort(-1)[0]
    lengths = torch.tensor([0, 1, 999, 1000], device=DEVICE).reshape(2, 2, 1).expand(2, 2, L)
    out, lse = hashattention.gathered_attention(*given, index, lengths, return_lse=True)
    exact, log = over_lists(*given, index.cpu(), lengths.cpu(), width**-0.5)
    have = out.double().cpu().numpy()
    assert np.abs(have - exact).max() <= TOLERANCE[dtype] * np.abs(exact).max()
    got, some = lse.double().cpu().numpy(), np.isfinite(log)
    assert np.array_equal(np.isneginf(got), np.isneginf(log))
    assert np.abs(got[some] - log[some]).max() <= 2.0**-16 * np.abs(log[some]).max()


def test_the_same_call_gives_the_same_bits_alone_and_in_a_batch():
    """Many programs at a time, several times, beside other work on the card."""
    case = Case(B=4, S=30_000, H=32, G=8, C=8, K=128, V=128, dtype=BF16, budget=900, sinks=128, window=128)
    given = [x.to(DEVICE) for x in (*case.rows(), *case.coded())]
    first = hashattention.attention(*given, **case.sizes)
    noise = torch.randn(2048, 2048, device=DEVICE)
    for _ in range(4):
        noise = torch.tanh(noise @ noise)
        assert torch.equal(hashattention.attention(*given, **case.sizes), first)
    for b in range(4):
        assert torch.equal(hashattention.attention(*(x[b : b + 1] for x in given), **case.sizes)[0], first[b])


def test_a_budget_of_all_is_dense_attention():
    case = Case(B=2, S=8192, H=8, G=2, K=128, V=128, C=2, dtype=BF16, budget=1.0)
    q, k, v, *codes = (x.to(DEVICE) for x in (*case.rows(), *case.coded()))
    out = hashattention.attention(q, k, v, *codes, **case.sizes)
    dense = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2).float() for x in (q, k, v)), enable_gqa=True
    ).transpose(1, 2)
    assert (out.float() - dense).abs().max() <= TOLERANCE[BF16] * dense.abs().max()


def test_keys_beyond_2_31_numbers_are_reached_in_64_bits():
    """The last tokens of the last head lie beyond what 32 bits count."""
    G, K = 8, 128
    S = 2**31 // (G * K) + 64
    if torch.cuda.mem_get_info()[0] < 5 * S * G * K:
        pytest.skip("the card has too little free memory")
    k = torch.zeros(1, S, G, K, dtype=BF16, device=DEVICE)
    k[:, -64:] = torch.randn(1, 64, G, K, device=DEVICE)
    q = torch.randn(1, 1, G, K, device=DEVICE, dtype=BF16)
    index = torch.arange(S - 64, S, device=DEVICE).expand(1, 1, G, 64)
    near = torch.arange(64, device=DEVICE).expand(1, 1, G, 64)
    assert torch.equal(
        hashattention.gathered_attention(q, k, k, index),
        hashattention.gathered_attention(q, k[:, -64:].contiguous(), k[:, -64:].contiguous(), near),
    )


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
def test_codes_of_a_long_prompt_and_of_one_token_are_the_same(dtype):
    draw = torch.Generator().manual_seed(0)
    widths = (128, 128, 128, 32)
    weights = [torch.randn(8, a, b, generator=draw).to(DEVICE) * a**-0.5 for a, b in itertools.pairwise(widths)]
    packed = hashattention.pack(weights, [torch.zeros(8, b, device=DEVICE) for b in widths[1:]])
    x = torch.randn(2, 5000, 8, 128, generator=draw).to(DEVICE, dtype)
    codes = hashattention.encode(x, packed)
    for token in (0, 17, 4999):
        assert torch.equal(hashattention.encode(x[:, token : token + 1], packed), codes[:, token : token + 1])
    y = x.double()
    for n, weight in enumerate(weights):
        y = torch.einsum("bthi,hio->btho", torch.nn.functional.silu(y) if n else y, weight.double())
    bits = (codes[..., 0, None] >> torch.arange(32, device=DEVICE)) & 1
    clear = y.abs() > 1e-4
    assert torch.equal(bits[clear] == 1, (y > 0)[clear])


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, as its compiler loads
def test_compiled_by_torch_it_gives_the_same_bits():
    case = Case(B=2, S=2000, H=8, G=2, C=2, K=64, V=64, dtype=BF16, budget=100)
    given = [x.to(DEVICE) for x in (*case.rows(), *case.coded())]
    compiled = torch.compile(hashattention.attention, fullgraph=True)
    assert torch.equal(compiled(*given, **case.sizes), hashattention.attention(*given, **case.sizes))
