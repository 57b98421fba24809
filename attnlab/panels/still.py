"""The still beside a live panel: a small picture as plain HTML, for where nothing runs.

A widget leaves nothing to read in a notebook that is opened without a kernel, on GitHub or as nbconvert's page. The
still is built in Python from the float64 views and stands in the same output. It has to survive sanitizers: JupyterLab
drops <style> and data-* attributes from an untrusted output but keeps data: images and plain inline styles; GitHub
drops every style. So what is said is said by tables, images and words alone. Where <style> survives, so may the panel:
there the still waits for it for WAIT seconds, unless the page is printed.
"""

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from attnlab.arrays import Array, Float, as_float, check

__all__ = ["Curve", "Picture", "html", "png"]

# cividis as in theme.js, and its colours for numbers of both signs
STOPS = ("00224e", "123570", "3b496c", "575d6d", "707173", "8a8678", "a59c74", "c3b369", "e1cc55", "fee838")
SIGNED = ("004e81", "0376be", "649dde", "b0c6e8", "f1f1f1", "e4bca7", "cf8a62", "b3581e", "803501")
LEVELS = 64  # colours of a picture: with 256, a notebook has to store up to half as much again
SIDE = 192  # pixels of a picture's side at most, where a cell has several
MOST = 128  # rows or columns of a picture
ABREAST = 4  # pictures side by side where no style lets them wrap
WAIT = 2.5  # seconds

# Mark in the legend, colour, pixels drawn and left out: each is told apart without its colour, on white and on black.
LINES = (("━━", "2b87c4", 1, 0), ("╍╍", "d9661f", 14, 8), ("┅┅", "0a9a72", 5, 7))
AXES = "808080"
CLEAR = "000000"  # drawn nowhere, shown as the page behind
HATCH = 6  # pixels from one stripe to the next where there is no number

STYLE = (
    "<style>@media screen{@keyframes attnlab-still-wait{from{max-height:0;overflow:hidden;visibility:hidden}}"
    f".attnlab-still{{animation:attnlab-still-wait 0s {WAIT}s backwards}}}}</style>"
)
LEFT = "text-align:left"  # notebooks set tables to the right
ROW = "display:inline;padding:0;background:transparent"  # its cells flow on into the next row's; no stripe


class Picture(NamedTuple):
    """A heatmap: 0 takes the first colour of cividis, `top` and what lies above it the last.

    With `low` below 0, zero is pale and equal distances from it are equally dark: blue below, orange above.
    """

    title: str
    array: Float[Array, "rows columns"]  # none below 0 unless `low` is; NaN is left blank, hatched
    top: float  # 0 only where all the array is
    root: bool = False  # colour follows the square root
    alt: str = ""  # what a screen reader hears instead; the title where there is none
    low: float = 0.0


class Curve(NamedTuple):
    """A chart of at most three lines over one x: solid, dashed, dotted. `y` is one series, or several by name."""

    title: str
    x: Float[Array, " points"]
    y: Float[Array, " points"] | Mapping[str, Float[Array, " points"]]
    log_x: bool = False
    log_y: bool = False
    x_name: str = "x"
    y_name: str = "y"
    alt: str = ""


def html(
    *,
    id: str,
    title: str,
    source: str,
    call: str,
    pictures: Sequence[Picture | Curve],
    numbers: Sequence[tuple[str, str]],
) -> str:
    """The still of the panel `id` as one <div>: title and paper, the pictures, a table of `numbers`, the Python call.

    Raises ValueError naming the picture and what is wrong with it.
    """
    cells = [_curve(picture) if isinstance(picture, Curve) else _heatmap(picture) for picture in pictures]
    rows = [
        f'<tr valign="top" style="{ROW}">{"".join(cells[at : at + ABREAST])}</tr>'
        for at in range(0, len(cells), ABREAST)
    ]
    table = [
        f'<tr><th scope="row" align="left" style="{LEFT}">{escape(name)}</th>'
        f'<td style="{LEFT}">{escape(number)}</td></tr>'
        for name, number in numbers
    ]
    inner = [
        STYLE,
        f'<p style="margin:4px 0"><b>{escape(title)}</b> &nbsp;{escape(source)}</p>',
        '<p style="margin:4px 0 10px">A still picture. For the live panel, run this cell again or the call below.</p>',
        f'<table style="margin:0">{"".join(rows)}</table>',
        f'<table style="margin:8px 0">{"".join(table)}</table>',
        f'<p style="margin:4px 0"><code style="white-space:pre-wrap">{escape(call)}</code></p>',
    ]
    return f'<div class="attnlab-still attnlab-still-{escape(id)}">' + "\n".join(inner) + "</div>"


