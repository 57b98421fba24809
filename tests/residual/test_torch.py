"""The torch room: the reference's numbers, and gradients against autograd through a plain token loop."""

import itertools
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the package torch is not installed; get it with: pip install torch")

from attnlab import backend, parity  # noqa: E402
from attnlab.residual import RULES, attention, reference, torch_impl  # noqa: E402
from attnlab.residual.tensors import gates, parts  # noqa: E402
from tests.residual.cases import GATES, RESIDUAL, RETENTION, arguments, assert_rows, flat, normal  # noqa: E402

LENGTHS = (0, 1, 7, 31, 32, 33, 65)
EXACT, SLOPE = 1e-12, 1e-10  # float64, relative to a row's largest number


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Products of a few numbers lose more to two threads than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small_chunks(monkeypatch):
    """Several chunks, several groups and a ragged last chunk at 65 tokens; 32 is one group, 31 and 33 are not."""
    monkeypatch.setattr(torch_impl, "CHUNK", 16)
    monkeypatch.setattr(torch_impl, "GROUP", 2)


@pytest.fixture(params=[True, False], ids=["kernels", "torch alone"])
def single(request, monkeypatch):
    """Both ways that float32 may go on a CPU."""
    if request.param and not torch_impl.FAST:
        pytest.skip("the package numba is not installed; get it with: pip install numba")
    monkeypatch.setattr(torch_impl, "FAST", request.param)


@pytest.fixture(params=["float64", "kernels", "torch alone"])
def kind(request, monkeypatch):
    """A type of numbers, and in float32 both ways that it may go on a CPU."""
    if request.param == "kernels" and not torch_impl.FAST:
        pytest.skip("the package numba is not installed; get it with: pip install numba")
    monkeypatch.setattr(torch_impl, "FAST", request.param == "kernels")
    return torch.float64 if request.param == "float64" else torch.float32


def leaves(given, dtype=torch.float64):
    """The same call on tensors that want gradients."""

    def leaf(x):
        return torch.tensor(x, dtype=dtype, requires_grad=True) if isinstance(x, np.ndarray) else x

    state = given.get("state")
    return {name: leaf(x) for name, x in given.items()} | {"state": state and tuple(map(leaf, state))}


def wanting(given):
    """The tensors of a call, by name."""
    state = dict(zip(("base", "residual"), given.get("state") or (), strict=False))
    return {name: x for name, x in {**given, **state}.items() if isinstance(x, torch.Tensor)}


def token_loop(q, k, v, retention=None, write=None, correction=None, *, rule, state=None, clip=1.0, target="clip",
               read_gates=True, log_retention=None, cu_seqlens=None):  # fmt: skip
    """(out, S, R) of the recurrence as it is written on p. 5, one token after the other, in torch; written apart from
    the reference.
    """
    (B, T, H, K), has = q.shape, RULES[rule]
    alpha, beta = (torch.ones(()) if x is None else x for x in (retention, write))
    if log_retention is not None:
        alpha = log_retention.exp()
    gamma = beta if correction is None else correction
    alpha, beta, gamma = (x.to(q.dtype).expand(B, T, H) for x in (alpha, beta, gamma))
    cuts = [0, T] if cu_seqlens is None else list(cu_seqlens)
    N = B if cu_seqlens is None else len(cuts) - 1
    first = [q.new_zeros(N, H, K, v.shape[-1])] * 2 if state is None else state
    outs, last = [], []

    def written(M, key, value, a, rate):
        M = a[..., None, None] * M
        value = value - (key[..., None] * M).sum(-2) if has.delta else value
        return M + rate[..., None, None] * key[..., :, None] * value[..., None, :]

    def read(M, x):
        return (x[..., None] * M).sum(-2)

    for n, (start, end) in enumerate(itertools.pairwise(cuts)):
        S, R = (x if x is None or cu_seqlens is None else x[n : n + 1] for x in first)
        for t in range(start, end):
            a, b, c = alpha[:, t], beta[:, t], gamma[:, t]
            if not has.residual:
                S = written(S, k[:, t], v[:, t], a, b)
                outs.append(read(S, q[:, t]))
                continue
            error = v[:, t] - read(S, k[:, t])
            kept = torch.tanh(error) if target == "log_cosh" else torch.clamp(error, -clip, clip)
            R = written(R, k[:, t], kept, a, c)
            old, new = read(S, q[:, t]), read(R, q[:, t])
            outs.append(a[..., None] * old + c[..., None] * new if read_gates else old + new)
            S = written(S, k[:, t], v[:, t], a, b)
        last.append((S, R))
    out = torch.stack(outs, 1) if outs else v * 0
    S, R = (None if x[0] is None else torch.cat(x) for x in zip(*last, strict=True))
    return out, S, R if has.residual else None


