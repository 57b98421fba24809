# %% [markdown]
# # Let bits choose the tokens: HashAttention
#
# *HashAttention: Semantic Sparsity for Faster Inference*, arXiv:2412.14468v2. Pages below are PDF pages of that
# version.
#
# *You will* work one query by hand, move the whole mechanism, find a counterexample to a formula of the paper and then
# another one, hold learned bits against selectors that learned nothing, and train bits of your own in a minute. *You
# need* NumPy; torch for the one cell that trains.

# %%
from fractions import Fraction

import numpy as np

from attnlab import backend, data, parity
from attnlab.dense import unit
from attnlab.hashattention import HashParams, attention, encode, rational, reference, select, selectors, view
from attnlab.hashattention.widget import Counterexamples, HashPanel

# %% [markdown]
# ## Bits, distance, a set
#
# A decoder reads all keys for every new token. Here a map turns each key into b bits when it is written, and the query
# into b bits when it asks; a key's score is minus the **Hamming distance**, in how many bits the two differ (Eq. 1,
# p. 4). Of the whole cache only these bits are looked at: four bytes a token, for 32 of them.

# %%
query, keys = [1, 0, 1, 1], [[1, 0, 1, 1], [1, 0, 0, 1], [0, 1, 1, 0]]
query_code, key_codes = reference.pack(np.array(query)), reference.pack(np.array(keys))
distance = reference.hamming(query_code, key_codes)
print("words", query_code, key_codes.ravel(), " distances", distance)

