"""Files that the kit writes: a template filled, and a file replaced only where attnlab wrote the one before."""

import base64
import os
import re
from collections.abc import Mapping
from functools import cache
from html import escape
from pathlib import Path

from attnlab.panels.export import MARK
from attnlab.teach import text

__all__ = ["MARKS", "document", "ending", "fill", "write"]

FOLDER = Path(__file__).parent
MARKS = {".html": MARK, ".md": "<!-- written by attnlab -->", ".pdf": "attnlab: "}  # what a file of ours begins with


def fill(template: str, parts: Mapping[str, str]) -> str:
    """A template of this folder with each {{name}} replaced, and the font of formulas where there are any."""
    source = (FOLDER / template).read_text(encoding="utf-8")
    parts = {**parts, "font": _font() if any("<math" in part for part in parts.values()) else ""}
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], source)


@cache
def _font() -> str:
    """STIX Two Math as a rule of a style sheet: radicals and brackets stretch only in a font with a MATH table."""
    font = base64.b64encode((FOLDER / "font" / "STIXTwoMath.woff2").read_bytes()).decode()
    return f'@font-face {{ font-family: "STIX Two Math"; src: url("data:font/woff2;base64,{font}") format("woff2"); }}'


def document(title: str, markdown: str) -> str:
    """A sheet, Markdown, as an HTML page to read and to print."""
    return fill("page.html", {"title": escape(title, quote=False), "body": text.block(markdown)})


def write(path: str | Path, content: str | bytes, *, force: bool = False) -> Path:
    """Write a file whose ending says what it is, and return its path; what attnlab wrote there before is replaced.

    Raises FileExistsError where another file stands there, unless `force`; ValueError for another ending.
    """
    path = Path(os.path.expanduser(path))
    mark = MARKS[ending(path, tuple(MARKS))]
    if path.is_file() and not force and not _ours(path, mark):
        raise FileExistsError(f"{path} is a file that attnlab did not write; choose another name, or force=True")
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def ending(path: str | Path, endings: tuple[str, ...]) -> str:
    """How the file's name ends, in small letters. Raises ValueError where it is none of `endings`."""
    found = Path(path).suffix.lower()
    if found not in endings:
        raise ValueError(f"the file's name must end in {' or '.join(endings)}, got {str(path)!r}")
    return found


def _ours(path: Path, mark: str) -> bool:
    with path.open("rb") as file:
        return mark.encode() in file.read(1000)
