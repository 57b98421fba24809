"""The operators that the RACE paper compares with, short and in float64, and RACE's error on a head taken apart.

Sources, by equation where a page number was not established for this file: Katharopoulos et al. 2020
(arXiv:2006.16236), Choromanski et al. 2021 (arXiv:2009.14794), Wang et al. 2020 (arXiv:2006.04768), Zeng et al. 2021
(arXiv:2111.09714), Ramapuram et al. 2024 (arXiv:2409.04431v2); the comparison itself: arXiv:2510.04008v5, Sec. 4.

Four of them are one engine with four feature maps. Keys add phi(k) to a mass and phi(k) v^T to a content, queries read
both: elu+1, Performer and RACE divide what they read by the mass, YOSO keeps no mass and divides by the length of the
result. Linformer shortens the sequence, sigmoid attention stays pairwise.

Letters: M features, L tables (YOSO's m hashes), P planes (YOSO's tau bits). Randomness is data: `draw_projections`,
`draw_sequence_projections` and `params.draw_planes` make the arrays that the operators are handed.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from attnlab import data, draws
from attnlab.arrays import Array, Axes, Float, as_float, check, dial, flag, one_of
from attnlab.dense import softmax_attention, softmax_weights, unit, visible
from attnlab.race.params import draw_planes
from attnlab.race.reference import angular_attention, angular_scores, attention, features

__all__ = [
    "NUMBERS", "RIVALS", "SEEDS", "TOKENS", "Expected", "Rival", "Row", "Setting", "Split", "Sums",
    "accumulate", "compare", "distance", "draw_projections", "draw_sequence_projections", "elu_features",
    "error_split", "expected_scores", "feature_weights", "hash_features", "hermite_coefficients",
    "linear_attention", "linformer_attention", "linformer_state", "linformer_weights", "matched_budget", "mix",
    "output_error", "performer_attention", "pooling", "positive_features", "race_features", "row_shares",
    "rows_table", "scan", "sigmoid_attention", "sigmoid_weights", "state_size", "yoso_attention",
    "yoso_expectation",
]  # fmt: skip

Queries = Float[Array, "B T H K"]
Keys = Float[Array, "B S H K"]
Values = Float[Array, "B S H V"]
Planes = Float[Array, "L P K"]
Pairs = Float[Array, "B H T S"]

PROJECTIONS_STREAM, LENGTHS_STREAM, SEQUENCE_STREAM = 31, 32, 33
MOST_TERMS = 401  # orders of Mehler's expansion that are ever summed
PRECISION = 1e-12  # at which the expansion stops, where it gets there
NUMBERS = 4160  # a head: what elu+1, RACE with 4 tables of 4 planes, and 64 features of Performer keep at width 64
TOKENS, SEEDS = 256, (0, 1, 2)  # of the recorded comparison


# -- the engine: write keys, read queries --


class Sums(NamedTuple):
    """What the keys leave behind: M (V + 1) numbers a head, M V where nobody divides by the mass."""

    mass: Float[Array, "B H M"]
    content: Float[Array, "B H M V"]


def accumulate(
    phi_q: Float[Array, "B T H M"], phi_k: Float[Array, "B S H M"], v: Values, *, causal: bool = False
) -> tuple[Float[Array, "B T H V"], Float[Array, "B T H"], Sums]:
    """(sum_j phi(q).phi(k_j) v_j, sum_j phi(q).phi(k_j), what was kept), with no pair of tokens ever compared.

    `causal` writes token t, then reads it (Katharopoulos et al. 2020, Sec. 3.3).
    """
    (B, T, H, M), S, V = phi_q.shape, phi_k.shape[1], v.shape[-1]
    sums = Sums(np.zeros((B, H, M)), np.zeros((B, H, M, V)))
    numerator, denominator = np.zeros((B, T, H, V)), np.zeros((B, T, H))
    steps = [(slice(t, t + 1),) * 2 for t in range(T)] if causal else [(slice(T), slice(S))]
    for asked, written in steps:
        mass = sums.mass + phi_k[:, written].sum(axis=1)
        content = sums.content + np.einsum("bshm,bshv->bhmv", phi_k[:, written], v[:, written])
        sums = Sums(mass, content)
        numerator[:, asked] = np.einsum("bthm,bhmv->bthv", phi_q[:, asked], content)
        denominator[:, asked] = np.einsum("bthm,bhm->bth", phi_q[:, asked], mass)
    return numerator, denominator, sums


def feature_weights(phi_q: Float[Array, "B T H M"], phi_k: Float[Array, "B S H M"], *, causal: bool = False) -> Pairs:
    """The pairwise weights that the sums stand for: phi(q).phi(k) where visible, rows divided by their sums."""
    scores = phi_q.transpose(0, 2, 1, 3) @ phi_k.transpose(0, 2, 3, 1)
    return row_shares(scores * visible(scores.shape[-2], scores.shape[-1], causal=causal))


def row_shares(scores: Pairs) -> Pairs:
    """Each row over its sum; a row without mass stays 0."""
    return _over(scores, scores.sum(axis=-1))


def mix(weights: Pairs, v: Values) -> Float[Array, "B T H V"]:
    """The values added up with these pairwise weights."""
    return (weights @ v.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)


def _averaged(phi_q: Array, phi_k: Array, v: Values, causal: bool) -> Float[Array, "B T H V"]:
    numerator, denominator, _ = accumulate(phi_q, phi_k, v, causal=causal)
    return _over(numerator, denominator)


# -- linear attention --


def elu_features(x: Queries) -> Queries:
    """phi(x) = elu(x) + 1, entry by entry: x + 1 above 0, e^x below (Katharopoulos et al. 2020, Eq. 7)."""
    return np.where(x > 0, x + 1.0, np.exp(np.minimum(x, 0.0)))


def linear_attention(q: Queries, k: Keys, v: Values, *, causal: bool = False) -> Float[Array, "B T H V"]:
    """Averages with weights phi(q).phi(k), phi = elu + 1 (Katharopoulos et al. 2020, Eq. 7 and Sec. 3.3)."""
    q, k, v, _ = _checked(q, k, v, causal)
    return _averaged(elu_features(q), elu_features(k), v, causal)


# -- Performer --


def draw_projections(count: int, head_width: int, seed: int = 0, *, orthogonal: bool = False) -> Float[Array, "M K"]:
    """Standard normal rows w; with `orthogonal`, rows of one block of K are at right angles to each other.

    Orthogonal rows keep their distribution one by one, so the estimate stays unbiased: directions come from the QR
    decomposition of a Gaussian block, lengths from other Gaussian vectors (the R and O of FAVOR+).
    """
    dial("count", count, 1, 2**20, integer=True)
    dial("head_width", head_width, 1, 2**16, integer=True)
    rows = draws.normal(seed, PROJECTIONS_STREAM, count, head_width)
    if not flag("orthogonal", orthogonal):
        return rows
    blocks = -(-count // head_width)
    gaussian = draws.normal(seed, PROJECTIONS_STREAM, blocks * head_width, head_width)
    Q, R = np.linalg.qr(gaussian.reshape(blocks, head_width, head_width))
    Q *= np.sign(np.diagonal(R, axis1=1, axis2=2))[:, None, :]  # makes the direction uniform
    lengths = np.linalg.norm(draws.normal(seed, LENGTHS_STREAM, count, head_width), axis=1, keepdims=True)
    return lengths * Q.swapaxes(1, 2).reshape(-1, head_width)[:count]


def positive_features(x: Queries, projections: Float[Array, "M K"]) -> Float[Array, "B T H M"]:
    """exp(w.x' - |x'|^2 / 2) / sqrt(M) with x' = x / K^(1/4), so that E phi(q).phi(k) = exp(q.k / sqrt(K))
    (Choromanski et al. 2021, Lemma 1, Eq. 7). At most exp(|w|^2 / 2), whatever x is.
    """
    return np.exp(_log_positive(x, projections))


def performer_attention(
    q: Queries, k: Keys, v: Values, projections: Float[Array, "M K"], *, causal: bool = False
) -> Float[Array, "B T H V"]:
    """Softmax attention estimated by M positive random features (FAVOR+; Choromanski et al. 2021, Lemma 1).

    No small constant is added to the features, unlike in the released code. A query whose terms all underflow gets 0:
    keys beyond a length of some 40 K^(1/4) bring that about, queries of any length are safe.
    """
    q, k, v, sizes = _checked(q, k, v, causal)
    check("projections", projections, "M K", sizes)
    phi_q, phi_k = _performer(q, k, as_float(projections))
    return _averaged(phi_q, phi_k, v, causal)


def _performer(q: Queries, k: Keys, projections: Array) -> tuple[Array, Array]:
    """The features of keys, and of queries divided by each query's largest, which cancels in the average."""
    log_phi_q = _log_positive(q, projections)
    return np.exp(log_phi_q - log_phi_q.max(axis=-1, keepdims=True)), positive_features(k, projections)


