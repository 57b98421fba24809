"""Every fast path reads the reference's tokens, to the last one, and gives its numbers; it refuses the rest.

Sets are compared exactly, outputs to a tolerance that is computed. The Triton room is here where kernels are
interpreted, with fewer cases.
"""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from attnlab import backend, dense, parity
from attnlab.hashattention import Maps, attention, encode, random_maps, reference, select
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
    perceptron,
    selecting,
    single,
)

IMPLS = ("numba", "torch", *(["triton"] if backend.interpreting() else []))  # else nobody is asked for a GPU here
ABSENT = {impl: backend.why_not(impl, "hashattention") for impl in IMPLS}
FAST = [
    pytest.param(
        impl,
        marks=[
            pytest.mark.skipif(bool(why), reason=str(why)),
            *([pytest.mark.interpreted] if impl == "triton" else []),
        ],
    )
    for impl, why in ABSENT.items()
]


@pytest.fixture(scope="module", autouse=True)
def rounded_as_on_a_gpu():
    """Bare, the interpreter takes exact float32 where a GPU takes tf32."""
    if backend.interpreting():
        from attnlab_kernels.testing import interpreter

        interpreter.install()


def some(impl, cases, every=6):
    """All cases, or of an interpreted room each sixth."""
    cases = list(cases)
    return cases[::every] if impl == "triton" else cases


def call(impl, **sizes):
    """The arguments of a call; few queries where each one is interpreted."""
    return arguments(**({"B": 1, "T": 2, "H": 4, "G": 2} if impl == "triton" else {}) | sizes)


def assert_sets(given, impl):
    """The same indices in the same places."""
    got, want = (np.asarray(select(**selecting(given), impl=name)) for name in (impl, "reference"))
    assert got.dtype == np.int64
    assert got.shape == want.shape
    assert np.array_equal(got, want)


def assert_lse(got, exact, low, terms, eps):
    """-inf in the same places, and elsewhere off by no more than float32 is of itself, and rounding."""
    assert got.shape == exact.shape
    empty = np.isneginf(exact)
    assert np.array_equal(np.isneginf(got), empty)
    if not empty.all():
        got, exact, low = (np.asarray(x, np.float64)[~empty] for x in (got, exact, low))
        rounding = eps * np.sqrt(terms) * max(1.0, np.abs(exact).max())
        assert np.abs(got - exact).max() <= 2 * (np.abs(low - exact).max() + rounding)


