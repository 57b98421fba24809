"""Low-rank key-value attention in NumPy float64: Eqs. 4-7 of arXiv:2601.11471v3 (pp. 3-4).

All heads share keys and values, and each adds to them what a few latents say:
    K_h = K_s + R_h^K (B_h^K)^T,  V_h = V_s + R_h^V (B_h^V)^T      Eqs. 4-5: implied, never stored
    logits = q_h K_s^T + (q_h B_h^K) (R_h^K)^T                     Eq. 6, times 1/sqrt(K); softmax gives a_h
    o_h = a_h V_s + (a_h R_h^V) (B_h^V)^T                          Eq. 7

What a position turns (P_t), and what a norm divides by, the paper leaves open; here it is said:
    rope, latent_rope    P_t K_s,t and P~_t R_h,t as they are read: exact where P_t B = B P~_t
    rope alone           P_t (K_s,t + B R_h,t), expanded as it is read: exact for any B, and the price
    k_scale              one number a key and head, which multiplies its logit: 1 / rms(K_h) of a norm after the sum

B batch, T queries, S keys, H query heads, G shared heads, K and V widths, R and Rv ranks. The newest query stands at
the last key.
"""

from typing import Any, NamedTuple

import numpy as np

from attnlab.arrays import Array, Float, as_float
from attnlab.lrkv.params import Rope, angles, edges, pairs

__all__ = ["Trace", "attention", "expand", "expanded_attention", "seen", "trace", "turn"]


class Trace(NamedTuple):
    """Every intermediate of one run; rows of a query that sees no key are 0."""

    shared_logits: Float[Array, "B H T S"]  # scale k_scale q K_s, of every key
    residual_logits: Float[Array, "B H T S"]  # scale k_scale (q B) R, of every key
    weights: Float[Array, "B H T S"]  # the softmax over visible keys: a_h
    shared_out: Float[Array, "B T H V"]  # a_h V_s
    latent_out: Float[Array, "B T H Rv"]  # a_h R_h, before B_h
    lse: Float[Array, "B T H"]  # log of the softmax's denominator; -inf where nothing is seen
    out: Float[Array, "B T H V"]


# -- keys and values --


def turn(x: Float[Array, "B S H K"], rope: Rope, positions: Float[Array, "B S"]) -> Float[Array, "B S H K"]:
    """P_t x: every plane of every row turned by its position."""
    angle = angles(rope, positions)[..., None, :]  # float64, a head's axis before the planes'
    if angle.ndim == 3:  # the same positions for all rows of the batch
        angle = angle[None]
    first, second = pairs(rope)
    cos, sin = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def expand(
    shared: Float[Array, "B S G K"], latent: Float[Array, "B S H R"], factor: Float[Array, "H K R"]
) -> Float[Array, "B S H K"]:
    """K_h = K_s + R_h B_h^T, or V_h (Eqs. 4-5, p. 3)."""
    return of_heads(shared, latent.shape[2]) + np.einsum("bshr,hkr->bshk", latent, factor)


def of_heads(shared: Float[Array, "B S G K"], heads: int) -> Float[Array, "B S H K"]:
    """What each head reads of the shared: neighbours the same."""
    return np.repeat(shared, heads // max(shared.shape[2], 1), axis=2)


def seen(T: int, S: int, starts: Any, ends: Any, *, causal: bool, B: int = 1) -> Array:
    """Which keys each query sees, [B, T, S]: those from starts to ends, and where causal none after its own place."""
    start, end = (edge[:, None, None] for edge in edges(starts, ends, B, S))
    query, key = np.arange(T)[None, :, None], np.arange(S)[None, None, :]
    newest = end - T + query if causal else end - 1
    return (key >= start) & (key <= newest)


# -- attention --


def attention(
    q: Float[Array, "B T H K"], k_shared: Float[Array, "B S G K"], v_shared: Float[Array, "B S G V"],
    k_latent: Any = None, v_latent: Any = None, k_factor: Any = None, v_factor: Any = None, *,
    return_lse: bool = False, dtype: type = np.float64, **options: Any,
) -> Any:  # fmt: skip
    """o [B, T, H, V] of `api.attention`, whose arguments these are; computed in `dtype`."""
    run = trace(q, k_shared, v_shared, k_latent, v_latent, k_factor, v_factor, dtype=dtype, **options)
    return (run.out, run.lse) if return_lse else run.out


def trace(
    q, k_shared, v_shared, k_latent=None, v_latent=None, k_factor=None, v_factor=None, *, q_residual=None,
    k_scale=None, rope=None, latent_rope=None, positions=None, starts=None, ends=None, causal=True, scale=None,
    dtype=np.float64,
) -> Trace:  # fmt: skip
    """Every intermediate of `attention` with the same arguments."""
    q, k_shared, v_shared, k_latent, v_latent, k_factor, v_factor, k_scale = _arrays(
        q, k_shared, v_shared, k_latent, v_latent, k_factor, v_factor, k_scale, starts, ends, dtype
    )
    (B, T, H, K), S = q.shape, k_shared.shape[1]
    scale = dtype(max(K, 1) ** -0.5 if scale is None else scale)
    residual = q if q_residual is None else as_float(q_residual, dtype)
    if rope is not None and latent_rope is None:  # expanded as they are read
        k_h = turn(expand(k_shared, k_latent, k_factor), rope, positions)
        shared = np.einsum("bthk,bshk->bhts", q, turn(of_heads(k_shared, H), rope, positions))
        added = np.einsum("bthk,bshk->bhts", q, k_h) - shared
    else:
        if rope is not None:
            k_shared, k_latent = turn(k_shared, rope, positions), turn(k_latent, latent_rope, positions)
        shared = np.einsum("bthk,bshk->bhts", q, of_heads(k_shared, H))
        added = np.einsum("bthr,bshr->bhts", np.einsum("bthk,hkr->bthr", residual, k_factor), k_latent)  # Eq. 6
    shared, added = (scale * k_scale.transpose(0, 2, 1)[:, :, None] * part for part in (shared, added))
    weights, lse = softmax(shared + added, seen(T, S, starts, ends, causal=causal, B=B)[:, None])
    shared_out = np.einsum("bhts,bshv->bthv", weights, of_heads(v_shared, H))
    latent_out = np.einsum("bhts,bshr->bthr", weights, v_latent)
    out = shared_out + np.einsum("bthr,hvr->bthv", latent_out, v_factor)  # Eq. 7
    return Trace(shared, added, weights, shared_out, latent_out, lse.transpose(0, 2, 1), out)


def softmax(logits: Float[Array, "B H T S"], visible: Array) -> tuple[Array, Array]:
    """(weights, lse) over the visible keys; where there is none, 0 and -inf."""
    logits = np.where(visible, logits, -np.inf)
    top = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isneginf(top), 0.0, top)  # NaN stays
    powers = np.exp(logits - top)
    total = powers.sum(axis=-1, keepdims=True)
    weights = np.divide(powers, total, out=np.zeros_like(powers), where=total != 0)
    with np.errstate(divide="ignore"):
        return weights, (top + np.log(total))[..., 0]


