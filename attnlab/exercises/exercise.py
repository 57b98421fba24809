"""What an exercise is, and how an answer is checked: on fresh seeds, at several sizes with all axes different, against
the reference, with a message that names the first wrong index and the mistake behind it where it is a usual one.

An exercise is data, like a claim. Solutions and usual mistakes stand in `solutions/`, in a file of the same name, and
are loaded when they are asked for. NumPy suffices.
"""

import html
import importlib
import inspect
import secrets
import textwrap
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlab import draws
from attnlab.exercises import progress_file

__all__ = ["LEVELS", "TOLERANCE", "Checked", "Draw", "Exercise", "Markdown", "Mistake", "apart"]

LEVELS = {1: "read and write down", 2: "build", 3: "find"}
TOLERANCE = 1e-9  # of the largest expected number. At these sizes float64 sums in another order differ by about 1e-14
# of it, and numbers that went through float32 by about 1e-7: the bound stands in the middle of that gap.

Arguments = dict[str, Any]


class Markdown(str):
    """Text that a notebook sets, and a terminal prints as it is."""

    def _repr_markdown_(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Mistake:
    """A wrong answer that many give: what it is called, a sentence to whoever gave it, and the answer itself."""

    name: str
    says: str
    answer: Callable[..., Any]


@dataclass(frozen=True)
class Checked:
    """What a check found. True in an `if` where the answer is right; a notebook shows `message`."""

    exercise: str
    passed: bool
    message: str
    seed: int
    mistake: str = ""  # the name of the usual mistake that gives the same numbers, where there is one

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        again = "" if self.passed else f"\nThe same arrays again: check(..., seed={self.seed})"
        return f"{'Right' if self.passed else 'Not yet'}: {self.exercise}. {self.message}{again}"

    def _repr_html_(self) -> str:
        colour = "#009E73" if self.passed else "#D55E00"
        return f"<pre style='border-left:4px solid {colour};padding-left:1em'>{html.escape(str(self))}</pre>"


class Draw:
    """Arrays for the cases of a check, all from one seed: each call draws new numbers."""

    def __init__(self, seed: int):
        self.seed, self.stream = seed, 0

    def _uniform(self, count: int) -> np.ndarray:
        self.stream += 1
        return draws.uniform(self.seed, self.stream, 1, count)[0]

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> np.ndarray:
        """Uniform numbers in [low, high): float64 of this shape."""
        return low + (high - low) * self._uniform(int(np.prod(shape))).reshape(shape)

    def normal(self, *shape: int) -> np.ndarray:
        """Standard normal numbers: float64 of this shape."""
        self.stream += 1
        return draws.normal(self.seed, self.stream, 1, int(np.prod(shape)))[0].reshape(shape)

    def integer(self, low: int, high: int) -> int:
        """A whole number in [low, high], both included."""
        return low + int(self._uniform(1)[0] * (high - low + 1))

    def shuffled(self, count: int) -> np.ndarray:
        """The numbers 0 ... count - 1 in a random order."""
        return np.argsort(self._uniform(count), kind="stable")

    def sizes(self, count: int, low: int = 2, high: int = 9) -> list[int]:
        """`count` sizes of axes in [low, high], no two alike, so that no exchange of axes goes unseen.

        Raises ValueError where the interval has fewer numbers.
        """
        if high - low + 1 < count:
            raise ValueError(f"[{low}, {high}] must hold {count} different sizes, got {high - low + 1}")
        return [low + int(n) for n in self.shuffled(high - low + 1)[:count]]


@dataclass(frozen=True, repr=False)
class Exercise:
    """A question, a signature to fill in, three hints, and a check.

    `cases(draw)` yields the arguments of each call; they are new for every seed. An answer is compared with
    `expected(**arguments)`, or where many answers are right, `judge(answer, arguments)` says what is wrong with one, or
    "". `returns` names what the function gives back, for the messages.
    """

    id: str  # mechanism.name; the function of this name in solutions/ solves it
    title: str
    level: int  # of LEVELS
    minutes: int
    source: str  # paper, place and PDF page
    text: str
    signature: str
    hints: tuple[str, str, str]
    cases: Callable[[Draw], Iterable[Arguments]]
    expected: Callable[..., Any] | None = None
    judge: Callable[[Any, Arguments], str] | None = None
    returns: tuple[str, ...] = ("out",)

    @property
    def paper(self) -> str:
        """The mechanism it is about."""
        return self.id.partition(".")[0]

    @property
    def name(self) -> str:
        """The function to write."""
        return self.id.partition(".")[2]

    def record(self) -> dict[str, Any]:
        """What `attnlab exercises --json` prints of it, beside what was tried."""
        about = {"id": self.id, "paper": self.paper, "title": self.title, "level": self.level}
        return about | {"minutes": self.minutes, "source": self.source}

    def __repr__(self) -> str:
        return f"{self.id}: {self.title} ({LEVELS[self.level]}, {self.minutes} minutes); print(...) shows it whole"

    def __str__(self) -> str:
        return self._repr_markdown_()

    def _repr_markdown_(self) -> str:
        dots = "●" * self.level + "○" * (len(LEVELS) - self.level)
        head = f"### {self.title}\n\n{dots} {LEVELS[self.level]} · {self.minutes} minutes · {self.source}"
        return f"{head}\n\n{textwrap.dedent(self.text).strip()}\n\n```python\n{self.signature.strip()}\n```"

    def check(self, answer: Callable[..., Any], *, seed: int | None = None) -> Checked:
        """Call `answer` on fresh arrays (of `seed`, to see the same again) and say what is right or wrong.

        Nothing that `answer` does or raises gets out of here but an interrupt. What was tried and solved is kept in the
        file that `attnlab exercises` names.
        """
        drawn = secrets.randbits(31) if seed is None else seed
        passed, message, mistake = self._judged(answer, drawn)
        if message != UNWRITTEN:
            kept = progress_file.tried(self.id, solved=passed)
            message = f"{message}\n{kept}" if kept else message
        return Checked(self.id, passed, message, drawn, mistake)

    def hint(self, number: int | None = None) -> Markdown:
        """The next hint, or hint 1, 2 or 3. Raises ValueError for another number."""
        if number is not None and number not in (1, 2, 3):
            raise ValueError(f"number must be 1, 2 or 3, got {number!r}")
        number = progress_file.hinted(self.id, len(self.hints), number)
        last = number == len(self.hints)
        rest = f" The rest is in `{self.id}.solution()`." if last else ""
        return Markdown(f"**Hint {number} of {len(self.hints)}.** {self.hints[number - 1]}{rest}")

    def solution(self) -> Markdown:
        """The source of our solution."""
        return Markdown(f"```python\n{inspect.getsource(self.solved).strip()}\n```")

    @property
    def solved(self) -> Callable[..., Any]:
        """Our solution, to be called."""
        return getattr(self._solutions(), self.name)

    @property
    def mistakes(self) -> tuple[Mistake, ...]:
        """The usual wrong answers."""
        return self._solutions().MISTAKES[self.name]

    def _solutions(self) -> Any:
        return importlib.import_module(f"attnlab.exercises.solutions.{self.paper}")

    def _judged(self, answer: Any, seed: int) -> tuple[bool, str, str]:
        if not callable(answer):
            return False, f"check wants the function {self.name} itself, got {_short(answer)}.", ""
        count = 0
        for count, arguments in enumerate(self.cases(Draw(seed)), 1):  # noqa: B007
            given = _copied(arguments)
            try:
                with np.errstate(all="ignore"):  # what comes of 0/0 is said below
                    got = answer(**given)
            except NotImplementedError:
                return False, UNWRITTEN, ""
            except Exception as error:  # whatever a learner's code raises is the message
                return False, f"{_raised(error)}\n{_with(arguments)}", ""
            if got is None:
                return False, f"{self.name} gave back nothing: does it end with a return?", ""
            changed = [name for name in arguments if not _same(given[name], arguments[name])]
            if changed:
                return False, f"{', '.join(changed)} came back changed: work on a copy of an argument.", ""
            wrong = self._wrong(got, arguments)
            if wrong:
                mistake = self._recognised(got, arguments)
                why = f"\nThis looks like a usual mistake, {mistake.name}: {mistake.says}" if mistake else ""
                return False, f"{wrong}{why}\n{_with(arguments)}", mistake.name if mistake else ""
        return True, f"{count} cases with seed {seed}.", ""

    def _wrong(self, got: Any, arguments: Arguments) -> str:
        if self.judge is not None:
            try:
                return self.judge(got, _copied(arguments))
            except (TypeError, ValueError, IndexError) as error:
                return f"{_short(got)} does not read as {', '.join(self.returns)}: {error}."
        assert self.expected is not None
        return apart(got, self.expected(**_copied(arguments)), self.returns)

    def _recognised(self, got: Any, arguments: Arguments) -> Mistake | None:
        """The usual mistake that gives these numbers, and does not give the right ones."""
        for mistake in self.mistakes:
            try:
                with np.errstate(all="ignore"):
                    theirs = mistake.answer(**_copied(arguments))
                if not apart(got, theirs, self.returns) and self._wrong(theirs, arguments):
                    return mistake
            except Exception:  # a mistake need not work for every case
                continue
        return None


UNWRITTEN = "There is nothing to check yet: fill in the function, and take out the line that raises."


def apart(got: Any, expected: Any, returns: tuple[str, ...] = ("out",)) -> str:
    """What is wrong with `got` beside `expected`: the first index that differs, or "" where nothing does.

    Whole numbers and truth values must be equal; other numbers may differ by TOLERANCE of the largest expected one.
    """
    if len(returns) > 1:
        if not isinstance(got, (tuple, list)) or len(got) != len(returns):
            return f"It must give back {len(returns)} things, {', '.join(returns)}, got {_short(got)}."
        found = (apart(x, y, (name,)) for x, y, name in zip(got, expected, returns, strict=True))
        return next((text for text in found if text), "")
    name, wanted = returns[0], np.asarray(expected)
    try:
        came = np.asarray(got)
    except ValueError:  # rows of several lengths
        return f"{name} must be an array of shape {list(wanted.shape)}, got {_short(got)}."
    if came.dtype.kind not in "biuf":
        return f"{name} must hold real numbers, got {_short(got)}."
    if came.shape != wanted.shape:
        return f"{name} must have shape {list(wanted.shape)}, got {list(came.shape)}.{_exchanged(came, wanted)}"
    if wanted.size == 0:
        return ""
    if wanted.dtype.kind in "biu":
        off = came != wanted
    else:
        off = ~_near(came, wanted)
    if not off.any():
        return ""
    where = tuple(int(i) for i in np.argwhere(off)[0])
    place = f"{name}[{', '.join(map(str, where))}]" if where else name
    many = f"; {off.sum():,} of {off.size:,} numbers differ" if off.size > 1 else ""
    digits = 17 if wanted.dtype.kind in "biu" else 10
    text = f"{place} must be {_number(wanted[where], digits)}, got {_number(came[where], digits)}{many}."
    return text if wanted.dtype.kind in "biu" else text + _pattern(came, wanted)


def _near(came: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Where the two agree: equal, infinity with infinity too, or apart by TOLERANCE of the largest. NaN never does."""
    came, wanted = came.astype(float), wanted.astype(float)
    bound = TOLERANCE * np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        return (came == wanted) | (np.abs(came - wanted) <= bound)


def _pattern(came: np.ndarray, wanted: np.ndarray) -> str:
    """What all numbers have in common, where it tells something."""
    came = came.astype(float)
    if np.isnan(came).any():
        return f" {np.isnan(came).sum():,} of them are NaN."
    largest = np.abs(wanted).max()
    if np.isinf(came).any() or np.isinf(largest) or largest == 0.0:
        return ""
    if np.abs(came - wanted).max() <= 1e-5 * largest:
        return " All agree to five digits: is something in single precision, or a small constant added?"
    factor = float((came * wanted).sum() / (wanted * wanted).sum())
    if wanted.size > 1 and np.abs(came - factor * wanted).max() <= TOLERANCE * largest and abs(factor) > TOLERANCE:
        return f" All are {factor:.6g} times what they must be."
    return _exchanged(came, wanted) if came.ndim > 1 else ""


def _exchanged(came: np.ndarray, wanted: np.ndarray) -> str:
    """Says which two axes are exchanged, where that is all."""
    if wanted.size == 0:
        return ""
    for i in range(came.ndim):
        for j in range(i + 1, came.ndim):
            other = np.swapaxes(came, i, j)
            if other.shape == wanted.shape and _near(other, wanted).all():
                return f" It is right but for axes {i} and {j}, which are exchanged."
    return ""


def _number(x: Any, digits: int) -> str:
    return str(bool(x)) if np.asarray(x).dtype.kind == "b" else f"{x:.{digits}g}"


def _short(x: Any) -> str:
    text = f"an array of shape {list(x.shape)}, {x.dtype}" if isinstance(x, np.ndarray) else repr(x)
    return text if len(text) < 80 else f"{text[:76]} ..."


def _with(arguments: Arguments) -> str:
    """The arguments of the case: sizes of arrays, and the rest as it is."""
    sizes = {name: list(x.shape) for name, x in arguments.items() if isinstance(x, np.ndarray)}
    words = [f"{name} {sizes[name]}" if name in sizes else f"{name} = {_short(x)}" for name, x in arguments.items()]
    return f"Called with {', '.join(words) or 'no arguments'}."


def _raised(error: Exception) -> str:
    """The exception, and the line of the learner's code that it came from."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    where = f" in line {frames[0].lineno}: {frames[0].line}" if frames else ""
    return f"It raised {type(error).__name__}: {error}{where}"


def _copied(arguments: Arguments) -> Arguments:
    return {name: x.copy() if isinstance(x, np.ndarray) else x for name, x in arguments.items()}


def _same(x: Any, y: Any) -> bool:
    floats = isinstance(y, np.ndarray) and y.dtype.kind == "f"
    return np.array_equal(x, y, equal_nan=floats)
