"""The session on LRKV, low-rank key value attention, arXiv:2601.11471v3."""

from attnlab.teach.session import Prompt, Question, Scene, Session, Slide, Step

__all__ = ["SESSION"]

COUNTED = ("stored=float8", "layers=1")  # one layer and one byte a number, so that bytes count numbers
SMALLEST = (*COUNTED, "heads=6", "head_width=128", "latent_width=384")  # the shape of the 128M model
LOGITS = ("view=repair", "shown=error")
LEANS = "option=expand"  # a repair whose keys are right at any lean: its line in *What leaves* lies at 0

# titles that the leader's plan names
READS = "To write one token, a model reads all earlier ones"
IDEA = "Each head keeps a few numbers beside what all share"
WEIGHTS = "One shared matrix, and a correction for each head"
FACTORS = "The cache holds factors, and no key is ever made"
TURNED = "RoPE turns a head's part out of its factor's span"
LAW = "One degree of lean already costs 3.5 percent"
WRONG = "A wrong repair raises no error; it moves the logits"
REPAIRS = "Exact repairs exist, and each gives something up"
PROVED = "Proved is what passes, not that it trains better"
LOSSES = "LRKV has the lowest loss, at caches of unequal size"
SWEEP = "In Table 8 MLA is ahead where caches are small"
PRINTS = "Table 12 puts one rank's megabytes beside another's"
BELIEVE = "What to believe now, sentence by sentence"
PLANES = "Only sums of whole planes pass: the proof"
HALF = "Half a plane never passes: odd ranks, and rank 1"
NORM = "A norm of a sum asks for one cached number"
CENTRED = "Centring leaves H − 1 directions to H heads"
TRAFFIC = "What is shared must be read once, or nothing is saved"

# -- before the session -----------------------------------------------------------------------------------------------

QUESTION = "How much of a head's keys and values must be its own?"

SHORT = r"""A language model that writes one token reads the cached keys and values of all earlier ones. LRKV makes
this cache smaller. All $H$ heads share one key and one value a token, and each head adds a correction of rank $r$
(Eqs. 2-3, p. 3). The cache holds the shared part and, for each head, $r$ latents for keys and $r$ for values:
$1/H+r/d$ of what MHA holds (Eq. 9, p. 4). By the associative law it is read without making a key (Eqs. 6-7, p. 4).
Trained from scratch, LRKV has a lower loss than MHA, GQA, MQA and MLA at four scales (Table 1, p. 5), at caches of
unequal size. That factored reading goes on under full RoPE (p. 4) does not hold for an arbitrary factor."""

PREREAD = (
    Question(
        ask="What does one token leave in the cache of a layer, and which of $K_s$, $R_h$ and $B_h$ is a weight?",
        place="Sec. 3, Eqs. 4-5, p. 3; Eq. 9, p. 4",
        answer=r"""One shared key and value of $d$ numbers each, and for every head $r$ latents for the key and $r$
for the value: $2(d+Hr)$ numbers (Eq. 9, p. 4). $K_s$ and $R_h$ are cached. $B_h$ is a weight, one for all tokens
(p. 3).""",
    ),
    Question(
        ask="What in Eqs. 6 and 7 makes it needless to put old keys and values together?",
        place="Sec. 3, Eqs. 6-7, p. 4",
        answer=r"""The associative law. $q_h(R_hB_h^{\top})^{\top}$ is $(q_hB_h)R_h^{\top}$, so the query is projected
once and meets the latents. In the same way $a_h(R_hB_h^{\top})$ is $(a_hR_h)B_h^{\top}$: latents are added up first
(p. 4).""",
    ),
    Question(
        ask="The paper says that factored decoding goes on under full RoPE. Which equation would that need?",
        place="Sec. 3, positional embeddings, p. 4",
        answer=r"""A rotation distributes over the sum, $P_t(k_s+Bz)=P_tk_s+P_tBz$. But in the cache there is only
$z$. So there has to be a $\tilde P_t$ with $P_tB=B\tilde P_t$ at every position. An arbitrary learned $B$ has none
(p. 4, reader's analysis).""",
    ),
    Question(
        ask="Which ranks do the models of the main tables have, and which rank gives the megabytes of Table 12?",
        place="Table 7, p. 24; App. G, Table 12, pp. 28-29",
        answer=r"""46, 51, 55 and 54 (Table 7, p. 24). 48/72, 360/648 and 612/1,152 are 66.67, 55.56 and 53.13 %,
which is rank 64, as the caption of Table 12 has it. The printed 52.6, 48.4 and 45.1 % are close to the ranks of Table
7 (pp. 28-29, reader's analysis).""",
    ),
    Question(
        ask="Which row of Table 8 has a smaller cache and a smaller loss than LRKV with $r=32$?",
        place="Table 8, p. 25",
        answer=r"""MLA with latents of 384: 25.0 % of MHA's cache and 2.894, where LRKV has 41.7 % and 2.896 (p. 25,
reader's analysis). To $r=8$ and $r=16$ there is such an MLA too (this project). From $r=64$ on LRKV has the smaller
loss, with caches that no MLA of the table has.""",
    ),
)

# -- slides -----------------------------------------------------------------------------------------------------------

