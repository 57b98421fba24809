"""Markdown and formulas as HTML."""

import re

import pytest

from attnlab import backend
from attnlab.teach import mathml, text


def test_a_formula_between_dollars_is_mathml_and_money_is_not():
    html = text.block("A line $x_i^2$ for \\$6.\n\n$$\\frac{a}{b}$$")
    assert re.findall('<math [^>]*display="(.*?)"', html) == ["inline", "block"]
    assert "<mfrac>" in html
    assert "for $6." in html


def test_tables_and_lists_are_read_and_markup_is_shown_as_it_is_written():
    html = text.block("| a | $R$ |\n|---|---|\n| 1 | 2 |\n\n- <script>alert(1)</script>\n- *one*")
    assert html.count("<td>") == 2
    assert "<th><span" in html
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "<li><em>one</em></li>" in html


def test_a_picture_is_no_request():
    assert "<img" not in text.block("![a](https://example.org/a.png)")


@pytest.mark.parametrize("tex", [r"\foo x", r"\mathcal N", r"\left( x", r"\mathbf{\theta}"])
def test_what_is_no_formula_is_refused_by_name(tex):
    with pytest.raises(ValueError, match="formula") as refused:
        text.inline(f"see ${tex}$")
    assert tex in str(refused.value)


@pytest.mark.parametrize("words", ["a|b", "2^P_i", "*x* [y](z) `c`", "$5 & <b>", "a\\b"])
def test_words_of_a_cell_come_out_as_they_are(words):
    html = text.inline(text.cell(words))
    for sign, entity in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&amp;", "&")):
        html = html.replace(sign, entity)
    assert html == words
    assert text.block(f"| a |\n|---|\n| {text.cell(words)} |").count("<td>") == 1


def test_a_title_is_plain_text():
    assert text.plain("A *kernel* of $x<y$ & <b>") == "A kernel of x<y & <b>"


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("latex2mathml", "latex2mathml is not"),
        ("markdown_it", "markdown-it-py is not"),
        ("mdit_py_plugins", "plugins is not"),
    ],
)
def test_a_missing_package_is_named(monkeypatch, module, says):
    monkeypatch.setitem(__import__("sys").modules, module, None)
    text._parser.cache_clear()
    with pytest.raises(backend.Unavailable, match=says):
        text.inline("$x$")
    text._parser.cache_clear()


def test_a_formula_needs_its_package(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "latex2mathml", None)
    with pytest.raises(backend.Unavailable, match="pip install latex2mathml"):
        mathml.formula("x")
