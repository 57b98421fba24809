"""What went wrong elsewhere: reports from other projects, each as one small test of what must hold here.

The comment above a test names the reports it answers, its name or first line the symptom. Every way to bring positions
into a layer is in test_schemes, what the door refuses in test_api.
"""

import numpy as np
import pytest

from attnlab import backend, dense
from attnlab.lrkv import Rope, accounting, attention, reference, rope, rotary
from attnlab.lrkv.cache import FactoredCache
from attnlab.lrkv.schemes import Lrkv, Turning, draw
from tests.lrkv.cases import arguments, normal, with_option

WHY_NOT = {impl: backend.why_not(impl, "lrkv") for impl in ("reference", "numba", "torch")}
IMPLS = [pytest.param(impl, marks=pytest.mark.skipif(bool(why), reason=str(why))) for impl, why in WHY_NOT.items()]
CLOSE = 100 * 2.0**-23  # float32: sums of some tens of weights, of logits of some units
EXACT = 1e-12
CACHE = ("k_shared", "v_shared", "k_latent", "v_latent")
X = normal(0, 1, 2, 9, 24)


def single(given):
    """In float32, the type of every implementation."""
    return {name: x.astype(np.float32) if getattr(x, "dtype", None) == np.float64 else x for name, x in given.items()}


def run(impl, **given):
    return tuple(np.asarray(x) for x in attention(**given, return_lse=True, impl=impl))


def assert_close(got, want, atol=CLOSE):
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=atol)


def apart(got, want):
    return float(max(np.abs(x - y).max() for x, y in zip(got, want, strict=True)))


def layer(**how):
    return draw("lrkv", **{"width": 24, "heads": 6, "head_width": 8, "groups": 2, "rank": 4, "seed": 1} | how)


# 1: onnx/onnx PR 7274; apple/axlearn PR 842
@pytest.mark.parametrize("impl", IMPLS)
def test_shared_heads_are_neighbours_and_not_tiles(impl):
    """h0 h0 h1 h1, not h0 h1 h0 h1."""
    given = single(arguments(H=4, G=2))
    got = run(impl, **given)
    for order, same in (([0, 0, 1, 1], True), ([0, 1, 0, 1], False)):
        repeated = given | {name: given[name][:, :, order] for name in ("k_shared", "v_shared")}
        assert (apart(run("reference", **repeated), got) < CLOSE) is same


