"""Solutions of the exercises on RLA and RDN, and the usual mistakes."""

import numpy as np

from attnlab.exercises.exercise import Mistake

# -- a step -----------------------------------------------------------------------------------------------------------


def rla_step(S, R, q, k, v, alpha, beta, gamma, clip):
    """The error of the old S; both memories; the old S and the new R read (Sec. 3.4, p. 5; Listing 1, p. 15)."""
    r = np.clip(v - k @ S, -clip, clip)
    R = alpha * R + gamma * np.outer(k, r)
    out = alpha * q @ S + gamma * q @ R
    S = alpha * S + beta * np.outer(k, v)
    return out, S, R


def _of_the_decayed_memory(S, R, q, k, v, alpha, beta, gamma, clip):
    r = np.clip(v - alpha * k @ S, -clip, clip)
    R = alpha * R + gamma * np.outer(k, r)
    return alpha * q @ S + gamma * q @ R, alpha * S + beta * np.outer(k, v), R


def _of_the_new_memory(S, R, q, k, v, alpha, beta, gamma, clip):
    S = alpha * S + beta * np.outer(k, v)
    R = alpha * R + gamma * np.outer(k, np.clip(v - k @ S, -clip, clip))
    return alpha * q @ S + gamma * q @ R, S, R


def _the_new_S_read(S, R, q, k, v, alpha, beta, gamma, clip):
    _, S, R = rla_step(S, R, q, k, v, alpha, beta, gamma, clip)
    return alpha * q @ S + gamma * q @ R, S, R


def _the_old_R_read(S, R, q, k, v, alpha, beta, gamma, clip):
    return alpha * q @ S + gamma * q @ R, *rla_step(S, R, q, k, v, alpha, beta, gamma, clip)[1:]


def _the_value_clipped(S, R, q, k, v, alpha, beta, gamma, clip):
    R = alpha * R + gamma * np.outer(k, np.clip(v, -clip, clip) - k @ S)
    return alpha * q @ S + gamma * q @ R, alpha * S + beta * np.outer(k, v), R


def _not_clipped(S, R, q, k, v, alpha, beta, gamma, clip):
    return rla_step(S, R, q, k, v, alpha, beta, gamma, np.inf)


def _read_without_gates(S, R, q, k, v, alpha, beta, gamma, clip):
    _, new_S, R = rla_step(S, R, q, k, v, alpha, beta, gamma, clip)
    return q @ S + q @ R, new_S, R


def _correction_once(S, R, q, k, v, alpha, beta, gamma, clip):
    _, new_S, R = rla_step(S, R, q, k, v, alpha, beta, gamma, clip)
    return alpha * q @ S + q @ R, new_S, R


def _as_in_the_paper(S, R, q, k, v, alpha, beta, gamma, clip):
    out, S, R = rla_step(S, R, q, k, v, alpha, beta, gamma, clip)
    return out, S.T, R.T


# -- the sum over past errors -----------------------------------------------------------------------------------------


def error_weights(q, k, alpha, gamma):
    """gamma_t gamma_i (alpha_{i+1} ... alpha_t) (q_t k_i), the decay multiplied row after row (of Sec. 3.4, p. 5)."""
    T = len(q)
    decay = np.eye(T)
    for t in range(1, T):
        decay[t, :t] = alpha[t] * decay[t - 1, :t]
    return gamma[:, None] * gamma * decay * (q @ k.T)


def _decay_from_the_error_on(q, k, alpha, gamma):
    return error_weights(q, k, alpha, gamma) * alpha


def _decay_before_the_query(q, k, alpha, gamma):
    T = len(q)
    decay = np.eye(T)
    for t in range(1, T):
        decay[t, :t] = np.where(np.arange(t) == t - 1, 1, alpha[t - 1] * decay[t - 1, :t])
    return gamma[:, None] * gamma * decay * (q @ k.T)


def _without_the_newest(q, k, alpha, gamma):
    return np.tril(error_weights(q, k, alpha, gamma), -1)


def _read_without_a_gate(q, k, alpha, gamma):
    return error_weights(q, k, alpha, gamma) / gamma[:, None]


def _written_without_a_gate(q, k, alpha, gamma):
    return error_weights(q, k, alpha, gamma) / gamma


