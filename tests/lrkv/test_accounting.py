"""What a cache holds is counted in whole numbers; the paper's tables are recomputed from them."""

from fractions import Fraction

import pytest

from attnlab.lrkv import accounting
from attnlab.lrkv.accounting import (
    CONFIGURATIONS,
    HEAD_WIDTH,
    LAYERS_2_5B,
    SCHEMES,
    TABLE_8,
    TABLE_12,
    TABLE_12_RANK,
    cache_bytes,
    elements,
    flop,
    intensity,
    parameters,
    ratio,
    traffic,
)

SIZES = {"heads": 32, "head_width": 128}
MLA = {"latent_width": 512, "rope_width": 64}


@pytest.mark.parametrize(
    ("scheme", "more", "numbers", "operations"),
    [
        ("mha", {}, 8192, 16384),
        ("gqa", {"groups": 8}, 2048, 16384),
        ("mqa", {}, 256, 16384),
        ("lrkv", {"rank": 54}, 3712, 23296),
        ("lrkv", {"rank": 16}, 1280, 18432),
        ("lrkv", {"rank": 32}, 2304, 20480),
        ("lrkv", {"rank": 64}, 4352, 24576),
        ("lrkv", {"rank": 54, "key_scale": True}, 3744, 23296 + 32),  # each head multiplies its logit
        ("lrkv", {"rank": 54, "groups": 4}, 2 * (4 * 128 + 32 * 54), 23296),
        ("mla", MLA, 576, 69632),
        ("mla", MLA | {"heads": 128}, 576, 278528),
    ],
)
def test_elements_bytes_and_operations_of_one_decode_query(scheme, more, numbers, operations):
    """H = 32 heads of 128 in 16 bits: one token of one layer."""
    sizes = SIZES | more
    assert elements(scheme, **sizes) == numbers
    assert traffic(scheme, bytes_each=2, **sizes) == 2 * numbers
    assert flop(scheme, **sizes) == operations
    assert intensity(scheme, bytes_each=2, **sizes) == Fraction(operations, 2 * numbers)
    assert cache_bytes(scheme, tokens=7, layers=3, bytes_each=2, **sizes) == 42 * numbers


def test_one_program_a_head_reads_what_is_shared_again_and_moves_more_than_mha():
    """2 H (d + r) numbers: (1 + r/d) times those of MHA, however many heads share."""
    moved = traffic("lrkv", bytes_each=2, program_a_head=True, rank=54, **SIZES)
    assert moved == 2 * 2 * 32 * (128 + 54) == 23296
    assert Fraction(moved, traffic("mha", bytes_each=2, **SIZES)) == 1 + Fraction(54, 128)
    assert intensity("lrkv", bytes_each=2, program_a_head=True, rank=54, **SIZES) == 1
    for scheme, groups in (("mha", 1), ("gqa", 8), ("mqa", 1)):
        assert traffic(scheme, bytes_each=2, program_a_head=True, groups=groups, **SIZES) == 16384
    assert traffic("mla", bytes_each=2, program_a_head=True, **MLA, **SIZES) == 32 * 1152


def test_keys_expanded_and_turned_as_they_are_read_cost_no_byte_and_many_operations():
    """A coordinate of a key: r multiplications, r additions, 3 of its rotation, 2 of the logit; 2 r d and more, where
    a factored residual takes 2 r.
    """
    assert flop("lrkv", rank=54, expand=True, **SIZES) == 32 * (128 * (2 * 54 + 5) + 2 * (128 + 54)) == 474496
    assert (2 * 54 + 5) * 128 / (2 * 54) == pytest.approx(134, abs=0.1)
    assert intensity("lrkv", bytes_each=2, rank=54, expand=True, **SIZES) > 60


