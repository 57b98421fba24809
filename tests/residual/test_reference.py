"""The reference against numbers worked by hand, the paper's own lines, and everything it must survive."""

import ast
import inspect
import itertools

import numpy as np
import pytest

import attnlab
from attnlab.dense import unit
from attnlab.residual import RULES, State, reference, retnet_retention
from tests.residual.cases import RESIDUAL, RETENTION, arguments, assert_rows, cut, flat, normal, row_error, uniform

B, T, H, K, V = 2, 9, 3, 5, 4
attention = attnlab.residual.attention
EXACT = 1e-13  # other order of additions, some tens of them, in float64


def run(**given):
    return flat(*attention(**given, return_state=True))


def code_lines(function) -> int:
    """Lines of a function that hold code: no docstring, comment or blank line."""
    source = inspect.getsource(function)
    (tree,) = ast.parse(source).body
    prose = {n for node in tree.body[:1] if ast.get_docstring(tree) for n in range(node.lineno, node.end_lineno + 1)}
    lines = enumerate(source.splitlines(), 1)
    return sum(bool(line.strip()) and not line.strip().startswith("#") and n not in prose for n, line in lines)


def test_the_token_loop_is_short_enough_to_say_aloud():
    parts = (reference.recall, reference.written, reference.error_target, reference.step)
    assert 15 < sum(map(code_lines, parts)) <= 40


# -- by hand --


def one_number(values, *, rule, **gates):
    """o and the memories of K = V = 1 with q = k = 1 and constant gates."""
    ones = np.ones((1, len(values), 1, 1))
    gates = {name: np.full((1, len(values), 1), gate) for name, gate in gates.items()}
    if rule == "retnet":
        gates["retention"] = gates["retention"][0, 0]
    seen = reference.trace(ones, ones, np.reshape(values, ones.shape), **gates, rule=rule)
    return seen.out.ravel().tolist(), seen.S.ravel().tolist(), seen.R.ravel().tolist()


def test_rla_on_two_numbers():
    """v = 2, -1; alpha = beta = 1/2, gamma = 1/4, c = 1 (p. 5). e = 2, -1 - 1: both clipped."""
    got = one_number([2.0, -1.0], rule="rla", retention=0.5, write=0.5, correction=0.25)
    assert got == ([0.25 * 0.25, 0.5 * 1 + 0.25 * -0.125], [1.0, 0.5 - 0.5], [0.25, 0.5 * 0.25 - 0.25])


def test_rdn_on_two_numbers():
    """The same; what is written is v - alpha S_1 = -1.5, and r - alpha R_1 = -1.125 (p. 5)."""
    got = one_number([2.0, -1.0], rule="rdn", retention=0.5, write=0.5, correction=0.25)
    R = 0.5 * 0.25 + 0.25 * -1.125
    assert got == ([0.0625, 0.5 + 0.25 * R], [1.0, 0.5 + 0.5 * -1.5], [0.25, R])


@pytest.mark.parametrize(
    ("rule", "gates", "S"),
    [
        ("linear", {}, [2.0, 1.0]),
        ("retnet", {"retention": 0.5}, [2.0, 0.5 * 2 - 1]),
        ("sgla", {"retention": 0.5, "write": 0.5}, [1.0, 0.5 - 0.5]),
        ("deltanet", {"write": 0.5}, [1.0, 1 + 0.5 * (-1 - 1)]),
        ("gdn", {"retention": 0.5, "write": 0.5}, [1.0, 0.5 + 0.5 * (-1 - 0.5)]),
    ],
)
def test_each_baseline_on_two_numbers_reads_what_it_has_just_written(rule, gates, S):
    assert one_number([2.0, -1.0], rule=rule, **gates) == (S, S, [0.0, 0.0])


