"""Associative recall: the task is what it says, methods are matched, a run repeats and goes on; what is stored is of
this code's setting.
"""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the package torch is not installed; get it with: pip install torch")

from attnlab.nn import associative_recall as recall  # noqa: E402
from attnlab.residual import RULES  # noqa: E402

STORED = Path(__file__).parents[2] / "attnlab" / "nn" / "associative_recall.json"
TABLE = Path(__file__).parents[2] / "docs" / "papers" / "associative_recall.txt"
EVERY = recall.METHODS + recall.BESIDE
TINY = recall.Setting(
    width=12, heads=2, key_width=4, value_width=4, blocks=1, hidden=10, keys=10, pairs=(2, 5), steps=6, tokens=60,
    rates=(1e-3, 1e-2), asked=40,
)  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Products of a few numbers lose more to two threads than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def quiet(text):
    pass


# -- the task --


@pytest.mark.parametrize("pairs", [1, 4, 9])
def test_every_key_is_asked_once_and_its_answer_is_its_value(pairs):
    tokens, answers = recall.batch(pairs, 7, 9, seed=0, stream=1, number=2)
    assert tokens.shape == (7, 3 * pairs)
    assert answers.shape == (7, pairs)
    for row, answer in zip(tokens, answers, strict=True):
        keys, values, asked = row[: 2 * pairs : 2], row[1 : 2 * pairs : 2], row[2 * pairs :]
        assert len(set(keys)) == len(set(values)) == pairs
        assert set(asked) == set(keys) <= set(range(9))
        assert set(values) <= set(range(9, 18))
        said = dict(zip(keys, values - 9, strict=True))
        assert [said[key] for key in asked] == answer.tolist()


def test_sequences_repeat_and_differ_by_seed_stream_and_number():
    first = recall.batch(4, 5, 9, 0, 1, 2)[0]
    assert np.array_equal(first, recall.batch(4, 5, 9, 0, 1, 2)[0])
    for other in ((1, 1, 2), (0, 2, 2), (0, 1, 3)):
        assert not np.array_equal(first, recall.batch(4, 5, 9, *other)[0])
    assert np.array_equal(first[:2], recall.batch(4, 2, 9, 0, 1, 2)[0])


def test_the_order_of_questions_is_not_that_of_the_pairs():
    tokens, _ = recall.batch(9, 40, 9, 0, 1, 0)
    assert 0.02 < (tokens[:, :18:2] == tokens[:, 18:]).mean() < 0.25  # 1/9, give or take


@pytest.mark.parametrize(("pairs", "rows", "words"), [(10, 2, "pairs must lie in"), (3, 0, "rows must lie in")])
def test_a_batch_that_cannot_be(pairs, rows, words):
    with pytest.raises(ValueError, match=words):
        recall.batch(pairs, rows, 9, 0, 1, 0)


def test_a_model_that_knows_the_task_is_always_right():
    class Knows(torch.nn.Module):
        def forward(self, tokens):
            pairs = tokens.shape[1] // 3
            same = tokens[:, None, : 2 * pairs : 2] == tokens[:, :, None]
            values = tokens[:, 1 : 2 * pairs : 2] - TINY.keys
            return torch.nn.functional.one_hot((same * values[:, None]).sum(-1), TINY.keys).float()

    assert recall.accuracy(Knows(), 5, TINY) == 1.0


def test_a_model_that_knows_nothing_is_right_by_chance():
    class Guesses(torch.nn.Module):
        def forward(self, tokens):
            return torch.arange(TINY.keys).expand(*tokens.shape, TINY.keys).float()

    setting = replace(TINY, asked=4000)
    assert recall.accuracy(Guesses(), 5, setting) == pytest.approx(0.1, abs=5 * (0.1 * 0.9 / 4000) ** 0.5)


# -- matched --


def test_state_and_parameters_are_matched():
    setting = recall.Setting()
    wanted = recall.Model(recall.MATCHED, setting)
    elements, learned = recall.state_elements(wanted, 9), recall.parameters(wanted)
    for method in EVERY:
        model = recall.Model(method, setting)
        assert recall.parameters(model) == pytest.approx(learned, rel=0.0025), method  # one unit of each network: 0.4 %
        if method.endswith("-half"):
            assert 2 * recall.state_elements(model, 9) == elements
        elif method != "softmax":
            assert recall.state_elements(model, 9) == elements, method
    assert recall.state_elements(recall.Model("softmax", setting), 192) > elements


def test_methods_differ_in_their_attention_alone():
    for method in EVERY:
        model = recall.Model(method, TINY)
        others = [n for n, _ in model.named_parameters() if ".attention." not in n]
        assert others == [n for n, _ in recall.Model("rdn", TINY).named_parameters() if ".attention." not in n]
        rule = getattr(model.blocks[0].attention, "rule", method)
        assert rule == method.partition("-")[0]
    assert {"rla", "rdn", "gdn", "sgla", "deltanet"} <= RULES.keys()


