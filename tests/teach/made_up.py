"""A small session over RACE's panel, made up for the tests: they do not depend on what the papers' sessions say."""

from attnlab.teach.session import Prompt, Question, Scene, Session, Slide, Step

TABLES = Slide(
    title="More tables make RACE's weights *less noisy*",
    body="One table sees two tokens together or apart. Many tables count how often, and the share tends to $S^P$.",
    place="Sec. 3.2, Eq. 4, p. 6",
    notes="Ask first: *what changes* when $L$ grows?\n\n- the noise\n- not the bias",
    scenes=(
        Scene("With one table, half of the pairs are never seen together.", ("tables=1", "view=race")),
        Scene("With sixteen tables the matrix is close to the angular one.", ("tables=16", "view=race")),
        Scene("On a real head the same happens.", ("tables=16", "input=layer 9, head 1", "tokens=64")),
    ),
    figures=("softmax", "angular", "race"),
)
WHOLE = Slide(
    title="All pictures of the panel at once",
    body="No picture is named, so all of them stand here.",
    place="Fig. 3, p. 6",
    notes="Point at the band.",
    scenes=(Scene("Sharper bits, less bias.", ("sharpness=8",)),),
    mark="project",
)
WORDS = Slide(
    title="The estimate is biased where the bits are soft",
    body=(
        "The collision kernel of one plane is\n\n$$\\kappa(\\theta) = \\frac{1 + \\bar a^2 \\cos\\theta}{2}$$\n\n"
        "| planes $P$ | buckets $R$ |\n|---|---|\n| 2 | 4 |\n| 4 | 16 |\n\n"
        "- it is exact in the limit $\\beta \\to \\infty$\n"
        "- <b>markup</b> is shown as it is written"
    ),
    place="Lemma 10, p. 24",
    notes="The proof is in the backup.",
    mark="reader",
)
BACK = Slide(
    title="A counterexample", body="Take $P = 1$ and two tokens.", place="App. D, p. 24", notes="By hand.", backup=True
)

PROMPTS = tuple(
    Prompt(
        ask=f"What do you expect at {tables} tables?",
        scene=Scene(f"{tables} tables, and the error is read below.", (f"tables={tables}", "view=error")),
        place="Thm. 2, p. 8",
        answer=f"The error is about one over the root of {tables}.",
    )
    for tables in (1, 2, 4, 8, 12, 16)
)

SESSION = Session(
    paper="race",
    title="A made-up paper on $\\log N$ attention",
    arxiv="2510.04008v5",
    question="Can attention be read from *sketches*?",
    notebook="01_race_buckets",
    checked="05_claims: RACE",
    short="The paper replaces the $N^2$ scores by sums over buckets.",
    preread=tuple(
        Question(f"Question {n} about $x_{n}$?", f"Sec. {n}, p. {n}", f"The answer number {n}.") for n in range(1, 6)
    ),
    hour=(
        Step(5, "Arrive", "the title", "What do you want to know?", "Nobody speaks: ask for the title."),
        Step(55, "The rest", "the slides", "Why?", "In the proof: skip to the table."),
    ),
    long=(
        Step(10, "Arrive", "the title", "What do you want to know?", "Nobody speaks: ask for the title."),
        Step(80, "The rest", "the slides", "Why?", "In the proof: skip to the table."),
    ),
    prompts=PROMPTS,
    slides=(TABLES, WORDS, WHOLE, BACK),
    handout=(
        ("What is new", "\n\n".join(["Buckets of $2^P$ corners stand in place of $N^2$ scores (p. 5). " * 9] * 4)),
        (
            "What to doubt",
            "\n\n".join(["Lemma 10 (p. 24) fails where the bits are soft, and the table says so. " * 9] * 4),
        ),
    ),
    shown={"race.lemma10": "05_claims: RACE"},
)
