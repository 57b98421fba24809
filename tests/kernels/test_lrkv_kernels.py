"""LRKV's kernels compute the reference's outputs, touch what is theirs, and give the same bits every time. The cases
run interpreted, and on a GPU where there is one; what looks into the interpreter runs only there.
"""

import numpy as np
import pytest

for package in ("torch", "triton"):
    pytest.importorskip(package, reason=f"the package {package} is not installed; get it with: pip install {package}")

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from attnlab.lrkv import Rope, reference  # noqa: E402
from attnlab_kernels import lrkv  # noqa: E402
from attnlab_kernels.testing import interpreter  # noqa: E402
from tests.kernels.lrkv_cases import BF16, FP16, FP32, as_reference, assert_reference, drawn, tensors  # noqa: E402
from tests.lrkv.cases import OPTIONS, arguments, normal, with_option  # noqa: E402

HARDWARE = [pytest.param("cpu", marks=pytest.mark.interpreted), pytest.param("cuda", marks=pytest.mark.gpu)]
interpreted = pytest.mark.parametrize("device", HARDWARE[:1], indirect=True)
TYPES = pytest.mark.parametrize("dtype", [FP32, FP16, BF16], ids=["fp32", "fp16", "bf16"])
SHORT = {"config": "short"}  # spans of 16 keys, tiles of 16 queries; up to 4 queries are decoded


@pytest.fixture(autouse=True, params=HARDWARE)
def device(request):
    """Where tensors lie."""
    return request.param


def assert_case(option, device, dtype=FP32, **sizes):
    given, exact = drawn(option, dtype, device, **sizes)
    assert_reference(lrkv.attention(**given, return_lse=True, **SHORT), exact, dtype)


# -- numbers --


@TYPES
@pytest.mark.parametrize("T", [2, 19], ids=["decode", "prefill"])
@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_is_the_reference_in_every_type(option, T, dtype, device):
    """Keys in several spans, the last of them not full; queries in two tiles; heads that fill no block."""
    assert_case(option, device, dtype, T=T, S=37)


@pytest.mark.parametrize("T", [1, 5])
@pytest.mark.parametrize(("R", "Rv"), [(1, 2), (2, 1), (8, 54), (54, 8), (128, 3), (0, 5), (5, 0), (0, 0)])
def test_ranks_from_0_to_128(R, Rv, T, device):
    assert_case("plain", device, T=T, S=20, B=1, R=R, Rv=Rv)


@pytest.mark.parametrize("T", [1, 5])
@pytest.mark.parametrize(("H", "G"), [(1, 1), (3, 3), (40, 1), (38, 2)])
def test_heads_in_blocks_of_32_and_groups_of_any_size(H, G, T, device):
    """40 heads of one group are a block of 32 and one of 8."""
    assert_case("plain", device, B=1, T=T, S=17, H=H, G=G, K=4, V=3, R=2, Rv=3)


@pytest.mark.parametrize("T", [1, 5])
@pytest.mark.parametrize(("K", "V"), [(1, 1), (256, 3), (5, 256), (130, 70)])
def test_widths_from_1_to_256(K, V, T, device):
    assert_case("plain", device, B=1, T=T, S=17, K=K, V=V)


@pytest.mark.parametrize("T", [1, 5])
@pytest.mark.parametrize("option", ["latent_rope", "expand"])
@pytest.mark.parametrize(("planes", "layout"), [(1, "interleaved"), (3, "half"), (5, "interleaved")])
def test_planes_of_either_layout_in_the_first_coordinates(layout, planes, option, T, device):
    """With 10 coordinates the rest stays. Latents turn by 3 planes of 6 numbers, or by fewer."""
    given = with_option(option, B=1, T=T, S=17, K=10, R=6)
    given["rope"] = Rope(given["rope"].frequency[:planes], layout)
    if option == "latent_rope":  # any factor: what is compared is arithmetic, not whether the factor is made for it
        given["k_factor"] = normal(0, 11, 6, 10, 6)
        given["latent_rope"] = Rope(0.3 * np.arange(1, min(planes, 3) + 1), layout)
    given = tensors(given, FP32, device)
    assert_reference(lrkv.attention(**given, return_lse=True, **SHORT), as_reference(given), FP32)


def test_far_positions_turn_as_in_float64(device):
    """At two million, a float32 angle would be a quarter radian off."""
    given, exact = drawn("latent_rope", FP32, device, S=9)
    for arguments_ in (given, exact):
        arguments_["positions"] = arguments_["positions"] + 2e6
    assert_reference(lrkv.attention(**given, return_lse=True), exact, FP32)


