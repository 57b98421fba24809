"""`attnlab bench residual`: its rows say of planted times what is planted, and its small runs what they must."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

for package in ("numba", "torch", "threadpoolctl"):
    pytest.importorskip(package, reason=f"the package {package} is not installed; get it with: pip install {package}")

import torch  # noqa: E402

from attnlab import bench, cli  # noqa: E402
from attnlab.bench import Seconds, _cost, _machine, _memory, _residual_peers, residual  # noqa: E402
from attnlab.residual import cpu_kernels, reference, torch_impl  # noqa: E402
from tests.bench_rows import by_id, planted  # noqa: E402

PAPERS = Path(__file__).parents[1] / "docs" / "papers"
PEERS = ("torch_loop", "torch_chunked", "numba_loop")


# -- rows --


def kernels(of_sgemm=0.95, both=3.4, slider=2e-3):
    """Times that hold these ratios: sgemm at 80 GF/s, torch's, and a copy at 25 GB/s, NumPy's."""
    sgemm, copy = 2 * _machine.SQUARE**3 / 80e9, 8 * residual.T * residual.H * residual.K / 25e9
    forward = residual.T * residual.H * 229_376 / (of_sgemm * 80e9)  # 14 d^2 at d = 128
    return planted(**{
        "sgemm.numpy": 1.2 * sgemm, "sgemm.torch": sgemm, "copy.numpy": copy, "copy.torch": 1.5 * copy,
        "rdn.d128.forward": forward, "rdn.d128.kept": 1.1 * forward, "rdn.d128.both": both * forward,
        "gdn.d64.forward": forward / 8, "rla.d128.torch": 5 * forward, "slider": slider,
    })  # fmt: skip


def test_a_planted_time_gives_the_planted_ratio_and_status():
    rows = by_id(residual.kernel_rows(kernels()))
    assert {id: (row["value"], row["status"]) for id, row in rows.items()} == {
        "residual.rdn.forward.of_sgemm": (0.95, "met"),
        "residual.rdn.both_over_forward": (3.4, "met"),
        "residual.rdn.slider": (2.0, "met"),
    }
    assert rows["residual.rdn.forward.of_sgemm"]["note"].startswith(
        "sgemm of torch; the products of the chunks are 13.6 d^2 flops"
    )
    assert rows["residual.rdn.both_over_forward"]["note"].startswith("the flops are 3.34 to 1;")
    assert rows["residual.rdn.slider"]["note"].startswith("512 tokens, 1 head of width 64;")
    assert rows["residual.rdn.slider"]["cpu"] == 2


@pytest.mark.parametrize(
    ("change", "id"),
    [
        ({"of_sgemm": 0.74}, "residual.rdn.forward.of_sgemm"),
        ({"both": 3.51}, "residual.rdn.both_over_forward"),
        ({"slider": 5.1e-3}, "residual.rdn.slider"),
    ],
)
def test_what_misses_its_target_is_short(change, id):
    assert by_id(residual.kernel_rows(kernels(**change)))[id]["status"] == "short"


def test_the_flops_are_those_of_products_counted_one_by_one():
    """Tokens 0 to 23 of a chunk, each with what it is multiplied by; a token of a product with n terms is 2 n flops."""
    K, V, C, block = 128, 128, residual.TILE, residual.BLOCK
    firsts = [i // block * block for i in range(C)]  # of the token's block
    solved = sum(first + (i - first) for i, first in enumerate(firsts)) * 2 * V
    read = sum(first + block for first in firsts) * 2 * V
    forward = C * (2 * K * 2 * V + 2 * C * K + K * 2 * V) + solved + read
    assert residual.forward_flops(K, V) == pytest.approx(2 * forward / C, rel=1e-12)
    seven_of_eight = C * 2 * V * K * 7 / 8
    with_states = C * (2 * V * K + V * K + V * K + 2 * V * K + 2 * V * K + 2 * K * 2 * V)
    with_tokens = C * (2 * V * C + V * C + V * C) + C * (2 * K * C + 2 * C * K + C * K)
    decay = K * 2 * V  # of the whole chunk: the memories and their gradient, number by number
    back = seven_of_eight + with_states + with_tokens + solved + read + decay
    assert residual.backward_flops(K, V) == pytest.approx(2 * back / C, rel=1e-12)


def test_the_numbers_of_the_kernels_are_those_of_their_file():
    assert (residual.TILE, residual.BLOCK, residual.SPAN) == (
        cpu_kernels.TILES[-1],
        cpu_kernels.BLOCK,
        cpu_kernels.SPAN,
    )


def test_times_are_of_a_token_and_head_on_the_clock_and_of_the_cpu():
    seconds = {"rla.d64.both": [Seconds(residual.T * residual.H * 500e-9, residual.T * residual.H * 400e-9)] * 3}
    (row,) = residual.time_rows(seconds)
    assert (row["id"], row["value"], row["cpu"]) == ("residual.rla.d64.kernels.both", 500, 400)
    assert [*by_id(residual.time_rows(kernels()))] == [
        *(f"residual.rdn.d128.kernels.{end}" for end in ("forward", "kept", "both")),
        *("residual.gdn.d64.kernels.forward", "residual.rla.d128.torch.both"),
    ]


def peers(loop=20.0, chunked=3.0):
    """Seconds of a call, from ratios a token."""
    of = {"torch_chunked": chunked, "torch_room": 1.0, "numba_loop": 4.0}
    short = {"torch_loop": loop * residual.T_LOOP, "softmax": 8.0 * residual.T_SOFTMAX}
    return planted(ours=1.0, **of, **{name: x / residual.T for name, x in short.items()})


@pytest.mark.parametrize(("change", "statuses"), [({}, "met met"), ({"loop": 14.9}, "short met"),
                                                  ({"chunked": 2.4}, "met short")])  # fmt: skip
def test_the_loop_and_the_chunks_of_torch_are_judged_a_token(change, statuses):
    rows = residual.over_rows(peers(**change))
    assert [row["value"] for row in rows] == [change.get("loop", 20.0), change.get("chunked", 3.0)]
    assert " ".join(row["status"] for row in rows) == statuses
    assert rows[0]["note"].startswith("a token of 2,048 over one of 16,384: the loop takes as long for each")


def test_peers_stand_beside_ours_each_at_its_own_length():
    rows = by_id(residual.peer_rows(peers()))
    assert {id: row["value"] for id, row in rows.items() if id.endswith("over_ours")} == {
        "residual.peers.torch_room.over_ours": 1,
        "residual.peers.numba_loop.over_ours": 4,
        "residual.peers.softmax.over_ours": 8,
    }
    assert rows["residual.peers.ours"]["value"] == float(f"{1e9 / residual.T / residual.H:.4g}")
    assert rows["residual.peers.torch_loop"]["value"] == float(f"{20e9 / residual.T / residual.H:.4g}")
    assert rows["residual.peers.torch_loop"]["note"].startswith("2,048 tokens")
    assert rows["residual.peers.softmax"]["note"].startswith("4,096 tokens")


@pytest.mark.parametrize(("slope", "status"), [(1.02, "met"), (0.96, "short"), (1.04, "short")])
def test_a_known_slope_is_judged_on_both_sides_of_1(slope, status):
    cost = {n: [Seconds(x * 1e-7 * n**slope, 0.0) for x in (1, 1, 10, 1, 1)] for n in residual.COST_LENGTHS}
    row = _cost.slope_off_1_row("residual.rdn.cost.slope_off_1", cost, residual.SLOPE_OFF)
    assert row["value"] == pytest.approx(abs(slope - 1), abs=1e-9)
    assert row["status"] == status
    assert row["note"] == f"slope {slope:.3f} ± 0.000 from 4,096 to 262,144 tokens"


# -- memory --


def test_memory_beyond_its_allowance_is_short_and_the_rooms_are_not_judged(monkeypatch):
    def measured(benchmark, case, *lengths, threads):
        assert benchmark == "residual"
        return [{"tokens": n, "extra_bytes": grows * n + 2**20} for n in lengths]

    monkeypatch.setattr(_memory, "measured", measured)
    grows = 4 * 12 + 8  # bytes a token of 4 heads: a copy of the gates, and both memories at the longest length
    rows = by_id(residual.memory_rows())
    assert [*rows] == [f"residual.{case}.extra_memory" for case in residual.MEMORY]
    forward = rows["residual.rdn.forward.extra_memory"]
    assert (forward["value"], forward["target"], forward["status"]) == (4.5, 4.5, "met")
    assert forward["note"] == "at 65,536 tokens, 1.88 of 2.25 at 16,384"
    room = rows["residual.rdn.numba.forward.extra_memory"]
    assert (room["value"], room["target"], room["status"]) == (4.5, None, None)
    assert room["note"] == "at 65,536 tokens, 1.88 at 16,384"
    grows = 4 * 12 + 9
    assert by_id(residual.memory_rows())["residual.rdn.forward.extra_memory"]["status"] == "short"
    monkeypatch.setattr(_memory, "peak_bytes", lambda: None)
    assert {row["note"] for row in residual.memory_rows()} == {_memory.UNTOLD}


@pytest.mark.parametrize("tokens", [1, 192, 193, 1000])
def test_what_is_kept_is_as_large_as_is_allowed_for_it(tokens):
    q = np.zeros((1, tokens, 3, residual.K), np.float32)
    kept = cpu_kernels.keep(q, q, rule="rdn", parts=[(0, 0, tokens)])
    assert sum(x.size for x in kept) == 3 * residual.kept_numbers(tokens)


@pytest.mark.skipif(_memory.peak_bytes() is None, reason=_memory.UNTOLD)
@pytest.mark.slow
def test_extra_memory_is_within_what_is_allowed():
    """At lengths as short as can be: what is allowed for the kernels' own use then weighs most."""
    for case in ("rdn.forward", "rdn.both"):
        for told in _memory.measured("residual", case, 1024, 2048, threads=1):
            extra, allowed = told["extra_bytes"] / 2**20, residual._allowed_mib(case, told["tokens"])
            assert 0.1 * allowed < extra < allowed + 0.25, case  # pages are counted a processor at a time


