# %% [markdown]
# # Read the kernel
#
# The RACE kernels beside the reference they compute, block by block; what each program loads and stores, as a tracer
# saw it; and three exercises in which you repair a kernel.
#
# *You need* no GPU and no experience with Triton. On Linux with torch and triton everything runs: the kernels are
# interpreted, in a second process. Elsewhere the sources and formulas are here, and one sentence stands in place of the
# rest.

# %%
import ipywidgets as widgets
import plotly.graph_objects as go

from attnlab.race import reference
from attnlab_kernels.testing import lesson

print(lesson.why_not() or "Kernels can be interpreted here.")

# %% [markdown]
# ## How a kernel reads
#
# A kernel is a function that many **programs** run at once; `tl.program_id(0)` is the number of the one that reads it.
# A program loads a **tile** of rows from memory, computes on it in registers, and stores the result.
#
# - `tl.load(v + o_t[:, None] * V + o_v[None, :], mask=...)`: `v` is an address, the rest says how many numbers further.
#   Where the mask is false nothing is touched.
# - Names: `b_` a value in registers, `o_` offsets, `i_` the number of a program, chunk or head.
# - Here a program owns one **chunk** of tokens and walks it tile by tile.
#
# Programs run in any order and know nothing of each other. What they have to tell each other goes through memory, and
# moving bytes is what takes the time.

# %% [markdown]
# ## Block by block
#
# Left is the reference, right is the kernel, both as they stand in their files.
#
# **Features** (Algorithm 1, p. 5). The reference takes a softmax over the corners of a cube. That softmax is a product
# of sigmoids, one for each plane (p. 22), so the kernel adds P logarithms a bucket and needs neither a maximum nor a
# sum. It makes features again wherever they are needed: no feature is ever stored.

# %%
lesson.beside(reference, ["project", "log_features", "corners"], ["_sigmoids", "_features", "_corners"])

# %% [markdown]
# **Write.** A key adds its features to the mass A, and features times value to the content B. The kernel does it for a
# tile of keys as a matrix product, and only the sums of the whole chunk leave the program. The reference also rescales
# each bucket, for sharpness up to 10,000; the kernel covers a smaller range and does without.

# %%
lesson.beside(reference, ["write"], ["write_kernel"])

# %% [markdown]
# **Scan.** The reference carries one state from token to token. Programs that run at once cannot, so every chunk is
# summed alone, and then one short kernel walks over the chunks: it replaces each sum by what stood before the chunk.

# %%
lesson.beside(reference, ["attention: if causal"], ["scan_kernel"])

# %% [markdown]
# **Read.** One ratio, after all tables. A tile of queries reads the state as a matrix product. Queries that met no mass
# get 0, as in the reference.

# %%
lesson.beside(reference, ["read", "_ratio"], ["read_kernel", "_put_ratio", "_over"])

# %% [markdown]
# **Causal tile** (Algorithm 2, p. 27). The reference writes token t, then reads it. The kernel takes a tile at a time:
# its queries read the state before the tile, and its own keys through a small masked matrix, in which row t keeps the
# columns up to t. Then the tile is written into the state.

# %%
lesson.beside(reference, ["attention: if causal"], ["sweep_kernel"])

# %% [markdown]
# ## Which program touches what
#
# The tracer notes every address. Below, a row is a program and a column a place in memory: 16 tokens of q, k, v or out,
# the sums of one chunk, or a whole small array. Colour is bytes, **r** a load and **w** a store. 96 tokens make three
# chunks.
#
# Look for two things. No two programs of one kernel store to the same place. And the planes are loaded by every program
# of `write` and `read`, the final state by every one of `read`: those are the bytes above the minimum.

# %%
plain = lesson.record(tokens=96, chunk=32, causal=False)
memory = plain.memory()
assert plain.why_not or memory["planes"]["requested"] == 3 * memory["planes"]["least"]

go.Figure(lesson.who_touches_what(plain))

# %%
lesson.bytes_table(plain)

