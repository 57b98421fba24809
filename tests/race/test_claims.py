"""RACE's claims: the table they were agreed in, what each check sees, and wrong formulas that it must notice."""

import math
import re
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from attnlab.claim import Evidence, Outcome, Verdict, flint
from attnlab.race import claims, rational, reference, theory

TABLE = {
    "race.collision": ("HOLDS", "statistical"),
    "race.kernel-values": ("HOLDS", "exact"),
    "race.sharpening": ("HOLDS", "exact"),
    "race.factorised": ("HOLDS", "identity"),
    "race.pair-product": ("HOLDS", "identity"),
    "race.limits": ("HOLDS", "identity"),
    "race.global-ratio": ("HOLDS", "exact"),
    "race.figure7": ("REFUTED", "exact"),
    "race.ratio-of-unbiased": ("REFUTED", "exact"),
    "race.causal-state": ("HOLDS", "identity"),
    "race.rank-reader": ("HOLDS", "exact"),
    "race.rank": ("HOLDS", "exact"),
    "race.rank-causal": ("REFUTED", "exact"),
    "race.constant-value": ("HOLDS", "exact"),
    "race.released-code": ("REFUTED", "identity"),
    "race.scale-free": ("REFUTED", "exact"),
    "race.bias-variance": ("HOLDS", "certified"),
    "race.bias-bound": ("HOLDS", "certified"),
    "race.bias-order": ("HOLDS", "certified"),
    "race.denominator": ("HOLDS", "certified"),
    "race.lemma10": ("REFUTED", "certified"),
    "race.lemma10-every-draw": ("HOLDS", "certified"),
    "race.lemma10-large-L": ("HOLDS", "certified"),
    "race.lemma10-output": ("REFUTED", "exact"),
    "race.lemma10-repair": ("HOLDS", "statistical"),
    "race.theorem2": ("CONDITIONAL", "statistical"),
    "race.theorem2-cost": ("REFUTED", "exact"),
    "race.monotone": ("REFUTED", "exact"),
    "race.fp16-mass": ("HOLDS", "identity"),
    "race.table-ratios": ("HOLDS", "exact"),
    "race.text-3.5x": ("REFUTED", "exact"),
    "race.text-cpu33m": ("REFUTED", "exact"),
}
CERTIFIED = [claim for claim in claims.CLAIMS if claim.evidence is Evidence.CERTIFIED]
PROOFS = Path(__file__).parents[2] / "docs" / "papers" / "race-proofs.md"
needs_flint = pytest.mark.skipif(flint() is None, reason="python-flint is not installed")


def by_id(claim):
    return claim.id


# -- the claims -------------------------------------------------------------------------------------------------------


def test_the_claims_are_those_of_the_table_in_its_order():
    assert [(c.id, str(c.recorded), str(c.evidence)) for c in claims.CLAIMS] == [
        (name, *row) for name, row in TABLE.items()
    ]


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=by_id)
def test_what_is_observed_is_what_was_recorded(claim):
    record = claim.run()
    assert record["observed"] == record["recorded"], record
    assert record["agrees"] is True
    assert record["measured"]
    assert record["bound"]
    if flint() is not None:
        assert record["evidence"] == claim.evidence, record


@pytest.mark.parametrize("claim", CERTIFIED, ids=by_id)
def test_without_flint_a_certified_claim_says_so_and_keeps_its_verdict(claim, monkeypatch):
    monkeypatch.setitem(sys.modules, "flint", None)
    record = claim.run()
    assert record["agrees"] is True, record
    assert record["evidence"] in ("identity", "statistical")
    assert "python-flint is not installed" in record["note"]


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=by_id)
def test_a_claim_is_one_sentence_with_its_place(claim):
    assert claim.says[0].isupper()
    assert claim.says.endswith(".")
    assert "\n" not in claim.says
    assert ". " not in claim.says
    assert "p. " in claim.source or "pp. " in claim.source or claim.source.startswith(("this project", "the authors'"))


@needs_flint
@pytest.mark.parametrize("claim", CERTIFIED, ids=by_id)
def test_a_certificate_says_how_far_it_reaches_and_where_the_proof_of_the_rest_stands(claim):
    note = claim.run()["note"]
    section = re.search(
        r"^Certified (on|at) .*; for (all|every).*: proof in docs/papers/race-proofs\.md \((.*?)\)\.", note
    )
    assert section, note
    assert f"## {section[3]}\n" in PROOFS.read_text(encoding="utf-8")


