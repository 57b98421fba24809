"""HashAttention's kernels compute the reference's codes, sets and outputs, touch what is theirs, and give the same bits
every time. The cases run interpreted, and on a GPU where there is one; what looks into the interpreter runs only there.
"""

import itertools

import numpy as np
import pytest

for package in ("torch", "triton"):
    pytest.importorskip(package, reason=f"the package {package} is not installed; get it with: pip install {package}")

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from attnlab.hashattention import Maps, reference  # noqa: E402
from attnlab_kernels import hashattention  # noqa: E402
from attnlab_kernels.testing import interpreter  # noqa: E402
from tests.kernels.hashattention_cases import (  # noqa: E402
    BF16,
    FP16,
    FP32,
    Case,
    assert_near,
    assert_same_lse,
    nan_beside,
    over_lists,
    wanted_lists,
    words,
)

HARDWARE = [pytest.param("cpu", marks=pytest.mark.interpreted), pytest.param("cuda", marks=pytest.mark.gpu)]
interpreted = pytest.mark.parametrize("device", HARDWARE[:1], indirect=True)
TYPES = pytest.mark.parametrize("dtype", [FP32, FP16, BF16], ids=["fp32", "fp16", "bf16"])


@pytest.fixture(autouse=True, params=HARDWARE)
def device(request):
    """Where tensors lie."""
    return request.param


def chosen(case, codes, device):
    """Lists of a case in short chunks, as NumPy."""
    return hashattention.select(*(x.to(device) for x in codes), **case.sizes, config="short").cpu().numpy()


def assert_lists(case, device, codes=None):
    codes = case.coded() if codes is None else codes
    np.testing.assert_array_equal(chosen(case, codes, device), wanted_lists(case, *codes))


# -- the set --


def test_sets_at_every_edge_of_what_is_there_and_what_is_wanted(device):
    sinks, window = 2, 3
    for S in (0, 1, sinks, sinks + window - 1, sinks + window, sinks + window + 1, 9):
        for budget in sorted({0, 1, max(S - 1, 0), S, S + 1}):
            assert_lists(Case(S=S, H=1, budget=budget, sinks=sinks, window=window, causal=False), device)
    for sinks, window in ((0, 0), (0, 3), (3, 0), (50, 60), (200, 200)):
        assert_lists(Case(budget=5, sinks=sinks, window=window), device)


@pytest.mark.parametrize("bits", [1, 31, 32, 33, 64, 65, 256, 300, 1024])
def test_codes_of_any_width(bits, device):
    assert_lists(Case(bits=bits), device)


@pytest.mark.parametrize("codes", ["equal", "few", "far"])
@pytest.mark.parametrize("bits", [32, 64, 96])
def test_ties_go_to_the_lowest_index_and_the_largest_distance_counts(codes, bits, device):
    """Budgets that end at a chunk's first and last token, and between."""
    for budget in (1, 61, 62, 91):  # the first chunk has 61 tokens to choose from
        assert_lists(Case(H=1, bits=bits, codes=codes, budget=budget), device)


@pytest.mark.parametrize(
    ("B", "T", "H", "C", "causal"),
    [(1, 1, 3, 3, True), (2, 1, 4, 2, True), (1, 1, 8, 1, True), (1, 3, 6, 2, True), (1, 3, 2, 1, False)],
)
def test_heads_that_share_codes_and_several_queries(B, T, H, C, causal, device):
    """Three heads a code are two blocks of heads, the second not full. Fractions are rounded down query by query."""
    case = Case(B=B, T=T, S=90, H=H, C=C, causal=causal)
    assert_lists(case, device)
    assert_lists(case._replace(budget=0.3, sinks=0.05, window=0.11), device)


