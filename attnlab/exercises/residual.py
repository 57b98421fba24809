"""Exercises on RLA and RDN, arXiv:2509.25223v1."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from attnlab import draws
from attnlab.arrays import Array, Float
from attnlab.dense import unit
from attnlab.exercises.exercise import TOLERANCE, Arguments, Draw, Exercise
from attnlab.residual import near_misses, reference

__all__ = ["EXERCISES", "error_weights", "gates", "keys", "rdn", "rla_step", "which"]


def _drawn_gates(draw: Draw, *shape: int) -> dict[str, Float[Array, "..."]]:
    return {name: draw.uniform(*shape, low=0.2, high=0.9) for name in ("alpha", "beta", "gamma")}


def _tokens(draw: Draw, T: int, K: int, V: int) -> dict[str, Float[Array, "..."]]:
    """Unit queries and keys, normal values, gates."""
    return {"q": unit(draw.normal(T, K)), "k": unit(draw.normal(T, K)), "v": draw.normal(T, V), **_drawn_gates(draw, T)}


# -- a step -----------------------------------------------------------------------------------------------------------


def _cases_of_rla_step(draw: Draw) -> Iterator[Arguments]:
    """A clip that some of the values and some of the errors exceed; none; and one where everything is forgotten."""
    for clipped, kept in ((True, 1.0), (False, 1.0), (True, 0.0)):
        K, V = draw.sizes(2, 5, 9)
        S, R, q, k, v = draw.normal(K, V), draw.normal(K, V), unit(draw.normal(K)), unit(draw.normal(K)), draw.normal(V)
        gates = {name: gate.item() for name, gate in _drawn_gates(draw).items()}
        bound = min(np.sort(np.abs(x))[-2:].mean().item() for x in (v, v - k @ S))
        clip = bound if clipped else np.inf
        yield {"S": S, "R": R, "q": q, "k": k, "v": v, **gates, "alpha": kept * gates["alpha"], "clip": clip}


def _rla_step(S, R, q, k, v, alpha, beta, gamma, clip):
    token = (np.asarray(x)[None, None] for x in (S, R, q, k, v, alpha, beta, gamma))
    S, R, _, _, base_read, correction_read = (x[0, 0] for x in reference.step(*token, rule="rla", clip=clip))
    return base_read + correction_read, S, R


rla_step = Exercise(
    id="residual.rla_step",
    title="Write one token of RLA",
    level=1,
    minutes=10,
    source="RLA, Sec. 3.4, p. 5; Listing 1, p. 15",
    text="""
        One token, one head. S remembers values, R what S got wrong. A memory M answers a key or a query x [K] with x M
        [V]: so S and R are [K, V] here, the transpose of the paper's. q and k are [K], v is [V]; alpha (retention),
        beta (write), gamma (correction) and clip are numbers, and clip may be infinite.

        - The **error** is v - k S. It asks the *old* S, *before* it decays. Each of its entries is then held within
          -clip and clip; that is r.
        - Both memories are multiplied by alpha, and then added to: R gets gamma times r under the key k, and S beta
          times v under the same key. Under a key means as an outer product, so that k answers with what was written.
        - The **output** is alpha times what the *old* S answers to q, plus gamma times what the *new* R answers to q.

        Give back three things: out [V], and the new S and R [K, V].
        """,
    signature="""
def rla_step(S, R, q, k, v, alpha, beta, gamma, clip):
    raise NotImplementedError
""",
    hints=(
        "Who asks which memory? The old S is asked twice, once with k and once with q; the new R once, with q.",
        "Five lines: r, then the new R, then the output, then the new S, then the return. S comes last, because the "
        "error and the output need the old one.",
        "`np.clip(v - k @ S, -clip, clip)` is r, and `alpha * R + gamma * np.outer(k, r)` the new R. Gamma counts once "
        "more in the output.",
    ),
    cases=_cases_of_rla_step,
    expected=_rla_step,
    returns=("out", "S", "R"),
)


# -- the sum over past errors -----------------------------------------------------------------------------------------


def _cases_of_error_weights(draw: Draw) -> Iterator[Arguments]:
    for special in ((), (0.0, 1e-200), (0.0, 0.0, 1.0)):
        T, K = draw.sizes(2, 5, 9)
        gates = _drawn_gates(draw, T)
        gates["alpha"][draw.shuffled(T - 2)[: len(special)] + 1] = special  # later tokens reach back over them
        yield {"q": draw.normal(T, K), "k": draw.normal(T, K), "alpha": gates["alpha"], "gamma": gates["gamma"]}


def _error_weights(q, k, alpha, gamma):
    """Values of one column each that S never holds: each error is its value, and each output a row of weights."""
    q, k, v, *gates = (x[None, :, None] for x in (q, k, np.eye(len(q)), alpha, 0 * gamma, gamma))
    return reference.attention(q, k, v, *gates, rule="rla", clip=np.inf)[0, :, 0]


error_weights = Exercise(
    id="residual.error_weights",
    title="Write the correction as a sum over past errors",
    level=2,
    minutes=15,
    source="reader's analysis of Sec. 3.4, p. 5",
    text="""
        RLA's second memory starts empty, and token t makes of it

            R_t = alpha_t R_{t-1} + gamma_t k_tᵀ r_t          R is [K, V], k_t a row [K], r_t a row [V]

        Its part of the output is gamma_t q_t R_t. Unrolled, this is attention without a softmax, over errors in place
        of values: the sum over i of w[t, i] r_i.

        Write that table w [T, T]: row t is a query, column i an error, and w[t, i] = 0 where i > t. The arguments are q
        and k [T, K], alpha and gamma [T]. A retention alpha may be 0: that token forgets everything before it. There
        are no NaN in w.
        """,
    signature="""
