"""The base of every live panel in a notebook: traits and wiring. The mathematics runs in the browser.

This side holds the one shared state, sends what the browser cannot draw, and verifies on request. Beside the live view
the output holds a still: what a reader sees where no kernel and no saved widget is left.
"""

import asyncio
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Self

import anywidget
import traitlets

from attnlab import backend, panels, parity
from attnlab.dials import plain
from attnlab.panels import export, link
from attnlab.panels.bundle import packed
from attnlab.panels.state import checked, defaults

__all__ = ["Panel"]

RESTED_S = 0.5  # a still is drawn anew when no dial has moved for so long
LOOK_S = 0.05  # between looks at what is computed in another process


class _Record(traitlets.Dict):
    """A dict that is handed out as a copy: a change inside it would go unchecked, and no browser would hear of it."""

    def get(self, obj: Any, cls: Any = None) -> Any:
        return deepcopy(super().get(obj, cls))


class Panel(anywidget.AnyWidget):
    """A live panel of one mechanism: dials as keyword arguments, pictures in the browser, `params` back in Python.

    A subclass names its `room`, the view.py of its mechanism (PARAMS, spec, compute, data, still, verification). A
    state, from either side, is taken whole or refused with a sentence; what goes wrong in a callback is shown in the
    panel and raised.
    """

    room: ClassVar[ModuleType]

    state = _Record().tag(sync=True)
    data = traitlets.Dict(allow_none=True, default_value=None).tag(sync=True)
    report = traitlets.Dict(allow_none=True, default_value=None).tag(sync=True)
    error = traitlets.Unicode("").tag(sync=True)
    still = traitlets.Unicode("").tag(sync=True)  # the name of the still picture that the live view hides

    _esm = traitlets.Unicode().tag(sync=True)  # the module text; anywidget takes a trait of this name as it is

    def __init__(self, **given: Any) -> None:
        """Dials, and from the selection `view`, `pin`, `language` and the mechanism's own options.

        Raises ValueError for a value out of range, TypeError for a name that is not there.
        """
        mechanism = self.room.spec()["mechanism"]
        self.spec = panels.spec(mechanism)
        state = defaults(self.spec)
        chosen = {name: given.pop(name) for name in state["selection"] if name in given}
        language = given.pop("language", state["language"])
        for name in given.keys() - state["dials"].keys():
            known = [*state["dials"], *state["selection"], "language"]
            raise TypeError(f"{type(self).__name__} takes {', '.join(known)}, got {name}")
        state |= {"dials": plain(self.room.PARAMS(**given)), "selection": state["selection"] | chosen}
        checked(state | {"language": language}, self.spec)
        self._display: Any = None  # the handle of the still in a notebook's output
        self._redraw: asyncio.TimerHandle | None = None
        self._verifying: asyncio.Task[None] | None = None  # a task that nobody holds may vanish
        self._question = 0  # how often was asked to verify
        super().__init__(
            state=state | {"language": language}, still=uuid.uuid4().hex[:12], _esm=packed(panels.source(mechanism))
        )
        self.on_msg(self._receive)

    @classmethod
    def from_link(cls, address: str) -> Self:
        """The panel that a copied link shows. Raises ValueError for a link that is damaged or of another mechanism."""
        state = link.from_fragment(address, panels.spec(cls.room.spec()["mechanism"]))
        return cls(**state["dials"], **state["selection"], language=state["language"])

    @property
    def params(self) -> Any:
        """The dials as the mechanism's params; they follow when the reader lets go of a slider."""
        return self.room.PARAMS(**self.state["dials"])

    @property
    def call(self) -> str:
        """The Python lines that rebuild this panel as it stands."""
        return link.call(self.state, self.spec)

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {self.spec['title']}"  # stands in saved notebooks, so it may not change

    def turn(self, **dials: Any) -> None:
        """Move dials from Python: the panel follows. Raises traitlets.TraitError for no dial, or one out of range."""
        self.state = {**self.state, "dials": {**self.state["dials"], **dials}}

    def verify(self) -> list[parity.Report]:
        """Hold every implementation against the float64 reference for these dials, return the reports and show them."""
        return self._verify(self.state["dials"])  # a copy: the reader may move dials while this runs

    def export(self, path: str | Path, *, force: bool = False) -> Path:
        """Write this panel as one HTML file that opens anywhere; `attnlab.panels.export.write` says what is raised."""
        return export.write(path, self.spec["mechanism"], self.state, force=force)

    def _verify(self, dials: dict[str, Any]) -> list[parity.Report]:
        self._question += 1
        arguments, terms = self.room.verification(self.room.PARAMS(**dials))
        self.set_trait("report", None)  # or the browser would not hear of a report that equals the last one
        reports = parity.verify(self.spec["mechanism"], arguments, terms=terms)
        self._tell(dials, reports)
        return reports

    async def _verify_beside(self, dials: dict[str, Any]) -> None:
        """As `_verify`, but this process serves whoever asks while kernels are interpreted in another one: the rest is
        shown first, and then all. A later question takes the place of this one.
        """
        self._question += 1
        question, mechanism, runs = self._question, self.spec["mechanism"], {}
        with self._shown():
            try:
                arguments, terms = self.room.verification(self.room.PARAMS(**dials))
                self.set_trait("report", None)
                runs = parity.begin(mechanism, arguments)
                here = [impl for impl in parity.FAST if impl not in runs]
                reports = parity.verify(mechanism, arguments, terms=terms, impls=here, runs={})
                self._tell(dials, reports, runs)
                while any(run.busy() for run in runs.values()):
                    await asyncio.sleep(LOOK_S)
                    if question != self._question:
                        return
                reports += parity.verify(mechanism, arguments, terms=terms, impls=[*runs], runs=runs)
                self._tell(dials, reports)
            finally:
                for run in runs.values():
                    run.stop()

    def _tell(self, dials: dict[str, Any], reports: list[parity.Report], awaited: Iterable[str] = ()) -> None:
        """Hand the browser the reports, and the names of the implementations that are still interpreted."""
        rows = [report.record() for report in reports] + [{"impl": impl, "ran": None} for impl in awaited]
        self.report = {"dials": dials, "rows": sorted(rows, key=lambda row: parity.FAST.index(row["impl"]))}

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """Take what the browser sends; an error on the way is shown in the panel and raised."""
        self.error = ""
        with self._shown():
            super().set_state(sync_data)

    @traitlets.validate("state")
    def _check_state(self, proposal: dict[str, Any]) -> dict[str, Any]:
        try:
            return deepcopy(checked(proposal["value"], self.spec))  # whoever gave it may change it later
        except ValueError as refusal:
            raise traitlets.TraitError(str(refusal)) from refusal  # only this one makes traitlets restore the old state

    @traitlets.observe("state")
    def _follow(self, change: Any) -> None:
        self.error = ""
        with self._shown():
            self.data = self.room.data(self.params)
        if self._display is not None:
            self._still_later()

    def _receive(self, _: Any, content: dict[str, Any], __: Any) -> None:
        self.error = ""
        with self._shown():
            if content.get("kind") != "verify":
                raise ValueError(f"kind of a message must be 'verify', got {content.get('kind')!r}")
            # the dials that were on the screen when the button was pressed: self.state may be older or newer
            dials = checked(content.get("state"), self.spec)["dials"]
            loop = _running_loop()
            if loop and any(backend.lacks_only_gpu(impl, self.spec["mechanism"]) for impl in parity.FAST):
                self._verifying = loop.create_task(self._verify_beside(dials))
            else:
                self._verify(dials)

    @contextmanager
    def _shown(self) -> Iterator[None]:
        """Show what is raised inside in the panel's error strip until the next state or message, and raise it on."""
        try:
            yield
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
            raise

    # -- the still --

    def _ipython_display_(self) -> None:
        """The live view, and after it the still as an output of its own: where the first is dead the second stands."""
        from IPython.display import display

        if self.comm is None:  # it was closed when its cell ran again, and is wanted after all
            self.__dict__.pop("_repr_mimebundle_", None)
            self.open()
        live = self._repr_mimebundle_()
        assert live is not None  # a panel has a view
        display(live[0], metadata=live[1], raw=True)
        # one name, so that whoever shows the panel twice has both stills drawn anew
        self._display = display({"text/html": self._still()}, raw=True, display_id=self.still)
        for panel in _unseen_after(self):
            panel.close()

    def _still(self) -> str:
        return export.still(self.spec["mechanism"], self.state, id=self.still)

    def _still_later(self) -> None:
        """Draw the still anew once the dials rest; at once where no event loop runs, as in a script."""
        if self._redraw is not None:
            self._redraw.cancel()
        if loop := _running_loop():
            self._redraw = loop.call_later(RESTED_S, self._draw_still)
        else:
            self._draw_still()

    def _draw_still(self) -> None:
        self._redraw = None
        with self._shown():
            self._display.update({"text/html": self._still()}, raw=True)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """Where to come back later; none in a script."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


_cells: dict[str, tuple[str, list[Panel]]] = {}  # what each notebook cell shows: the run that showed it, and its panels


def _unseen_after(panel: Panel) -> list[Panel]:
    """The panels that nobody sees any more, now that the running cell shows `panel`: those of its earlier run, unless
    another cell shows them too. They would stay in every saved notebook.
    """
    from IPython import get_ipython

    request: dict[str, Any] = getattr(get_ipython(), "get_parent", dict)()
    cell, run = request.get("metadata", {}).get("cellId"), request.get("header", {}).get("msg_id")
    if cell is None:  # no notebook, or one that does not name its cells
        return []
    last, shown = _cells.get(cell, (None, []))
    if run == last:
        shown.append(panel)
        return []
    _cells[cell] = (run, [panel])
    seen = [each for _, panels in _cells.values() for each in panels]
    return [each for each in shown if not any(each is other for other in seen)]
