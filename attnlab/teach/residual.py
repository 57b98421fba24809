"""A session on residual linear attention, RLA and RDN: Enhancing Linear Attention with Residual Learning."""

from attnlab.teach.session import Prompt, Question, Scene, Session, Slide, Step

__all__ = ["SESSION"]

POINTS = 8  # of a gate's curve in the panel, which refuses another number


def _level(gate: str, height: float) -> str:
    """A gate that is the same at every token, as a setting."""
    return f"{gate}={','.join([f'{height:g}'] * POINTS)}"


RESET = ("retention=1,1,1,0,1,1,1,1", "tokens=22")  # the curve is 0 at token 10 exactly
REAL = ("input=layer 9, head 1", "similarity=0", "tokens=64", _level("write", 0.4))

# -- slides -----------------------------------------------------------------------------------------------------------

SLIDES = (
    Slide(
        title="Linear attention puts the whole past into one matrix",
        body=r"""
Softmax attention keeps every key and value, and compares each query with all of them. Linear attention keeps one matrix
$S$ of fixed size:

$$S_t = S_{t-1} + k_t^{\top} v_t, \qquad o_t = q_t S_t$$

Every token costs the same, however long the past is. The price is that values share one matrix and disturb each other.

**The question:** can a second matrix of the same kind learn what the first one gets wrong?
""",
        place="Secs. 1–2.1, pp. 1–2",
        notes="""
Say first what everybody knows: softmax attention forgets nothing and pays for it, since the cache grows with every
token. A recurrence has a state of fixed size, so it must mix what it keeps.

Ask: what has to be true of the keys for S to give every value back exactly? (They are unit vectors at right angles to
each other, so at most K of them.)

Two misunderstandings to clear away now. The *residual* of this paper is an error of recall; it is not the skip
connection around a layer. And everything here is in row layout, where a memory is a matrix of K rows and V columns; the
paper's S and R are the transpose.
""",
    ),
    Slide(
        title="Keys that resemble each other leak into each other",
        body=r"""
Ask $S$ for an old value, with its own unit key:

$$k_i S_t = v_i + \sum_{j \ne i} (k_i \cdot k_j)\, v_j$$

The sum is cross-talk. For random keys in $K$ dimensions its variance is $(t-1)/K$ of a value's own. Many tokens and
narrow keys make it large, and keys that lean one way make it larger still.
""",
        place="Secs. 1–2.1, pp. 1–2, name the interference; the formula and the measure are this project's",
        mark="project",
        notes="""
The panel asks for every past value with its own key, after the last token. An error of 0 is perfect recall, and an
answer of 0 has an error of about 1. So everything above 1 is worse than silence.

Ask before the second scene: what will three times as many tokens and half the width do? With random keys the formula
says the square root of 23/16, about 1.2, in the mean over draws. This draw shows 1.57.

People expect long sequences to be the only problem. The third scene has the same number of tokens, and only turns the
keys towards each other. The keys of a trained head do lean one way: on a later slide their mean cosine is 0.72.
""",
        figures=("weights", "recall"),
        scenes=(
            Scene(
                "Eight tokens and keys of width 32: *Recall by age* stands at 0.554, below the 1 of answering nothing.",
                ("rule=linear", "same_budget=false", "similarity=0", "tokens=8", "head_width=32", "view=recall"),
            ),
            Scene(
                "Three times the tokens and half the width: the error rises to 1.57, worse than answering nothing.",
                ("rule=linear", "same_budget=false", "similarity=0", "tokens=24", "head_width=16", "view=recall"),
            ),
            Scene(
                "The same count, but all keys lean towards one direction by half: the error is 2.49.",
                ("rule=linear", "same_budget=false", "similarity=0.5", "tokens=24", "head_width=16", "view=recall"),
            ),
        ),
    ),
    Slide(
        title="S keeps values; R keeps what S got wrong",
        body=r"""
Before token $t$ is written, $k_t S_{t-1}$ is what the memory predicts, and $v_t$ is what comes. The difference is an
error, and an error can be kept under the same key.

1. Ask the **old** $S$; the error is $v_t - k_t S_{t-1}$.
2. Write it into $R$.
3. Answer from the old $S$ and the **new** $R$.
4. Only then write $v_t$ into $S$.
""",
        place="Sec. 3.1, pp. 3–4; Fig. 1, p. 5; Listing 1, p. 15; live: this project",
        notes="""
This is the paper in one picture: two matrices of one shape, side by side. Go through the four steps aloud, and let
somebody else say the order once more without looking. The order is where most wrong implementations begin.

The second and third scene are worth a pause. With additive writes and keys that lean one way, S adds up too much, and R
learns to take it away: opposite colours. The delta rule writes less than the value, and R adds what is missing: the
same colours. So R is no second copy of S, and its sign depends on the rule. These tokens are drawn at random and the
gates are fixed; nothing in the panel is trained. Ask: why are both tiles alike after token 1?
""",
        figures=("memories",),
        scenes=(
            Scene(
                "After token 1 both tiles have the same signs everywhere: S was empty, so the whole value was error, "
                "and R keeps it clipped.",
                ("rule=rla", "similarity=0.8", "tokens=2", "view=memories", "pin=query.0"),
            ),
            Scene(
                "After token 24 of RLA, with keys that lean one way, 72 % of R's cells have the opposite sign of S's: "
                "R takes back.",
                ("rule=rla", "similarity=0.8", "tokens=24", "view=memories", "pin=query.23"),
            ),
            Scene(
                "The same tokens under RDN: 82 % of the cells have the sign of S, so here R adds what S left out.",
                ("rule=rdn", "similarity=0.8", "tokens=24", "view=memories", "pin=query.23"),
            ),
        ),
    ),
    Slide(
        title="A read is a prediction and one token's correction",
        body=r"""
Put the write into the read. For linear attention:

$$q_t S_t = q_t S_{t-1} + (q_t \cdot k_t)\, v_t$$

The first term is predicted from the past. The second corrects it by the newest token. For Gated DeltaNet:

$$q_t S_t = \alpha_t\, q_t S_{t-1} + \beta_t\, (q_t \cdot k_t)\, (v_t - \alpha_t\, k_t S_{t-1})$$

Such a correction serves its own token only. The paper's step is to make corrections recurrent.
""",
        place="Sec. 2.3 and Table 1, p. 3; inner losses: Sec. 2.2, pp. 2–3",
        notes="""
Table 1 of the paper lists known recurrences in this form. Let the group fill in one row before you show the formulas:
linear attention takes one line, Gated DeltaNet takes two.

Two inner losses stand behind the writes (Sec. 2.2, pp. 2–3). One step of descent on minus the inner product of kS and v
adds the value. One step on half the squared error writes the difference, which is the delta rule.

What people get wrong: they hear that baselines have no correction at all. They have one, of a single token. Under the
delta rule it even depends on the history, through S. What is new is that corrections are kept and asked again later.
""",
    ),
    Slide(
        title="RLA adds what comes; RDN writes what is lacking",
        body=r"""
Both take the clipped error of the old $S$, and give the same kind of answer:

$$r_t = \mathrm{clip}(v_t - k_t S_{t-1}), \qquad o_t = \alpha_t\, q_t S_{t-1} + \gamma_t\, q_t R_t$$

**RLA:**

$$R_t = \alpha_t R_{t-1} + \gamma_t k_t^{\top} r_t, \qquad S_t = \alpha_t S_{t-1} + \beta_t k_t^{\top} v_t$$

**RDN:**

$$R_t = \alpha_t R_{t-1} + \gamma_t k_t^{\top} (r_t - \alpha_t k_t R_{t-1})$$

$$S_t = \alpha_t S_{t-1} + \beta_t k_t^{\top} (v_t - \alpha_t k_t S_{t-1})$$

The gates $\alpha$ (retention), $\beta$ (write) and $\gamma$ (correction) are numbers, one for each head and token.
""",
        place="Sec. 3.4, p. 5; Listing 1, p. 15; unit queries and keys: p. 5",
        notes="""
Read the first line slowly. The error asks S before it decays. The answer reads old S and new R. Gamma appears twice, in
the write of R and in the read, so the newest error counts with its square.

Ask: which two errors does RDN have? The one that R is taught, r, and the one that R's own delta rule writes, r minus
what R already knows. With width 1, values 1/2 and 1 and all gates 1/2 they are 3/4 and 5/8 at the second token
(reader's analysis).

Nothing divides by the root of the width; queries and keys are made unit vectors instead (p. 5). Whoever compares with
another library must pass a scale of 1. The main runs clip at 1.
""",
    ),
    Slide(
        title="R mends RLA where γ is right, and RDN hardly",
        body=r"""
Random keys that lean one way by half, gates fixed, nothing trained. The dashed line is $S$ alone; the coloured one is
$S$ and $R$ as the output reads them.

- *Recall by age* compares both, value by value.
- Its headline is the mean: $S$ alone → $S$ and $R$.
- Answering nothing gives about 1.
""",
        place="operators: Sec. 3.4, p. 5; measure and tokens: this project",
        mark="project",
        notes="""
Let the group guess before each scene. Too small a rate mends little. At 0.6 nearly a third of the error is gone. At 1
the memory of errors doubles the error instead: keys alike store much the same error again and again, and γ counts
twice.

The last scene is the delta rule with the same tokens. S already subtracts what it recalls, and little is left.

Be exact about what is compared. *S alone* asks the new S without a gate. *S and R* asks the old S and the new R, each
through its gate, as the output does. These are random pairs, not language. The finding says what the recurrence does by
itself; a trained model chooses its gates.
""",
        figures=("recall", "gates"),
        scenes=(
            Scene(
                "RLA with γ = 0.2: the two lines nearly touch, 1.75 → 1.7.",
                ("rule=rla", "similarity=0.5", _level("correction", 0.2), "view=recall"),
            ),
            Scene(
                "γ = 0.6: the coloured line lies below the dashed one at almost every age, 1.75 → 1.2.",
                ("rule=rla", "similarity=0.5", _level("correction", 0.6), "view=recall"),
            ),
            Scene(
                "γ = 1: the coloured line jumps above the dashed one, 1.75 → 3.59.",
                ("rule=rla", "similarity=0.5", _level("correction", 1), "view=recall"),
            ),
            Scene(
                "RDN with γ = 0.6: S alone is at 0.9 already, and R changes little, 0.9 → 0.913.",
                ("rule=rdn", "similarity=0.5", _level("correction", 0.6), "view=recall"),
            ),
        ),
    ),
    Slide(
        title="An answer adds up the errors made on similar keys",
        body=r"""
Put every $R$ into the one after it. RLA's correction is attention without a softmax, over errors instead of values:

$$\gamma_t\, q_t R_t = \sum_{i \le t} w_{ti}\, r_i$$

$$w_{ti} = \gamma_t \gamma_i\, \alpha_{i+1} \cdots \alpha_t\, (q_t \cdot k_i)$$

A query meets the errors made on keys like itself. Retention decides for how long. The newest error carries
$\gamma_t^2$.
""",
        place="reader's analysis of Sec. 3.4, p. 5",
        mark="reader",
        notes="""
Row t of the picture is a query, column i an error. The pinned cell is the error of token 19, as query 24 counts it. In
these toy tokens query 24 has exactly the key of token 19, so the cosine is 1.

Read the product aloud in the first scene: read gate 0.6, write gate 0.6, decay 1, cosine 1. In the second scene the
decay is 0.9 to the fifth power. In the third scene one retention is 0, and everything before it is gone for good.

Ask in the last scene: why is the weight smaller under RDN, although retention is 1? Later delta writes have taken
away a part of what lay along that key. The product formula holds for RLA; under RDN the decay is a product of
matrices.
""",
        figures=("weights", "gates"),
        scenes=(
            Scene(
                "The pinned cell, error 19 at query 24, weighs 0.36 = 0.6 · 0.6 · 1 · 1: the query has the key of "
                "token 19.",
                (
                    "rule=rla",
                    _level("retention", 1),
                    "tokens=24",
                    "weights=errors",
                    "view=weights",
                    "pin=query.23,key.18",
                ),
            ),
            Scene(
                "Retention 0.9: old columns fade, and the same cell has 0.36 · 0.9⁵ = 0.213.",
                (
                    "rule=rla",
                    _level("retention", 0.9),
                    "tokens=24",
                    "weights=errors",
                    "view=weights",
                    "pin=query.23,key.18",
                ),
            ),
            Scene(
                "Retention is 0 at token 10: from that row on everything left of column 10 is empty, and query 22, "
                "which asks for token 4, gets 0.",
                ("rule=rla", *RESET, "weights=errors", "view=weights", "pin=query.21,key.3"),
            ),
            Scene(
                "RDN with retention 1: the first cell is down from 0.36 to 0.2, since later delta writes took a part.",
                (
                    "rule=rdn",
                    _level("retention", 1),
                    "tokens=24",
                    "weights=errors",
                    "view=weights",
                    "pin=query.23,key.18",
                ),
            ),
        ),
    ),
    Slide(
        title="The clip bounds what one token can teach",
        body=r"""
The target of $R$ is itself a slope. For an error $e = v - \hat{v}$, Huber's loss is quadratic up to $c$ and linear
beyond; minus its derivative by $\hat{v}$ is $\mathrm{clip}(e)$. The bend sits in the target, so both writes stay linear
and fast. The main experiments have $c = 1$. Log-cosh would give $\tanh$ instead; the paper proposes it and does not try
it.
""",
        place="Secs. 3.2–3.4, pp. 4–5; App. A–B, pp. 13–14; live: this project",
        notes="""
Look at the cloud of dots first: what S got wrong goes along, what R is taught goes up. With additive writes and keys
alike, errors grow with every token, up to 6.9 here; two thirds of them lie beyond 1.

Then compare the numbers: S alone has 3.28 in all four scenes, and the clip decides what R makes of it. Without a clip
R is taught all of it, and the recall error triples to 10.2. The best of the values that we tried is near 0.6.

Ask: is the clip part of the loss or of the write? Of the loss: it changes the target alone. People often take it for
gradient clipping. That exists too, at 1.0 (App. C, p. 15), and is another thing.
""",
        figures=("clip", "recall"),
        scenes=(
            Scene(
                "Clip 1: 66 % of all errors lie beyond it and are taught as ±1; recall goes 3.28 → 2.61.",
                ("rule=rla", "similarity=0.6", "tokens=32", "target=clip", "clip=1", "view=clip"),
            ),
            Scene(
                "Clip 0.5: 83 % beyond, and recall is better, 3.28 → 1.82.",
                ("rule=rla", "similarity=0.6", "tokens=32", "target=clip", "clip=0.5", "view=clip"),
            ),
            Scene(
                "No clip: the dots lie on the diagonal, R is taught errors up to 6.9, and recall goes 3.28 → 10.2.",
                ("rule=rla", "similarity=0.6", "tokens=32", "target=none", "clip=1", "view=clip"),
            ),
            Scene(
                "The untried tanh bends smoothly and does about as well as a clip at 1, 3.28 → 2.47.",
                ("rule=rla", "similarity=0.6", "tokens=32", "target=log_cosh", "clip=1", "view=clip"),
            ),
        ),
    ),
    Slide(
        title="Additive writes accumulate; delta writes subtract first",
        body=r"""
With $\lVert k\rVert = 1$ a delta write leaves $\alpha(1-\gamma)$ of the memory along the key, and $\alpha$ of it across
the key: nothing old grows. RLA has no such brake. Without unit vectors and clip some of its layers reach outputs of
norm $10^2$ to $10^3$; RDN hardly notices a missing clip (Fig. 4).

Live: keys of a real head, untrained gates.
""",
        place="Sec. 3.4, p. 5; Fig. 4, p. 9; live: this project",
        mark="project",
        notes="""
The keys are those of layer 9, head 1 of SmolLM2-135M-Instruct, each divided by its length. Their mean cosine is 0.72,
so they lean one way far more than random keys. Retention is 1, so nothing is forgotten.

RLA is off by many times the size of a value, and R makes it worse. Without the clip it is far worse. RDN stays below 1
with the clip and without it, which is the shape of Fig. 4b (p. 9).

Say clearly that this is no verdict on RLA: the model that made these keys was trained with softmax, and the gates are
drawn by hand. Ask which other dial would rescue RLA. (Retention: prompt 4.)
""",
        figures=("recall",),
        scenes=(
            Scene(
                "RLA on a real head: S alone is off by 7.35 times the size of a value, and R makes it 10.9.",
                ("rule=rla", "target=clip", *REAL, "view=recall"),
            ),
            Scene(
                "RLA without the clip: 7.35 → 48.9.",
                ("rule=rla", "target=none", *REAL, "view=recall"),
            ),
            Scene(
                "RDN with the clip stays below 1, and R helps a little: 0.885 → 0.848.",
                ("rule=rdn", "target=clip", *REAL, "view=recall"),
            ),
            Scene(
                "RDN without the clip is the same to the second digit: 0.885 → 0.847.",
                ("rule=rdn", "target=none", *REAL, "view=recall"),
            ),
        ),
    ),
    Slide(
        title="The algebra is proved; that errors help is measured",
        body=r"""
| sentence | place | status |
|---|---|---|
| a read is prediction and correction | p. 3 | proved |
| writes are steps of descent | pp. 2–3, 13 | proved |
| the clip is Huber's slope | pp. 13–14 | proved |
| $S$ never depends on $R$: two stages | p. 5 | proved |
| a delta write contracts, if $\lVert k\rVert = 1$ | p. 5 | proved |
| Appendix B's minus signs | p. 14 | wrong |
| remembering errors helps | p. 7 | measured only |
""",
        place="Secs. 2.2–4.1, pp. 2–7; App. A–B, pp. 13–14; proofs and verdicts: this project",
        mark="project",
        notes="""
Each proof is a few lines (docs/papers/residual-proofs.md), and each sentence has a check: `attnlab verify rla rdn`.

The fourth row makes the method fast. The base recurrence runs first and leaves its errors, then the same kernel runs on
the errors. The paper runs two passes (p. 5); one pass suffices, as this project shows (backup).

Nobody has proved that a memory of errors helps. With random unit keys and gates of 1 one can compute it exactly: it
helps beside one memory of the same shape, and is behind one of the same state. Ask: what kind of theorem would you
want here? A bound on recall? For which keys?
""",
    ),
    Slide(
        title="The means rise, but not every column does",
        body=r"""
Did remembering errors pay at 1.5 billion parameters and 100 billion tokens? In per cent:

| | 8 tasks | NIAH | 7 recall tasks |
|---|--:|--:|--:|
| Transformer | 46.51 | 70.5 | 48.31 |
| sGLA → RLA | 45.79 → 46.44 | 76.6 → 83.6 | 45.06 → 46.73 |
| GDN → RDN | 46.03 → 47.20 | 75.7 → 79.2 | 44.99 → 47.11 |

WinoGrande falls with RDN, 51.9 → 49.5. In Table 4, an ablation with 50 billion tokens, LAMBADA's
perplexity is worse with fitting, 23.44 against 22.50. No spread over runs is given.
""",
        place="Tables 2–4, p. 7; training: Sec. 4.1, pp. 5–6, and App. C, p. 15",
        notes="""
Read the arrows: the baseline has one memory, the method two of the same shape. All means rise, by 0.65 and 1.17 points
over eight tasks. In the mean of the recall tasks both stay below the Transformer.

Then the cautions. RDN loses 2.4 points on WinoGrande and 0.4 on SocialIQA (Table 2). The text of Sec. 4.3 claims more
than Table 4 shows: in four of five columns a memory of errors beats the newest error alone, in LAMBADA it does not.
GSM8k and HumanEval stand there as perplexities. The ablations have 50 billion tokens.

Ask: how large is the spread between two seeds of one method? The paper does not say, so 0.65 points have no scale.
Nor does it name the corpus, or how long a context was.
""",
    ),
    Slide(
        title="With the same state, one wide memory is hard to beat",
        body=r"""
The paper compares heads of one shape, so its methods hold 524,288 numbers a layer, and a baseline 262,144. Give a
single memory keys twice as wide instead.

- Random keys and gates of 1, computed exactly: one wide memory is better from two pairs on.
- Trained on associative recall, 64 pairs: GDN 93 %, RLA 72 %, RDN 61 % (means of three seeds).
""",
        place="App. C, p. 15 (the count: reader's analysis); the comparison is this project's",
        mark="project",
        notes="""
Bars have the same number of state elements for everybody, 384 here. Lines show the same rule with the key width that
all share, as in the paper's comparison.

Be fair. With these fixed gates the order depends on the keys: RLA passes sGLA from a similarity of about 0.36 on, since
R takes back what additive writes pile up. With random keys, gates of 1 and the best constants, one wide memory wins at
every number of pairs from two on, and there is a bound behind it (backup).

The trained runs are one task, one size, 1,000 steps and three seeds; RLA and RDN scatter a lot, RDN from 38 to 82 %.
They say nothing about language models of 1.5 billion parameters. Ask: which experiment would settle it?
""",
        figures=("budget", "similarity"),
        scenes=(
            Scene(
                "Random keys, 384 numbers each: sGLA 0.69 is ahead of RLA 1.08, Gated DeltaNet 0.594 of RDN 0.85.",
                ("similarity=0", "same_budget=true", "view=budget"),
            ),
            Scene(
                "Keys that lean by 0.4: RLA 1.02 now passes sGLA 1.17, while Gated DeltaNet 0.752 stays ahead of RDN "
                "0.932.",
                ("similarity=0.4", "same_budget=true", "view=budget"),
            ),
            Scene(
                "By 0.8: RDN 1.12 passes Gated DeltaNet 1.19, where all are worse than answering nothing.",
                ("similarity=0.8", "same_budget=true", "view=budget"),
            ),
        ),
    ),
    Slide(
        title="What to believe, claim by claim",
        body="""
| verdict | claims |
|---|---|
| holds (the paper) | prediction and correction, inner loss, Huber, two stages, contraction, table gains |
| holds (found later) | unrolled sum, state budget, one sweep |
| refuted (the paper) | Appendix B's signs, Table 4 in every column |
| refuted (guesses) | error from another $S$, two calls added, decay by logarithms, one inner error |
| refuted (guesses) | read gates help both (Table 5), RDN wins every task (Table 2) |
""",
        place="pp. 2–8, 13–15, each claim with its own; verdicts: `attnlab verify rla rdn`",
        mark="project",
        notes="""
Close with the record. Go through the rows, and let the group say for each whether it changes what they would build.

The two refutations of the paper's own sentences are small: a sign in an appendix, which main text and listing have
right, and one column of a table that the text passes over. The guesses in the last row count against nobody; they are
sentences that a careful reader might believe for a moment, written down in order to be denied.

What stays open is the large question, whether a memory of errors is worth its state in a language model. The paper's
tables cannot answer it, because state differs between method and baseline. Write down who believes what, and why.
""",
    ),
    # -- backup --
    Slide(
        title="Two slopes: the clip, and a minus that must be a plus",
        body=r"""
**Clip.** With $e = v - \hat{v}$, Huber's loss is $\frac12 e^2$ for $|e| \le c$ and $c\,(|e| - \frac12 c)$ beyond. Its
slope by $e$ is $e$ or $\pm c$, and $\frac{de}{d\hat{v}} = -1$: so minus the slope by $\hat{v}$ is $\mathrm{clip}(e)$.

**Sign.** $L(M) = -k M \cdot x$ has the slope $-k^{\top} x$. Descent therefore **adds** $k^{\top} x$. Appendix B prints
$S_{t-1} - k^{\top} v$ and $R_{t-1} - k^{\top} r$, which climb by as much.
""",
        place="App. A–B, pp. 13–14; the sign: reader's analysis; right on p. 5 and in Listing 1, p. 15",
        mark="reader",
        backup=True,
        notes="""
Show this when somebody asks whether the clip is only a trick, or has tried to follow Appendix B.

The example of the check `rla.appendix-b`, in fractions: k = (1, 2) and x = (3, -1, 2)/2. The loss starts at -3/2. The
printed write takes it up to 16, the step of descent down to -19. Both move it by the squared length of k times that of
x, which is 5 times 7/2.

The main text and the listing have the plus, so no experiment is in doubt. Ask who had noticed: an appendix is
easily copied into code.
""",
    ),
    Slide(
        title="Two tokens tell RDN from what is nearly RDN",
        body=r"""
Width 1, $q = k = 1$, values $\frac12$ and $1$, all gates $\frac12$, clip 1. Second output:

| operator | output |
|---|--:|
| RDN: error from $S_{t-1}$ | $\frac{11}{32}$ |
| error from $\alpha_t S_{t-1}$ | $\frac38$ |
| error from $S_t$ | $\frac14$ |
| Gated DeltaNet twice, outputs added | $\frac{13}{16}$ |

The error is $r_2 = \frac34$; the delta rule of $R$ writes $r_2 - \frac12 \cdot \frac14 = \frac58$.
""",
        place="Sec. 3.4, p. 5; the near misses: this project; the inner error: reader's analysis",
        mark="project",
        backup=True,
        notes="""
Do it on the board. Token 1: r is 1/2, R becomes 1/4, the output is 1/2 times 1/4, that is 1/8; then S becomes 1/4.
Token 2: r is 1 minus 1/4, that is 3/4. The delta write of R subtracts 1/8 and leaves 5/8; R is 1/8 plus 5/16, that is
7/16. The output is 1/2 times 1/4 plus 1/2 times 7/16, that is 11/32.

With retention 1 the first two rows agree always, so a test without decay cannot see the difference. Two calls of a
kernel do suffice if queries and keys come one token late and each read has its gate; only then do they read the old
memory.
""",
    ),
    Slide(
        title="For RLA a steady gate on the reads is another γ",
        body=r"""
Table 5: without gates on the reads RLA gains, 43.30 → 43.81, and RDN loses, 44.65 → 43.96.

With constant $\gamma$ RLA's $R$ is $\gamma$ times a matrix that does not depend on $\gamma$ because $r$ asks only $S$.
Gated, the output gets $\gamma^2$ times its answer; ungated, $\gamma$ times. At $\alpha = 1$ an ungated $\gamma$ is the
same as a gated $\sqrt{\gamma}$.
""",
        place="Table 5, p. 8; the argument: this project",
        mark="project",
        backup=True,
        notes="""
This is a small lesson in reading ablations. With constant gates the switch adds nothing to RLA that another γ could not
do: the two scenes give the same outputs to rounding. With gates that follow the tokens it is more than that, since the
factor of the read belongs to the newest token and that of the write to an old one.

RDN is different: γ also decides how much the delta rule subtracts, so gate and rate cannot be exchanged.

So Table 5 does not say that gates are useless for RLA. It may say that the trained γ was small for a square. That is a
guess; the paper prints no gates.
""",
        figures=("recall", "gates"),
        scenes=(
            Scene(
                "Reads gated, γ = 0.547723, the root of 0.3: recall 1.75 → 1.16.",
                ("rule=rla", "similarity=0.5", _level("correction", 0.547723), "read_gates=true", "view=recall"),
            ),
            Scene(
                "Reads not gated, γ = 0.3: the same line and the same number, 1.75 → 1.16.",
                ("rule=rla", "similarity=0.5", _level("correction", 0.3), "read_gates=false", "view=recall"),
            ),
            Scene(
                "Gated again with γ = 0.3: R counts with 0.09 only, 1.75 → 1.54.",
                ("rule=rla", "similarity=0.5", _level("correction", 0.3), "read_gates=true", "view=recall"),
            ),
        ),
    ),
    Slide(
        title="One sweep over chunks serves both memories",
        body=r"""
Stack the tokens of a chunk as rows. $D_{ij}$ is the decay from token $j$ to $i$, and $L$ the strictly lower part of
$K K^{\top}$ times $D$, entry by entry. For RDN:

$$(I + \beta L)\, U = \beta\, (V - a\, K S_0), \qquad (I + \gamma L)\, W = \gamma\, (r - a\, K R_0)$$

One matrix, two right sides; each column of $V$ alone, also through the clip. $D$ is multiplied up: by logarithms a
retention of 0 gives NaN.
""",
        place="this project; the paper has two passes, Sec. 4.1, p. 5",
        mark="project",
        backup=True,
        notes="""
U and W are what each token adds to S and to R. The vector a is the decay from the start of the chunk, and S with
index 0 is the memory before it. Gates scale rows.

Why one sweep: the errors of a chunk need S only up to that chunk, so they are made and used on the spot and never
travel through memory. The paper lets one kernel finish and then starts the second (p. 5).

The logarithms: with retentions 1/2, 0, 1/2 the decay from token 2 to token 3 is 1/2. As a difference of cumulated
logarithms it is minus infinity minus minus infinity. The claims are `rla.one-sweep` and `rla.log-decay`.
""",
    ),
    Slide(
        title="No gate makes two memories one wider memory",
        body=r"""
Both memories meet the same query, so $g_S S + g_R R$ is read as **one** $K \times V$ matrix. No such matrix recalls $n$
random values with a mean error below $1 - K/n$. Error at $K = 16$, gates 1, best constants:

| | state, $V$ times | 16 pairs | 32 pairs | 64 pairs |
|---|--:|--:|--:|--:|
| RLA | 32 | 0.435 | 0.636 | 0.789 |
| RDN | 32 | 0.442 | 0.684 | 0.883 |
| linear, keys of 32 | 32 | 0.319 | 0.492 | 0.663 |
| DeltaNet, keys of 32 | 32 | 0.279 | 0.533 | 0.796 |
""",
        place="this project, of the shapes in App. C, p. 15",
        mark="project",
        backup=True,
        notes="""
The table is exact: a recursion of a few numbers a step, held against draws through the reference. Nothing is clipped in
it; with the clip the errors are measured, and the bound stays.

At the same shape errors do help, as the paper says: linear attention with keys of 16 has 0.484, 0.660 and 0.797, and
DeltaNet 0.528, 0.795 and 0.939. For the delta rule most of that gain is a gentler write: at its best constant write
DeltaNet has 0.433 and 0.636 for 16 and 32 pairs, RDN at its best constant gates 0.433 and 0.635.

The bound is for constant gains. Gates that change with the token, and keys that are learned, are outside of it; that is
why models were trained too.
""",
    ),
)

