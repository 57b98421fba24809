"""A link and a call give back exactly the state they were made of, and link.js writes and reads the same texts."""

import copy
import importlib
import json
import keyword
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab import panels
from attnlab.panels.link import LIMIT, call, fragment, from_fragment
from attnlab.panels.state import checked, defaults

HERE = Path(__file__).parent
RACE = panels.spec("race")
HUGE = sys.float_info.max

# No mechanism has all of this: every double, whole numbers of either sign, curves of them, words that need quoting, two
# languages.
WIDE = {
    "mechanism": "wide",
    "widget": "WidePanel",
    "version": 2,
    "dials": [
        {"name": "any_number", "kind": "number", "default": 0.0, "low": -HUGE, "high": HUGE},
        {"name": "small", "kind": "number", "default": 1e-7, "low": 0.0, "high": 1e-3},
        {"name": "large", "kind": "number", "default": 1e16, "low": 1e14, "high": 1e23},
        {"name": "count", "kind": "whole", "default": -3, "low": -(2**53) + 1, "high": 2**53 - 1},
        {"name": "on", "kind": "switch", "default": True},
        {"name": "drawn", "kind": "curve", "default": [0.5, 1e-7, -2.0], "low": -2.0, "high": 1e23, "points": 3},
        {"name": "word", "kind": "choice", "default": "a", "choices": ["a", "é 漢 😀", "a&b=c#d?e%41+f", "'(x)'!*~"]},
    ],
    "options": {"quote": ['"', "'", "\\", "\\n\n\t\x7f", "</script>", "{x}"], "other": ["one", "two"]},
    "views": ["first", "second"],
    "axes": ["row", "column", "third_axis"],
    "languages": ["en", "zh"],
}
SPECS = [pytest.param(RACE, id="race"), pytest.param(WIDE, id="wide")]


