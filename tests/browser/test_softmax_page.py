"""The softmax panel as an exported page: what the kit does for a mechanism that brings a computer and four figures."""

import pytest

from attnlab.dense import view
from attnlab.dense.params import SoftmaxParams
from attnlab.panels import export

MEAN = "Keys in effect: mean {:.3g}. Heaviest keys: 90 % in {}"


@pytest.fixture
def show(open_page, tmp_path):
    """Open the page of these settings."""

    def show(*words, **options):
        export.write(tmp_path / "page.html", "dense", export.setting("dense", words))
        page = open_page(**options)
        page.goto((tmp_path / "page.html").as_uri())
        page.wait_for_function("Number(document.querySelector('.attnlab')?.dataset.frames) >= 1")
        return page

    return show


def canvas(page, figure):
    return page.locator(f"[data-figure={figure}] canvas")


def readout(page):
    return page.locator(".al-readout p").first


def test_a_dial_that_is_let_go_tells_a_screen_reader_the_headlines(show):
    page = show()
    page.get_by_label("temperature").focus()
    page.keyboard.press("Home")
    views = view.compute(SoftmaxParams(temperature=2.0**-5))
    most = 1 + int((views["kept"] >= 0.9).argmax())
    spoken = MEAN.format(views["effective"].mean(), most)
    page.wait_for_function("words => document.querySelector('[aria-live]').textContent === words", arg=spoken)


def test_a_real_head_says_why_its_width_is_no_dial(show):
    page = show("input=layer 9, head 1")
    width = page.get_by_label("head width")
    assert width.is_disabled()
    assert "64 wide" in width.get_attribute("title")
    assert not page.get_by_label("temperature").is_disabled()


def test_a_query_pointed_at_anywhere_in_its_column_is_shown_key_by_key(show):
    page = show("causal=true")
    box = canvas(page, "spread").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 40)  # far below the line
    page.mouse.down()
    page.mouse.up()  # pins it
    page.wait_for_function("document.querySelector('.al-readout').textContent.includes('keys in effect of query')")
    query = int(readout(page).text_content().split("query ")[1].split()[0])
    assert 1 < query < 32
    page.mouse.move(0, 0)
    canvas(page, "row").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    wanted = f"weight of key 2 “a2” for query {query} "
    page.wait_for_function("words => document.querySelector('[aria-live]').textContent.includes(words)", arg=wanted)
    views = view.compute(SoftmaxParams(causal=True))
    spoken = page.locator("[aria-live]").text_content()
    assert float(spoken.split(" = ")[1].split()[0]) == pytest.approx(views["weights"][query - 1, 1], rel=1e-12)


def test_on_a_phone_the_only_matrix_is_as_wide_as_the_charts(show):
    page = show(viewport={"width": 390, "height": 844})
    widths = [canvas(page, figure).bounding_box()["width"] for figure in ("weights", "spread", "kept", "row")]
    assert max(widths) - min(widths) < 1
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
