"""The claims about LRKV: the table they were agreed in, what each check sees, wrong formulas that it must notice."""

import re
import runpy
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from attnlab.claim import NOBODY, Outcome, Verdict
from attnlab.lrkv import accounting, claims, diversity, rational, reference, rotary

TABLE = {
    "lrkv.factored": ("HOLDS", "identity"),
    "lrkv.split-merge": ("HOLDS", "identity"),
    "lrkv.rank0": ("HOLDS", "identity"),
    "lrkv.any-mha": ("REFUTED", "exact"),
    "lrkv.rope": ("REFUTED", "exact"),
    "lrkv.rope-iff": ("HOLDS", "identity"),
    "lrkv.rope-search": ("HOLDS", "identity"),
    "lrkv.rope-mean": ("HOLDS", "identity"),
    "lrkv.rope-odd": ("HOLDS", "identity"),
    "lrkv.rope-width": ("HOLDS", "exact"),
    "lrkv.rope-options": ("HOLDS", "identity"),
    "lrkv.rope-tied": ("HOLDS", "identity"),
    "lrkv.rope-angle": ("HOLDS", "identity"),
    "lrkv.rope-same-planes": ("HOLDS", "identity"),
    "lrkv.rmsnorm": ("REFUTED", "exact"),
    "lrkv.rmsnorm-scalar": ("HOLDS", "identity"),
    "lrkv.gain": ("HOLDS", "identity"),
    "lrkv.cache-ratio": ("HOLDS", "exact"),
    "lrkv.parameters": ("HOLDS", "exact"),
    "lrkv.scale-labels": ("REFUTED", "exact"),
    "lrkv.kernel-traffic": ("REFUTED", "exact"),
    "lrkv.mla-reconstructs": ("REFUTED", "identity"),
    "lrkv.centred-rank": ("HOLDS", "exact"),
    "lrkv.figure9": ("REFUTED", "exact"),
    "lrkv.table3": ("HOLDS", "exact"),
    "lrkv.gauge": ("HOLDS", "identity"),
    "lrkv.table12": ("REFUTED", "exact"),
    "lrkv.table12-rank": ("HOLDS", "exact"),
    "lrkv.table7-print": ("REFUTED", "exact"),
    "lrkv.layers": ("REFUTED", "exact"),
    "lrkv.table8-ratios": ("HOLDS", "exact"),
    "lrkv.table8": ("REFUTED", "exact"),
    "lrkv.table8-bits": ("REFUTED", "exact"),
    "lrkv.table1-lowest": ("HOLDS", "exact"),
    "lrkv.ce": ("HOLDS", "exact"),
    "lrkv.sharing-costs": ("REFUTED", "exact"),
    "lrkv.table2-mean": ("HOLDS", "exact"),
    "lrkv.every-task": ("REFUTED", "exact"),
    "lrkv.average-6.3b": ("HOLDS", "exact"),
}
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "papers" / "lrkv.md"
PROOFS = PAGE.with_name("lrkv-proofs.md")
TABLES = PAGE.with_name("lrkv_tables.py")
ARITHMETIC = {  # of the paper's own digits: nothing to prove
    *("lrkv.scale-labels", "lrkv.figure9", "lrkv.table3", "lrkv.table12", "lrkv.table12-rank", "lrkv.table7-print"),
    *("lrkv.layers", "lrkv.table8-ratios", "lrkv.table8", "lrkv.table1-lowest", "lrkv.ce", "lrkv.sharing-costs"),
    *("lrkv.table2-mean", "lrkv.every-task", "lrkv.average-6.3b", "lrkv.table8-bits"),
}
PAPERS = {  # refuted, and the paper says them
    *("lrkv.rope", "lrkv.mla-reconstructs", "lrkv.figure9", "lrkv.table12", "lrkv.table7-print"),
}


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


def test_the_proofs_open_with_every_claim_that_is_not_arithmetic():
    openings = re.findall(r"^\*((?:`lrkv\.[a-z0-9.-]+`(?:, )?)+)[^*]*\*", PROOFS.read_text("utf-8"), re.MULTILINE)
    proved = [name for opening in openings for name in re.findall(r"`(.*?)`", opening)]
    assert len(proved) == len(set(proved))
    assert set(proved) == TABLE.keys() - ARITHMETIC