def slopes(results, tensors, seed=7):
    """Gradients of one weighted sum of all results, as arrays by name."""
    loss = sum(
        (x * torch.tensor(normal(seed, i, *x.shape), dtype=x.dtype)).sum()
        for i, x in enumerate(results)
        if x is not None and x.numel()
    )
    found = torch.autograd.grad(loss, list(tensors.values()), allow_unused=True)
    return {
        name: np.zeros(x.shape) if dx is None else dx.numpy()
        for (name, x), dx in zip(tensors.items(), found, strict=True)
    }


def torch_run(**given):
    out, state = attention(**given, return_state=True, impl="torch")
    return out, *state


def assert_gradients(given, tolerance=SLOPE, **switches):
    """Every gradient of the room is autograd's through the token loop."""
    tensors = leaves(given)
    named = wanting(tensors)
    want = slopes(token_loop(**tensors, **switches), named)
    assert_rows(slopes(torch_run(**tensors, **switches), named), want, tolerance, switches)
    return want


# -- the operator --


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("retention", RETENTION)
def test_it_is_the_reference_in_float64(small_chunks, rule, retention):
    for T in LENGTHS:
        given = arguments(rule, T=T, retention=retention, carried=T % 2 == 1)
        want = flat(*reference.attention(**given, return_state=True))
        assert_rows(flat(*attention(**given, return_state=True, impl="torch")), want, EXACT, T)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("retention", RETENTION)
