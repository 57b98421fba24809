"""LRKV's kernels on a GPU: what only a GPU shows. Real widths and lengths, the card's own exponential and order of
addition, and programs that run at the same time. The small cases of test_lrkv_kernels run there too.

None of this has run yet: there was no GPU. Tolerances are therefore what rounding allows, not what was seen.
"""

import pytest

for package in ("torch", "triton"):
    pytest.importorskip(package, reason=f"the package {package} is not installed; get it with: pip install {package}")

import torch  # noqa: E402

from attnlab.lrkv import rope, rotary  # noqa: E402
from attnlab_kernels import lrkv  # noqa: E402
from tests.kernels.lrkv_cases import BF16, FP16, FP32  # noqa: E402

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
TYPES = pytest.mark.parametrize("dtype", [FP32, FP16, BF16], ids=["fp32", "fp16", "bf16"])
TOLERANCE = {FP32: 2.0**-17, FP16: 2.0**-9, BF16: 2.0**-6}  # of the largest number of an output


def given(B, T, S, H, K, R, dtype, G=1):
    draw = torch.Generator(DEVICE).manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=draw, device=DEVICE).to(dtype)

    return {
        "q": normal(B, T, H, K),
        "k_shared": normal(B, S, G, K),
        "v_shared": normal(B, S, G, K),
        "k_latent": normal(B, S, H, R),
        "v_latent": normal(B, S, H, R),
        "k_factor": normal(H, K, R) * R**-0.5,
        "v_factor": normal(H, K, R) * R**-0.5,
    }


def dense(q, k_shared, v_shared, k_latent, v_latent, k_factor, v_factor):
    """torch's attention over expanded heads, in float64."""
    q, *rest = (x.double() for x in (q, k_shared, v_shared, k_latent, v_latent, k_factor, v_factor))
    H, T, S = q.shape[2], q.shape[1], rest[0].shape[1]
    k, v = (
        (shared.repeat_interleave(H // shared.shape[2], 2) + torch.einsum("bshr,hkr->bshk", latent, factor))
        for shared, latent, factor in (rest[::2], rest[1::2])
    )
    mask = torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)


@TYPES
@pytest.mark.parametrize(("K", "R"), [(128, 16), (128, 56), (128, 54), (64, 46), (256, 64), (80, 128)])
@pytest.mark.parametrize(("T", "S"), [(1, 5000), (4, 777), (300, 1500)])
def test_real_widths_and_ranks_are_those_of_float64(T, S, K, R, dtype):
    case = given(2, T, S, 32, K, R, dtype)
    out, exact = lrkv.attention(**case), dense(**case)
    assert (out.double() - exact).abs().max() <= TOLERANCE[dtype] * exact.abs().max()


def test_the_same_call_gives_the_same_bits_alone_and_in_a_batch():
    """Many programs at a time, several times, beside other work on the card."""
    case = given(4, 1, 30_000, 32, 128, 56, BF16)
    first = lrkv.attention(**case)
    noise = torch.randn(2048, 2048, device=DEVICE)
    for _ in range(4):
        noise = torch.tanh(noise @ noise)
        assert torch.equal(lrkv.attention(**case), first)
    for b in range(4):
        alone = {name: x if "factor" in name else x[b : b + 1] for name, x in case.items()}
        assert torch.equal(lrkv.attention(**alone)[0], first[b])


@pytest.mark.parametrize("T", [1, 64])
def test_turned_at_read_is_turned_beforehand(T):
    case = given(1, T, 4000, 32, 128, 32, FP32)
    planes = torch.arange(16)
    case["k_factor"] = torch.from_numpy(rotary.aligned_factor(32, 128, planes.numpy())).float().to(DEVICE)
    whole = rope(128)
    part = rotary.Rope(whole.frequency[:16])
    positions = torch.arange(4000.0) + 100_000
    read = lrkv.attention(**case, rope=whole, latent_rope=part, positions=positions)
    expanded = lrkv.attention(**case, rope=whole, positions=positions)
    assert (read - expanded).abs().max() <= TOLERANCE[FP32] * read.abs().max()


def test_latents_beyond_2_31_numbers_are_reached_in_64_bits():
    """The last tokens lie beyond what 32 bits count."""
    H, R = 32, 64
    S = 2**31 // (H * R) + 64
    if torch.cuda.mem_get_info()[0] < 5 * S * H * R:
        pytest.skip("the card has too little free memory")
    case = given(1, 1, 64, H, 128, R, BF16)
    latent = torch.zeros(1, S, H, R, dtype=BF16, device=DEVICE)
    latent[:, -64:] = case["k_latent"]
    shared = torch.zeros(1, S, 1, 128, dtype=BF16, device=DEVICE)
    shared[:, -64:] = case["k_shared"]
    near = lrkv.attention(**case | {"v_shared": case["k_shared"], "v_latent": case["k_latent"]})
    far = lrkv.attention(
        **case | {"k_shared": shared, "v_shared": shared, "k_latent": latent, "v_latent": latent},
        starts=torch.tensor([S - 64], device=DEVICE),
    )
    assert (far.float() - near.float()).abs().max() <= TOLERANCE[BF16] * near.abs().max()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, as its compiler loads
def test_compiled_by_torch_it_gives_the_same_bits():
    case = given(2, 1, 2000, 32, 64, 16, BF16)
    compiled = torch.compile(lrkv.attention, fullgraph=True)
    assert torch.equal(compiled(**case), lrkv.attention(**case))
