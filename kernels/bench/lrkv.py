"""A decode step of LRKV on the GPU of this machine, beside torch's dense attention over expanded heads and the same
factored step in plain torch, all in one run.

    python kernels/bench/lrkv.py            # a table; --json for a program

bfloat16, 32 heads of width 128 on one shared head, ranks 16, 32 and 56, one new query. Timed are the kernels, the
factored step by torch's products, and torch's dense attention over keys and values of every head, made beforehand: the
cache that LRKV does without.

Wanted at 32,768 tokens, rank 56, one row: at least 70 % of the card's copy bandwidth for the bytes of the cache, so
that the step takes no more than 0.67 of the time of dense attention at full bandwidth: its bytes are 0.47 of those.

A time is the median of repeated calls between two CUDA events, after warm-up, with the caches written over in between.
Before anything is timed, outputs are held to those of the torch path.

Without a GPU it says so and leaves with status 2. Needs this project installed, as `make setup` or
`pip install --editable '.[triton]'` do.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import triton

from attnlab_kernels import lrkv
from attnlab_kernels.testing.gpu_clock import Clock, GpuClock, machine

SHAPES = ((1, 2**15), (8, 2**13), (32, 2**12))  # rows, tokens
RANKS = (16, 32, 56)
HEADS, WIDTH = 32, 128
WANTED, WANTED_SHAPE, WANTED_RANK = 0.70, (1, 2**15), 56  # of the copy bandwidth
COPIED = 2**30  # bytes
AGREE = 0.01  # root mean square of a difference, over that of the torch path: both round to bfloat16


class Step(NamedTuple):
    """One query and a cache in factors."""

    q: torch.Tensor
    k_shared: torch.Tensor
    v_shared: torch.Tensor
    k_latent: torch.Tensor
    v_latent: torch.Tensor
    k_factor: torch.Tensor
    v_factor: torch.Tensor

    @property
    def bytes(self) -> int:
        """Of the cache."""
        return sum(x.numel() * x.element_size() for x in self[1:5])


def step(rows: int, tokens: int, heads: int, width: int, rank: int, device: str) -> Step:
    """From a fixed seed."""
    draw = torch.Generator(device).manual_seed(0)

    def normal(*shape: int, size: float = 1.0) -> torch.Tensor:
        return (size * torch.randn(shape, generator=draw, device=device)).to(torch.bfloat16)

    return Step(
        normal(rows, 1, heads, width),
        *(normal(rows, tokens, 1, width) for _ in "kv"),
        *(normal(rows, tokens, heads, rank) for _ in "kv"),
        *(normal(heads, width, rank, size=rank**-0.5) for _ in "kv"),
    )


def whole(given: Step) -> torch.Tensor:
    """The kernels: [B, 1, H, V]."""
    return lrkv.attention(*given)


def by_torch(given: Step) -> torch.Tensor:
    """The same in plain torch: every key and value in factors."""
    q, (k, v) = given.q[:, 0], (x[:, :, 0] for x in given[1:3])  # [B, H, K] and [B, S, K]
    logits = q @ k.mT  # [B, H, S]
    projected = torch.einsum("bhk,hkr->bhr", q, given.k_factor)
    logits = logits + torch.einsum("bhr,bshr->bhs", projected, given.k_latent)
    weights = torch.softmax(logits.float() * q.shape[-1] ** -0.5, -1).to(q.dtype)
    latent = torch.einsum("bhs,bshr->bhr", weights, given.v_latent)
    return (weights @ v + torch.einsum("bhr,hvr->bhv", latent, given.v_factor))[:, None]


def expanded(given: Step) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of every head, [B, H, S, K] each."""
    made = (
        shared + torch.einsum("bshr,hkr->bshk", latent, factor)
        for shared, latent, factor in zip(given[1:3], given[3:5], given[5:7], strict=True)
    )
    k, v = (x.transpose(1, 2).contiguous() for x in made)
    return k, v


