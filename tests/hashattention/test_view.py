"""What the Hamming recall panel shows, without a browser: numbers by hand, and laws that any dials must obey."""

from dataclasses import dataclass, fields, replace

import numpy as np
import pytest

from attnlab import data
from attnlab.dense import unit
from attnlab.hashattention import Maps, attention, encode, first_bits, reference, selectors, view
from attnlab.hashattention.params import CENTRED, LEARNED, RANDOM, SHOWN, HashParams
from attnlab.inputs import INPUTS, Inputs

EPS = np.finfo(np.float64).eps
LATE = "layer 21, head 1"
HASH, EXACT, ENDS = (view.CURVES.index(name) for name in ("hash", "exact", "sinks_window"))

SETTINGS = [
    HashParams(),
    HashParams(tokens=19, bits=7, head_width=3, sinks=1, window=2, budget=3, top=2, selector="past_mean", codes=RANDOM),
    HashParams(tokens=12),  # all is read in any case
    HashParams(tokens=40, bits=64, sinks=0, window=0, budget=0, top=64, selector="quest", seed=7),
    HashParams(tokens=33, input=LATE, codes=LEARNED, selector="key_norm"),
]
every_setting = pytest.mark.parametrize("params", SETTINGS, ids=str)


@dataclass(frozen=True)
class ByHand(HashParams):
    """Bits are the signs of four channels: every query has code 1011, and the keys that the last one chooses among have
    0110, 1001, 1011, 1001, 0110; the key of the second 1001 is three times as long.
    """

    def inputs(self):
        bits = ["0000", "0110", "1001", "1011", "1001", "0110", "0000", "0000"]
        k = np.array([[1.0 if bit == "1" else -1.0 for bit in code] for code in bits])
        k[2] *= 3
        q = np.tile([1.0, -1.0, 1.0, 1.0], (8, 1))
        v = np.arange(32.0).reshape(8, 4)
        return Inputs(*(x[None, :, None] for x in (q, k, v)), tuple("12345678"))

    def maps(self):
        channels = Maps((np.eye(4)[None],), (np.zeros((1, 4)),))
        return channels, channels


HAND = {"tokens": 8, "head_width": 4, "bits": 4, "sinks": 1, "window": 2, "top": 1, "budget": 1}


def test_places_and_recall_by_hand():
    """p. 4: distances 0, 1 and 3 of 1011, 1001 and 0110 to 1011. The long key at distance 1 has the largest logit."""
    views = view.compute(ByHand(**HAND))
    assert views["distance"][7].tolist() == [3, 3, 1, 0, 1, 3, 3, 3]
    assert views["code_place"][7].tolist() == [0, 4, 2, 1, 3, 5, 0, 0]  # equals in the order of tokens
    assert views["logits"][7].tolist() == [-1, -1, 3, 2, 1, -1, -1, -1]
    assert views["true_place"][7].tolist() == [0, 4, 1, 2, 3, 5, 0, 0]
    assert views["code_place"][3].tolist() == [0, 1, 0, 0, -1, -1, -1, -1]
    assert views["query_bits"][0].tolist() == views["key_bits"][3].tolist() == [1, 0, 1, 1]
    # of the queries 4 to 7 only the first, which cannot choose key 3, reads the true top with one key; all do with two
    assert views["recall"][HASH, :2].tolist() == [0.25, 1.0]
    assert views["recall"][EXACT, 0] == 1
    assert not views["recall"][ENDS].any()


def test_mass_and_error_by_hand():
    """Query 7 reads keys 0, 3, 6, 7 of eight with logits 2 and -1."""
    views = view.compute(ByHand(**HAND))
    logits = np.array([-1, -1, 3, 2, 1, -1, -1, -1.0])
    dense = np.exp(logits) / np.exp(logits).sum()
    read = [0, 3, 6, 7]
    expected = np.zeros(8)
    expected[read] = dense[read] / dense[read].sum()
    assert views["sparse"][7] == pytest.approx(expected, rel=8 * EPS)
    params = ByHand(**HAND | {"tokens": 8})
    v = params.inputs().v[0, :, 0]
    mass, error = [], []
    for t, chosen in ((4, [0, 2, 3, 4]), (5, [0, 3, 4, 5]), (6, [0, 3, 5, 6]), (7, read)):
        w = np.exp(logits[: t + 1]) / np.exp(logits[: t + 1]).sum()
        part = np.isin(np.arange(t + 1), chosen)
        out, sparse = w @ v[: t + 1], (w * part / w[part].sum()) @ v[: t + 1]
        mass.append(w[part].sum())
        error.append(np.linalg.norm(sparse - out) / np.linalg.norm(out))
    assert views["here"][1:, HASH] == pytest.approx([np.mean(mass), np.mean(error)], rel=64 * EPS)


