# %% [markdown]
# # Exercises: low-rank keys and values
#
# *Low-Rank Key Value Attention*, arXiv:2601.11471v3. Pages below are PDF pages of that version.
#
# *You will* count what five caches hold, score and read one without making its keys, turn a key by its position, find
# the factors that a rotation passes through and one that it does not, and measure how different heads are. *You need*
# NumPy alone, and an hour or two; each exercise stands for itself.
#
# An exercise is three cells: what is asked, a function to fill in, and its check. A check draws new arrays every time
# and says what is wrong, and where. `lrkv.rotate.hint()` gives the next of three hints and `lrkv.rotate.solution()`
# shows ours. What you have solved is kept: `attnlab exercises` in a terminal lists it.

# %%
import numpy as np

from attnlab.exercises import lrkv
from attnlab.lrkv import accounting, diversity, rope, rotary
from attnlab.lrkv.widget import LrkvPanel

# %% [markdown]
# ## What a token leaves
#
# To write one token a model reads what all earlier ones left in its cache. The paper asks how much of that must be each
# head's own (pp. 1-4). In the panel, look at *Cache of a token*: it is set to one layer and one byte a number, so its
# bars count numbers. Move *H*, *d* and *r*, and watch which bars follow which dial. The last two bars are about more
# than the exercise: a number for a norm, and what a kernel reads that has a program for each head.

# %%
panel = LrkvPanel(stored="float8", layers=1, angle=45, first=1, second=2, position=3)
panel

# %%
lrkv.count_cache


# %% tags=["exercise"]
def count_cache(heads, head_width, groups, rank, latent_width, rope_width):
    raise NotImplementedError


# %%
lrkv.count_cache.check(count_cache)

# %% [markdown]
# ## Keys that are never made
#
# To put a key together takes 2 r operations for each of its numbers, at every step and for every token. Nothing needs
# the key itself, though: a query wants only its product with it (Eq. 6, p. 4).

# %%
lrkv.factored_logits


# %% tags=["exercise"]
def factored_logits(q, k_shared, k_latent, k_factor):
    raise NotImplementedError


# %%
lrkv.factored_logits.check(factored_logits)

# %% [markdown]
# With the values it is the same law from the other side: first read the latents, then B_h, once (Eq. 7, p. 4). That
# pays once more where a long cache is cut into parts that are read at the same time: they merge in V + R numbers a
# head, before B_h.

# %%
lrkv.merge_parts


# %% tags=["exercise"]
def merge_parts(lse, shared, latent, factor):
    raise NotImplementedError


# %%
lrkv.merge_parts.check(merge_parts)

# %% [markdown]
# ## Positions
#
# So far no key knew its place. RoPE turns it, plane by plane. Two layouts are in use, and a model that was trained with
# one computes nonsense with the other, without an error message.

# %%
lrkv.rotate


# %% tags=["exercise"]
def rotate(x, positions, theta):
    raise NotImplementedError


# %%
lrkv.rotate.check(rotate)

# %% [markdown]
# The paper says that factored decoding goes on under full RoPE (Sec. 3, p. 4). A rotation does distribute over the sum
# k_s + B z. But to use Eq. 6 on B z turned, latents must turn in place of keys, and that asks something of B. In the
# panel, look at *Two planes*: the span of B is a plane of a four-dimensional space, and what leaves it is drawn.
# Set φ to 0, 45 and 90 degrees: at which of these does nothing leave?

# %%
lrkv.passing_factor


# %% tags=["exercise"]
def passing_factor(frequency, rank, every_row):
    raise NotImplementedError


# %%
lrkv.passing_factor.check(passing_factor)

# %% [markdown]
# A factor that was trained without such a rule meets it nowhere exactly. How fast does nearly go wrong? *What leaves*
# in the panel draws the sine of the angle between span and turned span, over the position. Move φ, then the two planes,
# and say what each does to height and period before you compute.

# %%
lrkv.leaning_factor


# %% tags=["exercise"]
def leaning_factor(frequency, position, angle_rad):
    raise NotImplementedError


# %%
lrkv.leaning_factor.check(leaning_factor)

# %% [markdown]
# ## How different heads are
#
# Does sharing make heads alike? The paper compares them by A_h = W_h^Q (W_h^K)ᵀ, because a change of
# coordinates in which queries and keys turn together leaves A_h as it is (Sec. 4.3, pp. 7-9). In the panel, *Head
# diversity* has the measure before and after centring; move *shared part*.

# %%
lrkv.head_ranks


# %% tags=["exercise"]
def head_ranks(wq, wk):
    raise NotImplementedError


# %%
lrkv.head_ranks.check(head_ranks)

# %% [markdown]
# ## What it comes to
#
# The same three questions at the size of the paper's models: the cache at 2.5B (Table 7, p. 24), a factor that was not
# made for RoPE, and Table 3 (p. 16) beside its ceiling.

# %%
row = accounting.CONFIGURATIONS[2]
print(f"{row.label}: H = {row.heads}, r = {row.rank}, {float(row.ratio):.2%} of MHA's cache")
assert row.ratio * 2 * row.heads * 128 == 2 * (128 + row.heads * row.rank) == 2236

Q = rotary.orthonormal(np.random.default_rng(0).normal(size=(128, 32)))
left = [rotary.rotation(rope(128), 128, t) @ Q for t in range(1, 513)]
lost = np.mean([1 - np.sum((Q.T @ turned) ** 2) / 32 for turned in left])
print(f"rank 32 at random: {lost:.0%} of the squared length leaves, on average over 512 positions")
assert 0.6 < lost < 1 - 32 / 128

ceilings = [100 * diversity.ceiling(heads) / heads for heads in (6, 18)]
print(f"effective rank: MHA {diversity.TABLE_3[0][1:]} percent, at most {np.round(ceilings, 2)}")
assert all(printed < most for one in diversity.TABLE_3 for printed, most in zip(one[1:], ceilings, strict=True))
