"""Exercises on low-rank key-value attention (LRKV), arXiv:2601.11471v3: count, read, merge, turn, compare."""

from typing import Any

import numpy as np

from attnlab.arrays import Array
from attnlab.exercises.exercise import Arguments, Draw, Exercise
from attnlab.lrkv import accounting, diversity, reference, rotary
from attnlab.lrkv.params import Rope, rope

__all__ = [
    "EXERCISES",
    "count_cache",
    "factored_logits",
    "head_ranks",
    "leaning_factor",
    "merge_parts",
    "passing_factor",
    "rotate",
]

PASSES = 1e-9  # of a unit vector; rounding takes out about 1e-15
NO_ROW = 1e-3  # a row this short beside the longest one counts as 0
INDEPENDENT = 1e-6  # the least singular value beside the largest one, of columns of length 1
ANGLE_RAD = 1e-6  # how near a found angle must be
PLACES = np.array([1.0, 2.0, 7.5, 1000.0])  # one position decides, and more do no harm


# -- count --


def _cases_of_count_cache(draw: Draw) -> list[Arguments]:
    cases = []
    for rank, rope_width in ((draw.integer(3, 60), draw.integer(8, 32)), (55, 64), (0, 0)):
        groups, shared_by, width, latent_width = draw.sizes(4, 2, 9)  # heads of a group are never as many as groups
        cases.append({
            "heads": groups * shared_by, "head_width": 16 * width, "groups": groups, "rank": rank,
            "latent_width": 64 * latent_width, "rope_width": rope_width,
        })  # fmt: skip
    return cases


def _counted(groups: int, **sizes: Any) -> tuple[int, ...]:
    shared = {"gqa": groups}  # by the others one, or none
    return tuple(accounting.elements(name, groups=shared.get(name, 1), **sizes) for name in accounting.SCHEMES)


count_cache = Exercise(
    id="lrkv.count_cache",
    title="Count the cache",
    level=1,
    minutes=10,
    source="Eqs. 4-5, p. 3; Eq. 9, p. 4",
    text="""
        A decoder keeps something of each token, in each layer. Count the numbers that one token leaves in one layer,
        for five schemes with `heads` query heads, each of width `head_width`:

        - **MHA**: each head has a key and a value of its own.
        - **GQA**: there are `groups` keys and as many values, and heads / groups neighbouring heads share one of each.
        - **MQA**: all heads share one key and one value.
        - **MLA**: one latent of `latent_width` numbers, from which the keys and the values of all heads are made, and
          one part of a key, `rope_width` numbers that turn with position, for all heads.
        - **LRKV**: all heads share one key and one value. Beside these, each head has `rank` latents for its key and
          `rank` for its value. Weights, one for all tokens, take latents to the width of a head.

        Give back five whole numbers: (mha, gqa, mqa, mla, lrkv).
        """,
    signature="""
def count_cache(heads, head_width, groups, rank, latent_width, rope_width):
    raise NotImplementedError
""",
    hints=(
        "Ask of every array in the cache whether it has an axis of heads, an axis of groups, or neither.",
        "A key and a value of every head: 2 * heads * head_width. GQA and MQA put another number in place of `heads`. "
        "MLA makes keys and values from the same numbers, so that nothing in it is there twice.",
        "LRKV keeps K_s and V_s, head_width numbers each and once for all heads, and R_h for the keys and for the "
        "values, rank numbers each and once a head. B_h is a weight: no token adds to it.",
    ),
    cases=_cases_of_count_cache,
    expected=_counted,
    returns=accounting.SCHEMES,
)


# -- read and merge --


def _cases_of_factored_logits(draw: Draw) -> list[Arguments]:
    cases = []
    for queries, rank in ((None, None), (1, None), (None, 0)):  # any sizes; one decode step; rank 0, which is MQA
        T, S, H, K, R = draw.sizes(5, 2, 8)
        T, R = T if queries is None else queries, R if rank is None else rank
        drawn = {"q": (T, H, K), "k_shared": (S, K), "k_latent": (S, H, R), "k_factor": (H, K, R)}
        cases.append({name: draw.normal(*shape) for name, shape in drawn.items()})
    return cases


