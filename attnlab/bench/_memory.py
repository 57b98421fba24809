"""How much memory a pass takes, measured in processes of their own.

    python -m attnlab.bench._memory race p4l4.forward.causal 65536 262144

prints for each length, as JSON, how far resident memory rose beside output and gradients, and its peak. What makes that
the memory of the pass and of nothing else:

    inputs          every page is written before the level is read
    a first call    4,096 tokens through every path: libraries, compiled code, threads and their stacks are there. What
                    it leaves behind for good is not counted; what grows with the length is, in the first longer call
    free memory     goes back to the system before the level is read (malloc_trim), and every block above 64 KiB comes
                    from the system by itself (MALLOC_MMAP_THRESHOLD_), so that none is served from pages which are
                    resident already and would hide it
    huge pages      are off for the process (PR_SET_THP_DISABLE): else a touched byte may count as 2 MiB
    the peak        is the system's high-water mark of resident memory, reset after the level was read

Linux with glibc tells all of this; elsewhere nothing is measured. The system counts pages a processor at a time, so a
number may be off by a quarter of a MiB.
"""

import ctypes
import gc
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attnlab import bench, progress

__all__ = ["UNTOLD", "Case", "available_bytes", "freed_is_kept", "keep_freed", "measured", "peak_bytes", "rise", "rows"]

UNTOLD = "this system does not tell a process's peak of resident memory (Linux does)"
WARM_UP = 4096  # tokens
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
M_TRIM_THRESHOLD, M_MMAP_MAX, MMAP_MAX, TRIM_THRESHOLD, NEVER = -1, -4, 65_536, 131_072, -1  # glibc's; its defaults
PR_SET_THP_DISABLE = 41


class Case(NamedTuple):
    """A pass that is measured. What `run` returns, the output and gradients, is not counted as memory beside them."""

    inputs: Callable[[int], list[np.ndarray]]  # of so many tokens
    run: Callable[..., list[Any]]  # of these


def peak_bytes() -> int | None:
    """The most memory that was resident in this process since it started or since `rise` began; None where the system
    does not tell. (`resource.getrusage` would count the parent's as well: exec keeps it.)
    """
    return _status("VmHWM")


def available_bytes() -> int | None:
    """What may still be allocated on this machine without swapping; None where the system does not tell."""
    return _kilobytes(Path("/proc/meminfo"), "MemAvailable")


def keep_freed(keep: bool) -> bool:
    """Have malloc keep what is freed, so that large arrays lie in pages which the process has, as those of sgemm and
    copy do; or give it back, as it does by itself. Whether that was possible: it is with glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    settings = {M_MMAP_MAX: 0 if keep else MMAP_MAX, M_TRIM_THRESHOLD: NEVER if keep else TRIM_THRESHOLD}
    return min(mallopt(name, value) for name, value in settings.items()) == 1


@contextmanager
def freed_is_kept() -> Iterator[None]:
    """`keep_freed` for a while."""
    keep_freed(True)
    try:
        yield
    finally:
        keep_freed(False)


def rise(run: Callable[[], Any]) -> tuple[Any, int]:
    """What `run` returns, and by how many bytes resident memory peaked above the level before it."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    RESET.write_text("5")  # the high-water mark falls to the level
    level = _status("VmRSS") or 0
    result = run()
    return result, (peak_bytes() or 0) - level


def measured(benchmark: str, case: str, *lengths: int, threads: int) -> list[dict[str, Any]]:
    """{"tokens", "extra_bytes", "peak_bytes", "time_s"} of each length, from a fresh interpreter. `case` is a key of
    the benchmark's MEMORY, which makes the Case. Raises RuntimeError with its last words where it fails.
    """
    environment = os.environ | {
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "NUMBA_NUM_THREADS": str(threads),
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    command = [sys.executable, "-m", "attnlab.bench._memory", benchmark, case, *map(str, lengths)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"measuring memory ended with status {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def rows(
    benchmark: str, cases: Sequence[str], lengths: Sequence[int], allowed: Callable[[str, int], float | None]
) -> list[dict[str, Any]]:
    """What each case takes beside what it was given and what it gives back, judged at the longest length; `allowed` is
    the target in MiB of a case and a length, None where there is none.
    """
    result = []
    for case in cases:
        id, target = f"{benchmark}.{case}.extra_memory", allowed(case, lengths[-1])
        if peak_bytes() is None:
            result.append(bench.left_out(id, "MiB", UNTOLD, target=target))
            continue
        progress.show(f"memory of {case}")
        told = {
            each["tokens"]: round(each["extra_bytes"] / 2**20, 2)
            for each in measured(benchmark, case, *lengths, threads=1)
        }
        *shorter, longest = told
        note = f"at {longest:,} tokens"
        for tokens in shorter:
            limit = allowed(case, tokens)
            note += f", {told[tokens]:g}{'' if limit is None else f' of {limit:g}'} at {tokens:,}"
        result.append(bench.row(id, [told[longest]], "MiB", better="lower", target=target, note=note))
    progress.show("")
    return result


def main(benchmark: str, case: str, *lengths: str) -> None:
    """Measure one case at these lengths, shortest first, and print it."""
    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
    inputs, run = importlib.import_module(f"attnlab.bench.{benchmark}").MEMORY[case]()
    for _ in range(2):
        run(*inputs(WARM_UP))
    result = []
    for tokens in map(int, lengths):
        given = inputs(tokens)
        start = time.perf_counter()
        kept, rose = rise(partial(run, *given))
        seconds = time.perf_counter() - start
        extra = rose - sum(x.nbytes for x in kept)
        told = {"tokens": tokens, "extra_bytes": extra, "peak_bytes": peak_bytes(), "time_s": seconds}
        result.append(told)
        del given, kept
    print(json.dumps(result))


def _status(name: str) -> int | None:
    return _kilobytes(STATUS, name)


def _kilobytes(path: Path, name: str) -> int | None:
    try:
        lines = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        return 1024 * int(lines[name].split()[0])
    except (OSError, KeyError):
        return None


if __name__ == "__main__":
    main(*sys.argv[1:])
