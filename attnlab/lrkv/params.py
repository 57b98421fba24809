"""What LRKV is told: queries, a cache in factors, how it turns with position; the checks of its public door; the dials
of the panel.

Letters: r `rank`, B_h `factor`, R_h `latent`, K_s and V_s `shared`, P_t `Rope`. B batch (a bare B is never a factor
here), T queries, S keys, H query heads, G shared keys and values (a divisor of H; 1 in the paper), K and V widths, R
and Rv ranks of keys and of values.
"""

from typing import Any, NamedTuple

import numpy as np

from attnlab.arrays import Array, Axes, Float, as_numpy, check, check_shape, dial, flag, one_of

__all__ = ["LAYOUTS", "STILL", "Rope", "check_arguments", "check_rope", "rope"]

LAYOUTS = ("half", "interleaved")


class Rope(NamedTuple):
    """A rotation that grows with position: plane i turns by `frequency[i]` radians a position.

    The planes lie in the first 2 len(frequency) coordinates: "half" pairs i with i + len(frequency) (Llama in
    transformers), "interleaved" 2i with 2i + 1 (GGUF, GPT-J). Coordinates beyond them stay (partial RoPE).
    """

    frequency: Any  # [planes], radians a position
    layout: str = "half"


STILL = Rope(np.zeros(0))  # nothing turns


def rope(width: int, *, theta: float = 10_000.0, layout: str = "half") -> Rope:
    """The usual one: frequencies theta^(-2i/width), i = 0 .. width/2 - 1 (RoFormer, arXiv:2104.09864, Eq. 15).

    Raises ValueError for an odd width.
    """
    width = dial("width", width, 0, 2**20, integer=True)
    if width % 2:
        raise ValueError(f"width must be even to form rotary planes, got {width}")
    dial("theta", theta, 1e-6, 1e30)
    return Rope(theta ** (-2.0 * np.arange(width // 2) / max(width, 1)), one_of("layout", layout, LAYOUTS))


def check_rope(name: str, given: Any, width: int) -> None:
    """Refuse what cannot turn rows of `width` numbers."""
    if not isinstance(given, tuple) or len(given) != 2:
        raise TypeError(f"{name} must be a Rope(frequency, layout), got {type(given).__name__}")
    sizes: Axes = {}
    check(f"{name}.frequency", given[0], "planes", sizes)
    one_of(f"{name}.layout", given[1], LAYOUTS)
    if 2 * sizes["planes"][0] > width:
        raise ValueError(f"{name}.frequency must have at most {width // 2} planes, got {sizes['planes'][0]}")


def check_arguments(
    q, k_shared, v_shared, k_latent, v_latent, k_factor, v_factor, *,
    q_residual, k_scale, rope, latent_rope, positions, starts, ends, causal, scale, return_lse,
) -> None:  # fmt: skip
    """Refuse what no implementation can compute; each error names the argument, what was wanted and what came.

    What lies outside of `starts` and `ends` may hold anything, so where one of them is given the numbers of the cache
    are not looked at.
    """
    sizes: Axes = {}
    look = check if starts is None and ends is None else _shape_only
    check("q", q, "B T H K", sizes)
    look("k_shared", k_shared, "B S G K", sizes)
    look("v_shared", v_shared, "B S G V", sizes)
    heads, groups = sizes["H"][0], sizes["G"][0]
    if heads and (not groups or heads % groups):
        raise ValueError(f"k_shared must have a number of heads that divides the {heads} of q, got {groups}")
    for name, latent, factor, width, rank in (
        ("k", k_latent, k_factor, "K", "R"),
        ("v", v_latent, v_factor, "V", "Rv"),
    ):
        if (latent is None) != (factor is None):
            given, missing = ("factor", "latent") if latent is None else ("latent", "factor")
            raise ValueError(f"{name}_{missing} must be given where {name}_{given} is, got None")
        if latent is not None:
            look(f"{name}_latent", latent, f"B S H {rank}", sizes)
            check(f"{name}_factor", factor, f"H {width} {rank}", sizes)
    if q_residual is not None:
        if k_latent is None:
            raise ValueError("q_residual must be None where there are no k_latent, got one")
        check("q_residual", q_residual, "B T H K", sizes)
    if k_scale is not None:
        look("k_scale", k_scale, "B S H", sizes)
    _check_positions(rope, latent_rope, positions, q_residual, k_latent is not None, sizes)
    for name, edge in (("starts", starts), ("ends", ends)):
        if edge is not None:
            _check_edge(name, edge, sizes)
    if starts is not None and ends is not None and np.any(as_numpy(starts) > as_numpy(ends)):
        raise ValueError(f"starts must not exceed ends, got {as_numpy(starts).tolist()} and {as_numpy(ends).tolist()}")
    flag("causal", causal)
    flag("return_lse", return_lse)
    if scale is not None:
        dial("scale", scale, -1e30, 1e30)


def _shape_only(name: str, array: Any, axes: str, sizes: Axes) -> None:
    check_shape(name, array, axes, sizes, floating=True)


def _check_positions(rope, latent_rope, positions, q_residual, residual, sizes) -> None:
    if rope is None:
        for name, given in (("latent_rope", latent_rope), ("positions", positions)):
            if given is not None:
                raise ValueError(f"{name} must be None where rope is, got one")
        return
    check_rope("rope", rope, sizes["K"][0])
    if latent_rope is not None:
        if not residual:
            raise ValueError("latent_rope must be None where there are no k_latent, got one")
        check_rope("latent_rope", latent_rope, sizes["R"][0])
    elif q_residual is not None:
        raise ValueError("q_residual must be None where residual keys are expanded and turned, got one")
    if positions is None:
        raise ValueError("positions must be given where rope is, got None")
    positions = as_numpy(positions)
    (B, _), (S, _) = sizes["B"], sizes["S"]
    if positions.dtype.kind not in "iuf" or positions.shape not in ((S,), (B, S)):
        raise ValueError(
            f"positions must be numbers [S] or [B, S] with S = {S}, got {positions.dtype} of shape {positions.shape}"
        )
    if not np.isfinite(positions).all():
        raise ValueError("positions must be finite, got one that is not")


def _check_edge(name: str, edge: Any, sizes: Axes) -> None:
    edge = as_numpy(edge)
    (B, _), (S, _) = sizes["B"], sizes["S"]
    if edge.dtype.kind not in "iu" or edge.shape != (B,):
        raise ValueError(f"{name} must be whole numbers [B] with B = {B}, got {edge.dtype} of shape {edge.shape}")
    if np.any(edge < 0) or np.any(edge > S):
        raise ValueError(f"{name} must lie in [0, {S}], got {edge.tolist()}")


def edges(starts: Any, ends: Any, B: int, S: int) -> tuple[Array, Array]:
    """(starts, ends), int64 [B] each, with what they are where none was given."""
    start = np.zeros(B, np.int64) if starts is None else as_numpy(starts).astype(np.int64)
    end = np.full(B, S) if ends is None else as_numpy(ends).astype(np.int64)
    return start, end


def angles(rope: Rope, positions: Float[Array, "... S"]) -> Float[Array, "... S planes"]:
    """By how much each plane is turned at each position, in radians."""
    return as_numpy(positions).astype(np.float64)[..., None] * as_numpy(rope.frequency).astype(np.float64)


def pairs(rope: Rope) -> tuple[slice, slice]:
    """Where the first and where the second coordinates of the planes stand."""
    n = len(rope.frequency)
    return (slice(0, n), slice(n, 2 * n)) if rope.layout == "half" else (slice(0, 2 * n, 2), slice(1, 2 * n, 2))
