"""What the residual panel shows, without a browser: numbers by hand, and laws that any dials must obey."""

from dataclasses import dataclass, fields, replace
from itertools import pairwise

import numpy as np
import pytest

from attnlab.dense import unit
from attnlab.inputs import INPUTS, Inputs
from attnlab.residual import attention, reference, view
from attnlab.residual.params import POINTS, RULES, ResidualParams

EPS = np.finfo(np.float64).eps
RISING = tuple(np.linspace(0.3, 1.0, POINTS).tolist())

SETTINGS = [
    *(ResidualParams(rule=rule, tokens=9, head_width=5, value_width=4, retention=RISING, write=0.6) for rule in RULES),
    ResidualParams(rule="rdn", tokens=7, fitting=False, target="log_cosh", similarity=0.9),
    ResidualParams(rule="rla", tokens=11, read_gates=False, target="none", normalize=False, tied=True, correction=0.0),
    ResidualParams(rule="rdn", tokens=6, input="layer 9, head 1", retention=[1, 0, 1, 0, 1, 0, 1, 0], clip=0.3),
]


@dataclass(frozen=True)
class TwoTokens(ResidualParams):
    """Key (1, 0) with value (2, 1), then key (0.6, 0.8) with value (0, 1), and queries that ask for the first."""

    def inputs(self):
        q, k = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[1.0, 0.0], [0.6, 0.8]])
        v = np.array([[2.0, 1.0], [0.0, 1.0]])
        return Inputs(*(x[None, :, None] for x in (q, k, v)), ("1", "2"))


TWO = {"tokens": 2, "head_width": 2, "value_width": 2, "clip": 1.5}


def ramp(first, last):
    return tuple(np.linspace(first, last, POINTS).tolist())


def test_two_tokens_of_rla_by_hand():
    """pp. 4-5: errors of the old S through the clip; the new R; the old S and the new R in the output."""
    gates = {"retention": ramp(1.0, 0.5), "write": ramp(0.5, 1.0), "correction": ramp(0.4, 0.8)}
    views = view.compute(TwoTokens(rule="rla", **TWO, **gates))
    assert views["alpha"] == pytest.approx([1.0, 0.5])
    assert views["error"] == pytest.approx(np.array([[2.0, 1.0], [-0.6, 0.7]]))  # (0, 1) - 0.6 (1, 0.5)
    assert views["kept"] == pytest.approx(np.array([[1.5, 1.0], [-0.6, 0.7]]))
    S = np.array([[1.0, 0.5], [0.0, 0.0]]), np.array([[0.5, 0.25 + 0.6], [0.0, 0.8]])
    first = np.array([[0.6, 0.4], [0.0, 0.0]])
    R = first, 0.5 * first + 0.8 * np.outer([0.6, 0.8], [-0.6, 0.7])
    assert views["memories"] == pytest.approx(np.stack([S, R]))
    out = np.array([0.4 * R[0][0], 0.5 * S[0][0] + 0.8 * R[1][0]])
    assert views["out"] == pytest.approx(out)
    # gamma_t gamma_i prod alpha k_i.q_t of errors; alpha_t beta_i k_i.q_t of values
    assert views["error_weights"] == pytest.approx(np.array([[0.16, 0.0], [0.8 * 0.5 * 0.4, 0.64 * 0.6]]))
    assert views["value_weights"] == pytest.approx(np.array([[0.0, 0.0], [0.5 * 0.5, 0.0]]))
    size = np.sqrt((5 + 1) / 2)
    assert views["recall_base"][1, 0] * size == pytest.approx(np.linalg.norm(S[1][0] - [2, 1]))
    assert views["recall_both"][1, 0] * size == pytest.approx(np.linalg.norm(out[1] - [2, 1]))