def png(pixels: Float[Array, "rows columns 3"], clear: str | None = None) -> bytes:
    """The pixels, uint8, as a PNG file with a palette; those of the colour `clear` ("rrggbb") are transparent.

    Raises ValueError for another shape or dtype, no pixels, or more than 256 colours.
    """
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
        raise ValueError(f"pixels must be uint8 [rows, columns, 3], got {pixels.dtype} {list(pixels.shape)}")
    rows, columns, _ = pixels.shape
    palette, index = np.unique(pixels.reshape(-1, 3) @ (1 << np.array([16, 8, 0])), return_inverse=True)
    if len(palette) > 256:
        raise ValueError(f"pixels must have at most 256 colours, got {len(palette)}")
    index = index.reshape(rows, columns).astype(np.uint8)
    lines = np.concatenate([np.zeros((rows, 1), np.uint8), index], axis=1)
    again = 1 + np.flatnonzero((index[1:] == index[:-1]).all(axis=1))
    lines[again] = 0
    lines[again, 0] = 2  # filter "up": the line above, unchanged
    chunks = [
        (b"IHDR", struct.pack(">2I5B", columns, rows, 8, 3, 0, 0, 0)),
        (b"PLTE", b"".join(int(colour).to_bytes(3, "big") for colour in palette)),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    ]
    if clear is not None:
        chunks.insert(2, (b"tRNS", bytes(np.where(palette == int(clear, 16), 0, 255).astype(np.uint8))))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def _heatmap(picture: Picture) -> str:
    name = f"the picture {picture.title!r}"
    given = as_float(picture.array)
    blank = np.isnan(given)
    array = check(name, np.where(blank, 0.0, given), "rows columns", {})
    if not array.size:
        raise ValueError(f"{name} must have a cell, got sizes {array.shape}")
    lowest, highest, low, top = array.min(), array.max(), picture.low, picture.top
    if not -np.inf < low <= 0:
        raise ValueError(f"low of {name} must be 0 or a negative number, got {low:g}")
    if lowest < low == 0:
        raise ValueError(f"{name} must hold nothing below 0 where its low is 0, got {lowest:g}")
    if not (0 < top < np.inf or (top == 0 and (low < 0 or highest == 0))):
        raise ValueError(f"top of {name} must be a positive number, or 0 where all cells are, got {top:g}")
    shown, seen = (_at_most(_at_most(numbers, 0), 1) for numbers in (array, 1.0 - blank))
    part = np.clip(shown / np.where(seen > 0, seen, 1) / (max(top, -low) or 1.0), -1, 1)  # the mean of what is there
    bent = np.sign(part) * np.sqrt(np.abs(part)) if picture.root else part
    levels = _enlarged(np.floor((LEVELS - 1) * bent + 0.5).astype(int) + (LEVELS - 1) * (low < 0))
    pixels = _ramp(SIGNED, 2 * LEVELS - 1)[levels] if low < 0 else _ramp(STOPS, LEVELS)[levels]
    if blank.any():
        stripes = np.add.outer(*map(np.arange, levels.shape)) % HATCH == 0
        pixels = np.where(_enlarged(seen > 0)[..., None], pixels, _rgb(CLEAR, AXES)[stripes.astype(int)])
    averaged = f", averaged to {_size(shown)}" if shown.shape != array.shape else ""
    more, less = " and more" * bool(highest > top), " and less" * bool(lowest < low)
    root, none = ", by square root" * picture.root, ", hatched: not a number" * bool(blank.any())
    colours = f"dark 0, bright {top:.3g}{more}{root}" if top else "0 throughout"
    if low < 0:
        colours = f"blue {low:.3g}{less}, pale 0, orange {top:.3g}{more}{root}"
    image = png(pixels, CLEAR if blank.any() else None)
    return _cell(picture, image, levels.shape, [_size(array) + averaged, colours + none])