# -- peers --


def test_the_peers_are_the_same_operator(monkeypatch):
    """float32 of 100 tokens against the reference: an ulp of a memory (2^-24 of numbers near 10) a token."""
    called = []
    chunked = torch_impl._Residual.apply
    monkeypatch.setattr(torch_impl._Residual, "apply", lambda *a: called.append(1) or chunked(*a))
    x = residual.inputs(100, 3, 16)
    want = reference.attention(*x, rule="rdn")
    tensors = [torch.from_numpy(array) for array in x]
    for name in PEERS:
        got = np.asarray(getattr(_residual_peers, name)(*(x if name.startswith("numba") else tensors)))
        assert abs(got - want).max() < 100 * 10 * 2**-24, name
    assert called == [1]  # the chunks, in place of the kernels


def test_inputs_are_what_the_page_says_and_the_errors_meet_the_clip():
    x = residual.inputs(300, 2, 64)
    for rows in (x.q, x.k):
        assert np.allclose(np.linalg.norm(rows, axis=-1), 1, atol=1e-6)
    for gate, low in ((x.alpha, 0.9), (x.beta, 0), (x.gamma, 0)):
        assert gate.shape == (1, 300, 2)
        assert low <= gate.min() < gate.max() <= 1
        assert gate.max() - gate.min() > 0.6 * (1 - low)
    errors = reference.trace(*x, rule="rdn").error
    assert 0.1 < (abs(errors) > 1).mean() < 0.9


