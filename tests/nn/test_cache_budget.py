"""What a cache is spent on: sizes are matched, all arms see the same text, the cache writes what whole passes write, a
run repeats and goes on; what is stored is of this code's setting.
"""

import hashlib
import json
import math
import platform
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the package torch is not installed; get it with: pip install torch")

from attnlab.lrkv import accounting  # noqa: E402
from attnlab.nn import cache_budget as budget  # noqa: E402

STORED = Path(__file__).parents[2] / "attnlab" / "nn" / "cache_budget.json"
PAGE = Path(__file__).parents[2] / "docs" / "papers" / "lrkv-training.md"
TABLE = PAGE.with_name("cache_budget.txt")
TINY = budget.Setting(
    width=24, heads=4, head_width=8, rank=2, blocks=2, hidden=160, context=12, rows=3, steps=4, rates=(1e-3, 1e-2),
    looks=2, prompts=2, prompt=5, written=6,
)  # fmt: skip
LARGE = budget.Setting()


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Products of a few numbers lose more to two threads than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def little_text(monkeypatch):
    """One sentence again and again: soon learned, and what is held out is judged in a moment."""
    text = 80 * b"what is kept of a token is read by all that follow; "
    monkeypatch.setattr(budget, "text", lambda: text)
    return text


def quiet(text):
    pass


# -- the text --


def test_no_paragraph_of_the_text_comes_twice():
    paragraphs = [" ".join(x.split()) for x in budget.text().decode().split("\n\n")]
    assert len(paragraphs) > 1000
    assert len(set(paragraphs)) == len(paragraphs)


def test_the_pieces_are_the_text_and_little_of_what_is_held_out_stands_elsewhere():
    learned, trial, held_out = budget.parts().values()
    assert np.concatenate([learned, trial, held_out]).tobytes() == budget.text()
    assert len(learned) == pytest.approx(0.85 * len(budget.text()), abs=1)
    assert len(held_out) == pytest.approx(0.1 * len(budget.text()), abs=1)
    earlier, later = learned.tobytes() + trial.tobytes(), held_out.tobytes()
    known = {earlier[i : i + 50] for i in range(len(earlier) - 49)}
    assert np.mean([later[i : i + 50] in known for i in range(len(later) - 49)]) < 0.05  # 0.11 with quotations left in


def test_windows_are_of_the_learned_piece_and_differ_by_seed_and_step():
    first = budget.batch(0, 5, TINY)
    assert first.shape == (TINY.rows, TINY.context + 1)
    assert all(bytes(row.tolist()) in budget.parts()["learned"].tobytes() for row in first)
    assert torch.equal(first, budget.batch(0, 5, TINY))
    for other in ((1, 5), (0, 6)):
        assert not torch.equal(first, budget.batch(*other, TINY))
    assert torch.equal(first[:2], budget.batch(0, 5, replace(TINY, rows=2)))


# -- matched --


@pytest.mark.parametrize("setting", [TINY, LARGE], ids=["tiny", "large"])
@pytest.mark.parametrize("arm", budget.ARMS)
def test_parameters_are_those_of_lrkv_and_the_cache_is_where_it_is_said_to_be(arm, setting):
    wanted = budget.Model(budget.MATCHED, setting)
    one_unit = 2 * setting.width * setting.blocks
    for shape in budget.shapes(arm, setting):
        model = budget.Model(arm, setting, shape)
        assert abs(budget.parameters(model) - budget.parameters(wanted)) <= one_unit / 2
        if arm in budget.SAME_CACHE:
            assert model.cache_elements() == wanted.cache_elements()


def test_in_the_stored_setting_parameters_are_the_same_to_one_and_the_page_has_the_sizes():
    models = {arm: budget.Model(arm, LARGE, shape) for arm in budget.ARMS for shape in budget.shapes(arm, LARGE)}
    (learned,) = {budget.parameters(model) for model in models.values()}
    page = PAGE.read_text(encoding="utf-8")
    assert f"{learned:,} parameters, in each arm exactly" in page
    assert f"=256$ numbers a token and layer, half of MHA's {models['mha'].cache_elements()};" in page
    kept = [models[arm].cache_elements() for arm in ("lrkv-aligned", "gqa", "mqa", "mla")]
    assert kept == [256, 128, 64, 144]


