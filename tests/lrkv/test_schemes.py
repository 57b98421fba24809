"""MHA, GQA, MQA, MLA and LRKV from weights: read in factors, token by token, each is what its full keys and values are.

Expanded layers (`factored=False`) make keys whole, norm them and turn them, and keep them so; that is the model. EXACT
is some hundred roundings of numbers of size 1 to 10.
"""

import itertools

import numpy as np
import pytest

from attnlab import dense
from attnlab.lrkv import STILL, accounting, reference, rope, rotary
from attnlab.lrkv.schemes import (
    NORMS,
    OPTIONS,
    RESIDUAL,
    UNTURNED,
    Lrkv,
    LrkvWeights,
    Mla,
    Turning,
    draw,
    inverse_rms,
    project,
    turning,
)
from tests.lrkv.cases import normal

B, T, WIDTH, H, G, K, R = 2, 7, 24, 6, 2, 8, 4
EXACT = 1e-12
X = normal(0, 1, B, T, WIDTH)
SIZES = {"width": WIDTH, "heads": H, "head_width": K, "groups": G, "rank": R, "latent_width": 10, "rope_width": 6}
SCHEMES = accounting.SCHEMES
LAYOUTS = ("half", "interleaved")
RIGHT_NORMS = tuple(norm for norm in NORMS if norm != "paths")


