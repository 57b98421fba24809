"""What the softmax panel shows, as plain arrays; `computer` in mathematics.js returns the same names, shapes, numbers.

logits, weights [T, T]             q k^T / (sqrt(K) temperature), unmasked, and their softmax: rows sum to 1
seen [T]                           how many keys each query sees
effective [T]                      exp(entropy) of each query's weights: by how many keys it is spread
kept, kept_even [T]                mean share of the mass on a query's 1, 2, ..., T heaviest keys; if all weighed alike
"""

from typing import Any

import numpy as np

from attnlab import inputs
from attnlab.arrays import Array, Float
from attnlab.dense.params import SoftmaxParams
from attnlab.dense.reference import softmax_weights, visible
from attnlab.dials import described
from attnlab.panels.still import Curve, Picture

__all__ = ["PARAMS", "compute", "data", "spec", "still", "verification"]

PARAMS = SoftmaxParams


def compute(params: SoftmaxParams) -> dict[str, Float[Array, "..."]]:
    """Every view of these dials, float64."""
    q, k, _, _ = params.inputs()
    weights = softmax_weights(q, k, causal=params.causal, scale=params.scale)[0, 0]
    seen = visible(params.tokens, params.tokens, causal=params.causal).astype(np.float64)
    return {
        "logits": params.scale * (q[0, :, 0] @ k[0, :, 0].T),
        "weights": weights,
        "seen": seen.sum(axis=1),
        "effective": np.exp(-np.sum(weights * np.log(np.where(weights > 0, weights, 1.0)), axis=1)),
        "kept": _kept(weights),
        "kept_even": _kept(seen / seen.sum(axis=1, keepdims=True)),
    }


def data(params: SoftmaxParams) -> dict[str, Any] | None:
    """What the browser cannot draw: None for toy tokens, else a window of the real head (`attnlab.inputs.data`)."""
    return inputs.data(params.input, params.tokens)


def still(params: SoftmaxParams) -> dict[str, Any]:
    """The pictures and numbers that stand where nothing is live; `attnlab.panels.still.html` shows them."""
    views, places = compute(params), 1.0 + np.arange(params.tokens)
    telling = views["weights"][1:] if params.causal else views["weights"]  # where causal, the first query has one key
    spread = {"keys in effect": views["effective"], "keys seen": views["seen"]}
    kept = {"these weights": views["kept"], "all keys alike": views["kept_even"]}
    return {
        "title": "Softmax attention",
        "source": "arXiv:1706.03762v7, Eq. 1, p. 4; keys in effect and mass: this project",
        "pictures": [
            Picture("Weights", views["weights"], telling.max(), root=True),
            Curve("Keys in effect", places, spread, log_y=True, x_name="query", y_name="keys"),
            Curve("Heaviest keys", places, kept, log_x=True, x_name="keys kept", y_name="share of the mass"),
        ],
        "numbers": [
            ("keys in effect, mean over queries", f"{views['effective'].mean():.6g}"),
            ("mean share of the mass on the heaviest key", f"{views['kept'][0]:.6g}"),
        ],
    }


def verification(params: SoftmaxParams) -> tuple[dict[str, Any], int]:
    """The arguments of `attention` for these dials, and how many terms an output adds up: T keys and K of a logit.

    exp makes the rounding of a logit, which grows with its size l, relative to the weight: its K terms count l^2 times.
    """
    q, k, v, _ = params.inputs()
    logit = params.scale * np.abs(q[0, :, 0] @ k[0, :, 0].T).max()
    terms = params.tokens + int(np.ceil(params.width * logit**2))
    return {"q": q, "k": k, "v": v, "causal": params.causal, "scale": params.scale}, terms


def spec() -> dict[str, Any]:
    """All that panel.js has to know, as JSON: the dials, the figures in order, what can be pointed at."""
    return {
        "mechanism": "dense",
        "title": "Softmax attention",
        "paper": "arXiv:1706.03762v7",
        "widget": "SoftmaxPanel",
        "version": 1,
        "dials": described(SoftmaxParams),
        "options": {},
        "views": ["weights", "spread", "kept", "row"],
        "axes": ["query", "key", "kept"],
        "inputs": inputs.spec(),
    }


def _kept(weights: Float[Array, "T T"]) -> Float[Array, " T"]:
    return np.sort(weights, axis=1)[:, ::-1].cumsum(axis=1).mean(axis=0)
