"""How much memory RACE takes, measured in processes of their own.

    python -m attnlab.bench._race_memory forward 65536 262144

prints for each length, as JSON, how far resident memory rose beside output and gradients, and its peak. What makes that
the memory of attention and of nothing else:

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
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["UNTOLD", "available_bytes", "freed_is_kept", "keep_freed", "measured", "peak_bytes", "rise"]

UNTOLD = "this system does not tell a process's peak of resident memory (Linux does)"
H, K, P, L = 4, 128, 4, 4
SHARPNESS = 2.0
WARM_UP = 4096  # tokens
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
M_TRIM_THRESHOLD, M_MMAP_MAX, MMAP_MAX, TRIM_THRESHOLD, NEVER = -1, -4, 65_536, 131_072, -1  # glibc's; its defaults
PR_SET_THP_DISABLE = 41


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


def measured(case: str, *lengths: int, threads: int) -> list[dict[str, Any]]:
    """{"tokens", "extra_bytes", "peak_bytes", "time_s"} of each length, from a fresh interpreter. `case` is a key of
    CASES. Raises RuntimeError with its last words where it fails.
    """
    environment = os.environ | {
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "NUMBA_NUM_THREADS": str(threads),
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    command = [sys.executable, "-m", "attnlab.bench._race_memory", case, *map(str, lengths)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"measuring memory ended with status {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


CASES = {  # whether causal, whether with gradients
    "forward.noncausal": (False, False),
    "forward.causal": (True, False),
    "both.noncausal": (False, True),
    "both.causal": (True, True),
}


def main(case: str, *lengths: str) -> None:
    """Measure one case at these lengths, shortest first, and print it."""
    causal, gradients = CASES[case]
    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
    run, arrays = (_both if gradients else _forward)(causal), 4 if gradients else 3
    for _ in range(2):
        run(*_inputs(WARM_UP, arrays))
    result = []
    for tokens in map(int, lengths):
        inputs = _inputs(tokens, arrays)
        start = time.perf_counter()
        kept, rose = rise(partial(run, *inputs))
        seconds = time.perf_counter() - start
        extra = rose - sum(x.nbytes for x in kept)  # output and gradients
        told = {"tokens": tokens, "extra_bytes": extra, "peak_bytes": peak_bytes(), "time_s": seconds}
        result.append(told)
        del inputs, kept
    print(json.dumps(result))


def _inputs(length: int, count: int) -> list[np.ndarray]:
    from attnlab.bench._race_tokens import tokens

    return [tokens(stream, length, H, K) for stream in range(count)]


def _planes() -> np.ndarray:
    from attnlab.race import draw_planes

    return draw_planes(L, P, K).astype(np.float32)


def _forward(causal: bool) -> Callable[..., list[Any]]:
    from attnlab.race import numba_impl

    planes = _planes()
    return lambda q, k, v: [numba_impl.attention(q, k, v, planes, SHARPNESS, causal=causal)]


def _both(causal: bool) -> Callable[..., list[Any]]:
    import torch

    from attnlab.race import torch_impl

    planes = torch.from_numpy(_planes())

    def run(q, k, v, d_out):
        q, k, v = (torch.from_numpy(x).requires_grad_() for x in (q, k, v))
        out = torch_impl.attention(q, k, v, planes, SHARPNESS, causal=causal)
        out.backward(torch.from_numpy(d_out))
        return [out, q.grad, k.grad, v.grad]

    return run


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
