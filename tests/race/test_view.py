"""What the panel shows, without a browser: hand-worked numbers, and how the views hang together."""

import math
import tracemalloc
from dataclasses import dataclass, fields

import numpy as np
import pytest

from attnlab.inputs import INPUTS, Inputs
from attnlab.race import reference, theory, view
from attnlab.race.params import RaceParams

EPS = np.finfo(np.float64).eps

SETTINGS = [
    RaceParams(planes=2, tables=3, tokens=7, head_width=5),
    RaceParams(planes=3, tables=2, tokens=9, head_width=4, causal=True, sharpness=11.0),
    RaceParams(planes=1, tables=5, tokens=6, input="layer 9, head 1", normalize=True),
]


@dataclass(frozen=True)
class FourTokens(RaceParams):
    """Four unit vectors of the plane instead of drawn ones: keys and queries at 0, 90, 180 and 60 degrees."""

    def inputs(self):
        angle = np.deg2rad([0.0, 90.0, 180.0, 60.0])
        x = np.stack([np.cos(angle), np.sin(angle)], axis=-1)[None, :, None]
        v = np.array([[4.0, 0.0], [8.0, 0.0], [0.0, 16.0], [2.0, 2.0]])[None, :, None]
        return Inputs(x, x, v, ("a", "b", "c", "d"))


HAND = FourTokens(planes=2, tables=1, tokens=4, head_width=2, sharpness=1.5)


def test_angles_and_angular_weights_by_hand():
    views = view.compute(HAND)
    assert views["pair_angle"][0] == pytest.approx([0, math.pi / 2, math.pi, math.pi / 3], abs=4 * EPS)
    kernel = np.array([1, 1 / 2, 0, 2 / 3]) ** 2  # kappa to the power of 2 planes
    assert views["angular"][0] == pytest.approx(kernel / kernel.sum(), rel=8 * EPS)
    assert views["out_angular"][0] == pytest.approx(
        [(4 + 8 / 4 + 2 * 4 / 9) / (61 / 36), (2 * 4 / 9) / (61 / 36)], rel=8 * EPS
    )


def test_softmax_weights_by_hand():
    logits = np.array([1, 0, -1, 1 / 2]) / math.sqrt(2)  # q.k / sqrt(d), d = 2
    assert view.compute(HAND)["softmax"][0] == pytest.approx(np.exp(logits) / np.exp(logits).sum(), rel=8 * EPS)


def test_shares_by_hand():
    """The share of bucket r is the product of its soft bits (p. 22), bit p of r belonging to plane p."""
    views, planes = view.compute(HAND), HAND.draw_planes()[0]
    for t, x in enumerate(HAND.inputs().k[0, :, 0]):
        bit = [1 / (1 + math.exp(-2 * 1.5 * math.tanh(float(w @ x)))) for w in planes]
        expected = [(1 - bit[0]) * (1 - bit[1]), bit[0] * (1 - bit[1]), (1 - bit[0]) * bit[1], bit[0] * bit[1]]
        assert views["phi_k"][0, t] == pytest.approx(expected, rel=32 * EPS)


@pytest.mark.parametrize("params", SETTINGS)
def test_shapes_name_tables_tokens_and_buckets(params):
    views = view.compute(params)
    L, T, R, V = params.tables, params.tokens, 2**params.planes, params.width
    shapes = {name: array.shape for name, array in views.items()}
    assert shapes == {
        **dict.fromkeys(("phi_k", "phi_q"), (L, T, R)),
        "mass": (L, R),
        **dict.fromkeys(("logits", "softmax", "angular", "race", "pair_angle", "pair_score"), (T, T)),
        **dict.fromkeys(("band_angle", "band_mean", "band_sd", "band_target"), (65,)),
        **dict.fromkeys(("lemma10_every_draw", "lemma10_large_tables", "theorem2_speaks", "error_here"), ()),
        **dict.fromkeys(("error_tables", "error_output", "error_rate"), (7,)),
        **dict.fromkeys(("out", "out_angular"), (T, V)),
    }
    assert all(array.dtype == np.float64 and np.isfinite(array).all() for array in views.values())


@pytest.mark.parametrize("params", SETTINGS)
def test_every_token_is_shared_out_whole_and_the_mass_adds_the_keys(params):
    views = view.compute(params)
    for name in ("phi_k", "phi_q"):
        assert views[name].sum(axis=-1) == pytest.approx(1, rel=16 * EPS)
    assert views["mass"] == pytest.approx(views["phi_k"].sum(axis=1), rel=params.tokens * 16 * EPS)


@pytest.mark.parametrize("params", SETTINGS)
def test_weights_are_rows_that_sum_to_one_and_see_no_future(params):
    views = view.compute(params)
    for name in ("softmax", "angular", "race"):
        assert views[name].sum(axis=-1) == pytest.approx(1, rel=16 * EPS)
        future = np.triu(views[name], 1)
        assert np.all(future == 0) == params.causal