def _factored_logits(q: Array, k_shared: Array, k_latent: Array, k_factor: Array) -> tuple[Array, Array]:
    one, no_values = (x[None] for x in (q, np.zeros((len(k_shared), 1, 1))))
    run = reference.trace(one, k_shared[None, :, None], no_values, k_latent[None], None, k_factor, causal=False)
    return np.einsum("thk,hkr->thr", q, k_factor), (run.shared_logits + run.residual_logits)[0]


factored_logits = Exercise(
    id="lrkv.factored_logits",
    title="Score without making a key",
    level=2,
    minutes=15,
    source="Eq. 6, p. 4",
    text="""
        The key of head h at token s is K_h[s] = K_s[s] + B_h R_h[s]: a shared key `k_shared` [S, K], and the latents
        `k_latent` [S, H, R] of this head, taken to the width of a head by `k_factor` [H, K, R]. Nothing turns here.

        Queries `q` are [T, H, K]. Give back two arrays:

        - projected [T, H, R]: each query in the latents' coordinates, which is made once a query;
        - logits [H, T, S]: query times key for all T S pairs of each head, times 1/√K, before mask and softmax.

        Do not make the keys: that would be H S K numbers. The check compares numbers and cannot see how you came to
        them; `projected` is all you need.
        """,
    signature="""
def factored_logits(q, k_shared, k_latent, k_factor):
    raise NotImplementedError
""",
    hints=(
        "q · (k + B z) = q · k + (Bᵀq) · z. On the right, B meets the query and not the keys.",
        "Three einsums: q with k_factor over K, q with k_shared over K, projected with k_latent over R. The axis of "
        "heads runs along in each, and is never summed.",
        "`projected = np.einsum('thk,hkr->thr', q, k_factor)`. The logits are `np.einsum('thk,sk->hts', q, k_shared)` "
        "plus `np.einsum('thr,shr->hts', projected, k_latent)`, both over √K: the latents stand for a key of width K.",
    ),
    cases=_cases_of_factored_logits,
    expected=_factored_logits,
    returns=("projected", "logits"),
)


def _cases_of_merge_parts(draw: Draw) -> list[Arguments]:
    cases = []
    for empty, larger in (([], 0.0), ([1], 800.0), (slice(None), 0.0)):
        P, H, V, R = draw.sizes(4, 2, 7)
        drawn = {"lse": (P, H), "shared": (P, H, V), "latent": (P, H, R), "factor": (H, V, R)}
        case = {name: draw.normal(*shape) for name, shape in drawn.items()}
        case["lse"] = 2 * case["lse"] + larger
        case["lse"][empty], case["shared"][empty], case["latent"][empty] = -np.inf, 0.0, 0.0
        cases.append(case)
    return cases


def _merged(lse: Array, shared: Array, latent: Array, factor: Array) -> Array:
    """Attention over parts: a part is read like a token whose logit is its lse."""
    parts = lse[None, ..., None], shared[None], None, latent[None], None, factor
    return reference.attention(np.ones((1, 1, lse.shape[1], 1)), *parts, scale=1.0, causal=False)[0, 0]


merge_parts = Exercise(
    id="lrkv.merge_parts",
    title="Merge a cache that was read in parts",
    level=2,
    minutes=15,
    source="Eq. 7, p. 4; the merge: this project",
    text="""
        A long cache is read in P parts, by programs that know nothing of each other. For one query, each part takes the
        softmax over its own tokens alone, a, and reports for every head

        - `lse` [P, H]: the logarithm of that softmax's denominator, log Σ exp(logit);
        - `shared` [P, H, V]: a V_s, the shared values under these weights;
        - `latent` [P, H, R]: a R_h, the latents of the values under these weights.

        Make of it what the whole cache would have given, o_h = a V_s + B_h (a R_h) with a over all tokens: out [H, V].
        `factor` [H, V, R] holds the B_h.

        A part without tokens reports -inf and zeros. Where no part has a token, out is 0. Logits can be so large that
        exp(lse) overflows.
        """,
    signature="""
def merge_parts(lse, shared, latent, factor):
    raise NotImplementedError
""",
    hints=(
        "In the whole softmax the tokens of part p have the share exp(lse_p) / Σ exp(lse) together, and among "
        "themselves the weights that the part gave them. So a part is one token whose logit is its lse.",
        "One softmax along the axis of parts gives weights [P, H]. The same weights merge `shared` and `latent`; B_h "
        "comes last, and once. Before exp, subtract the largest lse of each head.",
        "Where all parts are empty the largest lse is -inf, and -inf - (-inf) is NaN: put 0 in its place. Then all "
        "weights are 0, and so is their sum: divide by 1 there.",
    ),
    cases=_cases_of_merge_parts,
    expected=_merged,
)


