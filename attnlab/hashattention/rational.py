"""Counterexamples in exact fractions: what one is, a check of it, the smallest, and two ways to find another.

    verify     one example, checked
    search     every small example of a kind, the smallest first
    find       an example from a seed: drawn, checked, drawn again until one holds
    STORED     the smallest of each kind, and where they are others, those with the paper's or the reader's numbers

An example is a tuple of whole numbers and fractions, one number for a key, query or value unless said otherwise.
Softmax weights are any positive fractions that sum to 1: logits that have them exist. Nothing is rounded.
"""

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import count, product
from math import gcd, isqrt
from typing import NamedTuple

__all__ = ["KINDS", "STORED", "Dropped", "Kept", "Kind", "Lift", "Named", "find", "search", "verify"]

Numbers = tuple[Fraction, ...]


# -- what an example is -----------------------------------------------------------------------------------------------


class Lift(NamedTuple):
    """Two keys and a query, all of one number, values of length 1; the keys are lifted to the length M.

    A lifted key is [k, log 1, sqrt(M^2 - k^2)], always as long as M, so cosines order keys as inner products do.
    """

    q: Fraction
    keys: Numbers
    longest: Fraction  # M, at least every |k|

    def products(self) -> Numbers:
        """What should be ordered: q k."""
        return tuple(self.q * k for k in self.keys)

    def lifted(self, last: int = 1) -> Numbers:
        """What is ordered: the lifted key times [q, 1, last]; Sec. 4.3 (p. 5) prints 1."""
        return tuple(self.q * k + last * root(self.longest**2 - k**2) for k in self.keys)

    def holds(self) -> bool:
        """The second key is the nearer one, and the printed lift says it is the first."""
        if self.longest <= 0 or not all(rooted(self.longest**2 - k**2) for k in self.keys):
            return False
        (far, near), (lifted_far, lifted_near) = self.products(), self.lifted()
        return far < near and lifted_far > lifted_near

    def facts(self) -> dict[str, str]:
        """The numbers, and what becomes of them, by name."""
        given = {"q": written(self.q), "keys k": written(*self.keys), "M": written(self.longest)}
        lifted = {f"lifted, with [q, 1, {last}]": written(*self.lifted(last)) for last in (1, 0)}
        return given | {"q k": written(*self.products())} | lifted


class Kept(NamedTuple):
    """A few tokens of which one is kept, with its weight as it was or, as is really done, renormalised to 1."""

    weights: Numbers
    values: Numbers
    renormalised: bool

    def contributions(self) -> Numbers:
        """a |v|, what a token contributes on its own."""
        return tuple(a * abs(v) for a, v in zip(self.weights, self.values, strict=True))

    def errors(self) -> Numbers:
        """|o - o'| where o' keeps that token alone."""
        tokens = list(zip(self.weights, self.values, strict=True))
        out = sum((a * v for a, v in tokens), Fraction(0))
        return tuple(abs(out - (v if self.renormalised else a * v)) for a, v in tokens)

    def holds(self) -> bool:
        """One contribution is the largest, and keeping another token leaves a smaller error."""
        if not shares_of_one(self.weights):
            return False
        contributions, errors = self.contributions(), self.errors()
        first = max(contributions)
        return contributions.count(first) == 1 and min(errors) < errors[contributions.index(first)]

    def facts(self) -> dict[str, str]:
        """The numbers, and what becomes of them, by name."""
        weight = "with weight 1" if self.renormalised else "with its weight"
        return {
            "weights a": written(*self.weights),
            "values v": written(*self.values),
            "a |v|": written(*self.contributions()),
            f"error where it alone is kept, {weight}": written(*self.errors()),
        }


