"""Exercises on RACE attention, arXiv:2510.04008v5."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from attnlab.arrays import Array, Float
from attnlab.exercises.exercise import Arguments, Draw, Exercise
from attnlab.race import reference, theory
from attnlab.race.params import State, plain_state

__all__ = ["EXERCISES", "attend", "break_lemma10", "causal", "features", "hash_alike", "tables_needed"]

R = 8  # buckets, where shares are drawn without planes; no other axis is as long

features = Exercise(
    id="race.features",
    title="Write φ",
    level=1,
    minutes=10,
    source="Algorithm 1, p. 5",
    text="""
        A table has P planes, so R = 2^P buckets, one for each corner of the cube {-1, +1}^P. A token x gives bucket r
        the share φ_r(x): the softmax over the corners v_r of β u·v_r, where u = tanh(W x), W the table's planes and β
        the number `sharpness`.

        Corners are counted as bits: bit t of r, least significant first, is set where v_rt = +1.

        Write φ for one head: `x` is [T, K], `planes` [L, P, K], one W for each of L tables, and φ is [T, L, R].
        """,
    signature="""
def features(x, planes, sharpness):
    raise NotImplementedError
""",
    hints=(
        "The corners are an array [R, P]: shift the numbers 0 ... R - 1 right by 0 ... P - 1, and keep the last bit.",
        "u is [T, L, P]: `np.tanh(np.einsum('tk,lpk->tlp', x, planes))`. The logits are sharpness * u @ corners.T.",
        "Subtract the largest logit of each table, or the exponential overflows at large β. Then divide by the sum "
        "over the R corners of a table, not over all L R of them.",
    ),
    cases=lambda draw: (
        {"x": draw.normal(T, K), "planes": draw.normal(L, P, K), "sharpness": sharpness}
        for sharpness in (draw.uniform(low=0.5, high=3.0).item(), 900.0)
        for T, K, L, P in [draw.sizes(4, 2, 6)]
    ),
    expected=lambda x, planes, sharpness: reference.features(x[None, :, None], planes, sharpness)[0, :, 0],
    returns=("phi",),
)


# -- write and read ---------------------------------------------------------------------------------------------------


def _shares(draw: Draw, tokens: int, tables: int, spread: float) -> Float[Array, "T L R"]:
    """Positive shares of R buckets that sum to 1 in each table."""
    shares = np.exp(spread * draw.normal(tokens, tables, R))
    return shares / shares.sum(axis=-1, keepdims=True)


def _cases_of_attend(draw: Draw) -> Iterator[Arguments]:
    for spread in (1.0, 30.0):
        T, S, L, V = draw.sizes(4, 2, 7)
        phi_q, phi_k = _shares(draw, T, L, spread), _shares(draw, S, L, spread)
        yield {"phi_q": phi_q, "phi_k": phi_k, "v": draw.normal(S, V)}
    T, S, L, V = draw.sizes(4, 2, 7)  # fewer keys than buckets, so that one bucket at least stays empty
    keys = np.argsort(draw.uniform(S, R))[:, :L]
    queries = keys[np.arange(T) % S]
    queries[0] = [np.setdiff1d(np.arange(R), keys[:, table])[0] for table in range(L)]
    yield {"phi_q": np.eye(R)[queries], "phi_k": np.eye(R)[keys], "v": draw.normal(S, V)}


def _log(phi: Float[Array, "T L R"]) -> Float[Array, "1 T 1 L R"]:
    with np.errstate(divide="ignore"):
        return np.log(phi)[None, :, None]


def _read(state: State, phi_q: Float[Array, "T L R"]) -> Float[Array, "T V"]:
    numerator, denominator = (x[0, :, 0] for x in reference.read(state, _log(phi_q)))
    met = denominator[:, None] > 0
    return np.divide(numerator, denominator[:, None], out=np.zeros_like(numerator), where=met)


def _plain(state: State) -> tuple[Float[Array, "L R"], Float[Array, "L R V"]]:
    mass, content, _ = plain_state(state)
    return mass[0, 0], content[0, 0]


def _attend(phi_q: Array, phi_k: Array, v: Array) -> tuple[Array, ...]:
    _, L, buckets = phi_k.shape
    state = reference.write(reference.empty_state(1, 1, L, buckets, v.shape[1]), _log(phi_k), v[None, :, None])
    return *_plain(state), _read(state, phi_q)


attend = Exercise(
    id="race.attend",
    title="Write into buckets, read from them",
    level=1,
    minutes=10,
    source="Algorithm 1, p. 5",
    text="""
        `phi_q` [T, L, R] and `phi_k` [S, L, R] are the shares that T queries and S keys have in the R buckets of each
        of L tables. `v` [S, V] holds the values of the keys. Nothing is masked.

        Keys write: the mass of a bucket is the sum of all keys' shares in it, its content the sum of their values, each
        times the share. Queries read: a query's output is its shares times the contents, summed over all buckets of all
        tables, over its shares times the masses, summed likewise. That is one division, at the end.

        A query whose buckets are all empty gets 0.

        Give back three things: mass [L, R], content [L, R, V] and out [T, V].
        """,
    signature="""
