"""Inputs that the tests of residual memory share, and the comparison they use in float64."""

from typing import Any

import numpy as np

from attnlab import draws
from attnlab.dense import unit
from attnlab.residual import RULES, State

GATES = ("retention", "write", "correction")
RESIDUAL = tuple(rule for rule, has in RULES.items() if has.residual)


def normal(seed: int, stream: int, *shape: int) -> np.ndarray:
    """Standard normal numbers of any shape."""
    return draws.normal(seed, stream, int(np.prod(shape[:-1])), shape[-1]).reshape(shape)


def uniform(seed: int, stream: int, *shape: int) -> np.ndarray:
    """Numbers in [0, 1) of any shape."""
    return draws.uniform(seed, stream, int(np.prod(shape[:-1])), shape[-1]).reshape(shape)


def one_reset(x: np.ndarray, every: int = 16) -> np.ndarray:
    """0.99, but 1e-300 at one token of every 16."""
    tokens = np.arange(x.shape[1]) % every == every // 2
    return np.where(tokens[None, :, None], 1e-300, 0.99 + 0.0 * x)


RETENTION = {  # from uniform numbers [B, T, H]; where forms with logarithms break
    "mild": lambda x: np.exp(-2.0 * x),
    "one": np.ones_like,
    "nearly one": lambda x: 1.0 - 1e-6 * x,
    "any magnitude": lambda x: 10.0 ** (-300.0 * x),
    "tiny among large": lambda x: np.where(x < 0.1, 1e-30, 0.999),
    "some zero": lambda x: np.where(x < 0.2, 0.0, 1.0 - 0.1 * x),
    "one reset": one_reset,
}


def arguments(
    rule: str = "rdn", *, B: int = 2, T: int = 17, H: int = 3, K: int = 5, V: int = 4, retention: str = "mild",
    carried: bool = False, sequences: int | None = None, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Keyword arguments of `attention`: q normal, k of length 1, v normal, and just the gates that the rule has; where
    `carried`, a state of `sequences` (B if None).
    """
    has = RULES[rule]
    drawn = dict(zip(GATES, (uniform(seed, stream, B, T, H) for stream in (11, 12, 13)), strict=True))
    drawn["retention"] = RETENTION[retention](drawn["retention"])
    if rule == "retnet":
        drawn["retention"] = RETENTION[retention](uniform(seed, 11, 1, 1, H))[0, 0]
    memories = [normal(seed, stream, sequences or B, H, K, V) for stream in (4, 5)]
    return {
        "q": normal(seed, 1, B, T, H, K),
        "k": unit(normal(seed, 2, B, T, H, K)),
        "v": normal(seed, 3, B, T, H, V),
        **{name: drawn[name] for name in has.gates},
        "rule": rule,
        "state": State(memories[0], memories[1] if has.residual else None) if carried else None,
    }


def cut(given: dict[str, Any], start: int, end: int) -> dict[str, Any]:
    """The same call on tokens start to end."""
    return {name: x[:, start:end] if isinstance(x, np.ndarray) and x.ndim > 1 else x for name, x in given.items()}


def flat(out: Any, state: State) -> dict[str, np.ndarray]:
    """What one call returns, by name."""
    last = {"base": state.base} if state.residual is None else {"base": state.base, "residual": state.residual}
    return {"out": out, **last}


def row_error(got: Any, want: Any, floor: float = 1e-3) -> float:
    """The largest error of a row, relative to its largest entry, or to `floor` times the largest of all where that is
    more; NaN where a shape is another one or a number is NaN.
    """
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape:
        return np.nan
    if want.size == 0:
        return 0.0
    size = np.abs(want).max(axis=-1)
    size = np.maximum(size, floor * size.max())
    return float((np.abs(got - want).max(axis=-1) / np.where(size > 0, size, 1.0)).max())


def assert_rows(got: dict[str, Any], want: dict[str, Any], tolerance: float, where: Any = "") -> None:
    """Every row of every named array."""
    assert got.keys() == want.keys()
    errors = {name: row_error(got[name], want[name]) for name in want}
    assert all(error <= tolerance for error in errors.values()), (where, errors)  # NaN fails