@every_setting
def test_shapes_name_tokens_and_bits(params):
    views, T = view.compute(params), params.tokens
    b = params.maps()[0].bits
    pairs = ("distance", "logits", "weights", "true_place", "code_place", "place", "sparse")
    assert {name: array.shape for name, array in views.items()} == {
        "query_bits": (T, b),
        "key_bits": (T, b),
        **dict.fromkeys(pairs, (T, T)),
        **dict.fromkeys(("recall", "mass", "error"), (7, 8)),
        "here": (3, 7),
    }
    assert all(array.dtype == np.float64 and np.isfinite(array).all() for array in views.values())


@every_setting
def test_the_attention_of_the_codes_is_that_which_verify_is_asked_about(params):
    views = view.compute(replace(params, selector="hash"))
    arguments, _ = view.verification(params)
    run = reference.trace(**arguments)
    assert np.array_equal(views["distance"], run.distance[0, 0])
    assert views["sparse"] == pytest.approx(run.weights[0, 0], rel=64 * EPS, abs=EPS)
    out = views["sparse"] @ params.inputs().v[0, :, 0]
    assert out == pytest.approx(attention(**arguments)[0, :, 0], rel=1e-10, abs=1e-12)


@every_setting
def test_places_count_the_keys_that_a_query_may_choose_among(params):
    views = view.compute(params)
    for name in ("true_place", "code_place", "place"):
        for t, row in enumerate(views[name]):
            n = t + 1
            free = np.arange(params.sinks, max(n - params.window, params.sinks))
            assert sorted(row[free]) == list(range(1, len(free) + 1))
            assert not row[np.setdiff1d(np.arange(n), free)].any()
            assert np.all(row[n:] == -1)
    read = (views["place"] >= 0) & (views["place"] <= params.budget)
    assert np.array_equal(read, views["sparse"] > 0)


