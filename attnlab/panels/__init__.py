"""The live panels: what every one of them shares. Their mathematics and their words are each mechanism's own.

A panel computes in the browser. This folder holds the kit that a mechanism's panel.js is built on, the one shared state
and its checks, and the ways out of a notebook: a link, a Python call, a still picture, a page of its own. Only
widget.py needs anywidget; the rest needs NumPy at most.
"""

import importlib
from functools import cache
from types import ModuleType
from typing import Any

import attnlab
from attnlab.arrays import one_of
from attnlab.panels.bundle import bundle, languages

__all__ = ["names", "source", "spec", "view"]

YARDSTICKS = ("dense",)  # what the mechanisms are held against has a panel too


def names() -> tuple[str, ...]:
    """Whatever has a panel, in the order of the papers."""
    return (*YARDSTICKS, *attnlab.MECHANISMS)


def view(mechanism: str) -> ModuleType:
    """The mechanism's view.py: `spec`, `compute`, `data`, `still`, `verification`. Raises ValueError for no panel."""
    return importlib.import_module(f"attnlab.{one_of('mechanism', mechanism, names())}.view")


@cache
def spec(mechanism: str) -> dict[str, Any]:
    """All that a panel has to know, as JSON: what its view says, and the languages whose words are there."""
    said, spoken = view(mechanism).spec(), languages(mechanism)
    if not spoken:
        raise ValueError(f"{mechanism} has no words: attnlab/{mechanism}/labels.en.js is missing")
    return said | {"languages": spoken}


@cache
def source(mechanism: str) -> str:
    """The panel as the text of one JS module; bundle.py says what it exports."""
    return bundle(mechanism, spec(mechanism))
