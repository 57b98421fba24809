"""Residual memory on a CPU at the machine's limit: forward and gradient in float32, for `numba_impl` and `torch_impl`.

The formulas are those of `chunked.py`, with its letters. What it changes:
    one sweep          both memories stand side by side, [key, S | R], and go through a chunk together: one product
                       reads them for keys and queries, one writes them
    one substitution   U and W share Le, so a row of both is solved at once: eight rows in registers, the rows before
                       them as a product; the clip stands between the two
    lazy decay         a state is kept over its scale, which keys and queries take along; it is multiplied in where it
                       falls under 2^-8, which is also what a retention of 0 does
    decay tables       products of retentions, row by row; the gradient walks them back row by row. Nothing is divided
                       by a retention, and nothing is exponentiated
    gradient           keeps P and RP, 2 V numbers a token, and the state every 8 chunks; U, W and the clip's mask
                       follow from them token by token, so nothing is solved twice. States inside a span are summed
                       again

The ladder, in microseconds a token-head of RDN at width 128 with 4 heads and 16,384 tokens, on one core of an EPYC
whose own product (sgemm) makes 100 to 103 GF/s, both cores busy with other work:
    2.47     chunks of 32 out of the pieces of `lanes`: 0.91 of sgemm, at 14 d^2 flops a token as its loop has them
    2.34     chunks of 24: 0.96. Of 16 as good, of 48 and 64 slower (0.87, 0.82): what tokens of a chunk are to each
             other grows with it, and the products lose nothing
    6.39     the gradient at first
    6.16     the gradient of the state over its scale, and its inner product with the state in one walk over 8 x 8
             blocks, in place of a second copy of it, turned
    no gain  spans of 4 and 16 chunks; asking for the next state of a span ahead of time; the gradient of the state
             turned, which spares its inner product the transposition
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import numpy as np

from attnlab.lanes import (
    LANES,
    LINE,
    NOTHING,
    Rows,
    address,
    aligned,
    compiled,
    copied,
    dots,
    flip,
    inlined,
    multiply,
    next_tile,
    on_lines,
    piece,
    put,
    scaled,
    steady,
    stride,
    take,
    up,
)
from attnlab.residual.params import RULES

__all__ = ["Kept", "backward", "forward", "keep"]

TILES = 8, 16, 24  # tokens of a chunk: the last, or the first that holds the longest sequence
SPAN = 8  # chunks between two states that are kept for the gradient
BLOCK = LANES  # rows that a piece solves at a time
SMALL = np.float32(2.0**-8)  # a state's scale below this is multiplied in; so much of float32's range is lost
SHORT = 2048  # token-heads below which a second thread costs more than it brings


class Sizes(NamedTuple):
    """K and V numbers a key and a value, `key` and `value` rounded up to whole vectors; `memories` of them stand side
    by side, `wide` = memories x value; `key_row`, `value_row` and `row` are the strides of rows of keys, of values and
    of memories. Flags are 0 or 1: `delta` rule, `gated` read-out, `tanh` in place of the clip, outputs stored
    `past_cache`.
    """

    K: int
    V: int
    tile: int
    memories: int
    delta: int
    gated: int
    tanh: int
    key: int
    value: int
    wide: int
    key_row: int
    value_row: int
    row: int
    past_cache: int


class Desk(NamedTuple):
    """Addresses of what a chunk needs for a moment; k and q, and what is made of them, are one operand of a product."""

    k: int  # [tile, key]
    q: int
    k_read: int  # [tile, key]: k times the decay before it, and the scale of the state
    q_read: int
    k_left: int  # [tile, key]: k times the decay after it, over the new scale of the state
    k_turned: int  # [key, tile]
    v: int  # [tile, value]
    x: int  # [tile, wide]: what the state recalls for k; then P and RP
    y: int  # [tile, wide]: for q; its first columns become the output
    uw: int  # [tile, wide]: U and W
    state: int  # [key, wide]: over its scale
    zeros: int  # [max(24, key, wide)]
    one: int  # [1]
    clip: int  # [1]


class Tables(NamedTuple):
    """Arrays of a chunk. Above the diagonals stands 0, as nothing is ever written there."""

    gates: np.ndarray  # [9, tile], see below
    pairs: np.ndarray  # [2 tile, tile]: k.k and q.k
    e: np.ndarray  # [tile, tile]: decay between two tokens, both left out
    le: np.ndarray  # [tile, tile]: what k_i recalls of U_j
    aq: np.ndarray  # [tile, tile]: what o_i reads of U_j
    ai: np.ndarray  # [tile, tile]: what o_i reads of W_j


class Slopes(NamedTuple):
    """Addresses of what a gradient needs beside the desk. `sent` and the gradient of the output are one operand."""

    sent: int  # [tile, wide]: gradient of P and RP
    out: int  # [tile, wide]: that of the output, and of the second memory's read
    bar: int  # [tile, wide]: that of U and W
    v: int  # [tile, value]
    sums: int  # [tile, 3, 8]
    state: int  # [key, wide]: over its scale
    before: int  # [SPAN, wide, key]: the states before the chunks of a span
    written: int  # [SPAN, tile, wide]: their U and W
    uw_turned: int  # [wide, tile]
    k_state: int  # [tile, key]: gradients that come to k and q through the states
    k_left: int
    q_base: int
    q_other: int
    k: int
    q: int
    turned: int  # [key, tile]: one of them on its way


class Grads(NamedTuple):
    """Arrays of a chunk's gradient."""

    rows: np.ndarray  # [8, tile], see below
    le: np.ndarray  # [tile, tile]: gradient of Le
    u: np.ndarray  # [tile, tile]: dO U^T
    w: np.ndarray  # [tile, tile]: dO W^T
    e: np.ndarray  # [tile, tile]
    pairs: np.ndarray  # [2 tile, tile]: of k.k, both halves, and of q.k
    lanes: np.ndarray  # [8]


# rows of `Grads.rows`: of the gates, as `substitute_back` finds them; what k and q receive through the states, dotted
# with them; the gradient of the decay before a token
D_BETA, D_GAMMA, D_ALPHA, K_STATE, K_LEFT, Q_BASE, Q_OTHER, D_BEFORE = range(8)

