"""What the CPU kernels are made of: small pieces of vector code, eight float32 lanes wide (sixteen, where a product is
written for machines with such registers), for Numba functions.

Numba vectorises plain loops as well as LLVM can, which for the products here is a fifth of what the core can do. A
piece is written one level lower: a Python function that emits LLVM's vector instructions through `Lanes`, so that
registers hold what they should. LLVM still chooses the machine's instructions: eight lanes are one AVX register, half
an AVX-512 one, or two of NEON.

A piece takes addresses (int64, in bytes), strides and counts (int64, in numbers, not bytes). It returns nothing or an
int64, checks nothing and keeps nothing alive: whoever calls it owns the memory. A piece is made once, at
import, and never for a size: Numba keeps on disk only what does not close over such things.
"""

import inspect
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = [
    *("AHEAD", "INT", "LANES", "LINE", "NOTHING", "Ahead", "Lanes", "Rows", "address", "aligned"),
    *("compiled", "compiled_once", "copied", "dots", "flip", "inlined", "multiply", "next_tile", "on_lines"),
    *("on_threads", "piece"),
    *("place", "put", "scaled", "steady", "streamed", "stride", "take", "up"),
]

LANES = 8
I8, I32, I64, F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
VECTOR, INTS = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)

# lanes of two vectors, 0 to 7 and 8 to 15, as the shuffles below take them
ZIPPED = [0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]
INTERLEAVED = [0, 8, 2, 10, 4, 12, 6, 14], [1, 9, 3, 11, 5, 13, 7, 15]
PAIRED = [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]
HALVES = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]

# polynomials, the highest power first: tanh x = x above(x^2) / below(x^2), and 2^x on [-1/2, 1/2]
TANH_ABOVE = (
    *(-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08),
    *(1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03),
)
TANH_BELOW = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
EXP2 = (
    *(1.535336188319500e-4, 1.339887440266574e-3, 9.618437357674640e-3, 5.550332471162809e-2),
    *(2.402264791363012e-1, 6.931472028550421e-1, 1.0),
)

STAMPS: dict[str, tuple[int, int]] = {}  # of the files that hold pieces, by module: when and how large they were
# the lock is released, for the kernels run in Python's threads
OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}


def compiled(function: Callable) -> Any:
    """A Numba function, compiled at its first call and kept on disk."""
    return _kept(njit(**OPTIONS)(function))


def inlined(function: Callable) -> Any:
    """The same for a step of a kernel, whose many arguments would take time to hand over."""
    return _kept(njit(forceinline=True, **OPTIONS)(function))


def compiled_once(*kinds: Any) -> Callable[[Callable], Any]:
    """As `compiled`, for these kinds alone: Numba would compile one version for each constant among the arguments."""

    def compile_for_kinds(function: Callable) -> Any:
        made = compiled(function)
        made.compile(kinds)
        made.disable_compile()
        return made

    return compile_for_kinds


