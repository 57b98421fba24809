"""RACE in Triton through the public door: the reference's operator, its states and its gradients. The cases run
interpreted, and on a GPU where there is one.
"""

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the package torch is not installed; get it with: pip install torch")

from attnlab import backend, draws, parity  # noqa: E402
from attnlab.race import attention, draw_planes, reference  # noqa: E402

ABSENT = backend.why_not("triton", "race")
# item by item, so that the interpreting run has tests to count where the package is missing
pytestmark = pytest.mark.skipif(bool(ABSENT), reason=str(ABSENT))

B, H, K, V, L, P = 1, 2, 5, 4, 2, 2
PLANES = draw_planes(L, P, K)


@pytest.fixture(
    autouse=True,
    params=[pytest.param("cpu", marks=pytest.mark.interpreted), pytest.param("cuda", marks=pytest.mark.gpu)],
)
def device(request):
    """Where tensors lie. Arrays find their own way."""
    return request.param


def qkv(T, S=None):
    shapes = ((T, K), (S or T, K), (S or T, V))
    return [draws.normal(2, i, B * n, H * w).reshape(B, n, H, w).astype(np.float32) for i, (n, w) in enumerate(shapes)]


def triton(*arguments, **options):
    return attention(*arguments, **options, impl="triton")


FLOAT32 = {"dtype": np.float32}
FLOAT16 = {"dtype": 2.0**-10, "terms": 3}  # of features and of their products with each other: rounded to tf32


def assert_parity(got, terms, *arguments, budget=FLOAT32, **options):
    exact, low = (reference.attention(*arguments, **options, dtype=kind) for kind in (np.float64, np.float32))
    out_dtype = np.float16 if got.dtype == np.float16 else None
    seen = parity.compare(got, exact, low, **{"terms": terms, "out_dtype": out_dtype} | budget)
    assert seen.ok, seen.reason


@pytest.mark.parametrize(("kind", "budget"), [(np.float32, FLOAT32), (np.float16, FLOAT16)])
@pytest.mark.parametrize(("T", "S", "causal"), [(9, 40, False), (40, 40, True), (0, 0, True)])
def test_the_output_is_that_of_the_reference(kind, budget, T, S, causal):
    arguments = (*(x.astype(kind) for x in qkv(T, S)), PLANES, 2.0)
    got = triton(*arguments, causal=causal)
    assert got.dtype == kind
    assert_parity(got, S + L * 2**P, *arguments, causal=causal, budget=budget)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_heads_have_their_own_planes_and_sharpness_and_input_is_normalised(causal, kind):
    q, k, v = (x.astype(kind) for x in qkv(20))
    own = np.stack([draw_planes(L, P, K, seed) for seed in range(H)])
    arguments, options = (3 * q, k, v, own, np.array([0.5, 8.0])), {"causal": causal, "normalize": True}
    assert_parity(triton(*arguments, **options), 20 + L * 2**P, *arguments, **options)


