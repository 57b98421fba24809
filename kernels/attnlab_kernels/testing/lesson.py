"""What notebooks/07_read_the_kernel shows: the kernels of RACE beside their reference, traced, and three exercises.

Kernels are interpreted in a second process (`lesson_worker`), since Triton decides at its import whether it compiles or
interprets. It is started once and answers a request in a fraction of a second. Where torch or triton is missing, what
needs them shows one sentence instead, `why_not()`; the rest works with NumPy alone, and pictures are plain dictionaries
that `plotly.graph_objects.Figure` takes.
"""

import ast
import contextlib
import functools
import html
import importlib.util
import inspect
import json
import os
import secrets
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

__all__ = [
    "Html",
    "Record",
    "Verdict",
    "beside",
    "bytes_table",
    "check",
    "compiled",
    "compiled_table",
    "kernel_language",
    "predicted",
    "record",
    "traffic_picture",
    "who_touches_what",
    "why_not",
]

RACE = Path(__file__).parents[1] / "race.py"
BUDGET = Path(__file__).with_name("budget.json")
LIMIT_S = 60.0  # for one answer: a kernel of an exercise may run forever
MEMORY = ("q", "k", "v", "planes", "q W", "k W", "sums", "state before", "state after", "out", "other")
# Query, key, value and error as in every panel, for marks and for small text.
COLOUR = {"q": "#0072b2", "q W": "#0072b2", "k": "#c08400", "k W": "#c08400", "v": "#009e73"}
TEXT = {"q": "#0067a1", "q W": "#0067a1", "k": "#8f6100", "k W": "#8f6100", "v": "#00785a"}
INK, ERROR, GREY = "#333333", "#b84f00", "#8e8e98"


class Html(str):
    """Text that a notebook shows as HTML."""

    def _repr_html_(self) -> str:
        return str(self)


def why_not() -> str | None:
    """None if kernels can be interpreted here, else one sentence."""
    for package in ("torch", "triton"):
        try:
            missing = importlib.util.find_spec(package) is None
        except ValueError:  # a blocked module (sys.modules[name] is None) counts as absent
            missing = True
        if missing and package == "triton" and sys.platform != "linux":
            return "triton has packages for Linux alone, so no kernel runs here; everything else in this notebook does."
        if missing:
            return f"the package {package} is not installed; get it with: pip install {package}"
    return None


def kernel_language() -> tuple[Any, Any]:
    """(triton, triton.language), to write a kernel with; where triton is missing, just enough to define one."""
    if why_not():
        return SimpleNamespace(jit=lambda function: function), SimpleNamespace(constexpr=None)
    triton = importlib.import_module("triton")
    return triton, triton.language


# -- the reference and the kernel, side by side -----------------------------------------------------------------------


def beside(reference: ModuleType, theirs: Iterable[str], ours: Iterable[str]) -> Html:
    """Functions of the reference in the left column and of race.py in the right, as they stand in the files.

    "attention: if causal" takes one statement of a function, by its first words. Docstrings are left out, and of the
    arguments the types. Raises ValueError for what a file does not hold.
    """
    columns = {
        f"{reference.__name__.removeprefix('attnlab.').replace('.', '/')}.py": (inspect.getsource(reference), theirs),
        "attnlab_kernels/race.py": (RACE.read_text(encoding="utf-8"), ours),
    }
    left = "text-align:left;vertical-align:top;width:50%"
    wrapped = "white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere;font-size:85%;margin:0 0 1em"
    heads = "".join(f'<th scope="col" style="{left}">{html.escape(name)}</th>' for name in columns)
    cells = (
        "".join(
            f'<pre style="{wrapped}">{"".join(map(_hanging, excerpt.splitlines()))}</pre>'
            for excerpt in (_excerpt(source, name) for name in names)
        )
        for source, names in columns.values()
    )
    row = "".join(f'<td style="{left}">{cell}</td>' for cell in cells)
    table = '<table style="table-layout:fixed;width:100%">'
    return Html(f"{table}<thead><tr>{heads}</tr></thead><tbody><tr>{row}</tr></tbody></table>")


