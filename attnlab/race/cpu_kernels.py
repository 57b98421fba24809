"""RACE on a CPU at the machine's limit: forward and gradient in float32, for `numba_impl` and `torch_impl`.

What it changes from the reference:
    sigmoid features   phi of P bits is phi of P - 1 bits times sigmoid(+-2 beta u_P) (p. 22), so that P exponentials a
                       table take the place of 2^P; it covers 2 beta P <= 80, where float32 holds all features
    order of sums      tiles of 24 or 48 tokens; blocks of 4,080 tokens are summed in float32 and added up in float64
    causal             a tile reads the state before it, and its own tokens through a masked 24 x 24 product
    gradient           makes the features again; two sweeps, dq forward and dk, dv backward. Nothing is subtracted from
                       a total, which would round small prefixes away. Non-causal it needs neither the output nor its
                       denominators, as delta = dO . O = sum_r w_r dphi_r; causal it keeps both, 4 bytes more a token

The ladder, in ns a token-head at width 128 with 4 heads and 65,536 tokens on one core of an EPYC whose own product
(sgemm) makes 90 to 97 GF/s and whose copy moves 27 to 30 GB/s; (P, L) = (4, 4), or (2, 2) where it says so. Steps were
measured on several days, each with all earlier ones in; what stands now is in docs/papers/race-speed.md.
    2,240              plain loops, in chunks
      717 -> 56 of it  tanh by a quotient of polynomials and 2^x by one, in place of libm's
       604             products with C in registers, 6 rows by 16 columns: 0.71 of sgemm
       525             one line of memory asked for in each iteration of a product: 0.82. The same lines asked for in
                       bursts between products: no gain
       478             v copied to a dense tile, as rows 2 KB apart share a few places of the first cache: 0.87
       470             the loop over heads inside that over tiles, as arrays lie in memory: 0.9 and more; at (2, 2),
                       where memory decides, 145 -> 113
       (2, 2)          tiles of 24 tokens in place of 48: -10 %. Asking into the third cache: 0.38 of copy in place of
                       0.6
       265 -> 159      of a causal tile's sum: rows of the state 576 bytes apart, not 512
       600 -> 590      causal: the read adds what stood before the block and the block so far as it loads them, in
                       place of a pass of 40 that stores their sum; to store it out of the product took 54
       130 -> 120      (2, 2): steps inlined, whose forty arguments took time to hand over; outputs go to their place
                       straight out of the product, scaled and past the cache
    did not help       tiles of 96; rows outermost in products; 48 tokens a causal tile, whose own product doubles; one
                       loop that asks for lines beside one that does not: the core guesses wrong each time; a piece
                       that loops over the rows of a product itself: LLVM 22 lost its first sum where it knew the sizes
"""

import math
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import accumulate, pairwise
from itertools import product as every
from typing import NamedTuple

import numpy as np

from attnlab.lanes import (
    AHEAD,
    INT,
    LANES,
    LINE,
    NOTHING,
    Rows,
    address,
    aligned,
    compiled,
    compiled_once,
    copied,
    dots,
    flip,
    inlined,
    multiply,
    next_tile,
    on_lines,
    piece,
    place,
    put,
    steady,
    stride,
    take,
    up,
)

__all__ = ["LARGEST_LOGIT", "backward", "forward"]

LARGEST_LOGIT = 80.0  # of 2 beta P: exp(-80) is still a normal float32
BLOCK = 4080  # tokens summed in float32 before float64 takes the sum; a multiple of both tiles
STEP = 24  # tokens that a piece takes at a time, in three registers
STATES = 2**18  # bytes of states that a causal job may hold
SMALL = 4096  # token-heads below which a second thread costs more than it brings


class Sizes(NamedTuple):
    """H heads of L tables of P planes, S = L 2^P buckets; K and V numbers a key and a value, `key` and `value` rounded
    up to whole vectors, `row` the stride of rows of values; `tile` tokens are taken at a time; a row of projections has
    `projections` numbers, and `dots` tells how they are computed; `past_cache`: outputs may be stored past it.
    """

    H: int
    K: int
    V: int
    L: int
    P: int
    S: int
    tile: int
    key: int
    value: int
    row: int
    projections: int
    dots: int
    past_cache: int


class Desk(NamedTuple):
    """Addresses of what a tile needs for a moment; see `_layout`."""

    x: int  # [tile, key]: a ragged tile of q or k, and dq or dk on their way out
    y: int  # [tile + 1, projections]
    on: int  # [L P, tile]: sigmoid(2 beta u), the probability of a set bit
    off: int  # [L P, tile]: sigmoid(-2 beta u)
    u: int  # [L P, tile]: tanh(W x)
    phi: int  # [S, tile]: features of q
    psi: int  # [S, tile]: features of k, where both are needed
    v: int  # [tile, value]
    g: int  # [tile, value]: dO
    o: int  # [tile, value]: O, and O or dv on their way out
    turned: int  # [value, tile]: v or dO, turned
    slope: int  # [S, tile]: gradient of phi
    dy: int  # [L P, tile]
    den: int  # [tile]
    delta: int  # [tile]
    meet: int  # [tile, tile]: what tokens of one tile are to each other
    mass: int  # [S]
    zeros: int  # [max(tile, key, value)]
    one: int  # [1]


class Heads(NamedTuple):
    """Addresses of what belongs to the heads, one after the other."""

    planes: int  # [H, 4, K] where `dots`, else [H, K, projections]: W for the projections
    rows: int  # [H, L P, key]: W for the way back
    power: int  # [H]: -2 beta / ln 2, so that 2^(power u) are the odds of an unset bit
    twice: int  # [H]: 2 beta


