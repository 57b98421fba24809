"""The chunked form against the token loop, and its gradient against autograd through a loop of its own."""

import itertools

import numpy as np
import pytest

from attnlab.backend import Unsupported
from attnlab.residual import RULES, State, chunked, reference
from tests.residual.cases import GATES, RESIDUAL, RETENTION, arguments, assert_rows, cut, flat, normal, row_error

CLOSE = 1e-12  # relative to a row's largest entry, float64: the same numbers added in another order
INF = float("inf")
LENGTHS, CHUNKS, CLIPS = (0, 1, 2, 7, 15, 16, 17, 65), (1, 7, 16, 32), (INF, 1.0, 0.1, 0.0)
SAMPLE = [  # (retention, T, chunk, clip, carried): not the whole product, but every pair of settings
    (name, T, chunk, CLIPS[(m + i + j) % 4], bool((m // 2 + i // 4 + i + j // 2) % 2))
    for (m, name), (i, T), (j, chunk) in itertools.product(enumerate(RETENTION), enumerate(LENGTHS), enumerate(CHUNKS))
]


def run(room, given, **options):
    return flat(*room.attention(**given, **options, return_state=True))


# -- forward --


def test_the_sample_holds_every_pair_of_settings():
    columns = list(zip(*SAMPLE, strict=True))
    for one, other in itertools.combinations(columns, 2):
        assert len(set(zip(one, other, strict=True))) == len(set(one)) * len(set(other))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", RETENTION)
def test_a_chunk_at_a_time_is_the_token_loop(rule, name):
    sample = {setting[1:] for setting in SAMPLE if setting[0] == name}
    for T, clip, carried in sorted({(T, clip, carried) for T, _, clip, carried in sample}):
        given = arguments(rule, B=1, T=T, H=2, V=3, retention=name, carried=carried, seed=T)
        want = run(reference, given, clip=clip)
        for chunk in (chunk for chunk in CHUNKS if (T, chunk, clip, carried) in sample):
            got = run(chunked, given, clip=clip, chunk=chunk)
            assert_rows(got, want, CLOSE, (T, chunk, clip, carried))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("K", "V"), [(1, 3), (3, 1), (60, 64), (128, 2)])
def test_any_widths_batch_and_heads(rule, K, V):
    given = arguments(rule, B=2, T=19, H=3, K=K, V=V, carried=True)
    assert_rows(run(chunked, given, chunk=8), run(reference, given), CLOSE)


SWITCHES = [
    {"target": "log_cosh"},
    {"read_gates": False},
    {"fitting": False},
    {"fitting": False, "read_gates": False, "clip": 0.5},
    {"fitting": False, "target": "log_cosh"},
    {"normalize": True, "scale": 0.3},
    {"read_gates": False, "target": "log_cosh", "clip": 0.0, "scale": -2.0},
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("switches", SWITCHES, ids=str)
@pytest.mark.parametrize("T", [0, 1, 23])
def test_every_switch(rule, switches, T):
    given = arguments(rule, T=T, retention="some zero", carried=True)
    given |= {"q": 2.0 * given["q"], "k": 1.2 * given["k"]}
    assert_rows(run(chunked, given, **switches, chunk=7), run(reference, given, **switches), CLOSE)


@pytest.mark.parametrize("rule", RULES)
def test_other_forms_of_the_gates(rule):
    given = arguments(rule, T=20, retention="any magnitude")
    has = RULES[rule].gates
    if "retention" in has:
        logs = given | {"retention": None, "log_retention": np.log(given["retention"])}
        assert_rows(run(chunked, logs, chunk=6), run(reference, logs), CLOSE)
    fixed = given | {name: given[name].ravel()[:3] for name in has}
    assert_rows(run(chunked, fixed, chunk=6), run(reference, fixed), CLOSE)
    if "correction" in has:
        tied = given | {"correction": None}
        assert_rows(run(chunked, tied, chunk=6), run(reference, tied), CLOSE)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("chunk", [1, 5, 32])
def test_packed_sequences_also_empty_ones(rule, chunk):
    cuts = np.array([0, 0, 11, 29, 29, 29])
    given = arguments(rule, B=1, T=29, carried=True, sequences=5) | {"cu_seqlens": cuts}
    got, want = run(chunked, given, chunk=chunk), run(reference, given)
    assert_rows(got, want, CLOSE)
    assert np.array_equal(got["base"][[0, 3, 4]], given["state"].base[[0, 3, 4]])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["mild", "one reset", "some zero"])
def test_any_cut_with_the_state_carried_is_one_run(rule, name):
    T = 24
    given = arguments(rule, T=T, retention=name, carried=True)
    whole = run(chunked, given, chunk=8)
    for at in range(T + 1):
        out, state = chunked.attention(**cut(given, 0, at), chunk=8, return_state=True)
        rest, state = chunked.attention(**cut(given, at, T) | {"state": state}, chunk=8, return_state=True)
        assert_rows(flat(np.concatenate([out, rest], axis=1), state), whole, CLOSE, at)


def test_the_entering_state_is_left_alone():
    given = arguments("rdn", T=9, carried=True)
    for x in given["state"]:
        x.flags.writeable = False
    _, state = chunked.attention(**cut(given, 0, 0), return_state=True)
    assert all(np.array_equal(got, want) for got, want in zip(state, given["state"], strict=True))
    assert not any(np.shares_memory(got, want) for got, want in zip(state, given["state"], strict=True))


@pytest.mark.parametrize("chunk", [0, 1025, 2.5, "8", True, np.nan])
def test_a_chunk_is_a_whole_number_of_tokens(chunk):
    for function in (chunked.attention, chunked.gradient):
        with pytest.raises(ValueError, match=r"chunk must (lie in|be a whole number in) \[1, 1024\], got"):
            function(**arguments(), chunk=chunk)


def test_the_decay_table_is_the_product_of_what_lies_between():
    alpha = np.array([0.5, 0.0, 0.25, 1e-300, 0.75, 1e-200])[:, None]
    table, n = chunked.decay(alpha), len(alpha)
    for i, j in np.ndindex(n, n):
        assert table.D[i, j] == (np.prod(alpha[j + 1 : i + 1]) if j <= i else 0.0)
        assert table.E[i, j] == (np.prod(alpha[j + 1 : i]) if j < i else 0.0)
    for i in range(n):
        assert table.a[i, 0] == np.prod(alpha[: i + 1])
        assert table.before[i, 0] == np.prod(alpha[:i])
        assert table.h[i, 0] == np.prod(alpha[i + 1 :])


# -- gradient --


def cotangents(given, seed=7):
    """Random d_out and d_state in the shapes of what a call returns."""
    v, N = given["v"], len(given["cu_seqlens"]) - 1 if "cu_seqlens" in given else len(given["v"])
    memory = (N, v.shape[2], given["k"].shape[3], v.shape[3])
    base, residual = normal(seed, 2, *memory), normal(seed, 3, *memory)
    return normal(seed, 1, *v.shape), State(base, residual if RULES[given["rule"]].residual else None)


def flat_gradient(given, found):
    """The gradients that exist, by the names of the arguments and of the two memories."""
    named = found._asdict() | {"base": found.state.base, "residual": found.state.residual}
    return {name: x for name, x in named.items() if name != "state" and x is not None}


def gradient(given, d_out, d_state, **options):
    return flat_gradient(given, chunked.gradient(**given, **options, d_out=d_out, d_state=d_state))


def recall(memory, x):
    return (x[..., None] * memory).sum(-2)


def written(memory, key, value, alpha, rate, delta):
    memory = alpha[..., None, None] * memory
    value = value - recall(memory, key) if delta else value
    return memory + rate[..., None, None] * key[..., :, None] * value[..., None, :]


def token_loop(torch, x, parts, rule, clip=1.0, target="clip", read_gates=True, normalize=False, scale=1.0):
    """[o], [S], [R] of every sequence, differentiable, of `x` with all gates [B, T, H]."""
    delta, residual, outs, bases, residuals = RULES[rule].delta, RULES[rule].residual, [], [], []
    q, k = (y / y.norm(dim=-1, keepdim=True) for y in (x["q"], x["k"])) if normalize else (x["q"], x["k"])
    for n, (b, start, end) in enumerate(parts):
        S, R = x["base"][n], x["residual"][n]
        for t in range(start, end):
            key, query, value = k[b, t], scale * q[b, t], x["v"][b, t]
            alpha, beta, gamma = (x[name][b, t] for name in GATES)
            error = value - recall(S, key)
            r = torch.tanh(error) if target == "log_cosh" else torch.clamp(error, -clip, clip)
            if residual:
                R = written(R, key, r, alpha, gamma, delta)
                reads = recall(S, query), recall(R, query)
                outs.append(alpha[:, None] * reads[0] + gamma[:, None] * reads[1] if read_gates else sum(reads))
            S = written(S, key, value, alpha, beta, delta)
            if not residual:
                outs.append(recall(S, query))
        bases.append(S)
        residuals.append(R)
    return outs, bases, residuals


def autograd(given, d_out, d_state, **options):
    """`gradient`, found by torch."""
    torch = pytest.importorskip("torch")
    has, (B, T, H, K), V = RULES[given["rule"]], given["q"].shape, given["v"].shape[-1]
    cuts = given.get("cu_seqlens")
    parts = [(b, 0, T) for b in range(B)] if cuts is None else [(0, *pair) for pair in itertools.pairwise(cuts)]
    memories = given["state"] or (np.zeros((len(parts), H, K, V)),) * 2
    named = {name: given.get(name) for name in ("q", "k", "v", *GATES, "log_retention")}
    named |= {"base": memories[0], "residual": memories[1] if has.residual else None}
    leaves = {name: torch.tensor(x, requires_grad=True) for name, x in named.items() if x is not None}
    x = dict(leaves)
    if "log_retention" in x:
        x["retention"] = x["log_retention"].exp()
    x["write"] = x.get("write", torch.ones(H, dtype=torch.float64))
    x["correction"] = x.get("correction", x["write"])
    x["retention"] = x.get("retention", torch.ones(H, dtype=torch.float64))
    x |= {name: x[name].expand(B, T, H) for name in GATES}
    x["residual"] = x.get("residual", torch.zeros_like(x["base"]))
    outs, *last = token_loop(torch, x, parts, given["rule"], **options)
    flat_d_out = torch.tensor(np.array(d_out)).reshape(-1, H, V)
    loss = sum((o * d).sum() for o, d in zip(outs, flat_d_out, strict=True)) + 0.0 * x["q"].sum()
    for memory, d in zip(last, d_state, strict=True):
        loss = loss + (0.0 if d is None else (torch.stack(memory) * torch.tensor(d)).sum())
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, (d.numpy() for d in found), strict=True))


