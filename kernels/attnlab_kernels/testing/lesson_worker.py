"""What the lesson runs in a process that interprets kernels: RACE under the tracer, and a reader's kernel under test.

`lesson` starts it and talks to it: a line of JSON asks, a line of JSON answers. Not for use by hand; every name here
belongs to `lesson`.
"""

import contextlib
import importlib.util
import io
import json
import linecache
import math
import os
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from attnlab_kernels import race
from attnlab_kernels.launch import launch
from attnlab_kernels.testing import interpreter, traffic
from attnlab_kernels.testing.operations import RaceCase, race_arguments

LIMIT_PRINTED = 2000  # characters of what a reader's kernel prints

# Which memory an argument of a kernel is, in the words of the lesson. What is not named here is small: sharpness, the
# table of chunks.
MEMORY = {
    "write_kernel": {"k": "k", "v": "v", "planes": "planes", "y_k": "k W", "mass": "sums", "content": "sums"},
    "scan_kernel": {"sums": "sums", "first": "state before", "last": "state after"},
    "read_kernel": {
        "q": "q",
        "planes": "planes",
        "mass": "state after",
        "content": "state after",
        "out": "out",
    },
    "project_kernel": {"x": "q", "planes": "planes", "y": "q W"},
    "sweep_kernel": {"y_q": "q W", "y_k": "k W", "v": "v", "mass": "sums", "content": "sums", "out": "out"},
}
TOKENS = ("q", "k", "v", "q W", "k W", "out")  # one row a token
OTHER = "other"


# -- RACE, traced -----------------------------------------------------------------------------------------------------


