"""How the scripts of kernels/bench time a call on a GPU, and what they say of the machine."""

import statistics
from collections.abc import Callable
from typing import Any

import torch
import triton

__all__ = ["Clock", "GpuClock", "machine"]

Clock = Callable[[Callable[[], object]], float]


class GpuClock:
    """Seconds of a call on the GPU: the median of `repeats`, after warm-up."""

    def __init__(self, repeats: int = 20):
        self.repeats = repeats
        self.elsewhere = torch.empty(2**30, dtype=torch.int8, device="cuda")  # larger than the caches

    def __call__(self, run: Callable[[], object]) -> float:
        """Nothing of an earlier call is left in the caches."""
        for _ in range(3):
            run()
        begins, ends = ([torch.cuda.Event(enable_timing=True) for _ in range(self.repeats)] for _ in range(2))
        for begin, end in zip(begins, ends, strict=True):
            self.elsewhere.zero_()
            begin.record()
            run()
            end.record()
        torch.cuda.synchronize()
        return statistics.median(begin.elapsed_time(end) for begin, end in zip(begins, ends, strict=True)) / 1e3


def machine() -> dict[str, Any]:
    """Card and versions."""
    card = torch.cuda.get_device_properties(0)
    return {
        "card": card.name,
        "multiprocessors": card.multi_processor_count,
        "memory_bytes": card.total_memory,
        "runtime": torch.version.hip or torch.version.cuda,
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
