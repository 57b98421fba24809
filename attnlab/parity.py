"""Is a fast path the same operator as its reference? The error budget, the comparison and the report that tests,
command line and badge share.

The tolerance is computed, not chosen. The reference is evaluated twice on the same inputs, in float64 and in the fast
path's arithmetic precision; the second one's error is what any honest implementation of that precision may show. A fast
path adds its terms in another order, so rounding comes on top: eps * sqrt(n) for n added terms, the usual growth of
rounding error, with the eps of `backend.ROWS` (tensor cores keep two bits less of a float32). Twice the sum of both is
allowed, for every row by itself and for the whole.

Where an implementation lacks a GPU and nothing else, its kernels are interpreted in a process of their own, and the
report says so: what is compared then are the kernel's numbers, and no time is given.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from attnlab import backend, interpreted
from attnlab.arrays import Array, Float, as_numpy

__all__ = ["FAST", "Comparison", "Report", "begin", "compare", "verify"]

FAST = tuple(name for name in backend.IMPLEMENTATIONS if name != "reference")
SLACK = 2.0  # times (error of the low-precision reference + rounding)
SMALL_ROW = 1e-3  # a row is never judged relative to less than this part of the largest entry


@dataclass(frozen=True)
class Comparison:
    """How far `got` is from the exact result. Errors of a row are relative to its largest entry; `worst_row` is where
    the largest one stands.
    """

    ok: bool
    max_abs: float
    max_rel: float
    overall_rel: float
    tolerance: float
    overall_tolerance: float
    worst_row: tuple[int, ...] | None
    reason: str


@dataclass(frozen=True)
class Report:
    """One implementation on one case: what ran where, how long, how exact; or the sentence why it did not run.

    Of an interpreted kernel `time_ms` is None, `evidence` says what was done in place of a run on a GPU, and `table`
    is `attnlab.interpreted.compiled()`.
    """

    impl: str
    ran: bool
    ok: bool
    why_not: str | None
    max_abs: float | None = None
    max_rel: float | None = None
    tolerance: float | None = None
    time_ms: float | None = None
    device: str | None = None
    reason: str = ""
    evidence: str = ""
    table: tuple[dict[str, Any], ...] = ()

    def record(self) -> dict[str, Any]:
        """For JSON, which has no NaN and no infinity: they become words, which nobody takes for numbers."""
        record = asdict(self)
        return {name: str(x) if isinstance(x, float) and not np.isfinite(x) else x for name, x in record.items()}


def compare(
    got: Any,
    exact: Float[Array, "... V"],
    low: Float[Array, "... V"],
    *,
    terms: int,
    dtype: Any = np.float32,
    out_dtype: Any = None,
) -> Comparison:
    """Hold `got` against `exact` (float64), with `low` the reference in the precision `dtype`, `terms` the number of
    added terms.

    `out_dtype` is the type `got` was rounded to on the way out, where that is coarser than `dtype`; eps of bfloat16 may
    be given as a number. NaN anywhere in `got` fails. Raises ValueError where `exact` or `low` is not finite: there is
    nothing to hold against.
    """
    got = as_numpy(got)
    exact, low = np.asarray(exact, np.float64), np.asarray(low, np.float64)
    if not (np.isfinite(exact).all() and np.isfinite(low).all()):
        raise ValueError("exact and low must be finite, or there is nothing to compare with")
    if np.iscomplexobj(got):
        return Comparison(False, np.nan, np.nan, np.nan, 0.0, 0.0, None, "complex numbers where the reference is real")
    got = got.astype(np.float64)
    if got.shape != exact.shape:
        return Comparison(
            False, np.nan, np.nan, np.nan, 0.0, 0.0, None, f"shape {got.shape} where the reference has {exact.shape}"
        )
    if exact.size == 0:
        return Comparison(True, 0.0, 0.0, 0.0, 0.0, 0.0, None, "empty")
    rounding = _eps(dtype) * np.sqrt(max(terms, 1)) + (0.0 if out_dtype is None else _eps(out_dtype) / 2)

    size = np.abs(exact).max(axis=-1)
    size = np.maximum(size, SMALL_ROW * size.max())
    size = np.where(size > 0, size, 1.0)  # exact is all zeros: errors are absolute then
    row = np.abs(got - exact).max(axis=-1) / size
    tolerance = SLACK * (float((np.abs(low - exact).max(axis=-1) / size).max()) + rounding)

    norm = float(np.linalg.norm(exact)) or 1.0
    overall = float(np.linalg.norm(got - exact)) / norm
    overall_tolerance = SLACK * (float(np.linalg.norm(low - exact)) / norm + rounding)

    rows_ok, overall_ok = bool(np.all(row <= tolerance)), bool(overall <= overall_tolerance)  # NaN fails both
    worst = np.unravel_index(int(np.argmax(np.where(np.isnan(row), np.inf, row))), row.shape) if row.ndim else ()
    max_rel = float(row[worst])
    reason = "" if rows_ok and overall_ok else _reason(got, max_rel, tolerance, overall, overall_tolerance, worst)
    return Comparison(
        rows_ok and overall_ok,
        float(np.abs(got - exact).max()),
        max_rel,
        overall,
        tolerance,
        overall_tolerance,
        tuple(int(i) for i in worst),
        reason,
    )


def begin(mechanism: str, arguments: dict[str, Any], *, impls: Sequence[str] = FAST) -> dict[str, interpreted.Run]:
    """Start to interpret, in processes of their own, what of `impls` lacks a GPU here and nothing else; by name.

    For `verify(..., runs=...)`, by whoever has other things to do until they are no longer busy.
    """
    return {
        impl: interpreted.Run(impl, mechanism, _shared(arguments))
        for impl in impls
        if backend.lacks_only_gpu(impl, mechanism)
    }


def verify(
    mechanism: str,
    arguments: dict[str, Any],
    *,
    terms: int,
    impls: Sequence[str] = FAST,
    runs: Mapping[str, interpreted.Run] | None = None,
) -> list[Report]:
    """Run every fast path of `mechanism` on the same float32 inputs and compare each with the float64 reference.

    `arguments` are those of the mechanism's `attention`, arrays in NumPy; float arrays are rounded to float32 first, so
    that all of them see the same numbers. An implementation that cannot run here, or does not cover these arguments, is
    reported with its sentence and is not ok. `runs` are those that `begin` has started for the same arguments; they are
    started here if not given, and waited for.
    """
    arguments = _shared(arguments)
    runs = begin(mechanism, arguments, impls=impls) if runs is None else runs
    try:
        reference = backend.load("reference", mechanism)
        exact = reference.attention(**arguments)
        low = reference.attention(**arguments, dtype=np.float32)
        return [_report(impl, mechanism, arguments, exact, low, terms, runs.get(impl)) for impl in impls]
    finally:
        for run in runs.values():
            run.stop()


def _shared(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with float arrays rounded to float32, read-only: all implementations are handed the same ones."""
    shared = dict(arguments)
    for name, x in arguments.items():
        if isinstance(x, np.ndarray) and x.dtype.kind == "f":
            shared[name] = x.astype(np.float32)
            shared[name].flags.writeable = False
    return shared


