"""The slides as a speaker uses them: keys, live panels, notes in a second window, paper, a phone, no script."""

import base64
import json
import re
from dataclasses import replace

import pytest
from axe_playwright_python.base import AXE_SCRIPT

from attnlab import panels
from attnlab.panels import export
from attnlab.teach import handout, slides
from attnlab.teach.session import Scene
from tests.teach.made_up import PROMPTS, SESSION, TABLES

SLIDES = 5 + len(PROMPTS) + 2  # title, three, the list of prompts; the prompts; a divider and a backup
FITS = """() => [...document.querySelectorAll(".slide.now :is(.panel, .stage, .said)")].every(
    (part) => part.scrollHeight <= part.clientHeight + 1 && part.scrollWidth <= part.clientWidth + 1)"""
FRAME = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def section(html: str, name: str) -> str:
    (found,) = re.findall(rf'<section [^>]*id="{name}".*?</section>', html, re.DOTALL)
    return found


def given(html: str) -> dict:
    (text,) = re.findall(r'id="attnlab-given">(.*?)</script>', html, re.DOTALL)
    return json.loads(text)


# -- the file ---------------------------------------------------------------------------------------------------------


def test_every_slide_says_where_and_whose_it_is():
    html = slides.page(SESSION)
    assert html.count("<section") == SLIDES
    for number, slide, mark in ((2, TABLES, "the paper"), (3, SESSION.slides[1], "reader's analysis")):
        foot = section(html, f"slide-{number}").split("<footer>")[1]
        assert slide.place in foot
        assert f">{mark}</span>" in foot
        assert f"arXiv:{SESSION.arxiv}" in foot
    assert ">this project</span>" in section(html, "prompt-1")
    assert f"arXiv:{SESSION.arxiv}" in section(html, "title")
    assert html.index('id="backup"') < html.index("A counterexample</h2>")


def test_the_panel_and_each_real_head_are_there_once():
    html = slides.page(SESSION)
    assert html.count(panels.source("race").strip()) == 1
    found = given(html)
    (window,) = found["data"]
    assert window["input"] == "layer 9, head 1"
    state = SESSION.state(TABLES.scenes[2])
    view = panels.view("race")
    assert base64.b64decode(window["q"]["base64"]) == view.data(view.PARAMS(**state["dials"]))["q"]
    assert [scene["data"] for scene in found["slides"][1]["scenes"]] == [None, None, 0]


def test_one_input_in_two_lengths_brings_the_longer_window():
    short, long = (Scene("x", ("input=layer 9, head 1", f"tokens={tokens}")) for tokens in (32, 128))
    both = replace(SESSION, prompts=(), slides=(replace(TABLES, scenes=(short, long)),))
    found = given(slides.page(both))
    assert [len(window["tokens"]) for window in found["data"]] == [128]
    assert [scene["data"] for scene in found["slides"][1]["scenes"]] == [0, 0]


def test_a_slide_shows_the_pictures_it_names_or_its_scenes_do():
    found = given(slides.page(SESSION))["slides"]
    assert found[1]["figures"] == ["softmax", "angular", "race"]
    assert found[3]["figures"] == []
    assert found[5]["figures"] == ["error"]
    assert found[1]["dials"][:2] == ["tables", "view"]


def test_the_still_is_that_of_the_first_scene():
    shown = export.contents("race", SESSION.state(TABLES.scenes[0]))
    still = section(slides.page(SESSION), "slide-2").split('<div class="still">')[1]
    (error,) = (number for name, number in shown["numbers"] if name.startswith("output error"))
    assert error in still
    assert still.count("<img") == 4
    assert "@keyframes" not in still


def test_a_setting_that_the_panel_does_not_have_is_refused():
    wrong = replace(TABLES, scenes=(Scene("x", ("planes=99",)),))
    with pytest.raises(ValueError, match=r"planes must lie in \[1, 8\], got 99"):
        slides.page(replace(SESSION, slides=(wrong,)))


def test_an_earlier_export_is_replaced_and_no_other_file(tmp_path):
    path = tmp_path / "deck.html"
    slides.write(path, SESSION)
    assert slides.write(path, SESSION).read_text(encoding="utf-8") == slides.page(SESSION)
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        slides.write(path, SESSION)
    slides.write(path, SESSION, force=True)
    with pytest.raises(ValueError, match=r"must end in \.html, got"):
        slides.write(tmp_path / "deck.pdf", SESSION)


