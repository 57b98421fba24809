"""A panel as one HTML file: what stands in it, what is refused, and that nothing of a notebook is needed for it."""

import doctest
import html
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from attnlab import panels
from attnlab.panels import export, link
from attnlab.panels.state import defaults
from attnlab.race.params import RaceParams

ROOT = Path(__file__).parents[2]
RACE = panels.spec("race")
REAL = "layer 9, head 1"
WIDGETS = ("anywidget", "ipywidgets", "traitlets", "IPython", "torch", "numba", "triton", "plotly")


def given(text: str) -> dict:
    """The state and the data in a page."""
    (held,) = re.findall(r'<script type="application/json" id="attnlab-given">(.*?)</script>', text)
    return json.loads(held)


# -- the page ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", panels.names())
def test_a_page_with_toy_input_is_small_and_names_no_other_file(mechanism):
    text = export.page(mechanism)
    assert len(text.encode()) < 150_000
    assert re.findall(r"""(?:src|href|srcset|action)\s*=\s*["'][^"'$]*""", text) == ['href="data:,']
    assert re.findall(r"https?://\S+", text) == []
    assert text.count("</script>") == 2  # neither the state nor the module ends its element early


@pytest.mark.parametrize("mechanism", panels.names())
def test_a_page_holds_the_state_it_was_made_of(mechanism):
    spec = panels.spec(mechanism)
    assert given(export.page(mechanism)) == {"link": link.fragment(defaults(spec), spec), "data": None}


def test_the_page_is_the_same_however_the_state_is_spelt():
    state = export.setting("race", ["sharpness=2", "pin=query.1"])
    turned = {**state, "dials": dict(reversed(state["dials"].items())) | {"sharpness": 2, "planes": 3.0}}
    assert json.dumps(turned) != json.dumps(state)
    assert export.page("race", turned) == export.page("race", state)


def test_a_page_with_a_real_head_holds_the_numbers_that_python_has():
    state = export.setting("race", [f"input={REAL}", "tokens=65"])
    data = given(export.page("race", state))["data"]
    want = RaceParams(input=REAL, tokens=65).inputs()
    assert data["input"] == REAL
    assert tuple(data["tokens"][:65]) == want.tokens
    for name in "qkv":
        held = np.frombuffer(export.base64.b64decode(data[name]["base64"]), "<f2").reshape(-1, data["width"])
        assert len(held) == len(data["tokens"]) == 128  # the shortest window that holds 65
        np.testing.assert_array_equal(held[:65], getattr(want, name)[0, :, 0])


def test_a_damaged_state_makes_no_page():
    state = defaults(RACE)
    state["dials"] = {**state["dials"], "planes": 99}
    with pytest.raises(ValueError, match=r"planes must lie in \[1, 8\], got 99"):
        export.page("race", state)


# -- the file ---------------------------------------------------------------------------------------------------------


def test_the_file_is_the_page_byte_for_byte(tmp_path):
    path = export.write(tmp_path / "race.html", "race")
    assert path.read_bytes() == export.page("race").encode()


def test_an_earlier_export_is_replaced_and_a_foreign_file_is_not(tmp_path):
    path = tmp_path / "page.html"
    export.write(path, "race")
    export.write(path, "race", export.setting("race", ["planes=2"]))
    assert "&planes=2&" in given(path.read_text(encoding="utf-8"))["link"]
    path.write_bytes(b"\xff\xfe my notes")
    with pytest.raises(FileExistsError, match="a file that attnlab did not write"):
        export.write(path, "race")
    assert path.read_bytes() == b"\xff\xfe my notes"
    export.write(path, "race", force=True)
    assert path.read_bytes() == export.page("race").encode()


# -- the still --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", panels.names())
def test_a_still_says_each_dial_and_each_number_once(mechanism):
    spec = panels.spec(mechanism)
    state = defaults(spec)
    switches = [dial for dial in spec["dials"] if dial["kind"] == "switch"]  # a panel may have none
    state["dials"] |= {"seed": 1234} | {switch["name"]: not switch["default"] for switch in switches[:1]}
    numbers = export.contents(mechanism, state)["numbers"]
    names = [name for name, _ in numbers]
    assert len(names) == len(set(names)) > len(spec["dials"])
    for dial in spec["dials"]:
        (name,) = (name for name in names if name.split(" ")[0] == dial["label"].split(" ")[0])
        assert dict(numbers)[name] == str(state["dials"][dial["name"]])
    rows = re.findall(r"<th .*?>(.*?)</th><td .*?>(.*?)</td>", export.still(mechanism, state, id="one"))
    assert [tuple(map(html.unescape, row)) for row in rows] == numbers


