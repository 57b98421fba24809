"""The RACE panel in a real browser: in JupyterLab with a kernel, and mounted on a bare page without one."""

import json
from dataclasses import asdict
from functools import partial

import pytest

from attnlab import interpreted, panels, parity
from attnlab.bench import _lab
from attnlab.panels.state import defaults
from attnlab.race import view
from attnlab.race.params import RaceParams
from tests.browser.conftest import PROJECTOR
from tests.browser.panel_on_page import (
    CURRENT,
    canvas,
    cell,
    follows,
    height,
    mount,
    number_in,
    number_of,
    painted,
    pixels,
    readout,
    rested,
    run_again,
    settle,
    shown,
    shut_down,
    slider,
    turn_lab,
)
from tests.browser.test_access import complaints_of_axe

SHOW = "from attnlab.race.widget import RacePanel\npanel = RacePanel()\npanel"
FIGURES = ("buckets", "softmax", "angular", "race", "band", "error", "lemma")


@pytest.fixture(scope="module")
def opened(lab, browser):
    """A notebook in JupyterLab that shows a panel, with a cell before and a cell after it; and its complaints."""
    context = browser.new_context(viewport=PROJECTOR)
    seen = _lab.watch(context)
    page = open_notebook(lab, context.new_page(), "panel.ipynb")
    yield page, seen
    shut_down(page)
    context.close()


@pytest.fixture
def notebook(opened, complaints):
    """The shared notebook, its panel run anew."""
    page, seen = opened
    page.set_viewport_size(PROJECTOR)
    page.mouse.move(0, 0)
    run_again(page, 1)
    seen.clear()
    yield page
    complaints.seen += [*seen, *_lab.strips(page)]


def open_notebook(lab, page, name: str):
    lab.open(page, name, "before = 1", SHOW, "after = 2")
    painted(page)
    return page


@pytest.fixture
def bare(same_page):
    """Mount the panel on an empty page of some width; no kernel, no server."""

    def show(state=None, width=1100, background="#ffffff"):
        same_page.set_viewport_size({"width": width, "height": 900})
        mount(same_page, state=state, style=f"background: {background}")
        return same_page

    return show


def settled(page, change) -> tuple[dict[str, str], dict[str, str]]:
    """The pictures before and after `change`, once its frame is painted."""
    settle(page)
    before, frames = pixels(page), frames_of(page)
    change()
    painted(page, frames + 1)
    settle(page)
    return before, pixels(page)


def frames_of(page) -> int:
    return int(page.locator(".attnlab").get_attribute("data-frames"))


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
    notebook.mouse.move(*cell(notebook, "race", 20, 5))
    notebook.wait_for_function("document.querySelector('.al-readout b').textContent !== ''")
    expected = view.compute(RaceParams())["race"][20, 5]
    assert readout(notebook) == ["race weight of key 6 “a6” for query 21 “c5”", f"= {expected:.4g}"]
    title = notebook.locator(".al-readout p").first.get_attribute("title")
    assert number_in(title) == pytest.approx(expected, rel=1e-9)
    assert " (float64); Ŝ / Σ Ŝ = " in title
    assert number_of(notebook, "race") == f"{expected:.4g}"
    elsewhere = view.compute(RaceParams())["softmax"][20, 5]  # the same pair
    assert number_of(notebook, "softmax") == f"{elsewhere:.4g}"


def test_arrow_keys_walk_over_a_picture_and_enter_pins(lab, notebook):
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "Enter"):
        canvas(notebook, "race").press(key)
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
    mark = page.get_by_role("button", name="pinned, Esc releases")
    room = height(page)
    pinned = ["race weight of key 6 “a6” for query 21 “c5”", f"= {views['race'][20, 5]:.4g}"]
    for release in ("Escape", "click"):
        assert mark.is_hidden()
        settled(page, lambda: page.mouse.click(*cell(page, "race", 20, 5)))
        settled(page, lambda: page.mouse.move(*cell(page, "angular", 2, 3)))
        assert mark.is_visible()
        assert readout(page) == pinned
        number = f"= {views['angular'][2, 3]:.4g}"
        assert readout(page, 2) == ["angular weight of key 4 “a4” for query 3 “a3”", number]
        assert height(page) == room
        if release == "Escape":
            slider(page, "planes P").focus()  # from any control of the panel
            settled(page, lambda: slider(page, "planes P").press("Escape"))
        else:
            settled(page, lambda: page.mouse.click(*cell(page, "race", 20, 5)))
    assert mark.is_hidden()


