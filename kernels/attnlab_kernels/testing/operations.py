"""The operations at which kernels are compiled, traced and counted: real calls, at sizes that people use.

Each has the name of its case and is a function without arguments that runs it on tensors of device "meta", inside
`launch.recorded()`.
"""

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch

from attnlab_kernels import hashattention, lrkv, race, residual

__all__ = [
    "HashCase",
    "LrkvCase",
    "RaceCase",
    "ResidualCase",
    "compiled",
    "hash_arguments",
    "hash_encode",
    "hash_scan_and_gather",
    "lrkv_arguments",
    "lrkv_attention",
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


class HashCase(NamedTuple):
    """One size and type of HashAttention: S keys, T queries, H query heads on G key/value heads, codes of some bits, K
    and V widths. `lists`: for how many heads, H if None. `interleaved`: codes of a token stand side by side, in place
    of those of neighbouring tokens. `layers`: the widths of a map between head and bits.
    """

    dtype: torch.dtype
    bits: int = 32
    K: int = 128
    V: int = 128
    S: int = 4096
    T: int = 1
    H: int = 8
    G: int = 2
    lists: int | None = None
    budget: int = 256
    interleaved: bool = False
    layers: tuple[int, ...] = (128, 128)
    config: str = "default"

    @property
    def id(self) -> str:
        """Bits, type, widths, sharing and layout in one word."""
        switches = [
            *(["interleaved"] if self.interleaved else []),
            *([] if self.lists is None else ["shared"]),
            *([] if self.config == "default" else [self.config]),
        ]
        return "-".join([f"b{self.bits}", KINDS[self.dtype], f"k{self.K}v{self.V}", f"h{self.H}g{self.G}", *switches])


def hash_arguments(case: HashCase, device: str = "meta") -> dict[str, Any]:
    """q, k, v, codes of queries and of keys; random numbers where the device holds any."""
    generator = None if device == "meta" else torch.Generator(device).manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        if device == "meta":
            return torch.empty(shape, dtype=case.dtype, device=device)
        return torch.randn(shape, device=device, generator=generator).to(case.dtype)

    def code(tokens: int, heads: int, interleaved: bool) -> torch.Tensor:
        codes = hashattention.empty_codes(1, tokens, heads, case.bits, device)
        codes = codes.contiguous() if interleaved else codes
        if device != "meta":
            codes.copy_(torch.randint(-(2**31), 2**31, codes.shape, device=device, generator=generator))
        return codes

    return {
        "q": draw(1, case.T, case.H, case.K),
        "k": draw(1, case.S, case.G, case.K),
        "v": draw(1, case.S, case.G, case.V),
        "query_codes": code(case.T, case.H, True),
        "key_codes": code(case.S, case.G, case.interleaved),
    }


def hash_scan_and_gather(
    case: HashCase, device: str = "meta", watch: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> dict[str, Any]:
    """A decode step but for the codes: {"scan": ..., "gather": ...} is what a `watch` around each of the two yields.
    Heads that share a list share that of the first of them.
    """
    given = hash_arguments(case, device)
    q, k, v, query_codes, key_codes = given.values()
    sizes = hashattention.sizes(case.T, case.S, case.budget, 128, 128, True, q.device)
    with watch() as scan:
        index = hashattention.scan(query_codes, key_codes, *sizes, case.config)
    lists = case.lists or case.H
    index = index[:, :, :: case.H // lists].contiguous()
    lengths = sizes.table[None, :, None, 4].expand(index.shape[:3])
    with watch() as gather:
        hashattention.gather(q, k, v, index, lengths, case.K**-0.5, case.config)
    return {"scan": scan, "gather": gather}


def hash_encode(
    case: HashCase, tokens: int, weights: torch.dtype = torch.float32, device: str = "meta"
) -> torch.Tensor:
    """The codes of so many rows of H heads."""
    widths = (case.K, *case.layers, case.bits)
    maps = [torch.zeros(case.H, a, b, dtype=weights, device=device) for a, b in itertools.pairwise(widths)]
    biases = [torch.zeros(case.H, b, dtype=weights, device=device) for b in widths[1:]]
    codes = hashattention.empty_codes(1, tokens, case.H, case.bits, device)
    x = torch.zeros(1, tokens, case.H, case.K, dtype=case.dtype, device=device)
    hashattention.write_codes(x, hashattention.pack(maps, biases), codes)
    return codes


class LrkvCase(NamedTuple):
    """One size and type of LRKV: S keys, T queries, H query heads on G shared ones, K and V widths, R numbers a latent
    of keys and of values alike. `turned`: how many planes of shared keys turn at read, all where they are expanded, and
    how many of latents; `expanded`: keys are made whole. `scaled`: keys have a scale.
    """

    dtype: torch.dtype
    R: int = 56
    K: int = 128
    V: int = 128
    S: int = 4096
    T: int = 1
    H: int = 32
    G: int = 1
    turned: tuple[int, int] = (0, 0)
    expanded: bool = False
    scaled: bool = False
    config: str = "default"

    @property
    def id(self) -> str:
        """Rank, type, widths, heads and options in one word."""
        switches = [
            *([] if self.T == 1 else [f"t{self.T}"]),
            *(["turned"] if any(self.turned) and not self.expanded else []),
            *(["expanded"] if self.expanded else []),
            *(["scaled"] if self.scaled else []),
            *([] if self.config == "default" else [self.config]),
        ]
        return "-".join([f"r{self.R}", KINDS[self.dtype], f"k{self.K}v{self.V}", f"h{self.H}g{self.G}", *switches])


def lrkv_arguments(case: LrkvCase, device: str = "meta") -> dict[str, Any]:
    """The arguments of `lrkv.forward`; random numbers where the device holds any."""
    generator = None if device == "meta" else torch.Generator(device).manual_seed(0)
    tokens, heads = (1, case.S), (1, case.T, case.H)

    def draw(*shape: int, dtype: torch.dtype = case.dtype) -> torch.Tensor:
        if device == "meta":
            return torch.empty(shape, dtype=dtype, device=device)
        return torch.randn(shape, device=device, generator=generator).to(dtype)

    def turns(planes: int, wanted: bool) -> torch.Tensor | None:
        return draw(*tokens, 2, planes, dtype=torch.float32) if wanted else None

    q = draw(*heads, case.K)
    some = case.R > 0
    return {
        "q": q,
        "q_residual": q,
        "k_shared": draw(*tokens, case.G, case.K),
        "v_shared": draw(*tokens, case.G, case.V),
        "k_latent": draw(*tokens, case.H, case.R) if some else None,
        "v_latent": draw(*tokens, case.H, case.R) if some else None,
        "k_factor": draw(case.H, case.K, case.R) if some else None,
        "v_factor": draw(case.H, case.V, case.R) if some else None,
        "k_scale": draw(*tokens, case.H) if case.scaled else None,
        "turns": turns(case.turned[0], any(case.turned)),
        "latent_turns": turns(case.turned[1], any(case.turned) and not case.expanded),
        "interleaved": False,
        "latent_interleaved": False,
        "starts": None,
        "ends": None,
        "causal": True,
        "scale": case.K**-0.5,
        "config": case.config,
    }


def lrkv_attention(
    case: LrkvCase, device: str = "meta", watch: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> dict[str, Any]:
    """A step of one layer: {"decode": ...}, or {"prefill": ...} of many queries, is what a `watch` around it yields."""
    given = lrkv_arguments(case, device)
    with watch() as seen:
        lrkv.forward(**given)
    return {"decode" if case.T <= lrkv.CONFIGS[case.config].few else "prefill": seen}


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
    return operations + _compiled_residual() + _compiled_hash() + _compiled_lrkv()


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


def _compiled_hash() -> list[tuple[str, Callable[[], object]]]:
    """Every kernel in bfloat16 and float32, narrow and wide; codes of one word in both layouts, and of eight."""
    bf16, fp32 = torch.bfloat16, torch.float32
    scans = [
        HashCase(bf16, H=32, G=8),
        HashCase(bf16, H=8, G=8, interleaved=True),
        HashCase(fp32, bits=256, K=256, V=256, H=32, G=8),
        HashCase(bf16, H=32, G=8, lists=8),
        HashCase(torch.float16, bits=256, K=256, V=256, H=32, G=8, lists=8),
    ]
    maps = [
        (HashCase(bf16), 1, fp32),
        (HashCase(bf16), 4096, bf16),
        (HashCase(fp32, bits=300, K=256, layers=()), 4096, fp32),
    ]
    return [
        *((case.id, partial(hash_scan_and_gather, case)) for case in scans),
        *((f"{case.id}-encode{tokens}", partial(hash_encode, case, tokens, kind)) for case, tokens, kind in maps),
    ]


def _compiled_lrkv() -> list[tuple[str, Callable[[], object]]]:
    """Decoding at three ranks, without latents, turned at read, in float32 and wide; prefill in each tile, expanded."""
    bf16, fp16, fp32 = torch.bfloat16, torch.float16, torch.float32
    cases = [
        *(LrkvCase(bf16, R) for R in (16, 32, 56)),
        LrkvCase(bf16, 0, G=8),
        LrkvCase(bf16, turned=(64, 28), scaled=True),
        LrkvCase(fp32),
        LrkvCase(fp16, 128, 256, 256),
        LrkvCase(fp32, 64, 256, 256, T=1),
        LrkvCase(bf16, T=4096),
        LrkvCase(bf16, T=4096, turned=(64, 0), expanded=True),
        LrkvCase(fp32, 64, 256, 256, T=4096),
    ]
    return [(case.id, partial(lrkv_attention, case)) for case in cases]
