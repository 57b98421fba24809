"""What of another model LRKV can say exactly, and how near it comes where it cannot."""

import itertools

import numpy as np
import pytest

from attnlab import models
from attnlab.lrkv import conversion, rope, rotary
from attnlab.lrkv.conversion import fit, from_mha, from_mqa, lost_by_mean
from attnlab.lrkv.schemes import Lrkv, LrkvWeights, draw
from tests.lrkv.cases import normal

H, WIDTH, K = 4, 12, 8
W = normal(0, 1, H, WIDTH, K)
EXACT = 1e-12
PLANES = (None, "aligned", "same")


def heads_of(rank, *, aligned=False):
    """Heads that LRKV of this rank can say: one shared weight, and what a few directions of each add."""
    factor = normal(0, 4, H, K, rank)
    if aligned:
        factor = np.concatenate([rotary.aligned_factor(1, K, np.array([h % 4])) for h in range(H)])
    return normal(0, 2, 1, WIDTH, K) + normal(0, 3, H, WIDTH, rank) @ factor.mT


def test_mqa_is_rank_0():
    """The same outputs as the layer it came from."""
    mqa = draw("mqa", width=WIDTH, heads=H, head_width=K, seed=1)
    k, v = (from_mqa(w[0], H) for w in (mqa.weights.key, mqa.weights.value))
    assert (k.up.shape, k.factor.shape, k.lost) == ((H, WIDTH, 0), (H, K, 0), 0.0)
    layer = Lrkv(LrkvWeights(mqa.weights.query, k.shared[None], v.shared[None], k.up, v.up, k.factor, v.factor))
    x = normal(1, 5, 2, 6, WIDTH)
    np.testing.assert_allclose(layer.prefill(x), mqa.prefill(x), rtol=0, atol=EXACT)
    assert layer.cache_elements == mqa.cache_elements


@pytest.mark.parametrize("shared_head", [None, 0, H - 1])
def test_mha_is_rank_d_with_the_identity_for_a_factor(shared_head):
    mha = draw("mha", width=WIDTH, heads=H, head_width=K, seed=1)
    k, v = (from_mha(w, shared_head=shared_head) for w in (mha.weights.key, mha.weights.value))
    np.testing.assert_array_equal(k.factor, np.broadcast_to(np.eye(K), (H, K, K)))
    np.testing.assert_allclose(k.weights(), mha.weights.key, rtol=0, atol=EXACT)
    if shared_head is not None:
        assert not k.up[shared_head].any()
    layer = Lrkv(LrkvWeights(mha.weights.query, k.shared[None], v.shared[None], k.up, v.up, k.factor, v.factor))
    x = normal(1, 5, 2, 6, WIDTH)
    np.testing.assert_allclose(layer.prefill(x), mha.prefill(x), rtol=0, atol=EXACT)
    assert layer.cache_elements * H == mha.cache_elements * (H + 1)  # 1 + 1/H


def lost_with(w, own, layout="half"):
    """The share that is lost where head h has the planes own[h]: what the others have about their mean."""
    outside = np.ones((len(w), w.shape[2]), bool)
    for h, planes in enumerate(own):
        outside[h, rotary.plane_coordinates(w.shape[2], np.array(planes), layout=layout)] = False
    about = (w[outside[:, i], :, i] for i in range(w.shape[2]))
    return sum(((x - x.mean(axis=0)) ** 2).sum() for x in about if len(x)) / (w**2).sum()


@pytest.mark.parametrize("starts", [1, 3])
def test_each_round_loses_no_more_than_the_one_before(starts):
    lost = [fit(W, 4, starts=starts, rounds=rounds).lost for rounds in range(12)]
    assert all(after <= before + EXACT for before, after in itertools.pairwise(lost))
    assert 0 < lost[-1] < lost[0] - 0.01 < lost_by_mean(W) < 1