def gain(option="none", layout="half"):
    """Another one for each coordinate; for each plane where factors are tied."""
    if option != "tied":
        return np.exp(0.4 * normal(0, 2, 1, K)[0])
    each = np.exp(0.4 * normal(0, 2, 1, K // 2)[0])
    return np.tile(each, 2) if layout == "half" else np.repeat(each, 2)


def layer(scheme="lrkv", **how):
    return draw(scheme, **SIZES | how)


def expanded(scheme="lrkv", **how):
    return layer(scheme, **how, **({"absorbed": False} if scheme == "mla" else {"factored": False}))


def stepwise(layer, x, prompt, sizes=None, **how):
    """o of all tokens: a prompt, then steps."""
    cuts = np.cumsum([prompt, *(sizes or [1] * (x.shape[1] - prompt))])
    outs = [layer.prefill(x[:, :prompt], **how)]
    return np.concatenate([*outs, *(layer.step(x[:, a:b]) for a, b in itertools.pairwise(cuts))], axis=1)


def assert_exact(got, want):
    np.testing.assert_allclose(got, want, rtol=0, atol=EXACT * max(np.abs(want).max(initial=0), 1))


# -- factored and expanded --


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("norm", RIGHT_NORMS)
@pytest.mark.parametrize("option", OPTIONS)
def test_reading_factors_is_reading_full_keys_and_values(option, norm, layout):
    """Prompt and steps, with a gain that is no constant: 1e-12 in every option and norm that is exact."""
    how = {"option": option, "norm": norm, "gain": gain(option, layout), "layout": layout, "seed": 1}
    want = expanded(**how).prefill(X)
    assert_exact(layer(**how).prefill(X), want)
    assert_exact(stepwise(layer(**how), X, 3), want)
    assert_exact(stepwise(expanded(**how), X, 3), want)


@pytest.mark.parametrize("rank", [0, 1, 2, 8, 54, 64])
@pytest.mark.parametrize("option", ["none", "still", "aligned", "partial", "expand"])
def test_at_every_rank_from_none_to_the_width(option, rank):
    how = {"option": option, "norm": "sum", "heads": 3, "groups": 1, "head_width": 64, "rank": rank}
    if option == "aligned" and rank % 2:
        with pytest.raises(ValueError, match="rank must be even, and the heads' width too, to fill planes, got 1"):
            layer(**how)
        return
    assert_exact(stepwise(layer(**how), X, 6), expanded(**how).prefill(X))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("prompt", "sizes"), [(0, None), (1, None), (4, [2, 1]), (5, [0, 2]), (T, [])])
def test_a_text_token_by_token_is_the_text_at_once(scheme, prompt, sizes):
    how = {"option": "expand"}
    want = layer(scheme, **how).prefill(X)
    assert_exact(stepwise(layer(scheme, **how), X, prompt, sizes), want)
    again = layer(scheme, **how)
    again.prefill(normal(3, 1, 1, 4, WIDTH))
    assert np.array_equal(again.prefill(X), want)  # a prefill forgets


@pytest.mark.parametrize("scheme", SCHEMES)
def test_left_padding_changes_nothing(scheme):
    """Two texts of 7 and 4 tokens in one batch: the shorter one is what it is alone, at its own positions."""
    how = {"option": "expand"} if scheme == "mla" else {"option": "aligned", "norm": "sum"}
    padded = X.copy()
    padded[1, :3] = 1e3 * normal(0, 5, 3, WIDTH)  # what stands in the padding is not read
    got = stepwise(layer(scheme, **how), padded, 5, starts=np.array([0, 3]))
    assert_exact(got[:1], layer(scheme, **how).prefill(X[:1]))
    assert_exact(got[1:, 3:], layer(scheme, **how).prefill(X[1:, 3:]))
    assert not got[1, :3].any()


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("norm", RIGHT_NORMS)
def test_dropped_tokens_leave_their_places_empty(option, norm):
    """The factored cache after an eviction, and the expanded one after the same."""
    how = {"option": option, "norm": norm}
    outs = []
    for made in (layer(**how), expanded(**how)):
        made.prefill(X[:, :5])
        made.cache.keep([0, 3, 4])
        outs.append(np.concatenate([made.step(X[:, 5:6]), made.step(X[:, 6:])], axis=1))
        assert made.cache.positions.tolist() == [0, 3, 4, 5, 6]
    assert_exact(*outs)
    if option in ("none", "partial"):
        return
    close = layer(**how)
    close.prefill(X[:, [0, 3, 4]])  # the same tokens, closed up to positions 0, 1, 2
    assert np.abs(close.step(X[:, 5:6]) - outs[0][:, :1]).max() > 1e-3


# -- the models themselves --


@pytest.mark.parametrize(("scheme", "groups"), [("mha", H), ("gqa", G), ("mqa", 1)])
def test_mha_gqa_and_mqa_are_dense_attention_over_projected_tokens(scheme, groups):
    made = layer(scheme, option="expand")
    q, k, v = (project(X, w) for w in made.weights[:3])
    assert (k.shape[2], v.shape[2]) == (groups, groups)
    q, k = (dense.rope(x, np.arange(T)) for x in (q, k))
    assert_exact(made.prefill(X), dense.attention(q, k, v, causal=True))


def test_lrkv_by_its_equations():
    """Eqs. 2-5 (p. 3): attention with W_h = W_s + U_h B_h^T, all turned."""
    made = layer(option="aligned")
    w = made.weights
    q, k, v = (
        project(X, w.query),
        *(
            project(X, np.repeat(shared, H // G, axis=0) + up @ factor.mT)
            for shared, up, factor in ((w.key, w.key_up, w.key_factor), (w.value, w.value_up, w.value_factor))
        ),
    )
    q, k = (dense.rope(x, np.arange(T)) for x in (q, k))
    assert_exact(made.prefill(X), dense.attention(q, k, v, causal=True))


def test_a_norm_of_the_sum_by_its_definition():
    made = layer(option="aligned", norm="sum", gain=gain())
    w = made.weights
    k = project(X, np.repeat(w.key, H // G, axis=0) + w.key_up @ w.key_factor.mT)
    v = project(X, np.repeat(w.value, H // G, axis=0) + w.value_up @ w.value_factor.mT)
    q = dense.rope(dense.rms_norm(project(X, w.query)), np.arange(T))
    k = dense.rope(dense.rms_norm(k, gain()), np.arange(T))
    assert_exact(made.prefill(X), dense.attention(q, k, v, causal=True))


def test_a_norm_before_the_sum_by_its_definition():
    """Shared keys and latents by their own rms; then the factor, the sum, the gain."""
    made = layer(option="aligned", norm="before", gain=gain())
    w = made.weights
    shared, latent = dense.rms_norm(project(X, w.key)), dense.rms_norm(project(X, w.key_up))
    k = gain() * (np.repeat(shared, H // G, axis=2) + np.einsum("bthr,hkr->bthk", latent, w.key_factor))
    v = project(X, np.repeat(w.value, H // G, axis=0) + w.value_up @ w.value_factor.mT)
    q = dense.rope(dense.rms_norm(project(X, w.query)), np.arange(T))
    assert_exact(made.prefill(X), dense.attention(q, dense.rope(k, np.arange(T)), v, causal=True))


@pytest.mark.parametrize("option", OPTIONS)
def test_two_norms_are_not_the_norm_of_the_sum(option):
    """Residuals of a tenth of what is shared become as large as it where each path is normed by itself: keys are off by
    about their own length, and so outputs by a good part.
    """
    how = {"option": option, "seed": 1}
    right, wrong = layer(norm="sum", **how).prefill(X), layer(norm="paths", **how).prefill(X)
    assert np.abs(wrong - right).max() > 0.05 * np.abs(right).max()
    assert_exact(wrong, expanded(norm="paths", **how).prefill(X))  # its factors do what its name says


def test_norms_before_and_after_the_sum_are_two_models():
    before, after = (layer(norm=norm, seed=1).prefill(X) for norm in ("before", "sum"))
    assert np.abs(before - after).max() > 0.05 * np.abs(after).max()
    assert inverse_rms(np.array([3.0, 4.0]))[0] == pytest.approx(1 / np.sqrt(12.5), rel=1e-6)


def test_options_are_six_models_and_layouts_two():
    outs = [layer(option=option, layout=layout, seed=1).prefill(X) for option in OPTIONS for layout in LAYOUTS]
    same = [(a, b) for a, b in itertools.combinations(range(12), 2) if np.allclose(outs[a], outs[b])]
    assert same == [(0, 1)]  # without a rotation there is no layout


@pytest.mark.parametrize("option", ["none", "expand"])
def test_mla_reads_its_latents_as_they_are(option):
    """Absorbed and expanded are one model, and both are dense attention over [K, rotary key]."""
    absorbed, naive = layer("mla", option=option), expanded("mla", option=option)
    w, turns = absorbed.weights, STILL if option == "none" else rope(6)
    want = naive.prefill(X)
    assert_exact(absorbed.prefill(X), want)
    assert_exact(stepwise(absorbed, X, 2), want)
    q = project(X, w.query)
    q[..., K:] = reference.turn(q[..., K:], turns, np.arange(T))
    turned = np.repeat(reference.turn(project(X, w.rotary_key[None]), turns, np.arange(T)), H, axis=2)
    k = np.concatenate([project(X @ w.down, w.key_up), turned], axis=-1)
    assert_exact(want, dense.attention(q, k, project(X @ w.down, w.value_up), causal=True))


def test_mla_without_a_rotary_slice_and_with_nothing_but_it():
    for sizes in ({"rope_width": 0}, {"latent_width": 0}):
        assert_exact(layer("mla", **sizes).prefill(X), expanded("mla", **sizes).prefill(X))


# -- what is kept --


@pytest.mark.parametrize("norm", RIGHT_NORMS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_cache_holds_what_accounting_says(scheme, norm):
    made = layer(scheme) if scheme == "mla" else layer(scheme, norm=norm)
    assert made.cache_elements == 0
    made.prefill(X[:, :5])
    made.step(X[:, 5:])
    sizes = {name: size for name, size in SIZES.items() if name != "width"}
    count = accounting.elements(scheme, **sizes, key_scale=norm == "sum")
    assert made.cache_elements == B * T * count
    whole = layer(scheme, absorbed=False) if scheme == "mla" else layer(scheme, norm=norm, factored=False)
    whole.prefill(X)
    mha = accounting.elements("mha", heads=H, head_width=K)
    assert whole.cache_elements == B * T * {"lrkv": mha}.get(scheme, accounting.elements(scheme, **sizes))


# -- how weights begin --


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_residuals_begin_with_a_tenth_of_what_is_shared(option, groups):
    """p. 3, for keys and values of every head; tokens of variance 1 give shared keys of variance 1."""
    w = draw("lrkv", width=96, heads=6, head_width=16, groups=groups, rank=4, option=option, seed=2).weights
    for shared, up, factor in ((w.key, w.key_up, w.key_factor), (w.value, w.value_up, w.value_factor)):
        size = np.linalg.norm(shared) / np.sqrt(groups)
        np.testing.assert_allclose(np.linalg.norm(up @ factor.mT, axis=(1, 2)), RESIDUAL * size, rtol=1e-12)
        assert size / np.sqrt(16) == pytest.approx(1, abs=0.1)  # 1,536 numbers: 4 standard errors of 0.018


def test_factors_are_made_for_their_option():
    for layout in LAYOUTS:
        for option in ("aligned", "tied", "partial"):
            made = layer(option=option, layout=layout)
            for h, latent in enumerate(made.positions.latent or (STILL,) * H):
                through = rotary.rotation(made.positions.rope, K, 2.5) @ made.weights.key_factor[h]
                assert_exact(through, made.weights.key_factor[h] @ rotary.rotation(latent, R, 2.5))
    planes = [latent.frequency.tolist() for latent in layer(option="aligned").positions.latent]
    assert planes[0] != planes[1]  # heads have planes of their own
    assert len(turning("partial", heads=H, head_width=K).rope.frequency) == K // 4
    assert layer().positions is UNTURNED


def test_the_same_seed_gives_the_same_layer_and_another_one_another():
    assert np.array_equal(layer(seed=4).prefill(X), layer(seed=4).prefill(X))
    assert np.abs(layer(seed=4).prefill(X) - layer(seed=5).prefill(X)).max() > 0.1


# -- sizes and errors --


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("shape", [(2, 0, WIDTH), (0, 3, WIDTH), (0, 0, WIDTH)])
def test_no_tokens_and_no_rows(scheme, shape):
    made = layer(scheme, option="expand")
    assert made.prefill(np.zeros(shape)).shape == (*shape[:2], H, K)
    assert made.step(np.zeros((shape[0], 2, WIDTH))).shape == (shape[0], 2, H, K)


def test_tokens_are_read_and_not_written():
    x = np.full((B, T, 2 * WIDTH), np.nan)[..., ::2]
    x[:] = X
    x.flags.writeable = False
    for scheme in SCHEMES:
        assert_exact(layer(scheme).prefill(x), layer(scheme).prefill(X))


W = layer().weights
NO_RESIDUAL = (None,) * 4


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: layer("mlp"), "scheme must be one of 'mha', 'gqa', 'mqa', 'mla', 'lrkv', got 'mlp'"),
        (
            lambda: layer(option="naive"),
            "option must be one of 'none', 'still', 'aligned', 'tied', 'partial', 'expand'",
        ),
        (lambda: layer(layout="split", option="still"), "layout must be one of 'half', 'interleaved', got 'split'"),
        (lambda: layer(norm="after"), "norm must be one of 'none', 'before', 'sum', 'paths', got 'after'"),
        (lambda: layer(heads=0), "heads must lie in [1, "),
        (lambda: layer(groups=4), "key must have a number of groups that divides the 6 heads of query, got 4"),
        (lambda: layer("gqa", groups=5), "key must have a number of groups that divides the 6 heads of query, got 5"),
        (lambda: layer(option="tied", rank=6), "rank must be even and divide width = 8 for frequencies to be shared"),
        (lambda: layer(option="aligned", rank=10), "rank must lie in [0, 8], got 10"),
        (
            lambda: layer(option="tied", gain=gain()),
            "key_factor, times gain, must let rotations pass where tied, missed",
        ),
        (lambda: layer(gain=np.ones(5)), "gain must be [K] with K = 8 as in query, got (5,)"),
        (lambda: layer(factored=1), "factored must be True or False, got 1"),
        (lambda: layer("mla", absorbed=0), "absorbed must be True or False, got 0"),
        (lambda: Lrkv(W._replace(key_up=None)), "key_up must be given where other parts of the residual are, got None"),
        (
            lambda: Lrkv(W._replace(value_factor=None)),
            "value_factor must be given where other parts of the residual are",
        ),
        (
            lambda: Lrkv(W._replace(value=W.value[:1])),
            "value must be [G, width, V] with G = 2 as in key, got (1, 24, 8)",
        ),
        (lambda: Lrkv(W._replace(key_up=W.key_up[:3])), "key_up must be [H, width, R] with H = 6 as in query"),
        (lambda: Lrkv(LrkvWeights(W.query * np.nan, W.key, W.value)), "query must be finite, got nan at [0, 0, 0]"),
        (
            lambda: Lrkv(W, Turning("aligned", rope(8), (rope(4),) * H)),
            "key_factor must pick coordinates, one a column,",
        ),
        (lambda: Lrkv(W, Turning("partial", rope(4))), "key_factor, times gain, must let rotations pass where partial"),
        (lambda: Lrkv(W, Turning("tied", rope(8), (rope(4),) * 2)), "positions.latent must have a Rope for each of 6"),
        (lambda: Mla(layer("mla").weights._replace(query=W.query)), "query must have K + D = 14 columns, got 8"),
    ],
    ids=range(22),
)
def test_what_is_no_layer_is_refused_by_name(make, words):
    with pytest.raises(ValueError, match="must") as caught:
        make()
    assert words in str(caught.value), str(caught.value)


def test_planes_of_the_other_layout_are_refused_and_would_be_wrong():
    """The bug that loads a model of one layout with the rotation of the other."""
    made = layer(option="aligned", layout="interleaved")
    other = turning("aligned", heads=H, head_width=K, rank=R, layout="half")
    with pytest.raises(ValueError, match="key_factor, times gain, must let rotations pass where aligned, missed by"):
        Lrkv(made.weights, other)
    wrong = Lrkv(made.weights, Turning("expand", rope(K, layout="half"))).prefill(X)
    assert np.abs(wrong - made.prefill(X)).max() > 1e-3
