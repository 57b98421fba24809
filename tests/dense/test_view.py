"""What the softmax panel shows, against formulas worked out here and laws that any setting must obey."""

import math
from dataclasses import fields

import numpy as np
import pytest

from attnlab.dense import reference, view
from attnlab.dense.params import SoftmaxParams
from attnlab.inputs import INPUTS
from attnlab.panels import export
from attnlab.panels.state import defaults

EPS = np.finfo(np.float64).eps
SETTINGS = [
    SoftmaxParams(),
    SoftmaxParams(temperature=2.0**-5, tokens=11, head_width=3, seed=7, causal=True),
    SoftmaxParams(temperature=2.0**5, tokens=5, head_width=2),
    SoftmaxParams(temperature=0.3, input="layer 9, head 1", tokens=70, causal=True),
    SoftmaxParams(input="layer 21, head 0", tokens=33),
]
every_setting = pytest.mark.parametrize("params", SETTINGS, ids=str)


@every_setting
def test_shapes_and_finite_numbers(params):
    views, T = view.compute(params), params.tokens
    pairs, places = ("logits", "weights"), ("seen", "effective", "kept", "kept_even")
    assert {name: array.shape for name, array in views.items()} == {
        **dict.fromkeys(pairs, (T, T)),
        **dict.fromkeys(places, (T,)),
    }
    assert all(array.dtype == np.float64 and np.isfinite(array).all() for array in views.values())


@pytest.mark.parametrize("temperature", [0.125, 1.0, 8.0])
def test_weights_by_hand(temperature):
    params = SoftmaxParams(temperature=temperature, tokens=4, head_width=2)
    q, k, _, _ = params.inputs()
    logits = [float(q[0, 0, 0] @ key) / (math.sqrt(2) * temperature) for key in k[0, :, 0]]
    views = view.compute(params)
    assert views["logits"][0] == pytest.approx(logits, rel=8 * EPS)
    total = sum(map(math.exp, logits))
    assert views["weights"][0] == pytest.approx([math.exp(logit) / total for logit in logits], rel=16 * EPS)


@every_setting
def test_rows_sum_to_one_and_see_no_future(params):
    views = view.compute(params)
    assert views["weights"].sum(axis=1) == pytest.approx(1, rel=16 * EPS)
    assert np.all(np.triu(views["weights"], 1) == 0) == params.causal
    assert np.array_equal(
        views["seen"], 1 + np.arange(params.tokens) if params.causal else [params.tokens] * len(views["seen"])
    )


@every_setting
def test_the_weights_shown_are_those_that_verify_is_asked_about(params):
    arguments, _ = view.verification(params)
    out = view.compute(params)["weights"] @ arguments["v"][0, :, 0]
    assert reference.attention(**arguments)[0, :, 0] == pytest.approx(out, rel=1e-12, abs=1e-12)


@every_setting
def test_a_query_has_between_one_and_all_of_its_keys_in_effect(params):
    views = view.compute(params)
    assert np.all(views["effective"] >= 1 - 1e-12)
    assert np.all(views["effective"] <= views["seen"] * (1 + 1e-12))


def test_keys_in_effect_by_hand():
    """m equal weights among many zeros are m keys."""
    views = view.compute(SoftmaxParams(tokens=6, temperature=32.0, causal=True))
    assert views["effective"][0] == 1
    assert views["effective"] == pytest.approx(np.arange(1, 7), rel=1e-3)  # hot: every key alike
    weights = view.compute(SoftmaxParams(tokens=6))["weights"][2]
    entropy = -sum(w * math.log(w) for w in weights)
    assert view.compute(SoftmaxParams(tokens=6))["effective"][2] == pytest.approx(math.exp(entropy), rel=1e-14)


def test_cold_attention_is_on_one_key_and_hot_attention_on_all():
    effective = [
        view.compute(SoftmaxParams(temperature=t, input="layer 9, head 0", tokens=64))["effective"].mean()
        for t in 2.0 ** np.arange(-5, 6)
    ]
    assert np.all(np.diff(effective) > 0)
    assert effective[0] < 1.2
    assert effective[-1] > 63


@every_setting
def test_the_heaviest_keys_hold_more_than_as_many_others(params):
    views = view.compute(params)
    kept, even = views["kept"], views["kept_even"]
    assert kept[0] == pytest.approx(views["weights"].max(axis=1).mean(), rel=16 * EPS)
    assert np.all(np.diff(kept) >= 0)
    assert np.all(np.diff(np.diff(kept)) <= 16 * EPS)  # each further key holds no more than the one before
    assert np.all(kept >= even - 64 * EPS)
    assert (kept[-1], even[-1]) == pytest.approx((1, 1), rel=64 * EPS)


def test_the_heaviest_keys_if_all_weigh_alike_by_hand():
    even = view.compute(SoftmaxParams(tokens=4, causal=True))["kept_even"]
    assert even == pytest.approx([(1 + 1 / 2 + 1 / 3 + 1 / 4) / 4, (1 + 1 + 2 / 3 + 2 / 4) / 4, (3 + 3 / 4) / 4, 1])
    assert view.compute(SoftmaxParams(tokens=4))["kept_even"] == pytest.approx([1 / 4, 2 / 4, 3 / 4, 1])


def test_the_spec_describes_the_dials_once():
    spec = view.spec()
    assert [dial["name"] for dial in spec["dials"]] == [entry.name for entry in fields(SoftmaxParams)]
    by_name = {dial["name"]: dial for dial in spec["dials"]}
    assert by_name["input"]["choices"] == list(INPUTS)
    assert SoftmaxParams(**{name: dial["default"] for name, dial in by_name.items()}) == SoftmaxParams()
    low, high = (by_name["temperature"][end] for end in ("low", "high"))
    assert low * high == SoftmaxParams().temperature == 1  # the paper's, in the middle of a logarithmic dial


def test_a_dial_out_of_range_is_refused():
    with pytest.raises(ValueError, match=r"temperature must lie in \[0.03125, 32\], got 0"):
        SoftmaxParams(temperature=0)


def test_toy_tokens_need_no_data_and_a_real_head_sends_a_window():
    assert view.data(SoftmaxParams(tokens=9)) is None
    sent = view.data(SoftmaxParams(input="layer 2, head 2", tokens=65))
    assert (sent["input"], sent["width"], len(sent["tokens"])) == ("layer 2, head 2", 64, 128)


@every_setting
def test_the_still_holds_the_numbers_of_the_views(params):
    state = defaults(view.spec() | {"languages": ["en"]})
    state["dials"] = {entry.name: getattr(params, entry.name) for entry in fields(params)}
    text = export.still("dense", state, id="one")
    views = view.compute(params)
    for number in (views["effective"].mean(), views["kept"][0]):
        assert f"{number:.6g}" in text
    assert text.count("<img") == 3
    assert "arXiv:1706.03762v7, Eq. 1, p. 4" in text