# -- before the session -----------------------------------------------------------------------------------------------

PREREAD = (
    Question(
        "For a new token, which memories do the error and the output read: those before the token or those after it?",
        "Sec. 3.4, p. 5; Listing 1, p. 15",
        "The error reads the old S, before it decays. The output reads the old S, decayed, and the new R (p. 5). So "
        "S is written last. In the listing (p. 15) it is the order of the lines that says so.",
    ),
    Question(
        "Write the read of linear attention as a prediction and a correction. Why is the correction one of a single "
        "token?",
        "Sec. 2.3 and Table 1, p. 3",
        "q S after the token is q S before it, plus (q · k) v of the newest token (p. 3). The second term has no "
        "other token in it. Gated DeltaNet's correction depends on the past through S, but it too is made anew for "
        "each token. The paper keeps corrections and reads them again.",
    ),
    Question(
        "Which loss has the clip as its slope, and which sign has a step of descent in App. B?",
        "App. A–B, pp. 13–14",
        "Huber's loss; minus its derivative by the prediction is the clipped error (pp. 13–14). Descent on minus the "
        "inner product adds the outer product, and App. B (p. 14) prints a minus in both writes. The main text (p. "
        "5) and Listing 1 (p. 15) add.",
    ),
    Question(
        "In which column of Table 4 does the memory of errors lose to the newest error alone, and what does the text "
        "say?",
        "Table 4 and Sec. 4.3, p. 7",
        "In LAMBADA's perplexity: 23.44 with the memory, 22.50 without it; lower is better (p. 7). In the four other "
        "columns the memory is ahead. The text speaks of a gain throughout, which the table does not bear out.",
    ),
    Question(
        "How many numbers does a layer of the baseline carry from token to token, and how many a layer of RLA?",
        "App. C, Table 6, p. 15",
        "16 heads with keys and values of width 128 make 16 · 128 · 128 = 262,144 numbers for one memory. RLA and "
        "RDN have two, so 524,288. The shapes are from p. 15, the count is the reader's. The paper has no comparison "
        "at the same state.",
    ),
)

