"""RACE's kernels compute the reference's operator and its gradients, touch what is theirs, and give the same bits every
time. The cases run interpreted, and on a GPU where there is one; what looks into the interpreter runs only there.
"""

import contextlib
import functools
import itertools
import mmap
from unittest import mock

import numpy as np
import pytest

for package in ("torch", "triton"):
    pytest.importorskip(package, reason=f"the package {package} is not installed; get it with: pip install {package}")

import torch  # noqa: E402

from attnlab import parity  # noqa: E402
from attnlab.race import reference  # noqa: E402
from attnlab_kernels import race  # noqa: E402
from attnlab_kernels.launch import recorded  # noqa: E402
from attnlab_kernels.testing import interpreter  # noqa: E402
from tests.kernels.race_cases import (  # noqa: E402
    BF16,
    FP16,
    FP32,
    FP64,
    GRIDS,
    Case,
    assert_right,
    assert_trained,
    farthest,
    one_by_one,
    rounded_features,
    trained,
)

TYPES = pytest.mark.parametrize("dtype", [FP32, FP16, BF16], ids=["fp32", "fp16", "bf16"])
CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["noncausal", "causal"])
HARDWARE = [pytest.param("cpu", marks=pytest.mark.interpreted), pytest.param("cuda", marks=pytest.mark.gpu)]
interpreted = pytest.mark.parametrize("device", HARDWARE[:1], indirect=True)

# P, L, K, V: one bucket pair, tables that fill a power of two or do not, widths that do or do not
SIZES = [(1, 1, 5, 3), (2, 2, 24, 8), (3, 5, 20, 12), (4, 4, 8, 24), (6, 1, 13, 17)]


@pytest.fixture(autouse=True, params=HARDWARE)
def device(request):
    """Where tensors lie."""
    return request.param


@pytest.fixture(autouse=True)
def small_configurations(monkeypatch):
    """Configurations that cut small operations: "tiny" into chunks of two tiles and rows into slices of 16 columns,
    "grouped" also into programs of 16 buckets, so that several tables, and several parts of a large one, need several
    launches. Whatever other limits a configuration has.
    """
    tiny = {name: 16 for name in race.Config._fields if name.endswith("columns")} | {"chunk": 32}
    grouped = {name: 16 * 16 for name in race.Config._fields if name.endswith("state")}
    monkeypatch.setitem(race.CONFIGS, "tiny", race.CONFIGS["short"]._replace(**tiny))
    monkeypatch.setitem(race.CONFIGS, "grouped", race.CONFIGS["short"]._replace(**tiny, **grouped))


def on(device, tensors):
    """The same tensors on this device, in the same container."""
    if isinstance(tensors, dict):
        return {name: on(device, x) for name, x in tensors.items()}
    return tensors.to(device) if isinstance(tensors, torch.Tensor) else tuple(on(device, x) for x in tensors)


def by_kernels(case, device, *, causal, config="tiny", attention=race.attention, inputs=None):
    """Results and gradients of a case, by kernels on `device`, back on the CPU."""
    options = {"causal": causal, "config": config}
    if case.cu is not None:
        options["cu_seqlens"] = case.bounds.to(device)
    return on("cpu", trained(attention, on(device, inputs or case.inputs()), on(device, case.sent()), **options))


def options_of(case, causal):
    """What the oracle is told beside tensors."""
    return {"causal": causal} if case.cu is None else {"causal": causal, "cu_seqlens": case.bounds}


def assert_same_bits(one, other, names=None):
    for name in names or one:
        assert torch.equal(one[name], other[name]), name


# -- the operator --


@TYPES
@CAUSAL
@pytest.mark.parametrize(("P", "L", "K", "V"), SIZES)
def test_output_and_state_are_those_of_the_reference(dtype, causal, P, L, K, V, device):
    """Each head with planes and a sharpness of its own; more keys than queries where not causal."""
    case = Case(T=35, S=None if causal else 37, K=K, V=V, P=P, L=L, H=2, dtype=dtype)
    arguments = [x for name, x in case.inputs().items() if name not in ("mass", "content")]
    got = race.attention(*on(device, arguments), causal=causal, config="tiny")
    assert [x.dtype for x in got] == [dtype, FP32, FP32]
    assert_of_reference(got, arguments, causal, case)


