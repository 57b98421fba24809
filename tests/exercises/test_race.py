"""Wrong answers that readers give to the exercises on RACE, written anew here, and what the check says of them."""

import numpy as np
import pytest

from attnlab.exercises import race
from attnlab.exercises.exercise import Draw
from attnlab.race import draw_planes, reference, theory

CORNERS = {P: np.array([[1 if r & 1 << t else -1 for t in range(P)] for r in range(2**P)]) for P in range(1, 8)}


@pytest.fixture(autouse=True)
def own_file(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTNLAB_EXERCISES", str(tmp_path / "exercises.json"))


# -- features ---------------------------------------------------------------------------------------------------------


def softmax(logits, axes):
    e = np.exp(logits - logits.max(axis=axes, keepdims=True))
    return e / e.sum(axis=axes, keepdims=True)


def logits(x, planes, sharpness):
    return sharpness * np.tanh(np.einsum("tk,lpk->tlp", x, planes)) @ CORNERS[planes.shape[1]].T


def softmax_over_both_axes(x, planes, sharpness):
    return softmax(logits(x, planes, sharpness), (1, 2))


def plane_0_is_the_leftmost_bit(x, planes, sharpness):
    P = planes.shape[1]
    left = np.array([[1 if r & 1 << (P - 1 - t) else -1 for t in range(P)] for r in range(2**P)])
    return softmax(sharpness * np.tanh(np.einsum("tk,lpk->tlp", x, planes)) @ left.T, -1)


def projections_as_they_are(x, planes, sharpness):
    return softmax(sharpness * np.einsum("tk,lpk->tlp", x, planes) @ CORNERS[planes.shape[1]].T, -1)


def bits_from_a_plain_sigmoid(x, planes, sharpness):
    bit = 1 / (1 + np.exp(-np.clip(sharpness * np.tanh(np.einsum("tk,lpk->tlp", x, planes)), -700, 700)))
    chosen = np.where(CORNERS[planes.shape[1]] > 0, bit[:, :, None], 1 - bit[:, :, None])
    return chosen.prod(axis=-1)


# -- attend and causal, token by token --------------------------------------------------------------------------------


def pairwise(phi_q, phi_k):
    """[T, S, L]: what each table says of each pair."""
    return np.einsum("tlr,slr->tsl", phi_q, phi_k)


def written(phi_k, v):
    mass = sum(phi_k, start=np.zeros(phi_k.shape[1:]))
    content = np.zeros((*mass.shape, v.shape[1]))
    for phi, value in zip(phi_k, v, strict=True):
        content = content + phi[:, :, None] * value
    return mass, content


def tables_that_vote(phi_q, phi_k, v):
    weights = pairwise(phi_q, phi_k)
    weights = (weights / weights.sum(axis=1, keepdims=True)).mean(axis=2)
    return *written(phi_k, v), weights @ v


def means_inside_buckets(phi_q, phi_k, v):
    share = phi_k / phi_k.sum(axis=0)  # each key's part of a bucket
    return *written(phi_k, v), pairwise(phi_q, share).mean(axis=2) @ v


def the_released_code(phi_q, phi_k, v):
    share = phi_k / phi_k.sum(axis=0)
    return *written(phi_k, v), pairwise(phi_q, share).sum(axis=2) @ v


def numerator_alone(phi_q, phi_k, v):
    return *written(phi_k, v), pairwise(phi_q, phi_k).sum(axis=2) @ v


def streamed(phi_q, phi_k, v, mass, content, read):
    """Token by token; `read` makes an output of (shares, state before, state after)."""
    rows, state = [], (mass, content)
    for q, k, value in zip(phi_q, phi_k, v, strict=True):
        before, state = state, (state[0] + k, state[1] + k[..., None] * value)
        rows.append(read(q, before, state))
    return np.array(rows).reshape(v.shape), *state


def one_ratio(q, state):
    return np.tensordot(q, state[1], 2) / (q * state[0]).sum()


def prefix(phi_q, phi_k, v, mass, content):
    return streamed(phi_q, phi_k, v, mass, content, lambda q, before, after: one_ratio(q, after))


def ratios_averaged(phi_q, phi_k, v, mass, content):
    def read(q, before, after):
        tables = range(len(q))
        return sum(q[i] @ after[1][i] / (q[i] @ after[0][i]) for i in tables) / len(q)

    return streamed(phi_q, phi_k, v, mass, content, read)


def reads_before_it_writes(phi_q, phi_k, v, mass, content):
    return streamed(phi_q, phi_k, v, mass, content, lambda q, before, after: one_ratio(q, before))


def looks_ahead(phi_q, phi_k, v, mass, content):
    _, *state = prefix(phi_q, phi_k, v, mass, content)
    return np.array([one_ratio(q, state) for q in phi_q]).reshape(v.shape), *state


def forgets_the_past(phi_q, phi_k, v, mass, content):
    return prefix(phi_q, phi_k, v, 0 * mass, 0 * content)


# -- tables_needed, angle by angle ------------------------------------------------------------------------------------


def counted(angle, first, second, planes, error, spread, left, whole=np.ceil):
    """Angle by angle, for a variance and for what is left to the noise, as a reader has them."""
    tables = []
    for theta, x, xx in zip(angle, first, second, strict=True):
        room = left(x**planes, 1 - theta / np.pi)
        tables.append(max(1, int(whole(spread(x, xx) / room))) if room > 0 else 0)
    return np.array(tables)


def asks_for_little_noise(angle, first, second, planes, error):
    return counted(
        angle, first, second, planes, error, lambda x, xx: xx**planes - x ** (2 * planes), lambda mean, kappa: error**2
    )


def gives_noise_the_whole_error(angle, first, second, planes, error):
    return counted(
        angle, first, second, planes, error, lambda x, xx: xx**planes - x ** (2 * planes),
        lambda mean, kappa: error**2 if abs(mean - kappa**planes) < error else 0,
    )  # fmt: skip


def multiplies_variances(angle, first, second, planes, error):
    return counted(
        angle, first, second, planes, error, lambda x, xx: (xx - x * x) ** planes,
        lambda mean, kappa: error**2 - (mean - kappa**planes) ** 2,
    )  # fmt: skip


def takes_the_kernel_plain(angle, first, second, planes, error):
    return counted(
        angle, first, second, planes, error, lambda x, xx: xx**planes - x ** (2 * planes),
        lambda mean, kappa: error**2 - (mean - kappa) ** 2,
    )  # fmt: skip


def divides_by_what_is_not_left(angle, first, second, planes, error):
    def one(theta, x, xx):
        return np.ceil((xx**planes - x ** (2 * planes)) / (error**2 - (x**planes - (1 - theta / np.pi) ** planes) ** 2))

    return [one(*row) for row in zip(angle, first, second, strict=True)]


def rounds_down(angle, first, second, planes, error):
    return counted(
        angle, first, second, planes, error, lambda x, xx: xx**planes - x ** (2 * planes),
        lambda mean, kappa: error**2 - (mean - kappa**planes) ** 2, whole=np.floor,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("exercise", "answer", "mistake"),
    [
        (race.features, softmax_over_both_axes, "one softmax over all tables"),
        (race.features, plane_0_is_the_leftmost_bit, "bits from the left"),
        (race.features, projections_as_they_are, "no tanh"),
        (race.features, bits_from_a_plain_sigmoid, "half the sharpness"),
        (race.attend, tables_that_vote, "a ratio for each table"),
        (race.attend, means_inside_buckets, "bucket means"),
        (race.attend, the_released_code, "bucket means, summed over tables"),
        (race.attend, numerator_alone, "not divided"),
        (race.causal, ratios_averaged, "a ratio for each table"),
        (race.causal, reads_before_it_writes, "the token itself left out"),
        (race.causal, looks_ahead, "every token sees all"),
        (race.causal, forgets_the_past, "the state left out"),
        (race.tables_needed, asks_for_little_noise, "no bias"),
        (race.tables_needed, gives_noise_the_whole_error, "the whole error left to the noise"),
        (race.tables_needed, multiplies_variances, "the variance of a plane, to the power P"),
        (race.tables_needed, takes_the_kernel_plain, "κ without its power"),
        (race.tables_needed, divides_by_what_is_not_left, "less than no error left"),
        (race.tables_needed, rounds_down, "rounded down"),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_a_usual_mistake_is_named(exercise, answer, mistake, seed):
    checked = exercise.check(answer, seed=seed)
    assert not checked
    assert checked.mistake == mistake
    assert "must be" in checked.message


def test_an_exponential_that_overflows_is_said_to_give_nan():
    def unsafe(x, planes, sharpness):
        with np.errstate(all="ignore"):
            e = np.exp(logits(x, planes, sharpness))
            return e / e.sum(axis=-1, keepdims=True)

    assert "are NaN" in race.features.check(unsafe, seed=1).message


def test_where_a_query_meets_nothing_an_answer_of_nan_is_refused():
    def divides_by_nothing(phi_q, phi_k, v):
        weights = pairwise(phi_q, phi_k).sum(axis=2)
        with np.errstate(invalid="ignore"):
            return *written(phi_k, v), weights @ v / weights.sum(axis=1, keepdims=True)

    for seed in range(5):
        assert "out[0, 0] must be 0, got nan" in race.attend.check(divides_by_nothing, seed=seed).message


def test_a_loop_over_tokens_is_as_right_as_cumulative_sums():
    assert all(race.causal.check(prefix, seed=seed) for seed in range(5))


def test_a_prefix_that_takes_the_last_row_meets_the_case_without_tokens():
    def last_row(phi_q, phi_k, v, mass, content):
        masses = mass + np.cumsum(phi_k, axis=0)
        contents = content + np.cumsum(phi_k[..., None] * v[:, None, None], axis=0)
        out = np.einsum("tlr,tlrv->tv", phi_q, contents) / np.einsum("tlr,tlr->t", phi_q, masses)[:, None]
        return out, masses[-1], contents[-1]

    message = race.causal.check(last_row, seed=2).message
    assert "IndexError" in message
    assert "phi_q [0," in message


@pytest.mark.parametrize("seed", range(3))
def test_so_many_tables_and_no_fewer_bring_the_error_down(seed):
    """Against `theory.band`, which the exercise does not use."""
    draw = Draw(seed)
    angle, sharpness, planes, error = draw.uniform(9, low=0.1, high=3.0), 5.0, 3, 0.02
    first, second = theory.pair_moments(angle, sharpness)
    tables = race.tables_needed.expected(angle, first, second, planes, error)
    assert tables.max() > 1
    for theta, needed in zip(angle, tables, strict=True):

        def off(L, at=theta):
            band = theory.band(at, planes, L, sharpness)
            return np.hypot(band.mean - band.target, band.sd)[0]

        assert off(max(needed, 1)) <= error if needed else off(10**9) > error
        assert needed <= 1 or off(needed - 1) > error


# -- break_lemma10 ----------------------------------------------------------------------------------------------------


def asked(target, tokens, delta):
    return 2 * np.log(2 * tokens**2 / delta) / target**2


def middle_of_the_certain_interval(planes, sharpness, tables, tokens, delta):
    lowest = np.sqrt(asked(1.0, tokens, delta) / tables)
    highest = ((1 - np.tanh(sharpness) ** 2) / 2) ** planes / 1.5
    return np.pi * (1 - np.sqrt(lowest * highest) ** (1 / planes))


def a_search_with_simulated_means(planes, sharpness, tables, tokens, delta):
    stream = np.random.default_rng(0).standard_normal((2, 20_000))
    for angle in np.linspace(np.pi, 0, 400)[1:]:
        g = stream[0], np.cos(angle) * stream[0] + np.sin(angle) * stream[1]
        a, b = (np.tanh(sharpness * np.tanh(x)) for x in g)
        target = (1 - angle / np.pi) ** planes
        if asked(target, tokens, delta) <= tables and ((1 + a * b) / 2).mean() ** planes > 1.6 * target:
            return angle
    raise AssertionError("no angle found")


@pytest.mark.parametrize("answer", [middle_of_the_certain_interval, a_search_with_simulated_means])
@pytest.mark.parametrize("seed", range(5))
def test_lemma_10_is_broken_in_more_than_one_way(answer, seed):
    assert race.break_lemma10.check(answer, seed=seed)
    assert race.break_lemma10.check(lambda **case: np.float32(answer(**case)), seed=seed)


@pytest.mark.parametrize("seed", range(3))
def test_where_the_check_says_so_the_lemma_s_conclusion_fails_in_a_draw(seed):
    """With as many tables as the case has, hashed by the reference."""
    for case in race.break_lemma10.cases(Draw(seed)):
        angle, tables, P = middle_of_the_certain_interval(**case), case["tables"], case["planes"]
        assert race.break_lemma10.judge(angle, case) == ""
        pair = np.array([[1.0, 0.0], [np.cos(angle), np.sin(angle)]])
        phi = reference.features(pair[None, :, None], draw_planes(tables, P, 2, seed), case["sharpness"])[0, :, 0]
        score, target = (phi[0] * phi[1]).sum() / tables, (1 - angle / np.pi) ** P
        assert tables >= asked(target, case["tokens"], case["delta"])
        assert abs(score - target) > target / 2


@pytest.mark.parametrize(
    ("answer", "mistake", "says"),
    [
        (lambda **case: 0, "equal vectors", "less than half"),
        (lambda **case: np.arccos(-1.0), "opposite vectors", "C1 = 0"),
        (
            lambda planes, tables, tokens, delta, **case: (
                np.pi - np.pi * np.sqrt(2 / tables * (np.log(2) + 2 * np.log(tokens) - np.log(delta)))
            ),
            "C1 without its root",
            "it is silent at this angle",
        ),
        (
            lambda planes, tables, tokens, delta, **case: (
                180 - 180 * (np.log(2 * tokens**2 / delta) * 2 / tables) ** (0.5 / planes)
            ),
            "degrees",
            "in radians",
        ),
        (lambda **case: np.pi / 2, "", "less than half"),
        (lambda **case: np.pi - 1e-7, "", "it is silent"),
        (lambda **case: -0.1, "", "between 0 and π"),
        (lambda **case: np.nan, "", "must be finite"),
        (lambda **case: np.inf, "", "must be finite"),
        (lambda **case: [], "", "one number"),
        (lambda **case: np.zeros(3), "", "one number"),
        (lambda **case: (2.0, 3.0), "", "one number"),
        (lambda **case: 2.9 + 0j, "", "one number"),
        (lambda **case: True, "", "one number"),
        (lambda **case: "2.9", "", "one number"),
        (lambda **case: {"angle": 2.9}, "", "one number"),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_what_does_not_break_lemma_10_is_told_why(answer, mistake, says, seed):
    checked = race.break_lemma10.check(answer, seed=seed)
    assert not checked
    assert checked.mistake == mistake
    assert says in checked.message


def test_near_the_border_of_failing_the_judge_asks_for_more():
    """There the mean is off by a little over half of the target, and few tables leave the conclusion a chance."""
    case = {"planes": 1, "sharpness": 0.5, "tables": 400, "tokens": 4, "delta": 0.05}
    angles = np.linspace(2.0, 3.0, 20_001)
    mean, target = theory.pair_moments(angles[::100], 0.5)[0], 1 - angles[::100] / np.pi
    border = np.interp(0.0, mean - 1.5 * target, angles[::100])
    assert "go further from the border" in race.break_lemma10.judge(border + 1e-3, case)
    assert "less than half" in race.break_lemma10.judge(border - 1e-3, case)
    assert race.break_lemma10.judge(border + 0.1, case) == ""


# -- hash_alike -------------------------------------------------------------------------------------------------------


def rows_of(planes):
    return planes.reshape(-1, planes.shape[-1])


def by_elimination(planes, sharpness, size=8.0, length=1e5):
    """Every second plane has both on its negative side; what no plane sees comes from a solved system."""
    rows = rows_of(planes)
    count, K = rows.shape
    wanted = size * np.where(np.arange(count) % 2, -1.0, 1.0)
    seen = np.concatenate([np.linalg.solve(rows[:, :count], wanted), np.zeros(K - count)])
    unseen = np.concatenate([np.linalg.solve(rows[:, :count], -rows[:, -1]), np.zeros(K - count)])
    unseen[-1] = 1.0
    return [seen + length * unseen, seen - length * unseen]


def by_least_squares(planes, sharpness):
    """From a random vector, what lies in the span of the planes is taken away. The two have different lengths."""
    rows, random = rows_of(planes), np.random.default_rng(1)
    x = random.standard_normal(rows.shape[1])
    unseen = x - np.linalg.lstsq(rows, rows @ x, rcond=None)[0]
    seen = np.linalg.lstsq(rows, random.uniform(4, 6, len(rows)), rcond=None)[0]
    return np.array([seen + 1e6 * unseen, 2 * seen - 2e5 * unseen])


@pytest.mark.parametrize("answer", [by_elimination, by_least_squares])
@pytest.mark.parametrize("seed", range(5))
def test_opposite_tokens_hash_alike_in_more_than_one_way(answer, seed):
    assert race.hash_alike.check(answer, seed=seed)


def towards_the_planes(planes, sharpness):
    q, _ = by_elimination(planes, sharpness, length=0.0)
    return q, -q


def unseen_alone(planes, sharpness):
    return by_elimination(planes, sharpness, size=0.0, length=1.0)


def made_unit(planes, sharpness):
    return [x / np.linalg.norm(x) for x in by_elimination(planes, sharpness)]


def the_same_twice(planes, sharpness):
    q, _ = by_elimination(planes, sharpness)
    return q, q


def at_a_right_angle(planes, sharpness):
    seen = by_elimination(planes, sharpness, length=0.0)[0]
    unseen = by_elimination(planes, sharpness, size=0.0, length=1.0)[0]
    unseen *= np.linalg.norm(seen) / np.linalg.norm(unseen)
    return seen + unseen, seen - unseen


def ones(planes):
    return np.ones(planes.shape[-1])


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (towards_the_planes, "on different sides of"),
        (unseen_alone, "No plane sees these tokens"),
        (made_unit, "on the same side of every plane, but not far from it"),
        (the_same_twice, "not opposite enough"),
        (at_a_right_angle, "not opposite enough"),
        (lambda planes, sharpness: (0 * ones(planes), ones(planes)), "A token of zeros has no direction"),
        (lambda planes, sharpness: (0 * ones(planes), 0 * ones(planes)), "A token of zeros has no direction"),
        (lambda planes, sharpness: (ones(planes), np.nan * ones(planes)), "must be finite"),
        (lambda planes, sharpness: (ones(planes), -np.inf * ones(planes)), "must be finite"),
        (lambda planes, sharpness: (1e300 * ones(planes), -1e300 * ones(planes)), "beyond 1e+09"),
        (lambda planes, sharpness: (ones(planes)[:-1], ones(planes)), "an array of shape"),
        (lambda planes, sharpness: (ones(planes), 1.0), "an array of shape"),
        (lambda planes, sharpness: (1j * ones(planes), ones(planes)), "an array of shape"),
        (lambda planes, sharpness: ([], []), "an array of shape"),
        (lambda planes, sharpness: ("q", "k"), "an array of shape"),
        (lambda planes, sharpness: {"q": 1, "k": 2}, "an array of shape"),
        (lambda planes, sharpness: ones(planes), "does not read as q, k"),
        (lambda planes, sharpness: (ones(planes),) * 3, "does not read as q, k"),
        (lambda planes, sharpness: 1.0, "does not read as q, k"),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_tokens_that_do_not_hash_alike_are_told_why(answer, says, seed):
    checked = race.hash_alike.check(answer, seed=seed)
    assert not checked
    assert says in checked.message


@pytest.mark.parametrize("seed", range(3))
def test_the_solution_s_scores_are_near_the_bound_that_the_text_names(seed):
    for case in race.hash_alike.cases(Draw(seed)):
        planes, sharpness = case["planes"], case["sharpness"]
        q, k = race.hash_alike.solved(**case)
        a, b = (np.tanh(sharpness * np.tanh(planes @ x)) for x in (q, k))
        score = np.prod((1 + a * b) / 2, axis=1).mean()
        most = ((1 + np.tanh(sharpness) ** 2) / 2) ** planes.shape[1]
        assert 0.9 * most < score <= most
        assert q @ k < -0.999 * np.linalg.norm(q) * np.linalg.norm(k)
