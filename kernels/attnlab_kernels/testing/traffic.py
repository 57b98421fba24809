"""Bytes that an operation requests over the bytes that it cannot do without, counted by the tracer for all its kernels.

compulsory   q, k, v and planes in, out and the last state out; for the gradient q, k, v, dO and planes in, dq, dk, dv
             out. Each once. What the kernels hand to each other is left out, and so are states and sharpness going in
counted      what the tracer saw, prefixes, projections and tables of chunks included
predicted    the same from sizes alone, kernel by kernel: the formulas of the docstrings in race.py, to the last byte

A request is a request, whether or not a cache answers it: the ratio is an upper bound of what reaches memory.

    TRITON_INTERPRET=1 python -m attnlab_kernels.testing.traffic      # all `cases`; --json for a program; --residual,
                                                                      # --hashattention, --lrkv

Of the residual kernels bytes are counted, and not predicted.
"""

import argparse
import contextlib
import importlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from attnlab_kernels import race, residual
from attnlab_kernels.launch import Launch, recorded
from attnlab_kernels.testing import interpreter
from attnlab_kernels.testing.operations import (
    HashCase,
    LrkvCase,
    RaceCase,
    ResidualCase,
    hash_scan_and_gather,
    lrkv_attention,
    race_forward_and_backward,
    residual_forward_and_backward,
)

__all__ = [
    "HASH_TARGETS",
    "LRKV_TARGETS",
    "RESIDUAL_TARGETS",
    "TARGETS",
    "Count",
    "cases",
    "changed",
    "compulsory",
    "counted",
    "hash_cases",
    "hash_compulsory",
    "hash_counted",
    "hash_predicted",
    "lrkv_cases",
    "lrkv_compulsory",
    "lrkv_counted",
    "lrkv_predicted",
    "predicted",
    "residual_cases",
    "residual_compulsory",
    "residual_counted",
]

NUMBER = 4  # bytes of a float32 or int32
TARGETS = {  # the largest ratio, by operation and mask, for bfloat16, P = L = 4, K = V = 128 and 4,096 tokens
    ("forward", False): 1.10,
    ("forward", True): 1.6,
    ("backward", False): 1.5,
    ("backward", True): 2.0,
}


class Count(NamedTuple):
    """What one operation asked for: bytes by kernel and tensor, and flops of matrix products, padding included."""

    compulsory: int
    requested: dict[str, dict[str, int]]
    dot_flops: int

    @property
    def kernels(self) -> dict[str, int]:
        """Bytes by kernel."""
        return {kernel: sum(tensors.values()) for kernel, tensors in self.requested.items()}

    @property
    def ratio(self) -> float:
        """Bytes requested over compulsory bytes."""
        return sum(self.kernels.values()) / self.compulsory

    @property
    def intensity(self) -> float:
        """Flops of matrix products for each byte requested."""
        return self.dot_flops / sum(self.kernels.values())

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return self._asdict() | {"kernels": self.kernels, "ratio": self.ratio, "intensity": self.intensity}


def cases(T: int = 4096) -> list[RaceCase]:
    """Where traffic is reported: one head of width 128 at T tokens. The targets are about the first two."""
    kinds = ((torch.bfloat16, 4, 4), (torch.float32, 4, 4), (torch.bfloat16, 2, 2))
    return [RaceCase(*kind, causal=causal, T=T, H=1) for kind in kinds for causal in (False, True)]


def compulsory(case: RaceCase) -> dict[str, int]:
    """Bytes of "forward" and "backward" as the first lines of this file say."""
    e, tokens, buckets = case.dtype.itemsize, case.H * case.T, case.H * case.L * 2**case.P
    planes = NUMBER * case.H * case.L * case.P * case.K
    return {
        "forward": e * tokens * 2 * (case.K + case.V) + planes + NUMBER * buckets * (case.V + 1),
        "backward": e * tokens * (4 * case.K + 3 * case.V) + planes,
    }


def counted(case: RaceCase) -> dict[str, Count]:
    """Interpret "forward" and "backward" on random numbers and count.

    Raises AssertionError for an access out of bounds or a race, RuntimeError in a process that does not interpret.
    """
    return _counts(race_forward_and_backward(case, "cpu", interpreter.traced), compulsory(case))


