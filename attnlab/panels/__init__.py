"""What every live panel shares: the base widget here, and beside it the kit that a mechanism's panel.js is built on.

A panel computes in the browser; this side holds the one shared state, sends what the browser cannot recompute, and
verifies on request.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from types import ModuleType
from typing import Any, ClassVar

import anywidget
import traitlets

from attnlab import parity
from attnlab.arrays import dial, flag, one_of
from attnlab.panels.bundle import bundle

__all__ = ["Panel", "checked", "defaults"]

LANGUAGES = ("en",)


class Panel(anywidget.AnyWidget):
    """A live panel of one mechanism: dials as keyword arguments, pictures in the browser, `params` back in Python.

    A subclass names its `view` module (spec, data, verification) and its `params_type`. A state, from either side, is
    taken whole or refused with a sentence; what goes wrong in a callback is shown in the panel and raised.
    """

    view: ClassVar[ModuleType]
    params_type: ClassVar[type]

    state = traitlets.Dict().tag(sync=True)
    data = traitlets.Dict(allow_none=True, default_value=None).tag(sync=True)
    report = traitlets.Dict(allow_none=True, default_value=None).tag(sync=True)
    error = traitlets.Unicode("").tag(sync=True)

    _esm = traitlets.Unicode().tag(sync=True)  # the module text; anywidget takes a trait of this name as it is

    def __init__(self, **dials: Any) -> None:
        """Raises ValueError for a dial's value out of range, TypeError for a dial that is not there."""
        self.spec = self.view.spec()
        state = defaults(self.spec)
        state["dials"] = asdict(self.params_type(**dials))
        super().__init__(state=state, _esm=bundle(self.spec["mechanism"], self.spec))
        self.on_msg(self._receive)

    @property
    def params(self) -> Any:
        """The dials as the mechanism's params; they follow when the reader lets go of a slider."""
        return self.params_type(**self.state["dials"])

    def turn(self, **dials: Any) -> None:
        """Move dials from Python: the panel follows. Raises traitlets.TraitError for no dial, or one out of range."""
        self.state = {**self.state, "dials": {**self.state["dials"], **dials}}

    def verify(self) -> list[parity.Report]:
        """Hold every implementation against the float64 reference for these dials, return the reports and show them."""
        return self._verify(dict(self.state["dials"]))  # a copy: the reader may move dials while this runs

    def _verify(self, dials: dict[str, Any]) -> list[parity.Report]:
        arguments, terms = self.view.verification(self.params_type(**dials))
        self.set_trait("report", None)  # or the browser would not hear of a report that equals the last one
        reports = parity.verify(self.spec["mechanism"], arguments, terms=terms)
        self.report = {"dials": dials, "rows": [_plain(asdict(report)) for report in reports]}
        return reports

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """Take what the browser sends; an error on the way is shown in the panel and raised."""
        with self._shown():
            super().set_state(sync_data)

    @traitlets.validate("state")
    def _check_state(self, proposal: dict[str, Any]) -> dict[str, Any]:
        try:
            return checked(proposal["value"], self.spec)
        except ValueError as refusal:
            raise traitlets.TraitError(str(refusal)) from refusal  # only this one makes traitlets restore the old state

    @traitlets.observe("state")
    def _follow(self, change: Any) -> None:
        before = change["old"] or {"dials": {"input": None}}
        if before["dials"]["input"] != change["new"]["dials"]["input"]:
            with self._shown():
                self.data = self.view.data(self.params)

    def _receive(self, _: Any, content: dict[str, Any], __: Any) -> None:
        with self._shown():
            if content.get("kind") != "verify":
                raise ValueError(f"kind of a message must be 'verify', got {content.get('kind')!r}")
            # the dials that were on the screen when the button was pressed: self.state may be older or newer
            self._verify(checked(content.get("state"), self.spec)["dials"])

    @contextmanager
    def _shown(self) -> Iterator[None]:
        """Show what is raised inside in the panel's error strip, and raise it on."""
        self.error = ""
        try:
            yield
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
            raise


def defaults(spec: dict[str, Any]) -> dict[str, Any]:
    """The state a panel opens with."""
    dials = {entry["name"]: entry["default"] for entry in spec["dials"]}
    selection = {name: choices[0] for name, choices in spec["options"].items()} | {"pin": None}
    return {"version": spec["version"], "dials": dials, "selection": selection, "language": LANGUAGES[0]}


def checked(state: Any, spec: dict[str, Any]) -> dict[str, Any]:
    """The state itself if it is whole and in range; panels/state.js refuses the same.

    Raises ValueError naming the part, what was wanted and what came.
    """
    _exactly("state", state, ["version", "dials", "selection", "language"])
    if state["version"] != spec["version"] or isinstance(state["version"], bool):
        raise ValueError(f"state.version must be {spec['version']}, got {state['version']!r}")
    _exactly("state.dials", state["dials"], [entry["name"] for entry in spec["dials"]])
    for entry in spec["dials"]:
        _check_dial(entry, state["dials"][entry["name"]])
    _exactly("state.selection", state["selection"], [*spec["options"], "pin"])
    for name, choices in spec["options"].items():
        one_of(f"state.selection.{name}", state["selection"][name], choices)
    _check_pin(state["selection"]["pin"], spec["axes"])
    one_of("state.language", state["language"], LANGUAGES)
    return state


def _check_dial(entry: dict[str, Any], value: Any) -> None:
    name, kind = entry["name"], entry["kind"]
    if kind == "switch":
        flag(name, value)
    elif kind == "choice":
        one_of(name, value, entry["choices"])
    else:
        dial(name, value, entry["low"], entry["high"], integer=kind == "whole")


def _check_pin(pin: Any, axes: list[str]) -> None:
    if pin is None:
        return
    if not isinstance(pin, dict):
        raise ValueError(f"state.selection.pin must be None or a record of indices, got {pin!r}")
    for axis, index in pin.items():
        one_of("each key of state.selection.pin", axis, axes)
        dial(f"state.selection.pin.{axis}", index, 0, math.inf, integer=True)


def _exactly(name: str, record: Any, keys: list[str]) -> None:
    if not isinstance(record, dict):
        raise ValueError(f"{name} must be a record with {', '.join(keys)}, got {record!r}")
    for key in keys:
        if key not in record:
            raise ValueError(f"{name} must have {key}, which is missing")
    for key in record:
        if key not in keys:
            raise ValueError(f"{name} must have only {', '.join(keys)}, got {key!r} too")


def _plain(report: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN and no infinity: they travel as words, which the badge never takes for a number."""
    return {name: str(x) if isinstance(x, float) and not math.isfinite(x) else x for name, x in report.items()}