def test_a_verdict_repeats():
    """Fixed seeds: two runs of a sampled claim give the same digits."""
    assert claims.lemma10_repair() == claims.lemma10_repair()


# -- wrong formulas ---------------------------------------------------------------------------------------------------


def mass_weighted_means(phi_q, phi_k, v):
    """Bucket means, but mixed in proportion to the buckets' mass: Algorithm 1 in other words."""
    mass = phi_k.sum(axis=0)
    means = np.tensordot(phi_k.transpose(1, 2, 0), v, axes=1) / mass[..., None]
    weight = phi_q * mass
    return np.tensordot(weight, means, axes=2) / weight.sum(axis=(1, 2))[:, None]


def without_table_average(phi_q, phi_k, v):
    return rational.bucket_means(phi_q, phi_k, v) * phi_q.shape[1]


def ratio_times_tables(phi_q, phi_k, v, causal):
    """What the released code would be if it were Algorithm 1 without 1/L."""
    scores = np.einsum("bthlr,bshlr->bhts", phi_q, phi_k)
    scores = np.tril(scores) if causal else scores
    return phi_q.shape[3] * np.einsum("bhts,bshv->bthv", scores / scores.sum(axis=-1, keepdims=True), v)


def shipped_ratio(case, causal):
    phi_q, phi_k = (reference.features(x, case.planes, case.sharpness) for x in (case.q, case.k))
    return ratio_times_tables(phi_q, phi_k, case.v, causal)


def uncorrelated_moments(angle_rad, sharpness):
    return theory.pair_moments(np.full_like(angle_rad, np.pi / 2), sharpness)


def mean_score(numbers, beta, P):
    """E S_hat for identical vectors, where the lemma's proof puts S."""
    return ((1 + numbers.second_moment(beta)) / 2) ** P


def swapped(step):
    return step._replace(smaller=step.larger, larger=step.smaller)


WRONG_ORDERS = {
    "P/beta alone": lambda P, L, beta, N, delta: P / beta,
    "no bias term": lambda P, L, beta, N, delta: math.sqrt(math.log(N / delta) / L),
    "P/beta^2": lambda P, L, beta, N, delta: P / beta**2 + math.sqrt(math.log(N / delta) / L),
    "1/beta": lambda P, L, beta, N, delta: 1 / beta + math.sqrt(math.log(N / delta) / L),
    "log/L": lambda P, L, beta, N, delta: P / beta + math.log(N / delta) / L,
    "sqrt(log)/L": lambda P, L, beta, N, delta: P / beta + math.sqrt(math.log(N / delta)) / L,
}
LOOSE = {
    "a constant": lambda P, L, beta, N, delta: 10.0,
    "P/sqrt(beta)": lambda P, L, beta, N, delta: P / math.sqrt(beta) + math.sqrt(math.log(N / delta) / L),
    "fourth root": lambda P, L, beta, N, delta: P / beta + (math.log(N / delta) / L) ** 0.25,
}


def kept_mass(beta):
    """Keys that stay where the first of the sequence lies: s_min/N does not fall."""
    return 1 / 16, 3 / 4


