"""The RoPE subspace panel's numbers: two planes by hand, the law, every repair, a cache, and heads."""

from dataclasses import fields, replace
from fractions import Fraction

import numpy as np
import pytest

from attnlab.lrkv import accounting, diversity, reference, rope, view
from attnlab.lrkv.params import BYTES, WAYS, LrkvParams
from attnlab.lrkv.rotary import OPTIONS

EPS = np.finfo(np.float64).eps
EXACT = [name for name in WAYS if OPTIONS[name].exact]
WRONG = [name for name in WAYS if not OPTIONS[name].exact]
SMALL = LrkvParams(heads=3, head_width=16, rank=4, tokens=7, first=2, second=5, angle=25, position=9)
SETTINGS = [
    SMALL,
    replace(SMALL, opposite=True, option="best_latent_map", seed=3),
    replace(SMALL, head_width=23, rank=9, option="tied", first=64, second=64),
    replace(SMALL, rank=0, angle=0, position=0, option="still"),
    replace(SMALL, heads=1, head_width=4, rank=128, tokens=2, angle=45, option="partial"),
]
every_setting = pytest.mark.parametrize("params", SETTINGS, ids=range(len(SETTINGS)))


def test_two_planes_by_hand():
    """At 45 degrees, when plane i is turned by half a turn more than plane j, the whole span has left."""
    params = replace(SMALL, angle=45, first=1, second=3, head_width=8)  # planes 0 and 2: 1 and 1/100 radians a position
    views = view.compute(params)
    half = np.sqrt(0.5)
    assert views["basis"] == pytest.approx(np.array([[half, 0, half, 0], [0, half, 0, half]]), abs=EPS)
    a, b = 9.0, 0.09
    first = half * np.array([np.cos(a), np.sin(a), np.cos(b), np.sin(b)])
    second = half * np.array([-np.sin(a), np.cos(a), -np.sin(b), np.cos(b)])
    assert views["turned"] == pytest.approx(np.array([first, second]), abs=8 * EPS)
    share = abs(np.sin((a - b) / 2))  # what leaves, at 45 degrees
    assert views["law"][:3, 36] == pytest.approx([share] * 3, rel=16 * EPS)
    assert views["overlap"] == pytest.approx(np.array([[abs(np.cos((a - b) / 2))] * 2, [share] * 2]), rel=16 * EPS)
    assert np.linalg.norm(views["turned"] - views["within"], axis=1) == pytest.approx([share] * 2, rel=16 * EPS)


@every_setting
def test_shapes_name_places_tokens_and_schemes(params):
    views, n = view.compute(params), params.tokens
    assert {name: array.shape for name, array in views.items()} == {
        **dict.fromkeys(("basis", "turned", "within"), (2, 4)),
        "overlap": (2, 2),
        "trail": (257, 4),
        "law": (4, 257),
        **dict.fromkeys(("factored", "wanted"), (n, n)),
        "here": (2,),
        "meter": (2, 7),
        "diversity": (2, 34),
    }
    assert all(array.dtype == np.float64 and np.isfinite(array).all() for array in views.values())


@every_setting
def test_the_closed_form_lies_on_the_curve_of_linear_algebra(params):
    escape, closed, steepest, _ = view.compute(params)["law"]
    assert escape == pytest.approx(closed, abs=64 * EPS)
    assert closed == pytest.approx(abs(np.sin(2 * np.radians(params.angle))) * steepest, abs=4 * EPS)


@every_setting
def test_the_picture_and_the_curve_are_of_the_same_position(params):
    views = view.compute(params)
    assert np.array_equal(views["trail"][4 * params.position], views["turned"][0])
    assert views["overlap"][1] == pytest.approx([views["law"][0, 4 * params.position]] * 2, abs=16 * EPS)
    assert views["overlap"][0] ** 2 + views["overlap"][1] ** 2 == pytest.approx([1, 1], abs=16 * EPS)
    assert np.linalg.norm(views["turned"], axis=1) == pytest.approx([1, 1], abs=8 * EPS)


@pytest.mark.parametrize("option", EXACT)
def test_an_exact_repair_is_out_by_rounding_at_any_lean(option):
    for angle in (0, 25, 45):
        views = view.compute(replace(SMALL, option=option, angle=angle))
        error, size = views["here"]
        assert error <= 64 * EPS * size
        assert views["law"][3].max() <= 64 * EPS


@pytest.mark.parametrize("option", WRONG)
def test_a_wrong_repair_is_out_and_says_by_how_much(option):
    views = view.compute(replace(SMALL, option=option))
    error, size = views["here"]
    below = np.tril_indices(7)
    assert error == pytest.approx(np.sqrt(np.mean((views["factored"] - views["wanted"])[below] ** 2)), rel=8 * EPS)
    assert size == pytest.approx(np.sqrt(np.mean(views["wanted"][below] ** 2)), rel=8 * EPS)
    assert error > 0.05 * size
    assert not views["factored"][np.triu_indices(7, 1)].any()


