"""The reference against numbers worked by hand, and everything it must survive."""

import ast
import itertools
from pathlib import Path

import numpy as np
import pytest

import attnlab
from attnlab import draws
from attnlab.race import draw_planes, reference
from attnlab.race.params import State

B, T, H, K, V = 2, 7, 3, 5, 4
L, P = 3, 2
R = 2**P


def qkv(T=T, S=None, seed=0):
    S = T if S is None else S
    shapes = ((T, K), (S, K), (S, V))
    return [draws.normal(seed, stream, B * n, H * w).reshape(B, n, H, w) for stream, (n, w) in enumerate(shapes)]


PLANES = draw_planes(L, P, K)


def attention(*arrays, sharpness=1.5, **options):
    return attnlab.race.attention(*arrays, PLANES, sharpness, **options)


def test_the_reference_is_short_enough_to_read_aloud():
    source = Path(reference.__file__).read_text()
    documented = {ast.Module, ast.ClassDef, ast.FunctionDef}
    prose = {
        line
        for node in ast.walk(ast.parse(source))
        if type(node) in documented and ast.get_docstring(node)
        for line in range(node.body[0].lineno, node.body[0].end_lineno + 1)
    }
    code = [n for n, line in enumerate(source.splitlines(), 1) if line.strip() and not line.strip().startswith("#")]
    assert len(set(code) - prose) < 150


STATE = State(np.ones((B, H, L, R)), np.ones((B, H, L, R, V)), np.zeros((B, H, L, R)))


# -- by hand --


def test_the_two_bucket_example_gives_one_ratio_after_summing():
    """phi(K) = (0.8, 0.2), (0.1, 0.9), V = 2, 10, phi(Q) = (0.75, 0.25): 4.3 / 0.95 (reader's example)."""
    log_phi_k = np.log(np.array([[0.8, 0.2], [0.1, 0.9]])).reshape(1, 2, 1, 1, 2)
    log_phi_q = np.log(np.array([0.75, 0.25])).reshape(1, 1, 1, 1, 2)
    state = reference.write(reference.empty_state(1, 1, 1, 2, 1), log_phi_k, np.array([2.0, 10.0]).reshape(1, 2, 1, 1))
    numerator, denominator = reference.read(state, log_phi_q)
    assert (numerator / denominator[..., None]).item() == pytest.approx(4.3 / 0.95, rel=1e-14)
    scale = np.exp(state.log_scale)
    assert (scale * state.mass).ravel() == pytest.approx([0.9, 1.1])
    assert (scale[..., None] * state.content).ravel() == pytest.approx([2.6, 9.4])
    means, one = reference.read(state, log_phi_q, variant="bucket_mean")
    assert means.item() == pytest.approx(142 / 33, rel=1e-5)  # eps = 1e-6 on each bucket's mass
    assert one.item() == 1


def test_corner_bits_count_from_the_least_significant():
    assert reference.corners(2).tolist() == [[-1, -1], [1, -1], [-1, 1], [1, 1]]


def test_features_are_a_product_of_sigmoids_and_sum_to_one():
    x = qkv()[0]
    phi = reference.features(x, PLANES, 1.5)
    u = np.tanh(np.einsum("bthk,lpk->bthlp", x, PLANES))
    product = np.prod(1 / (1 + np.exp(-3.0 * u[..., None, :] * reference.corners(P))), axis=-1)
    np.testing.assert_allclose(phi, product, rtol=1e-13)
    np.testing.assert_allclose(phi.sum(-1), 1.0, rtol=1e-14)


def test_the_kernel_matrix_gives_the_same_output_as_the_buckets():
    q, k, v = qkv(S=9)
    seen = reference.trace(q, k, v, PLANES, 1.5)
    np.testing.assert_allclose(np.einsum("bhts,bshv->bthv", seen.weights, v), seen.out, rtol=1e-12)
    pairs = np.einsum("bthlr,bshlr->bhts", seen.phi_q, seen.phi_k) / L
    np.testing.assert_allclose(seen.scores, pairs, rtol=1e-12)
    np.testing.assert_allclose(seen.mass, seen.phi_k.sum(1), rtol=1e-12)


def test_the_causal_run_is_the_masked_pairwise_form():
    q, k, v = qkv()
    seen = reference.trace(q, k, v, PLANES, 1.5, causal=True)
    masked = np.tril(np.einsum("bthlr,bshlr->bhts", seen.phi_q, seen.phi_k))
    want = np.einsum("bhts,bshv->bthv", masked / masked.sum(-1, keepdims=True), v)
    np.testing.assert_allclose(seen.out, want, rtol=1e-12)
    np.testing.assert_allclose(seen.weights, masked / masked.sum(-1, keepdims=True), rtol=1e-12)


