"""The session on HashAttention, arXiv:2412.14468v2: what to show, what to ask, and what a good answer says.

Figures of the paper come with their PDF page. What the reader of the paper worked out and what this project found is
marked; figures of the panel are those of `attnlab.hashattention.view.compute` in the state they stand beside.
"""

from dataclasses import replace

from attnlab.teach.session import Prompt, Question, Scene, Session, Slide, Step

__all__ = ["SESSION"]

NEEDS = "A query needs few keys, and which ones depends on it"
DENSE = "Dense attention reads every key to weigh a few"
CODES = "Codes say which keys to read, before any is read"
EXACT = "Only the choice is approximate"
BY_HAND = "One query by hand, and what its codes miss"
BITS = "More bits bring the order of codes nearer the true one"
LEARNED = "The maps learn which keys a query weighs most"
AGAINST = "Learned bits beat random bits; a mean can come close"
PROVED = "The proofs are about scores, not about learned codes"
SCORES = "Means hold with 1/16 read; single tasks move"
SPEED = "How much faster depends on what it is compared with"
BREAKS = "More of the true top can be less of the weight"
BELIEVED = "Of twenty sentences nine hold, ten fall, one depends"
LIFT = "The lift keeps the order with 0, not with the printed 1"
CROSS = "Errors add with their signs, so cross terms matter"
DISTANCE = "The error is the missing weight times a distance"
ANGLES = "Random bits measure an angle, not a product"
BYTES = "Every code is read, and nothing is saved in memory"

LATE = ("input=layer 21, head 1", "codes=learned", "tokens=128", "query=128", "budget=16", "top=16")
MIDDLE = ("input=layer 9, head 2", "codes=learned", "tokens=128", "query=128", "budget=16", "top=16")
EARLY = ("input=layer 2, head 0", "codes=learned", "tokens=128", "query=128", "budget=8", "top=8")
ENDS = (
    "input=layer 21, head 0",
    "codes=learned",
    "tokens=256",
    "query=256",
    "budget=0",
    "sinks=4",
    "window=8",
    "top=16",
)
LONGER = ("input=layer 21, head 1", "codes=learned", "tokens=256", "query=256", "budget=16", "top=16")


# -- slides -----------------------------------------------------------------------------------------------------------

