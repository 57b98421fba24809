"""`attnlab bench race`: its rows say of planted times what is planted, and its runs of small sizes what they must."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

for package in ("numba", "torch", "threadpoolctl"):
    pytest.importorskip(package, reason=f"the package {package} is not installed; get it with: pip install {package}")

import torch  # noqa: E402

import attnlab  # noqa: E402
from attnlab import backend, bench, cli  # noqa: E402
from attnlab.bench import (  # noqa: E402
    Seconds,
    _cost,
    _lab,
    _machine,
    _memory,
    _race_figure,
    _race_peers,
    _race_stream,
    race,
)
from attnlab.bench._tokens import fill, tokens  # noqa: E402
from attnlab.race import RaceParams, streaming  # noqa: E402
from tests.bench_rows import by_id, planted  # noqa: E402

PAPERS = Path(__file__).parents[1] / "docs" / "papers"


# -- rows --


def kernels(of_sgemm=0.85, of_copy=0.7, causal=1.1, both=3.0):
    """Times that hold these ratios: sgemm at 80 GF/s, NumPy's, and a copy at 25 GB/s, torch's."""
    sgemm, copy = 2 * _machine.SQUARE**3 / 80e9, 8 * race.T * race.H * race.K / 25e9
    forward = race.T * race.H * 40_960 / (of_sgemm * 80e9)  # forward_flops: 4 d (L P + L R) at (4, 4), d = 128
    small = race.T * race.H * 2_048 / (of_copy * 25e9)
    return planted(**{
        "sgemm.numpy": sgemm, "sgemm.torch": 1.2 * sgemm, "copy.numpy": 1.5 * copy, "copy.torch": copy,
        "p4l4.noncausal": forward, "p4l4.causal": causal * forward, "p3l3.noncausal": forward, "p3l3.causal": forward,
        "p2l2.noncausal": small, "p2l2.causal": small, "p2l2.fresh": 1.25 * small, "p2l2.off": 1.5 * small,
        "p4l4.noncausal.kept": forward, "p4l4.noncausal.both": both * forward,
        "p4l4.causal.kept": forward, "p4l4.causal.both": 2 * both * forward,
    })  # fmt: skip


def machine_rows(seconds):
    return _machine.rows(seconds, race.T * race.H * race.K)


def test_a_planted_time_gives_the_planted_ratio_and_status():
    rows = by_id(race.target_rows(kernels()))
    assert {id: (row["value"], row["status"]) for id, row in rows.items()} == {
        "race.p4l4.forward.of_sgemm": (0.85, "met"),
        "race.p2l2.forward.of_copy": (0.7, "met"),
        "race.p4l4.causal_over_noncausal": (1.1, "met"),
        "race.p3l3.causal_over_noncausal": (1.0, None),
        "race.p2l2.causal_over_noncausal": (1.0, None),
        "race.p4l4.noncausal.both_over_forward": (3.0, "met"),
        "race.p4l4.causal.both_over_forward": (6.0, "short"),
        "race.p2l2.forward.fresh_pages": (1.25, None),
        "race.p2l2.forward.off_lines": (1.5, None),
    }
    assert rows["race.p4l4.forward.of_sgemm"]["note"].startswith("sgemm of numpy;")
    assert rows["race.p2l2.forward.of_copy"]["note"].startswith("copy of torch;")


@pytest.mark.parametrize(
    ("change", "id"),
    [
        ({"of_sgemm": 0.79}, "race.p4l4.forward.of_sgemm"),
        ({"of_copy": 0.59}, "race.p2l2.forward.of_copy"),
        ({"causal": 1.21}, "race.p4l4.causal_over_noncausal"),
        ({"both": 3.21}, "race.p4l4.noncausal.both_over_forward"),
    ],
)
def test_what_misses_its_target_is_short(change, id):
    assert by_id(race.target_rows(kernels(**change)))[id]["status"] == "short"


def test_ratios_that_scatter_are_noisy():
    seconds = kernels(of_sgemm=0.5)
    seconds["p4l4.noncausal"] = [
        Seconds(s.wall * x, s.cpu) for s, x in zip(seconds["p4l4.noncausal"], (1, 2, 0.5, 3, 0.3), strict=True)
    ]
    assert by_id(race.target_rows(seconds))["race.p4l4.forward.of_sgemm"]["status"] == "noisy"


@pytest.mark.parametrize("samples", [[math.nan], [math.nan, 1, 1, 1], [1, 1, math.nan, 1, 1], [math.inf] * 3])
@pytest.mark.parametrize("better", ["higher", "lower"])
def test_what_is_not_a_number_meets_no_target(samples, better):
    row = bench.row("x", samples, "s", better=better, target=0.5)
    assert (row["value"], row["status"]) == (None, "short")
    assert "not a finite number" in row["note"]
    json.dumps(row, allow_nan=False)


def test_the_machine_is_told_with_its_rates_and_whose_core_it_was():
    rows = by_id(machine_rows(kernels()))
    assert rows["machine.sgemm"]["value"] == 80
    assert rows["machine.copy"]["value"] == 25
    assert (rows["machine.core_share"]["value"], rows["machine.core_share"]["status"]) == (1, "met")


@pytest.mark.parametrize("share", [0.8, 1.7])  # others took a part; a second thread helped
def test_a_shared_core_makes_the_whole_run_too_noisy_to_judge(share):
    seconds = {name: [Seconds(s.wall, share * s.wall) for s in each] for name, each in kernels().items()}
    rows = [*race.target_rows(seconds), *machine_rows(seconds)]
    assert by_id(rows)["machine.core_share"]["value"] == pytest.approx(min(share, 1 / share), rel=1e-3)
    said = bench.verdict(rows)
    assert said.startswith("The machine was too noisy to judge: machine.core_share 0.")
    assert said.endswith("5 targets: 4 met, 1 short.")
    quiet = [*race.target_rows(kernels()), machine_rows(kernels())[2]]
    assert bench.verdict(quiet) == "5 targets: 4 met, 1 short."


def test_times_are_of_a_token_and_head_on_the_clock_and_of_the_cpu():
    seconds = {"p4l4.causal": [Seconds(race.T * race.H * 500e-9, race.T * race.H * 400e-9)] * 3}
    (row,) = race.time_rows(seconds)
    assert (row["id"], row["value"], row["cpu"]) == ("race.p4l4.causal.numba.forward", 500, 400)


def thread_rows(seconds):
    return _machine.thread_rows("race.p4l4.two_threads.of_sgemm", seconds, race.THREADS)


def test_a_second_thread_is_judged_by_what_sgemm_gains():
    rows = thread_rows(planted(**{"sgemm.1": 1.0, "sgemm.2": 0.625, "ours.1": 1.0, "ours.2": 0.8}))
    assert (rows[0]["value"], rows[0]["status"]) == (0.7812, "short")  # 1.25 of 1.6
    assert rows[0]["note"].startswith("ours 1.25 times as fast, sgemm 1.60 times as fast")
    (taken,) = thread_rows(planted(**{"sgemm.1": 1.0, "sgemm.2": 1.0, "ours.1": 1.0, "ours.2": 1.0}))
    assert (taken["value"], taken["status"]) == (1, "noisy")
    assert taken["note"].startswith("the second core was not free; ours 1.00 times as fast")
    (alone,) = thread_rows(None)
    assert (alone["value"], alone["status"], alone["note"]) == (None, None, "this machine has one core")


def test_peers_stand_beside_ours_with_the_same_mask_and_budget():
    peers = {
        **{"ours.noncausal.p2l2": 1.0, "ours.noncausal.p4l4": 2.0, "ours.causal.p4l4": 4.0},
        **{"algorithm_1.noncausal.p2l2": 3.0, "linear.noncausal": 5.0, "linear.causal": 10.0, "softmax.noncausal": 1.0},
    }
    rows = by_id(race.peer_rows(planted(**peers)))
    over = {id.split(".peers.")[1]: row["value"] for id, row in rows.items() if id.endswith(".over_ours")}
    at_softmax = race.T_PEERS / race.T_SOFTMAX / 2
    assert over == {
        "algorithm_1.noncausal.p2l2.over_ours": 3.0,
        "linear.noncausal.over_ours": 2.5,
        "linear.causal.over_ours": 2.5,
        "softmax.noncausal.over_ours": at_softmax,
    }
    absent = rows["race.peers.performer.noncausal"]
    assert (absent["value"], absent["note"]) == (None, _race_peers.NO_PERFORMER)


def cost(slope, softmax=2.0, scatter=0.0):
    """Every other length takes longer by `scatter`, and one round of five ten times as long."""

    def curve(lengths, power):
        times = {n: 1e-7 * n**power * (1 + scatter * (number % 2)) for number, n in enumerate(lengths)}
        return {n: [Seconds(x * t, 0.0) for x in (1, 1, 10, 1, 1)] for n, t in times.items()}

    return {"race": curve(race.COST_LENGTHS, slope), "softmax": curve(race.SOFTMAX_LENGTHS, softmax)}


@pytest.mark.parametrize(("slope", "status"), [(1.0, "met"), (1.02, "met"), (0.96, "short"), (1.05, "short")])
def test_a_known_slope_is_found_and_judged_on_both_sides_of_1(slope, status):
    rows = by_id(race.slope_rows(cost(slope)))
    row = rows["race.p4l4.cost.slope_off_1"]
    assert row["value"] == pytest.approx(abs(slope - 1), abs=1e-9)
    assert row["status"] == status
    assert row["note"] == f"slope {slope:.3f} ± 0.000 from 4,096 to 4,194,304 tokens"
    assert rows["race.softmax.cost.slope"]["value"] == 2
    assert by_id(race.slope_rows(cost(slope, scatter=0.5)))["race.p4l4.cost.slope_off_1"]["status"] == "noisy"


def test_the_standard_error_is_that_of_the_textbook():
    lengths, seconds = [1, 2, 4, 8], [1.0, 2.1, 3.9, 8.2]
    x, y = np.log(lengths), np.log(seconds)
    design = np.stack([np.ones(4), x], axis=1)
    (_, slope), residual, *_ = np.linalg.lstsq(design, y)
    covariance = residual[0] / 2 * np.linalg.inv(design.T @ design)
    assert _cost.fit(lengths, seconds) == pytest.approx((slope, covariance[1, 1] ** 0.5))


def test_memory_beyond_its_allowance_is_short_and_says_how_it_grows(monkeypatch):
    def measured(benchmark, case, *lengths, threads):
        return [{"tokens": n, "extra_bytes": n * grows, "peak_bytes": n * 17_000, "time_s": 4.0} for n in lengths]

    grows = 19  # bytes a token; allowed are 4 for each of 4 heads, and 1 MiB
    monkeypatch.setattr(_memory, "measured", measured)
    rows = race.memory_rows()
    assert [row["id"] for row in rows] == [f"race.{case}.extra_memory" for case in race.MEMORY]
    assert {(row["value"], row["target"], row["status"], row["note"]) for row in rows} == {
        (4.75, 5, "met", "at 262,144 tokens, 1.19 of 2 at 65,536")
    }
    grows = 21
    assert {row["status"] for row in race.memory_rows()} == {"short"}
    monkeypatch.setattr(_memory, "available_bytes", lambda: 18 * 2**30)
    (million,) = race.million_rows()
    assert (million["value"], million["status"]) == (16.602, "met")
    monkeypatch.setattr(_memory, "available_bytes", lambda: 10 * 2**30)
    (refused,) = race.million_rows()
    assert (refused["value"], refused["status"]) == (None, None)
    assert refused["note"] == "this takes up to 17 GiB, and 10.0 GiB are available"
    monkeypatch.setattr(_memory, "peak_bytes", lambda: None)
    assert {row["note"] for row in race.memory_rows()} == {_memory.UNTOLD}


# -- memory, measured --


needs_linux = pytest.mark.skipif(_memory.peak_bytes() is None, reason=_memory.UNTOLD)


@needs_linux
def test_memory_that_was_held_for_a_moment_is_seen_and_what_was_there_before_is_not():
    script = (
        "import numpy as np; from attnlab.bench._memory import rise\n"
        "before = np.ones(2**22)\n"
        "def run():\n"
        "    np.ones(2**20).sum(); return np.ones(2**19)\n"
        "rise(run)\n"
        "print(rise(run)[1], rise(lambda: before.sum())[1])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    rose, stayed = map(int, done.stdout.split())
    counting = 2**18  # the system counts pages a processor at a time
    assert abs(rose - 8 * 2**20) <= counting
    assert stayed <= counting


@needs_linux
@pytest.mark.slow
def test_extra_memory_is_what_lies_above_output_and_gradients():
    short, long = _memory.measured("race", "p4l4.both.noncausal", 2048, 4096, threads=1)
    assert (short["tokens"], long["tokens"]) == (2048, 4096)
    assert long["peak_bytes"] > 8 * 4 * 4096 * race.H * race.K  # q, k, v, their gradients, output and its gradient
    with pytest.raises(RuntimeError, match=r"(?s)status 1: .*no such case"):
        _memory.measured("race", "no such case", 16, threads=1)


# -- peers --


def test_the_peers_are_what_they_are_called():
    q, k, v, _ = RaceParams(tokens=200).inputs()
    planes = RaceParams().draw_planes()
    heads_first = [torch.from_numpy(x).transpose(1, 2).contiguous() for x in (q, k, v)]
    got = _race_peers.algorithm_1(*heads_first, torch.from_numpy(planes), 2.0).transpose(1, 2).numpy()
    assert abs(got - attnlab.race.attention(q, k, v, planes, 2.0)).max() < 1e-12
    phi_q, phi_k = (torch.nn.functional.elu(x) + 1 for x in heads_first[:2])
    for causal, peer in ((False, _race_peers.linear), (True, _race_peers.linear_causal)):
        scores = phi_q @ phi_k.mT
        scores = scores.tril() if causal else scores
        want = scores @ heads_first[2] / scores.sum(-1, keepdim=True)
        torch.testing.assert_close(peer(*heads_first), want, rtol=1e-10, atol=1e-12)


# -- generated tokens --


def test_tokens_depend_on_their_position_alone():
    whole = tokens(3, 40, 2, 8)[0].reshape(40, 16)
    for first, last in ((0, 1), (7, 40)):
        part = np.empty((last - first, 16), np.float32)
        fill(part, 3, first)
        assert np.array_equal(part, whole[first:last])
    far = np.empty((2, 16), np.float32)
    fill(far, 3, 2**40)
    assert not np.isin(far, whole).all()
    assert not np.array_equal(tokens(4, 40, 2, 8), tokens(3, 40, 2, 8))


def test_tokens_are_nearly_gaussian_and_not_correlated():
    """Within five standard errors of what independent sums of four bytes have."""
    x = tokens(0, 2048, 1, 512)[0, :, 0].astype(np.float64)
    tolerance = 5 / np.sqrt(x.size)
    assert abs(x.mean()) < tolerance
    assert abs(x.var() - 1) < 2 * tolerance
    assert abs((x**4).mean() - 2.7) < 10 * tolerance
    other = tokens(1, 2048, 1, 512)[0, :, 0]
    for pair in (x[1:] * x[:-1], x[:, 1:] * x[:, :-1], x * other):
        assert abs(pair.mean()) < tolerance


# -- streams --


@pytest.mark.parametrize("causal", [False, True])
def test_a_resumed_stream_is_the_same_run_bit_for_bit(monkeypatch, tmp_path, causal):
    settings = {"causal": causal, "planes": 2, "tables": 3, "size": 300}
    monkeypatch.setattr(_race_stream, "SAVE_S", 0.0)
    whole = by_id(_race_stream.stream(2000, **settings))
    state, chunks = tmp_path / "state.npz", 7 if causal else 14
    for stop in (1, 3, 2):  # three times stopped, each time after some more chunks
        with monkeypatch.context() as patch:
            stop_after(patch, stop)
            with pytest.raises(bench.Interrupted, match=r"go on with: attnlab bench race --stream 2000 .*--state"):
                _race_stream.stream(2000, state=state, **settings)
    assert streaming.load(state).told["done"] == 1800
    done = []
    steps = streaming.steps
    monkeypatch.setattr(streaming, "steps", lambda *a, **o: (done.append(s.span) or s for s in steps(*a, **o)))
    resumed = by_id(_race_stream.stream(2000, state=state, **settings))
    assert len([span for span in done if span.stop > 1]) == chunks - 6
    assert not state.exists()
    name = f"race.stream.p2l3.{'causal' if causal else 'noncausal'}"
    assert resumed[f"{name}.checksum"]["value"] == whole[f"{name}.checksum"]["value"] != 0
    assert "resumed 3 times" in resumed[f"{name}.whole"]["note"]
    assert all(row["value"] is None or row["unit"] == "" or row["value"] > 0 for row in resumed.values())


def stop_after(patch, chunks):
    """Ctrl-C when so many chunks of the stream have been done."""
    steps = streaming.steps

    def stopped(source, length, *arguments, **options):
        for number, step in enumerate(steps(source, length, *arguments, **options), 1):
            yield step
            if length > 1 and number == chunks:  # 1 is the warm-up
                raise KeyboardInterrupt

    patch.setattr(streaming, "steps", stopped)


def test_the_checksum_is_the_sum_of_what_attention_gives():
    rows = by_id(_race_stream.stream(700, planes=2, tables=2, size=256))
    q, k, v = (tokens(stream, 700, _race_stream.H, _race_stream.K) for stream in range(3))
    planes = attnlab.race.draw_planes(2, 2, _race_stream.K)
    out = attnlab.race.attention(q, k, v, planes, _race_stream.SHARPNESS)
    got = rows["race.stream.p2l2.noncausal.checksum"]["value"]
    assert got == pytest.approx(out.sum(), abs=1e-6 * np.abs(out).sum())  # float32 outputs


def test_a_stream_of_the_command_line_says_its_peak_and_how_to_go_on(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["bench", "race", "--stream", "1_000", "--planes", "2", "--tables", "2"]
    assert cli.main([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    peak = by_id(result["rows"])["race.stream.p2l2.noncausal.peak_resident"]
    assert peak["target"] == 2
    assert peak["value"] is None or 0 < peak["value"] < 64
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        assert cli.main(command) == 130
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.endswith(
        "stopped after write 1,000 of 1,000 tokens; go on with: "
        "attnlab bench race --stream 1000 --planes 2 --tables 2 --state race-stream.npz\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["race-stream.npz"]
    assert cli.main([*command[:2], "--stream", "999"]) == 2
    assert "race-stream.npz must be of this run, with tokens = 999, got one with 1000" in capsys.readouterr().err
    assert cli.main(command) == 0
    assert "resumed 1 times" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


# -- the command and the figure --


@pytest.fixture
def result():
    """Of planted times, as `bench.run` gives it."""
    names = ("ours.noncausal.p4l4", "ours.causal.p4l4", "numba_plain.noncausal.p4l4", "linear.noncausal")
    peers = planted(**{name: 0.01 * 4**number for number, name in enumerate(names)})
    rows = [*race.target_rows(kernels()), *race.peer_rows(peers | planted(**{"softmax.noncausal": 3.0}))]
    rows += race.cost_rows(cost(1.01))
    return {"machine": bench.machine(), "verdict": bench.verdict(rows), "rows": rows}


def test_the_table_is_readable_on_a_page_and_says_what_was_left_out(result):
    lines = bench.table(result).splitlines()
    assert max(map(len, lines)) <= bench.WIDTH
    assert "5 targets: 4 met, 1 short." in lines
    (judged,) = (line for line in lines if line.startswith("race.p4l4.causal.both_over_forward"))
    assert judged.split()[:4] == ["race.p4l4.causal.both_over_forward", "6", "≤", "3.2"]
    assert "short" in judged
    text = " ".join(" ".join(lines).split())
    assert "the flops are 3.70 to 1; quartiles 6 to 6" in text
    (absent,) = (number for number, line in enumerate(lines) if line.startswith("race.peers.performer"))
    assert lines[absent].split()[1] == "–"
    assert "performer-pytorch is not installed" in lines[absent + 1]


def test_the_figure_shows_every_measured_peer_and_both_slopes(result):
    drawn = _race_figure.figure(result)
    bars, *curves = drawn.data
    assert set(bars.y) == {
        "RACE (4, 4)", "RACE (4, 4) causal", "RACE in plain Numba (4, 4)", "linear attention, elu + 1",
        "softmax attention, torch at 4,096",
    }  # fmt: skip
    assert list(bars.x) == sorted(bars.x, reverse=True)
    assert [list(curve.x) for curve in curves] == [list(race.COST_LENGTHS), list(race.SOFTMAX_LENGTHS)]
    said = " ".join(note.text for note in drawn.layout.annotations)
    assert "RACE (4, 4)<br>slope 1.01 ± 0.00" in said
    assert "softmax<br>slope 2.00 ± 0.00" in said


def test_plot_writes_a_page_that_needs_nothing_and_json_stands_alone(result, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(race, "rows", lambda **options: result["rows"])
    path = tmp_path / "race.html"
    assert cli.main(["bench", "race", "--json", "--plot", str(path)]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["rows"] == json.loads(json.dumps(result["rows"]))
    assert err == f"drew {path}\n"
    page = path.read_text(encoding="utf-8")
    assert "RACE (4, 4)" in page
    assert '<script src="http' not in page


def test_plot_makes_a_picture(result, browser, monkeypatch, tmp_path):
    from contextlib import nullcontext

    monkeypatch.setattr(_lab, "chromium", lambda: nullcontext(browser))  # the one that runs already
    path = tmp_path / "race.png"
    _race_figure.write(path, result)
    header = path.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    size = [int.from_bytes(header[start : start + 4]) for start in (16, 20)]
    assert size == [_race_figure.SCALE * _race_figure.WIDTH, _race_figure.SCALE * _race_figure.HEIGHT]


def test_a_figure_that_cannot_be_drawn_is_refused_before_anything_is_measured(monkeypatch, tmp_path, capsys):
    def measured(**options):
        raise AssertionError("measured")

    def absent():
        raise backend.Unavailable("no Chromium on this machine")

    monkeypatch.setattr(race, "rows", measured)
    monkeypatch.setattr(_lab, "chromium_path", absent)
    for name, sentence in (
        ("race.pdf", "--plot must be a file that ends in .html or .png, got"),
        ("no/race.html", "--plot must lie in a folder that is there, got"),
        ("race.png", "no Chromium on this machine"),
    ):
        assert cli.main(["bench", "race", "--plot", str(tmp_path / name)]) == 2
        assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["kernels", "--long"], "--long is an option of race, not of kernels"),
        (["race", "--causal"], "--causal is an option of --stream N"),
        (["race", "--stream", "5", "--long"], "--long is no option of --stream"),
        (["race", "--stream", "0"], r"--stream must lie in [1, "),
        (["race", "--stream", "5", "--planes", "9"], "--planes must lie in [1, 8], got 9"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(words, sentence, capsys):
    assert cli.main(["bench", *words]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("name", ["race_bench", "race_stream"])
def test_the_tables_of_the_docs_are_printed_from_the_recorded_runs(name):
    recorded = PAPERS / f"{name}.json"
    script = [sys.executable, str(PAPERS / "bench_table.py"), str(recorded)]
    done = subprocess.run(script, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (PAPERS / f"{name}.txt").read_text(encoding="utf-8")
    result = json.loads(recorded.read_text(encoding="utf-8"))
    assert bench.verdict(result["rows"]) == result["verdict"]
    assert all(f"| `{row['id']}` |" in done.stdout for row in result["rows"])


@pytest.mark.slow
def test_a_small_run_measures_every_row():
    """In a process of its own: it pins threads."""
    script = (
        "import json; from attnlab.bench import _cost, _machine, race\n"
        "race.T = race.T_PEERS = race.T_SOFTMAX = 256; _machine.SQUARE = 64; _cost.CALL_TOKENS = 512\n"
        "race.ROUNDS = race.PEER_ROUNDS = race.COST_ROUNDS = 2; race.MEMORY_LENGTHS = (256, 512)\n"
        "race.COST_LENGTHS = (64, 128, 256); race.SOFTMAX_LENGTHS = (16, 32, 64)\n"
        "print(json.dumps(race.rows()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = by_id(json.loads(done.stdout))
    targets = {id for id, row in rows.items() if row["target"] is not None}
    assert len(targets) == 12
    assert {"race.p4l4.forward.of_sgemm", "race.p4l4.cost.slope_off_1", "race.p4l4.two_threads.of_sgemm"} < targets
    measured = {id for id, row in rows.items() if row["value"] is not None}
    for id in ("numba_plain.causal.p4l4", "linear.causal", "softmax.noncausal.over_ours", "algorithm_1.noncausal.p2l2"):
        assert f"race.peers.{id}" in measured
    assert all(rows[id]["value"] > 0 for id in measured if rows[id]["unit"] in ("ns/token-head", "ms", "GF/s", "GB/s"))
    assert all(rows[id]["cpu"] > 0 for id in measured if rows[id]["unit"] == "ns/token-head")


def test_the_recorded_runs_are_whole():
    """What the issue of this page promises is on it: a long run, a stream of 75 million tokens, every target."""
    runs = [json.loads((PAPERS / f"{name}.json").read_text(encoding="utf-8")) for name in ("race_bench", "race_stream")]
    rows, streamed = (by_id(run["rows"]) for run in runs)
    targets = {id for id, row in rows.items() if row["target"] is not None}
    assert {
        *("race.p4l4.forward.of_sgemm", "race.p2l2.forward.of_copy", "race.p4l4.causal_over_noncausal"),
        *("race.p4l4.noncausal.both_over_forward", "race.p4l4.two_threads.of_sgemm", "race.p4l4.cost.slope_off_1"),
        *("race.p4l4.both.causal.extra_memory", "race.p4l4.both.million_tokens"),
    } < targets
    assert all(row["value"] is not None for id, row in rows.items() if id in targets)
    assert any("75,000,000 tokens" in row["note"] for row in streamed.values())


def test_the_kernels_readme_carries_the_recorded_run():
    readme = (PAPERS.parents[1] / "kernels" / "README.md").read_text(encoding="utf-8")
    told = readme.split("<!-- recorded -->\n")[1].split("\n<!-- /recorded -->")[0]
    assert (PAPERS / "race_bench.txt").read_text(encoding="utf-8").startswith(told)