# -- prompts ----------------------------------------------------------------------------------------------------------

PROMPTS = (
    Prompt(
        "With γ = 1 the second memory doubles the error of S. Is the memory at fault, or its rate?",
        Scene(
            "RLA, keys that lean by half, γ = 1: *Recall by age* says 1.75 → 3.59.",
            ("rule=rla", "similarity=0.5", _level("correction", 1), "view=recall"),
        ),
        "γ: Sec. 3.4, p. 5; the measure: this project",
        "The rate. At γ = 0.8 the headline says 1.75 → 2.02, at 0.6 it says 1.75 → 1.2, at 0.2 it says 1.75 → 1.7. "
        "In steps of 0.05 the best is 0.55, with 1.16. γ counts twice, in the write and in the read, so halving it "
        "leaves a quarter of the correction.",
    ),
    Prompt(
        "How alike must keys be before RLA's second memory pays for its numbers? And RDN's?",
        Scene(
            "Everybody has 384 numbers, keys are random: RLA 1.08, sGLA 0.69, RDN 0.85, Gated DeltaNet 0.594.",
            ("rule=rla", "similarity=0", "same_budget=true", "view=budget"),
        ),
        "shapes: App. C, p. 15; the comparison: this project",
        "Move *similarity*. At 0.3 RLA has 1.04 and sGLA 0.85; at 0.4 it is 1.02 and 1.17, and the two cross near "
        "0.36. RDN and Gated DeltaNet cross between 0.5 (0.913, 0.863) and 0.6 (0.974, 0.988), where both are nearly "
        "as bad as no answer. Gates are fixed here; trained ones are in the notebook 08_associative_recall.",
    ),
    Prompt(
        "Here R holds the newest error alone, as in the ablation of Table 4. What is lost, and for which ages?",
        Scene(
            "RLA without fitting: *Recall by age* says 1.75 → 1.62.",
            ("rule=rla", "similarity=0.5", "fitting=false", "view=recall"),
        ),
        "Table 4, p. 7; live: this project",
        "1.75 → 1.62 now; tick *fit R* and it is 1.75 → 1.2. With fitting 22 of 24 values are recalled better; the two "
        "exceptions are small. One error helps all keys a little, because they all lean one way. The gain from older "
        "errors is spread over all ages.",
    ),
    Prompt(
        "On this real head RLA is off by ten times the size of a value. Which one dial brings it below 1?",
        Scene(
            "RLA on layer 9, head 1: *Recall by age* says 7.35 → 10.9.",
            ("rule=rla", *REAL, _level("retention", 1), "view=recall"),
        ),
        "Sec. 3.4, p. 5; Fig. 4, p. 9; live: this project",
        "Rule or retention. RDN has 0.885 → 0.848. RLA has at retention 0.9 1.46 → 1.26, at 0.8 it has 1.06 → 0.976, "
        "since what leans one way no longer adds up over 64 tokens. The clip alone does not: at 0 the error of S "
        "stays above 7.",
    ),
    Prompt(
        "Table 5 finds RLA better without gates on the reads, and RDN better with them. Do these tokens agree?",
        Scene(
            "RLA without read gates, γ = 0.3: *Recall by age* says 1.75 → 1.16.",
            ("rule=rla", "similarity=0.5", _level("correction", 0.3), "read_gates=false", "view=recall"),
        ),
        "Table 5, p. 8; live: this project",
        "At γ = 0.3 they do: RLA has 1.16 without and 1.54 with gates, RDN 0.908 without and 0.886 with them. At γ = "
        "0.6 RLA turns around: 1.87 without, 1.2 with. For a constant γ and retention 1, RLA without gates at γ is "
        "RLA with gates at the root of γ, so the switch only moves the rate (backup).",
    ),
    Prompt(
        "Query 22 asks for the value of token 4. Why can neither memory give it?",
        Scene(
            "Retention is 0 at token 10: the pinned weight, error 4 at query 22, is 0.",
            ("rule=rla", *RESET, "weights=errors", "view=weights", "pin=query.21,key.3"),
        ),
        "Sec. 3.4, p. 5; unrolled: reader's analysis",
        "From row 10 on all columns left of 10 are exactly 0, in the weights of errors and of values: one factor of "
        "the product is 0. Value 4 has a recall error of 0.996 in the end, as good as nothing recalled; with "
        "retention 1 it is 1.03. The newer values gain by it: 0.77 in place of 0.94 in the mean over tokens 10 to 22.",
    ),
    Prompt(
        "No clip: R is taught whole errors, and recall gets three times as bad. How much should one error teach?",
        Scene(
            "RLA without a clip, 32 tokens, keys that lean by 0.6: *Recall by age* says 3.28 → 10.2.",
            ("rule=rla", "similarity=0.6", "tokens=32", "target=none", "clip=1", "view=recall"),
        ),
        "Secs. 3.2–3.4, pp. 4–5; Fig. 4, p. 9; live: this project",
        "Choose *clipped to ±c* and move c: at 4 the error is 9.34, at 1 it is 2.61, at 0.6 it is 1.8, at 0.25 it is "
        "2.29, at 0 it is 3.11. tanh gives 2.47. So there is a best clip, and for these tokens it is below the 1 of "
        "the main experiments. With rule RDN all of them lie between 1.04 and 1.06.",
    ),
)

