"""Wrong answers that readers give to the exercises on HashAttention, written anew here, and what the check says of
them; right answers in other ways than ours; and what no check may take for an answer.
"""

import math
from fractions import Fraction
from itertools import islice

import numpy as np
import pytest

from attnlab.exercises import hashattention
from attnlab.hashattention import rational

# -- words --


def bits_of(row):
    """The bits of one token, in strings of 32, the last one filled up with zeros."""
    text = "".join("1" if x > 0 else "0" for x in row)
    text += "0" * (-len(text) % 32)
    return [text[i : i + 32] for i in range(0, len(text), 32)]


def packed_by_strings(features):
    return np.array([[int(word[::-1], 2) for word in bits_of(row)] for row in features], np.uint32)


def packed_by_packbits(features):
    filled = np.pad(features > 0, ((0, 0), (0, -features.shape[1] % 32)))
    return np.packbits(filled, axis=1, bitorder="little").view(np.uint32)


def int_reads_from_the_left(features):
    return np.array([[int(word, 2) for word in bits_of(row)] for row in features], np.uint32)


def packbits_as_it_comes(features):
    return np.packbits(np.pad(features > 0, ((0, 0), (0, -features.shape[1] % 32))), axis=1).view(np.uint32)


def zero_counts_as_positive(features):
    return packed_by_strings(np.where(features >= 0, 1, -1))


def like_digits_on_paper(features):
    return np.array([[int(word[::-1], 2) for word in reversed(bits_of(row))] for row in features], np.uint32)


def powers_of_a_float(features):
    return np.array(
        [[sum(2.0**i for i, c in enumerate(word) if c == "1") for word in bits_of(row)] for row in features]
    )


def summed_without_a_type(features):
    return packed_by_packbits(features)[..., None].sum(axis=-1)


# -- scores --


def scored_by_python(query_codes, key_codes):
    wide = [[sum(int(w) << 32 * i for i, w in enumerate(row)) for row in codes] for codes in (query_codes, key_codes)]
    return np.array([[-(q ^ k).bit_count() for k in wide[1]] for q in wide[0]]).reshape(len(wide[0]), len(wide[1]))


def negated_counts(query_codes, key_codes):
    counts = np.bitwise_count(np.bitwise_xor(query_codes[:, np.newaxis], key_codes[np.newaxis]))
    return np.negative(counts.sum(-1))


def negated_bytes(query_codes, key_codes):
    return sum(
        -np.bitwise_count(q[:, None] ^ k).astype(int) % 256 for q, k in zip(query_codes.T, key_codes.T, strict=True)
    )


def unequal_words(query_codes, key_codes):
    return np.array([[-np.count_nonzero(q != k) for k in key_codes] for q in query_codes])


def product_of_zeros_and_ones(query_codes, key_codes):
    query_bits, key_bits = (np.unpackbits(x.view(np.uint8), axis=1).astype(int) for x in (query_codes, key_codes))
    return query_bits @ key_bits.T


# -- bytes --