def attempts(given: Step) -> dict[str, Callable[[], object]]:
    """What is timed, by name; dense attention first."""
    k, v = expanded(given)
    q = given.q.transpose(1, 2)
    return {
        "torch dense": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v),
        "torch factored": lambda: by_torch(given),
        "kernels": lambda: whole(given),
    }


def disagreement(given: Step) -> float:
    """Root mean square of the difference of outputs, over that of the torch path's in float32."""
    theirs = by_torch(Step(*(x.float() for x in given)))
    return float((whole(given).float() - theirs).norm() / theirs.norm())


def copy_bytes_per_s(clock: Clock, device: str, size: int = COPIED) -> float:
    """Read and written by a plain copy."""
    source = torch.zeros(size // 4, device=device)
    target = torch.empty_like(source)
    return 2 * size / clock(lambda: target.copy_(source))


def measured(
    shapes: list[tuple[int, int]], ranks: tuple[int, ...], sizes: tuple[int, int], clock: Clock, device: str,
    bandwidth: float,
) -> Iterator[Any]:  # fmt: skip
    """A row for each shape, rank and attempt; one that was not run says why. `sizes` are heads and width."""
    for rows, tokens in shapes:
        for rank in ranks:
            given = step(rows, tokens, *sizes, rank, device)
            base: float | None = None
            for name, run in attempts(given).items():
                row = {
                    "rows": rows, "tokens": tokens, "rank": rank, "impl": name, "ms": None, "of_dense": None,
                    "of_copy": None, "target": None, "note": "",
                }  # fmt: skip
                if name == "kernels" and (rows, tokens, rank) == (*WANTED_SHAPE, WANTED_RANK):
                    row["target"] = WANTED
                try:
                    seconds = clock(run)
                except (RuntimeError, triton.TritonError) as error:  # out of memory, a card that it does not know
                    row["note"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                else:
                    row["ms"] = 1e3 * seconds
                    if name == "torch dense":
                        base = seconds
                    else:
                        row["of_dense"] = None if base is None else seconds / base
                        row["of_copy"] = given.bytes / seconds / bandwidth
                yield row


def main(given: list[str] | None = None) -> int:
    """Measure and print; 2 without a GPU, 1 where the kernels disagree with the torch path."""
    parser = argparse.ArgumentParser(description="A decode step of LRKV on this machine's GPU, beside torch.")
    parser.add_argument("--json", action="store_true", help="print JSON alone on stdout")
    options = parser.parse_args(given)
    if not torch.cuda.is_available():
        print("kernels/bench/lrkv.py: torch sees no GPU on this machine, so nothing was measured.", file=sys.stderr)
        return 2
    far = disagreement(step(2, 4096, HEADS, WIDTH, 56, "cuda"))
    if not far <= AGREE:
        print(f"the kernels differ from the torch path by {far:.2g}, nothing timed", file=sys.stderr)
        return 1
    clock = GpuClock()
    bandwidth = copy_bytes_per_s(clock, "cuda")
    rows = list(measured(list(SHAPES), RANKS, (HEADS, WIDTH), clock, "cuda", bandwidth))
    result = {"machine": machine() | {"copy_bytes_per_s": bandwidth}, "rows": rows}
    print(json.dumps(result, indent=1) if options.json else as_text(result))
    return 0


def as_text(result: dict[str, Any]) -> str:
    """The result for a person to read."""
    lines = [", ".join(f"{name} {value}" for name, value in result["machine"].items() if value is not None), ""]
    for row in result["rows"]:
        name = f"{row['rows']:>3} x {row['tokens']:>7,} tokens r {row['rank']:>2}"
        took = "" if row["ms"] is None else f"{row['ms']:.3f} ms"
        share = "" if row["of_dense"] is None else f"{row['of_dense']:.3f} of dense"
        copied = "" if row["of_copy"] is None else f"{row['of_copy']:.3f} of copy"
        goal = "" if row["target"] is None else f"target {row['target']:.2f}"
        lines.append(f"{name} {row['impl']:15} {took:>12} {share:>15} {copied:>14} {goal:12} {row['note']}")
    return "\n".join(line.rstrip() for line in lines)


if __name__ == "__main__":
    sys.exit(main())
