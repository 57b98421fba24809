"""Exercises on HashAttention, arXiv:2412.14468v2."""

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from attnlab.exercises.exercise import Arguments, Draw, Exercise, apart
from attnlab.hashattention import reference, selectors

__all__ = ["EXERCISES", "attend", "bytes_read", "lift", "pack", "score", "select"]


# -- codes --


def _cases_of_pack(draw: Draw) -> Iterator[Arguments]:
    for b in (64, draw.integer(33, 63), draw.integer(10, 31)):
        T = draw.integer(4, 9)
        yield {"features": draw.normal(T, b) * (draw.uniform(T, b) > 0.2)}  # some are 0.0, some -0.0


def _judge_pack(words: Any, arguments: Arguments) -> str:
    wrong = apart(words, reference.pack(arguments["features"]), pack.returns)
    if wrong or np.asarray(words).dtype == np.uint32:
        return wrong
    return f"The values are right, but words must be uint32, got {np.asarray(words).dtype}."


pack = Exercise(
    id="hashattention.pack",
    title="Pack the bits",
    level=1,
    minutes=10,
    source="Eq. 1, p. 4; the order of bits is this project's",
    text="""
        A learned map makes b numbers of a token, and their signs are its code: bit i is 1 where number i is above 0,
        and 0 where it is below 0 or is 0 (0.0 and -0.0 alike).

        A code is kept in words of 32 bits, W = ⌈b/32⌉ of them. Place i of word w, counted from the least significant,
        is bit 32 w + i. So the first three numbers alone positive make the word 7. Places beyond b are 0.

        Write `pack`: `features` is [T, b], the words are uint32 [T, W].
        """,
    signature='''
def pack(features):
    """words, uint32 [T, W], of features [T, b]"""
    raise NotImplementedError
''',
    hints=(
        "`features > 0` are the bits. Put them into zeros of shape [T, 32 W], so that the last word is full, too.",
        "Make that [T, W, 32]. In a word, bit i counts 2^i, and a word is the sum over its 32 bits.",
        "`(bits << np.arange(32, dtype=np.uint32)).sum(axis=-1, dtype=np.uint32)`, the bits themselves uint32 too. "
        "Without the last dtype NumPy sums uint32 into uint64.",
    ),
    cases=_cases_of_pack,
    judge=_judge_pack,
    returns=("words",),
)


def _words(draw: Draw, *shape: int) -> np.ndarray:
    return np.floor(2.0**32 * draw.uniform(*shape)).astype(np.uint32)


def _cases_of_score(draw: Draw) -> Iterator[Arguments]:
    for T, S, W in (draw.sizes(3, 2, 9), (*draw.sizes(2, 3, 9), 1), (draw.integer(3, 9), 0, 2)):
        query_codes, key_codes = _words(draw, T, W), _words(draw, S, W)
        key_codes[:1], key_codes[1:2] = query_codes[:1], ~query_codes[1:2]  # no bit differs, every bit differs
        yield {"query_codes": query_codes, "key_codes": key_codes}


score = Exercise(
    id="hashattention.score",
    title="Score words, bit by bit, without unpacking them",
    level=1,
    minutes=10,
    source="Eq. 2, p. 4",
    text="""
        The score of a key is minus the number of bits in which its code differs from the query's: the popcount of an
        XOR, with a minus before it. All W words of a code count. A score is a whole number from -32 W to 0.

        Score every key for every query: `query_codes` is uint32 [T, W], `key_codes` is uint32 [S, W], and the score
        [T, S]. S may be 0: nothing is cached yet.
        """,
    signature='''
def score(query_codes, key_codes):
    """score [T, S], whole numbers, of words [T, W] and [S, W]"""
    raise NotImplementedError
''',
    hints=(
        "XOR has a 1 wherever two words differ, and `np.bitwise_count` counts the ones of each word.",
        "`query_codes[:, None] ^ key_codes` is [T, S, W]. Count, then sum over the last axis.",
        "Counts are uint8, and their sum is unsigned as well: there is no minus in them, and -3 becomes a huge number. "
        "Say `sum(axis=-1, dtype=np.int64)` before you put the minus.",
    ),
    cases=_cases_of_score,
    expected=lambda query_codes, key_codes: -reference.hamming(query_codes, key_codes[None]),
    returns=("score",),
)


