"""Four operators that are nearly RLA or RDN, and are not: each differs in one place that is easily read past.

Each is a step from the memories before a token to those after it, with its read-out; letters and layout as in
`reference`, whose pieces it uses. `delta` is True for RDN and False for RLA. What the paper does (pp. 4-5; Listing 1,
p. 15) where these do something else:
    the error       v_t - k_t S_{t-1}                      from the old memory, not decayed
    a delta write   v_t - alpha_t k_t S_{t-1}              from the old memory, decayed
    the read-out    alpha_t q_t S_{t-1} + gamma_t q_t R_t  the old S, the new R, each with its gate
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from attnlab import draws
from attnlab.arrays import Array, Float, dial, one_of
from attnlab.dense import unit
from attnlab.residual import reference
from attnlab.residual.reference import error_target, recall, written

__all__ = ["NEAR_MISSES", "Case", "Difference", "NearMiss", "attention", "case", "differences"]

SEED = 0


# -- the four, a step each --


def post_update_read(S, R, q, k, v, alpha, beta, gamma, delta, clip):
    """Reads the new S beside the new R, and with no gate: o_t = q_t (S_t + R_t)."""
    r = error_target(v - recall(S, k), clip, "clip")
    R = written(R, k, r, alpha, gamma, delta=delta)
    S = written(S, k, v, alpha, beta, delta=delta)
    return S, R, recall(S, q) + recall(R, q)


def decayed_read(S, R, q, k, v, alpha, beta, gamma, delta, clip):
    """Takes the error from the decayed memory: r_t = clip(v_t - alpha_t k_t S_{t-1})."""
    r = error_target(v - alpha[..., None] * recall(S, k), clip, "clip")
    R = written(R, k, r, alpha, gamma, delta=delta)
    out = alpha[..., None] * recall(S, q) + gamma[..., None] * recall(R, q)
    return written(S, k, v, alpha, beta, delta=delta), R, out


def undecayed_subtraction(S, R, q, k, v, alpha, beta, gamma, delta, clip):
    """Both writes subtract what the memory recalled before it decayed: v_t - k_t S_{t-1} and r_t - k_t R_{t-1}."""
    r = error_target(v - recall(S, k), clip, "clip")
    R = written(R, k, r - recall(R, k), alpha, gamma, delta=False)
    out = alpha[..., None] * recall(S, q) + gamma[..., None] * recall(R, q)
    return written(S, k, v - recall(S, k), alpha, beta, delta=False), R, out


def two_calls_added(S, R, q, k, v, alpha, beta, gamma, delta, clip):
    """Calls the baseline twice, on values and on what it then gets wrong, and adds the outputs: every read, also that
    of the error, is of the new memory.
    """
    S = written(S, k, v, alpha, beta, delta=delta)
    r = error_target(v - recall(S, k), clip, "clip")
    R = written(R, k, r, alpha, gamma, delta=delta)
    return S, R, recall(S, q) + recall(R, q)


# -- what they change, and by how much --


class Case(NamedTuple):
    """Arguments of one call: unit queries and keys, normal values, gates between 0 and 1."""

    q: Float[Array, "B T H K"]
    k: Float[Array, "B T H K"]
    v: Float[Array, "B T H V"]
    retention: Float[Array, "B T H"]
    write: Float[Array, "B T H"]
    correction: Float[Array, "B T H"]


def case() -> Case:
    """The stored case: B, T, H, K, V = 2, 24, 3, 6, 5."""
    B, T, H, K, V = 2, 24, 3, 6, 5
    q, k = (unit(draws.normal(SEED, stream, B * T, H * K).reshape(B, T, H, K)) for stream in (300, 301))
    v = draws.normal(SEED, 302, B * T, H * V).reshape(B, T, H, V)
    alpha, beta, gamma = (draws.uniform(SEED, stream, B * T, H).reshape(B, T, H) for stream in (303, 304, 305))
    return Case(q, k, v, 0.6 + 0.4 * alpha, 0.2 + 0.8 * beta, 0.2 + 0.8 * gamma)


def _no_decay(x: Case) -> Case:
    return x._replace(retention=np.ones_like(x.retention))


def _turned_away(x: Case, correction: float) -> Case:
    """Queries without their part along the key of the same token, and one correction for all tokens."""
    q = x.q - np.sum(x.q * x.k, axis=-1, keepdims=True) * x.k
    return x._replace(q=q, correction=np.full_like(x.correction, correction))


class NearMiss(NamedTuple):
    """One operator, what it changes and where it is found. `agree` takes a case to one where it equals the paper's."""

    step: Callable[..., tuple[Array, Array, Array]]
    rules: tuple[str, ...]
    changes: str
    found: str
    agrees_where: str
    agree: Callable[[Case], Case]


