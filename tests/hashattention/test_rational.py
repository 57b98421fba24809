"""Counterexamples in fractions: numbers worked out by hand, searches that miss none and start with the smallest."""

from fractions import Fraction
from itertools import islice

import numpy as np
import pytest

from attnlab.hashattention import rational, reference
from attnlab.hashattention.rational import Dropped, Kept, Lift, Named, fractions

F = Fraction
KINDS = list(rational.KINDS)
STORED = [pytest.param(kind, x, id=f"{kind}-{i}") for kind in KINDS for i, x in enumerate(rational.STORED[kind])]

# one of each kind that looks like a counterexample and is none
NEAR = {
    "lift": Lift(F(1), fractions("0 1"), F(1)),  # a tie: 1 and 1
    "isolated": Kept(fractions("1/2 1/3 1/6"), fractions("1 -1 1"), False),  # a tie: 1/6 and 1/6
    "renormalised": Kept(fractions("2/3 1/3"), fractions("3 1"), True),
    "cross_terms": Dropped(fractions("1/3 1/3"), (fractions("0 1"), fractions("1 0"))),  # orthogonal
    "duplicates": Named(fractions("1/2 1/2"), fractions("1 1"), 1, 2),  # a constant comes back however it is counted
}


def size(example):
    """What `Kind.candidates` sums to a size, written down once more."""

    def tall(numbers):
        return sum(abs(x) for x in numbers)

    match example:
        case Lift(q, keys, longest):
            return sum(abs(x.numerator) + x.denominator for x in (q, *keys, longest))
        case Kept(weights, values, _):
            return np.lcm.reduce([a.denominator for a in weights]) + tall(values)
        case Dropped(weights, values):
            left = 1 - sum(weights)
            return np.lcm.reduce([a.denominator for a in (*weights, left)]) + sum(map(tall, values))
        case Named(weights, values, _, _):
            return len(weights) + np.lcm.reduce([a.denominator for a in weights]) + tall(values)


@pytest.mark.parametrize(("kind", "example"), STORED)
def test_a_stored_example_holds_and_nothing_smaller_does_before_the_first(kind, example):
    assert rational.verify(example)
    first = next(rational.search(kind))
    assert size(first) == size(rational.STORED[kind][0]) <= size(example)


@pytest.mark.parametrize("kind", KINDS)
def test_a_near_miss_does_not_hold(kind):
    assert not rational.verify(NEAR[kind])


def test_the_numbers_by_hand():
    unit_query = Lift(F(1), fractions("3/5 1"), F(1))
    assert unit_query.products() == fractions("3/5 1")
    assert unit_query.lifted() == fractions("7/5 1")
    assert unit_query.lifted(last=0) == unit_query.products()
    readers = Kept(fractions("9/20 7/20 1/5"), fractions("1 -1 1"), False)
    assert readers.contributions() == fractions("9/20 7/20 1/5")
    assert readers.errors() == fractions("3/20 13/20 1/10")
    assert readers._replace(renormalised=True).errors() == fractions("7/10 13/10 7/10")  # o = 3/10 beside 1, -1, 1
    parallel = Dropped(fractions("1/3 1/3"), (fractions("0 1"), fractions("0 1")))
    assert (parallel.lost(), parallel.without_cross_terms()) == (F(4, 9), F(2, 9))
    overlap = Named(fractions("1/2 1/2"), fractions("0 1"), 1, 2)
    assert overlap.names() == (0, 0, 1)
    assert (overlap.output(overlap.names()), overlap.once()) == (F(1, 3), F(1, 2))


def test_a_lift_needs_lengths_within_m_and_rational_roots():
    reversed_by_it = Lift(F(1), fractions("3/5 1"), F(1))
    assert not reversed_by_it._replace(longest=F(4, 5)).holds()  # shorter than a key
    assert not reversed_by_it._replace(keys=fractions("1/2 1")).holds()  # the root of 3/4
    assert rational.root(F(49, 25)) == F(7, 5)
    with pytest.raises(ValueError, match="square of a fraction, got 3/4"):
        rational.root(F(3, 4))


