"""Residual linear attention in Triton through the public door: the reference's operator, its states and its gradients.
The cases run interpreted, and on a GPU where there is one.
"""

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the package torch is not installed; get it with: pip install torch")

from attnlab import backend, parity  # noqa: E402
from attnlab.residual import RULES, State, attention, reference  # noqa: E402
from tests.residual.cases import arguments, flat  # noqa: E402

ABSENT = backend.why_not("triton", "residual")
# item by item, so that the interpreting run has tests to count where the package is missing
pytestmark = pytest.mark.skipif(bool(ABSENT), reason=str(ABSENT))

EPS = backend.eps("triton")


@pytest.fixture(
    autouse=True,
    params=[pytest.param("cpu", marks=pytest.mark.interpreted), pytest.param("cuda", marks=pytest.mark.gpu)],
)
def device(request):
    """Where tensors lie. Arrays find their own way."""
    return request.param


def triton(*given, **options):
    return attention(*given, **options, impl="triton")


def assert_parity(got, given, kind=np.float32, **options):
    """Output and states against the reference in float64, with the error of the reference in float32."""
    runs = [
        reference.attention(**given, **options, return_state=True, dtype=precision)
        for precision in (np.float64, np.float32)
    ]
    exact, low = (flat(*run) for run in runs)
    out, state = got
    terms = given["k"].shape[1] + given["k"].shape[3]
    for name, x in flat(np.asarray(out), state).items():
        rounded = kind if name == "out" and kind != np.float32 else None
        size = EPS if kind == np.float32 else 2.0**-11
        seen = parity.compare(np.asarray(x), exact[name], low[name], terms=terms, dtype=size, out_dtype=rounded)
        assert seen.ok, f"{name}: {seen.reason}"


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("T", [3, 17])
def test_arrays_give_the_output_and_the_states_of_the_reference(rule, T):
    """Three tokens go through the recurrent kernel, 17 through chunks."""
    given = arguments(rule, T=T, H=2, carried=True, retention="some zero")
    before = {name: x.copy() for name, x in given.items() if isinstance(x, np.ndarray)}
    state = None if given["state"] is None else [None if x is None else x.copy() for x in given["state"]]
    got = triton(**given, return_state=True)
    assert isinstance(got[0], np.ndarray)
    assert got[0].dtype == got[1].base.dtype == np.float32
    assert_parity(got, given)
    for name, x in before.items():
        assert np.array_equal(given[name], x)
    for x, was in zip(given["state"], state, strict=True):
        assert x is was is None or np.array_equal(x, was)


SWITCHES = [
    {"target": "log_cosh"},
    {"read_gates": False},
    {"normalize": True, "scale": 0.5},
    {"clip": 0.0},
    {"clip": np.inf},
]


@pytest.mark.parametrize("options", SWITCHES, ids=str)
def test_switches(options):
    given = arguments("rdn", T=17, H=2)
    given["k"] = given["k"] * (3.0 if "normalize" in options else 1.0)
    assert_parity(triton(**given, **options, return_state=True), given, **options)


def test_a_retention_as_a_logarithm_and_a_correction_that_is_tied():
    given = arguments("rla", T=17, H=2, B=1, retention="some zero")
    del given["correction"]
    with np.errstate(divide="ignore"):
        given["log_retention"] = np.log(given.pop("retention"))
    assert np.isneginf(given["log_retention"]).any()
    assert_parity(triton(**given, return_state=True), given)


def test_float16_comes_back_as_float16():
    given = arguments("gdn", T=17, H=2) | {}
    given |= {name: given[name].astype(np.float16) for name in ("q", "k", "v")}
    out, state = triton(**given, return_state=True)
    assert out.dtype == np.float16
    assert state.base.dtype == np.float32
    assert_parity((out, state), given, np.float16)


@pytest.mark.parametrize("impls", [("reference", "triton", "triton"), ("triton", "reference", "triton")])
def test_a_state_travels_between_implementations_and_segments_match_one_run(impls):
    given = arguments("rdn", T=24, H=2, B=1)
    state, outs = None, []
    for impl, (a, b) in zip(impls, itertools.pairwise((0, 7, 9, 24)), strict=True):
        part = {name: x[:, a:b] if isinstance(x, np.ndarray) else x for name, x in given.items()}
        out, state = attention(**part | {"state": state}, return_state=True, impl=impl)
        outs.append(out)
    assert_parity((np.concatenate(outs, 1), state), given)


@pytest.mark.parametrize("cuts", [(0, 0, 5, 17), (0, 17)])
def test_packed_sequences(cuts):
    given = arguments("rdn", B=1, T=17, H=2, carried=True, sequences=len(cuts) - 1)
    given["cu_seqlens"] = np.array(cuts)
    assert_parity(triton(**given, return_state=True), given)