@pytest.mark.parametrize("params", SETTINGS)
def test_the_weights_shown_give_the_output_shown(params):
    views = view.compute(params)
    v = params.inputs().v[0, :, 0]
    size = np.abs(v).max()
    assert views["race"] @ v == pytest.approx(views["out"], abs=64 * EPS * size)
    assert views["angular"] @ v == pytest.approx(views["out_angular"], abs=64 * EPS * size)
    q, k, values, _ = params.inputs()
    arguments = (q, k, values, params.draw_planes(), params.sharpness)
    expected = reference.attention(*arguments, causal=params.causal, normalize=params.normalize)
    assert np.array_equal(views["out"], expected[0, :, 0])


@dataclass(frozen=True)
class FarApart(RaceParams):
    """Vectors so long that their soft bits are as hard as they get: keys along a query, against it and across."""

    def inputs(self):
        pick = np.random.default_rng(7)
        one, across = 5000 * pick.standard_normal((2, self.width))
        q, k = np.array([one, one, across, -one]), np.array([one, -one, across, -across])
        return Inputs(q[None, :, None], k[None, :, None], pick.standard_normal((1, 4, 1, self.width)), tuple("abcd"))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("sharpness", [2.0**5, 1.0, 2.0**-5])
@pytest.mark.parametrize("kind", [FarApart, RaceParams])
def test_scores_and_weights_are_those_of_the_reference_at_both_ends_of_the_dials(kind, sharpness, normalize, causal):
    """A product over planes in plain numbers against the reference's sum over buckets in logarithms."""
    params = kind(planes=8, tables=16, sharpness=sharpness, normalize=normalize, causal=causal, tokens=4, head_width=4)
    q, k, v, _ = params.inputs()
    want = reference.trace(q, k, v, params.draw_planes(), sharpness, causal=causal, normalize=normalize)
    views = view.compute(params)
    P, L, R = params.planes, params.tables, params.buckets
    # a logarithm of the reference is this large at most, and is rounded in no more steps than there are terms
    tolerance = P * (4 * sharpness + 2) * (L + R + P + 8) * EPS / 2
    assert tolerance < 1e-10
    assert np.log(want.scores.min()) > -P * 2 * sharpness - P
    for name, array in (("pair_score", want.scores), ("race", want.weights), ("mass", want.mass[:, :, None])):
        np.testing.assert_allclose(views[name], array.reshape(views[name].shape), rtol=tolerance, atol=0, err_msg=name)
    shown = {picture.title: picture.array for picture in view.still(params)["pictures"]}
    np.testing.assert_allclose(shown["RACE"], want.weights[0, 0], rtol=tolerance, atol=0)
    if kind is FarApart and sharpness == 2.0**5 and not normalize:
        assert 1e-221 < want.scores[0, 0, 0, 1] < 1e-219  # 2^8 e^-512, the least there is; doubles reach 1e-308


def test_the_error_curve_passes_through_the_error_of_the_dial():
    for number, tables in enumerate((1, 2, 4, 8, 16)):
        views = view.compute(RaceParams(tables=tables, tokens=11, causal=tables == 4))
        assert views["error_here"] == pytest.approx(views["error_output"][number], rel=1e-9)


@pytest.mark.parametrize("params", SETTINGS)
def test_the_rate_touches_the_measured_error_from_above(params):
    views = view.compute(params)
    room = views["error_rate"] / views["error_output"]
    assert room.min() == pytest.approx(1, rel=4 * EPS)
    rate = theory.theorem2_rate(params.planes, views["error_tables"], params.sharpness, params.tokens, 0.05)
    assert np.ptp(views["error_rate"] / rate) <= 8 * EPS * np.max(views["error_rate"] / rate)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("name", INPUTS)
def test_theorem_2_speaks_of_unit_vectors_without_a_mask(name, normalize, causal):
    params = RaceParams(input=name, normalize=normalize, causal=causal, tokens=6, planes=2, tables=1)
    used = [reference.unit(x) if normalize else x for x in params.inputs()[:2]]
    unit = all(np.allclose(np.linalg.norm(x, axis=-1), 1, rtol=0, atol=64 * EPS) for x in used)
    assert view.compute(params)["theorem2_speaks"] == (unit and not causal)


def test_the_band_is_exact_at_a_right_angle_whatever_the_sharpness():
    for planes, sharpness in ((1, 0.1), (3, 4.0), (8, 30.0)):
        views = view.compute(RaceParams(planes=planes, sharpness=sharpness, tokens=4))
        assert views["band_angle"][32] == math.pi / 2
        assert views["band_mean"][32] == pytest.approx(2.0**-planes, rel=1e-12)
        assert views["band_target"][32] == pytest.approx(2.0**-planes, rel=1e-12)


@pytest.mark.parametrize(
    ("planes", "sharpness", "regions"),
    [
        # the borders 0.764285 and 1.387907 for P = 2, 1.011595 and 2.057355 for P = 3; one plane never fails
        (2, 0.764, (1, 1)),
        (2, 0.765, (0, 1)),
        (2, 1.387, (0, 1)),
        (2, 1.388, (0, 0)),
        (3, 1.011, (1, 1)),
        (3, 1.012, (0, 1)),
        (3, 2.058, (0, 0)),
        (1, 0.03125, (0, 0)),
    ],
)
def test_the_regions_of_lemma_10(planes, sharpness, regions):
    views = view.compute(RaceParams(planes=planes, sharpness=sharpness, tokens=4))
    assert (views["lemma10_every_draw"], views["lemma10_large_tables"]) == regions


