# %% [markdown]
# # Turn a cache in factors: low-rank keys under RoPE
#
# *Low-Rank Key Value Attention*, arXiv:2601.11471v3. Pages below are PDF pages of that version.
#
# *You will* see a rotation leave a factor in whole numbers, search every small space for one that stays, drag a factor
# out of its plane and watch what leaves, repair it in seven ways to the last digit, and recompute the paper's tables.
# *You need* NumPy; the fast implementations join in where they are installed.

# %%
from fractions import Fraction

import numpy as np

from attnlab import parity
from attnlab.lrkv import STILL, accounting, attention, diversity, rational, reference, rope, rotary, view
from attnlab.lrkv.params import LrkvParams
from attnlab.lrkv.widget import LrkvPanel

# %% [markdown]
# ## A cache in factors
#
# All heads share keys and values, and each head adds what a few **latents** of its own say: K_h = K_s + R_h B_hᵀ
# (Eqs. 4-5, p. 3). B_h is a weight, so the cache holds only K_s and R_h; and nothing needs K_h itself, for
# q K_hᵀ = q K_sᵀ + (q B_h) R_hᵀ (Eq. 6, p. 4). Two tokens, one head, two coordinates, one latent:

# %%
shared = np.array([[1, 2], [3, -1]])
latent, B = np.array([[2], [-3]]), np.array([[1], [0]])
q = np.array([2, 5])
whole = (shared + latent @ B.T) @ q
factored = shared @ q + latent @ (B.T @ q)
print("keys made whole:", whole, " in factors:", factored)
assert np.array_equal(whole, factored)

# %% [markdown]
# ## A quarter turn
#
# RoPE turns a key by its position before a query meets it. A rotation distributes over a sum: P (k_s + B z) =
# P k_s + P B z. The paper says that factored decoding goes on as before (Sec. 3, p. 4). For that, P B z has to be
# B times *something* that is made of z alone. Here it is not: B spans the first coordinate, a quarter turn takes it to
# the second, and no number c gives B c = P B.

# %%
example = rational.QUARTER_TURN
print("B =", *map(str, example.factor.ravel()), "  P B =", *map(str, example.moved().ravel()))
rows, pivots = rational.reduced(np.concatenate([example.factor, example.moved()], axis=1))
print("B c = P B asks of the second coordinate that 0 c =", rows[1, 1])

assert rational.latent_map(example.factor, example.rotation) is None
assert pivots == [0, 1]  # P B is independent of B

# %% [markdown]
# ## What a rotation passes through
#
# **Theorem** (this project; proof on the paper's page). Let every plane turn by an angle of its own, none of them 0 or
# a half turn and no two equal up to sign. Then P B = B P̃ has a solution P̃ exactly where the columns of B span a **sum
# of whole planes**. Do not believe it: here is every space in four dimensions that has a basis of small numbers, turned
# by the angles with (cos, sin) = (3/5, 4/5) and (5/13, 12/13), each decided without rounding.

# %%
turned = rational.rotation([(Fraction(3, 5), Fraction(4, 5)), (Fraction(5, 13), Fraction(12, 13))])
found = {0: 0, 1: 0, 2: 0, 3: 0, 4: 0}
for dimension in found:
    for basis in rational.subspaces(4, dimension, (0, 1, -1)):
        passes = rational.Turned(basis, turned).passes()
        found[dimension] += passes
        assert passes == rational.is_whole_planes(basis, rational.planes(2))
print("spaces that pass, by dimension:", found)

assert found == {0: 1, 1: 0, 2: 2, 3: 0, 4: 1}  # none, one of two planes, both

# %% [markdown]
# Of odd dimension there is none: with an odd rank no latents can turn at all, and the paper's ranks 51 and 55 (Table 7,
# p. 24) are odd.
#
# ## How much leaves
#
# Take a plane i that leans towards a plane j by an angle φ. After t positions the share
# |sin 2φ| |sin((θᵢ − θⱼ) t/2)| of it has left its own span. One degree of lean is enough for three percent.

# %%
width, i, j, t = 32, 0, 7, np.arange(0, 200)
for degrees in (0, 1, 10, 45):
    B = rotary.mixed_factor(width, i, j, np.radians(degrees))
    escape = rotary.escape(B, rope(width), t)
    law = rotary.angle_law(rope(width), i, j, np.radians(degrees), t)
    print(f"lean {degrees:>2} degrees: at most {escape.max():.3f} leaves, law off by {np.abs(escape - law).max():.0e}")
    assert np.allclose(escape, law, rtol=0, atol=1e-12)

# %% [markdown]
# ## Move it
#
# Drag the dot *B* out of its plane; drag elsewhere to turn the picture. On the left are a head's logits by the chosen
# repair against those of whole keys: choose another *repair*, and the error goes to the last digit or stays. The lower
# row is about what it is for: bytes, and heads that differ.

# %%
panel = LrkvPanel()
panel

# %% [markdown]
# ## Seven repairs
#
# Each option brings positions into a cache in factors; the last four are plausible and wrong. The error is that of one
# head's logits against keys made whole and then turned, in units of their size.

