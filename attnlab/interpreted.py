"""Triton kernels where there is no GPU: a room's `attention`, interpreted in a process of its own, and the table of
what its kernels compile to.

Triton decides when it is imported whether it compiles or interprets, so no process does both, and this one is left as
it is. Only verification comes here: impl="triton" asked for by name still needs a GPU, or raises.

    python -m attnlab.interpreted      answers one call: an .npz on standard input, an .npz on standard output
"""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from attnlab import backend
from attnlab.arrays import Array, as_numpy

__all__ = [
    "DEVICE",
    "EVIDENCE",
    "LARGEST",
    "LIMIT_S",
    "TRITON",
    "Failed",
    "Run",
    "compiled",
    "evidence",
    "no_table",
]

DEVICE = "CPU, interpreted"  # what `backend.device` says in a process that interprets
EVIDENCE = "compiled, resource-checked and interpreted; not run on a GPU"
LARGEST = 2**16  # numbers in all arguments together: the largest dials of a panel stay below, and take seconds
LIMIT_S = 60.0  # for one call, the start of its process included
TRITON = "3.7.1"  # the version whose machine code testing/budget.json describes, the one that constraints.txt pins
NUMBERS = "biufc"  # NumPy's kinds of them: other arrays would be pickled
# Bytes of shared memory that a block may take, by target. testing/aot.py has them too, but importing it imports Triton.
SHARED_LIMITS = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024, "gfx942": 64 * 1024}


class Failed(RuntimeError):
    """The kernel, or the process that interpreted it, ended without a result; the text is the whole reason."""


# -- one call ---------------------------------------------------------------------------------------------------------


class Run:
    """A call of `attention` that is being interpreted: it starts at once, in a process of its own.

    `arguments` are arrays, numbers, flags and words, by name, and records of such that the mechanism's params.py
    defines, as a Rope is. Whoever is busy elsewhere asks `busy` now and then; `answer` waits. Nothing stays on the
    disk, and a process that is not waited for ends by itself.
    """

    def __init__(self, impl: str, mechanism: str, arguments: dict[str, Any]) -> None:
        self.limit_s = LIMIT_S
        self.end = time.monotonic() + self.limit_s
        self.files = contextlib.ExitStack()
        self.process: subprocess.Popen[bytes] | None = None
        self.refusal: Exception | None = None
        arguments, records = _taken_apart(mechanism, arguments)
        if sentence := _unfit(arguments):
            self.refusal = backend.Unsupported(sentence)
            return
        arrays = {name: np.asarray(x) for name, x in arguments.items() if _is_array(x)}
        plain = {name: x for name, x in arguments.items() if name not in arrays}
        told = {"impl": impl, "mechanism": mechanism, "limit_s": self.limit_s}
        words = {**told, "arguments": plain, "records": records}
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        try:
            question, self.said, self.log = (self.files.enter_context(tempfile.TemporaryFile()) for _ in range(3))
            _write(question, words, arrays)
            question.seek(0)
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "attnlab.interpreted"],
                stdin=question,
                stdout=self.said,
                stderr=self.log,
                env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": path},
            )
        except OSError as error:
            self.stop()
            self.refusal = backend.Unavailable(f"no process could be started to interpret this kernel: {error}.")

    def busy(self) -> bool:
        """Whether `answer` would have to wait."""
        return self.process is not None and self.process.poll() is None and time.monotonic() < self.end

    def answer(self) -> Array:
        """The array that `attention` returned; waits for it.

        Raises Unsupported for arguments that the room does not cover or that are no teaching size, Unavailable where
        nothing can be interpreted here or the time is over, and Failed.
        """
        if self.refusal is not None:
            raise self.refusal
        assert self.process is not None
        try:
            status = self.process.wait(max(0.0, self.end - time.monotonic()))
            self.said.seek(0)
            said, log = self.said.read(), self._last_line()
        except subprocess.TimeoutExpired:
            raise backend.Unavailable(
                f"interpreting this kernel took longer than {self.limit_s:g} s and was ended; smaller sizes take less."
            ) from None
        finally:
            self.stop()
        if status or not said:
            raise Failed(f"the interpreting process ended with status {status}: {log or 'it said nothing'}")
        words, arrays = _read(io.BytesIO(said))
        if "absent" in words:
            raise backend.Unavailable(words["absent"])
        if "refused" in words:
            raise backend.Unsupported(words["refused"])
        if "failed" in words:
            raise Failed(words["failed"])
        return arrays["got"]

    def stop(self) -> None:
        """End the process if it still runs. May be called again."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.files.close()

    def _last_line(self) -> str:
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""


def _is_array(x: Any) -> bool:
    return isinstance(x, np.ndarray | np.generic) and x.dtype.kind in NUMBERS


def _taken_apart(mechanism: str, arguments: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The same with the fields of each record as arguments of their own, name.field; and which records these were."""
    parts: dict[str, Any] = {}
    records = {}
    for name, x in arguments.items():
        if type(x).__module__ == f"attnlab.{mechanism}.params" and hasattr(x, "_fields"):
            records[name] = type(x).__name__
            parts |= {f"{name}.{field}": value for field, value in zip(x._fields, x, strict=True)}
        else:
            parts[name] = x
    return parts, records


