# %% [markdown]
# # What is a cache of keys and values best spent on?
#
# *Low-Rank Key Value Attention* (LRKV), arXiv:2601.11471v3, keeps one shared key and value a token, and for each head
# a small residual of rank r. In the paper it has a lower loss than MHA, GQA, MQA and MLA at every size (Table 1, p. 5).
# But the models compared there have neither equal caches nor equal counts of parameters. Here is the question with both
# held fixed: **for the same numbers in the cache, and the same parameters, who learns English best?**
#
# *You will* count what each scheme keeps, read the learning curves of thirty small models, see which differences are
# larger than the chance of a seed, and train two still smaller models yourself. *You need* NumPy; torch for the cell
# that trains.

# %%
import json
import os
from importlib.resources import files

import numpy as np
import plotly.graph_objects as go
from IPython.display import HTML, Markdown, display

from attnlab import backend
from attnlab.lrkv import accounting

colours = {"lrkv": "#0072B2", "mha": "#333333", "gqa": "#009E73", "mqa": "#E69F00", "mla": "#CC79A7"}
look = {"template": "simple_white", "width": 760, "height": 400}

# %% [markdown]
# ## What a token leaves behind
#
# The models have width 256 and LRKV has 8 heads of 32. MHA would keep 512 numbers a token and layer. LRKV keeps a key
# and a value of 32 and, for each head, two latents of rank r. Look at r = 12: half of MHA, about what the paper's main
# runs have. It is also exactly what GQA keeps with 4 groups, so the two can be compared to the number.

# %%
heads = {"heads": 8, "head_width": 32}
for rank in (0, 4, 8, 12, 16, 32):
    kept = accounting.elements("lrkv", **heads, rank=rank)
    print(f"LRKV, rank {rank:2}: {kept:3} numbers, {kept / accounting.elements('mha', **heads):.1%} of MHA")
grouped = {groups: accounting.elements("gqa", **heads, groups=groups) for groups in (1, 2, 4, 8)}
print("shared by groups:", ", ".join(f"{groups} keep {kept}" for groups, kept in grouped.items()))

assert accounting.elements("lrkv", **heads, rank=12) == grouped[4] == 256

# %% [markdown]
# ## The models
#
# Four blocks of attention and a small network, on bytes: the help topics of Python, every paragraph once, 370,000
# bytes. The last tenth is never learned. Two comparisons share the runs of LRKV:
#
# - **Same cache.** All keep 256 numbers. MHA then affords 4 heads of 32 or 8 of 16, MQA one key of 128, MLA a latent of
#   240 and a rotated piece of 16. Where there is a choice, short runs on another piece of the text made it.
# - **Usual shape.** Heads as in LRKV: MHA keeps 512 numbers, GQA with 2 groups 128, MQA 64, MLA (a latent four heads
#   wide, as DeepSeek's) 144.
#
# In both, the network behind the attention is made so wide that all models have the same count of parameters.
#
# LRKV stands here twice, for RoPE does not pass through an arbitrary factor (notebook *04_rope_subspace*): "aligned"
# has key factors that span whole rotary planes, and decodes from its latents; "expanded" has any factor, and rotates
# whole keys when it reads them.

# %%
record = json.loads((files("attnlab") / "nn" / "cache_budget.json").read_text(encoding="utf-8"))
runs = {}
for run in sorted(record["runs"], key=lambda run: run["seed"]):
    runs.setdefault(run["arm"], []).append(run)
lines = ["| arm | seeds | heads × width | cache | network | parameters |", "|---|--:|---|--:|--:|--:|"]
for arm, own in runs.items():
    shape, sizes = own[0]["shape"], [f"{own[0][name]:,}" for name in ("cache_elements", "hidden", "parameters")]
    lines.append(f"| {arm} | {len(own)} | {shape['heads']} × {shape['head_width']} | {' | '.join(sizes)} |")
display(Markdown("\n".join(lines)))

assert len({run["parameters"] for run in record["runs"]}) == 1
assert {own[0]["cache_elements"] for arm, own in runs.items() if arm.startswith("lrkv") or "cache" in arm} == {256}

# %% [markdown]
# ## Learning
#
# Nats a byte on the text that is never learned, the mean over seeds. Look how close the lines are, and that they still
# fall at the end: these are short trainings. A click on a name hides its line, a double click all others.

# %%
figure = go.Figure(layout=look)
for arm, own in runs.items():
    steps, loss = np.array([run["unseen"] for run in own]).mean(axis=0).T
    dash = {"lrkv-expanded": "dot"}.get(arm, "dash" if "cache" in arm else "solid")
    figure.add_scatter(x=steps, y=loss, name=arm, line={"color": colours[arm[:4].strip("-")], "dash": dash})
figure.update_xaxes(title=f"steps of {record['setting']['rows'] * record['setting']['context']:,} bytes")
figure.update_yaxes(title="nats a byte, unseen text")
figure

# %% [markdown]
# ## Loss and cache
#
# Each dot is a model at its end; the three of one column are seeds. A scheme is worth its cache where its dots lie
# lower than those of the others in the same column.

