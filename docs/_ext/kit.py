"""The directive `kit MECHANISM`: a session's kit, written into the build, and links to its files."""

from html import escape
from pathlib import Path

from docutils import nodes
from live_panel import note_sources
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.osutil import relative_uri

from attnlab.teach import kit, session

FOLDER = "_static/kits"
WORDS = {  # of each file, in this order
    "slides.html": "slides, with live panels",
    "plan.html": "the leader's plan",
    "preread.html": "pre-read sheet",
    "handout.html": "handout",
    "handout.pdf": "handout, as PDF",
    "prompts.html": "questions to discuss",
    "evidence.html": "claims and evidence",
    "record.html": "record of what the group believes",
    "panel.html": "the panel alone",
}


class Kit(nodes.General, nodes.Element):
    """The place of the links."""


class KitDirective(SphinxDirective):
    """The files of one paper's kit."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        paper = self.arguments[0]
        if paper not in session.papers():
            raise self.error(f"kit needs one of {', '.join(session.papers())}, got {paper}")
        note_sources(self.env)
        return [Kit(paper=paper)]


def write_kit(self, node: Kit) -> None:
    """The files beside the pages, and a list of them."""
    paper = node["paper"]
    folder = Path(self.builder.outdir, FOLDER, paper)
    written = {path.name for path, why in kit.write(folder, session.of(paper)) if not why}
    own = self.builder.get_target_uri(self.builder.current_docname)
    items = [
        f'<li><a href="{escape(relative_uri(own, f"{FOLDER}/{paper}/{name}"))}">{words}</a></li>'
        for name, words in WORDS.items()
        if name in written
    ]
    self.body.append(f'<ul class="kit">\n{"".join(items)}</ul>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_node(Kit, html=(write_kit, None))
    app.add_directive("kit", KitDirective)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
