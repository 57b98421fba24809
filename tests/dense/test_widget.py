"""The softmax panel's Python side, without a browser."""

import pytest

from attnlab import backend, parity
from attnlab.dense.params import SoftmaxParams
from attnlab.dense.widget import SoftmaxPanel


@pytest.fixture
def panel():
    panel = SoftmaxPanel(temperature=0.5, tokens=6)
    yield panel
    panel.close()


def test_a_panel_opens_with_the_dials_it_was_given_and_follows_them(panel):
    assert panel.params == SoftmaxParams(temperature=0.5, tokens=6)
    panel.turn(temperature=2.0, input="layer 9, head 1")
    assert panel.params == SoftmaxParams(temperature=2.0, tokens=6, input="layer 9, head 1")
    assert panel.data["input"] == "layer 9, head 1"


def test_a_dial_out_of_range_or_unknown_is_refused_when_the_panel_is_made():
    with pytest.raises(ValueError, match=r"temperature must lie in \[0.03125, 32\], got 64"):
        SoftmaxPanel(temperature=64)
    with pytest.raises(TypeError, match="planes"):
        SoftmaxPanel(planes=3)


def test_the_python_lines_of_a_panel_build_it_again():
    panel = SoftmaxPanel(temperature=0.25, causal=True, view="kept", pin={"query": 3, "key": 1})
    made: dict = {}
    lines, call = panel.call.rsplit("\n\n", 1)
    exec(f"{lines}\nagain = {call}", made)
    assert made["again"].state == panel.state
    for each in (panel, made["again"]):
        each.close()


def test_verify_holds_torch_to_the_reference_and_says_what_is_not_there(panel):
    reports = {report.impl: report for report in panel.verify()}
    assert tuple(reports) == parity.FAST
    assert panel.error == ""
    for name, report in reports.items():
        assert report.why_not == backend.why_not(name, "dense")
        assert report.ok == report.ran == (report.why_not is None)
    assert reports["numba"].why_not == "dense has no numba implementation in this version of attnlab."
