"""The residual panel's Python side, without a browser: curves travel whole, and Verify asks every implementation."""

import json

import pytest
import traitlets

from attnlab import backend, interpreted, panels, parity
from attnlab.panels import export, link
from attnlab.residual.params import POINTS, RULES, ResidualParams
from attnlab.residual.widget import ResidualPanel

DIP = [1.0, 1.0, 0.2, 1.0, 1.0, 0.5, 1.0, 0.0]


@pytest.fixture
def panel():
    panel = ResidualPanel(rule="rdn", tokens=6, retention=DIP)
    yield panel
    panel.close()


def moved(panel, **dials):
    """The state that the browser sends after these dials were moved."""
    return {**panel.state, "dials": {**panel.state["dials"], **dials}}


def test_a_panel_opens_with_the_dials_it_was_given(panel):
    assert panel.params == ResidualParams(rule="rdn", tokens=6, retention=DIP)
    assert panel.state["dials"]["retention"] == DIP  # a list, as JSON has it
    assert panel.state["dials"]["write"] == [0.7] * POINTS
    assert json.loads(json.dumps(panel.state)) == panel.state


def test_one_number_stands_for_a_whole_curve():
    panel = ResidualPanel(write=0.25)
    assert panel.state["dials"]["write"] == [0.25] * POINTS
    panel.close()


def test_a_curve_drawn_in_the_browser_arrives(panel):
    panel.set_state({"state": moved(panel, write=[0, 1, 0.5, 0.25, 0, 1, 1, 0])})  # JSON has no 1.0
    assert panel.params.write == (0.0, 1.0, 0.5, 0.25, 0.0, 1.0, 1.0, 0.0)
    assert panel.error == ""


@pytest.mark.parametrize("damaged", [[1.0] * (POINTS - 1), [1.0] * (POINTS - 1) + [1.01], 0.5, None])
def test_a_damaged_curve_is_refused_whole_and_shown(panel, damaged):
    before = panel.state
    with pytest.raises(traitlets.TraitError, match="write"):
        panel.set_state({"state": moved(panel, tokens=9, write=damaged)})
    assert panel.state == before
    assert "write" in panel.error


def test_a_curve_that_was_handed_out_or_taken_in_is_a_copy(panel):
    panel.state["dials"]["retention"][0] = 99
    assert panel.params.retention == tuple(DIP)
    mine = list(DIP)
    panel.turn(retention=mine)
    mine[0] = 99
    assert panel.params.retention == tuple(DIP)


def test_a_link_and_a_call_hold_the_curves(panel):
    spec = panels.spec("residual")
    address = link.fragment(panel.state, spec)
    assert "&retention=1,1,0.2,1,1,0.5,1,0&" in address
    again = ResidualPanel.from_link(address)
    assert again.state == panel.state
    assert "retention=[1, 1, 0.2, 1, 1, 0.5, 1, 0]" in panel.call
    again.close()
    state = export.setting("residual", ["retention=1,1,0.2,1,1,0.5,1,0", "rule=rdn", "tokens=6"])
    assert state["dials"] == panel.state["dials"]


@pytest.mark.parametrize("rule", RULES)
def test_verify_reports_every_implementation_for_the_dials_on_the_screen(panel, rule):
    """At these dials every one that can run here agrees; kernels without a GPU are interpreted for one rule alone."""
    asked = moved(panel, rule=rule, clip=0.5, retention=[0.9] * POINTS)
    impls = [impl for impl in parity.FAST if rule == "rdn" or not backend.lacks_only_gpu(impl, "residual")]
    arguments, terms = panel.room.verification(ResidualParams(**asked["dials"]))
    reports = parity.verify("residual", arguments, terms=terms, impls=impls)
    for report in reports:
        lacking = None if backend.lacks_only_gpu(report.impl, "residual") else backend.why_not(report.impl, "residual")
        assert report.ran == (lacking is None), report
        assert report.ok == report.ran, report
        assert (report.why_not or None) == lacking
        assert (report.time_ms is None) == (not report.ran or report.device == interpreted.DEVICE)


def test_the_verify_message_is_answered(panel, monkeypatch):
    seen = []
    agrees = parity.Report("numba", True, True, None, 1e-7, 2e-7, 2.6e-6, 0.5, "CPU")
    monkeypatch.setattr(parity, "verify", lambda *what, **how: seen.append((what, how)) or [agrees])
    panel._receive(panel, {"kind": "verify", "state": moved(panel, target="none", tied=True)}, [])
    ((mechanism, arguments), how), *rest = seen
    assert (mechanism, rest) == ("residual", [])
    assert (arguments["rule"], arguments["clip"], arguments["q"].shape) == ("rdn", float("inf"), (1, 6, 1, 16))
    assert how["terms"] == 2 * (16 + 6 * 16)  # a delta rule
    assert panel.report["dials"] == moved(panel, target="none", tied=True)["dials"]


def test_a_real_head_is_sent_when_it_is_chosen(panel):
    assert panel.data is None
    panel.turn(input="layer 9, head 1")
    assert (panel.data["input"], panel.params.widths) == ("layer 9, head 1", (64, 64))


def test_the_module_text_is_whole_and_small(panel):
    assert "export default" in panel._esm
    assert len(panels.source("residual").encode()) < 150_000
    assert len(panel._esm.encode()) < 55_000  # of the 60 KB that a panel may leave in a saved notebook
    assert len(json.dumps(panel.state)) < 1_000
