"""The rivals against loops over pairs, their estimates against what they estimate, and RACE's error taken apart."""

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest

from attnlab import draws
from attnlab.dense import softmax_attention, softmax_weights, visible
from attnlab.race import comparisons, draw_planes, reference, theory

ROOT = Path(__file__).parents[2]
B, T, H, K, V = 2, 7, 3, 5, 4
S, M, L, P = 9, 6, 3, 2


def qkv(T=T, S=None, seed=0, B=B, H=H, K=K, V=V):
    S = T if S is None else S
    shapes = ((T, K), (S, K), (S, V))
    return [draws.normal(seed, stream, B * n, H * w).reshape(B, n, H, w) for stream, (n, w) in enumerate(shapes)]


PLANES = draw_planes(L, P, K)
PROJECTIONS = comparisons.draw_projections(M, K)


def linformer(q, k, v):
    E, F = (comparisons.draw_sequence_projections(M, k.shape[1], seed) for seed in (0, 1))
    return comparisons.linformer_attention(q, k, v, E, F)


OPERATORS = {
    "linear": comparisons.linear_attention,
    "performer": lambda q, k, v, **o: comparisons.performer_attention(q, k, v, PROJECTIONS, **o),
    "yoso": lambda q, k, v, **o: comparisons.yoso_attention(q, k, v, PLANES, **o),
    "yoso sums": lambda q, k, v, **o: comparisons.yoso_attention(q, k, v, PLANES, unit_length=False, **o),
    "yoso expected": lambda q, k, v, **o: comparisons.yoso_expectation(q, k, v, P, unit_length=False, **o),
    "sigmoid": comparisons.sigmoid_attention,
}


# -- each operator against a loop over pairs, in plain Python --


def elu(x):
    return x + 1 if x > 0 else math.exp(x)


def dot(a, b):
    return sum(float(x) * float(y) for x, y in zip(a, b, strict=True))


def favor(x):
    x = [float(entry) / K**0.25 for entry in x]
    return [math.exp(dot(w, x) - dot(x, x) / 2) for w in PROJECTIONS]


def angle(q, k):
    return math.acos(dot(q, k) / math.sqrt(dot(q, q) * dot(k, k)))


def collisions(q, k):
    return sum(all(dot(w, q) * dot(w, k) > 0 for w in table) for table in PLANES) / L


def sigmoid(q, k, keys):
    return 1 / (1 + math.exp(-(dot(q, k) / math.sqrt(K) - math.log(keys))))


PAIRWISE = {  # the weight of one pair, and whether weights are divided by their sum
    "linear": (lambda q, k, keys: dot(map(elu, q), map(elu, k)), True),
    "performer": (lambda q, k, keys: dot(favor(q), favor(k)), True),
    "yoso sums": (lambda q, k, keys: collisions(q, k), False),
    "yoso expected": (lambda q, k, keys: (1 - angle(q, k) / math.pi) ** P, False),
    "sigmoid": (sigmoid, False),
}


@pytest.mark.parametrize("name", PAIRWISE)
@pytest.mark.parametrize("causal", [False, True])
def test_an_operator_is_its_loop_over_pairs(name, causal):
    q, k, v = qkv(S=T if causal else S)
    weigh, divided = PAIRWISE[name]
    want = np.zeros((B, T, H, V))
    for b, t, h in np.ndindex(B, T, H):
        seen = range(t + 1 if causal else k.shape[1])
        weights = [weigh(q[b, t, h], k[b, s, h], k.shape[1]) for s in seen]
        total = sum(weights) if divided else 1
        want[b, t, h] = sum(w * v[b, s, h] for w, s in zip(weights, seen, strict=True)) / total
    np.testing.assert_allclose(OPERATORS[name](q, k, v, causal=causal), want, rtol=1e-12, atol=1e-14)


