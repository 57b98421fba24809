"""LRKV on a CPU: keys and values read in their factors, in one pass, for `numba_impl`.

What it changes from the reference:
    one pass       a block of tokens at a time, with the softmax carried along: no row of logits is kept
    heads          all heads of a group meet a block of shared keys in one product, and of shared values in another, so
                   that these are read once for all heads. Heads stand in lanes, logits are [token, head]
    latents        are read in the order they lie in, each once: eight heads' dot products end in the lanes of one
                   vector; sums over tokens, four at a time, stay in the nearest cache
    memory         while the products run, the latents that come next are asked for, and during these the next block
    not in eights  ranks, heads or widths that fill no vector are copied, block by block, to a place where they do
    turning        a block that turns as it is read is turned on the way to that place; cosines of a block follow from
                   those of its first token while positions follow each other
    threads        the sequence is cut into parts, merged by the logarithm of their denominators before B_h is applied
"""

import math
from typing import Any, NamedTuple

import numpy as np
from llvmlite.binding import get_host_cpu_features

from attnlab.lanes import (
    LANES,
    LINE,
    NOTHING,
    Lanes,
    address,
    aligned,
    compiled,
    dots,
    inlined,
    multiply,
    on_threads,
    piece,
    scaled,
    steady,
    up,
)

__all__ = ["LOG2E", "attention"]

LOG2E = 1.4426950408889634
BLOCK = 24  # tokens
TOGETHER = 12  # of which latents of values are summed
COLUMNS = 128  # heads times queries at once, at most where one query's heads are fewer
LONG, MOST_PARTS = 1008, 16  # tokens, the least that a part has where there are more; parts of a sequence
FAR = 2.0**24  # positions beyond which the product with a frequency is what rounds, and so has to be taken
AT_ONCE = 16  # tiles for each thread, between two merges
ASKED = 2  # lines in each step of a product
WIDE = bool(get_host_cpu_features().get("avx512f"))  # registers of sixteen lanes, and thirty-two of them


class Sizes(NamedTuple):
    """Of a call: heads of a group, the same filled up to whole vectors, widths, ranks, and strides in numbers; what is
    copied before it is read, and what turns.
    """

    heads: int
    lanes: int
    K: int
    V: int
    width: int  # of values, filled up
    R: int
    Rv: int
    k_rank: int  # filled up
    v_rank: int
    k_row: int
    v_row: int
    k_token: int  # strides of latents
    k_head: int
    v_token: int
    v_head: int
    k_lines: int  # of a token's latents, 0 where they are not in one piece
    v_lines: int
    k_copied: int
    v_copied: int
    shared_copied: int  # values
    scales: int  # stride of tokens, 0 without
    turning: int  # 0 nothing, 1 latents and shared keys, 2 keys made whole
    planes: int  # of keys
    latent_planes: int
    interleaved: int
    latent_interleaved: int


@inlined
def _at(x):
    """Where an array begins."""
    return np.int64(x.ctypes.data)


# -- products with sixteen lanes --


