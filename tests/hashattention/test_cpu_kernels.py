"""The kernels for the CPU: both ways to choose, at every kind of code and every edge, and what threads may change."""

import numpy as np
import pytest

pytest.importorskip("numba", reason="the package numba is not installed; get it with: pip install numba")

import itertools

from attnlab import hashattention
from attnlab.hashattention import Maps, cpu_kernels, numba_impl, reference, scan
from attnlab.lanes import address, aligned, compiled

BITS = (1, 31, 32, 33, 64, 65, 128, 130, 190, 224, 225, 300, 512, 700)  # each way to measure a distance
EPS = 2.0**-23


def random(seed):
    return np.random.default_rng(seed)


def codes(seed, bits, *shape, near=0.3):
    """Codes around one of theirs: each bit is turned with this probability, so that distances spread and tie."""
    middle, turned = random([seed, bits]).random(bits) < 0.5, random(seed).random((*shape, bits)) < near
    return reference.pack((middle ^ turned).astype(float))


def call(seed, bits, S, T=2, **sizes):
    sizes = {"budget": 9, "sinks": 3, "window": 5, "causal": True} | sizes
    return codes(seed, bits, 1, T, 2), codes(seed + 1, bits, 1, S, 1), sizes


# -- choosing --


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(
    ("S", "budget", "streams"),
    [(5000, 9, True), (5000, 300, False), (4097, 2, True), (130, 60, False), (64, 64, False), (2, 1, False)],
)
def test_streaming_and_counting_choose_what_a_stable_sort_does(bits, S, budget, streams):
    query, keys, sizes = call(S + bits, bits, S, budget=budget)
    planned = cpu_kernels.Call(query, keys, **sizes)
    assert (planned.listed > 0) == streams
    got = cpu_kernels.select(query, keys, **sizes, threads=1)
    np.testing.assert_array_equal(got, reference.select(query, keys, **sizes))


@pytest.mark.parametrize("bits", [1, 32, 64, 300])
@pytest.mark.parametrize("budget", [1, 7, 1500])
def test_equal_codes_are_taken_in_the_order_of_tokens(bits, budget):
    keys = np.tile(codes(0, bits, 1, 1, 1), (1, 4000, 1, 1))
    query = codes(1, bits, 1, 1, 1)
    got = cpu_kernels.select(query, keys, budget=budget, sinks=2, window=3, causal=True, threads=1)
    assert got[0, 0, 0].tolist() == [*range(2 + budget), 3997, 3998, 3999]


@pytest.mark.parametrize("sizes", [{"sinks": 0, "window": 0}, {"sinks": 40, "window": 40}, {"budget": 0},
                                   {"budget": 0, "sinks": 0, "window": 0}, {"budget": 0.25, "causal": False},
                                   {"budget": 10**6}])  # fmt: skip
@pytest.mark.parametrize("S", [2, 3, 41, 79, 80, 81, 129])
def test_edges_of_sets(S, sizes):
    query, keys, sizes = call(S, 32, S, **sizes)
    got = cpu_kernels.select(query, keys, **sizes, threads=1)
    np.testing.assert_array_equal(got, reference.select(query, keys, **sizes))