def test_the_sizes_of_the_random_calls_all_differ_and_heads_are_shared():
    for shape, call in zip(claims.SHAPES, claims._calls(), strict=True):
        assert len(set(shape) - {1}) >= len(shape) - shape.count(1)
        assert call.q.shape == (shape.B, shape.T, shape.H, shape.K)
        assert call.v_shared.shape == (shape.B, shape.S, shape.G, shape.V)
        assert call.v_latent.shape == (shape.B, shape.S, shape.H, shape.Rv)
        assert shape.H % shape.G == 0
        assert shape.G < shape.H


# -- wrong formulas ---------------------------------------------------------------------------------------------------


def transposed_latents(q, k_shared, v_shared, k_latent, *rest, **options):
    """Each head reads the latents of another."""
    return reference.attention(q, k_shared, v_shared, k_latent[:, :, ::-1], *rest, **options)


def no_residual_values(*call, **options):
    return reference.attention(*call[:4], 0 * call[4], *call[5:], **options)


def mean_of_parts(parts):
    """Parts weighted alike, instead of by their denominators."""
    return tuple(np.mean([getattr(part, name) for part in parts], axis=0) for name in ("shared_out", "latent_out"))


def latents_by_another_weight(parts):
    shared, latent = claims._merged(parts)
    return shared, 2 * latent


def keys_cut_to_rank(k, v):
    """One number less of each key."""
    zero_k, zero_v, k, v, k_factor, v_factor = claims._at_full_rank(k, v)
    return zero_k, zero_v, k[..., :-1], v, k_factor[..., :-1], v_factor


def twice_the_cache(k, v):
    """Keys that stand in the shared part too, so that the cache is larger than 1 + 1/H."""
    arrays = claims._at_full_rank(k, v)
    return np.zeros((*k.shape[:2], 2, k.shape[-1])), np.zeros((*v.shape[:2], 2, v.shape[-1])), *arrays[2:]


TURNED_BY_PI = [(Fraction(-1), Fraction(0)), rational.CIRCLE[0]]
OPPOSITE = [rational.CIRCLE[0], (rational.CIRCLE[0][0], -rational.CIRCLE[0][1])]


def real_weights(real, imaginary, rank):
    """Weights whose imaginary part enters both coordinates with one sign: not complex-linear."""
    return np.abs(rotary.tied_factor(real, imaginary, rank))


def shared_orientation(*given, opposite=False):
    return rotary.angle_law(*given)


def with_shared_keys(d, r, H):
    return d + H * r


def wrong_options(name, *, exact):
    return rotary.OPTIONS | {name: rotary.OPTIONS[name]._replace(exact=exact)}


def row(table, label, **changes):
    """The table with one row changed, found by its first or its first two entries."""
    rows = [x._replace(**changes) if x[: len(label)] == label else x for x in table]
    assert rows != list(table)
    return tuple(rows)


