"""Residual linear attention in NumPy float64, token by token: RLA and RDN of arXiv:2509.25223v1 (pp. 4-5; Listing 1,
p. 15), and the recurrences they are compared with, on one interface.

A memory M [K, V] recalls x M for a key or query x. S remembers values, R what S got wrong; r is the error of S on the
newest token, clipped to [-c, c]:
    r_t = clip(v_t - k_t S_{t-1})                              the old S, undecayed
    R_t = write(R_{t-1}, k_t, r_t),  S_t = write(S_{t-1}, k_t, v_t)
    o_t = alpha_t q_t S_{t-1} + gamma_t q_t R_t                the old S, the new R

Letters: alpha is `retention`, beta `write`, gamma `correction`, c `clip`. B batch, T tokens, H heads, K and V widths.
The transposed layout is the only thing that differs from the paper, whose S and R are [V, K].
"""

from typing import Any, NamedTuple

import numpy as np

from attnlab.arrays import Array, Float, as_float
from attnlab.dense import unit
from attnlab.residual.params import RULES, State, gates, segments

__all__ = ["State", "Trace", "attention", "error_target", "recall", "step", "trace", "written"]

Tokens = Float[Array, "B T H K"]
Values = Float[Array, "B T H V"]
Gate = Float[Array, "B T H"]
Memory = Float[Array, "B H K V"]


class Trace(NamedTuple):
    """Every intermediate of one run. Of a rule without residual R, error and residual stay 0, and `base_read` is o."""

    S: Float[Array, "B T H K V"]  # after every token
    R: Float[Array, "B T H K V"]
    error: Values  # v_t - k_t S_{t-1}
    residual: Values  # the same through the clip: r_t
    base_read: Values  # alpha_t q_t S_{t-1}
    correction_read: Values  # gamma_t q_t R_t
    out: Values


# -- the token loop --


def recall(memory: Memory, x: Float[Array, "B H K"]) -> Float[Array, "B H V"]:
    """What a memory answers to a key or a query."""
    return np.einsum("bhk,bhkv->bhv", x, memory)


def written(memory: Memory, key, value, alpha, rate, *, delta: bool) -> Memory:
    """The memory decayed, then written: the value itself, or where `delta` what the decayed memory lacks of it."""
    memory = alpha[..., None, None] * memory
    if delta:
        value = value - recall(memory, key)
    return memory + rate[..., None, None] * np.einsum("bhk,bhv->bhkv", key, value)


def error_target(error: Array, clip: float, target: str) -> Array:
    """What R is taught: the error within [-clip, clip], from Huber's loss, or tanh of it, from log-cosh (App. B)."""
    return np.tanh(error) if target == "log_cosh" else np.clip(error, -clip, clip)


def step(S, R, q, k, v, alpha, beta, gamma, *, rule="rdn", clip=1.0, target="clip", fitting=True, read_gates=True):
    """One token of any rule: (S, R, error, residual, base_read, correction_read) from q, k [B, H, K], v [B, H, V] and
    gates [B, H].

    Without `fitting` R holds the newest error alone (Table 4, p. 7); without `read_gates` o = S q + R q (Table 5,
    p. 8).
    """
    delta = RULES[rule].delta
    if not RULES[rule].residual:
        S = written(S, k, v, alpha, beta, delta=delta)
        return S, R, 0.0 * v, 0.0 * v, recall(S, q), 0.0 * v
    error = v - recall(S, k)
    r = error_target(error, clip, target)
    R = written(R, k, r, alpha, gamma, delta=delta) if fitting else np.einsum("bhk,bhv->bhkv", k, r)
    base_read, correction_read = recall(S, q), recall(R, q)
    if read_gates:
        base_read, correction_read = alpha[..., None] * base_read, gamma[..., None] * correction_read
    S = written(S, k, v, alpha, beta, delta=delta)
    return S, R, error, r, base_read, correction_read


# -- attention --


def attention(
    q: Tokens, k: Tokens, v: Values, retention: Any = None, write: Any = None, correction: Any = None, *,
    rule: str = "rdn", log_retention: Any = None, clip: float = 1.0, target: str = "clip", fitting: bool = True,
    read_gates: bool = True, normalize: bool = False, scale: float = 1.0, cu_seqlens: Any = None,
    state: State | None = None, return_state: bool = False, dtype: type = np.float64,
) -> Any:  # fmt: skip
    """o [B, T, H, V] of `api.attention`, whose arguments these are; computed in `dtype`."""
    run = _run(
        q, k, v, retention, write, correction, rule=rule, log_retention=log_retention, clip=clip, target=target,
        fitting=fitting, read_gates=read_gates, normalize=normalize, scale=scale, cu_seqlens=cu_seqlens, state=state,
        dtype=dtype,
    )  # fmt: skip
    out, state, _ = run
    return (out, state) if return_state else out


def trace(
    q: Tokens, k: Tokens, v: Values, retention: Any = None, write: Any = None, correction: Any = None, **options: Any
) -> Trace:
    """Every intermediate of `attention` with the same arguments; `return_state` is not among them."""
    _, _, steps = _run(q, k, v, retention, write, correction, **options, keep=True)
    return steps


def _run(
    q, k, v, retention, write, correction, *, rule="rdn", log_retention=None, normalize=False, scale=1.0,
    cu_seqlens=None, state=None, dtype=np.float64, keep=False, **switches,
):  # fmt: skip
    q, k, v = (as_float(x, dtype) for x in (q, k, v))
    if normalize:
        q, k = unit(q), unit(k)
    q = dtype(scale) * q
    (B, T, H, K), V = q.shape, v.shape[-1]
    alpha, beta, gamma = gates(rule, (B, T, H), retention, write, correction, log_retention, dtype)
    parts = segments(cu_seqlens, B, T)
    S, R = (np.zeros((len(parts), H, K, V), dtype) for _ in range(2))
    if state is not None:
        S[:] = as_float(state[0], dtype)
        R[:] = 0 if state[1] is None else as_float(state[1], dtype)
    out = np.zeros((B, T, H, V), dtype)
    kept = Trace(*(np.zeros((B, T, H, *tail), dtype) for tail in ((K, V), (K, V), (V,), (V,), (V,), (V,), (V,))))
    for n, (b, start, end) in enumerate(parts):
        row, here = slice(b, b + 1), slice(n, n + 1)
        for t in range(start, end):
            token = (x[row, t] for x in (q, k, v, alpha, beta, gamma))
            S[here], R[here], *rest = step(S[here], R[here], *token, rule=rule, **switches)
            out[row, t] = rest[2] + rest[3]
            if keep:
                for array, x in zip(kept, (S[here], R[here], *rest, out[row, t]), strict=True):
                    array[row, t] = x
    return out, State(S, R if RULES[rule].residual else None), kept
