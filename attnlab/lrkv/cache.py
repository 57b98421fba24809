"""A cache in factors that grows token by token, is cut after a refused draft, and drops tokens without moving the rest.

    cache = FactoredCache(k_factor, v_factor)
    cache.append(k_shared, v_shared, k_latent, v_latent)      the prompt, then one token after another
    attention(q, **cache.arguments())
    cache.truncate(len(cache) - 3)                            a draft of three tokens was refused
    cache.keep([0, 1, 2, 3, *range(96, 128)])                 first and newest tokens stay, the others go

Every token keeps the position it was written at: what is dropped leaves a gap, and the next token stands one after the
newest that ever was. Without latents and factors this is the cache of MQA, GQA or MHA.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnlab.arrays import Array, Axes, Float, check, dial
from attnlab.growing import Growing
from attnlab.lrkv.params import Rope

__all__ = ["PARTS", "FactoredCache"]

PARTS = {  # what a cache may hold, by axes
    "k_shared": "B S G K",
    "v_shared": "B S G V",
    "k_latent": "B S H R",
    "v_latent": "B S H Rv",
    "k_scale": "B S H",
}


class FactoredCache:
    """Keys and values of one layer, as the arguments of `lrkv.attention`; NumPy arrays or torch tensors, whichever came
    first. `k_factor` [H, K, R] and `v_factor` [H, V, Rv] are weights: one for all tokens, not counted in the cache.

    Raises ValueError naming the argument.
    """

    def __init__(
        self, k_factor: Float[Array, "H K R"] | None = None, v_factor: Float[Array, "H V Rv"] | None = None
    ) -> None:
        self._factor_sizes: Axes = {}
        for name, factor, axes in (("k_factor", k_factor, "H K R"), ("v_factor", v_factor, "H V Rv")):
            if factor is not None:
                check(name, factor, axes, self._factor_sizes)
        self.k_factor, self.v_factor = k_factor, v_factor
        self._known: Axes = {}
        self._kinds: dict[str, str] = {}
        self.reset()

    def __len__(self) -> int:
        """How many tokens are held."""
        return len(self._parts["k_shared"])

    @property
    def positions(self) -> Array:
        """Where each token that is held stands in its text, int64 [S]."""
        held = self._positions.view
        return np.zeros(0, np.int64) if held is None else held

    @property
    def next_position(self) -> int:
        """Where the next token will stand: one after the newest that was appended and not cut off."""
        return self._next

    def append(
        self,
        k_shared: Float[Array, "B T G K"],
        v_shared: Float[Array, "B T G V"],
        k_latent: Float[Array, "B T H R"] | None = None,
        v_latent: Float[Array, "B T H Rv"] | None = None,
        k_scale: Float[Array, "B T H"] | None = None,
    ) -> None:
        """Put T tokens behind what is there; T = 0 is fine. After an error the cache is as it was.

        Raises ValueError where a part is missing or too many, has another shape than earlier tokens, holds a number
        that is not finite, or requires a gradient, which a cache would lose; TypeError for another kind or type of
        array than earlier ones were.
        """
        given = dict(zip(PARTS, (k_shared, v_shared, k_latent, v_latent, k_scale), strict=True))
        sizes: Axes = {**self._factor_sizes, **self._known}
        for name, part in given.items():
            self._check_presence(name, part)
            if part is None:
                continue
            given[name] = part = check(name, part, PARTS[name], sizes)
            if getattr(part, "requires_grad", False):
                raise ValueError(f"{name} must not require a gradient, which a cache would lose; detach it")
            wanted, like = (
                (self._kinds[name], "earlier ones") if self._kinds else (_place(given["k_shared"]), "k_shared")
            )
            got = _kind(part) if self._kinds else _place(part)
            if got != wanted:
                raise TypeError(f"{name} must be {wanted} as {like}, got {got}")
        T = sizes["S"][0]
        for name, part in given.items():
            if part is not None:
                self._parts.setdefault(name, Growing()).append(part)
        self._positions.append(np.arange(self._next, self._next + T))
        self._next += T
        self._kinds = {name: _kind(part) for name, part in given.items() if part is not None}
        self._known = {letter: (size, "earlier tokens") for letter, (size, _) in sizes.items() if letter != "S"}

    def truncate(self, n: int) -> None:
        """Forget all but the first `n` of the tokens held, as if the others had never been appended.

        Raises ValueError for more tokens than there are.
        """
        if dial("n", n, 0, len(self), integer=True) == len(self):
            return
        self._next = int(self.positions[n])
        for part in (*self._parts.values(), self._positions):
            part.truncate(int(n))

    def keep(self, index: Sequence[int]) -> None:
        """Drop all tokens but these, given by their places in the cache in rising order. They keep their positions.

        Raises ValueError where the places do not rise, or do not exist.
        """
        chosen = np.asarray(index)
        if chosen.ndim != 1 or (len(chosen) and chosen.dtype.kind not in "iu"):
            raise ValueError(f"index must be whole numbers [N], got {chosen.dtype} of shape {chosen.shape}")
        chosen = chosen.astype(np.int64)
        if np.any(np.diff(chosen) <= 0) or (len(chosen) and not 0 <= chosen[0] <= chosen[-1] < len(self)):
            raise ValueError(f"index must rise within [0, {len(self)}), got {chosen.tolist()}")
        if len(self) == 0:
            return
        for part in self._parts.values():
            kept = part.view[:, chosen]
            part.truncate(0)
            part.append(kept)
        kept = self.positions[chosen]
        self._positions.truncate(0)
        self._positions.append(kept)

    def reset(self) -> None:
        """Forget everything: the next tokens may have another batch size, or be of another kind."""
        self._parts: dict[str, Growing] = {"k_shared": Growing()}
        self._positions = Growing(axis=0)
        self._next = 0
        self._known, self._kinds = {}, {}

    def arguments(self, *, rope: Rope | None = None, latent_rope: Rope | None = None) -> dict[str, Any]:
        """What `lrkv.attention` takes beside q: views of what is held, that the next append may write beyond or leave
        behind; with `rope`, the positions too. Raises ValueError before the first append, and for a `latent_rope`
        without a `rope`.
        """
        if rope is None and latent_rope is not None:
            raise ValueError("latent_rope must be None where rope is, got one")
        if self._parts["k_shared"].view is None:
            raise ValueError("the cache must have been appended to before it is read, got none so far")
        held = {name: part.view for name, part in self._parts.items()}
        factors = {"k_factor": self.k_factor, "v_factor": self.v_factor}
        arguments = {**held, **{name: x for name, x in factors.items() if x is not None}}
        if rope is not None:
            arguments |= {"rope": rope, "latent_rope": latent_rope, "positions": self.positions}
        return arguments

    @property
    def elements(self) -> int:
        """How many numbers are held, in all rows of the batch: B S (G K + G V + H R + H Rv), and H more where the keys
        have a scale.
        """
        return sum(int(np.prod(part.view.shape)) for part in self._parts.values() if part.view is not None)

    @property
    def cache_bytes(self) -> int:
        """How many bytes these take, each part in its own type; positions and spare room are not counted."""
        views = (part.view for part in self._parts.values() if part.view is not None)
        return sum(
            int(np.prod(x.shape)) * (x.element_size() if hasattr(x, "element_size") else x.itemsize) for x in views
        )

    def _check_presence(self, name: str, part: Any) -> None:
        factor = {"k_latent": self.k_factor, "v_latent": self.v_factor}.get(name)
        if name in ("k_latent", "v_latent") and (part is None) != (factor is None):
            wanted = (
                "given, for the cache has its factor" if part is None else "None, for the cache has no factor of it"
            )
            raise ValueError(f"{name} must be {wanted}")
        if name == "k_scale" and self._kinds and (part is None) != (name not in self._parts):
            raise ValueError(f"{name} must be {'given' if part is None else 'None'} as for earlier tokens")
        if name in ("k_shared", "v_shared") and part is None:
            raise ValueError(f"{name} must be given, got None")


def _kind(x: Any) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} in {_place(x)}"


def _place(x: Any) -> str:
    return f"{'a tensor' if hasattr(x, 'detach') else 'an array'} on {getattr(x, 'device', 'cpu')}"
