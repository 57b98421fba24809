"""The live RACE panel in a notebook: traits and wiring, no arithmetic."""

from typing import ClassVar

from attnlab.panels.widget import Panel
from attnlab.race import view as race_view

__all__ = ["RacePanel"]


class RacePanel(Panel):
    """RACE with its dials as keyword arguments: `RacePanel(planes=3, input="layer 9, head 1")`."""

    room: ClassVar = race_view
