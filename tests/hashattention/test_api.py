"""The public doors: each error names the argument, what was wanted and what came."""

import numpy as np
import pytest

from attnlab import backend
from attnlab.hashattention import Maps, attention, encode, first_bits, random_maps, select
from tests.hashattention.cases import arguments, perceptron, selecting

GOOD = arguments()
WHOLE = "must be a whole number of tokens up to 2^40, or a fraction from 0.0 to 1.0, got"


def refused(kind, words, door, *given, **options):
    with pytest.raises(kind) as caught:
        door(*given, **options)
    assert words in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q": np.ones((2, 5, 6))}, "q must be [B, T, H, K], got 3 axes of sizes (2, 5, 6)"),
        ({"q": np.full((2, 5, 6, 7), np.nan)}, "q must be finite, got nan at [0, 0, 0, 0]"),
        ({"k": np.ones((2, 17, 21))}, "k must be [B, S, G, K], got 3 axes of sizes (2, 17, 21)"),
        ({"k": np.ones((2, 17, 3, 8))}, "k must be [B, S, G, K] with K = 7 as in q, got (2, 17, 3, 8)"),
        ({"k": np.ones((1, 17, 3, 7))}, "k must be [B, S, G, K] with B = 2 as in q, got (1, 17, 3, 7)"),
        ({"v": np.ones((2, 16, 3, 4))}, "v must be [B, S, G, V] with S = 17 as in k, got (2, 16, 3, 4)"),
        ({"v": np.ones((2, 17, 6, 4))}, "v must be [B, S, G, V] with G = 3 as in k, got (2, 17, 6, 4)"),
        ({"k": np.ones((2, 17, 4, 7)), "v": np.ones((2, 17, 4, 4))},
         "k must be [B, S, G, ...] with a number of heads that divides the 6 of q, got 4"),
        ({"k": np.ones((2, 17, 0, 7)), "v": np.ones((2, 17, 0, 4))},
         "k must be [B, S, G, ...] with a number of heads that divides the 6 of q, got 0"),
        ({"query_codes": GOOD["query_codes"][:, :, :3]}, "query_codes must be [B, T, H, W] with H = 6 as in q"),
        ({"query_codes": GOOD["query_codes"][:, 1:]}, "query_codes must be [B, T, H, W] with T = 5 as in q"),
        ({"query_codes": GOOD["query_codes"][..., 0]}, "query_codes must be [B, T, H, W], got 3 axes"),
        ({"key_codes": GOOD["key_codes"][:, :-1]}, "key_codes must be [B, S, C, W] with S = 17 as in k"),
        ({"key_codes": np.repeat(GOOD["key_codes"], 2, axis=3)}, "[B, S, C, W] with W = 1 as in query_codes"),
        ({"key_codes": GOOD["key_codes"][:, :, [0, 0, 1, 2]]},
         "key_codes must be [B, S, C, W] with a number of heads that divides the 6 of q, got 4"),
        ({"key_codes": GOOD["key_codes"][:, :, :2]},
         "key_codes must have a code a key/value head (3) or a query head (6), got 2"),
        ({"budget": 1.5}, f"budget {WHOLE} 1.5"),
        ({"budget": 64.0}, f"budget {WHOLE} 64.0"),
        ({"budget": -1}, f"budget {WHOLE} -1"),
        ({"budget": "all"}, f"budget {WHOLE} 'all'"),
        ({"budget": None}, f"budget {WHOLE} None"),
        ({"budget": True}, f"budget {WHOLE} True"),
        ({"budget": np.nan}, f"budget {WHOLE} nan"),
        ({"budget": 2**41}, f"budget {WHOLE} 2199023255552"),
        ({"sinks": -0.5}, f"sinks {WHOLE} -0.5"),
        ({"window": np.array([1])}, f"window {WHOLE} array([1])"),
        ({"causal": 1}, "causal must be True or False, got 1"),
        ({"return_lse": None}, "return_lse must be True or False, got None"),
        ({"scale": np.inf}, "scale must lie in [-1e+30, 1e+30], got inf"),
        ({"scale": np.nan}, "scale must lie in [-1e+30, 1e+30], got nan"),
        ({"scale": "1"}, "scale must be a number in [-1e+30, 1e+30], got '1'"),
        ({"impl": "fast"}, "impl must be one of 'reference', 'numba', 'torch', 'triton', got 'fast'"),
    ],
)  # fmt: skip
def test_bad_input_is_named_with_what_was_wanted_and_what_came(change, words):
    refused(ValueError, words, attention, **GOOD | change)