@pytest.mark.parametrize("rule", RESIDUAL)
def test_the_papers_lines_in_its_own_layout_give_the_same(rule):
    """p. 5, with S and R [V, K] and column vectors; the delta rule as a product with I - rate k k^T."""
    given = arguments(rule, T=T, carried=True)
    got = run(**given)
    for b, h in np.ndindex(B, H):
        S, R = (memory[b, h].T for memory in given["state"])
        for t in range(T):
            q, k, v, alpha, beta, gamma = (
                given[name][b, t, h] for name in ("q", "k", "v", "retention", "write", "correction")
            )
            r = np.clip(v - S @ k, -1, 1)
            keep = [np.eye(K) - rate * np.outer(k, k) if rule == "rdn" else np.eye(K) for rate in (beta, gamma)]
            R = alpha * R @ keep[1] + gamma * np.outer(r, k)
            o = alpha * S @ q + gamma * R @ q
            S = alpha * S @ keep[0] + beta * np.outer(v, k)
            np.testing.assert_allclose(got["out"][b, t, h], o, rtol=0, atol=1e-13)
        np.testing.assert_allclose(got["base"][b, h], S.T, rtol=0, atol=1e-13)
        np.testing.assert_allclose(got["residual"][b, h], R.T, rtol=0, atol=1e-13)


def test_listing_1_is_rla_with_the_layers_normalisation():
    """Rows as vectors, one head: p. 15."""
    given = arguments("rla", B=1, T=T, H=1)
    q, k, v, alpha, beta, gamma = (given[name][0, :, 0] for name in ("q", "k", "v", "retention", "write", "correction"))
    S, R, out = np.zeros((K, V)), np.zeros((K, V)), []
    for t in range(T):
        key, query = k[t] / np.linalg.norm(k[t]), q[t] / np.linalg.norm(q[t])
        r = np.clip(v[t] - key @ S, -1.0, 1.0)
        R = alpha[t] * R + gamma[t] * np.outer(key, r)
        out.append(alpha[t] * query @ S + gamma[t] * query @ R)
        S = alpha[t] * S + beta[t] * np.outer(key, v[t])
    got = attention(**given | {"k": 3.0 * given["k"]}, normalize=True)
    np.testing.assert_allclose(got[0, :, 0], out, rtol=0, atol=1e-13)


def test_the_unrolled_sum_of_rla():
    """R_t = sum over i of (alpha_{i+1} ... alpha_t) gamma_i r_i k_i^T, from R_0 = 0 (p. 5, unrolled)."""
    given = arguments("rla", T=T)
    seen = reference.trace(**given)
    alpha, gamma, k = given["retention"], given["correction"], given["k"]
    for t in range(T):
        decay = np.stack([np.prod(alpha[:, i + 1 : t + 1], axis=1) for i in range(t + 1)], axis=1)
        R = np.einsum("bih,bihk,bihv->bhkv", decay * gamma[:, : t + 1], k[:, : t + 1], seen.residual[:, : t + 1])
        np.testing.assert_allclose(seen.R[:, t], R, rtol=0, atol=1e-14)


@pytest.mark.parametrize("rule", ["rdn", "gdn", "deltanet", "rla", "linear"])
def test_orthonormal_keys_are_recalled_exactly(rule):
    """alpha = beta = 1 and gamma = 0: S k_i = v_i for every i, so nothing interferes."""
    k = np.linalg.qr(normal(3, 1, K, K))[0].reshape(1, K, 1, K)
    v, ones = normal(3, 2, 1, K, 1, V), np.ones((1, K, 1))
    gates = {name: 0 * ones if name == "correction" else ones for name in RULES[rule].gates}
    _, state = attention(k, k, v, **gates, rule=rule, return_state=True)
    np.testing.assert_allclose(k[0, :, 0] @ state.base[0, 0], v[0, :, 0], rtol=0, atol=1e-14)
    if state.residual is not None:
        assert not state.residual.any()


@pytest.mark.parametrize("rule", RESIDUAL)
def test_an_error_that_the_first_memory_repeats_is_mended_by_the_second(rule):
    """One pair shown twice, write = 1/2, all else 1: S answers v/2, the error is v/2, and both together answer v."""
    k, v = unit(normal(4, 1, 1, 1, 1, K)).repeat(2, 1), 0.5 * np.ones((1, 2, 1, V))
    half, one = np.full((1, 2, 1), 0.5), np.ones((1, 2, 1))
    seen = reference.trace(k, k, v, one, half, one, rule=rule)
    np.testing.assert_allclose(seen.base_read[:, 1], v[:, 1] / 2, rtol=1e-14)
    np.testing.assert_allclose(seen.error[:, 1], v[:, 1] / 2, rtol=1e-14)
    both = v[:, 1] if rule == "rdn" else v[:, 1] / 2 + v[:, 0] + v[:, 1] / 2  # an additive R adds up all errors
    np.testing.assert_allclose(seen.out[:, 1], both, rtol=1e-14)


