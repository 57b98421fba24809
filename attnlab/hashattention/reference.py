"""HashAttention in NumPy float64, one query after another (arXiv:2412.14468v2, Sec. 4, pp. 4-5).

A learned map turns keys and queries into codes of b bits; the m keys whose codes are nearest to the query's are read,
with the first and the newest tokens, and nothing else:
    h(x) = [F(x) > 0]                                     bits, packed into words
    score(k_i, q) = -popcount(h(q) XOR h(k_i))            minus the Hamming distance
    I = sinks U window U top-m of the rest by score       a set: no token twice; ties go to the lowest index
    o = softmax over I of (q . k_i / sqrt K), times v_i   the original keys and values

B batch, T queries, S keys, H query heads, G key/value heads, K and V widths, W words of a code. The newest query stands
at the newest key; query t sees n_t = S - T + t + 1 keys where causal, else all S.
"""

from typing import Any, NamedTuple

import numpy as np

from attnlab.arrays import Array, Float, as_float, as_numpy
from attnlab.hashattention.params import Maps, tokens_of, words

__all__ = [
    "Trace", "attention", "encode", "features", "gathered", "hamming", "pack", "select", "selected", "trace", "unpack",
    "visible",
]  # fmt: skip

Words = Array  # uint32 [..., W]


class Trace(NamedTuple):
    """Every intermediate of one run; a key that a query does not see has distance -1."""

    distance: Array  # Hamming, whole numbers [B, H, T, S]
    chosen: Array  # the set I as True and False, [B, H, T, S]
    weights: Float[Array, "B H T S"]  # of the softmax over I
    lse: Float[Array, "B T H"]  # log of its denominator; -inf where I is empty
    out: Float[Array, "B T H V"]


# -- codes --


def features(x: Float[Array, "B T H K"], maps: Maps, dtype: Any = np.float64) -> Float[Array, "B T H b"]:
    """F(x): the numbers whose signs are the bits; tanh of them is what training sees (p. 5)."""
    x = as_float(x, dtype)
    for n, (weight, bias) in enumerate(zip(*maps, strict=True)):
        x = x if n == 0 else silu(x)
        x = np.einsum("bthi,hio->btho", x, as_float(weight, dtype)) + as_float(bias, dtype)
    return x


def silu(x: Array) -> Array:
    """x / (1 + exp(-x)), without overflow."""
    return x * 0.5 * (1.0 + np.tanh(0.5 * x))


def pack(features: Float[Array, "... b"]) -> Words:
    """Bit i of word w is features[32 w + i] > 0; so 0.0, -0.0 and NaN are 0, and so are the bits beyond b."""
    bits = as_numpy(features) > 0
    *before, b = bits.shape
    room = np.zeros((*before, 32 * words(b)), np.uint32)
    room[..., :b] = bits
    room = room.reshape(*before, words(b), 32)
    return np.bitwise_or.reduce(room << np.arange(32, dtype=np.uint32), axis=-1)


def unpack(codes: Words, bits: int) -> Array:
    """The bits as 0 and 1, uint8 [..., b]."""
    every = as_words(codes)[..., None] >> np.arange(32, dtype=np.uint32) & 1
    *before, W, _ = every.shape
    return every.reshape(*before, 32 * W)[..., :bits].astype(np.uint8)


def encode(x: Float[Array, "B T H K"], maps: Maps, *, dtype: Any = np.float64) -> Words:
    """h(x), uint32 [B, T, H, W]."""
    return pack(features(x, maps, dtype))


def hamming(code: Words, codes: Words) -> Array:
    """In how many bits each of `codes` [..., n, W] differs from `code` [..., W]."""
    return np.bitwise_count(as_words(codes) ^ as_words(code)[..., None, :]).sum(axis=-1, dtype=np.int64)


def as_words(codes: Any) -> Words:
    """The same bits as uint32."""
    return as_numpy(codes).view(np.uint32)


# -- the set --


def visible(t: int, T: int, S: int, causal: bool) -> int:
    """n_t: how many keys, from the first on, query t of T sees."""
    return S - T + t + 1 if causal else S


