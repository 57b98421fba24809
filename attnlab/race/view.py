"""What the RACE panel shows, as plain arrays; `computer` in mathematics.js returns the same names, shapes and numbers.

phi_k, phi_q [L, T, R]                            share of each token in each bucket
mass [L, R]                                       what the keys leave in each bucket
softmax, angular, race [T, T]                     attention weights, rows summing to 1
logits [T, T]                                     q k^T / sqrt(K), what softmax is taken of
out, out_angular [T, V]                           what RACE and angular attention return
pair_angle, pair_score [T, T]                     angle in radians and S_hat of every (query, key), unmasked
band_angle, band_mean, band_sd, band_target [65]  S_hat of unit vectors, exactly, and kappa^P
error_tables, error_output, error_rate [7]        output error for nested numbers of tables, and Theorem 2's rate
error_here []                                     output error with the dial's own number of tables
theorem2_speaks []                                1 where nothing is masked and q, k are unit vectors, else 0
lemma10_every_draw, lemma10_large_tables []       1 where planes and sharpness lie in that failure region, else 0
"""

from functools import cache
from typing import Any

import numpy as np

from attnlab import inputs
from attnlab.arrays import Array, Float
from attnlab.dense import softmax_weights, visible
from attnlab.dials import described, highest
from attnlab.inputs import TOY, Inputs
from attnlab.panels.still import Picture
from attnlab.race import reference, theory
from attnlab.race.params import PLANES_PER_TABLE, PLANES_STREAM, RaceParams

__all__ = ["ERROR_TABLES", "PARAMS", "compute", "data", "spec", "still", "verification"]

PARAMS = RaceParams

ERROR_TABLES = 2 ** np.arange(7)  # 1, 2, 4, ..., 64: each draw contains the smaller ones
BAND_STEPS = 64
STILL_TABLES = 4  # that a still shows
DELTA = 0.05  # of Theorem 2's probability 1 - delta


def compute(params: RaceParams) -> dict[str, Float[Array, "..."]]:
    """Every view of these dials, float64."""
    given = params.inputs()
    P, L, beta = params.planes, params.tables, params.sharpness
    planes = params.draw_planes(int(ERROR_TABLES[-1]))
    nested = np.cumsum(_table_scores(params, given, planes), axis=0)  # l S_hat of the first l = 1, 2, ... tables
    weights, out_angular = _weights(params, given, nested[L - 1])
    q, k = _hashed(params, given)
    phi_k, phi_q = (reference.features(x, planes[:L], beta)[0, :, 0].swapaxes(0, 1) for x in (k, q))

    angles = np.pi * np.arange(BAND_STEPS + 1) / BAND_STEPS
    band = theory.band(angles, P, L, beta)
    estimates = _rows(nested[ERROR_TABLES - 1] * _seen(params)) @ given.v[0, :, 0]
    error = _error(estimates, out_angular, given.v)
    rate = theory.theorem2_rate(P, ERROR_TABLES, beta, params.tokens, DELTA)
    every_draw, many_tables = theory.lemma10_fails(P, beta)
    unit_vectors = params.normalize or params.input == TOY  # toy tokens are drawn as such
    cosine = np.clip(reference.unit(given.q)[0, :, 0] @ reference.unit(given.k)[0, :, 0].T, -1, 1)
    arguments, _ = verification(params)
    return weights | {
        "phi_k": phi_k,
        "phi_q": phi_q,
        "mass": phi_k.sum(axis=1),
        "logits": np.einsum("tk,sk->ts", given.q[0, :, 0], given.k[0, :, 0]) / np.sqrt(params.width),
        "pair_angle": np.arccos(cosine),
        "pair_score": nested[L - 1] / L,
        "band_angle": angles,
        "band_mean": band.mean,
        "band_sd": band.sd,
        "band_target": band.target,
        "lemma10_every_draw": np.array(float(every_draw)),
        "lemma10_large_tables": np.array(float(many_tables)),
        "error_tables": ERROR_TABLES.astype(np.float64),
        "error_output": error,
        "error_rate": rate * np.max(error / rate),  # the theorem's constant is open: this one touches from above
        "theorem2_speaks": np.array(float(unit_vectors and not params.causal)),
        "out": reference.attention(**arguments)[0, :, 0],
        "out_angular": out_angular,
    }


def data(params: RaceParams) -> dict[str, Any] | None:
    """What the browser cannot draw: None for toy tokens, else a window of the real head (`attnlab.inputs.data`)."""
    return inputs.data(params.input, params.tokens)


def still(params: RaceParams) -> dict[str, Any]:
    """The pictures and numbers that stand where nothing is live; `attnlab.panels.still.html` shows them.

    Less than `compute`, since a notebook's kernel draws this each time that its dials have rested.
    """
    given, planes, P = params.inputs(), params.draw_planes(), params.planes
    views, _ = _weights(params, given, _table_scores(params, given, planes).sum(axis=0))
    shares = reference.features(_hashed(params, given)[1], planes[:STILL_TABLES], params.sharpness)[0, :, 0]
    telling = slice(1, None) if params.causal else slice(None)  # where causal, the first query has one key
    top = max(views[name][telling].max() for name in ("softmax", "angular"))
    tables = [
        Picture(f"Table {number + 1}: shares of the keys", phi.T, 1.0)
        for number, phi in enumerate(shares.swapaxes(0, 1))
    ]
    weights = [
        Picture(title, views[name], top, root=True)
        for name, title in (("softmax", "Softmax"), ("angular", f"Angular, power {P}"), ("race", "RACE"))
    ]
    every_draw, many_tables = theory.lemma10_fails(P, params.sharpness)
    fails = "in every draw" if every_draw else "with many tables"
    whole = theory.band(np.zeros(1), P, params.tables, params.sharpness)
    return {
        "title": "RACE attention",
        "source": "arXiv:2510.04008v5, Algorithm 1, p. 5; Fig. 3 and Eqs. 3-4, p. 6",
        "pictures": [*weights, *tables],
        "numbers": [
            ("output error against angular attention (Theorem 2, p. 8)", f"{float(views['error_here']):.6g}"),
            ("exact mean of Ŝ where S = 1", f"{whole.mean[0]:.6g}"),
            ("Lemma 10 (p. 24)", f"fails here {fails}" if many_tables else "outside the regions where it fails"),
        ],
    }


