# %% [markdown]
# # Put RACE beside its rivals, on real heads
#
# *RACE Attention*, arXiv:2510.04008v5, compares itself with linear attention, Performer, Linformer, YOSO and sigmoid
# attention (Sec. 4). There, every model is trained with its own attention. Here none is: nine heads of a language model
# that was trained with softmax have their softmax replaced, and we look at how far the outputs move.
#
# *You will* see which power of the angle a head's softmax resembles, give every operator the same memory, and take
# RACE's error apart into three parts that add up. *You need* NumPy and half a minute.

# %%
import numpy as np
import plotly.graph_objects as go
from IPython.display import Markdown

from attnlab import data, dense
from attnlab.race import comparisons, draw_planes, reference

heads = data.real_heads()
T, SIZE = comparisons.TOKENS, comparisons.NUMBERS
layers = {number: [x[:, :T].astype(np.float64) for x in heads.layer(number)] for number in heads.layers}
names = [f"layer {number}, head {h}" for number in layers for h in range(3)]
look = {"template": "simple_white", "width": 760, "height": 380}

# %% [markdown]
# ## What the heads do
#
# The first 256 tokens, causal, so the softmax below is exactly the model's own. The *sink share* is the attention that
# goes to token 0, whatever is asked; *keys* is how many equally weighted keys would be as spread out. The last column
# is why this will be hard: softmax takes the exponential of the cosine times `|q||k|/8`.

# %%
softmax = {n: dense.softmax_weights(q, k, causal=True) for n, (q, k, _) in layers.items()}
sink = np.concatenate([w[0, :, 1:, 0].mean(axis=1) for w in softmax.values()])
spread = np.concatenate([(1 / (w**2).sum(axis=-1)).mean(axis=-1)[0] for w in softmax.values()])
scale = np.concatenate(
    [np.prod([np.linalg.norm(x, axis=-1).mean(axis=(0, 1)) for x in (q, k)], axis=0) / 8 for q, k, _ in layers.values()]
)
for name, share, keys, steep in zip(names, sink, spread, scale, strict=True):
    print(f"{name:<17} sink share {share:.2f}   keys {keys:5.1f}   |q||k|/8 {steep:4.1f}")

assert sink[:3].max() < 0.1 < 0.15 < sink[3:].min()  # the early layer has no sink, the two others do

# %% [markdown]
# ## Which power of the angle is this head's softmax?
#
# RACE with P planes estimates the angular kernel to the power P. Forget the estimate for a moment and take the kernel
# itself, with unlimited memory. The distance is the total variation of two rows of attention weights, averaged over
# queries: 0 is the same, 1 is nothing in common. Look for where each line turns.

# %%
powers = np.array([1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 48, 64, 96, 128])
seen = dense.visible(T, T, causal=True)
far = []
for number, (q, k, _) in layers.items():
    kappa = reference.angular_scores(q, k, 1) * seen
    far.append([comparisons.distance(comparisons.row_shares(kappa**P), softmax[number])[0] for P in powers])
far = np.concatenate(far, axis=1)  # [powers, 9 heads]
best_power = powers[far.argmin(axis=0)]

