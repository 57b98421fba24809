"""The session on RACE attention, arXiv:2510.04008v5."""

from attnlab.teach.session import Prompt, Question, Scene, Session, Slide, Step

__all__ = ["SESSION"]

PAIR = "pin=query.8,key.14"  # one pair of tokens of the second cluster, followed through the scenes
CODE = ("input=layer 21, head 1", "tokens=64", "causal=true", "tables=16", "sharpness=8")  # a head that reads code

# -- before the session -----------------------------------------------------------------------------------------------

QUESTION = (
    "Can attention keep its quality when a query reads a few buckets instead of every key, and how long may the"
    " sequence be then?"
)

SHORT = r"""Softmax attention compares every query with every key, $N^2$ pairs for $N$ tokens. RACE changes the kernel:
it takes a power of the angle between query and key (Eqs. 3-4, p. 6), because random planes can estimate it. Each token
is shared softly among $2^P$ buckets. Keys write their mass and their values, queries read, and one division ends it
(Algorithm 1, p. 5). At a fixed number of planes and tables the cost is linear in $N$ (p. 7). With a budget chosen for
the task, models trained with it do about as well as with softmax (Tables 1-4, p. 9). One layer was timed up to 12M
tokens on a GPU and 75M on a CPU (Fig. 4, p. 10). A bound on the error is given for the form without a mask (Theorem 2,
p. 8); one of its lemmas fails (Lemma 10, p. 24)."""

PREREAD = (
    Question(
        ask="What does RACE approximate: softmax attention, or something else?",
        place="Sec. 3.1, Eqs. 3-4, pp. 5-6; Theorem 2, p. 8",
        answer="""Something else: attention with a power of the angular kernel (Eqs. 3-4, p. 6). The output $O$ in
Theorem 2 (p. 8) is that of angular attention. About the distance to softmax the paper promises nothing. That models
trained with RACE do about as well is a measurement (p. 9).""",
    ),
    Question(
        ask="What changes when the number of planes $P$ grows, and what when the number of tables $L$ grows?",
        place="Sec. 2.2, p. 4; Sec. 3.2, p. 7",
        answer=r"""$P$ sets the target: two tokens share a bucket with probability $\kappa^P$ (pp. 4, 7), so another
$P$ is another kernel, with $2^P$ buckets a table. $L$ repeats the same experiment with new planes and only averages
its noise. To call both of them the budget hides this difference.""",
    ),
    Question(
        ask="How often does Algorithm 1 divide for one query, and where does Fig. 7 divide?",
        place="Algorithm 1, p. 5; Fig. 7, p. 28",
        answer="""Algorithm 1 divides once, after numerators and denominators of all tables are summed (p. 5). Fig. 7
(p. 28) draws a mean inside each bucket and mixes the means. On a small example these are 86/19 and 142/33, so they are
two operators (reader's analysis).""",
    ),
    Question(
        ask="Which conditions does Theorem 2 need, and on which pages do they stand? Does it cover the causal form?",
        place="Theorem 2, p. 8; Sec. 6.1, pp. 17-18; Theorem 13, p. 26; p. 27",
        answer=r"""Unit queries and keys (p. 17); row sums of at least $C_1N$ and a norm of at most $C_2N$ (Sec. 6.1,
pp. 17-18); row sums of the estimate that are off by at most $s_{\min}/2$ (Theorem 13, p. 26); and
$L\ge\log(2N/\delta)$ (p. 27). It does not cover the causal form, as the authors say (p. 8).""",
    ),
    Question(
        ask="Which $(P,L)$ stands behind the perplexity 20.9, behind 97.92 % at 64K tokens, and behind 12M tokens?",
        place="Tables 1 and 4, p. 9; Fig. 4a-c, p. 10",
        answer="""(4, 4) behind 20.9 on WikiText-103 (Table 4, p. 9), (3, 3) behind 97.92 % on Arxiv (Table 1, p. 9),
(2, 2) behind 12M tokens on the GPU (Fig. 4a, p. 10); (4, 4) ends at 7M. So no single configuration has all three.""",
    ),
)

# -- slides -----------------------------------------------------------------------------------------------------------

