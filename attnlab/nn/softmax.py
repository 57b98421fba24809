"""Softmax attention as a layer, for comparison: causal, no positions, its state the keys and values so far."""

from typing import Any, NamedTuple

import torch

from attnlab.backend import load
from attnlab.nn.layer import Layer

__all__ = ["Cache", "SoftmaxAttention"]


class Cache(NamedTuple):
    """What a sequence leaves behind: every key [B, S, H, K] and value [B, S, H, V], so it grows with each token."""

    k: torch.Tensor
    v: torch.Tensor


class SoftmaxAttention(Layer):
    """Causal softmax attention, logits over sqrt(key_width). `key_width` and `value_width` are width / heads unless
    given. There are no positions: rotate q and k in a block of your own where order must be seen. `cu_seqlens` is
    refused.

    Raises ValueError naming the argument.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        key_width: int | None = None,
        value_width: int | None = None,
        output_norm: bool = False,
        output_gate: bool = False,
        impl: str = "torch",
    ):
        super().__init__(width, heads, key_width, value_width, output_norm, output_gate, impl)

    def attend(self, x: Any, q: Any, k: Any, v: Any, state: Any, cu_seqlens: Any) -> tuple[Any, Cache]:
        """(o, Cache) by the fused softmax of torch. Raises ValueError where sequences are cut, or for another state."""
        if cu_seqlens is not None:
            raise ValueError("cu_seqlens must be None for softmax attention, which takes whole rows, got one")
        if state is not None:
            if not isinstance(state, tuple) or len(state) != 2:
                raise ValueError(f"state must be the Cache of an earlier call, got {type(state).__name__}")
            k, v = (torch.cat([old, new], dim=1) for old, new in zip(state, (k, v), strict=True))
        return load(self.impl, "dense").attention(q, k, v, causal=True), Cache(k, v)

    def state_elements(self, tokens: int) -> int:
        """tokens x heads x (key_width + value_width)."""
        return tokens * self.heads * (self.key_width + self.value_width)
