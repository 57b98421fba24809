"""The residual kernels on the GPU of this machine, beside flash-linear-attention's Gated DeltaNet, all in one run.

    python kernels/bench/residual.py            # a table; --json for a program

bfloat16, heads of width 128: RDN and RLA with a correction tied to the write, our own Gated DeltaNet, and the
chunk_gated_delta_rule of flash-linear-attention where that package is installed (pip install flash-linear-attention).
RDN does about twice the work of Gated DeltaNet. Wanted: its forward and backward pass together take no more than 1.3
times those of flash-linear-attention's Gated DeltaNet at the same shape, both measured here.

A time is the median of repeated calls between two CUDA events, after warm-up, with the caches written over in between.
Before anything is timed, our Gated DeltaNet is held to theirs. The peer takes log retentions and a scale of 1.

Without a GPU it says so and leaves with status 2. Needs this project installed, as `make setup` or
`pip install --editable '.[triton]'` do.
"""

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import triton

from attnlab_kernels import residual
from attnlab_kernels.testing.gpu_clock import Clock, GpuClock, machine

SHAPES = ((1, 2**15, 16), (8, 2**12, 16), (32, 2**10, 16))  # rows, tokens, heads
WIDTH = 128
WANTED = 1.3  # times the peer's forward and backward
AGREE = 0.02  # root mean square of a difference, over that of the peer: each rounds to bfloat16 in places of its own
RULES = ("rdn", "rla", "gdn")


def inputs(shape: tuple[int, int, int], width: int, device: str) -> list[torch.Tensor]:
    """q, k of length 1, v in bfloat16, retention near 1 and write in float32, from a fixed seed."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(*shape, width, generator=draw) for _ in range(3))
    q, k = (x / x.norm(dim=-1, keepdim=True) for x in (q, k))
    retention, write = 0.9 + 0.1 * torch.rand(shape, generator=draw), torch.rand(shape, generator=draw)
    return [*(x.to(device, torch.bfloat16) for x in (q, k, v)), retention.to(device), write.to(device)]


def ours(q, k, v, retention, write, *, rule: str) -> torch.Tensor:
    """The kernels: [B, T, H, V]."""
    return residual.attention(q, k, v, retention, write, rule=rule)[0]


def peer() -> Callable[..., torch.Tensor] | None:
    """flash-linear-attention's Gated DeltaNet with the arguments of `ours`; None where it is not installed."""
    if importlib.util.find_spec("fla") is None:
        return None
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    def attend(q, k, v, retention, write):
        return chunk_gated_delta_rule(q, k, v, g=retention.log(), beta=write, scale=1.0)[0]

    return attend


def passes(attend: Callable[..., torch.Tensor], tensors: list[torch.Tensor]) -> dict[str, Callable[[], object]]:
    """What is timed: the forward pass alone, and with the gradients of all inputs."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    sent = torch.ones_like(tensors[2])

    def forward() -> object:
        with torch.no_grad():
            return attend(*tensors)

    def both() -> object:
        return torch.autograd.grad(attend(*leaves), leaves, sent)

    return {"forward": forward, "forward+backward": both}


def disagreement(attend: Callable[..., torch.Tensor], device: str) -> float:
    """Our Gated DeltaNet against theirs: root mean square of the difference of out, over that of theirs."""
    tensors = inputs((1, 2048, 4), WIDTH, device)
    theirs = attend(*tensors).float()
    return float((ours(*tensors, rule="gdn").float() - theirs).norm() / theirs.norm())


def measured(shapes: list[tuple[int, int, int]], width: int, clock: Clock, device: str) -> Iterator[dict[str, Any]]:
    """A row for each shape, pass and implementation; one that was not run says why."""
    theirs = peer()
    for shape in shapes:
        tensors = inputs(shape, width, device)
        attempts: dict[str, Callable[..., torch.Tensor] | None] = {"fla gdn": theirs}
        attempts |= {f"kernels {rule}": partial(ours, rule=rule) for rule in RULES}
        base: dict[str, float] = {}
        for name, attend in attempts.items():
            for what in ("forward", "forward+backward"):
                row = {
                    "rows": shape[0], "tokens": shape[1], "heads": shape[2], "width": width, "pass": what, "impl": name,
                    "ms": None, "of_peer": None, "target": None, "note": "",
                }  # fmt: skip
                if name == "kernels rdn" and what == "forward+backward":
                    row["target"] = WANTED
                if attend is None:
                    row["note"] = "not installed; get it with: pip install flash-linear-attention"
                    yield row
                    continue
                try:
                    seconds = clock(passes(attend, tensors)[what])
                except (RuntimeError, triton.TritonError) as error:  # out of memory, a card that it does not know
                    row["note"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                else:
                    row["ms"] = 1e3 * seconds
                    if attend is theirs:
                        base[what] = seconds
                    elif what in base:
                        row["of_peer"] = seconds / base[what]
                yield row


def main(given: list[str] | None = None) -> int:
    """Measure and print; 2 without a GPU, 1 where our Gated DeltaNet disagrees with the peer's."""
    parser = argparse.ArgumentParser(description="The residual kernels on this machine's GPU, beside a peer.")
    parser.add_argument("--json", action="store_true", help="print JSON alone on stdout")
    parser.add_argument("--width", type=int, default=WIDTH, help="width of a head (default 128)")
    options = parser.parse_args(given)
    if options.width < 1:
        parser.error(f"--width must be at least 1, got {options.width}")
    if not torch.cuda.is_available():
        print("kernels/bench/residual.py: torch sees no GPU on this machine, so nothing was measured.", file=sys.stderr)
        return 2
    if (attend := peer()) is not None:
        far = disagreement(attend, "cuda")
        if not far <= AGREE:
            print(f"our Gated DeltaNet differs from the peer's by {far:.2g}, nothing timed", file=sys.stderr)
            return 1
    rows = list(measured(list(SHAPES), options.width, GpuClock(), "cuda"))
    result = {"machine": machine(), "rows": rows}
    print(json.dumps(result, indent=1) if options.json else as_text(result))
    return 0


def as_text(result: dict[str, Any]) -> str:
    """The result for a person to read."""
    lines = [", ".join(f"{name} {value}" for name, value in result["machine"].items() if value is not None), ""]
    for row in result["rows"]:
        name = f"{row['rows']:>3} x {row['tokens']:>6,} tokens x {row['heads']} heads"
        took = "" if row["ms"] is None else f"{row['ms']:.3f} ms"
        share = "" if row["of_peer"] is None else f"{row['of_peer']:.2f} of fla"
        goal = "" if row["target"] is None else f"target {row['target']:.1f}"
        lines.append(f"{name} {row['pass']:16} {row['impl']:12} {took:>12} {share:>12} {goal:10} {row['note']}")
    return "\n".join(line.rstrip() for line in lines)


if __name__ == "__main__":
    sys.exit(main())