# rows of `gates`: decay before a token (times the scale), the same as q meets it, after a token; how the read of the
# second memory is weighed beside that of the first; alpha where the rule is a delta rule, else 0; a number for a moment
ALPHA, BETA, GAMMA, BEFORE, ROUTE, AFTER, MIX, STEPS, ONCE = range(9)


# -- pieces --


def _taught(w, error, bound, tanh):
    """The error within the clip, or its tanh; NaN stays NaN."""
    if tanh:
        return w.tanh(error)
    error = w.where(">", error, bound, bound, error)
    return w.where("<", error, w.b.fneg(bound), w.b.fneg(bound), error)


def _lacking(w, value, decay, recalled):
    """What the decayed memory lacks of a value, `decay` less than 0; the value itself where it is 0, whatever is
    recalled: rules that add recall more than float32 holds, of keys that are long, and do not ask for it.
    """
    return w.fma(decay, w.where("<", decay, w.number(0), recalled, w.number(0)), value)


def _substituting(memories, tanh):
    @piece
    def substitute(w, x, row, v, v_row, le, tile, beta, steps, gamma, clip, uw, n):
        """Eight rows, to which the rows before them are added already: x becomes P (and RP), uw U (and W); n columns a
        memory.
        """
        b, bound = w.b, w.spread(clip)

        def columns(c, _):
            known: list[list[Any]] = [[] for _ in range(memories)]
            for i in range(BLOCK):
                value, decay = w.load(w.at(v, (i, v_row), c)), b.fneg(w.spread(w.at(steps, i)))
                weights = [w.spread(w.at(le, (i, tile), j)) for j in range(i)]
                for m, rate in enumerate((beta, gamma)[:memories]):
                    at = w.at(x, (i, row), (m, n), c)
                    recalled = w.load(at)
                    for weight, earlier in zip(weights, known[m], strict=True):
                        recalled = w.fma(weight, earlier, recalled)
                    w.store(recalled, at)
                    wrote = b.fmul(w.spread(w.at(rate, i)), _lacking(w, value, decay, recalled))
                    w.store(wrote, w.at(uw, (i, row), (m, n), c))
                    known[m].append(wrote)
                    if memories == 2 and m == 0:
                        value = _taught(w, b.fsub(value, recalled), bound, tanh)

        w.loop(n, columns, step=LANES)

    return substitute


_substitute_one, _substitute_clip, _substitute_tanh = (_substituting(*x) for x in ((1, 0), (2, 0), (2, 1)))


def _returning(memories, tanh):
    @piece
    def substitute_back(w, x, row, v, v_row, le, tile, beta, steps, gamma, clip, uw, sent, dv, sums, n):
        """`_substituting` backwards, eight rows from the last to the first, to which the rows after them are added
        already: uw is the gradient of U (and W), sent becomes that of P (and RP), dv that of v. sums [8, 3, 8] add up
        the gradients of beta, gamma and, through the delta rule, alpha by lane.
        """
        b, bound = w.b, w.spread(clip)

        def columns(c, _):
            known: list[list[Any]] = [
                [] for _ in range(memories)
            ]  # the gradients of the rows below, the last row first
            for i in reversed(range(BLOCK)):
                decay = b.fneg(w.spread(w.at(steps, i)))
                weights = [w.spread(w.at(le, (j, tile), i)) for j in reversed(range(i + 1, BLOCK))]

                def slope(m, i=i, weights=weights):
                    total = w.load(w.at(uw, (i, row), (m, n), c))
                    for weight, later in zip(weights, known[m], strict=True):
                        total = w.fma(weight, later, total)
                    return total

                def add(which, terms, i=i):
                    at = w.at(sums, 3 * LANES * i + LANES * which)
                    total = w.load(at)
                    for left, right in terms:
                        total = w.fma(left, right, total)
                    w.store(total, at)

                value, recalled = w.load(w.at(v, (i, v_row), c)), w.load(w.at(x, (i, row), c))
                through, lost = w.number(0), []
                if memories == 2:
                    error, again = b.fsub(value, recalled), w.load(w.at(x, (i, row), n, c))
                    taught, of_w = _taught(w, error, bound, tanh), slope(1)
                    through = b.fmul(w.spread(w.at(gamma, i)), of_w)
                    known[1].append(b.fmul(decay, through))
                    w.store(known[1][-1], w.at(sent, (i, row), n, c))
                    add(1, [(of_w, _lacking(w, taught, decay, again))])
                    lost.append((b.fneg(through), again))
                    if tanh:
                        through = b.fmul(through, b.fsub(w.number(1), b.fmul(taught, taught)))
                    else:
                        through = w.where("<=", w.call("fabs", error), bound, through, w.number(0))
                of_u = slope(0)
                wrote = b.fmul(w.spread(w.at(beta, i)), of_u)
                known[0].append(w.fma(decay, wrote, b.fneg(through)))
                w.store(known[0][-1], w.at(sent, (i, row), c))
                w.store(b.fadd(through, wrote), w.at(dv, (i, v_row), c))
                add(0, [(of_u, _lacking(w, value, decay, recalled))])
                add(2, [*lost, (b.fneg(wrote), recalled)])

        w.loop(n, columns, step=LANES)

    return substitute_back


_return_one, _return_clip, _return_tanh = (_returning(*x) for x in ((1, 0), (2, 0), (2, 1)))


def _writing(memories, tanh):
    @piece
    def written(w, x, row, v, v_row, beta, steps, gamma, clip, uw, rows, n):
        """U (and W) again, from P (and RP)."""
        b, bound = w.b, w.spread(clip)

        def each(i, _):
            decay, rates = b.fneg(w.spread(w.at(steps, i))), [w.spread(w.at(r, i)) for r in (beta, gamma)[:memories]]

            def columns(c, _):
                value = w.load(w.at(v, (i, v_row), c))
                for m, rate in enumerate(rates):
                    recalled = w.load(w.at(x, (i, row), (m, n), c))
                    w.store(b.fmul(rate, _lacking(w, value, decay, recalled)), w.at(uw, (i, row), (m, n), c))
                    if memories == 2 and m == 0:
                        value = _taught(w, b.fsub(value, recalled), bound, tanh)

            w.loop(n, columns, step=LANES)

        w.loop(rows, each)

    return written