@pytest.mark.parametrize("variant", ["algorithm", "hard"])
@pytest.mark.parametrize("causal", [False, True])
def test_numerator_over_denominator_is_the_output(variant, causal):
    q, k, v = qkv()
    seen = reference.trace(q, k, v, PLANES, 1.5, causal=causal, variant=variant)
    met = seen.denominator > 0
    np.testing.assert_allclose(
        (seen.numerator / np.where(met, seen.denominator, 1)[..., None])[met], seen.out[met], rtol=1e-12
    )
    if not causal:
        np.testing.assert_allclose(
            seen.denominator, np.einsum("bthlr,bhlr->bth", seen.phi_q, seen.mass) / L, rtol=1e-12
        )
    with pytest.raises(ValueError, match="variant must be one of 'algorithm', 'hard', got 'bucket_mean'"):
        reference.trace(q, k, v, PLANES, 1.5, variant="bucket_mean")


def test_sharpness_may_be_a_list_or_a_whole_number():
    q, k, v = qkv()
    assert np.array_equal(attention(q, k, v, sharpness=[2, 2, 2]), attention(q, k, v, sharpness=2))


def test_angular_scores_at_three_angles():
    q = np.array([1.0, 0.0]).reshape(1, 1, 1, 2)
    k = np.array([[5.0, 0.0], [0.0, 0.1], [-2.0, 0.0]]).reshape(1, 3, 1, 2)
    assert reference.angular_scores(q, k, 3).ravel() == pytest.approx([1.0, 1 / 8, 0.0])


def test_a_head_may_have_its_own_planes_and_sharpness():
    q, k, v = qkv()
    own = np.stack([draw_planes(L, P, K, seed) for seed in range(H)])
    beta = np.array([0.5, 1.0, 2.0])
    got = attnlab.race.attention(q, k, v, own, beta)
    for h in range(H):
        alone = slice(h, h + 1)
        want = attnlab.race.attention(q[:, :, alone], k[:, :, alone], v[:, :, alone], own[h], beta[h])
        np.testing.assert_allclose(got[:, :, alone], want, rtol=1e-12)


def test_the_released_codes_operator_is_another_one():
    q, k, v = qkv()
    ours, theirs = attention(q, k, v), attention(q, k, v, variant="bucket_mean")
    phi_q, phi_k = (reference.features(x, PLANES, 1.5) for x in (q, k))
    mean = np.einsum("bshlr,bshv->bhlrv", phi_k, v) / (phi_k.sum(1)[..., None] + 1e-6)
    np.testing.assert_allclose(theirs, np.einsum("bthlr,bhlrv->bthv", phi_q, mean), rtol=1e-12)
    assert np.linalg.norm(theirs / L - ours) > 0.01 * np.linalg.norm(ours)
    np.testing.assert_allclose(attention(q, k, np.ones_like(v), variant="bucket_mean"), L, rtol=1e-4)  # no 1/L


def test_hard_hashing_averages_the_keys_in_the_same_bucket_and_counts_empty_rows():
    q, k, v = qkv(T=5, S=3)
    seen = reference.trace(q, k, v, PLANES, variant="hard")
    bits = [np.einsum("bthk,lpk->bthlp", x, PLANES) > 0 for x in (q, k)]
    same = np.all(bits[0][:, :, None] == bits[1][:, None], axis=-1).sum(-1).transpose(0, 3, 1, 2)  # [B, H, T, S]
    total = same.sum(-1, keepdims=True)
    want = np.einsum("bhts,bshv->bthv", np.divide(same, total, out=np.zeros(same.shape), where=total > 0), v)
    np.testing.assert_allclose(seen.out, want, rtol=1e-12, atol=1e-15)
    assert seen.empty_rows == np.sum(total == 0) > 0


# -- it must survive --


@pytest.mark.parametrize("sharpness", [1e-6, 1e-3, 1.0, 30.0, 1e3, 1e4])
@pytest.mark.parametrize("planes", [1, 4, 8])
def test_any_sharpness_gives_the_first_token_its_own_value_and_keeps_a_constant(sharpness, planes):
    q, k, v = qkv()
    W = draw_planes(2, planes, K)
    out = attnlab.race.attention(q, k, v, W, sharpness, causal=True)
    np.testing.assert_allclose(out[:, 0], v[:, 0], rtol=1e-12)
    assert np.isfinite(out).all()
    for causal in (False, True):
        same = attnlab.race.attention(q, k, np.full_like(v, 3.25), W, sharpness, causal=causal)
        np.testing.assert_allclose(same, 3.25, rtol=1e-13)


