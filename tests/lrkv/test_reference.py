"""The reference against the equations, by hand and by other ways to compute them; everything else is tested against it.

EXACT is some hundred roundings of numbers of size 1 to 10 in float64.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from attnlab import dense
from attnlab.lrkv import STILL, Rope, attention, reference, rope, rotary
from tests.lrkv.cases import OPTIONS, arguments, normal, with_option

EXACT = 1e-12
ARRAYS = ("q", "k_shared", "v_shared", "k_latent", "v_latent", "k_factor", "v_factor")


def assert_exact(got, want):
    np.testing.assert_allclose(got, want, rtol=0, atol=EXACT)


def tokens(given, chosen):
    """The same call over some of the tokens in the cache."""
    names = ("k_shared", "v_shared", "k_latent", "v_latent", "k_scale")
    cut = {name: given[name][:, chosen] for name in names if given.get(name) is not None}
    if given.get("positions") is not None:
        cut["positions"] = given["positions"][..., chosen]
    return given | cut


def merged(*parts):
    """(o, lse) of parts of a cache, by their lse."""
    outs, lses = (np.stack(x) for x in zip(*parts, strict=True))
    top = lses.max(axis=0)
    powers = np.exp(lses - np.where(np.isfinite(top), top, 0))
    total = powers.sum(axis=0)
    shares = np.divide(powers, total, out=np.zeros_like(powers), where=total > 0)
    with np.errstate(divide="ignore"):
        return (shares[..., None] * outs).sum(axis=0), np.where(np.isfinite(top), top, 0) + np.log(total)


# -- Eqs. 4-7 --


def test_two_heads_over_two_tokens_by_hand():
    """Eqs. 6-7 (p. 4) with scale 1. Head 0: logits ln 3, 0 by its residual; weights 3/4, 1/4; a V_s = 7, a R = 3, and
    through B = 10: 37. Head 1: ln 2, 0 by what is shared; weights 2/3, 1/3; 20/3, 2, B = -1: 14/3.
    """
    run = reference.trace(
        q=np.array([[[[1.0, 0.0], [0.0, 1.0]]]]),
        k_shared=np.array([[[[0.0, np.log(2)]], [[0.0, 0.0]]]]),
        v_shared=np.array([[[[8.0]], [[4.0]]]]),
        k_latent=np.array([[[[np.log(3)], [5.0]], [[0.0], [7.0]]]]),
        v_latent=np.array([[[[2.0], [3.0]], [[6.0], [0.0]]]]),
        k_factor=np.array([[[1.0], [0.0]], [[1.0], [0.0]]]),
        v_factor=np.array([[[10.0]], [[-1.0]]]),
        scale=1.0,
    )
    assert_exact(run.shared_logits[0, :, 0], [[0, 0], [np.log(2), 0]])
    assert_exact(run.residual_logits[0, :, 0], [[np.log(3), 0], [0, 0]])
    assert_exact(run.weights[0, :, 0], [[3 / 4, 1 / 4], [2 / 3, 1 / 3]])
    assert_exact(run.shared_out.ravel(), [7, 20 / 3])
    assert_exact(run.latent_out.ravel(), [3, 2])
    assert_exact(run.out.ravel(), [37, 14 / 3])
    assert_exact(run.lse.ravel(), [np.log(4), np.log(3)])


def test_keys_and_values_that_are_implied_by_hand():
    """Eqs. 4-5 (p. 3): K_s + R B^T; two groups of two heads each."""
    shared = np.array([[[[1.0, 2.0]], [[3.0, 4.0]]]]).transpose(0, 2, 1, 3)  # [1, 1, 2, 2]
    latent, factor = np.array([[[[1.0], [2.0], [3.0], [4.0]]]]), np.array([[[1.0], [10.0]]] * 4)
    want = [[2.0, 12.0], [3.0, 22.0], [6.0, 34.0], [7.0, 44.0]]
    assert reference.expand(shared, latent, factor)[0, 0].tolist() == want


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("sizes", [{}, {"T": 1}, {"T": 9, "S": 5}, {"G": 1}, {"G": 6}])
def test_factored_reading_is_expanded_reading(option, sizes):
    given = with_option(option, **sizes)
    assert_exact(attention(**given), reference.expanded_attention(**given))


@pytest.mark.parametrize(
    ("option", "rank"),
    [
        (option, rank)
        for option in ("plain", "latent_rope", "expand", "k_scale")
        for rank in (0, 1, 2, 8, 54, 64)
        if rank % 2 == 0 or option != "latent_rope"  # latents that turn lie in planes
    ],
)
def test_at_every_rank_from_none_to_the_width(option, rank):
    given = with_option(option, B=1, T=2, S=5, H=3, G=1, K=64, V=7, R=rank, Rv=rank)
    assert_exact(attention(**given), reference.expanded_attention(**given))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("G", [1, 2, 6])
def test_without_latents_or_with_rank_0_it_is_mqa_gqa_and_mha(G, causal):
    given = arguments(G=G, R=0, Rv=0, causal=causal)
    want = dense.attention(given["q"], given["k_shared"], given["v_shared"], causal=causal)
    assert_exact(attention(**given), want)
    assert_exact(attention(*(given[name] for name in ARRAYS[:3]), causal=causal), want)


@pytest.mark.parametrize("shared", [0.0, 1.0])
def test_with_the_rank_of_the_width_and_b_the_identity_it_is_any_mha(shared):
    """Whatever is shared: the residual of each head is what it lacks."""
    given = arguments(G=1, K=8, V=5, R=8, Rv=5)
    k, v = normal(1, 1, 2, 11, 6, 8), normal(1, 2, 2, 11, 6, 5)
    for name, whole in (("k", k), ("v", v)):
        given[f"{name}_shared"] *= shared
        given[f"{name}_latent"] = whole - given[f"{name}_shared"]
        given[f"{name}_factor"] = np.broadcast_to(np.eye(whole.shape[-1]), (6, *2 * whole.shape[-1:]))
    assert_exact(attention(**given), dense.attention(given["q"], k, v, causal=True))


def test_keys_alone_or_values_alone_may_have_latents():
    for kept, dropped in (("k", "v"), ("v", "k")):
        given = arguments()
        zero = given | {f"{dropped}_latent": np.zeros_like(given[f"{dropped}_latent"])}
        given |= {f"{dropped}_latent": None, f"{dropped}_factor": None}
        assert_exact(attention(**given), attention(**zero))
        assert (
            np.abs(attention(**given) - attention(**given | {f"{kept}_factor": -given[f"{kept}_factor"]})).max() > 0.1
        )


def test_what_a_trace_holds_fits_together():
    given = with_option("k_scale")
    run, (out, lse) = reference.trace(**given), attention(**given, return_lse=True)
    assert np.array_equal(run.out, out)
    assert np.array_equal(run.lse, lse)
    keys = reference.expand(given["k_shared"], given["k_latent"], given["k_factor"])
    logits = np.einsum("bthk,bshk->bhts", given["q"], keys) / np.sqrt(8)
    logits = logits * given["k_scale"].transpose(0, 2, 1)[:, :, None]
    assert_exact(run.shared_logits + run.residual_logits, logits)
    seen = np.broadcast_to(dense.visible(3, 11, causal=True), run.weights.shape)
    assert np.array_equal(run.weights > 0, seen)
    assert_exact(run.weights.sum(axis=-1), 1)
    assert_exact(run.lse, np.log(np.where(seen, np.exp(logits), 0).sum(axis=-1)).transpose(0, 2, 1))
    assert_exact(run.latent_out, np.einsum("bhts,bshr->bthr", run.weights, given["v_latent"]))


# -- positions and norms --


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_a_rotation_is_that_of_the_dense_yardstick(layout):
    x, positions = normal(0, 1, 2, 7, 3, 10), np.arange(4.0, 11.0)
    want = dense.rope(x, positions, layout=layout)
    assert_exact(reference.turn(x, rope(10, layout=layout), positions), want)
    assert_exact(reference.turn(x, rope(10, layout=layout), np.stack([positions, positions])), want)
    assert np.array_equal(reference.turn(x, STILL, positions), x)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("option", ["aligned", "tied", "partial"])
def test_a_cache_turned_as_it_is_read_is_one_turned_as_it_was_written(option, layout):
    """And both are keys made whole, then turned."""
    given = arguments(K=16)
    planes, drawn = np.array([5, 2]), normal(0, 6, 6, 16, 4)
    turning, latent_turning = rope(16, layout=layout), Rope(rope(16).frequency[planes])
    factor = rotary.aligned_factor(6, 16, planes, layout=layout)
    if option == "tied":
        turning, latent_turning = rotary.tied(16, 4, layout=layout)
        factor = rotary.tied_factor(drawn[:, :8, 0], drawn[:, 8:, 0], 4, layout=layout)
    if option == "partial":
        turning, latent_turning, factor = rope(6, layout=layout), STILL, drawn
        factor[:, :6] = 0
    positions = np.sort(normal(0, 7, 1, 11)[0]) * 20
    given["k_factor"] = factor
    read = attention(**given, rope=turning, latent_rope=latent_turning, positions=positions)
    written = given | {
        "k_shared": reference.turn(given["k_shared"], turning, positions),
        "k_latent": reference.turn(given["k_latent"], latent_turning, positions),
    }
    assert_exact(read, attention(**written))
    assert_exact(read, attention(**given, rope=turning, positions=positions))  # expanded as it is read
    whole = reference.turn(reference.expand(given["k_shared"], given["k_latent"], factor), turning, positions)
    values = reference.expand(given["v_shared"], given["v_latent"], given["v_factor"])
    assert_exact(read, dense.attention(given["q"], whole, values, causal=True))


def test_latents_turned_by_planes_that_the_factor_does_not_span_are_another_model():
    """Half of the logits' spread comes from the residual here, and it is turned by other angles."""
    given = with_option("latent_rope", K=16)
    right = attention(**given)
    wrong = attention(**given | {"latent_rope": Rope(given["latent_rope"].frequency[::-1])})
    assert np.abs(wrong - right).max() > 0.01
    given["k_factor"] = normal(0, 6, 6, 16, 4)
    assert np.abs(attention(**given) - attention(**given | {"latent_rope": None})).max() > 0.01


