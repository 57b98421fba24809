"""RACE as operations of torch, on a CPU: registered whole, compiled, differentiated once, and strict about arguments.

Here their body is plain torch (attnlab_kernels/race_plain.py), which is held to the reference as well.
"""

import itertools
import math
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

for package in ("torch", "triton"):
    pytest.importorskip(package, reason=f"the package {package} is not installed; get it with: pip install {package}")

import torch  # noqa: E402

from attnlab import parity  # noqa: E402
from attnlab.race import reference  # noqa: E402
from attnlab_kernels import race, race_plain  # noqa: E402
from tests.kernels.race_cases import (  # noqa: E402
    BF16,
    FP16,
    FP32,
    FP64,
    LEAVES,
    Case,
    assert_trained,
    one_by_one,
    trained,
)

CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["noncausal", "causal"])
PACKED = (0, 0, 3, 3, 11, 11)
OPS = torch.ops.attnlab


@pytest.fixture(autouse=True)
def small_configurations(monkeypatch):
    """Chunks of four tokens; with "grouped" programs of 16 buckets, so that the forward keeps Den for the gradient."""
    grouped = {name: 16 * 16 for name in race.Config._fields if name.endswith("state")}
    monkeypatch.setitem(race.CONFIGS, "tiny", race.CONFIGS["short"]._replace(chunk=4))
    monkeypatch.setitem(race.CONFIGS, "grouped", race.CONFIGS["short"]._replace(chunk=4, **grouped))


# -- registration --

REGISTERED = [(Case(T=5, S=7, H=2, B=2), "tiny"), (Case(T=11, cu=PACKED), "tiny"), (Case(T=9, P=4, L=4), "grouped")]


@CAUSAL
@pytest.mark.parametrize(("case", "config"), REGISTERED, ids=["dense", "packed", "several groups"])
def test_the_operations_are_registered_whole(case, config, causal):
    case = case._replace(S=None if causal else case.S)
    leaves = {name: x.requires_grad_(name in LEAVES) for name, x in case.inputs().items()}
    q, k, v, planes, sharpness, mass, content = leaves.values()
    arguments = (q, k, v, planes if planes.ndim == 4 else planes[None], sharpness)
    forward = (*arguments, mass, content, case.bounds, causal, config)
    torch.library.opcheck(OPS.race_forward.default, forward)
    with torch.no_grad():
        out, den, *prefix, last_mass, last_content = OPS.race_forward(*forward)
        assert bool(den.numel()) == (config == "grouped")
        assert bool(prefix[0].numel()) == causal
        state = prefix if causal else (last_mass, last_content)
        arguments = [x.detach() for x in arguments]
        backward = (*case.sent(), *arguments, *state, out, den, case.bounds, causal, config)
        torch.library.opcheck(OPS.race_backward.default, backward)


@pytest.mark.parametrize("carried", [FP32, FP64], ids=["float32 state", "float64 state"])
def test_the_decoding_operation_is_registered_whole(carried):
    q, k, v, planes, sharpness, mass, content = Case(T=1, H=2, B=2, carried=carried).inputs().values()
    torch.library.opcheck(OPS.race_decode.default, (q, k, v, planes, sharpness, mass, content))


def compiled(function, **options):
    torch.compiler.reset()
    return torch.compile(function, backend="aot_eager", fullgraph=True, **options)


@CAUSAL
@pytest.mark.parametrize(("case", "config"), REGISTERED, ids=["dense", "packed", "several groups"])
def test_a_compiled_function_gives_the_same_numbers_and_gradients(case, config, causal):
    case = case._replace(S=None if causal else case.S)

    def attention(q, k, v, *rest, **options):
        out, mass, content = race.attention(q.tanh(), k, v, *rest, config=config, **options)
        return out * 2, mass, content

    options = {"causal": causal, "cu_seqlens": case.bounds}
    want = trained(attention, case.inputs(), case.sent(), **options)
    got = trained(compiled(attention, dynamic=causal), case.inputs(), case.sent(), **options)
    assert all(torch.equal(got[name], x) for name, x in want.items())


