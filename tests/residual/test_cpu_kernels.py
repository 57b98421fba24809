"""The kernels for the CPU: every size, rule and switch, forward and gradient, against float64; and what threads, places
and neighbours may change, which is nothing.
"""

import itertools

import numpy as np
import pytest

pytest.importorskip("numba", reason="the package numba is not installed; get it with: pip install numba")

from attnlab.lanes import aligned
from attnlab.residual import RULES, chunked, cpu_kernels, numba_impl, reference
from attnlab.residual.params import State, gates, segments
from tests.residual.cases import RETENTION, arguments, normal, row_error

SPAN = cpu_kernels.SPAN * cpu_kernels.TILES[-1]
SIZES = [  # B, T, H, K, V
    (2, 2 * SPAN + 50, 1, 24, 16),  # three spans, the last one ragged
    (1, 3, 2, 5, 4),
    (1, 9, 3, 7, 13),  # widths that are no vectors, two blocks of rows
    (1, 24, 1, 33, 8),
    (2, 25, 2, 8, 40),
    (1, 1, 1, 1, 1),
    (2, 0, 3, 4, 5),
]
SWITCHES = [
    {},
    {"clip": 0.3},
    {"clip": np.inf},
    {"clip": 0.0},
    {"target": "log_cosh"},
    {"read_gates": False, "clip": 0.5},
]
CASES = [
    pytest.param(rule, size, switches, id=f"{rule}-{'x'.join(map(str, size))}-{switches}")
    for number, size in enumerate(SIZES)
    for rule in RULES
    for turn, switches in enumerate(SWITCHES if RULES[rule].residual else SWITCHES[:1])
    if number < 3 or turn == number % len(SWITCHES) or not RULES[rule].residual
]
RETENTIONS = tuple(RETENTION)


