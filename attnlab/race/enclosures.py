"""Enclosures of the integrals behind RACE's bias and variance, in ball arithmetic: docs/papers/race-proofs.md.

Letters: a(g) = tanh(beta tanh g) is the soft bit of a projection g; X = (1 + a(g1) a(g2))/2 is what one plane
contributes to a pair of unit vectors of cosine rho, where g1 and g2 are standard normal of correlation rho.

Every integral is a trapezoid sum over the lattice h Z plus a proven remainder. With w = arctan(pi/(4 beta)) the
function a is analytic in the strip |Im z| <= w, and |a| <= 1 there; so a sum misses its integral by at most
2 M/(exp(2 pi w/h) - 1), where M bounds the integral along the shifted line.

`Balls` and `Doubles` answer the same questions, the first rigorously, the second in float64: a check is written once
and says which of them it used.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from attnlab.race import theory

__all__ = ["BITS", "Balls", "Doubles", "Expansion"]

BITS = 448  # of precision: the Hermite recurrence spends up to 218 of them at |x| = CUT, n = TERMS
CUT = 12  # lattice sums run over |x| <= 12; what lies beyond is bounded
TERMS = 160  # of Mehler's expansion
STRIP = 0.5  # the widest strip used: a wider one would gain nothing


class Expansion(NamedTuple):
    """A function s of a normal g in the Hermite basis: its first c_n^2, and the sum of all of them, E s(g)^2."""

    squares: tuple[Any, ...]
    total: Any


class Balls:
    """Real numbers as balls [midpoint +/- radius] that contain the truth; `flint` is python-flint's module.

    To be used within `flint.ctx.workprec(BITS)`.
    """

    def __init__(self, flint: Any) -> None:
        self.flint = flint

    def real(self, x: int | float | str | Fraction) -> Any:
        """x exactly, or a ball around a decimal string or a fraction."""
        return self.flint.arb(x.numerator) / x.denominator if isinstance(x, Fraction) else self.flint.arb(x)

    def nearest(self, x: Any) -> float:
        """The double nearest to the ball's midpoint, to print."""
        return float(x.mid())

    def same(self, x: Any, y: Any) -> bool | None:
        """Whether x = y: True for two equal points, False for disjoint balls, else None."""
        return True if x == y else None if x.overlaps(y) else False

    def pi(self) -> Any:
        """pi."""
        return self.flint.arb.pi()

    def sqrt(self, x: Any) -> Any:
        """The square root of x."""
        return x.sqrt()

    def exp(self, x: Any) -> Any:
        """e^x."""
        return x.exp()

    def tanh(self, x: Any) -> Any:
        """tanh x."""
        return x.tanh()

    def artanh(self, x: Any) -> Any:
        """artanh x."""
        return x.atanh()

    def kappa(self, rho: Any) -> Any:
        """1 - arccos(rho)/pi."""
        return 1 - rho.acos() / self.pi()

    def soft_bit(self, g: Any, beta: Any) -> Any:
        """a(g) = tanh(beta tanh g)."""
        return (beta * g.tanh()).tanh()

    def second_moment(self, beta: Any) -> Any:
        """E a(g)^2."""
        return self._hermite(beta, 2, 1)[0]

    def plane_means(self, beta: Any, rhos: Sequence[Any]) -> list[Any]:
        """E X at each rho, by Mehler's expansion."""
        bit = self._expand(beta, 1)
        return [(1 + self._correlation(bit, rho)) / 2 for rho in rhos]

    def plane_moments(self, beta: Any, rhos: Sequence[Any]) -> list[tuple[Any, Any]]:
        """(E X, E X^2) at each rho."""
        square = self._expand(beta, 2)
        means = self.plane_means(beta, rhos)
        return [(x, (4 * x - 1 + self._correlation(square, rho)) / 4) for x, rho in zip(means, rhos, strict=True)]

    def plane_moments_by_definition(self, beta: Any, rho: Any) -> tuple[Any, Any]:
        """(E S, E S^2) of one table with one plane, S = phi(q).phi(k), phi the softmax over the corners -1 and +1.

        A sum over a lattice in the plane, which shares nothing with `plane_moments` but the strip. Slow at large beta.
        """
        w, h = self._lattice(beta)
        rest = 1 - rho * rho
        nodes = [self.real(h * j) for j in range(-int(CUT / h), int(CUT / h) + 1)]
        up, down = [], []
        for x in nodes:
            u = x.tanh()
            plus, minus = (beta * u).exp(), (-beta * u).exp()
            up.append(plus / (plus + minus))
            down.append(minus / (plus + minus))
        decay = [(-x * x / (2 * rest)).exp() for x in nodes]
        step = [(rho * x * h / rest).exp() for x in nodes]  # exp(rho x y / rest) grows by this from one y to the next
        first = [(rho * x * nodes[0] / rest).exp() for x in nodes]
        mean, square = self.real(0), self.real(0)
        for plus, minus, fall, grow, density in zip(up, down, decay, step, first, strict=True):
            row, row_square = self.real(0), self.real(0)
            for plus_k, minus_k, fall_k in zip(up, down, decay, strict=True):
                score = plus * plus_k + minus * minus_k
                weighted = score * density * fall_k
                row += weighted
                row_square += score * weighted
                density *= grow
            mean += fall * row
            square += fall * row_square
        scale = self.real(h) ** 2 / (2 * self.pi() * rest.sqrt())
        cut = self.real(CUT)
        outside = 4 * (1 + h / (2 * self.pi() * rest).sqrt()) * (-cut * cut / 2).exp() / (cut * (2 * self.pi()).sqrt())
        aliasing = 2 * (2 + h) * (self.real(w) ** 2 / (2 * rest)).exp() / self._periods(w, h)
        return self._widened(scale * mean, outside + aliasing), self._widened(scale * square, outside + aliasing)

    # -- Mehler's expansion: E s(g1) s(g2) = sum_n rho^n c_n^2 --------------------------------------------------------

    def _expand(self, beta: Any, power: int) -> Expansion:
        squares = tuple(c * c for c in self._hermite(beta, power, TERMS))
        return Expansion(squares, self._hermite(beta, 2 * power, 1)[0])

    def _correlation(self, expansion: Expansion, rho: Any) -> Any:
        """sum_n rho^n c_n^2; what is left out lies within |rho|^TERMS times the rest of E s^2."""
        if rho * rho == 1:
            return expansion.total if rho > 0 or self._even(expansion) else -expansion.total
        value, power, rest = self.real(0), self.real(1), expansion.total
        for square in expansion.squares:
            value += power * square
            rest -= square
            power *= rho
        return self._widened(value, abs(power) * abs(rest))

    def _even(self, expansion: Expansion) -> bool:
        return bool(expansion.squares[1] == 0)

    def _hermite(self, beta: Any, power: int, terms: int) -> list[Any]:
        """c_n = E[a(g)^power He_n(g)]/sqrt(n!) for n < terms; those of the other parity are 0 by symmetry."""
        w, h = self._lattice(beta)
        roots = [self.real(n).sqrt() for n in range(terms + 1)]
        sums = [self.real(0) for _ in range(terms)]
        for j in range(int(CUT / h) + 1):
            x = self.real(h * j)
            sides = 1 if j == 0 else 2  # x and -x at once
            weight = sides * (-x * x / 2).exp() * self.soft_bit(x, beta) ** power
            before, now = self.real(0), self.real(1)  # He_n(x)/sqrt(n!)
            for n in range(terms):
                if (n - power) % 2 == 0:
                    sums[n] += weight * now
                before, now = now, (x * now - roots[n] * before) / roots[n + 1]
        scale = h / (2 * self.pi()).sqrt()
        return [
            self._widened(scale * total, self._remainder(n, w, h)) if (n - power) % 2 == 0 else self.real(0)
            for n, total in enumerate(sums)
        ]

    def _remainder(self, n: int, w: float, h: float) -> Any:
        """What the lattice sum for c_n misses by its spacing and beyond CUT; Mehler's kernel at r bounds He_n."""
        r = 1 - self.real(1) / (n + 2)
        size = (1 - r * r) ** self.real(Fraction(-1, 4)) * r ** self.real(Fraction(-n, 2))
        aliasing = 2 * size * (1 + r).sqrt() * (self.real(w) ** 2 / (2 * (1 - r))).exp() / self._periods(w, h)
        cut = self.real(CUT)
        outside = 2 * size * (1 + r) / cut * (-cut * cut / (2 * (1 + r))).exp() / (2 * self.pi()).sqrt()
        return aliasing + outside

    def _periods(self, w: float, h: float) -> Any:
        return (2 * self.pi() * w / h).exp() - 1

    def _lattice(self, beta: Any) -> tuple[float, float]:
        """(w, h): the strip's half-width, and a spacing of 2^-m that makes exp(-2 pi w/h) less than exp(-60)."""
        w = min(math.atan(math.pi / (4 * float(beta.upper()))) * (1 - 1e-12), STRIP)
        return w, 2.0 ** math.floor(math.log2(2 * math.pi * w / 60))

    def _widened(self, x: Any, radius: Any) -> Any:
        return x + self.flint.arb(0, radius.upper())