def assert_of_reference(got, arguments, causal, case):
    """Hold output, mass and content against the reference in float64, with the error of the reference in float32, or of
    rounded features where the kernels round them.
    """
    names, (exact, low) = ("out", "mass", "content"), references(arguments, causal)
    if case.dtype != FP32:
        runs = []
        for grid in GRIDS:
            with rounded_features(case.dtype, grid):
                runs.append(one_by_one(*(x.double() for x in arguments), causal=causal))
        low = [farthest(x, list(others)) for x, *others in zip(exact, *runs, strict=True)]
    assert_right(*(dict(zip(names, results, strict=True)) for results in (on("cpu", got), exact, low)), case)


def references(arguments, causal):
    """What the reference says in float64 and in float32: output, mass and content."""
    arrays = [x.double().numpy() for x in arguments]
    both = []
    for kind in (np.float64, np.float32):
        out, (mass, content, log_scale) = reference.attention(*arrays, causal=causal, return_state=True, dtype=kind)
        bucket = np.exp(log_scale)
        both.append([torch.from_numpy(x) for x in (out, bucket * mass, bucket[..., None] * content)])
    return both


@pytest.mark.parametrize("config", list(race.CONFIGS))
@CAUSAL
@pytest.mark.parametrize(("tiles", "more"), [(0, 0), (0, 1), (1, -1), (1, 0), (1, 1), (3, 5)])
def test_any_number_of_tokens_in_every_configuration(config, causal, tiles, more, device):
    dtype = next((dtype for dtype in (FP16, BF16) if race.default_config(dtype) == config), FP32)
    case = Case(T=tiles * race.CONFIGS[config].tile + more, dtype=dtype)
    arguments = [x for name, x in case.inputs().items() if name not in ("mass", "content")]
    got = race.attention(*on(device, arguments), causal=causal, config=config)
    assert_of_reference(got, arguments, causal, case)


@TYPES
@CAUSAL
@pytest.mark.parametrize(("P", "L", "K", "V"), SIZES)
def test_results_and_gradients_are_those_of_float64(dtype, causal, P, L, K, V, device):
    """Two chunks of queries, two tiles in the first; a state goes in, and gradients of it come back."""
    case = Case(T=37, S=None if causal else 45, K=K, V=V, P=P, L=L, dtype=dtype)
    assert_trained(by_kernels(case, device, causal=causal), case, causal=causal)


@CAUSAL
@pytest.mark.parametrize(
    ("dtype", "P", "L"),
    [(FP32, 4, 3), (FP32, 3, 3), (FP32, 6, 1), (FP16, 4, 2), (BF16, 3, 3), (BF16, 5, 1)],
    ids=str,
)
def test_buckets_in_several_groups_give_the_same_results_and_gradients(dtype, causal, P, L, device):
    """A table each, a table too many, and parts of one."""
    case = Case(T=37, V=20, P=P, L=L, dtype=dtype, carried=FP64)
    with recorded() as launches:
        by_kernels(case, device, causal=causal, config="grouped")
    started = [x.kernel for x in launches]
    for kernel in (race.sweep_kernel if causal else race.read_kernel, race.read_grad_kernel, race.write_grad_kernel):
        assert started.count(kernel) > 1
    assert_trained(by_kernels(case, device, causal=causal, config="grouped"), case, causal=causal)


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
@CAUSAL
def test_projections_in_several_groups_give_the_same_results_and_gradients(dtype, causal, device):
    """Of 40 tables with one plane each, a program projects to 32."""
    case = Case(T=5, P=1, L=40, dtype=dtype)
    with recorded() as launches:
        by_kernels(case, device, causal=causal)
    assert [x.kernel for x in launches].count(race.unproject_kernel) > 2
    assert_trained(by_kernels(case, device, causal=causal), case, causal=causal)


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
@CAUSAL
@pytest.mark.parametrize(("P", "L", "K", "V"), [(6, 1, 256, 256), (2, 1, 130, 200), (1, 1, 1, 1)])
def test_widths_from_1_to_256(dtype, causal, P, L, K, V, device):
    case = Case(T=5, P=P, L=L, K=K, V=V, dtype=dtype)
    assert_trained(by_kernels(case, device, causal=causal, config="short"), case, causal=causal)