def attend(phi_q, phi_k, v):
    raise NotImplementedError
""",
    hints=(
        "No array with both a query's and a key's axis is needed: what the keys wrote is all that a query reads.",
        "mass is `phi_k.sum(axis=0)`, content is `np.einsum('slr,sv->lrv', phi_k, v)`. Reading has the same form, with "
        "both l and r summed: 'tlr,lrv->tv' and 'tlr,lr->t'.",
        "Divide once, after the sums over tables. Where the denominator is 0 nothing was met: "
        "`np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)`, with an axis of "
        "length 1 added to the denominator.",
    ),
    cases=_cases_of_attend,
    expected=_attend,
    returns=("mass", "content", "out"),
)


def _cases_of_causal(draw: Draw) -> Iterator[Arguments]:
    for carried, arrive in ((True, True), (False, True), (True, False)):
        T, L, V, earlier = draw.sizes(4, 2, 7)
        before = _shares(draw, earlier, L, 1.0) * carried
        phi_q, phi_k = (_shares(draw, T * arrive, L, 1.0) for _ in range(2))
        state = {"mass": before.sum(axis=0), "content": np.einsum("slr,sv->lrv", before, draw.normal(earlier, V))}
        yield {"phi_q": phi_q, "phi_k": phi_k, "v": draw.normal(T * arrive, V), **state}


def _causal(phi_q: Array, phi_k: Array, v: Array, mass: Array, content: Array) -> tuple[Array, ...]:
    state = State(mass[None, None], content[None, None], np.zeros((1, 1, *mass.shape)))
    out = np.zeros(v.shape)
    for t in range(len(v)):
        now = slice(t, t + 1)
        state = reference.write(state, _log(phi_k[now]), v[None, now, None])
        out[now] = _read(state, phi_q[now])
    return out, *_plain(state)


causal = Exercise(
    id="race.causal",
    title="Turn the ratio into a prefix",
    level=2,
    minutes=15,
    source="Algorithm 2, p. 27",
    text="""
        Where attention is causal, each token writes its key and value, and then its query reads: token t sees what came
        before it, and itself. What came earlier is a state: `mass` [L, R] and `content` [L, R, V], all zeros where
        nothing did.

        Now T tokens arrive in order, with `phi_q` and `phi_k` [T, L, R], their shares in the R buckets of L tables, all
        positive, and `v` [T, V]. T may be 0.

        Give back three things: out [T, V], the ratio for each token as it stood when the token read, and mass and
        content after the last token, so that the next call can go on from there.
        """,
    signature="""
def causal(phi_q, phi_k, v, mass, content):
    raise NotImplementedError
