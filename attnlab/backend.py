"""From the name of an implementation to the room that holds it: a table of rows, and one sentence where a row cannot be
used here.

An implementation that is asked for by name runs or raises; nothing falls back to another one, and there is no "current"
backend to set.
"""

import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from attnlab.arrays import as_numpy, one_of

__all__ = [
    "IMPLEMENTATIONS",
    "ROWS",
    "Unavailable",
    "Unsupported",
    "available",
    "device",
    "eps",
    "found",
    "interpreting",
    "lacks_only_gpu",
    "load",
    "narrow",
    "numba_compiles",
    "refuse_gradients",
    "why_not",
]


class Unavailable(RuntimeError):
    """The implementation asked for cannot run on this machine; the text says why and what would change that."""


class Unsupported(ValueError):
    """The implementation runs here, but not for these arguments; the text says which range it covers."""


@dataclass(frozen=True)
class Row:
    """One implementation: its name, the file of a mechanism that holds it, the packages and the hardware it needs, and
    the relative precision of its products in float32.
    """

    name: str
    room: str
    packages: tuple[str, ...] = ()
    gradients: bool = False
    gpu: bool = False
    eps: float = 2.0**-23


ROWS = (
    Row("reference", "reference"),
    Row("numba", "numba_impl", ("numba",)),
    Row("torch", "torch_impl", ("torch",), gradients=True),
    # tensor cores take a float32 as two parts of 11 bits each: the second one is cut there, not rounded
    Row("triton", "triton_impl", ("torch", "triton"), gradients=True, gpu=True, eps=2.0**-21),
)
IMPLEMENTATIONS = tuple(row.name for row in ROWS)
NO_GPU = (
    "torch sees no GPU on this machine, and this kernel needs one; with TRITON_INTERPRET=1 set before Python starts it "
    "runs interpreted (slow, for teaching sizes)."
)


def why_not(impl: str, mechanism: str) -> str | None:
    """None if `impl` of `mechanism` can run here, else one sentence: the skip reason of tests, the tooltip of the
    badge, the text of `Unavailable`.
    """
    row = _row(impl)
    if not found(f"attnlab.{mechanism}.{row.room}"):
        return f"{mechanism} has no {impl} implementation in this version of attnlab."
    for package in row.packages:
        if not found(package):
            return f"the package {package} is not installed; get it with: pip install {package}"
    if "numba" in row.packages and not numba_compiles():
        return "Numba's compiler is switched off here (NUMBA_DISABLE_JIT), and these kernels are nothing without it."
    return NO_GPU if row.gpu and not interpreting() and not _gpu() else None


def numba_compiles() -> bool:
    """Whether Numba is installed and compiles: NUMBA_DISABLE_JIT is read as Numba reads it."""
    try:
        off = int(os.environ.get("NUMBA_DISABLE_JIT", "0"))
    except ValueError:
        off = 0
    return found("numba") and not off


def lacks_only_gpu(impl: str, mechanism: str) -> bool:
    """Whether `impl` of `mechanism` could run here if there were a GPU, and nothing else is missing."""
    return why_not(impl, mechanism) == NO_GPU


def load(impl: str, mechanism: str) -> ModuleType:
    """The room of `mechanism` that holds `impl`. Raises Unavailable with the sentence of `why_not`; never returns
    another implementation.
    """
    reason = why_not(impl, mechanism)
    if reason:
        raise Unavailable(f"impl={impl!r} cannot run here: {reason}")
    return importlib.import_module(f"attnlab.{mechanism}.{_row(impl).room}")


def refuse_gradients(impl: str, *, only: tuple[str, ...] = (), **arrays: Any) -> None:
    """Raise Unsupported if one of the named arrays wants a gradient that `impl` would silently drop; under torch's
    `no_grad` nobody wants one. `only` are the implementations that have gradients, where a mechanism has fewer than
    usual.
    """
    wanting = [name for name, array in arrays.items() if getattr(array, "requires_grad", False)]
    torch = sys.modules.get("torch")
    if torch is not None and not torch.is_grad_enabled():
        return
    having = only or tuple(row.name for row in ROWS if row.gradients)
    if wanting and _row(impl).name not in having:
        able = " or ".join(map(repr, having))
        raise Unsupported(f"impl={impl!r} has no gradients, and {wanting[0]} requires one; detach it, or use {able}.")


def narrow(impl: str, name: str, array: Any) -> np.ndarray:
    """The array in float32, itself if it is that. Raises Unsupported where that is too narrow for a number."""
    array = as_numpy(array)
    if array.dtype == np.float32:
        return array
    with np.errstate(over="ignore"):
        result = array.astype(np.float32)
    if array.dtype.itemsize > result.dtype.itemsize and not np.isfinite(result).all():
        raise Unsupported(f"the {impl} implementation computes in float32, and {name} has numbers too large for it.")
    return result


def available(mechanism: str) -> tuple[str, ...]:
    """The implementations of `mechanism` that can run here, the reference first."""
    return tuple(row.name for row in ROWS if why_not(row.name, mechanism) is None)


def eps(impl: str) -> float:
    """The relative precision of the products of `impl` in float32."""
    return _row(impl).eps


def device(impl: str) -> str:
    """Where `impl` computes on this machine: "CPU", "CPU, interpreted", or the name of the GPU."""
    if _row(impl).gpu and interpreting():
        return "CPU, interpreted"
    if _row(impl).gpu and _gpu():
        return str(importlib.import_module("torch").cuda.get_device_name())
    return "CPU"


def interpreting() -> bool:
    """Whether Triton interprets its kernels in this process, on the CPU: TRITON_INTERPRET=1 stood in the environment
    when it was imported, or will if it is imported now.
    """
    asked = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")  # as Triton reads it
    triton = sys.modules.get("triton")
    return asked and (triton is None or not isinstance(triton.language.cdiv, triton.JITFunction))


def _row(impl: str) -> Row:
    one_of("impl", impl, IMPLEMENTATIONS)
    return next(row for row in ROWS if row.name == impl)


def found(module: str) -> bool:
    """Whether a module can be imported here."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # a blocked module (sys.modules[name] is None) counts as absent
        return False


def _gpu() -> bool:
    return bool(importlib.import_module("torch").cuda.is_available())
