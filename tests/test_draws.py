"""The counter-based generator: known answers, independence of what else is drawn, and moments."""

import numpy as np
import pytest

from attnlab import draws

# Random123's kat_vectors, threefry2x32 with 20 rounds: counter (row, column), key (seed, stream), the two words
KNOWN = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_the_words_are_those_published_with_random123(counter, key, answer):
    words = draws.bits(*key, np.array(counter[:1]), np.array(counter[1:]))
    assert words.dtype == np.uint32
    assert words.shape == (1, 1, 2)
    assert tuple(words[0, 0]) == answer


def test_uniform_numbers_join_27_and_26_bits():
    word0, word1 = 0x6B200159, 0x99BA4EFE
    expected = ((word0 >> 5) * 2**26 + (word1 >> 6)) / 2**53  # exact in double precision
    assert draws.uniform(0, 0, 1, 1)[0, 0] == expected


def test_a_normal_number_is_the_cosine_branch_of_its_two_uniforms():
    u = draws.uniform(7, 3, 4, 10)
    expected = np.sqrt(-2 * np.log(1 - u[:, 0::2])) * np.cos(2 * np.pi * u[:, 1::2])
    assert np.array_equal(draws.normal(7, 3, 4, 5), expected)


@pytest.mark.parametrize("draw", [draws.bits, draws.uniform, draws.normal])
def test_more_rows_or_columns_never_change_the_others(draw):
    small, large = draw(11, 2, 3, 5), draw(11, 2, 8, 9)
    assert np.array_equal(large[:3, :5], small)


def test_chosen_rows_are_those_of_the_full_array():
    rows = np.array([130, 2, 65])
    assert np.array_equal(draws.normal(5, 1, rows, 4), draws.normal(5, 1, 131, 4)[rows])


def test_seed_and_stream_each_change_every_number():
    base = draws.uniform(1, 1, 6, 7)
    assert not np.any(base == draws.uniform(2, 1, 6, 7))
    assert not np.any(base == draws.uniform(1, 2, 6, 7))


def test_normal_numbers_have_the_moments_of_the_normal_law():
    z = draws.normal(0, 9, 200, 500)
    n = z.size
    assert abs(z.mean()) < 5 / np.sqrt(n)  # five standard errors; the seed is fixed, so this is one fact
    assert abs((z**2).mean() - 1) < 5 * np.sqrt(2 / n)
    assert abs((z**4).mean() - 3) < 5 * np.sqrt(96 / n)
    assert abs((z[:, :-1] * z[:, 1:]).mean()) < 5 / np.sqrt(n)


def test_no_rows_and_no_columns_are_empty_arrays():
    assert draws.bits(0, 0, 0, 3).shape == (0, 3, 2)
    assert draws.normal(0, 0, 2, 0).shape == (2, 0)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((-1, 0, 1, 1), "seed"),
        ((0, 2**32, 1, 1), "stream"),
        ((1.5, 0, 1, 1), "seed"),
        ((0, 0, -2, 1), "rows"),
        ((0, 0, np.array([[0]]), 1), "rows"),
        ((0, 0, 1, np.array([0.0])), "columns"),
    ],
)
def test_what_is_no_32_bit_number_is_refused_by_name(arguments, name):
    with pytest.raises(ValueError, match=rf"^{name} must be"):
        draws.bits(*arguments)