# 2: PrimeIntellect-ai/prime-rl PR 2681; nntile/nntile PR 347
@pytest.mark.parametrize("impl", IMPLS)
def test_neither_tokens_nor_groups_are_repeated_in_place_of_heads(impl):
    """Six query heads over two: groups of three, so an exchange of both shows; each has its own latents and factors."""
    given = single(arguments())
    out = run(impl, **given)[0]
    for h in range(6):
        one = {name: given[name][:, :, [h]] for name in ("q", "k_latent", "v_latent")}
        one |= {name: given[name][:, :, [h // 3]] for name in ("k_shared", "v_shared")}
        one |= {name: given[name][[h]] for name in ("k_factor", "v_factor")}
        np.testing.assert_allclose(out[:, :, [h]], reference.attention(**one), rtol=0, atol=CLOSE)


# 4: huggingface/transformers 39687; vllm-project/vllm 26995
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_a_layout_is_not_taken_for_the_other(impl, layout):
    """Right at position 0 either way; and the yardstick has its own code for both."""
    given = single(arguments(R=0, Rv=0)) | {"rope": rope(8, layout=layout)}
    del given["k_latent"], given["k_factor"]
    for position, alike in ((0, True), (3, False)):
        at = np.full(11, position)
        keys = dense.rope(given["k_shared"], at, layout=layout)
        want = dense.attention(given["q"], keys, given["v_shared"], causal=True)
        np.testing.assert_allclose(run(impl, **given, positions=at)[0], want, rtol=0, atol=CLOSE)
        other = given | {"rope": rope(8, layout={"half": "interleaved", "interleaved": "half"}[layout])}
        assert (apart(run(impl, **other, positions=at)[:1], [want]) < CLOSE) is alike


# 5: pie-project/pie 602; vllm-project/vllm PR 41185
@pytest.mark.parametrize("impl", IMPLS)
def test_partial_rotation_has_the_frequencies_it_was_given(impl):
    """Two planes of four: those of a head of 4, not the first of a head of 8, which agree at position 0 and drift."""
    given = single(arguments(B=1, T=1, S=3))
    given["k_factor"][:, :4] = 0
    own, whole = rope(4), Rope(rope(8).frequency[:2])
    for first, alike in ((0, True), (1000, False)):
        turning = {"positions": np.full(3, first), "latent_rope": Rope(np.zeros(0))}
        keys = given["k_shared"].copy()
        keys[..., :4] = dense.rope(keys[..., :4], turning["positions"])
        want = run("reference", **given | {"k_shared": keys})
        assert_close(run(impl, **given, rope=own, **turning), want)
        assert (apart(run("reference", **given, rope=whole, **turning), want) < CLOSE) is alike


# 6: Blaizzy/mlx-vlm 1983; huggingface/transformers 22161; unslothai/unsloth PR 3803
@pytest.mark.parametrize("option", ["aligned", "expand", "still"])
def test_a_decoded_token_stands_after_the_prompt_and_not_at_position_0(option, monkeypatch):
    want, made = layer(option=option).prefill(X), layer(option=option)
    made.prefill(X[:, :-1])
    got = made.step(X[:, -1:])
    np.testing.assert_allclose(got, want[:, -1:], rtol=0, atol=EXACT)
    assert made.cache.positions[-1] == 8
    at_0 = layer(option=option)
    at_0.prefill(X[:, :-1])
    monkeypatch.setattr(FactoredCache, "next_position", 0)  # the bug, made on purpose
    assert np.abs(at_0.step(X[:, -1:]) - got).max() > 1e-3


# 6, padded batches
@pytest.mark.parametrize("impl", IMPLS)
def test_rows_of_a_padded_batch_have_positions_of_their_own(impl):
    """Two texts of 7 and 4 tokens, the shorter one padded on the left: starts say where, positions count from there."""
    given = with_option("latent_rope", T=1, S=7)
    given["positions"] = np.stack([np.arange(7), np.arange(7) - 3])
    padded = single(given | {"starts": np.array([0, 3])})
    for name in CACHE:
        padded[name][1, :3] = np.nan
    got = run(impl, **padded)
    for row, start in ((0, 0), (1, 3)):
        alone = {name: given[name][[row]] for name in ("q", *CACHE)}
        alone |= {name: alone[name][:, start:] for name in CACHE} | {"positions": np.arange(7 - start)}
        assert_close([x[[row]] for x in got], run("reference", **given | alone))


# 7: lucidrains/rotary-embedding-torch 11
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("option", ["latent_rope", "expand"])
def test_as_many_tokens_at_another_offset_are_turned_anew(impl, option):
    """Nothing may be remembered by the number of tokens alone."""
    given = single(with_option(option))
    for offset in (0.0, 5.0, 0.0):
        here = given | {"positions": given["positions"] + offset}
        assert_close(run(impl, **here), run("reference", **here))
    assert apart(run(impl, **given), run(impl, **given | {"positions": given["positions"] + 5.0})) > 1e-3


# 8: NeuraLegion/shainet PR 110
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("option", ["latent_rope", "expand"])
def test_reading_a_cache_turns_nothing_in_it(impl, option):
    """A second step would read keys that the first one had turned already."""
    given = single(with_option(option))
    before = {name: given[name].copy() for name in CACHE}
    first = run(impl, **given)
    assert_close(run(impl, **given), first, atol=0)
    for name, x in before.items():
        assert np.array_equal(given[name], x)


# 8: rajveer43/VeloxQuant-MLX PR 195
@pytest.mark.parametrize("option", ["aligned", "expand"])
def test_a_position_is_not_how_many_tokens_were_retained(option):
    made = layer(option=option)
    made.prefill(X[:, :6])
    made.cache.keep([0, 1, 5])
    made.step(X[:, 6:7])
    assert made.cache.positions.tolist() == [0, 1, 5, 6]
    assert made.cache.next_position == 7


# 9: paiml/aprender PR 2085
def test_the_cached_path_has_the_norm_too():
    """The first token shows nothing: alone it has all the weight, whatever its key."""
    normed, plain = layer(norm="sum"), layer()
    want = layer(norm="sum", factored=False).prefill(X[:, :3])
    steps = [(normed.step(X[:, [t]]), plain.step(X[:, [t]])) for t in range(3)]
    np.testing.assert_allclose(steps[0][0], steps[0][1], rtol=0, atol=EXACT)
    for t, (got, without) in enumerate(steps):
        np.testing.assert_allclose(got, want[:, [t]], rtol=0, atol=EXACT)
        assert t == 0 or np.abs(got - without).max() > 1e-3


# 13: pytorch/pytorch 103963; tracel-ai/burn PR 4697
@pytest.mark.parametrize("impl", IMPLS)
def test_a_query_that_sees_nothing_is_zero_and_its_neighbours_are_not(impl):
    """More queries than keys: the first five come before every key. And a row without a token beside one with."""
    given = single(arguments(T=9, S=4))
    out, lse = run(impl, **given)
    assert not out[:, :5].any()
    assert np.isneginf(lse[:, :5]).all()
    assert_close((out[:, 5:], lse[:, 5:]), [x[:, 5:] for x in run("reference", **given)])
    given = single(arguments()) | {"starts": np.array([4, 0]), "ends": np.array([4, 11])}
    out, lse = run(impl, **given)
    assert not out[0].any()
    assert np.isneginf(lse[0]).all()
    assert_close((out[1:], lse[1:]), [x[1:] for x in run("reference", **given)])


# 14: pytorch/pytorch 101967; vllm-project/vllm PR 47305
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("option", ["plain", "k_scale", "latent_rope", "expand", "still"])
def test_the_unwritten_end_of_a_cache_is_not_read(impl, option):
    """NaN behind the last token, in the same memory; by ends, and as the view that a growing cache hands out."""
    given = single(with_option(option))
    want = run(impl, **given)
    names = [name for name in (*CACHE, "k_scale") if name in given]
    room = {name: np.full((2, 40, *given[name].shape[2:]), np.nan, np.float32) for name in names}
    for name, x in room.items():
        x[:, :11] = given[name]
    assert_close(run(impl, **given | {name: x[:, :11] for name, x in room.items()}), want)
    if "positions" in given:
        spare = np.zeros((*given["positions"].shape[:-1], 29))
        room["positions"] = np.concatenate([given["positions"], spare], axis=-1)
    for filler in (np.nan, np.inf, 3e38):
        for name in names:
            room[name][:, 11:] = filler
        got = run(impl, **given | room | {"ends": np.array([11, 11])})
        assert np.isfinite(got[0]).all()
        assert_close(got, want)


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


def merged(*parts):
    """(o, lse) of parts of a cache, by their lse."""
    outs, lses = (np.stack(x) for x in zip(*parts, strict=True))
    top = np.where(np.isfinite(lses.max(axis=0)), lses.max(axis=0), 0)
    powers = np.exp(lses - top)
    total = powers.sum(axis=0)
    shares = np.divide(powers, total, out=np.zeros_like(powers), where=total > 0)
    with np.errstate(divide="ignore"):
        return (shares[..., None] * outs).sum(axis=0), top + np.log(total)


# 16: pytorch/pytorch 103082, 108108
@pytest.mark.parametrize("impl", IMPLS)
def test_one_query_over_eight_keys_sees_all_of_them_and_three_see_all_but_their_successors(impl):
    """The mask is aligned at its lower right corner: at the upper left, one query would see one key."""
    given = single(arguments(T=1, S=8))
    assert_close(run(impl, **given), run(impl, **given | {"causal": False}))
    given = single(arguments(T=3, S=8))
    for t in range(3):
        alone = given | {"q": given["q"][:, [t]]} | {name: given[name][:, : 6 + t] for name in CACHE}
        assert_close([x[:, [t]] for x in run(impl, **given)], run("reference", **alone))


# 17: ROCm/aiter PR 3498; flagos-ai/FlagGems 5896; flagos-ai/FlagAttention 45
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("strided", ["q", *CACHE, "k_factor", "v_factor"])
def test_every_array_has_strides_of_its_own(impl, strided):
    """Keys as wide as values and as many latents of both, so that no shape tells that the wrong ones were taken."""
    given = single(arguments(K=4, V=4, R=4, Rv=4))
    x = given[strided]
    wide = np.full((x.shape[0], 2 * x.shape[1], *x.shape[2:-1], x.shape[-1] + 5), np.nan, np.float32)
    wide[:, ::2, ..., 3:-2] = x
    views = given | {strided: wide[:, ::2, ..., 3:-2]}
    assert views[strided].strides != x.strides
    assert_close(run(impl, **views), run(impl, **given))
    turned = given | {strided: np.ascontiguousarray(np.moveaxis(x, 1, -1)[::-1])[::-1]}
    turned[strided] = np.moveaxis(turned[strided], -1, 1)
    assert_close(run(impl, **turned), run(impl, **given))


# 18: vllm-project/vllm PR 47671; sgl-project/sglang 20389
@pytest.mark.parametrize("impl", IMPLS)
def test_no_number_of_tokens_or_positions_wraps_around(impl):
    """Edges in unsigned bytes, of which more queries than tokens are subtracted; positions at the end of 32 bits."""
    given = single(arguments(T=5))
    edges = {"starts": np.array([1, 0]), "ends": np.array([3, 11])}
    want = run("reference", **given, **edges)
    for kind in (np.uint8, np.int8, np.uint64):
        assert_close(run(impl, **given, **{name: x.astype(kind) for name, x in edges.items()}), want)
    last = 2**31 - 12
    turning = {"rope": Rope(np.array([2.0**-20, 2.0**-21]))}  # 2,048 radians
    at = last + 1 + np.arange(11)
    got = run(impl, **given, positions=at.astype(np.int32), **turning)
    assert_close(got, run("reference", **given, positions=at, **turning))
    sizes = {"heads": 32, "head_width": 128, "rank": 54, "tokens": 2**20, "layers": 36, "bytes_each": 2}
    assert accounting.cache_bytes("lrkv", **sizes) == 3712 * 2**20 * 36 * 2 > 2**37


# 20: ml-explore/mlx-lm PR 390; karpathy/nanochat 452; rajveer43/VeloxQuant-MLX PR 463
@pytest.mark.parametrize("impl", IMPLS)
def test_a_window_of_four_is_the_token_itself_and_three_before(impl):
    """In decoding, where a cache is cut to its newest three before it grows, and where starts cut it as it is read."""
    given = arguments(S=9)
    q = normal(0, 8, 2, 9, 6, 8)
    keys = reference.expand(given["k_shared"], given["k_latent"], given["k_factor"])
    values = reference.expand(given["v_shared"], given["v_latent"], given["v_factor"])
    want = dense.attention(q, keys, values, causal=True, window=4)
    cache = FactoredCache(*(given[name].astype(np.float32) for name in ("k_factor", "v_factor")))
    for t in range(9):
        if len(cache) > 3:
            cache.keep(range(1, 4))
        cache.append(*(given[name][:, [t]].astype(np.float32) for name in CACHE))
        assert len(cache) == min(t + 1, 4)
        asked = q[:, [t]].astype(np.float32)
        np.testing.assert_allclose(run(impl, q=asked, **cache.arguments())[0], want[:, [t]], rtol=0, atol=CLOSE)
        cut = {"starts": np.full(2, max(t - 3, 0)), "ends": np.full(2, t + 1)}
        got = run(impl, **single(given | {"q": asked}), **cut)[0]
        np.testing.assert_allclose(got, want[:, [t]], rtol=0, atol=CLOSE)


# none found: this project's own trap, which the paper's text invites (p. 4)
def test_a_learned_factor_does_not_let_a_rotation_pass():
    """Latents turned as if they were coordinates: what a first implementation of the paper would do."""
    made = layer(option="expand")
    naive = rotary.case("latents_turned", heads=6, width=8, rank=4)
    with pytest.raises(ValueError, match="key_factor, times gain, must let rotations pass where tied, missed by"):
        Lrkv(made.weights, Turning("tied", naive.rope, (naive.latent_rope,) * 6))