# -- the leader's plan ------------------------------------------------------------------------------------------------

WELCOME = Step(
    3,
    "The question",
    "*Linear attention puts the whole past into one matrix*",
    "What has to be true of the keys for one matrix to give every value back?",
    "Somebody takes the residual for the skip connection of a layer. Say at once that it is the error of a recall.",
)
READ = Step(
    5,
    "What everybody found",
    "Pre-read sheet, questions 1 to 3; nothing on the screen",
    "Which S does the error ask, and which S does the output read?",
    "Answers differ between old and new. Let two people read the lines of Listing 1 (p. 15) aloud, in order: S is "
    "written last.",
)
LEAK = Step(
    5,
    "See the leak",
    "*Keys that resemble each other leak into each other*, three scenes",
    "Before the second scene: what will three times as many tokens and half the width do?",
    "An error above 1 looks impossible. An answer of 0 has an error of about 1, and cross-talk can be larger than the "
    "value itself.",
)
IDEA = Step(
    7,
    "The idea and the equations",
    "*S keeps values; R keeps what S got wrong*, then *A read is a prediction and one token's correction* and *RLA "
    "adds what comes; RDN writes what is lacking*",
    "Where does γ appear, and with which power does the newest error arrive?",
    "RDN's two errors are taken for one. Do the two tokens of the backup on the board: r is 3/4, and R is told 5/8.",
)
MECHANISM = Step(
    9,
    "The mechanism, live",
    "*R mends RLA where γ is right, and RDN hardly*, *An answer adds up the errors made on similar keys*, *The clip "
    "bounds what one token can teach*; *Additive writes accumulate; delta writes subtract first* if time is left",
    "Before each scene: up or down?",
    "People compare the lines without asking what they are. S alone is the new S without a gate; S and R is the old "
    "S and the new R, each through its gate.",
)
EVIDENCE = Step(
    4,
    "What is proved, what was measured",
    "*The algebra is proved; that errors help is measured*, then *The means rise, but not every column does*",
    "Was the evidence convincing, and why?",
    "The tables turn into a contest of models. Ask for the spread over runs: the paper prints none, so small gains "
    "have no scale.",
)
STATE = Step(
    4,
    "The comparison that is missing",
    "*With the same state, one wide memory is hard to beat*, three scenes",
    "What would you hold fixed: the shape of a head, the state, or the time of a token?",
    "It sounds like a refutation of the paper. It is another question than the paper's: same state in place of same "
    "shape.",
)
DISCUSSION = Step(
    20,
    "Discussion",
    "*What do you think?*: prompts 1, 2 and 3, 6 minutes each; 4 or 5 if one of them is quickly done",
    "First everybody alone for one minute: what will the panel show? Then move the dial.",
    "The panel is random pairs and untrained gates, and somebody concludes for language models. Ask what in the "
    "panel is not as in the paper: keys, gates, task.",
)
RECORD = Step(
    3,
    "The record",
    "*What to believe, claim by claim*, and the record of this session",
    "Which claim do you believe less than an hour ago, and what changed your mind?",
    "Refuted reads as the authors' mistake. Six of the eight refuted sentences are guesses that nobody made in "
    "earnest; the two of the paper are a sign and a column.",
)

