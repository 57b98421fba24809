"""RACE in plain Numba: the fast version to read. float32, linear in T, parallel over chunks of tokens and heads.

What it changes from the reference, and what that bought:
    features by doubling    phi of P bits is phi of P-1 bits times sigmoid(+-2 beta u_P) (p. 22): P exponentials a table
                            and one multiplication a bucket, where the softmax takes 2^P exponentials
    plain units             no log_scale, so it covers 2 beta P <= 80, where float32 holds all products; it refuses more
    chunks of 1,024 tokens  each sums its own mass and content in float32; the chunks are added up in float64, so that a
                            million tokens lose nothing
    causal                  the same chunk sums, turned into what stood before each chunk; then every chunk runs alone,
                            token by token
    heads inside            the loop over heads stands inside the loop over tokens, as arrays lie in memory, which took
                            1,150 ns a token-head down to 490 at (P, L) = (2, 2). Heads are split among threads only
                            where there are fewer chunks than threads

Sums run in another order than the reference's, the only difference in the result. Compiled once, kept on disk.
"""

import math
import threading

import numpy as np
from numba import get_num_threads, njit, prange

from attnlab.arrays import as_float
from attnlab.backend import Unsupported
from attnlab.dense import unit
from attnlab.race.params import State, plain_state

CHUNK = 1024
ONE_AT_A_TIME = threading.Lock()  # some of Numba's thread pools must not be entered from two threads at once
LARGEST = 80.0  # of 2 beta P: exp(-80) is still a normal float32
FAST = {"reassoc", "contract", "nsz", "arcp"}  # sums may be vectorised; NaN and inf keep their meaning


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
    P, H = np.shape(planes)[-2], np.shape(q)[2]
    beta = np.broadcast_to(as_float(sharpness, np.float32), (H,))
    largest = 2 * P * float(beta.max()) if H else 0.0
    if not largest <= LARGEST:
        raise Unsupported(
            f"the numba implementation covers 2 * sharpness * planes <= {LARGEST:g} (float32), got {largest:g}."
        )
    if normalize:
        q, k = unit(as_float(q)), unit(as_float(k))
    q, k, v, planes = (_float32(name, x) for name, x in (("q", q), ("k", k), ("v", v), ("planes", planes)))
    planes = planes[None] if planes.ndim == 3 else planes
    B, V, L, R = q.shape[0], v.shape[-1], planes.shape[1], 2**P
    mass, content = np.zeros((B, H, L * R)), np.zeros((B, H, L * R, V))
    if state is not None:
        earlier = plain_state(state)
        mass[:], content[:] = earlier.mass.reshape(mass.shape), earlier.content.reshape(content.shape)
    out = np.zeros((*q.shape[:3], V), np.float32)
    few_chunks = B * -(-k.shape[1] // CHUNK) < get_num_threads()
    with ONE_AT_A_TIME:
        _attend(
            *(q, k, v, planes, np.ascontiguousarray(beta), causal, max(H, 1) if few_chunks else 1), mass, content, out
        )
    return (out, State(mass.reshape(B, H, L, R), content.reshape(B, H, L, R, V))) if return_state else out


def _float32(name, x):
    with np.errstate(over="ignore"):
        narrow = np.ascontiguousarray(as_float(x, np.float32))
    if not np.isfinite(narrow).all():
        raise Unsupported(f"the numba implementation computes in float32, and {name} has numbers too large for it.")
    return narrow


@njit(parallel=True, cache=True, fastmath=FAST)
def _attend(q, k, v, planes, beta, causal, groups, mass, content, out):
    """Fill `out`; `mass` and `content` (float64) come in as the carried state and leave as the final one.

    A task is a chunk of tokens and a group of heads; the heads stand inside the loop over tokens because that is how
    the arrays lie in memory.
    """
    B, T, H, S, V = q.shape[0], q.shape[1], q.shape[2], k.shape[1], v.shape[3]
    LR = mass.shape[2]
    chunks = (S + CHUNK - 1) // CHUNK
    part = np.zeros(
        (B, chunks, H, LR, V + 1), np.float32
    )  # content and mass of each chunk, then of everything before it
    for task in prange(B * chunks * groups):
        b, c, g = task // groups // chunks, task // groups % chunks, task % groups
        phi = np.empty(LR, np.float32)
        for s in range(c * CHUNK, min(S, (c + 1) * CHUNK)):
            for h in range(g * H // groups, (g + 1) * H // groups):
                _features(k[b, s, h], planes[h % planes.shape[0]], beta[h], phi)
                _write(phi, v[b, s, h], part[b, c, h])
    for head in prange(B * H):
        _prefix(part[head // H, :, head % H], mass[head // H, head % H], content[head // H, head % H])
    tiles = (T + CHUNK - 1) // CHUNK
    for task in prange(B * tiles * groups):
        b, c, g = task // groups // tiles, task // groups % tiles, task % groups
        first, last = g * H // groups, (g + 1) * H // groups
        phi, bank = np.empty(LR, np.float32), np.empty((last - first, LR, V + 1), np.float32)
        for h in range(first, last):
            if causal:
                bank[h - first] = part[b, c, h]
            else:
                bank[h - first, :, :V], bank[h - first, :, V] = content[b, h], mass[b, h]
        for t in range(c * CHUNK, min(T, (c + 1) * CHUNK)):
            for h in range(first, last):
                if causal:  # write token t, then read (Algorithm 2)
                    _features(k[b, t, h], planes[h % planes.shape[0]], beta[h], phi)
                    _write(phi, v[b, t, h], bank[h - first])
                _features(q[b, t, h], planes[h % planes.shape[0]], beta[h], phi)
                _read(phi, bank[h - first], out[b, t, h])


@njit(cache=True)
def _prefix(part, mass, content):
    """Turn the chunks' sums into what stood before each chunk, and add their total to the state, in float64."""
    chunks, LR, V = part.shape[0], part.shape[1], part.shape[2] - 1
    for c in range(chunks):
        for r in range(LR):
            own, part[c, r, V] = part[c, r, V], mass[r]
            mass[r] += own
            for x in range(V):
                own, part[c, r, x] = part[c, r, x], content[r, x]
                content[r, x] += own


@njit(cache=True, fastmath=FAST)
def _features(x, planes, beta, phi):
    """phi [L R] of one token; bit p of a bucket is set with probability sigmoid(2 beta tanh(w_p . x))."""
    L, P, K = planes.shape
    for table in range(L):
        first = table << P
        phi[first] = 1.0
        for p in range(P):
            g = np.float32(0.0)
            for c in range(K):
                g += x[c] * planes[table, p, c]
            e = math.exp(np.float32(-2.0) * beta * math.tanh(g))
            on = np.float32(1.0) / (np.float32(1.0) + e)
            off = e * on  # not 1 - on, which would round small probabilities away
            for r in range(first, first + (1 << p)):
                phi[r + (1 << p)] = phi[r] * on
                phi[r] *= off


@njit(cache=True, fastmath=FAST)
def _write(phi, v, bank):
    """A += phi, B += phi v^T; the last column of `bank` is the mass."""
    V = v.shape[0]
    for r in range(phi.shape[0]):
        for x in range(V):
            bank[r, x] += phi[r] * v[x]
        bank[r, V] += phi[r]


@njit(cache=True, fastmath=FAST)
def _read(phi, bank, out):
    """out = phi . B / phi . A; zero where no key was written."""
    V = out.shape[0]
    total = np.float32(0.0)
    for r in range(phi.shape[0]):
        total += phi[r] * bank[r, V]
        for x in range(V):
            out[x] += phi[r] * bank[r, x]
    for x in range(V):
        out[x] = out[x] / total if total > 0 else np.float32(0.0)