SLIDES = (
    Slide(
        title="Softmax attention compares every query with every key",
        body=r"""$$
O_i=\frac{\sum_j \exp(q_i\cdot k_j/\sqrt d)\,V_j}{\sum_j \exp(q_i\cdot k_j/\sqrt d)}
$$

- $N$ tokens make $N^2$ pairs. A faster kernel moves less memory, and still visits every pair.
- RACE asks whether a query can read a few summaries of the keys instead.
- It asks two things of that: do trained models keep their quality (tested up to 64K tokens), and how long may an input
  be (timed up to 75M)?""",
        place="Sec. 1, pp. 1-4; Sec. 4, pp. 8-11",
        notes="""Begin with what everybody knows, and write the two sums on the board. Ask: which part of this could be
computed once, for all queries together? The answer is none, because the exponential of a product does not come apart
into one factor for the query and one for the key. A kernel that does come apart is what the paper looks for.

People often take FlashAttention for linear. It keeps less in memory and reads it in better order; the number of pairs
stays $N^2$.

Say now that the two questions of the last line have different evidence. Quality was measured on trained models of at
most 64K tokens (Table 1, p. 9). The lengths of millions were timed on one layer (Fig. 4, p. 10).""",
    ),
    Slide(
        title="RACE lets tokens meet in a few buckets",
        body="""- Random planes through the origin cut space into $2^P$ buckets.
- Each **key writes** into its buckets: a mass, and its value.
- Each **query reads** the buckets that it would fall into itself.
- What is kept does not grow with the number of tokens. Several **tables** do this with planes of their own.""",
        place="Algorithm 1, p. 5; Sec. 3.2, p. 7",
        notes="""This is the whole idea, so go slowly. Eight rows are the buckets of one table, columns are 32 toy keys
in four groups of directions, and the bars are what the keys leave behind. The frame marks key b7.

After the second scene ask: what will the weight of this pair be, large or small? They share a bucket, so it is large.
With one table it is too large: all pairs in this bucket get it, whether they are alike or only fell the same way. With
eight tables the accident is averaged away.

Nobody forms the matrix that the panel draws. It is there so that one can see what the buckets amount to.

What people get wrong: the planes are drawn at random (Algorithm 1, p. 5), not fitted to the tokens. The sharpness is
learned (p. 8).""",
        scenes=(
            Scene(
                says="Look at the framed cell under *Buckets*: key b7 has 0.99 of its mass in bucket 0 of the one"
                " table.",
                settings=("tables=1", "view=buckets", "pin=table.0,bucket.0,key.14"),
            ),
            Scene(
                says="The same table, now with queries as columns: query b1 has 0.99 in this bucket too, so it will"
                " read what b7 wrote.",
                settings=("tables=1", "view=buckets", "features=queries", "pin=table.0,bucket.0,query.8"),
            ),
            Scene(
                says="Look at the matrix *RACE*: this pair gets the weight 0.125, and every key of the first and last"
                " group less than 0.01.",
                settings=("tables=1", "view=race", PAIR),
            ),
            Scene(
                says="Eight tables: RACE gives the pair 0.080, as the matrix *Angular* beside it does.",
                settings=("tables=8", "view=race", PAIR),
            ),
        ),
        figures=("buckets", "angular", "race"),
    ),
    Slide(
        title="Its target is angular attention, not softmax",
        body=r"""$$
O_i=\frac{\sum_j S_{ij}V_j}{\sum_j S_{ij}},\quad S_{ij}=\kappa_{ij}^{\gamma}
$$

$$
\kappa_{ij}=1-\frac1\pi\arccos\frac{q_i\cdot k_j}{\lVert q_i\rVert\,\lVert k_j\rVert}
$$

- $\kappa$ is 1, 1/2 and 0 at the angles 0, $\pi/2$ and $\pi$. Lengths do not count.
- A power sharpens: 0.9 to 0.6 is 1.5 to 1, at power 4 it is 5.06 to 1 (reader's arithmetic).
- Computed as it stands, it too costs $N^2$ pairs.""",
        place="Sec. 3.1, Eqs. 3-4, pp. 5-6; Fig. 3, p. 6",
        notes=r"""Keep three objects apart for the rest of the hour: softmax attention, angular attention, and RACE,
which estimates the second one. Write the three names on the board and point at one of them whenever somebody says
"it".

Ask before the second scene: what does the power do to a pair at a right angle? Its score is $2^{-\gamma}$ (Eq. 4,
p. 6), so 1/8 at power 3 and 1/256 at power 8.

The toy tokens have length 1, so softmax with its division by $\sqrt d$ is nearly flat here. That is a property of the
toy, and the slide with the trained head shows the opposite.

What people get wrong: Fig. 3 (p. 6) shows powers 1, 6, 10 and 12 beside softmax, each panel with its own colour scale.
Alike to the eye is not alike in number (reader's analysis).""",
        scenes=(
            Scene(
                says="Power 1: in *Angular* the framed pair has 0.046, where an equal share would be 1/32 = 0.031.",
                settings=("planes=1", "view=angular", PAIR),
            ),
            Scene(
                says="Power 3: the same pair has 0.080, and four blocks stand out along the diagonal.",
                settings=("planes=3", "view=angular", PAIR),
            ),
            Scene(
                says="Power 8: the pair has 0.150, and 17 % of the weight is left between different groups, where"
                " power 3 had 47 %; softmax still gives the pair 0.037.",
                settings=("planes=8", "view=angular", PAIR),
            ),
        ),
        figures=("softmax", "angular"),
    ),
    Slide(
        title="Planes make buckets, sharpness says how hard they are",
        body=r"""$$
\Pr[\text{same side of one plane}]=\kappa,\qquad \Pr[\text{same bucket}]=\kappa^{P}
$$

$$
u_t(x)=\tanh(w_t\cdot x),\qquad \phi_r(x)=\frac{\exp(\beta\,u(x)\cdot v_r)}{\sum_{r'}\exp(\beta\,u(x)\cdot v_{r'})}
$$

- So $P$ planes estimate the power $\gamma=P$. Corner $v_r\in\{-1,1\}^P$ names a bucket.
- Sides have no gradient; the shares $\phi_r$ do. The sharpness $\beta$ is learned (p. 8).""",
        place="Sec. 2.2, p. 4; Algorithm 1, p. 5; Sec. 3.2, p. 7",
        notes=r"""Draw two vectors and a random line through the origin. The line separates them with probability
angle$/\pi$, because only its direction counts and the separating directions fill that part of the circle. So the hash
knows the angle, and $P$ independent planes know its $P$-th power (pp. 4, 7).

The softmax here runs over the $2^P$ corners of one table, never over tokens. It multiplies logits by $\beta$, so
$\beta$ is an inverse temperature although the text calls it a temperature (reader's analysis).

It also comes apart into one factor a plane, $\prod_t\sigma(2\beta u_tv_{r,t})$ (p. 22). Everything that this project
proves about RACE begins there.

Ask at the first scene: what will the attention be, if all buckets look alike? The plain mean of the values.""",
        scenes=(
            Scene(
                says="Sharpness 1/32: all buckets look alike, every share lies between 0.11 and 0.14, about 1/8.",
                settings=("tables=2", "sharpness=0.03125", "view=buckets"),
            ),
            Scene(
                says="Sharpness 1: each column now leans to some buckets; its largest share is 0.42 on average.",
                settings=("tables=2", "sharpness=1", "view=buckets"),
            ),
            Scene(
                says="Sharpness 32: nearly a hard hash; nine columns in ten have more than 0.9 in a single bucket.",
                settings=("tables=2", "sharpness=32", "view=buckets"),
            ),
        ),
        figures=("buckets",),
    ),
    Slide(
        title="Keys write, queries read, and one ratio comes last",
        body=r"""$$
A_l=\sum_j\phi^{(l)}(k_j),\qquad B_l=\sum_j\phi^{(l)}(k_j)\,V_j^{\top},\qquad
\hat O_i=\frac{\sum_l\phi^{(l)}(q_i)\cdot B_l}{\sum_l\phi^{(l)}(q_i)\cdot A_l}
$$

- Multiplied out, the weights are $\hat S_{ij}=\frac1L\sum_l\phi^{(l)}(q_i)\cdot\phi^{(l)}(k_j)$.
- All tables are summed **before** the one division.
- Reader's example: key shares $(0.8,0.2)$ and $(0.1,0.9)$, values 2 and 10, query $(0.75,0.25)$. What comes
  out?""",
        place="Algorithm 1, p. 5",
        notes=r"""Compute the example on the board. Masses: 0.9 and 1.1. Contents: $0.8\cdot2+0.1\cdot10=2.6$ and
$0.2\cdot2+0.9\cdot10=9.4$. The query reads $0.75\cdot2.6+0.25\cdot9.4=4.3$ over $0.75\cdot0.9+0.25\cdot1.1=0.95$,
which is 86/19 = 4.526.

Then ask: what comes out if each bucket first takes its own mean? 142/33 = 4.303, another number. Fig. 7 (p. 28) draws
this, and the authors' released code computes it; a backup slide has the size of the difference.

The cost (p. 7): features, writing and reading take $O(LN(dP+PR+Rd))$ with $R=2^P$ buckets. No step has a pair of
tokens in it.

What people get wrong: they average the outputs of the tables. The sums are combined, and then there is one ratio.""",
    ),
    Slide(
        title="The causal form keeps a state of fixed size",
        body=r"""$$
A_i=A_{i-1}+\phi(k_i),\qquad B_i=B_{i-1}+\phi(k_i)\,V_i^{\top},\qquad
\hat O_i=\frac{\sum_l\phi(q_i)\cdot B_i}{\sum_l\phi(q_i)\cdot A_i}
$$

Write, then read: token $i$ sees itself. The state is $L\,2^P(d+1)$ numbers a head. How many is that?

| $(P,L)$ | numbers at $d=128$ |
|---|---|
| (2, 2) | 1,032 |
| (3, 3) | 3,096 |
| (4, 4) | 8,256 |

Keys and values of 33 tokens are 8,448 numbers.""",
        place="Algorithm 2, p. 27; cost: Sec. 3.2, p. 7",
        notes="""Every table has its own $A$ and $B$; the index is left out here. The first output is the first value,
whatever the planes are, since the first token meets only itself (this project).

The last line is arithmetic: a token's key and value are 2 x 128 numbers. So at these budgets the state is smaller than
a cache of 33 tokens. Ask: where must the price of so small a state show? In what can be told apart. Without a mask the
estimate is a matrix of rank at most $LR$ (reader's analysis; a backup slide has the exact number).

What people get wrong: the state is not the memory of training. Activations and the backward pass come on top. Decoding
with a cache is left for later work by the authors (Sec. 5, p. 12).""",
    ),
    Slide(
        title="Sharpness removes the bias, tables remove the noise",
        body=r"""For unit vectors the estimate $\hat S$ has an exact mean and spread at every angle.

- **Bias**: the mean misses $\kappa^P$. Sharpness helps, tables do not. At a right angle it is 0.
- **Noise**: the spread falls like $1/\sqrt L$.

The paper bounds the bias by order $P/\beta$. That is reached at angle 0. Strictly between 0 and $\pi$ a plane's bias
falls like $1/\beta^2$; at $\pi$ that of $P$ planes is of order $\beta^{-P}$.""",
        place="Exact moments: this project, from p. 22; the paper's bound: Theorem 6, pp. 19-20, Lemma 8, pp. 21-23",
        notes=r"""The chart *Estimate by angle* carries this slide. The line is the target, the dashed line the exact
mean, the grey band one standard deviation, and each dot is one pair of tokens. No sampling went into line and band.

Ask before the second scene: which dial closes the gap at the left end? Let somebody try tables first; the band becomes
narrow and stays where it is.

The fourth scene is the same fact for the output. At sharpness 1/4 the error is 0.053 with one table and 0.054 with 64.
At sharpness 4, where the panel opens, it falls from 0.070 to 0.0075.

What people get wrong: they take the two terms of Theorem 2 for one budget. A group with noise buys tables; a group
with bias wastes them.""",
        scenes=(
            Scene(
                says="Sharpness 1: look at the left end of *Estimate by angle*, where the target is 1 and the exact"
                " mean is 0.259.",
                settings=("sharpness=1", "tables=16", "view=band", "pin=angle.0"),
            ),
            Scene(
                says="Sharpness 16: the dashed mean now begins at 0.927 and follows the line of the target.",
                settings=("sharpness=16", "tables=16", "view=band", "pin=angle.0"),
            ),
            Scene(
                says="One table instead of 16: at a right angle the mean is still 0.125 = 1/8, and the band is four"
                " times as wide.",
                settings=("sharpness=16", "tables=1", "view=band", "pin=angle.32"),
            ),
            Scene(
                says="Sharpness 1/4: the output error is flat, 0.053 with one table and 0.054 with 64.",
                settings=("sharpness=0.25", "tables=16", "view=error", "pin=tables.6"),
            ),
        ),
        figures=("band", "error"),
        mark="project",
    ),
    Slide(
        title="Theorem 2 holds under four conditions",
        body=r"""$$
\lVert\hat O-O\rVert_{\mathrm{rms}}=O\left(\frac P\beta+\sqrt{\frac{\log(N/\delta)}{L}}\right)\lVert V\rVert_F
$$

with probability at least $1-\delta$, where $O$ is **angular** attention **without a mask**, and

- $q$ and $k$ are unit vectors (p. 17)
- $s_{\min}=\min_i\sum_jS_{ij}\ge C_1N$ and $\lVert S\rVert_2\le C_2N$ (pp. 17-18)
- row sums are off by at most $s_{\min}/2$ (p. 26)
- $L\ge\log(2N/\delta)$ (p. 27)

The causal form has no guarantee (p. 8).""",
        place="Theorem 2, p. 8; Sec. 6.1, pp. 17-18; Theorem 13, p. 26; p. 27",
        notes=r"""Read the two terms first: bias, then noise, as on the slide before. Then go through the conditions
and ask of each: who controls it, the model or the one who sets the budget?

Two readings are easy to miss (reader's analysis). The norm $\lVert V\rVert_F$ grows like $\sqrt N$ by itself. And $L$
must grow with $\log N$, so error control costs $N\log N$, while linear time means a fixed $L$.

$C_2=1$ always serves, since no entry of $S$ exceeds 1 (reader's analysis). $C_1$ is the hard one: it says that no
query stands nearly opposite to almost all keys.

This project proved the bound with its constant and without the paper's Lemma 10. It also proved that without the
condition on $s_{\min}$ no constant serves.""",
    ),
    Slide(
        title="Lemma 10 fails where buckets are soft",
        body=r"""Lemma 10 promises row sums off by at most $s_{\min}/2$, once $L\ge(2/C_1^2)\log(2N^2/\delta)$.

Let all $q$ and $k$ be one unit vector, $P=2$, $\beta=0.1$. Then $S=1$ and $s_{\min}=N$, but for every draw of planes

$$
\hat S<\left(\frac{1+\tanh^2\beta}{2}\right)^{P}<0.255
$$

So every row sum is off by more than $0.745\,N$, for every $L$. The output is exactly right here: the lemma falls, not
every bound.""",
        place="Lemma 10, p. 24; 0.745 and the regions: this project",
        notes=r"""The reader found this example with the bound 0.627 $N$; the sharper number and the two regions on the
map are this project's. Let the group find the error in the proof: it writes the target $S_{ij}$ where the mean of the
estimate belongs, although the pages before have just computed their difference (Lemma 8, pp. 21-23).

Ask: does a wrong row sum make a wrong output? Not here. All weights are equal, for the target and for the estimate, so
the mean value comes out. Numerator and denominator are wrong by the same factor.

The regions are for identical vectors. A dot outside of them is no proof that the lemma is true there. The exercise
`race.break_lemma10` finds other angles, for one plane too.

A repair is on a backup slide.""",
        scenes=(
            Scene(
                says="Look at *Where Lemma 10 fails*: the dot lies left of the border 0.764, so the lemma fails for"
                " identical vectors, for every draw and any number of tables.",
                settings=("planes=2", "tables=16", "sharpness=0.1", "view=lemma", "pin=border.1"),
            ),
            Scene(
                says="Same dials, *Estimate by angle*: the thick stroke is what is missing at angle 0, a mean of"
                " 0.252 where the target is 1.",
                settings=("planes=2", "tables=16", "sharpness=0.1", "view=band", "pin=angle.0"),
            ),
            Scene(
                says="Sharpness 1, the pale region below 1.388: the mean at angle 0 is 0.407, under one half, so with"
                " enough tables it fails for identical vectors with probability close to 1.",
                settings=("planes=2", "tables=16", "sharpness=1", "view=band", "pin=angle.0"),
            ),
            Scene(
                says="Sharpness 4: the dot lies outside of both regions; the mean at angle 0 is 0.805.",
                settings=("planes=2", "tables=16", "sharpness=4", "view=band", "pin=angle.0"),
            ),
        ),
        figures=("band", "lemma"),
        mark="reader",
    ),
    Slide(
        title="Trained with RACE, small models do about as well",
        body="""Does a model that is trained with RACE keep its quality?

| task, tokens | RACE | FlashAttention2 |
|---|---|---|
| WikiText-103, 1,024, perplexity | 20.9 at (4, 4) | 20.9 |
| Arxiv, 64K, accuracy | 97.92 % at (3, 3) | 97.00 % |
| the same, seconds an epoch | 584 | 1,645 |
| Food-101, 16K, accuracy | 43.5 % at (3, 3) | 42.1 % |
| the same, seconds an epoch | 950 | 2,600 |

More budget is not always better: Food-101 has 40.3 % at (4, 4).""",
        place="Tables 1-4, p. 9; single A100, best validation checkpoint: Sec. 4, pp. 8-10",
        notes="""These are the paper's numbers; the project has not trained these models. 1,645 over 584 is 2.82, and
2,600 over 950 is 2.74.

Ask: what else differs between the columns? Best checkpoints by validation; on Arxiv the data sets of 16K, 32K and 64K
are different ones, made of documents of one class joined together (pp. 15-16), so rising accuracy there is no study of
length. The causal results are for 1,024 and 128 tokens (Tables 4 and 8, pp. 9 and 16).

Angular attention at power 8 has perplexity 19.0 on WikiText-103 (Table 4, p. 9): better than both, with all pairs, and
at another power than RACE's 4. So it does not measure the estimate.

Budget and quality: Tiny Stories at 512 tokens goes from 2.7 at (5, 4) to 5.1 at (5, 5) (Tables 6-7, p. 16).""",
    ),
    Slide(
        title="12M and 75M tokens are lengths of one layer",
        body="""How long may a sequence be? One layer, forward and backward, batch 1, 4 heads, $d=128$.

| machine | longest | place |
|---|---|---|
| GPU, (2, 2) | 12M | Fig. 4a-c |
| GPU, (3, 3) | 10M | Fig. 4a-c |
| GPU, (4, 4) | 7M | Fig. 4a-c |
| CPU | 75M, about 100 s | Fig. 4e |

Two sentences of p. 11 do not fit the figures: "3.5× longer", and 33M tokens on a CPU in under 10 s.""",
        place="Fig. 4, p. 10; text, p. 11; Fig. 6b, p. 17; end points and misfits: reader's analysis",
        mark="reader",
        notes="""The end points are the reader's reading of the figures, not printed numbers. The GPU is a GH200 with
96 GB, the CPU a Xeon Gold 5220R. The best perplexity came with (4, 4), the longest run with (2, 2): they are not one
system.

Near 4M tokens the authors report about 0.1 s for RACE and about 550 s for FlashAttention2 (p. 11). 12M over 4M is 3,
not 3.5; numbers that round to these could still give 3.5. At 32M the CPU's curve lies clearly above 10 s (Figs. 4f and
6b).

Fig. 4e (p. 10) has RACE on a CPU and the others on a GPU, crossing near 131K tokens (p. 11).

This project ran 75,000,000 generated tokens, 4 heads of width 128 at (4, 4), forward without a mask, on two CPU cores
in 162 s, part of it for making the tokens; nothing was trained.""",
    ),
    Slide(
        title="For a head trained with softmax the kernel is too flat",
        body=r"""What if RACE replaces softmax in a trained model, with no further training?

- In this head all angles lie between 1.43 and 1.87, near $\pi/2=1.57$. So $\kappa^3$ goes from 0.066 to 0.162 only.
- Nine heads of a small language model are nearest to powers of 16 to 32: $2^{16}$ buckets a table and more.

It says nothing about models that learn with RACE, as the paper's do (Sec. 4, p. 8).""",
        place="This project, on the kernel of Eq. 4, p. 6",
        notes="""The head is layer 21, head 1 of SmolLM2-135M-Instruct, on 64 tokens of Python's documentation. Tokens
25 to 44 are one line of code, which reads itself: 0.83 of its attention stays inside. Angular attention leaves 0.32
there, and a flat average 0.28.

Ask: why is softmax so much sharper? It multiplies the cosine by the lengths over 8, which is 20 to 40 in these heads;
the kernel does not see lengths.

Over nine heads, with 4,160 numbers of state a head and dials chosen for each, RACE comes at most 13 % closer to the
output than the plain mean of the values, which needs 65 numbers (notebook 06_real_heads).

What people get wrong: they take this for a verdict on the paper. It trains from scratch.""",
        scenes=(
            Scene(
                says="Look at *Softmax*, a third of the way down: the block at the diagonal is one line of code,"
                " tokens 25 to 44, and keeps 0.83 of its attention.",
                settings=(*CODE, "planes=3", "view=softmax"),
            ),
            Scene(
                says="Look at *Angular*: the block is gone; 0.32 of the attention stays inside, where a flat average"
                " would leave 0.28.",
                settings=(*CODE, "planes=3", "view=angular"),
            ),
            Scene(
                says="Look at *Estimate by angle*: every dot stands near π/2, where the kernel can hardly tell pairs"
                " apart.",
                settings=(*CODE, "planes=3", "view=band"),
            ),
        ),
        figures=("softmax", "angular", "band"),
        mark="project",
    ),
    Slide(
        title="What to believe now, sentence by sentence",
        body=r"""- **Holds**: $P$ planes collide with $\kappa^P$ (p. 4); $\phi$ factors (p. 22); causal state (p. 27);
  bias of order $P/\beta$ (pp. 19-23).
- **Under conditions**: Theorem 2 (p. 8).
- **Refuted as printed**: Lemma 10 (p. 24); Fig. 7 as Algorithm 1 (p. 28); one $L$ for all $N$ (pp. 7-8, 27); two
  sentences of p. 11.
- **Open**: causal guarantees (p. 8); whole models at millions of tokens.""",
        place="pp. 4-28, as given at each sentence; verdicts: attnlab verify race",
        notes=r"""Take one line at a time and ask: who disagrees? Every verdict can be run, with `attnlab verify race`.
A refuted sentence is refuted as it stands on the page; what holds instead has a row beside it.

One $L$ for all $N$ means: Theorem 2's condition $L\ge\log(2N/\delta)$ (p. 27) cannot be met by one number of tables
for every length. The linear time of a fixed budget is not in doubt, and neither is the operator.

Keep apart what is refuted and what carries the paper. Lemma 10 can be repaired. The trained results (Tables 1-4, p. 9)
are measurements and need no lemma. But the released code computes bucket means, as Fig. 7 draws them. Ask: of which
operator are these the results? We do not know.

Then open the record and let the group write down what it believes.""",
        mark="project",
    ),
    Slide(
        title="Lemma 10 with the bias in it",
        body=r"""$$
\frac{\lVert E\rVert_2}{N}\le b+\sqrt{\frac{\log(2N^2/\delta)}{2L}},\qquad
b=\max_{i,j}\lvert\mathbb{E}\hat S_{ij}-S_{ij}\rvert
$$

- A table's score lies in $(0,1)$. Hoeffding concentrates it about its **mean**, which is not $S_{ij}$.
- A union over $N^2$ entries, then the sum over a row, gives the bound.
- So $b\le C_1/4$ **and** $L\ge(8/C_1^2)\log(2N^2/\delta)$ are enough: four times the lemma's tables, and a condition
  that no table can buy.""",
        place="Lemma 10, p. 24; the soft bias: Lemma 8, pp. 21-23",
        notes=r"""$E$ is the diagonal matrix of the errors of the row sums, and $C_1N$ the lower bound of the smallest
one. The lemma wants $\lVert E\rVert_2\le s_{\min}/2$.

Each of the two terms takes half of what is allowed: $b\le C_1/4$ and the square root at most $C_1/4$. Solving the
second for $L$ gives the 8.

A check of this project finds that the radius cannot be halved: six orthogonal queries and one key at a right angle,
hard buckets, one plane. There is no bias, and all errors of a row are the same coin, so they do not average out.

Ask: who makes $b$ small? The sharpness, at a given number of planes.""",
        mark="reader",
        backup=True,
    ),
    Slide(
        title="Mean and variance of the estimate, without sampling",
        body=r"""For unit $q$, $k$ at cosine $\rho$, let $g_1,g_2$ be standard normal with correlation $\rho$ and
$a(g)=\tanh(\beta\tanh g)$.

$$
X=\frac{1+a(g_1)\,a(g_2)}{2},\qquad \mathbb{E}\hat S=\mathbb{E}[X]^P,\qquad
\mathrm{Var}\,\hat S=\frac{\mathbb{E}[X^2]^P-\mathbb{E}[X]^{2P}}{L}
$$

- $\phi$ factors into soft bits (p. 22), so $\phi(q)\cdot\phi(k)=\prod_t\frac12(1+a_t(q)a_t(k))$.
- Planes are independent, and so are tables.""",
        place="This project, from Sec. 6.2, p. 22",
        notes=r"""Derive the pair product on the board: sum over the corners one bit at a time. Each bit gives
$\frac14[(1+a)(1+a')+(1-a)(1-a')]=\frac12(1+aa')$.

For unit vectors the projections on a Gaussian plane are standard normal with correlation $\rho$. That is all the
geometry there is; mean and variance are integrals over two normal numbers.

Numbers to check: at $P=2$, $\rho=1/2$, $\beta=1$ the mean is 0.31724 where $\kappa^2=0.44444$. At $\rho=0$ it is 1/4
for every sharpness, since the two soft bits are odd and independent.

The bias of a plane at angle 0 tends to $-1/(\sqrt{2\pi}\,\beta)$; in between it is
$-\frac{\pi}{12}\frac{\rho}{\sqrt{1-\rho^2}}\beta^{-2}$ to first order (proofs page).""",
        mark="project",
        backup=True,
    ),
    Slide(
        title="Bucket means are another operator",
        body="""On the two-bucket example Algorithm 1 gives 86/19 = 4.526. Means inside the buckets, then mixed, give
142/33 = 4.303 (reader's analysis of Fig. 7).

The released code takes bucket means. How far is that from Algorithm 2, causal, at $(4,4)$, for 2,048 Gaussian tokens?
(this project)

| sharpness | distance |
|---|---|
| 0.088, frozen | 0.0013 |
| 1 | 0.13 |
| 5 | 0.40 |""",
        place="Fig. 7, p. 28; Algorithms 1 and 2, pp. 5 and 27; the authors' repository, June 2026",
        notes=r"""Relative distances in the Frobenius norm, after the code's output is divided by $L$, which it does
not do itself. In the authors' language models the sharpness is frozen at $1/\sqrt d$, which is 0.088 for $d=128$.
There every operator is close to the plain mean, which hides the difference.

A related trap (Sec. 2.2, p. 4, reader's analysis): an unbiased numerator over an unbiased denominator is not unbiased.
One hard plane, keys at angles 0 and $\pi/2$ with values 0 and 1: the scores are (1, 1) or (1, 0), evenly. The outputs
are 1/2 and 0, on average 1/4. The target is 1/3.

So hard hashing has no bias in its scores, and RACE's output has one even there.""",
        mark="reader",
        backup=True,
    ),
    Slide(
        title="A table's features sum to 1, which limits the rank",
        body=r"""$$
\mathrm{rank}\,\hat S\le L\,(2^P-1)+1
$$

How much rank do so many features give?

| $(P,L)$ | features $L\,2^P$ | rank |
|---|---|---|
| (2, 2) | 8 | 7 |
| (3, 3) | 24 | 22 |
| (4, 4) | 64 | 61 |

- Side by side, the features of all tables are $L\,2^P$ columns: the reader's bound.
- Each table's columns sum to the vector of ones. All tables share it.
- A causal mask breaks it: a triangle with a positive diagonal has full rank.""",
        place="This project, from Sec. 3.2, p. 7",
        notes=r"""Count dimensions. Each of the $L$ column spaces has dimension at most $R=2^P$ and contains the vector
of ones; so their sum has at most $L(R-1)+1$. Random tokens reach it, which the check shows in exact fractions.

Dividing each row by its sum changes nothing: a diagonal matrix without zeros keeps the rank. The diagonal is never
zero, since every score exceeds $((1-\tanh^2\beta)/2)^P$ (this project).

Ask: does a low rank make the operator weak? It limits what one head can tell apart without a mask. With a mask three
tokens, one plane and one table have rank 3, where the bound would say 2. So the bound cannot be carried over to
language models.""",
        mark="project",
        backup=True,
    ),
    Slide(
        title="Without the row condition Theorem 2 has no constant",
        body=r"""Two equal queries, one plane, and two keys that come close to the opposite side, at
$\pi(1-\frac{1}{8\beta})$ and $\pi(1-\frac{3}{2\beta})$, with $L=4\beta^2$ tables. All other conditions are met. Does
one constant serve?

| $\beta$ | $s_{\min}/N$ | error over rate |
|---|---|---|
| 2 | 0.41 | 0.32 |
| 8 | 0.10 | 1.04 |
| 32 | 0.025 | 3.7 |

The rate falls, the error does not: the ratio grows like $0.103\,\beta$. Keys that stay where they are show none.""",
        place="Theorem 2, p. 8; its condition: Sec. 6.1, pp. 17-18",
        notes=r"""The example belongs to this project; `attnlab verify race.theorem2` runs it. The law $0.103\,\beta$
is for a failure probability of 0.1, and the table's ratios are quantiles over 200 draws.

Why: near the opposite side the target falls to 0 in proportion to $1/\beta$, and the bias is of the same order. So the
weights of the two keys stand at a wrong ratio, however many tables there are: 0.212 for the first where the target is
0.077.

With the condition the constant can be written down: $\frac{2.5}{\sqrt N}(\frac1{C_1}+\frac1{C_1^2})$ does it, and it
shows what a small $C_1$ costs (proofs page).

Ask: could a trained head come there? A query opposite to almost all keys would have to exist.""",
        mark="project",
        backup=True,
    ),
)

