"""The recorded run of sparse decoding: all methods read as much, a loss is the model's own, a run repeats and goes on;
what is stored is of this code's setting.
"""

import copy
import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the package torch is not installed; get it with: pip install torch")
transformers = pytest.importorskip(
    "transformers", reason="the package transformers is not installed; get it with: pip install transformers"
)

from attnlab import models  # noqa: E402
from attnlab.nn import sparse_decode  # noqa: E402

STORED = Path(__file__).parents[2] / "attnlab" / "nn" / "sparse_decode.json"
TABLE = Path(__file__).parents[2] / "docs" / "papers" / "sparse_decode.txt"
METHODS = sparse_decode.METHODS
TINY = sparse_decode.Setting(
    prompt=40,
    judged=12,
    passages=2,
    step=5,
    budget=6,
    sinks=2,
    window=3,
    spared=(0, 1),
    top=4,
    sequences=2,
    steps=3,
    keys=32,
)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Products of a few numbers lose more to two threads than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def language_model():
    """Two layers with weights large enough that attention is not flat; a token is a character."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, initializer_range=0.4, pad_token_id=0, bos_token_id=1, eos_token_id=None,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    return models._ready(model, lambda text: {"input_ids": [ord(c) % 61 for c in text]})


def quiet(text):
    pass


# -- one run --


def test_all_methods_read_as_many_tokens(language_model):
    model, tokenizer = language_model
    ids = sparse_decode.passages(tokenizer, TINY)[0]
    maps, _ = sparse_decode.learn(language_model, TINY, told=quiet, done=quiet)
    for method in METHODS:
        seen, _ = sparse_decode.evaluate(model, method, ids, TINY, maps=maps)
        assert [line["tokens_read"] for line in seen["layers"]] == [11, 11], method
        assert [line["layer"] for line in seen["layers"]] == [0, 1]


def test_dense_losses_are_those_of_the_model(language_model):
    model, tokenizer = language_model
    ids = sparse_decode.passages(tokenizer, TINY)[1]
    seen, _ = sparse_decode.evaluate(model, "dense", ids, TINY)
    with torch.no_grad():
        logp = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    wanted = [-logp[n, ids[n + 1]].item() for n in range(TINY.prompt, TINY.prompt + TINY.judged)]
    assert len(seen["losses"]) == TINY.judged
    np.testing.assert_allclose(seen["losses"], wanted, atol=1e-3)


@pytest.mark.parametrize("method", ["hash", "quest", "past_mean", "h2o"])
def test_a_step_of_several_tokens_is_several_steps(language_model, method):
    model, tokenizer = language_model
    ids = sparse_decode.passages(tokenizer, TINY)[0]
    maps, _ = sparse_decode.learn(language_model, TINY, told=quiet, done=quiet)
    one, two = (sparse_decode.evaluate(model, method, ids, replace(TINY, step=step), maps=maps)[1] for step in (1, 5))
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)


def test_a_run_is_compared_with_dense_and_leaves_the_model_and_the_cache_alone(language_model):
    model, tokenizer = language_model
    ids = sparse_decode.passages(tokenizer, TINY)[0]
    cache = sparse_decode.prefilled(model, ids[: TINY.prompt])
    keys = copy.deepcopy(cache.layers[0].keys)
    _, base = sparse_decode.evaluate(model, "dense", ids, TINY, cache=cache)
    all_, _ = sparse_decode.evaluate(model, "exact", ids, replace(TINY, budget=64), cache=cache, base=base)
    few, logp = sparse_decode.evaluate(model, "key_norm", ids, replace(TINY, budget=1), cache=cache, base=base)
    assert (all_["agreement"], all_["divergence"]) == (1.0, 0.0)
    assert few["agreement"] == pytest.approx(float((logp.argmax(-1) == base.argmax(-1)).double().mean()), abs=1e-5)
    kl = torch.nn.functional.kl_div(logp, base, log_target=True, reduction="batchmean")
    assert few["divergence"] == pytest.approx(float(kl), abs=1e-4)
    assert few["divergence"] > 0.01
    assert torch.equal(cache.layers[0].keys, keys)
    assert model.config._attn_implementation == models.ATTENTION


def test_passages_follow_one_another_and_end_with_the_text(language_model):
    _, tokenizer = language_model
    one, two = sparse_decode.passages(tokenizer, TINY)
    from pydoc_data.topics import topics

    assert len(one) == len(two) == TINY.prompt + TINY.judged + 1
    assert one + two == tokenizer(topics[models.TOPIC])["input_ids"][: 2 * len(one)]
    with pytest.raises(ValueError, match="passages must be at most"):
        sparse_decode.passages(tokenizer, replace(TINY, passages=10**6))


# -- all runs --


def test_what_is_stored_is_not_done_again(language_model, tmp_path, monkeypatch):
    path, maps = tmp_path / "sparse.json", tmp_path / "maps.safetensors"
    options = {"told": quiet, "language_model": language_model}
    said = []
    record = sparse_decode.run(("key_norm", "hash"), TINY, maps, path, "first", done=said.append, **options)
    assert [line.split(":")[0] for line in said] == [
        "layer 0", "layer 1",
        *(f"passage {n}, {what}" for n in range(2) for what in (
            "dense", "key_norm behind 0 dense layers", "hash behind 0 dense layers", "key_norm behind 1 dense layers",
            "hash behind 1 dense layers",
        )),
    ]  # fmt: skip
    assert all([x["layer"] for x in run["layers"]] == [0, 1][run["spared"] :] for run in record["runs"][1:5])
    assert json.loads(path.read_text()) == record
    assert [x["layer"] for x in record["learned"]] == [0, 1]

    said.clear()
    again = sparse_decode.run(("quest", "hash"), TINY, maps, path, "second", done=said.append, **options)
    assert [line.split(":")[0] for line in said] == [
        f"passage {n}, quest behind {spared} dense layers" for n in range(2) for spared in range(2)
    ]
    assert again["commands"] == ["first", "second"]
    assert sorted(x.name for x in tmp_path.iterdir()) == ["maps.safetensors", "sparse.json"]

    monkeypatch.setattr(sparse_decode.training, "train", None)  # the maps are there
    fresh = sparse_decode.run(("key_norm", "hash"), TINY, maps, None, done=quiet, **options)
    for run, same in zip(fresh["runs"], record["runs"], strict=True):
        assert all(run[name] == same[name] for name in ("passage", "method", "spared"))
        np.testing.assert_allclose(run["losses"], same["losses"], atol=2e-3)  # memory elsewhere, sums otherwise
    for other in (replace(TINY, budget=7), replace(TINY, steps=4)):
        with pytest.raises(ValueError, match="must hold runs of this setting and text"):
            sparse_decode.run(("hash",), other, maps, path, **options)
    with pytest.raises(ValueError, match="must hold maps of this setting"):
        sparse_decode.run(("hash",), replace(TINY, steps=4), maps, None, **options)
    assert json.loads(path.read_text()) == again


def test_the_summary_and_the_table_of_a_small_record():
    def line(recall):
        return {"recall": recall, "mass": 0.9, "output_error": 0.25, "tokens_read": 128.0}

    def of(method, passage, losses, **more):
        return {"passage": passage, "method": method, "spared": 0, "losses": losses, **more}

    more = {"agreement": 0.5, "divergence": 0.1, "layers": [line(0.5)] * 11 + [line(0.25)]}
    runs = [
        of("dense", 0, [1.0, 2.0]), of("dense", 1, [3.0, 4.0]),
        of("hash", 0, [1.5, 2.0], **more), of("hash", 1, [3.5, 4.0], **(more | {"agreement": 1.0})),
        of("hash", 0, [1.0, 2.0], **(more | {"spared": 2})),
    ]  # fmt: skip
    dense, hashed = sparse_decode.summary({"runs": runs})
    assert (dense["loss"], dense["excess"]) == (2.5, 0)
    assert (hashed["loss"], hashed["excess"], hashed["agreement"]) == (2.75, 0.25, 0.75)
    assert hashed["error"] == pytest.approx(np.std([0.5, 0, 0.5, 0], ddof=1) / 2)
    assert hashed["recall"] == [0.5] * 11 + [0.25]
    lines = sparse_decode.table({"runs": runs, "setting": {"top": 64, "spared": [0, 2]}}).splitlines()
    said = [line for line in lines if line.startswith("| hash | ")]
    assert said == [
        "| hash | 2.750 | +0.250 ± 0.144 | 75.0% | 0.100 |",
        "| hash | 1.500 | +0.000 ± 0.000 | 50.0% | 0.100 |",
        "| hash | 128 | 0.50 | 0.25 | 0.90 | 0.25 | 0.25 |",
    ]
    assert lines.count("| dense | 2.500 |  |  |  |") == 2
    assert [line for line in lines if line.endswith(":")] == [
        "What the model says, all layers sparse:", "What the model says, the first 2 layers dense:",
        "What is read, all layers sparse:", "Recall@64 in each layer, all layers sparse:",
    ]  # fmt: skip
    assert lines[-2:] == ["| 10 | 0.50 |", "| 11 | 0.25 |"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--method", "mamba"], "--method must be one of 'exact'"),
        (["--steps", "0"], "--steps must be at least 1, got 0"),
        (["--table"], "--table needs --out with a file that is there, got None"),
    ],
)
def test_the_command_says_what_is_wrong(arguments, words, capsys):
    with pytest.raises(SystemExit):
        sparse_decode.main(arguments)
    assert words in capsys.readouterr().err


def test_the_command_without_the_model_says_how_to_get_it(monkeypatch, capsys):
    def load():
        raise models.ModelMissing("the language model is not here: attnlab fetch-model")

    monkeypatch.setattr(models, "load", load)
    before = torch.get_num_threads()
    assert sparse_decode.main(["--method", "exact"]) == 1
    torch.set_num_threads(before)
    assert capsys.readouterr().err == "the language model is not here: attnlab fetch-model\n"


# -- what is stored --


@pytest.fixture(scope="module")
def stored():
    return json.loads(STORED.read_text(encoding="utf-8"))


def test_the_stored_runs_are_all_there_and_of_this_setting(stored):
    setting = sparse_decode.Setting()
    assert stored["setting"] == json.loads(json.dumps(asdict(setting)))
    sparse = [run for run in stored["runs"] if run["method"] != "dense"]
    assert sorted((x["method"], x["spared"], x["passage"]) for x in sparse) == sorted(
        itertools.product(METHODS, setting.spared, range(setting.passages))
    )
    assert all(len(run["losses"]) == setting.judged for run in stored["runs"])
    assert [x["layer"] for x in stored["learned"]] == list(range(30))
    assert {x["step"] for x in stored["learned"]} == {setting.steps}
    assert all(command.startswith("python -m attnlab.nn.sparse_decode ") for command in stored["commands"])
    assert set(stored["versions"]) == {"python", "numpy", "torch", "transformers"}


def test_the_stored_runs_read_one_token_in_sixteen(stored):
    for run in stored["runs"]:
        for line in run.get("layers", []):
            assert line["tokens_read"] == 128
            assert 2048 < line["visible"] < 2048 + 256
            assert line["queries"] == 9 * 256


def test_the_tables_of_the_page_are_those_of_the_stored_runs(stored, capsys):
    assert sparse_decode.main(["--out", str(STORED), "--table"]) == 0
    assert capsys.readouterr().out == TABLE.read_text(encoding="utf-8")


def test_what_the_page_says_of_the_stored_runs(stored):
    whole, spared = ({row["method"]: row for row in sparse_decode.summary(stored, n)} for n in (0, 2))

    def losses(method, n):
        runs = {x["passage"]: x["losses"] for x in stored["runs"] if (x["method"], x["spared"]) == (method, n)}
        return np.concatenate([runs[passage] for passage in sorted(runs)])

    def behind(method, n):
        """How much more than "hash", and the standard error of that."""
        more = losses(method, n) - losses("hash", n)
        return more.mean(), more.std(ddof=1) / len(more) ** 0.5

    recall = {method: np.array(row["recall"]) for method, row in whole.items() if method != "dense"}
    late = slice(sparse_decode.EARLY, None)
    assert recall["hash"][late].mean() / recall["lsh_centred"][late].mean() == pytest.approx(2.04, abs=0.005)
    assert (recall["hash"] > recall["lsh_centred"]).all()
    for n in (0, 2):
        assert behind("lsh_centred", n) == pytest.approx((0.16, 0.05), abs=0.01)
    assert (recall["past_mean"] > recall["hash"]).sum() == 28
    best = sorted(spared, key=lambda method: spared[method]["loss"])
    assert best[:3] == ["dense", "exact", "past_mean"]
    assert abs(behind("quest", 2)[0]) < behind("quest", 2)[1]
    assert whole["quest"]["excess"] < whole["hash"]["excess"]
    first = {method: row["output_error"][0] for method, row in whole.items() if method != "dense"}
    assert 0.5 < first["exact"] < first["past_mean"]
    assert first["sinks_window"] < first["exact"]
    assert spared["past_mean"]["excess"] < 0.5 * whole["past_mean"]["excess"]
    assert abs(behind("sinks_window", 0)[0]) < behind("sinks_window", 0)[1]
    assert spared["sinks_window"]["excess"] > whole["sinks_window"]["excess"]
    improved = [method for method in METHODS if spared[method]["excess"] < whole[method]["excess"]]
    assert improved == [method for method in METHODS if method != "sinks_window"]
    seconds = [x["seconds_of_cpu"] for x in stored["learned"]]
    assert 7 < np.mean(seconds) < 9
    assert sum(seconds) + sum(x["seconds_of_cpu"] for x in stored["runs"]) < 25 * 60  # and prompts
