"""Node, for the unit tests of the JavaScript, and the damaged states that both sides must refuse.

Without Node its tests are left out and the summary says so in one line; where the environment says CI they fail.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
OLDEST = (20, 19)  # the first Node that takes a plain .js file with import lines for a module
NODE = shutil.which("node")
LEFT_OUT = pytest.StashKey[int]()


def missing() -> str:
    """What is wrong with the Node of this machine, or nothing."""
    version = subprocess.run([NODE, "--version"], capture_output=True, text=True).stdout.strip() if NODE else ""
    if tuple(int(part) for part in version.removeprefix("v").split(".")[:2] if part) >= OLDEST:
        return ""
    wanted = ".".join(map(str, OLDEST))
    return f"Node {wanted} or newer is needed for the JavaScript, found {version or 'none'}"


@pytest.hookimpl(trylast=True)  # after -m and -k have taken theirs
def pytest_collection_modifyitems(config, items):
    left_out = [item for item in items if HERE in item.path.parents and "node" in item.fixturenames]
    if not left_out or os.environ.get("CI") or not missing():
        return
    config.stash[LEFT_OUT] = len(left_out)
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter, config):
    if count := config.stash.get(LEFT_OUT, 0):
        terminalreporter.write_line(f"{count} tests left out: {missing()}", yellow=True)


@pytest.fixture(scope="session")
def node():
    """Run one *.test.mjs file of this folder on a folder of vectors; its report is the failure's text."""
    if why := missing():
        pytest.fail(why)

    def run(test: str, vectors: Path) -> None:
        command = [NODE, "--no-warnings", "--test", "--test-reporter=tap", str(HERE / test)]
        done = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "VECTORS": str(vectors)}, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "\n# pass 0\n" not in done.stdout, done.stdout

    return run


@pytest.fixture
def damaged():
    """(where, what stands there instead, a word of the sentence) of states that must be refused."""
    return json.loads((HERE / "damaged_states.json").read_text())