STORY = (
    Slide(
        title=NEEDS,
        body=r"""A model that writes one token reads the keys and values of all earlier tokens, in every layer. Softmax
gives most of its weight to few of them. Which ones depends on the query, also in one and the same document.

**The question.** Can a few bits a token say which keys a query needs, so that the others need not be read?""",
        place="Secs. 1 and 4.1, pp. 1–2, 4–5",
        notes="""Begin with the cost, not with the method. When a model writes, it makes one query a head and a layer,
and the work is reading the cache. So a method that reads less can be faster even if it computes more.

Ask: how would you find the keys that matter without reading the keys? Collect two or three proposals and write them
down: keep the newest, keep what was looked at before, cut the keys into pages, hash them. All of these exist, and the
paper compares with them (Sec. 2.2 and App. A, pp. 3, 12–13).

What people get wrong: they expect the cache to become smaller. It stays whole. What becomes smaller is what one step
reads. Say it now, because the word sparsity suggests the other thing.""",
    ),
    Slide(
        title=DENSE,
        body=r"""One query $q$, all the $n$ tokens it sees:

$$z_i=\frac{q\cdot k_i}{\sqrt d}\qquad a_i=\frac{e^{z_i}}{\sum_j e^{z_j}}\qquad o=\sum_{i=1}^{n}a_i\,v_i$$

To know which $a_i$ are large, one has to have read every $k_i$.

With *d* = 128 and 16-bit numbers a key and its value are 512 bytes. At *n* = 16,384 one query reads 8,388,608 bytes, in
every head and every layer (this project's count).""",
        place="Sec. 4, p. 4; bytes: this project",
        notes="""This is what everybody in the room knows, so spend one minute. Point at the letters, because they stay
for the whole hour: n tokens, d the width of a head, z the logits, a the weights. The paper leaves the scale out of its
formula and has a slip in the index of the denominator (p. 4). The reader, who is the author of the notes that this
project began from, writes both out.

Ask: which of the three sums needs the keys, and which the values? The point to reach: reading fewer values is easy once
the weights are known, but knowing them costs all keys. A selector has to guess the largest z from something much
shorter than a key.

What people get wrong: they count multiplications. For one query they hardly matter; bytes do.""",
    ),
    Slide(
        title=CODES,
        body="""One map turns each key into bits when it is written, another one the query when it asks. The *m* keys
whose bits differ least from the query's are read, with the first and the newest tokens. Nothing else is.

Here: 64 toy tokens, 32 bits, 4 first, 8 newest, *m* = 8. These bits are random projections: nothing has learned.""",
        place="Sec. 4 and Fig. 2, pp. 4–5; toy tokens: this project",
        notes="""Go through the four states slowly. In the first, say what a column is (a key) and what a row is (a
bit): bright means that the bit differs from the query's. The two lowest rows are the true top 8, and what is read. Ask
in how many columns both are marked.

In the third state the axes are places, 1 is the best. A dot in the grey part is read. A ring is a key of the true top
that is not read.

What people get wrong: they think that bits replace the attention. They replace the search. Keys and values that are
read enter as they are. And they think of a hash table with buckets: there is none, every code is compared with the
query's.""",
        scenes=(
            Scene(
                "Codes: each column is one of the 52 keys that query c16 may choose among, the nearest first, from 3 "
                "bits apart on the left to 29 on the right.",
                ("view=codes",),
            ),
            Scene(
                "Distances: the budget of 8 ends at 6 bits, with four keys nearer than that and four just there.",
                ("view=histogram",),
            ),
            Scene(
                "Two orders: 6 of the true top 8 stand in the grey part, which is read; the two rings are at places 9 "
                "and 10 by codes.",
                ("view=orders",),
            ),
            Scene(
                "What is read: with a budget of 52 no cell below the diagonal is hatched, and the output is that of "
                "dense attention, whatever the codes are.",
                ("budget=52", "view=reads"),
            ),
        ),
    ),
    Slide(
        title=EXACT,
        body=r"""$$h(x)=\mathrm{ReLU}(\mathrm{sign}\,F(x))\in\{0,1\}^b\qquad\text{(Eq. 1)}$$

$$\mathrm{score}_i=-\mathrm{popcount}\left(h(q)\;\mathrm{XOR}\;h(k_i)\right)\qquad\text{(Eq. 2)}$$

$$I=\text{first}\,\cup\,\text{newest}\,\cup\,\text{the }m\text{ best of the rest}$$

$$\hat o=\sum_{i\in I}\frac{e^{z_i}}{\sum_{j\in I}e^{z_j}}\,v_i$$

A score is minus the number of bits that differ. Over $I$ it is attention as usual: original keys and values, weights
that sum to 1.""",
        place="Eqs. 1–2 and Sec. 4, pp. 4–5; first and newest 128: pp. 5–7",
        notes="""Four lines, in the paper's order: encode, score, select, attend. The paper calls the last three SCORE,
TOPK and GATHER-ATT (p. 4). Queries and keys have different maps F. Its formulas allow codes that see the values as
well; the experiments encode keys only (pp. 4–5).

Ask: in which of the four lines is something lost? Only in the third. If I is everything, the last line is dense
attention (claim hash.full-budget).

What people get wrong: the weights are renormalised over I. So what is left out does not only go missing, it also makes
what is read heavier. Second trap: I is a set. A token that is among the first and the newest and the nearest is read
once, and counts once.""",
    ),
    Slide(
        title=BY_HAND,
        body=r"""The query's code is `1011`; $m=2$, no first and no newest tokens.

| token | code | bits that differ | $e^{z}$ | $v$ | read |
|---|---|---|---|---|---|
| 1 | `1011` | 0 | 4 | 1 | yes |
| 2 | `1001` | 1 | 1 | 0 | yes |
| 3 | `0110` | 3 | 3 | 2 | no |

Dense: $\frac{4+0+6}{8}=\frac54$. Sparse: $\frac{4+0}{5}=\frac45$.

Token 3 has $\frac38$ of the weight, and its code does not say so.""",
        place="Eqs. 1–2, pp. 4–5; distances: reader's analysis; weights and values: this project",
        mark="project",
        notes="""Let the group compute before you show the two results: cover the last two lines, or write the table on
the board. Two minutes in pairs are enough. The distances come first, then the set, then the two fractions.

Ask: the codes said 0, 1, 3. What would an exact selector with m = 2 read? Tokens 1 and 3, and the output would be 10/7,
nearer to 5/4 than 4/5 is. So the codes cost something here, and one sees how much.

What people get wrong: they divide by 8 again. The denominator of the sparse output is 4 + 1. Whoever keeps 8 gets 1/2,
which is another operator: weights as they were. The paper's argument in its App. B is about that one (p. 13), its
method renormalises (p. 4).""",
    ),
    Slide(
        title=BITS,
        body="""How much of the true top 8 do random bits of centred keys find? Toy tokens, *m* = 8, mean over the later
half of the queries.

| bits | recall |
|---|---|
| 1 | 0.285 |
| 8 | 0.621 |
| 32 | 0.738 |
| 64 | 0.785 |

More bits, less noise. On the paper's four tasks more random bits did not always score better: 69.79 with 256, 68.64
with 512.""",
        place="this project; Table 8, p. 16",
        mark="project",
        notes="""This slide is about noise. A random bit says on which side of a random plane a vector lies. Two vectors
that are close agree in most bits, and the more bits, the better that share is known.

With one bit ties decide. There are only two distances, 23 keys at the one and 29 at the other, and among equals the
lower index is read, in all our implementations. The paper does not say how it breaks ties, as far as our notes go.

Ask before the third state: does twice as many bits mean twice as good? The table says no. Ask before the fourth: LSH in
the legend is the same recipe. Why is it another curve? Because it is another draw.

What people get wrong: they take these toy numbers for the paper's. Toy tokens are four clusters, which is the easy
case.""",
        scenes=(
            Scene(
                "Two orders: with one bit this query finds 1 of its true top 8.",
                ("bits=1", "view=orders"),
            ),
            Scene(
                "Two orders: with 8 bits this query finds 4 of its true top 8.",
                ("bits=8", "view=orders"),
            ),
            Scene(
                "Two orders: with 64 bits it finds 7 of 8, and the dots have moved towards the diagonal.",
                ("bits=64", "view=orders"),
            ),
            Scene(
                "Recall: codes and LSH are one recipe with two draws, and at another seed they stand at 0.660 and "
                "0.797.",
                ("seed=9", "view=recall"),
            ),
        ),
    ),
    Slide(
        title=LEARNED,
        body=r"""- The model stays frozen. Each attention module learns its own maps: perceptrons of widths
  $128\to128\to128\to32$.
- Positive are a query's true top 64, for example. They are rare: 0.1 % at 64K tokens. So they carry the weight
  $w_+(n)=\alpha+\beta n$ in a binary cross-entropy.
- Signs have no gradient: $\tanh$ in training, signs in use.
- *Generic* maps learn on OpenWebText, starred ones on the task. Training at up to 64K did not carry over to 128K.""",
        place="Sec. 4.2 and Eq. 4, p. 5; widths: p. 8",
        notes="""The order to tell it: what is frozen, what is a label, what is the loss, what is done about the sign.
All on one page of the paper (p. 5). Adam is the optimiser there.

Ask: why are queries and keys given different maps? Because a query and the keys it needs need not look alike. With one
map for both, near would mean similar. With two, near can mean needed. The paper shows the effect: in the learned space
a query's top keys are closer to it than in the original one.

What people get wrong: Table 1 has maps trained on its tasks, though its row has no star (p. 6). And 32 bits are not a
limit: a proxy loss falls from 0.243 at 16 bits to 0.212 at 32 and 0.204 at 64 (Tables 7 and 9, pp. 9, 15–16).""",
    ),
    Slide(
        title=AGAINST,
        body="""How much of the true top 64 do 64 reads find? Mean of three heads and 1,024 queries of one text,
SmolLM2-135M:

| layer | 2 | 9 | 21 |
|---|---|---|---|
| learned | 0.623 | 0.512 | 0.528 |
| random | 0.248 | 0.223 | 0.164 |
| past mean | 0.587 | 0.427 | 0.351 |
| shortest | 0.300 | 0.386 | 0.155 |

*Random*: 32 bits, keys centred. The last two ignore the query. The panel: the first 128 tokens of this
text, in the last scene 256.""",
        place="this project, after Sec. 5.3, p. 9",
        mark="project",
        notes="""Three questions, in this order. Do learned bits beat random ones? Yes, on all three layers, on layer 21
by a factor of 3.2 (claim hash.learned-beats-random, statistical). Does that show that they look at the query? No. Past
mean and shortest keys do not look at it at all, and both are above random bits on layer 9 (claim hash.static-baseline).
So what else should a paper print beside LSH?

In the last two states the past mean is level with the codes, and ahead. That is a window of 128 or 256 tokens, where
the last queries look at much the same keys. Over the longer text it is behind on all three layers. Say both.

What people get wrong: one draw of LSH is luck. With the seeds 0 to 9 its recall in this window runs from 0.190 to
0.455.""",
        scenes=(
            Scene(
                "Recall: at a budget of 16 the learned codes find 0.652 of the true top 16, one draw of LSH 0.190, "
                "and the ends alone nothing.",
                (*LATE, "view=recall"),
            ),
            Scene(
                "Recall: another draw of the same LSH stands at 0.455, and the learned curve has not moved.",
                (*LATE, "seed=4", "view=recall"),
            ),
            Scene(
                "Recall: the past mean, which never sees the query it answers, stands at 0.636, hardly below the "
                "codes.",
                (*LATE, "selector=past_mean", "view=recall"),
            ),
            Scene(
                "Recall: with 256 tokens of this text the past mean is ahead, 0.535 beside 0.496 for the codes.",
                (*LONGER, "selector=past_mean", "view=recall"),
            ),
        ),
    ),
    Slide(
        title=PROVED,
        body=r"""| step | place | what a check finds |
|---|---|---|
| dropped tokens cost the sum of their $a_i^2\lVert v_i\rVert^2$ | pp. 13–14 | only if dropped values are orthogonal |
| so keep the largest $a_i\lVert v_i\rVert$ | p. 13 | refuted by three tokens; by two if renormalised |
| that ranks as $[q/\sqrt d,1]\cdot[k_i,\log\lVert v_i\rVert]$ | p. 5 | exact for $v_i\ne0$ |
| lifted to one length, cosines rank alike | p. 5 | with 0, not 1, at the end of $[q,1,1]$ |

That learned bits find these tokens, nobody has proved.""",
        place="App. B, pp. 13–14; Lemmas 4.1–4.2 and Sec. 4.3, p. 5; renormalised: this project",
        mark="reader",
        notes="""Say the last line first. The whole chain motivates that codes can work, and no step of it is about the
perceptrons. So a flaw in it does not refute the method. It refutes a sentence.

The third row is right and pleasant: logarithms turn a product into a sum, and the normaliser is the same for all
tokens.

Ask: who sees why the 1 at the end of [q, 1, 1] is wrong? What is it multiplied with? If somebody wants to see it, jump
to the backup slides: one has the lift, one the cross terms.

What people get wrong: they say that top-k is optimal. It keeps the most weight. That makes a bound smallest, and not
the error.""",
    ),
    Slide(
        title=SCORES,
        body="""How far from the full model? Llama-3.1-8B-Instruct. The first two rows retrieve 512 tokens, maps trained
on these tasks; the others read 1/16, maps generic.

| | full | sparse | change | page |
|---|---|---|---|---|
| exact top-k, six tasks | 63.55 | 63.43 | −0.12 | 6 |
| HashAttention, the same | 63.55 | 64.15 | +0.60 | 6 |
| LongBench, 16 tasks | 48.78 | 48.00 | −0.78 | 6 |
| RULER at 16K, 13 tasks | 90.66 | 89.53 | −1.13 | 6 |
| *passage count* | 8.29 | 1.85 | −6.44 | 6 |
| *common words* | 50.50 | 62.40 | +11.90 | 6 |""",
        place="Tables 1–3, p. 6; changes: reader's analysis",
        mark="reader",
        notes="""First the good news: with generic maps and one token in sixteen, the means fall by about one point.

Then the strange row. HashAttention imitates exact top-k, and stands above it, and above the full model. Ask what that
means. It does not mean that the codes are better than the truth. It means that a task's score does not measure the
approximation (claim hash.oracle-bound). The authors suggest that distractors are removed; the experiments show the gain
and do not isolate the reason (p. 8).

Then single tasks: counting passages keeps 22 % of its score, passage retrieval keeps 100 of 100, multi-key needle 2
falls from 100 to 90.

What people get wrong: only the last 128 tokens of a prompt, in RULER the last 32, and what is generated are sparse. The
document is read densely (pp. 6–8).""",
    ),
    Slide(
        title=SPEED,
        body="""| on an A100, 1/32 read | context | dense | sparse | gain |
|---|---|---|---|---|
| GPT-FAST, ms | 32K | 2.03 | 0.47 | 4.32 |
| GPT-FAST, tokens/s | 65K | 4.00 | 12.48 | 3.12 |
| FlashDecode, ms | 32K | 0.41 | 0.37 | 1.11 |
| FlashDecode, ms | 524K | 6.24 | 2.43 | 2.57 |

Quality and speed at once, RULER at 32K: 1/4 read is −0.87 points at about 1.3 times the throughput, 1/8 read −1.72
points at about 1.7 times.""",
        place="Fig. 4, p. 8; Fig. 1, pp. 1–2; gains: reader's analysis of the printed labels",
        mark="reader",
        notes="""Two baselines, two stories. Over GPT-FAST the gain is large from 32K on. FlashDecode splits a long
sequence among the processors of the GPU, and over that the gain at 32K is a tenth.

Ask: which four costs does a step have, and which of them shrink with the budget? Mapping the query, the scan of all
codes, top-k, and attention over the set. Only the last one shrinks. The authors see top-k behind the falling gain from
65K on (p. 8).

What people get wrong: they put the quality at 1/16 beside the speed at 1/32. These are two experiments. The points that
have both are in Fig. 1, and they are more modest.

Two slips to know: the text puts 3.12 at 32K, where the plot has it at 65K; and it gives 2.54 as the largest gain over
FlashDecode, where the labels give 2.57 (p. 8).""",
    ),
    Slide(
        title=BREAKS,
        body="""Layer 9, head 2, the learned codes, 16 keys read. The true top 16 are counted alike, and they are not
alike: one key can hold nearly half of the weight.

The key “the” is the heaviest one beyond the ends for 63 of the last 64 queries. The codes read it for 21 of them; it is
among the 16 shortest keys for 63.""",
        place="this project; recall as in Fig. 5, p. 14",
        mark="project",
        notes="""This is the counterexample of the hour, and it is live. Nothing is made up: a real head, the shipped
maps, trained on other text.

Ask before the second state: the codes have the higher recall. Who has the larger mass? Most people bet on the codes.

In the third state the ring at the lower edge is pinned: place 1 by logit. Read its two places aloud from the line above
the pictures.

The moral: a recall counts keys. An output weighs them. Whoever reports a recall should report the mass or the output's
error beside it. The paper has recall in two layers (Fig. 5, p. 14) and task scores.

What people get wrong: they conclude that codes fail on middle layers. This is one head and one text.""",
        scenes=(
            Scene(
                "Recall: the codes find 0.437 of the true top 16, and short keys, which ignore the query, 0.266.",
                (*MIDDLE, "view=recall"),
            ),
            Scene(
                "Attention mass: at the same budget the order turns, 0.569 for the codes and 0.844 for short keys.",
                (*MIDDLE, "view=mass"),
            ),
            Scene(
                "Two orders: the lowest ring is the key “the” with 0.46 of this query's weight, place 1 by logit and "
                "place 39 by codes.",
                (*MIDDLE, "view=orders", "pin=query.127,rank.38"),
            ),
        ),
    ),
    Slide(
        title=BELIEVED,
        body=r"""| verdict | sentence |
|---|---|
| holds | ranking by $a\lVert v\rVert$ is ranking by a product (p. 5) |
| holds | on layer 21 learned bits find more than twice what random ones do (this project) |
| depends | the squared error, without cross terms (pp. 13–14) |
| falls | the printed lift keeps the order (p. 5) |
| falls | keeping the largest $a\lVert v\rVert$ leaves the least error (p. 13) |
| falls | the gain of 3.12 is at 32K; over FlashDecode 2.54 is the largest (p. 8) |""",
        place="sentences of pp. 4–5, 8 and 13–14, or as marked; verdicts: this project",
        mark="project",
        notes="""Twenty sentences, each with a check that can fail. Nine hold, one holds under a condition, ten are
refuted. Of the ten, four are the paper's own sentences, and six are natural guesses that were written down in order to
be denied. So ten does not count against the paper; four do, and two of these are slips of a number.

Now fill in the record together, claim by claim. Ask for each: do you believe it, why, and what would change your mind?
The most useful answers are about what has no claim at all: that 32 learned bits are enough, for a longer context,
another model, another task.

What people get wrong: a refuted sentence about optimality does not make the method worse. The measured scores stand as
they are.""",
    ),
)

