"""A session's slides as one HTML file: live panels in them, notes in a second window, nothing asked of a network.

The panel's module is in the file once, and so is what a real head brings. Where no script runs, and on paper, each
slide shows a still of its first scene and the sentences of all of them.
"""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from attnlab import panels
from attnlab.panels import export
from attnlab.panels import still as stills
from attnlab.teach import pages, text
from attnlab.teach.session import MARKS, Prompt, Scene, Session, Slide

__all__ = ["page", "write"]

PICTURES = 4  # of a still: what one row of a sheet holds


def page(session: Session) -> str:
    """The slides as the text of an HTML file.

    Raises ValueError for a setting that the panel does not have, or a formula with an unknown command.
    """
    leaves, kept = [*_leaves(session)], _Windows()
    kept.read(session, [scene for leaf in leaves for scene in leaf.scenes])
    sections = [_section(session, leaf, number) for number, leaf in enumerate(leaves, 1)]
    given = {
        "paper": session.paper,
        "dials": [dial["name"] for dial in panels.spec(session.paper)["dials"]],
        "slides": [_given(session, leaf, kept) for leaf in leaves],
        "data": kept.windows,
    }
    parts = {
        "title": escape(text.plain(session.title), quote=False),
        "slides": "\n".join(sections),
        "given": json.dumps(given, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"),
        "module": panels.source(session.paper).rstrip(),
        "deck": (pages.FOLDER / "slides.js").read_text(encoding="utf-8").rstrip(),
    }
    return pages.fill("slides.html", parts)


def write(path: str | Path, session: Session, *, force: bool = False) -> Path:
    """Write the slides and return their path. Raises as `page`; FileExistsError and OSError as `panels.export`."""
    pages.ending(path, (".html",))
    return pages.write(path, page(session), force=force)


@dataclass(frozen=True)
class _Leaf:
    """One slide of the file, those that the session makes by itself among them. All texts but `html` are Markdown."""

    id: str
    title: str
    html: str
    notes: str
    place: str = ""
    mark: str = ""
    scenes: tuple[Scene, ...] = ()
    figures: tuple[str, ...] = ()
    kind: str = ""  # a class of the section


WHOSE = (
    "Below each slide stands whose it is: the paper's, the reader's, who wrote the notes that this project began from, "
    "or this project's."
)


def _leaves(session: Session) -> Iterator[_Leaf]:
    """Title, slides, prompts, and behind a divider the backup."""
    yield _Leaf(
        "title",
        session.title,
        f'<p class="question">{text.inline(session.question)}</p>\n'
        f'<p class="source">arXiv:{escape(session.arxiv)}</p>\n<p class="source">{WHOSE}</p>',
        f"{session.question}\n\nThe version of the paper is arXiv:{session.arxiv}.",
        kind="title",
    )
    for slide in session.slides:
        if not slide.backup:
            yield _leaf(slide)
    if session.prompts:
        links = "\n".join(
            f'<li><a href="#prompt-{number}">{text.inline(prompt.ask)}</a></li>'
            for number, prompt in enumerate(session.prompts, 1)
        )
        notes = "Choose one. Each opens the panel in the state that it is about."
        html = f'<ol class="prompts">\n{links}\n</ol>'
        yield _Leaf("prompts", "What do you think?", html, notes, mark="project", kind="asking")
    for number, prompt in enumerate(session.prompts, 1):
        yield _asked(prompt, number)
    backup = [slide for slide in session.slides if slide.backup]
    if backup:
        titles = "\n".join(f"<li>{text.inline(slide.title)}</li>" for slide in backup)
        yield _Leaf(
            "backup", "Backup", f"<ul>\n{titles}\n</ul>", "What follows is shown when it is asked for.", kind="divider"
        )
    for slide in backup:
        yield _leaf(slide, "backup")


def _leaf(slide: Slide, kind: str = "") -> _Leaf:
    return _Leaf(
        "", slide.title, text.block(slide.body), slide.notes, slide.place, slide.mark, slide.scenes,
        slide.figures, kind,
    )  # fmt: skip


def _asked(prompt: Prompt, number: int) -> _Leaf:
    scenes, notes = (prompt.scene,), f"What they should see: {prompt.answer}"
    return _Leaf(f"prompt-{number}", prompt.ask, "", notes, prompt.place, "project", scenes, prompt.figures, "prompt")


# -- what the reader sees --


def _section(session: Session, leaf: _Leaf, number: int) -> str:
    level = 1 if leaf.kind == "title" else 2
    name = leaf.id or f"slide-{number}"
    kinds = " ".join(filter(None, ["slide", leaf.kind, "with-panel" if leaf.scenes else "words"]))
    return "\n".join(
        [
            f'<section class="{kinds}" id="{name}" aria-labelledby="{name}-says" tabindex="-1">',
            f'<h{level} id="{name}-says">{text.inline(leaf.title)}</h{level}>',
            f'<div class="stage">\n<div class="said">\n<div class="body">{leaf.html}</div>',
            *_scenes(leaf),
            "</div>",
            *_still(session, leaf),
            "</div>",
            f'<div class="notes" role="note">{text.block(leaf.notes)}</div>',
            _foot(session, leaf),
            "</section>",
        ]
    )


def _scenes(leaf: _Leaf) -> list[str]:
    """The sentences: all of them where nothing is live; the deck shows one, and a button for each."""
    if not leaf.scenes:
        return []
    return ['<ol class="scenes">', *(f"<li>{text.inline(scene.says)}</li>" for scene in leaf.scenes), "</ol>"]


def _still(session: Session, leaf: _Leaf) -> list[str]:
    """The place of the live panel, and the still of the first scene."""
    if not leaf.scenes:
        return []
    mechanism, state = session.paper, session.state(leaf.scenes[0])
    shown, spec = export.contents(mechanism, state), panels.spec(mechanism)
    changed = {word.partition("=")[0] for scene in leaf.scenes for word in scene.settings}
    unchanged = {f"{dial['label']} {dial['paper']}".strip() for dial in spec["dials"] if dial["name"] not in changed}
    shown["pictures"] = shown["pictures"][:PICTURES]
    shown["numbers"] = [(name, number) for name, number in shown["numbers"] if name not in unchanged]
    html = stills.html(id=mechanism, call=session.call(leaf.scenes[0]), **shown).replace(stills.STYLE, "")
    return ['<div class="panel"></div>', f'<div class="still">{html}</div>']


def _foot(session: Session, leaf: _Leaf) -> str:
    mark = f'<span class="mark {leaf.mark}">{MARKS[leaf.mark]}</span>' if leaf.mark else ""
    place = f'<span class="place">{text.inline(leaf.place)}</span>' if leaf.place else ""
    paper = "" if leaf.kind == "title" else f'<span class="arxiv">arXiv:{escape(session.arxiv)}</span>'
    return f"<footer>{mark}{place}{paper}</footer>"


# -- what the script is given --


def _given(session: Session, leaf: _Leaf, kept: "_Windows") -> dict[str, Any]:
    """Title and notes are in the section already; this is what moves."""
    scenes = []
    dials, views = dict[str, None](), dict[str, None]()  # in the order in which the scenes name them
    for scene in leaf.scenes:
        state, named = session.state(scene), dict(word.split("=", 1) for word in scene.settings)
        view = named.get("view")
        scenes.append({"link": session.link(scene), "view": view, "data": kept.of(state)})
        dials |= dict.fromkeys(named)
        views |= dict.fromkeys([view] if view else [])
    return {"scenes": scenes, "dials": [*dials], "figures": leaf.figures or [*views]} if scenes else {}


def _spelt(value: Any) -> Any:
    """Bytes as JSON can hold them, as an exported panel's page has them."""
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


class _Windows:
    """What the scenes need of real heads, each input once: the longest window that one of them asks for."""

    def __init__(self) -> None:
        self.windows: list[Any] = []
        self.places: dict[str, int] = {}

    def read(self, session: Session, scenes: list[Scene]) -> None:
        view, longest = panels.view(session.paper), dict[str, dict[str, Any]]()
        for scene in scenes:
            state = session.state(scene)
            name = state["dials"].get("input", "")
            if name not in longest or longest[name]["dials"]["tokens"] < state["dials"]["tokens"]:
                longest[name] = state
        for name, state in longest.items():
            window = view.data(view.PARAMS(**state["dials"]))
            if window is not None:
                self.places[name] = len(self.windows)
                self.windows.append({part: _spelt(value) for part, value in window.items()})

    def of(self, state: dict[str, Any]) -> int | None:
        return self.places.get(state["dials"].get("input", ""))
