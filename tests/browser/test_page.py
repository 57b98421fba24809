"""The exported page as its readers meet it: opened from a disk or a static host, with a link, saved, copied from."""

import json
import random
import re
import shutil
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from attnlab import panels
from attnlab.panels import export, link
from attnlab.panels.bundle import bundle
from attnlab.panels.state import checked, defaults
from attnlab.race import view
from attnlab.race.params import RaceParams

ROOT = Path(__file__).parents[2]
RACE = panels.spec("race")
REAL = "layer 9, head 1"
HOSTILE = json.loads((Path(__file__).parents[1] / "panels" / "hostile_links.json").read_text(encoding="utf-8"))
CLIPBOARD = """Object.defineProperty(navigator, "clipboard", {
  value: { writeText: async (text) => { globalThis.copied = text; } },
});"""
NO_CLIPBOARD = CLIPBOARD.replace("globalThis.copied = text", 'throw new DOMException("", "NotAllowedError")')
FRAME = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


class Host:
    """A static host on this machine: its address, and every path that was asked of it."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[str] = []
        asked = self.asked

        class Handler(SimpleHTTPRequestHandler):
            def log_request(self, *_):
                asked.append(self.path)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder))
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def host(tmp_path):
    host = Host(tmp_path)
    yield host
    host.close()


@pytest.fixture(params=["disk", "host"])
def place(request, tmp_path):
    """Where pages written to tmp_path are opened from: the beginning of their addresses."""
    return tmp_path.as_uri() if request.param == "disk" else request.getfixturevalue("host").url


@pytest.fixture
def show(open_page, tmp_path):
    """Open the page of a mechanism's state, at `place` where one is given; the clipboard only takes notes."""

    def show(*words, mechanism="race", place=None, fragment="", clipboard=CLIPBOARD, bypass_csp=True):
        export.write(tmp_path / "page.html", mechanism, export.setting(mechanism, words))
        page = open_page(bypass_csp=bypass_csp)  # playwright's own waiting evaluates text, which the page forbids
        page.add_init_script(clipboard)
        return visit(page, f"{place or tmp_path.as_uri()}/page.html{fragment}")

    return show


def visit(page, address: str):
    page.goto(address)
    page.wait_for_selector(".attnlab[data-frames]")
    return page


def copied(page, button: str) -> str:
    """What this button puts on the clipboard."""
    page.evaluate("() => { globalThis.copied = null; }")
    page.get_by_role("button", name=button, exact=True).click()
    page.wait_for_function("() => globalThis.copied !== null")
    return page.evaluate("() => globalThis.copied")


def state_of(page) -> dict:
    return link.from_fragment(copied(page, "Copy link"), RACE)


def saved(page) -> bytes:
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as a page", exact=True).click()
    return Path(download.value.path()).read_bytes()


def slider(page, label: str):
    return page.get_by_label(label, exact=True)


def press(page, label: str, key: str) -> None:
    """A key on a slider, until its frame is painted and the address has followed."""
    before = page.evaluate("location.href")
    slider(page, label).press(key)
    page.wait_for_function("(before) => location.href !== before", arg=before)
    page.evaluate(FRAME)


def refusal(page) -> str:
    """The sentence in the error strip, or nothing."""
    strip = page.locator(".al-error")
    return strip.inner_text() if strip.is_visible() else ""


def taken(fragment: str) -> bool:
    try:
        link.from_fragment(fragment, RACE)
    except ValueError:
        return False
    return True


def random_states(count: int, seed: int = 3) -> list[dict]:
    pick = random.Random(seed)

    def value(dial):
        low, high = dial["low"], dial["high"]
        if dial["kind"] == "switch":
            return pick.random() < 0.5
        if dial["kind"] == "choice":
            return RACE["inputs"]["toy"]
        return pick.randint(low, high) if dial["kind"] == "whole" else low * (high / low) ** pick.random()

    found = []
    for _ in range(count):
        state = defaults(RACE)
        state["dials"] = {dial["name"]: value(dial) for dial in RACE["dials"]}
        pin = {axis: pick.randrange(300) for axis in pick.sample(RACE["axes"], pick.randrange(4))} or None
        options = {name: pick.choice(choices) for name, choices in RACE["options"].items()}
        state["selection"] = options | {"view": pick.choice(RACE["views"]), "pin": pin}
        found.append(checked(state, RACE))
    return found


