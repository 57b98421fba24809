"""How long a reader waits for the live panels, in a JupyterLab and a Chromium of their own.

MECHANISM.TOKENS.first_paint_cold_ms  from running the cell in a page without a panel, while JupyterLab loads its part,
                                      to the first frame with something in every figure
MECHANISM.TOKENS.first_paint_ms       the same for a panel after the first
MECHANISM.TOKENS.VIEW.p50_ms          from a key on a dial to the end of the frame that shows it in this view: median,
MECHANISM.TOKENS.VIEW.p95_ms          and what 95 of 100 such moves stay below
MECHANISM.TOKENS.drag.p95_ms          the same while the mouse drags a slider, from each pointer event that moved it
MECHANISM.TOKENS.hover.p95_ms         and while it wanders over the heatmaps, from each pointer event over one
MECHANISM.MOST.largest.VIEW.p95_ms    the keys again, from where every dial that counts something stands at its end, so
                                      with the most tokens
MECHANISM.javascript_bytes            the text of the panel's module

Each round opens a page, runs the cell, steps every slider but the tokens', one point of every curve, every switch and
the seed forth and back from where the panel opens, drags and hovers. The packages are imported before, and a real head,
which Python sends, is not measured. The value of a percentile is the median of the rounds' own; it is noisy where the
rounds disagree. A frame ends when the browser has painted it, which is before a screen shows it (stopwatch.js).
"""

import math
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlab import bench, panels, progress
from attnlab.bench import _lab

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

__all__ = ["LIMITS_MS", "NEEDS", "about", "drag", "hover", "moves", "of_panel", "rows", "unmoved"]

NEEDS = ("anywidget", "jupyterlab", "playwright")
LIMITS_MS = {64: 50, 256: 100}  # for each number of tokens, what 95 of 100 moves are to stay below
FIRST_PAINT_MS = 2000
JAVASCRIPT_BYTES = 150_000

ROUNDS = 3
RUNS = 3  # of the cell in each round, after the first
STEPS = 10  # of each dial in each round
STEPS_LARGEST = 2  # the same with all dials at their ends, where a step takes longer
MOVES, MOVES_PER_S = 60, 60  # of the mouse in each round: along a slider, and over all heatmaps together
WIDTH, HEIGHT = 1400, 1400  # of the window: every view is in sight

KEYS = {"checkbox": ("Space", "Space"), "number": ("1", "2"), "range": ("ArrowUp", "ArrowDown")}  # forth and back
STOPWATCH = (Path(__file__).parent / "stopwatch.js").read_text(encoding="utf-8")
RUN_CELL = """(index) => window.attnlabStopwatch.firstPaint(() => {
    window.jupyterapp.shell.currentWidget.content.activeCellIndex = index;
    return window.jupyterapp.commands.execute("notebook:run-cell");
})"""

Moves = dict[str, dict[str, list[float]]]  # ms of each step that changed a view, by view and dial


@dataclass(frozen=True)
class Track:
    """The ms of each move of the mouse, the frames painted for them, and what was moved along."""

    latencies: list[float]
    frames: int
    over: str


@dataclass(frozen=True)
class Round:
    """What one round measured."""

    cold: float
    first_paints: list[float]
    moves: Moves
    drag: Track
    hover: Track


def about() -> dict[str, Any]:
    """What else was measured on. Raises backend.Unavailable where there is no Chromium."""
    said = subprocess.run([_lab.chromium_path(), "--version"], capture_output=True, text=True, check=True).stdout
    return {"ipywidgets": version("ipywidgets"), "chromium": said.split()[1]}


def rows() -> list[dict[str, Any]]:
    """Measure every panel; about four minutes.

    Raises RuntimeError for a panel that complains, that asks another machine for something, or that has a view which no
    dial moves.
    """
    with _lab.jupyterlab() as lab, _lab.chromium() as browser:
        return [row for mechanism in panels.names() for row in of_panel(mechanism, lab, browser)]


def of_panel(mechanism: str, lab: _lab.Lab, browser: "Browser") -> list[dict[str, Any]]:
    """The rows of one panel."""
    counts = {dial["name"]: dial["high"] for dial in panels.spec(mechanism)["dials"] if dial["kind"] == "whole"}
    del counts["seed"]
    result = [
        row for tokens in LIMITS_MS if tokens <= counts["tokens"] for row in _of_size(mechanism, tokens, lab, browser)
    ]
    script = [len(panels.source(mechanism).encode())]
    name = f"{mechanism}.javascript_bytes"
    bytes_row = bench.row(name, script, "bytes", better="lower", target=JAVASCRIPT_BYTES)
    return [*result, *_of_largest(mechanism, counts, lab, browser), bytes_row]