def _log_positive(x: Queries, projections: Array) -> Float[Array, "B T H M"]:
    x = x / x.shape[-1] ** 0.25
    return x @ projections.T - (x * x).sum(axis=-1, keepdims=True) / 2 - np.log(len(projections)) / 2


# -- Linformer --


def draw_sequence_projections(rank: int, length: int, seed: int = 0) -> Float[Array, "M S"]:
    """Gaussian entries of variance 1 / rank, as in the proof of Wang et al. 2020 (Theorem 2); the paper trains them."""
    dial("rank", rank, 1, 2**20, integer=True)
    dial("length", length, 0, 2**30, integer=True)
    return draws.normal(seed, SEQUENCE_STREAM, rank, length) / np.sqrt(rank)


def pooling(rank: int, length: int) -> Float[Array, "M S"]:
    """The mean of each of `rank` runs of neighbours, of lengths that differ by one at most: the projection without
    training that Wang et al. 2020 name (Sec. 4, general projections).
    """
    dial("length", length, 1, 2**30, integer=True)
    dial("rank", rank, 1, length, integer=True)
    member = np.arange(rank)[:, None] == np.arange(length) * rank // length
    return member / member.sum(axis=1, keepdims=True)


def linformer_state(
    k: Keys, v: Values, key_projection: Float[Array, "M S"], value_projection: Float[Array, "M S"]
) -> tuple[Float[Array, "B M H K"], Float[Array, "B M H V"]]:
    """(E k, F v): all that Linformer keeps of the sequence, M (K + V) numbers a head."""
    return np.einsum("ms,bshk->bmhk", key_projection, k), np.einsum("ms,bshv->bmhv", value_projection, v)