# -- the set --


def _cases_of_select(draw: Draw) -> Iterator[Arguments]:
    long, short = draw.integer(60, 90), draw.integer(14, 20)
    sizes = (
        (draw.integer(6, 12), long, draw.integer(12, 20), draw.integer(2, 4), draw.integer(5, 8)),
        (short - 2, short, 4, 3, 5),  # the first queries see fewer keys than the two windows hold
        (draw.integer(6, 12), long, draw.integer(5, 9), 0, 0),
        (5, short, 100, 2, 1),
    )
    for T, S, budget, sinks, window in sizes:
        few = -np.floor(5.0 * draw.uniform(T, S)).astype(np.int64)  # five different scores: many ties
        yield {"score": few, "budget": budget, "sinks": sinks, "window": window}


def _chosen(score: np.ndarray, budget: int, sinks: int, window: int) -> np.ndarray:
    T, S = score.shape
    chosen = np.zeros((T, S), bool)
    for t in range(T):
        n = reference.visible(t, T, S, causal=True)
        chosen[t, reference.selected(-score[t, :n], budget, sinks, window)] = True
    return chosen


def _judge_select(answer: Any, arguments: Arguments) -> str:
    wanted = _chosen(**arguments)
    wrong = apart(answer, wanted, select.returns)
    if not wrong or np.shape(answer) != wanted.shape:
        return wrong
    came = np.asarray(answer) == 1
    differ = np.flatnonzero((came != wanted).any(axis=1))
    return f"{wrong} {_why(int(differ[0]), came, wanted, **arguments)}" if len(differ) else wrong


def _why(t: int, came: np.ndarray, wanted: np.ndarray, score: np.ndarray, budget: int, sinks: int, window: int) -> str:
    """What is wrong with the set of query t, the first thing that is."""
    T, S = score.shape
    n, index = reference.visible(t, T, S, causal=True), np.arange(S)
    fixed = (index < n) & ((index < sinks) | (index >= n - window))
    more, right = came[t] & ~fixed, wanted[t] & ~fixed
    if came[t, n:].any():
        return f"Query {t} sees {n} keys, 0 to {n - 1}, and reads a later one."
    if not came[t, fixed].all():
        return f"Query {t} does not read all of its first and newest keys."
    if more.sum() != right.sum():
        return f"Beside its first and newest keys query {t} reads {more.sum()}, and it must be {right.sum()}."
    if sorted(score[t, more]) != sorted(score[t, right]):
        return f"Query {t} reads as many keys as it must, but others have better scores."
    return f"The scores of what query {t} reads are right. Among equals it is the lower index that is read."


select = Exercise(
    id="hashattention.select",
    title="Choose the set, ties and all",
    level=2,
    minutes=20,
    source="Sec. 4, p. 4, and the protocol, pp. 5–7; ties are this project's",
    text="""
        A query reads a set of keys: the first `sinks`, the newest `window`, and `budget` of the rest, those with the
        largest scores. Query t of T stands at key S - T + t. It sees the n keys up to that one, itself included, and
        none after it; its newest keys are the last of these n.

        - No token is twice in a set, so where n is small and the two windows overlap, the set is smaller.
        - The budget pays for the rest alone. Sinks and window cost nothing of it.
        - Scores are whole numbers from a small range, so ties are common. The lower index wins: everybody who computes
          the set must find the same one.
        - `sinks`, `window` and `budget` may be 0, and may be more than there is.

        `score` is int64 [T, S]; `chosen`, what is read, is [T, S], True and False.
        """,
    signature='''
def select(score, budget, sinks, window):
    """chosen, bool [T, S], by score [T, S]"""
    raise NotImplementedError
''',
    hints=(
        "Go query by query. Mark the fixed tokens first; then sort only those that are visible and not yet marked.",
        "With `index = np.arange(n)` the fixed ones are `(index < sinks) | (index >= n - window)`, for any sizes. "
        "`np.flatnonzero(~fixed)` are the others, in rising order.",
        "`rest[np.argsort(-score[t, rest], kind='stable')[:budget]]`: stable keeps equals in the order of their "
        "indices. The default sort does not, once there are more than 16 of them, and argpartition never promises it.",
    ),
    cases=_cases_of_select,
    judge=_judge_select,
    returns=("chosen",),
)


