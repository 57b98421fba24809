"""A cache in factors holds what was appended and not dropped, at the positions it was written, whatever happened."""

import itertools

import numpy as np
import pytest

from attnlab.arrays import as_numpy
from attnlab.lrkv import Rope, attention, reference, rope, rotary
from attnlab.lrkv.cache import PARTS, FactoredCache
from tests.lrkv.cases import arguments, normal, with_option

B, S, H, G, K, V, R, RV = 2, 11, 6, 2, 8, 5, 4, 7
KINDS = ("numpy", "torch")


def parts(S=S, *, kind="numpy", k_scale=True, seed=0):
    """What S tokens append."""
    given = with_option("k_scale", S=S, seed=seed)
    made = {name: given[name] for name in PARTS if name != "k_scale" or k_scale}
    return made if kind == "numpy" else {name: pytest.importorskip("torch").tensor(x) for name, x in made.items()}


def of(made, chosen):
    return {name: x[:, chosen] for name, x in made.items()}


def factors(kind="numpy"):
    given = arguments()
    both = given["k_factor"], given["v_factor"]
    return both if kind == "numpy" else tuple(pytest.importorskip("torch").tensor(x) for x in both)


def cache_of(*pieces, kind="numpy"):
    cache = FactoredCache(*factors(kind))
    for piece in pieces:
        cache.append(**piece)
    return cache


def state(cache):
    """All that a cache says of itself."""
    held = {name: as_numpy(x).copy() for name, x in cache.arguments().items()} if cache.elements else {}
    return held | {"positions": cache.positions.copy(), "next": cache.next_position, "length": len(cache)}


def assert_same(got, want):
    assert got.keys() == want.keys()
    for name in want:
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)


# -- what is held --


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cuts", [(), (1,), (0, 5, 5), (3, 4, 9, 11), tuple(range(1, S))], ids=str)
def test_any_cut_holds_the_whole(cuts, kind):
    made = parts(kind=kind)
    cache = cache_of(*(of(made, slice(a, b)) for a, b in itertools.pairwise((0, *cuts, S))), kind=kind)
    held = cache.arguments()
    assert held.keys() == {*PARTS, "k_factor", "v_factor"}
    for name, x in made.items():
        assert type(held[name]) is type(x)
        assert held[name].dtype == x.dtype
        np.testing.assert_array_equal(held[name], x)
    assert cache.positions.tolist() == list(range(S))
    assert (len(cache), cache.next_position) == (S, S)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_read_as_the_arguments_of_attention(kind):
    q = normal(0, 1, B, 1, H, K)
    made = parts(kind=kind)
    want = attention(q, *(made[name] for name in tuple(PARTS)[:4]), *factors(), k_scale=made["k_scale"])
    np.testing.assert_array_equal(attention(q, **cache_of(made, kind=kind).arguments()), want)


def test_without_latents_it_is_a_cache_of_mqa_gqa_or_mha():
    made = parts()
    cache = FactoredCache()
    cache.append(made["k_shared"], made["v_shared"])
    assert cache.arguments().keys() == {"k_shared", "v_shared"}
    assert cache.elements == B * S * G * (K + V)


@pytest.mark.parametrize("kind", KINDS)
def test_elements_and_bytes_are_those_of_every_part_in_its_type(kind):
    cache = cache_of(parts(kind=kind), kind=kind)
    assert cache.elements == B * S * (G * K + G * V + H * R + H * RV + H)
    assert cache.cache_bytes == 8 * cache.elements
    narrow = parts(k_scale=False)
    narrow = {name: x.astype(np.float16) for name, x in narrow.items()}
    cache = cache_of(narrow, of(narrow, slice(0, 3)))  # with room to spare
    assert cache.cache_bytes == 2 * cache.elements == 2 * B * (S + 3) * (G * (K + V) + H * (R + RV))
    assert cache_of().elements == cache_of().cache_bytes == 0