# -- opening ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", panels.names())
@pytest.mark.parametrize("from_host", [False, True], ids=["disk", "host"])
def test_a_page_paints_every_picture_and_asks_for_itself_alone(tmp_path, host, open_page, mechanism, from_host):
    export.write(tmp_path / "page.html", mechanism)
    page = open_page()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    address = f"{host.url if from_host else tmp_path.as_uri()}/page.html"
    visit(page, address)
    page.wait_for_load_state("networkidle")
    assert asked == [address]
    assert host.asked == (["/page.html"] if from_host else [])
    colours = page.locator("figure canvas").evaluate_all(
        """(found) => found.map((canvas) => {
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          return new Set(new Uint32Array(data.buffer)).size;
        })"""
    )
    assert len(colours) == len(panels.spec(mechanism)["views"])
    assert min(colours) > 3
    assert page.evaluate("performance.getEntriesByName('first-contentful-paint').length") == 1
    assert page.title() == panels.spec(mechanism)["title"]


TRIES = [  # ways to ask for `url`, and what refuses each
    ("fetch(url)", "connect-src"),
    ("navigator.sendBeacon(url)", "connect-src"),
    ("new WebSocket(url.replace('http', 'ws'))", "connect-src"),
    ("new EventSource(url)", "connect-src"),
    ("import(url)", "script-src-elem"),
    ("new FontFace('x', `url(${url})`).load()", "font-src"),
    ("Object.assign(new Image(), { src: url })", "img-src"),
    ("document.body.append(Object.assign(document.createElement('script'), { src: url }))", "script-src-elem"),
    ("document.body.append(Object.assign(document.createElement('iframe'), { src: url }))", "frame-src"),
    ("document.body.append(Object.assign(document.createElement('audio'), { src: url }))", "media-src"),
    (
        "document.body.append(Object.assign(document.createElement('link'), { rel: 'stylesheet', href: url }))",
        "style-src-elem",
    ),
    (
        "document.body.append(Object.assign(document.createElement('form'), { id: 'form', action: url }))"
        " ?? document.querySelector('#form').submit()",
        "form-action",
    ),
]


def test_the_page_cannot_ask_for_anything_even_where_it_wants_to(show, host, complaints):
    page = show(place=host.url, bypass_csp=False)
    for attempt, directive in TRIES:
        refused = page.evaluate(
            f"""async (url) => {{
              const refused = new Promise((done) => {{
                const tell = ({{ effectiveDirective }}) => done(effectiveDirective);
                document.addEventListener("securitypolicyviolation", tell, {{ once: true }});
                setTimeout(done, 5000, "nothing");
              }});
              try {{ await ({attempt}); }} catch {{}}
              return refused;
            }}""",
            f"{host.url}/asked",
        )
        assert refused == directive, attempt
    assert host.asked == ["/page.html"]
    complaints.expect("Content Security Policy")


# -- numbers ----------------------------------------------------------------------------------------------------------


def table(page, name: str) -> np.ndarray:
    """The numbers of a view as `Copy table` gives them; NaN where a cell is masked."""
    caption = page.locator(".al-table caption")
    before = caption.inner_text() if caption.count() else ""
    page.get_by_label("Numbers of this view").select_option(name)
    if page.evaluate("(name) => document.querySelector('.al-numbers select').value !== name", name) or before:
        page.wait_for_function(
            "(before) => document.querySelector('.al-table caption').textContent !== before", arg=before
        )
    head, *lines = (line.split("\t") for line in copied(page, "Copy table").split("\n"))
    cells = [[float("nan") if "masked" in cell or cell == "–" else float(cell) for cell in line[1:]] for line in lines]
    assert all(len(line) == len(head) for line in lines)
    return np.array(cells)