def test_the_passes_that_are_timed_are_the_operator_and_its_gradient():
    """float32 of 200 tokens against torch's float64."""
    x = residual.inputs(200, 2, 16)
    kept, out, slopes = residual.keep(x, "rdn"), np.empty_like(x.v), [np.empty_like(x.v) for _ in range(3)]
    residual.forward(x, "rdn", out, kept=kept)
    d_out = np.cos(np.arange(x.v.size, dtype=np.float32)).reshape(x.v.shape)
    gates = residual.backward(x, "rdn", kept, d_out, slopes)
    leaves = [torch.from_numpy(array.astype(np.float64)).requires_grad_() for array in x]
    want = torch_impl.attention(*leaves, rule="rdn")
    want.backward(torch.from_numpy(d_out.astype(np.float64)))
    assert abs(out - want.detach().numpy()).max() < 1e-4
    for got, leaf in zip([*slopes, *(np.swapaxes(g, 1, 2) for g in gates)], leaves, strict=True):
        scale = abs(leaf.grad.numpy()).max()
        assert abs(got - leaf.grad.numpy()).max() < 1e-4 * scale


# -- the command --


@pytest.mark.parametrize("words", [["--long"], ["--plot", "x.html"], ["--stream", "5"], ["--causal"]])
def test_options_of_race_are_refused(words, capsys):
    assert cli.main(["bench", "residual", *words]) == 2
    assert f"{words[0]} is an option of race, not of residual" in capsys.readouterr().err