def test_the_convolution_sees_no_later_token():
    model = recall.Model("gdn", TINY)
    tokens = torch.from_numpy(recall.batch(5, 2, TINY.keys, 0, 1, 0)[0])
    torch.testing.assert_close(model(tokens)[:, :7], model(tokens[:, :7]), rtol=1e-4, atol=1e-5)


# -- runs --


def test_a_run_repeats():
    one, two = (recall.train("rdn", 1, 1e-2, TINY, quiet) for _ in range(2))
    del one["seconds_of_cpu"], two["seconds_of_cpu"]
    assert one == two
    assert recall.train("rdn", 2, 1e-2, TINY, quiet)["loss"] != one["loss"]


@pytest.mark.parametrize("method", EVERY)
def test_every_method_learns(method):
    """A vocabulary of three: guessing costs log 3 a question, and naming the two values of the sequence log 2."""
    setting = replace(TINY, keys=3, pairs=(2,), steps=60, tokens=48, asked=8)
    loss = [x for _, x in recall.train(method, 0, 1e-2, setting, quiet)["loss"]]
    assert np.mean(loss[:2]) > 0.95 * np.log(3)
    assert np.mean(loss[-5:]) < 0.85 * np.log(3)


def test_progress_tells_what_is_left():
    said = []
    recall.train("softmax", 0, 1e-2, TINY, said.append)
    assert 1 <= len(said) <= TINY.steps
    assert said[-1].startswith(f"softmax, seed 0, rate 0.01 [{20 * '#'}] 6/6, loss ")
    assert said[-1].endswith(", 0 s left")


def test_runs_that_are_stored_are_not_run_again(tmp_path, monkeypatch):
    done, path = [], tmp_path / "recall.json"

    def train(method, seed, rate, setting, told):
        done.append((method, seed, rate, setting.steps))
        score = {"gdn": {1e-3: 0.9, 1e-2: 0.2}, "rla": {1e-3: 0.1, 1e-2: 0.3}}[method][rate]
        return {"method": method, "seed": seed, "rate": rate, "accuracy": {"2": score, "5": score}}

    monkeypatch.setattr(recall, "train", train)
    told = []
    recall.run(("gdn",), 1, TINY, path, "first", quiet, told.append)
    assert told[-1] == "gdn, seed 0, rate 0.001: 2 pairs 90.0%, 5 pairs 90.0%"
    trial = recall.TRIAL_SEED
    assert done == [("gdn", trial, 1e-3, 3), ("gdn", trial, 1e-2, 3), ("gdn", 0, 1e-3, 6)]
    done.clear()
    record = recall.run(("gdn", "rla"), 2, TINY, path, "second", quiet, quiet)
    assert done == [
        ("rla", trial, 1e-3, 3), ("rla", trial, 1e-2, 3), ("rla", 0, 1e-2, 6), ("gdn", 1, 1e-3, 6), ("rla", 1, 1e-2, 6),
    ]  # fmt: skip
    assert json.loads(path.read_text()) == record
    assert record["commands"] == ["first", "second"]
    assert [x.name for x in tmp_path.iterdir()] == ["recall.json"]
    with pytest.raises(ValueError, match="must hold runs of this setting"):
        recall.run(("gdn",), 1, replace(TINY, steps=7), path)
    assert json.loads(path.read_text()) == record


def test_the_summary_has_mean_least_and_most_over_seeds():
    runs = [
        {"method": m, "rate": 1e-2, "parameters": 5, "state_elements": 7, "accuracy": {"4": a}}
        for m, a in (("rdn", 0.25), ("gdn", 1.0), ("rdn", 0.75))
    ]
    rdn, gdn = recall.summary({"runs": runs})
    assert (rdn["method"], rdn["seeds"], rdn["mean"], rdn["least"], rdn["most"]) == (
        "rdn", 2, {"4": 0.5}, {"4": 0.25}, {"4": 0.75},
    )  # fmt: skip
    assert (gdn["method"], gdn["seeds"], gdn["mean"]) == ("gdn", 1, {"4": 1.0})


