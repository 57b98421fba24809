"""RACE as a layer (arXiv:2510.04008v5): causal, with learned sharpness and planes that are drawn once.

The planes are a buffer, drawn from `seed` by `race.draw_planes`, shared by all heads and stored with the layer; layers
of one model should have seeds of their own. Sharpness (beta, learned: p. 8) is one number a head,

    beta_h = LARGEST / P * sigmoid(raw_h),

so that 2 beta P stays below 80, where the fast paths' features do not underflow; it starts at `sharpness`. q, k and v
are as projected: Algorithm 1 (p. 5) neither normalises them nor passes them through a nonlinearity.
"""

import math
from typing import Any

import torch
from torch import nn

from attnlab import race
from attnlab.arrays import dial, flag
from attnlab.nn.layer import Layer, whole
from attnlab.race import draw_planes
from attnlab.race.params import State

__all__ = ["RACEAttention"]

LARGEST = 40.0  # of beta P

operator = torch.compiler.disable(race.attention)  # a break in a compiled layer: its checks look at numbers


class RACEAttention(Layer):
    """Causal RACE: each query's convex combination of values by soft bucket agreement, in time linear in T.

    `key_width` and `value_width` are width / heads unless given. The state of a sequence is heads x tables x 2^planes x
    (value_width + 1) numbers. `normalize` divides q and k by their lengths first, which the theory assumes (p. 17) and
    Algorithm 1 does not do. `cu_seqlens` is refused: the operator has none.

    Raises ValueError naming the argument.
    """

    planes: Any  # the buffer

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        planes: int = 4,
        tables: int = 4,
        sharpness: float = 2.0,
        seed: int = 0,
        normalize: bool = False,
        key_width: int | None = None,
        value_width: int | None = None,
        output_norm: bool = True,
        output_gate: bool = False,
        impl: str = "torch",
    ):
        super().__init__(width, heads, key_width, value_width, output_norm, output_gate, impl)
        planes, tables, seed = dial("planes", planes, 1, 8, integer=True), whole("tables", tables), int(seed)
        self.largest = LARGEST / planes
        sharpness = dial("sharpness", sharpness, 1e-3, 0.999 * self.largest)
        self.normalize = flag("normalize", normalize)
        self.config |= {"planes": planes, "tables": tables, "sharpness": sharpness, "seed": seed}
        self.config |= {"normalize": self.normalize}
        drawn = torch.from_numpy(draw_planes(tables, planes, self.key_width, seed))
        self.register_buffer("planes", drawn.to(self.out.weight.dtype))
        start = math.log(sharpness / (self.largest - sharpness))
        self.raw_sharpness = nn.Parameter(torch.full((self.heads,), start))

    def sharpness(self) -> Any:
        """beta [H]."""
        return self.largest * torch.sigmoid(self.raw_sharpness)

    def attend(self, x: Any, q: Any, k: Any, v: Any, state: Any, cu_seqlens: Any) -> tuple[Any, State]:
        """(o, State) by `race.attention`. Raises ValueError where sequences are cut."""
        if cu_seqlens is not None:
            raise ValueError("cu_seqlens must be None for RACE, whose operator takes whole rows, got one")
        return operator(
            q, k, v, self.planes, self.sharpness(), causal=True, state=state, return_state=True,
            normalize=self.normalize, impl=self.impl,
        )  # fmt: skip

    def state_elements(self, tokens: int) -> int:
        """heads x tables x 2^planes x (value_width + 1), the same after any number of tokens."""
        tables, planes, _ = self.planes.shape
        return self.heads * tables * 2**planes * (self.value_width + 1)