def test_more_queries_than_keys_need_a_window_both_ways():
    """Where causal the first ones would see nothing, before the first key."""
    given = arguments(T=5, S=4)
    refused(ValueError, "k must have at least the 5 positions of q where causal, got S = 4", attention, **given)
    words = "key_codes must have at least the 5 positions of query_codes where causal, got S = 4"
    refused(ValueError, words, select, **selecting(given))
    assert attention(**given | {"causal": False}).shape == (2, 5, 6, 4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q": np.ones((2, 5, 6, 7), int)}, "q must hold real floating-point numbers, got dtype int64"),
        ({"k": np.ones((2, 17, 3, 7), complex)}, "k must hold real floating-point numbers, got dtype complex128"),
        ({"v": np.ones((2, 17, 3, 4), int)}, "v must hold real floating-point numbers, got dtype int64"),
        ({"query_codes": GOOD["query_codes"].astype(np.int64)},
         "query_codes must be words of 32 bits, uint32 or int32, got int64"),
        ({"key_codes": GOOD["key_codes"].astype(np.uint8)},
         "key_codes must be words of 32 bits, uint32 or int32, got uint8"),
        ({"key_codes": GOOD["key_codes"].astype(float)}, "key_codes must be words of 32 bits, uint32 or int32, got f"),
        ({"key_codes": GOOD["key_codes"].astype(">u4")}, "key_codes must be words of 32 bits, uint32 or int32, got >"),
        ({"query_codes": GOOD["query_codes"].tolist()}, "query_codes must be words of 32 bits, uint32 or int32, got l"),
    ],
    ids=lambda x: None if isinstance(x, dict) else x[:11],
)  # fmt: skip
def test_other_types_are_refused_by_name(change, words):
    refused(TypeError, words, attention, **GOOD | change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"query_codes": GOOD["query_codes"][0]}, "query_codes must be [B, T, H, W], got 3 axes of sizes (5, 6, 1)"),
        ({"key_codes": GOOD["key_codes"][:1]}, "key_codes must be [B, S, C, W] with B = 2 as in query_codes"),
        ({"key_codes": np.repeat(GOOD["key_codes"], 2, axis=3)}, "[B, S, C, W] with W = 1 as in query_codes"),
        ({"key_codes": GOOD["key_codes"][:, :, [0, 0, 1, 2]]},
         "key_codes must be [B, S, C, W] with a number of heads that divides the 6 of query_codes, got 4"),
        ({"window": 1e9}, f"window {WHOLE} 1000000000.0"),
    ],
)  # fmt: skip
def test_select_names_its_own_arguments(change, words):
    refused(ValueError, words, select, **selecting(GOOD) | change)


def without(maps: Maps, part: str, n: int, value: object) -> Maps:
    layers = list(getattr(maps, part))
    layers[n] = value
    return maps._replace(**{part: tuple(layers)})


MAPS = perceptron(6, 7, 8, 40)