def test_a_residual_without_position_meets_a_query_that_was_not_turned():
    given = arguments()
    q, positions = given["q"], np.arange(11.0)
    turned = reference.turn(q, rope(8), positions[-3:])
    got = attention(**given | {"q": turned, "q_residual": q}, rope=rope(8), latent_rope=STILL, positions=positions)
    keys = reference.turn(given["k_shared"], rope(8), positions)
    assert_exact(got, attention(**given | {"q": turned, "q_residual": q, "k_shared": keys}))
    residual = np.einsum("bshr,hkr->bshk", given["k_latent"], given["k_factor"])
    both = np.concatenate([np.repeat(keys, 3, axis=2), residual], axis=-1)
    values = reference.expand(given["v_shared"], given["v_latent"], given["v_factor"])
    asked = np.concatenate([turned, q], axis=-1)
    assert_exact(got, dense.attention(asked, both, values, causal=True, scale=8**-0.5))


def test_one_number_a_token_and_head_is_an_rms_norm_of_the_sum_and_two_norms_are_not():
    given = arguments()
    keys = reference.expand(given["k_shared"], given["k_latent"], given["k_factor"])
    values = reference.expand(given["v_shared"], given["v_latent"], given["v_factor"])
    normed = dense.attention(given["q"], dense.rms_norm(keys), values, causal=True)
    root = 1 / np.sqrt((keys**2).mean(axis=-1) + 1e-6)
    assert_exact(attention(**given, k_scale=root), normed)
    residual = np.einsum("bshr,hkr->bshk", given["k_latent"], given["k_factor"])
    shared = np.repeat(given["k_shared"], 3, axis=2)
    apart = dense.attention(given["q"], dense.rms_norm(shared) + dense.rms_norm(residual), values, causal=True)
    assert np.abs(apart - normed).max() > 0.01