@pytest.mark.parametrize("T", [3, 6])
def test_rows_of_any_edges_with_queries_that_see_nothing(T, device):
    """Empty rows, rows of one key, more queries than keys, spans before, between and after the edges; beyond: NaN."""
    given, exact = drawn("plain", FP32, device, B=6, T=T, S=40)
    edges = {"starts": [0, 7, 39, 17, 40, 0], "ends": [0, 8, 40, 31, 40, 40]}
    for name, values in edges.items():
        exact[name], given[name] = np.array(values), torch.tensor(values, device=device)
    for name in ("k_shared", "v_shared", "k_latent", "v_latent"):
        for b, (start, end) in enumerate(zip(*edges.values(), strict=True)):
            given[name][b, :start], given[name][b, end:] = torch.nan, torch.nan
    out, lse = lrkv.attention(**given, return_lse=True, **SHORT)
    assert_reference((out, lse), exact, FP32)
    assert not out[0].any()
    assert bool(lse[[0, 4]].isneginf().all())
    given |= {name: torch.tensor(values, dtype=torch.int32, device=device) for name, values in edges.items()}
    assert torch.equal(lrkv.attention(**given, **SHORT), out)
    assert_reference(lrkv.attention(**given, causal=False, return_lse=True, **SHORT), exact | {"causal": False}, FP32)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("sizes", [{"S": 0}, {"T": 0}, {"B": 0}], ids=str)
def test_empty_axes(sizes, turned, device):
    given = tensors(arguments(**sizes), FP32, device)
    if turned:
        S = given["k_shared"].shape[1]
        given |= {"rope": (np.ones(2), "half"), "latent_rope": (np.ones(1), "half"), "positions": np.arange(S)}
    out, lse = lrkv.attention(**given, causal=False, return_lse=True)
    assert out.shape == (*given["q"].shape[:3], 5)
    assert not out.any()
    assert bool(lse.isneginf().all())


@pytest.mark.parametrize("T", [1, 5])
def test_logits_that_no_exponential_holds(T, device):
    q, latent = torch.full((1, T, 1, 1), 1e3, device=device), torch.zeros(1, 40, 1, 1, device=device)
    k = torch.full((1, 40, 1, 1), -1e3, device=device)
    latent[0, [3, 30]] = 5e2
    one, v = torch.ones(1, 1, 1, device=device), torch.arange(40.0, device=device).reshape(1, 40, 1, 1)
    out, lse = lrkv.attention(q, k, v, latent, None, one, causal=False, return_lse=True, **SHORT)
    assert out.flatten().tolist() == [16.5] * T
    assert lse.flatten().tolist() == pytest.approx([-5e5 + np.log(2)] * T)


def test_spans_are_the_whole_and_depend_on_no_batch(device):
    """Cut by hand and merged by lse; and the same bits alone, in a batch, and again."""
    given = tensors(arguments(B=3, T=2, S=45), BF16, device)
    whole = lrkv.attention(**given, causal=False, return_lse=True, **SHORT)
    again = lrkv.attention(**given, causal=False, return_lse=True, **SHORT)
    assert all(torch.equal(one, other) for one, other in zip(whole, again, strict=True))
    weights = ("k_factor", "v_factor")
    for b in range(3):
        alone = {name: x if name in weights else x[b : b + 1] for name, x in given.items()}
        assert torch.equal(lrkv.attention(**alone, causal=False, **SHORT)[0], whole[0][b])
    parts = []
    for part in (slice(0, 20), slice(20, 45)):
        cut = {name: x if name in weights or name == "q" else x[:, part] for name, x in given.items()}
        parts.append(lrkv.attention(**{n: x.float() for n, x in cut.items()}, causal=False, return_lse=True))
    lse = torch.logaddexp(parts[0][1], parts[1][1])
    merged = sum(out * (part - lse).exp()[..., None] for out, part in parts)
    assert (merged - whole[0].float()).abs().max() <= 2.0**-7 * merged.abs().max()


