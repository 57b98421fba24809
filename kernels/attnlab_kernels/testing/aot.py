"""Compiles kernels for real GPUs on a machine that has none, and reads what the machine code costs.

Triton's own LLVM writes PTX and AMDGCN, and the assemblers in its wheel make binaries of them; no driver is loaded.
What is compiled are the launches of real operations on tensors of device "meta" (`attnlab_kernels.launch.recorded`),
so the table holds what a user runs. It says that a kernel compiles and what it takes. Nothing is run or timed.

    python -m attnlab_kernels.testing.aot              # the table, compared with budget.json; status 1 if it differs
    python -m attnlab_kernels.testing.aot --update     # rewrite budget.json

The numbers are exact and belong to one version of Triton. A process with TRITON_INTERPRET set cannot compile, but it
may call `table`, whose workers are fresh processes.
"""

import argparse
import contextlib
import importlib
import inspect
import io
import json
import math
import os
import pickle
import re
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.compiler.errors import CompilationError
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from attnlab_kernels.launch import Launch, for_warps_of, recorded

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
BUDGET = Path(__file__).with_name("budget.json")
LARGEST_IEEE_DOT = 64 * 64 * 32  # multiplications; a larger float32 dot without tensor cores unrolls and spills


class Limits(NamedTuple):
    """What one multiprocessor (a compute unit on AMD) has, and what one block may take of its shared memory."""

    block_shared_bytes: int
    shared_bytes: int
    shared_unit: int  # shared memory is given out in multiples of this
    reserved_bytes: int  # taken by the system for each block
    warps: int
    blocks: int


# CUDA Programming Guide, "Technical Specifications per Compute Capability"; AMD Instinct MI300 ISA guide and LLVM's
# AMDGPU backend (16 barriers a compute unit).
LIMITS = {
    "sm_80": Limits(163 * 1024, 164 * 1024, 128, 1024, 64, 32),
    "sm_90": Limits(227 * 1024, 228 * 1024, 128, 1024, 64, 32),
    "sm_100": Limits(227 * 1024, 228 * 1024, 128, 1024, 64, 32),
    "gfx942": Limits(64 * 1024, 64 * 1024, 512, 0, 32, 16),
}
_TENSOR_MEMORY_COLUMNS = 512  # of a multiprocessor from sm_100 on


class Case(NamedTuple):
    """One kernel as one operation starts it: KERNEL.OPERATION, the launch, and whether tensor cores are demanded.

    Tensor cores are demanded in any case where a dot of the kernel is of a kind that the target has them for.
    """

    id: str
    launch: Launch
    tensor_cores: bool = False


class Resources(NamedTuple):
    """What the machine code of one case takes on one target. Registers, spills and stack are those of one thread."""

    registers: int
    spill_bytes: int  # stored and loaded again; on AMD four for each register spilled, to memory or to another register
    stack_bytes: int
    shared_bytes: int  # a block
    tensor_memory_columns: int  # a block
    warps: int  # a block; AMD's wavefronts are called warps too
    occupancy: float  # resident warps over the most there can be, as far as registers, shared memory and blocks allow
    instructions: int
    tensor_cores_meant: bool
    tensor_core_instructions: int
    largest_ieee_dot: str  # MxNxK of the largest float32 dot in "ieee" precision, empty if there is none
    widest_load_bits: int  # of one thread, from global memory


# ---------------------------------------------------------------- from an operation to its cases


def cases(operation_id: str, run: Callable[[], object], tensor_cores: Collection[str] = ()) -> list[Case]:
    """The launches of one operation, each specialisation once, named KERNEL.OPERATION_ID (then -2, -3, ...).

    `run` starts the operation on tensors of device "meta"; `tensor_cores` names kernels that must use them. Raises
    ValueError where `run` starts no kernel.
    """
    with recorded() as launches:
        run()
    if not launches:
        raise ValueError(
            f"operation {operation_id!r} must start a kernel on tensors of device 'meta', and started none"
        )
    distinct: dict[Any, Launch] = {}
    for launch in launches:
        distinct.setdefault(_specialisation(launch), launch)
    found: list[Case] = []
    times: dict[str, int] = {}
    for launch in distinct.values():
        name = _name(launch)
        times[name] = times.get(name, 0) + 1
        number = f"-{times[name]}" if times[name] > 1 else ""
        found.append(Case(f"{name}.{operation_id}{number}", launch, name in tensor_cores))
    return found


