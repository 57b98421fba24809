"""A claim is data: a sentence, its page, the verdict we recorded, and a check that can fail. Certificates say how
strong the evidence is.

The evidence, strongest first:
    exact         rational arithmetic (fractions.Fraction or integers): nothing is rounded
    certified     ball arithmetic (python-flint): an enclosure that excludes the other verdict
    identity      float64, to a stated relative error over random shapes
    statistical   an interval at a stated confidence, from a fixed seed

A check takes the formula under test as a default argument, so that a test can hand it a wrong one and see it fail.
"""

import html
import importlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

__all__ = [
    "NOBODY",
    "SAID_BY",
    "Claim",
    "Evidence",
    "Ledger",
    "Outcome",
    "Verdict",
    "backed",
    "below",
    "certified",
    "chernoff",
    "decide",
    "every",
    "exact",
    "flint",
    "hoeffding",
    "identity",
    "run",
    "statistical",
]  # fmt: skip


SAID_BY = {  # how `source` begins, and who says the sentence
    "paper": "the paper",
    "the authors' repository": "the authors' code",
    "reader's analysis": "the reader",  # the author of the reading notes that this project began from
    "this project": "this project",
}
NOBODY = "nobody: a natural guess"  # a sentence that the reader or this project writes down in order to deny it


class Verdict(StrEnum):
    """The verdict is always about the sentence `says`: a false sentence of a paper is recorded as it stands there, and
    REFUTED.
    """

    HOLDS = "HOLDS"
    REFUTED = "REFUTED"
    CONDITIONAL = "CONDITIONAL"


class Evidence(StrEnum):
    """How a verdict was reached; see the module's first lines."""

    EXACT = "exact"
    CERTIFIED = "certified"
    IDENTITY = "identity"
    STATISTICAL = "statistical"


@dataclass(frozen=True)
class Outcome:
    """What a check saw: the verdict, the evidence it really used, the number it measured beside the bound, and a remark
    where one is due.
    """

    observed: Verdict
    evidence: Evidence
    measured: str
    bound: str
    note: str = ""


@dataclass(frozen=True)
class Claim:
    """One statement under test. `source` names paper, place and PDF page, or says that it is a reader's or this
    project's.
    """

    id: str
    says: str
    source: str
    recorded: Verdict
    evidence: Evidence
    check: Callable[..., Outcome] = field(repr=False)

    @property
    def said_by(self) -> str:
        """Who says the sentence: verdicts are counted for and against them. Raises ValueError for an unknown source."""
        for start, who in SAID_BY.items():
            if self.source.startswith(start):
                denied = self.recorded == Verdict.REFUTED and who in {"the reader", "this project"}
                return NOBODY if denied else who
        raise ValueError(f"source of {self.id} must begin with one of {', '.join(SAID_BY)}, got {self.source!r}")

    def run(self) -> dict[str, Any]:
        """Run the check: the record that `attnlab verify --json` prints. An exception inside the check is a failed
        claim, never a missing one.
        """
        try:
            outcome = self.check()
        except Exception as error:  # the record must show it; `agrees` is then False
            outcome = None
            note = f"the check raised {type(error).__name__}: {error}"
        about = {"id": self.id, "says": self.says, "source": self.source, "said_by": self.said_by}
        record = about | {"recorded": str(self.recorded)}
        if outcome is None:
            return record | {
                "observed": None,
                "evidence": None,
                "measured": None,
                "bound": None,
                "note": note,
                "agrees": False,
            }
        return record | {
            "observed": str(outcome.observed),
            "evidence": str(outcome.evidence),
            "measured": outcome.measured,
            "bound": outcome.bound,
            "note": outcome.note,
            "agrees": outcome.observed == self.recorded,
        }


class Ledger(list[dict[str, Any]]):
    """The records of several claims; a notebook shows it as a table, sentence by sentence."""

    def _repr_html_(self) -> str:
        head = "".join(
            f"<th style='text-align:left'>{name}</th>" for name in ("claim", "verdict", "evidence", "said by")
        )
        rows = []
        for record in self:
            cells = {name: html.escape(str(value)) for name, value in record.items()}
            verdict = (
                cells["observed"] if record["agrees"] else f"{cells['observed']}, but recorded {cells['recorded']}"
            )
            colour = "#D55E00" if record["observed"] == "REFUTED" or not record["agrees"] else "inherit"
            remark = f"<br>{cells['note']}" if record["note"] else ""
            columns = (
                f"<b>{cells['id']}</b><br>{cells['says']}",
                f"<b style='color:{colour}'>{verdict}</b>",
                f"<b>{cells['evidence']}</b><br>measured: {cells['measured']}<br>wanted: {cells['bound']}{remark}",
                f"<b>{cells['said_by']}</b><br>{cells['source']}",
            )
            rows.append("".join(f"<td style='text-align:left;vertical-align:top'>{column}</td>" for column in columns))
        return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def run(claims: Iterable[Claim]) -> Ledger:
    """Check several claims, one after the other."""
    return Ledger(claim.run() for claim in claims)