LAYOUTS = {
    "heads first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "part of a wider one": lambda x: torch.cat([torch.full_like(x, torch.nan), x], -1)[..., x.shape[-1] :],
    "padded to 8": lambda x: torch.nn.functional.pad(x, (0, -x.shape[-1] % 8), value=torch.nan)[..., : x.shape[-1]],
    "columns apart": lambda x: x.mT.contiguous().mT,
    "every second token": lambda x: torch.stack([x, torch.full_like(x, torch.nan)], 2).flatten(1, 2)[:, ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("T", [1, 5])
def test_any_strides_give_the_same_bits(T, layout, device):
    """Keys strided beside contiguous values, and the other way round."""
    given = tensors(with_option("k_scale", B=2, T=T, S=20), FP16, device)
    plain = lrkv.attention(**given, **SHORT)
    for side in (("k_shared", "v_latent", "q"), ("v_shared", "k_latent")):
        strided = {name: layout(given[name]) for name in side}
        assert torch.equal(lrkv.attention(**given | strided, **SHORT), plain)
    factors = {name: given[name].mT.contiguous().mT for name in ("k_factor", "v_factor")}
    scale = {"k_scale": given["k_scale"].mT.contiguous().mT}
    assert torch.equal(lrkv.attention(**given | factors | scale, **SHORT), plain)


# -- what they touch --


def begin_with_nan(monkeypatch):
    """All buffers begin full of NaN."""
    stock = torch.Tensor.new_empty

    def filled(*given, **how):
        made = stock(*given, **how)
        return made.fill_(torch.nan) if made.is_floating_point() else made

    monkeypatch.setattr(torch.Tensor, "new_empty", filled)


@interpreted
@pytest.mark.parametrize("T", [2, 5])
@pytest.mark.parametrize("option", ["k_scale", "latent_rope", "expand", "ragged"])
def test_no_access_out_of_bounds_no_race_and_every_number_written(option, T, monkeypatch, device):
    given, exact = drawn(option, BF16, device, T=T, S=33, H=6, G=2)
    begin_with_nan(monkeypatch)
    with interpreter.traced() as record:
        got = lrkv.attention(**given, return_lse=True, **SHORT)
    record.check()
    assert_reference(got, exact, BF16)
    names = {launch.kernel for launch in record.launches}
    assert names == {
        *(["lrkv_prefill_kernel"] if T == 5 or option == "expand" else ["lrkv_decode_kernel", "lrkv_merge_kernel"]),
        *(["lrkv_make_kernel"] if option == "expand" or (option == "latent_rope" and T == 5) else []),
        *(["lrkv_project_kernel"] if option != "expand" else []),
    }


@interpreted
def test_a_shared_key_is_read_once_for_32_heads_and_a_latent_once(device):
    given = tensors(arguments(B=1, T=1, S=50, H=32, G=1), FP32, device)
    with interpreter.traced() as record:
        lrkv.attention(**given, **SHORT)
    (read,) = (launch.tensors for launch in record.launches if launch.kernel == "lrkv_decode_kernel")
    for argument, name in (("k", "k_shared"), ("v", "v_shared"), ("k_latent", "k_latent"), ("v_latent", "v_latent")):
        assert read[argument].requested_bytes() == given[name].numel() * 4


# -- planted faults: a test that cannot fail says nothing --


@triton.jit
def _never_empty(top):
    return top


@triton.jit
def _one_plane_on(o, P: tl.constexpr, INTERLEAVED: tl.constexpr):
    return 2 * o, 2 * o + 1


@triton.jit
def _from_the_first(starts, ends, i_b, S):
    end = tl.load(ends + i_b).to(tl.int32) if ends is not None else S
    return 0, end


@triton.jit
def _in_tf32(a, b, out):
    return tl.dot(a, b, out, input_precision="tf32")


FAULTS = {
    "empty": ("_above", _never_empty, lambda device: assert_case("ragged", device, B=6, T=3, S=16)),
    "layout": ("_plane", _one_plane_on, lambda device: assert_case("latent_rope", device)),
    "starts": ("_edges", _from_the_first, lambda device: assert_case("ragged", device)),
    "products": ("_product", _in_tf32, lambda device: assert_case("plain", device)),
    "weights": ("_weighed", _in_tf32, lambda device: assert_case("plain", device)),
}


@interpreted
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name, monkeypatch, device):
    where, fault, check = FAULTS[name]
    check(device)
    monkeypatch.setattr(lrkv, where, fault)
    with pytest.raises(AssertionError):
        check(device)


# -- what is refused --


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"q": torch.ones(2, 6, 8)}, TypeError, r"q must be a tensor \[B, T, H, K\], got \[2, 6, 8\]"),
        ({"q": torch.ones(2, 3, 6, 8).double()}, TypeError, "q must be one of float32, float16, bfloat16"),
        ({"v_shared": torch.ones(2, 11, 2, 257)}, ValueError, "v_shared must have a width of 1 to 256, got 257"),
        ({"k_shared": torch.ones(2, 11, 4, 8)}, ValueError, "k_shared must have a number of heads that divides the 6"),
        ({"k_shared": torch.ones(2, 11, 2, 8).half()}, TypeError, "k_shared must be torch.float32, got torch.float16"),
        ({"v_shared": torch.ones(2, 9, 2, 5)}, ValueError, r"v_shared must be a tensor \[2, 11, 2, 5\]"),
        ({"k_latent": None}, ValueError, "k_latent and k_factor must be given together, got one of them"),
        ({"v_latent": torch.ones(2, 11, 6, 3)}, ValueError, r"v_latent must be a tensor \[2, 11, 6, 7\], got"),
        ({"k_factor": torch.ones(6, 8, 129)}, ValueError, "k_factor must have a rank of 0 to 128, got 129"),
        ({"q_residual": torch.ones(2, 3, 6, 7)}, ValueError, r"q_residual must be a tensor \[2, 3, 6, 8\]"),
        ({"k_scale": torch.ones(2, 11)}, ValueError, r"k_scale must be a tensor \[2, 11, 6\], got \[2, 11\]"),
        ({"starts": torch.zeros(2)}, TypeError, "starts must be torch.int32 or torch.int64"),
        ({"ends": torch.tensor([3, 12])}, ValueError, r"ends must lie in \[0, 11\], got \[3, 12\]"),
        ({"rope": (np.ones(4), "spiral")}, ValueError, "rope must have a layout of 'half' or 'interleaved'"),
        ({"rope": (np.ones(4), "half")}, ValueError, "positions must be given where rope is, got None"),
        ({"rope": (np.ones(5), "half"), "positions": np.arange(11)}, ValueError, "rope must have at most 4 planes"),
        ({"rope": (np.ones(4), "half"), "positions": np.arange(9)}, ValueError, r"positions must be \[S\] or \[B, S\]"),
        ({"latent_rope": (np.ones(2), "half"), "positions": np.arange(11)}, ValueError, "latent_rope must be None"),
        ({"v_latent": torch.ones(2, 11, 6, 7).requires_grad_()}, ValueError, "v_latent requires a gradient, and these"),
        ({"scale": float("nan")}, ValueError, "scale must be a finite number, got nan"),
        ({"config": "fast"}, ValueError, "config must be one of 'default', 'short', got 'fast'"),
    ],
    ids=lambda part: "" if isinstance(part, type) else str(part)[:40],
)  # fmt: skip
@interpreted
def test_arguments_are_refused_by_name_with_what_was_wanted_and_what_came(change, error, says, device):
    with pytest.raises(error, match=says):
        lrkv.attention(**tensors(arguments(), FP32, device) | change)


