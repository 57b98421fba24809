"""The directive `live-panel MECHANISM`: the exported page of a panel, written into the build and shown in a frame.

    ```{live-panel} race
    :set: planes=2 tables=8 input="layer 9, head 1"
    ```

`set` takes what `attnlab export --set` takes. Where no script runs, the still's numbers stand there instead.
"""

import hashlib
import shlex
from html import escape
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective
from sphinx.util.osutil import relative_uri

from attnlab import panels
from attnlab.panels import export, link
from attnlab.panels.bundle import PACKAGE

FOLDER = "_static/panels"
SOURCES = {".py", ".js", ".html", ".safetensors"}  # what a page may be made of


class Frame(nodes.General, nodes.Element):
    """The place of a panel: `mechanism` in `state`."""


class LivePanel(SphinxDirective):
    """One frame."""

    required_arguments = 1
    option_spec = {"set": directives.unchanged}  # noqa: RUF012 docutils reads it so

    def run(self) -> list[nodes.Node]:
        mechanism = self.arguments[0]
        try:
            state = export.setting(mechanism, shlex.split(self.options.get("set", "")))
        except ValueError as error:
            raise self.error(f"live-panel: {error}") from error
        note_sources(self.env)
        return [Frame(mechanism=mechanism, state=state)]


def note_sources(env: BuildEnvironment) -> None:
    """A page with what attnlab writes is built again when attnlab changes."""
    for path in sorted(PACKAGE.rglob("*")):
        if path.suffix in SOURCES:
            env.note_dependency(str(path))


def write_frame(self, node: Frame) -> None:
    """The page beside the others, and the frame that shows it."""
    mechanism, state = node["mechanism"], node["state"]
    spec = panels.spec(mechanism)
    name = hashlib.sha256(link.fragment(state, spec).encode()).hexdigest()[:8]
    file = f"{FOLDER}/{mechanism}-{name}.html"
    path = Path(self.builder.outdir, file)
    path.parent.mkdir(parents=True, exist_ok=True)
    export.write(path, mechanism, state)
    address = escape(relative_uri(self.builder.get_target_uri(self.builder.current_docname), file))
    numbers = export.contents(mechanism, state)["numbers"]
    rows = "".join(f"<li>{escape(label)}: {escape(number)}</li>" for label, number in numbers)
    self.body.append(
        f'<div class="live-panel">\n<iframe src="{address}" title="Live panel: {escape(spec["title"])}" '
        'allow="clipboard-write *"></iframe>\n'
        "<noscript><p>The panel that stands here computes in your browser and needs JavaScript. Its numbers, and the "
        f"call that shows it in a notebook:</p><ul>{rows}</ul><pre>{escape(link.call(state, spec))}</pre></noscript>\n"
        f'<p class="live-panel-alone"><a href="{address}">Open the panel alone</a></p>\n</div>\n'
    )
    raise nodes.SkipNode


def add_script(app: Sphinx, _: str, __: str, ___: dict, doctree: nodes.document | None) -> None:
    """On the pages that have a panel, and on no others."""
    if doctree is not None and any(doctree.findall(Frame)):
        app.add_js_file("live_panel.js", loading_method="defer")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_node(Frame, html=(write_frame, None))
    app.add_directive("live-panel", LivePanel)
    app.connect("html-page-context", add_script)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
