"""The torch room alone: tensors of every type and layout, blocks of any size, and gradients of what was read.

That it reads the reference's tokens and gives its numbers stands in test_fast_paths.py.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the package torch is not installed; get it with: pip install torch")

from attnlab.hashattention import attention, encode, reference, select, torch_impl  # noqa: E402
from tests.hashattention.cases import arguments, chosen_sets, codes, normal, perceptron, selecting, single  # noqa: E402

DRAWS = np.random.default_rng(0)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Products of a few numbers lose more to two threads than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=[1, 40, 1000, 2**20])
def blocks(request, monkeypatch):
    """A block of one query, of one head, of some, and one block for everything."""
    monkeypatch.setattr(torch_impl, "BLOCK", request.param)
    monkeypatch.setattr(torch_impl, "GATHERED", request.param)


def tensors(given, dtype=torch.float64, wanting=()):
    """The same call on tensors; those named want gradients."""

    def tensor(name, x):
        if not isinstance(x, np.ndarray):
            return x
        if x.dtype.kind != "f":
            return torch.from_numpy(x.view(np.int32).copy())
        return torch.tensor(x, dtype=dtype, requires_grad=name in wanting)

    return {name: tensor(name, x) for name, x in given.items()}


def plain(q, k, v, *, sets, scale=None):
    """(o, lse) over given sets by torch's own operations, one query after another; what autograd is asked about."""
    (B, T, H, K), G = q.shape, k.shape[2]
    outs, lses = [], []
    for b, t, h in np.ndindex(B, T, H):
        members, g = sets[b, t, h], h // (H // G)
        logits = k[b, members, g] @ q[b, t, h] * (K**-0.5 if scale is None else scale)
        outs.append(torch.softmax(logits, 0) @ v[b, members, g])
        lses.append(torch.logsumexp(logits, 0))
    return torch.stack(outs).view(B, T, H, -1), torch.stack(lses).view(B, T, H)


def slopes(results, given):
    """Gradients of one weighted sum of (o, lse) in q, k and v; an lse of nothing has none."""
    out, lse = results
    weights = (torch.tensor(normal(7, n, *x.shape), dtype=x.dtype) for n, x in enumerate((out, lse[..., None])))
    loss = (next(weights) * out).sum() + (next(weights)[..., 0] * torch.where(lse == -torch.inf, 0, lse)).sum()
    return torch.autograd.grad(loss, [given[name] for name in "qkv"])


# -- codes --


def test_every_bit_of_a_word_counts_once():
    words = np.concatenate([[0, 1, 2**31, 2**32 - 1, 0x55555555], DRAWS.integers(0, 2**32, 10_000)]).astype(np.uint32)
    got = torch_impl.popcount(torch.from_numpy(words.view(np.int32).copy()))
    assert np.array_equal(got.numpy(), np.bitwise_count(words))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_codes_of_tensors_are_signed_words_of_the_same_bits(blocks, dtype):
    x, maps = torch.tensor(normal(3, 1, 2, 9, 3, 5)).to(dtype), perceptron(3, 5, 9, 40)
    got = encode(x, maps, impl="torch")
    assert got.dtype == torch.int32
    number = reference.features(x, maps)
    clear = np.abs(number) > 1e-5
    assert clear.mean() > 0.99
    assert np.array_equal(reference.unpack(got, 40)[clear], (number > 0)[clear])


def test_codes_of_arrays_are_unsigned_and_in_float64_the_references():
    x, maps = normal(3, 1, 2, 9, 3, 5), perceptron(3, 5, 9, 40)
    got = encode(x, maps, impl="torch")
    assert got.dtype == np.uint32
    assert np.array_equal(got, encode(x, maps))


def test_no_number_is_no_bit():
    """NaN is refused at the door; behind it, it is 0 as in the reference."""
    x, maps = torch.full((1, 1, 1, 2), torch.nan), perceptron(1, 2, 5)
    assert torch_impl.encode(x, maps).tolist() == [[[[0]]]]


def test_codes_ask_for_no_graph():
    x = torch.randn(1, 4, 3, 5, requires_grad=True)
    assert not encode(x, perceptron(3, 5, 9, 40), impl="torch").requires_grad


# -- sets --


@pytest.mark.parametrize("seed", range(12))
def test_sets_of_random_calls_in_blocks_of_any_size(monkeypatch, seed):
    draw = np.random.default_rng(seed)
    monkeypatch.setattr(torch_impl, "BLOCK", int(draw.choice([1, 7, 50, 400])))
    G, group, T = (int(x) for x in draw.integers(1, 4, 3))
    size = [lambda: int(draw.integers(0, 20)), lambda: float(draw.random())]
    given = arguments(
        B=int(draw.integers(1, 3)), T=T, S=T + int(draw.integers(0, 30)), H=G * group, G=G,
        coded=int(draw.choice([G, G * group])), bits=int(draw.choice([1, 2, 5, 33, 300])),
        causal=bool(draw.integers(2)), seed=seed,
        **{name: size[draw.integers(2)]() for name in ("budget", "sinks", "window")},
    )  # fmt: skip
    want = select(**selecting(given))
    assert np.array_equal(select(**selecting(given), impl="torch"), want)
    got = select(**selecting(tensors(given)), impl="torch")
    assert isinstance(got, torch.Tensor)
    assert got.dtype == torch.int64
    assert np.array_equal(got, want)


