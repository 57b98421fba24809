"""Every fast path is the reference's operator, in every precision it takes, and it refuses the rest."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import attnlab
from attnlab import backend, draws, parity
from attnlab.race import draw_planes, reference

B, H, K, V = 2, 3, 5, 4
ABSENT = {impl: backend.why_not(impl, "race") for impl in ("numba", "torch")}
FAST = [pytest.param(impl, marks=pytest.mark.skipif(bool(why), reason=str(why))) for impl, why in ABSENT.items()]


def qkv(T, S=None, K=K, V=V, H=H, B=B):
    S = T if S is None else S
    shapes = ((T, K), (S, K), (S, V))
    return [draws.normal(2, i, B * n, H * w).reshape(B, n, H, w).astype(np.float32) for i, (n, w) in enumerate(shapes)]


def assert_parity(got, exact, low, terms, **options):
    seen = parity.compare(got, exact, low, terms=terms, **options)
    assert seen.ok, seen.reason


CASES = [  # T, S, K, V, planes, tables, sharpness
    (7, 7, 5, 4, 2, 3, 1.5),
    (1, 1, 3, 8, 1, 1, 0.01),
    (0, 0, 5, 4, 2, 2, 1.0),
    (33, 33, 64, 64, 4, 4, 2.0),
    (5, 129, 5, 4, 3, 2, 10.0),  # queries fewer than keys
    (1025, 1025, 8, 6, 2, 2, 1.0),  # a chunk and one token
    (300, 300, 16, 3, 8, 1, 5.0),  # 256 buckets, at the edge of the range
    (64, 64, 5, 7, 3, 5, 1e-6),
]


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize(("T", "S", "K", "V", "P", "L", "sharpness"), CASES)
@pytest.mark.parametrize("causal", [False, True])
def test_forward_matches_the_reference(impl, T, S, K, V, P, L, sharpness, causal):
    if causal and T != S:
        S = T
    q, k, v = qkv(T, S, K, V)
    arguments = (q, k, v, draw_planes(L, P, K).astype(np.float32), sharpness)
    exact, low = (reference.attention(*arguments, causal=causal, dtype=kind) for kind in (np.float64, np.float32))
    assert_parity(attnlab.race.attention(*arguments, causal=causal, impl=impl), exact, low, terms=S + L * 2**P)


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("causal", [False, True])
def test_heads_with_their_own_planes_and_sharpness_and_normalised_input(impl, causal):
    q, k, v = qkv(40)
    own = np.stack([draw_planes(2, 3, K, seed) for seed in range(H)]).astype(np.float32)
    arguments = (3 * q, k, v, own, np.array([0.5, 2.0, 8.0]))
    options = {"causal": causal, "normalize": True}
    exact, low = (reference.attention(*arguments, **options, dtype=kind) for kind in (np.float64, np.float32))
    assert_parity(attnlab.race.attention(*arguments, **options, impl=impl), exact, low, terms=40 + 16)


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("cuts", [(0, 7, 40), (0, 1, 2, 3, 40), (0, 20, 20, 40)])
def test_segmented_run_matches_one_run_and_states_travel_between_implementations(impl, cuts):
    q, k, v = qkv(40)
    planes = draw_planes(2, 3, K)
    whole, last = reference.attention(q, k, v, planes, 2.0, causal=True, return_state=True)
    low = reference.attention(q, k, v, planes, 2.0, causal=True, dtype=np.float32)
    for first in ("reference", impl):  # the first segment may have been read by the reference
        state, parts = None, []
        for number, (a, b) in enumerate(itertools.pairwise(cuts)):
            options = {"causal": True, "state": state, "return_state": True, "impl": impl if number else first}
            part, state = attnlab.race.attention(q[:, a:b], k[:, a:b], v[:, a:b], planes, 2.0, **options)
            parts.append(part)
        assert_parity(np.concatenate(parts, 1), whole, low, terms=40 + 16)
        np.testing.assert_allclose(state.mass, np.exp(last.log_scale) * last.mass, rtol=1e-5)


@pytest.mark.parametrize("impl", FAST)
def test_token_by_token_streaming_matches_one_run(impl):
    q, k, v = qkv(9)
    planes, state, outs = draw_planes(2, 2, K), None, []
    for t in range(9):
        now = slice(t, t + 1)
        options = {"causal": True, "state": state, "return_state": True, "impl": impl}
        out, state = attnlab.race.attention(q[:, now], k[:, now], v[:, now], planes, 2.0, **options)
        outs.append(out)
    exact, low = (
        reference.attention(q, k, v, planes, 2.0, causal=True, dtype=kind) for kind in (np.float64, np.float32)
    )
    assert_parity(np.concatenate(outs, 1), exact, low, terms=9 + 8)


@pytest.mark.skipif(bool(ABSENT["numba"]), reason=str(ABSENT["numba"]))
def test_numba_computes_every_sequence_of_a_batch_as_if_alone_bit_for_bit():
    q, k, v = qkv(50)
    planes = draw_planes(2, 2, K)
    whole = attnlab.race.attention(q, k, v, planes, 2.0, causal=True, impl="numba")
    for b in range(B):
        alone = [x[b : b + 1] for x in (q, k, v)]
        assert np.array_equal(whole[b : b + 1], attnlab.race.attention(*alone, planes, 2.0, causal=True, impl="numba"))


@pytest.mark.skipif(bool(ABSENT["torch"]), reason=str(ABSENT["torch"]))
def test_torch_computes_every_sequence_of_a_batch_as_if_alone_to_rounding():
    """Its batched products choose their kernel by size, so bits may differ; the budget holds."""
    q, k, v = qkv(50)
    planes = draw_planes(2, 2, K)
    whole = attnlab.race.attention(q, k, v, planes, 2.0, causal=True, impl="torch")
    for b in range(B):
        alone = [x[b : b + 1] for x in (q, k, v)]
        exact, low = (
            reference.attention(*alone, planes, 2.0, causal=True, dtype=kind) for kind in (np.float64, np.float32)
        )
        assert_parity(whole[b : b + 1], exact, low, terms=50 + 8)
        assert_parity(attnlab.race.attention(*alone, planes, 2.0, causal=True, impl="torch"), exact, low, terms=50 + 8)


@pytest.mark.parametrize("impl", FAST)
def test_a_neighbour_in_the_batch_does_not_leak(impl):
    q, k, v = qkv(50)
    planes = draw_planes(2, 2, K)
    other = [x.copy() for x in (q, k, v)]
    for x in other:
        x[1] *= -7
    whole, changed = (attnlab.race.attention(*x, planes, 2.0, causal=True, impl=impl) for x in ((q, k, v), other))
    assert np.array_equal(whole[0], changed[0])
    assert not np.array_equal(whole[1], changed[1])


@pytest.mark.parametrize("impl", FAST)
def test_read_only_reversed_strided_and_float16_inputs(impl):
    q, k, v = qkv(12)
    planes = draw_planes(2, 2, K)
    want = attnlab.race.attention(q, k, v, planes, 2.0, impl=impl)
    for change in (lambda x: np.repeat(x, 2, axis=1)[:, ::2], lambda x: np.ascontiguousarray(x[..., ::-1])[..., ::-1]):
        arrays = [change(x) for x in (q, k, v)]
        before = [x.copy() for x in arrays]
        for x in arrays:
            x.flags.writeable = False
        np.testing.assert_allclose(attnlab.race.attention(*arrays, planes, 2.0, impl=impl), want, rtol=1e-5)
        assert all(np.array_equal(x, y) for x, y in zip(arrays, before, strict=True))
    half = [x.astype(np.float16) for x in (q, k, v)]
    got = attnlab.race.attention(*half, planes, 2.0, impl=impl)
    exact, low = (reference.attention(*half, planes, 2.0, dtype=kind) for kind in (np.float64, np.float32))
    assert_parity(got, exact, low, terms=12 + 8, out_dtype=np.float16)


@pytest.mark.parametrize("impl", FAST)
def test_a_constant_value_comes_back_and_the_first_token_reads_itself(impl):
    q, k, v = qkv(70)
    planes = draw_planes(4, 4, K)
    out = attnlab.race.attention(q, k, np.full_like(v, 3.25), planes, 10.0, causal=True, impl=impl)
    np.testing.assert_allclose(out, 3.25, rtol=1e-5)
    np.testing.assert_allclose(
        attnlab.race.attention(q, k, v, planes, 10.0, causal=True, impl=impl)[:, 0], v[:, 0], rtol=1e-5
    )


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize(
    "change", [{"sharpness": 41.0}, {"sharpness": 1e4}, {"variant": "bucket_mean"}, {"variant": "hard"}]
)
def test_what_it_does_not_cover_is_refused_with_the_range(impl, change):
    q, k, v = qkv(4)
    with pytest.raises(backend.Unsupported, match="covers"):
        attnlab.race.attention(q, k, v, draw_planes(1, 1, K).astype(np.float32), impl=impl, **change)


@pytest.mark.parametrize("impl", FAST)
def test_a_million_tokens_keep_their_mass_token_by_token_and_segment_by_segment(impl):
    """A float32 running mass near a million moves in steps of 1/16: it would lose or gain whole tokens."""
    planes, carried = draw_planes(1, 2, 2), 1_000_000.0
    k = draws.normal(3, 3, 200_000, 2).astype(np.float32)[None, :, None]
    state = (np.full((1, 1, 1, 4), carried), np.zeros((1, 1, 1, 4, 2)))
    for start, stop in [*((t, t + 1) for t in range(100)), (100, 5_000), (5_000, 200_000)]:
        part = k[:, start:stop]
        options = {"state": state, "return_state": True, "impl": impl}
        _, state = attnlab.race.attention(part[:, :1], part, part, planes, 2.0, **options)
    want = carried + reference.features(k, planes, 2.0).sum(1)[0, 0]
    np.testing.assert_allclose(state.mass[0, 0] - carried, want - carried, rtol=1e-6)


@pytest.mark.skipif(bool(ABSENT["numba"]), reason=str(ABSENT["numba"]))
def test_numbers_beyond_float32_are_refused_by_name_and_normalised_ones_are_not():
    q, k, v = (x.astype(np.float64) for x in qkv(6))
    planes = draw_planes(2, 2, K)
    with pytest.raises(backend.Unsupported, match="k has numbers too large"):
        attnlab.race.attention(q, 1e39 * k, v, planes, 1.0, impl="numba")
    want = attnlab.race.attention(q, k, v, planes, 1.0, normalize=True)
    for impl in [name for name, why in ABSENT.items() if not why]:
        for size in (1e-39, 1e39):
            got = attnlab.race.attention(size * q, size * k, v, planes, 1.0, normalize=True, impl=impl)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("impl", FAST)
def test_a_state_too_large_for_plain_units_is_refused(impl):
    q, k, v = qkv(3)
    planes = draw_planes(2, 2, K)
    _, state = attnlab.race.attention(q, k, v, planes, 1.0, return_state=True)
    far = state._replace(log_scale=state.log_scale + 1000)
    with pytest.raises(backend.Unsupported, match="plain units"):
        attnlab.race.attention(q, k, v, planes, 1.0, state=far, impl=impl)
    near = attnlab.race.attention(q, k, v, planes, 1.0, state=far)  # the reference takes it
    assert np.isfinite(near).all()


@pytest.mark.skipif(bool(ABSENT["numba"]), reason=str(ABSENT["numba"]))
def test_several_threads_may_call_at_once():
    q, k, v = qkv(2000)
    planes = draw_planes(2, 2, K)
    want = attnlab.race.attention(q, k, v, planes, 1.0, impl="numba")
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(attnlab.race.attention, q, k, v, planes, 1.0, impl="numba") for _ in range(12)]
        assert all(np.array_equal(call.result(), want) for call in calls)


@pytest.mark.parametrize("impl", ["reference", "numba"])
def test_no_gradient_of_a_carried_state_is_dropped_in_silence(impl):
    torch = pytest.importorskip("torch", reason="the package torch is not installed; get it with: pip install torch")
    if ABSENT.get(impl):
        pytest.skip(ABSENT[impl])
    q, k, v = qkv(4)
    mass = torch.ones(B, H, 2, 4, requires_grad=True)
    with pytest.raises(backend.Unsupported, match=r"state\.mass requires one"):
        attnlab.race.attention(q, k, v, draw_planes(2, 2, K), state=(mass, torch.zeros(B, H, 2, 4, V)), impl=impl)
