"""Linked highlighting: what one picture is pointed at, by mouse or by keyboard, every other picture shows too.

Pixels tell: which canvases change, where, and, beside the matrices, how dark each token's mark is for its share in the
bucket in focus.
"""

import numpy as np
import pytest

from attnlab import panels
from attnlab.panels.state import defaults
from attnlab.race import view
from attnlab.race.params import RaceParams
from tests.browser.panel_on_page import canvas, cell, mount, pixels, settle

DIALS = {"tables": 2, "tokens": 12, "planes": 2}
TOKENS, BUCKETS = 12, 4
VIEWS = view.compute(RaceParams(**DIALS))
MATRICES = {"softmax", "angular", "race"}
QUERY, KEY, TABLE, BUCKET = 7, 4, 1, 2


@pytest.fixture
def panel(same_page):
    """The panel of DIALS, nothing in focus; `features` says whose shares the buckets show."""

    def show(features="keys"):
        state = defaults(panels.spec("race"))
        state["dials"] |= DIALS
        state["selection"] |= {"features": features}
        mount(same_page, state=state)
        settle(same_page)
        return same_page

    return show


def tile(page, table: int) -> dict[str, float]:
    """Where the cells of a table lie in the canvas of the buckets, two side by side, and the width of its bars."""
    box = canvas(page, "buckets").bounding_box()
    wide = (box["width"] - 20 - 12) / 2
    bar = min(34, wide / 4)
    return {"x": 20 + table * (wide + 12), "y": 15, "width": wide - bar, "height": box["height"] - 37, "bar": bar}


def place(page, table: int, bucket: int, key: int | None) -> tuple[float, float]:
    """A cell of the buckets in the window, or the bar of a bucket."""
    canvas(page, "buckets").scroll_into_view_if_needed()
    box, frame = canvas(page, "buckets").bounding_box(), tile(page, table)
    across = frame["width"] + frame["bar"] / 2 if key is None else frame["width"] * (key + 0.5) / TOKENS
    down = frame["y"] + frame["height"] * (bucket + 0.5) / BUCKETS
    return box["x"] + frame["x"] + across, box["y"] + down


def walk(page, name: str, *keys: str) -> None:
    """Keys pressed on a picture, the first of which only brings its first number into focus."""
    for key in ("ArrowRight", *keys):
        canvas(page, name).press(key)


def changed(page, act) -> set[str]:
    """The figures whose pixels `act` changes."""
    before = pixels(page)
    act()
    settle(page)
    after = pixels(page)
    return {name for name in before if before[name] != after[name]}


def keep(page) -> None:
    """Remember the pictures for `difference`."""
    page.evaluate(
        """() => {
            const all = [...document.querySelectorAll("[data-figure]")];
            window.kept = Object.fromEntries(all.map((figure) => {
                const { width, height } = figure.querySelector("canvas");
                const pen = figure.querySelector("canvas").getContext("2d");
                return [figure.dataset.figure, pen.getImageData(0, 0, width, height)];
            }));
        }"""
    )


def difference(page, name: str, left: float, top: float, right: float, bottom: float) -> list[float]:
    """The smallest box around what has changed in a part of a picture since `keep`: left, top, right, bottom."""
    return page.evaluate(
        """([name, left, top, right, bottom]) => {
            const canvas = document.querySelector(`[data-figure=${name}] canvas`), { width, height } = canvas;
            const [old, now] = [window.kept[name], canvas.getContext("2d").getImageData(0, 0, width, height)]
                .map(({ data }) => new Uint32Array(data.buffer));
            const box = [Infinity, Infinity, -Infinity, -Infinity];
            for (let y = Math.ceil(top); y < Math.min(bottom, height); y++) {
                for (let x = Math.ceil(left); x < Math.min(right, width); x++) {
                    if (old[y * width + x] === now[y * width + x]) continue;
                    box[0] = Math.min(box[0], x);
                    box[1] = Math.min(box[1], y);
                    box[2] = Math.max(box[2], x + 1);
                    box[3] = Math.max(box[3], y + 1);
                }
            }
            return box;
        }""",
        [name, left, top, right, bottom],
    )


