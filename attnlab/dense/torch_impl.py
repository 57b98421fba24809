"""Softmax attention through PyTorch's scaled_dot_product_attention, differentiable in q, k and v.

What it changes from the reference, and what that bought:
    one fused pass    where torch has a fused kernel for the device, no [T, S] matrix is kept: memory linear in T
    their precision   q, k, v keep their type; with float32 this is what the error budget of `attnlab.parity` is for
    a mask            only for a window, or fewer or more queries than keys where causal; it is boolean and [T, S]
"""

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from attnlab.arrays import dial


def attention(q, k, v, *, causal=False, window=None, scale=None):
    """As `reference.attention`, for tensors of one type (NumPy arrays are taken and given back as such).

    Raises ValueError for a window that is no whole number of positions; torch words what is wrong with shapes, types.
    """
    from_numpy = not any(isinstance(x, torch.Tensor) for x in (q, k, v))
    q, k, v = (_tensor(x).transpose(1, 2) for x in (q, k, v))  # torch wants [B, H, T, K]
    T, S = q.shape[2], k.shape[2]
    square = causal and window is None and T == S
    free = not causal and window is None
    mask = None if square or free else _visible(T, S, causal, window, q.device)
    scale = max(q.shape[-1], 1) ** -0.5 if scale is None else scale
    grouped = k.shape[1] != q.shape[1]
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=square, scale=scale, enable_gqa=grouped)
    out = out.transpose(1, 2)
    return out.detach().numpy() if from_numpy else out


def _visible(T, S, causal, window, device):
    """[T, S], the last query aligned with the last key; torch's own causal mask aligns the first ones."""
    distance = torch.arange(S - T, S, device=device)[:, None] - torch.arange(S, device=device)
    seen = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    if window is not None:
        window = dial("window", window, 1, 2**40, integer=True)
        seen &= (distance < window) & (distance > -window)
    return seen


def _tensor(x):
    return x if isinstance(x, torch.Tensor) else torch.from_numpy(np.array(x))  # a copy: torch takes no read-only array