BACKUP = (
    Slide(
        title=LIFT,
        body=r"""Lift each $x_i=[k_i,\log\lVert v_i\rVert]$ to one length $M$: $P(x)=[x,\sqrt{M^2-\lVert x\rVert^2}]$.

- Query $[u,0]$: the cosine is $x_i\cdot u/(M\lVert u\rVert)$. The order stays.
- Query $[u,1]$: each product gains $\sqrt{M^2-\lVert x_i\rVert^2}$. Short vectors move ahead.

| $q=1$, $M=1$, $\lVert v\rVert=1$ | $k=\frac35$ | $k=1$ |
|---|---|---|
| $q\,k$ | $\frac35$ | $1$ |
| lifted, 0 at the end | $\frac35$ | $1$ |
| lifted, 1 at the end | $\frac75$ | $1$ |""",
        place="Sec. 4.3, p. 5; correction: reader's analysis; these keys: this project",
        mark="reader",
        backup=True,
        notes="""The idea of the lift is good: hashing by random planes sees angles, and attention goes by products. If
all keys have one length, both orders are the same.

Do the last row aloud: three fifths plus the root of 1 minus nine twenty-fifths, which is four fifths, makes seven
fifths. The longer key gains nothing, because it has the length M already. So the wrong one wins.

Ask: does it matter for the results? The learned maps have no such lift. It matters for the baseline: the authors'
released code lifts the query as well, each to the longest of its own kind, and on layer 21 that finds 0.108 where plain
random bits find 0.127 and centred ones 0.164 (this project).

What people get wrong: they look for the error in the middle 1. That one is right: it adds the log of a length.""",
    ),
    Slide(
        title=CROSS,
        body=r"""With sums over the tokens that are dropped:

$$\lVert\sum_i a_iv_i\rVert^2=\sum_i a_i^2\lVert v_i\rVert^2+2\sum_{i<j}a_ia_j\,v_i\cdot v_j$$

The appendix keeps the first sum. Two dropped tokens of weight $\frac13$ with one value of length 1 lose $\frac49$; the
first sum says $\frac29$.

Keep one token of three, $a=(0.45,0.35,0.20)$, $v=(1,-1,1)$, $o=0.30$: the largest contribution leaves an error of 0.15,
the smallest 0.10.""",
        place="App. B.1, Eqs. 5–10, pp. 13–14; expansion and numbers of three tokens: reader's analysis",
        mark="reader",
        backup=True,
        notes="""The first formula is only a square written out, so do not dwell on it. In the last sum both tokens are
among the dropped ones. It vanishes if the dropped values are orthogonal to one another, and then the appendix is right:
that is the claim hash.cross-terms, conditional.

The example with three tokens is worth doing on the board. Keeping 0.45 leaves 0.30 minus 0.45. Keeping 0.20 leaves 0.30
minus 0.20. The second is nearer, although it contributes least. Contributions have signs, and what is dropped can
cancel.

Ask: can it happen with two tokens? Not with weights as they were: of two tokens one loses just what the other
contributes. Renormalised it can, which is the next slide.

What people get wrong: they call this a flaw of the method. It is a flaw of the word optimal.""",
    ),
    Slide(
        title=DISTANCE,
        body=r"""With $A$ the weight that is read and $o_{\bar I}$ the mean of what is not:

$$o-\hat o=(1-A)\,(o_{\bar I}-\hat o)$$

Top-k makes $1-A$ smallest. The other factor may grow: of two tokens with $a=(\frac13,\frac23)$, $v=(3,1)$ the larger
$a\lVert v\rVert$ loses $\frac43$, the other $\frac23$. Live: layer 2, head 0, budget 8.""",
        place="this project; against App. B.1, p. 13, with the weights of Sec. 4, p. 4",
        mark="project",
        backup=True,
        notes="""One line of algebra: o is A times the sparse output plus 1 minus A times the mean of the rest. Subtract
the sparse output. So the error is at most 1 minus A times the largest distance between two values. That is what speaks
for keeping the largest weights, and it is all that does.

In the two states look at the bold curve. It is the true top 8, and it has the largest mass by definition. Its error is
not the smallest: LSH has 0.619 and Quest 0.567, beside 0.629. Both read less of the weight, and keep a mixture that
lies nearer to the true output.

Ask: what would a selector have to know to do better? The values, and what the others already contribute.

What people get wrong: exact top-k is called an oracle. It is one for recall, not for the output.""",
        scenes=(
            Scene(
                "Attention mass: the true top 8 hold 0.411 of the weight together with the ends, Quest's pages 0.278.",
                (*EARLY, "selector=exact", "view=mass"),
            ),
            Scene(
                "Output error: and yet the true top 8 leave 0.629, and Quest's pages 0.567.",
                (*EARLY, "selector=exact", "view=error"),
            ),
        ),
    ),
    Slide(
        title=ANGLES,
        body=r"""A random plane separates two vectors at the angle $\theta$ with probability $\theta/\pi$. So $b$ bits
differ in $b\,\theta/\pi$ on average: at 32 bits and a right angle in $16\pm2.8$.

| four tasks, 1/16 read | bits | score |
|---|---|---|
| learned | 32 | 75.0675 |
| random projections | 32 | 48.8975 |
| | 256 | 69.7875 |
| | 512 | 68.6350 |

$q\cdot(k_i-\mu)=q\cdot k_i-q\cdot\mu$: subtracting the mean key changes angles, and not the order.""",
        place="Table 8, p. 16; the law: this project, of textbooks; centring: this project",
        mark="project",
        backup=True,
        notes="""Why wedges: the projection of a normal vector on the plane of the two has a uniform direction, and two
wedges of angle theta out of a full turn separate them. The deviation of 2.8 is the root of 32 times a half times a
half. So 32 random bits tell near from far only roughly, and that is before one asks about lengths.

The table compares codes with codes, not with the complete MagicPIG. The row of 1,024 bits is incomplete in the paper.

Ask: is the comparison fair? Real keys share a direction. Without the mean they spread, at no cost, because all products
of a query move alike. On our layer 21 this takes random bits from 0.127 to 0.164; on layer 9 it does not help.

What people get wrong: more random bits are not always better in the table, 256 against 512.""",
    ),
    Slide(
        title=BYTES,
        body="""One head, *d* = 128, 16-bit numbers, 16,384 tokens, 1,024 retrieved, windows of 128 and 128:

| | dense | HashAttention | ratio |
|---|---|---|---|
| tokens whose key and value are read | 16,384 | 1,280 | 12.8 |
| bytes of keys and values read | 8,388,608 | 655,360 | 12.8 |
| bytes of codes read | – | 65,536 | |
| bytes read | 8,388,608 | 720,896 | 11.6 |
| bytes kept | 8,388,608 | 8,454,144 | 0.99 |

Codes of 4 bytes beside 512 bound the gain in bytes by 128.""",
        place="Secs. 4.1, 4.4 and 6, pp. 4–9; budget: reader's analysis; bytes: this project",
        mark="project",
        backup=True,
        notes="""The scan is small here, a tenth of what is read, and it does not shrink with the budget. As the budget
goes to nothing, the codes remain, and the gain in bytes stops at 512 over 4, which is 128.

With grouped queries it is less. A dense kernel reads a key once for all query heads that share it. Here each head
chooses its own. With four query heads to a key and 1/32 read, sets without a common token, that is 7.5 times fewer
bytes, not 32 (this project).

Ask: what would you have to change to save memory? Something would have to be thrown away or moved. The authors name
offloading and did not evaluate it (p. 9).

What people get wrong: 16 times sparsity is a budget of tokens, neither a compression nor a speed.""",
    ),
)


