"""What the group concludes, claim by claim: an HTML form that saves and reads Markdown, and the same as plain Markdown.

What attnlab found stands in the form hidden, until it is asked for; in the Markdown it does not stand at all. Both have
the claims in the order of claims.py, which does not tell who says one, and write the same text: `markdown` is what the
empty form saves.
"""

import json
from html import escape
from pathlib import Path

from attnlab.claim import Claim
from attnlab.teach import pages, text
from attnlab.teach.session import Session

__all__ = ["ABOUT", "CHOICES", "QUESTIONS", "markdown", "page", "write"]

ABOUT = ("Date", "Group", "Led by")
QUESTIONS = ("Was the evidence convincing, and why?", "What would change our mind?", "Open questions")
CHOICES = ("holds", "holds with conditions", "fails", "cannot tell")


def page(session: Session) -> str:
    """The form as the text of an HTML file."""
    given = {
        "title": _title(session),
        "help": _help(session),
        "file": f"{session.paper}-record.md",
        "key": f"attnlab-record-{session.paper}",
        "about": ABOUT,
        "questions": QUESTIONS,
        "choices": CHOICES,
        "claims": [{"id": claim.id, "says": _line(claim.says), "source": claim.source} for claim in session.claims],
    }
    parts = {
        "title": escape(text.plain(_title(session)), quote=False),
        "heading": text.inline(_title(session)),
        "about": "\n".join(_field(name) for name in ABOUT),
        "questions": "\n".join(_area(f"question-{n}", words) for n, words in enumerate(QUESTIONS)),
        "claims": "\n".join(map(_claim, session.claims)),
        "given": json.dumps(given, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"),
    }
    return pages.fill("record.html", parts)


def markdown(session: Session) -> str:
    """The empty record, to be filled in with an editor."""
    lines = [f"# {_title(session)}", _help(session), "\n".join(f"- {name}: " for name in ABOUT)]
    for words in QUESTIONS:
        lines += [f"## {words}", ""]
    lines += ["## The claims"]
    for claim in session.claims:
        believed = " ".join(f"[ ] {choice}" for choice in CHOICES)
        lines += [
            f"### {claim.id}",
            f"> {_line(claim.says)}",
            f"{claim.source}.",
            f"We believe: {believed}",
            "Reason: ",
        ]
    return "\n\n".join(lines) + "\n"


def write(path: str | Path, session: Session, *, force: bool = False) -> Path:
    """Write the form, or the Markdown where the name ends in .md. Raises as `pages.write`."""
    plain = pages.ending(path, (".html", ".md")) == ".md"
    return pages.write(path, markdown(session) if plain else page(session), force=force)


def _title(session: Session) -> str:
    return f"What we believe: {_line(session.title)}, arXiv:{session.arxiv}"


def _help(session: Session) -> str:
    return f"Put an x into one pair of brackets for each claim. What attnlab found: `attnlab verify {session.paper}`."


def _claim(claim: Claim) -> str:
    name = escape(claim.id)
    choices = "\n".join(
        f'<label><input type="radio" name="{name}" value="{choice}"> {choice}</label>' for choice in CHOICES
    )
    return (
        f'<fieldset data-claim="{name}">\n<legend><code>{name}</code></legend>\n'
        f"<p>{escape(claim.says, quote=False)}</p>\n"
        f'<p class="source">{escape(claim.source, quote=False)}</p>\n'
        f'<div class="choices">{choices}</div>\n{_area(f"reason-{name}", "Reason")}\n'
        f"<details><summary>Show what attnlab found</summary><p><b>{claim.recorded}</b>, evidence: {claim.evidence}</p>"
        "</details>\n</fieldset>"
    )


def _field(name: str) -> str:
    return f'<label>{name} <input type="text" name="{name}" autocomplete="off"></label>'


def _area(name: str, words: str) -> str:
    return f'<label class="area">{escape(words)}<textarea name="{name}" rows="2"></textarea></label>'


def _line(words: str) -> str:
    return " ".join(words.split())
