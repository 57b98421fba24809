"""Sparse decoding in transformers: a budget of all is dense, a step reads what its selector reads, codes are never
stale, padding is never read, what cannot be is refused by name.
"""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the package torch is not installed; get it with: pip install torch")
transformers = pytest.importorskip(
    "transformers", reason="the package transformers is not installed; get it with: pip install transformers"
)

from transformers import AttentionInterface, DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache  # noqa: E402

from attnlab import backend, models  # noqa: E402
from attnlab.hashattention import attention, encode, random_maps, selectors  # noqa: E402
from attnlab.hashattention.training import save  # noqa: E402
from attnlab.nn import hf  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "transformers.md"

LAYERS, H, G, K, VOCABULARY = 2, 4, 2, 8, 61
IMPLS = [name for name in ("reference", "numba", "torch") if backend.why_not(name, "hashattention") is None]
MAPS = {layer: (random_maps(32, H, K, seed=layer), random_maps(32, G, K, seed=layer)) for layer in range(LAYERS)}
SMALL = {"budget": 4, "sinks": 2, "window": 3}
OPTIONS = selectors.Options(bits=16, page=4, representatives=2, planes=3)
EVERY = tuple(selectors.SELECTORS)
# the name of a model's argument, which changed within transformers 5
CACHE = "cache" if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters else "past_key_values"


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Products of a few numbers lose more to two threads than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model():
    """Two layers with weights large enough that attention is not flat, in float64."""
    hf.register()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=H,
        num_key_value_heads=G, head_dim=K, initializer_range=0.4, pad_token_id=0, bos_token_id=1, eos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).double().eval()