# -- before the session -----------------------------------------------------------------------------------------------

PREREAD = (
    Question(
        "Which three operations make up sparse attention here, and in which of them is something lost?",
        "Sec. 4, p. 4",
        "SCORE, TOPK and GATHER-ATT (p. 4). Scores are approximate, and so the set that TOPK takes. What is in the "
        "set enters with its original key and value, and the weights are made to sum to 1 over it. With a budget of "
        "all tokens nothing is lost, whatever the codes are.",
    ),
    Question(
        "What is kept for each token beside its key and value, and with how many of these is a query compared?",
        "Eqs. 1–2 and Sec. 4.1, pp. 4–5",
        "A code for each head, 32 bits in the standard setting: 4 bytes, beside 256 for a key of 128 numbers of 16 "
        "bits (pp. 4–5; bytes: reader's analysis). A query is compared with all of them: an XOR and a popcount each. "
        "It is a scan, no look-up in a hash table, so it grows with the context.",
    ),
    Question(
        "What are the labels, why do positives carry a weight, and why is there a tanh?",
        "Sec. 4.2 and Eq. 4, p. 5",
        "Positive are the tokens of the largest true attention, 64 of them for example. At 64K tokens these are 0.1 "
        "%, so without a weight (alpha + beta n) the loss would be small for maps that never say yes. The sign has no "
        "gradient, so training has tanh in its place and use has the sign (p. 5). The language model stays frozen.",
    ),
    Question(
        "In Table 1, which row stands above exact top-k? What does a score then say about the approximation?",
        "Table 1 and its caption, p. 6",
        "HashAttention with 64.15, beside 63.43 for exact top-k and 63.55 for the full model (p. 6). So exact top-k "
        "is no upper bound of a score, and a score does not measure how near an output is. The maps of this table "
        "were trained on its tasks, though the row has no star.",
    ),
    Question(
        "At which context does Fig. 4 show the largest gain in throughput over GPT-FAST, and where does the text put "
        "it?",
        "Fig. 4(b) and Sec. 5.2, p. 8",
        "The labels give 18.28/7.27 = 2.51 at 32K, 12.48/4.00 = 3.12 at 65K and 4.78/1.76 = 2.72 at 131K. The text "
        "has 3.12 at 32K (p. 8). All of this reads 1/32 of the tokens, while the tables of scores read 512 tokens or "
        "1/16 (p. 6).",
    ),
)