@pytest.mark.parametrize("weights", ["1/2 1/4 1/8", "3/4 1/2 -1/4"])
def test_weights_that_no_softmax_has_make_no_example(weights):
    for renormalised in (False, True):
        assert not Kept(fractions(weights), fractions("1 -1 -1"), renormalised).holds()
    assert not Named(fractions(weights), fractions("0 1 2"), 1, 3).holds()
    assert not Dropped(fractions("1/2 1/2"), (fractions("0 1"), fractions("0 1"))).holds()  # nothing would be kept


def test_stored_examples_are_the_smallest_of_what_their_comments_say():
    assert next(x for x in rational.search("lift") if x.q == 1) == rational.STORED["lift"][1]
    unit_values = (x for x in rational.search("isolated") if set(map(abs, x.values)) == {1})
    assert next(unit_values) == rational.STORED["isolated"][1]
    three = rational.STORED["renormalised"][1]
    heaviest = three.weights.index(max(three.weights))
    assert min(three.errors()) < three.errors()[heaviest]


def test_two_tokens_kept_as_they_were_are_no_counterexample():
    assert not any(x.holds() for total in range(12) for x in rational.kept(total, 2, False))


@pytest.mark.parametrize("kind", KINDS)
def test_a_search_goes_by_size_and_repeats_nothing(kind):
    found = list(islice(rational.search(kind), 60))
    sizes = [size(example) for example in found]
    assert len(set(found)) == 60
    assert sizes == sorted(sizes)
    assert all(map(rational.verify, found))


def test_the_search_misses_no_three_tokens_of_a_small_denominator():
    """All weights n/6 and values in [-2, 2], by brute force; the order of the last two and all signs change nothing."""
    wanted = set()
    for a in range(1, 5):
        for b in range(1, 6 - a):
            weights = (F(a, 6), F(b, 6), F(6 - a - b, 6))
            for index in np.ndindex(5, 5, 5):
                values = tuple(F(i - 2) for i in index)
                if 0 not in values and np.lcm.reduce([w.denominator for w in weights]) == 6:
                    example = Kept(weights, values, False)
                    shares = example.contributions()
                    if example.holds() and values[0] > 0 and shares[0] > shares[1] >= shares[2]:
                        wanted.add(example)
    found = {x for x in rational.search("isolated", 12) if size(x) - sum(map(abs, x.values)) == 6}
    assert wanted
    assert {x for x in found if max(map(abs, x.values)) <= 2} == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_finds_the_same_example_every_time_and_seeds_find_many(kind):
    found = [rational.find(kind, seed) for seed in range(60)]
    assert found == [rational.find(kind, seed) for seed in range(60)]
    assert all(map(rational.verify, found))
    assert len(set(found)) >= 40


def test_the_generator_is_the_minimal_standard():
    """x after 10,000 steps from 1 is 1043618065 (Park and Miller, 1988); the first four are left out."""
    assert next(islice(rational.numbers(0), 10_000 - 5, None)) == 1043618065


def test_drawn_numbers_reach_both_ends():
    drawn = rational.numbers(3)
    assert {rational.below(drawn, 6) for _ in range(200)} == set(range(1, 7))
    assert {rational.drawn_value(drawn) for _ in range(400)} == {F(n) for n in range(-5, 6) if n}


def test_the_lists_average_is_what_attention_over_a_list_gives():
    """Weights as logits: the exact number beside the reference's float64 one."""
    x = rational.find("duplicates", 5)
    names = list(x.names())
    k, v = np.log(np.array(x.weights, dtype=float))[:, None], np.array(x.values, dtype=float)[:, None]
    out = reference.gathered(np.ones(1), k[names], v[names], 1.0)[1]
    assert abs(out[0] - float(x.output(x.names()))) <= 1e-14


@pytest.mark.parametrize("call", [lambda: rational.search("lifts"), lambda: rational.find("lifts", 0)])
def test_an_unknown_kind_is_refused(call):
    with pytest.raises(ValueError, match=r"kind must be one of lift, isolated, .*, got 'lifts'"):
        call()
