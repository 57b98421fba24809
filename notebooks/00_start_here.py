# %% [markdown]
# # Start here
#
# **attnlab** is a laboratory for attention papers. Each mechanism comes as a picture that moves, as a reference short
# enough to read aloud, as fast implementations held against that reference, and as a list of the paper's claims, each
# with its page and a verdict that a machine checked.
#
# *You will* move one dial, verify what you see, and choose where to go next. *You need* nothing but this kernel: press
# Shift+Enter cell by cell, or choose *Run > Run All Cells*.

# %% [markdown]
# ## One mechanism, live
#
# RACE attention replaces the comparison of every query with every key by a few **buckets**: keys write their values
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
# | explore the mechanism, on toy tokens and on real heads | [01_race_buckets](01_race_buckets.ipynb) |
# | know which of the paper's claims hold | [05_claims](05_claims.ipynb) |
# | lead a reading group | 01, then 05: every picture and every verdict names its page |