# -- the leader's plan ------------------------------------------------------------------------------------------------


def _slides(*titles: str) -> str:
    return f"Slide{'s' if len(titles) > 1 else ''} {' and '.join(f'“{title}”' for title in titles)}"


OPEN = Step(
    4,
    "The question",
    _slides(NEEDS, DENSE),
    "How would you find the keys that matter without reading the keys?",
    "Somebody proposes a hash table. Keep it on the board: this paper scans all codes, and the slide on bytes shows "
    "that the scan is the small part.",
)
SHEET = Step(
    5,
    "Answers to the first two questions of the sheet",
    "The pre-read sheet, questions 1 and 2; then p. 4 of the paper, where the first answer stands",
    "In which operation is something lost, and with how many codes is a query compared?",
    "Those who have not read it fall silent. Let two people answer, and point at p. 4 on the screen.",
)
HAND = Step(
    5,
    "One query by hand",
    _slides(BY_HAND),
    "Two tokens are read. Which, and what comes out?",
    "They divide by 8. Ask what the weights of the two tokens that are read must sum to.",
)
MOVES = Step(
    6,
    "The mechanism moves",
    _slides(CODES, EXACT),
    "How many of the 8 keys that are read are among the true top 8?",
    "Columns are keys sorted by distance, not tokens in their order. Pin one key and read its name and its two places.",
)
LEARNS = Step(
    4,
    "How the maps learn",
    _slides(LEARNED),
    "Why two maps, one for queries and one for keys?",
    "They think that near means similar. A query and the key it needs may look different; with two maps they can "
    "still get one code.",
)
RIVALS = Step(
    6,
    "Learned, random, or neither",
    _slides(BITS, AGAINST),
    "Which of these choices has looked at the query?",
    "They read one draw of LSH as its quality. Move the seed twice, and watch which curve stays.",
)
PROOFS = Step(
    5,
    "What is proved",
    _slides(PROVED, BREAKS),
    "Which row of the table is about learned codes?",
    "Somebody defends top-k as optimal. Show the backup slide on cross terms: three numbers are enough.",
)
MEASURED = Step(
    5,
    "What was measured",
    _slides(SCORES, SPEED),
    "HashAttention scores above what it imitates. What does that say about the score?",
    "They put 1/16 and 1/32 together. Fig. 1 has quality and speed of one setting (pp. 1–2).",
)
COUNT = Step(
    12,
    "First exercise: count the bytes",
    f"Exercise hashattention.bytes_read, in pairs. Then: {_slides(BYTES)}",
    "Which of the three numbers shrinks with the budget, and which does not move?",
    "The group of query heads is a factor in one place only: keys and values of the sparse step. Codes are looked at "
    "once for the group, and a dense step reads a key once for it.",
)
TURN = Step(
    28,
    "Second exercise: turn the order around",
    f"Exercise hashattention.lift, in pairs, on paper first. Then: {_slides(LIFT)}",
    "Find two keys that the printed lift puts in the wrong order, for any query you are given.",
    "They start with vectors. Let the width be 1 and q = 1, the longer key 1, and ask how short the other may be. "
    "Those who are done write the function for any q.",
)
DISCUSSION = Step(
    14,
    "Discussion",
    "Prompts of your choice, three of the seven; begin with 2 or 3",
    "Look first and write down what you expect. Then move one dial. What surprised you?",
    "The panel invites everybody to move everything. One person has the mouse, one dial moves at a time, and somebody "
    "else says what the numbers are.",
)
RECORD = Step(
    6,
    "What do we believe now?",
    f"{_slides(BELIEVED)}, then the record",
    "For each claim: do you believe it, and what would change your mind?",
    "People vote on the method instead of on the sentence. Read the sentence aloud again, and fill in the reason "
    "before the verdict.",
)

