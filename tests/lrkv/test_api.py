"""The public door: each error names the argument, what was wanted and what came."""

import numpy as np
import pytest

from attnlab import backend
from attnlab.lrkv import STILL, Rope, attention, rope
from tests.lrkv.cases import OPTIONS, arguments, normal, with_option

GOOD = arguments()  # B 2, T 3, S 11, H 6, G 2, K 8, V 5, R 4, Rv 7
TURNING = {"rope": rope(8), "positions": np.arange(11)}
NONE_NUMBERS = Rope(np.array([1.0, np.nan]))


def refused(kind, words, change, drop=()):
    with pytest.raises(kind) as caught:
        attention(**{name: x for name, x in (GOOD | change).items() if name not in drop})
    assert words in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q": np.ones((2, 3, 6))}, "q must be [B, T, H, K], got 3 axes of sizes (2, 3, 6)"),
        ({"q": np.full((2, 3, 6, 8), np.inf)}, "q must be finite, got inf at [0, 0, 0, 0]"),
        ({"k_shared": np.ones((2, 11, 2, 9))}, "k_shared must be [B, S, G, K] with K = 8 as in q, got (2, 11, 2, 9)"),
        ({"k_shared": np.ones((1, 11, 2, 8))}, "k_shared must be [B, S, G, K] with B = 2 as in q, got (1, 11, 2, 8)"),
        ({"v_shared": np.ones((2, 10, 2, 5))}, "v_shared must be [B, S, G, V] with S = 11 as in k_shared"),
        ({"v_shared": np.ones((2, 11, 1, 5))}, "v_shared must be [B, S, G, V] with G = 2 as in k_shared"),
        ({"k_shared": np.ones((2, 11, 4, 8)), "v_shared": np.ones((2, 11, 4, 5))},
         "k_shared must have a number of heads that divides the 6 of q, got 4"),
        ({"k_shared": np.ones((2, 11, 0, 8)), "v_shared": np.ones((2, 11, 0, 5))},
         "k_shared must have a number of heads that divides the 6 of q, got 0"),
        ({"k_latent": np.ones((2, 11, 2, 4))}, "k_latent must be [B, S, H, R] with H = 6 as in q, got (2, 11, 2, 4)"),
        ({"k_latent": np.ones((2, 9, 6, 4))}, "k_latent must be [B, S, H, R] with S = 11 as in k_shared"),
        ({"v_latent": np.ones((2, 11, 6, 3))}, "v_factor must be [H, V, Rv] with Rv = 3 as in v_latent, got (6, 5, 7)"),
        ({"k_factor": GOOD["k_factor"] * np.inf}, "k_factor must be finite, got"),
        ({"k_factor": np.ones((6, 4, 8))}, "k_factor must be [H, K, R] with K = 8 as in q, got (6, 4, 8)"),
        ({"k_factor": np.ones((1, 8, 4))}, "k_factor must be [H, K, R] with H = 6 as in q, got (1, 8, 4)"),
        ({"k_factor": np.ones((8, 4))}, "k_factor must be [H, K, R], got 2 axes of sizes (8, 4)"),
        ({"v_factor": np.ones((6, 8, 7))}, "v_factor must be [H, V, Rv] with V = 5 as in v_shared, got (6, 8, 7)"),
        ({"k_latent": None}, "k_latent must be given where k_factor is, got None"),
        ({"v_factor": None}, "v_factor must be given where v_latent is, got None"),
        ({"q_residual": np.ones((2, 3, 6, 4))}, "q_residual must be [B, T, H, K] with K = 8 as in q"),
        ({"q_residual": GOOD["q"], "k_latent": None, "k_factor": None},
         "q_residual must be None where there are no k_latent, got one"),
        ({"k_scale": np.ones((2, 11, 2))}, "k_scale must be [B, S, H] with H = 6 as in q, got (2, 11, 2)"),
        ({"k_scale": np.ones((2, 11, 6, 1))}, "k_scale must be [B, S, H], got 4 axes of sizes (2, 11, 6, 1)"),
        ({"starts": np.array([0])}, "starts must be whole numbers [B] with B = 2, got int64 of shape (1,)"),
        ({"starts": np.array([0.0, 1.0])}, "starts must be whole numbers [B] with B = 2, got float64 of shape (2,)"),
        ({"starts": np.array([0, -1])}, "starts must lie in [0, 11], got [0, -1]"),
        ({"ends": np.array([12, 3])}, "ends must lie in [0, 11], got [12, 3]"),
        ({"starts": np.array([0, 5]), "ends": np.array([3, 4])}, "starts must not exceed ends, got [0, 5] and [3, 4]"),
        ({"causal": 1}, "causal must be True or False, got 1"),
        ({"return_lse": "yes"}, "return_lse must be True or False, got 'yes'"),
        ({"scale": np.nan}, "scale must lie in [-1e+30, 1e+30], got nan"),
        ({"scale": "1"}, "scale must be a number in"),
        ({"impl": "cuda"}, "impl must be one of"),
    ],
)  # fmt: skip
def test_an_array_or_option_that_does_not_fit_is_named(change, words):
    refused(ValueError, words, change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"latent_rope": STILL}, "latent_rope must be None where rope is, got one"),
        ({"positions": np.arange(11)}, "positions must be None where rope is, got one"),
        ({"rope": rope(8)}, "positions must be given where rope is, got None"),
        (TURNING | {"positions": np.arange(10)}, "positions must be numbers [S] or [B, S] with S = 11, got int64 of"),
        (TURNING | {"positions": np.zeros((3, 11))}, "with S = 11, got float64 of shape (3, 11)"),
        (TURNING | {"positions": np.arange(11) * np.nan}, "positions must be finite, got one that is not"),
        (TURNING | {"positions": np.array(["a"] * 11)}, "positions must be numbers [S] or [B, S]"),
        (TURNING | {"rope": rope(10)}, "rope.frequency must have at most 4 planes, got 5"),
        (TURNING | {"rope": Rope(np.ones(2), "split")}, "rope.layout must be one of 'half', 'interleaved', got"),
        (TURNING | {"rope": Rope(np.ones((2, 2)))}, "rope.frequency must be [planes], got 2 axes of sizes (2, 2)"),
        (TURNING | {"rope": NONE_NUMBERS}, "rope.frequency must be finite, got nan at [1]"),
        (TURNING | {"latent_rope": rope(6)}, "latent_rope.frequency must have at most 2 planes, got 3"),
        (TURNING | {"q_residual": GOOD["q"]},
         "q_residual must be None where residual keys are expanded and turned, got one"),
        (TURNING | {"latent_rope": STILL, "k_latent": None, "k_factor": None},
         "latent_rope must be None where there are no k_latent, got one"),
    ],
)  # fmt: skip
def test_a_rotation_that_does_not_fit_is_named(change, words):
    refused(ValueError, words, change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q": GOOD["q"].astype(int)}, "q must hold real floating-point numbers, got dtype int64"),
        ({"v_latent": GOOD["v_latent"] * 1j}, "v_latent must hold real floating-point numbers, got dtype complex128"),
        (TURNING | {"rope": 10_000.0}, "rope must be a Rope(frequency, layout), got float"),
        (TURNING | {"rope": (np.ones(2), "half")}, "rope must be a Rope(frequency, layout), got tuple"),
        (TURNING | {"latent_rope": np.ones(2)}, "latent_rope must be a Rope(frequency, layout), got ndarray"),
        (
            TURNING | {"rope": Rope(np.arange(2))},
            "rope.frequency must hold real floating-point numbers, got dtype int64",
        ),
    ],
)
def test_a_wrong_kind_is_named(change, words):
    refused(TypeError, words, change)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rope(7), "width must be even to form rotary planes, got 7"),
        (lambda: rope(-2), "width must lie in [0, 1.04858e+06], got -2"),
        (lambda: rope(8, theta=0), "theta must lie in [1e-06, 1e+30], got 0"),
        (lambda: rope(8, layout="split"), "layout must be one of 'half', 'interleaved', got 'split'"),
    ],
)
def test_a_rope_that_cannot_be_made_is_named(call, words):
    with pytest.raises(ValueError, match="must") as caught:
        call()
    assert words in str(caught.value)


