"""HashAttention in Triton through the public doors: the reference's codes, sets and outputs. The cases run interpreted,
and on a GPU where there is one.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the package torch is not installed; get it with: pip install torch")

from attnlab import backend, parity  # noqa: E402
from attnlab.hashattention import Maps, attention, encode, random_maps, reference, select  # noqa: E402
from tests.hashattention.cases import arguments, perceptron, selecting  # noqa: E402

ABSENT = backend.why_not("triton", "hashattention")
# item by item, so that the interpreting run has tests to count where the package is missing
pytestmark = pytest.mark.skipif(bool(ABSENT), reason=str(ABSENT))


@pytest.fixture(
    autouse=True,
    params=[pytest.param("cpu", marks=pytest.mark.interpreted), pytest.param("cuda", marks=pytest.mark.gpu)],
)
def device(request):
    """Where tensors lie. Arrays find their own way."""
    return request.param


def assert_parity(got, given, dtype=np.float32, out_dtype=None):
    exact, low = (reference.attention(**given, dtype=kind) for kind in (np.float64, np.float32))
    terms = given["k"].shape[1] + given["q"].shape[3]
    seen = parity.compare(np.asarray(got), exact, low, terms=terms, dtype=backend.eps("triton"), out_dtype=out_dtype)
    assert seen.ok, seen.reason


SMALL = {"T": 2, "H": 2, "G": 1, "B": 1}


def test_arrays_give_the_reference_and_stay_as_they_are():
    given = arguments(B=2, T=1, H=4, G=2, S=140)
    before = {name: x.copy() for name, x in given.items() if isinstance(x, np.ndarray)}
    out, lse = attention(**given, return_lse=True, impl="triton")
    assert (out.dtype, lse.dtype) == (np.float32, np.float32)
    assert_parity(out, given)
    _, wanted = reference.attention(**given, return_lse=True)
    np.testing.assert_allclose(lse, wanted, rtol=1e-5)
    for name, x in before.items():
        np.testing.assert_array_equal(given[name], x)


@pytest.mark.parametrize("sizes", [{"budget": 0.5, "sinks": 0.1}, {"budget": np.int64(5), "window": np.float32(0.25)}])
def test_sets_are_the_reference_s_numbers(sizes, device):
    given = selecting(arguments(S=40, **SMALL) | sizes)
    got, want = select(**given, impl="triton"), select(**given)
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, want)
    codes = {name: torch.from_numpy(given[name]).to(device) for name in ("query_codes", "key_codes")}
    both = [select(**given | codes, impl="triton")]
    both.append(select(**given | {name: x.view(torch.int32) for name, x in codes.items()}, impl="triton"))
    for got in both:
        assert (got.dtype, got.device.type) == (torch.int64, device)
        np.testing.assert_array_equal(got.cpu(), want)


def test_empty_axes_and_empty_sets():
    for sizes in ({"T": 0}, {"B": 0}, {"S": 0, "causal": False}):
        given = arguments(**SMALL | sizes)
        out, lse = attention(**given, return_lse=True, impl="triton")
        assert out.shape == reference.attention(**given).shape
        assert select(**selecting(given), impl="triton").shape == select(**selecting(given)).shape
        assert not out.any()
        assert np.isneginf(lse).all()
    out, lse = attention(**arguments(**SMALL, budget=0, sinks=0, window=0), return_lse=True, impl="triton")
    assert not out.any()
    assert np.isneginf(lse).all()


def test_codes_are_the_reference_s_bits(device):
    """A perceptron's features are far from 0 here; whole numbers meet it, and give 0."""
    maps = perceptron(2, 7, 9, 33)
    x = np.random.default_rng(0).standard_normal((1, 6, 2, 7))
    clear = np.abs(reference.features(x, maps)) > 1e-5
    got = encode(x, maps, impl="triton")
    assert got.dtype == np.uint32
    np.testing.assert_array_equal((reference.unpack(got, 33) == 1)[clear], (reference.features(x, maps) > 0)[clear])
    whole = Maps((np.ones((2, 7, 5)),), (np.array([[-7.0, 7.0, 0.0, 6.0, -8.0]] * 2),))
    ones = np.ones((1, 1, 2, 7)) * np.array([1.0, -1.0])[:, None]
    np.testing.assert_array_equal(encode(ones, whole, impl="triton")[0, 0], [[0b01110], [0]])
    tensors = Maps(*(tuple(torch.from_numpy(part) for part in parts) for parts in maps))
    narrow = encode(torch.from_numpy(x).float().to(device), tensors, impl="triton")
    assert (narrow.dtype, narrow.device.type) == (torch.int32, device)
    np.testing.assert_array_equal(narrow.cpu().numpy().view(np.uint32), got)