@pytest.mark.parametrize(
    ("arm", "scheme", "sizes"),
    [
        ("lrkv-expanded", "lrkv", {"rank": 12}),
        ("mha", "mha", {}),
        ("gqa", "gqa", {"groups": 2}),
        ("mqa", "mqa", {}),
        ("mla", "mla", {"latent_width": 128, "rope_width": 16}),
    ],
)
def test_a_cache_has_the_size_that_the_accounts_give(arm, scheme, sizes):
    counted = accounting.elements(scheme, heads=LARGE.heads, head_width=LARGE.head_width, **sizes)
    assert budget.Model(arm, LARGE).cache_elements() == counted


@pytest.mark.parametrize("arm", budget.ARMS)
def test_a_state_holds_as_many_numbers_as_it_is_said_to(arm):
    model = budget.Model(arm, TINY)
    states = None
    for token in range(3):
        _, states = model.step(torch.tensor([token]), states)
    held = sum(part.numel() for state in states for part in state if part is not None)
    assert held == 3 * TINY.blocks * model.cache_elements()


def test_arms_differ_in_their_attention_alone():
    def others(arm):
        return [name for name, _ in budget.Model(arm, TINY).named_parameters() if ".attention." not in name]

    assert all(others(arm) == others(budget.MATCHED) for arm in budget.ARMS)


def test_arms_begin_alike():
    """Nothing is added at first, so equal embeddings have equal logits."""
    tokens, said = budget.batch(0, 0, TINY), []
    for arm in budget.ARMS:
        model = budget.Model(arm, TINY)
        torch.nn.init.constant_(model.embedding.weight, 0.1)
        model.embedding.weight.data[:, 0] = torch.arange(256) / 256
        said.append(model(tokens))
    assert all(torch.equal(said[0], other) for other in said[1:])


def test_sizes_that_cannot_be_matched():
    with pytest.raises(ValueError, match="rank must fill whole heads"):
        budget.shapes("gqa-cache", replace(TINY, rank=1))
    with pytest.raises(ValueError, match="hidden must be so large that mqa-cache has some of it left, got 3"):
        budget.Model("mqa-cache", replace(TINY, hidden=3), budget.shapes("mqa-cache", TINY)[-1])
    with pytest.raises(ValueError, match="arm must be one of 'lrkv-aligned'"):
        budget.shapes("lrkv", TINY)


# -- one run --


@pytest.mark.parametrize("arm", budget.ARMS)
def test_every_arm_learns_and_writes_from_its_cache_what_whole_passes_write(arm, little_text):
    """From uniform guesses, log 256 = 5.55 nats, to below the 2.63 that single bytes of the sentence tell."""
    setting = replace(TINY, steps=60, rows=8)
    seen = budget.train(arm, 0, 1e-2, setting, told=quiet)
    assert seen["learned"][0][1] > 5
    assert seen["learned"][-1][1] < 2
    assert seen["nats"] < 2
    # logits are of the order of 10 and float32 rounds at 6e-8; a hundred such errors would be 6e-5
    assert seen["decoded"]["logits_apart"] < 1e-4
    assert seen["decoded"]["bytes"] == setting.prompts * setting.written
    assert seen["decoded"]["same"] == seen["decoded"]["bytes"]
    prompt, written = seen["decoded"]["sample"]
    assert prompt.encode() == budget.parts()["held_out"][: setting.prompt].tobytes()
    assert len(written.encode()) == setting.written


def test_a_cache_that_forgets_is_found_out(little_text):
    model = budget.Model("lrkv-aligned", TINY)
    for block in model.blocks:
        torch.nn.init.normal_(block.attention.out.weight)
        block.attention.step = lambda x, state, whole=block.attention: (whole(x[:, None])[:, 0], None)
    assert budget.decoded(model, TINY)["logits_apart"] > 0.01