# -- turn --


def _cases_of_rotate(draw: Draw) -> list[Arguments]:
    cases = []
    for theta, scale in ((10_000.0, 1.0), (500.0, -1.0), (1e6, 211.0)):
        S, H, planes = draw.sizes(3, 4, 7)  # K = 2 planes is none of these
        positions = scale * (1.0 + draw.shuffled(S)) + draw.uniform(S, high=0.5)
        cases.append({"x": draw.normal(S, H, 2 * planes), "positions": positions, "theta": theta})
    return cases


rotate = Exercise(
    id="lrkv.rotate",
    title="Turn a key by its position",
    level=1,
    minutes=10,
    source="Sec. 3, p. 4; RoPE: arXiv:2104.09864, Eq. 15",
    text="""
        RoPE turns keys and queries by their position before they meet. The K numbers of a head are K/2 planes, and at
        position t plane i turns by t θ^(-2i/K) radians, i = 0 ... K/2 - 1.

        Here the layout is half-split: plane i holds the coordinates i and i + K/2. A turn by α takes the two numbers
        (a, b) of a plane to (a cos α - b sin α, a sin α + b cos α).

        Turn `x` [S, H, K], whose rows stand at `positions` [S], with θ = `theta`; give back out [S, H, K]. All heads
        turn alike. Positions come in any order, and need be neither whole nor positive.
        """,
    signature="""
def rotate(x, positions, theta):
    raise NotImplementedError
""",
    hints=(
        "Cut the last axis in two halves: a is the first half of each row, b the second one, and a[..., i] and "
        "b[..., i] are plane i.",
        "The angles are [S, K/2]: `positions[:, None] * theta ** (-2 * np.arange(K // 2) / K)`. Give them an axis of "
        "length 1 for the heads, [S, 1, K/2].",
        "`np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)`. If you write into a copy instead, keep the "
        "old a: the second line needs it as it was.",
    ),
    cases=_cases_of_rotate,
    expected=lambda x, positions, theta: reference.turn(x[None], rope(x.shape[-1], theta=theta), positions)[0],
)


def _refused(answer: Any, K: int, rank: int) -> str:
    """Why this is no factor [K, rank] of independent columns, or ""."""
    factor = np.asarray(answer)
    if factor.dtype.kind not in "iuf":
        return f"factor must hold real numbers, got {factor.dtype}."
    if factor.shape != (K, rank):
        return f"factor must have shape [{K}, {rank}], got {list(factor.shape)}."
    if not np.isfinite(factor).all():
        return "factor must hold finite numbers, got NaN or inf."
    values = np.linalg.svd(_columns(factor), compute_uv=False)
    if not values[-1] > INDEPENDENT * values[0]:
        return "The columns must be independent: with these, other latents give the same key."
    return ""


def _columns(factor: Array) -> Array:
    """Columns of length 1, whatever their size; those of 0 stay."""
    for size in (lambda x: np.abs(x).max(axis=0), lambda x: np.linalg.norm(x, axis=0)):  # no square overflows
        length = size(factor)
        factor = factor / np.where(length > 0, length, 1.0)
    return factor


def _cases_of_passing_factor(draw: Draw) -> list[Arguments]:
    planes, half = draw.integer(4, 6), draw.integer(1, 3)
    cases = [{"frequency": rope(2 * planes).frequency, "rank": 2 * half, "every_row": False}]
    for kinds in (2, 3):
        often = draw.sizes(kinds, 2, 4)  # on how many planes each frequency comes
        tied = np.repeat(rope(2 * kinds, theta=draw.uniform(low=100.0, high=1e4).item()).frequency, often)
        cases.append({"frequency": tied[draw.shuffled(len(tied))], "rank": 2 * kinds, "every_row": True})
    return cases


