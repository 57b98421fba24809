"""The machine behind all exercises: what a check says of right, wrong and unwritten answers, and what is kept."""

import json
import os
import sys
import types

import numpy as np
import pytest

from attnlab.exercises import exercise as machine
from attnlab.exercises import progress_file
from attnlab.exercises.exercise import Checked, Draw, Exercise, Mistake, apart


def multiply(x, y, scale):
    return scale * x @ y


@pytest.fixture(autouse=True)
def own_file(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTNLAB_EXERCISES", str(tmp_path / "kept" / "exercises.json"))
    return tmp_path / "kept" / "exercises.json"


@pytest.fixture
def product(monkeypatch):
    """An exercise that no paper has, with a solution and a mistake."""
    solutions = types.ModuleType("attnlab.exercises.solutions.toy")
    solutions.product = multiply
    forgotten = Mistake("a forgotten scale", "the product is multiplied by scale.", lambda x, y, scale: x @ y)
    broken = Mistake("never recognised", "it raises.", lambda x, y, scale: 1 / 0)
    solutions.MISTAKES = {"product": (broken, forgotten)}
    monkeypatch.setitem(sys.modules, solutions.__name__, solutions)
    return Exercise(
        id="toy.product", title="Multiply", level=2, minutes=3, source="p. 1", text="    Give *x y*.\n",
        signature="\ndef product(x, y, scale):\n    raise NotImplementedError\n", hints=("one", "two", "three"),
        cases=lambda draw: (
            {"x": draw.normal(n, m), "y": draw.normal(m, o), "scale": 2.5} for n, m, o in [(2, 3, 4), (3, 2, 5)]
        ),
        expected=multiply, returns=("z",),
    )  # fmt: skip


# -- right answers ----------------------------------------------------------------------------------------------------


def test_the_solution_is_right_on_every_seed(product):
    assert all(product.check(multiply) for _ in range(20))
    assert str(product.check(multiply, seed=7)) == "Right: toy.product. 2 cases with seed 7."


def test_fresh_arrays_come_each_time_and_a_seed_brings_them_back(product):
    seen = []
    for seed in (None, None, 5, 5):
        product.check(lambda x, y, scale: seen.append(x) or multiply(x, y, scale), seed=seed)
    assert not np.array_equal(seen[0], seen[2])
    assert np.array_equal(seen[4], seen[6])


def test_sums_in_another_order_are_right(product):
    assert product.check(lambda x, y, scale: sum(scale * x[:, k, None] * y[k] for k in reversed(range(len(y)))))


# -- wrong answers ----------------------------------------------------------------------------------------------------


def test_the_first_wrong_index_is_named_with_both_numbers_and_how_many_differ(product):
    def off(x, y, scale):
        out = multiply(x, y, scale)
        out[1, 2:] += 1
        return out

    checked = product.check(off, seed=3)
    x, y, scale = next(product.cases(Draw(3))).values()
    right = multiply(x, y, scale)[1, 2]
    assert f"z[1, 2] must be {right:.10g}, got {right + 1:.10g}; 2 of 8 numbers differ." in checked.message
    assert "Called with x [2, 3], y [3, 4], scale = 2.5." in checked.message
    assert "seed=3" in str(checked)
    assert checked.mistake == ""


def test_a_usual_mistake_is_recognised_by_its_numbers(product):
    checked = product.check(lambda x, y, scale: np.einsum("ij,jk->ik", x, y))
    assert checked.mistake == "a forgotten scale"
    assert "a usual mistake, a forgotten scale: the product is multiplied by scale." in checked.message
    assert "All are 0.4 times what they must be." in checked.message


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (lambda x, y, scale: multiply(x, y, scale).T, "got [4, 2]. It is right but for axes 0 and 1"),
        (lambda x, y, scale: multiply(x, y, scale).astype(np.float32), "All agree to five digits"),
        (lambda x, y, scale: multiply(x, y, scale) * [1, 1, np.nan, 1], "z[0, 2] must be"),
        (lambda x, y, scale: multiply(x, y, scale) * [1, 1, np.nan, 1], "2 of them are NaN"),
        (lambda x, y, scale: multiply(x, y, scale) * np.inf, "got "),
        (lambda x, y, scale: -multiply(x, y, scale), "All are -1 times"),
        (lambda x, y, scale: multiply(x, y, scale) + 0j, "z must hold real numbers, got an array of shape"),
        (lambda x, y, scale: "z", "z must hold real numbers, got 'z'"),
        (lambda x, y, scale: [[1, 2], [3]], "z must be an array of shape [2, 4], got [[1, 2], [3]]"),
        (lambda x, y, scale: None, "product gave back nothing: does it end with a return?"),
        (lambda x, y, scale: x @ x, "It raised ValueError: matmul"),
        (lambda x, y: x @ y, "It raised TypeError"),
        (lambda x, y, scale: x.__imul__(scale) @ y, "x came back changed"),
        (3, "check wants the function product itself, got 3."),
    ],
)  # fmt: skip
def test_each_kind_of_wrong_answer_gets_a_sentence(product, answer, sentence):
    checked = product.check(answer)
    assert not checked
    assert sentence in checked.message