# -- attention --


def _cases_of_attend(draw: Draw) -> Iterator[Arguments]:
    K, V, m, S = *draw.sizes(3, 3, 6), draw.integer(12, 16)
    between = 1 + draw.shuffled(S - 2)
    nearest = np.concatenate([between[: m - 2], [S - 1, 0]])  # the newest token and a sink are named again
    yield _call(draw, K, S, V) | {"nearest": nearest, "sinks": 2, "window": 3}
    few = draw.integer(7, 9)  # all are read, most of them are named twice
    yield _call(draw, V, few, K) | {"nearest": draw.shuffled(few)[:2], "sinks": few - 3, "window": S}
    far = _call(draw, K, S, V)
    far["k"][:-4] -= 900.0 * np.sqrt(K) / (far["q"] @ far["q"]) * far["q"]  # logits 900 below those of the newest four
    yield far | {"nearest": draw.shuffled(S - 4)[:m], "sinks": 1, "window": 0}
    yield _call(draw, K, S, V) | {"nearest": np.zeros(0, np.int64), "sinks": 0, "window": 0}


def _call(draw: Draw, K: int, S: int, V: int) -> Arguments:
    return {"q": draw.normal(K), "k": draw.normal(S, K), "v": draw.normal(S, V)}


def _attended(q: np.ndarray, k: np.ndarray, v: np.ndarray, nearest: np.ndarray, sinks: int, window: int) -> np.ndarray:
    index = np.arange(len(k))
    read = np.union1d(nearest, index[(index < sinks) | (index >= len(k) - window)]).astype(int)
    return reference.gathered(q, k[read], v[read], len(q) ** -0.5)[1]


def _judge_attend(out: Any, arguments: Arguments) -> str:
    wrong = apart(out, _attended(**arguments), attend.returns)
    if "NaN" in wrong:
        return f"{wrong} NaN is 0/0 or inf/inf: subtract the largest logit of the set, not that of all keys."
    return wrong


attend = Exercise(
    id="hashattention.attend",
    title="Attend to the set",
    level=2,
    minutes=15,
    source="Sec. 4, p. 4",
    text="""
        One query, all the S keys that it sees, and what it reads of them: the first `sinks`, the newest `window`, and
        the tokens whose indices stand in `nearest`. Some of these may be among the first or the newest, and those two
        may overlap. A token that is named twice is read once. `sinks`, `window` and m may be 0, or more than there is.

        The output is the softmax over the tokens that are read, and nothing else, times their values. The logits are
        q·k/√K, with the original keys. A query that reads nothing has the output 0.

        `q` is [K], `k` [S, K], `v` [S, V], `nearest` [m] whole numbers, and the output is [V]. In one case of the check
        all logits of the set are about 900 below those of other keys.
        """,
    signature='''
def attend(q, k, v, nearest, sinks, window):
    """out [V] of q [K], k [S, K], v [S, V] and the indices nearest [m]"""
    raise NotImplementedError
''',
    hints=(
        "First make a set of the three lists: a mask over the S tokens cannot hold one twice, nor can `np.union1d`.",
        "Gather the keys and values of the set, and from there on it is ordinary attention over a short sequence: the "
        "weights sum to 1 over the set.",
        "Subtract the largest logit of the set before the exponential. The largest of all keys may be so much larger "
        "that every weight of the set becomes 0, and 0/0 is NaN. An empty set has no largest logit: return zeros.",
    ),
    cases=_cases_of_attend,
    judge=_judge_attend,
)