def assert_gradient(given, *, chunk=7, d=None, **options):
    """Every gradient of one call, each row."""
    d_out, d_state = d or cotangents(given)
    got = gradient(given, d_out, d_state, chunk=chunk, **options)
    assert_rows(got, autograd(given, d_out, d_state, **options), CLOSE, options)
    return got


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", RETENTION)
def test_the_gradient_is_that_of_the_token_loop(rule, name):
    """Over two chunks and a rest, and within one chunk; with a state carried in and a loss on the one that leaves."""
    for clip in (INF, 1.0, 0.1, 0.0) if RULES[rule].residual else (1.0,):
        given = arguments(rule, T=17, retention=name, carried=True)
        assert_gradient(given, chunk=32 if clip == 0.1 else 7, clip=clip)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("T", [0, 1, 2, 6, 7, 8])
def test_the_gradient_of_few_tokens_and_of_whole_chunks(rule, T):
    assert_gradient(arguments(rule, T=T, carried=True))
    assert_gradient(arguments(rule, T=T), chunk=1)


@pytest.mark.parametrize("rule", RESIDUAL)
@pytest.mark.parametrize(
    "switches",
    [
        {"target": "log_cosh"},
        {"read_gates": False},
        {"read_gates": False, "target": "log_cosh"},
        {"normalize": True, "scale": 0.3},
    ],
    ids=str,
)
def test_the_gradient_under_every_switch(rule, switches):
    for name in ("mild", "some zero"):
        given = arguments(rule, T=10, retention=name, carried=True)
        assert_gradient(given | {"q": 2.0 * given["q"], "k": 1.2 * given["k"]}, **switches)


