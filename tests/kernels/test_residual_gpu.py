"""The residual kernels on a GPU: what only a GPU shows. Real widths and lengths, the card's own exponential, and
programs that run at the same time. The small cases of test_residual_kernels run there too.

None of this has run yet: there was no GPU. Tolerances are therefore what rounding allows, not what was seen.
"""

import itertools

import numpy as np
import pytest

for package in ("torch", "triton"):
    pytest.importorskip(package, reason=f"the package {package} is not installed; get it with: pip install {package}")

import torch  # noqa: E402

from attnlab_kernels import residual  # noqa: E402
from tests.kernels.residual_cases import BF16, FP16, FP32, GATES, Case, array, assert_right, trained, wanted  # noqa: E402

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
LONG = 2**17
TYPES = pytest.mark.parametrize("dtype", [FP32, FP16, BF16], ids=["fp32", "fp16", "bf16"])
# Of the largest number of a tensor. Tensor cores add with fewer bits than float32 has, and over several chunks the
# error of one goes on into the next.
TOLERANCE = {FP32: 2.0**-16, FP16: 2.0**-8, BF16: 2.0**-5}


def on_gpu(tensors):
    return {name: None if x is None else x.to(DEVICE) for name, x in tensors.items()}


def by_kernels(case, **options):
    """Results and gradients in the default configuration, on the GPU."""
    return trained(residual.attention, case, on_gpu(case.inputs()), on_gpu(case.sent()), **options)


def assert_near(got, want, dtype):
    for name, x in got.items():
        exact = want[name]
        have = array(x)
        assert np.isfinite(have).all(), name
        far = np.abs(have - exact).max() / np.abs(exact).max()
        assert far <= TOLERANCE[dtype], f"{name}: {far:.2g} of the largest number, {TOLERANCE[dtype]:.2g} allowed"


@TYPES
@pytest.mark.parametrize("rule", ["rdn", "rla", "gdn"])
@pytest.mark.parametrize(("K", "V"), [(128, 128), (64, 64), (256, 256), (96, 80)], ids=str)
def test_real_widths_over_several_chunks_are_those_of_float64(rule, K, V, dtype):
    """By the smooth target: at the clip itself a gradient jumps."""
    case = Case(rule, T=101, K=K, V=V, dtype=dtype, target="log_cosh", retention="mild")
    assert_near(by_kernels(case), wanted(case), dtype)


@TYPES
def test_the_clip_at_real_widths(dtype):
    case = Case("rdn", T=64, K=128, V=128, dtype=dtype, retention="one spike")
    got, want = by_kernels(case), wanted(case)
    assert_near({name: got[name] for name in ("out", "base", "residual")}, want, dtype)
    if dtype == FP32:
        assert_right(got, case)


@TYPES
def test_the_same_call_gives_the_same_bits(dtype):
    """Many programs at a time, several times, beside other work on the card."""
    case = Case("rdn", T=2000, K=128, V=128, H=4, B=2, dtype=dtype, retention="mild")
    first = by_kernels(case)
    noise = torch.randn(2048, 2048, device=DEVICE)
    for _ in range(4):
        noise = torch.tanh(noise @ noise)
        for name, x in by_kernels(case).items():
            assert torch.equal(x, first[name]), name


def test_a_sequence_has_the_same_bits_in_a_batch_and_alone():
    case = Case("rdn", T=1000, K=128, V=128, B=3, dtype=BF16, retention="mild")
    inputs = on_gpu(case.inputs())
    arguments, state = [inputs[name] for name in ("q", "k", "v", *GATES)], (inputs["base"], inputs["residual"])
    together = residual.attention(*arguments, state=state)
    for row in range(3):
        here = slice(row, row + 1)
        alone = residual.attention(*(x[here] for x in arguments), state=tuple(x[here] for x in state))
        for one, all_rows in zip(alone, together, strict=True):
            assert torch.equal(one[0], all_rows[row])


