"""The yardstick against numbers worked by hand and against torch."""

import numpy as np
import pytest

from attnlab import dense, draws
from attnlab.dense import reference

B, T, H, K, V = 2, 7, 6, 5, 4


def qkv(kv_heads=H, S=T):
    shapes = ((T, H, K), (S, kv_heads, K), (S, kv_heads, V))
    return [draws.normal(3, i, B * n, h * w).reshape(B, n, h, w) for i, (n, h, w) in enumerate(shapes)]


def test_two_keys_by_hand():
    q, k, v = np.array([[[[1.0]]]]), np.array([[[[0.0]], [[np.log(3.0)]]]]), np.array([[[[4.0]], [[8.0]]]])
    assert dense.softmax_weights(q, k)[0, 0, 0] == pytest.approx([0.25, 0.75])
    assert dense.softmax_attention(q, k, v).item() == pytest.approx(7.0)


def test_a_room_has_the_name_that_verify_looks_for_and_computes_in_the_precision_it_is_asked_for():
    q, k, v = qkv(2)
    options = {"causal": True, "window": 3, "scale": 0.7}
    exact = reference.attention(q, k, v, **options)
    low = reference.attention(q, k, v, **options, dtype=np.float32)
    assert (exact.dtype, low.dtype) == (np.float64, np.float32)
    assert np.array_equal(exact, dense.softmax_attention(q, k, v, **options))
    assert 0 < np.abs(low - exact).max() < 1e-5


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_grouped_queries_match_torch(causal, kv_heads):
    torch = pytest.importorskip("torch")
    q, k, v = qkv(kv_heads)
    tensors = [torch.from_numpy(x).transpose(1, 2) for x in (q, k, v)]
    want = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=causal, enable_gqa=True).transpose(1, 2)
    np.testing.assert_allclose(dense.softmax_attention(q, k, v, causal=causal), want.numpy(), rtol=1e-12, atol=1e-14)


def test_a_causal_window_sees_its_own_position_and_the_ones_before():
    assert dense.visible(4, 4, causal=True, window=2).astype(int).tolist() == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [0, 1, 1, 0],
        [0, 0, 1, 1],
    ]


def test_the_last_query_is_aligned_with_the_last_key():
    assert dense.visible(2, 4, causal=True).astype(int).tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


def test_rows_sum_to_one_however_large_the_logits():
    q, k, _ = qkv()
    np.testing.assert_allclose(dense.softmax_weights(1e6 * q, k, causal=True).sum(-1), 1.0, rtol=1e-14)


def test_no_keys_give_zero_and_not_nan():
    q, k, v = qkv(S=0)
    assert not dense.softmax_attention(q, k, v).any()


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rotated_products_depend_on_the_distance_alone(layout):
    x, y = draws.normal(4, 0, 1, 8).reshape(1, 1, 1, 8), draws.normal(4, 1, 1, 8).reshape(1, 1, 1, 8)

    def product(m, n):
        return np.sum(dense.rope(x, [m], layout=layout) * dense.rope(y, [n], layout=layout))

    assert product(5, 2) == pytest.approx(product(105, 102), rel=1e-12)
    assert product(5, 2) != pytest.approx(product(5, 3), rel=1e-3)


def test_the_two_layouts_are_one_rotation_of_reordered_coordinates():
    x = draws.normal(4, 0, 3, 8).reshape(1, 3, 1, 8)
    half = dense.rope(np.concatenate([x[..., 0::2], x[..., 1::2]], -1), np.arange(3))
    assert np.array_equal(dense.rope(x, np.arange(3), layout="interleaved")[..., 0::2], half[..., :4])


def test_rms_norm_has_unit_mean_square():
    x = draws.normal(5, 0, 6, 9)
    np.testing.assert_allclose(np.mean(dense.rms_norm(x, eps=0.0) ** 2, axis=-1), 1.0, rtol=1e-14)
    assert dense.rms_norm(x, np.full(9, 2.0))[0, 0] == pytest.approx(2 * dense.rms_norm(x)[0, 0])


def test_heads_that_do_not_divide_are_refused():
    q, k, v = qkv(4)
    with pytest.raises(ValueError, match="k must have a number of heads that divides the 6 of q, got 4"):
        dense.softmax_attention(q, k, v)


def test_an_odd_width_has_no_rotary_planes():
    with pytest.raises(ValueError, match="even last axis"):
        dense.rope(np.zeros((1, 1, 1, 3)), [0])


@pytest.mark.parametrize("window", [0, -1, 1.5, True])
def test_a_window_is_a_whole_number_of_positions(window):
    q, k, v = qkv()
    with pytest.raises(ValueError, match="window must"):
        dense.softmax_attention(q, k, v, window=window)


def test_a_position_for_every_token_or_none():
    with pytest.raises(ValueError, match=r"positions must be \[T\] with T = 3 as in x, got \(1,\)"):
        dense.rope(np.zeros((1, 3, 1, 4)), [0])


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_a_unit_vector_has_length_one_whatever_it_was(size):
    x = np.array([[3.0, 4.0], [0.0, 0.0]]) * size
    np.testing.assert_allclose(dense.unit(x), [[0.6, 0.8], [0.0, 0.0]], rtol=1e-15)
