"""RLA and RDN in rational arithmetic: one head, T tokens, arrays of Fraction or int objects, nothing rounded.

Composed of whole memories instead of token steps: all of S, then the errors, then all of R. That this is the recurrence
is the claim `rla.decoupled`. Letters and layout as in `reference`; a memory [K, V] recalls x M for a key or query x.
"""

from fractions import Fraction

import numpy as np

from attnlab.arrays import Array, Float

__all__ = ["attention", "clipped", "fractions", "memories", "recalled"]

Exact = Array  # dtype object, filled with Fractions or ints


def fractions(numerators: Array, denominator: int = 1) -> Exact:
    """An array of whole numbers over one denominator."""
    return np.vectorize(lambda n: Fraction(int(n), denominator), otypes=[object])(numerators)


def memories(
    k: Float[Exact, "T K"], x: Float[Exact, "T V"], alpha: Float[Exact, " T"], rate: Float[Exact, " T"], *, delta: bool
) -> Float[Exact, "T+1 K V"]:
    """The memory that is written x at the keys k, from the empty one to that after the last token."""
    held = [np.full((k.shape[1], x.shape[1]), Fraction(0), dtype=object)]
    for t in range(len(k)):
        left = alpha[t] * held[-1]
        told = x[t] - k[t] @ left if delta else x[t]
        held.append(left + rate[t] * np.outer(k[t], told))
    return np.array(held, dtype=object)


def recalled(held: Float[Exact, "T K V"], x: Float[Exact, "T K"]) -> Float[Exact, "T V"]:
    """x_t M_t for each token."""
    return np.array([x[t] @ held[t] for t in range(len(x))], dtype=object)


def clipped(error: Float[Exact, "T V"], clip: Fraction) -> Float[Exact, "T V"]:
    """The error within [-clip, clip]."""
    return np.vectorize(lambda e: min(max(e, -clip), clip), otypes=[object])(error)


def attention(
    q: Float[Exact, "T K"],
    k: Float[Exact, "T K"],
    v: Float[Exact, "T V"],
    alpha: Float[Exact, " T"],
    beta: Float[Exact, " T"],
    gamma: Float[Exact, " T"],
    *,
    delta: bool,
    clip: Fraction,
) -> Float[Exact, "T V"]:
    """o [T, V] of RDN where `delta`, else of RLA."""
    S = memories(k, v, alpha, beta, delta=delta)
    r = clipped(v - recalled(S[:-1], k), clip)
    R = memories(k, r, alpha, gamma, delta=delta)
    return alpha[:, None] * recalled(S[:-1], q) + gamma[:, None] * recalled(R[1:], q)
