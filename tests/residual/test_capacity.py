"""What a memory holds: the exact curve against closed forms, against a slow second derivation, and against measurement.

Confidence: a comparison of theory and measurement allows Z = 5 standard errors of the mean over independent draws. A
true theory fails that with probability below 1e-6 a comparison, if the mean over draws is normal; there are 40 here.
"""

import re
from pathlib import Path

import numpy as np
import pytest

from attnlab import draws
from attnlab.dense import unit
from attnlab.residual import RULES, capacity, theory

Z = 5.0
K, V, DRAWS, PAIRS = 6, 3, 160, (1, 5, 13, 31)
GATES = {"retention": 0.95, "write": 0.7, "correction": 0.4}


@pytest.mark.parametrize("gates", [{}, GATES], ids=["ones", "gated"])
@pytest.mark.parametrize("rule", RULES)
def test_theory_is_what_the_reference_measures(rule, gates):
    """At constants that nothing was fitted to, so that nothing can hide an error."""
    read = np.array([0.9, 0.5])[: 1 + RULES[rule].residual]
    for (answered, values), n in zip(capacity.answers(rule, PAIRS, K, V, DRAWS, **gates), PAIRS, strict=True):
        seen = capacity.measure(answered, values, read)
        exact = theory.error(theory.moments(rule, n, K, **gates), read).mean()
        assert seen.pairs == n
        assert abs(seen.error - exact) <= Z * seen.standard_error
        if n > 1:
            assert abs(seen.error - 1.15 * exact) > seen.standard_error  # so it would see 15 percent


@pytest.mark.parametrize("rule", ["gdn", "rla", "rdn"])
def test_theory_holds_for_every_age_of_a_pair(rule):
    ((answered, values),) = capacity.answers(rule, (13,), K, V, 400, **GATES)
    read = np.array([0.9, 0.5])[: 1 + RULES[rule].residual]
    each = ((np.einsum("m,dmnv->dnv", read, answered) - values) ** 2).mean(axis=2)
    exact = theory.error(theory.moments(rule, 13, K, **GATES), read)
    assert np.all(np.abs(each.mean(axis=0) - exact) <= Z * each.std(axis=0, ddof=1) / np.sqrt(len(each)))
    assert exact[0] > exact[-1]  # the oldest pair is the worst


def test_linear_attention_has_its_closed_form():
    for n in (1, 2, 9, 40):
        of = theory.moments("linear", n, 7)
        assert theory.error(of, [1.0]).mean() == pytest.approx((n - 1) / 7, abs=1e-12)
        assert theory.error(of).mean() == pytest.approx((n - 1) / (n - 1 + 7), abs=1e-12)
        assert theory.linear_error(n, 7) == pytest.approx(theory.error(of).mean(), abs=1e-12)
        assert theory.linear_error(n, 7, gained=False) == pytest.approx((n - 1) / 7, abs=1e-12)


@pytest.mark.parametrize("write", [1.0, 0.6])
def test_a_delta_memory_keeps_a_known_part_of_each_value(write):
    kept = theory.moments("deltanet", 9, 5, write=write).cross[:, 0]
    np.testing.assert_allclose(kept, write * (1 - write / 5) ** np.arange(8, -1, -1), rtol=1e-12)


def test_the_newest_pair_is_recalled_exactly_by_a_full_delta_write():
    assert theory.error(theory.moments("deltanet", 9, 5), [1.0])[-1] == pytest.approx(0, abs=1e-12)
    assert theory.error(theory.moments("linear", 9, 5), [1.0])[-1] == pytest.approx(8 / 5, abs=1e-12)


def test_the_two_sphere_moments_that_everything_stands_on():
    """E[P M] = M/K and E[P M P] = (2 M + tr(M) I)/(K (K + 2)), by a sample within five standard errors an entry."""
    M = np.array([[2.0, 0.5, 0.0], [0.5, -1.0, 0.3], [0.0, 0.3, 0.7]])
    k = unit(draws.normal(3, 1, 40_000, 3))
    PM = np.einsum("na,nb,bc->nac", k, k, M)
    PMP = np.einsum("nab,nb,nc->nac", PM, k, k)
    for sample, exact in ((PM, M / 3), (PMP, (2 * M + np.trace(M) * np.eye(3)) / 15)):
        assert np.all(np.abs(sample.mean(axis=0) - exact) <= Z * sample.std(axis=0) / np.sqrt(len(k)) + 1e-12)


def test_one_key_in_one_dimension_is_worked_out_by_hand():
    """K = 1: P = 1 always. RLA with gates 1: S = v1, R = v1; then S = v1 + k2' v2 and r = v2 - k2' v1."""
    of = theory.moments("rla", 2, 1)
    # first pair: k S = v1 + s v2, k R = v1 + s (v2 - s v1) = s v2, with s = +-1; second: k S = v2 + s v1, k R = v2
    np.testing.assert_allclose(of.second, [[[2, 1], [1, 1]], [[2, 1], [1, 1]]], atol=1e-12)
    np.testing.assert_allclose(of.cross, [[1, 0], [1, 1]], atol=1e-12)


