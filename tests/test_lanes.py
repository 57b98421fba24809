"""Vector pieces: products of every shape, functions within the error they state, and where rows end."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

pytest.importorskip("numba", reason="the package numba is not installed; get it with: pip install numba")

from attnlab import draws, lanes
from attnlab.lanes import NOTHING, Ahead, aligned, compiled, multiply, piece


@piece
def tanh_and_exp2(w, x, tanh, exp2):
    value = w.load(x)
    w.store(w.tanh(value), tanh)
    w.store(w.exp2(value), exp2)


@piece
def transpose_and_sums(w, x, turned, sums):
    rows = [w.load(w.at(x, (i, 8))) for i in range(8)]
    for i, column in enumerate(w.transpose(rows)):
        w.store(column, w.at(turned, (i, 8)))
    w.store(w.sums(rows), sums)


@piece
def keep_from(w, x, row):
    w.store(w.kept(">=", 8, row, w.load(x)), x)


@compiled
def both_functions(x, tanh, exp2, n):
    for i in range(0, n, 8):
        tanh_and_exp2(x + 4 * i, tanh + 4 * i, exp2 + 4 * i)


@compiled
def across(x, turned, sums):
    transpose_and_sums(x, turned, sums)


@compiled
def keep(x, row):
    keep_from(x, row)


@compiled
def copy(x, factor, y, n, past_cache):
    if past_cache:
        lanes.streamed(x, factor, y, n)
    else:
        lanes.scaled(x, factor, y, n)


@compiled
def flip(x, width, n, y, rows):
    lanes.flip(x, width, n, y, rows)


def address(x):
    return x.ctypes.data


def filled(*shape, stream=0):
    array = aligned(*shape)
    array[...] = draws.normal(5, stream, int(np.prod(shape[:-1])), shape[-1]).reshape(shape)
    return array


def through_functions(numbers):
    x, tanh, exp2 = (aligned(len(numbers)) for _ in range(3))
    x[:] = numbers
    both_functions(address(x), address(tanh), address(exp2), len(x))
    return x.astype(np.float64), tanh, exp2


def test_tanh_and_exp2_are_within_the_errors_they_state():
    x, tanh, exp2 = through_functions(np.linspace(-20, 20, 80_000))
    assert np.abs(tanh - np.tanh(x)).max() < 2.6e-7
    assert np.abs(exp2 / np.exp2(x) - 1).max() < 1.6e-7
    x, _, exp2 = through_functions(np.linspace(-125.9, 125.9, 80_000))
    assert np.abs(exp2 / np.exp2(x) - 1).max() < 1.6e-7


def test_far_and_odd_numbers_keep_their_meaning():
    _, tanh, exp2 = through_functions([np.nan, np.inf, -np.inf, 1e30, -1e30, 0.0, -0.0, 1e-30])
    assert np.isnan(tanh[0])
    assert np.isnan(exp2[0])
    np.testing.assert_allclose(tanh[1:5], [1, -1, 1, -1], atol=2.6e-7)
    assert np.array_equal(tanh[5:7], [0, 0])
    assert np.array_equal(exp2[5:7], [1, 1])
    assert tanh[7] == pytest.approx(1e-30, rel=1e-6)


def test_lanes_are_transposed_summed_and_kept():
    x, turned, sums = filled(8, 8), aligned(8, 8), aligned(8)
    across(address(x), address(turned), address(sums))
    assert np.array_equal(turned, x.T)
    np.testing.assert_allclose(sums, x.sum(1), rtol=1e-5, atol=1e-6)
    for row in (0, 8, 11, 15, 16, 100):
        y = x[0].copy()
        keep(address(y), row)
        assert np.array_equal(y, np.where(np.arange(8, 16) >= row, x[0], 0))


@pytest.mark.parametrize("past_cache", [False, True])
@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 40, 45])
def test_a_row_is_copied_and_no_more(n, past_cache):
    x, y, factor = filled(48), aligned(48), aligned(1)
    factor[0] = -1.5
    copy(address(x), address(factor), address(y), n, past_cache)
    assert np.array_equal(y[:n], -1.5 * x[:n])
    assert not y[n:].any()


def test_eight_rows_become_columns():
    x, y = filled(8, 40), aligned(24, 16)
    flip(address(x), 40, 24, address(y[:, 8:]), 16)
    assert np.array_equal(y[:, 8:], x[:, :24].T)
    assert not y[:, :8].any()


SHAPES = [(r, c, n) for r in (1, 2, 3, 5, 6, 7, 8, 13, 48) for c in (8, 16, 24, 40, 48) for n in (0, 1, 5, 30)]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("asking", [NOTHING, "rows"])
def test_products_of_every_shape(turned, asking):
    """Against float64, within n products and sums rounded once each."""
    for rows, columns, n in SHAPES:
        a, b, c = filled(rows, n, stream=1), filled(n, columns, stream=2), filled(rows, columns, stream=3)
        first = NOTHING if asking is NOTHING else Ahead(address(c), columns, rows, -(-columns // 16))
        wanted, start = a.astype(np.float64) @ b, c.copy()
        bound = 2.0**-23 * (n + 1) * (np.abs(a) @ np.abs(b) + np.abs(start))
        left, strides = (np.ascontiguousarray(a.T), (1, rows)) if turned else (a, (n, 1))
        where = (address(left), *strides, rows, address(b), columns, columns, address(c), columns, n)
        multiply(*where, 0, first, NOTHING)
        assert (np.abs(c - wanted) <= bound).all()
        c[...] = start
        multiply(*where, 1, NOTHING, first)
        assert (np.abs(c - start - wanted) <= bound).all()


@compiled
def known_shapes(a, b, c):
    """Products whose sizes the compiler sees, and unrolls by."""
    multiply(a, 1, 24, 8, b, 24, 8, c, 24, 24, 0, NOTHING, NOTHING)
    multiply(a + 4 * 8, 1, 24, 8, b, 24, 16, c + 4 * 8 * 24, 24, 24, 0, NOTHING, NOTHING)
    multiply(a + 4 * 16, 1, 24, 7, b, 24, 24, c + 4 * 16 * 24, 24, 24, 0, NOTHING, NOTHING)


def test_products_of_sizes_that_the_compiler_knows():
    a, b, c = filled(24, 24, stream=1), filled(24, 24, stream=2), aligned(24, 24)
    known_shapes(address(a), address(b), address(c))
    wanted = a.T @ b
    for rows, columns in ((slice(0, 8), 8), (slice(8, 16), 16), (slice(16, 23), 24)):
        np.testing.assert_allclose(c[rows, :columns], wanted[rows, :columns], rtol=1e-4, atol=1e-5)
        assert not c[rows, columns:].any()
    assert not c[23].any()


def test_what_is_kept_on_disk_hangs_on_the_pieces_too():
    """Numba alone would look at the file of the function, and run it with pieces that are no longer written so."""
    from attnlab.hashattention import cpu_kernels as hash_kernels
    from attnlab.race import cpu_kernels

    def hangs_on(function):
        _, *stamps = function._cache._cache_file._source_stamp
        return {name for name, stamp in lanes.STAMPS.items() if stamp in stamps}

    for function in (cpu_kernels._causal, cpu_kernels._meeting, cpu_kernels._phi, multiply, both_functions):
        assert "attnlab.lanes" in hangs_on(function)
        assert "attnlab.hashattention.scan" not in hangs_on(function)
    assert hangs_on(hash_kernels._stream) >= {"attnlab.lanes", "attnlab.hashattention.scan"}


def test_a_product_takes_and_leaves_parts_of_larger_arrays():
    a, b, c = filled(20, 30, stream=1), filled(30, 64, stream=2), aligned(20, 64)
    multiply(address(a[2:, 3:]), 30, 1, 7, address(b[4:, 8:]), 64, 24, address(c[5:, 16:]), 64, 11, 0, NOTHING, NOTHING)
    np.testing.assert_allclose(c[5:12, 16:40], a[2:9, 3:14] @ b[4:15, 8:32], rtol=1e-4, atol=1e-5)
    c[5:12, 16:40] = 0
    assert not c.any()


def test_nan_and_infinity_go_through_a_product():
    a, b, c = filled(6, 8, stream=1), filled(8, 16, stream=2), aligned(6, 16)
    a[2, 3], b[5, 7] = np.nan, np.inf
    multiply(address(a), 8, 1, 6, address(b), 16, 16, address(c), 16, 8, 0, NOTHING, NOTHING)
    assert np.isnan(c[2]).all()
    assert not np.isfinite(c[:, 7]).any()
    assert np.isfinite(np.delete(np.delete(c, 2, 0), 7, 1)).all()


def test_zeros_begin_on_a_cache_line():
    for shape in ((3,), (5, 7), (1000, 3)):
        array = aligned(*shape)
        assert array.shape == shape
        assert not array.any()
        assert array.ctypes.data % 128 == 0


# -- threads --


@pytest.mark.parametrize("shares", [0, 1, 2, 5])
def test_every_share_is_run_once_and_threads_are_kept(shares):
    from attnlab.lanes import on_threads

    seen = []
    on_threads(lambda share: seen.append((share, threading.get_ident())), range(shares))
    assert sorted(share for share, _ in seen) == list(range(shares))
    assert all(thread == threading.get_ident() for share, thread in seen if share == 0)
    assert (
        sum(thread.name.startswith("attnlab") for thread in threading.enumerate()) <= 4 + 1
    )  # the most that were asked


def test_what_a_thread_raises_is_raised_when_all_have_ended():
    from attnlab.lanes import on_threads

    ended = []

    def run(share):
        if share == 1:
            raise ValueError("one")
        ended.append(share)

    with pytest.raises(ValueError, match="one"):
        on_threads(run, [0, 1, 2])
    assert sorted(ended) == [0, 2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_has_threads_of_its_own():
    code = """
import os, sys
from attnlab.lanes import on_threads
seen = []
on_threads(seen.append, [0, 1, 2])
child = os.fork()
if child == 0:
    on_threads(seen.append, [3, 4, 5])
    os._exit(sorted(seen) != [*range(6)])
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
