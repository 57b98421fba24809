# %% [markdown]
# # Sort tokens into buckets: RACE attention
#
# *RACE Attention: A Strictly Linear-Time Attention Layer for Training on Outrageously Large Contexts*,
# arXiv:2510.04008v5. Pages below are PDF pages of that version.
#
# *You will* work one query by hand, move the whole mechanism, see what its estimate is worth, and put it beside the
# softmax of a real language model. *You need* NumPy; the fast implementations join in where they are installed.

# %%
import numpy as np

import attnlab
from attnlab import data, dense, parity
from attnlab.race import RaceParams, claims, draw_planes, reference, theory
from attnlab.race.widget import RacePanel

# %% [markdown]
# ## Three objects, never one for another
#
# 1. **softmax attention**, the exponential of a dot product;
# 2. **angular attention**, a power of the angle between q and k (Eqs. 3-4, p. 6);
# 3. **RACE**, which estimates the second one in linear time (Algorithm 1, p. 5).
#
# The angular kernel is 1 for the same direction, 1/2 at a right angle and 0 for opposite ones; a power sharpens it.

# %%
angles = np.array([0, np.pi / 2, np.pi])
kernel = reference.kappa(np.cos(angles))
print("kappa  ", kernel)
print("kappa^3", kernel**3)

assert np.allclose(kernel, [1, 1 / 2, 0])

# %% [markdown]
# ## Three tokens by hand
#
# Two planes cut space into four buckets; `tanh` softens the cut. Each row of `phi` says how a token divides itself
# among the four buckets of the only table, and each row sums to 1.

# %%
toy = RaceParams(tokens=4, planes=2, tables=1, head_width=2)
q, k, v, words = toy.inputs()
trace = reference.trace(q, k, v, toy.draw_planes(), toy.sharpness)
print(trace.phi_k[0, :, 0, 0].round(3))

assert np.allclose(trace.phi_k.sum(-1), 1)

# %% [markdown]
# Keys **write**: a bucket's mass is the sum of its column, its content the same sum weighted by the values. Queries
# **read**: one ratio, after all tables are summed. Forming the kernel matrix instead gives the same numbers.

# %%
through_buckets = trace.out[0, :, 0]
through_pairs = trace.weights[0, 0] @ v[0, :, 0]
print("mass of the buckets ", trace.mass[0, 0, 0].round(3))
print("largest difference  ", np.abs(through_buckets - through_pairs).max())

assert np.allclose(through_buckets, through_pairs, rtol=1e-12)

# %% [markdown]
# ## Move it
#
# Look first at the buckets, then at the three matrices: the softmax knows lengths (toy tokens have length 1, so theirs
# is nearly flat), the angular kernel and RACE know directions. *planes* raises the power and doubles the buckets,
# *tables* averages away the noise, *sharpness* removes the bias. Everything is computed in this page; the kernel hears
# of it when you let go.

# %%
panel = RacePanel()
panel

# %% [markdown]
# ## What the estimate is worth, without simulating anything
#
# For unit vectors, the mean and the spread of RACE's score have exact integrals. At a right angle the score is right at
# every sharpness; for equal vectors it is too small until sharpness is large. (The integrals are this project's; they
# follow from the factorised features of p. 22.)

# %%
import plotly.graph_objects as go

angle = np.linspace(0, np.pi, 65)
figure = go.Figure(layout={"template": "simple_white", "width": 720, "height": 360})
for sharpness in (1.0, 4.0, 16.0):
    mean = theory.band(angle, planes=3, tables=4, sharpness=sharpness).mean
    figure.add_scatter(x=np.degrees(angle), y=mean, name=f"RACE, sharpness {sharpness:g}")
exact_kernel = theory.band(angle, 3, 4, 1.0).target
figure.add_scatter(x=np.degrees(angle), y=exact_kernel, name="angular kernel", line={"color": "#333", "dash": "dot"})
figure.update_layout(xaxis_title="angle between q and k (degrees)", yaxis_title="expected score, P = 3")
figure

# %%
at_right_angle = [theory.band([np.pi / 2], 3, 4, s).mean[0] for s in (1.0, 4.0, 16.0)]
for_equal = [theory.band([0.0], 3, 4, s).mean[0] for s in (1.0, 4.0, 16.0)]
print("right angle:", np.round(at_right_angle, 6), " equal:", np.round(for_equal, 3))

assert np.allclose(at_right_angle, 1 / 8)
assert for_equal[0] < for_equal[1] < for_equal[2] < 1

# %% [markdown]
# ## The same operator, faster
#
# The fast implementations are compared with the reference row by row. The tolerance is computed: what the reference
# itself loses in float32, plus rounding for adding the terms in another order.

# %%
q, k, v, _ = RaceParams(tokens=64, head_width=64).inputs()
case = {"q": q, "k": k, "v": v, "planes": draw_planes(4, 4, 64), "sharpness": 2.0, "causal": True}
for report in parity.verify("race", case, terms=64 + 4 * 16):
    print(
        f"{report.impl:<10}", report.why_not or f"error {report.max_rel:.1e} of a row, allowed {report.tolerance:.1e}"
    )
    assert report.ok or report.why_not