def _judge_passing(answer: Any, arguments: Arguments) -> str:
    frequency = arguments["frequency"]
    n = len(frequency)
    refused = _refused(answer, 2 * n, arguments["rank"])
    if refused:
        return refused
    factor = _columns(np.asarray(answer))
    lengths = np.linalg.norm(factor, axis=1)
    short = np.flatnonzero(lengths < NO_ROW * lengths.max())
    if arguments["every_row"] and len(short):
        return f"No row may be 0 here, got 0 in rows {', '.join(map(str, short))}: their coordinates take no part."
    leaves = rotary.escape(factor, Rope(frequency), PLACES)
    if leaves.max() <= PASSES:
        return ""
    worst = leaves.argmax()
    text = f"At position {PLACES[worst]:g} the rotation takes {leaves[worst]:.3g} of some unit vector out of its span."
    if rotary.escape(factor, Rope(frequency, "interleaved"), PLACES).max() <= PASSES:
        return f"{text} It passes in the interleaved layout; here plane i holds the coordinates i and i + K/2."
    return f"{text} {_why_it_leaves(rotary.orthonormal(factor), frequency)}"


def _why_it_leaves(basis: Array, frequency: Array) -> str:
    """Which half of the condition fails: a space passes exactly if it holds, of each of its vectors, the part in the
    planes of each frequency alone, and a quarter turn of that part.
    """
    n = len(frequency)
    for value in np.unique(frequency):
        alone = np.where(np.tile(frequency == value, 2)[:, None], basis, 0.0)
        if np.abs(alone - basis @ (basis.T @ alone)).max() > PASSES:
            return (
                f"It mixes frequencies: a vector of it, cut down to the planes that turn by {value:.4g}, is not in it. "
                "What turns at different speeds does not stay together."
            )
        turned = np.concatenate([-alone[n:], alone[:n]])
        if np.abs(turned - basis @ (basis.T @ turned)).max() > PASSES:
            many = int((frequency == value).sum())
            whose = f"the {many} planes that turn by" if many > 1 else "the plane that turns by"
            return f"A quarter turn of {whose} {value:.4g} leaves it: beside (x, y) it must hold (-y, x) there."
    return "It is nearly one that passes, but not to rounding."


passing_factor = Exercise(
    id="lrkv.passing_factor",
    title="Find a factor that a rotation passes through",
    level=3,
    minutes=25,
    source="claim: Sec. 3, p. 4; when it holds: this project",
    text="""
        The cache holds latents z, and a head's own part of a key is B z. RoPE turns it to P_t B z. To turn latents in
        its place there must be some P̃_t with P_t B = B P̃_t at every position t. That is so exactly where every column
        of P_t B lies in the span of the columns of B.

        At position t plane i turns by t frequency[i] radians, `frequency` [planes]; K is twice the number of planes,
        and plane i holds the coordinates i and i + K/2. Find a factor B [K, `rank`] with independent columns that every
        rotation passes through.

        Where `every_row` is False, all frequencies are different. Where it is True, some come several times, equal to
        the last bit and in any order, and `rank` is twice the number of different ones. There the residual has to reach
        all coordinates: no row of B may be 0.

        Many answers are right. (For the check columns are made as long as 1. Then a row counts as 0 if it is shorter
        than a thousandth of the longest one, and 1e-9 of a unit vector may leave the span.)
        """,
    signature="""
def passing_factor(frequency, rank, every_row):
    raise NotImplementedError
""",
    hints=(
        "A rotation mixes only the two coordinates of a plane. Which spaces can it then not leave? Half a plane is "
        "left at once. For planes that turn alike, think of each plane as one complex number.",
        "Different frequencies: rank / 2 whole planes, two columns of the identity for each. Equal ones: all planes of "
        "one frequency may follow one complex latent, because e^(iα) w z = w (e^(iα) z) for every weight w.",
        "`np.unique(frequency, return_inverse=True)` numbers the frequencies. Plane p with number c gets two ones: in "
        "row p, column c, and in row p + K/2, column c + rank / 2. Without ties, c = p, as far as there are columns.",
    ),
    cases=_cases_of_passing_factor,
    judge=_judge_passing,
    returns=("factor",),
)


