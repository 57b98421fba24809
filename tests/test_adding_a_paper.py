"""The page *Adding a paper* does what it says: its files in a copy of the checkout are a fifth mechanism."""

import difflib
import json
import re
import shlex
import shutil
import subprocess
from contextlib import contextmanager

import pytest

from attnlab import backend
from attnlab.exercises import every
from tests.adding_a_paper import BLOCKS, COPIED, EDITED, FILES, LINE, PAGE, ROOT, follow, python

VERIFIED = """
import json
from attnlab import parity
from attnlab.window import torch_impl, view

def reports():
    for dials in ({}, {"window": 3, "tokens": 64, "input": "layer 9, head 1"}):
        arguments, terms = view.verification(view.PARAMS(**dials))
        (report,) = parity.verify("window", arguments, terms=terms, impls=["torch"])
        yield report.record()

right, attention = list(reports()), torch_impl.attention
torch_impl.attention = lambda q, k, v, window: attention(q, k, v, window + 1)
print(json.dumps({"right": right, "one key more": list(reports())}))
"""
WHOLE = """
import attnlab
import attnlab.window.widget
from attnlab import backend, cli

assert callable(attnlab.window.attention)
assert backend.found("attnlab.window.torch_impl")
assert cli.main(["verify", "window"]) == 0
assert cli.main(["export", "window", "whole.html", "--force"]) == 0
"""
(PYTEST,) = re.findall(r"^\$ (\S*python -m pytest .*)$", PAGE, re.MULTILINE)
OWN = [path for path in PYTEST.split()[3:] if "window" in path]
HOUSE = [path for path in PYTEST.split()[3:] if path not in OWN]


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    return follow(tmp_path_factory.mktemp("copy"))


def said(copy, line: str) -> subprocess.CompletedProcess:
    """What a command line of the page says in the copy."""
    command, *words = shlex.split(line)
    module = {"attnlab": ["-m", "attnlab.cli"], ".venv/bin/python": []}[command]
    return python(copy, *module, *words)