def marks(page, name: str) -> dict[str, np.ndarray]:
    """How opaque the mark beside each query and below each key of a matrix is, from 0 to 1."""
    found = canvas(page, name).evaluate(
        """(canvas, tokens) => {
            const side = Math.min(canvas.width - 22, canvas.height - 21) / tokens;
            const pen = canvas.getContext("2d");
            const alpha = (x, y) => pen.getImageData(Math.floor(x), Math.floor(y), 1, 1).data[3] / 255;
            const all = Array.from({ length: tokens }, (_, t) => side * (t + 0.5));
            const [query, key] = [(y) => alpha(17.5, 2 + y), (x) => alpha(20 + x, 2 + side * tokens + 3.2)];
            return { query: all.map(query), key: all.map(key) };
        }""",
        TOKENS,
    )
    return {side: np.array(values) for side, values in found.items()}


def side_of(page, name: str) -> float:
    box = canvas(page, name).bounding_box()
    return min(box["width"] - 22, box["height"] - 21)


def in_band(page, angle, score) -> np.ndarray:
    """Where numbers lie in the canvas of the estimate by angle, as [..., 2]."""
    box = canvas(page, "band").bounding_box()
    x = 34 + (box["width"] - 46) * np.asarray(angle) / np.pi
    return np.stack([x, 16 + (box["height"] - 48) * (1 - np.asarray(score))], axis=-1)


SHARE = (TABLE, BUCKET, KEY)
RIGHT, DOWN = "ArrowRight", "ArrowDown"
HANDS = {  # by mouse and by keys to the same place, and the figures that show it
    "a share": (
        lambda page: page.mouse.move(*place(page, *SHARE)),
        lambda page: walk(page, "buckets", "PageDown", *[DOWN] * BUCKET, *[RIGHT] * KEY),
        {"buckets", *MATRICES, "band"},
    ),
    "a bucket's bar": (
        lambda page: page.mouse.move(*place(page, TABLE, BUCKET, None)),
        lambda page: walk(page, "buckets", "PageDown", *[DOWN] * BUCKET, *[RIGHT] * TOKENS),
        {"buckets", *MATRICES},
    ),
    "a pair": (
        lambda page: page.mouse.move(*cell(page, "race", QUERY, KEY, TOKENS)),
        lambda page: walk(page, "race", *[DOWN] * QUERY, *[RIGHT] * KEY),
        {"buckets", *MATRICES, "band"},
    ),
}


@pytest.mark.parametrize("what", HANDS)
def test_what_is_in_focus_is_shown_by_every_picture_that_knows_it_by_mouse_as_by_keys(panel, what):
    by_mouse, by_keys, figures = HANDS[what]
    page = panel()
    assert changed(page, lambda: by_mouse(page)) == figures
    pointed = pixels(page)
    assert changed(page, lambda: page.mouse.move(0, 0)) == figures  # and lets go of it
    by_keys(page)
    settle(page)
    assert pixels(page) == pointed


@pytest.mark.parametrize("features", ["keys", "queries"])
def test_a_token_on_the_words_along_an_axis_lights_up_wherever_it_stands(panel, features):
    page = panel(features)
    for query, key, side in ((QUERY, -1, "queries"), (-1, KEY, "keys")):
        figures = changed(
            page, lambda query=query, key=key: page.mouse.move(*cell(page, "angular", query, key, TOKENS))
        )
        assert figures == {*MATRICES, "band", *(["buckets"] if side == features else [])}
        assert changed(page, lambda: page.mouse.move(0, 0)) == figures


@pytest.mark.parametrize("key", [KEY, None], ids=["a share", "a bar"])
def test_marks_beside_the_matrices_are_as_dark_as_the_shares_in_the_bucket_in_focus(panel, key):
    page = panel()
    for name in MATRICES:
        assert max(np.concatenate(list(marks(page, name).values()))) == 0
    page.mouse.move(*place(page, TABLE, BUCKET, key))
    settle(page)
    for name in MATRICES:
        found = marks(page, name)
        for side, array in (("query", VIEWS["phi_q"]), ("key", VIEWS["phi_k"])):
            np.testing.assert_allclose(found[side], array[TABLE, :, BUCKET], atol=1 / 250, err_msg=f"{name} {side}")
            assert np.ptp(found[side]) > 0.2  # or any numbers would do


