"""Rational arithmetic: the same outputs as the token loop of the reference, and two tokens worked out by hand."""

from fractions import Fraction

import numpy as np
import pytest

from attnlab import draws
from attnlab.residual import rational, reference

T, K, V = 7, 3, 2


def drawn(stream, *shape, low, high):
    words = draws.bits(4, stream, int(np.prod(shape)), 1)[..., 0].astype(np.int64)
    return rational.fractions(words % (high - low + 1) + low, 4).reshape(shape)


def one_head(x):
    return x.astype(np.float64)[None, :, None]


@pytest.mark.parametrize("clip", [Fraction(1, 2), Fraction(100)])
@pytest.mark.parametrize(("rule", "delta"), [("rla", False), ("rdn", True)])
def test_two_stages_in_fractions_are_the_token_loop(rule, delta, clip):
    q, k, v = (drawn(n, T, width, low=-4, high=4) for n, width in enumerate((K, K, V)))
    gates = [drawn(n, T, low=0, high=4) for n in (5, 6, 7)]  # 0 and 1 are among them
    assert Fraction(0) in gates[0]
    exact = rational.attention(q, k, v, *gates, delta=delta, clip=clip)
    loop = reference.attention(*(one_head(x) for x in (q, k, v, *gates)), rule=rule, clip=float(clip))[0, :, 0]
    largest = np.abs(loop).max()
    assert largest > 0.1
    assert np.abs(loop - exact.astype(np.float64)).max() <= 1e-14 * largest


def test_two_tokens_by_hand():
    """Keys, queries 1, values 1/2 and 1, gates 1/2. Token 2: S = 1/4, r = 3/4, R = 1/4 then 1/8 + (3/4 - 1/8)/2."""
    ones, halves = rational.fractions(np.array([[1], [1]])), rational.fractions(np.array([1, 1]), 2)
    v = rational.fractions(np.array([[1], [2]]), 2)
    out = rational.attention(ones, ones, v, halves, halves, halves, delta=True, clip=Fraction(1))
    assert out.ravel().tolist() == [Fraction(1, 8), Fraction(11, 32)]
    out = rational.attention(ones, ones, v, halves, halves, halves, delta=False, clip=Fraction(1))
    assert out.ravel().tolist() == [Fraction(1, 8), Fraction(3, 8)]


def test_an_empty_memory_comes_first_and_a_retention_of_0_forgets():
    k, x = drawn(8, T, K, low=-4, high=4), drawn(9, T, V, low=-4, high=4)
    alpha, rate = np.array([Fraction(1)] * T, dtype=object), np.array([Fraction(1, 2)] * T, dtype=object)
    alpha[4] = Fraction(0)
    held = rational.memories(k, x, alpha, rate, delta=True)
    assert held.shape == (T + 1, K, V)
    assert np.all(held[0] == 0)
    assert np.all(held[5] == np.outer(k[4], x[4]) / 2)


def test_the_clip_keeps_what_lies_within_and_cuts_at_both_ends():
    error = rational.fractions(np.array([[-9, -2, 0], [1, 2, 9]]), 4)
    assert rational.clipped(error, Fraction(1, 2)).tolist() == (
        rational.fractions(np.array([[-2, -2, 0], [1, 2, 2]]), 4).tolist()
    )
