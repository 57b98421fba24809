"""Files that the kit writes: a template filled, and a file replaced only where attnlab wrote the one before."""

import base64
import hashlib
import os
import re
from collections.abc import Mapping
from functools import cache
from html import escape
from pathlib import Path

from attnlab.panels.export import MARK
from attnlab.teach import text

__all__ = ["MARKS", "check", "document", "ending", "fill", "ours", "write"]

FOLDER = Path(__file__).parent
MARKS = {".html": MARK, ".pdf": "attnlab: "}  # what a file of ours has near its beginning; Markdown has a stamp
STAMP = "<!-- written by attnlab, sha256:{} -->"  # of what follows, for a sheet is there to be edited


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

    Markdown begins with a line that says so, as long as nobody changes what follows. Raises as `check`, unless `force`.
    """
    path = Path(os.path.expanduser(path))
    kind = ending(path, (*MARKS, ".md"))
    if not force:
        check(path)
    if isinstance(content, str):
        content = (f"{_stamp(content)}\n\n{content}" if kind == ".md" else content).encode()
    path.write_bytes(content)
    return path


def check(path: Path) -> None:
    """Raise FileExistsError where a file stands there that attnlab did not write, or that was changed since."""
    if path.is_file() and not ours(path):
        raise FileExistsError(
            f"{path} is a file that attnlab did not write, or that was changed; choose another name, or force=True"
        )


def ours(path: Path) -> bool:
    """Whether attnlab wrote this file; of Markdown, whether it is as it was written."""
    if path.suffix.lower() == ".md":
        first, _, rest = path.read_text(encoding="utf-8", errors="replace").partition("\n\n")
        return first == _stamp(rest)
    with path.open("rb") as file:
        return MARKS[path.suffix.lower()].encode() in file.read(1000)


def _stamp(markdown: str) -> str:
    return STAMP.format(hashlib.sha256(markdown.encode()).hexdigest())


def ending(path: str | Path, endings: tuple[str, ...]) -> str:
    """How the file's name ends, in small letters. Raises ValueError where it is none of `endings`."""
    found = Path(path).suffix.lower()
    if found not in endings:
        raise ValueError(f"the file's name must end in {' or '.join(endings)}, got {str(path)!r}")
    return found
