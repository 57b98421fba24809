"""The handout: two pages, and a sentence where nothing can print it."""

import re
import sys
from dataclasses import replace

import pytest

from attnlab import backend
from attnlab.bench import _lab
from attnlab.teach import handout
from tests.teach.made_up import SESSION


def test_the_handout_has_its_sections_the_counts_and_the_questions():
    html = handout.page(SESSION)
    headings = re.findall("<h2>(.*?)</h2>", html)
    sections = [heading for heading, _ in SESSION.handout]
    assert headings == [*sections, "What was checked", "Five questions", "Where to run what"]
    own = [str(claim.recorded) for claim in SESSION.claims if claim.source.startswith("paper")]
    numbers = [int(number) for number in re.findall("<b>([0-9]+)</b>", html)]
    assert numbers == [own.count(verdict) for verdict in ("HOLDS", "CONDITIONAL", "REFUTED")]
    assert f"Of {len(own)} sentences of the paper that were checked: " in html
    assert f"Beside them {len(SESSION.claims) - len(own)} of the reader" in html
    assert html.count('<span class="place">') == 5
    assert "attnlab verify race" in html


def test_a_section_of_the_session_may_say_where_to_run_what():
    own = replace(SESSION, handout=(*SESSION.handout, (handout.WHERE, "In `a`.")))
    assert handout.page(own).count(f"<h2>{handout.WHERE}</h2>") == 1


def test_without_chromium_a_sentence_says_so(tmp_path, monkeypatch):
    def absent():
        raise backend.Unavailable("no Chromium on this machine")

    monkeypatch.setattr(_lab, "chromium_path", absent)
    with pytest.raises(backend.Unavailable, match="no Chromium on this machine"):
        handout.write(tmp_path / "out.pdf", SESSION)
    assert list(tmp_path.iterdir()) == []
    assert handout.write(tmp_path / "out.html", SESSION).is_file()


def test_a_browser_that_prints_nothing_is_named(monkeypatch):
    monkeypatch.setattr(_lab, "chromium_path", lambda: sys.executable)  # knows none of these options
    with pytest.raises(backend.Unavailable, match="printed nothing: "):
        handout.pdf(SESSION)


def test_pages_are_counted_as_the_printer_makes_them(browser):
    page = browser.new_page()
    for count in (1, 2, 3):
        page.set_content("<p style='break-after: page'>x</p>" * (count - 1) + "<p>x</p>")
        assert handout.sheets_of(page.pdf()) == count
    page.close()


@pytest.mark.browser
def test_the_printed_handout_is_ours_and_is_replaced(folder, tmp_path):
    document = (folder / "handout.pdf").read_bytes()
    assert document.startswith(b"%PDF")
    assert handout.sheets_of(document) == handout.PAGES
    (tmp_path / "out.pdf").write_bytes(document)
    handout.pages.write(tmp_path / "out.pdf", b"%PDF attnlab: again")
    (tmp_path / "out.pdf").write_bytes(b"%PDF another's")
    with pytest.raises(FileExistsError):
        handout.pages.write(tmp_path / "out.pdf", document)
