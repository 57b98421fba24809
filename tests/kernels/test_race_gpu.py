"""RACE's kernels on a GPU: what only a GPU shows. Real widths and lengths, the card's own exp2 and log2, and programs
that run at the same time. The small cases of test_race_kernels run there too.

None of this has run yet: there was no GPU. Tolerances are therefore what rounding allows, not what was seen.
"""

import itertools

import pytest

for package in ("torch", "triton"):
    pytest.importorskip(package, reason=f"the package {package} is not installed; get it with: pip install {package}")

import torch  # noqa: E402

from attnlab_kernels import race  # noqa: E402
from tests.kernels.race_cases import BF16, FP16, FP32, FP64, Case, oracle, rounded_features, trained  # noqa: E402

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
LONG = 2**20
CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["noncausal", "causal"])
TYPES = pytest.mark.parametrize("dtype", [FP32, FP16, BF16], ids=["fp32", "fp16", "bf16"])

# Of the largest number of a tensor. A result is rounded once to its type. In between, ex2.approx and lg2.approx are
# wrong by 2^-22 or so where NumPy is exact, a logarithm of phi is a sum of up to twelve of them, tensor cores add with
# fewer bits than float32 has, and a gradient is a difference of such numbers, hence its factor.
TOLERANCE = {FP32: 2.0**-16, FP16: 2.0**-9, BF16: 2.0**-6}
OF_GRADIENTS = 4


def on_gpu(tensors):
    return {name: x.to(DEVICE) for name, x in tensors.items()}


def by_kernels(case, **options):
    """Results and gradients in the default configuration, on the GPU."""
    return trained(race.attention, on_gpu(case.inputs()), [x.to(DEVICE) for x in case.sent()], **options)


def assert_near(got, want, dtype, factor=1.0):
    for name, x in got.items():
        allowed = factor * TOLERANCE[dtype] * (OF_GRADIENTS if name.startswith("gradient") else 1)
        exact = want[name].to(x.device, FP64)
        assert x.isfinite().all(), name
        far = (x.to(FP64) - exact).abs().max() / exact.abs().max()
        assert far <= allowed, f"{name}: {float(far):.2g} of the largest number, {allowed:.2g} allowed"


@TYPES
@CAUSAL
@pytest.mark.parametrize(
    ("P", "L", "K", "V"), [(4, 4, 128, 128), (2, 2, 64, 64), (6, 2, 256, 256), (3, 5, 96, 80)], ids=str
)
def test_real_widths_over_several_chunks_are_those_of_float64(P, L, K, V, causal, dtype):
    """Two chunks and a bit of the default configuration, each head with planes of its own; a state goes in, too."""
    T = 2 * race.CONFIGS[race.default_config(dtype)].chunk + 37
    case = Case(T=T, K=K, V=V, P=P, L=L, H=2, dtype=dtype)
    inputs, sent = on_gpu(case.inputs()), [x.to(DEVICE) for x in case.sent()]
    with rounded_features(dtype) if dtype != FP32 else torch.enable_grad():
        want = oracle(inputs, sent, causal=causal)
    assert_near(by_kernels(case, causal=causal), want, dtype)


@TYPES
@CAUSAL
def test_a_gpu_and_a_cpu_give_the_same(causal, dtype):
    case = Case(T=300, K=64, V=64, P=4, L=4, dtype=dtype)
    on_cpu = trained(race.attention, case.inputs(), case.sent(), causal=causal)
    assert_near(by_kernels(case, causal=causal), on_cpu, dtype, factor=2)


@TYPES
@CAUSAL
def test_the_same_call_gives_the_same_bits(causal, dtype):
    """Many programs at a time, several times, beside other work on the card."""
    case = Case(T=6000, K=128, V=128, P=4, L=4, H=4, B=2, dtype=dtype)
    inputs, sent = on_gpu(case.inputs()), [x.to(DEVICE) for x in case.sent()]
    first = trained(race.attention, inputs, sent, causal=causal)
    noise = torch.randn(2048, 2048, device=DEVICE)
    for _ in range(4):
        noise = torch.tanh(noise @ noise)
        again = trained(race.attention, inputs, sent, causal=causal)
        for name, x in first.items():
            assert torch.equal(x, again[name]), name


