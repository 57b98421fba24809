"""The panel's Python side, without a browser: what the front end sends arrives whole, and what goes wrong is seen."""

import json
from types import SimpleNamespace

import pytest
import traitlets

from attnlab import backend, interpreted, panels, parity
from attnlab.panels import widget
from attnlab.race import view
from attnlab.race.params import RaceParams
from attnlab.race.widget import RacePanel


@pytest.fixture
def panel():
    panel = RacePanel(planes=2, tokens=6)
    yield panel
    panel.close()


def moved(panel, **dials):
    """The state that the browser sends after these dials were moved."""
    return {**panel.state, "dials": {**panel.state["dials"], **dials}}


def test_a_panel_opens_with_the_dials_it_was_given(panel):
    assert panel.params == RaceParams(planes=2, tokens=6)
    assert panel.error == ""


def test_a_dial_out_of_range_or_unknown_is_refused_when_the_panel_is_made():
    with pytest.raises(ValueError, match=r"planes must lie in \[1, 8\], got 9"):
        RacePanel(planes=9)
    with pytest.raises(TypeError, match="colour"):
        RacePanel(colour=1)


def test_view_is_the_chosen_figure_and_nothing_else():
    panel = RacePanel(view="race")
    assert panel.state["selection"]["view"] == "race"
    assert not hasattr(panel, "view")
    panel.close()


def test_params_follow_a_released_slider(panel):
    panel.set_state({"state": moved(panel, sharpness=8.0, causal=True)})
    assert panel.params == RaceParams(planes=2, tokens=6, sharpness=8.0, causal=True)


def test_dials_are_turned_from_python(panel):
    panel.turn(tables=7)
    assert panel.params.tables == 7
    with pytest.raises(traitlets.TraitError, match=r"tables must lie in \[1, 16\], got 17"):
        panel.turn(tables=17)
    with pytest.raises(traitlets.TraitError, match="colour"):
        panel.turn(colour=3)
    assert panel.params.tables == 7


def test_a_state_handed_out_or_taken_in_is_a_copy(panel):
    """Or a dial could be moved past its range, and no browser would hear of it."""
    panel.state["dials"]["planes"] = 99
    assert panel.params.planes == 2
    given = panel.state
    given["dials"]["planes"] = 7
    sent = []
    panel.observe(lambda change: sent.append(change["new"]["dials"]["planes"]), "state")
    panel.state = given
    given["dials"]["planes"] = 99
    assert (panel.params.planes, sent) == (7, [7])


def test_a_damaged_state_from_the_browser_is_refused_whole_and_shown(panel):
    before = panel.state
    with pytest.raises(traitlets.TraitError, match="planes"):
        panel.set_state({"state": moved(panel, tables=9, planes=99)})
    assert panel.state == before
    assert "planes must lie in [1, 8], got 99" in panel.error
    panel.set_state({"state": moved(panel, tables=9)})
    assert panel.params.tables == 9
    assert panel.error == ""


def test_a_real_head_is_sent_when_it_is_chosen_and_only_then(panel):
    assert panel.data is None
    panel.turn(input="layer 9, head 1")
    assert panel.data["input"] == "layer 9, head 1"
    sent = panel.data
    panel.turn(tokens=7)
    assert panel.data is sent
    panel.turn(input="layer 2, head 0")
    assert panel.data["input"] == "layer 2, head 0"
    panel.turn(input="toy")
    assert panel.data is None


def test_an_error_while_a_head_is_loaded_is_shown_and_raised(panel, monkeypatch):
    def broken(params):
        raise OSError("the file of real heads cannot be read")

    monkeypatch.setattr(view, "data", broken)
    with pytest.raises(OSError, match="cannot be read"):
        panel.set_state({"state": moved(panel, input="layer 2, head 1")})
    assert panel.error == "OSError: the file of real heads cannot be read"


def test_the_verify_message_reports_every_implementation_for_the_dials_on_the_screen(panel):
    panel._handle_custom_msg({"kind": "verify", "state": moved(panel, tables=3)}, [])
    assert panel.report["dials"] == moved(panel, tables=3)["dials"]
    rows = {row["impl"]: row for row in panel.report["rows"]}
    assert tuple(rows) == parity.FAST
    for name, row in rows.items():
        reason = None if backend.lacks_only_gpu(name, "race") else backend.why_not(name, "race")
        assert row["ran"] == (reason is None)
        assert row["ok"] == row["ran"]  # at these dials every one that can run agrees
        assert (row["why_not"] or None) == reason
        if row["ran"]:
            assert row["max_rel"] <= row["tolerance"]
            assert (row["time_ms"] is None) == bool(row["evidence"]) == (row["device"] == interpreted.DEVICE)
            assert row["evidence"] or row["time_ms"] > 0
    json.dumps(panel.report, allow_nan=False)


def test_verify_returns_the_reports_it_shows(panel):
    reports = panel.verify()
    assert [report.impl for report in reports] == [row["impl"] for row in panel.report["rows"]]


def test_the_report_names_the_dials_that_were_checked_though_others_were_set_meanwhile(panel, monkeypatch):
    checked = []

    def slow(mechanism, arguments, *, terms):
        panel.turn(planes=5, sharpness=2.0)  # a state message that arrives during the check
        checked.append((arguments["planes"].shape[1], arguments["sharpness"]))
        return []

    monkeypatch.setattr(parity, "verify", slow)
    before = dict(panel.state["dials"])
    panel.verify()
    assert panel.report["dials"] == before
    panel.turn(**before)
    panel._receive(panel, {"kind": "verify", "state": moved(panel, planes=4, sharpness=8.0)}, [])
    assert checked == [(2, 4.0), (4, 8.0)]
    assert (panel.report["dials"]["planes"], panel.report["dials"]["sharpness"]) == checked[1]