def _kept(function: Any) -> Any:
    """Numba takes what it kept on disk for good as long as the function's own file is what it was. What is made of
    pieces hangs on their files too: on this one, and on those that the function's module takes pieces from.
    """
    used = {__name__}
    for value in function.py_func.__globals__.values():
        used.add(value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", "")))
    index = function._cache._cache_file
    index._source_stamp = (index._source_stamp, *(STAMPS[name] for name in sorted(used & STAMPS.keys())))
    return function


def _stamped(module: str, file: str) -> None:
    """Remember when a file was written that holds pieces."""
    if module not in STAMPS:
        STAMPS[module] = Path(file).stat().st_mtime_ns, Path(file).stat().st_size


_stamped(__name__, __file__)


def aligned(*shape: int, fill: bool = True) -> np.ndarray:
    """float32 on a cache line of its own: zeros, or, without `fill`, whatever was there."""
    size = math.prod(shape)
    memory = (np.zeros if fill else np.empty)(size + 32, np.float32)
    start = -memory.__array_interface__["data"][0] % 128 // 4
    return memory[start : start + size].reshape(shape)


class Lanes:
    """Writes LLVM instructions; `b` is the builder that stands where the next one goes. What goes across lanes, and
    what needs integers of them, is for eight lanes only.
    """

    def __init__(self, b: Any, lanes: int = LANES):
        self.b, self.lanes = b, lanes
        self.vector = ir.VectorType(F32, lanes)

    # -- numbers and memory --

    def number(self, x: float) -> Any:
        """x in every lane."""
        return ir.Constant(self.vector, [float(x)] * self.lanes)

    def integer(self, x: Any) -> Any:
        """An int64: a Python number as a constant, anything else as it is."""
        return ir.Constant(I64, x) if isinstance(x, int) else x

    def at(self, address: Any, *terms: Any) -> Any:
        """`address` and as many numbers further as the terms say; a pair is multiplied first."""
        b, total = self.b, self.integer(0)
        for term in terms:
            if isinstance(term, tuple):
                term = b.mul(*map(self.integer, term))
            total = b.add(total, self.integer(term))
        return b.add(address, b.shl(total, self.integer(2)))

    def load(self, address: Any) -> Any:
        """A vector of the numbers from here on."""
        return self.b.load(self.b.inttoptr(address, self.vector.as_pointer()), align=4)

    def spread(self, address: Any) -> Any:
        """The number here, in every lane."""
        return self.splat(self.number_at(address))

    def number_at(self, address: Any) -> Any:
        """The number here, by itself."""
        return self.b.load(self.b.inttoptr(address, F32.as_pointer()), align=4)

    def put_number(self, x: Any, address: Any) -> None:
        """A number by itself to here."""
        self.b.store(x, self.b.inttoptr(address, F32.as_pointer()), align=4)

    def integer_at(self, address: Any) -> Any:
        """The int64 here."""
        return self.b.load(self.b.inttoptr(address, I64.as_pointer()), align=8)

    def splat(self, x: Any) -> Any:
        """A scalar in every lane."""
        one = self.b.insert_element(ir.Constant(self.vector, ir.Undefined), x, ir.Constant(I32, 0))
        return self.b.shuffle_vector(one, one, ir.Constant(ir.VectorType(I32, self.lanes), [0] * self.lanes))

    def store(self, x: Any, address: Any, past_cache: bool = False) -> None:
        """A vector to here; `past_cache` (needs 32-byte alignment) does not read the line first."""
        to = self.b.store(x, self.b.inttoptr(address, self.vector.as_pointer()), align=32 if past_cache else 4)
        if past_cache:
            to.set_metadata("nontemporal", self.b.module.add_metadata([ir.Constant(I32, 1)]))

    def prefetch(self, address: Any) -> None:
        """Ask for the line that holds this address, into the second cache."""
        kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
        ask = cgutils.get_or_insert_function(self.b.module, kind, "llvm.prefetch.p0")
        read, second, data = (ir.Constant(I32, x) for x in (0, 2, 1))
        self.b.call(ask, [self.b.inttoptr(address, I8.as_pointer()), read, second, data])

    # -- arithmetic --

    def call(self, name: str, *vectors: Any) -> Any:
        """LLVM's own function of this name, lane by lane."""
        kind, of = ir.FunctionType(self.vector, [self.vector] * len(vectors)), f"llvm.{name}.v{self.lanes}f32"
        return self.b.call(cgutils.get_or_insert_function(self.b.module, kind, of), vectors)

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        """x y + z, rounded once."""
        return self.call("fma", x, y, z)

    def where(self, comparison: str, x: Any, y: Any, yes: Any, no: Any) -> Any:
        """`yes` in the lanes where x compares to y so, else `no`; no comparison with NaN is true."""
        return self.b.select(self.b.fcmp_ordered(comparison, x, y), yes, no)

    def polynomial(self, x: Any, coefficients: tuple[float, ...]) -> Any:
        """Horner, the highest power first."""
        value = self.number(coefficients[0])
        for c in coefficients[1:]:
            value = self.fma(value, x, self.number(c))
        return value

    def tanh(self, x: Any) -> Any:
        """Tanh as a quotient of polynomials (Eigen's coefficients), 2.6e-7 at worst; NaN stays NaN."""
        end = self.number(7.90531110763549805)
        x = self.where(">", x, end, end, x)
        x = self.where("<", x, self.b.fneg(end), self.b.fneg(end), x)
        square = self.b.fmul(x, x)
        return self.b.fdiv(self.b.fmul(x, self.polynomial(square, TANH_ABOVE)), self.polynomial(square, TANH_BELOW))

    def exp2(self, x: Any) -> Any:
        """2^x for |x| < 126, to 1e-7: a polynomial on [-1/2, 1/2] times a power of two; NaN stays NaN."""
        whole = self.call("nearbyint", x)
        number = self.where("ord", x, x, whole, self.number(0))  # NaN has no integer; it comes back with the polynomial
        power = self.b.add(self.b.fptosi(number, INTS), ir.Constant(INTS, [127] * LANES))
        power = self.b.bitcast(self.b.shl(power, ir.Constant(INTS, [23] * LANES)), VECTOR)
        return self.b.fmul(self.polynomial(self.b.fsub(x, whole), EXP2), power)

    # -- across lanes --

    def kept(self, comparison: str, first: int, bound: Any, x: Any) -> Any:
        """x in the lanes whose number, counted from `first`, compares to `bound` (an int64) so; else 0."""
        b = self.b
        one = b.insert_element(ir.Constant(INTS, ir.Undefined), b.trunc(bound, I32), ir.Constant(I32, 0))
        bounds = b.shuffle_vector(one, one, ir.Constant(INTS, [0] * LANES))
        lanes = ir.Constant(INTS, list(range(first, first + LANES)))
        return b.select(b.icmp_signed(comparison, lanes, bounds), x, self.number(0))

    def alone(self, x: Any) -> Any:
        """A scalar in the first lane, 0 in the others."""
        return self.b.insert_element(self.number(0), x, ir.Constant(I32, 0))

    def across(self, x: Any, combine: Callable) -> Any:
        """All lanes of x combined, in every lane."""
        for step in (4, 2, 1):
            x = combine(x, self.shuffle(x, x, [(i + step) % LANES for i in range(LANES)]))
        return x

    def shuffle(self, x: Any, y: Any, lanes: list[int]) -> Any:
        """Lanes of x (0 to 7) and y (8 to 15) in this order."""
        return self.b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))

    def transpose(self, rows: list[Any]) -> list[Any]:
        """Eight rows of eight as eight columns, one instruction a shuffle."""
        pairs = [self.shuffle(rows[i], rows[i + 1], half) for i in (0, 2, 4, 6) for half in ZIPPED]
        fours = [self.shuffle(pairs[i + j], pairs[i + j + 2], half) for i in (0, 4) for j in (0, 1) for half in PAIRED]
        return [self.shuffle(fours[i], fours[i + 4], half) for half in HALVES for i in range(4)]

    def sums(self, rows: list[Any]) -> Any:
        """The sums of eight vectors, in the lanes of one."""
        for even, odd in (INTERLEAVED, PAIRED, HALVES):
            rows = [
                self.b.fadd(self.shuffle(x, y, even), self.shuffle(x, y, odd))
                for x, y in zip(rows[::2], rows[1::2], strict=True)
            ]
        return rows[0]

    # -- branches and loops --

    def either(self, flag: Any, then: Callable[[], list[Any]], otherwise: list[Any]) -> list[Any]:
        """`then()` where the int64 `flag` is not 0, else what `otherwise` holds."""
        b, before = self.b, self.b.block
        yes, done = b.append_basic_block("then"), b.append_basic_block("done")
        b.cbranch(b.icmp_signed("!=", flag, self.integer(0)), yes, done)
        b.position_at_end(yes)
        values, end = then(), b.block
        b.branch(done)
        b.position_at_end(done)
        results = [b.phi(x.type) for x in values]
        for phi, x, other in zip(results, values, otherwise, strict=True):
            phi.add_incoming(other, before)
            phi.add_incoming(x, end)
        return results

    def loop(self, count: Any, body: Callable, carried: tuple[Any, ...] | list[Any] = (), step: int = 1) -> list[Any]:
        """`carried = body(i, carried)` for i in range(0, count, step), values kept in registers; the last of them."""
        b, count = self.b, self.integer(count)
        before, head, done = b.block, b.append_basic_block("loop"), b.append_basic_block("done")
        b.cbranch(b.icmp_signed(">", count, self.integer(0)), head, done)
        b.position_at_end(head)
        i, values = b.phi(I64), [b.phi(x.type) for x in carried]
        new = body(i, values) or []
        following, last = b.add(i, self.integer(step)), b.block
        b.cbranch(b.icmp_signed("<", following, count), head, done)
        b.position_at_end(done)
        ends = [b.phi(x.type) for x in carried]
        for phi, first, again in ((i, self.integer(0), following), *zip(values, carried, new, strict=True)):
            phi.add_incoming(first, before)
            phi.add_incoming(again, last)
        for phi, first, again in zip(ends, carried, new, strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(again, last)
        return ends


def piece(write: Callable, lanes: int = LANES) -> Any:
    """The function of these parameters (without the first, the `Lanes`, so many wide), int64 each, that Numba functions
    may call: `write` emits its code. Where `write` is annotated to return an int, so does the function.
    """
    _stamped(write.__module__, inspect.getfile(write))
    returns = inspect.signature(write).return_annotation is int
    parameters = list(inspect.signature(write).parameters.values())[1:]

    def typed(context: Any, *arguments: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            value = write(Lanes(builder, lanes), *values)
            return value if returns else context.get_dummy_value()

        return (types.int64 if returns else types.void)(*[types.int64] * len(parameters)), emit

    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    typed.__name__, typed.__doc__, typed.__module__ = write.__name__, write.__doc__, write.__module__
    typed.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]
    return intrinsic(typed)


# -- rows of numbers --


@piece
def scaled(w, x, factor, y, n):
    """y = x times the number at `factor`, n numbers."""
    _scaled(w, x, factor, y, n, past_cache=False)


@piece
def copied(w, x, y, n):
    """y = x, n numbers, four vectors at a time."""
    one = F32.as_pointer()
    fours, whole = w.b.and_(n, w.integer(-4 * LANES)), w.b.and_(n, w.integer(-LANES))

    def four(i, _):
        for x_j, j in [(w.load(w.at(x, i, LANES * j)), j) for j in range(4)]:
            w.store(x_j, w.at(y, i, LANES * j))

    def rest(start, count, step, move):
        w.loop(w.b.sub(count, start), lambda i, _: move(w.b.add(i, start)), step=step)

    def number(i):
        w.b.store(w.b.load(w.b.inttoptr(w.at(x, i), one)), w.b.inttoptr(w.at(y, i), one))

    w.loop(fours, four, step=4 * LANES)
    rest(fours, whole, LANES, lambda i: w.store(w.load(w.at(x, i)), w.at(y, i)))
    rest(whole, n, 1, number)


@piece
def streamed(w, x, factor, y, n):
    """y = x times the number at `factor`, n numbers, without reading y's lines first; y on a multiple of 32 bytes."""
    _scaled(w, x, factor, y, n, past_cache=True)


def _scaled(w, x, factor, y, n, past_cache):
    b, one, factors = w.b, F32.as_pointer(), w.spread(factor)
    factor = b.load(b.inttoptr(factor, one))
    whole = b.and_(n, w.integer(-LANES))
    w.loop(whole, lambda i, _: w.store(b.fmul(w.load(w.at(x, i)), factors), w.at(y, i), past_cache), step=LANES)

    def rest(i, _):
        i = b.add(i, whole)
        b.store(b.fmul(b.load(b.inttoptr(w.at(x, i), one)), factor), b.inttoptr(w.at(y, i), one))

    w.loop(b.sub(n, whole), rest)


@piece
def flip(w, x, width, n, y, rows):
    """Eight rows of x [8, width] as columns of y [n, rows]; n a multiple of 8."""

    def columns(i, _):
        for j, column in enumerate(w.transpose([w.load(w.at(x, (t, width), i)) for t in range(8)])):
            w.store(column, w.at(y, (w.b.add(i, w.integer(j)), rows)))

    w.loop(n, columns, step=8)


@piece
def dots(w, x, x_row, y, y_row, n, out):
    """out[t] = x[t] . y[t] for eight tokens; n a multiple of 8."""

    def term(i, sums):
        return [w.fma(w.load(w.at(x, (t, x_row), i)), w.load(w.at(y, (t, y_row), i)), sums[t]) for t in range(8)]

    w.store(w.sums(w.loop(n, term, [w.number(0)] * 8, step=LANES)), out)


# -- products of matrices --


class Ahead(NamedTuple):
    """Memory to ask for while a product runs, so that it has come when it is needed: `rows` rows that begin on `at`,
    `stride` numbers apart, of `lines` cache lines each.
    """

    at: int
    stride: int
    rows: int
    lines: int


NOTHING = Ahead(0, 0, 0, 0)
LINE = 16  # float32 numbers in a cache line


def _product(rows: int, vectors: int) -> Any:
    """A product small enough for C to stay in registers, [rows, 8 vectors]. Each iteration also asks for a line,
    `down` numbers from the last: asking in bursts gained nothing, and a loop that asks beside one that does not costs a
    wrong guess of the core each time. With three vectors there is time to begin a new column after 2^shift lines,
    `right` of the last.
    """

    @piece
    def product(w, a, ar, an, b, bn, c, cr, n, add, line, down, right, shift):
        places = [w.at(c, (r, cr), LANES * x) for r in range(rows) for x in range(vectors)]
        columns, mask = vectors == 3, w.b.sub(w.b.shl(w.integer(1), shift), w.integer(1))

        def term(i, sums):
            w.prefetch(
                w.at(line, (w.b.and_(i, mask), down), (w.b.lshr(i, shift), right)) if columns else w.at(line, (i, down))
            )
            row = [w.load(w.at(b, (i, bn), LANES * x)) for x in range(vectors)]
            column = [w.spread(w.at(a, (r, ar), (i, an))) for r in range(rows)]
            return [w.fma(column[j // vectors], row[j % vectors], x) for j, x in enumerate(sums)]

        sums = w.loop(n, term, [w.number(0)] * len(places))
        # what was there comes to it last, so that no product waits for its loads
        sums = w.either(add, lambda: [w.b.fadd(w.load(y), x) for x, y in zip(sums, places, strict=True)], sums)
        for x, place in zip(sums, places, strict=True):
            w.store(x, place)

    return product


_6x2, _4x2, _2x2, _1x2 = (_product(rows, 2) for rows in (6, 4, 2, 1))
_6x1, _4x1, _2x1, _1x1 = (_product(rows, 1) for rows in (6, 4, 2, 1))
_4x3, _2x3, _1x3 = (_product(rows, 3) for rows in (4, 2, 1))


INT, AHEAD = types.int64, types.NamedUniTuple(types.int64, len(Ahead._fields), Ahead)


@compiled_once(*[INT] * 11, AHEAD, AHEAD)
def multiply(a, ar, an, rows, b, bn, columns, c, cr, n, add, first, second):
    """C [rows, columns] = A [rows, n] B [n, columns], or, where `add`, C += A B; columns a multiple of 8, B and C
    dense along them.

    `ar`, `an`: strides of A; `bn`, `cr`: of the rows of B and C. On the way `first` and then `second` are asked for.
    """
    blocks = (columns - 8) // 16 if columns % 16 == 8 and columns > 8 else (columns + 15) // 16
    calls = max(1, blocks * ((rows + 5) // 6))
    # a call asks for a line an iteration: down columns of lines, or along rows where there are too few iterations
    tall = n >= first.rows and n >= second.rows
    ours, theirs = (first.lines, second.lines) if tall else (first.rows, second.rows)
    shift, asked, credit, x = 0, 0, 0, 0
    while 1 << shift < (max(first.rows, second.rows) if tall else max(first.lines, second.lines)):
        shift += 1
    while x < columns:
        left = columns - x
        width = 24 if left == 24 else min(16, left)
        r = 0
        while r < rows:
            line, down, right = c, 0, 0
            credit += ours + theirs
            if credit > 0 and asked < ours + theirs:
                ahead, unit, end = (first, asked, ours) if asked < ours else (second, asked - ours, theirs)
                down, right = (ahead.stride, LINE) if tall else (LINE, ahead.stride)
                line = ahead.at + 4 * right * unit
                fetched = min(max(1, n >> shift), end - unit) if width == 24 else 1
                asked += fetched
                credit -= calls * fetched
            more = rows - r
            ai, bi, ci = a + 4 * r * ar, b + 4 * x, c + 4 * (r * cr + x)
            if width == 24:
                if more >= 4:
                    _4x3(ai, ar, an, bi, bn, ci, cr, n, add, line, down, right, shift)
                    r += 4
                elif more >= 2:
                    _2x3(ai, ar, an, bi, bn, ci, cr, n, add, line, down, right, shift)
                    r += 2
                else:
                    _1x3(ai, ar, an, bi, bn, ci, cr, n, add, line, down, right, shift)
                    r += 1
            elif width == 16:
                if more >= 6 and more != 8:
                    _6x2(ai, ar, an, bi, bn, ci, cr, n, add, line, down, right, shift)
                    r += 6
                elif more >= 4:
                    _4x2(ai, ar, an, bi, bn, ci, cr, n, add, line, down, right, shift)
                    r += 4
                elif more >= 2:
                    _2x2(ai, ar, an, bi, bn, ci, cr, n, add, line, down, right, shift)
                    r += 2
                else:
                    _1x2(ai, ar, an, bi, bn, ci, cr, n, add, line, down, right, shift)
                    r += 1
            elif more >= 6:
                _6x1(ai, ar, an, bi, bn, ci, cr, n, add, line, down, right, shift)
                r += 6
            elif more >= 4:
                _4x1(ai, ar, an, bi, bn, ci, cr, n, add, line, down, right, shift)
                r += 4
            elif more >= 2:
                _2x1(ai, ar, an, bi, bn, ci, cr, n, add, line, down, right, shift)
                r += 2
            else:
                _1x1(ai, ar, an, bi, bn, ci, cr, n, add, line, down, right, shift)
                r += 1
        x += width


# -- tiles: some tokens of one head, on their way between arrays and a desk, the memory that kernels work on --


class Rows(NamedTuple):
    """Tokens of one sequence, as they lie in an array: an address, and the strides of tokens and heads in numbers."""

    at: int
    token: int
    head: int


@inlined
def place(x, t, h):
    """Where token t of head h is."""
    return x.at + 4 * (t * x.token + h * x.head)


@inlined
def next_tile(x, t, h, heads, tile, width, step):
    """The tile that comes after this one, to be asked for: the next head's, or the first of the next tokens. Where a
    row begins inside a line, that of the head before has brought the line.
    """
    h += 1
    if h == heads:
        t, h = t + step, 0
    at = place(x, t, h)
    first = (at + 63) // 64 if h else at // 64
    return Ahead(64 * first, x.token, tile, (at + 4 * width + 63) // 64 - first)


@inlined
def take(x, t, h, live, tile, width, row, zeros, desk):
    """Copy a tile of rows to the desk, [tile, row]. The copy lies in one piece, as rows 2 KB apart would share a few
    places of the first cache; up to the next whole vector, and beyond the last token, it is 0.
    """
    at = place(x, t, h)
    for i in range(live):
        copied(at + 4 * i * x.token, desk + 4 * i * row, width)
        copied(zeros, desk + 4 * (i * row + width), -width % LANES)  # else NaN of another head might stand there
    for i in range(live, tile):
        copied(zeros, desk + 4 * i * row, width + -width % LANES)


@inlined
def put(desk, row, factors, step, x, t, h, live, width, past_cache):
    """A tile from the desk to where it belongs, row i times the number at factors + i step."""
    at = place(x, t, h)
    for i in range(live):
        source, factor, to = desk + 4 * i * row, factors + 4 * i * step, at + 4 * i * x.token
        if past_cache and width > 1:
            streamed(source, factor, to, width)
        else:
            scaled(source, factor, to, width)


def address(x):
    """Where an array begins."""
    return x.__array_interface__["data"][0]


def stride(n):
    """Of rows of n numbers: not a multiple of 512 bytes, which would crowd a few places of the cache."""
    return n + LINE if n % 128 == 0 else n


def up(n):
    """n rounded up to whole vectors."""
    return n + -n % LANES


def steady(x):
    """The array, or a copy of it where its rows are not in one piece."""
    whole = not any(step % x.itemsize for step in x.strides)
    return x if whole and (x.strides[-1] == x.itemsize or x.shape[-1] == 1) else np.ascontiguousarray(x)


def on_lines(x):
    """Whether every row starts on a line. Stores past the cache that fill half a line take five times as long."""
    return not (address(x) % 64 or any(step % 64 for step in x.strides[:-1]))


# -- threads --

_pool: dict[int, ThreadPoolExecutor] = {}  # one at most, by how many threads it has


def on_threads(run: Callable[[Any], None], shares: Sequence[Any]) -> None:
    """`run` every share, the first on this thread and each other on one that is kept for the next call: to start one
    may take as long as a decode step. A process that was forked starts its own.

    Raises what `run` raises, when all have ended.
    """
    needed = len(shares) - 1
    if needed > max(_pool, default=0):
        _pool.clear()
        _pool[needed] = ThreadPoolExecutor(needed, thread_name_prefix="attnlab")
    others = [pool.submit(run, share) for pool in [*_pool.values()][:1] for share in shares[1:]]
    try:
        for share in shares[:1]:
            run(share)
    finally:
        errors = [error for other in others if (error := other.exception())]
    for error in errors:
        raise error


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.clear)
