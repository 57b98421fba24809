"""What the tests need of the machine beside Python packages: Chromium for pages, Node for the panels' JavaScript.

Where one is missing its tests are left out and the summary says so in one line; where the environment says CI they
fail. Two more things are a matter of the run and left out everywhere: a GPU, and Triton's interpreter, which cannot
share a process with its compiler. With TRITON_INTERPRET=1 the tests marked `interpreted` run and no others.
"""

import importlib.util
import os
import shutil
import socket
import subprocess

import pytest

from attnlab import models
from attnlab.backend import Unavailable, interpreting
from attnlab.bench import _lab

NODE = shutil.which("node")
OLDEST_NODE = (20, 19)  # the first Node that takes a plain .js file with import lines for a module
INTERPRETING = interpreting()
LEFT_OUT = pytest.StashKey[list[str]]()


def no_browser() -> str:
    """Why no page can be looked at, or nothing."""
    try:
        _lab.chromium_path()
        return ""
    except Unavailable as why:
        return str(why)


def no_node() -> str:
    """Why no JavaScript can be tested, or nothing."""
    version = subprocess.run([NODE, "--version"], capture_output=True, text=True).stdout.strip() if NODE else ""
    if tuple(int(part) for part in version.removeprefix("v").split(".")[:2] if part) >= OLDEST_NODE:
        return ""
    wanted = ".".join(map(str, OLDEST_NODE))
    return f"Node {wanted} or newer is needed for the JavaScript, found {version or 'none'}"


def no_gpu() -> str:
    """Why no kernel can run on a GPU, or nothing."""
    if importlib.util.find_spec("torch") is None:
        return "the package torch is not installed"
    import torch

    return "" if torch.cuda.is_available() else "torch sees no GPU on this machine"


def other_run(item) -> bool:
    """Whether a test belongs to the run with the interpreter, and this is the run without it; or the other way."""
    return bool(item.get_closest_marker("interpreted")) is not INTERPRETING


NEEDS = {"browser": no_browser, "node": no_node}  # a fixture, and why it cannot be had
OTHER_RUN = (
    "they run without TRITON_INTERPRET"
    if INTERPRETING
    else "they interpret kernels, which `make test` does in a run of its own (TRITON_INTERPRET=1 pytest tests/kernels)"
)


def pytest_itemcollected(item):
    if "browser" in item.fixturenames:
        item.add_marker(pytest.mark.browser)


@pytest.hookimpl(trylast=True)  # after -m and -k have taken theirs
def pytest_collection_modifyitems(config, items):
    config.stash[LEFT_OUT] = []

    def leave_out(these, why):
        left_out = [item for item in items if these(item)]
        if left_out and (reason := why()):
            config.stash[LEFT_OUT].append(f"{len(left_out)} tests left out: {reason}")
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if not these(item)]

    leave_out(other_run, lambda: OTHER_RUN)
    leave_out(lambda item: item.get_closest_marker("gpu"), no_gpu)
    if not os.environ.get("CI"):
        for fixture, why in NEEDS.items():
            leave_out(lambda item, fixture=fixture: fixture in item.fixturenames, why)
    # An open browser leaves an event loop running in this thread, and a panel that sees one answers later.
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)


def pytest_terminal_summary(terminalreporter, config):
    for line in config.stash.get(LEFT_OUT, []):
        terminalreporter.write_line(line, yellow=True)


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium for the whole run."""
    if why := no_browser():
        pytest.fail(why)
    with _lab.chromium() as chromium:
        yield chromium


@pytest.fixture(scope="session")
def node_missing():
    """Why no JavaScript can be tested here, or nothing."""
    return no_node()


@pytest.fixture(scope="session")
def cache_home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)  # 540 MB


@pytest.fixture(scope="session")
def language_model(cache_home):
    """SmolLM2, read once from its file, kept in a cache folder of this test run, with every connection refused."""

    def refuse(*_args, **_kwargs):
        raise AssertionError("the language model must load without a network")

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache_home))
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        try:
            return models.load()
        except models.ModelMissing as why:
            if os.environ.get("CI") == "true":
                raise
            pytest.skip(str(why))