def test_codes_of_heads_in_one_piece_are_told_apart():
    query, keys = codes(3, 40, 2, 3, 4), codes(4, 40, 2, 500, 2)
    by_heads = np.ascontiguousarray(keys.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    sizes = {"budget": 20, "sinks": 1, "window": 2, "causal": True}
    expected = reference.select(query, keys, **sizes)
    for layout in (keys, by_heads):
        np.testing.assert_array_equal(cpu_kernels.select(query, layout, **sizes, threads=2), expected)


# -- attending --


def attend(q, k, v, *codes, scale, threads=1, **sizes):
    q = (scale * cpu_kernels.LOG2E * q.astype(float)).astype(np.float32)
    return cpu_kernels.attention(q, k, v, *codes, threads=threads, **sizes)


def close(got, exact, terms):
    """Rounding of sums of so many terms, relative to the largest output; three times what is usual."""
    np.testing.assert_allclose(got, exact, rtol=0, atol=3 * EPS * terms**0.5 * np.abs(exact).max(initial=1))


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("sizes", [{}, {"budget": 700}, {"budget": 10**6}, {"budget": 0},
                                   {"budget": 0, "sinks": 0, "window": 0}])  # fmt: skip
@pytest.mark.parametrize(("S", "K", "V"), [(1, 3, 5), (63, 8, 1), (64, 1, 8), (1000, 37, 107), (1500, 64, 40)])
def test_one_query_is_the_same_from_any_number_of_threads(S, K, V, sizes, threads, monkeypatch):
    monkeypatch.setattr(cpu_kernels, "LONG", 1)
    query, keys, sizes = call(S, 32, S, T=1, **sizes)
    q, k, v = (random([S, i]).normal(size=x).astype(np.float32) for i, x in
               enumerate([(1, 1, 2, K), (1, S, 1, K), (1, S, 1, V)]))  # fmt: skip
    out, lse = attend(q, k, v, query, keys, scale=0.7, threads=threads, **sizes)
    exact, exact_lse = reference.attention(q, k, v, query, keys, scale=0.7, return_lse=True, **sizes)
    close(out, exact, K + S)
    np.testing.assert_array_equal(np.isinf(lse), np.isinf(exact_lse))
    close(np.where(np.isinf(lse), 0, lse), np.where(np.isinf(exact_lse), 0, exact_lse), K + S)


def test_large_logits_neither_overflow_nor_vanish():
    query, keys, sizes = call(1, 32, 400, T=1, budget=100)
    q, k = (random(i).normal(size=x).astype(np.float32) for i, x in enumerate([(1, 1, 2, 16), (1, 400, 1, 16)]))
    v = random(2).normal(size=(1, 400, 1, 4)).astype(np.float32)
    for scale in (300.0, -300.0):
        out = attend(q, k, v, query, keys, scale=scale, threads=1, **sizes)[0]
        low = reference.attention(q, k, v, query, keys, scale=scale, dtype=np.float32, **sizes)
        exact = reference.attention(q, k, v, query, keys, scale=scale, **sizes)
        assert np.abs(out - exact).max() <= 4 * np.abs(low - exact).max() + 1e-6


def test_a_selected_nan_shows_and_another_head_is_untouched():
    query, keys, sizes = call(5, 32, 300, T=1, budget=20)
    q, k, v = (random(i).normal(size=x).astype(np.float32) for i, x in
               enumerate([(1, 1, 2, 8), (1, 300, 1, 8), (1, 300, 1, 4)]))  # fmt: skip
    chosen = reference.select(query, keys, **sizes)[0, 0]
    alone = next(int(i) for i in chosen[0] if i not in chosen[1])
    k[0, alone] = np.nan
    out, lse = attend(q, k, v, query, keys, scale=1.0, threads=1, **sizes)
    assert np.isnan(out[0, 0, 0]).all()
    assert np.isnan(lse[0, 0, 0])
    assert np.isfinite(out[0, 0, 1]).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_types_are_converted_where_they_are_read_and_nowhere_else(dtype):
    query, keys, sizes = call(6, 32, 900, T=2, budget=30)
    q, k, v = (random(i).normal(size=x).astype(dtype) for i, x in
               enumerate([(1, 2, 2, 8), (1, 900, 1, 8), (1, 900, 1, 4)]))  # fmt: skip
    read = np.unique(reference.select(query, keys, **sizes))
    spare = np.setdiff1d(np.arange(900), read)
    expected = reference.attention(q, k, v, query, keys, **sizes)
    k[:, spare], v[:, spare] = np.nan, np.finfo(dtype).max
    got = hashattention.attention(q, k, v, query, keys, impl="numba", **sizes)
    assert got.dtype == np.float32
    close(got, expected, 40)


def test_queries_and_rows_may_lie_in_any_order():
    query, keys, sizes = call(8, 32, 200, T=1, budget=20)
    q = random(0).normal(size=(13, 2)).astype(np.float32).T.reshape(1, 1, 2, 13)
    k = random(1).normal(size=(1, 200, 1, 13)).astype(np.float32)[:, ::-1]
    v = np.asfortranarray(random(2).normal(size=(1, 200, 1, 6)).astype(np.float32))
    assert not q.flags.c_contiguous
    got = hashattention.attention(q, k, v, query, keys, impl="numba", **sizes)
    close(got, reference.attention(q, k, v, query, keys, **sizes), 40)


def test_what_float32_cannot_hold_is_refused_and_what_is_not_finite_stays_so():
    query, keys, sizes = call(9, 32, 100, T=1, budget=20)
    q, k = np.ones((1, 1, 2, 3)), np.ones((1, 100, 1, 3))
    v = np.ones((1, 100, 1, 2))
    refused = hashattention.api.backend.Unsupported
    with pytest.raises(refused, match="scale times q has numbers too large"):
        hashattention.attention(1e10 * q, k, v, query, keys, impl="numba", scale=1e30, **sizes)
    with pytest.raises(refused, match="v has numbers too large"):
        hashattention.attention(q, k, 1e300 * v, query, keys, impl="numba", **sizes)
    with pytest.raises(refused, match="maps has numbers too large"):
        numba_impl.encode(q, Maps((np.full((2, 3, 1), 1e300),), (np.full((2, 1), -5e299),)))
    for value in (np.nan, np.inf):
        got = hashattention.attention(q, np.full_like(k, value), v, query, keys, impl="numba", **sizes)
        assert np.isnan(got).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_logits_of_minus_infinity_are_not_an_empty_set(threads, monkeypatch):
    monkeypatch.setattr(cpu_kernels, "LONG", 1)
    query, keys, sizes = call(10, 32, 300, T=1, budget=20)
    q, k, v = np.ones((1, 1, 2, 3), np.float32), np.full((1, 300, 1, 3), -np.inf, np.float32), np.ones((1, 300, 1, 2))
    with np.errstate(invalid="ignore"):
        out, lse = attend(q, k, v.astype(np.float32), query, keys, scale=1.0, threads=threads, **sizes)
    assert np.isnan(out).all()
    assert np.isnan(lse).all()


def test_codes_beyond_what_two_bytes_count_are_refused():
    with pytest.raises(hashattention.api.backend.Unsupported, match="up to 2047 words, and query_codes has 2048"):
        hashattention.select(*(np.zeros((1, 1, 1, 2048), np.uint32),) * 2, budget=1, impl="numba")


# -- maps --


def maps(seed, heads, *widths):
    pairs = list(itertools.pairwise(widths))
    weights = tuple(random([seed, n]).normal(size=(heads, *pair)) / pair[0] ** 0.5 for n, pair in enumerate(pairs))
    return Maps(weights, tuple(random([seed, n, 1]).normal(size=(heads, pair[1])) for n, pair in enumerate(pairs)))


@pytest.mark.parametrize("widths", [(5, 3), (8, 32), (7, 20, 33), (16, 128, 128, 32), (3, 9, 5, 4, 70)])
@pytest.mark.parametrize(("T", "threads"), [(1, 1), (70, 1), (70, 2), (0, 1)])
def test_bits_are_the_reference_s_but_where_rounding_decides(widths, T, threads):
    x = random(T).normal(size=(2, T, 3, widths[0])).astype(np.float32)
    F = maps(1, 3, *widths)
    got, exact = cpu_kernels.encode(x, cpu_kernels.Prepared(F), threads=threads), reference.encode(x, F)
    assert got.shape == exact.shape
    differ = reference.unpack(got ^ exact, widths[-1]).astype(bool)
    features = reference.features(x, F)
    assert not differ.any() or np.abs(features[differ]).max() < 64 * EPS * np.abs(features).max()
    assert differ.mean() < 0.001 if T else True
    np.testing.assert_array_equal(reference.unpack(got, 32 * got.shape[-1])[..., widths[-1] :], 0)


def test_zero_negative_zero_and_nan_give_no_bit():
    F = Maps((np.zeros((1, 1, 4)),), (np.array([[0.0, -0.0, 1e-30, -1e-30]]),))
    got = cpu_kernels.encode(np.ones((1, 1, 1, 1), np.float32), cpu_kernels.Prepared(F), threads=1)
    assert got.ravel().tolist() == [0b100]
    nan = Maps((np.full((1, 1, 2), np.nan),), (np.ones((1, 2)),))
    assert cpu_kernels.encode(np.ones((1, 1, 1, 1), np.float32), cpu_kernels.Prepared(nan), threads=1).item() == 0


def test_a_decoder_s_step_is_attention_with_its_codes():
    query_maps, key_maps = maps(2, 4, 16, 24, 40), maps(3, 2, 16, 24, 40)
    q, k, v = (random(i).normal(size=x).astype(np.float32) for i, x in
               enumerate([(1, 1, 4, 16), (1, 600, 2, 16), (1, 600, 2, 8)]))  # fmt: skip
    decoder, key_codes = numba_impl.Decoder(query_maps), numba_impl.encode(k, key_maps)
    options = {"budget": 30, "sinks": 4, "window": 4}
    out, lse = decoder.step(q, k, v, key_codes, return_lse=True, **options)
    exact = reference.attention(q, k, v, decoder.encode(q), key_codes, return_lse=True, **options)
    close(out, exact[0], 60)
    close(lse, exact[1], 60)


# -- pieces --


@compiled
def bits_of(x, count, first):
    for i in range(len(x)):
        count[i], first[i] = scan.ones(x[i]), scan.first_bit(x[i])


def test_bits_of_a_word():
    x = np.array([0, 1, -1, 6, -(2**63), 2**62 + 8], np.int64)
    count, first = np.zeros(6, np.int64), np.zeros(6, np.int64)
    bits_of(x, count, first)
    assert count.tolist() == [0, 1, 64, 2, 1, 2]
    assert first.tolist() == [64, 0, 0, 1, 63, 3]


@compiled
def masks(far, n, threshold, out):
    for i in range(0, n, scan.GROUP):
        out[i // scan.GROUP] = scan.below8(far + i, threshold)
    out[-2] = scan.count_below8(far, n, threshold)
    out[-1] = scan.next_below8(far, 0, n, threshold)


@pytest.mark.parametrize("threshold", [0, 1, 128, 200, 255])
def test_masks_compare_without_a_sign(threshold):
    far = random(threshold).integers(0, 256, 256).astype(np.uint8)
    far[:130] = 255
    out = np.zeros(6, np.int64)
    masks(address(far), 256, threshold, out)
    words = np.packbits(far < threshold, bitorder="little").view(np.int64)
    np.testing.assert_array_equal(out[:4], words)
    assert out[4] == (far < threshold).sum()
    below = np.flatnonzero(far < threshold)
    assert out[5] == (below[0] // 64 * 64 if len(below) else 256)


def test_rows_that_begin_anywhere_are_read_right():
    query, keys, sizes = call(7, 32, 200, T=1, budget=50)
    memory = aligned(200 * 21 + 3)
    memory[:] = random(0).normal(size=len(memory))
    k = memory[3:].reshape(1, 200, 1, 21)[..., :13]
    q = random(1).normal(size=(1, 1, 2, 13)).astype(np.float32)
    got = attend(q, k, k, query, keys, scale=1.0, threads=1, **sizes)[0]
    close(got, reference.attention(q, k, k, query, keys, scale=1.0, **sizes), 70)