def test_it_is_the_reference_in_float32_row_by_row(single, rule, retention):
    given = arguments(rule, T=65, K=37, V=23, retention=retention, carried=True)
    given = {name: x.astype(np.float32) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    exact, low = (
        flat(*reference.attention(**given, return_state=True, dtype=kind)) for kind in (np.float64, np.float32)
    )
    got = flat(*attention(**given, return_state=True, impl="torch"))
    for name in exact:
        assert got[name].dtype == np.float32
        seen = parity.compare(got[name], exact[name], low[name], terms=65 + 37)
        assert seen.ok, (name, seen.reason)


@pytest.mark.parametrize("rule", RESIDUAL)
@pytest.mark.parametrize("clip", [np.inf, 1.0, 0.1, 0.0])
@pytest.mark.parametrize("target", ["clip", "log_cosh"])
@pytest.mark.parametrize("read_gates", [True, False])
def test_every_switch_of_the_residual_forward_and_back(small_chunks, rule, clip, target, read_gates):
    switches = {"clip": clip, "target": target, "read_gates": read_gates}
    given = arguments(rule, T=33, retention="some zero", carried=True)
    want = flat(*reference.attention(**given, **switches, return_state=True))
    assert_rows(flat(*attention(**given, **switches, return_state=True, impl="torch")), want, EXACT)
    assert_gradients(given, **switches)


def test_normalize_and_scale():
    given = arguments(T=33)
    given["k"] = 3 * given["k"]
    switches = {"normalize": True, "scale": -0.3}
    want = flat(*reference.attention(**given, **switches, return_state=True))
    assert_rows(flat(*attention(**given, **switches, return_state=True, impl="torch")), want, EXACT)
    tensors = leaves(given)

    def by_hand(q, k, **rest):
        q, k = (x / torch.linalg.vector_norm(x, dim=-1, keepdim=True) for x in (q, k))
        return token_loop(-0.3 * q, k, **rest)

    named = wanting(tensors)
    assert_rows(slopes(torch_run(**tensors, **switches), named), slopes(by_hand(**tensors), named), SLOPE)


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_no_square_is_too_large_or_too_small_to_normalize(size):
    given = arguments(T=7)
    far = given | {"q": size * given["q"], "k": size * given["k"]}
    want = attention(**given, normalize=True, impl="torch")
    assert_rows({"out": attention(**far, normalize=True, impl="torch")}, {"out": want}, EXACT)


def test_clip_zero_without_a_carried_residual_is_the_base_read_alone():
    given = arguments("rdn", T=33)
    base = reference.trace(**given).base_read
    assert_rows({"out": attention(**given, clip=0.0, impl="torch")}, {"out": base}, EXACT)


# -- gradients --


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("retention", RETENTION)
def test_every_gradient_is_autograds_through_the_token_loop(small_chunks, rule, retention):
    for T in LENGTHS:
        want = assert_gradients(arguments(rule, T=T, retention=retention, carried=True))
        if T > 1 and retention == "some zero" and "retention" in RULES[rule].gates and rule != "retnet":
            zero = arguments(rule, T=T, retention=retention)["retention"] == 0
            assert np.abs(want["retention"][zero]).max() > 0.1  # else nothing would be seen of what 0 passes back


@pytest.mark.parametrize("rule", ["rla", "rdn", "gdn"])
def test_more_than_one_group_of_the_chunks_that_are_used(rule):
    T = torch_impl.CHUNK * torch_impl.GROUP + torch_impl.CHUNK + 3
    assert_gradients(arguments(rule, B=1, T=T, H=2, K=3, V=2, carried=True))


def test_finite_differences_agree(monkeypatch):
    monkeypatch.setattr(torch_impl, "CHUNK", 2)
    monkeypatch.setattr(torch_impl, "GROUP", 1)
    given = arguments("rdn", B=1, T=5, H=2, K=3, V=2, retention="some zero", carried=True)
    given["retention"] = 0.05 + 0.9 * given["retention"]  # a difference must not leave [0, 1]
    errors = reference.trace(**given).error
    assert np.abs(np.abs(errors) - 0.5).min() > 1e-3  # nor may it cross the clip
    tensors = leaves(given)
    names = ("q", "k", "v", *GATES)

    def f(S, R, *rest):
        return torch_run(**dict(zip(names, rest, strict=True)), state=(S, R), clip=0.5)

    assert torch.autograd.gradcheck(f, (*tensors["state"], *(tensors[name] for name in names)))


@pytest.mark.parametrize("rule", RULES)
def test_sequences_of_one_row_each_have_their_own_state_and_gradient(small_chunks, rule):
    cuts = [0, 0, 5, 5, 22, 23, 56, 56]
    given = arguments(rule, B=1, T=56, carried=True, sequences=len(cuts) - 1)
    want = flat(*reference.attention(**given, cu_seqlens=np.array(cuts), return_state=True))
    for kind in (np.array(cuts), torch.tensor(cuts, dtype=torch.int32), cuts):
        got = attention(**given, cu_seqlens=kind, return_state=True, impl="torch")
        assert_rows(flat(*(np.asarray(x) for x in got[:1]), got[1]), want, EXACT)
    assert_gradients(given, cu_seqlens=cuts)


def test_no_sequence_at_all():
    given = arguments(B=1, T=0)
    out, state = attention(**given, cu_seqlens=np.array([0]), return_state=True, impl="torch")
    assert out.shape == (1, 0, 3, 4)
    assert state.base.shape == state.residual.shape == (0, 3, 5, 4)


@pytest.mark.parametrize("sizes", [{"B": 0}, {"H": 0}, {"K": 0}, {"V": 0}])
@pytest.mark.parametrize("rule", ["rdn", "sgla"])
def test_an_axis_without_numbers(sizes, rule):
    shape = {"B": 2, "T": 7, "H": 3, "K": 5, "V": 4} | sizes
    B, T, H, K, V = shape.values()
    arrays = {name: np.ones((B, T, H, n)) for name, n in (("q", K), ("k", K), ("v", V))}
    given = {**arrays, **{name: np.full((B, T, H), 0.5) for name in RULES[rule].gates}, "rule": rule}
    tensors = leaves(given)
    out, state = attention(**tensors, return_state=True, impl="torch")
    (out.sum() + state.base.sum()).backward()
    assert out.shape == (B, T, H, V)
    assert state.base.shape == (B, H, K, V)
    assert all(x.grad.shape == x.shape for x in wanting(tensors).values())
    assert not out.any()  # of no key nothing is recalled


def test_gates_that_are_fixed_in_time_get_one_gradient_a_head():
    given = arguments(T=33)
    fixed = {name: given[name][0, 0] for name in GATES}
    whole = {name: np.broadcast_to(x, given[name].shape).copy() for name, x in fixed.items()}
    few, many = leaves(given | fixed), leaves(given | whole)
    got, each = (slopes(torch_run(**x), wanting(x)) for x in (few, many))
    for name in GATES:
        assert got[name].shape == (3,)
        np.testing.assert_allclose(got[name], each[name].sum((0, 1)), rtol=1e-11)


def test_a_correction_that_is_not_given_is_the_write_and_sends_it_its_gradient(small_chunks):
    given = arguments(T=33, carried=True)
    del given["correction"]
    got = assert_gradients(given)
    untied = slopes(torch_run(**(apart := leaves(given | {"correction": given["write"]}))), wanting(apart))
    np.testing.assert_allclose(got["write"], untied["write"] + untied["correction"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rule", ["rla", "rdn", "sgla", "gdn", "retnet"])
def test_log_retention_has_retention_times_its_gradient_and_0_at_minus_infinity(small_chunks, rule):
    given = arguments(rule, T=33, retention="some zero", carried=True)
    alpha = given.pop("retention")
    alpha.flat[0] = 0
    with np.errstate(divide="ignore"):
        log = leaves(given | {"log_retention": np.log(alpha)})
    plain = leaves(given | {"retention": alpha})
    got, want = (slopes(torch_run(**x), wanting(x)) for x in (log, plain))
    np.testing.assert_allclose(got["log_retention"], alpha * want["retention"], rtol=1e-9, atol=1e-12)
    assert np.isneginf(log["log_retention"].detach().numpy()).any()
    assert np.all(got["log_retention"][alpha == 0] == 0)
    if rule != "retnet":
        assert np.abs(want["retention"][alpha == 0]).max() > 0.1  # retention 0 itself is not without a gradient


def test_log_retention_passes_torchs_own_check_of_the_chain():
    """Without an infinity the token loop may take the exponential itself."""
    given = arguments(T=33)
    log = np.log(given.pop("retention"))
    assert_gradients(given | {"log_retention": log})


def test_an_error_at_the_clip_itself_passes_its_gradient_as_clamp_does():
    """The first error is v itself, as nothing was written before."""
    given = arguments("rla", B=1, T=1, H=1, K=2, V=4)
    given["v"][...] = [0.5, -0.5, np.nextafter(0.5, 1), 0.25]
    got = slopes(torch_run(**(tensors := leaves(given)), clip=0.5), named := wanting(tensors))
    want = slopes(token_loop(**tensors, clip=0.5), named)
    np.testing.assert_allclose(got["v"], want["v"], rtol=1e-12)
    inside = slopes(torch_run(**tensors, clip=0.6), named)
    assert (got["v"] == inside["v"]).ravel().tolist() == [True, True, False, True]


@pytest.mark.parametrize("last", ["base", "residual"])
@pytest.mark.parametrize("rule", RESIDUAL)
def test_a_loss_on_one_final_state_alone(small_chunks, rule, last):
    tensors = leaves(arguments(rule, T=33, carried=True))
    named, place = wanting(tensors), ("out", "base", "residual").index(last)
    got, want = (slopes([f(**tensors)[place]], named) for f in (torch_run, token_loop))
    assert_rows(got, want, SLOPE)
    assert not got["q"].any()
    assert got["retention"].any()


def test_a_loss_on_the_output_alone_and_only_one_argument_that_wants_a_gradient(small_chunks):
    given = arguments(T=33, carried=True)
    tensors = leaves(given)
    want = slopes(token_loop(**tensors)[:1], wanting(tensors))
    for name in ("q", "k", "v", *GATES):
        plain = {other: x.detach() if isinstance(x, torch.Tensor) else x for other, x in tensors.items()}
        plain[name] = tensors[name]
        plain["state"] = tuple(x.detach() for x in tensors["state"])
        out, _, _ = torch_run(**plain)
        assert_rows(slopes([out], {name: tensors[name]}), {name: want[name]}, SLOPE)


def test_one_tensor_for_several_arguments():
    given = arguments(T=33, V=5)
    x, gate = (torch.tensor(given[name], requires_grad=True) for name in ("k", "write"))
    call = {"q": x, "k": x, "v": x, "retention": gate, "write": gate, "correction": gate, "rule": "rdn"}
    named = {"x": x, "gate": gate}
    assert_rows(slopes(torch_run(**call), named), slopes(token_loop(**call), named), SLOPE)


def test_a_gradient_that_is_expanded_transposed_or_absent(kind, small_chunks):
    """`sum()` sends back one number, expanded."""
    tensors = leaves(arguments(T=33, carried=True), kind)
    named = list(wanting(tensors).values())
    out, S, R = torch_run(**tensors)
    d_out, dS, dR = (torch.ones_like(x) for x in (out, S, R))
    want = torch.autograd.grad((out, S, R), named, (d_out, dS, dR), retain_graph=True)
    crossed = torch.ones(out.shape[::-1], dtype=out.dtype).permute(3, 2, 1, 0)
    for other in (torch.ones((), dtype=out.dtype).expand_as(out), crossed):
        got = torch.autograd.grad((out, S, R), named, (other, dS.mT.contiguous().mT, dR[:1, :1, :1, :1].expand_as(dR)),
                                  retain_graph=True)  # fmt: skip
        assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))
    got = torch.autograd.grad(out.sum() + S.sum() + R.sum(), named)
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))