HOUR = (OPEN, SHEET, HAND, MOVES, LEARNS, RIVALS, PROOFS, MEASURED, DISCUSSION, RECORD)
LONG = (
    replace(OPEN, minutes=3),
    replace(SHEET, minutes=4),
    replace(HAND, minutes=4),
    MOVES,
    COUNT,
    replace(RIVALS, show=_slides(LEARNED, AGAINST)),
    PROOFS,
    TURN,
    replace(MEASURED, minutes=4),
    replace(DISCUSSION, minutes=10, show="Two prompts of the seven, of your choice; begin with 2"),
    replace(RECORD, minutes=8),
)


# -- prompts ----------------------------------------------------------------------------------------------------------

PROMPTS = (
    Prompt(
        "How much hangs on one key? Take the budget from 8 to 7. At which budget is all of the true top 8 found?",
        Scene(
            "Two orders: dots in the grey part are read, rings are keys of the true top that are not; move the budget "
            "by one.",
            ("budget=8", "view=orders"),
        ),
        "Sec. 4, p. 4",
        "At 8 the query c16 finds 6 of 8. At 7 it finds 5, and the new ring is place 1 by logit: c10, place 8 by "
        "codes, with 0.52 of the weight (point at it in *What is read* with a budget of 52). It is one query; the "
        "mean mass falls from 0.903 to 0.850, and the mean error rises from 0.060 to 0.100. At 10 all 8 are found.",
    ),
    Prompt(
        "Is the gap between learned and random bits the luck of one draw?",
        Scene(
            "Recall: the dashed curve LSH is one draw; move the seed from 0 to 9 and note where it stands at a budget "
            "of 16.",
            (*LATE, "seed=0", "view=recall"),
        ),
        "Sec. 5.3, p. 9, and Table 8, p. 16",
        "LSH stands at 0.190, 0.366, 0.251, 0.398, 0.455, 0.198, 0.285, 0.445, 0.280 and 0.449; the learned codes "
        "stay at 0.652. So the gap is real in this window, and its size, a factor of 1.4 to 3.4, is luck. A table "
        "with one draw cannot say which of these it shows.",
    ),
    Prompt(
        "The past mean keeps one number a token and has not seen the query. Why is it ahead here, and will it be in a "
        "long document?",
        Scene(
            "Recall: the bold curve is the past mean; compare it with the codes, then halve the number of tokens.",
            (*LONGER, "selector=past_mean", "view=recall"),
        ),
        "this project; attention of the past as a signal: Sec. 2.2, p. 3",
        "0.535 beside 0.496 for the codes at 256 tokens; at 128 tokens it is 0.636 beside 0.652. In a short window "
        "the last queries want much the same keys. Over 1,024 queries of a text of 2,048 tokens the codes are ahead "
        "on this layer, 0.528 beside 0.351 (three heads). What happens at 64K is not measured here.",
    ),
    Prompt(
        "Exact top-k has all of the true top. Does it leave the smallest error of the output?",
        Scene(
            "Output error: the bold curve reads the true top 8; look which curves lie below it at a budget of 8.",
            (*EARLY, "selector=exact", "view=error"),
        ),
        "App. B.1, p. 13",
        "No. It leaves 0.629, LSH 0.619 and Quest 0.567, though its mass is the largest, 0.411 beside 0.270 and 0.278 "
        "(whole panel). The error is the missing weight times a distance, and the distance can grow. Exact top-k has "
        "recall 1 by definition; that is all that is certain about it.",
    ),
    Prompt(
        "With one bit, who decides what is read? Do more bits end that?",
        Scene(
            "Distances: two bars, and a budget of 8 that ends within the first; raise the bits step by step.",
            ("bits=1", "view=histogram"),
        ),
        "Eq. 2, pp. 4–5; ties: this project",
        "23 keys agree in the one bit, 29 do not, and 8 are read: the order of tokens decides among the 23, and 1 of "
        "the true top 8 is found. With 4 bits 4 keys lie below the cut and 8 at it. At 8 and at 32 bits it is 4 and "
        "4, all of which are read; at 16 it is 4 and 5, and at 64 it is 6 and 4, so a tie can come back. More bits "
        "leave fewer keys at the cut, and not always none. Mean recall goes from 0.285 at 1 bit to 0.621 at 8 and "
        "0.738 at 32 (whole panel).",
    ),
    Prompt(
        "The budget is 0. How much of the weight do the 12 tokens at the ends hold, and which end is it?",
        Scene(
            "Attention mass: 256 tokens of a real text, of which only the 4 first and the 8 newest are read; set one "
            "of the two to 0.",
            (*ENDS, "view=mass"),
        ),
        "the protocol, pp. 5–7",
        "0.817 of the weight, mean over the last 128 queries, at an output error of 0.218 (whole panel). Without the "
        "4 first tokens it is 0.815, without the 8 newest 0.0013: in this head it is the newest. A budget of 16 "
        "brings 0.907. So a mass that counts the ends says little about a selector; recall is counted beyond them.",
    ),
    Prompt(
        "Do these stripes follow the query? Change the selector to the codes. Is more of the weight read now, or less?",
        Scene(
            "What is read: upright stripes are keys that query after query reads; *whole panel* shows recall and "
            "mass, too.",
            (*MIDDLE, "selector=key_norm", "view=reads"),
        ),
        "this project, of comparisons as in Sec. 5.3, p. 9",
        "The shortest keys are the same for every query, so the stripes are whole: beyond the ends the last 64 "
        "queries read 19 different keys, 13 of them every time. By codes they read 84 different ones, so the codes "
        "do follow the query. And yet the codes have the smaller mass, 0.569 beside 0.844, with the higher recall, "
        "0.437 beside 0.266.",
    ),
)


