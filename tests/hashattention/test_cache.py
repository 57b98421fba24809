"""The codes of a cache are those of its keys, however these came and whatever was rolled back."""

import itertools

import numpy as np
import pytest

from attnlab import backend
from attnlab.growing import Growing
from attnlab.hashattention import Maps, attention, encode, random_maps
from attnlab.hashattention.cache import CodeCache

B, S, G, K, BITS = 2, 11, 2, 6, 40
MAPS = random_maps(BITS, G, K, seed=3)
KEYS = np.random.default_rng(1).standard_normal((B, S, G, K))
IMPLS = [name for name in ("reference", "numba", "torch") if backend.why_not(name, "hashattention") is None]


def given(impl):
    if impl != "torch":
        return KEYS
    return pytest.importorskip("torch").from_numpy(KEYS)


def cache_of(*parts, impl="reference"):
    cache = CodeCache(MAPS, impl=impl)
    for part in parts:
        cache.append(part)
    return cache


# -- the codes are those of the keys --


@pytest.mark.parametrize("cuts", [(), (1,), (0, 5, 5), (3, 4, 9, 11), tuple(range(1, S))], ids=str)
@pytest.mark.parametrize("impl", IMPLS)
def test_any_cut_gives_the_codes_of_the_whole(impl, cuts):
    k = given(impl)
    cache = cache_of(*(k[:, start:end] for start, end in itertools.pairwise((0, *cuts, S))), impl=impl)
    assert len(cache) == S
    whole = encode(k, MAPS, impl=impl)
    assert cache.codes.dtype == whole.dtype
    assert type(cache.codes) is type(whole)
    assert cache.codes.shape == (B, S, G, 2)
    assert (cache.codes == whole).all()


@pytest.mark.parametrize("impl", IMPLS)
def test_only_new_keys_are_encoded(impl, monkeypatch):
    room, seen = backend.load(impl, "hashattention"), []
    once = room.encode
    monkeypatch.setattr(room, "encode", lambda x, *rest, **more: seen.append(x.shape[1]) or once(x, *rest, **more))
    k = given(impl)
    cache_of(k[:, :8], k[:, 8:9], k[:, 9:], impl=impl)
    assert seen == [8, 1, 2]


def test_rows_of_a_batch_have_codes_of_their_own():
    both, alone = cache_of(KEYS), cache_of(KEYS[1:])
    assert np.array_equal(both.codes[1:], alone.codes)
    assert not np.array_equal(both.codes[:1], alone.codes)


@pytest.mark.parametrize("cut", [0, 4, S])
def test_what_is_cut_off_was_never_appended(cut):
    other = -KEYS[:, ::-1]
    cache = cache_of(KEYS)
    cache.truncate(cut)
    assert np.array_equal(cache.codes, cache_of(KEYS[:, :cut]).codes)
    cache.append(other[:, :5])
    cache.append(other[:, 5:])
    assert np.array_equal(cache.codes, cache_of(KEYS[:, :cut], other).codes)


def test_after_a_reset_another_batch_begins():
    cache = cache_of(KEYS)
    cache.reset()
    assert len(cache) == 0
    assert cache.codes.shape == (0, 0, G, 2)
    cache.append(KEYS[:1])
    assert np.array_equal(cache.codes, cache_of(KEYS[:1]).codes)


def test_no_tokens_are_fine_first_and_later():
    cache = cache_of(KEYS[:, :0], KEYS[:, :3], KEYS[:, :0])
    assert np.array_equal(cache.codes, cache_of(KEYS[:, :3]).codes)
    assert cache_of(KEYS[:, :0]).codes.shape == (B, 0, G, 2)
    with pytest.raises(ValueError, match="B = 2 as in earlier keys"):  # no token, but a batch
        cache_of(KEYS[:, :0], KEYS[:1])


