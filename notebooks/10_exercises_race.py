# %% [markdown]
# # Exercises: RACE attention
#
# *RACE Attention: A Strictly Linear-Time Attention Layer for Training on Outrageously Large Contexts*,
# arXiv:2510.04008v5. Pages below are PDF pages of that version. Notebook *01_race_buckets* shows what is asked for
# here.
#
# *You will* write the mechanism in four short functions, then break a lemma and fool a layer of it. *You need* NumPy
# alone.
#
# Each exercise has a cell that shows it, one to fill in, and one that checks. A check draws fresh arrays each time, and
# says which number is wrong, and which mistake gives the same numbers where it is a usual one. `race.features.hint()`
# gives the next of three hints, `race.features.solution()` our own way. What you have solved is kept, and the command
# `attnlab exercises` lists it.

# %%
import numpy as np

from attnlab.exercises import race
from attnlab.race.widget import RacePanel

# %% [markdown]
# ## What you are about to write
#
# Two tables of two planes, so four buckets each, and eight tokens. The buckets show how each key divides itself. Move
# *sharpness*: far to the left all shares are nearly 1/4, far to the right each key has one bucket. Then choose a pair
# in the matrix of RACE, and find its weight again in the buckets that the two have in common.

# %%
RacePanel(tokens=8, head_width=4, planes=2, tables=2, sharpness=2.0, view="buckets")

# %% [markdown]
# ## Shares
#
# All of RACE stands on φ. Sides of planes cannot be differentiated, so each plane says by how much a token lies on one
# side (`tanh`), and a softmax over the corners of the cube turns that into shares of the buckets (Algorithm 1, p. 5).
# The softmax runs over the buckets of one table. It never runs over tokens, and no two tokens need be compared.

# %%
race.features


# %% tags=["exercise"]
def features(x, planes, sharpness):
    raise NotImplementedError


# %%
race.features.check(features)

# %% [markdown]
# ## One ratio
#
# Where does the division stand? Two keys with the shares (0.8, 0.2) and (0.1, 0.9) carry the values 2 and 10, and a
# query has the shares (0.75, 0.25). Algorithm 1 (p. 5) divides at the end. Fig. 7 (p. 28) draws a division inside each
# bucket. They differ in the first decimal place (the example is a reader's).

# %%
phi_k, phi_q, v = np.array([[0.8, 0.2], [0.1, 0.9]]), np.array([0.75, 0.25]), np.array([2.0, 10.0])
mass, content = phi_k.sum(axis=0), v @ phi_k
at_the_end = (phi_q @ content) / (phi_q @ mass)
in_each_bucket = phi_q @ (content / mass)
print(f"mass {mass}, content {content}: {at_the_end:.4f} at the end, {in_each_bucket:.4f} in each bucket")

assert np.isclose(at_the_end, 86 / 19)
assert np.isclose(in_each_bucket, 142 / 33)

# %%
race.attend


# %% tags=["exercise"]
def attend(phi_q, phi_k, v):
    raise NotImplementedError


# %%
race.attend.check(attend)

# %% [markdown]
# ## The same, token by token
#
# A language model may not look ahead. The sums over keys become sums over the keys so far, and a layer that generates
# text need not keep the keys at all: L R (V + 1) numbers carry everything that came before (Algorithm 2, p. 27).

# %%
race.causal


# %% tags=["exercise"]
def causal(phi_q, phi_k, v, mass, content):
    raise NotImplementedError


# %%
race.causal.check(causal)

# %% [markdown]
# ## How many tables?
#
# Theorem 2 (p. 8) bounds the error by a term P/β and a term that falls with L. In the panel above, look at "Estimate Ŝ
# by angle" and move *tables*: the band narrows, and its middle stays where it is. The theorem's two terms say so up to
# constants. Here you have the exact numbers (the integrals behind them are this project's).

# %%
race.tables_needed


# %% tags=["exercise"]
def tables_needed(angle, first, second, planes, error):
    raise NotImplementedError


# %%
race.tables_needed.check(tables_needed)

# %% [markdown]
# ## A lemma that forgets the bias
#
# To divide by row sums, the proof of Theorem 2 wants them to be nearly right. Lemma 10 (p. 24) promises that, given
# enough tables. Its proof lets Ŝ concentrate around S; it concentrates around its own mean. For equal unit vectors and
# small sharpness this breaks the lemma (a reader found it). You will find that no sharpness saves it.
#
# "Where Lemma 10 fails", in the panel, draws the regions for equal vectors; there is none for P = 1. Your angle need
# not be 0. All that you need is a bound which every score obeys, whatever the planes. Here it is for P = 1, with 1,000
# tables of one plane, between a vector and others at all angles:

# %%
sharpness, angle = 1.0, np.linspace(0, np.pi, 181)
circle = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
bits = np.tanh(sharpness * np.tanh(circle @ np.random.default_rng(0).standard_normal((2, 1000))))
scores = (1 + bits[0] * bits) / 2
least, most = (1 - np.tanh(sharpness) ** 2) / 2, (1 + np.tanh(sharpness) ** 2) / 2
print(f"scores from {scores.min():.5f} to {scores.max():.5f}, bounds {least:.5f} and {most:.5f}")

assert least < scores.min() < scores.max() < most

# %%
race.break_lemma10


# %% tags=["exercise"]
def break_lemma10(planes, sharpness, tables, tokens, delta):
    raise NotImplementedError


# %%
race.break_lemma10.check(break_lemma10)

# %% [markdown]
# ## Tokens that know the planes
#
# "With probability at least 1 - δ" is said of the draw of the planes, for tokens that were there before (Theorem 2,
# p. 8). A layer draws its planes once and keeps them. Four tables of four planes in a head of width 64 look in 16
# directions; there are 48 more.

# %%
race.hash_alike


# %% tags=["exercise"]
def hash_alike(planes, sharpness):
    raise NotImplementedError


# %%
race.hash_alike.check(hash_alike)

# %% [markdown]
# ## Further on your own
#
# - Put your `features` and `attend` together: for random q, k, v and planes from `attnlab.race.draw_planes`, the output
#   must be that of `attnlab.race.attention`, which wants axes for batch and head.
# - Run your `causal` in two calls, the second with the state of the first. One call must give the same rows.
# - Your angle breaks Lemma 10. What becomes of the normalised output there? (`race.lemma10-output` in *05_claims*.)
# - In the last exercise, let L P grow up to K. From where on do the planes leave no such pair?
