"""The kernels for the CPU: every size and mask, forward and gradient, against float64; and what threads may change."""

import numpy as np
import pytest

pytest.importorskip("numba", reason="the package numba is not installed; get it with: pip install numba")

from attnlab import draws
from attnlab.lanes import aligned
from attnlab.race import cpu_kernels, draw_planes, numba_plain, reference

SIZES = [  # tokens, heads, K, V, tables, planes
    (100, 2, 128, 128, 4, 4),  # tiles of 48 and 24, both ragged
    (77, 3, 40, 24, 3, 3),
    (50, 1, 64, 72, 1, 1),  # two buckets
    (61, 2, 33, 19, 2, 5),  # widths that are no vectors
    (25, 1, 7, 9, 2, 2),  # few planes, and a key width that no dot takes
    (30, 2, 5, 4, 3, 8),  # 768 buckets
    (1, 1, 1, 1, 1, 1),
    (5, 2, 16, 8, 4, 2),
]
BLOCKS = (2 * cpu_kernels.BLOCK + 1000, 1, 8, 8, 2, 2)  # more than two blocks of tokens


def case(T, H, K, V, L, P, B=2, S=None):
    shapes = ((T, K), (T if S is None else S, K), (T if S is None else S, V), (T, V))
    arrays = [
        draws.normal(8, i, B * n, H * w).reshape(B, n, H, w).astype(np.float32) for i, (n, w) in enumerate(shapes)
    ]
    planes = np.stack([draw_planes(L, P, K, seed) for seed in range(H)]).astype(np.float32)
    return arrays, planes, np.linspace(0.5, 3, H).astype(np.float32)


def empty_state(arrays, planes):
    (B, _, H, _), (L, P), V = arrays[0].shape, planes.shape[1:3], arrays[2].shape[-1]
    return np.zeros((B, H, L << P)), np.zeros((B, H, L << P, V))


def forward(arrays, planes, beta, causal, state=None, threads=1):
    """(out, mass, content, den) of q, k, v."""
    q, k, v = arrays[:3]
    mass, content = empty_state(arrays, planes) if state is None else (x.copy() for x in state)
    out, den = aligned(*q.shape[:3], v.shape[-1]), aligned(*q.shape[:3], 1) if causal else None
    cpu_kernels.forward(q, k, v, planes, beta, mass, content, out, causal=causal, threads=threads, den=den)
    return out, mass, content, den


def gradients(arrays, planes, beta, causal, state=None, d_state=None, threads=1):
    """(dq, dk, dv, dbeta, d_mass, d_content) of the loss (out * g).sum() and d_state's share of the last state."""
    q, k, v, g = arrays
    out, mass, content, den = forward(arrays, planes, beta, causal, state, threads)
    first = empty_state(arrays, planes) if state is None else state
    read = state if causal else (mass, content)
    changed = [np.zeros_like(x) for x in first] if d_state is None else [x.copy() for x in d_state]
    slopes = [aligned(*x.shape) for x in (q, k, v)]
    kept = {"out": out, "den": den} if causal else {}
    given = (q, k, v, planes, beta, read, g, changed, *slopes)
    return *slopes, cpu_kernels.backward(*given, causal=causal, threads=threads, **kept), *changed