""",
    hints=(
        "Numerator and denominator are sums over the tokens so far. Both can be kept as running sums, and the division "
        "comes last.",
        "`mass + np.cumsum(phi_k, axis=0)` is the mass that each token meets, [T, L, R]. What each token adds to the "
        "content is `np.einsum('tlr,tv->tlrv', phi_k, v)`. Or loop over the tokens and keep one mass and one content.",
        "`np.cumsum` includes the token itself, as it should. Read with 'tlr,tlrv->tv' and 'tlr,tlr->t'. For T = 0 a "
        "cumulative sum has no last row: add the whole sum to the state instead of taking row -1.",
    ),
    cases=_cases_of_causal,
    expected=_causal,
    returns=("out", "mass", "content"),
)


# -- what the estimate is worth ---------------------------------------------------------------------------------------


def _cases_of_tables(draw: Draw) -> Iterator[Arguments]:
    for low, high, given in ((3.0, 6.0, None), (1.0, 2.0, None), (0.5, 4.0, 0.45)):
        M, planes = 2 * draw.integer(3, 5), draw.integer(2, 4)
        angle = np.concatenate([[0.0, np.pi / 2], draw.uniform(M, low=0.2, high=2.9)])[draw.shuffled(M + 2)]
        first, second = theory.pair_moments(angle, draw.uniform(low=low, high=high).item())
        bias = np.sort(np.abs(first**planes - (1.0 - angle / np.pi) ** planes))
        error = bias[M // 2] * draw.uniform(low=1.05, high=1.3).item() if given is None else given
        yield {"angle": angle, "first": first, "second": second, "planes": planes, "error": float(error)}


def _tables(angle: Array, first: Array, second: Array, planes: int, error: float) -> Array:
    """The smallest L with bias^2 + variance / L <= error^2, as `theory.band` has them for L = 1."""
    bias = first**planes - (1.0 - angle / np.pi) ** planes
    room = error**2 - bias**2
    variance = second**planes - first ** (2 * planes)
    enough = np.ceil(variance / np.where(room > 0, room, 1.0))
    return np.where(room > 0, np.maximum(enough, 1), 0).astype(np.int64)


tables_needed = Exercise(
    id="race.tables_needed",
    title="Choose L for an error",
    level=2,
    minutes=15,
    source="Theorem 2, p. 8; pp. 19-20",
    text="""
        For unit vectors q and k the score Ŝ is an average over L independent tables. A table's score is a product of P
        independent factors, one a plane, P the number `planes`. All factors have the same law; call one of them X.

        `angle` [M] holds angles between q and k in radians; `first` [M] is E[X] and `second` [M] is E[X²] at each of
        them, for some sharpness. What Ŝ estimates is κ^P, where κ = 1 - angle/π.

        How many tables does it take that the root of the mean of (Ŝ - κ^P)² is at most `error`? Give back the smallest
        such L for each angle, [M], whole numbers of at least 1; and 0 where no number of tables is enough.
        """,
    signature="""
def tables_needed(angle, first, second, planes, error):
    raise NotImplementedError
