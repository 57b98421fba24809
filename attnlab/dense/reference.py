"""Exact softmax attention (arXiv:1706.03762v7, Eq. 1, p. 4), rotary positions and RMS norm in NumPy float64.

Axes `[B, T, H, K]`; keys and values may have fewer heads than queries (grouped-query attention), as long as their
number divides the queries'.
"""

from typing import Any

import numpy as np

from attnlab.arrays import Array, Axes, Float, as_float, check, dial, one_of

__all__ = ["attention", "rms_norm", "rope", "softmax_attention", "softmax_weights", "unit", "visible"]


def visible(T: int, S: int, *, causal: bool, window: int | None = None) -> Float[Array, "T S"]:
    """Which key each query may see. The last query is aligned with the last key; a window counts the query's own
    position.
    """
    if window is not None:
        dial("window", window, 1, 2**40, integer=True)
    distance = (np.arange(T) + S - T)[:, None] - np.arange(S)[None, :]
    seen = np.ones((T, S), dtype=bool)
    if causal:
        seen &= distance >= 0
    if window is not None:
        seen &= (distance < window) & (distance > -window)
    return seen


def softmax_weights(
    q: Float[Array, "B T H K"],
    k: Float[Array, "B S H K"],
    *,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    dtype: Any = np.float64,
) -> Float[Array, "B H T S"]:
    """Softmax attention weights, rows summing to 1; `scale` is 1/sqrt(K) unless given. A query that sees no key has a
    row of zeros.
    """
    _check_pair(q, k)
    q, k = as_float(q, dtype), _repeat_heads(as_float(k, dtype), q)
    scale = max(q.shape[-1], 1) ** -0.5 if scale is None else scale
    logits = scale * np.einsum("bthk,bshk->bhts", q, k)
    logits = np.where(visible(q.shape[1], k.shape[1], causal=causal, window=window), logits, -np.inf)
    top = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(logits - np.where(np.isfinite(top), top, 0.0))
    total = weights.sum(axis=-1, keepdims=True)
    return np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)


def softmax_attention(
    q: Float[Array, "B T H K"],
    k: Float[Array, "B S H K"],
    v: Float[Array, "B S H V"],
    *,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    dtype: Any = np.float64,
) -> Float[Array, "B T H V"]:
    """softmax(scale q k^T) v, masked where asked: the attention that the papers approximate.

    `dtype` is float64 except where an error budget measures a lower precision. Raises ValueError where shapes disagree,
    or where the heads of k do not divide those of q.
    """
    sizes = _check_pair(q, k)
    check("v", v, "B S H V", sizes)
    weights = softmax_weights(q, k, causal=causal, window=window, scale=scale, dtype=dtype)
    return np.einsum("bhts,bshv->bthv", weights, _repeat_heads(as_float(v, dtype), q))


attention = softmax_attention  # the name that a fast path and `attnlab.parity` know it by


def rope(
    x: Float[Array, "B T H K"], positions: Float[Array, " T"], *, theta: float = 10_000.0, layout: str = "half"
) -> Float[Array, "B T H K"]:
    """Rotate each plane of `x` by position * theta^(-2i/K), i = 0 .. K/2 - 1.

    `layout` says which two coordinates form plane i: "half" pairs i with i + K/2 (Llama in transformers), "interleaved"
    pairs 2i with 2i + 1 (GGUF, GPT-J). Raises ValueError for an odd K.
    """
    one_of("layout", layout, ("half", "interleaved"))
    sizes: Axes = {}
    check("x", x, "B T H K", sizes)
    positions = np.asarray(positions, dtype=np.float64)
    check("positions", positions, "T", sizes)
    x = as_float(x)
    K = x.shape[-1]
    if K % 2:
        raise ValueError(f"x must have an even last axis to form rotary planes, got K = {K}")
    angle = positions[:, None] * theta ** (-2.0 * np.arange(K // 2) / K)  # [T, K/2]
    cos, sin = np.cos(angle)[None, :, None], np.sin(angle)[None, :, None]
    first, second = (slice(0, K // 2), slice(K // 2, K)) if layout == "half" else (slice(0, K, 2), slice(1, K, 2))
    out = np.empty_like(x)
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def unit(x: Float[Array, "... K"]) -> Float[Array, "... K"]:
    """x divided by its length, in the precision of x; a zero vector stays zero. No length over- or underflows."""
    largest = np.abs(x).max(axis=-1, keepdims=True, initial=0.0)
    x = np.divide(x, largest, out=np.zeros_like(x), where=largest > 0)
    length = np.linalg.norm(x, axis=-1, keepdims=True)
    return np.divide(x, length, out=np.zeros_like(x), where=length > 0)


def rms_norm(
    x: Float[Array, "... K"], weight: Float[Array, " K"] | None = None, *, eps: float = 1e-6
) -> Float[Array, "... K"]:
    """x / sqrt(mean(x^2) + eps), times `weight` where given."""
    x = as_float(x)
    normed = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    return normed if weight is None else normed * as_float(weight)


def _check_pair(q: Array, k: Array) -> Axes:
    """Sizes of k and v, whose heads may be fewer than q's if they divide them (grouped queries)."""
    of_q: Axes = {}
    check("q", q, "B T H K", of_q)
    sizes: Axes = {letter: of_q[letter] for letter in "BK"}
    check("k", k, "B S H K", sizes)
    if sizes["H"][0] != of_q["H"][0] and (sizes["H"][0] == 0 or of_q["H"][0] % sizes["H"][0]):
        raise ValueError(f"k must have a number of heads that divides the {of_q['H'][0]} of q, got {sizes['H'][0]}")
    return sizes


def _repeat_heads(x: Float[Array, "B S H K"], q: Float[Array, "B T H K"]) -> Float[Array, "B S H K"]:
    heads = np.shape(q)[2]
    return np.repeat(x, heads // x.shape[2], axis=2) if x.shape[2] != heads else x