# -- handout ----------------------------------------------------------------------------------------------------------

HANDOUT = (
    (
        "Symbols",
        r"""| in attnlab | in the paper | meaning |
|---|---|---|
| `maps` | $F$ | learned map, one for queries and one for keys |
| `bits` | $b$ | length of a code, 32 |
| `query_codes`, `key_codes` | $h(q)$, $h(k)$ | packed in words of 32 bits |
| `distance` | – | bits that differ; the score is minus this |
| `budget` | $m$ | tokens read beside the ends |
| `sinks`, `window` | – | first and newest tokens, 128 and 128 |
| `chosen` | $I$ | the set that is read |
| `visible` | $n$ | tokens that a query sees |
| `weights` | $a$ | softmax weights |
| – | $M$ | length that keys are lifted to |""",
    ),
    (
        "The equations",
        r"""Encode (Eq. 1, p. 4), score (Eq. 2, p. 4), select (pp. 4–7), attend (p. 4):

$$h(x)=\mathrm{ReLU}(\mathrm{sign}\,F(x))\qquad\mathrm{score}_i=-\mathrm{popcount}(h(q)\;\mathrm{XOR}\;h(k_i))$$

$$I=\text{first}\,\cup\,\text{newest}\,\cup\,\text{the }m\text{ best of the rest}\qquad
\hat o=\sum_{i\in I}\frac{e^{z_i}}{\sum_{j\in I}e^{z_j}}v_i,\quad z_i=\frac{q\cdot k_i}{\sqrt d}$$

What leaving tokens out costs, with $A$ the weight that is read and $o_{\bar I}$ the mean of what is not (this project):

$$o-\hat o=(1-A)\,(o_{\bar I}-\hat o)$$""",
    ),
    (
        "The mechanism in six lines",
        """One query `q`; its bits `qb` [b], those of the keys `kb` [n, b], and `i` is `np.arange(n)`:

```python
fixed = (i < sinks) | (i >= n - window)
apart = np.where(fixed, -1, (kb != qb).sum(1))
near = apart.argsort(kind="stable")
read = near[: m + fixed.sum()]
w = np.exp(k[read] @ q / np.sqrt(len(q)))
out = w @ v[read] / w.sum()
```

The ends come first, then the nearest; equals stay in the order of tokens, and no token is read twice. All *n* codes are
looked at for every query. Where logits are large, subtract the largest one of the set before `np.exp`.""",
    ),
    (
        "What is proved, measured and refuted",
        r"""| | sentence | where |
|---|---|---|
| proved | $a\lVert v\rVert$ ranks as $[q/\sqrt d,1]\cdot[k,\log\lVert v\rVert]$ does | Lemmas 4.1–4.2, p. 5 |
| proved | lifted with 0 at the end of the query, cosines keep that order | reader, of Sec. 4.3, p. 5 |
| conditional | dropped tokens cost the sum of $a^2\lVert v\rVert^2$: orthogonal values | App. B.1, pp. 13–14 |
| refuted | the lift with the printed $[q,1,1]$ keeps the order | Sec. 4.3, p. 5 |
| refuted | the largest $a\lVert v\rVert$ leave the smallest error | App. B.1, p. 13 |
| refuted | the same with weights that are made to sum to 1 | this project, of p. 4 |
| refuted | the gain of 3.12 is at 32K; the plot has it at 65K | Sec. 5.2, Fig. 4(b), p. 8 |
| refuted | 2.54 is the largest gain over FlashDecode; the labels give 2.57 | Sec. 5.2, Fig. 4(a), p. 8 |
| measured | six tasks, 512 tokens read: 64.15; exact top-k 63.43, full model 63.55 | Table 1, p. 6 |
| measured | 1/16 read: LongBench 48.00 of 48.78, RULER at 16K 89.53 of 90.66 | Tables 2–3, p. 6 |
| measured | four tasks, 1/16 read: learned 75.07, random 48.90 at 32 bits, 69.79 at 256 | Table 8, p. 16 |
| measured | SmolLM2, layer 21: learned codes find 0.528 of the true top 64, random bits 0.164 | this project |
| measured | the same for the past mean, which ignores the query: 0.351 | this project |
| open | that 32 learned bits find the tokens that matter | nobody |""",
    ),
    (
        "Limits to keep in mind",
        """- Only the end of a prompt and what is generated are sparse: the last 128 tokens in LongBench, 32 in RULER
  (pp. 6–8). The document is read densely.
- The cache stays whole and on the GPU; moving it away was not evaluated (p. 9). Codes come on top.
- Maps belong to one model; training at up to 64K did not carry over to 128K (p. 5).
- Scores were taken at 512 tokens or 1/16, speed at 1/32 (pp. 6, 8). Both at once: Fig. 1 (pp. 1–2).""",
    ),
    (
        "Where to run what",
        """- Move it: `attnlab export hashattention page.html`, or notebook `03_hamming_recall`.
- Check it: `attnlab verify hash`, all twenty claims; `attnlab verify hash.lift-printed`, one.
- Build it: `attnlab exercises` lists `hashattention.pack`, `score`, `bytes_read`, `select`, `attend`, `lift`.
- Another counterexample: `attnlab.hashattention.rational.find("lift", seed=2)`.
- Time it: `attnlab bench hashattention`.""",
    ),
)