def test_no_tokens_and_no_sequences():
    given = arguments("rdn", T=0, H=2, carried=True)
    out, state = triton(**given, return_state=True)
    assert out.shape == (2, 0, 2, 4)
    np.testing.assert_array_equal(state.base, given["state"].base.astype(np.float32))
    given = arguments("rdn", B=1, T=0, H=2) | {"cu_seqlens": np.array([0])}
    out, state = triton(**given, return_state=True)
    assert state.residual.shape == (0, 2, 5, 4)


def test_gradients_are_those_of_the_chunked_form(device):
    """With the state, the logarithm of a retention, lengths and a scale on the way."""
    from attnlab.residual import chunked

    given = arguments("rdn", T=18, H=2, B=1, carried=True)
    state = given.pop("state")
    given["log_retention"] = np.log(given.pop("retention"))
    options = {"rule": given.pop("rule"), "normalize": True, "scale": 0.5, "clip": 0.7}
    leaves = {
        name: torch.tensor(x, dtype=torch.float32, device=device, requires_grad=True) for name, x in given.items()
    }
    carried = [torch.tensor(x, dtype=torch.float32, device=device, requires_grad=True) for x in state]
    out, last = triton(**leaves, **options, state=State(*carried), return_state=True)
    assert out.device == last.base.device == leaves["q"].device
    loss = out.square().sum() + last.base.square().sum() + last.residual.square().sum()
    got = torch.autograd.grad(loss, [*leaves.values(), *carried])
    single = {name: x.detach().cpu().double().numpy() for name, x in leaves.items()}
    first = State(*(x.detach().cpu().double().numpy() for x in carried))
    exact, after = chunked.attention(**single, **options, state=first, return_state=True)
    doubled = {"d_out": 2 * exact, "d_state": State(2 * after.base, 2 * after.residual)}
    gradient = chunked.gradient(**single, **options, **doubled, state=first)
    want = [*(getattr(gradient, name) for name in leaves), gradient.state.base, gradient.state.residual]
    for name, one, two in zip((*leaves, "base", "residual"), got, want, strict=True):
        far = np.abs(one.detach().cpu().numpy() - two).max()
        assert far <= 16 * EPS * np.abs(two).max(), name  # dO itself is off by some roundings here


def test_a_gate_of_one_number_a_head_gets_a_gradient_of_that_shape(device):
    given = arguments("retnet", T=6, H=2)
    leaves = {name: torch.tensor(given[name], dtype=torch.float32, device=device) for name in ("q", "k", "v")}
    fixed = torch.tensor(given["retention"], dtype=torch.float32, device=device, requires_grad=True)
    triton(**leaves, retention=fixed, rule="retnet").sum().backward()
    assert fixed.grad.shape == (2,)
    assert bool(fixed.grad.isfinite().all())


def test_types_of_tensors(device):
    given = {name: torch.tensor(x, device=device) for name, x in arguments("gdn", T=9, H=2).items() if name in "qkv"}
    gates = arguments("gdn", T=9, H=2)
    kinds = (torch.float16, torch.float32, torch.bfloat16)
    mixed = [given[name].to(kind) for name, kind in zip("qkv", kinds, strict=True)]
    out = triton(*mixed, gates["retention"], gates["write"], rule="gdn")
    assert out.dtype == torch.bfloat16
    wide = triton(*(x.float() for x in mixed), gates["retention"], gates["write"], rule="gdn")
    assert torch.equal(out, wide.bfloat16())  # rounded once, on the way out
    with torch.autocast(device, dtype=torch.bfloat16):
        assert torch.equal(triton(*mixed, gates["retention"], gates["write"], rule="gdn"), out)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rule": "rdn", "correction": np.ones((1, 3, 2)), "fitting": False}, "covers fitting=True; the reference has"),
        ({"q": np.ones((1, 3, 2, 257)), "k": np.ones((1, 3, 2, 257))}, "covers key widths from 1 to 256, got 257"),
        ({"v": np.ones((1, 3, 2, 257))}, "covers value widths from 1 to 256, got 257"),
        ({"v": torch.ones(1, 3, 2, 4, dtype=torch.float64)}, "float32, float16 and bfloat16, got v of torch.float64"),
        ({"k": np.full((1, 3, 2, 5), 1e39)}, "k has numbers too large"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)  # fmt: skip
def test_what_the_kernels_do_not_cover_is_refused_with_the_range(change, says):
    given = {name: np.ones((1, 3, 2, width)) for name, width in (("q", 5), ("k", 5), ("v", 4))}
    given |= {"retention": np.ones((1, 3, 2)), "write": np.ones((1, 3, 2)), "rule": "gdn"}
    with pytest.raises(backend.Unsupported, match=says):
        triton(**given | change)


def test_verify_runs_the_row_and_says_where():
    given = {name: x for name, x in arguments("rdn", T=12, H=2).items() if x is not None}
    (report,) = parity.verify("residual", given, terms=12, impls=["triton"])
    assert report.ran
    assert report.ok, report.reason
    assert report.device == backend.device("triton")
