"""Residual linear attention on a GPU: RLA and RDN (pp. 4-5) of arXiv:2509.25223v1 and the recurrences that they are
compared with, in Triton, with gradients.

The definition is attnlab/residual/reference.py, token by token. What the kernels change from it, and what that buys:
    chunks          C tokens at a time: the decays inside a chunk are a table, and all else is matrix products
    one sweep       a program takes some columns of V of one head through all chunks of its sequence, with its blocks of
                    both memories in registers. The clip acts on each column alone, so both stages share the sweep, and
                    what the first got wrong never leaves the program
    tables          what a chunk needs in every column of V is made before the sweep, for all chunks at once
    inverses        the delta rules solve (I + diag(gate alpha) Le) U = X in every chunk, Le a strictly lower triangle.
                    Its inverse is one of the tables, made row by row. Doubling, (I - N)(I + N^2)(I + N^4)..., takes
                    fewer steps and is not used: with one key for all tokens and write = 2 the inverse holds nothing
                    larger than 2, and N^8 holds 10^6
    decay tables    products of retentions by `tl.cumprod`, never logarithms: exact where a retention is 0. Their
                    gradient is two small matrix products in place of a loop over the rows
    kept            for the gradient: what both memories recalled for each key (P and R P), so that nothing is solved or
                    recalled again, and the memories before each chunk, as tensor cores take them
    the gradient    a sweep from the last chunk to the first solves for the gradients of what the chunks wrote and keeps
                    those of the memories; then all chunks at once get theirs of q, k and the gates. One sweep for all
                    of it would save a memory a chunk on either way, and does not fit the registers; its blocks of V
                    would also each have a dq and a dk of their own, 8 (K + K) bytes a token and block to add up
    no atomics      every sum has one owner and one order: the same call gives the same bits, whatever the batch
    rounding        memories and sums are float32. For 16-bit input a factor of a product is rounded once, to bfloat16
                    or (float16) tf32; for float32 each factor goes in as two parts of tf32

Letters: alpha `retention`, beta `write`, gamma `correction`; S and R the two memories, a rule without residual has R
alone and writes it with gamma = `write`; K and V widths. In the code b_ is a value in registers, C tokens a chunk, BV
columns of V a program, NV = ceil(V / BV) programs a head.

Bytes and flops are given per token and head, with e bytes an input number.
"""

import itertools
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from attnlab_kernels._shared import DTYPES, INTERPRETED, REGISTERS, _described, _expect, _high, _power_of_two
from attnlab_kernels.launch import launch, recorded
from attnlab_kernels.race import _chunks

__all__ = ["CONFIGS", "RULES", "Config", "Rule", "attention", "decode_step"]

MAX_WIDTH = 256


class Rule(NamedTuple):
    """What a rule is to the kernels: whether it writes errors of its own recall, whether there are two memories, and
    which gates it has.
    """

    delta: bool
    residual: bool
    retention: bool
    write: bool


RULES = {
    "rla": Rule(False, True, True, True),
    "rdn": Rule(True, True, True, True),
    "linear": Rule(False, False, False, False),
    "retnet": Rule(False, False, True, False),
    "sgla": Rule(False, False, True, True),
    "deltanet": Rule(True, False, False, True),
    "gdn": Rule(True, False, True, True),
}


# -- what the kernels share: products, gates, decays --


@triton.jit
def _mul(a, b, out, A: tl.constexpr, B: tl.constexpr, SPLIT: tl.constexpr, WORK: tl.constexpr):
    """out + a @ b in float32, on tensor cores. A, B say which factor these take exactly. Another one is rounded; or,
    where SPLIT, goes in as two parts, without the product of the two small parts, 2^-22 of the whole.
    """
    a_high = _high(a, A, WORK)
    b_high = _high(b, B, WORK)
    out = tl.dot(a_high, b_high, out, input_precision="tf32")
    if SPLIT:
        if not A:
            out = tl.dot((a - a_high.to(tl.float32)).to(WORK), b_high, out, input_precision="tf32")
        if not B:
            out = tl.dot(a_high, (b - b_high.to(tl.float32)).to(WORK), out, input_precision="tf32")
    return out


@triton.jit
def _gate(gate, at, live):
    """A gate of every token, 1 where the rule has none, and 0 for tokens that are not there."""
    if gate is None:
        b_gate = tl.where(live, 1.0, 0.0)
    else:
        b_gate = tl.load(gate + at, mask=live, other=0.0)
    return b_gate


@triton.jit
def _read_gate(beta, gamma, at, live):
    """gamma, or beta where gamma is tied to it."""
    if gamma is None:
        b_gate = _gate(beta, at, live)
    else:
        b_gate = _gate(gamma, at, live)
    return b_gate


@triton.jit
def _decays(alpha, first, o_c, n, H):
    """(alpha, a-, h) of a chunk of n tokens: its retentions, the product of all before i, and that of all after i.
    Tokens that are not there have retention 1.
    """
    if alpha is None:
        b_alpha = tl.where(o_c >= 0, 1.0, 0.0)
        b_before = b_alpha
        b_tail = b_alpha
    else:
        b_alpha = tl.load(alpha + first + o_c * H, mask=o_c < n, other=1.0)
        b_before = tl.cumprod(_previous(alpha, first, o_c, n, H), 0)
        b_tail = tl.cumprod(tl.load(alpha + first + (o_c + 1) * H, mask=o_c + 1 < n, other=1.0), 0, reverse=True)
    return b_alpha, b_before, b_tail


@triton.jit
def _previous(alpha, first, o_c, n, H):
    """Of each token the retention of the one before it in the chunk."""
    return tl.load(alpha + first + (o_c - 1) * H, mask=(o_c > 0) & (o_c <= n), other=1.0)


@triton.jit
def _between(alpha, first, o_c, n, H):
    """(alpha, E) of a chunk: E [C, C] is the product of the retentions between j and i for j < i, 0 elsewhere."""
    below = o_c[:, None] > o_c[None, :]
    if alpha is None:
        b_alpha = tl.where(o_c >= 0, 1.0, 0.0)
        b_e = tl.where(below, 1.0, 0.0)
    else:
        b_alpha = tl.load(alpha + first + o_c * H, mask=o_c < n, other=1.0)
        previous = _previous(alpha, first, o_c, n, H)
        steps = tl.where(o_c[:, None] - 1 > o_c[None, :], previous[:, None], 1.0)
        b_e = tl.where(below, tl.cumprod(steps, 0), 0.0)
    return b_alpha, b_e


@triton.jit
def _through(b_e, b_alpha, o_c):
    """D: the product of the retentions after j up to i itself, 1 on the diagonal, 0 above it."""
    return tl.where(o_c[:, None] == o_c[None, :], 1.0, b_alpha[:, None] * b_e)


@triton.jit
def _whole(b_alpha, b_tail, o_c):
    """The product of all retentions of a chunk."""
    return tl.sum(tl.where(o_c == 0, b_alpha * b_tail, 0.0), 0)


@triton.jit
def _tanh(x):
    """tanh, by an exponential that cannot overflow."""
    small = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - small) / (1.0 + small)
    return tl.where(x < 0, -size, size)


@triton.jit
def _taught(error, clip, LOG_COSH: tl.constexpr):
    """What R is taught: the error within the clip, or tanh of it."""
    if LOG_COSH:
        b_r = _tanh(error)
    else:
        b_r = tl.minimum(tl.maximum(error, -clip), clip)
    return b_r


@triton.jit
def _zero(x):
    """0 for x >= 0, which the compiler does not know: addresses that contain it are made anew in every chunk. Left to
    itself it makes them all before the first, and holds them in registers that it lacks then.
    """
    return tl.multiple_of(tl.minimum(x, 0), 16)


@triton.jit
def _within(live, o_w, W):
    """Which numbers of a tile are there. Where columns fill it, W is None: a bound costs registers."""
    if W is None:
        here = live[:, None] & (o_w == o_w)[None, :]
    else:
        here = live[:, None] & (o_w < W)[None, :]
    return here


@triton.jit
def _below(o_v, left):
    """Which columns of V are there."""
    if left is None:
        there = o_v == o_v
    else:
        there = o_v < left
    return there


@triton.jit
def _rows(x, o_t, o_w, live, stride, W):
    """Rows of x, [C, BW]; 0 beyond the width W, if it is not None, and where a row is not live."""
    here = _within(live, o_w, W)
    return tl.load(x + o_t[:, None] * stride + o_w[None, :], mask=here, other=0.0)


@triton.jit
def _put(x, b_x, o_t, o_w, live, stride, W):
    """Store rows in x's type."""
    here = _within(live, o_w, W)
    tl.store(x + o_t[:, None] * stride + o_w[None, :], b_x.to(x.dtype.element_ty), mask=here)


# A memory is held transposed, as a tuple of SK slices [BV, BK]: products over K go slice by slice, so that the factors
# of only one slice are in registers at a time. Transposed, since the last product of a loop decides how Triton lays all
# of them out over the warps: [BV, BK] is wider than high, and each warp then has columns of its own.


@triton.jit
def _memory_slice(x, o_v, left, right, K: tl.constexpr, BK: tl.constexpr):
    """BV rows and BK columns of a transposed memory [V, K]: those within `left` and `right`."""
    o_k = tl.arange(0, BK)
    here = _within(_below(o_v, left), o_k, right)
    return tl.load(x + o_v[:, None] * K + o_k[None, :], mask=here, other=0.0)


@triton.jit
def _memory(x, o_v, left, K: tl.constexpr, BK: tl.constexpr, SK: tl.constexpr):
    """BV rows of it, in SK slices."""
    memory = ()
    for s in tl.static_range(SK):
        memory = memory + (_memory_slice(x + s * BK, o_v, left, None if K % BK == 0 else K - s * BK, K, BK),)  # type: ignore[assignment]
    return memory


