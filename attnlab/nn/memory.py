"""Residual linear attention as a layer, and every recurrence it is compared with, so that comparisons share all else.

    q, k      SiLU, then divided by their lengths (p. 5 of arXiv:2509.25223v1); read without 1/sqrt(K)
    v         as projected
    alpha     retention: exp(-exp(rate_h) softplus(a_h . x + b_h)), in (0, 1)
    beta      write:      sigmoid(w_h . x + c_h)
    gamma     correction: sigmoid of a projection of its own, and of the errors' memory both write and read-out

The paper says that the gates are scalars of a head and token, not how they are made. Retention is parametrised as in
Mamba-2 and Gated DeltaNet, because its logarithm is then made without rounding near 1, where memories live: it goes to
the operator as `log_retention`. At the start the heads' forgetting 1 - alpha is spread geometrically over [0.001, 0.1],
the range of those models, one value a head and none drawn; write and correction start at 1/2. The gates' weights are
normal with standard deviation 0.02, so that the first steps see these values nearly constant.

The paper's layer may have a short convolution before q, k and v; our notes of it have none, so there is none here.
A convolution belongs to the block then, where every method gets the same one.
"""

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from attnlab import residual
from attnlab.arrays import dial, flag, one_of
from attnlab.nn.layer import Layer
from attnlab.residual import RULES, State, retnet_retention

__all__ = ["MemoryAttention", "ResidualDeltaNet", "ResidualLinearAttention"]

operator = torch.compiler.disable(residual.attention)  # a break in a compiled layer: its checks look at numbers

FORGETTING = (1e-3, 1e-1)  # 1 - alpha at the start: the first head's, the last head's
GATE_STD = 0.02


class MemoryAttention(Layer):
    """A layer over any rule of `attnlab.residual`: "rla", "rdn", "linear", "retnet", "sgla", "deltanet", "gdn".

    `key_width` and `value_width` are width / heads unless given. The state of a sequence is heads x key_width x
    value_width numbers, twice that for "rla" and "rdn". `clip`, `target` and `read_gates` are the switches of
    `residual.attention`; `tied` ties the correction to the write gate (Fig. 3, p. 8). These four concern "rla" and
    "rdn" only.

    Raises ValueError naming the argument.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        rule: str = "rdn",
        key_width: int | None = None,
        value_width: int | None = None,
        clip: float = 1.0,
        target: str = "clip",
        read_gates: bool = True,
        tied: bool = False,
        output_norm: bool = True,
        output_gate: bool = False,
        impl: str = "torch",
    ):
        super().__init__(width, heads, key_width, value_width, output_norm, output_gate, impl)
        self.rule = one_of("rule", rule, tuple(RULES))
        one_of("target", target, ("clip", "log_cosh"))
        self.switches: dict[str, Any] = {
            "clip": dial("clip", clip, 0, math.inf),
            "target": target,
            "read_gates": flag("read_gates", read_gates),
        }
        self.config |= {"rule": rule, **self.switches, "tied": flag("tied", tied)}
        gates = set(RULES[rule].gates) - ({"correction"} if tied else set())
        self.retention: nn.Linear | None = None
        self.write: nn.Linear | None = None
        self.correction: nn.Linear | None = None
        if "retention" in gates and rule != "retnet":
            self.retention = retention = gate(self.width, self.heads)
            self.rate = nn.Parameter(torch.zeros(self.heads))
            low, high = map(math.log, FORGETTING)
            forgetting = torch.linspace(low, high, self.heads, dtype=torch.float64).exp()
            rate = -torch.log1p(-forgetting)  # -log alpha
            with torch.no_grad():
                retention.bias.copy_(rate + torch.log(-torch.expm1(-rate)))  # softplus undone
        if "write" in gates:
            self.write = gate(self.width, self.heads)
        if "correction" in gates:
            self.correction = gate(self.width, self.heads)

    def gates(self, x: torch.Tensor) -> dict[str, Any]:
        """The gates of these tokens, [B, T, H] (RetNet's fixed one: [H]), under the names of `residual.attention`."""
        made: dict[str, Any] = {}
        with torch.autocast(x.device.type, enabled=False):  # 16 bits would round a retention near 1 away
            x = x.to(self.out.weight.dtype)
            if self.rule == "retnet":
                made["retention"] = torch.from_numpy(retnet_retention(self.heads)).to(x.device)
            elif self.retention is not None:
                made["log_retention"] = -self.rate.exp() * functional.softplus(self.retention(x))
            if self.write is not None:
                made["write"] = torch.sigmoid(self.write(x))
            if self.correction is not None:
                made["correction"] = torch.sigmoid(self.correction(x))
        return made

    def attend(self, x: Any, q: Any, k: Any, v: Any, state: Any, cu_seqlens: Any) -> tuple[Any, State]:
        """(o, State) by `residual.attention`."""
        q, k = (functional.silu(part) for part in (q, k))
        return operator(
            q, k, v, **self.gates(x), rule=self.rule, normalize=True,
            cu_seqlens=cu_seqlens, state=state, return_state=True, impl=self.impl, **self.switches,
        )  # fmt: skip

    def state_elements(self, tokens: int) -> int:
        """heads x key_width x value_width, twice that with a residual; the same after any number of tokens."""
        return (1 + RULES[self.rule].residual) * self.heads * self.key_width * self.value_width


class ResidualLinearAttention(MemoryAttention):
    """RLA (p. 5): two memories written additively, the second one with what the first got wrong. Arguments as of
    MemoryAttention, whose `rule` is "rla" here.
    """

    def __init__(self, width: int, heads: int, **options: Any):
        super().__init__(width, heads, **fixed("rla", options))


class ResidualDeltaNet(MemoryAttention):
    """RDN (p. 5): two memories written by the delta rule, the second one with what the first got wrong. Arguments as of
    MemoryAttention, whose `rule` is "rdn" here.
    """

    def __init__(self, width: int, heads: int, **options: Any):
        super().__init__(width, heads, **fixed("rdn", options))


def fixed(rule: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options with this rule; raises ValueError where another one is among them."""
    if options.get("rule", rule) != rule:
        raise ValueError(f"rule must be {rule!r} here, got {options['rule']!r}; MemoryAttention takes any")
    return options | {"rule": rule}


def gate(width: int, heads: int) -> nn.Linear:
    """A scalar a head and token."""
    layer = nn.Linear(width, heads)
    nn.init.normal_(layer.weight, std=GATE_STD)
    nn.init.zeros_(layer.bias)
    return layer