def test_the_gradient_without_fitting_is_refused():
    with pytest.raises(Unsupported, match="no gradient for fitting=False"):
        chunked.gradient(**arguments("rdn"), fitting=False)


@pytest.mark.parametrize("rule", RULES)
def test_the_gradient_of_other_forms_of_the_gates(rule):
    """A gate fixed in time gathers over it; a logarithm has alpha times the gradient; a tied correction joins write."""
    given, has = arguments(rule, T=10, retention="some zero", carried=True), RULES[rule].gates
    assert_gradient(given | {name: given[name].ravel()[:3] for name in has})
    if "retention" in has:
        with np.errstate(divide="ignore"):
            logs = given | {"retention": None, "log_retention": np.log(given["retention"])}
        d = cotangents(given)
        got, plain = gradient(logs, *d), gradient(given, *d)
        assert row_error(got["log_retention"], given["retention"] * plain["retention"]) <= CLOSE
        kept = arguments(rule, T=10, carried=True)
        assert_gradient(kept | {"retention": None, "log_retention": np.log(kept["retention"])})
    if "correction" in has:
        assert_gradient(given | {"correction": None})


@pytest.mark.parametrize("rule", [rule for rule in RULES if "retention" in RULES[rule].gates])
def test_the_gradient_of_retention_is_there_where_retention_is_zero(rule):
    given = arguments(rule, T=9, carried=True)
    given["retention"][...] = 0.0
    got = assert_gradient(given, chunk=4)
    assert np.all(got["retention"] != 0)


