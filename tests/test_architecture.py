"""The arrows of docs/architecture.md, held by reading every import with ast. A new architecture starts here.

A file that no table names fails, so that whoever adds one says what it may see.
"""

import ast
from fnmatch import fnmatch
from functools import cache
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
    "dense": {"arrays"},  # its __init__ and reference; the yardstick's other rooms are a mechanism's
    "dials": {"arrays"},
    "inputs": {"arrays", "data", "dense", "draws"},
    "backend": {"arrays"},
    "parity": {"arrays", "backend", "interpreted"},
    "interpreted": {"arrays", "backend"},
    "progress": set(),
    "growing": set(),
    "lanes": set(),
    "tensors": {"backend"},  # needs torch; for the rooms that have it
}

# What a file above it may see beside the foundation. bench/race.py and its like also see the mechanism of their name,
# as do exercises/race.py, exercises/solutions/race.py and teach/race.py.
HOUSE = {
    "models": set(),
    "panels/__init__": {"panels.bundle"},
    "panels/bundle": set(),
    "panels/state": set(),
    "panels/link": {"panels.state"},
    "panels/still": set(),
    "panels/export": {"panels"},
    "panels/widget": {"panels"},
    "bench/__init__": set(),
    "bench/_lab": set(),
    "bench/_machine": {"bench"},
    "bench/_memory": {"bench"},
    "bench/_cost": {"bench"},
    "bench/_tokens": {"lanes"},
    "bench/_race_peers": set(),
    "bench/_race_profile": {"bench", "race", "lanes"},
    "bench/_race_stream": {"bench", "race"},
    "bench/_race_figure": {"bench"},
    "bench/_residual_peers": {"residual"},
    "bench/_hash_scan": {"hashattention", "lanes"},
    "bench/_read": {"lanes"},
    "bench/kernels": {"bench"},
    "bench/panels": {"bench", "panels"},
    "nn/__init__": {"nn"},
    "nn/layer": set(),
    "nn/memory": {"nn", "residual"},
    "nn/race": {"nn", "race"},
    "nn/softmax": {"nn"},
    "nn/lrkv": {"nn", "lrkv"},
    "nn/cache_budget": {"nn", "lrkv"},
    "nn/associative_recall": {"nn"},
    "nn/hf": {"hashattention"},
    "nn/sparse_decode": {"nn", "hashattention", "models"},
    "exercises/__init__": {"__init__", "exercises"},
    "exercises/exercise": {"exercises"},
    "exercises/progress_file": set(),
    "exercises/solutions/__init__": set(),
    "teach/__init__": set(),
    "teach/session": {"__init__", "panels"},
    "teach/mathml": set(),
    "teach/text": {"teach.mathml"},
    "teach/pages": {"panels.export", "teach.text"},
    "teach/slides": {"panels", "teach"},
    "teach/sheets": {"panels", "teach"},
    "teach/handout": {"bench", "teach"},
    "teach/record": {"teach"},
    "teach/kit": {"panels", "teach"},
    "cli": {"bench", "exercises", "models", "panels", "teach"},
}

# What a room of a mechanism may see of the same mechanism, beside the foundation; a widget also stands on the panels.
MECHANISM = {
    "params": set(),
    "reference": {"params"},
    "theory": {"params", "reference"},
    "rational": set(),  # the same formulas in exact fractions
    "enclosures": {"theory"},  # and in ball arithmetic
    "comparisons": {"params", "reference"},
    "chunked": {"params"},  # the formulas that the fast rooms follow, to be read
    "near_misses": {"reference"},
    "selectors": {"params", "reference"},
    "capacity": {"reference", "params", "theory"},
    "scan": set(),  # pieces over lanes
    "cpu_kernels": {"params", "scan"},  # stands on lanes; shared unchanged by numba_impl and torch_impl
    "tensors": {"params"},  # shared unchanged by torch_impl and triton_impl
    "numba_impl": {"params", "cpu_kernels"},
    "numba_plain": set(),  # the version to read
    "torch_impl": {"params", "cpu_kernels", "tensors"},
    "triton_impl": {"params", "tensors"},
    "sequence_parallel": {"params", "tensors"},  # over the rooms, through the backend
    "api": {"params"},
    "streaming": {"params", "api"},
    "cache": {"params", "api"},
    "rotary": {"params", "reference"},  # what may turn with position
    "schemes": {"params", "reference", "rotary", "cache"},  # from weights: MHA, GQA, MQA, MLA, LRKV
    "accounting": {"params"},
    "conversion": {"params", "reference", "rotary", "models"},  # the last for a real model's weights
    "diversity": {"params"},
    "training": {"params", "reference", "selectors", "models"},  # the last to write the shipped maps again
    "claims": {
        *("params", "reference", "selectors", "chunked", "near_misses", "theory", "rational", "enclosures"),
        *("rotary", "schemes", "accounting", "conversion", "diversity"),
    },
    "view": {"params", "reference", "theory", "selectors", "rotary", "accounting", "diversity", "panels.still"},
    "widget": {"params", "view", "api", "rational", "panels"},
    "__init__": {"params", "api"},
}