@triton.jit
def _put_memory(x, memory, o_v, left, K: tl.constexpr, BK: tl.constexpr, SK: tl.constexpr):
    for s in tl.static_range(SK):
        o_k = s * BK + tl.arange(0, BK)
        here = _within(_below(o_v, left), o_k, None if K % BK == 0 else K)
        tl.store(x + o_v[:, None] * K + o_k[None, :], memory[s].to(x.dtype.element_ty), mask=here)


@triton.jit
def _recalled(
    x, memory, out, o_c, live, H, K: tl.constexpr, BK: tl.constexpr, SK: tl.constexpr, EXACT: tl.constexpr,
    SPLIT: tl.constexpr, WORK: tl.constexpr,
):  # fmt: skip
    """out + x memory: what a memory answers to the rows of x."""
    for s in tl.static_range(SK):
        b_x = _rows(x, o_c, s * BK + tl.arange(0, BK), live, H * K, None if K % BK == 0 else K)
        out = _mul(b_x, tl.trans(memory[s]), out, EXACT, False, SPLIT, WORK)
    return out


@triton.jit
def _recalled_twice(
    x, one, two, out, o_c, live, H, K: tl.constexpr, BK: tl.constexpr, SK: tl.constexpr, EXACT: tl.constexpr,
    SPLIT: tl.constexpr, WORK: tl.constexpr,
):  # fmt: skip
    """out + x one and out + x two, slice by slice: a factor that is in registers is used for both."""
    of_one, of_two = out, out
    for s in tl.static_range(SK):
        b_x = _rows(x, o_c, s * BK + tl.arange(0, BK), live, H * K, None if K % BK == 0 else K)
        of_one = _mul(b_x, tl.trans(one[s]), of_one, EXACT, False, SPLIT, WORK)
        of_two = _mul(b_x, tl.trans(two[s]), of_two, EXACT, False, SPLIT, WORK)
    return of_one, of_two


@triton.jit
def _recalled_by_two(
    x, y, memory, out, o_c, live, H, K: tl.constexpr, BK: tl.constexpr, SK: tl.constexpr, EXACT: tl.constexpr,
    SPLIT: tl.constexpr, WORK: tl.constexpr,
):  # fmt: skip
    """out + x memory and out + y memory, slice by slice: as a factor, a slice of memory is in registers only here."""
    of_x, of_y = out, out
    for s in tl.static_range(SK):
        o_k = s * BK + tl.arange(0, BK)
        part = tl.trans(memory[s])
        of_x = _mul(_rows(x, o_c, o_k, live, H * K, None if K % BK == 0 else K), part, of_x, EXACT, False, SPLIT, WORK)
        of_y = _mul(_rows(y, o_c, o_k, live, H * K, None if K % BK == 0 else K), part, of_y, EXACT, False, SPLIT, WORK)
        if SPLIT:
            tl.debug_barrier()  # or the factors of all slices are loaded before the first product
    return of_x, of_y


@triton.jit
def _written(
    memory, keep, x, values, o_c, live, H, K: tl.constexpr, BK: tl.constexpr, SK: tl.constexpr, EXACT: tl.constexpr,
    SPLIT: tl.constexpr, WORK: tl.constexpr,
):  # fmt: skip
    """keep * memory + x^T values, transposed as `values` [BV, C] is. The rows of x are loaded again, from the cache:
    held since they recalled, they would not leave enough registers for the rest.
    """
    after = ()
    for s in tl.static_range(SK):
        b_x = _rows(x, o_c, s * BK + tl.arange(0, BK), live, H * K, None if K % BK == 0 else K)
        after = after + (_mul(values, b_x, keep * memory[s], False, EXACT, SPLIT, WORK),)  # type: ignore[assignment]
    return after


# -- tables: what a chunk needs in every column of V --


@triton.jit
def residual_table_kernel(
    q, k, alpha, beta, gamma, factors, tiles, table, scale, T, H,
    K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr, DELTA: tl.constexpr, RESIDUAL: tl.constexpr,
    READ_GATES: tl.constexpr, FACTORS: tl.constexpr, KEEP: tl.constexpr, EXACT: tl.constexpr, SPLIT: tl.constexpr,
    WORK: tl.constexpr,
):  # fmt: skip
    """The factors [C, C] of one chunk and head, as tensor cores take them: Ai = A * D with A = scale Q K^T; of rules
    that recall Le = stril(K K^T) * E; of delta rules the inverse of I + diag(beta alpha) Le, and that of gamma unless
    it is None; and without READ_GATES A * E. KEEP also leaves E, A and K K^T for the gradient.

    Change: the reference recalls token by token; here all of a chunk is solved for at once. Row j of an inverse is done
    when all rows above are, and is then taken from the rows below.
    Reads e 2 K + 4 a gate, writes w C a factor, w bytes a number that tensor cores take, and 12 C (8 C) with KEEP; 2 C
    K flops for each of two products, and 4 C^2 for each inverse, without a tensor core.
    """
    i = tl.program_id(0).to(tl.int64)
    i_c, i_h = i // H, i % H
    row, start, stop = tl.load(table + 4 * i_c), tl.load(table + 4 * i_c + 1), tl.load(table + 4 * i_c + 2)
    row, start, n = row.to(tl.int64), start.to(tl.int64), stop - start
    first = (row * T + start) * H + i_h
    o_c = tl.arange(0, C)
    live = o_c < n
    PAIRS: tl.constexpr = RESIDUAL or DELTA
    factors += i * FACTORS * C * C
    tiles += i * (2 + PAIRS) * C * C
    b_alpha, b_e = _between(alpha, first, o_c, n, H)
    read, gram = tl.zeros([C, C], tl.float32), tl.zeros([C, C], tl.float32)
    for o in range(0, K, BK):
        o_k = o + tl.arange(0, BK)
        b_k = _rows(k + first * K, o_c, o_k, live, H * K, None if K % BK == 0 else K)
        b_q = _rows(q + first * K, o_c, o_k, live, H * K, None if K % BK == 0 else K)
        read = _mul(b_q, tl.trans(b_k), read, EXACT, EXACT, SPLIT, WORK)
        if PAIRS:
            gram = _mul(b_k, tl.trans(b_k), gram, EXACT, EXACT, SPLIT, WORK)
    read *= scale
    _put_tile(factors, 0, read * _through(b_e, b_alpha, o_c), o_c, C)
    if RESIDUAL and not READ_GATES:
        _put_tile(factors, FACTORS - 1, read * b_e, o_c, C)
    if KEEP:
        _put_tile(tiles, 0, b_e, o_c, C)
        _put_tile(tiles, 1, read, o_c, C)
    if PAIRS:
        if KEEP:
            _put_tile(tiles, 2, gram, o_c, C)
        b_le = gram * b_e
        _put_tile(factors, 1, b_le, o_c, C)
    if DELTA:
        b_le *= b_alpha[:, None]
        _put_tile(factors, 2, _inverse(_gate(beta, first + o_c * H, live)[:, None] * b_le, o_c, C), o_c, C)
        if gamma is not None:
            _put_tile(factors, 3, _inverse(_gate(gamma, first + o_c * H, live)[:, None] * b_le, o_c, C), o_c, C)


@triton.jit
def _inverse(b_n, o_c, C: tl.constexpr):
    """(I + N)^-1 of a strictly lower triangle, by forward substitution into the unit matrix."""
    inverse = tl.where(o_c[:, None] == o_c[None, :], 1.0, 0.0)
    for j in range(C - 1):
        inverse -= _column(b_n, o_c, j)[:, None] * _row(inverse, o_c, j)[None, :]
    return inverse


@triton.jit
def _put_tile(tiles, number: tl.constexpr, b_tile, o_c, C: tl.constexpr):
    at = number * C * C + o_c[:, None] * C + o_c[None, :]
    tl.store(tiles + at, b_tile.to(tiles.dtype.element_ty))


@triton.jit
def _base_read(factors, o_c, C: tl.constexpr, READ_GATES: tl.constexpr, FACTORS: tl.constexpr):
    """Aq, by which the base is read inside a chunk: without a token's own write, which comes after its read."""
    if READ_GATES:
        b_aq = _tile(factors, 0, o_c, C)
        b_aq = tl.where(o_c[:, None] > o_c[None, :], b_aq, 0.0)
    else:
        b_aq = _tile(factors, FACTORS - 1, o_c, C)
    return b_aq


@triton.jit
def _tile(tiles, number: tl.constexpr, o_c, C: tl.constexpr):
    """Tile `number` of a chunk, [C, C]."""
    return tl.load(tiles + number * C * C + o_c[:, None] * C + o_c[None, :])


@triton.jit
def _column(x, o_c, j):
    return tl.sum(tl.where((o_c == j)[None, :], x, 0.0), 1)


@triton.jit
def _row(x, o_c, j):
    return tl.sum(tl.where((o_c == j)[:, None], x, 0.0), 0)


# -- the sweep forward --


