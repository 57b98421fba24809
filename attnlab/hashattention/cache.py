"""Codes that grow with the cache of keys: a new key is encoded once, and what is rolled back is forgotten.

    cache = CodeCache(key_maps, impl="numba")
    cache.append(k)              the prompt [B, T, G, K]
    cache.append(k)              ... and one token after another
    attention(q, k, v, encode(q, query_maps), cache.codes, budget=64)
    cache.truncate(len(cache) - 3)      a draft of three tokens was refused

Codes of a key do not depend on other keys, so any cut of a sequence into appends gives the codes of the whole. The room
doubles where it is full: n tokens, one at a time, copy fewer than 2 n codes on the way.
"""

from typing import Any

import numpy as np

from attnlab.arrays import Array, Axes, Float, check, dial
from attnlab.backend import load
from attnlab.growing import Growing
from attnlab.hashattention.api import encode
from attnlab.hashattention.params import Maps, check_maps, words

__all__ = ["CodeCache"]


class CodeCache:
    """The codes of all keys so far, made by the maps of the keys, one of them for each head that has codes: G key/value
    heads, or the H query heads, whose neighbours then share a key. `impl` is that of `encode`.

    Raises ValueError or TypeError naming the argument, and backend.Unavailable where `impl` cannot run here.
    """

    def __init__(self, maps: Maps, *, impl: str = "reference"):
        heads, width = _sizes(maps)
        check_maps("maps", maps, heads, width)
        load(impl, "hashattention")  # who cannot run here says so now
        self.maps, self.impl = maps, impl
        self._heads, self._width = heads, width
        self._codes = Growing()
        self._known: Axes = {}  # B and G of the keys so far
        self._kind = ""

    def __len__(self) -> int:
        """How many tokens have codes."""
        return len(self._codes)

    @property
    def codes(self) -> Array:
        """The codes of the keys so far [B, S, C, W], as `attention` takes them: uint32, or int32 tensors where the keys
        are tensors and `impl` computes with them. A view that the next append may write beyond or leave behind. B and S
        are 0 before the first append.
        """
        held = self._codes.view
        return np.zeros((0, 0, self._heads, words(self.maps.bits)), np.uint32) if held is None else held

    def append(self, k: Float[Array, "B T G K"]) -> None:
        """Encode these keys, and only these, behind those that are there. No tokens (T = 0) are fine.

        Raises ValueError for another shape than that of earlier keys, another width than that of the maps, heads that
        do not divide theirs, or a number that is not finite; TypeError for numbers that are not real and floating, or
        another kind of array or device than earlier ones. After an error the cache is as it was.
        """
        sizes: Axes = {**self._known, "K": (self._width, "maps")}
        check("k", k, "B T G K", sizes)
        groups = sizes["G"][0]
        if not groups or self._heads % groups:
            raise ValueError(f"k must have a number of heads that divides the {self._heads} of maps, got {groups}")
        kind = _kind(k)
        if self._kind not in ("", kind):
            raise TypeError(f"k must be {self._kind} as earlier keys, got {kind}")
        if groups < self._heads:
            k = k[:, :, [head * groups // self._heads for head in range(self._heads)]]
        self._codes.append(encode(k, self.maps, impl=self.impl))
        self._known = {letter: (sizes[letter][0], "earlier keys") for letter in "BG"}
        self._kind = kind

    def truncate(self, n: int) -> None:
        """Forget all tokens but the first `n`, as if the others had never been appended.

        Raises ValueError for more tokens than there are.
        """
        self._codes.truncate(dial("n", n, 0, len(self), integer=True))

    def reset(self) -> None:
        """Forget everything: the next keys may have another batch size, or be of another kind."""
        self._codes.reset()
        self._known, self._kind = {}, ""


def _sizes(maps: Any) -> tuple[int, int]:
    """(heads, width) that the maps take; what is no Maps at all is left to `check_maps`."""
    shape = (
        tuple(getattr(maps[0][0], "shape", ())) if isinstance(maps, tuple) and len(maps) == 2 and len(maps[0]) else ()
    )
    return (int(shape[0]), int(shape[1])) if len(shape) == 3 else (0, 0)


def _kind(k: Any) -> str:
    return f"{'a tensor' if hasattr(k, 'detach') else 'an array'} on {getattr(k, 'device', 'cpu')}"