# Where an optional package may be imported.
HOMES = {
    "numba": [
        "*/numba_impl.py",
        "*/numba_plain.py",
        "*/cpu_kernels.py",
        "*/scan.py",
        "attnlab/lanes.py",
        "attnlab/bench/*",
    ],
    "llvmlite": ["attnlab/lanes.py", "*/scan.py", "*/cpu_kernels.py"],
    "torch": [
        "*/torch_impl.py",
        "*/triton_impl.py",
        "*/tensors.py",
        "*/training.py",
        "*/sequence_parallel.py",
        "kernels/*",
        "attnlab/models.py",
        "attnlab/nn/*",
        "attnlab/bench/*",
        "attnlab/backend.py",
    ],
    "triton": ["*/triton_impl.py", "kernels/*"],
    "attnlab_kernels": ["*/triton_impl.py", "kernels/*", "attnlab/bench/kernels.py", "attnlab/interpreted.py"],
    "plotly": ["*/widget.py", "attnlab/bench/*"],
    "ipywidgets": ["*/widget.py"],
    "anywidget": ["*/widget.py"],
    "traitlets": ["*/widget.py"],
    "IPython": ["attnlab/panels/widget.py"],
    "playwright": ["attnlab/bench/*"],
    "flint": ["attnlab/claim.py", "*/claims.py"],
    "markdown_it": ["attnlab/teach/text.py"],
    "mdit_py_plugins": ["attnlab/teach/text.py"],
    "latex2mathml": ["attnlab/teach/mathml.py"],
    "safetensors": ["attnlab/data.py", "attnlab/models.py", "attnlab/nn/*", "*/training.py"],
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


@cache
def imports_of(path: Path) -> set[str]:
    return imported(path.read_text(encoding="utf-8"))


def allowed(path: Path) -> set[str]:
    """What a file may see, as dotted paths below attnlab: a module, or a package with all that is in it."""
    name = path.relative_to(ROOT / "attnlab").with_suffix("").as_posix()
    folder, _, stem = name.rpartition("/")
    if name in FOUNDATION:
        return FOUNDATION[name]
    if name in ("dense/__init__", "dense/reference"):
        return {*FOUNDATION["dense"], "dense"}
    if folder in (*attnlab.MECHANISMS, "dense") and stem in MECHANISM:
        return FOUNDATION.keys() | {f"{folder}.{room}" if room in MECHANISM else room for room in MECHANISM[stem]}
    floor = folder.removesuffix("/solutions")
    if floor in ("bench", "exercises", "teach") and stem in attnlab.MECHANISMS:
        return FOUNDATION.keys() | {floor, stem}
    assert name in HOUSE, f"{name}.py has no row: say here what it may see, or find the file it belongs to"
    return FOUNDATION.keys() | HOUSE[name]


PACKAGE = [path for path in FILES if path.is_relative_to(ROOT / "attnlab")]


@pytest.mark.parametrize("path", PACKAGE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_file_sees_only_what_its_row_allows(path):
    row = allowed(path)
    seen = [name.split(".")[1:] or ["__init__"] for name in imports_of(path) if name.split(".")[0] == "attnlab"]
    assert [parts for parts in seen if row.isdisjoint({parts[0], ".".join(parts[:2])})] == [], f"allowed: {sorted(row)}"


@pytest.mark.parametrize("name", ["helpers", "race/helpers", "bench/helpers", "panels/helpers", "new/__init__"])
def test_a_file_without_a_row_fails(name):
    with pytest.raises(AssertionError, match=f"{name}.py has no row"):
        allowed(ROOT / "attnlab" / f"{name}.py")


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


def test_the_kernels_import_nothing_of_attnlab():
    kernels = [path for path in FILES if path.is_relative_to(ROOT / "kernels")]
    assert kernels
    assert [path for path in kernels if any(name.split(".")[0] == "attnlab" for name in imports_of(path))] == []


def test_an_import_inside_a_function_or_by_name_is_seen():
    assert imported("def f():\n    import torch.nn\n    from attnlab import arrays") == {"torch.nn", "attnlab.arrays"}
    assert imported("import importlib\nimportlib.import_module('flint')") == {"importlib", "flint"}
    assert imported("from attnlab.race.params import RaceParams") == {"attnlab.race.params"}
