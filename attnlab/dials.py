"""Dials: what a reader can turn, with default, range and the paper's letter; slider, test and notebook share them.

A mechanism's params are a frozen dataclass on `Dials` whose fields are made by `knob`; `described` is what its panel is
told about them.
"""

from dataclasses import dataclass, field, fields
from typing import Any

from attnlab.arrays import dial, flag, one_of

__all__ = ["Dials", "described", "highest", "knob"]

KINDS: dict[Any, str] = {int: "whole", float: "number", bool: "switch", str: "choice"}


def knob(
    default: Any,
    low: float | None = None,
    high: float | None = None,
    *,
    label: str,
    paper: str = "",
    scale: str = "linear",
    choices: tuple[str, ...] = (),
) -> Any:
    """A dataclass field: a number in [low, high], a switch, or one of `choices`. `scale` is "linear" or "log"."""
    meta = {"low": low, "high": high, "label": label, "paper": paper, "scale": scale}
    return field(default=default, metadata=meta | ({"choices": list(choices)} if choices else {}))


@dataclass(frozen=True)
class Dials:
    """Values within their ranges. Raises ValueError with the dial's name, its range and what came."""

    def __post_init__(self) -> None:
        for entry in fields(self):
            value, meta = getattr(self, entry.name), entry.metadata
            if entry.type is bool:
                value = flag(entry.name, value)
            elif entry.type is str:
                value = one_of(entry.name, value, meta["choices"])
            else:
                value = dial(entry.name, value, meta["low"], meta["high"], integer=entry.type is int)
            object.__setattr__(self, entry.name, value)


def described(params: type[Dials]) -> list[dict[str, Any]]:
    """All dials as JSON: name, kind, default, low, high, label, paper, scale, and the choices where there are some."""
    return [
        {"name": entry.name, "kind": KINDS[entry.type], "default": entry.default, **entry.metadata}
        for entry in fields(params)
    ]


def highest(params: type[Dials], name: str) -> Any:
    """The upper end of a dial's range."""
    return next(entry.metadata["high"] for entry in fields(params) if entry.name == name)
