"""The operations at which kernels are compiled, traced and counted: real calls, at sizes that people use.

Each has the name of its case and is a function without arguments that runs it on tensors of device "meta", inside
`launch.recorded()`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch

from attnlab_kernels import race, residual

__all__ = [
    "RaceCase",
    "ResidualCase",
    "compiled",
    "race_arguments",
    "race_forward_and_backward",
    "residual_arguments",
    "residual_forward_and_backward",
]

KINDS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


class RaceCase(NamedTuple):
    """One size and type of RACE attention: P planes, L tables, K and V widths of a head."""

    dtype: torch.dtype
    P: int = 4
    L: int = 4
    K: int = 128
    V: int = 128
    causal: bool = False
    T: int = 4096
    H: int = 4
    config: str | None = None

    @property
    def id(self) -> str:
        """Type, budget, widths and mask in one word."""
        config = "" if self.config is None else f"-{self.config}"
        return f"{KINDS[self.dtype]}-p{self.P}l{self.L}-k{self.K}v{self.V}{'-causal' if self.causal else ''}{config}"


def race_arguments(case: RaceCase, device: str = "meta") -> dict[str, Any]:
    """The arguments of `race.forward`; random numbers where the device holds any."""
    generator = None if device == "meta" else torch.Generator(device).manual_seed(0)

    def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        if device == "meta":
            return torch.empty(shape, dtype=dtype, device=device)
        return torch.randn(shape, device=device, generator=generator).to(dtype)

    H, L, R = case.H, case.L, 2**case.P
    return {
        "q": draw(1, case.T, H, case.K, dtype=case.dtype),
        "k": draw(1, case.T, H, case.K, dtype=case.dtype),
        "v": draw(1, case.T, H, case.V, dtype=case.dtype),
        "planes": draw(H, L, case.P, case.K),
        "beta": torch.full((H,), 2.0, device=device),
        "mass": torch.zeros(1, H, L, R, device=device),
        "content": torch.zeros(1, H, L, R, case.V, device=device),
        "cu_seqlens": None,
        "causal": case.causal,
        "config": case.config or race.default_config(case.dtype),
    }


def race_forward_and_backward(
    case: RaceCase, device: str = "meta", watch: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> dict[str, Any]:
    """Every launch of a training step of one RACE layer. {"forward": ..., "backward": ...} is what a `watch` around
    each of the two yields. The gradient of the output is 1, that of the last state 0.
    """
    arguments = race_arguments(case, device)
    with watch() as forward:
        out, den, mass, content, last_mass, last_content = race.forward(**arguments)
    given = {name: x for name, x in arguments.items() if name not in ("mass", "content")}
    given |= {"d_out": torch.ones_like(out), "out": out, "den": den}
    given |= {"d_mass": torch.zeros_like(last_mass), "d_content": torch.zeros_like(last_content)}
    given |= {"mass": mass, "content": content} if case.causal else {"mass": last_mass, "content": last_content}
    with watch() as backward:
        race.backward(**given)
    return {"forward": forward, "backward": backward}


def _race_decode(case: RaceCase) -> None:
    arguments = race_arguments(case._replace(T=1))
    race.decode(*(arguments[name] for name in ("q", "k", "v", "planes", "beta", "mass", "content")))


class ResidualCase(NamedTuple):
    """One size, type and rule of residual linear attention: K and V widths of a head. `tied`: without a correction of
    its own.
    """

    dtype: torch.dtype
    rule: str = "rdn"
    K: int = 128
    V: int = 128
    T: int = 4096
    H: int = 4
    tied: bool = False
    target: str = "clip"
    read_gates: bool = True
    config: str | None = None

    @property
    def id(self) -> str:
        """Rule, type, widths and switches in one word."""
        switches = [
            *(["tied"] if self.tied else []),
            *([] if self.target == "clip" else [self.target]),
            *([] if self.read_gates else ["ungated"]),
            *([] if self.config is None else [self.config]),
        ]
        return "-".join([self.rule, KINDS[self.dtype], f"k{self.K}v{self.V}", *switches])


def residual_arguments(case: ResidualCase, device: str = "meta") -> dict[str, Any]:
    """The arguments of `residual.forward`, which keeps what a gradient needs; q and k have length 1 or so, random
    numbers where the device holds any.
    """
    generator = None if device == "meta" else torch.Generator(device).manual_seed(0)
    has, tokens = residual.RULES[case.rule], (1, case.T, case.H)

    def draw(*shape: int, dtype: torch.dtype, size: float = 1.0) -> torch.Tensor:
        if device == "meta":
            return torch.empty(shape, dtype=dtype, device=device)
        return (size * torch.randn(shape, device=device, generator=generator)).to(dtype)

    def gate(wanted: bool) -> torch.Tensor | None:
        if not wanted:
            return None
        if device == "meta":
            return torch.empty(tokens, device=device)
        return torch.rand(tokens, device=device, generator=generator)

    def memory() -> torch.Tensor:
        return torch.zeros(1, case.H, case.V, case.K, device=device).mT

    return {
        "q": draw(*tokens, case.K, dtype=case.dtype, size=case.K**-0.5),
        "k": draw(*tokens, case.K, dtype=case.dtype, size=case.K**-0.5),
        "v": draw(*tokens, case.V, dtype=case.dtype),
        "alpha": gate(has.retention),
        "beta": gate(has.write),
        "gamma": gate(has.residual and not case.tied),
        "base": memory(),
        "residual": memory() if has.residual else None,
        "cu_seqlens": None,
        "rule": case.rule,
        "clip": 1.0,
        "target": case.target,
        "read_gates": case.read_gates,
        "scale": 1.0,
        "keep": True,
        "config": case.config or residual.default_config(case.dtype),
    }


def residual_forward_and_backward(
    case: ResidualCase, device: str = "meta", watch: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> dict[str, Any]:
    """As `race_forward_and_backward`, of one residual layer."""
    arguments = residual_arguments(case, device)
    with watch() as forward:
        out, base, other, *kept = residual.forward(**arguments)
    given = {name: x for name, x in arguments.items() if name not in ("base", "residual", "keep")}
    given |= {"d_out": torch.ones_like(out), "d_base": torch.zeros_like(base)}
    given["d_residual"] = None if arguments["residual"] is None else torch.zeros_like(other)
    names = ("factors", "tiles", "kept_base", "kept_residual", "before_base", "before_residual")
    given |= dict(zip(names, kept, strict=True))
    with watch() as backward:
        residual.backward(**given)
    return {"forward": forward, "backward": backward}


def _residual_forward(case: ResidualCase) -> None:
    residual.forward(**residual_arguments(case) | {"keep": False})


def _residual_decode(case: ResidualCase) -> None:
    arguments = residual_arguments(case._replace(T=1))
    residual.decode(**{name: x for name, x in arguments.items() if name not in ("cu_seqlens", "keep", "config")})


def compiled() -> list[tuple[str, Callable[[], object]]]:
    """(id, operation) of all that the compile table covers: every kernel in every type, every configuration, and the
    widest rows.
    """
    bf16, fp16, fp32 = torch.bfloat16, torch.float16, torch.float32
    cases = [
        *(RaceCase(kind, causal=causal) for kind in (bf16, fp16, fp32) for causal in (False, True)),
        RaceCase(bf16, 6, 1, 256, 256, causal=True),
        RaceCase(fp32, 6, 1, 200, 256, causal=True),
        RaceCase(bf16, causal=True, config="short"),
    ]
    operations: list[tuple[str, Callable[[], object]]] = [
        (case.id, partial(race_forward_and_backward, case)) for case in cases
    ]
    decodes = [RaceCase(bf16), RaceCase(fp32, 6, 4, 256, 256)]
    operations += [(f"{case.id}-decode", partial(_race_decode, case)) for case in decodes]
    return operations + _compiled_residual()


def _compiled_residual() -> list[tuple[str, Callable[[], object]]]:
    """Every kernel in every type, and what rules and switches make of them in bfloat16."""
    bf16, fp16, fp32 = torch.bfloat16, torch.float16, torch.float32
    cases = [
        *(ResidualCase(bf16, rule) for rule in ("rdn", "rla", "gdn")),  # the others are these with less
        ResidualCase(bf16, tied=True),
        ResidualCase(bf16, target="log_cosh", read_gates=False),
        ResidualCase(bf16, "gdn", K=256, V=256),
        ResidualCase(fp16, K=64, V=64),
        ResidualCase(fp32, K=32, V=32),
        ResidualCase(fp32, K=16, V=16, config="short"),
    ]
    decodes = [ResidualCase(bf16), ResidualCase(fp32, "gdn", 256, 256)]
    return [
        *((case.id, partial(residual_forward_and_backward, case)) for case in cases),
        (f"{cases[0].id}-inference", partial(_residual_forward, cases[0])),
        *((f"{case.id}-decode", partial(_residual_decode, case)) for case in decodes),
    ]
