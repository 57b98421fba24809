"""LRKV in Numba on the CPU: float32, on as many threads as Numba is set to. The kernels, with what they change from the
reference and what that bought, are in `cpu_kernels.py`.

    types     everything is computed in float32; a cache of another type is converted first, which is a copy of it
    decoding  is what it is made for. Many queries (T > 1) are read a few at a time, each few with a pass over the keys
    turning   a cache that turns as it is read (`rope`) is turned block by block; without `latent_rope` keys are made
              whole, which costs what it costs
"""

import numpy as np
from numba import get_num_threads

from attnlab.arrays import as_float, as_numpy
from attnlab.backend import Unsupported
from attnlab.lrkv import cpu_kernels
from attnlab.lrkv.params import edges

__all__ = ["attention"]


def attention(
    q, k_shared, v_shared, k_latent=None, v_latent=None, k_factor=None, v_factor=None, *, q_residual=None,
    k_scale=None, rope=None, latent_rope=None, positions=None, starts=None, ends=None, causal=True, scale=None,
    return_lse=False,
):  # fmt: skip
    """As `api.attention`, float32 NumPy arrays out. Raises Unsupported where float32 is too narrow for a number."""
    (B, _, H, K), (_, S, _, V) = q.shape, v_shared.shape
    scale = max(K, 1) ** -0.5 if scale is None else scale
    q, residual = (
        x if x is None else _narrow("scale times q", scale * cpu_kernels.LOG2E * as_float(x)) for x in (q, q_residual)
    )
    k_latent, v_latent = (np.zeros((B, S, H, 0), np.float32) if x is None else x for x in (k_latent, v_latent))
    k_factor = np.zeros((H, K, 0), np.float32) if k_factor is None else k_factor
    v_factor = np.zeros((H, V, 0), np.float32) if v_factor is None else v_factor
    arrays = {"k_shared": k_shared, "v_shared": v_shared, "k_latent": k_latent, "v_latent": v_latent}
    arrays |= {"k_factor": k_factor, "v_factor": v_factor}
    arrays = {name: _narrow(name, x) for name, x in arrays.items()}
    starts, ends = edges(starts, ends, B, S)
    at = np.zeros((B, S)) if positions is None else np.broadcast_to(as_float(positions), (B, S))
    out, lse = cpu_kernels.attention(
        q, q if residual is None else residual, *arrays.values(),
        k_scale=None if k_scale is None else _narrow("k_scale", k_scale),
        turning=None if rope is None else (rope, latent_rope), positions=np.ascontiguousarray(at), starts=starts,
        ends=ends, causal=bool(causal), threads=get_num_threads(),
    )  # fmt: skip
    return (out, lse) if return_lse else out


def _narrow(name, x):
    """x in float32, itself if it is that. What lies outside of starts and ends may be anything: only finite numbers
    that float32 does not hold are refused.
    """
    x = as_numpy(x)
    if x.dtype == np.float32:
        return x
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = x.astype(np.float32)
    if x.dtype.itemsize > 4 and np.any(np.isinf(narrow) & np.isfinite(x)):
        raise Unsupported(f"the numba implementation computes in float32, and {name} has numbers too large for it.")
    return narrow
