"""Who the panels can be used by: with a keyboard, a screen reader, a finger, few colours, a small screen, on paper."""

import base64
import re
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import TimeoutError as TooLate

from attnlab import panels
from attnlab.panels import export, link
from attnlab.race import view
from attnlab.race.params import RaceParams
from tests.browser.panel_on_page import (
    CLIPBOARD,
    canvas,
    cell,
    figure,
    height,
    painted,
    settle,
    shut_down,
    turn_lab,
)

RACE = panels.spec("race")
FIGURES = RACE["views"]
MATRICES = ("softmax", "angular", "race")
LONGEST = ("planes=8", "tables=16", "tokens=256", "pin=table.15,bucket.255,key.255", "view=buckets")
PHONE = {"has_touch": True, "is_mobile": True}  # a coarse pointer, and none that hovers
CONTROLS = ".attnlab :is(input, select, button, canvas, summary, textarea, [tabindex])"
A4 = {"width": 703, "height": 1032}  # what margins of 12 mm leave of it, in CSS pixels


@pytest.fixture
def show(same_page, open_page, tmp_path):
    """Open the page of a mechanism's state, from a disk. What a page cannot change later, as that a finger touches it,
    are options of a browser context, and mean a page of its own.
    """

    def show(*words, mechanism="race", width=1200, height=900, media=None, **options):
        export.write(tmp_path / "page.html", mechanism, export.setting(mechanism, words))
        page = open_page(bypass_csp=True, **options) if options else same_page  # waiting evaluates text
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(**media or {})
        if options:
            page.add_init_script(CLIPBOARD)
        page.goto((tmp_path / "page.html").as_uri())
        painted(page)
        settle(page)
        return page

    return show


def open_details(page) -> None:
    page.locator(".al-numbers").evaluate("(details) => (details.open = true)")
    page.locator(".al-table table").wait_for()


def shape(page, name: str) -> float:
    box = canvas(page, name).bounding_box()
    return box["width"] / box["height"]


def address_says(page, *words: str) -> bool:
    """Whether the address comes to hold this state; it follows the panel once a dial rests."""
    want = export.setting("race", words)
    try:
        page.wait_for_function("(want) => location.hash === want", arg=link.fragment(want, RACE), timeout=10_000)
    except TooLate:
        assert link.from_fragment(page.evaluate("location.hash"), RACE) == want
    return True


