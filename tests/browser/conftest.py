"""A real JupyterLab for all browser tests, and a page for each, in the Chromium that tests/conftest.py starts.

A test says with `complaints.expect` what it provokes; any other complaint of a page fails it.
"""

import pytest

from attnlab.bench import _lab


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
    return Complaints()


@pytest.fixture
def open_page(browser, complaints):
    """Open a page with these options of a browser context; nothing outside this machine answers it."""
    opened = []

    def open_page(**options):
        context = browser.new_context(**{"viewport": {"width": 1400, "height": 1000}} | options)
        opened.append((context, _lab.watch(context)))
        return context.new_page()

    yield open_page
    for context, seen in opened:
        complaints.seen += [text for page in context.pages for text in _lab.strips(page)]
        context.close()
        complaints.seen += seen
    assert complaints.surprises() == []


@pytest.fixture
def page(open_page):
    """A fresh page of the size of a projector."""
    return open_page()