def test_a_later_key_is_called_masked_and_not_zero(bare):
    page = bare()
    page.get_by_label("causal").click()
    settled(page, lambda: page.mouse.move(*cell(page, "softmax", 4, 9)))
    assert readout(page) == ["softmax weight of key 10 “b2” for query 5 “a5”", "masked (later key)"]
    settled(page, lambda: page.mouse.move(*cell(page, "softmax", 9, 4)))
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
        rested(notebook)  # Lab lays out late
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


def verified(page) -> None:
    """Wait until every implementation has answered, the interpreted ones too."""
    page.wait_for_function(
        """() => document.querySelectorAll(".al-verify [role=listitem]").length === 3
            && !document.querySelector(".al-verify button").disabled""",
        timeout=120_000,
    )


def test_verify_reports_every_implementation_in_the_badge(notebook):
    button = notebook.get_by_role("button", name="Verify")
    button.click()
    rows = notebook.locator(".al-verify [role=listitem]")
    verified(notebook)
    text = {row.splitlines()[0].strip(): row for row in rows.all_inner_texts()}
    assert list(text) == ["numba", "torch", "triton"]
    assert "✓ agrees" in text["numba"]
    for impl, row in text.items():
        measured = " ms, " in row or (impl == "triton" and "not run on a GPU" in row)
        assert ("✓ agrees" in row and "≤" in row and measured) or ("not run here" in row and row.strip().endswith("."))
    planes = slider(notebook, "planes P")
    planes.focus()
    planes.press("ArrowRight")
    assert "Checked for other dials" in notebook.locator(".al-verify").inner_text()


