"""The still: its text, its PNG files byte by byte, and what a browser makes of them with and without styles."""

import base64
import re
import struct
import zlib
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from attnlab.panels import still
from attnlab.panels.still import Curve, Picture, html, png

THEME = Path(still.__file__).with_name("theme.js").read_text(encoding="utf-8")
STOPS, SIGNED = (
    re.findall(r'"([0-9a-f]{6})"', re.search(rf"{name} = \[(.*?)\]", THEME)[1]) for name in ("CIVIDIS", "SIGNED")
)
HALF_A_LEVEL = 4  # of a channel's 255, between the live panel's 256 colours and the still's 64


def a_still(*pictures, **words) -> str:
    said = {
        "id": "race-1",
        "title": "RACE",
        "source": "Some paper",
        "call": "RacePanel()",
        "numbers": [("planes", "3")],
    }
    return html(**said | words, pictures=pictures)


def attention(size: int, seed: int) -> np.ndarray:
    """Softmax weights of random queries and keys: every cell another number."""
    q, k = np.random.default_rng(seed).normal(size=(2, size, 32))
    scores = np.exp(q @ k.T / np.sqrt(32))
    return scores / scores.sum(1, keepdims=True)


def files(text: str) -> list[bytes]:
    return [base64.b64decode(data) for data in re.findall(r'src="data:image/png;base64,([^"]*)"', text)]


def decoded(file: bytes) -> np.ndarray:
    """Red, green, blue and opacity of each pixel, read by the letter of the PNG specification."""
    assert file[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(file):
        size, kind = struct.unpack(">I4s", file[at : at + 8])
        data = file[at + 8 : at + 8 + size]
        assert struct.unpack(">I", file[at + 8 + size : at + 12 + size]) == (zlib.crc32(kind + data),)
        chunks[kind] = data
        at += 12 + size
    assert [*chunks][:2] == [b"IHDR", b"PLTE"]
    assert [*chunks][-2:] == [b"IDAT", b"IEND"]
    columns, rows, *rest = struct.unpack(">2I5B", chunks[b"IHDR"])
    assert rest == [8, 3, 0, 0, 0]
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(rows, columns + 1)
    index = lines[:, 1:].copy()
    for row, kind in enumerate(lines[:, 0]):
        assert kind in (0, 2)
        if kind == 2:
            index[row] += index[row - 1]
    palette = np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)
    alpha = np.frombuffer(chunks.get(b"tRNS", b"\xff" * len(palette)), np.uint8)
    return np.concatenate([palette, alpha[:, None]], axis=1)[index]


def colour(part: np.ndarray, stops=STOPS) -> np.ndarray:
    """The colour at part in [0, 1], as the live panel interpolates it, before rounding."""
    stops = np.array([list(bytes.fromhex(stop)) for stop in stops])
    return np.stack([np.interp(part, np.linspace(0, 1, len(stops)), channel) for channel in stops.T], -1)


# -- text -------------------------------------------------------------------------------------------------------------


