"""Everything for a session in one folder: slides, handout, plan, sheets, record and the panel."""

from collections.abc import Iterator
from pathlib import Path

from attnlab.backend import Unavailable
from attnlab.panels import export
from attnlab.teach import handout, pages, record, sheets, slides
from attnlab.teach.session import Session
from attnlab.teach.text import plain

__all__ = ["write"]


def write(folder: str | Path, session: Session, *, force: bool = False) -> Iterator[tuple[Path, str]]:
    """Write the kit's files into a folder, which is made where it is missing; yields each path and, where a file was
    not written, why.

    A record.md that somebody has filled in stays. Raises FileExistsError for another file of these names that attnlab
    did not write, unless `force`; OSError where none can be written.
    """
    folder = Path(folder).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    yield slides.write(folder / "slides.html", session, force=force), ""
    yield handout.write(folder / "handout.html", session, force=force), ""
    try:
        yield handout.write(folder / "handout.pdf", session, force=force), ""
    except Unavailable as why:
        yield folder / "handout.pdf", str(why)
    for name, make in sheets.SHEETS.items():
        markdown = make(session)
        title = plain(markdown.split("\n", 1)[0].removeprefix("# "))
        yield pages.write(folder / f"{name}.html", pages.document(title, markdown), force=force), ""
        yield pages.write(folder / f"{name}.md", f"{pages.MARKS['.md']}\n\n{markdown}", force=force), ""
    yield record.write(folder / "record.html", session, force=force), ""
    empty, filled = record.markdown(session), folder / "record.md"
    if filled.is_file() and filled.read_text(encoding="utf-8") != empty and not force:
        yield filled, "it has been filled in, and stays as it is"
    else:
        yield pages.write(filled, empty, force=True), ""
    yield export.write(folder / "panel.html", session.paper, force=force), ""
