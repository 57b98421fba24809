"""LRKV in fractions: a quarter turn by hand, searches that find every sum of planes, norms, what centring leaves."""

from fractions import Fraction

import numpy as np
import pytest

from attnlab import draws
from attnlab.lrkv import diversity, rational, reference, rotary
from attnlab.lrkv.params import Rope
from attnlab.lrkv.rational import CIRCLE, QUARTER_TURN, Turned, fractions, planes, rotation

F = Fraction
TIED = [CIRCLE[0], CIRCLE[0]]
OPPOSITE = [CIRCLE[0], (CIRCLE[0][0], -CIRCLE[0][1])]
HALF_TURN = [(F(-1), F(0)), CIRCLE[0]]


def columns(*rows):
    return fractions(np.array(rows))


def whole_numbers(stream, *shape, size=4):
    words = draws.bits(7, stream, int(np.prod(shape)), 1)[:, 0, 0].astype(np.int64)
    return fractions(words % (2 * size + 1) - size).reshape(shape)


def spaces(width, entries):
    for dimension in range(width + 1):
        yield from rational.subspaces(width, dimension, entries)


# -- rotations --------------------------------------------------------------------------------------------------------


def test_a_quarter_turn_takes_the_first_coordinate_to_the_second_and_no_number_does_that():
    assert QUARTER_TURN.moved().ravel().tolist() == [0, 1]
    assert not QUARTER_TURN.passes()
    assert rational.latent_map(*QUARTER_TURN) is None
    both = QUARTER_TURN._replace(factor=columns([1, 0], [0, 1]))
    assert both.passes()
    assert rational.latent_map(*both).tolist() == both.rotation.tolist()


def test_the_angles_of_the_circle_are_neither_equal_nor_opposite_and_none_is_0_or_pi():
    assert len({cos for cos, _ in CIRCLE}) == len(CIRCLE)  # equal and opposite angles have one cosine
    assert all(sin != 0 for _, sin in CIRCLE)
    assert all(cos**2 + sin**2 == 1 for cos, sin in CIRCLE)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_the_rotation_is_the_one_that_the_reference_turns_rows_by(layout):
    frequency = np.array([np.arctan2(float(sin), float(cos)) for cos, sin in CIRCLE])
    turned = rotary.rotation(Rope(frequency, layout), 6, 1.0)
    assert np.abs(turned - rotation(CIRCLE, layout=layout).astype(float)).max() <= 1e-15
    row = np.arange(6.0)
    moved = reference.turn(row[None, None, None], Rope(frequency, layout), np.ones((1, 1)))[0, 0, 0]
    assert np.abs(moved - (rotation(CIRCLE, layout=layout) @ fractions(row)).astype(float)).max() <= 1e-14


def test_a_point_off_the_circle_and_dependent_columns_are_refused():
    with pytest.raises(ValueError, match=r"unit circle, got \(1, 1\)"):
        rotation([(F(1), F(1))])
    with pytest.raises(ValueError, match="independent columns, got rank 1 with 2 columns"):
        rational.latent_map(columns([1, 2], [1, 2]), rotation(CIRCLE[:1]))


def test_the_latents_turn_as_the_planes_do_whatever_the_columns_are():
    whole = np.zeros((6, 4), dtype=object)
    whole[[0, 1, 3, 4]] = whole_numbers(1, 4, 4)  # planes 0 and 1 of three
    turned = rotation(CIRCLE)
    latent = rational.latent_map(whole, turned)
    assert np.all(whole @ latent == turned @ whole)
    assert np.all(whole @ latent @ latent == turned @ turned @ whole)  # and so at every later position
    cosines = {cos for cos, _ in CIRCLE[:2]}
    assert latent.trace() == 2 * sum(cosines)


# -- which factors pass -----------------------------------------------------------------------------------------------


def test_of_all_small_spaces_in_six_dimensions_the_sums_of_planes_pass():
    """Reduced bases of zeros and ones, ranks 0 to 3: Gaussian binomials 1, 63, 651, 1395 at q = 2."""
    turned, pairs, found = rotation(CIRCLE), planes(3), []
    counts = []
    for dimension in range(4):
        counts.append(0)
        for basis in rational.subspaces(6, dimension, (0, 1)):
            counts[-1] += 1
            passes = Turned(basis, turned).passes()
            assert passes == rational.is_whole_planes(basis, pairs)
            found += [dimension] * passes
    assert counts == [1, 63, 651, 1395]
    assert found == [0, 2, 2, 2]