@triton.jit
def residual_forward_kernel(
    q, k, v, alpha, beta, gamma, factors, base, residual, out, base_out, residual_out,
    kept_base, kept_residual, before_base, before_residual, table, bounds, clip, scale, T, H,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, SK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    DELTA: tl.constexpr, RESIDUAL: tl.constexpr, READ_GATES: tl.constexpr, LOG_COSH: tl.constexpr,
    FACTORS: tl.constexpr, KEEP: tl.constexpr, EXACT: tl.constexpr, SPLIT: tl.constexpr, WORK: tl.constexpr,
):  # fmt: skip
    """BV columns of one sequence and head: outputs, and both memories after the last token (pp. 4-5).

    Change: a chunk in place of a token. U and W [C, BV] are what the chunk writes into S and R, row by row; P and R P
    are what the memories recalled for each key just before its token.
    Reads e V, and in each of the NV blocks e 6 K (e 3 K for one memory), w C a factor and 12 + 4 a gate, w bytes a
    number that tensor cores take; writes e V. KEEP writes 4 V of each memory (of R in delta rules alone) and w K V / C
    of each. 12 K V + 6 C V flops for two memories, of delta rules 6 C V more.
    """
    NV: tl.constexpr = (V + BV - 1) // BV
    i = tl.program_id(0).to(tl.int64)
    i_v, i_h, i_n = i % NV, i // NV % H, i // NV // H
    o_v = tl.arange(0, BV)
    column = i_v * BV
    left = None if V % BV == 0 else (V - column).to(tl.int32)  # columns from here on, if they are fewer than BV
    state = (i_n * H + i_h) * K * V + column * K
    b_residual = _memory(residual + state, o_v, left, K, BK, SK)
    if RESIDUAL:
        b_base = _memory(base + state, o_v, left, K, BK, SK)
    begin, end = tl.load(bounds + i_n), tl.load(bounds + i_n + 1)
    for step in range(0, end - begin):
        i_c = begin + step
        row, start, stop = tl.load(table + 4 * i_c), tl.load(table + 4 * i_c + 1), tl.load(table + 4 * i_c + 2)
        o_c, o_v = tl.arange(0, C) + _zero(start), tl.arange(0, BV) + _zero(start)
        row, start, n = row.to(tl.int64), start.to(tl.int64), stop - start
        live = o_c < n
        first = (row * T + start) * H + i_h
        o_g = first + o_c * H
        chunk = i_c.to(tl.int64) * H + i_h
        if KEEP:
            _put_memory(before_residual + chunk * K * V + column * K, b_residual, o_v, left, K, BK, SK)
            if RESIDUAL:
                _put_memory(before_base + chunk * K * V + column * K, b_base, o_v, left, K, BK, SK)
        o_base = o_c
        if SPLIT:
            o_base = o_c + _zero(stop)  # as factors in two parts, rows and tiles held for both stages are too many
        nothing = tl.zeros([C, BV], tl.float32)
        if RESIDUAL:
            b_p, b_out = _recalled_by_two(
                k + first * K, q + first * K, b_base, nothing, o_base, live, H, K, BK, SK, EXACT, SPLIT, WORK
            )
        b_v = _rows(v + first * V + column, o_c, o_v, live, H * V, left).to(tl.float32)
        b_alpha, b_before, b_tail = _decays(alpha, first, o_c, n, H)
        b_all = _whole(b_alpha, b_tail, o_c)
        b_after = scale * b_alpha * b_before
        tiles = factors + chunk * FACTORS * C * C
        if RESIDUAL:
            b_beta = _gate(beta, o_g, live)
            b_p = b_before[:, None] * b_p
            if DELTA:
                b_u = b_beta[:, None] * (b_v - b_alpha[:, None] * b_p)
                b_m = _tile(tiles, 2, o_base, C)
                b_u = _mul(b_m, b_u, nothing, False, False, SPLIT, WORK)
            else:
                b_u = b_beta[:, None] * b_v
            b_p = _mul(_tile(tiles, 1, o_base, C), b_u, b_p, False, False, SPLIT, WORK)
            if KEEP:
                _put(kept_base + first * V + column, b_p, o_c, o_v, live, H * V, left)
            b_r = _taught(b_v - b_p, clip, LOG_COSH)
            if READ_GATES:
                b_out = b_after[:, None] * b_out
            else:
                b_out = scale * b_before[:, None] * b_out
            b_out = _mul(_base_read(tiles, o_base, C, READ_GATES, FACTORS), b_u, b_out, False, False, SPLIT, WORK)
            b_base = _written(
                b_base, b_all, k + first * K, tl.trans(b_tail[:, None] * b_u), o_c, live, H, K, BK, SK, EXACT, SPLIT,
                WORK,
            )  # fmt: skip
        else:
            b_r = b_v
        b_rp, b_y = _recalled_by_two(
            k + first * K, q + first * K, b_residual, nothing, o_c, live, H, K, BK, SK, EXACT, SPLIT, WORK
        )
        if RESIDUAL and gamma is None:
            b_gamma = b_beta
        else:
            b_gamma = _gate(gamma, o_g, live)
        if DELTA:
            b_rp = b_before[:, None] * b_rp
            b_w = b_gamma[:, None] * (b_r - b_alpha[:, None] * b_rp)
            if not RESIDUAL:
                b_m = _tile(tiles, 2, o_c, C)
            elif gamma is not None:
                b_m = _tile(tiles, 3, o_c, C)
            b_w = _mul(b_m, b_w, nothing, False, False, SPLIT, WORK)
            if KEEP:
                b_rp = _mul(_tile(tiles, 1, o_c, C), b_w, b_rp, False, False, SPLIT, WORK)
                _put(kept_residual + first * V + column, b_rp, o_c, o_v, live, H * V, left)
        else:
            b_w = b_gamma[:, None] * b_r
        b_y = _mul(_tile(tiles, 0, o_c, C), b_w, b_after[:, None] * b_y, False, False, SPLIT, WORK)
        if RESIDUAL:
            if READ_GATES:
                b_y = b_gamma[:, None] * b_y
            b_y += b_out
        _put(out + first * V + column, b_y, o_c, o_v, live, H * V, left)
        b_w = tl.trans(b_tail[:, None] * b_w)
        b_residual = _written(
            b_residual, b_all, k + first * K, b_w, o_c, live, H, K, BK, SK, EXACT, SPLIT, WORK
        )  # fmt: skip
    o_v = tl.arange(0, BV) + _zero(end)
    _put_memory(residual_out + state, b_residual, o_v, left, K, BK, SK)
    if RESIDUAL:
        _put_memory(base_out + state, b_base, o_v, left, K, BK, SK)


# -- the gradient: a sweep for what the chunks wrote, then all chunks at once --


@triton.jit
def _again(
    v, alpha, beta, gamma, kept_base, kept_residual, o_g, o_c, o_v, live, left, H, clip, b_alpha,
    V: tl.constexpr, DELTA: tl.constexpr, RESIDUAL: tl.constexpr, READ_GATES: tl.constexpr, LOG_COSH: tl.constexpr,
):  # fmt: skip
    """What the forward sweep knew of BV columns of a chunk: (beta, gamma, the gate of the residual's read) [C], and
    (P, R P, V - alpha P, Rc - alpha R P, d clip) [C, BV]; what a rule has not is something else of that shape.
    """
    b_v = _rows(v, o_c, o_v, live, H * V, left).to(tl.float32)
    b_r, b_p, b_x, b_slope = b_v, b_v, b_v, b_v
    b_beta = tl.where(live, 1.0, 0.0)
    b_gate = b_beta
    if RESIDUAL:
        b_beta = _gate(beta, o_g, live)
        b_p = _rows(kept_base, o_c, o_v, live, H * V, left)
        if DELTA:
            b_x = b_v - b_alpha[:, None] * b_p
        error = b_v - b_p
        b_r = _taught(error, clip, LOG_COSH)
        if LOG_COSH:
            b_slope = 1.0 - b_r * b_r
        else:
            b_slope = tl.where(tl.abs(error) <= clip, 1.0, 0.0)
    if RESIDUAL and gamma is None:
        b_gamma = b_beta
    else:
        b_gamma = _gate(gamma, o_g, live)
    if RESIDUAL and READ_GATES:
        b_gate = b_gamma
    b_rp, b_y = b_r, b_r
    if DELTA:
        b_rp = _rows(kept_residual, o_c, o_v, live, H * V, left)
        b_y = b_r - b_alpha[:, None] * b_rp
    return b_beta, b_gamma, b_gate, b_p, b_rp, b_x, b_y, b_slope


