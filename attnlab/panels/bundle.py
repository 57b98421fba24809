"""One module text out of plain JS modules: what anywidget, the exported page and the docs load.

anywidget runs a widget's module from a blob, where relative imports fail. So each source module becomes the body of a
function, after those it imports, and the whole exports

    mount(element, options)      the panel on any page
    render(context, source)      the same for anywidget; `source` is this very text, for a page to be saved
    start()                      the same on an exported page (page.html), which holds this text and the state

No Node is needed; in return the sources keep to a small grammar, one line each, and anything else that begins with
`import` or `export` is an error with its file and line:

    import { a, b as c } from "./other.js";
    export function name(...) {
    export async function name(...) {
    export class Name {
    export const name = ...

Comments and indentation are dropped, in template literals too. The words of a language are two files, the kit's
labels.CODE.js and the mechanism's; every language that has both comes along.
"""

import base64
import gzip
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["BundleError", "bundle", "languages", "packed"]

PACKAGE = Path(__file__).parent.parent
NAME = r"[A-Za-z_$][\w$]*"
IMPORT = re.compile(rf'import \{{ ((?:{NAME}(?: as {NAME})?, )*{NAME}(?: as {NAME})?) \}} from "(\.\.?/[\w./-]+\.js)";')
EXPORT = re.compile(rf"export ((?:(?:async )?function|class|const) ({NAME})\b.*)")
FORBIDDEN = re.compile(r"^\s*(?:import|export)\b|\bimport\s*[(.]|</script|<!--", re.IGNORECASE)

COMMENT = re.compile(r"""(?<=[;{}(),\]]) +// [^"'`]*$""")  # behind code; with a quote in it, it may be none, and stays

# What anywidget runs: the text is unpacked in the browser, since all of it travels with each panel and each saved
# notebook. Compressed, and spelt in base64 again, it is some 0.4 of that.
LOADER = """\
const bytes = Uint8Array.from(atob("{packed}"), (c) => c.charCodeAt(0));
const source = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
const url = URL.createObjectURL(new Blob([source], {{ type: "text/javascript" }}));
const {{ render }} = await import(url);
URL.revokeObjectURL(url);
export default {{ render: (context) => render(context, source) }};
"""


class BundleError(ValueError):
    """A source module that the grammar does not cover; the text names the file and the line."""


def languages(mechanism: str, package: Path = PACKAGE) -> list[str]:
    """The languages in which both the kit and the mechanism have words; English first."""
    kit, own = (
        {path.name.split(".")[1] for path in (package / folder).glob("labels.*.js")} for folder in ("panels", mechanism)
    )
    return sorted(kit & own, key=lambda code: (code != "en", code))


def bundle(mechanism: str, spec: dict[str, Any], package: Path = PACKAGE) -> str:
    """The panel of `mechanism` as one JS module text, `spec` inside it as JSON.

    Raises BundleError for a line outside the grammar, an import of a missing file or name, or a circle of imports;
    ValueError for NaN in `spec`.
    """
    modules: dict[Path, _Module] = {}

    def entry(source: str, name: str) -> str:
        path = (package / source).resolve()
        _collect(path, package.resolve(), modules, ())
        if name not in modules[path].exports:
            raise BundleError(f"{path.name} must export {name}")
        return f"{modules[path].name}.{name}"

    panel = entry(f"{mechanism}/panel.js", "panel")
    mount, render, start = (
        entry(f"panels/{file}.js", name)
        for file, name in (("kit", "mount"), ("anywidget", "render"), ("page", "start"))
    )
    words = {
        code: [entry(f"{folder}/labels.{code}.js", "words") for folder in (mechanism, "panels")]
        for code in languages(mechanism, package)
    }
    spoken = ", ".join(f"{json.dumps(code)}: {{ ...{own}, kit: {kit} }}" for code, (own, kit) in words.items())
    template = (package / "panels" / "page.html").read_text(encoding="utf-8")
    return "\n".join(
        [
            f"// attnlab: the {mechanism} panel in one module",
            *(module.text for module in modules.values()),
            f"const parts = {{ panel: {panel}, spec: {_literal(spec)}, languages: {{ {spoken} }} }};",
            f"const template = {_literal(template)};",
            f"export const mount = (element, given) => {mount}(element, {{ ...parts, template, ...given }});",
            f"export const render = (context, source) => {render}(mount, context, source);",
            f"export const start = () => {start}(mount);",
            "",
        ]
    )


@cache
def packed(source: str) -> str:
    """A small module that holds `source` compressed and exports what anywidget asks for."""
    text = base64.b64encode(gzip.compress(source.encode(), compresslevel=9, mtime=0)).decode()
    return LOADER.format(packed=text)


def _literal(value: Any) -> str:
    """JSON that can stand inside a script element."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


class _Module:
    """One source file as a function scope: its variable in the bundle, what it exports, its text."""

    def __init__(self, name: str, exports: list[str], body: list[str]) -> None:
        self.name, self.exports = name, exports
        self.text = "\n".join([f"const {name} = (() => {{", *body, f"return {{ {', '.join(exports)} }};", "})();"])


def _collect(path: Path, package: Path, modules: dict[Path, _Module], importers: tuple[Path, ...]) -> None:
    """Add the module at `path` after everything it imports."""
    if path in importers:
        raise BundleError(f"a circle of imports: {' -> '.join(p.name for p in (*importers, path))}")
    if path in modules:
        return
    if not path.is_file():
        wanted_by = f", imported by {importers[-1].name}" if importers else ""
        raise BundleError(f"no such module: {path}{wanted_by}")
    exports: list[str] = []
    body: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        here = f"{path.name}, line {number}"
        if match := IMPORT.fullmatch(line):
            source = (path.parent / match[2]).resolve()
            _collect(source, package, modules, (*importers, path))
            names = [name.split(" as ") for name in match[1].split(", ")]
            for name, *_ in names:
                if name not in modules[source].exports:
                    raise BundleError(f"{here}: {source.name} exports no {name}")
            body.append(f"const {{ {', '.join(': '.join(name) for name in names)} }} = {modules[source].name};")
        elif match := EXPORT.fullmatch(line):
            exports.append(match[2])
            body.append(COMMENT.sub("", match[1]))
        elif FORBIDDEN.search(line):
            raise BundleError(f"{here}: outside the grammar of attnlab/panels/bundle.py: {line.strip()}")
        elif (text := COMMENT.sub("", line).strip()) and not text.startswith("//"):
            body.append(text)
    if not path.is_relative_to(package):
        raise BundleError(f"{path} lies outside {package}")
    modules[path] = _Module(re.sub(r"\W", "_", str(path.relative_to(package).with_suffix(""))), exports, body)