def _wide(rows: int, vectors: int):
    def product(w, a, ar, an, b, bn, c, cr, n, add, line, step):
        """C [rows, 16 vectors] = A B, or C += A B; lines are asked for in each of n steps, `step` numbers apart."""
        places = [w.at(c, (r, cr), 16 * x) for r in range(rows) for x in range(vectors)]

        def term(i, sums):
            for ahead in range(ASKED):
                w.prefetch(w.at(line, (i, step), ahead * LINE))
            row = [w.load(w.at(b, (i, bn), 16 * x)) for x in range(vectors)]
            column = [w.spread(w.at(a, (r, ar), (i, an))) for r in range(rows)]
            return [w.fma(column[j // vectors], row[j % vectors], x) for j, x in enumerate(sums)]

        sums = w.loop(n, term, [w.number(0)] * len(places))
        sums = w.either(add, lambda: [w.b.fadd(w.load(y), x) for x, y in zip(sums, places, strict=True)], sums)
        for x, place in zip(sums, places, strict=True):
            w.store(x, place)

    return piece(product, 16)


_12x2, _4x2, _1x2 = (_wide(rows, 2) for rows in (12, 4, 1))
_6x4, _2x4, _1x4 = (_wide(rows, 4) for rows in (6, 2, 1))


@inlined
def _tile(a, ar, an, rows, b, bn, vectors, c, cr, n, add, line, step):
    """One tile of `_multiplied`, as many rows as it takes at once: 4 vectors wide, or 2."""
    if vectors == 4:
        if rows >= 6:
            _6x4(a, ar, an, b, bn, c, cr, n, add, line, step)
            return 6
        if rows >= 2:
            _2x4(a, ar, an, b, bn, c, cr, n, add, line, step)
            return 2
        _1x4(a, ar, an, b, bn, c, cr, n, add, line, step)
        return 1
    if rows >= 12:
        _12x2(a, ar, an, b, bn, c, cr, n, add, line, step)
        return 12
    if rows >= 4:
        _4x2(a, ar, an, b, bn, c, cr, n, add, line, step)
        return 4
    _1x2(a, ar, an, b, bn, c, cr, n, add, line, step)
    return 1


@inlined
def _multiplied(a, ar, an, rows, b, bn, columns, c, cr, n, add, line, lines):
    """As `lanes.multiply`, sixteen lanes wide where the machine has them and columns are a multiple of 32; up to
    `lines` lines from `line` on are asked for on the way.
    """
    if not WIDE or columns % 32:
        multiply(a, ar, an, rows, b, bn, columns, c, cr, n, add, NOTHING, NOTHING)
        return
    x, asked = 0, 0
    while x < columns:
        vectors = 4 if columns - x >= 64 else 2
        r = 0
        while r < rows:
            more = asked < lines
            at, step = (line + 64 * asked, ASKED * LINE) if more else (b, 0)
            r += _tile(
                a + 4 * r * ar, ar, an, rows - r, b + 4 * x, bn, vectors, c + 4 * (r * cr + x), cr, n, add, at, step
            )
            asked += ASKED * n if more else 0
        x += 16 * vectors


# -- a block --


def ask(w, x, row, step, h, lines):
    """Ask for the lines of a row that fall to heads h to h + 7, so many for each eight."""
    place = w.at(x, (row, step), (w.b.mul(w.b.lshr(h, w.integer(3)), lines), LINE))
    w.loop(lines, lambda n, _: w.prefetch(w.at(place, (n, LINE))))


def _vectors(w, rank):
    """How a row of latents is read: (lanes, first number) of each vector, sixteen wide as far as that goes."""
    wide = Lanes(w.b, 16)
    whole = rank // 16 if WIDE else 0
    return [(wide, 16 * i) for i in range(whole)] + [(w, i) for i in range(16 * whole, rank, LANES)]


def _scoring(rank: int | None):
    """For one rank, whose heads lie next to each other; or, without one, for any."""

    def score(w, z, token, head, q, any_rank, heads, tokens, s, row, ahead, ahead_row, lines):
        """s[t, h] += z[t, h] . q[h]; heads and rank multiples of 8, q dense. Every eight heads ask for so many lines of
        row t of `ahead`.
        """
        b = w.b

        def product(place, ask):
            """z . q of a head, as eight partial sums."""
            if rank is None:
                terms = lambda i, sums: [w.fma(w.load(w.at(place, i)), w.load(w.at(ask, i)), sums[0])]  # noqa: E731
                return w.loop(any_rank, terms, [w.number(0)], step=LANES)[0]
            sums: dict[int, Any] = {}
            for v, i in _vectors(w, rank):
                x, y = v.load(w.at(place, i)), v.load(w.at(ask, i))
                sums[v.lanes] = v.fma(x, y, sums[v.lanes]) if v.lanes in sums else b.fmul(x, y)
            if 16 in sums:
                low, high = (w.shuffle(sums[16], sums[16], [*range(n, n + LANES)]) for n in (0, LANES))
                sums[LANES] = b.fadd(sums[LANES], b.fadd(low, high)) if LANES in sums else b.fadd(low, high)
            return sums[LANES]

        def at_tokens(t, count):
            def eight(h, _):
                for k in range(count):
                    here = b.add(t, w.integer(k))
                    ask(w, ahead, here, ahead_row, h, lines)
                    first = w.at(z, (here, token), (h, head))
                    asked = w.at(q, (h, any_rank if rank is None else rank))
                    parts = [
                        product(
                            w.at(first, (j, head) if rank is None else j * rank),
                            w.at(asked, (j, any_rank) if rank is None else j * rank),
                        )
                        for j in range(LANES)
                    ]
                    to = w.at(s, (here, row), h)
                    w.store(b.fadd(w.load(to), w.sums(parts)), to)

            w.loop(heads, eight, step=LANES)

        pairs = b.and_(tokens, w.integer(-2))
        w.loop(pairs, lambda t, _: at_tokens(t, 2), step=2)
        w.loop(b.sub(tokens, pairs), lambda t, _: at_tokens(b.add(t, pairs), 1))

    return piece(score)


def _gathering(tokens: int, rank: int | None):
    """So many tokens at once; for one rank, whose heads lie next to each other, or, without one, for any."""

    def gathered(w, z, token, head, p, row, any_rank, heads, y):
        """y[h] += the sum of p[t, h] z[t, h] over the tokens; rank a multiple of 8, y dense."""

        def at_head(h, _):
            weights = [w.number_at(w.at(p, (t, row), h)) for t in range(tokens)]
            places = [w.at(z, (t, token), (h, head)) for t in range(tokens)]
            to = w.at(y, (h, any_rank if rank is None else rank))

            def some(v, i):
                x = v.load(w.at(to, i))
                for weight, place in zip(weights, places, strict=True):
                    x = v.fma(v.splat(weight), v.load(w.at(place, i)), x)
                v.store(x, w.at(to, i))

            if rank is None:
                w.loop(any_rank, lambda i, _: some(w, i), step=LANES)
            else:
                for v, i in _vectors(w, rank):
                    some(v, i)

        w.loop(heads, at_head)

    return piece(gathered)


RANKS = (8, 16, 24, 32, 40, 48, 56, 64)  # with pieces of their own
_score = _scoring(None)
_score8, _score16, _score24, _score32, _score40, _score48, _score56, _score64 = map(_scoring, RANKS)
_gather1, _gather12 = (_gathering(tokens, None) for tokens in (1, TOGETHER))
_gather12x8, _gather12x16, _gather12x24, _gather12x32, _gather12x40, _gather12x48, _gather12x56, _gather12x64 = (
    _gathering(TOGETHER, rank) for rank in RANKS
)


@inlined
def _scored(z, token, head, q, rank, heads, tokens, s, row, ahead, step, lines):
    """`_score` by the piece for this rank, where there is one."""
    kind = rank if head == rank else 0
    if kind == 8:
        _score8(z, token, head, q, rank, heads, tokens, s, row, ahead, step, lines)
    elif kind == 16:
        _score16(z, token, head, q, rank, heads, tokens, s, row, ahead, step, lines)
    elif kind == 24:
        _score24(z, token, head, q, rank, heads, tokens, s, row, ahead, step, lines)
    elif kind == 32:
        _score32(z, token, head, q, rank, heads, tokens, s, row, ahead, step, lines)
    elif kind == 40:
        _score40(z, token, head, q, rank, heads, tokens, s, row, ahead, step, lines)
    elif kind == 48:
        _score48(z, token, head, q, rank, heads, tokens, s, row, ahead, step, lines)
    elif kind == 56:
        _score56(z, token, head, q, rank, heads, tokens, s, row, ahead, step, lines)
    elif kind == 64:
        _score64(z, token, head, q, rank, heads, tokens, s, row, ahead, step, lines)
    else:
        _score(z, token, head, q, rank, heads, tokens, s, row, ahead, step, lines)


@inlined
def _gathered(z, token, head, p, row, rank, heads, tokens, y):
    """The same of weighted sums, of so many tokens: a block at a time, the others one by one."""
    kind, t = rank if head == rank else 0, 0
    while t + TOGETHER <= tokens:
        at, weights = z + 4 * t * token, p + 4 * t * row
        if kind == 8:
            _gather12x8(at, token, head, weights, row, rank, heads, y)
        elif kind == 16:
            _gather12x16(at, token, head, weights, row, rank, heads, y)
        elif kind == 24:
            _gather12x24(at, token, head, weights, row, rank, heads, y)
        elif kind == 32:
            _gather12x32(at, token, head, weights, row, rank, heads, y)
        elif kind == 40:
            _gather12x40(at, token, head, weights, row, rank, heads, y)
        elif kind == 48:
            _gather12x48(at, token, head, weights, row, rank, heads, y)
        elif kind == 56:
            _gather12x56(at, token, head, weights, row, rank, heads, y)
        elif kind == 64:
            _gather12x64(at, token, head, weights, row, rank, heads, y)
        else:
            _gather12(at, token, head, weights, row, rank, heads, y)
        t += TOGETHER
    while t < tokens:
        _gather1(z + 4 * t * token, token, head, p + 4 * t * row, row, rank, heads, y)
        t += 1


@piece
def _soften(w, s, row, tokens, columns, state, ahead, ahead_row, lines):
    """Logits s[t, c], over log 2, become weights under the largest so far of their column; `state` has [columns] each
    of that, the sum of all weights, and what earlier ones are to be multiplied by; columns a multiple of 8. Every eight
    columns ask for so many lines of row t of `ahead`.
    """
    b, least, nothing = w.b, w.number(-125), w.number(-3e38)

    def larger(x, y):
        return w.where(">", x, y, x, y)

    def power(x):
        """2^x, 0 where that is next to nothing; NaN stays NaN."""
        return w.where("<", x, least, w.number(0), w.exp2(w.where("<", x, least, least, x)))

    def eight(c, _):
        top_at, total_at, factor_at = (w.at(state, (j, columns), c) for j in range(3))
        before = w.load(top_at)
        top = w.loop(tokens, lambda t, m: [larger(w.load(w.at(s, (t, row), c)), m[0])], [before])[0]
        level = w.where("<", top, nothing, w.number(0), top)  # no key seen yet: all weights are 0

        def weigh(t, total):
            ask(w, ahead, t, ahead_row, c, lines)
            here = w.at(s, (t, row), c)
            x = power(b.fsub(w.load(here), level))
            w.store(x, here)
            return [b.fadd(total[0], x)]

        factor = power(b.fsub(before, level))
        total = w.loop(tokens, weigh, [w.number(0)])[0]
        w.store(top, top_at)
        w.store(w.fma(w.load(total_at), factor, total), total_at)
        w.store(factor, factor_at)

    w.loop(columns, eight, step=LANES)


@piece
def _moved(w, x, n, y, padded):
    """y = x, n numbers, and zeros up to `padded`, a multiple of 8."""
    b = w.b
    whole = b.and_(n, w.integer(-LANES))
    w.loop(whole, lambda i, _: w.store(w.load(w.at(x, i)), w.at(y, i)), step=LANES)
    w.loop(b.sub(padded, whole), lambda i, _: w.store(w.number(0), w.at(y, b.add(i, whole))), step=LANES)

    def number(i, _):
        i = b.add(i, whole)
        w.put_number(w.number_at(w.at(x, i)), w.at(y, i))

    w.loop(b.sub(n, whole), number)


@piece
def _turned(w, x, y, cos, sin, planes, second, step):
    """The planes of a row, turned: plane i lies at i `step` and `second` numbers further. y may be x."""

    def number(i, _):
        first = w.b.mul(i, step)
        other = w.b.add(first, second)
        a, c = w.number_at(w.at(x, first)), w.number_at(w.at(x, other))
        u, v = w.number_at(w.at(cos, i)), w.number_at(w.at(sin, i))
        w.put_number(w.b.fsub(w.b.fmul(a, u), w.b.fmul(c, v)), w.at(y, first))
        w.put_number(w.b.fadd(w.b.fmul(a, v), w.b.fmul(c, u)), w.at(y, other))

    def eight(i, _):
        a, c = w.load(w.at(x, i)), w.load(w.at(x, i, second))
        u, v = w.load(w.at(cos, i)), w.load(w.at(sin, i))
        w.store(w.b.fsub(w.b.fmul(a, u), w.b.fmul(c, v)), w.at(y, i))
        w.store(w.fma(a, v, w.b.fmul(c, u)), w.at(y, i, second))

    in_eights = w.b.and_(
        w.b.icmp_signed("==", step, w.integer(1)), w.b.icmp_signed("==", w.b.and_(planes, w.integer(7)), w.integer(0))
    )
    w.loop(w.b.select(in_eights, planes, w.integer(0)), eight, step=LANES)
    w.loop(w.b.select(in_eights, w.integer(0), planes), number)


@piece
def _times(w, s, factors, n):
    """s = s times the factors, n numbers."""
    b = w.b
    whole = b.and_(n, w.integer(-LANES))
    w.loop(whole, lambda i, _: w.store(b.fmul(w.load(w.at(s, i)), w.load(w.at(factors, i))), w.at(s, i)), step=LANES)

    def number(i, _):
        i = b.add(i, whole)
        w.put_number(b.fmul(w.number_at(w.at(s, i)), w.number_at(w.at(factors, i))), w.at(s, i))

    w.loop(b.sub(n, whole), number)


@inlined
def _angles(positions, first, live, frequency, cos, sin):
    """Cosines and sines of a block, [live, planes]: by adding one step to the last ones where positions do."""
    planes = len(frequency)
    a, b, c1, s1 = np.empty(planes), np.empty(planes), np.cos(frequency), np.sin(frequency)
    for t in range(live):
        if t and positions[first + t] == positions[first + t - 1] + 1 and abs(positions[first + t]) < FAR:
            for i in range(planes):
                a[i], b[i] = a[i] * c1[i] - b[i] * s1[i], b[i] * c1[i] + a[i] * s1[i]
        else:
            for i in range(planes):
                angle = positions[first + t] * frequency[i]
                a[i], b[i] = math.cos(angle), math.sin(angle)
        for i in range(planes):
            cos[t, i], sin[t, i] = a[i], b[i]


@inlined
def _room(n):
    """float32 numbers that begin on a line, with whatever was there."""
    memory = np.empty(n + LINE, np.float32)
    start = -_at(memory) % (4 * LINE) // 4
    return memory[start : start + n]


class Desk(NamedTuple):
    """The memory that one part works on: queries and projected queries by lanes, a block of logits, and copies of a
    block's keys, values and latents where they are not read as they lie; cosines and sines.
    """

    qt: np.ndarray
    qb: np.ndarray
    logits: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    k_latents: np.ndarray
    v_latents: np.ndarray
    cos: np.ndarray
    sin: np.ndarray
    latent_cos: np.ndarray
    latent_sin: np.ndarray


@inlined
def _desk(z, q, projected):
    """A desk for queries [queries, heads, K], q B [heads, queries, R] laid on it, zeros beyond heads and ranks."""
    queries, columns, width = len(q), len(q) * z.lanes, z.K + -z.K % LANES
    qt, qb = _room(z.K * columns).reshape(z.K, queries, z.lanes), _room(columns * z.k_rank)
    qt[:], qb[:] = 0, 0
    for i in range(queries):
        for h in range(z.heads):
            qt[:, i, h] = q[i, h]
            at = (i * z.lanes + h) * z.k_rank
            qb[at : at + z.R] = projected[h, i]
    turned = BLOCK if z.turning else 0
    return Desk(
        qt,
        qb,
        _room(BLOCK * columns),
        _room((turned + LANES) * width).reshape(-1, width),
        _room(BLOCK * z.shared_copied * z.width),
        _room(BLOCK * z.k_copied * z.lanes * z.k_rank),
        _room(BLOCK * z.v_copied * z.lanes * z.v_rank),
        _room(turned * z.planes).reshape(turned, z.planes),
        _room(turned * z.planes).reshape(turned, z.planes),
        _room(turned * z.latent_planes).reshape(turned, z.latent_planes),
        _room(turned * z.latent_planes).reshape(turned, z.latent_planes),
    )


@inlined
def _copied(x, token, head, live, heads, rank, lanes, padded, desk):
    """Latents of a block, [token, head, rank], to where heads and ranks fill vectors; 0 beyond them."""
    for t in range(live):
        for h in range(heads):
            _moved(x + 4 * (t * token + h * head), rank, desk + 4 * (t * lanes + h) * padded, padded)
        for h in range(heads, lanes):
            _moved(x, 0, desk + 4 * (t * lanes + h) * padded, padded)


@inlined
def _share(width, columns):
    """How many lines of a row of so many numbers fall to each eight columns."""
    return (width // LINE * LANES + columns - 1) // columns


@inlined
def _expanded(z, desk, keys, latents, live, q, factor):
    """Logits of a block from keys made whole and turned, one head after another."""
    width, row = desk.keys.shape[1], len(q) * z.lanes
    whole, found, asked = _at(desk.keys), _room(LANES), _room(width)
    asked[:] = 0
    step, second = (2, 1) if z.interleaved else (1, z.planes)
    for h in range(z.heads):
        for t in range(live):
            _moved(keys + 4 * t * z.k_row, z.K, whole + 4 * t * width, width)
        if z.R:
            z_h, b_h = latents + 4 * h * z.k_head, _at(factor) + 4 * h * z.R * width
            multiply(z_h, z.k_token, 1, live, b_h, width, width, whole, width, z.R, 1, NOTHING, NOTHING)
        for t in range(live):
            here = whole + 4 * t * width
            _turned(here, here, _at(desk.cos[t]), _at(desk.sin[t]), z.planes, second, step)
        for i in range(len(q)):
            asked[: z.K] = q[i, h]
            for t in range(0, live, LANES):
                dots(whole + 4 * t * width, width, _at(asked), 0, width, _at(found))
                for j in range(min(LANES, live - t)):
                    desk.logits[(t + j) * row + i * z.lanes + h] = found[j]


@inlined
def _factored(z, desk, keys, latents, live, queries, values):
    """Logits of a block from shared keys and latents, turned on the way where they are to be."""
    columns, s, row, latent_at = queries * z.lanes, _at(desk.logits), z.k_row, latents
    if z.turning:
        width, (step, second) = desk.keys.shape[1], (2, 1) if z.interleaved else (1, z.planes)
        for t in range(live):
            here = _at(desk.keys[t])
            _moved(keys + 4 * t * z.k_row, z.K, here, width)
            _turned(here, here, _at(desk.cos[t]), _at(desk.sin[t]), z.planes, second, step)
        keys, row = _at(desk.keys), width
    token, head = z.k_token, z.k_head
    if z.k_copied:
        latents, head, token = _at(desk.k_latents), z.k_rank, z.lanes * z.k_rank
        _copied(latent_at, z.k_token, z.k_head, live, z.heads, z.R, z.lanes, z.k_rank, latents)
        step, second = (2, 1) if z.latent_interleaved else (1, z.latent_planes)
        for t in range(live if z.latent_planes else 0):
            for h in range(z.heads):
                here = latents + 4 * (t * token + h * head)
                _turned(here, here, _at(desk.latent_cos[t]), _at(desk.latent_sin[t]), z.latent_planes, second, step)
    # the block's latents are asked for during the product, its values during the dot products
    _multiplied(keys, row, 1, live, _at(desk.qt), columns, columns, s, columns, z.K, 0, latent_at, live * z.k_lines)
    for i in range(queries if z.R else 0):
        asked, here = _at(desk.qb) + 4 * i * z.lanes * z.k_rank, s + 4 * i * z.lanes
        lines = 0 if i else _share(z.V, z.lanes)
        _scored(latents, token, head, asked, z.k_rank, z.lanes, live, here, columns, values, z.v_row, lines)


@inlined
def _masked(z, desk, start, live, queries, newest, more, scales):
    """Logits of a block times the scales of its keys, -inf where a query does not see a key."""
    columns, s = queries * z.lanes, _at(desk.logits)
    for t in range(live if z.scales else 0):
        for i in range(queries):
            _times(s + 4 * (t * columns + i * z.lanes), scales + 4 * (start + t) * z.scales, z.heads)
    for i in range(queries):
        last = newest + (i if more else 0)
        for t in range(max(0, last - start), live):
            at = t * columns + i * z.lanes
            desk.logits[at : at + z.lanes] = -np.inf


@inlined
def _rescaled(z, factors, y_shared, y_latent):
    """Both sums of values, a column after the other, times the factors; most of these are 1."""
    for c in range(len(factors)):
        if factors[c] != 1:
            here, shared, latent = _at(factors) + 4 * c, _at(y_shared) + 4 * c * z.width, _at(y_latent)
            scaled(shared, here, shared, z.width)
            if z.Rv:
                scaled(latent + 4 * c * z.v_rank, here, latent + 4 * c * z.v_rank, z.v_rank)


@inlined
def _added(z, desk, values, latents, live, queries, y_shared, y_latent):
    """Values of a block, shared ones and latents, added to their sums by the weights that the logits have become."""
    columns, p, row, latent_at = queries * z.lanes, _at(desk.logits), z.v_row, latents
    if z.shared_copied:
        for t in range(live):
            _moved(values + 4 * t * z.v_row, z.V, _at(desk.values) + 4 * t * z.width, z.width)
        values, row = _at(desk.values), z.width
    to = _at(y_shared)
    _multiplied(p, 1, columns, columns, values, row, z.width, to, z.width, live, 1, latent_at, live * z.v_lines)
    token, head = z.v_token, z.v_head
    if z.v_copied:
        latents, head, token = _at(desk.v_latents), z.v_rank, z.lanes * z.v_rank
        _copied(latent_at, z.v_token, z.v_head, live, z.heads, z.Rv, z.lanes, z.v_rank, latents)
    for i in range(queries if z.Rv else 0):
        here = _at(y_latent) + 4 * i * z.lanes * z.v_rank
        _gathered(latents, token, head, p + 4 * i * z.lanes, columns, z.v_rank, z.lanes, live, here)


@inlined
def _found(z, columns, result):
    """(state [3, columns], sums of shared values, of latents) in one row of results."""
    values, latents = 3 * columns, (3 + z.width) * columns
    return result[:values], result[values:latents], result[latents : latents + columns * z.v_rank]


@inlined
def _part(z, places, first, end, newest, more, q, factor, positions, frequency, latent_frequency, desk, result):
    """One part."""
    k_shared, v_shared, k_latent, v_latent, scales = places
    queries, columns = len(q), len(q) * z.lanes
    state, y_shared, y_latent = _found(z, columns, result)
    state[:columns], state[columns:], y_shared[:], y_latent[:] = -np.inf, 0, 0, 0
    for start in range(first, end, BLOCK):
        live = min(BLOCK, end - start)
        keys, values = k_shared + 4 * start * z.k_row, v_shared + 4 * start * z.v_row
        k_latents, v_latents = k_latent + 4 * start * z.k_token, v_latent + 4 * start * z.v_token
        if z.turning:
            _angles(positions, start, live, frequency, desk.cos, desk.sin)
        if z.latent_planes:
            _angles(positions, start, live, latent_frequency, desk.latent_cos, desk.latent_sin)
        if z.turning == 2:
            _expanded(z, desk, keys, k_latents, live, q, factor)
        else:
            _factored(z, desk, keys, k_latents, live, queries, values)
        _masked(z, desk, start, live, queries, newest, more, scales)
        later, lines = keys + 4 * BLOCK * z.k_row, _share(z.K, columns)  # the next keys, asked for meanwhile
        _soften(_at(desk.logits), columns, live, columns, _at(state), later, z.k_row, lines)
        _rescaled(z, state[2 * columns :], y_shared, y_latent)
        _added(z, desk, values, v_latents, live, queries, y_shared, y_latent)


@compiled
def _parts(z, places, cuts, newest, more, q, projected, whole_factor, positions, frequency, latent_frequency, results):
    """Parts of the keys for the queries of one tile, q [queries, heads, K] and q B [heads, queries, R]; part n has keys
    from cuts[n] to before cuts[n + 1]. A row of `results` for each part: maximum and denominator of the softmax and the
    two sums of values, before B_h.

    `places` are where shared keys, shared values, latents of keys, of values, and scales of this row and group begin.
    The first query sees keys before `newest`, and each later one, where `more`, one key more.
    """
    desk = _desk(z, q, projected)
    for n in range(len(results)):
        _part(z, places, cuts[n], cuts[n + 1], newest, more, q, whole_factor, positions, frequency, latent_frequency,
              desk, results[n])  # fmt: skip


@compiled
def _merged(z, results, out, lse, latent):
    """Parts of one tile, a row of results each, as one softmax: o [queries, heads, V] without what latents add, lse,
    and the latents [heads, queries, Rv] to which B_h is to be applied.
    """
    queries, heads, V = out.shape
    columns = queries * z.lanes
    for i in range(queries):
        for h in range(heads):
            c = i * z.lanes + h
            top, total = -np.inf, 0.0
            for n in range(len(results)):
                top = results[n, c] if not results[n, c] <= top else top  # NaN stays
            out[i, h], latent[h, i] = 0, 0
            if top == -np.inf:
                lse[i, h] = top
                continue
            for n in range(len(results)):
                total += results[n, columns + c] * 2.0 ** (results[n, c] - top)
            for n in range(len(results)):
                _, shared, latents = _found(z, columns, results[n])
                share = np.float32(2.0 ** (results[n, c] - top) / total)
                out[i, h] += share * shared[c * z.width : c * z.width + V]
                latent[h, i] += share * latents[c * z.v_rank : c * z.v_rank + z.Rv]
            lse[i, h] = (top + math.log2(total)) / LOG2E


# -- a call --


class Tile(NamedTuple):
    """Queries of one row and group that read together. Their keys are read in parts, of which each begins at one of
    `cuts` and ends before the next. The first query sees keys before `newest`, and each later one, where `more`, one
    key more.
    """

    row: int
    group: int
    heads: slice
    queries: slice
    cuts: np.ndarray
    newest: int
    more: bool


class Call:
    """Arrays of a call as `attention` takes them, and how they are read."""

    def __init__(self, q, residual, cache, k_factor, v_factor, turning, at):
        k_shared, v_shared, k_latent, v_latent, k_scale = cache
        (_, T, H, K), (_, _, G, V) = q.shape, v_shared.shape
        heads, R, Rv = H // G, k_latent.shape[-1], v_latent.shape[-1]
        lanes, self.at = up(heads), at
        rope, latent_rope = turning or (None, None)
        whole = rope is not None and latent_rope is None  # keys are made whole, then turned
        self.frequency, self.latent_frequency = (
            np.zeros(0) if x is None else np.asarray(x.frequency, np.float64) for x in (rope, latent_rope)
        )
        strides = [[step // 4 for step in x.strides] for x in (k_shared, v_shared, k_latent, v_latent)]
        (_, k_row, _, _), (_, v_row, _, _), (_, k_token, k_head, _), (_, v_token, v_head, _) = strides
        self.z = Sizes(
            heads, lanes, K, V, up(V), R, Rv, up(R), up(Rv), k_row, v_row, k_token, k_head, v_token, v_head,
            k_lines=heads * R // LINE if k_token == heads * R and k_head == R else 0,
            v_lines=heads * Rv // LINE if v_token == heads * Rv and v_head == Rv else 0,
            k_copied=int(bool(R % LANES or heads % LANES or len(self.latent_frequency))),
            v_copied=int(bool(Rv % LANES or heads % LANES)),
            shared_copied=int(bool(V % LANES)),
            scales=0 if k_scale is None else k_scale.strides[1] // 4,
            turning=0 if rope is None else 1 + whole,
            planes=len(self.frequency),
            latent_planes=len(self.latent_frequency),
            interleaved=int(rope is not None and rope.layout == "interleaved"),
            latent_interleaved=int(latent_rope is not None and latent_rope.layout == "interleaved"),
        )  # fmt: skip
        self.tile = max(1, min(T, COLUMNS // max(lanes, 1)))
        self.q, self.residual, self.k_factor, self.v_factor = q, residual, k_factor, v_factor
        self.cache = cache
        self.whole_factor = np.zeros((H, R if whole else 0, up(K)), np.float32)
        if whole:
            self.whole_factor[:, :, :K] = k_factor.transpose(0, 2, 1)

    def results(self, tile):
        """Room for what the parts of a tile find, a row each."""
        columns = (tile.queries.stop - tile.queries.start) * self.z.lanes
        return aligned(len(tile.cuts) - 1, columns * (3 + self.z.width + self.z.v_rank), fill=False)

    def reader(self, tile, results):
        """What reads parts of a tile, from one to before another, into their rows of its results."""
        q, residual = (x[tile.row, tile.queries, tile.heads] for x in (self.q, self.residual))
        projected = residual.transpose(1, 0, 2) @ self.k_factor[tile.heads]
        places, keys = self._places(tile), (tile.newest, int(tile.more))
        turning = self.whole_factor[tile.heads], self.at[tile.row], self.frequency, self.latent_frequency

        def read(first, end):
            _parts(self.z, places, tile.cuts[first : end + 1], *keys, q, projected, *turning, results[first:end])

        return read

    def merge(self, tile, results, out, lse):
        """Write what the parts of a tile found to where it belongs in o [B, T, H, V] and lse [B, T, H]."""
        where = tile.row, tile.queries, tile.heads
        heads, queries = tile.heads.stop - tile.heads.start, tile.queries.stop - tile.queries.start
        latent = np.empty((heads, queries, self.z.Rv), np.float32)
        _merged(self.z, results, out[where], lse[where], latent)
        if self.z.Rv:
            out[where] += (latent @ self.v_factor[tile.heads].mT).transpose(1, 0, 2)

    def _places(self, tile):
        k_shared, v_shared, k_latent, v_latent, k_scale = self.cache
        group, head = tile.group, tile.heads.start
        heads = (k_shared, group), (v_shared, group), (k_latent, head), (v_latent, head), (k_scale, head)
        return tuple(
            np.int64(0 if x is None or not x.size else address(x) + tile.row * x.strides[0] + head * x.strides[2])
            for x, head in heads
        )


def attention(
    q, q_residual, k_shared, v_shared, k_latent, v_latent, k_factor, v_factor, *, k_scale, turning, positions, starts,
    ends, causal, threads,
):  # fmt: skip
    """(o [B, T, H, V], lse [B, T, H]), float32. All arrays are float32, latents and factors perhaps of rank 0; queries
    are times scale and LOG2E already. `turning` is None or (rope, latent_rope), the latter None where keys are made
    whole; positions are float64 [B, S], starts and ends int64 [B]. Nothing is checked, and tokens outside of starts and
    ends are not read.
    """
    (B, T, H, _), (_, S, G, V) = q.shape, v_shared.shape
    out, lse = np.zeros((B, T, H, V), np.float32), np.full((B, T, H), -np.inf, np.float32)
    if not (B and T and H and S):
        return out, lse
    k_shared, v_shared, k_latent, v_latent = (steady(x) for x in (k_shared, v_shared, k_latent, v_latent))
    cache = k_shared, v_shared, k_latent, v_latent, None if k_scale is None else steady(k_scale)
    call, tiles = Call(q, q_residual, cache, k_factor, v_factor, turning, positions), []
    for b, g, t in np.ndindex(B, G, -(-T // call.tile)):
        queries = slice(t * call.tile, min((t + 1) * call.tile, T))
        newest = int(ends[b]) - (T - 1 - queries.start if causal else 0)
        last = newest + (queries.stop - queries.start - 1 if causal else 0)
        if last > starts[b]:
            heads = slice(g * call.z.heads, (g + 1) * call.z.heads)
            tiles.append(Tile(b, g, heads, queries, _cuts(int(starts[b]), last), newest, causal))
    for n in range(0, len(tiles), threads * AT_ONCE):
        some = tiles[n : n + threads * AT_ONCE]
        results = [call.results(tile) for tile in some]
        readers = list(map(call.reader, some, results))

        def run(share, readers=readers):
            for tile, first, end in share:
                readers[tile](first, end)

        on_threads(run, _shares([tile.cuts for tile in some], threads))
        for tile, found in zip(some, results, strict=True):
            call.merge(tile, found, out, lse)
    return out, lse


def _cuts(first, last):
    """Where the parts of these keys begin, and where the last one ends. They hang on the number of keys alone, so that
    the same sums are made whatever else is read, and by however many threads.
    """
    size = max(LONG, BLOCK * -(-(last - first) // (BLOCK * MOST_PARTS)))
    return np.array([*range(first, last, size), last])


def _shares(cuts, threads):
    """What each thread reads: lists of (tile, first part, end), parts of about as many keys for all."""
    shares: list[list[tuple[int, int, int]]] = [[] for _ in range(threads)]
    total, before = sum(int(keys[-1] - keys[0]) for keys in cuts), 0
    for tile, keys in enumerate(cuts):
        owners = [min(threads * (before + int(key - keys[0])) // max(total, 1), threads - 1) for key in keys[:-1]]
        for owner in sorted(set(owners)):
            first = owners.index(owner)
            shares[owner].append((tile, first, first + owners.count(owner)))
        before += int(keys[-1] - keys[0])
    return [share for share in shares if share]