def test_a_pinned_bucket_keeps_its_marks_until_it_is_released(panel):
    page = panel()
    walk(page, "buckets", "PageDown", *[DOWN] * BUCKET, "Enter")
    page.mouse.move(*cell(page, "race", QUERY, KEY, TOKENS))
    settle(page)
    share = VIEWS["phi_q"][TABLE, :, BUCKET]
    np.testing.assert_allclose(marks(page, "softmax")["query"], share, atol=1 / 250)
    page.keyboard.press("Escape")
    settle(page)
    assert max(marks(page, "softmax")["query"]) == 0


@pytest.mark.parametrize(("query", "key"), [(QUERY, KEY), (QUERY, -1), (-1, KEY)], ids=["a pair", "a query", "a key"])
def test_the_outline_in_each_matrix_is_around_its_cell_its_row_or_its_column(panel, query, key):
    page = panel()
    keep(page)
    page.mouse.move(*cell(page, "softmax", query, key, TOKENS))
    settle(page)
    for name in MATRICES:
        side = side_of(page, name)
        size = side / TOKENS
        left, right = (0, TOKENS) if key < 0 else (key, key + 1)
        top, bottom = (0, TOKENS) if query < 0 else (query, query + 1)
        want = [20 + left * size, 2 + top * size, 20 + right * size, 2 + bottom * size]
        got = difference(page, name, 20, 2, 20 + side, 2 + side)  # without the words along the axes
        np.testing.assert_allclose(got, want, atol=3, err_msg=name)


def test_rings_in_the_estimate_by_angle_are_around_the_pairs_of_the_pair_or_the_token_in_focus(panel):
    page = panel()
    canvas(page, "band").scroll_into_view_if_needed()
    for query, key in ((QUERY, KEY), (QUERY, -1), (-1, KEY)):
        page.mouse.move(0, 0)
        settle(page)
        keep(page)
        page.mouse.move(*cell(page, "race", query, key, TOKENS))
        settle(page)
        pairs = np.s_[query if query >= 0 else slice(None), key if key >= 0 else slice(None)]
        points = in_band(page, VIEWS["pair_angle"][pairs], VIEWS["pair_score"][pairs]).reshape(-1, 2)
        reach = (6 if len(points) == 1 else 2.5) + 0.75  # radius, and half of the line
        want = [*(points.min(axis=0) - reach), *(points.max(axis=0) + reach)]
        np.testing.assert_allclose(difference(page, "band", 0, 0, 9999, 9999), want, atol=1.5)


def test_a_point_of_the_estimate_by_angle_outlines_its_pair_in_the_matrices(panel):
    page = panel()
    canvas(page, "band").scroll_into_view_if_needed()
    box = canvas(page, "band").bounding_box()
    places = in_band(page, VIEWS["pair_angle"], VIEWS["pair_score"])
    means = in_band(page, VIEWS["band_angle"], VIEWS["band_mean"])
    others = np.concatenate([places.reshape(-1, 2), means])
    apart = np.sort(np.linalg.norm(places[:, :, None] - others, axis=-1), axis=-1)[..., 1]  # the first is itself
    query, key = np.unravel_index(np.argmax(apart), apart.shape)
    keep(page)
    x, y = places[query, key]
    assert changed(page, lambda: page.mouse.move(box["x"] + x, box["y"] + y)) == {"buckets", *MATRICES, "band"}
    size = side_of(page, "race") / TOKENS
    got = difference(page, "race", 20, 2, 20 + TOKENS * size, 2 + TOKENS * size)
    want = [20 + key * size, 2 + query * size, 20 + (key + 1) * size, 2 + (query + 1) * size]
    np.testing.assert_allclose(got, want, atol=3)


def test_what_only_one_picture_knows_is_shown_by_that_one(panel):
    page = panel()
    for name in ("band", "error", "lemma"):
        assert changed(page, lambda name=name: walk(page, name, RIGHT)) == {name}
        canvas(page, name).evaluate("(canvas) => canvas.blur()")
        settle(page)