SLIDES = (
    Slide(
        title=READS,
        body=r"""$$
a_h=\mathrm{softmax}\left(\frac{q_hK_h^{\top}}{\sqrt d}\right),\qquad o_h=a_hV_h
$$

Numbers that a token leaves in the cache of one layer, $H$ heads of width $d$:

| MHA | GQA, $G$ groups | MQA |
|---|---|---|
| $2Hd$ | $2Gd$ | $2d$ |

Sharing makes the cache smaller, and takes from heads what tells them apart.

**The question:** how much of a head's keys and values must be its own?""",
        place="Secs. 1-3, pp. 1-4",
        notes=r"""Begin with what everybody knows. A decoder makes one query a head and layer, and then reads all that
is cached. It does few operations for each byte, so the size of the cache decides the speed.

Ask: at MQA's end, what do heads still have of their own? Their queries. That is more than people expect, and a backup
slide comes back to it.

What people get wrong: they take a smaller cache for a sparse one. Here every token is read, by a dense softmax. What
becomes smaller is what a token leaves, and not how many tokens are read.

Say now that GQA chooses between 1 and $H$ whole keys. LRKV asks for something in between: a whole key for all, and a
small correction for each.""",
    ),
    Slide(
        title=IDEA,
        body=r"""- All heads share **one** key and one value a token.
- Each head adds **$r$ latents** for its key and $r$ for its value.
- Together $2(d+Hr)$ numbers, beside MHA:

$$
\frac{2(d+Hr)}{2Hd}=\frac1H+\frac rd
$$

The panel counts numbers: one layer, one byte each.""",
        place="Sec. 3 and Eq. 9, p. 4; ranks: Table 7, p. 24; bars: this project",
        notes=r"""This is the idea in one picture. The long grey bar is MHA, the short one MQA, and the golden one
LRKV, which the rank moves between them.

Ask before the second scene: at which rank does the golden bar reach the dashed line? Where $1/H+r/d=1$, so at 107 for
these six heads, where it would be 100.3 %. Few people expect that the last step costs more than MHA. At $r=d$ every
MHA can be written as LRKV, and then the shared part comes on top.

The last two bars are for later. One has a cached number more for a norm. The other is no cache: it is what a kernel
reads that has a program for each head.

What people get wrong: they count $B_h$. It is a weight, and does not grow with the text.""",
        scenes=(
            Scene(
                says="Rank 0: the bar *LRKV* is as long as the bar *MQA*, 256 numbers or 16.7 % of MHA's.",
                settings=(*SMALLEST, "rank=0", "view=meter", "pin=scheme.4"),
            ),
            Scene(
                says="Rank 46, the paper's for its 128M model: 808 numbers in place of 1,536, or 52.6 %.",
                settings=(*SMALLEST, "rank=46", "view=meter", "pin=scheme.4"),
            ),
            Scene(
                says="Rank 128, as wide as a head: 1,792 numbers, 117 % of MHA; the bar has passed the dashed line.",
                settings=(*SMALLEST, "rank=128", "view=meter", "pin=scheme.4"),
            ),
        ),
        figures=("meter",),
    ),
    Slide(
        title=WEIGHTS,
        body=r"""$$
W_h=W_{\mathrm{shared}}+U_hB_h^{\top}
$$

- $U_h$ is $d_{\mathrm{model}}\times r$, $B_h$ is $d\times r$.
- Keys and values have factors of their own. Queries stay free.
- $W_h$ may have full rank. But two heads differ by rank $2r$ at most, so at a low rank not every MHA is an LRKV
  (reader's analysis).
- All parts are trained together from scratch. At first $U_hB_h^{\top}$ is about a tenth of $W_{\mathrm{shared}}$.
- In training, keys and values are made whole.""",
        place="Sec. 3, Eqs. 2-3, p. 3",
        notes=r"""Read the formula from the right: $U_h$ takes a token to $r$ latents, and $B_h$ takes the latents to
the width of a head. It is the same shape as LoRA, but nothing is frozen and nothing is added later.

Ask: what exactly has low rank here? The difference between heads, and nothing else. Two heads with $W=0$ and $W=I$ of
width 3 differ by rank 3, so $r=1$ cannot have both (reader's example).

What people get wrong: they look for LRKV in a trained MHA. In a small model with three key heads this project finds
nothing to share: a mean head loses 0.666 of the energy, and three heads without anything in common lose 0.667. LRKV
has to be trained as LRKV.""",
    ),
    Slide(
        title=FACTORS,
        body=r"""Cached: $K_s=XW_{\mathrm{shared}}$ and $R_h=XU_h$, for keys and for values. Implied, and never made:

$$
K_h=K_s+R_hB_h^{\top}
$$

The query is projected once, and the latents are read before $B_h$:

$$
q_hK_h^{\top}=q_hK_s^{\top}+(q_hB_h^K)(R_h^K)^{\top}
$$

$$
o_h=a_hV_s+(a_hR_h^V)(B_h^V)^{\top}
$$

Both are the associative law, so nothing is approximated. No position has come in yet.""",
        place="Sec. 3, Eqs. 4-5, p. 3; Eqs. 6-7, p. 4",
        notes=r"""Do the example on the board (this project). Shared keys (1, 0) and (0, 1), latents 1 and 2,
$B=(1,1)$, so the keys are (2, 1) and (2, 3). The query (1, 2) meets them with 4 and 8. In factors: 1 and 2 with what
is shared, $qB=3$, and 1 + 3 · 1 = 4, 2 + 3 · 2 = 8.

Ask: how often is $B_h$ used in one step? Twice a head, once for the query and once for the output, however long the
text is.

If the cache is read in parts, merge before $B_h^V$: each part reports two means and the logarithm of its denominator
(this project).

What people get wrong: they take the factored form for another model. It is the same model in another order of
summation, equal to rounding.""",
    ),
    Slide(
        title=TURNED,
        body=r"""The paper: factored decoding goes on under full RoPE (p. 4). A rotation distributes,
$P_t(k_s+Bz)=P_tk_s+P_tBz$, but the cache holds $z$ only. Latents would have to turn in place of keys:

$$
P_tB=B\tilde P_t\quad\text{at every }t
$$

Reader's counterexample: $B=(1,0)^{\top}$ and a quarter turn give $PB=(0,1)^{\top}$, and $Bc=(c,0)^{\top}$ for every
number $c$.""",
        place="claim: Sec. 3, p. 4; counterexample: reader's analysis; picture: this project",
        notes=r"""Here the session turns from what holds to what does not. Let the group do the quarter turn alone:
one minute, two lines.

The picture shows two planes that RoPE turns, three of their four coordinates. The golden disc is what the two columns
of $B$ span, the grey one is the same disc turned by $t$ positions. The orange line is what has left. Drag the
picture.

Ask: linear maps distribute over sums, so what is wrong with the paper's argument? Distributing is one thing, passing
through $B$ another. $P_tBz$ must be $B$ times something, or it is not in the cache.

What people get wrong: they think of a small numerical error. At the third scene all of it is gone. The models of the
paper are not in doubt: in training keys are made whole (p. 3).""",
        scenes=(
            Scene(
                says="Lean 0°: *B* spans plane 1 and nothing else, so the turned disc lies on its own disc, and the"
                " angle is 0°.",
                settings=(LEANS, "angle=0", "position=3", "view=subspace"),
            ),
            Scene(
                says="Lean 30° towards plane 8: after three positions the grey disc stands at 59.53° to the golden one,"
                " and the orange line has left.",
                settings=(LEANS, "angle=30", "position=3", "view=subspace"),
            ),
            Scene(
                says="Lean 45°, position 16: 89.78°, a right angle within a quarter of a degree, so everything has left"
                " the span.",
                settings=(LEANS, "angle=45", "position=16", "view=subspace"),
            ),
        ),
        mark="reader",
        figures=("subspace", "law"),
    ),
    Slide(
        title=LAW,
        body=r"""Let $B$ be plane $i$, leaning by $\varphi$ towards plane $j$. At position $t$ this share of every
vector's length leaves its span:

$$
\left|\sin2\varphi\right|\left|\sin\tfrac12(\theta_i-\theta_j)t\right|
$$

The lean sets the height, the two angles a position set the period. If plane $j$ is run through the other way round,
$\theta_i+\theta_j$ stands there.""",
        place="this project; claim examined: Sec. 3, p. 4",
        notes=r"""Bold in the chart is linear algebra, dashed the closed form; they lie on each other. The thin line
at 0 is how far the keys of the chosen repair are out. It makes whole keys here, and is for the next slide.

Ask before the second scene: ten times the lean, how much more leaves? 0.342, which is 9.8 times 0.0349: for small
angles it is nearly proportional.

Then let somebody guess the third scene. Planes 1 and 2 turn by 1 and by 0.562 a position, so the curve is slow: it
comes back after 14.4 positions. The other way round the sum counts, and it comes back after 4.02.

What people get wrong: they hope that training finds a $B$ without lean. A learned column has parts in all planes; a
random factor of rank 32 in 128 loses about three quarters of its squared length.""",
        scenes=(
            Scene(
                says="Lean 1°: the curve is nearly flat, with 0.0349 at its top, position 16.",
                settings=(LEANS, "angle=1", "position=16", "view=law"),
            ),
            Scene(
                says="Lean 10°: the same shape, ten times as high, 0.342.",
                settings=(LEANS, "angle=10", "position=16", "view=law"),
            ),
            Scene(
                says="Lean 45° towards plane 2, which turns more like plane 1: the waves are longer, and 0.9992 leaves"
                " at position 7.",
                settings=(LEANS, "angle=45", "second=2", "position=7", "view=law"),
            ),
            Scene(
                says="The same, other way round: the waves are short, and at position 4 only 0.01691 is out.",
                settings=(LEANS, "angle=45", "second=2", "opposite=true", "position=4", "view=law"),
            ),
        ),
        mark="project",
        figures=("law", "subspace"),
    ),
    Slide(
        title=WRONG,
        body=r"""What if latents are turned all the same? *Logits* compares one head's logits with those of keys that
were made whole and then turned. The number is the error beside the size of the logits (root mean squares): 24 random
tokens, $d=32$, $r=12$.

Eight heads, $d=128$, $r=32$, random factors: 0.92 turned, 0.78 unturned, 0.56 by the closest map.""",
        place="this project; claim examined: Sec. 3, p. 4",
        notes=r"""Nothing in these numbers was trained, so they say what the algebra does and not how much a model
would suffer.

Go through the first three and ask each time: would your tests have seen it? Shapes fit, no number is NaN, rows still
sum to 1. Only a comparison with whole keys shows it. That is the practical lesson of the session.

The closest map, $B^{+}P_tB$, is the best that $r$ latents can do, and it still misses what has left the span.

The trap with the shortest name is the layout: half-split and interleaved RoPE have different planes, so a factor that
is right for one is like a random one for the other, 0.62 at the larger size.

What people get wrong: a small error at 1° seems harmless. It is there at every pair and every layer.""",
        scenes=(
            Scene(
                says="Latents turn as if *B* were whole planes: the number beside *Logits* is 0.257.",
                settings=("option=latents_turned", "angle=30", *LOGITS),
            ),
            Scene(
                says="Latents stay as they are: 0.501, and the colours are stronger.",
                settings=("option=latents_unturned", "angle=30", *LOGITS),
            ),
            Scene(
                says="The closest map of latents that there is: still 0.238.",
                settings=("option=best_latent_map", "angle=30", *LOGITS),
            ),
            Scene(
                says="Turned latents again with a lean of 1° only: 0.00864, small and not zero.",
                settings=("option=latents_turned", "angle=1", *LOGITS),
            ),
        ),
        mark="project",
        figures=("repair", "law"),
    ),
    Slide(
        title=REPAIRS,
        body=r"""| repair | what it gives up |
|---|---|
| whole planes | a head's part lies in $r$ of $d$ coordinates |
| tied frequencies | $r/2$ frequencies in place of $d/2$ |
| residual stays | the head's part has no position |
| expand, then turn | 8,576 operations for 64 a key, at $d=128$, $r=32$ |

The first three are models to be trained so. The last one takes any $B$.""",
        place="this project; claim examined: Sec. 3, p. 4",
        notes=r"""Exact means to rounding: numbers like 10⁻¹⁶. The matrix is empty in all four scenes, so look at the
number, and then at the thin line in *What leaves*: it lies at 0.

The bold line does not move. It belongs to the leaning $B$ of the dials, which whole planes and tied frequencies do
not use, and which expanding does not need.

Ask: which would you train? Give heads planes of their own, or the shared key is not needed there, and $d-r+Hr$
numbers do the same as $d+Hr$.

Tied frequencies are this project's. Planes of one frequency may follow one complex latent, so all $d$ coordinates are
used. The panel shows rank 8 there, since the rank has to divide the width.

What people get wrong: they expect a repair of a trained model. Only *expand* and *turn the query back* are that.""",
        scenes=(
            Scene(
                says="Whole planes: the matrix of errors is empty, and its number is at rounding, below 10⁻¹⁵.",
                settings=("option=aligned", "angle=30", *LOGITS),
            ),
            Scene(
                says="Tied frequencies: exact at rank 8, with 4 frequencies for 16 planes.",
                settings=("option=tied", "angle=30", *LOGITS),
            ),
            Scene(
                says="The residual stays unturned: exact again, as another model, in which only the shared key knows"
                " its place.",
                settings=("option=still", "angle=30", *LOGITS),
            ),
            Scene(
                says="Expand, then turn: exact although 0.8619 of *B* leaves its span, because every key is made.",
                settings=("option=expand", "angle=30", *LOGITS),
            ),
        ),
        mark="project",
        figures=("repair", "law"),
    ),
    Slide(
        title=PROVED,
        body=r"""| sentence | place | status |
|---|---|---|
| factored reading is exact | Eqs. 6-7, p. 4 | proved |
| so it is under full RoPE, for any $B$ | p. 4 | refuted (reader) |
| $B$ passes exactly if it spans whole planes | of p. 4 | proved (project) |
| so no odd rank passes: 51, 55 | of p. 24 | proved (project) |
| one number a token and head repairs a norm | of p. 9 | proved (reader) |
| LRKV trains better | pp. 5-6 | measured |""",
        place="Sec. 3, pp. 3-4; p. 9; Table 7, p. 24; proofs: this project",
        notes=r"""The third row has a condition: no two angles equal or opposite, and none 0 or π, as in usual RoPE.
Where frequencies are tied, more passes.

It is no defect of the paper's models that 51 and 55 are odd; they were trained with whole keys. It says that for them
no choice of $B$ would make factored decoding exact under full RoPE.

The last row is the one that matters to most people. Nobody has proved that a difference of low rank is the right one
for heads, or why LRKV should train better than MHA, which contains every LRKV: a $W_h$ with a correction is still a
$W_h$.

Ask: what would you want to see before you believe the last row? Equal caches, equal parameters, several seeds. This
project has such an experiment, in small: the notebook 09_cache_budget.""",
        mark="project",
    ),
    Slide(
        title=LOSSES,
        body=r"""Who has the lowest cross-entropy on held-out text?

| | 128M | 1.2B | 2.5B | 6.3B | 512M, 8K |
|---|--:|--:|--:|--:|--:|
| MHA | 2.903 | 2.530 | 2.389 | 2.319 | 2.740 |
| best of GQA, MQA, MLA | 2.901 | 2.536 | 2.392 | 2.304 | 2.704 |
| LRKV | 2.893 | 2.509 | 2.376 | 2.288 | 2.665 |
| LRKV's cache, % of MHA | 52.60 | 48.18 | 48.52 | 45.31 | 48.2 |

Five tasks at 2.5B, after the same midtraining: 37.9 %, MHA 35.3 %. HumanEval falls from 13.4 to 11.7 %.""",
        place="Table 1, p. 5; Table 2, Fig. 4, p. 6; Table 9, p. 26; cache: reader's arithmetic from Table 7, p. 24",
        notes=r"""The reductions beside MHA are 0.34, 0.83, 0.54, 1.34 and 2.74 % (reader's arithmetic). 100B tokens
at 128M, 50B elsewhere, contexts of 2,048, one recipe (pp. 23-24). At 8K that length is trained, not stretched to
(p. 6).

Ask: what differs beside the scheme? The cache: MQA has $1/H$ of MHA's, LRKV about half. And the size: a label names
the model with MHA. In a layer of 128M keys and values take 1,179,648 weights with MHA, 691,200 with LRKV (Eq. 10,
p. 4; this project's count).

MQA is below MHA at 6.3B, and all that share are at 8K. So sharing need not cost.

What people get wrong: 18.7 % fewer steps to MHA's loss at 2.5B (p. 6) are steps and not time (footnote, p. 5). No
decoding latency is reported.""",
    ),
    Slide(
        title=SWEEP,
        body=r"""Which scheme makes most of a given cache? 128M, 100B tokens:

| | cache, % of MHA | cross-entropy |
|---|--:|--:|
| MLA, latents of 128 | 8.3 | 2.901 |
| LRKV, $r=8$ | 22.9 | 2.908 |
| MLA, latents of 384 | 25.0 | 2.894 |
| LRKV, $r=32$ | 41.7 | 2.896 |
| LRKV, $r=64$ | 66.7 | 2.888 |
| MHA | 100.0 | 2.903 |
| LRKV, $r=128$ | 116.7 | 2.877 |

It is a trade. From $r=64$ on LRKV goes lower, with caches that no MLA of the table has.""",
        place="Table 8, p. 25; the comparison: reader's analysis",
        notes=r"""This is the only sweep over caches in the paper. More rank is better throughout. Each of $r=8$, 16
and 32 has an MLA with a smaller cache and a smaller loss (this project). Fig. 5 shows MLA points that conflict with
this table (reader's analysis).

A puzzle for the end: bits a byte over cross-entropy should be one number for one text. MLA-128 has at most 0.3022 of
it, LRKV with $r=128$ at least 0.3032 (this project). So the two columns of loss are
not of one text with one tokenizer, or one of the figures is misprinted.

Ask: is 2.894 against 2.896 a difference? No spread over seeds is given.

What people get wrong: they read it as a verdict for MLA. For that one needs equal caches and equal parameters. The
notebook 09_cache_budget trains small models with both held fixed.""",
        mark="reader",
    ),
    Slide(
        title=PRINTS,
        body=r"""Do the printed percentages follow from the sizes beside them? Across: recomputed. Up: as printed.

- On the diagonal they agree.
- Rings are Table 12: 48/72, 360/648, 612/1,152 MB.
- The dashed line is the cache of the dials, $1/H+r/d$.

The megabytes are those of $r=64$, the percentages those of Table 7, nearly.""",
        place="Table 7, p. 24; Table 8, p. 25; App. G, Table 12, pp. 28-29",
        notes=r"""Five dots are off: three rings, and the 48.4 and 45.1 % themselves, which should be 48.52 and 45.31
by Table 7. All nine percentages of Table 8 fit their sizes.

Go slowly in the second scene: only the rank changes, and the dashed line jumps to the ring. Then six heads become 32,
and it jumps to the last ring.

Ask: does it matter? The saving at 6.3B is 47 % in megabytes and 55 % in the percentages. Who buys memory by this
table should know which of them was meant.

"Measured" means here element counts times bytes (pp. 28-29). And 2.5B has 18 layers in Table 5 (p. 23) and 36 in
Figs. 7 and 8 (pp. 8-9); Table 12 fits both, with 4,096 or with 2,048 tokens (reader and this project).""",
        scenes=(
            Scene(
                says="Six heads, rank 46: the dashed line stands at 52.6, and the framed ring, printed 52.6, lies at"
                " 66.67, far off the diagonal.",
                settings=("heads=6", "head_width=128", "rank=46", "view=prints", "pin=print.13"),
            ),
            Scene(
                says="Rank 64, which the caption of Table 12 names: now the dashed line passes through this ring.",
                settings=("heads=6", "head_width=128", "rank=64", "view=prints", "pin=print.13"),
            ),
            Scene(
                says="32 heads, rank 64: it passes through the ring of 6.3B, printed 45.1 and recomputed 53.13.",
                settings=("heads=32", "head_width=128", "rank=64", "view=prints", "pin=print.15"),
            ),
        ),
        mark="reader",
        figures=("prints",),
    ),
    Slide(
        title=BELIEVE,
        body=r"""- **Holds**: factored reading, rank 0 is MQA, $1/H+r/d$ of the cache (p. 4); lowest loss in Table 1
  (p. 5).
- **Holds, found later**: what a rotation passes through, six repairs that keep a position, one
  number for a norm, at most $H-1$.
- **Refuted as printed**: full RoPE for any $B$ (p. 4); Fig. 9 near 6 (p. 16); Table 12's percentages (p. 28); MLA
  must make keys (pp. 27-28).
- **Open**: equal caches; time.""",
        place="pp. 3-29, each sentence with its own; verdicts: `attnlab verify lrkv`",
        notes=r"""25 of the 39 sentences hold, 14 are refuted. Go line by line and ask: who disagrees? Then say which
of them would change what you build.

Keep apart what is refuted and what carries the paper. The trained results rest on whole keys, so the sentence on RoPE
does not touch them. It touches whoever wants the small cache at decoding, which is what the paper is for.

Nine refuted sentences are not the authors'. A careful reader might take them for granted, such as that LRKV dominates
MLA, and they are written down in order to be denied.

What people get wrong: they count refutations. One on page 4 weighs more than three wrong percentages.

Then open the record and let the group write down what it believes, with a reason for each.""",
        mark="project",
    ),
    # -- backup --
    Slide(
        title=PLANES,
        body=r"""Let $V$ be the span of $B$. A $\tilde P_t$ exists at every $t$ exactly if $P_1V\subseteq V$.

- On plane $i$, $P_1$ has the polynomial $q_i(x)=x^2-2\cos\theta_i\,x+1$. No two are equal, none has a real root.
- So they are coprime, and the projector $E_i$ on plane $i$ is a polynomial in $P_1$.
- Then $E_iV\subseteq V$ for every $i$, and $V$ is the sum of the $E_iV$.
- $E_iV$ is invariant in a plane that turns: 0 or the whole plane.""",
        place="this project, of Sec. 3, p. 4",
        notes=r"""The condition: no two angles equal or opposite, none 0 or π. The frequencies of usual RoPE are
different and lie in (0, 1], so they satisfy it.

One position decides. If $P_1V\subseteq V$, then $P_1V=V$, since $P_1$ is injective and $V$ finite; so $P_tV=V$ for
every whole $t$.

Ask: where is the condition used? In line two, so that the polynomials are coprime, and in line four, since a rotation
by 0 or π has lines that it keeps.

Where frequencies are tied, planes of one frequency form a complex space, and its complex subspaces pass. That is the
repair with tied frequencies.

Do not believe it: the check `lrkv.rope-iff` decides 1,120 spaces in four dimensions in fractions. Four pass: 0, two
planes, all.""",
        mark="project",
        backup=True,
    ),
    Slide(
        title=HALF,
        body=r"""If the span holds the share $p_i$ of plane $i$, $\sum_ip_i=r/2$, rotations take out of an orthonormal
basis, on average over positions,

$$
2\sum_ip_i(1-p_i)
$$

units of its squared length $r$.

- Odd $r$: some $p_i$ is not whole. The least is $\frac12$, with one half plane.
- All $p_i=r/d$: the most, the share $1-\frac rd$. Random factors come close.
- Rank 1 in all planes: read by one product, the residual alone takes $d$ numbers.""",
        place="this project, of Sec. 3, p. 4, and Table 7, p. 24",
        notes=r"""Write $P_t$ with its eigenvectors. The square of what leaves is a sum over pairs of them with
factors that turn, and over all positions only the pairs with themselves remain. That is the whole proof of the
formula; the condition on angles is that of the slide before.

It proves the theorem again: the mean is 0 only if each $p_i$ is 0 or 1.

The last line says that no other cache of $r$ numbers helps. The table of all products, query down and key across, has
the rank of the smallest invariant space that holds $B$. It bounds the residual alone, beside a shared key as it lies.
A single head may keep its whole key, and two heads two keys, which is $2d$ in place of $3d$.

Ask: what does 51 lose at least? Half a unit of 51.""",
        mark="project",
        backup=True,
    ),
    Slide(
        title=NORM,
        body=r"""The paper norms after the projection (p. 9). Take a shared and a residual key of two numbers:

| | rms | normed |
|---|--:|---|
| $(7,1)$ | 5 | $(\frac75,\frac15)$ |
| $(-6,6)$ | 6 | $(-1,1)$ |
| their sum $(1,7)$ | 5 | $(\frac15,\frac75)$ |

The normed parts add up to $(\frac25,\frac65)$: another direction. But

$$
q\cdot\frac{k}{\mathrm{rms}(k)}=\frac{1}{\mathrm{rms}(k)}\left(q\cdot k_s+(B^{\top}q)\cdot z\right)
$$

so one cached number a token and head, $1/\mathrm{rms}(K_h)$, makes it exact.""",
        place="p. 9; what follows from it: reader's analysis",
        notes=r"""The authors trace large weight norms of LRKV to the additive form and to the norm after the
projection (p. 9). How decoding treats that norm they leave open.

The number depends on token and head and not on the query, so it can be cached: $r+1$ numbers a head's key in place of
$r$. In the panel it is the bar *LRKV, key scale*. A rotation keeps lengths, so it does not matter whether RoPE comes
before the norm or after.

Ask: what about a gain after the norm? Without positions it goes into the query. Under RoPE it goes into shared keys
and, with whole planes, into latents, before they turn (this project).

What people get wrong: they norm the two paths separately, because both are at hand.""",
        mark="reader",
        backup=True,
    ),
    Slide(
        title=CENTRED,
        body=r"""The paper compares heads by $A_h=W_h^Q(W_h^K)^{\top}$: effective rank of the centred Gram matrix
(p. 15).

$$
G_c=JGJ,\qquad G_c\mathbf1=0
$$

| % of $H$ | 6 heads | 18 heads |
|---|--:|--:|
| most there is | 83.33 | 94.44 |
| MHA | 82.4 | 94.0 |
| LRKV, $r=64$ | 83.0 | 93.5 |
| MQA | 78.4 | 91.0 |""",
        place="Sec. 4.3, pp. 7-9; App. C.1, p. 15; Table 3, p. 16; the ceiling: reader's analysis",
        notes=r"""$A_h$ is the right object: changing the coordinates of queries and keys together leaves it as it is
(p. 7). $J=I-\frac1H\mathbf1\mathbf1^{\top}$ takes the mean away. What that does to the measure is the reader's
finding. Even heads at right angles, $G=I$, come to $H-1$.

So the table's rows stand within five points of the ceiling, all of them, MQA too. Its heads differ by their queries.
Fig. 9 (p. 16) is labelled PCA and reaches nearly 6 with six heads; a centred rank cannot exceed 5.

Ask in the second scene: heads are nearly alike now, so why does the lower number not move? Centring takes away
exactly the part that they share.

What people get wrong: they take a rank of weights for what heads do with text. Values and inputs are not in it, and
these models have $r=64$, not the ranks of the main tables.""",
        scenes=(
            Scene(
                says="Six heads at right angles: the headline says 6 → 5, and the dashed ceiling is 83.3 % of six.",
                settings=("heads=6", "shared=0", "view=diversity"),
            ),
            Scene(
                says="A shared part of 0.95: before centring these six are worth 1.27 heads, after it still 5.",
                settings=("heads=6", "shared=0.95", "view=diversity"),
            ),
            Scene(
                says="Eighteen heads: 18 → 17, a higher ceiling in percent for the same kind of heads.",
                settings=("heads=18", "shared=0", "view=diversity"),
            ),
        ),
        mark="reader",
        backup=True,
        figures=("diversity",),
    ),
    Slide(
        title=TRAFFIC,
        body=r"""A kernel with a program for each head reads $k_s$ and $v_s$ for itself: $2H(d+r)$ numbers,
$1+\frac rd$ times what MHA moves, from a cache of half the size.

MLA associates too, $qK^{\top}=(qW_{\mathrm{up}}^{\top})Z^{\top}$. Table 10 charges it for making keys (pp. 27-28).

The paper reports no decoding latency.""",
        place="Eq. 9, p. 4; App. F, Table 10, pp. 27-28; traffic: this project",
        notes=r"""The last bar is traffic, and the others are caches. It has to be short if a decode step is to be
fast, since the step reads everything once and computes little.

On two CPU cores this project measured one decode step with 32 heads of width 128 over 8,192 tokens, beside torch's
attention on an MHA cache: 2.38 times as fast at rank 56, where bytes are 2.13 to 1, and 4.07 times at rank 32, where
they are 3.56 to 1. Shared keys are read once there, for all heads in one product.

Ask: why is GQA not hit by this? It has whole keys for each group, and a program can serve a group.

MLA: the paper's appendix describes the association and still counts the reconstruction (reader's analysis).

What people get wrong: a smaller cache is taken for a faster step.""",
        scenes=(
            Scene(
                says="The shape of 6.3B: the bar *LRKV* is 45.3 % of MHA, but *LRKV per head* reads 142 %.",
                settings=(
                    *COUNTED,
                    "heads=32",
                    "head_width=128",
                    "rank=54",
                    "latent_width=576",
                    "view=meter",
                    "pin=scheme.6",
                ),
            ),
            Scene(
                says="Rank 0 is MQA, and a program for each head still reads 100 %: nothing is saved at all.",
                settings=(
                    *COUNTED,
                    "heads=32",
                    "head_width=128",
                    "rank=0",
                    "latent_width=576",
                    "view=meter",
                    "pin=scheme.6",
                ),
            ),
        ),
        mark="project",
        backup=True,
        figures=("meter",),
    ),
)

