"""The one door through which a kernel is started, so that its launches can also be noted without a GPU.

The compile table and the tests of shapes run an operation on tensors of device "meta" inside `recorded()`. What they
then compile is what a user runs, down to the arguments a compiler specialises on.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch


class Launch(NamedTuple):
    """One start of a kernel: its grid, its positional arguments, and constexprs and compiler options by keyword."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    options: dict[str, Any]


_noted: list[Launch] | None = None


def launch(kernel: Any, grid: tuple[int, ...], /, *args: Any, **options: Any) -> None:
    """Start `kernel` on `grid`, on the device of its first tensor; inside `recorded()` only note it.

    `args` are tensors, numbers or None; `options` are the kernel's constexprs, `num_warps` (of 32 threads each, also
    where a card's warps are wider) and `num_stages`.
    """
    if 0 in grid:
        return
    if _noted is not None:
        _noted.append(Launch(kernel, tuple(grid), args, options))
        return
    # Triton starts on the current device, which need not be the one that holds the tensors.
    device = next((arg.get_device() for arg in args if isinstance(arg, torch.Tensor)), -1)
    with torch.cuda.device(device):
        kernel[grid](*args, **for_warps_of(64 if torch.version.hip else 32, options))


def for_warps_of(width: int, options: dict[str, Any]) -> dict[str, Any]:
    """The same options for a card whose warps are `width` threads wide: the same number of threads, and without
    `maxnreg`, which only NVIDIA's assembler knows.
    """
    if width == 32:
        return options
    known = {name: value for name, value in options.items() if name != "maxnreg"}
    if "num_warps" in known:
        known["num_warps"] = max(1, known["num_warps"] * 32 // width)
    return known


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Collect the launches of this process in the list it yields, and start none of them. It may be nested."""
    global _noted
    before, _noted = _noted, []
    try:
        yield _noted
    finally:
        _noted = before
