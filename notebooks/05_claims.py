# %% [markdown]
# # Read the verdicts
#
# Every claim of a paper that can be checked on a laptop is an object here: the sentence, its page, the verdict we
# recorded, and a check that can fail. The verdict is about the sentence as it stands: a false statement of a paper is
# written as the paper states it and *refuted*; its repair is a claim of its own that *holds*.
#
# *You will* run all checks of RACE (arXiv:2510.04008v5), see how strong each evidence is, and take one apart. In a
# terminal the same is `attnlab verify`.

# %%
from collections import Counter
from fractions import Fraction

from attnlab import claim
from attnlab.race.claims import CLAIMS

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
ledger = claim.run(CLAIMS)
ledger

# %%
for (who, verdict), number in sorted(Counter((record["said_by"], record["observed"]) for record in ledger).items()):
    print(f"{number:>2} {verdict:<11} said by {who}")

assert all(record["agrees"] for record in ledger)

# %% [markdown]
# ## One refutation, by hand
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
# ## On your own
#
# - Pick a claim that *holds* and look at its check in `attnlab/race/claims.py`: which formula would you change to make
#   it fail? `tests/race/test_claims.py` does that for every one of them.
# - Which of the refuted sentences would matter to somebody who uses RACE, and which only to somebody who cites it?
