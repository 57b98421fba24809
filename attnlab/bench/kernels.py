"""The Triton kernels, judged without a GPU: what an operation asks of memory, and what the machine code takes.

race.OPERATION.MASK.traffic_ratio   bytes that all kernels of an operation request, interpreted at 4,096 tokens, over
                                    those it cannot do without; bfloat16, 4 planes, 4 tables, width 128. For other types
                                    and budgets their name stands before the last word (fp32-p4l4-k128v128)
race.....dot_flops                  of its matrix products for a token and head, padding included
race.....arithmetic_intensity       the same for each byte requested
residual.OPERATION.RULE....         the same three of the residual kernels, at 64 tokens, bfloat16, width 128; a
                                    training step's, so that forward also writes what backward needs
hashattention.scan.traffic_ratio    the first of a decode step over 4,096 keys, bfloat16, width 128, 32 bits, eight
                                    query heads on two key/value heads: from codes to lists,
hashattention.gather.traffic_ratio  and from lists to outputs, a list for each query head; `gather.shared` with one for
                                    each key/value head
lrkv.decode.rRANK.traffic_ratio     of a decode step over 4,096 keys, bfloat16, width 128, 32 heads on one shared head
KERNEL.CASE.TARGET.spill_bytes      of each thread, compiled afresh; the target is the GPU compiled for
KERNEL.CASE.TARGET.registers        of each thread
KERNEL.CASE.TARGET.shared_bytes     of each block, against what the device allows
KERNEL.CASE.TARGET.occupancy        the largest share of a multiprocessor's warps that these leave room for
KERNEL.CASE.TARGET.compiles         0 where it does not; there is no such row where it does
kernels.budget_differences          where the compile table is not the stored budget, or breaks a limit

All are counts, and exact. Nothing is timed.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from attnlab import bench, interpreted, progress

__all__ = [
    "NEEDS",
    "about",
    "compile_rows",
    "hash_traffic_rows",
    "lrkv_traffic_rows",
    "residual_traffic_rows",
    "rows",
    "traffic",
    "traffic_rows",
]

NEEDS = ("torch", "triton")
TOKENS = 4096
RESIDUAL_TOKENS = 64
MAIN = "bf16-p4l4-k128v128"
RESOURCES = {"spill_bytes": "bytes", "registers": "registers", "shared_bytes": "bytes"}


def about() -> dict[str, Any]:
    """What the rows stand on."""
    return {"evidence": interpreted.evidence()}


def rows() -> list[dict[str, Any]]:
    """Count and compile everything; some minutes."""
    counted = [*traffic_rows(traffic(TOKENS)), *residual_traffic_rows(traffic(RESIDUAL_TOKENS, "--residual"))]
    counted += [*hash_traffic_rows(traffic(TOKENS, "--hashattention")), *lrkv_traffic_rows(traffic(TOKENS, "--lrkv"))]
    return [*counted, *compile_rows()]


def traffic(tokens: int, *options: str) -> dict[str, Any]:
    """{"tokens", "cases"} as attnlab_kernels.testing.traffic prints it, from a process that interprets.

    Raises RuntimeError with its last words where it fails.
    """
    command = [sys.executable, "-m", "attnlab_kernels.testing.traffic", "--json", "--tokens", str(tokens), *options]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with tempfile.TemporaryFile("w+") as out:
        with subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stderr is not None
            last = ""
            for line in process.stderr:
                last = line.strip() or last
                progress.show(f"interpreting {last}")
        progress.show("")
        if process.returncode:
            raise RuntimeError(f"traffic could not be counted, status {process.returncode}: {last}")
        out.seek(0)
        return json.load(out)


def traffic_rows(counts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of what `traffic` counted."""
    from attnlab_kernels.testing.traffic import TARGETS

    result = []
    for case, operations in counts["cases"].items():
        causal = case.endswith("-causal")
        size = case.removesuffix("-causal")
        for operation, count in operations.items():
            name = f"race.{operation}.{'causal' if causal else 'noncausal'}{'' if size == MAIN else f'.{size}'}"
            target = TARGETS[operation, causal] if size == MAIN else None
            result += _counted(name, count, counts["tokens"], target)
    return result