def test_a_division_by_zero_is_said_as_nan_and_raises_no_warning(product):
    checked = product.check(lambda x, y, scale: multiply(x, y, scale) * (np.zeros(1) / 0.0))
    assert "8 of them are NaN" in checked.message


def test_an_exception_names_the_line_of_the_learner(product):
    def divide(x, y, scale):
        return x / np.zeros(17)

    assert "in line " in product.check(divide).message
    assert "return x / np.zeros(17)" in product.check(divide).message


def test_an_interrupt_gets_through(product):
    def stop(x, y, scale):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        product.check(stop)


def test_an_unwritten_answer_is_no_try(product, own_file):
    def product_of(x, y, scale):
        raise NotImplementedError

    assert "nothing to check yet" in product.check(product_of).message
    assert not own_file.exists()


def test_whole_numbers_and_truth_values_must_be_equal():
    assert apart(np.array([1, 2]), np.array([1, 3])) == "out[1] must be 3, got 2; 1 of 2 numbers differ."
    assert apart(2.0, 2) == ""
    assert "out[1] must be True, got False; 1 of 2" in apart(np.array([True, False]), np.array([True, True]))
    assert apart(1 + 2.0**-40, 1) == "out must be 1, got 1.0000000000009095."


def test_exchanged_axes_are_seen_in_truth_values_too():
    assert "axes 0 and 1, which are exchanged" in apart(np.array([[True, False]]), np.array([[True], [False]]))


def test_infinity_agrees_with_infinity_alone_and_nan_with_nothing():
    wanted = np.array([-np.inf, 1.0])
    assert apart(wanted, wanted) == ""
    assert apart([-1e300, 1.0], wanted).startswith("out[0] must be -inf, got -1e+300")
    assert apart([np.inf, 1.0], wanted) != ""
    assert apart([-np.inf, np.nan], wanted).startswith("out[1] must be 1, got nan")
    assert apart([-np.inf, 1.0 + 1e-6], wanted) != ""
    assert apart([np.nan], [np.nan]) != ""


def test_several_results_are_compared_by_name():
    assert apart((1.0, 2.0), (1.0, 2.0), ("mass", "content")) == ""
    assert apart((1.0, 2.5), (1.0, 2.0), ("mass", "content")) == "content must be 2, got 2.5."
    assert apart(1.0, (1.0, 2.0), ("mass", "content")) == "It must give back 2 things, mass, content, got 1.0."
    assert apart((1.0,), (1.0, 2.0), ("mass", "content")).startswith("It must give back 2 things")


def test_an_expected_zero_must_be_zero_and_nothing_is_compared_with_nothing():
    assert apart(np.full(3, 1e-30), np.zeros(3)) != ""
    assert apart(np.zeros((0, 2)), np.zeros((0, 2))) == ""
    assert "must have shape [0, 2]" in apart(np.zeros((2, 0)), np.zeros((0, 2)))


# -- answers of which many are right ----------------------------------------------------------------------------------


def test_a_judge_decides_where_many_answers_are_right(product):
    def judge(answer, arguments):
        return "" if float(answer) > arguments["scale"] else f"z must exceed {arguments['scale']}, got {answer}."

    open_ended = Exercise(**{**vars(product), "expected": None, "judge": judge})
    assert open_ended.check(lambda x, y, scale: 3)
    assert open_ended.check(lambda x, y, scale: 1e9)
    assert "z must exceed 2.5, got 1." in open_ended.check(lambda x, y, scale: 1).message
    assert not open_ended.check(lambda x, y, scale: float("nan"))
    assert "does not read as z: " in open_ended.check(lambda x, y, scale: "three").message