def channels(colour: str) -> list[float]:
    """Red, green and blue of a computed colour, from 0 to 1."""
    if colour.startswith("#"):
        return [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [float(part) / 255 for part in re.findall(r"[\d.]+", colour)[:3]]


def luminance(colour) -> float:
    """Relative luminance (WCAG 2.2)."""
    rgb = channels(colour) if isinstance(colour, str) else colour
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def contrast(one, other) -> float:
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def pixels(page, element) -> np.ndarray:
    """What the screen shows of an element, as [pixels, 3] from 0 to 255."""
    words = page.evaluate(
        """async (shot) => {
            const bytes = Uint8Array.from(atob(shot), (letter) => letter.charCodeAt(0));
            const picture = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
            const pen = new OffscreenCanvas(picture.width, picture.height).getContext("2d");
            pen.drawImage(picture, 0, 0);
            return [...new Uint32Array(pen.getImageData(0, 0, picture.width, picture.height).data.buffer)];
        }""",
        base64.b64encode(element.screenshot()).decode(),
    )
    return np.array(words, np.uint32).view(np.uint8).reshape(-1, 4)[:, :3]


# -- axe --------------------------------------------------------------------------------------------------------------


def complaints_of_axe(page, *within: str) -> list[str]:
    page.evaluate(AXE_SCRIPT)
    run = "(within) => axe.run(within.length ? { include: within } : document, { resultTypes: ['violations'] })"
    found = page.evaluate(run, list(within))
    return [f"{rule['impact']} {rule['id']}: {node['html']}" for rule in found["violations"] for node in rule["nodes"]]


@pytest.mark.parametrize("mechanism", panels.names())
def test_axe_finds_nothing_on_the_exported_page(show, complaints, mechanism):
    page = show("tokens=12", "pin=query.3,key.5", mechanism=mechanism)  # axe reads every cell of the table
    open_details(page)
    page.get_by_role("button", name="Verify").click()  # says that it needs a kernel
    page.evaluate("location.hash = '#nonsense'")
    page.locator(".al-error").wait_for()
    complaints.expect("was refused")
    for theme, width in product(("light", "dark"), (1200, 390)):
        page.emulate_media(color_scheme=theme)
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function("(theme) => document.querySelector('.attnlab').dataset.theme === theme", arg=theme)
        settle(page)
        assert complaints_of_axe(page) == [], (theme, width)


def test_axe_finds_nothing_in_the_output_cell_of_jupyterlab(lab, page):
    lab.open(page, "access.ipynb", "from attnlab.race.widget import RacePanel\nRacePanel(tokens=12)")
    painted(page)
    page.get_by_role("button", name="Verify").click()
    page.locator(".al-verify [role=listitem]").nth(2).wait_for(timeout=120_000)
    open_details(page)
    canvas(page, "race").press("ArrowRight")
    canvas(page, "race").press("Enter")
    page.get_by_text("pinned, Esc releases").wait_for()
    for theme in ("dark", "light"):
        turn_lab(page, theme)
        assert complaints_of_axe(page, ".attnlab") == []
    page.get_by_label("planes P").press("ArrowRight")  # what was verified is of other dials now
    page.get_by_text("Checked for other dials").wait_for()
    assert complaints_of_axe(page, ".attnlab") == []
    shut_down(page)


# -- keyboard ---------------------------------------------------------------------------------------------------------

TITLE = ["Copy link", "Copy as Python", "Save as a page"]
DIALS = ["planes P", "tables L", "sharpness β", "tokens N", "head width d", "seed", "causal", "normalise q, k", "input"]
CANVASES = ["Softmax", "Angular, κ³", "RACE", "Estimate Ŝ by angle", "Output error", "Where Lemma 10 fails"]
NUMBERS = ["Exact numbers and a table", "Numbers of this view", "Copy number", "Copy table", "Table of numbers"]
ORDER = [*TITLE, *DIALS, "Verify", "pinned, Esc releases", "keys", "queries", "Buckets", *CANVASES, *NUMBERS]


def walked(page) -> list[dict]:
    """Where Tab leads from the top of the page: accessible name, box and outline of each stop."""
    session = page.context.new_cdp_session(page)
    stops = []
    while True:
        page.keyboard.press("Tab")
        if page.evaluate("!document.activeElement.closest('.attnlab')"):
            session.detach()
            return stops
        target = session.send("Runtime.evaluate", {"expression": "document.activeElement"})["result"]["objectId"]
        tree = session.send("Accessibility.getPartialAXTree", {"objectId": target, "fetchRelatives": False})
        look = page.evaluate(
            """() => {
                const { outlineStyle, outlineWidth, outlineColor } = getComputedStyle(document.activeElement);
                const { left, top, right, bottom } = document.activeElement.getBoundingClientRect();
                const box = { left, right, top: top + scrollY, bottom: bottom + scrollY };
                return { style: outlineStyle, width: parseFloat(outlineWidth), colour: outlineColor, ...box };
            }"""
        )
        stops.append({"name": tree["nodes"][0]["name"]["value"].split(", heatmap")[0].split(", chart")[0], **look})


@pytest.mark.parametrize("width", [1200, 700, 390])
def test_tab_reaches_every_control_by_its_name_in_reading_order(show, width):
    page = show("pin=query.3,key.5", "view=race", width=width)
    open_details(page)
    stops = walked(page)
    assert [stop["name"] for stop in stops] == ORDER
    assert page.locator(CONTROLS).count() == len(ORDER)  # none is left out
    for before, after in pairwise(stops):
        above = after["bottom"] <= before["top"]
        beside = after["left"] >= before["right"] and width > 760  # the top of the next column
        assert beside or not above, f"{after['name']} stands above {before['name']}"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_ring_around_the_control_in_focus_can_be_seen(show, theme):
    page = show("pin=query.3,key.5", media={"color_scheme": theme})
    open_details(page)
    paper = page.evaluate("getComputedStyle(document.querySelector('.attnlab')).getPropertyValue('--al-paper')")
    for stop in walked(page):
        assert (stop["style"], stop["width"] >= 2) == ("solid", True), stop["name"]
        assert contrast(stop["colour"], paper) >= 3, stop["name"]


def test_the_keyboard_alone_sets_every_dial_and_every_choice(show):
    page = show()
    for key, labels in {
        "ArrowRight": DIALS[:5],
        "ArrowUp": ["seed"],
        "Space": ["causal", "normalise q, k"],
    }.items():
        for label in labels:
            page.get_by_label(label, exact=True).press(key)
    page.get_by_role("button", name="queries").press("Enter")
    page.locator(".al-numbers summary").press("Enter")
    page.get_by_label("Numbers of this view").press("ArrowDown")
    canvas(page, "angular").press("ArrowRight")
    canvas(page, "angular").press("ArrowDown")
    canvas(page, "angular").press("Enter")
    words = "planes=4 tables=5 sharpness=4.36 tokens=33 head_width=17 seed=1 causal=true normalize=true"
    words = [*words.split(), "features=queries", "view=angular", "pin=query.1,key.0"]
    assert address_says(page, *words)
    page.get_by_role("button", name="Copy number").press("Enter")
    page.get_by_text("Copied.").wait_for()
    dials = export.setting("race", words)["dials"]
    number = view.compute(RaceParams(**dials))["angular"][1, 0]
    copied = page.evaluate("copied")
    assert float(copied.split(" = ")[1].removesuffix(" (float64); κ^4")) == pytest.approx(number, rel=1e-12)
    page.get_by_label("Numbers of this view").press("End")
    page.get_by_label("planes P").press("Escape")
    assert address_says(page, *words[:-2], "view=lemma")


def test_a_menu_of_inputs_opens_to_the_keyboard(show):
    page = show()
    menu = page.get_by_label("input", exact=True)
    menu.press("ArrowDown")
    assert menu.input_value() == "toy"  # the real heads come from Python, and are greyed here
    assert menu.locator("option:not([disabled])").all_inner_texts() == ["toy: four clusters"]


# -- screen reader ----------------------------------------------------------------------------------------------------


def test_a_walk_speaks_number_dtype_and_the_sum_it_came_from(show):
    page = show()
    canvas(page, "race").press("ArrowRight")
    canvas(page, "race").press("ArrowDown")
    heard = page.locator("[aria-live=polite]").text_content()
    number = view.compute(RaceParams())["race"][1, 0]
    said, rest = heard.split(" = ", 1)
    assert ("key 1 “a1”" in said, "query 2 “a2”" in said) == (True, True)
    assert float(rest.split(" (float64); ")[0]) == pytest.approx(number, rel=1e-12)
    assert rest.split(" (float64); ")[1].startswith("Ŝ / Σ Ŝ = ")


def test_a_pin_and_its_release_are_spoken(show):
    page = show()
    heard = page.locator("[aria-live=polite]")
    canvas(page, "race").press("ArrowRight")
    canvas(page, "race").press("Enter")
    number = view.compute(RaceParams())["race"][0, 0]
    said, value = heard.text_content().split(" (float64)")[0].split(" = ")
    assert said.startswith("Pinned: ")
    assert float(value) == pytest.approx(number, rel=1e-12)
    page.get_by_label("planes P").press("Escape")
    assert heard.text_content() == "Released"


def test_panel_and_pictures_can_be_found_as_headings(show):
    page = show()
    assert page.get_by_role("heading", level=1).all_inner_texts() == ["RACE attention"]
    titles = page.locator(".al-figures").get_by_role("heading").all_inner_texts()
    assert titles == ["Buckets", *CANVASES]


def read_table(page) -> tuple[str, list[list[str]], np.ndarray]:
    """Caption, headings of columns and rows, and the numbers with all their digits; NaN where the paper has none."""
    table = page.locator(".al-table table")
    caption, columns, rows, cells = table.evaluate(
        """(table) => {
            const texts = (selector) => [...table.querySelectorAll(selector)].map((cell) => cell.textContent);
            const rows = [...table.tBodies[0].rows];
            const cells = rows.map((row) => [...row.cells].slice(1).map(({ title }) => title));
            return [table.caption.textContent, texts("thead th[scope=col]"), texts("tbody th[scope=row]"), cells];
        }"""
    )
    return (
        caption,
        [columns[1:], rows],
        np.array([[np.nan if cell == "–" else float(cell) for cell in row] for row in cells]),
    )


def expected_tables(views: dict) -> dict[str, np.ndarray]:
    return {
        "buckets": np.column_stack([views["phi_k"][0].T, views["mass"][0]]),
        **{name: views[name] for name in MATRICES},
        "band": np.stack([views["band_mean"], views["band_sd"], views["band_target"]], 1)[:, :2],
        "error": np.vstack([np.stack([views["error_output"], views["error_rate"]], 1), [views["error_here"], np.nan]]),
    }


@pytest.mark.parametrize("name", ["buckets", *MATRICES, "error"])
def test_the_table_holds_the_numbers_of_the_chosen_view(show, name):
    page = show(f"view={name}")
    open_details(page)
    caption, headings, numbers = read_table(page)
    want = expected_tables(view.compute(RaceParams()))[name]
    np.testing.assert_allclose(numbers, want, rtol=1e-9, atol=1e-15)
    assert [len(heading) for heading in headings] == [numbers.shape[1], numbers.shape[0]]
    assert caption.startswith(figure(page, name).get_by_role("heading").inner_text())
    shown = page.locator(".al-table tbody td").first.inner_text()
    assert float(shown) == pytest.approx(want[0, 0], rel=1e-5)  # what is read aloud has six digits


def test_the_table_follows_pin_and_view(show):
    page = show("tokens=64", "view=angular", "pin=query.50,key.40")
    open_details(page)
    views = view.compute(RaceParams(tokens=64))
    caption, (columns, rows), numbers = read_table(page)
    assert caption == "Angular, κ³: rows 33–64 of 64, columns 25–56 of 64; point elsewhere, or copy all"
    assert (rows[0].split()[1], columns[0].split()[1]) == ("33", "25")
    np.testing.assert_allclose(numbers, views["angular"][32:64, 24:56], rtol=1e-9)
    here = page.locator(".al-table td[aria-current=true]")
    assert float(here.get_attribute("title")) == pytest.approx(views["angular"][50, 40], rel=1e-9)
    inner, outer = here.bounding_box(), page.locator(".al-table").bounding_box()
    assert outer["y"] < inner["y"] < outer["y"] + outer["height"] - inner["height"]  # scrolled to
    assert outer["x"] < inner["x"] < outer["x"] + outer["width"] - inner["width"]
    page.get_by_label("Numbers of this view").select_option("softmax")
    page.wait_for_function("() => document.querySelector('.al-table caption').textContent.startsWith('Softmax')")
    np.testing.assert_allclose(read_table(page)[2], views["softmax"][32:64, 24:56], rtol=1e-9)


# -- colours ----------------------------------------------------------------------------------------------------------

TEXTS = ("ink", "muted", "queryText", "keyText", "valueText", "errorText")
MARKS = ("edge", "query", "key", "value", "error")  # lines, bars, thumbs, borders of fields


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_and_lines_stand_out_from_the_paper(show, theme):
    page = show(media={"color_scheme": theme})
    root = page.locator(".attnlab")
    colours = {
        name: root.evaluate("(root, name) => getComputedStyle(root).getPropertyValue(name)", f"--al-{name}")
        for name in ("paper", *TEXTS, *MARKS)
    }
    ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    for paper in (colours["paper"], ground):
        assert {name: contrast(colours[name], paper) >= 4.5 for name in TEXTS} == dict.fromkeys(TEXTS, True)
        assert {name: contrast(colours[name], paper) >= 3 for name in MARKS} == dict.fromkeys(MARKS, True)


def colours_of(page, name: str, tokens: int) -> np.ndarray:
    """The colour of the middle of every cell of a matrix, as [queries, keys, 3] from 0 to 1."""
    values = canvas(page, name).evaluate(
        """(canvas, tokens) => {
            const ratio = canvas.width / canvas.getBoundingClientRect().width;
            const side = Math.min(canvas.width / ratio - 22, canvas.height / ratio - 21) / tokens;
            const pen = canvas.getContext("2d");
            const colours = [];
            for (let query = 0; query < tokens; query++) {
                for (let key = 0; key < tokens; key++) {
                    const [x, y] = [20 + side * (key + 0.5), 2 + side * (query + 0.5)];
                    colours.push(...pen.getImageData(Math.floor(x * ratio), Math.floor(y * ratio), 1, 1).data);
                }
            }
            return colours;
        }""",
        tokens,
    )
    return np.array(values).reshape(tokens, tokens, 4)[..., :3] / 255


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_larger_weight_is_lighter_and_three_matrices_share_one_scale(show, theme):
    page = show("tokens=12", media={"color_scheme": theme})
    views = view.compute(RaceParams(tokens=12))
    weights = np.concatenate([views[name].ravel() for name in MATRICES])
    colours = np.concatenate([colours_of(page, name, 12).reshape(-1, 3) for name in MATRICES])
    lightness = np.array([luminance(colour) for colour in colours])[np.argsort(weights)]
    assert np.all(np.diff(lightness) >= -1e-12)  # over all three at once
    assert len(np.unique(lightness)) > 50
    top = max(views[name].max() for name in ("softmax", "angular"))
    ends = [figure(page, name).locator(".al-scale span").nth(1).inner_text() for name in MATRICES]
    assert [float(end.split()[-1] if end[0] == "≥" else end.split()[0]) for end in ends] == [
        pytest.approx(top, rel=0.006)
    ] * 3
    assert figure(page, "buckets").locator(".al-scale").inner_text().split() == ["0", "1"]


def test_the_scale_under_a_picture_grows_lighter_all_the_way(show):
    page = show()
    gradient = figure(page, "race").locator(".al-scale b").evaluate("(bar) => getComputedStyle(bar).backgroundImage")
    lightness = [luminance(stop) for stop in re.findall(r"rgb\([^)]*\)", gradient)]
    assert len(lightness) == 10
    assert all(after > before for before, after in pairwise(lightness))


def test_what_fails_is_said_in_words_and_not_only_in_red(show):
    page = show("sharpness=0.5")
    caption = figure(page, "lemma").locator(".al-caption")
    assert caption.inner_text().startswith("Fails here in every draw")
    assert "al-alarm" in caption.get_attribute("class")
    page.get_by_label("sharpness β").press("End")
    settle(page)
    assert "lie outside both regions" in caption.inner_text()
    assert "al-alarm" not in caption.get_attribute("class")


# -- small screens and fingers ----------------------------------------------------------------------------------------


def cut_off(page) -> list[str]:
    """Words that their own element hides in part, or that reach over the edge of the page; a table scrolls."""
    return page.evaluate(
        """() => [...document.querySelectorAll(".attnlab *")].filter((element) => {
            if (element.closest(".al-table, .al-unseen, style, option")) return false;
            if (!element.checkVisibility({ visibilityProperty: true })) return false;
            if (![...element.childNodes].some(({ data }) => data?.trim())) return false;
            const { left, right } = element.getBoundingClientRect();
            const { scrollWidth, clientWidth, scrollHeight, clientHeight } = element;
            const larger = scrollWidth > clientWidth + 1 || scrollHeight > clientHeight + 1;
            const hides = larger && getComputedStyle(element).overflow !== "visible";
            return hides || left < -0.5 || right > document.documentElement.clientWidth + 0.5;
        }).map((element) => element.textContent)"""
    )


def overlapping(page) -> list[str]:
    """Pairs of words or controls that lie on each other."""
    boxes = page.evaluate(
        """() => [...document.querySelectorAll(".attnlab *")].filter((element) => {
            if (element.closest(".al-table *, .al-unseen, style, option, i")) return false;
            if (!element.checkVisibility({ visibilityProperty: true })) return false;
            const words = [...element.childNodes].some(({ data }) => data?.trim());
            return words || element.matches("input, select, button, canvas");
        }).map((element, number, all) => {
            const { left, top, right, bottom } = element.getBoundingClientRect();
            const inside = all.flatMap((other, n) => (other !== element && element.contains(other) ? [n] : []));
            const name = `${element.tagName} ${element.textContent || element.id}`;
            return { name, left, top, right, bottom, inside };
        })"""
    )
    return [
        f"{one['name']} / {other['name']}"
        for (m, one), (n, other) in combinations(enumerate(boxes), 2)
        if n not in one["inside"]
        and m not in other["inside"]
        and min(one["right"], other["right"]) - max(one["left"], other["left"]) > 1
        and min(one["bottom"], other["bottom"]) - max(one["top"], other["top"]) > 3  # lines may touch
    ]


@pytest.mark.parametrize("width", [390, 320])
@pytest.mark.parametrize("words", [(), ("pin=query.20,key.25",), LONGEST], ids=["fresh", "pinned", "longest"])
def test_a_small_screen_shows_every_number_whole(show, width, words):
    page = show(*words, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    below = page.locator(".al-readout p").nth(
        1
    )  # the sum may be longer than its place; all of it stands in the details
    assert [text for text in cut_off(page) if text != below.locator("span").text_content()] == []
    assert overlapping(page) == []
    if words:
        row = page.locator(".al-readout").bounding_box()
        for part in (page.locator(".al-readout b").first, page.get_by_text("pinned, Esc releases")):
            box = part.bounding_box()
            assert box["width"] > 0
            assert row["y"] <= box["y"] + 6
            assert box["y"] + box["height"] <= row["y"] + row["height"]


@pytest.mark.parametrize("width", [1200, 390, 320])
@pytest.mark.parametrize("pointer", ["fine", "coarse"])
def test_every_control_is_large_enough_to_hit(show, pointer, width):
    page = show("pin=query.20,key.25", width=width, **(PHONE if pointer == "coarse" else {}))
    open_details(page)
    assert page.evaluate("matchMedia('(pointer: coarse)').matches") == (pointer == "coarse")
    least = 36 if pointer == "coarse" else 24
    sizes = page.locator(CONTROLS).evaluate_all(
        """(controls) => controls.map((control) => {
            const parts = control.type === "checkbox" ? [control, ...control.labels] : [control];
            const boxes = parts.map((part) => part.getBoundingClientRect());
            const from = (side) => Math.min(...boxes.map((box) => box[side]));
            const to = (side) => Math.max(...boxes.map((box) => box[side]));
            return [control.textContent || control.id, to("right") - from("left"), to("bottom") - from("top")];
        })"""
    )
    assert len(sizes) == len(ORDER)
    assert [entry for entry in sizes if min(entry[1:]) < least] == []


def test_a_tap_pins_a_number_and_another_tap_lets_it_go(show):
    page = show(width=390, **PHONE)
    canvas(page, "race").scroll_into_view_if_needed()
    mark, number = page.get_by_text("pinned, Esc releases"), page.locator(".al-readout b").first
    for _ in range(2):
        page.touchscreen.tap(*cell(page, "race", 20, 5))
        mark.wait_for()
        assert address_says(page, "view=race", "pin=query.20,key.5")
        weight = view.compute(RaceParams())["race"][20, 5]
        assert number.inner_text() == f"= {weight:.4g}"
        assert figure(page, "race").locator(".al-head span").inner_text() == f"{weight:.4g}"
        assert page.locator(".al-readout p").nth(2).inner_text().startswith("Point at another number")
        page.touchscreen.tap(*cell(page, "race", 20, 5))
        mark.wait_for(state="hidden")
        assert address_says(page, "view=race")
        assert number.inner_text() == ""  # a finger that has gone points at nothing
    page.touchscreen.tap(*cell(page, "race", 20, 5))
    mark.tap()
    assert address_says(page, "view=race")


def finger(page, start: tuple[float, float], end: tuple[float, float], steps: int = 12) -> None:
    """Draw a finger over the screen."""
    session = page.context.new_cdp_session(page)
    for n in range(steps + 1):
        x, y = (a + (b - a) * n / steps for a, b in zip(start, end, strict=True))
        kind = "touchMove" if n else "touchStart"
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x, "y": y}]})
        settle(page)
    session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def test_a_swipe_over_a_picture_scrolls_the_page_and_pins_nothing(show):
    page = show(width=390, height=700, **PHONE)
    for name in ("buckets", "race", "error"):
        canvas(page, name).scroll_into_view_if_needed()
        box, before = canvas(page, name).bounding_box(), page.evaluate("scrollY")
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        finger(page, (x, y), (x, y - 200))
        page.wait_for_function("(before) => scrollY > before + 100", arg=before)
    assert page.locator(".al-readout b").first.inner_text() == ""
    assert page.get_by_text("pinned, Esc releases").is_hidden()