def test_the_best_constants_are_best():
    of = theory.moments("rla", 12, 5, correction=0.5)
    best, least = theory.best_read(of), theory.error(of).mean()
    for change in ([1e-3, 0], [-1e-3, 0], [0, 1e-3], [0, -1e-3]):
        assert theory.error(of, best + change).mean() > least


def test_two_memories_with_one_set_of_keys_are_read_as_one_matrix():
    """So no constants, no rule and no clip recall better than least squares does: 1 - K/n."""
    n = 20
    for rule in RULES:
        assert theory.error(theory.moments(rule, n, K)).mean() > theory.least_error(n, K)
    for clip in (0.3, 1.0, np.inf):
        ((answered, values),) = capacity.answers("rdn", (n,), K, V, DRAWS, clip=clip)
        seen = capacity.measure(answered, values)
        assert seen.interval(-Z)[0] > theory.least_error(n, K)
    k, v = unit(draws.normal(1, 1, n, K)), draws.normal(1, 2, n, 2000)
    left = v - k @ np.linalg.lstsq(k, v, rcond=None)[0]
    assert (left**2).mean() == pytest.approx(theory.least_error(n, K), abs=Z * np.sqrt(2 / (n * 2000)))
    assert theory.least_error(K, K) == 0


def test_state_is_matched():
    for rule, has in RULES.items():
        assert capacity.matched_key_width(rule, 8) * (1 + has.residual) == 16


def test_at_matched_state_the_one_memory_holds_more_random_pairs():
    measured, exact = zip(*(capacity.curve(rule, (16,), 8, V, 800) for rule in ("deltanet", "rdn", "rla")), strict=True)
    assert [len(x) for x in exact] == [1, 1, 1]
    (delta,), (rdn,), (rla,) = measured
    assert delta.interval(Z)[1] < min(rdn.interval(Z)[0], rla.interval(Z)[0])


def test_the_numbers_on_the_page_are_those_of_the_theory():
    text = (Path(__file__).parents[2] / "docs" / "papers" / "residual-recall.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+), (?:one|two)[^|]*of \$(2?)K\$ \| (\d+) \|(.*)\|$", text, re.MULTILINE)
    assert len(rows) == 6
    for name, twice, state, cells in rows:
        rule, width = name.lower(), 32 if twice else 16
        assert int(state) == width * (1 + RULES[rule].residual)
        for n, cell in zip((16, 32, 64), cells.split("|"), strict=True):
            assert float(cell) == pytest.approx(theory.error(theory.moments(rule, n, width)).mean(), abs=5.1e-4)
    assert all(
        theory.error(theory.moments(one, n, 32)).mean() < theory.error(theory.moments(two, n, 16)).mean()
        for one, two in (("linear", "rla"), ("deltanet", "rdn"))
        for n in range(2, 150, 7)
    )


def test_constants_are_chosen_on_other_draws_than_they_are_judged_on():
    """Pure noise: constants fitted to the judged draws would seem to help."""
    answered, values = (
        draws.normal(8, i, 8, 2 * n).reshape(8, *shape) for i, n, shape in ((1, 6, (2, 3, 2)), (2, 3, (3, 2)))
    )
    seen = capacity.measure(answered, values[..., :2])
    judged = ((np.einsum("m,dmnv->dnv", seen.read, answered[4:]) - values[4:]) ** 2).mean()
    assert seen.error == pytest.approx(judged)


def test_the_same_draws_come_back_and_longer_runs_extend_shorter_ones():
    (short, long), (alone,) = (capacity.answers("rdn", pairs, K, V, 4, seed=3) for pairs in ((4, 9), (9,)))
    np.testing.assert_allclose(long[0], alone[0], rtol=1e-12)
    assert short[0].shape == (4, 2, 4, V)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rule": "mamba"}, "rule must be one of"),
        ({"pairs": 0}, "pairs must lie in"),
        ({"key_width": 2.5}, "key_width must be a whole number"),
        ({"retention": 1.5}, r"retention must lie in \[0, 1\]"),
        ({"write": 3.0}, r"write must lie in \[0, 2\]"),
        ({"correction": np.nan}, r"correction must lie in \[0, 2\]"),
    ],
)
def test_errors_name_the_argument(arguments, words):
    with pytest.raises(ValueError, match=words):
        theory.moments(**{"rule": "rdn", "pairs": 4, "key_width": 5} | arguments)


def test_too_few_draws_to_choose_and_to_judge():
    with pytest.raises(ValueError, match="draws must lie in"):
        capacity.measure(np.zeros((3, 1, 2, 2)), np.zeros((3, 2, 2)))
