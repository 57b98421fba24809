"""RACE in Numba on the CPU: float32, linear in T, on as many threads as Numba is set to. The kernels, with what they
change from the reference and what that bought, are in `cpu_kernels.py`; `numba_plain.py` is the version to read first.

It covers 2 beta P <= 80, where float32 holds all products of features, and refuses more.
"""

import numpy as np
from numba import get_num_threads

from attnlab.arrays import as_float
from attnlab.backend import Unsupported, narrow
from attnlab.dense import unit
from attnlab.lanes import aligned
from attnlab.race import cpu_kernels
from attnlab.race.params import State, plain_state


def attention(
    q,
    k,
    v,
    planes,
    sharpness=1.0,
    *,
    causal=False,
    state=None,
    return_state=False,
    variant="algorithm",
    normalize=False,
):
    """As `api.attention`, float32 NumPy arrays out. Raises Unsupported beyond 2 beta P = 80 and for variants other than
    "algorithm".
    """
    if variant != "algorithm":
        raise Unsupported(
            f"the numba implementation covers variant='algorithm', not {variant!r}; the reference has it."
        )
    (L, P), (B, T, H, _), V = np.shape(planes)[-3:-1], np.shape(q), np.shape(v)[-1]
    beta = np.full(H, as_float(sharpness, np.float32))
    largest = 2 * P * float(beta.max()) if H else 0.0
    if not largest <= cpu_kernels.LARGEST_LOGIT:
        raise Unsupported(
            "the numba implementation covers 2 * sharpness * planes <= "
            f"{cpu_kernels.LARGEST_LOGIT:g} (float32), got {largest:g}."
        )
    if normalize:
        q, k = unit(as_float(q)), unit(as_float(k))
    q, k, v, planes = (narrow("numba", *x) for x in (("q", q), ("k", k), ("v", v), ("planes", planes)))
    mass, content = np.zeros((B, H, L * 2**P)), np.zeros((B, H, L * 2**P, V))
    if state is not None:
        earlier = plain_state(state)
        mass[:], content[:] = earlier.mass.reshape(mass.shape), earlier.content.reshape(content.shape)
    out = aligned(B, T, H, V, fill=False)
    threads = get_num_threads()
    cpu_kernels.forward(q, k, v, planes, beta, mass, content, out, causal=causal, threads=threads)
    return (out, State(mass.reshape(B, H, L, -1), content.reshape(B, H, L, -1, V))) if return_state else out