class Outline(HTMLParser):
    """Tags with their attributes in order; text under the innermost tag; every tag closed in turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.open, self.text = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        assert self.open, "text outside the one <div>"
        self.text.append((self.open[-1], data))

    def of(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


def test_a_still_is_one_div_with_its_id_and_says_all_it_was_given():
    outline = Outline(a_still(Picture("weights", np.eye(3), 1.0, alt="a diagonal"), Picture("mass", np.eye(2), 1.0)))
    assert outline.tags[0] == ("div", {"class": "attnlab-still attnlab-still-race-1"})
    assert len(outline.of("div")) == 1
    for said in [
        ("b", "RACE"),
        ("p", " \xa0Some paper"),
        ("b", "weights"),
        ("th", "planes"),
        ("td", "3"),
        ("code", "RacePanel()"),
    ]:
        assert said in outline.text
    assert "run this cell again" in "".join(text for _, text in outline.text)
    assert [image["alt"] for image in outline.of("img")] == ["a diagonal", "mass"]
    assert [head["scope"] for head in outline.of("th")] == ["row"]


def test_only_tags_that_every_sanitizer_keeps_are_used_beside_the_style():
    curve = Curve("error", np.arange(3.0), {"one": np.arange(3.0)})
    tags = {tag for tag, _ in Outline(a_still(Picture("weights", np.eye(3), 1.0), curve)).tags}
    assert tags - {"style"} <= {"div", "p", "b", "br", "small", "code", "table", "tr", "th", "td", "img"}


def test_every_word_is_escaped():
    nasty = "<script>\"'&"
    curve = Curve(nasty, np.arange(3.0), {nasty: np.arange(3.0)}, x_name=nasty, y_name=nasty)
    words = dict.fromkeys(("id", "title", "source", "call"), nasty) | {"numbers": [(nasty, nasty)]}
    outline = Outline(a_still(Picture(nasty, np.eye(3), 1.0), Picture("x", np.eye(3), 1.0, alt=nasty), curve, **words))
    assert outline.of("script") == []
    assert outline.of("div")[0]["class"] == f"attnlab-still attnlab-still-{nasty}"
    assert [image["alt"] for image in outline.of("img")] == [nasty] * 3
    assert sum(text.count(nasty) for _, text in outline.text) == 10


def test_the_caption_says_the_size_the_scale_and_how_colour_follows_it():
    def caption(*picture):
        return re.search("<small>(.*)</small>", a_still(Picture("weights", *picture)))[1]

    assert caption(np.eye(3), 0.51234) == "3 × 3<br>dark 0, bright 0.512 and more"
    assert caption(np.eye(3)[:2], 1.0, True) == "2 × 3<br>dark 0, bright 1, by square root"
    assert caption(np.zeros((2, 2)), 0.0) == "2 × 2<br>0 throughout"
    assert caption(np.ones((256, 5)), 1.0).startswith("256 × 5, averaged to 128 × 5<br>")


@pytest.mark.parametrize(("size", "most"), [(32, 20_000), (64, 45_000)])
def test_seven_pictures_and_twelve_numbers_stay_small(size, most):
    pictures = [Picture(f"picture {i}", weights := attention(size, i), weights.max()) for i in range(7)]
    text = a_still(*pictures, numbers=[(f"number {i}", f"{i / 7:.4f}") for i in range(12)])
    assert len(text.encode()) < most


@pytest.mark.parametrize(
    ("array", "top", "why"),
    [
        (np.array([[1.0, np.inf]]), 1.0, r"picture 'weights' must be finite, got inf at \[0, 1\]"),
        (np.array([[1.0, -0.5]]), 1.0, "picture 'weights' must hold nothing below 0 where its low is 0, got -0.5"),
        (np.ones(4), 1.0, r"picture 'weights' must be \[rows, columns\], got 1 axes"),
        (np.ones((0, 4)), 1.0, r"picture 'weights' must have a cell, got sizes \(0, 4\)"),
        (np.ones((2, 2)), 0.0, "top of the picture 'weights' must be a positive number, or 0 .* got 0"),
        (np.zeros((2, 2)), -1.0, "top of the picture 'weights' .* got -1"),
        (np.ones((2, 2)), np.nan, "top of the picture 'weights' .* got nan"),
        (np.ones((2, 2)), np.inf, "top of the picture 'weights' .* got inf"),
    ],
)
def test_a_picture_that_cannot_be_drawn_is_refused_by_name(array, top, why):
    with pytest.raises(ValueError, match=why):
        a_still(Picture("fine", np.eye(2), 1.0), Picture("weights", array, top))


@pytest.mark.parametrize("low", [0.5, np.nan, -np.inf])
def test_a_low_that_is_no_low_is_refused(low):
    with pytest.raises(ValueError, match=f"low of the picture 'weights' must be 0 or a negative number, got {low:g}"):
        a_still(Picture("weights", np.eye(2), 1.0, low=low))


# -- pixels -----------------------------------------------------------------------------------------------------------


def test_the_colours_are_those_of_the_live_panel():
    assert len(STOPS) == 10
    assert list(still.STOPS) == STOPS
    assert list(still.SIGNED) == SIGNED


def test_a_png_holds_the_pixels_it_was_given():
    pixels = np.random.default_rng(1).integers(0, 6, (7, 11, 3), np.uint8) * 50
    pixels[2] = pixels[3] = pixels[4]
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) < 77
    drawn = decoded(png(pixels, clear=pixels[0, 0].tobytes().hex()))
    assert np.array_equal(drawn[..., :3], pixels)
    assert np.array_equal(drawn[..., 3] == 0, (pixels == pixels[0, 0]).all(-1))
    assert set(decoded(png(pixels))[..., 3].ravel()) == {255}


@pytest.mark.parametrize(
    ("pixels", "why"),
    [
        (np.zeros((2, 2, 3)), "uint8 .* got float64"),
        (np.zeros((2, 2), np.uint8), r"uint8 .* got uint8 \[2, 2\]"),
        (np.zeros((2, 0, 3), np.uint8), r"uint8 .* got uint8 \[2, 0, 3\]"),
        (np.array([[[i // 2, i % 2, 0] for i in range(257)]], np.uint8), "at most 256 colours, got 257"),
    ],
)
def test_pixels_that_make_no_png_are_refused(pixels, why):
    with pytest.raises(ValueError, match=why):
        png(pixels)


@pytest.mark.parametrize("root", [False, True])
def test_every_cell_has_the_colour_of_its_value(root):
    array = np.random.default_rng(2).random((5, 9)) * 0.3
    array[0, :2] = 0, 0.3
    (file,) = files(a_still(Picture("weights", array, 0.2, root)))
    pixels = decoded(file).astype(int)
    part = np.minimum(array / 0.2, 1)
    wanted = colour(np.sqrt(part) if root else part)
    cells = pixels.reshape(5, 38, 9, 21, 4)  # a cell is 38 x 21 pixels
    assert np.array_equal(cells.min((1, 3)), cells.max((1, 3)))
    assert np.abs(cells[:, 0, :, 0, :3] - wanted).max() <= HALF_A_LEVEL
    assert [bytes(pixels[0, at, :3].tolist()).hex() for at in (0, 21)] == [STOPS[0], STOPS[-1]]


@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize(("low", "top"), [(-0.2, 0.2), (-0.2, 0.05), (-0.05, 0.2)])
def test_numbers_of_both_signs_have_zero_in_the_middle_and_one_scale_for_both(root, low, top):
    array = np.random.default_rng(5).uniform(-0.3, 0.3, (5, 9))
    array[0, :3] = 0, -0.3, 0.3
    text = a_still(Picture("state", array, top, root, low=low))
    part = np.clip(array / 0.2, -1, 1)
    wanted = colour((1 + (np.sign(part) * np.sqrt(np.abs(part)) if root else part)) / 2, SIGNED)
    cells = decoded(files(text)[0]).astype(int).reshape(5, 38, 9, 21, 4)
    assert np.array_equal(cells.min((1, 3)), cells.max((1, 3)))
    assert np.abs(cells[:, 0, :, 0, :3] - wanted).max() <= HALF_A_LEVEL
    found = [bytes(cells[0, 0, at, 0, :3].tolist()).hex() for at in range(3)]
    assert found == [SIGNED[4], SIGNED[0], SIGNED[-1]]
    bent = ", by square root" * root
    assert f"5 × 9<br>blue {low:g} and less, pale 0, orange {top:g} and more{bent}</small>" in text


def test_what_is_not_a_number_is_blank_with_stripes_and_said():
    array = np.ones((257, 3))  # groups of three rows, and one of two
    array[:3, 0] = np.nan, 0.25, 0.75
    array[3:6, 1] = np.nan
    text = a_still(Picture("weights", array, 1.0))
    pixels = decoded(files(text)[0])
    assert np.abs(pixels[0, 0, :3] - colour(np.array(0.5))).max() <= HALF_A_LEVEL  # the mean of what is there
    blank = pixels[2:4, 64:128]
    assert set(blank[..., 3].ravel()) == {0, 255}
    assert 0.1 < (blank[..., 3] == 255).mean() < 0.25
    assert set(blank[blank[..., 3] == 255][:, :3].ravel()) == {0x80}
    assert (np.delete(pixels.reshape(86, 2, 3, 64, 4), 1, 2)[..., 3] == 255).all()
    assert "bright 1, hatched: not a number</small>" in text
    alone = a_still(Picture("weights", np.full((2, 2), np.nan), 0.0))
    assert "0 throughout, hatched: not a number" in alone
    assert (decoded(files(alone)[0])[..., 3] == 0).mean() > 0.75
    assert "not a number" not in a_still(Picture("weights", np.eye(2), 1.0))


def test_a_picture_of_zeros_is_dark():
    (file,) = files(a_still(Picture("weights", np.zeros((2, 2)), 0.0)))
    assert np.array_equal(np.unique(decoded(file).reshape(-1, 4), axis=0), [[*bytes.fromhex(STOPS[0]), 255]])


def test_many_rows_are_averaged_and_the_last_ones_count_in_full():
    array = np.zeros((257, 3))  # groups of three rows, and one of two
    array[:3, 0] = 1, 0, 0.5
    array[255:, 2] = 1, 0.5
    (file,) = files(a_still(Picture("weights", array, 1.0)))
    pixels = decoded(file).astype(int)
    assert pixels.shape[:2] == (172, 192)  # 86 rows of 2, 3 columns of 64
    for row, column, part in [(0, 0, 0.5), (2, 0, 0.0), (171, 191, 0.75), (169, 191, 0.0)]:
        assert np.abs(pixels[row, column, :3] - colour(np.array(part))).max() <= HALF_A_LEVEL
    assert "257 × 3, averaged to 86 × 3" in a_still(Picture("weights", array, 1.0))
    assert "averaged" not in a_still(Picture("weights", np.ones((128, 128)), 1.0))


# -- curves -----------------------------------------------------------------------------------------------------------


def columns_of(pixels: np.ndarray, line: int) -> np.ndarray:
    """In which columns the line has pixels."""
    drawn = (pixels[..., :3] == list(bytes.fromhex(still.LINES[line][1]))).all(-1)
    return np.flatnonzero(drawn.any(0))


def test_a_curve_goes_through_its_points_on_a_page_that_shows_through():
    x = np.array([1.0, 10.0, 100.0])
    (file,) = files(a_still(Curve("error", x, np.array([100.0, 1.0, 10.0]), log_x=True, log_y=True)))
    pixels = decoded(file)
    assert pixels.shape[:2] == (384, 384)
    line = (pixels[..., :3] == list(bytes.fromhex(still.LINES[0][1]))).all(-1)
    for row, column in [(0, 4), (372, 4 + 186), (186, 4 + 372)]:
        assert line[row + 1 : row + 3, column + 1 : column + 3].all()
    assert not line[:180, 200:].any()
    assert (pixels[..., 3] == 0).mean() > 0.9
    assert (pixels[line][:, 3] == 255).all()


def test_series_differ_without_colour_and_are_named_in_their_order():
    x = np.arange(4.0)
    text = a_still(Curve("error", x, {"mean": x, "bound": x + 1, "rate": x + 2}, x_name="tables", y_name="error"))
    pixels = decoded(files(text)[0])
    solid, dashed, dotted = ((np.diff(columns_of(pixels, line)) > 1).sum() for line in range(3))
    assert solid == 0 < dashed < dotted
    assert re.findall(r"</b> (\w+)", re.search("<small>(.*)</small>", text)[1]) == ["mean", "bound", "rate"]
    assert "across: tables, 0 to 3<br>up: error, 0 to 5<br>" in text


def test_the_first_series_lies_on_top():
    (file,) = files(a_still(Curve("error", np.arange(4.0), dict.fromkeys(("mean", "bound"), np.arange(4.0)))))
    assert len(columns_of(decoded(file), 0)) == 376
    assert len(columns_of(decoded(file), 1)) == 0


def test_one_point_and_a_flat_line_can_be_drawn():
    for size in (1, 3):
        (file,) = files(a_still(Curve("error", np.full(size, 2.0), np.full(size, 2.0), log_x=True, log_y=True)))
        assert len(columns_of(decoded(file), 0)) == 4


@pytest.mark.parametrize(
    ("curve", "why"),
    [
        (Curve("error", np.arange(3.0), np.arange(4.0)), "y of the curve 'error' must be"),
        (Curve("error", np.array([0, np.inf]), np.arange(2.0)), "x of the curve 'error' must be finite"),
        (Curve("error", np.arange(3.0), np.ones(3), log_x=True), "x of the curve 'error' must be positive"),
        (Curve("error", np.ones(3), -np.ones(3), log_y=True), "y of the curve 'error' must be positive"),
        (Curve("error", np.ones(0), np.ones(0)), "curve 'error' must have a point"),
        (Curve("error", np.ones(3), {}), "curve 'error' must have 1 to 3 series, got 0"),
        (Curve("error", np.ones(3), dict.fromkeys("abcd", np.ones(3))), "curve 'error' must have 1 to 3 series, got 4"),
    ],
)
def test_a_curve_that_cannot_be_drawn_is_refused_by_name(curve, why):
    with pytest.raises(ValueError, match=why):
        a_still(curve)


# -- in a browser -----------------------------------------------------------------------------------------------------


@pytest.fixture
def page(browser):
    context = browser.new_context(viewport={"width": 900, "height": 300})
    yield context.new_page()
    context.close()


def test_the_still_takes_no_room_while_it_waits_for_the_panel_and_then_appears(page):
    page.set_content("<body></body>")
    waiting = page.evaluate(
        """(text) => {
            document.body.innerHTML = text;
            const [still] = document.body.children, [animation] = still.getAnimations();
            animation.pause();
            animation.currentTime = 0;
            const { delay } = animation.effect.getComputedTiming();
            const { height } = still.getBoundingClientRect();
            const scrolls = document.documentElement.scrollHeight > innerHeight;
            const seen = still.querySelector("img").checkVisibility({ visibilityProperty: true });
            animation.play();
            return { delay, height, scrolls, seen };
        }""",
        a_still(*[Picture("weights", np.eye(3), 1.0)] * 9),
    )
    assert waiting == {"delay": 2500, "height": 0, "scrolls": False, "seen": False}
    page.locator("img").first.wait_for(state="visible")
    assert page.locator(".attnlab-still").bounding_box()["height"] > 500


def test_where_the_style_is_dropped_or_the_page_is_printed_nothing_waits(page):
    text = a_still(Picture("weights", np.eye(3), 1.0))
    animations = "() => document.getAnimations().length"
    page.set_content(re.sub("<style>.*</style>", "", text))
    assert page.evaluate(animations) == 0
    assert page.locator("img").is_visible()
    page.emulate_media(media="print")
    page.set_content(text)
    assert page.evaluate(animations) == 0
    assert page.locator("img").is_visible()


def test_a_browser_decodes_the_pictures_to_their_size_and_colours(page):
    array = np.random.default_rng(3).random((7, 16))
    page.set_content(a_still(Picture("weights", array, 1.0), Curve("error", np.arange(3.0), np.arange(3.0))))
    sizes, pixels = page.evaluate(
        """async () => {
            const images = [...document.images];
            await Promise.all(images.map((image) => image.decode()));
            const sizes = images.map((image) => [image.naturalWidth, image.naturalHeight, image.width, image.height]);
            const [image] = images, canvas = document.createElement("canvas");
            [canvas.width, canvas.height] = sizes[0];
            const pen = canvas.getContext("2d");
            pen.drawImage(image, 0, 0);
            return [sizes, [...pen.getImageData(0, 0, canvas.width, canvas.height).data]];
        }"""
    )
    assert sizes == [[192, 189, 192, 189], [384, 384, 192, 192]]
    middles = np.array(pixels).reshape(7, 27, 16, 12, 4)[:, 13, :, 6]
    assert np.abs(middles[..., :3] - colour(array)).max() <= HALF_A_LEVEL
    assert (middles[..., 3] == 255).all()


def test_pictures_stand_side_by_side_as_far_as_the_page_is_wide(page):
    tall = Curve("error", np.arange(3.0), dict.fromkeys(("mean", "bound", "rate"), np.arange(3.0)))
    text = re.sub("<style>.*</style>", "", a_still(tall, *[Picture("weights", np.eye(3), 1.0)] * 5))
    in_the_first_row = "() => [...document.images].filter((image) => image.y === document.images[0].y).length"
    for width, abreast in ((900, 4), (1300, 6), (420, 1)):
        page.set_viewport_size({"width": width, "height": 600})
        page.set_content(text)
        assert page.evaluate(in_the_first_row) == abreast
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    page.set_viewport_size({"width": 1300, "height": 600})
    page.set_content(re.sub(' style="[^"]*"', "", text))
    assert page.evaluate(in_the_first_row) == 4


def test_the_words_take_the_colour_of_the_page(page):
    text = re.sub("<style>.*</style>", "", a_still(Picture("weights", np.eye(3), 1.0)))
    page.set_content(f'<body style="background: black; color: rgb(1, 2, 3)">{text}</body>')
    styles = page.evaluate(
        """() => [...document.querySelectorAll(".attnlab-still, .attnlab-still *")].map((node) => {
            const { color, backgroundColor, backgroundImage } = getComputedStyle(node);
            return [color, backgroundColor, backgroundImage].join();
        })"""
    )
    assert set(styles) == {"rgb(1, 2, 3),rgba(0, 0, 0, 0),none"}
