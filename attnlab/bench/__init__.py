"""Benchmarks on this machine's CPU: a mechanism beside its peers in the same process and the same minute, and the live
panels in a browser.

Each is a module with NEEDS, the packages it cannot do without, `about()`, what else it measures on, and `rows()`; what
a benchmark can be asked for are the options of both.

A row is {"id", "value", "unit", "target", "better", "status", "note"}; `status` is "met" or "short" where there is a
target, "noisy" where repeated measurements disagree too much to judge, and None where there is nothing to judge. Rows
of times may have "cpu" beside it, the same in CPU time. `value` is None where nothing could be measured; `note` says
why. Rows named machine.* tell of the machine itself: where one of them is short or noisy, so is what was measured.
"""

import importlib
import importlib.metadata
import importlib.util
import math
import os
import platform
import statistics
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from attnlab import progress
from attnlab.backend import Unavailable

__all__ = [
    "Interrupted", "Seconds", "left_out", "machine", "measure", "names", "ratios", "row", "run", "single_threaded",
    "table", "threads", "verdict",
]  # fmt: skip

DISTRIBUTIONS = {"faiss": "faiss-cpu"}  # what is installed under another name than it is imported by
NOISY = 0.35  # relative spread (quartiles over median) above which a number is not judged
WIDTH = 118  # of the printed table


class Interrupted(RuntimeError):
    """A measurement was stopped by who started it; the text says where it stands and how to go on."""


class Seconds(NamedTuple):
    """What one run of a task took: on the clock, and of the CPU."""

    wall: float
    cpu: float


def names() -> list[str]:
    """The benchmarks there are."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))


def run(name: str, **options: Any) -> dict[str, Any]:
    """{"machine": ..., "verdict": ..., "rows": [...]} of one benchmark, `options` those of its `rows`; progress goes to
    stderr.

    Raises backend.Unavailable where something that is measured, or measured against, is missing.
    """
    module = importlib.import_module(f"attnlab.bench.{name}")
    missing = [package for package in module.NEEDS if importlib.util.find_spec(package) is None]
    if missing:
        missing = [DISTRIBUTIONS.get(package, package) for package in missing]
        raise Unavailable(f"the benchmark needs {', '.join(missing)}; get it with: pip install {' '.join(missing)}")
    rows = module.rows(**options)
    return {"machine": machine(module.NEEDS) | module.about(**options), "verdict": verdict(rows), "rows": rows}


def machine(packages: Iterable[str] = ()) -> dict[str, Any]:
    """What was measured on: CPU, cores, load, and the versions of these packages beside NumPy's."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        **{
            name: importlib.metadata.version(name)
            for name in (DISTRIBUTIONS.get(package, package) for package in ("numpy", *packages))
        },
    }


def single_threaded() -> None:
    """Pin every library to one thread for the rest of this process."""
    import threadpoolctl

    threadpoolctl.threadpool_limits(1)
    threads(1)


def threads(number: int) -> None:
    """Let torch, and what Numba compiled, use this many threads. Raises ValueError where Numba has fewer."""
    import numba
    import torch

    torch.set_num_threads(number)
    numba.set_num_threads(number)


def measure(tasks: dict[str, Callable[[], Any]], rounds: int = 7) -> dict[str, list[Seconds]]:
    """What each task took in each round, tasks interleaved so that a noisy neighbour hits all of them; one round of
    warm-up.
    """
    seconds: dict[str, list[Seconds]] = {name: [] for name in tasks}
    for number in range(rounds + 1):
        for name, task in tasks.items():
            progress.show(f"[{number}/{rounds}] {name}")
            cpu, wall = time.process_time(), time.perf_counter()
            task()
            if number:
                seconds[name].append(Seconds(time.perf_counter() - wall, time.process_time() - cpu))
    progress.show("")
    return seconds


def ratios(over: Sequence[Seconds], under: Sequence[Seconds], factor: float = 1.0) -> list[float]:
    """`factor` times over/under on the clock, round by round: a neighbour who slows both cancels."""
    return [factor * a.wall / b.wall for a, b in zip(over, under, strict=True)]


