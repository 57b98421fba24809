"""Every fast path is the reference's operator, in every precision it takes, and it refuses the rest."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from attnlab import backend, parity
from attnlab.dense import unit
from attnlab.residual import RULES, State, attention, reference
from tests.residual.cases import RESIDUAL, RETENTION, arguments, cut, flat, normal, row_error

ABSENT = {impl: backend.why_not(impl, "residual") for impl in ("numba", "torch")}
FAST = [pytest.param(impl, marks=pytest.mark.skipif(bool(why), reason=str(why))) for impl, why in ABSENT.items()]


def single(given):
    """The same call in float32, states too, so that all see the same numbers."""
    state = given.get("state")
    narrow = {name: x.astype(np.float32) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    if state is not None:
        narrow["state"] = State(*(x if x is None else x.astype(np.float32) for x in state))
    return narrow


def both(given, **options):
    """What the reference returns in float64 and in float32, by name."""
    kinds = (np.float64, np.float32)
    return [flat(*reference.attention(**given, **options, return_state=True, dtype=kind)) for kind in kinds]


def assert_parity(got, exact, low, terms, **options):
    """Every row of every named array, to a computed tolerance."""
    assert got.keys() == exact.keys()
    for name in exact:
        seen = parity.compare(got[name], exact[name], low[name], terms=terms, **options)
        assert seen.ok, (name, seen.reason)


def assert_same(given, impl, terms, **options):
    got = flat(*attention(**given, **options, return_state=True, impl=impl))
    assert_parity(got, *both(given, **options), terms)
    return got


CASES = [  # B, T, H, K, V
    (2, 7, 3, 5, 4),
    (1, 1, 2, 3, 8),
    (3, 0, 2, 5, 4),
    (1, 33, 2, 64, 64),
    (2, 65, 1, 60, 3),
    (1, 100, 2, 1, 3),
    (1, 129, 1, 128, 128),
    (1, 300, 2, 16, 35),
]


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("rule", RULES)
def test_forward_and_states_match_the_reference(impl, rule):
    for carried, (B, T, H, K, V) in zip(itertools.cycle((False, True)), CASES, strict=False):
        given = arguments(rule, B=B, T=T, H=H, K=K, V=V, carried=carried)
        assert_same(single(given), impl, T + K)


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("rule", RULES)
def test_values_of_one_number(impl, rule):
    """Of a single number that happens to be small no relative error can be promised, so the tokens make the row."""
    given = single(arguments(rule, T=40, V=1, carried=True))
    got, exact, low = (x["out"].swapaxes(1, 3) for x in ({"out": attention(**given, impl=impl)}, *both(given)))
    seen = parity.compare(got, exact, low, terms=45)
    assert seen.ok, seen.reason


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("retention", RETENTION)
def test_every_kind_of_retention_even_where_logarithms_break(impl, rule, retention):
    for T in (31, 32, 33, 100):
        assert_same(single(arguments(rule, B=1, T=T, H=2, K=8, V=6, retention=retention, carried=True)), impl, T + 8)


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("rule", RESIDUAL)
@pytest.mark.parametrize("clip", [np.inf, 1.0, 0.1, 0.0])
@pytest.mark.parametrize("target", ["clip", "log_cosh"])
@pytest.mark.parametrize("read_gates", [True, False])
def test_every_switch_of_the_residual(impl, rule, clip, target, read_gates):
    """With clip 0 nothing is carried in: what a delta rule erases down to rounding has no row to be relative to."""
    given = single(arguments(rule, T=40, carried=clip > 0))
    assert_same(given, impl, 40 + 5, clip=clip, target=target, read_gates=read_gates)


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("rule", RESIDUAL)
def test_a_memory_of_the_newest_error_alone_is_computed_or_refused(impl, rule):
    given, refusal = single(arguments(rule, T=40, carried=True)), None
    try:
        assert_same(given, impl, 40 + 5, fitting=False)
    except backend.Unsupported as why:
        refusal = str(why)
    assert refusal is None or refusal.startswith(f"the {impl} implementation covers fitting=True")


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("rule", RULES)
def test_normalize_and_scale(impl, rule):
    given = single(arguments(rule, T=40))
    given["k"] *= 30  # without lengths of 1 a delta rule would diverge
    assert_same(given, impl, 40 + 5, normalize=True, scale=0.25)


@pytest.mark.parametrize("impl", FAST)
def test_gates_fixed_in_time_gates_as_logarithms_and_a_tied_correction(impl):
    given = single(arguments("rdn", T=40, retention="some zero"))
    with np.errstate(divide="ignore"):
        log = np.log(given["retention"])
    assert np.isneginf(log).any()
    whole = assert_same(given, impl, 45)
    other = {name: x for name, x in given.items() if name != "retention"} | {"log_retention": log}
    got = assert_same(other, impl, 45)
    assert all(row_error(got[name], whole[name]) < 1e-5 for name in whole)
    del other["correction"]
    assert_same(other, impl, 45)
    fixed = {name: given[name][0, 3] for name in ("retention", "write", "correction")}
    assert_same(given | fixed, impl, 45)


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("cuts", [(0, 7, 40), (0, 1, 2, 3, 40), (0, 20, 20, 40), (0, 32, 40)])
def test_segmented_run_matches_one_run_and_states_travel_between_implementations(impl, cuts):
    for rule in RULES:
        given = single(arguments(rule, T=40, carried=True))
        exact, low = both(given)
        for first in ("reference", impl):  # the first segment may have been read by the reference
            state, outs = given["state"], []
            for number, (start, end) in enumerate(itertools.pairwise(cuts)):
                part = cut(given, start, end) | {"state": state, "impl": impl if number else first}
                out, state = attention(**part, return_state=True)
                outs.append(out)
            assert_parity(flat(np.concatenate(outs, 1), state), exact, low, 40 + 5)
        again = cut(given, 0, 7) | {"state": state}  # and back: the reference takes what the fast path left
        assert np.isfinite(attention(**again)).all()


@pytest.mark.parametrize("impl", FAST)
def test_token_by_token_streaming_matches_one_run(impl):
    given = single(arguments("rdn", T=9))
    state, outs = None, []
    for t in range(9):
        out, state = attention(**cut(given, t, t + 1) | {"state": state}, return_state=True, impl=impl)
        outs.append(out)
    assert_parity(flat(np.concatenate(outs, 1), state), *both(given), 9 + 5)


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("rule", RULES)
def test_sequences_in_one_row_are_what_each_is_alone(impl, rule):
    cuts = np.array([0, 0, 5, 5, 38, 39, 70, 70])
    given = single(arguments(rule, B=1, T=70, carried=True, sequences=len(cuts) - 1))
    got = assert_same(given, impl, 70 + 5, cu_seqlens=cuts)
    for n, (start, end) in enumerate(itertools.pairwise(cuts.tolist())):
        alone = cut(given, start, end)
        alone["state"] = State(*(x if x is None else x[n : n + 1] for x in given["state"]))
        want = flat(*attention(**alone, return_state=True, impl=impl))
        assert np.array_equal(got["out"][:, start:end], want.pop("out"))
        assert all(np.array_equal(got[name][n : n + 1], want[name]) for name in want)


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("rule", RULES)
def test_every_row_of_a_batch_is_computed_as_if_alone_bit_for_bit(impl, rule):
    given = single(arguments(rule, B=3, T=70, H=2, K=24, V=17, carried=True))
    whole = flat(*attention(**given, return_state=True, impl=impl))
    for b in range(3):
        row = slice(b, b + 1)
        alone = {name: x[row] if isinstance(x, np.ndarray) and x.ndim > 1 else x for name, x in given.items()}
        alone["state"] = State(*(x if x is None else x[row] for x in given["state"]))
        got = flat(*attention(**alone, return_state=True, impl=impl))
        assert all(np.array_equal(got[name], whole[name][row]) for name in whole)


@pytest.mark.parametrize("impl", FAST)
def test_a_neighbour_in_the_batch_or_another_head_does_not_leak(impl):
    given = single(arguments("rdn", T=50))
    want = attention(**given, impl=impl)
    for where in ((1, slice(None), slice(None)), (slice(None), slice(None), 1)):
        other = {name: x.copy() if isinstance(x, np.ndarray) else x for name, x in given.items()}
        other["q"][where] *= -7
        other["v"][where] *= -7
        same = np.ones(want.shape, bool)
        same[where] = False
        got = attention(**other, impl=impl)
        assert np.array_equal(got[same], want[same])
        assert not np.isclose(got[~same], want[~same]).any(axis=-1).all()


@pytest.mark.parametrize("impl", FAST)
def test_no_token_sees_a_later_one(impl):
    given = single(arguments("rdn", T=70))
    want = attention(**given, impl=impl)
    for t in (1, 31, 40, 64):
        other = {name: x.copy() if isinstance(x, np.ndarray) else x for name, x in given.items()}
        for name in ("q", "k", "v", "retention", "write", "correction"):
            other[name][:, t:] *= 0.5
        got = attention(**other, impl=impl)
        np.testing.assert_allclose(got[:, :t], want[:, :t], rtol=1e-4, atol=1e-5)
        assert np.abs(got[:, t] - want[:, t]).max() > 0.01


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("rule", ["rdn", "sgla"])
def test_read_only_reversed_strided_and_float16_inputs(impl, rule):
    given = single(arguments(rule, T=12, carried=True))
    want = attention(**given, impl=impl)

    def turned(x, change):
        if not isinstance(x, np.ndarray):
            return x
        x = change(x)
        x.flags.writeable = False
        return x

    for change in (
        lambda x: np.repeat(x, 2, axis=1)[:, ::2],
        lambda x: np.ascontiguousarray(x[..., ::-1])[..., ::-1],
        lambda x: np.ascontiguousarray(x.swapaxes(0, -1)).swapaxes(0, -1),
        lambda x: x.astype(">f4"),
        lambda x: x.astype(np.float64),
        lambda x: x.astype(np.longdouble),
    ):
        other = {name: turned(x, change) for name, x in given.items()}
        other["state"] = State(*(turned(x, change) for x in given["state"]))
        before = {name: x.copy() for name, x in other.items() if isinstance(x, np.ndarray)}
        got = attention(**other, impl=impl)
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)
        assert all(np.array_equal(other[name], x) for name, x in before.items())
    half = {name: x.astype(np.float16) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    got = {"out": attention(**half, impl=impl)}
    exact, low = ({"out": x["out"]} for x in both(half))
    assert_parity(got, exact, low, 12 + 5, out_dtype=np.float16)


@pytest.mark.parametrize("impl", FAST)
def test_the_entering_state_is_not_changed_and_an_empty_call_returns_its_copy(impl):
    given = single(arguments("rdn", T=12, carried=True))
    before = State(*(x.copy() for x in given["state"]))
    _, last = attention(**given, return_state=True, impl=impl)
    out, same = attention(**cut(given, 0, 0), return_state=True, impl=impl)
    assert out.shape == (2, 0, 3, 4)
    for name in State._fields:
        assert np.array_equal(getattr(given["state"], name), getattr(before, name))
        assert not np.array_equal(getattr(last, name), getattr(before, name))
        assert np.array_equal(getattr(same, name), getattr(before, name))
        assert not np.shares_memory(getattr(same, name), getattr(given["state"], name))


@pytest.mark.parametrize("impl", FAST)
def test_a_rule_without_residual_returns_a_state_that_it_takes_back(impl):
    given = single(arguments("gdn", T=12))
    _, state = attention(**given, return_state=True, impl=impl)
    assert isinstance(state, State)
    assert state.residual is None
    assert_same(given | {"state": state}, impl, 12 + 5)


@pytest.mark.parametrize("impl", FAST)
def test_orthonormal_keys_recall_their_values(impl):
    """With retention 1 and write 1, k_i S = v_i, whatever else was written; then no error is left to remember."""
    K = 8
    basis = np.linalg.qr(normal(5, 0, K, K))[0].astype(np.float32)
    k = basis[None, :, None]
    v = normal(5, 1, 1, K, 1, 3).astype(np.float32)
    one = np.ones((1, K, 1), np.float32)
    for rule, extra in (("rdn", {"correction": 0 * one}), ("gdn", {}), ("sgla", {}), ("rla", {"correction": 0 * one})):
        _, state = attention(k, k, v, one, one, rule=rule, return_state=True, impl=impl, **extra)
        np.testing.assert_allclose(basis @ state.base[0, 0], v[0, :, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("rule", ["rla", "rdn", "sgla", "gdn"])
def test_retention_zero_forgets_everything_before(impl, rule):
    """Of two memories the first: what the second is taught at that token is still the error of the old one."""
    given = single(arguments(rule, T=40, carried=True))
    given["retention"][:, 37] = 0
    _, state = attention(**given, return_state=True, impl=impl)
    _, afresh = attention(**cut(given, 37, 40) | {"state": None}, return_state=True, impl=impl)
    assert row_error(state.base, afresh.base) < 1e-5
    if state.residual is not None:
        assert row_error(state.residual, afresh.residual) > 1e-5


@pytest.mark.parametrize("impl", FAST)
def test_retentions_that_float32_cannot_hold_are_zero_and_nothing_worse(impl):
    given = arguments("rdn", T=40, retention="any magnitude")
    assert (given["retention"].astype(np.float32) == 0).any()
    assert_same(single(given), impl, 40 + 5)
    got, want = (attention(**given, impl=name) for name in (impl, "reference"))  # float64 arrays go in
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"write": None}, "write must be given"),
        ({"retention": np.full(3, 1.5)}, r"retention must lie in \[0, 1\]"),
        ({"clip": -1.0}, "clip must lie in"),
        ({"cu_seqlens": [0, 4]}, "cu_seqlens needs all sequences in one row"),
        ({"v": np.full((2, 4, 3, 4), np.nan)}, "v must be finite"),
    ],
)
def test_the_door_refuses_before_any_implementation(impl, change, wanted):
    with pytest.raises(ValueError, match=wanted):
        attention(**arguments("rdn", T=4) | change, impl=impl)


@pytest.mark.skipif(bool(ABSENT["numba"]), reason=str(ABSENT["numba"]))
def test_numba_refuses_numbers_beyond_float32_by_name_and_takes_them_normalised():
    given = arguments("rdn", T=6)
    with pytest.raises(backend.Unsupported, match="v has numbers too large"):
        attention(**given | {"v": 1e39 * given["v"]}, impl="numba")
    large = given | {"q": 1e39 * given["q"], "k": 1e39 * given["k"]}
    got = attention(**large, normalize=True, impl="numba")
    np.testing.assert_allclose(got, attention(**given | {"q": unit(given["q"])}), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(bool(ABSENT["numba"] or ABSENT["torch"]), reason=str(ABSENT["numba"] or ABSENT["torch"]))
def test_numba_refuses_a_tensor_that_wants_a_gradient():
    import torch

    given = single(arguments("rdn", T=6))
    given["write"] = torch.tensor(given["write"], requires_grad=True)
    with pytest.raises(backend.Unsupported, match="has no gradients, and write requires one"):
        attention(**given, impl="numba")


@pytest.mark.parametrize("impl", FAST)
def test_several_threads_may_call_at_once(impl):
    given = single(arguments("rdn", B=1, T=500, K=16, V=16))
    want = attention(**given, impl=impl)
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(attention, **given, impl=impl) for _ in range(12)]
        assert all(np.array_equal(call.result(), want) for call in calls)


@pytest.mark.parametrize("impl", ["reference", "numba"])
def test_no_gradient_of_a_carried_memory_is_dropped_in_silence(impl):
    torch = pytest.importorskip("torch", reason="the package torch is not installed; get it with: pip install torch")
    if ABSENT.get(impl):
        pytest.skip(ABSENT[impl])
    given = single(arguments("rdn", carried=True))
    given["state"] = State(given["state"].base, torch.tensor(given["state"].residual, requires_grad=True))
    with pytest.raises(backend.Unsupported, match=r"state\.residual requires one"):
        attention(**given, impl=impl)


@pytest.mark.parametrize("impl", FAST)
def test_a_memory_beyond_float32_is_refused(impl):
    given = single(arguments("gdn", carried=True))
    given["state"] = State(1e300 * np.ones(given["state"].base.shape), None)
    with pytest.raises(backend.Unsupported, match="state has numbers too large"):
        attention(**given, impl=impl)