# %% [markdown]
# There are two minima. A launch cannot do without the bytes it works on, each once: that is *at least* in each row and
# in *launch by launch*. Seen as one pass, even what the launches hand to each other could be spared: the last line
# compares with q, k, v, planes, out and the last state alone.
#
# The causal kernels have a second pass. `scan` turns the sums of a chunk into the state before it, and program c of
# `sweep` starts from that of chunk c. Both passes need features of the keys; the first one leaves the projections
# k W, which are narrower than k, and `project` makes those of the queries.

# %%
causal = lesson.record(tokens=96, chunk=32, causal=True)
go.Figure(lesson.who_touches_what(causal))

# %%
lesson.bytes_table(causal)

# %%
for launch in causal.launches:
    stores = [(where, place) for where, place, kind, _, _ in launch["touched"] if kind == "store"]
    assert len(stores) == len(set(stores)), "two programs stored to one place"

# %% [markdown]
# ## How many tokens a program?
#
# Each chunk costs a load of the planes, a store of its sums, a load and a store in the scan, and one more load. Short
# chunks pay that more often. Long ones make few programs, and most multiprocessors of a GPU have nothing to do. The
# line comes from sizes alone (the formulas stand in `attnlab_kernels/testing/traffic.py`); move the slider, and the
# tracer counts.

# %%
chunks = (16, 32, 64, 128, 256)
figure = go.FigureWidget(lesson.traffic_picture(256, chunks, 32, causal=True))
slider = widgets.SelectionSlider(
    options=chunks,
    value=32,
    description="tokens a program",
    continuous_update=False,
    style={"description_width": "auto"},
)
slider.observe(lambda new: figure.update(lesson.traffic_picture(256, chunks, slider.value, causal=True)), "value")
widgets.VBox([slider, figure])

# %%
for chunk in (16, 256):
    traced = lesson.record(tokens=256, chunk=chunk, causal=True)
    assert traced.why_not or traced.requested == lesson.predicted(tokens=256, chunk=chunk, causal=True)

# %% [markdown]
# ## Exercise 1: outside
#
# This kernel adds up the values of each chunk. It asks for memory that is not there. Run the cell, read what the check
# says, find the access, repair it. Every run of the check draws new sizes and numbers.
#
# <details><summary>Hint 1</summary>Which access has no mask?</details>
# <details><summary>Hint 2</summary>A row of content has V numbers. How many does a program store?</details>
# <details><summary>Hint 3</summary>Until you repair it, the check also names a race: program c writes over the first
# numbers of program c + 1. Only the last program has nobody to write over.</details>

# %% tags=["exercise"]
triton, tl = lesson.kernel_language()


@triton.jit
def sum_chunks(v, content, T, V: tl.constexpr, CHUNK: tl.constexpr, BT: tl.constexpr, BV: tl.constexpr):
    """content[c] = the sum of the rows of v in chunk c, which program c owns. v [T, V], content [chunks, V]."""
    i_c = tl.program_id(0)
    o_v = tl.arange(0, BV)  # BV is V rounded up to a power of two
    b_sum = tl.zeros([BV], tl.float32)
    for t in range(i_c * CHUNK, (i_c + 1) * CHUNK, BT):
        o_t = t + tl.arange(0, BT)
        here = (o_t < T)[:, None] & (o_v < V)[None, :]
        b_v = tl.load(v + o_t[:, None] * V + o_v[None, :], mask=here, other=0.0)
        b_sum += tl.sum(b_v, 0)
    tl.store(content + i_c * V + o_v, b_sum)


lesson.check("bounds", sum_chunks)

# %% [markdown]
# ## Exercise 2: one owner
#
# Here the programs share the tokens, and all add to the same sums. Interpreted one after another they get it right. On
# a GPU two of them load the same sum, both add, and one result is lost. Make it right, and the same in every run.
#
# <details><summary>Hint 1</summary>An atomic addition would lose nothing. Are three numbers added in another order
# always the same to the last bit?</details>
# <details><summary>Hint 2</summary>What can be divided among the programs, other than the tokens?</details>
# <details><summary>Hint 3</summary>Program i owns the V // PROGRAMS columns from i * (V // PROGRAMS) on, and walks over
# all tokens.</details>


