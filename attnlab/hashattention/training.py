"""How the maps learn (Sec. 4.2, p. 5): from the queries and keys of a model that stays as it is, one layer at a time.

A token is important to a query if it is among the `top` of those outside the fixed windows by attention weight a, or by
a |v| (Lemma 4.1, p. 5). The maps are taught to say so, through tanh where the codes have a sign:
    s = tanh(F_q(q)) . tanh(F_k(k))                        what b minus twice the Hamming distance becomes without signs
    loss = -w+ y log sigmoid(s) - (1 - y) log(1 - sigmoid(s)), w+ = alpha + beta n            y = 1 where important
averaged over the pairs of a query and a key that it may choose; n is how many keys the query sees, and Adam does the
rest. One step takes some queries of one sequence and some of its keys; see `choose_keys`.

    python -m attnlab.hashattention.training OUT.safetensors      writes the shipped maps again; attnlab.data reads them

T queries, S keys, H query heads, G key/value heads, C key maps (G, or H), K and V widths, b bits. All heads learn at
once: a step is a few batched products. The same seed on as many threads gives the same maps.
"""

import argparse
import hashlib
import inspect
import itertools
import json
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from attnlab.arrays import Array, Axes, Float, as_numpy, check_shape, dial, one_of
from attnlab.hashattention.params import LARGEST_BITS, Maps
from attnlab.progress import say, show
from attnlab.tensors import as_tensor

__all__ = [
    "HashMaps",
    "Report",
    "Trained",
    "choose_keys",
    "importance_loss",
    "of_bits",
    "save",
    "train",
    "write_shipped",
]

LABELS = ("a", "av")
DEAD = 0.01  # a bit that so few tokens, or all but so few, have set says nothing
LAST_RATE = 0.05  # of the learning rate, at the end
REPORTS, JUDGES = 20, 64  # in one training; queries of a held-out sequence that are asked


