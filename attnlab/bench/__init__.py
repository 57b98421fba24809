"""Benchmarks on this machine's CPU: a mechanism beside its peers in the same process and the same minute, and the live
panels in a browser.

Each is a module with NEEDS, the packages it cannot do without, `about()`, what else it measures on, and `rows()`.

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
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from attnlab import progress
from attnlab.backend import Unavailable

__all__ = ["machine", "measure", "names", "row", "run", "single_threaded", "table"]

NOISY = 0.35  # relative spread (quartiles over median) above which a number is not judged


def names() -> list[str]:
    """The benchmarks there are."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))


def run(name: str) -> dict[str, Any]:
    """{"machine": ..., "rows": [...]} of one benchmark; progress goes to stderr.

    Raises backend.Unavailable where something that is measured, or measured against, is missing.
    """
    module = importlib.import_module(f"attnlab.bench.{name}")
    missing = [package for package in module.NEEDS if importlib.util.find_spec(package) is None]
    if missing:
        raise Unavailable(f"the benchmark needs {', '.join(missing)}; get it with: pip install {' '.join(missing)}")
    return {"machine": machine(module.NEEDS) | module.about(), "rows": module.rows()}


def machine(packages: Iterable[str] = ()) -> dict[str, Any]:
    """What was measured on: CPU, cores, load, and the versions of these packages beside NumPy's."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        **{package: importlib.metadata.version(package) for package in ("numpy", *packages)},
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
    id: str, samples: Sequence[float], unit: str, *, better: str, target: float | None = None, note: str = ""
) -> dict[str, Any]:
    """One row from repeated samples: their median, judged against the target. Samples that scatter much are judged only
    where all of them meet it. A single sample is a count, and exact.
    """
    if len(samples) == 1:
        (value,), spread, spread_note = samples, 0.0, ""
    else:
        value = float(f"{statistics.median(samples):.4g}")
        low, _, high = statistics.quantiles(samples, n=4)
        spread, spread_note = (high - low) / value, f"quartiles {low:.4g} to {high:.4g}"
    verdicts = [target is not None and (x >= target if better == "higher" else x <= target) for x in (*samples, value)]
    status = None
    if spread > NOISY and not all(verdicts):
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
    }


def table(result: dict[str, Any]) -> str:
    """The result for a person to read."""
    about = result["machine"]
    untold = ("cpu", "cores", "system", "python", "date")
    told = (f"{name} {value}" for name, value in about.items() if name not in untold)
    lines = [", ".join([about["cpu"], about["date"], *told]), ""]
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
