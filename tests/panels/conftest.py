"""Node, for the unit tests of the JavaScript, and the damaged states that both sides must refuse."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

OLDEST = (20, 19)  # the first Node that takes a plain .js file with import lines for a module


@pytest.fixture(scope="session")
def node():
    """Run one *.test.mjs file of this folder on a folder of vectors; its report is the failure's text."""
    found = shutil.which("node")
    version = subprocess.run([found, "--version"], capture_output=True, text=True).stdout.strip() if found else ""
    if tuple(int(part) for part in version.removeprefix("v").split(".")[:2] if part) < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        sentence = f"the JavaScript was not tested: Node {wanted} or newer is needed, found {version or 'none'}"
        if os.environ.get("CI"):
            pytest.fail(sentence)
        pytest.skip(sentence)

    def run(test: str, vectors: Path) -> None:
        command = [found, "--no-warnings", "--test", "--test-reporter=tap", str(Path(__file__).parent / test)]
        done = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "VECTORS": str(vectors)}, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "\n# pass 0\n" not in done.stdout, done.stdout

    return run


@pytest.fixture
def damaged():
    """(where, what stands there instead, a word of the sentence) of states that must be refused."""
    return json.loads((Path(__file__).parent / "damaged_states.json").read_text())
