"""The softmax panel's JavaScript: the numbers of view.py, and no more lines than a new panel may cost."""

import re
from pathlib import Path

import numpy as np

from attnlab import dense
from attnlab.dense.params import SoftmaxParams
from attnlab.inputs import INPUTS

FOLDER = Path(dense.__file__).parent


def some_dials() -> list[SoftmaxParams]:
    """Every end of every dial, every real head, and two dozen random settings."""
    ends = [
        {},
        {"tokens": 4, "head_width": 2},
        {"tokens": 256, "head_width": 64, "seed": 9999},
        {"tokens": 256, "head_width": 64, "causal": True, "temperature": 2.0**-5},
        {"temperature": 2.0**-5},
        {"temperature": 2.0**5, "causal": True},
    ]
    real = [
        {"input": name, "tokens": 4 + 7 * n if n else 256, "causal": n % 2 == 0, "temperature": 2.0 ** (n - 5)}
        for n, name in enumerate(INPUTS[1:])
    ]
    pick = np.random.default_rng(20170612)
    anything = [
        {
            "temperature": float(2 ** pick.uniform(-5, 5)),
            "tokens": int(pick.integers(4, 65)) if pick.integers(4) else int(pick.integers(65, 257)),
            "head_width": int(pick.integers(2, 65)),
            "seed": int(pick.integers(0, 10_000)),
            "causal": bool(pick.integers(2)),
        }
        for _ in range(24)
    ]
    return [SoftmaxParams(**dials) for dials in ends + real + anything]


def test_panel_js_shows_the_numbers_of_view_py_to_1e_9(compare):
    compare("dense", some_dials())


def test_a_panel_for_a_new_mechanism_takes_less_than_150_lines_of_javascript():
    lines = [line for path in sorted(FOLDER.glob("*.js")) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(lines) < 150
    packed = [line for line in lines if len(line) > 120 or re.sub(r"for \(.*?\)|`.*?`", "", line).count(";") > 1]
    assert packed == []