def expected(state: dict) -> dict[str, np.ndarray]:
    """What the table of each view has to hold."""
    params, selection = RaceParams(**state["dials"]), state["selection"]
    views = view.compute(params)
    T = params.tokens
    hidden = np.where(np.triu(np.ones((T, T), bool), 1) & params.causal, np.nan, 0.0)
    share = views["phi_q" if selection["features"] == "queries" else "phi_k"]
    error = [views["error_output"], views["error_rate"]][: 1 + int(views["theorem2_speaks"])]
    own = [views["error_here"], np.nan][: len(error)]  # the dial's number of tables has a row, and no rate
    table = (selection["pin"] or {}).get("table", 0)
    return {
        "softmax": views["softmax"] + hidden,
        "angular": views["angular"] + hidden,
        "race": views["race"] + hidden,
        "band": np.stack([views[f"band_{name}"] for name in ("mean", "sd", "target")], 1),
        "error": np.vstack([np.stack(error, 1), own]),
        "lemma": np.stack([RACE["lemma10"][name] for name in ("every_draw", "large_tables")], 1),
        "buckets": np.column_stack([share[table].T, views["mass"][table]]),
    }


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["planes=5", "tables=3", "sharpness=0.3", "tokens=9", "head_width=5", "seed=77", "features=queries"],
        ["causal=true", "normalize=true", "planes=2", "sharpness=31.7", "pin=table.3,bucket.1,key.2"],
        [f"input={REAL}", "tokens=40", "planes=4", "tables=8", "sharpness=1.25"],
        ["input=layer 21, head 0", "tokens=100", "causal=true"],
    ],
    ids=["as it opens", "toy", "causal", "real head", "longer real head"],
)
def test_every_number_of_the_page_is_the_one_that_python_computes(show, words):
    page = show(*words)
    page.get_by_text("Exact numbers and a table").click()
    page.locator(".al-table caption").wait_for()
    for name, want in expected(export.setting("race", words)).items():
        got = table(page, name)
        assert got.shape == want.shape, name
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-9, err_msg=name)


# -- a page saved from the page ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mechanism", "words"),
    [
        *((mechanism, []) for mechanism in panels.names()),
        ("race", ["sharpness=0.1", "causal=true", "pin=key.3,query.1", "view=lemma", "features=queries"]),
        ("race", [f"input={REAL}", "tokens=65", "sharpness=2"]),
    ],
)
def test_a_page_saves_the_file_that_python_writes_and_that_one_saves_itself_again(show, tmp_path, mechanism, words):
    page = show(*words, mechanism=mechanism)
    want = export.page(mechanism, export.setting(mechanism, words)).encode()
    assert saved(page) == want
    assert page.get_by_text(f"Handed {mechanism}.html to the browser.").is_visible()
    (tmp_path / "again.html").write_bytes(saved(page))
    visit(page, (tmp_path / "again.html").as_uri())
    assert saved(page) == want


def test_a_page_saves_what_its_reader_has_made_of_it(show):
    page = show(f"input={REAL}", "tokens=200")
    press(page, "planes P", "ArrowRight")
    press(page, "tokens N", "Home")
    words = ["planes=4", "tokens=4"]
    shorter = export.page("race", export.setting("race", [f"input={REAL}", *words])).encode()  # in its window too
    assert saved(page) == shorter
    slider(page, "input").select_option("toy")
    assert saved(page) == export.page("race", export.setting("race", words)).encode()


# -- the address ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("numbers", [slice(0, 6), slice(6, 12)], ids=["0-5", "6-11"])
def test_a_link_restores_exactly_its_state(show, place, numbers):
    states = random_states(12)[numbers]
    page = show(place=place)
    bare = page.url
    for number, state in enumerate(states):
        address = bare + link.fragment(state, RACE)
        if number % 2:  # a new visit, and a change of the address of a page that stands
            page.goto("about:blank")
        visit(page, address)
        page.wait_for_function("(part) => location.hash.includes(part)", arg=f"seed={state['dials']['seed']}&")
        page.wait_for_function(
            "(seed) => document.querySelector('.attnlab input[type=number]').value === seed",
            arg=str(state["dials"]["seed"]),
        )
        assert copied(page, "Copy link") == address
        assert state_of(page) == state
        assert copied(page, "Copy as Python") == link.call(state, RACE)
        assert page.url == address


def test_the_address_follows_the_dials_and_a_reload_keeps_them(show, place):
    page = show("planes=2", place=place)
    bare, length = page.url, page.evaluate("history.length")
    assert "#" not in bare
    press(page, "planes P", "ArrowRight")
    press(page, "sharpness β", "ArrowLeft")
    state = export.setting("race", ["planes=3", "sharpness=3.67"])
    assert page.url == bare + link.fragment(state, RACE)
    assert page.evaluate("history.length") == length  # a dial leaves no steps behind
    page.reload()
    assert state_of(page) == state