def test_the_loss_is_the_mean_over_every_byte_of_full_windows(little_text):
    model = budget.Model("gqa", TINY)
    part = torch.from_numpy(budget.parts()["held_out"].astype(np.int64))
    n = (len(part) - 1) // TINY.context
    rows = part[: n * TINY.context].view(n, -1)
    told = torch.log_softmax(model(rows), -1).flatten(0, 1)
    wanted = -told[torch.arange(n * TINY.context), part[1 : n * TINY.context + 1]].mean()
    # a mean of some 400 float32 losses of about 6, grouped otherwise
    assert budget.nats(model, "held_out", TINY) == pytest.approx(wanted.item(), rel=1e-5)


def test_a_run_repeats(little_text):
    one, two = (budget.train("lrkv-expanded", 1, 1e-2, TINY, told=quiet) for _ in range(2))
    del one["seconds_of_cpu"], two["seconds_of_cpu"]
    assert one == two
    assert budget.train("lrkv-expanded", 2, 1e-2, TINY, told=quiet)["learned"] != one["learned"]


def test_short_runs_are_judged_on_a_piece_of_their_own(little_text, monkeypatch):
    judged = []
    monkeypatch.setattr(budget, "nats", lambda model, part, setting: judged.append(part) or 1.0)
    for seed in (budget.TRIAL_SEED, 0):
        budget.train("mqa", seed, 1e-2, TINY, told=quiet)
    assert judged == ["trial"] * 2 + ["held_out"] * 2


# -- all runs --


@pytest.fixture
def told_losses(monkeypatch):
    """Runs that take no time; which were asked for comes back."""
    asked = []

    def train(arm, seed, rate, setting, shape):
        asked.append((arm, seed, rate, setting.steps, shape.heads))
        loss = {"lrkv-aligned": 1.0, "mha": 1.1, "mqa-cache": 1.2}[arm] + (rate == 1e-3) + abs(shape.heads - 2) / 10
        return {"arm": arm, "seed": seed, "rate": rate, "shape": shape._asdict(), "nats": loss}

    monkeypatch.setattr(budget, "train", train)
    return asked


def test_short_runs_choose_and_runs_that_are_stored_are_not_run_again(told_losses, tmp_path):
    path, trial = tmp_path / "budget.json", budget.TRIAL_SEED
    budget.run(("lrkv-aligned",), 1, TINY, path, "first", done=quiet)
    rates = [(arm, trial, rate, 2, 4) for arm in ("lrkv-aligned", "mha") for rate in TINY.rates]
    assert told_losses == [*rates, ("lrkv-aligned", 0, 1e-2, 4, 4)]
    told_losses.clear()
    record = budget.run(("lrkv-aligned", "mqa-cache"), 2, TINY, path, "second", done=quiet)
    assert told_losses == [
        *(("mqa-cache", trial, 1e-2, 2, heads) for heads in (1, 2, 4)),
        ("mqa-cache", 0, 1e-2, 4, 2), ("lrkv-aligned", 1, 1e-2, 4, 4), ("mqa-cache", 1, 1e-2, 4, 2),
    ]  # fmt: skip
    assert json.loads(path.read_text()) == record
    assert record["commands"] == ["first", "second"]
    assert [x.name for x in tmp_path.iterdir()] == ["budget.json"]
    with pytest.raises(ValueError, match="must hold runs of this setting, got another"):
        budget.run(("mha",), 1, replace(TINY, steps=5), path)
    assert json.loads(path.read_text()) == record


def test_another_text_is_refused(told_losses, tmp_path, monkeypatch):
    path = tmp_path / "budget.json"
    budget.run(("mha",), 1, TINY, path, done=quiet)
    monkeypatch.setattr(budget, "text", lambda: b"another")
    with pytest.raises(ValueError, match="must hold runs of this text, got another"):
        budget.run(("mha",), 1, TINY, path)


def test_two_processes_find_what_one_finds():
    setting = replace(TINY, rates=(1e-2,), steps=2, prompts=1)
    one, two = (budget.run(("mha", "mqa"), 1, setting, workers=workers, done=quiet)["runs"] for workers in (1, 2))
    for seen in (*one, *two):
        del seen["seconds_of_cpu"]
    assert sorted(one, key=lambda x: x["arm"]) == sorted(two, key=lambda x: x["arm"])


