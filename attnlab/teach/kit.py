"""Everything for a session in one folder: slides, handout, plan, sheets, record and the panel."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from attnlab.backend import Unavailable
from attnlab.panels import export
from attnlab.teach import handout, pages, record, sheets, slides
from attnlab.teach.session import Session
from attnlab.teach.text import plain

__all__ = ["write"]

RECORD = "record.md"


def write(folder: str | Path, session: Session, *, force: bool = False) -> Iterator[tuple[Path, str]]:
    """Write the kit's files into a folder, which is made where it is missing; yields each path and, where a file was
    not written, why.

    A record.md that somebody has filled in stays, also with `force`. Raises FileExistsError, before anything is
    written, for another file of these names that attnlab did not write or that was changed, unless `force`; OSError
    where none can be written.
    """
    folder = Path(folder).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    files = _files(session)
    for name in files:
        if name != RECORD and not force:
            pages.check(folder / name)
    for name, make in files.items():
        path = folder / name
        if name == RECORD and path.is_file() and not pages.ours(path):
            yield path, "it has been filled in, and stays as it is"
            continue
        try:
            yield pages.write(path, make(), force=force), ""
        except Unavailable as why:
            yield path, str(why)


def _files(session: Session) -> dict[str, Callable[[], str | bytes]]:
    files: dict[str, Callable[[], str | bytes]] = {
        "slides.html": lambda: slides.page(session),
        "handout.html": lambda: handout.page(session),
        "handout.pdf": lambda: handout.pdf(session),
    }
    for name, make in sheets.SHEETS.items():
        markdown = make(session)
        title = plain(markdown.split("\n", 1)[0].removeprefix("# "))
        files[f"{name}.html"] = partial(pages.document, title, markdown)
        files[f"{name}.md"] = partial(str, markdown)
    files["record.html"] = lambda: record.page(session)
    files[RECORD] = lambda: record.markdown(session)
    files["panel.html"] = lambda: export.page(session.paper)
    return files
