"""What people report on widgets like ours, tried on the panel in a real JupyterLab.

Each test names its report. Tests that leave the panel as they found it share one notebook.
"""

import json
import time

import nbformat
import pytest
from nbclient import NotebookClient

from attnlab import inputs, panels
from attnlab.bench import _lab
from attnlab.panels.state import defaults

SHOW = "from attnlab.race.widget import RacePanel\npanel = RacePanel()\npanel"
PRINT_PLANES = "print(panel.params.planes)"
CURRENT = "window.jupyterapp.shell.currentWidget"
PAINTED = "(panel) => panel.dataset.frames > 0 && panel.querySelector('[data-figure=race] b').textContent === 'RACE'"
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
LOADED_MACHINE = 3  # attempts at what the issue sets a time for: other work on this machine can delay a message

# What the panel's own module, which runs from a blob, holds on to outside of its elements; and the tallest that a still
# has been in any frame.
LEDGER = """
(() => {
    const held = new Map(), stills = { frames: 0, tallest: 0 };
    const ours = () => new Error().stack.includes("blob:");
    for (const kind of ["ResizeObserver", "MutationObserver"]) {
        window[kind] = class extends window[kind] {
            observe(...given) {
                if (ours()) held.set(this, kind);
                super.observe(...given);
            }
            disconnect() {
                held.delete(this);
                super.disconnect();
            }
        };
    }
    const names = new Map();
    const name = (target) => target === window ? "window" : target instanceof MediaQueryList ? "media"
        : target instanceof Document || [document.head, document.body].includes(target) ? "document" : "";
    const key = (target, type, act, options) => {
        if (!names.has(act)) names.set(act, names.size);
        return [name(target), type, names.get(act), Boolean(options?.capture ?? options)].join(" ");
    };
    const { addEventListener, removeEventListener } = EventTarget.prototype;
    const media = [];
    EventTarget.prototype.addEventListener = function (type, act, options) {
        const target = this ?? window;
        if (name(target) && ours()) held.set(key(target, type, act, options), `${name(target)} ${type}`);
        return addEventListener.call(target, type, act, options);
    };
    EventTarget.prototype.removeEventListener = function (type, act, options) {
        const target = this ?? window;
        held.delete(key(target, type, act, options));
        return removeEventListener.call(target, type, act, options);
    };
    const models = async (widget, found = new Map()) => {
        if (widget._manager && widget.mimeType) {
            const manager = await widget._manager.promise;
            for (const model of await Promise.all(Object.values(manager._models))) found.set(model.model_id, model);
        }
        if (widget.children) for (const child of widget.children()) await models(child, found);
        return found;
    };
    window.attnlabLedger = {
        stills,
        async held() {
            const all = [...held.values()];
            for (const model of (await models(window.jupyterapp.shell.currentWidget)).values()) {
                for (const [event, acts] of Object.entries(model._events ?? {})) {
                    const known = /^change:(state|data|report|error)$|^comm_live_update$/.test(event);
                    if (known) all.push(...acts.map(() => `model ${event}`));
                }
            }
            return all.sort();
        },
    };
    const watch = () => {
        for (const still of document.querySelectorAll(".attnlab-still")) {
            stills.frames += 1;
            stills.tallest = Math.max(stills.tallest, still.getBoundingClientRect().height);
        }
        requestAnimationFrame(watch);
    };
    requestAnimationFrame(watch);
})();
"""