HOUR = (WELCOME, READ, LEAK, IDEA, MECHANISM, EVIDENCE, STATE, DISCUSSION, RECORD)

LONG = (
    WELCOME,
    READ,
    LEAK,
    IDEA,
    Step(
        10,
        "Exercise: one token",
        "residual.rla_step, in pairs, one keyboard each",
        "In which order do your five lines stand?",
        "The output is right for the first token and wrong later: S was written before the error asked it. The check "
        "says so, and the first hint asks who asks whom.",
    ),
    MECHANISM,
    Step(
        15,
        "Exercise: the sum over errors",
        "residual.error_weights, with *An answer adds up the errors made on similar keys* on the screen",
        "With which retentions does the first error arrive at token 3?",
        "NaN where a retention is 0: the decay was made of differences of logarithms. Build row after row by "
        "multiplication.",
    ),
    EVIDENCE,
    STATE,
    DISCUSSION,
    Step(
        8,
        "The record, filled in together",
        "*What to believe, claim by claim*, and the record of this session, claim by claim",
        "What do we believe now, for which reason, and which measurement would change it?",
        RECORD.stuck,
    ),
)

# -- handout ----------------------------------------------------------------------------------------------------------

HANDOUT = (
    (
        "Words and letters",
        r"""
Row layout, one head: a memory is a matrix $K \times V$ and answers a key or query $x$ with $xM$. The paper's memories
are the transpose.

| at our door | letter | meaning |
|---|---|---|
| `retention` | $\alpha$ | what is left of both memories at each token, in $[0, 1]$ |
| `write` | $\beta$ | how much goes into $S$ |
| `correction` | $\gamma$ | how much goes into $R$, and the gate on the read of $R$ |
| `clip` | $c$ | bound on each entry of an error; 1 in the main runs |
| `state.base` | $S$ | the memory of values |
| `state.residual` | $R$ | the memory of errors |
| `residual` | $r$ | the newest error of $S$, clipped; `error` before |
| `normalize` | – | makes $q$ and $k$ unit vectors (p. 5) |
""",
    ),
    (
        "The equations (Sec. 3.4, p. 5)",
        r"""
The clipped error of the old $S$, before it decays:

$r_t = \mathrm{clip}(v_t - k_t S_{t-1})$

RLA adds:

$R_t = \alpha_t R_{t-1} + \gamma_t k_t^{\top} r_t$

$S_t = \alpha_t S_{t-1} + \beta_t k_t^{\top} v_t$

RDN writes what is lacking:

$R_t = \alpha_t R_{t-1} + \gamma_t k_t^{\top} (r_t - \alpha_t k_t R_{t-1})$

$S_t = \alpha_t S_{t-1} + \beta_t k_t^{\top} (v_t - \alpha_t k_t S_{t-1})$

Both answer with the old $S$ and the new $R$:

$o_t = \alpha_t\, q_t S_{t-1} + \gamma_t\, q_t R_t$
""",
    ),
    (
        "The mechanism in six lines",
        """
1. Make $q$ and $k$ unit vectors (p. 5).
2. Ask the old $S$ with the key. What is missing of the value is the error (p. 4).
3. Clip each entry of the error to $[-c, c]$, the slope of Huber's loss (pp. 13–14).
4. Let $R$ decay, and write the error into it under the key, with the gate $\\gamma$ (p. 5).
5. Answer from the old $S$ through $\\alpha$ and the new $R$ through $\\gamma$ (p. 5).
6. Let $S$ decay, and write the value into it with the gate $\\beta$ (p. 5; Listing 1, p. 15).
""",
    ),
    (
        "What is proved",
        r"""
| sentence | place |
|---|---|
| a read is a prediction and a correction | p. 3 |
| both writes are steps of descent on an inner loss | pp. 2–3, 13 |
| the clip is Huber's slope, tanh that of log-cosh | pp. 13–14 |
| $S$ never depends on $R$: two stages equal one recurrence | p. 5 |
| with unit keys a delta write makes nothing old grow | p. 5 |
| the correction is a sum over past errors | reader, of p. 5 |
| one sweep serves both memories | this project |

That a memory of errors helps is proved by nobody.
""",
    ),
    (
        "What was measured",
        """
| sentence | place |
|---|---|
| RLA over sGLA: +0.65 points in 8 tasks, +7.0 in NIAH | p. 7 |
| RDN over GDN: +1.17 points in 8 tasks, +10.1 in FDA | p. 7 |
| time grows linearly from 2K to 128K tokens | Fig. 2, p. 6 |
| without unit vectors and clip some outputs of RLA reach norms of $10^2$ to $10^3$ | Fig. 4, p. 9 |
| one wide memory beats two at the same state: random keys, and one trained task | this project |

At the paper's shape (p. 15) RLA and RDN hold 524,288 numbers a layer, a baseline 262,144 (reader's analysis). Not
stated in the paper: spread over runs, corpus, context length, protocol of NIAH, hardware of Fig. 2.
""",
    ),
    (
        "What is refuted",
        """
| sentence | place |
|---|---|
| fitting helps every column of Table 4: LAMBADA has 23.44 against 22.50 | p. 7 |
| Appendix B's writes descend: the sign must be a plus, as on p. 5 | p. 14 |
| RDN beats GDN on every task (a guess): WinoGrande −2.4 | p. 7 |
| read gates help both (a guess): RLA has 43.81 without, 43.30 with | p. 8 |
""",
    ),
    (
        "Try it",
        """
- `attnlab verify rla.table4-text` checks one claim, `attnlab verify rla rdn` all of them; `attnlab bench residual`
  measures the speed on this machine.
- `08_associative_recall`: exact recall of random pairs, and trained models at the same state.
- `11_exercises_residual`: six exercises, from one token of RLA to keys to which R does harm.
- `attnlab.residual.attention(q, k, v, retention, write, correction, rule="rdn", normalize=True)` is the operator.

Another library divides by $\\sqrt{d}$ unless told otherwise: pass a scale of 1 before you compare.
""",
    ),
)

