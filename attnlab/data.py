"""Real attention heads: q, k and v of a real language model on real text, ready to load with NumPy alone; and maps.

The file `real_heads.safetensors` beside this module was written by `python -m attnlab.models`, and
`hash_maps.safetensors`, the maps that HashAttention learned for the same heads from other text, by
`python -m attnlab.hashattention.training`; `REAL_HEADS.md` tells where the model and the texts come from and under
which licences.

Axes: T tokens, H heads, K head width.
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attnlab.arrays import Float


class Heads(NamedTuple):
    """q, k and v of some heads of one layer, [1, T, H, K] each; head h of k and v serves head h of q."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray


@dataclass(frozen=True, eq=False)
class RealHeads:
    """Captured heads of one language model over one text, tokens 0 to T - 1.

    q and k are taken after the rotary position embedding (RoPE), so q @ k.T / sqrt(K) are the model's own logits.
    `query_heads[h]` and `kv_heads[h]` are the model's numbers of the heads at index h.
    """

    layers: tuple[int, ...]
    query_heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    tokens: tuple[str, ...] = field(repr=False)
    token_ids: np.ndarray = field(repr=False)  # [T], int32
    _heads: Mapping[int, Heads] = field(repr=False)
    _provenance: Mapping[str, Any] = field(repr=False)

    def layer(self, number: int) -> Heads:
        """The (q, k, v) of one captured layer, float16 [1, T, H, K] each, read-only.

        Raises ValueError when this layer was not captured.
        """
        if number not in self._heads:
            raise ValueError(f"layer must be one of {', '.join(map(str, self.layers))}, got {number!r}")
        return self._heads[number]

    @property
    def provenance(self) -> dict[str, Any]:
        """Where the heads come from: model, text, licences, checksums, versions and the command; a fresh copy."""
        return dict(self._provenance)


@functools.cache
def real_heads() -> RealHeads:
    """The shipped heads: SmolLM2-135M-Instruct over 2,048 tokens of the Python reference, loaded once.

    An early, a middle and a late layer (2, 9, 21); for each key/value head the first query head of its group.
    """
    with resources.as_file(resources.files("attnlab") / "real_heads.safetensors") as path:
        return read_heads(path)


def read_heads(path: str | Path) -> RealHeads:
    """The heads in a file that `python -m attnlab.models` wrote.

    Raises FileNotFoundError when there is no such file, ValueError when it is a safetensors file of another kind.
    """
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as stored:
        described = (stored.metadata() or {}).get("attnlab")
        if described is None:
            raise ValueError(f"path must be a file written by python -m attnlab.models, got {path}")
        arrays = {name: stored.get_tensor(name) for name in stored.keys()}
    for array in arrays.values():
        array.flags.writeable = False  # every caller of real_heads shares these

    about = json.loads(described)
    structure = {name: tuple(about.pop(name)) for name in ("layers", "query_heads", "kv_heads", "tokens")}
    return RealHeads(
        **structure,
        token_ids=arrays["token_ids"],
        _heads={layer: Heads(*(arrays[f"layers.{layer}.{part}"] for part in "qkv")) for layer in structure["layers"]},
        _provenance=about,
    )


class Maps(NamedTuple):
    """F, one multi-layer perceptron a head: x -> SiLU(x w + b) -> ... -> x w + b, the last layer without SiLU. One
    layer alone is a linear map, such as a random projection. H heads; I and O are the widths of a layer.
    """

    weights: tuple[Float[np.ndarray, "H I O"], ...]
    biases: tuple[Float[np.ndarray, "H O"], ...]

    @property
    def bits(self) -> int:
        """B: the width of the last layer."""
        return int(self.biases[-1].shape[-1])


@dataclass(frozen=True, eq=False)
class LearnedMaps:
    """Maps that HashAttention learned for some layers of one model: float64, read-only, and how they came about."""

    layers: tuple[int, ...]
    _maps: Mapping[int, tuple[Maps, Maps]] = field(repr=False)
    _provenance: Mapping[str, Any] = field(repr=False)

    def layer(self, number: int) -> tuple[Maps, Maps]:
        """(query maps, key maps) of one layer.

        Raises ValueError when there are none for this layer.
        """
        if number not in self._maps:
            raise ValueError(f"layer must be one of {', '.join(map(str, self.layers))}, got {number!r}")
        return self._maps[number]

    @property
    def provenance(self) -> dict[str, Any]:
        """Whatever was written with the maps: text, settings, recall, versions, the command; a fresh copy."""
        return dict(self._provenance)


def hash_maps(layer: int) -> tuple[Maps, Maps]:
    """The shipped 32-bit maps of a layer of `real_heads`: (query maps, key maps), three heads each, float64. They were
    learned from other text than the heads are of.

    Raises ValueError for a layer that is not shipped.
    """
    return shipped_maps().layer(layer)


@functools.cache
def shipped_maps() -> LearnedMaps:
    """The maps of every shipped layer with their provenance, loaded once."""
    with resources.as_file(resources.files("attnlab") / "hash_maps.safetensors") as path:
        return read_maps(path)


def read_maps(path: str | Path) -> LearnedMaps:
    """The maps in a file that `hashattention.training.save` wrote.

    Raises FileNotFoundError when there is no such file, ValueError when it is a safetensors file of another kind.
    """
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as stored:
        described = (stored.metadata() or {}).get("attnlab.maps")
        if described is None:
            raise ValueError(f"path must be a file written by attnlab.hashattention.training, got {path}")
        arrays = {name: stored.get_tensor(name).astype(np.float64) for name in stored.keys()}
    for array in arrays.values():
        array.flags.writeable = False

    def maps(name: str) -> Maps:
        def layers(part: str) -> tuple[np.ndarray, ...]:
            count = sum(key.startswith(f"{name}.{part}.") for key in arrays)
            return tuple(arrays[f"{name}.{part}.{n}"] for n in range(count))

        return Maps(layers("weights"), layers("biases"))

    about = json.loads(described)
    numbers = tuple(about.pop("layers"))
    both = {layer: (maps(f"layers.{layer}.query"), maps(f"layers.{layer}.key")) for layer in numbers}
    return LearnedMaps(numbers, both, about)