def test_inputs_that_are_views_have_the_gradients_of_copies(small_chunks):
    given = arguments(T=33)
    tensors = leaves(given)
    named = wanting(tensors)
    want = slopes(torch_run(**tensors), named)
    views = dict(tensors)
    for name, x in named.items():
        wide = torch.stack([x, -x], -1).transpose(0, 1).contiguous().transpose(0, 1)  # strides of no copy
        views[name] = wide[..., 0]
        assert not views[name].is_contiguous()
    assert_rows(slopes(torch_run(**views), named), want, 0.0)


def test_a_second_derivative_is_refused_clearly(kind):
    tensors = leaves(arguments(T=33), kind)
    for loss in (torch.sum, lambda out: out.square().sum()):
        out = attention(**tensors, impl="torch")
        for name in ("q", "retention"):
            (slope,) = torch.autograd.grad(loss(out), tensors[name], create_graph=True)
            with pytest.raises(RuntimeError, match="no second derivative"):
                slope.square().sum().backward()


def test_going_back_twice_gives_the_same_bits(kind):
    tensors = leaves(arguments(T=33), kind)
    named = list(wanting(tensors).values())
    loss = attention(**tensors, impl="torch").square().sum()
    first, second = (torch.autograd.grad(loss, named, retain_graph=True) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def test_arguments_that_were_changed_meanwhile_are_refused(kind):
    tensors = leaves(arguments(T=33), kind)
    loss = attention(**tensors, impl="torch").sum()
    with torch.no_grad():
        tensors["k"].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_the_state_that_was_given_is_left_as_it_was():
    given = arguments(T=33, carried=True)
    before = [x.copy() for x in given["state"]]
    tensors = {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    tensors["state"] = tuple(map(torch.from_numpy, given["state"]))
    _, state = attention(**tensors, return_state=True, impl="torch")
    nothing = {name: x[:, :0] if isinstance(x, torch.Tensor) else x for name, x in tensors.items()}
    _, same = attention(**nothing, return_state=True, impl="torch")
    for x, y, after, copied in zip(given["state"], before, state, same, strict=True):
        assert np.array_equal(x, y)
        assert not np.array_equal(after, y)
        assert np.array_equal(copied, y)
        assert copied.data_ptr() != x.ctypes.data


# -- padding, batches, memory --


def test_padded_tokens_change_no_later_token_no_state_and_get_no_gradient(small_chunks):
    """A pad keeps all (retention 1) and writes nothing (write and correction 0); its k and v are free."""
    given = arguments(T=40, carried=True)
    pad = np.isin(np.arange(40), [0, 3, 4, 17, 18, 19, 39])
    full = {name: x.copy() if isinstance(x, np.ndarray) else x for name, x in given.items()}
    full["retention"][:, pad], full["write"][:, pad], full["correction"][:, pad] = 1, 0, 0
    full["k"][:, pad], full["v"][:, pad] = 7, 1e3
    short = {name: x[:, ~pad] if isinstance(x, np.ndarray) else x for name, x in full.items()}
    got = flat(*attention(**full, return_state=True, impl="torch"))
    got["out"] = got["out"][:, ~pad]
    assert_rows(got, flat(*attention(**short, return_state=True, impl="torch")), EXACT)
    out, S, R = torch_run(**(tensors := leaves(full)))
    slope = torch.autograd.grad(out[:, ~pad].square().sum() + S.square().sum() + R.sum(), (tensors["k"], tensors["v"]))
    assert all(not x[:, pad].any() and x[:, ~pad].all() for x in slope)


@pytest.mark.parametrize("rule", ["rdn", "rla", "gdn", "linear"])
def test_a_row_alone_has_the_bits_of_the_row_in_a_batch_forward_and_back(kind, rule):
    """At widths where no second matrix of a batch starts on a cache line."""

    def run(given, rows):
        part = {name: x[rows] if isinstance(x, np.ndarray) else x for name, x in given.items()}
        part["state"] = tuple(x if x is None else x[rows] for x in given["state"])
        tensors = leaves(part, kind)
        out, S, _ = torch_run(**tensors)
        found = torch.autograd.grad(out.square().sum() + S.sum(), list(wanting(tensors).values()))
        return out.detach(), S.detach(), *found

    for T, K, V in itertools.product((1, 6, 70), (24, 61), (17, 35)):
        given = arguments(rule, B=3, T=T, H=1, K=K, V=V, carried=True)
        whole = run(given, slice(0, 3))
        for b in range(3):
            for x, y in zip(run(given, slice(b, b + 1)), whole, strict=True):
                assert torch.equal(x[0], y[b]), (T, K, V)


@pytest.mark.parametrize("rule", RULES)
def test_rows_side_by_side_as_on_a_gpu(monkeypatch, small_chunks, rule):
    monkeypatch.setattr(torch_impl, "parts", lambda *sizes, together: parts(*sizes, together=True))
    given = arguments(rule, B=3, T=65, retention="some zero", carried=True)
    want = flat(*reference.attention(**given, return_state=True))
    assert_rows(flat(*attention(**given, return_state=True, impl="torch")), want, EXACT)
    assert_gradients(given)


def test_what_backward_keeps_grows_linearly():
    B, H, K, V = 1, 2, 5, 4
    span = torch_impl.CHUNK * torch_impl.GROUP

    def kept(T):
        given, sizes = leaves(arguments("rdn", B=B, T=T, H=H, K=K, V=V)), {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x: sizes.update({x.data_ptr(): x.numel()}) or x, lambda x: x
        ):
            attention(**given, impl="torch")
        return sum(sizes.values())

    # q, k, v and three gates; P and RP; both states once a group: no table, no write, no state of a chunk
    assert kept(3 * span) - kept(2 * span) == H * (span * (K + K + V + 3 + 2 * V) + 2 * K * V)


def test_nothing_is_kept_where_nobody_asks_for_a_gradient(monkeypatch, small_chunks):
    alive, run = [], torch_impl._Group.run

    def watched(group, *memories):
        assert sum(x() is not None for x in alive) <= 1  # the one of the group before may wait for its name
        out, recalls, last = run(group, *memories)
        alive.append(weakref.ref(recalls[0]))
        return out, recalls, last

    monkeypatch.setattr(torch_impl._Group, "run", watched)
    given = arguments(T=130)
    attention(**given, impl="torch")
    assert len(alive) > 4
    assert not any(x() is not None for x in alive)


def test_no_uninitialised_number_reaches_a_result(small_chunks):
    """Every new tensor is filled with NaN first."""
    given = arguments(T=41, carried=True)
    tensors = leaves(given)
    want = slopes(torch_run(**tensors), wanting(tensors))
    plain = [x.detach() for x in torch_run(**tensors)]
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3).isnan().all()
        results = torch_run(**tensors)
        assert_rows(slopes(results, wanting(tensors)), want, 0.0)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(x.detach(), y) for x, y in zip(results, plain, strict=True))