def test_a_finger_drags_a_slider(show):
    page = show(width=390, **PHONE)
    box = page.get_by_label("planes P").bounding_box()
    y = box["y"] + box["height"] / 2
    finger(page, (box["x"] + box["width"] * 2 / 7, y), (box["x"] + box["width"] - 2, y))
    page.wait_for_function("() => document.querySelector('.al-dial output').value === '8'")
    assert address_says(page, "planes=8")


@pytest.mark.parametrize("width", [1200, 900, 700, 390, 320])
def test_setting_reading_pinning_and_copying_never_change_the_height(show, width):
    page = show("tables=16", width=width)
    open_details(page)
    heights = {"at rest": height(page)}
    for label, keys in {
        "planes P": ("Home", "End"),
        "sharpness β": ("Home", "End"),
        "causal": ("Space", "Space"),
    }.items():
        for key in keys:
            page.get_by_label(label).press(key)
            settle(page)
            heights[f"{label}, {key}"] = height(page)
    for name in FIGURES:
        canvas(page, name).scroll_into_view_if_needed()
        box = canvas(page, name).bounding_box()
        for part in (0.3, 0.6):
            page.mouse.move(box["x"] + box["width"] * part, box["y"] + box["height"] * part)
            settle(page)
            heights[f"over {name}, {part}"] = height(page)
    here = """([query, key]) => {
        const cell = document.querySelector(".al-table td[aria-current=true]");
        return cell?.parentElement.rowIndex === query + 1 && cell.cellIndex === key + 1;
    }"""
    for query, key in ((3, 5), (20, 25)):
        page.mouse.click(*cell(page, "race", query, key))
        page.mouse.move(*cell(page, "angular", query + 1, key + 1))
        page.wait_for_function(here, arg=[query + 1, key + 1])  # the table follows when the hand rests
        heights[f"pinned {query}, {key}"] = height(page)
    for name in ("Copy link", "Copy number"):
        page.get_by_role("button", name=name).click()
        page.get_by_text("Copied.").first.wait_for()
        heights[name] = height(page)
    assert [what for what, now in heights.items() if abs(now - heights["at rest"]) > 0.5] == []


