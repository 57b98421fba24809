"""What of a cache may turn with position: factors that a rotation passes through, and those it does not.

The paper says that factored decoding keeps working under full RoPE (Sec. 3, p. 4). With K_h = K_s + R B^T it would need
to rotate B R by rotating R, that is a P~_t of r numbers with P_t B = B P~_t at every position. There is one exactly
where the columns of B span a space that every P_t maps into itself. This file has the ways to have that (aligned, tied,
partial), the ways around it (still, expand, query side), the ways that are wrong, kept by name, and how wrong they are.

Here B is a factor [H, K, r]; B_h^+ its pseudoinverse; a plane is two coordinates that turn together.
Source: arXiv:2601.11471v3, p. 4, for the claim; all else is this project's.
"""

from typing import NamedTuple

import numpy as np

from attnlab import draws
from attnlab.arrays import Array, Float, dial, one_of
from attnlab.lrkv.params import STILL, Rope, angles, pairs, rope
from attnlab.lrkv.reference import of_heads, turn

__all__ = [
    "OPTIONS",
    "Case",
    "Option",
    "aligned_factor",
    "angle_law",
    "case",
    "escape",
    "factored_logits",
    "mixed_factor",
    "nearest_planes",
    "plane_coordinates",
    "principal_angles",
    "rotated_logits",
    "rotation",
    "tied",
    "tied_factor",
]  # fmt: skip

FACTORS_STREAM = 12  # of the draws


class Option(NamedTuple):
    """One way to bring positions into a factored cache."""

    says: str
    exact: bool  # whether its logits are those of the keys it stands for


OPTIONS = {
    "none": Option("nothing turns", exact=True),
    "still": Option("shared keys turn, the residual is scored by the query before it was turned", exact=True),
    "aligned": Option("each factor spans whole planes; latents turn with these", exact=True),
    "tied": Option("planes share frequencies, factors are complex-linear among those of one; latents turn", exact=True),
    "partial": Option("factors are 0 in the coordinates that turn", exact=True),
    "expand": Option("any factor; keys are made and turned as they are read", exact=True),
    "query_side": Option("any factor; the query is turned back to each key's place, then projected", exact=True),
    "latents_turned": Option("any factor; latents turn as if they were r coordinates", exact=False),
    "latents_unturned": Option("any factor; the turned query meets latents that do not turn", exact=False),
    "best_latent_map": Option("any factor; latents pass through B^+ P_t B, the closest map there is", exact=False),
    "other_layout": Option("planes of the interleaved layout where the half layout turns", exact=False),
}


class Case(NamedTuple):
    """An option made concrete: what turns keys, what turns latents, and factors it is used with."""

    option: str
    rope: Rope
    latent_rope: Rope
    factor: Float[Array, "H K r"]