def _of_size(mechanism: str, tokens: int, lab: _lab.Lab, browser: "Browser") -> list[dict[str, Any]]:
    spec = panels.spec(mechanism)
    rounds = []
    for number in range(ROUNDS):
        progress.show(f"[{number + 1}/{ROUNDS}] {mechanism} with {tokens} tokens")
        with _opened(mechanism, {"tokens": tokens}, lab, browser) as page:
            cold, *paints = (page.evaluate(RUN_CELL, 1) for _ in range(1 + RUNS))
            moved = _moved(page, spec, STEPS)
            rounds.append(Round(cold, paints, moved, drag(page, spec, MOVES), hover(page, MOVES)))
    progress.show("")
    return _table(f"{mechanism}.{tokens}", spec["views"], rounds, LIMITS_MS[tokens])


def _of_largest(mechanism: str, counts: dict[str, int], lab: _lab.Lab, browser: "Browser") -> list[dict[str, Any]]:
    spec = panels.spec(mechanism)
    rounds = []
    with _opened(mechanism, counts, lab, browser) as page:
        page.evaluate(RUN_CELL, 1)
        for number in range(ROUNDS):
            progress.show(f"[{number + 1}/{ROUNDS}] {mechanism} with the largest dials")
            rounds.append(_moved(page, spec, STEPS_LARGEST))
    progress.show("")
    at = ", ".join(f"{name} {value}" for name, value in counts.items())
    result = []
    for view in spec["views"]:
        samples, note = _samples(view, rounds)
        tails = [percentile(each, 95) for each in samples]
        name = f"{mechanism}.{counts['tokens']}.largest.{view}.p95_ms"
        result.append(bench.row(name, tails, "ms", better="lower", note=f"{note}, at {at}"))
    return result


@contextmanager
def _opened(mechanism: str, dials: dict[str, int], lab: _lab.Lab, browser: "Browser") -> "Iterator[Page]":
    """A page that remembers nothing, with a notebook whose second cell shows the panel, its first one run.

    Raises RuntimeError for a panel that complains or asks another machine for something.
    """
    widget = panels.spec(mechanism)["widget"]
    given = ", ".join(f"{name}={value}" for name, value in dials.items())
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
    complaints = _lab.watch(context)
    try:
        cells = (f"from attnlab.{mechanism}.widget import {widget}", f"{widget}({given})")
        page = lab.open(context.new_page(), f"{mechanism}.ipynb", *cells, run=False)
        page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-cell')")
        page.evaluate(STOPWATCH)
        yield page
        complaints += _lab.strips(page)
        page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    finally:
        context.close()
    if complaints:
        raise RuntimeError(f"{widget}({given}): {'; '.join(complaints)}")


def _moved(page: "Page", spec: dict[str, Any], steps: int) -> Moves:
    """`moves`; raises RuntimeError for a view that none of them changed."""
    result = moves(page, spec, steps)
    if still := unmoved(spec, result):
        raise RuntimeError(f"the {spec['mechanism']} panel: no dial moves {', '.join(still)}")
    return result


def _samples(view: str, rounds: list[Moves]) -> tuple[list[list[float]], str]:
    """The ms of every step that changed the view, round by round, and how many of which dials they are."""
    samples = [[ms for steps in each[view].values() for ms in steps] for each in rounds]
    return samples, f"{sum(map(len, samples))} steps of {', '.join(rounds[0][view])}"


def _table(name: str, views: list[str], rounds: list[Round], limit: float) -> list[dict[str, Any]]:
    cold, paints = [each.cold for each in rounds], [ms for each in rounds for ms in each.first_paints]
    first = {"first_paint_cold": (cold, "a page each"), "first_paint": (paints, f"{RUNS} runs in each of them")}
    result = [
        bench.row(f"{name}.{what}_ms", samples, "ms", better="lower", target=FIRST_PAINT_MS, note=note)
        for what, (samples, note) in first.items()
    ]
    for view in views:
        samples, note = _samples(view, [each.moves for each in rounds])
        medians, tails = [statistics.median(each) for each in samples], [percentile(each, 95) for each in samples]
        result.append(bench.row(f"{name}.{view}.p50_ms", medians, "ms", better="lower", note=note))
        result.append(bench.row(f"{name}.{view}.p95_ms", tails, "ms", better="lower", target=limit, note=note))
    for what, tracks in {"drag": [each.drag for each in rounds], "hover": [each.hover for each in rounds]}.items():
        moved, painted = sum(len(each.latencies) for each in tracks), sum(each.frames for each in tracks)
        note = f"{painted} frames for {moved} moves of {tracks[0].over}"
        tails = [percentile(each.latencies, 95) for each in tracks]
        result.append(bench.row(f"{name}.{what}.p95_ms", tails, "ms", better="lower", target=limit, note=note))
    return result