def data(copy, line: str) -> dict:
    done = said(copy, f"{line} --json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextmanager
def changed(copy, path: str, old: str, new: str):
    """One piece of one file changed for a while."""
    before = (copy / path).read_text(encoding="utf-8")
    assert before.count(old) == 1
    (copy / path).write_text(before.replace(old, new), encoding="utf-8")
    yield
    (copy / path).write_text(before, encoding="utf-8")


# -- the page ---------------------------------------------------------------------------------------------------------


def test_a_fifth_paper_is_new_files_and_one_edited_line(copy):
    def there(root):
        found = (path for name in COPIED for path in (root / name).rglob("*") if path.is_file())
        return {path.relative_to(root).as_posix(): path for path in found if path.parent.name != "__pycache__"}

    before, after = there(ROOT), there(copy)
    assert after.keys() - before.keys() == FILES.keys()
    assert [name for name in before if before[name].read_bytes() != after[name].read_bytes()] == [EDITED]
    lines = (tree[EDITED].read_text(encoding="utf-8").splitlines() for tree in (before, after))
    assert [line for line in difflib.ndiff(*lines) if line[0] in "+-"] == ['+     "window",']


def test_each_block_is_a_file_that_was_followed_or_a_command(copy):
    others = [(language, text) for language, text in BLOCKS if text not in FILES.values() and text.rstrip() != LINE]
    assert {language for language, _ in others} == {"console"}
    assert all((copy / path).read_text(encoding="utf-8") == text for path, text in FILES.items())


def test_each_command_of_the_page_is_tried_here():
    make = "make lint types docs test"  # of the whole checkout: the only one that is not tried
    tried = {PYTEST, "attnlab verify window", "attnlab export window window.html"}
    assert set(re.findall(r"^\$ (.*)$", PAGE, re.MULTILINE)) == {*tried, make}
    assert {*OWN, *HOUSE} >= {path for path in FILES if path.endswith("_javascript.py")} | {"tests/window"}
    assert set(HOUSE) == {"tests/test_architecture.py", "tests/test_imports.py"}


def test_the_files_are_in_the_style_of_the_house(copy):
    ruff = shutil.which("ruff", path=str(ROOT / ".venv" / "bin")) or shutil.which("ruff")
    if ruff is None:
        pytest.skip("ruff is not installed")
    written = [path for path in FILES if path.endswith(".py")]
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run([ruff, *command, *written], cwd=copy, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


# -- what it promises -------------------------------------------------------------------------------------------------


def test_its_own_tests_pass(copy):
    done = python(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", *OWN)
    assert done.returncode == 0, done.stdout
    assert re.search(r"^\d+ passed", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.slow
def test_the_tests_of_the_house_take_it_for_a_mechanism(copy):
    """Of all of them those that a new file or a new name could make fail: the rest is as in the checkout."""
    chosen = "window or optional_package or kernels_import or every_mechanism or (doctor and torch) or stands_for"
    chosen += " or at_least_four"
    picked = ["tests/panels/test_export.py", "tests/panels/test_link.py"]  # the page says that they see the new name
    picked += ["tests/test_cli.py", "tests/exercises/test_every.py"]
    done = python(copy, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-k", chosen, *HOUSE, *picked)
    assert done.returncode == 0, done.stdout
    passed = re.findall(r"::(\S+) PASSED", done.stdout)
    rows = {name for name in FILES if re.fullmatch(r"attnlab/window/\w+\.py", name)}
    assert {f"test_a_file_sees_only_what_its_row_allows[{name}]" for name in rows} < set(passed)
    assert "test_importing_every_mechanism_loads_numpy_only" in passed
    assert sum(name.endswith("[window]") for name in passed) >= 4


def test_every_verdict_is_the_recorded_one(copy):
    seen = data(copy, "attnlab verify window")
    named = re.findall(r'"(window\.[\w-]+)"', FILES["attnlab/window/claims.py"])
    assert [record["id"] for record in seen["claims"]] == named
    assert seen["agree"] == seen["total"] == len(named)
    assert {record["observed"] for record in seen["claims"]} == {"HOLDS", "REFUTED"}
    assert {record["evidence"] for record in seen["claims"]} == {"exact"}


def test_the_panel_is_exported(copy):
    done = said(copy, "attnlab export window window.html")
    assert done.returncode == 0, done.stderr
    assert "<title>Sliding-window attention</title>" in (copy / "window.html").read_text(encoding="utf-8")


def test_doctor_lists_its_implementations(copy):
    rows = [row for row in data(copy, "attnlab doctor")["implementations"] if row["mechanism"] == "window"]
    runs = {row["impl"]: row["runs"] for row in rows}
    assert runs == {"reference": True, "numba": False, "torch": backend.found("torch"), "triton": False}


def test_the_exercises_are_still_listed(copy):
    assert data(copy, "attnlab exercises")["total"] == len(every()) > 0


def test_verify_agrees_with_the_fast_path_and_not_with_one_that_reads_a_key_more(copy):
    pytest.importorskip("torch", reason="torch is not installed")
    done = python(copy, "-c", VERIFIED)
    assert done.returncode == 0, done.stderr
    reports = json.loads(done.stdout)
    judged = {name: [(report["ran"], report["ok"]) for report in each] for name, each in reports.items()}
    assert judged == {"right": [(True, True)] * 2, "one key more": [(True, False)] * 2}, reports


# -- and that this could fail -----------------------------------------------------------------------------------------


def test_all_of_it_together_is_whole(copy):
    done = python(copy, "-c", WHOLE)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("attnlab/window/__init__.py", "has no attribute 'attention'"),
        ("attnlab/window/reference.py", "cannot import name 'reference' from 'attnlab.window'"),
        ("attnlab/window/torch_impl.py", "AssertionError"),
        ("attnlab/window/mathematics.js", "no such module: "),
    ],
)
def test_without_one_of_the_files_it_is_not(copy, path, complaint):
    (copy / path).rename(copy / "aside")
    done = python(copy, "-c", WHOLE)
    (copy / "aside").rename(copy / path)
    assert done.returncode != 0
    assert complaint in done.stderr


def test_without_the_line_it_is_not(copy):
    with changed(copy, EDITED, '    "window",\n', ""):
        done = said(copy, "attnlab verify window")
    assert done.returncode == 2
    assert "no claim named window" in done.stderr
