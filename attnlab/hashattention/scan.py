"""Pieces that scan codes, for the CPU kernels: Hamming distances of a stretch of keys, and which of them lie below a
threshold, 64 keys at a time in one word.

They are pieces as `attnlab.lanes` makes them: LLVM's vector instructions, of which the machine's own are chosen (a
population count of eight words is one instruction with AVX-512, nine with AVX2). Addresses are bytes; what is passed
besides are counts of keys.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from attnlab.lanes import I32, I64, piece

__all__ = [
    "GROUP",
    "below8",
    "below16",
    "count_below8",
    "count_below16",
    "distances8",
    "distances16",
    "first_bit",
    "grouped3",
    "grouped4",
    "grouped5",
    "grouped6",
    "grouped7",
    "grouped8",
    "grouped16",
    "next_below8",
    "next_below16",
    "ones",
    "pairs8",
    "singles8",
]

GROUP = 64  # keys whose comparison makes one word
I1, I8, I16 = ir.IntType(1), ir.IntType(8), ir.IntType(16)


def _call(b: Any, name: str, kind: Any, *values: Any) -> Any:
    """LLVM's own function on values of one type."""
    suffix = f"v{kind.count}i{kind.element.width}" if isinstance(kind, ir.VectorType) else f"i{kind.width}"
    flag = [I1] if name in ("cttz", "ctlz") else []
    function = cgutils.get_or_insert_function(
        b.module, ir.FunctionType(kind, [kind] * len(values) + flag), f"llvm.{name}.{suffix}"
    )
    return b.call(function, [*values, *(ir.Constant(I1, 0) for _ in flag)])


def _at(w: Any, address: Any, kind: Any) -> Any:
    return w.b.inttoptr(address, kind.as_pointer())


def _every(b: Any, x: Any, count: int) -> Any:
    """A scalar in every lane."""
    kind = ir.VectorType(x.type, count)
    one = b.insert_element(ir.Constant(kind, ir.Undefined), x, ir.Constant(I32, 0))
    return b.shuffle_vector(one, one, ir.Constant(ir.VectorType(I32, count), [0] * count))


# -- bits of a word --


@piece
def ones(w, x) -> int:
    """How many bits of an int64 are set."""
    return _call(w.b, "ctpop", I64, x)


@piece
def first_bit(w, x) -> int:
    """The number of the lowest bit that is set; 64 where none is."""
    return _call(w.b, "cttz", I64, x)


# -- distances; each piece returns the smallest --


def _smaller(b: Any, x: Any, y: Any) -> Any:
    return b.select(b.icmp_unsigned("<", x, y), x, y)


def _reduced(b: Any, name: str, x: Any) -> Any:
    """All lanes of a vector as one number."""
    kind = x.type
    function = cgutils.get_or_insert_function(
        b.module, ir.FunctionType(kind.element, [kind]), f"llvm.vector.reduce.{name}.v{kind.count}i{kind.element.width}"
    )
    return b.call(function, [x])


def _lanes(numbers: list[int]) -> Any:
    return ir.Constant(ir.VectorType(I32, len(numbers)), numbers)