# %%
figure = go.Figure(layout=look)
for arm, own in runs.items():
    symbol = {"lrkv-aligned": "diamond", "lrkv-expanded": "diamond-open"}.get(arm, "x" if "cache" in arm else "circle")
    shift = 1.04 ** (list(runs).index(arm) - 3) if own[0]["cache_elements"] == 256 else 1.0  # side by side
    figure.add_scatter(
        x=[run["cache_elements"] * shift for run in own], y=[run["nats"] for run in own], name=arm, mode="markers",
        marker={"color": colours[arm[:4].strip("-")], "symbol": symbol, "size": 9},
    )  # fmt: skip
kept = sorted({run["cache_elements"] for run in record["runs"]})
figure.update_xaxes(title="numbers a token and layer in the cache", type="log", tickvals=kept)
figure.update_yaxes(title="nats a byte, unseen text")
figure

# %% [markdown]
# ## What can be told apart
#
# All arms of a seed saw the same windows in the same order, so losses are compared seed by seed: by how much each arm
# is worse than lrkv-aligned, with a 95 % interval over seeds (Student's t). Where the interval holds 0, nothing is
# shown.

# %%
point, verdicts = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}, {}
for arm in (arm for arm in runs if arm != "lrkv-aligned"):
    pairs = list(zip(runs[arm], runs["lrkv-aligned"], strict=False))
    more = np.array([run["nats"] - own["nats"] for run, own in pairs])
    give = point[len(more)] * more.std(ddof=1) / len(more) ** 0.5 if len(more) > 1 else np.inf
    verdicts[arm] = "worse" if more.mean() > give else "better" if more.mean() < -give else "not told apart"
    each = ", ".join(f"{x:+.4f}" for x in more)
    print(f"{arm:<14} {more.mean():+.4f} ± {give:.4f} nats a byte ({each}): {verdicts[arm]}")

assert all(run["seed"] == own["seed"] for run, own in pairs)

# %%
said = [f"- **{verdict}**: {', '.join(arms)}" for verdict in ("worse", "better", "not told apart")
        if (arms := [arm for arm, own in verdicts.items() if own == verdict])]  # fmt: skip
display(Markdown("Beside lrkv-aligned, at the same parameters:\n\n" + "\n".join(said)))

# %% [markdown]
# One text of 370,000 bytes, one size, a training of minutes: this neither confirms nor refutes the paper's numbers,
# which come from models forty times as large and 100 billion tokens. It shows how a comparison looks in which nothing
# but the cache's use differs, and how large the chance of a seed is beside the differences.
#
# ## The same words from the cache
#
# After training each model wrote on from pieces of the unseen text, always taking the most likely byte: once by whole
# passes in which every key and value is made, once step by step from its cache. LRKV aligned never makes a key there;
# MLA absorbs its maps into the query. The same operator, so the same bytes should come out.

# %%
told = [run["decoded"] for run in record["runs"]]
same, every = (sum(x[name] for x in told) for name in ("same", "bytes"))
print(f"{same:,} of {every:,} bytes are the same; logits differ by {max(x['logits_apart'] for x in told):.1e} at most")
for arm in ("lrkv-aligned", "lrkv-expanded"):
    prompt, written = runs[arm][0]["decoded"]["sample"]
    print(f"\n{arm} was given {prompt!r}\nand wrote {written!r}")

assert max(x["logits_apart"] for x in told) < 1e-3
assert same > 0.99 * every  # of two bytes that are equally likely, rounding may choose

# %% [markdown]
# ## Two small ones, trained here
#
# A quarter of a million parameters, a context of 128 bytes, about a minute for both. torch needs to be installed;
# without it the cell says so. Change `arms` to any of the table.

# %%
arms, short = ("lrkv-aligned", "gqa-cache"), "PYTEST_CURRENT_TEST" in os.environ  # tests of this notebook: a moment
small = {"width": 96, "heads": 4, "head_width": 24, "rank": 6, "blocks": 2, "hidden": 384, "context": 128}
if backend.found("torch"):
    from attnlab.nn import cache_budget as budget

    budget.torch.set_num_threads(1)
    line, setting = display(HTML(""), display_id=True), budget.Setting(**small, steps=6 if short else 400)
    again = {
        arm: budget.train(arm, 0, 4e-3, setting, told=lambda x: line.update(HTML(f"<pre>{x}</pre>"))) for arm in arms
    }
    for arm, seen in again.items():
        print(f"{arm:<14} {seen['cache_elements']} numbers, {seen['parameters']:,} parameters: {seen['nats']:.3f} nats")
    assert len({seen["cache_elements"] for seen in again.values()}) == 1
    assert all(seen["decoded"]["logits_apart"] < 1e-3 for seen in again.values())
else:
    print("The package torch is not installed; get it with: pip install torch")

# %% [markdown]
# ## On your own
#
# - Train the two of the last cell with seeds 0, 1 and 2. Is their difference larger than the spread over seeds?
# - Spend less: rank 2 in place of 6 keeps a third less. Which GQA would keep as much, and why does `shapes` refuse it?
# - The network of MLA is narrow here, for its maps take many parameters. Give `Model` a `hidden` of your own: how much
#   of the difference between MLA and the others does that explain?
