"""Two printed pages for each participant, as an HTML file, and as PDF where a Chromium is found."""

import re
import subprocess
import tempfile
from collections import Counter
from html import escape
from pathlib import Path

from attnlab import progress
from attnlab.backend import Unavailable
from attnlab.bench import _lab
from attnlab.claim import SAID_BY, Verdict
from attnlab.teach import pages, text
from attnlab.teach.session import Session

__all__ = ["PAGES", "page", "pdf", "sheets_of", "write"]

PAGES = 2
PATIENCE_S = 60
WHERE = "Where to run what"
SAID = {Verdict.HOLDS: "true", Verdict.CONDITIONAL: "true under a condition", Verdict.REFUTED: "refuted"}


def page(session: Session) -> str:
    """The handout as the text of an HTML file."""
    sections = [f"<h2>{text.inline(heading)}</h2>\n{text.block(words)}" for heading, words in session.handout]
    parts = {
        "title": f"{pages.MARKS['.pdf']}handout on {session.paper}, arXiv:{escape(session.arxiv)}",
        "heading": text.inline(session.title),
        "arxiv": escape(session.arxiv),
        "question": text.inline(session.question),
        "short": text.block(session.short),
        "sections": "\n".join(f"<section>\n{section}\n</section>" for section in sections),
        "counts": _counts(session),
        "questions": "\n".join(
            f'<li>{text.inline(one.ask)} <span class="place">{text.inline(one.place)}</span></li>'
            for one in session.preread
        ),
        "where": _where(session),
    }
    return pages.fill("handout.html", parts)


def pdf(session: Session) -> bytes:
    """The handout as PDF. Raises backend.Unavailable where there is no Chromium, or where it prints nothing."""
    chromium = _lab.chromium_path()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        file, printed = folder / "handout.html", folder / "handout.pdf"
        file.write_text(page(session), encoding="utf-8", newline="\n")
        quiet = ("--headless", "--no-pdf-header-footer", f"--user-data-dir={folder / 'profile'}", *_lab.FLAGS)
        command = [chromium, *quiet, f"--print-to-pdf={printed}", file.as_uri()]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"{chromium} printed nothing within {PATIENCE_S} s") from error
        if not printed.is_file():
            raise Unavailable(f"{chromium} printed nothing: {done.stderr.strip()[-300:]}")
        document = printed.read_bytes()
    if (found := sheets_of(document)) != PAGES:
        progress.say(f"the handout has {found} pages with this machine's fonts, not {PAGES}")
    return document


def sheets_of(document: bytes) -> int:
    """How many pages a PDF that Chromium wrote has."""
    return len(re.findall(rb"/Type\s*/Page\b(?!s)", document))


def write(path: str | Path, session: Session, *, force: bool = False) -> Path:
    """Write the handout, as PDF where the name ends in .pdf. Raises as `pages.write` and `pdf`."""
    printed = pages.ending(path, (".html", ".pdf")) == ".pdf"
    return pages.write(path, pdf(session) if printed else page(session), force=force)


def _counts(session: Session) -> str:
    """Verdicts on the paper's own sentences; those that the reader and this project wrote down stand beside them."""
    own = [claim for claim in session.claims if claim.said_by == SAID_BY["paper"]]
    counts = Counter(claim.recorded for claim in own)
    counted = ", ".join(f"<b>{counts[verdict]}</b> {words}" for verdict, words in SAID.items() if counts[verdict])
    others = len(session.claims) - len(own)
    return (
        f"<p>Of {len(own)} sentences of the paper that were checked: {counted}. Beside them {others} of the reader's, "
        "of this project's, or natural guesses written down to be denied: the evidence sheet has them all.</p>"
    )


def _where(session: Session) -> str:
    """Where to run what, unless a section of the session says it."""
    if any(heading == WHERE for heading, _ in session.handout):
        return ""
    paper = session.paper
    return f"<h2>{WHERE}</h2>\n" + text.block(
        f"- The panel: `attnlab export {paper} panel.html`, or `notebooks/{session.notebook}`.\n"
        f"- The claims: `attnlab verify {paper}`, or `notebooks/{session.checked.partition(': ')[0]}`.\n"
        f"- The exercises: `attnlab exercises {paper}`.\n"
        f"- This kit: `attnlab kit {paper} FOLDER`."
    )
