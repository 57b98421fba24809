"""The RoPE subspace panel's Python side, without a browser: dials, refusals, Verify."""

import json

import pytest
import traitlets

from attnlab import backend, interpreted, panels, parity
from attnlab.lrkv.params import WAYS, LrkvParams
from attnlab.lrkv.widget import LrkvPanel
from attnlab.panels import export, link


@pytest.fixture
def panel():
    panel = LrkvPanel(tokens=9, heads=3, head_width=16, rank=4)
    yield panel
    panel.close()


def moved(panel, **dials):
    """The state that the browser sends after these dials were moved."""
    return {**panel.state, "dials": {**panel.state["dials"], **dials}}


def test_a_panel_opens_with_the_dials_it_was_given(panel):
    assert panel.params == LrkvParams(tokens=9, heads=3, head_width=16, rank=4)
    assert json.loads(json.dumps(panel.state)) == panel.state
    assert panel.state["selection"] == {"shown": "error", "view": "repair", "pin": None}
    assert panel.data is None


@pytest.mark.parametrize("damaged", [{"angle": 91}, {"option": "rotate"}, {"stored": None}, {"turn": 2.5}])
def test_a_damaged_dial_is_refused_whole_and_shown(panel, damaged):
    before = panel.state
    with pytest.raises(traitlets.TraitError, match=next(iter(damaged))):
        panel.set_state({"state": moved(panel, tokens=5, **damaged)})
    assert panel.state == before
    assert next(iter(damaged)) in panel.error


def test_a_link_and_a_call_rebuild_the_panel(panel):
    panel.turn(option="tied", angle=45, turn=-100)
    again = LrkvPanel.from_link(link.fragment(panel.state, panels.spec("lrkv")))
    assert again.state == panel.state
    assert 'LrkvPanel(option="tied", angle=45, first=1, ' in panel.call
    again.close()
    state = export.setting("lrkv", ["pin=place.20", "shown=factored", "opposite=true"])
    assert state["selection"] == {"shown": "factored", "view": "repair", "pin": {"place": 20}}


@pytest.mark.parametrize("option", WAYS)
def test_verify_reports_every_implementation_for_the_repair_on_the_screen(panel, option):
    """Wrong repairs too: all implementations have to be wrong by the same. Kernels without a GPU are left out here."""
    impls = [impl for impl in parity.FAST if not backend.lacks_only_gpu(impl, "lrkv")]
    arguments, terms = panel.room.verification(LrkvParams(**moved(panel, option=option)["dials"]))
    for report in parity.verify("lrkv", arguments, terms=terms, impls=impls):
        lacking = backend.why_not(report.impl, "lrkv")
        assert report.ran == (lacking is None), report
        assert report.ok == report.ran, report
        assert report.device != interpreted.DEVICE


def test_the_verify_message_is_answered(panel, monkeypatch):
    seen = []
    agrees = parity.Report("numba", True, True, None, 1e-7, 2e-7, 2.6e-6, 0.5, "CPU")
    monkeypatch.setattr(parity, "verify", lambda *what, **how: seen.append((what, how)) or [agrees])
    panel._receive(panel, {"kind": "verify", "state": moved(panel, option="aligned", rank=6)}, [])
    ((mechanism, arguments), how), *rest = seen
    assert (mechanism, rest) == ("lrkv", [])
    assert arguments["k_latent"].shape == (1, 9, 3, 6)
    assert len(arguments["latent_rope"].frequency) == 3
    assert how["terms"] > 9
    assert panel.report["dials"] == moved(panel, option="aligned", rank=6)["dials"]


def test_the_module_text_is_whole_and_small(panel):
    assert "export default" in panel._esm
    assert len(panels.source("lrkv").encode()) < 150_000
    assert len(panel._esm.encode()) < 55_000  # of the 60 KB that a panel may leave in a saved notebook
    assert len(json.dumps(panel.state)) < 1_000