_write_one, _write_clip, _write_tanh = (_writing(*x) for x in ((1, 0), (2, 0), (2, 1)))


@piece
def _mixed(w, x, row, factor, y, rows, n):
    """x[i] += factor[i] y[i], n numbers a row."""

    def each(i, _):
        f = w.spread(w.at(factor, i))

        def columns(c, _):
            at = w.at(x, (i, row), c)
            w.store(w.fma(f, w.load(w.at(y, (i, row), c)), w.load(at)), at)

        w.loop(n, columns, step=LANES)

    w.loop(rows, each)


@piece
def _lane_sums(w, x, step, out):
    """out[i] = the sum of x[i, 0:8] for eight rows, `step` apart."""
    w.store(w.sums([w.load(w.at(x, (i, step))) for i in range(LANES)]), out)


@piece
def _inner(w, x, x_row, y, y_row, rows, n, out):
    """out[0:8] = the sum of x[r, c] y[c, r] by lane, x [rows, n]; both a multiple of 8."""

    def down(r, sums):
        def across(c, sums):
            turned, sums = (
                w.transpose([w.load(w.at(y, (w.b.add(c, w.integer(i)), y_row), r)) for i in range(LANES)]),
                [*sums],
            )
            for i, column in enumerate(turned):
                other = w.load(w.at(x, (w.b.add(r, w.integer(i)), x_row), c))
                sums[i % 4] = w.fma(other, column, sums[i % 4])
            return sums

        return w.loop(n, across, sums, step=LANES)

    a, b, c, d = w.loop(rows, down, [w.number(0)] * 4, step=LANES)
    w.store(w.b.fadd(w.b.fadd(a, b), w.b.fadd(c, d)), out)


# -- steps: what a kernel does with one chunk --


@inlined
def _gates(alpha, beta, gamma, t, live, z, g, scale):
    """The gates of a chunk and what follows from them, by multiplication alone; the decay over the whole chunk. Tokens
    beyond `live` keep all and write nothing.
    """
    one, nothing = np.float32(1), np.float32(0)
    before = one
    for i in range(z.tile):
        a, b, c = (alpha[t + i], beta[t + i], gamma[t + i]) if i < live else (one, nothing, nothing)
        g[ALPHA, i], g[BETA, i], g[GAMMA, i] = a, b, c
        g[STEPS, i] = a if z.delta else nothing
        g[BEFORE, i] = before * scale
        g[ROUTE, i] = g[BEFORE, i] * (a if z.gated or z.memories == 1 else one)
        g[MIX, i] = c if z.gated else a
        before = before * a
    after = one
    for i in range(z.tile - 1, -1, -1):
        g[AFTER, i] = after
        after = after * g[ALPHA, i]
    return before


@inlined
def _read_weights(z, g, i):
    """(how o_i weighs the base read, and the read of the second memory), beside the decay."""
    one = np.float32(1)
    if z.memories == 1:
        return one, one
    return (g[ALPHA, i], g[GAMMA, i]) if z.gated else (one, one)


@inlined
def _tables(z, y):
    """E, Le, Aq and Ai from the pairs."""
    C, g = z.tile, y.gates
    for i in range(C):
        base, other = _read_weights(z, g, i)
        a = g[ALPHA, i]
        if i:
            before = g[ALPHA, i - 1]
            for j in range(i - 1):
                y.e[i, j] = before * y.e[i - 1, j]
            y.e[i, i - 1] = np.float32(1)
        for j in range(i):
            y.le[i, j] = y.pairs[i, j] * y.e[i, j]
            y.aq[i, j] = y.pairs[C + i, j] * (base * y.e[i, j])
            y.ai[i, j] = y.pairs[C + i, j] * (other * (a * y.e[i, j]))
        y.ai[i, i] = other * y.pairs[C + i, i]


@inlined
def _bring(q, k, v, t, live, z, d):
    take(k, t, 0, live, z.tile, z.K, z.key_row, d.zeros, d.k)
    take(q, t, 0, live, z.tile, z.K, z.key_row, d.zeros, d.q)
    take(v, t, 0, live, z.tile, z.V, z.value_row, d.zeros, d.v)


@inlined
def _times(x, row, factors, y, z, n):
    """Rows of x, each times its factor, as rows of y."""
    for i in range(z.tile):
        scaled(x + 4 * i * row, factors + 4 * i, y + 4 * i * row, n)


@inlined
def _turn(x, row, z, n, y):
    """x [tile, n] as y [n, tile]."""
    for i in range(0, z.tile, LANES):
        flip(x + 4 * i * row, row, n, y + 4 * i, z.tile)


@inlined
def _pairs(z, d, to, first):
    """k.k and q.k."""
    _turn(d.k, z.key_row, z, z.key, d.k_turned)
    multiply(d.k, z.key_row, 1, 2 * z.tile, d.k_turned, z.tile, z.tile, to, z.tile, z.key, 0, first, NOTHING)


@inlined
def _gate(z, gates, name, i):
    """Where the gate of token i is."""
    return gates + 4 * (name * z.tile + i)


@inlined
def _substitute(z, d, gates, le):
    """P, RP, U and W of a chunk, one block of rows after the other."""
    C = z.tile
    for r in range(0, C, BLOCK):
        x, uw, v = d.x + 4 * r * z.row, d.uw + 4 * r * z.row, d.v + 4 * r * z.value_row
        if r:
            multiply(le + 4 * r * C, C, 1, BLOCK, d.uw, z.row, z.wide, x, z.row, r, 1, NOTHING, NOTHING)
        own, b = le + 4 * (r * C + r), _gate(z, gates, BETA, r)
        s, c = _gate(z, gates, STEPS, r), _gate(z, gates, GAMMA, r)
        if z.memories == 1:
            _substitute_one(x, z.row, v, z.value_row, own, C, b, s, c, d.clip, uw, z.value)
        elif z.tanh:
            _substitute_tanh(x, z.row, v, z.value_row, own, C, b, s, c, d.clip, uw, z.value)
        else:
            _substitute_clip(x, z.row, v, z.value_row, own, C, b, s, c, d.clip, uw, z.value)


