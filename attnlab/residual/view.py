"""What the residual panel shows, as plain arrays; `computer` in mathematics.js returns the same names, shapes, numbers.

T tokens, K and V widths: K is twice the dial's for a single memory at the same budget. [t, i] is what query t has of
the earlier token i, 0 above the diagonal. A recall error is |what is recalled with key i - v_i|, over the root mean
square of |v|; the mean of several is their root mean square.

memories [2, T, K, V]                      S and R after every token; R stays 0 where the rule has none
alpha, beta, gamma [T]                     the gates in force: 1 where the rule has no such gate, gamma 0 without R
error, kept [T, V]                         v_t - k_t S_{t-1} before and after the clip; 0 without R
out [T, V]                                 what attention returns
key_query [T, T]                           q_t.k_i
value_weights, error_weights [T, T]        the unrolled sums: out = value_weights v + error_weights kept
recall_base, recall_both [T, T]            recall errors after token t: of S_t alone, of both as the output reads them
recall_here [2]                            the mean over all i after the last token: S alone, both
similar_base, similar_both [9]             the same for other similarities of the keys: SIMILARITIES
budget_wide, budget_narrow [7]             recall error of each rule at the same budget, and at the same key width
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from attnlab import inputs
from attnlab.arrays import Array, Float
from attnlab.dense import unit
from attnlab.dials import described
from attnlab.inputs import STREAMS
from attnlab.panels.still import Curve, Picture
from attnlab.residual import reference
from attnlab.residual.params import ASKED_STREAM, RULES, ResidualParams

__all__ = ["PARAMS", "SIMILARITIES", "compute", "data", "spec", "still", "verification"]

PARAMS = ResidualParams

SIMILARITIES = np.arange(9) / 8


class Case(NamedTuple):
    """One run as it enters the token loop: lengths divided out, gates at every token."""

    rule: str
    q: Float[Array, "T K"]
    k: Float[Array, "T K"]
    v: Float[Array, "T V"]
    alpha: Float[Array, " T"]
    beta: Float[Array, " T"]
    gamma: Float[Array, " T"]
    switches: dict[str, Any]


def compute(params: ResidualParams) -> dict[str, Float[Array, "..."]]:
    """Every view of these dials, float64."""
    case = _case(params)
    run = _run(case)
    base, both = _recalls(case, run)
    values, errors = _weights(case)
    similar = [_mean_recall(_case(replace(params, similarity=s))) for s in SIMILARITIES.tolist()]
    wide, narrow = (_budgets(params, same=same) for same in (True, False))
    return {
        "memories": np.stack([run.S[0, :, 0], run.R[0, :, 0]]),
        "alpha": case.alpha,
        "beta": case.beta,
        "gamma": case.gamma,
        "error": run.error[0, :, 0],
        "kept": run.residual[0, :, 0],
        "out": run.out[0, :, 0],
        "key_query": np.tril(np.einsum("tk,ik->ti", case.q, case.k)),
        "value_weights": values,
        "error_weights": errors,
        "recall_base": base,
        "recall_both": both,
        "recall_here": np.array([_mean(base[-1]), _mean(both[-1])]),
        "similar_base": np.array([base for base, _ in similar]),
        "similar_both": np.array([both for _, both in similar]),
        "budget_wide": wide,
        "budget_narrow": narrow,
    }


def data(params: ResidualParams) -> dict[str, Any] | None:
    """What the browser cannot draw: None for toy tokens, else a window of the real head (`attnlab.inputs.data`)."""
    return inputs.data(params.input, params.tokens)


def still(params: ResidualParams) -> dict[str, Any]:
    """The pictures and numbers that stand where nothing is live; `attnlab.panels.still.html` shows them."""
    case = _case(params)
    run = _run(case)
    base, both = _recalls(case, run)
    values, errors = _weights(case)
    residual = RULES[case.rule].residual
    weights = errors if residual else values
    memories = {"S": run.S[0, -1, 0], "R": run.R[0, -1, 0]} if residual else {"S": run.S[0, -1, 0]}
    top = max(np.abs(memory).max() for memory in memories.values())
    most = np.abs(weights).max()
    age = np.arange(params.tokens, dtype=np.float64)
    recall = {"S alone": base[-1, ::-1]} | ({"S and R": both[-1, ::-1]} if residual else {})
    rivals = _budgets(params, same=True)
    return {
        "title": f"Residual error memory: {params.rule}",
        "source": "arXiv:2509.25223v1, pp. 4-5; recall errors and equal budgets: this project",
        "pictures": [
            *(Picture(f"{name} after the last token", memory, top, low=-top) for name, memory in memories.items()),
            Picture(f"Weights of past {'errors' if residual else 'values'}", weights, most, root=True, low=-most),
            Curve("Recall error by age", age, recall, x_name="tokens since it was written", y_name="error"),
        ],
        "numbers": [
            ("recall error of S alone", f"{_mean(base[-1]):.6g}"),
            *([("recall error of S and R", f"{_mean(both[-1]):.6g}")] if residual else []),
            *((f"recall error of {rule} at this budget", f"{rivals[n]:.6g}") for n, rule in enumerate(RULES)),
        ],
    }


def verification(params: ResidualParams) -> tuple[dict[str, Any], int]:
    """The arguments of `attention` for these dials, and how many terms an output adds up.

    Both reads add up K numbers, each a sum of T writes. A delta write adds up K numbers in turn, the recall that it
    subtracts.
    """
    q, k, v, _ = params.inputs()
    T, (K, _) = params.tokens, params.widths
    arguments = {"q": q, "k": k, "v": v, "rule": params.rule, "normalize": params.normalize}
    terms = 2 * (K + T * K if RULES[params.rule].delta else K + T)
    return arguments | params.gates() | params.switches(), terms


def spec() -> dict[str, Any]:
    """All that panel.js has to know, as JSON: the dials, the rules, the streams of the draws."""
    return {
        "mechanism": "residual",
        "title": "Residual error memory",
        "paper": "arXiv:2509.25223v1",
        "widget": "ResidualPanel",
        "version": 1,
        "dials": described(ResidualParams),
        "options": {"weights": ["errors", "values"]},
        "views": ["memories", "weights", "recall", "similarity", "clip", "gates", "budget"],
        "axes": ["query", "key", "memory", "channel", "entry", "similarity", "rule"],
        "inputs": inputs.spec(),
        "draws": {"asked": ASKED_STREAM, "shared": STREAMS["centres"]}
        | {name: STREAMS[name] for name in ("keys", "values")},
        "similarities": SIMILARITIES.tolist(),
        "rules": {
            name: {"gates": list(rule.gates), "delta": rule.delta, "residual": rule.residual}
            for name, rule in RULES.items()
        },
    }


# -- runs --


def _case(params: ResidualParams) -> Case:
    q, k, v = (x[0, :, 0] for x in params.inputs()[:3])
    if params.normalize:
        q, k = unit(q), unit(k)
    gates = {name: np.broadcast_to(np.ravel(gate), params.tokens) for name, gate in params.gates().items()}
    alpha, beta = (gates.get(name, np.ones(params.tokens)) for name in ("retention", "write"))
    gamma = gates.get("correction", np.zeros(params.tokens))
    return Case(params.rule, q, k, v, alpha, beta, gamma, params.switches())


def _run(case: Case) -> reference.Trace:
    q, k, v = (x[None, :, None] for x in (case.q, case.k, case.v))
    gates = {"retention": case.alpha, "write": case.beta, "correction": case.gamma}
    if case.rule == "retnet":
        return reference.trace(q, k, v, case.alpha[:1], rule=case.rule, **case.switches)
    own = {name: gates[name][None, :, None] for name in RULES[case.rule].gates}
    return reference.trace(q, k, v, **own, rule=case.rule, **case.switches)


def _reads(case: Case, run: reference.Trace, t: int) -> tuple[Array, Array]:
    """What all keys recall after token t: of S_t alone, and of both memories as the output reads them [T, V]."""
    S, R = run.S[0, :, 0], run.R[0, :, 0]
    alone = case.k @ S[t]
    if not RULES[case.rule].residual:
        return alone, alone
    before = S[t - 1] if t else 0 * S[0]
    alpha, gamma = (case.alpha[t], case.gamma[t]) if case.switches["read_gates"] else (1.0, 1.0)
    return alone, alpha * (case.k @ before) + gamma * (case.k @ R[t])


def _recalls(case: Case, run: reference.Trace) -> tuple[Float[Array, "T T"], Float[Array, "T T"]]:
    size = np.sqrt(np.mean(np.sum(case.v**2, axis=1)))
    reads = [_reads(case, run, t) for t in range(len(case.v))]
    base, both = (np.stack([np.linalg.norm(read[side] - case.v, axis=1) for read in reads]) for side in (0, 1))
    return np.tril(base) / size, np.tril(both) / size


def _mean_recall(case: Case) -> tuple[float, float]:
    """Recall error after the last token, over all tokens: of S alone, of both."""
    size = np.sqrt(np.mean(np.sum(case.v**2, axis=1)))
    base, both = (np.linalg.norm(read - case.v, axis=1) / size for read in _reads(case, _run(case), len(case.v) - 1))
    return _mean(base), _mean(both)


def _mean(errors: Float[Array, " T"]) -> float:
    return float(np.sqrt(np.mean(errors**2)))


def _budgets(params: ResidualParams, *, same: bool) -> Float[Array, " rules"]:
    """The recall error of every rule, at the same budget or at the same key width."""
    return np.array([_mean_recall(_case(replace(params, rule=rule, same_budget=same)))[1] for rule in RULES])


def _weights(case: Case) -> tuple[Float[Array, "T T"], Float[Array, "T T"]]:
    """How much of each past value and of each past error is in an output. Where neither rule nor switches leave a
    memory of errors, their weights are 0.
    """
    has, T = RULES[case.rule], len(case.v)
    fitting, read_gates = case.switches["fitting"], case.switches["read_gates"]
    values, errors = np.zeros((T, T)), np.zeros((T, T))
    S, R = (np.zeros((case.k.shape[1], T)) for _ in range(2))  # column i: what token i's value, error has become
    for t in range(T):
        before = case.q[t] @ S
        S = _passed_on(S, case, t, case.beta[t], delta=has.delta)
        if not has.residual:
            values[t] = case.q[t] @ S
            continue
        if fitting:
            R = _passed_on(R, case, t, case.gamma[t], delta=has.delta)
        else:
            R = np.zeros_like(R)
            R[:, t] = case.k[t]
        values[t] = (case.alpha[t] if read_gates else 1) * before
        errors[t] = (case.gamma[t] if read_gates else 1) * (case.q[t] @ R)
    return values, errors


def _passed_on(columns: Array, case: Case, t: int, rate: float, *, delta: bool) -> Array:
    """The columns after token t: alpha (I - rate k k^T) each, or alpha alone, and a column rate k for token t."""
    kept = case.alpha[t] * columns
    if delta:
        kept = kept - rate * np.outer(case.k[t], case.k[t] @ kept)
    kept[:, t] = rate * case.k[t]
    return kept