# %% tags=["exercise"]
@triton.jit
def add_up(v, content, T, V: tl.constexpr, BT: tl.constexpr, PROGRAMS: tl.constexpr):
    """content = the sum of all rows of v. v [T, V], content [V] and zero at the start; V is 16, 32 or 64."""
    i = tl.program_id(0)
    o_v = tl.arange(0, V)
    for t in range(i * BT, T, PROGRAMS * BT):
        o_t = t + tl.arange(0, BT)
        b_v = tl.load(v + o_t[:, None] * V + o_v[None, :], mask=(o_t < T)[:, None], other=0.0)
        tl.store(content + o_v, tl.load(content + o_v) + tl.sum(b_v, 0))


lesson.check("order", add_up)

# %% [markdown]
# ## Exercise 3: half the bytes
#
# The write of Algorithm 1 without the features: right, but it asks for far too much. Half of it passes; the best is
# every input and output once.
#
# <details><summary>Hint 1</summary>How often is a row of v loaded?</details>
# <details><summary>Hint 2</summary>Which of the two loops could be the outer one, and what would have to stay in
# registers then?</details>
# <details><summary>Hint 3</summary>Keep all R buckets, a block [R, V]. A tile adds the product of phi, transposed, and
# v: <code>tl.dot(tl.trans(b_phi), b_v, b_content)</code>.</details>


# %% tags=["exercise"]
@triton.jit
def write_buckets(phi, v, content, T, R: tl.constexpr, V: tl.constexpr, CHUNK: tl.constexpr, BT: tl.constexpr):
    """content[c, r] = the sum of phi[t, r] v[t] over chunk c. phi [T, R], v [T, V],
    content [chunks, R, V] and NaN at the start.
    """
    i_c = tl.program_id(0)
    o_v = tl.arange(0, V)
    for r in range(R):
        b_sum = tl.zeros([V], tl.float32)
        for t in range(i_c * CHUNK, (i_c + 1) * CHUNK, BT):
            o_t = t + tl.arange(0, BT)
            b_phi = tl.load(phi + o_t * R + r, mask=o_t < T, other=0.0)
            b_v = tl.load(v + o_t[:, None] * V + o_v[None, :], mask=(o_t < T)[:, None], other=0.0)
            b_sum += tl.sum(b_phi[:, None] * b_v, 0)
        tl.store(content + (i_c * R + r) * V + o_v, b_sum)


lesson.check("traffic", write_buckets)

# %% [markdown]
# A solution of each stands in `attnlab_kernels/testing/lesson_solutions.py`.
#
# ## What has been checked, and what has not
#
# The kernels are **compiled, resource-checked and interpreted; not run on a GPU**. *Compiled*: Triton's compiler made
# machine code for the GPUs below (NVIDIA's Ampere, Hopper and Blackwell, AMD's MI300). *Resource-checked*: no kernel
# moves registers out to memory for lack of room, or asks for more shared memory than there is. *Interpreted*: the
# numbers were compared with the reference, rounded as a tensor core rounds, and every address was looked at, as here.
#
# What only a GPU can tell stays open: how long a kernel takes, what caches save of the bytes requested, and whether
# the compiled program does what the interpreted one did.

# %%
assert not any(entry["spill_bytes"] for entry in lesson.compiled().values())

lesson.compiled_table()

# %% [markdown]
# ## On your own
#
# - In the first picture, why does `read` load the final state once a program, and what would it cost to store the
#   features of all queries instead?
# - `lesson.bytes_table(lesson.record(tokens=256, chunk=256, causal=True))`: no launch asks for more than its least now.
#   Which memories keep the whole pass above its own?
# - In exercise 2, programs could also keep their tokens, store their sums side by side, and let a second kernel add
#   those up. Which two kernels of RACE do that?
