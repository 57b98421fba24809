"""Low-rank key-value attention on a GPU (arXiv:2601.11471v3, Eqs. 4-7, pp. 3-4), in Triton.

The definition is attnlab/lrkv/reference.py. What the kernels change from it, and what that buys:
    q B             made once, in float32, by a kernel of its own: R numbers a query and head
    one read        a program has up to 32 query heads of a group, so a token's shared key and value are read once for
                    all of them, on tensor cores; more heads of a group come in blocks of 32, each with a read
    latents         [token, head, r] as they lie in the cache, on vector units: two flop a number leave nothing for
                    tensor cores to do. Whole rows of a token's heads are loaded, so each warp reads neighbours
    split keys      a row's keys are cut in spans, whose sums are merged by the logarithms of their denominators; an
                    empty one weighs nothing. A span hands on about 1/32 of the bytes it reads: cuts depend on sizes
                    and not on the batch, so that a row has the same bits alone and beside others
    merged latents  a span hands on its sum of shared values and its sum of latents, and B comes after the merge: one
                    product with B_v a head, whatever the number of spans
    turned at read  a plane's two coordinates are loaded as two tiles, so that a rotation moves nothing between threads.
                    Cosines and sines come from a table made in float64: float32 angles are wrong at long positions
    many queries    beyond 8, a program has queries of one head: q K_s^T and (q B) R^T are both products on tensor
                    cores, and no key or value of a head is ever made. What turns is turned beforehand
    any factor      with `rope` alone, keys are expanded and turned into a buffer, float32 [B, S, H, K], then read
    precision       float32 factors go to the tensor cores in two parts, and so do weights and q B: nothing is rounded
                    that would not be in float32

Letters: H query heads, G shared ones, K and V widths, R and Rv ranks, P planes that turn. In the code b_ is a value in
registers, BH heads, BN keys and BM queries at a time, BR and BU latents of a head at a time.

Bytes are given with e bytes a number of q and of the cache.
"""

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from attnlab_kernels._shared import DTYPES, INTERPRETED, _described, _dot, _expect, _power_of_two
from attnlab_kernels.launch import launch

__all__ = ["CONFIGS", "Config", "attention", "rotation"]

MAX_WIDTH = 256  # of a head, of a value
MAX_RANK = 128
LAYOUTS = ("half", "interleaved")


# -- what the kernels share --


@triton.jit
def _safe_log(total):
    """log(total), and -inf for 0 without a warning."""
    return tl.where(total == 0, float("-inf"), tl.log(tl.where(total == 0, 1.0, total)))


@triton.jit
def _above(top):
    """What is subtracted from logits whose maximum is `top`: that, and 0 where there is none."""
    return tl.where(top == float("-inf"), 0.0, top)


@triton.jit
def _edges(starts, ends, i_b, S):
    """The first key of a row of the batch, and the one after its last."""
    start = tl.load(starts + i_b).to(tl.int32) if starts is not None else 0
    end = tl.load(ends + i_b).to(tl.int32) if ends is not None else S
    return start, end


@triton.jit
def _product(a, b, out):
    """out + a @ b in float32, one of them perhaps float32 and the other one of 16 bits. A float32 goes to the tensor
    cores in two parts.
    """
    A: tl.constexpr = a.dtype != tl.float32
    B: tl.constexpr = b.dtype != tl.float32
    if A and B:
        out = tl.dot(a, b, out)
    elif a.dtype == tl.bfloat16 or b.dtype == tl.bfloat16:
        out = _dot(a, b, out, A, B, tl.bfloat16)
    else:
        out = _dot(a, b, out, A, B, tl.float32)
    return out


@triton.jit
def _weighed(weights, rows, out):
    """out + weights @ rows: weights between 0 and 1 in two parts of the rows' type."""
    if rows.dtype == tl.float32:
        out = _dot(weights, rows, out, False, False, tl.float32)
    else:
        high = weights.to(rows.dtype)
        out = tl.dot(high, rows, out)
        out = tl.dot((weights - high.to(tl.float32)).to(rows.dtype), rows, out)
    return out


