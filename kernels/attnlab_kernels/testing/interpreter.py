"""Triton's interpreter, made to round as a GPU does, and a tracer of what a kernel reads, writes and multiplies.

The interpreter runs a kernel in NumPy, one program after another, on a CPU. It serves a process in which
TRITON_INTERPRET=1 stood in the environment before `import triton`; in any other process this module can be imported,
and `install` and `traced` refuse with a sentence.

The shim (`install`)
    bfloat16     The stock interpreter computes on the bits of bfloat16 numbers as if they were integers. Here each
                 operation widens them to float32, computes there, and rounds once, to nearest even, as torch does.
                 `tl.sum` rounds once at its end; a reduction or scan with a combine function of its own rounds after
                 each step, as a GPU does (in an order that a GPU does not promise).
    dots         bfloat16 and float16 products are exact and summed in float32. A float32 dot of precision "tf32" rounds
                 its operands to 10 mantissa bits, to nearest, ties away from zero, so that the error of tensor cores
                 is seen here. Not seen: the order in which tensor cores add, and their shorter accumulators.
    NaN          `tl.minimum`, `tl.maximum` and `tl.clamp` drop it unless they are told to propagate it, as a GPU does.
    warnings     NumPy's, about overflow and invalid values, are silent within a launch and only there.
    speed        `triton.language` is patched once a launch for each module with device functions, not at each of their
                 calls; integer overflow checks, whose outcome the stock interpreter throws away, are left out. No
                 result depends on either.

The tracer (`traced`)
    requests     Each load, store and atomic counts bytes for each lane that is not masked off, whether or not another
                 lane or program asked for the same address: what is requested, not what a cache lets through to DRAM.
    attribution  A request goes to the argument that its pointers were computed from. Where a kernel made them in other
                 ways, from integers or by a choice between two arguments, it goes to the storage that holds the
                 address, and there to the argument nearest to it. A byte is compulsory once for loads, once for stores
                 and once for atomics; where arguments share a storage, under the one that asked for it first.
    bounds       An address outside the storage of its argument is out of bounds, though another argument may lie there:
                 it is recorded and not touched. A load gets its `other` there, or zero; a store or atomic does nothing.
                 An address outside a view but inside its storage counts as in bounds.
    races        Two programs of one launch access an address, at least one of them stores or is atomic, and not both
                 are atomic. The order in which the interpreter runs programs does not hide it. A spin lock's protected
                 plain accesses are reported too.

Everything that is private to Triton's interpreter is touched in this module only. It is written for the pinned version,
and fails at `install` where a name is missing.
"""

import contextlib
import copy
import dataclasses
import math
import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import triton.language as tl
import triton.runtime.interpreter as upstream
from triton.runtime.interpreter import TensorHandle

__all__ = [
    "Access",
    "KernelTrace",
    "OutOfBounds",
    "Race",
    "Record",
    "TensorTrace",
    "install",
    "interpreting",
    "round_to_bf16",
    "round_to_tf32",
    "traced",
    "widen_bf16",
]

SECTOR = 32  # bytes that a GPU's memory moves at least
LIMIT = 2**32 - 1  # more programs than a launch has
CONFLICTS = {"load": ("store", "atomic"), "store": ("load", "store", "atomic"), "atomic": ("load", "store")}
LISTED = 10  # faults that `Record.check` writes out


def interpreting() -> bool:
    """Whether TRITON_INTERPRET was set when triton was imported, so that kernels run in this process."""
    return isinstance(tl.standard.sum, upstream.InterpretedFunction)


# -- rounding ---------------------------------------------------------------------------------------------------------


