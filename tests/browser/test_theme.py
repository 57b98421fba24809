"""Colours in a real browser: light or dark by the page behind, and matrices of both signs in a panel made up for it."""

import base64
import shutil
from pathlib import Path

import numpy as np
import pytest

from attnlab import panels
from attnlab.panels import still
from attnlab.panels.bundle import bundle
from tests.browser.panel_on_page import mount

PACKAGE = Path(panels.__file__).parents[1]
TWO_FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"

# A panel of one view, which the made-up spec calls "state": a matrix with a number for each row beside it.
PANEL = """import { shaped } from "../panels/numbers.js";
const numbers = shaped([3, 4], Float64Array.of(-1, -0.25, 0, 0.25, 0.5, 1, -0.5, 2, NaN, 0.1, 0.2, 1 / 3));
const word = (axis, index) => `${axis} ${index}`;
const label = ({ query, key = "sum" }) => `cell ${query} ${key}`;
function state() {
  return {
    title: "State",
    caption: "",
    source: "",
    array: numbers,
    dtype: "float32",
    rows: 3,
    columns: 4,
    step: { row: 4, column: 1 },
    tiles: [{ offset: 0, bars: 0, at: {} }],
    axes: { row: "query", column: "key" },
    names: { row: "row", column: "column" },
    ends: { row: ["", ""], column: ["", ""] },
    colours: {},
    scale: { min: -1, max: 0.5, above: true },
    bars: { array: Float64Array.of(-1, 1, 0), min: -1, max: 1, colour: "key", name: "sum", label, sum: () => "" },
    word,
    label,
  };
}
const other = () => ({ ...state(), title: "Other", array: numbers.map((x) => 10 * x), bars: undefined });
export const panel = {
  computer: () => () => ({}),
  figures: [
    { id: "state", kind: "heatmap", wide: true, picture: state },
    { id: "other", kind: "heatmap", wide: true, picture: other },
  ],
};
"""
WORDS = """export const words = {
  title: "Made up",
  subtitle: "",
  state: { title: "State" },
  other: { title: "Other" },
};
"""
SPEC = {
    "mechanism": "made",
    "title": "Made up",
    "version": 1,
    "dials": [{"name": "size", "kind": "whole", "default": 1, "low": 1, "high": 3, "label": "size", "paper": ""}],
    "options": {},
    "views": ["state", "other"],
    "axes": ["query", "key"],
    "languages": ["en"],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The module of the made-up panel."""
    root = tmp_path_factory.mktemp("package")
    shutil.copytree(PACKAGE / "panels", root / "panels", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (root / "made").mkdir()
    (root / "made" / "panel.js").write_text(PANEL, encoding="utf-8")
    (root / "made" / "labels.en.js").write_text(WORDS, encoding="utf-8")
    return bundle("made", SPEC, root)


@pytest.fixture
def show(page, made):
    """Mount the made-up panel on a page with this background."""

    def show(background: str = "white"):
        page.set_content(f"<!doctype html><body style='margin: 8px; background: {background}'><main></main>")
        page.evaluate(
            """async (text) => {
                const { mount } = await import("data:text/javascript;base64," + text);
                window.view = mount(document.querySelector("main"), {});
            }""",
            base64.b64encode(made.encode()).decode(),
        )
        page.wait_for_function("Number(document.querySelector('.attnlab').dataset.frames) >= 1")
        page.wait_for_function("document.querySelector('[data-figure=other] b').textContent === 'Other'")
        return page

    return show


LIGHT = ["oklch(1 0 0)", "lab(95 0 0)", "color(srgb 1 1 1)", "color-mix(in srgb, white 90%, black)"]
LIGHT += ["color(display-p3 1 1 1)", "rgb(255 255 255 / .6)", "hsl(0 0% 90%)"]
DARK = ["oklch(0.2 0 0)", "lab(10 0 0)", "color(srgb 0.1 0.1 0.1)", "color-mix(in srgb, white 10%, black)"]
DARK += ["color(display-p3 0 0 0.1)", "rgb(0 0 0 / .6)", "#111114"]


@pytest.mark.parametrize(("colours", "theme"), [(LIGHT, "light"), (DARK, "dark")], ids=["light", "dark"])
def test_the_theme_follows_the_page_in_whatever_way_its_colour_is_written(show, colours, theme):
    page, other = show(), {"light": "black", "dark": "white"}[theme]
    for colour in colours:
        for background, expected in ((other, {"light": "dark", "dark": "light"}[theme]), (colour, theme)):
            page.evaluate("(colour) => document.body.setAttribute('style', `background: ${colour}`)", background)
            page.wait_for_function("(name) => document.querySelector('.attnlab').dataset.theme === name", arg=expected)


def test_a_page_that_shows_through_leaves_the_theme_to_what_lies_behind(show):
    page = show("rgb(255 255 255 / .2)")
    page.evaluate("() => document.documentElement.setAttribute('style', 'background: #111')")
    page.wait_for_function("document.querySelector('.attnlab').dataset.theme === 'dark'")


@pytest.mark.parametrize(
    ("behind", "body", "main", "theme"),
    [
        ("#111", "rgb(255 255 255 / .4)", "rgb(255 255 255 / .4)", "light"),
        ("#eee", "rgb(255 255 255 / .5)", "rgb(0 0 0 / .45)", "dark"),
    ],
)
def test_layers_that_each_show_through_count_together_the_nearest_most(show, behind, body, main, theme):
    page = show({"light": "black", "dark": "white"}[theme])
    page.evaluate(
        """([behind, body, main]) => {
            document.querySelector("main").setAttribute("style", `background: ${main}`);
            document.documentElement.setAttribute("style", `background: ${behind}`);
            document.body.setAttribute("style", `background: ${body}`);
        }""",
        [behind, body, main],
    )
    page.wait_for_function("(name) => document.querySelector('.attnlab').dataset.theme === name", arg=theme)


def test_a_matrix_of_both_signs_shows_what_python_draws(show):
    page = show()
    cells = page.evaluate(
        """() => {
            const canvas = document.querySelector("[data-figure=state] canvas"), pen = canvas.getContext("2d");
            const [wide, high] = [(canvas.width - 20 - 34) / 4, (canvas.height - 19 - 18) / 3];
            return Array.from({ length: 12 }, (_, n) => {
                const [x, y] = [20 + wide * (n % 4 + 0.5), 15 + high * (Math.floor(n / 4) + 0.5)];
                return [...pen.getImageData(x, y, 1, 1).data];
            });
        }"""
    )
    part = np.clip(np.array([-1, -0.25, 0, 0.25, 0.5, 1, -0.5, 2, np.nan, 0.1, 0.2, 1 / 3]), -1, 1)
    stops = np.array([list(bytes.fromhex(stop)) for stop in still.SIGNED])
    wanted = np.stack([np.interp((1 + part) / 2, np.linspace(0, 1, len(stops)), channel) for channel in stops.T], 1)
    numbers = ~np.isnan(part)
    assert np.abs(np.array(cells)[numbers, :3] - wanted[numbers]).max() <= 1
    assert all(cell[3] == 255 for cell, number in zip(cells, numbers, strict=True) if number)
    hatched = page.evaluate(
        """() => {
            const canvas = document.querySelector("[data-figure=state] canvas"), pen = canvas.getContext("2d");
            const { data } = pen.getImageData(30, canvas.height - 60, 40, 20);
            return data.filter((_, n) => n % 4 === 3).filter(Boolean).length / 800;
        }"""
    )
    assert 0.1 < hatched < 0.7  # stripes, and the page between them


def test_the_scale_says_both_ends_and_shows_its_part_of_the_colours(show):
    page = show()
    scale = page.locator("[data-figure=state] .al-scale")
    assert scale.locator("span").all_inner_texts() == ["-1", "≥\xa00.5", ""]
    style = scale.locator("b").evaluate(
        "(bar) => [getComputedStyle(bar).backgroundSize, getComputedStyle(bar).backgroundPosition]"
    )
    assert style[0].startswith("133.333%")  # from -1 to 1 would be whole; it ends at 0.5
    assert style[1].startswith("0%")


def test_what_is_no_number_is_read_and_copied_as_such(show):
    page = show()
    canvas = page.locator("[data-figure=state] canvas")
    canvas.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown"):
        canvas.press(key)
    unseen, value = page.locator(".al-unseen"), page.locator("[data-figure=state] .al-head span").first
    page.evaluate(TWO_FRAMES)
    assert unseen.inner_text() == "cell 2 0: not a number"
    assert page.locator(".al-readout b").first.inner_text() == "not a number"
    assert value.inner_text() == "–"
    canvas.press("ArrowRight")
    assert unseen.inner_text() == "cell 2 1 = 0.1 (float32)"
    for _ in range(3):
        canvas.press("ArrowRight")
    assert unseen.inner_text() == "cell 2 sum = 0 (float64)"


def copied(page) -> str:
    """What the last click put on the clipboard, or offers to be copied by hand."""
    field = page.locator(".al-byhand")
    field.wait_for()
    text = field.input_value()
    field.press("Escape")
    return text


def test_a_table_is_copied_as_the_view_stands_at_the_click(show):
    page = show()
    page.evaluate("() => Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    # open, choose and copy in one go: no frame and no timer comes between
    page.evaluate(
        """() => {
            const numbers = document.querySelector(".al-numbers"), select = numbers.querySelector("select");
            numbers.open = true;
            select.value = "other";
            select.dispatchEvent(new Event("change"));
            numbers.querySelectorAll("button")[1].click();
        }"""
    )
    lines = copied(page).split("\n")
    assert lines[0] == "row \\ column\tkey 0\tkey 1\tkey 2\tkey 3"
    assert lines[1:] == ["query 0\t-10\t-2.5\t0\t2.5", "query 1\t5\t10\t-5\t20", f"query 2\tNaN\t1\t2\t{10 * (1 / 3)}"]
    page.get_by_label("Numbers of this view").select_option("state")
    page.get_by_role("button", name="Copy table").click()
    assert copied(page).split("\n")[1] == "query 0\t-1\t-0.25\t0\t0.25\t-1"


def test_a_cell_of_the_table_is_heard_in_full(show):
    page = show()
    page.locator(".al-numbers summary").click()
    cells = page.locator(".al-table td")
    cells.first.wait_for()
    said = [(cells.nth(n).inner_text(), cells.nth(n).get_attribute("aria-label")) for n in (0, 10, 13)]
    assert said == [("-1", None), ("not a number", None), ("0.333333", str(1 / 3))]


def test_a_finger_leaves_nothing_pointed_at_also_where_a_click_does_not_say_what_clicked(show):
    page = show()
    page.evaluate(
        """() => {
            const canvas = document.querySelector("[data-figure=state] canvas");
            const { left, top } = canvas.getBoundingClientRect();
            const at = { clientX: left + 60, clientY: top + 40, bubbles: true };
            canvas.dispatchEvent(new PointerEvent("pointerdown", { ...at, pointerType: "touch" }));
            canvas.dispatchEvent(new MouseEvent("click", at));
        }"""
    )
    page.evaluate(TWO_FRAMES)
    lines = page.locator(".al-readout p")
    assert lines.first.locator("span").inner_text() == "cell 0 0"
    assert "Point at another number" in lines.nth(2).inner_text()  # nothing is pointed at, or its number stood here


def test_a_panel_that_is_removed_gives_its_pixels_back_though_its_handle_is_kept(show):
    page = show()
    canvases = page.evaluate_handle("() => [...document.querySelectorAll('.attnlab canvas')]")
    assert min(canvases.evaluate("(all) => all.map((canvas) => canvas.width)")) > 100
    # the table tells only later that it was opened, and asks for a frame then
    page.evaluate("() => { document.querySelector('.al-numbers').open = true; window.view.remove(); }")
    page.evaluate(TWO_FRAMES)
    assert canvases.evaluate("(all) => all.map((canvas) => canvas.width)") == [0, 0]


def test_a_panel_that_goes_while_a_field_is_edited_saves_at_once_and_never_again(page):
    """A field tells of its change only as it leaves the page. Saved later, it would undo what others set meanwhile."""
    mount(page, host="{ python: true, save: ({ dials }) => (window.saved ??= []).push(dials.seed) }")
    page.get_by_label("seed", exact=True).focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("7")
    at_once, later = page.evaluate(
        """async () => {
            window.view.remove();
            const atOnce = [...window.saved];
            await new Promise((done) => setTimeout(done, 300));  // three times as long as a dial has to rest
            return [atOnce, window.saved];
        }"""
    )
    assert at_once[-1] == 7
    assert later == at_once
