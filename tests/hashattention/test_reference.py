"""The reference against numbers worked by hand, another way to choose, and everything it must survive."""

import ast
import inspect
import itertools

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from attnlab import dense
from attnlab.hashattention import Maps, attention, encode, first_bits, random_maps, reference, select
from attnlab.hashattention.params import tokens_of
from tests.hashattention.cases import (
    EDGES,
    SINKS,
    WINDOW,
    arguments,
    as_sets,
    chosen_sets,
    codes,
    keys,
    merged,
    normal,
    over_sets,
    perceptron,
    selecting,
)

EXACT = 1e-13  # other order of additions, some tens of them, in float64
NONE = {"budget": 0, "sinks": 0, "window": 0}
FEATURES = st.lists(st.sampled_from([0.0, -0.0, np.nan, 5e-324, -5e-324, 1.0, -1.0, np.inf, -np.inf]), max_size=75)


def code_lines(function) -> int:
    """Lines of a function that hold code: no docstring, comment or blank line."""
    source = inspect.getsource(function)
    (tree,) = ast.parse(source).body
    prose = {n for node in tree.body[:1] if ast.get_docstring(tree) for n in range(node.lineno, node.end_lineno + 1)}
    lines = enumerate(source.splitlines(), 1)
    return sum(bool(line.strip()) and not line.strip().startswith("#") and n not in prose for n, line in lines)


def test_the_four_lines_are_short_enough_to_say_aloud():
    parts = (reference.pack, reference.hamming, reference.selected, reference.gathered)
    assert 15 < sum(map(code_lines, parts)) <= 30
    assert code_lines(reference.trace) <= 25


# -- by hand --


def bits(text: str) -> np.ndarray:
    """A code as one word, from a text of 0 and 1, bit 0 first."""
    return np.array([int(text[::-1], 2)], np.uint32)


def test_four_bits_against_three_keys():
    """1011 against 1011, 1001 and 0110: distances 0, 1 and 3 (Eq. 2, p. 4; the numbers are this project's)."""
    near = np.stack([bits("1011"), bits("1001"), bits("0110")])
    assert reference.hamming(bits("1011"), near).tolist() == [0, 1, 3]


def test_six_tokens_of_one_number():
    """Distances 0 3 1 1 2 0; sink {0}, window {5}; of 1, 2, 3, 4 the two nearest are 2 and 3: at 1 both."""
    near = np.stack([bits(x) for x in ("000", "111", "100", "010", "011", "000")])[None, :, None]
    k = np.log([[1.0], [9.0], [2.0], [3.0], [9.0], [4.0]])[None, :, None]
    v = np.array([[1.0], [100.0], [1.0], [-1.0], [100.0], [2.0]])[None, :, None]
    given = {"budget": 2, "sinks": 1, "window": 1, "causal": True}
    ask = {"q": np.ones((1, 1, 1, 1)), "k": k, "v": v, "query_codes": bits("000")[None, None, None], "key_codes": near}
    seen = reference.trace(**ask, **given)
    assert seen.distance.ravel().tolist() == [0, 3, 1, 1, 2, 0]
    assert seen.chosen.ravel().tolist() == [True, False, True, True, False, True]
    np.testing.assert_allclose(seen.weights.ravel(), [0.1, 0, 0.2, 0.3, 0, 0.4], rtol=1e-15)
    np.testing.assert_allclose(seen.out, [[[[(1 + 2 - 3 + 8) / 10]]]], rtol=1e-15)
    np.testing.assert_allclose(seen.lse, [[[np.log(10)]]], rtol=1e-15)


def test_a_perceptron_of_two_layers_on_one_number():
    """x = 2: 2 * 1 + 0.5 = 2.5 and -2.5 before SiLU, then 3 SiLU(2.5) + SiLU(-2.5) - 7 and SiLU(2.5) - 0.1."""
    maps = Maps(
        (np.array([[[1.0, -1.0]]]), np.array([[[3.0, 1.0], [1.0, 0.0]]])),
        (np.array([[0.5, -0.5]]), np.array([[-7.0, -0.1]])),
    )
    up, down = 2.5 / (1 + np.exp(-2.5)), -2.5 / (1 + np.exp(2.5))
    got = reference.features(np.full((1, 1, 1, 1), 2.0), maps)
    np.testing.assert_allclose(got.ravel(), [3 * up + down - 7, up - 0.1], rtol=1e-14)
    assert encode(np.full((1, 1, 1, 1), 2.0), maps).ravel().tolist() == [0b10]