def test_the_usual_rope_has_falling_frequencies_and_may_be_of_no_width():
    np.testing.assert_allclose(rope(8, theta=16.0).frequency, [1, 1 / 2, 1 / 4, 1 / 8], rtol=1e-15)
    assert len(rope(0).frequency) == len(STILL.frequency) == 0
    assert rope(8).layout == "half"


def test_the_numbers_of_the_cache_are_not_looked_at_before_it_is_read():
    """What lies outside of starts and ends may be anything: unwritten room, another request. All else is checked."""
    given = with_option("ragged")
    assert np.isnan(given["k_shared"]).any()
    assert np.isfinite(attention(**given)).all()
    refused(ValueError, "q must be finite", given | {"q": GOOD["q"] * np.nan})
    refused(ValueError, "v_factor must be finite", given | {"v_factor": GOOD["v_factor"] * np.nan})


@pytest.mark.parametrize(
    "impl", [impl for impl in ("reference", "numba", "torch") if not backend.why_not(impl, "lrkv")]
)
@pytest.mark.parametrize("name", ["k_shared", "v_shared", "k_latent", "v_latent", "k_scale"])
def test_nan_in_a_key_that_is_read_comes_out_as_nan(name, impl):
    """And not as 0, which would look like an answer; the other row of the batch has its own."""
    given = {x: y.astype(np.float32) for x, y in (GOOD | {"k_scale": np.ones((2, 11, 6))}).items()}
    want = np.asarray(attention(**given, impl=impl))
    given[name][1, 4] = np.nan
    got = np.asarray(attention(**given, impl=impl))
    assert np.isnan(got[1]).all()
    assert np.array_equal(got[0], want[0])


