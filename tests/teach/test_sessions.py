"""Every session that there is: complete, true to the panels and the notebooks, and not too long."""

import re
from pathlib import Path

import pytest

from attnlab import panels
from attnlab.teach import handout, kit, session, sheets, text

ROOT = Path(__file__).parents[2]
PAPERS = session.papers()
SOURCE = re.compile(r"\bpp?\. ?\d|code|commit|docs/|notebook|this project", re.IGNORECASE)
WORDS = 90  # of a slide's body
BYTES = 1_500_000  # of a file of slides


@pytest.fixture(params=PAPERS)
def one(request):
    return session.of(request.param)


def headings(notebook: str) -> set[str]:
    """The headings of a notebook, as plain words."""
    source = (ROOT / "notebooks" / f"{notebook}.py").read_text(encoding="utf-8")
    return {text.plain(words) for words in re.findall(r"^# #+ (.*)$", source, re.MULTILINE)}


def words_of(markdown: str) -> int:
    """How many words a reader reads; a formula counts as one."""
    shorter = re.sub(r"\$\$.*?\$\$|\$[^$]*\$", "x", markdown, flags=re.DOTALL)
    return len(re.findall(r"[\w'’.,%-]*\w[\w'’.,%-]*", shorter))


def test_there_is_a_session_on_every_paper():
    assert PAPERS


def test_a_session_has_as_many_parts_as_it_should(one):
    main = [slide for slide in one.slides if not slide.backup]
    assert 10 <= len(main) <= 15
    assert len(one.slides) - len(main) >= 2
    assert len(one.preread) == 5
    assert 6 <= len(one.prompts) <= 8
    assert sum(step.minutes for step in one.hour) == 60
    assert sum(step.minutes for step in one.long) == 90
    assert re.fullmatch(r"\d{4}\.\d{5}v\d+", one.arxiv)
    assert any(slide.scenes for slide in main)
    assert one.arxiv in panels.spec(one.paper)["paper"]


def test_every_scene_is_a_state_of_the_panel(one):
    scenes = [scene for part in (*one.slides,) for scene in part.scenes] + [prompt.scene for prompt in one.prompts]
    for scene in scenes:
        assert one.link(scene).startswith(f"#{one.paper}&")
        assert scene.says.rstrip("*_ ")[-1] in ".?!:"
    views = panels.spec(one.paper)["views"]
    assert [name for part in (*one.slides, *one.prompts) for name in part.figures if name not in views] == []


def test_whatever_states_a_fact_says_where_it_is_from(one):
    parts = [*one.slides, *one.preread, *one.prompts]
    assert [part.place for part in parts if not SOURCE.search(part.place)] == []
    assert {slide.mark for slide in one.slides} <= set(session.MARKS)


def test_every_claim_is_shown_under_a_heading_that_is_there(one):
    known = {claim.id for claim in one.claims}
    assert set(one.shown) - known == set()
    for claim in one.claims:
        notebook, _, heading = sheets.shown(one, claim).partition(": ")
        assert text.plain(heading) in headings(notebook), claim.id


def test_a_slide_is_short(one):
    assert [(slide.title, words_of(slide.body)) for slide in one.slides if words_of(slide.body) > WORDS] == []


def test_every_text_can_be_set(one, tmp_path):
    written = dict(kit.write(tmp_path, one))
    pages = {path.name: path.read_text(encoding="utf-8") for path in written if path.suffix in (".html", ".md")}
    assert len(pages["slides.html"].encode()) < BYTES
    assert pages["slides.html"].count("<section ") == len(one.slides) + len(one.prompts) + 3
    assert {f"{name}{ending}" for name in sheets.SHEETS for ending in (".html", ".md")} <= pages.keys()
    for name, page in pages.items():
        if name.endswith(".html") and name != "record.html":
            left = re.sub(r"<(script|style|pre|code|math)\b.*?</\1>", "", page, flags=re.DOTALL)
            assert "$$" not in left, name


@pytest.mark.browser
def test_the_handout_has_two_pages(one, browser):
    assert handout.sheets_of(handout.pdf(one)) == handout.PAGES
