"""The base of attnlab in a fresh process: NumPy at most, and alive where the optional packages are missing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OPTIONAL = ("numba", "torch", "triton", "plotly", "ipywidgets")

REFERENCE = """
import numpy as np
import attnlab
q, k, v = (np.random.default_rng(0).standard_normal((2, 7, 3, n)) for n in (5, 5, 4))
planes = attnlab.race.draw_planes(tables=2, planes=3, head_width=5)
assert attnlab.race.attention(q, k, v, planes, 2.0, causal=True).shape == (2, 7, 3, 4)
"""


def fresh(code: str, blocked: tuple[str, ...] = ()) -> str:
    """What `code` prints in a new interpreter in which the packages in `blocked` cannot be imported."""
    block = f"import sys; sys.modules.update(dict.fromkeys({blocked!r}))\n"  # None there makes an import raise
    path = os.pathsep.join([str(ROOT), str(ROOT / "kernels")])
    done = subprocess.run(
        [sys.executable, "-c", block + code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
        cwd=ROOT / "tests",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def command(*arguments: str) -> str:
    """Code that runs `attnlab ARGUMENTS` in the interpreter at hand."""
    return f"from attnlab.cli import main\nraise SystemExit(main({list(arguments)!r}))"


def new_packages(code: str) -> set[str]:
    """The packages outside the standard library that `code` loads."""
    report = "print(*{name.split('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    return set(fresh(f"before = set(sys.modules)\n{code}\n{report}").split())


@pytest.fixture(scope="module")
def base():
    """attnlab, NumPy, and the Cython runtime that NumPy's random numbers bring."""
    return new_packages("import numpy.random") | {"attnlab"}


def test_importing_attnlab_loads_numpy_at_most(base):
    assert new_packages("import attnlab") <= base


def test_importing_every_mechanism_loads_numpy_only(base):
    assert new_packages("import attnlab\nfor name in attnlab.MECHANISMS: getattr(attnlab, name)") <= base


def test_running_a_reference_loads_numpy_only(base):
    assert new_packages(REFERENCE) <= base


def test_importing_attnlab_costs_little_more_than_importing_numpy():
    # CPU time, not wall time: the machine may be busy. The best of five, in turn, so that all meet the same conditions.
    clock = "import time; start = time.process_time(); import {}; print(time.process_time() - start)"
    rounds = [[float(fresh(clock.format(name))) for name in ("numpy", "attnlab", "attnlab.race")] for _ in range(5)]
    numpy, package, mechanism = (min(times) for times in zip(*rounds, strict=True))
    assert package < 1.5 * numpy
    assert mechanism < 1.5 * numpy


@pytest.mark.parametrize("blocked", [*((name,) for name in OPTIONAL), OPTIONAL], ids=" ".join)
class TestWithoutOptionalPackages:
    def test_the_reference_runs(self, blocked):
        fresh(REFERENCE, blocked)

    def test_the_claims_are_listed(self, blocked):
        assert (
            "race.lemma10"
            in fresh("from attnlab.race.claims import CLAIMS\nprint(*(claim.id for claim in CLAIMS))", blocked).split()
        )

    def test_doctor_names_what_is_missing_and_how_to_get_it(self, blocked):
        report = json.loads(fresh(command("doctor", "--json"), blocked))
        packages = {package["name"]: package for package in report["packages"]}
        for name in blocked:
            assert packages[name]["version"] is None
            assert packages[name]["get"].startswith("pip install")
