"""Other models' weights as W_h = W_shared + U_h B_h^T (Eqs. 2-3, p. 3): exact where the rank allows, else near.

    MQA -> rank 0, one shared W                                          exact
    MHA -> rank d, B_h = I, whatever is shared                           exact, at 1 + 1/H times MHA's cache
    MHA -> rank r < d                                                    `fit`, and the energy that it loses

    python -m attnlab.lrkv.conversion            what SmolLM2 would lose (needs the extra `models`)

`width` numbers a token, H heads, K a head, r the rank. Keys and values are converted each for themselves.
"""

import argparse
import sys
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from attnlab import draws, models
from attnlab.arrays import Array, Float, as_float, check, dial, one_of
from attnlab.lrkv.params import LAYOUTS
from attnlab.lrkv.rotary import aligned_factor, plane_coordinates

__all__ = ["Fit", "Lost", "fit", "from_mha", "from_mqa", "lost_by_mean", "main", "report"]

PLANES = ("aligned", "same")
STREAM = 13  # of the draws
WEIGHED = 10**8  # sums that the dynamic programme may take: seconds at most, and 50 MB


class Fit(NamedTuple):
    """W_h = shared + up_h factor_h^T, and how much of the squared norm of the W_h it leaves over, from 0 to 1."""

    shared: Float[Array, "width K"]
    up: Float[Array, "H width r"]
    factor: Float[Array, "H K r"]
    lost: float
    planes: Array | None = None  # which rotary planes each head's factor spans, [H, r/2], rising
    least: bool = False  # whether no other choice of this kind loses less; False where a search ended here

    def weights(self) -> Float[Array, "H width K"]:
        """The W_h that these factors stand for."""
        return self.shared + self.up @ self.factor.mT


def from_mqa(w: Float[Array, "width K"], heads: int) -> Fit:
    """One weight that all heads have, at rank 0. Raises ValueError for a wrong shape or a number that is not finite."""
    w = as_float(check("w", w, "width K", {}))
    heads = dial("heads", heads, 1, 2**20, integer=True)
    return Fit(w, np.zeros((heads, len(w), 0)), np.zeros((heads, w.shape[1], 0)), 0.0, least=True)


def from_mha(w: Float[Array, "H width K"], *, shared_head: int | None = None) -> Fit:
    """Every W_h at rank K with B_h = I: what is shared is 0, or the weight of one head, whose residual is then 0.

    Raises ValueError for a wrong shape, a number that is not finite, or a head that is not there.
    """
    w = as_float(check("w", w, "H width K", {}))
    shared = np.zeros(w.shape[1:])
    if shared_head is not None:
        shared = w[dial("shared_head", shared_head, 0, len(w) - 1, integer=True)]
    return Fit(shared, w - shared, np.tile(np.eye(w.shape[2]), (len(w), 1, 1)), 0.0, least=True)