def assert_same(given, impl, **options):
    """Output and lse, to a tolerance that counts the terms: N of a sum, and K of a logit l, whose rounding counts l^2
    times, since exp makes it relative to a weight.
    """
    runs = [reference.attention(**given, return_lse=True, dtype=kind) for kind in (np.float64, np.float32)]
    got = [np.asarray(x) for x in attention(**given, return_lse=True, impl=impl)]
    S, K = given["k"].shape[1], given["k"].shape[3]
    q, k = np.asarray(given["q"], float), np.repeat(given["k"], given["q"].shape[2] // given["k"].shape[2], axis=2)
    scale = K**-0.5 if given.get("scale") is None else given["scale"]
    logit = scale * np.abs(np.einsum("bthk,bshk->bths", q, np.where(np.isfinite(k), k, 0))).max(initial=0)
    terms, eps = S + int(np.ceil(K * min(logit, 30) ** 2)) + 1, backend.eps(impl)
    seen = parity.compare(got[0], runs[0][0], runs[1][0], terms=terms, dtype=eps, **options)
    assert seen.ok, seen.reason
    assert_lse(got[1], runs[0][1], runs[1][1], terms, eps)
    return got


# -- sets --


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("shared", [True, False])
def test_sets_at_every_edge(impl, shared):
    """With a code for each key/value head, and for each query head."""
    for (n, budget), causal in some(impl, itertools.product(EDGES, (True, False)), every=9):
        T = min(n, 2) if causal else 2
        coded = {} if shared else {"H": 4, "G": 2, "coded": 4}
        given = call(impl, T=T, S=n, **coded, budget=budget, sinks=SINKS, window=WINDOW, causal=causal)
        assert_sets(given, impl)
        assert_same(single(given), impl)


@pytest.mark.parametrize("impl", FAST)
def test_sizes_of_zero_and_of_more_than_there_is_and_fractions(impl):
    sizes = (0, 2, 100, 0.0, 0.3, 1.0)
    for budget, sinks, window in some(impl, itertools.product(sizes, sizes, sizes), every=31):
        assert_sets(arguments(B=1, T=3, S=9, budget=budget, sinks=sinks, window=window), impl)
    for fraction in some(impl, (0.1, 0.29, 1 / 3, 0.7, 0.9999999999999999, np.float32(0.1)), every=3):
        assert_sets(arguments(B=1, T=40, S=40, H=1, G=1, budget=fraction, sinks=0.1, window=fraction), impl)


LONG = [  # T, S, bits, budget, sinks, window: few and many of the keys, codes of a byte, a word, seven words and more
    (2, 511, 3, 1, 0, 0),
    (2, 1500, 8, 2, 4, 7),
    (1, 513, 32, 64, 128, 128),
    (3, 1300, 32, 1, 0, 0),
    (2, 1300, 64, 650, 1, 1),
    (1, 1030, 224, 3, 2, 2),
    (1, 1030, 225, 300, 2, 2),
    (2, 700, 256, 5, 0, 3),
    (1, 600, 300, 40, 3, 0),
    (1, 20_000, 32, 1250, 128, 128),
    (1, 20_000, 5, 7, 0, 0),
    (1, 300_000, 32, 64, 128, 128),
]


@pytest.mark.parametrize("impl", FAST)
def test_long_caches_and_long_codes(impl):
    for T, S, bits, budget, sinks, window in some(impl, LONG[:9], 3) if impl == "triton" else LONG:
        sizes = {"budget": budget, "sinks": sinks, "window": window}
        assert_sets(arguments(B=1, T=T, S=S, H=2, G=1, K=1, V=1, bits=bits, **sizes), impl)


@pytest.mark.parametrize("impl", FAST)
def test_distances_that_a_byte_does_not_hold(impl):
    """Distances 300, 256, 255 and 257: in a byte 256 would be 0 and win."""
    widths = np.array([300, 256, 255, 257] * 10)
    near = reference.pack((np.arange(320) < widths[:, None]).astype(float))[None, :, None]
    query = np.zeros((1, 1, 1, 10), np.uint32)
    for budget in some(impl, range(41), every=13):
        got = np.asarray(select(query, near, budget=budget, sinks=0, window=0, impl=impl)).ravel().tolist()
        assert got == sorted(np.lexsort((np.arange(40), widths))[:budget].tolist())


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("bits", [1, 3])
def test_ties_go_to_the_lowest_index(impl, bits):
    near, query = codes(7, 1, 1, 700, 1, bits=bits), codes(7, 2, 1, 1, 1, bits=bits)
    distance = np.bitwise_count(near[0, :, 0, 0] ^ query[0, 0, 0, 0])
    order = np.lexsort((np.arange(700), distance))
    for budget in some(impl, (1, 2, 63, 64, 65, 350, 511, 699, 700, 701)):
        got = np.asarray(select(query, near, budget=budget, sinks=0, window=0, impl=impl))
        assert got.ravel().tolist() == sorted(order[:budget].tolist())


@pytest.mark.parametrize("impl", FAST)
def test_equal_codes_are_taken_in_the_order_of_tokens(impl):
    near = np.full((1, 900, 1, 2), 7, np.uint32)
    for query in (np.zeros((1, 1, 1, 2), np.uint32), near[:, :1], ~near[:, :1]):
        for budget in some(impl, (1, 64, 600)):
            got = np.asarray(select(query, near, budget=budget, sinks=2, window=3, impl=impl)).ravel().tolist()
            assert got == [0, 1, *range(2, 2 + budget), 897, 898, 899]


@pytest.mark.parametrize("impl", FAST)
def test_neither_a_mask_over_all_codes_nor_another_order_of_bits_changes_anything(impl):
    given = single(call(impl, bits=40))
    want = attention(**given, impl=impl)
    mask, order = codes(9, 1, 1, bits=64), np.argsort(normal(9, 2, 1, 64)[0])
    for turn in (lambda x: x ^ mask, lambda x: reference.pack(reference.unpack(x, 64)[..., order])):
        other = given | {name: turn(given[name]) for name in ("query_codes", "key_codes")}
        assert np.array_equal(attention(**other, impl=impl), want)


# -- outputs --

CASES = [  # B, T, S, H, G, K, V, coded
    (2, 5, 17, 6, 3, 7, 4, 3),
    (1, 1, 40, 4, 1, 64, 64, 4),
    (1, 3, 3, 2, 2, 1, 1, 2),
    (3, 2, 90, 3, 3, 33, 65, 3),
    (1, 7, 260, 2, 1, 128, 128, 1),
    (1, 2, 31, 8, 2, 16, 24, 2),
]


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("causal", [True, False])
def test_outputs_and_denominators_are_the_references(impl, causal):
    for B, T, S, H, G, K, V, coded in some(impl, CASES, every=2):
        for sizes in ({}, {"budget": 0.5, "sinks": 0, "window": 1}):
            given = arguments(B=B, T=T, S=S, H=H, G=G, K=K, V=V, coded=coded, bits=12, causal=causal, **sizes)
            if V == 1:  # of a single number no relative error can be promised
                given["v"] = np.abs(given["v"]) + 1
            assert_same(single(given), impl)


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("scale", [0.0, -0.5, 2.0])
def test_a_scale_of_ones_own(impl, scale):
    assert_same(single(call(impl)) | {"scale": scale}, impl)


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("causal", [True, False])
def test_a_budget_of_all_is_dense_attention(impl, causal):
    given = single(call(impl, causal=causal))
    want = dense.attention(*(given[name] for name in "qkv"), causal=causal)
    for budget, sinks, window in ((17, 0, 0), (1.0, 0, 0), (11, 2, 4), (99, 5, 0), (0, 17, 0)):
        got = attention(**given | {"budget": budget, "sinks": sinks, "window": window}, impl=impl)
        # weights of logits up to 5 and sums of 17 terms in float32, or in two parts of 11 bits
        np.testing.assert_allclose(got, want, rtol=0, atol=100 * backend.eps(impl))


@pytest.mark.parametrize("impl", FAST)
def test_parts_of_a_cache_merge_to_the_whole(impl):
    given = single(call(impl, T=2, S=30, causal=False, budget=1.0))
    whole = attention(**given, return_lse=True, impl=impl)
    for cuts in some(impl, [(0, 30), (0, 0, 11, 30, 30), (0, 1, 2, 29, 30)], every=2):
        parts = [attention(**keys(given, slice(a, b)), return_lse=True, impl=impl) for a, b in itertools.pairwise(cuts)]
        for got, want in zip(merged(*parts), whole, strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=100 * backend.eps(impl))


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("filler", [np.nan, np.inf, -np.inf, 3e38])
def test_what_is_not_selected_is_not_read(impl, filler):
    given = single(call(impl, T=2, S=90, sinks=1, window=1, budget=2))
    unread = np.ones(given["k"].shape[:3], bool)
    for (b, _, h), members in chosen_sets(given).items():
        unread[b, members, h // 2] = False
    spoiled = given | {name: np.where(unread[..., None], np.float32(filler), given[name]) for name in "kv"}
    runs = (attention(**x, return_lse=True, impl=impl) for x in (spoiled, given))
    for got, want in zip(*runs, strict=True):
        assert np.isfinite(want).all()
        assert np.array_equal(got, want)


@pytest.mark.parametrize("impl", FAST)
def test_the_largest_logit_is_that_of_the_set(impl):
    """A key that is not read has a logit of 10,000 and more: subtracting that would leave 0 / 0."""
    given = single(call(impl, T=1, sinks=1, window=1, budget=2))
    unread = sorted(set(range(17)) - {i for members in chosen_sets(given).values() for i in members})
    given["k"][:, unread] = 1e4 * np.sign(given["q"][:, :, ::2])
    out, lse = attention(**given, return_lse=True, impl=impl)
    want, log = reference.attention(**given, return_lse=True)
    np.testing.assert_allclose(out, want, rtol=0, atol=100 * backend.eps(impl))
    np.testing.assert_allclose(lse, log, rtol=0, atol=100 * backend.eps(impl))


@pytest.mark.parametrize("impl", FAST)
def test_large_logits_do_not_overflow(impl):
    given = single(call(impl))
    out, lse = attention(**given, scale=500.0, return_lse=True, impl=impl)
    want, log = reference.attention(**given, scale=500.0, return_lse=True)
    assert np.abs(log).max() > 1000
    assert np.isfinite(out).all()
    # a logit of some thousands is off by some thousandths, and a weight by as much of itself
    np.testing.assert_allclose(lse, log, rtol=50 * backend.eps(impl))
    np.testing.assert_allclose(out, want, rtol=0, atol=0.1)


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize(
    "sizes", [{}, {"S": 0, "T": 2, "causal": False}, {"B": 0}, {"T": 0}, {"T": 0, "S": 0}], ids=str
)
def test_an_empty_set_is_zero_and_minus_infinity_and_axes_may_be_empty(impl, sizes):
    given = single(call(impl, **sizes, budget=0) | {"sinks": 0, "window": 0})
    out, lse = attention(**given, return_lse=True, impl=impl)
    assert out.shape == (*given["q"].shape[:3], 4)
    assert lse.shape == out.shape[:3]
    assert not np.asarray(out).any()
    assert np.isneginf(np.asarray(lse)).all()
    chosen = np.asarray(select(**selecting(given), impl=impl))
    assert chosen.shape == (*lse.shape, 0)
    assert_sets(given | {"budget": 3}, impl)
    assert attention(**given | {"budget": 3}, impl=impl).shape == out.shape


@pytest.mark.parametrize("impl", FAST)
def test_some_queries_read_nothing_and_others_something(impl):
    """A fraction of few tokens is none."""
    given = call(impl, B=1, T=8, S=8, budget=0.2, sinks=0.1, window=0)
    assert_sets(given, impl)
    _, lse = assert_same(single(given), impl)
    assert np.isneginf(lse).any()
    assert np.isfinite(lse).any()


@pytest.mark.parametrize("impl", FAST)
def test_heads_that_share_keys_are_neighbours(impl):
    """h0 h0 h1 h1, with codes of key/value heads and of query heads."""
    for coded in (2, 4):
        given = single(call(impl, H=4, G=2, coded=coded))
        repeated = given | {name: np.repeat(given[name], 2, axis=2) for name in ("k", "v")}
        repeated["key_codes"] = np.repeat(given["key_codes"], 4 // coded, axis=2)
        got, want = (attention(**x, impl=impl) for x in (given, repeated))
        np.testing.assert_allclose(got, want, rtol=0, atol=100 * backend.eps(impl))
        assert_sets(given, impl)


@pytest.mark.parametrize("impl", FAST)
def test_a_row_of_a_batch_and_a_head_are_computed_as_if_alone(impl):
    given = single(call(impl, S=40))
    out = attention(**given, impl=impl)
    for b, h in some(impl, np.ndindex(out.shape[0], out.shape[2]), every=3):
        one = given | {name: given[name][b : b + 1, :, h : h + 1] for name in ("q", "query_codes")}
        one |= {name: given[name][b : b + 1, :, h // 2 : h // 2 + 1] for name in ("k", "v", "key_codes")}
        got = attention(**one, impl=impl)[0, :, 0]
        np.testing.assert_allclose(got, out[b, :, h], rtol=0, atol=100 * backend.eps(impl))


# -- how arrays lie --


@pytest.mark.parametrize("impl", FAST)
def test_read_only_strided_reversed_and_transposed_arrays(impl):
    """Each array by itself, so that none may borrow the strides of another."""
    given = single(call(impl))
    want = attention(**given, impl=impl)
    for name in some(impl, ("k", "v", "q", "query_codes", "key_codes"), every=3):
        for change in (
            lambda x: np.repeat(x, 2, axis=1)[:, ::2],
            lambda x: np.repeat(x, 2, axis=3)[..., ::2],
            lambda x: np.ascontiguousarray(x[:, ::-1])[:, ::-1],
            lambda x: np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2),
            lambda x: np.ascontiguousarray(x.swapaxes(0, 3)).swapaxes(0, 3),
            lambda x: np.broadcast_to(x[:1], x.shape),
        ):
            other = given | {name: change(given[name])}
            other[name].flags.writeable = False
            before = other[name].copy()
            same = np.array_equal(before, given[name])
            plain = want if same else attention(**given | {name: before}, impl=impl)
            got = attention(**other, impl=impl)
            np.testing.assert_allclose(got, plain, rtol=0, atol=100 * backend.eps(impl), err_msg=name)
            assert np.array_equal(other[name], before)


@pytest.mark.parametrize("impl", FAST)
def test_signed_words_are_the_same_words(impl):
    given = single(call(impl, bits=32))
    signed = given | {name: given[name].view(np.int32) for name in ("query_codes", "key_codes")}
    assert np.array_equal(attention(**signed, impl=impl), attention(**given, impl=impl))
    assert np.array_equal(select(**selecting(signed), impl=impl), select(**selecting(given), impl=impl))


@pytest.mark.parametrize("impl", FAST)
def test_other_precisions_go_in(impl):
    given = call(impl)
    want = attention(**given)
    for name in some(impl, ("q", "k", "v"), every=2):
        mixed = single(given) | {name: given[name]}
        np.testing.assert_allclose(attention(**mixed, impl=impl), want, rtol=0, atol=200 * backend.eps(impl))
    half = {name: x.astype(np.float16) if name in "qkv" else x for name, x in given.items()}
    got = attention(**half, impl=impl)
    np.testing.assert_allclose(got, attention(**half), rtol=2**-10, atol=2**-10)  # it may come back in float16


@pytest.mark.parametrize("impl", FAST)
def test_several_threads_may_call_at_once(impl):
    if impl == "triton":
        pytest.skip("the interpreter is one thread")
    given = single(arguments(S=600))
    want = attention(**given, impl=impl)
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(attention, **given, impl=impl) for _ in range(12)]
        assert all(np.array_equal(call.result(), want) for call in calls)


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"budget": 1.5}, "budget must be a whole number of tokens"),
        ({"q": np.full((2, 5, 6, 7), np.nan)}, "q must be finite"),
        ({"key_codes": arguments()["key_codes"][:, 1:]}, "key_codes must be"),
    ],
    ids=lambda x: None if isinstance(x, dict) else x[:9],
)
def test_the_door_refuses_before_any_implementation(impl, change, wanted):
    with pytest.raises(ValueError, match=wanted):
        attention(**arguments() | change, impl=impl)


