"""The rules of residual memory and its baselines, their gates, and the checks of the public door.

Letters: alpha `retention`, beta `write`, gamma `correction`, c `clip`, S `state.base`, R `state.residual`. Every rule is
one row of RULES; gates and switches that a rule has no use for are refused or, where they only concern the residual,
have no effect.
"""

from typing import Any, NamedTuple

import numpy as np

from attnlab.arrays import Array, Axes, Float, as_float, as_numpy, check, dial, flag, one_of

__all__ = ["RULES", "TARGETS", "Rule", "State", "check_arguments", "gates", "retnet_retention", "segments"]

TARGETS = ("clip", "log_cosh")
GATES = ("retention", "write", "correction")
LARGEST_WRITE = 2.0  # beyond 1 a delta write overshoots; at 2 it reflects, and beyond 2 it diverges


class Rule(NamedTuple):
    """What sets one recurrence apart: the gates it has, whether it writes the error of its own recall (`delta`) or the
    value itself, and whether a second memory of errors stands beside the first.
    """

    gates: tuple[str, ...]
    delta: bool
    residual: bool
    paper: str


RULES = {
    "rla": Rule(GATES, delta=False, residual=True, paper="Residual Linear Attention, arXiv:2509.25223v1, p. 5"),
    "rdn": Rule(GATES, delta=True, residual=True, paper="Residual Delta Net, arXiv:2509.25223v1, p. 5"),
    "linear": Rule((), delta=False, residual=False, paper="linear attention, arXiv:2006.16236"),
    "retnet": Rule(("retention",), delta=False, residual=False, paper="RetNet, arXiv:2307.08621"),
    "sgla": Rule(GATES[:2], delta=False, residual=False, paper="scalar gated linear attention, Mamba-2's recurrence"),
    "deltanet": Rule(("write",), delta=True, residual=False, paper="DeltaNet, arXiv:2406.06484"),
    "gdn": Rule(GATES[:2], delta=True, residual=False, paper="Gated DeltaNet, arXiv:2412.06464"),
}


class State(NamedTuple):
    """What a sequence leaves behind: K V numbers a head, twice that where the rule has a residual (else None).

    Row-vector layout, the transpose of the paper's S and R: a memory M recalls x M for a key or query x [K].
    """

    base: Float[Array, "B H K V"]  # S
    residual: Any  # R, [B, H, K, V] or None


def retnet_retention(heads: int) -> Float[Array, " H"]:
    """RetNet's fixed decays, 1 - 2^(-5 - h) for head h (arXiv:2307.08621, Eq. 8 and Sec. 3.1)."""
    dial("heads", heads, 0, 2**20, integer=True)
    return 1.0 - 2.0 ** (-5.0 - np.arange(heads))


def gates(rule, shape, retention, write, correction, log_retention, dtype=np.float64):
    """(alpha, beta, gamma), each [B, T, H], in NumPy: exp(log_retention) where that was given, 1 for a gate that the
    rule does not have, and beta for a correction that was not given (tied, Fig. 3, p. 8).
    """
    if log_retention is not None:
        retention = np.exp(as_float(log_retention, dtype))
    alpha, beta, gamma = (
        np.broadcast_to(as_float(1.0 if gate is None else gate, dtype), shape)
        for gate in (retention, write, write if correction is None else correction)
    )
    return alpha, beta, gamma


def segments(cu_seqlens: Any, B: int, T: int) -> list[tuple[int, int, int]]:
    """(row of the batch, first token, end) of every sequence: the rows themselves, or what `cu_seqlens` cuts row 0
    into.
    """
    if cu_seqlens is None:
        return [(b, 0, T) for b in range(B)]
    cuts = as_numpy(cu_seqlens).tolist()
    return [(0, start, end) for start, end in zip(cuts, cuts[1:], strict=False)]


