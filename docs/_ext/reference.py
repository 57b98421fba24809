"""The API reference, from docstrings: pages under reference/ that are written at each build and never kept.

autodoc reads the modules. Docstrings here are plain text, not reStructuredText, so they are escaped; what is indented
or set in columns stays as it stands. Signatures are those of the source, where an annotation says the axes of an array.
"""

import ast
import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
import textwrap
from pathlib import Path
from types import ModuleType

from sphinx.application import Sphinx

import attnlab

FOLDER = "reference"
INSIDE = re.compile(  # rooms behind a door, and what has a page or a command of its own
    r"_.*|.*_impl|api|claims|cli|cpu_kernels|enclosures|interpreted|lanes|numba_plain|progress|rational|scan|tensors|view"
    r"|bundle|solutions|lab_settings"
)
TITLES = {
    "attnlab": "The foundation",
    "dense": "Softmax attention",
    "race": "RACE",
    "residual": "RLA, RDN and their baselines",
    "hashattention": "HashAttention",
    "lrkv": "LRKV, MHA, GQA, MQA, MLA",
    "nn": "Layers",
    "panels": "Panels",
    "exercises": "Exercises",
    "teach": "Teaching",
}


def write_pages(app: Sphinx) -> None:
    """One page for the foundation and one for each package, and a list of them."""
    folder = Path(app.srcdir) / FOLDER
    folder.mkdir(exist_ok=True)
    packages = [name for name in ("dense", *attnlab.MECHANISMS, "nn", "panels", "exercises", "teach") if exists(name)]
    pages = {"attnlab": [f"attnlab.{name}" for name in modules(attnlab) if name not in {*packages, "bench"}]}
    for name in packages:
        package = importlib.import_module(f"attnlab.{name}")
        pages[name] = [package.__name__, *(f"attnlab.{name}.{module}" for module in modules(package))]
    for name, documented in pages.items():
        parts = [heading(TITLES.get(name, name), "="), *(section(module) for module in documented)]
        keep(folder / f"{name}.rst", "\n".join(parts))
    words = "Every public name with its shapes, units, errors and source, as its docstring says it."
    listed = ["", ".. toctree::", "   :maxdepth: 1", "", *(f"   {name}" for name in pages), ""]
    keep(folder / "index.rst", "\n".join([heading("API reference", "="), words, *listed]))
    for page in folder.glob("*.rst"):
        if page.stem not in {*pages, "index"}:
            page.unlink()


def exists(name: str) -> bool:
    return importlib.util.find_spec(f"attnlab.{name}") is not None


def modules(package: ModuleType) -> list[str]:
    """The modules to be shown, in the order of the alphabet."""
    return sorted(name for _, name, _ in pkgutil.iter_modules(package.__path__) if not INSIDE.fullmatch(name))


def heading(text: str, line: str) -> str:
    return f"{text}\n{line * len(text)}\n"


def section(module: str) -> str:
    return f"{heading(module, '-')}\n.. automodule:: {module}\n   :members:\n   :member-order: bysource\n"