# -- what it costs --


def _cases_of_bytes_read(draw: Draw) -> Iterator[Arguments]:
    for tokens, budget, sinks, window in (
        (draw.integer(300, 400), draw.integer(20, 40), draw.integer(5, 9), draw.integer(10, 19)),
        (draw.integer(30, 40), draw.integer(20, 25), draw.integer(9, 12), draw.integer(13, 19)),  # fewer than asked for
    ):
        yield {
            "tokens": tokens, "budget": budget, "sinks": sinks, "window": window, "width": 8 * draw.integer(5, 9),
            "bits": draw.integer(33, 60), "element_bytes": 2 ** draw.integer(0, 2), "group": draw.integer(3, 7),
        }  # fmt: skip


def _counted(
    tokens: int, budget: int, sinks: int, window: int, width: int, bits: int, element_bytes: int, group: int
) -> tuple[int, int, int]:
    rows, codes = np.zeros((tokens, width)), reference.pack(np.zeros((tokens, bits)))
    head = selectors.Head(rows[:1], rows, rows, 1.0, codes[:1], codes)
    sizes: Arguments = {"sinks": sinks, "window": window, "element_bytes": element_bytes}
    own, every = (
        int(selectors.measure("hash", head, budget=m, **sizes).bytes_read[0]) - codes.nbytes for m in (budget, tokens)
    )
    return every, group * own + codes.nbytes, every + codes.nbytes


bytes_read = Exercise(
    id="hashattention.bytes_read",
    title="Count the bytes",
    level=1,
    minutes=10,
    source="Secs. 4.4 and 6, pp. 5–9; the count is this project's",
    text="""
        One key/value head holds `tokens` keys and as many values, `width` numbers each, `element_bytes` bytes a number.
        `group` query heads share it. A code has `bits` bits, in whole words of 32, and all these heads use the same
        codes. One token is written, so each query head asks once. Count bytes:

        - *dense*: what dense attention reads, where a key and a value are read once for the whole group;
        - *sparse*: what HashAttention reads. Every code is looked at, once for the group. Then each query head reads
          the keys and values of its own set: the first `sinks`, the newest `window` and `budget` of the rest, no token
          twice in it and no more than there are. Count the sets of two heads as if they had nothing in common;
        - *kept*: what stays in memory with HashAttention.

        For 16,384 tokens, a budget of 1,024, windows of 128 and 128, width 128, 32 bits, 2 bytes and a group of 1 these
        are 8,388,608, 720,896 and 8,454,144.
        """,
    signature='''
def bytes_read(tokens, budget, sinks, window, width, bits, element_bytes, group):
    """dense, sparse, kept: three whole numbers"""
    raise NotImplementedError
''',
    hints=(
        "A token's key and value take 2 · width · element_bytes bytes, its code 4 bytes a word.",
        "A set has min(tokens, sinks + window + budget) tokens. The group is a factor of `sparse` alone, and there of "
        "keys and values alone.",
        "All codes are scanned, however few tokens are read. Nothing is thrown away: `kept` is `dense` and the codes.",
    ),
    cases=_cases_of_bytes_read,
    expected=_counted,
    returns=("dense", "sparse", "kept"),
)


# -- the lift --


def _cases_of_lift(draw: Draw) -> Iterator[Arguments]:
    for width, length, last in (
        (draw.integer(2, 4), draw.uniform(low=0.3, high=0.9).item(), 1.0),
        (draw.integer(5, 7), draw.uniform(low=4.0, high=9.0).item(), 1.0),
        (1, draw.uniform(low=4.0, high=9.0).item(), 1.0),
        (draw.integer(8, 9), draw.uniform(low=20.0, high=40.0).item(), draw.uniform(low=0.2, high=3.0).item()),
    ):
        q = draw.normal(width)
        yield {"q": length * q / np.linalg.norm(q), "last": last}