def test_two_tokens_of_rdn_by_hand():
    """p. 5: both writes subtract what the decayed memory recalls."""
    gates = {"retention": ramp(1.0, 0.5), "write": ramp(0.5, 1.0), "correction": ramp(0.4, 0.8)}
    views = view.compute(TwoTokens(rule="rdn", **TWO, **gates))
    k = np.array([0.6, 0.8])
    S = 0.5 * np.array([[1.0, 0.5], [0.0, 0.0]])
    S = S + 1.0 * np.outer(k, [0.0, 1.0] - k @ S)
    R = 0.5 * np.array([[0.6, 0.4], [0.0, 0.0]])
    R = R + 0.8 * np.outer(k, [-0.6, 0.7] - k @ R)
    assert views["memories"][:, 1] == pytest.approx(np.stack([S, R]))
    assert views["error_weights"][1] == pytest.approx([0.8 * 0.5 * 0.4 * (1 - 0.8 * 0.6 * 0.6), 0.64 * 0.6])


@pytest.mark.parametrize("params", SETTINGS)
def test_shapes_name_tokens_and_widths(params):
    views = view.compute(params)
    T, (K, V) = params.tokens, params.widths
    assert {name: array.shape for name, array in views.items()} == {
        "memories": (2, T, K, V),
        **dict.fromkeys(("alpha", "beta", "gamma"), (T,)),
        **dict.fromkeys(("error", "kept", "out"), (T, V)),
        **dict.fromkeys(("key_query", "value_weights", "error_weights", "recall_base", "recall_both"), (T, T)),
        "recall_here": (2,),
        **dict.fromkeys(("similar_base", "similar_both"), (9,)),
        **dict.fromkeys(("budget_wide", "budget_narrow"), (7,)),
    }
    assert all(array.dtype == np.float64 and np.isfinite(array).all() for array in views.values())


@pytest.mark.parametrize("params", SETTINGS)
def test_the_unrolled_sums_give_the_output_of_attention(params):
    """Every output is a sum of past values and past errors; nothing of either memory is left over."""
    views = view.compute(params)
    arguments, _ = view.verification(params)
    assert np.array_equal(views["out"], attention(**arguments)[0, :, 0])
    v = params.inputs().v[0, :, 0]
    size = np.abs(views["value_weights"]) @ np.abs(v) + np.abs(views["error_weights"]) @ np.abs(views["kept"])
    sums = views["value_weights"] @ v + views["error_weights"] @ views["kept"]
    K = params.widths[0]
    assert np.all(np.abs(sums - views["out"]) <= 8 * (params.tokens + K) * EPS * np.maximum(size, size.max(axis=0)))


@pytest.mark.parametrize("params", SETTINGS)
def test_nothing_comes_from_the_future_and_a_rule_without_r_remembers_no_error(params):
    views = view.compute(params)
    for name in ("value_weights", "error_weights", "recall_base", "recall_both", "key_query"):
        assert np.all(np.triu(views[name], 1) == 0)
    if not RULES[params.rule].residual:
        for name in ("error", "kept", "error_weights", "gamma"):
            assert np.all(views[name] == 0)
        assert np.all(views["memories"][1] == 0)
        assert np.array_equal(views["recall_base"], views["recall_both"])