def fit(
    w: Float[Array, "H width K"], rank: int, *, planes: str | None = None, layout: str = "half", starts: int = 4,
    rounds: int = 100, seed: int = 0,
) -> Fit:  # fmt: skip
    """W_h = shared + U_h B_h^T of rank r that lose little of the W_h: the least where `least` says so, else the best
    that a search found, so that what has to be lost is at most this.

    `planes="same"` gives all heads the same r/2 rotary planes of `layout`, those in which heads differ most: the least.
    `planes="aligned"` gives each head r/2 of its own, so that latents can turn in their place; the shared weight of a
    plane is the mean of the heads that do not have it, and so a plane costs what its set of heads says. All choices of
    sets are weighed by dynamic programming where (r/2 + 1)^H 2^H K/2 is at most 10^8, and what comes back is the least.
    Beyond, a search: one head after another takes its best planes, the others' given.

    Any B: the r best directions of W_h - shared (a truncated SVD), then the best shared weight for these, in turn. Each
    half of a round lowers the loss or leaves it, but the problem is not convex. So searches have several starts: one at
    the mean head, the others drawn from the seed.

    Raises ValueError naming the argument; an odd rank has no planes.
    """
    w = as_float(check("w", w, "H width K", {}))
    (H, width, K), rank = w.shape, dial("rank", rank, 0, w.shape[2], integer=True)
    starts = dial("starts", starts, 1, 2**20, integer=True)
    rounds = dial("rounds", rounds, 0, 2**20, integer=True)
    if planes is not None:
        one_of("planes", planes, PLANES)
        one_of("layout", layout, LAYOUTS)
        if rank % 2 or K % 2:
            raise ValueError(f"rank must be even, and the heads' width too, to fill planes, got {rank} and {K}")
    basis = None
    if width > H * K > 0:  # all of it happens in the columns' span
        basis, rows = np.linalg.qr(w.transpose(1, 0, 2).reshape(width, H * K))
        w = rows.reshape(-1, H, K).transpose(1, 0, 2)
    chosen, least = None, rank in (0, K)
    if planes is None:
        shared, factor = _searched(w, rank, starts, rounds, seed)
    else:
        own, least = _owned(w, rank // 2, planes, layout, starts, rounds, seed)
        # a head whose planes would gain nothing takes the first ones
        chosen = np.sort(np.argsort(~own, axis=1, kind="stable")[:, : rank // 2], axis=1)
        factor = np.concatenate([np.zeros((0, K, rank)), *(aligned_factor(1, K, x, layout=layout) for x in chosen)])
        shared = _shared(w, factor)
    up = (w - shared) @ factor
    energy = (w**2).sum()
    rest = ((w - shared - up @ factor.mT) ** 2).sum()
    if basis is not None:
        shared, up = basis @ shared, basis @ up
    return Fit(shared, up, factor, float(rest / energy) if energy > 0 else 0.0, chosen, least)


def lost_by_mean(w: Float[Array, "H width K"]) -> float:
    """The share of the energy that the mean head leaves over: 0 where all heads are alike, 1 - 1/H where they are
    orthogonal and equally large.
    """
    return fit(w, 0, starts=1, rounds=0).lost


def _searched(w: Float[Array, "H width K"], rank: int, starts: int, rounds: int, seed: int) -> tuple[Array, Array]:
    """(shared, factor) of the start that ends with the smallest loss."""
    H = len(w)
    found = []
    for mixture in np.concatenate([np.ones((1, H)), draws.normal(seed, STREAM, starts - 1, H)]) / max(H, 1):
        shared = np.einsum("h,hwk->wk", mixture, w)
        left, factor = _directions(w - shared, rank)
        for _ in range(rounds):
            shared = _shared(w, factor)
            left, factor = _directions(w - shared, rank)
        found.append((left, shared, factor))
    return min(found, key=lambda x: x[0])[1:]


def _directions(rest: Float[Array, "H width K"], rank: int) -> tuple[float, Array]:
    """(left, factor): an orthonormal basis of the directions that hold most of the rest, and the energy left over."""
    values, vectors = np.linalg.eigh(rest.mT @ rest)  # the right singular vectors
    cut = rest.shape[2] - rank
    return float(values[:, :cut].sum()), vectors[..., cut:]


def _owned(
    w: Float[Array, "H width K"], each: int, planes: str, layout: str, starts: int, rounds: int, seed: int
) -> tuple[Array, bool]:
    """(own, least): which planes each head has, [H, planes], `each` or fewer, and whether none lose less."""
    H, _, K = w.shape
    coordinates = plane_coordinates(K, np.arange(K // 2), layout=layout).reshape(2, -1)
    parts = w[:, :, coordinates]  # [H, width, 2, planes]
    inner = np.einsum("gwcp,hwcp->pgh", parts, parts, optimize=True)
    if planes == "same":
        most = np.argsort(-_cost(inner, np.zeros((H, K // 2), bool)), kind="stable")[:each]
        return np.broadcast_to(np.isin(np.arange(K // 2), most), (H, K // 2)), True
    if (each + 1) ** H * 2**H * (K // 2) <= WEIGHED:
        return _weighed(inner, each), True
    found: list[tuple[float, Array]] = []
    for order in np.argsort(draws.normal(seed, STREAM, starts * H, K // 2).reshape(starts, H, K // 2), axis=2):
        own = order < (each if found else 0)  # the first start: all heads share all
        for _ in range(rounds + 1):
            for head in range(H):
                own[head] = False
                gain = _cost(inner, own) - _cost(inner, own | (np.arange(H) == head)[:, None])
                own[head, np.argsort(-gain, kind="stable")[:each]] = True
        found.append((float(_cost(inner, own).sum()), own))
    return min(found, key=lambda x: x[0])[1], False


def _cost(inner: Float[Array, "planes H H"], own: Float[Array, "H planes"]) -> Float[Array, " planes"]:
    """The energy that the heads without a plane have about their mean."""
    others = (~own).astype(np.float64)
    squares, sums = np.einsum("pii,ip->p", inner, others), np.einsum("pij,ip,jp->p", inner, others, others)
    return squares - sums / np.maximum(others.sum(axis=0), 1)


def _weighed(inner: Float[Array, "planes H H"], each: int) -> Float[Array, "H planes"]:
    """The sets of heads, one for each plane, that cost least while no head is in more than `each` of them."""
    P, H, _ = inner.shape
    sets = np.array(list(product((False, True), repeat=H)), bool)  # [2^H, H]
    costs = [_cost(inner, np.repeat(x[:, None], P, axis=1)) for x in sets]
    least, taken = np.zeros((each + 1,) * H), []  # of the planes so far, by how many each head may still have had
    for plane in range(P):
        before = np.pad(least, (1, 0), constant_values=np.inf)
        least, which = np.full(least.shape, np.inf), np.zeros(least.shape, np.uint16)
        for number, (has, cost) in enumerate(zip(sets, costs, strict=True)):
            after = before[tuple(slice(1 - x, each + 2 - x) for x in has.astype(int))] + cost[plane]
            which[after < least] = number
            least = np.minimum(least, after)
        taken.append(which)
    own, left = np.zeros((H, P), bool), np.full(H, each)
    for plane in reversed(range(P)):
        own[:, plane] = sets[taken[plane][tuple(left)]]
        left -= own[:, plane]
    return own


def _shared(w: Float[Array, "H width K"], factor: Float[Array, "H K r"]) -> Float[Array, "width K"]:
    """The best shared weight where every head may keep its directions: sum_h (W_h - S) (I - B_h B_h^T) = 0. A direction
    that all heads keep needs no shared part, and gets none.
    """
    outside = np.eye(w.shape[2]) - factor @ factor.mT
    return (w @ outside).sum(axis=0) @ np.linalg.pinv(outside.sum(axis=0), rcond=1e-10, hermitian=True)


# -- a real model --


class Lost(NamedTuple):
    """What one matrix of one layer loses, each a share of its energy; one figure for each of the ranks asked for."""

    layer: int
    matrix: str  # "key" or "value"
    mean: float  # by the mean head alone, rank 0
    free: tuple[float, ...]  # what a search found: at most this has to be lost
    aligned: tuple[float, ...]  # the least; () for values, which do not turn


def report(
    ranks: Sequence[int] = (16, 32), layers: Sequence[int] | None = None, *, language_model: Any = None
) -> list[Lost]:
    """What the key and value weights of SmolLM2 lose as LRKV, layer by layer: 3 heads of 64 from 576 numbers a token.

    Raises models.ModelMissing where the model or the extra `models` is not installed, ValueError for a layer or rank
    that it does not have.
    """
    model = (language_model or models.load()).model
    heads, depth, rows = model.config.num_key_value_heads, model.config.num_hidden_layers, []
    for layer in range(depth) if layers is None else layers:
        attention = model.model.layers[dial("layers", layer, 0, depth - 1, integer=True)].self_attn
        for matrix, projection in (("key", attention.k_proj), ("value", attention.v_proj)):
            weight = as_float(projection.weight)  # [heads K, width], a row for each number of a head
            w = weight.reshape(heads, -1, weight.shape[1]).mT
            free = tuple(fit(w, rank).lost for rank in ranks)
            aligned = tuple(fit(w, rank, planes="aligned").lost for rank in ranks) if matrix == "key" else ()
            rows.append(Lost(layer, matrix, lost_by_mean(w), free, aligned))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what SmolLM2 would lose as LRKV, keys and values: means over layers and their range. The exit status is 1,
    with one sentence on stderr, where the model is missing or has no such layer or rank.
    """
    parser = argparse.ArgumentParser(
        prog="python -m attnlab.lrkv.conversion", description="What SmolLM2 would lose as LRKV."
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 32], metavar="R")
    parser.add_argument("--layers", type=int, nargs="+", default=None, metavar="N")
    asked = parser.parse_args(arguments)
    try:
        rows = report(asked.ranks, asked.layers)
    except (models.ModelMissing, ValueError) as why:
        print(why, file=sys.stderr)
        return 1
    print("share of the energy of a weight that is lost: mean over layers (smallest .. largest)")
    for matrix in ("key", "value"):
        here = [row for row in rows if row.matrix == matrix]
        columns = {"mean head": [row.mean for row in here]}
        columns |= {f"rank {r}, at most": [row.free[i] for row in here] for i, r in enumerate(asked.ranks)}
        columns |= {f"rank {r}, aligned": [row.aligned[i] for row in here if row.aligned]
                    for i, r in enumerate(asked.ranks)}  # fmt: skip
        for name, lost in columns.items():
            if lost:
                print(f"{matrix:6} {name:18} {np.mean(lost):.3f} ({min(lost):.3f} .. {max(lost):.3f})")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
