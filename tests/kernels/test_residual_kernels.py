"""The residual kernels compute the reference's operator and its gradients, touch what is theirs, and give the same bits
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

from attnlab.residual import RULES, State, reference  # noqa: E402
from attnlab_kernels import residual  # noqa: E402
from attnlab_kernels.testing import interpreter  # noqa: E402
from tests.kernels.residual_cases import (  # noqa: E402
    BF16,
    FP16,
    FP32,
    GATES,
    Case,
    array,
    assert_right,
    trained,
    wanted,
)

HARDWARE = [pytest.param("cpu", marks=pytest.mark.interpreted), pytest.param("cuda", marks=pytest.mark.gpu)]
interpreted = pytest.mark.parametrize("device", HARDWARE[:1], indirect=True)


@pytest.fixture(autouse=True, params=HARDWARE)
def device(request):
    """Where tensors lie."""
    return request.param


def on(device, tensors):
    """The same tensors on this device."""
    return {name: None if x is None else x.to(device) for name, x in tensors.items()}


def by_kernels(case, device, *, inputs=None, sent=None, config="short", attention=residual.attention):
    """Results and gradients of a case, back on the CPU."""
    inputs, sent = on(device, inputs or case.inputs()), on(device, sent or case.sent())
    config = config if case.dtype == FP32 else None
    return on("cpu", trained(attention, case, inputs, sent, config=config))


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


# -- the operator and its gradients --


@pytest.mark.parametrize("rule", RULES)
def test_results_and_gradients_are_those_of_every_rule(rule, device):
    """Two slices of K and two blocks of V, neither of them full."""
    case = Case(rule, K=40)
    assert_right(by_kernels(case, device), case)


SWITCHES = [
    Case("rdn", tied=True),
    Case("rla", tied=True, K=40),
    Case("rdn", target="log_cosh"),
    Case("rla", target="log_cosh", read_gates=False),
    Case("rdn", read_gates=False, tied=True, K=40),
    Case("rdn", clip=np.inf),
    Case("rdn", clip=0.0),
    Case("rla", clip=0.0),
]


@pytest.mark.parametrize("case", SWITCHES, ids=str)
def test_results_and_gradients_are_those_of_every_switch(case, device):
    assert_right(by_kernels(case, device), case)


@pytest.mark.parametrize("retention", ["one", "all zero", "one spike"])
@pytest.mark.parametrize("rule", ["rdn", "rla", "gdn"])
def test_retentions_that_break_logarithms(rule, retention, device):
    case = Case(rule, retention=retention, T=33, H=1, V=6)
    assert_right(by_kernels(case, device), case)


@pytest.mark.parametrize("T", [0, 1, 7, 15, 16, 17, 33])
def test_lengths_that_fill_chunks_or_do_not(T, device):
    case = Case(T=T, H=1, V=6, B=2)
    assert_right(by_kernels(case, device), case)


@pytest.mark.parametrize("dtype", [FP16, BF16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("rule", ["rdn", "rla", "gdn"])
def test_narrow_types_in_their_own_configuration(rule, dtype, device):
    """By a smooth target: at the clip itself the gradient jumps, and rounding decides on which side an error stands."""
    case = Case(rule, dtype=dtype, target="log_cosh", T=37, K=12, V=24)
    got = by_kernels(case, device)
    assert got["out"].dtype == got["gradient of q"].dtype == dtype
    assert got["base"].dtype == got["gradient of write"].dtype == FP32
    assert_right(got, case)


def test_float32_in_its_own_configuration_and_wider_than_one_slice(device):
    case = Case(T=20, K=70, V=40, H=1)
    assert_right(by_kernels(case, device, config="fp32"), case)


@pytest.mark.parametrize(("K", "V"), [(1, 1), (256, 33), (17, 256)])
def test_widths_from_1_to_256(K, V, device):
    case = Case(T=5, K=K, V=V, H=1)
    assert_right(by_kernels(case, device, config="fp32"), case)


def test_identical_keys_and_the_largest_write(device):
    """What the inverse of a chunk is hardest on: entries of 2 with alternating signs, and intermediate ones of doubling
    would be of size 10^6. The error of a token goes on to all later ones here, for C terms more.
    """
    case = Case("rdn", T=32, K=4, V=6, H=1, retention="one")
    inputs = case.inputs()
    inputs |= {"k": inputs["k"][:, :1].expand(inputs["k"].shape).contiguous()}
    inputs |= {name: torch.full_like(inputs[name], 2.0) for name in ("write", "correction")}
    want = wanted(case, inputs)
    assert np.abs(want["out"]).max() < 100
    got = by_kernels(case, device, inputs=inputs)
    for name in ("out", "base", "residual"):
        size = np.abs(want[name]).max()
        assert np.abs(array(got[name]) - want[name]).max() <= 2.0**-22 * case.T * size, name


def test_an_error_at_the_clip_itself_passes_its_gradient(device):
    """With an empty memory the error is v: within the clip, at it, beyond it."""
    v = torch.tensor([0.25, 0.5, -0.5, 0.75]).reshape(1, 1, 1, 4).to(device).requires_grad_()
    one, gate = torch.ones(1, 1, 1, 1, device=device), torch.ones(1, 1, 1, device=device)
    out, _, _ = residual.attention(one, one, v, gate, 0 * gate, gate, clip=0.5)
    out.sum().backward()
    assert v.grad.flatten().tolist() == [1.0, 1.0, 1.0, 0.0]


# -- states, segments, sequences --


@pytest.mark.parametrize("rule", ["rdn", "sgla"])
def test_segments_that_carry_the_state_are_the_whole_and_so_are_their_gradients(rule, device):
    def segmented(q, k, v, *gates, state, **options):
        outs = []
        for a, b in itertools.pairwise((0, 7, 7, 24, 33)):
            parts = [None if x is None else x[:, a:b] for x in (q, k, v, *gates)]
            out, *state = residual.attention(*parts, state=tuple(state), **options)
            outs.append(out)
        return torch.cat(outs, 1), *state

    case = Case(rule, T=33, H=1, V=6)
    assert_right(by_kernels(case, device, attention=segmented), case)


PACKED = (0, 0, 5, 5, 38, 38)


@pytest.mark.parametrize("rule", ["rdn", "gdn"])
def test_packed_sequences_are_those_of_the_oracle(rule, device):
    case = Case(rule, T=38, H=1, V=6, cu=PACKED)
    assert_right(by_kernels(case, device), case)


def test_packed_sequences_have_the_same_bits_as_one_by_one(device):
    """Empty ones too: their state goes through unchanged, and so does its gradient."""
    case = Case(T=38, H=1, V=6, cu=PACKED)
    inputs, sent, packed = case.inputs(), case.sent(), by_kernels(case, device)
    for n, (a, b) in enumerate(itertools.pairwise(PACKED)):
        cut = {name: x[n : n + 1] if name in ("base", "residual") else x[:, a:b] for name, x in inputs.items()}
        came = {name: x[:, a:b] if name == "out" else x[n : n + 1] for name, x in sent.items()}
        alone = by_kernels(case._replace(T=b - a, cu=None), device, inputs=cut, sent=came)
        for name, x in alone.items():
            of_state = name.removeprefix("gradient of ") in ("base", "residual")
            assert torch.equal(x, packed[name][n : n + 1] if of_state else packed[name][:, a:b]), (name, n)
        if a == b:
            assert torch.equal(packed["base"][n], inputs["base"][n])
            assert torch.equal(packed["gradient of residual"][n], sent["residual"][n])


def test_a_sequence_has_the_same_bits_in_a_batch_and_alone(device):
    """Even after a neighbour that holds nothing but NaN."""
    case = Case(T=20, H=1, V=6)
    ours, sent, alone = case.inputs(), case.sent(), by_kernels(case, device)

    def after_nan(tensors):
        return {name: torch.cat([torch.full_like(x, torch.nan), x]) for name, x in tensors.items()}

    got = by_kernels(case._replace(B=2), device, inputs=after_nan(ours), sent=after_nan(sent))
    assert_same_bits({name: x[1:] for name, x in got.items()}, alone)


# -- layouts, bits, memory --

LAYOUTS = {
    "heads first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "part of a wider one": lambda x: torch.cat([torch.full_like(x, torch.nan), x], -1)[..., x.shape[-1] :],
    "rows not side by side": lambda x: x.mT.contiguous().mT,
    "every second token": lambda x: x.repeat_interleave(2, 1)[:, ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_any_strides_give_the_bits_of_contiguous_tensors(layout, device):
    case = Case(T=9, B=2)
    ours, sent = case.inputs(), case.sent()
    strided = ours | {name: layout(ours[name]) for name in ("q", "k", "v")}
    strided |= {name: ours[name].mT.contiguous().mT for name in ("base", "residual")}
    assert not any(strided[name].is_contiguous() for name in ("q", "k", "v", "base"))
    got = by_kernels(case, device, inputs=strided, sent=sent | {"out": layout(sent["out"])})
    assert_same_bits(got, by_kernels(case, device))


def test_a_gradient_without_strides_is_that_of_a_copy(device):
    """`out.sum().backward()` sends one."""
    case = Case(T=9)
    sent = case.sent()
    expanded = {name: torch.ones((), dtype=x.dtype).expand(x.shape) for name, x in sent.items()}
    whole = {name: torch.ones_like(x) for name, x in sent.items()}
    assert_same_bits(by_kernels(case, device, sent=expanded), by_kernels(case, device, sent=whole))


def test_gates_of_one_number_a_head_get_the_sum_of_their_gradients(device):
    case = Case("retnet", T=9)
    inputs = on(device, case.inputs())
    one = inputs["retention"][0, 0].clone().requires_grad_()
    each = inputs["retention"].clone().requires_grad_()
    for gate in (one, each):
        out, _, _ = residual.attention(inputs["q"], inputs["k"], inputs["v"], gate, rule="retnet")
        out.square().sum().backward()
    torch.testing.assert_close(one.grad, each.grad.sum((0, 1)))


def test_the_same_call_gives_the_same_bits(device):
    case = Case(T=20)
    assert_same_bits(by_kernels(case, device), by_kernels(case, device))


def begin_with_nan(monkeypatch):
    """All buffers of floats begin full of NaN."""

    def filled(stock):
        def make(*arguments, **options):
            made = stock(*arguments, **options)
            return made.fill_(torch.nan) if made.is_floating_point() else made

        return make

    monkeypatch.setattr(torch.Tensor, "new_empty", filled(torch.Tensor.new_empty))
    monkeypatch.setattr(torch, "empty_like", filled(torch.empty_like))


@interpreted
@pytest.mark.parametrize("case", [Case("rdn", K=40, B=2), Case("rla", T=38, cu=PACKED), Case("linear", T=0)], ids=str)
def test_no_access_out_of_bounds_no_race_and_every_number_written(case, monkeypatch, device):
    """What is not written stays NaN."""
    begin_with_nan(monkeypatch)
    with interpreter.traced() as record:
        got = by_kernels(case, device)
    record.check()
    assert len(record.launches) > 2 or case.T == 0
    assert all(x.isfinite().all() for x in got.values())


def test_nothing_is_kept_where_nobody_asks_for_a_gradient(device):
    case = Case(T=9)
    inputs = on(device, case.inputs())
    arguments = [inputs[name] for name in ("q", "k", "v", *GATES, "base", "residual")]
    *_, factors, tiles, kept, kept_too, before, before_too = residual.residual_forward(
        *arguments, None, "rdn", 1.0, "clip", True, 1.0, False, "short"
    )
    assert factors.numel()
    assert not any(x.numel() for x in (tiles, kept, kept_too, before, before_too))


# -- decoding --


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("case", [Case(rule) for rule in RULES] + SWITCHES[:5], ids=str)
def test_decoding_is_the_reference_and_updates_both_memories_in_place(case, dtype, device):
    """In float32 from end to end, whatever the type of the input; one token, then four."""
    case = case._replace(T=5, B=2, dtype=dtype, retention="some zero")
    inputs = on(device, case.inputs())
    base, other = inputs["base"].clone(), None if inputs["residual"] is None else inputs["residual"].clone()
    outs = []
    for a, b in ((0, 1), (1, 5)):
        tokens = [None if inputs[name] is None else inputs[name][:, a:b] for name in ("q", "k", "v", *GATES)]
        outs.append(residual.decode_step(*tokens, base, other, **case.options))
    want = wanted(case)
    got = {"out": torch.cat(outs, 1), "base": base} | ({} if other is None else {"residual": other})
    for name, x in got.items():
        assert x.dtype == (dtype if name == "out" else FP32)
        allowed = torch.finfo(x.dtype).eps / 2 + 2.0**-22
        assert np.abs(array(x) - want[name]).max() <= allowed * np.abs(want[name]).max() * 2, name


def test_decoding_continues_what_the_chunks_left(device):
    """Its states lie as the chunked kernels return them."""
    case = Case(T=20)
    inputs = on(device, case.inputs())
    arguments = [inputs[name] for name in ("q", "k", "v", *GATES)]
    state = (inputs["base"], inputs["residual"])
    whole, *last = residual.attention(*arguments, state=state, config="short", **case.options)
    _, base, other = residual.attention(*(x[:, :17] for x in arguments), state=state, config="short", **case.options)
    tail = residual.decode_step(*(x[:, 17:] for x in arguments), base, other, **case.options)
    torch.testing.assert_close(tail, whole[:, 17:], rtol=1e-5, atol=1e-5)
    for one, two in zip((base, other), last, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


# -- planted faults: a test that cannot fail says nothing --


@triton.jit
def _no_decay_of_the_whole(b_alpha, b_tail, o_c):
    return 1.0 + 0.0 * tl.sum(b_alpha * b_tail, 0)


@triton.jit
def _never_clipped(error, clip, LOG_COSH: tl.constexpr):
    return error


@triton.jit
def _decayed_recall(alpha, first, o_c, n, H):
    """E with token i's own retention in it: the recall of the decayed memory, as in fla's order of updates."""
    b_alpha = tl.load(alpha + first + o_c * H, mask=o_c < n, other=1.0)
    steps = tl.where(o_c[:, None] > o_c[None, :], b_alpha[:, None], 1.0)
    return b_alpha, tl.where(o_c[:, None] > o_c[None, :], tl.cumprod(steps, 0), 0.0)


@triton.jit
def _not_solved(b_n, o_c, C: tl.constexpr):
    return tl.where(o_c[:, None] == o_c[None, :], 1.0, 0.0) - b_n


@triton.jit
def _read_after_the_write(factors, o_c, C: tl.constexpr, READ_GATES: tl.constexpr, FACTORS: tl.constexpr):
    return residual._tile(factors, 0, o_c, C)


FAULTS = {
    "_whole": _no_decay_of_the_whole,
    "_taught": _never_clipped,
    "_between": _decayed_recall,
    "_inverse": _not_solved,
    "_base_read": _read_after_the_write,
}


@interpreted
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name, monkeypatch, device):
    case = Case(T=19, H=1, V=6)
    assert_right(by_kernels(case, device), case)
    monkeypatch.setattr(residual, name, FAULTS[name])
    with pytest.raises(AssertionError, match="row"):
        assert_right(by_kernels(case, device), case)


@interpreted
def test_a_planted_fault_of_the_grid_is_found(monkeypatch, device):
    """Half the programs of the forward sweep: the other columns are never written, and stay NaN."""
    start = residual._Operation.start

    def halved(self, kernel, grid, *arguments, **options):
        swept = kernel is residual.residual_forward_kernel
        start(self, kernel, max(1, grid // 2) if swept else grid, *arguments, **options)

    monkeypatch.setattr(residual._Operation, "start", halved)
    begin_with_nan(monkeypatch)
    case = Case(T=19)
    with pytest.raises(AssertionError, match=r"(?i)nan"):
        assert_right(by_kernels(case, device), case)


# -- what is refused --

FITTING = {"q": (1, 3, 2, 4), "k": (1, 3, 2, 4), "v": (1, 3, 2, 5)}


def arguments(**changes):
    given = {name: torch.ones(shape) for name, shape in FITTING.items()}
    given |= {name: torch.ones(1, 3, 2) for name in GATES}
    return given | changes


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"k": torch.ones(1, 3, 2, 3)}, ValueError, r"k must be a tensor \[1, 3, 2, 4\], got \[1, 3, 2, 3\]"),
        ({"v": torch.ones(3, 2, 5)}, TypeError, r"v must be a tensor \[B, T, H, V\], got \[3, 2, 5\]"),
        ({"q": torch.ones(1, 3, 2, 4).double()}, TypeError, "q must be one of float32, float16, bfloat16"),
        ({"q": torch.ones(1, 3, 2, 257)}, ValueError, "q must have a width of 1 to 256, got 257"),
        ({"retention": None}, ValueError, "retention must be given for rule='rdn', got NoneType"),
        ({"write": torch.ones(1, 2, 2)}, ValueError, r"write must be a tensor of floats \[1, 3, 2\], got \[1, 2, 2\]"),
        ({"rule": "gdn"}, ValueError, "correction must be None for rule='gdn', got Tensor"),
        ({"rule": "mamba"}, ValueError, "rule must be one of 'rla', .*, got 'mamba'"),
        ({"target": "huber"}, ValueError, "target must be 'clip' or 'log_cosh', got 'huber'"),
        ({"clip": -1.0}, ValueError, "clip must be at least 0, got -1.0"),
        ({"clip": float("nan")}, ValueError, "clip must be at least 0, got nan"),
        ({"scale": float("inf")}, ValueError, "scale must be a finite number, got inf"),
        ({"config": "bf16"}, ValueError, "config must be 'fp32' or 'short' for torch.float32, got 'bf16'"),
        ({"state": torch.ones(1)}, TypeError, r"state must be a pair \(base, residual\)"),
        ({"state": (torch.ones(1, 2, 4, 5), None)}, ValueError, "residual must be given for rule='rdn'"),
        ({"state": (torch.ones(2, 2, 4, 5),) * 2}, ValueError, r"base must be a tensor \[1, 2, 4, 5\]"),
        ({"cu_seqlens": torch.tensor([0, 2])}, ValueError, r"cu_seqlens must rise from 0 to T = 3, got \[0, 2\]"),
        ({"cu_seqlens": torch.tensor([0.0, 3.0])}, TypeError, "cu_seqlens must be a tensor"),
    ],
    ids=lambda part: "" if isinstance(part, type) else str(part)[:40],
)  # fmt: skip
@interpreted
def test_arguments_are_refused_by_name_with_what_was_wanted_and_what_came(change, error, says):
    with pytest.raises(error, match=says):
        residual.attention(**arguments(**change))


@interpreted
def test_a_decode_step_refuses_gradients_and_states_it_cannot_update_in_place():
    q, k, v, *gates = arguments().values()
    base, other = torch.zeros(2, 1, 2, 4, 5)
    with pytest.raises(ValueError, match="v requires a gradient, and a decode step has none; detach it"):
        residual.decode_step(q, k, v.clone().requires_grad_(), *gates, base, other)
    with pytest.raises(ValueError, match="residual must be contiguous"):
        residual.decode_step(q, k, v, *gates, base, other.mT.contiguous().mT)
    with pytest.raises(ValueError, match="base must be contiguous"):
        residual.decode_step(q, k, v, *gates, base.expand(1, 2, 4, 5)[..., :1].expand(1, 2, 4, 5), other)


def test_a_second_derivative_is_refused_with_a_sentence(device):
    case = Case(T=3)
    inputs = on(device, case.inputs())
    q = inputs["q"].requires_grad_()
    out, _, _ = residual.attention(q, *(inputs[name] for name in ("k", "v", *GATES)))
    (once,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(once.sum(), q)


@interpreted
def test_the_token_loop_itself(device):
    """The oracle of all the above is the chunked form; here is the definition, in one case."""
    case = Case(T=17)
    inputs = {name: array(x) for name, x in case.inputs().items()}
    state = State(inputs.pop("base"), inputs.pop("residual"))
    out, last = reference.attention(**inputs, **case.options, state=state, return_state=True)
    got = by_kernels(case, device)
    for name, want in (("out", out), ("base", last.base), ("residual", last.residual)):
        assert np.abs(array(got[name]) - want).max() <= 2.0**-22 * 6 * np.abs(want).max()


# -- torch --


@interpreted
@pytest.mark.parametrize("case", [Case(T=5), Case("gdn", T=5), Case("rla", T=5, cu=(0, 2, 2, 5))], ids=str)
def test_the_operations_are_registered_whole(case, device):
    inputs = {name: x if x is None else x.requires_grad_() for name, x in case.inputs().items()}
    given = [inputs[name] for name in ("q", "k", "v", *GATES, "base", "residual")]
    how = (case.rule, case.clip, case.target, case.read_gates, case.scale)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    forward = (*given, case.bounds, *how, True, "short")
    torch.library.opcheck(torch.ops.attnlab.residual_forward.default, forward, test_utils=tests)
    plain = [x.detach() if isinstance(x, torch.Tensor) else x for x in forward]
    out, base, other, *kept = torch.ops.attnlab.residual_forward(*plain)
    sent = (out, base, other if RULES[case.rule].residual else None)
    backward = (*sent, *plain[:6], *kept, case.bounds, *how, "short")
    torch.library.opcheck(torch.ops.attnlab.residual_backward.default, backward, test_utils=tests)
    if case.cu is None:
        decode = (*plain[:8], *how)
        torch.library.opcheck(torch.ops.attnlab.residual_decode.default, decode, test_utils=tests)