def test_linformer_is_softmax_over_the_projected_rows():
    q, k, v = qkv(S=S)
    E, F = (comparisons.draw_sequence_projections(M, S, seed) for seed in (0, 1))
    for b, t, h in np.ndindex(B, T, H):
        keys, values = E @ k[b, :, h], F @ v[b, :, h]
        weights = [math.exp(dot(q[b, t, h], row) / math.sqrt(K)) for row in keys]
        want = sum(w * row for w, row in zip(weights, values, strict=True)) / sum(weights)
        np.testing.assert_allclose(linformer(q, k, v)[b, t, h], want, rtol=1e-12)


def test_linformers_weights_give_its_output():
    q, k, v = qkv(S=S)
    E, F = (comparisons.draw_sequence_projections(M, S, seed) for seed in (0, 1))
    weights = comparisons.linformer_weights(q, k, E, F)
    np.testing.assert_allclose(np.einsum("bhts,bshv->bthv", weights, v), linformer(q, k, v), rtol=1e-12, atol=1e-14)


def test_linformer_with_the_identity_is_softmax_attention():
    q, k, v = qkv(S=S)
    got = comparisons.linformer_attention(q, k, v, np.eye(S), comparisons.pooling(S, S))
    np.testing.assert_allclose(got, softmax_attention(q, k, v), rtol=1e-12)


def test_yoso_gives_its_sums_a_length_of_one():
    q, k, v = qkv(S=S)
    for whole, bare in (
        (comparisons.yoso_attention(q, k, v, PLANES), OPERATORS["yoso sums"](q, k, v)),
        (comparisons.yoso_expectation(q, k, v, P), OPERATORS["yoso expected"](q, k, v)),
    ):
        length = np.linalg.norm(bare, axis=-1, keepdims=True)
        met = length[..., 0] > 0
        np.testing.assert_allclose(whole[met], (bare / np.where(length > 0, length, 1))[met], rtol=1e-12)
        assert np.count_nonzero(whole[~met]) == 0


def test_yoso_divided_by_its_mass_is_hard_race():
    q, k, v = qkv()
    phi_q, phi_k = (comparisons.hash_features(x, PLANES) for x in (q, k))
    seen = reference.trace(q, k, v, PLANES, causal=True, variant="hard")
    np.testing.assert_allclose(comparisons.feature_weights(phi_q, phi_k, causal=True), seen.weights, atol=1e-14)