@pytest.mark.parametrize("row", CONFIGURATIONS, ids=lambda row: row.label)
def test_the_ratio_is_one_over_heads_and_rank_over_width(row):
    assert row.ratio == Fraction(1, row.heads) + Fraction(row.rank, HEAD_WIDTH)
    recomputed = {"128M": 52.60, "1.2B": 48.18, "2.5B": 48.52, "6.3B": 45.31}[row.label]
    assert float(100 * row.ratio) == pytest.approx(recomputed, abs=0.005)


def test_two_printed_ratios_are_not_those_of_table_7():
    """48.4 and 45.1 beside 48.52 and 45.31: one decimal is printed, so 0.05 apart is rounding, and this is more."""
    off = [row.label for row in CONFIGURATIONS if row.printed and abs(float(100 * row.ratio) - row.printed) > 0.05]
    assert off == ["2.5B", "6.3B"]


def test_a_rank_of_the_width_costs_more_than_mha_and_rank_0_is_mqa():
    for heads in (1, 6, 32):
        sizes = {"heads": heads, "head_width": 128}
        assert ratio("lrkv", rank=128, **sizes) == 1 + Fraction(1, heads)
        assert ratio("lrkv", rank=0, **sizes) == ratio("mqa", **sizes) == Fraction(1, heads)
    assert ratio("lrkv", groups=8, **SIZES) == ratio("gqa", groups=8, **SIZES)
    assert ratio("mha", **SIZES) == 1


def test_a_token_of_the_2_5b_model_leaves_2236_numbers_instead_of_4608():
    assert elements("mha", heads=18, head_width=128) == 4608
    assert elements("lrkv", heads=18, head_width=128, rank=55) == 2236


@pytest.mark.parametrize("row", TABLE_8, ids=lambda row: f"{row.scheme}-{row.size}")
def test_table_8_prints_its_own_ratios(row):
    size = {"lrkv": "rank", "mla": "latent_width"}.get(row.scheme)
    exact = ratio(row.scheme, heads=6, head_width=HEAD_WIDTH, **({size: row.size} if size else {}))
    assert float(100 * exact) == pytest.approx(row.printed, abs=0.05 + 1e-9)


def test_mla_with_less_cache_has_the_lower_loss_in_table_8():
    mla, lrkv = (next(row for row in TABLE_8 if row[:2] == key) for key in (("mla", 384), ("lrkv", 32)))
    assert (mla.printed, mla.cross_entropy, lrkv.printed, lrkv.cross_entropy) == (25.0, 2.894, 41.7, 2.896)


@pytest.mark.parametrize("row", TABLE_12, ids=lambda row: row.label)
def test_the_megabytes_of_table_12_are_those_of_rank_64(row):
    """And of 2,048 tokens in 16 bits with 12, 36 and 36 layers, as MiB; the percentages are those of other ranks."""
    sizes = {"heads": row.heads, "head_width": HEAD_WIDTH, "tokens": 2048, "bytes_each": 2}
    layers = {"128M": 12, "2.5B": 36, "6.3B": 36}[row.label]
    assert cache_bytes("mha", layers=layers, **sizes) == row.mha * 2**20
    assert cache_bytes("lrkv", layers=layers, rank=TABLE_12_RANK, **sizes) == row.lrkv * 2**20
    assert abs(100 * row.lrkv / row.mha - row.printed) > 7
    assert sorted(LAYERS_2_5B.values()) == [18, 36]


def test_parameters_are_saved_in_another_ratio_than_the_cache():
    """Eq. 10 (p. 4); where the layer is as wide as its heads together, 1/H + r/d + r/width: 58.59 % at 128M."""
    for row in CONFIGURATIONS:
        sizes = {"width": row.heads * HEAD_WIDTH, "heads": row.heads, "head_width": HEAD_WIDTH}
        count = parameters("lrkv", rank=row.rank, **sizes)
        d, D = HEAD_WIDTH, row.heads * HEAD_WIDTH
        assert count == 2 * D * d + 2 * row.heads * row.rank * (D + d)
        assert Fraction(count, parameters("mha", **sizes)) == row.ratio + Fraction(row.rank, D)
    assert float(100 * (CONFIGURATIONS[0].ratio + Fraction(46, 768))) == pytest.approx(58.59, abs=0.005)