@pytest.mark.parametrize("causal", [False, True])
def test_large_sharpness_approaches_hard_hashing_where_a_bucket_is_shared(causal):
    q, k, v = (x[:1, :, :1] for x in qkv(T=200))
    clear = np.all([np.abs(np.einsum("bthk,lpk->bthlp", x, PLANES)).min((0, 2, 3, 4)) > 0.02 for x in (q, k)], axis=0)
    q, k, v = (x[:, clear] for x in (q, k, v))  # no token on the fence: features are within exp(-2e4 * 0.02) of hard
    soft = attention(q, k, v, sharpness=1e4, causal=causal)
    hard = reference.trace(q, k, v, PLANES, variant="hard", causal=causal)
    met = hard.denominator > 0
    assert clear.sum() > 50
    assert met.mean() > 0.5
    np.testing.assert_allclose(soft[met], hard.out[met], rtol=1e-12)


def test_identical_keys_return_the_mean_value():
    q, k, v = qkv()
    np.testing.assert_allclose(
        attention(q, np.broadcast_to(k[:, :1], k.shape), v), v.mean(1, keepdims=True).repeat(T, 1), rtol=1e-12
    )


def test_zero_vectors_and_their_normalisation_are_harmless():
    q, k, v = qkv()
    zero = np.zeros_like(k)
    for normalize in (False, True):
        np.testing.assert_allclose(
            attention(q, zero, v, normalize=normalize), v.mean(1, keepdims=True).repeat(T, 1), rtol=1e-12
        )
    assert np.isfinite(reference.angular_attention(q, zero, v, P)).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [0, 1])
def test_no_token_and_one_token(causal, length):
    q, k, v = qkv(T=length)
    out, state = attention(q, k, v, causal=causal, return_state=True)
    assert out.shape == (B, length, H, V)
    np.testing.assert_allclose(out, v, rtol=1e-14)  # the only key is read, or nothing is
    assert state.mass.shape == (B, H, L, R)


def test_queries_without_keys_get_zero():
    q, k, v = qkv(T=4, S=0)
    assert not attention(q, k, v).any()


