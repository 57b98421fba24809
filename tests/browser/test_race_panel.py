"""The RACE panel in a real browser: in JupyterLab with a kernel, and mounted on a bare page without one."""

import base64
import json
import time
from dataclasses import asdict
from functools import partial

import pytest

from attnlab import panels, parity
from attnlab.panels.state import defaults
from attnlab.race import view
from attnlab.race.params import RaceParams

SHOW = "from attnlab.race.widget import RacePanel\npanel = RacePanel()\npanel"
FIGURES = ("buckets", "softmax", "angular", "race", "band", "error", "lemma")


@pytest.fixture
def notebook(lab, page):
    """A notebook in JupyterLab that shows a panel, with a cell before and a cell after it."""
    lab.open(page, "panel.ipynb", "before = 1", SHOW, "after = 2")
    wait_for_picture(page)
    yield page
    page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")


@pytest.fixture
def bare(page):
    """Mount the panel on an empty page of some width; no kernel, no server."""
    text = base64.b64encode(panels.source("race").encode()).decode()

    def mount(state=None, width=1100, background="#ffffff", host="undefined"):
        page.set_viewport_size({"width": width, "height": 900})
        page.set_content(f"<!doctype html><body style='margin: 8px; background: {background}'><main></main>")
        page.evaluate(
            """async ([text, state]) => {
                const { mount } = await import("data:text/javascript;base64," + text);
                window.view = mount(document.querySelector("main"), { state: state ?? undefined, host: HOST });
            }""".replace("HOST", host),
            [text, state],
        )
        wait_for_picture(page)
        return page

    return mount


def wait_for_picture(page, frames: int = 1) -> None:
    page.wait_for_function(f"Number(document.querySelector('.attnlab')?.dataset.frames) >= {frames}", timeout=60_000)
    page.wait_for_function("document.querySelector('[data-figure=race] b').textContent === 'RACE'")


def pixels(page) -> dict[str, str]:
    """What each canvas shows."""
    return page.evaluate(
        "() => Object.fromEntries([...document.querySelectorAll('[data-figure]')].map("
        "(figure) => [figure.dataset.figure, figure.querySelector('canvas').toDataURL()]))"
    )