SHOWN = {
    "rla.unrolled": "02_residual_memory: The unrolled sum",
    "rla.old-state": "05_claims: One refutation of RDN, by hand",
    "rla.gdn-twice": "02_residual_memory: Nearly RDN",
    "rla.one-sweep": "02_residual_memory: The same operator, faster",
}

SESSION = Session(
    paper="residual",
    title="Enhancing Linear Attention with Residual Learning",
    arxiv="2509.25223v1",
    question="Can a second memory, which learns what the first one gets wrong, correct what linear attention recalls?",
    notebook="02_residual_memory",
    checked="05_claims: RLA and RDN",
    short="""Linear attention writes every token into one matrix, so values disturb each other where keys resemble
each other. This paper puts a second matrix of the same shape beside it. It is taught the clipped errors of the first,
under the same keys, and each output reads both. RLA writes both by adding, RDN by the delta rule. The cost of a token
stays constant, and the state doubles. At 1.5 billion parameters the means of the paper's tasks rise over baselines of
the same shape (Tables 2 and 3, p. 7). That errors help is measured and not proved, and a comparison at the same state
is missing.""",
    preread=PREREAD,
    hour=HOUR,
    long=LONG,
    prompts=PROMPTS,
    slides=SLIDES,
    handout=HANDOUT,
    shown=SHOWN,
)
