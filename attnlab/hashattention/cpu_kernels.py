"""HashAttention on a CPU: codes made, scanned and selected from, and the selected rows attended to, for `numba_impl`.

What it changes from the reference:
    distances      one byte a key (two beyond 224 bits); of 64 keys at a time, of 16 up to 64 bits, of 8 up to 256 bits
                   and at 512; other codes key by key
    few of many    nothing is sorted: the first keys give a threshold, which falls while the others stream by, and only
                   the rare key below it is looked at; it goes into the list of its distance, so that equals stay in the
                   order of tokens
    many           the threshold is found by halving, each step one count of the bytes below it; then one walk writes
                   the tokens below it and, of those at it, the first ones: they come out in rising order
    attention      reads rows where they lie, 64 selected tokens at a time, with the softmax carried along; the next
                   rows are asked for while these are multiplied. Nothing is gathered into a buffer
    one query      the keys are shared out to threads, each of which attends to what it found; parts are merged by the
                   logarithm of their denominators

The ladder, in nanoseconds a key of one query at 32 bits, the 64 nearest of a million, one core of an EPYC with AVX-512,
where faiss takes 0.86 (counting) and 0.99 (heap):
    0.046    distances alone, into a block that is overwritten; 0.058 written out
    0.063    a threshold that falls from above, blocks of 1,024 keys whose smallest distance is compared first
    0.059    64 keys at a time; a first threshold from 16,384 keys; blocks of 2,048
    0.083    through the door, which plans the call and makes its memory
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from attnlab.hashattention import scan
from attnlab.hashattention.params import tokens_of, words
from attnlab.lanes import (
    LANES,
    NOTHING,
    address,
    aligned,
    compiled,
    inlined,
    multiply,
    piece,
    scaled,
    steady,
    stride,
    up,
)

__all__ = ["LARGEST_WORDS", "LOG2E", "Call", "Prepared", "Sizes", "attention", "distances", "encode", "select"]

LARGEST_WORDS = 2047  # of a code: distances fit two bytes, and the mark beyond the last key is above all of them
SHORT_WORDS = 7  # up to which a distance, and that mark, fit a byte
START, BLOCK = 16384, 2048  # keys that give a first threshold; and whose smallest distance is compared at once
RARE = 400  # so many keys for each one wanted: then they stream
MOST_LISTED = 2**18  # places in the lists of a stream
TILE = 64  # selected tokens between two looks at the softmax's maximum
ROWS = 64  # rows that maps are applied to at once
LONG = 2**20  # keys from which on one query is shared out to threads
BUSY = 2**16  # keys and selected tokens in all from which on queries are

LOG2E = 1.4426950408889634


class Sizes(NamedTuple):
    """Of a call: how many bytes a distance has, words of a code; K and V, the strides of rows of keys and values in
    numbers.
    """

    bytes: int
    words: int
    K: int
    V: int
    k_row: int
    v_row: int


@inlined
def _at(x):
    """Where an array begins."""
    return np.int64(x.ctypes.data)


# -- choosing --


@inlined
def _measure(z, codes, query, n, to):
    """Distances of n keys, and the smallest."""
    smallest, whole = 65535, n // 8 * 8
    if z.words == 1:
        whole = n // 64 * 64
        smallest = scan.singles8(codes, query, whole, to)
    elif z.words == 2:
        whole = n // 16 * 16
        smallest = scan.pairs8(codes, query, whole, to)
    elif z.words == 3:
        smallest = scan.grouped3(codes, query, whole, to)
    elif z.words == 4:
        smallest = scan.grouped4(codes, query, whole, to)
    elif z.words == 5:
        smallest = scan.grouped5(codes, query, whole, to)
    elif z.words == 6:
        smallest = scan.grouped6(codes, query, whole, to)
    elif z.words == 7:
        smallest = scan.grouped7(codes, query, whole, to)
    elif z.words == 8:
        smallest = scan.grouped8(codes, query, whole, to)
    elif z.words == 16:
        smallest = scan.grouped16(codes, query, whole, to)
    else:
        whole = 0
    step = 4 * z.words
    if whole < n:
        rest, left, there = codes + whole * step, n - whole, to + whole * z.bytes
        if z.bytes == 2:
            smallest = min(smallest, scan.distances16(rest, step, query, z.words, left, there))
        else:
            smallest = min(smallest, scan.distances8(rest, step, query, z.words, left, there))
    return smallest


@inlined
def _below(z, far, i, threshold):
    if z.bytes == 2:
        return scan.below16(far + 2 * i, threshold)
    return scan.below8(far + i, threshold)


@inlined
def _next_below(z, far, i, n, threshold):
    if z.bytes == 2:
        return scan.next_below16(far, i, n, threshold)
    return scan.next_below8(far, i, n, threshold)


@inlined
def _count_below(z, far, n, threshold):
    if z.bytes == 2:
        return scan.count_below16(far, n, threshold)
    return scan.count_below8(far, n, threshold)


@inlined
def _close(z, far, n):
    """Mark what stands after the last distance, up to a whole group: further than any key."""
    for i in range(n * z.bytes, (n + -n % scan.GROUP) * z.bytes):
        far[i] = 255


@compiled
def _threshold(z, far, n, m, smallest):
    """The distance up to which at least m of n keys lie, the smallest such, and how many lie below it."""
    low, high, below, end = smallest, 32 * z.words, 0, n + -n % scan.GROUP
    while low < high:
        middle = (low + high) // 2
        count = _count_below(z, far, end, middle + 1)
        if count >= m:
            high = middle
        else:
            low, below = middle + 1, count
    return low, below


@compiled
def _stream(z, codes, query, first, n, m, far, counts, lists, chosen):
    """The m nearest of n keys into `chosen`, rising; `first` is the number of the first one."""
    highest, at = 32 * z.words, _at(far)
    counts[: highest + 1] = 0
    threshold, have = highest + 1, 0  # keys below the threshold are wanted, and so many are listed
    start = 0
    while start < n:
        live = min(BLOCK if start else START, n - start)
        smallest = _measure(z, codes + 4 * z.words * start, query, live, at)
        end = live + -live % scan.GROUP
        if smallest < threshold:
            _close(z, far, live)
            if start == 0:  # what the first keys hold bounds what all hold
                threshold = _threshold(z, at, live, m, smallest)[0] + 1
            group = _next_below(z, at, 0, end, threshold)
            while group < end:
                mask = _below(z, at, group, threshold)
                while mask:
                    i = group + scan.first_bit(mask)
                    mask &= mask - 1
                    distance = far[2 * i] + 256 * far[2 * i + 1] if z.bytes == 2 else np.int64(far[i])
                    if distance < threshold:
                        lists[distance * m + counts[distance]] = first + start + i
                        counts[distance] += 1
                        have += 1
                        while have >= m:
                            threshold -= 1
                            have -= counts[threshold]
                group = _next_below(z, at, group + scan.GROUP, end, threshold)
        start += live
    written = 0
    for distance in range(min(threshold, highest) + 1):
        for j in range(min(counts[distance], m - written)):
            chosen[written] = lists[distance * m + j]
            written += 1
    chosen[:written].sort()


@compiled
def _compact(z, far, first, n, threshold, equals, chosen):
    """The numbers of the keys below the threshold and of the first so many at it, rising; how many there are."""
    written = 0
    for group in range(0, n, scan.GROUP):
        mask = _below(z, far, group, threshold)
        if equals:
            at = _below(z, far, group, threshold + 1) & ~mask
            while equals and at:
                mask |= at & -at
                at &= at - 1
                equals -= 1
        while mask:
            chosen[written] = first + group + scan.first_bit(mask)
            written += 1
            mask &= mask - 1
    return written


@inlined
def _middle(n, sinks, window):
    """Where the candidates start and end between the fixed windows."""
    start = min(sinks, n)
    return start, max(start, n - window)


@inlined
def _streams(left, m, W):
    """Whether so few of these candidates are wanted that they stream by."""
    return m < left and left >= RARE * m and (32 * W + 1) * m <= MOST_LISTED


@compiled
def _choose(z, query, codes, n, m, sinks, window, far, counts, lists, chosen):
    """The set of one query over n keys, rising; how many there are."""
    start, end = _middle(n, sinks, window)
    chosen[:start] = np.arange(start)
    size, left, at = start, end - start, _at(far)
    if m >= left:
        chosen[start:end] = np.arange(start, end)
        size = end
    elif m > 0:
        here = codes + 4 * z.words * start
        if _streams(left, m, z.words):
            _stream(z, here, query, start, left, m, far, counts, lists, chosen[start:])
        else:
            smallest = _measure(z, here, query, left, at)
            _close(z, far, left)
            threshold, below = _threshold(z, at, left, m, smallest)
            _compact(z, at, start, left, threshold, m - below, chosen[start:])
        size += m
    chosen[size : size + n - end] = np.arange(end, n)
    return size + n - end


# -- attending --


@piece
def _row_dots(w, x, row, chosen, y, n, out):
    """out[t] = x[chosen[t]] . y for eight tokens."""
    b = w.b
    places = [w.at(x, (w.integer_at(w.at(chosen, 2 * t)), row)) for t in range(LANES)]
    whole = b.and_(n, w.integer(-LANES))

    def term(i, sums):
        asked = w.load(w.at(y, i))
        return [w.fma(w.load(w.at(place, i)), asked, x) for place, x in zip(places, sums, strict=True)]

    def rest(i, sums):
        i = b.add(i, whole)
        asked = w.number_at(w.at(y, i))
        return [
            b.fadd(x, w.alone(b.fmul(w.number_at(w.at(place, i)), asked)))
            for place, x in zip(places, sums, strict=True)
        ]

    sums = w.loop(whole, term, [w.number(0)] * LANES, step=LANES)
    w.store(w.sums(w.loop(b.sub(n, whole), rest, sums)), out)


def _row_sums(vectors: int) -> Any:
    @piece
    def sums(w, x, row, chosen, weights, n, y):
        """y += the sum of weights[t] x[chosen[t]] over n tokens, so many vectors wide."""

        def term(t, sums):
            place = w.at(x, (w.integer_at(w.at(chosen, (t, 2))), row))
            weight = w.spread(w.at(weights, t))
            return [w.fma(weight, w.load(w.at(place, LANES * j)), s) for j, s in enumerate(sums)]

        total = w.loop(n, term, [w.load(w.at(y, LANES * j)) for j in range(vectors)])
        for j, s in enumerate(total):
            w.store(s, w.at(y, LANES * j))

    return sums


_sums8, _sums4, _sums1 = (_row_sums(vectors) for vectors in (8, 4, 1))


@piece
def _rest_sums(w, x, row, chosen, weights, n, y, columns):
    """The same, a column after the other, for those that fill no vector."""
    b = w.b

    def column(c, _):
        def term(t, sums):
            place = w.at(x, (w.integer_at(w.at(chosen, (t, 2))), row), c)
            return [b.fadd(sums[0], b.fmul(w.number_at(w.at(weights, t)), w.number_at(place)))]

        here = w.at(y, c)
        w.put_number(w.loop(n, term, [w.number_at(here)])[0], here)

    w.loop(columns, column)


@piece
def _ask(w, x, row, chosen, n, lines):
    """Ask for so many cache lines of n rows."""

    def token(t, _):
        place = w.at(x, (w.integer_at(w.at(chosen, (t, 2))), row))
        w.loop(lines, lambda line, _: w.prefetch(w.at(place, (line, 16))))

    w.loop(n, token)


@piece
def _soften(w, s, n, state):
    """Logits s[n], over log 2, become weights under the largest so far; `state` holds that, the sum of all weights, and
    what earlier ones are to be multiplied by, a vector of equal numbers each; n a multiple of 8.
    """
    b, least = w.b, w.number(-125)
    before = w.load(state)

    def larger(x, y):
        return w.where(">", x, y, x, y)

    def power(x):
        """2^x, 0 where that is next to nothing; NaN stays NaN."""
        return w.where("<", x, least, w.number(0), w.exp2(w.where("<", x, least, least, x)))

    top = w.across(w.loop(n, lambda i, m: [larger(w.load(w.at(s, i)), m[0])], [before], step=LANES)[0], larger)

    def weigh(i, total):
        x = power(b.fsub(w.load(w.at(s, i)), top))
        w.store(x, w.at(s, i))
        return [b.fadd(total[0], x)]

    factor = power(b.fsub(before, top))
    total = w.across(w.loop(n, weigh, [w.number(0)], step=LANES)[0], b.fadd)
    w.store(top, state)
    w.store(w.fma(w.load(w.at(state, LANES)), factor, total), w.at(state, LANES))
    w.store(factor, w.at(state, 2 * LANES))


@compiled
def _attend(z, q, k, v, chosen, size, logits, state, y):
    """The softmax over `size` tokens of q, which is scaled by log2 e too: y holds the weighted sum of values, `state`
    the maximum and the denominator.
    """
    state[:LANES], state[LANES:], y[:] = -np.inf, 0, 0
    s, tokens, to, at = _at(logits), _at(chosen), _at(y), _at(state)
    k_lines, v_lines = (z.K + 15) // 16 + 1, (z.V + 15) // 16 + 1
    if size == 0:
        return
    chosen[size : size + -size % LANES] = chosen[size - 1]  # read again, and without weight
    _ask(k, z.k_row, tokens, min(TILE, size), k_lines)
    for start in range(0, size, TILE):
        live, here = min(TILE, size - start), tokens + 8 * start
        whole = live + -live % LANES
        _ask(v, z.v_row, here, live, v_lines)
        for t in range(0, whole, LANES):
            _row_dots(k, z.k_row, here + 8 * t, q, z.K, s + 4 * t)
        logits[live:whole] = -np.inf
        _soften(s, whole, at)
        scaled(to, at + 8 * LANES, to, z.V)
        _ask(k, z.k_row, here + 8 * live, min(TILE, size - start - live), k_lines)
        column = 0
        while column + 64 <= z.V:
            _sums8(v + 4 * column, z.v_row, here, s, live, to + 4 * column)
            column += 64
        while column + 32 <= z.V:
            _sums4(v + 4 * column, z.v_row, here, s, live, to + 4 * column)
            column += 32
        while column + 8 <= z.V:
            _sums1(v + 4 * column, z.v_row, here, s, live, to + 4 * column)
            column += 8
        _rest_sums(v + 4 * column, z.v_row, here, s, live, to + 4 * column, z.V - column)


@compiled
def _outputs(jobs, z, q, far, counts, lists, chosen, logits, state, y, out, lse):
    """Queries, one after another. A job is (place, n, m, sinks, window, where the query's code, the keys' codes, and
    the first row of keys and values are).
    """
    for j in range(len(jobs)):
        place, n, m, sinks, window, query, codes, k, v = jobs[j]
        size = _choose(z, query, codes, n, m, sinks, window, far, counts, lists, chosen)
        if size == 0:
            out[place], lse[place] = 0, -np.inf
        else:
            _attend(z, _at(q[place]), k, v, chosen, size, logits, state, y)
            out[place] = y[: z.V] / state[LANES]
            lse[place] = (state[0] + np.log2(state[LANES])) / LOG2E


@compiled
def _sets(jobs, z, far, counts, lists, chosen, sets):
    """The sets alone."""
    for j in range(len(jobs)):
        place, n, m, sinks, window, query, codes, _, _ = jobs[j]
        size = _choose(z, query, codes, n, m, sinks, window, far, counts, lists, chosen)
        sets[place, :size] = chosen[:size]


# -- one query, its keys shared out --


@compiled
def distances(z, query, codes, far, first, n):
    """Distances of n candidates from `first` on into their place; the smallest."""
    return _measure(z, codes + 4 * z.words * first, query, n, _at(far) + first * z.bytes)


@compiled
def _part_counts(z, far, first, n, threshold):
    """How many of these candidates lie below the threshold; of the last part the mark follows."""
    return _count_below(z, _at(far) + first * z.bytes, n + -n % scan.GROUP, threshold)


@compiled
def _part_attends(z, far, first, n, offset, threshold, equals, before, after, q, k, v, chosen, logits, state, y):
    """Attend to those of these candidates that are in the set, and to the tokens from 0 to `before` and from `after[0]`
    to `after[1]`; how many that are.
    """
    size = before
    chosen[:before] = np.arange(before)
    if threshold + equals > 0:
        size += _compact(z, _at(far) + first * z.bytes, offset + first, n, threshold, equals, chosen[size:])
    end = size + after[1] - after[0]
    chosen[size:end] = np.arange(after[0], after[1])
    _attend(z, _at(q), k, v, chosen, end, logits, state, y)
    return end


# -- maps --


@piece
def _activated(w, x, bias, n):
    """SiLU(x + bias) in place of x, n a multiple of 8: h + h tanh(h) with h half of the sum."""
    b, half = w.b, w.number(0.5)

    def some(i, _):
        here = w.at(x, i)
        h = b.fmul(b.fadd(w.load(here), w.load(w.at(bias, i))), half)
        w.store(w.fma(h, w.tanh(h), h), here)

    w.loop(n, some, step=LANES)


@compiled
def _encoded(jobs, x_token, maps, last, row, first, second, codes):
    """Jobs are (head, where its first row is, the place of that row's code, the step from code to code, rows). A layer
    is (inputs, outputs, where its weights and biases are, the stride of its rows); the last one fills whole words, and
    `last` are its biases.
    """
    desks, layers = (_at(first), _at(second)), maps.shape[1]
    for j in range(len(jobs)):
        head, a, place, step, rows = jobs[j]
        a_row, to = x_token, desks[0]
        for n in range(layers):
            inputs, outputs, weights, biases, w_row = maps[head, n]
            to = desks[n % 2]
            multiply(a, a_row, 1, rows, weights, w_row, outputs, to, row, inputs, 0, NOTHING, NOTHING)
            if n < layers - 1:
                for r in range(rows):
                    _activated(to + 4 * r * row, biases, outputs)
            a, a_row = to, row
        found = second if layers % 2 == 0 else first
        for r in range(rows):
            for w in range(codes.shape[1]):
                word = np.uint32(0)
                for i in range(32):
                    if found[r, 32 * w + i] + last[head, 32 * w + i] > 0:
                        word |= np.uint32(1) << np.uint32(i)
                codes[place + r * step, w] = word


class Prepared:
    """Maps as the kernels take them: float32, rows of whole vectors. Bits beyond the last are those of 0."""

    def __init__(self, maps):
        (heads, self.width, _), self.layers = np.shape(maps[0][0]), len(maps[0])
        self.bits = np.shape(maps[1][-1])[-1]
        self.kept, table = [], np.zeros((heads, self.layers, 5), np.int64)
        for n, (weight, bias) in enumerate(zip(*maps, strict=True)):
            inputs, outputs = np.shape(weight)[1:]
            room = up(outputs) if n < self.layers - 1 else 32 * words(outputs)
            w, b = aligned(heads, inputs, stride(room)), aligned(heads, room)
            w[..., :outputs], b[:, :outputs] = weight, bias
            self.kept += [w, b]
            table[:, n, :2] = inputs, room
            table[:, n, 2] = address(w) + 4 * inputs * stride(room) * np.arange(heads)
            table[:, n, 3] = address(b) + 4 * room * np.arange(heads)
            table[:, n, 4] = stride(room)
        self.table, self.last, self.row = table, self.kept[-1], stride(int(table[..., 1].max(initial=1)))


def encode(x, maps, *, threads):
    """The codes of x [B, T, H, K], float32: uint32 [B, T, H, W]. `maps` are Prepared. Nothing is checked."""
    x = steady(x)
    (B, T, H, _), W = x.shape, words(maps.bits)
    codes = np.zeros((B * T * H, W), np.uint32)
    batch, token, head = (step // 4 for step in x.strides[:3])
    starts = np.arange(0, T, ROWS)
    b, h, t = (i.ravel() for i in np.meshgrid(np.arange(B), np.arange(H), starts, indexing="ij"))
    at = address(x) + 4 * (b * batch + t * token + h * head)
    step = np.full_like(b, H)
    jobs = np.stack([h, at, (b * T + t) * H + h, step, np.minimum(ROWS, T - t)], axis=1).astype(np.int64)

    def run(share):
        desk = aligned(2, min(ROWS, T), maps.row)
        _encoded(share, token, maps.table, maps.last, maps.row, desk[0], desk[1], codes)

    _each(run, jobs, threads if B * T * H >= 4 * ROWS else 1)
    return codes.reshape(B, T, H, W)


# -- a call --


class Desk:
    """The memory that one thread works on: distances of so many keys, lists of a stream, and a set of such a size."""

    def __init__(self, z, keys, listed, largest):
        self.far = np.empty(z.bytes * (keys + 2 * scan.GROUP), np.uint8)
        self.counts = np.empty(32 * z.words + 2, np.int64)
        self.lists = np.empty(listed, np.int64)
        self.chosen = np.empty(largest + LANES, np.int64)
        self.logits, self.state, self.y = (np.empty(n, np.float32) for n in (TILE, 3 * LANES, up(z.V)))


class Call:
    """What `_outputs` and `_sets` are to do, a row of `jobs` for each query and head; `k` and `v`, where rows are to be
    read, are float32 in one piece.
    """

    def __init__(self, query_codes, key_codes, *, budget, sinks, window, causal, k=None, v=None):
        (B, T, H, W), S = query_codes.shape, key_codes.shape[1]
        self.query_codes = np.ascontiguousarray(query_codes)
        dense = key_codes.strides[3] == 4 and key_codes.strides[1] == 4 * W
        # the codes of a head, one after another
        self.key_codes = key_codes if dense or not key_codes.size else _by_heads(key_codes)
        K, k_row = (0, 0) if k is None else (k.shape[3], k.strides[1] // 4)
        V, v_row = (0, 0) if v is None else (v.shape[3], v.strides[1] // 4)
        self.z = Sizes(1 + (W > SHORT_WORDS), W, K, V, k_row, v_row)
        self.keys, self.shape = S, (B, T, H)
        visible = range(S - T + 1, S + 1) if causal else [S] * T
        sizes = [(n, *(tokens_of(size, n) for size in (budget, sinks, window))) for n in visible]
        places = [_heads(x) for x in (self.key_codes, k, v)]
        self.jobs = np.empty((B * T * H, 9), np.int64)
        plan = np.array(sizes, np.int64).reshape(T, 4)
        room = _plan(self.jobs, B, T, H, plan, address(self.query_codes), W, *places)
        self.counted, self.listed, self.largest, self.work = room

    def desk(self):
        """Memory for one thread."""
        return Desk(self.z, self.counted, self.listed, self.largest)

    def choose(self, jobs, desk, sets):
        """The sets of these jobs, each into its row of `sets` [B T H, N]."""
        _sets(jobs, self.z, desk.far, desk.counts, desk.lists, desk.chosen, sets)


def _heads(x):
    """Where an array [B, S, heads, ...] begins, its strides of batch and heads in bytes, and how many heads it has."""
    return (0, 0, 0, 1) if x is None else (address(x), x.strides[0], x.strides[2], x.shape[2])


@compiled
def _plan(jobs, B, T, H, sizes, query, W, codes, k, v):
    """Fill the jobs, see `_outputs`; (keys whose distances are kept, places in the lists of a stream, the size of the
    largest set, keys that are scanned in all).
    """
    counted, listed, largest, work, place = START, 0, 0, 0, 0
    for b in range(B):
        for t in range(T):
            n, m, sinks, window = sizes[t]
            start, end = _middle(n, sinks, window)
            left = end - start
            largest, work = max(largest, start + min(m, left) + n - end), work + H * n
            if _streams(left, m, W):
                listed = max(listed, (32 * W + 1) * m)
            elif m < left:
                counted = max(counted, left)
            for h in range(H):
                jobs[place, 0], jobs[place, 5] = place, query + 4 * W * place
                jobs[place, 1], jobs[place, 2], jobs[place, 3], jobs[place, 4] = n, m, sinks, window
                jobs[place, 6] = codes[0] + b * codes[1] + h * codes[3] // H * codes[2]
                jobs[place, 7] = k[0] + b * k[1] + h * k[3] // H * k[2]
                jobs[place, 8] = v[0] + b * v[1] + h * v[3] // H * v[2]
                place += 1
    return counted, listed, largest, work


def _by_heads(codes):
    return np.ascontiguousarray(codes.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)


def select(query_codes, key_codes, *, budget, sinks, window, causal, threads):
    """The set of every query, int64 [B, T, H, N], -1 after the last; codes are uint32. Nothing is checked."""
    call = Call(query_codes, key_codes, budget=budget, sinks=sinks, window=window, causal=causal)
    sets = np.full((len(call.jobs), call.largest), -1)
    _each(lambda jobs: call.choose(jobs, call.desk(), sets), call.jobs, threads if call.work >= BUSY else 1)
    return sets.reshape(*call.shape, call.largest)


def attention(q, k, v, query_codes, key_codes, *, budget, sinks, window, causal, threads):
    """(o [B, T, H, V], lse [B, T, H]); q, k, v are float32, q times scale and LOG2E already, codes uint32. Nothing is
    checked, and rows of k and v that are in no set are not read.
    """
    k, v = steady(k), steady(v)
    call = Call(query_codes, key_codes, budget=budget, sinks=sinks, window=window, causal=causal, k=k, v=v)
    B, T, H = call.shape
    q = np.ascontiguousarray(q).reshape(B * T * H, q.shape[-1])
    out, lse = np.zeros((len(call.jobs), v.shape[-1]), np.float32), np.zeros(len(call.jobs), np.float32)
    if len(call.jobs) < threads and call.keys >= LONG:
        with ThreadPoolExecutor(threads) as pool:
            for job in call.jobs.tolist():
                _shared_out(call.z, job, q, out, lse, pool, threads)
    else:

        def run(jobs):
            desk = call.desk()
            choosing, attending = (desk.far, desk.counts, desk.lists, desk.chosen), (desk.logits, desk.state, desk.y)
            _outputs(jobs, call.z, q, *choosing, *attending, out, lse)

        _each(run, call.jobs, threads if call.work >= BUSY else 1)
    return out.reshape(B, T, H, v.shape[-1]), lse.reshape(B, T, H)


def _shared_out(z, job, q, out, lse, pool, threads):
    """One query, to whose keys all threads attend, each to a part of them."""
    place, n, m, sinks, window, query, codes, k, v = job
    start, end = _middle.py_func(n, sinks, window)
    left, codes = end - start, codes + 4 * z.words * start
    size = scan.GROUP * max(1, -(-left // (scan.GROUP * threads)))
    parts = [(first, min(size, left - first)) for first in range(0, left, size)] or [(0, 0)]
    far = np.zeros(z.bytes * (left + scan.GROUP), np.uint8)
    threshold, equals = (1, 0) if m >= left else (0, 0)  # all at distance 0, or none
    if 0 < m < left:
        smallest = min(pool.map(lambda part: distances(z, query, codes, far, *part), parts))
    _close(z, far, left)
    shares = [0] * len(parts)
    if 0 < m < left:
        threshold, below = _threshold(z, address(far), left, m, smallest)
        equals = m - below
        for i, part in enumerate(parts):
            at = _part_counts(z, far, *part, threshold + 1) - _part_counts(z, far, *part, threshold)
            shares[i] = min(equals - sum(shares), at)

    def attend(i):
        first, live = parts[i]
        before, after = start if i == 0 else 0, (end, n) if i == len(parts) - 1 else (n, n)
        desk = Desk(z, 0, 0, before + live + after[1] - after[0])
        memory = desk.chosen, desk.logits, desk.state, desk.y
        size = _part_attends(z, far, first, live, start, threshold, shares[i], before, after, q[place], k, v, *memory)
        return size, desk.state, desk.y

    found = list(pool.map(attend, range(len(parts))))
    found = [part[1:] for part in found if part[0]]
    if not found:
        out[place], lse[place] = 0, -np.inf
        return
    tops = np.array([state[0] for state, _ in found])
    top = tops.max()
    weights = np.exp2(tops - top)
    total = sum(w * state[LANES] for w, (state, _) in zip(weights, found, strict=True))
    out[place] = sum(w * y[: z.V] for w, (_, y) in zip(weights, found, strict=True)) / total
    lse[place] = (top + np.log2(total)) / LOG2E


def _each(run, jobs, threads):
    """run(jobs) for all of them, shared out to threads, which start and end here: a process forked later misses none,
    and no number hangs on how many there are.
    """
    if threads == 1 or len(jobs) < 2:
        if len(jobs):
            run(jobs)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(run, np.array_split(jobs, min(len(jobs), threads))))
