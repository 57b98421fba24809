"""A state as the fragment of a link, and as the Python call that rebuilds it; panels/link.js writes the same texts.

    #race&version=1&planes=3&...&causal=false&input=toy&features=keys&view=band&pin=query.3,key.5&language=en

First the mechanism, then every part of the state under its name; values are percent-encoded, `pin=` is no pin. A number
is written in the fewest digits that read back to the same double, a curve as its numbers with commas between. Reading
is strict, and evaluates nothing.
"""

import json
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn
from urllib.parse import quote, unquote_to_bytes

from attnlab.panels.state import LARGEST, checked

__all__ = ["LIMIT", "call", "changed", "fragment", "from_fragment"]

LIMIT = 4096  # characters after the #
SHOWN = 80  # characters of what came, in a refusal
WHOLE = re.compile(r"0|-?[1-9][0-9]{0,15}")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:e-?[0-9]+)?")


def fragment(state: dict[str, Any], spec: dict[str, Any]) -> str:
    """The state in one line that begins with #. Raises ValueError for a state that is not whole or not in range."""
    values = _values(state, spec)
    pairs = [f"{part['name']}={_in_a_link(part, values[part['name']])}" for part in _parts(spec)]
    return "#" + "&".join([spec["mechanism"], *pairs])


def from_fragment(text: str, spec: dict[str, Any]) -> dict[str, Any]:
    """The state that a fragment, or a URL that ends with one, stands for.

    Raises ValueError naming the part, what was wanted and what came, also for a part missing, unknown or given twice.
    """
    mechanism, *pairs = _what_follows(text).split("&")
    if mechanism != spec["mechanism"]:
        _refuse("the mechanism of a link", f"be {spec['mechanism']}", mechanism)
    parts = {part["name"]: part for part in _parts(spec)}
    values = _given(pairs, parts, "each part of a link", "the names in a link", encoded=True)
    for name in parts:
        if name not in values:
            raise ValueError(f"{name} must be given once, and is missing in the link")
    dials = {entry["name"]: values[entry["name"]] for entry in spec["dials"]}
    selection = {name: values[name] for name in (*spec["options"], "view", "pin")}
    state = {"version": values["version"], "dials": dials, "selection": selection, "language": values["language"]}
    return checked(state, spec)