# -- in a browser -----------------------------------------------------------------------------------------------------


def here(page) -> list:
    """The slide's name and its scene."""
    page.wait_for_function("""() => {
        const panel = document.querySelector(".slide.now .panel");
        return !panel || panel.classList.contains("fitted");
    }""")
    page.evaluate(FRAME)
    return page.evaluate("""() => {
        const slide = document.querySelector(".slide.now");
        const step = slide.querySelector(".steps [aria-current=true]");
        return [slide.id, step?.textContent ?? ""];
    }""")


def axe(page) -> list[str]:
    page.evaluate(AXE_SCRIPT)
    found = page.evaluate("() => axe.run(document, { resultTypes: ['violations'] })")
    serious = [rule for rule in found["violations"] if rule["impact"] in ("serious", "critical")]
    return [f"{rule['id']}: {node['html']}" for rule in serious for node in rule["nodes"]]


def tables(page) -> str:
    """The number beside the dial of the tables."""
    return page.locator(".slide.now .al-dial", has_text="tables").locator("output").inner_text()


def test_a_talk(open_kit):
    page = open_kit("slides.html")
    assert here(page)[0] == "title"
    press = page.keyboard.press

    # scenes first, then slides, and back the same way; the panel follows
    press("ArrowRight")
    assert here(page) == ["slide-2", "1"]
    assert tables(page) == "1"
    one = page.locator(".slide.now [data-figure=race] canvas").screenshot()
    press("Space")
    assert here(page) == ["slide-2", "2"]
    assert tables(page) == "16"
    assert page.locator(".slide.now [data-figure=race] canvas").screenshot() != one
    assert page.locator(".slide.now [aria-live=polite] >> nth=0").inner_text() == TABLES.scenes[1].says
    assert page.locator(".slide.now figure:visible").count() == 3
    press("PageDown")
    assert page.locator(".slide.now .al-dial select").input_value() == "layer 9, head 1"
    press("ArrowRight")
    assert here(page)[0] == "slide-3"
    press("ArrowLeft")
    assert here(page) == ["slide-2", "3"]
    press("PageUp")
    assert here(page) == ["slide-2", "2"]

    # keys inside the panel are the panel's; Escape gives them back
    page.locator(".slide.now .al-dial", has_text="tables").locator("input").focus()
    press("ArrowLeft")
    assert here(page) == ["slide-2", "2"]
    assert tables(page) == "15"
    assert page.get_by_text("Esc gives the keys back").is_visible()
    press("Escape")
    page.wait_for_function("document.activeElement.matches('section')")
    press("ArrowRight")
    assert here(page) == ["slide-2", "3"]

    # far jumps, by number, by address, by a link of the list
    press("1")
    press("3")
    press("Enter")
    assert here(page)[0] == "slide-13"
    press("Home")
    assert here(page)[0] == "title"
    page.evaluate("location.hash = '#prompt-3'")
    assert here(page)[0] == "prompt-3"
    assert tables(page) == "4"
    page.evaluate("location.hash = '#prompts'")
    page.get_by_role("link", name="What do you expect at 12 tables?").click()
    assert here(page)[0] == "prompt-5"
    page.get_by_role("button", name="Next", exact=True).click()
    assert here(page)[0] == "prompt-6"
    press("Space")  # the button has not kept the focus
    assert here(page)[0] == "backup"
    press("End")
    assert here(page)[0] == f"slide-{SLIDES}"
    assert page.locator(".bar output").inner_text() == f"{SLIDES} / {SLIDES}"

    # the second window
    with page.expect_popup() as popup:
        press("n")
    notes = popup.value
    assert "By hand." in notes.locator("#notes").inner_text()
    press("2")
    press("Enter")
    here(page)
    assert notes.locator("#say").inner_text() == TABLES.scenes[0].says
    assert "what changes" in notes.locator("#notes").inner_text()
    assert TABLES.scenes[1].says in notes.locator("#next").inner_text()
    assert "The estimate is biased" in notes.locator("#next").inner_text()
    notes.locator("#on").click()
    assert here(page) == ["slide-2", "2"]
    notes.keyboard.press("ArrowLeft")
    assert here(page) == ["slide-2", "1"]
    notes.wait_for_function("document.querySelector('#time').textContent !== '0:00'")
    notes.close()

    # a black screen, the other theme, the keys, the whole panel
    press("b")
    assert page.locator(".blank").is_visible()
    press("ArrowRight")
    assert page.locator(".blank").is_hidden()
    assert here(page) == ["slide-2", "1"]
    press("t")
    page.wait_for_function("document.querySelector('.slide.now .attnlab').dataset.theme === 'dark'")
    press("?")
    assert page.get_by_role("dialog").is_visible()
    press("Escape")
    press("w")
    here(page)
    assert page.locator(".slide.now figure:visible").count() == len(panels.spec("race")["views"])