def test_the_command_prints_json(capsys, monkeypatch):
    monkeypatch.setattr(recall, "Setting", lambda steps: replace(TINY, steps=steps))
    monkeypatch.setattr(recall.Setting, "steps", 6, raising=False)
    assert recall.main(["--method", "gdn,softmax", "--seeds", "1", "--steps", "2", "--rate", "0.01"]) == 0
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert [(x["method"], x["seed"], x["steps"]) for x in record["runs"]] == [("gdn", 0, 2), ("softmax", 0, 2)]
    assert record["trials"] == []
    assert record["commands"] == [
        "python -m attnlab.nn.associative_recall --method gdn,softmax --seeds 1 --steps 2 --rate 0.01"
    ]
    assert [line.partition(":")[0] for line in err.splitlines()] == [
        "gdn, seed 0, rate 0.01", "softmax, seed 0, rate 0.01",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--method", "mamba"], "--method must be all or some of rla, rdn"),
        (["--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["--table"], "--table needs --out with a file that is there, got None"),
        (["--rate", "2"], "--rate must lie between 0 and 1, got 2"),
    ],
)
def test_the_command_says_what_is_wrong(arguments, words, capsys):
    with pytest.raises(SystemExit):
        recall.main(arguments)
    assert words in capsys.readouterr().err


# -- what is stored --


@pytest.fixture(scope="module")
def stored():
    return json.loads(STORED.read_text(encoding="utf-8"))


def test_the_stored_runs_are_all_there_and_of_this_setting(stored):
    assert stored["setting"] == json.loads(json.dumps(asdict(recall.Setting())))
    assert {(x["method"], x["seed"]) for x in stored["runs"]} == {(m, s) for m in EVERY for s in range(3)}
    assert {(x["method"], x["rate"]) for x in stored["trials"]} == {
        (m, r) for m in EVERY for r in recall.Setting().rates
    }
    assert all(x["seed"] == recall.TRIAL_SEED for x in stored["trials"])
    assert all(command.startswith("python -m attnlab.nn.associative_recall ") for command in stored["commands"])
    assert set(stored["versions"]) == {"python", "numpy", "torch"}


def test_the_stored_runs_took_the_rate_that_their_trials_chose_and_the_sizes_of_this_code(stored):
    for seen in stored["runs"]:
        assert seen["rate"] == recall.chosen_rate(stored["trials"], seen["method"], recall.Setting())
        model = recall.Model(seen["method"], recall.Setting())
        assert seen["parameters"] == recall.parameters(model)
        assert seen["state_elements"] == recall.state_elements(model, 192)
        assert list(seen["accuracy"]) == ["4", "8", "16", "32", "64"]


def test_the_stored_accuracies_are_no_chance_and_no_certainty(stored):
    """Methods can be told apart: at 64 pairs, the best of them is far from the worst, and that one far from 1/128."""
    mean = {row["method"]: row["mean"]["64"] for row in recall.summary(stored)}
    assert max(mean.values()) - min(mean.values()) > 0.3
    assert min(mean.values()) > 0.05


def test_the_table_of_the_page_is_the_one_of_the_stored_runs(stored, capsys):
    assert recall.main(["--out", str(STORED), "--table"]) == 0
    printed = capsys.readouterr().out
    assert printed == TABLE.read_text(encoding="utf-8")
    assert len(printed.splitlines()) == 2 + len(EVERY)


def test_what_the_page_says_of_the_stored_runs(stored):
    at_64 = {m: np.array([x["accuracy"]["64"] for x in stored["runs"] if x["method"] == m]) for m in EVERY}

    def ahead(one, other):
        return 100 * np.subtract.outer(at_64[one], at_64[other])

    same_state = [ahead(one, two) for one in ("gdn", "sgla", "deltanet") for two in ("rla", "rdn")]
    assert min(x.min() for x in same_state) == pytest.approx(8.4, abs=0.05)
    assert max(x.max() for x in same_state) == pytest.approx(56.0, abs=0.05)
    assert ahead("gdn", "gdn-values").min() > 0
    assert min(ahead("gdn-values", "rla").min(), ahead("gdn-values", "rdn").min()) > 0
    assert ahead("rla", "sgla-half").mean() == pytest.approx(11.0, abs=0.05)
    assert (ahead("rla", "sgla-half").min(), ahead("rla", "sgla-half").max()) == pytest.approx((0.4, 26.1), abs=0.05)
    assert ahead("rdn", "gdn-half").mean() == pytest.approx(32.8, abs=0.05)
    failed, *learned = sorted(at_64["gdn-half"])
    worst, *better = sorted(at_64["rdn"])
    assert failed < 0.02
    assert learned[0] < worst < learned[1] < min(better)
    assert ahead("rla", "rdn").mean() > 0 > ahead("rla", "rdn").min()
    assert at_64["race"].max() < min(at_64[m].mean() for m in EVERY if m not in ("race", "gdn-half"))
    rates = {x["method"]: x["rate"] for x in stored["runs"]}
    assert {m for m, rate in rates.items() if rate == 0.01} == {"rla", "rdn", "deltanet", "sgla-half"}
    assert sum(rate == 0.03 for rate in rates.values()) == 6