@pytest.mark.parametrize("option", ["latents_turned", "best_latent_map"])
def test_without_a_lean_the_latents_can_turn(option):
    error, size = view.compute(replace(SMALL, option=option, angle=0))["here"]
    assert error <= 64 * EPS * size


def test_the_best_map_of_latents_loses_what_leaves_the_span():
    views = view.compute(replace(SMALL, option="best_latent_map"))
    assert views["law"][3] == pytest.approx(views["law"][0], abs=16 * EPS)
    turned = view.compute(replace(SMALL, option="latents_turned"))["law"][3]
    assert np.all(turned >= views["law"][3] - 16 * EPS)  # and any other map more


@pytest.mark.parametrize("option", WAYS)
def test_what_verify_is_asked_about_are_the_logits_of_the_panel(option):
    for params in (replace(SMALL, option=option), replace(SMALL, option=option, rank=0)):
        arguments, terms = view.verification(params)
        run = reference.trace(**arguments)
        logits = (run.shared_logits + run.residual_logits)[0, 0]
        assert np.tril(logits) == pytest.approx(view.compute(params)["factored"], abs=256 * EPS)
        assert run.out.shape == (1, 7, 3, 16)
        most = np.abs(view.compute(params)["wanted"]).max()
        assert terms == 7 + np.ceil((2 * 16 + params.sizes[1]) * most**2)


def test_what_is_verified_has_every_head_and_the_rotation_is_done_as_it_is_read():
    arguments, _ = view.verification(replace(SMALL, option="aligned"))
    assert [arguments[name].shape for name in ("q", "k_shared", "k_latent", "k_factor")] == [
        (1, 7, 3, 16),
        (1, 7, 1, 16),
        (1, 7, 3, 4),
        (3, 16, 4),
    ]
    assert np.array_equal(arguments["latent_rope"].frequency, rope(16).frequency[[1, 2]])
    assert "latent_rope" not in view.verification(replace(SMALL, option="expand"))[0]
    assert "rope" not in view.verification(replace(SMALL, option="none"))[0]
    assert "q_residual" in view.verification(replace(SMALL, option="still"))[0]


def test_the_meter_counts_the_bytes_of_each_scheme():
    params = LrkvParams(heads=6, head_width=128, rank=46, groups=4, latent_width=384, layers=12, context=1000)
    token, whole = view.compute(replace(params, stored="bfloat16", tokens=2))["meter"]
    numbers = [2 * 6 * 128, 2 * 3 * 128, 2 * 128, 384, 2 * (128 + 6 * 46), 2 * (128 + 6 * 46) + 6, 2 * 6 * (128 + 46)]
    assert token.tolist() == [2 * 12 * each for each in numbers]  # four groups do not divide six heads: three do
    assert whole.tolist() == (1000 * token).tolist()
    assert token[4] / token[0] == pytest.approx(float(Fraction(1, 6) + Fraction(46, 128)), rel=2 * EPS)
    assert token[6] / token[0] == pytest.approx(1 + 46 / 128, rel=2 * EPS)  # more than MHA reads
    assert set(BYTES.values()) == {1, 2, 4}


def test_the_printed_percentages_stand_beside_what_the_papers_own_numbers_say():
    rows = {row: (table, printed, recomputed) for table, row, printed, recomputed in view.spec()["prints"]}
    assert len(rows) == len(accounting.CONFIGURATIONS) + len(accounting.TABLE_8) + len(accounting.TABLE_12)
    assert rows["128M at r = 46, Table 7"] == (7, 52.6, 52.6042)
    assert rows["1.2B at r = 51, Table 7 (print unknown)"] == (7, 48.1771, 48.1771)
    assert rows["MLA 384, Table 8"] == (8, 25.0, 25.0)
    assert rows["2.5B, Table 12"] == (12, 48.4, 55.5556)
    off = [row for row, (_, printed, recomputed) in rows.items() if abs(printed - recomputed) > 0.0501]
    assert off == [f"{label}, Table {n}" for n, label in (
        (7, "2.5B at r = 55"), (7, "6.3B at r = 54"), (12, "128M"), (12, "2.5B"), (12, "6.3B"),
    )]  # fmt: skip