class HashMaps(nn.Module):
    """F_q for H query heads and F_k for C key heads: perceptrons of the same widths (K, ..., b), SiLU between layers.

    C divides H; query head h is compared with key head h * C // H. Weights begin uniform within 1/sqrt(fan in), drawn
    from `generator`, torch's own if there is none.
    """

    def __init__(self, query_heads: int, key_heads: int, widths: Sequence[int], generator: Any = None):
        super().__init__()
        dial("query_heads", query_heads, 1, 2**20, integer=True)
        dial("key_heads", key_heads, 1, 2**20, integer=True)
        if query_heads % key_heads:
            raise ValueError(f"key_heads must divide query_heads = {query_heads}, got {key_heads}")
        for width in widths:
            dial("widths", width, 1, 2**20, integer=True)
        self.query = _Perceptrons(query_heads, widths, generator)
        self.key = _Perceptrons(key_heads, widths, generator)

    def forward(self, q: Float[Tensor, "H N K"], k: Float[Tensor, "C M K"]) -> Float[Tensor, "H N M"]:
        """S: how near each query is to each key of its head, from -b to b."""
        query, key = torch.tanh(self.query(q)), torch.tanh(self.key(k))
        (H, N, b), (C, M) = query.shape, key.shape[:2]
        return (query.reshape(C, H // C * N, b) @ key.mT).view(H, N, M)

    def maps(self) -> tuple[Maps, Maps]:
        """(query maps, key maps) as NumPy float64, for `encode`."""
        return self.query.maps(), self.key.maps()


class _Perceptrons(nn.Module):
    """F, one perceptron a head: x [H, N, K] -> [H, N, b]."""

    def __init__(self, heads: int, widths: Sequence[int], generator: Any = None):
        super().__init__()

        def uniform(fan_in: int, *shape: int) -> nn.Parameter:
            return nn.Parameter((2 * torch.rand(shape, generator=generator) - 1) * fan_in**-0.5)

        layers = list(itertools.pairwise(widths))
        self.weights = nn.ParameterList(uniform(i, heads, i, o) for i, o in layers)
        self.biases = nn.ParameterList(uniform(i, heads, o) for i, o in layers)

    def forward(self, x: Tensor) -> Tensor:
        for n, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias[:, None], functional.silu(x) if n else x, weight)
        return x

    def maps(self) -> Maps:
        weights, biases = (tuple(as_numpy(x).astype(np.float64) for x in xs) for xs in (self.weights, self.biases))
        return Maps(weights, biases)


class Report(NamedTuple):
    """How far a training is: the loss is the mean since the last report, the rest is of the held-out sequences."""

    step: int
    seconds: float  # since the beginning, reports included
    loss: float
    recall: float  # which part of the `top` is among the `top` nearest codes, mean over heads and queries
    imbalance: float  # mean |p - 1/2| over the bits of query and key codes, p the share of tokens that have the bit set
    dead: float  # the share of those bits that at least 99 of 100 tokens have alike


class Trained(NamedTuple):
    """Maps for H query heads and for C key heads, and how they came about."""

    query_maps: Maps
    key_maps: Maps
    history: tuple[Report, ...]


# -- one step --


def importance_loss(
    scores: Float[Tensor, "H N M"], important: Tensor, weight: Tensor, positive: Float[Tensor, " N"]
) -> Tensor:
    """The mean over the pairs of a query and a key that `weight` counts of -w+ y log sigmoid(s) - (1 - y) log(1 -
    sigmoid(s)). `important` is y, True or False as the scores are; `weight` [N, M] is how many pairs one stands for, 0
    where the query may not choose the key; `positive` is w+ of each query (p. 5).
    """
    each = functional.softplus(torch.where(important, -scores, scores))
    counted = weight * torch.where(important, positive[:, None], 1.0)
    return (counted * each).sum() / (weight.sum() * len(scores))


def choose_keys(
    important: Tensor, near: Tensor, keys: int, generator: Any = None
) -> tuple[Tensor, Float[Tensor, " M"]]:
    """(which of S keys a step compares, rising; how many each of them stands for): all, or `keys` of them. `important`
    and `near` say for each key, True or False [S], whether some query finds it so. Half of the places are for the
    important ones, half of the rest for those that are near, the rest for others; places that a kind does not need go
    to the next, those of the last to the ones before, and who gets them is drawn at random.

    A key stands for as many as its kind has over those drawn, so a sum over the chosen keys is on average over the
    draws the sum over all.
    """
    kinds = [kind.nonzero()[:, 0] for kind in (important, near & ~important, ~important & ~near)]
    places, left = keys, sum(map(len, kinds))
    chosen, share = [], []
    for n, kind in enumerate(kinds):
        left -= len(kind)
        taken = min(len(kind), max(places // 2 if n < 2 else places, places - left))
        places -= taken
        drawn = torch.randperm(len(kind), generator=generator)[:taken].to(kind.device)
        chosen.append(kind[drawn])
        share.append(torch.full((taken,), len(kind) / max(taken, 1), device=kind.device))
    both, order = torch.cat(chosen).sort()
    return both, torch.cat(share)[order]


class _Labels(NamedTuple):
    """Some queries of a sequence and all its keys."""

    logits: Tensor  # [H, N, S], -inf where the query may not choose the key
    free: Tensor  # where it may, [N, S]
    visible: Tensor  # n, [N]


class _Sequence(NamedTuple):
    """One captured sequence as [heads, tokens, width], of the type it came in."""

    q: Tensor
    k: Tensor
    v: Tensor

    def labels(self, queries: Tensor, how: "_How") -> _Labels:
        (H, T, K), (G, S) = self.q.shape, self.k.shape[:2]
        visible = S - T + 1 + queries
        index = torch.arange(S, device=queries.device)
        free = (index >= how.sinks) & (index < (visible - how.window)[:, None])
        q, k = self.q[:, queries].float(), self.k.float()
        logits = (q.reshape(G, -1, K) @ k.mT).view(H, -1, S) * K**-0.5
        if how.labels == "av":
            logits = logits + self.v.float().norm(dim=-1).log().repeat_interleave(H // G, 0)[:, None]
        return _Labels(logits.masked_fill(~free, -torch.inf), free, visible)

    def keys(self, C: int, which: Any = slice(None)) -> Tensor:
        """The keys as C key heads see them."""
        return self.k[:, which].float().repeat_interleave(C // len(self.k), 0)


class _How(NamedTuple):
    top: int
    labels: str
    sinks: int
    window: int

    def first(self, sequence: _Sequence) -> int:
        """The first query that may choose among more than `top` keys."""
        return max(self.sinks + self.window + self.top + 1 - (sequence.k.shape[1] - sequence.q.shape[1] + 1), 0)


def _best(scores: Tensor, count: int) -> Tensor:
    """Where the `count` largest of each row are, True or False; -inf never is."""
    values, index = scores.topk(min(count, scores.shape[-1]), dim=-1)
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, index, values > -torch.inf)


def _step_loss(
    module: HashMaps, sequence: _Sequence, how: _How, queries: Tensor, *, alpha, beta, keys, hard, generator
) -> Tensor:
    logits, free, visible = sequence.labels(queries, how)
    important = _best(logits, how.top)
    near = _best(logits, how.top + hard) if hard else important
    which, share = choose_keys(important.any(1).any(0), near.any(1).any(0), keys, generator)
    C = len(module.key.weights[0])
    scores = module(sequence.q[:, queries].float(), sequence.keys(C, which))
    return importance_loss(scores, important[..., which], free[:, which] * share, alpha + beta * visible.float())


# -- training --


def train(
    sequences: Iterable[tuple[Array, Array, Array]],
    *,
    bits: int = 32,
    hidden: Sequence[int] = (128, 128),
    labels: str = "a",
    top: int = 64,
    alpha: float = 0.0,
    beta: float | None = None,
    sinks: int = 128,
    window: int = 128,
    steps: int = 1000,
    seconds: float | None = None,
    queries: int = 48,
    keys: int = 2048,
    hard: int = 0,
    rate: float = 2e-3,
    key_codes: str = "kv",
    held_out: int = 1,
    seed: int = 0,
    device: Any = None,
    report: Callable[[Report], object] | None = None,
) -> Trained:
    """Maps that find the `top` important tokens of the queries of one layer, learned from captured sequences.

    `sequences` are (q [B, T, H, K], k [B, S, G, K], v [B, S, G, V]), each row one sequence, the newest query at the
    newest key; all have the same heads and widths. The last `held_out` rows are not learned from: reports are about
    them (about all rows where it is 0). `hidden` are the widths between K and `bits`.

    `alpha` and `beta` are those of w+; `beta` is 1/top unless given, by which the important tokens together weigh as
    much as the others. A step takes `queries` of one sequence and at most `keys` of its keys (`choose_keys`), among
    which the `hard` keys that follow each query's important ones have places of their own. Adam's `rate` falls to a
    twentieth in a straight line. `seconds` ends a training early, and then the rate falls with the time; without it the
    result depends on the seed and torch's number of threads alone. `key_codes` is "kv" for a key map a key/value head,
    "query" for one a query head. `report` is called twenty times with a Report; without it the terminal shows them.

    Raises ValueError or TypeError naming the argument; no sequence may be too short to have an unimportant token.
    Source: arXiv:2412.14468v2, Sec. 4.2, p. 5; the time-saving choice of keys is ours.
    """
    bits, top, sinks, window, steps, queries, keys, hard, held_out, seed = (
        dial(name, value, low, high, integer=True)
        for name, value, low, high in (
            ("bits", bits, 1, LARGEST_BITS), ("top", top, 1, 2**20), ("sinks", sinks, 0, 2**40),
            ("window", window, 0, 2**40), ("steps", steps, 1, 2**40), ("queries", queries, 1, 2**20),
            ("keys", keys, 4, 2**40), ("hard", hard, 0, 2**20), ("held_out", held_out, 0, 2**20),
            ("seed", seed, 0, 2**32),
        )
    )  # fmt: skip
    beta = 1 / top if beta is None else beta
    for name, size in {"alpha": alpha, "beta": beta, "rate": rate}.items():
        dial(name, size, 0, 1e6)
    if alpha == beta == 0:
        raise ValueError("alpha or beta must be above 0, else nothing is important: got 0 for both")
    if seconds is not None:
        dial("seconds", seconds, 0, 1e9)
    one_of("key_codes", key_codes, ("kv", "query"))
    how = _How(top, one_of("labels", labels, LABELS), sinks, window)
    rows = [_Sequence(*(x.to(device) for x in row)) for row in _rows(sequences)]
    if len(rows) <= held_out:
        raise ValueError(f"sequences must be more than held_out = {held_out}, got {len(rows)}")
    for row in rows:
        if how.first(row) >= row.q.shape[1]:
            least = sinks + window + top + 1
            raise ValueError(
                f"sequences must have at least sinks + window + top + 1 = {least} keys, got {row.k.shape[1]}"
            )
    learned, judged = rows[: len(rows) - held_out], rows[len(rows) - held_out :] or rows

    generator = torch.Generator().manual_seed(seed)
    H, K, G = rows[0].q.shape[0], rows[0].q.shape[2], rows[0].k.shape[0]
    module = HashMaps(H, G if key_codes == "kv" else H, (K, *hidden, bits), generator).to(device)
    optimizer = torch.optim.Adam(module.parameters(), lr=rate)
    history: list[Report] = []
    losses: list[Tensor] = []
    began = time.monotonic()
    done, step = 0.0, 0
    while done < 1:
        for group in optimizer.param_groups:
            group["lr"] = rate * (1 - (1 - LAST_RATE) * done)
        row = learned[int(torch.randint(len(learned), (), generator=generator))]
        asked = torch.randint(how.first(row), row.q.shape[1], (queries,), generator=generator).to(row.q.device)
        options: dict[str, Any] = {"alpha": alpha, "beta": beta, "keys": keys, "hard": hard, "generator": generator}
        loss = _step_loss(module, row, how, asked, **options)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())

        step, before = step + 1, done
        spent = time.monotonic() - began
        done = step / steps if seconds is None else max(step / steps, spent / seconds if seconds else 1.0)
        if done >= 1 or int(done * REPORTS) > int(before * REPORTS):
            seen = Report(step, spent, float(torch.stack(losses).mean()), *_judged(module, judged, how))
            history, losses = [*history, seen], []
            (report or _show)(seen)
    if report is None:
        show("")
    return Trained(*module.maps(), tuple(history))


def _rows(sequences: Iterable[tuple[Array, Array, Array]]) -> list[_Sequence]:
    """Every row of every batch, checked."""
    rows: list[_Sequence] = []
    common: Axes = {}
    for n, row in enumerate(sequences):
        if not isinstance(row, (tuple, list)) or len(row) != 3:
            raise TypeError(f"sequences[{n}] must be a tuple (q, k, v), got {type(row).__name__}")
        q, k, v = row
        sizes: Axes = dict(common)
        for name, x, axes in (("q", q, "B T H K"), ("k", k, "B S G K"), ("v", v, "B S G V")):
            check_shape(f"{name} of sequences[{n}]", x, axes, sizes, floating=True)
        common = {letter: sizes[letter] for letter in "HKGV"}
        (H, owner), (G, _), (T, _), (S, of_k) = (sizes[letter] for letter in "HGTS")
        if not G or H % G:
            raise ValueError(f"{of_k} must have a number of heads that divides the {H} of {owner}, got {G}")
        if T > S:
            raise ValueError(f"{of_k} must have at least as many positions as q, so S >= {T}, got S = {S}")
        tensors = {name: as_tensor(x).detach().transpose(1, 2) for name, x in zip("qkv", (q, k, v), strict=True)}
        for name, tensor in tensors.items():
            if not bool(tensor.isfinite().all()):
                raise ValueError(f"{name} of sequences[{n}] must be finite, got NaN or inf")
        rows += [_Sequence(*row) for row in zip(*tensors.values(), strict=True)]
    return rows


@torch.no_grad()
def _judged(module: HashMaps, rows: list[_Sequence], how: _How) -> tuple[float, float, float]:
    """(recall, imbalance, dead) over some sequences, with the codes as they are used."""
    recalls, ones, tokens = [], [], []
    for row in rows:
        query, key = module.query(row.q.float()) > 0, module.key(row.keys(len(module.key.weights[0]))) > 0
        ones.append(torch.cat([query.sum(1).flatten(), key.sum(1).flatten()]))
        tokens.append(torch.cat([torch.full((x.shape[0] * x.shape[2],), x.shape[1]) for x in (query, key)]))
        first, T = how.first(row), row.q.shape[1]
        asked = torch.linspace(first, T - 1, min(JUDGES, T - first), device=row.q.device).long()
        logits, free, _ = row.labels(asked, how)
        H, C, S = len(query), len(key), key.shape[1]
        signs = 2.0 * query[:, asked].double() - 1, 2.0 * key.double() - 1
        near = (signs[0].view(C, -1, signs[0].shape[-1]) @ signs[1].mT).view(H, -1, S)
        near = near * S - torch.arange(S, device=near.device)  # whole numbers: of equals the lowest index is first
        true, chosen = _best(logits, how.top), _best(near.masked_fill(~free, -torch.inf), how.top)
        recalls.append((true & chosen).sum() / true.sum())
    share = torch.stack(ones).sum(0).cpu() / torch.stack(tokens).sum(0)
    return float(torch.stack(recalls).mean()), *of_bits(as_numpy(share))


def of_bits(share: Float[Array, "..."]) -> tuple[float, float]:
    """(imbalance, dead) of bits that such shares of the tokens have set: mean |p - 1/2|, and which part of the bits at
    least 99 of 100 tokens have alike.
    """
    return float(np.abs(share - 0.5).mean()), float(((share <= DEAD) | (share >= 1 - DEAD)).mean())


def _show(seen: Report) -> None:
    show(
        f"step {seen.step}, {seen.seconds:.0f} s: loss {seen.loss:.3f}, recall {seen.recall:.3f}, "
        f"imbalance {seen.imbalance:.2f}, dead bits {seen.dead:.0%}"
    )


# -- the file --


def save(
    path: str | Path, layers: Mapping[int, tuple[Maps, Maps]], about: Mapping[str, Any], dtype: Any = np.float32
) -> None:
    """Write (query maps, key maps) of some layers with whatever is to be said about them; `data.read_maps` reads them.

    float32 keeps trained maps exactly. Raises ValueError where a number does not fit into `dtype`.
    """
    from safetensors.numpy import save as as_bytes

    arrays = {}
    for layer, both in layers.items():
        for side, maps in zip(("query", "key"), both, strict=True):
            for part, xs in maps._asdict().items():
                for n, x in enumerate(xs):
                    with np.errstate(over="ignore"):
                        stored = np.ascontiguousarray(x, dtype=dtype)
                    if not np.isfinite(stored).all():
                        raise ValueError(f"dtype must hold the numbers of layer {layer}, got {np.dtype(dtype)}")
                    arrays[f"layers.{layer}.{side}.{part}.{n}"] = stored
    # one metadata entry, for safetensors writes several in no fixed order
    described = {"layers": list(layers), **about}
    Path(path).write_bytes(as_bytes(arrays, metadata={"attnlab.maps": json.dumps(described)}))


# -- the shipped maps --

SHIPPED_STEPS, SHIPPED_BETA = 4000, 1 / 64
SHIPPED_FROM = 1024  # the first query of the shipped heads that recall is measured on
JUDGED = {  # by what name the file has it: a selector, its bits, and how many seeds
    "hash 32": ("hash", 32, 1),
    "lsh_centred 32": ("lsh_centred", 32, 4),
    "lsh_centred 64": ("lsh_centred", 64, 4),
    "lsh_centred 128": ("lsh_centred", 128, 4),
    "key_norm": ("key_norm", 32, 1),
    "past_mean": ("past_mean", 32, 1),
}


def write_shipped(out: Path) -> None:
    """Capture the text beside the shipped passage, train maps for every shipped layer, measure them on the shipped
    heads, which nothing was learned from, and write all this into one file of float16 numbers.
    """
    from attnlab import models
    from attnlab.data import real_heads

    shipped = real_heads()
    topics, text = models.other_text()
    say("loading the model")
    language_model = models.load()
    ids = language_model.tokenizer(text)["input_ids"]
    starts = range(0, len(ids) - models.TOKENS + 1, models.TOKENS)
    captured: dict[int, list[Any]] = {layer: [] for layer in shipped.layers}
    for start in starts:
        show(f"running {max(shipped.layers) + 1} layers on tokens {start} to {start + models.TOKENS} of {len(ids)}")
        heads = models.capture_heads(
            ids[start : start + models.TOKENS], shipped.layers, shipped.query_heads, language_model=language_model
        )
        for layer in shipped.layers:
            captured[layer].append(heads[layer])
    show("")
    layers: dict[int, tuple[Maps, Maps]] = {}
    trained, recall = {}, {}
    for layer in shipped.layers:
        say(f"training layer {layer} for {SHIPPED_STEPS} steps")
        found = _on_one_thread(captured[layer], steps=SHIPPED_STEPS, beta=SHIPPED_BETA)
        layers[layer] = _rounded(found.query_maps), _rounded(found.key_maps)
        trained[layer] = {name: x for name, x in found.history[-1]._asdict().items() if name != "seconds"}
        recall[layer] = _recall(shipped.layer(layer), *layers[layer])
        say(f"layer {layer}: recall@64 {recall[layer]}")
    about = {
        "query_heads": shipped.query_heads,
        "kv_heads": shipped.kv_heads,
        "model": shipped.provenance["model"],
        "model_sha256": shipped.provenance["model_sha256"],
        "model_licence": shipped.provenance["model_licence"],
        "text_source": f"pydoc_data.topics of CPython {platform.python_version()}, the {len(topics)} topics named in "
        f"text_topics: those that share no paragraph with {models.TOPIC!r}",
        "text_topics": topics,
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "text_licence": "PSF-2.0",
        "sequences": f"{len(starts)} of {models.TOKENS} tokens, each from position 0; the last one held out",
        "settings": {**_defaults(train), "steps": SHIPPED_STEPS, "beta": SHIPPED_BETA},
        "threads": 1,
        "last_report": trained,
        "recall_at_64": recall,
        "recall_of": f"the shipped heads, one number a head: queries {SHIPPED_FROM} to {models.TOKENS - 1}, budget 64, "
        f"sinks and window 128; lsh_centred is the mean of seeds 0 to 3",
        "precision": "trained in float32, stored in float16, measured as stored",
        "versions": ", ".join(f"{name} {metadata.version(name)}" for name in models.VERSIONS_OF),
        "command": "python -m attnlab.hashattention.training hash_maps.safetensors",
    }
    save(out, layers, about, np.float16)
    say(f"wrote {out}, {out.stat().st_size / 2**20:.2f} MiB")


def _on_one_thread(sequences: list[Any], **settings: Any) -> Trained:
    """So that no sum depends on how many there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return train(sequences, **settings)
    finally:
        torch.set_num_threads(before)


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Every option of a function with its value if nothing is said."""
    options = inspect.signature(function).parameters.values()
    return {option.name: option.default for option in options if option.default is not inspect.Parameter.empty}


def _rounded(maps: Maps) -> Maps:
    """As float16 keeps them."""
    return Maps(*(tuple(x.astype(np.float16).astype(np.float64) for x in xs) for xs in maps))


def _recall(heads: Any, query_maps: Maps, key_maps: Maps) -> dict[str, list[float]]:
    """Recall@64 of the maps and of who learned nothing, a number for each of the shipped heads of a layer."""
    from attnlab.hashattention import selectors
    from attnlab.hashattention.reference import encode

    q, k, v = heads
    codes: dict[str, Any] = {"query_codes": encode(q, query_maps), "key_codes": encode(k, key_maps)}
    found: dict[str, list[float]] = {}
    for name, (selector, bits, seeds) in JUDGED.items():
        found[name] = []
        for h in range(q.shape[2]):
            head = selectors.head_of(q, k, v, 0, h, **codes)
            options = [selectors.Options(bits=bits, seed=seed) for seed in range(seeds)]
            each = [selectors.measure(selector, head, budget=64, options=x).recall[SHIPPED_FROM:] for x in options]
            found[name].append(round(float(np.mean(each)), 4))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the shipped maps again; the exit status is 1, with one sentence on stderr, when the model is missing."""
    from attnlab.models import ModelMissing

    parser = argparse.ArgumentParser(
        prog="python -m attnlab.hashattention.training", description="Write the shipped hash maps again."
    )
    parser.add_argument("out", type=Path, metavar="OUT.safetensors")
    try:
        write_shipped(parser.parse_args(arguments).out)
    except ModelMissing as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
