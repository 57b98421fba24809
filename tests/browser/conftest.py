"""A real JupyterLab in the Chromium that tests/conftest.py starts, one of each for all browser tests."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def page(browser):
    """A fresh page of the size of a projector; what it logs as an error fails the test at its end."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    page = context.new_page()
    errors = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert errors == []


class Lab:
    """A running JupyterLab: `open` puts a notebook of these cells into it and runs them all."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder

    def open(self, page, name: str, *cells: str):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, self.folder / name)
        page.goto(f"{self.url}/lab/tree/{name}?reset")
        page.wait_for_function(
            "window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'", timeout=60_000
        )
        page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
        return page

    @staticmethod
    def cells(page) -> list[list[str]]:
        """Type and source of every cell, as the open notebook holds them."""
        model = "window.jupyterapp.shell.currentWidget.content.model.toJSON()"
        return [[cell["cell_type"], cell["source"]] for cell in page.evaluate(f"() => {model}")["cells"]]

    @staticmethod
    def run(page, source: str) -> str:
        """What the kernel prints for `source`, run beside the notebook's cells."""
        return page.evaluate(
            """async (code) => {
                const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
                const future = kernel.requestExecute({ code, store_history: false });
                let printed = "";
                future.onIOPub = ({ content }) => { printed += content.text ?? content.traceback?.join("\\n") ?? ""; };
                await future.done;
                return printed;
            }""",
            source,
        ).strip()


@pytest.fixture(scope="session")
def lab(browser, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    home = tmp_path_factory.mktemp("jupyter")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = (
        "JUPYTER_CONFIG_DIR",
        "JUPYTER_DATA_DIR",
        "JUPYTER_RUNTIME_DIR",
        "JUPYTERLAB_SETTINGS_DIR",
        "JUPYTERLAB_WORKSPACES_DIR",
        "IPYTHONDIR",
    )
    isolated = {name: str(home / name.lower()) for name in places}
    search = os.pathsep.join([str(ROOT), str(ROOT / "kernels"), os.environ.get("PYTHONPATH", "")])
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser"),
        *(
            "--ServerApp.ip=127.0.0.1",
            f"--ServerApp.port={port}",
            "--ServerApp.port_retries=0",
            f"--ServerApp.root_dir={folder}",
        ),
        *("--IdentityProvider.token=", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"),
    ]
    news = (
        Path(isolated["JUPYTERLAB_SETTINGS_DIR"])
        / "@jupyterlab"
        / "apputils-extension"
        / "notification.jupyterlab-settings"
    )
    news.parent.mkdir(parents=True)
    news.write_text('{"fetchNews": "false"}')  # else Lab asks about it over the page
    log = home / "log.txt"
    with log.open("w") as sink:
        server = subprocess.Popen(
            command, env={**os.environ, **isolated, "PYTHONPATH": search}, stdout=sink, stderr=sink, cwd=folder
        )
    try:
        _wait_for(f"http://127.0.0.1:{port}/api/status", server, log)
        yield Lab(f"http://127.0.0.1:{port}", folder)
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait_for(url: str, server: subprocess.Popen, log: Path, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if server.poll() is not None:
            raise RuntimeError(f"JupyterLab ended at once with status {server.returncode}: {log.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                json.load(answer)
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not answer within {seconds:g} s: {log.read_text()[-2000:]}")
