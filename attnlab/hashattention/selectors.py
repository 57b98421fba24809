"""Who else could choose the tokens: a dozen selectors on one interface, and what each choice costs and keeps.

A selector sees one query head (`Head`) and says for every query which keys are read. Most give every key a score, and
the best `budget` of those outside the fixed windows are read, ties by lowest index, exactly as HashAttention's codes
are used; pages and blocks give all their tokens one score, so the last page that a budget reaches is cut. Two are of
another kind: H2O forgets for good what it does not keep, and MagicPIG draws tokens and divides by how likely they were.

T queries, S keys, K and V widths; query t stands at key S - T + t. What a selector calls "past" are the queries given
before t.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from attnlab import draws
from attnlab.arrays import Array, Float, as_float, dial, one_of
from attnlab.hashattention.params import check_size, tokens_of
from attnlab.hashattention.reference import as_words, hamming

__all__ = [
    "SELECTORS", "Head", "Metrics", "Options", "Selection", "Selector", "head_of", "measure", "outputs", "select",
    "weights_of",
]  # fmt: skip

LSH_STREAM = 7
TABLES_STREAM = 8
ROWS_PER_TABLE = 64  # of the stream of tables
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

    bits: int = 32  # of random projections; of codes, how many were learned
    seed: int = 0
    page: int = 16  # tokens in a page of Quest and in a block of InfLLM
    representatives: int = 4  # keys that stand for a block
    channels: int = 4  # of Double Sparsity
    planes: int = 8  # bits of a table of MagicPIG


class Selection(NamedTuple):
    """What is read: True and False for each query and key, and the logarithm of a correction (0 without one) that is
    added to a logit.
    """

    chosen: Array  # [T, S]
    log_weight: Float[Array, "T S"]


class Selector(NamedTuple):
    """One way to choose. `score(head, options)` [T, S], the best first, or `choose(head, budget, sinks, window,
    options)` a Selection. `auxiliary_bits(head, options)` are kept for each token beside keys and values, and are read
    for each token at every query.
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

    Raises ValueError for another name, a size out of range, or for "hash" without codes.
    """
    selector = SELECTORS[one_of("name", name, tuple(SELECTORS))]
    for what, size in {"budget": budget, "sinks": sinks, "window": window}.items():
        check_size(what, size)
    dial("page", options.page, 1, 2**20, integer=True)
    visible = seen(head).sum(axis=1)
    count, first, last = (np.array([tokens_of(size, n) for n in visible], np.int64) for size in (budget, sinks, window))
    if selector.choose is not None:
        return selector.choose(head, count, first, last, options)
    assert selector.score is not None
    always = fixed(head, first, last)
    return plain(always | best(selector.score(head, options), seen(head) & ~always, count))


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
    return -hamming(as_words(head.query_codes), as_words(head.key_codes)[None])


def key_norm(head: Head, options: Options) -> Array:
    """Short keys first, whatever the query: what the middle layers of a real model attend to."""
    return np.broadcast_to(-np.linalg.norm(head.k, axis=1), (len(head.q), len(head.k)))


def past_mean(head: Head, options: Options) -> Array:
    """The mean attention that past queries gave to a key, over those that saw it."""
    weights, mask = weights_of(head), seen(head)
    total, count = np.cumsum(weights, axis=0) - weights, np.cumsum(mask, axis=0) - mask
    return np.divide(total, count, out=np.zeros_like(total), where=count > 0)


def nothing(head: Head, options: Options) -> Array:
    """No token beyond the fixed windows: StreamingLLM."""
    return np.full((len(head.q), len(head.k)), -np.inf)


def quest(head: Head, options: Options) -> Array:
    """The largest logit that a key within its page's bounds could have: sum over channels of max(q lo, q hi)."""
    low, high = (reduce_pages(head.k, options.page, reduce) for reduce in (np.minimum, np.maximum))
    bound = np.maximum(head.q, 0) @ high.T + np.minimum(head.q, 0) @ low.T
    return np.repeat(bound, options.page, axis=1)[:, : len(head.k)]


def reduce_pages(x: Array, page: int, reduce: Any) -> Array:
    """One row for each page of so many rows; the last page may be shorter."""
    return reduce.reduceat(x, np.arange(0, len(x), page), axis=0) if len(x) else x