# -- what is dropped --


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", [0, 4, 10, S])
def test_a_cut_cache_is_the_one_that_never_had_the_tokens(cut, kind):
    made, other = parts(kind=kind), parts(5, seed=3, kind=kind)
    cache = cache_of(made, kind=kind)
    cache.truncate(cut)
    assert_same(state(cache), state(cache_of(of(made, slice(0, cut)), kind=kind)))
    cache.append(**other)
    assert_same(state(cache), state(cache_of(of(made, slice(0, cut)), other, kind=kind)))


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_that_stay_keep_their_positions_and_the_next_follows_the_newest_that_was(kind):
    made, other = parts(kind=kind), parts(2, seed=3, kind=kind)
    cache = cache_of(made, kind=kind)
    cache.keep([0, 1, 7, 9])
    for name, x in made.items():
        np.testing.assert_array_equal(cache.arguments()[name], x[:, [0, 1, 7, 9]])
    assert cache.positions.tolist() == [0, 1, 7, 9]
    cache.append(**other)
    assert cache.positions.tolist() == [0, 1, 7, 9, 11, 12]
    cache.keep(np.array([1, 4, 5]))
    assert cache.positions.tolist() == [1, 11, 12]
    assert cache.next_position == 13


def test_a_draft_refused_after_an_eviction_gives_its_positions_back():
    """Tokens 5 to 10 go, three are drafted at 11, 12, 13, two of them refused: the next one stands at 12."""
    cache = cache_of(parts())
    cache.keep(range(5))
    cache.append(**parts(3, seed=1))
    cache.truncate(6)
    assert cache.positions.tolist() == [0, 1, 2, 3, 4, 11]
    assert cache.next_position == 12
    cache.truncate(6)
    assert cache.next_position == 12


def test_none_may_stay_and_all_may():
    cache = cache_of(parts())
    before = state(cache)
    cache.keep(range(S))
    assert_same(state(cache), before)
    cache.keep([])
    assert (len(cache), cache.next_position, cache.positions.tolist()) == (0, S, [])
    cache.append(**parts(1))
    assert cache.positions.tolist() == [S]


def test_of_an_empty_cache_nothing_is_dropped():
    cache = cache_of()
    cache.truncate(0)
    cache.keep([])
    cache.append(**parts())
    assert cache.positions.tolist() == list(range(S))


def test_after_a_reset_anything_that_fits_the_factors_may_come():
    cache = cache_of(parts())
    cache.reset()
    assert (len(cache), cache.next_position) == (0, 0)
    cache.append(**{name: x[:1].astype(np.float32) for name, x in parts(3, k_scale=False).items()})
    assert cache.arguments()["k_shared"].shape == (1, 3, G, K)
    assert cache.arguments()["k_shared"].dtype == np.float32
    assert cache.positions.tolist() == [0, 1, 2]


def test_no_tokens_may_be_appended_first_between_and_last():
    none, made = parts(0), parts()
    cache = cache_of(none, of(made, slice(0, 3)), none, of(made, slice(3, S)), none)
    assert_same(state(cache), state(cache_of(made)))


def test_what_was_appended_may_change_afterwards():
    made = parts()
    cache = cache_of(made)
    want = state(cache)
    for x in made.values():
        x[:] = np.nan
    assert_same(state(cache), want)


# -- positions --


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_a_cache_kept_unturned_is_read_with_its_positions_whatever_was_dropped(layout):
    """As if turned when written: the gap that dropped tokens leave stays a gap."""
    turning, planes = rope(K, layout=layout), np.array([1, 3])
    latent_turning = Rope(turning.frequency[planes])
    factor, v_factor = rotary.aligned_factor(H, K, planes, layout=layout), factors()[1]
    unturned, turned = FactoredCache(factor, v_factor), FactoredCache(factor, v_factor)
    for made in (parts(k_scale=False), parts(1, seed=1, k_scale=False), parts(2, seed=2, k_scale=False)):
        at = unturned.next_position + np.arange(made["k_shared"].shape[1])
        unturned.append(**made)
        written = {
            "k_shared": reference.turn(made["k_shared"], turning, at),
            "k_latent": reference.turn(made["k_latent"], latent_turning, at),
        }
        turned.append(**made | written)
        for cache in (unturned, turned):
            cache.keep([0, 1, *range(4, len(cache))])
    q = reference.turn(normal(0, 1, B, 1, H, K), turning, [unturned.next_position - 1])
    got = attention(q, **unturned.arguments(rope=turning, latent_rope=latent_turning))
    np.testing.assert_allclose(got, attention(q, **turned.arguments()), rtol=0, atol=1e-12)
    np.testing.assert_allclose(got, attention(q, **unturned.arguments(rope=turning)), rtol=0, atol=1e-12)
    closed_up = unturned.arguments(rope=turning, latent_rope=latent_turning) | {"positions": np.arange(len(unturned))}
    assert np.abs(attention(q, **closed_up) - got).max() > 1e-3  # positions counted anew among those that stayed