def _cases_of_leaning_factor(draw: Draw) -> list[Arguments]:
    cases = []
    for tied in (False, True):
        frequency = rope(2 * draw.integer(3, 6), theta=draw.uniform(low=100.0, high=1e4).item()).frequency
        frequency = np.append(frequency[0], frequency) if tied else frequency  # the first two planes turn alike
        position = float(draw.integer(2, 40))
        most = np.abs(np.sin((frequency[:, None] - frequency) * position / 2)).max()
        angle = np.arcsin(draw.uniform(low=0.3, high=0.85).item() * most).item()
        cases.append({"frequency": frequency, "position": position, "angle_rad": angle})
    return cases


def _between(factor: Array, turning: Rope, position: float) -> float:
    """The largest angle between a span and itself turned."""
    moved = rotary.rotation(turning, len(factor), position) @ factor
    return rotary.principal_angles(moved, factor)[-1].item()


def _judge_leaning(answer: Any, arguments: Arguments) -> str:
    frequency, position, wanted = (arguments[name] for name in ("frequency", "position", "angle_rad"))
    n = len(frequency)
    refused = _refused(answer, 2 * n, 2)
    if "NaN" in refused:
        return f"{refused} The arcsine of a number above 1? Then these two planes turn too much alike; take others."
    if refused:
        return refused
    factor = _columns(np.asarray(answer))
    got = _between(factor, Rope(frequency), position)
    if abs(got - wanted) <= ANGLE_RAD:
        return ""
    text = (
        f"At position {position:g} the angle between its span and the turned span is {got:.6g}, must be {wanted:.6g}."
    )
    if got <= ANGLE_RAD:
        return f"{text} Nothing leaves it: it holds whole planes, or leans between planes of one frequency."
    if abs(_between(factor, Rope(frequency, "interleaved"), position) - wanted) <= ANGLE_RAD:
        return f"{text} It is right in the interleaved layout; here plane i holds the coordinates i and i + K/2."
    for plane in range(n):
        other = factor.copy()
        other[n + plane] *= -1
        if abs(_between(other, Rope(frequency), position) - wanted) <= ANGLE_RAD:
            return f"{text} It is right with plane {plane} run through the other way round: check a sign."
    return text + _about_the_lean(rotary.orthonormal(factor), frequency, position, wanted)


def _about_the_lean(basis: Array, frequency: Array, position: float, wanted: float) -> str:
    """What the lean between the two planes that hold most says of a usual mistake."""
    n = len(frequency)
    shares = (basis**2).sum(axis=1).reshape(2, n).sum(axis=0) / 2
    i, j = np.argsort(-shares, kind="stable")[:2].tolist()
    lean = np.arctan2(np.sqrt(shares[j]), np.sqrt(shares[i])).item()
    for one in (lean, np.pi / 2 - lean):
        if abs(one - wanted) <= ANGLE_RAD:
            return f" Planes {i} and {j} lean by {one:.6g}: the lean is not the angle that leaves."
        halved = rotary.mixed_factor(2 * n, i, j, one / 2)
        if abs(_between(halved, Rope(frequency), position) - wanted) <= ANGLE_RAD:
            return f" Planes {i} and {j} lean by {one:.6g}: half of it would be right."
    return ""