def test_long_sequences_are_finite_and_those_of_segments():
    case = Case("rdn", T=LONG, K=128, V=128, H=1, dtype=BF16, retention="mild")
    inputs = on_gpu(case.inputs())
    arguments, state = [inputs[name] for name in ("q", "k", "v", *GATES)], (inputs["base"], inputs["residual"])
    whole, *last = residual.attention(*arguments, state=state)
    assert whole.isfinite().all()
    outs = []
    for a in range(0, LONG, LONG // 4):  # whole chunks, so that the bits are the same
        out, *state = residual.attention(*(x[:, a : a + LONG // 4] for x in arguments), state=tuple(state))
        outs.append(out)
    assert torch.equal(torch.cat(outs, 1), whole)
    for one, two in zip(state, last, strict=True):
        assert torch.equal(one, two)


def test_packed_sequences_on_the_gpu_have_the_same_bits_as_one_by_one():
    bounds = (0, 300, 300, 301, 900)
    case = Case("rdn", T=900, K=128, V=128, dtype=BF16, retention="mild", cu=bounds)
    inputs = on_gpu(case.inputs())
    arguments, state = [inputs[name] for name in ("q", "k", "v", *GATES)], (inputs["base"], inputs["residual"])
    cu = torch.tensor(bounds, dtype=torch.int32, device=DEVICE)
    packed, *last = residual.attention(*arguments, state=state, cu_seqlens=cu)
    for n, (a, b) in enumerate(itertools.pairwise(bounds)):
        first = tuple(x[n : n + 1] for x in state)
        out, *after = residual.attention(*(x[:, a:b] for x in arguments), state=first)
        assert torch.equal(out, packed[:, a:b])
        for one, two in zip(after, last, strict=True):
            assert torch.equal(one, two[n : n + 1])


def test_more_sequences_than_a_launch_has_in_one_direction():
    """70,000 of one token, each of which reads what it wrote."""
    N = 70_000
    case = Case("gdn", T=N, B=1, H=1, K=16, V=16, dtype=FP32, retention="mild")
    q, k, v, retention, write, _ = (on_gpu(case.inputs())[name] for name in ("q", "k", "v", *GATES))
    cu = torch.arange(N + 1, dtype=torch.int32, device=DEVICE)
    out, *_ = residual.attention(q, k, v, retention, write, rule="gdn", cu_seqlens=cu)
    wanted_out = ((q * k).sum(-1) * write)[..., None] * v
    torch.testing.assert_close(out, wanted_out, rtol=2.0**-16, atol=2.0**-16)


def test_outputs_of_more_than_2_31_numbers_are_reached_in_64_bits():
    """The last head of the last tokens lies beyond what 32 bits count. Only the forward pass: 13 GB."""
    H, T = 32, 2**31 // (32 * 128) + 64
    if torch.cuda.mem_get_info()[0] < 10 * H * T * 128:
        pytest.skip("the card has too little free memory")
    q, k, v = (torch.zeros(1, T, H, 128, dtype=BF16, device=DEVICE) for _ in range(3))
    case = Case("gdn", T=64, K=128, V=128, H=1, dtype=BF16, retention="mild")
    inputs = on_gpu(case.inputs())
    for x, name in ((q, "q"), (k, "k"), (v, "v")):
        x[:, -64:, -1] = inputs[name][:, :, 0]
    gates = [torch.ones(1, T, H, device=DEVICE) for _ in range(2)]
    for x, name in zip(gates, ("retention", "write"), strict=True):
        x[:, -64:, -1] = inputs[name][:, :, 0]
    out, _, _ = residual.attention(q, k, v, *gates, rule="gdn")
    alone, _, _ = residual.attention(*(inputs[name] for name in ("q", "k", "v", "retention", "write")), rule="gdn")
    assert torch.equal(out[:, -64:, -1], alone[:, :, 0])


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, as its compiler loads
def test_compiled_by_torch_it_gives_the_same_bits():
    case = Case("rdn", T=300, K=64, V=64, dtype=BF16, retention="mild")
    compiled = torch.compile(residual.attention, fullgraph=True)
    got = trained(compiled, case, on_gpu(case.inputs()), on_gpu(case.sent()))
    for name, x in by_kernels(case).items():
        assert torch.equal(x, got[name]), name
