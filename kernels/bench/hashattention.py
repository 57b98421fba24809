"""A decode step of HashAttention on the GPU of this machine, beside dense attention and the same step in plain torch,
all in one run.

    python kernels/bench/hashattention.py            # a table; --json for a program

bfloat16, heads of width 128, four query heads a key/value head, codes of 32 bits, 128 sinks, a window of 128 and 1/32
of the tokens besides. Timed are the whole step (the cache appended to, the codes of the query and of the new key, scan,
attention), its scan and its attention alone, torch's dense attention over the same cache, and scan and attention by
torch.topk over distance and index.

Wanted at 131,072 tokens: the step takes no more than 0.28 of the time of dense attention. Of each token and key/value
head the step requests 2 x 4 bytes of codes and, at 1/32 for each of four query heads, 64 of rows, where dense attention
requests 512: 0.28 is twice that share.

A time is the median of repeated calls between two CUDA events, after warm-up, with the caches written over in between.
Before anything is timed, sets and outputs are held to those of the torch path.

Without a GPU it says so and leaves with status 2. Needs this project installed, as `make setup` or
`pip install --editable '.[triton]'` do.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import triton

from attnlab_kernels import hashattention
from attnlab_kernels.testing.gpu_clock import Clock, GpuClock, machine

SHAPES = ((1, 2**17), (8, 2**15), (32, 2**13))  # rows, tokens
HEADS, GROUPS, WIDTH, BITS = 32, 8, 128, 32
LAYERS = (128, 128)
SINKS, WINDOW = 128, 128
WANTED, WANTED_TOKENS = 0.28, 2**17  # of the time of dense attention
AGREE = 0.01  # root mean square of a difference, over that of the torch path: both round to bfloat16


class Step(NamedTuple):
    """One token after `tokens - 1` in the cache, which has room for it."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    codes: torch.Tensor
    query_codes: torch.Tensor
    query_maps: hashattention.Packed
    key_maps: hashattention.Packed
    budget: int

    @property
    def sizes(self) -> dict[str, int]:
        """What is read."""
        return {"budget": self.budget, "sinks": SINKS, "window": WINDOW}


def step(rows: int, tokens: int, heads: int, groups: int, width: int, device: str) -> Step:
    """From a fixed seed. Codes are random: what is timed does not depend on them."""
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw).to(device, torch.bfloat16)

    def maps(count: int) -> hashattention.Packed:
        widths = (width, *LAYERS, BITS)
        weights = [normal(count, a, b) * a**-0.5 for a, b in itertools.pairwise(widths)]
        return hashattention.pack(weights, [normal(count, b) for b in widths[1:]])

    q, k, v = normal(rows, 1, heads, width), normal(rows, 1, groups, width), normal(rows, 1, groups, width)
    keys, values = (
        torch.empty(rows, tokens, groups, width, dtype=torch.bfloat16, device=device).normal_() for _ in range(2)
    )
    codes = hashattention.empty_codes(rows, tokens, groups, BITS, device)
    codes.copy_(torch.randint(-(2**31), 2**31, (rows, tokens, groups, 1), dtype=torch.int32, device=device))
    query_maps, key_maps = maps(heads), maps(groups)
    keys[:, -1:], values[:, -1:] = k, v
    hashattention.encode(k, key_maps, codes[:, -1:])
    query_codes = hashattention.encode(q, query_maps)
    return Step(q, k, v, keys, values, codes, query_codes, query_maps, key_maps, tokens // 32)


def whole(given: Step) -> torch.Tensor:
    """The kernels, from the new token to its output: [B, 1, H, V]."""
    cache = (given.keys, given.values, given.codes, given.keys.shape[1] - 1)
    return hashattention.decode_step(given.q, given.k, given.v, *cache, given.query_maps, given.key_maps, **given.sizes)


def scan(given: Step) -> torch.Tensor:
    """Lists [B, 1, H, N] alone."""
    return hashattention.select(given.query_codes, given.codes, **given.sizes)


def dense(given: Step) -> torch.Tensor:
    """torch's attention over the whole cache."""
    q, k, v = (x.transpose(1, 2) for x in (given.q, given.keys, given.values))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2)


