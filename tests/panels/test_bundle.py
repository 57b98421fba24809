"""One module text out of plain modules: the grammar, its errors, and that what comes out is a module."""

import base64
import gzip
import json
import re

import pytest

from attnlab.panels.bundle import BundleError, bundle, languages, packed

KIT = "export function mount(element, panel, options) {\n  return [element, panel, options];\n}\n"
BRIDGE = "export const render = (mount, context, source) => mount(context, { source });\n"
START = "export const start = (mount) => mount(null);\n"
WORDS = 'export const words = { hello: "hello" };\n'
TEMPLATE = "<title>{{title}}</title><script>{{module}}</script>\n"
PANEL = 'import { double as twice } from "../panels/sums.js";\nexport const panel = { four: twice(2) };\n'
SUMS = '// a comment that is dropped\nexport const double = (x) => 2 * x; // and another\nconst url = "a; // b";\n'


@pytest.fixture
def package(tmp_path):
    """A package of a few modules; `write(name, text)` replaces one of them."""

    def write(name: str, text: str):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return tmp_path

    for name, text in {"kit": KIT, "anywidget": BRIDGE, "page": START, "sums": SUMS, "labels.en": WORDS}.items():
        write(f"panels/{name}.js", text)
    write("panels/page.html", TEMPLATE)
    write("toy/labels.en.js", WORDS)
    write("toy/panel.js", PANEL)
    write.root = tmp_path
    return write


def test_every_module_is_a_function_scope_after_what_it_imports(package):
    text = bundle("toy", {}, package.root)
    assert text.index("const panels_sums = (() => {") < text.index("const toy_panel = (() => {")
    assert "const { double: twice } = panels_sums;" in text
    assert "return { double };" in text
    assert "comment that is dropped" not in text
    assert "and another" not in text
    assert 'const url = "a; // b";' in text  # no comment


def test_no_import_and_no_unfinished_export_is_left(package):
    lines = bundle("toy", {}, package.root).splitlines()
    assert not any(line.startswith("import") for line in lines)
    exported = [line.split()[2] for line in lines if line.startswith("export")]
    assert exported == ["mount", "render", "start"]


def test_a_module_imported_twice_is_inlined_once(package):
    package("panels/kit.js", 'import { double } from "./sums.js";\n' + KIT)
    assert bundle("toy", {}, package.root).count("const panels_sums") == 1


def test_the_spec_cannot_close_the_script_it_stands_in(package):
    text = bundle("toy", {"word": "</script><b>"}, package.root)
    assert "<b>" not in text
    assert "</script" not in text  # though the page's own template, which comes along, has one
    literal = re.search(r"spec: (\{.*?\}), languages", text)[1]
    assert json.loads(literal) == {"word": "</script><b>"}


def test_a_spec_with_nan_is_refused(package):
    with pytest.raises(ValueError, match="Out of range"):
        bundle("toy", {"x": float("nan")}, package.root)


@pytest.mark.parametrize(
    "line",
    [
        'import "./sums.js";',
        'import sums from "./sums.js";',
        'import * as sums from "./sums.js";',
        "import { double } from './sums.js';",
        'import { double } from "sums";',
        "import {",
        "export { double };",
        "export default 3;",
        "export let double = 3;",
        "export const { double } = other;",
        'export * from "./sums.js";',
        '  const sums = await import("./sums.js");',
        "  const here = import.meta.url;",
        '  const page = "</script>";',
        '  const page = "<!-- ";',
    ],
)
def test_a_line_outside_the_grammar_is_an_error_with_its_place(package, line):
    package("panels/kit.js", f"\n{line}\n{KIT}")
    with pytest.raises(BundleError, match=r"kit\.js, line 2: outside the grammar"):
        bundle("toy", {}, package.root)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "toy/panel.js",
            'import { treble } from "../panels/sums.js";\n' + PANEL,
            r"panel\.js, line 1: sums\.js exports no treble",
        ),
        (
            "toy/panel.js",
            'import { x } from "./gone.js";\n' + PANEL,
            r"no such module: .*gone\.js, imported by panel\.js",
        ),
        ("toy/panel.js", "const panel = {};\n", r"panel\.js must export panel"),
        (
            "panels/sums.js",
            'import { panel } from "../toy/panel.js";\n' + SUMS,
            r"a circle of imports: panel\.js -> sums\.js -> panel\.js",
        ),
        ("toy/panel.js", 'import { x } from "../../outside.js";\n' + PANEL, "outside"),
    ],
)
def test_an_import_that_leads_nowhere_is_an_error(package, name, text, message):
    (package.root.parent / "outside.js").write_text("export const x = 1;\n")
    package(name, text)
    with pytest.raises(BundleError, match=message):
        bundle("toy", {}, package.root)


def test_a_mechanism_without_a_panel_is_an_error(package):
    with pytest.raises(BundleError, match="no such module"):
        bundle("nothing", {}, package.root)


def test_a_language_is_a_file_of_the_kit_and_a_file_of_the_panel(package):
    assert languages("toy", package.root) == ["en"]
    package("panels/labels.de.js", WORDS.replace("hello:", "hello2:"))
    assert languages("toy", package.root) == ["en"]  # the panel has no German words yet
    package("toy/labels.de.js", WORDS)
    package("toy/labels.af.js", WORDS)
    assert languages("toy", package.root) == ["en", "de"]
    text = bundle("toy", {}, package.root)
    assert '"de": { ...toy_labels_de.words, kit: panels_labels_de.words }' in text


def test_a_language_without_words_is_an_error(package):
    package("toy/labels.en.js", "export const woerter = {};\n")
    with pytest.raises(BundleError, match=r"labels\.en\.js must export words"):
        bundle("toy", {}, package.root)


def test_the_packed_module_holds_the_text_and_little_else():
    text = "const x = 'ü';\n" * 1000
    module = packed(text)
    (held,) = re.findall(r'"([A-Za-z0-9+/=]{40,})"', module)
    assert gzip.decompress(base64.b64decode(held)).decode() == text
    assert len(module) < 900
    assert packed(text) == module  # no date in it
