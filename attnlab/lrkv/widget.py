"""The live panel of the RoPE subspace in a notebook: traits and wiring, no arithmetic."""

from typing import ClassVar

from attnlab.lrkv import view as lrkv_view
from attnlab.panels.widget import Panel

__all__ = ["LrkvPanel"]


class LrkvPanel(Panel):
    """What may turn, and what a cache holds, dials as keyword arguments: `LrkvPanel(option="tied", angle=45, rank=8)`.

    `angle`, `turn` and `tilt` are degrees; the picture itself can be dragged to set them.
    """

    room: ClassVar = lrkv_view