MUTANTS = {
    "lrkv.factored": [
        lambda: claims.factored(attend=transposed_latents),
        lambda: claims.factored(attend=no_residual_values),
        lambda: claims.factored(attend=lambda *call, causal: reference.attention(*call, causal=True)),
    ],
    "lrkv.split-merge": [
        lambda: claims.split_merge(merged=mean_of_parts),
        lambda: claims.split_merge(merged=latents_by_another_weight),
    ],
    "lrkv.rank0": [
        lambda: claims.rank0(represent=keys_cut_to_rank),
        lambda: claims.rank0(represent=twice_the_cache),
    ],
    "lrkv.any-mha": [lambda: claims.any_mha(rank=2), lambda: claims.any_mha(heads=claims.THREE_APART[:, :, :2])],
    "lrkv.rope": [
        lambda: claims.full_rope(rational.QUARTER_TURN._replace(factor=rational.fractions(np.eye(2)))),
        lambda: claims.full_rope(rational.QUARTER_TURN._replace(rotation=rational.fractions(-np.eye(2)))),
    ],
    "lrkv.rope-iff": [
        lambda: claims.rope_iff(whole=lambda basis, pairs: basis.shape[1] % 2 == 0),
        lambda: claims.rope_iff(whole=lambda basis, pairs: True),
        lambda: claims.rope_iff(points=[rational.CIRCLE[0], rational.CIRCLE[0]]),
        lambda: claims.rope_iff(points=OPPOSITE),
        lambda: claims.rope_iff(points=TURNED_BY_PI),
    ],
    "lrkv.rope-search": [
        lambda: claims.rope_search(frequency=(0.5, 0.5, 1.9, 2.6)),
        lambda: claims.rope_search(frequency=(0.5, 1.2, 2 * np.pi - 1.2, 2.6)),
        lambda: claims.rope_search(frequency=(0.5, 1.2, np.pi, 2.6)),
    ],
    "lrkv.rope-mean": [
        lambda: claims.rope_mean(law=lambda held: np.sum(held * (1 - held))),
        lambda: claims.rope_mean(law=lambda held: 2 * np.sum(held) * (1 - np.mean(held))),
    ],
    "lrkv.rope-odd": [
        lambda: claims.rope_odd(least=0.6),
        lambda: claims.rope_odd(least=0.4),
        lambda: claims.rope_odd(ranks=(51, 54)),
    ],
    "lrkv.rope-width": [
        lambda: claims.rope_width(numbers=lambda factor, touched: factor.shape[1]),
        lambda: claims.rope_width(numbers=lambda factor, touched: 6),
    ],
    "lrkv.rope-options": [
        lambda: claims.rope_options(wrong_options("latents_turned", exact=True)),
        lambda: claims.rope_options(wrong_options("other_layout", exact=True)),
        lambda: claims.rope_options(wrong_options("best_latent_map", exact=True)),
        lambda: claims.rope_options(wrong_options("aligned", exact=False)),
    ],
    "lrkv.rope-tied": [
        lambda: claims.rope_tied(factor=real_weights),
        lambda: claims.rope_tied(factor=lambda *given: rotary.tied_factor(*given, layout="interleaved")),
    ],
    "lrkv.rope-angle": [
        lambda: claims.rope_angle(law=shared_orientation),
        lambda: claims.rope_angle(
            law=lambda turning, i, j, phi, *rest, **way: rotary.angle_law(turning, i, j, phi / 2, *rest, **way)
        ),
        lambda: claims.rope_angle(
            law=lambda turning, i, j, phi, positions, opposite=False: (
                np.abs(np.sin(2 * phi))
                * np.abs(np.sin(positions * (turning.frequency[i] + (1 if opposite else -1) * turning.frequency[j])))
            )
        ),
    ],
    "lrkv.rope-same-planes": [
        lambda: claims.rope_same_planes(numbers=with_shared_keys),
        lambda: claims.rope_same_planes(kept=lambda d, planes: np.arange(d)),
        lambda: claims.rope_same_planes(kept=lambda d, planes: np.setdiff1d(np.arange(d), planes)[:-1]),
    ],
    "lrkv.rmsnorm": [
        lambda: claims.rmsnorm(paths=lambda *given: rational.rms_norm(sum(given))),
    ],
    "lrkv.rmsnorm-scalar": [
        lambda: claims.rmsnorm_scalar(scalar=lambda k: 1 / np.sqrt(np.sum(k**2, axis=-1))),
        lambda: claims.rmsnorm_scalar(
            scalar=lambda k: np.mean(claims._inverse_rms(k), axis=2, keepdims=True) + 0 * k[..., 0]
        ),
    ],
    "lrkv.gain": [
        lambda: claims.gain(fold=lambda gain, coordinates, latent: latent),
        lambda: claims.gain(fold=lambda gain, coordinates, latent: gain[: len(coordinates)] * latent),
    ],
    "lrkv.cache-ratio": [
        lambda: claims.cache_ratio(
            elements=lambda *given, rank=0, **sizes: accounting.elements(*given, rank=rank + rank % 2, **sizes)
        ),
        lambda: claims.cache_ratio(
            elements=lambda *given, **sizes: accounting.elements(*given, key_scale=True, **sizes)
        ),
    ],
    "lrkv.parameters": [
        lambda: claims.parameters(count=lambda scheme, width, **sizes: accounting.elements(scheme, **sizes)),
        lambda: claims.parameters(
            count=lambda scheme, rank=0, **sizes: accounting.parameters(scheme, rank=rank // 2, **sizes)
        ),
    ],
    "lrkv.scale-labels": [
        lambda: claims.scale_labels(count=lambda *scheme, **sizes: accounting.parameters("mha", **sizes))
    ],
    "lrkv.kernel-traffic": [lambda: claims.kernel_traffic(moved=accounting.traffic)],
    "lrkv.mla-reconstructs": [
        lambda: claims.mla_reconstructs(
            read=lambda q, z, k_up, v_up: claims._without_keys_and_values(q, z, k_up[::-1], v_up)
        ),
    ],
    "lrkv.centred-rank": [
        lambda: claims.centred_rank(centre=lambda gram: gram),
        lambda: claims.centred_rank(centre=lambda gram: gram - gram.sum() / gram.size),
    ],
    "lrkv.figure9": [lambda: claims.figure9(ceiling=lambda heads: heads)],
    "lrkv.table3": [lambda: claims.table3(ceiling=lambda heads: heads - 2)],
    "lrkv.gauge": [lambda: claims.gauge(key_side=lambda M: M), lambda: claims.gauge(key_side=np.linalg.inv)],
    "lrkv.table12": [
        lambda: claims.table12([x._replace(printed=100 * x.lrkv / x.mha) for x in accounting.TABLE_12]),
    ],
    "lrkv.table12-rank": [lambda: claims.table12_rank(rank=54), lambda: claims.table12_rank(rank=63)],
    "lrkv.table7-print": [
        lambda: claims.table7_print(
            row(row(accounting.CONFIGURATIONS, ("2.5B",), printed=48.5), ("6.3B",), printed=45.3)
        ),
    ],
    "lrkv.layers": [lambda: claims.layers(dict.fromkeys(accounting.LAYERS_2_5B, 18))],
    "lrkv.table8-ratios": [
        lambda: claims.table8_ratios(
            ratio=lambda scheme, *, heads, **sizes: accounting.ratio(scheme, heads=2 * heads, **sizes)
        ),
        lambda: claims.table8_ratios(ratio=lambda scheme, **sizes: accounting.ratio(scheme, rope_width=64, **sizes)),
    ],
    "lrkv.table8": [
        lambda: claims.table8(
            [x for x in accounting.TABLE_8 if x.scheme != "mla"]
            + [x._replace(printed=50.0, cross_entropy=2.9) for x in accounting.TABLE_8[5:6]]
        ),
    ],
    "lrkv.table8-bits": [
        lambda: claims.table8_bits(digit=Fraction(1, 200)),  # digits too coarse to tell
        lambda: claims.table8_bits([x for x in accounting.TABLE_8 if x.scheme == "mla"]),
    ],
    "lrkv.table1-lowest": [
        lambda: claims.table1_lowest(claims.TABLE1 | {"MQA": ("2.929", "2.573", "2.408", "2.204")}),
    ],
    "lrkv.ce": [
        lambda: claims.ce(claims.TABLE1 | {"LRKV": claims.TABLE1["MHA"]}),
        lambda: claims.ce(long=claims.TABLE9 | {"MHA": "2.728"}),
    ],
    "lrkv.sharing-costs": [
        lambda: claims.sharing_costs(claims.TABLE1 | {"MQA": ("2.929", "2.573", "2.408", "2.404")}),
    ],
    "lrkv.table2-mean": [lambda: claims.table2_mean(claims.TABLE2 | {"HumanEval": ("13.4", "12.8")})],
    "lrkv.every-task": [lambda: claims.every_task({"MMLU": claims.TABLE2["MMLU"]})],
    "lrkv.average-6.3b": [
        lambda: claims.average_63b(mean=Fraction("40.18")),
        lambda: claims.average_63b(mean=Fraction("40.29")),
    ],
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


# -- the page ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tables():
    return runpy.run_path(str(TABLES))


def page_part(title):
    return PAGE.read_text("utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_code_on_the_page_runs():
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    seen: dict = {}
    exec(block, seen)
    assert seen["out"].shape == (1, 1, 6, 16)
    assert seen["kept"] == accounting.elements("lrkv", heads=6, head_width=16, rank=4) == 80
    assert accounting.elements("mha", heads=6, head_width=16) == 192
    arguments = seen["cache"].arguments(rope=seen["turning"])
    whole = reference.expanded_attention(seen["newest"], **arguments)
    assert np.abs(seen["out"] - whole).max() <= 1e-13 * np.abs(whole).max()


def test_the_two_tokens_by_hand():
    def row(*numbers):
        return np.array([numbers], dtype=float)

    def tokens(*rows):
        return np.array(rows, dtype=float)[None, :, None]

    call = {
        "q": tokens((1, 2)),
        "k_shared": tokens((1, 0), (0, 1)),
        "v_shared": tokens((4, 0), (0, 4)),
        "k_latent": tokens((1,), (2,)),
        "v_latent": tokens((4,), (0,)),
        "k_factor": row((1,), (1,)),
        "v_factor": row((0,), (1,)),
    }
    seen = reference.trace(**call, scale=np.log(3) / 4)
    logits = 4 / np.log(3) * np.stack([seen.shared_logits, seen.residual_logits])[:, 0, 0, 0]
    assert logits == pytest.approx(np.array([[1, 2], [3, 6]]))
    assert seen.weights.ravel() == pytest.approx([1 / 4, 3 / 4])
    assert seen.shared_out.ravel() == pytest.approx([1, 3])
    assert seen.latent_out.ravel() == pytest.approx([1])
    assert seen.out.ravel() == pytest.approx([1, 4])


@pytest.mark.parametrize("name", ["cache", "sweep", "traffic"])
def test_a_table_of_whole_numbers_is_what_its_script_prints(tables, name):
    assert tables["TABLES"][name]() == TABLES.with_name(f"lrkv_{name}.txt").read_text("utf-8").splitlines()


def test_the_table_of_angles_is_what_its_script_prints(tables):
    printed, stored = tables["angle"](), TABLES.with_name("lrkv_angle.txt").read_text("utf-8").splitlines()
    assert printed[:2] == stored[:2]
    for mine, theirs in zip(printed[2:], stored[2:], strict=True):
        numbers = [[float(x) for x in line.strip("| ").split(" | ")[1:]] for line in (mine, theirs)]
        assert numbers[0] == pytest.approx(numbers[1], abs=0.0015)  # three decimals; another BLAS may turn the last


def ways(lines):
    return {cells[0].strip("` "): cells[1:] for cells in (line.strip("|").split(" | ") for line in lines[2:])}


def close(mine, theirs):
    return mine == theirs or abs(float(mine) - float(theirs)) <= 0.015


def test_the_table_of_repairs_names_every_option_and_its_price(tables):
    stored = ways(TABLES.with_name("lrkv_rope.txt").read_text("utf-8").splitlines())
    assert list(stored) == list(rotary.OPTIONS) == list(tables["PRICE"])
    for name, (says, exactly, *errors, _) in stored.items():
        assert says == rotary.OPTIONS[name].says
        assert (exactly == "yes") == rotary.OPTIONS[name].exact == (errors == ["< 10⁻¹⁴"] * 2)
    for name in ("aligned", "latents_turned"):
        errors = map(tables["shown"], tables["measured"](name))
        assert all(map(close, errors, stored[name][2:4])), name
    d, r = tables["WIDTH"], tables["RANK"]
    sizes = {"heads": 1, "head_width": d, "rank": r}
    expanded = accounting.flop("lrkv", expand=True, **sizes) - accounting.flop("lrkv", **sizes) + 2 * r
    turned_back = 3 * d + 2 * d * r + 2 * r
    assert f"{expanded:,} operations in place of 2 r = {2 * r}" in tables["PRICE"]["expand"]
    assert f"{turned_back:,} in place of {2 * r}" in tables["PRICE"]["query_side"]
    assert round(expanded / (2 * r)) == 134  # as the page says


@pytest.mark.slow
def test_the_table_of_repairs_is_what_its_script_measures(tables):
    stored = ways(TABLES.with_name("lrkv_rope.txt").read_text("utf-8").splitlines())
    for name, cells in ways(tables["ways"]()).items():
        assert all(map(close, cells[2:4], stored[name][2:4])), name


def test_the_numbers_of_the_page_are_those_of_the_claims():
    rows = re.findall(r"^\| (\w+) \| (2\.\d{3}.*) \|$", page_part("What the tables say"), re.MULTILINE)
    shown = {method: tuple(numbers.split(" | ")) for method, numbers in rows}
    assert shown == {method: (*losses, claims.TABLE9[method]) for method, losses in claims.TABLE1.items()}
    below = re.findall(r"(\d\.\d\d) %", page_part("What the tables say").split("LRKV below MHA")[1].split("\n")[0])
    assert ", ".join(below) == claims.ce().measured
    heads = page_part("How different heads are")
    for row in diversity.TABLE_3:
        name = {"lrkv": "LRKV, $r=64$"}.get(row.scheme, row.scheme.upper())
        assert f"| {name} | {row.heads_6} % | {row.heads_18} % |" in heads
