"""Enclosures against integrals of another kind, and their float64 twins."""

import math
from fractions import Fraction

import numpy as np
import pytest

from attnlab.claim import flint
from attnlab.race import theory
from attnlab.race.enclosures import BITS, Balls, Doubles

pytestmark = pytest.mark.skipif(flint() is None, reason="python-flint is not installed")


@pytest.fixture
def balls():
    with flint().ctx.workprec(BITS):
        yield Balls(flint())


def adaptive(beta, power, degree):
    """E[a(g)^power He_degree(g)]/sqrt(degree!) over |g| <= 15, by flint's own rigorous integration."""
    acb, arb = flint().acb, flint().arb

    def integrand(z, _):  # meromorphic: near a pole the ball is not finite, and flint subdivides
        value = (acb(beta) * z.tanh()).tanh() ** power * (-z * z / 2).exp() / (2 * arb.pi()).sqrt()
        before, now = acb(0), acb(1)
        for n in range(degree):
            before, now = now, (z * now - arb(n).sqrt() * before) / arb(n + 1).sqrt()
        return value * now

    with flint().ctx.workprec(100):
        return acb.integral(integrand, acb(-15), acb(15)).real


@pytest.mark.parametrize("beta", ["0.3", "2", "5"])
@pytest.mark.parametrize(("power", "degree"), [(1, 1), (1, 5), (2, 0), (2, 6), (4, 0)])
def test_coefficients_enclose_what_adaptive_integration_finds(balls, beta, power, degree):
    found, expected = balls._hermite(balls.real(beta), power, degree + 1)[degree], adaptive(beta, power, degree)
    assert found.overlaps(expected)
    assert float(found.rad()) < 1e-14
    assert float(expected.rad()) < 1e-14


def test_coefficients_of_the_other_parity_are_exactly_zero(balls):
    coefficients = balls._hermite(balls.real(1), 1, 5)
    assert [c == 0 for c in coefficients] == [True, False, True, False, True]


@pytest.mark.parametrize(("beta", "rho"), [("0.7", "0.5"), ("1.5", "-0.8"), ("2", "0")])
def test_expansion_and_definition_meet(balls, beta, rho):
    b, r = balls.real(beta), balls.real(rho)
    for expanded, defined in zip(balls.plane_moments(b, [r])[0], balls.plane_moments_by_definition(b, r), strict=True):
        assert expanded.overlaps(defined)
        assert float(expanded.rad()) < 1e-13
        assert float(defined.rad()) < 1e-13


def test_a_cosine_of_minus_one_turns_odd_functions_only(balls):
    (x, xx), (y, yy) = balls.plane_moments(balls.real(2), [balls.real(1), balls.real(-1)])
    assert (x + y).overlaps(balls.real(1))
    a2, a4 = balls._hermite(balls.real(2), 2, 1)[0], balls._hermite(balls.real(2), 4, 1)[0]
    assert xx.overlaps((1 + 2 * a2 + a4) / 4)
    assert yy.overlaps((1 - 2 * a2 + a4) / 4)


def test_what_is_left_out_of_the_expansion_is_in_the_ball(balls, monkeypatch):
    """Twelve terms at rho = 0.9: a wide ball that still holds the sum of 160."""
    b, r = balls.real(3), balls.real("0.9")
    fine = balls.plane_means(b, [r])[0]
    monkeypatch.setattr("attnlab.race.enclosures.TERMS", 12)
    coarse = balls.plane_means(b, [r])[0]
    assert coarse.contains(fine)
    assert 1e-6 < float(coarse.rad()) < 1e-1


def test_doubles_answer_as_balls_do(balls):
    doubles = Doubles()
    for beta, rho in ((0.5, 0.3), (3.0, -0.6), (8.0, 1.0)):
        b, r = balls.real(beta), balls.real(rho)
        assert doubles.second_moment(beta) == pytest.approx(balls.nearest(balls.second_moment(b)), abs=1e-12)
        assert doubles.kappa(rho) == pytest.approx(balls.nearest(balls.kappa(r)), abs=1e-15)
        assert doubles.plane_means(beta, [rho]) == pytest.approx(
            [balls.nearest(x) for x in balls.plane_means(b, [r])], abs=1e-12
        )
    for name, x in (("exp", 0.3), ("tanh", 0.3), ("artanh", 0.3), ("sqrt", 0.3)):
        assert getattr(doubles, name)(x) == pytest.approx(balls.nearest(getattr(balls, name)(balls.real(x))), abs=1e-15)
    assert doubles.soft_bit(0.4, 2.0) == pytest.approx(balls.nearest(balls.soft_bit(balls.real(0.4), balls.real(2))))
    assert doubles.plane_moments_by_definition(1.0, 0.5) == pytest.approx(
        doubles.plane_moments(1.0, [0.5])[0], abs=1e-13
    )


def test_numbers_are_read_exactly(balls):
    third, tenth = balls.real(Fraction(1, 3)), balls.real("0.1")
    assert (3 * third).contains(1)
    assert (10 * tenth).contains(1)
    assert not tenth.contains(balls.real(0.1))  # the double is another number
    assert Doubles().real(Fraction(1, 3)) == 1 / 3


def test_sameness_is_undecided_between_overlapping_balls(balls):
    third = balls.real(Fraction(1, 3))
    assert balls.same(balls.real(2), balls.real(2)) is True
    assert balls.same(third, third + 0) is None
    assert balls.same(balls.real(2), balls.real(3)) is False
    assert Doubles().same(0.5, 0.5 + 1e-16) is True
    assert Doubles().same(0.5, 0.6) is False
    assert Doubles().same(0.5, math.nan) is None


def test_the_shipped_quadrature_lies_in_the_enclosures(balls):
    for beta in (0.1, 4.0, 16.0):
        rhos = (0.95, 0.2, -0.7)
        x, xx = theory.pair_moments(np.arccos(rhos), beta)
        for found, enclosed in zip(
            zip(x, xx, strict=True), balls.plane_moments(balls.real(beta), [balls.real(r) for r in rhos]), strict=True
        ):
            for one, ball in zip(found, enclosed, strict=True):
                assert abs(float(one) - balls.nearest(ball)) <= 1e-8 + float(ball.rad())