# -- the leader's plan ------------------------------------------------------------------------------------------------

HOUR = (
    Step(
        minutes=3,
        title="Open",
        show="The title slide.",
        ask="Who has read Algorithm 1 (p. 5), and who only the tables?",
        stuck="People begin to discuss results at once. Say that the tables come after half an hour, and write three"
        " names on the board: softmax, angular attention, RACE.",
    ),
    Step(
        minutes=5,
        title="The question, and the pre-read answers",
        show="Slide “Softmax attention compares every query with every key”; the pre-read sheet.",
        ask="What does RACE approximate? (first question of the sheet)",
        stuck="Somebody says softmax. Point to Eqs. 3-4 (p. 6), where the kernel is a power of an angle, and to"
        " Theorem 2 (p. 8), whose target is angular attention.",
    ),
    Step(
        minutes=8,
        title="The idea, and what it estimates",
        show="Slides “RACE lets tokens meet in a few buckets” and “Its target is angular attention, not softmax”, all"
        " scenes.",
        ask="Before the scene with eight tables: will the weight of the pair go up or down?",
        stuck="The matrix RACE looks like something that is stored. Say that it is drawn for us alone: what is stored"
        " are the orange bars and one vector a bucket.",
    ),
    Step(
        minutes=9,
        title="From a coin to one ratio",
        show="Slides “Planes make buckets, sharpness says how hard they are”, “Keys write, queries read, and one ratio"
        " comes last” and “The causal form keeps a state of fixed size”.",
        ask="Compute the reader's example: what does the query get, and what would bucket means give?",
        stuck="Which softmax is it? The one over the corners of one table, never over tokens. Whoever averages the"
        " outputs of tables has divided too early.",
    ),
    Step(
        minutes=5,
        title="Bias and noise",
        show="Slide “Sharpness removes the bias, tables remove the noise”, all scenes.",
        ask="The mean stands at 0.259 and should be 1. Which dial do you turn?",
        stuck="Groups turn tables first. Let them: the band becomes narrow around the wrong value.",
    ),
    Step(
        minutes=6,
        title="What is proved, and where it breaks",
        show="Slides “Theorem 2 holds under four conditions” and “Lemma 10 fails where buckets are soft”.",
        ask="The row sums are wrong by three quarters. Is the output wrong?",
        stuck="A failing lemma is taken for a failing theorem, or for a failing method. Say what falls: one step of"
        " the proof, at soft buckets; the output of the example is exactly right.",
    ),
    Step(
        minutes=4,
        title="What was measured",
        show="Slides “Trained with RACE, small models do about as well” and “12M and 75M tokens are lengths of one"
        " layer”.",
        ask="Which of these numbers belong to the same $(P,L)$?",
        stuck="12M tokens and the perplexity 20.9 are put into one sentence. They belong to (2, 2) and to (4, 4)"
        " (p. 9; Fig. 4, p. 10).",
    ),
    Step(
        minutes=12,
        title="Discussion with the panel",
        show="Three of the prompts; the first three and the last need no preparation. Let somebody else move the"
        " dials.",
        ask="First guess, then open the panel: what will you see?",
        stuck="Silence after the question. Ask for a show of hands between two answers, then open the state and look"
        " together.",
    ),
    Step(
        minutes=5,
        title="In a trained head",
        show="Slide “For a head trained with softmax the kernel is too flat”, then the fourth prompt.",
        ask="Does this speak for or against the paper?",
        stuck="It is taken for a refutation. The paper trains with RACE from the start (Sec. 4, p. 8); this says only"
        " that RACE cannot be put into a trained model as it stands.",
    ),
    Step(
        minutes=3,
        title="What we believe now",
        show="Slide “What to believe now, sentence by sentence”; the record.",
        ask="Which one sentence would you tell somebody who was not here, and on which page does it rest?",
        stuck="Opinions about the whole paper. Ask for one claim and one reason each, and write them into the record.",
    ),
)

