"""The one place that words input errors: each names the argument, what was wanted and what came."""

import numpy as np
import pytest

from attnlab.arrays import as_float, check, dial, flag, one_of


def test_sizes_met_once_bind_every_later_argument():
    sizes = {}
    check("q", np.zeros((2, 7, 3, 5)), "B T H K", sizes)
    check("v", np.zeros((2, 9, 3, 4)), "B S H V", sizes)
    assert {letter: size for letter, (size, _) in sizes.items()} == {"B": 2, "T": 7, "H": 3, "K": 5, "S": 9, "V": 4}


@pytest.mark.parametrize(
    ("array", "error", "words"),
    [
        (np.zeros((2, 9, 4)), ValueError, ["k must be [B, S, H, K]", "3 axes", "(2, 9, 4)"]),
        (np.zeros((2, 9, 3, 32)), ValueError, ["k must be [B, S, H, K]", "K = 5 as in q", "(2, 9, 3, 32)"]),
        (np.zeros((2, 9, 4, 5)), ValueError, ["H = 3 as in q", "(2, 9, 4, 5)"]),
        (np.zeros((2, 9, 3, 5), dtype=int), TypeError, ["k must hold real floating-point numbers", "int64"]),
        (np.zeros((2, 9, 3, 5), dtype=complex), TypeError, ["complex128"]),
        (np.full((2, 9, 3, 5), np.nan), ValueError, ["k must be finite", "nan", "[0, 0, 0, 0]"]),
        ([[1.0]], ValueError, ["2 axes"]),
    ],
)
def test_a_bad_array_is_named_with_what_was_wanted_and_what_came(array, error, words):
    sizes = {}
    check("q", np.zeros((2, 7, 3, 5)), "B T H K", sizes)
    with pytest.raises(error) as caught:
        check("k", array, "B S H K", sizes)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_the_first_number_that_is_not_finite_is_located():
    array = np.zeros((1, 2, 3, 4))
    array[0, 1, 2, 3] = -np.inf
    with pytest.raises(ValueError, match=r"v must be finite, got -inf at \[0, 1, 2, 3\]"):
        check("v", array, "B S H V", {})


def test_torch_tensors_are_judged_without_conversion():
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(1, 2, 3, 4, dtype=torch.bfloat16, requires_grad=True)
    assert check("q", tensor, "B T H K", {}) is tensor
    with pytest.raises(TypeError, match="q must hold real floating-point numbers, got dtype int64"):
        check("q", tensor.long(), "B T H K", {})
    with pytest.raises(ValueError, match=r"q must be finite, got nan at \[0, 0, 0, 0\]"):
        check("q", tensor * torch.nan, "B T H K", {})
    assert as_float(tensor).dtype == np.float64


@pytest.mark.parametrize("value", [0, 9, np.nan, np.inf, "3", None, True, 2.5])
def test_a_dial_out_of_range_says_its_range(value):
    with pytest.raises(ValueError, match=r"planes must .*\[1, 8\], got"):
        dial("planes", value, 1, 8, integer=True)


def test_a_dial_in_range_comes_back_as_a_plain_number():
    assert type(dial("planes", np.int64(3), 1, 8, integer=True)) is int
    assert type(dial("sharpness", np.float32(0.5), 0, 1)) is float


def test_flags_and_choices_take_nothing_that_merely_looks_right():
    with pytest.raises(ValueError, match="causal must be True or False, got 1"):
        flag("causal", 1)
    with pytest.raises(ValueError, match="variant must be one of 'a', 'b', got 'c'"):
        one_of("variant", "c", ("a", "b"))
