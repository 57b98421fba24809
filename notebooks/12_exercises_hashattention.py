# %% [markdown]
# # Exercises: bits that choose the tokens
#
# *HashAttention: Semantic Sparsity for Faster Inference*, arXiv:2412.14468v2. Pages below are PDF pages of that
# version.
#
# *You will* build one step of it, from signs to words, from words to scores, from scores to a set, and attend to the
# set; then count what that step reads, and find keys that a formula of the paper puts in the wrong order. *You need*
# NumPy alone, and about an hour and a half. Each exercise stands for itself.
#
# An exercise is three cells: what is asked, a function to fill in, and its check. A check draws new arrays every time
# and says what is wrong, and where. `hashattention.pack.hint()` gives the next of three hints,
# `hashattention.pack.solution()` shows ours. What you have solved is kept; `attnlab exercises` in a terminal lists it.

# %%
import numpy as np

from attnlab.exercises import hashattention
from attnlab.hashattention import HashParams, rational, view
from attnlab.hashattention.widget import HashPanel

# %% [markdown]
# ## One step to look at
#
# 64 toy tokens with codes of 8 bits. A column of *Codes* is a key, nearest first, and bright where its bits differ from
# the query's: its distance is the number of bright ones. *What is read* has the two first and the four newest tokens
# for every query, and six more. *Distances* shows where these six come from: from the bars left of the dashed line, and
# from the last of these bars only in part. Move *bits*: do such ties go away?

# %%
dials = {"bits": 8, "tokens": 64, "query": 64, "sinks": 2, "window": 4, "budget": 6}
HashPanel(**dials)

# %%
for bits in (8, 16, 32):
    distance = view.compute(HashParams(**dials | {"bits": bits}))["distance"][63, 2:-4]  # without first and newest
    cut = np.sort(distance)[5]
    nearer, level = np.sum(distance < cut), np.sum(distance == cut)
    print(f"{bits:>2} bits: {nearer} keys are nearer than {cut:.0f}, {level} at {cut:.0f}, {6 - nearer} of these read")

    assert nearer < 6 < nearer + level  # more bits, and still a tie at the cut

# %% [markdown]
# ## From signs to words
#
# 32 bits are the paper's standard (pp. 4–8), four bytes a token beside the 512 of a key and a value of width 128. They
# are four bytes only if they are packed: the authors' fast path keeps each code in a word of 64 bits. And everybody
# must agree what a 0 is. Eq. 1 (p. 4) makes it bit 0; in the authors' path for quality it is a third symbol.

# %%
hashattention.pack


# %% tags=["exercise"]
def pack(features):
    """words, uint32 [T, W], of features [T, b]"""
    raise NotImplementedError


# %%
hashattention.pack.check(pack)

# %% [markdown]
# ## From words to scores
#
# Eq. 2 (p. 4): one XOR and one count, for every token of the cache. There is no table in which near codes are looked
# up; the search is a scan of all of them (Sec. 4.1, pp. 4–5). So it has to be done on the words as they are.

# %%
hashattention.score


# %% tags=["exercise"]
def score(query_codes, key_codes):
    """score [T, S], whole numbers, of words [T, W] and [S, W]"""
    raise NotImplementedError


# %%
hashattention.score.check(score)

# %% [markdown]
# ## From scores to a set
#
# The experiments always read the first and the newest 128 tokens, and a budget beside them (pp. 5–7). Scores of b bits
# have only b + 1 values, so a tie at the cut is common, as above. Whoever computes the set again, in another kernel or
# in a test, must find the same one: here the lower index wins.

# %%
hashattention.select


# %% tags=["exercise"]
def select(score, budget, sinks, window):
    """chosen, bool [T, S], by score [T, S]"""
    raise NotImplementedError


# %%
hashattention.select.check(select)

# %% [markdown]
# ## Attention, to the set
#
# Only the choice is approximate; what is chosen enters with its own key and value, and the weights are made to sum to 1
# again (p. 4). Two things can go wrong. A token that is a sink and in the window is counted twice. Or the largest logit
# is taken over all keys, and the set lies so far below it that no weight is left (the authors' later library does so):

# %%
print(f"e^-900 is {np.exp(-900.0)}, and in float32 e^-104 is {np.exp(np.float32(-104))}")

assert np.exp(-900.0) == 0 == np.exp(np.float32(-104))

# %%
hashattention.attend


# %% tags=["exercise"]
def attend(q, k, v, nearest, sinks, window):
    """out [V] of q [K], k [S, K], v [S, V] and the indices nearest [m]"""
    raise NotImplementedError


# %%
hashattention.attend.check(attend)

# %% [markdown]
# ## What is read, and what is kept
#
# "16 times sparser" is a budget of tokens. It is not 16 times less memory: all keys and values stay where they are
# (p. 9). Nor is it 16 times fewer bytes: all codes are read (Sec. 4.1, pp. 4–5), and where query heads share their keys
# and values, each of them chooses for itself. When you have solved it, try 4 heads to a group, width 128, 32 bits, no
# windows and a budget of 1/32 of the tokens: how many times less is read than by dense attention?

# %%
hashattention.bytes_read


# %% tags=["exercise"]
def bytes_read(tokens, budget, sinks, window, width, bits, element_bytes, group):
    """dense, sparse, kept: three whole numbers"""
    raise NotImplementedError


# %%
hashattention.bytes_read.check(bytes_read)

# %% [markdown]
# ## An order that turns around
#
# Why should bits find large products at all? Signs of random projections find small angles. Sec. 4.3 (p. 5) lifts keys
# to one length, so that angles should rank as products do. With the lift as it is printed they need not. Here is an
# example of keys of one number, in exact fractions: the first is the smaller one, and the lift puts it ahead.

# %%
example = rational.STORED["lift"][1]
print(f"q = {example.q}, keys {example.keys[0]} and {example.keys[1]}, M = {example.longest}")
print("q k               ", *example.products())
print("with [q, 1], p. 5 ", *example.lifted(1))
print("with [q, 0]       ", *example.lifted(0))

assert example.products()[0] < example.products()[1]
assert example.lifted(1)[0] > example.lifted(1)[1]
assert example.lifted(0) == example.products()

# %% [markdown]
# That query has the length 1. In real heads queries are much longer, and one might hope that what the lift adds is then
# too little to matter. Find out:

# %%
hashattention.lift


# %% tags=["exercise"]
def lift(q, last):
    """keys [2, K] for the query q [K]"""
    raise NotImplementedError


# %%
hashattention.lift.check(lift)

# %% [markdown]
# ## To talk about
#
# - The learned maps of the paper contain no lift. So what does its argument prove about them?
# - Subtract the mean key from every key: which of your keys' orders can that change, by product, by angle?
# - In your set, who should win a tie, the older or the newer token? Nobody has measured it here. How would you?