def decide(holds: bool, when_false: Verdict = Verdict.REFUTED) -> Verdict:
    """HOLDS if `holds`, else `when_false`."""
    return Verdict.HOLDS if holds else when_false


def exact(holds: bool, measured: Any, bound: Any, note: str = "") -> Outcome:
    """The outcome of a comparison in rational arithmetic; the caller compared Fractions or integers."""
    return Outcome(decide(bool(holds)), Evidence.EXACT, _text(measured), _text(bound), note)


def identity(errors: Iterable[float], bound: float, note: str = "") -> Outcome:
    """HOLDS if every relative error is at most `bound`; a NaN among them, or no error at all, refutes."""
    errors = [float(e) for e in errors]
    worst = math.nan if not errors or any(math.isnan(e) for e in errors) else max(errors)
    return Outcome(
        decide(worst <= bound), Evidence.IDENTITY, f"largest relative error {worst:.2e}", f"at most {bound:.0e}", note
    )


def statistical(
    low: float, high: float, inside: Callable[[float, float], bool], wanted: str, confidence: float, note: str = ""
) -> Outcome:
    """HOLDS if the interval [low, high], which covers the truth with probability `confidence`, passes `inside(low,
    high)`.
    """
    holds = low <= high and inside(low, high)
    return Outcome(
        decide(bool(holds)), Evidence.STATISTICAL, f"[{low:.5g}, {high:.5g}] at confidence {confidence:g}", wanted, note
    )


def hoeffding(mean: float, n: int, confidence: float, width: float = 1.0) -> tuple[float, float]:
    """An interval for the expectation of n independent terms whose range is `width`; it needs no assumption on their
    distribution.
    """
    radius = width * math.sqrt(math.log(2 / (1 - confidence)) / (2 * n))
    return mean - radius, mean + radius


def chernoff(successes: int, n: int, confidence: float) -> tuple[float, float]:
    """An interval for a probability after `successes` of n independent trials, by Chernoff's bound.

    It holds all p with n KL(successes/n || p) <= log(2/(1 - confidence)); like Hoeffding's it is valid for every n, and
    far shorter near 0 and 1. Raises ValueError unless 0 <= successes <= n and n >= 1.
    """
    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"successes must lie in [0, n] with n >= 1, got {successes} of {n}")
    rate, allowed = successes / n, math.log(2 / (1 - confidence)) / n

    def divergence(p: float) -> float:
        return sum(x * math.log(x / y) if y > 0 else math.inf for x, y in ((rate, p), (1 - rate, 1 - p)) if x > 0)

    def edge(outside: float) -> float:
        inside = rate
        for _ in range(60):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if divergence(middle) <= allowed else (inside, middle)
        return outside

    return (edge(0.0) if successes else 0.0), (edge(1.0) if successes < n else 1.0)


def backed(main: Outcome, *others: Outcome) -> Outcome:
    """`main`, with the measurements of the others in its note, where all of them hold; else the first that does not.

    The others look at a part of the sentence, or at all of it with weaker evidence: they can only take a verdict away.
    """
    for outcome in (main, *others):
        if outcome.observed != Verdict.HOLDS:
            return outcome
    notes = [f"Also {other.evidence}: {other.measured} ({other.bound}). {other.note}".strip() for other in others]
    return replace(main, note=" ".join([main.note, *notes]).strip())


# -- ball arithmetic: a comparison is True, False, or None where the balls are too wide to tell --


def below(x: Any, y: Any) -> bool | None:
    """Whether x < y, for balls or floats: None where neither x < y nor x >= y is certain (overlapping balls, NaN)."""
    return True if x < y else False if x >= y else None


def every(statements: Iterable[bool | None]) -> bool | None:
    """False if one of the statements is, else None if one is undecided or there is none, else True."""
    statements = list(statements)
    if False in statements:
        return False
    return None if None in statements or not statements else True


def flint() -> Any | None:
    """python-flint's module, or None where it is not installed (extra `certify`)."""
    try:
        return importlib.import_module("flint")
    except ImportError:
        return None


def certified(prove: Callable[[Any], tuple[bool | None, str, str]], otherwise: Callable[[], Outcome]) -> Outcome:
    """Ball arithmetic where python-flint is installed, else the claim's weaker evidence, and the outcome says so.

    `prove(flint)` returns (holds, measured, bound). It may answer True or False only if an enclosure excludes the
    contrary; None, where the balls are too wide to decide, also falls to the weaker evidence.
    """
    module = flint()
    if module is None:
        return _weaker(otherwise(), "python-flint is not installed (pip install python-flint)")
    holds, measured, bound = prove(module)
    if holds is None:
        return _weaker(otherwise(), f"The enclosures are too wide to decide ({measured})")
    return Outcome(decide(holds), Evidence.CERTIFIED, measured, bound)


def _weaker(outcome: Outcome, why: str) -> Outcome:
    return replace(outcome, note=f"{why}, so the evidence is weaker than recorded. {outcome.note}".strip())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)