class Bank(NamedTuple):
    """Addresses of sums over the tokens of a block, and of the state that is read."""

    part: int  # [H, S, row]: content summed
    lanes: int  # [H, S rounded up, 8]: mass summed, by lane
    twist: int  # [H, 8]: gradient of beta summed, by lane
    base_mass: int  # [H, S rounded up]: mass before the block
    base: int  # [H, S, row]: content before the block, which is read
    now: int  # [H, S, row]: base + part, in the gradient where causal


# -- pieces: a tile of features lies as [S, tile], so that a bucket is a row and eight tokens are a vector --


@piece
def _dots(w, x, row, planes, n, y, columns):
    """y[t, 0:4] = planes [4, n] x[t] for two tokens; n a multiple of 8."""

    def term(i, sums):
        tokens = [w.load(w.at(x, (t, row), i)) for t in range(2)]
        rows = [w.load(w.at(planes, (p, n), i)) for p in range(4)]
        return [w.fma(tokens[j // 4], rows[j % 4], total) for j, total in enumerate(sums)]

    both = w.sums(w.loop(n, term, [w.number(0)] * 8, step=LANES))
    w.store(both, y)
    w.store(w.shuffle(both, both, [4, 5, 6, 7] * 2), w.at(y, columns))


def _squash(planes):
    @piece
    def squash(w, y, row, power, on, off, u, tile):
        """Eight tokens: y [8, planes] -> u = tanh(y), on = sigmoid(2 beta u), off = 1 - on, all [planes, 8]."""
        b, power = w.b, w.spread(power)
        for p, column in enumerate(w.transpose([w.load(w.at(y, (t, row))) for t in range(8)])[:planes]):
            tanh = w.tanh(column)
            odds = w.exp2(b.fmul(power, tanh))
            yes = b.fdiv(w.number(1), b.fadd(w.number(1), odds))
            w.store(tanh, w.at(u, (p, tile)))
            w.store(yes, w.at(on, (p, tile)))
            w.store(b.fmul(odds, yes), w.at(off, (p, tile)))  # not 1 - on, which would round small ones away

    return squash


_squash8, _squash4 = _squash(8), _squash(4)


@piece
def _double(w, on, off, phi, tile, planes):
    """Eight tokens, one table: phi [2^P, 8], one plane after the other, the last one the highest bit."""
    b, one = w.b, w.integer(1)
    w.store(w.load(off), phi)
    w.store(w.load(on), w.at(phi, tile))

    def plane(p, _):
        p = b.add(p, one)
        half = b.shl(one, p)
        yes, no = w.load(w.at(on, (p, tile))), w.load(w.at(off, (p, tile)))

        def bucket(r, _):
            x = w.load(w.at(phi, (r, tile)))
            w.store(b.fmul(x, yes), w.at(phi, (b.add(r, half), tile)))
            w.store(b.fmul(x, no), w.at(phi, (r, tile)))

        w.loop(half, bucket)

    w.loop(b.sub(planes, one), plane)


def _threes(w, tile, body):
    """body(three addresses' offset) for every STEP tokens of a tile."""
    w.loop(tile, lambda j, _: body(j), step=STEP)


def _three(w, address, *terms):
    return [w.load(w.at(address, *terms, LANES * j)) for j in range(3)]


@piece
def _weigh(w, phi, tile, mass, S, out):
    """out[t] = sum over buckets of phi[s, t] mass[s]."""

    def tokens(j):
        def bucket(s, sums):
            m = w.spread(w.at(mass, s))
            return [w.fma(x, m, total) for x, total in zip(_three(w, phi, (s, tile), j), sums, strict=True)]

        for i, total in enumerate(w.loop(S, bucket, [w.number(0)] * 3)):
            w.store(total, w.at(out, j, LANES * i))

    _threes(w, tile, tokens)


@piece
def _meet(w, phi, slope, tile, S, out):
    """out[t] = sum over buckets of phi[s, t] slope[s, t]."""

    def tokens(j):
        def bucket(s, sums):
            pairs = zip(_three(w, phi, (s, tile), j), _three(w, slope, (s, tile), j), sums, strict=True)
            return [w.fma(x, y, total) for x, y, total in pairs]

        for i, total in enumerate(w.loop(S, bucket, [w.number(0)] * 3)):
            w.store(total, w.at(out, j, LANES * i))

    _threes(w, tile, tokens)


@piece
def _gather(w, phi, tile, S, mass):
    """mass[s, 0:8] += phi[s], summed by lane."""

    def tokens(j):
        def bucket(s, _):
            x, y, z = _three(w, phi, (s, tile), j)
            total = w.b.fadd(w.b.fadd(x, y), w.b.fadd(z, w.load(w.at(mass, (s, LANES)))))
            w.store(total, w.at(mass, (s, LANES)))

        w.loop(S, bucket)

    _threes(w, tile, tokens)


@piece
def _gather_less(w, phi, weight, tile, S, mass):
    """mass[s, 0:8] -= weight phi[s], summed by lane."""

    def tokens(j):
        less = [w.b.fneg(x) for x in _three(w, weight, j)]

        def bucket(s, _):
            total = w.load(w.at(mass, (s, LANES)))
            for x, y in zip(less, _three(w, phi, (s, tile), j), strict=True):
                total = w.fma(x, y, total)
            w.store(total, w.at(mass, (s, LANES)))

        w.loop(S, bucket)

    _threes(w, tile, tokens)


@piece
def _weighted(w, phi, weight, tile, S):
    """phi[s] *= weight."""

    def tokens(j):
        weights = _three(w, weight, j)

        def bucket(s, _):
            for i, (x, y) in enumerate(zip(_three(w, phi, (s, tile), j), weights, strict=True)):
                w.store(w.b.fmul(x, y), w.at(phi, (s, tile), j, LANES * i))

        w.loop(S, bucket)

    _threes(w, tile, tokens)


@piece
def _through_read(w, phi, slope, tile, S, mass, delta):
    """slope[s] = phi[s] (slope[s] - delta mass[s]), where phi is divided by the denominator already."""

    def tokens(j):
        less = [w.b.fneg(x) for x in _three(w, delta, j)]

        def bucket(s, _):
            m = w.spread(w.at(mass, s))
            pairs = zip(_three(w, phi, (s, tile), j), _three(w, slope, (s, tile), j), less, strict=True)
            for i, (x, y, d) in enumerate(pairs):
                w.store(w.b.fmul(x, w.fma(d, m, y)), w.at(slope, (s, tile), j, LANES * i))

        w.loop(S, bucket)

    _threes(w, tile, tokens)


@piece
def _through_write(w, phi, slope, tile, S, mass):
    """slope[s] = phi[s] (slope[s] + mass[s])."""

    def tokens(j):
        def bucket(s, _):
            m = w.spread(w.at(mass, s))
            pairs = zip(_three(w, phi, (s, tile), j), _three(w, slope, (s, tile), j), strict=True)
            for i, (x, y) in enumerate(pairs):
                w.store(w.b.fmul(x, w.b.fadd(y, m)), w.at(slope, (s, tile), j, LANES * i))

        w.loop(S, bucket)

    _threes(w, tile, tokens)


@piece
def _halve(w, slope, tile, on, off, u, dy, planes, dbeta, twice):
    """Eight tokens, one table: `_double` backwards. slope = phi dphi [2^P, 8] is used up; dy [P, 8] is the gradient of
    the projections, and dbeta[0:8] += u dz with z = 2 beta u the log-odds of a bit.
    """
    b, one, factor = w.b, w.integer(1), w.spread(twice)

    def plane(i, sums):
        p = b.sub(b.sub(planes, one), i)
        half = b.shl(one, p)

        def bucket(r, sums):
            no, yes = w.load(w.at(slope, (r, tile))), w.load(w.at(slope, (b.add(r, half), tile)))
            w.store(b.fadd(no, yes), w.at(slope, (r, tile)))
            return [b.fadd(sums[0], no), b.fadd(sums[1], yes)]

        no, yes = w.loop(half, bucket, [w.number(0)] * 2)
        tanh = w.load(w.at(u, (p, tile)))
        dz = b.fsub(b.fmul(yes, w.load(w.at(off, (p, tile)))), b.fmul(no, w.load(w.at(on, (p, tile)))))
        slant = b.fsub(w.number(1), b.fmul(tanh, tanh))
        w.store(b.fmul(b.fmul(factor, slant), dz), w.at(dy, (p, tile)))
        return [w.fma(tanh, dz, sums[0])]

    (total,) = w.loop(planes, plane, [w.load(dbeta)])
    w.store(total, dbeta)


@piece
def _inverse(w, x, n):
    """x = 1 / x where x > 0, else 0; NaN stays NaN."""

    def eight(i, _):
        value, zero = w.load(w.at(x, i)), w.number(0)
        w.store(w.where("<=", value, zero, zero, w.b.fdiv(w.number(1), value)), w.at(x, i))

    w.loop(n, eight, step=LANES)


@piece
def _times(w, x, y, n):
    """x *= y."""
    w.loop(n, lambda i, _: w.store(w.b.fmul(w.load(w.at(x, i)), w.load(w.at(y, i))), w.at(x, i)), step=LANES)


@piece
def _fold(w, base, lanes, out, S):
    """out[s] = base[s] + the sum of lanes[s, 0:8]; S is rounded up to 8."""

    def eight(s, _):
        rows = [w.load(w.at(lanes, (w.b.add(s, w.integer(j)), LANES))) for j in range(LANES)]
        w.store(w.b.fadd(w.load(w.at(base, s)), w.sums(rows)), w.at(out, s))

    w.loop(S, eight, step=LANES)


def _triangle(later):
    @piece
    def triangle(w, x, less):
        """x [24, 24] less one number a query, kept from the row's column on (`later`) or up to it; 0 elsewhere.
        Queries are the columns where later, else the rows.
        """
        for c in range(0, STEP, LANES):

            def row(r, _, c=c):
                place = w.at(x, (r, STEP), c)
                minus = w.load(w.at(less, c)) if later else w.spread(w.at(less, r))
                w.store(w.kept(">=" if later else "<=", c, r, w.b.fsub(w.load(place), minus)), place)

            w.loop(STEP, row)

    return triangle


_earlier, _later = _triangle(False), _triangle(True)


@piece
def _row_sums(w, x, n, out):
    """out[r] += the sum of x[r, 0:n], eight rows of 24; n a multiple of 8."""
    sums = w.loop(
        n,
        lambda c, rows: [w.b.fadd(total, w.load(w.at(x, (r, STEP), c))) for r, total in enumerate(rows)],
        [w.number(0)] * 8,
        step=LANES,
    )
    w.store(w.b.fadd(w.load(out), w.sums(sums)), out)


def _reading(vectors, own):
    @piece
    def read(w, phi, tile, content, part, row, S, scores, v, n, factors, out, out_row, past_cache, line, down, mask):
        """out [6, 8 vectors] = factors phi^T content. Where `own`, the content is content + part, and the tile's own n
        tokens come to it, scores v: two loads and a sum in place of one load, which a core does beside its products.
        Each iteration over the state asks for a line.
        """

        def products(i, sums, a, across, along, right):
            left = [w.spread(w.at(a, (r, across), (i, along))) for r in range(6)]
            return [w.fma(left[j // vectors], right[j % vectors], x) for j, x in enumerate(sums)]

        def vectors_of(b, i):
            return [w.load(w.at(b, (i, row), LANES * x)) for x in range(vectors)]

        def bucket(i, sums):
            w.prefetch(w.at(line, (w.b.and_(i, mask), down)))
            right = vectors_of(content, i)
            if own:
                right = [w.b.fadd(x, y) for x, y in zip(right, vectors_of(part, i), strict=True)]
            return products(i, sums, phi, 1, tile, right)

        sums = w.loop(S, bucket, [w.number(0)] * (6 * vectors))
        if own:
            sums = w.loop(n, lambda i, sums: products(i, sums, scores, tile, 1, vectors_of(v, i)), sums)
        scales = [w.spread(w.at(factors, r)) for r in range(6)]
        with w.b.if_else(w.b.icmp_signed("!=", past_cache, w.integer(0))) as branches:
            for past, branch in zip((True, False), branches, strict=True):
                with branch:
                    for j, x in enumerate(sums):
                        place = w.at(out, (j // vectors, out_row), LANES * (j % vectors))
                        w.store(w.b.fmul(x, scales[j // vectors]), place, past)

    return read


_read_6x2, _read_6x1, _read_own_6x2, _read_own_6x1 = (_reading(n, own) for own in (False, True) for n in (2, 1))


@piece
def _plus(w, x, y, out, n):
    """out = x + y; n a multiple of 8."""
    w.loop(n, lambda i, _: w.store(w.b.fadd(w.load(w.at(x, i)), w.load(w.at(y, i))), w.at(out, i)), step=LANES)


# -- steps: what a kernel does with one tile of one head --


@inlined
def _look(x, t, h, live, z, d):
    """Where a tile of q or k is, and its stride: in place, or on the desk if it is ragged."""
    if live == z.tile:
        return place(x, t, h), x.token
    take(x, t, h, live, z.tile, z.K, z.key, d.zeros, d.x)
    return d.x, z.key


@inlined
def _features(x, row, z, p, h, d, phi, live):
    """phi [S, tile], and what its gradient needs; 0 beyond `live` tokens."""
    T, LP, R = z.tile, z.L * z.P, 1 << z.P
    planes = p.planes + 4 * h * (4 * z.K if z.dots else z.K * z.projections)
    power = p.power + 4 * h
    if z.dots:
        for t in range(0, T, 2):
            _dots(x + 4 * t * row, row, planes, z.K, d.y + 4 * t * z.projections, z.projections)
    else:
        multiply(x, row, 1, T, planes, z.projections, z.projections, d.y, z.projections, z.K, 0, NOTHING, NOTHING)
    for t in range(0, T, 8):
        first = 0
        while first < LP:
            y, at = d.y + 4 * (t * z.projections + first), 4 * (first * T + t)
            if LP - first > 4:
                _squash8(y, z.projections, power, d.on + at, d.off + at, d.u + at, T)
                first += 8
            else:
                _squash4(y, z.projections, power, d.on + at, d.off + at, d.u + at, T)
                first += 4
        for table in range(z.L):
            at = 4 * (table * z.P * T + t)
            _double(d.on + at, d.off + at, phi + 4 * (table * R * T + t), T, z.P)
    if live < T:
        for s in range(z.S):
            copied(d.zeros, phi + 4 * (s * T + live), T - live)


@inlined
def _through_features(z, p, h, bank, d):
    """Into d.x [tile, key]: the gradient of x from slope = phi dphi; the gradient of beta into the bank."""
    T, R, dbeta, twice = z.tile, 1 << z.P, bank.twist + 4 * h * LANES, p.twice + 4 * h
    for t in range(0, T, 8):
        for table in range(z.L):
            at = 4 * (table * z.P * T + t)
            slope = d.slope + 4 * (table * R * T + t)
            _halve(slope, T, d.on + at, d.off + at, d.u + at, d.dy + at, z.P, dbeta, twice)
    rows = p.rows + 4 * h * z.L * z.P * z.key
    multiply(d.dy, 1, T, T, rows, z.key, z.key, d.x, z.key, z.L * z.P, 0, NOTHING, NOTHING)


@inlined
def _turn(x, z, out):
    """x [tile, V] as out [V, tile]."""
    for t in range(0, z.tile, 8):
        flip(x + 4 * t * z.row, z.row, z.value, out + 4 * t, z.tile)


@compiled_once(*[INT] * 7, AHEAD)
def _meeting(a, ar, an, b, n, c, later, first):
    """c [24, 24] = A [24, n] B [n, 24] where a mask keeps it: from the row's column on (`later`), or up to it."""
    for r in range(0, STEP, 8):
        x = r if later else 0
        columns = STEP - r if later else r + 8
        ask = first if r == 0 else NOTHING
        multiply(a + 4 * r * ar, ar, an, 8, b + 4 * x, STEP, columns, c + 4 * (r * STEP + x), STEP, n, 0, ask, NOTHING)


@inlined
def _read_tile(o, t, h, live, z, d, bank, own, ahead):
    """o = den phi^T content for the queries of a tile, where den is one over the denominators. Where `own`, the content
    is that of before the block and of the block so far, and each query reads its tile up to itself, meet v.

    A whole tile goes straight to its place, past the cache; any other over the desk.
    """
    T, at = z.tile, 4 * h * z.S * z.row
    direct = live == T and z.past_cache and z.V % 16 == 0
    to, row = (place(o, t, h), o.token) if direct else (d.o, z.row)
    units, mask, call = ahead.lines if z.S >= T else T, 31 if T < 32 else 63, 0
    for x in range(0, z.value, 16):
        content, part, v = bank.base + at + 4 * x, bank.part + at + 4 * x, d.v + 4 * x
        for r in range(0, T, 6):
            line, down = content, 0
            if call < units:
                down, right = (ahead.stride, LINE) if z.S >= T else (LINE, ahead.stride)
                line = ahead.at + 4 * right * call
            call += 1
            phi, scores, den, out, n = d.phi + 4 * r, d.meet + 4 * r * T, d.den + 4 * r, to + 4 * (r * row + x), r + 6
            if own and x + 16 <= z.value:
                _read_own_6x2(phi, T, content, part, z.row, z.S, scores, v, n, den, out, row, direct, line, down, mask)
            elif own:
                _read_own_6x1(phi, T, content, part, z.row, z.S, scores, v, n, den, out, row, direct, line, down, mask)
            elif x + 16 <= z.value:
                _read_6x2(phi, T, content, part, z.row, z.S, scores, v, n, den, out, row, direct, line, down, mask)
            else:
                _read_6x1(phi, T, content, part, z.row, z.S, scores, v, n, den, out, row, direct, line, down, mask)
    if not direct:
        put(d.o, z.row, d.one, 0, o, t, h, live, z.V, z.past_cache)


@inlined
def _phi(x, t, h, live, z, p, d, phi, kept):
    """Features of a tile of q or k, 0 beyond `kept` tokens."""
    at, row = _look(x, t, h, live, z, d)
    _features(at, row, z, p, h, d, phi, kept)


@inlined
def _lanes(z, h, bank):
    return bank.lanes + 4 * h * (z.S + -z.S % LANES) * LANES


@inlined
def _state(z, h, bank):
    """Where the mass and the content before the block are."""
    return bank.base_mass + 4 * h * (z.S + -z.S % LANES), bank.base + 4 * h * z.S * z.row


@inlined
def _gathered(z, h, phi, v, bank, first, second):
    """part += phi v, the content of a tile's tokens."""
    to = bank.part + 4 * h * z.S * z.row
    multiply(phi, z.tile, 1, z.S, v, z.row, z.value, to, z.row, z.tile, 1, first, second)


@inlined
def _mass_now(z, h, bank, d):
    """The mass that a causal tile reads: before the block, and of the block so far."""
    mass, _ = _state(z, h, bank)
    _fold(mass, _lanes(z, h, bank), d.mass, z.S + -z.S % LANES)


@inlined
def _content_now(z, h, bank):
    """The content that the next tile of a causal gradient meets, now = base + part."""
    at = 4 * h * z.S * z.row
    _plus(bank.base + at, bank.part + at, bank.now + at, z.S * z.row)


@inlined
def _reader(g, o, den, t, h, live, z, d):
    """dO, delta = dO . O, and one over the denominator of a tile's queries."""
    take(g, t, h, live, z.tile, z.V, z.row, d.zeros, d.g)
    take(o, t, h, live, z.tile, z.V, z.row, d.zeros, d.o)
    for i in range(0, z.tile, 8):
        dots(d.g + 4 * i * z.row, z.row, d.o + 4 * i * z.row, z.row, z.value, d.delta + 4 * i)
    take(den, t, h, live, z.tile, 1, 1, d.zeros, d.den)
    _inverse(d.den, z.tile)


# -- kernels: a block of tokens, the loop over heads inside that over tiles, as arrays lie in memory --


@compiled
def _write(k, v, n, z, p, bank, d):
    """The sums of n keys' features and values."""
    T = z.tile
    for t in range(0, n, T):
        live = min(T, n - t)
        for h in range(z.H):
            _phi(k, t, h, live, z, p, d, d.psi, live)
            take(v, t, h, live, z.tile, z.V, z.row, d.zeros, d.v)
            _gather(d.psi, T, z.S, _lanes(z, h, bank))
            _gathered(z, h, d.psi, d.v, bank, next_tile(k, t, h, z.H, T, z.K, T), next_tile(v, t, h, z.H, T, z.V, T))


@compiled
def _read(q, o, n, z, p, bank, d):
    """o = phi . content / phi . mass for n queries, 0 where no key was written."""
    T = z.tile
    for t in range(0, n, T):
        live = min(T, n - t)
        for h in range(z.H):
            mass, _ = _state(z, h, bank)
            _phi(q, t, h, live, z, p, d, d.phi, T)
            _weigh(d.phi, T, mass, z.S, d.den)
            _inverse(d.den, T)
            _read_tile(o, t, h, live, z, d, bank, False, next_tile(q, t, h, z.H, T, z.K, T))


@compiled
def _causal(q, k, v, o, den, n, z, p, bank, d):
    """Query t reads the state before its tile, and the keys of its tile up to t. `den` keeps the denominators for the
    gradient, unless its address is 0.
    """
    T = z.tile
    for t in range(0, n, T):
        live = min(T, n - t)
        for h in range(z.H):
            _phi(k, t, h, live, z, p, d, d.psi, live)
            _phi(q, t, h, live, z, p, d, d.phi, T)
            take(v, t, h, live, z.tile, z.V, z.row, d.zeros, d.v)
            _mass_now(z, h, bank, d)
            _weigh(d.phi, T, d.mass, z.S, d.den)
            _meeting(d.phi, 1, T, d.psi, z.S, d.meet, 0, NOTHING)
            _earlier(d.meet, d.zeros)
            for i in range(0, T, 8):
                _row_sums(d.meet + 4 * i * T, i + 8, d.den + 4 * i)
            if den.at:
                put(d.den, 1, d.one, 0, den, t, h, live, 1, z.past_cache)
            _inverse(d.den, T)
            _read_tile(o, t, h, live, z, d, bank, True, next_tile(q, t, h, z.H, T, z.K, T))
            _gather(d.psi, T, z.S, _lanes(z, h, bank))
            _gathered(z, h, d.psi, d.v, bank, next_tile(k, t, h, z.H, T, z.K, T), next_tile(v, t, h, z.H, T, z.V, T))


@compiled
def _read_slope(q, g, dq, n, z, p, bank, d):
    """Gradient of `_read`: dq, and the sums that make the gradient of the state."""
    T = z.tile
    for t in range(0, n, T):
        live = min(T, n - t)
        for h in range(z.H):
            mass, content = _state(z, h, bank)
            _phi(q, t, h, live, z, p, d, d.phi, live)
            take(g, t, h, live, z.tile, z.V, z.row, d.zeros, d.g)
            _turn(d.g, z, d.turned)
            ask = next_tile(q, t, h, z.H, T, z.K, T)
            multiply(content, z.row, 1, z.S, d.turned, T, T, d.slope, T, z.V, 0, ask, NOTHING)
            _weigh(d.phi, T, mass, z.S, d.den)
            _meet(d.phi, d.slope, T, z.S, d.delta)
            _inverse(d.den, T)
            _times(d.delta, d.den, T)
            _weighted(d.phi, d.den, T, z.S)
            _through_read(d.phi, d.slope, T, z.S, mass, d.delta)
            _through_features(z, p, h, bank, d)
            put(d.x, z.key, d.one, 0, dq, t, h, live, z.K, z.past_cache)
            _gather_less(d.phi, d.delta, T, z.S, _lanes(z, h, bank))
            _gathered(z, h, d.phi, d.g, bank, next_tile(g, t, h, z.H, T, z.V, T), NOTHING)


@compiled
def _write_slope(k, v, dk, dv, n, z, p, bank, d):
    """Gradient of `_write`: dk and dv, from the gradient of the state."""
    T = z.tile
    for t in range(0, n, T):
        live = min(T, n - t)
        for h in range(z.H):
            mass, content = _state(z, h, bank)
            _phi(k, t, h, live, z, p, d, d.psi, live)
            take(v, t, h, live, z.tile, z.V, z.row, d.zeros, d.v)
            _turn(d.v, z, d.turned)
            keys, values = next_tile(k, t, h, z.H, T, z.K, T), next_tile(v, t, h, z.H, T, z.V, T)
            multiply(content, z.row, 1, z.S, d.turned, T, T, d.slope, T, z.V, 0, keys, NOTHING)
            _through_write(d.psi, d.slope, T, z.S, mass)
            multiply(d.psi, 1, T, T, content, z.row, z.value, d.o, z.row, z.S, 0, values, NOTHING)
            put(d.o, z.row, d.one, 0, dv, t, h, live, z.V, z.past_cache)
            _through_features(z, p, h, bank, d)
            put(d.x, z.key, d.one, 0, dk, t, h, live, z.K, z.past_cache)


@compiled
def _query_slope(q, k, v, g, o, den, dq, n, z, p, bank, d):
    """Gradient of `_causal`, first sweep: dq, against the state that each query read."""
    T = z.tile
    for t in range(0, n, T):
        live = min(T, n - t)
        for h in range(z.H):
            content = bank.now + 4 * h * z.S * z.row
            _phi(k, t, h, live, z, p, d, d.psi, live)
            _phi(q, t, h, live, z, p, d, d.phi, live)
            take(v, t, h, live, z.tile, z.V, z.row, d.zeros, d.v)
            _reader(g, o, den, t, h, live, z, d)
            _turn(d.g, z, d.turned)
            keys, queries, more = (
                next_tile(k, t, h, z.H, T, z.K, T),
                next_tile(q, t, h, z.H, T, z.K, T),
                next_tile(g, t, h, z.H, T, z.V, T),
            )
            multiply(content, z.row, 1, z.S, d.turned, T, T, d.slope, T, z.V, 0, keys, queries)
            _meeting(d.v, z.row, 1, d.turned, z.V, d.meet, 1, more)
            _later(d.meet, d.delta)
            multiply(d.psi, T, 1, z.S, d.meet, T, T, d.slope, T, T, 1, NOTHING, NOTHING)
            _mass_now(z, h, bank, d)
            _weighted(d.phi, d.den, T, z.S)
            _through_read(d.phi, d.slope, T, z.S, d.mass, d.delta)
            _through_features(z, p, h, bank, d)
            put(d.x, z.key, d.one, 0, dq, t, h, live, z.K, z.past_cache)
            _gather(d.psi, T, z.S, _lanes(z, h, bank))
            _gathered(z, h, d.psi, d.v, bank, next_tile(v, t, h, z.H, T, z.V, T), next_tile(o, t, h, z.H, T, z.V, T))
            _content_now(z, h, bank)


@compiled
def _key_slope(q, k, v, g, o, den, dk, dv, n, z, p, bank, d):
    """Gradient of `_causal`, second sweep, from the last tile to the first: dk and dv, against the gradient of the
    state, to which the queries add theirs on the way.
    """
    T = z.tile
    for t in range((n - 1) // T * T, -1, -T):
        live = min(T, n - t)
        for h in range(z.H):
            content = bank.now + 4 * h * z.S * z.row
            _phi(q, t, h, live, z, p, d, d.phi, live)
            _phi(k, t, h, live, z, p, d, d.psi, live)
            take(v, t, h, live, z.tile, z.V, z.row, d.zeros, d.v)
            _reader(g, o, den, t, h, live, z, d)
            _weighted(d.phi, d.den, T, z.S)
            _turn(d.v, z, d.turned)
            keys, queries = next_tile(k, t, h, z.H, T, z.K, -T), next_tile(q, t, h, z.H, T, z.K, -T)
            values, more = next_tile(v, t, h, z.H, T, z.V, -T), next_tile(g, t, h, z.H, T, z.V, -T)
            multiply(content, z.row, 1, z.S, d.turned, T, T, d.slope, T, z.V, 0, keys, queries)
            _meeting(d.g, z.row, 1, d.turned, z.V, d.meet, 0, values)
            _earlier(d.meet, d.delta)
            multiply(d.phi, T, 1, z.S, d.meet, T, T, d.slope, T, T, 1, NOTHING, NOTHING)
            _mass_now(z, h, bank, d)
            _through_write(d.psi, d.slope, T, z.S, d.mass)
            _through_features(z, p, h, bank, d)
            put(d.x, z.key, d.one, 0, dk, t, h, live, z.K, z.past_cache)
            multiply(d.psi, 1, T, T, content, z.row, z.value, d.o, z.row, z.S, 0, more, NOTHING)
            _meeting(d.psi, 1, T, d.phi, z.S, d.meet, 1, NOTHING)
            _later(d.meet, d.zeros)
            for j in range(0, T, 6):  # what the queries of their own tile send to these keys
                scores, to, d_out = d.meet + 4 * (j * T + j), d.o + 4 * j * z.row, d.g + 4 * j * z.row
                multiply(scores, T, 1, 6, d_out, z.row, z.value, to, z.row, T - j, 1, NOTHING, NOTHING)
            put(d.o, z.row, d.one, 0, dv, t, h, live, z.V, z.past_cache)
            _gather_less(d.phi, d.delta, T, z.S, _lanes(z, h, bank))
            _gathered(z, h, d.phi, d.g, bank, next_tile(o, t, h, z.H, T, z.V, -T), NOTHING)
            _content_now(z, h, bank)


SWEEPS = (_query_slope, _key_slope)
SLOPES = (_read_slope, _write_slope, *SWEEPS)


# -- from arrays to kernels --


def forward(q, k, v, planes, beta, mass, content, out, *, causal, threads, den=None):
    """Fill `out` [B, T, H, V]; mass [B, H, S] and content [B, H, S, V] (float64, S = L 2^P) come in as the state
    carried so far and leave with the keys of this call. `den` [B, T, H, 1] keeps the denominators of a causal call.

    q, k [B, T, H, K], v [B, S, H, V], planes [L, P, K] or [H, L, P, K], beta [H]: float32. Nothing is checked: 2 beta P
    is at most LARGEST_LOGIT, and shapes fit.
    """
    call = _Call(q, k, v, planes, beta, causal, threads, [out])
    q, k, v = (steady(x) for x in (q, k, v))
    state = (mass, content)
    if not causal:
        call.run((_write, (k, v), cut, None, state) for cut in _stretches(k.shape[1]))
        call.run((_read, (q, out), cut, state, None) for cut in _stretches(q.shape[1]))
        return
    # a part starts from what was carried in and the sums of the parts before it
    cuts = _cuts(k.shape[1], call.parts)
    states = [state, *((np.zeros_like(mass), np.zeros_like(content)) for _ in cuts[1:])]
    call.run((_write, (k, v), cut, None, after) for cut, after in zip(cuts[:-1], states[1:], strict=True))
    for before, own in pairwise(states):
        for x, y in zip(own, before, strict=True):
            x += y
    call.run((_causal, (q, k, v, out, den), cut, own, own) for cut, own in zip(cuts, states, strict=True))
    if len(states) > 1:
        mass[...], content[...] = states[-1]


def backward(q, k, v, planes, beta, state, d_out, d_state, dq, dk, dv, *, causal, threads, out=None, den=None):
    """Fill dq, dk and dv, and return the gradient of beta [H], float64. `d_state` comes in as the gradient of the last
    state and leaves as that of the first; where causal, it may be None: none came, and none is wanted.

    `state` is the (mass, content) that the queries read: the last one, or, where causal, the first (None: nothing was
    carried in), and then `out` and `den` are as `forward` left them.
    """
    call = _Call(q, k, v, planes, beta, causal, threads, [dq, dk, dv])
    q, k, v, d_out = (steady(x) for x in (q, k, v, d_out))
    if causal:  # one sweep sums the state again, the other its gradient; neither waits for the other
        (everything,), arrays = _cuts(q.shape[1], 1), (q, k, v, d_out, out, den)
        again = (_query_slope, (*arrays, dq), everything, state, None)
        call.run((again, (_key_slope, (*arrays, dk, dv), everything, d_state, d_state)))
    else:
        call.run((_read_slope, (q, d_out, dq), cut, state, d_state) for cut in _stretches(q.shape[1]))
        call.run((_write_slope, (k, v, dk, dv), cut, d_state, None) for cut in _stretches(k.shape[1]))
    return call.dbeta


class _Call:
    """How one call is shared out to threads.

    Non-causal, tokens are shared out in stretches of a fixed length, and only what is too short for that by heads: no
    sum hangs on the number of threads. Causal, heads are shared out, which changes no sum either, and tokens only where
    there are fewer heads than threads: then a result may depend on the number of threads in the last place.
    """

    def __init__(self, q, k, v, planes, beta, causal, threads, outs):
        (B, T, H, K), (L, P), V = q.shape, planes.shape[-3:-1], v.shape[-1]
        S, past_cache, tokens = L << P, all(on_lines(x) for x in outs), max(T, k.shape[1])
        dots, tile = L * P <= 4 and K % LANES == 0, STEP if causal or S < STEP else 2 * STEP
        self.z = Sizes(H, K, V, L, P, S, tile, up(K), up(V), stride(up(V)), up(L * P), int(dots), int(past_cache))
        flat = planes.reshape(H if planes.ndim == 4 else 1, L * P, K)
        self.arrays, self.dbeta = _heads(self.z, flat, beta.astype(np.float64)), np.zeros(H)
        self.p = [(address(x), x.strides[0]) for x in self.arrays]
        self.threads = threads if B * H * tokens >= SMALL else 1
        tasks = B if causal else B * len(_stretches(tokens))
        most = max(1, STATES // (3 * 4 * S * self.z.row)) if causal else H  # a causal job holds three states a head
        groups = max(min(H, -(-self.threads // max(tasks, 1))), -(-H // max(most, 1)))
        heads = [slice(g * H // groups, (g + 1) * H // groups) for g in range(groups)]
        self.places = list(every(range(B), heads))
        self.parts = max(1, self.threads // max(1, B * groups))

    def run(self, tasks):
        """Run (kernel, arrays, tokens, state to read, state to add to) on all sequences and heads. Threads start and
        end here, so that a process forked later misses none; sums are added in the order of the tasks.
        """
        jobs = [(self, place, *task) for task in tasks for place in self.places]
        if self.threads == 1 or len(jobs) < 2:
            self.gather(jobs, (_Job(*job).run() for job in jobs))
        else:
            with ThreadPoolExecutor(self.threads) as pool:
                self.gather(jobs, pool.map(lambda job: _Job(*job).run(), jobs))

    def gather(self, jobs, results):
        for (_, where, *_, into), (dbeta, sums) in zip(jobs, results, strict=True):
            self.dbeta[where[1]] += dbeta
            for x, own in zip(into, sums, strict=True) if sums else ():
                x[where] += own


class _Job:
    """One kernel over some tokens and heads of one sequence, a block at a time."""

    def __init__(self, call, place, kernel, arrays, tokens, read, into):
        (self.b, self.heads), self.kernel, self.arrays, self.tokens = place, kernel, arrays, tokens
        self.z = call.z._replace(H=self.heads.stop - self.heads.start)
        self.p = Heads(*(at + self.heads.start * stride for at, stride in call.p))
        self.sweeps = kernel in SWEEPS
        self.follows = self.sweeps or kernel is _causal  # it reads what it sums
        self.read = None if read is None else [x[place] for x in read]
        shapes = (self.z.H, self.z.S), (self.z.H, self.z.S, self.z.V)
        self.sums = None
        if self.follows:  # in place, or, where nobody wants the sums, on a copy
            if self.read is None:
                self.read = [np.zeros(shape) for shape in shapes]
            elif read is not into:
                self.read = [x.copy() for x in self.read]
            self.sums = self.read
        elif into is not None:
            self.sums = [np.zeros(shape) for shape in shapes]

    def run(self):
        """All blocks, from the first to the last, or back where the kernel walks back: (the gradient of beta, the sums
        that are still to be added).
        """
        z, dbeta = self.z, np.zeros(self.z.H)
        size, places, shapes = _layout(z, self.sweeps)
        memory = aligned(size)
        first = address(memory)
        at = [first + 4 * start for start, _ in places]
        d, bank = Desk(*at[: -len(shapes)]), Bank(*at[-len(shapes) :])
        part, lanes, twist, mass, base, now = (
            memory[start:stop].reshape(shape)
            for (start, stop), shape in zip(places[-len(shapes) :], shapes, strict=True)
        )
        memory[(d.one - first) // 4] = 1

        def settle():
            """The float64 state, rounded, becomes what is read."""
            if self.read is not None:
                mass[:, : z.S], base[..., : z.V] = self.read
                if self.sweeps:
                    now[:] = base

        settle()
        blocks = range(self.tokens.start, self.tokens.stop, BLOCK)
        for start in blocks if self.kernel is not _key_slope else reversed(blocks):
            rows = (self.rows(x, start) for x in self.arrays)
            self.kernel(*rows, min(BLOCK, self.tokens.stop - start), z, self.p, bank, d)
            # what the block summed in float32 goes to the float64 sums
            if self.kernel in SLOPES:
                dbeta += 2 * twist.sum(-1, dtype=np.float64)
                twist[:] = 0
            if self.sums is not None:
                self.sums[0] += lanes[:, : z.S].sum(-1, dtype=np.float64)
                self.sums[1] += part[..., : z.V]
                lanes[:], part[:] = 0, 0
            if self.follows:
                settle()
        return dbeta, None if self.follows else self.sums

    def rows(self, x, start):
        """Where the tokens from `start` on are, in the heads of this job; nowhere, for None."""
        if x is None:
            return Rows(0, 0, 0)
        of_batch, of_token, of_head, _ = x.strides
        at = address(x) + self.b * of_batch + start * of_token + self.heads.start * of_head
        return Rows(at, of_token // 4, of_head // 4)


def _stretches(tokens):
    """Stretches of eight blocks, the last one shorter."""
    return [slice(a, min(a + 8 * BLOCK, tokens)) for a in range(0, max(tokens, 1), 8 * BLOCK)]


def _cuts(tokens, parts):
    """`parts` stretches of whole blocks, as equal as may be, or fewer where there are fewer blocks."""
    parts = max(1, min(parts, tokens // BLOCK))
    ends = [tokens * i // parts // BLOCK * BLOCK for i in range(parts)] + [tokens]
    return [slice(a, b) for a, b in pairwise(ends)]


def _heads(z, planes, beta):
    """The arrays of Heads: `planes` [1 or H, L P, K] as the kernels take them, and `beta` [H] in their units."""
    LP, K = planes.shape[1:]
    rows = aligned(z.H, LP, z.key)
    rows[..., :K] = planes
    project = aligned(z.H, 4, K) if z.dots else aligned(z.H, K, z.projections)
    if z.dots:
        project[:, :LP] = planes
    else:
        project[..., :LP] = planes.transpose(0, 2, 1)
    return project, rows, (-2 / math.log(2) * beta).astype(np.float32), (2 * beta).astype(np.float32)


@cache
def _layout(z, sweeps):
    """(numbers in all, where each place of the desk and of the bank starts and stops, the shapes of the bank's)."""
    T, bits = z.tile, up(z.L * z.P) * z.tile
    desk = Desk(
        *(T * z.key, (T + 1) * z.projections, bits, bits, bits, z.S * T, z.S * T, T * z.row, T * z.row, T * z.row),
        *(z.value * T, z.S * T, bits, T, T, T * T, up(z.S), max(T, z.key, z.row), 1),
    )
    masses, contents = (z.H, up(z.S)), (z.H, z.S, z.row)
    bank: list[tuple[int, ...]] = [contents, (*masses, LANES), (z.H, LANES), masses, contents]
    bank.append(contents if sweeps else (0,))
    sizes = [*desk, *map(math.prod, bank)]
    starts = list(accumulate((n + -n % LINE for n in sizes), initial=0))
    return starts[-1], [(start, start + n) for start, n in zip(starts, sizes, strict=False)], bank
