"""A real JupyterLab for all browser tests, and a page for each, in the Chromium that tests/conftest.py starts.

A test says with `complaints.expect` what it provokes; any other complaint of a page fails it.
"""

import pytest

from attnlab.bench import _lab
from tests.browser.panel_on_page import CLIPBOARD

PROJECTOR = {"width": 1400, "height": 1000}


@pytest.fixture(scope="session")
def lab(browser):
    """A JupyterLab as `attnlab lab` starts it."""
    with _lab.jupyterlab() as running:
        yield running


class Complaints:
    """What went wrong in the pages of a test: console errors, exceptions, error strips, requests that left here."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.expected: list[str] = []

    def expect(self, part: str) -> None:
        """A complaint with these words is meant, and missed if it does not come."""
        self.expected.append(part)

    def surprises(self) -> list[str]:
        """What came and was not expected, and what was expected and did not come."""
        unmeant = [text for text in self.seen if not any(part in text for part in self.expected)]
        missed = [f"missed: {part}" for part in self.expected if not any(part in text for text in self.seen)]
        return unmeant + missed


@pytest.fixture
def complaints():
    """What the pages of this test complain of; in the end it has to be what was expected."""
    complaints = Complaints()
    yield complaints
    assert complaints.surprises() == []


@pytest.fixture
def open_page(browser, complaints):
    """Open a page with these options of a browser context; nothing outside this machine answers it."""
    opened = []

    def open_page(**options):
        context = browser.new_context(**{"viewport": PROJECTOR} | options)
        opened.append((context, _lab.watch(context)))
        return context.new_page()

    yield open_page
    for context, seen in opened:
        complaints.seen += [text for page in context.pages for text in _lab.strips(page)]
        context.close()
        complaints.seen += seen


@pytest.fixture
def page(open_page):
    """A fresh page of the size of a projector."""
    return open_page()


@pytest.fixture(scope="module")
def kept_page(browser):
    """A page for the tests of one file, and what it complains of."""
    context = browser.new_context(bypass_csp=True)  # playwright's own waiting evaluates text, which our pages forbid
    context.add_init_script(CLIPBOARD)
    yield context.new_page(), _lab.watch(context)
    context.close()


@pytest.fixture
def same_page(kept_page, complaints):
    """The page of this file, empty and as large as a projector: what the last test made of it is gone."""
    page, seen = kept_page
    page.mouse.move(0, 0)  # nothing that comes is pointed at
    page.goto("about:blank")
    page.set_viewport_size(PROJECTOR)
    page.emulate_media(media="null", color_scheme="light", reduced_motion="no-preference", forced_colors="none")
    seen.clear()
    yield page
    complaints.seen += [*seen, *_lab.strips(page)]