@triton.jit
def residual_backward_kernel(
    q, k, v, d_out, alpha, beta, gamma, factors, kept_base, kept_residual, d_base, d_residual, d_v, d_u, d_w,
    after_base, after_residual, d_base_in, d_residual_in, table, bounds, clip, scale, T, H,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, SK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    DELTA: tl.constexpr, RESIDUAL: tl.constexpr, READ_GATES: tl.constexpr, LOG_COSH: tl.constexpr,
    FACTORS: tl.constexpr, EXACT: tl.constexpr, SPLIT: tl.constexpr, WORK: tl.constexpr,
):  # fmt: skip
    """dV and what the gradient kernel needs for BV columns of one sequence and head, from the last chunk to the first:
    the gradients of U and W, and those of both memories after each chunk.

    Change: the reference has no gradient; this is the chunk of `residual_forward_kernel` differentiated by hand. What
    was solved with an inverse is solved with its transpose.
    Reads 2 e V + 4 V of each memory that was kept, and in each of the NV blocks e 5 K, w C a factor and 12 + 4 a gate;
    writes e V, 4 V a memory, and w K V / C a memory, w bytes a number that tensor cores take. 12 K V + 6 C V flops for
    two memories, of delta rules 4 C V more.
    """
    NV: tl.constexpr = (V + BV - 1) // BV
    i = tl.program_id(0).to(tl.int64)
    i_v, i_h, i_n = i % NV, i // NV % H, i // NV // H
    o_v = tl.arange(0, BV)
    column = i_v * BV
    left = None if V % BV == 0 else (V - column).to(tl.int32)
    state = (i_n * H + i_h) * K * V + column * K
    b_d_residual = _memory(d_residual + state, o_v, left, K, BK, SK)
    if RESIDUAL:
        b_d_base = _memory(d_base + state, o_v, left, K, BK, SK)
    begin, end = tl.load(bounds + i_n), tl.load(bounds + i_n + 1)
    for step in range(0, end - begin):
        i_c = end - 1 - step
        row, start, stop = tl.load(table + 4 * i_c), tl.load(table + 4 * i_c + 1), tl.load(table + 4 * i_c + 2)
        o_c, o_v = tl.arange(0, C) + _zero(start), tl.arange(0, BV) + _zero(start)
        row, start, n = row.to(tl.int64), start.to(tl.int64), stop - start
        live = o_c < n
        first = (row * T + start) * H + i_h
        at = first * V + column
        chunk = i_c.to(tl.int64) * H + i_h
        tiles = factors + chunk * FACTORS * C * C
        nothing = tl.zeros([C, BV], tl.float32)
        _put_memory(after_residual + chunk * K * V + column * K, b_d_residual, o_v, left, K, BK, SK)
        if RESIDUAL:
            _put_memory(after_base + chunk * K * V + column * K, b_d_base, o_v, left, K, BK, SK)
        if RESIDUAL:
            b_d_w, b_d_u = _recalled_twice(
                k + first * K, b_d_residual, b_d_base, nothing, o_c, live, H, K, BK, SK, EXACT, SPLIT, WORK
            )
        else:
            b_d_w = _recalled(k + first * K, b_d_residual, nothing, o_c, live, H, K, BK, SK, EXACT, SPLIT, WORK)
        b_alpha, b_before, b_tail = _decays(alpha, first, o_c, n, H)
        b_g = _rows(d_out + first * V + column, o_c, o_v, live, H * V, left)
        b_beta, b_gamma, b_gate, _, _, _, _, b_slope = _again(
            v + first * V + column, alpha, beta, gamma, kept_base + at, kept_residual + at,
            first + o_c * H, o_c, o_v, live, left, H, clip, b_alpha, V, DELTA, RESIDUAL, READ_GATES, LOG_COSH,
        )  # fmt: skip

        # the residual's stage
        b_d_w = b_tail[:, None] * b_d_w
        if RESIDUAL and READ_GATES:
            b_scaled = b_gate[:, None] * b_g.to(tl.float32)
            b_d_w = _mul(tl.trans(_tile(tiles, 0, o_c, C)), b_scaled, b_d_w, False, False, SPLIT, WORK)
        else:
            b_d_w = _mul(tl.trans(_tile(tiles, 0, o_c, C)), b_g, b_d_w, False, EXACT, SPLIT, WORK)
        if DELTA:
            if RESIDUAL and gamma is not None:
                b_m = _tile(tiles, 3, o_c, C)
            else:
                b_m = _tile(tiles, 2, o_c, C)
            b_d_w = _mul(tl.trans(b_m), b_d_w, nothing, False, False, SPLIT, WORK)
        _put(d_w + at, b_d_w, o_c, o_v, live, H * V, left)
        b_d_r = b_gamma[:, None] * b_d_w

        # the base's stage
        if RESIDUAL:
            b_d_v = b_slope * b_d_r
            b_aq = _base_read(tiles, o_c, C, READ_GATES, FACTORS)
            b_d_u = _mul(tl.trans(b_aq), b_g, b_tail[:, None] * b_d_u, False, EXACT, SPLIT, WORK)
            b_d_u = _mul(tl.trans(_tile(tiles, 1, o_c, C)), -b_d_v, b_d_u, False, False, SPLIT, WORK)
            b_d_p = -b_d_v
            if DELTA:
                b_d_u = _mul(tl.trans(_tile(tiles, 2, o_c, C)), b_d_u, nothing, False, False, SPLIT, WORK)
                b_d_p -= (b_alpha * b_beta)[:, None] * b_d_u
            _put(d_u + at, b_d_u, o_c, o_v, live, H * V, left)
            b_d_v += b_beta[:, None] * b_d_u
        else:
            b_d_v = b_d_r
        _put(d_v + at, b_d_v, o_c, o_v, live, H * V, left)

        # the memories before the chunk
        b_all = _whole(b_alpha, b_tail, o_c)
        b_g = b_g.to(tl.float32)
        b_into = tl.trans((scale * b_alpha * b_before * b_gate)[:, None] * b_g)
        b_d_residual = _written(b_d_residual, b_all, q + first * K, b_into, o_c, live, H, K, BK, SK, EXACT, SPLIT, WORK)
        if DELTA:
            b_into = tl.trans((-b_before * b_alpha)[:, None] * b_d_r)
            b_d_residual = _written(
                b_d_residual, 1.0, k + first * K, b_into, o_c, live, H, K, BK, SK, EXACT, SPLIT, WORK
            )
        if RESIDUAL:
            if READ_GATES:
                b_into = tl.trans((scale * b_alpha * b_before)[:, None] * b_g)
            else:
                b_into = tl.trans((scale * b_before)[:, None] * b_g)
            b_d_base = _written(b_d_base, b_all, q + first * K, b_into, o_c, live, H, K, BK, SK, EXACT, SPLIT, WORK)
            b_into = tl.trans(b_before[:, None] * b_d_p)
            b_d_base = _written(b_d_base, 1.0, k + first * K, b_into, o_c, live, H, K, BK, SK, EXACT, SPLIT, WORK)
    o_v = tl.arange(0, BV) + _zero(end)
    _put_memory(d_residual_in + state, b_d_residual, o_v, left, K, BK, SK)
    if RESIDUAL:
        _put_memory(d_base_in + state, b_d_base, o_v, left, K, BK, SK)


@triton.jit
def residual_table_grad_kernel(
    v, d_out, alpha, beta, gamma, tiles, kept_base, kept_residual, d_u, d_w, pulls, u, w, d_p, d_rp, d_alpha, d_beta,
    d_gamma, table, clip, scale, T, H,
    V: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, DELTA: tl.constexpr, RESIDUAL: tl.constexpr,
    READ_GATES: tl.constexpr, LOG_COSH: tl.constexpr, EXACT: tl.constexpr, SPLIT: tl.constexpr,
    WORK: tl.constexpr,
):  # fmt: skip
    """The gradients of Q K^T, and of K K^T plus its transpose, of one chunk and head, and what the gates are told by V
    and by the tables.

    Change: as in `residual_backward_kernel`. A gradient of a table of products needs no loop over its rows: retention m
    stands in D_ij and E_ij with a factor D_im E_mj (or E_im E_mj), so all of them are E * (D^T dD + E^T dE).
    Also leaves U, W, dP and d(R P) as `residual_row_grad_kernel` multiplies them.
    Reads 2 e V + 4 V of each memory that was kept and of each of the two gradients + 4 a gate + 4 C a tile; writes 4 w
    V, 8 C (4 C where there is no K K^T) and 4 a gate, w bytes a number that tensor cores take. 8 C V + 4 C^2 flops for
    two memories.
    """
    i = tl.program_id(0).to(tl.int64)
    i_c, i_h = i // H, i % H
    row, start, stop = tl.load(table + 4 * i_c), tl.load(table + 4 * i_c + 1), tl.load(table + 4 * i_c + 2)
    row, start, n = row.to(tl.int64), start.to(tl.int64), stop - start
    first = (row * T + start) * H + i_h
    o_c, o_v = tl.arange(0, C), tl.arange(0, BV)
    live = o_c < n
    o_g = first + o_c * H
    v += first * V
    d_out += first * V
    if alpha is None:
        b_alpha = tl.where(live, 1.0, 1.0)
    else:
        b_alpha = tl.load(alpha + o_g, mask=live, other=1.0)
    square = tl.zeros([C, C], tl.float32)
    none = tl.zeros([C], tl.float32)
    b_d_read, b_d_aq, b_d_le = square, square, square
    b_d_alpha, b_d_beta, b_d_gamma = none, none, none
    for column in range(0, V, BV):
        left = None if V % BV == 0 else V - column
        at = first * V + column
        b_g = _rows(d_out + column, o_c, o_v, live, H * V, left)
        b_beta, b_gamma, _, b_p, b_rp, b_x, b_y, b_slope = _again(
            v + column, alpha, beta, gamma, kept_base + at, kept_residual + at, o_g, o_c, o_v, live, left, H, clip,
            b_alpha, V, DELTA, RESIDUAL, READ_GATES, LOG_COSH,
        )  # fmt: skip
        b_d_w = _rows(d_w + at, o_c, o_v, live, H * V, left)
        b_d_gamma += tl.sum(b_d_w * b_y, 1)
        b_d_r, b_w = b_gamma[:, None] * b_d_w, b_gamma[:, None] * b_y
        _put(w + at, b_w, o_c, o_v, live, H * V, left)
        b_d_read = _mul(b_g, tl.trans(b_w), b_d_read, EXACT, False, SPLIT, WORK)
        if DELTA:
            b_d_alpha -= tl.sum(b_d_r * b_rp, 1)
            b_d_rp = -b_alpha[:, None] * b_d_r
            _put(d_rp + at, b_d_rp, o_c, o_v, live, H * V, left)
            b_d_le = _mul(b_d_rp, tl.trans(b_w), b_d_le, False, False, SPLIT, WORK)
        if RESIDUAL:
            b_d_u = _rows(d_u + at, o_c, o_v, live, H * V, left)
            b_d_beta += tl.sum(b_d_u * b_x, 1)
            b_u, b_d_p = b_beta[:, None] * b_x, -b_slope * b_d_r
            _put(u + at, b_u, o_c, o_v, live, H * V, left)
            if DELTA:
                b_d_alpha -= b_beta * tl.sum(b_d_u * b_p, 1)
                b_d_p -= (b_alpha * b_beta)[:, None] * b_d_u
            _put(d_p + at, b_d_p, o_c, o_v, live, H * V, left)
            b_d_aq = _mul(b_g, tl.trans(b_u), b_d_aq, EXACT, False, SPLIT, WORK)
            b_d_le = _mul(b_d_p, tl.trans(b_u), b_d_le, False, False, SPLIT, WORK)
    below = o_c[:, None] > o_c[None, :]
    b_tiles = tiles + i * (2 + (RESIDUAL or DELTA)) * C * C
    b_e = _tile(b_tiles, 0, o_c, C)
    read = _tile(b_tiles, 1, o_c, C)
    b_d = _through(b_e, b_alpha, o_c)
    if RESIDUAL and READ_GATES:
        b_d_gamma += tl.sum(b_d_read * read * b_d, 1)
        b_d_read = _read_gate(beta, gamma, o_g, live)[:, None] * b_d_read
    b_d_e = square
    b_d_d = b_d_read * read
    b_d_read = b_d_read * b_d
    if RESIDUAL:
        b_d_aq = tl.where(below, b_d_aq, 0.0)
        if READ_GATES:
            b_d_d += b_d_aq * read
            b_d_read += b_d_aq * b_d
        else:
            b_d_e = b_d_aq * read
            b_d_read += b_d_aq * b_e
    pulls += i * (1 + (RESIDUAL or DELTA)) * C * C + o_c[:, None] * C + o_c[None, :]
    tl.store(pulls, scale * b_d_read)
    if RESIDUAL or DELTA:
        b_d_e += tl.where(below, b_d_le, 0.0) * _tile(b_tiles, 2, o_c, C)
        b_d_le = b_d_le * b_e
        tl.store(pulls + C * C, b_d_le + tl.trans(b_d_le))
    if alpha is not None:
        b_t = _mul(tl.trans(b_d), b_d_d, square, False, False, SPLIT, WORK)
        if RESIDUAL or DELTA:
            b_t = _mul(tl.trans(b_e), b_d_e, b_t, False, False, SPLIT, WORK)
        tl.store(d_alpha + o_g, b_d_alpha + tl.sum(b_e * b_t, 1), mask=live)
    _put_gates(d_beta, d_gamma, b_d_beta, b_d_gamma, o_g, live, RESIDUAL)


