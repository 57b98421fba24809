"""LRKV in rational arithmetic: which factors a rotation passes through, how a norm treats a sum, what centring leaves.

An angle is a point (cos, sin) of the unit circle with fractions for coordinates: (0, 1) is a quarter turn, (3/5, 4/5)
is no part of a full turn. Vectors are columns, so a residual key is B z and turns to P B z. Arrays hold Fractions or
ints; nothing is rounded, and equality means equality.

    QUARTER_TURN    the smallest factor that full RoPE does not pass through, with its rotation
    latent_map      the rotation of r numbers that does the same, or None
    subspaces       every small space of a dimension, to be searched
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations, product
from math import isqrt
from typing import NamedTuple

import numpy as np

from attnlab.arrays import Array, Float

__all__ = [
    "CIRCLE",
    "QUARTER_TURN",
    "Turned",
    "centred",
    "fractions",
    "is_whole_planes",
    "latent_map",
    "orbit",
    "planes",
    "rank",
    "rms_norm",
    "rotation",
    "subspaces",
]  # fmt: skip

Exact = Array  # dtype object, filled with Fractions or ints
Point = tuple[Fraction, Fraction]  # cos and sin of an angle


def fractions(numerators: Array, denominator: int = 1) -> Exact:
    """An array of whole numbers over one denominator."""
    return np.vectorize(lambda n: Fraction(int(n), denominator), otypes=[object])(numerators)


def rank(matrix: Float[Exact, "m n"]) -> int:
    """The exact rank."""
    return len(reduced(matrix)[1])


def reduced(matrix: Float[Exact, "m n"]) -> tuple[Float[Exact, "m n"], list[int]]:
    """The reduced row echelon form and the columns of its pivots."""
    rows, pivots = matrix.copy(), list[int]()
    for column in range(matrix.shape[1]):
        at = next((i for i in range(len(pivots), len(rows)) if rows[i, column] != 0), None)
        if at is None:
            continue
        top = len(pivots)
        rows[[top, at]] = rows[[at, top]]
        rows[top] = rows[top] / Fraction(rows[top, column])
        for i in range(len(rows)):
            if i != top and rows[i, column] != 0:
                rows[i] = rows[i] - rows[i, column] * rows[top]
        pivots.append(column)
    return rows, pivots


# -- rotations and spans ----------------------------------------------------------------------------------------------


def _point(opposite: int, adjacent: int, hypotenuse: int) -> Point:
    return Fraction(adjacent, hypotenuse), Fraction(opposite, hypotenuse)


CIRCLE = (_point(4, 3, 5), _point(12, 5, 13), _point(15, 8, 17))  # three angles; no two equal or opposite, none 0 or pi


def planes(count: int, *, layout: str = "half") -> list[tuple[int, int]]:
    """The two coordinates of each plane: i and i + count in the half layout, 2i and 2i + 1 in the interleaved one."""
    return [(i, i + count) if layout == "half" else (2 * i, 2 * i + 1) for i in range(count)]


def rotation(points: Sequence[Point], *, layout: str = "half") -> Float[Exact, "K K"]:
    """P_1, which turns plane i by the angle of points[i]; all 2 len(points) coordinates turn.

    Raises ValueError for a point that is not on the unit circle.
    """
    turned = np.full((2 * len(points), 2 * len(points)), Fraction(0), dtype=object)
    for (cos, sin), (first, second) in zip(points, planes(len(points), layout=layout), strict=True):
        if cos * cos + sin * sin != 1:
            raise ValueError(f"points must lie on the unit circle, got ({cos}, {sin})")
        turned[first, first] = turned[second, second] = cos
        turned[first, second], turned[second, first] = -sin, sin
    return turned


def latent_map(factor: Float[Exact, "K r"], turned: Float[Exact, "K K"]) -> Float[Exact, "r r"] | None:
    """P~ with P B = B P~, or None where there is none: B P~ = P B solved by elimination, for independent columns.

    Raises ValueError for dependent ones.
    """
    r = factor.shape[1]
    if rank(factor) != r:
        raise ValueError(f"factor must have independent columns, got rank {rank(factor)} with {r} columns")
    rows, pivots = reduced(np.concatenate([factor, turned @ factor], axis=1))
    return rows[:r, r:] if len(pivots) == r else None


def orbit(factor: Float[Exact, "K r"], turned: Float[Exact, "K K"]) -> int:
    """The dimension of the smallest space that holds the columns and every P^t of them."""
    spanned, power = factor, factor
    while rank(spanned) < rank(larger := np.concatenate([spanned, power := turned @ power], axis=1)):
        spanned = larger
    return rank(spanned)


def is_whole_planes(factor: Float[Exact, "K r"], pairs: Sequence[tuple[int, int]]) -> bool:
    """Whether the columns span a sum of these planes: as many dimensions as the planes that they touch have."""
    touched = sum(bool(np.any(factor[list(pair)] != 0)) for pair in pairs)
    return rank(factor) == 2 * touched


def subspaces(width: int, dimension: int, entries: Sequence[int]) -> Iterator[Float[Exact, "K r"]]:
    """Every space of a dimension whose reduced echelon basis has its free entries among these, once each."""
    for pivots in combinations(range(width), dimension):
        free = [(i, j) for j, pivot in enumerate(pivots) for i in range(pivot + 1, width) if i not in pivots]
        for numbers in product(entries, repeat=len(free)):
            basis = np.full((width, dimension), Fraction(0), dtype=object)
            for j, pivot in enumerate(pivots):
                basis[pivot, j] = Fraction(1)
            for place, number in zip(free, numbers, strict=True):
                basis[place] = Fraction(number)
            yield basis


class Turned(NamedTuple):
    """A factor and a rotation."""

    factor: Float[Exact, "K r"]
    rotation: Float[Exact, "K K"]

    def moved(self) -> Float[Exact, "K r"]:
        """P B."""
        return self.rotation @ self.factor

    def passes(self) -> bool:
        """Whether the rotation passes through the factor, to a rotation of its r latents."""
        return latent_map(self.factor, self.rotation) is not None


QUARTER_TURN = Turned(fractions(np.array([[1], [0]])), rotation([(Fraction(0), Fraction(1))]))


# -- norms and heads --------------------------------------------------------------------------------------------------


def rms_norm(x: Float[Exact, " K"]) -> Float[Exact, " K"]:
    """x over the root of its mean square. Raises ValueError where that root is not a fraction, or 0."""
    square = sum((Fraction(n) ** 2 for n in x), Fraction(0)) / len(x)
    root = Fraction(isqrt(square.numerator), isqrt(square.denominator))
    if root * root != square or not square:
        raise ValueError(f"x must have a mean square that is the square of a fraction, and not 0, got {square}")
    return x / root


def centred(gram: Float[Exact, "H H"]) -> Float[Exact, "H H"]:
    """J G J, J = I - 1 1^T / H."""
    H = len(gram)
    J = fractions(H * np.eye(H, dtype=int) - 1, H)
    return J @ gram @ J