LONG = (
    Step(
        minutes=3,
        title="Open",
        show="The title slide. Everybody opens the notebook `10_exercises_race`.",
        ask="Who has read Algorithm 1 (p. 5), and who only the tables?",
        stuck="An installation that fails. Put two people at one machine; NumPy is all that the exercises need.",
    ),
    Step(
        minutes=5,
        title="The question, and the pre-read answers",
        show="Slide “Softmax attention compares every query with every key”; the pre-read sheet.",
        ask="What does RACE approximate, and how often does it divide? (first and third question)",
        stuck="Somebody says softmax. Point to Eqs. 3-4 (p. 6) and to Theorem 2 (p. 8), whose target is angular"
        " attention.",
    ),
    Step(
        minutes=12,
        title="The idea, the target, the shares",
        show="Slides “RACE lets tokens meet in a few buckets”, “Its target is angular attention, not softmax” and"
        " “Planes make buckets, sharpness says how hard they are”, all scenes.",
        ask="What does one more plane change, and what one more table?",
        stuck="Both are called the budget. A plane moves the target; a table only averages (pp. 4, 7).",
    ),
    Step(
        minutes=12,
        title="Exercise: write into buckets, read from them",
        show="`race.attend`, ten minutes in pairs; then slide “Keys write, queries read, and one ratio comes last”.",
        ask="Which array in your solution has both a query's and a key's axis?",
        stuck="A ratio for each table, then a mean: the check names this mistake. An array of pairs passes the check,"
        " and costs $N^2$; ask for a second version without it.",
    ),
    Step(
        minutes=8,
        title="Causal form; bias and noise",
        show="Slides “The causal form keeps a state of fixed size” and “Sharpness removes the bias, tables remove the"
        " noise”, all scenes.",
        ask="The mean stands at 0.259 and should be 1. Which dial do you turn?",
        stuck="Groups turn tables first. Let them: the band becomes narrow around the wrong value.",
    ),
    Step(
        minutes=15,
        title="Exercise: choose $L$ for an error",
        show="`race.tables_needed`, thirteen minutes in pairs, two to compare; the backup slide “Mean and variance of"
        " the estimate, without sampling” may stay on the wall.",
        ask="For which angles is there no number of tables that is enough?",
        stuck="The square of the bias is forgotten, or divided by $L$ with the variance. Hint 1 says it:"
        " `race.tables_needed.hint()`.",
    ),
    Step(
        minutes=7,
        title="What is proved, and where it breaks",
        show="Slides “Theorem 2 holds under four conditions” and “Lemma 10 fails where buckets are soft”.",
        ask="You have just seen that tables cannot repair a bias. Where does the lemma forget this?",
        stuck="A failing lemma is taken for a failing theorem. Show the backup slide “Lemma 10 with the bias in it”:"
        " one more condition repairs it.",
    ),
    Step(
        minutes=4,
        title="What was measured",
        show="Slides “Trained with RACE, small models do about as well” and “12M and 75M tokens are lengths of one"
        " layer”.",
        ask="Which of these numbers belong to the same $(P,L)$?",
        stuck="12M tokens and the perplexity 20.9 are put into one sentence. They belong to (2, 2) and to (4, 4)"
        " (p. 9; Fig. 4, p. 10).",
    ),
    Step(
        minutes=16,
        title="Discussion with the panel",
        show="Four of the prompts, the fourth among them; before it slide “For a head trained with softmax the kernel"
        " is too flat”.",
        ask="First guess, then open the panel: what will you see?",
        stuck="Silence after the question. Ask for a show of hands between two answers, then open the state and look"
        " together.",
    ),
    Step(
        minutes=8,
        title="The record: what we believe now",
        show="Slide “What to believe now, sentence by sentence”; the record, claim by claim.",
        ask="Was the evidence convincing for this claim, and why?",
        stuck="The group wants to vote on the paper. Vote on claims: begin with Lemma 10, Theorem 2 and the trained"
        " tables, and write a reason beside each.",
    ),
)

