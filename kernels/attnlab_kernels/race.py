"""RACE attention on a GPU: Algorithms 1 and 2 (pp. 5 and 27) of arXiv:2510.04008v5 in Triton, with gradients.

The definition is attnlab/race/reference.py. What the kernels change from it, and what that buys:
    sigmoid features   phi is a product of sigmoid(+-2 beta u) (p. 22), taken as a sum of logarithms and made again
                       wherever it is needed: no feature is ever stored. Good for 2 beta P <= 80
    projections        where q and k are both walked, x W^T is made once: L P numbers a token in place of K
    chunks             a program sweeps one chunk of tokens, tile by tile, with the state in registers
    two-level scan     tiles inside a chunk, then one scan over the chunks' sums. A prefix is always built forward,
                       never subtracted from a total
    causal tiles       inside a tile the state is not needed: (Phi_Q Phi_K^T * tril) V
    split products     float32 operands, planes and states go to the tensor cores in two parts (`_dot`)
    rounded features   for 16-bit input the features are rounded to what the tensor core takes before they are summed
                       into mass and content alike, so every output is still a convex combination of values
    no atomics         every sum has one owner and one order: the same call gives the same bits, whatever the batch

Letters: P planes, L tables, R = 2^P buckets, K and V widths. In the code b_ is a value in registers, BT tokens a tile,
BL tables a program, PP planes rounded up so that a matrix product takes them, LR = BL R buckets a program.
One program holds LR <= 64 buckets; more tables than that are done in groups, one launch a group.

Bytes and flops are given per token and head for one group, with e bytes an input number and s = 4 L R (V + 1) bytes of
state a chunk; a product with a split operand counts once.
"""

import itertools
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from attnlab_kernels import race_plain
from attnlab_kernels._shared import (
    DTYPES,
    INTERPRETED,
    REGISTERS,
    _described,
    _dot,
    _expect,
    _power_of_two,
    _tf32,
)
from attnlab_kernels.launch import launch

__all__ = ["CONFIGS", "Config", "attention", "decode_step"]

MAX_PLANES, MAX_WIDTH = 6, 256
MAX_LOGIT, MAX_LOGIT_64 = 80.0, 600.0  # of 2 beta P, in float32 and (on a CPU) in float64: no feature underflows


# -- what the kernels share: products, features and their gradient --


@triton.jit
def _round(x, EXACT: tl.constexpr, WORK: tl.constexpr):
    """x as the tensor core takes it (WORK bfloat16, or tf32 where WORK is float32), in float32; EXACT False keeps x."""
    if not EXACT:
        rounded = x
    elif WORK == tl.bfloat16:
        rounded = x.to(tl.bfloat16).to(tl.float32)
    else:
        rounded = _tf32(x)
    return rounded


# A row of K or V numbers is held as a tuple of S slices, BS columns each: a product over the whole row goes slice by
# slice, so that the operands of only one slice are in registers at a time.


@triton.jit
def _rows(x, o_t, live, stride, W: tl.constexpr, BS: tl.constexpr, S: tl.constexpr):
    """Rows o_t of x in S slices [BT, BS]; 0 beyond the width W and where a row is not live."""
    rows = ()
    for s in tl.static_range(S):
        o_w = s * BS + tl.arange(0, BS)
        here = live[:, None] & (o_w < W)[None, :]
        rows = rows + (tl.load(x + o_t[:, None] * stride + o_w[None, :], mask=here, other=0.0),)  # type: ignore[assignment]
    return rows


@triton.jit
def _inner(a, b, A: tl.constexpr, B: tl.constexpr, WORK: tl.constexpr, S: tl.constexpr):
    """a b^T of two rows in slices: [M, BS] S times and [N, BS] S times to [M, N]."""
    out = tl.zeros([a[0].shape[0], b[0].shape[0]], tl.float32)
    for s in tl.static_range(S):
        out = _dot(a[s], tl.trans(b[s]), out, A, B, WORK)
    return out


@triton.jit
def _pairs(a, b, WORK: tl.constexpr, S: tl.constexpr):
    """a b^T of two tiles of tokens, [BT, BT]: `_inner` in bfloat16. Operands of four bytes, twice a whole row each, do
    not fit into the registers beside everything else: their products are taken without a tensor core.
    """
    if WORK == tl.bfloat16:
        out = _inner(a, b, True, True, WORK, S)
    else:
        out = tl.zeros([a[0].shape[0], b[0].shape[0]], tl.float32)
        for s in tl.static_range(S):
            out += tl.sum(a[s].to(tl.float32)[:, None, :] * b[s].to(tl.float32)[None, :, :], 2)
    return out


@triton.jit
def _outer(a, b, out, A: tl.constexpr, B: tl.constexpr, WORK: tl.constexpr, S: tl.constexpr):
    """out + a b: [M, N] times [N, BS] S times, in slices."""
    sums = ()
    for s in tl.static_range(S):
        sums = sums + (_dot(a, b[s], out[s], A, B, WORK),)  # type: ignore[assignment]
    return sums


@triton.jit
def _none(M: tl.constexpr, BS: tl.constexpr, S: tl.constexpr):
    """Zeros, [M, BS] S times."""
    zeros = ()
    for _ in tl.static_range(S):
        zeros = zeros + (tl.zeros([M, BS], tl.float32),)  # type: ignore[assignment]
    return zeros


@triton.jit
def _put(
    x, part, scale, sums, o_t, live, stride, W: tl.constexpr, BS: tl.constexpr, S: tl.constexpr, FIRST: tl.constexpr,
    LAST: tl.constexpr,
):  # fmt: skip
    """Store `part`, S slices [BT, BS], times `scale` [BT] in x in x's type; where tables come in groups, add up the
    groups in `sums` first.
    """
    for s in tl.static_range(S):
        o_w = s * BS + tl.arange(0, BS)
        at = o_t[:, None] * stride + o_w[None, :]
        here = live[:, None] & (o_w < W)[None, :]
        b_part = part[s]
        if not FIRST:
            b_part += tl.load(sums + at, mask=here, other=0.0)
        if LAST:
            if scale is not None:
                b_part *= scale[:, None]
            tl.store(x + at, b_part.to(x.dtype.element_ty), mask=here)
        else:
            tl.store(sums + at, b_part, mask=here)


@triton.jit
def _sigmoids(x):
    """sigmoid(x) and sigmoid(-x), neither by subtraction from 1: both keep their relative precision."""
    small = tl.exp(-tl.abs(x))
    large = 1.0 / (1.0 + small)
    small = small * large
    return tl.where(x >= 0, large, small), tl.where(x >= 0, small, large)


@triton.jit
def _group(i_g, P: tl.constexpr, BL: tl.constexpr, RB: tl.constexpr):
    """The first table of group i_g, and its first bucket in that table: a group is BL tables, or RB buckets of one."""
    PARTS: tl.constexpr = (1 << P) // RB
    return i_g // PARTS * BL, i_g % PARTS * RB


@triton.jit
def _planes(
    planes, i_h, i_l, L, K: tl.constexpr, P: tl.constexpr, BL: tl.constexpr, PP: tl.constexpr, BK: tl.constexpr,
    SK: tl.constexpr,
):  # fmt: skip
    """W of BL tables from table i_l on, in slices [BL PP, BK]; 0 where there is no such table, plane or column."""
    o_c = tl.arange(0, BL * PP)
    o_l, o_p = i_l + o_c // PP, o_c % PP
    return _rows(planes, (i_h * L + o_l) * P + o_p, (o_l < L) & (o_p < P), K, K, BK, SK)


@triton.jit
def _buckets(i_l, i_r, L, P: tl.constexpr, BL: tl.constexpr, RB: tl.constexpr):
    """Numbers of the program's buckets in a head, and which of them are there: [BL RB] each."""
    o_b = tl.arange(0, BL * RB)
    o_l = i_l + o_b // RB
    return o_l * (1 << P) + i_r + o_b % RB, o_l < L


