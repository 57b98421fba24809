"""What the Hamming recall panel shows, as plain arrays; `computer` in mathematics.js returns the same names, shapes,
numbers.

T tokens, b bits. [t, i] is what query t has of key i. A place is 1 for the best of the keys that a query may choose
among, 0 for one that it reads in any case (the first tokens and the newest), -1 for a later one.

query_bits, key_bits [T, b]        the codes
distance [T, T]                    in how many bits they differ; -1 for a later key
logits, weights [T, T]             q.k / sqrt(K), and dense attention
true_place, code_place [T, T]      by logit, and by distance
place, sparse [T, T]               by the selector of the dial, and the attention over what it reads
recall, mass, error [7, 8]         of each selector in CURVES, for each budget in BUDGETS: which part of the true top is
                                   read, softmax mass, |o - o'| / |o|; means over the later half of the queries
here [3, 7]                        the same three at the dial's budget
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from attnlab import inputs
from attnlab.arrays import Array, Float
from attnlab.dials import described, highest
from attnlab.hashattention import selectors
from attnlab.hashattention.params import (
    CENTRED,
    LEARNED,
    LENGTH_SPREAD,
    LENGTHS_STREAM,
    ORDER_STREAM,
    PROJECTIONS_STREAM,
    QUERY_LENGTH,
    SHOWN,
    HashParams,
    learned_maps,
)
from attnlab.hashattention.reference import encode, unpack
from attnlab.hashattention.selectors import LSH_STREAM, SELECTORS, Head, Options, seen
from attnlab.panels.still import Curve, Picture

__all__ = ["BUDGETS", "CURVES", "PARAMS", "codes", "compute", "data", "spec", "still", "verification"]

PARAMS = HashParams

LONGEST = highest(HashParams, "bits")
BUDGETS = 2 ** np.arange(8)  # 1, 2, 4, ..., 128
CURVES = (*SHOWN, "sinks_window")


def compute(params: HashParams) -> dict[str, Float[Array, "..."]]:
    """Every view of these dials, float64."""
    head, options = _head(params), _options(params)
    free = _free(params, head)
    read = selectors.select(params.selector, head, **_sizes(params), budget=params.budget, options=options)
    budgets = [*BUDGETS, params.budget]
    curves = np.stack([_means(params, head, name, budgets) for name in CURVES], axis=1)
    query_bits, key_bits = (unpack(words, options.bits) for words in (head.query_codes, head.key_codes))
    shown = {"true_place": "exact", "code_place": "hash", "place": params.selector}
    views = {
        "query_bits": query_bits,
        "key_bits": key_bits,
        "distance": np.where(seen(head), -selectors.hash_codes(head, options), -1),
        "logits": selectors.exact(head, options),
        "weights": selectors.weights_of(head),
        **{name: _places(head, free, _scores(selector, head, options)) for name, selector in shown.items()},
        "sparse": selectors.weights_of(head, read),
        **dict(zip(("recall", "mass", "error"), curves[..., :-1], strict=True)),
        "here": curves[..., -1],
    }
    return {name: np.asarray(array, np.float64) for name, array in views.items()}


def codes(params: HashParams) -> tuple[Array, Array]:
    """The codes of the queries and of the keys, uint32 [1, T, 1, W] each."""
    q, k, _, _ = params.inputs()
    query_maps, key_maps = params.maps()
    return encode(q, query_maps), encode(k, key_maps)


def data(params: HashParams) -> dict[str, Any] | None:
    """What the browser cannot draw: None for toy tokens, else a window of the real head (`attnlab.inputs.data`), and
    the learned codes of its tokens, little-endian words of 32 bits, where there are maps.
    """
    window = inputs.data(params.input, params.tokens)
    return None if window is None else _with_codes(params.input, len(window["tokens"]))


def still(params: HashParams) -> dict[str, Any]:
    """The pictures and numbers that stand where nothing is live; `attnlab.panels.still.html` shows them."""
    head, options = _head(params), _options(params)
    t, free = params.row, _free(params, head)
    place = _places(head, free, _scores("hash", head, options))[t]
    nearest = np.flatnonzero(place > 0)[np.argsort(place[place > 0])]
    query_bits, key_bits = (unpack(words, options.bits) for words in (head.query_codes, head.key_codes))
    grid = np.abs(1.0 * key_bits[nearest] - query_bits[t]).T
    read = selectors.select(params.selector, head, **_sizes(params), budget=params.budget, options=options)
    weights = np.where(read.chosen, selectors.weights_of(head, read), np.nan)
    against = ("hash", "lsh_centred", "key_norm")
    budgets = BUDGETS[params.tokens > BUDGETS]
    recall = {name: _means(params, head, name, budgets)[0] for name in against}
    title = f"Bits that differ, keys by distance to query {t + 1}"
    here = {name: _means(params, head, name, [params.budget])[:, 0] for name in CURVES}
    return {
        "title": f"Hamming recall: {params.selector}",
        "source": "arXiv:2412.14468v2, Sec. 4, pp. 4-5; recall, mass and error of the others: this project",
        "pictures": [
            *([Picture(title, grid, 1.0)] if nearest.size else []),
            Picture("Attention over what is read", weights, np.nanmax(weights[1:], initial=0.0) or 1.0, root=True),
            Curve("Recall", budgets.astype(np.float64), recall, log_x=True, x_name="budget", y_name="recall"),
        ],
        "numbers": [
            (f"{name}: recall of the true top {params.top}, mass, output error", ", ".join(f"{x:.4g}" for x in means))
            for name, means in here.items()
        ],
    }


def verification(params: HashParams) -> tuple[dict[str, Any], int]:
    """The arguments of `attention` for these dials, and how many terms an output adds up: the tokens of a set, and the
    K of a logit, which count as often as the square of its size l: exp makes their rounding relative to a weight.

    The codes are arguments, so that every implementation is asked for the same set.
    """
    q, k, v, _ = params.inputs()
    query_codes, key_codes = codes(params)
    logit = params.width**-0.5 * np.abs(q[0, :, 0] @ k[0, :, 0].T).max()
    read = min(params.budget + params.sinks + params.window, params.tokens)
    arguments = {"q": q, "k": k, "v": v, "query_codes": query_codes, "key_codes": key_codes}
    return arguments | _sizes(params) | {"budget": params.budget}, read + int(np.ceil(params.width * logit**2))


def spec() -> dict[str, Any]:
    """All that panel.js has to know, as JSON: the dials, the streams of the draws, the selectors and budgets."""
    return {
        "mechanism": "hashattention",
        "title": "Hamming recall",
        "paper": "arXiv:2412.14468v2",
        "widget": "HashPanel",
        "version": 1,
        "dials": described(HashParams),
        "options": {"grid": ["differences", "codes"]},
        "views": ["codes", "reads", "histogram", "orders", "recall", "mass", "error"],
        "axes": ["query", "key", "rank", "bit", "distance", "selector", "budget"],
        "inputs": inputs.spec(),
        "draws": {
            "projections": PROJECTIONS_STREAM,
            "lsh": LSH_STREAM,
            "lengths": LENGTHS_STREAM,
            "order": ORDER_STREAM,
        },
        "toy": {"query": QUERY_LENGTH, "spread": LENGTH_SPREAD},
        "kinds": {"learned": LEARNED, "centred": CENTRED},
        "curves": list(CURVES),
        "budgets": BUDGETS.tolist(),
        "page": Options().page,
    }


# -- one head, and what a selector makes of it --


@lru_cache(maxsize=4)  # the same object each time, so that nothing travels twice
def _with_codes(name: str, tokens: int) -> dict[str, Any]:
    params, window = HashParams(input=name, tokens=tokens, codes=LEARNED, bits=LONGEST), inputs.data(name, tokens)
    assert window is not None  # of a real head
    if learned_maps(name) is None:
        return window
    query_codes, key_codes = (words[0, :, 0].astype("<u4").tobytes() for words in codes(params))
    return window | {"code_bits": params.maps()[1].bits, "query_codes": query_codes, "key_codes": key_codes}


def _head(params: HashParams) -> Head:
    q, k, v, _ = params.inputs()
    query_codes, key_codes = codes(params)
    return selectors.head_of(q, k, v, query_codes=query_codes, key_codes=key_codes)


def _options(params: HashParams) -> Options:
    return Options(bits=params.maps()[1].bits, seed=params.seed)


def _sizes(params: HashParams) -> dict[str, Any]:
    return {"sinks": params.sinks, "window": params.window}


def _free(params: HashParams, head: Head) -> Array:
    """The tokens that each query may choose among, [T, T]."""
    every = np.ones(params.tokens, np.int64)
    return seen(head) & ~selectors.fixed(head, params.sinks * every, params.window * every)


def _scores(name: str, head: Head, options: Options) -> Array:
    score = SELECTORS[name].score
    assert score is not None  # all of SHOWN have one
    return score(head, options)


def _places(head: Head, free: Array, scores: Array) -> Array:
    order = np.argsort(np.where(free, -scores, np.inf), axis=1, kind="stable")
    place = np.empty(order.shape, np.int64)
    np.put_along_axis(place, order, 1 + np.arange(order.shape[1])[None], axis=1)
    return np.where(free, place, np.where(seen(head), 0, -1))


def _means(params: HashParams, head: Head, name: str, budgets: Iterable[int]) -> Float[Array, "3 budgets"]:
    """Recall, mass and output error of a selector as `selectors.measure` has them, for each of these budgets: means
    over the later half of the queries.
    """
    T, free, options = params.tokens, _free(params, head), _options(params)
    scores, visible = _scores(name, head, options), seen(head)
    true = selectors.best(selectors.exact(head, options), free, np.full(T, params.top))
    weights, out = selectors.weights_of(head), selectors.outputs(head)
    numbers = []
    for m in budgets:
        chosen = (visible & ~free) | selectors.best(scores, free, np.full(T, m))
        away = np.linalg.norm(selectors.outputs(head, selectors.plain(chosen)) - out, axis=1)
        away[(chosen == visible).all(axis=1)] = 0.0  # of all keys, what is left is rounding
        recall = selectors.share((true & chosen).sum(axis=1), true.sum(axis=1))
        error = selectors.share(away, np.linalg.norm(out, axis=1), empty=0.0)
        numbers.append([each[T // 2 :].mean() for each in (recall, (weights * chosen).sum(axis=1), error)])
    return np.array(numbers).T