def test_dials_moved_while_python_verifies_stay_and_are_not_certified(lab, notebook, tmp_path):
    moved = tmp_path / "moved"
    notebook.evaluate(
        f"""(code) => {{
            {CURRENT}.sessionContext.session.kernel.requestExecute({{ code, store_history: false }});
        }}""",
        f"import os, time\nwhile not os.path.exists({str(moved)!r}): time.sleep(0.01)",
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
    moved.touch()
    verified(notebook)
    assert "Checked for other dials" in notebook.locator(".al-verify").inner_text()
    asked, now = "panel.report['dials']", "panel.params"
    printed = f"print({asked}['planes'], {asked}['tables'], {now}.planes, {now}.tables)"
    assert follows(lab, notebook, printed, "5 4 4 6")
    assert (shown(notebook, "planes P"), shown(notebook, "tables L")) == ("4", "6")


def test_a_kernel_that_was_shut_down_is_missed_in_a_sentence(lab, page, complaints):
    open_notebook(lab, page, "ended.ipynb")
    settle(page)
    shut_down(page)
    page.get_by_role("button", name="Verify").click()
    assert "needs a running kernel" in page.locator(".al-verify").inner_text()
    complaints.expect("Python does not follow")
    assert page.get_by_role("button", name="Verify").is_enabled()


def test_a_kernel_that_never_answers_does_not_hold_the_button(page):
    page.clock.install()
    mount(page, host="{ python: true, save() {}, verify() {} }")
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


TARGETS = {"sm_80": 163, "sm_90": 227, "sm_100": 227, "gfx942": 64}


def test_an_interpreted_kernel_is_awaited_and_then_shown_with_what_it_compiles_to(page, complaints):
    """Until Python has the answer nothing stands there but that it is awaited, and the button stays taken."""
    page.clock.install()
    mount(page, host="{ python: true, save() {}, verify() {} }")
    button, row = page.get_by_role("button", name="Verify"), page.locator(".al-verify [role=listitem]")
    button.click()
    page.clock.run_for(20_000)
    dials = defaults(panels.spec("race"))["dials"]
    show = "([dials, rows]) => window.view.report({ dials, rows })"
    page.evaluate(show, [dials, [{"impl": "triton", "ran": None}]])
    assert row.inner_text().split("\n") == ["triton", "interpreting …"]
    page.clock.run_for(60_000)
    assert button.is_disabled()

    entry = {"compiled": 40, "kernels": 10, "registers": 168, "spilled_bytes": 0, "shared_kb": 18.5}
    table = [
        {"target": target, **entry, "shared_limit_kb": limit, "occupancy_percent": 12.5}
        for target, limit in TARGETS.items()
    ]
    found = (3.21e-7, 2.1e-7, 2.4e-6, None, "CPU, interpreted", "", interpreted.EVIDENCE, tuple(table))
    page.evaluate(show, [dials, [parity.Report("triton", True, True, None, *found).record()]])
    assert button.is_enabled()
    before = height(page)
    summary = page.get_by_text("What it compiles to")
    summary.focus()
    summary.press("Enter")
    assert row.inner_text().split("\n")[:5] == [
        *("triton", "✓ agrees", "max error 3.2e−7", "relative 2.1e−7 ≤ 2.4e−6"),
        "compiled, resource-checked and interpreted; not run on a GPU",
    ]
    seen = page.locator(".al-verify table")
    assert [line.split("\t") for line in seen.inner_text().splitlines()] == [
        ["GPU", *TARGETS],
        ["compiled", *["40"] * 4],
        ["registers ≤", *["168"] * 4],
        ["spilled bytes ≤", *["0"] * 4],
        ["shared KB ≤", *["18.5"] * 4],
        ["limit KB", *map(str, TARGETS.values())],
        ["occupancy % ≥", *["12.5"] * 4],
    ]
    assert seen.get_by_role("rowheader").count() == 7
    assert seen.get_by_role("columnheader").count() == 4
    assert height(page) == before  # it lies over the panel
    for width in (1100, 320):
        page.set_viewport_size({"width": width, "height": 900})
        box = seen.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        # above its line, since the output of a cell ends where the panel ends
        assert box["y"] > page.locator(".attnlab").bounding_box()["y"]
        assert box["y"] + box["height"] <= summary.bounding_box()["y"]
        assert complaints_of_axe(page, ".attnlab") == []


def test_an_interpreted_kernel_that_never_answers_does_not_hold_the_button(page):
    page.clock.install()
    mount(page, host="{ python: true, save() {}, verify() {} }")
    button, note = page.get_by_role("button", name="Verify"), page.locator(".al-verify .al-note")
    button.click()
    page.evaluate("() => window.view.report({ dials: {}, rows: [{ impl: 'triton', ran: null }] })")
    page.clock.run_for(89_000)
    assert (button.is_disabled(), note.inner_text()) == (True, "Verifying …")
    page.clock.run_for(2_000)
    assert (button.is_enabled(), "No answer yet" in note.inner_text()) == (True, True)


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
    swap = f"from attnlab import parity\n{broken}\nwhole, parity.verify = parity.verify, broken"
    assert lab.run(notebook, swap) == ""
    notebook.get_by_role("button", name="Verify").click()
    strip = notebook.locator(".al-error")
    strip.wait_for(state="visible")
    assert lab.run(notebook, "parity.verify = whole") == ""
    assert "RuntimeError: the kernel of race is on fire" in strip.inner_text()
    assert notebook.locator(".al-verify [role=listitem]").count() == 0
    assert notebook.get_by_role("button", name="Verify").is_enabled()


TYPED = ("b", "a", "x", "d", "d", "m", "y", "ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "z", "Enter")


def test_keys_typed_on_any_control_leave_the_notebook_alone(lab, notebook):
    details, mark = notebook.locator(".al-numbers"), notebook.get_by_role("button", name="pinned, Esc releases")

    def everything_in_sight():
        details.evaluate("(details) => (details.open = true)")
        settle(notebook)  # what the keys before have changed stands on the page after its frame
        if mark.is_hidden():  # only a pin that stands can be released by a button
            canvas(notebook, "race").press("ArrowDown")
            canvas(notebook, "race").press("Enter")
            mark.wait_for()

    cells = lab.cells(notebook)
    everything_in_sight()
    # keys may undo each other, so whatever happens to the notebook is written down
    notebook.evaluate(
        f"""() => {{
            const {{ content }} = {CURRENT};
            window.happened = [];
            content.model.cells.changed.connect((_, {{ type }}) => window.happened.push(type));
            content.stateChanged.connect((_, {{ name, newValue }}) => window.happened.push(`${{name}} ${{newValue}}`));
            content.selectionChanged.connect(() => window.happened.push("selection"));
        }}"""
    )
    controls = notebook.locator(".attnlab :is(input, select, button, canvas, summary, .al-table)")
    assert controls.count() == 9 + 2 + 1 + 3 + 1 + len(FIGURES) + 1 + 3 + 1
    for control in controls.all():
        everything_in_sight()
        name = control.evaluate("(it) => it.ariaLabel || it.labels?.[0]?.textContent || it.textContent")
        assert (control.is_visible(), control.is_enabled()) == (True, True), name
        # once, on a busy machine, something took the focus in the same moment: it is asked for until it stays
        hold = "(control) => (control.focus(), document.activeElement === control)"
        notebook.wait_for_function(hold, arg=control.element_handle())
        for key in TYPED:
            notebook.keyboard.press(key)
        notebook.keyboard.press("Escape")
        assert notebook.evaluate("window.happened") == [], name
    assert lab.cells(notebook) == cells
    # the same keys do edit the notebook where no control is in focus, or this test would show nothing
    notebook.locator(".jp-InputArea-prompt").last.click()
    notebook.keyboard.press("Escape")
    notebook.keyboard.press("b")
    notebook.wait_for_function(f"(count) => {CURRENT}.content.model.cells.length > count", arg=len(cells))
    assert notebook.evaluate("window.happened")
    notebook.evaluate("() => window.jupyterapp.commands.execute('notebook:delete-cell')")


def test_the_theme_follows_jupyterlab(notebook):
    light = pixels(notebook)
    for theme in ("dark", "light"):
        turn_lab(notebook, theme)
        assert (pixels(notebook)["band"] == light["band"]) == (theme == "light")


def test_a_narrow_page_is_not_wider_than_its_window(bare):
    page = bare(width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    boxes = [page.locator(f"[data-figure={name}] canvas").bounding_box() for name in FIGURES]
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= 390 and box["height"] > 90 for box in boxes)


@pytest.mark.parametrize("width", [1100, 700, 390])
def test_moving_dials_never_changes_the_height(bare, width):
    page = bare(width=width)
    heights = {height(page)}
    for label in ("planes P", "tables L", "sharpness β", "tokens N"):
        for key in ("Home", "End"):
            slider(page, label).focus()
            settled(page, partial(slider(page, label).press, key))
            heights.add(height(page))
    settled(page, page.get_by_label("causal").click)  # another caption stands under the errors
    heights.add(height(page))
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


def test_ctrl_s_saves_the_notebook_from_any_control(notebook):
    dirty = "window.jupyterapp.shell.currentWidget.context.model.dirty"
    slider(notebook, "planes P").focus()
    slider(notebook, "planes P").press("ArrowRight")
    notebook.evaluate(f"() => {{ {dirty} = true; }}")
    notebook.keyboard.press("Control+s")
    notebook.wait_for_function(f"() => !{dirty}")
    notebook.keyboard.press("b")  # and afterwards keys are the control's own again
    assert slider(notebook, "planes P").get_attribute("data-lm-suppress-shortcuts") is not None