def test_back_and_forward_restore_what_was_there(show, place):
    page = show("tables=2", place=place)
    own, first, second = (export.setting("race", [f"tables={L}"]) for L in (2, 5, 9))
    visit(page, page.url + link.fragment(first, RACE))
    press(page, "planes P", "ArrowRight")
    first["dials"] |= {"planes": 4}
    visit(page, page.url.split("#")[0] + link.fragment(second, RACE))
    assert state_of(page) == second
    for step, want in [("back", first), ("back", own), ("forward", first), ("forward", second)]:
        tables = str(want["dials"]["tables"])
        page.evaluate(f"history.{step}()")
        page.wait_for_function(
            "(tables) => [...document.querySelectorAll('output')][1].textContent === tables", arg=tables
        )
        assert state_of(page) == want, step
        assert refusal(page) == ""


def test_a_damaged_or_hostile_link_leaves_the_page_as_it_is_and_says_so_in_one_sentence(show):
    page = show("tables=2", "pin=query.1")
    own = export.setting("race", ["tables=2", "pin=query.1"])
    good = link.fragment(defaults(RACE), RACE)
    texts = [(good.replace(old, new) if old else new).partition("#")[2] for old, new, _ in HOSTILE]
    # a browser encodes spaces and leaves line ends out, so that some of them mean no harm
    hashes = page.evaluate("(texts) => texts.map((text) => new URL('#' + text, location.href).hash)", texts)
    hostile = {hash: (name, "#" + text) for hash, text, (*_, name) in zip(hashes, texts, HOSTILE, strict=True)}
    hostile = {hash: about for hash, about in hostile.items() if hash and not taken(hash)}
    assert len(hostile) > 100
    seen = page.evaluate(
        """async (hashes) => {
          const [strip, button] = [".al-error", ".al-sharing button"].map((part) => document.querySelector(part));
          const seen = [];
          for (const hash of hashes) {
            const changed = new Promise((done) => addEventListener("hashchange", done, { once: true }));
            location.hash = hash;
            await changed;
            button.click();
            seen.push([strip.hidden ? "" : strip.textContent, globalThis.copied]);
          }
          return seen;
        }""",
        list(hostile),
    )
    for (sentence, shown), (hash, (name, text)) in zip(seen, hostile.items(), strict=True):
        assert sentence.startswith("This link was refused, and changes nothing: "), hash
        assert " must " in sentence, hash
        assert name in sentence or hash != text, hash
        assert len(sentence.splitlines()) == 1, hash
        assert link.from_fragment(shown, RACE) == own, hash
    assert page.evaluate("Object.keys(Object.prototype).length") == 0
    press(page, "tables L", "ArrowRight")  # the reader goes on, and so does the page
    assert refusal(page) == ""
    assert page.url.endswith(link.fragment(state_of(page), RACE))


def test_a_page_opened_with_a_damaged_link_shows_its_own_state(show, complaints):
    page = show("tables=2", fragment="#race&version=1&planes=99")
    complaints.expect("This link was refused")
    assert "must" in refusal(page)
    assert state_of(page) == export.setting("race", ["tables=2"])


def test_a_real_head_that_the_page_does_not_hold_is_asked_for_in_a_sentence(show):
    page = show(f"input={REAL}")
    menu = slider(page, "input")
    off = menu.locator("option").evaluate_all("(found) => found.filter((o) => o.disabled).map((o) => o.value)")
    assert set(off) == set(next(d for d in RACE["dials"] if d["name"] == "input")["choices"]) - {"toy", REAL}
    other = export.setting("race", ["input=layer 2, head 0"])
    visit(page, page.url.split("#")[0] + link.fragment(other, RACE))
    wanted = "Python sends layer 2, head 0: open this panel in a notebook, or choose toy input."
    page.locator(".al-readout", has_text=wanted).wait_for()
    assert refusal(page) == ""
    assert state_of(page) == other  # the link can be passed on
    page.get_by_role("button", name="Save as a page", exact=True).click()
    assert page.locator(".al-sharing .al-note").inner_text() == wanted
    menu.select_option("toy")
    page.locator(".al-readout", has_text="Point at a number").wait_for()
    assert state_of(page)["dials"]["input"] == "toy"