# -- what is refused --


def changed(**change):
    return {name: x for name, x in (parts(2, seed=5) | change).items() if x is not ...}


REFUSED = [
    (changed(k_shared=None), ValueError, "k_shared must be given, got None"),
    (changed(v_shared=None), ValueError, "v_shared must be given, got None"),
    (changed(k_latent=None), ValueError, "k_latent must be given, for the cache has its factor"),
    (changed(v_latent=None), ValueError, "v_latent must be given, for the cache has its factor"),
    (changed(k_scale=None), ValueError, "k_scale must be given as for earlier tokens"),
    (changed(k_shared=np.ones((B, 2, G))), ValueError, "k_shared must be [B, S, G, K], got 3 axes of sizes (2, 2, 2)"),
    (
        changed(k_shared=np.ones((B, 2, G, 9))),
        ValueError,
        "[B, S, G, K] with K = 8 as in earlier tokens, got (2, 2, 2, 9)",
    ),
    (changed(v_shared=np.ones((B, 3, G, V))), ValueError, "[B, S, G, V] with S = 2 as in k_shared, got (2, 3, 2, 5)"),
    (changed(v_shared=np.ones((B, 2, 3, V))), ValueError, "with G = 2 as in earlier tokens, got (2, 2, 3, 5)"),
    (changed(k_latent=np.ones((1, 2, H, R))), ValueError, "with B = 2 as in earlier tokens, got (1, 2, 6, 4)"),
    (
        changed(v_latent=np.ones((B, 2, H, R))),
        ValueError,
        "[B, S, H, Rv] with Rv = 7 as in earlier tokens, got (2, 2, 6, 4)",
    ),
    (
        changed(k_scale=np.ones((B, 2, 5))),
        ValueError,
        "k_scale must be [B, S, H] with H = 6 as in earlier tokens, got",
    ),
    (changed(v_latent=np.full((B, 2, H, RV), np.nan)), ValueError, "v_latent must be finite, got nan at [0, 0, 0, 0]"),
    (changed(v_latent=np.ones((B, 2, H, RV), int)), TypeError, "v_latent must hold real floating-point numbers, got"),
]


@pytest.mark.parametrize(("piece", "kind", "words"), REFUSED, ids=[words[:24] for _, _, words in REFUSED])
def test_after_an_error_the_cache_is_as_it_was(piece, kind, words):
    cache = cache_of(parts())
    before = state(cache)
    with pytest.raises(kind) as caught:
        cache.append(**piece)
    assert words in str(caught.value)
    assert_same(state(cache), before)
    cache.append(**parts(1, seed=1))
    assert len(cache) == S + 1


def test_a_first_piece_that_is_refused_leaves_an_empty_cache():
    cache = cache_of()
    with pytest.raises(ValueError, match="v_latent must be finite"):
        cache.append(**parts() | {"v_latent": np.full((B, S, H, RV), np.inf)})
    assert len(cache) == 0
    one_row = {name: x[:1] for name, x in parts(3, k_scale=False).items()}
    cache.append(**one_row)
    assert cache.arguments()["k_shared"].shape == (1, 3, G, K)


def test_lists_of_numbers_are_arrays_too():
    """Converted before anything is appended, so that no part is longer than another."""
    made = parts(k_scale=False)
    cache = cache_of(made | {"v_shared": made["v_shared"].tolist()})
    assert_same(state(cache), state(cache_of(made)))