# -- types --


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("retention", ["mild", "some zero", "one reset"])
def test_single_precision_has_the_gradients_of_double(single, rule, retention):
    """To 2e-5 of the largest number of each: a hundred roundings of float32."""
    for T, cuts in ((1, None), (70, None), (70, [0, 0, 33, 70])):
        given = arguments(rule, B=1, T=T, H=2, K=24, V=17, retention=retention, carried=True, sequences=cuts and 3)
        exact = leaves({n: x.astype(np.float32) if isinstance(x, np.ndarray) else x for n, x in given.items()})
        narrow = leaves(given, torch.float32)
        got, want = (slopes(torch_run(**x, cu_seqlens=cuts), wanting(x)) for x in (narrow, exact))
        for name, x in want.items():
            assert got[name].dtype == np.float32
            assert np.abs(got[name] - x).max() <= 2e-5 * np.abs(x).max(), (name, T, cuts)


def test_a_logarithm_in_float64_is_rounded_once_and_not_before_its_exponential():
    log = np.full(1, -80.123456789)
    alpha, _, _ = gates((1, 1, 1), None, None, None, log, dtype=torch.float32, device="cpu")
    assert alpha.item() == np.float32(np.exp(log[0]))
    assert alpha.item() != np.exp(np.float32(log[0]))


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rule", ["rdn", "sgla"])
def test_narrow_types_come_back_as_they_went_in_with_wide_states_and_gradients_of_their_type(single, kind, rule):
    tensors = leaves(arguments(rule, T=65), kind)
    out, state = attention(**tensors, return_state=True, impl="torch")
    assert out.dtype == kind
    assert state.base.dtype == torch.float32
    given = {name: x.detach().double().numpy() if isinstance(x, torch.Tensor) else x for name, x in tensors.items()}
    exact, low = (
        flat(*reference.attention(**given, return_state=True, dtype=kind)) for kind in (np.float64, np.float32)
    )
    rounded = float(torch.finfo(kind).eps)
    seen = parity.compare(out, exact["out"], low["out"], terms=65 + 5, out_dtype=rounded)
    assert seen.ok, seen.reason
    seen = parity.compare(state.base, exact["base"], low["base"], terms=65 + 5)  # of which nothing was rounded away
    assert seen.ok, seen.reason
    wide = leaves(given)
    want = torch.autograd.grad(attention(**wide, impl="torch").sum(), (named := wanting(wide)).values())
    got = torch.autograd.grad(out.float().sum(), wanting(tensors).values())
    for name, x, y in zip(named, got, want, strict=True):
        assert x.dtype == kind
        assert (x.double() - y).abs().max() <= (rounded + 1e-5) * y.abs().max(), name