NEAR_MISSES = {
    "post-update read": NearMiss(
        post_update_read,
        ("rla", "rdn"),
        "reads the new S, which already holds the token's own value, and neither read has a gate",
        "edifice, lib/edifice/attention/rla.ex (commit 89ec64e): the one public implementation we know",
        "no query sees its own key (q k = 0) and correction = 1",
        lambda x: _turned_away(x, 1.0),
    ),
    "decayed read": NearMiss(
        decayed_read,
        ("rla", "rdn"),
        "the error is that of the memory after its decay, so forgetting is counted as a mistake",
        "no code we know; it is the error that a gated delta write has at hand",
        "retention = 1",
        _no_decay,
    ),
    "undecayed subtraction": NearMiss(
        undecayed_subtraction,
        ("rdn",),
        "a delta write takes away more than is left after the decay",
        "edifice, the same file, its RDN, together with the post-update read",
        "retention = 1",
        _no_decay,
    ),
    "two calls added": NearMiss(
        two_calls_added,
        ("rla", "rdn"),
        "a kernel of the baseline returns reads of the new S: the error is the one left after the write, and the "
        "outputs come without gates",
        "public notes that plan RDN as Gated DeltaNet called twice",
        "nothing is corrected (correction = 0) and no query sees its own key (q k = 0)",
        lambda x: _turned_away(x, 0.0),
    ),
}


def attention(name: str, q: Any, k: Any, v: Any, retention: Any, write: Any, correction: Any, *, rule="rdn", clip=1.0):
    """o [B, T, H, V] of the near miss of this name; the other arguments as in `reference.attention`, gates [B, T, H].

    Raises ValueError for a name that is not in NEAR_MISSES, a rule that it does not change, or a negative clip.
    """
    near = NEAR_MISSES[one_of("name", name, tuple(NEAR_MISSES))]
    one_of("rule", rule, near.rules)
    dial("clip", clip, 0, np.inf)
    (B, T, H, K), V = q.shape, v.shape[-1]
    S, R = np.zeros((B, H, K, V)), np.zeros((B, H, K, V))
    out = np.zeros((B, T, H, V))
    for t in range(T):
        token = (x[:, t] for x in (q, k, v, retention, write, correction))
        S, R, out[:, t] = near.step(S, R, *token, rule == "rdn", clip)
    return out


class Difference(NamedTuple):
    """One near miss beside the paper's operator. Distances are the largest error over the largest entry of o."""

    name: str
    rule: str
    distance: float  # on the stored case
    changes: str
    found: str
    agrees_where: str
    distance_there: float  # on the stored case, changed so that the two should agree


def differences() -> list[Difference]:
    """By how much each near miss differs from RLA and RDN on the stored case, and where it would not."""
    rows = []
    for name, near in NEAR_MISSES.items():
        for rule in near.rules:
            apart, there = (_distance(name, rule, x) for x in (case(), near.agree(case())))
            rows.append(Difference(name, rule, apart, near.changes, near.found, near.agrees_where, there))
    return rows


def _distance(name: str, rule: str, x: Case) -> float:
    ours = reference.attention(*x, rule=rule)
    return float(np.abs(attention(name, *x, rule=rule) - ours).max() / np.abs(ours).max())
