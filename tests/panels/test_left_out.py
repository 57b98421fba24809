"""What this machine lacks costs one line of the summary, or in continuous integration a failure."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Pytest where neither node nor chromium is found."""
    clean = {name: value for name, value in os.environ.items() if name != "CI"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    environment = clean | {"PATH": os.devnull} | environment
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=TESTS.parent, timeout=120)


def test_what_is_missing_is_said_in_one_line_each_and_the_rest_runs():
    files = ("browser/test_race_panel.py", "panels/test_javascript.py", "panels/test_state.py")
    done = run(*(str(TESTS / path) for path in files))
    assert done.returncode == 0, done.stdout
    for word in ("Chromium", "Node"):
        [line] = [line for line in done.stdout.splitlines() if word in line]
        assert re.match(r"\d+ tests left out: ", line)
    assert "SKIPPED" not in done.stdout
    assert " passed, " in done.stdout


def test_who_asks_for_no_browser_test_hears_nothing_of_chromium():
    done = run("-m", "not browser", str(TESTS / "browser/test_race_panel.py"), str(TESTS / "panels/test_state.py"))
    assert done.returncode == 0
    assert "Chromium" not in done.stdout


@pytest.mark.parametrize(
    ("file", "some"), [("browser/test_race_panel.py", "dark_page"), ("panels/test_javascript.py", "bundled")]
)
def test_in_continuous_integration_it_is_a_failure(file, some):
    done = run("-k", some, str(TESTS / file), CI="true")
    assert done.returncode == 1
    assert "1 error" in done.stdout