def _put_together(mechanism: str, parts: dict[str, Any], records: dict[str, str]) -> dict[str, Any]:
    """What `_taken_apart` took apart."""
    whole = {name: x for name, x in parts.items() if "." not in name}
    if records:
        params = importlib.import_module(f"attnlab.{mechanism}.params")
        for name, kind in records.items():
            record = getattr(params, kind)
            whole[name] = record(*(parts[f"{name}.{field}"] for field in record._fields))
    return whole


def _unfit(arguments: dict[str, Any]) -> str:
    """Why these arguments are not interpreted, or nothing."""
    for name, x in arguments.items():
        if not (_is_array(x) or isinstance(x, bool | int | float | str | None)):
            return f"interpreting takes arrays, numbers and words, got {name} of type {type(x).__name__}."
    count = sum(x.size for x in arguments.values() if isinstance(x, np.ndarray))
    if count > LARGEST:
        return f"interpreting is for teaching sizes: at most {LARGEST:,} numbers in all arguments, got {count:,}."
    return ""


def _write(file: Any, words: dict[str, Any], arrays: dict[str, Array]) -> None:
    entries: dict[str, Any] = {f"array.{name}": x for name, x in arrays.items()}
    np.savez(file, words=np.array(json.dumps(words)), **entries)


def _read(file: Any) -> tuple[dict[str, Any], dict[str, Array]]:
    with np.load(file, allow_pickle=False) as held:
        words = json.loads(str(held["words"]))
        return words, {name.removeprefix("array."): held[name] for name in held.files if name != "words"}


def main() -> None:
    """Answer one call. Words come back with the result, or instead of it: why there is none."""
    with os.fdopen(os.dup(1), "wb") as answer:
        os.dup2(2, 1)  # a kernel that prints must not answer
        words, arrays = _read(sys.stdin.buffer)
        if hasattr(signal, "alarm"):  # whoever asked may be gone
            signal.alarm(math.ceil(words["limit_s"]))
        parts = words["arguments"] | {name: x if x.ndim else x.item() for name, x in arrays.items()}
        arguments = _put_together(words["mechanism"], parts, words["records"])
        _write(answer, *_answered(words["impl"], words["mechanism"], arguments))


def _answered(impl: str, mechanism: str, arguments: dict[str, Any]) -> tuple[dict[str, str], dict[str, Array]]:
    try:
        from attnlab_kernels.testing import interpreter

        interpreter.install()
    except Exception as error:
        return {"absent": f"it cannot be interpreted here: {type(error).__name__}: {error}"}, {}
    try:
        got = as_numpy(backend.load(impl, mechanism).attention(**arguments))
        if not _is_array(got):
            raise TypeError(f"attention must return an array of numbers, got {got.dtype}")
    except backend.Unavailable as reason:
        return {"absent": str(reason)}, {}
    except backend.Unsupported as refusal:
        return {"refused": str(refusal)}, {}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}, {}
    return {}, {"got": got}


# -- what the kernels compile to --------------------------------------------------------------------------------------


def compiled() -> list[dict[str, Any]]:
    """The compile table in short, one record a target; [] where there is none for the Triton that is installed.

    compiled                      how many binaries: each kernel in every type and configuration
    kernels                       how many kernels these are
    registers, spilled_bytes      the most that a thread takes of any of them
    shared_kb, shared_limit_kb    the most that a block takes of any of them, and what the target has for one
    occupancy_percent             the least of any of them: resident warps over the most there can be

    The tests compile everything anew and compare it with this table exactly.
    """
    path = _budget()
    if _triton() != TRITON or path is None:
        return []
    budget = json.loads(path.read_text(encoding="utf-8"))
    rows = []
    for target, limit in SHARED_LIMITS.items():
        entries = {key: entry for key, entry in budget.items() if key.endswith(f".{target}")}
        if entries:
            rows.append(
                {
                    "target": target,
                    "compiled": len(entries),
                    "kernels": len({key.split(".")[0] for key in entries}),
                    "registers": max(entry["registers"] for entry in entries.values()),
                    "spilled_bytes": max(entry["spill_bytes"] for entry in entries.values()),
                    "shared_kb": round(max(entry["shared_bytes"] for entry in entries.values()) / 1024, 1),
                    "shared_limit_kb": limit // 1024,
                    "occupancy_percent": round(100 * min(entry["occupancy"] for entry in entries.values()), 1),
                }
            )
    return rows


def evidence() -> str:
    """What an interpreted kernel that has answered stands for, in one sentence."""
    return EVIDENCE if compiled() else f"interpreted; {no_table()}"


def no_table() -> str:
    """What stands in place of `EVIDENCE` where `compiled` is empty."""
    return f"no compile table for triton {_triton()}; not run on a GPU"


def _budget() -> Path | None:
    """The numbers of `attnlab_kernels.testing.aot`, without its import, which would settle what Triton does here."""
    spec = importlib.util.find_spec("attnlab_kernels") if backend.found("attnlab_kernels") else None
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).with_name("testing") / "budget.json"
    return path if path.is_file() else None


def _triton() -> str | None:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