def _queries_as_columns(q, k, alpha, gamma):
    return error_weights(q, k, alpha, gamma).T


# -- a run ------------------------------------------------------------------------------------------------------------


def rdn(q, k, v, alpha, beta, gamma, clip, S, R):
    """Both memories by the delta rule, token by token, from those that an earlier segment left (Sec. 3.4, p. 5)."""
    out = np.zeros(v.shape)
    for t in range(len(q)):
        r = np.clip(v[t] - k[t] @ S, -clip, clip)
        R = alpha[t] * R + gamma[t] * np.outer(k[t], r - alpha[t] * k[t] @ R)
        out[t] = alpha[t] * q[t] @ S + gamma[t] * q[t] @ R
        S = alpha[t] * S + beta[t] * np.outer(k[t], v[t] - alpha[t] * k[t] @ S)
    return out, S, R


def _run_of(step):
    """A run made of steps (S, R, q, k, v, alpha, beta, gamma, clip) -> (out, S, R)."""

    def run(q, k, v, alpha, beta, gamma, clip, S, R):
        out = np.zeros(v.shape)
        for t in range(len(q)):
            out[t], S, R = step(S, R, q[t], k[t], v[t], alpha[t], beta[t], gamma[t], clip)
        return out, S, R

    return run


def _delta(M, k, x, alpha, rate):
    return alpha * M + rate * np.outer(k, x - alpha * k @ M)


def _undecayed_subtraction(S, R, q, k, v, alpha, beta, gamma, clip):
    R = alpha * R + gamma * np.outer(k, np.clip(v - k @ S, -clip, clip) - k @ R)
    return alpha * q @ S + gamma * q @ R, alpha * S + beta * np.outer(k, v - k @ S), R


def _R_told_the_residual(S, R, q, k, v, alpha, beta, gamma, clip):
    R = alpha * R + gamma * np.outer(k, np.clip(v - k @ S, -clip, clip))
    return alpha * q @ S + gamma * q @ R, _delta(S, k, v, alpha, beta), R


def _decayed_error(S, R, q, k, v, alpha, beta, gamma, clip):
    R = _delta(R, k, np.clip(v - alpha * k @ S, -clip, clip), alpha, gamma)
    return alpha * q @ S + gamma * q @ R, _delta(S, k, v, alpha, beta), R


def _S_first(S, R, q, k, v, alpha, beta, gamma, clip):
    S = _delta(S, k, v, alpha, beta)
    R = _delta(R, k, np.clip(v - k @ S, -clip, clip), alpha, gamma)
    return alpha * q @ S + gamma * q @ R, S, R


def _new_S_out(S, R, q, k, v, alpha, beta, gamma, clip):
    R = _delta(R, k, np.clip(v - k @ S, -clip, clip), alpha, gamma)
    S = _delta(S, k, v, alpha, beta)
    return alpha * q @ S + gamma * q @ R, S, R


def _one_rate(S, R, q, k, v, alpha, beta, gamma, clip):
    R = _delta(R, k, np.clip(v - k @ S, -clip, clip), alpha, beta)
    return alpha * q @ S + gamma * q @ R, _delta(S, k, v, alpha, beta), R


def _from_nothing(q, k, v, alpha, beta, gamma, clip, S, R):
    return rdn(q, k, v, alpha, beta, gamma, clip, 0 * S, 0 * R)


# -- near misses ------------------------------------------------------------------------------------------------------


def which(q, k, v, alpha, beta, gamma, clip, outs):
    """All five on the same tokens, and for each of outs the nearest (Sec. 3.4, p. 5, and four near misses)."""
    of_each = np.zeros((5, *v.shape))
    for number in range(5):
        S = R = np.zeros((k.shape[1], v.shape[1]))
        for t in range(len(q)):
            left_S, left_R = alpha[t] * S, alpha[t] * R
            taken_S, taken_R = (S, R) if number == 3 else (left_S, left_R)
            new_S = left_S + beta[t] * np.outer(k[t], v[t] - k[t] @ taken_S)
            asked = {2: left_S, 4: new_S}.get(number, S)
            r = np.clip(v[t] - k[t] @ asked, -clip, clip)
            R = left_R + gamma[t] * np.outer(k[t], r - k[t] @ taken_R)
            read = q[t] @ (new_S + R) if number in (1, 4) else q[t] @ (left_S + gamma[t] * R)
            of_each[number, t], S = read, new_S
    return np.abs(outs[:, None] - of_each).max(axis=(2, 3)).argmin(axis=1)


