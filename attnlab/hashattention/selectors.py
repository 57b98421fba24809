"""Who else could choose the tokens: a dozen selectors on one interface, and what each choice costs and keeps.

A selector sees one query head (`Head`) and says for every query which keys are read. Most give every key a score, and
the best `budget` of those outside the fixed windows are read, ties by lowest index, exactly as HashAttention's codes
are used; pages and blocks give all their tokens one score, so the last page that a budget reaches is cut. Two are of
another kind: H2O forgets for good what it does not keep, and MagicPIG draws tokens and divides by how likely they were.

T queries, S keys, K and V widths; query t stands at key S - T + t. What a selector calls "past" are the queries given
before t. A choice rests on keys and queries up to its own, except where a selector says that it takes a statistic of
all that are given: lsh_centred, lsh_lifted, double_sparsity, magicpig.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from attnlab import draws
from attnlab.arrays import Array, Axes, Float, as_float, dial, one_of
from attnlab.dense import unit
from attnlab.hashattention.params import LARGEST_BITS, check_codes, check_size, tokens_of
from attnlab.hashattention.reference import as_words, hamming

__all__ = [
    "SELECTORS", "Head", "Metrics", "Options", "Selection", "Selector", "head_of", "measure", "outputs", "select",
    "weights_of",
]  # fmt: skip

LSH_STREAM = 7
TABLES_STREAM = 8
ROWS_PER_TABLE = 64  # of the stream of tables
MOST_PLANES = 32
MOST_TABLES = 256


class Head(NamedTuple):
    """One query head over the keys and values it reads, float64, causal."""

    q: Float[Array, "T K"]
    k: Float[Array, "S K"]
    v: Float[Array, "S V"]
    scale: float
    query_codes: Any = None  # words of 32 bits [T, W], for the selector "hash"
    key_codes: Any = None  # [S, W]


class Options(NamedTuple):
    """What selectors can be told."""

    bits: int = 32  # of random projections
    seed: int = 0
    page: int = 16  # tokens in a page of Quest and in a block of InfLLM
    representatives: int = 4  # keys that stand for a block
    channels: int = 4  # of Double Sparsity
    planes: int = 8  # bits of a table of MagicPIG


class Selection(NamedTuple):
    """What is read: True and False for each query and key, and the logarithm of a correction (0 without one) that is
    added to a logit. `auxiliary_bits` where they are known only after the choice.
    """

    chosen: Array  # [T, S]
    log_weight: Float[Array, "T S"]
    auxiliary_bits: float | None = None


class Selector(NamedTuple):
    """One way to choose. `score(head, options)` [T, S], the best first, or `choose(head, budget, sinks, window,
    options)` a Selection. `auxiliary_bits(head, options)` are kept for each token beside keys and values, and are read
    for each token at every query; an oracle (exact, exact_value) keeps none and reads more than is counted.
    """

    paper: str
    auxiliary_bits: Callable[[Head, Options], float]
    score: Callable[[Head, Options], Array] | None = None
    choose: Callable[[Head, Array, Array, Array, Options], Selection] | None = None


class Metrics(NamedTuple):
    """How good a choice is, a number for each query; see `measure`."""

    recall: Float[Array, " T"]
    mass: Float[Array, " T"]
    middle_mass: Float[Array, " T"]
    output_error: Float[Array, " T"]
    tokens_read: Float[Array, " T"]
    bytes_read: Float[Array, " T"]
    auxiliary_bits: float


# -- the head --


def head_of(q, k, v, b: int = 0, h: int = 0, *, query_codes=None, key_codes=None, scale: float | None = None) -> Head:
    """Query head h of row b of q [B, T, H, K], k and v [B, S, G, K or V], and of their codes."""
    H, G = np.shape(q)[2], np.shape(k)[2]
    q, k, v = as_float(q)[b, :, h], as_float(k)[b, :, h * G // H], as_float(v)[b, :, h * G // H]
    scale = max(q.shape[-1], 1) ** -0.5 if scale is None else scale
    if query_codes is None:
        return Head(q, k, v, scale)
    C = np.shape(key_codes)[2]
    return Head(q, k, v, scale, as_words(query_codes)[b, :, h], as_words(key_codes)[b, :, h * C // H])


def seen(head: Head) -> Array:
    """Which keys each query sees, [T, S]."""
    T, S = len(head.q), len(head.k)
    return np.arange(S) <= np.arange(S - T, S)[:, None]


def weights_of(head: Head, selection: Selection | None = None) -> Float[Array, "T S"]:
    """Softmax weights over all visible keys, or over a selection."""
    mask = seen(head) if selection is None else selection.chosen
    logits = head.scale * head.q @ head.k.T + (0 if selection is None else selection.log_weight)
    logits = np.where(mask, logits, -np.inf)
    top = logits.max(axis=1, keepdims=True, initial=-np.inf)
    weights = np.exp(logits - np.where(np.isfinite(top), top, 0.0))
    total = weights.sum(axis=1, keepdims=True)
    return np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)


def outputs(head: Head, selection: Selection | None = None) -> Float[Array, "T V"]:
    """O of every query, over all visible keys or over a selection."""
    return weights_of(head, selection) @ head.v


# -- choosing --


def select(
    name: str,
    head: Head,
    *,
    budget: int | float,
    sinks: int | float = 128,
    window: int | float = 128,
    options: Options = Options(),  # noqa: B008
) -> Selection:
    """What the selector of this name reads: the first `sinks`, the newest `window`, and `budget` of the rest.

    Raises ValueError for another name, a size or an option out of range, more queries than keys, or for "hash" without
    codes.
    """
    selector = SELECTORS[one_of("name", name, tuple(SELECTORS))]
    for what, size in {"budget": budget, "sinks": sinks, "window": window}.items():
        check_size(what, size)
    check_options(options)
    if len(head.q) > len(head.k):
        raise ValueError(f"head must have at least as many keys as its {len(head.q)} queries, got {len(head.k)}")
    visible = seen(head).sum(axis=1)
    count, first, last = (np.array([tokens_of(size, n) for n in visible], np.int64) for size in (budget, sinks, window))
    if selector.choose is not None:
        return selector.choose(head, count, first, last, options)
    assert selector.score is not None
    always = fixed(head, first, last)
    return plain(always | best(selector.score(head, options), seen(head) & ~always, count))


def check_options(options: Options) -> None:
    """Raises ValueError where an option is out of range."""
    dial("options.bits", options.bits, 1, LARGEST_BITS, integer=True)
    dial("options.seed", options.seed, 0, 2**32 - 1, integer=True)
    dial("options.planes", options.planes, 1, MOST_PLANES, integer=True)
    for name in ("page", "representatives", "channels"):
        dial(f"options.{name}", getattr(options, name), 1, 2**20, integer=True)


def fixed(head: Head, sinks: Array, window: Array) -> Array:
    """The visible tokens that are read in any case, [T, S]."""
    index, mask = np.arange(len(head.k)), seen(head)
    newest = index >= mask.sum(axis=1)[:, None] - window[:, None]
    return mask & ((index < sinks[:, None]) | newest)


def best(scores: Array, among: Array, budget: Array) -> Array:
    """The `budget[t]` best of the tokens that row t may choose among; equals in the order of tokens, -inf never."""
    among = among & (scores > -np.inf)
    order = np.argsort(np.where(among, -scores, np.inf), axis=1, kind="stable")
    chosen = np.zeros_like(among)
    np.put_along_axis(chosen, order, np.arange(order.shape[1]) < budget[:, None], axis=1)
    return chosen & among


def plain(chosen: Array) -> Selection:
    """A selection without a correction."""
    return Selection(chosen, np.zeros(chosen.shape))


# -- scores --


def exact(head: Head, options: Options) -> Array:
    """The logit itself: the oracle of recall."""
    return head.scale * head.q @ head.k.T


def exact_value(head: Head, options: Options) -> Array:
    """log(a |v|) but for a constant: the isolated contribution (Lemma 4.1, p. 5). A zero value contributes nothing."""
    length = np.linalg.norm(head.v, axis=1)
    with np.errstate(divide="ignore"):
        return exact(head, options) + np.log(length)


def hash_codes(head: Head, options: Options) -> Array:
    """Minus the Hamming distance of the learned codes."""
    if head.query_codes is None or head.key_codes is None:
        raise ValueError("head must have query_codes and key_codes for the selector 'hash', got none")
    sizes: Axes = {"T": (len(head.q), "head.q"), "S": (len(head.k), "head.k")}
    check_codes("head.query_codes", head.query_codes, "T W", sizes)
    check_codes("head.key_codes", head.key_codes, "S W", sizes)
    return -hamming(as_words(head.query_codes), as_words(head.key_codes)[None])


def code_bits(head: Head) -> float:
    """What the codes of a head take, in whole words."""
    return 32.0 * np.shape(head.key_codes)[1]


def key_norm(head: Head, options: Options) -> Array:
    """Short keys first, whatever the query: what the middle layers of a real model attend to."""
    return np.broadcast_to(-np.linalg.norm(head.k, axis=1), (len(head.q), len(head.k)))


def past_mean(head: Head, options: Options) -> Array:
    """The mean attention that past queries gave to a key, over those that saw it."""
    weights, mask = weights_of(head), seen(head)
    total, count = np.zeros(weights.shape), np.cumsum(mask, axis=0) - mask
    total[1:] = np.cumsum(weights[:-1], axis=0)  # without the query's own
    return np.divide(total, count, out=np.zeros_like(total), where=count > 0)


def nothing(head: Head, options: Options) -> Array:
    """No token beyond the fixed windows: StreamingLLM."""
    return np.full((len(head.q), len(head.k)), -np.inf)


def quest(head: Head, options: Options) -> Array:
    """The largest q . k that a key within its page's bounds could have: sum over channels of max(q lo, q hi). The page
    that a query stands in reaches as far as the query.
    """
    (T, S), page = (len(head.q), len(head.k)), options.page
    low, high = np.empty_like(head.k), np.empty_like(head.k)  # of a page as far as a key
    for start in range(0, S, page):
        for bound, extreme in ((low, np.minimum), (high, np.maximum)):
            extreme.accumulate(head.k[start : start + page], axis=0, out=bound[start : start + page])
    last, own = np.minimum(np.arange(0, S, page) + page, S) - 1, np.arange(S - T, S)
    up, down = np.maximum(head.q, 0), np.minimum(head.q, 0)
    scores = up @ high[last].T + down @ low[last].T
    scores[np.arange(T), own // page] = (up * high[own] + down * low[own]).sum(axis=1)
    return np.repeat(scores, page, axis=1)[:, :S]


def infllm(head: Head, options: Options) -> Array:
    """The mean product of the query with a block's representatives, simplified: these are the keys of the largest mean
    product with the keys of their block. In the paper they are those that the queries after them attend to most, which
    a cache of keys alone does not tell. The block that a query stands in reaches as far as the query.
    """
    (T, S), page = (len(head.q), len(head.k)), options.page
    scores = np.zeros((T, S))
    for start in range(0, S, page):
        block = head.k[start : start + page]
        scores[:, start : start + page] = (head.q @ standing_for(block, options.representatives))[:, None]
    for t, end in enumerate(range(S - T + 1, S + 1)):
        start = (end - 1) // page * page
        scores[t, start:end] = head.q[t] @ standing_for(head.k[start:end], options.representatives)
    return scores


def standing_for(block: Float[Array, "N K"], count: int) -> Float[Array, " K"]:
    """The mean of the `count` keys with the largest mean product with the block; equals in the order of tokens."""
    return block[np.argsort(-(block @ block.mean(axis=0)), kind="stable")[:count]].mean(axis=0)


def double_sparsity(head: Head, options: Options) -> Array:
    """The product over a few label channels: those of the largest mean |q_c k_c| over all pairs of the queries and keys
    given, later ones too.
    """
    mean = np.abs(head.q).mean(axis=0) * np.abs(head.k).mean(axis=0) if len(head.q) and len(head.k) else head.q.sum(0)
    label = np.argsort(-mean, kind="stable")[: options.channels]
    return head.q[:, label] @ head.k[:, label].T


def lsh(head: Head, options: Options, *, lift: str = "") -> Array:
    """Minus the Hamming distance of the signs of random projections: of the keys as they are, of keys minus their mean
    (which moves all logits of a query alike), or of keys lifted to one length, the query's new coordinate being 0. Mean
    and length are those of all keys given, later ones too.
    """
    q, k = head.q, head.k
    if lift == "centred" and len(k):
        k = k - k.mean(axis=0)
    if lift == "lifted":
        square = (k * k).sum(axis=1)
        k = np.column_stack([k, np.sqrt(np.maximum(square.max(initial=0.0) - square, 0.0))])
        q = np.column_stack([q, np.zeros(len(q))])
    w = draws.normal(options.seed, LSH_STREAM, options.bits, q.shape[1])
    query_bits, key_bits = (2.0 * (x @ w.T > 0) - 1 for x in (q, k))
    return (query_bits @ key_bits.T - options.bits) / 2


# -- choices of another kind --


def h2o(head: Head, budget: Array, sinks: Array, window: Array, options: Options) -> Selection:
    """Heavy hitters: after every query the token that gathered least attention so far, outside the fixed windows, is
    thrown away until `budget` are left. A token thrown away cannot come back; tokens before the first query have no
    past, and the lowest indices of them stay.
    """
    T, S = len(head.q), len(head.k)
    kept, gathered = np.ones(S, bool), np.zeros(S)
    chosen, mask, always = np.zeros((T, S), bool), seen(head), fixed(head, sinks, window)
    for t in range(T):
        heavy = best(gathered[None], (mask[t] & kept & ~always[t])[None], budget[t : t + 1])[0]
        kept &= heavy | always[t] | ~mask[t]
        chosen[t] = kept & mask[t]
        gathered += weights_of(head._replace(q=head.q[t : t + 1]), plain(chosen[t : t + 1]))[0]
    return plain(chosen)


def magicpig(head: Head, budget: Array, sinks: Array, window: Array, options: Options) -> Selection:
    """Tokens whose centred keys fall into the query's bucket in at least two tables, each logit minus the logarithm of
    the probability of that. There are as many tables as keep the mean number drawn within the budget, so how many a
    query draws is a matter of chance, and the probability knows nothing of this choice. Both the number of tables and
    the mean that is subtracted are taken from all queries and keys given, later ones too.
    """
    mask, always = seen(head), fixed(head, sinks, window)
    free = mask & ~always
    k = head.k - head.k.mean(axis=0) if len(head.k) else head.k
    rows = (ROWS_PER_TABLE * np.arange(MOST_TABLES)[:, None] + np.arange(options.planes)).ravel()
    w = draws.normal(options.seed, TABLES_STREAM, rows, head.q.shape[1])
    w = w.reshape(MOST_TABLES, options.planes, head.q.shape[1])
    met, drawn, tables = np.zeros(mask.shape, np.int64), np.zeros(mask.shape, bool), 0
    for table in w:
        query_bucket, key_bucket = ((x @ table.T > 0) @ 2 ** np.arange(options.planes) for x in (head.q, k))
        following = met + (query_bucket[:, None] == key_bucket)
        if (free & (following >= 2)).sum() > budget.sum():
            break
        met, tables = following, tables + 1
        drawn = free & (met >= 2)
    cosine = unit(head.q) @ unit(k).T
    p = (1 - np.arccos(np.clip(cosine, -1, 1)) / np.pi) ** options.planes
    likely = 1 - (1 - p) ** tables - tables * p * (1 - p) ** max(tables - 1, 0)
    log_weight = np.zeros(mask.shape)
    log_weight[drawn] = -np.log(np.maximum(likely[drawn], np.finfo(np.float64).tiny))
    return Selection(drawn | always, log_weight, float(options.planes * tables))


SELECTORS = {
    "exact": Selector("the true logits", lambda head, options: 0.0, exact),
    "exact_value": Selector("a|v|, Lemmas 4.1-4.2, p. 5", lambda head, options: 0.0, exact_value),
    "hash": Selector("HashAttention, arXiv:2412.14468v2", lambda head, options: code_bits(head), hash_codes),
    "lsh": Selector("signs of random projections", lambda head, options: options.bits, lsh),
    "lsh_centred": Selector(
        "the same of keys minus their mean",
        lambda head, options: options.bits,
        lambda head, options: lsh(head, options, lift="centred"),
    ),
    "lsh_lifted": Selector(
        "the same of keys lifted to one length, Sec. 4.3, p. 5",
        lambda head, options: options.bits,
        lambda head, options: lsh(head, options, lift="lifted"),
    ),
    "key_norm": Selector("the shortest keys, whatever the query", lambda head, options: 16.0, key_norm),
    "past_mean": Selector("mean attention of past queries", lambda head, options: 16.0, past_mean),
    "sinks_window": Selector("StreamingLLM, arXiv:2309.17453", lambda head, options: 0.0, nothing),
    "h2o": Selector("H2O, arXiv:2306.14048", lambda head, options: 16.0, choose=h2o),
    "quest": Selector("Quest, arXiv:2406.10774", lambda head, options: 2 * 16 * head.k.shape[1] / options.page, quest),
    "infllm": Selector(
        "InfLLM, arXiv:2402.04617",
        lambda head, options: 16 * head.k.shape[1] * options.representatives / options.page,
        infllm,
    ),
    "double_sparsity": Selector(
        "Double Sparsity, arXiv:2408.07092", lambda head, options: 16.0 * options.channels, double_sparsity
    ),
    "magicpig": Selector(
        "MagicPIG, arXiv:2410.16179", lambda head, options: float(options.planes * MOST_TABLES), choose=magicpig
    ),
}


# -- how good a choice is --


def measure(
    name: str,
    head: Head,
    *,
    budget: int | float,
    sinks: int | float = 128,
    window: int | float = 128,
    top: int = 64,
    element_bytes: int = 2,
    options: Options = Options(),  # noqa: B008
) -> Metrics:
    """What the selector of this name keeps and costs, for every query: which part of the `top` largest logits outside
    the fixed windows is read (recall@k; 1 where there are none), the softmax mass that is read, of all tokens and of
    those outside the windows, |o - o'| / |o|, the tokens read, and the bytes: keys and values of these, and the
    auxiliary bits of every visible token. Raises as `select` does.
    """
    dial("top", top, 1, 2**40, integer=True)
    dial("element_bytes", element_bytes, 1, 16, integer=True)
    selection = select(name, head, budget=budget, sinks=sinks, window=window, options=options)
    visible = seen(head).sum(axis=1)
    sizes = [np.array([tokens_of(size, n) for n in visible], np.int64) for size in (sinks, window)]
    free = seen(head) & ~fixed(head, *sizes)
    true = best(exact(head, options), free, np.full(len(visible), top))
    weights, out = weights_of(head), outputs(head)
    kept, middle = weights * selection.chosen, (weights * free).sum(axis=1)
    read = selection.chosen.sum(axis=1).astype(float)
    extra = selection.auxiliary_bits
    if extra is None:
        extra = SELECTORS[name].auxiliary_bits(head, options)
    K, V = head.k.shape[1], head.v.shape[1]
    return Metrics(
        recall=share((true & selection.chosen).sum(axis=1), true.sum(axis=1)),
        mass=kept.sum(axis=1),
        middle_mass=share((kept * free).sum(axis=1), middle),
        output_error=share(
            np.linalg.norm(outputs(head, selection) - out, axis=1), np.linalg.norm(out, axis=1), empty=0.0
        ),
        tokens_read=read,
        bytes_read=read * (K + V) * element_bytes + visible * extra / 8,
        auxiliary_bits=extra,
    )


def share(part: Array, whole: Array, empty: float = 1.0) -> Array:
    """part / whole, and `empty` where there is no whole."""
    return np.divide(part, whole, out=np.full(np.shape(whole), empty), where=whole > 0)
