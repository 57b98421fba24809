"""What a memory can hold before any training: the exact mean square error of recalling n random pairs (this project).

n keys are drawn independently and uniformly from the unit sphere of R^K; the entries of their values are independent,
with mean 0 and variance 1. Each pair is one token, the gates are constants, nothing is clipped. Afterwards every key
is put to the memory, or to both, and the answers are mixed by constants, g_S k S + g_R k R, as read-out gates do. The
error is E|answer - v|^2 / V; answering 0 has error 1.

Why it can be had. Write X for the stack of the memories, P = k_t k_t^T for the new key, and u_t for its value. Every
rule is

    X_t = (A + B P) X_{t-1} + c k_t u_t^T

with small matrices A, B and a vector c of the gates: linear in X, with a P independent of X. Fix one pair (k, v). By
symmetry under rotations that leave k alone, E[X_a X_b^T]/V = p_ab k k^T + s_ab (I - k k^T) and E[X_a v]/V = m_a k. With

    E[P M] = M/K,        E[P M P] = (2 M + tr(M) I) / (K (K + 2))        for a fixed symmetric M

and T = p + (K - 1) s, later pairs change these numbers by

    p -> A p A' + (A p B' + B p A')/K + B (2 p + T) B' / (K (K + 2)) + c c'/K
    s -> the same with s for p, and the same T
    m -> (A + B/K) m

and the pair itself, P = k k^T, by p -> (A + B) p (A + B)' + c c', s -> A s A', m -> c, from p = s and m = 0. The error
is g'p g - 2 g'm + 1. For linear attention this is (n - 1)/K at g = 1, and (n - 1)/(n - 1 + K) at the best g; a memory
under the delta rule keeps (1 - write/K)^age of a value. With a clip the memory of errors is no longer linear, and no
exact curve is known to us: `capacity.py` measures it.

No choice of constants makes two memories with the same keys better than one least-squares fit: g_S k S + g_R k R is k
times ONE K x V matrix, and no such matrix recalls n random values with a mean error below 1 - K/n. The bound holds for
every rule, with a clip too, since it holds whatever the memories are.

Letters: K `key_width`, n `pairs`; alpha `retention`, beta `write`, gamma `correction`.
"""

from typing import NamedTuple

import numpy as np

from attnlab.arrays import Array, Float, dial, one_of
from attnlab.residual.params import LARGEST_WRITE, RULES

__all__ = ["Moments", "best_read", "error", "least_error", "linear_error", "moments"]


class Moments(NamedTuple):
    """Of what the M memories of a rule answer to the key of each of n pairs, oldest first; values have variance 1."""

    second: Float[Array, "N M M"]  # E[(k X_a) . (k X_b)] / V
    cross: Float[Array, "N M"]  # E[(k X_a) . v] / V


def moments(
    rule: str,
    pairs: int,
    key_width: int,
    *,
    retention: float = 1.0,
    write: float = 1.0,
    correction: float | None = None,
) -> Moments:
    """The exact moments after `pairs` tokens with constant gates and no clip. A gate that the rule does not have is 1;
    a correction that is not given is the write.

    Raises ValueError naming the argument.
    """
    A, B, c = _linear(rule, retention, write, write if correction is None else correction)
    K = dial("key_width", key_width, 1, 2**30, integer=True)
    n = dial("pairs", pairs, 1, 2**20, integer=True)
    M = len(c)
    before = np.zeros((M, M))  # p = s of a key that was not written
    p, s, m = np.zeros((n, M, M)), np.zeros((n, M, M)), np.zeros((n, M))
    fresh = np.outer(c, c) / K
    for i in range(n):
        old = slice(0, i)
        trace = p[old] + (K - 1) * s[old]
        p[old], s[old] = (_passed(x, trace, A, B, K) + fresh for x in (p[old], s[old]))
        m[old] = m[old] @ (A + B / K).T
        p[i] = (A + B) @ before @ (A + B).T + np.outer(c, c)
        s[i], m[i] = A @ before @ A.T, c
        before = _passed(before, K * before, A, B, K) + fresh
    return Moments(p, m)


def best_read(of: Moments) -> Float[Array, " M"]:
    """The constants g that mix the memories' answers with the least error over all pairs. The smallest ones, where
    several do.
    """
    return np.linalg.pinv(of.second.mean(axis=0), rcond=1e-12, hermitian=True) @ of.cross.mean(axis=0)


def error(of: Moments, read: Float[Array, " M"] | None = None) -> Float[Array, " N"]:
    """The mean square error of recalling each pair, oldest first; `read` are the constants g, the best ones unless
    given.
    """
    g = best_read(of) if read is None else np.asarray(read, dtype=np.float64)
    return np.einsum("a,nab,b->n", g, of.second, g) - 2 * of.cross @ g + 1


def linear_error(pairs: Float[Array, " N"], key_width: int, *, gained: bool = True) -> Float[Array, " N"]:
    """Linear attention in closed form: x = (n - 1)/K, the variance of the cross-talk, and x/(1 + x) after the best
    gain.
    """
    x = (np.asarray(pairs, dtype=np.float64) - 1) / key_width
    return x / (1 + x) if gained else x


def least_error(pairs: Float[Array, " N"], key_width: int) -> Float[Array, " N"]:
    """The least mean error with which any K x V matrix, chosen with the pairs in view, recalls n of them: 1 - K/n, and
    0 up to n = K. Expected over values; fitting by least squares reaches it.
    """
    return np.maximum(0.0, 1 - key_width / np.asarray(pairs, dtype=np.float64))


def _passed(x: Array, trace: Array, A: Array, B: Array, K: int) -> Array:
    """What a token with another key makes of p or s, its own write left out."""
    once = A @ x @ B.T
    return A @ x @ A.T + (once + B @ x @ A.T) / K + B @ (2 * x + trace) @ B.T / (K * (K + 2))


def _linear(rule: str, retention: float, write: float, correction: float) -> tuple[Array, Array, Array]:
    """A, B and c of X_t = (A + B P) X_{t-1} + c k_t v_t^T."""
    has = RULES[one_of("rule", rule, tuple(RULES))]
    alpha = dial("retention", retention, 0, 1) if "retention" in has.gates else 1.0
    beta = dial("write", write, 0, LARGEST_WRITE) if "write" in has.gates else 1.0
    gamma = dial("correction", correction, 0, LARGEST_WRITE)
    delta = alpha if has.delta else 0.0
    if not has.residual:
        return np.array([[alpha]]), np.array([[-delta * beta]]), np.array([beta])
    # the error v - k S reads S before it decays
    return alpha * np.eye(2), np.array([[-delta * beta, 0.0], [-gamma, -delta * gamma]]), np.array([beta, gamma])