def assert_close(got, wanted, tolerance):
    """Within `tolerance` of the largest number: rounding is relative to what was summed, not to what is left."""
    got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    assert got.shape == wanted.shape
    assert np.isfinite(got).all()
    if wanted.size:
        assert np.abs(got - wanted).max() <= tolerance * np.abs(wanted).max() + 1e-30


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [*SIZES, BLOCKS])
def test_forward_is_the_reference(size, causal):
    arrays, planes, beta = case(*size)
    out, mass, _, _ = forward(arrays, planes, beta, causal)
    wanted, state = reference.attention(*arrays[:3], planes, beta, causal=causal, return_state=True)
    low = reference.attention(*arrays[:3], planes, beta, causal=causal, dtype=np.float32)
    # as far from float64 as float32 NumPy is, give or take: features in another order, tanh and exp2 to 2.6e-7
    assert_close(out, wanted, max(3e-6, 4 * np.abs(low - wanted).max() / np.abs(wanted).max()))
    np.testing.assert_allclose(mass, (np.exp(state.log_scale) * state.mass).reshape(mass.shape), rtol=2e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_the_version_to_read_is_the_reference_and_so_are_the_kernels_to_it(size, causal):
    arrays, planes, _ = case(*size)
    plain = numba_plain.attention(*arrays[:3], planes[0], 1.5, causal=causal)
    wanted = reference.attention(*arrays[:3], planes[0], 1.5, causal=causal)
    assert_close(plain, wanted, 1e-5)
    same = np.broadcast_to(planes[0], planes.shape)
    beta = np.full(len(planes), 1.5, np.float32)
    assert_close(forward(arrays, same, beta, causal)[0], plain, 1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [*SIZES[:-2], SIZES[-1], BLOCKS])
def test_gradients_are_those_of_float64(size, causal):
    """Of q, k, v, sharpness and the state carried in, with a gradient of the state given back."""
    torch = pytest.importorskip("torch", reason="the package torch is not installed; get it with: pip install torch")
    from attnlab.race import torch_impl

    arrays, planes, beta = case(*size)
    (mass, content), L = empty_state(arrays, planes), planes.shape[1]
    mass[...] = draws.uniform(8, 9, *mass.reshape(-1, mass.shape[-1]).shape).reshape(mass.shape) + 0.5
    content[...] = draws.normal(8, 10, content[..., 0].size, content.shape[-1]).reshape(content.shape)
    d_state = [draws.normal(8, 11, 1, x.size).reshape(x.shape) for x in (mass, content)]
    got = gradients(arrays, planes, beta, causal, (mass, content), d_state)

    wide = [torch.tensor(x.astype(np.float64), requires_grad=True) for x in (*arrays[:3], beta, mass, content)]
    B, H, _, V = content.shape
    carried = (wide[4].view(B, H, L, -1), wide[5].view(B, H, L, -1, V))
    options = {"causal": causal, "state": carried, "return_state": True}
    out, last = torch_impl.attention(*wide[:3], torch.tensor(planes.astype(np.float64)), wide[3], **options)
    loss = (out * torch.tensor(arrays[3])).sum()
    for x, d in zip((last.mass, last.content), d_state, strict=True):
        loss = loss + (x.reshape(d.shape) * torch.tensor(d)).sum()
    loss.backward()
    for ours, theirs in zip(got, wide, strict=True):
        assert_close(ours, theirs.grad.numpy(), 4e-5 if ours.ndim == 1 else 1.5e-5)  # beta's is a sum over all tokens


@pytest.mark.parametrize("S", [0, 1, 200])
def test_queries_and_keys_may_differ_in_number(S):
    arrays, planes, beta = case(70, 2, 16, 8, 2, 3, S=S)
    out = forward(arrays, planes, beta, causal=False)[0]
    assert_close(out, reference.attention(*arrays[:3], planes, beta), 3e-6)
    torch = pytest.importorskip("torch", reason="the package torch is not installed; get it with: pip install torch")
    from attnlab.race import torch_impl

    wide = [torch.tensor(x.astype(np.float64), requires_grad=True) for x in (*arrays[:3], beta)]
    wanted = torch_impl.attention(*wide[:3], torch.tensor(planes.astype(np.float64)), wide[3])
    (wanted * torch.tensor(arrays[3])).sum().backward()
    for ours, theirs in zip(gradients(arrays, planes, beta, causal=False)[:4], wide, strict=True):
        wanted = theirs.grad.numpy()
        scale = 1 if S == 1 else np.abs(wanted).max(initial=0)  # with one key no query and no key changes anything
        assert np.abs(ours - wanted).max(initial=0) <= 4e-5 * scale


@pytest.mark.parametrize("causal", [False, True])
def test_no_number_hangs_on_how_heads_are_shared_out(causal):
    arrays, planes, beta = case(3000, 4, 16, 8, 2, 2, B=1)
    one, two, four = (gradients(arrays, planes, beta, causal, threads=n) for n in (1, 2, 4))
    for x, y, z in zip(one, two, four, strict=True):
        assert np.array_equal(x, y)
        assert np.array_equal(x, z)


def test_non_causal_no_number_hangs_on_how_tokens_are_shared_out(monkeypatch):
    monkeypatch.setattr(cpu_kernels, "BLOCK", 240)  # stretches of 1,920 tokens
    arrays, planes, beta = case(9000, 1, 8, 8, 2, 2, B=1)
    assert len(cpu_kernels._stretches(9000)) == 5
    one, *others = (gradients(arrays, planes, beta, False, threads=n) for n in (1, 2, 5))
    for other in others:
        assert all(np.array_equal(x, y) for x, y in zip(one, other, strict=True))


def test_causal_tokens_are_shared_out_where_heads_are_few():
    """Their float64 sums meet in another order: the state to 1e-12, the rest to float32's last place or so."""
    arrays, planes, beta = case(*BLOCKS, B=1)
    out, mass, content, _ = forward(arrays, planes, beta, True)
    slopes = gradients(arrays, planes, beta, True)
    for threads in (2, 3, 8):
        shared = forward(arrays, planes, beta, True, threads=threads)
        assert_close(shared[0], out, 1e-6)
        assert_close(shared[1], mass, 1e-12)
        assert_close(shared[2], content, 1e-12)
        for x, y in zip(gradients(arrays, planes, beta, True, threads=threads), slopes, strict=True):
            assert_close(x, y, 1e-6)


def packed(x):
    records = np.zeros(x.shape, [("byte", "i1"), ("number", "f4")])
    records["number"] = x
    return records["number"]


@pytest.mark.parametrize("causal", [False, True])
def test_packed_values_of_width_one(causal):
    arrays, planes, beta = case(60, 1, 8, 1, 2, 2)
    wanted = gradients(arrays, planes, beta, causal)
    for change in (packed, lambda x: packed(x)[:, ::-1].copy()[:, ::-1], lambda x: packed(x[:, ::-1])[:, ::-1]):
        for x, y in zip(gradients([change(x) for x in arrays], planes, beta, causal), wanted, strict=True):
            assert np.array_equal(x, y)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("axis", ["B", "H", "K", "V"])
def test_an_axis_may_be_empty(axis, causal):
    sizes = {"B": 2, "H": 2, "K": 8, "V": 8} | {axis: 0}
    B, H, K, V = sizes.values()
    q, k, v = (np.ones((B, 30, H, n), np.float32) for n in (K, K, V))
    out = forward((q, k, v), np.ones((H, 2, 2, K), np.float32), np.ones(H, np.float32), causal)[0]
    assert out.shape == (B, 30, H, V)
    assert np.allclose(out, 1)


@pytest.mark.parametrize("causal", [False, True])
def test_arrays_may_lie_as_they_like(causal):
    arrays, planes, beta = case(100, 2, 16, 16, 2, 2)
    wanted = gradients(arrays, planes, beta, causal)
    for change in (
        lambda x: np.repeat(x, 2, 1)[:, ::2],
        lambda x: x.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3),  # heads first
        lambda x: x[:, ::-1].copy()[:, ::-1],  # backwards
        lambda x: np.repeat(x, 2, 3)[..., ::2],  # rows in pieces, which are copied
        packed,  # numbers that begin on no multiple of four bytes
    ):
        for x, y in zip(gradients([change(x) for x in arrays], planes, beta, causal), wanted, strict=True):
            assert np.array_equal(x, y)


