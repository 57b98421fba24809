"""Heads are as different as their operators, whatever coordinates these are written in; the mean takes one away."""

import numpy as np
import pytest

from attnlab.lrkv.diversity import (
    TABLE_3,
    UNCENTRED_MQA_2_5B,
    ceiling,
    centred,
    effective_rank,
    gram,
)
from tests.lrkv.cases import normal

H, WIDTH, K = 5, 11, 3
WQ, WK = normal(0, 1, H, WIDTH, K), normal(0, 2, H, WIDTH, K)
EXACT = 1e-12


def orthogonal(count, size):
    return np.linalg.qr(normal(0, 3, count, size, size))[0]


def test_the_gram_matrix_is_that_of_the_operators_themselves():
    operators = (WQ @ WK.mT).reshape(H, -1)
    operators /= np.linalg.norm(operators, axis=1, keepdims=True)
    np.testing.assert_allclose(gram(WQ, WK), operators @ operators.T, rtol=0, atol=EXACT)


def test_coupled_changes_of_coordinates_leave_it_as_it_is():
    """W^Q M and W^K M^-T, a turn M = M^-T among them, another for each head; one of Q alone does not."""
    turned = orthogonal(H, K)
    np.testing.assert_allclose(gram(WQ @ turned, WK @ turned), gram(WQ, WK), rtol=0, atol=EXACT)
    stretched = turned @ np.diag([0.5, 1.0, 3.0])
    np.testing.assert_allclose(gram(WQ @ stretched, WK @ np.linalg.inv(stretched).mT), gram(WQ, WK), atol=EXACT)
    assert np.abs(gram(WQ @ turned, WK) - gram(WQ, WK)).max() > 0.1
    np.testing.assert_allclose(gram(7 * WQ, -2 * WK), gram(WQ, WK), rtol=0, atol=EXACT)  # nor does the size count


def test_orthogonal_operators_are_worth_all_heads_and_one_less_after_centring():
    """Each head looks at numbers of its own, so that no A_g meets another."""
    wq = np.zeros((H, WIDTH, 2))
    for h in range(H):
        wq[h, 2 * h : 2 * h + 2] = np.eye(2)
    G = gram(wq, wq)
    np.testing.assert_allclose(G, np.eye(H), rtol=0, atol=EXACT)
    assert effective_rank(G) == pytest.approx(H, rel=EXACT)
    assert effective_rank(centred(G)) == pytest.approx(H - 1, rel=EXACT)
    assert ceiling(H) == H - 1


def test_no_heads_pass_the_ceiling_once_the_mean_is_gone():
    for seed in range(10):
        c = centred(gram(normal(seed, 1, H, WIDTH, K), normal(seed, 2, H, WIDTH, K)))
        np.testing.assert_allclose(c.sum(axis=0), 0, rtol=0, atol=EXACT)
        assert effective_rank(c) <= ceiling(H) + EXACT
    for row in TABLE_3:
        assert row.heads_6 / 100 * 6 < ceiling(6)
        assert row.heads_18 / 100 * 18 < ceiling(18)
    mqa = next(row for row in TABLE_3 if row.scheme == "mqa")
    assert mqa.heads_18 > UNCENTRED_MQA_2_5B  # centring may raise it: it takes away the one large direction


def test_heads_that_are_alike_are_worth_one_and_nothing_without_their_mean():
    """In coordinates of their own, so that rounding makes them differ by 1e-16 and some eigenvalues negative."""
    turned = orthogonal(H, K)
    G = gram(WQ[0] @ turned, WK[0] @ turned)
    assert 0 < np.abs(G - 1).max() < EXACT
    assert effective_rank(G) == pytest.approx(1, rel=EXACT)
    assert effective_rank(centred(G)) == 0.0
    assert effective_rank(centred(gram(WQ[:1], WK[:1]))) == 0.0  # one head is its own mean


def test_the_entropy_of_a_known_spectrum():
    """Shares 1/2, 1/4, 1/4: exp(3/2 ln 2)."""
    assert effective_rank(np.diag([2.0, 1.0, 1.0])) == pytest.approx(2**1.5, rel=EXACT)
    assert effective_rank(np.diag([2.0, 1.0, 1.0, -1e-16])) == pytest.approx(2**1.5, rel=EXACT)
    assert effective_rank(1e-200 * np.eye(4)) == pytest.approx(4, rel=EXACT)


@pytest.mark.parametrize(
    ("door", "given", "words"),
    [
        (gram, (WQ, WK[:4]), "wk must be [H, width, K] with H = 5 as in wq, got (4, 11, 3)"),
        (gram, (WQ, WK * np.nan), "wk must be finite, got nan at [0, 0, 0]"),
        (gram, (WQ + np.inf, WK), "wq must be finite, got inf at [0, 0, 0]"),
        (gram, (WQ * (np.arange(H) != 3)[:, None, None], WK), "an operator other than 0, got 0 in head 3"),
        (centred, (np.ones((3, 4)),), "gram must be [H, H] with H = 3 as in gram, got (3, 4)"),
        (effective_rank, (np.diag([1.0, -0.1]),), "gram must have no negative eigenvalue, got -0.1 beside 1"),
        (effective_rank, (np.full((2, 2), np.inf),), "gram must be finite, got inf at [0, 0]"),
        (ceiling, (0,), "heads must lie in [1, "),
    ],
)
def test_what_is_no_weight_and_no_gram_matrix_is_refused_by_name(door, given, words):
    with pytest.raises(ValueError, match="must") as caught:
        door(*given)
    assert words in str(caught.value)


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e100, 1e300, (1e-160, 1.0, 1e300, 1e-300, 1e100)])
def test_the_size_of_the_weights_does_not_matter(size):
    """Of all heads, or of each: their squares would be 0 or no numbers."""
    size = np.broadcast_to(size, H)[:, None, None]
    np.testing.assert_allclose(gram(size * WQ, WK), gram(WQ, WK), rtol=0, atol=EXACT)
    np.testing.assert_allclose(gram(size * WQ, size * WK), gram(WQ, WK), rtol=0, atol=EXACT)
