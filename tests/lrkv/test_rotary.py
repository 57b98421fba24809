"""What a rotation passes through and what it does not: every option against keys made whole and turned, both layouts.

Coordinates are read off by asking with unit vectors at position 0, which no rotation moves: the logits of K such
queries are the K coordinates of a key.
"""

import numpy as np
import pytest

from attnlab.lrkv import STILL, Rope, rope, rotary
from attnlab.lrkv.rotary import angle_law, case, escape, factored_logits, mixed_factor, principal_angles, rotated_logits
from tests.lrkv.cases import normal

B, T, S, H, G, K, R = 2, 5, 9, 6, 2, 16, 4
EXACT = 1e-12
QUERIES, KEYS = 100.0 + np.arange(T), 3.0 + 2.5 * np.arange(S)  # any positions, not whole ones alone
RIGHT = [name for name, option in rotary.OPTIONS.items() if option.exact]
WRONG = [name for name, option in rotary.OPTIONS.items() if not option.exact]
LAYOUTS = ("half", "interleaved")


def tensors(seed=0, K=K, R=R):
    return normal(seed, 1, B, T, H, K), normal(seed, 2, B, S, G, K), normal(seed, 3, B, S, H, R)


def in_layout(option, layout, *, width=K, rank=R):
    """The case of an option, in this layout: coordinates move, and nothing else."""
    given = case(option, heads=H, width=width, rank=rank, seed=1)
    if layout == "half":
        return given
    turning = len(given.rope.frequency)
    order = rotary.plane_coordinates(width, np.arange(turning), layout="interleaved", total=turning)
    factor = np.zeros_like(given.factor)
    factor[:, order] = given.factor[:, : 2 * turning]
    factor[:, 2 * turning :] = given.factor[:, 2 * turning :]
    return given._replace(rope=Rope(given.rope.frequency, layout), factor=factor)


def coordinates(of, option, shared, latent, factor, *turning):
    """Keys [B, S, H, K] as an option has them."""
    width = factor.shape[1]
    q = np.broadcast_to(np.eye(width)[None, :, None], (B, width, H, width))
    return of(option, q, shared, latent, factor, *turning).transpose(0, 3, 1, 2)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("option", RIGHT)
def test_an_exact_option_has_the_logits_of_keys_made_whole_and_turned(option, layout):
    q, shared, latent = tensors()
    _, turning, latent_turning, factor = in_layout(option, layout)
    got = factored_logits(option, q, shared, latent, factor, turning, latent_turning, QUERIES, KEYS)
    want = rotated_logits(option, q, shared, latent, factor, turning, QUERIES, KEYS)
    np.testing.assert_allclose(got, want, rtol=0, atol=EXACT * np.abs(want).max())


@pytest.mark.parametrize("rank", [0, 2, 8, 16])
@pytest.mark.parametrize("option", RIGHT)
def test_at_every_rank_from_nothing_to_the_whole_width(option, rank):
    if option == "tied" and rank == 0:
        with pytest.raises(ValueError, match="rank must be even and divide width = 16"):
            case(option, heads=H, width=K, rank=rank)
        return
    q, shared, latent = tensors(R=rank)
    _, turning, latent_turning, factor = case(option, heads=H, width=K, rank=rank)
    got = factored_logits(option, q, shared, latent, factor, turning, latent_turning, QUERIES, KEYS)
    want = rotated_logits(option, q, shared, latent, factor, turning, QUERIES, KEYS)
    np.testing.assert_allclose(got, want, rtol=0, atol=EXACT * np.abs(want).max())


def test_the_width_and_the_rank_of_the_paper():
    """d = 128, r = 54: 27 planes of 64 are a span like any other; 54 does not divide 128, so none can be tied."""
    q, shared, latent = tensors(K=128, R=54)
    for option in ("none", "still", "aligned", "partial", "expand", "query_side"):
        _, turning, latent_turning, factor = case(option, heads=H, width=128, rank=54)
        got = factored_logits(option, q, shared, latent, factor, turning, latent_turning, QUERIES, KEYS)
        want = rotated_logits(option, q, shared, latent, factor, turning, QUERIES, KEYS)
        np.testing.assert_allclose(got, want, rtol=0, atol=EXACT * np.abs(want).max())
    with pytest.raises(ValueError, match="rank must be even and divide width = 128"):
        case("tied", heads=H, width=128, rank=54)


