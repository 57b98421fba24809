"""What a machine can do at all, the matrix product and the copy, measured beside the passes that they are the limit of;
and rows which every benchmark of CPU kernels has.
"""

import statistics
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from attnlab import bench
from attnlab.bench import Seconds, ratios

__all__ = ["SQUARE", "Rows", "Tasks", "Times", "beside", "faster", "of_sgemm", "per_token", "rows", "thread_rows",
           "thread_tasks"]  # fmt: skip

SQUARE = 2048  # rows of sgemm's matrices
CORE_SHARE = 0.95
LEAST_GAIN = 1.3  # of sgemm from a second core that is free

Tasks = dict[str, Callable[[], Any]]
Times = Mapping[str, list[Seconds]]
Rows = list[dict[str, Any]]


# -- the limits --


def beside(tasks: Tasks, copied: Any) -> Tasks:
    """The tasks, each of the first four right after one of the machine's limits: sgemm of NumPy, of torch, a copy of
    the array `copied` by NumPy, by torch.
    """
    import torch

    from attnlab.bench._tokens import tokens

    square = tokens(4, SQUARE, 1, SQUARE)[0, :, 0]
    product, a, source = np.empty_like(square), torch.from_numpy(square), torch.from_numpy(copied)
    c, target = torch.from_numpy(product), torch.empty_like(source)
    limits: Tasks = {
        "sgemm.numpy": lambda: np.matmul(square, square, out=product),
        "sgemm.torch": lambda: torch.mm(a, a, out=c),
        "copy.numpy": lambda: np.copyto(target.numpy(), copied),
        "copy.torch": lambda: target.copy_(source),
    }
    turns = zip(limits.items(), tasks.items(), strict=False)
    return dict(turn for pair in turns for turn in pair) | tasks


def faster(seconds: Times, task: str) -> tuple[list[Seconds], str]:
    """The times of the library that does it in less, and its name."""
    best = min(
        (f"{task}.{it}" for it in ("numpy", "torch")), key=lambda n: statistics.median(s.wall for s in seconds[n])
    )
    return seconds[best], f"{task} of {best.split('.')[1]}"


def of_sgemm(seconds: Times, task: str, flops: float) -> tuple[list[float], str]:
    """The rate of a task of so many flops over that of sgemm, round by round, and whose sgemm it is."""
    gemm, library = faster(seconds, "sgemm")
    return ratios(gemm, seconds[task], flops / (2 * SQUARE**3)), library


def rows(seconds: Times, copied: int) -> Rows:
    """The machine's limits, with so many numbers copied, and whether it was this process's alone."""
    gemm, gemm_library = faster(seconds, "sgemm")
    copy, copy_library = faster(seconds, "copy")
    rounds = list(zip(*seconds.values(), strict=True))
    shares = [sum(s.cpu for s in turn) / sum(s.wall for s in turn) for turn in rounds]
    return [
        bench.row(
            "machine.sgemm", [2e-9 * SQUARE**3 / s.wall for s in gemm], "GF/s", better="higher", note=gemm_library
        ),
        bench.row("machine.copy", [8e-9 * copied / s.wall for s in copy], "GB/s", better="higher", note=copy_library),
        bench.row(
            *("machine.core_share", [min(share, 1 / share) for share in shares], ""),
            better="higher",
            target=CORE_SHARE,
            note="CPU time over wall time, less where others had the core; or its inverse, where a second thread ran",
        ),
    ]


# -- a second thread --


def thread_tasks(ours: Callable[[int], Any]) -> Tasks:
    """sgemm and a pass of ours, which takes a number of threads, with one thread and with two."""
    import torch

    from attnlab.bench._tokens import tokens

    a = torch.from_numpy(tokens(4, SQUARE, 1, SQUARE)[0, :, 0])
    c = torch.empty_like(a)

    def product(number: int) -> None:
        bench.threads(number)
        torch.mm(a, a, out=c)

    tasks = {"sgemm": product, "ours": ours}
    return {f"{name}.{number}": partial(task, number) for number in (1, 2) for name, task in tasks.items()}


def thread_rows(id: str, seconds: Times | None, target: float) -> Rows:
    """What the second thread gains beside sgemm's gain; a sentence on a machine with one core. Noisy where sgemm gains
    next to nothing: to gain as much is no merit then.
    """
    if seconds is None:
        return [bench.left_out(id, "", "this machine has one core", better="higher", target=target)]
    gains = {name: ratios(seconds[f"{name}.1"], seconds[f"{name}.2"]) for name in ("ours", "sgemm")}
    share = [a / b for a, b in zip(gains["ours"], gains["sgemm"], strict=True)]
    note = ", ".join(f"{name} {statistics.median(gain):.2f} times as fast" for name, gain in gains.items())
    note += "; the threads share the way to memory, which a product hardly needs"
    judged = bench.row(id, share, "", better="higher", target=target, note=note)
    if statistics.median(gains["sgemm"]) < LEAST_GAIN:
        judged |= {"status": "noisy", "note": f"the second core was not free; {judged['note']}"}
    return [judged]


# -- times --


def per_token(id: str, seconds: list[Seconds], tokens: int, heads: int) -> dict[str, Any]:
    """A time as nanoseconds a token and head."""
    per = 1e9 / tokens / heads
    wall, cpu = [per * s.wall for s in seconds], [per * s.cpu for s in seconds]
    return bench.row(id, wall, "ns/token-head", better="lower", note=f"{tokens:,} tokens", cpu=cpu)