@pytest.mark.parametrize("cuts", [(0, 7), (0, 1, 7), (0, 3, 3, 4, 7)])
@pytest.mark.parametrize("sharpness", [1.5, 1e4])
def test_segmented_run_matches_one_run(cuts, sharpness):
    q, k, v = qkv()
    whole, last = attention(q, k, v, sharpness=sharpness, causal=True, return_state=True)
    state, parts = None, []
    for a, b in itertools.pairwise(cuts):
        options = {"sharpness": sharpness, "causal": True, "state": state, "return_state": True}
        part, state = attention(q[:, a:b], k[:, a:b], v[:, a:b], **options)
        parts.append(part)
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, rtol=1e-12)
    for got, want in zip(state, last, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_a_carried_state_counts_as_earlier_keys_also_in_plain_units():
    q, k, v = qkv()
    _, early = attention(q[:, :3], k[:, :3], v[:, :3], return_state=True)
    scale = np.exp(early.log_scale)
    plain = State(scale * early.mass, scale[..., None] * early.content)
    for state in (early, plain, tuple(plain[:2])):
        np.testing.assert_allclose(attention(q, k[:, 3:], v[:, 3:], state=state), attention(q, k, v), rtol=1e-12)


def test_every_sequence_of_a_batch_is_computed_alone():
    q, k, v = qkv()
    whole = attention(q, k, v, causal=True)
    for b in range(B):
        assert np.array_equal(whole[b : b + 1], attention(q[b : b + 1], k[b : b + 1], v[b : b + 1], causal=True))


def test_read_only_reversed_and_strided_inputs_are_taken_and_left_alone():
    q, k, v = qkv()
    want = attention(q, k, v)
    double = [np.repeat(x, 2, axis=1)[:, ::2] for x in (q, k, v)]
    backwards = [np.ascontiguousarray(x[..., ::-1])[..., ::-1] for x in (q, k, v)]
    for arrays in (double, backwards):
        for x in arrays:
            x.flags.writeable = False
        np.testing.assert_allclose(attention(*arrays), want, rtol=1e-13)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_half_precision_input_is_computed_in_float64(kind):
    q, k, v = qkv()
    if kind == "bfloat16":
        torch = pytest.importorskip("torch")
        narrow = [torch.from_numpy(x).bfloat16() for x in (q, k, v)]
        wide = [x.double().numpy() for x in narrow]
    else:
        narrow = [x.astype(np.float16) for x in (q, k, v)]
        wide = [x.astype(np.float64) for x in narrow]
    out = attention(*narrow)
    assert out.dtype == np.float64
    assert np.array_equal(out, attention(*wide))


def test_a_million_tokens_stream_in_constant_memory_with_their_mass_exact():
    tokens, segment = 1_000_000, 8_192
    W = draw_planes(1, 2, 4)
    state, size = None, set()
    for start in range(0, tokens, segment):
        n = min(segment, tokens - start)
        x = draws.normal(11, 1, np.arange(start, start + n), 4)[None, :, None]
        _, state = attnlab.race.attention(x[:, :0], x, x[..., :1], W, 2.0, state=state, return_state=True)
        size.add(sum(part.nbytes for part in state))
    mass = (np.exp(state.log_scale) * state.mass).sum()
    assert mass == pytest.approx(tokens, rel=1e-6)  # each table's features of a token sum to 1
    assert len(size) == 1


# -- the door --


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q": np.ones((B, T, H))}, "q must be [B, T, H, K]"),
        ({"k": np.ones((B, T, H, 6))}, "k must be [B, S, H, K] with K = 5 as in q, got (2, 7, 3, 6)"),
        ({"v": np.ones((B, T + 1, H, V))}, "v must be [B, S, H, V] with S = 7 as in k, got (2, 8, 3, 4)"),
        ({"v": np.ones((B, T, H + 1, V))}, "H = 3 as in q"),
        ({"planes": np.ones((L, P, 6))}, "planes must be [L, P, K] with K = 5 as in q"),
        ({"planes": np.ones((H, L, P))}, "planes must be [L, P, K] with K = 5"),
        ({"planes": np.ones((L, 9, K))}, "1 to 8 planes"),
        ({"sharpness": 0.0}, "sharpness must lie in [1e-06, 10000], got 0.0"),
        ({"sharpness": np.ones(4)}, "sharpness must be [H] with H = 3 as in q, got (4,)"),
        ({"sharpness": np.array([1.0, 2.0, 1e5])}, "sharpness must lie in [1e-06, 10000], got 100000.0"),
        ({"causal": 1}, "causal must be True or False, got 1"),
        ({"variant": "mean"}, "variant must be one of 'algorithm', 'bucket_mean', 'hard', got 'mean'"),
        ({"k": np.ones((B, 9, H, K)), "v": np.ones((B, 9, H, V)), "causal": True}, "so S = 7, got S = 9"),
        ({"state": np.ones(3)}, "state must be the State of an earlier call"),
        ({"state": (np.ones((B, H, L, 8)), np.ones((B, H, L, R, V)))}, "[B, H, L, R] with R = 4 as in planes (2^P)"),
        ({"state": (-np.ones((B, H, L, R)), np.zeros((B, H, L, R, V)))}, "state.mass must not be negative, got -1"),
        ({"state": (np.zeros((B, H, L, R)), np.ones((B, H, L, R, V)))}, "state.content must be 0 where"),
        ({"state": STATE._replace(log_scale=STATE.mass * np.nan)}, "state.log_scale must be finite, got nan"),
        ({"state": STATE._replace(log_scale=STATE.mass[:1])}, "state.log_scale must be [B, H, L, R] with B = 2"),
        ({"sharpness": np.array([1.0, np.nan, 2.0])}, "sharpness must be finite, got nan at [1]"),
        ({"k": np.full((B, T, H, K), np.inf)}, "k must be finite, got inf at [0, 0, 0, 0]"),
        ({"impl": "fast"}, "impl must be one of"),
    ],
)  # fmt: skip
def test_bad_input_is_named_with_what_was_wanted_and_what_came(change, words):
    q, k, v = qkv()
    arguments = {"q": q, "k": k, "v": v, "planes": PLANES} | change
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words are compared below
        attnlab.race.attention(**arguments)
    assert words in str(caught.value), str(caught.value)


def test_integer_input_is_refused():
    q, k, _ = qkv()
    with pytest.raises(TypeError, match="v must hold real floating-point numbers, got dtype int64"):
        attention(q, k, np.ones((B, T, H, V), dtype=int))
