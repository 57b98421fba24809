"""The residual panel's JavaScript: the numbers of view.py."""

from typing import Any

import numpy as np

from attnlab.inputs import INPUTS
from attnlab.residual.params import POINTS, RULES, ResidualParams

SWITCHES = ("same_budget", "tied", "fitting", "read_gates", "normalize")


def anything(pick: np.random.Generator) -> dict[str, Any]:
    """Random settings of every dial but the input."""
    return {
        "rule": str(pick.choice(list(RULES))),
        "similarity": float(pick.uniform()),
        **{gate: pick.uniform(size=POINTS).tolist() for gate in ("retention", "write", "correction")},
        "target": str(pick.choice(["clip", "none", "log_cosh"])),
        "clip": float(pick.uniform(0, 4)),
        **{switch: bool(pick.integers(2)) for switch in SWITCHES},
        "tokens": int(pick.integers(4, 41)),
        "head_width": int(pick.integers(2, 25)),
        "value_width": int(pick.integers(2, 25)),
        "seed": int(pick.integers(0, 10_000)),
    }


def some_dials() -> list[ResidualParams]:
    """Every rule, both ends of every dial, every switch, real heads, and two dozen random settings."""
    rules = [{"rule": rule, "tokens": 9 + n, "same_budget": n % 2 == 0} for n, rule in enumerate(RULES)]
    ends = [
        {},
        {"tokens": 2, "head_width": 2, "value_width": 2, "seed": 9999},
        {"tokens": 64, "head_width": 32, "value_width": 32},
        {"similarity": 0.0, "normalize": False, "head_width": 2, "tokens": 64},
        {"similarity": 1.0, "rule": "rla", "normalize": False},
        {"retention": 0.0, "clip": 0.0},
        {"retention": [1, 0, 1, 0, 1, 0, 1, 0], "write": 1.0, "correction": 1.0, "clip": 4.0, "tokens": 11},
        {"write": 0.0, "correction": 0.0},
        {"write": 1.0, "tied": True, "target": "none"},
        {"rule": "rla", "fitting": False, "target": "log_cosh"},
        {"fitting": False, "read_gates": False},
    ]
    real = [{"input": name, "tokens": 6 + 2 * n, "rule": list(RULES)[n % 7]} for n, name in enumerate(INPUTS[1:])]
    pick = np.random.default_rng(20250924)
    return [ResidualParams(**dials) for dials in [*ends, *rules, *real, *(anything(pick) for _ in range(20))]]


def test_panel_js_shows_the_numbers_of_view_py_to_1e_9(compare):
    compare("residual", some_dials())