MUTANTS = {
    "race.collision": [
        lambda: claims.collision(kappa=lambda cosine: (1 + cosine) / 2),
        lambda: claims.collision(kappa=lambda cosine: reference.kappa(cosine) ** 2),
    ],
    "race.kernel-values": [lambda: claims.kernel_values(kappa=lambda half_turns: 1 - 2 * half_turns)],
    "race.sharpening": [lambda: claims.sharpening(sharpen=lambda kappa: kappa**3)],
    "race.factorised": [lambda: claims.factorised(bit=lambda beta, u, v: 1 / (1 + np.exp(-beta * u * v)))],
    "race.pair-product": [
        lambda: claims.pair_product(pair=lambda a, b: np.prod(1 + a * b, axis=-1)),
        lambda: claims.pair_product(pair=lambda a, b: (1 + np.sum(a * b, axis=-1)) / 2),
    ],
    "race.limits": [
        lambda: claims.limits(missing=lambda beta, u: np.sum(np.exp(-beta * np.abs(u)), axis=-1)),
        lambda: claims.limits(share=lambda P: 1 / (2 * P)),
    ],
    "race.global-ratio": [lambda: claims.global_ratio(attention=rational.bucket_means)],
    "race.figure7": [lambda: claims.figure7(drawn=mass_weighted_means)],
    "race.ratio-of-unbiased": [lambda: claims.ratio_of_unbiased(expected=lambda n, d: sum(n) / sum(d))],
    "race.causal-state": [
        lambda: claims.causal_state(seen=lambda T: np.ones((T, T))),
        lambda: claims.causal_state(numbers=lambda L, R, V: L * R * V),
    ],
    "race.rank-reader": [lambda: claims.rank_reader(bound=lambda P, L: 2 * L * P)],
    "race.rank": [
        lambda: claims.rank(bound=lambda P, L: L * (2**P - 1)),
        lambda: claims.rank(bound=lambda P, L: L * 2**P),
    ],
    "race.rank-causal": [lambda: claims.rank_causal(mask=lambda scores: scores)],
    "race.constant-value": [lambda: claims.constant_value(attention=without_table_average)],
    "race.released-code": [lambda: claims.released_code(released=ratio_times_tables, shipped=shipped_ratio)],
    "race.scale-free": [lambda: claims.scale_free(bit_of_multiple=lambda u, n: u)],
    "race.bias-variance": [
        lambda: claims.bias_variance(variance=lambda x, xx, P, L: xx**P - x ** (2 * P)),
        lambda: claims.bias_variance(variance=lambda x, xx, P, L: (xx - x**2) ** P / L),
        lambda: claims.bias_variance(mean=lambda x, P: (2 * x - 1) ** P),
        lambda: claims.bias_variance(moments=uncorrelated_moments),
    ],
    "race.bias-bound": [
        lambda: claims.bias_bound(
            leading=lambda numbers, beta: claims._leading(numbers, beta) / 2,
            tail=lambda numbers, beta: claims._tail(numbers, beta) / 2,
        ),
        lambda: claims.bias_bound(leading=lambda numbers, beta: claims._leading(numbers, beta**2)),
        lambda: claims.bias_bound(leading=lambda numbers, beta: numbers.real("0.43") / beta),  # needs no tail
        lambda: claims.bias_bound(tail=lambda numbers, beta: numbers.real(0)),
        lambda: claims.bias_bound(tail=lambda numbers, beta: claims._tail(numbers, beta) / 100),
    ],
    "race.bias-order": [
        lambda: claims.bias_order(order=lambda rho: 1),
        lambda: claims.bias_order(order=lambda rho: 2),
    ],
    "race.denominator": [
        lambda: claims.denominator(floor=lambda numbers, beta, P: ((1 - numbers.tanh(beta)) / 2) ** P),
        lambda: claims.denominator(floor=lambda numbers, beta, P: numbers.real(Fraction(1, 2**P))),
    ],
    "race.lemma10": [lambda: claims.lemma10(target=mean_score)],
    "race.lemma10-every-draw": [
        lambda: claims.lemma10_every_draw(
            threshold=lambda numbers, P: numbers.artanh(numbers.sqrt(numbers.real(2) ** (numbers.real(1) / P) - 1))
        )
    ],
    "race.lemma10-large-L": [
        lambda: claims.lemma10_large_tables(
            printed=dict(zip(claims.LARGE_L, reversed(claims.LARGE_L.values()), strict=True))
        ),
        lambda: claims.lemma10_large_tables(mean_score=lambda second_moment, P: (1 + second_moment) / 2),
    ],
    "race.lemma10-output": [lambda: claims.lemma10_output(divide=lambda numerator, denominator: numerator / 4)],
    "race.lemma10-repair": [
        lambda: claims.lemma10_repair(radius=lambda bias, N, L: math.sqrt(math.log(2 * N**2 / claims.DELTA) / (2 * L))),
        lambda: claims.lemma10_repair(
            radius=lambda bias, N, L: bias + math.sqrt(math.log(2 * N**2 / claims.DELTA) / (8 * L))
        ),
        lambda: claims.lemma10_repair(radius=lambda bias, N, L: bias + math.sqrt(math.log(2 / claims.DELTA) / (2 * L))),
    ],
    "race.theorem2": [
        *(lambda rate=rate: claims.theorem2(rate=rate) for rate in WRONG_ORDERS.values()),
        lambda: claims.theorem2(rate=lambda *setting: theory.theorem2_rate(*setting) / 20),
        lambda: claims.theorem2(fading=kept_mass),
    ],
    "race.theorem2-cost": [lambda: claims.theorem2_cost(tables=lambda doublings: 8)],
    "race.monotone": [lambda: claims.monotone(table=tuple(map(swapped, claims.TRAINED)))],
    "race.fp16-mass": [
        lambda: claims.fp16_mass(running=np.float32),
        lambda: claims.fp16_mass(running=np.float64),
    ],
    "race.table-ratios": [
        lambda: claims.table_ratios(arxiv=claims.FOOD, food=claims.ARXIV),
        lambda: claims.table_ratios(arxiv=claims.ARXIV._replace(flash_percent=Fraction("97.4"))),
    ],
    "race.text-3.5x": [lambda: claims.text_longer(race=Fraction(14))],
    "race.text-cpu33m": [lambda: claims.text_cpu33m(curve=claims.Curve(exceeds=(64, 10), end=(75, 20)))],
}
EVERY_MUTANT = [
    pytest.param(name, mutant, id=f"{name}-{i}")
    for name, mutants in MUTANTS.items()
    for i, mutant in enumerate(mutants)
]