@triton.jit
def _corners(i_r, P: tl.constexpr, BL: tl.constexpr, PP: tl.constexpr, RB: tl.constexpr):
    """[2 BL PP, BL RB] of 0 and 1: row 2 c for the buckets that have plane c of their table set, row 2 c + 1 for those
    that have not.
    """
    o_c, o_b = tl.arange(0, 2 * BL * PP), tl.arange(0, BL * RB)
    o_p = o_c // 2 % PP
    mine = (o_c[:, None] // (2 * PP) == o_b[None, :] // RB) & (o_p < P)[:, None]
    bit = ((i_r + o_b % RB)[None, :] >> o_p[:, None]) & 1
    return tl.where(mine & (bit != (o_c % 2)[:, None]), 1.0, 0.0)


@triton.jit
def _columns(place, o_t, live, i_l, H, L, P: tl.constexpr, BL: tl.constexpr, PP: tl.constexpr):
    """Where the projections of BL tables stand in [B, T, H, L, P], and which of them are there: [BT, BL PP] each."""
    o_c = tl.arange(0, BL * PP)
    o_l, o_p = i_l + o_c // PP, o_c % PP
    at = place * (L * P) + o_t[:, None] * (H * L * P) + (o_l * P + o_p)[None, :]
    return at, live[:, None] & ((o_l < L) & (o_p < P))[None, :]


@triton.jit
def _projections(
    y, place, o_t, live, i_l, H, L, P: tl.constexpr, BL: tl.constexpr, PP: tl.constexpr,
):  # fmt: skip
    """x W^T as `project_kernel` left it, [BT, BL PP]."""
    at, here = _columns(place, o_t, live, i_l, H, L, P, BL, PP)
    return tl.load(y + at, mask=here, other=0.0)


@triton.jit
def _put_projections(
    y, part, place, o_t, live, i_l, i_r, H, L, P: tl.constexpr, BL: tl.constexpr, PP: tl.constexpr,
    RB: tl.constexpr,
):  # fmt: skip
    """Store `part` [BT, BL PP] in y; where a table's buckets come in groups, add it to what the earlier ones left."""
    at, here = _columns(place, o_t, live, i_l, H, L, P, BL, PP)
    if RB < 1 << P:
        part += tl.load(y + at, mask=here & (i_r > 0), other=0.0)
    tl.store(y + at, part, mask=here)


@triton.jit
def _features(
    y, b_beta, live, i_l, i_r, L, P: tl.constexpr, BL: tl.constexpr, PP: tl.constexpr, RB: tl.constexpr,
    WORK: tl.constexpr,
):  # fmt: skip
    """phi [BT, BL RB] of projections y, plane p in bit p; 0 for tokens that are not live and tables that are not there.

    phi is the product of P sigmoids of +-2 beta u (p. 22), u = tanh(y) = 2 sigmoid(2 y) - 1. It is taken as a sum of
    logarithms, which a matrix of 0 and 1 adds up for all buckets at once.
    """
    right, left = _sigmoids(2.0 * y)
    logit = 2.0 * b_beta * (right - left)
    tail = tl.log(1.0 + tl.exp(-tl.abs(logit)))
    bits = tl.join(tl.minimum(logit, 0.0) - tail, tl.minimum(-logit, 0.0) - tail)
    bits = tl.reshape(bits, [y.shape[0], 2 * BL * PP])
    zeros = tl.zeros([y.shape[0], BL * RB], tl.float32)
    log_phi = _dot(bits, _corners(i_r, P, BL, PP, RB), zeros, False, True, WORK)
    _, there = _buckets(i_l, i_r, L, P, BL, RB)
    return tl.where(live[:, None] & there[None, :], tl.exp(log_phi), 0.0)


@triton.jit
def _through_features(
    d_phi, phi, y, b_beta, i_r, P: tl.constexpr, BL: tl.constexpr, PP: tl.constexpr, RB: tl.constexpr,
    EXACT: tl.constexpr, WORK: tl.constexpr,
):  # fmt: skip
    """(dy, d beta) from d phi: a bit that is set has d log phi = sigmoid(-logit), one that is not -sigmoid(logit)."""
    right, left = _sigmoids(2.0 * y)
    u = right - left
    on, off = _sigmoids(2.0 * b_beta * u)
    zeros = tl.zeros([y.shape[0], 2 * BL * PP], tl.float32)
    shares = _dot(d_phi * phi, tl.trans(_corners(i_r, P, BL, PP, RB)), zeros, EXACT, True, WORK)
    is_on, is_off = tl.split(tl.reshape(shares, [y.shape[0], BL * PP, 2]))
    d_logit = is_on * off - is_off * on
    return 8.0 * b_beta * right * left * d_logit, tl.sum(2.0 * u * d_logit)  # du / dy = 1 - u^2 = 4 right left


@triton.jit
def _load_state(
    mass, content, i_n, i_h, i_l, i_r, H, L, V: tl.constexpr, P: tl.constexpr, BL: tl.constexpr, RB: tl.constexpr,
    BV: tl.constexpr, SV: tl.constexpr,
):  # fmt: skip
    """The program's buckets of state i_n of head i_h in float32; 0 where there is no bucket."""
    o_b, there = _buckets(i_l, i_r, L, P, BL, RB)
    first = (i_n.to(tl.int64) * H + i_h) * L * (1 << P)
    b_mass = tl.load(mass + first + o_b, mask=there, other=0.0).to(tl.float32)
    slices = ()
    for s in tl.static_range(SV):
        o_v = s * BV + tl.arange(0, BV)
        here = there[:, None] & (o_v < V)[None, :]
        b_slice = tl.load(content + first * V + o_b[:, None] * V + o_v[None, :], mask=here, other=0.0)
        slices = slices + (b_slice.to(tl.float32),)  # type: ignore[assignment]
    return b_mass, slices


@triton.jit
def _store_state(
    mass, content, b_mass, b_content, i_n, i_h, i_l, i_r, H, L, V: tl.constexpr, P: tl.constexpr, BL: tl.constexpr,
    RB: tl.constexpr, BV: tl.constexpr, SV: tl.constexpr,
):  # fmt: skip
    """Put the program's buckets where state i_n of head i_h lies."""
    o_b, there = _buckets(i_l, i_r, L, P, BL, RB)
    first = (i_n.to(tl.int64) * H + i_h) * L * (1 << P)
    tl.store(mass + first + o_b, b_mass, mask=there)
    for s in tl.static_range(SV):
        o_v = s * BV + tl.arange(0, BV)
        here = there[:, None] & (o_v < V)[None, :]
        tl.store(content + first * V + o_b[:, None] * V + o_v[None, :], b_content[s], mask=here)


@triton.jit
def _over(den):
    """1 / den, and 0 where a query met no mass."""
    return tl.where(den > 0, 1.0 / tl.where(den > 0, den, 1.0), 0.0)


# -- write: the sums of a chunk --


@triton.jit(do_not_specialize=["i_g"])
def write_kernel(
    k, v, planes, beta, mass, content, y_k, table, i_g, H, L, T,
    k_b, k_t, k_h, v_b, v_t, v_h,
    K: tl.constexpr, V: tl.constexpr, P: tl.constexpr, BL: tl.constexpr, PP: tl.constexpr, RB: tl.constexpr,
    BT: tl.constexpr, BK: tl.constexpr, SK: tl.constexpr, BV: tl.constexpr, SV: tl.constexpr, EXACT: tl.constexpr,
    WORK: tl.constexpr, FUSED: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """A = sum_j phi(k_j) and B = sum_j phi(k_j) v_j^T over one chunk of keys (Algorithm 1, p. 5).

    Change: a chunk is a matrix product Phi_K^T V, tile by tile, and only its sums leave the program. KEEP also leaves
    the projections k W^T, so that the causal sweep need not read k again. Without FUSED they are read: in float32 the
    two parts of wide planes leave no registers for anything else.
    Reads e (K + V), writes s / chunk, with KEEP 4 L P more; 2 K L P + 2 V L R flops.
    """
    i_c, i_h = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i_l, i_r = _group(i_g, P, BL, RB)
    row, start, stop = tl.load(table + 4 * i_c), tl.load(table + 4 * i_c + 1), tl.load(table + 4 * i_c + 2)
    k += row.to(tl.int64) * k_b + start.to(tl.int64) * k_t + i_h * k_h
    v += row.to(tl.int64) * v_b + start.to(tl.int64) * v_t + i_h * v_h
    place = (row.to(tl.int64) * T + start) * H + i_h  # of the chunk's first token in what is stored by token and head
    if FUSED:
        b_w = _planes(planes, i_h, i_l, L, K, P, BL, PP, BK, SK)
    b_beta = tl.load(beta + i_h)
    b_mass = tl.zeros([BL * RB], tl.float32)
    b_content = _none(BL * RB, BV, SV)
    for t in range(0, stop - start, BT):
        o_t = t + tl.arange(0, BT)
        live = o_t < stop - start
        b_v = _rows(v, o_t, live, v_t, V, BV, SV)
        if FUSED:
            b_y = _inner(_rows(k, o_t, live, k_t, K, BK, SK), b_w, EXACT, False, WORK, SK)
        else:
            b_y = _projections(y_k, place, o_t, live, i_l, H, L, P, BL, PP)
        if KEEP:
            at, here = _columns(place, o_t, live, i_l, H, L, P, BL, PP)
            tl.store(y_k + at, b_y, mask=here)
        phi_k = _round(_features(b_y, b_beta, live, i_l, i_r, L, P, BL, PP, RB, WORK), EXACT, WORK)
        b_mass += tl.sum(phi_k, 0)
        b_content = _outer(tl.trans(phi_k), b_v, b_content, EXACT, EXACT, WORK, SV)
    _store_state(mass, content, b_mass, b_content, i_c, i_h, i_l, i_r, H, L, V, P, BL, RB, BV, SV)


# -- scan: from the chunks' sums to what stands before each chunk, and after the last --


@triton.jit
def scan_kernel(
    sums, first, last, bounds, H, E,
    PREFIX: tl.constexpr, REVERSE: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Replace the sums [C, H, E] of a sequence's chunks by what stood before each of them, in chunk order; `last`
    [N, H, E] is `first` plus all of them, added in the type of `first`. REVERSE goes from the last chunk to the first.

    Change: Algorithm 2 (p. 27) carries one state from token to token; here it moves from chunk to chunk, and the order
    of the additions does not depend on how many programs there are. Reads s / chunk, writes as much with PREFIX; no
    dot.
    """
    i_n, i_h, i_e = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    o_e = i_e * BE + tl.arange(0, BE)
    there = o_e < E
    begin, end = tl.load(bounds + i_n), tl.load(bounds + i_n + 1)
    whole = (i_n.to(tl.int64) * H + i_h) * E + o_e
    b_first = tl.load(first + whole, mask=there, other=0.0)
    b_total = tl.zeros([BE], tl.float32)
    for step in range(0, end - begin):
        i_c = begin + step
        if REVERSE:
            i_c = end - 1 - step
        at = (i_c.to(tl.int64) * H + i_h) * E + o_e
        b_sum = tl.load(sums + at, mask=there, other=0.0)
        if PREFIX:
            tl.store(sums + at, b_first.to(tl.float32) + b_total, mask=there)
        b_total += b_sum
    tl.store(last + whole, b_first + b_total, mask=there)


# -- read: the outputs --


@triton.jit(do_not_specialize=["i_g"])
def read_kernel(
    q, planes, beta, mass, content, y_q, out, den, sums, table, i_g, H, L, T,
    q_b, q_t, q_h,
    K: tl.constexpr, V: tl.constexpr, P: tl.constexpr, BL: tl.constexpr, PP: tl.constexpr, RB: tl.constexpr,
    BT: tl.constexpr, BK: tl.constexpr, SK: tl.constexpr, BV: tl.constexpr, SV: tl.constexpr, EXACT: tl.constexpr,
    WORK: tl.constexpr, FUSED: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """O = sum_l phi(q) B_l / sum_l phi(q) A_l for one chunk of queries (Algorithm 1, p. 5).

    Change: a chunk is a matrix product Phi_Q B, tile by tile, against the state of all keys.
    Reads e K + s / chunk, writes e V; 2 K L P + 2 V L R flops.
    """
    i_c, i_h = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i_l, i_r = _group(i_g, P, BL, RB)
    row, start, stop = tl.load(table + 4 * i_c), tl.load(table + 4 * i_c + 1), tl.load(table + 4 * i_c + 2)
    i_n = tl.load(table + 4 * i_c + 3)
    q += row.to(tl.int64) * q_b + start.to(tl.int64) * q_t + i_h * q_h
    place = (row.to(tl.int64) * T + start) * H + i_h
    b_mass, b_content = _load_state(mass, content, i_n, i_h, i_l, i_r, H, L, V, P, BL, RB, BV, SV)
    if FUSED:
        b_w = _planes(planes, i_h, i_l, L, K, P, BL, PP, BK, SK)
    b_beta = tl.load(beta + i_h)
    for t in range(0, stop - start, BT):
        o_t = t + tl.arange(0, BT)
        live = o_t < stop - start
        if FUSED:
            b_y = _inner(_rows(q, o_t, live, q_t, K, BK, SK), b_w, EXACT, False, WORK, SK)
        else:
            b_y = _projections(y_q, place, o_t, live, i_l, H, L, P, BL, PP)
        phi_q = _round(_features(b_y, b_beta, live, i_l, i_r, L, P, BL, PP, RB, WORK), EXACT, WORK)
        b_den = tl.sum(phi_q * b_mass[None, :], 1)
        b_num = _outer(phi_q, b_content, _none(BT, BV, SV), EXACT, False, WORK, SV)
        _put_ratio(out, b_num, b_den, den, sums, place, o_t, live, H, V, BV, SV, FIRST, LAST, KEEP)


@triton.jit
def _put_ratio(
    out, b_num, b_den, den, sums, place, o_t, live, H, V: tl.constexpr, BV: tl.constexpr, SV: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Store Num / Den; where tables come in groups, add up both over the groups in `sums` and `den` first. KEEP leaves
    Den there for the gradient.
    """
    if not FIRST:
        b_den += tl.load(den + place + o_t * H, mask=live, other=0.0)
    if KEEP or not LAST:
        tl.store(den + place + o_t * H, b_den, mask=live)
    _put(out + place * V, b_num, _over(b_den), sums + place * V, o_t, live, H * V, V, BV, SV, FIRST, LAST)


@triton.jit(do_not_specialize=["i_g"])
def sweep_kernel(
    y_q, y_k, v, beta, mass, content, out, den, sums, table, i_g, H, L, T,
    v_b, v_t, v_h,
    V: tl.constexpr, P: tl.constexpr, BL: tl.constexpr, PP: tl.constexpr, RB: tl.constexpr, BT: tl.constexpr,
    BV: tl.constexpr, SV: tl.constexpr, EXACT: tl.constexpr, WORK: tl.constexpr, FIRST: tl.constexpr,
    LAST: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """The same for a chunk of a causal sequence: write token t, then read it (Algorithm 2, p. 27).

    Change: a tile reads the state before it, adds its own masked block (Phi_Q Phi_K^T * tril) V, and then writes itself
    into the state, which starts as what stood before the chunk.
    Reads e V + 8 L P + s / chunk, writes e V; 4 V L R + 2 BT (L R + V) flops.
    """
    i_c, i_h = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i_l, i_r = _group(i_g, P, BL, RB)
    row, start, stop = tl.load(table + 4 * i_c), tl.load(table + 4 * i_c + 1), tl.load(table + 4 * i_c + 2)
    v += row.to(tl.int64) * v_b + start.to(tl.int64) * v_t + i_h * v_h
    place = (row.to(tl.int64) * T + start) * H + i_h
    b_mass, b_content = _load_state(mass, content, i_c, i_h, i_l, i_r, H, L, V, P, BL, RB, BV, SV)
    b_beta = tl.load(beta + i_h)
    for t in range(0, stop - start, BT):
        o_t = t + tl.arange(0, BT)
        live = o_t < stop - start
        b_y_q = _projections(y_q, place, o_t, live, i_l, H, L, P, BL, PP)
        b_y_k = _projections(y_k, place, o_t, live, i_l, H, L, P, BL, PP)
        b_v = _rows(v, o_t, live, v_t, V, BV, SV)
        phi_q = _round(_features(b_y_q, b_beta, live, i_l, i_r, L, P, BL, PP, RB, WORK), EXACT, WORK)
        phi_k = _round(_features(b_y_k, b_beta, live, i_l, i_r, L, P, BL, PP, RB, WORK), EXACT, WORK)
        score = _dot(phi_q, tl.trans(phi_k), tl.zeros([BT, BT], tl.float32), EXACT, EXACT, WORK)
        score = _round(tl.where(o_t[:, None] >= o_t[None, :], score, 0.0), EXACT, WORK)
        b_den = tl.sum(phi_q * b_mass[None, :], 1) + tl.sum(score, 1)
        b_num = _outer(phi_q, b_content, _none(BT, BV, SV), EXACT, False, WORK, SV)
        b_num = _outer(score, b_v, b_num, EXACT, EXACT, WORK, SV)
        _put_ratio(out, b_num, b_den, den, sums, place, o_t, live, H, V, BV, SV, FIRST, LAST, KEEP)
        b_mass += tl.sum(phi_k, 0)
        b_content = _outer(tl.trans(phi_k), b_v, b_content, EXACT, EXACT, WORK, SV)


# -- projections: x W^T for the causal sweep and for the gradients, and back --


@triton.jit(do_not_specialize=["i_g"])
def project_kernel(
    x, planes, y, table, i_g, H, L, T, x_b, x_t, x_h,
    K: tl.constexpr, P: tl.constexpr, BL: tl.constexpr, PP: tl.constexpr, RB: tl.constexpr, BT: tl.constexpr,
    BK: tl.constexpr, SK: tl.constexpr, EXACT: tl.constexpr, WORK: tl.constexpr,
):  # fmt: skip
    """y = x W^T, L P numbers in place of K: what the kernels that walk both q and k read instead of them.

    Change: none. Reads e K, writes 4 L P; 2 K L P flops.
    """
    i_c, i_h = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i_l, _ = _group(i_g, P, BL, RB)
    row, start, stop = tl.load(table + 4 * i_c), tl.load(table + 4 * i_c + 1), tl.load(table + 4 * i_c + 2)
    x += row.to(tl.int64) * x_b + start.to(tl.int64) * x_t + i_h * x_h
    place = (row.to(tl.int64) * T + start) * H + i_h
    b_w = _planes(planes, i_h, i_l, L, K, P, BL, PP, BK, SK)
    for t in range(0, stop - start, BT):
        o_t = t + tl.arange(0, BT)
        live = o_t < stop - start
        at, here = _columns(place, o_t, live, i_l, H, L, P, BL, PP)
        tl.store(y + at, _inner(_rows(x, o_t, live, x_t, K, BK, SK), b_w, EXACT, False, WORK, SK), mask=here)


@triton.jit(do_not_specialize=["i_g"])
def unproject_kernel(
    d_y, planes, d_x, sums, table, i_g, H, L, T,
    K: tl.constexpr, P: tl.constexpr, BL: tl.constexpr, PP: tl.constexpr, RB: tl.constexpr, BT: tl.constexpr,
    BK: tl.constexpr, SK: tl.constexpr, WORK: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """dx = dy W. Change: none. Reads 4 L P, writes e K; 2 K L P flops."""
    i_c, i_h = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i_l, _ = _group(i_g, P, BL, RB)
    row, start, stop = tl.load(table + 4 * i_c), tl.load(table + 4 * i_c + 1), tl.load(table + 4 * i_c + 2)
    place = (row.to(tl.int64) * T + start) * H + i_h
    b_w = _planes(planes, i_h, i_l, L, K, P, BL, PP, BK, SK)
    for t in range(0, stop - start, BT):
        o_t = t + tl.arange(0, BT)
        live = o_t < stop - start
        b_d_y = _projections(d_y, place, o_t, live, i_l, H, L, P, BL, PP)
        b_d_x = _outer(b_d_y, b_w, _none(BT, BK, SK), False, False, WORK, SK)
        _put(d_x + place * K, b_d_x, None, sums + place * K, o_t, live, H * K, K, BK, SK, FIRST, LAST)


# -- the gradient of the reads: dq, and what every read sends to the state it read --


@triton.jit(do_not_specialize=["i_g"])
def read_grad_kernel(
    y_q, y_k, v, d_out, beta, mass, content, den, delta, d_y, d_mass, d_content, d_beta, table,
    i_g, H, L, T,
    v_b, v_t, v_h, g_b, g_t, g_h,
    V: tl.constexpr, P: tl.constexpr, BL: tl.constexpr, PP: tl.constexpr, RB: tl.constexpr, BT: tl.constexpr,
    BV: tl.constexpr, SV: tl.constexpr, EXACT: tl.constexpr, WORK: tl.constexpr, CAUSAL: tl.constexpr,
    DERIVE: tl.constexpr,
):  # fmt: skip
    """d(q W^T) of one chunk, and its sums dA = -sum_i w_i delta_i and dB = sum_i w_i dO_i^T, with w = phi(q) / Den and
    delta = dO . O.

    Change: the reference has no gradient; this is Algorithms 1 and 2 differentiated by hand. O is not read: where one
    program holds all buckets (DERIVE), delta = phi(q) . (B dO) / Den comes out of what dq needs anyway. CAUSAL rebuilds
    the prefix as the forward sweep does and leaves Den and delta; the sums are then the work of `sum_grad_kernel`,
    since two states at once do not fit into the registers of one program.
    Reads e V + 4 L P + s / chunk, writes 4 L P + s / chunk; 4 V L R flops. CAUSAL reads e V + 4 L P more and writes 8
    in place of s / chunk, for 2 BT (2 L R + V) more flops.
    """
    i_c, i_h = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i_l, i_r = _group(i_g, P, BL, RB)
    row, start, stop = tl.load(table + 4 * i_c), tl.load(table + 4 * i_c + 1), tl.load(table + 4 * i_c + 2)
    d_out += row.to(tl.int64) * g_b + start.to(tl.int64) * g_t + i_h * g_h
    place = (row.to(tl.int64) * T + start) * H + i_h
    if CAUSAL:
        v += row.to(tl.int64) * v_b + start.to(tl.int64) * v_t + i_h * v_h
        i_n = i_c
    else:
        i_n = tl.load(table + 4 * i_c + 3)
    b_mass, b_content = _load_state(mass, content, i_n, i_h, i_l, i_r, H, L, V, P, BL, RB, BV, SV)
    b_beta = tl.load(beta + i_h)
    b_d_beta = 0.0
    if not CAUSAL:
        b_d_mass = tl.zeros([BL * RB], tl.float32)
        b_d_content = _none(BL * RB, BV, SV)
    for t in range(0, stop - start, BT):
        o_t = t + tl.arange(0, BT)
        live = o_t < stop - start
        b_y = _projections(y_q, place, o_t, live, i_l, H, L, P, BL, PP)
        b_g = _rows(d_out, o_t, live, g_t, V, BV, SV)
        phi_q = _features(b_y, b_beta, live, i_l, i_r, L, P, BL, PP, RB, WORK)
        rounded = _round(phi_q, EXACT, WORK)
        d_phi = _inner(b_g, b_content, EXACT, False, WORK, SV)  # B dO
        if CAUSAL:
            b_y_k = _projections(y_k, place, o_t, live, i_l, H, L, P, BL, PP)
            b_v = _rows(v, o_t, live, v_t, V, BV, SV)
            phi_k = _round(_features(b_y_k, b_beta, live, i_l, i_r, L, P, BL, PP, RB, WORK), EXACT, WORK)
            d_score = _pairs(b_g, b_v, WORK, SV)
            earlier = o_t[:, None] >= o_t[None, :]
        if DERIVE:
            b_den = tl.sum(rounded * b_mass[None, :], 1)
            b_delta = tl.sum(rounded * d_phi, 1)
            if CAUSAL:
                score = _dot(rounded, tl.trans(phi_k), tl.zeros([BT, BT], tl.float32), EXACT, EXACT, WORK)
                score = _round(tl.where(earlier, score, 0.0), EXACT, WORK)
                b_den += tl.sum(score, 1)
                b_delta += tl.sum(score * d_score, 1)
            b_over = _over(b_den)
            b_delta *= b_over
            if CAUSAL:
                tl.store(den + place + o_t * H, b_den, mask=live)
                tl.store(delta + place + o_t * H, b_delta, mask=live)
        else:
            b_over = _over(tl.load(den + place + o_t * H, mask=live, other=0.0))
            b_delta = tl.load(delta + place + o_t * H, mask=live, other=0.0)
        d_phi -= b_delta[:, None] * b_mass[None, :]
        if CAUSAL:
            d_score = tl.where(earlier, d_score - b_delta[:, None], 0.0)
            d_phi = _dot(d_score, phi_k, d_phi, False, EXACT, WORK)
        b_d_y, part = _through_features(d_phi * b_over[:, None], phi_q, b_y, b_beta, i_r, P, BL, PP, RB, EXACT, WORK)
        _put_projections(d_y, b_d_y, place, o_t, live, i_l, i_r, H, L, P, BL, PP, RB)
        b_d_beta += part
        if CAUSAL:
            b_mass += tl.sum(phi_k, 0)
            b_content = _outer(tl.trans(phi_k), b_v, b_content, EXACT, EXACT, WORK, SV)
        else:
            w = _round(rounded * b_over[:, None], EXACT, WORK)
            b_d_mass -= tl.sum(w * b_delta[:, None], 0)
            b_d_content = _outer(tl.trans(w), b_g, b_d_content, EXACT, EXACT, WORK, SV)
    if not CAUSAL:
        _store_state(d_mass, d_content, b_d_mass, b_d_content, i_c, i_h, i_l, i_r, H, L, V, P, BL, RB, BV, SV)
    tl.store(d_beta + i_c * H + i_h, b_d_beta)


@triton.jit(do_not_specialize=["i_g"])
def delta_kernel(
    out, d_out, delta, table, i_g, H, L, T, g_b, g_t, g_h,
    V: tl.constexpr, BT: tl.constexpr, BV: tl.constexpr, SV: tl.constexpr,
):  # fmt: skip
    """delta = dO . O, for the gradients of tables that come in groups.

    Change: none. Reads 2 e V, writes 4; no dot.
    """
    i_c, i_h = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row, start, stop = tl.load(table + 4 * i_c), tl.load(table + 4 * i_c + 1), tl.load(table + 4 * i_c + 2)
    d_out += row.to(tl.int64) * g_b + start.to(tl.int64) * g_t + i_h * g_h
    place = (row.to(tl.int64) * T + start) * H + i_h
    for t in range(0, stop - start, BT):
        o_t = t + tl.arange(0, BT)
        live = o_t < stop - start
        b_g = _rows(d_out, o_t, live, g_t, V, BV, SV)
        b_out = _rows(out + place * V, o_t, live, H * V, V, BV, SV)
        b_delta = tl.zeros([BT], tl.float32)
        for s in tl.static_range(SV):
            b_delta += tl.sum(b_g[s].to(tl.float32) * b_out[s].to(tl.float32), 1)
        tl.store(delta + place + o_t * H, b_delta, mask=live)


@triton.jit(do_not_specialize=["i_g"])
def sum_grad_kernel(
    y_q, d_out, beta, den, delta, d_mass, d_content, table, i_g, H, L, T,
    g_b, g_t, g_h,
    V: tl.constexpr, P: tl.constexpr, BL: tl.constexpr, PP: tl.constexpr, RB: tl.constexpr, BT: tl.constexpr,
    BV: tl.constexpr, SV: tl.constexpr, EXACT: tl.constexpr, WORK: tl.constexpr,
):  # fmt: skip
    """What the reads of one chunk send to the state: dA = -sum_i w_i delta_i and dB = sum_i w_i dO_i^T.

    Change: as `write_kernel`, whose mirror it is. Reads e V + 4 L P + 8, writes s / chunk; 2 V L R flops.
    """
    i_c, i_h = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i_l, i_r = _group(i_g, P, BL, RB)
    row, start, stop = tl.load(table + 4 * i_c), tl.load(table + 4 * i_c + 1), tl.load(table + 4 * i_c + 2)
    d_out += row.to(tl.int64) * g_b + start.to(tl.int64) * g_t + i_h * g_h
    place = (row.to(tl.int64) * T + start) * H + i_h
    b_beta = tl.load(beta + i_h)
    b_d_mass = tl.zeros([BL * RB], tl.float32)
    b_d_content = _none(BL * RB, BV, SV)
    for t in range(0, stop - start, BT):
        o_t = t + tl.arange(0, BT)
        live = o_t < stop - start
        b_y = _projections(y_q, place, o_t, live, i_l, H, L, P, BL, PP)
        b_g = _rows(d_out, o_t, live, g_t, V, BV, SV)
        b_delta = tl.load(delta + place + o_t * H, mask=live, other=0.0)
        b_over = _over(tl.load(den + place + o_t * H, mask=live, other=0.0))
        phi_q = _round(_features(b_y, b_beta, live, i_l, i_r, L, P, BL, PP, RB, WORK), EXACT, WORK)
        w = _round(phi_q * b_over[:, None], EXACT, WORK)
        b_d_mass -= tl.sum(w * b_delta[:, None], 0)
        b_d_content = _outer(tl.trans(w), b_g, b_d_content, EXACT, EXACT, WORK, SV)
    _store_state(d_mass, d_content, b_d_mass, b_d_content, i_c, i_h, i_l, i_r, H, L, V, P, BL, RB, BV, SV)


# -- the gradient of the writes: dk and dv --


@triton.jit(do_not_specialize=["i_g"])
def write_grad_kernel(
    y_q, y_k, v, d_out, beta, d_mass, d_content, den, delta, d_y, d_v, d_beta, sums, table,
    i_g, H, L, T,
    v_b, v_t, v_h, g_b, g_t, g_h,
    V: tl.constexpr, P: tl.constexpr, BL: tl.constexpr, PP: tl.constexpr, RB: tl.constexpr, BT: tl.constexpr,
    BV: tl.constexpr, SV: tl.constexpr, EXACT: tl.constexpr, WORK: tl.constexpr, CAUSAL: tl.constexpr,
    FIRST: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """d(k W^T) and dv of one chunk of keys: dphi(k_j) = dB v_j + dA and dv_j = phi(k_j) dB, with the sums of all reads
    that saw the key.

    Change: as `read_grad_kernel`. CAUSAL walks the tiles from the last to the first; a tile takes its own masked block,
    then adds its reads to the sums. For 16-bit input dB is rounded before it makes dv, which is rounded next anyway.
    Reads e V + 4 L P + s / chunk, writes e V + 4 L P; 4 V L R flops. CAUSAL reads e V + 4 L P + 8 more, for
    2 V L R + 4 BT (L R + V) more flops.
    """
    i_c, i_h = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i_l, i_r = _group(i_g, P, BL, RB)
    row, start, stop = tl.load(table + 4 * i_c), tl.load(table + 4 * i_c + 1), tl.load(table + 4 * i_c + 2)
    v += row.to(tl.int64) * v_b + start.to(tl.int64) * v_t + i_h * v_h
    place = (row.to(tl.int64) * T + start) * H + i_h
    if CAUSAL:
        d_out += row.to(tl.int64) * g_b + start.to(tl.int64) * g_t + i_h * g_h
        i_n = i_c
    else:
        i_n = tl.load(table + 4 * i_c + 3)
    b_d_mass, b_d_content = _load_state(d_mass, d_content, i_n, i_h, i_l, i_r, H, L, V, P, BL, RB, BV, SV)
    b_beta = tl.load(beta + i_h)
    b_d_beta = 0.0
    tiles = (stop - start + BT - 1) // BT
    o_i = tl.arange(0, BT)
    for step in range(0, tiles):
        o_t = step * BT + o_i
        if CAUSAL:
            o_t = (tiles - 1 - step) * BT + o_i
        live = o_t < stop - start
        b_v = _rows(v, o_t, live, v_t, V, BV, SV)
        d_phi = _inner(b_v, b_d_content, EXACT, False, WORK, SV) + b_d_mass[None, :]
        if CAUSAL:
            b_g = _rows(d_out, o_t, live, g_t, V, BV, SV)
            b_delta = tl.load(delta + place + o_t * H, mask=live, other=0.0)
            b_over = _over(tl.load(den + place + o_t * H, mask=live, other=0.0))
            later = o_i[:, None] <= o_i[None, :]  # a key in a row meets the queries at its own place and after it
            d_score = tl.where(later, _pairs(b_v, b_g, WORK, SV) - b_delta[None, :], 0.0)
            b_y_q = _projections(y_q, place, o_t, live, i_l, H, L, P, BL, PP)
            phi_q = _round(_features(b_y_q, b_beta, live, i_l, i_r, L, P, BL, PP, RB, WORK), EXACT, WORK)
            w = _round(phi_q * b_over[:, None], EXACT, WORK)
            d_phi = _dot(d_score, w, d_phi, False, EXACT, WORK)
            b_d_mass -= tl.sum(w * b_delta[:, None], 0)
        b_y = _projections(y_k, place, o_t, live, i_l, H, L, P, BL, PP)
        phi_k = _features(b_y, b_beta, live, i_l, i_r, L, P, BL, PP, RB, WORK)
        b_d_y, part = _through_features(d_phi, phi_k, b_y, b_beta, i_r, P, BL, PP, RB, EXACT, WORK)
        _put_projections(d_y, b_d_y, place, o_t, live, i_l, i_r, H, L, P, BL, PP, RB)
        b_d_beta += part
        rounded = _round(phi_k, EXACT, WORK)
        b_d_v = _outer(rounded, b_d_content, _none(BT, BV, SV), EXACT, EXACT, WORK, SV)
        if CAUSAL:
            score = _dot(rounded, tl.trans(w), tl.zeros([BT, BT], tl.float32), EXACT, EXACT, WORK)
            score = _round(tl.where(later, score, 0.0), EXACT, WORK)
            b_d_v = _outer(score, b_g, b_d_v, EXACT, EXACT, WORK, SV)
            b_d_content = _outer(tl.trans(w), b_g, b_d_content, EXACT, EXACT, WORK, SV)
        _put(d_v + place * V, b_d_v, None, sums + place * V, o_t, live, H * V, V, BV, SV, FIRST, LAST)
    tl.store(d_beta + i_c * H + i_h, b_d_beta)


# -- decoding: one token --


@triton.jit
def _decode_features(x, b_w, b_beta, P: tl.constexpr, PP: tl.constexpr):
    """phi [2^P] of one token in one table; b_w [PP, BK]."""
    right, left = _sigmoids(2.0 * tl.sum(b_w * x[None, :], 1))
    on, off = _sigmoids(2.0 * b_beta * (right - left))
    o_r, o_p = tl.arange(0, 1 << P), tl.arange(0, PP)
    phi = tl.full([1 << P], 1.0, tl.float32)
    for p in tl.static_range(P):
        b_on = tl.sum(tl.where(o_p == p, on, 0.0), 0)
        b_off = tl.sum(tl.where(o_p == p, off, 0.0), 0)
        phi *= tl.where(((o_r >> p) & 1) == 1, b_on, b_off)
    return phi


@triton.jit
def decode_kernel(
    q, k, v, planes, beta, mass, content, out, H, L, q_b, q_h, k_b, k_h, v_b, v_h,
    K: tl.constexpr, V: tl.constexpr, P: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, PP: tl.constexpr,
):  # fmt: skip
    """One step of Algorithm 2 (p. 27): write the token into the state, in place, and read it.

    Change: none but the sigmoid features; a program owns one head of one sequence and walks its tables, so that nobody
    else reads what it writes. The sums are added in the type of the state.
    Reads e (2 K + V) + s and writes e V + s; 4 K L P + 4 V L R flops.
    """
    i_b, i_h = tl.program_id(0), tl.program_id(1).to(tl.int64)
    o_k, o_v = tl.arange(0, BK), tl.arange(0, BV)
    o_r, o_p = tl.arange(0, 1 << P), tl.arange(0, PP)
    b_q = tl.load(q + i_b.to(tl.int64) * q_b + i_h * q_h + o_k, mask=o_k < K, other=0.0).to(tl.float32)
    b_k = tl.load(k + i_b.to(tl.int64) * k_b + i_h * k_h + o_k, mask=o_k < K, other=0.0).to(tl.float32)
    b_v = tl.load(v + i_b.to(tl.int64) * v_b + i_h * v_h + o_v, mask=o_v < V, other=0.0).to(tl.float32)
    b_beta = tl.load(beta + i_h)
    b_num = tl.zeros([BV], tl.float32)
    b_den = 0.0
    for i_l in range(0, L):
        at = (i_h * L + i_l) * P + o_p
        b_w = tl.load(planes + at[:, None] * K + o_k[None, :], mask=(o_p < P)[:, None] & (o_k < K)[None, :], other=0.0)
        phi_k = _decode_features(b_k, b_w, b_beta, P, PP)
        phi_q = _decode_features(b_q, b_w, b_beta, P, PP)
        bucket = ((i_b.to(tl.int64) * H + i_h) * L + i_l) * (1 << P) + o_r
        there = (o_r >= 0)[:, None] & (o_v < V)[None, :]
        p_content = content + bucket[:, None] * V + o_v[None, :]
        b_mass = tl.load(mass + bucket) + phi_k
        b_content = tl.load(p_content, mask=there, other=0.0) + phi_k[:, None] * b_v[None, :]
        tl.store(mass + bucket, b_mass)
        tl.store(p_content, b_content, mask=there)
        b_num += tl.sum(phi_q[:, None] * b_content.to(tl.float32), 0)
        b_den += tl.sum(phi_q * b_mass.to(tl.float32), 0)
    place = (i_b.to(tl.int64) * H + i_h) * V
    tl.store(out + place + o_v, (b_num * _over(b_den)).to(out.dtype.element_ty), mask=o_v < V)


# -- from an operation to its launches --


class Config(NamedTuple):
    """How an operation is cut: tokens a tile, forward and in the gradients; tokens a program (a chunk); numbers of
    content a program holds, forward without and with a causal mask and in the gradients; columns of a row in one
    product, forward and in the gradients; warps a program.
    """

    tile: int
    grad_tile: int
    chunk: int
    state: int
    sweep_state: int
    grad_state: int
    columns: int
    grad_columns: int
    warps: int


CONFIGS = {
    # bfloat16: two bytes an operand, so that tiles and states may be larger
    "bf16": Config(32, 16, 2048, 8192, 8192, 8192, 128, 128, 8),
    # float16 is multiplied as tf32, since features would underflow in it
    "fp16": Config(16, 16, 2048, 8192, 4096, 4096, 128, 64, 8),
    # float32 is multiplied as tf32 in two parts
    "fp32": Config(16, 16, 1024, 8192, 4096, 2048, 128, 64, 8),
    # short chunks: more programs for short sequences, and small enough to interpret
    "short": Config(16, 16, 64, 8192, 4096, 2048, 128, 64, 8),
}


LONGEST = max(config.chunk for config in CONFIGS.values())
TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}  # which entry is whose


def default_config(dtype: torch.dtype) -> str:
    """The configuration for input of this type. It depends on nothing else, so that neither the batch nor the length
    changes how a sequence is summed.
    """
    return TYPES.get(dtype, "fp32")


class _Cut(NamedTuple):
    """How the tables are divided: into `groups`, one launch each, of a size that the constants tell the kernel."""

    groups: int
    constants: dict[str, int]


def _cut(L: int, P: int, V: int, state: int, columns: int) -> _Cut:
    """Groups of tables, or of a table's buckets, such that a program holds at most `state` numbers of content.

    A slice of V is wider than there are buckets, with zeros if need be: Triton gives a square product, and by it the
    whole chain of products, to warps that all work on the same rows.
    """
    BV, SV = _slices(V, columns)
    buckets = max(16, min(64, state // (BV * SV)))
    RB = min(2**P, buckets)
    BL = max(16 // RB, min(_power_of_two(L), buckets // RB))
    PP = max(_power_of_two(P), 16 // BL)
    BV = max(BV, min(columns, 2 * BL * RB))
    SV = -(-V // BV)
    groups = -(-L // BL) * (2**P // RB)
    return _Cut(groups, {"P": P, "BL": BL, "PP": PP, "RB": RB, "V": V, "BV": BV, "SV": SV})


def _cut_columns(L: int, P: int, K: int) -> _Cut:
    """Groups of tables for the projections: at most 32 columns a program."""
    PP = _power_of_two(P)
    BL = max(16 // PP, min(_power_of_two(L), 32 // PP))
    BK, SK = _slices(K, 128)
    return _Cut(-(-L // BL), {"P": P, "BL": BL, "PP": PP, "RB": 2**P, "K": K, "BK": BK, "SK": SK})


def _slices(width: int, most: int) -> tuple[int, int]:
    """Columns a slice, at most so many, and how many slices make up a row of this width."""
    columns = min(most, max(16, _power_of_two(width)))
    return columns, -(-width // columns)


class _Chunks(NamedTuple):
    """The chunks of all sequences: `table` [C, 4] holds row, first token, end and sequence of each, `bounds` [N + 1]
    the first chunk of each sequence. A row of zeros is a chunk without tokens.
    """

    table: torch.Tensor
    bounds: torch.Tensor


def _chunks(x: torch.Tensor, cu_seqlens: torch.Tensor | None, chunk: int) -> _Chunks:
    if cu_seqlens is None:
        return _even_chunks(x.shape[0], x.shape[1], chunk, x.device)
    cu = cu_seqlens.to(device=x.device, dtype=torch.int64)
    lengths = cu[1:] - cu[:-1]
    bounds = torch.cat([cu.new_zeros(1), torch.cumsum((lengths + chunk - 1) // chunk, 0)])
    number = torch.arange(race_plain.chunk_count(x, cu_seqlens, chunk), device=x.device)
    owner = torch.searchsorted(bounds, number, right=True).clamp(1, cu.shape[0] - 1) - 1
    start = cu[owner] + (number - bounds[owner]) * chunk
    table = torch.stack([torch.zeros_like(start), start, torch.minimum(start + chunk, cu[owner + 1]), owner], 1)
    return _Chunks((table * (number < bounds[-1])[:, None]).to(torch.int32), bounds.to(torch.int32))


def _even_chunks(B: int, T: int, chunk: int, device: torch.device) -> _Chunks:
    each = -(-T // chunk)
    number = torch.arange(B * each, device=device)
    row, start = number // max(1, each), number % max(1, each) * chunk
    table = torch.stack([row, start, (start + chunk).clamp(max=T), row], 1)
    return _Chunks(table.to(torch.int32), (torch.arange(B + 1, device=device) * each).to(torch.int32))


def _whole_rows(x: torch.Tensor, chunk: int = 1) -> torch.Tensor:
    """x itself if the numbers of a row lie side by side; batch, token and head may have any stride, but inside a chunk
    kernels count in 32 bits.
    """
    return x if x.stride(-1) == 1 and (x.stride(1) + 1) * chunk < 2**31 else x.contiguous()


class _Operation:
    """What the launches of one operation share: sizes, chunks, types and how it is cut."""

    def __init__(self, q, k, v, planes, beta, cu_seqlens, causal: bool, config: str):
        self.planes, self.beta, self.causal, self.config = planes, beta, causal, CONFIGS[config]
        self.q, self.k, self.v = (_whole_rows(x, self.config.chunk) for x in (q, k, v))
        (self.B, self.T, self.H, self.K), (self.S, self.V) = q.shape, (v.shape[1], v.shape[-1])
        self.L, self.P = planes.shape[1:3]
        self.at_q, self.at_k = (_chunks(x, cu_seqlens, self.config.chunk) for x in (q, k))
        state = self.config.sweep_state if causal else self.config.state
        self.cut = _cut(self.L, self.P, self.V, state, self.config.columns)
        self.grad_cut = _cut(self.L, self.P, self.V, self.config.grad_state, self.config.grad_columns)
        self.columns = _cut_columns(self.L, self.P, self.K)
        work = tl.bfloat16 if q.dtype == torch.bfloat16 else tl.float32
        self.types = {"EXACT": q.dtype != torch.float32, "WORK": work}

    def new(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return self.q.new_empty(shape, dtype=dtype)

    def states(self, at: _Chunks) -> tuple[torch.Tensor, torch.Tensor]:
        """Room for the state of every chunk."""
        C, buckets = at.table.shape[0], self.L * 2**self.P
        return self.new(C, self.H, buckets), self.new(C, self.H, buckets, self.V)

    def sums(self, cut: _Cut, like: torch.Tensor) -> torch.Tensor:
        """Where a gradient or a numerator shaped like `like` is added up over the groups, in float32."""
        return self.new(*like.shape) if cut.groups > 1 else self.new(0)

    def start(
        self, kernel: Any, group: int, at: _Chunks, cut: _Cut, tile: int, tensors: tuple[Any, ...],
        strided: tuple[torch.Tensor, ...] = (), **constants: Any,
    ) -> None:  # fmt: skip
        """One launch over all chunks of `at` and all heads; every kernel takes its tensors, then these."""
        length = self.T if at is self.at_q else self.S
        every = self.columns.constants | cut.constants | self.types | constants
        every = {"BT": tile, "FIRST": group == 0, "LAST": group == cut.groups - 1} | every
        strides = [stride for x in strided for stride in x.stride()[:3]]
        launch(
            kernel, (at.table.shape[0], self.H), *tensors, at.table, group, self.H, self.L, length, *strides,
            **{name: x for name, x in every.items() if name in kernel.arg_names},
            num_warps=self.config.warps, num_stages=1, maxnreg=REGISTERS,
        )  # fmt: skip

    def scan(self, at: _Chunks, sums, first, *, prefix: bool, reverse: bool = False) -> list[torch.Tensor]:
        """`scan_kernel` over mass and over content; the states after the last chunk, shaped like `first`."""
        last = []
        for part, begin in zip(sums, first, strict=True):
            begin, end = begin.contiguous(), torch.empty_like(begin, memory_format=torch.contiguous_format)
            E = begin[0, 0].numel() if begin.numel() else 0
            BE = min(1024, max(16, _power_of_two(E)))
            launch(
                scan_kernel, (begin.shape[0], self.H, -(-E // BE)), part, begin, end, at.bounds, self.H, E,
                PREFIX=prefix, REVERSE=reverse, BE=BE, num_warps=4, num_stages=1, maxnreg=REGISTERS,
            )  # fmt: skip
            last.append(end)
        return last

    def project(self, x: torch.Tensor, at: _Chunks) -> torch.Tensor:
        """x W^T, [B, T, H, L P]."""
        y = self.new(*x.shape[:3], self.L * self.P)
        for group in range(self.columns.groups):
            self.start(project_kernel, group, at, self.columns, self.config.tile, (x, self.planes, y), (x,))
        return y

    def unproject(self, d_y: torch.Tensor, dtype: torch.dtype, at: _Chunks) -> torch.Tensor:
        """dy W, [B, T, H, K]."""
        d_x = self.new(*d_y.shape[:3], self.K, dtype=dtype)
        sums, ends = self.added_up(self.columns, d_x)
        for group in range(self.columns.groups):
            tensors = (d_y, self.planes, d_x, sums)
            self.start(unproject_kernel, group, at, self.columns, self.config.tile, tensors, (), **ends)
        return d_x

    def added_up(self, cut: _Cut, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, bool]]:
        """Where the gradient x is added up over the groups: in x itself if it is float32, and no group is the last."""
        if x.dtype == torch.float32 and cut.groups > 1:
            return x, {"LAST": False}
        return self.sums(cut, x), {}


def forward(q, k, v, planes, beta, mass, content, cu_seqlens, causal: bool, config: str) -> tuple[torch.Tensor, ...]:
    """(out, den, prefix mass, prefix content, last mass, last content): what `torch.ops.attnlab.race_forward` returns,
    by kernels. Planes [H, L, P, K] and beta [H] are float32, the state mass [N, H, L, R] and content [N, H, L, R, V].

    den [B, T, H] is there if the gradient needs it, the prefixes [C, H, L R, ...] if causal; else they are empty.
    """
    op = _Operation(q, k, v, planes, beta, cu_seqlens, causal, config)
    tile, cut = op.config.tile, op.cut
    out = op.new(op.B, op.T, op.H, op.V, dtype=v.dtype)
    keep = not _derives(planes, v, config)
    den = op.new(op.B, op.T, op.H) if keep or cut.groups > 1 else op.new(0)
    sums = op.sums(cut, out)
    states = op.states(op.at_k)
    fused = op.K <= 128 or k.dtype != torch.float32
    y_k = op.new(op.B, op.S, op.H, op.L * op.P) if causal and fused else op.new(0)
    if not fused:
        y_k = op.project(op.k, op.at_k)
    for group in range(cut.groups):
        tensors: tuple[Any, ...] = (op.k, op.v, planes, beta, *states, y_k)
        op.start(write_kernel, group, op.at_k, cut, tile, tensors, (op.k, op.v), FUSED=fused, KEEP=causal and fused)
    last = op.scan(op.at_k, states, (mass, content), prefix=causal)
    y_q = op.new(0) if fused and not causal else op.project(op.q, op.at_q)
    if causal:
        for group in range(cut.groups):
            tensors = (y_q, y_k, op.v, beta, *states, out, den, sums)
            op.start(sweep_kernel, group, op.at_q, cut, tile, tensors, (op.v,), KEEP=keep)
    else:
        states = op.new(0), op.new(0)
        for group in range(cut.groups):
            tensors = (op.q, planes, beta, *last, y_q, out, den, sums)
            op.start(read_kernel, group, op.at_q, cut, tile, tensors, (op.q,), FUSED=fused, KEEP=keep)
    return out, den if keep else op.new(0), *states, *last


def backward(
    d_out, d_mass, d_content, q, k, v, planes, beta, mass, content, out, den, cu_seqlens, causal: bool, config: str
) -> tuple[torch.Tensor, ...]:
    """(dq, dk, dv, d beta, d mass, d content) by kernels: what `torch.ops.attnlab.race_backward` returns.

    `mass` and `content` are the prefixes if causal, else the last state. `den` and `out`, rounded as it is, are read
    only if `den` is there, which is where no program holds all buckets and all of V.
    """
    given = d_out, d_mass, d_content, q, k, v, planes, beta, mass, content, out, den, cu_seqlens, causal, config
    return _backward_in_halves(*given) if _in_halves(v) else _backward(*given, q.dtype)


def _backward(
    d_out, d_mass, d_content, q, k, v, planes, beta, mass, content, out, den, cu_seqlens, causal, config, dtype
) -> tuple[torch.Tensor, ...]:
    """`backward` for all of V at once, dq and dk in `dtype`."""
    op = _Operation(q, k, v, planes, beta, cu_seqlens, causal, config)
    cut, tile = op.grad_cut, op.config.grad_tile
    if den.numel():
        out = out.contiguous()
    g = _whole_rows(d_out, op.config.chunk)
    y_q, y_k = op.project(op.q, op.at_q), op.project(op.k, op.at_k)
    d_y_q, d_y_k = torch.empty_like(y_q), torch.empty_like(y_k)
    d_v = op.new(*v.shape, dtype=v.dtype)
    derives = not den.numel()
    if derives and causal:
        den = op.new(op.B, op.T, op.H)
    delta = op.new(op.B, op.T, op.H) if causal or not derives else op.new(0)
    if not derives:
        op.start(delta_kernel, 0, op.at_q, cut, op.config.tile, (out, g, delta), (g,))
    states = op.states(op.at_q)
    d_beta_q, d_beta_k = (op.new(cut.groups, at.table.shape[0], op.H) for at in (op.at_q, op.at_k))
    for group in range(cut.groups):
        tensors: tuple[Any, ...]
        tensors = (y_q, y_k, op.v, g, beta, mass, content, den, delta, d_y_q, *states, d_beta_q[group])
        op.start(read_grad_kernel, group, op.at_q, cut, tile, tensors, (op.v, g), CAUSAL=causal, DERIVE=derives)
    if causal:
        for group in range(cut.groups):
            tensors = (y_q, g, beta, den, delta, *states)
            op.start(sum_grad_kernel, group, op.at_q, cut, op.config.tile, tensors, (g,))
    first = op.scan(op.at_q, states, (d_mass, d_content), prefix=causal, reverse=causal)
    seen = states if causal else first
    sums, ends = op.added_up(cut, d_v)
    for group in range(cut.groups):
        tensors = (y_q, y_k, op.v, g, beta, *seen, den, delta, d_y_k, d_v, d_beta_k[group], sums)
        op.start(write_grad_kernel, group, op.at_k, cut, tile, tensors, (op.v, g), CAUSAL=causal, **ends)
    d_q, d_k = op.unproject(d_y_q, dtype, op.at_q), op.unproject(d_y_k, dtype, op.at_k)
    d_beta_64 = d_beta_q.sum((0, 1), dtype=torch.float64) + d_beta_k.sum((0, 1), dtype=torch.float64)
    return d_q, d_k, d_v, d_beta_64.to(beta.dtype), *first


def _in_halves(v: torch.Tensor) -> bool:
    """Whether the gradient is taken for one half of V at a time: the registers hold 128 columns."""
    return v.shape[-1] > 128


def _backward_in_halves(
    d_out, d_mass, d_content, q, k, v, planes, beta, mass, content, out, den, *rest
) -> tuple[torch.Tensor, ...]:
    """The gradient is linear in (dO, V, B, O), column by column: what two halves of the columns give adds up."""
    halves: list[tuple[torch.Tensor, ...]] = []
    for part in (slice(0, 128), slice(128, None)):
        given = d_out[..., part], d_mass if not halves else torch.zeros_like(d_mass), d_content[..., part].contiguous()
        state = mass, content[..., part].contiguous()
        half: tuple[Any, ...] = q, k, v[..., part], planes, beta, *state, out[..., part], den, *rest
        halves.append(_backward(*given, *half, torch.float32))  # type: ignore[call-arg]
    (d_q, d_k, d_v, d_beta, d_m, d_c), more = halves
    d_q, d_k = d_q.add_(more[0]).to(q.dtype), d_k.add_(more[1]).to(k.dtype)
    return d_q, d_k, torch.cat([d_v, more[2]], -1), d_beta + more[3], d_m + more[4], torch.cat([d_c, more[5]], -1)


def decode(q, k, v, planes, beta, mass, content) -> torch.Tensor:
    """One token: out [B, 1, H, V]; mass [B, H, L, R] and content [B, H, L, R, V] are updated in place."""
    q, k, v = (_whole_rows(x) for x in (q, k, v))
    (B, _, H, K), V = q.shape, v.shape[-1]
    L, P = planes.shape[1:3]
    out = q.new_empty(B, 1, H, V, dtype=v.dtype)
    strides = [stride for x in (q, k, v) for stride in (x.stride(0), x.stride(2))]
    launch(
        decode_kernel, (B, H), q, k, v, planes, beta, mass, content, out, H, L, *strides,
        K=K, V=V, P=P, BK=_power_of_two(K), BV=_power_of_two(V), PP=_power_of_two(P), num_warps=8, num_stages=1,
        maxnreg=REGISTERS,
    )  # fmt: skip
    return out


# -- torch operations --


def _by_kernels(x: torch.Tensor) -> bool:
    """Kernels run on a GPU, and anywhere in a process that interprets them; a CPU gets the same sums in plain torch."""
    return x.is_cuda or INTERPRETED


@torch.library.custom_op("attnlab::race_forward", mutates_args=())
def race_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, planes: torch.Tensor, beta: torch.Tensor, mass: torch.Tensor,
    content: torch.Tensor, cu_seqlens: torch.Tensor | None, causal: bool, config: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """`forward` on a GPU or interpreted, `race_plain.forward` on a CPU."""
    if _by_kernels(q):
        return forward(q, k, v, planes, beta, mass, content, cu_seqlens, causal, config)  # type: ignore[return-value]
    keep = not _derives(planes, v, config)
    return race_plain.forward(q, k, v, planes, beta, mass, content, cu_seqlens, causal, CONFIGS[config].chunk, keep)


@race_forward.register_fake
def _(q, k, v, planes, beta, mass, content, cu_seqlens, causal, config):
    (B, T, H, _), (L, P) = q.shape, planes.shape[1:3]
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    keep = not _derives(planes, v, config)
    C = race_plain.chunk_count(k, cu_seqlens, CONFIGS[config].chunk)
    return (
        v.new_empty(B, T, H, v.shape[-1]),
        q.new_empty((B, T, H) if keep else (0,), dtype=wide),
        q.new_empty((C, H, L * 2**P) if causal else (0,), dtype=wide),
        q.new_empty((C, H, L * 2**P, v.shape[-1]) if causal else (0,), dtype=wide),
        torch.empty_like(mass, memory_format=torch.contiguous_format),
        torch.empty_like(content, memory_format=torch.contiguous_format),
    )


@torch.library.custom_op("attnlab::race_backward", mutates_args=())
def race_backward(
    d_out: torch.Tensor, d_mass: torch.Tensor, d_content: torch.Tensor, q: torch.Tensor, k: torch.Tensor,
    v: torch.Tensor, planes: torch.Tensor, beta: torch.Tensor, mass: torch.Tensor, content: torch.Tensor,
    out: torch.Tensor, den: torch.Tensor, cu_seqlens: torch.Tensor | None, causal: bool, config: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """`backward` on a GPU or interpreted, `race_plain.backward` on a CPU."""
    arguments = (d_out, d_mass, d_content, q, k, v, planes, beta, mass, content)
    if _by_kernels(q):
        return backward(*arguments, out, den, cu_seqlens, causal, config)  # type: ignore[return-value]
    return race_plain.backward(*arguments, cu_seqlens, causal, CONFIGS[config].chunk)


@race_backward.register_fake
def _(d_out, d_mass, d_content, q, k, v, planes, beta, mass, content, out, den, cu_seqlens, causal, config):
    like = (q, k, v, beta, d_mass, d_content)
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in like)


def _derives(planes: torch.Tensor, v: torch.Tensor, config: str) -> bool:
    """Whether Den and delta come out of the gradient kernel itself, so that neither O nor Den has to be kept: where one
    program holds all buckets and all of V.
    """
    if _in_halves(v):
        return False
    cut = CONFIGS[config]
    return _cut(planes.shape[1], planes.shape[2], v.shape[-1], cut.grad_state, cut.grad_columns).groups == 1


def _save(ctx, inputs, output):
    q, k, v, planes, beta, _, _, cu_seqlens, causal, config = inputs
    out, den, mass, content, last_mass, last_content = output
    state = (mass, content) if causal else (last_mass, last_content)
    ctx.save_for_backward(q, k, v, planes, beta, *state, out if den.numel() else out.new_empty(0), den, cu_seqlens)
    ctx.causal, ctx.config = causal, config
    ctx.mark_non_differentiable(den, mass, content)


def _gradients(ctx, d_out, _den, _mass, _content, d_mass, d_content):
    *saved, cu_seqlens = ctx.saved_tensors
    d_q, d_k, d_v, d_beta, d_mass, d_content = race_backward(
        d_out, d_mass, d_content, *saved, cu_seqlens, ctx.causal, ctx.config
    )
    return d_q, d_k, d_v, None, d_beta, d_mass, d_content, None, None, None


def _refuse_second_derivative(ctx, *gradients):
    raise RuntimeError("RACE has no second derivative here: its gradient is computed by kernels that keep no graph.")


torch.library.register_autograd("attnlab::race_forward", _gradients, setup_context=_save)
torch.library.register_autograd("attnlab::race_backward", _refuse_second_derivative)


@torch.library.custom_op("attnlab::race_decode", mutates_args=("mass", "content"))
def race_decode(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, planes: torch.Tensor, beta: torch.Tensor, mass: torch.Tensor,
    content: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """`decode` on a GPU or interpreted, `race_plain.decode` on a CPU."""
    return (decode if _by_kernels(q) else race_plain.decode)(q, k, v, planes, beta, mass, content)


@race_decode.register_fake
def _(q, k, v, planes, beta, mass, content):
    return v.new_empty(*q.shape[:3], v.shape[-1])


# -- the public door --


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    planes: torch.Tensor,
    sharpness: torch.Tensor | float,
    *,
    causal: bool = False,
    state: tuple[torch.Tensor, torch.Tensor] | None = None,
    cu_seqlens: torch.Tensor | None = None,
    config: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """RACE attention: (out [B, T, H, V] in v's type, mass [N, H, L, R], content [N, H, L, R, V] after the last key).

    q [B, T, H, K], k [B, S, H, K], v [B, S, H, V] of one type: float32, float16 or bfloat16, K and V up to 256, any
    strides. planes [L, P, K] or [H, L, P, K] with P <= 6; sharpness a number, or a tensor [H] or [], with
    2 sharpness P <= 80. Differentiable in q, k, v, sharpness and `state`; a second derivative raises RuntimeError.

    `state` is (mass, content) of earlier keys, float32 or float64; the state after comes in its type, float32 if there
    was none. `cu_seqlens` [N + 1], integers from 0 to T, packs N sequences (empty ones too) into B = 1; N = B
    otherwise. `config` names an entry of CONFIGS: that of the type, which is the default, or "short". The same call
    gives the same bits.

    On a GPU Triton kernels run, on a CPU the same chunks in plain torch (float64 too); with TRITON_INTERPRET=1 the
    kernels are interpreted on the CPU. Kernels want H max(K, V, L P) below 2^20. Raises ValueError or TypeError naming
    the argument, what was wanted and what came.
    Source: arXiv:2510.04008v5, Algorithm 1 (p. 5), Algorithm 2 (p. 27), the product form of phi (p. 22).
    """
    planes, beta = _checked(q, k, v, planes, sharpness)
    N = q.shape[0]
    if causal and q.shape[1] != k.shape[1]:
        raise ValueError(f"k must have as many tokens as q where causal: {q.shape[1]}, got {k.shape[1]}")
    if cu_seqlens is not None:
        N = _checked_bounds(cu_seqlens, q, k)
    H, L, P = planes.shape[:3]
    shapes = {"state mass": (N, H, L, 2**P), "state content": (N, H, L, 2**P, v.shape[-1])}
    if state is None:
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        mass, content = (q.new_zeros(shape, dtype=wide) for shape in shapes.values())
    else:
        mass, content = _pair(state)
    for (name, shape), x in zip(shapes.items(), (mass, content), strict=True):
        _expect(name, x, shape, (torch.float32, torch.float64), q)
    config = default_config(q.dtype) if config is None else config
    fitting = [name for name in CONFIGS if name not in TYPES.values() or name == default_config(q.dtype)]
    if config not in fitting:
        raise ValueError(f"config must be one of {', '.join(map(repr, fitting))} for {q.dtype}, got {config!r}")
    out, _, _, _, mass, content = race_forward(q, k, v, planes, beta, mass, content, cu_seqlens, bool(causal), config)
    return out, mass, content


def decode_step(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, planes: torch.Tensor, sharpness: torch.Tensor | float,
    mass: torch.Tensor, content: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Write one token into the state and read it: out [B, 1, H, V] (Algorithm 2, p. 27).

    q, k [B, 1, H, K], v [B, 1, H, V]; mass [B, H, L, R] and content [B, H, L, R, V], contiguous, float32 or float64,
    are updated in place, in their type: in float32 a bucket that has met millions of tokens rounds single ones away.
    There is no gradient; a tensor that requires one is refused. Errors as in `attention`.
    """
    planes, beta = _checked(q, k, v, planes, sharpness)
    if q.shape[1] != 1 or k.shape[1] != 1:
        raise ValueError(f"q and k must hold one token each, got {q.shape[1]} and {k.shape[1]}")
    (B, _, H, _), (L, P) = q.shape, planes.shape[1:3]
    shapes = {"mass": (B, H, L, 2**P), "content": (B, H, L, 2**P, v.shape[-1])}
    for (name, shape), x in zip(shapes.items(), (mass, content), strict=True):
        _expect(name, x, shape, (torch.float32, torch.float64), q)
        if not x.is_contiguous():
            raise ValueError(f"{name} must be contiguous, since it is updated in place, got strides {x.stride()}")
    if torch.is_grad_enabled():
        for name, x in {"q": q, "k": k, "v": v, "sharpness": beta, "mass": mass, "content": content}.items():
            if x.requires_grad:
                raise ValueError(f"{name} requires a gradient, and a decode step has none; detach it")
    return race_decode(q, k, v, planes, beta, mass, content)


def _checked(q, k, v, planes, sharpness) -> tuple[torch.Tensor, torch.Tensor]:
    """Planes [H, L, P, K] and beta [H] in the working type, with the checks of `attention` and `decode_step`."""
    kernels = isinstance(q, torch.Tensor) and _by_kernels(q)
    dtypes = DTYPES if kernels else (*DTYPES, torch.float64)
    for name, x, axes in (("q", q, "[B, T, H, K]"), ("k", k, "[B, S, H, K]"), ("v", v, "[B, S, H, V]")):
        if not isinstance(x, torch.Tensor) or x.ndim != 4:
            raise TypeError(f"{name} must be a tensor {axes}, got {_described(x)}")
        if x.dtype not in dtypes:
            names = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise TypeError(f"{name} must be one of {names}, got {x.dtype}")
        if not 1 <= x.shape[-1] <= MAX_WIDTH:
            raise ValueError(f"{name} must have a width of 1 to {MAX_WIDTH}, got {x.shape[-1]}")
    if q.device.type not in ("cpu", "cuda", "meta"):
        raise ValueError(f"q must be on a CPU or on a GPU that torch calls cuda, got {q.device}")
    B, _, H, K = q.shape
    _expect("k", k, (B, k.shape[1], H, K), (q.dtype,), q)
    _expect("v", v, (B, k.shape[1], H, v.shape[-1]), (q.dtype,), q)
    if not isinstance(planes, torch.Tensor) or planes.ndim not in (3, 4):
        raise TypeError(f"planes must be a tensor [L, P, K] or [H, L, P, K], got {_described(planes)}")
    if planes.requires_grad and torch.is_grad_enabled():
        raise ValueError("planes require a gradient and have none: they are drawn once and fixed (p. 5); detach them")
    if planes.shape[-1] != K or planes.shape[:-3] not in ((), (H,)):
        raise ValueError(f"planes must be [L, P, {K}] or [{H}, L, P, {K}] for this q, got {list(planes.shape)}")
    planes = planes if planes.ndim == 4 else planes.expand(H, *planes.shape)
    L, P = planes.shape[1:3]
    if not 1 <= P <= MAX_PLANES or L < 1:
        raise ValueError(f"planes must hold 1 to {MAX_PLANES} planes in at least one table, got P = {P}, L = {L}")
    token = H * max(K, v.shape[-1], L * P)
    if kernels and token * LONGEST >= 2**31:
        raise ValueError(
            f"q must have fewer heads: a program counts the numbers of its {LONGEST} tokens in 32 bits, so that heads "
            f"times max(K, V, L P) stay under {2**31 // LONGEST}, got {token}"
        )
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    if planes.is_floating_point() and planes.device == q.device:
        planes = planes.to(wide).contiguous()
    _expect("planes", planes, (H, L, P, K), (wide,), q)
    if not isinstance(sharpness, (int, float, torch.Tensor)) and not hasattr(sharpness, "__array__"):
        raise TypeError(f"sharpness must be a number or a tensor [H], got {type(sharpness).__name__}")
    beta = torch.as_tensor(sharpness, device=q.device).to(wide)
    if beta.shape not in ((), (1,), (H,)):
        raise ValueError(f"sharpness must be a number or [H] with H = {H}, got {list(beta.shape)}")
    largest = MAX_LOGIT if wide == torch.float32 else MAX_LOGIT_64
    if beta.device.type == "cpu" and beta.numel() and not torch.compiler.is_compiling():  # a GPU would have to wait
        low, seen = (float(x) for x in beta.detach().aminmax())
        if not (low > 0 and 2 * P * seen <= largest):
            raise ValueError(
                f"sharpness must be positive and at most {largest / 2 / P:g} for {P} planes (2 sharpness P <= "
                f"{largest:g}), got {seen if low > 0 else low:g}"
            )
    return planes, beta.expand(H).contiguous()


def _checked_bounds(cu_seqlens, q, k) -> int:
    """The number of sequences. What the bounds hold is not read here: that would make a GPU wait."""
    if not isinstance(cu_seqlens, torch.Tensor) or cu_seqlens.ndim != 1 or cu_seqlens.dtype not in (
        torch.int32, torch.int64
    ):  # fmt: skip
        got = f"{getattr(cu_seqlens, 'dtype', '')} {_described(cu_seqlens)}".lstrip()
        raise TypeError(f"cu_seqlens must be a tensor [N + 1] of integers, got {got}")
    if cu_seqlens.shape[0] < 2:
        raise ValueError(f"cu_seqlens must have at least two entries, got {cu_seqlens.shape[0]}")
    if q.shape[0] != 1 or q.shape[1] != k.shape[1]:
        raise ValueError(
            f"q and k must be one row of equally many tokens with cu_seqlens, got {list(q.shape)} and {list(k.shape)}"
        )
    if cu_seqlens.device.type == "cpu" and not torch.compiler.is_compiling():
        bounds = cu_seqlens.tolist()
        if bounds[0] != 0 or bounds[-1] != q.shape[1] or any(a > b for a, b in itertools.pairwise(bounds)):
            raise ValueError(f"cu_seqlens must rise from 0 to T = {q.shape[1]}, got {bounds}")
    return cu_seqlens.shape[0] - 1


def _pair(state: Any) -> tuple[torch.Tensor, torch.Tensor]:
    if not isinstance(state, (tuple, list)) or len(state) != 2:
        got = f"{len(state)} entries" if isinstance(state, (tuple, list)) else type(state).__name__
        raise TypeError(f"state must be a pair (mass, content), got {got}")
    return state[0], state[1]
