"""Formulas as MathML, which every current browser draws by itself: no script and no request."""

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)


def mathml(node: nodes.Element, display: str) -> str:
    """The formula of a math node; one that cannot be converted is a warning, and so fails a build with -W."""
    tex = node.astext()
    try:
        formula = convert(tex, display=display)
    except Exception as error:  # the converter has a family of exceptions without a common parent
        logger.warning("formula is not LaTeX: %s: %r", tex, error, location=node)
        return f"<code>{tex}</code>"
    if "\\" in formula:  # an unknown command comes through as text
        logger.warning("formula has a command that MathML does not know: %s", tex, location=node)
    return formula


def visit_inline(self, node: nodes.math) -> None:
    self.body.append(mathml(node, "inline"))
    raise nodes.SkipNode


def visit_block(self, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math-block">{mathml(node, "block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