def test_the_widest_of_q_k_v_sets_the_working_precision_and_v_the_type_of_the_output():
    given = {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in arguments(T=33).items()}
    given |= {"v": given["v"].float(), "write": given["write"].half()}
    out, state = attention(**given, return_state=True, impl="torch")
    assert out.dtype == torch.float32
    assert state.base.dtype == torch.float64
    want = reference.attention(**{n: x.numpy() if isinstance(x, torch.Tensor) else x for n, x in given.items()})
    np.testing.assert_allclose(out, want, rtol=1e-6, atol=1e-7)


def test_autocast_does_not_lower_the_working_precision(single):
    tensors = leaves(arguments(T=33, carried=True), torch.float32)
    named = wanting(tensors)
    want = slopes(torch_run(**tensors), named)
    with torch.autocast("cpu", torch.bfloat16):
        got = slopes(torch_run(**tensors), named)
    assert_rows(got, want, 0.0)


def test_numpy_goes_in_and_comes_out():
    out, state = attention(**arguments(T=7), return_state=True, impl="torch")
    assert isinstance(out, np.ndarray)
    assert isinstance(state.base, np.ndarray)
    assert isinstance(state.residual, np.ndarray)
    _, state = attention(**arguments("gdn", T=7), return_state=True, impl="torch")
    assert state.residual is None