# -- settings ---------------------------------------------------------------------------------------------------------


def test_settings_name_every_part_of_a_state():
    words = ["planes=2", "sharpness=0.5", "causal=true", f"input={REAL}", "features=queries", "view=race"]
    state = export.setting("race", [*words, "pin=query.3,key.5", "language=en"])
    assert state["dials"] == RACE_DIALS | {"planes": 2, "sharpness": 0.5, "causal": True, "input": REAL}
    assert state["selection"] == {"features": "queries", "view": "race", "pin": {"query": 3, "key": 5}}


RACE_DIALS = defaults(RACE)["dials"]


def test_settings_change_what_a_link_shows():
    address = "https://example.org/a.html" + link.fragment(export.setting("race", ["planes=5", "pin=key.1"]), RACE)
    state = export.setting("race", ["tables=2", "pin="], address)
    assert state["dials"] == RACE_DIALS | {"planes": 5, "tables": 2}
    assert state["selection"]["pin"] is None
    assert export.setting("race", [], address)["selection"]["pin"] == {"key": 1}


def test_a_setting_is_plain_text_and_not_an_encoded_link():
    encoded = "layer%209%2C%20head%201"
    with pytest.raises(ValueError, match=f'input must be one of .*, got "{encoded}"'):
        export.setting("race", [f"input={encoded}"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["planes=99"], r"planes must lie in \[1, 8\], got 99"),
        (["planes=2.5"], 'planes must be a whole number in \\[1, 8\\], got "2.5"'),
        (["sharpness=much"], 'sharpness must be a finite number in decimal digits, got "much"'),
        (["sharpness=nan"], 'sharpness must be a finite number in decimal digits, got "nan"'),
        (["causal=yes"], 'causal must be one of "true", "false", got "yes"'),
        (["input=gpt"], 'input must be one of "toy", .*, got "gpt"'),
        (["features=values"], 'features must be one of "keys", "queries", got "values"'),
        (["view=everything"], 'view must be one of "buckets", .*, got "everything"'),
        (["pin=colour.3"], 'each axis of pin must be one of "query", .*, got "colour.3"'),
        (["pin=query"], r'pin\.query must be a whole number .*, got "query"'),
        (["language=xx"], 'language must be one of "en".*, got "xx"'),
        (["plane=3"], 'the names in settings must be planes, tables, .*, got "plane"'),
        (["version=1"], 'the names in settings must be planes, .*, got "version"'),
        (["__class__=1"], 'the names in settings must be planes, .*, got "__class__"'),
        (["planes"], 'each setting must be name=value, got "planes"'),
        (["planes=3", "planes=3"], 'planes must be given once, and was before, got "3"'),
        (["planes=3\nx"], r'planes must be a whole number .*, got "3\\nx"'),
    ],
)
def test_a_wrong_setting_is_refused_in_one_sentence(words, sentence):
    with pytest.raises(ValueError, match=rf"\A{sentence}\Z"):
        export.setting("race", words)


# -- without a notebook -----------------------------------------------------------------------------------------------


def test_an_export_needs_numpy_and_the_file_of_heads_alone(tmp_path):
    code = (
        f"import sys\nsys.modules.update(dict.fromkeys({WIDGETS}))\n"
        "before = set(sys.modules)\n"
        "from attnlab.cli import main\n"
        f"assert main(['export', 'race', 'page.html', '--set', 'input={REAL}']) == 0\n"
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    printed, loaded = done.stdout.splitlines()
    size = (tmp_path / "page.html").stat().st_size
    assert printed == f"page.html: {size:,} bytes"
    others = set(loaded.split()) - {"attnlab", "numpy", "safetensors"}
    assert not {name for name in others if importlib.util.find_spec(name)}, others  # Cython's own runtime has no file


def test_the_python_lines_on_the_start_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```pycon\n(.*?)```", text, re.DOTALL)
    test = doctest.DocTestParser().get_doctest(block, {}, "start.md", "docs/start.md", 0)
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(test, out=lambda report: pytest.fail(report))
    assert test.examples
    assert (tmp_path / "race.html").is_file()
