"""What went wrong elsewhere: reports from other projects, each as one small test of what must hold here.

The comment above a test names the reports it answers. Two are answered by more than one test:
    ties differ by device, and by how many are wanted: pytorch/pytorch 127196, 27542
        also test_fast_paths.test_ties_go_to_the_lowest_index
    NaN in what a mask hides: pytorch/pytorch 101967; vllm-project/vllm PR 47305
        also test_fast_paths.test_what_is_not_selected_is_not_read
No report was found of a token that is counted twice, by the window and by its code: the projects looked at keep the two
apart, as is done here; a list of indices that names one twice would not be.
"""

import itertools

import numpy as np
import pytest

from attnlab import backend, dense
from attnlab.hashattention import Maps, attention, encode, reference, select
from attnlab.hashattention import selectors as room_of_selectors
from tests.hashattention.cases import (
    arguments,
    as_sets,
    chosen_sets,
    codes,
    merged,
    normal,
    over_sets,
    selecting,
    single,
)

WHY_NOT = {impl: backend.why_not(impl, "hashattention") for impl in ("reference", "numba", "torch")}
IMPLS = [pytest.param(impl, marks=pytest.mark.skipif(bool(why), reason=str(why))) for impl, why in WHY_NOT.items()]
CLOSE = 100 * 2.0**-23  # float32: sums of some tens of weights, of logits of some units


def run(impl, **given):
    return tuple(np.asarray(x) for x in attention(**given, return_lse=True, impl=impl))


def assert_close(got, want):
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=CLOSE)


def alike(given, code=0):
    """The same call with all codes one."""
    return given | {name: np.full_like(given[name], code) for name in ("query_codes", "key_codes")}


# 1: onnx/onnx PR 7274; apple/axlearn PR 842
@pytest.mark.parametrize("impl", IMPLS)
def test_shared_heads_are_neighbours_and_not_tiles(impl):
    """h0 h0 h1 h1, not h0 h1 h0 h1."""
    given = single(arguments(H=4, G=2))
    out = run(impl, **given)[0]
    for order, same in (([0, 0, 1, 1], True), ([0, 1, 0, 1], False)):
        repeated = given | {name: given[name][:, :, order] for name in ("k", "v", "key_codes")}
        assert np.allclose(run("reference", **repeated)[0], out, rtol=0, atol=CLOSE) is same