# -- the discussion ---------------------------------------------------------------------------------------------------

PROMPTS = (
    Prompt(
        ask="This repair is exact, and yet 0.86 of the factor leaves its span. Is that a contradiction?",
        scene=Scene(
            says="Expand, then turn: at position 3 the bold line says 0.8619; the thin one, how far the repair's keys"
            " are out, lies at 0.",
            settings=(LEANS, "angle=30", "position=3", "view=law"),
        ),
        place="claim: Sec. 3, p. 4; repairs: this project",
        answer=r"""No. The bold line is about $B$: no latents could turn in its place, wherever it is not 0. Expanding
does not turn latents, it makes every key, so the thin line lies at 0. Choose *wrong: latents turn*: the bold line
stays, and the thin one rises to 1. In the whole panel (key w) *Logits* says 0.257 then, and 0 before. The price of
expanding is 134 times the operations of the residual's logit, at $d=128$ and $r=32$.""",
    ),
    Prompt(
        ask="At a lean of 90° nothing leaves the span, and yet the keys come out wrong. What went wrong?",
        scene=Scene(
            says="Latents turn, lean 90°: the bold line lies at 0, and the thin one, how far the repair's keys are out,"
            " reaches 2.",
            settings=("option=latents_turned", "angle=90", "position=3", "view=law"),
        ),
        place="claim: Sec. 3, p. 4; the panel: this project",
        answer=r"""$B$ spans plane 8 now, a whole plane, so latents can turn in its place. But this repair turns them
by the angle of plane 1. Choose *wrong: best map*: the thin line falls to 0, for its map is the right one here.
*Wrong: latents stay* rises slowly, to 1.08 at position 64, since plane 8 turns slowly. So it takes two things: a span
that passes, and the turn that belongs to it. In the whole panel (key w) *Logits* says 0.531 at first.""",
    ),
    Prompt(
        ask="You have 256 numbers a token and layer. On which scheme do you spend them, and how would you decide?",
        scene=Scene(
            says="Eight heads of 32, one byte a number: *GQA*, *MLA* and *LRKV* at rank 12 stand at 50 % each.",
            settings=(
                *COUNTED,
                "heads=8",
                "head_width=32",
                "rank=12",
                "groups=4",
                "latent_width=256",
                "view=meter",
                "pin=scheme.4",
            ),
        ),
        place="Eq. 9, p. 4; caches of Table 1: Table 7, p. 24; Table 8, p. 25",
        answer=r"""All three bars are 256 long, MQA's is 64, MHA's 512. One more rank costs 16 numbers, 3.1 points; at
rank 28 LRKV has reached MHA. *LRKV per head* reads 138 %. Bytes do not say who learns best: Table 1 (p. 5) compares
unequal caches, Table 8 (p. 25) is the only sweep. One would fix cache, parameters, text and seeds; the notebook
09_cache_budget is such an experiment in small.""",
    ),
    Prompt(
        ask="The rings are Table 12. Which rank brings the dashed line to them, and is it a rank of the main models?",
        scene=Scene(
            says="Six heads, rank 46: the dashed line is at 52.6 %, the framed ring of 128M at 66.67; move the rank.",
            settings=("heads=6", "head_width=128", "rank=46", "view=prints", "pin=print.13"),
        ),
        place="Table 7, p. 24; App. G, Table 12, pp. 28-29",
        answer=r"""Rank 64, for all three: with 6 heads the line is at 66.67, with 18 at 55.56, with 32 at 53.13. The
caption of Table 12 names rank 64; the main models have 46, 51, 55 and 54 (p. 24). The rings lie 14.1, 7.2 and 8.0
points below the diagonal (reader's analysis).""",
    ),
    Prompt(
        ask="The planes lean by 30° as before, but towards the next plane. Why is the best map so good here?",
        scene=Scene(
            says="Best map, plane 1 towards plane 2, rank 12: *Logits* says 0.0477, where plane 8 had 0.238.",
            settings=("option=best_latent_map", "angle=30", "second=2", "rank=12", *LOGITS),
        ),
        place="this project; claim examined: Sec. 3, p. 4",
        answer=r"""Six planes lean, each towards its neighbour, and together they touch seven planes: the span of
their 12 columns holds the first five at 93 to 99.9 % and the last two at 78 and 33 %. Loss is where planes are held
in part. Towards plane 8 each of twelve planes is held at 75 or 25 %. Move the rank: 0.138 at 2, 0.0141 at 16.""",
    ),
    Prompt(
        ask="At position 32 next to nothing leaves, although the lean is 45°. Has this factor become safe there?",
        scene=Scene(
            says="Planes 1 and 8, lean 45°, position 32: *What leaves* says 0.007512.",
            settings=(LEANS, "angle=45", "second=8", "position=32", "view=law"),
        ),
        place="this project; claim examined: Sec. 3, p. 4",
        answer=r"""No. The two planes turn by 1 and by 0.0178 a position, and after 32 positions they are 5.002 full
turns apart, nearly a whole number. At position 16 everything leaves, at 3 it is 0.9953. A cache has tokens at all
positions. With plane 2 in place of plane 8 the curve returns every 14.4 positions.""",
    ),
    Prompt(
        ask="Six heads become more and more alike. Which of the two numbers notices, and which is in Table 3?",
        scene=Scene(
            says="Six heads, shared part 0.3: *Head diversity* says 5.04 → 5; move *shared part* up to 1.",
            settings=("heads=6", "shared=0.3", "view=diversity"),
        ),
        place="Sec. 4.3, pp. 7-9; App. C.1, p. 15; Table 3, p. 16",
        answer=r"""The number before centring: 6 at 0, 5.04 at 0.3, 1.52 at 0.9, 1 at the end. After centring it is 5
all the way and falls to 0 only at 1, where nothing else is left. The dots are centred ranks, all within five points
of their dashed ceiling, MQA's too (p. 16). So they cannot say how much heads share. MQA at 2.5B has 86.2 % before
centring and 91.0 % after it (p. 16).""",
    ),
)