@every_setting
def test_the_curves_are_the_numbers_of_the_selectors(params):
    views, options = view.compute(params), selectors.Options(bits=params.maps()[1].bits, seed=params.seed)
    head = selectors.head_of(*params.inputs()[:3], query_codes=(c := view.codes(params))[0], key_codes=c[1])
    sizes = {"sinks": params.sinks, "window": params.window, "top": params.top, "options": options}
    for n, name in enumerate(view.CURVES):
        for at, budget in [(0, 1), (4, 16), (None, params.budget)]:
            want = selectors.measure(name, head, budget=budget, **sizes)
            want = [each[params.tokens // 2 :].mean() for each in (want.recall, want.mass, want.output_error)]
            got = (
                [views[each][n, at] for each in ("recall", "mass", "error")] if at is not None else views["here"][:, n]
            )
            assert list(got) == pytest.approx(want, rel=1e-12, abs=64 * EPS)


@every_setting
def test_the_exact_order_is_never_worse_and_a_larger_budget_neither(params):
    views = view.compute(params)
    for name in ("recall", "mass"):
        assert np.all(np.diff(views[name], axis=1) >= -16 * EPS)
        assert np.all(views[name] <= views[name][EXACT] + 16 * EPS)
    if params.tokens <= view.BUDGETS[-1]:
        assert np.all(views["recall"][:ENDS, -1] == 1)
        assert not views["error"][:ENDS, -1].any()


# -- codes --


@pytest.mark.parametrize("bits", [1, 31, 32, 64])
def test_learned_codes_are_those_of_the_shipped_maps_as_many_bits_as_there_are(bits):
    params = HashParams(input=LATE, tokens=20, codes=LEARNED, bits=bits)
    q, k, *_ = params.inputs()
    for maps, x, words in zip(data.hash_maps(21), (q, k), view.codes(params), strict=True):
        every = encode(np.repeat(x, 3, axis=2), maps)[:, :, 1:2]
        assert np.array_equal(reference.unpack(words, bits), reference.unpack(every, bits))
        assert params.maps()[0].bits == min(bits, maps.bits)


def test_random_codes_share_their_projections_and_the_mean_key_is_taken_from_the_keys_alone():
    plain, centred = (HashParams(codes=kind, tokens=24) for kind in (RANDOM, CENTRED))
    (queries, keys), (same, moved) = view.codes(plain), view.codes(centred)
    q, k, *_ = plain.inputs()
    maps, _ = plain.maps()
    assert np.array_equal(encode(q, maps), queries)
    assert np.array_equal(encode(k, maps), keys)
    assert np.array_equal(queries, same)
    assert np.array_equal(encode(k - k.mean(axis=1, keepdims=True), maps), moved)
    few, _ = replace(plain, bits=5).maps()
    assert np.array_equal(few.weights[0], first_bits(maps, 5).weights[0])


@pytest.mark.parametrize("name", INPUTS)
def test_without_learned_maps_learned_codes_are_the_centred_ones(name, monkeypatch):
    monkeypatch.setattr(data, "shipped_maps", lambda: data.LearnedMaps((), {}, {}))
    params = HashParams(input=name, tokens=8, codes=LEARNED)
    for words, other in zip(view.codes(params), view.codes(replace(params, codes=CENTRED)), strict=True):
        assert np.array_equal(words, other)


def test_a_damaged_file_of_maps_is_no_layer_without_maps(monkeypatch):
    def damaged():
        raise ValueError("damaged")

    monkeypatch.setattr(data, "shipped_maps", damaged)
    with pytest.raises(ValueError, match="damaged"):
        HashParams(input="layer 21, head 0", tokens=8, codes=LEARNED).maps()


# -- the toy --


def test_toy_tokens_are_the_clusters_in_a_drawn_order_with_long_queries():
    params = HashParams(tokens=40)
    q, k, v, words = params.inputs()
    assert sorted(words) == sorted(f"{c}{n}" for c in "abcd" for n in range(1, 11))
    for letter in "abcd":  # numbered as they come
        assert [word for word in words if word[0] == letter] == [f"{letter}{n}" for n in range(1, 11)]
    assert len({word[0] for word in words[-8:]}) > 2  # no window holds one cluster alone
    lengths = np.linalg.norm(k[0, :, 0], axis=1)
    assert np.linalg.norm(q, axis=-1) == pytest.approx(8 * np.sqrt(16), rel=8 * EPS)
    assert 0.1 < np.log(lengths).std() < 0.5
    same = np.equal.outer(*2 * ([word[0] for word in words],)) & ~np.eye(40, dtype=bool)
    cosines = unit(q[0, :, 0]) @ unit(k[0, :, 0]).T
    assert cosines[same].mean() > 0.5 > cosines[~same].mean() + 0.3
    assert v.shape == k.shape


def test_a_real_head_is_taken_as_it_is():
    params = HashParams(input=LATE, tokens=9)
    assert [x.shape for x in params.inputs()[:3]] == [(1, 9, 1, 64)] * 3
    assert params.inputs().tokens == data.real_heads().tokens[344:353]
    assert (params.width, params.row) == (64, 8)


# -- dials, data, still --


def test_every_dial_carries_range_label_and_letter():
    letters = {entry.name: entry.metadata["paper"] for entry in fields(HashParams) if entry.metadata["paper"]}
    assert letters == {"bits": "b", "budget": "m", "top": "k", "tokens": "n", "head_width": "d"}


@pytest.mark.parametrize(
    ("dials", "sentence"),
    [
        ({"bits": 65}, r"bits must lie in \[1, 64\], got 65"),
        ({"budget": -1}, r"budget must lie in \[0, 128\], got -1"),
        ({"selector": "h2o"}, "selector must be one of"),
        ({"codes": "best"}, "codes must be one of"),
        ({"window": 8.5}, "window must be a whole number"),
    ],
)
def test_dials_out_of_range_are_refused_by_name(dials, sentence):
    with pytest.raises(ValueError, match=sentence):
        HashParams(**dials)


def test_toy_tokens_need_no_data_and_a_real_head_sends_its_window_with_codes():
    assert view.data(HashParams()) is None
    sent = view.data(HashParams(input=LATE, tokens=70))
    assert (sent["input"], sent["width"], len(sent["tokens"])) == (LATE, 64, 128)
    whole = HashParams(input=LATE, tokens=128, codes=LEARNED)
    for name, words in zip(("query_codes", "key_codes"), view.codes(whole), strict=True):
        assert np.array_equal(np.frombuffer(sent[name], "<u4"), words[0, :, 0, 0])
        assert len(sent[name]) == 4 * 128  # four bytes a token
    assert view.data(HashParams(input=LATE, tokens=99, bits=3)) is sent  # nothing travels twice


def test_the_still_shows_the_codes_and_the_numbers_of_every_selector():
    params = HashParams(tokens=32, query=30, selector="quest")
    shown, views = view.still(params), view.compute(params)
    grid, read, recall = shown["pictures"]
    order = np.argsort(np.where(views["code_place"][29] > 0, views["code_place"][29], np.inf))[: grid.array.shape[1]]
    assert np.array_equal(grid.array, (views["key_bits"][order] != views["query_bits"][29]).T)
    assert grid.array.sum(axis=0).tolist() == views["distance"][29, order].tolist()
    assert np.array_equal(np.nan_to_num(read.array), views["sparse"])
    for name, curve in recall.y.items():
        assert np.array_equal(curve, views["recall"][view.CURVES.index(name), :5])
    for (words, numbers), name, here in zip(shown["numbers"], view.CURVES, views["here"].T, strict=True):
        assert words.startswith(f"{name}: recall of the true top 8")
        assert numbers == ", ".join(f"{x:.4g}" for x in here)
    assert len(view.still(HashParams(tokens=12))["pictures"]) == 2  # no key is left to choose


def test_all_shown_selectors_have_a_score_and_the_baselines_stand_beside_the_codes():
    assert all(selectors.SELECTORS[name].score is not None for name in SHOWN)
    assert {"hash", "lsh_centred", "key_norm", "past_mean"} <= set(view.CURVES)
