"""Node for the unit tests of the JavaScript, and the damaged states that both sides must refuse."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def node(node_missing):
    """Run one *.test.mjs file of this folder on a folder of vectors; its report is the failure's text."""
    if node_missing:
        pytest.fail(node_missing)

    def run(test: str, vectors: Path) -> None:
        command = [shutil.which("node"), "--no-warnings", "--test", "--test-reporter=tap", str(HERE / test)]
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
