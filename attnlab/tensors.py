"""What every room that computes with tensors needs: arguments in, whoever hands them over, and vectors of length 1.

For the torch and Triton rooms alone: importing this needs torch.
"""

from typing import Any

import numpy as np
import torch

from attnlab.backend import Unsupported

__all__ = ["all_numpy", "as_tensor", "in_float32", "on_one_gpu", "unit"]


def all_numpy(*arrays: Any) -> bool:
    """Whether no tensor is among the arguments: the results then go back as NumPy arrays."""
    return not any(isinstance(x, torch.Tensor) for x in arrays)


def as_tensor(x: Any) -> torch.Tensor:
    """A tensor as it is; NumPy arrays in a form that torch takes: native byte order, writable, no negative strides."""
    if isinstance(x, torch.Tensor):
        return x
    x = np.asarray(x)
    kind: Any = np.dtype(x.dtype.newbyteorder("=")) if x.dtype.itemsize <= 8 else np.float64  # no long double in torch
    return torch.from_numpy(np.array(x, dtype=kind, order="C"))


def unit(x: torch.Tensor) -> torch.Tensor:
    """x over its length; scaled by the largest entry first, so that no square over- or underflows."""
    if not x.shape[-1]:
        return x
    largest = x.detach().abs().amax(-1, keepdim=True)
    x = x / torch.where(largest > 0, largest, 1)
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / torch.where(length > 0, length, 1)


def on_one_gpu(kernels: Any, **arrays: Any) -> torch.device:
    """Where Triton kernels run: on the GPU of the tensors among the arrays, on torch's current one if there is none.
    `kernels` is their module, which says in INTERPRETED whether they run on the CPU, and in DTYPES what they take.

    Raises Unsupported for a tensor of another type or place, ValueError where they are on several GPUs.
    """
    tensors = {name: x for name, x in arrays.items() if isinstance(x, torch.Tensor)}
    device = next((x.device for x in tensors.values()), torch.device("cpu" if kernels.INTERPRETED else "cuda"))
    for name, x in tensors.items():
        if x.dtype not in kernels.DTYPES:
            raise Unsupported(
                f"the triton implementation covers tensors of float32, float16 and bfloat16, got {name} of {x.dtype}; "
                "convert it, or use impl='torch'."
            )
        if not (x.is_cuda or kernels.INTERPRETED):
            raise Unsupported(
                f"{name} must be on a GPU for impl='triton', got a tensor on {x.device}; move it there, or use "
                "impl='torch'."
            )
        if x.device != device:
            raise ValueError(f"{name} must be on {device} as {next(iter(tensors))}, got a tensor on {x.device}")
    return device


def in_float32(name: str, x: torch.Tensor) -> torch.Tensor:
    """float64 as float32 for a Triton kernel; raises Unsupported where that is too narrow for a number."""
    if x.dtype != torch.float64:
        return x
    narrow = x.to(torch.float32)
    if not bool(narrow.isfinite().all()):
        raise Unsupported(f"the triton implementation computes in float32, and {name} has numbers too large for it.")
    return narrow
