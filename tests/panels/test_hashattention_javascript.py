"""The Hamming recall panel's JavaScript: the numbers of view.py."""

from typing import Any

import numpy as np

from attnlab.hashattention.params import SHOWN, HashParams
from attnlab.inputs import INPUTS


def anything(pick: np.random.Generator) -> dict[str, Any]:
    """Random settings of every dial but the input."""
    return {
        "selector": str(pick.choice(SHOWN)),
        "codes": str(pick.choice(["learned", "centred", "random"])),
        "bits": int(pick.integers(1, 65)),
        "budget": int(pick.integers(0, 33)),
        "sinks": int(pick.integers(0, 9)),
        "window": int(pick.integers(0, 17)),
        "top": int(pick.integers(1, 17)),
        "query": int(pick.integers(1, 65)),
        "tokens": int(pick.integers(8, 57)),
        "head_width": int(pick.integers(2, 33)),
        "seed": int(pick.integers(0, 10_000)),
    }


def some_dials() -> list[HashParams]:
    """Every selector, every kind of codes, both ends of every dial, real heads, and random settings."""
    ends = [
        {},
        {"tokens": 8, "head_width": 2, "bits": 1, "seed": 9999},
        {"tokens": 96, "head_width": 64, "bits": 64, "budget": 128, "top": 64},
        {"tokens": 24, "sinks": 64},
        {"tokens": 24, "window": 64, "budget": 0},
        {"tokens": 24, "sinks": 0, "window": 0, "budget": 0, "top": 1},
        {"tokens": 24, "sinks": 0, "window": 0, "budget": 1, "query": 1},
    ]
    shown = [{"selector": name, "tokens": 33 + n, "codes": "random"} for n, name in enumerate(SHOWN)]
    real = [
        {
            "input": name,
            "tokens": 24 + 3 * n,
            "codes": ("learned", "centred", "random")[n % 3],
            "selector": SHOWN[n % 6],
        }
        for n, name in enumerate(INPUTS[1:])
    ]
    real += [{"input": "layer 21, head 1", "tokens": 70, "codes": "learned", "bits": bits} for bits in (7, 64)]
    pick = np.random.default_rng(20241219)
    return [HashParams(**dials) for dials in [*ends, *shown, *real, *(anything(pick) for _ in range(10))]]


def test_panel_js_shows_the_numbers_of_view_py_to_1e_9(compare):
    compare("hashattention", some_dials())