@inlined
def _read(z, d, gates, aq, ai):
    """The output of a chunk, in the first columns of d.y."""
    C, second = z.tile, 4 * (z.memories - 1) * z.value
    if z.memories == 2:
        _mixed(d.y, z.row, _gate(z, gates, MIX, 0), d.y + second, C, z.value)
    for r in range(0, C, BLOCK):
        to, n = d.y + 4 * r * z.row, r + BLOCK
        if z.memories == 2:
            multiply(aq + 4 * r * C, C, 1, BLOCK, d.uw, z.row, z.value, to, z.row, n, 1, NOTHING, NOTHING)
        multiply(ai + 4 * r * C, C, 1, BLOCK, d.uw + second, z.row, z.value, to, z.row, n, 1, NOTHING, NOTHING)


# -- kernels: one head of one sequence, the state in plain units before and after --


@compiled
def _forward(q, k, v, o, p, rp, states, alpha, beta, gamma, n, z, d, y, at):
    """`at` are the addresses of the tables. P, RP and, every SPAN chunks, the state are kept where there is a place."""
    C, g, scale = z.tile, y.gates, np.float32(1)
    for t in range(0, n, C):
        live = min(C, n - t)
        if states and t % (SPAN * C) == 0:
            g[ONCE, 0] = scale
            for r in range(z.key):
                to = states + 4 * (t // (SPAN * C) * z.key + r) * z.wide
                scaled(d.state + 4 * r * z.row, _gate(z, at[0], ONCE, 0), to, z.wide)
        whole = _gates(alpha, beta, gamma, t, live, z, g, scale)
        _bring(q, k, v, t, live, z, d)
        _times(d.k, z.key_row, _gate(z, at[0], BEFORE, 0), d.k_read, z, z.key)
        _times(d.q, z.key_row, _gate(z, at[0], ROUTE, 0), d.q_read, z, z.key)
        keys, queries = next_tile(k, t, 0, 1, C, z.K, C), next_tile(q, t, 0, 1, C, z.K, C)
        multiply(d.k_read, z.key_row, 1, 2 * C, d.state, z.row, z.wide, d.x, z.row, z.key, 0, keys, queries)
        _pairs(z, d, at[1], next_tile(v, t, 0, 1, C, z.V, C))
        _tables(z, y)
        _substitute(z, d, at[0], at[3])
        _read(z, d, at[0], at[4], at[5])
        put(d.y, z.row, d.one, 0, o, t, 0, live, z.V, z.past_cache)
        if p.at:
            put(d.x, z.row, d.one, 0, p, t, 0, live, z.V, z.past_cache)
        if rp.at:
            put(d.x + 4 * z.value, z.row, d.one, 0, rp, t, 0, live, z.V, z.past_cache)
        scale = scale * whole
        if not scale >= SMALL:
            _decay(z, d.state, z.row, scale, g, at[0])
            scale = np.float32(1)
        for i in range(C):
            g[AFTER, i] = g[AFTER, i] / scale
        _times(d.k, z.key_row, _gate(z, at[0], AFTER, 0), d.k_left, z, z.key)
        multiply(d.k_left, 1, z.key_row, z.key, d.uw, z.row, z.wide, d.state, z.row, C, 1, NOTHING, NOTHING)
    _decay(z, d.state, z.row, scale, g, at[0])


@inlined
def _decay(z, state, row, factor, g, gates):
    g[ONCE, 0] = factor
    for r in range(z.key):
        scaled(state + 4 * r * row, _gate(z, gates, ONCE, 0), state + 4 * r * row, z.wide)


# -- the gradient --


@inlined
def _kept_rows(p, rp, t, live, z, d):
    """P and RP of a chunk, side by side."""
    take(p, t, 0, live, z.tile, z.V, z.row, d.zeros, d.x)
    if rp.at:
        take(rp, t, 0, live, z.tile, z.V, z.row, d.zeros, d.x + 4 * z.value)


@inlined
def _write_again(z, d, gates, uw):
    """U and W of a chunk from what was kept."""
    b, s, c = _gate(z, gates, BETA, 0), _gate(z, gates, STEPS, 0), _gate(z, gates, GAMMA, 0)
    if z.memories == 1:
        _write_one(d.x, z.row, d.v, z.value_row, b, s, c, d.clip, uw, z.tile, z.value)
    elif z.tanh:
        _write_tanh(d.x, z.row, d.v, z.value_row, b, s, c, d.clip, uw, z.tile, z.value)
    else:
        _write_clip(d.x, z.row, d.v, z.value_row, b, s, c, d.clip, uw, z.tile, z.value)


@inlined
def _state_after(z, d, gates, before, uw, whole, g):
    """The turned state after a chunk, behind the one before it."""
    size, after = z.wide * z.key_row, before + 4 * z.wide * z.key_row
    g[ONCE, 0] = whole
    scaled(before, _gate(z, gates, ONCE, 0), after, size)
    _times(d.k, z.key_row, _gate(z, gates, AFTER, 0), d.k_left, z, z.key)
    multiply(uw, 1, z.row, z.wide, d.k_left, z.key_row, z.key, after, z.key_row, z.tile, 1, NOTHING, NOTHING)


@inlined
def _substitute_back(z, d, s, gates, le):
    """The gradients of U, W, P, RP and v, one block of rows after the other, from the last."""
    C = z.tile
    for r in range(C - BLOCK, -1, -BLOCK):
        x, v, dv = d.x + 4 * r * z.row, d.v + 4 * r * z.value_row, s.v + 4 * r * z.value_row
        bar, sent, sums = s.bar + 4 * r * z.row, s.sent + 4 * r * z.row, s.sums + 4 * 3 * LANES * r
        m = r + BLOCK
        if m < C:
            later = s.sent + 4 * m * z.row
            multiply(le + 4 * (m * C + r), 1, C, BLOCK, later, z.row, z.wide, bar, z.row, C - m, 1, NOTHING, NOTHING)
        own, b = le + 4 * (r * C + r), _gate(z, gates, BETA, r)
        e, c = _gate(z, gates, STEPS, r), _gate(z, gates, GAMMA, r)
        if z.memories == 1:
            _return_one(x, z.row, v, z.value_row, own, C, b, e, c, d.clip, bar, sent, dv, sums, z.value)
        elif z.tanh:
            _return_tanh(x, z.row, v, z.value_row, own, C, b, e, c, d.clip, bar, sent, dv, sums, z.value)
        else:
            _return_clip(x, z.row, v, z.value_row, own, C, b, e, c, d.clip, bar, sent, dv, sums, z.value)


@inlined
def _read_back(z, d, s, aq, ai, ask):
    """What the state after the chunk and its own outputs send to U and W."""
    C, second = z.tile, 4 * (z.memories - 1) * z.value
    multiply(d.k_left, z.key_row, 1, C, s.state, z.row, z.wide, s.bar, z.row, z.key, 0, ask, NOTHING)
    for r in range(0, C, BLOCK):
        out, to, n = s.out + 4 * r * z.row, s.bar + 4 * r * z.row, C - r
        if z.memories == 2:
            multiply(aq + 4 * (r * C + r), 1, C, BLOCK, out, z.row, z.value, to, z.row, n, 1, NOTHING, NOTHING)
        multiply(ai + 4 * (r * C + r), 1, C, BLOCK, out, z.row, z.value, to + second, z.row, n, 1, NOTHING, NOTHING)


@inlined
def _through_states(z, s, before, uw, first, second):
    """What k and q receive through the state before the chunk and the gradient of the one after it."""
    C, other = z.tile, before + 4 * z.value * z.key_row
    multiply(s.out, z.row, 1, C, before, z.key_row, z.key, s.q_base, z.key_row, z.value, 0, first, second)
    if z.memories == 2:
        multiply(s.out, z.row, 1, C, other, z.key_row, z.key, s.q_other, z.key_row, z.value, 0, NOTHING, NOTHING)
    multiply(s.sent, z.row, 1, C, before, z.key_row, z.key, s.k_state, z.key_row, z.wide, 0, NOTHING, NOTHING)
    _turn(uw, z.row, z, z.wide, s.uw_turned)
    multiply(s.state, z.row, 1, z.key, s.uw_turned, C, C, s.turned, C, z.wide, 0, NOTHING, NOTHING)
    for r in range(0, z.key, LANES):
        flip(s.turned + 4 * r * C, C, C, s.k_left + 4 * r, z.key_row)


@inlined
def _between(z, s, at):
    """Gradients of the tables: of Le, and dO U^T and dO W^T; `at` are the addresses of Grads."""
    C = z.tile
    multiply(s.sent, z.row, 1, C, s.uw_turned, C, C, at[1], C, z.wide, 0, NOTHING, NOTHING)
    if z.memories == 2:
        multiply(s.out, z.row, 1, C, s.uw_turned, C, C, at[2], C, z.value, 0, NOTHING, NOTHING)
    second = s.uw_turned + 4 * (z.memories - 1) * z.value * C
    multiply(s.out, z.row, 1, C, second, C, C, at[3], C, z.value, 0, NOTHING, NOTHING)


@inlined
def _dotted(z, d, s, at):
    """Rows of Grads: by token, what `_through_states` found, dotted with k and q, and the sums of `substitute_back`."""
    C = z.tile
    for r in range(0, C, BLOCK):
        row = 4 * r * z.key_row
        dots(d.k + row, z.key_row, s.k_state + row, z.key_row, z.key, at + 4 * (K_STATE * C + r))
        dots(d.k + row, z.key_row, s.k_left + row, z.key_row, z.key, at + 4 * (K_LEFT * C + r))
        dots(d.q + row, z.key_row, s.q_base + row, z.key_row, z.key, at + 4 * (Q_BASE * C + r))
        if z.memories == 2:
            dots(d.q + row, z.key_row, s.q_other + row, z.key_row, z.key, at + 4 * (Q_OTHER * C + r))
        for gate in range(3):
            _lane_sums(s.sums + 4 * LANES * (3 * r + gate), 3 * LANES, at + 4 * (gate * C + r))


@inlined
def _table_slopes(z, y, b, inner):
    """Gradients of the gates, in the rows of Grads, and of the pairs. The decays are walked back row by row, so that
    none is ever divided by.
    """
    C, g, rows = z.tile, y.gates, b.rows
    for i in range(C):
        base, other = _read_weights(z, g, i)
        a, before, of_u, of_w = g[ALPHA, i], g[BEFORE, i], np.float32(0), np.float32(0)
        for j in range(i):
            u = b.u[i, j] if z.memories == 2 else np.float32(0)
            w = b.w[i, j]
            read = base * u + other * a * w
            of_u += u * y.pairs[C + i, j] * y.e[i, j]
            of_w += w * y.pairs[C + i, j] * y.e[i, j]
            b.e[i, j] = b.le[i, j] * y.pairs[i, j] + read * y.pairs[C + i, j]
            b.pairs[i, j] = b.le[i, j] * y.e[i, j]
            b.pairs[j, i] = b.pairs[i, j]
            b.pairs[C + i, j] = read * y.e[i, j]
        b.pairs[C + i, i] = other * b.w[i, i]
        slope = rows[D_ALPHA, i] if z.delta else np.float32(0)
        first, second = rows[Q_BASE, i], rows[Q_OTHER, i]
        if z.memories == 1:
            rows[D_ALPHA, i] = slope + of_w + before * first
            rows[D_BEFORE, i] = rows[K_STATE, i] + a * first
        else:
            if z.gated:
                slope += of_u + before * first
                rows[D_GAMMA, i] += a * (of_w + before * second) + b.w[i, i] * y.pairs[C + i, i]
            rows[D_ALPHA, i] = slope + other * (of_w + before * second)
            rows[D_BEFORE, i] = rows[K_STATE, i] + base * first + a * other * second
    last = C - 1
    a = g[ALPHA, last]
    for j in range(last):
        rows[D_ALPHA, last] += rows[K_LEFT, j] * y.e[last, j]
        b.e[last, j] += a * rows[K_LEFT, j]
    rows[D_ALPHA, last] += inner * g[BEFORE, last]
    rows[D_BEFORE, last] += a * inner
    for i in range(last, 0, -1):
        a, slope = g[ALPHA, i - 1], rows[D_BEFORE, i] * g[BEFORE, i - 1]
        for j in range(i - 1):
            slope += b.e[i, j] * y.e[i - 1, j]
            b.e[i - 1, j] += a * b.e[i, j]
        rows[D_ALPHA, i - 1] += slope
        rows[D_BEFORE, i - 1] += a * rows[D_BEFORE, i]


@inlined
def _key_slopes(z, d, s, gates, pairs):
    """dk and dq of a chunk."""
    C = z.tile
    multiply(pairs, 1, C, C, d.k, z.key_row, z.key, s.k, z.key_row, 2 * C, 0, NOTHING, NOTHING)
    multiply(pairs + 4 * C * C, C, 1, C, d.k, z.key_row, z.key, s.q, z.key_row, C, 0, NOTHING, NOTHING)
    _mixed(s.k, z.key_row, _gate(z, gates, BEFORE, 0), s.k_state, C, z.key)
    _mixed(s.k, z.key_row, _gate(z, gates, AFTER, 0), s.k_left, C, z.key)
    if z.memories == 2:
        _mixed(s.q_base, z.key_row, _gate(z, gates, MIX, 0), s.q_other, C, z.key)
    _mixed(s.q, z.key_row, _gate(z, gates, ROUTE, 0), s.q_base, C, z.key)


@compiled
def _backward(q, k, v, o, p, rp, dq, dk, dv, states, gates, slopes, n, z, d, y, at, s, b, b_at):
    """The gradient of `_forward`, span by span from the last; `o` is the gradient of the output. The gradient of the
    state, at s.state, comes in as that of the last and leaves as that of the first.
    """
    C, g, one = z.tile, y.gates, np.float32(1)
    alpha, beta, gamma = gates
    scale = one
    for start in range((max(n, 1) - 1) // (SPAN * C) * SPAN * C, -1, -SPAN * C):
        chunks = min(SPAN, -(-(n - start) // C))
        for r in range(0, z.key, LANES):
            flip(states + 4 * (start // (SPAN * C) * z.key + r) * z.wide, z.wide, z.wide, s.before + 4 * r, z.key_row)
        for c in range(chunks):
            t, before, uw = start + c * C, s.before + 4 * c * z.wide * z.key_row, s.written + 4 * c * C * z.row
            live = min(C, n - t)
            whole = _gates(alpha, beta, gamma, t, live, z, g, one)
            take(k, t, 0, live, C, z.K, z.key_row, d.zeros, d.k)
            take(v, t, 0, live, C, z.V, z.value_row, d.zeros, d.v)
            _kept_rows(p, rp, t, live, z, d)
            _write_again(z, d, at[0], uw)
            if c + 1 < chunks:
                _state_after(z, d, at[0], before, uw, whole, g)
        for c in range(chunks - 1, -1, -1):
            t, before, uw = start + c * C, s.before + 4 * c * z.wide * z.key_row, s.written + 4 * c * C * z.row
            live = min(C, n - t)
            whole = _gates(alpha, beta, gamma, t, live, z, g, one)
            _bring(q, k, v, t, live, z, d)
            _kept_rows(p, rp, t, live, z, d)
            take(o, t, 0, live, C, z.V, z.row, d.zeros, s.out)
            if z.memories == 2:
                for i in range(C):
                    row = s.out + 4 * i * z.row
                    scaled(row, _gate(z, at[0], MIX, i), row + 4 * z.value, z.value)
            for i in range(C):
                g[AFTER, i] *= scale
            _times(d.k, z.key_row, _gate(z, at[0], AFTER, 0), d.k_left, z, z.key)
            _pairs(z, d, at[1], next_tile(k, t, 0, 1, C, z.K, -C))
            _tables(z, y)
            _read_back(z, d, s, at[4], at[5], next_tile(o, t, 0, 1, C, z.V, -C))
            for i in range(C):
                scaled(d.zeros, d.one, s.sums + 4 * 3 * LANES * i, 3 * LANES)
            _substitute_back(z, d, s, at[0], at[3])
            queries, values = next_tile(q, t, 0, 1, C, z.K, -C), next_tile(v, t, 0, 1, C, z.V, -C)
            _through_states(z, s, before, uw, queries, values)
            _between(z, s, b_at)
            _dotted(z, d, s, b_at[0])
            _inner(s.state, z.row, before, z.key_row, z.key, z.wide, b_at[6])
            inner = np.float32(0)
            for i in range(LANES):
                inner += scale * b.lanes[i]
            for i in range(C):
                b.rows[K_LEFT, i] *= scale
            _table_slopes(z, y, b, inner)
            _key_slopes(z, d, s, at[0], b_at[5])
            put(s.q, z.key_row, d.one, 0, dq, t, 0, live, z.K, z.past_cache)
            put(s.k, z.key_row, d.one, 0, dk, t, 0, live, z.K, z.past_cache)
            put(s.v, z.value_row, d.one, 0, dv, t, 0, live, z.V, z.past_cache)
            for i in range(live):
                slopes[0][t + i], slopes[1][t + i] = b.rows[D_ALPHA, i], b.rows[D_BETA, i]
                slopes[2][t + i] = b.rows[D_GAMMA, i]
            scale = scale * whole
            if not scale >= SMALL:
                _decay(z, s.state, z.row, scale, g, at[0])
                scale = one
            for i in range(C):
                g[BEFORE, i], g[ROUTE, i] = g[BEFORE, i] / scale, g[ROUTE, i] / scale
            _times(d.k, z.key_row, _gate(z, at[0], BEFORE, 0), d.k_read, z, z.key)
            _times(d.q, z.key_row, _gate(z, at[0], ROUTE, 0), d.q_read, z, z.key)
            multiply(d.k_read, 1, z.key_row, z.key, s.sent, z.row, z.wide, s.state, z.row, 2 * C, 1, NOTHING, NOTHING)
    _decay(z, s.state, z.row, scale, g, at[0])


# -- jobs: one after the other, as handing over to compiled code takes longer than a short sequence --


@inlined
def _rows(x, job):
    """The tokens of a job in one head; nowhere, where there is nothing."""
    _, b, start, _, h, _ = job
    at = x.at + 4 * (b * x.batch + start * x.token + h * x.head) if x.at else 0
    return Rows(at, x.token, x.head)


@inlined
def _load(z, heads, job, memories, zeros, state):
    """A state to the desk; 0 around it."""
    for r in range(z.key):
        copied(zeros, state + 4 * r * z.row, z.row)
    for m in range(z.memories):
        source = memories[m] + 4 * (job[0] * heads + job[4]) * z.K * z.V
        for r in range(z.K):
            copied(source + 4 * r * z.V, state + 4 * (r * z.row + m * z.value), z.V)


@inlined
def _unload(z, heads, job, memories, state):
    """The way back."""
    for m in range(z.memories):
        to = memories[m] + 4 * (job[0] * heads + job[4]) * z.K * z.V
        for r in range(z.K):
            copied(state + 4 * (r * z.row + m * z.value), to + 4 * r * z.V, z.V)


@inlined
def _kept_at(z, states, spans, job):
    """Where the kept states of a job are; nowhere, where none are."""
    return states + 4 * (job[4] * spans + job[5]) * z.key * z.wide if states else 0


@inlined
def _job(jobs, j):
    return jobs[j, 0], jobs[j, 1], jobs[j, 2], jobs[j, 3], jobs[j, 4], jobs[j, 5]


@compiled
def _forward_jobs(jobs, places, gates, memories, states, spans, z, d, y, at):
    q, k, v, o, p, rp = places
    alpha, beta, gamma = gates
    heads = alpha.shape[1]
    for j in range(len(jobs)):
        job = _job(jobs, j)
        _, b, start, end, h, _ = job
        _load(z, heads, job, memories, d.zeros, d.state)
        own, kept = (alpha[b, h, start:end], beta[b, h, start:end], gamma[b, h, start:end]), _rows(rp, job)
        rows = _rows(q, job), _rows(k, job), _rows(v, job), _rows(o, job), _rows(p, job)
        _forward(*rows, kept, _kept_at(z, states, spans, job), *own, end - start, z, d, y, at)
        _unload(z, heads, job, memories, d.state)


@compiled
def _backward_jobs(jobs, places, gates, slopes, memories, states, spans, z, d, y, at, s, b, b_at):
    q, k, v, o, p, rp, dq, dk, dv = places
    heads = gates[0].shape[1]
    for j in range(len(jobs)):
        job = _job(jobs, j)
        _, r, start, end, h, _ = job
        if start == end:
            continue
        _load(z, heads, job, memories, d.zeros, s.state)
        own = gates[0][r, h, start:end], gates[1][r, h, start:end], gates[2][r, h, start:end]
        of_own = slopes[0][r, h, start:end], slopes[1][r, h, start:end], slopes[2][r, h, start:end]
        rows = _rows(q, job), _rows(k, job), _rows(v, job), _rows(o, job), _rows(p, job), _rows(rp, job)
        kept = _kept_at(z, states, spans, job)
        into = _rows(dq, job), _rows(dk, job), _rows(dv, job)
        _backward(*rows, *into, kept, own, of_own, end - start, z, d, y, at, s, b, b_at)
        _unload(z, heads, job, memories, s.state)


# -- from arrays to kernels --


class Place(NamedTuple):
    """An array [B, T, H, n]: where it begins, and its strides in numbers; nowhere, for what there is not."""

    at: int
    batch: int
    token: int
    head: int


class Kept(NamedTuple):
    """What a gradient needs of its forward run: numbers in proportion to the tokens."""

    recalled: np.ndarray  # P [B, T, H, V]
    again: np.ndarray  # RP [B, T, H, V], empty where the rule does not need it
    states: np.ndarray  # [H, spans, key, wide]: the state before every SPAN chunks


def forward(q, k, v, gates, states, out, *, rule, clip, target, read_gates, parts, threads, kept=None):
    """Fill `out` [B, T, H, V]; `states`, one array [N, H, K, V] for each memory, come in as what is carried and leave
    as what the sequences left.

    q, k [B, T, H, K], v [B, T, H, V], gates three of [B, T, H]: float32. `parts` are the sequences, as
    `params.segments` gives them; `kept`, of `keep`, is filled for the gradient. Nothing is checked.
    """
    z = _sizes(q, v, rule, target, read_gates, parts, [out, *(kept[:2] if kept else [])])
    gates = tuple(np.ascontiguousarray(np.swapaxes(x, 1, 2), np.float32) for x in gates)
    arrays = [steady(x) for x in (q, k, v)]
    places = tuple(_place(x) for x in (*arrays, out, *(kept[:2] if kept else (None, None))))
    shared = places, gates, _addresses(states), *_kept_states(kept)

    def run(jobs, desk):
        _forward_jobs(jobs, *shared, z, *desk.whole)

    _each(run, lambda: _Desk(z, clip), _jobs(z, parts, q.shape[2]), threads)


def keep(q, v, *, rule, parts):
    """Room for what `forward` keeps for `backward`."""
    z = _sizes(q, v, rule, "clip", True, parts, [])
    (B, T, H, _), V = q.shape, v.shape[-1]
    spans = sum(_spans(z, part) for part in parts)
    again = z.memories == 2 and z.delta
    return Kept(
        aligned(B, T, H, V, fill=False),
        aligned(B, T, H, V, fill=False) if again else np.zeros((B, T, H, 0), np.float32),
        aligned(H, spans, z.key, z.wide, fill=False),
    )


def backward(q, k, v, gates, kept, d_out, d_states, dq, dk, dv, *, rule, clip, target, read_gates, parts, threads):
    """Fill dq, dk and dv, and return the gradients of the gates, three of [B, H, T]. `d_states`, one array [N, H, K, V]
    for each memory, come in as the gradients of the last states and leave as those of the first. `kept` is what
    `forward` filled; the rest as there.
    """
    z = _sizes(q, v, rule, target, read_gates, parts, [dq, dk, dv])
    gates = tuple(np.ascontiguousarray(np.swapaxes(x, 1, 2), np.float32) for x in gates)
    slopes = tuple(np.zeros_like(x) for x in gates)
    arrays = [steady(x) for x in (q, k, v, d_out)]
    places = tuple(_place(x) for x in (*arrays, *kept[:2], dq, dk, dv))
    shared = places, gates, slopes, _addresses(d_states), *_kept_states(kept)

    def run(jobs, desk):
        _backward_jobs(jobs, *shared, z, *desk.whole, *desk.of_slopes)

    _each(run, lambda: _Desk(z, clip, slopes=True), _jobs(z, parts, q.shape[2]), threads)
    return slopes


def _jobs(z, parts, heads):
    """Whole numbers [jobs, 6]: sequence, row of the batch, first token, end, head, and spans of earlier sequences."""
    firsts = accumulate((_spans(z, part) for part in parts), initial=0)
    jobs = [
        (n, *part, h, first) for n, (part, first) in enumerate(zip(parts, firsts, strict=False)) for h in range(heads)
    ]
    return np.array(jobs, np.int64).reshape(len(jobs), 6)


def _spans(z, part):
    _, start, end = part
    return -(-(end - start) // (SPAN * z.tile))


def _place(x):
    if x is None or not x.size:
        return Place(0, 0, 0, 0)
    return Place(address(x), *(step // 4 for step in x.strides[:3]))


def _addresses(memories):
    """Of the first memory, and of the second one where there is one."""
    assert all(x.dtype == np.float32 and x.flags.c_contiguous for x in memories)
    return address(memories[0]), address(memories[-1])


def _kept_states(kept):
    """Where they begin, and how many there are of a head."""
    return (address(kept.states), kept.states.shape[1]) if kept and kept.states.size else (0, 0)


def _sizes(q, v, rule, target, read_gates, parts, outs):
    K, V, has = q.shape[-1], v.shape[-1], RULES[rule]
    longest = max((end - start for _, start, end in parts), default=0)
    tile = next((C for C in TILES if C >= longest), TILES[-1])
    memories, key, value = 1 + has.residual, up(max(K, 1)), up(max(V, 1))
    wide = memories * value
    past_cache = all(on_lines(x) for x in outs if x.size)
    flags = int(has.delta), int(read_gates), int(target == "log_cosh")
    strides = stride(key), stride(value), stride(wide)
    return Sizes(K, V, tile, memories, *flags, key, value, wide, *strides, int(past_cache))


@cache
def _layout(z):
    """(numbers in all, where each place of the desk and each table starts and stops)."""
    C = z.tile
    keys, values, wide = C * z.key_row, C * z.value_row, C * z.row
    zeros = max(3 * LANES, z.key_row, z.row)
    desk = (*[keys] * 5, z.key * C, values, wide, wide, wide, z.key * z.row, zeros, 1, 1)  # as in Desk
    tables = [(ONCE + 1, C), (2 * C, C), *[(C, C)] * 4]
    sizes = [n + -n % LINE for n in (*desk, *map(prod, tables))]
    return sum(sizes), [0, *accumulate(sizes)][:-1], tables


@cache
def _slope_layout(z):
    C = z.tile
    keys, wide, before = C * z.key_row, C * z.row, SPAN * z.wide * z.key_row
    outs = C * z.value_row, C * 3 * LANES, z.key * z.row
    more = (*[wide] * 3, *outs, before, SPAN * wide, z.wide * C, *[keys] * 6, z.key * C)  # as in Slopes
    tables = [(D_BEFORE + 1, C), *[(C, C)] * 4, (2 * C, C), (LANES,)]
    sizes = [n + -n % LINE for n in (*more, *map(prod, tables))]
    return sum(sizes), [0, *accumulate(sizes)][:-1], tables


class _Desk:
    """The memory that one thread works on, for one job after the other: addresses, and arrays on the tables."""

    def __init__(self, z, clip, slopes=False):
        self.memory, at, views = _memory(*_layout(z))
        desk = Desk(*at[: -len(views)])
        self.whole = desk, Tables(*views), tuple(at[-len(views) :])
        _view(self.memory, desk.one, 1)[:] = 1
        _view(self.memory, desk.clip, 1)[:] = min(clip, np.finfo(np.float32).max)
        if slopes:
            self.more, at, views = _memory(*_slope_layout(z))
            self.of_slopes = Slopes(*at[: -len(views)]), Grads(*views), tuple(at[-len(views) :])


def _memory(size, starts, shapes):
    """(zeros, the address of each place, an array on each of the last places)."""
    memory = aligned(size)
    at = [address(memory) + 4 * start for start in starts]
    return memory, at, [_view(memory, a, *shape) for a, shape in zip(at[-len(shapes) :], shapes, strict=True)]


def _view(memory, at, *shape):
    start = (at - address(memory)) // 4
    return memory[start : start + prod(shape)].reshape(shape)


def _each(run, desk, jobs, threads):
    """run(jobs, desk) for all jobs, shared out to threads, each with a desk of its own: a few at a time, as sequences
    may differ in length. Threads start and end here, so that a process forked later misses none; no number hangs on
    how many there are.
    """
    tokens = int((jobs[:, 3] - jobs[:, 2]).sum())
    if threads == 1 or len(jobs) < 2 or tokens < SHORT:
        if len(jobs):
            run(jobs, desk())
        return
    own, shares = threading.local(), np.array_split(jobs, min(len(jobs), 8 * threads))

    def work(share):
        if not hasattr(own, "desk"):
            own.desk = desk()
        run(share, own.desk)

    with ThreadPoolExecutor(min(threads, len(shares))) as pool:
        list(pool.map(work, shares))