def infllm(head: Head, options: Options) -> Array:
    """The summed logits of a block's representatives: the keys in it that later queries of the same block, on average,
    look like most. Without their queries, the keys with the largest mean product with the block's other keys.
    """
    S, page = len(head.k), options.page
    scores = np.zeros((len(head.q), S))
    for start in range(0, S, page):
        block = head.k[start : start + page]
        standing = np.argsort(-(block @ block.mean(axis=0)), kind="stable")[: options.representatives]
        scores[:, start : start + page] = (head.q @ block[standing].T).mean(axis=1, keepdims=True)
    return scores


def double_sparsity(head: Head, options: Options) -> Array:
    """The logit over a few label channels: those of the largest mean |q_c k_c| over the given queries and keys."""
    mean = np.abs(head.q).mean(axis=0) * np.abs(head.k).mean(axis=0) if len(head.q) and len(head.k) else head.q.sum(0)
    label = np.argsort(-mean, kind="stable")[: options.channels]
    return head.q[:, label] @ head.k[:, label].T


def lsh(head: Head, options: Options, *, lift: str = "") -> Array:
    """Minus the Hamming distance of the signs of random projections: of the keys as they are, of keys minus their mean
    (which moves all logits of a query alike), or of keys lifted to one length, the query's new coordinate being 0.
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
    chosen, always = np.zeros((T, S), bool), fixed(head, sinks, window)
    for t in range(T):
        mask = seen(head)[t]
        heavy = best(gathered[None], (mask & kept & ~always[t])[None], budget[t : t + 1])[0]
        kept &= heavy | always[t] | ~mask
        chosen[t] = kept & mask
        gathered += weights_of(head._replace(q=head.q[t : t + 1]), plain(chosen[t : t + 1]))[0]
    return plain(chosen)


def magicpig(head: Head, budget: Array, sinks: Array, window: Array, options: Options) -> Selection:
    """Tokens whose centred keys fall into the query's bucket in at least two tables, each logit minus the logarithm of
    the probability of that. There are as many tables as keep the mean number read within the budget: how many tokens a
    query reads is a matter of chance.
    """
    mask, always = seen(head), fixed(head, sinks, window)
    free = mask & ~always
    k = head.k - head.k.mean(axis=0) if len(head.k) else head.k
    rows = (ROWS_PER_TABLE * np.arange(MOST_TABLES)[:, None] + np.arange(options.planes)).ravel()
    w = draws.normal(options.seed, TABLES_STREAM, rows, head.q.shape[1])
    w = w.reshape(MOST_TABLES, options.planes, -1)
    met, drawn, tables = np.zeros(mask.shape, np.int64), np.zeros(mask.shape, bool), 0
    for table in w:
        following = met + np.all((head.q @ table.T > 0)[:, None] == (k @ table.T > 0)[None], axis=-1)
        if (free & (following >= 2)).sum() > budget.sum():
            break
        met, tables = following, tables + 1
        drawn = free & (met >= 2)
    cosine = unit_rows(head.q) @ unit_rows(k).T
    p = (1 - np.arccos(np.clip(cosine, -1, 1)) / np.pi) ** options.planes
    likely = 1 - (1 - p) ** tables - tables * p * (1 - p) ** max(tables - 1, 0)
    log_weight = np.zeros(mask.shape)
    log_weight[drawn] = -np.log(np.maximum(likely[drawn], np.finfo(np.float64).tiny))
    return Selection(drawn | always, log_weight)


def unit_rows(x: Array) -> Array:
    """Rows divided by their lengths; a zero row stays zero."""
    length = np.linalg.norm(x, axis=1, keepdims=True)
    return np.divide(x, length, out=np.zeros_like(x), where=length > 0)


SELECTORS = {
    "exact": Selector("the true logits", lambda head, options: 0.0, exact),
    "exact_value": Selector("a|v|, Lemmas 4.1-4.2, p. 5", lambda head, options: 0.0, exact_value),
    "hash": Selector("HashAttention, arXiv:2412.14468v2", lambda head, options: options.bits, hash_codes),
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
    auxiliary bits of every visible token.
    """
    selection = select(name, head, budget=budget, sinks=sinks, window=window, options=options)
    visible = seen(head).sum(axis=1)
    sizes = [np.array([tokens_of(size, n) for n in visible], np.int64) for size in (sinks, window)]
    free = seen(head) & ~fixed(head, *sizes)
    true = best(exact(head, options), free, np.full(len(visible), top))
    weights, out = weights_of(head), outputs(head)
    kept, middle = weights * selection.chosen, (weights * free).sum(axis=1)
    read = selection.chosen.sum(axis=1).astype(float)
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
