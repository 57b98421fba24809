"""HashAttention on a GPU (arXiv:2412.14468v2, Sec. 4, pp. 4-5), in Triton: codes, the set of tokens, attention over it.

The definition is attnlab/hashattention/reference.py, one query after another. What the kernels change from it, and what
that buys:
    one map         all layers of a head's map in one program: nothing between them is stored, and bits leave as words
    histogram       how many keys stand at each distance, chunk by chunk. From it follows the distance at which the
                    budget is used up, so nothing is sorted
    two passes      the second pass takes all keys below that distance, and of those at it the first ones. How many each
                    chunk takes is known beforehand, so every program knows where its tokens stand in the list: indices
                    come out rising, ties by lowest index, sinks and window among them
    distances       are made again in the second pass. To keep them costs 2 bytes a key and query head (one out, one in;
                    twice that beyond 255 bits), to make them again 4 W bytes a key for all heads of a code head: as
                    many at 32 bits with two query heads a code, fewer from there on. And no buffer of S H bytes
    popcount        by shifts and masks, of which every compiler makes its one instruction a word
    one read        a block of query heads of one code head reads a word of codes once
    page size 1     keys and values are gathered row by row. Where each query head has a list of its own, a program
                    computes one head without tensor cores; where the heads of a group share a list, a program reads
                    their rows once for all of them
    split lists     a list is cut in spans, whose outputs are merged by the logarithms of their denominators; an empty
                    one weighs nothing. Spans depend on the length of the list alone (and are not cut beyond 16
                    queries): the same call gives the same bits, whatever the batch
    no atomics      as far as this file is concerned: Triton's own histogram may count with them, and counts are whole
                    numbers, the same in any order

Letters: K and V widths, H query heads, G key/value heads, C heads of the key codes (G or H), W words of a code, N
tokens of the longest list, L lists (H, or as few as G). In the code b_ is a value in registers, BR query heads of the
H / C on a code head, BN keys or tokens at a time.

Bytes are given with e bytes a number of q, k and v.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from attnlab_kernels._shared import DTYPES, INTERPRETED, REGISTERS, _described, _dot, _expect, _power_of_two
from attnlab_kernels.launch import launch

__all__ = [
    "CONFIGS", "Config", "Packed", "attention", "decode_step", "empty_codes", "encode", "gathered_attention", "pack",
    "select",
]  # fmt: skip

MAX_WIDTH = 256  # of a head, of a value, of a hidden layer
MAX_WORDS = 32  # of a code that is compared; as many bits as are wanted can be made
Size = int | float


# -- what the kernels share --


@triton.jit
def _popcount(x):
    """How many bits of each int32 are set."""
    x = x.to(tl.uint32, bitcast=True)
    x -= (x >> 1) & 0x55555555
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def _safe_log(total):
    """log(total), and -inf for 0 without a warning."""
    return tl.where(total == 0, float("-inf"), tl.log(tl.where(total == 0, 1.0, total)))


@triton.jit
def _above(top):
    """What is subtracted from logits whose maximum is `top`: that, and 0 where there is none."""
    return tl.where(top == float("-inf"), 0.0, top)


# -- codes --


@triton.jit
def _silu(x):
    """x sigmoid(x), without overflow."""
    small = tl.exp(-tl.abs(x))
    return x * tl.where(x >= 0, 1.0, small) / (1.0 + small)


@triton.jit
def _layer(rows, weight, bias, D: tl.constexpr, BS: tl.constexpr, SD: tl.constexpr, EXACT_W: tl.constexpr):
    """SiLU(rows w + b), SD slices [BT, BS] of a layer D wide, in and out."""
    o = tl.arange(0, BS)
    out = ()
    for s in tl.static_range(SD):
        b_out = tl.zeros([rows[0].shape[0], BS], tl.float32) + tl.load(bias + s * BS + o).to(tl.float32)[None, :]
        for i in tl.static_range(SD):
            b_w = tl.load(weight + (i * BS + o)[:, None] * D + (s * BS + o)[None, :]).to(tl.float32)
            b_out = _dot(rows[i], b_w, b_out, False, EXACT_W, tl.float32)
        out = out + (_silu(b_out),)  # type: ignore[assignment]
    return out


@triton.jit(do_not_specialize=["rows", "T", "H", "heads"])
def hash_encode_kernel(
    x, hidden, hidden_bias, last, last_bias, codes, rows, T, H, heads,
    x_b, x_t, x_h, x_k, c_b, c_t, c_h, c_w,
    K: tl.constexpr, D: tl.constexpr, LAYERS: tl.constexpr, W: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr,
    EXACT: tl.constexpr, EXACT_W: tl.constexpr,
):  # fmt: skip
    """Codes of BT rows of one of H maps (Eq. 1, p. 4; the map, p. 5): LAYERS hidden layers, then 32 bits at a time. The
    maps of H / heads neighbours read the same head of x.

    Change: none but the order of sums; float32 factors go to the tensor cores in two parts.
    Reads e K, writes 4 W a row and map; a program reads 4 D (LAYERS D + 32 W) of its map (half of it where weights have
    two bytes); 2 D (LAYERS D + 32 W) flops a row.
    """
    SD: tl.constexpr = D // BS
    i = tl.program_id(0).to(tl.int64)
    i_h, i_r = i % H, i // H * BT
    o_r = i_r + tl.arange(0, BT)
    there = o_r < rows
    o_s = tl.arange(0, BS)
    x += o_r // T * x_b + o_r % T * x_t + i_h * heads // H * x_h
    b_x = ()
    for s in tl.static_range(SD):
        o_k = s * BS + o_s
        here = there[:, None] & (o_k < K)[None, :]
        b_x = b_x + (tl.load(x[:, None] + o_k[None, :] * x_k, mask=here, other=0.0).to(tl.float32),)  # type: ignore[assignment]
    hidden += i_h * LAYERS * D * D
    hidden_bias += i_h * LAYERS * D
    for n in range(LAYERS):
        b_x = _layer(b_x, hidden + n * D * D, hidden_bias + n * D, D, BS, SD, EXACT_W)
    o_i = tl.arange(0, 32)
    last += i_h * D * (32 * W) + o_i
    last_bias += i_h * (32 * W) + o_i
    codes += o_r // T * c_b + o_r % T * c_t + i_h * c_h
    for w in range(W):
        b_out = tl.zeros([BT, 32], tl.float32) + tl.load(last_bias + 32 * w).to(tl.float32)[None, :]
        for s in tl.static_range(SD):
            b_w = tl.load(last[None, :] + (s * BS + o_s)[:, None] * (32 * W) + 32 * w).to(tl.float32)
            b_out = _dot(b_x[s], b_w, b_out, EXACT and LAYERS == 0, EXACT_W, tl.float32)
        b_word = tl.sum(tl.where(b_out > 0, (1 << o_i)[None, :], 0), 1)  # one bit each: the sum is their union
        tl.store(codes + w * c_w, b_word, mask=there)


# -- the set --


@triton.jit
def _block(T, H, C, splits, BR: tl.constexpr):
    """Where a program stands that compares codes: row of the batch, query, code head, first of its BR query heads, how
    many heads share the code head, and chunk. Programs that read the same tokens, one code head each, are neighbours.
    """
    i = tl.program_id(0).to(tl.int64)
    group = H // C
    blocks = (group + BR - 1) // BR
    i_c, i_s, i = i % C, i // C % splits, i // C // splits
    i_r, i_t, i_b = i % blocks * BR, i // blocks % T, i // blocks // T
    return i_b, i_t, i_c, i_r, group, i_s


@triton.jit
def _differing(keys, words, r: tl.constexpr, W: tl.constexpr):
    """Of W words of keys and W words of row r: the Hamming distance, and whether some bit is equal."""
    differ = keys[0] ^ words[r * W]
    distance, every = _popcount(differ), differ
    for w in tl.static_range(1, W):
        differ = keys[w] ^ words[r * W + w]
        distance += _popcount(differ)
        every &= differ
    # The minimum changes nothing. Without it a compiler that needs some bits of the distance alone sees no popcount.
    return tl.minimum(distance, 32 * W), every != -1


@triton.jit(do_not_specialize=["T", "H", "C", "splits"])
def hash_count_kernel(
    query_codes, key_codes, sizes, counts, T, H, C, splits, chunk, q_b, q_t, q_h, q_w, k_b, k_s, k_c, k_w,
    W: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr, BINS: tl.constexpr,
):  # fmt: skip
    """How many keys of a chunk, sinks and window left out, stand at each Hamming distance (Eq. 2, p. 4) from each of BR
    query heads of one code head.

    Change: the largest distance, 32 W, has no bin where W is a power of 2; it has the keys that no other bin has. So 32
    bins do for 32 bits.
    Reads 4 W a key once for BR heads, writes 4 BINS a head and chunk.
    """
    i_b, i_t, i_c, i_r, group, i_s = _block(T, H, C, splits, BR)
    first, last = tl.load(sizes + 5 * i_t + 1), tl.load(sizes + 5 * i_t + 2)
    query_codes += i_b * q_b + i_t * q_t + (i_c * group + i_r) * q_h
    words = ()
    for r in tl.static_range(BR):
        for w in tl.static_range(W):
            words = words + (tl.load(query_codes + r * q_h + w * q_w, mask=i_r + r < group, other=0),)  # type: ignore[assignment]
    bins = ()
    for _ in tl.static_range(BR):
        bins = bins + (tl.zeros([BINS], tl.int32),)  # type: ignore[assignment]
    key_codes += i_b * k_b + i_c * k_c
    start = (i_s * chunk).to(tl.int32)
    stop = tl.minimum(last, start + chunk)
    for begin in range(start, stop, BN):
        o_n = begin + tl.arange(0, BN)
        middle = (o_n >= first) & (o_n < stop)
        keys = ()
        for w in tl.static_range(W):
            keys = keys + (tl.load(key_codes + o_n.to(tl.int64) * k_s + w * k_w, mask=middle, other=0),)  # type: ignore[assignment]
        more = ()
        for r in tl.static_range(BR):
            distance, near = _differing(keys, words, r, W)
            here = middle & near if BINS == 32 * W else middle
            more = more + (bins[r] + tl.histogram(distance, BINS, mask=here),)  # type: ignore[assignment]
        bins = more
    o_d = tl.arange(0, BINS)
    row = (i_b * T + i_t) * H + i_c * group + i_r
    for r in tl.static_range(BR):
        tl.store(counts + ((row + r) * splits + i_s) * BINS + o_d, bins[r], mask=(i_r + r < group) & (o_d < BINS))


@triton.jit(do_not_specialize=["T", "H", "splits"])
def hash_cut_kernel(
    counts, sizes, cuts, starts, T, H, splits, chunk, BINS: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """Of one query row: the distance at which its budget is used up, and how many keys at it are taken; and for each
    chunk how many keys below that distance, and how many at it, stand before it.

    Change: this takes the place of a sort.
    Reads 8 BINS, writes 8 a chunk.
    """
    i = tl.program_id(0).to(tl.int64)
    t = i // H % T
    first, last, budget = tl.load(sizes + 5 * t + 1), tl.load(sizes + 5 * t + 2), tl.load(sizes + 5 * t + 3)
    counts += i * splits * BINS
    o_d, o_s = tl.arange(0, BINS), tl.arange(0, BS)
    total = tl.zeros([BINS], tl.int32)
    for s in range(0, splits, BS):
        at = (s + o_s)[:, None]
        total += tl.sum(tl.load(counts + at * BINS + o_d[None, :], mask=at < splits, other=0), 0)
    cut = tl.sum((tl.cumsum(total, 0) < budget).to(tl.int32), 0)
    quota = budget - tl.sum(tl.where(o_d < cut, total, 0), 0)
    tl.store(cuts + 2 * i, cut)
    tl.store(cuts + 2 * i + 1, quota)
    starts += i * (splits + 1) * 2
    below = quota * 0
    equal = quota * 0
    for s in range(0, splits, BS):
        b_s = s + o_s
        b_counts = tl.load(counts + b_s[:, None] * BINS + o_d[None, :], mask=b_s[:, None] < splits, other=0)
        b_below = tl.sum(tl.where((o_d < cut)[None, :], b_counts, 0), 1)
        b_equal = tl.sum(tl.where((o_d == cut)[None, :], b_counts, 0), 1)
        middle = tl.minimum(last, (b_s + 1) * chunk) - tl.maximum(first, b_s * chunk)
        middle = tl.where(b_s < splits, tl.maximum(middle, 0), 0)
        b_equal = tl.where(cut < BINS, b_equal, middle - tl.sum(b_counts, 1))
        tl.store(starts + 2 * b_s, below + tl.cumsum(b_below, 0) - b_below, mask=b_s < splits)
        tl.store(starts + 2 * b_s + 1, equal + tl.cumsum(b_equal, 0) - b_equal, mask=b_s < splits)
        below += tl.sum(b_below, 0)
        equal += tl.sum(b_equal, 0)
    tl.store(starts + 2 * splits, below)
    tl.store(starts + 2 * splits + 1, equal)


@triton.jit(do_not_specialize=["T", "H", "C", "N", "splits"])
def hash_place_kernel(
    query_codes, key_codes, sizes, cuts, starts, index, T, H, C, N, splits, chunk,
    q_b, q_t, q_h, q_w, k_b, k_s, k_c, k_w,
    W: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The tokens of a chunk that each of BR query heads reads, at their places in its list: sinks, window, keys below
    the cut, and of those at it the first.

    Change: a chunk of which nothing is taken is not read again.
    Reads 4 W a key once for BR heads, and 24 a head and chunk; writes 4 a token taken.
    """
    i_b, i_t, i_c, i_r, group, i_s = _block(T, H, C, splits, BR)
    visible, first = tl.load(sizes + 5 * i_t), tl.load(sizes + 5 * i_t + 1)
    last, budget = tl.load(sizes + 5 * i_t + 2), tl.load(sizes + 5 * i_t + 3)
    o_r = i_r + tl.arange(0, BR)
    there = o_r < group
    o_h = i_c * group + o_r
    row = (i_b * T + i_t) * H + o_h
    cut = tl.load(cuts + 2 * row, mask=there, other=0)
    quota = tl.load(cuts + 2 * row + 1, mask=there, other=0)
    starts += (row * (splits + 1) + i_s) * 2
    below = tl.load(starts, mask=there, other=0)
    equal = tl.load(starts + 1, mask=there, other=0)
    taken = tl.load(starts + 2, mask=there, other=0) - below
    taken += tl.minimum(tl.load(starts + 3, mask=there, other=0), quota) - tl.minimum(equal, quota)
    index += row * N
    o_n = tl.arange(0, BN)
    start = (i_s * chunk).to(tl.int32)
    stop = tl.minimum(visible, start + chunk)
    _put(index, start, tl.minimum(stop, first), 0, there)
    _put(index, tl.maximum(start, last), stop, first + budget - last, there)
    stop = tl.where(tl.max(taken, 0) > 0, tl.minimum(stop, last), start)
    query_codes += i_b * q_b + i_t * q_t + o_h * q_h
    words = ()
    for w in tl.static_range(W):
        words = words + (tl.load(query_codes + w * q_w, mask=there, other=0),)  # type: ignore[assignment]
    key_codes += i_b * k_b + i_c * k_c
    index += first - 1
    for begin in range(start, stop, BN):
        b_n = begin + o_n
        middle = (b_n >= first) & (b_n < stop)
        distance = tl.zeros([BR, BN], tl.int32)
        for w in tl.static_range(W):
            b_key = tl.load(key_codes + b_n.to(tl.int64) * k_s + w * k_w, mask=middle, other=0)
            distance += _popcount(words[w][:, None] ^ b_key[None, :])
        middle = middle[None, :] & there[:, None]
        is_below = middle & (distance < cut[:, None])
        is_equal = middle & (distance == cut[:, None])
        both = is_below.to(tl.int32) + (is_equal.to(tl.int32) << 16)  # two counts in one scan: BN is below 2^15
        run = tl.cumsum(both, 1)
        b_below, b_equal = below[:, None] + (run & 0xFFFF), equal[:, None] + (run >> 16)
        is_taken = is_below | (is_equal & (b_equal <= quota[:, None]))
        place = b_below + tl.minimum(b_equal, quota[:, None])
        tl.store(index[:, None] + place, tl.broadcast_to(b_n[None, :], [BR, BN]), mask=is_taken)
        end = tl.sum(both, 1)
        below += end & 0xFFFF
        equal += end >> 16