# -- the leader's plan ------------------------------------------------------------------------------------------------

HOUR = (
    Step(
        minutes=3,
        title="Open",
        show=f"The title, then slide “{READS}”.",
        ask="Who has decoded with a cache of keys and values, and who has only trained?",
        stuck="Low rank makes people think of LoRA. Say at once that nothing is frozen here: all parts are trained"
        " together (p. 3).",
    ),
    Step(
        minutes=5,
        title="The pre-read answers",
        show="The pre-read sheet, questions 1 to 3; nothing on the screen.",
        ask="What lies in the cache, and what does Eq. 6 do with it?",
        stuck="Somebody puts $B_h$ into the cache. It is a weight, one for all tokens (p. 3); only $K_s$, $V_s$ and"
        " latents grow with the text.",
    ),
    Step(
        minutes=8,
        title="The idea and the equations",
        show=f"Slides “{IDEA}”, all scenes, “{WEIGHTS}” and “{FACTORS}”.",
        ask="Before the last scene of the first slide: at which rank does LRKV hold as much as MHA?",
        stuck="What is of low rank? Not a head's matrix, only its difference from the shared one. Do the two tokens of"
        " the notes on the board.",
    ),
    Step(
        minutes=7,
        title="Where it breaks",
        show=f"Slides “{TURNED}” and “{LAW}”, all scenes.",
        ask="A rotation is linear. Why does that not suffice?",
        stuck="Distributing over a sum is taken for passing through a factor. Let them look for the number $c$ with"
        " $Bc=PB$ in the example; there is none.",
    ),
    Step(
        minutes=5,
        title="Wrong and right repairs",
        show=f"Slides “{WRONG}” and “{REPAIRS}”, two scenes of each.",
        ask="Which of your tests would have found the wrong ones?",
        stuck="The bold curve stays high while the repair is exact. It belongs to the $B$ of the dials; the thin line"
        " belongs to the repair.",
    ),
    Step(
        minutes=3,
        title="What is proved",
        show=f"Slide “{PROVED}”.",
        ask="Which row would you have believed without a proof?",
        stuck="The refuted row is taken for a refutation of the trained models. In training keys are made whole (p. 3),"
        " and any $B$ works.",
    ),
    Step(
        minutes=6,
        title="What was measured",
        show=f"Slides “{LOSSES}”, “{SWEEP}” and “{PRINTS}”.",
        ask="Was the evidence convincing, and why?",
        stuck="The tables turn into a contest of schemes. Ask what was held equal: in Table 1 (p. 5) neither caches nor"
        " parameters are.",
    ),
    Step(
        minutes=20,
        title="Discussion with the panel",
        show="Prompts 2, 3 and 7 in this order, six minutes each; 5 or 6 if one of them is quickly done. Let somebody"
        " else move the dials.",
        ask="First everybody alone for one minute: what will the panel show? Then move the dial.",
        stuck="Silence after the question. Ask for a show of hands between two answers, then open the state and look"
        " together.",
    ),
    Step(
        minutes=3,
        title="What we believe now",
        show=f"Slide “{BELIEVE}”; the record.",
        ask="Which one sentence would you tell somebody who was not here, and on which page does it rest?",
        stuck="Opinions about the whole paper. Ask for one claim and one reason each, and write them into the record.",
    ),
)