# -- what is said of them --


def fake(arm, seed, loss):
    shape = budget.shapes(arm, LARGE)[0]._asdict()
    sizes = {"parameters": 5, "hidden": 6, "cache_elements": 7, "shape": shape, "rate": 1e-3}
    return {"arm": arm, "seed": seed, "nats": loss, "decoded": {"bytes": 4, "same": 3, "logits_apart": 2e-6}} | sizes


def test_losses_are_compared_seed_by_seed():
    runs = [fake("mha", 1, 1.5), fake("lrkv-aligned", 0, 1.0), fake("lrkv-aligned", 1, 1.25), fake("mha", 0, 1.5)]
    assert budget.ahead({"runs": runs}, "mha").tolist() == [0.5, 0.25]
    assert budget.ahead({"runs": runs}, "lrkv-aligned", "mha").tolist() == [-0.5, -0.25]
    own, other = budget.summary({"runs": runs})
    assert (own["arm"], own["seeds"], own["mean"], own["least"], own["most"]) == ("lrkv-aligned", 2, 1.125, 1.0, 1.25)
    assert (other["arm"], other["behind"]) == ("mha", 0.375)
    assert other["give_or_take"] == pytest.approx(12.706 * 0.125)  # half of the distance of two values


@pytest.mark.parametrize("freedom", budget.STUDENT)
def test_the_interval_is_that_of_students_t(freedom):
    """Between the two points of the table lie 95 % of the density, by the rule of the middle."""
    point, n = budget.STUDENT[freedom], 100_000
    x = point * ((np.arange(n) + 0.5) / n * 2 - 1)
    whole = math.sqrt(freedom * math.pi) * math.gamma(freedom / 2) / math.gamma((freedom + 1) / 2)
    inside = ((1 + x**2 / freedom) ** (-(freedom + 1) / 2)).mean() * 2 * point / whole
    assert inside == pytest.approx(0.95, abs=5e-5)  # 0.0005 off at each of two points, of density below 0.05
    values = np.arange(freedom + 1) ** 2.0
    assert budget.interval(values) == point * np.std(values, ddof=1) / len(values) ** 0.5


def test_of_one_value_nothing_is_known_and_of_none_or_six_nothing_is_said():
    assert budget.interval(np.ones(1)) == np.inf
    for n in (0, 6):
        with pytest.raises(ValueError, match=f"values must be 1 to 5, got {n}"):
            budget.interval(np.ones(n))


def test_the_table_says_what_can_be_told_apart():
    losses = {
        "lrkv-aligned": (1.0, 1.1, 1.2),
        "mha-cache": (1.2, 1.3, 1.41),
        "gqa": (0.9, 1.0, 1.11),
        "mla": (1, 1.2, 1.1),
    }
    runs = [fake(arm, seed, loss) for arm, own in losses.items() for seed, loss in enumerate(own)]
    told = budget.table({"runs": runs, "trials": [fake("mha", 1000, 2.0)]})
    assert "Worse than lrkv-aligned: mha-cache; Better: gqa; Not told apart: mla.\n" in told
    assert "36 of 48 bytes are those of whole passes; logits differ by 2.0e-06 at most" in told
    assert "| lrkv-aligned | 8 × 32 | 1 shared, rank 12 a head | 7 | 6 | 1.1000 (1.0000–1.2000) | 1.587 |  |\n" in told
    assert "| mha | 8 × 32 | 0.001 | 2.0000 |\n" in told


