"""The residual panel on a page: curves that are drawn or set with keys, and a token that stays in focus."""

import re

import pytest

from attnlab.panels import export
from attnlab.residual import view
from attnlab.residual.params import POINTS, ResidualParams
from tests.browser.panel_on_page import canvas, figure, mount, number_of, readout, settle, slider

SAVES = "{ save(state) { window.saved = state; } }"  # a host that listens, and keeps the last state


@pytest.fixture
def show(same_page):
    """Mount the panel with these settings on a page of this width, its states saved to window.saved."""

    def show(*words, width=1200):
        same_page.set_viewport_size({"width": width, "height": 1300})
        mount(same_page, "residual", export.setting("residual", words), host=SAVES)
        return same_page

    return show


def board(page, name: str):
    return page.get_by_role("group", name=name).locator(".al-board")


def point(page, name: str, n: int):
    return page.get_by_label(f"{name}, point {n} of {POINTS}", exact=True)


def saved(page, name: str, *points: tuple[int, float]) -> list[float]:
    """The curve as the host hears of it once the reader has let go, when these points of it, from 0, have come."""
    page.wait_for_function(
        "([name, points]) => window.saved && points.every(([n, height]) => window.saved.dials[name][n] === height)",
        arg=[name, points],
    )
    return page.evaluate("(name) => window.saved.dials[name]", name)


def expected_error(**dials) -> str:
    return f"{view.compute(ResidualParams(**dials))['recall_here'][1]:.3g}"


def draw(page, name: str, *places: tuple[float, float]) -> None:
    """Lead the pressed pointer over these places, parts of the plot's width and height from its lower left corner."""
    box = board(page, name).locator(".al-plot").bounding_box()
    for n, (across, up) in enumerate(places):
        page.mouse.move(box["x"] + across * box["width"], box["y"] + (1 - up) * box["height"])
        if n == 0:
            page.mouse.down()
    page.mouse.up()


def test_a_stroke_of_the_pointer_draws_a_gate_and_the_numbers_are_pythons(show):
    page = show("rule=rdn")
    draw(page, "retention α", (0, 0.5), (1, 0.5))  # in one move from end to end: what lies between is drawn too
    heights = saved(page, "retention")
    assert len(heights) == POINTS
    assert heights == pytest.approx([0.5] * POINTS, abs=0.03)
    assert number_of(page, "recall").endswith(expected_error(rule="rdn", retention=heights))
    draw(page, "retention α", (2 / 7, 0.7), (2 / 7, 3.0), (3 / 7, -2.0))  # far outside is the end of the range
    assert saved(page, "retention", (2, 1), (3, 0)) == [*heights[:2], 1, 0, *heights[4:]]
    assert page.get_by_role("group", name="retention α").locator("output").inner_text().startswith("0 – 1")


def test_arrow_keys_walk_over_the_points_and_set_them(show):
    page = show()
    point(page, "write", 1).focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    settle(page)
    heights = [0.7, 0.7, 0.68, *[0.7] * 5]
    assert saved(page, "write", (2, 0.68)) == heights
    assert point(page, "write", 3).evaluate("(input) => input === document.activeElement")
    assert point(page, "write", 3).get_attribute("aria-valuetext") == "0.68"
    assert number_of(page, "recall").endswith(expected_error(write=heights))
    page.keyboard.press("Home")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("End")
    assert saved(page, "write", (1, 1))[2] == 0
    tabbed = page.locator(".al-curve input").evaluate_all("(found) => found.map((input) => input.tabIndex)")
    assert tabbed.count(0) == 3  # one stop a curve
    page.keyboard.press("Tab")
    assert point(page, "correction", 1).evaluate("(input) => input === document.activeElement")


def test_a_tied_correction_shows_the_write_gate_and_cannot_be_drawn(show):
    page = show("write=0,1,0,1,0,1,0,1")
    slider(page, "tie γ to β").click()
    settle(page)
    group = page.get_by_role("group", name="correction γ")
    assert group.get_attribute("title") == "γ is tied to β."
    assert group.locator("input").evaluate_all("(found) => found.map((input) => Number(input.value))") == [0, 100] * 4
    assert group.locator("input:disabled").count() == POINTS
    draw(page, "correction γ", (0, 0.2), (1, 0.2))
    assert saved(page, "correction") == [0.6] * POINTS
    slider(page, "tie γ to β").click()
    settle(page)
    assert group.locator("output").inner_text() == "0.6"


def test_the_token_that_is_pinned_stays_while_its_memories_are_read(show):
    page = show("pin=query.5,key.2", "view=weights")
    assert "query 6" in readout(page)[0]
    box = canvas(page, "memories").bounding_box()
    page.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + 0.5 * box["height"])
    settle(page)
    assert readout(page, 2)[0].startswith("R after token 6, key channel")
    channel, entry = (int(number) - 1 for number in re.findall(r"channel (\d+)", readout(page, 2)[0]))
    number = view.compute(ResidualParams())["memories"][1, 5, channel, entry]
    assert readout(page, 2)[1] == f"= {float(f'{number:.4g}'):g}"


@pytest.mark.parametrize("width", [390, 1200])
def test_nothing_is_wider_than_the_page_and_each_curve_can_be_hit(show, width):
    page = show(width=width)
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    for name in ("retention α", "write β", "correction γ"):
        box = board(page, name).bounding_box()
        assert box["height"] >= 44
        assert box["width"] >= 150
    sides = [canvas(page, name).bounding_box()["width"] for name in ("weights", "recall")]
    assert max(sides) - min(sides) < 1  # on a phone the only matrix is as wide as the charts
    assert figure(page, "budget").locator("figcaption").inner_text().startswith("Bars:")


def test_a_report_holds_until_a_curve_is_drawn_anew(show):
    page = show()
    dials = export.setting("residual")["dials"]
    rows = [{"impl": "numba", "ran": False, "why_not": "not here"}]
    page.evaluate("([dials, rows]) => window.view.report({ dials, rows })", [dials, rows])
    assert page.locator(".al-verify.al-stale").count() == 0
    draw(page, "write β", (0, 0.2), (0, 0.2))
    settle(page)
    assert page.locator(".al-verify.al-stale").count() == 1
    page.evaluate(
        "([dials, rows]) => window.view.report({ dials, rows })", [{**dials, "write": saved(page, "write")}, rows]
    )
    assert page.locator(".al-verify.al-stale").count() == 0


def test_one_sheet_of_paper_holds_the_panel_with_its_curves(show):
    page = show("retention=1,1,0.2,1,1,0.5,1,1", "pin=query.5,key.2", "view=weights")
    margin = dict.fromkeys(("top", "right", "bottom", "left"), "12mm")
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", page.pdf(format="A4", margin=margin))) == 1
    page.emulate_media(media="print")
    assert page.locator(".al-curve .al-line").locator("visible=true").count() == 3
    assert page.locator(".al-curve input").locator("visible=true").count() == 0