@CAUSAL
def test_several_rows_and_heads_each_get_their_own_gradients(causal, device):
    """One plane of sharpness is shared by all rows, and its gradient is the sum of theirs."""
    case = Case(T=19, B=2, H=2)
    assert_trained(by_kernels(case, device, causal=causal), case, causal=causal)


# -- properties of the operator --


@pytest.mark.parametrize(("dtype", "config"), [(FP32, "tiny"), (FP16, "tiny"), (BF16, "tiny"), (BF16, "grouped")])
@CAUSAL
def test_a_constant_value_comes_back_at_the_sharpest(dtype, causal, config, device):
    """Every output is a convex combination of values to the rounding of float32, whatever features were rounded to:
    mass and content are sums of the same ones. 2 beta P is 80, the limit.
    """
    case = Case(T=37, P=4, L=2, dtype=dtype)
    q, _, v, planes = [x for name, x in case.inputs().items() if name in ("q", "k", "v", "planes")]
    constant = torch.full_like(v, 3.25)
    for sharpness, keys in ((1.5, 3 * q), (10.0, 30 * q), (10.0, -30 * q)):  # keys across from the queries too
        arguments = on(device, (30 * q, keys, constant, planes))
        out, mass, content = race.attention(*arguments, sharpness, causal=causal, config=config)
        torch.testing.assert_close(out, arguments[2], rtol=2e-6 if dtype == FP32 else 0, atol=0)
        torch.testing.assert_close(content, 3.25 * mass[..., None].expand_as(content), rtol=2e-6, atol=0)


@TYPES
def test_the_first_token_reads_itself_at_the_sharpest(dtype, device):
    case = Case(T=3, P=4, L=2, dtype=dtype)
    q, _, v, planes = on(device, [x for name, x in case.inputs().items() if name in ("q", "k", "v", "planes")])
    for k in (30 * q, -30 * q):
        out = race.attention(30 * q, k, v, planes, 10.0, causal=True)[0]
        torch.testing.assert_close(out[:, 0], v[:, 0], rtol=2e-6 if dtype == FP32 else 0, atol=0)


@TYPES
@CAUSAL
def test_gradients_at_the_sharpest(dtype, causal, device):
    case = Case(T=20, P=4, L=2, dtype=dtype)
    inputs = case.inputs() | {"sharpness": torch.tensor([10.0])}
    assert_trained(by_kernels(case, device, causal=causal, inputs=inputs), case, inputs, causal=causal)


@CAUSAL
def test_a_query_that_meets_no_mass_reads_zero_and_sends_zero(causal, device):
    case = Case(T=20, S=None if causal else 0)
    inputs = case.inputs()
    inputs |= {name: torch.zeros_like(inputs[name]) for name in ("mass", "content")}
    got = by_kernels(case, device, causal=causal, inputs=inputs)
    assert all(x.isfinite().all() for x in got.values())
    assert_trained(got, case, inputs, causal=causal)
    if not causal:
        assert not any(got[name].any() for name in ("out", "gradient of q"))


# -- states, segments, sequences --


@pytest.mark.parametrize("carried", [FP32, FP64], ids=["float32 state", "float64 state"])
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
def test_segments_that_carry_the_state_are_the_whole_and_so_are_their_gradients(dtype, carried, device):
    def segmented(q, k, v, planes, sharpness, *, state, **options):
        outs = []
        for a, b in itertools.pairwise((0, 7, 7, 40, 53)):
            parts = (x[:, a:b] for x in (q, k, v))
            out, *state = race.attention(*parts, planes, sharpness, state=tuple(state), **options)
            outs.append(out)
        return torch.cat(outs, 1), *state

    case = Case(T=53, dtype=dtype, carried=carried)
    assert_trained(by_kernels(case, device, causal=True, attention=segmented), case, causal=True)