LAYOUTS = {
    "words apart": lambda codes: hashattention.empty_codes(*codes.shape[:3], 32 * codes.shape[3]).copy_(codes),
    "part of a wider one": lambda codes: torch.cat([codes + 1, codes], 3)[..., codes.shape[3] :],
    "the head of a cache": lambda codes: torch.cat([codes, codes - 1], 1)[:, : codes.shape[1]],
    "every second token": lambda codes: codes.repeat_interleave(2, 1)[:, ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_any_strides_of_codes_give_the_same_lists(layout, device):
    case = Case(B=2, H=4, C=2, bits=64)
    queries, keys = case.coded()
    strided = layout(queries), layout(keys)
    assert not strided[1].is_contiguous()
    np.testing.assert_array_equal(chosen(case, strided, device), chosen(case, (queries, keys), device))


# -- attention over lists --


def lists(case, L, N, device):
    """Rising lists [B, T, L, N], and lengths of every kind: 0, 1, of whole spans, all."""
    draw = torch.Generator().manual_seed(7)
    order = torch.rand(case.B, case.T, L, case.S, generator=draw).argsort(-1)[..., :N]
    kinds = torch.tensor([0, 1, 16, 17, 32, N]).repeat(case.B * case.T * L)[: case.B * case.T * L]
    return order.sort(-1)[0].to(device), kinds.reshape(case.B, case.T, L).to(device)


@TYPES
@pytest.mark.parametrize("L", [4, 2, 1])
def test_outputs_over_lists_are_those_of_the_reference(L, dtype, device):
    """A list for each head, for two of four heads that share keys, and for all four. Some are empty, some have one span
    and some three; widths fill no block.
    """
    case = Case(T=3, S=60, H=4, dtype=dtype, K=17, V=33)
    given = [x.to(device) for x in case.rows()]
    index, lengths = lists(case, L, 40, device)
    out, lse = hashattention.gathered_attention(*given, index, lengths, scale=0.4, return_lse=True, config="short")
    assert out.dtype == dtype
    (exact, log), (low, _) = (
        over_lists(*given, index.cpu(), lengths.cpu(), 0.4, kind) for kind in (np.float64, np.float32)
    )
    assert_near(out, exact, low, terms=case.K + 40, dtype=dtype)
    assert_same_lse(lse, log, dtype=dtype, terms=case.K + 40)
    assert not exact[lengths.cpu().numpy().repeat(4 // L, 2) == 0].any()
    only = hashattention.gathered_attention(*given, index, lengths, scale=0.4, config="short")
    assert torch.equal(only, out)


@pytest.mark.parametrize(("K", "V"), [(1, 1), (256, 3), (5, 256)])
def test_widths_from_1_to_256(K, V, device):
    case = Case(S=30, K=K, V=V)
    given = [x.to(device) for x in case.rows()]
    index = torch.arange(0, 30, 2, device=device).expand(1, 1, 2, 15)
    out = hashattention.gathered_attention(*given, index)
    (exact, _), (low, _) = (
        over_lists(*given, index.cpu(), np.full((1, 1, 2), 15), K**-0.5, kind) for kind in (np.float64, np.float32)
    )
    assert_near(out, exact, low, terms=K + 15, dtype=FP32)


@pytest.mark.parametrize(("dtype", "L"), [(FP32, 2), (BF16, 2), (BF16, 1)], ids=str)
def test_a_repeated_token_counts_once_and_one_that_is_not_there_not_at_all(dtype, L, device):
    """A list is a set. The sums have zeros in other places, so that the last bit may differ."""
    case = Case(dtype=dtype)
    given = [x.to(device) for x in case.rows()]
    plain = torch.tensor([0, 3, 4, 60, 99], device=device)
    other = torch.tensor([0, 3, 3, 3, 4, 4, 60, 99, 99, 100, 2**32 + 1, -1, -1, -5], device=device)
    one, two = (
        hashattention.gathered_attention(*given, x.expand(1, 1, L, len(x)), return_lse=True) for x in (plain, other)
    )
    torch.testing.assert_close(one[0].float(), two[0].float(), rtol=torch.finfo(dtype).eps, atol=1e-6)
    torch.testing.assert_close(one[1], two[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("N", [0, 40])
def test_nothing_in_any_list_gives_zero_and_minus_infinity(N, device):
    case = Case(T=2)
    given = [x.to(device) for x in case.rows()]
    for L, dtype in ((2, FP32), (1, BF16)):
        index = torch.full((1, 2, L, N), -1, device=device)
        q, k, v = (x.to(dtype) for x in given)
        out, lse = hashattention.gathered_attention(q, k, v, index, return_lse=True, config="short")
        assert not out.any()
        assert bool(lse.isneginf().all())


def test_logits_that_no_exponential_holds(device):
    """The maximum is that of the set: a far larger logit beside it, and one far below, harm nobody."""
    q, v = torch.ones(1, 1, 1, 1, device=device), torch.arange(4.0, device=device).reshape(1, 4, 1, 1)
    k = torch.tensor([-1e30, -2e4, -2e4, 1e30], device=device).reshape(1, 4, 1, 1)
    index = torch.tensor([0, 1, 2], device=device).reshape(1, 1, 1, 3)
    out, lse = hashattention.gathered_attention(q, k, v, index, scale=1.0, return_lse=True)
    assert out.item() == 1.5
    assert lse.item() == pytest.approx(-2e4 + np.log(2))


# -- both together --


@pytest.mark.parametrize(("dtype", "C"), [(FP32, 4), (FP16, 2), (BF16, 2)], ids=str)
def test_attention_is_the_reference_and_reads_nothing_else(dtype, C, device):
    """Every key and value that no query of its head reads is NaN."""
    case = Case(T=2, H=4, G=2, dtype=dtype, C=C)
    codes, (q, k, v) = case.coded(), case.rows()
    index = wanted_lists(case, *codes)
    poisoned = [nan_beside(x, index) for x in (k, v)]
    assert all(x.isnan().any() for x in poisoned)
    given = [x.to(device) for x in (q, *poisoned, *codes)]
    out, lse = hashattention.attention(*given, **case.sizes, scale=0.7, return_lse=True, config="short")
    arrays = [x.double().numpy() for x in (q, k, v)]
    (exact, log), (low, _) = (
        reference.attention(*arrays, *map(words, codes), **case.sizes, scale=0.7, return_lse=True, dtype=kind)
        for kind in (np.float64, np.float32)
    )
    assert_near(out, exact, low, terms=case.K + index.shape[-1], dtype=dtype)
    assert_same_lse(lse, log, dtype=dtype, terms=case.K + index.shape[-1])


def test_a_budget_of_all_is_dense_attention(device):
    case = Case(T=2, H=4, G=2, budget=1.0)
    q, k, v = (x.to(device) for x in case.rows())
    out = hashattention.attention(q, k, v, *(x.to(device) for x in case.coded()), **case.sizes)
    mask = torch.ones(2, case.S, dtype=torch.bool, device=device).tril(case.S - 2)
    k, v = (x.repeat_interleave(2, 2).transpose(1, 2).double() for x in (k, v))
    dense = torch.nn.functional.scaled_dot_product_attention(q.transpose(1, 2).double(), k, v, attn_mask=mask)
    torch.testing.assert_close(out.double(), dense.transpose(1, 2), rtol=1e-5, atol=1e-5)


ROWS = {
    "heads first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "part of a wider one": lambda x: torch.cat([torch.full_like(x, torch.nan), x], -1)[..., x.shape[-1] :],
    "columns apart": lambda x: x.mT.contiguous().mT,
    "every second token": lambda x: torch.stack([x, torch.full_like(x, torch.nan)], 2).flatten(1, 2)[:, ::2],
}


@pytest.mark.parametrize("layout", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize(("dtype", "L"), [(FP32, 2), (BF16, 1)], ids=str)
def test_any_strides_of_keys_beside_contiguous_values_give_the_same_bits(layout, dtype, L, device):
    case = Case(B=2, S=40, dtype=dtype)
    q, k, v = (x.to(device) for x in case.rows())
    index, lengths = lists(case, L, 20, device)
    plain = hashattention.gathered_attention(q, k, v, index, lengths, config="short")
    for given in ((q, layout(k), v), (layout(q), k, layout(v))):
        assert torch.equal(hashattention.gathered_attention(*given, index, lengths, config="short"), plain)


def test_a_row_has_the_same_bits_in_a_batch_and_alone_and_every_time(device):
    case = Case(B=2)
    given = [x.to(device) for x in (*case.rows(), *case.coded())]
    whole = hashattention.attention(*given, **case.sizes, config="short")
    assert torch.equal(hashattention.attention(*given, **case.sizes, config="short"), whole)
    for b in range(2):
        alone = hashattention.attention(*(x[b : b + 1] for x in given), **case.sizes, config="short")
        assert torch.equal(alone[0], whole[b])


def begin_with_rubbish(monkeypatch):
    """All buffers begin full of NaN, or of a number that is nobody's."""

    def filled(stock):
        def make(*arguments, **options):
            made = stock(*arguments, **options)
            return made.fill_(torch.nan if made.is_floating_point() else -77)

        return make

    monkeypatch.setattr(torch.Tensor, "new_empty", filled(torch.Tensor.new_empty))
    monkeypatch.setattr(torch, "empty", filled(torch.empty))


@interpreted
@pytest.mark.parametrize("case", [Case(T=2, H=3), Case(B=2, H=4, G=2, C=4, bits=64, dtype=BF16)], ids=str)
def test_no_access_out_of_bounds_no_race_and_every_number_written(case, monkeypatch, device):
    begin_with_rubbish(monkeypatch)
    codes, given = case.coded(), case.rows()
    with interpreter.traced() as record:
        lists_ = chosen(case, codes, device)
        out, lse = hashattention.attention(*given, *codes, **case.sizes, return_lse=True, config="short")
        index = torch.from_numpy(lists_[:, :, :: case.H // case.G].copy())
        shared = hashattention.gathered_attention(*given, index, config="short")
    record.check()
    assert {launch.kernel for launch in record.launches} >= {
        "hash_count_kernel",
        "hash_cut_kernel",
        "hash_merge_kernel",
    }
    np.testing.assert_array_equal(lists_, wanted_lists(case, *codes))
    assert all(bool(x.isfinite().all()) for x in (out, lse, shared))


@interpreted
def test_a_chunk_of_which_nothing_is_taken_is_not_read_again(device):
    """One token of 900, near the end, without sinks and with a window of one."""
    case = Case(S=900, H=1, budget=1, sinks=0, window=1)
    queries, keys = case.coded()
    keys[:, 700] = queries[0, 0]
    with interpreter.traced() as record:
        np.testing.assert_array_equal(chosen(case, (queries, keys), device), [[[[700, 899]]]])
    read = {
        launch.kernel: launch.tensors["key_codes"].requested_bytes()
        for launch in record.launches
        if "cut" not in launch.kernel
    }
    assert read == {"hash_count_kernel": 4 * 899, "hash_place_kernel": 4 * 64}


# -- codes --


def maps(H, widths, dtype, seed=8):
    """Random maps, weights of such a size that features stay near 1: (weights, biases) in this type."""
    draw = torch.Generator().manual_seed(seed)
    weights = [torch.randn(H, a, b, generator=draw) * a**-0.5 for a, b in itertools.pairwise(widths)]
    biases = [0.3 * torch.randn(H, b, generator=draw) for b in widths[1:]]
    return [x.to(dtype) for x in weights], [x.to(dtype) for x in biases]


def assert_codes(got, x, weights, biases, tolerance):
    """All bits but those of features that rounding may move across 0, of which there are few."""
    exact = Maps(tuple(w.double().numpy() for w in weights), tuple(b.double().numpy() for b in biases))
    features = reference.features(x.double().numpy(), exact)
    clear = np.abs(features) > tolerance
    assert clear.mean() > 0.99
    bits = reference.unpack(words(got), features.shape[-1])
    np.testing.assert_array_equal(bits[clear], features[clear] > 0)
    spare = reference.unpack(words(got), 32 * got.shape[-1])[..., features.shape[-1] :]
    assert not spare.any()


@pytest.mark.parametrize("bits", [1, 31, 32, 33, 64, 256, 300])
def test_a_linear_map_of_whole_numbers_gives_every_bit(bits, device):
    """Their sums are exact, so that 0.0 and -0.0 are met, and both give 0; NaN too."""
    draw = torch.Generator().manual_seed(bits)
    x = torch.randint(-2, 3, (2, 5, 2, 6), generator=draw).float()
    x[0, 0, 0], x[0, 1, 0] = torch.nan, -0.0
    weight = torch.randint(-2, 3, (2, 6, bits), generator=draw).float()
    bias = torch.zeros(2, bits)
    bias[1] = -0.0
    packed = hashattention.pack([weight.to(device)], [bias.to(device)])
    got = hashattention.encode(x.to(device), packed)
    features = torch.einsum("bthi,hio->btho", x, weight) + bias
    assert bool((features == 0).any())
    np.testing.assert_array_equal(words(got), reference.pack(features.numpy()))
    assert not got[0, 0, 0].any()


@pytest.mark.parametrize(
    ("dtype", "kind", "widths"),
    [
        (FP32, FP32, (20, 40, 24, 33)),
        (BF16, FP16, (64, 128, 32)),
        (FP16, FP32, (30, 70, 5)),
        (BF16, BF16, (256, 40)),
        (FP32, FP32, (3, 200, 2)),
    ],
    ids=str,
)
def test_perceptrons_of_any_depth_and_type(dtype, kind, widths, device):
    """More rows than one program has."""
    weights, biases = maps(3, widths, kind)
    x = torch.randn(2, 11, 3, widths[0], generator=torch.Generator().manual_seed(9)).to(dtype)
    packed = hashattention.pack([w.to(device) for w in weights], [b.to(device) for b in biases])
    assert_codes(hashattention.encode(x.to(device), packed), x, weights, biases, 1e-5)


def test_codes_go_where_they_are_wanted_and_neighbours_may_share_a_head(device):
    """Four maps on two heads of a strided x, written into the middle of a cache."""
    weights, biases = maps(4, (12, 24, 40), FP32)
    x = torch.randn(2, 7, 2, 12, generator=torch.Generator().manual_seed(9))
    packed = hashattention.pack([w.to(device) for w in weights], [b.to(device) for b in biases])
    cache = hashattention.empty_codes(2, 20, 4, 40, device).fill_(-9)
    strided = x.to(device).permute(3, 2, 0, 1).contiguous().permute(2, 3, 1, 0)
    got = hashattention.encode(strided, packed, cache[:, 3:10])
    assert got.data_ptr() == cache[:, 3:10].data_ptr()
    assert_codes(got.cpu(), x.repeat_interleave(2, 2), weights, biases, 1e-5)
    assert bool((cache[:, :3] == -9).all())
    assert bool((cache[:, 10:] == -9).all())


# -- a decode step --


@pytest.mark.parametrize(("dtype", "coded"), [(FP32, 1), (BF16, 2)], ids=str)
def test_decode_steps_are_attention_over_all_tokens_so_far(dtype, coded, device):
    """After 30 tokens one, then two: the spare ends of keys, values and codes hold anything."""
    case = Case(T=33, S=33, budget=6, dtype=dtype)
    q, k, v = (x.to(device) for x in case.rows())
    query_maps, key_maps = (
        hashattention.pack(*([x.to(device) for x in part] for part in maps(H, (12, 32, 40), FP32, seed)))
        for H, seed in ((2, 1), (coded, 2))
    )
    keys, values = (torch.full((1, 40, 1, x.shape[-1]), torch.nan, dtype=dtype, device=device) for x in (k, v))
    keys[:, :30], values[:, :30] = k[:, :30], v[:, :30]
    codes = hashattention.empty_codes(1, 40, coded, 40, device).fill_(-1)
    hashattention.encode(k[:, :30], key_maps, codes[:, :30])
    sizes = {"budget": 6, "sinks": 3, "window": 5, "config": "short", "scale": 0.5, "return_lse": True}
    for a, b in ((30, 31), (31, 33)):
        new = (x[:, a:b] for x in (q, k, v))
        out, lse = hashattention.decode_step(*new, keys, values, codes, a, query_maps, key_maps, **sizes)
        every = hashattention.encode(q[:, a:b], query_maps), hashattention.encode(k[:, :b], key_maps)
        assert torch.equal(codes[:, :b], every[1])
        want = hashattention.attention(q[:, a:b], k[:, :b], v[:, :b], *every, **sizes)
        assert torch.equal(out, want[0])
        assert torch.equal(lse, want[1])
    assert bool(keys[:, 33:].isnan().all())


# -- planted faults: a test that cannot fail says nothing --


@triton.jit
def _without_the_sign_bit(x):
    x = x.to(tl.uint32, bitcast=True) & 0x7FFFFFFF
    x -= (x >> 1) & 0x55555555
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def _never_far(keys, words, r: tl.constexpr, W: tl.constexpr):
    distance = hashattention._popcount(keys[0] ^ words[r * W])
    return tl.minimum(distance, 31), distance < 32


@triton.jit
def _twice(index, o_n, stop, S):
    inside = o_n < stop
    token = tl.load(index + o_n, mask=inside, other=-1)
    return token.to(tl.int64), inside & (token >= 0) & (token < S)


@triton.jit
def _always_there(index, o_n, stop, S):
    inside = o_n < stop
    token = tl.load(index + o_n, mask=inside, other=0)
    return token.to(tl.int64) * (token < S), inside


FAULTS = {
    "popcount": ("_popcount", _without_the_sign_bit, lambda device: test_codes_of_any_width(32, device)),
    "named twice": (
        "_named",
        _twice,
        lambda device: test_a_repeated_token_counts_once_and_one_that_is_not_there_not_at_all(FP32, 2, device),
    ),
    "named in vain": (
        "_named",
        _always_there,
        lambda device: test_nothing_in_any_list_gives_zero_and_minus_infinity(40, device),
    ),
}


@interpreted
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name, monkeypatch, device):
    where, fault, check = FAULTS[name]
    check(device)
    monkeypatch.setattr(hashattention, where, fault)
    with pytest.raises(AssertionError):
        check(device)


# -- what is refused --


def given(**changes):
    case = Case(S=150, H=4, G=2, C=2)
    named = dict(zip(("q", "k", "v", "query_codes", "key_codes"), (*case.rows(), *case.coded()), strict=True))
    return named | {"budget": 4} | changes


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"q": torch.ones(1, 4, 12)}, TypeError, r"q must be a tensor \[B, T, H, K\], got \[1, 4, 12\]"),
        ({"q": torch.ones(1, 1, 4, 12).double()}, TypeError, "q must be one of float32, float16, bfloat16"),
        ({"v": torch.ones(1, 150, 2, 257)}, ValueError, "v must have a width of 1 to 256, got 257"),
        ({"k": torch.ones(1, 150, 3, 12)}, ValueError, "k must have a number of heads that divides the 4 of q, got 3"),
        ({"k": torch.ones(1, 150, 2, 12).half()}, TypeError, "k must be torch.float32, got torch.float16"),
        ({"v": torch.ones(1, 149, 2, 20)}, ValueError, r"v must be a tensor \[1, 150, 2, 20\]"),
        ({"q": torch.ones(1, 1, 4, 12).requires_grad_()}, ValueError, "q requires a gradient, and these kernels have"),
        ({"key_codes": torch.ones(1, 150, 2, 1)}, TypeError, r"key_codes must be a tensor \[B, S, C, W\] of int32"),
        ({"key_codes": torch.ones(1, 150, 3, 1).int()}, ValueError, "key_codes must have a number of heads that div"),
        ({"key_codes": torch.ones(1, 150, 2, 2).int()}, ValueError, r"key_codes must be a tensor \[1, 150, 2, 1\]"),
        ({"key_codes": torch.ones(1, 9, 2, 1).int()}, ValueError, "query_codes and key_codes must belong to q and k"),
        ({"budget": -1}, ValueError, "budget must be a whole number from 0 on or a fraction between .*, got -1"),
        ({"sinks": 1.5}, ValueError, "sinks must be a whole number .*, got 1.5"),
        ({"window": float("nan")}, ValueError, "window must be a whole number .*, got nan"),
        ({"window": True}, ValueError, "window must be a whole number .*, got True"),
        ({"scale": float("inf")}, ValueError, "scale must be a finite number, got inf"),
        ({"config": "fast"}, ValueError, "config must be one of 'default', 'short', got 'fast'"),
    ],
    ids=lambda part: "" if isinstance(part, type) else str(part)[:40],
)  # fmt: skip
@interpreted
def test_arguments_are_refused_by_name_with_what_was_wanted_and_what_came(change, error, says, device):
    with pytest.raises(error, match=says):
        hashattention.attention(**given(**change))


@interpreted
def test_codes_lists_and_maps_are_refused_too(device):
    queries, keys = Case(T=4, S=3).coded()
    with pytest.raises(ValueError, match="key_codes must be of at least 4 tokens where causal, one a query, got 3"):
        hashattention.select(queries, keys, budget=1)
    with pytest.raises(ValueError, match="query_codes must have 1 to 32 words, got 33"):
        hashattention.select(*(x.expand(*x.shape[:3], 33) for x in (queries, keys)), budget=1)
    rows = Case(H=4, G=2).rows()
    index = torch.tensor([2, 1]).expand(1, 1, 4, 2)
    with pytest.raises(ValueError, match="index must hold lists that rise"):
        hashattention.gathered_attention(*rows, index)
    hashattention.gathered_attention(*rows, index, torch.ones(1, 1, 4, dtype=torch.int64))  # only one of the two counts
    with pytest.raises(ValueError, match="index must have lists for a divisor of 4 heads and a multiple of 2, got 1"):
        hashattention.gathered_attention(*rows, index[:, :, :1])
    with pytest.raises(TypeError, match=r"index must be a tensor \[B, T, L, N\] of int32 or int64"):
        hashattention.gathered_attention(*rows, index.float())
    with pytest.raises(ValueError, match=r"lengths must be a tensor \[1, 1, 4\], got \[1, 1, 2\]"):
        hashattention.gathered_attention(*rows, index, torch.ones(1, 1, 2).int())
    weights, biases = maps(2, (12, 300, 8), FP32)
    with pytest.raises(ValueError, match=r"weights\[1\] must take rows of 1 to 256 numbers, got 300"):
        hashattention.pack(weights, biases)
    with pytest.raises(ValueError, match="biases must be as many as weights, 2, got 1"):
        hashattention.pack(weights, biases[:1])
    packed = hashattention.pack(*maps(2, (12, 8), FP32))
    with pytest.raises(ValueError, match="x must have rows of 12 numbers, as maps, got 11"):
        hashattention.encode(torch.ones(1, 1, 2, 11), packed)
    with pytest.raises(ValueError, match="x must have a number of heads that divides the 2 of maps, got 3"):
        hashattention.encode(torch.ones(1, 1, 3, 12), packed)
    with pytest.raises(TypeError, match="maps must be what `pack` returns, got tuple"):
        hashattention.encode(torch.ones(1, 1, 2, 12), ())


@interpreted
def test_a_decode_step_refuses_what_does_not_fit(device):
    q, k, v = Case(S=150, H=4, G=2).rows()
    k, v, keys, values = k[:, :1], v[:, :1], k.clone(), v.clone()
    query_maps, key_maps = (hashattention.pack(*maps(H, (12, 8), FP32)) for H in (4, 2))
    codes = hashattention.empty_codes(1, 150, 2, 8)
    with pytest.raises(ValueError, match="length must be a whole number that leaves room for 1 of 150 tokens, got 150"):
        hashattention.decode_step(q, k, v, keys, values, codes, 150, query_maps, key_maps, budget=1)
    with pytest.raises(ValueError, match="query_maps must be for 4 heads and key_maps for 2 or as many, got 2 and 2"):
        hashattention.decode_step(q, k, v, keys, values, codes, 0, key_maps, key_maps, budget=1)
    with pytest.raises(ValueError, match=r"codes must be a tensor \[1, 150, 2, 1\], got \[1, 149, 2, 1\]"):
        hashattention.decode_step(q, k, v, keys, values, codes[:, 1:], 0, query_maps, key_maps, budget=1)
    with pytest.raises(ValueError, match="keys requires a gradient, and these kernels have none; detach it"):
        hashattention.decode_step(q, k, v, keys.requires_grad_(), values, codes, 0, query_maps, key_maps, budget=1)


# -- torch --


@interpreted
def test_the_operations_are_registered_whole(device):
    case = Case(S=40, H=4, G=2, C=2)
    (q, k, v), codes = case.rows(), case.coded()
    tests = ("test_schema", "test_faketensor")
    table, longest, shortest = hashattention.sizes(1, 40, 9, 3, 5, True, q.device)
    arguments = (*codes, table, longest, shortest, "short")
    torch.library.opcheck(torch.ops.attnlab.hash_select.default, arguments, test_utils=tests)
    index = torch.ops.attnlab.hash_select(*arguments)
    lengths = table[None, :, None, 4].expand(1, 1, 4)
    torch.library.opcheck(
        torch.ops.attnlab.hash_gather.default, (q, k, v, index, lengths, 0.5, "short"), test_utils=tests
    )
    packed = hashattention.pack(*maps(4, (12, 16, 40), FP32))
    out = hashattention.empty_codes(1, 1, 4, 40).fill_(0)
    torch.library.opcheck(torch.ops.attnlab.hash_encode.default, (q, *packed[:4], out), test_utils=tests)