def widen_bf16(bits: np.ndarray) -> np.ndarray:
    """float32 values, exact, of bfloat16 numbers given as uint16 bits. Any shape."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def round_to_bf16(values: np.ndarray, *, toward_zero: bool = False) -> np.ndarray:
    """uint16 bits of the bfloat16 numbers nearest to float32 values, ties to even; or the next ones toward zero.

    Infinities stay, a NaN becomes the quiet NaN 0x7FC0. Any shape.
    """
    bits = np.asarray(values, np.float32).view(np.uint32)
    up = 0 if toward_zero else 0x7FFF + ((bits >> 16) & 1)
    return np.where(np.isnan(values), np.uint16(0x7FC0), ((bits + up) >> 16).astype(np.uint16))


def round_to_tf32(values: np.ndarray) -> np.ndarray:
    """float32 values rounded to the 10 mantissa bits of tf32, to nearest, ties away from zero. Any shape.

    As PTX's `cvt.rna.tf32.f32`. Infinities and NaN stay.
    """
    bits = np.asarray(values, np.float32).view(np.uint32)
    rounded = ((bits + 0x1000) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(values), rounded, values)


# -- the shim ---------------------------------------------------------------------------------------------------------

FLOAT_OPERATIONS = (
    *("fadd", "fsub", "fmul", "fdiv", "frem", "precise_divf", "fma"),
    *("exp", "exp2", "log", "log2", "sqrt", "precise_sqrt", "rsqrt", "sin", "cos", "erf", "floor", "ceil", "fabs"),
    *("minimumf", "minnumf", "maximumf", "maxnumf", "clampf"),
    *(f"fcmp{order}{relation}" for order in "OU" for relation in ("LT", "LE", "GT", "GE", "EQ", "NE")),
)


@dataclasses.dataclass
class _Now:
    """What holds at the moment in this process."""

    installed: bool = False
    tf32: bool = True
    record: "Record | None" = None  # the trace that is open
    launch: "_Launch | None" = None  # the traced launch that runs
    prepared: set[int] | None = None  # the namespaces of the kernel that runs and of the functions that it has called


_now = _Now()


def install(*, tf32: bool = True) -> None:
    """Make the interpreter of this process round as a GPU does; with `tf32` False, float32 dots stay exact.

    May be called again: nothing is done twice, and the last `tf32` holds. Raises RuntimeError in a process that does
    not interpret.
    """
    _demand_interpreter()
    _now.tf32 = tf32
    if _now.installed:
        return
    builder = upstream.InterpreterBuilder
    builder.get_bf16, builder.create_minnumf, builder.create_maxnumf = _bf16_constant, _minimum, _maximum
    _replace(builder, "create_clampf", _clamp)
    for name in FLOAT_OPERATIONS:  # after those above, which compute in float32
        _replace(builder, f"create_{name}", _in_float32)
    _replace(builder, "cast_impl", _cast)
    _replace(builder, "create_fp_to_fp", _cast_with_rounding)
    _replace(builder, "create_dot", _dot)
    _replace(upstream.ReduceOps, "sum", _sum)
    _replace(builder, "create_masked_load", _load)
    _replace(builder, "create_masked_store", _store)
    _replace(builder, "create_atomic_rmw", _atomic)
    _replace(builder, "create_atomic_cas", _compare_and_swap)
    _replace(upstream.GridExecutor, "__call__", _launched)
    _replace(upstream.GridExecutor, "_init_args_hst", _arguments_seen)
    _replace(builder, "set_grid_dim", _grid_seen)
    _replace(builder, "create_bitcast", _recast)
    _replace(builder, "create_select", _chosen)
    _replace(upstream, "_implicit_cvt", _pointer_seen)
    _replace(upstream, "_patch_lang", _patched_once)
    _replace(upstream, "_get_np_dtype", _remembered)
    options = upstream.interpreter_builder.options
    upstream.interpreter_builder.options = dataclasses.replace(options, sanitize_overflow=False)
    _now.installed = True


def _demand_interpreter() -> None:
    if not interpreting():
        raise RuntimeError(
            "this process does not interpret kernels: TRITON_INTERPRET=1 has to be in the environment before triton "
            "is imported."
        )


def _replace(owner: Any, name: str, wrap: Callable) -> None:
    setattr(owner, name, wrap(getattr(owner, name)))


def _is_bf16(x: Any) -> bool:
    return isinstance(x, TensorHandle) and x.dtype.scalar == tl.bfloat16 and x.data.dtype == np.uint16


def _widened(x: Any) -> Any:
    return TensorHandle(widen_bf16(x.data), tl.float32) if _is_bf16(x) else x


def _narrowed(x: TensorHandle) -> TensorHandle:
    return TensorHandle(round_to_bf16(x.data), tl.bfloat16)


def _in_float32(stock: Callable) -> Callable:
    def operation(builder, *operands):
        if not any(map(_is_bf16, operands)):
            return stock(builder, *operands)
        out = stock(builder, *map(_widened, operands))
        return TensorHandle(out.data, tl.int1) if out.data.dtype == np.bool_ else _narrowed(out)

    return operation


def _minimum(builder, a: TensorHandle, b: TensorHandle) -> TensorHandle:
    return builder.binary_op(a, b, np.fmin)


def _maximum(builder, a: TensorHandle, b: TensorHandle) -> TensorHandle:
    return builder.binary_op(a, b, np.fmax)


def _clamp(stock: Callable) -> Callable:
    def clamp(builder, x, low, high, propagate_nan):
        if propagate_nan == upstream._ir.PROPAGATE_NAN.ALL:
            return stock(builder, x, low, high, propagate_nan)
        return _minimum(builder, _maximum(builder, x, low), high)

    return clamp


def _bf16_constant(builder, value: float) -> TensorHandle:
    return TensorHandle(round_to_bf16(np.array([value], np.float32)), tl.bfloat16)


def _cast(stock: Callable) -> Callable:
    def cast(builder, source, target):
        source = _widened(source)
        if target.scalar == tl.bfloat16:
            return TensorHandle(round_to_bf16(source.data.astype(np.float32)), tl.bfloat16)
        return stock(builder, source, target)

    return cast


def _cast_with_rounding(stock: Callable) -> Callable:
    def cast(builder, source, target, rounding):
        if target.scalar == tl.bfloat16 and rounding == upstream._ir.ROUNDING_MODE.RTZ:
            return TensorHandle(round_to_bf16(source.data.astype(np.float32), toward_zero=True), tl.bfloat16)
        return stock(builder, source, target, rounding)

    return cast


def _dot(stock: Callable) -> Callable:
    def dot(builder, a, b, accumulator, precision, *rest):
        if _now.launch is not None:
            _now.launch.trace.dot_flops += 2 * a.data.size * b.data.shape[-1]
        if _now.tf32 and precision == upstream._ir.INPUT_PRECISION.TF32 and a.data.dtype == np.float32:
            a, b = (TensorHandle(round_to_tf32(x.data), tl.float32) for x in (a, b))
        return stock(builder, _widened(a), _widened(b), accumulator, precision, *rest)

    return dot


def _sum(stock: Callable) -> Callable:
    def total(self, x):
        if not _is_bf16(x.handle):
            return stock(self, x)
        out = stock(self, tl.tensor(_widened(x.handle), tl.block_type(tl.float32, x.shape)))
        dtype = tl.block_type(tl.bfloat16, out.shape) if out.type.is_block() else tl.bfloat16
        return tl.tensor(_narrowed(out.handle), dtype)

    return total


def _patched_once(stock: Callable) -> Callable:
    def patch(function):
        if _now.prepared is None:
            return stock(function)
        namespace = id(function.__globals__)  # where the names of triton.language are looked for
        if namespace in _now.prepared:
            return upstream._LangPatchScope()
        _now.prepared.add(namespace)
        return stock(function)

    return patch


def _remembered(stock: Callable) -> Callable:
    known: dict[str, np.dtype] = {}

    def np_dtype(dtype):
        name = dtype.scalar.name
        if name not in known:
            known[name] = stock(dtype)
        return known[name]

    return np_dtype


def _launched(stock: Callable) -> Callable:
    def call(executor, *arguments, **options):
        _now.prepared = set()
        if _now.record is not None:
            _now.launch = _Launch(executor.fn.__name__, _now.record)
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.filterwarnings("ignore", "All-NaN", RuntimeWarning)
                return stock(executor, *arguments, **options)
        finally:
            if _now.launch is not None:
                _now.launch.close()
            _now.prepared = _now.launch = None

    return call


# -- the record -------------------------------------------------------------------------------------------------------


class Access(NamedTuple):
    """One request of one program: the elements it asked for, in lane order, lanes that were masked off left out."""

    program: tuple[int, int, int]
    kind: str  # "load", "store" or "atomic"
    tensor: str
    offsets: np.ndarray  # int64 [lanes]: elements from the tensor's data_ptr


class OutOfBounds(NamedTuple):
    """Lanes of one program that asked, in one kind of request, for addresses outside the storage of one argument."""

    kernel: str
    program: tuple[int, int, int]
    kind: str
    tensor: str | None  # nearest to an address that was not computed from an argument; None where there is none
    offset: int  # of the first such address: elements from the tensor's data_ptr
    lanes: int

    def __str__(self) -> str:
        where = f"at {self.tensor}[{self.offset}]" if self.tensor else "and no tensor anywhere"
        lanes = "1 lane" if self.lanes == 1 else f"{self.lanes} lanes, the first"
        return f"{self.kernel}: program {self.program}: {self.kind} out of bounds, {lanes} {where}"


class Race(NamedTuple):
    """Addresses of one storage that two programs of a launch accessed in two conflicting kinds, with one example."""

    kernel: str
    tensor: str
    kinds: tuple[str, str]  # what the two programs of the example did
    programs: tuple[tuple[int, int, int], tuple[int, int, int]]
    offset: int  # where: elements from the tensor's data_ptr
    addresses: int  # how many, each an element of the smallest type in use

    def __str__(self) -> str:
        one, two = (f"{kind} of program {program}" for kind, program in zip(self.kinds, self.programs, strict=True))
        addresses = "1 such address" if self.addresses == 1 else f"{self.addresses} such addresses"
        return f"{self.kernel}: {one} and {two} race at {self.tensor}[{self.offset}], {addresses}"


@dataclasses.dataclass
class TensorTrace:
    """What one launch asked of one argument. Bytes are counted for each lane; `unique` bytes once in the launch."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    itemsize: int
    load_bytes: int = 0
    store_bytes: int = 0
    atomic_bytes: int = 0
    unique_load_bytes: int = 0
    unique_store_bytes: int = 0
    unique_atomic_bytes: int = 0
    requests: int = 0
    sectors: int = 0  # distinct 32-byte pieces of each request, summed over the requests
    lanes: int = 0
    masked_lanes: int = 0

    def requested_bytes(self) -> int:
        """Bytes of all loads, stores and atomics; an atomic counts once."""
        return self.load_bytes + self.store_bytes + self.atomic_bytes

    def unique_bytes(self) -> int:
        """Bytes that were asked for at least once, counted once for loads, once for stores and once for atomics."""
        return self.unique_load_bytes + self.unique_store_bytes + self.unique_atomic_bytes

    @property
    def sector_efficiency(self) -> float:
        """Requested bytes over the bytes of the sectors they lie in: 1 where each sector is used in full, above 1
        where lanes of a request share an address, NaN without a request.
        """
        return self.requested_bytes() / (SECTOR * self.sectors) if self.sectors else math.nan

    @property
    def masked_share(self) -> float:
        """The part of the lanes that was masked off; NaN without a request."""
        return self.masked_lanes / self.lanes if self.lanes else math.nan

    def as_dict(self) -> dict[str, Any]:
        """All counts and shares as plain values; NaN becomes None."""
        shares = {"sector_efficiency": self.sector_efficiency, "masked_share": self.masked_share}
        return _plain(dataclasses.asdict(self) | shares)