@triton.jit
def _put_gates(d_beta, d_gamma, b_d_beta, b_d_gamma, at, live, RESIDUAL: tl.constexpr):
    """Store the gradients of both writes; of one, where the second is tied to the first."""
    if RESIDUAL:
        if d_gamma is None:
            b_d_beta += b_d_gamma
        tl.store(d_beta + at, b_d_beta, mask=live)
    if d_gamma is not None:
        tl.store(d_gamma + at, b_d_gamma, mask=live)


@triton.jit
def residual_row_grad_kernel(
    q, k, d_out, alpha, beta, gamma, tiles, pulls, u, w, d_p, d_rp, before_base, before_residual, after_base,
    after_residual, d_q, d_k, d_alpha, d_beta, d_gamma, table, scale, T, H, rows,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, DELTA: tl.constexpr,
    RESIDUAL: tl.constexpr, READ_GATES: tl.constexpr, EXACT: tl.constexpr, SPLIT: tl.constexpr,
    WORK: tl.constexpr,
):  # fmt: skip
    """BK columns of dq and dk of one chunk and head, and what the gates are told by these.

    Change: as in `residual_backward_kernel`. What the gates are told goes behind what the tables told them, one buffer
    of `rows` numbers a slice of K.
    Reads e 2 K, and for each of the SK = ceil(K / BK) slices e V + 4 w V + 4 a gate + 12 C (8 C where there is no K
    K^T); beside it 2 w K V / C a memory, w bytes a number that tensor cores take. Writes e 2 K + 4 SK a gate. 12 K V +
    6 C K flops for two memories.
    """
    SK: tl.constexpr = (K + BK - 1) // BK
    i = tl.program_id(0).to(tl.int64)
    i_k, i_c, i_h = i % SK, i // SK // H, i // SK % H
    i = i // SK
    row, start, stop = tl.load(table + 4 * i_c), tl.load(table + 4 * i_c + 1), tl.load(table + 4 * i_c + 2)
    row, start, n = row.to(tl.int64), start.to(tl.int64), stop - start
    first = (row * T + start) * H + i_h
    across = i_k * BK
    right = None if K % BK == 0 else (K - across).to(tl.int32)
    o_c, o_v, o_k = tl.arange(0, C), tl.arange(0, BV), tl.arange(0, BK)
    live = o_c < n
    o_g = first + o_c * H
    d_out += first * V
    b_q = _rows(q + first * K + across, o_c, o_k, live, H * K, right)
    b_k = _rows(k + first * K + across, o_c, o_k, live, H * K, right)
    b_alpha, b_before, b_tail = _decays(alpha, first, o_c, n, H)
    b_after = scale * b_alpha * b_before
    b_weight, b_base_weight = b_after, b_after
    if RESIDUAL and READ_GATES:
        b_weight = b_after * _read_gate(beta, gamma, o_g, live)
    elif RESIDUAL:
        b_base_weight = scale * b_before
    b_d_q, b_d_k = tl.zeros([C, BK], tl.float32), tl.zeros([C, BK], tl.float32)
    none = tl.zeros([C], tl.float32)
    of_q, of_base_q, of_k, of_tail, of_all = none, none, none, none, 0.0
    for column in range(0, V, BV):
        left = None if V % BV == 0 else V - column
        at, memory = first * V + column, i * K * V + column * K + across
        b_g = _rows(d_out + column, o_c, o_v, live, H * V, left)
        b_w = _rows(w + at, o_c, o_v, live, H * V, left)
        b_d_rp = b_w
        if DELTA:
            b_d_rp = _rows(d_rp + at, o_c, o_v, live, H * V, left)
        b_d_q, b_d_k, by_q, by_k, by_tail, by_all = _through_memory(
            before_residual + memory, after_residual + memory, b_q, b_k, b_g, b_d_rp, b_w, b_d_q, b_d_k, b_weight,
            b_before, b_tail, o_v, left, right, DELTA, K, BK, EXACT, SPLIT, WORK,
        )  # fmt: skip
        of_q += by_q
        of_k += by_k
        of_tail += by_tail
        of_all += by_all
        if RESIDUAL:
            b_d_p = _rows(d_p + at, o_c, o_v, live, H * V, left)
            b_u = _rows(u + at, o_c, o_v, live, H * V, left)
            b_d_q, b_d_k, by_q, by_k, by_tail, by_all = _through_memory(
                before_base + memory, after_base + memory, b_q, b_k, b_g, b_d_p, b_u, b_d_q, b_d_k, b_base_weight,
                b_before, b_tail, o_v, left, right, True, K, BK, EXACT, SPLIT, WORK,
            )  # fmt: skip
            of_base_q += by_q
            of_k += by_k
            of_tail += by_tail
            of_all += by_all
    pulls += i * (1 + (RESIDUAL or DELTA)) * C * C
    pull = _tile(pulls, 0, o_c, C)
    b_d_q = _mul(pull, b_k, b_d_q, False, EXACT, SPLIT, WORK)
    _put(d_q + first * K + across, b_d_q, o_c, o_k, live, H * K, right)
    b_d_k = _mul(tl.trans(pull), b_q, b_d_k, False, EXACT, SPLIT, WORK)
    if RESIDUAL or DELTA:
        b_d_k = _mul(_tile(pulls, 1, o_c, C), b_k, b_d_k, False, EXACT, SPLIT, WORK)
    _put(d_k + first * K + across, b_d_k, o_c, o_k, live, H * K, right)

    o_g += (1 + i_k) * rows
    if RESIDUAL and READ_GATES:
        _put_gates(d_beta, d_gamma, none, b_after * of_q, o_g, live, RESIDUAL)
        of_q = _read_gate(beta, gamma, first + o_c * H, live) * of_q + of_base_q
    else:
        _put_gates(d_beta, d_gamma, none, none, o_g, live, RESIDUAL)
        of_k += scale * of_base_q
    if alpha is not None:
        b_e = _tile(tiles + i * (2 + (RESIDUAL or DELTA)) * C * C, 0, o_c, C)
        b_d = _through(b_e, b_alpha, o_c)
        b_from = tl.sum(b_d * (scale * of_q)[:, None] + b_e * of_k[:, None], 0)
        b_d_alpha = b_tail * tl.sum(b_e * of_tail[None, :], 1) + b_before * (b_from + b_tail * of_all)
        tl.store(d_alpha + o_g, b_d_alpha, mask=live)


@triton.jit
def _through_memory(
    before, after, b_q, b_k, b_g, b_d_recalled, b_written, b_d_q, b_d_k, weight, b_before, b_tail, o_v, left, right,
    RECALLED: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, EXACT: tl.constexpr, SPLIT: tl.constexpr,
    WORK: tl.constexpr,
):  # fmt: skip
    """dq and dk, a slice of `right` columns at most, with what one memory adds to them. `before` is what it held,
    `after` the gradient of what it then held.

    It was read with `weight` q by dO, recalled with a- k (`b_d_recalled` is the gradient of that, where RECALLED), and
    written with h k and the rows `b_written`. Also the shares of the gradients of `weight`, of a- and of h [C], and of
    the decay of the whole chunk.
    """
    wide = tl.zeros([b_g.shape[0], BK], tl.float32)
    old = _memory_slice(before, o_v, left, right, K, BK)
    new = _memory_slice(after, o_v, left, right, K, BK)
    of_all = tl.sum(old.to(tl.float32) * new.to(tl.float32))
    x = _mul(b_g, old, wide, EXACT, False, SPLIT, WORK)
    of_q = tl.sum(b_q.to(tl.float32) * x, 1)
    b_d_q += weight[:, None] * x
    x = _mul(b_written, new, wide, False, False, SPLIT, WORK)
    of_tail = tl.sum(b_k.to(tl.float32) * x, 1)
    b_d_k += b_tail[:, None] * x
    of_k = 0.0 * of_tail
    if RECALLED:
        x = _mul(b_d_recalled, old, wide, False, False, SPLIT, WORK)
        of_k += tl.sum(b_k.to(tl.float32) * x, 1)
        b_d_k += b_before[:, None] * x
    return b_d_q, b_d_k, of_q, of_k, of_tail, of_all


