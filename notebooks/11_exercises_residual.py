# %% [markdown]
# # Exercises: two memories
#
# *Enhancing Linear Attention with Residual Learning*, arXiv:2509.25223v1. Pages below are PDF pages of that version;
# [02_residual_memory](02_residual_memory.ipynb) introduces the paper.
#
# *You will* write RLA and RDN yourself, write RLA's correction as attention over errors, tell five operators apart by
# their outputs, and find two things that the paper does not say. *You need* NumPy alone.
#
# Fill in a function and run the cell below it: the check draws new arrays each time, and says where the first wrong
# number is. `residual.rla_step.hint()` gives the next of three hints, and `residual.rla_step.solution()` our solution.
# What you solved is kept on this machine; `attnlab exercises` lists it.

# %%
import numpy as np

from attnlab.exercises import residual
from attnlab.residual import ResidualParams, reference, view
from attnlab.residual.widget import ResidualPanel

# %% [markdown]
# ## Look first
#
# S holds values and R what S got wrong (pp. 4-5). Under *Weights* stands how much of each past error an output reads;
# point at a square, and the panel names its factors. That is the second exercise. *Keys that grow alike* shows how far
# S alone and both memories are from the past values, for keys that resemble each other more and more. Why the lines
# cross is the last exercise; the dials stand as it wants them: write 1, one correction for all tokens, no clip.

# %%
ResidualPanel(rule="rla", tokens=12, write=1.0, correction=0.5, target="none")

# %% [markdown]
# ## One token
#
# Listing 1 (p. 15) is RLA, token by token. Three things in it are easily read past: which S the error asks, which S the
# output reads, and how often gamma comes in.

# %%
residual.rla_step


# %% tags=["exercise"]
def rla_step(S, R, q, k, v, alpha, beta, gamma, clip):
    raise NotImplementedError


# %%
residual.rla_step.check(rla_step)

# %% [markdown]
# ## All tokens at once
#
# The same operator without a memory: each output as a sum over past errors. Before you write it, draw the *retention*
# in the panel down to 0 at one place, and see which squares of *Weights* go blank.

# %%
residual.error_weights


# %% tags=["exercise"]
def error_weights(q, k, alpha, gamma):
    raise NotImplementedError


# %%
residual.error_weights.check(error_weights)

# %% [markdown]
# ## The delta rule, and a state that is carried
#
# RDN (p. 5) writes into each memory what that memory lacks. Here is a run to compare yours with by hand: width 1, two
# tokens, q = k = 1, values 1/2 and 1, all gates 1/2, clip 1. The outputs are 1/8 and 11/32. At the second token S is
# wrong by 3/4, and yet R is told 5/8: there are two errors, and they differ.

# %%
ones, halves = np.ones((1, 2, 1, 1)), np.full((1, 2, 1), 1 / 2)
by_hand = reference.trace(ones, ones, ones * [[[1 / 2]], [[1]]], halves, halves, halves, rule="rdn")
print("outputs", by_hand.out.ravel(), " r", by_hand.residual.ravel(), " R", by_hand.R.ravel())

assert np.array_equal(by_hand.out.ravel(), [1 / 8, 11 / 32])
assert by_hand.R[0, 1].item() == 1 / 2 * by_hand.R[0, 0].item() + 1 / 2 * 5 / 8

# %%
residual.rdn


# %% tags=["exercise"]
def rdn(q, k, v, alpha, beta, gamma, clip, S, R):
    raise NotImplementedError


# %%
residual.rdn.check(rdn)

# %% [markdown]
# ## Which one is it?
#
# The authors have published no code, and the one public implementation that we know is another operator. An output
# that looks reasonable proves nothing. These four were all found, or lie close at hand; each is wrong in one place.

# %%
residual.which


# %% tags=["exercise"]
def which(q, k, v, alpha, beta, gamma, clip, outs):
    raise NotImplementedError


# %%
residual.which.check(which)

# %% [markdown]
# ## What two memories contain
#
# The paper compares RLA with sGLA, a single memory (Table 2, p. 7). Such a comparison is easier to read where the
# larger method contains the smaller one: what it loses then, it loses by training and not by what it can express. Does
# RLA contain sGLA? Setting gamma to 0 is not enough.

# %%
residual.gates


# %% tags=["exercise"]
def gates(alpha, beta):
    raise NotImplementedError


# %%
residual.gates.check(gates)

# %% [markdown]
# ## Does remembering errors help?
#
# Not proved, by anybody. The paper's argument is by experiment (Tables 2 and 3, p. 7), where most tasks gain and some
# lose. With gates that do not follow the tokens it depends on the keys. For the panel's dials above, five seeds:

# %%
dials = {"rule": "rla", "tokens": 12, "write": 1.0, "correction": 0.5, "target": "none"}
views = [view.compute(ResidualParams(**dials, seed=seed)) for seed in range(5)]
alone, both = (np.mean([found[name] for found in views], axis=0) for name in ("similar_base", "similar_both"))
for n, similarity in enumerate(view.SIMILARITIES):
    print(f"similarity {similarity:.3f}: S alone is off by {alone[n]:.2f}, both by {both[n]:.2f} of a value")

assert both[0] > alone[0]  # keys drawn independently: R does harm
assert np.all(both[3:] < alone[3:])  # keys that resemble each other: R helps

# %%
residual.keys


# %% tags=["exercise"]
def keys(n, K, gamma, helps):
    raise NotImplementedError


# %%
residual.keys.check(keys)

# %% [markdown]
# ## On your own
#
# - Your keys made R help and do harm with one gamma for all tokens. Could a gamma that follows the tokens have avoided
#   the harm? What would it have to know?
# - GDN is sGLA with the delta rule. Try to find it inside RDN as you found sGLA inside RLA. What does gamma have to be
#   in the read, in the write, and in what is subtracted?
# - R costs as much as S. Instead of a second memory one could give S keys of twice the width:
#   [08_associative_recall](08_associative_recall.ipynb) counts what either holds.
