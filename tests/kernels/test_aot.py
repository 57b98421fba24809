"""The compile table catches what it is for, and `launch` starts or notes."""

import json
import math
import os
import pickle
import subprocess
import sys
from contextlib import contextmanager
from fnmatch import fnmatchcase
from types import SimpleNamespace

import pytest

pytest.importorskip("triton", reason="the package triton is not installed; get it with: pip install triton")

import torch
import triton.language as tl

from attnlab_kernels.launch import launch, recorded
from attnlab_kernels.testing import aot
from tests.kernels import broken

NUMBERS = {
    "registers": 40,
    "spill_bytes": 0,
    "stack_bytes": 0,
    "shared_bytes": 4096,
    "tensor_memory_columns": 0,
    "warps": 4,
    "occupancy": 0.75,
    "instructions": 100,
    "tensor_cores_meant": True,
    "tensor_core_instructions": 8,
    "largest_ieee_dot": "32x32x32",
    "widest_load_bits": 128,
}
SOUND = aot.Resources(**NUMBERS)


# ---------------------------------------------------------------- launch


class Started:
    """A kernel that notes what it was started with."""

    def __init__(self):
        self.calls = []

    def __getitem__(self, grid):
        return lambda *args, **options: self.calls.append((grid, args, options))


def test_a_launch_starts_the_kernel_with_its_arguments():
    kernel, x = Started(), torch.zeros(3)
    launch(kernel, (2, 3), x, None, 7, grid=5, num_warps=8)
    assert kernel.calls == [((2, 3), (x, None, 7), {"grid": 5, "num_warps": 8})]


def test_a_recorded_launch_is_noted_and_not_started():
    kernel, x = Started(), torch.zeros(3, device="meta")
    with recorded() as outer:
        launch(kernel, (1,), x, BLOCK=16)
        with recorded() as inner:
            launch(kernel, (2,))
        launch(kernel, (3,))
    assert kernel.calls == []
    assert outer == [(kernel, (1,), (x,), {"BLOCK": 16}), (kernel, (3,), (), {})]
    assert [noted.grid for noted in inner] == [(2,)]


def test_recording_ends_where_the_operation_fails():
    kernel = Started()
    with pytest.raises(ZeroDivisionError), recorded():
        launch(kernel, (1,), 1 / 0)
    launch(kernel, (1,))
    assert len(kernel.calls) == 1


def test_a_kernel_starts_on_the_device_of_its_tensors(monkeypatch):
    events = []

    @contextmanager
    def device(index):
        events.append(f"device {index}")
        yield
        events.append("back")

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda self: 1)
    kernel = Started()
    kernel.calls = events
    launch(kernel, (1,), None, torch.zeros(1))
    launch(kernel, (1,), 5)
    assert events == [
        "device 1", ((1,), (None, torch.zeros(1)), {}), "back",
        "device -1", ((1,), (5,), {}), "back",
    ]  # fmt: skip


# ---------------------------------------------------------------- from an operation to its cases


def ids(*operations):
    return [case.id for case in aot.collect(operations)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (broken.scale(4096), broken.scale(4100)),  # divisible by 16
        (broken.scale(4100), broken.scale(1)),
        (broken.scale(4096), broken.scale(2**31)),  # 64 bits
        (broken.scale(4096), broken.scale(4096, torch.float16)),
        (broken.scale(4096), broken.scale(4096, offset=1)),  # aligned to 16 bytes
        (broken.scale(2**14), broken.scale(2**26)),  # 2 GB, which AMD addresses otherwise
        (broken.normalise(), broken.normalise(num_stages=1)),
        (broken.multiply(32, 32, 32), broken.multiply(32, 32, 16)),
        (broken.start(broken.breaks_out, None, 1.0, 4), broken.start(broken.breaks_out, None, None, 4)),
        (broken.start(broken.breaks_out, None, 1.0, True), broken.start(broken.breaks_out, None, 1.0, 1)),
        # a constexpr is told from another by its value, where it stands does not matter
        (broken.start(broken.unequal_shapes, None, None, 32), broken.start(broken.unequal_shapes, None, None, 64)),
    ],
)
def test_what_a_compiler_specialises_on_makes_a_case_of_its_own(one, other):
    assert len(ids(("one", one), ("other", other))) == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (broken.scale(4096), broken.scale(8192)),
        (broken.scale(4097), broken.scale(4099)),
        (broken.scale(4096), broken.scale(4096, offset=4)),
        (broken.start(broken.breaks_out, None, 0.5, 4), broken.start(broken.breaks_out, None, 2.5, 4)),
        (broken.start(broken.breaks_out, None, None, 4), broken.start(broken.breaks_out, None, None, N=4)),
    ],
)
def test_operations_that_start_one_specialisation_share_its_case(one, other):
    assert len(ids(("one", one), ("other", other))) == 1