""",
    hints=(
        "The mean of (Ŝ - κ^P)² is the square of the bias, plus the variance. Tables divide only one of the two.",
        "E Ŝ is first^P, by independence, and a table's second moment is second^P. So the variance of one table is "
        "second^P - first^(2P), and L must be at least that over error² - bias².",
        "Where |bias| is error or more, nothing is left for the noise, and no L serves: answer 0 there, before "
        "dividing. Elsewhere round up with `np.ceil`, and take at least one table.",
    ),
    cases=_cases_of_tables,
    expected=_tables,
    returns=("tables",),
)


# -- find -------------------------------------------------------------------------------------------------------------


def _real(x: Any, *shape: int) -> Float[Array, "..."]:
    """`x` in float64. Raises ValueError where it is something else than finite real numbers of this shape."""
    array = np.asarray(x)
    wanted = f"an array of shape {list(shape)}" if shape else "one number"
    if array.dtype.kind not in "iuf" or array.shape != shape:
        raise ValueError(f"it must be {wanted}")
    if not np.isfinite(array).all():
        raise ValueError("it must be finite")
    return array.astype(np.float64)


def _cases_of_lemma10(draw: Draw) -> Iterator[Arguments]:
    """L so that at the smallest C1 of which the lemma speaks, no draw of planes comes near the target."""
    for planes, low, high in ((1, 0.5, 2.0), (2, 0.3, 1.2), (3, 0.2, 0.8)):
        sharpness, tokens = draw.uniform(low=low, high=high).item(), draw.integer(4, 64)
        delta = draw.uniform(low=0.01, high=0.1).item()
        c1 = draw.uniform(low=0.3, high=0.6).item() * ((1 - np.tanh(sharpness) ** 2) / 2) ** planes
        tables = int(np.ceil(_lemma10_asks(c1, tokens, delta)))
        yield {"planes": planes, "sharpness": sharpness, "tables": tables, "tokens": tokens, "delta": delta}


def _lemma10_asks(c1: float, tokens: int, delta: float) -> float:
    return float(2 / c1**2 * np.log(2 * tokens**2 / delta))


def _judge_lemma10(answer: Any, case: Arguments) -> str:
    angle, planes, tables, delta = float(_real(answer)), case["planes"], case["tables"], case["delta"]
    if not 0 <= angle <= np.pi:
        return f"angle must be between 0 and π, in radians, got {angle:g}."
    target = (1 - angle / np.pi) ** planes
    if target < 1e-100:
        return "Between opposite vectors S is 0, so C1 = 0, and the lemma asks for endlessly many tables: it is silent."
    asked = _lemma10_asks(target, case["tokens"], delta)
    if tables < asked * (1 - 1e-9):
        return (
            f"S = {target:.4g} everywhere is C1, and for it the lemma asks for {asked:,.0f} tables. "
            f"With {tables:,} it is silent at this angle."
        )
    mean = float(theory.pair_moments(np.array([angle]), case["sharpness"])[0][0] ** planes)
    beyond = abs(mean - target) - target / 2
    if beyond <= 0:
        return (
            f"At angle {angle:.6g} the target is {target:.4g} and the mean of Ŝ {mean:.4g}. That is less than half "
            "of the target away, so with many tables the conclusion holds."
        )
    chance = np.exp(-2 * tables * beyond**2)  # Hoeffding about the mean
    if chance >= 1 - delta:
        return (
            f"At angle {angle:.6g} the conclusion may hold with probability {chance:.3f}: go further from the border."
        )
    return ""


break_lemma10 = Exercise(
    id="race.break_lemma10",
    title="Break Lemma 10",
    level=3,
    minutes=25,
    source="Lemma 10, p. 24",
    text="""
        S [N, N] holds the target κ^P of each query and key, Ŝ RACE's estimate of it with L tables of P planes. Let
        s_min be the smallest row sum of S, and C1 = s_min/N. The lemma says: as soon as L ≥ (2/C1²) log(2N²/δ), with
        probability at least 1 - δ no row sum of Ŝ differs from that of S by more than s_min/2.

        Let all N queries be one unit vector, and all N keys another one. The angle between the two is yours to choose.
        Then every entry of S is κ^P, with κ = 1 - angle/π. All entries of Ŝ are one number as well, and whatever the
        planes are,

            ((1 - tanh² β)/2)^P  <  Ŝ  <  ((1 + tanh² β)/2)^P.

        Given are P `planes`, the `sharpness` β, L `tables`, N `tokens` and δ `delta`. Give back an angle in radians at
        which the lemma's condition on L is met, and its conclusion fails all the same: at which the conclusion has a
        probability below 1 - δ. There is a whole interval of such angles. Equal vectors are known to break the lemma
        at small β where P > 1. Here P = 1 comes too.

        The check knows the exact mean of Ŝ, and bounds the probability by Hoeffding's inequality about it.
        """,
    signature="""
def break_lemma10(planes, sharpness, tables, tokens, delta):
    raise NotImplementedError
