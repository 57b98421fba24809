"""The dials of RACE, what they draw, and the checks of its public door.

Letters: P `planes`, L `tables`, beta `sharpness`, N `tokens`, d `head_width`. Randomness is data: the planes are drawn
here once, from the counter-based generator of `attnlab.draws`, and every implementation is handed the same array. Row
64 l + p of stream 1 is plane p of table l, so one more table, plane or column never changes the others.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from attnlab import draws, inputs
from attnlab.arrays import Array, Axes, Float, as_float, as_numpy, check, dial, flag, one_of
from attnlab.backend import Unsupported
from attnlab.dials import Dials, knob
from attnlab.inputs import INPUTS, TOY, Inputs

__all__ = ["PLANES_STREAM", "VARIANTS", "RaceParams", "State", "check_arguments", "draw_planes", "plain_state"]

VARIANTS = ("algorithm", "bucket_mean", "hard")
PLANES_STREAM = 1
PLANES_PER_TABLE = 64  # rows reserved for each table in the stream of planes
LARGEST_LOG_SCALE = 80.0  # exp of it is still a float32


class State(NamedTuple):
    """What the keys left behind: L R (V + 1) numbers a head. Bucket r of table l holds mass * exp(log_scale) and
    content * exp(log_scale).

    Fast paths keep plain units and leave `log_scale` None; the reference needs it to be right at any sharpness (-inf:
    nothing was written).
    """

    mass: Float[Array, "B H L R"]  # A
    content: Float[Array, "B H L R V"]  # B
    log_scale: Any = None  # [B, H, L, R]


def plain_state(state: State) -> State:
    """The same state in float64 NumPy arrays, with the scale multiplied in. Raises Unsupported where that overflows."""
    mass, content = as_float(state[0]), as_float(state[1])
    if len(state) == 2 or state[2] is None:
        return State(mass, content)
    log_scale = as_float(state[2])
    if not np.all(log_scale <= LARGEST_LOG_SCALE):
        raise Unsupported(f"a fast path keeps states in plain units; exp({log_scale.max():g}) is too large for them.")
    scale = np.exp(log_scale)
    return State(scale * mass, scale[..., None] * content)


@dataclass(frozen=True)
class RaceParams(Dials):
    """The dials of RACE with their ranges and the paper's letters; slider, test and notebook use the same ones.

    Raises ValueError with the dial's name, its range and what came.
    """

    planes: int = knob(3, 1, 8, label="planes", paper="P")
    tables: int = knob(4, 1, 16, label="tables", paper="L")
    sharpness: float = knob(4.0, 2.0**-5, 2.0**5, label="sharpness", paper="β", scale="log")
    tokens: int = knob(32, 4, 256, label="tokens", paper="N")
    head_width: int = knob(16, 2, 64, label="head width", paper="d")
    seed: int = knob(0, 0, 9999, label="seed")
    causal: bool = knob(False, label="causal")
    normalize: bool = knob(False, label="normalise q, k")
    input: str = knob(TOY, label="input", choices=INPUTS)

    @property
    def buckets(self) -> int:
        """R = 2^P."""
        return 2**self.planes

    @property
    def width(self) -> int:
        """The head width in force: the dial's for toy tokens, the model's for a real head."""
        return inputs.width(self.input, self.head_width)

    def draw_planes(self, tables: int | None = None) -> Float[Array, "L P K"]:
        """The planes of these dials; more `tables` than the dial's extend them without changing the first ones."""
        return draw_planes(self.tables if tables is None else tables, self.planes, self.width, self.seed)

    def inputs(self) -> Inputs:
        """Toy clusters drawn from the seed, or the first `tokens` positions of a window of a real head."""
        return inputs.inputs(self.input, self.tokens, self.head_width, self.seed)


def draw_planes(tables: int, planes: int, head_width: int, seed: int = 0) -> Float[Array, "L P K"]:
    """W: standard normal rows, one for each plane of each table, shared by all heads (Algorithm 1, p. 5)."""
    dial("tables", tables, 1, 2**25, integer=True)
    dial("planes", planes, 1, PLANES_PER_TABLE, integer=True)
    dial("head_width", head_width, 1, 2**30, integer=True)
    rows = (PLANES_PER_TABLE * np.arange(tables)[:, None] + np.arange(planes)).ravel()
    return draws.normal(seed, PLANES_STREAM, rows, head_width).reshape(tables, planes, head_width)


def check_arguments(q, k, v, planes, sharpness, causal, state, return_state, variant, normalize) -> None:
    """Refuse what no implementation can compute; each error names the argument, what was wanted and what came."""
    sizes: Axes = {}
    check("q", q, "B T H K", sizes)
    check("k", k, "B S H K", sizes)
    check("v", v, "B S H V", sizes)
    check("planes", planes, "L P K" if np.ndim(planes) != 4 else "H L P K", sizes)
    if not 1 <= sizes["P"][0] <= 8 or sizes["L"][0] < 1:
        raise ValueError(
            f"planes must hold 1 to 8 planes in at least one table, got {tuple(planes.shape)} for [..., L, P, K]"
        )
    if np.ndim(sharpness):
        sharpness = np.asarray(as_numpy(sharpness), dtype=np.float64)
        check("sharpness", sharpness, "H", sizes)
    for value in np.ravel(as_numpy(sharpness)).tolist():
        dial("sharpness", value, 1e-6, 1e4)
    causal, _ = flag("causal", causal), flag("return_state", return_state)
    flag("normalize", normalize)
    one_of("variant", variant, VARIANTS)
    if causal and sizes["T"][0] != sizes["S"][0]:
        raise ValueError(
            f"k must have as many positions as q where causal, so S = {sizes['T'][0]}, got S = {sizes['S'][0]}"
        )
    if state is not None:
        _check_state(state, sizes)


def _check_state(state: State, sizes: Axes) -> None:
    if not isinstance(state, tuple) or len(state) not in (2, 3):
        raise ValueError(
            f"state must be the State of an earlier call, or a tuple (mass, content), got {type(state).__name__}"
        )
    sizes["R"] = (2 ** sizes["P"][0], "planes (2^P)")
    mass, content, log_scale = State(*state)
    check("state.mass", mass, "B H L R", sizes)
    check("state.content", content, "B H L R V", sizes)
    mass, content = as_numpy(mass), as_numpy(content)
    if np.any(mass < 0):
        raise ValueError(f"state.mass must not be negative, got {mass.min():g}")
    if np.any(content[mass == 0]):
        raise ValueError("state.content must be 0 where state.mass is 0, got a bucket with content and no mass")
    if log_scale is not None:
        log_scale = as_numpy(log_scale)  # -inf: nothing was written there
        check("state.log_scale", np.where(np.isneginf(log_scale), 0, log_scale), "B H L R", sizes)
