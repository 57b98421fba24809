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
from attnlab.race import RaceParams, claims, draw_planes, reference, theory, view
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
# ## One query by hand
#
# Four tokens, two planes, one table. The planes cut space into four buckets, `tanh` softens the cut, and each row of
# `phi_k` says how a key divides itself among the buckets: every row sums to 1.

# %%
toy = RaceParams(tokens=4, planes=2, tables=1, head_width=2)
q, k, v, words = toy.inputs()
trace = reference.trace(q, k, v, toy.draw_planes(), toy.sharpness)
phi_q, phi_k = trace.phi_q[0, :, 0, 0], trace.phi_k[0, :, 0, 0]
print(phi_k.round(3))

assert np.allclose(phi_k.sum(axis=1), 1)

# %% [markdown]
# Keys **write**: a bucket's mass A is the sum of its column, its content B the same sum weighted by the values. The
# first query **reads**: its shares of the buckets, times B, over its shares times A. One ratio, at the end.

# %%
A, B = phi_k.sum(axis=0), phi_k.T @ v[0, :, 0]
output = (phi_q[0] @ B) / (phi_q[0] @ A)
print("query's shares", phi_q[0].round(3), " mass", A.round(3), " output", output.round(3))

assert np.allclose(output, trace.out[0, 0, 0])

# %% [markdown]
# Nobody formed a matrix of pairs. If one does, weighing each value by how much query and key share buckets, the numbers
# are the same: this is the attention matrix that the panel below draws for RACE.

# %%
weights = phi_q @ phi_k.T
weights /= weights.sum(axis=1, keepdims=True)
print(weights.round(3))

assert np.allclose(weights @ v[0, :, 0], trace.out[0, :, 0], rtol=1e-12)

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
# itself loses in float32, plus rounding for the `terms` that are added in another order (64 keys, then 4 x 16 buckets).

# %%
case, terms = view.verification(RaceParams(tokens=64, head_width=64, planes=4, tables=4, sharpness=2.0, causal=True))
for report in parity.verify("race", case, terms=terms):
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
# Now q, k and v come from SmolLM2-135M-Instruct reading Python's documentation: three layers, after the rotary position
# embedding. Among the prose of this window stands one line of code, tokens 24 to 43. In the softmax matrix it is the
# bright block a third of the way down: code reads code. The angular kernel and RACE are much flatter.

# %%
heads = data.real_heads()
print(heads.provenance["model"], "| layers", heads.layers, "| tokens 24 to 43:", "".join(heads.tokens[368:388]).strip())

RacePanel(input="layer 21, head 1", tokens=64, causal=True, planes=3, tables=16, sharpness=8.0)

# %% [markdown]
# Why flatter? Softmax weighs a key by `exp(|q||k|/8 cos)`, and `|q||k|/8` is 20 to 40 in these heads. Around a right
# angle the P-th power of the angular kernel behaves like `exp((2P/pi) cos)`, so P would have to be some 30 to 60 to be
# as sharp. Count how much of the code line's attention stays inside it:

# %%
q, k, _, _ = RaceParams(input="layer 21, head 1", tokens=64).inputs()
softmax, seen = dense.softmax_weights(q, k, causal=True)[0, 0], dense.visible(64, 64, causal=True)
inside = {"softmax": softmax[24:44, 24:44].sum(axis=1).mean()}
for power in (3, 8, 32):
    scores = reference.angular_scores(q, k, power)[0, 0] * seen
    inside[f"angular, P = {power}"] = (scores / scores.sum(axis=1, keepdims=True))[24:44, 24:44].sum(axis=1).mean()
print({name: round(float(share), 2) for name, share in inside.items()})

assert inside["softmax"] > inside["angular, P = 32"] > inside["angular, P = 8"] > inside["angular, P = 3"]

# %% [markdown]
# The paper trains its models with RACE in place of softmax (Sec. 4, p. 8); it does not swap RACE into a trained one.
#
# One more thing that softmax does not see: add the same vector to every key, and its weights stay as they are. Angles
# change. Taking the mean key away brings the 32nd power closer to the softmax in the two later layers, not in the early
# one. (Closeness here is the attention that both put on the same keys, averaged over 256 queries.)

# %%
for layer in heads.layers:
    q, k, _ = (x[:, 344:600].astype(np.float64) for x in heads.layer(layer))
    softmax, seen = dense.softmax_weights(q, k, causal=True), dense.visible(256, 256, causal=True)
    shared = []
    for keys in (k, k - k.mean(axis=1, keepdims=True)):
        assert np.allclose(dense.softmax_weights(q, keys, causal=True), softmax)
        angular = reference.angular_scores(q, keys, 32) * seen
        shared.append(np.minimum(softmax, angular / angular.sum(axis=-1, keepdims=True)).sum(axis=-1).mean())
    print(f"layer {layer:>2}: shared at P = 32: {shared[0]:.2f} with the keys as they are, {shared[1]:.2f} centred")
    assert (shared[1] > shared[0]) == (layer > 2)

# %% [markdown]
# ## A lemma that fails
#
# Softmax-free attention divides by row sums, so their errors matter: write |E| for the largest error of a row sum of
# RACE's kernel matrix, and s_min for the smallest row sum of its target S. Lemma 10 (p. 24) promises that with enough
# tables |E| stays below s_min/2. Take every query and key to be one unit vector: S is 1 everywhere, s_min is N, and |E|
# must fall below N/2. At low sharpness no number of tables brings it there. The normalised output is still right, so it
# is the lemma that falls, not every bound on the output.

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
print(lemma["says"])
print(lemma["source"], "|", lemma["observed"], "|", lemma["evidence"], "|", lemma["measured"])

assert lemma["observed"] == "REFUTED"

# %% [markdown]
# ## On your own
#
# - In the panel, find the smallest *sharpness* at which neither of Lemma 10's failure regions is marked, for P = 2 and
#   P = 4. Compare with `theory.many_tables_region(2)` and `(4)`.
# - Set `variant="bucket_mean"` in `attnlab.race.attention`: the operator of the authors' released code. Divide its
#   output by the number of tables, which it does not do itself. How far is it from Algorithm 1 at sharpness 0.1, and at
#   5? (`race.released-code` in [05_claims](05_claims.ipynb) tables it.)
# - Give `reference.trace` a sharpness of 10,000 with `causal=True`. Why is the first output still its own value?
