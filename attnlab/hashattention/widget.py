"""The live panel of HashAttention in a notebook: traits and wiring, no arithmetic."""

from typing import ClassVar

from attnlab.hashattention import view as hash_view
from attnlab.panels.widget import Panel

__all__ = ["HashPanel"]


class HashPanel(Panel):
    """Hamming recall, dials as keyword arguments: `HashPanel(budget=16, codes="learned", input="layer 21, head 1")`."""

    room: ClassVar = hash_view
