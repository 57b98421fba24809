"""The operations at which kernels are compiled, traced and counted: real calls, at sizes that people use.

Each has the name of its case and is a function without arguments that runs it on tensors of device "meta", inside
`launch.recorded()`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch

from attnlab_kernels import race

__all__ = ["RaceCase", "compiled", "race_arguments", "race_forward_and_backward"]


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
        kind = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[self.dtype]
        config = "" if self.config is None else f"-{self.config}"
        return f"{kind}-p{self.P}l{self.L}-k{self.K}v{self.V}{'-causal' if self.causal else ''}{config}"


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
    return operations + [(f"{case.id}-decode", partial(_race_decode, case)) for case in decodes]