# %%
error = {}
for option, about in rotary.OPTIONS.items():
    out, size = view.compute(LrkvParams(option=option))["here"]
    error[option] = out / size
    print(f"{option:<17} {error[option]:7.1e}  {about.says}")
    assert (error[option] < 1e-14) == about.exact

# %% [markdown]
# *still*, *aligned*, *tied* and *partial* cost nothing at reading, but each gives something up: positions in the
# residual, the choice of the span, most of the frequencies, half of the turning coordinates. *expand* and *query_side*
# take any factor, and pay with arithmetic. Frequency-tied RoPE is this project's: where planes share a frequency, a
# factor that is complex-linear among them passes, so that all rows of B are used.

# %%
whole, tied = rotary.case("aligned", heads=1, width=32, rank=8), rotary.case("tied", heads=1, width=32, rank=8)
rows = [int(np.any(case.factor[0] != 0, axis=1).sum()) for case in (whole, tied)]
print(f"coordinates that the residual reaches at rank 8: whole planes {rows[0]}, tied frequencies {rows[1]}")
frequencies = [len(np.unique(case.rope.frequency)) for case in (whole, tied)]
print(f"different frequencies: {frequencies[0]} and {frequencies[1]}")
assert (rows, frequencies) == ([8, 32], [16, 4])

# %% [markdown]
# And the price of a factor that does not pass, at the width of the paper's models:

# %%
price = [accounting.flop("lrkv", heads=1, head_width=128, rank=32, expand=expand) for expand in (False, True)]
print(f"keys expanded as they are read: {price[1] / price[0]:.0f} times the operations of factored ones, at rank 32")
assert price[1] > 10 * price[0]

# %% [markdown]
# At the door, `rope` and `latent_rope` turn a cache that was kept unturned, as it is read; `rope` alone expands. Both
# are the same attention where the factor consists of whole planes.

# %%
drawn = LrkvParams(option="aligned").inputs()
case, places = rotary.case("aligned", heads=6, width=32, rank=12), np.arange(24.0)
given = (reference.turn(drawn.q, case.rope, places), *drawn[1:5], case.factor, drawn.v_factor)
by_latents = attention(*given, rope=case.rope, latent_rope=case.latent_rope, positions=places)
expanded = attention(*given, rope=case.rope, positions=places)
print(f"turned latents against expanded keys: {np.abs(by_latents - expanded).max():.0e}")
assert np.allclose(by_latents, expanded, rtol=0, atol=1e-12)

# %% [markdown]
# Left unturned, the same latents are another attention, which no error message tells:

# %%
still = attention(*given, rope=case.rope, latent_rope=STILL, positions=places)
print(f"unturned latents against expanded keys: {np.abs(still - expanded).max():.1f}")
assert np.abs(still - expanded).max() > 0.1

# %% [markdown]
# ## A norm after the sum
#
# A second thing that does not distribute: the RMS norm of a sum (the paper norms after its projections, p. 9). In whole
# numbers: (7, 1) has rms 5, (−6, 6) has 6, and their sum (1, 7) has 5.

# %%
one, two = rational.fractions(np.array([7, 1])), rational.fractions(np.array([-6, 6]))
print("norm of the sum  ", *map(str, rational.rms_norm(one + two)))
print("sum of the norms ", *map(str, rational.rms_norm(one) + rational.rms_norm(two)))
assert list(rational.rms_norm(one + two)) == [Fraction(1, 5), Fraction(7, 5)]
assert list(rational.rms_norm(one) + rational.rms_norm(two)) == [Fraction(2, 5), Fraction(6, 5)]

# %% [markdown]
# Yet a norm only divides by one number. Cache that number beside the latents, one for each token and head, and let it
# multiply the logit: `k_scale`. It does not mind RoPE either, since a rotation keeps lengths.

# %%
keys = reference.expand(drawn.k_shared, drawn.k_latent, case.factor)
rms = np.sqrt(np.mean(keys**2, axis=-1))  # [1, n, H]
scaled = attention(*given, k_scale=1 / rms, rope=case.rope, latent_rope=case.latent_rope, positions=places)
normed = reference.turn(keys / rms[..., None], case.rope, places)
values = reference.expand(drawn.v_shared, drawn.v_latent, drawn.v_factor)
exact = attention(given[0], normed, values)  # every head its own keys: MHA
print(f"normed keys against one cached number: {np.abs(scaled - exact).max():.0e}")
assert np.allclose(scaled, exact, rtol=0, atol=1e-12)

# %% [markdown]
# ## What a cache holds
#
# The ratio to MHA is 1/H + r/d (Eq. 9, p. 4): r/d is what heads keep of their own, and 1/H what they share. The four
# models of Table 7 (p. 24), recomputed; beside them what the paper prints:

# %%
for row in accounting.CONFIGURATIONS:
    printed = row.printed or "–"
    print(f"{row.label:<5} H = {row.heads:<2} r = {row.rank}   {100 * float(row.ratio):.2f} %   printed {printed}")
    assert row.ratio == Fraction(1, row.heads) + Fraction(row.rank, 128)
    assert f"{100 * float(row.ratio):.2f}" == {6: "52.60", 12: "48.18", 18: "48.52", 32: "45.31"}[row.heads]

# %% [markdown]
# Table 12 (p. 28) prints the same percentages beside megabytes. Divide the megabytes, and it is another rank:

# %%
for row in accounting.TABLE_12:
    actual, at_64 = Fraction(row.lrkv, row.mha), accounting.ratio("lrkv", heads=row.heads, head_width=128, rank=64)
    print(f"{row.label:<5} {row.lrkv} of {row.mha} MB is {100 * float(actual):.3f} %, printed {row.printed} %")
    assert actual == at_64  # the ratio of r = 64, which is not the rank of the models above
    assert abs(100 * float(actual) - row.printed) > 7

# %% [markdown]
# And fewer bytes kept are fewer bytes moved only if what is shared is read once. A kernel with one program for each
# head reads K_s and V_s H times, and moves **more** than MHA: 1 + r/d.

# %%
sizes = {"heads": 32, "head_width": 128, "rank": 54, "bytes_each": 2}
mha = accounting.traffic("mha", heads=32, head_width=128, bytes_each=2)
once, apart = (accounting.traffic("lrkv", **sizes, program_a_head=each) for each in (False, True))
print(f"bytes a token: MHA {mha}, LRKV {once}, one program a head {apart}")
assert once < mha < apart
assert Fraction(apart, mha) == 1 + Fraction(54, 128)

# %% [markdown]
# Nor is there one winner at every size in Table 8 (p. 25): MLA of width 384 keeps less than LRKV of rank 32, and its
# loss is lower.

# %%
swept = {(row.scheme, row.size): row for row in accounting.TABLE_8}
mla, lrkv = swept["mla", 384], swept["lrkv", 32]
print(*(f"{row.scheme} {row.size}: {row.printed} % of MHA, loss {row.cross_entropy}" for row in (mla, lrkv)), sep="\n")
assert mla.printed < lrkv.printed
assert mla.cross_entropy < lrkv.cross_entropy

# %% [markdown]
# ## How different heads are
#
# The paper compares heads by A_h = W_Q W_Kᵀ: the effective rank of their Gram matrix after the mean is taken away
# (Sec. 4.3, pp. 7-9). The mean takes one dimension along: heads at right angles to each other, all as different as can
# be, come to H before and to H − 1 after. So 83.33 % is the most that six heads can have in Table 3 (p. 16), and 82.4 %
# is nearly all of it.

# %%
for heads in (6, 18):
    own = np.eye(heads)[:, :, None]  # head h asks, and answers, along a direction of its own
    gram = diversity.gram(own, own)
    before, after = diversity.effective_rank(gram), diversity.effective_rank(diversity.centred(gram))
    print(f"H = {heads}: {before:.1f} before, {after:.1f} after, {100 * after / heads:.2f} % of H")
    assert np.isclose(before, heads)
    assert np.isclose(after, diversity.ceiling(heads))

assert all(100 * 5 / 6 > row.heads_6 and 100 * 17 / 18 > row.heads_18 for row in diversity.TABLE_3)

# %% [markdown]
# Centring forgets a shared part altogether: in the panel, move *shared part*, and the lower number stays where it is
# until nothing else is left. And MQA, whose heads have the same keys, is not one head: queries differ.

# %%
own, same = np.eye(7)[:6, :, None], np.tile(np.eye(7)[None, :, 6:], (6, 1, 1))
mqa = diversity.gram(own, same)
print(f"MQA with queries at right angles: {diversity.effective_rank(mqa):.1f} of 6")
assert np.isclose(diversity.effective_rank(mqa), 6)

# %% [markdown]
# ## The same operator, faster
#
# Every implementation that can run here, with factors of whole planes turned as they are read, against the float64
# reference. The tolerance is computed. Without a GPU the Triton kernel is interpreted, in a process of its own: its
# numbers are compared, and it has no speed.

# %%
arguments, terms = view.verification(LrkvParams(option="aligned", tokens=16))
for report in parity.verify("lrkv", arguments, terms=terms):
    print(
        f"{report.impl:<10}",
        report.why_not or f"{report.device}: error {report.max_rel:.1e} of a row, allowed {report.tolerance:.1e}",
    )
    assert report.ok or report.why_not

# %% [markdown]
# ## On your own
#
# - In the panel, choose *wrong: best map* and *j* = *i* + 1 with a rank of 12. Why is the error small, though the
#   subspace leans? Which planes do its columns touch?
# - *other way round* runs through plane j backwards. Which two planes give the fastest curve then, which the slowest?
# - Set *position* where the curve is 0. What is P_t on the two planes there, and which positions cannot be told apart?
# - Tie frequencies with `rotary.tied(128, 32)`. How many positions does its slowest plane tell apart, and how many that
#   of the usual RoPE?