def test_toy_tokens_need_no_data_and_a_real_head_sends_a_window_with_room():
    assert view.data(RaceParams(tokens=9)) is None
    for tokens, window in ((64, 64), (5, 64), (65, 128), (256, 256)):
        params = RaceParams(input="layer 21, head 2", tokens=tokens)
        sent, inputs = view.data(params), params.inputs()
        assert (sent["input"], sent["width"], len(sent["tokens"])) == (params.input, 64, window)
        assert sent["tokens"][:tokens] == list(inputs.tokens)
        for name in "qkv":
            array = np.frombuffer(sent[name], "<f2").reshape(window, 64).astype(np.float64)
            assert np.array_equal(array[:tokens], getattr(inputs, name)[0, :, 0])


def test_the_spec_describes_the_dials_once():
    spec = view.spec()
    assert [dial["name"] for dial in spec["dials"]] == [entry.name for entry in fields(RaceParams)]
    by_name = {dial["name"]: dial for dial in spec["dials"]}
    assert by_name["input"]["choices"] == list(INPUTS)
    assert RaceParams(**{name: dial["default"] for name, dial in by_name.items()}) == RaceParams()
    assert {name: dial["paper"] for name, dial in by_name.items() if dial["paper"]} == {
        "planes": "P",
        "tables": "L",
        "sharpness": "β",
        "tokens": "N",
        "head_width": "d",
    }


def test_verification_asks_for_the_dials_on_the_screen():
    params = RaceParams(planes=2, tables=3, tokens=5, causal=True, normalize=True, sharpness=2.5)
    arguments, terms = view.verification(params)
    assert arguments["q"].shape == (1, 5, 1, 16)
    assert arguments["planes"].shape == (3, 2, 16)
    assert (arguments["sharpness"], arguments["causal"], arguments["normalize"]) == (2.5, True, True)
    assert terms == 5 + 3 * 4


def test_the_still_shows_the_weights_and_the_numbers_of_the_dials():
    for params in SETTINGS:
        shown, views = view.still(params), view.compute(params)
        titles = [picture.title for picture in shown["pictures"]]
        assert titles[:3] == ["Softmax", f"Angular, power {params.planes}", "RACE"]
        assert len(titles) == 3 + min(params.tables, 4)
        for picture, name in zip(shown["pictures"], ("softmax", "angular", "race"), strict=False):
            assert picture.array == pytest.approx(views[name], rel=16 * EPS), name
        for picture, shares in zip(shown["pictures"][3:], views["phi_k"], strict=False):
            assert picture.array == pytest.approx(shares.T, rel=16 * EPS)
        assert len({picture.top for picture in shown["pictures"][:3]}) == 1  # one scale for one quantity
        numbers = dict(shown["numbers"])
        assert float(numbers["output error against angular attention (Theorem 2, p. 8)"]) == pytest.approx(
            float(views["error_here"]), rel=1e-5
        )
        assert numbers["exact mean of Ŝ where S = 1"] == f"{views['band_mean'][0]:.6g}"


@pytest.mark.parametrize("name", INPUTS[:2])
def test_the_still_at_the_largest_dials_holds_pairs_and_shares_but_never_their_product(name, monkeypatch):
    """It is drawn on the kernel's own thread: [T, S, R] of one table alone are 134 MB, and took seconds."""
    params = RaceParams(planes=8, tables=16, tokens=256, head_width=64, input=name)
    for slow in ("trace", "attention"):
        monkeypatch.setattr(reference, slow, None)
    monkeypatch.setattr(view, "compute", None)
    view.still(params)  # what is read or made once is none of it
    tracemalloc.start()
    try:
        view.still(params)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    pairs = params.tokens**2 * 8
    assert peak < 4 * params.tables * pairs < params.buckets * pairs


@pytest.mark.parametrize(("sharpness", "verdict"), [(0.5, "every draw"), (1.8, "many tables"), (8.0, "outside")])
def test_the_still_says_what_lemma_10_does_here(sharpness, verdict):
    numbers = dict(view.still(RaceParams(planes=3, sharpness=sharpness, tokens=4))["numbers"])
    assert verdict in numbers["Lemma 10 (p. 24)"]


def test_a_query_opposite_to_all_that_it_sees_weighs_nothing():
    @dataclass(frozen=True)
    class Opposite(RaceParams):
        def inputs(self):
            x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 1.0]])[None, :, None]
            return Inputs(x, np.concatenate([-x[:, :1], x[:, 1:]], axis=1), x, tuple("abcd"))

    views = view.compute(Opposite(planes=2, tokens=4, head_width=2, causal=True))
    assert np.array_equal(views["angular"][0], np.zeros(4))
    assert np.isfinite(views["error_here"])
    assert all(np.isfinite(array).all() for array in views.values())
