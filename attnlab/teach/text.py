"""Markdown with tables and formulas between dollars, as HTML; HTML in it is shown as the text that it is."""

import re
from functools import cache
from html import escape, unescape
from typing import TYPE_CHECKING, Any

from attnlab.backend import Unavailable, found
from attnlab.teach.mathml import formula

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

__all__ = ["block", "cell", "inline", "plain"]

PACKAGES = {"markdown_it": "markdown-it-py", "mdit_py_plugins": "mdit-py-plugins", "latex2mathml": "latex2mathml"}


def block(markdown: str) -> str:
    """Paragraphs, lists, tables and headings as HTML. Raises as `formula` does; Unavailable without the packages."""
    return _parser().render(markdown).strip()


def inline(markdown: str) -> str:
    """One line, as HTML that may stand in a heading or in a cell of a table."""
    return _parser().renderInline(markdown).strip()


def plain(markdown: str) -> str:
    """One line without any markup, for a window's title; formulas stay as they are written."""
    source = re.sub(r"\$([^$]+)\$", lambda match: f"`{match[1]}`", markdown)
    return unescape(re.sub(r"<[^>]*>", "", _parser().renderInline(source))).strip()


def cell(words: str) -> str:
    """Words that are no Markdown, so that they come out of it as they are, also in a table."""
    return re.sub(r"([\\`*_$\[\]<>|~&])", r"\\\1", " ".join(words.split()))


@cache
def _parser() -> "MarkdownIt":
    for module, package in PACKAGES.items():
        if not found(module):
            raise Unavailable(f"the package {package} is not installed; get it with: pip install 'attnlab[teach]'")
    from markdown_it import MarkdownIt
    from mdit_py_plugins.dollarmath import dollarmath_plugin

    def typed(tex: str, given: dict[str, Any]) -> str:
        return formula(tex, block=given["display_mode"])

    def fence(_: Any, tokens: Any, at: int, *__: Any) -> str:
        return f'<pre tabindex="0"><code>{escape(tokens[at].content, quote=False)}</code></pre>\n'

    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")  # a picture would be a request
    parser.use(dollarmath_plugin, allow_space=False, allow_labels=False, allow_blank_lines=False, renderer=typed)
    parser.add_render_rule("fence", fence)  # what is wide scrolls, also by the keyboard
    parser.add_render_rule("table_open", lambda *_: '<div class="wide" tabindex="0"><table>\n')
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    return parser
