"""Two sides write one state, the reader and the host: neither loses what it has set."""

import base64

import pytest

from attnlab import panels
from attnlab.panels.state import defaults

SPEC = panels.spec("race")


@pytest.fixture(scope="module")
def module():
    return base64.b64encode(panels.source("race").encode()).decode()


@pytest.fixture
def panel(page, module):
    """Mount the panel with a host that remembers what it is told; what is given is the state it opens with."""

    def mount(state=None, data=None, python=True):
        page.set_content("<!doctype html><body><main></main>")
        page.evaluate(
            """async ([text, state, data, python]) => {
                const { mount } = await import("data:text/javascript;base64," + text);
                window.saved = [];
                const host = {
                    python,
                    save: (state) => window.saved.push(state),
                    verify: () => { window.asked = window.saved.at(-1)?.dials.planes; },
                };
                window.view = mount(document.querySelector("main"), { state, data, host });
            }""",
            [module, state or defaults(SPEC), data, python],
        )
        page.wait_for_selector(".attnlab[data-frames]")
        return page

    return mount


def with_dials(**dials):
    state = defaults(SPEC)
    return state | {"dials": state["dials"] | dials}


def dial(page, label):
    return page.get_by_label(label, exact=True)


def value(page, label):
    return dial(page, label).locator("xpath=../output").inner_text()


def test_a_state_from_python_keeps_what_the_reader_has_not_been_heard_of(panel):
    page = panel()
    dial(page, "planes P").evaluate(  # all in one task, so before the dial has rested
        """(slider, state) => {
            slider.value = 5;
            for (const type of ["input", "change"]) slider.dispatchEvent(new Event(type));
            window.view.show(state);
        }""",
        with_dials(tables=9),
    )
    assert (value(page, "planes P"), value(page, "tables L")) == ("6", "9")
    page.wait_for_function("window.saved.length > 0")
    assert page.evaluate("window.saved.map(({ dials }) => [dials.planes, dials.tables])") == [[6, 9]]


def test_a_state_that_comes_during_a_drag_leaves_the_held_dial_where_the_hand_is(panel):
    page = panel()
    box = dial(page, "planes P").bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.3, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.99, y)
    assert value(page, "planes P") == "8"
    page.evaluate("(state) => window.view.show(state)", with_dials(tables=9))
    page.mouse.up()
    page.wait_for_function("window.saved.length > 0")
    assert page.evaluate("window.saved.at(-1).dials.planes") == 8
    assert page.evaluate("window.saved.at(-1).dials.tables") == 9


def test_what_both_have_heard_of_is_taken_as_it_comes(panel):
    page = panel()
    dial(page, "planes P").focus()
    dial(page, "planes P").press("ArrowRight")
    page.wait_for_function("window.saved.length === 1")
    page.evaluate("(state) => window.view.show(state)", with_dials(planes=7))
    assert value(page, "planes P") == "7"
    page.evaluate("(state) => window.view.show(state)", defaults(SPEC))
    assert value(page, "planes P") == "3"


def test_verify_tells_the_state_first(panel):
    page = panel()
    dial(page, "planes P").focus()
    dial(page, "planes P").press("ArrowRight")
    page.get_by_role("button", name="Verify").click()
    assert page.evaluate("window.asked") == 4


def test_a_pin_is_the_same_in_whatever_order_its_axes_stand(panel):
    state = defaults(SPEC)
    state["selection"] |= {"pin": {"key": 5, "query": 20}, "view": "race"}
    page = panel(state)
    canvas = page.locator("[data-figure=race] canvas")
    box = canvas.bounding_box()
    side = min(box["width"] - 22, box["height"] - 21)
    place = {"x": 20 + side * 5.5 / 32, "y": 2 + side * 20.5 / 32}
    page.locator("[data-figure=softmax] canvas").click(position=place)  # the same pair in another matrix: read there
    page.wait_for_function("window.saved.at(-1)?.selection.view === 'softmax'")
    assert page.evaluate("window.saved.at(-1).selection.pin") == {"query": 20, "key": 5}
    page.locator("[data-figure=softmax] canvas").click(position=place)
    page.wait_for_function("window.saved.at(-1).selection.pin === null")


def test_a_page_says_how_many_tokens_of_a_head_it_holds(panel):
    data = {"input": "layer 9, head 1", "width": 64, "tokens": ["a"] * 64}
    page = panel(with_dials(input="layer 9, head 1", tokens=200), data, python=False)
    page.wait_for_selector(".al-waiting")
    assert "This page holds 64 tokens of layer 9, head 1" in page.locator(".al-readout").inner_text()


def test_python_is_asked_for_a_longer_window_while_the_dial_is_still_held(panel):
    page = panel(with_dials(input="layer 9, head 1", tokens=4))
    assert "Waiting for layer 9, head 1" in page.locator(".al-readout").inner_text()
    box = dial(page, "tokens N").bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.1, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.9, y)
    page.wait_for_function("window.saved.at(-1)?.dials.tokens > 200")
    page.mouse.up()
