"""What a reading group's session on one paper is made of: one source, from which plan, pre-read sheet, slides, handout,
record and prompts all come.

Texts are Markdown with formulas between dollars. A scene is a panel in a given state, in the words of `attnlab export
--set`. Whatever states a fact has a `place`, section, equation or table and PDF page, and says whose it is.
"""

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import attnlab
from attnlab import panels
from attnlab.arrays import one_of
from attnlab.claim import Claim
from attnlab.panels import export, link

__all__ = ["MARKS", "Prompt", "Question", "Scene", "Session", "Slide", "Step", "of", "papers"]

MARKS = {  # whose a slide is, as it is marked on it
    "paper": "the paper",
    "reader": "reader's analysis",
    "project": "this project",
}


@dataclass(frozen=True)
class Scene:
    """The paper's panel in one state, and the one sentence to say with it."""

    says: str
    settings: tuple[str, ...]  # ("planes=3", "input=layer 9, head 1"): NAME=VALUE; the rest as the panel opens


@dataclass(frozen=True)
class Slide:
    """One slide. With scenes it has the live panel, and the keyboard steps through them."""

    title: str  # says what the slide shows, as a sentence where it can
    body: str  # a few lines; what is long belongs into notes
    place: str  # "Sec. 3.1, Eq. 4, p. 5"
    notes: str  # what the speaker says, and what is asked there
    scenes: tuple[Scene, ...] = ()
    mark: str = "paper"  # of MARKS
    backup: bool = False  # behind the last slide: a derivation, a counterexample
    figures: tuple[str, ...] = ()  # pictures of the panel; if none here, those of the scenes' view=, or all


@dataclass(frozen=True)
class Question:
    """A question of the pre-read sheet, and what a good answer says (for the leader alone)."""

    ask: str
    place: str  # where to look
    answer: str


@dataclass(frozen=True)
class Prompt:
    """A question to the group that opens the panel in a given state."""

    ask: str
    scene: Scene
    place: str
    answer: str  # what they should see, for the leader
    figures: tuple[str, ...] = ()  # as a slide's


@dataclass(frozen=True)
class Step:
    """Some minutes of the leader's plan."""

    minutes: int
    title: str
    show: str  # slide, panel, notebook, exercise
    ask: str
    stuck: str  # where groups get stuck, and the way out


@dataclass(frozen=True)
class Session:
    """A session on one paper. `shown` names for a claim the notebook and the heading of the cell that shows it."""

    paper: str  # the mechanism
    title: str  # the paper's
    arxiv: str  # with its version
    question: str  # what the paper asks, in one sentence
    notebook: str  # that has the panel
    checked: str  # where all its claims are shown: "05_claims: RACE"
    short: str  # the paper in one paragraph, for handout and pre-read sheet
    preread: tuple[Question, ...]  # five
    hour: tuple[Step, ...]  # 60 minutes
    long: tuple[Step, ...]  # 90 minutes
    prompts: tuple[Prompt, ...]  # six to eight
    slides: tuple[Slide, ...]  # ten to fifteen, and those of the backup
    handout: tuple[tuple[str, str], ...]  # sections of two printed pages: heading, text
    shown: Mapping[str, str]  # claim -> "04_rope_subspace: The theorem"

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The paper's claims, as checks."""
        return tuple(importlib.import_module(f"attnlab.{self.paper}.claims").CLAIMS)

    def state(self, scene: Scene) -> dict[str, Any]:
        """The panel's state in a scene. Raises ValueError for a setting that the panel does not have."""
        return export.setting(self.paper, scene.settings)

    def link(self, scene: Scene) -> str:
        """The scene as the fragment of a link to the exported panel."""
        return link.fragment(self.state(scene), panels.spec(self.paper))

    def call(self, scene: Scene) -> str:
        """The scene as one call in a notebook."""
        return link.call(self.state(scene), panels.spec(self.paper))


def papers() -> tuple[str, ...]:
    """The papers that have a session."""
    return tuple(name for name in attnlab.MECHANISMS if importlib.util.find_spec(f"attnlab.teach.{name}"))


def of(paper: str) -> Session:
    """The session on a paper. Raises ValueError naming those there are."""
    return importlib.import_module(f"attnlab.teach.{one_of('paper', paper, papers())}").SESSION