SHOWN = {
    "hash.example": "03_hamming_recall: Bits, distance, a set",
    "hash.popcount": "03_hamming_recall: Bits, distance, a set",
    "hash.budget": "03_hamming_recall: Bits, distance, a set",
    "hash.full-budget": "03_hamming_recall: Bits, distance, a set",
    "hash.lift-printed": "03_hamming_recall: A lift that turns the order around",
    "hash.lift-zero": "03_hamming_recall: A lift that turns the order around",
    "hash.centring": "03_hamming_recall: A lift that turns the order around",
    "hash.isolated": "03_hamming_recall: What a token contributes on its own",
    "hash.isolated-renormalised": "03_hamming_recall: What a token contributes on its own",
    "hash.learned-beats-random": "03_hamming_recall: Learned against random, on real heads",
    "hash.static-baseline": "03_hamming_recall: Learned against random, on real heads",
}

SESSION = Session(
    paper="hashattention",
    title="HashAttention: Semantic Sparsity for Faster Inference",
    arxiv="2412.14468v2",
    question="Can a few bits a token tell which keys a query needs, so that the others need not be read?",
    notebook="03_hamming_recall",
    checked="05_claims: HashAttention",
    short=(
        "A model that writes one token reads its whole cache, although softmax gives most of its weight to few "
        "tokens. HashAttention keeps 32 bits a token and head beside the cache. Two small perceptrons a head, trained "
        "while the model stays frozen, turn queries and keys into these bits. The keys whose bits differ least from "
        "the query's are read, with the first and the newest tokens, and ordinary attention runs over this set (pp. "
        "4–5). With 1/16 of the tokens read, the means of LongBench and RULER fall by about one point, while of the "
        "single tasks quoted here one falls by ten points and one rises by twelve (p. 6). Keys and values all stay in "
        "memory, and "
        "every code is looked at."
    ),
    preread=PREREAD,
    hour=HOUR,
    long=LONG,
    prompts=PROMPTS,
    slides=STORY + BACKUP,
    handout=HANDOUT,
    shown=SHOWN,
)