@pytest.mark.skipif(bool(ABSENT["numba"]), reason=str(ABSENT["numba"]))
def test_numba_refuses_numbers_beyond_float32_by_name_where_they_are_read():
    given = arguments(budget=1.0)
    for name in "qkv":
        with pytest.raises(backend.Unsupported, match=f"{name} has numbers too large"):
            attention(**given | {name: 1e39 * given[name]}, impl="numba")


# -- codes --


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("widths", [(7, 32), (7, 40), (5, 9, 33), (6, 8, 8, 64), (3, 1)], ids=str)
def test_codes_are_the_references_but_where_rounding_decides(impl, widths):
    x, maps = normal(11, 1, 2, 9, 3, widths[0]).astype(np.float32), perceptron(3, *widths)
    maps = Maps(*(tuple(layer.astype(np.float32) for layer in part) for part in maps))
    got, number = np.asarray(encode(x, maps, impl=impl)), reference.features(x, maps)
    assert got.shape == (2, 9, 3, -(-widths[-1] // 32))
    bits = reference.unpack(got, 32 * got.shape[-1])
    assert not bits[..., widths[-1] :].any()
    # a layer's sums are off by eps sqrt(terms) of their size; numbers are some units large and layers four at most
    clear = np.abs(number) > 1000 * backend.eps(impl)
    assert clear.mean() > 0.99
    assert np.array_equal(bits[..., : widths[-1]][clear], (number > 0)[clear])


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_a_zero_of_either_sign_is_no_bit(impl, zero):
    """Of a sum that is exactly 0, and of a bias of -0.0 alone."""
    maps = Maps((np.zeros((2, 3, 35)),), (np.full((2, 35), zero),))
    for x in (np.ones((1, 4, 2, 3)), -np.ones((1, 4, 2, 3)), np.zeros((1, 4, 2, 3))):
        assert not np.asarray(encode(x, maps, impl=impl)).any()
    cancel = Maps((np.tile([[[1.0], [-1.0], [0.0]]], (2, 1, 35)),), (np.zeros((2, 35)),))
    assert not np.asarray(encode(np.ones((1, 4, 2, 3)), cancel, impl=impl)).any()


@pytest.mark.parametrize("impl", FAST)
def test_a_number_that_overflows_to_nan_is_no_bit(impl):
    """3e38 squared is inf in float32, and 0 times inf is NaN; in float64 it is 0."""
    maps = Maps((np.array([[[3e38]]]), np.zeros((1, 1, 40))), (np.zeros((1, 1)), np.zeros((1, 40))))
    with np.errstate(all="ignore"):
        assert not np.asarray(encode(np.full((1, 5, 1, 1), 3e38), maps, impl=impl)).any()


@pytest.mark.parametrize("impl", FAST)
def test_codes_of_no_token_and_of_any_layout(impl):
    maps = random_maps(40, 3, 7)
    for shape in ((0, 4, 3, 7), (2, 0, 3, 7)):
        assert np.asarray(encode(np.zeros(shape, np.float32), maps, impl=impl)).shape == (*shape[:3], 2)
    x = normal(12, 1, 2, 4, 3, 7).astype(np.float32)
    want = np.asarray(encode(x, maps, impl=impl))
    turned = np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)
    turned.flags.writeable = False
    assert np.array_equal(np.asarray(encode(turned, maps, impl=impl)), want)
    out = attention(x, x, x, want, want, budget=2, sinks=0, window=1, impl=impl)  # codes go on to where they are used
    assert as_sets(select(want, want, budget=2, sinks=0, window=1, impl=impl))[0, 0, 0] == [0]
    assert np.isfinite(out).all()