def test_races_features_give_races_weights():
    q, k, v = qkv()
    phi_q, phi_k = (comparisons.race_features(x, PLANES, 1.5) for x in (q, k))
    seen = reference.trace(q, k, v, PLANES, 1.5, causal=True)
    np.testing.assert_allclose(comparisons.feature_weights(phi_q, phi_k, causal=True), seen.weights, rtol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_the_sums_and_the_pairwise_weights_are_one_operator(causal):
    q, k, v = qkv(S=T if causal else S)
    phi_q, phi_k = (comparisons.elu_features(x) for x in (q, k))
    weights = comparisons.feature_weights(phi_q, phi_k, causal=causal)
    got = comparisons.linear_attention(q, k, v, causal=causal)
    np.testing.assert_allclose(np.einsum("bhts,bshv->bthv", weights, v), got, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-12)


# -- what must hold of each --


@pytest.mark.parametrize("name", OPERATORS)
def test_later_tokens_change_nothing_earlier(name):
    q, k, v = qkv()
    cut = 4
    other = [x.copy() for x in (q, k, v)]
    for x, y in zip(other, qkv(seed=1), strict=True):
        x[:, cut:] = 3 * y[:, cut:]
    before, after = (OPERATORS[name](*arrays, causal=True) for arrays in ((q, k, v), other))
    np.testing.assert_array_equal(after[:, :cut], before[:, :cut])
    assert np.abs(after[:, cut:] - before[:, cut:]).max() > 0.1


@pytest.mark.parametrize("name", ["linear", "performer"])
@pytest.mark.parametrize("causal", [False, True])
def test_a_constant_value_comes_back(name, causal):
    q, k, v = qkv()
    constant = np.broadcast_to([1.0, -2.0, 0.5, 3.0], v.shape)
    np.testing.assert_allclose(OPERATORS[name](q, k, constant, causal=causal), constant, rtol=1e-12)


def test_a_constant_value_comes_back_from_pooled_linformer():
    q, k, v = qkv(S=S)
    pool = comparisons.pooling(M, S)
    got = comparisons.linformer_attention(q, k, np.full_like(v, 3.0), pool, pool)
    np.testing.assert_allclose(got, 3.0, rtol=1e-12)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize(("tokens", "keys", "causal"), [(0, 0, True), (1, 1, True), (0, 3, False), (4, 0, False)])
def test_few_tokens_and_none(name, tokens, keys, causal):
    q, k, v = qkv(T=tokens, S=keys)
    out = OPERATORS[name](q, k, v, causal=causal)
    assert out.shape == (B, tokens, H, V)
    assert np.isfinite(out).all()
    if keys == 0:
        assert np.count_nonzero(out) == 0
    if name in ("linear", "performer") and tokens == keys == 1:
        np.testing.assert_allclose(out, v, rtol=1e-12)


def test_performer_survives_long_vectors_and_gives_zero_where_all_terms_underflow():
    q, k, v = qkv()
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    out = OPERATORS["performer"](1000 * q, 30 * k, v)  # a query's own scale cancels, however large it is
    assert np.linalg.norm(out, axis=-1).min() > 0
    np.testing.assert_array_equal(OPERATORS["performer"](q, 1000 * k, v), 0)


@pytest.mark.parametrize("kind", ["float16", "float32"])
@pytest.mark.parametrize("name", OPERATORS)
def test_everything_is_computed_in_float64(name, kind):
    low = [x.astype(kind) for x in qkv()]
    out = OPERATORS[name](*low)
    assert out.dtype == np.float64
    np.testing.assert_array_equal(out, OPERATORS[name](*(x.astype(np.float64) for x in low)))


@pytest.mark.parametrize("name", OPERATORS)
def test_bad_input_is_named(name):
    q, k, v = qkv()
    attend = OPERATORS[name]
    with pytest.raises(ValueError, match=r"^k must be \[B, S, H, K\] with K = 5 as in q, got"):
        attend(q, k[..., :4], v)
    with pytest.raises(ValueError, match=r"^v must be \[B, S, H, V\] with S = 7 as in k, got"):
        attend(q, k, v[:, :5])
    with pytest.raises(ValueError, match=r"^k must have as many positions as q where causal, so S = 7, got S = 5"):
        attend(q, k[:, :5], v[:, :5], causal=True)
    with pytest.raises(ValueError, match=r"^causal must be True or False, got 1"):
        attend(q, k, v, causal=1)
    with pytest.raises(TypeError, match=r"^q must hold real floating-point numbers, got dtype int64"):
        attend(np.zeros(q.shape, dtype=int), k, v)


def test_bad_arrays_and_dials_are_named():
    q, k, v = qkv()
    pool = comparisons.pooling(M, T)
    one = {"head_width": K, "value_width": V}
    for wrong, call in {
        r"projections must be \[M, K\] with K = 5": lambda: comparisons.performer_attention(q, k, v, np.ones((M, 4))),
        r"planes must be \[L, P, K\] with K = 5": lambda: comparisons.yoso_attention(q, k, v, np.ones((L, P, 4))),
        r"unit_length must be True or False": lambda: comparisons.yoso_attention(q, k, v, PLANES, unit_length=None),
        r"bits must lie in \[1, 64\]": lambda: comparisons.yoso_expectation(q, k, v, 0),
        r"bias must be a number": lambda: comparisons.sigmoid_attention(q, k, v, bias="low"),
        r"key_projection must be \[M, S\] with S = 7": lambda: comparisons.linformer_attention(
            q, k, v, pool[:, 1:], pool
        ),
        r"value_projection must be \[M, S\] with M = 6": lambda: comparisons.linformer_attention(
            q, k, v, pool, pool[1:]
        ),
        r"count must lie in": lambda: comparisons.draw_projections(0, K),
        r"orthogonal must be True or False": lambda: comparisons.draw_projections(M, K, orthogonal=2),
        r"rank must lie in \[1, 7\]": lambda: comparisons.pooling(8, 7),
        r"length must lie in": lambda: comparisons.draw_sequence_projections(M, -1),
        r"name must be one of 'uniform',": lambda: comparisons.state_size("nobody", 1, **one),
        r"budget must be a whole number": lambda: comparisons.state_size("race", 1.5, **one),
        r"numbers must lie in": lambda: comparisons.matched_budget("race", -1, **one),
        r"sharpness must lie in": lambda: comparisons.expected_scores(q, k, P, 0.0),
        r"planes must lie in \[1, 64\]": lambda: comparisons.expected_scores(q, k, 0, 1.0),
        r"normalize must be True or False": lambda: comparisons.error_split(q, k, v, PLANES, 1.0, normalize=1),
    }.items():
        with pytest.raises(ValueError, match=f"^{wrong}"):
            call()


# -- what the random ones expect --


def test_performer_is_unbiased():
    """n independent features average to exp(q.k / sqrt(K)); their variance is known in closed form, so is the bound.

    With x, y the scaled vectors, E phi(x)^2 phi(y)^2 = exp(|x + y|^2 + 2 x.y): a Gaussian moment.
    """
    n, (q, k, _) = 20_000, qkv(T=2, S=3, B=1, H=1)
    phi_q, phi_k = (comparisons.positive_features(x, comparisons.draw_projections(n, K))[0, :, 0] for x in (q, k))
    x, y = q[0, :, 0] / K**0.25, k[0, :, 0] / K**0.25
    exact = np.exp(x @ y.T)
    second = np.exp(((x[:, None] + y[None]) ** 2).sum(-1) + 2 * x @ y.T)
    error = np.abs(phi_q @ phi_k.T - exact) / np.sqrt((second - exact**2) / n)
    assert error.max() < 5
    np.testing.assert_allclose(exact, np.exp(q[0, :, 0] @ k[0, :, 0].T / np.sqrt(K)), rtol=1e-12)


def test_orthogonal_projections_are_orthogonal_in_blocks_and_each_row_is_gaussian():
    w = comparisons.draw_projections(2 * K + 2, K, orthogonal=True)
    for block in (w[:K], w[K : 2 * K], w[2 * K :]):
        gram = block @ block.T
        np.testing.assert_allclose(gram - np.diag(np.diagonal(gram)), 0, atol=1e-12)
    n = 4000
    first = np.array([comparisons.draw_projections(1, K, seed, orthogonal=True)[0] for seed in range(n)])
    assert np.abs(first.mean(axis=0)).max() < 5 / np.sqrt(n)
    covariance = first.T @ first / n - np.eye(K)
    assert np.abs(covariance).max() < 5 * np.sqrt(2 / n)  # a variance of 2 on the diagonal, 1 beside it


def test_orthogonal_features_are_unbiased_too():
    """The mean over many draws of one block; its spread is measured, because orthogonal terms are not independent."""
    q, k, _ = qkv(T=2, S=3, B=1, H=1)
    seen = []
    for seed in range(3000):
        w = comparisons.draw_projections(K, K, seed, orthogonal=True)
        phi_q, phi_k = (comparisons.positive_features(x, w)[0, :, 0] for x in (q, k))
        seen.append(phi_q @ phi_k.T)
    mean, error = np.mean(seen, axis=0), np.std(seen, axis=0) / np.sqrt(len(seen))
    assert (np.abs(mean - np.exp(q[0, :, 0] @ k[0, :, 0].T / np.sqrt(K))) < 5 * error).all()


def test_yosos_expectation_is_the_mean_over_many_hashes():
    """A hash collides or not, so its variance is p (1 - p)."""
    n, bits, (q, k, v) = 4000, 3, qkv(T=3, S=4, B=1, H=1)
    planes = draw_planes(n, bits, K)
    phi_q, phi_k = (comparisons.hash_features(x, planes)[0, :, 0] for x in (q, k))
    p = reference.angular_scores(q, k, bits)[0, 0]
    assert (np.abs(phi_q @ phi_k.T / n - p) < 5 * np.sqrt(p * (1 - p) / n)).all()
    sums = comparisons.yoso_attention(q, k, v, planes, unit_length=False)
    expected = comparisons.yoso_expectation(q, k, v, bits, unit_length=False)
    spread = np.sqrt(np.abs(v[0, :, 0]).max() ** 2 * len(p[0]) * (p * (1 - p)).sum() / n)  # Cauchy and Schwarz
    assert np.abs(sums - expected).max() < 5 * spread < np.abs(expected).max()


def test_the_draws_are_reproducible_and_longer_ones_extend_shorter_ones():
    short, long = (comparisons.draw_projections(n, K, 3) for n in (M, M + 4))
    np.testing.assert_array_equal(long[:M], short)
    assert np.abs(comparisons.draw_projections(M, K, 4) - short).max() > 0.1
    rows = comparisons.draw_sequence_projections(400, 50)
    assert rows.std() * np.sqrt(400) == pytest.approx(1, abs=5 / np.sqrt(2 * rows.size))


def test_pooling_averages_runs_of_neighbours():
    pool = comparisons.pooling(3, 7)
    assert [np.flatnonzero(row).tolist() for row in pool] == [[0, 1, 2], [3, 4], [5, 6]]
    np.testing.assert_allclose(pool.sum(axis=1), 1, rtol=1e-14)


# -- what RACE expects of a pair --


@pytest.mark.parametrize("sharpness", [0.5, 2.0, 8.0])
def test_the_expected_scores_of_unit_vectors_are_the_integrals_of_theory(sharpness):
    angles = np.array([0.3, 1.0, np.pi / 2, 2.0, 2.8])
    q = np.array([2.0, 0.0]).reshape(1, 1, 1, 2)
    k = 3 * np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(1, 5, 1, 2)
    got = comparisons.expected_scores(q, k, 3, sharpness, normalize=True)
    assert got.bound < 1e-8
    np.testing.assert_allclose(got.scores.ravel(), theory.band(angles, 3, 1, sharpness).mean, atol=1e-8)


@pytest.mark.parametrize("sharpness", [0.5, 4.0])
def test_the_expected_scores_of_long_vectors_are_the_mean_over_many_tables(sharpness):
    n, (q, k, _) = 20_000, qkv(T=3, S=4, B=1, H=1)
    q, k = 4 * q, 0.3 * k
    phi_q, phi_k = (comparisons.race_features(x, draw_planes(n, P, K), sharpness)[0, :, 0] for x in (q, k))
    pairs = phi_q.reshape(3, 1, n, -1) * phi_k.reshape(1, 4, n, -1)
    seen = pairs.sum(axis=-1)
    got = comparisons.expected_scores(q, k, P, sharpness)
    assert got.bound < 1e-6
    assert (np.abs(seen.mean(-1) - got.scores[0, 0]) < 5 * seen.std(-1) / np.sqrt(n)).all()


def test_the_stated_bound_covers_a_series_cut_short(monkeypatch):
    q, k, _ = qkv(T=3, S=4, B=1, H=1)
    exact = comparisons.expected_scores(4 * q, 4 * k, P, 4.0)
    assert exact.bound < 1e-6
    for terms in (1, 5, 21):
        monkeypatch.setattr(comparisons, "MOST_TERMS", terms)
        cut = comparisons.expected_scores(4 * q, 4 * k, P, 4.0)
        missed = np.abs(cut.scores - exact.scores).max()
        assert 10 * exact.bound < missed < cut.bound


def test_hermite_coefficients_by_another_rule():
    """The defining integral by the midpoint rule on a fine grid, with NumPy's Hermite polynomials."""
    lengths, sharpness, terms = np.array([0.0, 0.01, 1.0, 15.0]), 2.0, 6
    g = (np.arange(400_000) + 0.5) * 12 / 400_000
    weight = 2 * np.exp(-g * g / 2) / np.sqrt(2 * np.pi) * 12 / 400_000
    for got, length in zip(comparisons.hermite_coefficients(lengths, sharpness, terms), lengths, strict=True):
        for c, n in zip(got, range(1, 2 * terms, 2), strict=True):
            h = np.polynomial.hermite_e.hermeval(g, [0] * n + [1]) / math.sqrt(math.factorial(n))
            soft = np.tanh(sharpness * np.tanh(length * g))
            assert c == pytest.approx(weight @ (soft * h), abs=1e-9)


def test_large_sharpness_and_length_give_the_angular_kernel():
    """The bias of a plane is at most of order 1 / (sharpness * length) here, and far below 1e-3."""
    q, k, _ = qkv()
    got = comparisons.expected_scores(1e4 * q, 1e4 * k, P, 8.0)
    np.testing.assert_allclose(got.scores, reference.angular_scores(q, k, P), atol=1e-3)


# -- the error of a head, in three parts --


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
def test_the_three_parts_add_up_to_the_whole_error(causal, normalize):
    q, k, v = qkv(S=T if causal else S)
    split = comparisons.error_split(q, k, v, PLANES, 1.5, causal=causal, normalize=normalize)
    whole = reference.attention(q, k, v, PLANES, 1.5, causal=causal, normalize=normalize)
    whole = whole - softmax_attention(q, k, v, causal=causal)
    np.testing.assert_array_equal(split.total, whole)
    parts = split.kernel_mismatch + split.soft_bias + split.sampling_noise
    np.testing.assert_allclose(parts, whole, atol=16 * np.finfo(float).eps * np.abs(v).max())  # six roundings
    angular = reference.angular_attention(q, k, v, P, causal=causal)
    np.testing.assert_array_equal(split.kernel_mismatch, angular - softmax_attention(q, k, v, causal=causal))
    assert min(np.abs(part).max() for part in split[:3]) > 0.01


def test_the_soft_bias_of_unit_vectors_forgets_their_lengths():
    q, k, v = qkv()
    far, near = (comparisons.error_split(s * q, s * k, v, PLANES, 1.5, normalize=True).soft_bias for s in (9.0, 0.1))
    np.testing.assert_allclose(far, near, atol=1e-12)
    raw = comparisons.error_split(9 * q, 9 * k, v, PLANES, 1.5).soft_bias
    assert np.linalg.norm(raw) < np.linalg.norm(far) / 1.5  # long vectors are hashed harder


def test_noise_falls_with_tables_and_bias_with_sharpness():
    q, k, v = qkv(T=16)
    norms = {}
    for tables, sharpness in itertools.product((16, 1024), (1.0, 8.0)):
        split = comparisons.error_split(q, k, v, draw_planes(tables, P, K), sharpness, causal=True)
        norms[tables, sharpness] = [np.linalg.norm(part) for part in split[:3]]
    for sharpness in (1.0, 8.0):
        few, many = norms[16, sharpness], norms[1024, sharpness]
        assert few[:2] == many[:2]
        assert 4 < few[2] / many[2] < 16  # 8 by the law of large numbers, within a factor of 2
    assert norms[16, 8.0][1] < norms[16, 1.0][1] / 4


# -- states and budgets --


def numbers_kept(name, budget):
    """Count what an operator holds after the keys of one head."""
    q, k, v = qkv(S=S, B=1, H=1)
    planes = draw_planes(budget, P, K)
    features = {
        "uniform": lambda: np.ones((1, S, 1, 1)),
        "linear": lambda: comparisons.elu_features(k),
        "performer": lambda: comparisons.positive_features(k, comparisons.draw_projections(budget, K)),
        "yoso": lambda: comparisons.hash_features(k, planes),
    }
    if name in features:
        sums = comparisons.accumulate(features[name](), features[name](), v)[2]
        return sums.content.size + (sums.mass.size if name != "yoso" else 0)
    if name == "race":
        state = reference.attention(q, k, v, planes, 1.0, return_state=True)[1]
        return state.mass.size + state.content.size
    if name.startswith("linformer"):
        pool = comparisons.pooling(budget, S)
        return sum(kept.size for kept in comparisons.linformer_state(k, v, pool, pool))
    return k.size + v.size


@pytest.mark.parametrize("name", comparisons.RIVALS)
def test_the_stated_size_is_what_the_operator_keeps(name):
    budget = 3 if comparisons.RIVALS[name].unit else 1
    got = comparisons.state_size(name, budget, head_width=K, value_width=V, planes=P, tokens=S)
    assert got == numbers_kept(name, budget)


@pytest.mark.parametrize("name", comparisons.RIVALS)
@pytest.mark.parametrize("numbers", [0, 17, 500, 4160])
def test_a_matched_budget_is_the_largest_that_fits(name, numbers):
    sizes = {"head_width": K, "value_width": V, "planes": P}
    budget = comparisons.matched_budget(name, numbers, **sizes)
    if not comparisons.RIVALS[name].unit:
        assert budget == 1
        return
    fits, too_many = (comparisons.state_size(name, n, **sizes) for n in (budget, budget + 1))
    assert fits <= numbers < too_many


def test_at_width_64_the_recorded_size_is_exactly_three_rivals_state():
    sizes = {"head_width": 64, "value_width": 64}
    assert comparisons.NUMBERS == comparisons.state_size("linear", 1, **sizes)
    budgets = {name: comparisons.matched_budget(name, comparisons.NUMBERS, **sizes) for name in comparisons.RIVALS}
    assert {n: b for n, b in budgets.items() if b > 1} == {
        "performer": 64, "yoso": 4, "race": 4, "linformer": 32, "linformer_random": 32,
    }  # fmt: skip
    assert comparisons.state_size("race", 4, **sizes) == comparisons.NUMBERS


# -- the comparison --


@pytest.mark.parametrize("name", comparisons.RIVALS)
def test_a_rivals_weights_are_those_of_its_output(name):
    rival = comparisons.RIVALS[name]
    q, k, v = qkv(T=T, S=T)
    out, weights = rival.run(q, k, v, comparisons.Setting(2, P, 2.0, causal=rival.causal, seed=1))
    want = np.einsum("bhts,bshv->bthv", weights, v)
    if name in ("yoso", "yoso_expected"):  # a direction only
        want = comparisons.unit(want)
    if name == "sigmoid":  # sums, not averages
        want *= np.moveaxis(comparisons.sigmoid_weights(q, k, causal=True).sum(axis=-1), 1, 2)[..., None]
    np.testing.assert_allclose(out, want, rtol=1e-10, atol=1e-12)
    if name != "linformer_random":
        mass = weights.sum(axis=-1)
        np.testing.assert_allclose(mass[mass > 0], 1, rtol=1e-12)
    if rival.causal:
        assert np.count_nonzero(weights[..., ~visible(T, T, causal=True)]) == 0


def test_the_table_compares_what_it_says():
    q, k, v = qkv(T=16)
    target, shares = softmax_attention(q, k, v, causal=True), softmax_weights(q, k, causal=True)
    rows = {row.name: row for row in comparisons.compare(q, k, v, 130, planes=P, sharpness=2.0, seeds=(0, 1))}
    assert rows.keys() == {name for name, rival in comparisons.RIVALS.items() if rival.causal}
    race = rows["race"]
    assert (race.budget, race.state) == (6, 6 * 4 * (V + 1))
    outs = [reference.attention(q, k, v, draw_planes(6, P, K, seed), 2.0, causal=True) for seed in (0, 1)]
    want = [np.linalg.norm(out - target, axis=(1, 3)) / np.linalg.norm(target, axis=(1, 3)) for out in outs]
    np.testing.assert_allclose(race.error, np.mean(want, axis=0), rtol=1e-10)
    seen = [reference.trace(q, k, v, draw_planes(6, P, K, seed), 2.0, causal=True).weights for seed in (0, 1)]
    far = [np.abs(weights - shares).sum(-1).mean(-1) / 2 for weights in seen]
    np.testing.assert_allclose(race.distance, np.mean(far, axis=0), rtol=1e-10)
    few = [row.name for row in comparisons.compare(q, k, v, 12, planes=P)]
    assert "race" not in few
    assert "performer" in few
    both = {row.name for row in comparisons.compare(q, k, v, 130, planes=P, causal=False)}
    assert {"linformer", "linformer_random"} <= both


def test_errors_and_distances_by_hand():
    target = np.array([3.0, 4.0]).reshape(1, 1, 1, 2)
    assert comparisons.output_error(np.zeros_like(target), target).tolist() == [[1.0]]
    assert comparisons.output_error(2 * target, target).tolist() == [[1.0]]
    assert comparisons.output_error(2 * target, target, gain=True).tolist() == [[0.0]]
    side = np.array([-4.0, 3.0]).reshape(1, 1, 1, 2)
    assert comparisons.output_error(side, target, gain=True) == pytest.approx(1.0)
    assert comparisons.output_error(np.zeros_like(target), target, gain=True).tolist() == [[1.0]]
    one, other = np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([[0.0, 1.0], [0.5, 0.5]])
    assert comparisons.distance(one[None, None], other[None, None]).tolist() == [[0.5]]


@pytest.mark.parametrize("normalize", [False, True])
def test_a_scan_is_race_at_each_pair_of_dials(normalize):
    q, k, v = qkv(T=12)
    error = comparisons.scan(q, k, v, 130, planes=(2, 6), sharpness=(1.0, 4.0), normalize=normalize, seeds=(1, 2))
    assert error.shape == (2, 2, B, H)
    assert np.isinf(error[1]).all()  # 64 buckets do not fit
    target = softmax_attention(q, k, v, causal=True)
    outs = [
        reference.attention(q, k, v, draw_planes(6, 2, K, seed), 4.0, causal=True, normalize=normalize)
        for seed in (1, 2)
    ]
    want = np.mean([comparisons.output_error(out, target) for out in outs], axis=0)
    np.testing.assert_allclose(error[0, 1], want, rtol=1e-10)


def test_the_recorded_tables_are_what_the_command_prints(capsys):
    comparisons.main()
    printed = capsys.readouterr().out
    page = (ROOT / "docs" / "papers" / "race-rivals.md").read_text(encoding="utf-8")
    stored = [line for line in page.splitlines() if " · " in line and line.startswith("| ")]
    lines = [line for line in printed.splitlines() if " · " in line]
    number = re.compile(r"\d+\.\d\d")
    assert [number.sub("", line) for line in lines] == [number.sub("", line) for line in stored]
    got, kept = ([float(n) for n in number.findall("\n".join(text))] for text in (lines, stored))
    assert len(got) == 9 * (8 + 10)
    assert got == pytest.approx(kept, abs=0.0101)  # two digits are printed; another BLAS may round the last one
