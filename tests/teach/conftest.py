"""The made-up session's pages, written once, and a page to open them in."""

import pytest

from attnlab.bench import _lab
from attnlab.teach import kit
from tests.teach.made_up import SESSION

PROJECTOR = {"width": 1920, "height": 1080}


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The kit of the made-up session."""
    folder = tmp_path_factory.mktemp("kit")
    written = list(kit.write(folder, SESSION))
    assert [path for path, why in written if not why and not path.is_file()] == []
    return folder


@pytest.fixture
def open_kit(browser, folder):
    """Open a file of the kit from the disk; what the page complains of, or asks of another machine, fails the test."""
    opened = []

    def open_kit(name: str, fragment: str = "", **options):
        context = browser.new_context(**{"viewport": PROJECTOR, "bypass_csp": True} | options)  # waiting evaluates text
        page = context.new_page()
        asked: list[str] = []
        context.on("request", lambda request: asked.append(request.url))
        opened.append((context, _lab.watch(context), asked))
        page.goto((folder / name).as_uri() + fragment)
        return page

    yield open_kit
    for context, seen, asked in opened:
        context.close()
        assert seen == []
        assert {url.split(":")[0] for url in asked} <= {"file", "data", "blob", "about"}
        assert len({url for url in asked if url.startswith("file")}) == 1