def _by_the_first_token(q, k, v, alpha, beta, gamma, clip, outs):
    return which(q[:1], k[:1], v[:1], alpha, beta, gamma, clip, outs[:, :1])


def _by_the_second_call_on_old_errors(q, k, v, alpha, beta, gamma, clip, outs):
    """Number 4 is then number 1: its outputs have nothing of their own, and go to what lies nearest."""
    T, V = v.shape
    read = np.zeros((5, T, V))
    for number in range(4):
        S = R = np.zeros((k.shape[1], V))
        for t in range(T):
            r = np.clip(v[t] - (alpha[t] if number == 2 else 1) * k[t] @ S, -clip, clip)
            faded = 1 if number == 3 else alpha[t]
            new_S = alpha[t] * S + beta[t] * np.outer(k[t], v[t] - faded * k[t] @ S)
            R = alpha[t] * R + gamma[t] * np.outer(k[t], r - faded * k[t] @ R)
            read[number, t] = q[t] @ (new_S + R) if number == 1 else alpha[t] * q[t] @ S + gamma[t] * q[t] @ R
            S = new_S
    return np.abs(outs[:, None] - read[:4]).max(axis=(2, 3)).argmin(axis=1)


# -- gates ------------------------------------------------------------------------------------------------------------


def gates(alpha, beta):
    """write = 0, so that S stays empty and r = v; then R must give what sGLA's memory gives (of Sec. 3.4, p. 5).

    Value i counts correction_t correction_i times RLA's decay at token t, and is to count beta_i times sGLA's. With the
    roots of beta that leaves sqrt(beta_i / beta_t) for the decay to bring: a product over the tokens from i + 1 to t.
    """
    before = np.concatenate([beta[:1], beta[:-1]])
    return alpha * np.sqrt(before / beta), np.zeros_like(beta), np.sqrt(beta)


def _its_own(alpha, beta):
    return alpha, beta, np.zeros_like(beta)


def _with_S_at_work(alpha, beta):
    return alpha, beta, np.sqrt(beta)


def _gate_counted_once(alpha, beta):
    return alpha, np.zeros_like(beta), beta


def _the_same_decay(alpha, beta):
    return alpha, np.zeros_like(beta), np.sqrt(beta)


def _ratio_upside_down(alpha, beta):
    before = np.concatenate([beta[:1], beta[:-1]])
    return alpha * np.sqrt(beta / before), np.zeros_like(beta), np.sqrt(beta)


# -- keys -------------------------------------------------------------------------------------------------------------


def keys(n, K, gamma, helps):
    """Keys with one cosine to each other: 0 where R is to do harm, and 0.6 where it is to help.

    At right angles S alone is right, and every error is the whole value: R adds it once more. Keys that resemble each
    other make S recall what the others wrote; that is most of the errors, and R takes part of it back.
    """
    cosine = 0.6 if helps else 0.0
    k = np.zeros((n, K))
    k[:, :n] = np.sqrt(1 - cosine) * np.eye(n)
    k[:, n] = np.sqrt(cosine)
    return k


def _always_at_right_angles(n, K, gamma, helps):
    return np.eye(K)[:n]


def _always_alike(n, K, gamma, helps):
    return keys(n, K, gamma, True)


def _one_key(n, K, gamma, helps):
    return np.tile(np.eye(K)[0], (n, 1))


# -- mistakes ---------------------------------------------------------------------------------------------------------

