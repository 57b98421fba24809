"""`attnlab bench kernels` judges counts by their targets, and the script for a GPU measures what it says."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

for package in ("torch", "triton"):
    pytest.importorskip(package, reason=f"the package {package} is not installed; get it with: pip install {package}")

import torch  # noqa: E402

from attnlab import cli, interpreted  # noqa: E402
from attnlab.bench import kernels  # noqa: E402
from attnlab.race import reference  # noqa: E402
from attnlab_kernels import race  # noqa: E402
from attnlab_kernels.testing import aot, traffic  # noqa: E402
from attnlab_kernels.testing.operations import RaceCase  # noqa: E402

SCRIPT = Path(__file__).parents[1] / "kernels" / "bench" / "race.py"


# -- traffic --


def count(ratio):
    """What the tracer's command prints of one operation."""
    requested = {"one_kernel": {"x": int(1000 * ratio) - 400}, "two_kernel": {"x": 100, "y": 300}}
    return traffic.Count(1000, requested, 8000).as_dict()


@pytest.fixture
def counts():
    sizes = ("bf16-p4l4-k128v128", "fp32-p4l4-k128v128")
    ratios = {"forward": 1.5, "backward": 1.5}
    cases = {f"{size}{mask}": ratios for size in sizes for mask in ("", "-causal")}
    return {
        "tokens": 400,
        "cases": {case: {name: count(ratio) for name, ratio in both.items()} for case, both in cases.items()},
    }


def test_traffic_is_judged_by_operation_and_mask_at_the_main_size_alone(counts):
    rows = {row["id"]: row for row in kernels.traffic_rows(counts)}
    judged = {id: (row["target"], row["status"]) for id, row in rows.items() if row["target"] is not None}
    assert judged == {
        "race.forward.noncausal.traffic_ratio": (1.10, "short"),
        "race.forward.causal.traffic_ratio": (1.6, "met"),
        "race.backward.noncausal.traffic_ratio": (1.5, "met"),
        "race.backward.causal.traffic_ratio": (2.0, "met"),
    }
    assert all(row["better"] == "lower" for id, row in rows.items() if id in judged)
    other = rows["race.backward.causal.fp32-p4l4-k128v128.traffic_ratio"]
    assert (other["value"], other["status"]) == (1.5, None)
    assert other["note"] == "one_kernel 1.100, two_kernel 0.400"
    assert rows["race.forward.noncausal.dot_flops"]["value"] == 20
    assert rows["race.forward.noncausal.arithmetic_intensity"]["value"] == pytest.approx(16 / 3)


@pytest.mark.slow
def test_traffic_is_counted_in_a_process_that_interprets():
    counts = kernels.traffic(20)
    assert counts["cases"].keys() == {case.id for case in traffic.cases()}
    for case in traffic.cases(20):
        for operation, formula in traffic.predicted(case).items():
            seen = counts["cases"][case.id][operation]
            assert {kernel: sum(tensors.values()) for kernel, tensors in seen["requested"].items()} == formula
    assert len({row["id"] for row in kernels.traffic_rows(counts)}) == 36


def test_a_count_that_fails_says_its_last_words():
    with pytest.raises(RuntimeError, match=r"status 2: .*--tokens must be at least 1, got 0"):
        kernels.traffic(0)


def test_a_process_that_compiles_does_not_count(capsys):
    assert traffic.main([]) == 2
    assert "TRITON_INTERPRET=1" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET"):
        traffic.counted(RaceCase(torch.bfloat16, T=16))


# -- the compile table --

SOUND = aot.Resources(
    registers=40, spill_bytes=0, stack_bytes=0, shared_bytes=4096, tensor_memory_columns=0, warps=4, occupancy=0.75,
    instructions=100, tensor_cores_meant=True, tensor_core_instructions=8, largest_ieee_dot="", widest_load_bits=128,
)  # fmt: skip


@pytest.fixture
def compile_rows(monkeypatch):
    """The rows of a table of one kernel, whose resources and budget are given by target."""

    def rows(found, budget):
        monkeypatch.setattr(aot, "collect", lambda operations: ["case"])
        monkeypatch.setattr(aot, "table", lambda cases, targets, processes: {f"k.c.{it}": found[it] for it in targets})
        monkeypatch.setattr(aot, "read_budget", lambda: budget)
        return {row["id"]: row for row in kernels.compile_rows()}

    return rows


def test_every_target_has_its_resources_and_its_own_limit(compile_rows):
    budget = {f"k.c.{target}": SOUND._asdict() for target in aot.TARGETS}
    rows = compile_rows(dict.fromkeys(aot.TARGETS, SOUND), budget)
    assert len(rows) == 4 * len(aot.TARGETS) + 1
    assert not any(row["note"] for row in rows.values())
    spills, shared = rows["k.c.sm_80.spill_bytes"], rows["k.c.gfx942.shared_bytes"]
    assert (spills["value"], spills["target"], spills["status"]) == (0, 0, "met")
    assert (shared["value"], shared["target"], shared["status"]) == (4096, 65536, "met")
    assert rows["k.c.sm_90.shared_bytes"]["target"] == 227 * 1024
    assert rows["k.c.sm_90.registers"]["value"] == 40
    assert rows["k.c.sm_90.occupancy"]["value"] == 0.75
    assert rows["kernels.budget_differences"]["status"] == "met"