def _report(
    impl: str,
    mechanism: str,
    arguments: dict[str, Any],
    exact: Array,
    low: Array,
    terms: int,
    run: interpreted.Run | None,
) -> Report:
    reason = backend.why_not(impl, mechanism)
    if reason and run is None:
        return Report(impl, ran=False, ok=False, why_not=reason)
    time_ms = None
    try:
        if run is not None:
            got = run.answer()
        else:
            room = backend.load(impl, mechanism)
            room.attention(**arguments)  # the first run may compile; the second one is timed
            start = time.perf_counter()
            got = room.attention(**arguments)
            time_ms = 1e3 * (time.perf_counter() - start)
        seen = compare(got, exact, low, terms=terms, dtype=backend.eps(impl))
    except (backend.Unsupported, backend.Unavailable) as refusal:
        return Report(impl, ran=False, ok=False, why_not=str(refusal))
    except interpreted.Failed as failure:
        return Report(impl, ran=True, ok=False, why_not=None, reason=str(failure))
    except Exception as error:  # a broken implementation fails its own row and does not hide the others
        return Report(impl, ran=True, ok=False, why_not=None, reason=f"{type(error).__name__}: {error}")
    report = Report(
        impl,
        True,
        seen.ok,
        None,
        seen.max_abs,
        seen.max_rel,
        seen.tolerance,
        time_ms,
        backend.device(impl) if run is None else interpreted.DEVICE,
        seen.reason,
    )
    if report.device != interpreted.DEVICE:
        return report
    # an interpreter's time is nobody's speed
    return replace(report, time_ms=None, evidence=interpreted.evidence(), table=tuple(interpreted.compiled()))


def _eps(dtype: Any) -> float:
    return float(dtype) if isinstance(dtype, float) else float(np.finfo(dtype).eps)


def _reason(got: Array, row: float, tolerance: float, overall: float, overall_tolerance: float, worst: tuple) -> str:
    where = [int(i) for i in worst]
    if np.isnan(got).any():
        return f"NaN in the result, first in row {where}"
    if not row <= tolerance:
        return f"row {where} is off by {row:.2e} of its size, allowed are {tolerance:.2e}"
    return f"the whole is off by {overall:.2e} of its norm, allowed are {overall_tolerance:.2e}"