@CAUSAL
def test_a_mass_of_a_million_keeps_what_each_token_adds_in_float64(causal, device):
    """A float32 mass near a million moves in steps of 1/16."""
    case = Case(T=33, carried=FP64)
    inputs = case.inputs() | {"mass": torch.full((1, 1, 3, 4), 1e6, dtype=FP64)}
    q, k, v, planes, sharpness, *state = on(device, inputs).values()
    for a, b in itertools.pairwise((0, 1, 2, 33)):
        parts = (x[:, a:b] for x in (q, k, v))
        _, *state = race.attention(*parts, planes, sharpness, causal=causal, state=tuple(state), config="tiny")
    added = reference.features(*(inputs[name].numpy() for name in ("k", "planes", "sharpness"))).sum(1)
    np.testing.assert_allclose(state[0].cpu().numpy() - 1e6, added, rtol=1e-6)


@pytest.mark.parametrize(("dtype", "config"), [(FP32, "tiny"), (BF16, "tiny"), (FP32, "grouped")])
@CAUSAL
def test_a_sequence_has_the_same_bits_in_a_batch_and_alone(dtype, config, causal, device):
    """Even after a neighbour that holds nothing but NaN."""
    case = Case(T=37, P=4, L=2, dtype=dtype)
    ours, sent = case.inputs(), case.sent()
    alone = by_kernels(case, device, causal=causal, config=config)
    batch = {name: after_nan(x) if name in ("q", "k", "v", "mass", "content") else x for name, x in ours.items()}
    with mock.patch.object(Case, "sent", return_value=tuple(map(after_nan, sent))):
        got = by_kernels(case._replace(B=2), device, causal=causal, config=config, inputs=batch)
    del got["gradient of sharpness"]  # the sum of both rows
    assert_same_bits({name: x[1:] for name, x in got.items()}, alone, got)


def after_nan(x):
    """x in the second row of two."""
    return torch.cat([torch.full_like(x, torch.nan), x])


LENGTHS = (0, 5, 0, 0, 33, 0)


@pytest.mark.parametrize(("dtype", "config"), [(FP32, "tiny"), (FP16, "tiny"), (BF16, "grouped")])
@CAUSAL
def test_packed_sequences_have_the_same_bits_as_one_by_one(dtype, config, causal, device):
    """Empty ones too: their state goes through unchanged, and so does its gradient."""
    cu = (0, *itertools.accumulate(LENGTHS))
    case = Case(T=cu[-1], P=4, L=2, dtype=dtype, carried=FP64, cu=cu)
    packed, inputs, sent = by_kernels(case, device, causal=causal, config=config), case.inputs(), case.sent()
    of_sharpness = torch.zeros(1, dtype=FP64)
    for n, (a, b) in enumerate(itertools.pairwise(cu)):
        cut = {name: x[:, a:b] for name, x in inputs.items() if name in ("q", "k", "v")}
        cut |= {name: inputs[name][n : n + 1] for name in ("mass", "content")}
        sent_here = (sent[0][:, a:b], *(x[n : n + 1] for x in sent[1:]))
        with mock.patch.object(Case, "sent", return_value=sent_here):
            alone = by_kernels(
                case._replace(T=b - a, cu=None), device, causal=causal, config=config, inputs=inputs | cut
            )
        of_sharpness += alone.pop("gradient of sharpness")
        for name, x in alone.items():
            by_token = name in ("out", *(f"gradient of {token}" for token in ("q", "k", "v")))
            assert torch.equal(x, packed[name][:, a:b] if by_token else packed[name][n : n + 1]), (name, n)
        if a == b:
            carried = {"last mass": inputs["mass"], "gradient of mass": sent[1], "gradient of content": sent[2]}
            assert all(torch.equal(packed[name][n], x[n]) for name, x in carried.items())
    torch.testing.assert_close(packed["gradient of sharpness"].double(), of_sharpness, rtol=1e-6, atol=1e-6)


@CAUSAL
def test_nothing_but_empty_sequences(causal, device):
    case = Case(T=0, cu=(0, 0, 0))
    got, inputs, sent = by_kernels(case, device, causal=causal), case.inputs(), case.sent()
    assert got["out"].shape == (1, 0, 1, 12)
    assert torch.equal(got["last content"], inputs["content"])
    assert torch.equal(got["gradient of mass"], sent[1])
    assert not got["gradient of sharpness"].any()