@triton.jit
def residual_sum_kernel(parts, x, size, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """x = the sum of PARTS buffers of `size` numbers each, from the first to the last.

    Change: none. Reads 4 PARTS and writes 4 a number; no dot.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < size
    total = tl.load(parts + at, mask=there, other=0.0)
    for part in range(1, PARTS):
        total += tl.load(parts + part * size + at, mask=there, other=0.0)
    tl.store(x + at, total, mask=there)


# -- decoding --


@triton.jit
def residual_decode_kernel(
    q, k, v, alpha, beta, gamma, base, residual, out, clip, scale, T, H, at_k, at_v,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, DELTA: tl.constexpr, RESIDUAL: tl.constexpr,
    READ_GATES: tl.constexpr, LOG_COSH: tl.constexpr,
):  # fmt: skip
    """A few tokens, one after another, for BV columns of one row and head; the memories are updated where they lie.

    Change: none but that all four recalls of a token read the old memories, so that each is held once. Every sum is
    taken in float32 without tensor cores.
    Reads NV (2 e K + 12) + e V, and 8 K V a memory once for all tokens, in and out; 14 K V flops of two memories.
    """
    NV: tl.constexpr = (V + BV - 1) // BV
    i = tl.program_id(0).to(tl.int64)
    i_v, i_h, i_n = i % NV, i // NV % H, i // NV // H
    o_k, o_v = tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    in_k, in_v = o_k < K, o_v < V
    whole = in_k[:, None] & in_v[None, :]
    state = (i_n * H + i_h) * K * V + o_k[:, None] * at_k + o_v[None, :] * at_v
    b_residual = tl.load(residual + state, mask=whole, other=0.0)
    if RESIDUAL:
        b_base = tl.load(base + state, mask=whole, other=0.0)
    place = i_n * T * H + i_h
    q += place * K + o_k
    k += place * K + o_k
    v += place * V + o_v
    for _ in range(0, T):
        b_q = scale * tl.load(q, mask=in_k, other=0.0).to(tl.float32)
        b_k = tl.load(k, mask=in_k, other=0.0).to(tl.float32)
        b_v = tl.load(v, mask=in_v, other=0.0).to(tl.float32)
        b_alpha, b_gamma, b_read = 1.0, 1.0, 1.0
        if alpha is not None:
            b_alpha = tl.load(alpha + place)
        if gamma is not None:
            b_gamma = tl.load(gamma + place)
        b_out = tl.zeros([BV], tl.float32)
        b_r = b_v
        if RESIDUAL:
            b_beta = tl.load(beta + place)
            if gamma is None:
                b_gamma = b_beta
            recalled = tl.sum(b_k[:, None] * b_base, 0)
            b_r = _taught(b_v - recalled, clip, LOG_COSH)
            b_out = tl.sum(b_q[:, None] * b_base, 0)
            if READ_GATES:
                b_read = b_gamma
                b_out = b_alpha * b_out
            b_u = b_v
            if DELTA:
                b_u -= b_alpha * recalled
            b_base = b_alpha * b_base + b_k[:, None] * (b_beta * b_u)[None, :]
        if DELTA:
            b_r -= b_alpha * tl.sum(b_k[:, None] * b_residual, 0)
        b_residual = b_alpha * b_residual + b_k[:, None] * (b_gamma * b_r)[None, :]
        b_out += b_read * tl.sum(b_q[:, None] * b_residual, 0)
        tl.store(out + place * V + o_v, b_out.to(out.dtype.element_ty), mask=in_v)
        q += H * K
        k += H * K
        v += H * V
        place += H
    tl.store(residual + state, b_residual, mask=whole)
    if RESIDUAL:
        tl.store(base + state, b_base, mask=whole)


# -- how an operation is cut --


class Config(NamedTuple):
    """How the kernels divide their work.

    chunk           tokens a chunk
    state           numbers of one memory in a program: of the forward sweep,
    grad_state      and of the backward sweep, and of one step of the gradient kernel
    warps           of the forward sweep, of the kernels of the gradient, and of the tables
    grad_warps
    table_warps
    slice           the most columns of K that a product takes at a time
    split           whether a factor that tensor cores round goes in as two parts
    """

    chunk: int
    state: int
    grad_state: int
    warps: int
    grad_warps: int
    table_warps: int
    slice: int
    split: bool


CONFIGS = {
    "bf16": Config(16, 4096, 4096, 8, 4, 1, 64, False),
    # float16 is multiplied as tf32: memories would overflow in it
    "fp16": Config(16, 2048, 2048, 8, 8, 1, 64, False),
    # float32 is multiplied as tf32 in two parts
    "fp32": Config(16, 1024, 2048, 8, 8, 1, 64, True),
    # narrow slices and blocks, so that small operations have several
    "short": Config(16, 256, 256, 4, 4, 1, 32, True),
}
TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}  # which entry is whose


def default_config(dtype: torch.dtype) -> str:
    """The configuration for input of this type. It depends on nothing else, so that neither the batch nor the length
    changes how a sequence is summed.
    """
    return TYPES[dtype]


class _Operation:
    """What the launches of one operation share: sizes, chunks, gates as the kernels name them, and how it is cut."""

    def __init__(self, q, k, v, alpha, beta, gamma, cu_seqlens, rule, clip, target, read_gates, scale, config):
        self.rule, self.config = RULES[rule], CONFIGS[config]
        self.q, self.k, self.v = q.contiguous(), k.contiguous(), v.contiguous()
        (self.B, self.T, self.H, self.K), self.V = q.shape, v.shape[-1]
        self.at = _chunks(q, cu_seqlens, self.config.chunk)
        self.chunks = self.at.table.shape[0]
        self.alpha = alpha
        self.beta = beta if self.rule.residual else None
        self.gamma = gamma if self.rule.residual else beta
        self.numbers = (clip, scale, self.T, self.H)
        self.factor = torch.bfloat16 if q.dtype == torch.bfloat16 else torch.float32  # what tensor cores take
        pairs, inverses = self.rule.residual or self.rule.delta, 0
        if self.rule.delta:
            inverses = 1 + (self.rule.residual and gamma is not None)
        BK = min(self.config.slice, max(32, _power_of_two(self.K)))
        self.constants = {
            "K": self.K,
            "V": self.V,
            "BK": BK,
            "SK": -(-self.K // BK),
            "C": self.config.chunk,
            "FACTORS": 1 + pairs + inverses + (self.rule.residual and not read_gates),
            "DELTA": self.rule.delta,
            "RESIDUAL": self.rule.residual,
            "READ_GATES": read_gates,
            "LOG_COSH": target == "log_cosh",
            "EXACT": q.dtype != torch.float32,
            "SPLIT": self.config.split and q.dtype == torch.float32,
            "WORK": tl.bfloat16 if q.dtype == torch.bfloat16 else tl.float32,
        }

    def new(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return self.q.new_empty(shape, dtype=dtype)

    def columns(self, state: int) -> int:
        """Columns of V a program: `state` numbers of a memory at most, and fewer columns than a slice of K has."""
        most = min(64, state // _power_of_two(self.K), self.constants["BK"] // 2, _power_of_two(self.V))
        return max(16, most)

    def start(
        self, kernel: Any, grid: int, warps: int, tensors: tuple[Any, ...], numbers: tuple[Any, ...], **constants: Any
    ) -> None:
        """One launch; every kernel takes its tensors and its numbers, then constants by name."""
        every = self.constants | constants
        launch(
            kernel, (grid,), *tensors, *numbers,
            **{name: x for name, x in every.items() if name in kernel.arg_names},
            num_warps=warps, num_stages=1, maxnreg=REGISTERS,
        )  # fmt: skip

    def tables(self, keep: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """What `residual_table_kernel` leaves: factors and tiles, [chunks, H, number, C, C] each."""
        one, two = (self.beta, self.gamma) if self.rule.residual else (self.gamma, None)
        C, pairs = self.config.chunk, self.rule.residual or self.rule.delta
        factors = self.new(self.chunks, self.H, self.constants["FACTORS"], C, C, dtype=self.factor)
        tiles = self.new(self.chunks, self.H, 2 + pairs, C, C) if keep else self.new(0)
        tensors = (self.q, self.k, self.alpha, one, two, factors, tiles, self.at.table)
        warps = self.config.table_warps
        self.start(residual_table_kernel, self.chunks * self.H, warps, tensors, self.numbers[1:], KEEP=keep)
        return factors, tiles


def forward(
    q, k, v, alpha, beta, gamma, base, residual, cu_seqlens, rule: str, clip: float, target: str, read_gates: bool,
    scale: float, keep: bool, config: str,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """(out, base, residual, factors, tiles, recalls of base and residual, base and residual before each chunk): what
    `torch.ops.attnlab.residual_forward` returns. Gates [B, T, H], contiguous, and memories [N, H, K, V] are float32;
    gates may be None, gamma also where it is tied to beta. What a rule has not, or `keep` does not ask for, is empty.
    """
    op = _Operation(q, k, v, alpha, beta, gamma, cu_seqlens, rule, clip, target, read_gates, scale, config)
    two, none = op.rule.residual, op.new(0)
    out = op.new(op.B, op.T, op.H, op.V, dtype=v.dtype)
    factors, tiles = op.tables(keep)
    kept = [op.new(*out.shape) if keep and wanted else op.new(0) for wanted in (two, op.rule.delta)]
    before = [
        op.new(op.chunks, op.H, op.V, op.K, dtype=op.factor) if keep and wanted else op.new(0) for wanted in (two, True)
    ]
    first = [none if x is None else x.mT.contiguous() for x in ((base, residual) if two else (None, base))]
    last = [torch.empty_like(x) for x in first]
    BV = op.columns(op.config.state)
    tensors = (
        op.q, op.k, op.v, op.alpha, op.beta, op.gamma, factors, *first, out, *last, *kept, *before, *op.at
    )  # fmt: skip
    programs = first[1].shape[0] * op.H * -(-op.V // BV)
    op.start(residual_forward_kernel, programs, op.config.warps, tensors, op.numbers, BV=BV, KEEP=keep)
    if not two:
        last.reverse()
    return out, *(x.mT if x.ndim == 4 else x for x in last), factors, tiles, *kept, *before


def backward(
    d_out, d_base, d_residual, q, k, v, alpha, beta, gamma, factors, tiles, kept_base, kept_residual, before_base,
    before_residual, cu_seqlens, rule: str, clip: float, target: str, read_gates: bool, scale: float, config: str,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """(dq, dk, dv, d alpha, d beta, d gamma, d base, d residual) by kernels: what `torch.ops.attnlab.residual_backward`
    returns; empty for what was None. The gradient of a gamma that was None is in that of beta.
    """
    op = _Operation(q, k, v, alpha, beta, gamma, cu_seqlens, rule, clip, target, read_gates, scale, config)
    two, g = op.rule.residual, d_out.contiguous()
    gates, kept, before = (op.alpha, op.beta, op.gamma), (kept_base, kept_residual), (before_base, before_residual)
    none = op.new(0)
    sent = [none if x is None else x.mT.contiguous() for x in ((d_base, d_residual) if two else (None, d_base))]
    back = [torch.empty_like(x) for x in sent]
    after = [torch.empty_like(x) for x in before]
    d_q, d_k, d_v = (op.new(*x.shape, dtype=x.dtype) for x in (q, k, v))
    d_w = op.new(*v.shape)
    d_u = op.new(*v.shape) if two else op.new(0)
    BV = op.columns(op.config.grad_state)
    warps = op.config.grad_warps
    programs = sent[1].shape[0] * op.H * -(-op.V // BV)
    tensors = (op.q, op.k, op.v, g, *gates, factors, *kept, *sent, d_v, d_u, d_w, *after, *back, *op.at)
    op.start(residual_backward_kernel, programs, warps, tensors, op.numbers, BV=BV)
    C, rows = op.config.chunk, op.B * op.T * op.H
    pulls = op.new(op.chunks, op.H, 1 + (two or op.rule.delta), C, C)
    slices = op.constants["SK"]
    d_gates = [None if x is None else op.new(1 + slices, *x.shape) for x in gates]
    parts = [
        op.new(*v.shape, dtype=op.factor) if wanted else op.new(0, dtype=op.factor)
        for wanted in (two, True, two, op.rule.delta)
    ]
    tensors = (op.v, g, *gates, tiles, *kept, d_u, d_w, pulls, *parts, *d_gates, op.at.table)
    op.start(residual_table_grad_kernel, op.chunks * op.H, warps, tensors, op.numbers, BV=BV)
    tensors = (
        op.q, op.k, g, *gates, tiles, pulls, *parts, *before, *after, d_q, d_k, *d_gates, op.at.table
    )  # fmt: skip
    programs, numbers = op.chunks * op.H * slices, (*op.numbers[1:], rows)
    op.start(residual_row_grad_kernel, programs, warps, tensors, numbers, BV=BV)
    d_alpha, d_beta, d_gamma = (op.new(0) if x is None else _added_up(x) for x in d_gates)
    if not two:
        back.reverse()
        d_beta, d_gamma = d_gamma, d_beta
    return d_q, d_k, d_v, d_alpha, d_beta, d_gamma, *(x.mT if x.ndim == 4 else x for x in back)


def _added_up(parts: torch.Tensor) -> torch.Tensor:
    """parts.sum(0), in order."""
    total = torch.empty_like(parts[0])
    size, BLOCK = total.numel(), 1024
    launch(
        residual_sum_kernel, (-(-size // BLOCK),), parts, total, size, PARTS=parts.shape[0], BLOCK=BLOCK, num_warps=4,
        num_stages=1, maxnreg=REGISTERS,
    )  # fmt: skip
    return total


def decode(
    q, k, v, alpha, beta, gamma, base, residual, rule: str, clip: float, target: str, read_gates: bool, scale: float
) -> torch.Tensor:
    """A few tokens, one after another: out [B, T, H, V]; the memories [B, H, K, V] are updated in place."""
    op = _Operation(q, k, v, alpha, beta, gamma, None, rule, clip, target, read_gates, scale, default_config(q.dtype))
    out = op.new(op.B, op.T, op.H, op.V, dtype=v.dtype)
    memories = (base, residual) if op.rule.residual else (op.new(0), base)
    BV = op.columns(DECODED)
    tensors = (op.q, op.k, op.v, op.alpha, op.beta, op.gamma, *memories, out)
    programs = op.B * op.H * -(-op.V // BV)
    BK = max(16, _power_of_two(op.K))
    numbers = (*op.numbers, *base.stride()[2:])
    op.start(residual_decode_kernel, programs, 4, tensors, numbers, BV=BV, BK=BK)
    return out


DECODED = 4096  # numbers of each memory in a program of the decode step


# -- torch operations --


def _run(x: torch.Tensor, kernels: Any, *arguments: Any) -> Any:
    """Kernels run on a GPU, and anywhere in a process that interprets them."""
    if not (x.is_cuda or INTERPRETED):
        raise RuntimeError(
            f"q must be on a GPU, got {x.device}; with TRITON_INTERPRET=1 set before Python starts the kernels are "
            "interpreted on the CPU"
        )
    return kernels(*arguments)


@torch.library.custom_op("attnlab::residual_forward", mutates_args=())
def residual_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, alpha: torch.Tensor | None, beta: torch.Tensor | None,
    gamma: torch.Tensor | None, base: torch.Tensor, residual: torch.Tensor | None, cu_seqlens: torch.Tensor | None,
    rule: str, clip: float, target: str, read_gates: bool, scale: float, keep: bool, config: str,
) -> tuple[
    torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor,
    torch.Tensor,
]:  # fmt: skip
    """`forward`."""
    return _run(
        q, forward, q, k, v, alpha, beta, gamma, base, residual, cu_seqlens, rule, clip, target, read_gates, scale,
        keep, config,
    )  # fmt: skip


@residual_forward.register_fake
def _(
    q, k, v, alpha, beta, gamma, base, residual, cu_seqlens, rule, clip, target, read_gates, scale, keep, config
):  # fmt: skip
    with recorded():
        return forward(
            q, k, v, alpha, beta, gamma, base, residual, cu_seqlens, rule, clip, target, read_gates, scale, keep,
            config,
        )  # fmt: skip


@torch.library.custom_op("attnlab::residual_backward", mutates_args=())
def residual_backward(
    d_out: torch.Tensor, d_base: torch.Tensor, d_residual: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor,
    v: torch.Tensor, alpha: torch.Tensor | None, beta: torch.Tensor | None, gamma: torch.Tensor | None,
    factors: torch.Tensor, tiles: torch.Tensor, kept_base: torch.Tensor, kept_residual: torch.Tensor,
    before_base: torch.Tensor, before_residual: torch.Tensor, cu_seqlens: torch.Tensor | None, rule: str, clip: float,
    target: str, read_gates: bool, scale: float, config: str,
) -> tuple[
    torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
]:  # fmt: skip
    """`backward`."""
    return _run(
        q, backward, d_out, d_base, d_residual, q, k, v, alpha, beta, gamma, factors, tiles, kept_base, kept_residual,
        before_base, before_residual, cu_seqlens, rule, clip, target, read_gates, scale, config,
    )  # fmt: skip


@residual_backward.register_fake
def _(
    d_out, d_base, d_residual, q, k, v, alpha, beta, gamma, factors, tiles, kept_base, kept_residual, before_base,
    before_residual, cu_seqlens, rule, clip, target, read_gates, scale, config,
):  # fmt: skip
    with recorded():
        return backward(
            d_out, d_base, d_residual, q, k, v, alpha, beta, gamma, factors, tiles, kept_base, kept_residual,
            before_base, before_residual, cu_seqlens, rule, clip, target, read_gates, scale, config,
        )  # fmt: skip


def _save(ctx, inputs, output):
    q, k, v, alpha, beta, gamma, _, residual, cu_seqlens, rule, clip, target, read_gates, scale, keep, config = inputs
    _, _, _, *kept = output
    ctx.save_for_backward(q, k, v, alpha, beta, gamma, *kept, cu_seqlens)
    ctx.options, ctx.keep, ctx.two = (rule, clip, target, read_gates, scale, config), keep, residual is not None
    ctx.mark_non_differentiable(*kept)


def _gradients(ctx, d_out, d_base, d_residual, *_):
    if not ctx.keep:
        raise RuntimeError("residual_forward must be called with keep=True for a gradient, got keep=False")
    *saved, cu_seqlens = ctx.saved_tensors
    given = [x is not None for x in saved[3:6]]
    got = residual_backward(d_out, d_base, d_residual if ctx.two else None, *saved, cu_seqlens, *ctx.options)
    d_q, d_k, d_v, *d_gates, d_base, d_residual = got
    d_gates = [x if is_given else None for x, is_given in zip(d_gates, given, strict=True)]
    return d_q, d_k, d_v, *d_gates, d_base, d_residual if ctx.two else None, *[None] * 8


def _refuse_second_derivative(ctx, *gradients):
    raise RuntimeError(
        "residual attention has no second derivative here: its gradient is computed by kernels that keep no graph."
    )


torch.library.register_autograd("attnlab::residual_forward", _gradients, setup_context=_save)
torch.library.register_autograd("attnlab::residual_backward", _refuse_second_derivative)


@torch.library.custom_op("attnlab::residual_decode", mutates_args=("base", "residual"))
def residual_decode(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, alpha: torch.Tensor | None, beta: torch.Tensor | None,
    gamma: torch.Tensor | None, base: torch.Tensor, residual: torch.Tensor | None, rule: str, clip: float, target: str,
    read_gates: bool, scale: float,
) -> torch.Tensor:  # fmt: skip
    """`decode`."""
    arguments = (q, k, v, alpha, beta, gamma, base, residual, rule, clip, target, read_gates, scale)
    return _run(q, decode, *arguments)


@residual_decode.register_fake
def _(q, k, v, alpha, beta, gamma, base, residual, rule, clip, target, read_gates, scale):
    return v.new_empty(*q.shape[:3], v.shape[-1])


# -- the public door --


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    retention: torch.Tensor | None = None,
    write: torch.Tensor | None = None,
    correction: torch.Tensor | None = None,
    *,
    rule: str = "rdn",
    clip: float = 1.0,
    target: str = "clip",
    read_gates: bool = True,
    scale: float = 1.0,
    state: tuple[torch.Tensor, torch.Tensor | None] | None = None,
    cu_seqlens: torch.Tensor | None = None,
    config: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Residual linear attention, or a recurrence it is compared with: (out [B, T, H, V] in v's type, base [N, H, K, V]
    and residual [N, H, K, V] or None, in float32, after the last token).

    q, k [B, T, H, K] and v [B, T, H, V] of one type, float32, float16 or bfloat16, K and V up to 256, any strides (they
    are made contiguous). Gates [B, T, H], or of any shape that expands to it, of any float type: `retention` in [0, 1],
    exact at 0; `write` and `correction`, which is `write` where it is not given. A gate that the rule does not have
    must be None. Their ranges are not read: that would make a GPU wait. Differentiable in q, k, v, the gates and
    `state`; a second derivative raises RuntimeError.

    `rule`, `clip` (inf allowed), `target` and `read_gates` as in attnlab.residual.attention; `scale` multiplies what is
    read. `state` is (base, residual) of earlier tokens. `cu_seqlens` [N + 1], integers from 0 to T, packs N sequences
    (empty ones too) into B = 1; N = B otherwise. `config` names an entry of CONFIGS: that of the type, or "short". The
    same call gives the same bits. The kernels run on a GPU, and with TRITON_INTERPRET=1 interpreted on the CPU.

    Raises ValueError or TypeError naming the argument, what was wanted and what came; RuntimeError where there is
    nothing to run on. Source: arXiv:2509.25223v1, pp. 4-5 and Listing 1 (p. 15).
    """
    gates = _checked(q, k, v, retention, write, correction, rule, clip, target, scale)
    N = q.shape[0] if cu_seqlens is None else _checked_bounds(cu_seqlens, q)
    memories = _checked_state(state, (N, q.shape[2], q.shape[3], v.shape[3]), q, rule)
    config = default_config(q.dtype) if config is None else config
    if config not in (default_config(q.dtype), *(name for name in CONFIGS if name not in TYPES.values())):
        raise ValueError(f"config must be {default_config(q.dtype)!r} or 'short' for {q.dtype}, got {config!r}")
    given = (q, k, v, *gates, *memories)
    keep = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given)
    out, base, residual, *_ = residual_forward(
        *given, cu_seqlens, rule, float(clip), target, bool(read_gates), float(scale), keep, config
    )
    return out, base, residual if RULES[rule].residual else None


