"""The figure of `attnlab bench race --plot OUT`, drawn from the rows alone: a recorded result draws the same one.

Left the time of a token and head, ours and peers'; right a call's time against its length. A PNG is the HTML page as
the installed Chromium shows it.
"""

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnlab.bench import _lab
from attnlab.bench._cost import fit

__all__ = ["check", "figure", "write"]

ENDINGS = (".html", ".png")
WIDTH, HEIGHT, SCALE = 1200, 460, 2  # pixels of the page, and of the PNG for each of them
INK, PEER, GRID = "#1a1a1a", "#8a8a8a", "#e6e6e6"
TITLES = ("Forward pass: ns a token and head", "Forward pass of one head: ms against tokens")
PEERS = {
    "ours": "RACE",
    "algorithm_1": "Algorithm 1 in plain torch",
    "numba_plain": "RACE in plain Numba",
    "linear": "linear attention, elu + 1",
    "performer": "Performer",
    "softmax": "softmax attention, torch",
}
CURVES = {"race.p4l4.cost.": ("RACE (4, 4)", INK), "race.softmax.cost.": ("softmax", PEER)}


def check(path: Path) -> None:
    """Raise what `write` would, as far as it can be known before: ValueError for another ending or a folder that is not
    there, backend.Unavailable for a PNG without Chromium.
    """
    if path.suffix.lower() not in ENDINGS:
        raise ValueError(f"--plot must be a file that ends in {' or '.join(ENDINGS)}, got {str(path)!r}")
    if not path.parent.is_dir():
        raise ValueError(f"--plot must lie in a folder that is there, got {str(path)!r}")
    if path.suffix.lower() == ".png":
        _lab.chromium_path()


def write(path: Path, result: dict[str, Any]) -> None:
    """Draw a result of `bench.run("race")` into a self-contained HTML page or a PNG. Raises as `check`."""
    check(path)
    drawn = figure(result)
    if path.suffix.lower() == ".html":
        drawn.write_html(path, include_plotlyjs=True, config={"displayModeBar": False})
        return
    with tempfile.TemporaryDirectory() as folder, _lab.chromium() as browser:
        page = Path(folder) / "figure.html"
        drawn.write_html(page, include_plotlyjs=True, config={"displayModeBar": False, "staticPlot": True})
        view = browser.new_page(viewport={"width": WIDTH + 100, "height": HEIGHT + 100}, device_scale_factor=SCALE)
        view.goto(page.as_uri())
        view.locator(".plotly .main-svg").first.wait_for()
        view.locator(".plotly").first.screenshot(path=path)


def figure(result: dict[str, Any]) -> Any:
    """The Plotly figure. Rows that were not measured are not drawn."""
    from plotly.subplots import make_subplots

    rows = [row for row in result["rows"] if row["value"] is not None]
    drawn = make_subplots(cols=2, horizontal_spacing=0.08, subplot_titles=TITLES)
    bars = sorted(_bars(rows), key=lambda bar: -bar[1])
    drawn.add_bar(
        y=[name for name, _, _ in bars],
        x=[value for _, value, _ in bars],
        text=[f"{value:,.0f}" for _, value, _ in bars],
        marker_color=[color for _, _, color in bars],
        orientation="h", textposition="outside", cliponaxis=False, hoverinfo="skip", row=1, col=1,
    )  # fmt: skip
    for prefix, (name, color) in CURVES.items():
        points = {int(row["id"].removeprefix(prefix)): row["value"] for row in rows if _is_length(row["id"], prefix)}
        if len(points) < 3:
            continue
        slope, error = fit([*points], [*points.values()])
        drawn.add_scatter(x=[*points], y=[*points.values()], mode="lines+markers", line_color=color, row=1, col=2)
        drawn.add_annotation(
            x=math.log10(max(points)), y=math.log10(points[max(points)]), xshift=-10, xanchor="right", yanchor="bottom",
            align="right",
            text=f"{name}<br>slope {slope:.2f} ± {error:.2f}", font_color=color, showarrow=False, row=1, col=2,
        )  # fmt: skip
    about = result["machine"]
    drawn.add_annotation(
        text=f"{about['cpu']}, one thread, float32, width 128; medians; {about['date']}",
        xref="paper", yref="paper", x=1, y=-0.17, showarrow=False, xanchor="right", font={"size": 11, "color": PEER},
    )  # fmt: skip
    drawn.update_xaxes(type="log", gridcolor=GRID, zeroline=False, dtick=1, tickformat=",d")
    drawn.update_yaxes(zeroline=False, automargin=True)
    least, most = (math.log10(pick(value for _, value, _ in bars)) for pick in (min, max))
    drawn.update_xaxes(range=[math.floor(least - 0.3), most + 0.35], row=1, col=1)  # a bar has a length, and room
    drawn.update_yaxes(ticksuffix="  ", row=1, col=1)
    drawn.update_yaxes(type="log", gridcolor=GRID, dtick=1, tickformat=",~g", row=1, col=2)
    drawn.update_layout(
        width=WIDTH,
        height=HEIGHT,
        margin={"l": 20, "r": 30, "t": 60, "b": 70},
        template="none",
        font={"family": "system-ui, sans-serif", "size": 13, "color": INK},
        showlegend=False,
        bargap=0.35,
    )
    return drawn


def _bars(rows: list[dict[str, Any]]) -> Iterator[tuple[str, float, str]]:
    """Label, ns and colour of every time among the peers."""
    for row in rows:
        kind, _, name = row["id"].partition(".peers.")
        if kind == "race" and row["unit"] == "ns/token-head":
            peer, mask, *budget = name.split(".")
            said = [
                PEERS[peer],
                *(f"({b[1:].replace('l', ', ')})" for b in budget),
                "causal" if mask == "causal" else "",
            ]
            tokens = f"at {row['note'].split(' ')[0]}" if peer == "softmax" else ""
            yield " ".join(filter(None, [*said, tokens])), row["value"], INK if peer == "ours" else PEER


def _is_length(id: str, prefix: str) -> bool:
    return id.startswith(prefix) and id.removeprefix(prefix).isdecimal()
