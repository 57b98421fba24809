# %% [markdown]
# # Remember what was wrong: residual linear attention
#
# *Enhancing Linear Attention with Residual Learning*, arXiv:2509.25223v1. Pages below are PDF pages of that version.
#
# *You will* write two tokens by hand, draw the gates of two memories, see where the second one helps and where it does
# not, tell four operators apart that are nearly the paper's, and count the state that each method is given. *You need*
# NumPy; the fast implementations join in where they are installed.

# %%
import numpy as np

import attnlab
from attnlab import parity
from attnlab.inputs import INPUTS
from attnlab.residual import RULES, ResidualParams, chunked, near_misses, reference, view
from attnlab.residual.widget import ResidualPanel

# %% [markdown]
# ## Two memories, two tokens
#
# Linear attention keeps one matrix S: a token writes its value under its key, and a query reads a mixture of the
# values whose keys it resembles. Keys that are not at right angles interfere. This paper adds a second matrix R of the
# same size, which holds what S got wrong (pp. 4-5):
#
# 1. the **error** of the old memory on the new token, v - k S, clipped to [-c, c];
# 2. R keeps it under the same key, S keeps the value as before;
# 3. the output reads the **old** S and the **new** R, each through its gate.
#
# The first token meets an empty S. All of its value is error, and the clip at 1.5 takes its tip.

# %%
k = np.array([[1.0, 0.0], [0.6, 0.8]])
v = np.array([[2.0, 1.0], [0.0, 1.0]])
write, correction, clip = 0.5, 0.8, 1.5
error = v[0] - k[0] @ np.zeros((2, 2))
R = correction * np.outer(k[0], np.clip(error, -clip, clip))
S = write * np.outer(k[0], v[0])
print("error", error, " kept", np.clip(error, -clip, clip))
print("S recalls", k[0] @ S, "of", v[0])

# %% [markdown]
# The second key lies at cosine 0.6 to the first, so S answers it with 0.6 of what it holds of the first value. That is
# the error's other part: interference. R is written with the error, and the first key, asked again, reads both.

# %%
error = v[1] - k[1] @ S
S_old, R = S, R + correction * np.outer(k[1], np.clip(error, -clip, clip))
S = S + write * np.outer(k[1], v[1])
asked = k[0] @ S_old + correction * (k[0] @ R)
print("error", error, " first value again:", asked, " from S alone:", k[0] @ S)

gates = {"retention": np.ones(1), "write": np.array([write]), "correction": np.array([correction])}
q = np.array([[1.0, 0.0], [1.0, 0.0]])
out = reference.attention(*(x[None, :, None] for x in (q, k, v)), **gates, rule="rla", clip=clip)
assert np.allclose(out[0, 1, 0], asked)
assert np.linalg.norm(asked - v[0]) < np.linalg.norm(k[0] @ S - v[0])

# %% [markdown]
# That was RLA, which adds. **RDN** (p. 5) lets both memories write what they lack instead: not v but v - alpha k S goes
# into S, and not the kept error r but r - alpha k R into R. Without a second memory the same two writes are sGLA (adds,
# forgets by a gate; RetNet forgets by a fixed factor) and Gated DeltaNet (writes what is lacking).

# %% [markdown]
# ## Move it
#
# A stream of key-value pairs; every query asks for the value of an earlier token. Draw over the three **gates** with
# the pointer, or walk over their points with the arrow keys. Point at a row of the weights, and the memories show S and
# R after that token; click, and it stays. *similarity* turns all keys towards one direction. The dashed line is S
# alone: the rule without its second memory.

# %%
panel = ResidualPanel(retention=[1, 1, 1, 0.8, 1, 1, 1, 1])
panel

# %% [markdown]
# ## S alone against S and R
#
# Nothing here is trained: keys are random and gates fixed, so this is what the recurrence does by itself. With additive
# writes and keys that resemble each other, S adds up what it should not, and R takes much of that back. Correct too
# much, and two memories recall worse than one. With delta writes, S already subtracts what it recalls, and little is
# left to gain.

