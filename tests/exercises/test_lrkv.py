"""Wrong answers that readers give to the exercises on LRKV, written anew here, and what the check says of them; for
those with many right answers, several of these, and answers that only look like one.
"""

import math

import numpy as np
import pytest

from attnlab.exercises import exercise, lrkv

SEEDS = range(6)


@pytest.fixture(autouse=True)
def own_file(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTNLAB_EXERCISES", str(tmp_path / "exercises.json"))


# -- count_cache --


def forgets_values(heads, head_width, groups, rank, latent_width, rope_width):
    return [n * head_width for n in (heads, groups, 1)] + [latent_width + rope_width, head_width + heads * rank]


def adds_the_weights(heads, head_width, groups, rank, latent_width, rope_width):
    lrkv_of_a_head = rank + head_width * rank  # latents and B_h
    kinds = (heads * head_width, groups * head_width, head_width, head_width + heads * lrkv_of_a_head)
    mha, gqa, mqa, low_rank = (kind + kind for kind in kinds)
    return mha, gqa, mqa, latent_width + rope_width, low_rank


def one_latent_for_all(heads, head_width, groups, rank, latent_width, rope_width):
    a, b, c = (2 * n * head_width for n in (heads, groups, 1))
    return a, b, c, latent_width + rope_width, c + 2 * rank


def a_shared_key_for_each(heads, head_width, groups, rank, latent_width, rope_width):
    low_rank = sum(2 * (head_width + rank) for _ in range(heads))
    return 2 * heads * head_width, 2 * groups * head_width, 2 * head_width, latent_width + rope_width, low_rank


def mla_keeps_keys_and_values(heads, head_width, groups, rank, latent_width, rope_width):
    pair = 2 * head_width
    return pair * heads, pair * groups, pair, latent_width + latent_width + rope_width, pair + 2 * rank * heads


def divides_by_the_groups(heads, head_width, groups, rank, latent_width, rope_width):
    pair = 2 * head_width
    return pair * heads, pair * heads // groups, pair, latent_width + rope_width, pair + 2 * rank * heads


# -- factored_logits: head by head --


def by_head(q, k_shared, k_latent, k_factor, *, shared_scale=None, latent_scale=None, factor_of=None, latents_of=None):
    (T, H, K), R = q.shape, k_factor.shape[2]
    projected, logits = np.empty((T, H, R)), np.empty((H, T, len(k_shared)))
    for h in range(H):
        projected[:, h] = q[:, h] @ (k_factor[h] if factor_of is None else factor_of(k_factor[h]))
        latents = k_latent[:, h] if latents_of is None else latents_of(k_latent)
        shared = q[:, h] @ k_shared.T * (K**-0.5 if shared_scale is None else shared_scale(K, R))
        logits[h] = shared + projected[:, h] @ latents.T * (K**-0.5 if latent_scale is None else latent_scale(K, R))
    return projected, logits


def without_scale(**arrays):
    return by_head(**arrays, shared_scale=lambda K, R: 1.0, latent_scale=lambda K, R: 1.0)


def over_root_rank(**arrays):
    return by_head(**arrays, shared_scale=lambda K, R: R**-0.5, latent_scale=lambda K, R: R**-0.5)


def two_scales(**arrays):
    return by_head(**arrays, latent_scale=lambda K, R: R**-0.5)


def read_as_rank_by_width(**arrays):
    return by_head(**arrays, factor_of=lambda B: B.ravel().reshape(B.shape[::-1]).T)


def einsum_without_the_head(**arrays):
    return by_head(**arrays, latents_of=lambda k_latent: k_latent.sum(1))


# -- merge_parts: head by head --


def merged(lse, shared, latent, factor, weights, latent_weights=None):
    out = []
    for h in range(lse.shape[1]):
        w = weights(lse, h)
        y = sum(
            a * z for a, z in zip(w if latent_weights is None else latent_weights(lse, h), latent[:, h], strict=True)
        )
        out.append(sum(a * s for a, s in zip(w, shared[:, h], strict=True)) + factor[h] @ y)
    return np.array(out)


def softmax_of_parts(lse, h):
    return [1 / sum(math.exp(min(b - a, 700)) for b in lse[:, h]) if a > -np.inf else 0.0 for a in lse[:, h]]


def mean_of_parts(lse, h):
    return [1 / len(lse)] * len(lse)


def takes_the_mean(lse, shared, latent, factor):
    return merged(lse, shared, latent, factor, mean_of_parts)


def normalises_heads(lse, shared, latent, factor):
    return merged(lse, shared, latent, factor, lambda lse, h: [softmax_of_parts(row[:, None], 0)[h] for row in lse])


def forgets_to_divide(lse, shared, latent, factor):
    return merged(lse, shared, latent, factor, lambda lse, h: np.exp(lse[:, h]))


def takes_the_mean_of_latents(lse, shared, latent, factor):
    return merged(lse, shared, latent, factor, softmax_of_parts, mean_of_parts)


# -- rotate: complex numbers --


def turned(x, positions, theta, *, exponent=2.0):
    K = x.shape[-1]
    z = x[..., : K // 2] + 1j * x[..., K // 2 :]
    z = z * np.exp(1j * np.multiply.outer(positions, np.power(theta, -exponent * np.arange(K / 2) / K)))[:, None]
    return np.concatenate([z.real, z.imag], axis=2)


def pairs_of_neighbours(x, positions, theta):
    y = turned(np.concatenate([x[..., ::2], x[..., 1::2]], axis=2), positions, theta)
    out = np.empty_like(x)
    out[..., ::2], out[..., 1::2] = np.split(y, 2, axis=2)
    return out


def to_the_right(x, positions, theta):
    K = x.shape[-1]
    flipped = np.concatenate([x[..., : K // 2], -x[..., K // 2 :]], axis=2)
    out = turned(flipped, positions, theta)
    out[..., K // 2 :] *= -1
    return out


def counts_from_one(x, positions, theta):
    return turned(x, np.array([t + 1.0 for t in positions]), theta)


def ignores_positions(x, positions, theta):
    return turned(x, range(x.shape[0]), theta)


def exponent_without_the_two(x, positions, theta):
    return turned(x, positions, theta, exponent=1.0)


def writes_over_what_it_reads(x, positions, theta):
    y, n = np.array(x), x.shape[-1] // 2
    for s, t in enumerate(positions):
        for i in range(n):
            c, d = math.cos(t * theta ** (-i / n)), math.sin(t * theta ** (-i / n))
            y[s, :, i] = c * y[s, :, i] - d * y[s, :, n + i]
            y[s, :, n + i] = d * y[s, :, i] + c * y[s, :, n + i]
    return y


# -- head_ranks: operators in a list --


def ranked(wq, wk, *, normal=True, centre=None, base=math.e, most=None, before=None):
    operators = [a @ b.T for a, b in zip(wq, wk, strict=True)]
    if before is not None:
        operators = before(operators)
    if normal:
        operators = [A / math.sqrt(np.trace(A.T @ A)) for A in operators]
    G = np.array([[np.trace(A.T @ B) for B in operators] for A in operators])
    G = G - G.mean(0)[None] - G.mean(1)[:, None] + G.mean() if centre is None else centre(G)
    values = [value for value in np.linalg.eigvalsh(G) if value > 1e-11]
    entropy = -sum(v / sum(values) * math.log(v / sum(values), base) for v in values)
    return G, math.exp(entropy), len(G) - 1 if most is None else most(len(G))


def keeps_sizes(wq, wk):
    return ranked(wq, wk, normal=False)


def takes_off_columns_only(wq, wk):
    return ranked(wq, wk, centre=lambda G: G - G.mean(0, keepdims=True))


def takes_nothing_off(wq, wk):
    return ranked(wq, wk, centre=lambda G: G)


def centres_operators(wq, wk):
    def less_the_mean(operators):
        return [A - sum(operators) / len(operators) for A in operators]

    return ranked(wq, wk, before=less_the_mean, centre=lambda G: G)


def uses_log2(wq, wk):
    return ranked(wq, wk, base=2)


def allows_all_heads(wq, wk):
    return ranked(wq, wk, most=lambda H: H)


# -- passing_factor and leaning_factor: columns as complex vectors, a plane a component --


def of_complex(vectors):
    """Two columns for each complex vector: w and i w, with real parts in the first coordinates of planes."""
    columns = [np.concatenate([part.real, part.imag]) for w in vectors for part in (w, 1j * w)]
    return np.array(columns).T


def planes_of(frequency, rank, every_row):
    """The planes that follow each complex latent."""
    if every_row:
        return [frequency == value for value in sorted(set(frequency.tolist()))]
    return [np.arange(len(frequency)) == plane for plane in range(rank // 2)]


def with_real_weights(frequency, rank, every_row):
    return of_complex([(1.0 + np.arange(len(frequency))) * planes for planes in planes_of(frequency, rank, every_row)])


def with_complex_weights(frequency, rank, every_row):
    weights = np.exp(1j * np.arange(len(frequency)))
    return of_complex([weights * planes for planes in planes_of(frequency, rank, every_row)])


def last_planes_in_other_coordinates(frequency, rank, every_row):
    vectors = [planes[::-1] for planes in planes_of(frequency[::-1], rank, every_row)]
    mix = np.linalg.qr(np.vander(np.linspace(-1, 1, rank)))[0] @ np.diag(10.0 ** np.arange(rank))
    return of_complex(vectors) @ mix


def half_planes(frequency, rank, every_row):
    return np.array([np.roll([1.0] + [0.0] * (2 * len(frequency) - 1), c) for c in range(rank)]).T


def only_as_many_planes_as_columns(frequency, rank, every_row):
    n = len(frequency)
    chosen = [*range(rank // 2), *range(n, n + rank // 2)]
    return np.array([[float(row == c) for c in chosen] for row in range(2 * n)])


def deals_planes_out(frequency, rank, every_row):
    factor, n = np.zeros((2 * len(frequency), rank)), len(frequency)
    for p in range(n):
        factor[p, p % (rank // 2)] = factor[n + p, rank // 2 + p % (rank // 2)] = 1
    return factor


def conjugates_all_but_the_first(frequency, rank, every_row):
    half, n = rank // 2, len(frequency)
    factor = np.zeros((2 * n, rank))
    for latent, planes in enumerate(planes_of(frequency, rank, every_row)):
        for place, p in enumerate(np.flatnonzero(planes)):
            factor[p, latent], factor[n + p, half + latent] = 1, -1 if place else 1
    return factor


def real_and_imaginary_at_will(frequency, rank, every_row):
    n = len(frequency)
    columns = []
    for planes in planes_of(frequency, rank, every_row):
        columns += [np.concatenate([planes * (1.0 + np.arange(n)), 0 * planes])]
        columns += [np.concatenate([0 * planes, planes * (2.0 + np.cos(np.arange(n)))])]
    return np.array(columns).T


def a_hair_of_other_planes(frequency, rank, every_row):
    """Whole planes, and 1e-7 of all the rest."""
    factor = only_as_many_planes_as_columns(frequency, rank, every_row)
    return factor + 1e-7 * np.cos(np.arange(factor.size)).reshape(factor.shape)


def a_random_factor(frequency, rank, every_row):
    return np.random.default_rng(0).normal(size=(2 * len(frequency), rank))


def best_pair(frequency, position):
    pairs = [(a, b) for a in range(len(frequency)) for b in range(a + 1, len(frequency))]
    sines = [abs(math.sin((frequency[a] - frequency[b]) * position / 2)) for a, b in pairs]
    return *pairs[int(np.argmax(sines))], max(sines)


def two_planes(n, i, j, lean, *, second=1j):
    w = np.zeros(n, complex)
    w[i], w[j] = math.cos(lean), math.sin(lean)
    turned_too = w * 1j
    turned_too[j] = second * math.sin(lean)
    return np.array([np.concatenate([v.real, v.imag]) for v in (w, turned_too)]).T


def leans_enough(frequency, position, angle_rad):
    i, j, most = best_pair(frequency, position)
    return two_planes(len(frequency), i, j, math.asin(math.sin(angle_rad) / most) / 2)


def leans_beyond_45_degrees(frequency, position, angle_rad):
    i, j, most = best_pair(frequency, position)
    factor = two_planes(len(frequency), i, j, math.pi / 2 - math.asin(math.sin(angle_rad) / most) / 2)
    return -3.0 * factor @ np.array([[1.0, 2.0], [0.0, 1.0]])


def bisects(frequency, position, angle_rad):
    """Knows no law: two numbers in two planes, and the angle by linear algebra."""
    n = len(frequency)
    i, j, _ = best_pair(frequency, position)
    turning = np.diag(np.exp(1j * frequency * position))
    whole = np.block([[turning.real, -turning.imag], [turning.imag, turning.real]])
    low, high = 0.0, math.pi / 4
    for _ in range(60):
        Q = two_planes(n, i, j, (low + high) / 2)
        moved = whole @ Q
        sine = np.linalg.svd(moved - Q @ (Q.T @ moved), compute_uv=False)[0]
        low, high = ((low + high) / 2, high) if sine < math.sin(angle_rad) else (low, (low + high) / 2)
    return two_planes(n, i, j, low)


def leans_by_what_is_asked(frequency, position, angle_rad):
    i, j, _ = best_pair(frequency, position)
    return two_planes(len(frequency), j, i, angle_rad)


def forgets_the_half(frequency, position, angle_rad):
    i, j, most = best_pair(frequency, position)
    return two_planes(len(frequency), i, j, math.asin(math.sin(angle_rad) / most))


def takes_the_whole_difference(frequency, position, angle_rad):
    i, j, _ = best_pair(frequency, position)
    sine = abs(math.sin((frequency[i] - frequency[j]) * position))
    return two_planes(len(frequency), i, j, math.asin(min(1.0, math.sin(angle_rad) / sine)) / 2)


def exchanges_a_sign(frequency, position, angle_rad):
    i, j, most = best_pair(frequency, position)
    return two_planes(len(frequency), i, j, math.asin(math.sin(angle_rad) / most) / 2, second=-1j)


def in_neighbouring_rows(frequency, position, angle_rad):
    half_split, n = leans_enough(frequency, position, angle_rad), len(frequency)
    return np.array([half_split[row // 2 + n * (row % 2)] for row in range(2 * n)])


def a_whole_plane(frequency, position, angle_rad):
    return two_planes(len(frequency), 0, 1, 0.0)


def always_the_first_two(frequency, position, angle_rad):
    with np.errstate(all="ignore"):
        sine = np.abs(np.sin((frequency[0] - frequency[1]) * position / 2))
        return two_planes(len(frequency), 0, 1, np.arcsin(np.sin(angle_rad) / sine) / 2)


def between_planes_that_turn_alike(frequency, position, angle_rad):
    """Right where no two turn alike."""
    if frequency[0] != frequency[1]:
        return leans_enough(frequency, position, angle_rad)
    return two_planes(len(frequency), 0, 1, 0.3)


MISTAKEN = [
    (lrkv.count_cache, forgets_values, "keys alone"),
    (lrkv.count_cache, adds_the_weights, "the factors in every token"),
    (lrkv.count_cache, one_latent_for_all, "one head's latents"),
    (lrkv.count_cache, a_shared_key_for_each, "the shared key once a head"),
    (lrkv.count_cache, mla_keeps_keys_and_values, "MLA's latent twice"),
    (lrkv.count_cache, divides_by_the_groups, "heads of a group for groups"),
    (lrkv.factored_logits, without_scale, "no scale"),
    (lrkv.factored_logits, over_root_rank, "scaled by the rank"),
    (lrkv.factored_logits, two_scales, "each part by its own width"),
    (lrkv.factored_logits, read_as_rank_by_width, "factor reshaped"),
    (lrkv.factored_logits, einsum_without_the_head, "latents of all heads"),
    (lrkv.merge_parts, takes_the_mean, "parts count alike"),
    (lrkv.merge_parts, normalises_heads, "softmax over heads"),
    (lrkv.merge_parts, forgets_to_divide, "not divided"),
    (lrkv.merge_parts, takes_the_mean_of_latents, "latents count alike"),
    (lrkv.rotate, pairs_of_neighbours, "interleaved layout"),
    (lrkv.rotate, to_the_right, "turned backwards"),
    (lrkv.rotate, counts_from_one, "one position further"),
    (lrkv.rotate, ignores_positions, "rows counted from 0"),
    (lrkv.rotate, exponent_without_the_two, "half the exponent"),
    (lrkv.rotate, writes_over_what_it_reads, "the first half was turned already"),
    (lrkv.passing_factor, half_planes, "the first coordinates"),
    (lrkv.passing_factor, only_as_many_planes_as_columns, "whole planes alone"),
    (lrkv.passing_factor, deals_planes_out, "planes in turn"),
    (lrkv.passing_factor, conjugates_all_but_the_first, "planes the other way round"),
    (lrkv.leaning_factor, forgets_the_half, "not halved"),
    (lrkv.leaning_factor, takes_the_whole_difference, "the whole difference"),
    (lrkv.leaning_factor, exchanges_a_sign, "one plane the other way round"),
    (lrkv.leaning_factor, in_neighbouring_rows, "planes of the interleaved layout"),
    (lrkv.head_ranks, keeps_sizes, "not normalised"),
    (lrkv.head_ranks, takes_off_columns_only, "centred on one side"),
    (lrkv.head_ranks, takes_nothing_off, "not centred"),
    (lrkv.head_ranks, centres_operators, "operators centred before they are normalised"),
    (lrkv.head_ranks, uses_log2, "an entropy in bits"),
    (lrkv.head_ranks, allows_all_heads, "a ceiling of H"),
]


@pytest.mark.parametrize(("one", "answer", "mistake"), MISTAKEN)
def test_a_usual_mistake_is_named(one, answer, mistake):
    for seed in SEEDS:
        checked = one.check(answer, seed=seed)
        assert not checked
        assert checked.mistake == mistake, checked


def test_every_usual_mistake_was_written_anew_here():
    written = {(one.name, mistake) for one, _, mistake in MISTAKEN}
    listed = {(one.name, mistake.name) for one in lrkv.EXERCISES for mistake in one.mistakes}
    assert listed - written == {("leaning_factor", "a lean by the angle")}  # below: its numbers need not coincide


@pytest.mark.parametrize(
    ("one", "answer", "says"),
    [
        (lrkv.passing_factor, half_planes, "It passes in the interleaved layout"),
        (lrkv.passing_factor, real_and_imaginary_at_will, "A quarter turn of the "),
        (lrkv.passing_factor, conjugates_all_but_the_first, "A quarter turn of the "),
        (lrkv.passing_factor, a_random_factor, "It mixes frequencies"),
        (lrkv.passing_factor, deals_planes_out, "It mixes frequencies"),
        (lrkv.passing_factor, only_as_many_planes_as_columns, "No row may be 0 here, got 0 in rows "),
        (lrkv.passing_factor, a_hair_of_other_planes, "It mixes frequencies"),
        (lrkv.leaning_factor, leans_by_what_is_asked, "the lean is not the angle that leaves"),
        (lrkv.leaning_factor, forgets_the_half, "half of it would be right"),
        (lrkv.leaning_factor, exchanges_a_sign, "run through the other way round"),
        (lrkv.leaning_factor, in_neighbouring_rows, "It is right in the interleaved layout"),
        (lrkv.leaning_factor, a_whole_plane, "Nothing leaves it"),
        (lrkv.leaning_factor, between_planes_that_turn_alike, "Nothing leaves it"),
        (lrkv.leaning_factor, always_the_first_two, "these two planes turn too much alike"),
    ],
)
def test_the_judge_says_what_is_wrong(one, answer, says):
    """The sentence is that of the judge, whether or not the numbers are those of a usual mistake."""
    for seed in SEEDS:
        checked = one.check(answer, seed=seed)
        assert not checked
        assert says in checked.message


@pytest.mark.parametrize(
    ("one", "answer"),
    [
        (lrkv.passing_factor, with_real_weights),
        (lrkv.passing_factor, with_complex_weights),
        (lrkv.passing_factor, last_planes_in_other_coordinates),
        (lrkv.passing_factor, lambda **case: with_real_weights(**case).tolist()),
        (lrkv.leaning_factor, leans_enough),
        (lrkv.leaning_factor, leans_beyond_45_degrees),
        (lrkv.leaning_factor, bisects),
        (lrkv.leaning_factor, lambda **case: 1e-200 * leans_enough(**case)),
        (lrkv.leaning_factor, lambda **case: 1e200 * leans_enough(**case)),
    ],
)
def test_many_answers_are_right(one, answer):
    for seed in SEEDS:
        assert one.check(answer, seed=seed), one.check(answer, seed=seed)


def spoiled(one, spoil):
    return lambda **case: spoil(one.solved(**case))


@pytest.mark.parametrize("one", [lrkv.passing_factor, lrkv.leaning_factor])
@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (np.zeros_like, "The columns must be independent"),
        (lambda B: np.repeat(B[:, :1], B.shape[1], axis=1), "The columns must be independent"),
        (lambda B: B[:, :1] + 1e-9 * B, "The columns must be independent"),
        (lambda B: np.full_like(B, np.nan), "finite numbers"),
        (lambda B: np.where(B == 0, np.inf, B), "finite numbers"),
        (lambda B: B[:0], "must have shape"),
        (lambda B: B[:, :0], "must have shape"),
        (lambda B: B.T, "must have shape"),
        (lambda B: B[None], "must have shape"),
        (lambda B: B.ravel(), "must have shape"),
        (lambda B: 1.0, "must have shape"),
        (lambda B: B + 0j, "must hold real numbers"),
        (lambda B: B.astype(str), "must hold real numbers"),
        (lambda B: B != 0, "must hold real numbers"),
        (lambda B: {"factor": B}, "must hold real numbers"),
        (lambda B: [[1.0], [1.0, 2.0]], "does not read as factor"),
    ],
)
def test_what_only_looks_like_an_answer_is_refused(one, spoil, says):
    for seed in SEEDS:
        checked = one.check(spoiled(one, spoil), seed=seed)
        assert not checked
        assert says in checked.message


# -- the edges that cases are there for --


def test_an_empty_part_and_large_logits_need_care():
    def as_it_stands(lse, shared, latent, factor):
        with np.errstate(all="ignore"):
            weights = np.exp(lse) / np.exp(lse).sum(axis=0)
            return np.einsum("ph,phv->hv", weights, shared + np.einsum("phr,hvr->phv", latent, factor))

    def with_the_largest_taken_off(lse, shared, latent, factor):
        with np.errstate(all="ignore"):
            return as_it_stands(lse - lse.max(axis=0), shared, latent, factor)

    for seed in SEEDS:
        first, second = (lrkv.merge_parts.check(f, seed=seed) for f in (as_it_stands, with_the_largest_taken_off))
        assert not first
        assert not second
        assert "of them are NaN" in first.message
        assert "must be 0, got nan" in second.message  # there, no part has a token


def test_rank_0_and_a_single_query_are_among_the_cases():
    for seed in SEEDS:
        cases = list(lrkv.factored_logits.cases(exercise.Draw(seed)))
        assert [case["k_factor"].shape[2] == 0 for case in cases] == [False, False, True]
        assert [case["q"].shape[0] == 1 for case in cases] == [False, True, False]


def test_the_eigenvalue_that_is_0_is_not_put_into_a_logarithm():
    def all_of_them(wq, wk):
        centred, _, most = lrkv.head_ranks.solved(wq, wk)
        share = np.linalg.eigvalsh(centred) / np.trace(centred)
        share = np.where(np.abs(share) < 1e-12, -1e-17, share)  # as rounding may have it
        with np.errstate(all="ignore"):
            return centred, np.exp(-(share * np.log(share)).sum()), most

    checked = lrkv.head_ranks.check(all_of_them, seed=0)
    assert not checked
    assert "got nan" in checked.message


def test_heads_at_right_angles_reach_the_ceiling_and_mqa_s_heads_differ():
    for seed in SEEDS:
        ranks = [lrkv.head_ranks.solved(**case)[1:] for case in lrkv.head_ranks.cases(exercise.Draw(seed))]
        assert ranks[2][0] == pytest.approx(ranks[2][1], rel=1e-12)
        assert all(1 < rank < most for rank, most in ranks[:2])