def error_weights(q, k, alpha, gamma):
    raise NotImplementedError
""",
    hints=(
        "Write R_3 for three tokens with R_2 and R_1 put in. With which retentions does r_1 arrive, and with which r_2 "
        "and r_3? Then read with gamma_3 q_3.",
        "w[t, i] is a product of four things: the gate of the read, the gate of the write, the decay from i to t, and "
        "how well the query meets the key. The decay from t to itself is 1.",
        "The decay is alpha[i + 1] ... alpha[t], without alpha[i]. Build row after row: row t is alpha[t] times row "
        "t - 1, with a 1 put on the diagonal. Differences of cumulated logarithms give NaN where alpha is 0.",
    ),
    cases=_cases_of_error_weights,
    expected=_error_weights,
    returns=("w",),
)


# -- a run ------------------------------------------------------------------------------------------------------------


def _cases_of_rdn(draw: Draw) -> Iterator[Arguments]:
    for empty, clip in ((False, 0.5), (False, np.inf), (True, 1.0)):
        T, K, V = draw.sizes(3, 4, 9)
        tokens = _tokens(draw, 0 if empty else T, K, V)
        if clip == np.inf:
            tokens["alpha"][:2] = 0.0, 1.0
        yield {**tokens, "clip": clip, "S": draw.normal(K, V), "R": draw.normal(K, V)}


def _rdn(q, k, v, alpha, beta, gamma, clip, S, R):
    tokens = (x[None, :, None] for x in (q, k, v, alpha, beta, gamma))
    state = reference.State(S[None, None], R[None, None])
    out, left = reference.attention(*tokens, rule="rdn", clip=clip, state=state, return_state=True)
    return out[0, :, 0], left.base[0, 0], left.residual[0, 0]


rdn = Exercise(
    id="residual.rdn",
    title="Run RDN over a segment",
    level=2,
    minutes=20,
    source="RDN, Sec. 3.4, p. 5",
    text="""
        RDN writes both memories by the delta rule. In the paper everything is a column, and memories are [V, K]:

            r_t = clip(v_t - S_{t-1} k_t)
            R_t = alpha_t R_{t-1} (I - gamma_t k_t k_tᵀ) + gamma_t r_t k_tᵀ
            S_t = alpha_t S_{t-1} (I - beta_t k_t k_tᵀ) + beta_t v_t k_tᵀ
            o_t = alpha_t S_{t-1} q_t + gamma_t R_t q_t

        Write it over T tokens, one head, in the layout of code: tokens are rows, q and k [T, K], v [T, V], the gates
        alpha, beta and gamma [T], and clip one number (each entry of the error is held within -clip and clip; it may be
        infinite). The memories S and R that an earlier segment left are [K, V], the transpose of the paper's. A segment
        may have no token at all.

        Give back three things: out [T, V], and S and R [K, V] as this segment leaves them, so that two segments one
        after the other are one run. Leave the arrays that you were given as they are.
        """,
    signature="""
def rdn(q, k, v, alpha, beta, gamma, clip, S, R):
    raise NotImplementedError
