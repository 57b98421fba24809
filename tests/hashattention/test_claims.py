"""The claims about HashAttention: the table they were agreed in, what each check sees, and wrong formulas that it must
notice.
"""

import os
import re
import runpy
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from attnlab import data
from attnlab.claim import NOBODY, Outcome, Verdict
from attnlab.hashattention import claims, reference, selectors
from attnlab.hashattention.params import random_maps

TABLE = {
    "hash.example": ("HOLDS", "exact"),
    "hash.popcount": ("HOLDS", "exact"),
    "hash.mips": ("HOLDS", "identity"),
    "hash.lift-printed": ("REFUTED", "exact"),
    "hash.lift-zero": ("HOLDS", "identity"),
    "hash.isolated": ("REFUTED", "exact"),
    "hash.isolated-renormalised": ("REFUTED", "exact"),
    "hash.cross-terms": ("CONDITIONAL", "identity"),
    "hash.oracle-bound": ("REFUTED", "exact"),
    "hash.lsh-distance": ("HOLDS", "statistical"),
    "hash.lsh-monotone": ("REFUTED", "exact"),
    "hash.centring": ("REFUTED", "exact"),
    "hash.budget": ("HOLDS", "exact"),
    "hash.full-budget": ("HOLDS", "identity"),
    "hash.duplicates": ("REFUTED", "identity"),
    "hash.text-65k": ("REFUTED", "exact"),
    "hash.text-2.54": ("REFUTED", "exact"),
    "hash.table6": ("HOLDS", "exact"),
    "hash.learned-beats-random": ("HOLDS", "statistical"),
    "hash.static-baseline": ("REFUTED", "statistical"),
}
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "papers" / "hashattention.md"
PROOFS = PAGE.with_name("hashattention-proofs.md")
RECALL = PAGE.with_name("hashattention_recall.py")
ARITHMETIC = {"hash.oracle-bound", "hash.lsh-monotone", "hash.text-65k", "hash.text-2.54", "hash.table6"}
MEASURED = {"hash.learned-beats-random", "hash.static-baseline"}  # on shipped data: nothing to prove
PAPERS = {"hash.lift-printed", "hash.isolated", "hash.text-65k", "hash.text-2.54"}  # refuted, and the paper says them


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
    assert record["evidence"] == claim.evidence
    assert record["measured"]
    assert record["bound"]


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=by_id)
def test_a_claim_is_one_sentence_with_its_place(claim):
    assert claim.says[0].isupper()
    assert claim.says.endswith(".")
    assert "\n" not in claim.says
    assert ". " not in claim.says
    assert "p. " in claim.source or "pp. " in claim.source or claim.source.startswith("this project")


def test_a_refutation_counts_against_the_paper_only_where_the_paper_says_the_sentence():
    refuted = {claim.id: claim.said_by for claim in claims.CLAIMS if claim.recorded is Verdict.REFUTED}
    assert {name for name, who in refuted.items() if who == "the paper"} == PAPERS
    assert {who for name, who in refuted.items() if name not in PAPERS} == {NOBODY}


def test_the_proofs_open_with_every_claim_that_is_not_arithmetic_or_a_measurement():
    openings = re.findall(r"^\*((?:`hash\.[a-z0-9.-]+`(?:, )?)+)[^*]*\*", PROOFS.read_text("utf-8"), re.MULTILINE)
    proved = [name for opening in openings for name in re.findall(r"`(.*?)`", opening)]
    assert len(proved) == len(set(proved))
    assert set(proved) == TABLE.keys() - ARITHMETIC - MEASURED


def test_the_sizes_of_the_random_calls_all_differ_and_heads_are_shared():
    for shape, call in zip(claims.SHAPES, claims._calls(), strict=True):
        assert len(set(shape)) == len(shape)
        assert call.q.shape == (shape.B, shape.T, shape.H, shape.K)
        assert call.v.shape == (shape.B, shape.S, shape.G, shape.V)
        assert shape.G < shape.H
        assert len(np.unique(call.key_codes)) == call.key_codes.size


# -- wrong formulas ---------------------------------------------------------------------------------------------------


def one_token_short(*call, budget, **options):
    """A budget that misses one token, where it is a number."""
    return reference.attention(*call, budget=budget - 6 if isinstance(budget, int) else budget, **options)


