"""What does reading one token in sixteen do to a real model, and does it matter who chooses the tokens?

SmolLM2-135M-Instruct reads a prompt dense and then goes on along the text that follows, with sparse attention in every
layer: the loss of the tokens that really follow, how often its first choice is that of the dense model, the divergence
of what it predicts (KL from dense, nats a token), and for each layer the recall of the true top tokens, the softmax
mass that is read and the error of the output. All methods read as many tokens as each other.

The maps of "hash" are learned first, layer by layer, from texts that share nothing with the one that is judged. The
text is that of Python's documentation, so another version of Python has another one; the record tells which it was.

    python -m attnlab.nn.sparse_decode --maps maps.safetensors --out sparse.json
    python -m attnlab.nn.sparse_decode --out sparse.json --table

Maps that are learned and runs that are done are written at once, and a command that finds the files does what is
missing. Needs the language model (`attnlab fetch-model`).
"""

import argparse
import copy
import functools
import hashlib
import inspect
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnlab import models, progress
from attnlab.arrays import one_of
from attnlab.data import read_maps
from attnlab.hashattention import training
from attnlab.hashattention.selectors import SELECTORS, Options
from attnlab.nn import hf

__all__ = [
    "METHODS",
    "Setting",
    "evaluate",
    "forward",
    "learn",
    "main",
    "passages",
    "prefilled",
    "run",
    "sizes",
    "summary",
    "table",
]

METHODS = ("exact", "hash", "quest", "lsh_centred", "key_norm", "past_mean", "sinks_window")
BASE = "dense"  # what all are compared with
EARLY = 11  # layers before this one look at few keys, whatever the query


@dataclass(frozen=True)
class Setting:
    """What all methods share, and how the maps learn."""

    prompt: int = 2048
    judged: int = 256  # tokens of each passage
    passages: int = 2
    step: int = 32  # tokens at once, each as if it came alone
    budget: int = 96
    sinks: int = 16
    window: int = 16
    spared: tuple[int, ...] = (0, 2)  # how many of the first layers stay dense: one run for each
    top: int = 64  # of recall
    bits: int = 32
    seed: int = 0
    sequences: int = 5  # to learn from, of `prompt` tokens; the last one is held out
    steps: int = 200
    keys: int = 1024
    alpha: float = 20.0


def sizes(method: str, setting: Setting) -> dict[str, Any]:
    """(budget, sinks, window) by name; who has no use for a budget gets a longer window."""
    budget = 0 if method == "sinks_window" else setting.budget
    return {"budget": budget, "sinks": setting.sinks, "window": setting.window + setting.budget - budget}


# -- the text --


def passages(tokenizer: Any, setting: Setting) -> list[list[int]]:
    """Token numbers: the beginning of models.TOPIC, cut into prompt and judged tokens, one more to be foretold."""
    from pydoc_data.topics import topics

    size = setting.prompt + setting.judged + 1
    ids = tokenizer(topics[models.TOPIC])["input_ids"]
    if len(ids) < size * setting.passages:
        raise ValueError(f"passages must be at most {len(ids) // size} of {size} tokens, got {setting.passages}")
    return [ids[n * size : (n + 1) * size] for n in range(setting.passages)]


# -- the maps --