# -- relations between rules and switches --


@pytest.mark.parametrize("name", RETENTION)
def test_a_rule_is_a_baseline_plus_a_second_memory(name):
    """S of RLA is that of sGLA, S of RDN that of GDN; with retention 1 (and write 1) the older rules."""
    ones = np.ones((B, T, H))
    for rule, base in (("rla", "sgla"), ("rdn", "gdn")):
        given = arguments(rule, T=T, retention=name)
        plain = {key: x for key, x in given.items() if key != "correction"} | {"rule": base}
        assert np.array_equal(run(**given)["base"], run(**plain)["base"])
        older = {key: x for key, x in plain.items() if key != "retention"}
        if base == "gdn":
            assert np.array_equal(attention(**plain | {"retention": ones}), attention(**older | {"rule": "deltanet"}))
        else:
            del older["write"]
            summed = attention(**plain | {"retention": ones, "write": ones})
            assert np.array_equal(summed, attention(**older | {"rule": "linear"}))


def test_retnet_is_sgla_with_a_fixed_decay_a_head():
    given = arguments("retnet", T=T) | {"retention": retnet_retention(H)}
    assert given["retention"].tolist() == [1 - 1 / 32, 1 - 1 / 64, 1 - 1 / 128]
    each = np.broadcast_to(given["retention"], (B, T, H))
    want = attention(**given | {"rule": "sgla", "retention": each, "write": np.ones((B, T, H))})
    assert np.array_equal(attention(**given), want)
    with pytest.raises(ValueError, match="heads must be a whole number in"):
        retnet_retention(2.5)


@pytest.mark.parametrize("rule", RESIDUAL)
def test_the_clip_bounds_what_is_remembered(rule):
    given = arguments(rule, T=T)
    for clip in (0.25, 1.0, np.inf):
        seen = reference.trace(**given, clip=clip)
        assert np.array_equal(seen.residual, np.clip(seen.error, -clip, clip))
        assert np.array_equal(np.abs(seen.error) > clip, seen.residual != seen.error)
    tanh = reference.trace(**given, target="log_cosh")
    assert np.array_equal(tanh.residual, np.tanh(tanh.error))
    assert row_error(tanh.out, seen.out) > 1e-2


@pytest.mark.parametrize("rule", RESIDUAL)
def test_no_clip_width_and_no_residual_memory_switch_the_residual_off(rule):
    given = arguments(rule, T=T)
    seen = reference.trace(**given, clip=0)
    assert not seen.R.any()
    assert not seen.correction_read.any()
    assert np.array_equal(seen.out, attention(**given | {"correction": 0 * given["correction"]}))
    assert row_error(seen.out, attention(**given)) > 1e-2


@pytest.mark.parametrize("rule", RESIDUAL)
def test_without_fitting_the_residual_is_the_newest_error_alone(rule):
    """Table 4 (p. 7): R_t = k_t^T r_t, whatever was before."""
    given = arguments(rule, T=T, carried=True)
    seen = reference.trace(**given, fitting=False)
    assert np.array_equal(seen.R, np.einsum("bthk,bthv->bthkv", given["k"], seen.residual))
    read = given["correction"] * np.einsum("bthk,bthk->bth", given["q"], given["k"])
    np.testing.assert_allclose(seen.correction_read, read[..., None] * seen.residual, rtol=1e-13)


@pytest.mark.parametrize("rule", RESIDUAL)
def test_without_read_gates_both_memories_are_read_as_they_are(rule):
    """Table 5 (p. 8): o = q S_{t-1} + q R_t. The memories do not change."""
    given = arguments(rule, T=T)
    with_, without = reference.trace(**given), reference.trace(**given, read_gates=False)
    assert np.array_equal(with_.R, without.R)
    assert np.array_equal(with_.base_read, given["retention"][..., None] * without.base_read)
    assert np.array_equal(with_.correction_read, given["correction"][..., None] * without.correction_read)