def test_a_map_for_each_query_head_gives_it_a_code_of_the_key_it_reads():
    maps = random_maps(BITS, 2 * G, K, seed=4)
    cache = CodeCache(maps)
    cache.append(KEYS[:, :7])
    cache.append(KEYS[:, 7:])
    assert np.array_equal(cache.codes, encode(KEYS[:, :, [0, 0, 1, 1]], maps))


def test_attention_reads_by_the_codes_of_a_cache():
    v, queries = KEYS[..., :3] + 1, KEYS[:, -1:]
    query_codes = encode(queries, MAPS)
    options = {"budget": 3, "sinks": 1, "window": 1}
    o = attention(queries, KEYS, v, query_codes, cache_of(KEYS[:, :6], KEYS[:, 6:]).codes, **options)
    assert np.array_equal(o, attention(queries, KEYS, v, query_codes, encode(KEYS, MAPS), **options))


# -- the room --


def test_the_room_doubles_and_stays_when_tokens_are_cut_off():
    rows, rooms = Growing(), []
    for n in range(33):
        rows.append(np.full((1, 1), n))
        rooms.append(rows._room.shape[1])
    assert sorted(set(rooms)) == [1, 2, 4, 8, 16, 32, 64]
    rows.truncate(2)
    rows.append(np.full((1, 3), 9))
    assert rows.view.tolist() == [[0, 1, 9, 9, 9]]
    assert rows._room.shape[1] == 64


def test_it_grows_along_another_axis():
    rows = Growing(axis=2)
    rows.append(KEYS[:, :, :1])
    rows.append(KEYS[:, :, 1:])
    assert np.array_equal(rows.view, KEYS)
    rows.reset()
    assert rows.view is None


# -- errors --


@pytest.mark.parametrize(
    ("k", "error", "words"),
    [
        (KEYS[:1], ValueError, r"k must be \[B, T, G, K\] with B = 2 as in earlier keys, got \(1, 11, 2, 6\)"),
        (KEYS[:, :, :1], ValueError, "k must be .* with G = 2 as in earlier keys"),
        (KEYS[..., :5], ValueError, "k must be .* with K = 6 as in maps"),
        (KEYS[0], ValueError, r"k must be \[B, T, G, K\], got 3 axes"),
        (KEYS.astype(int), TypeError, "k must hold real floating-point numbers, got dtype int64"),
        (np.where(KEYS > 2, np.nan, KEYS), ValueError, "k must be finite, got nan at"),
    ],
)
def test_keys_that_do_not_fit_are_refused_and_leave_the_cache_as_it_was(k, error, words):
    cache = cache_of(KEYS)
    with pytest.raises(error, match=words):
        cache.append(k)
    assert np.array_equal(cache.codes, cache_of(KEYS).codes)


def test_keys_of_another_kind_are_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="k must be an array on cpu as earlier keys, got a tensor on cpu"):
        cache_of(KEYS, torch.from_numpy(KEYS))


def test_heads_that_do_not_divide_those_of_the_maps_are_refused():
    with pytest.raises(ValueError, match="k must have a number of heads that divides the 2 of maps, got 3"):
        cache_of(np.concatenate([KEYS, KEYS[:, :, :1]], axis=2))


@pytest.mark.parametrize(("n", "words"), [(12, r"n must lie in \[0, 11\], got 12"), (-1, "n must lie"), (2.5, "whole")])
def test_a_cut_beyond_the_end_is_refused(n, words):
    with pytest.raises(ValueError, match=words):
        cache_of(KEYS).truncate(n)


@pytest.mark.parametrize("maps", [None, MAPS.weights, Maps((), ()), Maps((KEYS[0, 0],), MAPS.biases)])
def test_maps_that_are_none_are_refused_at_once(maps):
    with pytest.raises(ValueError, match="maps"):
        CodeCache(maps)


def test_an_implementation_is_asked_for_by_name():
    with pytest.raises(ValueError, match="impl must be one of 'reference'"):
        CodeCache(MAPS, impl="fast")