def collect(operations: Iterable[tuple[str, Callable[[], object]]], tensor_cores: Collection[str] = ()) -> list[Case]:
    """The cases of all operations (pairs of a name and a call); what two of them share stands under the first."""
    distinct: dict[Any, Case] = {}
    for operation_id, run in operations:
        for case in cases(operation_id, run, tensor_cores):
            distinct.setdefault(_specialisation(case.launch), case)
    return list(distinct.values())


def _name(launch: Launch) -> str:
    return launch.kernel.fn.__name__


def _specialisation(launch: Launch) -> tuple[Any, ...]:
    """What Triton compiles a launch for: two launches with an equal one share a binary."""
    parameters = inspect.signature(launch.kernel.fn).parameters
    values = dict(zip(parameters, launch.args, strict=False)) | launch.options
    runtime = {name for name, it in parameters.items() if "constexpr" not in str(it.annotation)}
    plain = {it.name for it in getattr(launch.kernel, "params", ()) if it.do_not_specialize}
    key = [
        (name, "i32" if name in plain else _kind(value) if name in runtime else repr(value))
        for name, value in values.items()
    ]
    return launch.kernel.fn.__module__, launch.kernel.fn.__qualname__, *sorted(key)


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        aligned = value.data_ptr() % 16 == 0
        near = value.untyped_storage().nbytes() < 2**31  # AMD addresses these with 32 bits
        return f"{value.dtype} {aligned} {near}"
    if isinstance(value, int) and not isinstance(value, bool):
        width = 32 if -(2**31) <= value < 2**31 else 64 if value < 2**63 else "u64"
        return f"i{width} {'one' if value == 1 else value % 16 == 0}"
    if isinstance(value, (bool, float)):
        return type(value).__name__
    return repr(value)  # None, and what we do not know: never shared by mistake


# ---------------------------------------------------------------- from a case to its resources


