"""Does LRKV train better than what it is compared with, for the same numbers in the cache? A small language model.

Bytes of English prose, 3 million parameters, six ways to keep keys and values:

    mha             a key and a value for each head
    gqa, mqa        fewer of them, shared by heads; one
    mla             one latent a token, keys and values made from it, and a rotated piece that all heads share
    lrkv-aligned    a shared key and value, and a small residual a head whose keys span whole rotary planes
    lrkv-expanded   the same with any factor: keys are made and rotated as they are read

Two comparisons, and in both all models have the same count of parameters, for the small network behind each attention
takes up what the attention leaves. *Same cache*: every scheme keeps as many numbers a token and layer as LRKV does
(mha-cache, gqa-cache, mqa-cache, mla-cache). *Usual shape*: heads as in LRKV, and the cache is what the scheme makes
of it (mha, gqa, mqa, mla).

All runs of a seed see the same windows in the same order. The learning rate is one for all, chosen by short runs of
LRKV and of MHA; where a scheme can spend the cache on more heads or on wider ones, short runs choose too. They are
judged on a piece of the text of its own. After training, each model writes on from pieces of the text that it has not
seen: once by whole passes, and once token by token from its cache.

    python -m attnlab.nn.cache_budget budget.json --workers 2
    python -m attnlab.nn.cache_budget budget.json --table

A run that is done is written at once, and a command that finds the file does the runs that are missing.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import platform
import pydoc_data.topics
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from attnlab import draws, progress
from attnlab.arrays import one_of
from attnlab.nn.layer import Layer, projection
from attnlab.nn.lrkv import GroupedAttention, LatentAttention, LRKVAttention

__all__ = [
    "ARMS",
    "SAME_CACHE",
    "USUAL_SHAPE",
    "Model",
    "Setting",
    "Shape",
    "ahead",
    "attention",
    "batch",
    "chosen_rate",
    "chosen_shape",
    "decoded",
    "main",
    "nats",
    "parts",
    "run",
    "shapes",
    "summary",
    "table",
    "text",
    "train",
]

SAME_CACHE = ("lrkv-aligned", "lrkv-expanded", "mha-cache", "gqa-cache", "mqa-cache", "mla-cache")
USUAL_SHAPE = ("mha", "gqa", "mqa", "mla")
ARMS = SAME_CACHE + USUAL_SHAPE
MATCHED = "lrkv-aligned"  # whose parameters and cache the others are given
RATED = ("lrkv-aligned", "mha")  # whose short runs choose the learning rate of all
TRIAL_SEED = 1000  # of the short runs; those that count have seeds 0, 1, 2
WINDOWS = 19  # a stream of random numbers
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}  # 97.5 % points of Student's t, by degrees of freedom


@dataclass(frozen=True)
class Setting:
    """What all arms share, and the shape of LRKV, from which all others follow."""

    width: int = 256
    heads: int = 8
    head_width: int = 32
    rank: int = 12  # of a head's residual keys, and of its residual values
    blocks: int = 4
    hidden: int = 1024  # of the small network of MATCHED
    context: int = 256  # bytes
    rows: int = 8  # windows a step
    steps: int = 500
    rates: tuple[float, ...] = (5e-4, 1e-3, 2e-3)
    warmup: float = 0.1  # of all steps; a cosine to 0 follows
    decay: float = 0.1
    looks: int = 10  # at the unseen text, on the way
    prompts: int = 8  # pieces that are written on
    prompt: int = 64  # bytes of each
    written: int = 64  # bytes that follow


# -- the text --


@cache
def text() -> bytes:
    """The help topics of Python (`help("topics")`), in the order of their names, as UTF-8.

    Topics quote each other, so a paragraph that came before is left out: else what is held out would hold much that was
    learned. Another version of Python has another text.
    """
    seen: dict[str, str] = {}
    for name in sorted(pydoc_data.topics.topics):
        for paragraph in pydoc_data.topics.topics[name].split("\n\n"):
            seen.setdefault(" ".join(paragraph.split()), paragraph.strip("\n"))
    seen.pop("", None)
    return "\n\n".join(seen.values()).encode()


def parts() -> dict[str, np.ndarray]:
    """The text as numbers 0 .. 255 in three pieces, each without a gap: the first 85 % are learned, the next 5 % judge
    short runs, the last 10 % judge the runs that count.
    """
    every = np.frombuffer(text(), np.uint8)
    learned, trial, held_out = np.split(every, [len(every) * 17 // 20, len(every) * 9 // 10])
    return {"learned": learned, "trial": trial, "held_out": held_out}


def batch(seed: int, step: int, setting: Setting) -> torch.Tensor:
    """Windows of the learned piece [rows, context + 1], from evenly drawn places; the same for every arm."""
    learned = parts()["learned"]
    places = draws.uniform(seed, WINDOWS, np.array([step]), setting.rows)[0] * (len(learned) - setting.context)
    return torch.from_numpy(learned[places.astype(np.int64)[:, None] + np.arange(setting.context + 1)].astype(np.int64))


# -- the arms --


class Shape(NamedTuple):
    """How an attention layer keeps keys and values: `kind` "grouped" has groups, "lrkv" a rank, "latent" the widths of
    its latent and of the rotated piece.
    """

    kind: str
    heads: int
    head_width: int
    groups: int = 0
    rank: int = 0
    latent_width: int = 0
    rope_width: int = 0
    expand: bool = False


def shapes(arm: str, setting: Setting) -> tuple[Shape, ...]:
    """The shapes that an arm has to choose from: most have one.

    Raises ValueError for another arm, and where a cache of LRKV's size cannot be cut into whole heads or groups.
    """
    one_of("arm", arm, ARMS)
    H, d, r = setting.heads, setting.head_width, setting.rank
    kept = d + H * r  # numbers of keys a token, and as many of values
    if arm.startswith("lrkv"):
        return (Shape("lrkv", H, d, rank=r, expand=arm == "lrkv-expanded"),)
    if arm.startswith("mla"):
        return (Shape("latent", H, d, rope_width=d // 2, latent_width=2 * kept - d // 2 if "cache" in arm else 4 * d),)
    if arm in USUAL_SHAPE:
        return (Shape("grouped", H, d, groups={"mha": H, "gqa": max(H // 4, 1), "mqa": 1}[arm]),)
    if kept % d or H % (kept // d) or kept % H:
        raise ValueError(f"rank must fill whole heads: head_width + heads * rank = {kept} is no such number")
    if arm == "gqa-cache":
        return (Shape("grouped", H, d, groups=kept // d),)
    if arm == "mha-cache":
        return tuple(Shape("grouped", h, kept // h, groups=h) for h in (kept // d, H))
    return tuple(Shape("grouped", h, kept, groups=1) for h in (H // 4, H // 2, H))


def attention(shape: Shape, width: int) -> Layer:
    """The attention layer of a shape; what turns with position turns by RoPE."""
    H, K = shape.heads, shape.head_width
    if shape.kind == "grouped":
        return GroupedAttention(width, H, head_width=K, groups=shape.groups)
    if shape.kind == "latent":
        c, turned = shape.latent_width, shape.rope_width
        return LatentAttention(width, H, head_width=K, latent_width=c, rope_width=turned)
    return LRKVAttention(width, H, head_width=K, rank=shape.rank, position="expand" if shape.expand else "aligned")


class Block(nn.Module):
    """x + attention(norm x), then x + network(norm x). What is added is 0 at first, so that arms begin alike."""

    def __init__(self, layer: Layer, hidden: int):
        super().__init__()
        width = layer.width
        self.before, self.between = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.attention = layer
        self.up, self.down = projection(width, hidden), projection(hidden, width)
        for last in (layer.out, self.down):
            nn.init.zeros_(last.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, T, width] -> [B, T, width]."""
        return self.network(x + self.attention(self.before(x)))

    def network(self, x: torch.Tensor) -> torch.Tensor:
        """[..., width] -> [..., width], each token by itself."""
        return x + self.down(functional.silu(self.up(self.between(x))))

    def step(self, x: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        """The same for the next token [B, width], which finds the earlier ones in the cache."""
        y, state = self.attention.step(self.before(x), state)
        return self.network(x + y), state


class Model(nn.Module):
    """Bytes [B, T] -> logits [B, T, 256] of the byte that follows each. The embedding is also what logits are made
    with.
    """

    def __init__(self, arm: str, setting: Setting, shape: Shape | None = None, hidden: int | None = None):
        super().__init__()
        shape = shapes(arm, setting)[0] if shape is None else shape
        self.hidden = hidden = matched_hidden(arm, setting, shape) if hidden is None else hidden
        self.embedding = nn.Embedding(256, setting.width)
        nn.init.normal_(self.embedding.weight, std=0.02)  # a byte's logit for itself begins at 5, not at 16
        self.blocks: Any = nn.ModuleList(Block(attention(shape, setting.width), hidden) for _ in range(setting.blocks))
        self.norm = nn.RMSNorm(setting.width, eps=1e-6)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of a whole pass, in which keys and values of every head are made."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.embedding.weight)

    def step(self, tokens: torch.Tensor, states: list[Any] | None = None) -> tuple[torch.Tensor, list[Any]]:
        """(logits [B, 256], states) after the next byte [B] of each row, from what the cache holds of earlier ones."""
        x, states = self.embedding(tokens), list(states or [None] * len(self.blocks))
        for i, block in enumerate(self.blocks):
            x, states[i] = block.step(x, states[i])
        return functional.linear(self.norm(x), self.embedding.weight), states

    def cache_elements(self) -> int:
        """How many numbers one layer keeps of one token."""
        layer = self.blocks[0].attention
        return layer.state_elements(2) - layer.state_elements(1)


def parameters(model: nn.Module) -> int:
    """How many numbers are learned."""
    return sum(x.numel() for x in model.parameters())


def matched_hidden(arm: str, setting: Setting, shape: Shape) -> int:
    """The width of the small network that brings an arm's parameters nearest to those of MATCHED.

    Raises ValueError where its attention alone has more.
    """
    if arm == MATCHED:
        return setting.hidden
    lean, wider = (parameters(Model(arm, setting, shape, hidden)) for hidden in (1, 2))
    hidden = 1 + round((parameters(Model(MATCHED, setting)) - lean) / (wider - lean))
    if hidden < 1:
        raise ValueError(f"hidden must be so large that {arm} has some of it left, got {setting.hidden}")
    return hidden


# -- one run --


def train(
    arm: str,
    seed: int,
    rate: float,
    setting: Setting,
    shape: Shape | None = None,
    told: Callable[[str], None] = progress.show,
) -> dict[str, Any]:
    """Train one model and judge it: its loss on unseen text in nats a byte, both curves, sizes, what it writes with its
    cache, seconds.

    Adam with decoupled weight decay of matrices, a short warm-up and a cosine to 0, gradients cut at length 1. `seed`
    is of the weights and of the windows. The last model is the one that counts, whatever the curve says.
    """
    torch.manual_seed(seed)
    shape = shapes(arm, setting)[0] if shape is None else shape
    model, judged = Model(arm, setting, shape), "trial" if seed == TRIAL_SEED else "held_out"
    groups = [[x for x in model.parameters() if (x.ndim > 1) is matrix] for matrix in (True, False)]
    decays = [{"params": x, "weight_decay": decay} for x, decay in zip(groups, (setting.decay, 0.0), strict=True)]
    optimizer = torch.optim.AdamW(decays, lr=rate, betas=(0.9, 0.95), fused=True)
    warm = max(1, round(setting.warmup * setting.steps))
    cooling = max(1, setting.steps - warm)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warm, 0.5 + 0.5 * np.cos(np.pi * max(0, step - warm) / cooling)),
    )
    curve, seen, recent, said, begun, used = [], [], [], 0.0, time.perf_counter(), time.process_time()
    for step in range(setting.steps):
        lost = loss(model, batch(seed, step, setting))
        optimizer.zero_grad()
        lost.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        recent.append(lost.item())
        done = step + 1
        if done % max(1, setting.steps // 30) == 0:
            curve.append([done, round(float(np.mean(recent)), 4)])
            recent = []
        if done % max(1, setting.steps // setting.looks) == 0 or done == setting.steps:
            seen.append([done, round(nats(model, judged, setting), 5)])
        now = time.perf_counter()
        if now - said > 0.25 or done == setting.steps:
            said, left = now, (now - begun) / done * (setting.steps - done)
            bar = f"[{'#' * (20 * done // setting.steps):<20}] {done}/{setting.steps}"
            told(f"{arm}, seed {seed}, rate {rate:g} {bar}, loss {lost.item():.3f}, {left:.0f} s left")
    return {
        "arm": arm,
        "seed": seed,
        "rate": rate,
        "shape": shape._asdict(),
        "steps": setting.steps,
        "nats": seen[-1][1],
        "learned": curve,
        "unseen": seen,
        "parameters": parameters(model),
        "hidden": model.hidden,
        "cache_elements": model.cache_elements(),
        "decoded": decoded(model, setting),
        "seconds_of_cpu": round(time.process_time() - used, 1),
    }


def loss(model: Model, windows: torch.Tensor) -> torch.Tensor:
    """Mean nats a byte of windows [B, T + 1], all but whose first byte are to be foretold."""
    return functional.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


@torch.no_grad()
def nats(model: Model, part: str, setting: Setting) -> float:
    """Mean nats a byte over a piece of the text, in windows that follow each other; a last one that is not full is left
    out. Divide by log 2 for bits a byte.
    """
    every, T = torch.from_numpy(parts()[part].astype(np.int64)), setting.context
    windows = every[: (len(every) - 1) // T * T + 1].unfold(0, T + 1, T)
    lost = [loss(model, x).item() * len(x) for x in windows.split(setting.rows)]
    return sum(lost) / len(windows)


@torch.no_grad()
def decoded(model: Model, setting: Setting) -> dict[str, Any]:
    """What the model writes after pieces of the unseen text, always the most likely byte: {"bytes", "same",
    "logits_apart", "sample"}.

    `same` counts bytes on which whole passes, which make every key and value, agree with steps from the cache; each way
    goes on from what it wrote itself. `logits_apart` is the largest distance between logits of the two over what the
    steps wrote. The sample is [the first piece, what the steps wrote after it].
    """
    every = torch.from_numpy(parts()["held_out"].astype(np.int64))
    places = torch.arange(setting.prompts)[:, None] * (len(every) // setting.prompts)
    prompts = every[places + torch.arange(setting.prompt)]
    whole = prompts
    for _ in range(setting.written):
        whole = torch.cat([whole, model(whole)[:, -1:].argmax(-1)], dim=1)
    stepped, states, said = prompts, None, []
    for t in range(setting.prompt + setting.written - 1):
        logits, states = model.step(stepped[:, t], states)
        said.append(logits)
        if t + 1 >= setting.prompt:
            stepped = torch.cat([stepped, logits.argmax(-1, keepdim=True)], dim=1)
    apart = (torch.stack(said, dim=1) - model(stepped[:, :-1])).abs().max().item()
    same = int((whole == stepped)[:, setting.prompt :].sum())
    first = bytes(stepped[0].tolist())
    sample = [part.decode(errors="replace") for part in (first[: setting.prompt], first[setting.prompt :])]
    return {"bytes": setting.prompts * setting.written, "same": same, "logits_apart": apart, "sample": sample}


# -- all runs --

Job = tuple[str, int, float, Setting, Shape]  # what `train` is given


def run(
    arms: Sequence[str],
    seeds: int,
    setting: Setting,
    path: Path | None = None,
    command: str = "",
    workers: int = 1,
    done: Callable[[str], None] = progress.say,
) -> dict[str, Any]:
    """Every run that is missing in the file at `path`, each written as it is done: short runs that choose the rate,
    those that choose shapes, then seed by seed. `workers` processes share them; the results do not depend on how many.
    Gives back {"task", "commands", "setting", "text", "versions", "trials", "runs"}.

    Raises ValueError for a file of another setting or of another text, which it leaves as it is.
    """
    held = text()
    record: dict[str, Any] = {
        "task": "what a cache of keys and values is spent on: a small language model, arXiv:2601.11471v3",
        "commands": [command] if command else [],
        "setting": json.loads(json.dumps(asdict(setting))),
        "text": {"bytes": len(held), "sha256": hashlib.sha256(held).hexdigest()},
        "versions": {"python": platform.python_version()}
        | {name: metadata.version(name) for name in ("numpy", "torch")},
        "trials": [],
        "runs": [],
    }
    if path is not None and path.exists():
        stored = json.loads(path.read_text(encoding="utf-8"))
        for name in ("setting", "text"):
            if stored.get(name) != record[name]:
                raise ValueError(f"{path} must hold runs of this {name}, got another; delete it, or name another file")
        record = stored
        record["commands"] += [command] if command and command not in record["commands"] else []

    def missing(kind: str, jobs: Iterable[Job]) -> None:
        known = [(x["arm"], x["seed"], x["rate"], Shape(**x["shape"])) for x in record[kind]]
        left = [job for job in jobs if (*job[:3], job[4]) not in known]
        for seen in _results(left, workers):
            record[kind].append(seen)
            if path is not None:
                write(path, record)
            done(f"{seen['arm']}, seed {seen['seed']}, rate {seen['rate']:g}: {seen['nats']:.4f} nats a byte")

    short = replace(setting, steps=max(1, setting.steps // 2))
    if len(setting.rates) > 1:
        rated = [(arm, shapes(arm, setting)[0]) for arm in RATED]
        missing("trials", ((arm, TRIAL_SEED, rate, short, shape) for arm, shape in rated for rate in setting.rates))
    rate = chosen_rate(record["trials"], setting)
    choosing = [(arm, own) for arm in arms if len(own := shapes(arm, setting)) > 1]
    missing("trials", ((arm, TRIAL_SEED, rate, short, shape) for arm, own in choosing for shape in own))
    chosen = {arm: chosen_shape(record["trials"], arm, setting) for arm in arms}
    missing("runs", ((arm, seed, rate, setting, chosen[arm]) for seed in range(seeds) for arm in arms))
    return record


def _results(jobs: Sequence[Job], workers: int) -> Iterator[dict[str, Any]]:
    """What `train` gives back for each job, in the order in which they are done."""
    if workers == 1:
        yield from (train(*job) for job in jobs)
        return
    start = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads in whatever state they are
    with ProcessPoolExecutor(workers, start, _begin) as pool:
        try:
            for future in as_completed([pool.submit(train, *job) for job in jobs]):
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _begin() -> None:
    """What a process does first; the one that started it says that it was stopped."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def chosen_rate(trials: list[dict[str, Any]], setting: Setting) -> float:
    """The rate with the least loss in the mean over RATED; where one is offered alone, that one."""
    if len(setting.rates) == 1:
        return setting.rates[0]
    seen = {rate: [x["nats"] for x in trials if x["arm"] in RATED and x["rate"] == rate] for rate in setting.rates}
    return min(seen, key=lambda rate: float(np.mean(seen[rate])))


def chosen_shape(trials: list[dict[str, Any]], arm: str, setting: Setting) -> Shape:
    """The shape of an arm whose trial had the least loss."""
    offered = shapes(arm, setting)
    own = {Shape(**x["shape"]): x["nats"] for x in trials if x["arm"] == arm}
    return min(offered, key=lambda shape: own[shape]) if len(offered) > 1 else offered[0]


def write(path: Path, record: dict[str, Any]) -> None:
    """One run a line; who reads the file finds the old one or the new one, never half of one."""
    lists = {name: record[name] for name in ("trials", "runs")}
    head = json.dumps({name: x for name, x in record.items() if name not in lists}, indent=1)[:-2]
    for name, runs in lists.items():
        head += f',\n "{name}": [\n  ' + ",\n  ".join(map(json.dumps, runs)) + "\n ]"
    beside = path.with_name(path.name + ".part")
    beside.write_text(head + "\n}\n", encoding="utf-8")
    os.replace(beside, path)


# -- what is said of them --


def ahead(record: dict[str, Any], arm: str, other: str = MATCHED) -> np.ndarray:
    """By how many nats a byte `other` is better than `arm`, for each seed that both have run."""
    losses = {name: {x["seed"]: x["nats"] for x in record["runs"] if x["arm"] == name} for name in (arm, other)}
    return np.array([losses[arm][seed] - losses[other][seed] for seed in sorted(losses[arm]) if seed in losses[other]])


def interval(values: np.ndarray) -> float:
    """Half of a 95 % interval of the mean by Student's t; infinite for a single value.

    Raises ValueError for none, or more than five.
    """
    if not 1 <= len(values) <= len(STUDENT) + 1:
        raise ValueError(f"values must be 1 to {len(STUDENT) + 1}, got {len(values)}")
    if len(values) == 1:
        return float("inf")
    return float(STUDENT[len(values) - 1] * values.std(ddof=1) / len(values) ** 0.5)


def summary(record: dict[str, Any]) -> list[dict[str, Any]]:
    """One row an arm: its sizes, seeds, mean loss in nats a byte with the least and the most over seeds, and by how
    much MATCHED is better at the same seed: "behind", with half of its 95 % interval, "give_or_take".
    """
    rows = []
    for arm in (arm for arm in ARMS if any(x["arm"] == arm for x in record["runs"])):
        own = [x for x in record["runs"] if x["arm"] == arm]
        losses, apart = [x["nats"] for x in own], ahead(record, arm)
        rows.append(
            {name: own[0][name] for name in ("arm", "parameters", "hidden", "cache_elements")}
            | {"shape": Shape(**own[0]["shape"]), "seeds": len(own)}
            | {"mean": float(np.mean(losses)), "least": min(losses), "most": max(losses)}
            | {"behind": float(apart.mean()), "give_or_take": 0.0 if arm == MATCHED else interval(apart)}
        )
    return rows


def table(record: dict[str, Any]) -> str:
    """The summary as Markdown: both comparisons, what can be told apart, what was written from the cache, and the short
    runs that chose.
    """
    rows = summary(record)
    lines = []
    for title, arms in (("Same cache", SAME_CACHE), ("Usual shape", (*SAME_CACHE[:2], *USUAL_SHAPE))):
        lines += [
            f"{title}:",
            "",
            "| arm | heads × width | kept | cache | network | nats a byte | bits a byte | more than lrkv-aligned |",
            "|---|---|---|" + "--:|" * 5,
        ]
        for row in (row for arm in arms for row in rows if row["arm"] == arm):
            shape = row["shape"]
            sizes = f"{shape.heads} × {shape.head_width} | {_kept(shape)} | {row['cache_elements']} | {row['hidden']}"
            loss = f"{row['mean']:.4f} ({row['least']:.4f}–{row['most']:.4f}) | {row['mean'] / np.log(2):.3f}"
            more = (
                "" if row["arm"] == MATCHED else f"{row['behind']:+.4f} ± {row['give_or_take']:.4f}".replace("-", "−")
            )
            lines.append(f"| {row['arm']} | {sizes} | {loss} | {more} |")
        lines.append("")
    others = [row for row in rows if row["arm"] != MATCHED]
    told = {
        "Worse than lrkv-aligned": [row["arm"] for row in others if row["behind"] > row["give_or_take"]],
        "Better": [row["arm"] for row in others if row["behind"] < -row["give_or_take"]],
        "Not told apart": [row["arm"] for row in others if abs(row["behind"]) <= row["give_or_take"]],
    }
    lines += ["; ".join(f"{words}: {', '.join(arms) or 'none'}" for words, arms in told.items()) + ".", ""]
    written = [x["decoded"] for x in record["runs"]]
    same, every = (sum(x[name] for x in written) for name in ("same", "bytes"))
    apart = max(x["logits_apart"] for x in written)
    lines += [
        f"Written from the cache, by {len(written)} models: {same:,} of {every:,} bytes are those of whole passes; "
        f"logits differ by {apart:.1e} at most.",
        "",
        f"Short runs, nats a byte on their own piece of the text; they chose the rate {record['runs'][0]['rate']:g}:",
        "",
        "| arm | heads × width | rate | nats a byte |",
        "|---|---|--:|--:|",
    ]
    for x in record["trials"]:
        lines.append(
            f"| {x['arm']} | {x['shape']['heads']} × {x['shape']['head_width']} | {x['rate']:g} | {x['nats']:.4f} |"
        )
    return "\n".join(lines) + "\n"


def _kept(shape: Shape) -> str:
    """What a layer keeps of a token, in words."""
    if shape.kind == "latent":
        return f"a latent of {shape.latent_width}, {shape.rope_width} turned"
    if shape.kind == "lrkv":
        return f"1 shared, rank {shape.rank} a head"
    return f"{shape.groups} of each" if shape.groups > 1 else "1 of each"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; runs go into a file, progress to stderr."""
    parser = argparse.ArgumentParser(prog="python -m attnlab.nn.cache_budget", description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path, help="a file to write each run to, and to go on from")
    parser.add_argument("--arm", default="all", help=f"all, or some of {', '.join(ARMS)}, with commas")
    parser.add_argument("--seeds", type=int, default=3, help="runs of an arm (3)")
    parser.add_argument("--steps", type=int, default=Setting.steps, help=f"of training ({Setting.steps})")
    parser.add_argument("--workers", type=int, default=1, help="processes, each of one thread (1)")
    parser.add_argument("--table", action="store_true", help="run nothing: print what the file holds as tables")
    given = parser.parse_args(arguments)
    if given.table:
        if not given.out.exists():
            parser.error(f"--table needs a file that is there, got {given.out}")
        record = json.loads(given.out.read_text(encoding="utf-8"))
        if not record["runs"]:
            parser.error(f"--table needs a file with runs, got none in {given.out}")
        print(table(record), end="")
        return 0
    arms = ARMS if given.arm == "all" else tuple(given.arm.split(","))
    for arm in arms:
        if arm not in ARMS:
            parser.error(f"--arm must be all or some of {', '.join(ARMS)}, got {arm!r}")
    for name, most in (("seeds", len(STUDENT) + 1), ("steps", 10**9), ("workers", 2**10)):
        if not 1 <= getattr(given, name) <= most:
            parser.error(f"--{name} must lie in [1, {most}], got {getattr(given, name)}")
    words = sys.argv[1:] if arguments is None else arguments
    command = " ".join(["python -m attnlab.nn.cache_budget", *words])
    torch.set_num_threads(1)
    try:
        run(arms, given.seeds, Setting(steps=given.steps), given.out, command, given.workers)
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        progress.say("\nStopped. The same command goes on.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