def prompt(rows=2, tokens=17, seed=0):
    return torch.randint(2, VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def configured(model, name, **told):
    hf.register()
    model.set_attn_implementation(hf.PREFIX + name)
    return hf.configure(model, **{"maps": MAPS, "impl": "reference", "options": OPTIONS, **SMALL, **told})


def generated(model, ids, mask=None, tokens=10, **more):
    mask = torch.ones_like(ids) if mask is None else mask
    out = model.generate(ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False, **more)
    return out[:, ids.shape[1] :].tolist()


def dense(model, ids, mask=None, **more):
    model.set_attn_implementation("sdpa")
    return generated(model, ids, mask, **more)


# -- one step, by hand: q [B, H, T, K], k and v [B, G, S, K] as transformers hands them over --


def drawn(S, B=2, seed=0):
    rng = np.random.default_rng(seed)
    return (torch.from_numpy(rng.standard_normal((B, heads, S, K))) for heads in (H, G, G))


def step(model, name, q, k, v, mask=None, layer=1):
    attend = AttentionInterface()[hf.PREFIX + name]
    return attend(model.model.layers[layer].self_attn, q, k, v, mask, scaling=0.3)[0]


def by_hand(q, k, v, layer=1, **sizes):
    """The step of "hash" with nothing kept."""
    q, k, v = (x.transpose(1, 2).numpy() for x in (q, k, v))
    codes = (encode(x, maps) for x, maps in zip((q, k), MAPS[layer], strict=True))
    return torch.from_numpy(attention(q, k, v, *codes, **(sizes or SMALL), scale=0.3))


def same(ours, theirs):
    """To the rounding of float64 in sums of a few terms of order 1."""
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


# -- names and budgets --


def test_there_is_a_name_for_every_selector_and_again_is_fine(model):
    assert hf.register() == hf.register() == tuple("attnlab_" + name for name in EVERY)
    built = LlamaForCausalLM._from_config(model.config, attn_implementation="attnlab_quest")
    assert built.config._attn_implementation == "attnlab_quest"


@pytest.mark.parametrize("name", EVERY)
def test_who_reads_all_generates_what_the_dense_model_does(model, name):
    ids = prompt()
    wanted = dense(model, ids)
    configured(model, name, window=64, budget=0)
    assert generated(model, ids) == wanted


@pytest.mark.parametrize("name", [name for name in EVERY if name not in ("sinks_window", "magicpig")])
def test_a_budget_of_all_is_dense_too(model, name):
    """sinks_window has no budget, and how much magicpig reads of one is chance."""
    ids = prompt()
    wanted = dense(model, ids)
    configured(model, name, budget=1.0)
    assert generated(model, ids) == wanted


@pytest.mark.parametrize("impl", IMPLS)
def test_every_implementation_reads_the_same(model, impl):
    q, k, v = drawn(30)
    configured(model, "hash", impl=impl)
    o = step(model, "hash", q[:, :, -1:].float(), k.float(), v.float())
    assert o.dtype == torch.float32
    torch.testing.assert_close(o.double(), by_hand(q[:, :, -1:], k, v), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", EVERY)
def test_a_small_budget_changes_what_is_generated(model, name):
    """So that the two tests before say something."""
    ids = prompt()
    wanted = dense(model, ids)
    configured(model, name, budget=1, sinks=0, window=1)
    assert generated(model, ids) != wanted


def test_layers_that_are_listed_stay_dense(model):
    ids = prompt()
    wanted = dense(model, ids)
    assert configured(model, "hash", maps={}, dense=(0, 1), record=True).report() == []
    assert generated(model, ids) == wanted
    decoding = configured(model, "hash", maps={1: MAPS[1]}, dense=[0], record=True)
    assert generated(model, ids) != wanted
    assert [line.layer for line in decoding.report()] == [1]


# -- a step reads what its selector reads --


@pytest.mark.parametrize("name", [name for name in EVERY if name not in ("hash", *hf.REMEMBERING)])
def test_a_step_is_its_selector(model, name):
    q, k, v = drawn(30)
    configured(model, name)
    o = step(model, name, q[:, :, -1:], k, v)
    for b, h in np.ndindex(2, H):
        head = selectors.head_of(*(x.transpose(1, 2) for x in (q[:, :, -1:], k, v)), b, h, scale=0.3)
        selection = selectors.select(name, head, **SMALL, options=OPTIONS)
        same(o[b, 0, h], torch.from_numpy(selectors.outputs(head, selection)[0]))


@pytest.mark.parametrize("name", hf.REMEMBERING)
def test_past_queries_are_those_of_the_whole_sequence(model, name):
    """H2O begins to forget behind the prompt, so its prompt here is one that the budget holds."""
    q, k, v = drawn(30)
    sizes = {**SMALL, "budget": 15}
    configured(model, name, **sizes)
    for start, end in ((0, 12), (12, 13), (13, 19), *((n, n + 1) for n in range(19, 30))):
        o = step(model, name, q[:, :, start:end], k[:, :, :end], v[:, :, :end], mask=causal(start, end))
    for b, h in np.ndindex(2, H):
        head = selectors.head_of(*(x.transpose(1, 2) for x in (q, k, v)), b, h, scale=0.3)
        selection = selectors.select(name, head, **sizes, options=OPTIONS)
        assert selection.chosen[-1].sum() == 20
        same(o[b, 0, h], torch.from_numpy(selectors.outputs(head, selection)[-1]))


def causal(start, end):
    """SDPA's mask of a step of several tokens behind others, and none where it needs none."""
    if start == 0 or end - start == 1:
        return None
    return (torch.arange(end) <= torch.arange(start, end)[:, None]).expand(2, 1, -1, -1)


@pytest.mark.parametrize("name", ["hash", "exact", "quest", "key_norm", "magicpig"])
def test_the_record_is_what_measure_says(model, name):
    q, k, v = drawn(30)
    q = q[:, :, -1:]
    decoding = configured(model, name, record=True, top=5)
    step(model, name, q, k, v)
    step(model, name, q, k[:, :, :20], v[:, :, :20])
    wanted = []
    for end in (30, 20):
        x = [part.transpose(1, 2) for part in (q, k[:, :, :end], v[:, :, :end])]
        codes = dict(zip(("query_codes", "key_codes"), map(encode, x, MAPS[1]), strict=False))
        for b, h in np.ndindex(2, H):
            head = selectors.head_of(*x, b, h, scale=0.3, **codes)
            measured = selectors.measure(name, head, **SMALL, top=5, options=OPTIONS)
            wanted.append([end, *(getattr(measured, field)[0] for field in hf.LayerReport._fields[3:])])
    (line,) = decoding.report()
    assert line[:2] == (1, 2 * 2 * H)
    np.testing.assert_allclose(line[2:], np.mean(wanted, axis=0), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("budget", [5, 0.25])
def test_a_budget_is_so_many_tokens_or_that_fraction_of_the_visible_ones(model, budget):
    q, k, v = drawn(30)
    decoding = configured(model, "hash", budget=budget, record=True)
    o = step(model, "hash", q[:, :, -1:], k, v)
    same(o, by_hand(q[:, :, -1:], k, v, budget=budget, sinks=2, window=3))
    assert decoding.report()[0].tokens_read == 5 + (5 if budget == 5 else 7)  # 0.25 of 30, rounded down


@pytest.mark.parametrize("name", [name for name in EVERY if name not in ("lsh_centred", "lsh_lifted", "magicpig")])
def test_several_tokens_at_once_read_what_they_read_alone(model, name):
    """Where that is asked for; the prompt stays dense. What is left out takes statistics of the whole step."""
    q, k, v = drawn(30)
    at = {"budget": 0.25, "record": True, "top": 5}
    decoding = configured(model, name, **at)
    parts = [(0, 4), *((n, n + 1) for n in range(4, 30))]
    one = [step(model, name, q[:, :, a:b], k[:, :, :b], v[:, :, :b], causal(a, b)) for a, b in parts]
    alone = decoding.report()
    decoding = configured(model, name, several=True, **at)
    parts = [(0, 4), (4, 19), (19, 20), (20, 30)]
    many = [step(model, name, q[:, :, a:b], k[:, :, :b], v[:, :, :b], causal(a, b)) for a, b in parts]
    same(torch.cat(many, dim=1), torch.cat(one, dim=1))
    np.testing.assert_allclose(decoding.report(), alone, rtol=1e-10)


# -- codes are never stale --


def test_a_key_is_encoded_once(model, monkeypatch):
    room, seen = backend.load("reference", "hashattention"), []
    once = room.encode
    monkeypatch.setattr(room, "encode", lambda x, *rest, **more: seen.append(x.shape[1]) or once(x, *rest, **more))
    configured(model, "hash", dense=[0])
    generated(model, prompt(tokens=17), tokens=4)
    assert seen[0::2] == [18, 1, 1]  # the prompt with the first new token, then one key after another
    assert seen[1::2] == [1, 1, 1]  # and the queries


def test_codes_are_those_of_the_keys_whatever_happened_to_the_cache(model):
    """A walk of sixty steps: tokens come, are taken back, replaced in place, rows are reordered, batches change."""
    rng, decoding = np.random.default_rng(5), configured(model, "hash")
    q, k, v = drawn(12)
    done = []
    for number in range(60):
        done.append(rng.choice(["token", "crop", "replace", "reorder", "other", "batch", "static", "back"]))
        match done[-1]:
            case "token":
                _, *more = drawn(1, len(k), seed=number)
                k, v = (torch.cat([x, y], dim=2) for x, y in zip((k, v), more, strict=True))
            case "crop":
                left = max(2, k.shape[2] - rng.integers(1, 4))
                k, v = k[:, :, :left], v[:, :, :left]
            case "replace":
                k = k.clone()
                k[:, :, rng.integers(k.shape[2])] *= -1
            case "reorder":
                k, v = k.flip(0), v.flip(0)
            case "other":
                _, k, v = drawn(int(rng.integers(4, 20)), len(k), seed=number)
            case "batch":
                _, k, v = drawn(k.shape[2], int(rng.integers(1, 4)), seed=number)
            case "static":  # the same memory with other numbers
                k[:, :, -3:] = -k[:, :, -3:]
            case "back":
                _, k, v = drawn(12)
        q = next(drawn(1, len(k), seed=1000 + number))
        same(step(model, "hash", q, k, v), by_hand(q, k, v))
    assert len(set(done)) == 8
    decoding.reset()
    same(step(model, "hash", q, k, v), by_hand(q, k, v))


def test_names_may_alternate_on_one_cache(model):
    q, k, v = drawn(30)
    configured(model, "hash")
    step(model, "h2o", q[:, :, :20], k[:, :, :20], v[:, :, :20])
    step(model, "h2o", q[:, :, 20:21], k[:, :, :21], v[:, :, :21])
    same(
        step(model, "hash", q[:, :, 24:25], k[:, :, :25], v[:, :, :25]),
        by_hand(q[:, :, 24:25], k[:, :, :25], v[:, :, :25]),
    )
    step(model, "h2o", q[:, :, :9], -k[:, :, :9], v[:, :, :9])
    same(
        step(model, "hash", q[:, :, 9:10], k[:, :, :10], v[:, :, :10]),
        by_hand(q[:, :, 9:10], k[:, :, :10], v[:, :, :10]),
    )


@pytest.mark.parametrize("name", hf.REMEMBERING)
def test_sums_over_past_queries_are_refused_where_they_would_be_others(model, name):
    q, k, v = drawn(30)
    configured(model, name)
    told = f"attnlab_{name} sums over all queries since the prompt began"

    def at(end, keys=k, tokens=1):
        return step(
            model, name, q[:, :, end - tokens : end], keys[:, :, :end], v[:, :, :end], causal(end - tokens, end)
        )

    with pytest.raises(ValueError, match=told):  # it saw no prompt
        at(20)
    at(20, tokens=20)
    for wrong in (lambda: at(20), lambda: at(22), lambda: at(21, -k)):  # cropped, a gap, other keys
        with pytest.raises(ValueError, match=told):
            wrong()
        at(20, tokens=20)
    at(21)


def test_two_models_do_not_share_anything(model):
    torch.manual_seed(1)
    other = LlamaForCausalLM(model.config).double().eval()
    one = configured(model, "hash", budget=1, record=True)
    two = configured(other, "hash", budget=9, record=True)
    generated(model, prompt()), generated(other, prompt()), generated(model, prompt())
    assert [line.tokens_read for line in one.report()] == [6, 6]
    assert [line.tokens_read for line in two.report()] == [14, 14]


# -- the ways of transformers --


def test_one_call_after_another_is_as_the_first(model):
    configured(model, "hash")
    first = [generated(model, ids) for ids in (prompt(seed=1), prompt(rows=1, seed=2), prompt(tokens=9, seed=1))]
    again = [generated(model, ids) for ids in (prompt(seed=1), prompt(rows=1, seed=2), prompt(tokens=9, seed=1))]
    assert first == again
    with torch.inference_mode():
        assert generated(model, prompt(seed=1)) == first[0]
    configured(model, "hash")
    with torch.inference_mode():
        half = generated(model, prompt(seed=1), tokens=5)
    assert [row[:5] for row in first[0]] == half
    assert generated(model, prompt(seed=1)) == first[0]


@pytest.mark.parametrize("name", ["hash", "exact", "h2o"])
def test_a_static_cache_with_its_empty_end_reads_the_same(model, name):
    configured(model, name)
    ids = prompt()
    static = {CACHE: StaticCache(config=model.config, max_cache_len=64)}
    assert generated(model, ids, **static) == generated(model, ids)


@pytest.mark.parametrize("more", [{"num_beams": 3}, {"prompt_lookup_num_tokens": 3}], ids=str)
def test_beams_and_drafts_reorder_and_crop_the_cache(model, more):
    ids = prompt(rows=1)
    wanted = dense(model, ids, **more)
    configured(model, "hash", budget=64)
    assert generated(model, ids, **more) == wanted


def test_a_cache_that_was_cropped_by_hand_goes_on_as_if_nothing_had_been(model):
    configured(model, "hash")
    ids, cache = prompt(), DynamicCache()

    def logits(tokens):
        with torch.no_grad():
            return model(tokens, **{CACHE: cache}, use_cache=True).logits[:, -1]

    logits(ids)
    wanted = [logits(ids[:, :1]), logits(ids[:, 1:2])]
    cache.crop(-2)
    logits(ids[:, 5:6])
    cache.crop(-1)
    for ours, theirs in zip((logits(ids[:, :1]), logits(ids[:, 1:2])), wanted, strict=True):
        same(ours, theirs)


@pytest.mark.parametrize(("kind", "more"), [("Qwen3", {}), ("Mistral", {"sliding_window": 9})])
@pytest.mark.parametrize("name", ["hash", "quest"])
def test_other_models_take_the_names_too(name, kind, more):
    """Mistral's layers see a window of 9 alone: its cache moves, and codes are made anew."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=H,
        num_key_value_heads=G, head_dim=K, initializer_range=0.4, pad_token_id=0, bos_token_id=1, eos_token_id=None,
        **more,
    )  # fmt: skip
    other = getattr(transformers, f"{kind}ForCausalLM")(config).double().eval()
    wanted = dense(other, prompt())
    configured(other, name, budget=1.0)
    assert generated(other, prompt()) == wanted
    configured(other, name, budget=1, sinks=0, window=1)
    assert generated(other, prompt()) != wanted


# -- masks --


@pytest.mark.parametrize("name", ["hash", "exact", "quest", *hf.REMEMBERING])
def test_padding_on_the_left_is_never_read(model, name):
    """A padded row generates what it does alone, the fixed windows and fractions included."""
    ids, mask = prompt(rows=3), torch.ones(3, 17, dtype=torch.long)
    for row, padding in enumerate((0, 4, 7)):
        ids[row, :padding], mask[row, :padding] = 0, 0
    configured(model, name, budget=0.2)
    together = generated(model, ids, mask)
    assert together == [*(generated(model, ids[row : row + 1, n:])[0] for row, n in enumerate((0, 4, 7)))]


def test_a_mask_that_cannot_be_followed_is_refused(model):
    q, k, v = drawn(12)
    q = q[:, :, -1:]
    configured(model, "hash")
    mask = torch.ones(2, 1, 1, 12, dtype=torch.bool)
    same(step(model, "hash", q, k, v, mask), by_hand(q, k, v))
    mask[1, ..., 5] = False
    words = "attention_mask must leave each query the neighbouring tokens up to its own"
    with pytest.raises(ValueError, match=f"{words}, got others in row 1"):
        step(model, "hash", q, k, v, mask)
    mask[1] = False
    with pytest.raises(ValueError, match=f"{words}, got none in row 1"):
        step(model, "hash", q, k, v, mask)
    with pytest.raises(ValueError, match=r"attention_mask must be 2-D, .* got torch\.float64 of shape \(2, 1, 1, 12\)"):
        step(model, "hash", q, k, v, mask.double())
    q, k, v = drawn(12)
    configured(model, "hash", several=True)
    with pytest.raises(ValueError, match=r"attention_mask must be 2-D, .* got torch\.float64 of shape \(2, 1, 3, 12\)"):
        step(model, "hash", q[:, :, 9:], k, v, torch.zeros(2, 1, 3, 12, dtype=torch.float64))


# -- errors --


def test_a_model_that_was_told_nothing_says_what_is_missing(model):
    hf.register()
    other = LlamaForCausalLM(model.config)
    other.set_attn_implementation("attnlab_hash")
    with pytest.raises(ValueError, match=r"attnlab_hash must be told what to read: attnlab\.nn\.hf\.configure\(model"):
        other(prompt())


def test_a_layer_without_maps_is_refused_at_the_prompt_already(model):
    configured(model, "hash", maps={0: MAPS[0]})
    with pytest.raises(ValueError, match="layer 1 must have maps, or be listed as dense"):
        model(prompt())


def test_what_is_no_plain_softmax_is_refused(model):
    q, k, v = drawn(5)
    configured(model, "exact")
    attend, module = AttentionInterface()["attnlab_exact"], model.model.layers[0].self_attn
    with pytest.raises(ValueError, match="softcap must be None for attnlab_exact"):
        attend(module, q, k, v, None, softcap=30.0)
    with pytest.raises(ValueError, match=r"dropout must be 0 for attnlab_exact, got 0\.1"):
        attend(module, q[:, :, -1:], k, v, None, dropout=0.1)


def test_a_gradient_flows_or_is_refused(model):
    q, k, v = drawn(12)
    q = q[:, :, -1:].requires_grad_()
    configured(model, "hash")
    for name in ("exact", "hash"):
        with pytest.raises(backend.Unsupported, match=r"has no gradients, and (its query|q) requires one"):
            step(model, name, q, k, v)
    with torch.no_grad():
        same(step(model, "hash", q, k, v), by_hand(q.detach(), k, v))
    if "torch" in IMPLS:
        configured(model, "hash", impl="torch")
        step(model, "hash", q, k, v).sum().backward()
        assert (q.grad.abs().amax(dim=(2, 3)) > 0).all()


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"budget": -1}, r"budget must be a whole number of tokens .* or a fraction .* got -1"),
        ({"window": 1.5}, r"window must be a whole number of tokens .* or a fraction .* got 1\.5"),
        ({"dense": [2]}, r"a layer of maps or dense must lie in \[0, 1\], got 2"),
        ({"maps": {0: MAPS[0][0]}}, r"maps\[0\] must be \(maps of the queries, maps of the keys\)"),
        ({"maps": {0: MAPS[0][::-1]}}, r"maps\[0\]\[0\]\.weights\[0\] must be \[H, I, O\] with H = 4"),
        ({"maps": {0: (MAPS[0][0], random_maps(16, G, K))}}, r"maps\[0\] must have one number of bits, got 32 and 16"),
        ({"impl": "fast"}, "impl must be one of 'reference'"),
        ({"top": 0}, "top must lie in"),
        ({"record": 1}, "record must be True or False"),
        ({"several": "yes"}, "several must be True or False"),
    ],
)
def test_what_cannot_be_is_refused_by_name(model, told, words):
    with pytest.raises(ValueError, match=words):
        configured(model, "hash", **told)


def test_other_models_and_reports_of_nothing_are_refused(model):
    with pytest.raises(TypeError, match="model must be one of transformers', got Linear"):
        hf.configure(torch.nn.Linear(2, 2), budget=4)
    with pytest.raises(ValueError, match="record must be True in configure for a report, got False"):
        configured(model, "hash").report()


# -- a real model --


def test_a_real_model_reads_all_or_little(language_model):
    """SmolLM2-135M-Instruct with random projections: everything in all layers, or little in all but the first two."""
    model, tokenizer = language_model
    ids = torch.tensor([tokenizer("def add(a, b):\n    return a + b\n\n\ndef multiply(a, b):\n")["input_ids"]])
    maps = {layer: (random_maps(32, 9, 64, seed=layer), random_maps(32, 3, 64, seed=layer)) for layer in range(30)}
    try:
        wanted = dense(model, ids, tokens=12)
        configured(model, "hash", budget=64, maps=maps)
        assert generated(model, ids, tokens=12) == wanted
        decoding = configured(model, "hash", budget=4, sinks=1, window=1, maps=maps, dense=(0, 1), record=True)
        generated(model, ids, tokens=3)
        report = decoding.report()
    finally:
        model.set_attn_implementation(models.ATTENTION)
    assert [line.layer for line in report] == list(range(2, 30))
    assert all((line.queries, line.tokens_read) == (2 * 9, 6) for line in report)
    assert 0 < np.mean([line.mass for line in report]) < 1


def test_the_code_on_the_page_runs(language_model, tmp_path, monkeypatch, capsys):
    """With random maps in place of those that a command of the page learns in minutes."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    maps = {layer: (random_maps(32, 9, 64, seed=layer), random_maps(32, 3, 64, seed=layer)) for layer in range(2, 30)}
    save(tmp_path / "maps.safetensors", maps, {})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(models, "load", lambda: language_model)
    seen: dict = {}
    try:
        exec(blocks[0], seen)
        assert len(capsys.readouterr().out.splitlines()) >= 30
        assert [line.layer for line in seen["decoding"].report()] == list(range(30))
        exec(blocks[1], seen)
        assert seen["out"].shape[1] == seen["ids"].shape[1] + 8
    finally:
        language_model.model.set_attn_implementation(models.ATTENTION)