def test_a_page_in_another_language_opens_with_a_link_too(show, tmp_path, monkeypatch):
    package = tmp_path / "attnlab"
    shutil.copytree(ROOT / "attnlab", package, ignore=shutil.ignore_patterns("*.py", "*.safetensors", "__pycache__"))
    for folder in ("panels", "race"):
        words = (package / folder / "labels.en.js").read_text(encoding="utf-8")
        (package / folder / "labels.xx.js").write_text(words.replace("RACE attention", "ECAR"), encoding="utf-8")
    spec = RACE | {"languages": ["en", "xx"]}
    monkeypatch.setattr(panels, "spec", lambda _: spec)
    monkeypatch.setattr(panels, "source", lambda _: bundle("race", spec, package))
    own, other = (export.setting("race", ["language=xx", f"tables={L}"]) for L in (2, 9))
    page = show("language=xx", "tables=2")
    address = page.url
    assert page.locator(".al-title b").inner_text() == "ECAR"
    assert copied(page, "Copy link") == address + link.fragment(own, spec)
    page.goto("about:blank")
    visit(page, address + link.fragment(other, spec))
    assert copied(page, "Copy link") == page.url == address + link.fragment(other, spec)


# -- the clipboard ----------------------------------------------------------------------------------------------------


def test_the_buttons_copy_the_link_and_the_call_and_say_so(show):
    words = ["planes=2", "sharpness=0.5", "causal=true", "pin=query.3,key.5", "view=race"]
    page = show(*words)
    state = export.setting("race", words)
    assert copied(page, "Copy link") == page.url + link.fragment(state, RACE)
    assert page.get_by_role("status").filter(has_text="Copied.").is_visible()
    assert copied(page, "Copy as Python") == link.call(state, RACE)


@pytest.mark.parametrize("button", ["Copy link", "Copy as Python"])
def test_where_the_clipboard_is_refused_the_text_stands_selected_until_escape(show, button):
    page = show(clipboard=NO_CLIPBOARD)
    state = export.setting("race")
    page.get_by_role("button", name=button, exact=True).click()
    field = page.get_by_label("Press Ctrl+C")
    field.wait_for()
    selected = "({ value, selectionStart: from, selectionEnd: to }) => value.slice(from, to)"
    want = page.url + link.fragment(state, RACE) if button == "Copy link" else link.call(state, RACE)
    assert field.evaluate(selected) == want
    assert page.evaluate("document.activeElement.matches('textarea')")
    box, window = field.bounding_box(), page.viewport_size
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= window["width"]
    page.keyboard.press("Escape")
    field.wait_for(state="detached")
    assert page.evaluate("document.activeElement.textContent") == button


# -- in a frame, as in the documentation ------------------------------------------------------------------------------

IN_THE_DOCS = ["tables=8", "view=race", "pin=query.8,key.14"]
PAINTED = "Number(document.querySelector('.attnlab')?.dataset.frames) >= 1"
FITS = """() => {
  const { scrollWidth, scrollHeight } = document.documentElement;
  return document.body.classList.contains("framed") && scrollWidth <= innerWidth && scrollHeight <= innerHeight;
}"""


@pytest.fixture(scope="module")
def docs(tmp_path_factory):
    """The built documentation."""
    pytest.importorskip("sphinx", reason="the extra docs is not installed")
    return sphinx_build(ROOT / "docs", tmp_path_factory.mktemp("docs"))


