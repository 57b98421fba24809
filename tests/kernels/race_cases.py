"""Inputs, oracles and budgets that the tests of RACE's kernels and of its torch operations share.

The oracle is the torch room in float64: its forward is held to the reference elsewhere, its gradients come of autograd.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from unittest import mock

import numpy as np
import torch

from attnlab import parity
from attnlab.race import draw_planes, torch_impl

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
LEAVES = ("q", "k", "v", "sharpness", "mass", "content")  # what has a gradient
GRIDS = (1.0, 1.2, 1.45, 1.7)
RESULTS = ("out", "last mass", "last content", *(f"gradient of {name}" for name in LEAVES))


class Case(NamedTuple):
    """Sizes and types of one call: P planes, L tables, H heads, widths K and V, S keys where they are not T; `cu` packs
    sequences, `carried` is the type of the state.
    """

    T: int
    S: int | None = None
    K: int = 20
    V: int = 12
    P: int = 2
    L: int = 3
    H: int = 1
    B: int = 1
    dtype: torch.dtype = FP32
    carried: torch.dtype = FP32
    cu: tuple[int, ...] | None = None

    @property
    def keys(self) -> int:
        """How many tokens k and v have."""
        return self.T if self.S is None else self.S

    @property
    def sequences(self) -> int:
        """How many states there are."""
        return self.B if self.cu is None else len(self.cu) - 1

    @property
    def terms(self) -> int:
        """How many terms are added up in an output."""
        return self.keys + self.L * 2**self.P

    def inputs(self) -> dict[str, torch.Tensor]:
        """q, k, v, planes (of each head where there are several), sharpness [H], and mass and content of earlier keys.

        q and k have length 1 or so: the projections are no larger, and no feature is flat.
        """
        generator = torch.Generator().manual_seed(7)

        def normal(*shape: int, size: float = 1.0) -> torch.Tensor:
            return (size * torch.randn(shape, generator=generator)).to(self.dtype)

        mass = 0.5 + torch.rand(self.sequences, self.H, self.L, 2**self.P, generator=generator)
        content = mass[..., None] * torch.randn(*mass.shape, self.V, generator=generator)
        planes = np.stack([draw_planes(self.L, self.P, self.K, seed) for seed in range(self.H)])
        return {
            "q": normal(self.B, self.T, self.H, self.K, size=self.K**-0.5),
            "k": normal(self.B, self.keys, self.H, self.K, size=self.K**-0.5),
            "v": normal(self.B, self.keys, self.H, self.V),
            "planes": torch.tensor(planes if self.H > 1 else planes[0], dtype=FP32),
            "sharpness": 1.5 + torch.arange(self.H),
            "mass": mass.to(self.carried),
            "content": content.to(self.carried),
        }

    def sent(self) -> tuple[torch.Tensor, ...]:
        """The gradients that come for out, mass and content. The latter are small, or they would drown the rest."""
        generator = torch.Generator().manual_seed(8)
        state = (self.sequences, self.H, self.L, 2**self.P)
        out = torch.randn(self.B, self.T, self.H, self.V, generator=generator)
        mass, content = (torch.randn(shape, generator=generator) / 8 for shape in (state, (*state, self.V)))
        return out.to(self.dtype), mass.to(self.carried), content.to(self.carried)

    @property
    def bounds(self) -> torch.Tensor | None:
        """`cu` as attention takes it."""
        return None if self.cu is None else torch.tensor(self.cu, dtype=torch.int32)


def trained(attention: Callable, inputs: dict[str, torch.Tensor], sent: tuple, **options) -> dict[str, torch.Tensor]:
    """Results and gradients of attention(q, k, v, planes, sharpness, state=(mass, content), **options), by name."""
    leaves = {name: inputs[name].detach().requires_grad_() for name in LEAVES}
    q, k, v, sharpness, *state = leaves.values()
    results = attention(q, k, v, inputs["planes"], sharpness, state=tuple(state), **options)
    sent = [x.to(y.dtype) for x, y in zip(sent, results, strict=True)]
    gradients = torch.autograd.grad(results, list(leaves.values()), sent)
    return dict(zip(RESULTS, [x.detach() for x in (*results, *gradients)], strict=True))


def one_by_one(q, k, v, planes, sharpness, *, causal, state=None, cu_seqlens=None):
    """(out, mass, content) of the torch room; packed sequences each in a call of its own."""
    if cu_seqlens is None:
        out, last = torch_impl.attention(q, k, v, planes, sharpness, causal=causal, state=state, return_state=True)
        return out, *last[:2]
    outs, states = [], []
    for n, (a, b) in enumerate(itertools.pairwise(cu_seqlens.tolist())):
        arguments = (*(x[:, a:b] for x in (q, k, v)), planes, sharpness)
        out, *last = one_by_one(*arguments, causal=causal, state=tuple(x[n : n + 1] for x in state))
        outs.append(out)
        states.append(last)
    return torch.cat(outs, 1), *(torch.cat(parts) for parts in zip(*states, strict=True))


def oracle(inputs: dict[str, torch.Tensor], sent: tuple, kind=FP64, **options) -> dict[str, torch.Tensor]:
    """What `trained` must give, computed in `kind`."""
    return trained(one_by_one, {name: x.to(kind) for name, x in inputs.items()}, sent, **options)


def as_tensor_cores_take(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x rounded as a factor is where input of this type is multiplied: to bfloat16; to the eleven bits of tf32 in
    float16; to two parts of that in float32.
    """
    if dtype == BF16:
        return x.to(BF16).to(x.dtype)
    bits = 22 if dtype == FP32 else 11
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp((mantissa * 2**bits).round() / 2**bits, exponent)


