"""The instrument of `attnlab bench panels`: it sees a delay that is planted, a view that stands still, and a panel that
complains.
"""

import base64

import pytest

from attnlab import panels
from attnlab.bench import panels as instrument

DELAY_MS = 120
BUSY = f"const busy = () => {{ const end = performance.now() + {DELAY_MS}; while (performance.now() < end); }};"

# Where the time of a frame may go: into the panel's own script, or into what the browser does for it afterwards.
IN_SCRIPT = """() => { BUSY
    const frame = window.requestAnimationFrame;
    window.requestAnimationFrame = (paint) => frame((time) => { busy(); paint(time); });
}"""
IN_LAYOUT = """() => { BUSY
    const panel = document.querySelector(".attnlab");
    const box = document.body.appendChild(document.createElement("div"));
    const resized = new ResizeObserver(busy);
    new MutationObserver(() => {
        box.style.height = `${panel.dataset.frames}px`;
        resized.observe(box);
    }).observe(panel, { attributeFilter: ["data-frames"] });
}"""
FREEZE = """(figure) => {
    const pen = document.querySelector(`[data-figure=${figure}] canvas`).getContext("2d");
    for (const move of ["clearRect", "fillRect", "fill", "stroke", "fillText", "drawImage", "putImageData"]) {
        pen[move] = () => {};
    }
}"""


@pytest.fixture
def bare(page):
    """RACE's panel on an empty page, and the stopwatch beside it."""
    text = base64.b64encode(panels.source("race").encode()).decode()
    page.set_content("<!doctype html><main></main>")
    page.evaluate(
        """async (text) => {
            const { mount } = await import("data:text/javascript;base64," + text);
            mount(document.querySelector("main"));
        }""",
        text,
    )
    page.evaluate(instrument.STOPWATCH)
    return page


def spec_with(*dials: str):
    spec = panels.spec("race")
    return spec | {"dials": [dial for dial in spec["dials"] if dial["name"] in dials]}


@pytest.mark.parametrize("plant", [IN_SCRIPT, IN_LAYOUT], ids=["in its script", "in its layout"])
def test_a_delay_in_a_frame_is_measured(bare, plant):
    def quickest(steps=6):
        return min(instrument.moves(bare, spec_with("planes"), steps)["race"]["planes"])

    usual = quickest()
    bare.evaluate(plant.replace("BUSY", BUSY))
    assert DELAY_MS - 20 <= quickest() - usual <= DELAY_MS + 60  # counted once, and to within a few frames


def test_a_delay_under_a_drag_is_measured(bare):
    bare.evaluate(IN_SCRIPT.replace("BUSY", BUSY))
    seen = instrument.drag(bare, spec_with("planes", "sharpness"), 8)
    assert seen.dial == "sharpness"  # the slider with more steps
    assert min(seen.latencies) >= DELAY_MS
    assert 1 <= seen.frames <= 1 + len(seen.latencies)


def test_each_view_is_timed_for_the_dials_that_move_it_and_for_no_other(bare):
    moves = instrument.moves(bare, spec_with("sharpness", "causal", "tokens", "seed"), 2)
    assert instrument.unmoved(panels.spec("race"), moves) == []
    assert {view: list(steps) for view, steps in moves.items() if view in ("buckets", "softmax", "lemma", "race")} == {
        "buckets": ["sharpness"],
        "softmax": ["causal"],
        "lemma": ["sharpness"],
        "race": ["sharpness", "causal"],
    }
    assert all(len(steps) == 2 and min(steps) > 0 for dials in moves.values() for steps in dials.values())


def test_a_view_that_stands_still_is_missed(bare):
    bare.evaluate(FREEZE, "band")
    moves = instrument.moves(bare, spec_with("planes"), 2)
    assert instrument.unmoved(panels.spec("race"), moves) == ["band"]


def test_a_percentile_is_one_of_the_samples():
    samples = [float(n) for n in range(1, 41)]
    assert instrument.percentile(samples, 95) == 38
    assert instrument.percentile(samples[::-1], 50) == 20
    assert instrument.percentile([7.0], 95) == 7


@pytest.fixture
def brief(monkeypatch):
    for name, value in {"LIMITS_MS": {64: 50}, "ROUNDS": 1, "RUNS": 1, "STEPS": 2, "MOVES": 8}.items():
        monkeypatch.setattr(instrument, name, value)


def test_the_benchmark_has_a_row_for_every_view_and_for_what_comes_before(lab, browser, brief):
    rows = {row["id"]: row for row in instrument.of_panel("race", lab, browser)}
    views = [f"race.64.{view}.p{part}_ms" for view in panels.spec("race")["views"] for part in (50, 95)]
    assert list(rows) == ["race.64.first_paint_ms", *views, "race.64.drag.p95_ms", "race.javascript_bytes"]
    assert all(row["value"] > 0 and row["better"] == "lower" for row in rows.values())
    assert {row["target"] for name, row in rows.items() if name.endswith("p95_ms")} == {50}
    assert rows["race.javascript_bytes"]["value"] == len(panels.source("race").encode())
    assert rows["race.64.buckets.p95_ms"]["note"].startswith("8 steps of planes, tables, sharpness, head_width")


def test_a_panel_that_asks_another_machine_is_no_number_but_an_error(lab, browser, brief, monkeypatch):
    def asking(page, *rest):
        page.evaluate("fetch('https://example.org/x.js').catch(() => null)")
        return {}

    monkeypatch.setattr(instrument, "moves", asking)
    with pytest.raises(RuntimeError, match=r"asked for https://example\.org/x\.js"):
        instrument.of_panel("race", lab, browser)
