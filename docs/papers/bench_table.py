"""The recorded runs of benchmarks as tables for the pages of this folder:

attnlab bench race --long --json --plot docs/_static/race_bench.png > docs/papers/race_bench.json
attnlab bench race --stream 75_000_000 --json > docs/papers/race_stream.json
attnlab bench residual --json > docs/papers/residual_bench.json
attnlab bench hashattention --json > docs/papers/hashattention_bench.json

and for each of these files

python docs/papers/bench_table.py docs/papers/race_bench.json > docs/papers/race_bench.txt
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def target(row: dict[str, Any]) -> str:
    return "" if row["target"] is None else f"{'≥' if row['better'] == 'higher' else '≤'} {row['target']:g}"


def cells(row: dict[str, Any]) -> list[str]:
    note = "; ".join(filter(None, [f"CPU {number(row['cpu'])}" if "cpu" in row else "", row["note"]]))
    return [f"`{row['id']}`", f"{number(row['value'])} {row['unit']}".strip(), target(row), row["status"] or "", note]


def page(result: dict[str, Any]) -> str:
    """The machine, the verdict, and a table of the rows with a target before one of the others."""
    about = dict(result["machine"])
    told = f"{about.pop('date')}, {about.pop('cpu')}: " + ", ".join(f"{name} {value}" for name, value in about.items())
    parts = [f"{told}.", result["verdict"]]
    for judged in (True, False):
        rows = [row for row in result["rows"] if (row["target"] is not None) is judged]
        head = ["row", "value", "target", "status", "note"]
        parts.append("\n".join(line(row) for row in (head, ["---"] * len(head), *map(cells, rows))))
    return "\n\n".join(parts)


if __name__ == "__main__":
    print(page(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