# %%
cases = {
    "RLA, keys alike": {"rule": "rla", "similarity": 0.5},
    "RLA, correction 1": {"rule": "rla", "similarity": 0.5, "correction": 1.0},
    "RDN, keys alike": {"rule": "rdn", "similarity": 0.5},
}
found = {}
for name, dials in cases.items():
    both = [view.compute(ResidualParams(**dials, seed=seed))["recall_here"] for seed in range(5)]
    found[name] = np.mean(both, axis=0)
    print(f"{name:<18} S alone {found[name][0]:.2f}   S and R {found[name][1]:.2f}")

assert found["RLA, keys alike"][1] < 0.8 * found["RLA, keys alike"][0]
assert found["RLA, correction 1"][1] > found["RLA, correction 1"][0]
assert abs(found["RDN, keys alike"][1] / found["RDN, keys alike"][0] - 1) < 0.1

# %% [markdown]
# ## The unrolled sum
#
# Unrolled, an output of RLA is a sum over all past values and all past errors. Error i counts with
# γₜ γᵢ (αᵢ₊₁ ⋯ αₜ) (kᵢ·qₜ); a delta rule changes what is left of each key with every later one. The panel draws these
# weights, and they give the output back.

# %%
for rule in ("rla", "rdn"):
    params = ResidualParams(rule=rule, retention=0.95)
    views, values = view.compute(params), params.inputs().v[0, :, 0]
    sums = views["value_weights"] @ values + views["error_weights"] @ views["kept"]
    print(f"{rule}: largest difference {np.abs(sums - views['out']).max():.1e}")
    assert np.allclose(sums, views["out"], rtol=0, atol=1e-12)

t, i = 20, 5
decay, match = 0.95 ** (t - i), views["key_query"][t, i]
weight = view.compute(ResidualParams(rule="rla", retention=0.95))["error_weights"][t, i]
assert np.isclose(weight, 0.6 * 0.6 * decay * match)

# %% [markdown]
# ## The clip
#
# An error past ±c teaches R no more than c: the derivative of Huber's loss (pp. 13-14). Look at additive writes, whose
# errors grow with every token: without a clip, R is taught all of it. App. B (p. 14) proposes tanh, the smooth version.
# A clip at 0 teaches nothing, and leaves the old S alone, decayed.

# %%
recall_error = {}
for words, dials in {"c = 0": {"clip": 0.0}, "c = 1": {"clip": 1.0}, "no clip": {"target": "none"}}.items():
    seen = view.compute(ResidualParams(rule="rla", similarity=0.6, tokens=32, **dials))
    largest, taught = np.abs(seen["error"]).max(), np.abs(seen["kept"]).max()
    recall_error[words] = seen["recall_here"][1]
    print(f"{words:<8} largest error {largest:.1f}, taught {taught:.1f}, recall error {recall_error[words]:.2f}")
    assert taught == min(largest, dials.get("clip", np.inf))

assert recall_error["c = 1"] < recall_error["c = 0"] < recall_error["no clip"]

# %% [markdown]
# ## Nearly RDN
#
# Four operators differ from the paper's in one place each, and each place is easily read past. On one stored case, by
# how much of the largest output; and where the difference would not be seen.

# %%
for row in near_misses.differences():
    print(f"{row.name:<22} {row.rule}  {row.distance:.2f}   the same where {row.agrees_where}")
    assert row.distance > 1e-2
    assert row.distance_there < 1e-12

# %% [markdown]
# ## At the same budget
#
# Two memories are twice the state of one. The paper's tables compare methods with heads of the same shape (App. C,
# p. 15), so its baselines keep half as many numbers. Give a single memory keys of twice the width instead, and it has
# as many; that is what *same budget* means in the panel. Random keys, fixed gates, five seeds:

# %%
rows = [view.compute(ResidualParams(similarity=0.0, seed=seed)) for seed in range(5)]
wide, narrow = (np.mean([row[name] for row in rows], axis=0) for name in ("budget_wide", "budget_narrow"))
print(f"{'':<10} same key width   same budget")
for n, rule in enumerate(RULES):
    print(f"{rule:<10} {narrow[n]:>14.2f} {wide[n]:>13.2f}")

