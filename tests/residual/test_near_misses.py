"""The near misses: each differs from the paper's operator, and agrees with it just where it should."""

import re
from pathlib import Path

import numpy as np
import pytest

from attnlab.residual import near_misses, reference

PAGE = Path(__file__).parents[2] / "docs" / "papers" / "residual.md"
ROWS = {(row.name, row.rule): row for row in near_misses.differences()}
EVERY = list(ROWS)
DISTANCES = {  # of the stored case, to three digits
    ("post-update read", "rla"): 0.898,
    ("post-update read", "rdn"): 0.630,
    ("decayed read", "rla"): 0.0599,
    ("decayed read", "rdn"): 0.0332,
    ("undecayed subtraction", "rdn"): 0.0885,
    ("two calls added", "rla"): 0.642,
    ("two calls added", "rdn"): 0.552,
}


def test_the_four_are_listed_with_their_rules():
    assert list(near_misses.NEAR_MISSES) == list(dict.fromkeys(name for name, _ in DISTANCES))
    assert EVERY == list(DISTANCES)


@pytest.mark.parametrize("which", EVERY, ids="-".join)
def test_each_differs_by_more_than_a_hundredth(which):
    assert ROWS[which].distance > 1e-2
    assert ROWS[which].distance == pytest.approx(DISTANCES[which], rel=2e-3)


def test_the_page_prints_these_distances():
    printed = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if cells[1:] and cells[1] in near_misses.NEAR_MISSES:
            printed |= {(cells[1], rule): cells[4 + n] for n, rule in enumerate(("rla", "rdn")) if cells[4 + n] != "–"}
    assert {which: float(number) for which, number in printed.items()} == DISTANCES
    assert all(re.fullmatch(r"0\.0?\d{3}", number) for number in printed.values())


@pytest.mark.parametrize("which", EVERY, ids="-".join)
def test_each_agrees_where_it_is_said_to(which):
    """Rounding of a few dozen operations; the case that was changed is still one in which R or S is read."""
    name, rule = which
    assert ROWS[which].distance_there <= 1e-14
    there = near_misses.NEAR_MISSES[name].agree(near_misses.case())
    assert np.abs(reference.attention(*there, rule=rule)).max() > 0.5


@pytest.mark.parametrize("which", [w for w in EVERY if w[0] != "two calls added"], ids="-".join)
def test_the_condition_of_one_does_not_make_the_others_agree(which):
    """It would explain nothing. (Two calls agree only where one memory has no say, which is no sharp condition.)"""
    name, rule = which
    there = near_misses.NEAR_MISSES[name].agree(near_misses.case())
    others = [other for other, r in EVERY if r == rule and ROWS[other, r].agrees_where != ROWS[which].agrees_where]
    apart = [near_misses._distance(other, rule, there) for other in others]
    assert len(apart) >= 2
    assert min(apart) > 1e-2, dict(zip(others, apart, strict=True))


def test_two_calls_are_the_baseline_called_twice():
    """Out of the reference's own Gated DeltaNet, whose reads are of the new memory."""
    q, k, v, alpha, beta, gamma = near_misses.case()
    r = np.clip(v - reference.attention(k, k, v, alpha, beta, rule="gdn"), -1.0, 1.0)
    added = reference.attention(q, k, v, alpha, beta, rule="gdn") + reference.attention(
        q, k, r, alpha, gamma, rule="gdn"
    )
    ours = near_misses.attention("two calls added", q, k, v, alpha, beta, gamma, rule="rdn")
    assert np.abs(added - ours).max() <= 1e-14 * np.abs(added).max()


def test_two_calls_with_queries_moved_by_one_token_do_give_rdn():
    """What the claim's note says: asked one token late, a baseline reads the old memory."""
    q, k, v, alpha, beta, gamma = near_misses.case()

    def before(asked):
        later = [np.concatenate([asked[:, 1:], asked[:, :1]], axis=1), k, v, alpha, beta]  # q_t is answered by S_{t-1}
        seen = reference.attention(*later, rule="gdn")  # of the next token's query: S_t q_{t+1}
        return np.concatenate([np.zeros_like(seen[:, :1]), seen[:, :-1]], axis=1)

    r = np.clip(v - before(k), -1.0, 1.0)
    second = reference.attention(q, k, r, alpha, gamma, rule="gdn")
    composed = alpha[..., None] * before(q) + gamma[..., None] * second
    ours = reference.attention(q, k, v, alpha, beta, gamma, rule="rdn")
    assert np.abs(composed - ours).max() <= 1e-13 * np.abs(ours).max()


@pytest.mark.parametrize("which", EVERY, ids="-".join)
def test_the_table_says_what_changes_and_where_it_is_found(which):
    row = ROWS[which]
    assert all(len(words) > 10 for words in (row.changes, row.found, row.agrees_where))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"name": "late read"}, "name must be one of .*'post-update read'.*, got 'late read'"),
        ({"name": "undecayed subtraction", "rule": "rla"}, "rule must be .*'rdn'.*, got 'rla'"),
        ({"clip": -1.0}, r"clip must lie in \[0, inf\], got -1"),
    ],
)
def test_a_wrong_argument_is_named(change, match):
    given = {"name": "decayed read", "rule": "rdn", "clip": 1.0} | change
    with pytest.raises(ValueError, match=match):
        near_misses.attention(given["name"], *near_misses.case(), rule=given["rule"], clip=given["clip"])


def test_the_clip_reaches_every_near_miss():
    for name in near_misses.NEAR_MISSES:
        tight, loose = (near_misses.attention(name, *near_misses.case(), clip=clip) for clip in (0.1, np.inf))
        assert np.abs(tight - loose).max() > 1e-2
