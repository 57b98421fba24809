"""The RoPE subspace panel on a page: a view that turns, a factor that leans by its handle, every width, and paper."""

import math
import re

import pytest

from attnlab.lrkv import view
from attnlab.lrkv.params import LrkvParams
from attnlab.panels import export
from tests.browser.panel_on_page import canvas, mount, number_of, painted, readout, settle, shown, shut_down, slider
from tests.browser.test_access import cut_off, overlapping

SAVES = "{ save(state) { window.saved = state; } }"  # a host that listens, and keeps the last state
FULL = ("option=tied", "rank=16", "head_width=128", "tokens=64", "heads=64", "context=1048576", "layers=128",
        "latent_width=960", "groups=64", "stored=float32", "position=64", "pin=place.200")  # fmt: skip


@pytest.fixture
def show(same_page, tmp_path):
    """Open the page of these settings at some width, from a disk; with `live`, mount it, its states saved."""

    def show(*words, width=1200, live=False):
        same_page.set_viewport_size({"width": width, "height": 1300})
        state = export.setting("lrkv", words)
        if live:
            mount(same_page, "lrkv", state, host=SAVES)
        else:
            export.write(tmp_path / "page.html", "lrkv", state)
            same_page.goto((tmp_path / "page.html").as_uri())
            same_page.locator(".attnlab[data-frames]").wait_for()
        settle(same_page)
        return same_page

    return show


def tip(page, angle: float, turn: float = 25, tilt: float = 30) -> tuple[float, float]:
    """Where the handle is drawn at this lean, in the window."""
    canvas(page, "subspace").scroll_into_view_if_needed()
    box = canvas(page, "subspace").bounding_box()
    lean, turned, tilted = (math.radians(degrees) for degrees in (angle, turn, tilt))
    x, z = math.cos(lean), math.sin(lean)
    right, up = math.cos(turned) * x, math.cos(tilted) * z + math.sin(tilted) * math.sin(turned) * x
    wide, high = box["width"] - 46, box["height"] - 48  # without the margins of a chart
    return box["x"] + 34 + (right / 1.38 + 1) / 2 * wide, box["y"] + 16 + (1 - up / 1.15) / 2 * high


def drag(page, *places: tuple[float, float]) -> None:
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place)
    page.mouse.up()
    settle(page)


def test_a_dial_moves_pictures_and_numbers_and_they_are_pythons(show):
    page = show(live=True)
    slider(page, "lean in degrees φ").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.get_by_label("repair").select_option("best_latent_map")
    settle(page)
    views = view.compute(LrkvParams(angle=33, option="best_latent_map"))
    error, size = views["here"]
    assert float(number_of(page, "repair")) == float(f"{error / size:.3g}")
    assert float(number_of(page, "law")) == float(f"{views['law'][0, 12]:.4g}")
    page.get_by_label("repair").select_option("aligned")
    settle(page)
    assert float(number_of(page, "repair")) < 1e-14
    page.wait_for_function("window.saved?.dials.option === 'aligned'")
    assert page.evaluate("window.saved.dials.angle") == 33


@pytest.mark.parametrize("width", [1200, 390])
def test_the_handle_is_dragged_and_the_dial_follows(show, width):
    page = show(live=True, width=width)
    before = canvas(page, "law").evaluate("(canvas) => canvas.toDataURL()")
    drag(page, tip(page, 30), tip(page, 45), tip(page, 62))
    assert shown(page, "lean in degrees φ") == "62"
    assert shown(page, "turn the view") == "25"
    assert canvas(page, "law").evaluate("(canvas) => canvas.toDataURL()") != before
    page.wait_for_function("window.saved?.dials.angle === 62")
    assert page.evaluate("window.saved.selection.pin") is None  # the click that ends a drag pins nothing


def test_a_drag_beside_the_handle_turns_the_view_and_leaves_the_numbers(show):
    page = show(live=True)
    x, y = tip(page, 30)
    before = number_of(page, "subspace")
    drag(page, (x - 150, y + 60), (x - 100, y + 60), (x - 50, y + 40))
    assert shown(page, "lean in degrees φ") == "30"
    assert shown(page, "turn the view") == "95"  # 100 pixels at 0.7 degrees
    assert shown(page, "tilt it") == "16"
    assert number_of(page, "subspace") == before
    page.wait_for_function("window.saved?.dials.turn === 95")


def test_a_click_on_the_trail_pins_its_position(show):
    page = show("position=12", live=True)
    canvas(page, "subspace").scroll_into_view_if_needed()
    canvas(page, "subspace").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    settle(page)
    share = view.compute(LrkvParams(position=12))["law"][0, 2]
    assert readout(page) == ["what leaves span(B) at t = 0.5", f"= {share:.4g}"]
    page.wait_for_function("window.saved?.selection.pin")
    assert page.evaluate("window.saved.selection.pin") == {"place": 2}


def test_arrow_keys_walk_over_schemes_prints_and_shares(show):
    page = show(live=True)
    for name, spoken in (
        ("law", "what leaves span(B) at t = 0.25"),
        ("meter", "bytes a token, GQA"),
        ("prints", "printed, 1.2B at r = 51, Table 7 (print unknown)"),
        ("diversity", "effective rank, shared part 0.03125"),
    ):
        canvas(page, name).focus()
        for _ in range(2):
            page.keyboard.press("ArrowRight")
        settle(page)
        assert spoken in page.locator(".al-unseen").inner_text()


def test_in_a_notebook_python_hears_of_a_drag(lab, page):
    lab.open(page, "lrkv.ipynb", "from attnlab.lrkv.widget import LrkvPanel\npanel = LrkvPanel(tokens=8)\npanel")
    painted(page)
    drag(page, tip(page, 30), tip(page, 50), tip(page, 71))
    assert shown(page, "lean in degrees φ") == "71"
    page.wait_for_timeout(300)
    assert lab.run(page, "print(panel.params.angle)") == "71"
    shut_down(page)


@pytest.mark.parametrize("words", [(), ("rank=0", "option=none", "position=0", "tokens=2"), FULL])
@pytest.mark.parametrize("width", [390, 700, 1200])
def test_every_word_is_in_sight_and_nothing_lies_on_anything(show, words, width):
    page = show(*words, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    below = page.locator(".al-readout p").nth(1).locator("span").text_content()  # a sum; all of it is in the details
    assert [text for text in cut_off(page) if text != below] == []
    assert overlapping(page) == []
    if width == 390:
        sides = [canvas(page, name).bounding_box()["width"] for name in ("repair", "law")]
        assert max(sides) - min(sides) < 1  # on a phone the only matrix is as wide as the charts


@pytest.mark.parametrize("words", [(), FULL], ids=["fresh", "full"])
def test_one_sheet_of_paper_holds_the_panel(show, words):
    page = show(*words)
    margin = dict.fromkeys(("top", "right", "bottom", "left"), "12mm")
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", page.pdf(format="A4", margin=margin))) == 1