def test_silu_is_finite_at_both_ends():
    x = np.array([-1e308, -800.0, -1.0, 0.0, 1.0, 800.0, 1e308])
    np.testing.assert_allclose(reference.silu(x), [0, 0, -1 / (1 + np.e), 0, np.e / (1 + np.e), 800, 1e308], rtol=1e-15)


# -- codes --


@settings(max_examples=60, deadline=None, derandomize=True)
@drawn(FEATURES.filter(len))
def test_a_bit_is_whether_a_number_is_above_zero_and_nothing_else(numbers):
    """0.0, -0.0 and NaN give 0; the smallest number above 0 gives 1; bits beyond b are 0."""
    words = reference.pack(np.array(numbers))
    assert words.dtype == np.uint32
    assert words.shape == (-(-len(numbers) // 32),)
    value = sum(int(word) << 32 * n for n, word in enumerate(words))
    assert value == sum(1 << i for i, number in enumerate(numbers) if number > 0)
    assert reference.unpack(words, len(numbers)).tolist() == [int(number > 0) for number in numbers]


@pytest.mark.parametrize("width", [1, 31, 32, 33, 64, 75])
def test_words_are_little_endian_and_unpack_to_what_was_packed(width):
    x = normal(1, 1, 4, width)
    words = reference.pack(x)
    packed = np.packbits(x > 0, axis=-1, bitorder="little")
    assert words.astype("<u4").view(np.uint8)[:, : packed.shape[1]].tolist() == packed.tolist()
    assert np.array_equal(reference.unpack(words, width), x > 0)
    assert np.array_equal(reference.pack(reference.unpack(words, width)), words)
    assert np.array_equal(reference.unpack(words.view(np.int32), width), x > 0)


@pytest.mark.parametrize("width", [1, 32, 40, 300])
def test_the_distance_is_that_of_the_product_of_signs(width):
    """(b - <signs, signs>) / 2 (p. 4)."""
    x, y = normal(2, 1, 3, width), normal(2, 2, 8, width)
    signs = [np.where(z > 0, 1, -1) for z in (x, y)]
    distance = reference.hamming(reference.pack(x), reference.pack(y)[None])
    assert np.array_equal(distance, (width - signs[0] @ signs[1].T) // 2)


def test_more_than_255_bits_do_not_overflow_a_byte():
    """Distances 0, 255, 256, 300 and 4096: in a byte 256 would be 0 and win."""
    for widths in ([300, 256, 255, 257], [4096, 256, 0, 255]):
        x = np.stack([np.arange(4096) < n for n in widths]).astype(float)
        near, query = reference.pack(x), np.zeros(128, np.uint32)
        assert reference.hamming(query, near).tolist() == widths
        order = [select(query[None, None, None], near[None, :, None], budget=n, sinks=0, window=0) for n in range(5)]
        assert [set(np.ravel(x)) for x in order] == [set(np.argsort(widths)[:n].tolist()) for n in range(5)]


def test_the_code_of_a_head_is_that_of_its_own_map():
    maps, x = perceptron(3, 5, 8, 6, 40), normal(3, 1, 2, 4, 3, 5)
    whole = encode(x, maps)
    assert whole.shape == (2, 4, 3, 2)
    assert maps.bits == 40
    for h in range(3):
        own = Maps(*(tuple(layer[h : h + 1] for layer in part) for part in maps))
        assert np.array_equal(encode(x[:, :, h : h + 1], own)[:, :, 0], whole[:, :, h])
    assert not np.array_equal(encode(x[:, :, [1, 0, 2]], maps)[:, :, [1, 0, 2]], whole)


def test_a_random_projection_grows_without_changing_and_centres():
    small, large = random_maps(3, 2, 4, seed=5), random_maps(40, 3, 6, seed=5)
    assert np.array_equal(large.weights[0][:2, :4, :3], small.weights[0])
    assert not any(bias.any() for bias in small.biases)
    cut = first_bits(large, 3)
    assert cut.bits == 3
    x, centre = normal(6, 1, 1, 9, 3, 6), normal(6, 2, 3, 6)
    assert np.array_equal(reference.unpack(encode(x, cut), 3), reference.unpack(encode(x, large), 40)[..., :3])
    moved = reference.features(x, random_maps(40, 3, 6, seed=5, centre=centre))
    np.testing.assert_allclose(moved, reference.features(x - centre, large), rtol=0, atol=1e-13)
    sample = random_maps(64, 4, 64).weights[0]
    assert abs(sample.mean()) < 5 / np.sqrt(sample.size)
    assert abs(sample.var() - 1) < 5 * np.sqrt(2 / sample.size)


# -- the set --


@pytest.mark.parametrize("coded", [3, 6])
def test_sets_at_every_edge_are_those_of_sorted_pairs(coded):
    for n, budget in EDGES:
        for causal in (True, False):
            given = arguments(T=min(n, 2) if causal else 2, S=n, coded=coded, budget=budget, sinks=SINKS, window=WINDOW)
            given["causal"] = causal
            got = as_sets(select(**selecting(given)))
            assert got == chosen_sets(given), (n, budget, causal)
            for (_, t, _), members in got.items():
                visible = n - (given["query_codes"].shape[1] - 1 - t if causal else 0)
                assert len(members) == min(visible, SINKS + WINDOW + budget)
                assert members == sorted(set(members))
                assert {*range(min(SINKS, visible)), *range(max(visible - WINDOW, 0), visible)} <= set(members)


@pytest.mark.parametrize("sizes", list(itertools.product([0, 2, 100], [0, 1, 100, 0.5], [0, 3, 100])), ids=str)
def test_a_size_of_zero_keeps_nothing_and_a_large_one_all(sizes):
    """No slice [-0:] that is everything."""
    budget, sinks, window = sizes
    given = arguments(budget=budget, sinks=sinks, window=window)
    got = as_sets(select(**selecting(given)))
    assert got == chosen_sets(given)
    if sizes == (0, 0, 0):
        assert not any(got.values())


def test_one_is_a_token_and_one_with_a_point_is_all_of_them():
    given = arguments(T=2, S=7)
    sizes = [
        ((1, 0, 0), 1), ((1.0, 0, 0), 7), ((0, 1, 0), 1), ((0, 1.0, 0), 7), ((0, 0, 1), 1), ((0, 0, 1.0), 7),
        ((0.0, 0.0, 0.0), 0), ((0.5, 0, 0), 3), ((0, 0.29, 0), 2), ((0.15, 0.15, 0.15), 3),
        ((np.int64(2), np.float32(0.5), 0), 5),
    ]  # fmt: skip
    for (budget, sinks, window), count in sizes:
        got = select(**selecting(given) | {"budget": budget, "sinks": sinks, "window": window})
        assert (got[:, -1] >= 0).sum(axis=-1).tolist() == [[count] * 6] * 2, (budget, sinks, window)


def test_a_fraction_is_of_what_each_query_sees():
    given = arguments(T=8, S=8, budget=0.5, sinks=0, window=0)
    got = as_sets(select(**selecting(given)))
    assert all(len(members) == (t + 1) // 2 for (_, t, _), members in got.items())
    assert [tokens_of(0.3, n) for n in range(11)] == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
    assert tokens_of(1.0, 2**40) == 2**40


def test_equal_codes_are_taken_in_the_order_of_tokens():
    given = arguments(T=1, S=12, sinks=2, window=3)
    given["key_codes"][:] = 5
    for budget in range(9):
        want = [0, 1, *range(2, min(2 + budget, 9)), 9, 10, 11]
        assert set(map(tuple, as_sets(select(**selecting(given) | {"budget": budget})).values())) == {tuple(want)}


def test_ties_go_to_the_lowest_index_as_a_sort_by_two_keys_has_it():
    near, query = codes(7, 1, 1, 200, 1, bits=3), codes(7, 2, 1, 1, 1, bits=3)
    distance = np.bitwise_count(near[0, :, 0, 0] ^ query[0, 0, 0, 0])
    assert len(set(distance)) == 4
    order = np.lexsort((np.arange(200), distance))
    for budget in (1, 5, 37, 150, 199, 200):
        got = select(query, near, budget=budget, sinks=0, window=0)
        assert got.ravel().tolist() == sorted(order[:budget])


@settings(max_examples=25, deadline=None, derandomize=True)
@drawn(st.integers(0, 2**32 - 1), st.integers(0, 10_000))
def test_neither_a_mask_over_all_codes_nor_another_order_of_bits_changes_a_set(mask, seed):
    given = selecting(arguments(bits=32, seed=seed % 7))
    want = select(**given)
    masked = {name: given[name] ^ np.uint32(mask) for name in ("query_codes", "key_codes")}
    assert np.array_equal(select(**given | masked), want)
    order = np.random.default_rng(seed).permutation(32)
    turned = {name: reference.pack(reference.unpack(given[name], 32)[..., order]) for name in masked}
    assert np.array_equal(select(**given | turned), want)


def test_the_last_query_stands_at_the_last_key():
    """Fewer queries than keys: the last one sees all, the one before all but one."""
    given = arguments(T=3, S=8, budget=100)
    got = as_sets(select(**selecting(given)))
    assert all(members == list(range(6 + t)) for (_, t, _), members in got.items())
    got = as_sets(select(**selecting(given) | {"causal": False}))
    assert all(members == list(range(8)) for members in got.values())


def test_heads_that_share_keys_are_neighbours_and_each_chooses_for_itself():
    """H = 6 over G = 3: h0 h0 h1 h1 h2 h2."""
    given = arguments()
    repeated = given | {name: np.repeat(given[name], 2, axis=2) for name in ("k", "v", "key_codes")}
    assert np.array_equal(attention(**given), attention(**repeated))
    sets = as_sets(select(**selecting(given)))
    assert sets[1, 4, 0] != sets[1, 4, 1]
    for h in range(6):
        one = given | {name: given[name][:, :, h : h + 1] for name in ("q", "query_codes")}
        one |= {name: given[name][:, :, h // 2 : h // 2 + 1] for name in ("k", "v", "key_codes")}
        assert np.array_equal(attention(**one)[:, :, 0], attention(**given)[:, :, h])


def test_a_code_for_every_query_head_over_shared_keys():
    given = arguments(coded=6)
    for h in range(6):
        own = given | {"key_codes": given["key_codes"][:, :, h : h + 1]}
        own |= {name: given[name][:, :, h : h + 1] for name in ("q", "query_codes")}
        own |= {name: given[name][:, :, h // 2 : h // 2 + 1] for name in ("k", "v")}
        assert np.array_equal(attention(**own)[:, :, 0], attention(**given)[:, :, h])


# -- attention --


@pytest.mark.parametrize(
    "change", [{}, {"causal": False}, {"scale": -0.3}, {"sinks": 0.2, "window": 0.1}, {"budget": 0}]
)
def test_the_output_is_softmax_over_the_set_and_nothing_else(change):
    given = arguments() | change
    out, lse = attention(**given, return_lse=True)
    want, log = over_sets(given, chosen_sets(given))
    np.testing.assert_allclose(out, want, rtol=0, atol=EXACT)
    np.testing.assert_allclose(lse, log, rtol=0, atol=EXACT)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("budget", "sinks", "window"), [(17, 0, 0), (1.0, 0, 0), (11, 2, 4), (99, 5, 0), (0, 17, 0)])
def test_a_budget_of_all_is_dense_attention(causal, budget, sinks, window):
    given = arguments(causal=causal, budget=budget, sinks=sinks, window=window)
    q, k, v = (given[name] for name in "qkv")
    out, lse = attention(**given, return_lse=True)
    np.testing.assert_allclose(out, dense.attention(q, k, v, causal=causal), rtol=0, atol=EXACT)
    logits = 7**-0.5 * np.einsum("bthk,bshk->bths", q, np.repeat(k, 2, axis=2))
    seen = dense.visible(5, 17, causal=causal)[None, :, None]
    np.testing.assert_allclose(lse, np.log(np.where(seen, np.exp(logits), 0.0).sum(axis=-1)), rtol=0, atol=EXACT)


@settings(max_examples=30, deadline=None, derandomize=True)
@drawn(st.lists(st.integers(0, 9), max_size=4), st.integers(0, 3))
def test_parts_of_a_cache_merge_to_the_whole_in_any_grouping(cuts, first):
    """By their lse, empty parts too."""
    given = arguments(T=2, S=9, causal=False, budget=1.0)
    whole = attention(**given, return_lse=True)
    cuts = [0, *sorted(cuts), 9]
    parts = [attention(**keys(given, slice(a, b)), return_lse=True) for a, b in itertools.pairwise(cuts)]
    first = min(first, len(parts))
    empty = attention(**keys(given, slice(0, 0)), return_lse=True)
    for group in (parts, parts[::-1], [empty, *parts, empty]):
        for got in (merged(*group), merged(merged(*group[:first], empty), merged(*group[first:], empty))):
            for x, want in zip(got, whole, strict=True):
                np.testing.assert_allclose(x, want, rtol=0, atol=EXACT)


def test_parts_of_a_set_merge_to_it():
    """Sinks, retrieved tokens and window apart, merged: the set, each token once."""
    given = arguments(T=1)
    whole = attention(**given, return_lse=True)
    sets = chosen_sets(given)
    for cut in (0, 2, 5, 9):
        low, high = (
            {place: [i for i in members if (i < cut) is side] for place, members in sets.items()}
            for side in (True, False)
        )
        got = merged(over_sets(given, low), over_sets(given, high))
        for x, want in zip(got, whole, strict=True):
            np.testing.assert_allclose(x, want, rtol=0, atol=EXACT)


@pytest.mark.parametrize("filler", [np.nan, np.inf, -np.inf, 1e308])
def test_what_is_not_selected_is_not_read(filler):
    given = arguments(T=2, sinks=1, window=1, budget=2)
    unread = np.ones((2, 17, 3), bool)
    for (b, _, h), members in chosen_sets(given).items():
        unread[b, members, h // 2] = False
    assert unread.any(axis=(0, 2)).any()
    spoiled = given | {name: np.where(unread[..., None], filler, given[name]) for name in "kv"}
    for x, want in zip(attention(**spoiled, return_lse=True), attention(**given, return_lse=True), strict=True):
        assert np.array_equal(x, want)


def test_the_largest_logit_is_that_of_the_set():
    """A key that is not read has a logit of 10,000: subtracting that would leave 0 / 0."""
    given = arguments(T=1, sinks=1, window=1, budget=2)
    unread = sorted(set(range(17)) - {i for members in chosen_sets(given).values() for i in members})
    given["k"][:, unread] = 1e4 * np.sign(given["q"][:, :, ::2])
    assert np.einsum("bthk,bshk->bths", given["q"], np.repeat(given["k"], 2, 2)).max() > 1e4
    for dtype in (np.float64, np.float32):
        run = reference.trace(**given, dtype=dtype)
        np.testing.assert_allclose(run.weights.sum(axis=-1), 1, rtol=1e-6)
        assert np.isfinite(run.lse).all()


@pytest.mark.parametrize("causal", [True, False])
def test_an_empty_set_is_zero_and_minus_infinity(causal):
    out, lse = attention(**arguments(causal=causal) | NONE, return_lse=True)
    assert not out.any()
    assert np.isneginf(lse).all()
    out, lse = attention(**arguments(T=2, S=0, causal=False), return_lse=True)
    assert out.shape == (2, 2, 6, 4)
    assert not out.any()
    assert np.isneginf(lse).all()


@pytest.mark.parametrize("sizes", [{"B": 0}, {"T": 0}, {"T": 0, "S": 0}, {"K": 0}, {"V": 0}, {"H": 0, "G": 0}])
def test_axes_of_nothing(sizes):
    given = arguments(**sizes)
    out, lse = attention(**given, return_lse=True)
    assert out.shape == (*given["q"].shape[:3], given["v"].shape[3])
    assert lse.shape == out.shape[:3]
    assert np.isfinite(out).all()
    chosen = select(**selecting(given))
    assert chosen.shape[:3] == lse.shape
    assert chosen.dtype == np.int64
    maps = perceptron(max(given["q"].shape[2], 1), 5, 40)
    x = np.zeros((*given["q"].shape[:2], max(given["q"].shape[2], 1), 5))
    assert encode(x, maps).shape == (*x.shape[:3], 2)


def test_what_a_trace_holds_fits_together():
    given = arguments()
    run, (out, lse) = reference.trace(**given), attention(**given, return_lse=True)
    assert np.array_equal(run.out, out)
    assert np.array_equal(run.lse, lse)
    places = [(b, t, h, i) for (b, t, h), members in as_sets(select(**selecting(given))).items() for i in members]
    assert sorted(places) == [(b, t, h, i) for b, t, h, i in np.argwhere(run.chosen.swapaxes(1, 2)).tolist()]
    assert np.array_equal(run.distance < 0, ~np.broadcast_to(dense.visible(5, 17, causal=True), (2, 6, 5, 17)))
    assert np.array_equal(run.weights > 0, run.chosen)
    v = np.repeat(given["v"], 2, axis=2)
    np.testing.assert_allclose(np.einsum("bhts,bshv->bthv", run.weights, v), out, rtol=0, atol=EXACT)


def test_views_in_any_layout_and_read_only_arrays_give_the_same():
    """K in strides of its own, V contiguous; codes turned around; nothing is written."""
    given = arguments()
    want = attention(**given)
    wide = np.full((2, 34, 3, 11), np.nan)
    wide[:, ::2, :, 2:9] = given["k"]
    other = given | {
        "k": wide[:, ::2, :, 2:9],
        "q": np.ascontiguousarray(given["q"].swapaxes(1, 2)).swapaxes(1, 2),
        "key_codes": np.ascontiguousarray(given["key_codes"][:, ::-1])[:, ::-1],
        "query_codes": given["query_codes"].view(np.int32),
    }
    for x in other.values():
        if isinstance(x, np.ndarray):
            x.flags.writeable = False
    assert np.array_equal(attention(**other), want)
    assert np.array_equal(select(**selecting(other)), select(**selecting(given)))


def test_it_computes_in_the_precision_asked_for():
    given = arguments()
    exact, low = attention(**given), reference.attention(**given, dtype=np.float32)
    assert (exact.dtype, low.dtype) == (np.float64, np.float32)
    assert 1e-9 < np.abs(low - exact).max() < 1e-5
    rounded = {name: x.astype(np.float32) if name in "qkv" else x for name, x in given.items()}
    assert np.array_equal(low, reference.attention(**rounded, dtype=np.float32))
    narrow = {name: x.astype(np.float16) if name in "qkv" else x for name, x in given.items()}
    wide = {name: x.astype(np.float64) if name in "qkv" else x for name, x in narrow.items()}
    assert np.array_equal(attention(**narrow), attention(**wide))


def test_torch_tensors_are_read_in_any_float_type_and_with_signed_words():
    torch = pytest.importorskip("torch", reason="the package torch is not installed")
    given = arguments()
    tensors = {
        name: torch.tensor(x.view(np.int32) if x.dtype == np.uint32 else x) if isinstance(x, np.ndarray) else x
        for name, x in given.items()
    }
    assert np.array_equal(attention(**tensors), attention(**given))
    half = tensors | {name: tensors[name].bfloat16() for name in "qkv"}
    assert np.array_equal(attention(**half), attention(**half | {name: half[name].double() for name in "qkv"}))
    maps = perceptron(6, 7, 8, 40)
    assert np.array_equal(encode(tensors["q"], maps), encode(given["q"], maps))