def test_an_output_that_vectors_cannot_pass_the_cache_to_is_filled_too():
    (q, k, v, _), planes, beta = case(100, 2, 16, 16, 2, 2)
    wanted, out = forward((q, k, v), planes, beta, False)[0], aligned(2, 100, 2, 24)[..., 3:19]
    mass, content = empty_state((q, k, v), planes)
    cpu_kernels.forward(q, k, v, planes, beta, mass, content, out, causal=False, threads=1)
    assert np.array_equal(out, wanted)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_nan_comes_out_where_it_went_in(name, causal):
    arrays, planes, beta = case(60, 2, 16, 9, 2, 2)  # values that leave room in their last vector
    arrays["qkv".index(name)][0, 30, 1, 2] = np.nan
    out = forward(arrays, planes, beta, causal)[0]
    touched = np.isnan(out).any(-1)
    slopes = gradients(arrays, planes, beta, causal)
    assert not any(np.isnan(x[:, :, 0]).any() for x in slopes[:3])  # the other head
    assert not any(np.isnan(x[1]).any() for x in slopes[:3])  # the other sequence
    seen = np.zeros_like(touched)
    seen[0, 30 if name == "q" or causal else 0 : 31 if name == "q" else None, 1] = True
    assert np.array_equal(touched, seen)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_a_million_tokens_keep_their_mass(causal):
    """Every token has mass 1 a table. float32 alone would lose up to a percent."""
    (q, k, v, _), planes, beta = case(1_000_003, 1, 2, 1, 2, 3, B=1)
    _, mass, content, _ = forward((q, k, np.ones_like(v)), planes, beta, causal)
    np.testing.assert_allclose(mass.reshape(2, 8).sum(-1), 1_000_003, rtol=4e-7)
    np.testing.assert_allclose(content[..., 0], mass, rtol=4e-7)
