"""The one shared object of a panel: {version, dials, selection, language}. panels/state.js refuses the same."""

from typing import Any

from attnlab.arrays import dial, flag, one_of
from attnlab.dials import curve

__all__ = ["LARGEST", "checked", "defaults"]

LARGEST = 2**53 - 1  # up to here a double, and so a browser, holds every whole number


def defaults(spec: dict[str, Any]) -> dict[str, Any]:
    """The state a panel opens with."""
    dials = {entry["name"]: entry["default"] for entry in spec["dials"]}
    selection = {name: choices[0] for name, choices in spec["options"].items()}
    selection |= {"view": spec["views"][0], "pin": None}
    return {"version": spec["version"], "dials": dials, "selection": selection, "language": spec["languages"][0]}


def checked(state: Any, spec: dict[str, Any]) -> dict[str, Any]:
    """The state itself if it is whole and in range.

    Raises ValueError naming the part, what was wanted and what came.
    """
    _exactly("state", state, ["version", "dials", "selection", "language"])
    if state["version"] != spec["version"] or isinstance(state["version"], bool):
        raise ValueError(f"state.version must be {spec['version']}, got {state['version']!r}")
    _exactly("state.dials", state["dials"], [entry["name"] for entry in spec["dials"]])
    for entry in spec["dials"]:
        _check_dial(entry, state["dials"][entry["name"]])
    _exactly("state.selection", state["selection"], [*spec["options"], "view", "pin"])
    for name, choices in (*spec["options"].items(), ("view", spec["views"])):
        one_of(f"state.selection.{name}", state["selection"][name], choices)
    _check_pin(state["selection"]["pin"], spec["axes"])
    one_of("state.language", state["language"], spec["languages"])
    return state


def _check_dial(entry: dict[str, Any], value: Any) -> None:
    name, kind = entry["name"], entry["kind"]
    if kind == "switch":
        flag(name, value)
    elif kind == "choice":
        one_of(name, value, entry["choices"])
    elif kind == "curve":
        curve(name, value, entry["low"], entry["high"], entry["points"])
    else:
        dial(name, value, entry["low"], entry["high"], integer=kind == "whole")


def _check_pin(pin: Any, axes: list[str]) -> None:
    if pin is None:
        return
    if not isinstance(pin, dict) or not pin:
        raise ValueError(f"state.selection.pin must be None or a record of indices, got {pin!r}")
    for axis, index in pin.items():
        one_of("each key of state.selection.pin", axis, axes)
        dial(f"state.selection.pin.{axis}", index, 0, LARGEST, integer=True)


def _exactly(name: str, record: Any, keys: list[str]) -> None:
    if not isinstance(record, dict):
        raise ValueError(f"{name} must be a record with {', '.join(keys)}, got {record!r}")
    for key in keys:
        if key not in record:
            raise ValueError(f"{name} must have {key}, which is missing")
    for key in record:
        if key not in keys:
            raise ValueError(f"{name} must have only {', '.join(keys)}, got {key!r} too")