def sphinx_build(source: Path, folder: Path, *options: str) -> Path:
    command = [sys.executable, "-m", "sphinx", "-q", *options, "-b", "html", "-d", folder / "doctrees", source]
    done = subprocess.run([*map(str, command), str(folder / "html")], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.fixture
def page(open_page):
    """A page in which playwright may wait with text that it evaluates, also inside of a panel's frame."""
    return open_page(bypass_csp=True)


def framed(page, docs: Path):
    """The panel on the page of RACE: its frame's element, and the frame."""
    page.goto((docs / "papers" / "race.html").as_uri())
    element = page.locator(".live-panel iframe")
    element.scroll_into_view_if_needed()
    frame = element.element_handle().content_frame()
    frame.wait_for_function(PAINTED)
    frame.wait_for_function(FITS)
    return element, frame


@pytest.mark.parametrize("width", [1200, 390])
def test_the_documentation_shows_a_live_panel_as_high_as_it_needs(docs, open_page, width):
    page = open_page(viewport={"width": width, "height": 844}, bypass_csp=True)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    element, frame = framed(page, docs)
    assert {url.split(":")[0] for url in asked} <= {"file", "data"}
    box = element.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    content = frame.evaluate("document.querySelector('.attnlab').getBoundingClientRect().height")
    assert content <= box["height"] <= content + 20
    frame.get_by_text("Exact numbers and a table").click()
    grown = "(before) => document.querySelector('.live-panel iframe').clientHeight > before + 200"
    page.wait_for_function(grown, arg=box["height"])
    frame.wait_for_function(FITS)


def test_a_dial_moves_the_panel_in_the_documentation(docs, page):
    _, frame = framed(page, docs)
    for tables, key in ((8, None), (7, "ArrowLeft"), (1, "Home")):
        if key:
            frame.get_by_label("tables L", exact=True).press(key)
        weight = view.compute(RaceParams(tables=tables))["race"][8, 14]  # of the pinned pair
        shows = "(want) => document.querySelector('.al-readout b').textContent === want"
        frame.wait_for_function(shows, arg=f"= {weight:.4g}")


def test_the_panel_follows_the_colours_of_the_page_around_it(docs, page):
    page.emulate_media(color_scheme="light")
    _, frame = framed(page, docs)
    theme = "(name) => document.querySelector('.attnlab').dataset.theme === name"
    frame.wait_for_function(theme, arg="light")
    page.emulate_media(color_scheme="dark")  # furo begins with what the reader's system prefers
    frame.wait_for_function(theme, arg="dark")
    page.emulate_media(color_scheme="light")
    frame.wait_for_function(theme, arg="light")
    toggle = page.locator(".theme-toggle:visible").first
    for _ in range(3):
        before = page.evaluate("document.body.dataset.theme")
        toggle.click()
        chosen = page.evaluate("document.body.dataset.theme")
        assert chosen != before
        frame.wait_for_function(theme, arg="light" if chosen == "auto" else chosen)
    # nobody but the page around is listened to
    frame.evaluate("window.postMessage({ attnlab: { theme: 'dark' } }, '*')")
    frame.evaluate("() => new Promise((done) => setTimeout(done))")
    page.evaluate(FRAME)
    assert frame.evaluate("document.documentElement.dataset.theme") == "light"


def test_without_javascript_the_numbers_stand_there_and_no_empty_frame(docs, open_page):
    page = open_page(java_script_enabled=False)
    page.goto((docs / "papers" / "race.html").as_uri())
    assert page.locator(".live-panel iframe").is_hidden()
    said = page.locator(".live-panel").inner_text()
    state = export.setting("race", IN_THE_DOCS)
    error = view.compute(RaceParams(**state["dials"]))["error_here"]
    assert f"output error against angular attention (Theorem 2, p. 8): {error:.6g}" in said
    assert link.call(state, RACE) in said


def test_a_frame_holds_the_page_that_python_writes_and_only_its_own_page_loads_the_script(docs):
    race, changelog = ((docs / name).read_text(encoding="utf-8") for name in ("papers/race.html", "changelog.html"))
    attributes = 'title="Live panel: RACE attention" allow="clipboard-write \\*"'
    (address,) = re.findall(f'<iframe src="(.*?)" {attributes}>', race)
    assert f'<a href="{address}">Open the panel alone</a>' in race
    text = (docs / "papers" / address).read_text(encoding="utf-8")
    assert text == export.page("race", export.setting("race", IN_THE_DOCS))
    assert "live_panel.js" in race
    assert "live_panel.js" not in changelog


def test_a_panel_that_cannot_be_is_an_error_of_the_build(tmp_path, docs):  # docs: only where Sphinx is
    source = tmp_path / "source"
    source.mkdir()
    path = [str(ROOT / "docs" / "_ext"), str(ROOT)]
    (source / "conf.py").write_text(f"import sys\nsys.path[:0] = {path}\nextensions = ['myst_parser', 'live_panel']\n")
    (source / "index.md").write_text("# A page\n\n```{live-panel} race\n:set: planes=99\n```\n")
    with pytest.raises(AssertionError, match=r"live-panel: planes must lie in \[1, 8\], got 99"):
        sphinx_build(source, tmp_path, "-W")