@CAUSAL
def test_packed_sequences_are_those_of_the_oracle(causal, device):
    case = Case(T=54, cu=(0, 20, 20, 54))
    options = options_of(case, causal)
    assert_trained(by_kernels(case, device, causal=causal), case, **options)


# -- layouts --

LAYOUTS = {
    "heads first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "tokens first": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "part of a wider one": lambda x: torch.cat([torch.full_like(x, torch.nan), x, x], 3)[..., x.shape[3] : -x.shape[3]],
    "rows not side by side": lambda x: x.mT.contiguous().mT,
    "every second token": lambda x: x.repeat_interleave(2, 1)[:, ::2],
}


@functools.cache
def laid_out_plainly(case, causal, device):
    """What contiguous tensors give."""
    return by_kernels(case, device, causal=causal)


@CAUSAL
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_any_strides_give_the_bits_of_contiguous_tensors(layout, causal, device):
    case = Case(T=9, B=2, H=2)
    ours, sent = case.inputs(), case.sent()
    strided = ours | {name: layout(ours[name]) for name in ("q", "k", "v")}
    assert not any(strided[name].is_contiguous() for name in ("q", "k", "v"))
    plain = laid_out_plainly(case, causal, device)
    laid_out = layout(sent[0]), *(x.mT.contiguous().mT for x in sent[1:])
    with mock.patch.object(Case, "sent", return_value=laid_out):
        assert_same_bits(by_kernels(case, device, causal=causal, inputs=strided), plain)


@pytest.mark.parametrize("expanded", ["rows", "heads", "tokens"])
@CAUSAL
def test_expanded_inputs_and_gradients_give_the_bits_of_contiguous_ones(expanded, causal, device):
    """`out.sum().backward()` sends a gradient without any strides."""
    at = ("rows", "tokens", "heads").index(expanded)
    case = Case(T=9, B=2, H=2)
    ours = case.inputs()
    views = {name: ours[name].narrow(at, 0, 1).expand(ours[name].shape) for name in ("q", "k", "v")}

    def gradients(inputs):
        leaves = {name: x.detach().to(device).requires_grad_() for name, x in inputs.items() if name != "planes"}
        q, k, v, sharpness, mass, content = leaves.values()
        planes = inputs["planes"].to(device)
        out, mass, content = race.attention(
            q, k, v, planes, sharpness, causal=causal, state=(mass, content), config="tiny"
        )
        return torch.autograd.grad(out.sum() + mass.sum() + content.sum(), list(leaves.values()))

    for got, want in zip(
        gradients(ours | views), gradients(ours | {name: x.contiguous() for name, x in views.items()}), strict=True
    ):
        assert torch.equal(got, want)


@CAUSAL
def test_queries_keys_and_values_may_share_one_buffer(causal, device):
    """As a layer's one projection leaves them: [B, T, 3, H, K]."""
    case = Case(T=9, K=12, V=12, B=2, H=2)
    ours = on(device, case.inputs())
    alone = [ours[name] for name in ("q", "k", "v")]
    outs = [
        race.attention(*qkv, ours["planes"], ours["sharpness"], causal=causal, config="tiny")[0]
        for qkv in (alone, torch.stack(alone, 2).unbind(2))
    ]
    assert torch.equal(*outs)


def far(count):
    """`count` float16 numbers behind 2^31 others, in memory that is only reserved: an offset that wraps around at 32
    bits lands in those, and reads 0 there.
    """
    no_reserve = getattr(mmap, "MAP_NORESERVE", 0x4000)
    memory = mmap.mmap(-1, 2 * (2**31 + count), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve)
    return torch.frombuffer(memory, dtype=FP16)[2**31 :]


FAR = {  # sizes and strides by which the last number of a row, a token, a head is 2^31 numbers away from the first
    "rows": (Case(T=5, B=3, K=8, V=8), (2**30, 8, 8, 1)),
    "chunks": (Case(T=70, K=8, V=8), (0, 2**25, 8, 1)),
    "tokens of a chunk": (Case(T=20, K=8, V=8), (0, 2**27, 8, 1)),
    "heads": (Case(T=5, H=3, K=8, V=8), (0, 8, 2**30, 1)),
}