LONG = (
    Step(
        minutes=3,
        title="Open",
        show=f"The title, then slide “{READS}”. Everybody opens a notebook with `from attnlab.exercises import lrkv`.",
        ask="Who has decoded with a cache of keys and values, and who has only trained?",
        stuck="An installation that fails. Put two people at one machine; NumPy is all that the exercises need.",
    ),
    Step(
        minutes=4,
        title="The pre-read answers",
        show="The pre-read sheet, questions 1 to 3; nothing on the screen.",
        ask="What lies in the cache, and what does Eq. 6 do with it?",
        stuck="Somebody puts $B_h$ into the cache. It is a weight, one for all tokens (p. 3).",
    ),
    Step(
        minutes=7,
        title="The idea and the equations",
        show=f"Slides “{IDEA}”, all scenes, “{WEIGHTS}” and “{FACTORS}”.",
        ask="At which rank does LRKV hold as much as MHA?",
        stuck="What is of low rank? Not a head's matrix, only its difference from the shared one.",
    ),
    Step(
        minutes=15,
        title="Exercise: score without making a key",
        show="`lrkv.factored_logits`, in pairs, one keyboard each.",
        ask="Which of your arrays has an axis of tokens and one of width $d$ for each head?",
        stuck="Keys are made whole, which passes the check and misses the point; the first hint says where $B$ belongs."
        " Or the scale is one over the root of $r$: the latents stand for a key of width $d$.",
    ),
    Step(
        minutes=6,
        title="Where it breaks",
        show=f"Slides “{TURNED}” and “{LAW}”, all scenes.",
        ask="A rotation is linear. Why does that not suffice?",
        stuck="Distributing over a sum is taken for passing through a factor. Let them look for the number $c$ with"
        " $Bc=PB$; there is none.",
    ),
    Step(
        minutes=25,
        title="Exercise: a factor that passes",
        show=f"`lrkv.passing_factor`, in pairs, with slide “{TURNED}” on the screen; its first hint aloud after eight"
        " minutes.",
        ask="Which spaces can a rotation not leave, if it mixes only the two coordinates of a plane?",
        stuck="Columns from the first $r$ coordinates: in this layout plane $i$ has the coordinates $i$ and $i+d/2$, so"
        " these are half planes. Who is done early ties frequencies.",
    ),
    Step(
        minutes=5,
        title="Wrong and right repairs; what is proved",
        show=f"Slides “{WRONG}” and “{REPAIRS}”, two scenes of each, then “{PROVED}”.",
        ask="Which repair have you just written?",
        stuck="The bold curve stays high while the repair is exact. It belongs to the $B$ of the dials; the thin line"
        " belongs to the repair.",
    ),
    Step(
        minutes=5,
        title="What was measured",
        show=f"Slides “{LOSSES}”, “{SWEEP}” and “{PRINTS}”.",
        ask="Was the evidence convincing, and why?",
        stuck="The tables turn into a contest of schemes. Ask what was held equal: in Table 1 (p. 5) neither caches nor"
        " parameters are.",
    ),
    Step(
        minutes=13,
        title="Discussion with the panel",
        show="Prompts 2, 3 and 7, four minutes each. Let somebody else move the dials.",
        ask="First everybody alone for one minute: what will the panel show? Then move the dial.",
        stuck="Silence after the question. Ask for a show of hands between two answers, then open the state and look"
        " together.",
    ),
    Step(
        minutes=7,
        title="The record: what we believe now",
        show=f"Slide “{BELIEVE}”; the record, claim by claim.",
        ask="What do we believe now, for which reason, and which measurement would change it?",
        stuck="The group wants to vote on the paper. Vote on claims: begin with full RoPE, Table 8 and Table 1, and"
        " write a reason beside each.",
    ),
)

