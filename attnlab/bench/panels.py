"""How long a reader waits for the live panels, in a JupyterLab and a Chromium of their own.

MECHANISM.TOKENS.first_paint_ms   from running the cell to the first frame with something in every figure
MECHANISM.TOKENS.VIEW.p50_ms      from a key on a dial to the end of the frame that shows it in this view: the median
MECHANISM.TOKENS.VIEW.p95_ms      and what 95 of 100 such moves stay below
MECHANISM.TOKENS.drag.p95_ms      the same while the mouse drags a slider, from each pointer event that moved it
MECHANISM.javascript_bytes        the text of the panel's module

Each round opens the panel anew, steps every slider and switch forth and back from where the panel opens, and drags. The
value of a percentile is the median of the rounds' own; it is noisy where the rounds disagree. A frame ends when the
browser has painted it, which is before a screen shows it (stopwatch.js).
"""

import math
import statistics
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlab import bench, panels, progress
from attnlab.bench import _lab

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

__all__ = ["LIMITS_MS", "NEEDS", "about", "drag", "moves", "of_panel", "rows", "unmoved"]

NEEDS = ("anywidget", "jupyterlab", "playwright")
LIMITS_MS = {64: 50, 256: 100}  # for each number of tokens, what 95 of 100 moves are to stay below
FIRST_PAINT_MS = 2000
JAVASCRIPT_BYTES = 150_000

ROUNDS = 3
RUNS = 3  # of the cell in each round
STEPS = 14  # of each dial in each round
MOVES, MOVES_PER_S = 60, 60  # of the mouse in each round
WIDTH, HEIGHT = 1400, 1400  # of the window: every view is in sight

STOPWATCH = (Path(__file__).parent / "stopwatch.js").read_text(encoding="utf-8")
RUN_CELL = """(index) => window.attnlabStopwatch.firstPaint(() => {
    window.jupyterapp.shell.currentWidget.content.activeCellIndex = index;
    return window.jupyterapp.commands.execute("notebook:run-cell");
})"""

Moves = dict[str, dict[str, list[float]]]  # ms of each step that changed a view, by view and dial


@dataclass(frozen=True)
class Drag:
    """The ms of each move of a dragged slider, the frames painted for them, and the slider's dial."""

    latencies: list[float]
    frames: int
    dial: str


@dataclass(frozen=True)
class Round:
    """What one round measured."""

    first_paints: list[float]
    moves: Moves
    drag: Drag


def about() -> dict[str, Any]:
    """What else was measured on. Raises backend.Unavailable where there is no Chromium."""
    said = subprocess.run([_lab.chromium_path(), "--version"], capture_output=True, text=True, check=True).stdout
    return {"ipywidgets": version("ipywidgets"), "chromium": said.split()[1]}


def rows() -> list[dict[str, Any]]:
    """Measure every panel; about three minutes.

    Raises RuntimeError for a panel that complains, that asks another machine for something, or that has a view which no
    dial moves.
    """
    with _lab.jupyterlab() as lab, _lab.chromium() as browser:
        return [row for mechanism in panels.names() for row in of_panel(mechanism, lab, browser)]


def of_panel(mechanism: str, lab: _lab.Lab, browser: "Browser") -> list[dict[str, Any]]:
    """The rows of one panel."""
    (most,) = (dial["high"] for dial in panels.spec(mechanism)["dials"] if dial["name"] == "tokens")
    result = [row for tokens in LIMITS_MS if tokens <= most for row in _of_size(mechanism, tokens, lab, browser)]
    script = [len(panels.source(mechanism).encode())]
    name = f"{mechanism}.javascript_bytes"
    return [*result, bench.row(name, script, "bytes", better="lower", target=JAVASCRIPT_BYTES)]


def _of_size(mechanism: str, tokens: int, lab: _lab.Lab, browser: "Browser") -> list[dict[str, Any]]:
    spec = panels.spec(mechanism)
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
    complaints = _lab.watch(context)
    cells = (f"from attnlab.{mechanism}.widget import {spec['widget']}", f"{spec['widget']}(tokens={tokens})")
    page = lab.open(context.new_page(), f"{mechanism}-{tokens}.ipynb", *cells, run=False)
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-cell')")
    page.evaluate(STOPWATCH)
    rounds = []
    for number in range(ROUNDS):
        progress.show(f"[{number + 1}/{ROUNDS}] {mechanism} with {tokens} tokens")
        first_paints = [page.evaluate(RUN_CELL, 1) for _ in range(RUNS)]
        rounds.append(Round(first_paints, moves(page, spec, STEPS), drag(page, spec, MOVES)))
        complaints += [*_lab.strips(page), *(f"no dial moves {view}" for view in unmoved(spec, rounds[-1].moves))]
        if complaints:
            raise RuntimeError(f"the {mechanism} panel with {tokens} tokens: {'; '.join(complaints)}")
    context.close()
    progress.show("")
    return _table(f"{mechanism}.{tokens}", spec["views"], rounds, LIMITS_MS[tokens])