def test_an_array_and_a_tensor_do_not_mix_and_a_gradient_is_not_lost():
    torch = pytest.importorskip("torch", reason="the package torch is not installed")
    cache = cache_of(parts())
    with pytest.raises(
        TypeError, match="k_shared must be float64 in an array on cpu as earlier ones, got float64 in a tensor on cpu"
    ):
        cache.append(**parts(1, kind="torch"))
    cache = cache_of(kind="torch")
    made = parts(1, kind="torch")
    made["k_latent"] = torch.nn.Parameter(made["k_latent"])
    with pytest.raises(ValueError, match="k_latent must not require a gradient, which a cache would lose; detach it"):
        cache.append(**made)
    assert len(cache) == 0


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda cache: cache.truncate(S + 1), "n must lie in [0, 11], got 12"),
        (lambda cache: cache.truncate(-1), "n must lie in [0, 11], got -1"),
        (lambda cache: cache.truncate(1.5), "n must be a whole number in [0, 11], got 1.5"),
        (lambda cache: cache.keep([3, 3]), "index must rise within [0, 11), got [3, 3]"),
        (lambda cache: cache.keep([4, 2]), "index must rise within [0, 11), got [4, 2]"),
        (lambda cache: cache.keep([0, 11]), "index must rise within [0, 11), got [0, 11]"),
        (lambda cache: cache.keep([-1, 2]), "index must rise within [0, 11), got [-1, 2]"),
        (lambda cache: cache.keep([0.5]), "index must be whole numbers [N], got float64 of shape (1,)"),
        (lambda cache: cache.keep([[0]]), "index must be whole numbers [N], got int64 of shape (1, 1)"),
        (lambda cache: cache.keep([True]), "index must be whole numbers [N], got bool of shape (1,)"),
    ],
    ids=range(10),
)
def test_what_cannot_be_dropped_is_named_and_nothing_is(act, words):
    cache = cache_of(parts())
    before = state(cache)
    with pytest.raises(ValueError, match="must") as caught:
        act(cache)
    assert words in str(caught.value)
    assert_same(state(cache), before)


def test_factors_are_checked_when_they_are_given_and_an_empty_cache_is_not_read():
    k_factor, v_factor = factors()
    with pytest.raises(ValueError, match=r"v_factor must be \[H, V, Rv\] with H = 6 as in k_factor, got \(5, 5, 7\)"):
        FactoredCache(k_factor, v_factor[:5])
    with pytest.raises(ValueError, match="k_factor must be finite"):
        FactoredCache(k_factor * np.nan)
    with pytest.raises(ValueError, match="the cache must have been appended to before it is read, got none so far"):
        FactoredCache().arguments()
    with pytest.raises(ValueError, match="k_latent must be None, for the cache has no factor of it"):
        FactoredCache().append(**parts(k_scale=False))
    cache = FactoredCache(k_factor, v_factor)
    cache.append(**parts(k_scale=False))
    with pytest.raises(ValueError, match="k_scale must be None as for earlier tokens"):
        cache.append(**parts())


@pytest.mark.parametrize("room", [1, 9], ids=["it has to grow", "there is room"])
@pytest.mark.parametrize(("old", "new"), [(np.float64, np.float32), (np.float16, np.float32)])
def test_tokens_of_another_type_are_refused_whether_or_not_there_is_room(room, old, new):
    cache = FactoredCache()
    given = [x.astype(old) for x in (arguments(S=room)["k_shared"], arguments(S=room)["v_shared"])]
    cache.append(*given)
    cache.truncate(1)
    with pytest.raises(TypeError, match=f"v_shared must be {np.dtype(old)} in an array on cpu as earlier ones, got"):
        cache.append(given[0][:, :1], np.full_like(given[1][:, :1], 1, dtype=new))
    assert len(cache) == 1
    assert {x.dtype for x in cache.arguments().values()} == {np.dtype(old)}


def test_arrays_and_tensors_do_not_mix():
    torch = pytest.importorskip("torch", reason="the package torch is not installed")
    given = arguments()
    with pytest.raises(TypeError, match="v_shared must be an array on cpu as k_shared, got a tensor on cpu"):
        FactoredCache().append(given["k_shared"], torch.from_numpy(given["v_shared"]))


def test_a_rotation_of_latents_alone_is_not_dropped():
    cache = FactoredCache()
    cache.append(arguments()["k_shared"], arguments()["v_shared"])
    with pytest.raises(ValueError, match="latent_rope must be None where rope is, got one"):
        cache.arguments(latent_rope=rope(4))
