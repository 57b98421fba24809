"""RACE attention in NumPy float64, line by line as Algorithm 1 (p. 5) and Algorithm 2 (p. 27) of arXiv:2510.04008v5.

Three different objects; never let one stand in for another:
    softmax_attention    exp(q.k / sqrt(d)), the attention everybody knows                    (Sec. 1)
    angular_attention    kappa(q, k)^power, kappa = 1 - angle/pi, still pairwise              (Eqs. 3-4, p. 6)
    attention            soft RACE, the linear-time estimate of angular attention             (Algorithms 1 and 2)

Letters: P planes, L tables, R = 2**P buckets, beta is `sharpness`, W is `planes`. B batch, T and S positions, H heads,
K and V widths.

One line differs from the paper: each bucket keeps its mass and content divided by exp(log_scale), the largest feature
it has met. The factor cancels in the ratio, and without it the sums underflow long before beta = 1e4, where the first
token's output would be 0/0 instead of its own value.
"""

from typing import Any, NamedTuple

import numpy as np

from attnlab.arrays import Array, Axes, Float, as_float, check, one_of
from attnlab.dense import softmax_attention, unit, visible
from attnlab.race.params import State

__all__ = [
    "BUCKET_EPS", "State", "Trace", "angular_attention", "angular_scores", "attention", "corners", "empty_state",
    "features", "kappa", "log_features", "project", "read", "softmax_attention", "trace", "unit", "write",
]  # fmt: skip

Queries = Float[Array, "B T H K"]
Keys = Float[Array, "B S H K"]
Values = Float[Array, "B S H V"]
Planes = Float[Array, "L P K"]  # or [H, L, P, K], one set a head
Sharpness = float | Float[Array, " H"]
Features = Float[Array, "B T H L R"]

BUCKET_EPS = 1e-6  # the released code adds this to each bucket's mass


class Trace(NamedTuple):
    """Every intermediate of one run, named like the paper's; mass and content stand after the last token, unscaled."""

    u_q: Float[Array, "B T H L P"]
    u_k: Float[Array, "B S H L P"]
    phi_q: Float[Array, "B T H L R"]
    phi_k: Float[Array, "B S H L R"]
    mass: Float[Array, "B H L R"]
    content: Float[Array, "B H L R V"]
    numerator: Float[Array, "B T H V"]  # Num and Den of Algorithm 1, 1/L included
    denominator: Float[Array, "B T H"]
    scores: Float[Array, "B H T S"]  # S_hat, unmasked
    weights: Float[Array, "B H T S"]  # S_hat masked where causal, rows divided by their sums
    out: Float[Array, "B T H V"]
    empty_rows: int  # queries that met no mass at all (only hard hashing has them); their output is 0


# -- the target: a power of the angular kernel --


def kappa(cosine: Float[Array, "..."]) -> Float[Array, "..."]:
    """The angular kernel 1 - arccos(cosine)/pi: 1, 1/2, 0 at angles 0, pi/2, pi (Eq. 4, p. 6)."""
    return 1.0 - np.arccos(np.clip(cosine, -1.0, 1.0)) / np.pi


def angular_scores(q: Queries, k: Keys, power: float) -> Float[Array, "B H T S"]:
    """S = kappa(q, k)^power for every pair."""
    sizes: Axes = {}
    check("q", q, "B T H K", sizes)
    check("k", k, "B S H K", sizes)
    return kappa(np.einsum("bthk,bshk->bhts", unit(as_float(q)), unit(as_float(k)))) ** power


def angular_attention(q: Queries, k: Keys, v: Values, power: float, *, causal: bool = False) -> Float[Array, "B T H V"]:
    """O = diag(S 1)^-1 S V with S = kappa^power (Eqs. 3-4, p. 6): what RACE with P = power planes estimates.

    A query whose row of S has no mass gets 0.
    """
    scores = angular_scores(q, k, power) * visible(np.shape(q)[1], np.shape(k)[1], causal=causal)
    return _ratio(np.einsum("bhts,bshv->bthv", scores, as_float(v)), np.einsum("bhts->bth", scores))


# -- features --


def corners(planes: int) -> Float[Array, "R P"]:
    """The corners v_r of the cube {-1, +1}^P: bit t of r, least significant first, is set where v_rt = +1."""
    return 2.0 * (np.arange(2**planes)[:, None] >> np.arange(planes) & 1) - 1.0


def project(x: Queries, planes: Planes) -> Float[Array, "B T H L P"]:
    """x W^T for every table; planes [L, P, K] serve all heads, [H, L, P, K] give each head its own."""
    return np.einsum("bthk,lpk->bthlp" if planes.ndim == 3 else "bthk,hlpk->bthlp", x, planes)


