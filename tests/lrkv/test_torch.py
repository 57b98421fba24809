"""The torch room: the reference's numbers by every way through it, gradients in every array, and nothing of what lies
outside of a row's tokens.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the package torch is not installed; get it with: pip install torch")

from attnlab import parity  # noqa: E402
from attnlab.lrkv import attention, reference, rope, rotary, torch_impl  # noqa: E402
from tests.lrkv.cases import OPTIONS, arguments, normal, with_option  # noqa: E402

ARRAYS = ("q", "k_shared", "v_shared", "k_latent", "v_latent", "k_factor", "v_factor", "q_residual", "k_scale")
WAYS = {  # through the room
    "as it is": {},
    "all made": {"MANY": 2},  # but for a single query
    "in blocks": {"READ": 80, "LOGITS": 70, "BACK": 50},  # of three keys or one, of one query, of two keys
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Products of a few numbers lose more to two threads than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    for name, value in WAYS[request.param].items():
        monkeypatch.setattr(torch_impl, name, value)
    return request.param


def tensors(given, dtype=torch.float64, wanting=()):
    """The same call on tensors; those named want gradients."""
    return {
        name: torch.tensor(x, dtype=dtype, requires_grad=name in wanting) if name in ARRAYS else x
        for name, x in given.items()
    }


def there(given):
    """The arrays of a call."""
    return [name for name in ARRAYS if name in given]


def same(ours, theirs, tolerance=1e-12):
    """In float64: sums of a few hundred terms of order 1."""
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=tolerance, atol=tolerance)


# -- the reference's numbers --


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_is_the_references(way, option, causal):
    """One query, some, as many as keys, and more than keys; one row has other tokens than the next where ragged."""
    for sizes in ({"T": 1}, {"T": 3, "G": 1}, {"T": 11}, {"T": 14, "G": 6}):
        given = with_option(option, causal=causal, **sizes)
        out, lse = attention(**given, return_lse=True, impl="torch")
        want, log = reference.attention(**given, return_lse=True)
        same(out, want)
        same(lse, log)
        same(attention(**given, impl="torch"), want)  # without an lse it may be fused


@pytest.mark.parametrize("option", OPTIONS)
def test_float32_stays_within_the_computed_budget(way, option):
    terms = 11 * 8  # keys, and the longest sum of a logit or a value
    (report,) = parity.verify("lrkv", with_option(option), terms=terms, impls=("torch",))
    assert report.ok, report.reason


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("option", ["plain", "latent_rope", "expand", "ragged"])
def test_sixteen_bits_are_rounded_once(way, option, dtype):
    """The reference reads the same rounded inputs, so that what is left is float32's error and one rounding out."""
    given = tensors(with_option(option), dtype)
    exact, low = (reference.attention(**given, dtype=kind) for kind in (np.float64, np.float32))
    got = attention(**given, impl="torch")
    assert got.dtype == dtype
    seen = parity.compare(got, exact, low, terms=11 * 8, out_dtype=float(torch.finfo(dtype).eps))
    assert seen.ok, seen.reason


@pytest.mark.parametrize(
    "sizes",
    [{"R": 0}, {"Rv": 0}, {"R": 0, "Rv": 0}, {"T": 0}, {"S": 0}, {"S": 0, "T": 0}, {"B": 0}, {"H": 0, "G": 0},
     {"S": 1}, {"K": 2, "V": 9}, {"V": 0}, {"R": 1, "Rv": 1}],
    ids=str,
)  # fmt: skip
def test_nothing_is_a_size_too(way, sizes):
    given = arguments(**sizes)
    for lse in (True, False):
        got, want = (attention(**given, return_lse=lse, impl=impl) for impl in ("torch", "reference"))
        for x, y in zip(got if lse else (got,), want if lse else (want,), strict=True):
            assert x.shape == y.shape
            same(x, y)


@pytest.mark.parametrize("without", [("k",), ("v",), ("k", "v")], ids=str)
def test_without_latents_it_is_grouped_attention(way, without):
    given = arguments()
    for part in without:
        given |= {f"{part}_latent": None, f"{part}_factor": None}
    same(attention(**given, impl="torch"), attention(**given))
    for turning in ({"rope": rope(8), "positions": np.arange(11.0)}, {"k_scale": np.exp(normal(0, 9, 2, 11, 6))}):
        same(attention(**given, **turning, impl="torch"), attention(**given, **turning))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("planes", [4, 3, 0])
