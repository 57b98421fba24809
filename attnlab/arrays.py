"""Shapes in signatures, and the one place that words what is wrong with an input.

`Float[Array, "B T H K"]` in a signature is a plain annotation that carries the axes; nothing is checked until `check`
is called, and the public door (`api.py` of each mechanism) calls it once for every argument.

Axes, one meaning everywhere: B batch, T query position, S key position where it differs, H head, K key width, V value
width.
"""

from collections.abc import Sequence
from typing import Annotated as Float
from typing import Any

import numpy as np

__all__ = ["Array", "Axes", "Float", "as_float", "as_numpy", "check", "check_shape", "dial", "flag", "one_of"]

Array = np.ndarray
Axes = dict[str, tuple[int, str]]  # letter -> (size, the argument that fixed it)


def as_numpy(array: Any) -> np.ndarray:
    """The same numbers as a NumPy array: torch tensors of any float type included, without importing torch here."""
    if hasattr(array, "detach"):
        array = array.detach().cpu()
        if str(array.dtype) == "torch.bfloat16":  # NumPy has no bfloat16; float32 holds it exactly
            array = array.float()
        return array.numpy()
    return np.asarray(array)


def as_float(array: Any, dtype: Any = np.float64) -> np.ndarray:
    """The array in the precision a reference computes in: float64 unless an error budget asks for less."""
    return as_numpy(array).astype(dtype, copy=False)


def check(name: str, array: Any, axes: str, sizes: Axes) -> Any:
    """Return `array` unchanged if it is real, finite and has the named axes with the sizes met so far.

    `sizes` collects the size of each letter and the argument that fixed it, so that one dictionary passed along
    compares all arguments of a call. Raises TypeError for a dtype that is not a real floating one; ValueError for a
    wrong rank, a size that contradicts an earlier argument, NaN or inf. Testing for NaN reads the whole array once (on
    a GPU this waits for the device).
    """
    array = array if hasattr(array, "shape") else np.asarray(array)
    check_shape(name, array, axes, sizes, floating=True)
    where = _first_not_finite(array)
    if where is not None:
        raise ValueError(f"{name} must be finite, got {float(as_numpy(array)[where])} at {list(where)}")
    return array


def check_shape(name: str, array: Any, axes: str, sizes: Axes, *, floating: bool = False) -> None:
    """The same without a look at the numbers, which a cache may have no use for; real floating ones where asked."""
    array = array if hasattr(array, "shape") else np.asarray(array)
    letters = axes.split()
    shape = tuple(int(n) for n in array.shape)
    wanted = f"[{', '.join(letters)}]"
    if floating and not _is_real_float(array.dtype):
        raise TypeError(f"{name} must hold real floating-point numbers, got dtype {_dtype_name(array.dtype)}")
    if len(shape) != len(letters):
        raise ValueError(f"{name} must be {wanted}, got {len(shape)} axes of sizes {shape}")
    for letter, size in zip(letters, shape, strict=True):
        known, owner = sizes.setdefault(letter, (size, name))
        if size != known:
            raise ValueError(f"{name} must be {wanted} with {letter} = {known} as in {owner}, got {shape}")


def dial(name: str, value: Any, low: float, high: float, *, integer: bool = False) -> Any:
    """Return `value` if it is a number in [low, high] (a whole one where `integer`); else raise with the name, the
    range and what came.
    """
    kind = "a whole number" if integer else "a number"
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, (bool, np.bool_))
    if is_number and not low <= value <= high:  # NaN fails this too
        raise ValueError(f"{name} must lie in [{low:g}, {high:g}], got {value!r}")
    if not is_number or (integer and not float(value).is_integer()):
        raise ValueError(f"{name} must be {kind} in [{low:g}, {high:g}], got {value!r}")
    return int(value) if integer else float(value)


def flag(name: str, value: Any) -> bool:
    """Return `value` if it is True or False; a truthy 1 or "no" is refused."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def one_of(name: str, value: Any, choices: Sequence[str]) -> str:
    """Return `value` if it is one of `choices`; else raise with all of them."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _is_real_float(dtype: Any) -> bool:
    if hasattr(dtype, "is_floating_point"):  # torch
        return bool(dtype.is_floating_point)
    return np.issubdtype(dtype, np.floating) or dtype.name == "bfloat16"


def _first_not_finite(array: Any) -> tuple[int, ...] | None:
    """Where the first NaN or inf is. The extremes tell whether there is one, and need no memory for it."""
    if 0 in array.shape:
        return None
    with np.errstate(invalid="ignore"):
        extremes = array.detach().aminmax() if hasattr(array, "aminmax") else (array.min(), array.max())
    if all(np.isfinite(as_numpy(x)) for x in extremes):
        return None
    return tuple(int(i) for i in np.argwhere(~np.isfinite(as_numpy(array)))[0])