def log_features(x: Queries, planes: Planes, sharpness: Sharpness = 1.0, *, hard: bool = False) -> Features:
    """The logarithm of `features`; with `hard` 0 for the bucket whose bit t says W_t x > 0, and -inf elsewhere."""
    projection = project(x, planes)
    v = corners(planes.shape[-2]).astype(projection.dtype)
    if hard:
        agrees = np.all((projection > 0)[..., None, :] == (v > 0), axis=-1)
        return np.where(agrees, 0.0, -np.inf).astype(projection.dtype)
    beta = as_float(sharpness, projection.dtype).reshape(-1, 1, 1)  # one, or one a head
    u = np.tanh(projection)  # [B, T, H, L, P]
    logits = beta * (u @ v.T)  # beta u . v_r
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))  # phi = softmax over the corners


def features(x: Queries, planes: Planes, sharpness: Sharpness = 1.0, *, hard: bool = False) -> Features:
    """phi: each token's share of each bucket, soft or hard; every table's R shares sum to 1 (Algorithm 1, p. 5)."""
    return np.exp(log_features(as_float(x), as_float(planes), sharpness, hard=hard))


# -- the state: write, read --


def empty_state(B: int, H: int, L: int, R: int, V: int, dtype=np.float64) -> State:
    """Nothing written yet."""
    return State(np.zeros((B, H, L, R), dtype), np.zeros((B, H, L, R, V), dtype), np.full((B, H, L, R), -np.inf, dtype))


def _scaled(state: State, dtype) -> State:
    """A carried state in `dtype`, one in plain units (log_scale None) rescaled to masses of 1."""
    mass, content, log_scale = State(*state)
    mass, content = as_float(mass, dtype), as_float(content, dtype)
    if log_scale is not None:
        return State(mass, content, as_float(log_scale, dtype))
    log_scale = np.log(mass, out=np.full_like(mass, -np.inf), where=mass > 0)
    return State((mass > 0).astype(dtype), _ratio(content, mass), log_scale)


def write(state: State, log_phi_k: Features, v: Values) -> State:
    """A += sum_j phi(k_j) and B += sum_j phi(k_j) v_j^T, rescaled to the largest feature each bucket has met."""
    log_scale = np.maximum(state.log_scale, log_phi_k.max(axis=1, initial=-np.inf))
    pivot = _finite(log_scale)
    phi_k = np.exp(log_phi_k - pivot[:, None])
    kept = np.exp(state.log_scale - pivot)
    mass = kept * state.mass + np.einsum("bshlr->bhlr", phi_k)  # A
    content = kept[..., None] * state.content + np.einsum("bshlr,bshv->bhlrv", phi_k, v)  # B
    return State(mass, content, log_scale)


def read(state: State, log_phi_q: Features, *, variant: str = "algorithm") -> tuple[Array, Array]:
    """(numerator [B, T, H, V], denominator [B, T, H]), both divided by the query's largest term, which cancels.

    `variant="bucket_mean"` is the released code's operator: the mean value of each bucket, mixed by the query's
    features and summed over tables; its denominator is 1.
    """
    if variant == "bucket_mean":
        bucket = np.exp(state.log_scale)
        mean = bucket[..., None] * state.content / (bucket * state.mass + BUCKET_EPS)[..., None]
        return np.einsum("bthlr,bhlrv->bthv", np.exp(log_phi_q), mean), np.ones(log_phi_q.shape[:3], mean.dtype)
    log_weight = log_phi_q + state.log_scale[:, None]
    phi_q = np.exp(log_weight - _finite(log_weight.max(axis=(-2, -1), keepdims=True, initial=-np.inf)))
    numerator = np.einsum("bthlr,bhlrv->bthv", phi_q, state.content)  # Num
    denominator = np.einsum("bthlr,bhlr->bth", phi_q, state.mass)  # Den
    return numerator, denominator


# -- attention --