def test_cases_are_named_after_kernel_and_operation():
    def run():
        for N in (4096, 4096, 4097):
            broken.scale(N)()
        broken.normalise()()

    expected = ["scaled.both", "scaled.both-2", "softmax.both"]
    assert [case.id for case in aot.cases("both", run)] == expected
    assert ids(("both", run), ("again", run)) == expected


def test_an_operation_that_starts_nothing_is_refused():
    with pytest.raises(ValueError, match="operation 'idle' must start a kernel"):
        aot.cases("idle", lambda: None)


# ---------------------------------------------------------------- the table


@pytest.fixture(scope="module")
def table():
    """All cases for one NVIDIA and the AMD target; the first ends its worker."""
    return aot.table(broken.cases(), ["sm_80", "gfx942"])


def wrong(table, key):
    """What is wrong with one entry by itself, the budget being the entry."""
    got = table[key]
    return aot.check({key: got}, {key: got._asdict()} if isinstance(got, aot.Resources) else {})


def alike(sentences, patterns):
    return len(sentences) == len(patterns) and all(map(fnmatchcase, sentences, patterns))


@pytest.mark.aot
@pytest.mark.parametrize(
    ("case", "sentences"),
    [
        ("scaled.even", []),
        ("scaled.odd", []),
        ("scaled.half", []),
        ("dot.bf16", []),
        ("dot.tf32", []),
        ("softmax.free", []),
        ("deep_pipeline.two-stages", []),
        ("deep_pipeline.five-stages", ["needs 262144 bytes of shared memory, sm_80 has 166912 for a block"]),
        ("softmax.capped", ["spills * bytes a thread, none are allowed"]),
        ("dot.ieee", ["is meant for tensor cores, but has no instruction for them"]),
        (
            "dot.large-ieee",
            [
                "spills * bytes a thread, none are allowed",
                "has a float32 dot of 64x64x64 in ieee precision, 64x64x32 is the largest allowed",
            ],
        ),
        ("unequal_shapes.shapes", ["does not compile: CompilationError: * incompatible dimensions * 16 and 32*"]),
        ("breaks_out.break", ["does not compile: UnsupportedLanguageConstruct: *unsupported AST node type: Break"]),
        ("no_such_instruction.assembly", ["does not compile: PTXASError: *Not a name of any known instruction*"]),
        ("kills_the_compiler.killed", ["does not compile: the compiling process ended with status -9"]),
    ],
)
def test_a_fault_is_caught_and_a_sound_kernel_passes(table, case, sentences):
    assert alike(wrong(table, f"{case}.sm_80"), [f"{case}.sm_80: {sentence}" for sentence in sentences])


@pytest.mark.aot
@pytest.mark.parametrize(
    ("case", "sentences"),
    [
        ("scaled.even", []),
        ("dot.bf16", []),
        ("dot.large-ieee", []),  # AMD's matrix cores take float32
        ("deep_pipeline.five-stages", ["needs 262144 bytes of shared memory, gfx942 has 65536 for a block"]),
        ("softmax.capped", []),  # the cap is an option of NVIDIA's assembler, and left out
        ("breaks_out.break", ["does not compile: UnsupportedLanguageConstruct: *Break"]),
        # what the exception does not say stands in the worker's log
        ("no_such_instruction.assembly", ["does not compile: RuntimeError: *; *error: invalid instruction*"]),
        ("kills_the_compiler.killed", ["does not compile: the compiling process ended with status -9"]),
    ],
)
def test_a_fault_is_caught_on_amd_too(table, case, sentences):
    assert alike(wrong(table, f"{case}.gfx942"), [f"{case}.gfx942: {sentence}" for sentence in sentences])


@pytest.mark.aot
def test_a_dead_worker_takes_no_other_case_with_it(table):
    assert len(table) == 2 * len(broken.OPERATIONS)
    assert isinstance(table["scaled.even.sm_80"], aot.Resources)
    assert isinstance(table["dot.tf32.gfx942"], aot.Resources)


@pytest.mark.aot
def test_a_compiler_that_prints_answers_nothing(table):
    assert table["chatty.prints.sm_80"] == table["scaled.even.sm_80"]