class Dropped(NamedTuple):
    """Two tokens that are not read, with values of two numbers; what is lost is a sum, and a square of one."""

    weights: Numbers  # below 1 in sum: something is kept
    values: tuple[Numbers, ...]

    def lost(self) -> Fraction:
        """|sum a v|^2."""
        columns = zip(*self.values, strict=True)
        total = [sum(a * x for a, x in zip(self.weights, column, strict=True)) for column in columns]
        return sum((x * x for x in total), Fraction(0))

    def without_cross_terms(self) -> Fraction:
        """Sum of a^2 |v|^2, what App. B keeps of it."""
        pairs = zip(self.weights, self.values, strict=True)
        return sum((a * a * sum((x * x for x in v), Fraction(0)) for a, v in pairs), Fraction(0))

    def holds(self) -> bool:
        """Dropping the cross terms changes the number."""
        left = 1 - sum(self.weights, Fraction(0))
        return shares_of_one((*self.weights, left)) and self.lost() != self.without_cross_terms()

    def facts(self) -> dict[str, str]:
        """The numbers, and what becomes of them, by name."""
        return {
            "weights a of what is dropped": written(*self.weights),
            "values v": ", ".join(f"({written(*v)})" for v in self.values),
            "|sum of a v|²": written(self.lost()),
            "sum of a² |v|²": written(self.without_cross_terms()),
        }


class Named(NamedTuple):
    """All tokens there are, read as the first few and the newest few; where the two overlap, a token is named twice."""

    weights: Numbers
    values: Numbers
    sinks: int
    window: int

    def names(self) -> tuple[int, ...]:
        """The first tokens, then the newest."""
        n = len(self.weights)
        return (*range(self.sinks), *range(n - self.window, n))

    def output(self, names: tuple[int, ...]) -> Fraction:
        """The weighted mean of the values of these tokens, each as often as it is named."""
        total = sum((self.weights[i] for i in names), Fraction(0))
        return sum((self.weights[i] * self.values[i] for i in names), Fraction(0)) / total

    def once(self) -> Fraction:
        """The output of the set, in which no token is twice."""
        return self.output(tuple(sorted(set(self.names()))))

    def holds(self) -> bool:
        """Counting names is not counting tokens."""
        names = self.names()
        return shares_of_one(self.weights) and len(set(names)) < len(names) and self.output(names) != self.once()

    def facts(self) -> dict[str, str]:
        """The numbers, and what becomes of them, by name."""
        return {
            "weights a": written(*self.weights),
            "values v": written(*self.values),
            "tokens as named": ", ".join(str(i + 1) for i in self.names()),
            "output of the list": written(self.output(self.names())),
            "output of the set": written(self.once()),
        }


Example = Lift | Kept | Dropped | Named


def written(*numbers: Fraction) -> str:
    """Fractions with commas between them."""
    return ", ".join(map(str, numbers))


def shares_of_one(weights: Numbers) -> bool:
    """Whether these are all the weights of a softmax."""
    return min(weights) > 0 and sum(weights) == 1


def rooted(x: Fraction) -> bool:
    """Whether x is the square of a fraction."""
    return x >= 0 and all(isqrt(n) ** 2 == n for n in (x.numerator, x.denominator))


def root(x: Fraction) -> Fraction:
    """The square root of a square; ValueError for any other number."""
    if not rooted(x):
        raise ValueError(f"x must be the square of a fraction, got {x}")
    return Fraction(isqrt(x.numerator), isqrt(x.denominator))


# -- all small ones, smallest first -----------------------------------------------------------------------------------


def fractions_of(size: int) -> list[Fraction]:
    """The fractions p/r in lowest terms with |p| + r of this size: 0; 1 and -1; 2, 1/2, -1/2 and -2; and so on."""
    if size == 1:
        return [Fraction(0)]
    positive = [Fraction(p, size - p) for p in range(size - 1, 0, -1) if gcd(p, size - p) == 1]
    return positive + [-x for x in reversed(positive)]


def splits(total: int, parts: int, least: int = 1) -> Iterator[tuple[int, ...]]:
    """The ways to write `total` as a sum of so many whole numbers, each at least `least`, in their order."""
    if parts == 1:
        if total >= least:
            yield (total,)
        return
    for first in range(least, total - least * (parts - 1) + 1):
        yield from ((first, *rest) for rest in splits(total - first, parts - 1, least))