def selected(distance: Array, budget: int, sinks: int, window: int) -> Array:
    """I, in rising order: the first `sinks` and the last `window` of n tokens, and the `budget` nearest of the rest."""
    n = len(distance)
    fixed = (np.arange(n) < sinks) | (np.arange(n) >= n - window)
    rest = np.flatnonzero(~fixed)
    nearest = rest[np.argsort(distance[rest], kind="stable")[:budget]]  # stable: equals stay in the order of tokens
    return np.union1d(np.flatnonzero(fixed), nearest)


def select(query_codes, key_codes, *, budget, sinks=128, window=128, causal=True) -> Array:
    """I of every query in rising order, int64 [B, T, H, N], N the size of the largest; -1 fills shorter ones up."""
    query_codes, key_codes = as_words(query_codes), as_words(key_codes)
    B, T, H, _ = query_codes.shape
    S, C = key_codes.shape[1:3]
    sets = {}
    for b, t, h in np.ndindex(B, T, H):
        n = visible(t, T, S, causal)
        distance = hamming(query_codes[b, t, h], key_codes[b, :n, h * C // H])
        sets[b, t, h] = selected(distance, *(tokens_of(size, n) for size in (budget, sinks, window)))
    largest = max((len(chosen) for chosen in sets.values()), default=0)
    out = np.full((B, T, H, largest), -1)
    for place, chosen in sets.items():
        out[place][: len(chosen)] = chosen
    return out


# -- attention --


def gathered(q, k, v, scale: float) -> tuple[Array, Array, Any]:
    """(weights, o, lse) of one query [K] over the keys [N, K] and values [N, V] of its set. The maximum is that of the
    set; an empty one gives o = 0 and lse = -inf.
    """
    if not len(k):
        return np.zeros(0, q.dtype), np.zeros(v.shape[-1], q.dtype), q.dtype.type(-np.inf)
    logits = scale * (k @ q)
    weights = np.exp(logits - logits.max())
    total = weights.sum()
    return weights / total, weights @ v / total, logits.max() + np.log(total)


def attention(
    q: Float[Array, "B T H K"], k: Float[Array, "B S G K"], v: Float[Array, "B S G V"], query_codes: Words,
    key_codes: Words, *, budget: int | float, sinks: int | float = 128, window: int | float = 128, causal: bool = True,
    scale: float | None = None, return_lse: bool = False, dtype: type = np.float64,
) -> Any:  # fmt: skip
    """o [B, T, H, V] of `api.attention`, whose arguments these are; computed in `dtype`."""
    sizes = {"budget": budget, "sinks": sinks, "window": window}
    run = trace(q, k, v, query_codes, key_codes, **sizes, causal=causal, scale=scale, dtype=dtype)
    return (run.out, run.lse) if return_lse else run.out


def trace(
    q, k, v, query_codes, key_codes, *, budget, sinks=128, window=128, causal=True, scale=None, dtype=np.float64
) -> Trace:
    """Every intermediate of `attention` with the same arguments."""
    q, k, v = (as_float(x, dtype) for x in (q, k, v))
    query_codes, key_codes = as_words(query_codes), as_words(key_codes)
    (B, T, H, K), (S, G), V = q.shape, k.shape[1:3], v.shape[-1]
    C = key_codes.shape[2]  # a code for each of G heads, or for each of H
    scale = max(K, 1) ** -0.5 if scale is None else scale
    run = Trace(
        np.full((B, H, T, S), -1), np.zeros((B, H, T, S), bool), np.zeros((B, H, T, S), dtype),
        np.full((B, T, H), -np.inf, dtype), np.zeros((B, T, H, V), dtype),
    )  # fmt: skip
    for b, t, h in np.ndindex(B, T, H):
        n, g = visible(t, T, S, causal), h * G // H  # query heads that share a key/value head are neighbours
        distance = hamming(query_codes[b, t, h], key_codes[b, :n, h * C // H])
        I = selected(distance, *(tokens_of(size, n) for size in (budget, sinks, window)))  # noqa: E741
        weights, out, lse = gathered(q[b, t, h], k[b, I, g], v[b, I, g], dtype(scale))
        run.distance[b, h, t, :n], run.chosen[b, h, t, I], run.weights[b, h, t, I] = distance, True, weights
        run.out[b, t, h], run.lse[b, t, h] = out, lse
    return run