def residual_traffic_rows(counts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The same of the residual kernels; the targets are what they ask for, rounded up."""
    from attnlab_kernels.testing.traffic import RESIDUAL_TARGETS

    result = []
    for case, operations in counts["cases"].items():
        rule = case.split("-")[0]
        for operation, count in operations.items():
            target = RESIDUAL_TARGETS.get((operation, rule)) if counts["tokens"] == RESIDUAL_TOKENS else None
            result += _counted(f"residual.{operation}.{rule}", count, counts["tokens"], target)
    return result


def hash_traffic_rows(counts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The first of them of HashAttention's kernels. What lists share is the gather alone, so the scan is told once."""
    from attnlab_kernels.testing.traffic import HASH_TARGETS

    result = []
    for case, operations in counts["cases"].items():
        shared = case.endswith("-shared")
        for operation, count in operations.items():
            if not (shared and operation == "scan"):
                name = f"{operation}.shared" if shared else operation
                target = HASH_TARGETS[name] if counts["tokens"] == TOKENS else None
                result.append(_ratio(f"hashattention.{name}", count, target))
    return result


def lrkv_traffic_rows(counts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The same of LRKV's kernels, by rank."""
    from attnlab_kernels.testing.traffic import LRKV_TARGETS

    result = []
    for case, operations in counts["cases"].items():
        rank = case.split("-")[0]
        target = LRKV_TARGETS[int(rank[1:])] if counts["tokens"] == TOKENS else None
        result += [_ratio(f"lrkv.{name}.{rank}", count, target) for name, count in operations.items()]
    return result


def _counted(name: str, count: Mapping[str, Any], tokens: int, target: float | None) -> list[dict[str, Any]]:
    """Three rows of one operation."""
    return [
        _ratio(name, count, target),
        bench.row(f"{name}.dot_flops", [count["dot_flops"] / tokens], "flop/token-head", better="lower"),
        bench.row(f"{name}.arithmetic_intensity", [count["intensity"]], "flop/byte", better="higher"),
    ]


def _ratio(name: str, count: Mapping[str, Any], target: float | None) -> dict[str, Any]:
    shares = ", ".join(f"{kernel} {n / count['compulsory']:.3f}" for kernel, n in count["kernels"].items())
    return bench.row(f"{name}.traffic_ratio", [count["ratio"]], "x", better="lower", target=target, note=shares)


def compile_rows() -> list[dict[str, Any]]:
    """The rows of the compile table, one target after the other, in worker processes."""
    from attnlab_kernels.testing import aot, operations

    cases, budget = aot.collect(operations.compiled()), aot.read_budget()
    found: dict[str, Any] = {}
    for number, target in enumerate(aot.TARGETS, 1):
        progress.show(f"compiling [{number}/{len(aot.TARGETS)}] {len(cases)} kernels for {target}")
        found |= aot.table(cases, [target], processes=min(os.cpu_count() or 1, 8))
    progress.show("")
    result = [row for key, got in sorted(found.items()) for row in _resources(key, got, budget.get(key))]
    wrong = aot.check(found, budget)
    note = " | ".join(wrong[:3]) + (f" | and {len(wrong) - 3} more" if len(wrong) > 3 else "")
    return [*result, bench.row("kernels.budget_differences", [len(wrong)], "", better="lower", target=0, note=note)]


def _resources(key: str, got: Any, stored: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    """The rows of one kernel for one target; the note says where the stored budget has another number."""
    from attnlab_kernels.testing import aot

    if isinstance(got, str):
        yield bench.row(f"{key}.compiles", [0], "", better="higher", target=1, note=got)
        return
    targets = {"spill_bytes": 0, "shared_bytes": aot.LIMITS[key.rsplit(".", 1)[-1]].block_shared_bytes}

    def note(field: str) -> str:
        if stored is None:
            return "not in the budget"
        want = stored.get(field, "missing")
        return "" if want == getattr(got, field) else f"the budget says {want}"

    for field, unit in RESOURCES.items():
        value, target = [getattr(got, field)], targets.get(field)
        yield bench.row(f"{key}.{field}", value, unit, better="lower", target=target, note=note(field))
    yield bench.row(f"{key}.occupancy", [got.occupancy], "share", better="higher", note=note("occupancy"))
