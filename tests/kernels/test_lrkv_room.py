"""LRKV in Triton through the public door: the reference's outputs. The cases run interpreted, and on a GPU where there
is one.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the package torch is not installed; get it with: pip install torch")

from attnlab import backend, parity  # noqa: E402
from attnlab.lrkv import Rope, attention, cache, reference  # noqa: E402
from tests.lrkv.cases import OPTIONS, arguments, with_option  # noqa: E402

ABSENT = backend.why_not("triton", "lrkv")
# item by item, so that the interpreting run has tests to count where the package is missing
pytestmark = pytest.mark.skipif(bool(ABSENT), reason=str(ABSENT))


@pytest.fixture(
    autouse=True,
    params=[pytest.param("cpu", marks=pytest.mark.interpreted), pytest.param("cuda", marks=pytest.mark.gpu)],
)
def device(request):
    """Where tensors lie. Arrays find their own way."""
    return request.param


def assert_parity(got, given, out_dtype=None):
    exact, low = (reference.attention(**given, dtype=kind) for kind in (np.float64, np.float32))
    terms = given["k_shared"].shape[1] + given["q"].shape[3]
    seen = parity.compare(np.asarray(got), exact, low, terms=terms, dtype=backend.eps("triton"), out_dtype=out_dtype)
    assert seen.ok, seen.reason


SMALL = {"B": 1, "T": 2, "S": 9, "H": 2, "G": 1}


@pytest.mark.parametrize("option", OPTIONS)
def test_arrays_give_the_reference_and_stay_as_they_are(option):
    given = with_option(option)
    before = {name: x.copy() for name, x in given.items() if isinstance(x, np.ndarray)}
    out, lse = attention(**given, return_lse=True, impl="triton")
    assert (out.dtype, lse.dtype) == (np.float32, np.float32)
    assert_parity(out, given)
    _, wanted = reference.attention(**given, return_lse=True)
    np.testing.assert_allclose(lse, wanted, rtol=1e-5, atol=1e-5)
    for name, x in before.items():
        np.testing.assert_array_equal(given[name], x)


def test_without_latents_it_is_attention_with_shared_heads():
    given = arguments(**SMALL)
    for missing in (("k_latent", "k_factor"), ("v_latent", "v_factor"), tuple(arguments())[3:]):
        fewer = {name: x for name, x in given.items() if name not in missing}
        assert_parity(attention(**fewer, impl="triton"), fewer)


def test_types_of_tensors(device):
    """Mixed ones, a scale in float32 beside a cache of 16 bits, and half arrays."""
    given = with_option("k_scale", **SMALL)
    kinds = dict.fromkeys(given, torch.bfloat16) | {"k_latent": torch.float16, "k_scale": torch.float32}
    mixed = {name: torch.from_numpy(x).to(device, kinds[name]) for name, x in given.items()}
    out, lse = attention(**mixed, return_lse=True, impl="triton")
    assert (out.dtype, lse.dtype, out.device.type) == (torch.bfloat16, torch.float32, device)
    rounded = {name: x.double().cpu().numpy() for name, x in mixed.items()}
    assert_parity(out.double().cpu().numpy(), rounded, out_dtype=2.0**-7)
    half = {name: x.astype(np.float16) for name, x in given.items()}
    got = attention(**half, impl="triton")
    assert got.dtype == np.float16
    assert_parity(got, half, out_dtype=np.float16)


def test_positions_and_edges_follow_the_tensors(device):
    """Edges of any whole type, tensors or arrays; a rope of tensors."""
    given = with_option("latent_rope", **SMALL | {"B": 2})
    given |= {"starts": np.array([0, 2], np.uint8), "ends": np.array([9, 7], np.int32)}
    tensors = {
        name: torch.from_numpy(x).to(device, torch.float32)
        for name, x in given.items()
        if isinstance(x, np.ndarray) and x.dtype == np.float64 and name != "positions"
    }
    own = [Rope(torch.from_numpy(given[name].frequency), given[name].layout) for name in ("rope", "latent_rope")]
    got = attention(**given | tensors, impl="triton")
    ropes = {"rope": own[0], "latent_rope": own[1], "ends": torch.tensor([9, 7], device=device)}
    assert torch.equal(attention(**given | tensors | ropes, impl="triton"), got)
    assert_parity(got.cpu().numpy(), given)


def test_a_cache_is_read_as_it_lies(device):
    """Views of what is held, with room behind it."""
    given = {name: torch.from_numpy(x).to(device, torch.float32) for name, x in arguments(B=1, T=1).items()}
    held = cache.FactoredCache(given["k_factor"], given["v_factor"])
    for part in (slice(0, 7), slice(7, 8), slice(8, 11)):
        names = ("k_shared", "v_shared", "k_latent", "v_latent")
        held.append(*(given[name][:, part] for name in names))
    assert torch.equal(attention(given["q"], **held.arguments(), impl="triton"), attention(**given, impl="triton"))


def test_numbers_too_large_are_refused_where_they_are_read():
    given = with_option("ragged")
    assert np.isfinite(attention(**given, impl="triton")).all()
    given["v_shared"][0, 0] = 1e39
    with pytest.raises(backend.Unsupported, match="computes in float32, and v_shared has numbers too large"):
        attention(**given, impl="triton")
    with pytest.raises(backend.Unsupported, match="q has numbers too large"):
        attention(**arguments() | {"q": np.full((2, 3, 6, 8), 1e39)}, impl="triton")


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"K": 258}, "covers key widths from 1 to 256, got 258 of q"),
        ({"K": 0}, "covers key widths from 1 to 256, got 0 of q"),
        ({"V": 257}, "covers value widths from 1 to 256, got 257 of v_shared"),
        ({"R": 129}, "covers ranks from 0 to 128, got 129 of k_latent"),
        ({"Rv": 129}, "covers ranks from 0 to 128, got 129 of v_latent"),
    ],
    ids=str,
)
def test_what_the_kernels_do_not_cover_is_refused_with_the_range(sizes, says):
    with pytest.raises(backend.Unsupported, match=says):
        attention(**arguments(**SMALL | sizes), impl="triton")


def test_float64_tensors_are_refused(device):
    given = {name: torch.from_numpy(x).to(device) for name, x in arguments(**SMALL).items()}
    with pytest.raises(backend.Unsupported, match=r"float32, float16 and bfloat16, got q of torch\.float64"):
        attention(**given, impl="triton")


def test_a_gradient_is_refused_and_not_dropped(device):
    given = {name: torch.from_numpy(x).to(device, torch.float32) for name, x in arguments(**SMALL).items()}
    given["v_factor"].requires_grad_()
    with pytest.raises(
        backend.Unsupported, match=r"no gradients, and v_factor requires one; detach it, or use 'torch'"
    ):
        attention(**given, impl="triton")
    with torch.no_grad():
        assert not attention(**given, impl="triton").requires_grad


def test_verify_runs_the_row_and_says_where():
    (report,) = parity.verify("lrkv", arguments(**SMALL), terms=24, impls=["triton"])
    assert report.ran
    assert report.ok, report.reason
    assert report.device == backend.device("triton")