def test_the_command_writes_a_file_and_prints_its_table(tmp_path, capsys, monkeypatch, little_text):
    monkeypatch.setattr(budget, "Setting", lambda steps: replace(TINY, steps=steps))
    monkeypatch.setattr(budget.Setting, "steps", 6, raising=False)
    out = str(tmp_path / "out.json")
    assert budget.main([out, "--arm", "mla,lrkv-aligned", "--seeds", "1", "--steps", "2"]) == 0
    record = json.loads(Path(out).read_text())
    assert [(x["arm"], x["seed"], x["steps"]) for x in record["runs"]] == [("mla", 0, 2), ("lrkv-aligned", 0, 2)]
    assert len(record["trials"]) == 4
    assert record["commands"] == [f"python -m attnlab.nn.cache_budget {out} --arm mla,lrkv-aligned --seeds 1 --steps 2"]
    assert len(capsys.readouterr().err.splitlines()) == 6
    assert budget.main([out, "--table"]) == 0
    assert capsys.readouterr().out == budget.table(record)
    Path(out).write_text(json.dumps(record | {"runs": []}))
    with pytest.raises(SystemExit):
        budget.main([out, "--table"])
    assert "--table needs a file with runs, got none in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--arm", "mamba"], "--arm must be all or some of lrkv-aligned"),
        (["--seeds", "6"], "--seeds must lie in [1, 5], got 6"),
        (["--workers", "0"], "--workers must lie in"),
        (["--table"], "--table needs a file that is there"),
    ],
)
def test_the_command_says_what_is_wrong(arguments, words, capsys, tmp_path):
    with pytest.raises(SystemExit):
        budget.main([str(tmp_path / "none.json"), *arguments])
    assert words in capsys.readouterr().err


# -- what is stored --


@pytest.fixture(scope="module")
def stored():
    return json.loads(STORED.read_text(encoding="utf-8"))


def test_the_stored_runs_are_all_there_and_of_this_setting(stored):
    assert stored["setting"] == json.loads(json.dumps(asdict(LARGE)))
    assert sorted((x["arm"], x["seed"]) for x in stored["runs"]) == sorted(
        (a, s) for a in budget.ARMS for s in range(3)
    )
    rated = {(x["arm"], x["rate"]) for x in stored["trials"] if x["arm"] in budget.RATED}
    assert rated == {(arm, rate) for arm in budget.RATED for rate in LARGE.rates}
    assert all(x["seed"] == budget.TRIAL_SEED for x in stored["trials"])
    assert all(command.startswith("python -m attnlab.nn.cache_budget ") for command in stored["commands"])
    assert set(stored["versions"]) == {"python", "numpy", "torch"}


def test_the_stored_text_is_that_of_the_python_it_names(stored):
    if stored["versions"]["python"] != platform.python_version():
        pytest.skip(f"Python {platform.python_version()} has another text than {stored['versions']['python']}")
    sha256 = hashlib.sha256(budget.text()).hexdigest()
    assert stored["text"] == {"bytes": len(budget.text()), "sha256": sha256}


def test_the_stored_runs_took_the_rate_and_shapes_that_short_runs_chose_and_the_sizes_of_this_code(stored):
    rate = budget.chosen_rate(stored["trials"], LARGE)
    for arm in budget.ARMS:
        shape = budget.chosen_shape(stored["trials"], arm, LARGE)
        model = budget.Model(arm, LARGE, shape)
        for seen in (x for x in stored["runs"] if x["arm"] == arm):
            assert (seen["rate"], budget.Shape(**seen["shape"]), seen["steps"]) == (rate, shape, LARGE.steps)
            assert seen["parameters"] == budget.parameters(model)
            assert (seen["hidden"], seen["cache_elements"]) == (model.hidden, model.cache_elements())


def test_the_stored_models_learned_more_than_single_bytes_and_their_caches_write_the_same(stored):
    counts = np.bincount(budget.parts()["learned"], minlength=256)
    share = counts[counts > 0] / counts.sum()
    for seen in stored["runs"]:
        assert seen["nats"] < -(share * np.log(share)).sum() / 2
        assert seen["unseen"][-1] == [LARGE.steps, seen["nats"]]
        assert seen["decoded"]["logits_apart"] < 1e-3


def test_the_table_of_the_page_is_the_one_of_the_stored_runs(stored, capsys):
    assert budget.main([str(STORED), "--table"]) == 0
    assert capsys.readouterr().out == TABLE.read_text(encoding="utf-8")