class Doubles:
    """The same questions in float64: what is left where python-flint is not installed."""

    def real(self, x: int | float | str | Fraction) -> float:
        """x to the nearest double."""
        return float(x)

    def nearest(self, x: float) -> float:
        """x itself."""
        return x

    def same(self, x: float, y: float) -> bool | None:
        """Whether x = y up to rounding."""
        return bool(abs(x - y) <= 1e-15) if math.isfinite(x - y) else None

    def pi(self) -> float:
        """pi."""
        return math.pi

    def sqrt(self, x: float) -> float:
        """The square root of x."""
        return math.sqrt(x)

    def exp(self, x: float) -> float:
        """e^x."""
        return math.exp(x)

    def tanh(self, x: float) -> float:
        """tanh x."""
        return math.tanh(x)

    def artanh(self, x: float) -> float:
        """artanh x."""
        return math.atanh(x)

    def kappa(self, rho: float) -> float:
        """1 - arccos(rho)/pi."""
        return 1 - math.acos(rho) / math.pi

    def soft_bit(self, g: float, beta: float) -> float:
        """a(g) = tanh(beta tanh g)."""
        return math.tanh(beta * math.tanh(g))

    def second_moment(self, beta: float) -> float:
        """E a(g)^2."""
        return theory.second_moment(beta)

    def plane_means(self, beta: float, rhos: Sequence[float]) -> list[float]:
        """E X at each rho."""
        return [x for x, _ in self.plane_moments(beta, rhos)]

    def plane_moments(self, beta: float, rhos: Sequence[float]) -> list[tuple[float, float]]:
        """(E X, E X^2) at each rho."""
        x, xx = theory.pair_moments(np.arccos(np.asarray(rhos)), beta)
        return list(zip(x.tolist(), xx.tolist(), strict=True))

    def plane_moments_by_definition(self, beta: float, rho: float) -> tuple[float, float]:
        """(E S, E S^2) of one table with one plane, phi the softmax over the corners: the lattice sum of `Balls`."""
        h = 2.0**-4 / max(1.0, beta)
        x = np.arange(-CUT, CUT + h / 2, h)
        logits = beta * np.tanh(x)[:, None] * np.array([-1.0, 1.0])
        phi = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
        score, rest = phi @ phi.T, 1 - rho * rho
        distance = x[:, None] ** 2 - 2 * rho * np.outer(x, x) + x**2
        density = h * h * np.exp(-distance / (2 * rest)) / (2 * math.pi * math.sqrt(rest))
        return float((score * density).sum()), float((score**2 * density).sum())
