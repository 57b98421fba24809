"""What the rooms of residual memory that compute with tensors share unchanged: refusing, gates, states, results back.

Nothing here is part of the operator. `impl` is the name of the room that asks, for the sentence of a refusal.
"""

import torch

from attnlab.backend import Unsupported
from attnlab.residual.params import RULES, State, segments
from attnlab.tensors import as_tensor


def refuse(impl, rule, fitting):
    """Raise Unsupported for a residual memory that holds the newest error alone."""
    if RULES[rule].residual and not fitting:
        raise Unsupported(f"the {impl} implementation covers fitting=True; the reference has fitting=False.")


def gates(shape, retention, write, correction, log_retention, *, dtype, device):
    """(alpha, beta, gamma), each [B, T, H] of `dtype` on `device`, as views where a gate is fixed in time: 1 for a gate
    that the rule does not have, beta for a correction that was not given.

    The gradient goes to what was given. That of `log_retention` is alpha times that of alpha: 0 at -inf, never NaN.
    """
    if log_retention is not None:
        log_retention = as_tensor(log_retention)
        retention = log_retention.to(torch.promote_types(log_retention.dtype, dtype)).exp()
    given = (retention, write, write if correction is None else correction)
    return tuple(
        (torch.ones((), dtype=dtype, device=device) if x is None else as_tensor(x).to(device, dtype)).expand(shape)
        for x in given
    )


def carried(state, rule, shape, *, dtype, device):
    """(S, R), each of shape [N, H, K, V], of an earlier call; zeros if there was none, and R None where the rule has
    none.
    """
    first = state or (None, None)
    memories = first if RULES[rule].residual else first[:1]
    S, *R = (torch.zeros(shape, dtype=dtype, device=device) if x is None else _held(x, dtype, device) for x in memories)
    return S, R[0] if R else None


def _held(x, dtype, device):
    """The memory in `dtype`; raises Unsupported where that is too narrow for a number."""
    x = as_tensor(x)
    narrow = x.to(device, dtype)
    if x.dtype.itemsize > narrow.dtype.itemsize and not bool(narrow.detach().isfinite().all()):
        raise Unsupported(f"this call computes in {dtype}, and state has numbers too large for it.")
    return narrow


def parts(cu_seqlens, B, T, *, together):
    """[(rows, tokens, sequences), ...], slices of a batch and of its states that are computed side by side: every row
    or every sequence that `cu_seqlens` cuts row 0 into by itself; or, where `together`, all rows.
    """
    if cu_seqlens is None and together:
        return [(slice(0, B), slice(0, T), slice(0, B))]
    cut = enumerate(segments(cu_seqlens, B, T))
    return [(slice(b, b + 1), slice(start, end), slice(n, n + 1)) for n, (b, start, end) in cut]


def sequences(cu_seqlens, B):
    """N, the number of sequences, and so of states."""
    return B if cu_seqlens is None else len(cu_seqlens) - 1


def given_back(out, base, residual, *, numpy, return_state):
    """What a room's `attention` returns: the output, or (output, State); as NumPy arrays where `numpy`."""
    if numpy:
        out, base, residual = (None if x is None else x.detach().cpu().numpy() for x in (out, base, residual))
    return (out, State(base, residual)) if return_state else out
