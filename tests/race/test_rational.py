"""Rational arithmetic: the same features and outputs as the reference, and the exact rank."""

from fractions import Fraction

import numpy as np
import pytest

from attnlab import draws
from attnlab.race import rational, reference


def bits(stream, tokens, tables, planes):
    words = draws.bits(3, stream, tokens, tables * planes)[..., 0] % 15
    return rational.fractions(words.astype(np.int64) - 7, 8).reshape(tokens, tables, planes)


def test_features_are_the_references_for_the_same_soft_bits():
    T, L, P, sharpness = 5, 2, 3, 2.0
    a = bits(1, T, L, P) / Fraction(2)  # |a| < tanh(2) is what sharpness 2 can reach
    x = np.arctanh(np.arctanh(a.astype(np.float64)) / sharpness)  # projections with those bits: W x = x for unit planes
    planes = np.eye(L * P).reshape(L, P, L * P)
    expected = reference.features(x.reshape(1, T, 1, L * P), planes, sharpness)[0, :, 0]
    phi = rational.features(a)
    assert np.allclose(phi.astype(np.float64), expected, rtol=1e-13, atol=0)
    assert np.all(phi.sum(axis=-1) == 1)


def test_the_ratio_through_the_buckets_is_the_ratio_over_pairs():
    phi_q, phi_k = rational.features(bits(2, 4, 2, 3)), rational.features(bits(3, 6, 2, 3))
    v = rational.fractions(np.arange(18).reshape(6, 3) ** 2 % 7)
    scores = rational.scores(phi_q, phi_k)
    pairwise = (scores @ v) / scores.sum(axis=1)[:, None]
    assert np.array_equal(rational.attention(phi_q, phi_k, v), pairwise)


def test_bucket_means_of_a_constant_are_the_constant():
    phi_q, phi_k = rational.features(bits(4, 3, 2, 2)), rational.features(bits(5, 5, 2, 2))
    v = np.full((5, 1), Fraction(7, 3), dtype=object)
    assert np.all(rational.bucket_means(phi_q, phi_k, v) == Fraction(7, 3))


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        ([[0, 0], [0, 0]], 0),
        ([[0, 2, 4], [0, 1, 2]], 1),
        ([[1, 2], [3, 4], [5, 6]], 2),
        ([[0, 0, 1], [0, 2, 5], [3, 1, 1]], 3),
        ([[0, 0, 1, 2], [0, 0, 2, 4], [0, 0, 0, 1]], 2),
        ([[Fraction(1, 3), Fraction(1, 7)], [Fraction(7, 3), 1]], 1),
    ],
)
def test_rank_of_small_matrices(matrix, expected):
    assert rational.rank(np.array(matrix, dtype=object)) == expected


def test_rank_of_a_product_of_integers_is_its_inner_width():
    words = draws.bits(0, 6, 9, 8)[..., 0].astype(np.int64) % 11 - 5
    left, right = words[:, :4], words[:, 4:].T
    assert rational.rank((left @ right).astype(object)) == np.linalg.matrix_rank(left) == 4