@pytest.mark.parametrize("rule", RESIDUAL)
def test_a_correction_that_is_not_given_is_tied_to_write(rule):
    """Fig. 3 (p. 8)."""
    given = arguments(rule, T=T)
    tied = given | {"correction": given["write"]}
    assert np.array_equal(attention(**given | {"correction": None}), attention(**tied))
    assert row_error(attention(**tied), attention(**given)) > 1e-2


@pytest.mark.parametrize("rule", RULES)
def test_scale_multiplies_the_output_and_normalisation_takes_lengths_away(rule):
    given = arguments(rule, T=T)
    assert row_error(attention(**given, scale=-0.25), -0.25 * attention(**given)) == 0.0
    longer = given | {"q": 5.0 * given["q"], "k": 3.0 * given["k"]}
    want = attention(**given | {"q": unit(given["q"])})
    assert row_error(attention(**longer, normalize=True), want) < EXACT
    assert row_error(attention(**longer), want) > 1e-2
    zero = given | {"k": 0 * given["k"], "q": 0 * given["q"]}
    assert not attention(**zero, normalize=True).any()


@pytest.mark.parametrize("rule", [rule for rule in RULES if "retention" in RULES[rule].gates])
def test_retention_may_come_as_a_logarithm_down_to_minus_infinity(rule):
    given = arguments(rule, T=T, retention="some zero")
    with np.errstate(divide="ignore"):
        logs = np.log(given["retention"])
    if rule != "retnet":
        assert np.isneginf(logs).any()
    got = run(**given | {"retention": None, "log_retention": logs})
    assert_rows(got, run(**given), EXACT)


@pytest.mark.parametrize("rule", RESIDUAL)
def test_a_gate_that_is_fixed_in_time_is_one_number_a_head(rule):
    given = arguments(rule, T=T)
    fixed = {name: given[name][0, 0] for name in ("retention", "write", "correction")}
    each = {name: np.broadcast_to(gate, (B, T, H)) for name, gate in fixed.items()}
    assert np.array_equal(attention(**given | fixed), attention(**given | each))
    as_list = {name: gate.tolist() for name, gate in fixed.items()}
    assert np.array_equal(attention(**given | as_list), attention(**given | each))


# -- sequences and states --


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["mild", "some zero", "one reset"])
def test_any_segmentation_is_one_run(rule, name):
    given = arguments(rule, T=T, retention=name, carried=True)
    whole = run(**given)
    for cuts in ((0, 4, T), (0, 1, 1, 2, T), (0, 0, *range(1, T), T)):
        state, outs = given["state"], []
        for start, end in itertools.pairwise(cuts):
            out, state = attention(**cut(given, start, end) | {"state": state}, return_state=True)
            outs.append(out)
        got = flat(np.concatenate(outs, axis=1), state)
        assert all(np.array_equal(got[part], whole[part]) for part in whole)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("carried", [False, True])
def test_packed_sequences_are_computed_alone_and_empty_ones_keep_their_state(rule, carried):
    cuts = [0, 0, 7, 7, 18, 18]
    given = arguments(rule, B=1, T=18, carried=carried, sequences=5)
    got = run(**given, cu_seqlens=np.array(cuts))
    for n, (start, end) in enumerate(itertools.pairwise(cuts)):
        own = State(*(x if x is None else x[n : n + 1] for x in given["state"])) if carried else None
        alone = run(**cut(given, start, end) | {"state": own})
        assert np.array_equal(got["out"][:, start:end], alone["out"])
        assert all(np.array_equal(got[part][n : n + 1], alone[part]) for part in alone if part != "out")
    assert got.keys() == alone.keys()