leaning_factor = Exercise(
    id="lrkv.leaning_factor",
    title="Find a factor that leaves its span, by a given angle",
    level=3,
    minutes=25,
    source="claim: Sec. 3, p. 4; the law: this project",
    text="""
        A factor that is nearly a plane is not good enough. Find out how fast that goes wrong: construct one that leaves
        its own span by as much as is asked for.

        At position t plane i turns by t frequency[i] radians, `frequency` [planes]; K is twice the number of planes,
        and plane i holds the coordinates i and i + K/2; P_t is all of that. Find B [K, 2], with independent columns,
        such that at the position `position` the largest angle between the span of P_t B and the span of B is
        `angle_rad`, to 1e-6. It lies strictly between 0 and π/2. (Its sine is the largest singular value of
        (I - Q Qᵀ) P_t Q, for an orthonormal basis Q of the span.)

        Two planes suffice, but not any two: some turn alike. Many answers are right.
        """,
    signature="""
def leaning_factor(frequency, position, angle_rad):
    raise NotImplementedError
""",
    hints=(
        "Let plane i lean towards plane j by φ: column 1 is cos φ in the first coordinate of plane i and sin φ in the "
        "first of plane j, column 2 the same in the second coordinates. What leaves at φ = 0, and what at φ = 45°?",
        "Its sine is |sin 2φ| |sin((θ_i - θ_j) t/2)|. The second factor is the most that two planes can do: take the "
        "pair for which it is largest.",
        "φ = arcsin(sin(angle_rad) / |sin((θ_i - θ_j) t/2)|) / 2. The rows of B that are not 0 are i, j (column 0) and "
        "i + K/2, j + K/2 (column 1), with cos φ and sin φ in both.",
    ),
    cases=_cases_of_leaning_factor,
    judge=_judge_leaning,
    returns=("factor",),
)


# -- compare --


def _cases_of_head_ranks(draw: Draw) -> list[Arguments]:
    H, width, K = draw.sizes(3, 3, 7)
    sizes = 4.0 ** np.arange(H)[:, None, None]  # heads of different size
    cases = [{"wq": sizes * draw.normal(H, width, K), "wk": draw.normal(H, width, K)}]
    H, width, K = draw.sizes(3, 3, 7)
    cases.append({"wq": draw.normal(H, width, K), "wk": np.tile(draw.normal(1, width, K), (H, 1, 1))})  # MQA
    H, K = draw.sizes(2, 2, 5)
    own = np.zeros((H, H * K + 1, K))
    for h in range(H):  # each head reads coordinates of its own: all at right angles
        own[h, h * K : (h + 1) * K] = np.eye(K)
    cases.append({"wq": own * draw.uniform(H, 1, 1, low=0.5, high=2.0), "wk": own})
    return cases


def _head_ranks(wq: Array, wk: Array) -> tuple[Array, float, int]:
    centred = diversity.centred(diversity.gram(wq, wk))
    return centred, diversity.effective_rank(centred), diversity.ceiling(len(wq))


head_ranks = Exercise(
    id="lrkv.head_ranks",
    title="How many heads are these worth?",
    level=2,
    minutes=20,
    source="Sec. 4.3, pp. 7-9; App. C.1, p. 15",
    text="""
        A head scores token x_i against x_j by x_i A_h x_jᵀ, with A_h = W_h^Q (W_h^K)ᵀ. `wq` and `wk` are
        [H, width, K]. The paper measures how different heads are by these A_h:

        - G [H, H] holds their cosines, ⟨A_g, A_h⟩ / (‖A_g‖ ‖A_h‖), where ⟨A, B⟩ is the sum of the products of their
          entries, and ‖A‖² = ⟨A, A⟩.
        - Centred, it is J G J, with J = I - 1 1ᵀ/H.
        - The eigenvalues λ_i of the centred matrix have shares p_i = λ_i / Σ λ. The effective rank is
          exp(-Σ p_i ln p_i), in which an eigenvalue of 0 counts nothing.

        Give back three things: centred [H, H]; rank, the effective rank of it; and ceiling, a whole number: the most
        that this rank can be for any H heads.
        """,
    signature="""
def head_ranks(wq, wk):
    raise NotImplementedError
""",
    hints=(
        "Make the operators, [H, width, width], lay each out as one row of width² numbers, and divide the row by its "
        "length. G is these rows times themselves.",
        "J G J takes the mean of each column away and then the mean of each row. `np.linalg.eigvalsh` has the "
        "eigenvalues. What does J G J do to the vector (1, ..., 1)? That is one direction less.",
        "The eigenvalue that must be 0 comes out as some ±1e-17, and the logarithm of a negative share is NaN: keep "
        "only those above, say, 1e-12 of the largest. The ceiling is H - 1.",
    ),
    cases=_cases_of_head_ranks,
    expected=_head_ranks,
    returns=("centred", "rank", "ceiling"),
)

EXERCISES = (count_cache, factored_logits, merge_parts, rotate, passing_factor, leaning_factor, head_ranks)
