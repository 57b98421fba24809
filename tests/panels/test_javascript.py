"""The panels' JavaScript, run by Node on vectors that Python writes: same draws, same refusals, same numbers."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from attnlab import draws, panels
from attnlab.inputs import INPUTS
from attnlab.race.params import RaceParams
from tests.panels.vectors import coded

HERE = Path(__file__).parent


def test_draws_agree_bit_for_bit_and_normals_to_1e_12(node, tmp_path):
    cases = [(0, 0, 4, 3), (9999, 6, 64, 64), (2**32 - 1, 2**32 - 1, 5, 7), (12, 1, 8, 2)]
    vectors = [
        {
            "call": case,
            "bits": draws.bits(*case).ravel().tolist(),
            "uniform": coded(draws.uniform(*case), "<f8"),
            "normal": coded(draws.normal(*case), "<f8"),
        }
        for case in cases
    ]
    (tmp_path / "draws.json").write_text(json.dumps(vectors))
    node("draws.test.mjs", tmp_path)


def test_the_panel_refuses_the_states_that_python_refuses(node, tmp_path):
    (tmp_path / "spec.json").write_text(json.dumps(panels.spec("race")))
    (tmp_path / "damaged.json").write_text((HERE / "damaged_states.json").read_text())
    (tmp_path / "curves.json").write_text(json.dumps(panels.spec("residual")))
    (tmp_path / "damaged_curves.json").write_text((HERE / "damaged_curves.json").read_text())
    node("state.test.mjs", tmp_path)


def test_numbers_and_pictures(node, tmp_path):
    halves = np.array([0, -0.0, 1, -1.5, 65504, 2**-24, -(2**-14), 0.1, np.inf, -np.inf, np.nan], np.float16)
    (tmp_path / "halves.json").write_text(json.dumps({"bytes": coded(halves, "<f2"), "doubles": coded(halves, "<f8")}))
    (tmp_path / "spec.json").write_text(json.dumps(panels.spec("race")))
    node("numbers.test.mjs", tmp_path)
    node("paint.test.mjs", tmp_path)


def test_the_bundled_text_is_a_module_with_mount_and_render(node, tmp_path):
    (tmp_path / "race.mjs").write_text(panels.source("race"), encoding="utf-8")
    node("bundle.test.mjs", tmp_path)


def some_dials() -> list[RaceParams]:
    """Every end of every dial, and two dozen random settings."""
    ends = [
        {},
        {"planes": 1, "tables": 1, "tokens": 4, "head_width": 2},
        {"planes": 8, "tables": 16, "tokens": 64, "head_width": 64, "seed": 9999},
        {"planes": 8, "sharpness": 32.0, "causal": True, "tokens": 64},
        {"planes": 8, "sharpness": 0.03125, "normalize": True},
        {"planes": 1, "sharpness": 32.0},
        {"planes": 1, "sharpness": 0.03125, "causal": True},
        {"planes": 8, "tables": 16, "tokens": 256, "head_width": 64, "causal": True},
    ]
    real = [
        {"input": name, "tokens": 4 + 7 * n if n else 200, "causal": n % 2 == 0, "normalize": n % 3 == 0}
        for n, name in enumerate(INPUTS[1:])
    ]
    pick = np.random.default_rng(20251004)
    anything = [
        {
            "planes": int(pick.integers(1, 9)),
            "tables": int(pick.integers(1, 17)),
            "sharpness": float(2 ** pick.uniform(-5, 5)),
            "tokens": int(pick.integers(4, 65)) if pick.integers(4) else int(pick.integers(65, 257)),
            "head_width": int(pick.integers(2, 65)),
            "seed": int(pick.integers(0, 10_000)),
            "causal": bool(pick.integers(2)),
            "normalize": bool(pick.integers(2)),
        }
        for _ in range(24)
    ]
    return [RaceParams(**dials) for dials in ends + real + anything]


def test_panel_js_shows_the_numbers_of_view_py_to_1e_9(compare):
    compare("race", some_dials())


@pytest.mark.parametrize("path", sorted((HERE.parents[1] / "attnlab").glob("*/*.js")), ids=lambda path: path.name)
def test_no_module_asks_the_network_or_evaluates_text(path):
    source = path.read_text(encoding="utf-8")
    assert not re.search(
        r"\b(fetch|XMLHttpRequest|WebSocket|eval|Function|innerHTML|insertAdjacentHTML)\b\s*[(=]", source
    )
    assert "http" not in source