def attention(
    q: Queries, k: Keys, v: Values, planes: Planes, sharpness: Sharpness = 1.0, *, causal: bool = False,
    state: State | None = None, return_state: bool = False, variant: str = "algorithm", normalize: bool = False,
    dtype: type = np.float64,
) -> Any:  # fmt: skip
    """O = sum_l phi(q) B_l / sum_l phi(q) A_l: ONE ratio, after summing the tables (Algorithms 1 and 2, pp. 5 and 27).

    [B, T, H, V]; with `return_state` also the state after the last token. A carried `state` counts as earlier keys.
    `causal` writes token t, then reads it. `variant`: "algorithm", "bucket_mean" (the released code), "hard" (features
    at sharpness = inf; a query without mass gets 0). `normalize` divides q and k by their lengths first: Algorithm 1
    does not, the theory assumes it (p. 17). `dtype` is float64 except where an error budget measures a lower precision.
    Arguments are checked by `api.attention`.
    """
    q, k, v, planes = _prepared(q, k, v, planes, normalize, dtype)
    (B, T, H, _), V = q.shape, v.shape[-1]
    L, R = planes.shape[-3], 2 ** planes.shape[-2]
    log_phi_q = log_features(q, planes, sharpness, hard=variant == "hard")
    log_phi_k = log_features(k, planes, sharpness, hard=variant == "hard")
    state = empty_state(B, H, L, R, V, dtype) if state is None else _scaled(state, dtype)
    if causal:
        numerator: Array = np.zeros((B, T, H, V), dtype)
        denominator: Array = np.zeros((B, T, H), dtype)
        for t in range(T):
            now = slice(t, t + 1)
            state = write(state, log_phi_k[:, now], v[:, now])
            numerator[:, now], denominator[:, now] = read(state, log_phi_q[:, now], variant=variant)
    else:
        state = write(state, log_phi_k, v)
        numerator, denominator = read(state, log_phi_q, variant=variant)
    out = _ratio(numerator, denominator)
    return (out, state) if return_state else out


def trace(
    q: Queries, k: Keys, v: Values, planes: Planes, sharpness: Sharpness = 1.0, *, causal: bool = False,
    variant: str = "algorithm", normalize: bool = False,
) -> Trace:  # fmt: skip
    """`attention` with every intermediate, the T x S kernel matrix included: for teaching sizes.

    All numbers but `out` and `weights` stand in plain units, where sums may underflow at extreme sharpness. `variant`
    is "algorithm" or "hard": the released code's operator has no kernel matrix of this kind.
    """
    one_of("variant", variant, ("algorithm", "hard"))
    out, state = attention(
        q, k, v, planes, sharpness, causal=causal, return_state=True, variant=variant, normalize=normalize
    )
    q, k, v, planes = _prepared(q, k, v, planes, normalize, np.float64)
    log_phi_q, log_phi_k = (log_features(x, planes, sharpness, hard=variant == "hard") for x in (q, k))
    log_scores = _log_scores(log_phi_q, log_phi_k)
    seen = np.where(visible(q.shape[1], k.shape[1], causal=causal), log_scores, -np.inf)
    share = np.exp(seen - _finite(seen.max(axis=-1, keepdims=True, initial=-np.inf)))
    bucket = np.exp(state.log_scale)
    return Trace(
        u_q=np.tanh(project(q, planes)),
        u_k=np.tanh(project(k, planes)),
        phi_q=np.exp(log_phi_q),
        phi_k=np.exp(log_phi_k),
        mass=bucket * state.mass,
        content=bucket[..., None] * state.content,
        numerator=np.einsum("bhts,bshv->bthv", np.exp(seen), v),
        denominator=np.einsum("bhts->bth", np.exp(seen)),
        scores=np.exp(log_scores),
        weights=_ratio(share, share.sum(axis=-1)),
        out=out,
        empty_rows=int(np.isneginf(seen).all(axis=-1).sum()),
    )


def _prepared(q: Queries, k: Keys, v: Values, planes: Planes, normalize: bool, dtype: type) -> list[Array]:
    q, k, v, planes = (as_float(x, dtype) for x in (q, k, v, planes))
    return [unit(q), unit(k), v, planes] if normalize else [q, k, v, planes]


def _log_scores(log_phi_q: Features, log_phi_k: Features) -> Float[Array, "B H T S"]:
    """log S_hat, S_hat = (1/L) sum_l phi(q) . phi(k), table by table."""
    B, T, H, L, _ = log_phi_q.shape
    total = np.full((B, T, log_phi_k.shape[1], H), -np.inf)
    for table in range(L):
        pair = log_phi_q[:, :, None, :, table] + log_phi_k[:, None, :, :, table]  # [B, T, S, H, R]
        total = np.logaddexp(total, np.logaddexp.reduce(pair, axis=-1))
    return total.transpose(0, 3, 1, 2) - np.log(L)


def _ratio(numerator: Float[Array, "... V"], denominator: Float[Array, "..."]) -> Float[Array, "... V"]:
    """numerator / denominator, and 0 where nothing was met."""
    denominator = denominator[..., None]
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


def _finite(log_scale: Array) -> Array:
    return np.where(np.isfinite(log_scale), log_scale, log_scale.dtype.type(0))