names = list(RULES)
rdn, gdn = names.index("rdn"), names.index("gdn")
assert abs(narrow[rdn] / narrow[gdn] - 1) < 0.1  # of the same shape about as good
assert wide[gdn] < 0.95 * wide[rdn]  # but with the same state the single memory is ahead

# %% [markdown]
# This is recall of random pairs through gates that nobody trained. What training makes of the two memories is another
# question; [08_associative_recall](08_associative_recall.ipynb) trains models to answer it.

# %% [markdown]
# ## The same operator, faster
#
# Every implementation that can run here, for the dials of the panel above, against the float64 reference. The tolerance
# is computed. Without a GPU the Triton kernel is interpreted, in a process of its own: its numbers are compared, and it
# has no speed.

# %%
case, terms = view.verification(ResidualParams(rule="rdn", tokens=64, retention=[1, 0.9, 1, 0, 1, 0.5, 1, 1]))
for report in parity.verify("residual", case, terms=terms):
    print(
        f"{report.impl:<10}",
        report.why_not or f"{report.device}: error {report.max_rel:.1e} of a row, allowed {report.tolerance:.1e}",
    )
    assert report.ok or report.why_not

# %% [markdown]
# They do not run token by token. A chunk of tokens is a few small matrix products and, for delta rules, two triangular
# systems; the decays inside it are **products**, never exponentials of sums, so that a retention of 0, which forgets
# everything, is exact. `attnlab.residual.chunked` has the formulas to read.

# %%
whole = attnlab.residual.attention(**case)
for chunk in (1, 7, 64):
    far = np.abs(chunked.attention(**case, chunk=chunk) - whole).max()
    print(f"chunks of {chunk:>2}: largest difference {far:.1e}")
    assert far < 1e-12

# %% [markdown]
# And it streams: what a sequence leaves behind is S and R, and one run equals any segmentation of it.

# %%
per_token = ("q", "k", "v", "retention", "write", "correction")
first, state = attnlab.residual.attention(**case | {name: case[name][:, :20] for name in per_token}, return_state=True)
second = attnlab.residual.attention(**case | {name: case[name][:, 20:] for name in per_token}, state=state)
print("state:", state.base.size + state.residual.size, "numbers")

assert np.allclose(np.concatenate([first, second], axis=1), whole, rtol=0, atol=1e-12)

# %% [markdown]
# ## Real heads
#
# Keys and values from SmolLM2-135M-Instruct, its keys divided by their lengths; the gates are still the curves you
# draw. Keys of one head point in much the same direction. A memory that only adds sums that direction up with every
# token, and is soon off by many times the size of a value; R, taught by clipped errors, cannot hold it back. A delta
# rule can. Whether R helps it depends on the head. None of this is a verdict on RLA: the model that made these keys was
# trained with softmax.

# %%
mean_cosine, better = [], 0
for name in INPUTS[1:]:
    real = {"input": name, "similarity": 0.0, "tokens": 64, "write": 0.4}
    keys = ResidualParams(**real).inputs().k[0, :, 0]
    mean_cosine.append(np.mean(keys @ keys.T))
    base, both = view.compute(ResidualParams(rule="rdn", **real))["recall_here"]
    additive = view.compute(ResidualParams(rule="rla", **real))["recall_here"][1]
    better += both < base
    print(f"{name}: keys at cosine {mean_cosine[-1]:.2f}, RLA {additive:5.1f}, RDN {both:.2f}, its S alone {base:.2f}")
    assert additive > 5 > 1.1 > max(both, base)

print(f"R helps RDN in {better} of {len(mean_cosine)} heads")
assert np.min(mean_cosine) > 0.3
assert 0 < better < len(mean_cosine)

# %%
ResidualPanel(input="layer 9, head 1", similarity=0.0, tokens=64, rule="rdn", write=0.4)

# %% [markdown]
# ## On your own
#
# - Draw a retention curve that drops to 0 once. Which values can still be recalled afterwards, and which rows of the
#   weights go blank?
# - Untick *fit R* (Table 4, p. 7): R then holds the newest error alone. For which ages does the recall error change?
# - Choose DeltaNet, then RDN. Which of the gates in the second do you have to turn, and how far, until both recall
#   alike?