def _counts(records: dict[str, Any], least: dict[str, int]) -> dict[str, Count]:
    """What the traces of "forward" and "backward" hold."""
    counts = {}
    for operation, record in records.items():
        record.check()
        requested: dict[str, Counter[str]] = {}
        for launch in record.launches:
            tensors = {name: tensor.requested_bytes() for name, tensor in launch.tensors.items()}
            requested.setdefault(launch.kernel, Counter()).update(tensors)
        plain = {kernel: {name: n for name, n in tensors.items() if n} for kernel, tensors in requested.items()}
        flops = sum(launch.dot_flops for launch in record.launches)
        counts[operation] = Count(least[operation], plain, flops)
    return counts


# -- residual linear attention --

# The largest ratio, by operation and rule, of a training step in bfloat16, K = V = 128, one head, 64 tokens. They are
# what the kernels ask for, rounded up, and not a goal: most of it are rows of k and q, which every block of columns of
# V loads again, and the memories before and after each chunk. On long sequences, where the states no longer count among
# the compulsory bytes, the forward ratio comes to 13 (rdn) and the backward one to 16.
RESIDUAL_TARGETS = {
    ("forward", "rdn"): 5.7,
    ("backward", "rdn"): 18.3,
    ("forward", "gdn"): 4.6,
    ("backward", "gdn"): 10.4,
}


def residual_cases(T: int = 64) -> list[ResidualCase]:
    """Where traffic is reported: one head of width 128 at T tokens. The targets are about the first two at 64."""
    return [ResidualCase(torch.bfloat16, rule, T=T, H=1) for rule in ("rdn", "gdn", "rla")]


def residual_compulsory(case: ResidualCase) -> dict[str, int]:
    """Bytes of "forward", a training step's, and "backward": q, k, v and gates in, out and the last states out; for the
    gradient q, k, v, dO and gates in, dq, dk, dv and the gradients of the gates out. Each once.
    """
    e, tokens = case.dtype.itemsize, case.H * case.T
    has = residual.RULES[case.rule]
    gates = NUMBER * tokens * (has.retention + has.write + (has.residual and not case.tied))
    states = NUMBER * case.H * case.K * case.V * (1 + has.residual)
    return {
        "forward": e * tokens * 2 * (case.K + case.V) + gates + states,
        "backward": e * tokens * (4 * case.K + 3 * case.V) + 2 * gates,
    }


def residual_counted(case: ResidualCase) -> dict[str, Count]:
    """As `counted`."""
    return _counts(residual_forward_and_backward(case, "cpu", interpreter.traced), residual_compulsory(case))


# -- HashAttention --

# The largest ratio of a decode step over 4,096 keys with a budget of 256 and 256 fixed tokens, 32 bits, bfloat16,
# K = V = 128, eight query heads on two key/value heads: what the kernels ask for, rounded up. The scan reads codes in
# two passes, so that its ratio nears 2 as keys outnumber tokens read; a gather reads each row of a list once.
HASH_TARGETS = {"scan": 1.66, "gather": 1.02, "gather.shared": 1.05}
FIXED = 256  # sinks and window together


def hash_cases(S: int = 4096) -> list[HashCase]:
    """Where traffic is reported: a list for each query head, and one for each key/value head. The targets are about
    4,096 keys.
    """
    return [HashCase(torch.bfloat16, S=S), HashCase(torch.bfloat16, S=S, lists=2)]


