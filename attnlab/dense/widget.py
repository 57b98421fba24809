"""The live panel of softmax attention in a notebook: traits and wiring, no arithmetic."""

from typing import ClassVar

from attnlab.dense import view as dense_view
from attnlab.panels.widget import Panel

__all__ = ["SoftmaxPanel"]


class SoftmaxPanel(Panel):
    """Softmax attention, dials as keyword arguments: `SoftmaxPanel(temperature=0.5, input="layer 9, head 1")`."""

    room: ClassVar = dense_view