def test_at_two_hundred_per_cent_nothing_lies_on_anything(show):
    page = show("pin=query.20,key.25", width=640, device_scale_factor=2)
    open_details(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 640
    assert overlapping(page) == []
    sharp = canvas(page, "race").evaluate("(canvas) => canvas.width / canvas.getBoundingClientRect().width")
    assert sharp == pytest.approx(2, rel=0.01)


# -- paper, motion, high contrast -------------------------------------------------------------------------------------


def test_a_dark_panel_is_painted_for_white_paper_and_dark_again_after(show):
    page = show("pin=query.20,key.25", media={"color_scheme": "dark"})
    ink = {
        theme: page.evaluate(
            """async (theme) => {
                const text = document.querySelector("#attnlab-module").textContent;
                return text.match(new RegExp(`${theme}: \\\\{\\\\s*ink: "(#\\\\w+)"`))[1];
            }""",
            theme,
        )
        for theme in ("light", "dark")
    }
    page.evaluate(
        """() => {
            const charts = [...document.querySelectorAll(".al-chart canvas")];
            globalThis.look = () => charts.map((canvas) => {
                const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
                const count = {};
                for (let at = 0; at < pixels.length; at += 4) {
                    if (pixels[at + 3] < 255) continue;
                    const hex = "#" + [0, 1, 2].map((n) => pixels[at + n].toString(16).padStart(2, "0")).join("");
                    count[hex] = (count[hex] ?? 0) + 1;
                }
                return count;
            });
            addEventListener("beforeprint", () => {
                const fine = charts.map((canvas) => canvas.width / canvas.getBoundingClientRect().width);
                globalThis.printed = [document.querySelector(".attnlab").dataset.theme, Math.min(...fine), look()];
            });
        }"""
    )
    before = page.evaluate("look()")
    page.pdf(format="A4")
    theme, fine, printed = page.evaluate("printed")
    assert (theme, round(fine)) == ("light", 3)  # paper is finer than a screen
    for screen, paper in zip(before, printed, strict=True):
        assert (screen.get(ink["dark"], 0) > 0, screen.get(ink["light"], 0)) == (True, 0)
        assert (paper.get(ink["dark"], 0), paper.get(ink["light"], 0) > 0) == (0, True)
    page.wait_for_function("() => document.querySelector('.attnlab').dataset.theme === 'dark'")
    settle(page)
    assert page.evaluate("look()") == before


@pytest.mark.parametrize("words", [(), ("pin=query.20,key.25", "tables=16", "view=race")], ids=["fresh", "pinned"])
@pytest.mark.parametrize("width", [1200, 700, 390])
def test_a_sheet_of_paper_holds_the_panel_with_its_values_and_no_buttons(show, words, width):
    page = show(*words, width=width)
    open_details(page)
    margin = dict.fromkeys(("top", "right", "bottom", "left"), "12mm")
    sheets = re.findall(rb"/Type\s*/Page\b(?!s)", page.pdf(format="A4", margin=margin))
    assert len(sheets) == 1
    shapes = {name: shape(page, name) for name in FIGURES}
    page.emulate_media(media="print")
    page.set_viewport_size(A4)
    assert page.locator(".attnlab :is(button, input[type=range], summary, table)").locator("visible=true").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= A4["width"]
    assert cut_off(page) == []
    assert overlapping(page) == []
    values = page.locator(".al-dial output").all_inner_texts()
    assert values == ["3", "16" if words else "4", "4", "32", "16"]
    for label in ("seed", "causal", "normalise q, k", "input"):
        assert page.get_by_label(label, exact=True).is_visible()
    for name in FIGURES:
        assert figure(page, name).evaluate("(figure) => getComputedStyle(figure).breakInside") == "avoid"
        assert shape(page, name) == pytest.approx(
            shapes[name], rel=0.02
        )  # a canvas is not painted again: it must not stretch
    number = view.compute(RaceParams(tables=16))["race"][20, 25]
    readout = page.locator(".al-readout")
    assert readout.is_visible() == bool(words)
    if words:
        assert f"= {number:.4g}" in readout.inner_text()
        assert "Point at" not in readout.inner_text()


def test_nothing_moves_for_a_reader_who_asked_for_less_motion(show):
    moves = """() => [...document.querySelectorAll(".attnlab, .attnlab *")].filter((element) => {
        const { transitionDuration, animationName } = getComputedStyle(element);
        return animationName !== "none" || transitionDuration.split(",").some((time) => parseFloat(time) > 0);
    }).length"""
    assert show(media={"reduced_motion": "no-preference"}).evaluate(moves) > 0  # else the next line would show nothing
    assert show(media={"reduced_motion": "reduce"}).evaluate(moves) == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_high_contrast_keeps_thumbs_choices_and_scales_in_sight(show, theme):
    page = show("pin=query.20,key.25", media={"forced_colors": "active", "color_scheme": theme})
    ground = pixels(page, page.get_by_label("planes P"))[0] / 255
    thumb = [contrast(colour / 255, ground) >= 3 for colour in pixels(page, page.get_by_label("planes P"))]
    assert sum(thumb) > 250  # a disc 14 pixels wide, and a line on either side
    pressed, other = (pixels(page, page.get_by_role("button", name=name)) for name in ("keys", "queries"))
    most = [np.median(button, axis=0) / 255 for button in (pressed, other)]
    assert contrast(*most) >= 3
    scale = pixels(page, figure(page, "race").locator(".al-scale b"))
    assert len(np.unique(scale, axis=0)) > 20
    assert complaints_of_axe(page, ".attnlab") == []