def _table(name: str, views: list[str], rounds: list[Round], limit: float) -> list[dict[str, Any]]:
    paints = [ms for each in rounds for ms in each.first_paints]
    note = f"{len(paints)} runs, the first, while JupyterLab loads its part, in {paints[0]:.0f} ms"
    result = [bench.row(f"{name}.first_paint_ms", paints, "ms", better="lower", target=FIRST_PAINT_MS, note=note)]
    for view in views:
        samples = [[ms for steps in each.moves[view].values() for ms in steps] for each in rounds]
        note = f"{sum(map(len, samples))} steps of {', '.join(rounds[0].moves[view])}"
        medians, tails = [statistics.median(each) for each in samples], [percentile(each, 95) for each in samples]
        result.append(bench.row(f"{name}.{view}.p50_ms", medians, "ms", better="lower", note=note))
        result.append(bench.row(f"{name}.{view}.p95_ms", tails, "ms", better="lower", target=limit, note=note))
    drags = [each.drag for each in rounds]
    moved, painted = sum(len(each.latencies) for each in drags), sum(each.frames for each in drags)
    note = f"{painted} frames for {moved} moves of {drags[0].dial}"
    tails = [percentile(each.latencies, 95) for each in drags]
    return [*result, bench.row(f"{name}.drag.p95_ms", tails, "ms", better="lower", target=limit, note=note)]


def percentile(samples: list[float], part: int) -> float:
    """The smallest sample that `part` of 100 do not exceed."""
    return sorted(samples)[math.ceil(part / 100 * len(samples)) - 1]


# -- on a page that shows one panel, after STOPWATCH was run in it --


def moves(page: "Page", spec: dict[str, Any], steps: int) -> Moves:
    """Step every slider but the tokens', and every switch, forth and back: ms from the key to the frame that shows it.

    Raises playwright's Error where a key is followed by no frame.
    """
    result: Moves = {}
    for dial, control in _controls(page, spec):
        control.focus()
        for number in range(steps):
            latencies = _step(page, control, number)
            if not latencies:  # the dial means nothing here
                break
            for view, ms in latencies.items():
                result.setdefault(view, {}).setdefault(dial, []).append(ms)
    return result


def unmoved(spec: dict[str, Any], moves: Moves) -> list[str]:
    """The panel's views that no dial has changed."""
    return [view for view in spec["views"] if view not in moves]


def _controls(page: "Page", spec: dict[str, Any]) -> Iterator[tuple[str, "Locator"]]:
    """Name and control of each dial that keys step; a number field, as the seed's, is typed into."""
    for dial in spec["dials"]:
        label = f"{dial['label']} {dial['paper']}".strip()
        control = page.locator(".attnlab").get_by_label(label, exact=True)
        steps = control.get_attribute("type") in ("range", "checkbox")
        if steps and dial["name"] != "tokens" and control.is_enabled():
            yield dial["name"], control


def _step(page: "Page", control: "Locator", number: int) -> dict[str, float]:
    """{view: ms} of the views that one key on the control in focus has changed."""
    if control.get_attribute("type") == "checkbox":
        key, acts = "Space", "keyup"
    else:
        at_end = control.evaluate("(slider) => slider.value === slider.max")
        key, acts = ("ArrowLeft" if number % 2 or at_end else "ArrowRight"), "keydown"
    page.evaluate("(type) => window.attnlabStopwatch.arm(type)", acts)
    page.keyboard.press(key)
    return page.evaluate("() => window.attnlabStopwatch.latencies()")


def drag(page: "Page", spec: dict[str, Any], steps: int) -> Drag:
    """Drag the slider with the most steps over half of its length and back, at MOVES_PER_S.

    Raises RuntimeError where a move is followed by no frame.
    """
    sliders = [(name, control) for name, control in _controls(page, spec) if control.get_attribute("type") == "range"]
    name, slider = max(sliders, key=lambda each: int(each[1].get_attribute("max") or 0))
    box = slider.bounding_box()
    assert box is not None
    at = [box["x"] + box["width"] * (0.25 + abs(n / steps - 0.5)) for n in range(steps + 1)]
    y = box["y"] + box["height"] / 2
    page.mouse.move(at[0], y)
    page.mouse.down()
    page.evaluate("() => window.attnlabStopwatch.startDrag()")
    start = time.perf_counter()
    for number, x in enumerate(at[1:], 1):
        page.mouse.move(x, y)
        time.sleep(max(0, start + number / MOVES_PER_S - time.perf_counter()))
    page.mouse.up()
    seen = page.evaluate("() => window.attnlabStopwatch.endDrag()")
    if seen["lost"] or not seen["latencies"]:
        raise RuntimeError(f"{seen['lost']} moves of {name} were followed by no frame, {len(seen['latencies'])} were")
    return Drag(seen["latencies"], seen["frames"], name)
