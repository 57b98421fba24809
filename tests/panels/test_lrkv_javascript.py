"""The RoPE subspace panel's JavaScript: the numbers of view.py."""

from typing import Any

import numpy as np

from attnlab.lrkv.params import BYTES, WAYS, LrkvParams


def anything(pick: np.random.Generator) -> dict[str, Any]:
    """Random settings of every dial."""
    return {
        "option": str(pick.choice(WAYS)),
        "angle": int(pick.integers(0, 91)),
        "first": int(pick.integers(1, 20)),
        "second": int(pick.integers(1, 20)),
        "opposite": bool(pick.integers(2)),
        "position": int(pick.integers(0, 65)),
        "heads": int(pick.integers(1, 65)),
        "head_width": int(pick.integers(4, 65)),
        "rank": int(pick.integers(0, 33)),
        "tokens": int(pick.integers(2, 25)),
        "groups": int(pick.integers(1, 65)),
        "latent_width": int(pick.integers(0, 961)),
        "stored": str(pick.choice(list(BYTES))),
        "context": int(pick.integers(1, 1_048_577)),
        "layers": int(pick.integers(1, 129)),
        "shared": float(pick.uniform()),
        "seed": int(pick.integers(0, 10_000)),
    }


def some_dials() -> list[LrkvParams]:
    """Every repair, both ends of every dial, and random settings."""
    repairs = [{"option": name, "opposite": n % 2 == 1, "head_width": 16 + 4 * n} for n, name in enumerate(WAYS)]
    ends = [
        {},
        {"head_width": 4, "rank": 128, "heads": 1, "tokens": 2, "angle": 45, "seed": 9999},
        {"head_width": 128, "rank": 128, "heads": 64, "tokens": 64, "option": "best_latent_map", "position": 64},
        {"head_width": 128, "rank": 64, "tokens": 33, "option": "query_side", "first": 64, "second": 64},
        {"rank": 0, "angle": 0, "position": 0, "shared": 0.0, "latent_width": 0, "context": 1, "layers": 1},
        {"rank": 0, "option": "tied", "angle": 90, "shared": 1.0, "heads": 18},
        {"rank": 1, "option": "partial", "head_width": 7, "groups": 64, "heads": 48},
        {"angle": 45, "opposite": True, "first": 3, "second": 1, "option": "best_latent_map", "rank": 16},
        {"option": "still", "rank": 0, "tokens": 5},
    ]
    pick = np.random.default_rng(20260407)
    return [LrkvParams(**dials) for dials in [*repairs, *ends, *(anything(pick) for _ in range(20))]]


def test_panel_js_shows_the_numbers_of_view_py_to_1e_9(compare):
    compare("lrkv", some_dials())
