"""Residual memory in Numba on the CPU: float32, linear in T, forward and gradient, on as many threads as Numba is set
to. The kernels, with what they change from the reference and what that bought, are in `cpu_kernels.py`; `chunked.py`
has the same formulas to read.
"""

from typing import Any

import numpy as np
from numba import get_num_threads

from attnlab import backend
from attnlab.arrays import as_float, as_numpy
from attnlab.backend import Unsupported
from attnlab.dense import unit
from attnlab.lanes import aligned
from attnlab.residual import cpu_kernels
from attnlab.residual.params import RULES, Gradient, State, gate_gradients, gates, segments

__all__ = ["attention", "gradient"]


def attention(
    q,
    k,
    v,
    retention=None,
    write=None,
    correction=None,
    *,
    rule="rdn",
    log_retention=None,
    clip=1.0,
    target="clip",
    fitting=True,
    read_gates=True,
    normalize=False,
    scale=1.0,
    cu_seqlens=None,
    state=None,
    return_state=False,
):
    """As `api.attention`, float32 NumPy arrays out. Raises Unsupported for `fitting=False`, and where float32 is too
    narrow for a number.
    """
    if normalize:
        q, k = unit(as_float(q)), unit(as_float(k))
    switches = {"rule": rule, "clip": clip, "target": target, "read_gates": read_gates}
    given = _gates(rule, q, retention, write, correction, log_retention)
    call = _Call(q, k, v, given, switches, fitting, scale, cu_seqlens, state)
    q, k, v = call.arrays
    cpu_kernels.forward(q, k, v, call.gates, call.states, call.out, **call.options)
    return (call.out, _state(call.states)) if return_state else call.out


def gradient(
    q,
    k,
    v,
    retention=None,
    write=None,
    correction=None,
    *,
    d_out,
    d_state=None,
    rule="rdn",
    log_retention=None,
    clip=1.0,
    target="clip",
    fitting=True,
    read_gates=True,
    scale=1.0,
    cu_seqlens=None,
    state=None,
) -> Gradient:
    """The gradient of `attention` from that of its output [B, T, H, V] and, where given, of its last State. It runs the
    forward first. The arguments are not checked, as `api.attention` would; it raises what `attention` raises.
    """
    switches = {"rule": rule, "clip": clip, "target": target, "read_gates": read_gates}
    given = _gates(rule, q, retention, write, correction, log_retention)
    call = _Call(q, k, v, given, switches, fitting, scale, cu_seqlens, state)
    q, k, v = call.arrays
    kept = cpu_kernels.keep(q, v, rule=rule, parts=call.options["parts"])
    cpu_kernels.forward(q, k, v, call.gates, call.states, call.out, kept=kept, **call.options)
    d_states = [np.zeros_like(x) for x in call.states]
    _fill(d_states, d_state, "d_state")
    dq, dk, dv = (aligned(*x.shape, fill=False) for x in (q, k, v))
    d_out = backend.narrow("numba", "d_out", d_out)
    of_gates = cpu_kernels.backward(q, k, v, call.gates, kept, d_out, d_states, dq, dk, dv, **call.options)
    dq *= np.float32(scale)
    of_gates = gate_gradients(
        tuple(np.swapaxes(x, 1, 2) for x in of_gates),
        call.gates[0],
        retention=retention,
        log_retention=log_retention,
        write=write,
        correction=correction,
    )
    return Gradient(dq, dk, dv, **of_gates, state=_state(d_states))


class _Call:
    """The arguments as the kernels take them; `given` are the gates."""

    def __init__(self, q, k, v, given, switches, fitting, scale, cu_seqlens, state):
        has = RULES[switches["rule"]]
        if has.residual and not fitting:
            raise Unsupported("the numba implementation covers fitting=True; the reference has fitting=False.")
        q, k, v = (backend.narrow("numba", *x) for x in (("q", q), ("k", k), ("v", v)))
        (B, T, H, K), V = q.shape, v.shape[-1]
        self.arrays: Any = (q if scale == 1 else np.float32(scale) * q, k, v)
        self.gates = given
        parts = segments(cu_seqlens, B, T)
        self.states = [np.zeros((len(parts), H, K, V), np.float32) for _ in range(1 + has.residual)]
        _fill(self.states, state, "state")
        self.out = aligned(B, T, H, V, fill=False)
        self.options = switches | {"parts": parts, "threads": get_num_threads()}


def _gates(rule, q, retention, write, correction, log_retention):
    """As `params.gates`, float32; exp is taken in the precision that came, so that it is rounded once."""
    if log_retention is not None:
        retention = np.exp(as_float(log_retention, np.promote_types(as_numpy(log_retention).dtype, np.float32)))
    return gates(rule, np.shape(q)[:3], retention, write, correction, None, np.float32)


def _fill(memories, state, name):
    for x, given in zip(memories, state or (), strict=False):
        if given is not None:
            x[:] = backend.narrow("numba", name, given)


def _state(memories):
    return State(memories[0], memories[1] if len(memories) == 2 else None)