def _judge_lift(answer: Any, arguments: Arguments) -> str:
    """Decided in fractions of the numbers as they are: the longer key gains nothing, so one root is compared."""
    q, last = arguments["q"], arguments["last"]
    keys = np.asarray(answer)
    if keys.shape != (2, len(q)) or keys.dtype.kind not in "iuf":
        return f"keys must be real numbers of shape [2, {len(q)}], got {keys.dtype} of shape {list(keys.shape)}."
    keys = keys.astype(np.float64)
    if not np.isfinite(keys).all():
        return "keys must be finite numbers."
    exact, asked = [[Fraction(x) for x in row] for row in keys.tolist()], [Fraction(x) for x in q.tolist()]
    far, near = (sum((x * y for x, y in zip(key, asked, strict=True)), Fraction(0)) for key in exact)
    first, second = (sum((x * x for x in key), Fraction(0)) for key in exact)  # |k|^2
    if far < near and (near - far) ** 2 < Fraction(last) ** 2 * (second - first):
        return ""
    with np.errstate(all="ignore"):  # what is printed may overflow
        products, squares = keys @ q, (keys * keys).sum(axis=1)
        added = last * np.sqrt(squares.max() - squares)
    seen = f"q·k is {products[0]:.6g} and {products[1]:.6g}"
    if far >= near:
        return f"{seen}: the second must be the larger one, and it is {'equal' if near == far else 'smaller'}."
    if 10**12 * abs(first - second) <= max(first, second):
        return f"{seen}. Both keys have the length M, so that the lift adds 0 to both, and the order stays."
    if first > second:
        return f"{seen}. The first key is the longer one, so that the lift adds to the second, which is ahead anyway."
    return (
        f"{seen}. The lift makes that {products[0] + added[0]:.6g} and {products[1]:.6g}, so the order is kept: what "
        f"it adds to the first, {added[0]:.6g}, must be more than the products differ."
    )


lift = Exercise(
    id="hashattention.lift",
    title="Find keys that the printed lift puts in the wrong order",
    level=3,
    minutes=25,
    source="Sec. 4.3, p. 5",
    text="""
        Signs of random projections see angles, and attention goes by products q·k (q has the 1/√K already). To make
        angles rank as products do, Sec. 4.3 lifts every key to one length M, that of the longest:
        k becomes [k, √(M² - |k|²)], and the query becomes [q, `last`]. (The values have length 1 here, so that the
        paper's coordinate log|v| is 0 and is left out.) All lifted keys have the same length, so a larger product with
        the lifted query is a smaller angle.

        The paper prints `last` = 1, in [q, 1, 1]. The authors' code lifts the query as well, to the longest of the
        queries that came with it, so there `last` is any number from 0 on. With 0 the order of q·k is kept. With
        anything above it need not be.

        Show it: for the query `q` [K] and `last` > 0 give two keys [2, K] such that q·k is larger for the second, and
        the product of the lifted vectors is larger for the first. M is the length of the longer of your two keys. K may
        be 1. There are many right answers; yours is judged in exact fractions, without rounding.
        """,
    signature='''
def lift(q, last):
    """keys [2, K] for the query q [K]"""
    raise NotImplementedError
''',
    hints=(
        "The lift adds last · √(M² - |k|²) to a product: nothing for the longest key, and more for a shorter one. So "
        "let the key with the larger product be the longer.",
        "Take both along q, of the lengths a < 1 and 1. The products are a |q| and |q|, and the lift adds "
        "last · √(1 - a²) and 0.",
        "The order turns where last² (1 + a) > (1 - a) |q|². For a near 1 that holds, however long q is: for instance "
        "1 - a = last² / (|q|² + last²).",
    ),
    cases=_cases_of_lift,
    judge=_judge_lift,
    returns=("keys",),
)

EXERCISES = (pack, score, select, attend, bytes_read, lift)