@pytest.mark.parametrize("rule", RESIDUAL)
@pytest.mark.parametrize("chunk", [1, 4])
def test_an_error_of_exactly_the_clip_width_passes_its_gradient_as_in_torch(rule, chunk):
    """Keys along different axes and no state: the errors are v itself. Without a write v is heard of by R alone."""
    c = 0.5
    edge = np.array([[c, -c, np.nextafter(c, 1), -np.nextafter(c, 1)], [0.0, np.nextafter(c, 0), 2.0, -c]])
    given = arguments(rule, B=1, T=2, H=1, K=5, V=4)
    given |= {"k": np.eye(5)[:2].reshape(1, 2, 1, 5), "v": edge.reshape(1, 2, 1, 4), "write": np.zeros(1)}
    passed = assert_gradient(given, chunk=chunk, clip=c)["v"][0, :, 0] != 0
    assert passed.tolist() == [[True, True, False, False], [True, True, False, True]]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("only", [0, 1])
def test_a_loss_on_one_memory_alone(rule, only):
    given = arguments(rule, T=9, carried=True)
    _, d_state = cotangents(given)
    d_state = State(*(x if i == only else None for i, x in enumerate(d_state)))
    got = gradient(given, None, d_state, chunk=4)
    want = autograd(given, np.zeros_like(given["v"]), d_state)
    assert_rows(got, want, CLOSE)
    if d_state[only] is not None and "retention" in got:
        assert np.all(got["retention"][..., -1] != 0)


@pytest.mark.parametrize("rule", RULES)
def test_expanded_and_strided_cotangents(rule):
    """What the sum of an output sends back: one number with strides of 0."""
    given = arguments(rule, T=9, carried=True)
    ones = [np.ones((2, 9, 3, 4)), State(*(None if x is None else np.ones((2, 3, 5, 4)) for x in given["state"]))]
    expanded = [
        np.broadcast_to(1.0, (2, 9, 3, 4)),
        State(*(None if x is None else np.broadcast_to(1.0, (2, 3, 5, 4)) for x in given["state"])),
    ]
    assert_rows(gradient(given, *expanded, chunk=4), gradient(given, *ones, chunk=4), CLOSE)
    assert_gradient(given, d=ones)
    turned = {name: np.asfortranarray(x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    assert_rows(gradient(turned, *expanded, chunk=4), gradient(given, *ones, chunk=4), CLOSE)


@pytest.mark.parametrize("rule", RULES)
def test_the_gradient_of_packed_sequences_also_empty_ones(rule):
    cuts = np.array([0, 0, 6, 15, 15])
    given = arguments(rule, B=1, T=15, carried=True, sequences=4) | {"cu_seqlens": cuts}
    got = assert_gradient(given, chunk=4)
    assert np.array_equal(got["base"][[0, 3]], cotangents(given)[1].base[[0, 3]])


@pytest.mark.parametrize("rule", RULES)
def test_without_cotangents_all_gradients_are_zero_and_have_the_shapes_of_their_arguments(rule):
    given = arguments(rule, T=9)
    found = chunked.gradient(**given)
    named = flat_gradient(given, found)
    assert not any(x.any() for x in named.values())
    assert named.keys() == {"q", "k", "v", *RULES[rule].gates, "base", *(["residual"] * RULES[rule].residual)}
    assert all(x.shape == given[name].shape for name, x in named.items() if name in given)
    assert found.state.base.shape == (2, 3, 5, 4)


@pytest.mark.parametrize("rule", RULES)
def test_the_gradient_is_a_slope_of_the_reference(rule):
    """Without torch: the loss a step to either side in a random direction, away from the clip's edge (log-cosh)."""
    given, step = arguments(rule, T=12, carried=True), 1e-5
    given["retention"] = None if "retention" not in given else 0.1 + 0.8 * given["retention"]
    d_out, d_state = cotangents(given)
    names = [name for name in ("q", "k", "v", *GATES) if given.get(name) is not None]
    towards = {name: normal(8, i, 1, given[name].size).reshape(given[name].shape) for i, name in enumerate(names)}
    memories = [None if x is None else normal(8, 20 + i, *x.shape) for i, x in enumerate(given["state"])]

    def loss(h):
        moved = given | {name: given[name] + h * towards[name] for name in names}
        moved["state"] = State(
            *(None if m is None else x + h * m for x, m in zip(given["state"], memories, strict=True))
        )
        got = run(reference, moved, target="log_cosh")
        ends = {"out": d_out, "base": d_state.base, "residual": d_state.residual}
        return sum(np.sum(got[name] * ends[name]) for name in got)

    got = gradient(given, d_out, d_state, target="log_cosh", chunk=5)
    slope = sum(np.sum(got[name] * towards[name]) for name in names)
    slope += sum(np.sum(got[n] * m) for n, m in zip(("base", "residual"), memories, strict=True) if m is not None)
    # a central difference is off by step^2 times a third derivative, some hundreds here, and by rounding, 1e-16 / step
    assert slope == pytest.approx((loss(step) - loss(-step)) / (2 * step), rel=1e-6)