def test_an_enlarged_panel_is_sharp_and_tells_the_cell_that_is_pointed_at(open_kit):
    page = open_kit("slides.html", "#slide-2")
    here(page)
    canvas = page.locator(".slide.now [data-figure=race] canvas")
    box = canvas.bounding_box()
    dots, own = canvas.evaluate("(canvas) => [canvas.width, canvas.clientWidth]")
    assert box["width"] > 1.2 * own
    assert abs(dots - box["width"]) <= 1
    zoom = box["width"] / own
    side = min(own - 22, box["height"] / zoom - 21)  # beside the words of its axes, as paint.js keeps room for them
    query, key = 20, 29
    page.mouse.move(box["x"] + zoom * (20 + side * (key + 0.5) / 32), box["y"] + zoom * (2 + side * (query + 0.5) / 32))
    words = ".slide.now .al-readout p >> nth=0"
    page.locator(words, has_text="key 30").wait_for()
    assert "query 21" in page.locator(words).inner_text()


def test_slides_fit_can_be_used_and_are_printed(open_kit):
    page = open_kit("slides.html", reduced_motion="reduce")
    for size in ((1920, 1080), (1366, 768)):
        page.set_viewport_size({"width": size[0], "height": size[1]})
        for number in (2, 3, 4):
            page.evaluate("(n) => { location.hash = `#slide-${n}`; }", number)
            page.wait_for_function("(n) => document.querySelector('.slide.now').id === `slide-${n}`", arg=number)
            here(page)
            page.wait_for_function(FITS)
    page.evaluate("location.hash = '#slide-2'")
    here(page)
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        page.wait_for_selector(f".slide.now .attnlab[data-theme={theme}]")
        assert axe(page) == []
    printed = page.pdf(prefer_css_page_size=True)
    assert handout.sheets_of(printed) == SLIDES
    page.emulate_media(media="print")
    assert page.locator(".panel:visible").count() == 0
    assert page.locator(".still img:visible").count() == 4 * (2 + len(PROMPTS))
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator(".notes:visible").count() == 0
    page.emulate_media(media="null")
    page.keyboard.press("Shift+N")
    assert handout.sheets_of(page.pdf(prefer_css_page_size=True)) == SLIDES
    page.emulate_media(media="print")
    assert page.locator(".notes:visible").count() == SLIDES


def test_on_a_phone_the_slides_are_a_page_with_live_panels(open_kit):
    page = open_kit("slides.html", "#slide-2", viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page.wait_for_function("document.querySelector('#slide-2 figure:not(.spare) .al-head b')?.textContent")
    page.locator("#slide-2").get_by_role("button", name="Scene 2 of 3").tap()
    assert page.locator("#slide-2 .al-dial", has_text="tables").locator("output").inner_text() == "16"
    page.locator(f"#slide-{SLIDES}").scroll_into_view_if_needed()
    page.locator("#prompt-6 .attnlab").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert axe(page) == []


def test_without_script_every_slide_can_be_read(open_kit):
    page = open_kit("slides.html", java_script_enabled=False)
    shown = page.locator("main").inner_text()
    for slide in SESSION.slides:
        assert slide.place in shown
        assert all(scene.says in shown for scene in slide.scenes)
    assert page.locator(".still img:visible").count() == 4 * (2 + len(PROMPTS))
    assert SESSION.prompts[0].answer not in shown
