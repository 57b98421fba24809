"""The rules of residual memory and its baselines, their gates, and the checks of the public door.

Letters: alpha `retention`, beta `write`, gamma `correction`, c `clip`, S `state.base`, R `state.residual`. Every rule
is one row of RULES; gates and switches that a rule has no use for are refused or, where they only concern the residual,
have no effect. Below them the dials of the panel.
"""

import itertools
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attnlab import draws, inputs
from attnlab.arrays import Array, Axes, Float, as_float, as_numpy, check, dial, flag, one_of
from attnlab.dense import unit
from attnlab.dials import Dials, knob
from attnlab.inputs import INPUTS, STREAMS, TOY, Inputs

__all__ = [
    "ASKED_STREAM",
    "POINTS",
    "RULES",
    "TARGETS",
    "Gradient",
    "ResidualParams",
    "Rule",
    "State",
    "check_arguments",
    "gate_gradients",
    "gates",
    "retnet_retention",
    "segments",
]

TARGETS = ("clip", "log_cosh")
GATES = ("retention", "write", "correction")
ASKED_STREAM = 1  # of the draws: which earlier token a toy query asks for
POINTS = 8  # of a gate's curve
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


class Gradient(NamedTuple):
    """The gradient of each argument in its own shape; None for a gate that was not given or that the rule lacks."""

    q: Float[Array, "B T H K"]
    k: Float[Array, "B T H K"]
    v: Float[Array, "B T H V"]
    retention: Any
    log_retention: Any
    write: Any
    correction: Any
    state: State  # of the entering state, also where none was given and it was 0


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


def gate_gradients(slopes, alpha, *, retention, log_retention, write, correction) -> dict[str, Any]:
    """From the gradients of (alpha, beta, gamma), each [B, T, H], to those of the gates as they were given: None where
    none was, summed where it was [H].
    """
    dalpha, dbeta, dgamma = slopes
    given = {
        "retention": (retention, dalpha),
        "log_retention": (log_retention, alpha * dalpha),
        "write": (write, dbeta + dgamma if correction is None else dbeta),
        "correction": (correction, dgamma),
    }
    return {
        name: None if gate is None else slope.sum((0, 1)) if np.ndim(gate) == 1 else slope
        for name, (gate, slope) in given.items()
    }


def segments(cu_seqlens: Any, B: int, T: int) -> list[tuple[int, int, int]]:
    """(row of the batch, first token, end) of every sequence: the rows themselves, or what `cu_seqlens` cuts row 0
    into.
    """
    if cu_seqlens is None:
        return [(b, 0, T) for b in range(B)]
    cuts = as_numpy(cu_seqlens).tolist()
    return [(0, start, end) for start, end in itertools.pairwise(cuts)]


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
        # -inf is retention 0; written without leaving torch, whose compiler traces this
        nan_to_num = gate.detach().nan_to_num if hasattr(gate, "detach") else partial(np.nan_to_num, gate)
        check(name, nan_to_num(nan=np.nan, posinf=np.inf, neginf=0.0), _axes(gate), sizes)
        low, high = -np.inf, 0.0
    else:
        check(name, gate, _axes(gate), sizes)
        low, high = 0.0, 1.0 if name == "retention" else LARGEST_WRITE
    if 0 in gate.shape:
        return
    gate = gate.detach() if hasattr(gate, "detach") else gate
    for extreme in (float(gate.min()), float(gate.max())):
        if not low <= extreme <= high:
            raise ValueError(f"{name} must lie in [{low:g}, {high:g}], got {extreme!r}")


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


# -- the dials of the panel --