@dataclasses.dataclass
class KernelTrace:
    """One launch: what it asked of each tensor argument, by name, what it multiplied, and its faults."""

    kernel: str
    grid: tuple[int, ...] = ()  # always three numbers; empty where the launch failed before it began
    tensors: dict[str, TensorTrace] = dataclasses.field(default_factory=dict)
    dot_flops: int = 0  # 2 M N K of every tl.dot
    out_of_bounds: list[OutOfBounds] = dataclasses.field(default_factory=list)
    races: list[Race] = dataclasses.field(default_factory=list)
    accesses: list[Access] = dataclasses.field(default_factory=list)  # with keep_accesses only

    def requested_bytes(self) -> int:
        """Bytes of all loads, stores and atomics within bounds."""
        return sum(tensor.requested_bytes() for tensor in self.tensors.values())

    def unique_bytes(self) -> int:
        """The same, each byte once for loads, once for stores and once for atomics: the least this launch can ask."""
        return sum(tensor.unique_bytes() for tensor in self.tensors.values())

    def as_dict(self) -> dict[str, Any]:
        """The launch as plain values that `json.dumps` takes."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return _plain(fields | {"tensors": {name: tensor.as_dict() for name, tensor in self.tensors.items()}})


@dataclasses.dataclass
class Record:
    """The launches of a trace, in order."""

    launches: list[KernelTrace] = dataclasses.field(default_factory=list)
    keep_accesses: bool = False

    def requested_bytes(self) -> int:
        """Bytes that all launches requested."""
        return sum(launch.requested_bytes() for launch in self.launches)

    def ratio(self, *compulsory: torch.Tensor) -> float:
        """Requested bytes over the bytes of these tensors, an operation's inputs and outputs, each counted once: pass a
        tensor twice if the operation both reads and writes it. An expanded dimension counts as one.

        Raises ValueError where the tensors hold no byte.
        """
        least = sum(map(_bytes, compulsory))
        if not least:
            raise ValueError(f"compulsory: wanted tensors that hold at least one byte, got {len(compulsory)} without")
        return self.requested_bytes() / least

    def check(self, *, races: bool = True) -> None:
        """Raises AssertionError with one sentence for each access out of bounds and, unless told not to, each race."""
        faults = [str(fault) for launch in self.launches for fault in launch.out_of_bounds]
        faults += [str(fault) for launch in self.launches if races for fault in launch.races]
        if faults:
            more = [f"and {len(faults) - LISTED} more"] if len(faults) > LISTED else []
            raise AssertionError("\n".join(faults[:LISTED] + more))

    def as_dict(self) -> dict[str, Any]:
        """The record as plain values that `json.dumps` takes."""
        return {"launches": [launch.as_dict() for launch in self.launches]}


@contextlib.contextmanager
def traced(*, keep_accesses: bool = False) -> Iterator[Record]:
    """Record every launch within the block; with `keep_accesses`, each request with its offsets too (for drawing: it
    keeps 8 bytes a lane).

    Installs the shim if that was not done. Results are those without a trace, except that accesses out of bounds are
    kept from memory. Raises RuntimeError in a process that does not interpret, and within another trace.
    """
    _demand_interpreter()
    if _now.record is not None:
        raise RuntimeError("traces do not nest: a trace is open already; its record has this launch too.")
    install(tf32=_now.tf32)
    _now.record = Record(keep_accesses=keep_accesses)
    try:
        yield _now.record
    finally:
        _now.record = None


def _bytes(tensor: torch.Tensor) -> int:
    distinct = (size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return math.prod(distinct) * tensor.element_size() if tensor.numel() else 0


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _plain(x) for key, x in value.items()}
    if hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, (list, tuple)):
        return [_plain(x) for x in value]
    return None if isinstance(value, float) and math.isnan(value) else value


# -- the tracer -------------------------------------------------------------------------------------------------------


def _arguments_seen(stock: Callable) -> Callable:
    def init(executor, arguments, options):
        on_host, named_on_host = stock(executor, arguments, options)
        if _now.launch is not None:
            for name, argument in (dict(zip(executor.arg_names, on_host, strict=False)) | named_on_host).items():
                _now.launch.admit(name, argument)
        return on_host, named_on_host

    return init


def _grid_seen(stock: Callable) -> Callable:
    def set_grid_dim(builder, *sizes):
        sizes = tuple(map(operator.index, sizes))
        if _now.launch is not None:
            _now.launch.trace.grid = sizes
        stock(builder, *sizes)

    return set_grid_dim


def _origin(pointers: TensorHandle) -> "_Argument | None":
    """The argument that pointers were computed from. Arithmetic on a handle keeps its type, and so this mark on it."""
    return getattr(pointers.dtype.scalar, "origin", None)


def _marked(pointers: TensorHandle, origin: "_Argument | None") -> TensorHandle:
    dtype = copy.copy(pointers.dtype.scalar)
    dtype.origin = origin
    return TensorHandle(pointers.data, dtype)


def _pointer_seen(stock: Callable) -> Callable:
    def convert(argument):
        converted = stock(argument)
        if _now.launch is not None and (origin := _now.launch.origins.get(id(argument))) is not None:
            converted.handle = _marked(converted.handle, origin)
        return converted

    return convert


def _recast(stock: Callable) -> Callable:
    def bitcast(builder, source, target):
        out, origin = stock(builder, source, target), _origin(source)
        return _marked(out, origin) if origin is not None and out.dtype.is_ptr() else out

    return bitcast


def _chosen(stock: Callable) -> Callable:
    def select(builder, condition, one, other):
        out = stock(builder, condition, one, other)
        return out if _origin(one) is _origin(other) else _marked(out, None)

    return select


def _load(stock: Callable) -> Callable:
    def load(builder, pointers, mask, *rest, **options):
        if _now.launch is not None:
            mask = _now.launch.request("load", pointers, mask)
        return stock(builder, pointers, mask, *rest, **options)

    return load


def _store(stock: Callable) -> Callable:
    def store(builder, pointers, value, mask, *rest, **options):
        if _now.launch is not None:
            mask = _now.launch.request("store", pointers, mask)
        return stock(builder, pointers, value, mask, *rest, **options)

    return store


def _atomic(stock: Callable) -> Callable:
    def atomic(builder, operation, pointers, value, mask, *rest, **options):
        if _now.launch is not None:
            mask = _now.launch.request("atomic", pointers, mask)
        return stock(builder, operation, pointers, value, mask, *rest, **options)

    return atomic


def _compare_and_swap(stock: Callable) -> Callable:
    def compare_and_swap(builder, pointers, expected, value, *rest, **options):
        if _now.launch is None:
            return stock(builder, pointers, expected, value, *rest, **options)
        within = _now.launch.request("atomic", pointers, np.True_)
        if within is np.True_:
            return stock(builder, pointers, expected, value, *rest, **options)
        found = np.zeros(pointers.data.shape, expected.data.dtype)
        lanes = (TensorHandle(x.data[within.data], x.dtype) for x in (pointers, expected, value))
        found[within.data] = stock(builder, *lanes, *rest, **options).data
        return TensorHandle(found, expected.dtype.scalar)

    return compare_and_swap


class _Argument:
    """A tensor argument: its trace, where it begins and how far it reaches, and the memory it lies in."""

    def __init__(self, trace: TensorTrace, tensor: torch.Tensor, memory: "_Memory") -> None:
        self.trace = trace
        self.memory = memory
        self.start = tensor.data_ptr()
        reach = sum(stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
        self.extent = (reach + 1) * trace.itemsize if tensor.numel() else 0

    def offsets(self, addresses: np.ndarray) -> np.ndarray:
        """Elements from data_ptr, negative before it."""
        return (addresses - np.uint64(self.start)).view(np.int64) // self.trace.itemsize

    def distance(self, address: int) -> int:
        """Bytes from the address to the first or last byte of the tensor."""
        return max(self.start - address, address - (self.start + self.extent - 1), 0)


class _Memory:
    """One storage during one launch: which program asked for each of its pieces first, by kind of access.

    Programs run in order and have falling ranks, LIMIT for the first one; 0 says untouched. An access of a program
    therefore conflicts with an earlier one exactly where the rank that stands there is above its own.
    """

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.start, self.size = storage.data_ptr(), storage.nbytes()
        self.piece = 8  # bytes, or the smallest element that was asked for
        self.first: dict[str, np.ndarray] = {}
        self.raced: dict[frozenset[str], np.ndarray] = {}
        self.examples: dict[frozenset[str], tuple] = {}
        self.tags = np.empty(0, np.int32)

    def holding(self, addresses: np.ndarray, size: int) -> np.ndarray:
        """Which of the elements of `size` bytes at these addresses are in this storage."""
        if self.size < size:
            return np.zeros(addresses.shape, bool)
        return addresses - np.uint64(self.start) <= np.uint64(self.size - size)  # below the start it wraps around

    def sectors(self, addresses: np.ndarray, size: int) -> int:
        """How many sectors elements of `size` bytes at these addresses lie in."""
        places = (addresses - np.uint64(self.start)).view(np.int64) // SECTOR
        return self._distinct(places)

    def touch(self, kind: str, addresses: np.ndarray, size: int, rank: int, argument: _Argument) -> int:
        """Note an access, and the races it is part of; returns the bytes that no access of this kind had touched."""
        places = self._places(addresses, size)
        if kind not in self.first:
            self.first[kind] = np.zeros(-(-self.size // self.piece), np.uint32)
        earlier = {other: ranks[places] for other, ranks in self.first.items() if other in CONFLICTS[kind]}
        untouched = places[self.first[kind][places] == 0]
        self.first[kind][untouched] = rank
        for other, ranks in earlier.items():
            if ranks.max() > rank:
                self._race(kind, other, places, ranks, rank, argument)
        return self._distinct(untouched) * self.piece

    def _race(
        self, kind: str, other: str, places: np.ndarray, ranks: np.ndarray, rank: int, argument: _Argument
    ) -> None:
        pair = frozenset((kind, other))
        if pair not in self.raced:
            self.raced[pair] = np.zeros(len(self.first[kind]), bool)
            lane = int(np.argmax(ranks > rank))
            address = np.array([self.start + int(places[lane]) * self.piece], np.uint64)
            offset = int(argument.offsets(address)[0])
            self.examples[pair] = argument.trace.name, (other, kind), (int(ranks[lane]), rank), offset
        self.raced[pair][places[ranks > rank]] = True

    def _places(self, addresses: np.ndarray, size: int) -> np.ndarray:
        """The pieces of memory that these elements lie in."""
        if size < self.piece:
            self.first = {kind: np.repeat(ranks, self.piece // size) for kind, ranks in self.first.items()}
            self.raced = {pair: np.repeat(flags, self.piece // size) for pair, flags in self.raced.items()}
            self.piece = size
        places = (addresses - np.uint64(self.start)).view(np.int64) // self.piece
        if size == self.piece:
            return places
        return (places[:, None] + np.arange(size // self.piece)).ravel()

    def _distinct(self, places: np.ndarray) -> int:
        """How many different ones there are. The last of equal ones keeps its tag, so that one of each kind finds its
        own again; nothing is sorted.
        """
        if not len(places):
            return 0
        places = places[np.append(places[1:] != places[:-1], True)]
        if len(self.tags) <= (most := self.size // self.piece):
            self.tags = np.empty(most + 1, np.int32)
        tags = np.arange(len(places), dtype=np.int32)
        self.tags[places] = tags
        return int(np.count_nonzero(self.tags[places] == tags))


class _Launch:
    """The launch that runs, and where its requests are counted."""

    def __init__(self, kernel: str, record: Record) -> None:
        self.trace = KernelTrace(kernel)
        self.keep_accesses = record.keep_accesses
        self.memories: dict[tuple[int, int], _Memory] = {}
        self.origins: dict[int, _Argument] = {}  # by the identity of the tensor on the host
        self.outside: dict[tuple, OutOfBounds] = {}
        self.builder = upstream.interpreter_builder
        record.launches.append(self.trace)

    def admit(self, name: str, argument: Any) -> None:
        """Take note of an argument if it is a tensor or a descriptor, or of those in a tuple."""
        if isinstance(argument, tuple):
            for i, part in enumerate(argument):
                self.admit(f"{name}[{i}]", part)
        elif isinstance(argument, upstream.TensorDescriptor):
            self.admit(name, argument.base)
        elif hasattr(argument, "data_ptr"):
            tensor = upstream._unwrap_tensor(argument)
            dtype = str(argument.dtype).removeprefix("torch.")
            trace = self.trace.tensors[name] = TensorTrace(name, dtype, tuple(tensor.shape), tensor.element_size())
            storage = tensor.untyped_storage()
            memory = self.memories.setdefault((storage.data_ptr(), storage.nbytes()), _Memory(storage))
            self.origins[id(argument)] = _Argument(trace, tensor, memory)

    def request(self, kind: str, pointers: TensorHandle, mask: Any) -> Any:
        """Count a request. Returns the mask as it came, or a new one without the lanes that are out of bounds."""
        addresses, origin = pointers.data, _origin(pointers)
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        bits = mask.data if isinstance(mask, TensorHandle) else mask
        wanted = np.broadcast_to(np.asarray(bits, bool), addresses.shape)
        active = addresses.reshape(-1) if wanted.all() else addresses[wanted]
        masked = addresses.size - active.size
        outside = np.ones(active.shape, bool)
        for argument in [origin] if origin is not None else self._near(active):
            inside = outside & argument.memory.holding(active, size)
            if inside.any() or not active.size:
                self._count(kind, argument, active if inside.all() else active[inside], size, masked)
                masked = 0
                outside &= ~inside
        if not outside.any():
            return mask
        self._report(kind, active[outside], origin)
        within = wanted.copy()
        within[wanted] = ~outside
        return TensorHandle(within, tl.int1)

    def close(self) -> None:
        """Hand what was found to the trace."""
        self.trace.out_of_bounds = list(self.outside.values())
        for memory in self.memories.values():
            for pair, (tensor, kinds, ranks, offset) in memory.examples.items():
                first, second = (self._program(LIMIT - rank) for rank in ranks)
                count = int(np.count_nonzero(memory.raced[pair]))
                self.trace.races.append(Race(self.trace.kernel, tensor, kinds, (first, second), offset, count))

    def _near(self, addresses: np.ndarray) -> list[_Argument]:
        """Of each storage, the argument nearest to the first of these addresses; the nearest of all first."""
        if not addresses.size:
            return []
        near: dict[int, _Argument] = {}
        for argument in sorted(self.origins.values(), key=lambda argument: argument.distance(int(addresses[0]))):
            near.setdefault(id(argument.memory), argument)
        return list(near.values())

    def _count(self, kind: str, argument: _Argument, addresses: np.ndarray, size: int, masked: int) -> None:
        trace, memory = argument.trace, argument.memory
        trace.requests += 1
        trace.lanes += len(addresses) + masked
        trace.masked_lanes += masked
        if not len(addresses):
            return
        requested = len(addresses) * size
        unique = memory.touch(kind, addresses, size, self._rank(), argument)
        if kind == "load":
            trace.load_bytes += requested
            trace.unique_load_bytes += unique
        elif kind == "store":
            trace.store_bytes += requested
            trace.unique_store_bytes += unique
        else:
            trace.atomic_bytes += requested
            trace.unique_atomic_bytes += unique
        trace.sectors += memory.sectors(addresses, size)
        if self.keep_accesses:
            offsets = argument.offsets(addresses)
            self.trace.accesses.append(Access(self.builder.grid_idx, kind, trace.name, offsets))

    def _report(self, kind: str, addresses: np.ndarray, origin: _Argument | None) -> None:
        program, argument = self.builder.grid_idx, origin or next(iter(self._near(addresses)), None)
        name, offset = (argument.trace.name, int(argument.offsets(addresses[:1])[0])) if argument else (None, 0)
        known = self.outside.get((program, kind, name))
        offset, lanes = (known.offset, known.lanes) if known else (offset, 0)
        fault = OutOfBounds(self.trace.kernel, program, kind, name, offset, lanes + len(addresses))
        self.outside[program, kind, name] = fault

    def _rank(self) -> int:
        (x, y, z), (_, height, depth) = self.builder.grid_idx, self.trace.grid
        return LIMIT - ((x * height + y) * depth + z)

    def _program(self, number: int) -> tuple[int, int, int]:
        _, height, depth = self.trace.grid
        return number // depth // height, number // depth % height, number % depth