@pytest.fixture(scope="module")
def opened(lab, browser):
    """One notebook with a panel and the ledger, and what its page complains of."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    context.add_init_script(LEDGER)
    seen = _lab.watch(context)
    page = lab.open(context.new_page(), "reports.ipynb", SHOW)
    painted(page)
    yield page, seen
    shut_down(page)
    context.close()


@pytest.fixture
def notebook(lab, opened):
    """The shared notebook, its panel as it opens."""
    page, seen = opened
    seen.clear()
    assert lab.run(page, f"panel.state = {defaults(panels.spec('race'))}") == ""
    page.wait_for_function("document.querySelector('.attnlab [aria-valuetext]').getAttribute('aria-valuetext') === '3'")
    yield page
    assert [*seen, *_lab.strips(page)] == []


def painted(page, count: int = 1) -> None:
    """Wait until so many panels, and no more, have all their pictures."""
    page.wait_for_function(
        f"""(count) => {{
            const panels = [...document.querySelectorAll(".attnlab")];
            return panels.length === count && panels.every({PAINTED});
        }}""",
        arg=count,
        timeout=60_000,
    )


def slider(panel, label: str = "planes P"):
    return panel.get_by_label(label, exact=True)


def value(panel, label: str = "planes P") -> str:
    return slider(panel, label).get_attribute("aria-valuetext")


def turn(panel, steps: int, label: str = "planes P") -> None:
    slider(panel, label).focus()
    for _ in range(steps):
        slider(panel, label).press("ArrowRight")


def follows(lab, page, expected: str, source: str = PRINT_PLANES, seconds: float = 10) -> bool:
    """Whether Python prints what is expected, once the dials have rested."""
    end = time.monotonic() + seconds
    while (printed := lab.run(page, source)) != expected and time.monotonic() < end:
        pass
    assert printed == expected
    return True


def strip_says(page, text: str) -> bool:
    """Whether the error strip comes to hold the text; nothing for no strip."""
    page.wait_for_function(
        """(text) => {
            const strip = document.querySelector(".al-error");
            return text ? !strip.hidden && strip.textContent.includes(text) : strip.hidden;
        }""",
        arg=text,
    )
    return True


def frames(page, count: int = 2) -> None:
    page.evaluate(
        "async (count) => { while (count--) await new Promise((done) => requestAnimationFrame(done)); }", count
    )


def pictures(panel) -> list[str]:
    return panel.locator("canvas").evaluate_all("(all) => all.map((canvas) => canvas.toDataURL())")


def run_cell(page, index: int) -> None:
    page.evaluate(
        f"""(index) => {{
            {CURRENT}.content.activeCellIndex = index;
            return window.jupyterapp.commands.execute("notebook:run-cell");
        }}""",
        index,
    )


def outputs(page, cell: int = 0) -> list[dict]:
    return page.evaluate(f"(cell) => {CURRENT}.content.model.toJSON().cells[cell].outputs", cell)


def save(page) -> None:
    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")


def shut_down(page) -> None:
    page.evaluate(f"() => {CURRENT}.sessionContext.shutdown()")


def reopen(lab, page, name: str) -> None:
    """The notebook as it lies in its folder, in a page that remembers nothing; no cell is run."""
    page.goto("about:blank")
    page.goto(f"{lab.url}/lab/tree/{name}?reset")


def stills(page) -> list[dict]:
    """What stands in each still: its height, its words, and whether its pictures are decoded."""
    return page.locator(".attnlab-still").evaluate_all(
        """(all) => Promise.all(all.map(async (still) => {
            const images = [...still.querySelectorAll("img")];
            await Promise.all(images.map((image) => image.decode()));
            const decoded = images.length > 0 && images.every((image) => image.naturalWidth > 0);
            return { height: still.getBoundingClientRect().height, words: still.innerText, decoded };
        }))"""
    )


# -- running and restarting -------------------------------------------------------------------------------------------


def test_a_cell_run_five_times_leaves_one_view_and_one_observer_of_each_kind(notebook):
    """Report 8, duplicate outputs: what was run before leaves no view, no still and no listener behind."""
    expected = [
        *("MutationObserver", "ResizeObserver", "document load", "media change"),
        *("model change:data", "model change:error", "model change:report", "model change:state"),
        *("model comm_live_update", "window afterprint", "window beforeprint"),
    ]
    assert notebook.evaluate("attnlabLedger.held()") == expected
    for _ in range(5):
        notebook.evaluate("() => document.querySelector('.attnlab').classList.add('earlier')")
        run_cell(notebook, 0)
        notebook.wait_for_function("!document.querySelector('.earlier')")
        painted(notebook)
        assert notebook.evaluate("attnlabLedger.held()") == expected
    assert notebook.locator(".attnlab").count() == 1
    assert [still["height"] for still in stills(notebook)] == [0]


def test_a_panel_outlives_its_kernel_and_says_that_python_does_not_follow(lab, page, complaints):
    """Reports 5 and 8, a restart: the panel computes on, says what is lost, and another run brings all of it back."""
    lab.open(page, "restart.ipynb", SHOW)
    painted(page)
    turn(page, 1)
    assert follows(lab, page, "4")
    page.evaluate(f"() => {CURRENT}.sessionContext.session.kernel.restart()")
    page.wait_for_function(_lab.IDLE)
    before = pictures(page)
    turn(page, 1)
    assert strip_says(page, "Python does not follow")
    assert value(page) == "5"
    assert not set(pictures(page)) & set(before)
    page.get_by_role("button", name="Verify").click()
    assert "needs a running kernel" in page.locator(".al-verify").inner_text()
    assert page.get_by_role("button", name="Verify").is_enabled()
    run_cell(page, 0)
    painted(page)
    assert strip_says(page, "")
    turn(page, 3)
    assert follows(lab, page, "6")
    shut_down(page)
    turn(page, 1)
    assert strip_says(page, "Python does not follow")
    complaints.expect("Python does not follow")


# -- windowing --------------------------------------------------------------------------------------------------------


def test_scrolled_away_and_back_in_a_windowed_notebook_the_canvases_are_painted(lab, page):
    """Report 9, a blank canvas in windowing mode "full": the cell leaves the page, and what comes back is as it was left,
    also where Python moved a dial meanwhile.
    """
    lab.open(page, "windowed.ipynb", SHOW, *["#\n" * 30] * 60, run=False)
    page.evaluate(
        f"""() => {{
            const {{ content }} = {CURRENT};
            content.notebookConfig = {{ ...content.notebookConfig, windowingMode: "full" }};
        }}"""
    )
    run_cell(page, 0)
    painted(page)
    turn(page, 2)
    page.evaluate(f"() => {{ {CURRENT}.content.activeCellIndex = 30; }}")  # the active cell would stay
    frames(page)
    left = pictures(page)
    for turned, expected in (("", "5"), ("panel.turn(planes=6)", "6")):
        page.evaluate(f"() => {CURRENT}.content.scrollToItem(60)")
        page.wait_for_function("!document.querySelector('.attnlab').checkVisibility()")
        assert lab.run(page, turned) == ""
        page.evaluate(f"() => {CURRENT}.content.scrollToItem(0)")
        page.wait_for_function("document.querySelector('.attnlab').checkVisibility()")
        frames(page)
        assert value(page) == expected
        assert all((now == then) == (expected == "5") for now, then in zip(pictures(page), left, strict=True))
    turn(page, 1)
    assert follows(lab, page, "7")
    shut_down(page)


# -- callbacks --------------------------------------------------------------------------------------------------------


def test_an_exception_in_a_callback_is_shown_raised_and_gone_with_the_next_good_state(lab, notebook):
    """Report 5, invisible callback errors: the strip says it and keeps saying it while the still is drawn anew; who sets
    the state in Python gets it raised.
    """
    define = """