def test_one_compiled_function_serves_several_sizes():
    attention = compiled(lambda *arguments: race.attention(*arguments, causal=True, config="tiny")[0], dynamic=True)
    for T in (9, 13, 2):
        arguments = list(Case(T=T).inputs().values())[:5]
        assert torch.equal(attention(*arguments), race.attention(*arguments, causal=True, config="tiny")[0])


def test_a_compiled_decoding_step_updates_the_state_in_place():
    inputs = Case(T=1, B=2, H=2).inputs()
    ours, theirs = ([x.clone() for x in inputs.values()] for _ in range(2))
    step = compiled(race.decode_step)
    for _ in range(2):
        assert torch.equal(step(*ours), race.decode_step(*theirs))
    assert torch.equal(ours[-1], theirs[-1])
    assert not torch.equal(ours[-1], inputs["content"])


@pytest.mark.slow
def test_inductor_compiles_a_layer_around_it():
    """Its kernels round as they like around the operation, which stays one call. In a process of its own: inductor
    brings setuptools, which replaces parts of the standard library for whoever comes later.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        ours, theirs = process.submit(gradients_of_a_layer).result()
    np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-5)


def gradients_of_a_layer():
    """Of a layer as it stands, and as inductor compiles it."""

    def layer(x, planes):
        q, k, v = (x * scale for scale in (1.0, 0.5, 2.0))
        return race.attention(q.sin(), k.cos(), v, planes, 1.5, causal=True, config="short")[0].square().sum()

    inputs = Case(T=70, B=2, K=8, V=8).inputs()  # two chunks
    gradients = []
    for function in (layer, torch.compile(layer, fullgraph=True)):
        x = inputs["q"].clone().requires_grad_()
        function(x, inputs["planes"]).backward()
        gradients.append(x.grad.numpy())
    return gradients


# -- gradients --


@CAUSAL
@pytest.mark.parametrize("cu", [None, (0, 0, 2, 5)], ids=["dense", "packed"])
def test_gradients_are_those_of_differences(causal, cu):
    case = Case(T=5, S=None if causal or cu else 3, K=2, V=2, P=2, L=1, carried=FP64, cu=cu)
    q, k, v, planes, sharpness, *state = (x.double() for x in case.inputs().values())

    def attention(q, k, v, sharpness, mass, content):
        options = {"causal": causal, "state": (mass, content), "cu_seqlens": case.bounds, "config": "tiny"}
        return race.attention(q, k, v, planes, sharpness, **options)

    torch.manual_seed(0)  # of the directions in which it is differentiated
    torch.autograd.gradcheck(attention, [x.requires_grad_() for x in (q, k, v, sharpness, *state)], fast_mode=True)


@pytest.mark.parametrize("wanted", ["q", "k", "v", "sharpness"])
def test_a_gradient_may_be_wanted_of_one_input_and_sent_to_one_output(wanted):
    case = Case(T=9)
    inputs = case.inputs()
    every = trained(race.attention, inputs, tuple(x * (x.ndim == 4 and x.shape[1] == 9) for x in case.sent()))
    alone = {name: x.clone() for name, x in inputs.items()}
    alone[wanted].requires_grad_()
    q, k, v, planes, sharpness, mass, content = alone.values()
    out = race.attention(q, k, v, planes, sharpness, state=(mass, content))[0]
    (got,) = torch.autograd.grad(out, alone[wanted], case.sent()[0])
    assert torch.equal(got, every[f"gradient of {wanted}"])


def test_one_sharpness_for_all_heads_gets_the_sum_of_their_gradients():
    q, k, v, planes, *_ = Case(T=9, H=3).inputs().values()
    gradients = []
    for shape in ((), (1,), (3,)):
        sharpness = torch.full(shape, 1.5, requires_grad=True)
        race.attention(q, k, v, planes, sharpness)[0].square().sum().backward()
        assert sharpness.grad.shape == shape
        gradients.append(sharpness.grad.sum())
    torch.testing.assert_close(gradients[0], gradients[2])
    torch.testing.assert_close(gradients[1], gradients[2])


@CAUSAL
def test_a_second_derivative_is_refused_with_a_sentence(causal):
    q, k, v, planes, *_ = Case(T=3).inputs().values()
    q.requires_grad_()
    out = race.attention(q, k, v, planes, 1.5, causal=causal)[0]
    (gradient,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="RACE has no second derivative here"):
        gradient.sum().backward()


# -- the body in plain torch --

BODY = [
    Case(T=9, S=14, H=2, B=2),
    Case(T=9, P=6, L=1, K=13, V=7),
    Case(T=0, S=5),
    Case(T=5, S=0),
    Case(T=11, cu=PACKED, carried=FP64),
    Case(T=0, cu=(0, 0)),
    Case(T=1, K=1, V=1, P=1, L=1),
]


@CAUSAL
@pytest.mark.parametrize("case", BODY, ids=lambda case: f"{case.T} tokens, {case.P} planes, {case.sequences} sequences")
def test_results_and_gradients_are_those_of_float64(case, causal):
    case = case._replace(S=None if causal else case.S)
    options = {"causal": causal} | ({} if case.cu is None else {"cu_seqlens": case.bounds})
    got = trained(race.attention, case.inputs(), case.sent(), **options, config="tiny")
    assert_trained(got, case, **options)


@CAUSAL
@pytest.mark.parametrize(("dtype", "out_dtype"), [(FP64, None), (FP32, None), (FP16, 2.0**-10), (BF16, 2.0**-7)])
def test_the_output_is_that_of_the_reference_in_every_type(dtype, out_dtype, causal):
    """Sixteen bits are computed in float32 and rounded once, on the way out."""
    case = Case(T=9, S=None if causal else 14, H=2, B=2, dtype=dtype)
    arguments = list(case.inputs().values())[:5]
    got, mass, content = race.attention(*arguments, causal=causal, config="tiny")
    assert got.dtype == dtype
    assert mass.dtype == content.dtype == (FP64 if dtype == FP64 else FP32)
    arrays = [x.double().numpy() for x in arguments]
    exact, low = (reference.attention(*arrays, causal=causal, dtype=kind) for kind in (np.float64, np.float32))
    precision = np.float64 if dtype == FP64 else np.float32
    low = exact if dtype == FP64 else low
    seen = parity.compare(got, exact, low, terms=case.terms, dtype=precision, out_dtype=out_dtype)
    assert seen.ok, seen.reason


@pytest.mark.parametrize("carried", [FP32, FP64], ids=["float32 state", "float64 state"])
@pytest.mark.parametrize("dtype", [FP32, FP16, BF16], ids=["fp32", "fp16", "bf16"])
def test_decoding_token_by_token_is_causal_attention_and_updates_the_state_in_place(dtype, carried):
    case = Case(T=7, B=2, H=2, dtype=dtype, carried=carried)
    inputs = case.inputs()
    q, k, v, planes, sharpness, mass, content = (x.clone() for x in inputs.values())
    steps = [
        race.decode_step(*(x[:, t : t + 1] for x in (q, k, v)), planes, sharpness, mass, content) for t in range(7)
    ]
    assert steps[0].dtype == dtype
    assert mass.dtype == content.dtype == carried
    exact, low = (
        one_by_one(*inputs[:5], causal=True, state=tuple(inputs[5:]))
        for inputs in ([x.to(kind) for x in inputs.values()] for kind in (FP64, FP32))
    )
    rounding = [None if dtype == FP32 else torch.finfo(dtype).eps, None, None]
    for x, a, b, out_dtype in zip((torch.cat(steps, 1), mass, content), exact, low, rounding, strict=True):
        three = (y.double().flatten(2).numpy() for y in (x, a, b))
        seen = parity.compare(*three, terms=case.terms, out_dtype=out_dtype)
        assert seen.ok, seen.reason


def test_decoding_adds_to_a_mass_of_a_million_in_float64():
    case = Case(T=4, carried=FP64)
    inputs = case.inputs() | {"mass": torch.full((1, 1, 3, 4), 1e6, dtype=FP64)}
    q, k, v, planes, sharpness, mass, content = inputs.values()
    for t in range(4):
        race.decode_step(*(x[:, t : t + 1] for x in (q, k, v)), planes, sharpness, mass, content)
    added = reference.features(*(inputs[name].numpy() for name in ("k", "planes", "sharpness"))).sum(1)
    np.testing.assert_allclose(mass.numpy() - 1e6, added, rtol=1e-6)


def test_what_came_in_stays_as_it_was():
    inputs = Case(T=9, carried=FP64).inputs()
    before = {name: x.clone() for name, x in inputs.items()}
    q, k, v, planes, sharpness, *state = inputs.values()
    for causal in (False, True):
        out, mass, content = race.attention(q, k, v, planes, sharpness, causal=causal, state=tuple(state))
        for x in (out, mass, content):
            x.fill_(torch.nan)
    assert all(torch.equal(inputs[name], x) for name, x in before.items())


# -- chunks --

PACKS = [(0, 0), (0, 0, 0, 0), (0, 1), (0, 4), (0, 5), (0, 0, 9), (0, 9, 9), (0, 0, 3, 3, 3, 11, 11), (0, 4, 8, 8, 9)]
PACKS += [(0, *sorted(np.random.default_rng(seed).integers(0, 40, 7).tolist())) for seed in range(20)]


@pytest.mark.parametrize("chunk", [1, 4, 7])
@pytest.mark.parametrize("cu", PACKS, ids=str)
def test_packed_chunks_hold_every_token_once_in_order_and_never_two_sequences(cu, chunk):
    x = torch.empty(1, cu[-1], 1, 1)
    bounds = torch.tensor(cu)
    chunks = race._chunks(x, bounds, chunk)
    table, first = chunks.table.tolist(), chunks.bounds.tolist()
    assert len(table) == race_plain.chunk_count(x, bounds, chunk) >= first[-1]
    assert chunks.table.dtype == chunks.bounds.dtype == torch.int32
    assert chunks.table.is_contiguous()
    assert first[0] == 0
    for n, (a, b) in enumerate(itertools.pairwise(cu)):
        mine = table[first[n] : first[n + 1]]
        assert [t for _, start, stop, _ in mine for t in range(start, stop)] == list(range(a, b))
        assert all(row == 0 and owner == n and 0 < stop - start <= chunk for row, start, stop, owner in mine)
    assert not any(map(any, table[first[-1] :]))


@pytest.mark.parametrize(("B", "T"), [(0, 5), (1, 0), (3, 0), (1, 1), (2, 3), (2, 4), (3, 5), (1, 17)])
@pytest.mark.parametrize("chunk", [1, 4])
def test_chunks_of_rows_hold_every_token_once_in_order(B, T, chunk):
    chunks = race._chunks(torch.empty(B, T, 1, 1), None, chunk)
    table, first = chunks.table.tolist(), chunks.bounds.tolist()
    each = math.ceil(T / chunk)
    assert first == [n * each for n in range(B + 1)]
    assert len(table) == race_plain.chunk_count(torch.empty(B, T, 1, 1), None, chunk) == B * each
    tokens = [(row, t) for row, start, stop, _ in table for t in range(start, stop)]
    assert tokens == list(itertools.product(range(B), range(T)))
    assert all(row == owner and 0 < stop - start <= chunk for row, start, stop, owner in table)


# -- what is refused --

H, L, P, K, V = 2, 3, 2, 5, 4


def qkv(B, T, S=None):
    S = T if S is None else S
    return {"q": torch.ones(B, T, H, K), "k": torch.ones(B, S, H, K), "v": torch.ones(B, S, H, V)}


ONE = qkv(2, 1) | {"planes": torch.ones(L, P, K), "sharpness": 1.0}
MASS, CONTENT = torch.zeros(2, H, L, 4), torch.zeros(2, H, L, 4, V)
ROW = qkv(1, 6)


def wide(width):
    return {name: torch.ones(2, 1, H, width) for name in ("q", "k")} | {"planes": torch.ones(L, P, width)}


def bounds(*cu, **options):
    return ROW | {"cu_seqlens": torch.tensor(cu, **options)}


SHARED = [  # what both doors refuse
    ({"q": np.ones((2, 1, H, K))}, TypeError, r"q must be a tensor \[B, T, H, K\], got .*2, 1, 2, 5"),
    ({"q": torch.ones(1, H, K)}, TypeError, r"q must be a tensor \[B, T, H, K\], got .*1, 2, 5"),
    ({"k": None}, TypeError, r"k must be a tensor \[B, S, H, K\], got NoneType"),
    ({"q": ONE["q"].long()}, TypeError, r"q must be one of float32, float16, bfloat16, float64, got torch\.int64"),
    ({"v": ONE["v"].cfloat()}, TypeError, r"v must be one of .*, got torch\.complex64"),
    ({"k": ONE["k"].half()}, TypeError, r"k must be torch\.float32, got torch\.float16"),
    ({"v": ONE["v"].bfloat16()}, TypeError, r"v must be torch\.float32, got torch\.bfloat16"),
    (wide(257), ValueError, "q must have a width of 1 to 256, got 257"),
    (wide(0), ValueError, "q must have a width of 1 to 256, got 0"),
    ({"v": torch.ones(2, 1, H, 300)}, ValueError, "v must have a width of 1 to 256, got 300"),
    ({"k": ONE["k"][..., :4]}, ValueError, r"k must be a tensor \[2, 1, 2, 5\], got \[2, 1, 2, 4\]"),
    ({"k": ONE["k"][:1]}, ValueError, r"k must be a tensor \[2, 1, 2, 5\], got \[1, 1, 2, 5\]"),
    ({"v": ONE["v"][:, :, :1]}, ValueError, r"v must be a tensor \[2, 1, 2, 4\], got \[2, 1, 1, 4\]"),
    ({"v": torch.ones(2, 3, H, V)}, ValueError, r"v must be a tensor \[2, 1, 2, 4\], got \[2, 3, 2, 4\]"),
    ({"k": ONE["k"].to("meta")}, ValueError, "k must be where q is, on cpu, got meta"),
    ({"planes": ONE["planes"].to("meta")}, ValueError, "planes must be where q is, on cpu, got meta"),
    ({"planes": [[1.0]]}, TypeError, r"planes must be a tensor \[L, P, K\] or \[H, L, P, K\], got list"),
    ({"planes": torch.ones(P, K)}, TypeError, r"planes must be a tensor \[L, P, K\] or \[H, L, P, K\], got .*2, 5"),
    ({"planes": torch.ones(L, P, K + 1)}, ValueError, r"planes must be \[L, P, 5\] .* for this q, got \[3, 2, 6\]"),
    ({"planes": torch.ones(3, L, P, K)}, ValueError, r"planes must be .* or \[2, L, P, 5\] for .*, got \[3, 3, 2, 5\]"),
    ({"planes": torch.ones(L, P, K).int()}, TypeError, r"planes must be torch\.float32, got torch\.int32"),
    ({"planes": torch.ones(L, 7, K)}, ValueError, "planes must hold 1 to 6 planes in at least one table, got P = 7"),
    ({"planes": torch.ones(L, 0, K)}, ValueError, "planes must hold 1 to 6 planes in at least one table, got P = 0"),
    ({"planes": torch.ones(0, P, K)}, ValueError, "planes must hold .* in at least one table, got P = 2, L = 0"),
    ({"planes": torch.ones(L, P, K, requires_grad=True)}, ValueError, "planes require a gradient and have none"),
    ({"sharpness": "2"}, TypeError, r"sharpness must be a number or a tensor \[H\], got str"),
    ({"sharpness": -2.0}, ValueError, "sharpness must be positive .*, got -2"),
    ({"sharpness": torch.tensor([3.0, -1.0])}, ValueError, "sharpness must be positive .*, got -1"),
    ({"sharpness": torch.ones(3)}, ValueError, r"sharpness must be a number or \[H\] with H = 2, got \[3\]"),
]  # fmt: skip

OF_ATTENTION = [
    (qkv(2, 6, 5) | {"causal": True}, ValueError, "k must have as many tokens as q where causal: 6, got 5"),
    ({"state": (MASS, CONTENT, MASS)}, (TypeError, ValueError), "state must be .*, got"),
    ({"state": (MASS[:1], CONTENT)}, ValueError, r"state mass must be a tensor \[2, 2, 3, 4\], got \[1, 2, 3, 4\]"),
    ({"state": (MASS, CONTENT[..., :3])}, ValueError, r"state content must be a tensor \[.*, 4\], got \[.*, 3\]"),
    ({"state": (MASS.half(), CONTENT)}, TypeError, r"state mass must be torch\.float32 or .*, got torch\.float16"),
    ({"state": (MASS, CONTENT.to("meta"))}, ValueError, "state content must be where q is, on cpu, got meta"),
    ({"config": "fastest"}, ValueError, "config must be one of .*'short'.*, got 'fastest'"),
    ({"cu_seqlens": torch.tensor([0, 1])}, ValueError, r"must be one row .* with cu_seqlens, got \[2, 1, 2, 5\]"),
    (ROW | {"cu_seqlens": [0, 6]}, TypeError, r"cu_seqlens must be .*\[N \+ 1\] of integers, got list"),
    (bounds(0.0, 6.0), TypeError, r"cu_seqlens must be .*\[N \+ 1\] of integers, got .*float32"),
    (bounds([0, 6]), TypeError, r"cu_seqlens must be .*\[N \+ 1\] of integers, got .*1, 2"),
    (bounds(0), ValueError, "cu_seqlens must have at least two entries, got 1"),
    (bounds(1, 6), ValueError, r"cu_seqlens must rise from 0 to T = 6, got \[1, 6\]"),
    (bounds(0, 7), ValueError, r"cu_seqlens must rise from 0 to T = 6, got \[0, 7\]"),
    (bounds(0, 5, dtype=torch.int32), ValueError, r"cu_seqlens must rise from 0 to T = 6, got \[0, 5\]"),
    (bounds(0, 4, 3, 6), ValueError, r"cu_seqlens must rise from 0 to T = 6, got \[0, 4, 3, 6\]"),
    (qkv(1, 6, 5) | {"cu_seqlens": torch.tensor([0, 6])}, ValueError, "q and k must be one row of equally many tokens"),
    (bounds(0, 2, 6) | {"state": (MASS[:1], CONTENT[:1])}, ValueError, r"state mass must be .*\[2, .*got \[1, "),
]  # fmt: skip


def by_sentence(value):
    return value if isinstance(value, str) else ""


@pytest.mark.parametrize(("change", "error", "says"), SHARED + OF_ATTENTION, ids=by_sentence)
def test_attention_refuses_by_name_with_what_was_wanted_and_what_came(change, error, says):
    race.attention(**ONE)
    with pytest.raises(error, match=says):
        race.attention(**ONE | change)


STATE = {"mass": MASS, "content": CONTENT}
OF_DECODING = [
    (qkv(2, 6, 1), ValueError, "q and k must hold one token each, got 6 and 1"),
    (qkv(2, 1, 6), ValueError, "q and k must hold one token each, got 1 and 6"),
    ({"mass": MASS[:1]}, ValueError, r"mass must be a tensor \[2, 2, 3, 4\], got \[1, 2, 3, 4\]"),
    ({"content": CONTENT.half()}, TypeError, r"content must be torch\.float32 or torch\.float64, got torch\.float16"),
    ({"content": CONTENT.to("meta")}, ValueError, "content must be where q is, on cpu, got meta"),
    ({"mass": torch.zeros(2, H, 4, L).mT}, ValueError, r"mass must be contiguous, .* got strides \(24, 12, 1, 3\)"),
    ({"content": CONTENT[:1].expand(2, -1, -1, -1, -1)}, ValueError, r"content must be contiguous, .* strides \(0, "),
    *(({name: x.clone().requires_grad_()}, ValueError, f"^{name} requires a gradient, and a decode step has none")
      for name, x in (ONE | STATE | {"sharpness": torch.ones(())}).items() if name != "planes"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "error", "says"), SHARED + OF_DECODING, ids=by_sentence)
def test_decoding_refuses_by_name_with_what_was_wanted_and_what_came(change, error, says):
    state = {name: x.clone() for name, x in STATE.items()}
    race.decode_step(**ONE, **state)
    with pytest.raises(error, match=says):
        race.decode_step(**ONE | state | change)


def test_decoding_without_a_tape_takes_parameters():
    """A model's weights want gradients, also while it generates."""
    q = ONE["q"].clone().requires_grad_()
    with torch.no_grad():
        out = race.decode_step(**ONE | {"q": q}, mass=MASS.clone(), content=CONTENT.clone())
    torch.testing.assert_close(out, ONE["v"])