def values(entry: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Anything that this dial takes, its ends often."""
    if entry["kind"] == "switch":
        return st.booleans()
    if entry["kind"] == "choice":
        return st.sampled_from(entry["choices"])
    low, high = entry["low"], entry["high"]
    if entry["kind"] == "curve":
        height = st.floats(low, high) | st.sampled_from([low, high])
        return st.lists(height, min_size=entry["points"], max_size=entry["points"])
    if entry["kind"] == "whole":
        return st.integers(low, high) | st.sampled_from([low, high])
    beside = [low, high, math.nextafter(low, high), math.nextafter(high, low)]
    return st.floats(low, high) | st.sampled_from(beside)


def states(spec: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any state of any panel."""
    pins = st.dictionaries(st.sampled_from(spec["axes"]), st.integers(0, 2**53 - 1) | st.integers(0, 64), min_size=1)
    options = {name: st.sampled_from(choices) for name, choices in spec["options"].items()}
    selection = {**options, "view": st.sampled_from(spec["views"]), "pin": st.none() | pins}
    return st.fixed_dictionaries(
        {
            "version": st.just(spec["version"]),
            "dials": st.fixed_dictionaries({entry["name"]: values(entry) for entry in spec["dials"]}),
            "selection": st.fixed_dictionaries(selection),
            "language": st.sampled_from(spec["languages"]),
        }
    )


def examples(spec: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """The same random states in every run."""
    found = []

    @settings(max_examples=count, database=None, derandomize=True, deadline=None)
    @given(states(spec))
    def collect(state: dict[str, Any]) -> None:
        found.append(checked(state, spec))

    collect()
    return found


def rebuilt(text: str, spec: dict[str, Any]) -> dict[str, Any]:
    """What the call hands to the panel's class, here a stand-in of the same name, completed as the panel does."""
    stand_in = ModuleType("stand_in")
    setattr(stand_in, spec["widget"], dict)
    with mock.patch.dict(sys.modules, {f"attnlab.{spec['mechanism']}.widget": stand_in}):
        arguments = evaluated(text)
    state = defaults(spec)
    for entry in spec["dials"]:
        state["dials"][entry["name"]] = arguments.pop(entry["name"])
    state["language"] = arguments.pop("language", state["language"])
    state["selection"] = {"pin": None} | arguments
    return state


def evaluated(text: str) -> Any:
    """What the last line of a call stands for, as a notebook's cell shows it."""
    *before, last = text.splitlines()
    namespace: dict[str, Any] = {}
    exec("\n".join(before), namespace)
    return eval(last, namespace)


# -- there and back ---------------------------------------------------------------------------------------------------


def test_the_texts_are_readable():
    state = defaults(RACE)
    state["dials"] |= {"sharpness": 0.1, "input": "layer 9, head 1"}
    state["selection"] |= {"view": "race", "pin": {"query": 3, "key": 5}}
    assert fragment(state, RACE) == (
        "#race&version=1&planes=3&tables=4&sharpness=0.1&tokens=32&head_width=16&seed=0&causal=false&normalize=false"
        "&input=layer%209%2C%20head%201&features=keys&view=race&pin=query.3,key.5&language=en"
    )
    assert call(state, RACE) == (
        "from attnlab.race.widget import RacePanel\n\n"
        "RacePanel(planes=3, tables=4, sharpness=0.1, tokens=32, head_width=16, seed=0, causal=False, normalize=False, "
        'input="layer 9, head 1", features="keys", view="race", pin={"query": 3, "key": 5})'
    )


def test_a_call_names_the_pin_and_the_language_only_where_they_are_set():
    state = defaults(WIDE)
    assert "pin" not in call(state, WIDE)
    assert "language" not in call(state, WIDE)
    state |= {"language": "zh", "selection": state["selection"] | {"pin": {"row": 0}}}
    assert call(state, WIDE).endswith(', view="first", pin={"row": 0}, language="zh")')


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_link_gives_back_exactly_its_state(spec, data):
    state = data.draw(states(spec))
    text = fragment(state, spec)
    back = from_fragment(text, spec)
    assert back == state
    for name, value in state["dials"].items():
        assert repr(back["dials"][name]) == repr(value)  # type and sign of zero too
    assert repr(back["selection"]["pin"]) == repr(state["selection"]["pin"])  # the order of its axes too
    assert from_fragment(f"https://example.org/race.html?version=9{text}", spec) == state
    assert text.isascii()
    assert text.isprintable()


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_call_gives_back_exactly_its_state(spec, data):
    state = data.draw(states(spec))
    back = rebuilt(call(state, spec), spec)
    assert back == state
    for entry in spec["dials"]:
        if entry["kind"] == "number":
            name = entry["name"]
            assert math.copysign(1, back["dials"][name]) == math.copysign(1, state["dials"][name])


@pytest.mark.parametrize("mechanism", panels.names())
def test_each_panel_is_rebuilt_by_its_call(mechanism):
    spec = panels.spec(mechanism)
    panel_type = getattr(importlib.import_module(f"attnlab.{mechanism}.widget"), spec["widget"])
    for state in examples(spec, 60)[::3]:
        panel = evaluated(call(state, spec))
        assert isinstance(panel, panel_type)
        assert panel.state == state
        panel.close()


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (4.0, "4"),
        (0.1, "0.1"),
        (0.0001, "0.0001"),
        (0.00001, "1e-5"),
        (1e-7, "1e-7"),
        (5e-324, "5e-324"),
        (1e15, "1000000000000000"),
        (9999999999999998.0, "9999999999999998"),
        (1e16, "1e16"),
        (1.5e300, "1.5e300"),
        (0.1 + 0.2, "0.30000000000000004"),
        (-0.0, "-0.0"),
    ],
)
def test_a_number_is_written_shortest(number, text):
    state = defaults(WIDE)
    state["dials"]["any_number"] = number
    assert f"&any_number={text}&" in fragment(state, WIDE)
    assert f"(any_number={text}, " in call(state, WIDE)


@pytest.mark.parametrize("mechanism", panels.names())
def test_names_in_a_link_are_unique_and_can_be_arguments(mechanism):
    spec = panels.spec(mechanism)
    found = [*(entry["name"] for entry in spec["dials"]), *spec["options"], "version", "view", "pin", "language"]
    assert len(found) == len(set(found))
    assert all(name.isidentifier() and not keyword.iskeyword(name) for name in [*found, *spec["axes"], spec["widget"]])


@pytest.mark.parametrize(
    ("drawn", "sentence"),
    [
        ("1,2", r"drawn must be a list of 3 numbers, got \[1.0, 2.0\]"),
        ("1,2,3,4", "drawn must be a list of 3 numbers"),
        ("", "drawn must be a finite number in decimal digits"),
        ("1,,2", "drawn must be a finite number in decimal digits"),
        ("[1,2,3]", "drawn must be a finite number in decimal digits"),
        ("1,2,-3", r"drawn\[2\] must lie in \[-2, 1e\+23\], got -3"),
    ],
)
def test_a_curve_in_a_link_has_all_its_points_within_its_range(drawn, sentence):
    good = fragment(defaults(WIDE), WIDE)
    assert "&drawn=0.5,1e-7,-2&" in good
    with pytest.raises(ValueError, match=sentence):
        from_fragment(good.replace("0.5,1e-7,-2", drawn), WIDE)


# -- refusals ---------------------------------------------------------------------------------------------------------


