"""Formulas as MathML, which every current browser draws by itself: no script and no request."""

from itertools import pairwise
from xml.etree import ElementTree

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)

XML = "http://www.w3.org/1998/Math/MathML"
MO, MROW, MSPACE = (f"{{{XML}}}{name}" for name in ("mo", "mrow", "mspace"))
ElementTree.register_namespace("", XML)
BOLD = {"A": 0x1D400, "a": 0x1D41A, "0": 0x1D7CE}  # the first of each alphabet, as characters of their own
PRIMES = {"\u2032", "\u2033"}
BARS = {"|", "\u2016"}
THIN = "0.1667em"


def mathml(node: nodes.Element, display: str) -> str:
    """The formula of a math node; one that cannot be converted is a warning, and so fails a build with -W."""
    tex = node.astext()
    try:
        formula = typeset(convert(tex, display=display))
    except Exception as error:  # the converter has a family of exceptions without a common parent
        logger.warning("formula is not LaTeX: %s: %r", tex, error, location=node)
        return f"<code>{tex}</code>"
    if "\\" in formula:  # an unknown command comes through as text
        logger.warning("formula has a command that MathML does not know: %s", tex, location=node)
    return formula


def typeset(formula: str) -> str:
    """What LaTeX means and latex2mathml leaves out: bars that keep to their line, primes, bold, spaces at functions."""
    math = ElementTree.fromstring(formula)
    for node in math.iter():
        if kind(node) == "msup" and node[1].text in PRIMES:  # raised already, in this font; as a power they would fly
            node.tag = MROW
            node[1].tag, node[1].attrib = MO, {"lspace": "0.05em", "rspace": "0"}
        elif kind(node) == "mo" and "form" not in node.attrib and node.text in BARS:
            node.attrib |= {"stretchy": "false", "lspace": "0", "rspace": "0"}
        elif kind(node) == "mo" and (node.text == "/" or is_function(node)):
            node.attrib |= {"lspace": "0", "rspace": "0"}
        elif (
            node.get("mathvariant", "normal") != "normal"
        ):  # browsers know no other; what has no letters here is warned of
            node.text = "".join(map(bold, node.text)) if node.attrib.pop("mathvariant") == "bold" else "\\"
    for node in math.iter():
        for left, right in reversed(list(pairwise(node))) if kind(node) == "mrow" else ():
            after = is_function(left) and not is_operator(right)
            before = is_function(right) and not is_operator(left) and left.text not in BARS
            if after or before:
                node.insert(list(node).index(right), ElementTree.Element(MSPACE, width=THIN))
    return ElementTree.tostring(math, encoding="unicode")


def kind(node: ElementTree.Element) -> str:
    return node.tag.removeprefix(f"{{{XML}}}")


def is_function(node: ElementTree.Element) -> bool:
    """Is this a name such as log, or one with an index or a power?"""
    while kind(node).startswith(("msu", "mu", "mo")) and len(node):
        node = node[0]
    return kind(node) in {"mi", "mo"} and len(node.text) > 1 and node.text.isascii() and node.text.isalpha()


def is_operator(node: ElementTree.Element) -> bool:
    """Does the node bring its own space, or want none, as brackets do?"""
    return kind(node) == "mspace" or (kind(node) == "mo" and not is_function(node) and node.text not in BARS)


def bold(character: str) -> str:
    first = "0" if character.isdigit() else "A" if character.isupper() else "a"
    return chr(BOLD[first] + ord(character) - ord(first))


def visit_inline(self, node: nodes.math) -> None:
    self.body.append(mathml(node, "inline"))
    raise nodes.SkipNode


def visit_block(self, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math-block">{mathml(node, "block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
