"""The instrument of `attnlab bench panels`: it sees a delay that is planted, a view that stands still, and a panel that
complains.
"""

import pytest

from attnlab import panels
from attnlab.bench import panels as instrument
from tests.browser.panel_on_page import mount

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
def bare(same_page):
    """RACE's panel on an empty page, and the stopwatch beside it."""
    mount(same_page)
    same_page.evaluate(instrument.STOPWATCH)
    return same_page


def spec_with(*dials: str):
    spec = panels.spec("race")
    return spec | {"dials": [dial for dial in spec["dials"] if dial["name"] in dials]}


@pytest.mark.parametrize("plant", [IN_SCRIPT, IN_LAYOUT], ids=["in its script", "in its layout"])
def test_a_delay_in_a_frame_is_measured(bare, plant):
    bare.evaluate(plant.replace("BUSY", BUSY))
    steps = instrument.moves(bare, spec_with("planes"), 2)["race"]["planes"]
    assert min(steps) >= DELAY_MS


@pytest.mark.parametrize("plant", [IN_SCRIPT, IN_LAYOUT], ids=["in its script", "in its layout"])
def test_a_delay_under_a_moving_mouse_is_measured(bare, plant):
    bare.evaluate(plant.replace("BUSY", BUSY))
    dragged = instrument.drag(bare, spec_with("planes", "sharpness"), 8)
    assert dragged.over == "sharpness"  # the slider with more steps
    hovered = instrument.hover(bare, 8)
    for seen in (dragged, hovered):
        assert min(seen.latencies) >= DELAY_MS
        assert 1 <= seen.frames <= 1 + len(seen.latencies)


def test_each_view_is_timed_for_the_dials_that_move_it_and_for_no_other(bare):
    moves = instrument.moves(bare, spec_with("sharpness", "causal", "tokens", "seed"), 2)
    assert instrument.unmoved(panels.spec("race"), moves) == []
    assert {view: list(steps) for view, steps in moves.items() if view in ("buckets", "softmax", "lemma", "race")} == {
        "buckets": ["sharpness", "seed"],
        "softmax": ["seed", "causal"],
        "lemma": ["sharpness"],
        "race": ["sharpness", "seed", "causal"],
    }
    assert all(len(steps) == 2 and min(steps) > 0 for dials in moves.values() for steps in dials.values())


def test_a_curve_is_stepped_at_a_point_and_never_dragged(same_page):
    spec = panels.spec("residual")
    mount(same_page, "residual")
    same_page.evaluate(instrument.STOPWATCH)
    stepped = ("write", "correction", "tied", "clip")
    some = spec | {"dials": [dial for dial in spec["dials"] if dial["name"] in (*stepped, "tokens")]}
    moves = instrument.moves(same_page, some, 2)
    assert instrument.unmoved(spec, moves) == []
    assert [list(moves[view]) for view in ("gates", "clip")] == [["write", "correction", "tied"], ["write", "clip"]]
    assert same_page.get_by_label("write, point 1 of 8").input_value() == "70"  # where it stood
    assert instrument.drag(same_page, some, 8).over == "clip"


def test_a_view_that_stands_still_is_missed(bare):
    bare.evaluate(FREEZE, "band")
    moves = instrument.moves(bare, spec_with("planes"), 2)
    assert instrument.unmoved(panels.spec("race"), moves) == ["band"]


def test_steps_lead_back_to_where_the_dials_stood_also_at_their_ends(bare):
    ends = ("planes P", "tables L")
    for label in ends:
        bare.get_by_label(label).press("End")
    instrument.moves(bare, spec_with("planes", "tables", "sharpness", "causal"), 2)
    values = [bare.get_by_label(label).get_attribute("aria-valuetext") for label in (*ends, "sharpness β")]
    assert values == ["8", "16", "4"]
    assert not bare.get_by_label("causal").is_checked()


def test_a_percentile_is_one_of_the_samples():
    samples = [float(n) for n in range(1, 41)]
    assert instrument.percentile(samples, 95) == 38
    assert instrument.percentile(samples[::-1], 50) == 20
    assert instrument.percentile([7.0], 95) == 7


@pytest.fixture
def brief(monkeypatch):
    small = {"LIMITS_MS": {64: 50}, "ROUNDS": 1, "RUNS": 1, "STEPS": 2, "STEPS_LARGEST": 2, "MOVES": 8}
    for name, value in small.items():
        monkeypatch.setattr(instrument, name, value)


def test_the_benchmark_has_a_row_for_every_view_and_for_what_comes_before(lab, browser, brief):
    rows = {row["id"]: row for row in instrument.of_panel("race", lab, browser)}
    views = panels.spec("race")["views"]
    assert list(rows) == [
        *("race.64.first_paint_cold_ms", "race.64.first_paint_ms"),
        *(f"race.64.{view}.p{part}_ms" for view in views for part in (50, 95)),
        *("race.64.drag.p95_ms", "race.64.hover.p95_ms"),
        *(f"race.256.largest.{view}.p95_ms" for view in views),
        "race.javascript_bytes",
    ]
    assert all(row["value"] > 0 and row["better"] == "lower" for row in rows.values())
    targets = {name: row["target"] for name, row in rows.items() if name.endswith("p95_ms")}
    assert targets == {name: None if "largest" in name else 50 for name in targets}
    assert rows["race.64.first_paint_cold_ms"]["target"] == 2000
    assert rows["race.javascript_bytes"]["value"] == len(panels.source("race").encode())
    assert rows["race.64.buckets.p95_ms"]["note"].startswith("10 steps of planes, tables, sharpness, head_width, seed")
    assert rows["race.256.largest.race.p95_ms"]["note"].endswith("planes 8, tables 16, tokens 256, head_width 64")


def test_a_panel_that_asks_another_machine_is_no_number_but_an_error(lab, browser, brief, monkeypatch):
    def asking(page, *rest):
        page.evaluate("fetch('https://example.org/x.js').catch(() => null)")
        return {view: {"planes": [1.0]} for view in panels.spec("race")["views"]}

    monkeypatch.setattr(instrument, "moves", asking)
    with pytest.raises(RuntimeError, match=r"asked for https://example\.org/x\.js"):
        instrument.of_panel("race", lab, browser)
