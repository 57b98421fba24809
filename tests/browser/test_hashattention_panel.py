"""The Hamming recall panel on a page: a query that is followed, a key that is told, on every width and on paper."""

import re

import pytest

from attnlab.hashattention import view
from attnlab.hashattention.params import HashParams
from attnlab.panels import export
from tests.browser.panel_on_page import (
    canvas,
    cell,
    figure,
    mount,
    number_of,
    painted,
    readout,
    settle,
    shut_down,
    slider,
)
from tests.browser.test_access import cut_off, overlapping

SAVES = "{ save(state) { window.saved = state; } }"  # a host that listens, and keeps the last state
REAL = ("input=layer 21, head 1", "codes=learned", "tokens=256", "query=256", "pin=query.200,rank.150,bit.31")


@pytest.fixture
def show(same_page, tmp_path):
    """Open the page of these settings at some width, from a disk; with `live`, mount it, its states saved."""

    def show(*words, width=1200, live=False):
        same_page.set_viewport_size({"width": width, "height": 1300})
        state = export.setting("hashattention", words)
        if live:
            mount(same_page, "hashattention", state, host=SAVES)
        else:
            export.write(tmp_path / "page.html", "hashattention", state)
            same_page.goto((tmp_path / "page.html").as_uri())
            same_page.locator(".attnlab[data-frames]").wait_for()
        settle(same_page)
        return same_page

    return show


def grid(page, rank: float, row: float, keys: int, rows: int = 35) -> tuple[float, float]:
    """The middle of a cell of the grid of codes, in the window."""
    canvas(page, "codes").scroll_into_view_if_needed()
    box = canvas(page, "codes").bounding_box()
    across, down = (box["width"] - 20) / keys, (box["height"] - 19 - 15 - 3) / rows
    return box["x"] + 20 + across * (rank + 0.5), box["y"] + 15 + down * (row + 0.5)


def test_a_dial_moves_pictures_and_numbers_and_they_are_pythons(show):
    page = show(live=True)
    assert number_of(page, "recall") == f"{view.compute(HashParams())['here'][0, 0]:.3g}"
    slider(page, "budget m").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.get_by_label("selector").select_option("key_norm")
    settle(page)
    here = view.compute(HashParams(budget=11))["here"][:, 2]
    for name, number in zip(("recall", "mass", "error"), here, strict=True):
        assert float(number_of(page, name)) == float(f"{number:.3g}")
    page.wait_for_function("window.saved?.dials.selector === 'key_norm'")
    assert page.evaluate("window.saved.dials.budget") == 11


def test_a_key_that_is_pinned_tells_its_text_its_bits_and_both_places(show):
    page = show(live=True)
    views = view.compute(HashParams())
    place = views["code_place"][63]
    key = int(place.tolist().index(5))
    page.mouse.click(*grid(page, 4, 9, int(place.max())))
    settle(page)
    name = HashParams().inputs().tokens[key]
    differs = int(views["key_bits"][key, 9] != views["query_bits"][63, 9])
    assert readout(page) == [f"bit 10 of key {key + 1} “{name}”", f"= {differs}"]
    code = "".join(str(int(bit)) for bit in views["key_bits"][key])
    words = f"distance {views['distance'][63, key]:.0f}, place 5 of {place.max():.0f} · by logit place"
    told = readout(page, 1)[0]
    assert told.replace(" ", "").startswith(code)
    assert told.endswith(f"{words} {views['true_place'][63, key]:.0f}")
    page.wait_for_function("window.saved?.selection.pin")
    assert page.evaluate("window.saved.selection.pin") == {"query": 63, "rank": 4, "bit": 9}
    page.get_by_role("button", name="codes").click()
    settle(page)
    assert readout(page)[1] == f"= {views['key_bits'][key, 9]:.0f}"


def test_every_picture_follows_the_query_that_is_pointed_at(show):
    page = show(live=True)
    before = {name: canvas(page, name).evaluate("(canvas) => canvas.toDataURL()") for name in ("codes", "orders")}
    page.mouse.move(*cell(page, "reads", 40, 30, 64))
    settle(page)
    views = view.compute(HashParams())
    read = (views["place"][40] >= 0) & (views["place"][40] <= 8)
    shown = f"= {views['sparse'][40, 30]:.4g}" if read[30] else "not read"
    assert readout(page)[1] == shown
    for name, picture in before.items():
        assert canvas(page, name).evaluate("(canvas) => canvas.toDataURL()") != picture
    top = (views["true_place"][40] > 0) & (views["true_place"][40] <= 8)
    assert number_of(page, "orders") == f"{(top & read).sum()} of {top.sum()} found"


def test_arrow_keys_walk_over_keys_distances_and_budgets(show):
    page = show(live=True)
    views = view.compute(HashParams())
    for name, axis, spoken in (
        ("orders", "rank", "logit of key"),
        ("histogram", "distance", "keys at distance 1 from query 64"),
        ("recall", "budget", "Recall of the true top, codes, budget 2"),
    ):
        canvas(page, name).focus()
        for _ in range(2):
            page.keyboard.press("ArrowRight")
        settle(page)
        assert spoken in page.locator(".al-unseen").inner_text(), axis
    assert float(number_of(page, "recall")) == float(f"{views['recall'][0, 1]:.4g}")


def test_where_no_maps_were_learned_the_panel_says_so(show):
    said = [
        figure(show(*words), "codes").locator(".al-caption span").first.inner_text()
        for words in (("codes=learned",), REAL)
    ]
    assert said[0].startswith("No maps were learned for this input. 32 bits, random projections, keys centred.")
    assert said[1].startswith("32 bits, learned.")


def test_in_a_notebook_a_real_head_arrives_with_its_learned_codes(lab, page):
    dials = {"input": "layer 21, head 1", "codes": "learned", "tokens": 40, "query": 40}
    arguments = ", ".join(f"{name}={value!r}" for name, value in dials.items())
    lab.open(page, "hash.ipynb", f"from attnlab.hashattention.widget import HashPanel\nHashPanel({arguments})")
    painted(page)
    assert "32 bits, learned." in figure(page, "codes").locator(".al-caption span").first.inner_text()
    here = view.compute(HashParams(**dials))["here"][:, 0]
    for name, number in zip(("recall", "mass", "error"), here, strict=True):
        assert float(number_of(page, name)) == float(f"{number:.3g}")
    shut_down(page)


@pytest.mark.parametrize("words", [(), ("tokens=12",), REAL], ids=["fresh", "all read", "real"])
@pytest.mark.parametrize("width", [390, 700, 1200])
def test_every_word_is_in_sight_and_nothing_lies_on_anything(show, words, width):
    page = show(*words, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    below = page.locator(".al-readout p").nth(1).locator("span").text_content()  # a sum; all of it is in the details
    assert [text for text in cut_off(page) if text != below] == []
    assert overlapping(page) == []
    if width == 390:
        sides = [canvas(page, name).bounding_box()["width"] for name in ("reads", "recall")]
        assert max(sides) - min(sides) < 1  # on a phone the only matrix is as wide as the charts


@pytest.mark.parametrize("words", [(), REAL], ids=["fresh", "real"])
def test_one_sheet_of_paper_holds_the_panel(show, words):
    page = show(*words)
    margin = dict.fromkeys(("top", "right", "bottom", "left"), "12mm")
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", page.pdf(format="A4", margin=margin))) == 1
