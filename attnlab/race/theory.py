"""What RACE's estimate is worth before any data is seen: exact bias and variance, Lemma 10's failure regions, Theorem
2's rate (arXiv:2510.04008v5).

For unit q and k at angle theta, one plane contributes X = (1 + a(g1) a(g2))/2 with a(g) = tanh(beta tanh g) and (g1,
g2) standard normal of correlation cos(theta) (this project; it follows from the factorised features of p. 22). Tables
and planes are independent, so

    E S_hat = E[X]^P,        Var S_hat = (E[X^2]^P - E[X]^(2P)) / L.

The two moments are integrals over the plane, done here in polar coordinates: a trapezoid rule in the angle, where the
integrand is periodic, and Gauss-Legendre on dyadic panels in the radius, because a bends at a radius of order 1/beta.
"""

from typing import NamedTuple

import numpy as np

from attnlab.arrays import Array, Float
from attnlab.race.reference import kappa

__all__ = [
    "ANGLE_POINTS",
    "Band",
    "band",
    "every_draw_region",
    "lemma10_fails",
    "many_tables_region",
    "pair_moments",
    "radial_rule",
    "second_moment",
    "theorem2_rate",
]

ANGLE_POINTS = 1024  # of the whole circle; half of them serve, the integrand repeats after pi
PANELS, NODES, RADIUS = 8, 12, 9.0


class Band(NamedTuple):
    """S_hat of unit vectors at each angle: exact mean and standard deviation, and the kernel it estimates."""

    mean: Float[Array, " N"]
    sd: Float[Array, " N"]
    target: Float[Array, " N"]


def radial_rule() -> tuple[Float[Array, " M"], Float[Array, " M"]]:
    """Radii and weights for the integral of r exp(-r^2/2) f(r) over r > 0: 12 Gauss-Legendre nodes on each of [0,
    9/128], [9/128, 9/64], ..., [9/2, 9].
    """
    x, w = np.polynomial.legendre.leggauss(NODES)
    edges = np.concatenate([[0.0], RADIUS * 2.0 ** np.arange(1 - PANELS, 1)])
    half = np.diff(edges)[:, None] / 2
    r = (edges[:-1, None] + half * (1 + x)).ravel()
    return r, (half * w).ravel() * r * np.exp(-r * r / 2)


def soft_sign(g: Array, sharpness: float) -> Array:
    """a(g) = tanh(beta tanh g): the soft bit of a projection g, in (-1, 1)."""
    return np.tanh(sharpness * np.tanh(g))


def pair_moments(angle_rad: Float[Array, " N"], sharpness: float) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """(E[X], E[X^2]) of one plane for unit vectors at each angle. Good to 1e-8 up to sharpness 16, to 1e-4 at 32 (both
    tested).
    """
    r, weight = radial_rule()
    t = 2 * np.pi * np.arange(ANGLE_POINTS // 2) / ANGLE_POINTS
    first = soft_sign(r[:, None] * np.cos(t), sharpness)  # [M, T]
    mean_aa, mean_aabb = np.empty((2, np.size(angle_rad)))
    for i, theta in enumerate(np.atleast_1d(angle_rad)):
        product = first * soft_sign(r[:, None] * np.cos(t - theta), sharpness)
        mean_aa[i] = weight @ product.mean(axis=1)
        mean_aabb[i] = weight @ (product * product).mean(axis=1)
    return (1 + mean_aa) / 2, (1 + 2 * mean_aa + mean_aabb) / 4


def band(angle_rad: Float[Array, " N"], planes: int, tables: int, sharpness: float) -> Band:
    """The exact mean and standard deviation of S_hat for unit vectors at each angle, beside kappa^P: bias and sampling
    noise with no simulation.
    """
    x, xx = pair_moments(angle_rad, sharpness)
    variance = np.maximum(xx**planes - x ** (2 * planes), 0.0) / tables
    return Band(x**planes, np.sqrt(variance), kappa(np.cos(np.atleast_1d(angle_rad))) ** planes)


# -- Lemma 10 (p. 24), for q = k = one unit vector, where S = 1 and the lemma wants |E| <= N/2 --


def second_moment(sharpness: float) -> float:
    """E tanh(beta tanh g)^2 for a standard normal g."""
    r, weight = radial_rule()
    t = 2 * np.pi * np.arange(ANGLE_POINTS // 2) / ANGLE_POINTS
    return float(weight @ (soft_sign(r[:, None] * np.cos(t), sharpness) ** 2).mean(axis=1))


def every_draw_region(planes: int) -> float:
    """Below this sharpness the lemma fails for EVERY number of tables and every draw: ((1 + tanh^2 beta)/2)^P < 1/2
    bounds S_hat (this project).
    """
    return float(np.arctanh(np.sqrt(2 ** (1 - 1 / planes) - 1)))


def many_tables_region(planes: int) -> float:
    """Below this sharpness it fails with probability to 1 as tables are added: there E S_hat < 1/2 (this project)."""
    target = 2 ** (1 - 1 / planes) - 1
    low, high = 0.0, 64.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if second_moment(middle) < target else (low, middle)
    return low


def lemma10_fails(planes: int, sharpness: float) -> tuple[bool, bool]:
    """(for every draw, with many tables): whether these dials lie in either failure region."""
    target = 2 ** (1 - 1 / planes) - 1
    return bool(np.tanh(sharpness) ** 2 < target), bool(second_moment(sharpness) < target)


def theorem2_rate(
    planes: int, tables: Float[Array, " N"], sharpness: float, tokens: int, delta: float = 0.05
) -> Float[Array, " N"]:
    """P/beta + sqrt(log(N/delta)/L): Theorem 2's rate (p. 8) up to its unstated constant and |V|_F.

    It is claimed without a mask, for unit q and k, row sums of S at least C1 N, |S|_2 <= C2 N and a controlled row
    perturbation (pp. 17, 26-27).
    """
    return planes / sharpness + np.sqrt(np.log(tokens / delta) / np.asarray(tables, dtype=np.float64))