def test_positions_count_by_their_differences_alone():
    """Angles of 1,000 radians are rounded to 1e-13, and queries and keys are of some units."""
    given = with_option("latent_rope")
    early, late = (
        attention(
            **given
            | {"q": reference.turn(given["q"], given["rope"], offset + np.arange(7.0, 10.0))}
            | {"positions": given["positions"] + offset}
        )
        for offset in (0.0, 1000.0)
    )
    np.testing.assert_allclose(late, early, rtol=0, atol=1e-11)


# -- who sees what --


def test_the_newest_query_stands_at_the_last_key():
    for T, S in ((1, 8), (3, 8), (8, 8), (9, 4)):
        given = arguments(T=T, S=S)
        assert np.array_equal(reference.seen(T, S, None, None, causal=True)[0], dense.visible(T, S, causal=True))
        values = reference.expand(given["v_shared"], given["v_latent"], given["v_factor"])
        keys = reference.expand(given["k_shared"], given["k_latent"], given["k_factor"])
        assert_exact(attention(**given), dense.attention(given["q"], keys, values, causal=True))


@pytest.mark.parametrize("causal", [True, False])
def test_each_row_of_a_ragged_batch_is_what_it_is_alone(causal):
    given = with_option("ragged", B=3, causal=causal)
    out, lse = attention(**given, return_lse=True)
    assert np.isfinite(out).all()
    for b in range(3):
        start, end = given["starts"][b], given["ends"][b]
        alone = {name: given[name][b : b + 1] for name in ARRAYS[:5]} | {n: given[n] for n in ("k_factor", "v_factor")}
        alone = tokens(alone, slice(start, end))
        for got, want in zip((out, lse), attention(**alone, causal=causal, return_lse=True), strict=True):
            assert_exact(got[b], want[0])