class _NoDriver(DriverBase):
    """Enough of a driver for `kernel.warmup`: it names a target, and nothing can be started."""

    def __init__(self, target: GPUTarget):
        super().__init__()
        self.target = target
        self.device = object()  # the key of a kernel's cache in memory: with a new one each compile is cold

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> object:
        return self.device

    def get_current_stream(self, device: object = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        raise RuntimeError("there is no device: a kernel can only be compiled here")

    def get_benchmarker(self) -> Any:
        raise RuntimeError("there is no device: a kernel cannot be timed here")


@contextlib.contextmanager
def _pretending(target: GPUTarget) -> Iterator[None]:
    before = driver._active
    driver.set_active(_NoDriver(target))
    try:
        yield
    finally:
        driver._active = before


def compile_case(case: Case, target: str) -> Resources:
    """Compile one case for one of `TARGETS`, always anew, and read its binary.

    Raises what Triton or its assembler raises, ValueError for an unknown target, and RuntimeError in a process that
    interprets kernels.
    """
    _known([target])
    kernel, grid, args, options = case.launch
    if not isinstance(kernel, JITFunction):
        raise RuntimeError(
            f"kernel {_name(case.launch)} must be a compiled one, but this process interprets kernels: "
            "TRITON_INTERPRET is set. `table` compiles in processes of its own"
        )
    options = for_warps_of(TARGETS[target].warp_size, options)
    printed = io.StringIO()  # the assembler's log; where it fails, also the whole program
    with _pretending(TARGETS[target]), knobs.compilation.scope(), knobs.nvidia.scope():
        knobs.compilation.always_compile = True
        knobs.nvidia.dump_ptxas_log = True
        with contextlib.redirect_stdout(printed):
            compiled = kernel.warmup(*args, grid=grid, **options)
    if TARGETS[target].backend == "cuda":
        return _nvidia(case, target, compiled, printed.getvalue())
    return _amd(case, target, compiled)


def _nvidia(case: Case, target: str, compiled: Any, log: str) -> Resources:
    def numbers(pattern: str) -> list[int]:
        return [int(number) for number in re.findall(pattern, log)]

    registers = max(numbers(r"Used (\d+) registers"), default=0)
    if not registers:
        raise RuntimeError(f"the assembler must log the registers of {case.id} for {target}, and logged {log!r}")
    columns = compiled.metadata.tmem_size or 0
    operations = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", _disassembled(compiled))
    shared, warps = compiled.metadata.shared, compiled.metadata.num_warps
    return Resources(
        registers=registers,
        spill_bytes=sum(numbers(r"(\d+) bytes spill (?:stores|loads)")),
        stack_bytes=sum(numbers(r"(\d+) bytes stack frame")),
        shared_bytes=shared,
        tensor_memory_columns=columns,
        warps=warps,
        occupancy=occupancy(target, warps, shared, nvidia_warps(registers), columns),
        instructions=sum(operation != "NOP" for operation in operations),
        tensor_core_instructions=sum(bool(re.match(r"[A-Z]G?MMA|UTC[A-Z]*MMA", it)) for it in operations),
        widest_load_bits=max((_nvidia_bits(it) for it in operations if it.startswith("LDG")), default=0),
        **_dots(case, target, compiled),
    )


def _disassembled(compiled: Any) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [knobs.nvidia.nvdisasm.path, "--print-code", "--no-dataflow", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _nvidia_bits(operation: str) -> int:
    """LDG.E.128 loads 128 bits, LDG.E.U16 16, and LDG.E 32."""
    widths = {"256": 256, "128": 128, "64": 64, "U16": 16, "S16": 16, "U8": 8, "S8": 8}
    return next((widths[part] for part in operation.split(".") if part in widths), 32)


def _amd(case: Case, target: str, compiled: Any) -> Resources:
    text = compiled.asm["amdgcn"]

    def number(pattern: str) -> int:
        found = re.search(pattern, text)
        if found is None:
            raise RuntimeError(f"the assembly of {case.id} for {target} must hold {pattern!r}, and does not")
        return int(found[1])

    operations = re.findall(r"^\t([a-z]\w+)", text, re.MULTILINE)
    loads = re.findall(r"^\t(?:global|buffer|flat)_load_(?:lds_)?[us]?(dword|short|byte)(?:x(\d))?", text, re.MULTILINE)
    shared, warps = compiled.metadata.shared, compiled.metadata.num_warps
    waves = 4 * number(r"; Occupancy: (\d+)")  # LLVM counts those of one SIMD unit, of which there are four
    return Resources(
        registers=number(r"\.vgpr_count:\s*(\d+)"),
        spill_bytes=4 * number(r"\.vgpr_spill_count:\s*(\d+)"),  # a scalar register spills into a lane of a vector one
        stack_bytes=number(r"\.private_segment_fixed_size:\s*(\d+)"),
        shared_bytes=shared,
        tensor_memory_columns=0,
        warps=warps,
        occupancy=occupancy(target, warps, shared, waves),
        instructions=len(operations),
        tensor_core_instructions=sum(bool(re.match("v_s?mfmac?_", it)) for it in operations),
        widest_load_bits=max(({"dword": 32, "short": 16, "byte": 8}[it] * int(n or 1) for it, n in loads), default=0),
        **_dots(case, target, compiled),
    )


def _dots(case: Case, target: str, compiled: Any) -> dict[str, Any]:
    """What the dots of the kernel ask for, read in Triton's own language before the target changes them."""
    pattern = r"tt\.dot (.*?): tensor<([\dx]+)x(\w+)> \* tensor<([\dx]+)x\w+>"
    ieee, meant = [], case.tensor_cores
    for operands, left, dtype, right in re.findall(pattern, compiled.asm["ttir"]):
        is_ieee = dtype == "f32" and "inputPrecision" not in operands  # Triton does not write its default
        if is_ieee:
            *outer, k = left.split("x")  # batch, M, K times batch, K, N
            ieee.append("x".join([*outer, right.split("x")[-1], k]))
        meant = meant or (dtype != "f64" and not (is_ieee and TARGETS[target].backend == "cuda"))
    return {"tensor_cores_meant": meant, "largest_ieee_dot": max(ieee, key=_multiplications, default="")}


def _multiplications(dot: str) -> int:
    return math.prod(map(int, dot.split("x"))) if dot else 0


def nvidia_warps(registers: int) -> int:
    """The warps a multiprocessor has registers for: each of its four partitions gives out 16,384, by 256 a warp."""
    return 4 * (16384 // _up(registers * 32, 256))


def occupancy(target: str, warps: int, shared: int, warps_by_registers: int, tensor_memory_columns: int = 0) -> float:
    """Resident warps over the most `target` can hold, for blocks of `warps` warps and `shared` bytes. An upper bound.

    0.0 means that not even one block fits.
    """
    limits = LIMITS[target]
    if shared > limits.block_shared_bytes:
        return 0.0
    # a single wavefront needs none of AMD's barriers
    blocks = limits.warps if TARGETS[target].backend == "hip" and warps == 1 else limits.blocks
    blocks = min(blocks, limits.warps // warps, warps_by_registers // warps)
    if taken := _up(shared + limits.reserved_bytes, limits.shared_unit):
        blocks = min(blocks, limits.shared_bytes // taken)
    if tensor_memory_columns:
        blocks = min(blocks, _TENSOR_MEMORY_COLUMNS // tensor_memory_columns)
    return blocks * warps / limits.warps


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


# ---------------------------------------------------------------- many cases, in worker processes


def table(
    cases: Iterable[Case], targets: Iterable[str] = tuple(TARGETS), processes: int = 2, limit_s: float = 300
) -> dict[str, Resources | str]:
    """Compile every case for every target in worker processes; keys are KERNEL.OPERATION.TARGET.

    A case that does not compile, ends its worker or takes longer than `limit_s` seconds has a sentence in place of its
    resources. Kernels are found by the name of their module, so they must be importable. Raises ValueError for an
    unknown target and for two cases of one name.
    """
    targets = _known(targets)
    jobs: deque[tuple[str, bytes]] = deque()
    for case in cases:
        packed = _packed(case)
        jobs.extend((f"{case.id}.{target}", pickle.dumps((packed, target))) for target in targets)
    if len(names := {key for key, _ in jobs}) < len(jobs):
        twice = sorted(key for key in names if sum(key == other for other, _ in jobs) > 1)
        raise ValueError(f"cases must have names of their own, got {', '.join(twice)} more than once")

    found: dict[str, Resources | str] = {}
    with tempfile.TemporaryDirectory(prefix="triton-aot-") as folder:
        environment = {"TRITON_CACHE_DIR": folder} | os.environ
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        environment.pop("TRITON_INTERPRET", None)

        def serve(_: int) -> None:
            with contextlib.ExitStack() as stack:
                worker = None
                while True:
                    try:
                        key, job = jobs.popleft()
                    except IndexError:
                        return
                    if worker is None or not worker.alive():
                        worker = stack.enter_context(_Worker(environment))
                    found[key] = worker.compile(job, limit_s)

        with ThreadPoolExecutor(processes) as pool:
            try:
                list(pool.map(serve, range(processes)))
            finally:
                jobs.clear()  # whoever interrupts waits for no more than what is being compiled
    return dict(sorted(found.items()))


def _known(targets: Iterable[str]) -> list[str]:
    targets = list(targets)
    if unknown := set(targets) - set(TARGETS):
        raise ValueError(f"targets must be among {', '.join(TARGETS)}, got {', '.join(sorted(unknown))}")
    return targets


class _Worker:
    """A process that compiles one case after another, and may die of one."""

    def __init__(self, environment: dict[str, str]):
        self.log = tempfile.TemporaryFile()  # compilers write there what their exceptions do not say
        code = "from attnlab_kernels.testing import aot; aot._work()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=environment,
        )

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate()
        self.log.close()

    def alive(self) -> bool:
        return self.process.poll() is None

    def compile(self, job: bytes, limit_s: float) -> Resources | str:
        start = self.log.seek(0, os.SEEK_END)
        late = threading.Timer(limit_s, self.process.kill)
        late.start()
        line = b""
        with contextlib.suppress(BrokenPipeError):
            _pipe(self.process.stdin).write(job)
            _pipe(self.process.stdin).flush()
            line = _pipe(self.process.stdout).readline()
        in_time = late.is_alive()
        late.cancel()
        if line and "resources" in (answer := json.loads(line)):
            return Resources(**answer["resources"])
        if line:
            sentence = answer["error"]
        elif in_time:
            sentence = f"the compiling process ended with status {self.process.wait()}"
        else:
            self.process.wait()
            sentence = f"not compiled within {limit_s:g} s"
        self.log.seek(start)
        said = self.log.read().decode(errors="replace")
        cause = re.search(r"^.*(?:Assertion|error:|LLVM ERROR|Error:).*$", said, re.MULTILINE)
        return f"{sentence}; {_squeezed(cause[0])}" if cause else sentence


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _work() -> None:
    """What a worker does: a case from standard input, its resources or its error to standard output, and so on."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a compiler that prints must not answer
    while True:
        try:
            packed, target = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: dict[str, Any] = {"resources": compile_case(pickle.loads(packed), target)._asdict()}
        except Exception as error:
            answer = {"error": _sentence(error)}
        print(json.dumps(answer), file=answers, flush=True)


def _sentence(error: BaseException) -> str:
    while isinstance(error.__cause__, CompilationError):
        error = error.__cause__
    text = _squeezed(str(error).split("Repro command:")[0])
    # Triton shows the source and then says what is wrong; an assembler says it first.
    text = text[-300:] if isinstance(error, CompilationError) else text[:300]
    return f"{type(error).__name__}: {text}"


def _squeezed(text: str) -> str:
    return " ".join(text.split())


class _Pickler(pickle.Pickler):
    """Kernels go by name, tensors by type, size and alignment: all that a compiler looks at."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor):
            size, over = obj.untyped_storage().nbytes(), obj.data_ptr() % 16 // obj.itemsize
            return _tensor, (str(obj.dtype).removeprefix("torch."), size, over)
        if hasattr(obj, "fn") and hasattr(obj, "arg_names"):  # @triton.jit, compiled or interpreted
            return _kernel, (obj.fn.__module__, obj.fn.__qualname__)
        return NotImplemented


def _packed(case: Case) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer).dump(case)
    return buffer.getvalue()


def _tensor(dtype: str, size: int, offset: int) -> torch.Tensor:
    kind = getattr(torch, dtype)
    return torch.empty(size // kind.itemsize, dtype=kind, device="meta")[offset:]


def _kernel(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


# ---------------------------------------------------------------- the budget


def read_budget(path: Path = BUDGET) -> dict[str, dict[str, Any]]:
    """The entries of a budget file; none where there is no file yet."""
    return json.loads(path.read_text()) if path.exists() else {}


def write_budget(entries: Mapping[str, Mapping[str, Any]], path: Path = BUDGET) -> None:
    """Write entries sorted, one a line, so that a change reads well in a diff."""
    lines = (f"{json.dumps(key)}: {json.dumps(entries[key])}" for key in sorted(entries))
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def check(table: Mapping[str, Resources | str], budget: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is wrong with a table, as sentences: limits that always hold, and every difference from the budget."""
    wrong = []
    for key in sorted(set(table) | set(budget)):
        if key not in table:
            wrong.append(f"{key}: stands in the budget, but is compiled no more")
            continue
        got = table[key]
        if isinstance(got, str):
            wrong.append(f"{key}: does not compile: {got}")
            continue
        wrong.extend(f"{key}: {sentence}" for sentence in _over_limits(got, key.rsplit(".", 1)[-1]))
        if key not in budget:
            wrong.append(f"{key}: stands not in the budget")
            continue
        mine, theirs = got._asdict(), budget[key]
        for field in (*mine, *sorted(set(theirs) - set(mine))):
            if not (field in mine and field in theirs and mine[field] == theirs[field]):  # NaN equals nothing
                have, want = (str(of.get(field, "missing")) for of in (mine, theirs))
                wrong.append(f"{key}: {field} is {have}, and {want} in the budget")
    return wrong


def _over_limits(got: Resources, target: str) -> Iterator[str]:
    limit = LIMITS[target].block_shared_bytes
    if not got.spill_bytes == 0:
        yield f"spills {got.spill_bytes} bytes a thread, none are allowed"
    if not got.shared_bytes <= limit:
        yield f"needs {got.shared_bytes} bytes of shared memory, {target} has {limit} for a block"
    if not got.tensor_memory_columns <= _TENSOR_MEMORY_COLUMNS:
        yield f"needs {got.tensor_memory_columns} columns of tensor memory, there are {_TENSOR_MEMORY_COLUMNS}"
    if got.shared_bytes <= limit and not got.occupancy > 0:
        yield "not even one block fits on a multiprocessor"
    if got.tensor_cores_meant and not got.tensor_core_instructions > 0:
        yield "is meant for tensor cores, but has no instruction for them"
    # AMD's matrix cores take float32 as it is.
    if TARGETS[target].backend == "cuda" and _multiplications(got.largest_ieee_dot) > LARGEST_IEEE_DOT:
        yield f"has a float32 dot of {got.largest_ieee_dot} in ieee precision, 64x64x32 is the largest allowed"


# ---------------------------------------------------------------- the command


def main(arguments: list[str] | None = None) -> int:
    """Print the table and what is wrong with it; 1 if anything is."""
    parser = argparse.ArgumentParser(prog="python -m attnlab_kernels.testing.aot", description=main.__doc__)
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), choices=list(TARGETS), metavar="TARGET")
    parser.add_argument("--update", action="store_true", help="rewrite budget.json for these targets")
    parser.add_argument("--json", action="store_true", help="print the table and the sentences as JSON")
    options = parser.parse_args(arguments)

    operations = importlib.import_module("attnlab_kernels.testing.operations")
    found = table(collect(operations.compiled()), options.targets)
    budget = read_budget(BUDGET)
    if options.update:
        budget = {key: entry for key, entry in budget.items() if key.rsplit(".", 1)[-1] not in options.targets}
        budget |= {key: got._asdict() for key, got in found.items() if isinstance(got, Resources)}
        write_budget(budget, BUDGET)
    wrong = check(found, {key: entry for key, entry in budget.items() if key.rsplit(".", 1)[-1] in options.targets})
    if options.json:
        entries = {key: got._asdict() if isinstance(got, Resources) else got for key, got in found.items()}
        print(json.dumps({"table": entries, "wrong": wrong}, indent=1))
    else:
        print(as_text(found))
        print("\n".join(wrong) if wrong else "As in the budget.")
    return int(bool(wrong))


def as_text(table: Mapping[str, Resources | str]) -> str:
    """The table as text, one line an entry."""
    width = max(map(len, table), default=0)
    head = f"{'':{width}}  registers  spilled  shared  warps  occupancy  instructions  tensor-core  widest load"
    lines = [
        f"{key:{width}}  {got}"
        if isinstance(got, str)
        else f"{key:{width}}  {got.registers:9}  {got.spill_bytes:7}  {got.shared_bytes:6}  {got.warps:5}"
        f"  {got.occupancy:9.0%}  {got.instructions:12}  {got.tensor_core_instructions:11}  {got.widest_load_bits:11}"
        for key, got in table.items()
    ]
    return "\n".join([head, *lines])


if __name__ == "__main__":
    # by its own name, which workers know: what runs as __main__ cannot be pickled for them
    sys.exit(importlib.import_module("attnlab_kernels.testing.aot").main())
