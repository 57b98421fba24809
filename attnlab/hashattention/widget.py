"""What moves in a notebook, traits and wiring, no arithmetic: the live panel, and counterexamples with a button."""

from html import escape
from typing import Any, ClassVar

import ipywidgets

from attnlab.hashattention import rational
from attnlab.hashattention import view as hash_view
from attnlab.panels.widget import Panel

__all__ = ["Counterexamples", "HashPanel"]


class HashPanel(Panel):
    """Hamming recall, dials as keyword arguments: `HashPanel(budget=16, codes="learned", input="layer 21, head 1")`."""

    room: ClassVar = hash_view


class Counterexamples(ipywidgets.VBox):
    """Exact counterexamples of one kind of `rational.KINDS`, the smallest stored ones first; the button draws, checks
    and shows another one. Raises ValueError for an unknown kind.
    """

    def __init__(self, kind: str = "lift", **options: Any):
        refuted = rational.kind_of(kind).refutes
        self.kind, self.number = kind, 0
        self.another = ipywidgets.Button(description="Find another", tooltip=f"another one against: {refuted}")
        self.table = ipywidgets.HTML()
        self.another.on_click(lambda _: self.show(self.number + 1))
        title = ipywidgets.HTML(f"<p>Refuted: <em>{escape(refuted)}</em>.</p>")
        super().__init__([title, self.table, self.another], **options)
        self.show(0)

    @property
    def example(self) -> rational.Example:
        """The counterexample on the screen."""
        stored = rational.STORED[self.kind]
        beyond = self.number - len(stored)
        return stored[self.number] if beyond < 0 else rational.find(self.kind, beyond)

    def show(self, number: int) -> None:
        """Show the counterexample of this number, from 0 on."""
        self.number = number
        facts = self.example.facts().items()
        rows = "".join(f"<tr><th scope='row'>{escape(name)}</th><td>{escape(x)}</td></tr>" for name, x in facts)
        self.table.value = f"<table>{rows}</table>"
