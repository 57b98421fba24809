"""Inputs that the tests of HashAttention share, and the ways they take a call apart."""

import itertools
from fractions import Fraction
from typing import Any

import numpy as np

from attnlab import draws
from attnlab.hashattention import Maps

SINKS, WINDOW = 2, 3
EDGES = [  # keys that are there, and how many of them are wanted
    (n, budget)
    for n in (0, 1, SINKS, SINKS + WINDOW - 1, SINKS + WINDOW, SINKS + WINDOW + 1, 9)  # 1 is SINKS - 1
    for budget in sorted({0, 1, max(n - 1, 0), n, n + 1})
]


def normal(seed: int, stream: int, *shape: int) -> np.ndarray:
    """Standard normal numbers of any shape."""
    return draws.normal(seed, stream, int(np.prod(shape[:-1])), shape[-1]).reshape(shape)


def codes(seed: int, stream: int, *shape: int, bits: int) -> np.ndarray:
    """Random codes of so many bits, words [..., ceil(bits / 32)]; few bits make many equals."""
    W = -(-bits // 32)
    words = draws.bits(seed, stream, int(np.prod(shape)), W)[..., 0]
    words[:, -1] &= np.uint32(2 ** (bits - 32 * (W - 1)) - 1)
    return words.reshape(*shape, W)


def arguments(
    *, B: int = 2, T: int = 5, S: int = 17, H: int = 6, G: int = 3, K: int = 7, V: int = 4, bits: int = 4,
    coded: int | None = None, budget: int | float = 3, sinks: int | float = 2, window: int | float = 4,
    causal: bool = True, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Keyword arguments of `attention`, all axes of other sizes: normal q, k, v, and codes of `coded` heads (G if
    None) that were not made from them, with many equal distances.
    """
    C = G if coded is None else coded
    return {
        "q": normal(seed, 1, B, T, H, K),
        "k": normal(seed, 2, B, S, G, K),
        "v": normal(seed, 3, B, S, G, V),
        "query_codes": codes(seed, 4, B, T, H, bits=bits),
        "key_codes": codes(seed, 5, B, S, C, bits=bits),
        "budget": budget,
        "sinks": sinks,
        "window": window,
        "causal": causal,
    }


def selecting(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `select` among those of `attention`."""
    return {name: given[name] for name in ("query_codes", "key_codes", "budget", "sinks", "window", "causal")}


def keys(given: dict[str, Any], chosen: Any) -> dict[str, Any]:
    """The same call over some of the keys."""
    return given | {name: given[name][:, chosen] for name in ("k", "v", "key_codes")}


def single(given: dict[str, Any]) -> dict[str, Any]:
    """The same call with float arrays in float32, so that all implementations see the same numbers."""
    return {
        name: x.astype(np.float32) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x
        for name, x in given.items()
    }


def perceptron(heads: int, *widths: int, seed: int = 0) -> Maps:
    """Random maps with a layer between each two widths."""
    layers = list(enumerate(itertools.pairwise(widths)))
    weights = tuple(normal(seed, 20 + n, heads, *pair) for n, pair in layers)
    return Maps(weights, tuple(0.5 * normal(seed, 40 + n, heads, out) for n, (_, out) in layers))


def chosen_sets(given: dict[str, Any]) -> dict[tuple[int, int, int], list[int]]:
    """The set of every query (b, t, h), worked out another way: whole numbers of Python, and sorted pairs."""
    asked, keyed = (np.asarray(given[name]).view(np.uint32) for name in ("query_codes", "key_codes"))
    B, T, H, _ = asked.shape
    S, C = keyed.shape[1:3]
    sets = {}
    for b, t, h in np.ndindex(B, T, H):
        n = S - (T - 1 - t) if given["causal"] else S
        m, s, w = (
            int(Fraction(str(size)) * n) if isinstance(size, float) else min(size, n)  # as the number is written
            for size in (given[name] for name in ("budget", "sinks", "window"))
        )
        fixed = {i for i in range(n) if i < s or i + w >= n}
        words = asked[b, t, h].tolist()
        nearest = sorted(
            (sum((x ^ y).bit_count() for x, y in zip(words, keyed[b, i, h // (H // C)].tolist(), strict=True)), i)
            for i in range(n)
            if i not in fixed
        )
        sets[b, t, h] = sorted(fixed | {i for _, i in nearest[:m]})
    return sets


def as_sets(selection: Any) -> dict[tuple[int, int, int], list[int]]:
    """What `select` returns, by query; -1 may only stand at the end."""
    selection = np.asarray(selection)
    sets = {}
    for place in np.ndindex(selection.shape[:3]):
        row = selection[place].tolist()
        sets[place] = row[: row.index(-1)] if -1 in row else row
        assert set(row[len(sets[place]) :]) <= {-1}, row
    return sets


def over_sets(given: dict[str, Any], sets: dict[tuple[int, int, int], list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """(o, lse) of softmax attention over given sets, one sum after another in Python."""
    q, k, v = (np.asarray(given[name], np.float64) for name in ("q", "k", "v"))
    (B, T, H, K), (G, V) = q.shape, v.shape[2:]
    scale = K**-0.5 if given.get("scale") is None else given["scale"]
    out, lse = np.zeros((B, T, H, V)), np.full((B, T, H), -np.inf)
    for (b, t, h), members in sets.items():
        logits = [scale * sum(q[b, t, h] * k[b, i, h // (H // G)]) for i in members]
        if members:
            top = max(logits)
            weights = [np.exp(x - top) for x in logits]
            lse[b, t, h] = top + np.log(sum(weights))
            shares = zip(weights, members, strict=True)
            out[b, t, h] = sum(w / sum(weights) * v[b, i, h // (H // G)] for w, i in shares)
    return out, lse


def merged(*parts: tuple[Any, Any]) -> tuple[np.ndarray, np.ndarray]:
    """(o, lse) of several disjoint sets of keys from those of each; empty ones count for nothing."""
    outs, lses = (np.stack([np.asarray(part[n], np.float64) for part in parts]) for n in (0, 1))
    top = lses.max(axis=0)
    weights = np.exp(lses - np.where(np.isfinite(top), top, 0.0))
    total = weights.sum(axis=0)
    with np.errstate(divide="ignore"):
        lse = np.where(total > 0, top, 0.0) + np.log(total)
    return np.einsum("pbth,pbthv->bthv", weights / np.where(total > 0, total, 1.0), outs), lse
