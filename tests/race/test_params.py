"""Dials refuse what lies outside their range, and their draws grow without changing."""

import numpy as np
import pytest

from attnlab.race import RaceParams, draw_planes


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"planes": 9}, r"planes must lie in \[1, 8\], got 9"),
        ({"tables": 2.5}, r"tables must be a whole number in \[1, 16\], got 2.5"),
        ({"sharpness": np.nan}, r"sharpness must lie in \[0.03125, 32\], got nan"),
        ({"causal": "yes"}, "causal must be True or False, got 'yes'"),
        ({"input": "poem"}, "input must be one of 'toy', 'layer 2, head 0'"),
    ],
)
def test_a_dial_out_of_range_is_refused_by_name(change, words):
    with pytest.raises(ValueError, match=words):
        RaceParams(**change)


def test_more_tables_planes_or_columns_leave_the_first_ones_alone():
    small, large = draw_planes(2, 3, 5, seed=4), draw_planes(7, 6, 9, seed=4)
    assert np.array_equal(large[:2, :3, :5], small)
    assert not np.array_equal(draw_planes(2, 3, 5, seed=5), small)


def test_plane_columns_are_standard_normal():
    sample = draw_planes(16, 8, 64).ravel()
    assert abs(sample.mean()) < 5 / np.sqrt(sample.size)
    assert abs(sample.var() - 1) < 5 * np.sqrt(2 / sample.size)


def test_toy_tokens_are_unit_vectors_in_four_clusters():
    toy = RaceParams(tokens=30, head_width=12, seed=3).inputs()
    assert toy.q.shape == toy.k.shape == toy.v.shape == (1, 30, 1, 12)
    np.testing.assert_allclose(np.linalg.norm(toy.q, axis=-1), 1.0, rtol=1e-14)
    cosine = toy.q[0, :, 0] @ toy.k[0, :, 0].T
    cluster = np.arange(30) * 4 // 30
    same = cluster[:, None] == cluster[None, :]
    assert cosine[same].mean() > cosine[~same].mean() + 0.3
    assert [toy.tokens[i] for i in (0, 7, 8, 29)] == ["a1", "a8", "b1", "d7"]


def test_a_real_head_brings_its_own_width_and_words():
    params = RaceParams(input="layer 21, head 2", tokens=48, head_width=8)
    real = params.inputs()
    assert real.q.shape == real.v.shape == (1, 48, 1, 64)
    assert params.draw_planes().shape == (4, 3, 64)
    assert len(real.tokens) == 48
    assert "".join(real.tokens).strip()


@pytest.mark.parametrize("change", [{"tables": 0}, {"tables": True}, {"tables": 2.5}, {"planes": 0}, {"head_width": 0}])
def test_planes_are_drawn_for_whole_counts_only(change):
    (name,) = change
    with pytest.raises(ValueError, match=f"{name} must"):
        draw_planes(**{"tables": 1, "planes": 1, "head_width": 1} | change)