def percentile(samples: list[float], part: int) -> float:
    """The smallest sample that `part` of 100 do not exceed."""
    return sorted(samples)[math.ceil(part / 100 * len(samples)) - 1]


# -- on a page that shows one panel, after STOPWATCH was run in it --


def moves(page: "Page", spec: dict[str, Any], steps: int) -> Moves:
    """Step every slider but the tokens', one point of every curve, every switch and the seed, forth and back: ms from
    the key to the frame that shows it.

    Raises playwright's Error where a key is followed by no frame.
    """
    result: Moves = {}
    for dial, control in _controls(page, spec):
        kind = control.get_attribute("type") or ""
        keys = KEYS[kind]
        if kind == "range" and control.evaluate("(slider) => slider.value === slider.max"):
            keys = keys[::-1]
        for number in range(steps):
            control.focus()
            if kind == "number":
                control.press("Control+A")  # what is typed takes the place of the number
            page.evaluate(
                "(type) => window.attnlabStopwatch.arm(type)", "keyup" if kind == "checkbox" else "keydown"
            )  # where each acts
            page.keyboard.press(keys[number % 2])
            latencies = page.evaluate("() => window.attnlabStopwatch.latencies()")
            if not latencies:  # the dial means nothing here
                break
            for view, ms in latencies.items():
                result.setdefault(view, {}).setdefault(dial, []).append(ms)
    return result


def unmoved(spec: dict[str, Any], moves: Moves) -> list[str]:
    """The panel's views that no dial has changed."""
    return [view for view in spec["views"] if view not in moves]


def _controls(page: "Page", spec: dict[str, Any]) -> Iterator[tuple[str, "Locator"]]:
    """Name and control of each dial that keys step or a digit sets; of a curve its first point."""
    for dial in spec["dials"]:
        label = f"{dial['label']} {dial['paper']}".strip()
        control = page.locator(".attnlab").get_by_label(label, exact=True)
        if dial["kind"] == "curve":
            control = control.locator("input").first
        keyed = control.get_attribute("type") in ("range", "checkbox", "number")
        if keyed and dial["name"] != "tokens" and control.is_enabled():
            yield dial["name"], control


def _track(page: "Page", event: str, places: list[tuple[float, float]], over: str) -> Track:
    """Move the mouse from place to place at MOVES_PER_S, each event of this type timed to its frame."""
    page.evaluate("(type) => window.attnlabStopwatch.startTrack(type)", event)
    start = time.perf_counter()
    for number, place in enumerate(places, 1):
        page.mouse.move(*place)
        time.sleep(max(0, start + number / MOVES_PER_S - time.perf_counter()))
    seen = page.evaluate("() => window.attnlabStopwatch.endTrack()")
    if seen["lost"] or not seen["latencies"]:
        raise RuntimeError(f"{seen['lost']} moves of {over} were followed by no frame, {len(seen['latencies'])} were")
    return Track(seen["latencies"], seen["frames"], over)


def drag(page: "Page", spec: dict[str, Any], steps: int) -> Track:
    """Drag the slider with the most steps over half of its length and back.

    Raises RuntimeError where a move is followed by no frame.
    """
    curves = {dial["name"] for dial in spec["dials"] if dial["kind"] == "curve"}  # these are drawn, not dragged
    controls = [(name, control) for name, control in _controls(page, spec) if name not in curves]
    sliders = [(name, control) for name, control in controls if control.get_attribute("type") == "range"]
    name, slider = max(sliders, key=lambda each: int(each[1].get_attribute("max") or 0))
    box = slider.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    first, *places = [(box["x"] + box["width"] * (0.25 + abs(n / steps - 0.5)), y) for n in range(steps + 1)]
    page.mouse.move(*first)
    page.mouse.down()
    result = _track(page, "input", places, name)
    page.mouse.up()
    return result


def hover(page: "Page", steps: int) -> Track:
    """Lead the mouse over every heatmap from corner to corner, and away.

    Raises RuntimeError where a move is followed by no frame.
    """
    heatmaps = page.locator(".attnlab .al-heatmap canvas")
    places = []
    each = steps // heatmaps.count()
    for heatmap in heatmaps.all():
        box = heatmap.bounding_box()
        assert box is not None
        parts = [0.1 + 0.8 * (n + 0.5) / each for n in range(each)]
        places += [(box["x"] + part * box["width"], box["y"] + part * box["height"]) for part in parts]
    result = _track(page, "pointermove", places, "the mouse over heatmaps")
    page.mouse.move(0, 0)
    return result