def narrowed(given):
    """The same call in float32, states too, so that all see the same numbers."""
    narrow = {name: x.astype(np.float32) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    if given.get("state") is not None:
        narrow["state"] = State(*(None if x is None else x.astype(np.float32) for x in given["state"]))
    return narrow


def case(rule, size, number=0):
    """One kind of retention after the other."""
    B, T, H, K, V = size
    kind = RETENTIONS[number % len(RETENTIONS)]
    return narrowed(arguments(rule, B=B, T=T, H=H, K=K, V=V, retention=kind, carried=True, seed=T))


def slopes_of(given):
    """d_out and d_state."""
    *shape, V = given["v"].shape
    d_state = State(*(None if x is None else normal(3, n, *x.shape) for n, x in enumerate(given["state"])))
    return normal(3, 7, *shape, V), d_state


@pytest.mark.parametrize(("rule", "size", "switches"), CASES)
@pytest.mark.parametrize("retention", [1, 3, 5])
def test_forward_is_the_reference(rule, size, switches, retention):
    given = case(rule, size, retention) | switches
    out, state = numba_impl.attention(**given, return_state=True)
    exact, low = (reference.attention(**given, return_state=True, dtype=kind) for kind in (np.float64, np.float32))
    # as far from float64 as float32 NumPy is, give or take: sums in another order, tanh to 2.6e-7
    for got, wanted, single in zip((out, *state), (exact[0], *exact[1]), (low[0], *low[1]), strict=True):
        if wanted is None:
            assert got is None
        else:
            assert row_error(got, wanted, 1e-2) <= max(3e-6, 4 * row_error(single, wanted, 1e-2))


@pytest.mark.parametrize(("rule", "size", "switches"), CASES)
def test_gradients_are_those_of_float64(rule, size, switches):
    """Of q, k, v, the gates and the states carried in, with a gradient of the states given back."""
    for number in (0, 5, 6) if size[1] < SPAN else (5,):
        given = case(rule, size, number) | switches
        d_out, d_state = slopes_of(given)
        got = numba_impl.gradient(**given, d_out=d_out, d_state=d_state)
        wanted = chunked.gradient(**given, d_out=d_out, d_state=d_state)
        for name, ours, theirs in zip(wanted._fields, got, wanted, strict=True):
            for x, y in zip(ours, theirs, strict=True) if name == "state" else [(ours, theirs)]:
                assert (x is None) == (y is None), name
                if y is None or not y.size:
                    continue
                # rounding is relative to what was summed, not to what is left, nor to a row of small numbers
                scale = np.abs(y).max()
                assert np.abs(x - y).max() <= 2e-5 * scale, (name, number)


def run(given, threads, parts=None, d_out=None, poison=np.nan):
    """Out, states and, with `d_out`, all gradients, into memory full of NaN."""
    q, k, v = given["q"], given["k"], given["v"]
    shape, rule = q.shape[:3], given["rule"]
    parts = segments(None, *shape[:2]) if parts is None else parts
    alpha = gates(rule, shape, *(given.get(name) for name in ("retention", "write", "correction")), None)
    alpha = [x.astype(np.float32) for x in alpha]
    options = {"rule": rule, "clip": 0.5, "target": "clip", "read_gates": True, "parts": parts, "threads": threads}
    states = [np.array(x) for x in given["state"] if x is not None]
    out, kept = aligned(*shape, v.shape[-1]), cpu_kernels.keep(q, v, rule=rule, parts=parts)
    for x in (out, *kept):
        x[...] = poison
    cpu_kernels.forward(q, k, v, alpha, states, out, kept=kept, **options)
    if d_out is None:
        return [out, *states]
    d_states, slopes = [x.copy() for x in states], [np.full_like(x, poison) for x in (q, k, v)]
    of_gates = cpu_kernels.backward(q, k, v, alpha, kept, d_out, d_states, *slopes, **options)
    return [out, *states, *slopes, *(np.swapaxes(x, 1, 2) for x in of_gates), *d_states]


def _tokens(x):
    """Whether it is an array [B, T, H, ...]."""
    return isinstance(x, np.ndarray) and x.ndim in (3, 4)


def assert_bits(got, wanted):
    for x, y in zip(got, wanted, strict=True):
        assert x.shape == y.shape
        assert np.isfinite(x).all()
        assert np.array_equal(x, y)


@pytest.mark.parametrize("rule", ["rdn", "rla", "gdn"])
def test_threads_change_nothing(rule):
    given = case(rule, (2, 300, 4, 16, 8))
    d_out = normal(3, 7, 2, 300, 4, 8).astype(np.float32)
    assert 2 * 300 * 4 >= cpu_kernels.SHORT  # else there are no threads
    assert_bits(run(given, 3, d_out=d_out), run(given, 1, d_out=d_out))


@pytest.mark.parametrize("rule", ["rdn", "sgla"])
def test_neither_the_batch_nor_other_heads_change_a_head(rule):
    given = case(rule, (2, 60, 3, 12, 7))
    d_out = normal(3, 7, 2, 60, 3, 7).astype(np.float32)
    whole = run(given, 1, d_out=d_out)
    one = {name: x[1:, :, 2:3] if _tokens(x) else x for name, x in given.items()}
    one["state"] = State(*(x if x is None else x[1:, 2:3] for x in given["state"]))
    memories = 1 + RULES[rule].residual
    alone = run(one, 1, d_out=d_out[1:, :, 2:3])
    states = {1 + n for n in range(memories)} | {len(whole) - 1 - n for n in range(memories)}
    assert_bits(alone, [x[1:, 2:3] if n in states else x[1:, :, 2:3] for n, x in enumerate(whole)])


def test_sequences_in_one_row_are_what_they_are_alone():
    cuts = [0, 30, 30, 31, 80]
    given = case("rdn", (1, 80, 2, 6, 10))
    states = State(*(normal(4, n, len(cuts) - 1, 2, 6, 10).astype(np.float32) for n in range(2)))
    d_out = normal(3, 7, 1, 80, 2, 10).astype(np.float32)
    tiles = cpu_kernels.TILES
    whole = run(given | {"state": states}, 1, segments(cuts, 1, 80), d_out)
    for n, (start, end) in enumerate(itertools.pairwise(cuts)):
        part = {name: x[:, start:end] if _tokens(x) else x for name, x in given.items()}
        part["state"] = State(*(x[n : n + 1] for x in states))
        alone = run(part, 1, d_out=d_out[:, start:end])
        for number, (x, y) in enumerate(zip(whole, alone, strict=True)):
            mine = x[n : n + 1] if number in (1, 2, len(whole) - 2, len(whole) - 1) else x[:, start:end]
            # a short sequence is cut into shorter chunks when it is alone
            same = np.array_equal(mine, y) if end - start > tiles[-2] else mine.size == 0 or row_error(mine, y) < 1e-5
            assert same, (n, number)


def test_a_scale_that_falls_away_is_multiplied_in():
    """Retention so small that 2^-24 is passed within a chunk, again and again."""
    given = case("rdn", (1, 100, 1, 8, 8), RETENTIONS.index("one"))
    given["retention"] = np.full_like(given["retention"], 1e-5)
    out, state = numba_impl.attention(**given, return_state=True)
    wanted, last = reference.attention(**given, return_state=True)
    assert row_error(out, wanted) < 3e-6
    assert row_error(state.base, last.base) < 3e-6


def test_retention_0_forgets_to_the_last_bit():
    """All that was before the token; with a residual not its error, which is that of the old memory."""
    given = case("gdn", (1, 100, 1, 8, 8), RETENTIONS.index("mild"))
    given["retention"][:, 50] = 0
    early = np.arange(100)[None, :, None, None] < 50
    changed = given | {"v": np.where(early, 7, given["v"]).astype(np.float32)}
    before, after = (numba_impl.attention(**x) for x in (given, changed))
    assert np.array_equal(before[:, 50:], after[:, 50:])
    assert not np.array_equal(before[:, 49], after[:, 49])


@pytest.mark.parametrize("place", ["read-only", "16 bytes off", "every other head", "backwards"])
def test_arrays_may_lie_anywhere(place):
    given = case("rdn", (1, 60, 2, 8, 16))
    d_out = normal(3, 7, 1, 60, 2, 16).astype(np.float32)
    wanted = run(given, 1, d_out=d_out)

    def put(x):
        if place == "read-only":
            x = x.copy()
            x.flags.writeable = False
            return x
        if place == "16 bytes off":
            memory = aligned(x.size + 4)
            memory[4:] = x.ravel()
            return memory[4:].reshape(x.shape)
        if place == "every other head":
            wide = np.full((*x.shape[:2], 2 * x.shape[2], *x.shape[3:]), np.nan, np.float32)
            wide[:, :, ::2] = x
            return wide[:, :, ::2]
        return x[:, ::-1].copy()[:, ::-1]

    moved = {name: put(x) if _tokens(x) else x for name, x in given.items()}
    assert_bits(run(moved, 1, d_out=put(d_out)), wanted)


def test_a_gradient_names_the_gates_that_were_given():
    given = case("rdn", (1, 20, 2, 4, 5), RETENTIONS.index("mild"))
    d_out, _ = slopes_of(given)
    per_head = given | {"retention": given["retention"][0, 0]}
    tied = {name: x for name, x in given.items() if name != "correction"}
    logs = {name: x for name, x in given.items() if name != "retention"} | {"log_retention": np.log(given["retention"])}
    for asked in (given, per_head, tied, logs):
        got, wanted = (room.gradient(**asked, d_out=d_out, scale=0.5) for room in (numba_impl, chunked))
        for name in ("q", "retention", "log_retention", "write", "correction"):
            ours, theirs = getattr(got, name), getattr(wanted, name)
            assert (ours is None) == (theirs is None), name
            if theirs is not None:
                assert ours.shape == theirs.shape
                assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max(), name


@pytest.mark.parametrize("rule", ["rdn", "rla", "gdn", "sgla"])
def test_large_numbers_have_room_beside_a_scale_that_falls(rule):
    """Values of 1e35 in a memory that halves with every token; and a gradient as large."""
    given = case(rule, (1, 60, 1, 8, 8), RETENTIONS.index("one"))
    given["retention"] = np.full_like(given["retention"], 0.52)
    given |= {"v": 1e35 * given["v"], "clip": np.inf, "state": None}
    wanted, out = reference.attention(**given), numba_impl.attention(**given)
    assert row_error(out, wanted, 1e-2) < 1e-5
    small = given | {"v": given["v"] / np.float32(1e35)}
    slopes = numba_impl.gradient(**small, d_out=np.full(out.shape, 1e33, np.float32))
    assert all(np.isfinite(x).all() for x in slopes[:3])


@pytest.mark.parametrize("rule", ["linear", "sgla", "rla"])
def test_rules_that_add_take_keys_whose_square_is_beyond_float32(rule):
    """They recall nothing that they write; RLA's errors of infinity meet the clip."""
    given = {"q": np.float32([[1, 0]]), "k": np.float32([[1e20, 0]]), "v": np.float32([[1.0]])}
    given = {name: np.tile(x[None, None], (1, 4, 1, 1)) for name, x in given.items()}
    ones = np.ones((1, 4, 1), np.float32)
    given |= dict.fromkeys(RULES[rule].gates, ones)
    out, exact = (room.attention(**given, rule=rule) for room in (numba_impl, reference))
    assert np.isfinite(exact).all()
    assert np.allclose(out, exact, rtol=1e-6)