def first_head_only(q, k, v, query_codes, key_codes, **options):
    """All query heads read the first key/value head."""
    return reference.attention(q, k[:, :, :1], v[:, :, :1], query_codes, key_codes[:, :, :1], **options)


def once(q, k, v, names, scale):
    """A list whose repetitions are struck out."""
    return claims._as_named(q, k, v, sorted(set(names)), scale)


def with_cross_terms(a, v):
    return np.sum((a @ v) ** 2)


def unlearned(layer):
    """Random projections in place of the learned maps, the same for queries and keys."""
    width = data.real_heads().layer(layer).q.shape[-1]
    maps = random_maps(32, 3, width, seed=11)
    return maps, maps


MUTANTS = {
    "hash.example": [lambda: claims.example(distance=lambda code, codes: 4 - reference.hamming(code, codes))],
    "hash.popcount": [
        lambda: claims.popcount(from_product=lambda product, bits: bits - product),
        lambda: claims.popcount(from_product=lambda product, bits: (32 - product) / 2),
    ],
    "hash.mips": [
        lambda: claims.mips(lifted_key=lambda k, length: np.column_stack([k, length])),
        lambda: claims.mips(lifted_key=lambda k, length: np.column_stack([k, 2 * np.log(length)])),
    ],
    "hash.lift-printed": [lambda: claims.lift_printed(last=0)],
    "hash.lift-zero": [
        lambda: claims.lift_zero(last=1.0),
        lambda: claims.lift_zero(last=1e-9),
        lambda: claims.lift_zero(stretch=0.9),
    ],
    "hash.isolated": [lambda: claims.isolated(choose=claims._by_error)],
    "hash.isolated-renormalised": [lambda: claims.isolated_renormalised(choose=claims._by_error)],
    "hash.cross-terms": [
        lambda: claims.cross_terms(lost=with_cross_terms),
        lambda: claims.cross_terms(lost=lambda a, v: np.sum(a * np.sum(v * v, axis=-1))),
        lambda: claims.cross_terms(orthogonal=lambda v: v),
    ],
    "hash.oracle-bound": [lambda: claims.oracle_bound(table=claims.TABLE1 | {"HashAttention": Fraction("63.43")})],
    "hash.lsh-distance": [
        lambda: claims.lsh_distance(expected=lambda half_turns: (1 - np.cos(np.pi * half_turns)) / 2),
        lambda: claims.lsh_distance(expected=lambda half_turns: half_turns / 2),
        lambda: claims.lsh_distance(expected=lambda half_turns: 1 - half_turns),
    ],
    "hash.lsh-monotone": [lambda: claims.lsh_monotone(table=claims.TABLE8 | {512: claims.TABLE8[256]})],
    "hash.centring": [
        lambda: claims.centring(moved=lambda k, mean: k - k[0] * mean),
        lambda: claims.centring(moved=lambda k, mean: k / sum(x * x + 1 for x in k)),
    ],
    "hash.budget": [
        lambda: claims.budget(read=lambda retrieved, sinks, window: retrieved),
        lambda: claims.budget(read=lambda retrieved, sinks, window: retrieved + sinks),
    ],
    "hash.full-budget": [
        lambda: claims.full_budget(attend=one_token_short),
        lambda: claims.full_budget(attend=first_head_only),
    ],
    "hash.duplicates": [lambda: claims.duplicates(output=once)],
    "hash.text-65k": [
        lambda: claims.text_65k(
            plotted=claims.THROUGHPUT
            | {
                "32K": claims.Pair(Fraction("5.86"), Fraction("18.28")),
                "65K": claims.Pair(Fraction("5.00"), Fraction("12.48")),
            }
        ),
    ],
    "hash.text-2.54": [
        lambda: claims.text_254(plotted=claims.LATENCY | {"524K": claims.Pair(Fraction("6.17"), Fraction("2.43"))})
    ],
    "hash.table6": [lambda: claims.table6(row=claims.Pair(Fraction("0.619"), Fraction("0.085")))],
    "hash.learned-beats-random": [lambda: claims.learned_beats_random(maps=unlearned)],
    "hash.static-baseline": [lambda: claims.static_baseline(baseline="sinks_window")],
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


# -- what stands in the outcomes --------------------------------------------------------------------------------------


def test_the_printed_lift_is_told_with_the_papers_numbers():
    assert "q = 1, M = 1, keys 3/5 and 1: 7/5 and 1" in claims.lift_printed().measured


def test_the_readers_three_tokens_are_told():
    assert "a = (9/20, 7/20, 1/5), v = (1, -1, 1): 3/20 beside 1/10" in claims.isolated().measured


def test_rounding_of_the_labels_is_allowed_for():
    """2.57 is refuted only if no pair of numbers behind the labels could have given 2.54."""
    assert "between 2.561 and 2.575" in claims.text_254().measured
    coarse = claims.LATENCY | {"524K": claims.Pair(Fraction("6.2"), Fraction("2.43"))}
    assert claims.text_254(plotted=coarse).observed is Verdict.HOLDS  # 2.551, but 2.545 would be printed so


def test_a_largest_gain_that_rounding_leaves_open_is_no_verdict():
    close = claims.THROUGHPUT | {"32K": claims.Pair(Fraction("4.00"), Fraction("12.48"))}
    with pytest.raises(ArithmeticError, match="no doubt where the largest gain is"):
        claims.text_65k(plotted=close)


def test_bernsteins_interval_covers_and_shrinks_with_the_variance():
    few = np.tile([0.0, 0.5], 500)
    low, high = claims._bernstein(few, 0.99)
    assert low < 0.25 < high < 0.25 + 0.05
    steady = claims._bernstein(np.full(1000, 0.25), 0.99)
    assert steady[1] - steady[0] < (high - low) / 2
    wider = claims._bernstein(few, 0.999999)
    assert wider[0] < low
    assert high < wider[1]


def test_the_interval_of_random_codes_is_about_what_the_selector_draws():
    """The selector's own projections, every query of the three heads, two seeds; 600 draws of the middle layer."""
    low, high = claims._random_recall(claims.MIDDLE, 600)
    heads = [head._replace(q=head.q[claims.FIRST :]) for head in claims._heads(claims.MIDDLE)]
    drawn = [
        selectors.measure("lsh_centred", head, budget=64, options=selectors.Options(seed=seed)).recall.mean()
        for head in heads
        for seed in (1, 2)
    ]
    assert low < np.mean(drawn) < high


# -- the page ---------------------------------------------------------------------------------------------------------


def cells(table):
    """The numbers of each row of a Markdown table, by its name."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {name.strip("`"): [float(x) for x in numbers] for name, *numbers in rows}


def test_the_code_on_the_page_runs():
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    seen: dict = {}
    exec(block, seen)
    assert seen["read"].shape == (1, 2, 3, 320)
    assert seen["out"].shape == (1, 2, 3, 64)


def test_a_row_of_the_table_of_recalls_is_what_its_script_measures():
    script = runpy.run_path(str(RECALL))
    stored = cells(RECALL.with_suffix(".txt").read_text("utf-8"))
    assert list(stored) == list(script["ROWS"])
    recall, mass = script["measured"]("hash", script["heads_of"](9))
    assert [round(recall, 3), round(mass, 3)] == pytest.approx([stored["hash"][2], stored["hash"][5]], abs=0.0015)


def test_the_text_below_the_table_has_its_numbers_from_it():
    text = PAGE.read_text("utf-8").split("## Baselines first")[1].split("\n## ")[0]
    numbers = {float(x) for x in re.findall(r"\b0\.\d{3}\b", text)}
    known = {x for row in cells(RECALL.with_suffix(".txt").read_text("utf-8")).values() for x in row}
    n = np.arange(claims.FIRST + 1, 2049)
    by_chance = round(float(np.mean(64 / (n - 256))), 3)
    assert by_chance in numbers
    assert numbers - {by_chance} <= known
    assert len(numbers) >= 10


@pytest.mark.slow
def test_the_table_of_recalls_is_what_its_script_prints():
    done = subprocess.run(
        [sys.executable, str(RECALL)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    printed, stored = cells(done.stdout), cells(RECALL.with_suffix(".txt").read_text("utf-8"))
    assert printed.keys() == stored.keys()
    for name, numbers in printed.items():  # three decimals; another BLAS may turn a bit whose number is nearly 0
        assert numbers == pytest.approx(stored[name], abs=0.0015), name
