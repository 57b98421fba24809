"""What all attention layers share: projections, the output stage, decoding, and a layer on disk.

    q, k [B, T, H, K], v [B, T, H, V]    three projections of x [B, T, width], without bias
    o [B, T, H, V]                       the operator
    y [B, T, width]                      RMS norm of each head's o, times SiLU of a projected gate where there is one,
                                         through the output projection

Initialisation: the weights of q, k, v, gate and output are normal with variance 1/fan_in, so that entries of unit
variance stay so; the norm's weights are 1. A layer draws from torch's own generator: torch.manual_seed makes it
repeatable.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from attnlab.arrays import dial, flag, one_of
from attnlab.backend import ROWS

__all__ = ["Layer", "load", "save"]

KEY = "attnlab.nn"  # of the metadata of a file
TRAINING = tuple(row.name for row in ROWS if row.gradients)  # the implementations that a layer can be of


class Layer(nn.Module):
    """An attention layer [B, T, width] -> [B, T, width], causal, with a state that carries the past.

    A subclass sets up its operator after this and says with `attend` what becomes of q, k, v. `config` is what it takes
    to build the layer again. Keys and values have `groups` heads, as many as the queries unless given.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        key_width: int | None,
        value_width: int | None,
        output_norm: bool,
        output_gate: bool,
        impl: str,
        groups: int | None = None,
    ):
        super().__init__()
        self.width, self.heads = whole("width", width), whole("heads", heads)
        self.groups = self.heads if groups is None else whole("groups", groups)
        if self.heads % self.groups:
            raise ValueError(f"groups must divide heads = {heads}, got {groups}")
        if None in (key_width, value_width) and self.width % self.heads:
            raise ValueError(
                f"heads must divide width = {width} where key_width or value_width is not given, got {heads}"
            )
        a_head = self.width // self.heads
        self.key_width = whole("key_width", a_head if key_width is None else key_width)
        self.value_width = whole("value_width", a_head if value_width is None else value_width)
        given = {name: getattr(self, name) for name in ("width", "heads", "key_width", "value_width")}
        options = {"output_norm": flag("output_norm", output_norm), "output_gate": flag("output_gate", output_gate)}
        self.impl = one_of("impl", impl, TRAINING)
        self.config: dict[str, Any] = {**given, **options, "impl": impl}
        self.q, self.k = (projection(self.width, n * self.key_width) for n in (self.heads, self.groups))
        self.v = projection(self.width, self.groups * self.value_width)
        self.gate = projection(self.width, self.heads * self.value_width) if output_gate else None
        self.norm = nn.RMSNorm(self.value_width, eps=1e-6) if output_norm else None
        self.out = projection(self.heads * self.value_width, self.width)

    def forward(self, x: torch.Tensor, state: Any = None, *, return_state: bool = False, cu_seqlens: Any = None) -> Any:
        """y [B, T, width], or (y, state). `state` is what earlier tokens left: one run equals any segmentation of it.

        `cu_seqlens` [N + 1] cuts one row (B = 1) into N sequences, where the layer has that. Raises ValueError for an x
        that is not [B, T, width], and what the operator's door raises.
        """
        if x.ndim != 3 or x.shape[-1] != self.width:
            raise ValueError(f"x must be [B, T, width] with width = {self.width}, got {tuple(x.shape)}")
        o, state = self.attend(x, *self.operands(x), state, cu_seqlens)
        if self.norm is not None:
            o = self.norm(o)
        o = o.flatten(-2)
        if self.gate is not None:
            o = o * functional.silu(self.gate(x))
        y = self.out(o)
        return (y, state) if return_state else y

    def step(self, x: torch.Tensor, state: Any = None) -> tuple[torch.Tensor, Any]:
        """(y [B, width], state) of the next token x [B, width]: what `forward` would have given at its place.

        Raises ValueError for an x that is not [B, width].
        """
        if x.ndim != 2:
            raise ValueError(f"x must be one token [B, width], got {tuple(x.shape)}")
        y, state = self(x[:, None], state, return_state=True)
        return y[:, 0], state

    def operands(self, x: torch.Tensor) -> tuple[Any, Any, Any]:
        """q [B, T, H, K], k [B, T, G, K] and v [B, T, G, V] as projected."""
        return split(self.q(x), self.heads), split(self.k(x), self.groups), split(self.v(x), self.groups)

    def attend(self, x: Any, q: Any, k: Any, v: Any, state: Any, cu_seqlens: Any) -> tuple[Any, Any]:
        """(o [B, T, H, V], state) of the operator; each layer has its own."""
        raise NotImplementedError(f"{type(self).__name__} must have an `attend`: Layer alone is no attention")

    def state_elements(self, tokens: int) -> int:
        """How many numbers the state of one sequence holds after so many tokens; each layer has its own."""
        raise NotImplementedError(f"{type(self).__name__} must have a `state_elements`: Layer alone keeps no state")

    def extra_repr(self) -> str:
        """What the layer was built with."""
        return ", ".join(f"{name}={value!r}" for name, value in self.config.items())


def whole(name: str, value: Any) -> int:
    """A width or a number of heads. Raises ValueError for anything but a whole number of at least 1."""
    return int(dial(name, value, 1, 2**30, integer=True))


def projection(inputs: int, outputs: int) -> nn.Linear:
    """A linear map without bias, its weights normal with variance 1/inputs."""
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=inputs**-0.5)
    return layer


def split(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[B, T, H width] -> [B, T, H, width]."""
    return x.unflatten(-1, (heads, -1))


# -- a layer on disk --


def save(layer: Layer, path: str | Path) -> None:
    """Write a layer to a safetensors file: its numbers, and in the metadata what it takes to build it again.

    Who reads the file finds the old one or the new one, never half of one. Raises TypeError for another module, whose
    own `state_dict` is what to save.
    """
    if not isinstance(layer, Layer):
        raise TypeError(f"layer must be one of attnlab.nn's, got {type(layer).__name__}; save its state_dict instead")
    told = {"layer": type(layer).__name__, "config": layer.config}
    tensors = {name: x.detach().cpu().contiguous() for name, x in layer.state_dict().items()}
    beside = Path(path).with_name(Path(path).name + ".part")
    save_file(tensors, beside, metadata={KEY: json.dumps(told)})
    os.replace(beside, path)


def load(path: str | Path) -> Layer:
    """The layer that `save` wrote, on the CPU, of the type it had. A subclass of your own must have been imported.

    Raises FileNotFoundError where there is none, ValueError for a safetensors file of another kind.
    """
    with safe_open(path, framework="pt") as stored:
        told = (stored.metadata() or {}).get(KEY)
        if told is None:
            raise ValueError(f"path must be a file that attnlab.nn.save wrote, got {str(path)!r}")
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}
    told = json.loads(told)
    kinds = {kind.__name__: kind for kind in _kinds(Layer)}
    if told["layer"] not in kinds:
        raise ValueError(f"path must hold one of {', '.join(sorted(kinds))}, got one named {told['layer']!r}")
    layer = kinds[told["layer"]](**told["config"])
    layer.to(tensors["out.weight"].dtype).load_state_dict(tensors)
    return layer


def _kinds(of: type[Layer]) -> Iterator[type[Layer]]:
    """Every type below this one: a layer of your own is loaded too, once its module is imported."""
    for kind in of.__subclasses__():
        yield kind
        yield from _kinds(kind)