def linformer_attention(
    q: Queries, k: Keys, v: Values, key_projection: Float[Array, "M S"], value_projection: Float[Array, "M S"]
) -> Float[Array, "B T H V"]:
    """softmax(q (E k)^T / sqrt(K)) F v, E and F projections along the sequence (Wang et al. 2020, Eq. 7).

    Not causal: each row of E and F mixes early and late tokens.
    """
    q, k, v, sizes = _checked(q, k, v, False)
    check("key_projection", key_projection, "M S", sizes)
    check("value_projection", value_projection, "M S", sizes)
    return softmax_attention(q, *linformer_state(k, v, as_float(key_projection), as_float(value_projection)))


def linformer_weights(
    q: Queries, k: Keys, key_projection: Float[Array, "M S"], value_projection: Float[Array, "M S"]
) -> Pairs:
    """softmax(q (E k)^T / sqrt(K)) F: what each value is multiplied by. Signed unless F is not negative."""
    return softmax_weights(q, np.einsum("ms,bshk->bmhk", key_projection, k)) @ value_projection


# -- YOSO --


def hash_features(x: Queries, planes: Planes) -> Float[Array, "B T H M"]:
    """One 1 a table, in the bucket whose bits are the sides of x, the rest 0: M = L 2^P."""
    return _flat(features(x, planes, hard=True))