def decode_step(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, retention: torch.Tensor | None, write: torch.Tensor | None,
    correction: torch.Tensor | None, base: torch.Tensor, residual: torch.Tensor | None = None, *, rule: str = "rdn",
    clip: float = 1.0, target: str = "clip", read_gates: bool = True, scale: float = 1.0,
) -> torch.Tensor:  # fmt: skip
    """A few tokens, one after another: out [B, T, H, V]. Arguments as in `attention`.

    base and residual [B, H, K, V], float32 and dense (as `attention` returns them, or contiguous), are updated in
    place: each is read once and written once for all T tokens. There is no gradient; a tensor that requires one is
    refused. Errors as in `attention`.
    """
    gates = _checked(q, k, v, retention, write, correction, rule, clip, target, scale)
    shape = (q.shape[0], q.shape[2], q.shape[3], v.shape[3])
    _checked_state((base, residual), shape, q, rule)
    for name, x in {"base": base, "residual": residual}.items():
        if x is not None and not ((x.is_contiguous() or x.mT.is_contiguous()) and x.stride() == base.stride()):
            raise ValueError(
                f"{name} must be contiguous, or that but for its last two axes, and laid out as base, since it is "
                f"updated in place, got strides {x.stride()}"
            )
    names = ("q", "k", "v", "retention", "write", "correction", "base", "residual")
    for name, x in zip(names, (q, k, v, *gates, base, residual), strict=True):
        if torch.is_grad_enabled() and x is not None and x.requires_grad:
            raise ValueError(f"{name} requires a gradient, and a decode step has none; detach it")
    return residual_decode(q, k, v, *gates, base, residual, rule, float(clip), target, bool(read_gates), float(scale))