""",
    hints=(
        "A soft score is never 0, however different two tokens are. Where is the target smaller than any score can be, "
        "and what does so small a target cost in tables?",
        "The conclusion fails for every draw where ((1 - tanh² β)/2)^P exceeds 3/2 of the target κ^P. The lemma is "
        "silent where κ^P = C1 is too small for L. So take the smallest C1 of which it still speaks.",
        "C1 = √(2 log(2N²/δ)/L), then κ = C1^(1/P), then angle = π (1 - κ). Mind the power: κ^P is C1, not κ.",
    ),
    cases=_cases_of_lemma10,
    judge=_judge_lemma10,
    returns=("angle",),
)

FAR, NEAR, LONGEST = 0.01, 0.9, 1e9


def _cases_of_alike(draw: Draw) -> Iterator[Arguments]:
    for low, high in ((0.5, 3.0), (10.0, 20.0)):
        L, P = draw.sizes(2, 1, 4)
        K = L * P + draw.integer(2, 6)
        yield {"planes": draw.normal(L, P, K), "sharpness": draw.uniform(low=low, high=high).item()}


def _judge_alike(answer: Any, case: Arguments) -> str:
    planes, sharpness = case["planes"], case["sharpness"]
    L, P, K = planes.shape
    q, k = answer
    pair = np.stack([_real(q, K), _real(k, K)])
    if np.abs(pair).max() > LONGEST:
        return f"No number in q and k may be beyond {LONGEST:g}, got {np.abs(pair).max():g}."
    unit = reference.unit(pair)
    if not unit.any(axis=1).all():
        return "A token of zeros has no direction, and so no angle to another one."
    target = float(reference.kappa(unit[0] @ unit[1])) ** P
    if target >= FAR:
        return f"κ^P = {target:.4g} must be below {FAR}: these tokens are not opposite enough."
    phi = reference.features(pair[None, :, None], planes, sharpness)[0, :, 0]
    score, most = float((phi[0] * phi[1]).sum() / L), ((1 + np.tanh(sharpness) ** 2) / 2) ** P
    if score > NEAR * most:
        return ""
    low = f"Ŝ = {score:.4g} must be above {NEAR * most:.4g}."
    projection = np.einsum("nk,lpk->nlp", pair, planes)
    crossed = int((projection[0] * projection[1] < 0).sum())
    if np.all(np.abs(projection) < 1e-9 * np.linalg.norm(pair, axis=1)[:, None, None]):
        return f"{low} No plane sees these tokens: all projections are 0, and all buckets get the same share."
    if crossed:
        return f"{low} They are on different sides of {crossed} of the {L * P} planes."
    seen = np.abs(np.tanh(projection)).min()
    return (
        f"{low} They are on the same side of every plane, but not far from it: the smallest |tanh(w·x)| is {seen:.2g}."
    )


hash_alike = Exercise(
    id="race.hash_alike",
    title="Find opposite tokens that hash alike",
    level=3,
    minutes=25,
    source="Theorem 2, p. 8; Algorithm 1, p. 5",
    text="""
        The planes are drawn once, and stay. Theorem 2 speaks of tokens that do not know the draw. Find two that do: a
        query q and a key k, both [K], such that

        - they are nearly opposite: κ(q, k)^P < 0.01, with κ = 1 - angle/π;
        - RACE takes them for the same: Ŝ > 0.9 ((1 + tanh² β)/2)^P, nine tenths of what no score exceeds.

        `planes` is [L, P, K], with fewer planes in all than a token has numbers: L P < K. β is `sharpness`. As in
        Algorithm 1, tokens may have any length, but no number in them beyond 10^9. The score is the mean over tables

            Ŝ = 1/L Σ_l Π_t (1 + a_lt(q) a_lt(k))/2,     a_lt(x) = tanh(β tanh(w_lt·x)),     w_lt = planes[l, t].

        Give back q and k.
        """,
    signature="""
def hash_alike(planes, sharpness):
    raise NotImplementedError
""",
    hints=(
        "A table sees a token only through its projections w·x. All L P of them together are fewer than K numbers. "
        "What can you change in a token without changing any of them?",
        "Build q = s + n and k = s - n. The part s decides all projections: let them be large, and the same for both. "
        "The part n is at right angles to every w, and much longer than s, so that the two point in opposite "
        "directions.",
        "With `rows = planes.reshape(L * P, K)`: `np.linalg.pinv(rows) @ np.full(L * P, 5.0)` is an s with all "
        "projections 5, and `np.linalg.svd(rows)[2][-1]` a unit n. Do not make q and k unit vectors at the end: that "
        "shrinks s, and no projection would be large.",
    ),
    cases=_cases_of_alike,
    judge=_judge_alike,
    returns=("q", "k"),
)

EXERCISES = (features, attend, causal, tables_needed, break_lemma10, hash_alike)