@triton.jit
def _plane(o, P: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Where the two coordinates of plane o stand."""
    if INTERLEAVED:
        first, second = 2 * o, 2 * o + 1
    else:
        first, second = o, o + P
    return first, second


# -- q B, and keys that are made before they are read --


@triton.jit(do_not_specialize=["rows", "T"])
def lrkv_project_kernel(
    q, factor, out, rows, T, H, q_b, q_t, q_h, q_k, f_h, f_k, f_r,
    K: tl.constexpr, R: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """q_h B_h of BM queries of one head (Eq. 6, p. 4), float32.

    Change: none. Reads e K, writes 4 R a query and head; a program reads e K R of its factor. 2 K R flops a query.
    """
    i = tl.program_id(0).to(tl.int64)
    i_h = i % H
    o_m = i // H * BM + tl.arange(0, BM)
    o_k, o_r = tl.arange(0, BK), tl.arange(0, BR)
    here, there = (o_m < rows)[:, None], (o_r < R)[None, :]
    q += (o_m // T * q_b + o_m % T * q_t + i_h * q_h)[:, None]
    factor += i_h * f_h + o_r[None, :] * f_r
    b_out = tl.zeros([BM, BR], tl.float32)
    for c in range(0, K, BK):
        o_c = c + o_k
        b_q = tl.load(q + o_c[None, :] * q_k, mask=here & (o_c < K)[None, :], other=0.0)
        b_f = tl.load(factor + o_c[:, None] * f_k, mask=(o_c < K)[:, None] & there, other=0.0)
        b_out = _product(b_q, b_f, b_out)
    tl.store(out + (o_m[:, None] * H + i_h) * R + o_r[None, :], b_out, mask=here & there)


@triton.jit
def _made(x, b_latent, factor, o_c, here, x_k, f_k, f_r, COLUMNS: tl.constexpr, R: tl.constexpr, BR: tl.constexpr):
    """Columns o_c of keys: x + latent B^T, or of x alone, in float32."""
    inside = (o_c < COLUMNS)[None, :]
    b_x = tl.load(x + o_c[None, :] * x_k, mask=here & inside, other=0.0).to(tl.float32)
    if R:
        o_r = tl.arange(0, BR)
        b_f = tl.load(factor + o_c[None, :] * f_k + o_r[:, None] * f_r, mask=inside & (o_r < R)[:, None], other=0.0)
        b_x = _product(b_latent, b_f, b_x)
    return b_x


@triton.jit(do_not_specialize=["S", "X", "H"])
def lrkv_make_kernel(
    x, latent, factor, turns, out, S, X, H, x_b, x_s, x_h, x_k, l_b, l_s, l_h, l_r, f_h, f_k, f_r, t_b,
    K: tl.constexpr, R: tl.constexpr, P: tl.constexpr, INTERLEAVED: tl.constexpr,
    BN: tl.constexpr, BC: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """BN rows of one of H heads turned to their places, float32 [B, S, H, K]; with latents, expanded before that: every
    key of a head made whole (Eq. 4, p. 3). Head h reads head h X // H of x.

    Change: none. Reads e K, with latents e (K + R), with P planes 8 P; writes 4 K a row and head; a program reads e K R
    of its factor.
    """
    i = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(S, BN)
    i_h, i_s, i_b = i % H, i // H % blocks * BN, i // H // blocks
    o_n, o_c, o_r = i_s + tl.arange(0, BN), tl.arange(0, BC), tl.arange(0, BR)
    here = (o_n < S)[:, None]
    x += i_b * x_b + i_h * X // H * x_h + o_n[:, None] * x_s
    out += ((i_b * S + o_n[:, None]) * H + i_h) * K
    b_latent = tl.zeros([BN, BR], tl.float32)
    if R:
        latent += i_b * l_b + o_n[:, None] * l_s + i_h * l_h
        b_latent = tl.load(latent + o_r[None, :] * l_r, mask=here & (o_r < R)[None, :], other=0.0)
        factor += i_h * f_h
    if P:
        turns += i_b * t_b + o_n[:, None] * (2 * P)
        for c in range(0, P, BC):
            o_p = c + o_c
            there = here & (o_p < P)[None, :]
            first, second = _plane(o_p, P, INTERLEAVED)
            second = tl.where(o_p < P, second, K)  # beyond the planes nothing is loaded
            first = tl.where(o_p < P, first, K)
            b_one = _made(x, b_latent, factor, first, here, x_k, f_k, f_r, K, R, BR)
            b_two = _made(x, b_latent, factor, second, here, x_k, f_k, f_r, K, R, BR)
            b_cos = tl.load(turns + o_p[None, :], mask=there, other=0.0)
            b_sin = tl.load(turns + P + o_p[None, :], mask=there, other=0.0)
            tl.store(out + first[None, :], b_one * b_cos - b_two * b_sin, mask=there)
            tl.store(out + second[None, :], b_one * b_sin + b_two * b_cos, mask=there)
    for c in range(2 * P, K, BC):
        b_one = _made(x, b_latent, factor, c + o_c, here, x_k, f_k, f_r, K, R, BR)
        tl.store(out + (c + o_c)[None, :], b_one, mask=here & (c + o_c < K)[None, :])


# -- a few queries: heads of a group in one program --


@triton.jit
def _shared_logits(
    q, b_held, k, turns, o_n, live, q_h, q_k, k_s, k_k, heads, K: tl.constexpr, P: tl.constexpr,
    INTERLEAVED: tl.constexpr, HELD: tl.constexpr, BH: tl.constexpr, BN: tl.constexpr, BP: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """K_s q_h^T of keys o_n and all heads of the program, [BN, BH]; queries are in registers if HELD."""
    o_h = tl.arange(0, BH)
    there = (o_h < heads)[None, :]
    q += o_h[None, :] * q_h
    k += o_n[:, None] * k_s
    out = tl.zeros([BN, BH], tl.float32)
    o_k = tl.arange(0, BK)
    if P:
        o_p = tl.arange(0, BP)
        for c in range(0, P, BP):
            first, second = _plane(c + o_p, P, INTERLEAVED)
            inside = c + o_p < P
            here, asked = live[:, None] & inside[None, :], inside[:, None] & there
            b_one = tl.load(k + first[None, :] * k_k, mask=here, other=0.0).to(tl.float32)
            b_two = tl.load(k + second[None, :] * k_k, mask=here, other=0.0).to(tl.float32)
            table = turns + o_n[:, None] * (2 * P) + (c + o_p)[None, :]
            b_cos, b_sin = tl.load(table, mask=here, other=0.0), tl.load(table + P, mask=here, other=0.0)
            b_q = tl.load(q + first[:, None] * q_k, mask=asked, other=0.0)
            out = _product(b_one * b_cos - b_two * b_sin, b_q, out)
            b_q = tl.load(q + second[:, None] * q_k, mask=asked, other=0.0)
            out = _product(b_one * b_sin + b_two * b_cos, b_q, out)
    for c in range(2 * P, K, BK):
        o_c = c + o_k
        b_k = tl.load(k + o_c[None, :] * k_k, mask=live[:, None] & (o_c < K)[None, :], other=0.0)
        if HELD:
            out = _product(b_k, b_held, out)
        else:
            b_a = tl.load(q + o_c[:, None] * q_k, mask=(o_c < K)[:, None] & there, other=0.0)
            out = _product(b_k, b_a, out)
    return out


@triton.jit
def _residual_logits(
    projected, b_held, latent, turns, o_n, live, heads, l_s, l_h, l_r, out,
    R: tl.constexpr, P: tl.constexpr, INTERLEAVED: tl.constexpr, HELD: tl.constexpr, BH: tl.constexpr,
    BQ: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """out + R_h (q_h B_h)^T of keys o_n, [BN, BH]: BR latents of every head at a time, BQ planes where they turn."""
    o_h, o_r = tl.arange(0, BH), tl.arange(0, BR)
    there = (o_h < heads)[:, None]
    here = live[:, None, None] & (o_h < heads)[None, :, None]
    projected += o_h[:, None] * R
    latent += o_n[:, None, None] * l_s + o_h[None, :, None] * l_h
    if P:
        turns += o_n[:, None] * (2 * P)
        for c in range(0, P, BQ):
            o_p = c + tl.arange(0, BQ)
            first, second = _plane(o_p, P, INTERLEAVED)
            inside, near = here & (o_p < P)[None, None, :], live[:, None] & (o_p < P)[None, :]
            b_one = tl.load(latent + first[None, None, :] * l_r, mask=inside, other=0.0).to(tl.float32)
            b_two = tl.load(latent + second[None, None, :] * l_r, mask=inside, other=0.0).to(tl.float32)
            b_cos = tl.load(turns + o_p[None, :], mask=near, other=0.0)[:, None, :]
            b_sin = tl.load(turns + P + o_p[None, :], mask=near, other=0.0)[:, None, :]
            asked = there & (o_p < P)[None, :]
            b_q = tl.load(projected + first[None, :], mask=asked, other=0.0)[None, :, :]
            out += tl.sum((b_one * b_cos - b_two * b_sin) * b_q, 2)
            b_q = tl.load(projected + second[None, :], mask=asked, other=0.0)[None, :, :]
            out += tl.sum((b_one * b_sin + b_two * b_cos) * b_q, 2)
    if HELD:
        for c in tl.static_range(0, R, BR):
            o_c = c + o_r
            b_l = tl.load(latent + o_c[None, None, :] * l_r, mask=here & (o_c < R)[None, None, :], other=0.0)
            out += tl.sum(b_l.to(tl.float32) * b_held[c // BR][None, :, :], 2)
    for c in range(R if HELD else 2 * P, R, BR):
        o_c = c + o_r
        b_l = tl.load(latent + o_c[None, None, :] * l_r, mask=here & (o_c < R)[None, None, :], other=0.0)
        b_p = tl.load(projected + o_c[None, :], mask=there & (o_c < R)[None, :], other=0.0)
        out += tl.sum(b_l.to(tl.float32) * b_p[None, :, :], 2)
    return out


@triton.jit(do_not_specialize=[
    "scale", "T", "H", "G", "S", "splits", "span", "kl_b", "kl_s", "kl_h", "vl_b", "vl_s", "vl_h", "t_b", "lt_b",
])  # fmt: skip
def lrkv_decode_kernel(
    q, projected, k, v, k_latent, v_latent, k_scale, turns, latent_turns, starts, ends, shared_out, latent_out, lse,
    scale, T, H, G, S, splits, span,
    q_b, q_t, q_h, q_k, k_b, k_s, k_g, k_k, v_b, v_s, v_g, v_v, kl_b, kl_s, kl_h, kl_r, vl_b, vl_s, vl_h, vl_r,
    ks_b, ks_s, ks_h, t_b, lt_b,
    K: tl.constexpr, V: tl.constexpr, R: tl.constexpr, RV: tl.constexpr, P: tl.constexpr, LP: tl.constexpr,
    INTERLEAVED: tl.constexpr, LATENT_INTERLEAVED: tl.constexpr, CAUSAL: tl.constexpr, HELD: tl.constexpr,
    UNIT: tl.constexpr, V_UNIT: tl.constexpr, BH: tl.constexpr, BN: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr,
    BV: tl.constexpr, BQ: tl.constexpr, BR: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    """One query of up to BH heads of a group over a span of its keys (Eqs. 6-7, p. 4): the weighed sums of shared
    values and of latents, and the logarithm of what they were divided by.

    Change: the maximum is that of the tiles so far; B_v is left to `lrkv_merge_kernel`.
    Reads e (K + V + H (R + Rv)) a key for H heads of a group up to BH, with k_scale its bytes a head, with planes 8 a
    plane, e K + 4 R a query and head; writes 4 (V + Rv + 1) a query, head and span. Strides of latents are given in
    multiples of UNIT numbers, so that a compiler knows how wide it may load.
    """
    i = tl.program_id(0).to(tl.int64)
    group = H // G
    blocks = tl.cdiv(group, BH)
    i_a, i_g, i = i % blocks * BH, i // blocks % G, i // blocks // G
    i_t, i_p, i_b = i % T, i // T % splits, i // T // splits
    heads = tl.minimum(group - i_a, BH)  # of this program
    i_h = i_g * group + i_a  # the first of them
    o_h, o_v, o_u = tl.arange(0, BH), tl.arange(0, BV), tl.arange(0, BU)
    first = (i_b * T + i_t) * H + i_h
    q += i_b * q_b + i_t * q_t + i_h * q_h
    k += i_b * k_b + i_g * k_g
    v += i_b * v_b + i_g * v_g + o_v[None, :] * v_v
    if R:
        projected += first * R
        k_latent += (i_b * kl_b + i_h * kl_h) * UNIT
    if RV:
        v_latent += (i_b * vl_b + i_h * vl_h) * V_UNIT
    if k_scale is not None:
        k_scale += i_b * ks_b + (i_h + o_h)[None, :] * ks_h
    if P:
        turns += i_b * t_b
    if LP:
        latent_turns += i_b * lt_b
    start, end = _edges(starts, ends, i_b, S)
    if CAUSAL:
        end += i_t.to(tl.int32) + 1 - T
    start = tl.maximum(start, (i_p * span).to(tl.int32))
    stop = tl.minimum(end.to(tl.int64), (i_p + 1) * span).to(tl.int32)
    b_q, b_p = tl.zeros([BK, BH], q.dtype.element_ty), ()
    if HELD:
        o_k, o_r = tl.arange(0, BK), tl.arange(0, BR)
        asked = (o_h < heads)[None, :] & (o_k < K)[:, None]
        b_q = tl.load(q + o_h[None, :] * q_h + o_k[:, None] * q_k, mask=asked, other=0.0)
        for r in tl.static_range(0, R, BR):
            inside = (o_h < heads)[:, None] & (r + o_r < R)[None, :]
            b_p = b_p + (tl.load(projected + o_h[:, None] * R + (r + o_r)[None, :], mask=inside, other=0.0),)  # type: ignore[assignment]
    top = tl.full([BH], float("-inf"), tl.float32)
    total = tl.zeros([BH], tl.float32)
    b_out = tl.zeros([BH, BV], tl.float32)
    b_latent = ()
    for _ in tl.static_range(0, RV, BU):
        b_latent = b_latent + (tl.zeros([BH, BU], tl.float32),)  # type: ignore[assignment]
    for begin in range(start, stop, BN):
        live = begin + tl.arange(0, BN) < stop
        o_n = (begin + tl.arange(0, BN)).to(tl.int64)
        logits = _shared_logits(
            q, b_q, k, turns, o_n, live, q_h, q_k, k_s, k_k, heads, K, P, INTERLEAVED, HELD, BH, BN, BP, BK
        )
        if R:
            logits = _residual_logits(
                projected, b_p, k_latent, latent_turns, o_n, live, heads, kl_s * UNIT, kl_h * UNIT, kl_r, logits,
                R, LP, LATENT_INTERLEAVED, HELD, BH, BQ, BR,
            )  # fmt: skip
        logits *= scale
        if k_scale is not None:
            b_s = tl.load(k_scale + o_n[:, None] * ks_s, mask=live[:, None] & (o_h < heads)[None, :], other=0.0)
            logits *= b_s.to(tl.float32)
        logits = tl.where(live[:, None], logits, float("-inf"))
        new = tl.maximum(top, tl.max(logits, 0))
        fade = tl.exp(top - _above(new))
        weights = tl.exp(logits - _above(new)[None, :])
        total = total * fade + tl.sum(weights, 0)
        top = new
        b_v = tl.load(v + o_n[:, None] * v_s, mask=live[:, None] & (o_v < V)[None, :], other=0.0)
        b_out = _weighed(tl.trans(weights), b_v, b_out * fade[:, None])
        more = ()
        for c in tl.static_range(0, RV, BU):
            here = live[:, None, None] & (o_h < heads)[None, :, None] & (c + o_u < RV)[None, None, :]
            at = o_n[:, None, None] * (vl_s * V_UNIT) + o_h[None, :, None] * (vl_h * V_UNIT)
            b_l = tl.load(v_latent + at + (c + o_u)[None, None, :] * vl_r, mask=here, other=0.0).to(tl.float32)
            more = more + (b_latent[c // BU] * fade[:, None] + tl.sum(weights[:, :, None] * b_l, 0),)  # type: ignore[assignment]
        b_latent = more
    there = o_h < heads
    row = (first + o_h) * splits + i_p
    tl.store(lse + row, _above(top) + _safe_log(total), mask=there)
    total = tl.where(total == 0, 1.0, total)[:, None]
    tl.store(shared_out + row[:, None] * V + o_v[None, :], b_out / total, mask=there[:, None] & (o_v < V)[None, :])
    for c in tl.static_range(0, RV, BU):
        o_c = c + o_u
        at = row[:, None] * RV + o_c[None, :]
        tl.store(latent_out + at, b_latent[c // BU] / total, mask=there[:, None] & (o_c < RV)[None, :])


@triton.jit(do_not_specialize=["splits"])
def lrkv_merge_kernel(
    shared_parts, latent_parts, part_lse, factor, out, lse, splits, H, f_h, f_v, f_r,
    V: tl.constexpr, RV: tl.constexpr, BV: tl.constexpr, BU: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """The spans of one query and head, weighed by their denominators, then a V_s + (a R_h) B_h^T (Eq. 7, p. 4). A span
    without keys weighs nothing; if none has any, o is 0 and lse -inf.

    Change: none. Reads 4 (V + Rv + 2) a span and e V Rv of the factor, writes e V + 4.
    """
    row = tl.program_id(0).to(tl.int64)
    o_v, o_u, o_p = tl.arange(0, BV), tl.arange(0, BU), tl.arange(0, BP)
    part_lse += row * splits
    top = tl.full([], float("-inf"), tl.float32)
    for p in range(0, splits, BP):
        b_lse = tl.load(part_lse + p + o_p, mask=p + o_p < splits, other=float("-inf"))
        top = tl.maximum(top, tl.max(b_lse, 0))
    total = tl.full([], 0.0, tl.float32)
    b_out = tl.zeros([BV], tl.float32)
    b_latent = ()
    for _ in tl.static_range(0, RV, BU):
        b_latent = b_latent + (tl.zeros([BU], tl.float32),)  # type: ignore[assignment]
    for p in range(0, splits, BP):
        b_p = p + o_p
        there = (b_p < splits)[:, None]
        weights = tl.exp(tl.load(part_lse + b_p, mask=b_p < splits, other=float("-inf")) - _above(top))
        at = (row * splits + b_p)[:, None]
        b_part = tl.load(shared_parts + at * V + o_v[None, :], mask=there & (o_v < V)[None, :], other=0.0)
        total += tl.sum(weights, 0)
        b_out += tl.sum(weights[:, None] * b_part, 0)
        more = ()
        for c in tl.static_range(0, RV, BU):
            o_c = c + o_u
            b_part = tl.load(latent_parts + at * RV + o_c[None, :], mask=there & (o_c < RV)[None, :], other=0.0)
            more = more + (b_latent[c // BU] + tl.sum(weights[:, None] * b_part, 0),)  # type: ignore[assignment]
        b_latent = more
    if RV:
        factor += row % H * f_h + o_v[:, None] * f_v
    for c in tl.static_range(0, RV, BU):
        o_c = c + o_u
        b_f = tl.load(factor + o_c[None, :] * f_r, mask=(o_v < V)[:, None] & (o_c < RV)[None, :], other=0.0)
        b_out += tl.sum(b_f.to(tl.float32) * b_latent[c // BU][None, :], 1)
    b_out /= tl.where(total == 0, 1.0, total)
    tl.store(out + row * V + o_v, b_out.to(out.dtype.element_ty), mask=o_v < V)
    tl.store(lse + row, _above(top) + _safe_log(total))


# -- many queries: those of one head in one program --


@triton.jit(do_not_specialize=["scale", "T", "H", "G", "GV", "S"])
def lrkv_prefill_kernel(
    q, projected, k, v, k_latent, v_latent, k_scale, factor, starts, ends, out, lse, scale, T, H, G, GV, S,
    q_b, q_t, q_h, q_k, k_b, k_s, k_g, k_k, v_b, v_s, v_g, v_v, kl_b, kl_s, kl_h, kl_r, vl_b, vl_s, vl_h, vl_r,
    ks_b, ks_s, ks_h, f_h, f_v, f_r,
    K: tl.constexpr, V: tl.constexpr, R: tl.constexpr, RV: tl.constexpr, CAUSAL: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BR: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    """BM queries of one head over their keys (Eqs. 6-7, p. 4).

    Change: the maximum is that of the tiles so far.
    Reads e (K + V + R + Rv) a key, head and BM queries, and e K + 4 R a query and head; a program reads e V Rv of its
    factor; writes e V + 4 a query and head. 2 (K + V + R + Rv) flops a pair.
    """
    i = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(T, BM)
    i_h, i_m, i_b = i % H, i // H % blocks * BM, i // H // blocks
    o_m, o_k, o_v, o_r, o_u = (
        i_m + tl.arange(0, BM), tl.arange(0, BK), tl.arange(0, BV), tl.arange(0, BR), tl.arange(0, BU),
    )  # fmt: skip
    there = (o_m < T)[:, None]
    row = (i_b * T + o_m) * H + i_h
    q += (i_b * q_b + o_m * q_t + i_h * q_h)[:, None]
    k += i_b * k_b + i_h * G // H * k_g
    v += i_b * v_b + i_h * GV // H * v_g + o_v[None, :] * v_v
    if R:
        projected += row[:, None] * R
        k_latent += i_b * kl_b + i_h * kl_h
    if RV:
        v_latent += i_b * vl_b + i_h * vl_h
    if k_scale is not None:
        k_scale += i_b * ks_b + i_h * ks_h
    start, end = _edges(starts, ends, i_b, S)
    newest = end - 1 + 0 * o_m
    if CAUSAL:
        newest += o_m + 1 - T
    stop = tl.minimum(end, end + i_m.to(tl.int32) + BM - T) if CAUSAL else end
    top = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    b_out = tl.zeros([BM, BV], tl.float32)
    b_latent = ()
    for _ in tl.static_range(0, RV, BU):
        b_latent = b_latent + (tl.zeros([BM, BU], tl.float32),)  # type: ignore[assignment]
    for begin in range(start, stop, BN):
        live = begin + tl.arange(0, BN) < stop
        o_n = (begin + tl.arange(0, BN)).to(tl.int64)
        logits = tl.zeros([BM, BN], tl.float32)
        for c in range(0, K, BK):
            o_c = c + o_k
            inside = (o_c < K)[None, :]
            b_q = tl.load(q + o_c[None, :] * q_k, mask=there & inside, other=0.0)
            b_k = tl.load(k + o_n[:, None] * k_s + o_c[None, :] * k_k, mask=live[:, None] & inside, other=0.0)
            logits = _product(b_q, tl.trans(b_k), logits)
        if R:
            for c in range(0, R, BR):
                o_c = c + o_r
                inside = (o_c < R)[None, :]
                b_p = tl.load(projected + o_c[None, :], mask=there & inside, other=0.0)
                near = k_latent + o_n[:, None] * kl_s + o_c[None, :] * kl_r
                b_l = tl.load(near, mask=live[:, None] & inside, other=0.0)
                logits = _product(b_p, tl.trans(b_l), logits)
        logits *= scale
        if k_scale is not None:
            logits *= tl.load(k_scale + o_n * ks_s, mask=live, other=0.0).to(tl.float32)[None, :]
        logits = tl.where(live[None, :] & (o_n[None, :] <= newest[:, None]), logits, float("-inf"))
        new = tl.maximum(top, tl.max(logits, 1))
        fade = tl.exp(top - _above(new))
        weights = tl.exp(logits - _above(new)[:, None])
        total = total * fade + tl.sum(weights, 1)
        top = new
        more = ()
        for c in tl.static_range(0, RV, BU):
            o_c = c + o_u
            at = o_n[:, None] * vl_s + o_c[None, :] * vl_r
            b_r = tl.load(v_latent + at, mask=live[:, None] & (o_c < RV)[None, :], other=0.0)
            more = more + (_weighed(weights, b_r, b_latent[c // BU] * fade[:, None]),)  # type: ignore[assignment]
        b_latent = more
        b_v = tl.load(v + o_n[:, None] * v_s, mask=live[:, None] & (o_v < V)[None, :], other=0.0)
        b_out = _weighed(weights, b_v, b_out * fade[:, None])
    for c in tl.static_range(0, RV, BU):
        o_c = c + o_u
        at = i_h * f_h + o_v[None, :] * f_v + o_c[:, None] * f_r
        b_f = tl.load(factor + at, mask=(o_v < V)[None, :] & (o_c < RV)[:, None], other=0.0)
        b_out = _product(b_latent[c // BU], b_f, b_out)
    b_out /= tl.where(total == 0, 1.0, total)[:, None]
    tl.store(out + row[:, None] * V + o_v[None, :], b_out.to(out.dtype.element_ty), mask=there & (o_v < V)[None, :])
    tl.store(lse + row, _above(top) + _safe_log(total), mask=o_m < T)


# -- how an operation is cut --


class Config(NamedTuple):
    """How the kernels divide their work.

    keys        keys at a time, at most; fewer where heads have many latents
    span        keys a span, at least, and
    longest     at most, unless there would be
    spans       more spans than this
    latents     bytes of latents that a program holds at a time
    queries     of one head that a program has, where they are many
    few         up to so many queries a program has one of them, of several heads
    """

    keys: int
    span: int
    longest: int
    spans: int
    latents: int
    queries: int
    few: int


CONFIGS = {
    "default": Config(64, 64, 1024, 256, 2**14, 64, 8),
    # short spans, so that small operations have several
    "short": Config(16, 16, 16, 256, 2**13, 16, 4),
}
ROWS = 16  # of q that a program projects
HEADS = 32  # of a group that a program has, at most
HANDED = 32  # a span reads about so many times the bytes that it hands on


def _padded(n: int, least: int = 16) -> int:
    return max(least, _power_of_two(n))


def _unit(latent: torch.Tensor | None) -> int:
    """The largest power of 2 that divides all strides of latents but the last, up to 16 bytes."""
    if latent is None or latent.stride(3) != 1:
        return 1
    return math.gcd(16 // latent.element_size(), *latent.stride()[:3])


def _strides(x: torch.Tensor | None, axes: int, unit: int = 1) -> tuple[int, ...]:
    """Strides for a kernel, 0 where there is nothing; all but the last in multiples of a unit."""
    if x is None:
        return (0,) * axes
    return (*(n // unit for n in x.stride()[:-1]), x.stride(-1))


def forward(
    q: torch.Tensor, q_residual: torch.Tensor, k_shared: torch.Tensor, v_shared: torch.Tensor,
    k_latent: torch.Tensor | None, v_latent: torch.Tensor | None, k_factor: torch.Tensor | None,
    v_factor: torch.Tensor | None, k_scale: torch.Tensor | None, turns: torch.Tensor | None,
    latent_turns: torch.Tensor | None, interleaved: bool, latent_interleaved: bool, starts: torch.Tensor | None,
    ends: torch.Tensor | None, causal: bool, scale: float, config: str,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """What `torch.ops.attnlab.lrkv_attention` returns: (out [B, T, H, V], lse [B, T, H] in float32). Tables of turns
    are those of `rotation`; where there is one for keys and none for latents, keys are expanded.
    """
    (B, T, H, _), V = q.shape, v_shared.shape[-1]
    out, lse = q.new_empty(B, T, H, V), q.new_empty(B, T, H, dtype=torch.float32)
    if not out.numel():
        return out, lse
    cut = CONFIGS[config]
    expanded = turns is not None and k_latent is not None and latent_turns is None
    if expanded:
        k_shared, k_latent, turns = _made_keys(k_shared, k_latent, k_factor, turns, interleaved, H), None, None
    if T > cut.few or expanded:
        if turns is not None:
            k_shared = _made_keys(k_shared, None, None, turns, interleaved, k_shared.shape[2])
        if latent_turns is not None and latent_turns.numel():
            k_latent = _made_keys(k_latent, None, None, latent_turns, latent_interleaved, H)
        projected = _projected(q_residual, k_latent, k_factor)
        _prefill(
            q, projected, k_shared, v_shared, k_latent, v_latent, k_scale, v_factor, starts, ends, causal, scale, cut,
            out, lse,
        )  # fmt: skip
        return out, lse
    projected = _projected(q_residual, k_latent, k_factor)
    _decode(
        q, projected, k_shared, v_shared, k_latent, v_latent, k_scale, turns, latent_turns, v_factor, starts, ends,
        interleaved, latent_interleaved, causal, scale, cut, out, lse,
    )  # fmt: skip
    return out, lse


def _projected(q: torch.Tensor, latent: torch.Tensor | None, factor: torch.Tensor | None) -> torch.Tensor | None:
    """q B: float32 [B, T, H, R]."""
    if latent is None or factor is None:
        return None
    (B, T, H, K), R = q.shape, factor.shape[-1]
    out = q.new_empty(B, T, H, R, dtype=torch.float32)
    launch(
        lrkv_project_kernel, (-(-B * T // ROWS) * H,), q, factor, out, B * T, T, H, *q.stride(), *factor.stride(),
        K=K, R=R, BM=ROWS, BK=min(32, _padded(K)), BR=_padded(R), num_warps=4, num_stages=1,
    )  # fmt: skip
    return out


def _made_keys(x, latent, factor, turns, interleaved: bool, H: int) -> torch.Tensor:
    """float32 [B, S, H, K]: rows of x [B, S, X, K], with latents expanded, turned."""
    (B, S, X, K), R = x.shape, 0 if latent is None else latent.shape[-1]
    out, BN = x.new_empty(B, S, H, K, dtype=torch.float32), 32
    launch(
        lrkv_make_kernel, (B * H * -(-S // BN),), x, latent, factor, turns, out, S, X, H, *x.stride(),
        *_strides(latent, 4), *_strides(factor, 3), _batch_stride(turns), K=K, R=R, P=turns.shape[-1],
        INTERLEAVED=interleaved, BN=BN, BC=32, BR=_padded(R), num_warps=4, num_stages=1,
    )  # fmt: skip
    return out


def _batch_stride(turns: torch.Tensor | None) -> int:
    """From one row of the batch to the next one in a table of turns that may have one for all."""
    return 0 if turns is None or turns.shape[0] == 1 else turns.stride(0)


def _decode(
    q, projected, k, v, k_latent, v_latent, k_scale, turns, latent_turns, factor, starts, ends, interleaved,
    latent_interleaved, causal, scale, cut: Config, out, lse,
) -> None:  # fmt: skip
    """A program for each block of heads, query and span; then the merge."""
    (B, T, H, K), (S, G), V = q.shape, k.shape[1:3], v.shape[-1]
    R, RV = (0 if x is None else x.shape[-1] for x in (k_latent, v_latent))
    P, LP = (0 if x is None else x.shape[-1] for x in (turns, latent_turns))
    turns, latent_turns = turns if P else None, latent_turns if LP else None
    e = v.element_size()
    BH = min(HEADS if e == 2 or max(K, V) <= 128 else 16, _padded(H // G))
    at_once = 64 // e
    ranks = [rank for rank in (LP, R - 2 * LP) if rank]
    BR, BU = (min(at_once, _padded(rank, 8)) for rank in (max(ranks, default=1), RV))
    held = e * BH * max(BR * (R > 0), BU * (RV > 0))  # bytes of a token's latents at a time
    BN = cut.keys if held == 0 else max(16, min(cut.keys, cut.latents // held))
    plain = e == 2 and P == LP == 0 and max(K, V) <= 128
    BP, BK, BQ = min(32, _padded(P)), min(128 if plain else 32, _padded(K - 2 * P)), min(8, _padded(LP, 4))
    handed, read = 8 * H * (V + RV + 1), e * (G * (K + V) + H * (R + RV))
    span = min(max(cut.span, -(-HANDED * handed // read)), cut.longest)
    span = -(-max(span, -(-S // cut.spans)) // BN) * BN
    splits, rows = max(1, -(-S // span)), B * T * H
    parts, latent_parts, part_lse = (
        q.new_empty(rows, splits, *width, dtype=torch.float32) for width in ((V,), (RV,), ())
    )
    unit, v_unit = _unit(k_latent), _unit(v_latent)
    launch(
        lrkv_decode_kernel, (B * T * splits * G * -(-H // G // BH),), q, projected, k, v, k_latent, v_latent, k_scale,
        turns, latent_turns, starts, ends, parts, latent_parts, part_lse, scale, T, H, G, S, splits, span, *q.stride(),
        *k.stride(), *v.stride(), *_strides(k_latent, 4, unit), *_strides(v_latent, 4, v_unit), *_strides(k_scale, 3),
        _batch_stride(turns), _batch_stride(latent_turns), K=K, V=V, R=R, RV=RV, P=P, LP=LP, INTERLEAVED=interleaved,
        LATENT_INTERLEAVED=latent_interleaved, CAUSAL=causal, HELD=plain, UNIT=unit, V_UNIT=v_unit, BH=BH, BN=BN, BP=BP,
        BK=BK, BV=_padded(V), BQ=BQ, BR=BR, BU=BU, num_warps=16 if plain and BH == 32 else 8, num_stages=1,
    )  # fmt: skip
    launch(
        lrkv_merge_kernel, (rows,), parts, latent_parts, part_lse, factor, out, lse, splits, H, *_strides(factor, 3),
        V=V, RV=RV, BV=_padded(V), BU=min(32, _padded(RV)), BP=16, num_warps=4, num_stages=1,
    )  # fmt: skip


def _prefill(
    q, projected, k, v, k_latent, v_latent, k_scale, factor, starts, ends, causal, scale, cut: Config, out, lse
) -> None:
    """A program for each head and block of queries."""
    (B, T, H, K), (S, G), V = q.shape, k.shape[1:3], v.shape[-1]
    R, RV = (0 if x is None else x.shape[-1] for x in (k_latent, v_latent))
    mixed = torch.float32 in (k.dtype, q.dtype) or (k_latent is not None and k_latent.dtype == torch.float32)
    fine = mixed or max(K, V, 2 * R, 2 * RV) > 128  # smaller tiles, which a program holds without spilling
    BM, BN = (min(cut.queries, 32), 16) if fine else (cut.queries, min(cut.keys, 32))
    launch(
        lrkv_prefill_kernel, (B * H * -(-T // BM),), q, projected, k, v, k_latent, v_latent, k_scale, factor, starts,
        ends, out, lse, scale, T, H, G, v.shape[2], S, *q.stride(), *k.stride(), *v.stride(), *_strides(k_latent, 4),
        *_strides(v_latent, 4), *_strides(k_scale, 3), *_strides(factor, 3), K=K, V=V, R=R, RV=RV, CAUSAL=causal,
        BM=BM, BN=BN, BK=min(32, _padded(K)), BV=_padded(V), BR=min(32, _padded(R)),
        BU=min(32 if fine else 64, _padded(RV)), num_warps=8, num_stages=1,
    )  # fmt: skip


# -- torch operations --


def _demand_gpu(x: torch.Tensor) -> None:
    """Kernels run on a GPU, and anywhere in a process that interprets them."""
    if not (x.is_cuda or INTERPRETED):
        raise RuntimeError(
            f"tensors must be on a GPU, got {x.device}; with TRITON_INTERPRET=1 set before Python starts the kernels "
            "are interpreted on the CPU"
        )


@torch.library.custom_op("attnlab::lrkv_attention", mutates_args=())
def lrkv_attention(
    q: torch.Tensor, q_residual: torch.Tensor, k_shared: torch.Tensor, v_shared: torch.Tensor,
    k_latent: torch.Tensor | None, v_latent: torch.Tensor | None, k_factor: torch.Tensor | None,
    v_factor: torch.Tensor | None, k_scale: torch.Tensor | None, turns: torch.Tensor | None,
    latent_turns: torch.Tensor | None, interleaved: bool, latent_interleaved: bool, starts: torch.Tensor | None,
    ends: torch.Tensor | None, causal: bool, scale: float, config: str,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """`forward`."""
    _demand_gpu(q)
    return forward(
        q, q_residual, k_shared, v_shared, k_latent, v_latent, k_factor, v_factor, k_scale, turns, latent_turns,
        interleaved, latent_interleaved, starts, ends, causal, scale, config,
    )  # fmt: skip


@lrkv_attention.register_fake
def _(q, q_residual, k_shared, v_shared, *rest):
    return q.new_empty(*q.shape[:3], v_shared.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)


# -- the public door --


def rotation(frequency: Any, positions: Any, device: Any = None) -> torch.Tensor:
    """Cosines and sines of every plane at every position, as the kernels read them: float32 [B or 1, S, 2, planes],
    made in float64. frequency [planes] in radians a position, positions [S] or [B, S].
    """
    frequency, positions = (torch.as_tensor(x, dtype=torch.float64, device=device) for x in (frequency, positions))
    angle = (positions if positions.ndim == 2 else positions[None])[..., None] * frequency
    return torch.stack([angle.cos(), angle.sin()], 2).to(torch.float32)


def attention(
    q: torch.Tensor,
    k_shared: torch.Tensor,
    v_shared: torch.Tensor,
    k_latent: torch.Tensor | None = None,
    v_latent: torch.Tensor | None = None,
    k_factor: torch.Tensor | None = None,
    v_factor: torch.Tensor | None = None,
    *,
    q_residual: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    rope: tuple[Any, str] | None = None,
    latent_rope: tuple[Any, str] | None = None,
    positions: Any = None,
    starts: torch.Tensor | None = None,
    ends: torch.Tensor | None = None,
    causal: bool = True,
    scale: float | None = None,
    return_lse: bool = False,
    config: str = "default",
) -> Any:
    """Softmax attention over keys and values in factors: o [B, T, H, V] in the type of q. With `return_lse` (o, lse
    [B, T, H]), lse in float32 the natural logarithm of the softmax's denominator.

    q [B, T, H, K], k_shared [B, S, G, K], v_shared [B, S, G, V], k_latent [B, S, H, R], v_latent [B, S, H, Rv],
    k_factor [H, K, R], v_factor [H, V, Rv], G a divisor of H, all of one type, float32, float16 or bfloat16, and any
    strides; K and V up to 256, R and Rv up to 128. Head h reads keys K_s + R_h B_h^T, and values likewise.

    `q_residual` [B, T, H, K] meets the latents in place of q; `k_scale` [B, S, H], of any of the three types,
    multiplies a key's logits. `rope` (frequency [planes], "half" or "interleaved") turns shared keys by `positions` [S]
    or [B, S] as they are read, `latent_rope` the latents; `rope` alone expands keys and turns them whole, in 4 B S H K
    bytes.

    The newest query stands at the last key; where `causal`, earlier ones see as many keys fewer. `starts` and `ends`
    [B], integers in [0, S], cut each row of the batch; what lies beyond is not read. They are not checked where that
    would have to wait for a GPU. A query that sees no key has o = 0 and lse = -inf. `scale` is 1/sqrt(K) unless given.
    It has no gradient: a tensor that requires one is refused. Source: arXiv:2601.11471v3, Eqs. 4-7, pp. 3-4.
    """
    tensors = {
        "q": q, "k_shared": k_shared, "v_shared": v_shared, "k_latent": k_latent, "v_latent": v_latent,
        "k_factor": k_factor, "v_factor": v_factor, "q_residual": q_residual, "k_scale": k_scale,
    }  # fmt: skip
    _check(tensors, starts, ends)
    if config not in CONFIGS:
        raise ValueError(f"config must be one of {', '.join(map(repr, CONFIGS))}, got {config!r}")
    if scale is not None and not abs(scale) < math.inf:
        raise ValueError(f"scale must be a finite number, got {scale}")
    turns, interleaved = _turns("rope", rope, q.shape[-1], positions, k_shared)
    rank = 0 if k_latent is None else k_latent.shape[-1]
    latent_turns, latent_interleaved = _turns("latent_rope", latent_rope, rank, positions, k_shared)
    if latent_turns is not None and (turns is None or k_latent is None):
        raise ValueError("latent_rope must be None where there are no rope and k_latent, got one")
    if q_residual is not None and (k_latent is None or (turns is not None and latent_turns is None)):
        raise ValueError("q_residual must be None where latents meet no query, got one")
    if not rank:
        k_latent, k_factor, latent_turns = None, None, None
    if v_latent is not None and not v_latent.shape[-1]:
        v_latent, v_factor = None, None
    out, lse = lrkv_attention(
        q, q if q_residual is None else q_residual, k_shared, v_shared, k_latent, v_latent, k_factor, v_factor, k_scale,
        turns, latent_turns, interleaved, latent_interleaved, starts, ends, bool(causal),
        q.shape[-1] ** -0.5 if scale is None else float(scale), config,
    )  # fmt: skip
    return (out, lse) if return_lse else out


# -- checks --


def _check(tensors: dict[str, Any], starts: Any, ends: Any) -> None:
    axes = {"q": "[B, T, H, K]", "k_shared": "[B, S, G, K]", "v_shared": "[B, S, G, V]"}
    for name, said in axes.items():
        x = tensors[name]
        if not isinstance(x, torch.Tensor) or x.ndim != 4:
            raise TypeError(f"{name} must be a tensor {said}, got {_described(x)}")
        if x.dtype not in DTYPES:
            raise TypeError(f"{name} must be one of float32, float16, bfloat16, got {x.dtype}")
        if not 1 <= x.shape[-1] <= MAX_WIDTH:
            raise ValueError(f"{name} must have a width of 1 to {MAX_WIDTH}, got {x.shape[-1]}")
    q, k, v = (tensors[name] for name in axes)
    (B, T, H, K), (S, G), V = q.shape, k.shape[1:3], v.shape[-1]
    if H and (G == 0 or H % G):
        raise ValueError(f"k_shared must have a number of heads that divides the {H} of q, got {G}")
    _expect("k_shared", k, (B, S, G, K), (q.dtype,), q)
    _expect("v_shared", v, (B, S, G, V), (q.dtype,), q)
    for letter, width in (("k", K), ("v", V)):
        latent, factor = tensors[f"{letter}_latent"], tensors[f"{letter}_factor"]
        if (latent is None) != (factor is None):
            raise ValueError(f"{letter}_latent and {letter}_factor must be given together, got one of them")
        if latent is not None:
            rank = factor.shape[-1] if isinstance(factor, torch.Tensor) and factor.ndim else 0
            if rank > MAX_RANK:
                raise ValueError(f"{letter}_factor must have a rank of 0 to {MAX_RANK}, got {rank}")
            _expect(f"{letter}_latent", latent, (B, S, H, rank), (q.dtype,), q)
            _expect(f"{letter}_factor", factor, (H, width, rank), (q.dtype,), q)
    if tensors["q_residual"] is not None:
        _expect("q_residual", tensors["q_residual"], (B, T, H, K), (q.dtype,), q)
    if tensors["k_scale"] is not None:
        _expect("k_scale", tensors["k_scale"], (B, S, H), DTYPES, q)
    for name, edge in (("starts", starts), ("ends", ends)):
        if edge is not None:
            _expect(name, edge, (B,), (torch.int32, torch.int64), q)
            if edge.device.type == "cpu" and not torch.compiler.is_compiling():
                if bool(((edge < 0) | (edge > S)).any()):
                    raise ValueError(f"{name} must lie in [0, {S}], got {edge.tolist()}")
    for name, x in tensors.items():
        if x is not None and x.requires_grad and torch.is_grad_enabled():
            raise ValueError(f"{name} requires a gradient, and these kernels have none; detach it")


def _turns(name: str, rope: Any, width: int, positions: Any, k: torch.Tensor) -> tuple[torch.Tensor | None, bool]:
    """The table of a rotation, None without one, and whether its planes are interleaved."""
    if rope is None:
        return None, False
    frequency, layout = rope
    if layout not in LAYOUTS:
        raise ValueError(f"{name} must have a layout of {' or '.join(map(repr, LAYOUTS))}, got {layout!r}")
    if positions is None:
        raise ValueError(f"positions must be given where {name} is, got None")
    table = rotation(frequency, positions, k.device)
    if 2 * table.shape[-1] > width:
        raise ValueError(f"{name} must have at most {width // 2} planes, got {table.shape[-1]}")
    if table.shape[0] not in (1, k.shape[0]) or table.shape[1] != k.shape[1]:
        raise ValueError(
            f"positions must be [S] or [B, S] of k_shared, {list(k.shape[:2])}, got {list(table.shape[:2])}"
        )
    return table, layout == "interleaved"
