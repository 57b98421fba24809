"""A JupyterLab of its own and the Chromium that looks at it, for `attnlab bench panels` and for the browser tests.

Both are started and ended here: a free port, no token, settings that are nobody's, and no way to any other machine.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from attnlab.backend import Unavailable

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

__all__ = ["SETTINGS", "Lab", "chromium", "chromium_path", "jupyterlab", "strips", "watch"]

PACKAGE = Path(__file__).resolve().parents[1]
SETTINGS = PACKAGE / "lab_settings"  # what `attnlab lab` starts with
FLAGS = (
    *(
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--disable-background-networking",
        "--no-proxy-server",
    ),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",  # no other machine has an address
)
OUTSIDE = re.compile(r"^(?!https?://(127\.0\.0\.1|localhost)(:\d+)?(/|$)|(file|data|blob|about):)")
ISOLATED = (
    "JUPYTER_CONFIG_DIR",
    "JUPYTER_DATA_DIR",
    "JUPYTER_RUNTIME_DIR",
    "JUPYTERLAB_SETTINGS_DIR",
    "JUPYTERLAB_WORKSPACES_DIR",
    "IPYTHONDIR",
)
IDLE = "window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
PATIENCE_S = 60


def chromium_path() -> str:
    """The Chromium of this machine. Raises backend.Unavailable where there is none."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        raise Unavailable("no Chromium on this machine, so no page was looked at (Debian: apt-get install chromium)")
    return path


@contextmanager
def chromium() -> Iterator["Browser"]:
    """A headless Chromium with scrollbars, as people have them. Raises backend.Unavailable where there is none."""
    path = chromium_path()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=list(FLAGS), ignore_default_args=["--hide-scrollbars"]
        )
        try:
            yield browser
        finally:
            browser.close()


def watch(context: "BrowserContext") -> list[str]:
    """A list that grows with what goes wrong in the context's pages: console errors, exceptions that nobody caught, and
    requests to other machines, which are refused.
    """
    complaints: list[str] = []

    def refuse(route):
        complaints.append(f"asked for {route.request.url}")
        route.abort()

    context.route(OUTSIDE, refuse)
    context.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    context.on("weberror", lambda error: complaints.append(str(error.error)))
    return complaints


def strips(page: "Page") -> list[str]:
    """What the error strips of the page's panels say."""
    return page.locator(".attnlab .al-error:visible").all_inner_texts()


class Lab:
    """A running JupyterLab: its address, and the folder that holds its notebooks."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder

    def open(self, page: "Page", name: str, *cells: str, run: bool = True) -> "Page":
        """The page with a new notebook of these cells, its kernel idle, and all cells asked to run."""
        notebook = {
            "cells": [
                {
                    "cell_type": "code",
                    "id": f"cell-{number}",
                    "metadata": {},
                    "execution_count": None,
                    "outputs": [],
                    "source": source,
                }
                for number, source in enumerate(cells)
            ],
            "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        (self.folder / name).write_text(json.dumps(notebook), encoding="utf-8")
        page.goto(f"{self.url}/lab/tree/{name}?reset")
        page.wait_for_function(IDLE, timeout=1000 * PATIENCE_S)
        if run:
            page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
        return page

    @staticmethod
    def cells(page: "Page") -> list[list[str]]:
        """Type and source of every cell, as the open notebook holds them."""
        model = "window.jupyterapp.shell.currentWidget.content.model.toJSON()"
        return [[cell["cell_type"], cell["source"]] for cell in page.evaluate(f"() => {model}")["cells"]]

    @staticmethod
    def run(page: "Page", source: str) -> str:
        """What the kernel prints for `source`, run beside the notebook's cells; a traceback counts as printed."""
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


@contextmanager
def jupyterlab(settings: Path | None = SETTINGS) -> Iterator[Lab]:
    """A JupyterLab with these settings, by default those of `attnlab lab`; None starts it as it comes, but for the
    question about news.

    Raises RuntimeError with the end of its log if it does not answer.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:  # a kernel may write while it ends
        folder, home = Path(name) / "notebooks", Path(name) / "home"
        folder.mkdir()
        home.mkdir()
        places = {variable: str(home / variable.lower()) for variable in ISOLATED}
        if settings is None:
            _answer_the_question_about_news(Path(places["JUPYTERLAB_SETTINGS_DIR"]))
        log = home / "log.txt"
        port = _free_port()
        with log.open("w") as sink:
            server = subprocess.Popen(
                _command(port, folder, settings),
                env={**os.environ, **places, "PYTHONPATH": _search_path()},
                cwd=folder,
                stdout=sink,
                stderr=sink,
            )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_for(f"{url}/api/status", server, log)
            yield Lab(url, folder)
        finally:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _command(port: int, folder: Path, settings: Path | None) -> list[str]:
    return [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"),
        "--expose-app-in-browser",  # as window.jupyterapp
        *("--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0"),
        *(f"--ServerApp.root_dir={folder}", "--IdentityProvider.token="),
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        *([] if settings is None else [f"--LabApp.app_settings_dir={settings}"]),
    ]


def _answer_the_question_about_news(settings: Path) -> None:
    """Else Lab asks it over the page."""
    answer = settings / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    answer.parent.mkdir(parents=True)
    answer.write_text('{"fetchNews": "false"}')


def _search_path() -> str:
    """Where kernels look for packages first: a checkout need not be installed."""
    checkout = PACKAGE.parent
    ours = [checkout, checkout / "kernels"] if (checkout / "pyproject.toml").is_file() else []
    return os.pathsep.join([*map(str, ours), os.environ.get("PYTHONPATH", "")])


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _wait_for(url: str, server: subprocess.Popen, log: Path) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if server.poll() is not None:
            raise RuntimeError(f"JupyterLab ended at once with status {server.returncode}: {log.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                json.load(answer)
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not answer within {PATIENCE_S} s: {log.read_text()[-2000:]}")
