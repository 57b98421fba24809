"""Formulas as MathML: a math renderer for Sphinx on attnlab/teach/mathml.py."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

from attnlab.teach.mathml import formula, typeset

__all__ = ["mathml", "setup", "typeset"]

logger = logging.getLogger(__name__)


def mathml(node: nodes.Element, *, block: bool) -> str:
    """The formula of a math node; one that cannot be converted is a warning, and so fails a build with -W."""
    try:
        return formula(node.astext(), block=block)
    except ValueError as error:
        logger.warning("%s", error, location=node)
        return f"<code>{node.astext()}</code>"


def visit_inline(self, node: nodes.math) -> None:
    self.body.append(mathml(node, block=False))
    raise nodes.SkipNode


def visit_block(self, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math-block">{mathml(node, block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