def yoso_attention(
    q: Queries, k: Keys, v: Values, planes: Planes, *, causal: bool = False, unit_length: bool = True
) -> Float[Array, "B T H V"]:
    """The mean over L hashes of P bits of the sum of values in the query's bucket, then divided by its own length.

    A key is in the bucket with probability (1 - angle/pi)^P. There is no mass: what is kept is L 2^P V numbers a head,
    and the output has a direction only (`unit_length`, as in the released code; without it, the sums).
    Source: Zeng et al. 2021 (section and page not established) and the authors' code, which normalises so.
    """
    q, k, v, sizes = _checked(q, k, v, causal)
    check("planes", planes, "L P K", sizes)
    flag("unit_length", unit_length)
    planes = as_float(planes)
    total, _, _ = accumulate(hash_features(q, planes), hash_features(k, planes), v, causal=causal)
    return unit(total) if unit_length else total / len(planes)


def yoso_expectation(
    q: Queries, k: Keys, v: Values, bits: int, *, causal: bool = False, unit_length: bool = True
) -> Float[Array, "B T H V"]:
    """YOSO with infinitely many hashes: weights (1 - angle/pi)^bits, pairwise, summed and not averaged."""
    q, k, v, _ = _checked(q, k, v, causal)
    dial("bits", bits, 1, 64, integer=True)
    flag("unit_length", unit_length)
    scores = angular_scores(q, k, bits) * visible(q.shape[1], k.shape[1], causal=causal)
    total = mix(scores, v)
    return unit(total) if unit_length else total


# -- sigmoid attention --


def sigmoid_weights(q: Queries, k: Keys, *, causal: bool = False, bias: float | None = None) -> Pairs:
    """sigmoid(q.k / sqrt(K) + bias) for every visible pair, rows not divided by anything; `bias` is -log S unless
    given.
    """
    bias = -np.log(max(k.shape[1], 1)) if bias is None else bias
    logits = np.einsum("bthk,bshk->bhts", q, k) / np.sqrt(max(q.shape[-1], 1)) + bias
    return np.exp(-np.logaddexp(0.0, -logits)) * visible(q.shape[1], k.shape[1], causal=causal)


def sigmoid_attention(
    q: Queries, k: Keys, v: Values, *, causal: bool = False, bias: float | None = None
) -> Float[Array, "B T H V"]:
    """sum_j sigmoid(q.k_j / sqrt(K) + bias) v_j, with bias = -log S for S keys (Ramapuram et al. 2024, Sec. 2).

    Pairwise: there is no state but all keys and values. Where `causal`, S is still the whole length.
    """
    q, k, v, _ = _checked(q, k, v, causal)
    if bias is not None:
        dial("bias", bias, -1e6, 1e6)
    return mix(sigmoid_weights(q, k, causal=causal, bias=bias), v)


# -- what RACE expects, and its error in three parts --


class Expected(NamedTuple):
    """E S_hat of every pair over the draw of planes, and a bound on what the expansion leaves out."""

    scores: Pairs
    bound: float


class Split(NamedTuple):
    """RACE minus softmax as three differences that add up to it, and how exactly the middle is known."""

    kernel_mismatch: Float[Array, "B T H V"]  # angular attention of power P minus softmax attention
    soft_bias: Float[Array, "B T H V"]  # infinitely many tables at this sharpness minus angular attention
    sampling_noise: Float[Array, "B T H V"]  # these tables minus infinitely many
    total: Float[Array, "B T H V"]
    bound: float  # on the error of the expected scores


def race_features(x: Queries, planes: Planes, sharpness: float) -> Float[Array, "B T H M"]:
    """RACE's soft shares, all tables in one axis: M = L 2^P."""
    return _flat(features(x, planes, sharpness))