@pytest.mark.parametrize("rule", RULES)
def test_no_token_returns_the_state_as_a_copy(rule):
    given = arguments(rule, T=0, carried=True)
    out, state = attention(**given, return_state=True)
    assert out.shape == (B, 0, H, V)
    for got, want in zip(state, given["state"], strict=True):
        assert got is want is None or (np.array_equal(got, want) and not np.shares_memory(got, want))
    out, state = attention(**given | {"state": None}, return_state=True)
    assert not state.base.any()
    assert state.base.shape == (B, H, K, V)


@pytest.mark.parametrize("rule", RESIDUAL)
def test_padding_changes_nothing_that_comes_after(rule):
    """retention 1, write = correction = 0: whatever k and v hold."""
    given = arguments(rule, T=T, carried=True)
    pads = [2, 3, 3, T]
    padded = {
        name: np.insert(x, pads, {"retention": 1.0, "write": 0.0, "correction": 0.0}.get(name, 7.0), axis=1)
        if isinstance(x, np.ndarray) else x
        for name, x in given.items()
    }  # fmt: skip
    got, want = run(**padded), run(**given)
    real = np.delete(np.arange(T + len(pads)), [2, 4, 5, T + 3])
    assert np.array_equal(padded["v"][:, real], given["v"])
    assert_rows(got | {"out": got["out"][:, real]}, want, 0.0)


def test_a_retention_of_zero_forgets_both_memories_but_not_the_error_of_that_token():
    """The error is taken from the old S, undecayed: R hears of it, S does not."""
    given = arguments("rdn", T=T, carried=True)
    given["retention"][:, 4] = 0.0
    last, fresh = run(**given), run(**cut(given, 4, T) | {"state": None})
    assert row_error(last["base"], fresh["base"]) == 0.0
    assert row_error(last["residual"], fresh["residual"]) > 1e-3
    _, after = attention(**cut(given, 0, 5), return_state=True)
    r = reference.trace(**given).residual[:, 4]
    pairs = given["correction"][:, 4, :, None, None] * np.einsum("bhk,bhv->bhkv", given["k"][:, 4], r)
    np.testing.assert_allclose(after.residual, pairs, rtol=1e-14)


@pytest.mark.parametrize("rule", RULES)
def test_a_sequence_of_a_batch_is_computed_alone_and_input_is_left_alone(rule):
    given = arguments(rule, T=T, carried=True)
    for x in (*given.values(), *given["state"]):
        if isinstance(x, np.ndarray):
            x.flags.writeable = False
    whole = run(**given)
    for b in range(B):
        own = {name: x[b : b + 1] if isinstance(x, np.ndarray) and x.ndim > 1 else x for name, x in given.items()}
        own["state"] = State(*(x if x is None else x[b : b + 1] for x in given["state"]))
        alone = run(**own)
        assert all(np.array_equal(whole[part][b : b + 1], alone[part]) for part in alone)


@pytest.mark.parametrize("rule", RULES)
def test_the_arrays_of_a_trace_fit_its_output(rule):
    given = arguments(rule, T=T, carried=True)
    seen, (out, state) = reference.trace(**given), attention(**given, return_state=True)
    assert np.array_equal(seen.out, out)
    assert np.array_equal(seen.base_read + seen.correction_read, out)
    assert np.array_equal(seen.S[:, -1], state.base)
    S = np.concatenate([given["state"].base[:, None], seen.S[:, :-1]], axis=1)  # before each token
    read = lambda M, x: np.einsum("bthk,bthkv->bthv", x, M)  # noqa: E731
    if not RULES[rule].residual:
        assert state.residual is None
        assert not any(x.any() for x in (seen.R, seen.error, seen.residual, seen.correction_read))
        assert row_error(seen.base_read, read(seen.S, given["q"])) < EXACT
        return
    assert np.array_equal(seen.R[:, -1], state.residual)
    assert row_error(seen.error, given["v"] - read(S, given["k"])) < EXACT
    assert np.array_equal(seen.residual, np.clip(seen.error, -1, 1))
    assert row_error(seen.base_read, given["retention"][..., None] * read(S, given["q"])) < EXACT
    assert row_error(seen.correction_read, given["correction"][..., None] * read(seen.R, given["q"])) < EXACT


