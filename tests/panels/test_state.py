"""A state is taken whole or refused with a sentence; state.test.mjs holds the panel to the same list."""

import copy
import json
import re
from pathlib import Path

import pytest

from attnlab import panels
from attnlab.panels.state import checked, defaults

HERE = Path(__file__).parent
SPEC = panels.spec("race")


def test_the_defaults_are_a_good_state():
    state = defaults(SPEC)
    assert checked(state, SPEC) is state
    assert state["dials"]["planes"] == 3
    assert state["selection"] == {"features": "keys", "view": "buckets", "pin": None}


def test_a_pin_names_axes_and_indices():
    state = defaults(SPEC)
    state["selection"]["pin"] = {"query": 3, "key": 0}
    assert checked(state, SPEC) is state


def test_every_damaged_state_is_refused_by_name(damaged):
    for path, value, name in damaged:
        state = copy.deepcopy(defaults(SPEC))
        *parents, last = path
        place = state
        for key in parents:
            place = place[key]
        if value == "<delete>":
            del place[last]
        else:
            place[last] = value
        with pytest.raises(ValueError, match=name):
            checked(state, SPEC)


@pytest.mark.parametrize("state", [None, [], "state", 3])
def test_what_is_no_record_is_refused(state):
    with pytest.raises(ValueError, match="state must be a record"):
        checked(state, SPEC)


def test_a_curve_that_is_none_is_refused_by_name_and_point():
    spec = panels.spec("residual")
    for value, sentence in json.loads((HERE / "damaged_curves.json").read_text()):
        state = copy.deepcopy(defaults(spec))
        state["dials"]["write"] = value
        with pytest.raises(ValueError, match=re.escape(sentence)):
            checked(state, spec)
    state["dials"]["write"] = [0, 1, 0.5, 0.25, 0, 1, 1, 0]
    assert checked(state, spec) is state
