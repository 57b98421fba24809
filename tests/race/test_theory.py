"""Bias and variance without simulation, against adaptive integrals, simulation and closed forms."""

import numpy as np
import pytest

from attnlab import draws
from attnlab.race import reference, theory


def test_the_radial_rule_integrates_the_density():
    r, weight = theory.radial_rule()
    assert weight.sum() == pytest.approx(1.0, abs=1e-14)
    assert (weight * r**2).sum() == pytest.approx(2.0, abs=1e-12)  # E[g1^2 + g2^2]


def test_values_checked_by_hand():
    assert theory.band([np.pi / 3], 2, 1, 1.0).mean[0] == pytest.approx(0.31724, abs=5e-6)
    for sharpness in (0.1, 1.0, 8.0, 32.0):
        assert theory.band([np.pi / 2], 2, 1, sharpness).mean[0] == pytest.approx(0.25, abs=1e-12)
    assert theory.pair_moments([np.pi / 3], 8.0)[0][0] - 2 / 3 == pytest.approx(-0.002404, abs=5e-7)
    assert theory.pair_moments([np.pi / 3], 16.0)[0][0] - 2 / 3 == pytest.approx(-0.000593, abs=5e-7)


@pytest.mark.parametrize(("sharpness", "tolerance"), [(0.1, 1e-8), (2.0, 1e-8), (16.0, 1e-8), (32.0, 1e-4)])
def test_moments_match_a_much_finer_rule(sharpness, tolerance):
    """Sixteen times the angles and four times the radial panels: where both rules agree, the integral has converged."""
    angles = np.array([0.0, 0.3, np.pi / 3, 2.5, np.pi])
    r, weight = fine_radial_rule()
    t = np.pi * np.arange(8192) / 8192
    for angle, x, xx in zip(angles, *theory.pair_moments(angles, sharpness), strict=True):
        product = np.tanh(sharpness * np.tanh(r * np.cos(t))) * np.tanh(sharpness * np.tanh(r * np.cos(t - angle)))
        assert x == pytest.approx((1 + weight @ product.mean(1)) / 2, abs=tolerance)
        assert xx == pytest.approx(weight @ ((1 + product) ** 2).mean(1) / 4, abs=tolerance)


def fine_radial_rule():
    x, w = np.polynomial.legendre.leggauss(16)
    edges = np.concatenate([[0.0], 9.0 * 2.0 ** np.arange(-9, 1, 0.5)])
    half = np.diff(edges)[:, None] / 2
    r = (edges[:-1, None] + half * (1 + x)).ravel()[:, None]
    return r, (half * w).ravel() * r[:, 0] * np.exp(-(r[:, 0] ** 2) / 2)


def test_a_simulation_lies_within_the_band():
    angle, planes, sharpness, draws_made = 0.9, 3, 2.0, 40_000
    K = 2
    q, k = (np.array([np.cos(a), np.sin(a)]) for a in (0.2, 0.2 + angle))
    W = draws.normal(5, 9, draws_made * planes, K).reshape(draws_made, planes, K)
    a_q, a_k = (np.tanh(sharpness * np.tanh(W @ x)) for x in (q, k))
    scores = np.prod((1 + a_q * a_k) / 2, axis=-1)
    exact = theory.band([angle], planes, 1, sharpness)
    assert scores.mean() == pytest.approx(exact.mean[0], abs=5 * exact.sd[0] / np.sqrt(draws_made))
    assert scores.std() == pytest.approx(exact.sd[0], rel=0.03)  # 5 sigma of a standard deviation from 40,000 draws
    assert reference.kappa(np.cos(angle)) ** planes == pytest.approx(exact.target[0])


def test_lemma_10_fails_below_the_two_thresholds():
    every = [0.764285, 1.011595, 1.174494, 1.296704, 1.394665]
    many = [1.387907, 2.057355, 2.646947, 3.212891, 3.773112]
    assert theory.every_draw_region(1) == theory.many_tables_region(1) == 0.0
    for planes, a, b in zip(range(2, 7), every, many, strict=True):
        assert theory.every_draw_region(planes) == pytest.approx(a, abs=1e-6)
        assert theory.many_tables_region(planes) == pytest.approx(b, abs=1e-6)
        assert theory.lemma10_fails(planes, a - 1e-4) == (True, True)
        assert theory.lemma10_fails(planes, a + 1e-4) == (False, True)
        assert theory.lemma10_fails(planes, b + 1e-4) == (False, False)


def test_one_plane_never_fails_the_lemma():
    assert theory.lemma10_fails(1, 1e-3) == (False, False)


def test_the_rate_falls_with_tables_and_with_sharpness():
    rate = theory.theorem2_rate(2, [1, 4], 8.0, 64)
    assert rate[0] - 2 / 8 == pytest.approx(2 * (rate[1] - 2 / 8))
    assert theory.theorem2_rate(2, [4], 16.0, 64) < rate[1]