def verification(params: RaceParams) -> tuple[dict[str, Any], int]:
    """The arguments of `attention` for these dials, and how many terms an output adds up: T keys, then L R buckets."""
    q, k, v, _ = params.inputs()
    arguments = {"q": q, "k": k, "v": v, "planes": params.draw_planes(), "sharpness": params.sharpness}
    return arguments | {
        "causal": params.causal,
        "normalize": params.normalize,
    }, params.tokens + params.tables * params.buckets


def spec() -> dict[str, Any]:
    """All that panel.js has to know, as JSON: dials, streams of the draws, rule of the integral, Lemma 10's borders."""
    radius, weight = theory.radial_rule()
    return {
        "mechanism": "race",
        "title": "RACE attention",
        "paper": "arXiv:2510.04008v5",
        "widget": "RacePanel",
        "version": 1,
        "dials": described(RaceParams),
        "options": {"features": ["keys", "queries"]},
        "views": ["buckets", "softmax", "angular", "race", "band", "error", "lemma"],
        "axes": ["query", "key", "table", "bucket", "angle", "tables", "border"],
        "inputs": inputs.spec(),
        "planes": {"stream": PLANES_STREAM, "per_table": PLANES_PER_TABLE},
        "error": {"tables": ERROR_TABLES.tolist(), "delta": DELTA},
        "band": {
            "steps": BAND_STEPS,
            "points": theory.ANGLE_POINTS,
            "radius": radius.tolist(),
            "weight": weight.tolist(),
        },
        "lemma10": {"every_draw": list(_borders()[0]), "large_tables": list(_borders()[1])},
    }


@cache
def _borders() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """For 1, 2, ... planes the sharpness below which Lemma 10 fails: in every draw, with many tables."""
    planes = range(1, highest(RaceParams, "planes") + 1)
    every_draw, many_tables = theory.every_draw_region, theory.many_tables_region
    return tuple(every_draw(P) for P in planes), tuple(many_tables(P) for P in planes)


def _hashed(params: RaceParams, given: Inputs) -> list[Array]:
    """q and k as they are hashed."""
    return [reference.unit(x) if params.normalize else x for x in (given.q, given.k)]


def _seen(params: RaceParams) -> Array:
    return visible(params.tokens, params.tokens, causal=params.causal)


def _table_scores(params: RaceParams, given: Inputs, planes: Float[Array, "L P K"]) -> Float[Array, "L T S"]:
    """phi(q) . phi(k) of each table alone, unmasked, as a product over planes: P factors a pair instead of 2^P terms.

    Plain numbers do: where sharpness ends at 32 and planes at 8, no factor is below e^-64, so no product below e^-512,
    and the smallest float64 is e^-708. The reference, which takes any sharpness, has to add logarithms.
    """
    queries, keys = (_soft_bits(reference.project(x, planes), params.sharpness) for x in _hashed(params, given))
    return np.stack([np.prod(q @ k.swapaxes(-1, -2), axis=0) for q, k in zip(queries, keys, strict=True)])


def _soft_bits(projection: Float[Array, "1 T 1 L P"], sharpness: float) -> Float[Array, "L P T 2"]:
    """The chances that a token's bit is set and that it is not: phi is their product over planes (p. 22)."""
    lean = 2 * sharpness * np.tanh(projection[0, :, 0].transpose(1, 2, 0))
    return 1 / (1 + np.exp(np.stack([-lean, lean], axis=-1)))


def _weights(
    params: RaceParams, given: Inputs, scores: Float[Array, "T S"]
) -> tuple[dict[str, Float[Array, "..."]], Float[Array, "T V"]]:
    """The three matrices and the output error of the one that stands on `scores`, S_hat up to a factor; and the output
    of angular attention.
    """
    q, k, v, _ = given
    race = _rows(scores * _seen(params))
    out_angular = reference.angular_attention(q, k, v, params.planes, causal=params.causal)[0, :, 0]
    return {
        "softmax": softmax_weights(q, k, causal=params.causal)[0, 0],
        "angular": _rows(reference.angular_scores(q, k, params.planes)[0, 0] * _seen(params)),
        "race": race,
        "error_here": np.asarray(_error(race @ v[0, :, 0], out_angular, v)),
    }, out_angular


def _error(out: Float[Array, "... T V"], target: Float[Array, "T V"], v: Array) -> Float[Array, "..."]:
    """|out - target|_rms / |v|_F, where |M|_rms = |M|_F / sqrt(T) (Theorem 2, p. 8)."""
    return np.linalg.norm(out - target, axis=(-2, -1)) / np.sqrt(len(target)) / np.linalg.norm(v)


def _rows(scores: Float[Array, "... T S"]) -> Float[Array, "... T S"]:
    total = scores.sum(axis=-1, keepdims=True)  # 0 for a query that is opposite to all it sees
    return np.divide(scores, total, out=np.zeros_like(scores), where=total > 0)