def changed(state: dict[str, Any], spec: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """The state with some parts set, in the words of a link but not encoded: planes=3, input=layer 9, head 1, pin=.

    Raises ValueError naming the part, what was wanted and what came, also for a part unknown or set twice.
    """
    parts = {part["name"]: part for part in _parts(spec) if part["name"] != "version"}
    values = _given(settings, parts, "each setting", "the names in settings", encoded=False)
    held = _values(state, spec) | values
    dials, selection = ({name: held[name] for name in state[part]} for part in ("dials", "selection"))
    return checked({**state, "dials": dials, "selection": selection, "language": held["language"]}, spec)


def call(state: dict[str, Any], spec: dict[str, Any]) -> str:
    """Python that rebuilds the panel: an import, and a call with every dial, every option and the view.

    A pin is named where there is one, the language where it is not the first. Raises ValueError for a state that is not
    whole or not in range.
    """
    values = _values(state, spec)
    unsaid = {"version": spec["version"], "pin": None, "language": spec["languages"][0]}
    said = [part for part in _parts(spec) if (name := part["name"]) not in unsaid or values[name] != unsaid[name]]
    arguments = ", ".join(f"{part['name']}={_in_python(part, values[part['name']])}" for part in said)
    return f"from attnlab.{spec['mechanism']}.widget import {spec['widget']}\n\n{spec['widget']}({arguments})"


def _parts(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """What a link holds after the mechanism, in order."""
    choices = {**spec["options"], "view": spec["views"]}
    return [
        {"name": "version", "kind": "whole"},
        *spec["dials"],
        *({"name": name, "kind": "choice", "choices": choices[name]} for name in choices),
        {"name": "pin", "kind": "pin", "axes": spec["axes"]},
        {"name": "language", "kind": "choice", "choices": spec["languages"]},
    ]


def _values(state: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    checked(state, spec)
    return {"version": state["version"], "language": state["language"], **state["dials"], **state["selection"]}


# -- writing ----------------------------------------------------------------------------------------------------------


def _in_a_link(part: dict[str, Any], value: Any) -> str:
    match part["kind"]:
        case "switch":
            return "true" if value else "false"
        case "choice":
            return quote(value, safe="")
        case "pin":
            return ",".join(f"{quote(axis, safe='')}.{index}" for axis, index in (value or {}).items())
        case "whole":
            return str(int(value))
        case "curve":
            return ",".join(map(_digits, value))
    return _digits(value)


def _in_python(part: dict[str, Any], value: Any) -> str:
    match part["kind"]:
        case "switch":
            return "True" if value else "False"
        case "choice":
            return _quoted(value)
        case "pin":
            return "{" + ", ".join(f"{_quoted(axis)}: {index}" for axis, index in (value or {}).items()) + "}"
        case "whole":
            return str(int(value))
        case "curve":
            return f"[{', '.join(map(_digits, value))}]"
    return _digits(value)


def _digits(value: Any) -> str:
    """The fewest digits that read back to the same double, as link.js writes them: 4, 0.1, 1e-7, 1.5e300."""
    if value == 0 and math.copysign(1, value) < 0:
        return "-0.0"  # to Python -0 would be a whole number, and lose its sign
    return repr(float(value)).removesuffix(".0").replace("e-0", "e-").replace("e+", "e")


# -- reading ----------------------------------------------------------------------------------------------------------


def _what_follows(text: str) -> str:
    """The characters after the first #. Raises ValueError for no #, for too many characters, for one not in ASCII."""
    if not isinstance(text, str):
        raise ValueError(f"a link must be text, got {type(text).__name__}")
    _, mark, raw = text.partition("#")
    if not mark:
        _refuse("a link", "have a # in it", text)
    if len(raw) > LIMIT:
        raise ValueError(f"a link must have at most {LIMIT} characters after its #, got {len(raw)}")
    if strange := re.search(r"[^!-~]", raw):
        raise ValueError(f"a link must be ASCII without spaces, got U+{ord(strange[0]):04X} in it")
    return raw


def _given(
    pairs: Sequence[str], parts: dict[str, dict[str, Any]], each: str, names: str, *, encoded: bool
) -> dict[str, Any]:
    """The values of `parts` that pairs of name=value give; `each` and `names` are what a refusal calls them."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, raw = pair.partition("=")
        if not equals:
            _refuse(each, "be name=value", pair)
        if name not in parts:
            _refuse(names, f"be {', '.join(parts)}", name)
        if name in values:
            _refuse(name, "be given once, and was before", raw)
        values[name] = _read(parts[name], _decoded(name, raw) if encoded else raw, raw)
    return values


def _read(part: dict[str, Any], text: str, raw: str) -> Any:
    """The value that `text` stands for; a refusal shows `raw`, what came."""
    name = part["name"]
    match part["kind"]:
        case "switch":
            return _one_of(name, text, ["true", "false"], raw) == "true"
        case "choice":
            return _one_of(name, text, part["choices"], raw)
        case "pin":
            return _pin(text, part["axes"], raw)
        case "whole":
            return _whole(name, text, raw, part.get("low", 0), part.get("high", LARGEST))
        case "curve":
            return [_number(name, height, raw) for height in text.split(",")]
    return _number(name, text, raw)


def _number(name: str, text: str, raw: str) -> float:
    if not NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        _refuse(name, "be a finite number in decimal digits", raw)
    return float(text)


def _decoded(name: str, raw: str) -> str:
    with suppress(UnicodeDecodeError):
        if not re.search(r"%(?![0-9A-Fa-f]{2})", raw):
            return unquote_to_bytes(raw).decode("utf-8")
    _refuse(name, "be percent-encoded UTF-8", raw)


def _one_of(name: str, text: str, choices: list[str], raw: str) -> str:
    if text not in choices:
        _refuse(name, f"be one of {', '.join(map(_quoted, choices))}", raw)
    return text


def _whole(name: str, text: str, raw: str, low: int = 0, high: int = LARGEST) -> int:
    if not WHOLE.fullmatch(text) or abs(int(text)) > LARGEST:  # the range is checked with the state
        _refuse(name, f"be a whole number in [{low}, {high}]", raw)
    return int(text)


def _pin(text: str, axes: list[str], raw: str) -> dict[str, int] | None:
    if text == "":
        return None
    pin: dict[str, int] = {}
    for entry in text.split(","):
        axis, _, index = entry.partition(".")
        _one_of("each axis of pin", axis, axes, raw)
        if axis in pin:
            _refuse("pin", f"name {axis} once", raw)
        pin[axis] = _whole(f"pin.{axis}", index, raw)
    return pin


def _refuse(name: str, wanted: str, came: str) -> NoReturn:
    shown = came if len(came) <= SHOWN else f"{came[:SHOWN]}…"
    raise ValueError(f"{name} must {wanted}, got {_quoted(shown)}")


def _quoted(text: str) -> str:
    """The text as a string of JSON, which is one of Python too."""
    return json.dumps(text, ensure_ascii=False)
