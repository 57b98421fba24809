"""Gradients of the torch room: against finite differences and against autograd through the kernel matrix."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the package torch is not installed; get it with: pip install torch")

from attnlab import backend, draws  # noqa: E402
from attnlab.race import attention, draw_planes, torch_impl  # noqa: E402

B, T, H, K, V, L, P = 2, 7, 3, 5, 4, 3, 2
PLANES = torch.from_numpy(draw_planes(L, P, K))


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Products of a few numbers lose more to two threads than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def leaves(T=T, dtype=torch.float64, B=B):
    arrays = [draws.normal(6, i, B * T, H * n).reshape(B, T, H, n) for i, n in enumerate((K, K, V))]
    arrays.append(np.array([0.5, 1.0, 2.0]))
    return [torch.tensor(x, dtype=dtype, requires_grad=True) for x in arrays]


@pytest.fixture
def small_chunks(monkeypatch):
    """Several chunks and a ragged last one at seven tokens."""
    monkeypatch.setattr(torch_impl, "CHUNK", 4)
    monkeypatch.setattr(torch_impl, "CAUSAL_CHUNK", 3)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
def test_gradients_of_q_k_v_and_sharpness_match_finite_differences(small_chunks, causal, normalize):
    def f(q, k, v, sharpness):
        return attention(q, k, v, PLANES, sharpness, causal=causal, normalize=normalize, impl="torch")

    assert torch.autograd.gradcheck(f, leaves(T=5, B=1))


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_run_through_the_carried_state(small_chunks, causal):
    mass = torch.rand(1, H, L, 2**P, dtype=torch.float64, generator=torch.manual_seed(0), requires_grad=True)
    content = torch.randn(1, H, L, 2**P, V, dtype=torch.float64, generator=torch.manual_seed(1), requires_grad=True)

    def f(q, k, v, sharpness, mass, content):
        options = {"causal": causal, "state": (mass, content), "return_state": True, "impl": "torch"}
        out, state = attention(q, k, v, PLANES, sharpness, **options)
        return out, state.mass, state.content

    assert torch.autograd.gradcheck(f, (*leaves(T=5, B=1), mass, content))


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_match_autograd_through_the_kernel_matrix(causal):
    q, k, v, sharpness = leaves(T=300)  # more than one causal chunk
    target = torch.randn(B, 300, H, V, dtype=torch.float64, generator=torch.manual_seed(2))

    def phi(x, corners):
        u = torch.tanh(torch.einsum("bthk,lpk->bthlp", x, PLANES))
        return torch.softmax(sharpness[:, None, None] * u @ corners.T, -1)

    def pairwise():
        corners = torch.tensor([[2 * (r >> t & 1) - 1 for t in range(P)] for r in range(2**P)], dtype=torch.float64)
        phi_q, phi_k = (phi(x, corners) for x in (q, k))
        scores = torch.einsum("bthlr,bshlr->bhts", phi_q, phi_k)
        scores = scores.tril() if causal else scores
        return torch.einsum("bhts,bshv->bthv", scores / scores.sum(-1, keepdim=True), v)

    wanted = torch.autograd.grad((pairwise() * target).sum(), (q, k, v, sharpness))
    out = attention(q, k, v, PLANES, sharpness, causal=causal, impl="torch")
    got = torch.autograd.grad((out * target).sum(), (q, k, v, sharpness))
    for ours, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_one_sharpness_for_all_heads_gets_one_gradient():
    q, k, v, _ = leaves()
    beta = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    attention(q, k, v, PLANES, beta, impl="torch").square().sum().backward()
    each = torch.ones(H, dtype=torch.float64, requires_grad=True)
    attention(q, k, v, PLANES, each, impl="torch").square().sum().backward()
    assert beta.grad.item() == pytest.approx(each.grad.sum().item(), rel=1e-12)


def test_a_second_derivative_is_refused_clearly():
    q, k, v, sharpness = leaves()
    for loss in (torch.sum, lambda out: out.square().sum()):
        out = attention(q, k, v, PLANES, sharpness, impl="torch")
        (dq,) = torch.autograd.grad(loss(out), q, create_graph=True)
        with pytest.raises(RuntimeError, match="no second derivative"):
            dq.square().sum().backward()


def test_planes_that_want_a_gradient_are_refused():
    q, k, v, sharpness = leaves()
    with pytest.raises(backend.Unsupported, match="no gradient for planes"):
        attention(q, k, v, PLANES.clone().requires_grad_(), sharpness, impl="torch")


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_types_come_back_as_they_went_in_with_gradients_of_their_type(kind):
    q, k, v, sharpness = (x.detach().to(kind).requires_grad_() for x in leaves())
    out = attention(q, k, v, PLANES, sharpness, causal=True, impl="torch")
    out.float().square().sum().backward()
    assert out.dtype == q.grad.dtype == v.grad.dtype == sharpness.grad.dtype == kind
    wide = attention(
        *(x.detach().double() for x in (q, k, v)), PLANES, sharpness.detach().double(), causal=True, impl="torch"
    )
    eps = torch.finfo(kind).eps
    torch.testing.assert_close(out.double(), wide, rtol=eps, atol=max(eps * 1e-2, 1e-5))  # rounded once, on the way out


@pytest.mark.parametrize("causal", [False, True])
def test_what_backward_keeps_grows_linearly_and_holds_no_features(causal):
    def kept(T):
        q, k, v, sharpness = leaves(T)
        sizes = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x: sizes.update({x.data_ptr(): x.numel()}) or x, lambda x: x
        ):
            out = attention(q, k, v, PLANES, sharpness, causal=causal, impl="torch")
        assert out.requires_grad
        return sum(sizes.values())

    small, double = kept(1000), kept(2000)
    a_token = (double - small) / 1000 / B / H
    assert (
        a_token == K + K + V + V + 1
    )  # q, k, v, the output and its denominator: no features (L 2^P = 12 each), no matrix


def test_numpy_goes_in_and_comes_out():
    q, k, v, _ = (x.detach().numpy() for x in leaves())
    out, state = attention(q, k, v, PLANES.numpy(), 1.5, return_state=True, impl="torch")
    assert isinstance(out, np.ndarray)
    assert isinstance(state.content, np.ndarray)


@pytest.mark.parametrize("T", [0, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_no_token_and_one_token_have_gradients(T, causal):
    q, k, v, sharpness = leaves(T)
    attention(q, k, v, PLANES, sharpness, causal=causal, impl="torch").sum().backward()
    assert v.grad.shape == v.shape
    torch.testing.assert_close(v.grad, torch.ones_like(v))  # a single key returns its own value


def test_a_state_of_tensors_keeps_its_scale():
    q, k, v, _ = (x.detach() for x in leaves())
    options = {"sharpness": 1.5, "causal": True}
    _, state = attention(
        q[:, :4].numpy(), k[:, :4].numpy(), v[:, :4].numpy(), PLANES.numpy(), return_state=True, **options
    )
    later = [x[:, 4:] for x in (q, k, v)]
    want = attention(q, k, v, PLANES, **options)[:, 4:]
    assert abs(state.log_scale).max() > 0.1  # else there would be nothing to lose
    got = attention(*later, PLANES, state=type(state)(*map(torch.tensor, state)), impl="torch", **options)
    np.testing.assert_allclose(got, want, rtol=1e-10)


def test_autocast_does_not_lower_the_working_precision():
    q, k, v, sharpness = (x.detach().float().requires_grad_() for x in leaves())
    want = torch.autograd.grad(attention(q, k, v, PLANES, sharpness, impl="torch").square().sum(), (q, sharpness))
    with torch.autocast("cpu", torch.bfloat16):
        got = torch.autograd.grad(attention(q, k, v, PLANES, sharpness, impl="torch").square().sum(), (q, sharpness))
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_the_widest_input_sets_the_working_precision():
    q, k, v, _ = (x.detach() for x in leaves())
    got = attention(q, k, v.float(), PLANES, 1.5, impl="torch")
    assert got.dtype == torch.float32
    want = attention(q, k, v.float(), PLANES, 1.5)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", [">f8", np.longdouble])
def test_numpy_types_that_torch_does_not_have_are_converted(kind):
    q, k, v, _ = (x.detach().numpy() for x in leaves())
    want = attention(q, k, v, PLANES.numpy(), 1.5)
    got = attention(*(x.astype(kind) for x in (q, k, v)), PLANES.numpy(), 1.5, impl="torch")
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_a_tensor_among_arrays_gives_a_tensor_with_its_gradient():
    q, k, v, _ = (x.detach().numpy() for x in leaves())
    beta = torch.tensor(1.5, requires_grad=True)
    attention(q, k, v, PLANES.numpy(), beta, impl="torch").sum().backward()
    assert beta.grad is not None


# -- float32 on the CPU, which runs on kernels of its own where Numba is installed --


@pytest.fixture(params=[True, False], ids=["kernels", "torch alone"])
def single(request, monkeypatch):
    """Both ways that float32 may go on a CPU."""
    if request.param and not torch_impl.FAST:
        pytest.skip("the package numba is not installed; get it with: pip install numba")
    monkeypatch.setattr(torch_impl, "FAST", request.param)


def both_precisions(f, tensors):
    """(value and gradients of f in float32, the same in float64); tensors are float32 leaves."""
    found = []
    for kind in (torch.float32, torch.float64):
        own = [x.detach().to(kind).requires_grad_(x.requires_grad) for x in tensors]
        value = f(*own)
        value.backward()
        found.append([value.detach(), *(x.grad for x in own if x.requires_grad)])
    return found


def assert_near(found, tolerance=2e-5):
    for x, y in zip(*found, strict=True):
        assert (x.double() - y).abs().max() <= tolerance * y.abs().max() + 1e-30


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("wanted", ["all", "state", "sharpness"])
def test_single_precision_has_the_gradients_of_double(single, causal, wanted):
    mass = torch.rand(B, H, L, 2**P, generator=torch.manual_seed(0)) + 0.5
    content = torch.randn(B, H, L, 2**P, V, generator=torch.manual_seed(1))
    tensors = [*leaves(T=30, dtype=torch.float32), mass, content]
    for name, x in zip(("q", "k", "v", "sharpness", "state", "state"), tensors, strict=True):
        x.requires_grad_(wanted in ("all", name))

    def f(q, k, v, sharpness, mass, content):
        state = (mass.double(), content.double())
        options = {"causal": causal, "state": state, "return_state": True}
        out, last = attention(q, k, v, PLANES.to(q.dtype), sharpness, impl="torch", **options)
        return out.square().sum() + last.mass.square().sum().to(q.dtype) + last.content.sum().to(q.dtype)

    assert_near(both_precisions(f, tensors))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("T", [0, 1])
def test_single_precision_takes_no_token_and_one(single, causal, T):
    q, k, v, sharpness = leaves(T=T, dtype=torch.float32)
    out = attention(q, k, v, PLANES.float(), sharpness, causal=causal, impl="torch")
    out.sum().backward()
    assert out.shape == (B, T, H, V)
    assert q.grad.shape == q.shape
    if T:
        torch.testing.assert_close(out, v.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_single_precision_may_go_back_twice_but_has_no_second_derivative(single, causal):
    q, k, v, sharpness = leaves(T=30, dtype=torch.float32)
    out = attention(q, k, v, PLANES.float(), sharpness, causal=causal, impl="torch").square().sum()
    first = torch.autograd.grad(out, (q, k, v, sharpness), retain_graph=True)
    for x, y in zip(first, torch.autograd.grad(out, (q, k, v, sharpness), retain_graph=True), strict=True):
        assert torch.equal(x, y)
    (dq,) = torch.autograd.grad(out, q, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        dq.square().sum().backward()


def test_single_precision_refuses_a_backward_pass_over_changed_arguments(single):
    q, k, v, sharpness = leaves(T=30, dtype=torch.float32)
    out = attention(q, k, v, PLANES.float(), sharpness, impl="torch")
    with torch.no_grad():
        v.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, about how it calls what it has compiled
def test_single_precision_goes_through_torch_compile(single):
    """The room; the door in front of it looks at numbers, which a tracer does not have."""
    q, k, v, sharpness = (x.detach() for x in leaves(T=30, dtype=torch.float32))
    planes = PLANES.float()

    def f(q, k, v, sharpness):
        return torch_impl.attention(2 * q, k, v, planes, sharpness, causal=True) + 1

    compiled = torch.compile(f, backend="eager")
    torch.testing.assert_close(compiled(q, k, v, sharpness), f(q, k, v, sharpness))


def test_a_tensor_that_is_a_view_of_negated_numbers(single):
    q, k, v, sharpness = leaves(T=30, dtype=torch.float32)
    turned = torch.complex(torch.zeros_like(v), v.detach()).conj().imag
    got = attention(q, k, turned, PLANES.float(), sharpness, impl="torch")
    torch.testing.assert_close(got, attention(q, k, -v, PLANES.float(), sharpness, impl="torch"))
