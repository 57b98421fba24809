"""Exercises with checks, at least four a paper on three levels. NumPy suffices.

In a notebook, for each exercise one cell that shows it, one to fill in, one that checks::

    from attnlab.exercises import race
    race.features                                    # the question, and the signature to fill in
    race.features.check(features)                    # fresh arrays each time; says what is wrong, and where
    race.features.hint()                             # the next of three
    race.features.solution()                         # ours

Where what stands:
    what an exercise is, how an answer is checked    exercise.py
    the exercises of a paper                         race.py, residual.py, hashattention.py, lrkv.py
    solutions and the usual mistakes                 solutions/, a file of the same name for each
    what was tried and solved                        progress_file.py, `attnlab exercises`
"""

import importlib
import importlib.util
from types import ModuleType
from typing import Any

import attnlab

__all__ = ["every"]


def every() -> list[Any]:
    """All exercises, in the order of the papers."""
    names = [name for name in attnlab.MECHANISMS if importlib.util.find_spec(f"attnlab.exercises.{name}")]
    return [exercise for name in names for exercise in importlib.import_module(f"attnlab.exercises.{name}").EXERCISES]


def __getattr__(name: str) -> ModuleType:
    if name in attnlab.MECHANISMS:
        return importlib.import_module(f"attnlab.exercises.{name}")
    raise AttributeError(f"module 'attnlab.exercises' has no attribute {name!r}")
