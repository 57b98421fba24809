"""Node for the unit tests of the JavaScript, and the damaged states that both sides must refuse."""

import base64
import json
import os
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest

from attnlab import panels
from tests.panels.vectors import coded

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


@pytest.fixture
def compare(node, tmp_path):
    """Hold a panel's JavaScript to its view.py for these params: runs MECHANISM.test.mjs (see vectors.mjs)."""

    def compare(mechanism: str, settings: list) -> None:
        view = panels.view(mechanism)
        cases = []
        for params in settings:
            data = view.data(params)
            if data is not None:
                data = {name: base64.b64encode(x).decode() if isinstance(x, bytes) else x for name, x in data.items()}
            views = {name: {"shape": x.shape, "bytes": coded(x)} for name, x in view.compute(params).items()}
            cases.append({"dials": asdict(params), "data": data, "tokens": params.inputs().tokens, "views": views})
        (tmp_path / f"{mechanism}.json").write_text(json.dumps({"spec": panels.spec(mechanism), "cases": cases}))
        node(f"{mechanism}.test.mjs", tmp_path)

    return compare
