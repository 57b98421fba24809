"""A panel out of the notebook: as one HTML file that computes live, and as a still picture with a table.

The file holds the panel's module, the state and what the state needs of a real head; it opens from a disk and from any
static host and asks nothing of a network. panels/sharing.js writes the same file from inside a panel.
"""

import base64
import html
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnlab import panels
from attnlab.panels import link
from attnlab.panels import still as stills
from attnlab.panels.bundle import PACKAGE
from attnlab.panels.state import checked, defaults

__all__ = ["contents", "page", "setting", "still", "write"]

MARK = '<meta name="generator" content="attnlab">'


def page(mechanism: str, state: dict[str, Any] | None = None) -> str:
    """The panel as the text of an HTML file, in this state or as it opens. Raises ValueError for a damaged state.

    The state stands there as its link: of all spellings this is the one that Python and a browser write alike.
    """
    spec = panels.spec(mechanism)
    state = defaults(spec) if state is None else state
    given = {"link": link.fragment(state, spec), "data": _data(mechanism, state)}
    parts = {
        "language": state["language"],
        "title": html.escape(spec["title"], quote=False),
        "given": json.dumps(given, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"),
        "module": panels.source(mechanism).rstrip(),
    }
    template = (PACKAGE / "panels" / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def write(path: str | Path, mechanism: str, state: dict[str, Any] | None = None, *, force: bool = False) -> Path:
    """Write the page and return its path.

    An earlier export is replaced. Raises FileExistsError where another file stands there, unless `force`; OSError where
    none can be written.
    """
    path, text = Path(os.path.expanduser(path)), page(mechanism, state)
    if path.is_file() and not force and not _ours(path):
        raise FileExistsError(f"{path} is a file that attnlab did not write; choose another name, or force=True")
    path.write_text(text, encoding="utf-8", newline="\n")  # a page that the browser saves has these line ends too
    return path


def _ours(path: Path) -> bool:
    with path.open("rb") as file:
        return MARK.encode() in file.read(1000)


def still(mechanism: str, state: dict[str, Any], *, id: str) -> str:
    """A static picture and table of a state, as HTML that needs neither script nor style sheet."""
    return stills.html(id=id, call=link.call(state, panels.spec(mechanism)), **contents(mechanism, state))


def contents(mechanism: str, state: dict[str, Any]) -> dict[str, Any]:
    """What a still of this state holds: title, source, pictures, and as numbers the dials and what came of them."""
    spec, view = panels.spec(mechanism), panels.view(mechanism)
    dials = checked(state, spec)["dials"]
    shown = view.still(view.PARAMS(**dials))
    named = [(f"{dial['label']} {dial['paper']}".strip(), str(dials[dial["name"]])) for dial in spec["dials"]]
    return shown | {"numbers": [*named, *shown["numbers"]]}


def setting(mechanism: str, assignments: Sequence[str] = (), address: str | None = None) -> dict[str, Any]:
    """A state from words such as planes=3, features=queries, causal=true or pin=query.3,key.5; the rest is as in the
    link `address`, or as a panel opens.

    Raises ValueError for a damaged link, a word that is no assignment, an unknown name, one set twice, or a value out
    of range.
    """
    spec = panels.spec(mechanism)
    state = defaults(spec) if address is None else link.from_fragment(address, spec)
    return link.changed(state, spec, assignments)


def _data(mechanism: str, state: dict[str, Any]) -> dict[str, Any] | None:
    view = panels.view(mechanism)
    data = view.data(view.PARAMS(**state["dials"]))
    if data is None:
        return None
    return {name: {"base64": base64.b64encode(x).decode()} if isinstance(x, bytes) else x for name, x in data.items()}