def picky(change):
    if change["new"]["dials"]["planes"] == 4:
        raise RuntimeError("four planes are too many for me")
panel.observe(picky, "state")
four = {**panel.state, "dials": {**panel.state["dials"], "planes": 4}}
"""
    before = outputs(notebook)[1]["data"]["text/html"]
    assert lab.run(notebook, define) == ""
    turn(notebook, 1)
    assert strip_says(notebook, "RuntimeError: four planes are too many for me")
    notebook.wait_for_function(
        f"(before) => {CURRENT}.content.model.toJSON().cells[0].outputs[1].data['text/html'] !== before",
        arg=before,
    )
    frames(notebook)
    assert strip_says(notebook, "RuntimeError: four planes are too many for me")
    turn(notebook, 1)
    assert strip_says(notebook, "")
    for setting in ("panel.set_state({'state': four})", "panel.turn(planes=3, seed=1)\npanel.turn(planes=4)"):
        assert "four planes are too many for me" in lab.run(notebook, setting)
    assert lab.run(notebook, "panel.unobserve(picky, 'state')\npanel.turn(planes=3)") == ""
    assert strip_says(notebook, "")


def test_a_strip_that_no_test_expects_fails_it(page, complaints):
    """Report 5, a test that passes though a callback raised: the fixture `page` counts what strips say, once."""
    page.set_content("<div class=attnlab><div class=al-error>on fire</div><div class=al-error hidden>out</div></div>")
    complaints.seen += _lab.strips(page)
    assert complaints.surprises() == ["on fire"]
    complaints.expect("on fire")
    assert complaints.surprises() == []
    complaints.expect("a cloud")
    assert complaints.surprises() == ["missed: a cloud"]
    complaints.expected.remove("a cloud")


def drag(page) -> None:
    """Thirty moves over the slider of the sharpness, from its left end."""
    box = slider(page, "sharpness β").bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 2, y)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], y, steps=30)
    page.mouse.up()


def hold(page) -> None:
    """Thirty repetitions of an arrow key, 30 ms apart."""
    slider(page, "sharpness β").focus()
    start = time.monotonic()
    for number in range(30):
        time.sleep(max(0, start + 0.03 * number - time.monotonic()))
        page.keyboard.down("ArrowRight")
    page.keyboard.up("ArrowRight")


@pytest.mark.parametrize("move", [drag, hold])
def test_a_slow_callback_leaves_the_last_value_and_is_done_soon_after_release(lab, notebook, move):
    """Report 6, piled-up events: with a callback of 300 ms the last value wins, and 500 ms after the release the kernel
    has called it and is idle. One attempt of three has to make that time; all have to end with the last value.
    """
    define = """