def test_any_layout_turns_and_coordinates_beyond_the_planes_stay(way, layout, planes):
    turning = {"rope": rope(8, layout=layout)}
    turning["rope"] = turning["rope"]._replace(frequency=turning["rope"].frequency[:planes])
    turning["positions"] = 5.0 + np.arange(11) ** 2
    for T in (1, 3):
        given = arguments(T=T, **turning)
        same(attention(**given, impl="torch"), attention(**given))
        given |= {"latent_rope": rotary.Rope(np.array([0.3]), layout)}
        same(attention(**given, impl="torch"), attention(**given))


@pytest.mark.parametrize("option", ["none", "aligned", "tied", "partial", "still"])
def test_factored_reading_is_that_of_whole_keys_where_an_option_is_exact(option):
    """Every exact way to bring positions into the cache, held against keys that were made and then turned."""
    H, K, r, S = 6, 8, 4, 11
    case = rotary.case(option, heads=H, width=K, rank=r)
    given = arguments(H=H, K=K, R=r, S=S, k_factor=case.factor, rope=case.rope, positions=np.arange(S))
    given["latent_rope"] = case.latent_rope
    if option == "still":
        given["q_residual"] = normal(0, 8, 2, 3, H, K)
    same(attention(**given, impl="torch"), reference.expanded_attention(**given))


def test_a_scale_and_places_in_the_text_of_any_kind():
    given = arguments(T=1, rope=rope(8), scale=0.3)
    places = np.arange(11) + np.array([[7], [1]])
    want = attention(**given, positions=places)
    for positions in (places, places.astype(np.float32), torch.from_numpy(places), places.tolist()):
        kept = positions if hasattr(positions, "shape") else np.array(positions)
        same(attention(**given, positions=kept, impl="torch"), want)


# -- tensors --


def test_arrays_give_arrays_and_tensors_give_tensors():
    given = arguments()
    arrays = attention(**given, return_lse=True, impl="torch")
    assert all(isinstance(x, np.ndarray) and x.dtype == np.float64 for x in arrays)
    out, lse = attention(**tensors(given, torch.bfloat16), return_lse=True, impl="torch")
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    mixed = given | {"q": torch.tensor(given["q"])}  # one tensor among arrays
    assert isinstance(attention(**mixed, impl="torch"), torch.Tensor)


def test_autocast_narrows_nothing(way):
    given = tensors(arguments(), torch.float32)
    want = attention(**given, impl="torch")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(attention(**given, impl="torch"), want)


@pytest.mark.parametrize("option", ["plain", "expand", "k_scale"])
def test_a_strided_view_of_a_longer_cache_is_read_in_place(way, option):
    given = tensors(with_option(option, T=1))
    want = attention(**given, impl="torch")
    for name in ("k_shared", "v_shared", "k_latent", "v_latent"):
        x = given[name]
        room = torch.full((x.shape[0], 64, x.shape[2], 2 * x.shape[3]), torch.nan, dtype=x.dtype)
        room[:, 3:14, :, ::2] = x
        given[name] = room[:, 3:14, :, ::2]
        assert not given[name].is_contiguous()
    same(attention(**given, impl="torch"), want)


@pytest.mark.parametrize("option", ["plain", "expand", "latent_rope", "k_scale"])
def test_a_single_query_makes_nothing_of_the_size_of_all_keys(option):
    """Among what autograd keeps for the gradient is no tensor of S H K numbers."""
    S, H, K = 64, 6, 32
    given = tensors(with_option(option, B=1, S=S, T=1, H=H, G=1, K=K, V=K), wanting=ARRAYS)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        attention(**given, impl="torch")
    assert max(kept) < S * H * K


# -- gradients --


SMALL = {"S": 3, "H": 2, "G": 1, "K": 4, "V": 1, "R": 2, "Rv": 2}


def leaves(given):
    """The arrays of a call as tensors that want gradients, numbers in the place of NaN."""
    return [torch.tensor(np.nan_to_num(given[name], nan=0.5), requires_grad=True) for name in there(given)]


@pytest.mark.parametrize("T", [1, 2])
@pytest.mark.parametrize("option", ["plain", "k_scale", "latent_rope", "expand", "still", "ragged"])
def test_gradients_by_differences(way, option, T):
    """In every array; what lies outside of a row has gradient 0, as differences say too. The other ways take the same
    along random directions alone, which is quicker.
    """
    given = with_option(option, T=T, **SMALL)
    names = there(given)

    def run(*arrays):
        return attention(**given | dict(zip(names, arrays, strict=True)), impl="torch")

    assert torch.autograd.gradcheck(run, leaves(given), fast_mode=way != "as it is")