@CAUSAL
def test_a_sequence_has_the_same_bits_in_a_batch_and_alone(causal):
    case = Case(T=5000, K=128, V=128, P=4, L=4, H=2, B=3, dtype=BF16)
    inputs = on_gpu(case.inputs())
    q, k, v, planes, sharpness = (inputs[name] for name in ("q", "k", "v", "planes", "sharpness"))
    together = race.attention(q, k, v, planes, sharpness, causal=causal)
    for row in range(3):
        alone = race.attention(*(x[row : row + 1] for x in (q, k, v)), planes, sharpness, causal=causal)
        for one, all_rows in zip(alone, together, strict=True):
            assert torch.equal(one[0], all_rows[row])


def long_inputs(H=4, K=128):
    """bfloat16 q, k, v [1, LONG, H, K] and planes of (4, 4), drawn on the GPU."""
    generator = torch.Generator(DEVICE).manual_seed(3)
    q, k, v = (torch.randn(1, LONG, H, K, device=DEVICE, generator=generator).to(BF16) for _ in range(3))
    return q, k, v, torch.randn(4, 4, K, device=DEVICE, generator=generator) / K**0.5


def test_a_million_tokens_are_finite_and_those_of_segments():
    """Segments carry a float64 state; the whole one scans in float32, where a mass of 2^16 moves in steps of 2^-7."""
    q, k, v, planes = long_inputs()
    whole, *state = race.attention(q, k, v, planes, 2.0, causal=True)
    assert whole.isfinite().all()
    carried = tuple(torch.zeros_like(x, dtype=FP64) for x in state)
    for a in range(0, LONG, LONG // 8):
        at = slice(a, a + LONG // 8)
        part, *carried = race.attention(q[:, at], k[:, at], v[:, at], planes, 2.0, causal=True, state=tuple(carried))
        assert_near({"out": part}, {"out": whole[:, at]}, BF16)
    torch.testing.assert_close(state[0].to(FP64), carried[0], rtol=2.0**-14, atol=0)
    # every token spreads a mass of one over each table
    torch.testing.assert_close(carried[0].sum(-1), torch.full_like(carried[0][..., 0], LONG), rtol=2.0**-8, atol=0)


@CAUSAL
def test_gradients_of_a_million_tokens_are_finite_and_sum_to_nothing_where_values_agree(causal):
    """A constant value comes back exactly, so that q and k cannot move it; what v gets is what was sent."""
    q, k, v, planes = long_inputs()
    leaves = [x.requires_grad_() for x in (q, k, torch.full_like(v, 1.5))]
    out, _, _ = race.attention(*leaves, planes, 2.0, causal=causal)
    assert (out == 1.5).all()
    d_q, d_k, d_v = torch.autograd.grad(out, leaves, torch.ones_like(out))
    assert d_v.isfinite().all()
    cancelled = 2.0**-8 * 128 * 1.5  # of the sum over values that must cancel
    assert float(d_q.abs().max()) < cancelled
    assert float(d_k.abs().max()) < cancelled
    torch.testing.assert_close(
        d_v.sum(dtype=FP64) / d_v.numel(), torch.ones((), device=DEVICE, dtype=FP64), rtol=0.01, atol=0
    )


def test_tensors_of_more_than_2_31_numbers_are_reached_in_64_bits():
    """Heads first, so that the last head starts beyond what 32 bits count."""
    H = 2**31 // (LONG * 128) + 2
    if DEVICE == "cuda" and torch.cuda.mem_get_info()[0] < 12 * H * LONG * 128:
        pytest.skip("the card has too little free memory")
    q, k, v = (torch.empty(1, H, LONG, 128, dtype=BF16, device=DEVICE).transpose(1, 2) for _ in range(3))
    mine = long_inputs(H=1)
    for head in (0, H - 1):
        for x, own in zip((q, k, v), mine, strict=False):
            x[:, :, head] = own[:, :, 0]
    for x in (q, k, v):
        x[:, :, 1 : H - 1] = 0
    out, _, _ = race.attention(q, k, v, mine[3], 2.0, causal=True)
    alone, _, _ = race.attention(*mine[:3], mine[3], 2.0, causal=True)
    for head in (0, H - 1):
        assert torch.equal(out[:, :, head], alone[:, :, 0])


def test_packed_sequences_on_the_gpu_have_the_same_bits_as_one_by_one():
    bounds = (0, 3000, 3000, 3001, 9000)
    case = Case(T=9000, K=128, V=128, P=4, L=4, H=2, dtype=BF16)
    inputs = on_gpu(case.inputs())
    q, k, v, planes, sharpness = (inputs[name] for name in ("q", "k", "v", "planes", "sharpness"))
    cu = torch.tensor(bounds, dtype=torch.int32, device=DEVICE)
    packed, mass, content = race.attention(q, k, v, planes, sharpness, causal=True, cu_seqlens=cu)
    for n, (a, b) in enumerate(itertools.pairwise(bounds)):
        alone = race.attention(q[:, a:b], k[:, a:b], v[:, a:b], planes, sharpness, causal=True)
        for one, ours in zip(alone, (packed[:, a:b], mass[n : n + 1], content[n : n + 1]), strict=True):
            assert torch.equal(one, ours)


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
def test_decoding_token_by_token_is_causal_attention(dtype):
    case = Case(T=64, K=128, V=128, P=4, L=4, H=2, B=2, dtype=dtype)
    inputs = on_gpu(case.inputs())
    q, k, v, planes, sharpness, mass, content = inputs.values()
    whole, *last = race.attention(q, k, v, planes, sharpness, causal=True, state=(mass, content))
    mass, content = mass.clone(), content.clone()
    for t in range(case.T):
        at = slice(t, t + 1)
        out = race.decode_step(q[:, at], k[:, at], v[:, at], planes, sharpness, mass, content)
        assert_near({"out": out}, {"out": whole[:, at]}, dtype, factor=2)
    assert_near({"mass": mass, "content": content}, dict(zip(("mass", "content"), last, strict=True)), dtype)


# -- torch --


def operands(causal=True, **sizes):
    """What `race_forward` takes."""
    case = Case(T=70, K=32, V=16, P=2, L=2, H=2, **sizes)
    inputs = on_gpu(case.inputs())
    planes = inputs["planes"].contiguous()
    tensors = [inputs[name].requires_grad_() for name in ("q", "k", "v")]
    sharpness, mass, content = (inputs[name].requires_grad_() for name in ("sharpness", "mass", "content"))
    return *tensors, planes, sharpness, mass, content, None, causal, "short"


@CAUSAL
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
def test_the_operations_pass_opcheck_on_the_gpu(dtype, causal):
    arguments = operands(causal, dtype=dtype)
    torch.library.opcheck(torch.ops.attnlab.race_forward, arguments)
    plain = [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments]
    q, k, v, planes, sharpness, mass, content, _, _, config = plain
    out, den, *prefix, last_mass, last_content = torch.ops.attnlab.race_forward(*plain)
    state = prefix if causal else (last_mass, last_content)
    sent = [torch.ones_like(x) for x in (out, mass, content)]
    backward = (*sent, q, k, v, planes, sharpness, *state, out, den, None, causal, config)
    torch.library.opcheck(torch.ops.attnlab.race_backward, backward)
    one = [x[:, :1].contiguous() for x in (q, k, v)]
    torch.library.opcheck(torch.ops.attnlab.race_decode, (*one, planes, sharpness, mass, content))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, as its compiler loads
@CAUSAL
def test_compiled_by_torch_it_gives_the_same_bits(causal):
    case = Case(T=3000, K=64, V=64, P=4, L=4, H=2, dtype=BF16)
    inputs, sent = on_gpu(case.inputs()), [x.to(DEVICE) for x in case.sent()]
    compiled = torch.compile(race.attention, fullgraph=True)
    got = trained(compiled, inputs, sent, causal=causal)
    want = trained(race.attention, inputs, sent, causal=causal)
    for name, x in want.items():
        assert torch.equal(x, got[name]), name
