"""LRKV in Numba gives the reference's numbers, whatever the sizes, strides, types and threads are; it reads no token
that is not there.
"""

import numpy as np
import pytest

pytest.importorskip("numba", reason="the package numba is not installed; get it with: pip install numba")

from attnlab import backend, parity
from attnlab.lanes import address, aligned
from attnlab.lrkv import Rope, attention, cpu_kernels, numba_impl, reference, rope, rotary
from tests.lrkv.cases import OPTIONS, arguments, normal, with_option

EPS = 2.0**-23


def assert_same(given, **options):
    """Output and lse to a tolerance that counts terms: S of a sum, and K and R of a logit l, whose rounding counts l^2
    times, since exp makes it relative to a weight.
    """
    runs = [reference.trace(**given, dtype=dtype) for dtype in (np.float64, np.float32)]
    out, lse = attention(**given, return_lse=True, impl="numba", **options)
    logits = runs[0].shared_logits + runs[0].residual_logits
    largest = np.abs(logits[runs[0].weights > 0]).max(initial=0)
    (K, R), S = given["k_factor"].shape[1:], given["k_shared"].shape[1]
    terms = S + int(np.ceil((K + R) * largest**2)) + 1
    seen = parity.compare(out, runs[0].out, runs[1].out, terms=terms)
    assert seen.ok, seen.reason
    empty = np.isneginf(runs[0].lse)
    assert np.array_equal(np.isneginf(lse), empty)
    rounding = EPS * np.sqrt(terms) * max(1.0, np.abs(runs[0].lse[~empty]).max(initial=0))
    exact, low = (run.lse[~empty].astype(np.float64) for run in runs)
    assert np.abs(lse[~empty] - exact).max(initial=0) <= 2 * (np.abs(low - exact).max(initial=0) + rounding)
    assert out.dtype == lse.dtype == np.float32
    return out, lse


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"B": 1, "T": 1, "S": 77, "H": 32, "G": 1, "K": 32, "V": 32, "R": 16, "Rv": 24},  # all in whole vectors
        {"B": 1, "T": 2, "S": 50, "H": 18, "G": 2, "K": 20, "V": 9, "R": 2, "Rv": 11},  # none of them
        {"B": 2, "T": 1, "S": 25, "H": 16, "G": 1, "K": 64, "V": 64, "R": 8, "Rv": 8},
    ],
    ids=["small", "vectors", "odd", "wide"],
)
def test_everything_the_door_offers(option, sizes):
    assert_same(with_option(option, **sizes))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize(
    "positions", [np.arange(60), np.array([0, 1, 2, 7, 8, 9, *range(100, 154)]), np.arange(60) * 1.5]
)
def test_keys_turn_by_their_positions_in_either_layout(layout, positions):
    planes = np.array([1, 3])
    usual = rope(12, layout=layout)
    given = arguments(S=60, K=12, R=4, rope=usual, positions=positions)
    given["k_factor"] = rotary.aligned_factor(6, 12, planes, layout=layout)
    assert_same(given | {"latent_rope": Rope(usual.frequency[planes])})
    assert_same(given)
    turned = given | {
        "rope": Rope(usual.frequency[:4], layout),
        "latent_rope": Rope(usual.frequency[:1], "interleaved"),
    }
    assert_same(turned)


@pytest.mark.parametrize("far", [2.0**22, cpu_kernels.FAR - 30, 2.0**40, -(2.0**40)])
def test_far_positions_are_as_exact_as_near_ones(far):
    positions = far + np.arange(70)
    given = arguments(B=1, T=1, S=70, rope=rope(8), positions=positions, latent_rope=Rope(rope(8).frequency[:2]))
    assert_same(given)


@pytest.mark.parametrize("rank", [0, 1, 2, 8, 16, 24, 32, 40, 48, 54, 56, 64, 128])
def test_any_rank(rank):
    sizes = {"B": 1, "T": 1, "S": 2 * cpu_kernels.BLOCK + 3, "H": 8, "G": 1, "K": 16, "V": 16}
    assert_same(arguments(**sizes, R=rank, Rv=rank))
    assert_same(arguments(**sizes, R=rank, Rv=3))


@pytest.mark.parametrize("T", [0, 1, 2, 5, 70])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("S", [0, 1, cpu_kernels.BLOCK, cpu_kernels.BLOCK + 1, 80])
def test_any_number_of_queries_and_keys(T, causal, S):
    """More queries than keys too: the first ones see none."""
    assert_same(arguments(B=1, T=T, S=S, H=3, G=1, causal=causal))


@pytest.mark.parametrize(("H", "G"), [(1, 1), (6, 6), (9, 3), (12, 2), (40, 1), (64, 2), (200, 1)])
def test_any_grouping(H, G):
    assert_same(arguments(B=1, T=1, S=30, H=H, G=G))


def test_without_latents_it_is_grouped_attention():
    given = arguments(S=40)
    bare = {name: given[name] for name in ("q", "k_shared", "v_shared")}
    for keys in (True, False):
        part = {name: given[name] for name in given if name.startswith("k_" if keys else "v_")}
        exact = reference.attention(**bare | part)
        np.testing.assert_allclose(attention(**bare | part, impl="numba"), exact, atol=64 * EPS * np.abs(exact).max())
    exact = reference.attention(**bare)
    np.testing.assert_allclose(attention(**bare, impl="numba"), exact, atol=64 * EPS * np.abs(exact).max())


