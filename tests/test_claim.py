"""The certificates: what each kind of evidence accepts, what it must refuse, and what a claim reports."""

import math
import sys
from fractions import Fraction

import numpy as np
import pytest

from attnlab import claim
from attnlab.claim import Claim, Evidence, Outcome, Verdict

HOLDS, REFUTED = Verdict.HOLDS, Verdict.REFUTED


def stated(check, recorded=HOLDS, evidence=Evidence.EXACT):
    return Claim("room.name", "One is one.", "paper, p. 1", recorded, evidence, check)


def outcome(verdict, evidence=Evidence.EXACT, note=""):
    return Outcome(verdict, evidence, "seen", "wanted", note)


# -- a claim ----------------------------------------------------------------------------------------------------------


def test_a_record_has_the_keys_that_verify_prints():
    record = stated(lambda: claim.exact(True, Fraction(1, 3), 2, "a remark")).run()
    assert record == {
        "id": "room.name",
        "says": "One is one.",
        "source": "paper, p. 1",
        "said_by": "the paper",
        "recorded": "HOLDS",
        "observed": "HOLDS",
        "evidence": "exact",
        "measured": "1/3",
        "bound": "2",
        "note": "a remark",
        "agrees": True,
    }


def test_a_claim_recorded_as_refuted_agrees_when_its_check_refutes():
    assert stated(lambda: claim.exact(False, 1, 2), recorded=REFUTED).run()["agrees"] is True
    assert stated(lambda: claim.exact(True, 1, 2), recorded=REFUTED).run()["agrees"] is False


def test_an_exception_is_a_failed_claim_with_the_same_keys():
    def broken():
        raise ZeroDivisionError("no tables")

    record = stated(broken).run()
    assert record["agrees"] is False
    assert record["observed"] is None
    assert "ZeroDivisionError: no tables" in record["note"]
    assert record.keys() == stated(lambda: claim.exact(True, 1, 1)).run().keys()


def test_a_ledger_shows_every_claim_and_escapes_what_it_quotes():
    ledger = claim.run([stated(lambda: claim.exact(True, "a < b", "c & d")), stated(lambda: claim.exact(False, 1, 2))])
    shown = ledger._repr_html_()
    assert [record["agrees"] for record in ledger] == [True, False]
    assert "a &lt; b" in shown
    assert "c &amp; d" in shown
    assert "REFUTED, but recorded HOLDS" in shown


# -- identities and intervals -----------------------------------------------------------------------------------------


def test_an_identity_holds_up_to_its_bound_and_no_further():
    assert claim.identity([0.0, 1e-12], 1e-12).observed == HOLDS
    assert claim.identity([0.0, 1.1e-12], 1e-12).observed == REFUTED
    assert claim.identity([1e-3], 1.0).evidence == Evidence.IDENTITY


@pytest.mark.parametrize("errors", [[], [math.nan], [0.0, math.nan, 0.0], [math.inf]])
def test_an_identity_without_a_finite_error_is_refuted(errors):
    assert claim.identity(errors, 1e300).observed == REFUTED


def test_an_interval_is_judged_by_its_two_ends():
    def positive(low, high):
        return low > 0

    assert claim.statistical(0.1, 0.2, positive, "above 0", 0.99).observed == HOLDS
    assert claim.statistical(-0.1, 0.2, positive, "above 0", 0.99).observed == REFUTED
    assert claim.statistical(0.3, 0.2, positive, "above 0", 0.99).observed == REFUTED  # no interval at all
    assert claim.statistical(math.nan, 0.2, lambda low, high: True, "anything", 0.99).observed == REFUTED
    assert "0.99" in claim.statistical(0.1, 0.2, positive, "above 0", 0.99).measured


def test_hoeffding_misses_a_fair_coin_by_less_than_its_risk():
    low, high = claim.hoeffding(0.5, 200, 0.95)
    assert (low, high) == pytest.approx((0.5 - math.sqrt(math.log(40) / 400), 0.5 + math.sqrt(math.log(40) / 400)))
    assert binomial_share(200, 0.5, lambda k: low <= k / 200 <= high) >= 0.95
    assert claim.hoeffding(0.0, 200, 0.95, width=3.0)[1] == pytest.approx(3 * (high - 0.5))


@pytest.mark.parametrize("p", [0.0, 0.003, 0.1, 0.5, 0.97, 1.0])
def test_chernoff_covers_every_probability_at_its_confidence(p):
    n, confidence = 60, 0.9

    def covered(k):
        low, high = claim.chernoff(k, n, confidence)
        return low <= p <= high

    assert binomial_share(n, p, covered) >= confidence