@pytest.mark.parametrize("option", OPTIONS)
def test_the_door_takes_arrays_in_order_and_adds_lse_where_asked(option):
    given = with_option(option)
    names = ("q", "k_shared", "v_shared", "k_latent", "v_latent", "k_factor", "v_factor")
    options = {name: x for name, x in given.items() if name not in names}
    out, lse = attention(*(given[name] for name in names), **options, return_lse=True)
    assert np.array_equal(out, attention(**given))
    assert lse.shape == (2, 3, 6)


def test_a_scale_is_one_over_the_root_of_the_width_unless_given():
    assert np.array_equal(attention(**GOOD), attention(**GOOD, scale=8**-0.5))
    np.testing.assert_allclose(
        attention(**GOOD, scale=0.5), attention(**GOOD | {"q": 0.5 * 8**0.5 * GOOD["q"]}), atol=1e-13
    )
    assert np.abs(attention(**GOOD, scale=-1.0) - attention(**GOOD, scale=1.0)).max() > 0.1


def test_a_gradient_that_would_be_dropped_in_silence_is_refused():
    torch = pytest.importorskip("torch", reason="the package torch is not installed")
    extra = {"q_residual": GOOD["q"], "k_scale": np.ones((2, 11, 6))}
    for name in (*GOOD, *extra):
        given = GOOD | extra
        given[name] = torch.tensor(given[name], requires_grad=True)
        with pytest.raises(backend.Unsupported, match=f"impl='reference' has no gradients, and {name} requires one"):
            attention(**given)


@pytest.mark.parametrize("impl", [impl for impl in backend.IMPLEMENTATIONS if backend.why_not(impl, "lrkv")])
def test_an_implementation_that_cannot_run_here_is_not_replaced(impl):
    with pytest.raises(backend.Unavailable, match=f"impl='{impl}' cannot run here"):
        attention(**GOOD, impl=impl)


def test_one_head_without_latents_is_read_as_it_is():
    """The least that can be asked: one query, one key; o is the value."""
    one = np.ones((1, 1, 1, 1))
    assert attention(one, 3 * one, 7 * one).ravel().tolist() == [7.0]
    assert attention(one, 3 * one, 7 * one, return_lse=True)[1].ravel().tolist() == [3.0]
    assert attention(normal(0, 1, 1, 1, 4, 2), normal(0, 2, 1, 3, 1, 2), normal(0, 3, 1, 3, 1, 5)).shape == (1, 1, 4, 5)