@pytest.mark.aot
def test_the_numbers_tell_kernels_apart(table):
    even, odd, half = (table[f"scaled.{it}.sm_80"] for it in ("even", "odd", "half"))
    assert (even.widest_load_bits, odd.widest_load_bits, half.widest_load_bits) == (128, 32, 16)
    assert even.instructions < odd.instructions
    assert {it.instructions % 8 for it in (even, odd, half)} != {0}  # the NOPs that fill a line are not counted
    even, odd, half = (table[f"scaled.{it}.gfx942"] for it in ("even", "odd", "half"))
    assert (even.widest_load_bits, odd.widest_load_bits, half.widest_load_bits) == (128, 32, 16)

    free, capped = table["softmax.free.sm_80"], table["softmax.capped.sm_80"]
    assert free.registers > capped.registers == 40
    assert capped.stack_bytes > 0
    assert free.occupancy < capped.occupancy

    bf16, tf32 = table["dot.bf16.sm_80"], table["dot.tf32.sm_80"]
    # m16n8k16 against m16n8k8: 64 x 64 x 64 takes 128 and 256 of them, over four warps
    assert (bf16.tensor_core_instructions, tf32.tensor_core_instructions) == (32, 64)
    assert table["dot.ieee.sm_80"].largest_ieee_dot == "32x32x32"
    assert table["deep_pipeline.five-stages.sm_80"].occupancy == 0


@pytest.mark.aot
@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
@pytest.mark.parametrize("operation", ["odd", "tf32"])
def test_two_cold_compiles_give_equal_numbers(table, operation, target, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    (case,) = aot.cases(operation, broken.OPERATIONS[operation])
    again = aot.compile_case(case, target)  # in this process: the numbers are not those of one worker
    assert again == table[f"{case.id}.{target}"]
    assert aot.compile_case(case, target) == again  # the cache is full by now


@pytest.mark.aot
def test_the_newer_cards_use_their_own_instructions():
    (case,) = aot.cases("bf16", broken.OPERATIONS["bf16"])
    got = {f"{case.id}.{target}": aot.compile_case(case, target) for target in ("sm_90", "sm_100")}
    # four warps together multiply 64 x 64 x 16 by one instruction
    assert [it.tensor_core_instructions for it in got.values()] == [4, 4]
    # the newest keep the 64 columns of a result in a memory of its own
    assert [it.tensor_memory_columns for it in got.values()] == [0, 64]
    assert aot.check(got, {key: it._asdict() for key, it in got.items()}) == []


@pytest.mark.aot
def test_a_compile_that_takes_too_long_is_stopped():
    got = aot.table(aot.cases("odd", broken.OPERATIONS["odd"]), ["sm_80"], limit_s=0.05)
    assert got == {"scaled.odd.sm_80": "not compiled within 0.05 s"}


INTERPRETS = """
import contextlib, io, json, runpy, sys, types
import torch
from attnlab_kernels.launch import launch
from tests.kernels import broken

x, y = torch.arange(8.0), torch.full((8,), float("nan"))
launch(broken.scaled, (1, 2), x, y, 0.5, 4, BLOCK=4)

operations = types.SimpleNamespace(compiled=lambda: [("odd", broken.OPERATIONS["odd"])])
sys.modules["attnlab_kernels.testing.operations"] = operations
sys.argv = ["aot", "--json", "--targets", "sm_80"]
printed = io.StringIO()
with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
    runpy.run_module("attnlab_kernels.testing.aot", run_name="__main__")

from attnlab_kernels.testing import aot
try:
    refused = str(aot.compile_case(*aot.collect(operations.compiled()), "sm_80"))
except RuntimeError as error:
    refused = str(error)
print(json.dumps([y.tolist(), refused, json.loads(printed.getvalue())["table"]]))
"""


@pytest.mark.aot
def test_a_process_that_interprets_starts_kernels_and_lets_others_compile(table):
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", INTERPRETS], env=environment, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    values, refused, compiled = json.loads(done.stdout)
    assert values == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]
    assert "scaled must be a compiled one, but this process interprets kernels" in refused
    assert compiled == {"scaled.odd.sm_80": table["scaled.odd.sm_80"]._asdict()}


def test_what_cannot_be_compiled_is_named():
    (case,) = aot.cases("odd", broken.OPERATIONS["odd"])
    with pytest.raises(ValueError, match=r"targets must be among .*, got sm_70"):
        aot.table([case], ["sm_80", "sm_70"])
    with pytest.raises(ValueError, match=r"targets must be among .*, got sm_70"):
        aot.compile_case(case, "sm_70")
    with pytest.raises(ValueError, match=r"names of their own, got scaled\.odd\.sm_80 more than once"):
        aot.table([case, case], ["sm_80"])