def row(
    id: str,
    samples: Sequence[float],
    unit: str,
    *,
    better: str,
    target: float | None = None,
    note: str = "",
    cpu: Sequence[float] = (),
) -> dict[str, Any]:
    """One row from repeated samples: their median, judged against the target. Samples that scatter much are judged only
    where all of them meet it, or none. A single sample is a count, and exact. NaN among the samples meets no target.
    """
    if not all(map(math.isfinite, samples)):
        note = "; ".join(filter(None, (note, f"not a finite number: {', '.join(f'{x:g}' for x in samples)}")))
        return left_out(id, unit, note, better=better, target=target) | {"status": None if target is None else "short"}
    if len(samples) == 1:
        (value,), spread, spread_note = samples, 0.0, ""
    else:
        value = float(f"{statistics.median(samples):.4g}")
        low, _, high = statistics.quantiles(samples, n=4)
        spread = (high - low) / abs(value) if value else 0.0
        spread_note = f"quartiles {low:.4g} to {high:.4g}"
    verdicts = [target is not None and (x >= target if better == "higher" else x <= target) for x in (*samples, value)]
    status = None
    if spread > NOISY and not all(verdicts) and (any(verdicts) or target is None):
        status = "noisy"
    elif target is not None:
        status = "met" if verdicts[-1] else "short"
    return {
        "id": id,
        "value": value,
        "unit": unit,
        "target": target,
        "better": better,
        "status": status,
        "note": "; ".join(part for part in (note, spread_note) if part),
    } | ({"cpu": float(f"{statistics.median(cpu):.4g}")} if cpu else {})


def left_out(id: str, unit: str, why: str, *, better: str = "lower", target: float | None = None) -> dict[str, Any]:
    """The row of something that could not be measured, and the sentence why."""
    return {
        "id": id,
        "value": None,
        "unit": unit,
        "target": target,
        "better": better,
        "status": None,
        "note": why,
    }


def verdict(rows: Sequence[dict[str, Any]]) -> str:
    """How many targets are met, and first whether the machine was too noisy to judge them."""
    noise = [
        " ".join(filter(None, (row["id"], _number(row["value"]), row["unit"], f"({row['note']})")))
        for row in rows
        if row["id"].startswith("machine.") and row["status"] in ("short", "noisy")
    ]
    judged = [row for row in rows if row["target"] is not None and not row["id"].startswith("machine.")]
    counts = {
        "met": sum(row["status"] == "met" for row in judged),
        "short": sum(row["status"] == "short" for row in judged),
        "too noisy to judge": sum(row["status"] == "noisy" for row in judged),
        "not measured": sum(row["status"] is None for row in judged),
    }
    said = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    found = f"{len(judged)} target{'s' * (len(judged) != 1)}: {said}." if judged else "No targets."
    return f"The machine was too noisy to judge: {'; '.join(noise)}. {found}" if noise else found


def table(result: dict[str, Any]) -> str:
    """The result for a person to read, WIDTH columns wide."""
    about = result["machine"]
    untold = ("cpu", "cores", "system", "python", "date")
    told = (f"{name} {value}" for name, value in about.items() if name not in untold)
    lines = [*textwrap.wrap(", ".join([about["cpu"], about["date"], *told]), WIDTH)]
    lines += ["", *textwrap.wrap(result["verdict"], WIDTH), ""]
    for entry in result["rows"]:
        goal = "" if entry["target"] is None else f"{'≥' if entry['better'] == 'higher' else '≤'} {entry['target']:g}"
        line = f"{entry['id']:<44} {_number(entry['value']):>9} {entry['unit']:<13} {goal} {entry['status'] or ''}"
        line = line.rstrip()
        note = "; ".join(filter(None, [f"CPU {_number(entry['cpu'])}" if "cpu" in entry else "", entry["note"]]))
        if len(line) + 2 + len(note) <= WIDTH:
            lines.append(f"{line}  {note}".rstrip())
        else:
            lines += [line, *textwrap.wrap(note, WIDTH, initial_indent="    ", subsequent_indent="    ")]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