def hermite_coefficients(length: Float[Array, " N"], sharpness: float, terms: int) -> Float[Array, "N terms"]:
    """c_n = E a(g) h_n(g) for n = 1, 3, 5, ...: a(g) = tanh(beta tanh(length g)), g standard normal, h_n the normalised
    Hermite polynomials; the even ones vanish.

    By parts, sqrt(n) c_n is the integral of a' h_{n-1} phi, where a' lives on |length g| < 20 and phi on |g| < 12. The
    midpoint rule on the smaller of the two converges geometrically: its step is 1/36 of 2 pi times the distance of
    the nearest pole of a.
    """
    length = np.asarray(length, dtype=np.float64)
    points = max(200, int(np.ceil(20.0 * 36.0 / (2 * np.pi * np.arctan(np.pi / (2 * sharpness))))))
    reach = np.minimum(20.0, 12.0 * length)[:, None]
    x = reach * (np.arange(points) + 0.5) / points  # x = length g
    g = np.divide(x, length[:, None], out=np.zeros_like(x), where=length[:, None] > 0)
    soft = np.tanh(x)
    slope = sharpness * (1 - np.tanh(sharpness * soft) ** 2) * (1 - soft**2) * 2 * reach / points  # both signs of g
    before, now = np.zeros_like(g), np.exp(-g * g / 2) / np.sqrt(2 * np.pi)  # h_n phi
    coefficients = np.empty((len(length), terms))
    for n in range(1, 2 * terms, 2):
        coefficients[:, n // 2] = (slope * now).sum(axis=1) / np.sqrt(n)
        for order in (n - 1, n):
            before, now = now, (g * now - np.sqrt(order) * before) / np.sqrt(order + 1)
    return coefficients


def expected_scores(q: Queries, k: Keys, planes: int, sharpness: float, *, normalize: bool = False) -> Expected:
    """E S_hat = ((1 + E a(q) a(k)) / 2)^P over standard normal planes, for vectors of any length.

    Mehler's expansion: E a(q) a(k) = sum_n cos^n c_n(|q|) c_n(|k|). What is left out after N terms is at most
    |cos|^(N+1) sqrt((A - sum c_n(|q|)^2)(A - sum c_n(|k|)^2)) with A = tanh(beta)^2 (Cauchy and Schwarz); that bound
    comes back, times P/2 for the power. At |cos| = 1 the series is slow and the bound says so.
    """
    sizes: Axes = {}
    q, k = (as_float(check(name, x, axes, sizes)) for name, x, axes in (("q", q, "B T H K"), ("k", k, "B S H K")))
    planes = dial("planes", planes, 1, 64, integer=True)
    sharpness = dial("sharpness", sharpness, 1e-6, 64.0)  # the midpoint rule's step shrinks as 1 / sharpness
    cosine = np.einsum("bthk,bshk->bhts", unit(q), unit(k))
    q, k = (unit(q), unit(k)) if flag("normalize", normalize) else (q, k)
    largest = min(float(np.abs(cosine).max(initial=1e-3)), 1.0)
    orders = MOST_TERMS if largest >= 1 else min(MOST_TERMS, 3 + np.log(PRECISION) / np.log(largest))
    terms = int(orders) // 2 + 1
    of_q, of_k = (
        hermite_coefficients(np.linalg.norm(x, axis=-1).ravel(), sharpness, terms).reshape(*x.shape[:3], terms)
        for x in (q, k)
    )
    total = np.zeros_like(cosine)
    for n in reversed(range(terms)):  # Horner's rule in cos^2
        total = total * cosine**2 + np.einsum("bth,bsh->bhts", of_q[..., n], of_k[..., n])
    left_q, left_k = (
        np.maximum(np.tanh(sharpness) ** 2 - (c * c).sum(axis=-1), 0).max(initial=0) for c in (of_q, of_k)
    )
    bound = planes / 2 * largest ** (2 * terms + 1) * np.sqrt(left_q * left_k)
    return Expected(np.clip((1 + total * cosine) / 2, 0, 1) ** planes, float(bound))


def error_split(
    q: Queries, k: Keys, v: Values, planes: Planes, sharpness: float, *, causal: bool = False, normalize: bool = False
) -> Split:
    """RACE minus softmax attention, taken apart: another kernel, soft buckets, few tables.

    q and k go into tanh(w.x) as they are, as in Algorithm 1 (p. 5); `normalize` makes them unit vectors first, as the
    theory assumes (p. 17). The angular kernel is the same for both. The limit of many tables is the average with
    weights E S_hat: numerator and denominator each tend to their mean, so the noise includes the ratio's own bias.
    """
    q, k, v, sizes = _checked(q, k, v, causal)
    check("planes", planes, "L P K", sizes)
    P = planes.shape[-2]
    scores, bound = expected_scores(q, k, P, sharpness, normalize=normalize)
    shares = row_shares(scores * visible(q.shape[1], k.shape[1], causal=causal))
    softmax = softmax_attention(q, k, v, causal=causal)
    angular = angular_attention(q, k, v, P, causal=causal)
    many_tables = mix(shares, v)
    race = attention(q, k, v, planes, sharpness, causal=causal, normalize=normalize)
    return Split(angular - softmax, many_tables - angular, race - many_tables, race - softmax, bound)


# -- rivals at matched state size --


class Setting(NamedTuple):
    """What a rival is run with; `planes` are RACE's P and YOSO's tau."""

    budget: int
    planes: int = 4
    sharpness: float = 4.0
    causal: bool = True
    seed: int = 0


Run = Callable[[Queries, Keys, Values, Setting], tuple[Array, Array]]


class Rival(NamedTuple):
    """One operator as data: what a unit of its budget is, how many numbers a head one unit keeps (of K, V, P and S),
    whether it has a causal form, and how to run it.
    """

    title: str
    unit: str  # "" where there is nothing to choose
    numbers: Callable[[int, int, int, int], int]
    causal: bool
    run: Run


# How each is run: (q, k, v, setting) -> (output, pairwise weights with rows of sum 1).


def _by_features(phi: Callable[[Queries, Keys, Setting], Iterable[Array]]) -> Run:
    def run(q, k, v, s):
        phi_q, phi_k = phi(q, k, s)
        return _averaged(phi_q, phi_k, v, s.causal), feature_weights(phi_q, phi_k, causal=s.causal)

    return run


def _uniform(q, k, s):
    return [np.ones_like(x[..., :1]) for x in (q, k)]


def _elu(q, k, s):
    return [elu_features(x) for x in (q, k)]


def _favor(q, k, s):
    return _performer(q, k, draw_projections(s.budget, q.shape[-1], s.seed, orthogonal=True))


def _race(q, k, s):
    planes = draw_planes(s.budget, s.planes, q.shape[-1], s.seed)
    return [race_features(x, planes, s.sharpness) for x in (q, k)]


def _yoso(q, k, v, s):
    planes = draw_planes(s.budget, s.planes, q.shape[-1], s.seed)
    phi_q, phi_k = (hash_features(x, planes) for x in (q, k))
    return yoso_attention(q, k, v, planes, causal=s.causal), feature_weights(phi_q, phi_k, causal=s.causal)


def _angular(q, k, v, s):
    scores = angular_scores(q, k, s.planes) * visible(q.shape[1], k.shape[1], causal=s.causal)
    return angular_attention(q, k, v, s.planes, causal=s.causal), row_shares(scores)


def _yoso_expected(q, k, v, s):
    return yoso_expectation(q, k, v, s.planes, causal=s.causal), _angular(q, k, v, s)[1]


def _sigmoid(q, k, v, s):
    return sigmoid_attention(q, k, v, causal=s.causal), row_shares(sigmoid_weights(q, k, causal=s.causal))


def _linformer(q, k, v, s):
    E = draw_sequence_projections(s.budget, k.shape[1], s.seed)
    return linformer_attention(q, k, v, E, E), linformer_weights(q, k, E, E)


def _linformer_pooled(q, k, v, s):
    E = pooling(s.budget, k.shape[1])
    return linformer_attention(q, k, v, E, E), linformer_weights(q, k, E, E)


def _cache(K: int, V: int, P: int, S: int) -> int:
    return S * (K + V)


RIVALS = {
    "uniform": Rival("plain mean of the values", "", lambda K, V, P, S: V + 1, True, _by_features(_uniform)),
    "linear": Rival("linear attention, elu+1", "", lambda K, V, P, S: K * (V + 1), True, _by_features(_elu)),
    "performer": Rival("Performer", "features", lambda K, V, P, S: V + 1, True, _by_features(_favor)),
    "yoso": Rival("YOSO", "hashes", lambda K, V, P, S: 2**P * V, True, _yoso),
    "race": Rival("RACE", "tables", lambda K, V, P, S: 2**P * (V + 1), True, _by_features(_race)),
    "linformer": Rival("Linformer, mean pooling", "rows", lambda K, V, P, S: K + V, False, _linformer_pooled),
    "linformer_random": Rival("Linformer, Gaussian", "rows", lambda K, V, P, S: K + V, False, _linformer),
    "angular": Rival("angular attention", "", _cache, True, _angular),
    "yoso_expected": Rival("YOSO in expectation", "", _cache, True, _yoso_expected),
    "sigmoid": Rival("sigmoid attention", "", _cache, True, _sigmoid),
}


def state_size(name: str, budget: int, *, head_width: int, value_width: int, planes: int = 4, tokens: int = 0) -> int:
    """How many numbers a head the rival of this name keeps when all keys have been read.

    `tokens` counts only for pairwise operators, which keep every key and value.
    """
    rival = RIVALS[one_of("name", name, tuple(RIVALS))]
    return dial("budget", budget, 0, 2**40, integer=True) * rival.numbers(head_width, value_width, planes, tokens)


def matched_budget(name: str, numbers: int, *, head_width: int, value_width: int, planes: int = 4) -> int:
    """The largest budget that keeps at most `numbers` numbers a head: 0 where not even one unit fits, and 1 for an
    operator that has nothing to choose.
    """
    one = state_size(name, 1, head_width=head_width, value_width=value_width, planes=planes)
    numbers = dial("numbers", numbers, 0, 2**50, integer=True)
    return numbers // one if RIVALS[name].unit else 1


def output_error(out: Float[Array, "B T H V"], target: Float[Array, "B T H V"], *, gain: bool = False) -> Array:
    """|out - target| / |target| of each head, [B, H], in the Frobenius norm.

    With `gain`, after `out` was multiplied by the one number a head that makes this smallest: the projection that
    follows attention could absorb it, and YOSO's outputs have no meaningful length of their own.
    """
    if gain:
        fit, power = ((out * x).sum(axis=(1, 3), keepdims=True) for x in (target, out))
        out = out * np.divide(fit, power, out=np.zeros_like(fit), where=power > 0)
    return np.linalg.norm(out - target, axis=(1, 3)) / np.linalg.norm(target, axis=(1, 3))


def distance(weights: Pairs, target: Pairs) -> Float[Array, "B H"]:
    """Half the sum of absolute differences of two rows of weights, averaged over queries: the total variation distance,
    0 for the same and 1 for nothing in common (more where weights have signs).
    """
    return np.abs(weights - target).sum(axis=-1).mean(axis=-1) / 2


class Row(NamedTuple):
    """One rival on the heads of one layer; arrays are [B, H], means over the seeds."""

    name: str
    budget: int
    state: int  # numbers a head
    error: Array  # of the output, relative
    error_after_gain: Array
    distance: Array  # of the attention weights


def compare(
    q: Queries, k: Keys, v: Values, numbers: int, *, planes: int = 4, sharpness: float = 4.0, causal: bool = True,
    seeds: tuple[int, ...] = (0,),
) -> list[Row]:  # fmt: skip
    """Every rival that has this form and fits, or has no budget, against softmax attention at `numbers` a head."""
    q, k, v, _ = _checked(q, k, v, causal)
    K, V, S = q.shape[-1], v.shape[-1], k.shape[1]
    target, shares = softmax_attention(q, k, v, causal=causal), softmax_weights(q, k, causal=causal)
    rows = []
    for name, rival in RIVALS.items():
        budget = matched_budget(name, numbers, head_width=K, value_width=V, planes=planes)
        if budget == 0 or (causal and not rival.causal):
            continue
        runs = [rival.run(q, k, v, Setting(budget, planes, sharpness, causal, seed)) for seed in seeds]
        means = [
            np.mean([of(*run) for run in runs], axis=0)
            for of in (
                lambda out, weights: output_error(out, target),
                lambda out, weights: output_error(out, target, gain=True),
                lambda out, weights: distance(weights, shares),
            )
        ]
        state = state_size(name, budget, head_width=K, value_width=V, planes=planes, tokens=S)
        rows.append(Row(name, budget, state, *means))
    return rows


def rows_table(layers: dict[int, list[Row]]) -> str:
    """The rows of `compare` for some layers as a Markdown table: each cell lists the layers' means over heads."""
    head = ("operator", "budget", "numbers a head", "output error", "after one gain", "distance of weights")
    lines = [head, ("---",) * len(head)]
    for rows in zip(*layers.values(), strict=True):
        name, budget, state = rows[0][:3]
        unit = RIVALS[name].unit
        means = (" · ".join(f"{np.mean(getattr(row, field)):.2f}" for row in rows) for field in Row._fields[3:])
        lines.append((RIVALS[name].title, f"{budget} {unit}" if unit else "-", f"{state:,}", *means))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def scan(
    q: Queries, k: Keys, v: Values, numbers: int, *, planes: tuple[int, ...] = (1, 2, 3, 4, 5, 6),
    sharpness: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0), causal: bool = True, normalize: bool = False,
    seeds: tuple[int, ...] = (0,),
) -> Float[Array, "planes sharpness B H"]:  # fmt: skip
    """RACE's output error at every pair of dials, with as many tables as `numbers` a head allow; the mean over seeds.

    inf where not one table fits. Choose on some seeds and judge on others.
    """
    q, k, v, _ = _checked(q, k, v, causal)
    target = softmax_attention(q, k, v, causal=causal)
    q, k = (unit(q), unit(k)) if flag("normalize", normalize) else (q, k)
    K, V = q.shape[-1], v.shape[-1]
    error = np.full((len(planes), len(sharpness), q.shape[0], q.shape[2]), np.inf)
    for i, P in enumerate(planes):
        tables = matched_budget("race", numbers, head_width=K, value_width=V, planes=P)
        for j, beta in enumerate(sharpness if tables else ()):
            phis = [[race_features(x, draw_planes(tables, P, K, seed), beta) for x in (q, k)] for seed in seeds]
            outs = [mix(feature_weights(*phi, causal=causal), v) for phi in phis]
            error[i, j] = np.mean([output_error(out, target) for out in outs], axis=0)
    return error


