"""The one place that words input errors: each names the argument, what was wanted and what came."""

import numpy as np
import pytest

from attnlab.arrays import as_float, check, check_shape, dial, flag, one_of


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


def test_a_shape_is_judged_without_a_look_at_the_numbers():
    """What a cache has no use for may hold anything; whole numbers pass unless real ones are asked for."""
    sizes = {}
    check("q", np.zeros((2, 7)), "B T", sizes)
    assert check_shape("k", np.full((2, 9), np.nan), "B S", sizes, floating=True) is None
    assert check_shape("codes", np.zeros((2, 9, 4), np.uint32), "B S W", sizes) is None
    assert sizes == {"B": (2, "q"), "T": (7, "q"), "S": (9, "k"), "W": (4, "codes")}


@pytest.mark.parametrize(
    ("array", "floating", "error", "words"),
    [
        (np.zeros((2, 9, 4), np.uint32), False, ValueError, "codes must be [B, S], got 3 axes of sizes (2, 9, 4)"),
        (np.zeros((3, 9), np.uint32), False, ValueError, "codes must be [B, S] with B = 2 as in q, got (3, 9)"),
        (np.zeros((2, 9), np.uint32), True, TypeError, "codes must hold real floating-point numbers, got dtype uint32"),
        (np.zeros((2, 9), object), True, TypeError, "codes must hold real floating-point numbers, got dtype object"),
    ],
)
def test_a_bad_shape_is_named_as_a_bad_array_is(array, floating, error, words):
    with pytest.raises(error) as caught:
        check_shape("codes", array, "B S", {"B": (2, "q")}, floating=floating)
    assert words in str(caught.value), str(caught.value)


def test_torch_tensors_are_judged_without_conversion():
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(1, 2, 3, 4, dtype=torch.bfloat16, requires_grad=True)
    assert check("q", tensor, "B T H K", {}) is tensor
    with pytest.raises(TypeError, match="q must hold real floating-point numbers, got dtype int64"):
        check("q", tensor.long(), "B T H K", {})
    with pytest.raises(ValueError, match=r"q must be finite, got nan at \[0, 0, 0, 0\]"):
        check("q", tensor * torch.nan, "B T H K", {})
    assert as_float(tensor).dtype == np.float64
    sizes = {}
    check_shape("k", tensor * torch.nan, "B T H K", sizes, floating=True)
    with pytest.raises(ValueError, match=r"codes must be \[B, T\] with T = 2 as in k, got \(1, 3\)"):
        check_shape("codes", torch.zeros(1, 3, dtype=torch.int32), "B T", sizes)


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