@triton.jit
def _put(index, start, stop, ahead, there):
    """Tokens from `start` on, all of them, at places `ahead` of their own."""
    for begin in range(start, stop, 32):
        o_n = begin + tl.arange(0, 32)
        here = there[:, None] & (o_n < stop)[None, :]
        place = index[:, None] + (o_n + ahead)[None, :]
        tl.store(place, tl.broadcast_to(o_n[None, :], here.shape), mask=here)


# -- attention over a list --


@triton.jit
def _named(index, o_n, stop, S):
    """Tokens o_n of a list, and which of them there are. A token equal to the one before it, or outside of the keys, is
    left out.
    """
    inside = o_n < stop
    token = tl.load(index + o_n, mask=inside, other=-1)
    before = tl.load(index + o_n - 1, mask=inside & (o_n > 0), other=-1)
    return token.to(tl.int64), inside & (token >= 0) & (token < S) & (token != before)


@triton.jit(do_not_specialize=["scale", "T", "H", "G", "L", "S", "N", "splits", "span", "n_b", "n_t", "n_l"])
def hash_attend_kernel(
    q, k, v, index, lengths, out, lse, scale, T, H, G, L, S, N, splits, span,
    q_b, q_t, q_h, q_k, k_b, k_s, k_g, k_k, v_b, v_s, v_g, v_v, n_b, n_t, n_l,
    K: tl.constexpr, V: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Attention of one query head over a span of its list.

    Change: the maximum is that of the tiles so far. Every sum is taken in float32 without tensor cores.
    Reads e (K + V) + 8 a token, e K a query; writes e V + 4, where a list is split 4 (V + 1) a span.
    """
    i = tl.program_id(0).to(tl.int64)
    i_p, row = i % splits, i // splits
    i_h, i_t, i_b = row % H, row // H % T, row // H // T
    i_g, i_l = i_h * G // H, i_h * L // H
    o_k, o_v = tl.arange(0, BK), tl.arange(0, BV)
    b_q = tl.load(q + i_b * q_b + i_t * q_t + i_h * q_h + o_k * q_k, mask=o_k < K, other=0.0).to(tl.float32) * scale
    k += i_b * k_b + i_g * k_g + o_k[None, :] * k_k
    v += i_b * v_b + i_g * v_g + o_v[None, :] * v_v
    index += ((i_b * T + i_t) * L + i_l) * N
    start = (i_p * span).to(tl.int32)
    stop = tl.minimum(tl.load(lengths + i_b * n_b + i_t * n_t + i_l * n_l), start + span)
    top = tl.full([], float("-inf"), tl.float32)
    total = tl.full([], 0.0, tl.float32)
    b_out = tl.zeros([BV], tl.float32)
    for begin in range(start, stop, BN):
        token, live = _named(index, begin + tl.arange(0, BN), stop, S)
        b_k = tl.load(k + token[:, None] * k_s, mask=live[:, None] & (o_k < K)[None, :], other=0.0).to(tl.float32)
        b_v = tl.load(v + token[:, None] * v_s, mask=live[:, None] & (o_v < V)[None, :], other=0.0).to(tl.float32)
        logits = tl.where(live, tl.sum(b_k * b_q[None, :], 1), float("-inf"))
        new = tl.maximum(top, tl.max(logits, 0))
        fade = tl.exp(top - _above(new))
        weights = tl.exp(logits - _above(new))
        total = total * fade + tl.sum(weights, 0)
        b_out = b_out * fade + tl.sum(weights[:, None] * b_v, 0)
        top = new
    b_out /= tl.where(total == 0, 1.0, total)
    tl.store(out + (row * splits + i_p) * V + o_v, b_out.to(out.dtype.element_ty), mask=o_v < V)
    tl.store(lse + row * splits + i_p, _above(top) + _safe_log(total))


@triton.jit(do_not_specialize=["scale", "T", "H", "G", "L", "S", "N", "splits", "span", "n_b", "n_t", "n_l"])
def hash_attend_shared_kernel(
    q, k, v, index, lengths, out, lse, scale, T, H, G, L, S, N, splits, span,
    q_b, q_t, q_h, q_k, k_b, k_s, k_g, k_k, v_b, v_s, v_g, v_v, n_b, n_t, n_l,
    K: tl.constexpr, V: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Attention of the H / L query heads that share a list over a span of it, in float16 or bfloat16.

    Change: as `hash_attend_kernel`, on tensor cores: each key and value is read once for all heads of its list. Weights
    go in as two parts, so that nothing is rounded that would not be in float32.
    Reads e (K + V) + 8 a token of a list, e K a query; writes as above for every head.
    """
    i = tl.program_id(0).to(tl.int64)
    i_p, i_l, i_t, i_b = i % splits, i // splits % L, i // splits // L % T, i // splits // L // T
    group = H // L
    o_m, o_k, o_v = tl.arange(0, BM), tl.arange(0, BK), tl.arange(0, BV)
    there = o_m < group
    o_h = i_l * group + o_m
    i_g = i_l * group * G // H
    q += i_b * q_b + i_t * q_t + o_h[:, None] * q_h + o_k[None, :] * q_k
    b_q = tl.load(q, mask=there[:, None] & (o_k < K)[None, :], other=0.0)
    k += i_b * k_b + i_g * k_g + o_k[None, :] * k_k
    v += i_b * v_b + i_g * v_g + o_v[None, :] * v_v
    index += ((i_b * T + i_t) * L + i_l) * N
    start = (i_p * span).to(tl.int32)
    stop = tl.minimum(tl.load(lengths + i_b * n_b + i_t * n_t + i_l * n_l), start + span)
    top = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    b_out = tl.zeros([BM, BV], tl.float32)
    for begin in range(start, stop, BN):
        token, live = _named(index, begin + tl.arange(0, BN), stop, S)
        b_k = tl.load(k + token[:, None] * k_s, mask=live[:, None] & (o_k < K)[None, :], other=0.0)
        logits = scale * tl.dot(b_q, tl.trans(b_k))
        logits = tl.where(live[None, :], logits, float("-inf"))
        new = tl.maximum(top, tl.max(logits, 1))
        fade = tl.exp(top - _above(new))
        weights = tl.exp(logits - _above(new)[:, None])
        total = total * fade + tl.sum(weights, 1)
        b_v = tl.load(v + token[:, None] * v_s, mask=live[:, None] & (o_v < V)[None, :], other=0.0)
        high = weights.to(b_v.dtype)
        b_out = tl.dot(high, b_v, b_out * fade[:, None])
        b_out = tl.dot((weights - high.to(tl.float32)).to(b_v.dtype), b_v, b_out)
        top = new
    b_out /= tl.where(total == 0, 1.0, total)[:, None]
    row = (i_b * T + i_t) * H + o_h
    at = (row * splits + i_p)[:, None] * V + o_v[None, :]
    tl.store(out + at, b_out.to(out.dtype.element_ty), mask=there[:, None] & (o_v < V)[None, :])
    tl.store(lse + row * splits + i_p, _above(top) + _safe_log(total), mask=there)


@triton.jit(do_not_specialize=["splits"])
def hash_merge_kernel(parts, part_lse, out, lse, splits, V: tl.constexpr, BP: tl.constexpr, BV: tl.constexpr):
    """Outputs of the spans of one list, weighed by their denominators. A span without tokens weighs nothing; if none
    has any, o is 0 and lse -inf.

    Change: none. Reads 4 (V + 1) and 4 more a span, writes e V + 4.
    """
    row = tl.program_id(0).to(tl.int64)
    o_v, o_p = tl.arange(0, BV), tl.arange(0, BP)
    part_lse += row * splits
    top = tl.full([], float("-inf"), tl.float32)
    for p in range(0, splits, BP):
        b_lse = tl.load(part_lse + p + o_p, mask=p + o_p < splits, other=float("-inf"))
        top = tl.maximum(top, tl.max(b_lse, 0))
    total = tl.full([], 0.0, tl.float32)
    b_out = tl.zeros([BV], tl.float32)
    for p in range(0, splits, BP):
        b_p = p + o_p
        weights = tl.exp(tl.load(part_lse + b_p, mask=b_p < splits, other=float("-inf")) - _above(top))
        at = (row * splits + b_p)[:, None] * V + o_v[None, :]
        b_part = tl.load(parts + at, mask=(b_p < splits)[:, None] & (o_v < V)[None, :], other=0.0)
        total += tl.sum(weights, 0)
        b_out += tl.sum(weights[:, None] * b_part, 0)
    b_out /= tl.where(total == 0, 1.0, total)
    tl.store(out + row * V + o_v, b_out.to(out.dtype.element_ty), mask=o_v < V)
    tl.store(lse + row, _above(top) + _safe_log(total))


# -- how an operation is cut --


class Config(NamedTuple):
    """How the kernels divide their work.

    keys        keys of one word that a program compares at a time; fewer where codes have more words
    chunk       keys a program, at least, and
    chunks      the most chunks: longer ones where there are more keys than both say
    heads       query heads a program, of those that share codes
    tokens      tokens of a list that a program gathers at a time
    span        tokens a span, at least, and
    spans       the most spans
    """

    keys: int
    chunk: int
    chunks: int
    heads: int
    tokens: int
    span: int
    spans: int


CONFIGS = {
    "default": Config(1024, 4096, 128, 4, 64, 256, 64),
    # short chunks and spans, so that small operations have several
    "short": Config(32, 64, 128, 2, 16, 16, 64),
}
SPLIT_QUERIES = 16  # beyond so many queries a row of the batch, lists are not split: there are programs enough
ROWS = 16  # of x that a program encodes


class Packed(NamedTuple):
    """Maps as the kernel reads them (`pack`): hidden layers padded with zeros to squares [H, layers, D, D], the last
    one to [H, D, 32 W]; a hidden unit of zeros stays zero. `width` is that of the rows it maps.
    """

    hidden: torch.Tensor
    hidden_bias: torch.Tensor
    last: torch.Tensor
    last_bias: torch.Tensor
    width: int
    bits: int


class Sizes(NamedTuple):
    """What each query reads: `table` int32 [T, 5] holds how many keys it sees, the first one after its sinks, the first
    one of its window, its budget of those between, and how many it reads in all. `longest` of the latter, `shortest`.
    """

    table: torch.Tensor
    longest: int
    shortest: int


def _tokens(size: Size, visible: int) -> int:
    """Itself if whole, else that fraction of the visible tokens, as it is written, rounded down."""
    return min(size if isinstance(size, int) else math.floor(size * visible * (1 + 2**-50)), visible)


def sizes(T: int, S: int, budget: Size, sinks: Size, window: Size, causal: bool, device: torch.device) -> Sizes:
    """How many of S keys each of T queries reads, from sizes that are numbers of tokens or fractions."""
    rows = []
    for t in range(T):
        visible = S - T + t + 1 if causal else S
        first = _tokens(sinks, visible)
        last = max(first, visible - _tokens(window, visible))
        kept = min(_tokens(budget, visible), last - first)
        rows.append((visible, first, last, kept, visible - (last - first) + kept))
    reads = [row[4] for row in rows] or [0]
    table = torch.tensor(rows, dtype=torch.int32, device=device).reshape(T, 5)
    return Sizes(table, max(reads), min(reads))


def _comparison(query_codes: torch.Tensor, key_codes: torch.Tensor, config: Config) -> tuple[Any, dict[str, int], int]:
    """(T, H, C, chunks, keys a chunk), the constants, and the grid of the two kernels that compare codes."""
    (B, T, H, W), (S, C) = query_codes.shape, key_codes.shape[1:3]
    BR = min(config.heads, _power_of_two(H // C))
    chunk = max(config.chunk, -(-S // config.chunks))
    chunk = -(-chunk // config.keys) * config.keys
    splits = max(1, -(-S // chunk))
    return (T, H, C, splits, chunk), {"W": W, "BR": BR}, B * T * C * -(-H // C // BR) * splits


def scan(
    query_codes: torch.Tensor, key_codes: torch.Tensor, table: torch.Tensor, longest: int, shortest: int, config: str
) -> torch.Tensor:
    """What `torch.ops.attnlab.hash_select` returns: lists int32 [B, T, H, N], rising, -1 after the last token."""
    cut = CONFIGS[config]
    numbers, constants, programs = _comparison(query_codes, key_codes, cut)
    T, H, C, splits, chunk = numbers
    B, W = query_codes.shape[0], query_codes.shape[3]
    BINS, N, rows = max(32, _power_of_two(32 * W)), longest, B * T * H
    index = query_codes.new_empty(B, T, H, N) if shortest == N else query_codes.new_full((B, T, H, N), -1)
    if not index.numel():
        return index
    counts, cuts = query_codes.new_empty(rows, splits, BINS), query_codes.new_empty(rows, 2)
    starts = query_codes.new_empty(rows, splits + 1, 2)
    # keys at a time: a first pass compares one query head after another, the second one all heads at once
    BN, some = (max(32, keys // _power_of_two(W)) for keys in (cut.keys, 1024 if W > 1 else cut.keys // 4))
    strides = (*query_codes.stride(), *key_codes.stride())
    how = {"num_warps": 4, "num_stages": 1}
    compared = (query_codes, key_codes, table)
    launch(hash_count_kernel, (programs,), *compared, counts, *numbers, *strides, **constants, BN=BN, BINS=BINS, **how)
    BS = max(1, min(2048 // BINS, _power_of_two(splits)))
    launch(hash_cut_kernel, (rows,), counts, table, cuts, starts, T, H, splits, chunk, BINS=BINS, BS=BS, **how)
    placed = (*compared, cuts, starts, index, T, H, C, N, splits, chunk)
    launch(hash_place_kernel, (programs,), *placed, *strides, **constants, BN=some, **how)
    return index


def gather(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, index: torch.Tensor, lengths: torch.Tensor, scale: float,
    config: str,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """What `torch.ops.attnlab.hash_gather` returns: (out [B, T, H, V], lse [B, T, H] in float32)."""
    cut, (B, T, H, K), (S, G), V = CONFIGS[config], q.shape, k.shape[1:3], v.shape[-1]
    L, N = index.shape[2:]
    span = max(cut.span, -(-N // cut.spans))
    span = -(-span // cut.tokens) * cut.tokens if T <= SPLIT_QUERIES else max(1, N)
    splits = max(1, -(-N // span))
    rows = B * T * H
    out, lse = q.new_empty(B, T, H, V), q.new_empty(B, T, H, dtype=torch.float32)
    parts, part_lse = out, lse
    if splits > 1:
        parts, part_lse = (q.new_empty(rows, splits, *width, dtype=torch.float32) for width in ((V,), ()))
    arguments = (
        q, k, v, index, lengths, parts, part_lse, scale, T, H, G, L, S, N, splits, span, *q.stride(), *k.stride(),
        *v.stride(), *lengths.stride(),
    )  # fmt: skip
    BK, BV, BN = max(16, _power_of_two(K)), max(16, _power_of_two(V)), cut.tokens
    wide = max(BK, BV) > 128 or q.dtype == torch.float32
    shape = {"K": K, "V": V, "BK": BK, "BV": BV, "BN": BN // 2 if wide else BN}
    how = {"num_warps": 4, "num_stages": 1}
    if L == H or q.dtype == torch.float32:
        launch(hash_attend_kernel, (rows * splits,), *arguments, **shape, **how, maxnreg=REGISTERS)
    else:
        BM = max(16, _power_of_two(H // L))
        launch(hash_attend_shared_kernel, (B * T * L * splits,), *arguments, BM=BM, **shape, **how)
    if splits > 1:
        launch(hash_merge_kernel, (rows,), parts, part_lse, out, lse, splits, V=V, BV=BV, BP=16, **how)
    return out, lse


def write_codes(x: torch.Tensor, maps: Packed, codes: torch.Tensor) -> None:
    """The codes of x [B, T, heads, K], put into codes [B, T, H, W]."""
    (B, T, heads, K), (H, W) = x.shape, codes.shape[2:]
    D, rows = maps.last.shape[1], B * T
    programs = H * -(-rows // ROWS)
    launch(
        hash_encode_kernel, (programs,), x, *maps[:4], codes, rows, T, H, heads, *x.stride(), *codes.stride(),
        K=K, D=D, LAYERS=maps.hidden.shape[1], W=W, BT=ROWS, BS=min(D, 64), EXACT=x.dtype != torch.float32,
        EXACT_W=maps.last.dtype != torch.float32, num_warps=4 if D <= 128 else 8, num_stages=1, maxnreg=REGISTERS,
    )  # fmt: skip


# -- torch operations --


def _demand_gpu(x: torch.Tensor) -> None:
    """Kernels run on a GPU, and anywhere in a process that interprets them."""
    if not (x.is_cuda or INTERPRETED):
        raise RuntimeError(
            f"tensors must be on a GPU, got {x.device}; with TRITON_INTERPRET=1 set before Python starts the kernels "
            "are interpreted on the CPU"
        )


@torch.library.custom_op("attnlab::hash_encode", mutates_args=("codes",))
def hash_encode(
    x: torch.Tensor, hidden: torch.Tensor, hidden_bias: torch.Tensor, last: torch.Tensor, last_bias: torch.Tensor,
    codes: torch.Tensor,
) -> None:  # fmt: skip
    """`write_codes`."""
    _demand_gpu(x)
    write_codes(x, Packed(hidden, hidden_bias, last, last_bias, x.shape[-1], 32 * codes.shape[-1]), codes)


@hash_encode.register_fake
def _(x, hidden, hidden_bias, last, last_bias, codes):
    return None


@torch.library.custom_op("attnlab::hash_select", mutates_args=())
def hash_select(
    query_codes: torch.Tensor, key_codes: torch.Tensor, table: torch.Tensor, longest: int, shortest: int, config: str
) -> torch.Tensor:
    """`scan`."""
    _demand_gpu(query_codes)
    return scan(query_codes, key_codes, table, longest, shortest, config)


@hash_select.register_fake
def _(query_codes, key_codes, table, longest, shortest, config):
    return query_codes.new_empty(*query_codes.shape[:3], longest)


@torch.library.custom_op("attnlab::hash_gather", mutates_args=())
def hash_gather(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, index: torch.Tensor, lengths: torch.Tensor, scale: float,
    config: str,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """`gather`."""
    _demand_gpu(q)
    return gather(q, k, v, index, lengths, scale, config)


@hash_gather.register_fake
def _(q, k, v, index, lengths, scale, config):
    return q.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)


# -- the public door --


def pack(weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor]) -> Packed:
    """Maps for `encode`: weights [H, in, out] and biases [H, out] of each layer, the last layer's width the number of
    bits; SiLU stands between layers, not after the last.

    All of one type, float32, float16 or bfloat16, and on one device; the widths before the last layer are 1 to 256.
    Narrow weights are read as they are and cost half the bytes. Raises ValueError or TypeError naming the argument.
    """
    if not isinstance(weights, (tuple, list)) or not isinstance(biases, (tuple, list)) or not weights:
        raise TypeError(f"weights must be a sequence of tensors, a layer each, got {_described(weights)}")
    if len(biases) != len(weights):
        raise ValueError(f"biases must be as many as weights, {len(weights)}, got {len(biases)}")
    first = weights[0]
    if not isinstance(first, torch.Tensor) or first.ndim != 3:
        raise TypeError(f"weights[0] must be a tensor [H, in, out], got {_described(first)}")
    if first.dtype not in DTYPES:
        raise TypeError(f"weights[0] must be one of float32, float16, bfloat16, got {first.dtype}")
    H, width = first.shape[:2]
    before = width
    for n, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        out = weight.shape[-1] if isinstance(weight, torch.Tensor) and weight.ndim else 0
        _expect(f"weights[{n}]", weight, (H, before, out), (first.dtype,), first)
        _expect(f"biases[{n}]", bias, (H, out), (first.dtype,), first)
        if not 1 <= before <= MAX_WIDTH:
            raise ValueError(f"weights[{n}] must take rows of 1 to {MAX_WIDTH} numbers, got {before}")
        before = out
    if not before:
        raise ValueError(f"weights[{len(weights) - 1}] must have at least one column, a bit each, got 0")
    D = max(16, _power_of_two(max(weight.shape[1] for weight in weights)))
    W, layers = -(-before // 32), len(weights) - 1
    hidden, hidden_bias = first.new_zeros(H, layers, D, D), first.new_zeros(H, layers, D)
    for n in range(layers):
        hidden[:, n, : weights[n].shape[1], : weights[n].shape[2]] = weights[n].detach()
        hidden_bias[:, n, : biases[n].shape[1]] = biases[n].detach()
    last, last_bias = first.new_zeros(H, D, 32 * W), first.new_zeros(H, 32 * W)
    last[:, : weights[-1].shape[1], :before] = weights[-1].detach()
    last_bias[:, :before] = biases[-1].detach()
    return Packed(hidden, hidden_bias, last, last_bias, width, before)


def empty_codes(B: int, tokens: int, C: int, bits: int, device: Any = None) -> torch.Tensor:
    """Room for codes of so many tokens: int32 [B, tokens, C, W], laid out so that the same word of neighbouring tokens
    stands side by side, as the kernels read it. Any other layout is taken too.
    """
    return torch.empty(B, C, -(-bits // 32), tokens, dtype=torch.int32, device=device).permute(0, 3, 1, 2)


def encode(x: torch.Tensor, maps: Packed, out: torch.Tensor | None = None) -> torch.Tensor:
    """The codes of x [B, T, heads, K]: int32 [B, T, H, W], W = ceil(bits / 32), H the heads of the maps, a multiple of
    those of x: H / heads neighbouring maps read one head. `out`, of this shape and any strides, is filled and returned.

    Bit i of word w is whether output 32 w + i is above 0; 0.0, -0.0 and NaN give 0. Computed in float32, 16-bit x and
    weights exactly. It has no gradient. Source: arXiv:2412.14468v2, Eq. 1, p. 4.
    """
    _tensor("x", x, "[B, T, heads, K]")
    if not isinstance(maps, Packed):
        raise TypeError(f"maps must be what `pack` returns, got {type(maps).__name__}")
    H, W = maps.last.shape[0], maps.last.shape[2] // 32
    if x.shape[-1] != maps.width:
        raise ValueError(f"x must have rows of {maps.width} numbers, as maps, got {x.shape[-1]}")
    if x.shape[2] == 0 or H % x.shape[2]:
        raise ValueError(f"x must have a number of heads that divides the {H} of maps, got {x.shape[2]}")
    if maps.last.device != x.device:
        raise ValueError(f"maps must be where x is, on {x.device}, got {maps.last.device}")
    if out is None:
        out = torch.empty(*x.shape[:2], H, W, dtype=torch.int32, device=x.device)
    _expect("out", out, (*x.shape[:2], H, W), (torch.int32,), x)
    hash_encode(x.detach(), *maps[:4], out)
    return out


def select(
    query_codes: torch.Tensor,
    key_codes: torch.Tensor,
    *,
    budget: Size,
    sinks: Size = 128,
    window: Size = 128,
    causal: bool = True,
    config: str = "default",
) -> torch.Tensor:
    """The tokens that each query head reads: int32 [B, T, H, N], rising, -1 after the last of a shorter list.

    query_codes [B, T, H, W] and key_codes [B, S, C, W], C a divisor of H, int32, of at most 1,024 bits and any strides.
    The first `sinks` and the newest `window` of the tokens that a query sees, and the `budget` nearest of the rest by
    Hamming distance, ties by lowest index. A whole number is so many tokens, a number with a point that fraction of the
    visible ones, rounded down. N follows from the sizes: nothing is read back from the GPU.
    """
    reads = _checked_codes(query_codes, key_codes, budget, sinks, window, causal, config)
    return hash_select(query_codes, key_codes, *reads, config)


def gathered_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    index: torch.Tensor,
    lengths: torch.Tensor | None = None,
    *,
    scale: float | None = None,
    return_lse: bool = False,
    config: str = "default",
) -> Any:
    """Softmax attention over the tokens of a list: o [B, T, H, V] in the type of q. With `return_lse` (o, lse
    [B, T, H]), lse in float32 the natural logarithm of the softmax's denominator.

    q [B, T, H, K], k [B, S, G, K] and v [B, S, G, V] of one type, float32, float16 or bfloat16, K and V up to 256, any
    strides; query head h reads key/value head h G // H. index [B, T, L, N], int32 or int64, has a list for each of L
    heads, L a divisor of H and a multiple of G: H / L neighbours share a list, and with L = G a key/value head's rows
    are read once for all its query heads. lengths [B, T, L], integers, says how many of a list's N tokens count, all
    where it is None.

    A list must rise. A token that stands in it twice is then its own neighbour, and is read once; tokens outside of
    [0, S) are left out, so -1 may fill the end. On a CPU lists are checked; on a GPU they are not, since it would have
    to wait. An empty list gives o = 0 and lse = -inf. Keys and values that no list names are not read. It has no
    gradient: a tensor that requires one is refused.
    """
    _checked_rows(q, k, v, scale)
    (B, T, H), G = q.shape[:3], k.shape[2]
    if not isinstance(index, torch.Tensor) or index.ndim != 4 or index.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"index must be a tensor [B, T, L, N] of int32 or int64, got {_described(index)}")
    L, N = index.shape[2:]
    if L == 0 or H % L or (G and L % G):
        raise ValueError(f"index must have lists for a divisor of {H} heads and a multiple of {G}, got {L}")
    _expect("index", index, (B, T, L, N), (index.dtype,), q)
    if lengths is None:
        lengths = torch.full((1,), N, dtype=torch.int32, device=q.device).expand(B, T, L)
    if not isinstance(lengths, torch.Tensor) or lengths.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"lengths must be a tensor [B, T, L] of int32 or int64, got {_described(lengths)}")
    _expect("lengths", lengths, (B, T, L), (lengths.dtype,), q)
    index = index.clamp(-1, 2**31 - 1).to(torch.int32).contiguous()
    lengths = lengths.clamp(max=N).to(torch.int32)
    if index.device.type == "cpu" and not torch.compiler.is_compiling():
        _checked_lists(index, lengths)
    return _over_lists(q, k, v, index, lengths, scale, return_lse, config)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    query_codes: torch.Tensor,
    key_codes: torch.Tensor,
    *,
    budget: Size,
    sinks: Size = 128,
    window: Size = 128,
    causal: bool = True,
    scale: float | None = None,
    return_lse: bool = False,
    config: str = "default",
) -> Any:
    """Softmax attention over the tokens whose codes are nearest: `select`, then `gathered_attention`, whose arguments
    and results these are. Each query head selects for itself.

    Source: arXiv:2412.14468v2, Sec. 4, pp. 4-5.
    """
    _checked_rows(q, k, v, scale)
    if (*q.shape[:3], k.shape[1]) != (*query_codes.shape[:3], key_codes.shape[1]):
        raise ValueError(
            f"query_codes and key_codes must belong to q and k, {list(q.shape[:3])} and {k.shape[1]} tokens, got "
            f"{list(query_codes.shape[:3])} and {key_codes.shape[1]}"
        )
    reads = _checked_codes(query_codes, key_codes, budget, sinks, window, causal, config)
    if query_codes.device != q.device:
        raise ValueError(f"query_codes must be where q is, on {q.device}, got {query_codes.device}")
    index = hash_select(query_codes, key_codes, *reads, config)
    lengths = reads.table[None, :, None, 4].expand(index.shape[:3])
    return _over_lists(q, k, v, index, lengths, scale, return_lse, config)


def decode_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    codes: torch.Tensor,
    length: int,
    query_maps: Packed,
    key_maps: Packed,
    *,
    budget: Size,
    sinks: Size = 128,
    window: Size = 128,
    scale: float | None = None,
    return_lse: bool = False,
    config: str = "default",
) -> Any:
    """The newest T tokens, from their keys to their outputs: o [B, T, H, V], or (o, lse) as in `gathered_attention`.

    q [B, T, H, K], k [B, T, G, K], v [B, T, G, V]. `keys` [B, M, G, K], `values` [B, M, G, V] and `codes` [B, M, C, W]
    (see `empty_codes`) hold `length` tokens and room for T more, into which k, v and the codes of k are written; what
    lies beyond may hold anything. C, the heads of `key_maps`, is G or H. Then the queries are encoded, and attend to
    the first length + T tokens, causally. The caller counts on: length + T. Nothing is read back from the GPU.
    """
    for name, x, axes in (("q", q, "[B, T, H, K]"), ("k", k, "[B, T, G, K]"), ("v", v, "[B, T, G, V]")):
        _tensor(name, x, axes)
    B, T, G, M = q.shape[0], q.shape[1], k.shape[2], keys.shape[1]
    for name, x, maps in (("query_maps", q, query_maps), ("key_maps", k, key_maps)):
        if not isinstance(maps, Packed):
            raise TypeError(f"{name} must be what `pack` returns, got {type(maps).__name__}")
        if maps.width != x.shape[-1]:
            raise ValueError(f"{name} must map rows of {x.shape[-1]} numbers, got {maps.width}")
    if query_maps.bits != key_maps.bits:
        raise ValueError(f"key_maps must make {query_maps.bits} bits, as query_maps, got {key_maps.bits}")
    if query_maps.last.shape[0] != q.shape[2] or key_maps.last.shape[0] not in (G, q.shape[2]):
        raise ValueError(
            f"query_maps must be for {q.shape[2]} heads and key_maps for {G} or as many, got "
            f"{query_maps.last.shape[0]} and {key_maps.last.shape[0]}"
        )
    if not isinstance(length, int) or not 0 <= length <= M - T:
        raise ValueError(f"length must be a whole number that leaves room for {T} of {M} tokens, got {length}")
    _expect("k", k, (B, T, G, q.shape[3]), (q.dtype,), q)
    _expect("v", v, (B, T, G, v.shape[3]), (q.dtype,), q)
    _expect("keys", keys, (B, M, G, q.shape[3]), (q.dtype,), q)
    _expect("values", values, (B, M, G, v.shape[3]), (q.dtype,), q)
    _expect("codes", codes, (B, M, key_maps.last.shape[0], key_maps.last.shape[2] // 32), (torch.int32,), q)
    _refuse_gradients(q=q, k=k, v=v, keys=keys, values=values)
    new, end = slice(length, length + T), length + T
    keys[:, new] = k
    values[:, new] = v
    encode(k, key_maps, codes[:, new])
    return attention(
        q, keys[:, :end], values[:, :end], encode(q, query_maps), codes[:, :end], budget=budget, sinks=sinks,
        window=window, scale=scale, return_lse=return_lse, config=config,
    )  # fmt: skip


def _over_lists(q, k, v, index, lengths, scale, return_lse: bool, config: str) -> Any:
    _config(config)
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    out, lse = hash_gather(q, k, v, index, lengths, scale, config)
    return (out, lse) if return_lse else out


# -- checks --


def _config(config: str) -> None:
    if config not in CONFIGS:
        raise ValueError(f"config must be one of {', '.join(map(repr, CONFIGS))}, got {config!r}")


def _tensor(name: str, x: Any, axes: str) -> None:
    if not isinstance(x, torch.Tensor) or x.ndim != 4:
        raise TypeError(f"{name} must be a tensor {axes}, got {_described(x)}")
    if x.dtype not in DTYPES:
        raise TypeError(f"{name} must be one of float32, float16, bfloat16, got {x.dtype}")


def _refuse_gradients(**tensors: torch.Tensor) -> None:
    for name, x in tensors.items():
        if x.requires_grad and torch.is_grad_enabled():
            raise ValueError(f"{name} requires a gradient, and these kernels have none; detach it")


def _checked_rows(q, k, v, scale) -> None:
    for name, x, axes in (("q", q, "[B, T, H, K]"), ("k", k, "[B, S, G, K]"), ("v", v, "[B, S, G, V]")):
        _tensor(name, x, axes)
        if not 1 <= x.shape[-1] <= MAX_WIDTH:
            raise ValueError(f"{name} must have a width of 1 to {MAX_WIDTH}, got {x.shape[-1]}")
    (B, _, H, K), (S, G) = q.shape, k.shape[1:3]
    if G == 0 or H % G:
        raise ValueError(f"k must have a number of heads that divides the {H} of q, got {G}")
    _expect("k", k, (B, S, G, K), (q.dtype,), q)
    _expect("v", v, (B, S, G, v.shape[-1]), (q.dtype,), q)
    if scale is not None and not abs(scale) < math.inf:
        raise ValueError(f"scale must be a finite number, got {scale}")
    _refuse_gradients(q=q, k=k, v=v)


def _checked_codes(query_codes, key_codes, budget, sinks, window, causal, config) -> Sizes:
    for name, codes, axes in (("query_codes", query_codes, "[B, T, H, W]"), ("key_codes", key_codes, "[B, S, C, W]")):
        if not isinstance(codes, torch.Tensor) or codes.ndim != 4 or codes.dtype != torch.int32:
            raise TypeError(f"{name} must be a tensor {axes} of int32, got {_described(codes)}")
    (B, T, H, W), (S, C) = query_codes.shape, key_codes.shape[1:3]
    if not 1 <= W <= MAX_WORDS:
        raise ValueError(f"query_codes must have 1 to {MAX_WORDS} words, got {W}")
    if C == 0 or H % C:
        raise ValueError(f"key_codes must have a number of heads that divides the {H} of query_codes, got {C}")
    if not S < 2**30:
        raise ValueError(f"key_codes must be of fewer than 2^30 tokens, which are counted in 32 bits, got {S}")
    _expect("key_codes", key_codes, (B, S, C, W), (torch.int32,), query_codes)
    if causal and T > S:
        raise ValueError(f"key_codes must be of at least {T} tokens where causal, one a query, got {S}")
    for name, size in {"budget": budget, "sinks": sinks, "window": window}.items():
        whole = isinstance(size, int) and not isinstance(size, bool)
        if not (whole and size >= 0) and not (isinstance(size, float) and 0 <= size <= 1):
            raise ValueError(f"{name} must be a whole number from 0 on or a fraction between 0.0 and 1.0, got {size!r}")
    _config(config)
    reads = sizes(T, S, budget, sinks, window, causal, query_codes.device)
    return reads if B * H else reads._replace(longest=0, shortest=0)


def _checked_lists(index: torch.Tensor, lengths: torch.Tensor) -> None:
    """Lists on a CPU must rise as far as they count; a token may stand beside itself, and -1 fills the end."""
    inside = torch.arange(index.shape[-1]) < lengths[..., None]
    token = torch.where(inside & (index >= 0), index, torch.iinfo(torch.int32).max)
    if bool((token[..., 1:] < token[..., :-1]).any()):
        raise ValueError("index must hold lists that rise, -1 only after the last token, got one that does not")