def test_the_command_prints_the_rows(monkeypatch, capsys):
    rows = residual.kernel_rows(kernels(both=4.0))
    monkeypatch.setattr(residual, "rows", lambda: rows)
    assert cli.main(["bench", "residual", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rows"] == json.loads(json.dumps(rows))
    assert told["verdict"] == "3 targets: 2 met, 1 short."
    assert told["machine"]["threads"] == 1


@pytest.mark.slow
def test_a_small_run_measures_every_row():
    """In a process of its own: it pins threads."""
    script = (
        "import json; from attnlab.bench import _cost, _machine, residual\n"
        "residual.T = 256; residual.T_LOOP = residual.T_SOFTMAX = 64; residual.MEMORY_LENGTHS = (256, 512)\n"
        "residual.ROUNDS = residual.PEER_ROUNDS = residual.COST_ROUNDS = 2; _machine.SQUARE = 64\n"
        "residual.COST_LENGTHS = (64, 128, 256); _cost.CALL_TOKENS = 512\n"
        "print(json.dumps(residual.rows()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = by_id(json.loads(done.stdout))
    targets = {id for id, row in rows.items() if row["target"] is not None}
    assert targets == {
        *(f"residual.rdn.forward.{end}" for end in ("of_sgemm", "over_token_loop", "over_torch_chunked")),
        *("residual.rdn.both_over_forward", "residual.rdn.two_threads.of_sgemm", "residual.rdn.slider"),
        *("residual.rdn.forward.extra_memory", "residual.rdn.both.extra_memory"),
        *("residual.rdn.cost.slope_off_1", "machine.core_share"),
    }
    measured = {id for id, row in rows.items() if row["value"] is not None}
    timed = {f"residual.{rule}.d{width}.kernels.forward" for rule in residual.RULES for width in (128, 64)}
    assert timed | {"residual.peers.softmax.over_ours", "residual.rla.d128.torch.both"} < measured
    assert all(rows[id]["value"] > 0 for id in measured if rows[id]["unit"] in ("ns/token-head", "ms", "GF/s", "GB/s"))
    assert all(rows[id]["cpu"] > 0 for id in measured if rows[id]["unit"] == "ns/token-head")


# -- the recorded run --


def test_the_table_of_the_docs_is_printed_from_the_recorded_run():
    recorded = PAPERS / "residual_bench.json"
    script = [sys.executable, str(PAPERS / "bench_table.py"), str(recorded)]
    done = subprocess.run(script, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (PAPERS / "residual_bench.txt").read_text(encoding="utf-8")
    result = json.loads(recorded.read_text(encoding="utf-8"))
    assert bench.verdict(result["rows"]) == result["verdict"]
    rows = by_id(result["rows"])
    assert all(f"| `{id}` |" in done.stdout for id in rows)
    judged = [row for row in rows.values() if row["target"] is not None]
    assert len(judged) == 10
    assert all(row["value"] is not None for row in judged)