# %%
figure = go.Figure(layout=look)
for h, name in enumerate(names):
    style = {"color": ("#56B4E9", "#CC79A7", "#333333")[h // 3], "dash": ("solid", "dash", "dot")[h % 3]}
    figure.add_scatter(x=powers, y=far[:, h], name=name, mode="lines", line=style)
figure.update_xaxes(type="log", title="power P of the angular kernel", tickvals=powers[[0, 1, 3, 5, 7, 10, 12, 14]])
figure.update_yaxes(title="distance from the head's softmax", range=[0, 1])
figure

# %% [markdown]
# Now the price: P planes make 2^P buckets, each with a mass and 64 numbers of content. The last column is **one** table
# at the best power; the paper's budgets are P = 2 to 4, a few tables each.

# %%
for name, P, at_best, at_four in zip(names, best_power, far.min(axis=0), far[powers == 4][0], strict=True):
    one = comparisons.state_size("race", 1, head_width=64, value_width=64, planes=int(P))
    print(f"{name:<17} best P {P:>2}: {at_best:.2f}   P = 4: {at_four:.2f}   one table: {one:>15,} numbers a head")

assert best_power.min() >= 16
assert (far.min(axis=0) < 0.8 * far[powers == 4][0]).all()

# %% [markdown]
# So a powered angular kernel does resemble these heads, but at a power of 16 to 32. A sink shows why. In the middle
# layer token 0 stands at a cosine of about 0.46 from the queries, other keys at about -0.03. Softmax makes a factor of
# several hundred of that, for the logits stand 5 to 7 apart on average. The kernel makes 1.3, and 3 at P = 4.

# %%
q, k, _ = layers[9]
cosine = np.einsum("bthk,bshk->bhts", dense.unit(q), dense.unit(k))[0]
to_sink, to_others = cosine[:, 1:, 0].mean(), cosine[:, seen & (np.arange(T) > 0)].mean()
ratio = reference.kappa(to_sink) / reference.kappa(to_others)
print(f"cosine to token 0 {to_sink:.2f}, to others {to_others:.2f}; kernel ratio {ratio:.2f}, ^4 {ratio**4:.1f}")

assert 2.5 < ratio**4 < 4

# %% [markdown]
# ## Rivals at matched state size
#
# A causal layer streams: what it keeps is its *state*. Linear attention (elu+1) keeps 64 x 65 = 4,160 numbers a head
# and has no dial. RACE with 4 planes and 4 tables and Performer with 64 features keep exactly as many; the others get
# the largest budget that is not above. Beside them stand the plain mean of all earlier values (65 numbers) and three
# operators that keep every key and value. Cells list layers 2 · 9 · 21, each the mean of its three heads over three
# draws.
#
# *Output error* is relative, in the Frobenius norm. *After one gain* allows one number a head, which the next
# projection could absorb: YOSO's outputs all have length 1 and sigmoid's are sums, so only this column is fair to them.

# %%
rows = {number: comparisons.compare(*qkv, SIZE, seeds=comparisons.SEEDS) for number, qkv in layers.items()}
error = {r[0].name: np.array([x.error.mean() for x in r]) for r in zip(*rows.values(), strict=True)}
Markdown(comparisons.rows_table(rows))

# %%
figure = go.Figure(layout=look | {"margin": {"l": 190}})
for number, symbol in zip(rows, ("circle", "square", "diamond"), strict=True):
    titles = [comparisons.RIVALS[row.name].title for row in rows[number]]
    after = [row.error_after_gain.mean() for row in rows[number]]
    figure.add_scatter(x=after, y=titles, mode="markers", name=f"layer {number}", marker={"symbol": symbol, "size": 10})
figure.update_traces(marker_color="#D55E00")
figure.update_xaxes(title="output error after one gain a head", range=[0, 1.05])
figure.update_yaxes(autorange="reversed")
figure

# %% [markdown]
# Look at the first line. The plain mean of the values, 65 numbers, is as near to these heads as linear attention (they
# agree within 2 percent), and nearer than RACE with 4 planes and 4 tables at sharpness 4. Angular attention itself,
# with every pair in memory, gains little over the mean at P = 4. Performer estimates the right kernel, and in the two
# later layers its weights are the nearest of all that stream; its outputs are not. Relative to its mean, the variance
# of one feature's estimate grows like exp(|q + k|²/8), and these vectors are long.

# %%
assert all(row.state <= SIZE for r in rows.values() for row in r if comparisons.RIVALS[row.name].unit)
assert (error["race"] > error["uniform"]).all()
assert (error["angular"] < error["uniform"]).all()
assert np.abs(error["linear"] / error["uniform"] - 1).max() < 0.02

near = {row.name: row.distance.mean() for row in rows[9]}
assert min(("uniform", "linear", "performer", "yoso", "race"), key=near.get) == "performer"

# %% [markdown]
# **Linformer** mixes all positions, so it has no causal form. Here is the same table without a mask. The target is a
# softmax that this model never computes, for each query sees later keys too. *Mean pooling* is the projection without
# training that Linformer's authors name; their Gaussian one belongs to a proof, where the keys' part is scaled down.

# %%
full = {n: comparisons.compare(*qkv, SIZE, causal=False, seeds=comparisons.SEEDS) for n, qkv in layers.items()}
of = {r[0].name: np.array([x.error.mean() for x in r]) for r in zip(*full.values(), strict=True)}
assert (of["linformer"] < np.minimum(of["uniform"], of["race"])).all()
Markdown(comparisons.rows_table(full))

# %% [markdown]
# ## RACE's error in three parts
#
# 1. **kernel mismatch**: angular attention of power P instead of softmax. No dial of RACE but P changes it.
# 2. **soft bias**: buckets are soft. Infinitely many tables at this sharpness, minus 1. Computed, not sampled: the
#    expected score of a pair is a series in its cosine (Mehler), and `bound` says what the series leaves out.
# 3. **sampling noise**: these four tables instead of infinitely many.
#
# As vectors the three add up to the whole error; their lengths need not. q and k enter `tanh(w·x)` as they are, as in
# Algorithm 1 (p. 5). They are long, so `tanh` saturates, and at sharpness 4 the buckets are as good as hard.

# %%
outputs = [dense.softmax_attention(*x, causal=True) for x in layers.values()]
size, split = np.concatenate([np.linalg.norm(out, axis=(1, 3))[0] for out in outputs]), {}
for unit, sharpness, tables in ((False, 4.0, 4), (False, 4.0, 16), (False, 1.0, 4), (True, 4.0, 4), (True, 1.0, 4)):
    W = draw_planes(tables, 4, 64)
    parts = [comparisons.error_split(*x, W, sharpness, causal=True, normalize=unit) for x in layers.values()]
    assert max(part.bound for part in parts) < 1e-8
    assert all(np.allclose(part.total, sum(part[:3]), atol=1e-12) for part in parts)
    norms = [[np.linalg.norm(x, axis=(1, 3))[0] for x in part[:4]] for part in parts]
    split[unit, sharpness, tables] = np.concatenate(norms, axis=1) / size  # [4 parts, 9 heads]

# %%
figure = go.Figure(layout=look | {"barmode": "group"})
labels = ("kernel mismatch", "soft bias", "sampling noise")
for part, label, colour in zip(split[False, 4.0, 4], labels, ("#333333", "#56B4E9", "#CC79A7"), strict=False):
    figure.add_bar(x=names, y=part, name=label, marker_color=colour)
whole = {"symbol": "line-ew-open", "size": 26, "color": "#D55E00"}
figure.add_scatter(x=names, y=split[False, 4.0, 4][3], name="whole error", mode="markers", marker=whole)
figure.update_yaxes(title="relative to the softmax output")
figure

# %% [markdown]
# Means over the nine heads. Sharpness trades one part for another: at 1 most of the noise is gone, because the kernel
# has become flat; that flatness is the soft bias. Unit vectors, which the theory assumes (p. 17), make softer buckets
# and halve the noise.

# %%
for (unit, sharpness, tables), parts in split.items():
    told = "   ".join(f"{label} {x:.2f}" for label, x in zip((*labels, "whole"), parts.mean(axis=1), strict=True))
    print(f"{'unit vectors' if unit else 'as they are ':<12} sharpness {sharpness:g}, {tables:>2} tables:   {told}")

raw, more, soft, short = (split[key].mean(axis=1) for key in list(split)[:4])
assert raw[1] < 0.01 < soft[1]
assert soft[2] < raw[2] / 3
assert raw[2] / more[2] > 1.5  # 2, if the noise had settled
assert short[2] < 0.6 * raw[2]

# %% [markdown]
# ## The best dials for each head
#
# At 4,160 numbers a head, planes and tables compete: one more plane halves the tables. A small scan over P and
# sharpness, chosen on two draws of planes and judged on two others, so that luck does not count.

# %%
P_dial, beta_dial = (1, 2, 3, 4, 5, 6), (0.5, 1.0, 2.0, 4.0)
dials = {"planes": P_dial, "sharpness": beta_dial, "normalize": True}
scans = [comparisons.scan(*x, SIZE, **dials, seeds=(0, 1))[:, :, 0] for x in layers.values()]
chosen = np.concatenate(scans, axis=2)  # [P, sharpness, 9 heads]
judged = np.concatenate([comparisons.scan(*x, SIZE, **dials, seeds=(2, 3))[:, :, 0] for x in layers.values()], axis=2)
i, j = np.unravel_index(chosen.reshape(-1, 9).argmin(axis=0), chosen.shape[:2])
reached = judged[i, j, np.arange(9)]
mean_error = np.concatenate([r[0].error[0] for r in rows.values()])  # of the plain mean

# %%
figure = go.Figure(layout=look)
spot = [f"P = {P_dial[a]}, β = {beta_dial[b]:g}" for a, b in zip(i, j, strict=True)]
figure.add_bar(x=names, y=mean_error, name="plain mean", marker_color="#999999")
figure.add_bar(x=names, y=reached, name="RACE at its best dials", marker_color="#D55E00", hovertext=spot)
figure.update_yaxes(title="output error")
figure

# %% [markdown]
# ## Which heads it fits
#
# Sorted by what RACE gains over the plain mean. *Angular* is the distance of the kernel itself at P = 4, with unlimited
# memory: where it is large, no budget of tables at this P would help.

# %%
gain = 1 - reached / mean_error
for h in np.argsort(-gain):
    print(
        f"{names[h]:<17} {spot[h]:<14} error {reached[h]:.2f}, plain mean {mean_error[h]:.2f}, gain {gain[h]:>4.0%}"
        f"   sink share {sink[h]:.2f}   angular {far[powers == 4][0, h]:.2f}"
    )

assert gain.max() < 0.2
assert far[powers == 4][0, sink < 0.1].max() < far[powers == 4][0, sink > 0.1].min()

# %% [markdown]
# The kernel stands nearest to the three heads without a sink. Beyond the plain mean RACE gains 13 % at most, on
# any head: at this budget it moves between a flat average and a noisy one.
#
# ## What this says, and what it does not
#
# - It says: **RACE is not a drop-in replacement** for the softmax of a trained model, and neither is any other operator
#   here. At the budgets of the paper its kernel is much flatter than these heads.
# - It does **not** say that a model trained with RACE is worse. The paper trains from scratch (Sec. 4); queries, keys
#   and sharpness then learn to use a flat kernel, and a head has no reason to build a sink of softmax's kind.
# - It is nine heads, 256 tokens, one small model. Performer, Linformer and sigmoid attention are judged untrained too:
#   sigmoid's bias of -log n is meant for a model that starts with it.
#
# ## On your own
#
# - Give everybody 16 times the memory: `comparisons.compare(*layers[21], 16 * SIZE)`. Who gains most, and who has
#   reached what its kernel allows?
# - Softmax does not see a vector added to every key; angles do. Subtract the mean key first. Which part of the split
#   shrinks?
# - Set `"normalize": False` in the scan. Which sharpness do the heads choose now, and why is it lower?
