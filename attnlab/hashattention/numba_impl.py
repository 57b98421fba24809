"""HashAttention in Numba on the CPU: float32, on as many threads as Numba is set to. The kernels, with what they change
from the reference and what that bought, are in `cpu_kernels.py`.

    widths   codes of up to 65,504 bits
    types    q, and the rows of k and v that are read, in float32; where k or v is of another type, the sets are found
             first, and exactly the rows that some query reads are converted, into a place beside the cache
    layout   the codes of a head are scanned one after another; where they do not lie so ([B, S, C, W] with several
             heads in one piece), they are copied first. `cache.CodeCache` keeps them right
"""

import numpy as np
from numba import get_num_threads

from attnlab import backend
from attnlab.arrays import as_float, as_numpy
from attnlab.backend import Unsupported
from attnlab.hashattention import cpu_kernels
from attnlab.hashattention.params import Maps
from attnlab.lanes import aligned

__all__ = ["Decoder", "attention", "encode", "select"]


def attention(
    q,
    k,
    v,
    query_codes,
    key_codes,
    *,
    budget,
    sinks=128,
    window=128,
    causal=True,
    scale=None,
    return_lse=False,
):
    """As `api.attention`, float32 NumPy arrays out. Raises Unsupported where float32 is too narrow for a number, and
    for longer codes.
    """
    sizes = {"budget": budget, "sinks": sinks, "window": window, "causal": causal}
    scale = max(q.shape[-1], 1) ** -0.5 if scale is None else scale
    q = backend.narrow("numba", "scale times q", scale * cpu_kernels.LOG2E * as_float(q))
    codes = _words("query_codes", query_codes), _words("key_codes", key_codes)
    if not all(str(x.dtype).removeprefix("torch.") == "float32" for x in (k, v)):
        sets = cpu_kernels.select(*codes, **sizes, threads=get_num_threads())
        k, v = (_rows(name, x, sets, q.shape[2]) for name, x in (("k", k), ("v", v)))
    k, v = as_numpy(k), as_numpy(v)
    out, lse = cpu_kernels.attention(q, k, v, *codes, **sizes, threads=get_num_threads())
    return (out, lse) if return_lse else out


def encode(x, maps: Maps):
    """As `api.encode`; the maps are applied in float32."""
    return Decoder(maps).encode(x)


def select(query_codes, key_codes, *, budget, sinks=128, window=128, causal=True):
    """As `api.select`. Raises Unsupported for longer codes."""
    codes = _words("query_codes", query_codes), _words("key_codes", key_codes)
    sizes = {"budget": budget, "sinks": sinks, "window": window, "causal": causal}
    return cpu_kernels.select(*codes, **sizes, threads=get_num_threads())


class Decoder:
    """One decode step after the other: the query's code made, the codes of the keys scanned, the set attended to. The
    maps are brought into the kernels' form once.
    """

    def __init__(self, query_maps: Maps):
        parts = ([backend.narrow("numba", "maps", x) for x in part] for part in query_maps)
        self.maps = cpu_kernels.Prepared(Maps(*map(tuple, parts)))

    def encode(self, x):
        """The codes of x [B, T, H, K] under these maps."""
        return cpu_kernels.encode(backend.narrow("numba", "x", x), self.maps, threads=get_num_threads())

    def step(self, q, k, v, key_codes, **options):
        """o [B, T, H, V] of `attention` with the codes of q [B, T, H, K]; its other arguments and errors."""
        return attention(q, k, v, self.encode(q), key_codes, **options)


def _words(name, codes):
    codes = as_numpy(codes).view(np.uint32)
    if codes.shape[-1] > cpu_kernels.LARGEST_WORDS:
        raise Unsupported(
            f"the numba implementation covers codes of up to {cpu_kernels.LARGEST_WORDS} words, and {name} has "
            f"{codes.shape[-1]}."
        )
    return codes


def _rows(name, x, sets, heads):
    """x [B, S, G, K] in float32 where some query of the group reads it; elsewhere nothing was written."""
    if str(x.dtype).removeprefix("torch.") == "float32":
        return x
    out = aligned(*x.shape, fill=False)
    for b, g in np.ndindex(x.shape[0], x.shape[2]):
        group = [h for h in range(heads) if h * x.shape[2] // heads == g]
        read = np.unique(sets[b][:, group])
        read = read[read >= 0]
        rows = as_numpy(x[b, read, g])
        with np.errstate(over="ignore"):
            out[b, read, g] = rows
        if np.isinf(out[b, read, g][np.isfinite(rows)]).any():
            raise Unsupported(f"the numba implementation computes in float32, and {name} has numbers too large for it.")
    return out
