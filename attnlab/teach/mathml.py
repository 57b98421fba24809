"""Formulas as MathML, which every current browser draws by itself: no script and no request."""

from itertools import pairwise
from xml.etree import ElementTree

from attnlab.backend import Unavailable, found

__all__ = ["formula", "typeset"]

XML = "http://www.w3.org/1998/Math/MathML"
MO, MROW, MSPACE = (f"{{{XML}}}{name}" for name in ("mo", "mrow", "mspace"))
ElementTree.register_namespace("", XML)
BOLD = {"A": 0x1D400, "a": 0x1D41A, "0": 0x1D7CE}  # the first of each alphabet, as characters of their own
PRIMES = {"\u2032", "\u2033"}
BARS = {"|", "\u2016"}
THIN = "0.1667em"


def formula(tex: str, *, block: bool = False) -> str:
    """The formula as a <math> element, in a line of its own where `block`.

    Raises ValueError naming the formula where it is no LaTeX or has an unknown command; backend.Unavailable without the
    package latex2mathml.
    """
    if not found("latex2mathml"):
        raise Unavailable("the package latex2mathml is not installed; get it with: pip install latex2mathml")
    from latex2mathml.converter import convert

    try:
        typed = typeset(convert(tex, display="block" if block else "inline"))
    except Exception as error:  # the converter has a family of exceptions without a common parent
        raise ValueError(f"formula is not LaTeX: {tex}: {error!r}") from error
    if "\\" in typed:  # an unknown command comes through as text
        raise ValueError(f"formula has a command that MathML does not know: {tex}")
    return typed


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
            node.text = "".join(map(bold, node.text or "")) if node.attrib.pop("mathvariant") == "bold" else "\\"
    for node in math.iter():
        for left, right in reversed(list(pairwise(node))) if kind(node) == "mrow" else ():
            after = is_function(left) and not is_operator(right)
            before = is_function(right) and not is_operator(left) and left.text not in BARS
            if after or before:
                node.insert(list(node).index(right), ElementTree.Element(MSPACE, width=THIN))
    return ElementTree.tostring(math, encoding="unicode")


def kind(node: ElementTree.Element) -> str:
    """The name of the element, without its namespace."""
    return node.tag.removeprefix(f"{{{XML}}}")


def is_function(node: ElementTree.Element) -> bool:
    """Is this a name such as log, or one with an index or a power?"""
    while kind(node).startswith(("msu", "mu", "mo")) and len(node):
        node = node[0]
    text = node.text or ""
    return kind(node) in {"mi", "mo"} and len(text) > 1 and text.isascii() and text.isalpha()


def is_operator(node: ElementTree.Element) -> bool:
    """Does the node bring its own space, or want none, as brackets do?"""
    return kind(node) == "mspace" or (kind(node) == "mo" and not is_function(node) and node.text not in BARS)


def bold(character: str) -> str:
    """The character in bold, or a backslash, which `formula` refuses, where there is none."""
    if not (character.isascii() and character.isalnum()):
        return "\\"
    first = "0" if character.isdigit() else "A" if character.isupper() else "a"
    return chr(BOLD[first] + ord(character) - ord(first))