# -- the discussion ---------------------------------------------------------------------------------------------------

PROMPTS = (
    Prompt(
        ask="From three planes to eight: does RACE do its task better, or does it get another task?",
        scene=Scene(
            says="Eight planes, four tables: compare the framed pair in *Angular* and in *RACE*, then move *planes*"
            " and *tables*.",
            settings=("planes=8", "tables=4", "view=race", PAIR),
        ),
        place="Sec. 3.2, p. 7; Eq. 4, p. 6",
        answer="""Another task. The pair's target moves from 0.080 at three planes to 0.150 at eight. With four tables
RACE gives it 0.205; with 16 tables 0.135. So planes set what is estimated, tables how well (pp. 4, 7). Softmax stays
at 0.037.""",
        figures=("angular", "race"),
    ),
    Prompt(
        ask="At angle 0 the estimate is too small. Which dial closes the gap: tables or sharpness?",
        scene=Scene(
            says="Sharpness 1, four tables: the dashed mean begins at 0.259 where the target is 1; guess, then move"
            " one dial.",
            settings=("tables=4", "sharpness=1", "view=band", "pin=angle.0"),
        ),
        place="Theorem 2, p. 8; Lemma 8, pp. 21-23",
        answer="""Sharpness. With 16 tables the band is half as wide and the mean still 0.259. At sharpness 4 it is
0.723, at 16 it is 0.927, at 32 it is 0.963. The gap is the bias, the band is the noise.""",
        figures=("band",),
    ),
    Prompt(
        ask="Move the sharpness from end to end. Which point of the dashed mean never moves, and why?",
        scene=Scene(
            says="Pin a point of the dashed mean, and watch its number while *sharpness* moves.",
            settings=("planes=3", "sharpness=4", "view=band"),
        ),
        place="Eq. 4, p. 6; the mean: this project, from p. 22",
        answer=r"""The right angle: 0.125 = $(1/2)^3$ at every sharpness. There the two projections are independent and
their soft bits are odd functions, so each plane contributes exactly 1/2, hard or soft. At angle 0 the mean goes from
0.125 to 0.963 over the same range.""",
        figures=("band",),
    ),
    Prompt(
        ask="A trained head, eight planes: RACE lights up the line of code, as softmax does. Is that good news?",
        scene=Scene(
            says="Compare *Softmax*, *Angular* and *RACE* on tokens 25 to 44, then set *seed* to 7.",
            settings=(*CODE, "planes=8", "seed=0", "view=race"),
        ),
        place="This project; the kernel: Eq. 4, p. 6",
        answer="""No. Angular attention, the target, keeps 0.38 of the attention inside the line; RACE 0.80 with seed 0
and 0.13 with seed 7. So it is an accident of the planes. The output error says so too: 0.064 and 0.068, where three
planes (seed 0) have 0.018. With $2^8$ buckets, 64 tokens hardly ever meet, and 16 tables do not average that.""",
        figures=("softmax", "angular", "race", "error"),
    ),
    Prompt(
        ask="How sharp must buckets be for four planes until the dot leaves both regions of Lemma 10? And for two,"
        " and one?",
        scene=Scene(
            says="Four planes, sharpness 1: the dot lies in the dark region.",
            settings=("planes=4", "sharpness=1", "view=lemma"),
        ),
        place="Lemma 10, p. 24; the regions: this project",
        answer="""2.647 for four planes, 1.388 for two, and no region for one: its score is never below one half there.
The score is a product of one factor a plane, so each further plane must be sharper for the product to stay above one
half. The regions are for identical vectors; outside of them nothing is proved.""",
        figures=("lemma",),
    ),
    Prompt(
        ask="At these dials Lemma 10 fails for identical vectors. These tokens are different: is their output right?",
        scene=Scene(
            says="Two planes, sharpness 0.1: look at *Output error*, then at *Angular* and *RACE* beside it.",
            settings=("planes=2", "tables=16", "sharpness=0.1", "view=error", "pin=tables.6"),
        ),
        place="Lemma 10, p. 24; Theorem 2, p. 8",
        answer="""No: the error is 0.038 with 1 table and with 64, because RACE is flat where the target has blocks. At
sharpness 4 and 16 tables it is 0.017. And for these tokens the lemma's conclusion holds: no row sum is off by more
than 0.117 $N$, and 0.145 $N$ is allowed. For identical vectors it is the other way round, the lemma fails and the
output is exactly right (reader's analysis). So the lemma is no measure of the output.""",
        figures=("angular", "race", "error"),
    ),
    Prompt(
        ask="With a mask, which weight of the first row is forced, and what has left the chart of the output error?",
        scene=Scene(
            says="Causal: point at the first row of each matrix; then look for a dashed line in *Output error*.",
            settings=("causal=true", "view=race"),
        ),
        place="Algorithm 2, p. 27; Theorem 2, p. 8",
        answer="""The weight 1, in all three matrices: the token writes before it reads, so it meets itself alone. The
dashed rate of Theorem 2 is gone, since the theorem says nothing about the causal form (p. 8). The measured error is
there as before, 0.034 with four tables.""",
        figures=("softmax", "angular", "race", "error"),
    ),
)

