"""What the browser tests do with a panel on a page: mount it, wait for its pictures, find its parts, point at cells."""

import base64
import time

from attnlab import panels

CLIPBOARD = """Object.defineProperty(navigator, "clipboard", {
  value: { writeText: async (text) => { globalThis.copied = text; } },
});"""
CURRENT = "window.jupyterapp.shell.currentWidget"
MOUNT = """async ([text, state]) => {
    const { mount } = await import("data:text/javascript;base64," + text);
    window.view = mount(document.querySelector("main"), { state: state ?? undefined, host: HOST });
}"""
SOURCES: dict[str, str] = {}  # of the panels that were mounted


def mount(page, mechanism: str = "race", state: dict | None = None, host: str = "undefined", style: str = "") -> None:
    """Put the panel on an empty page, its `mount` kept as window.view: no kernel and no server."""
    if mechanism not in SOURCES:
        SOURCES[mechanism] = base64.b64encode(panels.source(mechanism).encode()).decode()
    page.set_content(f"<!doctype html><body style='margin: 8px; {style}'><main></main>")
    page.evaluate(MOUNT.replace("HOST", host), [SOURCES[mechanism], state])
    painted(page)


# -- waiting ----------------------------------------------------------------------------------------------------------


def painted(page, frames: int = 1) -> None:
    """Wait until a panel has painted so many frames, and something in every picture."""
    page.wait_for_function(
        """(frames) => {
            const panel = document.querySelector(".attnlab");
            const titles = [...(panel?.querySelectorAll("[data-figure] .al-head b") ?? [])];
            return Number(panel?.dataset.frames) >= frames && titles.every((title) => title.textContent);
        }""",
        arg=frames,
        timeout=60_000,
    )


def settle(page) -> None:
    """Let what was asked be painted."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def rested(page) -> None:
    """Wait until neither the place of the panel nor its pictures have changed for ten frames."""
    page.evaluate(
        """async () => {
            let before = "";
            for (let same = 0; same < 10; same++) {
                await new Promise(requestAnimationFrame);
                const panel = document.querySelector(".attnlab");
                const now = JSON.stringify([panel.getBoundingClientRect(), panel.dataset.frames]);
                if (now !== before) same = 0;
                before = now;
            }
        }"""
    )


def follows(lab, page, source: str, expected: str, seconds: float = 20) -> bool:
    """Whether Python prints what is expected, once the dials have rested."""
    end = time.monotonic() + seconds
    while (printed := lab.run(page, source)) != expected and time.monotonic() < end:
        pass
    assert printed == expected
    return True


# -- a notebook in JupyterLab -----------------------------------------------------------------------------------------


def run_again(page, cell: int) -> None:
    """Run a cell again, and wait for the panel that it brings in place of the old one."""
    page.evaluate(
        f"""(cell) => {{
            document.querySelector(".attnlab").classList.add("earlier");
            {CURRENT}.content.activeCellIndex = cell;
            {CURRENT}.content.mode = "command";
            return window.jupyterapp.commands.execute("notebook:run-cell");
        }}""",
        cell,
    )
    page.wait_for_function("() => !document.querySelector('.earlier')")
    painted(page)


def turn_lab(page, theme: str) -> None:
    """Change JupyterLab to its theme "dark" or "light", until the cover that lies over the page meanwhile is gone."""
    page.evaluate(
        "(name) => window.jupyterapp.commands.execute('apputils:change-theme', { theme: `JupyterLab ${name}` })",
        theme.title(),
    )
    page.wait_for_function(
        """(theme) => document.querySelector(".attnlab").dataset.theme === theme
            && document.body.dataset.jpThemeName.toLowerCase().endsWith(theme)
            && !document.querySelector("#jupyterlab-splash")""",
        arg=theme,
    )
    rested(page)


def shut_down(page) -> None:
    """End the kernel of the notebook in front."""
    page.evaluate(f"() => {CURRENT}.sessionContext.shutdown()")


# -- parts of a panel -------------------------------------------------------------------------------------------------


def slider(page, label: str):
    return page.get_by_label(label, exact=True)


def shown(page, label: str) -> str:
    """The number beside a slider."""
    return slider(page, label).locator("xpath=../output").inner_text()


def figure(page, name: str):
    return page.locator(f"[data-figure={name}]")


def canvas(page, name: str):
    return figure(page, name).locator("canvas")


def number_of(page, name: str) -> str:
    """The number beside the title of a figure."""
    return figure(page, name).locator(".al-head span").first.inner_text()


def readout(page, line: int = 0) -> list[str]:
    """Words and number of a line of the readout."""
    paragraph = page.locator(".al-readout p").nth(line)
    return [paragraph.locator("span").first.inner_text(), paragraph.locator("b").inner_text()]


def number_in(sentence: str) -> float:
    """The value that a sentence such as "weight = 0.25 (float64); 1 / 4" is about."""
    return float(sentence.split(" = ")[1].split(" (float64)")[0])


def pixels(page) -> dict[str, str]:
    """What each canvas shows."""
    return page.evaluate(
        "() => Object.fromEntries([...document.querySelectorAll('[data-figure]')].map("
        "(figure) => [figure.dataset.figure, figure.querySelector('canvas').toDataURL()]))"
    )


def height(page) -> float:
    return page.locator(".attnlab").bounding_box()["height"]


def cell(page, name: str, query: int, key: int, tokens: int = 32) -> tuple[float, float]:
    """The middle of a cell of a matrix, in the window; -1 stands for the words along an axis, which name the other."""
    canvas(page, name).scroll_into_view_if_needed()
    box = canvas(page, name).bounding_box()
    side = min(box["width"] - 22, box["height"] - 21)  # the square beside its axes' words
    across = 20 + side * (key + 0.5) / tokens if key >= 0 else 10
    down = 2 + side * (query + 0.5) / tokens if query >= 0 else 2 + side + 10
    return box["x"] + across, box["y"] + down
