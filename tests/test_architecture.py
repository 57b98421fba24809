"""The arrows of docs/architecture.md, held by reading every import with ast. A new architecture starts here.

A room that a table does not name fails, so that whoever adds one says what it may see.
"""

import ast
from fnmatch import fnmatch
from pathlib import Path

import pytest

import attnlab

ROOT = Path(__file__).parents[1]
ROOMS = ("reference", "numba_impl", "torch_impl", "triton_impl")  # the implementations: none of them imports another

# What a module of the foundation may see of attnlab.
FOUNDATION = {
    "__init__": set(),
    "arrays": set(),
    "draws": set(),
    "claim": set(),
    "data": {"arrays"},
    "dense": {"arrays"},
    "backend": {"arrays"},
    "parity": {"arrays", "backend"},
}

# What a room of a mechanism may see of the same mechanism, beside the foundation.
MECHANISM = {
    "params": set(),
    "reference": {"params"},
    "theory": {"reference"},
    "rational": set(),  # the same formulas in exact fractions
    "enclosures": {"theory"},  # and in ball arithmetic
    "comparisons": {"reference"},
    "cpu_kernels": set(),  # shared unchanged by numba_impl and torch_impl
    "numba_impl": {"params", "cpu_kernels"},
    "torch_impl": {"params", "cpu_kernels"},
    "triton_impl": {"params"},
    "api": {"params"},
    "claims": {"params", "reference", "theory", "rational", "enclosures"},
    "view": {"params", "reference", "theory"},
    "widget": {"params", "view", "api"},
    "__init__": {"params", "api"},
}

# Where an optional package may be imported.
HOMES = {
    "numba": ["*/numba_impl.py", "*/cpu_kernels.py", "attnlab/bench/*"],
    "torch": [
        "*/torch_impl.py",
        "*/triton_impl.py",
        "kernels/*",
        "attnlab/models.py",
        "attnlab/nn/*",
        "attnlab/bench/*",
        "attnlab/backend.py",
    ],
    "triton": ["*/triton_impl.py", "kernels/*"],
    "plotly": ["*/widget.py", "attnlab/panels/*"],
    "ipywidgets": ["*/widget.py", "attnlab/panels/*"],
    "anywidget": ["*/widget.py", "attnlab/panels/*"],
    "traitlets": ["*/widget.py", "attnlab/panels/*"],
    "flint": ["attnlab/claim.py", "*/claims.py"],
    "safetensors": ["attnlab/data.py", "attnlab/models.py"],
    "transformers": ["attnlab/models.py", "attnlab/nn/*"],
}

FILES = sorted([*ROOT.glob("attnlab/**/*.py"), *ROOT.glob("kernels/attnlab_kernels/**/*.py")])
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in FILES}


def imported(source: str) -> set[str]:
    """The modules that a file names in an import anywhere, or hands to importlib.import_module as plain text."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import():
                names |= {alias.name for alias in node.names}
            case ast.ImportFrom(level=0):
                inside = {f"{node.module}.{alias.name}" for alias in node.names}
                names |= (inside & MODULES) | ({node.module} if inside - MODULES else set())
            case ast.ImportFrom():
                raise AssertionError("write imports in full, so that this test and a reader can follow them")
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]):
                names.add(name)
    return names


def imports_of(path: Path) -> set[str]:
    return imported(path.read_text(encoding="utf-8"))


def place(path: Path) -> tuple[str, str]:
    """("" or the folder below attnlab, the file's stem)."""
    folder = path.relative_to(ROOT / "attnlab").parent.as_posix()
    return ("" if folder == "." else folder, path.stem)


def own(path: Path) -> list[list[str]]:
    """What a file imports of attnlab, as paths below it: [["arrays"], ["race", "params"]]."""
    return [name.split(".")[1:] or ["__init__"] for name in imports_of(path) if name.split(".")[0] == "attnlab"]


PACKAGE = [path for path in FILES if path.is_relative_to(ROOT / "attnlab")]
MECHANISM_FILES = [path for path in PACKAGE if place(path)[0] in attnlab.MECHANISMS]
FOUNDATION_FILES = [ROOT / "attnlab" / f"{name}.py" for name in FOUNDATION]


@pytest.mark.parametrize("path", FOUNDATION_FILES, ids=lambda path: path.stem)
def test_the_foundation_imports_the_foundation_only(path):
    allowed = FOUNDATION[path.stem]
    assert {name for name, *_ in own(path)} <= allowed, f"{path.name} may import {sorted(allowed)} of attnlab"


@pytest.mark.parametrize("path", MECHANISM_FILES, ids=lambda path: "/".join(place(path)))
def test_a_room_imports_downward_within_its_own_mechanism_only(path):
    mechanism, room = place(path)
    assert room in MECHANISM, (
        f"{room}.py has no place in MECHANISM: add it with what it may see, or find the room it belongs to"
    )
    outer = {"panels"} if room == "widget" else set()
    for first, *rest in own(path):
        if first in FOUNDATION.keys() | outer:
            continue
        assert first == mechanism, f"{mechanism}/{room}.py imports attnlab.{first}: no mechanism imports another"
        assert set(rest[:1]) <= MECHANISM[room], (
            f"{mechanism}/{room}.py may import {sorted(MECHANISM[room])}, not {rest}"
        )
        assert rest, f"{mechanism}/{room}.py imports its own package as a whole"


def test_no_implementation_may_import_another():
    assert all(MECHANISM[room].isdisjoint(ROOMS) for room in ROOMS)


@pytest.mark.parametrize("package", HOMES)
def test_an_optional_package_is_imported_only_in_the_files_named_for_it(package):
    homes = HOMES[package]
    visitors = [
        path.relative_to(ROOT).as_posix()
        for path in FILES
        if package in {name.split(".")[0] for name in imports_of(path)}
    ]
    assert [path for path in visitors if not any(fnmatch(path, home) for home in homes)] == []


def test_panels_and_the_model_know_no_mechanism():
    outside = [path for path in PACKAGE if place(path)[0] == "panels" or path.name == "models.py"]
    assert outside
    for path in outside:
        assert {name for name, *_ in own(path)} <= FOUNDATION.keys() | {"panels"}, path


def test_the_kernels_import_nothing_of_attnlab():
    kernels = [path for path in FILES if path.is_relative_to(ROOT / "kernels")]
    assert kernels
    assert [path for path in kernels if any(name.split(".")[0] == "attnlab" for name in imports_of(path))] == []


def test_an_import_inside_a_function_or_by_name_is_seen():
    assert imported("def f():\n    import torch.nn\n    from attnlab import arrays") == {"torch.nn", "attnlab.arrays"}
    assert imported("import importlib\nimportlib.import_module('flint')") == {"importlib", "flint"}
    assert imported("from attnlab.race.params import RaceParams") == {"attnlab.race.params"}