def learn(
    language_model: models.LanguageModel,
    setting: Setting,
    path: Path | None = None,
    layers: Sequence[int] | None = None,
    told: Callable[[str], None] = progress.show,
    done: Callable[[str], None] = progress.say,
) -> tuple[dict[int, hf.Pair], list[dict[str, Any]]]:
    """(maps of every layer, or of some; how each learned). What stands in the file at `path` is not learned again, and
    each layer is written there when it is done.

    Raises ValueError for a file of another setting, which it leaves as it is.
    """
    model, tokenizer = language_model
    wanted = range(model.config.num_hidden_layers) if layers is None else layers
    how = {
        name: getattr(setting, name) for name in ("bits", "seed", "steps", "keys", "alpha", "top", "sinks", "window")
    }
    about: dict[str, Any] = {"setting": how | {"prompt": setting.prompt, "sequences": setting.sequences}}
    about |= {"threads": torch.get_num_threads(), "learned": []}
    maps: dict[int, hf.Pair] = {}
    if path is not None and path.exists():
        stored = read_maps(path)
        if stored.provenance.get("setting") != about["setting"]:
            raise ValueError(f"{path} must hold maps of this setting, got others; delete it, or name another file")
        about = stored.provenance
        maps = {layer: stored.layer(layer) for layer in stored.layers}
    missing = [layer for layer in wanted if layer not in maps]
    if missing:
        ids = tokenizer(models.other_text()[1])["input_ids"]
        captured: dict[int, list[Any]] = {layer: [] for layer in missing}
        heads, groups = model.config.num_attention_heads, model.config.num_key_value_heads
        for n in range(setting.sequences):
            told(f"running the model on sequence {n + 1} of {setting.sequences} to learn from")
            part = ids[n * setting.prompt : (n + 1) * setting.prompt]
            for layer, (q, k, v) in models.capture_heads(
                part, missing, range(heads), language_model=language_model
            ).items():
                captured[layer].append((q, *(x[:, :, :: heads // groups].copy() for x in (k, v))))
        for layer in missing:
            used = time.process_time()
            report = functools.partial(_learning, told, layer)
            found = training.train(captured.pop(layer), report=report, **how)
            maps[layer] = found.query_maps, found.key_maps
            last = {name: round(x, 4) for name, x in found.history[-1]._asdict().items() if name != "seconds"}
            last = {"layer": layer, **last, "seconds_of_cpu": round(time.process_time() - used, 1)}
            about["learned"] = [*about["learned"], last]
            if path is not None:
                beside = path.with_name(path.name + ".part")
                training.save(beside, maps, about)
                os.replace(beside, path)
            told("")
            done(f"layer {layer}: learned, recall {last['recall']:.3f} on the sequence held out")
    learned = sorted((x for x in about["learned"] if x["layer"] in wanted), key=lambda x: x["layer"])
    return {layer: maps[layer] for layer in wanted}, learned


def _learning(told: Callable[[str], None], layer: int, seen: training.Report) -> None:
    told(f"layer {layer}, step {seen.step}: loss {seen.loss:.3f}, recall {seen.recall:.3f}")


# -- one run --


def prefilled(model: Any, ids: Sequence[int]) -> Any:
    """A cache of the prompt."""
    from transformers import DynamicCache

    cache = DynamicCache()
    with torch.inference_mode():
        model.model(torch.tensor([list(ids)]), **_named(model, cache), use_cache=True)
    return cache


def forward(model: Any, ids: Sequence[int], cache: Any, step: int) -> torch.Tensor:
    """The logits after each of the tokens, so many at once, behind what the cache holds."""
    parts = [torch.tensor([list(ids[n : n + step])]) for n in range(0, len(ids), step)]
    with torch.inference_mode():
        return torch.cat([model(part, **_named(model, cache), use_cache=True).logits[0] for part in parts])


def _named(model: Any, cache: Any) -> dict[str, Any]:
    """The cache by the name that this version of transformers has for it."""
    return {"cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values": cache}


def evaluate(
    model: Any,
    method: str,
    ids: Sequence[int],
    setting: Setting,
    *,
    maps: Mapping[int, hf.Pair] | None = None,
    cache: Any = None,
    base: torch.Tensor | None = None,
    spared: int = 0,
    impl: str = "numba",
) -> tuple[dict[str, Any], torch.Tensor]:
    """(the losses of the judged tokens and what was recorded, the log probabilities). Where the dense log probabilities
    `base` are given, agreement and divergence too. The first `spared` layers stay dense. A `cache` of the prompt, if
    given, is left as it is, and so is the name of the model's attention.
    """
    used, before = time.process_time(), model.config._attn_implementation
    remembers = method in hf.REMEMBERING
    result: dict[str, Any] = {"method": method, "spared": spared}
    try:
        if method == BASE:
            model.set_attn_implementation("sdpa")
        else:
            hf.register()
            model.set_attn_implementation(hf.PREFIX + method)
            options = Options(bits=setting.bits, seed=setting.seed)
            decoding = hf.configure(
                model, **sizes(method, setting), maps=maps if method == "hash" else None, dense=range(spared),
                several=True, impl=impl, options=options, record=True, top=setting.top,
            )  # fmt: skip
        own = prefilled(model, ids[: setting.prompt]) if cache is None or remembers else copy.deepcopy(cache)
        logp = forward(model, ids[setting.prompt : -1], own, setting.step).log_softmax(-1)
        if method != BASE:
            result["layers"] = [_rounded(line._asdict()) for line in decoding.report()]
            decoding.reset()
    finally:
        model.set_attn_implementation(before)
    following = torch.tensor(ids[setting.prompt + 1 :])
    result["losses"] = [round(x, 4) for x in (-logp.gather(1, following[:, None])[:, 0]).tolist()]
    if base is not None:
        result["agreement"] = round(float((logp.argmax(-1) == base.argmax(-1)).double().mean()), 5)
        result["divergence"] = round(float((base.exp() * (base - logp)).sum(-1).mean()), 5)
    return result | {"seconds_of_cpu": round(time.process_time() - used, 1)}, logp


def _rounded(numbers: dict[str, Any]) -> dict[str, Any]:
    return {name: round(x, 4) for name, x in numbers.items()}


# -- all runs --


def run(
    methods: Sequence[str],
    setting: Setting,
    maps_path: Path | None = None,
    path: Path | None = None,
    command: str = "",
    told: Callable[[str], None] = progress.show,
    done: Callable[[str], None] = progress.say,
    language_model: models.LanguageModel | None = None,
) -> dict[str, Any]:
    """Every run that is missing in the file at `path`, each written as it is done, passage by passage. Gives back
    {"task", "commands", "setting", "versions", "text", "learned", "runs"}.

    Raises ValueError for a file of another setting or text, which it leaves as it is; ModelMissing as models.load does.
    """
    language_model = language_model or models.load()
    model, tokenizer = language_model
    texts = passages(tokenizer, setting)
    record: dict[str, Any] = {
        "task": "sparse attention in every layer along a given text, after a dense prompt",
        "commands": [command] if command else [],
        "setting": json.loads(json.dumps(asdict(setting))),
        "versions": {"python": platform.python_version()}
        | {name: metadata.version(name) for name in ("numpy", "torch", "transformers")},
        "text": {
            "model": models.PACKAGE,
            "judged": f"pydoc_data.topics[{models.TOPIC!r}]",
            "learned_from": "models.other_text(), its beginning",
            "sha256": hashlib.sha256(np.array(texts, np.int32).tobytes()).hexdigest(),  # of the judged token numbers
        },
        "learned": [],
        "runs": [],
    }
    if path is not None and path.exists():
        stored = json.loads(path.read_text(encoding="utf-8"))
        if any(stored.get(name) != record[name] for name in ("setting", "text")):
            raise ValueError(
                f"{path} must hold runs of this setting and text, got others; delete it, or name another file"
            )
        record = stored
        record["commands"] += [command] if command and command not in record["commands"] else []

    def missing(n: int) -> list[tuple[str, int]]:
        there = {(x["method"], x["spared"]) for x in record["runs"] if x["passage"] == n}
        wanted = [(BASE, 0), *((method, spared) for spared in setting.spared for method in methods)]
        return [one for one in dict.fromkeys(wanted) if one not in there]

    maps: Mapping[int, hf.Pair] = {}
    if any(method == "hash" for n in range(len(texts)) for method, _ in missing(n)):
        maps, record["learned"] = learn(language_model, setting, maps_path, told=told, done=done)
    for n, ids in enumerate(texts):
        if not missing(n):
            continue
        told(f"passage {n}: the prompt")
        before = model.config._attn_implementation
        model.set_attn_implementation("sdpa")
        try:
            cache = prefilled(model, ids[: setting.prompt])
        finally:
            model.set_attn_implementation(before)
        seen, base = evaluate(model, BASE, ids, setting, cache=cache)
        for method, spared in missing(n):
            told(f"passage {n}: {method}, {spared} layers dense")
            if method != BASE:
                seen, _ = evaluate(model, method, ids, setting, maps=maps, cache=cache, base=base, spared=spared)
            record["runs"].append({"passage": n, **seen})
            if path is not None:
                write(path, record)
            told("")
            what = method if method == BASE else f"{method} behind {spared} dense layers"
            done(f"passage {n}, {what}: {np.mean(seen['losses']):.3f} nats a token")
    return record


def write(path: Path, record: dict[str, Any]) -> None:
    """One run a line; who reads the file finds the old one or the new one, never half of one."""
    lists = {name: record[name] for name in ("learned", "runs")}
    head = json.dumps({name: x for name, x in record.items() if name not in lists}, indent=1)[:-2]
    for name, runs in lists.items():
        head += f',\n "{name}": [\n  ' + ",\n  ".join(map(json.dumps, runs)) + "\n ]"
    beside = path.with_name(path.name + ".part")
    beside.write_text(head + "\n}\n", encoding="utf-8")
    os.replace(beside, path)


def summary(record: dict[str, Any], spared: int = 0) -> list[dict[str, Any]]:
    """One row a method, those of METHODS first, over all passages, where the first `spared` layers are dense: loss;
    excess over the dense loss with the standard error of that mean over tokens; agreement, divergence; and for each
    sparse layer recall, mass, output error, tokens read.
    """
    runs = [x for x in record["runs"] if x["method"] == BASE or x["spared"] == spared]
    base = {x["passage"]: x for x in runs if x["method"] == BASE}
    rows, there = [], {x["method"]: None for x in runs}
    for method in sorted(there, key=lambda name: (BASE, *METHODS, *there).index(name)):
        own = {x["passage"]: x for x in runs if x["method"] == method}
        excess = np.concatenate([np.subtract(x["losses"], base[n]["losses"]) for n, x in own.items()])
        row = {
            "method": method,
            "loss": float(np.mean([x["losses"] for x in own.values()])),
            "excess": float(excess.mean()),
            "error": float(excess.std(ddof=1) / len(excess) ** 0.5),
        }
        if method != BASE:
            row |= {name: float(np.mean([x[name] for x in own.values()])) for name in ("agreement", "divergence")}
            for name in ("recall", "mass", "output_error", "tokens_read"):
                row[name] = np.mean([[line[name] for line in x["layers"]] for x in own.values()], axis=0).tolist()
        rows.append(row)
    return rows


def table(record: dict[str, Any]) -> str:
    """The summaries as Markdown: for every number of dense layers what the model says, then what each layer reads."""
    first, *others = record["setting"]["spared"]
    lines = [*_said(record, first), *(line for n in others for line in ("", *_said(record, n)))]
    rows = [row for row in summary(record, first) if row["method"] != BASE]
    late = f"{EARLY}–{first + len(rows[0]['recall']) - 1}" if rows else ""
    lines += [
        "", f"What is read, {_where(first)}:", "",
        f"| method | tokens | recall@{record['setting']['top']}, layers {first}–{EARLY - 1} | layers {late} | mass | "
        f"output error, layer {first} | the others |",
        "|---" + "|--:" * 6 + "|",
    ]  # fmt: skip
    for row in rows:
        recall, error = row["recall"], row["output_error"]
        parts = recall[: EARLY - first], recall[EARLY - first :], row["mass"], error[:1], error[1:]
        cells = [f"{np.mean(row['tokens_read']):.0f}", *(f"{np.mean(part):.2f}" for part in parts)]
        lines.append(f"| {row['method']} | {' | '.join(cells)} |")
    rows = [row for row in rows if row["method"] not in ("exact", "sinks_window")]
    lines += ["", f"Recall@{record['setting']['top']} in each layer, {_where(first)}:", ""]
    lines += [f"| layer | {' | '.join(row['method'] for row in rows)} |", "|--:" * (1 + len(rows)) + "|"]
    for layer, recalls in enumerate(zip(*(row["recall"] for row in rows), strict=True), start=first):
        lines.append(f"| {layer} | {' | '.join(f'{recall:.2f}' for recall in recalls)} |")
    return "\n".join(lines) + "\n"


def _where(spared: int) -> str:
    return f"the first {spared} layers dense" if spared else "all layers sparse"


def _said(record: dict[str, Any], spared: int) -> list[str]:
    lines = [f"What the model says, {_where(spared)}:", ""]
    lines += ["| method | loss | more than dense | same first choice | KL from dense |", "|---" + "|--:" * 4 + "|"]
    for row in summary(record, spared):
        cells = [f"{row['loss']:.3f}", "", "", ""]
        if row["method"] != BASE:
            cells[1:] = [f"{row['excess']:+.3f} ± {row['error']:.3f}", f"{row['agreement']:.1%}"]
            cells += [f"{row['divergence']:.3f}"]
        lines.append(f"| {row['method']} | {' | '.join(cells)} |")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; JSON on stdout or in --out, progress on stderr."""
    parser = argparse.ArgumentParser(prog="python -m attnlab.nn.sparse_decode", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--method", default="all", help=f"all ({', '.join(METHODS)}), or names of selectors, with commas"
    )
    parser.add_argument("--maps", type=Path, help="a file to keep learned maps in, and to go on from")
    parser.add_argument("--out", type=Path, help="a file to write each run to, and to go on from")
    parser.add_argument("--steps", type=int, default=Setting.steps, help=f"of learning, a layer ({Setting.steps})")
    parser.add_argument("--judged", type=int, default=Setting.judged, help=f"tokens of a passage ({Setting.judged})")
    parser.add_argument("--threads", type=int, default=1, help="of torch (1)")
    parser.add_argument("--table", action="store_true", help="run nothing: print what --out holds as tables")
    given = parser.parse_args(arguments)
    if given.table:
        if given.out is None or not given.out.exists():
            parser.error(f"--table needs --out with a file that is there, got {given.out}")
        print(table(json.loads(given.out.read_text(encoding="utf-8"))), end="")
        return 0
    methods = METHODS if given.method == "all" else tuple(given.method.split(","))
    for name in ("steps", "judged", "threads"):
        if getattr(given, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(given, name)}")
    words = sys.argv[1:] if arguments is None else arguments
    command = " ".join(["python -m attnlab.nn.sparse_decode", *words])
    torch.set_num_threads(given.threads)
    try:
        for method in methods:
            one_of("--method", method, tuple(SELECTORS))
        record = run(methods, Setting(steps=given.steps, judged=given.judged), given.maps, given.out, command)
    except ValueError as error:
        parser.error(str(error))
    except models.ModelMissing as error:
        progress.say(str(error))
        return 1
    except KeyboardInterrupt:
        progress.say("\nStopped. The same command goes on." if given.out else "Stopped; with --out it could go on.")
        return 130
    if given.out is None:
        print(json.dumps(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
