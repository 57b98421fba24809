# %% [markdown]
# # Start here
#
# **attnlab** is a laboratory for attention papers. Each mechanism comes as a picture that moves, as a reference short
# enough to read aloud, as fast implementations held against that reference, and as a list of the paper's claims, each
# with its page and a verdict that a machine checked.
#
# *You will* move two dials, verify what you see, and choose where to go next. *You need* nothing but this kernel: press
# Shift+Enter cell by cell, or choose *Run > Run All Cells*.

# %% [markdown]
# ## Attention, live
#
# In softmax attention every query weighs every key by exp(q·k/√d) (arXiv:1706.03762v7, Eq. 1, p. 4). The first picture
# has a row for each query. Drag *temperature*: at the left end a query has about eight **keys in effect**, those of its
# own cluster; in the middle, where the paper stands, it looks at all 32 nearly alike. Point at a query anywhere to see
# its weights key by key, and click to keep it.

# %%
from attnlab.dense.widget import SoftmaxPanel

softmax = SoftmaxPanel(temperature=1 / 16)
softmax

# %% [markdown]
# Whatever a panel shows, Python computes too. Toy tokens have length 1, too short for softmax to tell them apart at the
# paper's temperature; the queries and keys of a real language model are longer, and it does. Choose one under *input*.

# %%
from attnlab.dense import view
from attnlab.dense.params import SoftmaxParams

settings = {"cold": {"temperature": 1 / 32}, "the paper's": {}, "a real head": {"input": "layer 9, head 0"}}
effective = {name: view.compute(SoftmaxParams(**dials))["effective"].mean() for name, dials in settings.items()}
for name, keys in effective.items():
    print(f"{name:<12} {keys:4.1f} of 32 keys in effect")

assert 7.5 < effective["cold"] < 8.5
assert effective["the paper's"] > 31
assert effective["a real head"] < 16

# %% [markdown]
# ## A mechanism in its place
#
# Every query against every key: N² pairs. RACE attention replaces them by a few **buckets**: keys write their values
# into buckets, queries read them back (arXiv:2510.04008v5, Algorithm 1, p. 5). Drag *sharpness* and look at the first
# picture: at the left end every token spreads over all buckets, at the right end each sits in one.

# %%
from attnlab.race.widget import RacePanel

panel = RacePanel(planes=2, tables=8)
panel

# %% [markdown]
# The dials are back in Python when you let go of them. Press **verify** in the panel, or do the same from here: every
# implementation that can run on this machine is held against the float64 reference for exactly these dials.

# %%
reports = panel.verify()
for report in reports:
    print(
        f"{report.impl:<10}", report.why_not or f"error {report.max_rel:.1e} of a row, allowed {report.tolerance:.1e}"
    )

assert all(report.ok for report in reports if report.ran)

# %% [markdown]
# ## What can run here
#
# The same list as `attnlab doctor` prints in a terminal: the device, or the reason why not.

# %%
from attnlab.cli import diagnose

for entry in diagnose()["implementations"]:
    print(f"{entry['mechanism']} {entry['impl']:<10}", entry["device"] or entry["why_not"])

# %% [markdown]
# ## Where to go
#
# | you want to | open |
# |---|---|
# | explore RACE, on toy tokens and on real heads | [01_race_buckets](01_race_buckets.ipynb) |
# | draw the gates of two memories, and see what the second is worth | [02_residual_memory](02_residual_memory.ipynb) |
# | watch bits choose what a query reads, and train your own | [03_hamming_recall](03_hamming_recall.ipynb) |
# | see a factor turn out of its space, and what to do about it | [04_rope_subspace](04_rope_subspace.ipynb) |
# | know which of the papers' claims hold | [05_claims](05_claims.ipynb) |
# | see RACE beside its rivals on real heads, and its error taken apart | [06_real_heads](06_real_heads.ipynb) |
# | know whether a memory of errors helps a trained model | [08_associative_recall](08_associative_recall.ipynb) |
# | know what a cache is best spent on, LRKV, MHA, GQA, MQA or MLA | [09_cache_budget](09_cache_budget.ipynb) |
# | read GPU kernels beside their reference, and repair three | [07_read_the_kernel](07_read_the_kernel.ipynb) |
# | do exercises on RACE that check themselves | [10_exercises_race](10_exercises_race.ipynb) |
# | the same on RLA and RDN | [11_exercises_residual](11_exercises_residual.ipynb) |
# | the same on HashAttention | [12_exercises_hashattention](12_exercises_hashattention.ipynb) |
# | the same on LRKV | [13_exercises_lrkv](13_exercises_lrkv.ipynb) |
# | lead a reading group | a terminal: `attnlab kit race race-kit` writes slides, plan, handout and more |
