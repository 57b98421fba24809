"""Notebooks: source and twin say the same, the twin is bare, and each runs top to bottom without a warning."""

import os
import subprocess
from pathlib import Path

import pytest

MISSING = "the notebook tools are not installed; get them with: pip install jupytext nbclient nbformat ipykernel"
jupytext = pytest.importorskip("jupytext", reason=MISSING)
nbclient = pytest.importorskip("nbclient", reason=MISSING)
pytest.importorskip("ipykernel", reason=MISSING)
nbformat = pytest.importorskip("nbformat", reason=MISSING)

FOLDER = Path(__file__).parents[1] / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))


def read(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def test_every_source_has_a_twin_and_the_first_one_is_where_the_lab_opens():
    assert NAMES == sorted(path.stem for path in FOLDER.glob("*.ipynb"))
    assert NAMES[0] == "00_start_here"


@pytest.mark.parametrize("name", NAMES)
def test_source_and_twin_hold_the_same_cells(name):
    source = jupytext.read(FOLDER / f"{name}.py")
    assert [(cell.cell_type, cell.source) for cell in source.cells] == [
        (cell.cell_type, cell.source) for cell in read(name).cells
    ], "bring them together with: make sync"


@pytest.mark.parametrize("name", NAMES)
def test_the_twin_is_bare_and_asks_for_no_kernel(name):
    """What git tracks is judged: JupyterLab saves outputs into the file that is open, and that is no fault."""
    git = subprocess.run(["git", "show", f":./{name}.ipynb"], cwd=FOLDER, capture_output=True, text=True, check=False)
    twin = nbformat.reads(git.stdout, as_version=4) if git.returncode == 0 else read(name)
    nbformat.validate(twin)
    with_output = [i for i, cell in enumerate(twin.cells) if cell.get("outputs") or cell.get("execution_count")]
    assert with_output == [], "outputs were added to git; take them out with: make sync"
    assert set(twin.metadata) == {"kernelspec"}
    assert twin.metadata.kernelspec.name == "python3"


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_asserts_what_it_says_and_keeps_its_cells_short(name):
    cells = [cell for cell in read(name).cells if cell.cell_type == "code"]
    code = [cell.source for cell in cells if "exercise" not in cell.metadata.get("tags", [])]  # those are the reader's
    assert any("\nassert " in f"\n{source}" for source in code)
    assert all("def " not in source for source in code), "something needed twice belongs in the package"
    assert all(len(source.splitlines()) <= 16 for source in code)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_top_to_bottom_without_a_warning(name, monkeypatch):
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # the debugger's own remark about frozen modules
    twin = read(name)
    client = nbclient.NotebookClient(
        twin, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}
    )
    client.execute(env=os.environ | {"PYTHONPATH": str(FOLDER.parent)})
    printed = [
        output.text
        for cell in twin.cells
        for output in cell.get("outputs", [])
        if output.output_type == "stream" and output.name == "stderr"
    ]
    assert not printed, printed
