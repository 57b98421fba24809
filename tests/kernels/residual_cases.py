"""Inputs and oracles that the tests of the residual kernels share.

The oracle is attnlab/residual/chunked.py in float64, forward and backward; it is held to the token loop elsewhere.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from attnlab import parity
from attnlab.residual import RULES, State, chunked

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
GATES = ("retention", "write", "correction")
# of a factor that goes in as two parts of tf32; of one that is rounded to tf32, or to bfloat16
ROUNDING = {FP32: 2.0**-22, FP16: 2.0**-11, BF16: 2.0**-8}


class Case(NamedTuple):
    """Sizes, type, rule and switches of one call; `cu` packs sequences, `tied` leaves the correction to the write."""

    rule: str = "rdn"
    T: int = 19
    H: int = 2
    K: int = 5
    V: int = 19
    B: int = 1
    dtype: torch.dtype = FP32
    clip: float = 0.7
    target: str = "clip"
    read_gates: bool = True
    scale: float = 0.8
    tied: bool = False
    cu: tuple[int, ...] | None = None
    retention: str = "some zero"

    @property
    def sequences(self) -> int:
        """How many states there are."""
        return self.B if self.cu is None else len(self.cu) - 1

    @property
    def gates(self) -> tuple[str, ...]:
        """Names of the gates that are given."""
        return tuple(name for name in RULES[self.rule].gates if not (self.tied and name == "correction"))

    @property
    def options(self) -> dict[str, Any]:
        """What every implementation takes by name."""
        return {
            "rule": self.rule,
            "clip": self.clip,
            "target": self.target,
            "read_gates": self.read_gates,
            "scale": self.scale,
        }

    def inputs(self) -> dict[str, torch.Tensor | None]:
        """q, k of length 1, v, the three gates (None where the rule has none) and both states."""
        draw = torch.Generator().manual_seed(11)
        tokens = (self.B, self.T, self.H)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=draw)

        def unit(x: torch.Tensor) -> torch.Tensor:
            return x / x.norm(dim=-1, keepdim=True)

        q, k = unit(normal(*tokens, self.K)), unit(normal(*tokens, self.K))
        v = normal(*tokens, self.V)
        gates = dict(zip(GATES, torch.rand(3, *tokens, generator=draw), strict=True))
        gates["retention"] = RETENTION[self.retention](gates["retention"])
        if self.rule == "retnet":
            gates["retention"] = (0.5 + torch.arange(self.H) / 8).expand(tokens)
        gates["write"] = 2 * gates["write"]
        state = [normal(self.sequences, self.H, self.K, self.V) for _ in range(2)]
        return {
            **{name: x.to(self.dtype) for name, x in (("q", q), ("k", k), ("v", v))},
            **{name: x if name in self.gates else None for name, x in gates.items()},
            "base": state[0],
            "residual": state[1] if RULES[self.rule].residual else None,
        }

    def sent(self) -> dict[str, torch.Tensor | None]:
        """The gradients that come for out and both states."""
        draw = torch.Generator().manual_seed(12)
        out = torch.randn(self.B, self.T, self.H, self.V, generator=draw).to(self.dtype)
        states = [torch.randn(self.sequences, self.H, self.K, self.V, generator=draw) for _ in range(2)]
        return {"out": out, "base": states[0], "residual": states[1] if RULES[self.rule].residual else None}

    @property
    def bounds(self) -> torch.Tensor | None:
        """`cu` as attention takes it."""
        return None if self.cu is None else torch.tensor(self.cu)


def one_spike(x: torch.Tensor) -> torch.Tensor:
    """0.99, but 1e-30 once in every 16 tokens: where differences of cumulated logarithms lose all digits."""
    tokens = torch.arange(x.shape[1]) % 16 == 7
    return torch.where(tokens[None, :, None], 1e-30, 0.99 + 0 * x)


RETENTION: dict[str, Callable] = {
    "mild": lambda x: 0.3 + 0.7 * x,
    "one": torch.ones_like,
    "some zero": lambda x: torch.where(x < 0.15, 0.0, 0.3 + 0.7 * x),
    "all zero": torch.zeros_like,
    "one spike": one_spike,
}


def array(x: torch.Tensor | None) -> np.ndarray | None:
    """In float64."""
    return None if x is None else x.detach().double().cpu().numpy()


def wanted(case: Case, inputs: dict | None = None, sent: dict | None = None) -> dict[str, np.ndarray]:
    """Results and gradients in float64, by name."""
    x = {name: array(part) for name, part in (inputs or case.inputs()).items()}
    fixed = case.rule == "retnet"
    gates = {name: x[name][0, 0] if fixed and name == "retention" else x[name] for name in case.gates}
    arguments = {"q": x["q"], "k": x["k"], "v": x["v"], **gates, **case.options}
    arguments |= {
        "state": State(x["base"], x["residual"]),
        "cu_seqlens": None if case.cu is None else np.array(case.cu),
    }
    out, last = chunked.attention(**arguments, return_state=True)
    d = {name: array(part) for name, part in (sent or case.sent()).items()}
    gradient = chunked.gradient(**arguments, d_out=d["out"], d_state=State(d["base"], d["residual"]))
    found = {"out": out, "base": last.base, "residual": last.residual}
    found |= {f"gradient of {name}": getattr(gradient, name) for name in ("q", "k", "v", *case.gates)}
    found |= {"gradient of base": gradient.state.base, "gradient of residual": gradient.state.residual}
    return {name: part for name, part in found.items() if part is not None}


def trained(attention: Callable, case: Case, inputs: dict | None = None, sent: dict | None = None, **options) -> dict:
    """Results and gradients of attention(q, k, v, retention, write, correction, state=..., ...), by name."""
    given = inputs or case.inputs()
    leaves = {name: x.detach().requires_grad_() for name, x in given.items() if x is not None}
    q, k, v = leaves["q"], leaves["k"], leaves["v"]
    options = case.options | {"state": (leaves["base"], leaves.get("residual"))} | options
    if case.cu is not None:
        options["cu_seqlens"] = case.bounds.to(q.device)
    results = attention(q, k, v, *(leaves.get(name) for name in GATES), **options)
    found = {name: x for name, x in zip(("out", "base", "residual"), results, strict=True) if x is not None}
    came = [(sent or case.sent())[name].to(x.device) for name, x in found.items()]
    gradients = torch.autograd.grad(list(found.values()), list(leaves.values()), came)
    found = {name: x.detach() for name, x in found.items()}
    return found | {f"gradient of {name}": x for name, x in zip(leaves, gradients, strict=True)}


def nudged(tensors: dict, size: float, seed: int) -> dict:
    """Each number times 1 + size at most, or 1 - size."""
    draw = torch.Generator().manual_seed(seed)
    return {
        name: x if x is None else x.double() * (1 + size * (2 * torch.rand(x.shape, generator=draw) - 1).double())
        for name, x in tensors.items()
    }


def assert_right(got: dict, case: Case, inputs: dict | None = None, sent: dict | None = None) -> None:
    """Hold results and gradients of a case against the oracle. Each factor of a product is off by `ROUNDING`, and so
    many terms of either sign are added up: those of a row of K, of V and of a chunk. What that does to a number is seen
    from the oracle itself, of inputs that are off by as much.

    Rows are judged by themselves in float32. With 16-bit factors a row of a gradient is a small difference of large
    numbers, and is judged by the largest one of all.
    """
    inputs, sent = inputs or case.inputs(), sent or case.sent()
    want, size = wanted(case, inputs, sent), ROUNDING[case.dtype]
    gates = {name: inputs[name] for name in ("retention", "write", "correction")}
    low = wanted(case, nudged(inputs, size, 1) | gates, nudged(sent, size, 2))
    assert set(got) == set(want)
    for name, exact in want.items():
        have = array(got[name])
        if case.rule == "retnet" and name == "gradient of retention":
            have = have.sum((0, 1))
        three = [have, exact, low[name]]
        if case.dtype != FP32 or name.removeprefix("gradient of ") in GATES:
            three = [x.reshape(1, -1) for x in three]
        kind = got[name].dtype
        out_dtype = torch.finfo(kind).eps if kind in (BF16, FP16) else None
        seen = parity.compare(*three, terms=case.K + case.V + 16, dtype=size, out_dtype=out_dtype)
        assert seen.ok, f"{name}: {seen.reason}"