def weightings(whole: int, tokens: int) -> Iterator[Numbers]:
    """Softmax weights in lowest terms over the denominator `whole`, none of them 0."""
    for counts in splits(whole, tokens):
        if gcd(*counts) == 1:
            yield tuple(Fraction(n, whole) for n in counts)


def signed(sizes: tuple[int, ...]) -> Iterator[Numbers]:
    """Whole numbers of these sizes with every choice of signs; 0 has one."""
    for signs in product((1, -1), repeat=len(sizes)):
        if all(size or sign == 1 for size, sign in zip(sizes, signs, strict=True)):
            yield tuple(Fraction(size * sign) for size, sign in zip(sizes, signs, strict=True))


def lifts(size: int) -> Iterator[Lift]:
    """Those whose q, keys and M have sizes |p| + r that sum to this; q > 0, as changing all signs changes nothing."""
    for sizes in splits(size, 4):
        for q, first, second, longest in product(*map(fractions_of, sizes)):
            if q > 0:
                yield Lift(q, (first, second), longest)


def kept(size: int, tokens: int, renormalised: bool) -> Iterator[Kept]:
    """Those whose denominator and whole values, none of them 0, sum to this. The largest contribution comes first and
    is positive; the order of the others, and the sign of all, change nothing.
    """
    for whole in range(tokens, size):
        for weights, sizes in product(weightings(whole, tokens), splits(size - whole, tokens)):
            for values in signed(sizes):
                example = Kept(weights, values, renormalised)
                shares = example.contributions()
                if values[0] > 0 and list(shares) == sorted(shares, reverse=True):
                    yield example


def dropped(size: int) -> Iterator[Dropped]:
    """Those whose denominator and whole values sum to this."""
    for whole in range(3, size):
        for first, second, _ in weightings(whole, 3):
            for sizes in splits(size - whole, 4, least=0):
                for a, b, c, d in signed(sizes):
                    yield Dropped((first, second), ((a, b), (c, d)))


def named(size: int) -> Iterator[Named]:
    """Those whose tokens, denominator and whole values sum to this, with every pair of windows that overlap."""
    for tokens in range(2, size):
        for whole in range(tokens, size - tokens + 1):
            for weights in weightings(whole, tokens):
                for sizes in splits(size - tokens - whole, tokens, least=0):
                    for values in signed(sizes):
                        for sinks, window in product(range(1, tokens + 1), repeat=2):
                            if sinks + window > tokens:
                                yield Named(weights, values, sinks, window)


# -- one from a seed --------------------------------------------------------------------------------------------------


def numbers(seed: int) -> Iterator[int]:
    """Whole numbers by Park and Miller's generator, x <- 16807 x mod 2^31 - 1. Its products stay below 2^53, so a
    browser draws the same. The first few, which follow a small seed closely, are left out.
    """
    x = seed % 2147483646 + 1
    for turn in count():
        x = 16807 * x % 2147483647
        if turn >= 4:
            yield x


def below(drawn: Iterator[int], limit: int) -> int:
    """A number from 1 to limit."""
    return next(drawn) % limit + 1


def drawn_value(drawn: Iterator[int]) -> Fraction:
    """A whole number from -5 to 5 that is not 0."""
    return Fraction(below(drawn, 5) * (2 * below(drawn, 2) - 3))


def drawn_weights(drawn: Iterator[int], tokens: int) -> Numbers:
    """Softmax weights over counts from 1 to 9."""
    counts = [below(drawn, 9) for _ in range(tokens)]
    return tuple(Fraction(n, sum(counts)) for n in counts)


def draw_lift(drawn: Iterator[int]) -> Lift:
    """M = 1, and keys (a^2 - b^2)/(a^2 + b^2), whose roots are 2ab/(a^2 + b^2)."""
    sides = [(below(drawn, 6), below(drawn, 6)) for _ in range(2)]
    keys = tuple(Fraction(a * a - b * b, a * a + b * b) for a, b in sides)
    return Lift(Fraction(below(drawn, 4), below(drawn, 4)), keys, Fraction(1))


