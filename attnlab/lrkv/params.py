"""What LRKV is told: queries, a cache in factors, how it turns with position; the checks of its public door; the dials
of the panel.

Letters: r `rank`, B_h `factor`, R_h `latent`, K_s and V_s `shared`, P_t `Rope`. B batch (a bare B is never a factor
here), T queries, S keys, H query heads, G shared keys and values (a divisor of H; 1 in the paper), K and V widths, R
and Rv ranks of keys and of values.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attnlab import draws
from attnlab.arrays import Array, Axes, Float, as_numpy, check, check_shape, dial, flag, one_of
from attnlab.dials import Dials, knob
from attnlab.inputs import STREAMS

__all__ = ["BYTES", "LAYOUTS", "STILL", "WAYS", "LrkvParams", "Rope", "check_arguments", "check_rope", "rope"]

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
    if not isinstance(given, Rope):
        raise TypeError(f"{name} must be a Rope(frequency, layout), got {type(given).__name__}")
    if not hasattr(given.frequency, "shape"):
        raise TypeError(f"{name}.frequency must be an array [planes], got {type(given.frequency).__name__}")
    sizes: Axes = {}
    check(f"{name}.frequency", given.frequency, "planes", sizes)
    one_of(f"{name}.layout", given.layout, LAYOUTS)
    if 2 * sizes["planes"][0] > width:
        raise ValueError(f"{name}.frequency must have at most {width // 2} planes, got {sizes['planes'][0]}")


def check_arguments(
    q, k_shared, v_shared, k_latent, v_latent, k_factor, v_factor, *,
    q_residual, k_scale, rope, latent_rope, positions, starts, ends, causal, scale, return_lse,
) -> None:  # fmt: skip
    """Refuse what no implementation can compute; each error names the argument, what was wanted and what came.

    The numbers of the cache are not looked at: that would cost as much as reading it, and outside of `starts` and
    `ends` it may hold anything. `FactoredCache` looks at each token once, when it comes.
    """
    sizes: Axes = {}
    look = partial(check_shape, floating=True)
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


# -- the dials of the panel --

WAYS = (  # to bring positions into a factored cache: the names of rotary.OPTIONS, exact ones first
    "none", "still", "aligned", "tied", "partial", "expand", "query_side", "latents_turned", "latents_unturned",
    "best_latent_map", "other_layout",
)  # fmt: skip
BYTES = {"float32": 4, "bfloat16": 2, "float8": 1}
KEY_LATENTS_STREAM, VALUE_LATENTS_STREAM, VALUE_FACTOR_STREAM = 13, 14, 15  # of the draws


class Example(NamedTuple):
    """One drawn sequence before anything turns: what each head asks, and a cache in factors."""

    q: Float[Array, "1 n H K"]
    k_shared: Float[Array, "1 n 1 K"]
    v_shared: Float[Array, "1 n 1 K"]
    k_latent: Float[Array, "1 n H r"]
    v_latent: Float[Array, "1 n H r"]
    v_factor: Float[Array, "H K r"]
    tokens: tuple[str, ...]


@dataclass(frozen=True)
class LrkvParams(Dials):
    """The dials of the panel with their ranges and the paper's letters; slider, test and notebook use the same ones.

    The cache meter takes its sizes as they are set, the turning example what it can use of them: see `sizes` and
    `pair`. Raises ValueError with the dial's name, its range and what came.
    """

    option: str = knob("latents_turned", label="repair", choices=WAYS)
    angle: int = knob(30, 0, 90, label="lean in degrees", paper="φ")
    first: int = knob(1, 1, 64, label="plane", paper="i")
    second: int = knob(8, 1, 64, label="towards plane", paper="j")
    opposite: bool = knob(False, label="other way round")
    position: int = knob(3, 0, 64, label="position", paper="t")
    turn: int = knob(25, -180, 180, label="turn the view")
    tilt: int = knob(30, -90, 90, label="tilt it")
    heads: int = knob(6, 1, 64, label="heads", paper="H")
    head_width: int = knob(32, 4, 128, label="head width", paper="d")
    rank: int = knob(12, 0, 128, label="rank", paper="r")
    tokens: int = knob(24, 2, 64, label="tokens", paper="n")
    groups: int = knob(2, 1, 64, label="GQA groups")
    latent_width: int = knob(96, 0, 960, label="MLA width")
    stored: str = knob("bfloat16", label="stored as", choices=tuple(BYTES))
    context: int = knob(8192, 1, 1_048_576, label="context")
    layers: int = knob(12, 1, 128, label="layers")
    shared: float = knob(0.3, 0.0, 1.0, label="shared part")
    seed: int = knob(0, 0, 9999, label="seed")

    @property
    def sizes(self) -> tuple[int, int]:
        """(K, r) of the turning example: the largest width up to the dial's with whole pairs of planes, and the largest
        even rank up to the dial's that leaves as many planes as it takes; where frequencies are tied, one that divides
        the width.
        """
        width = self.head_width - self.head_width % 4
        rank = min(self.rank - self.rank % 2, width // 2)
        if self.option == "tied":
            rank = max((r for r in range(2, rank + 1, 2) if width % r == 0), default=0)
        return width, rank

    def inputs(self) -> Example:
        """The turning example, drawn from the seed; a head's numbers do not depend on how many heads there are."""
        (K, r), n, H = self.sizes, self.tokens, self.heads

        def draw(stream: int, heads: int, width: int) -> Array:
            return draws.normal(self.seed, stream, n, heads * width).reshape(1, n, heads, width)

        v_factor = draws.normal(self.seed, VALUE_FACTOR_STREAM, H * K, r).reshape(H, K, r) / np.sqrt(max(r, 1))
        return Example(
            q=draw(STREAMS["queries"], H, K),
            k_shared=draw(STREAMS["keys"], 1, K),
            v_shared=draw(STREAMS["values"], 1, K),
            k_latent=draw(KEY_LATENTS_STREAM, H, r),
            v_latent=draw(VALUE_LATENTS_STREAM, H, r),
            v_factor=v_factor,
            tokens=tuple(str(t + 1) for t in range(n)),
        )

    @property
    def pair(self) -> tuple[int, int]:
        """The two planes, from 0: the dials' as far as there are so many, and never the same."""
        planes = self.sizes[0] // 2
        i, j = (min(plane, planes) - 1 for plane in (self.first, self.second))
        return i, j if i != j else (j + 1) % planes

    @property
    def sharing(self) -> int:
        """How many shared keys GQA has: the largest number up to the dial's that divides the heads."""
        return max(groups for groups in range(1, min(self.groups, self.heads) + 1) if self.heads % groups == 0)
