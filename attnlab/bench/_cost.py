"""Cost against length: calls of one head on ever other parts of arrays that no cache holds, with outputs kept until
others have taken their place in the caches. Else short sequences would be read from the cache, and the slope of log
time on log tokens would be too steep.
"""

import itertools
import math
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from attnlab import bench
from attnlab.bench import Seconds, _memory

__all__ = ["Cost", "Curve", "fit", "fitting", "rows", "slope_off_1_row", "slope_row", "times"]

CALL_TOKENS = 2**18  # a short length is called so often in a round that this many tokens go through
OUT_OF_CACHE = 2**27  # bytes: what no cache holds

Cost = dict[int, list[Seconds]]  # seconds of a call at each length, round by round
Row = dict[str, Any]


class Curve(NamedTuple):
    """What is called at each length: a function of arrays, cut to so many tokens along an axis."""

    lengths: Sequence[int]
    function: Callable[..., Any]
    arrays: list[Any]  # float32, the queries first
    axis: int
    repeated: bool = True  # CALL_TOKENS in a round


def fitting(lengths: Sequence[int], bytes_a_token: int) -> list[int]:
    """The lengths whose arrays fit into the memory that is free."""
    available = _memory.available_bytes()
    return [n for n in lengths if available is None or bytes_a_token * n < available]


def times(name: str, curve: Curve, rounds: int) -> Cost:
    """What a call takes at each length."""
    calls = {n: max(1, CALL_TOKENS // n) if curve.repeated else 1 for n in curve.lengths}
    tasks = {f"{name} at {n:,} tokens": _in_turn(curve, n, calls[n]) for n in curve.lengths}
    seconds = bench.measure(tasks, rounds)
    return {
        n: [Seconds(s.wall / calls[n], s.cpu / calls[n]) for s in each]
        for n, each in zip(curve.lengths, seconds.values(), strict=True)
    }


def _in_turn(curve: Curve, tokens: int, calls: int) -> Callable[[], None]:
    """`calls` on one part of the arrays after another, over and over, with the latest outputs kept."""
    whole, axis = curve.arrays[0], curve.axis
    starts = itertools.cycle(range(0, whole.shape[axis] - tokens + 1, tokens))
    latest = max(1, OUT_OF_CACHE // (4 * whole.shape[-1] * tokens))

    def run() -> None:
        kept: deque[Any] = deque(maxlen=latest)
        for start in itertools.islice(starts, calls):
            part = (*(slice(None),) * axis, slice(start, start + tokens))
            kept.append(curve.function(*(x[part] for x in curve.arrays)))

    return run


def fit(lengths: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Slope of log seconds on log length by least squares, and its standard error."""
    x, y = np.log(lengths), np.log(seconds)
    x, y = x - x.mean(), y - y.mean()
    slope = float(x @ y / (x @ x))
    rest = y - slope * x
    return slope, math.sqrt(float(rest @ rest) / (len(x) - 2) / float(x @ x))


def slope_off_1_row(id: str, cost: Cost, target: float) -> Row:
    """How far the slope of the medians is from linear, judged; noisy where twice its standard error is more than is
    allowed and reaches across it.
    """
    slope, error, note = _slope(cost)
    row = bench.row(id, [round(abs(slope - 1), 4)], "", better="lower", target=target, note=note)
    return row | ({"status": "noisy"} if abs(abs(slope - 1) - target) <= 2 * error and 2 * error > target else {})


def slope_row(id: str, cost: Cost) -> Row:
    """The slope of the medians."""
    slope, _, note = _slope(cost)
    return bench.row(id, [round(slope, 4)], "", better="lower", note=note)


def _slope(cost: Cost) -> tuple[float, float, str]:
    slope, error = fit([*cost], [statistics.median(s.wall for s in each) for each in cost.values()])
    return slope, error, f"slope {slope:.3f} ± {error:.3f} from {min(cost):,} to {max(cost):,} tokens"


def rows(id: str, cost: Cost) -> list[Row]:
    """The times of a call."""
    return [
        bench.row(f"{id}.{tokens}", [1e3 * s.wall for s in each], "ms", better="lower", cpu=[1e3 * s.cpu for s in each])
        for tokens, each in cost.items()
    ]