# 2: PrimeIntellect-ai/prime-rl PR 2681; nntile/nntile PR 347
@pytest.mark.parametrize("impl", IMPLS)
def test_neither_tokens_nor_groups_are_repeated_in_place_of_heads(impl):
    """Six query heads over two: groups of three, so an exchange of both shows; tokens stay as many as they were."""
    given = single(arguments(H=6, G=2, budget=1.0))
    q, k, v = (given[name] for name in "qkv")
    out = run(impl, **given)[0]
    for h in range(6):
        alone = dense.attention(q[:, :, h : h + 1], k[:, :, [h // 3]], v[:, :, [h // 3]], causal=True)
        np.testing.assert_allclose(out[:, :, h], alone[:, :, 0], rtol=0, atol=CLOSE)


# 10: pytorch/pytorch 127196, 27542
@pytest.mark.parametrize("impl", IMPLS)
def test_which_of_equals_is_taken_depends_neither_on_how_many_are_wanted_nor_on_the_implementation(impl):
    near, query = codes(1, 1, 1, 300, 1, bits=2), codes(1, 2, 1, 1, 1, bits=2)
    before = set()
    for budget in (0, 1, 2, 31, 32, 33, 127, 128, 129, 299, 300):
        options = {"budget": budget, "sinks": 0, "window": 0}
        got = as_sets(select(query, near, **options, impl=impl))[0, 0, 0]
        assert got == as_sets(select(query, near, **options))[0, 0, 0]
        assert before < set(got) or budget == 0
        before = set(got)


# 11: lucidrains/native-sparse-attention-pytorch 16, PR 18; mit-han-lab/Quest 22
@pytest.mark.parametrize("impl", IMPLS)
def test_a_budget_of_more_than_there_is(impl):
    given = single(arguments(S=50, budget=64, sinks=0, window=16))
    want = dense.attention(*(given[name] for name in "qkv"), causal=True)
    np.testing.assert_allclose(run(impl, **given)[0], want, rtol=0, atol=CLOSE)


# 11, pages
@pytest.mark.parametrize("name", ["quest", "infllm"])
def test_pages_that_are_not_whole_and_a_budget_of_more_than_there_is(name):
    given = arguments(S=50)
    head = room_of_selectors.head_of(given["q"], given["k"], given["v"])
    chosen = room_of_selectors.select(name, head, budget=64, sinks=0, window=0).chosen
    assert chosen.sum(axis=1).tolist() == [46, 47, 48, 49, 50]


# 12: hw-native-sys/pypto-lib 397
@pytest.mark.parametrize("impl", IMPLS)
def test_fewer_tokens_than_the_window(impl):
    given = single(arguments(T=2, S=2, budget=64, sinks=128, window=128))
    want = dense.attention(*(given[name] for name in "qkv"), causal=True)
    np.testing.assert_allclose(run(impl, **given)[0], want, rtol=0, atol=CLOSE)
    assert np.asarray(select(**selecting(given), impl=impl))[:, 0].tolist() == [[[0, -1]] * 6] * 2


# 13: pytorch/pytorch 103963; tracel-ai/burn PR 4697
@pytest.mark.parametrize("impl", IMPLS)
def test_a_query_that_reads_nothing_is_zero_and_its_neighbours_are_not(impl):
    """Of the tokens seen a fifth, rounded down: none of the first four."""
    given = single(arguments(B=1, T=8, S=8, budget=0.2, sinks=0, window=0))
    out, lse = run(impl, **given)
    assert not out[:, :4].any()
    assert np.isneginf(lse[:, :4]).all()
    assert_close((out[:, 4:], lse[:, 4:]), [x[:, 4:] for x in run("reference", **given)])


# 14: pytorch/pytorch 101967; vllm-project/vllm PR 47305
@pytest.mark.parametrize("impl", IMPLS)
def test_the_unwritten_end_of_a_cache_is_not_read(impl):
    """NaN behind the last token, in the same memory; and inf between, where no query looks."""
    given = single(arguments(T=1, S=12, sinks=2, window=2, budget=0))
    room = {name: np.full((2, 40, *given[name].shape[2:]), np.nan, np.float32) for name in "kv"}
    for name, x in room.items():
        x[:, :12] = given[name]
        x[:, 2:10] = np.inf
    held = np.full((2, 40, 3, 1), 0xFFFFFFFF, np.uint32)
    held[:, :12] = given["key_codes"]
    views = given | {name: x[:, :12] for name, x in (room | {"key_codes": held}).items()}
    for got, want in zip(run(impl, **views), run(impl, **given), strict=True):
        assert np.isfinite(got).all()
        assert np.array_equal(got, want)


# 15: flashinfer-ai/flashinfer 4051; ROCm/aiter PR 4420; Dao-AILab/flash-attention PR 978
@pytest.mark.parametrize("impl", IMPLS)
def test_empty_parts_of_a_cache_merge_to_nothing_and_one_changes_no_other(impl):
    empty = run(impl, **single(arguments(T=2, S=0, causal=False)))
    assert np.isneginf(empty[1]).all()  # not +inf
    none = merged(empty, empty, empty)
    assert not none[0].any()
    assert np.isneginf(none[1]).all()
    part = run(impl, **single(arguments(T=2, causal=False)))
    for parts in ((part, empty), (empty, part), (empty, part, empty)):
        assert_close(merged(*parts), part)


# 16: pytorch/pytorch 103082, 108108
@pytest.mark.parametrize("impl", IMPLS)
def test_one_query_over_eight_keys_sees_all_of_them(impl):
    given = single(arguments(T=1, S=8, budget=8, sinks=0, window=0))
    assert np.asarray(select(**selecting(given), impl=impl)).tolist() == [[[list(range(8))] * 6]] * 2
    assert_close(run(impl, **given), run(impl, **given | {"causal": False}))


# 17: ROCm/aiter PR 3498; flagos-ai/FlagGems 5896; flagos-ai/FlagAttention 45
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("strided", ["k", "v"])
def test_keys_and_values_have_strides_of_their_own(impl, strided):
    """As wide as one another, so that no shape tells that the wrong ones were taken."""
    given = single(arguments(K=4, V=4))
    wide = np.full((2, 17, 2, 3, 9), np.nan, np.float32)
    wide[:, :, 0, :, 3:7] = given[strided]
    views = given | {strided: wide[:, :, 0, :, 3:7]}
    assert views[strided].strides != given[strided].strides
    assert_close(run(impl, **views), run(impl, **given))


# 19: larq/compute-engine PR 132; lucidrains/magvit2-pytorch 2; tenstorrent/tt-llk PR 28
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("number", [0.0, -0.0, 1e-30, -1e-30])
def test_a_zero_of_either_sign_has_the_bit_of_a_negative_number(impl, number):
    """Through the whole map, in every type: x itself, by a weight of 1."""
    identity = Maps((np.ones((2, 1, 1)),), (np.zeros((2, 1)),))
    for kind in (np.float16, np.float32, np.float64):
        x = np.full((1, 3, 2, 1), number).astype(kind)
        want = 1 if number > 0 and kind != np.float16 else 0  # float16 rounds it to 0
        assert np.asarray(encode(x, identity, impl=impl)).ravel().tolist() == [want] * 6


# 20: ml-explore/mlx-lm PR 390; karpathy/nanochat 452; rajveer43/VeloxQuant-MLX PR 463
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("T", [1, 6])
def test_a_window_of_four_is_the_query_itself_and_three_before(impl, T):
    given = arguments(T=T, S=9, budget=0, sinks=0, window=4)
    for (_, t, _), members in as_sets(select(**selecting(given), impl=impl)).items():
        at = 9 - T + t
        assert members == list(range(max(at - 3, 0), at + 1))


# 21: ml-explore/mlx-lm PR 1454
@pytest.mark.parametrize("impl", IMPLS)
def test_a_needle_at_the_start_of_a_long_cache_is_found(impl):
    """And where all scores are equal the first tokens are taken, not the last."""
    given = alike(single(arguments(B=1, T=1, S=5000, H=2, G=1, K=4, V=3, budget=1, sinks=0, window=8)), 0xFFFF)
    given["key_codes"][:, 1:] ^= 1
    assert as_sets(select(**selecting(given), impl=impl))[0, 0, 1] == [0, *range(4992, 5000)]
    assert as_sets(select(**selecting(alike(given)) | {"budget": 3}, impl=impl))[0, 0, 0][:4] == [0, 1, 2, 4992]
    assert_close(run(impl, **given), run("reference", **given))


# 22: kekzl/imp PR 1819
@pytest.mark.parametrize("name", ["quest", "infllm"])
@pytest.mark.parametrize("page", [7, 16, 32])
def test_a_budget_counts_tokens_whatever_the_size_of_a_page(name, page):
    given = arguments(S=100)
    head = room_of_selectors.head_of(given["q"], given["k"], given["v"])
    options = room_of_selectors.Options(page=page)
    chosen = room_of_selectors.select(name, head, budget=24, sinks=4, window=8, options=options).chosen
    assert chosen.sum(axis=1).tolist() == [36] * 5


# 23: facebookresearch/faiss 5387
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("mask", [1, 0x80000000, 0xFFFFFFFF])
def test_one_mask_over_all_codes_changes_no_distance(impl, mask):
    given = arguments(bits=32)
    masked = given | {name: given[name] ^ np.uint32(mask) for name in ("query_codes", "key_codes")}
    assert np.array_equal(*(select(**selecting(x), impl=impl) for x in (masked, given)))


# none found: see above
@pytest.mark.parametrize("impl", IMPLS)
def test_a_token_that_is_a_sink_and_recent_and_near_counts_once(impl):
    """All of three tokens are all of it: each is read once, so the output is that of its set."""
    given = alike(single(arguments(T=3, S=3, budget=3, sinks=2, window=2)))
    assert as_sets(select(**selecting(given), impl=impl)) == chosen_sets(given)
    assert_close(run(impl, **given), over_sets(given, chosen_sets(given)))
    twice = {place: [*members, members[0]] for place, members in chosen_sets(given).items()}
    assert np.abs(over_sets(given, twice)[1] - run(impl, **given)[1]).max() > 0.1


# sparse-attention-hub (HashAttention's own authors): the maximum is taken over all keys, and the mask comes after
@pytest.mark.parametrize("impl", IMPLS)
def test_selected_logits_far_below_the_largest_of_all(impl):
    """300 below: exp(-300) is 0 in float32."""
    given = alike(single(arguments(B=1, T=1, S=20, H=1, G=1, K=2, V=3, budget=2, sinks=0, window=0)))
    given["key_codes"][:, 2:] = 1
    given["q"][:], given["k"][:, 2:] = 1, 300.0
    given["k"][:, :2] = normal(2, 1, 1, 2, 1, 2)
    out, lse = run(impl, **given)
    assert_close((out, lse), run("reference", **given))
    np.testing.assert_allclose(reference.trace(**given).weights[..., :2].sum(), 1, rtol=1e-12)


# xAlg-ai/HashAttention-1.0: a window of 0 is the slice [-0:], which is everything
@pytest.mark.parametrize("impl", IMPLS)
def test_a_window_of_zero_is_no_token(impl):
    for budget, sinks in itertools.product((0, 2), (0, 1)):
        given = arguments(T=1, budget=budget, sinks=sinks, window=0)
        assert {len(x) for x in as_sets(select(**selecting(given), impl=impl)).values()} == {budget + sinks}