def settled(page, change) -> tuple[dict[str, str], dict[str, str]]:
    """The pictures before and after `change`, once its frame is painted."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    before, frames = pixels(page), frames_of(page)
    change()
    wait_for_picture(page, frames + 1)
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return before, pixels(page)


def frames_of(page) -> int:
    return int(page.locator(".attnlab").get_attribute("data-frames"))


def follows(lab, page, source: str, expected: str, seconds: float = 10) -> bool:
    """Whether Python prints what is expected, once the dials have rested."""
    end = time.monotonic() + seconds
    while (printed := lab.run(page, source)) != expected and time.monotonic() < end:
        pass
    assert printed == expected
    return True


def slider(page, label: str):
    return page.get_by_label(label, exact=True)


def shown(page, label: str) -> str:
    """The number beside a slider."""
    return slider(page, label).locator("xpath=../output").inner_text()


def readout(page, line: int = 0) -> list[str]:
    """Words and number of a line of the readout."""
    paragraph = page.locator(".al-readout p").nth(line)
    return [paragraph.locator("span").inner_text(), paragraph.locator("b").inner_text()]


def number_in(sentence: str) -> float:
    """The value that a sentence such as "weight = 0.25 (float64); 1 / 4" is about."""
    return float(sentence.split(" = ")[1].split(" (float64)")[0])


def cell(page, figure: str, query: int, key: int, tokens: int = 32) -> dict[str, float]:
    """The middle of a cell of a matrix, as the position of a pointer over its canvas."""
    box = page.locator(f"[data-figure={figure}] canvas").bounding_box()
    side = min(box["width"] - 22, box["height"] - 21)  # the square beside its axes' words
    return {"x": 20 + side * (key + 0.5) / tokens, "y": 2 + side * (query + 0.5) / tokens}


def number_of(page, figure: str) -> str:
    return page.locator(f"[data-figure={figure}] .al-head span").first.inner_text()


def test_an_arrow_key_moves_dial_pictures_and_numbers_and_python_follows(lab, notebook):
    error = number_of(notebook, "error")
    planes = slider(notebook, "planes P")
    planes.focus()
    before, after = settled(notebook, lambda: planes.press("ArrowRight"))
    assert shown(notebook, "planes P") == "4"
    # softmax too: the largest angular weight ends the scale that the three share
    assert [name for name in FIGURES if before[name] == after[name]] == []
    expected = view.compute(RaceParams(planes=4))["error_here"]
    assert number_of(notebook, "error") == f"{expected:.3g}" != error
    assert follows(lab, notebook, "print(panel.params.planes)", "4")


def test_a_mouse_drag_paints_on_the_way_and_python_follows_at_its_end(lab, notebook):
    sharpness = slider(notebook, "sharpness β")
    box = sharpness.bounding_box()
    y = box["y"] + box["height"] / 2
    notebook.mouse.move(box["x"] + 0.7 * box["width"], y)
    notebook.mouse.down()
    seen = []
    for part in (0.6, 0.45, 0.3, 0.2):
        before, after = settled(notebook, lambda part=part: notebook.mouse.move(box["x"] + part * box["width"], y))
        seen.append(after["race"])
        assert (before["softmax"], before["angular"]) == (after["softmax"], after["angular"])  # they know no sharpness
    assert len(set(seen)) == 4
    assert follows(lab, notebook, "print(panel.params.sharpness)", "4.0")
    notebook.mouse.up()
    value = shown(notebook, "sharpness β")
    assert float(value) < 1
    assert follows(lab, notebook, "print(panel.params.sharpness)", value)
    assert "Fails here in every draw" in notebook.locator("[data-figure=lemma] figcaption").inner_text()


def test_the_number_under_the_pointer_is_the_reference_number(notebook):
    notebook.locator("[data-figure=race] canvas").hover(position=cell(notebook, "race", 20, 5))
    notebook.wait_for_function("document.querySelector('.al-readout b').textContent !== ''")
    expected = view.compute(RaceParams())["race"][20, 5]
    assert readout(notebook) == ["race weight of key 6 “a6” for query 21 “c5”", f"= {expected:.4g}"]
    title = notebook.locator(".al-readout p").first.get_attribute("title")
    assert number_in(title) == pytest.approx(expected, rel=1e-9)
    assert " (float64); Ŝ = (" in title
    assert number_of(notebook, "race") == f"{expected:.4g}"
    assert (
        number_of(notebook, "softmax") == f"{view.compute(RaceParams())['softmax'][20, 5]:.4g}"
    )  # the same pair elsewhere


def test_arrow_keys_walk_over_a_picture_and_enter_pins(lab, notebook):
    canvas = notebook.locator("[data-figure=race] canvas")
    canvas.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "Enter"):
        canvas.press(key)
    expected = view.compute(RaceParams())["race"][1, 1]
    spoken = notebook.locator(".al-unseen").inner_text()
    assert number_in(spoken) == pytest.approx(expected, rel=1e-9)
    assert follows(lab, notebook, "print(panel.state['selection']['pin'])", "{'query': 1, 'key': 1}")
    slider(notebook, "seed").focus()
    settled(notebook, lambda: slider(notebook, "seed").press("ArrowUp"))
    expected = view.compute(RaceParams(seed=1))["race"][1, 1]
    assert number_of(notebook, "race") == f"{expected:.4g}"  # the pin outlives the redraw


def test_a_pinned_number_stays_beside_a_hovered_one_until_it_is_released(bare):
    page = bare()
    views = view.compute(RaceParams())
    race, angular = (page.locator(f"[data-figure={name}] canvas") for name in ("race", "angular"))
    mark = page.get_by_role("button", name="pinned, Esc releases")
    height = page.locator(".attnlab").bounding_box()["height"]
    pinned = ["race weight of key 6 “a6” for query 21 “c5”", f"= {views['race'][20, 5]:.4g}"]
    for release in ("Escape", "click"):
        assert mark.is_hidden()
        settled(page, lambda: race.click(position=cell(page, "race", 20, 5)))
        settled(page, lambda: angular.hover(position=cell(page, "angular", 2, 3)))
        assert mark.is_visible()
        assert readout(page) == pinned
        number = f"= {views['angular'][2, 3]:.4g}"
        assert readout(page, 2) == ["angular weight of key 4 “a4” for query 3 “a3”", number]
        assert page.locator(".attnlab").bounding_box()["height"] == height
        if release == "Escape":
            slider(page, "planes P").focus()  # from any control of the panel
            settled(page, lambda: slider(page, "planes P").press("Escape"))
        else:
            settled(page, lambda: race.click(position=cell(page, "race", 20, 5)))
    assert mark.is_hidden()


def test_a_later_key_is_called_masked_and_not_zero(bare):
    page = bare()
    page.get_by_label("causal").click()
    canvas = page.locator("[data-figure=softmax] canvas")
    settled(page, lambda: canvas.hover(position=cell(page, "softmax", 4, 9)))
    assert readout(page) == ["softmax weight of key 10 “b2” for query 5 “a5”", "masked (later key)"]
    settled(page, lambda: canvas.hover(position=cell(page, "softmax", 9, 4)))
    assert readout(page)[1].startswith("= ")


def test_a_seed_is_typed_and_one_out_of_range_is_clamped_with_a_sentence(bare):
    page = bare()
    field = slider(page, "seed")
    assert field.get_attribute("type") == "number"
    settled(page, lambda: field.fill("7"))
    expected = view.compute(RaceParams(seed=7))["error_here"]
    assert number_of(page, "error") == f"{expected:.3g}"
    note = field.locator("xpath=../div")
    for typed, used, got in (("12000", "9999", "12000"), ("-3", "0", "-3"), ("2.6", "3", "2.6"), ("", "3", "nothing")):
        field.fill(typed)
        field.press("Tab")
        assert field.input_value() == used
        assert note.inner_text() == f"seed must be a whole number in [0, 9999], got {got}; {used} is used."
    settled(page, lambda: field.fill("8"))
    assert note.inner_text() == ""


def test_no_scrollbar_stands_between_the_panel_and_its_notebook(notebook):
    for width in (1400, 1280, 1001, 777):  # widths at which heights are no whole pixels
        notebook.set_viewport_size({"width": width, "height": 720})
        notebook.wait_for_timeout(400)  # Lab lays out late
        overflowing = notebook.evaluate(
            """() => {
                const found = [];
                let node = document.querySelector(".attnlab");
                for (; !node.matches(".jp-Notebook-cell"); node = node.parentElement) {
                    if (node.scrollHeight > node.clientHeight) found.push(node.className);
                }
                return found;
            }"""
        )
        assert overflowing == []


def test_the_dials_stay_in_sight_while_the_notebook_scrolls(notebook):
    notebook.set_viewport_size({"width": 1280, "height": 720})
    notebook.evaluate("() => document.querySelector('[data-figure=lemma]').scrollIntoView({ block: 'end' })")
    planes = notebook.evaluate(
        """() => {
            const [outer, dial, title] = [".jp-WindowedPanel-outer", ".al-dials", ".al-title"].map(
                (selector) => document.querySelector(selector).getBoundingClientRect());
            return { dial: dial.top - outer.top, title: title.bottom - outer.top };
        }"""
    )
    assert planes["title"] < 0  # scrolled away, or this test would show nothing
    assert planes["dial"] >= -1


def test_verify_reports_every_implementation_in_the_badge(notebook):
    button = notebook.get_by_role("button", name="Verify")
    button.click()
    rows = notebook.locator(".al-verify [role=listitem]")
    notebook.wait_for_function("document.querySelectorAll('.al-verify [role=listitem]').length === 3", timeout=120_000)
    text = {row.splitlines()[0].strip(): row for row in rows.all_inner_texts()}
    assert list(text) == ["numba", "torch", "triton"]
    assert "✓ agrees" in text["numba"]
    for row in text.values():
        assert ("✓ agrees" in row and "≤" in row and " ms, " in row) or (
            "not run here" in row and row.strip().endswith(".")
        )
    planes = slider(notebook, "planes P")
    planes.focus()
    planes.press("ArrowRight")
    assert "Checked for other dials" in notebook.locator(".al-verify").inner_text()


def test_dials_moved_while_python_verifies_stay_and_are_not_certified(lab, notebook):
    notebook.evaluate(
        """() => {
            const { kernel } = window.jupyterapp.shell.currentWidget.sessionContext.session;
            kernel.requestExecute({ code: "import time; time.sleep(3)", store_history: false });
        }"""
    )
    for label, key, press in (
        ("planes P", "ArrowRight", 2),
        ("tables L", "ArrowRight", 2),
        ("planes P", "ArrowLeft", 1),
    ):
        slider(notebook, label).focus()
        for _ in range(press):
            slider(notebook, label).press(key)
        if press == 2 and label.startswith("planes"):
            notebook.get_by_role("button", name="Verify").click()
    notebook.wait_for_function("document.querySelectorAll('.al-verify [role=listitem]').length === 3", timeout=120_000)
    assert "Checked for other dials" in notebook.locator(".al-verify").inner_text()
    asked, follows = "panel.report['dials']", "panel.params"
    printed = lab.run(notebook, f"print({asked}['planes'], {asked}['tables'], {follows}.planes, {follows}.tables)")
    assert printed == "5 4 4 6"
    assert (shown(notebook, "planes P"), shown(notebook, "tables L")) == ("4", "6")


def test_a_kernel_that_was_shut_down_is_missed_in_a_sentence(notebook):
    notebook.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    notebook.get_by_role("button", name="Verify").click()
    assert "needs a running kernel" in notebook.locator(".al-verify").inner_text()
    assert notebook.get_by_role("button", name="Verify").is_enabled()


def test_a_kernel_that_never_answers_does_not_hold_the_button(bare, page):
    page.clock.install()
    bare(host="{ save() {}, verify() {} }")
    button, note = page.get_by_role("button", name="Verify"), page.locator(".al-verify .al-note")
    button.click()
    assert button.is_disabled()
    page.clock.run_for(29_000)
    assert (button.is_disabled(), note.inner_text()) == (True, "Verifying …")
    page.clock.run_for(2_000)
    assert (button.is_enabled(), "No answer yet" in note.inner_text()) == (True, True)
    page.evaluate("(dials) => window.view.report({ dials, rows: [] })", defaults(panels.spec("race"))["dials"])
    assert "These dials" in note.inner_text()  # an answer that comes later counts


def test_the_badge_says_what_ran_what_failed_and_what_is_missing(bare):
    page = bare()
    rows = [
        parity.Report("numba", True, True, None, 3.21e-7, 2.1e-7, 2.4e-6, 0.0880712, "CPU"),
        parity.Report("torch", True, False, None, 0.25, 0.5, 2.4e-6, 12345.678, "CPU", "row [0, 3] is off"),
        parity.Report("triton", True, False, None, reason="TypeError: no such argument 'causal'"),
        parity.Report("other", False, False, "It is not installed."),
    ]
    report = {"dials": defaults(panels.spec("race"))["dials"], "rows": [asdict(row) for row in rows]}
    page.evaluate("(report) => window.view.report(report)", report)
    assert [row.split("\n") for row in page.locator(".al-verify [role=listitem]").all_inner_texts()] == [
        ["numba", "✓ agrees", "max error 3.2e−7", "relative 2.1e−7 ≤ 2.4e−6", "0.0881 ms, CPU"],
        ["torch", "✗ differs", "row [0, 3] is off", "max error 2.5e−1", "relative 5.0e−1 > 2.4e−6", "12300 ms, CPU"],
        ["triton", "✗ failed", "TypeError: no such argument 'causal'"],
        ["other", "– not run here", "It is not installed."],
    ]


def test_a_real_head_comes_from_python_when_it_is_chosen(lab, notebook):
    menu = notebook.get_by_label("input", exact=True)
    before = pixels(notebook)
    menu.select_option("layer 9, head 1")
    expected = view.compute(RaceParams(input="layer 9, head 1"))["error_here"]
    notebook.wait_for_function(
        f"document.querySelector('[data-figure=error] .al-head span').textContent === '{expected:.3g}'"
    )
    after = pixels(notebook)
    assert [name for name in FIGURES if before[name] == after[name]] == ["lemma"]  # it knows no tokens
    assert slider(notebook, "head width d").is_disabled()
    assert shown(notebook, "head width d") == slider(notebook, "head width d").get_attribute("aria-valuetext") == "64"
    assert slider(notebook, "head width d").input_value() == slider(notebook, "head width d").get_attribute("max")
    tokens = slider(notebook, "tokens N")
    tokens.focus()
    expected = view.compute(RaceParams(input="layer 9, head 1", tokens=64))["error_here"]
    for _ in range(32):
        tokens.press("ArrowRight")
    settled(notebook, lambda: tokens.press("ArrowLeft"))
    settled(notebook, lambda: tokens.press("ArrowRight"))
    assert number_of(notebook, "error") == f"{expected:.3g}"  # a window of 64 was here already
    tokens.press("End")
    expected = view.compute(RaceParams(input="layer 9, head 1", tokens=256))["error_here"]
    notebook.wait_for_function(
        f"document.querySelector('[data-figure=error] .al-head span').textContent === '{expected:.3g}'"
    )


def test_an_exception_in_python_is_shown_in_the_panel(lab, notebook, complaints):
    complaints.expect("the kernel of race is on fire")
    broken = "def broken(*arguments, **options):\n    raise RuntimeError('the kernel of race is on fire')"
    assert lab.run(notebook, f"from attnlab import parity\n{broken}\nparity.verify = broken") == ""
    notebook.get_by_role("button", name="Verify").click()
    strip = notebook.locator(".al-error")
    strip.wait_for(state="visible")
    assert "RuntimeError: the kernel of race is on fire" in strip.inner_text()
    assert notebook.locator(".al-verify [role=listitem]").count() == 0
    assert notebook.get_by_role("button", name="Verify").is_enabled()


def test_keys_typed_on_any_control_leave_the_notebook_alone(lab, notebook):
    cells = lab.cells(notebook)
    notebook.get_by_text("Exact numbers and a table").click()
    notebook.locator("[data-figure=race] canvas").click()  # a pin can be released by a button
    controls = notebook.locator(".attnlab :is(input, select, button, canvas, summary, .al-table)")
    assert controls.count() == 9 + 2 + 1 + 3 + 1 + len(FIGURES) + 1 + 3 + 1
    for control in controls.all():
        for key in ("b", "a", "x", "d", "d", "m", "y", "ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "z", "Enter"):
            if control.is_visible() and control.is_enabled():
                control.focus()
                control.press(key)
        notebook.keyboard.press("Escape")
    assert lab.cells(notebook) == cells
    # the same keys do edit the notebook where no control is in focus, or this test would show nothing
    notebook.locator(".jp-InputArea-prompt").last.click()
    notebook.keyboard.press("Escape")
    notebook.keyboard.press("b")
    notebook.wait_for_timeout(200)
    assert len(lab.cells(notebook)) == len(cells) + 1


def test_the_theme_follows_jupyterlab(notebook):
    light = pixels(notebook)
    for name, expected in (("JupyterLab Dark", "dark"), ("JupyterLab Light", "light")):
        notebook.evaluate(f"() => window.jupyterapp.commands.execute('apputils:change-theme', {{ theme: '{name}' }})")
        notebook.wait_for_function(f"document.querySelector('.attnlab').dataset.theme === '{expected}'")
        notebook.wait_for_timeout(
            1500
        )  # Lab covers the page while it changes, and stumbles over a second change meanwhile
        assert (pixels(notebook)["band"] == light["band"]) == (expected == "light")


def test_a_narrow_page_is_not_wider_than_its_window(bare):
    page = bare(width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    boxes = [page.locator(f"[data-figure={name}] canvas").bounding_box() for name in FIGURES]
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= 390 and box["height"] > 90 for box in boxes)


@pytest.mark.parametrize("width", [1100, 700, 390])
def test_moving_dials_never_changes_the_height(bare, width):
    page = bare(width=width)
    heights = {page.locator(".attnlab").bounding_box()["height"]}
    for label in ("planes P", "tables L", "sharpness β", "tokens N"):
        for key in ("Home", "End"):
            slider(page, label).focus()
            settled(page, partial(slider(page, label).press, key))
            heights.add(page.locator(".attnlab").bounding_box()["height"])
    settled(page, page.get_by_label("causal").click)  # another caption stands under the errors
    heights.add(page.locator(".attnlab").bounding_box()["height"])
    assert len(heights) == 1


def test_without_a_kernel_verify_says_what_it_needs(bare):
    page = bare()
    page.get_by_role("button", name="Verify").click()
    assert "needs a kernel" in page.locator(".al-verify").inner_text()
    assert page.locator(".al-verify [role=listitem]").count() == 0
    menu = page.get_by_label("input", exact=True)
    assert menu.locator("option:enabled").all_inner_texts() == ["toy: four clusters"]
    state = defaults(panels.spec("race"))
    state["dials"]["input"] = "layer 2, head 0"
    page.evaluate("(state) => window.view.show(state)", state)
    page.wait_for_function(
        "document.querySelector('.al-readout').textContent.includes('open this panel in a notebook')"
    )


def test_a_damaged_state_is_refused_with_a_sentence_and_the_defaults_are_shown(bare, complaints):
    complaints.expect("planes must be a whole number in [1, 8], got 99")
    damaged = defaults(panels.spec("race"))
    damaged["dials"] = asdict(RaceParams(tables=9)) | {"planes": 99}
    page = bare(state=damaged)
    assert "planes must be a whole number in [1, 8], got 99" in page.locator(".al-error").inner_text()
    assert shown(page, "tables L") == "4"
    page.evaluate("(state) => window.view.show(JSON.parse(state))", json.dumps(damaged))
    assert shown(page, "tables L") == "4"


def test_a_pin_from_other_dials_points_nowhere_and_harms_nothing(bare):
    state = defaults(panels.spec("race"))
    state["selection"]["pin"] = dict.fromkeys(("query", "key", "table", "bucket", "angle", "tables", "border"), 10**9)
    page = bare(state=state)
    assert page.locator(".al-error").is_hidden()
    assert "Point at a number" in page.locator(".al-readout").inner_text()


def test_a_screen_reader_hears_the_new_numbers_when_a_dial_is_released(bare):
    page = bare()
    slider(page, "planes P").focus()
    settled(page, lambda: slider(page, "planes P").press("ArrowRight"))
    expected = view.compute(RaceParams(planes=4))["error_here"]
    assert page.locator(".al-unseen").inner_text().startswith(f"Output error {expected:.3g} with 4 tables.")


def test_colours_follow_a_dark_page(bare):
    assert bare().locator(".attnlab").get_attribute("data-theme") == "light"
    assert bare(background="#111111").locator(".attnlab").get_attribute("data-theme") == "dark"