@interpreted
@CAUSAL
@pytest.mark.parametrize(("case", "strides"), FAR.values(), ids=FAR)
def test_inputs_and_gradients_may_lie_further_apart_than_32_bits_count(case, strides, causal, device):
    case = case._replace(dtype=FP16)
    inputs, sent = case.inputs(), case.sent()
    reach = sum((size - 1) * stride for size, stride in zip(inputs["q"].shape, strides, strict=True))
    assert 2**31 <= reach < 2**32 - 8

    def apart(x):
        return far(reach + 8).as_strided(x.shape, strides).copy_(x)

    strided = inputs | {name: apart(inputs[name]) for name in ("q", "k", "v")}
    with mock.patch.object(Case, "sent", return_value=(apart(sent[0]), *sent[1:])):
        got = by_kernels(case, device, causal=causal, inputs=strided)
    assert_same_bits(got, by_kernels(case, device, causal=causal))


@interpreted
@pytest.mark.parametrize("decodes", [False, True])
def test_heads_of_which_a_chunk_would_overflow_32_bits_are_refused(decodes):
    x = torch.zeros(1, 1, 1, 1).expand(1, 1, 2**20, 1)
    given = x, x, x, torch.zeros(1, 1, 1), 1.0
    with pytest.raises(ValueError, match=r"q must have fewer heads: .* stay under 1048576, got 1048576"):
        race.decode_step(*given, x, x) if decodes else race.attention(*given)


@interpreted
@CAUSAL
def test_outputs_and_gradients_may_hold_more_numbers_than_32_bits_count(causal, device, monkeypatch):
    """The last 40 of 2^24 tokens and a few: the other chunks are left out, and nothing but these tokens is written."""
    last, width = 40, 128
    T = 2**31 // width + last
    case = Case(T=last, K=width, V=width, P=1, L=1, dtype=FP16)
    inputs, sent = case.inputs(), case.sent()
    new_empty = torch.Tensor.new_empty

    def room(self, size, **options):
        if options.get("dtype") == FP16 and np.prod(size) > 2**31:
            return far(int(np.prod(size))).view(size)
        return new_empty(self, size, **options)

    def run(inputs, d_out):
        q, k, v, planes, sharpness, *state = inputs.values()
        arguments = (q, k, v, planes[None], sharpness)
        out, den, *prefix, mass, content = race.forward(*arguments, *state, None, causal, "tiny")
        state = prefix if causal else (mass, content)
        gradients = race.backward(d_out, *sent[1:], *arguments, *state, out, den, None, causal, "tiny")
        return [x[:, -last:] for x in (out, *gradients[:3])] + [mass, content, *gradients[3:]]

    def at_the_end(x):
        whole = far(T * width).view(1, T, 1, width)
        whole[:, -last:] = x
        return whole

    want = run(inputs, sent[0])
    chunks = race._Chunks(torch.tensor([[0, T - last, T, 0]], dtype=torch.int32), torch.tensor([0, 1]).int())
    monkeypatch.setattr(race, "_chunks", lambda *arguments: chunks)
    monkeypatch.setattr(torch.Tensor, "new_empty", room)
    got = run(inputs | {name: at_the_end(inputs[name]) for name in ("q", "k", "v")}, at_the_end(sent[0]))
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))


# -- bits and memory --


@interpreted
@pytest.mark.parametrize(
    ("causal", "config", "cu"),
    [(False, "tiny", None), (True, "tiny", None), (False, "grouped", None), (True, "grouped", None),
     (False, "tiny", (0, 0, 3, 3, 37, 37)), (True, "tiny", (0, 0, 3, 3, 37, 37))],
)  # fmt: skip
def test_the_bits_do_not_depend_on_what_was_in_memory_before(causal, config, cu, device):
    """All that is read was written first, and all of each result is written."""
    case = Case(T=37, P=4, L=2, cu=cu)
    runs = []
    for rubbish in (torch.nan, 7.0):
        with memory_full_of(rubbish) as filled:
            runs.append(by_kernels(case, device, causal=causal, config=config))
        assert len(filled) > 8
    for name, x in runs[0].items():
        assert x.isfinite().all(), name
        assert torch.equal(x, runs[1][name]), name


