"""The sheets of a session, as Markdown; `pages.document` makes a page of each.

The leader's plan has the answers. The pre-read sheet and the prompts, which the group gets, have none.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from attnlab import panels
from attnlab.claim import NOBODY, SAID_BY, Claim, Verdict
from attnlab.teach.session import Prompt, Session, Step
from attnlab.teach.text import cell

__all__ = ["SHEETS", "evidence", "plan", "preread", "prompts", "shown"]

SHORT = (3, 20)  # minutes of introduction and of discussion, where no more is left
EACH = 5  # minutes of a prompt


def plan(session: Session) -> str:
    """The leader's plan: for 23, 60 and 90 minutes, with the answers."""
    parts = [
        _head(session, "leader's plan"),
        session.question,
        "## Before the session: a quarter of an hour",
        "\n".join(
            [
                "1. Open `slides.html` and press *n*: your notes stand in a second window. Press *?* for the keys.",
                "2. Step through the slides once with the right arrow key.",
                "3. Read the answers at the end of this plan.",
                "4. Print `handout.pdf`, or `handout.html`, once for each participant: two pages.",
                "5. Open `record.html`: you fill it in together in the last minutes.",
            ]
        ),
        "All files work from a disk, without a network.",
        *_short(session),
        *_steps("60 minutes", session.hour),
        *_steps("90 minutes", session.long),
        "## What the pre-read questions should bring",
        *(
            _item(number, f"**{_line(one.ask)}** {one.answer} ({one.place})")
            for number, one in enumerate(session.preread, 1)
        ),
        "## What the prompts should bring",
        *(
            _item(number, f"**{_line(one.ask)}** {one.answer} ({one.place}; [slide](<slides.html#prompt-{number}>))")
            for number, one in enumerate(session.prompts, 1)
        ),
    ]
    return _joined(parts)


def preread(session: Session) -> str:
    """What to read before, and five questions without their answers."""
    parts = [
        _head(session, "before the session"),
        session.short,
        "## Five questions to read with",
        *(_item(number, f"{one.ask} (look at {one.place})") for number, one in enumerate(session.preread, 1)),
        "Half an hour is enough. Bring what you do not understand.",
    ]
    return _joined(parts)


def evidence(session: Session) -> str:
    """Every claim with its page, the recorded verdict, the kind of evidence, and the cell that shows it."""
    groups: dict[str, list[Claim]] = {who: [] for who in (*SAID_BY.values(), NOBODY)}
    for claim in session.claims:
        groups[claim.said_by].append(claim)
    counts = [
        [who[0].upper() + who[1:], str(len(claims)), *(str(_count(claims, verdict) or "–") for verdict in Verdict)]
        for who, claims in (groups | {"all": [*session.claims]}).items()
        if claims
    ]
    parts = [
        _head(session, "claims and evidence"),
        "Which sentences were checked, and what came of it? The verdict is about the sentence as it stands here.",
        _table(["who says it", "claims", *(verdict.lower() for verdict in Verdict)], counts),
        "`attnlab verify` followed by a claim's name checks it again. The last column names a notebook, "
        "and the heading in it.",
    ]
    for who, claims in groups.items():
        if claims:
            rows = [
                [
                    f"`{claim.id}` {cell(claim.says)}",
                    cell(claim.source),
                    f"**{claim.recorded}**",
                    str(claim.evidence),
                    _where(shown(session, claim)),
                ]
                for claim in claims
            ]
            parts += [f"## Said by {who}", _table(["claim", "page", "verdict", "evidence", "shown in"], rows)]
    return _joined(parts)


def prompts(session: Session) -> str:
    """The questions to the group, each with the panel that it is about: in a notebook, and as a link."""
    parts = [
        _head(session, "questions to discuss"),
        "Each question opens the panel in one state. The links work where the kit's files lie beside each other.",
    ]
    for number, prompt in enumerate(session.prompts, 1):
        parts += [
            f"## {number}. {_line(prompt.ask)}",
            prompt.scene.says,
            f"Open it on {_places(session, prompt, number)}, or in a notebook:",
            f"```python\n{session.call(prompt.scene)}\n```",
            f"Place: {prompt.place}.",
        ]
    return _joined(parts)


SHEETS: dict[str, Callable[[Session], str]] = {  # the name of a file, and what makes its Markdown
    "plan": plan,
    "preread": preread,
    "evidence": evidence,
    "prompts": prompts,
}


def shown(session: Session, claim: Claim) -> str:
    """The notebook and the heading under which a claim is shown, as "04_rope_subspace: The theorem"."""
    return session.shown.get(claim.id, session.checked)


def _places(session: Session, prompt: Prompt, number: int) -> str:
    """The slide; and the panel alone, which comes without real heads, where the prompt needs none."""
    slide, dials = f"[its slide](<slides.html#prompt-{number}>)", session.state(prompt.scene)["dials"]
    view = panels.view(session.paper)
    alone = view.data(view.PARAMS(**dials)) is None
    return f"[a page](<panel.html{session.link(prompt.scene)}>), on {slide}" if alone else slide


def _where(shown: str) -> str:
    notebook, _, heading = shown.partition(": ")
    return f"`{notebook}` {cell(heading)}"


def _short(session: Session) -> Iterator[str]:
    """A plan for when little time is left: three minutes to begin, and as many prompts as twenty minutes hold."""
    introduction, discussion = SHORT
    asked: Sequence[Prompt] = session.prompts[: discussion // EACH]
    yield f"## {sum(SHORT)} minutes, on one page"
    yield f"**0–{introduction}: introduce.** Say what the paper asks: {session.question}"
    yield session.short
    yield f"**{introduction}–{sum(SHORT)}: discuss,** {EACH} minutes each. Open the slide, ask, wait, move the dial."
    yield "\n".join(
        _item(number, f"{prompt.ask} ([slide](<slides.html#prompt-{number}>))")
        for number, prompt in enumerate(asked, 1)
    )
    yield "Close with one sentence each: which claim do you believe now, and why?"


def _steps(title: str, steps: tuple[Step, ...]) -> Iterator[str]:
    yield f"## {title}"
    start = 0
    for step in steps:
        yield f"### {start}–{start + step.minutes}: {step.title}"
        named = {"Show": step.show, "Ask": step.ask, "Where groups get stuck": step.stuck}
        yield "\n".join(_indented(f"- *{name}:* {words}", 2) for name, words in named.items() if words)
        start += step.minutes


def _head(session: Session, what: str) -> str:
    return f"# {_line(session.title)}: {what}\n\narXiv:{session.arxiv}"


def _line(words: str) -> str:
    return " ".join(words.split())


def _item(number: int, words: str) -> str:
    """An entry of a numbered list, also where its text has lines or lists of its own."""
    return _indented(f"{number}. {words}", 3)


def _indented(words: str, by: int) -> str:
    first, *others = words.split("\n")
    return "\n".join([first, *(" " * by + line if line else "" for line in others)])


def _count(claims: Sequence[Claim], verdict: Verdict) -> int:
    return Counter(claim.recorded for claim in claims)[verdict]


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _joined(parts: list[str]) -> str:
    return "\n\n".join(parts) + "\n"
