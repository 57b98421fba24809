"""The public doors of HashAttention: check the arguments, pick the implementation, run it."""

from typing import Any

from attnlab import backend
from attnlab.arrays import Array, Axes, Float, check
from attnlab.hashattention.params import Maps, check_arguments, check_maps, check_selection

__all__ = ["attention", "encode", "select"]


def attention(
    q: Float[Array, "B T H K"],
    k: Float[Array, "B S G K"],
    v: Float[Array, "B S G V"],
    query_codes: Array,
    key_codes: Array,
    *,
    budget: int | float,
    sinks: int | float = 128,
    window: int | float = 128,
    causal: bool = True,
    scale: float | None = None,
    return_lse: bool = False,
    impl: str = "reference",
) -> Any:
    """Softmax attention over the tokens whose codes are nearest: o [B, T, H, V]. With `return_lse`, (o, lse [B, T, H]),
    lse the logarithm of the softmax's denominator, by which parts of a cache are merged.

    Each query reads the first `sinks` and the newest `window` of the tokens it sees, and of the rest the `budget`
    nearest by Hamming distance, ties by lowest index: a set, no token twice. A whole number is so many tokens, a number
    with a point that fraction of the visible ones, rounded down (1 is one token, 1.0 all). A budget of all is dense
    attention; an empty set gives o = 0 and lse = -inf.

    The newest query stands at the newest key; where `causal`, earlier ones see as many keys fewer. H query heads share
    G key/value heads, neighbours the same one. `query_codes` [B, T, H, W] and `key_codes` [B, S, G, W] (or [B, S, H,
    W], one for each query head) are words of 32 bits as `encode` packs them: uint32, or int32 with the same bits.
    `scale` is 1/sqrt(K) unless given.

    Keys and values that are not selected are not read, and may hold anything. `impl` is one of "reference", "numba",
    "torch", "triton". "torch" has gradients, of q, k and v of the selected tokens (the set itself has none); the others
    refuse a tensor that requires one.

    Raises ValueError or TypeError naming the argument; backend.Unavailable where `impl` cannot run here;
    backend.Unsupported where it runs but does not cover these arguments. No implementation stands in for another.
    Source: arXiv:2412.14468v2, Sec. 4, pp. 4-5.
    """
    options: dict[str, Any] = {
        "budget": budget,
        "sinks": sinks,
        "window": window,
        "causal": causal,
        "scale": scale,
        "return_lse": return_lse,
    }
    check_arguments(q, k, v, query_codes, key_codes, **options)
    room = backend.load(impl, "hashattention")
    backend.refuse_gradients(impl, only=("torch",), q=q, k=k, v=v)
    return room.attention(q, k, v, query_codes, key_codes, **options)


def encode(x: Float[Array, "B T H K"], maps: Maps, *, impl: str = "reference") -> Array:
    """The codes of x: words of 32 bits [B, T, H, W], W = ceil(b / 32), uint32 (int32 with the same bits from torch
    tensors). Bit i of word w is whether output 32 w + i of the head's map is above 0: 0.0, -0.0 and NaN give 0.

    An output that rounding alone moves across 0 may give either bit in different implementations. For a code of every
    query head over shared keys, repeat the heads of the keys first.

    Raises ValueError or TypeError naming the argument, backend.Unavailable and backend.Unsupported as `attention` does.
    Source: arXiv:2412.14468v2, Eq. 1, p. 4.
    """
    sizes: Axes = {}
    check("x", x, "B T H K", sizes)
    check_maps("maps", maps, sizes["H"][0], sizes["K"][0])
    return backend.load(impl, "hashattention").encode(x, maps)


def select(
    query_codes: Array,
    key_codes: Array,
    *,
    budget: int | float,
    sinks: int | float = 128,
    window: int | float = 128,
    causal: bool = True,
    impl: str = "reference",
) -> Array:
    """The tokens that `attention` with these arguments reads: int64 [B, T, H, N] in rising order, -1 after the last of
    a set that is smaller than the largest. The same numbers from every implementation.

    `query_codes` are [B, T, H, W], `key_codes` [B, S, C, W] with C a divisor of H: neighbours share a code. Sizes and
    what is seen are as in `attention`.

    Raises as `attention` does. Source: arXiv:2412.14468v2, Eq. 2 and Sec. 4.1, pp. 4-5.
    """
    sizes: dict[str, Any] = {"budget": budget, "sinks": sinks, "window": window, "causal": causal}
    check_selection(query_codes, key_codes, **sizes)
    return backend.load(impl, "hashattention").select(query_codes, key_codes, **sizes)