@pytest.mark.parametrize("rule", RULES)
def test_it_computes_in_the_precision_asked_for(rule):
    given = arguments(rule, T=T, carried=True)
    exact, low = reference.attention(**given), reference.attention(**given, dtype=np.float32)
    assert (exact.dtype, low.dtype) == (np.float64, np.float32)
    assert 1e-9 < row_error(low, exact) < 1e-4  # some hundred roundings of 6e-8; keys of length 1 add nothing to them
    single = {name: x.astype(np.float32) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    assert np.array_equal(low, reference.attention(**single, dtype=np.float32))  # nothing is used before it is rounded
    narrow = {name: x.astype(np.float16) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    wide = {name: x.astype(np.float64) if isinstance(x, np.ndarray) else x for name, x in narrow.items()}
    assert np.array_equal(attention(**narrow), attention(**wide))


@pytest.mark.parametrize("write", [0.5, 1.0, 1.9])
def test_a_key_that_comes_again_and_again_stays_bounded(write):
    """|1 - write| < 1: the delta rule contracts along its key, whatever the length of the sequence."""
    k = np.broadcast_to(unit(normal(6, 1, 1, 1, 1, K)), (1, 400, 1, K))
    v = 2.0 * uniform(6, 2, 1, 400, 1, V) - 1.0
    seen = reference.trace(k, k, v, np.ones(1), np.array([write]))
    bound = write / (1 - abs(1 - write))  # the sum of a geometric series, times |v| <= 1
    assert np.abs(seen.base_read).max() <= bound * (1 + 1e-12)
    assert np.abs(seen.S).max() > 0.1


# -- the door --

GOOD = arguments("rdn", T=T)
NO_STATE = np.zeros((B, H, K, V))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q": np.ones((B, T, H))}, "q must be [B, T, H, K], got 3 axes of sizes (2, 9, 3)"),
        ({"k": np.ones((B, T, H, 6))}, "k must be [B, T, H, K] with K = 5 as in q, got (2, 9, 3, 6)"),
        ({"k": GOOD["k"][:, 1:]}, "k must be [B, T, H, K] with T = 9 as in q, got (2, 8, 3, 5)"),
        ({"v": np.ones((B, T, H + 1, V))}, "v must be [B, T, H, V] with H = 3 as in q, got (2, 9, 4, 4)"),
        ({"q": GOOD["q"].swapaxes(1, 2)}, "k must be [B, T, H, K] with T = 3 as in q"),
        ({"v": np.full((B, T, H, V), np.nan)}, "v must be finite, got nan at [0, 0, 0, 0]"),
        ({"rule": "gla"}, "rule must be one of 'rla', 'rdn', 'linear', 'retnet', 'sgla', 'deltanet', 'gdn', got 'gla'"),
        ({"log_retention": np.zeros(H)}, "log_retention must be None where retention is given, got both"),
        ({"retention": None}, "retention (or log_retention) must be given for rule='rdn', got None"),
        ({"write": None}, "write must be given for rule='rdn', got None"),
        ({"rule": "gdn"}, "correction must be None for rule='gdn', whose gates are ('retention', 'write'), got one"),
        ({"rule": "linear"}, "retention must be None for rule='linear', whose gates are none, got one"),
        ({"rule": "deltanet", "retention": None, "log_retention": np.zeros(H), "correction": None},
         "log_retention must be None for rule='deltanet', whose gates are ('write',), got one"),
        ({"rule": "retnet", "write": None, "correction": None}, "retention must be [H], fixed in time"),
        ({"rule": "retnet", "write": None, "correction": None, "retention": None, "log_retention": np.zeros((B, T, H))},
         "retention must be [H], fixed in time, for rule='retnet'"),
        ({"retention": np.full((B, T, H), 1.5)}, "retention must lie in [0, 1], got 1.5"),
        ({"retention": np.full(H, -0.5)}, "retention must lie in [0, 1], got -0.5"),
        ({"write": np.full(H, 2.5)}, "write must lie in [0, 2], got 2.5"),
        ({"correction": np.full(H, -0.1)}, "correction must lie in [0, 2], got -0.1"),
        ({"retention": None, "log_retention": np.full(H, 0.5)}, "log_retention must lie in [-inf, 0], got 0.5"),
        ({"retention": None, "log_retention": np.full(H, np.nan)}, "log_retention must be finite, got nan at [0]"),
        ({"retention": None, "log_retention": np.full(H, np.inf)}, "log_retention must be finite, got inf at [0]"),
        ({"write": np.full(H, np.nan)}, "write must be finite, got nan at [0]"),
        ({"write": np.ones(H + 1)}, "write must be [H] with H = 3 as in q, got (4,)"),
        ({"write": np.ones((B, H, T))}, "write must be [B, T, H] with T = 9 as in q, got (2, 3, 9)"),
        ({"write": 0.5}, "write must be [B, T, H], got 0 axes"),
        ({"clip": -1.0}, "clip must lie in [0, inf], got -1.0"),
        ({"clip": np.nan}, "clip must lie in [0, inf], got nan"),
        ({"clip": "1"}, "clip must be a number in [0, inf], got '1'"),
        ({"scale": np.inf}, "scale must lie in [-1e+30, 1e+30], got inf"),
        ({"target": "huber"}, "target must be one of 'clip', 'log_cosh', got 'huber'"),
        ({"fitting": 1}, "fitting must be True or False, got 1"),
        ({"read_gates": None}, "read_gates must be True or False, got None"),
        ({"normalize": "no"}, "normalize must be True or False, got 'no'"),
        ({"return_state": 0}, "return_state must be True or False, got 0"),
        ({"cu_seqlens": [0, T]}, "cu_seqlens needs all sequences in one row, so B = 1 in q, got B = 2"),
        ({"state": np.ones(3)}, "state must be the State of an earlier call, or a tuple (base, residual), got ndarray"),
        ({"state": (NO_STATE,)}, "state must be the State of an earlier call, or a tuple (base, residual), got tuple"),
        ({"state": (NO_STATE, None)}, "state.residual must be given for rule='rdn', got NoneType"),
        ({"state": (NO_STATE[:1], NO_STATE)}, "[N, H, K, V] with N = 2 as in the number of sequences"),
        ({"state": (NO_STATE, NO_STATE.swapaxes(2, 3))}, "state.residual must be [N, H, K, V] with K = 5 as in q"),
        ({"state": (NO_STATE, NO_STATE + np.inf)}, "state.residual must be finite, got inf at [0, 0, 0, 0]"),
        ({"rule": "gdn", "correction": None, "state": (NO_STATE, NO_STATE)},
         "state.residual must be None for rule='gdn', got ndarray"),
        ({"impl": "fast"}, "impl must be one of"),
    ],
)  # fmt: skip
def test_bad_input_is_named_with_what_was_wanted_and_what_came(change, words):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words are compared below
        attention(**GOOD | change)
    assert words in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("cuts", "kind", "words"),
    [
        ([0, 4, 8], ValueError, "cu_seqlens must rise from 0 to T = 9, got [0, 4, 8]"),
        ([1, 9], ValueError, "cu_seqlens must rise from 0 to T = 9, got [1, 9]"),
        (np.array([0, 6, 5, 9], dtype=np.uint8), ValueError, "cu_seqlens must rise from 0 to T = 9, got [0, 6, 5, 9]"),
        ([0.0, 9.0], TypeError, "cu_seqlens must be whole numbers [N + 1], got float64 of shape (2,)"),
        ([[0, 9]], TypeError, "cu_seqlens must be whole numbers [N + 1], got int64 of shape (1, 2)"),
        ([], TypeError, "cu_seqlens must be whole numbers [N + 1], got float64 of shape (0,)"),
    ],
)
def test_bad_cuts_are_named(cuts, kind, words):
    with pytest.raises(kind) as caught:
        attention(**arguments("rdn", B=1, T=T), cu_seqlens=cuts)
    assert words in str(caught.value), str(caught.value)


def test_integers_are_refused():
    for name in ("v", "write"):
        with pytest.raises(TypeError, match=f"{name} must hold real floating-point numbers, got dtype int64"):
            attention(**GOOD | {name: np.ones(GOOD[name].shape, dtype=np.int64)})
