"""What holds for every exercise of every paper: a sound statement, a solution that passes, mistakes told apart."""

import ast
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import attnlab
from attnlab import cli
from attnlab.exercises import every, exercise, progress_file

EXERCISES = every()
PAPERS = tuple(dict.fromkeys(one.paper for one in EXERCISES))
ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"
SQUARE: set[tuple[str, str]] = set()  # arguments whose axes are of one size by what they are
each = pytest.mark.parametrize("one", EXERCISES, ids=lambda one: one.id)


@pytest.fixture(autouse=True)
def own_file(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTNLAB_EXERCISES", str(tmp_path / "exercises.json"))
    return tmp_path / "exercises.json"


def test_each_paper_has_at_least_four_on_three_levels():
    assert set(PAPERS) >= {"race", "residual", "hashattention", "lrkv"}
    for paper in PAPERS:
        levels = [one.level for one in EXERCISES if one.paper == paper]
        assert len(levels) >= 4, paper
        assert set(levels) == {1, 2, 3}, paper
    assert len({one.id for one in EXERCISES}) == len(EXERCISES)


@each
def test_the_solution_passes_on_fresh_seeds(one):
    for seed in range(20):
        assert one.check(one.solved, seed=seed), one.check(one.solved, seed=seed)


@each
def test_each_mistake_is_refused_and_called_by_its_own_name(one):
    assert len(one.mistakes) >= 2
    for mistake in one.mistakes:
        for seed in range(5):
            checked = one.check(mistake.answer, seed=seed)
            assert not checked, (mistake.name, seed)
            assert checked.mistake == mistake.name, checked
            assert mistake.says in checked.message


@each
def test_signature_solution_and_cases_take_the_same_arguments(one):
    (function,) = ast.parse(one.signature).body
    assert isinstance(function, ast.FunctionDef)
    asked = [argument.arg for argument in function.args.args]
    assert (function.name, asked) == (one.name, list(inspect.signature(one.solved).parameters))
    for arguments in one.cases(exercise.Draw(3)):
        assert list(arguments) == asked
    namespace = {"np": np}
    exec(one.signature, namespace)
    assert "nothing to check yet" in one.check(namespace[one.name]).message


@each
def test_it_can_be_given_whole(one):
    assert one.level in exercise.LEVELS
    assert 3 <= one.minutes <= 45
    assert re.search(r"\bpp?\. \d", one.source), one.source
    assert len(set(one.hints)) == 3
    assert all(hint.strip() for hint in one.hints)
    assert (one.expected is None) != (one.judge is None)
    arguments = next(iter(one.cases(exercise.Draw(0))))
    assert [name for name in arguments if not re.search(rf"\b{name}\b", one.text)] == []


def plain(cases):
    return [{name: np.asarray(x).tolist() for name, x in case.items()} for case in cases]


@each
def test_cases_are_new_for_every_seed_and_no_two_axes_are_alike(one):
    first, again, other = (list(one.cases(exercise.Draw(seed))) for seed in (1, 1, 2))
    assert plain(first) == plain(again)
    assert plain(first) != plain(other)
    shapes = [(name, np.shape(array)) for case in first for name, array in case.items() if (one.id, name) not in SQUARE]
    assert [(name, shape) for name, shape in shapes if len(set(shape)) < len(shape)] == []


@each
def test_its_mistakes_and_its_solution_leave_the_arguments_as_they_were(one):
    for answer in (one.solved, *(mistake.answer for mistake in one.mistakes)):
        assert "came back changed" not in one.check(answer, seed=11).message


@pytest.mark.parametrize("paper", PAPERS)
def test_the_notebook_shows_each_exercise_its_signature_and_its_check(paper):
    (notebook,) = NOTEBOOKS.glob(f"*_exercises_{paper}.py")
    assert notebook.stem == cli._notebook_of(paper)
    text = notebook.read_text(encoding="utf-8")
    own = [one for one in EXERCISES if one.paper == paper]
    places = []
    for name, signature in [(one.name, one.signature.strip()) for one in own]:
        cells = [f"{paper}.{name}", f'tags=["exercise"]\n{signature}', f"{paper}.{name}.check({name})"]
        where = [
            re.sub(r"\n\n+#", "\n\n#", text).find(f"# %%{' ' * ('tags' in cell) or chr(10)}{cell}\n") for cell in cells
        ]
        assert -1 not in where, f"{notebook.name} must hold one after the other the cells {cells}, found at {where}"
        places += where
    assert places == sorted(places)


# -- attnlab exercises ------------------------------------------------------------------------------------------------


def test_the_command_lists_all_with_what_is_solved(capsys):
    one = EXERCISES[0]
    assert one.check(one.solved)
    assert cli.main(["exercises", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["solved"], said["total"], said["file"]) == (1, len(EXERCISES), str(progress_file.path()))
    assert [record["id"] for record in said["exercises"]] == [one.id for one in EXERCISES]
    assert said["exercises"][0]["tries"] == 1
    assert said["exercises"][0]["solved"]
    assert said["exercises"][1]["solved"] is None

    assert cli.main(["exercises"]) == 0
    listed = capsys.readouterr().out
    assert re.search(rf"\+ {re.escape(one.id)} .*solved \d{{4}}-\d\d-\d\d", listed)
    assert f"1 of {len(EXERCISES)} solved, as kept in {progress_file.path()}" in listed


def test_the_command_takes_a_paper_or_an_exercise_and_names_the_known_ones(capsys):
    assert cli.main(["exercises", "race", "lrkv.nothing"]) == 2
    assert "no exercise named lrkv.nothing; the exercises are race.features" in capsys.readouterr().err
    assert cli.main(["exercises", "race", "--json"]) == 0
    assert {record["paper"] for record in json.loads(capsys.readouterr().out)["exercises"]} == {"race"}


def test_the_command_says_where_a_file_is_not_what_it_should_be(capsys, own_file):
    own_file.write_text("{")
    assert cli.main(["exercises"]) == 2
    assert "move it away to begin anew" in capsys.readouterr().err


def test_numpy_alone_suffices(tmp_path):
    blocked = "numba torch triton plotly ipywidgets anywidget flint transformers IPython".split()
    script = f"""
import sys
for name in {blocked!r}:
    sys.modules[name] = None
from attnlab.exercises import every
assert all(one.check(one.solved, seed=1) for one in every())
print(len(every()))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout == f"{len(EXERCISES)}\n", done.stderr


def test_without_a_paper_s_exercises_the_others_are_listed(monkeypatch):
    monkeypatch.setattr(attnlab, "MECHANISMS", (*attnlab.MECHANISMS, "a_paper_without_exercises"))
    assert every() == EXERCISES
