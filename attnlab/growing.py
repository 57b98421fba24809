"""An array that grows along one axis, as a cache does: it doubles where it is full, so that n tokens, one at a time,
copy fewer than 2 n rows on the way.
"""

from typing import Any

import numpy as np

__all__ = ["Growing"]


class Growing:
    """An array that grows along one axis, NumPy or torch as the first part it is given. `view` is what it holds: no
    copy, so it shows later writes; whoever keeps it copies it.
    """

    def __init__(self, axis: int = 1):
        self.axis = axis
        self._room: Any = None
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def view(self) -> Any:
        """What was appended and not cut off, None before the first part."""
        return None if self._room is None else self._room[self._span(0, self._length)]

    def append(self, part: Any) -> None:
        """Put a part behind what is there; its other axes, type and device are those of the first part."""
        length = self._length + part.shape[self.axis]
        if self._room is None or length > self._room.shape[self.axis]:
            like = part if self._room is None else self._room
            shape = list(part.shape)
            shape[self.axis] = max(length, 2 * self._length)
            room = like.new_empty(shape) if hasattr(like, "new_empty") else np.empty(shape, like.dtype)
            if self._room is not None:
                room[self._span(0, self._length)] = self.view
            self._room = room
        self._room[self._span(self._length, length)] = part
        self._length = length

    def truncate(self, length: int) -> None:
        """Forget what lies beyond `length`, which is at most the length there is; the room stays."""
        self._length = length

    def reset(self) -> None:
        """Forget everything, shape and type too."""
        self._room, self._length = None, 0

    def _span(self, start: int, end: int) -> tuple[slice, ...]:
        return (slice(None),) * self.axis + (slice(start, end),)