@interpreted
def test_a_query_of_the_residual_needs_latents_that_it_meets(device):
    given = tensors(with_option("expand"), FP32, device)
    with pytest.raises(ValueError, match="q_residual must be None where latents meet no query, got one"):
        lrkv.attention(**given, q_residual=given["q"])


# -- torch --


@interpreted
def test_the_operation_is_registered_whole(device):
    given = tensors(with_option("k_scale", B=1, T=1, S=4), FP32, device)
    turns = lrkv.rotation(np.ones(2), np.arange(4.0))
    names = ("k_shared", "v_shared", "k_latent", "v_latent", "k_factor", "v_factor", "k_scale")
    operation = (given["q"], given["q"], *(given[name] for name in names), turns, turns[..., :1], False, True)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        torch.ops.attnlab.lrkv_attention.default, (*operation, None, None, True, 0.5, "short"), test_utils=tests
    )


def test_a_table_of_turns_is_made_in_float64(device):
    table = lrkv.rotation(np.array([1.0, 0.5]), np.array([[1e6, 3.0]]), device)
    assert (table.shape, table.dtype) == ((1, 2, 2, 2), FP32)
    exact = np.stack([np.cos([1e6, 5e5]), np.sin([1e6, 5e5])])
    np.testing.assert_allclose(table[0, 0].cpu(), exact, atol=2.0**-23)
    x = np.array([[[[1.0, 2.0, 3.0, 4.0]]]])
    turned = reference.turn(x, Rope(np.array([1.0, 0.5])), np.array([3.0]))
    assert turned[0, 0, 0, 0] == pytest.approx(float(table[0, 1, 0, 0]) - 3 * float(table[0, 1, 1, 0]), abs=1e-6)
