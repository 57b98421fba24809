"""Multi-query associative recall: does remembering errors help a trained model to look things up?

A sequence holds n pairs of a key and a value, then every key once more in a random order; at each of these the model
must name the value that stood behind the key. Keys differ within a sequence, values too. The task is that of Zoology
(arXiv:2312.04927); here the questions follow one upon the other, where Zoology spreads them out.

    key value key value ... key value | key key ... key        3 n tokens, n of them judged

Every method stands in the same model, two blocks of attention and a small network behind a short convolution, and has
the same number of state elements and, to about a per cent, of parameters: a rule with one memory gets keys twice as
wide as those of the two that have two, and its small network makes up for the parameters. Softmax keeps every key
and value, so its parameters are matched and its state is not. Three more stand beside them: "gdn-values" has wider
values in place of wider keys; "gdn-half" and "sgla-half" have the shape of one of the two memories, and so half of the
state, which is how the paper compares.

Every method has the same three learning rates to choose from, by runs of half the length on sequences and a seed of
their own.

    python -m attnlab.nn.associative_recall --method all --seeds 3 --out recall.json
    python -m attnlab.nn.associative_recall --method rdn --seeds 1 --steps 200 > short.json

With --out a run that is done is written at once, and a command that finds the file does the runs that are missing.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from attnlab import draws, progress
from attnlab.arrays import dial, one_of
from attnlab.nn.layer import Layer
from attnlab.nn.memory import MemoryAttention
from attnlab.nn.race import RACEAttention
from attnlab.nn.softmax import SoftmaxAttention

__all__ = [
    "BESIDE",
    "METHODS",
    "Model",
    "Setting",
    "accuracy",
    "batch",
    "main",
    "mixer",
    "run",
    "summary",
    "table",
    "train",
]

METHODS = ("rla", "rdn", "gdn", "sgla", "deltanet", "race", "softmax")
BESIDE = ("gdn-values", "gdn-half", "sgla-half")  # wider values in place of wider keys; the paper's own comparison
MATCHED = "rdn"  # whose parameters and state the others are given
TRIAL_SEED = 1000  # of the runs that choose a learning rate; the runs that count have seeds 0, 1, 2
TRAINING, TRIAL, JUDGED = 16, 17, 18  # streams of random numbers: no sequence of one is in another, but by chance


@dataclass(frozen=True)
class Setting:
    """What all methods share. Rows of a step hold one number of pairs, drawn evenly, and fill `tokens` tokens."""

    width: int = 64
    heads: int = 2
    key_width: int = 16  # of rules with two memories; twice that with one
    value_width: int = 16
    blocks: int = 2
    hidden: int = 96  # of the small network of MATCHED
    kernel: int = 3  # tokens that the short convolution sees
    keys: int = 128  # different ones in the vocabulary, and as many values
    pairs: tuple[int, ...] = (4, 8, 16, 32, 64)
    steps: int = 1000
    tokens: int = 3072  # a step
    rates: tuple[float, ...] = (3e-3, 1e-2, 3e-2)
    warmup: float = 0.1  # of all steps; a cosine to 0 follows
    decay: float = 0.01
    asked: int = 4096  # questions for each number of pairs when a run is judged


# -- the task --


def batch(pairs: int, rows: int, keys: int, seed: int, stream: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """(tokens [rows, 3 pairs], answers [rows, pairs]): keys are 0 .. keys - 1 and values keys .. 2 keys - 1 among the
    tokens; answers are numbers of values, 0 .. keys - 1.

    The numbers depend on seed, stream, the number of the batch and nothing else. Raises ValueError for more pairs than
    there are keys.
    """
    dial("pairs", pairs, 1, keys, integer=True)
    row = number * 2**12 + np.arange(dial("rows", rows, 1, 2**12, integer=True))
    drawn = draws.uniform(seed, stream, row, 2 * keys + pairs)
    key, value = (np.argsort(x, axis=1)[:, :pairs] for x in (drawn[:, :keys], drawn[:, keys : 2 * keys]))
    order = np.argsort(drawn[:, 2 * keys :], axis=1)
    written = np.stack([key, keys + value], axis=2).reshape(rows, 2 * pairs)
    asked, answers = (np.take_along_axis(x, order, axis=1) for x in (key, value))
    return np.concatenate([written, asked], axis=1), answers


# -- the model --


def mixer(method: str, setting: Setting, block: int) -> Layer:
    """The attention layer of one method, of matched state. RACE spends one number of each bucket on its mass, so its
    values are one narrower.
    """
    one_of("method", method, METHODS + BESIDE)
    width, heads, K, V = setting.width, setting.heads, setting.key_width, setting.value_width
    if method == "race":
        planes = 3
        tables = 2 * K // 2**planes
        return RACEAttention(
            width, heads, planes=planes, tables=tables, seed=block, normalize=True, key_width=2 * K, value_width=V - 1
        )
    if method == "softmax":
        return SoftmaxAttention(width, heads, key_width=2 * K, value_width=V, output_norm=True)
    rule, _, shape = method.partition("-")
    K = K if rule in ("rla", "rdn") or shape else 2 * K
    V = 2 * V if shape == "values" else V
    return MemoryAttention(width, heads, rule=rule, key_width=K, value_width=V)


class Block(nn.Module):
    """x + attention(convolution(norm x)), then x + network(norm x)."""

    def __init__(self, attention: Layer, hidden: int, kernel: int):
        super().__init__()
        width = attention.width
        self.kernel = kernel
        self.before, self.between = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.convolution = nn.Conv1d(width, width, kernel, groups=width)
        self.attention = attention
        self.network = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x):
        """[B, T, width] -> [B, T, width]."""
        past = functional.pad(self.before(x).mT, (self.kernel - 1, 0))
        x = x + self.attention(self.convolution(past).mT)
        return x + self.network(self.between(x))


class Model(nn.Module):
    """Tokens [B, T] -> logits of values [B, T, keys]."""

    def __init__(self, method: str, setting: Setting, hidden: int | None = None):
        super().__init__()
        self.hidden = hidden = matched_hidden(method, setting) if hidden is None else hidden
        self.embedding = nn.Embedding(2 * setting.keys, setting.width)
        self.blocks = nn.Sequential(
            *(Block(mixer(method, setting, block), hidden, setting.kernel) for block in range(setting.blocks))
        )
        self.norm = nn.RMSNorm(setting.width, eps=1e-6)
        self.values = nn.Linear(setting.width, setting.keys, bias=False)

    def forward(self, tokens):
        """Logits of the value that stands behind each token, if it is a question."""
        return self.values(self.norm(self.blocks(self.embedding(tokens))))


def parameters(model: nn.Module) -> int:
    """How many numbers are learned."""
    return sum(x.numel() for x in model.parameters())


def matched_hidden(method: str, setting: Setting) -> int:
    """The width of the small network that brings a method's parameters nearest to those of MATCHED."""
    if method == MATCHED:
        return setting.hidden
    lean, wider = (parameters(Model(method, setting, hidden)) for hidden in (1, 2))
    wanted = parameters(Model(MATCHED, setting, setting.hidden))
    return max(1, 1 + round((wanted - lean) / (wider - lean)))


