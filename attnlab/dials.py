"""Dials: what a reader can turn, with default, range and the paper's letter; slider, test and notebook share them.

A mechanism's params are a frozen dataclass on `Dials` whose fields are made by `knob`; `described` is what its panel is
told about them, and `plain` their values as JSON.
"""

from dataclasses import dataclass, field, fields
from typing import Any

from attnlab.arrays import dial, flag, one_of

__all__ = ["Curve", "Dials", "curve", "described", "highest", "knob", "plain"]

Curve = tuple[float, ...]  # heights at so many points, evenly spaced from the first token to the last
KINDS: dict[Any, str] = {int: "whole", float: "number", bool: "switch", str: "choice", Curve: "curve"}


def knob(
    default: Any,
    low: float | None = None,
    high: float | None = None,
    *,
    label: str,
    paper: str = "",
    scale: str = "linear",
    choices: tuple[str, ...] = (),
    points: int = 0,
) -> Any:
    """A dataclass field: a number in [low, high], a switch, one of `choices`, or a curve of so many `points`, each in
    [low, high]. `scale` is "linear" or "log".
    """
    meta = {"low": low, "high": high, "label": label, "paper": paper, "scale": scale}
    more = {"choices": list(choices)} if choices else {}
    return field(default=default, metadata=meta | more | ({"points": points} if points else {}))


@dataclass(frozen=True)
class Dials:
    """Values within their ranges; one number given for a curve is its height everywhere.

    Raises ValueError with the dial's name, its range and what came.
    """

    def __post_init__(self) -> None:
        for entry in fields(self):
            value, meta = getattr(self, entry.name), entry.metadata
            if entry.type is bool:
                value = flag(entry.name, value)
            elif entry.type is str:
                value = one_of(entry.name, value, meta["choices"])
            elif entry.type == Curve:
                every = value if isinstance(value, list | tuple) else [value] * meta["points"]
                value = tuple(curve(entry.name, every, meta["low"], meta["high"], meta["points"]))
            else:
                value = dial(entry.name, value, meta["low"], meta["high"], integer=entry.type is int)
            object.__setattr__(self, entry.name, value)


def curve(name: str, value: Any, low: float, high: float, points: int) -> list[float]:
    """The heights of a curve if there are so many, each a number in [low, high].

    Raises ValueError naming the curve, or the point of it, with what was wanted and what came.
    """
    if not isinstance(value, list | tuple) or len(value) != points:
        raise ValueError(f"{name} must be a list of {points} numbers, got {value!r}")
    return [dial(f"{name}[{n}]", height, low, high) for n, height in enumerate(value)]


def described(params: type[Dials]) -> list[dict[str, Any]]:
    """All dials as JSON: name, kind, default, low, high, label, paper, scale, and choices or points where there are."""
    default = plain(params())
    return [
        {"name": entry.name, "kind": KINDS[entry.type], "default": default[entry.name], **entry.metadata}
        for entry in fields(params)
    ]


def plain(params: Dials) -> dict[str, Any]:
    """The values of the dials as JSON has them: a curve is a list."""
    values = {entry.name: getattr(params, entry.name) for entry in fields(params)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def highest(params: type[Dials], name: str) -> Any:
    """The upper end of a dial's range."""
    return next(entry.metadata["high"] for entry in fields(params) if entry.name == name)