# %% [markdown]
# Causal attention streams: the state that carries the past has a fixed size, L 2^P (V + 1) numbers for each head
# (Algorithm 2, p. 27), and one run equals any segmentation of it.

# %%
whole = attnlab.race.attention(**case)
first, state = attnlab.race.attention(**case | {name: case[name][:, :20] for name in "qkv"}, return_state=True)
second = attnlab.race.attention(**case | {name: case[name][:, 20:] for name in "qkv"}, state=state)
print("state:", state.mass.size + state.content.size, "numbers")

assert np.allclose(np.concatenate([first, second], axis=1), whole, rtol=1e-10)

# %% [markdown]
# ## Real heads
#
# Now q, k and v come from SmolLM2-135M-Instruct reading Python's documentation: three layers, after the rotary
# position embedding. Look for the line of code in the softmax matrix, then look for it in the other two. Choose other
# layers and heads in the panel.

# %%
heads = data.real_heads()
print(heads.provenance["model"], "| layers", heads.layers, "| text:", "".join(heads.tokens[344:380]))

RacePanel(input="layer 21, head 1", tokens=64, causal=True, planes=8, sharpness=8.0)

# %% [markdown]
# How alike are they? The number below is the attention that both put on the same keys (1 minus the total variation
# distance, averaged over queries): 1 would be the same pattern. Softmax weighs `exp(|q||k|/8 cos)` with `|q||k|/8` of
# 20 to 40 here, and the slope of the P-th power at a right angle is only 2P/pi: a real head wants some 32 planes, and a
# table of RACE has 2^P buckets. The paper trains its models with RACE in place of softmax (Sec. 4, p. 8); it does not
# swap RACE into a trained one.

# %%
window, shared = slice(344, 600), {}
for layer in heads.layers:
    q, k, _ = (x[:, window].astype(np.float64) for x in heads.layer(layer))
    softmax, seen = dense.softmax_weights(q, k, causal=True), dense.visible(256, 256, causal=True)
    for power in (3, 8, 32):
        angular = reference.angular_scores(q, k, power) * seen
        shared[layer, power] = np.minimum(softmax, angular / angular.sum(-1, keepdims=True)).sum(-1).mean()
    print(f"layer {layer:>2}: P = 3, 8, 32 share", *(f"{shared[layer, power]:.2f}" for power in (3, 8, 32)))
    assert shared[layer, 3] < shared[layer, 8] < 0.75

# %% [markdown]
# One more thing softmax does not see: add the same vector to every key and its weights stay as they are. Angles change.
# Taking the mean key away spreads the angles of these heads and brings the 32nd power closer to the softmax.

# %%
for layer in heads.layers[1:]:
    q, k, _ = (x[:, window].astype(np.float64) for x in heads.layer(layer))
    centred = k - k.mean(axis=1, keepdims=True)
    softmax = dense.softmax_weights(q, centred, causal=True)
    angular = reference.angular_scores(q, centred, 32) * seen
    now = np.minimum(softmax, angular / angular.sum(-1, keepdims=True)).sum(-1).mean()
    print(f"layer {layer:>2}: share at P = 32, {shared[layer, 32]:.2f} before and {now:.2f} after centring the keys")
    assert np.allclose(softmax, dense.softmax_weights(q, k, causal=True))
    assert now > shared[layer, 32]

# %% [markdown]
# ## A lemma that fails
#
# Lemma 10 (p. 24) promises that enough tables bring the kernel matrix close to its target. Take every query and key to
# be one unit vector: the target is 1 everywhere, and no number of tables lifts RACE's score near it at low sharpness.
# The normalised output is still right there, so it is the lemma that falls, not every bound on the output.

# %%
one = np.broadcast_to([1.0, 0.0], (1, 8, 1, 2))
values = np.arange(8.0).reshape(1, 8, 1, 1)
for tables in (1, 16, 256):
    seen = reference.trace(one, one, values, draw_planes(tables, 2, 2), 0.1)
    print(f"{tables:>3} tables: score {seen.scores.max():.3f} where the target is 1, output {seen.out[0, 0, 0, 0]:.3f}")
    assert seen.scores.max() < 0.255
    assert np.allclose(seen.out, values.mean())

# %%
lemma = next(claim for claim in claims.CLAIMS if claim.id == "race.lemma10").run()
print(lemma["says"], "\n", lemma["source"], "\n", lemma["observed"], lemma["evidence"], lemma["measured"])

assert lemma["observed"] == "REFUTED"

# %% [markdown]
# ## On your own
#
# - In the panel, find the smallest *sharpness* at which neither of Lemma 10's failure regions is marked, for P = 2 and
#   P = 4. Compare with `theory.many_tables_region(2)` and `(4)`.
# - Set `variant="bucket_mean"` in `attnlab.race.attention`: the operator of the authors' released code. How far is it
#   from Algorithm 1 at sharpness 0.1, and at 5? (`race.released-code` in [05_claims](05_claims.ipynb) tables it.)
# - Give `reference.trace` a sharpness of 10,000 with `causal=True`. Why is the first output still its own value?