@contextlib.contextmanager
def memory_full_of(number):
    """New float tensors without content hold `number` in here; yields the list of them."""
    filled = []

    def full_of_it(empty):
        def fill(*arguments, **options):
            x = empty(*arguments, **options)
            if x.is_floating_point():
                x.fill_(number)
                filled.append(x)
            return x

        return fill

    with contextlib.ExitStack() as stack:
        for owner, name in ((torch.Tensor, "new_empty"), (torch, "empty_like"), (torch, "empty")):
            stack.enter_context(mock.patch.object(owner, name, full_of_it(getattr(owner, name))))
        yield filled


FORWARD = {
    False: {"write_kernel", "scan_kernel", "read_kernel"},
    True: {"write_kernel", "scan_kernel", "project_kernel", "sweep_kernel"},
}
BACKWARD = {
    False: {"project_kernel", "read_grad_kernel", "scan_kernel", "write_grad_kernel", "unproject_kernel"},
    True: {"project_kernel", "read_grad_kernel", "sum_grad_kernel", "scan_kernel", "write_grad_kernel",
           "unproject_kernel"},
}  # fmt: skip


@interpreted
@CAUSAL
@pytest.mark.parametrize(
    ("case", "config"),
    [
        (Case(T=37, K=5, V=3, P=1, L=1, H=2, dtype=BF16), "tiny"),
        (Case(T=37, K=13, V=17, P=3, L=3), "grouped"),
        (Case(T=21, K=13, V=17, P=6, L=1, dtype=FP16), "grouped"),
        (Case(T=37, cu=(0, 0, 3, 3, 37, 37), P=3, L=5), "tiny"),
        (Case(T=3, K=250, V=200, P=2, L=1, B=2), "short"),
    ],
    ids=["narrow", "several groups", "parts of a table", "packed", "wide"],
)
def test_no_access_is_out_of_bounds_and_no_two_programs_meet(case, config, causal, device):
    """And it is these kernels that compute."""
    with interpreter.traced() as record:
        by_kernels(case, device, causal=causal, config=config)
    record.check()
    ran = [launch.kernel for launch in record.launches]
    assert set(ran) - {"delta_kernel"} == FORWARD[causal] | BACKWARD[causal]
    assert min(launch.requested_bytes() for launch in record.launches) > 0


@interpreted
@CAUSAL
def test_without_a_gradient_only_the_forward_kernels_run(causal, device):
    with interpreter.traced() as record:
        race.attention(*list(Case(T=5).inputs().values())[:5], causal=causal)
    assert {launch.kernel for launch in record.launches} == FORWARD[causal]


# -- one token at a time --


@pytest.mark.parametrize(
    ("dtype", "carried", "P", "L", "K", "V"),
    [
        (FP32, FP32, 1, 1, 1, 1),
        (FP32, FP64, 6, 1, 24, 8),
        *itertools.product((FP32, FP16, BF16), (FP32, FP64), [3], [3], [13], [17]),
    ],
    ids=str,
)
def test_decoding_token_by_token_is_causal_attention(dtype, carried, P, L, K, V, device):
    """Features are not rounded here: the output is that of float32, whatever type comes in."""
    case = Case(T=5, B=2, H=2, P=P, L=L, K=K, V=V, dtype=dtype, carried=carried)
    inputs = case.inputs()
    q, k, v, planes, sharpness, mass, content = (x.clone() for x in on(device, inputs).values())
    places = mass.data_ptr(), content.data_ptr()
    steps = [
        race.decode_step(*(x[:, t : t + 1] for x in (q, k, v)), planes, sharpness, mass, content) for t in range(5)
    ]
    assert (mass.data_ptr(), content.data_ptr()) == places
    assert mass.dtype == content.dtype == carried
    got = dict(zip(("out", "mass", "content"), on("cpu", (torch.cat(steps, 1), mass, content)), strict=True))
    assert got["out"].dtype == dtype
    exact, low = (decoded(inputs, kind) for kind in (FP64, FP32))
    for name, x in got.items():
        out_dtype = torch.finfo(dtype).eps if name == "out" and dtype != FP32 else None
        three = [y.double().flatten(2).numpy() for y in (x, exact[name], low[name])]
        seen = parity.compare(*three, terms=case.terms, out_dtype=out_dtype)
        assert seen.ok, f"{name}: {seen.reason}"


