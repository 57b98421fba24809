"""Other models' weights as W_h = W_shared + U_h B_h^T (Eqs. 2-3, p. 3): exact where the rank allows, else the nearest.

    MQA -> rank 0, one shared W                                          exact
    MHA -> rank d, B_h = I, whatever is shared                           exact, at 1 + 1/H times MHA's cache
    MHA -> rank r < d                                                    `fit`, and the energy that is lost

    python -m attnlab.lrkv.conversion            what SmolLM2 would lose (needs the extra `models`)

`width` numbers a token, H heads, K a head, r the rank. Keys and values are converted each for themselves.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from attnlab import draws, models
from attnlab.arrays import Array, Float, as_float, check, dial, one_of
from attnlab.lrkv.params import LAYOUTS
from attnlab.lrkv.rotary import plane_coordinates

__all__ = ["Fit", "Lost", "fit", "from_mha", "from_mqa", "lost_by_mean", "main", "report"]

PLANES = ("aligned", "same")
MIXTURE_STREAM = 13  # of the draws


class Fit(NamedTuple):
    """W_h = shared + up_h factor_h^T, and how much of the squared norm of the W_h it leaves over, from 0 to 1."""

    shared: Float[Array, "width K"]
    up: Float[Array, "H width r"]
    factor: Float[Array, "H K r"]
    lost: float
    planes: Array | None = None  # which rotary planes each head's factor spans, [H, r/2], rising

    def weights(self) -> Float[Array, "H width K"]:
        """The W_h that these factors stand for."""
        return self.shared + self.up @ self.factor.mT


def from_mqa(w: Float[Array, "width K"], heads: int) -> Fit:
    """One weight that all heads have, at rank 0. Raises ValueError for a wrong shape or a number that is not finite."""
    w = as_float(check("w", w, "width K", {}))
    heads = dial("heads", heads, 1, 2**20, integer=True)
    return Fit(w, np.zeros((heads, len(w), 0)), np.zeros((heads, w.shape[1], 0)), 0.0)


def from_mha(w: Float[Array, "H width K"], *, shared_head: int | None = None) -> Fit:
    """Every W_h at rank K with B_h = I: what is shared is 0, or the weight of one head, whose residual is then 0.

    Raises ValueError for a wrong shape, a number that is not finite, or a head that is not there.
    """
    w = as_float(check("w", w, "H width K", {}))
    shared = np.zeros(w.shape[1:])
    if shared_head is not None:
        shared = w[dial("shared_head", shared_head, 0, len(w) - 1, integer=True)]
    return Fit(shared, w - shared, np.tile(np.eye(w.shape[2]), (len(w), 1, 1)), 0.0)


def fit(
    w: Float[Array, "H width K"], rank: int, *, planes: str | None = None, layout: str = "half", rounds: int = 100,
    seed: int | None = None,
) -> Fit:  # fmt: skip
    """The nearest W_h = shared + U_h B_h^T of rank r by alternating least squares; each half of a round lowers the loss
    or leaves it.

    Given what is shared, each head takes the r best directions of W_h - shared (its truncated SVD). Given these
    directions, what is shared is solved for with all U_h at their best. `planes="aligned"` lets a head take whole
    rotary planes of `layout` only, the r/2 with most energy, so that latents can turn in their place; `planes="same"`
    gives all heads the same ones. The search begins at the mean head, or, given a seed, at a random mixture of the
    heads: another beginning may end elsewhere, for the problem is not convex.

    Raises ValueError naming the argument; an odd rank has no planes.
    """
    w = as_float(check("w", w, "H width K", {}))
    (H, _, K), rank = w.shape, dial("rank", rank, 0, w.shape[2], integer=True)
    dial("rounds", rounds, 0, 2**20, integer=True)
    if planes is not None:
        one_of("planes", planes, PLANES)
        one_of("layout", layout, LAYOUTS)
        if rank % 2 or K % 2:
            raise ValueError(f"rank must be even, and the heads' width too, to fill planes, got {rank} and {K}")
    mixture = np.full(H, 1 / max(H, 1)) if seed is None else draws.normal(seed, MIXTURE_STREAM, 1, H)[0] / max(H, 1)
    shared = np.einsum("h,hwk->wk", mixture, w)
    chosen, factor = _directions(w - shared, rank, planes, layout)
    for _ in range(rounds):
        shared = _shared(w, factor)
        chosen, factor = _directions(w - shared, rank, planes, layout)
    up = (w - shared) @ factor
    energy = (w**2).sum()
    rest = ((w - shared - up @ factor.mT) ** 2).sum()
    return Fit(shared, up, factor, float(rest / energy) if energy > 0 else 0.0, chosen)


def lost_by_mean(w: Float[Array, "H width K"]) -> float:
    """The share of the energy that the mean head leaves over: 0 where all heads are alike, 1 - 1/H where they are
    orthogonal and equally large.
    """
    return fit(w, 0, rounds=0).lost


def _directions(rest: Float[Array, "H width K"], rank: int, planes: str | None, layout: str) -> tuple:
    """(planes, factor): an orthonormal basis of the directions each head keeps of what is not shared."""
    H, _, K = rest.shape
    second = rest.mT @ rest  # its eigenvectors are the right singular vectors of the rest
    if planes is None:
        return None, np.linalg.eigh(second)[1][..., K - rank :]
    coordinates = plane_coordinates(K, np.arange(K // 2), layout=layout).reshape(2, -1)  # [2, planes]
    energy = np.diagonal(second, axis1=1, axis2=2)[:, coordinates].sum(axis=1)  # [H, planes]
    if planes == "same":
        energy = np.broadcast_to(energy.sum(axis=0), energy.shape)
    chosen = np.sort(np.argsort(-energy, axis=1, kind="stable")[:, : rank // 2], axis=1)
    picked = coordinates[:, chosen].transpose(1, 0, 2).reshape(H, rank)
    return chosen, (np.arange(K)[:, None] == picked[:, None, :]).astype(np.float64)


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
    free: tuple[float, ...]
    aligned: tuple[float, ...]  # () for values, which do not turn


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
        columns |= {f"rank {r}": [row.free[i] for row in here] for i, r in enumerate(asked.ranks)}
        columns |= {f"rank {r}, aligned": [row.aligned[i] for row in here if row.aligned]
                    for i, r in enumerate(asked.ranks)}  # fmt: skip
        for name, lost in columns.items():
            if lost:
                print(f"{matrix:6} {name:18} {np.mean(lost):.3f} ({min(lost):.3f} .. {max(lost):.3f})")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