@dataclass(frozen=True)
class ResidualParams(Dials):
    """The dials of the panel with their ranges and the paper's letters; slider, test and notebook use the same ones.

    A gate is a curve over the tokens, drawn through POINTS heights; a gate that the rule lacks is not looked at. The
    target "none" is the clip at infinity. At the same budget, a rule with one memory has keys of twice the width, and
    so as many numbers of state as two memories. Raises ValueError with the dial's name, its range and what came.
    """

    rule: str = knob("rla", label="rule", choices=tuple(RULES))
    same_budget: bool = knob(True, label="same budget")
    similarity: float = knob(0.4, 0.0, 1.0, label="similarity of keys")
    retention: tuple[float, ...] = knob((1.0,) * POINTS, 0.0, 1.0, label="retention", paper="α", points=POINTS)
    write: tuple[float, ...] = knob((0.7,) * POINTS, 0.0, 1.0, label="write", paper="β", points=POINTS)
    correction: tuple[float, ...] = knob((0.6,) * POINTS, 0.0, 1.0, label="correction", paper="γ", points=POINTS)
    tied: bool = knob(False, label="tie γ to β")
    target: str = knob("clip", label="errors are kept", choices=("clip", "none", "log_cosh"))
    clip: float = knob(1.0, 0.0, 4.0, label="clip", paper="c")
    fitting: bool = knob(True, label="fit R")
    read_gates: bool = knob(True, label="gate the reads")
    normalize: bool = knob(True, label="normalise q, k")
    tokens: int = knob(24, 2, 64, label="tokens", paper="T")
    head_width: int = knob(16, 2, 32, label="key width", paper="K")
    value_width: int = knob(12, 2, 32, label="value width", paper="V")
    seed: int = knob(0, 0, 9999, label="seed")
    input: str = knob(TOY, label="input", choices=INPUTS)

    @property
    def wide(self) -> bool:
        """Whether keys have twice the width of the dial."""
        return self.same_budget and not RULES[self.rule].residual

    @property
    def widths(self) -> tuple[int, int]:
        """(K, V) in force, from the dials for toy tokens and from the model for a real head."""
        K, V = inputs.width(self.input, self.head_width), inputs.width(self.input, self.value_width)
        return 2 * K if self.wide else K, V

    def inputs(self) -> Inputs:
        """One head of the stream. Toy: keys and values drawn from the seed, and queries that each ask for the value of
        a token so far. A real head: the first `tokens` of its window, q and k divided by their lengths. Either way
        keys and queries then lean towards one direction that all share, by `similarity`.

        Wide toy keys are drawn wide, and the narrow ones are their first half; those of a real head are unfolded into
        their positive and their negative part, since a linear map would add no room.
        """
        T, (K, V) = self.tokens, self.widths
        if self.input == TOY:
            k = self.leaning(draws.normal(self.seed, STREAMS["keys"], T, K) / np.sqrt(K))
            v = draws.normal(self.seed, STREAMS["values"], T, V)
            q, k, v = (x[None, :, None] for x in (k[self.asked()], k, v))
            return Inputs(q, k, v, tuple(str(t + 1) for t in range(T)))
        given = inputs.inputs(self.input, T, K, self.seed)
        q, k = (unit(x[0, :, 0]) for x in (given.q, given.k))
        if self.wide:
            q, k = (np.concatenate([np.maximum(x, 0), np.maximum(-x, 0)], axis=1) for x in (q, k))
        q, k = (self.leaning(x)[None, :, None] for x in (q, k))
        return given._replace(q=q, k=k)

    def leaning(self, own: Float[Array, "T K"]) -> Float[Array, "T K"]:
        """Each row turned towards the direction that all share: (1 - similarity) own + similarity shared."""
        shared = unit(draws.normal(self.seed, STREAMS["centres"], 1, own.shape[1]))
        return (1 - self.similarity) * own + self.similarity * shared

    def asked(self) -> Array:
        """The token, so far, whose value each toy query asks for: whole numbers [T]."""
        places = draws.uniform(self.seed, ASKED_STREAM, self.tokens, 1)[:, 0]
        return np.floor(places * (1 + np.arange(self.tokens))).astype(np.int64)

    def gates(self) -> dict[str, Float[Array, "..."]]:
        """The gates that the rule has, as `attention` takes them: [1, T, 1], or [H] where fixed in time, for which the
        mean of the curve is taken.
        """
        curves = {"retention": self.retention, "write": self.write, "correction": self.correction}
        if self.tied:
            curves["correction"] = self.write
        if self.rule == "retnet":
            return {"retention": np.array([np.mean(self.retention)])}
        return {name: over_tokens(curves[name], self.tokens)[None, :, None] for name in RULES[self.rule].gates}

    def switches(self) -> dict[str, Any]:
        """What else `attention` has to be told about errors: clip, target, fitting, read_gates."""
        target = "log_cosh" if self.target == "log_cosh" else "clip"
        clip = np.inf if self.target == "none" else self.clip
        return {"clip": clip, "target": target, "fitting": self.fitting, "read_gates": self.read_gates}


def over_tokens(points: tuple[float, ...], tokens: int) -> Float[Array, " T"]:
    """The curve at each token: straight lines between points that stand evenly from the first token to the last."""
    place = np.arange(tokens) * ((len(points) - 1) / (tokens - 1))
    left = np.minimum(place.astype(np.int64), len(points) - 2)
    heights = np.asarray(points)
    return heights[left] + (heights[left + 1] - heights[left]) * (place - left)