@pytest.mark.parametrize("kind", [">f8", np.longdouble])
def test_numpy_types_that_torch_does_not_have_are_converted(kind):
    given = arguments(T=7)
    odd = {name: x.astype(kind) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    np.testing.assert_allclose(attention(**odd, impl="torch"), attention(**given), rtol=1e-11)


@pytest.mark.parametrize("name", ["write", "log_retention", "state"])
def test_a_tensor_among_arrays_gives_a_tensor_with_its_gradient(name):
    given = arguments(T=7, carried=True)
    given["log_retention"] = np.log(given.pop("retention"))
    if name == "state":
        own = torch.tensor(given["state"].base, requires_grad=True)
        given["state"] = (own, given["state"].residual)
    else:
        own = given[name] = torch.tensor(given[name], requires_grad=True)
    attention(**given, impl="torch").sum().backward()
    assert own.grad.any()


def test_a_tensor_that_is_a_view_of_negated_numbers(kind):
    given = {
        name: torch.tensor(x, dtype=kind) if isinstance(x, np.ndarray) else x for name, x in arguments(T=33).items()
    }
    turned = torch.complex(torch.zeros_like(given["v"]), given["v"]).conj().imag
    want = attention(**given | {"v": -given["v"]}, impl="torch")
    torch.testing.assert_close(attention(**given | {"v": turned}, impl="torch"), want, rtol=0, atol=0)


# -- compiled, refused --


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, about how it calls what it has compiled,
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # and about what its tracer looks at
def test_it_goes_through_torch_compile(kind):
    """The room; the door in front of it looks at numbers, which a tracer does not have."""
    given = arguments(B=1, T=7, H=2)
    tensors = [torch.tensor(given[name], dtype=kind, requires_grad=True) for name in ("q", "k", "v", *GATES)]

    def f(q, k, v, *gates):
        return torch_impl.attention(2 * q, k, v, *gates) + 1

    torch._dynamo.reset()
    got, want = torch.compile(f, backend="eager")(*tensors), f(*tensors)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    for x, y in zip(*(torch.autograd.grad(out.square().sum(), tensors) for out in (got, want)), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


@pytest.mark.parametrize("rule", RESIDUAL)
def test_a_memory_of_the_newest_error_alone_is_refused(rule):
    with pytest.raises(backend.Unsupported, match=r"covers fitting=True; the reference has fitting=False"):
        attention(**arguments(rule, T=7), fitting=False, impl="torch")


def test_switches_of_the_residual_do_not_concern_a_rule_without_one():
    given = arguments("gdn", T=7)
    switches = {"fitting": False, "read_gates": False, "clip": 0.0, "target": "log_cosh"}
    assert np.array_equal(attention(**given, **switches, impl="torch"), attention(**given, impl="torch"))


def test_heads_and_tokens_in_the_other_order_are_refused_where_sizes_disagree():
    given = {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in arguments(T=7).items()}
    turned = {name: given[name].transpose(1, 2) for name in ("q", "k", "v")}  # [B, H, T, D]
    with pytest.raises(ValueError, match=r"retention must be \[B, T, H\]"):
        attention(**given | turned, impl="torch")
    with pytest.raises(ValueError, match=r"k must be \[B, T, H, K\]"):
        attention(**given | {"k": turned["k"]}, impl="torch")