def test_a_question_of_earlier_never_pushes_its_state_back(panel, monkeypatch):
    monkeypatch.setattr(parity, "verify", lambda *arguments, **options: [])
    asked = moved(panel, planes=5)
    panel.set_state({"state": moved(panel, planes=4, tables=6)})  # moved on before the question is read
    after = panel.state
    panel._receive(panel, {"kind": "verify", "state": asked}, [])
    assert panel.state == after
    assert panel.report["dials"] == asked["dials"]


@pytest.mark.parametrize("message", [{}, {"state": None}, {"state": {"dials": {"planes": 3}}}])
def test_a_question_with_a_damaged_state_is_refused_and_shown(panel, message):
    with pytest.raises(ValueError, match="state must"):
        panel._receive(panel, {"kind": "verify", **message}, [])
    assert "state must" in panel.error
    with pytest.raises(ValueError, match=r"planes must lie in \[1, 8\], got 99"):
        panel._receive(panel, {"kind": "verify", "state": moved(panel, planes=99)}, [])
    assert panel.report is None


def test_an_answer_equal_to_the_last_one_is_sent_all_the_same(panel, monkeypatch):
    """Where nothing runs here there is no time in it; a browser that heard nothing would wait for ever."""
    absent = parity.Report("numba", False, False, "Numba is not installed.")
    monkeypatch.setattr(parity, "verify", lambda *arguments, **options: [absent])
    sent = []
    panel.observe(lambda change: sent.append(change["new"]), "report")
    panel.verify()
    panel.verify()
    assert sent == [panel.report, None, panel.report]


def test_not_a_number_travels_as_a_word(panel, monkeypatch):
    wrong = parity.Report("numba", True, False, None, float("nan"), float("inf"), 1e-6, 0.5, "CPU", "NaN in the result")
    monkeypatch.setattr(parity, "verify", lambda *arguments, **options: [wrong])
    panel.verify()
    row = panel.report["rows"][0]
    assert (row["max_abs"], row["max_rel"], row["ok"]) == ("nan", "inf", False)


def test_an_exception_while_verifying_is_shown_and_raised(panel, monkeypatch):
    def broken(*arguments, **options):
        raise RuntimeError("the kernel of race is on fire")

    monkeypatch.setattr(parity, "verify", broken)
    with pytest.raises(RuntimeError, match="on fire"):
        panel._receive(panel, {"kind": "verify", "state": panel.state}, [])
    assert panel.error == "RuntimeError: the kernel of race is on fire"
    assert panel.report is None


def test_a_message_of_another_kind_is_refused(panel):
    with pytest.raises(ValueError, match="kind of a message must be 'verify', got 'open'"):
        panel._receive(panel, {"kind": "open"}, [])
    assert "got 'open'" in panel.error


def test_two_panels_do_not_share_a_state():
    first, second = RacePanel(), RacePanel()
    first.turn(planes=7)
    assert second.params.planes == 3
    first.close()
    second.close()


def test_the_module_text_is_whole_and_small(panel):
    assert "export default" in panel._esm
    assert len(panels.source("race").encode()) < 150_000
    assert len(panel._esm.encode()) < 55_000  # of the 60 KB that a panel may leave in a saved notebook
    assert len(json.dumps(panel.state)) < 1_000


@pytest.fixture
def cell(monkeypatch):
    """Run a cell that shows these panels, as a notebook would: cell(name, run, *panels)."""
    import IPython
    import IPython.display

    shell = SimpleNamespace()
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    monkeypatch.setattr(
        IPython.display, "display", lambda *data, **options: SimpleNamespace(update=lambda *_, **__: None)
    )
    monkeypatch.setattr(widget, "_cells", {})

    def run(name, number, *panels):
        shell.get_parent = lambda: {"metadata": {"cellId": name}, "header": {"msg_id": f"run {number}"}}
        for panel in panels:
            panel._ipython_display_()

    return run


def test_a_cell_that_runs_again_closes_the_panel_it_showed_before(cell):
    first, second, third = RacePanel(), RacePanel(), RacePanel()
    cell("a", 1, first, second)  # two in one run stay
    assert first.comm is not None
    assert second.comm is not None
    cell("a", 2, third)
    assert (first.comm, second.comm) == (None, None)
    assert third.comm is not None
    first.turn(planes=5)  # the object lives on
    assert first.params.planes == 5
    for panel in (first, second, third):
        panel.close()


def test_a_panel_that_another_cell_shows_stays_open_and_a_closed_one_is_opened_when_it_is_shown(cell):
    panel, other = RacePanel(), RacePanel()
    cell("a", 1, panel)
    cell("b", 2, panel)
    cell("a", 3, other)
    assert panel.comm is not None
    cell("b", 4, other)
    assert panel.comm is None
    cell("c", 5, panel)
    assert panel.comm is not None
    assert panel._repr_mimebundle_()[0]["application/vnd.jupyter.widget-view+json"]["model_id"] == panel.model_id
    panel.close()
    other.close()


def test_where_cells_have_no_names_nothing_is_closed(cell):
    first, second = RacePanel(), RacePanel()
    cell(None, 1, first)
    cell(None, 2, second)
    assert first.comm is not None
    first.close()
    second.close()
