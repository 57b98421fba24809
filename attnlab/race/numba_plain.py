"""RACE in plain Numba: Algorithms 1 and 2 as loops, the version to read before `cpu_kernels.py`.

float32, one thread; sums run in float32 over all tokens, so that the mass of a million is off by up to a percent.
"""

import numpy as np
from numba import njit

compiled = njit(cache=True, fastmath={"reassoc", "contract", "nsz", "arcp"})  # sums may be vectorised; NaN stays NaN


def attention(q, k, v, planes, sharpness=1.0, *, causal=False):
    """As `api.attention` for float32 arrays, planes [L, P, K] and one sharpness; 2 beta P <= 80 is not checked."""
    out = np.zeros((*q.shape[:3], v.shape[-1]), np.float32)
    for b, h in np.ndindex(q.shape[0], q.shape[2]):
        _head(q, k, v, planes, np.float32(sharpness), causal, b, h, out)
    return out


@compiled
def _head(q, k, v, planes, beta, causal, b, h, out):
    V, buckets = v.shape[3], planes.shape[0] << planes.shape[1]
    phi, bank = np.empty(buckets, np.float32), np.zeros((buckets, V + 1), np.float32)
    for s in range(0 if causal else k.shape[1]):
        _write(_features(k[b, s, h], planes, beta, phi), v[b, s, h], bank)
    for t in range(q.shape[1]):
        if causal:  # write token t, then read (Algorithm 2)
            _write(_features(k[b, t, h], planes, beta, phi), v[b, t, h], bank)
        o, total = out[b, t, h], np.float32(0)
        for r, share in enumerate(_features(q[b, t, h], planes, beta, phi)):
            total += share * bank[r, V]
            for x in range(V):
                o[x] += share * bank[r, x]
        for x in range(V if total > 0 else 0):
            o[x] /= total


@compiled
def _features(x, planes, beta, phi):
    for table in range(len(planes)):
        own = phi[table << planes.shape[1] :]
        own[0] = 1
        for p in range(planes.shape[1]):  # phi of p + 1 bits is phi of p bits times sigmoid(+-2 beta u) (p. 22)
            y = np.float32(0)
            for c in range(len(x)):
                y += x[c] * planes[table, p, c]
            odds = np.exp(np.float32(-2) * beta * np.tanh(y))
            on = np.float32(1) / (np.float32(1) + odds)
            for r in range(1 << p):
                own[r + (1 << p)], own[r] = own[r] * on, own[r] * odds * on  # not 1 - on: small ones would be lost
    return phi


@compiled
def _write(phi, v, bank):
    for r in range(len(phi)):
        for x in range(len(v)):
            bank[r, x] += phi[r] * v[x]
        bank[r, len(v)] += phi[r]