def counted_one_by_one(tokens, budget, sinks, window, width, bits, element_bytes, group):
    dense = sum(element_bytes for _ in range(tokens) for _ in range(2 * width))
    code = 4 * math.ceil(bits / 32)
    reads = sum(1 for _ in range(min(budget + sinks + window, tokens))) * group
    return [dense, dense // max(tokens, 1) * reads + code * tokens, dense + code * tokens]


def codes_of_what_is_read(tokens, budget, sinks, window, width, bits, element_bytes, group):
    m, key = min(tokens, budget + sinks + window), width * element_bytes
    code = 4 * math.ceil(bits / 32)
    return tokens * 2 * key, m * (2 * key * group + code), tokens * (2 * key + code)


def only_the_set_is_kept(tokens, budget, sinks, window, width, bits, element_bytes, group):
    dense, sparse, _ = counted_one_by_one(tokens, budget, sinks, window, width, bits, element_bytes, group)
    m, code = min(tokens, budget + sinks + window), 4 * math.ceil(bits / 32)
    return dense, sparse, 2 * m * width * element_bytes + tokens * code


def bits_are_eighths_of_bytes(tokens, budget, sinks, window, width, bits, element_bytes, group):
    m, pair = min(tokens, budget + sinks + window), 2 * width * element_bytes
    return tokens * pair, group * m * pair + tokens * bits / 8, tokens * (pair + bits / 8)


def sets_larger_than_the_cache(tokens, budget, sinks, window, width, bits, element_bytes, group):
    dense, _, kept = counted_one_by_one(tokens, budget, sinks, window, width, bits, element_bytes, group)
    return dense, (budget + sinks + window) * group * 2 * width * element_bytes + kept - dense, kept


def one_set_is_enough(tokens, budget, sinks, window, width, bits, element_bytes, group):
    return tuple(counted_one_by_one(tokens, budget, sinks, window, width, bits, element_bytes, 1))


def each_head_scans(tokens, budget, sinks, window, width, bits, element_bytes, group):
    dense, sparse, kept = counted_one_by_one(tokens, budget, sinks, window, width, bits, element_bytes, group)
    return dense, sparse + tokens * 4 * math.ceil(bits / 32) * (group - 1), kept


# -- the set, as Python sets --


def chosen_by_sets(score, budget, sinks, window, order=lambda row, i: (-row[i], i), sees=None, price=lambda fixed: 0):
    T, S = score.shape
    chosen = np.zeros(score.shape, bool)
    for t, row in enumerate(score.tolist()):
        n = S - T + t + 1 if sees is None else sees
        fixed = set(range(min(sinks, n))) | set(range(max(n - window, 0), n))
        rest = sorted(set(range(n)) - fixed, key=lambda i, row=row: order(row, i))
        chosen[t, [*fixed, *rest[: max(budget - price(fixed), 0)]]] = True
    return chosen


def chosen_with_a_lexsort(score, budget, sinks, window):
    T, S = score.shape
    index, last = np.arange(S), np.arange(S - T, S)[:, None]
    fixed = ((index < sinks) | (index > last - window)) & (index <= last)
    key = np.where(fixed | (index > last), 1, -score - 1000)
    order = np.lexsort((np.broadcast_to(index, key.shape), key), axis=-1)
    place = np.argsort(order, axis=-1, kind="stable")
    return fixed | ((place < budget) & (key < 1))


def nothing_is_later(score, budget, sinks, window):
    return chosen_by_sets(score, budget, sinks, window, sees=score.shape[1])


def sorted_and_reversed(score, budget, sinks, window):
    return chosen_by_sets(score, budget, sinks, window, order=lambda row, i: (-row[i], -i))


def partitioned(score, budget, sinks, window):
    out = []
    for t, row in enumerate(score):
        n = len(row) - len(score) + t + 1
        mask = np.r_[np.full(min(sinks, n), True), np.full(max(n - sinks, 0), False)]
        mask[max(n - window, 0) :] = True
        free = (~mask).nonzero()[0]
        mask[free[np.argpartition(-row[free], budget)[:budget]]] = True
        out.append(np.r_[mask, np.full(len(row) - n, False)])
    return np.stack(out)


def partitioned_from_the_end(score, budget, sinks, window):
    chosen = chosen_by_sets(score, 0, sinks, window)
    for t, row in enumerate(chosen):
        n = len(row) - len(chosen) + t + 1
        candidates = np.where(row[:n], -(10**6), score[t, :n])
        row[np.argpartition(candidates, n - budget)[n - budget :]] = True
    return chosen


def sorted_by_default(score, budget, sinks, window):
    chosen = chosen_by_sets(score, 0, sinks, window)
    for t, row in enumerate(chosen):
        free = [i for i in range(len(row) - len(chosen) + t + 1) if not row[i]]
        row[np.array(free)[np.argsort(-score[t, free])[:budget]]] = True
    return chosen


def best_of_all_then_windows(score, budget, sinks, window):
    return chosen_by_sets(score, budget, 0, 0) | chosen_by_sets(score, 0, sinks, window)


def windows_use_up_the_budget(score, budget, sinks, window):
    return chosen_by_sets(score, budget, sinks, window, price=len)


def slice_of_minus_0(score, budget, sinks, window):
    chosen = chosen_by_sets(score, budget, sinks, window)
    for t, row in enumerate(chosen):
        row[: len(row) - len(chosen) + t + 1][-window:] = True
    return chosen


# -- attention --


def weighted(q, k, v, counts, among=None):
    """Softmax over tokens that are named so often; `among` are those that the denominator counts."""
    logits = np.einsum("k,sk->s", q, k) / len(q) ** 0.5
    among = counts if among is None else among
    if not among.any():
        return np.zeros(v.shape[1])
    e = np.exp(logits - logits[among > 0].max(), where=among > 0, out=np.zeros(len(k)))
    return np.einsum("s,sv->v", counts * e, v) / (among * e).sum()


def named(S, nearest, sinks, window):
    """How often each token is named."""
    counts = np.bincount(nearest, minlength=S)
    counts[:sinks] += 1
    counts[max(S - window, 0) : S] += 1
    return counts


def attended_through_a_mask(q, k, v, nearest, sinks, window):
    return weighted(q, k, v, np.minimum(named(len(k), nearest, sinks, window), 1))


def attended_as_a_list(q, k, v, nearest, sinks, window):
    return weighted(q, k, v, named(len(k), nearest, sinks, window))


def masked_after_the_softmax(q, k, v, nearest, sinks, window):
    counts = np.minimum(named(len(k), nearest, sinks, window), 1)
    return weighted(q, k, v, counts, np.ones(len(k), int))


def not_scaled(q, k, v, nearest, sinks, window):
    return attended_through_a_mask(q * len(q) ** 0.5, k, v, nearest, sinks, window)


def window_of_minus_0(q, k, v, nearest, sinks, window):
    counts = np.minimum(named(len(k), nearest, sinks, window), 1)
    counts[-window:] = 1
    return weighted(q, k, v, counts)


def maximum_of_all_keys(q, k, v, nearest, sinks, window):
    counts = np.minimum(named(len(k), nearest, sinks, window), 1)
    logits = k @ q / len(q) ** 0.5
    weights = np.exp(logits - logits.max()) * counts
    with np.errstate(invalid="ignore"):
        return weights @ v / weights.sum()


def no_maximum(q, k, v, nearest, sinks, window):
    counts = np.minimum(named(len(k), nearest, sinks, window), 1)
    weights = np.exp(k @ q / len(q) ** 0.5) * counts
    with np.errstate(invalid="ignore"):
        return weights @ v / weights.sum()


# -- the lift --


def unit(q):
    return q / math.sqrt(q @ q)


def along_q(q, last):
    """As long as they can be apart along q: last^2 (1 + a) = 0.99 (1 - a) |q|^2 or nearer."""
    ratio = 0.5 * last**2 / (q @ q)
    return 1000.0 * np.outer([(1 - ratio) / (1 + ratio), 1.0], unit(q))


def nearly_at_right_angles(q, last):
    """Where there is more than one number to a key: 0, and a long key hardly along q."""
    if len(q) == 1:
        return along_q(q, last)
    across = np.eye(len(q))[np.argmin(np.abs(q))]
    across = unit(across - (across @ unit(q)) * unit(q))
    return np.array([0.0 * q, 1e-3 * unit(q) + max(1.0, len(q)) * (q @ q) ** 0.5 / last * across])


def both_against_q(q, last):
    """Two negative products; whole numbers where that is easy."""
    if len(q) == 1:
        return along_q(q, last)
    across = np.eye(len(q))[np.argmin(np.abs(q))]
    across = unit(across - (across @ unit(q)) * unit(q))
    return [(-0.2 * unit(q)).tolist(), (-0.1 * unit(q) + 10 * (q @ q) ** 0.5 / last * across).tolist()]


def two_unit_vectors(q, last):
    away = -np.sign(q[0]) * np.eye(len(q))[0]
    return np.stack([away, unit(q)])


def three_fifths_and_one(q, last):
    return np.stack([3 * unit(q), 5 * unit(q)]) / 5


def the_wrong_way_round(q, last):
    return along_q(q, last)[[1, 0]]


def longer_key_behind(q, last):
    return np.stack([-2 * unit(q), unit(q)])


CASES = [
    (hashattention.pack, int_reads_from_the_left, "most significant first"),
    (hashattention.pack, packbits_as_it_comes, "bytes from the left"),
    (hashattention.pack, zero_counts_as_positive, "0 is taken for positive"),
    (hashattention.pack, like_digits_on_paper, "the last word first"),
    (hashattention.pack, powers_of_a_float, "not uint32"),
    (hashattention.pack, summed_without_a_type, "not uint32"),
    (hashattention.score, negated_counts, "minus of an unsigned sum"),
    (hashattention.score, negated_bytes, "minus of eight bits"),
    (hashattention.score, unequal_words, "words in place of bits"),
    (hashattention.score, product_of_zeros_and_ones, "AND in place of XOR"),
    (hashattention.bytes_read, codes_of_what_is_read, "codes of the read tokens alone"),
    (hashattention.bytes_read, only_the_set_is_kept, "memory is saved"),
    (hashattention.bytes_read, bits_are_eighths_of_bytes, "parts of a word"),
    (hashattention.bytes_read, sets_larger_than_the_cache, "more than there are"),
    (hashattention.bytes_read, one_set_is_enough, "one set for the group"),
    (hashattention.bytes_read, each_head_scans, "codes for every query head"),
    (hashattention.select, nothing_is_later, "later keys are read"),
    (hashattention.select, sorted_and_reversed, "ties go to the newest"),
    (hashattention.select, partitioned, "argpartition"),
    (hashattention.select, best_of_all_then_windows, "windows compete"),
    (hashattention.select, windows_use_up_the_budget, "windows are paid from the budget"),
    (hashattention.select, slice_of_minus_0, "minus 0"),
    (hashattention.attend, attended_as_a_list, "a token twice"),
    (hashattention.attend, masked_after_the_softmax, "weights of the dense softmax"),
    (hashattention.attend, not_scaled, "no root of K"),
    (hashattention.attend, window_of_minus_0, "minus 0"),
    (hashattention.lift, three_fifths_and_one, "the example of one number"),
    (hashattention.lift, two_unit_vectors, "two keys of one length"),
]


@pytest.mark.parametrize(("exercise", "answer", "mistake"), CASES)
@pytest.mark.parametrize("seed", range(5))
def test_a_usual_mistake_is_named(exercise, answer, mistake, seed):
    checked = exercise.check(answer, seed=seed)
    assert not checked
    assert checked.mistake == mistake


@pytest.mark.parametrize(
    ("exercise", "answer", "sentence"),
    [
        (hashattention.pack, powers_of_a_float, "must be uint32, got float64"),
        (hashattention.pack, summed_without_a_type, "must be uint32, got uint64"),
        (hashattention.select, nothing_is_later, "reads a later one"),
        (hashattention.select, partitioned, "Among equals it is the lower index"),
        (hashattention.select, partitioned_from_the_end, "Among equals it is the lower index"),
        (hashattention.select, sorted_by_default, "Among equals it is the lower index"),
        (hashattention.select, windows_use_up_the_budget, "Beside its first and newest keys"),
        (hashattention.select, lambda score, budget, sinks, window: chosen_by_sets(score, budget + sinks, 0, window),
         "does not read all of its first and newest"),
        (hashattention.select, lambda score, budget, sinks, window: chosen_by_sets(-score, budget, sinks, window),
         "others have better scores"),
        (hashattention.select, lambda score, budget, sinks, window: score, "chosen[0,"),
        (hashattention.attend, maximum_of_all_keys, "the largest logit of the set"),
        (hashattention.attend, no_maximum, "the largest logit of the set"),
        (hashattention.lift, two_unit_vectors, "Both keys have the length M"),
        (hashattention.lift, three_fifths_and_one, "so the order is kept"),
        (hashattention.lift, the_wrong_way_round, "the second must be the larger one, and it is smaller"),
        (hashattention.lift, longer_key_behind, "The first key is the longer one"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("seed", range(5))
def test_the_check_says_what_is_wrong(exercise, answer, sentence, seed):
    checked = exercise.check(answer, seed=seed)
    assert not checked
    assert sentence in checked.message


@pytest.mark.parametrize(
    ("exercise", "answer"),
    [
        (hashattention.pack, packed_by_strings),
        (hashattention.pack, packed_by_packbits),
        (hashattention.score, scored_by_python),
        (hashattention.bytes_read, counted_one_by_one),
        (hashattention.select, chosen_by_sets),
        (hashattention.select, chosen_with_a_lexsort),
        (hashattention.attend, attended_through_a_mask),
        (hashattention.lift, along_q),
        (hashattention.lift, nearly_at_right_angles),
        (hashattention.lift, both_against_q),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_another_right_answer_passes(exercise, answer, seed):
    assert exercise.check(answer, seed=seed)


@pytest.mark.parametrize(
    "keys",
    [
        lambda q: 0 * np.stack([q, q]),
        lambda q: np.stack([q, q]),
        lambda q: np.zeros((2, 0)),
        lambda q: [],
        lambda q: np.full((2, len(q)), np.nan),
        lambda q: np.stack([0 * q, np.inf * q]),
        lambda q: np.stack([np.nan * q, q]),
        lambda q: along_q(q, 1.0)[..., None],
        lambda q: along_q(q, 1.0).T if len(q) != 2 else along_q(q, 1.0)[:1],
        lambda q: np.stack([*along_q(q, 1.0), q]),
        lambda q: along_q(q, 1.0).astype(complex),
        lambda q: along_q(q, 1.0).astype(str),
        lambda q: [[1.0], [2.0, 3.0]],
        lambda q: [[Fraction(1)] * len(q), [Fraction(2)] * len(q)],
        lambda q: {"keys": along_q(q, 1.0)},
        lambda q: "keys",
        lambda q: 3.0,
        lambda q: True,
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_nothing_degenerate_passes_for_keys(keys, seed):
    checked = hashattention.lift.check(lambda q, last: keys(q), seed=seed)
    assert not checked
    assert "keys" in checked.message or "q·k" in checked.message


@pytest.mark.parametrize("size", [1e300, 1e-300])
def test_keys_of_any_size_are_judged(size):
    assert hashattention.lift.check(lambda q, last: size * along_q(q, last) / 1000, seed=0)
    assert not hashattention.lift.check(lambda q, last: size * three_fifths_and_one(q, last), seed=0)


def test_the_judge_of_the_lift_agrees_with_exact_examples_of_one_number():
    judge = hashattention.lift.judge
    examples = [x for x in islice(rational.search("lift"), 200) if x.longest == max(map(abs, x.keys))]
    assert len(examples) > 10
    for example in examples:
        arguments = {"q": np.array([float(example.q)]), "last": 1.0}
        keys = np.array([[float(k)] for k in example.keys])
        assert judge(keys, arguments) == ""
        assert judge(keys[::-1], arguments)
        assert judge(keys, arguments | {"last": 0.0})  # with 0 the order is kept


@pytest.mark.parametrize("answer", [lambda **a: [], lambda **a: np.zeros((0, 0)), lambda **a: np.nan, lambda **a: "all",
                                    lambda **a: [[True], [True, False]]])  # fmt: skip
@pytest.mark.parametrize("exercise", hashattention.EXERCISES, ids=repr)
def test_nothing_empty_passes(exercise, answer):
    assert not exercise.check(answer, seed=1)
