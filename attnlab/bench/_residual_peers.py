"""What a user would take instead of the kernels of residual memory on a CPU, here RDN's forward pass.

Axes and gates as in `attnlab.residual.attention`: q, k [B, T, H, K], v [B, T, H, V], gates [B, T, H]; float32 in,
float32 out, no gradients, the clip at 1.
"""

from typing import Any

import numpy as np
import torch
from numba import njit

__all__ = ["numba_loop", "torch_chunked", "torch_loop"]

Array = Any


@torch.no_grad()
def torch_loop(q: Array, k: Array, v: Array, alpha: Array, beta: Array, gamma: Array) -> Array:
    """The recurrence (arXiv:2509.25223v1, p. 5) as one would first write it: a Python loop over tokens."""
    S = v.new_zeros(v.shape[0], v.shape[2], k.shape[-1], v.shape[-1])
    R, out = torch.zeros_like(S), torch.empty_like(v)

    def recall(memory: Array, x: Array) -> Array:
        return torch.einsum("bhk,bhkv->bhv", x, memory)

    def written(memory: Array, key: Array, value: Array, decay: Array, rate: Array) -> Array:
        memory = decay[..., None, None] * memory
        missing = value - recall(memory, key)
        return memory + torch.einsum("bhk,bhv->bhkv", key, rate[..., None] * missing)

    for t in range(q.shape[1]):
        q_t, k_t, v_t, a, b, c = (x[:, t] for x in (q, k, v, alpha, beta, gamma))
        error = (v_t - recall(S, k_t)).clamp(-1, 1)
        R = written(R, k_t, error, a, c)
        out[:, t] = a[..., None] * recall(S, q_t) + c[..., None] * recall(R, q_t)
        S = written(S, k_t, v_t, a, b)
    return out


@torch.no_grad()
def torch_chunked(q: Array, k: Array, v: Array, alpha: Array, beta: Array, gamma: Array) -> Array:
    """The torch room as it is on every other device: chunks as batched products, none of the CPU kernels."""
    from attnlab.residual import torch_impl

    kernels, torch_impl.FAST = torch_impl.FAST, False
    try:
        return torch_impl.attention(q, k, v, alpha, beta, gamma, rule="rdn")
    finally:
        torch_impl.FAST = kernels


def numba_loop(q: Array, k: Array, v: Array, alpha: Array, beta: Array, gamma: Array) -> Array:
    """The same loop as `torch_loop` in plain Numba, NumPy arrays."""
    out = np.empty_like(v)
    _numba_loop(q, k, v, alpha, beta, gamma, out)
    return out


@njit(fastmath=True, cache=True)
def _numba_loop(q, k, v, alpha, beta, gamma, out):
    (B, T, H, K), V = q.shape, v.shape[-1]
    for b in range(B):
        for h in range(H):
            S, R = np.zeros((K, V), np.float32), np.zeros((K, V), np.float32)
            for t in range(T):
                a, rate, correction = alpha[b, t, h], beta[b, t, h], gamma[b, t, h]
                s_k, r_k = np.zeros(V, np.float32), np.zeros(V, np.float32)
                s_q, r_q = np.zeros(V, np.float32), np.zeros(V, np.float32)
                _recall(S, k[b, t, h], s_k)
                _recall(R, k[b, t, h], r_k)
                _recall(S, q[b, t, h], s_q)
                for c in range(V):
                    error = min(max(v[b, t, h, c] - s_k[c], np.float32(-1)), np.float32(1))
                    s_k[c] = rate * (v[b, t, h, c] - a * s_k[c])
                    r_k[c] = correction * (error - a * r_k[c])
                _write(S, a, k[b, t, h], s_k)
                _write(R, a, k[b, t, h], r_k)
                _recall(R, q[b, t, h], r_q)
                for c in range(V):
                    out[b, t, h, c] = a * s_q[c] + correction * r_q[c]


@njit(fastmath=True, cache=True)
def _recall(memory, x, out):
    for i in range(memory.shape[0]):
        for c in range(memory.shape[1]):
            out[c] += x[i] * memory[i, c]


@njit(fastmath=True, cache=True)
def _write(memory, decay, key, value):
    for i in range(memory.shape[0]):
        for c in range(memory.shape[1]):
            memory[i, c] = decay * memory[i, c] + key[i] * value[c]