def test_parameters_of_the_other_schemes():
    sizes = {"width": 10, "heads": 6, "head_width": 4}
    assert parameters("mha", **sizes) == 2 * 10 * 6 * 4
    assert parameters("gqa", groups=3, **sizes) == 2 * 10 * 3 * 4
    assert parameters("mqa", **sizes) == 2 * 10 * 4
    assert parameters("mla", latent_width=7, rope_width=2, **sizes) == 10 * 7 + 10 * 2 + 2 * 7 * 6 * 4


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_number_counted_is_a_whole_one(scheme):
    sizes = {"heads": 6, "head_width": 8, "groups": 2, "rank": 3, "latent_width": 5, "rope_width": 2}
    assert type(elements(scheme, **sizes)) is int
    assert type(flop(scheme, **sizes)) is int
    assert type(traffic(scheme, bytes_each=2, **sizes)) is int
    assert type(parameters(scheme, width=9, **sizes)) is int


@pytest.mark.parametrize(
    ("door", "change", "words"),
    [
        ("elements", {"scheme": "mlp"}, "scheme must be one of 'mha', 'gqa', 'mqa', 'mla', 'lrkv', got 'mlp'"),
        ("elements", {"groups": 4}, "groups must divide heads = 6, got 4"),
        ("elements", {"heads": 0}, "heads must lie in [1, "),
        ("elements", {"head_width": 1.5}, "head_width must be a whole number in [1, "),
        ("elements", {"rank": -1}, "rank must lie in [0, "),
        ("elements", {"key_scale": 1}, "key_scale must be True or False, got 1"),
        ("cache_bytes", {"tokens": -1, "layers": 1, "bytes_each": 2}, "tokens must lie in [0, "),
        ("cache_bytes", {"tokens": 1, "layers": 1, "bytes_each": 0}, "bytes_each must lie in [1, 16], got 0"),
        ("parameters", {"width": 0}, "width must lie in [1, "),
        ("flop", {"scheme": "mqa", "expand": True}, "expand must be False for mqa, got True"),
        ("traffic", {"bytes_each": 2, "program_a_head": "no"}, "program_a_head must be True or False, got 'no'"),
        ("ratio", {"groups": 5}, "groups must divide heads = 6, got 5"),
    ],
)
def test_sizes_that_no_layer_has_are_refused_by_name(door, change, words):
    given = {"scheme": "lrkv", "heads": 6, "head_width": 8} | change
    with pytest.raises(ValueError, match="must") as caught:
        getattr(accounting, door)(**given)
    assert words in str(caught.value)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_whole_numbers_stay_whole_however_they_are_written(scheme):
    sizes = {"heads": 6, "head_width": 8, "groups": 2, "rank": 2, "latent_width": 5, "rope_width": 2}
    doors = {
        elements: {},
        cache_bytes: {"tokens": 7, "layers": 3, "bytes_each": 2},
        parameters: {"width": 9},
        flop: {},
        traffic: {"bytes_each": 2},
    }
    for door, more in doors.items():
        counts = door(scheme, **sizes, **more), door(scheme, **{name: float(x) for name, x in (sizes | more).items()})
        assert counts[0] == counts[1]
        assert {type(count) for count in counts} == {int}
    alone = [traffic(scheme, program_a_head=True, bytes_each=kind(2), **sizes) for kind in (int, float)]
    assert alone == [traffic(scheme, program_a_head=True, bytes_each=2, **sizes | {"heads": 6.0, "rank": 2.0})] * 2
    assert {type(x) for x in alone} == {int}
    assert elements("lrkv", heads=6, head_width=128, rank=2.0) == 280