@pytest.mark.parametrize("impls", [("reference", "triton", "torch"), ("torch", "triton", "triton")])
def test_a_state_travels_between_implementations_and_segments_match_one_run(impls):
    q, k, v = qkv(24)
    state, parts = None, []
    for impl, (a, b) in zip(impls, itertools.pairwise((0, 7, 15, 24)), strict=True):
        options = {"causal": True, "state": state, "return_state": True, "impl": impl}
        part, state = attention(q[:, a:b], k[:, a:b], v[:, a:b], PLANES, 2.0, **options)
        parts.append(part)
    assert_parity(np.concatenate(parts, 1), 24 + L * 2**P, q, k, v, PLANES, 2.0, causal=True)
    _, last = reference.attention(q, k, v, PLANES, 2.0, causal=True, return_state=True)
    np.testing.assert_allclose(state.mass, np.exp(last.log_scale) * last.mass, rtol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_mass_of_a_million_keeps_what_a_few_tokens_add(causal, kind):
    """A float32 running mass near a million moves in steps of 1/16."""
    q, k, v = qkv(33)
    state = (np.full((B, H, L, 2**P), 1e6, kind), np.zeros((B, H, L, 2**P, V), kind))
    for a, b in itertools.pairwise((0, 1, 2, 33)):
        options = {"causal": causal, "state": state, "return_state": True}
        _, state = triton(q[:, a:b], k[:, a:b], v[:, a:b], PLANES, 2.0, **options)
    assert state.mass.dtype == state.content.dtype == np.float64
    added = reference.features(k, PLANES, 2.0).sum(1)
    np.testing.assert_allclose(state.mass - 1e6, added, rtol=1e-6)


def test_arrays_come_back_as_arrays_in_the_type_they_were_computed_in():
    q, k, v = qkv(6)
    for kinds, came in (
        ((np.float64, np.float64, np.float64), np.float32),
        ((np.float16, np.float32, np.float16), np.float16),
        ((">f4", np.longdouble, np.float64), np.float32),
    ):
        mixed = [x.astype(kind) for x, kind in zip((q, k, v), kinds, strict=True)]
        out, state = triton(*mixed, PLANES, 2.0, return_state=True)
        assert all(isinstance(x, np.ndarray) for x in (out, state.mass, state.content))
        assert out.dtype == came
        assert_parity(out, 6 + L * 2**P, *mixed, PLANES, 2.0)


def test_tensors_come_back_where_they_came_from_in_the_type_of_v(device):
    q, k, v = (torch.tensor(x, device=device) for x in qkv(6))
    kinds = (torch.float16, torch.float32, torch.bfloat16)
    mixed = [x.to(kind) for x, kind in zip((q, k, v), kinds, strict=True)]
    wide = [x.float() for x in mixed]
    out, state = triton(*mixed, PLANES, 2.0, causal=True, return_state=True)
    assert out.dtype == torch.bfloat16
    assert out.device == state.mass.device == q.device
    assert torch.equal(out, triton(*wide, PLANES, 2.0, causal=True).bfloat16())  # rounded once, on the way out


def test_numbers_beyond_float32_are_refused_by_name_and_normalised_ones_are_not():
    q, k, v = (x.astype(np.float64) for x in qkv(6))
    with pytest.raises(backend.Unsupported, match="k has numbers too large"):
        triton(q, 1e39 * k, v, PLANES, 1.0)
    for size in (1e-39, 1e39):
        assert_parity(
            triton(size * q, size * k, v, PLANES, 1.0, normalize=True),
            6 + L * 2**P,
            q,
            k,
            v,
            PLANES,
            1.0,
            normalize=True,
        )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sharpness": 20.1}, r"covers 2 \* sharpness \* planes <= 80 in torch.float32, got 80.4"),
        ({"variant": "hard"}, "covers variant='algorithm', not 'hard'"),
        ({"planes": draw_planes(1, 7, K)}, "covers planes from 1 to 6, got 7"),
        ({"planes": torch.ones(1, 1, K, requires_grad=True)}, "no gradient for planes"),
        ({"q": np.ones((1, 1, 1, 257)), "k": np.ones((1, 1, 1, 257)), "planes": np.ones((1, 1, 257))},
         "covers key widths from 1 to 256, got 257"),
        ({"v": np.ones((1, 1, 1, 257))}, "covers value widths from 1 to 256, got 257"),
        ({"v": torch.ones(1, 1, 1, V, dtype=torch.float64)}, "float32, float16 and bfloat16, got v of torch.float64"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_the_kernels_do_not_cover_is_refused_with_the_range(change, says):
    one = {"q": np.ones((1, 1, 1, K)), "k": np.ones((1, 1, 1, K)), "v": np.ones((1, 1, 1, V)), "planes": PLANES}
    with pytest.raises(backend.Unsupported, match=says):
        triton(**one | {"sharpness": 1.0} | change)


def test_a_state_too_large_for_plain_units_is_refused():
    q, k, v = qkv(3)
    _, state = attention(q, k, v, PLANES, 1.0, return_state=True)
    with pytest.raises(backend.Unsupported, match="plain units"):
        triton(q, k, v, PLANES, 1.0, state=state._replace(log_scale=state.log_scale + 1000))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
def test_gradients_are_those_of_the_torch_room_in_float64(causal, normalize, device):
    """Each factor of a product is split in two parts of 11 bits; three parts of 2^-22 of the whole are lost."""
    shape = (B, H, L, 2**P)
    arrays = [*qkv(20), np.array([0.5, 2.0])]
    mass = 1 + np.abs(draws.normal(5, 0, H * L, 2**P)).reshape(shape)
    content = draws.normal(5, 1, H * L * 2**P, V).reshape(*shape, V)

    def gradients(impl, kind, device="cpu"):
        leaves = [torch.tensor(x, dtype=kind, device=device, requires_grad=True) for x in arrays]
        carried = [torch.tensor(x, device=device, requires_grad=True) for x in (mass, content)]
        options = {"causal": causal, "normalize": normalize, "state": tuple(carried), "return_state": True}
        out, state = attention(*leaves[:3], PLANES, leaves[3], impl=impl, **options)
        loss = out.double().square().sum() + state.mass.square().mean() + state.content.square().mean()
        return torch.autograd.grad(loss, leaves + carried)

    exact, low = (gradients("torch", kind) for kind in (torch.float64, torch.float32))
    got = gradients("triton", torch.float32, device)
    for name, *three in zip(("q", "k", "v", "sharpness", "mass", "content"), got, exact, low, strict=True):
        seen = parity.compare(*(x.detach().cpu().numpy() for x in three), terms=20 + L * 2**P, dtype=2.0**-20)
        assert seen.ok, f"{name}: {seen.reason}"


def test_one_sharpness_for_all_heads_gets_the_sum_of_their_gradients(device):
    q, k, v = (torch.tensor(x, device=device) for x in qkv(6))
    one = torch.tensor(1.5, requires_grad=True)  # a number lies on no GPU; its gradient finds back
    each = torch.full((H,), 1.5, device=device, requires_grad=True)
    for sharpness in (one, each):
        triton(q, k, v, PLANES, sharpness).square().sum().backward()
    assert one.grad.item() == pytest.approx(each.grad.sum().item(), rel=1e-5)


def test_verify_runs_the_row_and_says_where():
    q, k, v = qkv(12)
    arguments = {"q": q, "k": k, "v": v, "planes": PLANES, "sharpness": 2.0, "causal": True}
    (report,) = parity.verify("race", arguments, terms=12 + L * 2**P, impls=["triton"])
    assert report.ran
    assert report.ok, report.reason
    assert report.device == backend.device("triton")
    assert "triton" in backend.available("race")