@pytest.mark.parametrize("filler", [np.nan, np.inf, -np.inf, 1e308])
@pytest.mark.parametrize("option", ["plain", "k_scale", "latent_rope", "expand", "still"])
def test_what_lies_outside_may_hold_anything(option, filler):
    given = with_option(option) | {"starts": np.array([0, 3]), "ends": np.array([7, 11])}
    want = attention(**given, return_lse=True)
    for name in ("k_shared", "v_shared", "k_latent", "v_latent", "k_scale"):
        if name in given:
            given[name][0, 7:] = given[name][1, :3] = filler
    for got, wanted in zip(attention(**given, return_lse=True), want, strict=True):
        assert np.array_equal(got, wanted)
    assert_exact(reference.expanded_attention(**given), want[0])


def test_a_row_that_is_empty_is_zero_and_minus_infinity():
    given = arguments() | {"starts": np.array([4, 0]), "ends": np.array([4, 11])}
    out, lse = attention(**given, return_lse=True)
    assert not out[0].any()
    assert np.isneginf(lse[0]).all()
    assert np.isfinite(lse[1]).all()


@settings(max_examples=25, deadline=None, derandomize=True)
@drawn(st.lists(st.integers(0, 9), max_size=4), st.sampled_from([o for o in OPTIONS if o != "ragged"]))
def test_parts_of_a_cache_merge_to_the_whole(cuts, option):
    """By their lse, empty parts too: how a long cache is read in splits."""
    given = with_option(option, T=2, S=9, causal=False)
    cuts = [0, *sorted(cuts), 9]
    parts = [attention(**tokens(given, slice(a, b)), return_lse=True) for a, b in itertools.pairwise(cuts)]
    for got, want in zip(merged(*parts), attention(**given, return_lse=True), strict=True):
        assert_exact(got, want)


def test_the_order_of_tokens_is_nothing_where_all_are_seen():
    given = with_option("latent_rope", causal=False)
    order = np.random.default_rng(0).permutation(11)
    assert_exact(attention(**tokens(given, order)), attention(**given))


# -- arrays of any kind --