@pytest.mark.parametrize("T", [1, 3])
def test_a_call_gives_the_same_bits_whatever_else_is_in_the_batch_and_by_any_number_of_threads(T, monkeypatch):
    """Rows are cut into several parts, of which each has several blocks."""
    monkeypatch.setattr(cpu_kernels, "LONG", 2 * cpu_kernels.BLOCK)
    given = with_option("ragged", B=3, T=T, S=20 * cpu_kernels.BLOCK + 5, H=8, G=1)
    given["ends"][2] = given["starts"][2] + 3  # a short one beside them
    assert len(cpu_kernels._cuts(0, given["k_shared"].shape[1])) == 12
    whole, _ = assert_same(given)
    for threads in (1, 2, 5):
        monkeypatch.setattr(numba_impl, "get_num_threads", lambda threads=threads: threads)
        assert np.array_equal(attention(**given, impl="numba"), whole)
        for b in range(3):
            row = {name: x if "factor" in name else x[b : b + 1] for name, x in given.items()}
            assert np.array_equal(attention(**row, impl="numba")[0], whole[b])


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_parts_are_shared_out_evenly_and_each_once(threads):
    cuts = [cpu_kernels._cuts(0, 131_072), cpu_kernels._cuts(7, 17), cpu_kernels._cuts(5, 40_000)]
    shares = cpu_kernels._shares(cuts, threads)
    jobs = [(tile, part) for share in shares for tile, first, end in share for part in range(first, end)]
    assert sorted(jobs) == [(tile, part) for tile, keys in enumerate(cuts) for part in range(len(keys) - 1)]
    read = [sum(cuts[tile][end] - cuts[tile][first] for tile, first, end in share) for share in shares]
    assert len(shares) == threads
    longest = max(np.diff(keys).max() for keys in cuts)
    assert max(read) - sum(read) / threads <= longest


def test_what_is_beyond_the_edges_is_not_read():
    given = with_option("ragged", S=60)
    given["starts"], given["ends"] = np.array([7, 20]), np.array([60, 20])
    for name in ("k_shared", "v_shared", "k_latent", "v_latent"):
        given[name][0, :7] = np.nan
        given[name][1] = np.inf
    out, lse = attention(**given, return_lse=True, impl="numba")
    assert np.isfinite(out).all()
    assert (out[1] == 0).all()  # an empty row
    assert np.isneginf(lse[1]).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_other_types_and_strides(dtype):
    """Keys strided, values not; latents of heads apart; read-only."""
    given = {name: x.astype(dtype) for name, x in arguments(B=2, T=2, S=40, H=6, G=2).items()}
    plain = assert_same(given)[0]
    spread = {**given}
    for name in ("k_shared", "v_latent", "q"):
        room = np.full((*given[name].shape[:-1], 2 * given[name].shape[-1]), np.nan, dtype)
        room[..., ::2] = given[name]
        spread[name] = room[..., ::2]
    for name in ("k_latent", "v_shared"):
        spread[name] = np.ascontiguousarray(given[name].transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    for x in spread.values():
        x.flags.writeable = False
    np.testing.assert_array_equal(attention(**spread, impl="numba"), plain)


def test_latents_in_the_wrong_order_of_heads_would_be_seen():
    given = arguments(S=40, H=16, G=1, R=8, Rv=8)
    swapped = given | {"k_latent": given["k_latent"][:, :, ::-1]}
    assert np.abs(attention(**given, impl="numba") - attention(**swapped, impl="numba")).max() > 0.01


def test_large_logits_do_not_overflow():
    given = arguments(B=1, S=100)
    given["q"] *= 200
    out = attention(**given, impl="numba")
    exact = reference.attention(**given)
    assert np.isfinite(out).all()
    # exp makes the error of a logit of size l, EPS l, relative to a weight
    largest = np.abs(reference.trace(**given).shared_logits).max()
    np.testing.assert_allclose(out, exact, atol=8 * EPS * largest * np.abs(given["v_shared"]).max())


def test_float32_is_too_narrow():
    given = arguments()
    given["k_latent"][0, 0, 0, 0] = 1e200
    with pytest.raises(backend.Unsupported, match="k_latent has numbers too large"):
        attention(**given, impl="numba")


def test_a_logit_that_float32_does_not_hold_is_no_number():
    given = arguments()
    given["q"], given["k_shared"] = given["q"] * 1e20, given["k_shared"] * 1e20
    assert np.isfinite(reference.attention(**given)).all()
    assert np.isnan(attention(**given, impl="numba")).any()


# -- the products --


@pytest.mark.parametrize("rows", [1, 3, 7, 12, 25, 32])
@pytest.mark.parametrize("columns", [8, 32, 96, 160])
@pytest.mark.parametrize("add", [0, 1])
def test_products_of_any_shape(rows, columns, add):
    a, b = (normal(0, n, *shape).astype(np.float32) for n, shape in ((1, (rows, 20)), (2, (20, columns))))
    c = normal(0, 3, rows, columns).astype(np.float32)
    exact = add * c.astype(float) + a.astype(float) @ b.astype(float)
    place = aligned(rows, columns)
    place[:] = c
    at = (address(x) for x in (a, b, place))
    cpu_kernels._multiplied(next(at), 20, 1, rows, next(at), columns, columns, next(at), columns, 20, add, 0, 0)
    np.testing.assert_allclose(place, exact, atol=20 * EPS * np.abs(exact).max())