def expanded_attention(
    q, k_shared, v_shared, k_latent=None, v_latent=None, k_factor=None, v_factor=None, *, q_residual=None,
    k_scale=None, rope=None, latent_rope=None, positions=None, starts=None, ends=None, causal=True, scale=None,
    dtype=np.float64,
) -> Float[Array, "B T H V"]:  # fmt: skip
    """The same, with every key and value of every head made first, as in training (p. 3): what factored reading has
    to equal. Keys turn whole, so that `latent_rope` says here only that they do; a still one (`STILL`) says that the
    residual part does not turn.
    """
    q, k_shared, v_shared, k_latent, v_latent, k_factor, v_factor, k_scale = _arrays(
        q, k_shared, v_shared, k_latent, v_latent, k_factor, v_factor, k_scale, starts, ends, dtype
    )
    (B, T, H, K), S = q.shape, k_shared.shape[1]
    scale = dtype(max(K, 1) ** -0.5 if scale is None else scale)
    residual = q if q_residual is None else as_float(q_residual, dtype)
    shared, added = of_heads(k_shared, H), np.einsum("bshr,hkr->bshk", k_latent, k_factor)
    if rope is not None:
        shared = turn(shared, rope, positions)
        added = added if latent_rope is not None and not len(latent_rope.frequency) else turn(added, rope, positions)
    logits = np.einsum("bthk,bshk->bhts", q, shared) + np.einsum("bthk,bshk->bhts", residual, added)
    logits = scale * k_scale.transpose(0, 2, 1)[:, :, None] * logits
    weights, _ = softmax(logits, seen(T, S, starts, ends, causal=causal, B=B)[:, None])
    return np.einsum("bhts,bshv->bthv", weights, expand(v_shared, v_latent, v_factor))


def _arrays(q, k_shared, v_shared, k_latent, v_latent, k_factor, v_factor, k_scale, starts, ends, dtype):
    """All of them in `dtype`, with rank 0 and a scale of 1 where none was given, and 0 wherever nothing is read."""
    q, k_shared, v_shared = (as_float(x, dtype) for x in (q, k_shared, v_shared))
    (B, _, H, K), (S, _, V) = q.shape, v_shared.shape[1:]
    k_latent, v_latent = (
        np.zeros((B, S, H, 0), dtype) if x is None else as_float(x, dtype) for x in (k_latent, v_latent)
    )
    k_factor, v_factor = (
        np.zeros((H, width, 0), dtype) if x is None else as_float(x, dtype)
        for x, width in ((k_factor, K), (v_factor, V))
    )
    k_scale = np.ones((B, S, H), dtype) if k_scale is None else as_float(k_scale, dtype)
    if starts is not None or ends is not None:
        outside = ~seen(1, S, starts, ends, causal=False, B=B)[:, 0]  # may hold NaN, and 0 times NaN is NaN
        k_shared, v_shared, k_latent, v_latent, k_scale = (
            np.where(outside.reshape(B, S, *[1] * (x.ndim - 2)), dtype(0), x)
            for x in (k_shared, v_shared, k_latent, v_latent, k_scale)
        )
    return q, k_shared, v_shared, k_latent, v_latent, k_factor, v_factor, k_scale