@pytest.mark.parametrize(
    "sizes",
    [{"B": 0}, {"T": 0}, {"S": 0}, {"T": 0, "S": 0}, {"R": 0}, {"Rv": 0}, {"V": 0}, {"H": 0, "G": 0}, {"K": 0, "R": 0}],
)
@pytest.mark.parametrize("option", [o for o in OPTIONS if o != "ragged"])
def test_axes_of_nothing(option, sizes):
    given = with_option(option, **sizes)
    out, lse = attention(**given, return_lse=True)
    assert out.shape == (*given["q"].shape[:3], given["v_shared"].shape[3])
    assert lse.shape == out.shape[:3]
    assert np.isfinite(out).all()
    assert np.isneginf(lse).all() if "S" in sizes else np.isfinite(lse).all()


@pytest.mark.parametrize("option", OPTIONS)
def test_views_in_any_layout_and_read_only_arrays_give_the_same_and_nothing_is_written(option):
    given = with_option(option)
    want = attention(**given)
    other = dict(given)
    for name, x in given.items():
        if isinstance(x, np.ndarray) and x.ndim == 4:
            wide = np.full((*x.shape[:1], 2 * x.shape[1], *x.shape[2:-1], x.shape[-1] + 3), np.nan)
            wide[:, ::2, :, 1:-2] = x
            other[name] = wide[:, ::2, :, 1:-2]
        elif isinstance(x, np.ndarray):
            other[name] = np.ascontiguousarray(x[::-1])[::-1]
        if isinstance(x, np.ndarray):
            other[name].flags.writeable = False
    assert np.array_equal(attention(**other), want)


def test_it_computes_in_the_precision_asked_for():
    given = with_option("latent_rope")
    exact, low = attention(**given), reference.attention(**given, dtype=np.float32)
    assert (exact.dtype, low.dtype) == (np.float64, np.float32)
    assert 1e-9 < np.abs(low - exact).max() < 1e-5
    half = {name: x.astype(np.float16) if name in ARRAYS else x for name, x in given.items()}
    wide = {name: x.astype(np.float64) if name in ARRAYS else x for name, x in half.items()}
    assert np.array_equal(attention(**half), attention(**wide))


def test_torch_tensors_are_read_in_any_float_type():
    torch = pytest.importorskip("torch", reason="the package torch is not installed")
    given = with_option("k_scale") | {"starts": np.array([0, 2])}
    tensors = {name: torch.tensor(x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    assert np.array_equal(attention(**tensors), attention(**given))
    narrow = {name: x.bfloat16() if name in ARRAYS else x for name, x in tensors.items()}
    wide = {name: x.double() if name in ARRAYS else x for name, x in narrow.items()}
    assert np.array_equal(attention(**narrow), attention(**wide))


def test_large_logits_neither_overflow_nor_lose_the_others():
    given = arguments(T=1)
    given["q"] *= 1e3
    for dtype in (np.float64, np.float32):
        run = reference.trace(**given, dtype=dtype)
        assert np.isfinite(run.lse).all()
        np.testing.assert_allclose(run.weights.sum(axis=-1), 1, rtol=1e-6)
    shifted = reference.softmax(np.array([[1000.0, 1001.0, -1e308]]), np.array([[True, True, False]]))
    assert_exact(shifted[0], [[1 / (1 + np.e), np.e / (1 + np.e), 0]])
    assert_exact(shifted[1], [1000 + np.log(1 + np.e)])


def test_far_positions_are_turned_in_float32_as_exactly_as_near_ones():
    """The angle is taken in float64 before its cosine is rounded: 131,072 radians in float32 would be off by 0.004."""
    x, positions = normal(0, 1, 2, 4, 3, 8), np.array([0.0, 1.0, 1000.0, 131_071.0])
    low = reference.turn(x.astype(np.float32), rope(8), positions)
    assert low.dtype == np.float32
    # each coordinate is two products of rounded numbers, added: 3 roundings of each
    assert np.abs(low - reference.turn(x, rope(8), positions)).max() <= 6 * 2.0**-24 * np.abs(x).max()
