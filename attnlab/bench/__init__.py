"""Benchmarks on this machine's CPU: one module a mechanism, peers measured in the same process and the same minute.

A row is {"id", "value", "unit", "target", "better", "status", "note"}; `status` is "met" or "short" where there is a
target, "noisy" where repeated measurements disagree too much to judge, and None where there is nothing to judge.
"""

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attnlab import progress
from attnlab.backend import Unavailable

__all__ = ["machine", "measure", "names", "row", "run", "single_threaded", "table"]

PACKAGES = ("numba", "threadpoolctl", "torch")
NOISY = 0.35  # relative spread (quartiles over median) above which a number is not judged


def names() -> list[str]:
    """The benchmarks there are."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem != "__init__")


def run(name: str) -> dict[str, Any]:
    """{"machine": ..., "rows": [...]} of one benchmark; progress goes to stderr.

    Raises backend.Unavailable where a package that is measured, or measured against, is missing.
    """
    missing = [package for package in PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        raise Unavailable(f"the benchmark needs {', '.join(missing)}; get it with: pip install {' '.join(missing)}")
    return {"machine": machine(), "rows": importlib.import_module(f"attnlab.bench.{name}").rows()}


def machine() -> dict[str, Any]:
    """What was measured on: CPU, cores, load, versions."""
    versions: dict[str, str | None] = {}
    for package in ("numpy", "numba", "torch"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        **versions,
        "date": time.strftime("%Y-%m-%d"),
        "threads": 1,
    }


def single_threaded() -> None:
    """Pin every library to one thread for the rest of this process."""
    import numba
    import threadpoolctl
    import torch

    torch.set_num_threads(1)
    numba.set_num_threads(1)
    threadpoolctl.threadpool_limits(1)


def measure(tasks: dict[str, Callable[[], Any]], rounds: int = 7) -> dict[str, list[float]]:
    """Seconds of each task in each round, tasks interleaved so that a noisy neighbour hits all of them; one round of
    warm-up.
    """
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for number in range(rounds + 1):
        for name, task in tasks.items():
            progress.show(f"[{number}/{rounds}] {name}")
            start = time.perf_counter()
            task()
            if number:
                seconds[name].append(time.perf_counter() - start)
    progress.show("")
    return seconds


def row(
    id: str, samples: list[float], unit: str, *, better: str, target: float | None = None, note: str = ""
) -> dict[str, Any]:
    """One row from repeated samples: their median, judged against the target unless they scatter too much."""
    value = statistics.median(samples)
    low, _, high = statistics.quantiles(samples, n=4)
    spread = (high - low) / value
    status = None
    if spread > NOISY:
        status = "noisy"
    elif target is not None:
        status = "met" if (value >= target if better == "higher" else value <= target) else "short"
    spread_note = f"quartiles {low:.4g} to {high:.4g}"
    return {
        "id": id,
        "value": float(f"{value:.4g}"),
        "unit": unit,
        "target": target,
        "better": better,
        "status": status,
        "note": f"{note}; {spread_note}" if note else spread_note,
    }


def table(result: dict[str, Any]) -> str:
    """The result for a person to read."""
    about = result["machine"]
    versions = ", ".join(f"{name} {about[name]}" for name in ("numpy", "numba", "torch"))
    lines = [f"{about['cpu']}, {about['threads']} thread, {about['date']}, {versions}", ""]
    for entry in result["rows"]:
        goal = "" if entry["target"] is None else f"target {entry['target']:g} "
        judged = f"{goal}{entry['status'] or ''}"
        lines.append(f"{entry['id']:<46} {entry['value']:>8g} {entry['unit']:<14} {judged:<8} {entry['note']}")
    return "\n".join(lines)


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