""",
    hints=(
        "Transpose the write of S and multiply it out. What does it subtract from v_t before it writes? It is what S "
        "recalls for k_t after the decay.",
        "A loop over tokens. In it: r from the old S, the new R, a row of out, and last the new S. Each memory decays "
        "first, and then gets the outer product of k_t with what is missing.",
        "Two different errors are at play. `r` asks S before it decays; the writes subtract `alpha[t] * k[t] @ S` and "
        "`alpha[t] * k[t] @ R`. For T = 0, `np.zeros((T, V))` has the right shape.",
    ),
    cases=_cases_of_rdn,
    expected=_rdn,
    returns=("out", "S", "R"),
)


# -- near misses ------------------------------------------------------------------------------------------------------

OPERATORS = ("rdn", *near_misses.NEAR_MISSES)


def _outputs(name: str, q, k, v, alpha, beta, gamma, clip) -> Float[Array, "T V"]:
    tokens = [x[None, :, None] for x in (q, k, v, alpha, beta, gamma)]
    if name == "rdn":
        return reference.attention(*tokens, rule="rdn", clip=clip)[0, :, 0]
    return near_misses.attention(name, *tokens, rule="rdn", clip=clip)[0, :, 0]


def _cases_of_which(draw: Draw) -> Iterator[Arguments]:
    for _ in range(2):
        N, T, K, V = draw.sizes(4, 5, 9)
        shared = {**_tokens(draw, T, K, V), "clip": 1.5}
        made = draw.shuffled(N) % len(OPERATORS)
        yield {**shared, "outs": np.stack([_outputs(OPERATORS[number], **shared) for number in made])}


def _which(outs, **shared):
    of_each = np.stack([_outputs(name, **shared) for name in OPERATORS])
    return np.abs(outs[:, None] - of_each).max(axis=(2, 3)).argmin(axis=1)


which = Exercise(
    id="residual.which",
    title="Name the near misses",
    level=2,
    minutes=30,
    source="RDN, Sec. 3.4, p. 5; near misses: this project",
    text="""
        Somebody hands you outputs of N programs, all run on the same tokens, each said to be RDN. Four operators are
        easily taken for it. Let S and R be the memories before a token and S' and R' those after it, [K, V] each, and
        empty before the first token. Rows: a memory answers x with x M.

        - 0, **RDN**: r = clip(v - k S), R' = alpha R + gamma kᵀ (r - alpha k R),
          S' = alpha S + beta kᵀ (v - alpha k S), and out = alpha q S + gamma q R'.
        - 1, **post-update read**: the same, but out = q (S' + R').
        - 2, **decayed read**: as 0, but r = clip(v - alpha k S).
        - 3, **undecayed subtraction**: as 0, but the writes subtract k R and k S, without alpha.
        - 4, **two calls added**: as 0, but r = clip(v - k S'), and out = q (S' + R').

        The arguments are q and k [T, K], v [T, V], alpha, beta and gamma [T], the number clip, by which each entry of
        an error is held within -clip and clip, and outs [N, T, V]. Give back N whole numbers: which operator made each
        of outs. Several programs may be the same operator, and each of the five is there.
        """,
    signature="""
def which(q, k, v, alpha, beta, gamma, clip, outs):
    raise NotImplementedError
""",
    hints=(
        "Run all five on the tokens, and see which outputs are the same. Before a first token the memories are empty: "
        "which of the five can the first row of out not tell apart?",
        "One loop over tokens serves all five. Three things depend on the number: what the writes subtract, which S "
        "the error asks, and what the output reads. Number 4 needs S' before r.",
        "Take the operator whose largest difference over all tokens is least: "
        "`np.abs(outs[:, None] - of_each).max(axis=(2, 3)).argmin(axis=1)` with of_each [5, T, V]. Numbers 0, 2 and 3 "
        "agree in the first token.",
    ),
    cases=_cases_of_which,
    expected=_which,
    returns=("made",),
)


# -- gates ------------------------------------------------------------------------------------------------------------


def _cases_of_gates(draw: Draw) -> Iterator[Arguments]:
    """Linear attention; constant gates; gates that move, up to the largest retention that has an answer; a reset."""
    for kind in ("ones", "constant", "moving", "reset"):
        T = draw.integer(4, 9)
        beta = np.full(T, draw.uniform(low=0.3)) if kind == "constant" else draw.uniform(T, low=0.3)
        alpha = np.full(T, draw.uniform(low=0.3)) if kind == "constant" else draw.uniform(T, low=0.3)
        if kind == "ones":
            alpha, beta = np.ones(T), np.ones(T)
        elif kind != "constant":
            alpha[1:] *= np.minimum(1, np.sqrt(beta[1:] / beta[:-1]))
        if kind == "reset":
            alpha[draw.integer(1, T - 2)] = 0.0
        yield {"alpha": alpha, "beta": beta}


def _shares(rule: str, *gates: Float[Array, " T"]) -> Float[Array, "T T"]:
    """What value i counts in output t, in units of q_t k_i; for one choice of q and k."""
    T, K = len(gates[0]), 4
    q, k = (draws.normal(0, stream, T, K) for stream in (1, 2))
    tokens = (x[None, :, None] for x in (q, k, np.eye(T), *gates))
    return reference.attention(*tokens, rule=rule, clip=np.inf)[0, :, 0] / (q @ k.T) + 0.0  # no -0


def _judge_gates(answer: Any, arguments: Arguments) -> str:
    alpha, beta = arguments["alpha"], arguments["beta"]
    if len(answer) != 3:
        return f"It must give back three arrays, retention, write and correction, got {len(answer)}."
    found = []
    for name, gate in zip(("retention", "write", "correction"), map(np.asarray, answer), strict=True):
        if gate.dtype.kind not in "biuf" or gate.shape != alpha.shape:
            return f"{name} must be real numbers of shape {list(alpha.shape)}, got {gate.dtype} of {list(gate.shape)}."
        outside = ~((gate >= 0) & (gate <= 1 + TOLERANCE))  # NaN is
        if outside.any():
            return f"{name} must lie in [0, 1], got {gate[outside.argmax()]:.6g} at token {outside.argmax()}."
        found.append(gate.astype(float))
    ours, wanted = _shares("rla", *found), _shares("sgla", alpha, beta)
    off = np.argwhere(np.abs(ours - wanted) > TOLERANCE * np.abs(wanted).max())
    if not len(off):
        return ""
    t, i = off[0]
    _, write, correction = found
    if i == t and correction[t]:
        why = "It is the newest value: how often does its gate come in until it is read?"
    elif i == t:
        why = "It is the newest value, which no reading of the old S can have."
    elif write[:t].any():
        why = "S is not empty, so errors are not values: v - k S brings products of keys, which sGLA has nowhere."
    else:
        why = "Think of what has faded since, and of the gate that reads."
    counts = f"At token {t} the value of token {i} counts {ours[t, i]:.6g} times q·k, in sGLA {wanted[t, i]:.6g} times."
    return f"RLA does not give sGLA's outputs. {counts} {why}"


gates = Exercise(
    id="residual.gates",
    title="Find sGLA inside RLA",
    level=3,
    minutes=25,
    source="RLA, Sec. 3.4, p. 5; the identity is this project's",
    text="""
        Scalar gated linear attention, sGLA, has one memory and two gates:

            X_t = alpha_t X_{t-1} + beta_t k_tᵀ v_t                  o_t = q_t X_t

        RLA has two memories and three gates. Here are its lines without a clip, rows, all memories empty at the start:

            r_t = v_t - k_t S_{t-1}
            R_t = retention_t R_{t-1} + correction_t k_tᵀ r_t
            S_t = retention_t S_{t-1} + write_t k_tᵀ v_t
            o_t = retention_t q_t S_{t-1} + correction_t q_t R_t

        sGLA reads the new memory, RLA the old S; and an RLA whose correction is 0 misses the newest value. Still, where
        beta does not fall too fast, sGLA is a special case of RLA. You get sGLA's alpha and beta [T]. Find gates with
        which RLA gives the same outputs, for *all* q, k and v: give back retention, write and correction, [T] each,
        every number in [0, 1].

        You may rely on beta_t > 0 and on alpha_t² beta_{t-1} <= beta_t; without the second there are no such gates.
        Begin with alpha = beta = 1, which is linear attention.
        """,
    signature="""
def gates(alpha, beta):
    raise NotImplementedError
""",
    hints=(
        "Which gate makes the errors equal to the values, whatever the keys are? Then only R is left.",
        "Compare what value i counts at token t: correction_t correction_i times RLA's decay in one, beta_i times "
        "sGLA's decay in the other. First i = t, then i = t - 1.",
        "correction is the square root of beta, as it counts at the write and at the read. What remains, "
        "`np.sqrt(beta[i] / beta[t])`, telescopes over the tokens from i to t: token t has the factor "
        "`np.sqrt(beta[t - 1] / beta[t])` in its retention. The first token has nothing to forget.",
    ),
    cases=_cases_of_gates,
    judge=_judge_gates,
    returns=("retention", "write", "correction"),
)


# -- keys -------------------------------------------------------------------------------------------------------------

HELPS, HURTS = 0.9, 2.0  # what RLA's error must be of linear attention's: at most, at least
ALIKE = 0.9  # largest cosine between two keys


def _cases_of_keys(draw: Draw) -> Iterator[Arguments]:
    for helps in (False, True, False, True):
        n = draw.integer(8, 12)
        K, gamma = n + draw.integer(1, 4), draw.uniform(low=0.4, high=0.6).item()
        yield {"n": n, "K": K, "gamma": gamma, "helps": helps}


def _errors(k: Float[Array, "n K"], gamma: float) -> tuple[float, float]:
    """The errors of linear attention and of RLA, expected over values of variance 1.

    Without a clip answers are linear in the values: with the identity for values, they are that map.
    """
    n = len(k)
    tokens = (x[None, :, None] for x in (k, k, np.eye(n), np.ones(n), np.ones(n), np.full(n, gamma)))
    _, (S, R) = reference.attention(*tokens, rule="rla", clip=np.inf, return_state=True)
    plain, both = k @ S[0, 0], k @ S[0, 0] + gamma * k @ R[0, 0]
    errors = [float(((x - np.eye(n)) ** 2).sum() / n) for x in (plain, both)]
    return errors[0], errors[1]


def _judge_keys(answer: Any, arguments: Arguments) -> str:
    n, K, gamma, helps = (arguments[name] for name in ("n", "K", "gamma", "helps"))
    k = np.asarray(answer)
    if k.dtype.kind not in "biuf" or k.shape != (n, K):
        return f"keys must be real numbers of shape {[n, K]}, got {k.dtype} of {list(k.shape)}."
    k = k.astype(float)
    with np.errstate(over="ignore"):
        length = np.linalg.norm(k, axis=1)
    unlike_1 = ~(np.abs(length - 1) <= 1e-6)  # NaN is
    if unlike_1.any():
        return f"Each key must have length 1; that of key {unlike_1.argmax()} is {length[unlike_1.argmax()]:.6g}."
    cosine = np.abs(np.tril(k @ k.T, -1))
    if cosine.max() > ALIKE:
        i, j = np.unravel_index(cosine.argmax(), cosine.shape)
        return f"No two keys may be nearly one: {j} and {i} have a cosine of size {cosine[i, j]:.3f}, above {ALIKE}."
    plain, both = _errors(k, gamma)
    seen = f"Linear attention's error is {plain:.4g}, that of RLA {both:.4g}; it"
    if helps and not both <= HELPS * plain:
        why = "S alone makes next to none." if plain < 0.1 else "Are the keys too little alike, or too much?"
        return f"R is to help here. {seen} must be at most {HELPS * plain:.4g}. {why}"
    if not helps and not both >= HURTS * plain:
        return f"R is to do harm here. {seen} must be at least {HURTS * plain:.4g}. When does S alone make no error?"
    return ""


keys = Exercise(
    id="residual.keys",
    title="Find keys with which R helps, and keys with which it does harm",
    level=3,
    minutes=30,
    source="RLA, Sec. 3.4, p. 5; the comparison is this project's",
    text="""
        n pairs of a key and a value are written, one a token; then each key is put to the memories, after the last
        token.

        - **Linear attention** has S = Σ kᵀ v, and answers k_i S.
        - **RLA** with all retention and write gates 1, no clip, and one correction gamma for all tokens has the same S,
          and R = gamma Σ k_tᵀ r_t with the errors r_t = v_t - k_t S_{t-1}. It answers k_i S + gamma k_i R.

        The error of either is the mean over i of |answer_i - v_i|² / V, expected over values whose entries are
        independent, of mean 0 and variance 1. (If the answers are A v with a matrix A [n, n] that depends on the keys,
        it is the sum of all (A - I)², divided by n.)

        Find n keys of length 1: rows of an array [n, K], where K > n. No two of them may have a cosine above 0.9 or
        below -0.9. If helps is True, RLA's error must be at most 0.9 of linear attention's. If helps is False, it must
        be at least twice as large. gamma lies between 0.4 and 0.6, n between 8 and 12.
        """,
    signature="""
def keys(n, K, gamma, helps):
    raise NotImplementedError
""",
    hints=(
        "Write two keys with cosine c, by hand: r_1 = v_1, and r_2 = v_2 - c v_1. What of the two errors is a mistake "
        "that S still makes in the end, and what is only news?",
        "If no two keys resemble each other, S alone is right, and still every error is the whole value: R then adds "
        "it once more. If all resemble each other, errors are mostly what the others left.",
        "False: keys at right angles. True: give each key `np.sqrt(c)` of one direction that all share, and "
        "`np.sqrt(1 - c)` of one of its own; any two then have the cosine c. Too little does not help, and too much "
        "makes R take back more than was wrong. The panel's dial *similarity* leans keys in this way.",
    ),
    cases=_cases_of_keys,
    judge=_judge_keys,
    returns=("keys",),
)

EXERCISES = (rla_step, error_weights, rdn, which, gates, keys)
