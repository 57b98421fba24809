"""RACE's kernels on the GPU of this machine, beside the card's own copy bandwidth and two peers, all in one run.

    python kernels/bench/race.py            # a table; --json for a program
    python kernels/bench/race.py --tune     # other tiles, chunks and warps than those of CONFIGS, one at a time

bfloat16, heads of width 128, causal and not, with (planes, tables) of (2, 2) and (4, 4). A time is the median of
repeated calls between two CUDA events, after warm-up, with the caches written over in between. The share is of the
bandwidth of a plain copy in the same run, for the bytes that the operation cannot do without
(attnlab_kernels.testing.traffic.compulsory). Before anything is timed, outputs are held to the first peer's.

Peers: Algorithm 1 written plainly in torch (features in full, softmax over the corners; in chunks with prefix sums
where causal) through torch.compile, and softmax attention by torch's flash kernel, which computes something else and
grows with the square of the length. Both take [B, H, T, K], which suits them; the kernels take [B, T, H, K].

Without a GPU it says so and leaves with status 2. Needs this project installed, as `make setup` or
`pip install --editable '.[triton]'` do.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnlab_kernels import race
from attnlab_kernels.testing import traffic
from attnlab_kernels.testing.gpu_clock import Clock, GpuClock
from attnlab_kernels.testing.operations import RaceCase

TOKENS = (2**14, 2**17, 2**20)
BUDGETS = ((2, 2), (4, 4))
FLASH_TOKENS = 2**17  # beyond, softmax attention takes seconds a call: 2^20 tokens are 64 times the work of 2^17
TARGETS = {"forward": 0.8, "forward+backward": 0.5}  # shares of copy bandwidth
TARGET_TOKENS = 2**20  # where they are wanted
SHARPNESS = 2.0
AGREE_TOKENS = 4096
AGREE = 0.01  # root mean square of a difference, over that of the peer: each rounds to bfloat16 in places of its own
ALTERNATIVES = {
    "chunk": (512, 1024, 2048, 4096, 8192),
    "warps": (4, 8),
    **{field: (16, 32, 64, 128) for field in race.Config._fields if field.endswith("tile")},
}


# -- peers --


def features(x: torch.Tensor, planes: torch.Tensor, sharpness: float) -> torch.Tensor:
    """phi [B, H, T, L R] in float32 of x [B, H, T, K], planes [L, P, K]: a softmax over the corners (p. 5)."""
    P = planes.shape[1]
    corners = 2.0 * (torch.arange(2**P, device=x.device)[:, None] >> torch.arange(P, device=x.device) & 1) - 1
    u = torch.tanh(torch.einsum("bhtk,lpk->bhtlp", x.float(), planes))
    return torch.softmax(sharpness * u @ corners.T, dim=-1).flatten(-2)


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, planes: torch.Tensor, sharpness: float) -> torch.Tensor:
    """Algorithm 1 (p. 5) as one would first write it: [B, H, T, V] in v's type."""
    phi_q, phi_k = (features(x, planes, sharpness).to(v.dtype) for x in (q, k))
    den = phi_q.float() @ phi_k.float().sum(-2)[..., None]
    return ((phi_q @ (phi_k.mT @ v)).float() / den).to(v.dtype)


def plain_causal(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, planes: torch.Tensor, sharpness: float, chunk: int = 256
) -> torch.Tensor:
    """Algorithm 2 (p. 27) in chunks: each reads what stood before it, and its own masked block."""
    T = v.shape[2]
    more = -T % chunk
    phi_q, phi_k = (features(x, planes, sharpness).to(v.dtype) for x in (q, k))
    phi_q, phi_k, v = (F.pad(x, (0, 0, 0, more)).unflatten(2, (-1, chunk)) for x in (phi_q, phi_k, v))

    def before(sums: torch.Tensor) -> torch.Tensor:
        return F.pad(torch.cumsum(sums.float(), 2)[:, :, :-1], (0, 0, 0, 0, 1, 0))

    content, mass = before(phi_k.mT @ v), before(phi_k.float().sum(-2, keepdim=True))
    scores = (phi_q @ phi_k.mT).tril()
    num = (phi_q @ content.to(v.dtype)).float() + (scores @ v).float()
    den = (phi_q.float() * mass).sum(-1, keepdim=True) + scores.float().sum(-1, keepdim=True)
    return (num / den.clamp_min(torch.finfo(torch.float32).tiny)).to(v.dtype).flatten(2, 3)[:, :, :T]


def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Softmax attention by the flash kernel and no other."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def ours(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, planes: torch.Tensor, causal: bool, config: str | None = None
) -> torch.Tensor:
    """The kernels: [B, T, H, V]."""
    return race.attention(q, k, v, planes, SHARPNESS, causal=causal, config=config)[0]