# -- what stays -------------------------------------------------------------------------------------------------------

HANDOUT = (
    (
        "Words and letters",
        r"""Each word is an argument of `attnlab.lrkv.attention`, or a name beside it.

| word | letter | meaning |
|---|---|---|
| `heads`, `head_width` | $H$, $d$ | query heads and their width |
| `rank` | $r$ | latents a head |
| `k_shared`, `v_shared` | $K_s$, $V_s$ | one key and value a token, for all heads |
| `k_latent`, `v_latent` | $R_h^K$, $R_h^V$ | what a token leaves for one head |
| `k_factor`, `v_factor` | $B_h^K$, $B_h^V$ | weights that take latents to width $d$ |
| `rope` | $P_t$ | what turns keys, by position |
| `latent_rope` | $\tilde P_t$ | what turns latents in their place |
| `k_scale` | $1/\mathrm{rms}(K_h)$ | one number a token and head, for a norm |""",
    ),
    (
        "Equations",
        r"""$$
W_h=W_{\mathrm{shared}}+U_hB_h^{\top}\quad\text{(Eqs. 2-3, p. 3)}
$$

$$
K_s=XW_{\mathrm{shared}},\quad R_h=XU_h,\quad K_h=K_s+R_hB_h^{\top}\quad\text{(Eqs. 4-5, p. 3)}
$$

$$
q_hK_h^{\top}=q_hK_s^{\top}+(q_hB_h^K)(R_h^K)^{\top}\quad\text{(Eq. 6, p. 4)}
$$

$$
o_h=a_hV_s+(a_hR_h^V)(B_h^V)^{\top}\quad\text{(Eq. 7, p. 4)}
$$

Cache beside MHA: $\frac1H+\frac rd$ (Eq. 9, p. 4). Weights for keys and values:
$2d_{\mathrm{model}}d+2Hr(d_{\mathrm{model}}+d)$ (Eq. 10, p. 4).

Under RoPE: $P_tB=B\tilde P_t$ at every $t$ (reader).""",
    ),
    (
        "The mechanism in six lines",
        """1. Project a token once for all heads: a shared key and value (p. 3).
2. Project it for each head to $r$ latents for the key and $r$ for the value; cache both kinds (p. 3).
3. Multiply each head's query by $B_h^K$, once a step (Eq. 6, p. 4).
4. Score: query with shared keys, projected query with latents; add, divide by the root of $d$, softmax.
5. Add up shared values and latents with these weights (Eq. 7, p. 4).
6. Multiply the latents' sum by $B_h^V$, once, and add.""",
    ),
    (
        "Proved, measured, refuted",
        r"""What stands on which page, and what became of it? *Reader* and *project* mark what is not the paper's.

| sentence | page | what we know |
|---|---|---|
| factored reading is exact | 4 | proved, without positions |
| rank 0 is MQA; rank $d$ has every MHA | 4 | proved; its cache is $1+1/H$ (reader) |
| the same under full RoPE, for any $B$ | 4 | refuted by a quarter turn (reader) |
| $B$ passes exactly if it spans whole planes | 4 | proved, for angles of usual RoPE (project) |
| ranks 51 and 55 | 24 | odd, so no $B$ passes (project) |
| norm after the projection | 9 | one cached number repairs it (reader) |
| lowest loss at four scales | 5 | measured; 0.34 to 1.34 % below MHA, caches unequal |
| five tasks at 2.5B: 37.9 %, MHA 35.3 % | 6 | measured; HumanEval falls to 11.7 from 13.4 |
| 18.7 % fewer steps at 2.5B | 6 | steps, not time (footnote, p. 5) |
| LRKV dominates MLA (a guess) | 25 | refuted: 25.0 % and 2.894, 41.7 % and 2.896 (reader) |
| Table 12's percentages | 28-29 | refuted: its megabytes are rank 64 (reader) |
| a centred rank near 6 of six heads | 16 | refuted: at most 5 (reader) |
| MLA must make its keys | 27-28 | refuted: it associates too (reader) |
| 2.5B has one number of layers | 8-9, 23 | refuted: 18 and 36 (reader) |
| a factor that leans by $\varphi$ | - | at worst $\lvert\sin2\varphi\rvert$ leaves: 0.035 at 1°, all at 45° (project) |
| fewer bytes are moved | - | only if one program reads the shared part for all heads (project) |
| equal caches, equal parameters | - | not in the paper; in small: `09_cache_budget` |""",
    ),
    (
        "Run it",
        r"""- `attnlab verify lrkv.rope`: one verdict. `attnlab bench lrkv`: a decode step on this machine.
- `04_rope_subspace`: the quarter turn, the theorem in fractions, seven exact options (one without positions), the
  tables recomputed.
- `09_cache_budget`: small models at one cache and one count of parameters.
- `13_exercises_lrkv`: seven exercises, from counting a cache to a factor that passes.
- What full RoPE needs of a factor: `attnlab.lrkv.rotary`. What a cache takes: `attnlab.lrkv.accounting`.""",
    ),
)