def hash_compulsory(case: HashCase) -> dict[str, int]:
    """Bytes of "scan": codes in, lists out; and of "gather": q, lists, and the rows they name in, out and lse out. Each
    once, and rows once for each list.
    """
    lists, W = case.lists or case.H, -(-case.bits // 32)
    longest = min(case.S, case.budget + FIXED)
    index = NUMBER * case.T * lists * longest
    rows = case.dtype.itemsize * (case.K + case.V)
    return {
        "scan": NUMBER * W * (case.T * case.H + case.S * case.G) + NUMBER * case.T * case.H * longest,
        "gather": index + case.T * lists * longest * rows + case.T * case.H * (rows + NUMBER),
    }


def hash_counted(case: HashCase) -> dict[str, Count]:
    """As `counted`."""
    return _counts(hash_scan_and_gather(case, "cpu", interpreter.traced), hash_compulsory(case))


def hash_predicted(case: HashCase) -> dict[str, dict[str, int]]:
    """Bytes that "scan" and "gather" request, by kernel, for one query and more keys than it reads, where every chunk
    has a token that is read; nothing is run.
    """
    W, lists = -(-case.bits // 32), case.lists or case.H
    launches = hash_scan_and_gather(case, "meta", recorded)
    of = {launch.kernel.fn.__name__: _named(launch) for both in launches.values() for launch in both}
    count, attend = (
        of["hash_count_kernel"],
        of["hash_attend_kernel" if lists == case.H else "hash_attend_shared_kernel"],
    )
    blocks = case.G * -(-case.H // case.G // count["BR"])  # programs that read the codes of a chunk
    chunks, bins = count["splits"], NUMBER * count["BINS"]
    codes, queries = NUMBER * W * (case.S - FIXED), NUMBER * W * case.H
    longest, rows = case.budget + FIXED, case.dtype.itemsize * (case.K + case.V)
    spans = attend["splits"]
    parts = case.H * spans * NUMBER * (case.V + 1)
    scan = {
        "hash_count_kernel": blocks * (codes + chunks * 2 * NUMBER) + chunks * (queries + case.H * bins),
        "hash_cut_kernel": case.H * (2 * chunks * bins + NUMBER * (5 + 2 * (chunks + 1))),
        "hash_place_kernel": blocks * (codes + chunks * 4 * NUMBER)
        + chunks * (queries + case.H * 6 * NUMBER)
        + NUMBER * case.H * longest,
    }
    named = case.dtype.itemsize * case.K * case.H * spans + lists * (longest * (rows + 2 * NUMBER) - NUMBER)
    gather = {attend["kernel"]: named + lists * spans * NUMBER + (parts if spans > 1 else _ends(case))}
    if spans > 1:
        gather["hash_merge_kernel"] = parts + case.H * spans * NUMBER + _ends(case)
    return {"scan": scan, "gather": gather}


def _named(launch: Launch) -> dict[str, Any]:
    """The arguments of a launch by name, and the name of its kernel."""
    given = dict(zip(launch.kernel.arg_names, launch.args, strict=False)) | launch.options
    return given | {"kernel": launch.kernel.fn.__name__}


def _ends(case: HashCase) -> int:
    """out and lse."""
    return case.H * (case.dtype.itemsize * case.V + NUMBER)


# -- LRKV --

# The largest ratio of a decode step over 4,096 keys, by rank, bfloat16, K = V = 128, 32 heads on one shared head. What
# is above 1 is what spans hand on, queries that each span reads, and q B.
LRKV_TARGETS = {16: 1.05, 32: 1.05, 56: 1.05}


def lrkv_cases(S: int = 4096) -> list[LrkvCase]:
    """Where traffic is reported: a decode step at each rank of the targets, which are about 4,096 keys."""
    return [LrkvCase(torch.bfloat16, R, S=S) for R in LRKV_TARGETS]


def lrkv_compulsory(case: LrkvCase) -> dict[str, int]:
    """Bytes of "decode" or "prefill": q, shared keys and values, latents, factors and k_scale in, out and lse out. Each
    once; tables of turns are left out.
    """
    e, queries = case.dtype.itemsize, case.T * case.H
    cache = case.G * (case.K + case.V) + case.H * (2 * case.R + case.scaled)
    ends = queries * (e * (case.K + case.V) + NUMBER)
    total = e * case.S * cache + e * case.H * case.R * (case.K + case.V) + ends
    return dict.fromkeys(lrkv_attention(case, "meta", recorded), total)


def lrkv_counted(case: LrkvCase) -> dict[str, Count]:
    """As `counted`."""
    return _counts(lrkv_attention(case, "cpu", interpreter.traced), lrkv_compulsory(case))


def lrkv_predicted(case: LrkvCase) -> dict[str, int]:
    """Bytes that a decode step of one query requests, by kernel; nothing is run."""
    (launches,) = lrkv_attention(case, "meta", recorded).values()
    of = {launch.kernel.fn.__name__: _named(launch) for launch in launches}
    decode, e, H, R = of["lrkv_decode_kernel"], case.dtype.itemsize, case.H, case.R
    splits, blocks = decode["splits"], case.G * -(-H // case.G // decode["BH"])
    tiles = sum(-(-min(decode["span"], case.S - n) // decode["BN"]) for n in range(0, case.S, decode["span"]))
    queries = H * (e * case.K + NUMBER * R) * (splits if decode["HELD"] else tiles)
    cache = e * case.S * (blocks * (case.K + case.V) + H * (2 * R + case.scaled))
    turns = 2 * NUMBER * case.S * blocks * sum(case.turned)
    parts = H * splits * NUMBER * (case.V + R + 1)
    found = {"lrkv_project_kernel": H * (e * case.K * (1 + R) + NUMBER * R)} if R else {}
    return found | {
        "lrkv_decode_kernel": queries + cache + turns + parts,
        "lrkv_merge_kernel": parts + H * (splits * NUMBER + e * case.V * R + e * case.V + NUMBER),
    }


# -- formulas of RACE --


def predicted(case: RaceCase) -> dict[str, dict[str, int]]:
    """Bytes that "forward" and "backward" request, by kernel; nothing is run. No formula depends on the tile."""
    totals = {}
    for operation, launches in race_forward_and_backward(case, "meta", recorded).items():
        total: Counter[str] = Counter()
        for launch in launches:
            total[launch.kernel.fn.__name__] += _bytes(launch, case.T)
        totals[operation] = dict(total)
    return totals


@contextlib.contextmanager
def changed(case: RaceCase, **fields: int) -> Iterator[RaceCase]:
    """The same case in a configuration with these fields (tile, chunk, warps, ...) in place of its own, which exists
    within the block.
    """
    name = "changed"
    before = race.CONFIGS.get(name)
    race.CONFIGS[name] = race.CONFIGS[case.config or race.default_config(case.dtype)]._replace(**fields)
    try:
        yield case._replace(config=name)
    finally:
        del race.CONFIGS[name]
        if before is not None:
            race.CONFIGS[name] = before


# -- the formulas: for each token and head, and for each program --


class _Sizes:
    """What the formula of one launch is made of: bytes of a token's rows, and of what a program reads once."""

    def __init__(self, launch: Launch):
        self.of = dict(zip(launch.kernel.arg_names, launch.args, strict=False)) | launch.options
        P, BL, RB = (self.of.get(name, 0) for name in ("P", "BL", "RB"))
        parts = 2**P // max(1, RB)
        tables = min(BL, self.of["L"] - self.of["i_g"] // parts * BL)
        self.K, self.V = self.of.get("K", 0), self.of.get("V", 0)
        self.y = NUMBER * tables * P  # the projections of a token
        self.y_put = self.y * (1 + (self.of["i_g"] % parts > 0))  # they are added up where a table comes in parts
        self.state = NUMBER * tables * RB * (self.V + 1)
        self.planes = self.y * self.K
        self.first, self.last, self.keep, self.causal = (
            bool(self.of.get(name)) for name in ("FIRST", "LAST", "KEEP", "CAUSAL")
        )
        self.sequence = NUMBER * (not self.causal)  # the fourth number of a row of the table of chunks

    def row(self, name: str) -> int:
        """A row of this tensor."""
        return self.of[name].element_size() * self.of[name].shape[-1]

    def put(self, name: str) -> int:
        """A row of results, which goes through float32 sums where tables come in groups."""
        wide = NUMBER * self.of[name].shape[-1]
        return wide * (not self.first) + (self.row(name) if self.last else wide)

    def put_ratio(self) -> int:
        """A row of out, and its Den."""
        return self.put("out") + NUMBER * (not self.first) + NUMBER * (self.keep or not self.last)


CHUNK = 3 * NUMBER  # row, start and stop in the table of chunks


def _write(x: _Sizes) -> tuple[int, int]:
    keys = x.row("k") + x.y * x.keep if x.of["FUSED"] else x.y
    return keys + x.row("v"), x.state + x.planes * x.of["FUSED"] + CHUNK + NUMBER


def _read(x: _Sizes) -> tuple[int, int]:
    queries = x.row("q") if x.of["FUSED"] else x.y
    return queries + x.put_ratio(), x.state + x.planes * x.of["FUSED"] + CHUNK + x.sequence + NUMBER


def _sweep(x: _Sizes) -> tuple[int, int]:
    return 2 * x.y + x.row("v") + x.put_ratio(), x.state + CHUNK + NUMBER


def _project(x: _Sizes) -> tuple[int, int]:
    return x.row("x") + x.y, x.planes + CHUNK


def _unproject(x: _Sizes) -> tuple[int, int]:
    return x.y + x.put("d_x"), x.planes + CHUNK


def _read_grad(x: _Sizes) -> tuple[int, int]:
    token = x.y + x.row("d_out") + x.y_put + x.causal * (x.y + x.row("v"))
    token += 2 * NUMBER * (x.causal or not x.of["DERIVE"])  # Den and delta, written or read
    return token, x.state * (2 - x.causal) + CHUNK + x.sequence + 2 * NUMBER


def _delta(x: _Sizes) -> tuple[int, int]:
    return x.row("out") + x.row("d_out") + NUMBER, CHUNK


def _sum_grad(x: _Sizes) -> tuple[int, int]:
    return x.y + x.row("d_out") + 2 * NUMBER, x.state + CHUNK + NUMBER


def _write_grad(x: _Sizes) -> tuple[int, int]:
    token = x.y + x.row("v") + x.y_put + x.put("d_v") + x.causal * (x.y + x.row("d_out") + 2 * NUMBER)
    return token, x.state + CHUNK + x.sequence + 2 * NUMBER


FORMULAS = {
    "write_kernel": _write,
    "read_kernel": _read,
    "sweep_kernel": _sweep,
    "project_kernel": _project,
    "unproject_kernel": _unproject,
    "read_grad_kernel": _read_grad,
    "delta_kernel": _delta,
    "sum_grad_kernel": _sum_grad,
    "write_grad_kernel": _write_grad,
}


def _bytes(launch: Launch, T: int) -> int:
    """All that one launch requests; one sequence of T tokens."""
    name = launch.kernel.fn.__name__
    if name == "scan_kernel":
        return _scan(launch)
    token, program = FORMULAS[name](_Sizes(launch))
    chunks, heads = launch.grid
    return heads * (T * token + chunks * program)


def _scan(launch: Launch) -> int:
    """The sums once, twice where they are replaced by prefixes; the first and the last state, and the two bounds."""
    of = dict(zip(launch.kernel.arg_names, launch.args, strict=False)) | launch.options
    sums, states = (of[name].numel() * of[name].element_size() for name in ("sums", "first"))
    N, heads, blocks = launch.grid
    return sums * (1 + of["PREFIX"]) + 2 * states + N * heads * blocks * 2 * NUMBER


# -- the command --


def main(arguments: list[str] | None = None) -> int:
    """Count the cases; 2 in a process that does not interpret."""
    parser = argparse.ArgumentParser(prog="python -m attnlab_kernels.testing.traffic", description=main.__doc__)
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    parser.add_argument("--tokens", type=int, help="tokens of a sequence (default 4096)")
    parser.add_argument("--residual", action="store_true", help="the residual kernels in place of RACE's (64 tokens)")
    parser.add_argument("--hashattention", action="store_true", help="the kernels of HashAttention (4096 keys)")
    parser.add_argument("--lrkv", action="store_true", help="a decode step of LRKV (4096 keys)")
    options = parser.parse_args(arguments)
    if options.tokens is None:
        options.tokens = 64 if options.residual else 4096
    if options.tokens < 1:
        parser.error(f"--tokens must be at least 1, got {options.tokens}")
    if not interpreter.interpreting():
        print("traffic: set TRITON_INTERPRET=1 in the environment; here kernels are compiled.", file=sys.stderr)
        return 2
    interpreter.install()
    counts = {}
    chosen: list[Any] = cases(options.tokens)
    count_all: Any = counted
    if options.residual:
        chosen, count_all = residual_cases(options.tokens), residual_counted
    elif options.hashattention:
        chosen, count_all = hash_cases(options.tokens), hash_counted
    elif options.lrkv:
        chosen, count_all = lrkv_cases(options.tokens), lrkv_counted
    for number, case in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {case.id}", file=sys.stderr, flush=True)
        counts[case.id] = {operation: count.as_dict() for operation, count in count_all(case).items()}
    if options.json:
        print(json.dumps({"tokens": options.tokens, "cases": counts}, indent=1))
    else:
        print(as_text(counts))
    return 0


def as_text(counts: dict[str, dict[str, dict[str, Any]]]) -> str:
    """One line an operation, and one for each of its kernels."""
    lines = [f"{'':48}  bytes requested  over compulsory  flops a byte"]
    for case, operations in counts.items():
        for operation, count in operations.items():
            kernels, name = count["kernels"], f"{case} {operation}"
            total = sum(kernels.values())
            lines.append(f"{name:48}  {total:15,}  {count['ratio']:15.3f}  {count['intensity']:12.1f}")
            lines += [f"    {kernel:44}  {n:15,}  {n / count['compulsory']:15.3f}" for kernel, n in kernels.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(importlib.import_module("attnlab_kernels.testing.traffic").main())