def draw_kept(drawn: Iterator[int], tokens: int, renormalised: bool) -> Kept:
    """So many tokens."""
    return Kept(drawn_weights(drawn, tokens), tuple(drawn_value(drawn) for _ in range(tokens)), renormalised)


def draw_dropped(drawn: Iterator[int]) -> Dropped:
    """Two of three tokens."""
    return Dropped(drawn_weights(drawn, 3)[:2], tuple((drawn_value(drawn), drawn_value(drawn)) for _ in range(2)))


def draw_named(drawn: Iterator[int]) -> Named:
    """Two to five tokens, windows of any length up to all."""
    tokens = below(drawn, 4) + 1
    weights, values = drawn_weights(drawn, tokens), tuple(drawn_value(drawn) for _ in range(tokens))
    return Named(weights, values, below(drawn, tokens), below(drawn, tokens))


# -- the kinds --------------------------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """The sentence that examples of this kind refute, the candidates of one size, and one candidate that is drawn."""

    refutes: str
    candidates: Callable[[int], Iterator[Example]]
    draw: Callable[[Iterator[int]], Example]


KINDS = {
    "lift": Kind("the lift [q, 1, 1] keeps the ranking", lifts, draw_lift),
    "isolated": Kind(
        "keeping the largest a|v| minimises the error",
        lambda size: kept(size, 3, False),  # of two tokens it does
        lambda drawn: draw_kept(drawn, 3, False),
    ),
    "renormalised": Kind(
        "the same with weights that are renormalised",
        lambda size: kept(size, 2, True),
        lambda drawn: draw_kept(drawn, 2, True),
    ),
    "cross_terms": Kind("dropping the cross terms is exact", dropped, draw_dropped),
    "duplicates": Kind("a token named twice counts once in a list, too", named, draw_named),
}


def fractions(text: str) -> Numbers:
    """Numbers written with spaces between them."""
    return tuple(map(Fraction, text.split()))


STORED: dict[str, tuple[Example, ...]] = {
    "lift": (
        Lift(Fraction(1, 2), fractions("0 1"), Fraction(1)),
        Lift(Fraction(1), fractions("3/5 1"), Fraction(1)),  # the smallest with q = 1
    ),
    "isolated": (
        Kept(fractions("1/3 1/3 1/3"), fractions("2 -1 -1"), False),
        Kept(fractions("1/2 1/4 1/4"), fractions("1 -1 -1"), False),  # the smallest with values of length 1
        Kept(fractions("9/20 7/20 1/5"), fractions("1 -1 1"), False),  # the reader's
    ),
    "renormalised": (
        Kept(fractions("1/3 2/3"), fractions("3 1"), True),
        Kept(fractions("3/7 2/7 2/7"), fractions("1 -1 -1"), True),  # the largest weight is the wrong one, too
    ),
    "cross_terms": (Dropped(fractions("1/3 1/3"), (fractions("0 1"), fractions("0 1"))),),
    "duplicates": (Named(fractions("1/2 1/2"), fractions("0 1"), 1, 2),),
}


def kind_of(name: str) -> Kind:
    """The kind of this name; ValueError for another."""
    if name not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {name!r}")
    return KINDS[name]


def verify(example: Example) -> bool:
    """Whether the example refutes the sentence of its kind, in exact arithmetic."""
    return example.holds()


def search(kind: str, limit: int = 16) -> Iterator[Example]:
    """Every counterexample of a kind up to a size, the smallest first; `Kind.candidates` says what is summed to a size.

    Raises ValueError for an unknown kind.
    """
    candidates = kind_of(kind).candidates
    return (example for size in range(1, limit + 1) for example in candidates(size) if verify(example))


def find(kind: str, seed: int) -> Example:
    """A counterexample of a kind, the same one for a seed every time: "find another" is the next seed.

    Raises ValueError for an unknown kind.
    """
    draw, drawn = kind_of(kind).draw, numbers(seed)
    return next(example for example in (draw(drawn) for _ in count()) if verify(example))