def decoded(inputs, kind):
    q, k, v, planes, sharpness, *state = (x.to(kind) for x in inputs.values())
    results = one_by_one(q, k, v, planes, sharpness, causal=True, state=tuple(state))
    return dict(zip(("out", "mass", "content"), results, strict=True))


def test_decoding_adds_to_a_mass_of_a_million_in_its_type(device):
    case = Case(T=4, carried=FP64)
    inputs = case.inputs() | {"mass": torch.full((1, 1, 3, 4), 1e6, dtype=FP64)}
    q, k, v, planes, sharpness, mass, content = on(device, inputs).values()
    for t in range(4):
        race.decode_step(*(x[:, t : t + 1] for x in (q, k, v)), planes, sharpness, mass, content)
    added = reference.features(*(inputs[name].numpy() for name in ("k", "planes", "sharpness"))).sum(1)
    np.testing.assert_allclose(mass.cpu().numpy() - 1e6, added, rtol=1e-6)


@interpreted
def test_decoding_touches_what_is_its_own_and_fills_the_output(device):
    case = Case(T=1, B=2, H=2, P=3, L=3, K=13, V=17)
    arguments = case.inputs().values()
    with interpreter.traced() as record, memory_full_of(torch.nan):
        out = race.decode_step(*arguments)
    record.check()
    assert [launch.kernel for launch in record.launches] == ["decode_kernel"]
    assert out.isfinite().all()


@interpreted
def test_decoding_reads_one_token_of_a_long_cache(device):
    """Heads of a cache of 2^27 tokens are 2^30 numbers apart."""
    case = Case(T=1, H=3, K=8, V=8, dtype=FP16)
    inputs = case.inputs()
    strided = {name: far(2**31 + 8).as_strided(x.shape, (0, 8, 2**30, 1)).copy_(x) for name, x in inputs.items()
               if name in ("q", "k", "v")}  # fmt: skip
    states = [[inputs[name].clone() for name in ("mass", "content")] for _ in range(2)]
    outs = [
        race.decode_step(*(tensors[name] for name in ("q", "k", "v", "planes", "sharpness")), *state)
        for tensors, state in zip((inputs, inputs | strided), states, strict=True)
    ]
    assert torch.equal(*outs)
    assert all(torch.equal(*pair) for pair in zip(*states, strict=True))


@pytest.mark.parametrize("layout", ["heads first", "rows not side by side", "part of a wider one"])
def test_decoding_takes_any_strides(layout, device):
    case = Case(T=1, B=2, H=2)
    outs = []
    for change in (torch.clone, LAYOUTS[layout]):
        inputs = case.inputs()
        inputs |= {name: change(inputs[name]) for name in ("q", "k", "v")}
        outs.append(race.decode_step(*on(device, inputs).values()))
    assert torch.equal(*outs)


# -- registration --


@interpreted
@pytest.mark.parametrize(("causal", "config"), [(False, "tiny"), (True, "tiny"), (True, "grouped")])
def test_what_tracing_believes_of_the_operations_is_what_the_kernels_return(causal, config, device):
    case = Case(T=5, P=4, L=2)
    q, k, v, planes, sharpness, mass, content = case.inputs().values()
    arguments = (q, k, v, planes[None], sharpness)
    forward = (*arguments, mass, content, None, causal, config)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.attnlab.race_forward.default, forward, test_utils=tests)
    out, den, *prefix, last_mass, last_content = torch.ops.attnlab.race_forward(*forward)
    state = prefix if causal else (last_mass, last_content)
    backward = (*case.sent(), *arguments, *state, out, den, None, causal, config)
    torch.library.opcheck(torch.ops.attnlab.race_backward.default, backward, test_utils=tests)
    one = tuple(x[:, :1] for x in (q, k, v))
    decode = (*one, planes[None], sharpness, mass, content)
    torch.library.opcheck(torch.ops.attnlab.race_decode.default, decode, test_utils=tests)


@interpreted
def test_float64_has_no_kernels(device):
    with pytest.raises(TypeError, match=r"q must be one of float32, float16, bfloat16, got torch\.float64"):
        race.attention(*list(Case(T=3, dtype=FP64).inputs().values())[:5])