def test_what_is_over_a_limit_or_not_as_stored_says_so(compile_rows):
    found = {
        "sm_80": SOUND._replace(spill_bytes=8),
        "sm_90": SOUND._replace(registers=41),
        "sm_100": SOUND,
        "gfx942": SOUND._replace(shared_bytes=65537, occupancy=0.0),
    }
    budget = {f"k.c.{target}": SOUND._asdict() for target in ("sm_80", "sm_90", "gfx942")}
    rows = compile_rows(found, budget)
    assert (rows["k.c.sm_80.spill_bytes"]["status"], rows["k.c.sm_80.spill_bytes"]["note"]) == (
        "short",
        "the budget says 0",
    )
    assert rows["k.c.sm_90.registers"]["note"] == "the budget says 40"
    assert rows["k.c.sm_100.registers"]["note"] == "not in the budget"
    assert rows["k.c.gfx942.shared_bytes"]["status"] == "short"
    wrong = rows["kernels.budget_differences"]
    assert (wrong["value"], wrong["status"]) == (7, "short")
    assert wrong["note"].endswith("| and 4 more")


def test_a_kernel_that_does_not_compile_has_a_row_that_says_why(compile_rows):
    budget = {f"k.c.{target}": SOUND._asdict() for target in aot.TARGETS}
    rows = compile_rows(dict.fromkeys(aot.TARGETS, SOUND) | {"sm_80": "CompilationError: no"}, budget)
    row = rows["k.c.sm_80.compiles"]
    assert (row["value"], row["status"], row["note"]) == (0, "short", "CompilationError: no")
    assert "k.c.sm_80.registers" not in rows
    assert rows["kernels.budget_differences"]["value"] == 1