@pytest.mark.parametrize(("points", "lines"), [(TIED, 0), (OPPOSITE, 0), (HALF_TURN, 6)])
def test_with_angles_that_the_theorem_excludes_more_passes(points, lines):
    """Equal: complex lines. Opposite: conjugate ones. A half turn: every line of its plane, six with entries to 2."""
    turned, pairs = rotation(points), planes(2)
    passing = [basis for basis in spaces(4, (-2, -1, 0, 1, 2)) if Turned(basis, turned).passes()]
    assert sum(basis.shape[1] == 1 for basis in passing) == lines
    assert any(not rational.is_whole_planes(basis, pairs) for basis in passing)
    assert len(passing) > 4


def test_complex_lines_pass_where_frequencies_are_equal_and_conjugate_ones_where_they_are_opposite():
    """Coordinates 0 and 2 are plane 0, 1 and 3 are plane 1, which receives (2 + 3i) times plane 0."""
    linear = columns([1, 0], [2, -3], [0, 1], [3, 2])
    conjugate = columns([1, 0], [2, 3], [0, 1], [3, -2])
    for points, right, wrong in ((TIED, linear, conjugate), (OPPOSITE, conjugate, linear)):
        assert Turned(right, rotation(points)).passes()
        assert not Turned(wrong, rotation(points)).passes()
        assert not rational.is_whole_planes(right, planes(2))


def test_planes_of_one_layout_are_none_of_the_other():
    for layout, other in (("half", "interleaved"), ("interleaved", "half")):
        basis = np.zeros((6, 2), dtype=object)
        for column, place in enumerate(planes(3, layout=layout)[1]):
            basis[place, column] = F(1)
        assert Turned(basis, rotation(CIRCLE, layout=layout)).passes()
        assert not Turned(basis, rotation(CIRCLE, layout=other)).passes()


def test_a_column_needs_both_coordinates_of_every_plane_it_touches():
    turned = rotation(CIRCLE)
    assert rational.orbit(columns([1], [0], [0], [0], [0], [0]), turned) == 2
    assert rational.orbit(columns([1], [1], [0], [0], [0], [0]), turned) == 4
    assert rational.orbit(columns([1], [1], [1], [0], [0], [0]), turned) == 6
    assert rational.orbit(columns([1], [1], [0], [0]), rotation(TIED)) == 2  # one complex line
    assert rational.orbit(np.zeros((6, 1), dtype=object), turned) == 0


def test_subspaces_are_all_different():
    found = {tuple(map(tuple, basis)) for basis in rational.subspaces(4, 2, (0, 1))}
    assert len(found) == 35  # planes in a space of four dimensions over two elements
    assert all(rational.rank(fractions(np.array(basis))) == 2 for basis in found)


# -- elimination, norms, centring -------------------------------------------------------------------------------------


def test_the_rank_is_that_of_floats_where_these_can_tell():
    for stream, (m, n, r) in enumerate(((5, 4, 2), (3, 6, 3), (4, 4, 1))):
        matrix = whole_numbers(10 + stream, m, r) @ whole_numbers(20 + stream, r, n)
        assert rational.rank(matrix) == np.linalg.matrix_rank(matrix.astype(float)) == r


def test_a_norm_divides_by_the_root_of_the_mean_square_and_refuses_one_that_is_no_fraction():
    assert rational.rms_norm(fractions(np.array([1, 7]))).tolist() == [F(1, 5), F(7, 5)]
    assert rational.rms_norm(fractions(np.array([-6, 6]))).tolist() == [-1, 1]
    for x, square in (([1, 2], "5/2"), ([0, 0], "0")):
        with pytest.raises(ValueError, match=f"not 0, got {square}"):
            rational.rms_norm(fractions(np.array(x)))


def test_centring_in_fractions_is_that_of_floats_and_takes_rows_to_0():
    gram = whole_numbers(30, 5, 7)
    gram = gram @ gram.T
    out = rational.centred(gram)
    assert np.all(out.sum(axis=0) == 0)
    assert np.abs(out.astype(float) - diversity.centred(gram.astype(float))).max() <= 1e-12 * np.abs(gram).max()