def _hanging(line: str) -> str:
    """A line of code; where it is wrapped, it goes on four columns further in than it began."""
    columns = len(line) - len(line.lstrip()) + 4
    style = f"display:block;padding-left:{columns}ch;text-indent:-{columns}ch"
    return f'<span style="{style}">{html.escape(line) or " "}</span>'


def _excerpt(source: str, name: str) -> str:
    name, _, statement = name.partition(": ")
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            lines = source.splitlines()
            if not statement:
                return "\n".join([_signature(node), *_lines(lines, body[0].lineno, body[-1], "    ")])
            for part in body:
                if ast.unparse(part).startswith(statement):
                    return "\n".join([f"# in {name}", *_lines(lines, part.lineno, part, "")])
            raise ValueError(f"{name} must hold a statement that begins with {statement!r}, and holds none")
    raise ValueError(f"a function {name} must stand in the file, and does not")


def _lines(lines: list[str], first: int, last: ast.stmt, indent: str) -> list[str]:
    assert last.end_lineno is not None
    block = textwrap.dedent("\n".join(lines[first - 1 : last.end_lineno]))
    return textwrap.indent(block, indent).splitlines()


def _signature(node: ast.FunctionDef) -> str:
    """The arguments without types; of a kernel, without the constants that its compiler is given."""
    arguments = [*node.args.args, *node.args.kwonlyargs]
    names = [it.arg for it in arguments if it.annotation is None or "constexpr" not in ast.unparse(it.annotation)]
    if len(names) < len(arguments):
        names.append("constants")
    return f"def {node.name}({', '.join(names)}):"


# -- the second process -----------------------------------------------------------------------------------------------