def torch_lists(given: Step) -> torch.Tensor:
    """`scan` in plain torch: the smallest of distance and index together, so that ties go to the lowest index."""
    tokens, heads = given.codes.shape[1], given.q.shape[2]
    codes = given.codes[..., 0].permute(0, 2, 1).repeat_interleave(heads // given.codes.shape[2], 1)  # [B, H, S]
    x = (codes ^ given.query_codes[:, 0, :, :1]).long() & 0xFFFFFFFF
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    distance = ((((x + (x >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24) & 0xFF
    first, last = min(SINKS, tokens), max(min(SINKS, tokens), tokens - WINDOW)
    order = distance[..., first:last] * tokens + torch.arange(first, last, device=x.device)
    nearest = order.topk(min(given.budget, last - first), largest=False).values % tokens
    fixed = [torch.arange(*ends, device=x.device).expand(*order.shape[:2], -1) for ends in ((0, first), (last, tokens))]
    return torch.cat([fixed[0], nearest.sort().values, fixed[1]], -1)[:, None]


def by_torch(given: Step) -> torch.Tensor:
    """The step from codes to outputs in plain torch."""
    index = torch_lists(given)[:, 0]  # [B, H, N]
    group = given.q.shape[2] // given.keys.shape[2]
    q = given.q.transpose(1, 2)
    rows = torch.arange(index.shape[0], device=index.device)[:, None, None]
    of = torch.arange(index.shape[1], device=index.device)[None, :, None] // group
    k, v = (x[rows, index, of] for x in (given.keys, given.values))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def attempts(given: Step) -> dict[str, Callable[[], object]]:
    """What is timed, by name; dense attention first."""
    index = scan(given)
    return {
        "torch dense": lambda: dense(given),
        "torch topk": lambda: by_torch(given),
        "kernels step": lambda: whole(given),
        "kernels scan": lambda: scan(given),
        "kernels gather": lambda: hashattention.gathered_attention(given.q, given.keys, given.values, index),
    }


def disagreement(given: Step) -> float:
    """inf where a set differs from that of the torch path, else the outputs' root mean square difference from its."""
    if not torch.equal(scan(given).long(), torch_lists(given)):
        return float("inf")
    theirs = by_torch(given).float()
    return float((whole(given).float() - theirs).norm() / theirs.norm())


def measured(shapes: list[tuple[int, int]], sizes: tuple[int, int, int], clock: Clock, device: str) -> Iterator[Any]:
    """A row for each shape and attempt; one that was not run says why. `sizes` are heads, groups and width."""
    for rows, tokens in shapes:
        given = step(rows, tokens, *sizes, device)
        base: float | None = None
        for name, run in attempts(given).items():
            row = {
                "rows": rows, "tokens": tokens, "impl": name, "ms": None, "of_dense": None, "target": None, "note": "",
            }  # fmt: skip
            if name == "kernels step" and tokens == WANTED_TOKENS:
                row["target"] = WANTED
            try:
                seconds = clock(run)
            except (RuntimeError, triton.TritonError) as error:  # out of memory, a card that it does not know
                row["note"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            else:
                row["ms"] = 1e3 * seconds
                if name == "torch dense":
                    base = seconds
                elif base is not None:
                    row["of_dense"] = seconds / base
            yield row


def main(given: list[str] | None = None) -> int:
    """Measure and print; 2 without a GPU, 1 where the kernels disagree with the torch path."""
    parser = argparse.ArgumentParser(description="A decode step of HashAttention on this machine's GPU, beside torch.")
    parser.add_argument("--json", action="store_true", help="print JSON alone on stdout")
    options = parser.parse_args(given)
    if not torch.cuda.is_available():
        print(
            "kernels/bench/hashattention.py: torch sees no GPU on this machine, so nothing was measured.",
            file=sys.stderr,
        )
        return 2
    far = disagreement(step(2, 8192, HEADS, GROUPS, WIDTH, "cuda"))
    if not far <= AGREE:
        print(f"the kernels differ from the torch path by {far:.2g}, nothing timed", file=sys.stderr)
        return 1
    rows = list(measured(list(SHAPES), (HEADS, GROUPS, WIDTH), GpuClock(), "cuda"))
    result = {"machine": machine(), "rows": rows}
    print(json.dumps(result, indent=1) if options.json else as_text(result))
    return 0


def as_text(result: dict[str, Any]) -> str:
    """The result for a person to read."""
    lines = [", ".join(f"{name} {value}" for name, value in result["machine"].items() if value is not None), ""]
    for row in result["rows"]:
        name = f"{row['rows']:>3} x {row['tokens']:>7,} tokens"
        took = "" if row["ms"] is None else f"{row['ms']:.3f} ms"
        share = "" if row["of_dense"] is None else f"{row['of_dense']:.3f} of dense"
        goal = "" if row["target"] is None else f"target {row['target']:.2f}"
        lines.append(f"{name} {row['impl']:15} {took:>12} {share:>15} {goal:12} {row['note']}")
    return "\n".join(line.rstrip() for line in lines)


if __name__ == "__main__":
    sys.exit(main())