product = (2 * np.array(keys) - 1) @ (2 * np.array(query) - 1)  # the same bits as +1 and -1
assert distance.tolist() == [0, 1, 3]
assert np.array_equal(distance, (4 - product) // 2)

# %% [markdown]
# What is read is a **set** (Sec. 4.1, p. 5): the first tokens, the newest ones, and of the rest the m nearest; ties go
# to the lower index, and no token is in it twice. Over this set runs an ordinary softmax, with the original keys and
# values. Sixteen tokens, one query:

# %%
toy = HashParams(tokens=16, sinks=1, window=2, budget=3)
q, k, v, words = toy.inputs()
query_codes, key_codes = view.codes(toy)
distance = reference.hamming(query_codes[0, -1, 0], key_codes[0, :, 0])
chosen = reference.selected(distance, budget=3, sinks=1, window=2)
print(f"query {words[-1]} reads", [f"{words[i]} at {distance[i]}" for i in chosen])

weights = np.exp(k[0, chosen, 0] @ q[0, -1, 0] / np.sqrt(16))
by_hand = weights @ v[0, chosen, 0] / weights.sum()
out = attention(q, k, v, query_codes, key_codes, budget=3, sinks=1, window=2)
assert len(chosen) == 1 + 2 + 3
assert np.allclose(out[0, -1, 0], by_hand, rtol=1e-12)

# %% [markdown]
# The paper's setting keeps 128 first and 128 newest tokens. With a budget of 1,024 that is 1,280 of 16,384 tokens, one
# in 12.8. All 16,384 codes are still compared: the search is a scan, and what is saved is the reading of keys and
# values, not their storage. A budget of everything is dense attention.

# %%
codes = np.random.default_rng(0).integers(0, 2**32, (1, 16384, 1, 1), np.uint32)
read = select(codes[:, -1:], codes, budget=1024)
print(f"{read.shape[-1]} of 16384 tokens, {read.shape[-1] / 16384:.4%}")

dense = attention(q, k, v, query_codes, key_codes, budget=1.0)  # a number with a point is a fraction
weights = np.exp(k[0, :, 0] @ q[0, -1, 0] / np.sqrt(16))
assert read.shape[-1] == 1280
assert np.allclose(dense[0, -1, 0], weights @ v[0, :, 0] / weights.sum(), rtol=1e-12)

# %% [markdown]
# ## Move it
#
# The grid has a column for each key, nearest first, and shows where its bits differ from the query's; its lowest rows
# mark the keys with the largest logits, and those that are read. Point at a row of *What is read*, and everything shows
# that query; click a key, and its text, its bits and its place in both orders are told. The three curves hold the codes
# against who else could choose, at every budget. Toy codes are signs of random projections; nothing has learned.

# %%
panel = HashPanel()
panel

# %% [markdown]
# ## A lift that turns the order around
#
# Signs of random projections see angles, not lengths. So Sec. 4.3 (p. 5) first lifts all keys to one length M: key k
# becomes [k, √(M² − |k|²)], and the query is printed as [q, 1, 1], a 1 beside what was added to the keys. But then the
# inner product is q·k **plus** √(M² − |k|²), and short keys move ahead. Two keys of one number, in exact fractions
# (values of length 1 leave the coordinate of the values at 0):

# %%
example = rational.STORED["lift"][1]
print(f"q = {example.q}, keys {' and '.join(map(str, example.keys))}, M = {example.longest}")
print("q k             ", *example.products())
print("lifted, query 1 ", *example.lifted(1))
print("lifted, query 0 ", *example.lifted(0))

assert rational.verify(example)
assert example.lifted(1) == (Fraction(7, 5), 1)  # the farther key is ahead
assert example.lifted(0) == example.products()  # with 0 in its place nothing is added

# %% [markdown]
# One example is no accident. The button finds another one each time; each is checked without rounding, and
# `shown.example` is the one on the screen. Other kinds are in `rational.KINDS`.

# %%
shown = Counterexamples("lift")
shown

# %%
for number in range(1, 5):
    other = rational.find("lift", number)
    print(f"q = {other.q!s:<4} keys {', '.join(map(str, other.keys)):<14}", end="")
    print(" q k", *other.products(), " lifted", *other.lifted())
    assert rational.verify(other)
    assert other.products()[0] < other.products()[1]
    assert other.lifted()[0] > other.lifted()[1]

# %% [markdown]
# There is a remedy without a lift: subtract the mean key. All logits of a query move by the same number, so their order
# and their softmax stay as they are, while keys that pointed the same way spread out. Random codes below are always of
# such keys.

# %%
q, k = (x[0, :, 0] for x in HashParams(input="layer 21, head 0").inputs()[:2])
centred = k - k.mean(axis=0)
moved = q @ k.T - q @ centred.T
cosine = [np.mean(unit(keys) @ unit(keys).T) for keys in (k, centred)]
print(f"keys at cosine {cosine[0]:.2f}, centred {cosine[1]:.2f}")
print(f"what is subtracted from a query's logits differs by {np.ptp(moved, axis=1).max():.0e}")

assert np.ptp(moved, axis=1).max() < 1e-10
assert cosine[0] > 0.3 > 0.1 > cosine[1]

# %% [markdown]
# ## What a token contributes on its own
#
# The bits learn to find the tokens with the largest a|v|, attention weight times length of the value (Lemma 4.1, p. 5).
# App. B.1 (p. 13) argues that these leave the smallest error. Keep one token of three, the others' values are opposed:

# %%
kept = rational.STORED["isolated"][2]
for a, value, part, error in zip(kept.weights, kept.values, kept.contributions(), kept.errors(), strict=True):
    print(f"weight {a!s:<5} value {value!s:>2}   contributes {part!s:<5} keeping it alone leaves |o - o'| = {error}")

largest = kept.contributions().index(max(kept.contributions()))
best = kept.errors().index(min(kept.errors()))
assert (kept.errors()[largest], kept.errors()[best]) == (Fraction(3, 20), Fraction(1, 10))
assert rational.verify(kept)
assert all(rational.verify(rational.find("renormalised", number)) for number in range(20))  # nor with weights made 1

# %% [markdown]
# The token that contributes most is the wrong one to keep: errors add up with their signs. It is a good rule of thumb,
# and no optimum.
#
# ## Learned against random, on real heads
#
# Now q and k come from SmolLM2-135M-Instruct; the shipped maps have learned from other text. Of the 64 largest logits
# outside the windows, which part do 64 reads find? Before you look at the codes, look at who knows nothing of the
# query: the 64 **shortest keys**, and the keys that **past queries** attended to most. Mean of three heads, 128
# queries.

# %%
heads, recall = data.real_heads(), {}
who = {"learned": ("hash", 32), "random": ("lsh_centred", 32), "random, 128 bits": ("lsh_centred", 128)}
who |= {"short keys": ("key_norm", 32), "past mean": ("past_mean", 32)}
print(f"{'':<10}", "  ".join(who))
for layer in heads.layers:
    q, k, v = (x.astype(np.float64) for x in heads.layer(layer))
    codes = [encode(x, maps) for x, maps in zip((q, k), data.hash_maps(layer), strict=True)]
    given = {"query_codes": codes[0][:, -256:], "key_codes": codes[1]}
    three = [selectors.head_of(q[:, -256:], k, v, 0, h, **given) for h in range(3)]
    for name, (selector, bits) in who.items():
        options = selectors.Options(bits=bits)
        found = [selectors.measure(selector, head, budget=64, options=options).recall[-128:].mean() for head in three]
        recall[layer, name] = np.mean(found)
    print(f"layer {layer:>2}  ", "  ".join(f"{recall[layer, name]:{len(name)}.2f}" for name in who))

# %% [markdown]
# Learned bits find about three times what as many random ones find, and more than 128 random ones. But a high recall
# alone says little: in the middle layer, keys that are chosen without looking at the query are about as good. And the
# past mean, one number a token, is the best of all on layer 2 and close elsewhere. (The page of the paper has the same
# for 1,024 queries, from 1,024 on: these are the last 128.)

# %%
for layer in heads.layers:
    print(f"layer {layer}: {recall[layer, 'learned'] / recall[layer, 'random']:.1f} times random")

assert all(recall[layer, "learned"] > 1.5 * recall[layer, "random"] for layer in heads.layers)
assert recall[21, "learned"] > 2 * max(recall[21, "random"], recall[21, "short keys"])
assert max(recall[9, "short keys"], recall[9, "past mean"]) > 0.75 * recall[9, "learned"]

# %% [markdown]
# Look at both. In the late layer the codes follow the query; in the middle one, choose *short keys* under *selector*:
# the same columns for every query, and the curve beside that of the codes.

# %%
HashPanel(input="layer 21, head 1", codes="learned", tokens=128, query=128, budget=16, top=16)

# %%
HashPanel(input="layer 9, head 1", codes="learned", selector="key_norm", tokens=128, query=128, budget=16, top=16)

# %% [markdown]
# ## Train your own
#
# The model stays as it is; two small perceptrons learn, through tanh in place of the sign, to tell a query's 64 most
# important keys from the rest (Sec. 4.2, p. 5). Here they see the first half of the shipped text, 1,024 tokens, and are
# judged on the queries of the second half. `steps` are few, so that this takes seconds; the defaults of `train`, a
# thousand larger steps, take about half a minute on two cores, and the shipped maps took four thousand, of more text.
# The recall on the way is that of queries from all over the second half; the last line is of the same ones as above.

# %%
steps, layer = 60, 21
q, k, v = heads.layer(layer)
sequences = [(q[:, :1024], k[:, :1024], v[:, :1024]), (q[:, 1024:], k, v)]  # the last one is held out
if backend.found("torch"):
    from attnlab.hashattention.training import train

    trained = train(sequences, steps=steps, queries=32, keys=512, seed=0, report=lambda seen: print(
        f"\rstep {seen.step:>4}  loss {seen.loss:.2f}  recall {seen.recall:.3f}  dead bits {seen.dead:.0%}", end=""
    ))  # fmt: skip
else:
    print("The package torch is not installed; get it with: pip install torch")

# %%
if backend.found("torch"):
    learned = [encode(x.astype(np.float64), maps) for x, maps in zip((q, k), trained[:2], strict=True)]
    given = {"query_codes": learned[0][:, -256:], "key_codes": learned[1]}
    three = [selectors.head_of(q[:, -256:], k, v, 0, h, **given) for h in range(3)]
    mine = np.mean([selectors.measure("hash", head, budget=64).recall[-128:].mean() for head in three])
    print(f"yours {mine:.2f}, random {recall[layer, 'random']:.2f}, shipped {recall[layer, 'learned']:.2f}")
    assert mine > 1.1 * recall[layer, "random"]

# %% [markdown]
# ## The same operator, faster
#
# Every implementation that can run here, for one real head with learned codes, against the float64 reference. The codes
# are arguments, so all are asked for the same set; the tolerance is computed. Without a GPU the Triton kernel is
# interpreted, in a process of its own: its numbers are compared, and it has no speed.

# %%
case, terms = view.verification(HashParams(input="layer 21, head 1", codes="learned", tokens=128, budget=16))
for report in parity.verify("hashattention", case, terms=terms):
    print(
        f"{report.impl:<10}",
        report.why_not or f"{report.device}: error {report.max_rel:.1e} of a row, allowed {report.tolerance:.1e}",
    )
    assert report.ok or report.why_not

# %% [markdown]
# ## On your own
#
# - In the panel, set *bits* to 1, then raise them. From how many bits on are random codes as good as the learned 32 on
#   layer 21, head 1? The table above has a hint.
# - Set the first and the newest tokens to 0. Which of the three curves falls most, and in which layer?
# - Give `train` `labels="av"`: importance is then a|v|. Does the recall of the largest logits suffer, and does the
#   output error gain?
# - `rational.search("isolated")` lists every small counterexample, the smallest first. Is there one with two tokens?