def case(option: str, *, heads: int, width: int, rank: int, seed: int = 0, theta: float = 10_000.0) -> Case:
    """A case with factors drawn from `seed`. Half of the coordinates turn where `partial`.

    Raises ValueError for another option, an odd width or rank, and where planes cannot be shared out.
    """
    one_of("option", option, tuple(OPTIONS))
    dial("rank", rank, 0, width, integer=True)
    if rank % 2:
        raise ValueError(f"rank must be even, for latents turn in planes, got {rank}")
    usual = rope(width, theta=theta)
    drawn = draws.normal(seed, FACTORS_STREAM, heads * width, max(rank, 1))[:, :rank].reshape(heads, width, rank)
    drawn = drawn / np.sqrt(max(rank, 1))
    planes = (np.arange(rank // 2)[None] + (rank // 2) * np.arange(heads)[:, None]) % (width // 2)  # a head's own
    if option in ("none", "still", "expand", "query_side", "latents_unturned", "best_latent_map"):
        return Case(option, STILL if option == "none" else usual, STILL, drawn)
    if option == "latents_turned":
        return Case(option, usual, rope(rank, theta=theta), drawn)
    if option == "partial":
        half = width // 4
        drawn[:, : 2 * half] = 0
        return Case(option, rope(2 * half, theta=theta), STILL, drawn)
    if option == "tied":
        usual, latent = tied(width, rank, theta=theta)
        return Case(option, usual, latent, tied_factor(drawn[:, : width // 2, 0], drawn[:, width // 2 :, 0], rank))
    layout = "interleaved" if option == "other_layout" else "half"
    # every head has the same planes here, so that one latent rope serves all of them
    return Case(option, usual, Rope(usual.frequency[planes[0]]), aligned_factor(heads, width, planes[0], layout=layout))


# -- factors that a rotation passes through --


def plane_coordinates(width: int, planes: Array, *, layout: str = "half", total: int | None = None) -> Array:
    """Where planes lie: the first coordinate of each of them, then the second ones. `total` planes turn, all unless
    given.
    """
    total = width // 2 if total is None else total
    first, second = pairs(Rope(np.zeros(total), layout))
    every = np.arange(width)
    return np.concatenate([every[first][planes], every[second][planes]])


def aligned_factor(heads: int, width: int, planes: Array, *, layout: str = "half") -> Float[Array, "H K r"]:
    """B = E_S: column j picks one coordinate of the planes, r = 2 len(planes). Latents lie in the half layout, and turn
    by Rope(frequency[planes]). Any B = E_S M is this with M moved into the latents.

    Raises ValueError unless planes are different whole numbers in [0, width/2).
    """
    chosen = np.asarray(planes)
    whole = chosen.ndim == 1 and (chosen.size == 0 or chosen.dtype.kind in "iu")
    if not whole or len(set(chosen.tolist())) < chosen.size or not np.all((0 <= chosen) & (chosen < width // 2)):
        raise ValueError(f"planes must be different whole numbers in [0, {width // 2}), got {planes!r}")
    coordinates = plane_coordinates(width, chosen.astype(int), layout=layout)
    factor = np.zeros((heads, width, len(coordinates)))
    factor[:, coordinates, np.arange(len(coordinates))] = 1.0
    return factor


def tied(width: int, rank: int, *, theta: float = 10_000.0, layout: str = "half") -> tuple[Rope, Rope]:
    """(rope, latent_rope) with rank/2 frequencies theta^(-2c/rank), each on width/rank planes that follow each other.

    Raises ValueError where rank is odd or does not divide width.
    """
    if rank < 2 or rank % 2 or width % rank:
        raise ValueError(f"rank must be even and divide width = {width} for frequencies to be shared, got {rank}")
    few = rope(rank, theta=theta)
    return Rope(np.repeat(few.frequency, width // rank), layout), few


def tied_factor(
    real: Float[Array, "H planes"], imaginary: Float[Array, "H planes"], rank: int, *, layout: str = "half"
) -> Float[Array, "H K r"]:
    """The factor [H, K, rank] of complex weights: plane p receives its weight times the one complex latent of its
    frequency, so that turning the latent turns the plane. All K coordinates are used.
    """
    heads, planes = np.shape(real)
    every = np.arange(planes)
    latent = every // (2 * planes // rank)  # which of the rank/2 complex latents feeds a plane
    first, second = (np.arange(2 * planes)[part] for part in pairs(Rope(np.zeros(planes), layout)))
    factor = np.zeros((heads, 2 * planes, rank))
    factor[:, first, latent], factor[:, second, latent] = real, imaginary
    factor[:, first, rank // 2 + latent], factor[:, second, rank // 2 + latent] = -np.asarray(imaginary), real
    return factor


# -- logits, as each option would have them --


def factored_logits(
    option: str, q: Float[Array, "B T H K"], shared: Float[Array, "B S G K"], latent: Float[Array, "B S H r"],
    factor: Float[Array, "H K r"], rope: Rope, latent_rope: Rope, queries: Float[Array, " T"],
    keys: Float[Array, " S"],
) -> Float[Array, "B H T S"]:  # fmt: skip
    """q . K_h of every pair by this option, unscaled, from unturned queries at positions `queries` and unturned shared
    keys and latents at positions `keys`. The residual is never expanded but where the option says so.
    """
    turned = turn(q, rope, queries)
    score = np.einsum("bthk,bshk->bhts", turned, of_heads(turn(shared, rope, keys), q.shape[2]))
    if option == "expand":
        residual = turn(np.einsum("bshr,hkr->bshk", latent, factor), rope, keys)
        return score + np.einsum("bthk,bshk->bhts", turned, residual)
    if option == "query_side":
        for s, position in enumerate(keys):  # P_m q . P_s B z = (B^T P_(m - s) q) . z
            back = np.einsum("bthk,hkr->bthr", turn(q, rope, np.asarray(queries) - position), factor)
            score[..., s] += np.einsum("bthr,bhr->bht", back, latent[:, s])
        return score
    if option == "best_latent_map":
        inverse, projected = np.linalg.pinv(factor), np.einsum("bthk,hkr->bthr", turned, factor)
        for s, position in enumerate(keys):
            best = inverse @ rotation(rope, q.shape[-1], position) @ factor  # [H, r, r]
            score[..., s] += np.einsum("bthr,bhr->bht", projected, np.einsum("hrs,bhs->bhr", best, latent[:, s]))
        return score
    asking = q if option == "still" else turned
    projected = np.einsum("bthk,hkr->bthr", asking, factor)
    return score + np.einsum("bthr,bshr->bhts", projected, turn(latent, latent_rope, keys))


def rotated_logits(
    option: str, q: Float[Array, "B T H K"], shared: Float[Array, "B S G K"], latent: Float[Array, "B S H r"],
    factor: Float[Array, "H K r"], rope: Rope, queries: Float[Array, " T"], keys: Float[Array, " S"],
) -> Float[Array, "B H T S"]:  # fmt: skip
    """What they have to be: keys of every head made whole, then turned (the residual not at all where `still`)."""
    turned, residual = turn(q, rope, queries), np.einsum("bshr,hkr->bshk", latent, factor)
    score = np.einsum("bthk,bshk->bhts", turned, turn(of_heads(shared, q.shape[2]), rope, keys))
    if option == "still":
        return score + np.einsum("bthk,bshk->bhts", q, residual)
    return score + np.einsum("bthk,bshk->bhts", turned, turn(residual, rope, keys))


# -- how far a factor is from passing --


def rotation(rope: Rope, width: int, position: float) -> Float[Array, "K K"]:
    """P_t as a matrix that columns are multiplied by."""
    return turn(np.eye(width)[None, :, None], rope, np.full(width, float(position)))[0, :, 0].T


def escape(factor: Float[Array, "K r"], rope: Rope, positions: Float[Array, " S"]) -> Float[Array, " S"]:
    """How much of span(B) a rotation takes out of it, at worst: the largest singular value of (I - Q Q^T) P_t Q, Q an
    orthonormal basis. 0 at every position: latents can turn in its place. 1: some direction leaves altogether.
    """
    basis = orthonormal(factor)
    out = []
    for position in positions:
        moved = rotation(rope, len(factor), position) @ basis
        rest = moved - basis @ (basis.T @ moved)
        out.append(np.linalg.norm(rest, 2) if rest.size else 0.0)
    return np.array(out)


def mixed_factor(width: int, i: int, j: int, angle_rad: float, *, opposite: bool = False) -> Float[Array, "K 2"]:
    """Plane i leaning towards plane j by an angle: cos x_i + sin x_j in each of the two coordinates, in the half
    layout. With `opposite`, plane j is run through the other way round.
    """
    factor = np.zeros((width, 2))
    a, b = (plane_coordinates(width, np.array([plane])) for plane in (i, j))
    factor[a, [0, 1]] = np.cos(angle_rad)
    factor[b, [0, 1]] += np.sin(angle_rad) * np.array([1.0, -1.0 if opposite else 1.0])
    return factor


def angle_law(rope: Rope, i: int, j: int, angle_rad: float, positions: Array, *, opposite: bool = False) -> Array:
    """`escape` of `mixed_factor` in closed form: |sin 2 phi| |sin((theta_i - theta_j) t / 2)|, the sum of the angles
    where `opposite`.
    """
    turned = angles(rope, positions)
    apart = turned[..., i] + turned[..., j] if opposite else turned[..., i] - turned[..., j]
    return np.abs(np.sin(2 * angle_rad)) * np.abs(np.sin(apart / 2))


def principal_angles(a: Float[Array, "K m"], b: Float[Array, "K n"]) -> Array:
    """Angles between the spans in radians, smallest first, min(m, n) of them: each is exact to rounding, the small
    ones by their sines (Bjorck and Golub, 1973).
    """
    a, b = orthonormal(a), orthonormal(b)
    if a.shape[1] < b.shape[1]:
        a, b = b, a
    inner = a.T @ b
    cosines = np.linalg.svd(inner, compute_uv=False)
    sines = np.linalg.svd(b - a @ inner, compute_uv=False)[::-1]
    small = cosines**2 > 0.5
    return np.where(small, np.arcsin(np.clip(sines, 0, 1)), np.arccos(np.clip(cosines, 0, 1)))


def nearest_planes(factor: Float[Array, "K r"], count: int, *, layout: str = "half") -> Array:
    """The planes that hold most of span(B), by the squared length of its basis in them; `count` of them, rising."""
    basis = orthonormal(factor)
    width = len(basis)
    held = (basis**2).sum(axis=1)[plane_coordinates(width, np.arange(width // 2), layout=layout)]
    held = held.reshape(2, -1).sum(axis=0)
    return np.sort(np.argsort(-held, kind="stable")[:count])


def orthonormal(factor: Float[Array, "K r"]) -> Float[Array, "K n"]:
    """A basis of the columns' span, of as many columns as it has dimensions."""
    left, values, _ = np.linalg.svd(factor, full_matrices=False)
    return left[:, values > 1e-12 * max(values.max(initial=0.0), 1e-300)]
