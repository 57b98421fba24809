"""What a learner has tried and solved, in one small file of their own.

It lies in ~/.attnlab/exercises.json, or where the variable ATTNLAB_EXERCISES points. A file that cannot be written or
read costs a sentence, never an answer or what stood in the file.
"""

import datetime
import json
import os
from pathlib import Path
from typing import Any

__all__ = ["UNTOUCHED", "hinted", "path", "read", "tried"]

UNTOUCHED: dict[str, Any] = {"tries": 0, "hints": 0, "solved": None}
Record = dict[str, dict[str, Any]]  # id -> {"tries", "hints", "solved": a date or None}


def path() -> Path:
    """Where the file lies, or will."""
    return Path(os.environ.get("ATTNLAB_EXERCISES") or Path.home() / ".attnlab" / "exercises.json")


def read() -> Record:
    """What is kept: for each exercise that was touched {"tries", "hints", "solved"}; {} where there is no file.

    Raises ValueError where the file holds something else, and OSError where it cannot be read.
    """
    try:
        record = json.loads(path().read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:  # not JSON, or not text
        raise ValueError(f"{path()} must hold JSON, got {error}; move it away to begin anew") from None
    rows = record.values() if isinstance(record, dict) else [None]
    if not all(isinstance(row, dict) and row.keys() == {"tries", "hints", "solved"} for row in rows):
        raise ValueError(f"{path()} must hold tries, hints and solved for each exercise; move it away to begin anew")
    return record


def tried(exercise: str, *, solved: bool) -> str:
    """Count a try; returns a sentence where it could not be kept, else ""."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat() if solved else None
    return _change(exercise, lambda row: {"tries": row["tries"] + 1, "solved": row["solved"] or today})


def hinted(exercise: str, hints: int, number: int | None = None) -> int:
    """Count a hint; returns which to show: `number`, or the one after the last shown."""
    try:
        shown = read().get(exercise, UNTOUCHED)["hints"]
    except (OSError, ValueError):
        shown = 0
    number = min(shown + 1, hints) if number is None else number
    _change(exercise, lambda row: {"hints": max(row["hints"], number)})
    return number


def _change(exercise: str, change: Any) -> str:
    try:
        record, file = read(), path()
        row = record.get(exercise, UNTOUCHED)
        record[exercise] = row | change(row)
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_name(f"{file.name}.{os.getpid()}.new")
        fresh.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        fresh.replace(file)  # whole or not at all
    except (OSError, ValueError) as error:
        return f"(This was not kept: {error})"
    return ""