@contextmanager
def rounded_features(dtype: torch.dtype, grid: float = 1.0) -> Iterator[None]:
    """In here the torch room rounds its features, and the gradients that come for them, as the kernels do for input of
    this type; `grid` times a number is what is rounded, so that each grid is off in another way.
    """
    exact = torch_impl.features

    def rounded(x):
        return as_tensor_cores_take(grid * x, dtype) / grid

    def features(*arguments):
        phi = exact(*arguments)
        if phi.requires_grad:
            phi.register_hook(rounded)
        return phi + (rounded(phi) - phi).detach()

    with mock.patch.object(torch_impl, "features", features):
        yield


@contextmanager
def parts_of_sharpness() -> Iterator[list[torch.Tensor]]:
    """Collects what each token adds to the gradient of sharpness, [B, H, C] for each chunk, as the torch room does."""
    exact, parts = torch_impl.features, []

    def features(x, planes, beta):
        phi = exact(x, planes, beta)
        if phi.requires_grad:
            weights = torch.ones_like(phi, requires_grad=True)
            (gradient,) = torch.autograd.grad(phi, beta, weights, create_graph=True)
            (slope,) = torch.autograd.grad(gradient.sum(), weights)  # of phi by beta: the gradient is linear in weights
            phi.register_hook(lambda d_phi: parts.append((d_phi * slope).sum(-1)))
        return phi

    with mock.patch.object(torch_impl, "features", features):
        yield parts


def assert_right(got: dict, exact: dict, low: dict, case: Case) -> None:
    """Hold results and gradients against exact ones. `low` are those of the precision that the kernels work in.

    float32: 2^-22 of every term is lost where operands are split in two parts. float16 and bfloat16: what `low` has not
    is one more rounding, of a product of features. A gradient is then a small difference of large numbers, so that its
    rows are judged by the largest one.
    """
    half = case.dtype != FP32
    rounding = {"dtype": 2.0**-22, "terms": case.terms}
    if half:
        rounding = {"dtype": {BF16: 2.0**-8, FP16: 2.0**-11}[case.dtype], "terms": 1}
    for name in got:
        three = [x[name].double().numpy() for x in (got, exact, low)]
        if half and name.startswith("gradient") and "sharpness" not in name:
            three = [x.reshape(1, -1) for x in three]
        kind = got[name].dtype
        out_dtype = torch.finfo(kind).eps if kind in (BF16, FP16) else None
        seen = parity.compare(*three, **rounding, out_dtype=out_dtype)
        assert seen.ok, f"{name}: {seen.reason}"


def assert_trained(got: dict, case: Case, inputs: dict | None = None, **options) -> None:
    """Hold what `trained` gave for a case against the oracle. A number may be off by the most that it is off in plain
    float32 and on one of several grids. The gradient of sharpness is the sum of a number of either sign from every
    token, each with its own error: it is judged by the root of their squares where that is larger.
    """
    inputs, sent = inputs or case.inputs(), case.sent()
    with parts_of_sharpness() as parts:
        exact = oracle(inputs, sent, **options)
    runs = [oracle(inputs, sent, FP32, **options)]
    for grid in GRIDS:
        with rounded_features(case.dtype, grid):
            runs.append(oracle(inputs, sent, **options))
    low = {name: farthest(x, [run[name] for run in runs]) for name, x in exact.items()}
    size = sum(((part**2).sum((0, 2)) for part in parts), torch.zeros(case.H, dtype=FP64)).sqrt()
    name = "gradient of sharpness"
    beside = [results | {name: torch.stack([results[name].double(), size], -1)} for results in (got, exact, low)]
    assert_right(*beside, case)


def farthest(x: torch.Tensor, others: list[torch.Tensor]) -> torch.Tensor:
    """Of each number in `others` the one farthest from that in x."""
    stacked = torch.stack(others)
    return stacked.gather(0, (stacked - x).abs().argmax(0, keepdim=True))[0]