def check_arguments(
    q, k, v, retention, write, correction, *,
    rule, log_retention, clip, target, fitting, read_gates, normalize, scale, cu_seqlens, state, return_state,
) -> None:  # fmt: skip
    """Refuse what no implementation can compute; each error names the argument, what was wanted and what came."""
    sizes: Axes = {}
    check("q", q, "B T H K", sizes)
    check("k", k, "B T H K", sizes)
    check("v", v, "B T H V", sizes)
    has = RULES[one_of("rule", rule, tuple(RULES))]
    if log_retention is not None and retention is not None:
        raise ValueError("log_retention must be None where retention is given, got both")
    given = {"retention": retention, "log_retention": log_retention, "write": write, "correction": correction}
    for name, gate in given.items():
        wanted = name.removeprefix("log_") in has.gates
        if gate is not None and not wanted:
            raise ValueError(f"{name} must be None for rule={rule!r}, whose gates are {has.gates or 'none'}, got one")
        if gate is not None:
            _check_gate(name, gate, sizes)
    if "retention" in has.gates and retention is None and log_retention is None:
        raise ValueError(f"retention (or log_retention) must be given for rule={rule!r}, got None")
    if "write" in has.gates and write is None:
        raise ValueError(f"write must be given for rule={rule!r}, got None")
    if rule == "retnet" and np.ndim(retention if log_retention is None else log_retention) != 1:
        raise ValueError("retention must be [H], fixed in time, for rule='retnet'; rule='sgla' has one a token")
    dial("clip", clip, 0, np.inf)
    dial("scale", scale, -1e30, 1e30)
    one_of("target", target, TARGETS)
    for name, value in {"fitting": fitting, "read_gates": read_gates, "normalize": normalize}.items():
        flag(name, value)
    flag("return_state", return_state)
    sequences = sizes["B"][0] if cu_seqlens is None else _check_cuts(cu_seqlens, sizes)
    if state is not None:
        _check_state(state, sequences, has, rule, sizes)


def _check_gate(name: str, gate: Any, sizes: Axes) -> None:
    """[B, T, H], or [H] for one that is fixed in time, within its range."""
    if not hasattr(gate, "shape"):
        gate = np.asarray(gate, dtype=np.float64)
    if name == "log_retention":
        detached = as_numpy(gate)
        check(name, np.where(np.isneginf(detached), np.zeros((), detached.dtype), detached), _axes(gate), sizes)
        low, high = -np.inf, 0.0
    else:
        check(name, gate, _axes(gate), sizes)
        low, high = 0.0, 1.0 if name == "retention" else LARGEST_WRITE
    if 0 in gate.shape:
        return
    gate = gate.detach() if hasattr(gate, "detach") else gate
    for extreme in (float(gate.min()), float(gate.max())):
        if not low <= extreme <= high:
            raise ValueError(f"{name} must lie in [{low:g}, {high:g}], got {extreme:g}")


def _axes(gate: Any) -> str:
    return "H" if np.ndim(gate) == 1 else "B T H"


def _check_cuts(cu_seqlens: Any, sizes: Axes) -> int:
    cuts = as_numpy(cu_seqlens)
    if cuts.ndim != 1 or len(cuts) < 1 or cuts.dtype.kind not in "iu":
        raise TypeError(f"cu_seqlens must be whole numbers [N + 1], got {cuts.dtype} of shape {cuts.shape}")
    (B, _), (T, _) = sizes["B"], sizes["T"]
    if B != 1:
        raise ValueError(f"cu_seqlens needs all sequences in one row, so B = 1 in q, got B = {B}")
    if cuts[0] != 0 or cuts[-1] != T or np.any(np.diff(cuts.astype(np.int64)) < 0):
        raise ValueError(f"cu_seqlens must rise from 0 to T = {T}, got {cuts.tolist()}")
    return len(cuts) - 1


def _check_state(state: State, sequences: int, has: Rule, rule: str, sizes: Axes) -> None:
    if not isinstance(state, tuple) or len(state) != 2:
        raise ValueError(
            f"state must be the State of an earlier call, or a tuple (base, residual), got {type(state).__name__}"
        )
    base, residual = state
    where: Axes = {"N": (sequences, "the number of sequences"), **{axis: sizes[axis] for axis in "HKV"}}
    check("state.base", base, "N H K V", where)
    if has.residual != (residual is not None):
        wanted = "given" if has.residual else "None"
        raise ValueError(f"state.residual must be {wanted} for rule={rule!r}, got {type(residual).__name__}")
    if residual is not None:
        check("state.residual", residual, "N H K V", where)
