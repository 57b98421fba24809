"""torch's fused attention is the reference's operator, for every argument that both take."""

import numpy as np
import pytest

from attnlab import backend, draws, parity
from attnlab.dense import reference, view
from attnlab.dense.params import SoftmaxParams
from attnlab.inputs import INPUTS

torch = pytest.importorskip("torch", reason="torch is not installed")
B, H, K, V = 2, 6, 5, 4


def qkv(T, S, kv_heads=H):
    shapes = ((T, H, K), (S, kv_heads, K), (S, kv_heads, V))
    return [draws.normal(3, i, B * n, h * w).reshape(B, n, h, w) for i, (n, h, w) in enumerate(shapes)]


def fast(*arguments, **options):
    return backend.load("torch", "dense").attention(*arguments, **options)


def agrees(got, arguments, **options):
    """Whether `got` is the reference's result to the last digits of a float64."""
    want = reference.attention(*arguments, **options)
    return got.shape == want.shape and np.allclose(got, want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize(("T", "S"), [(7, 7), (3, 9), (9, 3), (7, 0), (0, 7)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("scale", [None, 2.5])
def test_forward_matches_the_reference(T, S, kv_heads, causal, window, scale):
    arguments = qkv(T, S, kv_heads)
    options = {"causal": causal, "window": window, "scale": scale}
    assert agrees(fast(*arguments, **options), arguments, **options)


def test_a_wrong_mask_would_be_seen():
    """torch's own causal mask aligns the first query with the first key."""
    arguments = qkv(3, 9)
    q, k, v = (torch.from_numpy(x).transpose(1, 2) for x in arguments)
    got = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    assert not agrees(got.numpy(), arguments, causal=True)


def test_arrays_come_back_as_arrays_and_tensors_as_tensors_of_their_type():
    arguments = qkv(7, 7)
    for array in arguments:
        array.flags.writeable = False  # as `parity.verify` hands them over
    assert isinstance(fast(*arguments), np.ndarray)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        out = fast(*(torch.tensor(x, dtype=dtype) for x in arguments), causal=True)
        assert (type(out), out.dtype) == (torch.Tensor, dtype)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "window": 2, "scale": 0.3}])
def test_gradients_are_those_of_the_formula(options):
    q, k, v = (torch.tensor(x, requires_grad=True) for x in qkv(7, 7))
    wanted = torch.tensor(draws.normal(4, 0, B * 7, H * V).reshape(B, 7, H, V))
    seen = torch.tensor(reference.visible(7, 7, causal=options.get("causal", False), window=options.get("window")))
    logits = options.get("scale", K**-0.5) * torch.einsum("bthk,bshk->bhts", q, k)
    weights = torch.where(seen, logits, -torch.inf).softmax(-1)
    want = torch.autograd.grad(torch.einsum("bhts,bshv->bthv", weights, v), (q, k, v), wanted)
    got = torch.autograd.grad(fast(q, k, v, **options), (q, k, v), wanted)
    for mine, theirs in zip(got, want, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("window", [0, -1, 1.5, True])
def test_a_window_is_a_whole_number_of_positions(window):
    with pytest.raises(ValueError, match="window must"):
        fast(*qkv(7, 7), window=window)


# both ends and the middle of the temperature, on toy tokens and on every real head
SETTINGS = [
    SoftmaxParams(temperature=temperature, tokens=(256, 31)[n % 2], causal=n % 3 == 0, input=name)
    for n, name in enumerate(INPUTS)
    for temperature in (2.0**-5, 1.0, 2.0**5)
]


@pytest.mark.parametrize("params", SETTINGS, ids=str)
def test_the_panels_verify_agrees_with_torch_and_says_what_else_there_is(params):
    arguments, terms = view.verification(params)
    rows = {report.impl: report for report in parity.verify("dense", arguments, terms=terms)}
    assert tuple(rows) == parity.FAST
    assert rows["torch"].ok, rows["torch"].reason
    for impl in ("numba", "triton"):
        assert rows[impl].why_not == f"dense has no {impl} implementation in this version of attnlab."


@pytest.mark.parametrize("params", SETTINGS, ids=str)
def test_the_budget_of_verify_is_no_excuse_for_sixteen_bits(params):
    arguments, terms = view.verification(params)
    exact, low, half = (reference.attention(**arguments, dtype=kind) for kind in (np.float64, np.float32, np.float16))
    assert not parity.compare(half, exact, low, terms=terms).ok
