"""Take the README's picture of the running lab again: python docs/lab_picture.py, with Chromium and the extra `all`."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from playwright.sync_api import sync_playwright

PORT = 8896
OUT = Path(__file__).parent / "_static" / "lab.png"
LAB = f"http://127.0.0.1:{PORT}"
OPTIONS = [
    f"--port={PORT}",
    "--ServerApp.port_retries=0",
    "--no-browser",
    "--IdentityProvider.token=",
    "--expose-app-in-browser",
]
IDLE = "window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"


def main() -> None:
    fresh = {name: tempfile.mkdtemp() for name in ("JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR")}
    server = subprocess.Popen([sys.executable, "-m", "attnlab.cli", "lab", *OPTIONS], env=os.environ | fresh)
    try:
        wait_for_server()
        with sync_playwright() as playwright:
            chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = chromium.new_page(viewport={"width": 1360, "height": 1080})
            page.goto(f"{LAB}/lab/tree/00_start_here.ipynb?reset")
            page.wait_for_function(IDLE, timeout=60_000)
            page.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area')")
            page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
            page.get_by_role("button", name="Verify").first.wait_for(timeout=60_000)
            page.wait_for_function(IDLE)
            page.locator(".jp-OutputArea canvas").first.scroll_into_view_if_needed()
            page.evaluate("() => document.querySelector('.jp-OutputArea').scrollIntoView()")
            page.wait_for_timeout(3000)
            page.screenshot(path=OUT)
            chromium.close()
    finally:
        server.terminate()


def wait_for_server() -> None:
    for _ in range(120):
        try:
            urllib.request.urlopen(f"{LAB}/api/status", timeout=1)
            return
        except OSError:
            time.sleep(0.5)
    raise TimeoutError(f"JupyterLab did not answer on {LAB}")


if __name__ == "__main__":
    main()
