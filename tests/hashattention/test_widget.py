"""The Hamming recall panel's Python side, without a browser: dials, refusals, codes that travel, Verify."""

import json

import numpy as np
import pytest
import traitlets

from attnlab import backend, interpreted, panels, parity
from attnlab.hashattention import rational, view
from attnlab.hashattention.params import HashParams
from attnlab.hashattention.widget import Counterexamples, HashPanel
from attnlab.panels import export, link

LATE = "layer 21, head 1"


@pytest.fixture
def panel():
    panel = HashPanel(tokens=24, budget=6)
    yield panel
    panel.close()


def moved(panel, **dials):
    """The state that the browser sends after these dials were moved."""
    return {**panel.state, "dials": {**panel.state["dials"], **dials}}


def test_a_panel_opens_with_the_dials_it_was_given(panel):
    assert panel.params == HashParams(tokens=24, budget=6)
    assert json.loads(json.dumps(panel.state)) == panel.state
    assert panel.state["selection"] == {"grid": "differences", "view": "codes", "pin": None}


@pytest.mark.parametrize("damaged", [{"bits": 0}, {"selector": "magicpig"}, {"codes": None}, {"query": 2.5}])
def test_a_damaged_dial_is_refused_whole_and_shown(panel, damaged):
    before = panel.state
    with pytest.raises(traitlets.TraitError, match=next(iter(damaged))):
        panel.set_state({"state": moved(panel, tokens=9, **damaged)})
    assert panel.state == before
    assert next(iter(damaged)) in panel.error


def test_a_link_and_a_call_rebuild_the_panel(panel):
    panel.turn(selector="key_norm", codes="random", query=20)
    again = HashPanel.from_link(link.fragment(panel.state, panels.spec("hashattention")))
    assert again.state == panel.state
    assert 'HashPanel(selector="key_norm", codes="random", bits=32, budget=6, ' in panel.call
    again.close()
    state = export.setting("hashattention", ["pin=query.20,rank.3,bit.5", "grid=codes"])
    assert state["selection"] == {"grid": "codes", "view": "codes", "pin": {"query": 20, "rank": 3, "bit": 5}}


def test_a_real_head_is_sent_with_its_learned_codes_when_it_is_chosen(panel):
    assert panel.data is None
    panel.turn(input=LATE, codes="learned")
    assert panel.data is view.data(panel.params) or panel.data == view.data(panel.params)
    words = np.frombuffer(panel.data["key_codes"], "<u4")[:24]
    assert np.array_equal(words, view.codes(panel.params)[1][0, :, 0, 0])
    page = export.page("hashattention", moved(panel, input=LATE))
    assert '"key_codes":{"base64":' in page


def test_verify_reports_every_implementation_for_the_dials_on_the_screen(panel):
    """The codes are arguments, so that all are asked for the same set; kernels without a GPU are left out here."""
    impls = [impl for impl in parity.FAST if not backend.lacks_only_gpu(impl, "hashattention")]
    for dials in ({}, {"budget": 0, "sinks": 0, "window": 1, "bits": 40}, {"input": LATE, "codes": "learned"}):
        arguments, terms = panel.room.verification(HashParams(**moved(panel, **dials)["dials"]))
        for report in parity.verify("hashattention", arguments, terms=terms, impls=impls):
            lacking = backend.why_not(report.impl, "hashattention")
            assert report.ran == (lacking is None), report
            assert report.ok == report.ran, report
            assert report.device != interpreted.DEVICE


def test_the_verify_message_is_answered(panel, monkeypatch):
    seen = []
    agrees = parity.Report("numba", True, True, None, 1e-7, 2e-7, 2.6e-6, 0.5, "CPU")
    monkeypatch.setattr(parity, "verify", lambda *what, **how: seen.append((what, how)) or [agrees])
    panel._receive(panel, {"kind": "verify", "state": moved(panel, budget=3, bits=40)}, [])
    ((mechanism, arguments), how), *rest = seen
    assert (mechanism, rest) == ("hashattention", [])
    assert (arguments["budget"], arguments["sinks"], arguments["window"]) == (3, 4, 8)
    assert arguments["query_codes"].shape == arguments["key_codes"].shape == (1, 24, 1, 2)
    assert arguments["key_codes"].dtype == np.uint32
    assert how["terms"] >= 3 + 4 + 8
    assert panel.report["dials"] == moved(panel, budget=3, bits=40)["dials"]


def test_the_module_text_is_whole_and_small(panel):
    assert "export default" in panel._esm
    assert len(panels.source("hashattention").encode()) < 150_000
    assert len(panel._esm.encode()) < 55_000  # of the 60 KB that a panel may leave in a saved notebook
    assert len(json.dumps(panel.state)) < 1_000


# -- counterexamples --


@pytest.mark.parametrize("kind", rational.KINDS)
def test_the_button_finds_another_counterexample_and_shows_its_numbers(kind):
    shown = Counterexamples(kind)
    seen = []
    for _ in range(len(rational.STORED[kind]) + 4):
        example = shown.example
        assert rational.verify(example)
        for name, numbers in example.facts().items():
            assert f"<th scope='row'>{name}</th><td>{numbers}</td>" in shown.table.value
        seen.append(example)
        shown.another.click()
    assert tuple(seen[: len(rational.STORED[kind])]) == rational.STORED[kind]
    assert len(set(seen)) > len(rational.STORED[kind]) + 1
    shown.close()


def test_an_unknown_kind_of_counterexample_is_refused():
    with pytest.raises(ValueError, match="kind must be one of lift, isolated"):
        Counterexamples("lifted")