@pytest.mark.parametrize("heads", [1, 2, 6, 18])
def test_heads_go_from_orthogonal_to_the_same(heads):
    before, after = view.compute(replace(SMALL, heads=heads, tokens=2, shared=0.5))["diversity"]
    assert (before[0], before[-2]) == pytest.approx((heads, 1), rel=64 * EPS)
    assert after[:-2] == pytest.approx(np.full(32, diversity.ceiling(heads)), rel=1e-13, abs=1e-13)
    assert after[-2] == 0  # nothing is left of heads that are the same
    assert (before[-1], after[-1]) == (before[16], after[16])
    assert np.all(np.diff(before[:-1]) <= 64 * EPS)


def test_heads_with_a_shared_part_are_operators_that_have_it():
    """A query or key of head h mixes one direction that all have with one of its own: cosines are then c^2."""
    c, heads, width = 0.4, 5, 7
    own = np.eye(width)
    weights = np.stack([np.sqrt(c) * own[:, :1] + np.sqrt(1 - c) * own[:, h + 1 : h + 2] for h in range(heads)])
    gram = diversity.gram(weights, weights)
    assert gram == pytest.approx((1 - c**2) * np.eye(heads) + c**2, abs=16 * EPS)
    before, after = view.compute(replace(SMALL, heads=heads, shared=c**2))["diversity"][:, -1]
    assert before == pytest.approx(diversity.effective_rank(gram), rel=1e-13)
    assert after == pytest.approx(diversity.effective_rank(diversity.centred(gram)), rel=1e-13)


# -- dials, still --


def test_the_dial_of_repairs_names_the_options_of_rotary():
    assert tuple(OPTIONS) == WAYS


def test_every_dial_carries_range_label_and_letter():
    letters = {entry.name: entry.metadata["paper"] for entry in fields(LrkvParams) if entry.metadata["paper"]}
    assert letters == {
        "angle": "φ",
        "first": "i",
        "second": "j",
        "position": "t",
        "heads": "H",
        "head_width": "d",
        "rank": "r",
        "tokens": "n",
    }


@pytest.mark.parametrize(
    ("dials", "sizes", "pair"),
    [
        ({"head_width": 32, "rank": 13}, (32, 12), (0, 7)),
        ({"head_width": 35, "rank": 128}, (32, 16), (0, 7)),
        ({"head_width": 24, "rank": 11, "option": "tied"}, (24, 8), (0, 7)),
        ({"head_width": 24, "rank": 1}, (24, 0), (0, 7)),
        ({"head_width": 4, "rank": 4, "first": 64, "second": 9}, (4, 2), (1, 0)),
        ({"first": 3, "second": 3}, (32, 12), (2, 3)),
    ],
)
def test_sizes_in_force_are_those_that_a_rotation_can_use(dials, sizes, pair):
    params = LrkvParams(**dials)
    assert (params.sizes, params.pair) == (sizes, pair)


@pytest.mark.parametrize(
    ("dials", "sentence"),
    [
        ({"angle": 91}, r"angle must lie in \[0, 90\], got 91"),
        ({"rank": -1}, r"rank must lie in \[0, 128\], got -1"),
        ({"option": "rotate"}, "option must be one of"),
        ({"stored": "int8"}, "stored must be one of"),
        ({"position": 2.5}, "position must be a whole number"),
    ],
)
def test_dials_out_of_range_are_refused_by_name(dials, sentence):
    with pytest.raises(ValueError, match=sentence):
        LrkvParams(**dials)


def test_a_heads_numbers_do_not_depend_on_how_many_there_are():
    few, many = (replace(SMALL, heads=heads).inputs() for heads in (1, 5))
    assert np.array_equal(few.q, many.q[:, :, :1])
    assert np.array_equal(few.k_latent, many.k_latent[:, :, :1])
    assert np.array_equal(few.v_factor, many.v_factor[:1])


def test_the_browser_draws_all_there_is():
    assert view.data(SMALL) is None
    assert SMALL.inputs().tokens == ("1", "2", "3", "4", "5", "6", "7")


@pytest.mark.parametrize("option", ["latents_turned", "aligned"])
def test_the_still_shows_the_law_the_error_and_the_numbers(option):
    params = replace(SMALL, option=option)
    shown, views = view.still(params), view.compute(params)
    law, error, ranks = shown["pictures"]
    assert np.array_equal(law.y["closed form"], views["law"][1])
    assert np.array_equal(np.nan_to_num(error.array), views["factored"] - views["wanted"])
    assert np.array_equal(ranks.y["after centring"], views["diversity"][1, :-1])
    numbers = dict(shown["numbers"])
    assert numbers["error of logits, relative"] == f"{views['here'][0] / views['here'][1]:.4g}"
    assert numbers["cache of LRKV"] == f"{views['meter'][0, 4]:,.0f} B a token"
    assert float(numbers["leaves span(B) at t = 9"].split(",")[0]) == float(f"{views['law'][0, 36]:.6g}")