MISTAKES = {
    "rla_step": (
        Mistake(
            "the error of the decayed S",
            "r is v - k S, before the memory decays. Forgetting would count as a mistake otherwise.",
            _of_the_decayed_memory,
        ),
        Mistake(
            "S written first",
            "the error and the output ask the S from before the token. The new S already holds v.",
            _of_the_new_memory,
        ),
        Mistake("the new S read", "the output reads the old S; what is new comes from R alone.", _the_new_S_read),
        Mistake("the old R read", "the output reads R after this token's error was added.", _the_old_R_read),
        Mistake("the value clipped", "what is clipped is the whole error, v - k S, and not v.", _the_value_clipped),
        Mistake("not clipped", "what R is taught is the error within -clip and clip.", _not_clipped),
        Mistake(
            "read without gates",
            "alpha and gamma gate the two reads too. Without them it is the variant of Table 5, p. 8.",
            _read_without_gates,
        ),
        Mistake(
            "gamma counted once",
            "gamma is a gate of the write of R and of its read: the newest error comes with gamma².",
            _correction_once,
        ),
        Mistake("the paper's layout", "S and R are [K, V] here, the transpose of the paper's.", _as_in_the_paper),
    ),
    "error_weights": (
        Mistake(
            "the decay of the error's own token",
            "error i is written after token i has decayed the memory: the product begins with alpha[i + 1].",
            _decay_from_the_error_on,
        ),
        Mistake(
            "no decay at the query's token",
            "R decays at token t before it is read: the product ends with alpha[t].",
            _decay_before_the_query,
        ),
        Mistake(
            "the newest error left out",
            "the output reads the new R, so the diagonal counts, with gamma_t² (q_t k_t).",
            _without_the_newest,
        ),
        Mistake("the gate of the read left out", "gamma_t gates what is read of R at token t.", _read_without_a_gate),
        Mistake("the gate of the write left out", "gamma_i gated what token i wrote.", _written_without_a_gate),
        Mistake("errors as rows", "a row of w is a query, and a column an error.", _queries_as_columns),
    ),
    "rdn": (
        Mistake(
            "undecayed subtraction",
            "a delta write subtracts what is left after the decay, alpha k S and alpha k R. "
            "The error r alone asks S undecayed.",
            _run_of(_undecayed_subtraction),
        ),
        Mistake(
            "R told the residual",
            "R is written by the delta rule too: not r goes in, but r - alpha k R.",
            _run_of(_R_told_the_residual),
        ),
        Mistake("the error of the decayed S", "r is v - k S, before the memory decays.", _run_of(_decayed_error)),
        Mistake("S written first", "the error and the output ask the S from before the token.", _run_of(_S_first)),
        Mistake("the new S read", "the output reads the old S and the new R.", _run_of(_new_S_out)),
        Mistake("R written with beta", "the write of R has a gate of its own, gamma.", _run_of(_one_rate)),
        Mistake("begun anew", "S and R come from an earlier segment: begin with them, not with 0.", _from_nothing),
    ),
    "which": (
        Mistake(
            "by the first token",
            "the memories are empty then, and numbers 0, 2 and 3 agree. Look at what comes later.",
            _by_the_first_token,
        ),
        Mistake(
            "the second call on errors of the old S",
            "in number 4 the first call has written already when errors are taken: r = clip(v - k S'). Otherwise it "
            "would be number 1.",
            _by_the_second_call_on_old_errors,
        ),
    ),
    "gates": (
        Mistake(
            "sGLA's own gates, and no correction",
            "RLA's output reads the old S. The newest value can come from R alone.",
            _its_own,
        ),
        Mistake(
            "S at work",
            "with a write above 0 the errors contain what S recalls, which sGLA does not subtract.",
            _with_S_at_work,
        ),
        Mistake(
            "the gate counted once",
            "correction comes in twice, when R is written and when it is read: the newest value has its square.",
            _gate_counted_once,
        ),
        Mistake(
            "the same decay",
            "value i is read with the correction of token t, not with its own: the retention has to make up for it.",
            _the_same_decay,
        ),
        Mistake(
            "the ratio upside down",
            "the read at t brings correction_t where correction_i is wanted: the decay must bring correction_i / "
            "correction_t.",
            _ratio_upside_down,
        ),
    ),
    "keys": (
        Mistake(
            "right angles in either case",
            "S alone is right then, and R can only spoil it. It helps where keys resemble each other.",
            _always_at_right_angles,
        ),
        Mistake(
            "alike in either case",
            "S alone is wrong then, and R helps. It does harm where S alone is right.",
            _always_alike,
        ),
        Mistake("one key for all", "nobody could tell the pairs apart.", _one_key),
    ),
}