def _single(word: Any, out: Any, keys: int) -> Any:
    """Codes of one word of this type: `n` distances from `query`, as numbers of type `out`; n a multiple of `keys`."""
    kind, narrow = ir.VectorType(word, keys), ir.VectorType(out, keys)

    def distances(w, codes, query, n, to) -> int:
        b = w.b
        asked = _every(b, b.load(_at(w, query, word)), keys)

        def some(i, smallest):
            here = b.load(_at(w, b.add(codes, b.mul(i, w.integer(word.width // 8))), kind), align=4)
            far = b.trunc(_call(b, "ctpop", kind, b.xor(here, asked)), narrow)
            b.store(far, _at(w, b.add(to, b.mul(i, w.integer(out.width // 8))), narrow), align=1)
            return [_smaller(b, far, smallest[0])]

        (smallest,) = w.loop(n, some, [ir.Constant(narrow, [-1] * keys)], step=keys)
        return b.zext(_reduced(b, "umin", smallest), I64)

    return piece(distances)


singles8 = _single(I32, I8, 64)  # up to 32 bits
pairs8 = _single(I64, I8, 16)  # up to 64 bits: two words are one number


def _grouped(words: int, out: Any) -> Any:
    """Codes of so many words, eight keys at a time, whose words are counted side by side and then added key by key; n a
    multiple of 8. Two words make one number where they can.
    """
    number = I64 if words % 2 == 0 else I32
    each, keys = words * 32 // number.width, 8
    wide, narrow = ir.VectorType(number, each * keys), ir.VectorType(out, keys)

    def distances(w, codes, query, n, to) -> int:
        b = w.b
        own = b.load(_at(w, query, ir.VectorType(number, each)), align=4)
        asked = b.shuffle_vector(own, own, _lanes([j for _ in range(keys) for j in range(each)]))

        def some(i, smallest):
            here = b.load(_at(w, b.add(codes, b.mul(i, w.integer(4 * words))), wide), align=4)
            ones = _call(b, "ctpop", wide, b.xor(here, asked))
            far = None
            for j in range(each):
                part = b.shuffle_vector(ones, ones, _lanes([key * each + j for key in range(keys)]))
                far = part if far is None else b.add(far, part)
            far = b.trunc(far, narrow)
            b.store(far, _at(w, b.add(to, b.mul(i, w.integer(out.width // 8))), narrow), align=1)
            return [_smaller(b, far, smallest[0])]

        (smallest,) = w.loop(n, some, [ir.Constant(narrow, [-1] * keys)], step=keys)
        return b.zext(_reduced(b, "umin", smallest), I64)

    return piece(distances)


grouped3, grouped4, grouped5, grouped6, grouped7 = (_grouped(words, I8) for words in (3, 4, 5, 6, 7))
grouped8, grouped16 = (_grouped(words, I16) for words in (8, 16))


def _several(out: Any) -> Any:
    """Codes of any number of words, `step` bytes from key to key, eight words at a time."""
    kind = ir.VectorType(I32, 8)

    def distances(w, codes, step, query, words, n, to) -> int:
        b, four = w.b, w.integer(4)
        whole = b.and_(words, w.integer(-8))

        def differences(first, j, type):
            here, asked = (b.load(_at(w, b.add(x, b.mul(j, four)), type), align=4) for x in (first, query))
            return _call(b, "ctpop", type, b.xor(here, asked))

        def key(i, smallest):
            first = b.add(codes, b.mul(i, step))
            (eight,) = w.loop(
                whole, lambda j, sums: [b.add(sums[0], differences(first, j, kind))], [ir.Constant(kind, [0] * 8)], 8
            )
            (far,) = w.loop(
                b.sub(words, whole),
                lambda j, sums: [b.add(sums[0], differences(first, b.add(j, whole), I32))],
                [_reduced(b, "add", eight)],
            )
            far = b.trunc(far, out)
            b.store(far, _at(w, b.add(to, b.mul(i, w.integer(out.width // 8))), out), align=1)
            return [_smaller(b, far, smallest[0])]

        (smallest,) = w.loop(n, key, [ir.Constant(out, -1)])
        return b.zext(smallest, I64)

    return piece(distances)


distances8, distances16 = _several(I8), _several(I16)


# -- thresholds --


def _mask(w: Any, distances: Any, threshold: Any, number: Any) -> Any:
    """Bit j: whether distance j of 64 lies below the threshold."""
    b, kind = w.b, ir.VectorType(number, GROUP)
    far = b.load(_at(w, distances, kind), align=1)
    return b.bitcast(b.icmp_unsigned("<", far, _every(b, b.trunc(threshold, number), GROUP)), I64)


def _below(number: Any) -> tuple[Any, Any, Any]:
    size = number.width // 8

    def below(w, distances, threshold) -> int:
        return _mask(w, distances, threshold, number)

    def count(w, distances, n, threshold) -> int:
        """How many of n distances, n a multiple of 64, lie below the threshold."""

        def group(i, sums):
            mask = _mask(w, w.b.add(distances, w.b.mul(i, w.integer(size))), threshold, number)
            return [w.b.add(sums[0], _call(w.b, "ctpop", I64, mask))]

        return w.loop(n, group, [w.integer(0)], step=GROUP)[0]

    def next_below(w, distances, start, n, threshold) -> int:
        """The first group, from `start` on, that has a distance below the threshold; n where none has."""
        b = w.b
        before, head, on, done = b.block, *(b.append_basic_block(name) for name in ("head", "on", "done"))
        b.branch(head)
        b.position_at_end(head)
        i = b.phi(I64)
        i.add_incoming(start, before)
        b.cbranch(b.icmp_signed("<", i, n), on, done)
        b.position_at_end(on)
        mask = _mask(w, b.add(distances, b.mul(i, w.integer(size))), threshold, number)
        i.add_incoming(b.add(i, w.integer(GROUP)), b.block)
        found = b.block
        b.cbranch(b.icmp_signed("==", mask, w.integer(0)), head, done)
        b.position_at_end(done)
        here = b.phi(I64)
        here.add_incoming(i, head)
        here.add_incoming(i, found)
        return here

    return piece(below), piece(count), piece(next_below)


below8, count_below8, next_below8 = _below(I8)
below16, count_below16, next_below16 = _below(I16)