def test_chernoff_is_shorter_than_hoeffding_near_the_ends_and_contains_the_rate():
    n, confidence = 300, 1 - 1e-6
    for k in (0, 1, 7, 150, 299, 300):
        low, high = claim.chernoff(k, n, confidence)
        assert 0 <= low <= k / n <= high <= 1
        assert high - low <= 2 * (claim.hoeffding(0.5, n, confidence)[1] - 0.5) + 1e-12
    assert claim.chernoff(0, n, confidence)[1] == pytest.approx(1 - (1e-6 / 2) ** (1 / n), rel=1e-6)
    assert claim.chernoff(300, n, confidence)[1] == 1.0


@pytest.mark.parametrize(("successes", "n"), [(-1, 5), (6, 5), (0, 0)])
def test_chernoff_refuses_counts_that_cannot_be(successes, n):
    with pytest.raises(ValueError, match="successes must lie"):
        claim.chernoff(successes, n, 0.9)


def binomial_share(n, p, covered):
    """The probability that `covered` of a binomial number holds, exactly."""
    return sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1) if covered(k))


# -- several looks at one sentence ------------------------------------------------------------------------------------


def test_backing_keeps_the_evidence_of_the_main_outcome_and_names_the_rest():
    seen = claim.backed(outcome(HOLDS, note="First."), outcome(HOLDS, Evidence.STATISTICAL, "Second."))
    assert (seen.observed, seen.evidence) == (HOLDS, Evidence.EXACT)
    assert seen.note == "First. Also statistical: seen (wanted). Second."


def test_one_outcome_that_refutes_takes_the_verdict_away():
    weak = outcome(REFUTED, Evidence.STATISTICAL)
    assert claim.backed(outcome(HOLDS), outcome(HOLDS), weak) == weak
    assert claim.backed(outcome(REFUTED), outcome(HOLDS, Evidence.IDENTITY)) == outcome(REFUTED)


# -- ball arithmetic --------------------------------------------------------------------------------------------------


def test_below_is_undecided_for_overlapping_balls_and_for_nan():
    assert claim.below(1.0, 2.0) is True
    assert claim.below(2.0, 2.0) is False
    assert claim.below(math.nan, 2.0) is None
    arb = pytest.importorskip("flint").arb
    assert claim.below(arb(1, 0.25), arb(2, 0.25)) is True
    assert claim.below(arb(2, 0.25), arb(1, 0.25)) is False
    assert claim.below(arb(1, 0.75), arb(2, 0.75)) is None


def test_every_is_false_before_it_is_undecided_and_never_true_of_nothing():
    assert claim.every([True, True]) is True
    assert claim.every([True, None]) is None
    assert claim.every([None, False, True]) is False
    assert claim.every([]) is None
    assert claim.every(np.array([1.0]) > 0) is True


def weaker():
    return outcome(HOLDS, Evidence.STATISTICAL, "Sampled.")


def test_a_certificate_decides_both_ways():
    pytest.importorskip("flint")
    for holds, verdict in ((True, HOLDS), (False, REFUTED)):
        seen = claim.certified(lambda flint, holds=holds: (holds, "ball", "bound"), weaker)
        assert seen == Outcome(verdict, Evidence.CERTIFIED, "ball", "bound")


def test_balls_that_are_too_wide_fall_to_the_weaker_evidence_and_say_so():
    pytest.importorskip("flint")
    seen = claim.certified(lambda flint: (None, "1 +/- 5", "2"), weaker)
    assert (seen.observed, seen.evidence) == (HOLDS, Evidence.STATISTICAL)
    assert "too wide" in seen.note
    assert seen.note.endswith("Sampled.")


def test_a_missing_flint_falls_to_the_weaker_evidence_and_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "flint", None)
    seen = claim.certified(lambda flint: pytest.fail("no flint, no proof"), weaker)
    assert claim.flint() is None
    assert (seen.observed, seen.evidence) == (HOLDS, Evidence.STATISTICAL)
    assert "pip install python-flint" in seen.note


@pytest.mark.parametrize(
    ("source", "recorded", "who"),
    [
        ("paper, Lemma 10, p. 24", Verdict.REFUTED, "the paper"),
        ("the authors' repository as of June 2026", Verdict.REFUTED, "the authors' code"),
        ("reader's analysis of Eq. 4, p. 6", Verdict.HOLDS, "the reader"),
        ("reader's analysis of Sec. 2.2, p. 4", Verdict.REFUTED, "nobody: a natural guess"),
        ("this project", Verdict.HOLDS, "this project"),
        ("this project", Verdict.REFUTED, "nobody: a natural guess"),
    ],
)
def test_a_refuted_guess_is_not_counted_against_anybody(source, recorded, who):
    statement = Claim("x.y", "a sentence", source, recorded, Evidence.EXACT, lambda: claim.exact(True, 1, 1))
    assert statement.said_by == statement.run()["said_by"] == who


def test_a_source_without_a_speaker_is_refused():
    statement = Claim("x.y", "a sentence", "somebody", Verdict.HOLDS, Evidence.EXACT, lambda: claim.exact(True, 1, 1))
    with pytest.raises(ValueError, match=r"source of x\.y must begin with one of paper"):
        statement.run()