SHOWN = {
    "lrkv.factored": "04_rope_subspace: A cache in factors",
    "lrkv.rope": "04_rope_subspace: A quarter turn",
    "lrkv.rope-iff": "04_rope_subspace: What a rotation passes through",
    "lrkv.rope-odd": "04_rope_subspace: What a rotation passes through",
    "lrkv.rope-angle": "04_rope_subspace: How much leaves",
    "lrkv.rope-options": "04_rope_subspace: Seven repairs",
    "lrkv.rope-tied": "04_rope_subspace: Seven repairs",
    "lrkv.rmsnorm": "04_rope_subspace: A norm after the sum",
    "lrkv.rmsnorm-scalar": "04_rope_subspace: A norm after the sum",
    "lrkv.cache-ratio": "04_rope_subspace: What a cache holds",
    "lrkv.table7-print": "04_rope_subspace: What a cache holds",
    "lrkv.table12": "04_rope_subspace: What a cache holds",
    "lrkv.table12-rank": "04_rope_subspace: What a cache holds",
    "lrkv.kernel-traffic": "04_rope_subspace: What a cache holds",
    "lrkv.table8": "04_rope_subspace: What a cache holds",
    "lrkv.centred-rank": "04_rope_subspace: How different heads are",
    "lrkv.table3": "04_rope_subspace: How different heads are",
}

SESSION = Session(
    paper="lrkv",
    title="Low-Rank Key Value Attention",
    arxiv="2601.11471v3",
    question=QUESTION,
    notebook="04_rope_subspace",
    checked="05_claims: LRKV",
    short=SHORT,
    preread=PREREAD,
    hour=HOUR,
    long=LONG,
    prompts=PROMPTS,
    slides=SLIDES,
    handout=HANDOUT,
    shown=SHOWN,
)