import time
calls = []
def slow(change):
    time.sleep(0.3)
    calls.append(1000 * time.time())
panel.observe(slow, "state")
"""
    assert lab.run(notebook, define) == ""
    took = []
    for _ in range(LOADED_MACHINE):
        assert lab.run(notebook, "panel.turn(sharpness=0.1)\ncalls.clear()") == ""
        frames(notebook)
        notebook.evaluate(
            f"""() => {{
                const {{ kernel }} = {CURRENT}.sessionContext.session;
                const stamps = (window.stamps = {{ release: Infinity, idle: 0 }});
                const release = () => {{ stamps.release = Date.now(); }};
                for (const type of ["pointerup", "keyup"]) addEventListener(type, release, {{ capture: true, once: true }});
                const idle = (_, status) => {{ if (status === "idle") stamps.idle = Date.now(); }};
                kernel.statusChanged.connect(idle);
                stamps.stop = () => kernel.statusChanged.disconnect(idle);
            }}"""
        )
        move(notebook)
        notebook.wait_for_function("Date.now() > Math.max(stamps.release, stamps.idle) + 1000")  # nothing comes later
        stamps = notebook.evaluate("() => { stamps.stop(); return { release: stamps.release, idle: stamps.idle }; }")
        calls = json.loads(lab.run(notebook, "import json\nprint(json.dumps(calls))"))
        screen = value(notebook, "sharpness β")
        assert float(screen) > 1
        assert lab.run(notebook, "print(panel.params.sharpness)") == screen
        assert 1 <= len(calls) <= 5
        print(move.__name__, stamps, calls, max(stamps["idle"], calls[-1]) - stamps["release"])
        took.append(max(stamps["idle"], calls[-1]) - stamps["release"])
        if took[-1] <= 500:
            break
    assert lab.run(notebook, "panel.unobserve(slow, 'state')") == ""
    assert min(took) <= 500