def main() -> None:
    """Print the tables of docs/papers/race-rivals.md: the shipped heads, their first 256 tokens, three draws."""
    heads = data.real_heads()
    for causal in (True, False):
        rows = {}
        for number in heads.layers:
            q, k, v = (x[:, :TOKENS].astype(np.float64) for x in heads.layer(number))
            rows[number] = compare(q, k, v, NUMBERS, causal=causal, seeds=SEEDS)
        print(rows_table(rows), end="\n\n" if causal else "\n")


# -- small pieces --


def _checked(q, k, v, causal) -> tuple[Array, Array, Array, Axes]:
    sizes: Axes = {}
    check("q", q, "B T H K", sizes)
    check("k", k, "B S H K", sizes)
    check("v", v, "B S H V", sizes)
    if flag("causal", causal) and sizes["T"][0] != sizes["S"][0]:
        raise ValueError(
            f"k must have as many positions as q where causal, so S = {sizes['T'][0]}, got S = {sizes['S'][0]}"
        )
    return as_float(q), as_float(k), as_float(v), sizes


def _flat(phi: Float[Array, "B T H L R"]) -> Float[Array, "B T H M"]:
    return phi.reshape(*phi.shape[:3], phi.shape[3] * phi.shape[4])


def _over(numerator: Float[Array, "... V"], denominator: Float[Array, "..."]) -> Float[Array, "... V"]:
    """numerator / denominator, and 0 where nothing was met."""
    denominator = denominator[..., None]
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


if __name__ == "__main__":
    main()
