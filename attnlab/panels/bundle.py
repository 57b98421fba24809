"""One module text out of plain JS modules: what anywidget, the exported page and the docs load.

anywidget runs a widget's module from a blob, where relative imports fail. So each source module becomes the body of a
function, after those it imports, and the whole exports `mount(element, options)` for any page and `default { render }`
for anywidget. No Node is needed; in return the sources keep to a small grammar, one line each, and anything else that
begins with `import` or `export` is an error with its file and line:

    import { a, b as c } from "./other.js";
    export function name(...) {
    export async function name(...) {
    export class Name {
    export const name = ...

Comment lines and indentation are dropped, in template literals too.
"""

import json
import re
from pathlib import Path
from typing import Any

__all__ = ["BundleError", "bundle"]

PACKAGE = Path(__file__).parent.parent
NAME = r"[A-Za-z_$][\w$]*"
IMPORT = re.compile(rf'import \{{ ((?:{NAME}(?: as {NAME})?, )*{NAME}(?: as {NAME})?) \}} from "(\.\.?/[\w./-]+\.js)";')
EXPORT = re.compile(rf"export ((?:(?:async )?function|class|const) ({NAME})\b.*)")
FORBIDDEN = re.compile(r"^\s*(?:import|export)\b|\bimport\s*[(.]|</script", re.IGNORECASE)


class BundleError(ValueError):
    """A source module that the grammar does not cover; the text names the file and the line."""


def bundle(mechanism: str, spec: dict[str, Any], package: Path = PACKAGE) -> str:
    """The panel of `mechanism` as one JS module text, `spec` inside it as JSON.

    Raises BundleError for a line outside the grammar, an import of a missing file or name, or a circle of imports;
    ValueError for NaN in `spec`.
    """
    modules: dict[Path, _Module] = {}
    sources = {"panel": f"{mechanism}/panel.js", "mount": "panels/kit.js", "render": "panels/anywidget.js"}
    parts = {name: (package / source).resolve() for name, source in sources.items()}
    for name, path in parts.items():
        _collect(path, package.resolve(), modules, ())
        if name not in modules[path].exports:
            raise BundleError(f"{path.name} must export {name}")
    literal = json.dumps(spec, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return "\n".join(
        [
            f"// attnlab: the {mechanism} panel in one module",
            *(module.text for module in modules.values()),
            f"const spec = {literal};",
            *(f"const {name} = {modules[path].name}.{name};" for name, path in parts.items()),
            "const mountHere = (element, options = {}) => mount(element, panel, { spec, ...options });",
            "export { mountHere as mount };",
            "export default { render: (context) => render(panel, spec, context) };",
            "",
        ]
    )


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
            body.append(match[1])
        elif FORBIDDEN.search(line):
            raise BundleError(f"{here}: outside the grammar of attnlab/panels/bundle.py: {line.strip()}")
        elif (text := line.strip()) and not text.startswith("//"):
            body.append(text)
    if not path.is_relative_to(package):
        raise BundleError(f"{path} lies outside {package}")
    modules[path] = _Module(re.sub(r"\W", "_", str(path.relative_to(package).with_suffix(""))), exports, body)