@pytest.mark.parametrize("option", ["plain", "k_scale", "expand", "still"])
def test_gradients_of_the_denominator_by_differences(option):
    given = with_option(option, T=2, return_lse=True, **SMALL)
    names = there(given)

    def run(*arrays):
        return attention(**given | dict(zip(names, arrays, strict=True)), impl="torch")

    assert torch.autograd.gradcheck(run, leaves(given))


def by_hand(q, k_shared, v_shared, k_latent, v_latent, k_factor, v_factor):
    """Keys and values made, then softmax, by torch's own operations."""
    (T, H, K), (S, G) = q.shape[1:], k_shared.shape[1:3]
    made = [
        shared.repeat_interleave(H // G, 2) + torch.einsum("bshr,hkr->bshk", latent, factor)
        for shared, latent, factor in ((k_shared, k_latent, k_factor), (v_shared, v_latent, v_factor))
    ]
    logits = torch.einsum("bthk,bshk->bhts", q, made[0]) * K**-0.5
    unseen = torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)
    return torch.einsum("bhts,bshv->bthv", logits.masked_fill(unseen, -torch.inf).softmax(-1), made[1])


def test_gradients_of_factored_and_of_expanded_reading_are_the_same(way):
    given = arguments(T=4)
    slopes = []
    for run in (by_hand, lambda *arrays: attention(*arrays, impl="torch")):
        arrays = leaves(given)
        weight = torch.tensor(normal(0, 20, 2, 4, 6, 5))
        slopes.append(torch.autograd.grad((run(*arrays) * weight).sum(), arrays))
    for want, got in zip(*slopes, strict=True):
        same(got, want)


@pytest.mark.parametrize("filler", [np.nan, np.inf])
@pytest.mark.parametrize("option", ["plain", "latent_rope", "expand"])
def test_what_lies_outside_reaches_no_output_and_no_gradient(way, option, filler):
    edges = {"starts": np.array([2, 0]), "ends": np.array([11, 7])}
    outside = ~reference.seen(1, 11, **edges, causal=False, B=2)[:, 0]
    runs = []
    for fill in (0.5, filler):
        given = tensors(with_option(option, T=2, **edges))
        for name in ("k_shared", "v_shared", "k_latent", "v_latent"):
            given[name][torch.from_numpy(outside)] = fill
        for name in there(given):
            given[name].requires_grad_()
        out, lse = attention(**given, return_lse=True, impl="torch")
        fused = attention(**given, impl="torch")
        arrays = [given[name] for name in there(given)]
        runs.append([out, lse, fused, *torch.autograd.grad((out + fused).sum() + lse.sum(), arrays)])
    for want, got in zip(*runs, strict=True):
        assert torch.isfinite(want).all()
        assert torch.equal(got, want)
    for slope in runs[1][4:8]:  # of the cache
        assert not slope.numpy()[outside].any()


def test_a_query_that_sees_no_key_has_no_gradient_and_spoils_none(way):
    """More queries than keys, and a row without any; -inf is what an lse of nothing is, and sends nothing back."""
    given = tensors(arguments(T=5, S=3, starts=np.array([0, 2]), ends=np.array([3, 2])), wanting=ARRAYS)
    out, lse = attention(**given, return_lse=True, impl="torch")
    nothing = lse == -torch.inf
    assert nothing[0, :2].all()
    assert nothing[1].all()
    assert not nothing[0, 2:].any()
    (out.sum() + attention(**given, impl="torch").sum() + lse.masked_fill(nothing, 0).sum()).backward()
    for name in there(given):
        assert torch.isfinite(given[name].grad).all()
    assert not given["q"].grad[nothing].any()
    empty = tensors(arguments(S=0), wanting=ARRAYS)
    attention(**empty, impl="torch").sum().backward()
    assert not empty["q"].grad.any()


def test_gradients_have_the_type_of_what_they_are_of():
    given = tensors(with_option("k_scale"), torch.bfloat16, wanting=ARRAYS)
    attention(**given, impl="torch").float().square().sum().backward()
    assert {given[name].grad.dtype for name in there(given)} == {torch.bfloat16}


def test_a_second_derivative_is_right_where_nothing_is_fused_and_refused_where_it_is(monkeypatch):
    given = with_option("k_scale", B=1, T=2, **SMALL)
    names = there(given)

    def run(*arrays):
        return attention(**given | dict(zip(names, arrays, strict=True)), impl="torch")

    assert torch.autograd.gradgradcheck(run, leaves(given))
    monkeypatch.setattr(torch_impl, "MANY", 2)
    arrays = leaves(given)
    (first,) = torch.autograd.grad(run(*arrays).square().sum(), arrays[0], create_graph=True)
    with pytest.raises(RuntimeError, match=r"derivative for .* is not implemented"):
        first.sum().backward()
