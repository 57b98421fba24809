"""The live panel of residual error memory in a notebook: traits and wiring, no arithmetic."""

from typing import ClassVar

from attnlab.panels.widget import Panel
from attnlab.residual import view as residual_view

__all__ = ["ResidualPanel"]


class ResidualPanel(Panel):
    """Two memories, dials as keyword arguments: `ResidualPanel(rule="rla", write=0.8, input="layer 9, head 1")`.

    A gate is one number, or a list of eight heights from the first token to the last.
    """

    room: ClassVar = residual_view