def test_the_command_says_what_the_rows_stand_on(capsys, monkeypatch, counts):
    monkeypatch.setattr(kernels, "rows", lambda: kernels.traffic_rows(counts))
    assert cli.main(["bench", "kernels", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["machine"]["evidence"] == "compiled, resource-checked and interpreted; not run on a GPU"
    assert {"torch", "triton"} <= result["machine"].keys()
    assert len(result["rows"]) == 24
    assert cli.main(["bench", "kernels"]) == 0
    assert "race.forward.causal.traffic_ratio" in capsys.readouterr().out


# -- the script for a GPU --


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("gpu_bench_of_race", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, and the script would use it")
def test_without_a_gpu_the_script_says_so(script, capsys):
    assert script.main(["--json", "--tokens", "128"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "kernels/bench/race.py: torch sees no GPU on this machine, so nothing was measured.\n"


def test_the_script_measures_what_it_is_asked_to(script, capsys):
    assert {case.T for case in script.cases(script.arguments([]))} == {2**14, 2**17, 2**20}
    chosen = script.cases(script.arguments(["--tokens", "64", "128", "--heads", "3", "--width", "96"]))
    assert len(set(chosen)) == len(chosen) == 8
    assert {(case.P, case.L) for case in chosen} == {(2, 2), (4, 4)}
    assert all(case.K == case.V == 96 and case.H == 3 and case.dtype == torch.bfloat16 for case in chosen)
    for wrong in (["--tokens", "128", "0"], ["--heads", "0"], ["--width", "-1"]):
        with pytest.raises(SystemExit):
            script.arguments(wrong)
        assert f"{wrong[0]} must be at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("T", [16, 37])
@pytest.mark.parametrize("causal", [False, True])
def test_the_peers_are_the_reference(script, causal, T):
    q, k, v, planes = script.inputs(RaceCase(torch.float32, 3, 2, 12, 5, causal, T, 2), "cpu")
    peer = script.plain_causal if causal else script.plain
    options = {"chunk": 16} if causal else {}
    got = peer(*script.heads_first(q, k, v), planes, 2.0, **options).transpose(1, 2)
    want = reference.attention(*(x.double().numpy() for x in (q, k, v, planes)), 2.0, causal=causal)
    torch.testing.assert_close(got.double(), torch.from_numpy(want), rtol=1e-5, atol=1e-6)


def test_the_script_notices_kernels_that_disagree(script, monkeypatch):
    case = RaceCase(torch.bfloat16, 4, 4, 32, 32, True, 300, 2)
    assert script.disagreement(case, "cpu") < script.AGREE
    right = script.ours
    monkeypatch.setattr(script, "ours", lambda q, k, v, planes, causal: right(q, k, v, planes, not causal))
    assert script.disagreement(case, "cpu") > 10 * script.AGREE


def test_every_pass_of_every_implementation_is_timed_or_says_why_not(script, monkeypatch):
    """On a CPU, with a clock that runs each pass once and says half a second."""
    monkeypatch.setattr(script, "FLASH_TOKENS", 16)
    monkeypatch.setattr(script, "TARGET_TOKENS", 40)
    gave = []

    def clock(run):
        gave.append(run())
        return 0.5

    chosen = [RaceCase(torch.bfloat16, 2, 2, 16, 16, causal, T, 2) for T in (16, 40) for causal in (False, True)]
    rows = list(script.measured(chosen, 1e6, clock, "cpu", compile=lambda function: function))
    assert len(rows) == len(chosen) * 3 * 2
    assert len(gave) == len(rows) - 4  # flash at 40 tokens
    assert all((row["ms"] is None) == (row["impl"] == "flash" and row["tokens"] == 40) for row in rows)
    assert all(row["note"].startswith("skipped: quadratic") for row in rows if row["ms"] is None)
    first, both = rows[:2]
    least = traffic.compulsory(chosen[0])
    assert (first["impl"], first["pass"], first["ms"]) == ("kernels", "forward", 500.0)
    assert first["share"] == least["forward"] / 0.5 / 1e6
    assert both["share"] == (least["forward"] + least["backward"]) / 0.5 / 1e6
    targets = {(row["pass"], row["causal"]): row["target"] for row in rows if row["target"] is not None}
    assert targets == {(name, causal): script.TARGETS[name] for name in script.TARGETS for causal in (False, True)}
    assert {row["tokens"] for row in rows if row["target"] is not None} == {40}

    one, gradients, _, peers_gradients = gave[:4]
    assert one.shape == (1, 16, 2, 16)
    for mine, theirs in zip(gradients, peers_gradients, strict=True):
        torch.testing.assert_close(mine.float(), theirs.transpose(1, 2).float(), rtol=0.1, atol=0.02)

    text = script.as_text({"machine": {"card": "a card"}, "copy_bytes_per_s": 1e12, "rows": rows})
    assert "copy: 1,000 GB/s" in text
    assert "       40 p2l2 causal    forward+backward kernels" in text
    assert "target 50%" in text


def test_a_peer_that_cannot_run_says_why(script):
    def clock(run):
        raise RuntimeError("out of memory\nand more")

    rows = list(script.measured([RaceCase(torch.bfloat16, T=16)], 1.0, clock, "cpu", compile=lambda function: function))
    assert {row["note"] for row in rows} == {"RuntimeError: out of memory"}
    assert {row["ms"] for row in rows} == {None}


def test_tuning_keeps_the_best_of_each_field(script):
    default = race.CONFIGS[race.default_config(torch.bfloat16)]
    ran = []

    def clock(run):
        config = race.CONFIGS["changed"]
        ran.append(config)
        if config.tile == 128:
            raise RuntimeError("out of resource: shared memory")
        run()
        return 1.0 + (config.chunk != 1024) + (config.warps != 4) + abs(config.tile - 64) / 1000

    *tried, best = script.tuned(RaceCase(torch.bfloat16, 2, 2, 16, 16, T=20), clock, "cpu")
    assert best["config"] == default._replace(chunk=1024, warps=4, tile=64)._asdict()
    assert (best["ms"], best["note"]) == (1000.0, "the fastest")
    assert tried[0]["note"] == "the default"
    assert len(set(ran)) == len(ran) == len(tried)
    failed = [entry for entry in tried if entry["ms"] is None]
    assert [entry["config"]["tile"] for entry in failed] == [128]
    assert failed[0]["note"] == "RuntimeError: out of resource: shared memory"
    assert "changed" not in race.CONFIGS
    text = script.as_text({"machine": {}, "copy_bytes_per_s": 1e9, "tuned": {"case": tried}})
    assert "tile=128" in text


# -- what is printed in kernels/README.md --


@pytest.fixture(scope="module")
def readme():
    return (SCRIPT.parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_ratios_in_the_readme_are_those_of_the_formulas(readme):
    for operation in ("forward", "backward"):
        for causal in (False, True):
            name = f"{operation}, {'causal' if causal else 'non-causal'}"
            (row,) = (line for line in readme.splitlines() if line.startswith(f"| {name} |"))
            ratios = []
            for P, L in ((4, 4), (2, 2)):
                case = RaceCase(torch.bfloat16, P, L, 128, 128, causal, T=4096, H=1)
                ratios.append(sum(traffic.predicted(case)[operation].values()) / traffic.compulsory(case)[operation])
            wanted = [traffic.TARGETS[operation, causal], *ratios]
            assert [part.strip() for part in row.split("|")[2:-1]] == [f"{x:.2f}" for x in wanted]


def test_the_readme_wants_what_the_script_wants_and_prints_no_time(readme, script):
    for name, share in script.TARGETS.items():
        row = f"| {name.replace('+', ' and ')} | {100 * share:.0f} %"
        (line,) = (line for line in readme.splitlines() if line.startswith(row))
        assert line.endswith("| nothing yet |")
    assert interpreted.EVIDENCE[1:] in readme
    assert re.findall(r"\d\s*(?:ms|µs|us|GB/s|TB/s)\b", readme) == []


def test_every_kernel_has_a_row_in_the_readme(readme):
    section = readme.split("## The kernels of RACE")[1].split("## ")[0]
    kernels = {name.removesuffix("_kernel") for name in vars(race) if name.endswith("_kernel")}
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == kernels