def test_every_claim_has_a_mutant():
    assert list(MUTANTS) == list(TABLE)
    assert all(MUTANTS.values())


@pytest.mark.parametrize(("name", "mutant"), EVERY_MUTANT)
def test_a_wrong_formula_turns_the_verdict(name, mutant):
    outcome = mutant()
    assert isinstance(outcome, Outcome)
    assert outcome.observed in Verdict
    assert outcome.observed != TABLE[name][0], outcome


@needs_flint
@pytest.mark.parametrize(
    "name", ["race.bias-bound", "race.bias-order", "race.lemma10-every-draw", "race.lemma10-large-L"]
)
def test_ball_arithmetic_alone_decides_against_the_wrong_formula(name):
    """Not undecided, and not by the sample that stands behind the certificate."""
    assert all(mutant().evidence is Evidence.CERTIFIED for mutant in MUTANTS[name])


@pytest.mark.parametrize("rate", WRONG_ORDERS.values(), ids=WRONG_ORDERS)
def test_no_constant_saves_a_rate_of_the_wrong_order(rate):
    """A million times the wrong rate is far above every error; its order is what refutes it."""
    assert claims.theorem2(rate=lambda *setting: 1e6 * rate(*setting)).observed is Verdict.REFUTED


@pytest.mark.parametrize("factor", [1, 2])
def test_a_factor_in_the_constant_does_not_turn_the_second_theorem(factor):
    outcome = claims.theorem2(rate=lambda *setting: factor * theory.theorem2_rate(*setting))
    assert outcome.observed is Verdict.CONDITIONAL
    assert outcome.measured.split("outside, ")[1] == claims.theorem2().measured.split("outside, ")[1]


def test_the_second_theorem_needs_its_constant_and_its_mass():
    rate = theory.theorem2_rate
    assert claims.theorem2(rate=lambda *setting: rate(*setting) / 20).observed is Verdict.REFUTED
    assert claims.theorem2(fading=kept_mass).observed is Verdict.HOLDS


@pytest.mark.parametrize("rate", LOOSE.values(), ids=LOOSE)
def test_a_rate_that_the_settings_do_not_attain_is_a_failed_claim(rate):
    """A larger rate is no false bound, but a check that could not tell it from the theorem's would say nothing."""
    with pytest.raises(ArithmeticError, match="attain each term"):
        claims.theorem2(rate=rate)


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_the_interval_for_a_quantile_covers_it_and_is_not_wide(share):
    values = np.random.default_rng(0).random(1000)
    low, high = claims._quantile(values, share)
    assert low < share < high < low + 0.2


def test_too_few_values_leave_a_high_quantile_open():
    assert claims._quantile(np.arange(1.0, 100.0), 0.9)[1] == math.inf


def test_a_broken_bridge_to_the_released_operator_is_a_failed_claim():
    with pytest.raises(ArithmeticError, match="bucket_mean"):
        claims.released_code(shipped=shipped_ratio)


def test_the_gap_to_the_released_code_is_measured_and_not_copied():
    note = claims.released_code().note
    assert note.count("beta") == 8
    assert "beta 5, (4, 4)" in note
