"""The least that a pass over a cache can do: read every number once, on all threads."""

import numpy as np

from attnlab.lanes import LANES, LINE, address, compiled, on_threads, piece

__all__ = ["read"]

STREAMS = 4  # vectors of eight in a step
AHEAD = 128 * LINE  # numbers


@piece
def _added(w, x, n, y):
    """The sums of so many streams of n numbers, in the lanes of y; n a multiple of 32."""

    def some(i, sums):
        for line in range(STREAMS * LANES // LINE):
            w.prefetch(w.at(x, i, AHEAD + line * LINE))
        return [w.b.fadd(w.load(w.at(x, i, LANES * j)), s) for j, s in enumerate(sums)]

    first, *others = w.loop(n, some, [w.number(0)] * STREAMS, step=STREAMS * LANES)
    for s in others:
        first = w.b.fadd(first, s)
    w.store(first, y)


@compiled
def _read(x, n, y):
    _added(x, n, y)


def read(arrays, threads):
    """Add up float32 arrays that lie in one piece each, a part of each on every thread; what fills no vector is left
    out.
    """
    sums = np.zeros((threads, LANES), np.float32)

    def part(thread):
        for x in arrays:
            n = x.size // threads // (STREAMS * LANES) * (STREAMS * LANES)
            _read(address(x) + 4 * thread * n, n, address(sums[thread]))

    on_threads(part, range(threads))