def record(tokens: int, chunk: int, tile: int, causal: bool) -> dict[str, Any]:
    """One forward pass: its launches, each with what it asked of each memory, and which program asked for which place
    of it (a tile of tokens, or the sums of a chunk).
    """
    with _case(tokens, chunk, tile, causal) as case:
        arguments = race_arguments(case, "cpu")
        with interpreter.traced(keep_accesses=True) as traced:
            race.forward(**arguments)
        traced.check()
        return {
            "launches": [_seen(trace, tile, -(-tokens // chunk)) for trace in traced.launches],
            "requested": traced.requested_bytes(),
            "compulsory": traffic.compulsory(case)["forward"],
        }


def predict(tokens: int, chunk: int, tile: int, causal: bool) -> dict[str, int]:
    """Bytes that the same pass requests, from sizes alone."""
    with _case(tokens, chunk, tile, causal) as case:
        return {"bytes": sum(traffic.predicted(case)["forward"].values())}


def _case(tokens: int, chunk: int, tile: int, causal: bool) -> contextlib.AbstractContextManager[RaceCase]:
    """Small enough to interpret and to draw: one head, float32."""
    case = RaceCase(torch.float32, P=3, L=2, K=32, V=32, causal=causal, T=tokens, H=1, config="short")
    return traffic.changed(case, tile=tile, chunk=chunk)


def _seen(trace: interpreter.KernelTrace, tile: int, chunks: int) -> dict[str, Any]:
    names = MEMORY.get(trace.kernel, {})
    memory: dict[str, dict[str, int]] = {}
    for name, tensor in trace.tensors.items():
        if tensor.requests:
            sums = memory.setdefault(names.get(name, OTHER), {"requested": 0, "least": 0})
            sums["requested"] += tensor.requested_bytes()
            sums["least"] += tensor.unique_bytes()
    touched: Counter[tuple[str, int, str, int]] = Counter()
    for access in trace.accesses:
        where, tensor = names.get(access.tensor, OTHER), trace.tensors[access.tensor]
        each = 1 << 62
        if where in TOKENS:
            each = tile * tensor.shape[2] * tensor.shape[3]
        elif where == "sums":
            each = math.prod(tensor.shape) // chunks
        for place, lanes in zip(*np.unique(access.offsets // each, return_counts=True), strict=True):
            touched[where, int(place), access.kind, access.program[0]] += int(lanes) * tensor.itemsize
    return {
        "kernel": trace.kernel.removesuffix("_kernel"),
        "programs": trace.grid[0],
        "memory": memory,
        "touched": [[*key, size] for key, size in touched.items()],
    }


# -- exercises --------------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """One launch of a reader's kernel: what it gets, and what must come out of it."""

    size: str  # in words
    grid: tuple[int]
    arguments: dict[str, Any]
    constants: dict[str, int]
    output: str  # the argument that holds the answer
    want: np.ndarray
    allowed: np.ndarray  # error of each element
    least: int = 0  # bytes of inputs and outputs
    naive: int = 0  # bytes that the kernel asks for as it is given


class Exercise(NamedTuple):
    """How runs are drawn; what is demanded beside right numbers without a fault (a sentence if it is not met); and what
    is said of a run that passed.
    """

    draw: Callable[[np.random.Generator], list[Run]]
    demand: Callable[[Run, interpreter.Record], str | None]
    passed: Callable[[Run, interpreter.Record], str]


def _sums(rng: np.random.Generator, tokens: int, width: int) -> Run:
    chunk, v = 16, _normal(rng, tokens, width)
    starts = range(0, tokens, chunk)
    return Run(
        size=f"T = {tokens}, V = {width}",
        grid=(len(starts),),
        arguments={"v": v, "content": _unwritten(len(starts), width), "T": tokens},
        constants={"V": width, "CHUNK": chunk, "BT": 8, "BV": 1 << (width - 1).bit_length()},
        output="content",
        want=np.stack([_wide(v)[start : start + chunk].sum(axis=0) for start in starts]),
        allowed=np.stack([_in_any_order(_wide(v)[start : start + chunk]) for start in starts]),
    )


def _draw_bounds(rng: np.random.Generator) -> list[Run]:
    uneven = rng.choice([5, 11, 13, 21, 27], 2, replace=False)
    return [_sums(rng, int(rng.integers(35, 80)), int(width)) for width in (16, *uneven)]


def _total(rng: np.random.Generator, tokens: int, width: int) -> Run:
    v, programs = _normal(rng, tokens, width), 4
    return Run(
        size=f"T = {tokens}, V = {width}",
        grid=(programs,),
        arguments={"v": v, "content": torch.zeros(width), "T": tokens},
        constants={"V": width, "BT": 8, "PROGRAMS": programs},
        output="content",
        want=_wide(v).sum(axis=0),
        allowed=_in_any_order(_wide(v)),
    )


def _draw_order(rng: np.random.Generator) -> list[Run]:
    return [_total(rng, int(rng.integers(40, 90)), width) for width in (16, 32, 64)]


def _one_owner(run: Run, record: interpreter.Record) -> str | None:
    (launch,) = record.launches
    if launch.tensors[run.output].atomic_bytes:
        return (
            "no race any more, but atomics add in the order in which the programs happen to come. Rounding depends on "
            "the order, so two runs may differ in their last bits. Let one program own each sum"
        )
    owners = {access.program[0] for access in launch.accesses if access.kind == "store"}
    if len(owners) < run.grid[0]:
        return (
            f"right, and the same every time; but only {len(owners)} of {run.grid[0]} programs stored. Share "
            "the work: let every program own some columns"
        )
    return None


def _outer(rng: np.random.Generator, tokens: int, width: int) -> Run:
    buckets, chunk = 16, 32
    phi, v = torch.from_numpy(rng.random((tokens, buckets), np.float32)), _normal(rng, tokens, width)
    starts = range(0, tokens, chunk)
    pieces = [(_wide(phi)[start : start + chunk], _wide(v)[start : start + chunk]) for start in starts]
    inputs, output = 4 * tokens * (buckets + width), 4 * len(starts) * buckets * width
    return Run(
        size=f"T = {tokens}, R = {buckets}, V = {width}",
        grid=(len(starts),),
        arguments={"phi": phi, "v": v, "content": _unwritten(len(starts), buckets, width), "T": tokens},
        constants={"R": buckets, "V": width, "CHUNK": chunk, "BT": 16},
        output="content",
        want=np.stack([phi.T @ v for phi, v in pieces]),
        # tl.dot rounds both operands to the 11 bits of tf32 unless it is told not to
        allowed=np.stack([2**-9 * (np.abs(phi).T @ np.abs(v)) for phi, v in pieces]),
        least=inputs + output,
        naive=4 * tokens * buckets * (1 + width) + output,
    )


def _draw_traffic(rng: np.random.Generator) -> list[Run]:
    return [_outer(rng, int(rng.integers(40, 100)), width) for width in (16, 32)]


def _half(run: Run, record: interpreter.Record) -> str | None:
    requested = record.requested_bytes()
    if 2 * requested <= run.naive:
        return None
    return (
        f"right, but it asks for {requested:,} bytes. The kernel as it was given asks for {run.naive:,}; half of them, "
        f"{run.naive // 2:,}, pass. Inputs and outputs have {run.least:,}"
    )


def _traffic_now(run: Run, record: interpreter.Record) -> str:
    requested = record.requested_bytes()
    return (
        f"{requested / run.naive:.2f} of the bytes that the kernel asked for at first, and {requested / run.least:.2f} "
        "times those of its inputs and outputs"
    )


EXERCISES = {
    "bounds": Exercise(_draw_bounds, lambda *_: None, lambda *_: "no access outside, no race"),
    "order": Exercise(_draw_order, _one_owner, lambda *_: "no race, and every sum has one owner and one order"),
    "traffic": Exercise(_draw_traffic, _half, _traffic_now),
}


def check(name: str, kernel: str, source: str, seed: int) -> dict[str, Any]:
    """Whether the kernel of this name in `source` solves an exercise on sizes and numbers drawn from `seed`, and the
    first thing that is wrong if it does not.
    """
    exercise = EXERCISES[name]
    runs = exercise.draw(np.random.default_rng(seed))
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(printed):
        file = Path(folder) / "exercise.py"
        file.write_text(f"import triton\nimport triton.language as tl\n\n\n{source}", encoding="utf-8")
        says: list[str] = []
        try:
            function = _loaded(file, kernel)
            for run in runs:
                wrong, record = _wrong(exercise, run, function)
                if wrong:
                    says = [f"{run.size}: {wrong[0]}", *wrong[1:]]
                    break
        except Exception as error:  # whatever a reader wrote
            says = [_sentence(error, file)]
    passed = not says
    if passed:
        says = [f"{len(runs)} sizes, every number as wanted; {exercise.passed(run, record)}"]
    return {"passed": passed, "says": says, "printed": printed.getvalue()[:LIMIT_PRINTED]}


def _loaded(file: Path, kernel: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"exercise_{os.urandom(4).hex()}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    linecache.checkcache(str(file))
    spec.loader.exec_module(module)
    function = getattr(module, kernel)
    if not hasattr(function, "arg_names"):
        raise TypeError(f"{kernel} must be a kernel: @triton.jit stands above its def")
    return function


def _wrong(exercise: Exercise, run: Run, kernel: Any) -> tuple[list[str], interpreter.Record]:
    """What is wrong with a kernel on one run, the most telling first; nothing if it is right."""
    with interpreter.traced(keep_accesses=True) as record:
        launch(kernel, run.grid, *run.arguments.values(), **run.constants)
    (trace,) = record.launches
    faults = [str(fault) for fault in (*trace.out_of_bounds[:1], *trace.races[:1])]
    if faults:
        return faults, record
    got = run.arguments[run.output].numpy()
    off = ~(np.abs(got - run.want) <= run.allowed)
    if off.any():
        first = tuple(int(i) for i in np.argwhere(off)[0])
        place = f"{run.output}[{', '.join(map(str, first))}]"
        found = f"is {got[first]:.6g}"
        if np.isnan(got[first]):
            found = "is NaN, as before the kernel: it was never stored, or made from what stood there"
        return [f"{place} {found}, wanted {run.want[first]:.6g}; {off.sum()} of {off.size} numbers are wrong"], record
    demanded = exercise.demand(run, record)
    return [demanded] if demanded else [], record


def _sentence(error: Exception, file: Path) -> str:
    """What went wrong and in which line of the reader's source."""
    lines = [frame.line for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    while error.__cause__ is not None and isinstance(error.__cause__, Exception):
        error = error.__cause__
        lines += [frame.line for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{text}, at: {lines[-1]}" if lines and lines[-1] else text


def _normal(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape, np.float32))


def _unwritten(*shape: int) -> torch.Tensor:
    return torch.full(shape, math.nan)


def _wide(x: torch.Tensor) -> np.ndarray:
    return x.numpy().astype(np.float64)


def _in_any_order(terms: np.ndarray) -> np.ndarray:
    """What a float32 sum along the first axis may be off, however it is ordered."""
    return len(terms) * 2.0**-23 * np.abs(terms).sum(axis=0)


# -- the conversation -------------------------------------------------------------------------------------------------


def serve() -> None:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a kernel that prints must not answer
    calls: dict[str, Callable[..., dict[str, Any]]] = {"record": record, "predict": predict, "check": check}
    for line in sys.stdin:
        request = json.loads(line)
        answer = calls[request.pop("what")](**request)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    interpreter.install()
    serve()