# -- drawing ----------------------------------------------------------------------------------------------------------


def test_sizes_are_all_different_and_cover_the_range():
    drawn = [Draw(seed).sizes(4, 2, 6) for seed in range(200)]
    assert all(len(set(sizes)) == 4 for sizes in drawn)
    assert {n for sizes in drawn for n in sizes} == {2, 3, 4, 5, 6}
    with pytest.raises(ValueError, match=r"\[2, 4\] must hold 4 different sizes, got 3"):
        Draw(0).sizes(4, 2, 4)


def test_each_draw_is_new_and_has_its_shape():
    draw = Draw(1)
    assert draw.normal(2, 3).shape == (2, 3)
    assert not np.array_equal(draw.uniform(5), draw.uniform(5))
    assert all(2 <= draw.uniform(low=2, high=3).item() < 3 for _ in range(50))
    assert {draw.integer(-1, 1) for _ in range(60)} == {-1, 0, 1}
    assert sorted(draw.shuffled(6)) == list(range(6))


# -- hints, solution, what is shown -----------------------------------------------------------------------------------


def test_hints_come_one_after_the_other_and_the_last_stays(product, own_file):
    shown = [str(product.hint()).removeprefix("**Hint ") for _ in range(4)]
    assert shown == [
        "1 of 3.** one",
        "2 of 3.** two",
        *["3 of 3.** three The rest is in `toy.product.solution()`."] * 2,
    ]
    assert product.hint(1) == "**Hint 1 of 3.** one"
    assert json.loads(own_file.read_text())["toy.product"]["hints"] == 3
    with pytest.raises(ValueError, match="number must be 1, 2 or 3, got 4"):
        product.hint(4)


def test_the_solution_is_shown_as_it_is_written(product):
    assert (
        product.solution()._repr_markdown_() == "```python\ndef multiply(x, y, scale):\n    return scale * x @ y\n```"
    )


def test_an_exercise_shows_its_level_minutes_place_and_signature(product):
    shown = product._repr_markdown_()
    assert shown.startswith("### Multiply\n\n●●○ build · 3 minutes · p. 1\n\nGive *x y*.")
    assert shown.endswith("```python\ndef product(x, y, scale):\n    raise NotImplementedError\n```")
    assert repr(product) == "toy.product: Multiply (build, 3 minutes); print(...) shows it whole"
    assert str(product) == shown


def test_a_message_is_escaped_where_it_is_shown_as_a_page():
    assert "&lt;b&gt;" in Checked("toy.product", False, "got '<b>'.", 1)._repr_html_()


# -- what is kept -----------------------------------------------------------------------------------------------------


def test_tries_and_the_day_of_the_first_success_are_kept(product, own_file):
    product.check(lambda x, y, scale: x @ y)
    assert progress_file.read()["toy.product"] == {"tries": 1, "hints": 0, "solved": None}
    product.check(multiply)
    day = progress_file.read()["toy.product"]["solved"]
    assert day
    product.check(lambda x, y, scale: x @ y)
    assert progress_file.read()["toy.product"] == {"tries": 3, "hints": 0, "solved": day}
    assert os.listdir(own_file.parent) == [own_file.name]


@pytest.mark.parametrize("text", ["not json", "[]", '{"toy.product": 3}', '{"toy.product": {"tries": 1}}'])
def test_a_file_with_something_else_is_left_as_it_is_and_said(product, own_file, text):
    own_file.parent.mkdir()
    own_file.write_text(text)
    checked = product.check(multiply)
    assert checked
    assert "This was not kept" in checked.message
    assert "move it away to begin anew" in checked.message
    assert str(product.hint()) == "**Hint 1 of 3.** one"
    assert own_file.read_text() == text


def test_a_place_that_cannot_be_written_costs_a_sentence(product, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ATTNLAB_EXERCISES", str(tmp_path / "file" / "exercises.json"))
    assert "This was not kept" in product.check(multiply).message


def test_the_tolerance_stands_between_rounding_and_single_precision():
    assert 1e3 * np.finfo(np.float64).eps < machine.TOLERANCE < 0.1 * np.finfo(np.float32).eps