@pytest.mark.parametrize("option", ["latents_turned", "latents_unturned", "best_latent_map"])
def test_no_map_of_latents_brings_back_what_left_the_span(option):
    """P_t B z has a part outside of span(B), and every map of r latents stays inside: that part is the least error of
    each key, and the best map has exactly that. It is no rounding: half of the keys' length and more.
    """
    _, shared, latent = tensors()
    _, turning, latent_turning, factor = case(option, heads=H, width=K, rank=R, seed=1)
    at = (np.zeros(K), KEYS)
    got = coordinates(factored_logits, option, shared, latent, factor, turning, latent_turning, *at)
    want = coordinates(rotated_logits, option, shared, latent, factor, turning, *at)
    error = np.linalg.norm(got - want, axis=-1)
    least = np.empty_like(error)
    for h in range(H):
        outside = np.eye(K) - factor[h] @ np.linalg.pinv(factor[h])
        for s, position in enumerate(KEYS):
            moved = rotary.rotation(turning, K, position) @ factor[h] @ latent[:, s, h].T
            least[:, s, h] = np.linalg.norm(outside @ moved, axis=0)
    if option == "best_latent_map":
        np.testing.assert_allclose(error, least, rtol=0, atol=EXACT * error.max())
    assert (error >= least - EXACT * error.max()).all()
    residual = np.linalg.norm(np.einsum("bshr,hkr->bshk", latent, factor), axis=-1)
    assert np.sqrt((least**2).mean() / (residual**2).mean()) > 0.5


def test_planes_of_one_layout_are_none_of_the_other():
    """Plane 0 is (0, 1) in one, (0, 8) in the other: a factor of the wrong one is turned out of its span at once."""
    q, shared, latent = tensors()
    _, turning, latent_turning, factor = case("other_layout", heads=H, width=K, rank=R)
    got = factored_logits("other_layout", q, shared, latent, factor, turning, latent_turning, QUERIES, KEYS)
    want = rotated_logits("other_layout", q, shared, latent, factor, turning, QUERIES, KEYS)
    assert np.sqrt(((got - want) ** 2).mean() / (want**2).mean()) > 0.1
    assert escape(factor[0], turning, KEYS).max() > 0.5
    assert escape(factor[0], turning._replace(layout="interleaved"), KEYS).max() < EXACT


def test_the_named_counterexamples_are_all_tried_here():
    assert WRONG == ["latents_turned", "latents_unturned", "best_latent_map", "other_layout"]


def test_a_quarter_turn_by_hand():
    """B = (1, 0), P a quarter turn: PB = (0, 1), and no number c has B c = PB; by both columns nothing leaves."""
    quarter = Rope(np.array([np.pi / 2]))
    np.testing.assert_allclose(rotary.rotation(quarter, 2, 1) @ [1.0, 0.0], [0.0, 1.0], rtol=0, atol=1e-15)
    np.testing.assert_allclose(
        escape(np.array([[1.0], [0.0]]), quarter, np.arange(4)), [0, 1, 0, 1], rtol=0, atol=1e-15
    )
    assert escape(np.eye(2), quarter, np.arange(4)).max() < 1e-15


# -- the error law --


@pytest.mark.parametrize("opposite", [False, True])
@pytest.mark.parametrize("degrees", [0, 0.5, 1, 2, 5, 10, 20, 30, 45, 60, 90])
@pytest.mark.parametrize(("i", "j"), [(0, 1), (2, 7), (6, 3)])
def test_the_error_law_of_two_mixed_planes(i, j, degrees, opposite):
    turning, positions, phi = rope(K, theta=50.0), np.linspace(0, 300, 61), np.radians(degrees)
    measured = escape(mixed_factor(K, i, j, phi, opposite=opposite), turning, positions)
    law = angle_law(turning, i, j, phi, positions, opposite=opposite)
    np.testing.assert_allclose(measured, law, rtol=0, atol=1e-10)
    ti, tj = turning.frequency[[i, j]]
    apart = ti + tj if opposite else ti - tj
    np.testing.assert_allclose(law, np.abs(np.sin(2 * phi) * np.sin(apart * positions / 2)), rtol=0, atol=1e-10)
    if degrees not in (0, 90):  # with the planes run through the other way it is the other law
        other = angle_law(turning, i, j, phi, positions, opposite=not opposite)
        assert np.abs(measured - other).max() > 0.1 * np.sin(2 * phi)


@pytest.mark.parametrize("opposite", [False, True])
def test_the_law_is_the_error_that_the_best_map_of_latents_leaves_of_every_latent(opposite):
    turning, phi = rope(K, theta=50.0), np.radians(20)
    factor = np.repeat(mixed_factor(K, 1, 4, phi, opposite=opposite)[None], H, axis=0)
    _, shared, latent = tensors(R=2)
    arguments = ("best_latent_map", shared, latent, factor, turning)
    got = coordinates(factored_logits, *arguments, STILL, np.zeros(K), KEYS)
    want = coordinates(rotated_logits, *arguments, np.zeros(K), KEYS)
    length = np.linalg.norm(latent, axis=-1)  # columns of the factor are orthonormal
    law = angle_law(turning, 1, 4, phi, KEYS, opposite=opposite)[None, :, None]
    np.testing.assert_allclose(
        np.linalg.norm(got - want, axis=-1) / length, np.broadcast_to(law, length.shape), atol=1e-10
    )


def test_over_a_whole_beat_of_the_two_planes_the_law_is_sin_2_phi_over_the_root_of_2():
    turning = rope(K, theta=50.0)
    beat = 2 * np.pi / abs(turning.frequency[2] - turning.frequency[5])
    positions = beat * np.arange(16) / 16  # the mean of sin^2 over equal steps of its period is 1/2
    for degrees in (1, 10, 45):
        phi = np.radians(degrees)
        rms = np.sqrt((escape(mixed_factor(K, 2, 5, phi), turning, positions) ** 2).mean())
        assert rms == pytest.approx(np.sin(2 * phi) / np.sqrt(2), abs=1e-10)