def state_elements(model: Model, tokens: int) -> int:
    """How many numbers the attention layers of the whole model carry for one sequence after so many tokens."""
    return sum(layer.state_elements(tokens) for layer in model.modules() if isinstance(layer, Layer))


# -- one run --


def train(
    method: str, seed: int, rate: float, setting: Setting, told: Callable[[str], None] = progress.show
) -> dict[str, Any]:
    """Train one model and judge it: accuracy for each number of pairs, the loss on the way, sizes, seconds.

    Adam with decoupled weight decay, a short warm-up and a cosine to 0, gradients cut at length 1. `seed` is of the
    weights and of the training sequences. The sequences that judge are the same for all.
    """
    torch.manual_seed(seed)
    model = Model(method, setting)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=setting.decay)
    warm = max(1, round(setting.warmup * setting.steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warm, 0.5 + 0.5 * np.cos(np.pi * max(0, step - warm) / (setting.steps - warm))),
    )
    chosen = np.random.default_rng(seed).integers(len(setting.pairs), size=setting.steps)
    curve, recent, said, begun, used = [], [], 0.0, time.perf_counter(), time.process_time()
    for step, index in enumerate(chosen):
        pairs = setting.pairs[index]
        tokens, answers = batch(pairs, max(1, setting.tokens // (3 * pairs)), setting.keys, seed, TRAINING, step)
        logits = model(torch.from_numpy(tokens))[:, 2 * pairs :]
        loss = functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(answers).flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        lost = loss.item()
        recent.append(lost)
        if (step + 1) % max(1, setting.steps // 20) == 0:
            curve.append([step + 1, round(float(np.mean(recent)), 4)])
            recent = []
        now, done = time.perf_counter(), step + 1
        if now - said > 0.25 or done == setting.steps:
            said, left = now, (now - begun) / done * (setting.steps - done)
            bar = f"[{'#' * (20 * done // setting.steps):<20}] {done}/{setting.steps}"
            told(f"{method}, seed {seed}, rate {rate:g} {bar}, loss {lost:.3f}, {left:.0f} s left")
    stream = TRIAL if seed == TRIAL_SEED else JUDGED
    return {
        "method": method,
        "seed": seed,
        "rate": rate,
        "steps": setting.steps,
        "accuracy": {str(pairs): accuracy(model, pairs, setting, stream) for pairs in setting.pairs},
        "loss": curve,
        "parameters": parameters(model),
        "hidden": model.hidden,
        "state_elements": state_elements(model, 3 * max(setting.pairs)),
        "seconds_of_cpu": round(time.process_time() - used, 1),
    }


@torch.no_grad()
def accuracy(model: Model, pairs: int, setting: Setting, stream: int = JUDGED) -> float:
    """The share of questions whose most likely value is right; chance is 1 / keys."""
    rows = max(1, setting.asked // pairs)
    tokens, answers = batch(pairs, rows, setting.keys, 0, stream, pairs)
    right = [
        (model(torch.from_numpy(part))[:, 2 * pairs :].argmax(-1).numpy() == answer).ravel()
        for part, answer in zip(
            np.array_split(tokens, -(-rows // 64)), np.array_split(answers, -(-rows // 64)), strict=True
        )
    ]
    return round(float(np.concatenate(right).mean()), 5)


# -- all runs --


def run(
    methods: Sequence[str],
    seeds: int,
    setting: Setting,
    path: Path | None = None,
    command: str = "",
    told: Callable[[str], None] = progress.show,
    done: Callable[[str], None] = progress.say,
) -> dict[str, Any]:
    """Every run that is missing in the file at `path`, each written as it is done: first the trials of all methods,
    then seed by seed. Gives back {"task", "commands", "setting", "versions", "trials", "runs"}.

    Raises ValueError for a file of another setting, which it leaves as it is.
    """
    record = {
        "task": "multi-query associative recall, arXiv:2312.04927",
        "commands": [command] if command else [],
        "setting": json.loads(json.dumps(asdict(setting))),
        "versions": {"python": platform.python_version()}
        | {name: metadata.version(name) for name in ("numpy", "torch")},
        "trials": [],
        "runs": [],
    }
    if path is not None and path.exists():
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored.get("setting") != record["setting"]:
            raise ValueError(f"{path} must hold runs of this setting, got another; delete it, or name another file")
        record = stored
        record["commands"] += [command] if command and command not in record["commands"] else []

    def once(kind: str, method: str, seed: int, rate: float, used: Setting) -> None:
        if any((x["method"], x["seed"], x["rate"]) == (method, seed, rate) for x in record[kind]):
            return
        seen = train(method, seed, rate, used, told)
        record[kind].append(seen)
        if path is not None:
            write(path, record)
        told("")
        scores = ", ".join(f"{pairs} pairs {share:.1%}" for pairs, share in seen["accuracy"].items())
        done(f"{method}, seed {seed}, rate {rate:g}: {scores}")

    for method in methods:
        for rate in setting.rates if len(setting.rates) > 1 else ():
            once("trials", method, TRIAL_SEED, rate, replace(setting, steps=max(1, setting.steps // 2)))
    for seed in range(seeds):
        for method in methods:
            once("runs", method, seed, chosen_rate(record["trials"], method, setting), setting)
    return record


def chosen_rate(trials: list[dict[str, Any]], method: str, setting: Setting) -> float:
    """The rate whose trial had the best mean accuracy over all numbers of pairs."""
    own = [x for x in trials if x["method"] == method and x["rate"] in setting.rates]
    return max(own, key=lambda x: np.mean(list(x["accuracy"].values())))["rate"] if own else setting.rates[0]


def write(path: Path, record: dict[str, Any]) -> None:
    """One run a line; who reads the file finds the old one or the new one, never half of one."""
    lists = {name: record[name] for name in ("trials", "runs")}
    head = json.dumps({name: x for name, x in record.items() if name not in lists}, indent=1)[:-2]
    for name, runs in lists.items():
        head += f',\n "{name}": [\n  ' + ",\n  ".join(map(json.dumps, runs)) + "\n ]"
    beside = path.with_name(path.name + ".part")
    beside.write_text(head + "\n}\n", encoding="utf-8")
    os.replace(beside, path)


def summary(record: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a method, in the order of the runs: seeds, rate, sizes, and for each number of pairs the mean accuracy
    with the least and the most over seeds.
    """
    rows = []
    for method in dict.fromkeys(x["method"] for x in record["runs"]):
        own = [x for x in record["runs"] if x["method"] == method]
        each = {pairs: [x["accuracy"][pairs] for x in own] for pairs in own[0]["accuracy"]}
        rows.append(
            {name: own[0][name] for name in ("method", "rate", "parameters", "state_elements")}
            | {"seeds": len(own), "mean": {pairs: float(np.mean(x)) for pairs, x in each.items()}}
            | {"least": {p: min(x) for p, x in each.items()}, "most": {p: max(x) for p, x in each.items()}}
        )
    return rows


def table(record: dict[str, Any]) -> str:
    """The summary as a Markdown table: mean accuracy in per cent, in brackets the least and the most over seeds."""
    pairs = [str(n) for n in record["setting"]["pairs"]]
    lines = [
        f"| method | learned | state | rate | {' | '.join(f'{n} pairs' for n in pairs)} |",
        "|---" * 4 + "|--:" * len(pairs) + "|",
    ]
    for row in summary(record):
        cells = (f"{100 * row['mean'][n]:.1f} ({100 * row['least'][n]:.1f}–{100 * row['most'][n]:.1f})" for n in pairs)
        sizes = f"{row['parameters']:,} | {row['state_elements']:,} | {row['rate']:g}"
        lines.append(f"| {row['method']} | {sizes} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; JSON on stdout or in --out, progress on stderr."""
    parser = argparse.ArgumentParser(prog="python -m attnlab.nn.associative_recall", description=__doc__.split("\n")[0])
    parser.add_argument("--method", default="all", help=f"all, or some of {', '.join(METHODS + BESIDE)}, with commas")
    parser.add_argument("--seeds", type=int, default=3, help="runs of a method (3)")
    parser.add_argument("--steps", type=int, default=Setting.steps, help=f"of training ({Setting.steps})")
    parser.add_argument("--rate", type=float, help="one learning rate, in place of trials")
    parser.add_argument("--out", type=Path, help="a file to write each run to, and to go on from")
    parser.add_argument("--threads", type=int, default=1, help="of torch (1)")
    parser.add_argument("--table", action="store_true", help="run nothing: print what --out holds as a table")
    given = parser.parse_args(arguments)
    if given.table:
        if given.out is None or not given.out.exists():
            parser.error(f"--table needs --out with a file that is there, got {given.out}")
        print(table(json.loads(given.out.read_text(encoding="utf-8"))), end="")
        return 0
    methods = METHODS + BESIDE if given.method == "all" else tuple(given.method.split(","))
    for method in methods:
        if method not in METHODS + BESIDE:
            parser.error(f"--method must be all or some of {', '.join(METHODS + BESIDE)}, got {method!r}")
    for name in ("seeds", "steps", "threads"):
        if getattr(given, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(given, name)}")
    setting = Setting(steps=given.steps)
    if given.rate is not None:
        if not 0 < given.rate < 1:
            parser.error(f"--rate must lie between 0 and 1, got {given.rate:g}")
        setting = replace(setting, rates=(given.rate,))
    torch.set_num_threads(given.threads)
    words = sys.argv[1:] if arguments is None else arguments
    command = " ".join(["python -m attnlab.nn.associative_recall", *words])
    try:
        record = run(methods, given.seeds, setting, given.out, command)
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        progress.say("\nStopped. The same command goes on." if given.out else "Stopped; with --out it could go on.")
        return 130
    if given.out is None:
        print(json.dumps(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