def _enlarged(cells: Array) -> Array:
    """Each cell as several pixels, as far as SIDE allows."""
    for axis in (0, 1):
        cells = np.repeat(cells, max(SIDE // cells.shape[axis], 1), axis)
    return cells


def _at_most(array: Array, axis: int) -> Array:
    """The array with at most MOST rows (or columns), each the mean of neighbours."""
    size = array.shape[axis]
    starts = np.arange(0, size, -(-size // MOST))
    counts = np.diff(starts, append=size)
    return np.add.reduceat(array, starts, axis) / (counts[:, None] if axis == 0 else counts)


def _size(array: Array) -> str:
    return " × ".join(map(str, array.shape))


def _ramp(stops: Sequence[str], levels: int) -> Float[Array, "levels 3"]:
    places = np.linspace(0, len(stops) - 1, levels)
    channels = _rgb(*stops).T
    return np.stack([np.floor(np.interp(places, range(len(stops)), c) + 0.5) for c in channels], 1).astype(np.uint8)


def _rgb(*colours: str) -> Float[Array, "n 3"]:
    return np.array([list(bytes.fromhex(colour)) for colour in colours], np.uint8)


def _cell(picture: Picture | Curve, image: bytes, size: tuple[int, ...], caption: list[str]) -> str:
    """One cell of the table of pictures; `size` is (height, width) on the page, `caption` lines of HTML."""
    crisp = ";image-rendering:pixelated" * isinstance(picture, Picture)
    source = f"data:image/png;base64,{base64.b64encode(image).decode()}"
    return (
        f'<td style="display:inline-block;vertical-align:top;width:{SIDE}px;margin:0 16px 8px 0;padding:0;{LEFT}">'
        f"<b>{escape(picture.title)}</b><br>"
        f'<img width="{size[1]}" height="{size[0]}" alt="{escape(picture.alt or picture.title)}" '
        f'style="margin:3px 0{crisp}" src="{source}"><br>'
        f"<small>{'<br>'.join(caption)}</small></td>"
    )


def _curve(curve: Curve) -> str:
    name = f"the curve {curve.title!r}"
    series = curve.y if isinstance(curve.y, Mapping) else {curve.y_name: curve.y}
    if not 1 <= len(series) <= len(LINES):
        raise ValueError(f"{name} must have 1 to {len(LINES)} series, got {len(series)}")
    sizes: dict[str, tuple[int, str]] = {}
    x = check(f"x of {name}", as_float(curve.x), "n", sizes)
    y = np.stack([check(f"{label} of {name}", as_float(values), "n", sizes) for label, values in series.items()])
    if not x.size:
        raise ValueError(f"{name} must have a point, got none")
    columns, across = _axis(f"x of {name}", curve.x_name, x, curve.log_x, x.min())
    rows, up = _axis(f"y of {name}", curve.y_name, y, curve.log_y, y.min() if curve.log_y else min(y.min(), 0.0))
    size = 2 * SIDE  # twice as many pixels as on the page
    canvas = np.zeros((size, size), int)
    canvas[:, :2] = canvas[-2:] = 1
    for line in reversed(range(len(y))):  # the first lies on top
        *_, drawn, left_out = LINES[line]
        path = (1 - rows[line]) * (size - 12), 4 + columns * (size - 12)
        length = np.concatenate([[0], np.cumsum(np.hypot(*np.diff(path)))])
        steps = np.linspace(0, length[-1], int(length[-1]) + 2)
        steps = steps[steps % (drawn + left_out) < drawn]
        at = [np.rint(np.interp(steps, length, places)).astype(int) for places in path]
        for down, aside in np.ndindex(4, 4):  # the pen's tip
            canvas[at[0] + down, at[1] + aside] = line + 2
    pixels = _rgb(CLEAR, AXES, *(colour for _, colour, *_ in LINES))[canvas]
    caption = [escape(f"across: {across}"), escape(f"up: {up}")]
    if isinstance(curve.y, Mapping):
        marks = zip(LINES, series, strict=False)
        caption += [f'<b style="color:#{colour}">{mark}</b> {escape(label)}' for (mark, colour, *_), label in marks]
    return _cell(curve, png(pixels, CLEAR), (SIDE, SIDE), caption)


def _axis(name: str, title: str, values: Array, log: bool, low: float) -> tuple[Array, str]:
    """Where the values lie between 0 and 1 of their axis, and what the axis is in words."""
    if log and low <= 0:
        raise ValueError(f"{name} must be positive on a logarithmic axis, got {low:g}")
    high, scale = values.max(), np.log if log else np.asarray
    start, end = scale(low), scale(high)
    words = f"{title}, {low:.3g} to {high:.3g}{', logarithmic' * log}"
    return (scale(values) - start) / ((end - start) or 1.0), words
