"""LRKV in Triton, on a GPU: the door of attnlab to `attnlab_kernels.lrkv`. The first lines there say what the kernels
change from the reference, and what that buys. This room decides what goes into them:

    types        float32, float16 and bfloat16 tensors go in as they are, different ones in the widest, which is a copy
                 of the cache; the output has the type of v_shared. NumPy arrays are computed in float32 and come back
                 so, float16 ones in float16. lse is float32, and k_scale goes in in its own type
    positions    cosines and sines are made in float64, whatever the type of the cache
    place        all tensors lie on one GPU, and so do the results; none is moved in silence. Positions and edges
                 follow. NumPy arrays travel to the GPU and back
    any factor   `rope` without `latent_rope` expands the keys of every head into a buffer, float32 [B, S, H, K]
    gradients    there are none: the public door refuses a tensor that requires one

In a process with TRITON_INTERPRET=1 the same kernels run interpreted, on the CPU.
"""

from functools import reduce
from typing import Any

import numpy as np
import torch

from attnlab.arrays import as_numpy
from attnlab.backend import Unsupported
from attnlab.lrkv.params import Rope
from attnlab.tensors import all_numpy, as_tensor, in_float32, on_one_gpu
from attnlab_kernels import lrkv

CACHE = ("k_shared", "v_shared", "k_latent", "v_latent", "k_scale")  # may hold anything where it is not read


def attention(
    q, k_shared, v_shared, k_latent=None, v_latent=None, k_factor=None, v_factor=None, *, q_residual=None,
    k_scale=None, rope=None, latent_rope=None, positions=None, starts=None, ends=None, causal=True, scale=None,
    return_lse=False,
):  # fmt: skip
    """As `api.attention`, without gradients.

    Raises Unsupported beyond K = 256, V = 256 or ranks of 128, for float64 tensors and arrays with numbers too large
    for float32, and for tensors that are not on a GPU. ValueError if they are on several.
    """
    given = {
        "q": q, "k_shared": k_shared, "v_shared": v_shared, "k_latent": k_latent, "v_latent": v_latent,
        "k_factor": k_factor, "v_factor": v_factor, "q_residual": q_residual, "k_scale": k_scale,
    }  # fmt: skip
    given = {name: x for name, x in given.items() if x is not None}
    numpy = all_numpy(*given.values())
    device = on_one_gpu(lrkv, **given)
    _check_sizes(given)
    narrow: dict[str, torch.Tensor] = {}
    for name, x in given.items():
        narrow[name] = (_read_in_part if name in CACHE else in_float32)(name, as_tensor(x).to(device))
    kinds = [x.dtype for name, x in narrow.items() if name != "k_scale"]
    widest = reduce(torch.promote_types, kinds)
    arguments: dict[str, Any] = {name: x if name == "k_scale" else x.to(widest) for name, x in narrow.items()}
    out, lse = lrkv.attention(
        **arguments,
        rope=_on(rope, device), latent_rope=_on(latent_rope, device), positions=_whole(positions, device),
        starts=_whole(starts, device), ends=_whole(ends, device), causal=bool(causal),
        scale=None if scale is None else float(scale), return_lse=True,
    )  # fmt: skip
    out = out.to(narrow["v_shared"].dtype)
    if numpy:
        out, lse = out.cpu().numpy(), lse.cpu().numpy()
    return (out, lse) if return_lse else out


def _check_sizes(given: dict[str, Any]) -> None:
    for name, word, largest in (
        ("q", "key widths from 1", lrkv.MAX_WIDTH),
        ("v_shared", "value widths from 1", lrkv.MAX_WIDTH),
        ("k_latent", "ranks from 0", lrkv.MAX_RANK),
        ("v_latent", "ranks from 0", lrkv.MAX_RANK),
    ):
        size = given[name].shape[-1] if name in given else 1
        if size > largest or (size == 0 and largest == lrkv.MAX_WIDTH):
            raise Unsupported(f"the triton implementation of lrkv covers {word} to {largest}, got {size} of {name}.")


def _on(rope: Rope | None, device: torch.device) -> tuple[torch.Tensor, str] | None:
    return None if rope is None else (as_tensor(as_numpy(rope.frequency)).to(device), rope.layout)


def _whole(x: Any, device: torch.device) -> torch.Tensor | None:
    """Positions in float64, edges in int64."""
    if x is None:
        return None
    x = as_numpy(x)
    return as_tensor(x.astype(np.int64 if x.dtype.kind in "iu" else np.float64)).to(device)


def _read_in_part(name: str, x: torch.Tensor) -> torch.Tensor:
    """`in_float32` of what may hold anything where it is not read: only numbers too large for float32 are refused."""
    if x.dtype != torch.float64:
        return x
    narrow = x.to(torch.float32)
    if bool((narrow.isinf() & ~x.isinf()).any()):
        raise Unsupported(f"the triton implementation computes in float32, and {name} has numbers too large for it.")
    return narrow