def _checked(q, k, v, retention, write, correction, rule, clip, target, scale) -> list[torch.Tensor | None]:
    """The gates [B, T, H] in float32, contiguous, with the checks of `attention` and `decode_step`."""
    for name, x, axes in (("q", q, "[B, T, H, K]"), ("k", k, "[B, T, H, K]"), ("v", v, "[B, T, H, V]")):
        if not isinstance(x, torch.Tensor) or x.ndim != 4:
            raise TypeError(f"{name} must be a tensor {axes}, got {_described(x)}")
        if x.dtype not in DTYPES:
            raise TypeError(f"{name} must be one of float32, float16, bfloat16, got {x.dtype}")
        if not 1 <= x.shape[-1] <= MAX_WIDTH:
            raise ValueError(f"{name} must have a width of 1 to {MAX_WIDTH}, got {x.shape[-1]}")
    _expect("k", k, tuple(q.shape), (q.dtype,), q)
    _expect("v", v, (*q.shape[:3], v.shape[-1]), (q.dtype,), q)
    longest = max(config.chunk for config in CONFIGS.values())
    token = q.shape[2] * max(q.shape[3], v.shape[3])
    if token * longest >= 2**31:
        raise ValueError(
            f"q must have fewer heads: a program counts the numbers of its {longest} tokens in 32 bits, so that heads "
            f"times max(K, V) stay under {2**31 // longest}, got {token}"
        )
    if rule not in RULES:
        raise ValueError(f"rule must be one of {', '.join(map(repr, RULES))}, got {rule!r}")
    if target not in ("clip", "log_cosh"):
        raise ValueError(f"target must be 'clip' or 'log_cosh', got {target!r}")
    if not clip >= 0:
        raise ValueError(f"clip must be at least 0, got {clip}")
    if not abs(scale) < float("inf"):
        raise ValueError(f"scale must be a finite number, got {scale}")
    has = RULES[rule]
    wanted = {"retention": has.retention, "write": has.write, "correction": has.residual and correction is not None}
    gates: list[torch.Tensor | None] = []
    for (name, is_wanted), gate in zip(wanted.items(), (retention, write, correction), strict=True):
        if is_wanted != (gate is not None):
            raise ValueError(
                f"{name} must be {'given' if is_wanted else 'None'} for rule={rule!r}, got {type(gate).__name__}"
            )
        gates.append(None if gate is None else _gate_of(name, gate, q))
    return gates


def _gate_of(name: str, gate: Any, q: torch.Tensor) -> torch.Tensor:
    shape = q.shape[:3]
    if not isinstance(gate, torch.Tensor) or not gate.is_floating_point() or gate.ndim > 3 or any(
        have not in (1, want) for have, want in zip(reversed(gate.shape), reversed(shape), strict=False)
    ):  # fmt: skip
        raise ValueError(f"{name} must be a tensor of floats {list(shape)}, got {_described(gate)}")
    if gate.device != q.device:
        raise ValueError(f"{name} must be where q is, on {q.device}, got {gate.device}")
    return gate.to(torch.float32).expand(shape).contiguous()


def _checked_state(state: Any, shape, q: torch.Tensor, rule: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Base and residual: zeros if there was no state."""
    two = RULES[rule].residual
    if state is None:
        N, H, K, V = shape
        base, residual = (q.new_zeros((N, H, V, K), dtype=torch.float32).mT for _ in range(2))
        return base, residual if two else None
    if not isinstance(state, (tuple, list)) or len(state) != 2:
        raise TypeError(f"state must be a pair (base, residual), got {_described(state)}")
    base, residual = state
    _expect("base", base, tuple(shape), (torch.float32,), q)
    if two != (residual is not None):
        raise ValueError(f"residual must be {'given' if two else 'None'} for rule={rule!r}, got {_described(residual)}")
    if two:
        _expect("residual", residual, tuple(shape), (torch.float32,), q)
    return base, residual


def _checked_bounds(cu_seqlens: Any, q: torch.Tensor) -> int:
    """The number of sequences. On a GPU what the bounds hold is not read: that would make it wait."""
    if not isinstance(cu_seqlens, torch.Tensor) or cu_seqlens.ndim != 1 or cu_seqlens.dtype not in (
        torch.int32, torch.int64
    ):  # fmt: skip
        raise TypeError(f"cu_seqlens must be a tensor [N + 1] of int32 or int64, got {_described(cu_seqlens)}")
    if cu_seqlens.shape[0] < 1 or q.shape[0] != 1:
        raise ValueError(
            f"cu_seqlens must have at least one entry and q one row, got {cu_seqlens.shape[0]} and {q.shape[0]}"
        )
    if cu_seqlens.device.type == "cpu" and not torch.compiler.is_compiling():
        bounds = cu_seqlens.tolist()
        if bounds[0] != 0 or bounds[-1] != q.shape[1] or any(a > b for a, b in itertools.pairwise(bounds)):
            raise ValueError(f"cu_seqlens must rise from 0 to T = {q.shape[1]}, got {bounds}")
    return cu_seqlens.shape[0] - 1