def test_what_goes_to_a_worker_comes_out_as_it_was():
    x = torch.zeros(9)[1:]
    call = broken.start(broken.unequal_shapes, broken.tensor(7, torch.bfloat16, 3), x, None, tl.bfloat16)
    (case,) = aot.cases("packed", call)
    back = pickle.loads(aot._packed(case))
    assert back.id == case.id
    assert back.launch.kernel is broken.unequal_shapes
    assert aot._specialisation(back.launch) == aot._specialisation(case.launch)
    assert back.launch.args[0].data_ptr() == 6
    assert back.launch.args[0].untyped_storage().nbytes() == 20


# ---------------------------------------------------------------- occupancy


@pytest.mark.parametrize(
    ("target", "warps", "shared", "registers", "columns", "resident"),
    [
        ("sm_80", 4, 0, 32, 0, 64),  # nothing is short
        ("sm_80", 4, 0, 255, 0, 8),  # 8,192 registers a warp: two in each of four partitions
        ("sm_80", 1, 0, 115, 0, 16),  # 3,840 a warp: four in each partition, where 17 would fit in one pool
        ("sm_80", 32, 0, 64, 0, 32),
        ("sm_80", 1, 0, 32, 0, 32),  # 32 blocks, of one warp each
        ("sm_80", 4, 64 * 1024, 32, 0, 8),  # 164 KB hold 65 KB twice
        ("sm_90", 4, 64 * 1024, 32, 0, 12),  # and 228 KB three times
        ("sm_90", 4, 227 * 1024, 32, 0, 4),
        ("sm_90", 4, 227 * 1024 + 1, 32, 0, 0),
        ("sm_100", 4, 0, 32, 256, 8),  # 512 columns of tensor memory
        ("sm_100", 4, 0, 32, 1024, 0),
    ],
)
def test_occupancy_is_the_least_of_what_each_resource_allows(target, warps, shared, registers, columns, resident):
    got = aot.occupancy(target, warps, shared, aot.nvidia_warps(registers), columns)
    assert got == resident / 64


@pytest.mark.parametrize(
    ("warps", "shared", "waves", "resident"),
    [
        (4, 0, 32, 32),
        (4, 0, 12, 12),
        (8, 0, 12, 8),  # a block is resident as a whole or not at all
        (1, 0, 32, 32),
        (2, 0, 32, 32),
        (4, 24 * 1024, 32, 8),
        (4, 64 * 1024, 32, 4),
        (4, 64 * 1024 + 1, 32, 0),
    ],
)
def test_occupancy_on_amd(warps, shared, waves, resident):
    assert aot.occupancy("gfx942", warps, shared, waves) == resident / 32


# ---------------------------------------------------------------- the budget


def test_equal_numbers_pass(tmp_path):
    table = {"k.op.sm_80": SOUND, "k.op.gfx942": SOUND._replace(occupancy=1 / 3)}
    aot.write_budget({key: got._asdict() for key, got in table.items()}, tmp_path / "budget.json")
    assert aot.check(table, aot.read_budget(tmp_path / "budget.json")) == []


def test_a_budget_file_has_sorted_lines_of_one_entry(tmp_path):
    path = tmp_path / "budget.json"
    aot.write_budget({"b.sm_80": {"registers": 2}, "a.sm_80": {"registers": 1}}, path)
    assert path.read_text() == '{\n"a.sm_80": {"registers": 1},\n"b.sm_80": {"registers": 2}\n}\n'
    aot.write_budget({}, path)
    assert aot.read_budget(path) == {}
    assert aot.read_budget(tmp_path / "none.json") == {}


@pytest.mark.parametrize("field", NUMBERS)
def test_one_changed_number_is_named(field):
    budget = {"k.op.sm_80": NUMBERS | {field: "else"}, "k.op.sm_90": NUMBERS}
    sentence = f"k.op.sm_80: {field} is {NUMBERS[field]}, and else in the budget"
    assert aot.check({"k.op.sm_80": SOUND, "k.op.sm_90": SOUND}, budget) == [sentence]