def test_words_may_be_unsigned_tensors_and_of_another_kind_than_keys():
    given = single(arguments())
    want = attention(**given, impl="torch")
    asked, keyed = given["query_codes"], given["key_codes"]
    for change in ({"query_codes": torch.from_numpy(asked)}, {"key_codes": torch.from_numpy(keyed.view(np.int32))}):
        assert np.array_equal(attention(**given | change, impl="torch"), want)


# -- types and layouts --


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_type_comes_back_as_it_went_in(blocks, dtype):
    given = tensors(arguments(), dtype)
    out, lse = attention(**given, return_lse=True, impl="torch")
    want, log = reference.attention(**given, return_lse=True)
    assert out.dtype == dtype
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    tolerance = max(torch.finfo(dtype).eps, 1e-15 if dtype == torch.float64 else 1e-6) * 10
    np.testing.assert_allclose(out.double(), want, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(lse.double(), log, rtol=0, atol=1e-14 if dtype == torch.float64 else 1e-5)


def test_autocast_narrows_nothing():
    given = tensors(arguments(), torch.float32)
    want = attention(**given, impl="torch")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(attention(**given, impl="torch"), want)


def test_a_strided_view_of_a_longer_cache_is_read_in_place():
    """Keys as a view into more room, values as they are, and the other way round; NaN in the room."""
    given = tensors(arguments(S=40, budget=9), torch.float32)
    want = attention(**given, impl="torch")
    for name in ("k", "v"):
        room = torch.full((2, 3, 64, 2 * given[name].shape[-1]), torch.nan).transpose(1, 2)
        room[:, :40, :, ::2] = given[name]
        view = room[:, :40, :, ::2]
        assert not view.is_contiguous()
        assert torch.equal(attention(**given | {name: view}, impl="torch"), want)


# -- gradients --


@pytest.mark.parametrize("coded", [3, 6])
@pytest.mark.parametrize("causal", [True, False])
def test_gradients_are_autograds_over_the_same_sets(blocks, coded, causal):
    given = arguments(coded=coded, causal=causal)
    own = tensors(given, wanting="qkv")
    sets = chosen_sets(given)
    want = slopes(plain(*(own[name] for name in "qkv"), sets=sets), own)
    got = slopes(attention(**own, return_lse=True, impl="torch"), own)
    for name, dx, by_hand in zip("qkv", got, want, strict=True):
        np.testing.assert_allclose(dx, by_hand, rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.parametrize(
    "sizes",
    [
        {"H": 4, "G": 2},
        {"H": 2, "G": 1, "budget": 0.4},
        {"H": 1, "G": 1, "budget": 0, "sinks": 0, "window": 0.3},
        {"H": 2, "G": 2, "S": 2, "window": 2},
    ],
    ids=str,
)
def test_gradients_by_differences(sizes):
    """Sets are of the codes, so a small step in q, k or v changes none. Some of these queries read nothing."""
    given = tensors(arguments(B=1, T=2, K=2, V=3, **{"S": 5, "sinks": 1, "window": 1, **sizes}), wanting="qkv")
    arrays = [given.pop(name) for name in "qkv"]

    def finite(q, k, v):
        out, lse = attention(q, k, v, **given, scale=0.7, return_lse=True, impl="torch")
        return out, torch.where(lse == -torch.inf, 0, lse)

    assert torch.autograd.gradcheck(finite, arrays)


@pytest.mark.parametrize("filler", [np.nan, np.inf])
def test_what_is_not_read_reaches_no_output_and_no_gradient(filler):
    given = arguments(T=2, S=60, sinks=1, window=1, budget=2)
    unread = np.ones((2, 60, 3), bool)
    for (b, _, h), members in chosen_sets(given).items():
        unread[b, members, h // 2] = False
    assert unread.any()
    spoiled = given | {name: np.where(unread[..., None], filler, given[name]) for name in "kv"}
    runs = []
    for call in (given, spoiled):
        call = tensors(call, wanting="qkv")
        results = attention(**call, return_lse=True, impl="torch")
        runs.append([*results, *slopes(results, call)])
    for want, got in zip(*runs, strict=True):
        assert torch.isfinite(want).all()
        assert torch.equal(got, want)
    for slope in runs[1][3:]:  # of k and v
        assert not slope.numpy()[unread].any()


def test_a_set_that_is_smaller_than_others_reads_no_token_in_the_place_of_none():
    """Token 0 holds NaN, and queries that read fewer tokens than others, token 0 not among them, are as without it."""
    given = arguments(B=1, T=9, S=9, H=2, G=1, budget=0.4, sinks=0, window=1)
    sets = chosen_sets(given)
    largest = max(map(len, sets.values()))
    smaller = [(t, h) for (_, t, h), members in sets.items() if 0 not in members and len(members) < largest]
    assert smaller
    rows = tuple(zip(*smaller, strict=True))
    runs = []
    for filler in (None, np.nan):
        call = tensors(given, wanting="q")
        if filler is not None:
            call["k"][:, 0], call["v"][:, 0] = filler, filler
        out = attention(**call, impl="torch")[0][rows]
        runs.append((out, torch.autograd.grad(out.sum(), call["q"])[0][0][rows]))
    for want, got in zip(*runs, strict=True):
        assert torch.isfinite(want).all()
        assert torch.equal(got, want)


def test_an_empty_set_has_no_gradient_whatever_is_sent_to_its_lse():
    given = tensors(arguments(B=1, T=8, S=8, budget=0.2, sinks=0.1, window=0), wanting="qkv")
    _, lse = attention(**given, return_lse=True, impl="torch")
    empty = lse == -torch.inf
    assert empty.any()
    assert not empty.all()
    lse.square().sum().backward()  # which sends -inf to them
    assert not given["q"].grad[empty].any()
    assert all(torch.isfinite(given[name].grad).all() for name in "qkv")


@pytest.mark.parametrize("where", ["k", "v", "gradient"])
def test_what_one_query_reads_spoils_the_gradients_of_its_own_tokens_alone(where):
    """A NaN that query 0 of head 0 reads, or is sent: the tokens that it does not read have the gradients of others."""
    given = arguments(B=1, T=2, S=60, H=2, G=1, sinks=0, window=1, budget=3)
    sets = chosen_sets(given)
    others = sorted(set().union(*(sets[place] for place in sets if place != (0, 0, 0))))
    alone = [i for i in sets[0, 0, 0] if i not in others]
    assert alone
    if where != "gradient":
        given[where][0, alone[0]] = np.nan
    own = tensors(given, wanting="qkv")
    out = attention(**own, impl="torch")
    send = torch.ones_like(out)
    if where == "gradient":
        send[0, 0, 0] = torch.nan
    dq, dk, dv = torch.autograd.grad(out, [own[name] for name in "qkv"], send)
    untouched = [i for i in range(60) if i not in sets[0, 0, 0]]
    assert torch.isfinite(dq[0, 1]).all()
    assert torch.isfinite(dk[0, untouched]).all()
    assert torch.isfinite(dv[0, untouched]).all()
    if where == "gradient":
        assert torch.isnan(dv[0, sets[0, 0, 0]]).all()


def test_only_what_wants_a_gradient_need_have_one_and_codes_have_none():
    for name in "qkv":
        given = tensors(arguments(), wanting=name)
        attention(**given, impl="torch").sum().backward()
        assert given[name].grad is not None
        assert torch.isfinite(given[name].grad).all()


def test_gradients_have_the_type_of_what_they_are_of():
    given = tensors(arguments(), torch.bfloat16, wanting="qkv")
    attention(**given, impl="torch").float().square().sum().backward()
    assert {given[name].grad.dtype for name in "qkv"} == {torch.bfloat16}


def test_a_second_derivative_is_refused_in_a_sentence():
    given = tensors(arguments(), wanting="qkv")
    (first,) = torch.autograd.grad(attention(**given, impl="torch").square().sum(), given["q"], create_graph=True)
    with pytest.raises(RuntimeError, match="HashAttention in torch has no second derivative"):
        first.sum().backward()


def test_nothing_of_the_size_of_the_gathered_tokens_is_kept_for_the_gradient():
    """What autograd saves are the arguments, the sets, the output and its denominators."""
    given = tensors(arguments(B=1, T=40, S=40, H=2, G=1, K=16, V=16, budget=12), wanting="qkv")
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        attention(**given, impl="torch")
    n = {name: given[name].numel() for name in "qkv"}
    sets = 40 * 2 * (12 + 2 + 4)
    assert sum(saved) <= sum(n.values()) + sets + n["q"] + 40 * 2


def test_many_bits_and_ties_in_a_tensor():
    near, query = (torch.from_numpy(codes(5, n, 1, 300, 1, bits=300).view(np.int32)) for n in (1, 2))
    got = select(query[:, :1], near, budget=40, sinks=0, window=0, causal=False, impl="torch")
    want = select(query[:, :1], near, budget=40, sinks=0, window=0, causal=False)
    assert np.array_equal(got, want)