def test_a_single_real_column_obeys_neither_law():
    """It leaves even at 0 degrees, where both laws say 0: one column is no plane."""
    turning, positions = rope(K, theta=50.0), np.arange(1.0, 20.0)
    one = mixed_factor(K, 2, 5, 0.0)[:, :1]
    np.testing.assert_allclose(
        escape(one, turning, positions), np.abs(np.sin(turning.frequency[2] * positions)), rtol=0, atol=1e-10
    )
    for opposite in (False, True):
        law = angle_law(turning, 2, 5, 0.3, positions, opposite=opposite)
        assert np.abs(escape(mixed_factor(K, 2, 5, 0.3)[:, :1], turning, positions) - law).max() > 0.1


# -- spans, angles, planes --


@pytest.mark.parametrize("degrees", [0, 1e-7, 1, 44, 45, 46, 89, 90])
def test_principal_angles_are_those_the_planes_were_mixed_by(degrees):
    """The small ones too, whose cosines round to 1."""
    phi = np.radians(degrees)
    plane = rotary.aligned_factor(1, K, np.array([3]))[0]
    got = principal_angles(mixed_factor(K, 3, 6, phi), plane)
    np.testing.assert_allclose(got, [phi, phi], rtol=0, atol=1e-14)
    np.testing.assert_allclose(principal_angles(plane, 5 * mixed_factor(K, 3, 6, phi)), got, rtol=0, atol=1e-14)
    assert principal_angles(np.eye(K)[:, :5], np.eye(K)[:, 3:6]).tolist() == pytest.approx([0, 0, np.pi / 2])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_nearest_planes_are_those_a_factor_was_made_of(layout):
    planes = np.array([1, 4, 6])
    aligned = rotary.aligned_factor(1, K, planes, layout=layout)[0]
    assert rotary.nearest_planes(aligned + 0.05 * normal(0, 5, K, 6), 3, layout=layout).tolist() == planes.tolist()
    assert rotary.nearest_planes(mixed_factor(K, 5, 2, 0.2), 1).tolist() == [5]
    assert rotary.nearest_planes(mixed_factor(K, 5, 2, 1.4), 1).tolist() == [2]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tied_factors_use_every_coordinate_and_pass(layout):
    turning, latent = rotary.tied(K, R, layout=layout)
    factor = rotary.tied_factor(normal(0, 1, H, K // 2), normal(0, 2, H, K // 2), R, layout=layout)
    assert (np.abs(factor).max(axis=2) > 0).all()
    assert len(set(turning.frequency)) == R // 2
    for t in (1.0, 17.5):
        through = rotary.rotation(turning, K, t) @ factor - factor @ rotary.rotation(latent, R, t)
        assert np.abs(through).max() < EXACT


def test_equal_frequencies_are_what_ties_planes():
    """Complex-linear among planes of other frequencies leaves; a real column among those of one leaves too."""
    tied = rotary.tied_factor(normal(0, 1, 1, K // 2), normal(0, 2, 1, K // 2), R)[0]
    assert escape(tied, rope(K), np.arange(30.0)).max() > 0.1
    assert escape(tied[:, :1], rotary.tied(K, R)[0], np.arange(30.0)).max() > 0.9


def test_partial_factors_stay_out_of_what_turns():
    for layout in LAYOUTS:
        _, turning, latent, factor = in_layout("partial", layout)
        assert latent is STILL
        assert escape(factor[0], turning, np.arange(30.0)).max() < EXACT
        assert not factor[:, : 2 * len(turning.frequency)].any()
        assert factor[:, 2 * len(turning.frequency) :].all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"option": "naive"}, "option must be one of 'none', 'still', 'aligned', "),
        ({"rank": 3}, "rank must be even, for latents turn in planes, got 3"),
        ({"rank": 18}, "rank must lie in [0, 16], got 18"),
        ({"width": 15, "rank": 2}, "width must be even to form rotary planes, got 15"),
        ({"option": "tied", "rank": 6}, "rank must be even and divide width = 16 for frequencies to be shared, got 6"),
        ({"theta": 0.0}, "theta must lie in [1e-06, 1e+30], got 0"),
    ],
)
def test_a_case_that_cannot_be_is_refused_by_name(change, words):
    given = {"option": "aligned", "heads": H, "width": K, "rank": R} | change
    with pytest.raises(ValueError, match="must") as caught:
        case(given.pop("option"), **given)
    assert words in str(caught.value)


@pytest.mark.parametrize("planes", [[0, 8], [-1], [1, 1], [0.0, 1.0], [[0, 1]], 3])
def test_planes_that_a_head_does_not_have_are_refused(planes):
    with pytest.raises(ValueError, match=r"planes must be different whole numbers in \[0, 8\), got "):
        rotary.aligned_factor(2, 16, planes)
    assert rotary.aligned_factor(2, 16, []).shape == (2, 16, 0)