def test_missing_and_surplus_entries_and_numbers_are_named():
    assert aot.check({"k.op.sm_80": SOUND}, {}) == ["k.op.sm_80: stands not in the budget"]
    assert aot.check({}, {"k.op.sm_80": NUMBERS}) == ["k.op.sm_80: stands in the budget, but is compiled no more"]
    budget = {name: number for name, number in NUMBERS.items() if name != "warps"} | {"speed": 1}
    assert aot.check({"k.op.sm_80": SOUND}, {"k.op.sm_80": budget}) == [
        "k.op.sm_80: warps is 4, and missing in the budget",
        "k.op.sm_80: speed is missing, and 1 in the budget",
    ]
    assert aot.check({"k.op.sm_80": "Error: no"}, {"k.op.sm_80": NUMBERS}) == [
        "k.op.sm_80: does not compile: Error: no"
    ]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"spill_bytes": 8}, "spills 8 bytes a thread, none are allowed"),
        ({"shared_bytes": 166913}, "needs 166913 bytes of shared memory, sm_80 has 166912 for a block"),
        ({"tensor_memory_columns": 513}, "needs 513 columns of tensor memory, there are 512"),
        ({"occupancy": 0.0}, "not even one block fits on a multiprocessor"),
        ({"tensor_core_instructions": 0}, "is meant for tensor cores, but has no instruction for them"),
        (
            {"largest_ieee_dot": "2x64x64x32"},
            "has a float32 dot of 2x64x64x32 in ieee precision, 64x64x32 is the largest allowed",
        ),
    ],
)
def test_the_limits_hold_whatever_the_budget_says(change, sentence):
    got = SOUND._replace(**change)
    assert aot.check({"k.op.sm_80": got}, {"k.op.sm_80": got._asdict()}) == [f"k.op.sm_80: {sentence}"]


def test_values_at_the_limits_pass():
    got = SOUND._replace(shared_bytes=166912, tensor_memory_columns=512, largest_ieee_dot="64x64x32")
    assert aot.check({"k.op.sm_80": got}, {"k.op.sm_80": got._asdict()}) == []


@pytest.mark.parametrize("field", ["spill_bytes", "shared_bytes", "occupancy", "tensor_core_instructions", "registers"])
def test_nan_passes_nothing(field):
    got = SOUND._replace(**{field: math.nan})
    sentences = aot.check({"k.op.sm_80": got}, {"k.op.sm_80": got._asdict()})
    assert f"k.op.sm_80: {field} is nan, and nan in the budget" in sentences
    assert len(sentences) == (1 if field == "registers" else 2)


# ---------------------------------------------------------------- the command


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """The command over a table and a budget file of the test; gives its status and what it printed."""
    compiled = {}
    operations = SimpleNamespace(compiled=lambda: [("odd", broken.OPERATIONS["odd"])])
    monkeypatch.setitem(sys.modules, "attnlab_kernels.testing.operations", operations)
    monkeypatch.setattr(aot, "BUDGET", tmp_path / "budget.json")
    monkeypatch.setattr(
        aot,
        "table",
        lambda cases, targets: {f"{case.id}.{it}": compiled[it] for case in cases for it in targets},
    )

    def run(*arguments, **results):
        compiled.update(results)
        return aot.main(list(arguments)), capsys.readouterr().out

    return run


def test_the_command_compares_and_updates(command):
    everything = dict.fromkeys(aot.TARGETS, SOUND)
    status, out = command(**everything)
    assert status == 1
    assert "scaled.odd.gfx942: stands not in the budget" in out
    assert command("--update")[0] == 0
    status, out = command()
    assert status == 0
    assert "As in the budget." in out
    assert (
        "scaled.odd.sm_100         40        0    4096      4        75%           100            8          128" in out
    )

    status, out = command("--targets", "sm_90", "gfx942", sm_90=SOUND._replace(registers=41))
    assert status == 1
    assert out.endswith("\nscaled.odd.sm_90: registers is 41, and 40 in the budget\n")


def test_an_update_leaves_other_targets_and_blesses_no_fault(command):
    command("--update", **dict.fromkeys(aot.TARGETS, SOUND))
    spilt = SOUND._replace(spill_bytes=4)
    status, out = command("--update", "--targets", "sm_80", "sm_90", sm_80=spilt, sm_90="Error: no")
    assert status == 1
    assert "scaled.odd.sm_80: spills 4 bytes" in out
    assert "scaled.odd.sm_90  Error: no" in out
    budget = aot.read_budget(aot.BUDGET)
    assert sorted(budget) == ["scaled.odd.gfx942", "scaled.odd.sm_100", "scaled.odd.sm_80"]
    assert budget["scaled.odd.sm_80"]["spill_bytes"] == 4
    assert budget["scaled.odd.sm_100"] == NUMBERS


def test_the_command_speaks_json(command):
    status, out = command("--json", "--targets", "sm_80", "gfx942", sm_80=SOUND, gfx942="Error: no")
    assert status == 1
    assert json.loads(out) == {
        "table": {"scaled.odd.sm_80": NUMBERS, "scaled.odd.gfx942": "Error: no"},
        "wrong": [
            "scaled.odd.gfx942: does not compile: Error: no",
            "scaled.odd.sm_80: stands not in the budget",
        ],
    }