# -- measuring --


def copy_bandwidth(clock: Clock, device: str, size: int = 2**30) -> float:
    """Bytes a second that a copy of `size` bytes reads and writes."""
    source = torch.zeros(size, dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    return 2 * size / clock(lambda: target.copy_(source))


def inputs(case: RaceCase, device: str) -> tuple[torch.Tensor, ...]:
    """q, k, v [1, T, H, K] and planes [L, P, K], drawn on the CPU from a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, case.T, case.H, width) for width in (case.K, case.K, case.V)]
    tokens = (torch.randn(shape, generator=generator).to(device, case.dtype) for shape in shapes)
    planes = torch.randn(case.L, case.P, case.K, generator=generator) / case.K**0.5
    return *tokens, planes.to(device)


def heads_first(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """[B, T, H, K] as [B, H, T, K], contiguous."""
    return [x.transpose(1, 2).contiguous() for x in tensors]


def passes(attend: Callable, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict[str, Callable[[], object]]:
    """What is timed of attend(q, k, v): the forward pass alone, and with the gradients of all three."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    sent = torch.ones_like(v)

    def forward() -> object:
        with torch.no_grad():
            return attend(q, k, v)

    def both() -> object:
        return torch.autograd.grad(attend(*leaves), leaves, sent)

    return {"forward": forward, "forward+backward": both}


def compulsory(case: RaceCase, name: str) -> int:
    """The bytes that a pass cannot do without."""
    least = traffic.compulsory(case)
    return least["forward"] + (least["backward"] if name == "forward+backward" else 0)


def disagreement(case: RaceCase, device: str) -> float:
    """The kernels against the first peer: root mean square of the difference of out, over that of the peer's out."""
    q, k, v, planes = inputs(case, device)
    first_q, first_k, first_v = heads_first(q, k, v)
    peer = (plain_causal if case.causal else plain)(first_q, first_k, first_v, planes, SHARPNESS)
    peer = peer.transpose(1, 2).float()
    return float((ours(q, k, v, planes, case.causal).float() - peer).norm() / peer.norm())


def measured(
    chosen: list[RaceCase], bandwidth: float, clock: Clock, device: str, compile: Callable = torch.compile
) -> Iterator[dict[str, Any]]:
    """A row for each case, pass and implementation; one that was not run says why."""
    for case in chosen:
        torch.compiler.reset()  # or it would stop compiling after some sizes, and run the peer uncompiled
        peer = compile(plain_causal if case.causal else plain)
        q, k, v, planes = inputs(case, device)
        first = heads_first(q, k, v)
        attempts: dict[str, tuple[Callable, list[torch.Tensor]]] = {
            "kernels": (partial(ours, planes=planes, causal=case.causal), [q, k, v]),
            "torch.compile": (lambda q, k, v, f=peer, w=planes: f(q, k, v, w, SHARPNESS), first),
            "flash": (partial(flash, causal=case.causal), first),
        }
        for name, (attend, tensors) in attempts.items():
            for what, run in passes(attend, *tensors).items():
                row = {
                    "tokens": case.T, "planes": case.P, "tables": case.L, "causal": case.causal, "pass": what,
                    "impl": name, "ms": None, "share": None, "target": None, "note": "",
                }  # fmt: skip
                if name == "kernels" and case.T == TARGET_TOKENS:
                    row["target"] = TARGETS[what]
                if name == "flash" and case.T > FLASH_TOKENS:
                    row["note"] = f"skipped: quadratic, run up to {FLASH_TOKENS:,} tokens"
                    yield row
                    continue
                try:
                    seconds = clock(run)
                except (RuntimeError, triton.TritonError) as error:  # out of memory, no flash kernel for this card
                    row["note"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                else:
                    row["ms"] = 1e3 * seconds
                    if name != "flash":
                        row["share"] = compulsory(case, what) / seconds / bandwidth
                yield row


def tuned(case: RaceCase, clock: Clock, device: str) -> Iterator[dict[str, Any]]:
    """Forward and backward in other configurations than the default one: each field in turn, the best of it kept. The
    last row is the configuration that comes out.
    """
    q, k, v, planes = inputs(case, device)
    best = race.CONFIGS[race.default_config(case.dtype)]

    def seconds(config: race.Config) -> float | str:
        with traffic.changed(case, **config._asdict()) as other:
            attend = partial(ours, planes=planes, causal=case.causal, config=other.config)
            try:
                return clock(passes(attend, q, k, v)["forward+backward"])
            except (RuntimeError, triton.TritonError) as error:  # more shared memory than there is
                return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"

    fastest = seconds(best)
    yield {"config": best._asdict(), "ms": _ms(fastest), "note": "the default" if _ms(fastest) else str(fastest)}
    for field, values in ALTERNATIVES.items():
        here = best
        for value in values:
            if value == getattr(here, field):
                continue
            other = here._replace(**{field: value})
            took = seconds(other)
            if isinstance(took, float) and not (isinstance(fastest, float) and fastest <= took):
                best, fastest = other, took
            yield {"config": other._asdict(), "ms": _ms(took), "note": "" if _ms(took) else str(took)}
    yield {"config": best._asdict(), "ms": _ms(fastest), "note": "the fastest"}


def _ms(seconds: float | str) -> float | None:
    return 1e3 * seconds if isinstance(seconds, float) else None


def machine() -> dict[str, Any]:
    """Card, driver and versions."""
    card = torch.cuda.get_device_properties(0)
    driver = None
    if (tool := shutil.which("nvidia-smi")) is not None:
        query = [tool, "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
        driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip() or None
    return {
        "card": card.name,
        "multiprocessors": card.multi_processor_count,
        "memory_bytes": card.total_memory,
        "driver": driver,
        "runtime": torch.version.hip or torch.version.cuda,
        "torch": torch.__version__,
        "triton": triton.__version__,
    }


# -- the command --


def arguments(given: list[str] | None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description="RACE's kernels on this machine's GPU, beside its copy bandwidth.")
    parser.add_argument("--json", action="store_true", help="print JSON alone on stdout")
    parser.add_argument("--tune", action="store_true", help="search other configurations at the longest length")
    parser.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS), help="lengths (default %(default)s)")
    parser.add_argument("--heads", type=int, default=4, help="heads (default 4)")
    parser.add_argument("--width", type=int, default=128, help="width of a head (default 128)")
    options = parser.parse_args(given)
    for name in ("tokens", "heads", "width"):
        values = getattr(options, name)
        if min(values if isinstance(values, list) else [values]) < 1:
            parser.error(f"--{name} must be at least 1, got {values}")
    return options


def cases(options: argparse.Namespace) -> list[RaceCase]:
    """What is measured: each budget and mask at each length."""
    kind, width, H = torch.bfloat16, options.width, options.heads
    return [
        RaceCase(kind, *budget, width, width, causal, T, H)
        for T in options.tokens
        for budget in BUDGETS
        for causal in (False, True)
    ]


def main(given: list[str] | None = None) -> int:
    """Measure and print; 2 without a GPU, 1 where the kernels disagree with the peer."""
    options = arguments(given)
    if not torch.cuda.is_available():
        print("kernels/bench/race.py: torch sees no GPU on this machine, so nothing was measured.", file=sys.stderr)
        return 2
    chosen = cases(options)
    for case in chosen[: 2 * len(BUDGETS)]:
        far = disagreement(case._replace(T=AGREE_TOKENS), "cuda")
        if not far <= AGREE:
            print(f"{case.id}: the kernels differ from the plain formula by {far:.2g}, nothing timed", file=sys.stderr)
            return 1
    clock = GpuClock()
    bandwidth = copy_bandwidth(clock, "cuda")
    result: dict[str, Any] = {"machine": machine(), "copy_bytes_per_s": bandwidth}
    if options.tune:
        longest = [case for case in chosen if case.T == max(options.tokens)]
        result["tuned"] = {case.id: list(tuned(case, clock, "cuda")) for case in longest}
    else:
        result["rows"] = list(measured(chosen, bandwidth, clock, "cuda"))
    print(json.dumps(result, indent=1) if options.json else as_text(result))
    return 0


def as_text(result: dict[str, Any]) -> str:
    """The result for a person to read."""
    told = ", ".join(f"{name} {value}" for name, value in result["machine"].items() if value is not None)
    lines = [told, f"copy: {result['copy_bytes_per_s'] / 1e9:,.0f} GB/s", ""]
    for row in result.get("rows", []):
        name = f"{row['tokens']:>9,} p{row['planes']}l{row['tables']} {'causal' if row['causal'] else 'noncausal':9}"
        took = "" if row["ms"] is None else f"{row['ms']:.3f} ms"
        share = "" if row["share"] is None else f"{row['share']:.0%} of copy"
        goal = "" if row["target"] is None else f"target {row['target']:.0%}"
        lines.append(f"{name} {row['pass']:16} {row['impl']:13} {took:>12} {share:>13} {goal:10} {row['note']}")
    for case, tried in result.get("tuned", {}).items():
        lines.append(case)
        for entry in tried:
            took = "" if entry["ms"] is None else f"{entry['ms']:.3f} ms"
            fields = " ".join(f"{name}={value}" for name, value in entry["config"].items())
            lines.append(f"    {took:>12}  {fields}  {entry['note']}")
    return "\n".join(line.rstrip() for line in lines)


if __name__ == "__main__":
    sys.exit(main())