def hostile() -> list[tuple[str, str]]:
    """Links that must be refused, each with what the sentence has to name.

    A row of the file is what stands in the link of the defaults (null: the whole link), what is put there, the name.
    """
    good = fragment(defaults(RACE), RACE)
    rows = json.loads((HERE / "hostile_links.json").read_text(encoding="utf-8"))
    assert all(old is None or good.count(old) == 1 for old, _, _ in rows)
    return [(new if old is None else good.replace(old, new), name) for old, new, name in rows]


@pytest.mark.parametrize(("text", "name"), hostile())
def test_a_hostile_link_is_refused_in_one_sentence(text, name):
    with pytest.raises(ValueError, match=r"\A.+ must .+\Z") as refusal:
        from_fragment(text, RACE)
    assert type(refusal.value) is ValueError
    assert name in str(refusal.value)


@pytest.mark.parametrize("text", [None, 3, b"#race", ["#race"]])
def test_what_is_no_text_is_refused(text):
    with pytest.raises(ValueError, match="a link must be text, got"):
        from_fragment(text, RACE)


def test_a_link_is_at_most_so_long():
    good = fragment(defaults(RACE), RACE)
    full = good.replace("sharpness=4&", f"sharpness=4.{'0' * (LIMIT - len(good))}&")
    assert len(full) == LIMIT + 1  # the # is not counted
    assert from_fragment(full, RACE) == defaults(RACE)
    with pytest.raises(ValueError, match="a link must have at most 4096 characters after its #, got 4097"):
        from_fragment(full.replace("4.0", "4.00"), RACE)


@pytest.mark.parametrize("part", ["input=toy", "planes=3", "view=buckets", "pin=", "language=en", "causal=false"])
def test_a_long_value_is_shown_shortened(part):
    text = fragment(defaults(RACE), RACE).replace(part, part.split("=")[0] + "=" + 3000 * "x")
    with pytest.raises(ValueError, match=f'got "{80 * "x"}…"$'):
        from_fragment(text, RACE)


@pytest.mark.parametrize("write", [fragment, call])
def test_only_a_whole_state_in_range_is_written(write: Callable[[Any, Any], str]):
    for path, value, name in [
        (["dials", "planes"], 9, "planes"),
        (["dials", "sharpness"], math.nan, "sharpness"),
        (["selection", "pin"], {}, "pin"),
        (["selection", "pin"], {"query": 2**53}, r"pin\.query must lie in"),
        (["selection", "pin"], {"colour": 0}, "pin"),
        (["language"], "xx", "language"),
    ]:
        state = place = copy.deepcopy(defaults(RACE))
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        with pytest.raises(ValueError, match=name):
            write(state, RACE)


# -- the same in JavaScript -------------------------------------------------------------------------------------------


def damaged_at_random(count: int) -> list[tuple[str, dict[str, Any] | None]]:
    """Links with one to three edits, and the state that Python takes each for, None where it refuses."""
    pick = random.Random(4096)
    letters = "#&&==%,.+-eE00123456789aflnrstuy _é٣\n😀"
    made = []
    for state in examples(WIDE, 100) * (count // 100):
        text = fragment(state, WIDE)
        for _ in range(pick.randint(1, 3)):
            at, to = (pick.randrange(len(text) + 1) for _ in range(2))
            match pick.randrange(5):
                case 0:
                    text = text[:at] + pick.choice(letters) + text[at:]
                case 1:
                    text = text[:at] + pick.choice(letters) + text[at + 1 :]
                case 2:
                    text = text[: min(at, to)] + text[max(at, to) :]
                case 3:  # part after part, in another order
                    mechanism, *parts = text.split("&")
                    text = "&".join([mechanism, *pick.sample(parts, len(parts))])
                case 4:  # one part twice, or in place of another
                    parts = text.split("&")
                    place = pick.randrange(len(parts))
                    parts[place : place + pick.randrange(2)] = [pick.choice(parts)]
                    text = "&".join(parts)
        made.append((text, taken(text)))
    return made


def taken(text: str) -> dict[str, Any] | None:
    try:
        return from_fragment(text, WIDE)
    except ValueError:
        return None


def test_link_js_writes_and_reads_the_same_texts(node, tmp_path):
    cases = [
        {"spec": spec, "state": state, "fragment": fragment(state, spec), "call": call(state, spec)}
        for spec in (RACE, WIDE)
        for state in examples(spec, 400)
    ]
    damaged = damaged_at_random(3000)
    assert 100 < sum(state is not None for _, state in damaged) < 2900  # both happen
    vectors = {"cases": cases, "race": RACE, "wide": WIDE, "hostile": hostile(), "damaged": damaged, "limit": LIMIT}
    (tmp_path / "link.json").write_text(json.dumps(vectors))
    node("link.test.mjs", tmp_path)