# -- what stays -------------------------------------------------------------------------------------------------------

HANDOUT = (
    (
        "Words and letters",
        r"""Which word of `attnlab.race.attention` and its reference is which letter of the paper?

| word | letter | meaning |
|---|---|---|
| `tokens` | $N$ | length of the sequence |
| `head_width` | $d$ | width of a head |
| `planes` | $P$, $W$ | random planes of a table; also the power that is estimated |
| `tables` | $L$ | independent repetitions, with planes of their own |
| `buckets` | $R=2^P$ | corners $v_r\in\{-1,1\}^P$ of a table |
| `sharpness` | $\beta$ | inverse temperature of the soft buckets, learned (p. 8) |
| `kappa`, `power` | $\kappa$, $\gamma$ | angular kernel; its power, $\gamma=P$ in RACE |
| `scores` | $S$, $\hat S$ | kernel matrix; its estimate |
| `phi_q`, `phi_k` | $\phi$ | a token's share in each bucket |
| `mass`, `content` | $A$, $B$ | what keys leave in a bucket: shares; shares times values |""",
    ),
    (
        "Equations",
        r"""$$
\kappa=1-\frac1\pi\arccos\frac{q\cdot k}{\lVert q\rVert\,\lVert k\rVert},\qquad S_{ij}=\kappa(q_i,k_j)^{P}
\qquad\text{(Eqs. 3-4, p. 6)}
$$

$$
u_t=\tanh(w_t\cdot x),\qquad \phi_r=\frac{\exp(\beta\,u\cdot v_r)}{\sum_{r'}\exp(\beta\,u\cdot v_{r'})}
=\prod_t\sigma(2\beta\,u_t\,v_{r,t})\qquad\text{(pp. 5, 22)}
$$

$$
A=\sum_j\phi(k_j),\qquad B=\sum_j\phi(k_j)V_j^{\top},\qquad
\hat O_i=\frac{\sum_l\phi(q_i)\cdot B}{\sum_l\phi(q_i)\cdot A}\qquad\text{(Algorithm 1, p. 5)}
$$

Causal: the sums run over $j\le i$ (Algorithm 2, p. 27). Cost: $O(LN(dP+PR+Rd))$ (p. 7).""",
    ),
    (
        "Bias and noise",
        r"""For unit $q$ and $k$ both have exact values, with no sampling (project): $\mathbb{E}\hat S=\mathbb{E}[X]^P$
and $\mathrm{Var}\,\hat S=(\mathbb{E}[X^2]^P-\mathbb{E}[X]^{2P})/L$. Here $X=\frac12(1+a(g_1)a(g_2))$,
$a(g)=\tanh(\beta\tanh g)$, and $g_1,g_2$ are standard normal with the cosine as correlation.

Tables divide the variance; they do not touch the bias. At a right angle the bias is 0 at every sharpness. At angle 0,
with three planes, the mean is 0.259, 0.723 and 0.927 at sharpness 1, 4 and 16, where 1 is wanted.""",
    ),
    (
        "The mechanism in six lines",
        """1. Draw $L$ tables of $P$ Gaussian planes, before any token is seen (Algorithm 1, p. 5).
2. Project a token on the planes of a table and take tanh: $P$ soft sides.
3. Softmax over the $2^P$ corners: the token's share in each bucket, 1 in all.
4. Every key adds its shares to the masses, and its shares times its value to the contents.
5. Every query takes its shares of the contents and of the masses, summed over all tables.
6. Divide once. With a mask, a token does 4 and then 5 and 6 before the next one comes (p. 27).""",
    ),
    (
        "Proved, measured, refuted",
        r"""What stands on which page, and what became of it? *Reader* and *project* mark what is not the paper's.

| sentence | page | what we know |
|---|---|---|
| same bucket with probability $\kappa^P$ | 4, 7 | holds |
| bias at most of order $P/\beta$ | 19-23 | holds; attained at 0, $1/\beta^2$ between 0 and $\pi$ (project) |
| output error, Theorem 2 | 8 | holds under the conditions of pp. 17, 26, 27; with its constant (project) |
| the same for the causal form | 8 | open, as the authors say |
| row sums, Lemma 10 | 24 | refuted (reader); holds with a condition on the bias (reader) |
| Fig. 7 is Algorithm 1 | 28 | refuted: 142/33 is not 86/19 (reader) |
| one $L$ for all $N$ | 7-8, 27 | refuted: $L\ge\log(2N/\delta)$ |
| rank without a mask | 7 | at most $LR$ (reader); $L(2^P-1)+1$ (project) |
| perplexity 20.9, softmax 20.9 | 9 | measured, WikiText-103, (4, 4) |
| 584 s an epoch, softmax 1,645 s | 9 | measured, Arxiv 64K, (3, 3): 2.82× |
| 12M tokens, GPU; 75M, CPU | 10 | timed on one layer; 12M at (2, 2) |
| 3.5× longer; 33M on a CPU under 10 s | 11 | do not fit the figures of pp. 10 and 17 (reader) |
| a larger budget is never worse | 9, 16 | refuted: 43.5 % at (3, 3), 40.3 % at (4, 4) (reader) |
| the kernel in nine trained heads | 6 | too flat: nearest at powers of 16 to 32 (project) |""",
    ),
    (
        "Where to run what",
        """What to run, to see what?

| to see | run |
|---|---|
| this session's files | `attnlab kit race FOLDER` |
| the panel in a file | `attnlab export race race.html` |
| every verdict, or one | `attnlab verify race`, `attnlab verify race.lemma10` |
| one query by hand, then the panel | notebook `01_race_buckets` |
| rivals on real heads | notebook `06_real_heads` |
| exercises | `attnlab exercises race`, notebook `10_exercises_race` |
| proofs | the page *RACE: proofs* of the documentation |""",
    ),
)

SHOWN = {
    "race.kernel-values": "01_race_buckets: Three objects, never one for another",
    "race.bias-variance": "01_race_buckets: What the estimate is worth, without simulating anything",
    "race.causal-state": "01_race_buckets: The same operator, faster",
    "race.denominator": "10_exercises_race: A lemma that forgets the bias",
    "race.lemma10": "01_race_buckets: A lemma that fails",
    "race.lemma10-output": "01_race_buckets: A lemma that fails",
    "race.global-ratio": "05_claims: One refutation of RACE, by hand",
    "race.figure7": "05_claims: One refutation of RACE, by hand",
}

SESSION = Session(
    paper="race",
    title="RACE Attention: A Strictly Linear-Time Attention Layer for Training on Outrageously Large Contexts",
    arxiv="2510.04008v5",
    question=QUESTION,
    notebook="01_race_buckets",
    checked="05_claims: RACE",
    short=SHORT,
    preread=PREREAD,
    hour=HOUR,
    long=LONG,
    prompts=PROMPTS,
    slides=SLIDES,
    handout=HANDOUT,
    shown=SHOWN,
)