def keep(path: Path, text: str) -> None:
    """Written only where it changed, so that an unchanged page is not read again."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def escape(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """A docstring as reStructuredText that says the same letters, and the fields of a record as its source has them."""
    blocks = textwrap.dedent("\n".join(lines)).strip("\n").split("\n\n")
    record = fields(thing) if what == "class" else []
    shown = [paragraph(block) for block in blocks] + [literal([line for _, line in record])] * bool(record)
    lines[:] = [line for block in shown for line in [*block, ""]]


def paragraph(block: str) -> list[str]:
    """A block of lines: words that flow, or lines that stay as they are where one of them is indented or in columns."""
    own = block.split("\n")
    if any(line.startswith(" ") or re.search(r"\S   +\S", line) for line in own):
        return literal(own)
    parts = re.split(r"`+([^`]+)`+", block)
    for n, part in enumerate(parts):
        parts[n] = rf"\ ``{part}``\ " if n % 2 else re.sub(r"([\\*|_`<>])", r"\\\1", part)
    return "".join(parts).split("\n")


def literal(lines: list[str]) -> list[str]:
    return [".. code-block:: text", "", *(f"    {line}" for line in lines)]


def fields(record: object) -> list[tuple[str, str]]:
    """Name and line of source, with its remark, of each field of a NamedTuple or dataclass; of another class none."""
    if not (hasattr(record, "_fields") or hasattr(record, "__dataclass_fields__")):
        return []
    try:
        source = textwrap.dedent(inspect.getsource(record))
    except (OSError, TypeError):
        return []
    (node,) = ast.parse(source).body
    own = [x for x in node.body if isinstance(x, ast.AnnAssign) and not x.target.id.startswith("_")]
    lines, names = source.split("\n"), vars(sys.modules[record.__module__])
    axes = {name: x.__metadata__[0] for name, x in names.items() if hasattr(x, "__metadata__")}

    def spelled(line: str) -> str:
        code, hash_sign, remark = line.strip().partition("#")
        code = re.sub(r"\w+", lambda word: f'Float[Array, "{axes[word[0]]}"]' if word[0] in axes else word[0], code)
        return code + hash_sign + remark

    return [(x.target.id, spelled(line)) for x in own for line in lines[x.lineno - 1 : x.end_lineno]]


def once(app: Sphinx, what: str, name: str, thing: object, skip: bool, options: object) -> bool | None:
    """Leave out what a module only hands on, where its own module is shown, and names for the axes of an array."""
    module = app.env.current_document.autodoc_module
    home = getattr(thing, "__module__", None) or module
    handed_on = what == "module" and home != module and home.startswith("attnlab") and not inside(home)
    field = type(thing).__name__ == "_tuplegetter"  # of a NamedTuple: it stands in the block of fields
    return True if handed_on or field or hasattr(thing, "__metadata__") else None


def inside(module: str) -> bool:
    return any(INSIDE.fullmatch(part) for part in module.split(".")[1:])


class Spelled(ast.NodeTransformer):
    """Annotations with classes of ours under their full names, which are links, and axes in place of names for them."""

    def __init__(self, names: dict):
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        meant = self.names.get(node.id)
        if hasattr(meant, "__metadata__"):
            return ast.parse(f"Float[Array, {meant.__metadata__[0]!r}]", mode="eval").body
        ours = isinstance(meant, type) and meant.__module__.startswith("attnlab")
        return ast.Name(f"{meant.__module__}.{meant.__qualname__}") if ours else node


def as_written(
    app: Sphinx, what: str, name: str, thing: object, options: object, given: str, returns: str
) -> tuple[str, str | None] | None:
    """The arguments and the result in the source's own words; of a record the names of its fields."""
    if what == "class" and (names := dict.fromkeys(name for name, _ in fields(thing))):
        return f"({', '.join(names)})", None
    function = inspect.unwrap(getattr(thing, "__func__", thing))
    if what not in {"function", "method"} or not inspect.isfunction(function):
        return None
    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, SyntaxError):  # made by a decorator, and without a source of its own
        return None
    if not isinstance(node, ast.FunctionDef):
        return None
    node.args.args = [x for x in node.args.args if x.arg not in {"self", "cls"}]
    for argument in ast.walk(node.args):
        if isinstance(argument, ast.arg) and argument.annotation:
            argument.annotation = Spelled(function.__globals__).visit(argument.annotation)
    result = ast.unparse(Spelled(function.__globals__).visit(node.returns)) if node.returns else None
    return f"({ast.unparse(node.args)})", result


def setup(app: Sphinx) -> dict[str, bool]:
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-skip-member", once)
    app.connect("autodoc-process-docstring", escape)
    app.connect("autodoc-process-signature", as_written)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