@pytest.mark.parametrize("params", SETTINGS)
def test_the_recall_shown_is_what_attention_answers_to_that_key(params):
    """Each past key asked as a query, of a run of its own; S alone is the rule without the second memory."""
    T = params.tokens
    given, views = params.inputs(), view.compute(params)
    v = given.v[0, :, 0]
    size = np.sqrt(np.mean(np.sum(v**2, axis=1)))
    arguments, _ = view.verification(params)
    alone = {"rla": "sgla", "rdn": "gdn"}.get(params.rule, params.rule)
    gates = {name: gate for name, gate in params.gates().items() if name in RULES[alone].gates}
    base = {name: arguments[name] for name in ("k", "v", "normalize")} | gates | {"rule": alone}
    for key in (0, T // 2, T - 1):
        q = np.repeat(given.k[:, key : key + 1], T, axis=1)
        both = np.linalg.norm(attention(**arguments | {"q": q})[0, :, 0] - v[key], axis=1) / size
        only = np.linalg.norm(attention(**base | {"q": q})[0, :, 0] - v[key], axis=1) / size
        tolerance = 64 * T * EPS * max(1.0, both.max(), only.max())
        assert views["recall_both"][key:, key] == pytest.approx(both[key:], abs=tolerance)
        assert views["recall_base"][key:, key] == pytest.approx(only[key:], abs=tolerance)


@pytest.mark.parametrize("params", SETTINGS)
def test_means_are_root_mean_squares_of_the_last_row(params):
    views = view.compute(params)
    for side, name in enumerate(("recall_base", "recall_both")):
        assert views["recall_here"][side] == pytest.approx(np.sqrt(np.mean(views[name][-1] ** 2)), rel=16 * EPS)


def test_the_curve_of_similarities_passes_through_the_dial():
    for similarity in (0.0, 0.25, 1.0):
        views = view.compute(ResidualParams(similarity=similarity, rule="rdn", tokens=8))
        place = int(8 * similarity)
        assert view.SIMILARITIES[place] == similarity
        assert [views["similar_base"][place], views["similar_both"][place]] == pytest.approx(
            views["recall_here"].tolist()
        )


# -- the stream --


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("name", INPUTS[:2])
def test_keys_grow_alike_with_the_dial(name, normalize):
    cosines = []
    for similarity in (0.0, 0.3, 0.6, 1.0):
        k = unit(ResidualParams(input=name, similarity=similarity, normalize=normalize, tokens=40).inputs().k[0, :, 0])
        cosines.append(np.mean(k @ k.T))
    assert cosines == sorted(cosines)
    assert cosines[-1] == pytest.approx(1, abs=64 * EPS)


def test_each_toy_query_is_a_key_of_a_token_so_far():
    params = ResidualParams(tokens=64, seed=5)
    q, k, *_ = params.inputs()
    asked = params.asked()
    assert np.all((asked >= 0) & (asked <= np.arange(64)))
    assert np.array_equal(q[0, :, 0], k[0, asked, 0])
    assert len(set(asked.tolist())) > 20


def test_more_tokens_and_wider_keys_leave_the_drawn_numbers_as_they_are():
    few, many = (
        ResidualParams(tokens=5, head_width=4, value_width=3),
        ResidualParams(tokens=9, head_width=4, value_width=6),
    )
    assert np.array_equal(few.inputs().k, many.inputs().k[:, :5])
    assert np.array_equal(few.inputs().v, many.inputs().v[:, :5, :, :3])
    one = replace(few, similarity=0.0, rule="gdn")
    narrow = replace(one, same_budget=False)
    assert (one.widths, narrow.widths, few.widths) == ((8, 3), (4, 3), (4, 3))
    assert np.allclose(one.inputs().k[..., :4] * np.sqrt(8), narrow.inputs().k * np.sqrt(4), rtol=8 * EPS, atol=0)


def test_a_real_head_enters_with_length_1_and_its_wide_keys_are_its_two_parts():
    params = ResidualParams(input="layer 21, head 2", similarity=0.0, tokens=8)
    q, k, v, words = params.inputs()
    assert np.linalg.norm(q, axis=-1) == pytest.approx(1, rel=8 * EPS)
    assert (v.shape, len(words), params.widths) == ((1, 8, 1, 64), 8, (64, 64))
    wide = replace(params, rule="linear").inputs()
    for twice, once in ((wide.q, q), (wide.k, k)):
        assert np.array_equal(twice[..., :64] - twice[..., 64:], once)
        assert np.all(twice >= 0)
        assert np.all(twice[..., :64] * twice[..., 64:] == 0)


# -- gates and switches --


def test_a_curve_runs_straight_from_point_to_point():
    points = [0.0, 1.0, 0.5, 0.5, 0.2, 0.4, 0.6, 1.0]
    gate = ResidualParams(retention=points, tokens=15).gates()["retention"][0, :, 0]
    assert gate[::2] == pytest.approx(points)
    assert gate[1::2] == pytest.approx([(a + b) / 2 for a, b in pairwise(points)])
    assert np.interp(np.linspace(0, 7, 64), np.arange(8), points) == pytest.approx(
        ResidualParams(retention=points, tokens=64).gates()["retention"][0, :, 0], abs=8 * EPS
    )


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_handed_the_gates_that_it_has(rule):
    given = ResidualParams(rule=rule, retention=RISING).gates()
    assert tuple(given) == RULES[rule].gates
    if rule == "retnet":
        assert given["retention"] == pytest.approx([np.mean(RISING)])


def test_tied_means_that_the_correction_is_the_write():
    gates = ResidualParams(write=RISING, correction=0.1, tied=True).gates()
    assert np.array_equal(gates["correction"], gates["write"])
    assert np.all(ResidualParams(write=RISING, correction=0.1).gates()["correction"] == 0.1)


@pytest.mark.parametrize(
    ("dials", "switches"),
    [
        ({"clip": 0.5}, {"clip": 0.5, "target": "clip"}),
        ({"clip": 0.5, "target": "none"}, {"clip": np.inf, "target": "clip"}),
        ({"target": "log_cosh", "fitting": False}, {"target": "log_cosh", "fitting": False}),
        ({"read_gates": False}, {"read_gates": False, "fitting": True}),
    ],
)
def test_the_switches_are_those_of_attention(dials, switches):
    arguments, _ = view.verification(ResidualParams(**dials))
    assert arguments.items() >= switches.items()
    attention(**arguments)


def test_without_a_clip_the_errors_are_kept_whole_and_with_a_clip_of_0_nothing_is():
    whole = view.compute(ResidualParams(target="none", clip=0.0))
    assert np.array_equal(whole["error"], whole["kept"])
    nothing = view.compute(ResidualParams(clip=0.0))
    assert np.all(nothing["kept"] == 0)
    assert np.all(nothing["memories"][1] == 0)


# -- at the same budget --


@pytest.mark.parametrize("params", [SETTINGS[0], SETTINGS[-1]])
def test_every_rule_has_the_same_numbers_of_state_and_its_error_is_that_of_attention(params):
    views = view.compute(params)
    for n, rule in enumerate(RULES):
        arguments, _ = view.verification(replace(params, rule=rule))
        k, v = arguments["k"], arguments["v"][0, :, 0]
        _, state = attention(**arguments, return_state=True)
        assert sum(memory.size for memory in state if memory is not None) == 2 * np.prod(params.widths)
        # the last output for each key as the last query
        recalled = [
            attention(**arguments | {"q": np.concatenate([k[:, :-1], k[:, i : i + 1]], axis=1)})[0, -1, 0]
            for i in range(params.tokens)
        ]
        error = np.sqrt(np.mean(np.sum((recalled - v) ** 2, axis=1)) / np.mean(np.sum(v**2, axis=1)))
        assert views["budget_wide"][n] == pytest.approx(error, rel=1e-12), rule


@pytest.mark.parametrize("same_budget", [True, False])
@pytest.mark.parametrize("rule", RULES)
def test_the_rule_on_the_screen_stands_among_its_rivals(rule, same_budget):
    views = view.compute(ResidualParams(rule=rule, same_budget=same_budget, tokens=8))
    among = views["budget_wide" if same_budget else "budget_narrow"][list(RULES).index(rule)]
    assert among == pytest.approx(views["recall_here"][1], rel=16 * EPS)
    assert (views["budget_wide"] == views["budget_narrow"]).tolist() == [about.residual for about in RULES.values()]


# -- what the kit asks for --


def test_the_spec_describes_the_dials_once():
    spec = view.spec()
    assert [dial["name"] for dial in spec["dials"]] == [entry.name for entry in fields(ResidualParams)]
    by_name = {dial["name"]: dial for dial in spec["dials"]}
    assert ResidualParams(**{name: dial["default"] for name, dial in by_name.items()}) == ResidualParams()
    assert by_name["rule"]["choices"] == list(RULES)
    assert (by_name["write"]["kind"], by_name["write"]["points"], len(by_name["write"]["default"])) == ("curve", 8, 8)
    letters = {name: dial["paper"] for name, dial in by_name.items() if dial["paper"]}
    greek = {"retention": "α", "write": "β", "correction": "γ", "clip": "c"}
    assert letters == greek | {"tokens": "T", "head_width": "K", "value_width": "V"}


@pytest.mark.parametrize(
    ("dials", "sentence"),
    [
        ({"write": 1.5}, r"write\[0\] must lie in \[0, 1\], got 1.5"),
        ({"write": [0.5, 0.5]}, r"write must be a list of 8 numbers, got \[0.5, 0.5\]"),
        ({"retention": [1, 1, 1, -1, 1, 1, 1, 1]}, r"retention\[3\] must lie in \[0, 1\], got -1"),
        ({"correction": "0.5"}, r"correction\[0\] must be a number in \[0, 1\], got '0.5'"),
        ({"rule": "mamba"}, "rule must be one of"),
        ({"clip": np.inf}, "clip must"),
    ],
)
def test_dials_out_of_range_are_refused_by_name(dials, sentence):
    with pytest.raises(ValueError, match=sentence):
        ResidualParams(**dials)


def test_one_number_for_a_curve_is_its_height_everywhere():
    assert ResidualParams(write=0.25).write == (0.25,) * POINTS
    assert ResidualParams(write=[0.25] * POINTS) == ResidualParams(write=0.25)


def test_toy_tokens_need_no_data_and_a_real_head_sends_its_window():
    assert view.data(ResidualParams(tokens=9)) is None
    sent = view.data(ResidualParams(input="layer 2, head 0", tokens=9))
    assert (sent["input"], sent["width"], len(sent["tokens"])) == ("layer 2, head 0", 64, 64)


@pytest.mark.parametrize("rule", RULES)
def test_the_still_shows_the_memories_and_the_numbers_of_the_dials(rule):
    params = ResidualParams(rule=rule, tokens=8)
    shown, views = view.still(params), view.compute(params)
    residual = RULES[rule].residual
    pictures = {picture.title: picture for picture in shown["pictures"]}
    assert np.array_equal(pictures["S after the last token"].array, views["memories"][0, -1])
    assert ("R after the last token" in pictures) == residual
    which = "error" if residual else "value"
    assert np.array_equal(pictures[f"Weights of past {which}s"].array, views[f"{which}_weights"])
    numbers = dict(shown["numbers"])
    assert numbers["recall error of S alone"] == f"{views['recall_here'][0]:.6g}"
    assert ("recall error of S and R" in numbers) == residual
    for other, error in zip(RULES, views["budget_wide"], strict=True):
        assert numbers[f"recall error of {other} at this budget"] == f"{error:.6g}"


def test_the_second_memory_helps_at_the_dials_a_panel_opens_with_and_not_where_it_corrects_too_much():
    """What the panel shows first, and what a reader finds who turns one dial."""
    base, both = view.compute(ResidualParams())["recall_here"]
    assert both < 0.9 * base
    base, both = view.compute(ResidualParams(correction=1.0))["recall_here"]
    assert both > base


def test_the_trace_of_the_reference_is_what_is_shown():
    params = SETTINGS[1]
    arguments, _ = view.verification(params)
    run, views = reference.trace(**arguments), view.compute(params)
    assert np.array_equal(views["memories"], np.stack([run.S[0, :, 0], run.R[0, :, 0]]))
    assert np.array_equal(views["kept"], run.residual[0, :, 0])
