"""Wrong answers that readers give to the exercises on RLA and RDN, written anew here, and what a check says of them."""

import warnings

import numpy as np
import pytest

from attnlab.exercises import residual

SEEDS = range(5)


@pytest.fixture(autouse=True)
def own_file(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTNLAB_EXERCISES", str(tmp_path / "exercises.json"))


# -- answers that are compared ----------------------------------------------------------------------------------------


def told(memory, key, target, decay, rate, *, delta):
    """A memory after one token, by sums over indices."""
    left = decay * memory
    missing = target - np.einsum("k,kv->v", key, left) if delta else target
    return left + rate * np.einsum("k,v->kv", key, missing)


def within(x, clip):
    return np.maximum(np.minimum(x, clip), -clip)


def rla(*, error="old", clipped="error", read_S="old", read_R="new", read_gates=True, square=True):
    def rla_step(S, R, q, k, v, alpha, beta, gamma, clip):
        new_S = told(S, k, v, alpha, beta, delta=False)
        predicted = np.tensordot(k, {"old": S, "decayed": alpha * S, "new": new_S}[error], 1)
        targets = {
            "error": within(v - predicted, clip),
            "value": within(v, clip) - predicted,
            "nothing": v - predicted,
        }
        new_R = told(R, k, targets[clipped], alpha, gamma, delta=False)
        from_S = np.tensordot(q, {"old": S, "new": new_S}[read_S], 1)
        from_R = np.tensordot(q, {"old": R, "new": new_R}[read_R], 1)
        gates = (alpha, gamma if square else 1) if read_gates else (1, 1)
        return gates[0] * from_S + gates[1] * from_R, new_S, new_R

    return rla_step


def columns(S, R, q, k, v, alpha, beta, gamma, clip):
    """As it stands in the paper: S and R [V, K], tokens as columns."""
    S, R = S.T, R.T
    r = within(v - S @ k, clip)
    R = alpha * R + gamma * r[:, None] * k[None, :]
    return alpha * S @ q + gamma * R @ q, alpha * S + beta * v[:, None] * k[None, :], R


def weights(*, first=1, last=0, diagonal=0, read=1, write=1, swapped=False):
    """The product of alpha from i + first to t - last, entry by entry."""

    def error_weights(q, k, alpha, gamma):
        w = np.zeros((len(q), len(q)))
        for t in range(len(q)):
            for i in range(t + 1 - diagonal):
                decay = np.prod(alpha[i + first : t + 1 - last])
                w[t, i] = gamma[t] ** read * gamma[i] ** write * decay * q[t].dot(k[i])
        return w.T if swapped else w

    return error_weights


def through_logs(q, k, alpha, gamma):
    with np.errstate(divide="ignore", invalid="ignore"):
        total = np.cumsum(np.log(alpha))
        decay = np.tril(np.exp(total[:, None] - total[None, :]))
    return np.outer(gamma, gamma) * decay * np.einsum("tk,ik->ti", q, k)


def run(*, error="old", faded=True, R_delta=True, read_S="old", rate="gamma", anew=False):
    def rdn(q, k, v, alpha, beta, gamma, clip, S, R):
        rows = []
        if anew:
            S, R = np.zeros_like(S), np.zeros_like(R)
        for a, b, c, key, query, value in zip(alpha, beta, gamma, k, q, v, strict=True):
            taken = 1 if not faded else a
            new_S = a * S + b * np.einsum("k,v->kv", key, value - taken * np.einsum("k,kv->v", key, S))
            asked = {"old": S, "decayed": a * S, "new": new_S}[error]
            r = within(value - np.einsum("k,kv->v", key, asked), clip)
            missing = r - taken * np.einsum("k,kv->v", key, R) if R_delta else r
            R = a * R + (c if rate == "gamma" else b) * np.einsum("k,v->kv", key, missing)
            rows.append(a * query.dot(new_S if read_S == "new" else S) + c * query.dot(R))
            S = new_S
        return np.array(rows).reshape(v.shape), S, R

    return rdn


def like_the_first_rows(q, k, v, alpha, beta, gamma, clip, outs):
    """Each program by its first row, worked out on paper: R' = gamma kᵀ clip(v), S' = beta kᵀ v."""
    meet, length = q[0].dot(k[0]), k[0].dot(k[0])
    paper = gamma[0] ** 2 * meet * within(v[0], clip)
    post = meet * (beta[0] * v[0] + gamma[0] * within(v[0], clip))
    calls = meet * (beta[0] * v[0] + gamma[0] * within(v[0] - beta[0] * length * v[0], clip))
    guess = {0: paper, 1: post, 4: calls}
    return [min(guess, key=lambda number: np.abs(out[0] - guess[number]).max()) for out in outs]


def five(q, k, v, alpha, beta, gamma, clip, *, second_call="new"):
    """The five runs, [5, T, V]."""
    tables = []
    for number in range(5):
        S = R = np.zeros((len(k[0]), len(v[0])))
        rows = []
        for a, b, c, key, query, value in zip(alpha, beta, gamma, k, q, v, strict=True):
            taken = 1 if number == 3 else a
            new = a * S + b * np.multiply.outer(key, value - taken * key.dot(S))
            asked = {2: a * S, 4: new if second_call == "new" else S}.get(number, S)
            R = a * R + c * np.multiply.outer(key, within(value - key.dot(asked), clip) - taken * key.dot(R))
            rows.append(query.dot(new + R) if number in (1, 4) else a * query.dot(S) + c * query.dot(R))
            S = new
        tables.append(rows)
    return np.array(tables)


def named(outs, tables):
    return [int(np.argmin([np.abs(out - table).max() for table in tables])) for out in outs]


def second_call_beside_the_first(q, k, v, alpha, beta, gamma, clip, outs):
    return named(outs, five(q, k, v, alpha, beta, gamma, clip, second_call="old"))


@pytest.mark.parametrize(
    ("exercise", "answer", "mistake"),
    [
        (residual.rla_step, rla(error="decayed"), "the error of the decayed S"),
        (residual.rla_step, rla(error="new", read_S="new"), "S written first"),
        (residual.rla_step, rla(read_S="new"), "the new S read"),
        (residual.rla_step, rla(read_R="old"), "the old R read"),
        (residual.rla_step, rla(clipped="value"), "the value clipped"),
        (residual.rla_step, rla(clipped="nothing"), "not clipped"),
        (residual.rla_step, rla(read_gates=False), "read without gates"),
        (residual.rla_step, rla(square=False), "gamma counted once"),
        (residual.rla_step, columns, "the paper's layout"),
        (residual.error_weights, weights(first=0), "the decay of the error's own token"),
        (residual.error_weights, weights(last=1), "no decay at the query's token"),
        (residual.error_weights, weights(diagonal=1), "the newest error left out"),
        (residual.error_weights, weights(read=0), "the gate of the read left out"),
        (residual.error_weights, weights(write=0), "the gate of the write left out"),
        (residual.error_weights, weights(swapped=True), "errors as rows"),
        (residual.rdn, run(faded=False), "undecayed subtraction"),
        (residual.rdn, run(R_delta=False), "R told the residual"),
        (residual.rdn, run(error="decayed"), "the error of the decayed S"),
        (residual.rdn, run(error="new", read_S="new"), "S written first"),
        (residual.rdn, run(read_S="new"), "the new S read"),
        (residual.rdn, run(rate="beta"), "R written with beta"),
        (residual.rdn, run(anew=True), "begun anew"),
        (residual.which, like_the_first_rows, "by the first token"),
        (residual.which, second_call_beside_the_first, "the second call on errors of the old S"),
    ],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_usual_mistake_is_named(exercise, answer, mistake, seed):
    checked = exercise.check(answer, seed=seed)
    assert not checked
    assert checked.mistake == mistake, checked
    assert "must " in checked.message


@pytest.mark.parametrize(
    ("exercise", "answer"),
    [
        (residual.rla_step, rla()),
        (residual.error_weights, weights()),
        (residual.rdn, run()),
        (residual.which, lambda outs, **tokens: named(outs, five(**tokens))),
    ],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_written_otherwise_is_right(exercise, answer, seed):
    assert exercise.check(answer, seed=seed), exercise.check(answer, seed=seed)


def test_a_mistake_that_nobody_listed_is_refused_all_the_same():
    checked = residual.rla_step.check(rla(read_R="old", read_gates=False), seed=1)
    assert not checked
    assert checked.mistake == ""


@pytest.mark.parametrize("seed", SEEDS)
def test_decay_through_logarithms_is_nan_at_a_reset(seed):
    assert "of them are NaN" in residual.error_weights.check(through_logs, seed=seed).message


@pytest.mark.parametrize("seed", SEEDS)
def test_a_segment_without_tokens_has_an_output_without_rows(seed):
    def no_rows_no_width(*arguments, **tokens):
        out, S, R = run()(*arguments, **tokens)
        return out if len(out) else np.array([]), S, R

    assert "out must have shape [0, " in residual.rdn.check(no_rows_no_width, seed=seed).message


def test_the_segment_s_memories_are_not_to_be_written_over():
    def in_place(q, k, v, alpha, beta, gamma, clip, S, R):
        out, left_S, left_R = run()(q, k, v, alpha, beta, gamma, clip, S, R)
        S[:], R[:] = left_S, left_R
        return out, S, R

    assert "S, R came back changed" in residual.rdn.check(in_place, seed=2).message


@pytest.mark.parametrize("number", range(5))
def test_one_name_for_all_is_refused(number):
    assert not residual.which.check(lambda outs, **tokens: np.full(len(outs), number), seed=number)


# -- gates, judged ----------------------------------------------------------------------------------------------------


def by_solving(alpha, beta):
    """Token by token: what the retention must be so that the value before comes out right."""
    correction = [b**0.5 for b in beta]
    retention = [0.5]  # nothing to forget yet
    for t in range(1, len(beta)):
        retention.append(alpha[t] * beta[t - 1] / (correction[t] * correction[t - 1]))
    return retention, [0.0] * len(beta), correction


def with_a_last_write(alpha, beta):
    """Nobody reads S after the last token, so that its write is free."""
    retention, write, correction = by_solving(alpha, beta)
    return np.array(retention), np.array([*write[:-1], 0.7]), np.array(correction)


@pytest.mark.parametrize("answer", [by_solving, with_a_last_write])
@pytest.mark.parametrize("seed", SEEDS)
def test_gates_that_make_sgla_are_right(answer, seed):
    assert residual.gates.check(answer, seed=seed), residual.gates.check(answer, seed=seed)


def flipped(alpha, beta):
    roots = np.sqrt(beta)
    return np.concatenate([alpha[:1], alpha[1:] * (roots[1:] / roots[:-1])]), 0 * beta, roots


@pytest.mark.parametrize(
    ("answer", "mistake", "sentence"),
    [
        (
            lambda alpha, beta: (alpha, beta, [0.0] * len(beta)),
            "sGLA's own gates, and no correction",
            "the newest value",
        ),
        (lambda alpha, beta: (alpha, beta, beta**0.5), "S at work", "S is not empty"),
        (lambda alpha, beta: (alpha, beta - beta, beta), "the gate counted once", "how often does its gate come in"),
        (lambda alpha, beta: (alpha, beta - beta, beta**0.5), "the same decay", "what has faded since"),
        (flipped, "the ratio upside down", ""),
    ],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_wrong_gates_are_named_and_say_where_they_part(answer, mistake, sentence, seed):
    checked = residual.gates.check(answer, seed=seed)
    assert not checked
    assert checked.mistake == mistake, checked
    assert sentence in checked.message


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (lambda alpha, beta: (0 * alpha, 0 * alpha, 0 * alpha), "counts 0 times"),
        (lambda alpha, beta: (np.nan * alpha, 0 * alpha, beta), "must lie in [0, 1], got nan"),
        (lambda alpha, beta: (alpha, 0 * alpha, -(beta**0.5)), "correction must lie in [0, 1]"),
        (lambda alpha, beta: (alpha, 0 * alpha), "three arrays"),
        (lambda alpha, beta: (1.0, 0.0, 1.0), "retention must be real numbers of shape"),
        (lambda alpha, beta: ([], [], []), "retention must be real numbers of shape"),
        (lambda alpha, beta: (alpha, 0j * alpha, beta), "write must be real numbers"),
        (lambda alpha, beta: ("a", "b", "c"), "retention must be real numbers"),
        (lambda alpha, beta: ([10**400] * len(beta), beta, beta), "retention must be real numbers"),
        (lambda alpha, beta: ([[1], [1, 2]], beta, beta), "does not read as retention, write, correction"),
        (lambda alpha, beta: 1.0, "does not read as retention, write, correction"),
        (lambda alpha, beta: {"retention": 1, "write": 2, "correction": 3}, "retention must be real numbers"),
    ],
)
def test_what_cannot_be_gates_is_refused_with_a_sentence(answer, sentence):
    checked = residual.gates.check(answer, seed=4)
    assert not checked
    assert sentence in checked.message


# -- keys, judged -----------------------------------------------------------------------------------------------------


def rotated(n, K, gamma, helps):
    """At right angles but not along the axes; or drawn around one direction."""
    rng = np.random.default_rng(n * K)
    if not helps:
        return np.linalg.qr(rng.standard_normal((K, n)))[0].T
    k = 0.8 * np.linalg.qr(rng.standard_normal((K, n)))[0].T + np.linalg.svd(rng.standard_normal((K, K)))[0][0]
    return k / np.linalg.norm(k, axis=1, keepdims=True)


def in_two_groups(n, K, gamma, helps):
    """Half of the keys lean towards an axis, half away from it; or all lie close to axes of their own."""
    k = np.eye(K)[:n] + (0.01 if not helps else 0.0)
    if helps:
        k[: n // 2, K - 1] += 1.2
        k[n // 2 :, K - 1] -= 1.2
    return k / np.sqrt((k**2).sum(axis=1))[:, None]


@pytest.mark.parametrize("answer", [rotated, in_two_groups])
@pytest.mark.parametrize("seed", SEEDS)
def test_any_keys_with_the_property_are_right(answer, seed):
    assert residual.keys.check(answer, seed=seed), residual.keys.check(answer, seed=seed)


def leaning(n, K, gamma, helps):
    k = np.hstack([np.diag(np.full(n, 0.4**0.5)), np.zeros((n, K - n))])
    k[:, n] = 0.6**0.5
    return k


@pytest.mark.parametrize(
    ("answer", "mistake", "sentence"),
    [
        (lambda n, K, gamma, helps: np.eye(n, K), "right angles in either case", "R is to help here"),
        (leaning, "alike in either case", "R is to do harm here"),
        (lambda n, K, gamma, helps: np.eye(1, K).repeat(n, axis=0), "one key for all", "No two keys may be nearly one"),
    ],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_wrong_keys_are_named(answer, mistake, sentence, seed):
    checked = residual.keys.check(answer, seed=seed)
    assert not checked
    assert checked.mistake == mistake, checked
    assert sentence in checked.message


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (lambda n, K, gamma, helps: np.zeros((n, K)), "Each key must have length 1; that of key 0 is 0"),
        (lambda n, K, gamma, helps: np.full((n, K), np.nan), "that of key 0 is nan"),
        (lambda n, K, gamma, helps: np.full((n, K), 1e200), "that of key 0 is inf"),
        (lambda n, K, gamma, helps: 2 * np.eye(n, K), "that of key 0 is 2"),
        (lambda n, K, gamma, helps: np.zeros((0, K)), "must be real numbers of shape"),
        (lambda n, K, gamma, helps: np.eye(K, n), "must be real numbers of shape"),
        (lambda n, K, gamma, helps: np.eye(n, K).astype(complex), "must be real numbers of shape"),
        (lambda n, K, gamma, helps: "keys", "must be real numbers of shape"),
        (lambda n, K, gamma, helps: [[1.0], [1.0, 0.0]], "does not read as keys"),
        (lambda n, K, gamma, helps: np.eye(n, K) * np.where(np.arange(n) % 2, -1, 1)[:, None], "R is to help"),
    ],
)
def test_what_cannot_be_keys_is_refused_with_a_sentence(answer, sentence):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checked = residual.keys.check(answer, seed=4)
    assert not checked
    assert sentence in checked.message


@pytest.mark.parametrize("seed", SEEDS)
def test_random_keys_do_neither(seed):
    """The thresholds ask for more than chance gives."""

    def drawn(n, K, gamma, helps):
        k = np.random.default_rng(seed).standard_normal((n, K))
        return k / np.linalg.norm(k, axis=1, keepdims=True)

    assert not residual.keys.check(drawn, seed=seed)


def test_the_error_that_keys_are_judged_by_is_the_one_that_drawn_values_have():
    """By hand, a pair of keys with cosine c: 20,000 draws of values, within five standard errors."""
    c, gamma = 0.6, 0.5
    k = np.array([[1.0, 0.0], [c, (1 - c * c) ** 0.5]])
    v = np.random.default_rng(0).standard_normal((20_000, 2))
    r = np.stack([v[:, 0], v[:, 1] - c * v[:, 0]], axis=1)
    plain = v @ np.array([[1, c], [c, 1]])
    both = plain + gamma**2 * r @ np.array([[1, c], [c, 1]])
    for expected, answered in zip(residual._errors(k, gamma), (plain, both), strict=True):
        each = ((answered - v) ** 2).mean(axis=1)
        assert abs(each.mean() - expected) < 5 * each.std() / len(each) ** 0.5