@pytest.mark.parametrize(
    ("maps", "words"),
    [
        (None, "maps must be Maps(weights, biases), as many of one as of the other, got NoneType"),
        (MAPS.weights, "maps must be Maps(weights, biases), as many of one as of the other, got tuple"),
        (Maps((), ()), "as many of one as of the other, got 0 and 0"),
        (Maps(MAPS.weights, MAPS.biases[:1]), "as many of one as of the other, got 2 and 1"),
        (Maps(MAPS.weights[0], MAPS.biases[0]), "maps must be Maps(weights, biases)"),
        (Maps(None, None), "maps must be Maps(weights, biases)"),
        (perceptron(3, 7, 40), "maps.weights[0] must be [H, I, O] with H = 6 as in x, got (3, 7, 40)"),
        (perceptron(6, 8, 40), "maps.weights[0] must be [H, I, O] with I = 7 as in x, got (6, 8, 40)"),
        (without(MAPS, "weights", 1, np.ones((6, 9, 40))), "maps.weights[1] must be [H, I, O] with I = 8 as in maps.w"),
        (
            without(MAPS, "biases", 1, np.ones((6, 41))),
            "maps.biases[1] must be [H, O] with O = 40 as in maps.weights[1]",
        ),
        (without(MAPS, "biases", 0, np.full((6, 8), np.nan)), "maps.biases[0] must be finite, got nan at [0, 0]"),
        (perceptron(6, 7, 4097), "bits of maps must lie in [1, 4096], got 4097"),
        (perceptron(6, 7, 0), "bits of maps must lie in [1, 4096], got 0"),
    ],
    ids=range(13),
)
def test_maps_that_do_not_fit_are_named_by_layer(maps, words):
    refused(ValueError, words, encode, GOOD["q"], maps)


def test_encode_reads_finite_numbers_alone():
    refused(ValueError, "x must be [B, T, H, K], got 2 axes of sizes (5, 7)", encode, np.ones((5, 7)), MAPS)
    refused(ValueError, "x must be finite, got inf at [0, 0, 0, 0]", encode, GOOD["q"] + np.inf, MAPS)
    refused(TypeError, "x must hold real floating-point numbers", encode, GOOD["q"].astype(int), MAPS)
    refused(
        TypeError,
        "maps.weights[0] must hold real",
        encode,
        GOOD["q"],
        without(MAPS, "weights", 0, np.ones((6, 7, 8), int)),
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bits": 0}, "bits must lie in [1, 4096], got 0"),
        ({"bits": 4097}, "bits must lie in [1, 4096], got 4097"),
        ({"heads": 2**19 + 1}, "heads must lie in [1, 524288], got 524289"),
        ({"head_width": 1.5}, "head_width must be a whole number in"),
        ({"seed": -1}, "seed must be a whole number in [0, 2^32)"),
        ({"centre": np.ones((3, 4))}, "centre must be [H, K] with H = 2 as in heads, got (3, 4)"),
        ({"centre": np.ones((2, 5))}, "centre must be [H, K] with K = 4 as in head_width, got (2, 5)"),
    ],
)
def test_random_maps_are_drawn_for_whole_counts_only(change, words):
    refused(ValueError, words, random_maps, **{"bits": 3, "heads": 2, "head_width": 4} | change)


def test_no_bits_can_be_kept_that_are_not_there():
    refused(ValueError, "bits must lie in [1, 40], got 41", first_bits, MAPS, 41)


def test_keys_and_values_are_not_looked_at_before_they_are_chosen():
    """A check of all numbers of a cache would cost as much as reading it."""
    given = arguments(budget=0, sinks=0)
    for name in "kv":
        given[name][:, :9] = np.nan
    assert np.isfinite(attention(**given)).all()


def test_a_gradient_that_would_be_dropped_in_silence_is_refused():
    torch = pytest.importorskip("torch", reason="the package torch is not installed")
    for name in "qkv":
        given = GOOD | {name: torch.tensor(GOOD[name], requires_grad=True)}
        with pytest.raises(backend.Unsupported, match=f"impl='reference' has no gradients, and {name} requires one"):
            attention(**given)


@pytest.mark.parametrize("impl", [impl for impl in backend.IMPLEMENTATIONS if backend.why_not(impl, "hashattention")])
def test_an_implementation_that_cannot_run_here_is_not_replaced(impl):
    for door, given in ((attention, GOOD), (select, selecting(GOOD)), (encode, {"x": GOOD["q"], "maps": MAPS})):
        with pytest.raises(backend.Unavailable, match=f"impl='{impl}' cannot run here"):
            door(**given, impl=impl)