def test_more_starts_lose_no_more_and_here_less():
    """The first start is the mean head's; the seed moves the others."""
    lost = [fit(W, 4, starts=starts).lost for starts in (1, 2, 8)]
    assert lost[0] >= lost[1] >= lost[2]
    assert lost[2] < 0.9 * lost[0]
    assert fit(W, 4, starts=1, seed=5).lost == lost[0]


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize(("heads", "width", "rank"), [(3, 6, 2), (3, 8, 4), (2, 10, 6), (1, 6, 2), (4, 4, 2)])
def test_no_choice_of_planes_loses_less(heads, width, rank, layout):
    """Every choice is tried, heads of their own and all alike."""
    w = normal(heads, width, heads, 7, width) * (1 + np.arange(width))  # so that planes differ
    choices = list(itertools.combinations(range(width // 2), rank // 2))
    for planes, tried in (
        ("aligned", itertools.product(choices, repeat=heads)),
        ("same", ([choice] * heads for choice in choices)),
    ):
        found = fit(w, rank, planes=planes, layout=layout)
        assert found.least
        assert found.lost == pytest.approx(min(lost_with(w, own, layout) for own in tried), rel=EXACT, abs=1e-30)
        assert found.lost == pytest.approx(lost_with(w, found.planes, layout), rel=EXACT, abs=1e-30)


def test_a_search_takes_over_where_sets_are_too_many_and_says_so(monkeypatch):
    """From the mean head alone it sticks; the best of eight starts is the least here."""
    w = np.random.default_rng(0).standard_normal((3, 20, 8))
    least = fit(w, 4, planes="aligned")
    monkeypatch.setattr(conversion, "WEIGHED", 0)
    one, eight = (fit(w, 4, planes="aligned", starts=starts) for starts in (1, 8))
    assert (least.least, one.least, eight.least) == (True, False, False)
    assert one.lost > least.lost + 0.005
    assert eight.lost == pytest.approx(least.lost, rel=EXACT)
    assert one.lost == pytest.approx(lost_with(w, one.planes), rel=EXACT)


def test_planes_of_all_heads_but_one_lose_nothing():
    """r = (1 - 1/H) d: what is shared in a plane is the head that does not have it; d + H r = H d, the cache of MHA."""
    assert fit(W, K * (H - 1) // H, planes="aligned").lost < 1e-30
    assert fit(W, K * (H - 1) // H - 2, planes="aligned").lost > 0.01


@pytest.mark.parametrize("planes", PLANES)
def test_numbers_a_token_beyond_those_that_heads_have_together_change_nothing(planes):
    wide = np.linalg.qr(normal(0, 6, 1, 50, WIDTH)[0])[0] @ W  # [H, 50, K], 50 > H K = 32
    found, narrow = fit(wide, 4, planes=planes, starts=1, rounds=20), fit(W, 4, planes=planes, starts=1, rounds=20)
    assert found.lost == pytest.approx(narrow.lost, rel=1e-9)  # rounding, carried on for 20 rounds
    assert ((wide - found.weights()) ** 2).sum() / (wide**2).sum() == pytest.approx(found.lost, rel=EXACT)
    if planes is not None:
        np.testing.assert_array_equal(found.planes, narrow.planes)


@pytest.mark.parametrize("planes", PLANES)
def test_what_is_lost_is_what_the_factors_do_not_say(planes):
    found = fit(W, 4, planes=planes, rounds=5)
    assert found.up.shape == (H, WIDTH, 4)
    assert ((W - found.weights()) ** 2).sum() / (W**2).sum() == pytest.approx(found.lost, rel=EXACT)
    np.testing.assert_allclose(found.factor.mT @ found.factor, np.broadcast_to(np.eye(4), (H, 4, 4)), atol=EXACT)


def test_planes_cost_energy_and_the_same_ones_for_all_heads_most():
    free, aligned, same = (fit(W, 4, planes=planes).lost for planes in PLANES)
    assert free < aligned < same
    for planes in PLANES:  # a larger rank keeps what a smaller one kept
        lost = [fit(W, rank, planes=planes).lost for rank in (0, 2, 4, 6, 8)]
        assert all(more < less for less, more in itertools.pairwise(lost[:4]))
        assert lost[0] == pytest.approx(lost_by_mean(W), rel=EXACT)
        assert lost[-1] < 1e-25


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_an_aligned_factor_spans_whole_planes_that_rotations_pass_through(layout):
    found = fit(W, 4, planes="aligned", layout=layout)
    turning = rope(K, layout=layout)
    for h in range(H):
        np.testing.assert_array_equal(found.factor[h], rotary.aligned_factor(1, K, found.planes[h], layout=layout)[0])
        assert rotary.escape(found.factor[h], turning, np.arange(5.0)).max() < EXACT
    other = rope(K, layout="interleaved" if layout == "half" else "half")
    assert max(rotary.escape(found.factor[h], other, np.arange(5.0)).max() for h in range(H)) > 0.5
    assert rotary.escape(fit(W, 4).factor[0], turning, np.arange(5.0)).max() > 0.1


@pytest.mark.parametrize(("aligned", "planes"), [(False, None), (True, "aligned")])
def test_heads_that_lrkv_can_say_are_found(aligned, planes):
    assert fit(heads_of(2, aligned=aligned), 2, planes=planes, rounds=400).lost < 1e-20  # squares of rounding
    assert fit(heads_of(2, aligned=aligned), 1 if planes is None else 0, planes=planes, rounds=100).lost > 0.01


def test_a_single_shared_direction_by_hand():
    """Two heads (1, 1) and (1, -1) of one token number: the mean (1, 0) leaves half; rank 1 leaves nothing."""
    w = np.array([[[1.0, 1.0]], [[1.0, -1.0]]])
    assert lost_by_mean(w) == 0.5
    found = fit(w, 1, starts=1)
    np.testing.assert_allclose(found.shared, [[1.0, 0.0]], rtol=0, atol=EXACT)
    np.testing.assert_allclose(np.abs(found.factor[:, :, 0]), [[0.0, 1.0], [0.0, 1.0]], rtol=0, atol=EXACT)
    assert found.lost < 1e-30


def test_orthogonal_heads_share_nothing():
    """The mean of H of them leaves 1 - 1/H; heads that are alike leave 0."""
    apart = np.zeros((3, 6, 2))
    for h in range(3):
        apart[h, 2 * h : 2 * h + 2] = np.eye(2)
    assert lost_by_mean(apart) == pytest.approx(2 / 3, rel=EXACT)
    assert lost_by_mean(np.repeat(W[:1], 3, axis=0)) < 1e-30
    assert fit(np.zeros((2, 3, 4)), 2).lost == 0.0


@pytest.mark.parametrize(
    ("door", "given", "options", "words"),
    [
        (fit, (W[0], 2), {}, "w must be [H, width, K], got 2 axes of sizes (12, 8)"),
        (fit, (W * np.nan, 2), {}, "w must be finite, got nan at [0, 0, 0]"),
        (fit, (W, 9), {}, "rank must lie in [0, 8], got 9"),
        (fit, (W, 3), {"planes": "aligned"}, "rank must be even, and the heads' width too, to fill planes, got 3"),
        (fit, (W, 2), {"planes": "own"}, "planes must be one of 'aligned', 'same', got 'own'"),
        (
            fit,
            (W, 2),
            {"planes": "same", "layout": "split"},
            "layout must be one of 'half', 'interleaved', got 'split'",
        ),
        (fit, (W, 2), {"rounds": -1}, "rounds must lie in [0, "),
        (fit, (W, 2), {"starts": 0}, "starts must lie in [1, "),
        (from_mqa, (W[0], 0), {}, "heads must lie in [1, "),
        (from_mqa, (W, 2), {}, "w must be [width, K], got 3 axes of sizes (4, 12, 8)"),
        (from_mha, (W,), {"shared_head": 4}, "shared_head must lie in [0, 3], got 4"),
    ],
)
def test_what_cannot_be_converted_is_refused_by_name(door, given, options, words):
    with pytest.raises(ValueError, match="must") as caught:
        door(*given, **options)
    assert words in str(caught.value)


def test_a_missing_model_is_said_in_one_sentence(capsys, monkeypatch):
    def missing():
        raise models.ModelMissing("the model is not there: attnlab fetch-model")

    monkeypatch.setattr(models, "load", missing)
    assert conversion.main([]) == 1
    assert capsys.readouterr().err == "the model is not there: attnlab fetch-model\n"


@pytest.mark.slow
def test_keys_of_smollm2_share_next_to_nothing_and_planes_cost_less_than_twice_the_rank(
    language_model, capsys, monkeypatch
):
    """Three heads whose mean leaves two thirds are as good as orthogonal."""
    monkeypatch.setattr(models, "load", lambda: language_model)
    assert conversion.main(["--layers", "29", "--ranks", "8"]) == 0
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()[1:]] == ["key"] * 3 + ["value"] * 2
    assert conversion.main(["--layers", "30"]) == 1
    assert capsys.readouterr().err == "layers must lie in [0, 29], got 30\n"
    (row,) = (row for row in conversion.report(layers=[15]) if row.matrix == "key")
    assert abs(row.mean - 2 / 3) < 0.02
    assert row.free[1] < row.aligned[1] < row.free[0] < row.aligned[0]
