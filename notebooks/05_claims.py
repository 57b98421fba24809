# %% [markdown]
# # Read the verdicts
#
# Every claim of a paper that can be checked on a laptop is an object here: the sentence, its page, the verdict we
# recorded, and a check that can fail. The verdict is about the sentence as it stands: a false statement of a paper is
# written as the paper states it and *refuted*; its repair is a claim of its own that *holds*.
#
# *You will* run all checks of RACE (arXiv:2510.04008v5), of residual linear attention, RLA and RDN
# (arXiv:2509.25223v1), of HashAttention (arXiv:2412.14468v2), and of LRKV (arXiv:2601.11471v3), see how strong each
# evidence is, and take one of each apart. In a terminal the same is `attnlab verify`.

# %%
from collections import Counter
from fractions import Fraction

from attnlab import claim
from attnlab.hashattention import rational
from attnlab.hashattention.claims import CLAIMS as HASH
from attnlab.lrkv import rational as turning
from attnlab.lrkv.claims import CLAIMS as LRKV
from attnlab.race.claims import CLAIMS as RACE
from attnlab.residual.claims import CLAIMS as RESIDUAL

# %% [markdown]
# ## RACE
#
# Look for the verdict, then for who says the sentence, then for the evidence. *exact* is rational arithmetic,
# *certified* an enclosure by ball arithmetic, *identity* agreement to a stated relative error over random shapes,
# *statistical* an interval at a stated confidence. A sentence for all N, P or angles is checked at the numbers that its
# evidence names; the proof for all of them is in the documentation (*RACE: proofs*).
#
# *The reader* is the author of the reading notes that this project began from. A sentence that the reader or this
# project writes down only to deny it is a natural guess, and counts against nobody.

# %%
race = claim.run(RACE)
race

# %% [markdown]
# ## RLA and RDN
#
# The same columns. Look for two kinds of refutation: printed numbers that do not say what the text says
# (`rla.table4-text`), and operators that are nearly the paper's (`rla.old-state`, `rla.gdn-twice`).

# %%
residual = claim.run(RESIDUAL)
residual

# %% [markdown]
# ## HashAttention
#
# Look for what was measured on real heads (`hash.learned-beats-random`, `hash.static-baseline`), and for what stands
# beside it: choices that never look at the query.

# %%
hashed = claim.run(HASH)
hashed

# %% [markdown]
# ## LRKV
#
# Look for `lrkv.rope`, refuted by one column and a quarter turn, and for `lrkv.rope-iff`, which says what does pass.

# %%
lrkv = claim.run(LRKV)
lrkv

# %% [markdown]
# ## Who is right, and who is not
#
# The four papers together, by who says the sentence. Every observed verdict is the recorded one.

# %%
everything = race + residual + hashed + lrkv
for (who, verdict), number in sorted(Counter((record["said_by"], record["observed"]) for record in everything).items()):
    print(f"{number:>2} {verdict:<11} said by {who}")

assert all(record["agrees"] for record in everything)

# %% [markdown]
# ## One refutation of RACE, by hand
#
# Fig. 7 (p. 28) draws a mean inside each bucket, then a mix of the means. Algorithm 1 (p. 5) takes one ratio at the
# end. Two keys with values 2 and 10, shared among two buckets, tell them apart in exact fractions.

# %%
phi_k = [[Fraction(8, 10), Fraction(2, 10)], [Fraction(1, 10), Fraction(9, 10)]]
phi_q, value = [Fraction(3, 4), Fraction(1, 4)], [2, 10]

mass = [sum(phi_k[j][r] for j in (0, 1)) for r in (0, 1)]
content = [sum(phi_k[j][r] * value[j] for j in (0, 1)) for r in (0, 1)]
one_ratio = sum(p * b for p, b in zip(phi_q, content, strict=True)) / sum(
    p * a for p, a in zip(phi_q, mass, strict=True)
)
mix_of_means = sum(p * b / a for p, b, a in zip(phi_q, content, mass, strict=True))
print("Algorithm 1:", one_ratio, "  Fig. 7:", mix_of_means)

assert (one_ratio, mix_of_means) == (Fraction(86, 19), Fraction(142, 33))

# %% [markdown]
# ## One refutation of RDN, by hand
#
# RDN takes the error of a value from the old memory S, before it decays (p. 5). A gated delta write has another error
# at hand: that of the decayed memory. Two tokens of width 1 with keys and queries 1, values 1/2 and 1, and all gates
# 1/2 tell the two apart. Look at the last output.

# %%
half, out = Fraction(1, 2), {}
for name, decay in (("old memory", 1), ("decayed memory", half)):
    S = R = Fraction(0)
    for v in (half, Fraction(1)):
        r = v - decay * S  # within the clip of 1
        R = half * R + half * (r - half * R)
        out[name] = half * S + half * R
        S = half * S + half * (v - half * S)
print(out)

assert out == {"old memory": Fraction(11, 32), "decayed memory": Fraction(3, 8)}

# %% [markdown]
# ## One refutation of HashAttention, and another
#
# Section 4.3 (p. 5) lifts keys to one length M, and the query to [q, 1, 1], so that cosines rank as products do. Its
# last 1 adds each key's new coordinate to the product. Look for the pair whose order turns. Each seed finds another.

# %%
for example in (rational.STORED["lift"][1], rational.find("lift", seed=1)):
    print(f"q = {example.q}, keys {', '.join(map(str, example.keys))}, M = {example.longest}")
    print("   q k:   ", *example.products(), "   lifted with 1:", *example.lifted())

    assert example.products()[0] < example.products()[1]
    assert example.lifted()[0] > example.lifted()[1]
    assert example.lifted(last=0) == example.products()

# %% [markdown]
# ## One refutation of LRKV, and what holds instead
#
# Factored decoding under full RoPE would need P B = B c: a turned factor that is the factor, times a number. Look at
# the first factor of all, then count the spaces of four dimensions that pass.

# %%
print(turning.QUARTER_TURN.factor.ravel(), "turns to", turning.QUARTER_TURN.moved().ravel())
turned = turning.rotation(turning.CIRCLE[:2])
passing = [
    basis for r in range(5) for basis in turning.subspaces(4, r, (-1, 0, 1)) if turning.Turned(basis, turned).passes()
]
print(len(passing), "pass, of dimensions", *(basis.shape[1] for basis in passing))

assert not turning.QUARTER_TURN.passes()
assert [basis.shape[1] for basis in passing] == [0, 2, 2, 4]

# %% [markdown]
# ## On your own
#
# - Pick a claim that *holds* and look at its check in the mechanism's `claims.py`: which formula would you change to
#   make it fail? `test_claims.py` in the mechanism's folder of `tests` does that for every one of them.
# - `rational.find(kind, seed)` has five kinds of counterexample, `rational.KINDS`. Which of them would a reader of the
#   paper have missed?
# - At which retention do the two outputs of the last cell agree, whatever the values are?
# - Which of the refuted sentences would matter to somebody who uses a method, and which only to somebody who cites it?
