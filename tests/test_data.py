"""The shipped real heads and learned maps: whole, described, and really what they are said to be."""

import hashlib
import re
from importlib import resources

import numpy as np
import pytest

from attnlab import models
from attnlab.data import hash_maps, read_heads, read_maps, real_heads, shipped_maps
from attnlab.hashattention import Maps, encode, selectors

T, H, K = 2048, 3, 64
HEADS = [(layer, head) for layer in (2, 9, 21) for head in range(H)]
THETA = 100_000.0 ** (-np.arange(K // 2) / (K // 2))  # radians a token, one for each plane
FAST = 16  # planes 0 to 15 turn at least once within the text: THETA[15] * T = 9.3 rad > 2 pi

# The mean of T unit vectors in random directions has length 1 / sqrt(T), root mean square; six times that is chance
# once in exp(36) planes.
CHANCE = 6 / np.sqrt(T)


def causal_softmax(q, k):
    logits = q @ k.T / np.sqrt(K)
    logits[np.triu_indices(T, 1)] = -np.inf
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def half_split(x):
    return x[:, : K // 2] + 1j * x[:, K // 2 :]


def interleaved(x):
    return x[:, 0::2] + 1j * x[:, 1::2]


def turned(planes, times):
    """Each plane [T, K/2] turned by `times` its rotary angle at position t."""
    return planes * np.exp(1j * times * np.arange(T)[:, None] * THETA)


def common_direction(planes):
    """How far the T vectors of a plane agree in direction, from 0 to 1: the mean over the fast planes."""
    return np.mean((np.abs(planes.mean(axis=0)) / np.abs(planes).mean(axis=0))[:FAST])


def test_every_part_has_its_shape_and_is_finite_float16():
    for layer in real_heads().layers:
        for part in real_heads().layer(layer):
            assert part.shape == (1, T, H, K)
            assert part.dtype == np.float16
            assert np.isfinite(part).all()


def test_layers_and_heads_carry_the_models_numbers():
    heads = real_heads()
    assert heads.layers == (2, 9, 21)
    assert heads.query_heads == (0, 3, 6)
    assert heads.kv_heads == tuple(head // 3 for head in heads.query_heads)  # nine query heads share three


def test_both_files_are_at_most_8_mib():
    files = [resources.files("attnlab") / name for name in ("real_heads.safetensors", "hash_maps.safetensors")]
    assert sum(len(file.read_bytes()) for file in files) <= 8 * 2**20


def test_no_two_heads_hold_the_same_numbers():
    parts = {part[0, :, head].tobytes() for layer, head in HEADS for part in real_heads().layer(layer)}
    assert len(parts) == 3 * len(HEADS)


def test_tokens_join_to_the_text_of_the_recorded_checksum():
    heads = real_heads()
    passage = "".join(heads.tokens)
    assert len(heads.tokens) == T
    assert heads.token_ids.shape == (T,)
    assert passage.startswith("Compound statements\n*******************\n\nCompound statements contain")
    assert 'The "for" statement' in passage
    assert hashlib.sha256(passage.encode()).hexdigest() == heads.provenance["text_sha256"]


def test_equal_token_ids_have_equal_strings_and_the_other_way_round():
    heads = real_heads()
    pairs = set(zip(heads.token_ids.tolist(), heads.tokens, strict=True))
    assert len(pairs) == len({number for number, _ in pairs}) == len({string for _, string in pairs})


def test_provenance_names_model_text_licences_versions_and_command():
    facts = real_heads().provenance
    assert facts["model"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert facts["model_licence"] == "Apache-2.0"
    assert re.fullmatch("[0-9a-f]{64}", facts["model_sha256"])
    assert "pydoc_data.topics['compound'] of CPython 3." in facts["text_source"]
    assert facts["text_licence"] == "PSF-2.0"
    assert "Python Software Foundation" in facts["text_copyright"]
    assert "adds none" in facts["beginning_of_text"]
    assert facts["rope_theta"] == 100_000.0
    assert facts["rope_layout"].startswith("half-split")
    assert facts["softmax_scale"] == K**-0.5
    assert re.fullmatch(r"torch \S+, transformers \S+, tokenizers \S+, gguf \S+", facts["versions"])
    assert facts["command"] == "python -m attnlab.models real_heads.safetensors"


def test_the_notice_beside_the_file_tells_what_the_file_tells():
    facts, notice = real_heads().provenance, (resources.files("attnlab") / "REAL_HEADS.md").read_text("utf-8")
    for name in ("model", "model_sha256", "model_licence", "text_sha256", "text_licence", "versions", "command"):
        assert facts[name] in notice, name
    assert "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2" in notice
    assert "2001-2023 Python Software Foundation" in notice


@pytest.mark.parametrize(("layer", "head"), HEADS)
def test_queries_and_keys_turn_with_their_position_as_half_split_rope_turns_them(layer, head):
    """The text gives each plane a favourite direction before RoPE; RoPE at position t turns it by t * theta.

    So turned back the vectors of a fast plane agree, and as they stand, or read in another way, they do not.
    """
    for x in (part[0, :, head].astype(np.float64) for part in real_heads().layer(layer)[:2]):
        assert common_direction(turned(half_split(x), -1)) > 0.5
        assert common_direction(half_split(x)) < CHANCE  # so they are not the vectors before RoPE
        assert common_direction(turned(half_split(x), -2)) < CHANCE  # nor turned twice
        assert common_direction(turned(half_split(x), +1)) < CHANCE  # nor the other way
        assert common_direction(turned(interleaved(x), -1)) < CHANCE  # nor in the interleaved layout
        assert common_direction(turned(half_split(x[::-1]), -1)) < CHANCE  # nor at other positions


@pytest.mark.parametrize(("layer", "head"), HEADS)
def test_values_do_not_turn_with_their_position(layer, head):
    v = real_heads().layer(layer).v[0, :, head].astype(np.float64)
    assert common_direction(half_split(v)) > CHANCE > common_direction(turned(half_split(v), -1))


@pytest.mark.parametrize(("layer", "head"), HEADS)
def test_causal_attention_is_far_from_uniform_and_prefers_the_recent_past(layer, head):
    q, k, _ = (part[0, :, head].astype(np.float64) for part in real_heads().layer(layer))
    weights, rows = causal_softmax(q, k), np.arange(64, T)
    entropy_nats = -(weights * np.log(weights, where=weights > 0, out=np.zeros_like(weights))).sum(axis=1)
    last_32 = np.array([weights[row, row - 31 : row + 1].sum() for row in rows])
    # vectors without an order would give the last 32 tokens 32 / (row + 1), as a uniform row does
    assert entropy_nats[rows].mean() < 0.85 * np.log(rows + 1).mean()
    assert last_32.mean() > 3 * (32 / (rows + 1)).mean()


def test_the_late_layer_leans_on_the_first_token_and_the_early_one_does_not():
    def first_token_weight(layer):
        q, k, _ = (part[0].astype(np.float64) for part in real_heads().layer(layer))
        return [causal_softmax(q[:, head], k[:, head])[64:, 0].mean() for head in range(H)]

    assert min(first_token_weight(21)) > 0.2
    assert max(first_token_weight(2)) < 0.05


def test_an_absent_layer_is_refused_with_the_layers_there_are():
    with pytest.raises(ValueError, match="layer must be one of 2, 9, 21, got 20"):
        real_heads().layer(20)


def test_shared_arrays_cannot_be_written_and_facts_are_copies():
    heads = real_heads()
    assert real_heads() is heads
    for array in (heads.token_ids, *heads.layer(9)):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    heads.provenance["model"] = "another"
    assert heads.provenance["model"] == "HuggingFaceTB/SmolLM2-135M-Instruct"


def test_a_safetensors_file_of_another_kind_is_refused(tmp_path):
    from safetensors.numpy import save_file

    save_file({"weights": np.zeros(5, np.float16)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"path must be a file written by python -m attnlab\.models, got .*other"):
        read_heads(tmp_path / "other.safetensors")


# -- the maps --


@pytest.mark.parametrize("layer", [2, 9, 21])
def test_maps_are_two_of_three_heads_64_128_128_32_finite_and_read_only(layer):
    assert shipped_maps().layers == (2, 9, 21) == real_heads().layers
    for maps in hash_maps(layer):
        assert isinstance(maps, Maps)
        assert maps.bits == 32
        assert [w.shape for w in maps.weights] == [(H, 64, 128), (H, 128, 128), (H, 128, 32)]
        assert [b.shape for b in maps.biases] == [(H, 128), (H, 128), (H, 32)]
        for x in (*maps.weights, *maps.biases):
            assert x.dtype == np.float64
            assert np.isfinite(x).all()
            assert np.array_equal(x, x.astype(np.float16))
            assert not x.flags.writeable


def test_no_maps_for_another_layer():
    with pytest.raises(ValueError, match="layer must be one of 2, 9, 21, got 3"):
        hash_maps(3)


def test_a_file_of_another_kind_is_no_maps():
    with (
        resources.as_file(resources.files("attnlab") / "real_heads.safetensors") as path,
        pytest.raises(ValueError, match=r"path must be a file written by attnlab\.hashattention\.training"),
    ):
        read_maps(path)
    with pytest.raises(FileNotFoundError):
        read_maps("no such file")


def test_the_maps_say_how_they_were_learned_and_of_what():
    facts, heads = shipped_maps().provenance, real_heads().provenance
    assert facts["model_sha256"] == heads["model_sha256"]
    assert tuple(facts["query_heads"]) == real_heads().query_heads
    assert models.TOPIC not in facts["text_topics"]
    assert facts["settings"]["seed"] == 0
    assert facts["threads"] == 1
    assert facts["command"] == "python -m attnlab.hashattention.training hash_maps.safetensors"
    assert re.fullmatch(r"torch \S+, transformers \S+, tokenizers \S+, gguf \S+", facts["versions"])


def test_the_notice_tells_what_the_file_of_the_maps_tells():
    facts, notice = shipped_maps().provenance, (resources.files("attnlab") / "REAL_HEADS.md").read_text("utf-8")
    for name in ("text_sha256", "versions", "command"):
        assert facts[name] in notice, name
    assert f"{facts['settings']['steps']:,} steps" in notice
    for layer, found in facts["recall_at_64"].items():
        rows = [line for line in notice.splitlines() if line.startswith(f"| {layer} |")]
        assert rows == [f"| {layer} | " + " | ".join(f"{np.mean(x):.3f}" for x in found.values()) + " |"]


def test_the_maps_learned_from_text_that_shares_no_sixteen_words_with_the_heads():
    _, text = models.other_text()
    runs = [
        {tuple(words[n : n + 16]) for n in range(len(words))}
        for words in (text.split(), "".join(real_heads().tokens).split())
    ]
    assert not runs[0] & runs[1]


@pytest.mark.parametrize("layer", [2, 9, 21])
def test_the_maps_find_what_the_file_says_they_find(layer):
    """Rounding may move a number across 0, and a bit then differs: a thousandth is two tokens of 64 in one query of
    thirty.
    """
    found, (q, k, v) = shipped_maps().provenance["recall_at_64"][str(layer)], real_heads().layer(layer)
    codes = dict(zip(("query_codes", "key_codes"), map(encode, (q, k), hash_maps(layer)), strict=True))
    head = selectors.head_of(q, k, v, 0, 1, **codes)
    assert selectors.measure("hash", head, budget=64).recall[1024:].mean() == pytest.approx(
        found["hash 32"][1], abs=1e-3
    )
    # above signs of random projections of four times as many bits, and above who does not look at the query
    assert all(np.mean(found["hash 32"]) > np.mean(x) for name, x in found.items() if name != "hash 32")


def test_in_a_late_layer_learned_bits_find_three_times_what_random_ones_find():
    found = shipped_maps().provenance["recall_at_64"]["21"]
    assert all(np.array(found["hash 32"]) > 2 * np.array(found["lsh_centred 32"]))
    assert np.mean(found["hash 32"]) > 3 * np.mean(found["lsh_centred 32"])
