"""Solutions of the exercises on HashAttention, and the usual mistakes."""

import numpy as np

from attnlab.exercises.exercise import Mistake

# -- codes --


def pack(features):
    """32 signs to a word, the first in the least significant place (Eq. 1, p. 4)."""
    T, b = features.shape
    W = -(-b // 32)
    bits = np.zeros((T, 32 * W), np.uint32)
    bits[:, :b] = features > 0
    places = np.arange(32, dtype=np.uint32)
    return (bits.reshape(T, W, 32) << places).sum(axis=-1, dtype=np.uint32)


def _from_the_left(features):
    turned = np.zeros((len(features), 32 * -(-features.shape[1] // 32)))
    turned[:, : features.shape[1]] = features
    return pack(turned.reshape(len(features), -1, 32)[..., ::-1].reshape(turned.shape))


def _bytes_from_the_left(features):
    bits = np.zeros((len(features), 32 * -(-features.shape[1] // 32)), bool)
    bits[:, : features.shape[1]] = features > 0
    return np.packbits(bits, axis=-1).view("<u4")


def score(query_codes, key_codes):
    """Minus the bits that differ (Eq. 2, p. 4)."""
    differ = query_codes[:, None] ^ key_codes
    return -np.bitwise_count(differ).sum(axis=-1, dtype=np.int64)


def _unsigned(query_codes, key_codes):
    return -np.bitwise_count(query_codes[:, None] ^ key_codes).sum(axis=-1)


def _minus_of_eight_bits(query_codes, key_codes):
    return (-np.bitwise_count(query_codes[:, None] ^ key_codes)).sum(axis=-1)


def _words_that_differ(query_codes, key_codes):
    return -(query_codes[:, None] != key_codes).sum(axis=-1)


def _ones_in_common(query_codes, key_codes):
    return np.bitwise_count(query_codes[:, None] & key_codes).sum(axis=-1, dtype=np.int64)


# -- the set --


def select(score, budget, sinks, window):
    """The first, the newest, and the best of the rest; equals in the order of tokens (Sec. 4, p. 4)."""
    T, S = score.shape
    chosen = np.zeros((T, S), bool)
    for t in range(T):
        n = S - T + t + 1
        index = np.arange(n)
        fixed = (index < sinks) | (index >= n - window)
        rest = np.flatnonzero(~fixed)
        best = rest[np.argsort(-score[t, rest], kind="stable")[:budget]]
        chosen[t, :n] = fixed
        chosen[t, best] = True
    return chosen


def _among_all_keys(score, budget, sinks, window):
    return np.concatenate([select(row[None], budget, sinks, window) for row in score])


def _ties_to_the_newest(score, budget, sinks, window):
    S = score.shape[1]
    return select(score * 2 * S + np.arange(S), budget, sinks, window)


def _by_argpartition(score, budget, sinks, window):
    chosen = select(score, 0, sinks, window)
    for t, row in enumerate(chosen):
        rest = np.flatnonzero(~row[: score.shape[1] - len(score) + t + 1])
        row[rest[np.argpartition(-score[t, rest], budget)[:budget]]] = True
    return chosen


def _windows_compete(score, budget, sinks, window):
    return select(score, budget, 0, 0) | select(score, 0, sinks, window)


def _windows_are_paid_for(score, budget, sinks, window):
    chosen = select(score, 0, sinks, window)
    for t, row in enumerate(chosen):
        n = score.shape[1] - len(score) + t + 1
        row[:n] = select(score[t : t + 1, :n], max(budget - row.sum(), 0), sinks, window)[0]
    return chosen


def _minus_0(score, budget, sinks, window):
    return select(score, budget, sinks, window or score.shape[1])


# -- attention --


def attend(q, k, v, nearest, sinks, window):
    """Softmax over the set alone, with the keys and values as they are (Sec. 4, p. 4)."""
    index = np.arange(len(k))
    read = (index < sinks) | (index >= len(k) - window)
    read[nearest] = True
    if not read.any():
        return np.zeros(v.shape[1])
    logits = k[read] @ q / np.sqrt(len(q))
    weights = np.exp(logits - logits.max())
    return weights @ v[read] / weights.sum()


def _named_twice(q, k, v, nearest, sinks, window):
    S = len(k)
    read = np.concatenate([np.arange(min(sinks, S)), nearest, np.arange(max(S - window, 0), S)]).astype(int)
    return attend(q, k[read], v[read], [], len(read), 0)


def _weights_of_all(q, k, v, nearest, sinks, window):
    unread = np.ones(len(k), bool)
    unread[nearest] = unread[:sinks] = unread[max(len(k) - window, 0) :] = False
    return attend(q, k, np.where(unread[:, None], 0.0, v), [], len(k), 0)


def _unscaled(q, k, v, nearest, sinks, window):
    return attend(np.sqrt(len(q)) * q, k, v, nearest, sinks, window)


def _no_window_is_all(q, k, v, nearest, sinks, window):
    return attend(q, k, v, nearest, sinks, window or len(k))


# -- what it costs --


def bytes_read(tokens, budget, sinks, window, width, bits, element_bytes, group):
    """Each query head its own set, all codes for all of them, and everything kept (Secs. 4.4 and 6, pp. 5-9)."""
    token = 2 * width * element_bytes
    codes = tokens * 4 * -(-bits // 32)
    dense = tokens * token
    sparse = group * min(tokens, sinks + window + budget) * token + codes
    return dense, sparse, dense + codes


def _codes_of_the_read(tokens, budget, sinks, window, width, bits, element_bytes, group):
    read, words = min(tokens, sinks + window + budget), -(-bits // 32)
    dense, _, kept = bytes_read(tokens, budget, sinks, window, width, bits, element_bytes, group)
    return dense, group * read * 2 * width * element_bytes + read * 4 * words, kept


def _memory_saved(tokens, budget, sinks, window, width, bits, element_bytes, group):
    dense, sparse, _ = bytes_read(tokens, budget, sinks, window, width, bits, element_bytes, group)
    one = bytes_read(tokens, budget, sinks, window, width, bits, element_bytes, 1)
    return dense, sparse, one[1]


def _more_than_there_are(tokens, budget, sinks, window, width, bits, element_bytes, group):
    dense, _, kept = bytes_read(tokens, budget, sinks, window, width, bits, element_bytes, group)
    return dense, group * (sinks + window + budget) * 2 * width * element_bytes + kept - dense, kept


def _half_a_word(tokens, budget, sinks, window, width, bits, element_bytes, group):
    dense, sparse, kept = bytes_read(tokens, budget, sinks, window, width, bits, element_bytes, group)
    unused = tokens * (4 * -(-bits // 32) - bits / 8)
    return dense, sparse - unused, kept - unused


def _one_set_for_all(tokens, budget, sinks, window, width, bits, element_bytes, group):
    return bytes_read(tokens, budget, sinks, window, width, bits, element_bytes, 1)


def _codes_for_every_head(tokens, budget, sinks, window, width, bits, element_bytes, group):
    dense, sparse, kept = bytes_read(tokens, budget, sinks, window, width, bits, element_bytes, group)
    return dense, sparse + (group - 1) * (kept - dense), kept


# -- the lift --


def lift(q, last):
    """Two keys along q, nearly as long as each other (Sec. 4.3, p. 5): the shorter gains more than it lacks."""
    a = 1 - last**2 / (q @ q + last**2)
    towards = q / np.linalg.norm(q)
    return np.array([a * towards, towards])


def _of_one_length(q, last):
    away = np.zeros(len(q))
    away[0] = -np.sign(q[0])
    return np.array([away, q / np.linalg.norm(q)])


def _the_example_of_one_number(q, last):
    return np.array([0.6, 1.0])[:, None] * q / np.linalg.norm(q)


def _exchanged(q, last):
    return lift(q, last)[::-1]


MISTAKES = {
    "pack": (
        Mistake(
            "most significant first",
            "the first number has the least significant place of its word: it counts 1, not 2^31.",
            _from_the_left,
        ),
        Mistake(
            "bytes from the left",
            "np.packbits begins each byte with its most significant bit, unless it is told bitorder='little'.",
            _bytes_from_the_left,
        ),
        Mistake(
            "0 is taken for positive",
            "a bit is 1 above 0 only; in Eq. 1 the sign of 0 is 0, and so is its bit.",
            lambda features: pack(np.where(features == 0, 1.0, features)),
        ),
        Mistake(
            "the last word first",
            "word 0 has the first 32 numbers; a number written on paper has its large digits first, an array has not.",
            lambda features: pack(features)[:, ::-1],
        ),
        Mistake(
            "not uint32",
            "floats have no XOR, and words of 64 bits take twice the bytes that codes are there to save.",
            lambda features: pack(features).astype(np.int64),
        ),
    ),
    "score": (
        Mistake(
            "minus of an unsigned sum",
            "NumPy sums counts into uint64, where -3 is 2^64 - 3. Sum into int64.",
            _unsigned,
        ),
        Mistake(
            "minus of eight bits",
            "np.bitwise_count gives uint8, where -3 is 253. Put the minus after the sum, and sum into int64.",
            _minus_of_eight_bits,
        ),
        Mistake(
            "words in place of bits",
            "two words differ in up to 32 bits; count the ones of their XOR.",
            _words_that_differ,
        ),
        Mistake(
            "AND in place of XOR",
            "AND counts the ones that two codes have in common. Zeros in common are just as much agreement.",
            _ones_in_common,
        ),
    ),
    "select": (
        Mistake(
            "later keys are read",
            "a query sees the keys up to its own, S - T + t, and its newest keys are the last of those.",
            _among_all_keys,
        ),
        Mistake(
            "ties go to the newest",
            "an ascending sort read from its end has equals in falling order; sort -score, and stably.",
            _ties_to_the_newest,
        ),
        Mistake(
            "argpartition",
            "it promises no order, and with equal scores at the cut not even the same set on another machine.",
            _by_argpartition,
        ),
        Mistake(
            "windows compete",
            "sinks and window are taken out before the budget is spent, or they use it up where they score well.",
            _windows_compete,
        ),
        Mistake(
            "windows are paid from the budget",
            "the budget is for the rest alone: a set has up to sinks + window + budget tokens.",
            _windows_are_paid_for,
        ),
        Mistake(
            "minus 0",
            "x[-0:] is x[0:], everything. One helper of the authors' code has this slip too.",
            _minus_0,
        ),
    ),
    "attend": (
        Mistake(
            "a token twice",
            "a token that is named twice has twice its weight in a list. Make a set of the names first.",
            _named_twice,
        ),
        Mistake(
            "weights of the dense softmax",
            "the weights must sum to 1 over what is read; these still leave a share to every token that is not.",
            _weights_of_all,
        ),
        Mistake(
            "no root of K",
            "a logit is q·k/√K, over a set as over all.",
            _unscaled,
        ),
        Mistake(
            "minus 0",
            "x[-0:] is x[0:], everything: a window of 0 must be no token.",
            _no_window_is_all,
        ),
    ),
    "bytes_read": (
        Mistake(
            "codes of the read tokens alone",
            "to know which tokens to read, every code has been looked at: there is no table to look one up in.",
            _codes_of_the_read,
        ),
        Mistake(
            "memory is saved",
            "what one query does not read another may; all keys and values stay, and the codes come on top (p. 9).",
            _memory_saved,
        ),
        Mistake(
            "more than there are",
            "a set has no token twice, so it never has more than there are.",
            _more_than_there_are,
        ),
        Mistake(
            "parts of a word",
            "a code takes whole words of 32 bits: 33 bits are 8 bytes.",
            _half_a_word,
        ),
        Mistake(
            "one set for the group",
            "each query head chooses for itself. So heads that share keys save less by it than the budget says.",
            _one_set_for_all,
        ),
        Mistake(
            "codes for every query head",
            "the heads of a group use the same codes of the keys here, so one scan serves them all.",
            _codes_for_every_head,
        ),
    ),
    "lift": (
        Mistake(
            "two keys of one length",
            "the lift makes keys equally long; it does nothing to those that are.",
            _of_one_length,
        ),
        Mistake(
            "the example of one number",
            "3/5 and 1 is right for |q| = 1. The longer q is, the closer the two keys must be.",
            _the_example_of_one_number,
        ),
        Mistake(
            "exchanged",
            "the second key is the one that q·k ranks first.",
            _exchanged,
        ),
    ),
}
