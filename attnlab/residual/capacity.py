"""How much each memory holds, measured: n random pairs written as in `theory.py`, every one recalled, with intervals.

At matched state a rule with one memory has keys twice as wide: K V numbers and K V numbers for "rla" and "rdn", one
memory of 2 K x V for the others. The mixing constants g are chosen on half of the draws and judged on the other half.
"""

from typing import Any, NamedTuple

import numpy as np

from attnlab import draws
from attnlab.arrays import Array, Float, dial
from attnlab.dense import unit
from attnlab.residual import reference, theory
from attnlab.residual.params import RULES

__all__ = ["NINETY_FIVE", "Recall", "answers", "curve", "matched_key_width", "measure"]

KEYS, VALUES = 40, 41  # streams of random numbers
NINETY_FIVE = 1.96  # standard errors of a mean on either side


class Recall(NamedTuple):
    """The error of recalling all pairs, and what is known about it: E|answer - v|^2 / V, the mean over pairs."""

    pairs: int
    error: float
    standard_error: float  # over draws
    read: Float[Array, " M"]  # the constants g

    def interval(self, width: float = NINETY_FIVE) -> tuple[float, float]:
        """The error with so many standard errors on either side."""
        return self.error - width * self.standard_error, self.error + width * self.standard_error


def matched_key_width(rule: str, key_width: int) -> int:
    """The keys that give `rule` as many state elements as two memories with keys of `key_width` have."""
    return key_width if RULES[rule].residual else 2 * key_width


def answers(
    rule: str, pairs: tuple[int, ...], key_width: int, value_width: int, draws_made: int, *, retention: float = 1.0,
    write: float = 1.0, correction: float | None = None, clip: float = np.inf, seed: int = 0,
) -> list[tuple[Float[Array, "D M N V"], Float[Array, "D N V"]]]:  # fmt: skip
    """(what each memory answers to each key, the values), once for each of `pairs`, on the same draws, through the
    reference. The longer runs go on where the shorter ones end.
    """
    longest = max(pairs)
    shape = (dial("draws_made", draws_made, 1, 2**20, integer=True), longest, 1)
    k = unit(draws.normal(seed, KEYS, shape[0], longest * key_width).reshape(*shape, key_width))
    v = draws.normal(seed, VALUES, shape[0], longest * value_width).reshape(*shape, value_width)
    gates = {"retention": retention, "write": write, "correction": write if correction is None else correction}
    constant = {name: np.full(1, gates[name]) for name in RULES[rule].gates}
    found, done = [], 0
    part: dict[str, Any] = {"rule": rule, "clip": clip, "return_state": True, **constant}
    state = None
    for n in sorted(set(pairs)):
        _, state = reference.attention(k[:, done:n], k[:, done:n], v[:, done:n], state=state, **part)
        memories = np.stack([x[:, 0] for x in state if x is not None], axis=1)
        found.append((np.einsum("dnk,dmkv->dmnv", k[:, :n, 0], memories), v[:, :n, 0]))
        done = n
    return found


def measure(answered: Float[Array, "D M N V"], values: Float[Array, "D N V"], read: Array | None = None) -> Recall:
    """The error over draws. Without `read` the first half of the draws chooses the constants and the second is judged.

    Raises ValueError for fewer than four draws.
    """
    dial("draws", len(values), 4, 2**31, integer=True)
    if read is None:
        half = len(values) // 2
        second = np.einsum("dmnv,dlnv->ml", answered[:half], answered[:half])
        read = np.linalg.pinv(second, rcond=1e-12, hermitian=True) @ np.einsum(
            "dmnv,dnv->m", answered[:half], values[:half]
        )
        answered, values = answered[half:], values[half:]
    each = ((np.einsum("m,dmnv->dnv", read, answered) - values) ** 2).mean(axis=(1, 2))
    return Recall(values.shape[1], float(each.mean()), float(each.std(ddof=1) / np.sqrt(len(each))), np.asarray(read))


def curve(
    rule: str, pairs: tuple[int, ...], key_width: int, value_width: int, draws_made: int, **options: Any
) -> tuple[list[Recall], list[float]]:
    """(measured, in theory) for each of `pairs` with the best constants; `key_width` is that of two memories, matched
    for the others. Options as of `answers`; the theory is without a clip.
    """
    K = matched_key_width(rule, key_width)
    measured = [measure(*found) for found in answers(rule, pairs, K, value_width, draws_made, **options)]
    gates = {name: options[name] for name in ("retention", "write", "correction") if name in options}
    exact = [float(theory.error(theory.moments(rule, n, K, **gates)).mean()) for n in sorted(set(pairs))]
    return measured, exact
