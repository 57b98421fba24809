"""What every room that computes with tensors needs: arguments in, whoever hands them over, and vectors of length 1.

For the torch and Triton rooms alone: importing this needs torch.
"""

from typing import Any

import numpy as np
import torch

__all__ = ["all_numpy", "as_tensor", "unit"]


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