class _Worker:
    """The process that interprets, and what it writes beside its answers."""

    def __init__(self) -> None:
        self.log = tempfile.TemporaryFile()
        path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "attnlab_kernels.testing.lesson_worker"],
            env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(filter(None, path))},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, encoding="utf-8",
        )  # fmt: skip

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """The answer; raises RuntimeError with the end of the log if the process ends, TimeoutError after `limit_s`."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        late = threading.Timer(limit_s, self.process.kill)
        late.start()
        answer = ""
        with contextlib.suppress(BrokenPipeError):
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
            answer = stdout.readline()
        in_time = late.is_alive()
        late.cancel()
        if answer:
            return json.loads(answer)
        status = self.process.wait()
        self.log.seek(0)
        said = self.log.read().decode(errors="replace").strip()
        self.close()
        if not in_time:
            raise TimeoutError(f"no answer within {limit_s:g} s; does a loop never end?")
        raise RuntimeError(f"the interpreting process ended with status {status}: {said[-1000:]}")

    def close(self) -> None:
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout, self.log):
            with contextlib.suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()
        self.process.wait()


_workers: list[_Worker] = []


def _ask(request: dict[str, Any], limit_s: float = LIMIT_S) -> dict[str, Any]:
    if not _workers or _workers[-1].process.poll() is not None:
        _workers[:] = [_Worker()]  # it ends with this process, when its standard input does
    return _workers[-1].ask(request, limit_s)


# -- who touches what -------------------------------------------------------------------------------------------------


class Record(NamedTuple):
    """One forward pass of RACE as the tracer saw it, or the sentence why there is none."""

    tokens: int
    chunk: int  # tokens a program
    tile: int  # tokens a program takes at a time
    causal: bool
    launches: Sequence[dict[str, Any]] = ()
    requested: int = 0  # bytes, by all programs
    compulsory: int = 0  # bytes of inputs and outputs, each once
    why_not: str | None = None

    @property
    def programs(self) -> int:
        """Of the first launch."""
        return self.launches[0]["programs"] if self.launches else 0

    def memory(self) -> dict[str, dict[str, int]]:
        """Over all launches: memory -> {"requested", "least"} in bytes, in the order of MEMORY. What a launch asks for
        is at least every byte once for loads and once for stores.
        """
        requested: Counter[str] = Counter()
        least: Counter[str] = Counter()
        for launch in self.launches:
            requested.update({name: sums["requested"] for name, sums in launch["memory"].items()})
            least.update({name: sums["least"] for name, sums in launch["memory"].items()})
        return {name: {"requested": requested[name], "least": least[name]} for name in MEMORY if name in requested}


@functools.cache
def record(*, tokens: int = 96, chunk: int = 32, tile: int = 16, causal: bool = False) -> Record:
    """Interpret one forward pass of RACE attention under the tracer: one head of width 32, float32, P = 3, L = 2.

    The same call is answered from memory. Raises ValueError unless tile is 16 or 32, divides chunk, and chunk tokens.
    """
    if tile not in (16, 32) or chunk % tile or tokens % chunk:
        raise ValueError(f"tile 16 or 32 must divide chunk, and chunk tokens; got {tile}, {chunk} and {tokens}")
    settings: dict[str, Any] = {"tokens": tokens, "chunk": chunk, "tile": tile, "causal": causal}
    if reason := why_not():
        return Record(**settings, why_not=reason)
    return Record(**settings, **_ask({"what": "record", **settings}))


@functools.cache
def predicted(*, tokens: int, chunk: int, tile: int = 16, causal: bool = False) -> int | None:
    """Bytes that the same pass requests, by the formulas of `traffic`, from sizes alone; None where `why_not` has a
    sentence.
    """
    settings = {"tokens": tokens, "chunk": chunk, "tile": tile, "causal": causal}
    return None if why_not() else _ask({"what": "predict", **settings})["bytes"]


def who_touches_what(record: Record) -> dict[str, Any]:
    """A figure for Plotly: a row a program, a column a place in memory, bytes as colour, r for load and w for store."""
    if record.why_not:
        return _sentence(record.why_not)
    touched: dict[tuple[str, int], Counter[tuple[str, int]]] = {}
    kinds: dict[tuple[str, int, str, int], str] = {}
    for launch in record.launches:
        for where, place, kind, program, size in launch["touched"]:
            touched.setdefault((launch["kernel"], program), Counter())[where, place] += size
            before = kinds.get((launch["kernel"], program, where, place), "")
            kinds[launch["kernel"], program, where, place] = before.replace(kind[0], "") + kind[0]
    columns = _spaced(
        (name, place)
        for name in MEMORY[:-1]
        for place in sorted({place for row in touched.values() for where, place in row if where == name})
    )
    rows = _spaced(touched)
    sizes = [[(touched[row][column] or None) if row and column else None for column in columns] for row in rows]
    letters = [
        [_letters(kinds.get((*row, *column), "")) if row and column else "" for column in columns] for row in rows
    ]
    words = [[_words(record, row, column) if row and column else "" for column in columns] for row in rows]
    largest = max(touched[row][column] for row in touched for column in touched[row])
    starts = [i for i, column in enumerate(columns) if column and (i == 0 or columns[i - 1] is None)]
    return {
        "data": [
            {
                "type": "heatmap", "z": sizes, "text": letters, "customdata": words, "texttemplate": "%{text}",
                "hovertemplate": "%{customdata}: %{z:,} bytes, %{text}<extra></extra>", "hoverongaps": False,
                "colorscale": "Cividis", "zmin": 0, "zmax": largest, "colorbar": {"title": {"text": "bytes"}},
                "xgap": 1, "ygap": 1,
            }
        ],
        "layout": {
            "template": "simple_white", "width": 900, "height": 130 + 26 * len(rows),
            "margin": {"t": 110, "l": 140, "b": 20},
            "xaxis": {
                "side": "top", "showline": False, "tickmode": "array", "ticks": "", "tickvals": starts,
                "ticktext": [f'<b style="color:{TEXT.get(columns[i][0], INK)}">{columns[i][0]}</b>' for i in starts],
                "tickangle": -60, "range": [-1, len(columns)],
            },
            "yaxis": {
                "autorange": "reversed", "showline": False, "ticks": "", "tickmode": "array",
                "tickvals": [i for i, row in enumerate(rows) if row],
                "ticktext": [f"{row[0]}, program {row[1]}" for row in rows if row],
            },
        },
    }  # fmt: skip


def _spaced(keys: Iterable[tuple[str, int]]) -> list[Any]:
    """The keys with a None wherever the name changes."""
    spaced: list[Any] = []
    for key in keys:
        if spaced and spaced[-1][0] != key[0]:
            spaced.append(None)
        spaced.append(key)
    return spaced


def _letters(kinds: str) -> str:
    return "".join(letter for kind, letter in (("l", "r"), ("s", "w"), ("a", "a")) if kind in kinds)


def _words(record: Record, row: tuple[str, int], column: tuple[str, int]) -> str:
    (kernel, program), (name, place) = row, column
    where = ""
    if name in ("q", "k", "v", "q W", "k W", "out"):
        where = f", tokens {place * record.tile} to {(place + 1) * record.tile - 1}"
    elif name == "sums":
        where = f" of chunk {place}"
    return f"{kernel}, program {program}; {name}{where}"


def _sentence(text: str) -> dict[str, Any]:
    """A figure that says one sentence."""
    note = {"text": text, "showarrow": False, "x": 0, "y": 0.5, "xref": "paper", "yref": "paper", "xanchor": "left"}
    blank = {"visible": False}
    return {"data": [], "layout": {"annotations": [note], "xaxis": blank, "yaxis": blank, "width": 900, "height": 120}}


def bytes_table(record: Record) -> Html:
    """Bytes that the launches asked of each memory, beside the least they could, and beside what the whole pass could
    not do without: a table with bars.
    """
    if record.why_not:
        return Html(f"<p>{html.escape(record.why_not)}</p>")
    memory = record.memory()
    memory["all"] = {which: sum(row[which] for row in memory.values()) for which in ("requested", "least")}
    rows = []
    for name, row in memory.items():
        share = row["requested"] / memory["all"]["requested"]
        rows.append([name, f"{row['requested']:,}", f"{row['least']:,}", f"{row['requested'] / row['least']:.2f}"])
        rows[-1].append(_bar(share, COLOUR.get(name, GREY)))
    whole = f"{record.requested / record.compulsory:.2f}"
    rows[-1][0] = "all, launch by launch"
    rows.append(["all, as one pass", f"{record.requested:,}", f"{record.compulsory:,}", whole, ""])
    return _table(["memory", "bytes requested", "at least", "times", "share"], rows)


def _bar(share: float, colour: str) -> str:
    style = f"display:inline-block;width:{200 * share:.0f}px;height:.8em;background:{colour}"
    return f'<span style="{style}"></span> {100 * share:.0f} %'


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Html:
    """Cells hold HTML; the first of a row is its name."""
    left = 'style="text-align:left"'
    head = "".join(f'<th scope="col" {left}>{name}</th>' for name in heads)
    body = "".join(
        f'<tr><th scope="row" {left}>{name}</th>{"".join(f"<td {left}>{cell}</td>" for cell in cells)}</tr>'
        for name, *cells in rows
    )
    return Html(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")


# -- the slider -------------------------------------------------------------------------------------------------------


def traffic_picture(tokens: int, chunks: Sequence[int], chunk: int, *, causal: bool) -> dict[str, Any]:
    """A figure for Plotly: a line of predicted bytes for all `chunks`, and what the tracer counted for `chunk` and for
    those shown before.
    """
    now = record(tokens=tokens, chunk=chunk, causal=causal)
    if now.why_not:
        return _sentence(now.why_not)
    _seen.setdefault((tokens, causal), {})[chunk] = now
    seen = {it: found for it, found in sorted(_seen[tokens, causal].items()) if it in chunks}
    line = [predicted(tokens=tokens, chunk=it, causal=causal) for it in chunks]
    names = [str(it) for it in chunks]
    title = (
        f"{chunk} tokens a program: {now.programs} program{'s' * (now.programs > 1)}, {now.requested:,} bytes traced, "
        f"{predicted(tokens=tokens, chunk=chunk, causal=causal):,} predicted"
    )
    return {
        "data": [
            {"type": "scatter", "x": names, "y": line, "name": "predicted", "line": {"color": GREY}},
            {
                "type": "scatter", "x": [str(it) for it in seen], "y": [it.requested for it in seen.values()],
                "name": "traced", "line": {"color": INK, "dash": "dot"}, "mode": "lines+markers",
                "marker": {"color": INK, "symbol": "x", "size": [14 if it == chunk else 8 for it in seen]},
            },
            {
                "type": "scatter", "x": names, "y": [now.compulsory] * len(names), "mode": "lines",
                "name": "inputs and outputs once", "line": {"color": GREY, "dash": "dash"},
            },
        ],
        "layout": {
            "template": "simple_white", "width": 820, "height": 380, "title": {"text": title, "font": {"size": 14}},
            "xaxis": {"title": {"text": "tokens a program"}, "type": "category"},
            "yaxis": {"title": {"text": "bytes requested"}, "rangemode": "tozero"},
        },
    }  # fmt: skip


_seen: dict[tuple[int, bool], dict[int, Record]] = {}


# -- the exercises ----------------------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """What a check says: `passed` is None where nothing could be run."""

    passed: bool | None
    says: tuple[str, ...]
    printed: str = ""  # by the kernel

    def __repr__(self) -> str:
        head = {True: "Right.", False: "Not yet.", None: "Not checked."}[self.passed]
        printed = ["The kernel printed:", *self.printed.splitlines()] if self.printed else []
        return "\n".join([head, *self.says, *printed])

    def _repr_html_(self) -> str:
        head, *lines = str(self).splitlines()
        colour = "" if self.passed is not False else f"color:{ERROR}"
        rest = "<br>".join(map(html.escape, lines))
        return f'<p role="status"><b style="{colour}">{head}</b><br>{rest}</p>'


def check(exercise: str, kernel: Callable | str, *, seed: int | None = None, limit_s: float = LIMIT_S) -> Verdict:
    """Run a reader's kernel on several sizes with fresh numbers, under the tracer, and say what is wrong first.

    `exercise` is "bounds", "order" or "traffic"; `kernel` a function under @triton.jit that needs no other one, or its
    source. With a `seed` the same sizes and numbers come again; the verdict does not name it, since every draw counts.
    Raises ValueError for another exercise.
    """
    if exercise not in ("bounds", "order", "traffic"):
        raise ValueError(f"exercise must be 'bounds', 'order' or 'traffic', got {exercise!r}")
    if reason := why_not():
        return Verdict(None, (reason,))
    source = kernel if isinstance(kernel, str) else textwrap.dedent(inspect.getsource(getattr(kernel, "fn", kernel)))
    (function,) = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    seed = secrets.randbits(32) if seed is None else seed
    request = {"what": "check", "name": exercise, "kernel": function.name, "source": source, "seed": seed}
    try:
        answer = _ask(request, limit_s)
    except (TimeoutError, RuntimeError) as ended:
        return Verdict(False, (str(ended),))
    return Verdict(answer["passed"], tuple(answer["says"]), answer["printed"])


# -- what the compiler says -------------------------------------------------------------------------------------------

SHOWN = ("bf16-p4l4-k128v128-causal", "bf16-p4l4-k128v128")  # operations of the table: the first that has a kernel


def compiled() -> dict[str, dict[str, Any]]:
    """The entries of budget.json: KERNEL.OPERATION.TARGET -> what the compiled kernel takes. Empty if there is none."""
    return json.loads(BUDGET.read_text(encoding="utf-8")) if BUDGET.exists() else {}


def compiled_table(kernels: Sequence[str] = ("write", "scan", "read", "project", "sweep")) -> Html:
    """The forward kernels as compiled for each target in budget.json: registers a thread, shared memory, occupancy."""
    entries = compiled()
    if not entries:
        return Html("<p>No compile table is stored; make one with: python -m attnlab_kernels.testing.aot --update</p>")
    targets = {key.rsplit(".", 1)[1] for key in entries}
    order = sorted(targets, key=lambda name: (name.startswith("gfx"), len(name), name))
    rows = []
    for kernel in kernels:
        keys = [f"{kernel}_kernel.{operation}" for operation in SHOWN]
        key = next((it for it in keys if any(f"{it}.{target}" in entries for target in targets)), keys[0])
        rows.append([kernel, *(_taken(entries.get(f"{key}.{target}")) for target in order)])
    return _table(["kernel", *order], rows)


def _taken(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return "–"
    return (
        f"{entry['registers']} registers, {entry['spill_bytes']} bytes spilled, "
        f"{entry['shared_bytes']:,} bytes shared, {100 * entry['occupancy']:g} % of the warps at once"
    )
