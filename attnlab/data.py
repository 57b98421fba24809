"""Real attention heads: q, k and v of a real language model on real text, ready to load with NumPy alone.

The file `real_heads.safetensors` beside this module was written by `python -m attnlab.models`;
`REAL_HEADS.md` tells where the model and the text come from and under which licences.

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