def test_types_of_tensors(device):
    given = arguments(**SMALL)
    kinds = (torch.float16, torch.float32, torch.bfloat16)
    q, k, v = (torch.from_numpy(given[name]).to(device, kind) for name, kind in zip("qkv", kinds, strict=True))
    out, lse = attention(**given | {"q": q, "k": k, "v": v}, return_lse=True, impl="triton")
    assert (out.dtype, lse.dtype, out.device.type) == (torch.bfloat16, torch.float32, device)
    rounded = {name: x.double().cpu().numpy() for name, x in (("q", q), ("k", k), ("v", v))}
    assert_parity(out.double().cpu().numpy(), given | rounded, out_dtype=2.0**-7)
    half = {name: given[name].astype(np.float16) for name in "qkv"}
    got = attention(**given | half, impl="triton")
    assert got.dtype == np.float16
    assert_parity(got, given | half, out_dtype=np.float16)


def test_what_is_not_read_may_hold_anything_even_in_float64():
    given = arguments(**SMALL, budget=2, sinks=1, window=1)
    chosen = select(**selecting(given))
    unread = np.setdiff1d(np.arange(17), chosen)
    for name in ("k", "v"):
        given[name][:, unread] = np.nan
    assert np.isfinite(attention(**given, impl="triton")).all()
    given["v"][0, chosen[0, 0, 0, 0]] = 1e39
    with pytest.raises(backend.Unsupported, match="computes in float32, and v has numbers too large"):
        attention(**given, impl="triton")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"q": np.ones((1, 2, 2, 257)), "k": np.ones((1, 17, 1, 257))}, "covers key widths from 1 to 256, got 257"),
        ({"v": np.ones((1, 17, 1, 257))}, "covers value widths from 1 to 256, got 257"),
        ({"q": torch.ones(1, 2, 2, 7, dtype=torch.float64)}, "float32, float16 and bfloat16, got q of torch.float64"),
        ({"q": np.full((1, 2, 2, 7), 1e39)}, "q has numbers too large"),
        (
            {"query_codes": np.zeros((1, 2, 2, 33), np.uint32), "key_codes": np.zeros((1, 17, 1, 33), np.uint32)},
            "covers codes of 1 to 32 words, got 33",
        ),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)  # fmt: skip
def test_what_the_kernels_do_not_cover_is_refused_with_the_range(change, says):
    with pytest.raises(backend.Unsupported, match=says):
        attention(**arguments(**SMALL) | change, impl="triton")


def test_wide_maps_are_refused():
    with pytest.raises(backend.Unsupported, match="rows and hidden layers of 1 to 256 numbers, got 7, 257"):
        encode(np.ones((1, 1, 2, 7)), perceptron(2, 7, 257, 4), impl="triton")
    assert encode(np.ones((1, 1, 2, 7)), random_maps(300, 2, 7), impl="triton").shape == (1, 1, 2, 10)


def test_a_gradient_is_refused_and_not_dropped(device):
    given = arguments(**SMALL)
    q, k, v = (torch.from_numpy(given[name]).float().to(device) for name in "qkv")
    given |= {"q": q, "k": k, "v": v.requires_grad_()}
    with pytest.raises(backend.Unsupported, match=r"no gradients, and v requires one; detach it, or use 'torch'"):
        attention(**given, impl="triton")
    with torch.no_grad():
        assert not attention(**given, impl="triton").requires_grad


def test_verify_runs_the_row_and_says_where():
    (report,) = parity.verify("hashattention", arguments(**SMALL), terms=24, impls=["triton"])
    assert report.ran
    assert report.ok, report.reason
    assert report.device == backend.device("triton")
