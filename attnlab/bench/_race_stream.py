"""RACE over any number of tokens: `attnlab bench race --stream 75_000_000`. Generated, attended and forgotten chunk by
chunk through `attnlab.race.streaming`, resumable, with a checksum that shows a resumed run to be the same run.
"""

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import njit, prange

from attnlab import bench, progress
from attnlab.arrays import Array, Float, dial
from attnlab.bench import _memory
from attnlab.bench._tokens import fill
from attnlab.race import draw_planes, streaming

__all__ = ["stream"]

H, K = 4, 128
SHARPNESS = 2.0
SAVE_S = 5.0  # between two states on disk
PEAK_GIB = 2.0
STREAMS = {"q": 0, "k": 1, "v": 2}
STAGES = {"write": ("k", "v"), "read": ("q",), "causal": ("q", "k", "v")}  # what each takes


@dataclass
class Account:
    """What a run has cost and found up to a chunk, over all processes that took part."""

    attention_s: float = 0.0
    generation_s: float = 0.0
    checksum_s: float = 0.0
    cpu_s: float = 0.0
    checksum: float = 0.0  # of all outputs: float64 sums of tokens, of chunks, then one after another
    peak_bytes: int = 0
    resumed: int = 0
    begun: float = field(default_factory=time.process_time)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        setattr(self, part, getattr(self, part) + time.perf_counter() - start)

    def whole_s(self) -> float:
        return self.attention_s + self.generation_s + self.checksum_s

    def told(self) -> dict[str, Any]:
        """Everything, to be saved beside the state."""
        now = time.process_time()
        self.cpu_s, self.begun = self.cpu_s + now - self.begun, now
        self.peak_bytes = max(self.peak_bytes, _memory.peak_bytes() or 0)
        return {name: value for name, value in asdict(self).items() if name != "begun"}


def stream(
    tokens: int,
    *,
    causal: bool = False,
    planes: int = 4,
    tables: int = 4,
    state: str | Path | None = None,
    size: int = streaming.CHUNK,
) -> list[dict[str, Any]]:
    """The rows of one forward run over `tokens` generated tokens: batch 1, 4 heads of width 128, float32.

    `state` is a file that remembers the run every few seconds: a run that finds it goes on there and removes it at its
    end. Raises ValueError where a number is out of its range or the file is of another run, and bench.Interrupted on
    Ctrl-C.
    """
    dial("--stream", tokens, 1, 2**48, integer=True)
    dial("--planes", planes, 1, 8, integer=True)
    dial("--tables", tables, 1, 1024, integer=True)
    run = {"tokens": tokens, "causal": causal, "planes": planes, "tables": tables, "size": size}
    after = streaming.resume(state, **run)
    W = draw_planes(tables, planes, K).astype(np.float32)
    _warm_up(W, causal)
    account = Account(**after.told["account"]) if after else Account()
    account.resumed += after is not None
    buffers = {name: np.empty((min(size, tokens), H * K), np.float32) for name in STREAMS}

    def source(stage: str, span: slice) -> tuple[Array, ...]:
        rows = span.stop - span.start
        with account.timed("generation_s"):
            for name in STAGES[stage]:
                fill(buffers[name][:rows], STREAMS[name], span.start)
        return tuple(buffers[name][:rows].reshape(1, rows, H, K) for name in STAGES[stage])

    steps = streaming.steps(source, tokens, W, SHARPNESS, causal=causal, size=size, after=after)
    last, saved_at = after, time.monotonic()
    try:
        while (step := _next(steps, account)) is not None:
            if step.out is not None:
                with account.timed("checksum_s"):
                    account.checksum += _total(step.out)
            last = streaming.Saved(step.state, {"run": run, "account": account.told(), **step.place()})
            progress.show(_line(last.told, account))
            if state is not None and time.monotonic() - saved_at > SAVE_S:
                streaming.save(state, last.state, **last.told)
                saved_at = time.monotonic()
    except KeyboardInterrupt:
        progress.show("")
        if state is not None and last is not None:
            streaming.save(state, last.state, **last.told)
        raise bench.Interrupted(_how_to_go_on(run, last, state)) from None
    progress.show("")
    if state is not None:
        Path(state).unlink(missing_ok=True)
    return _rows(run, account)


def _next(steps: Iterator[streaming.Step], account: Account) -> streaming.Step | None:
    """The next step, its time less what `source` took put down as attention's."""
    start, generated = time.perf_counter(), account.generation_s
    step = next(steps, None)
    account.attention_s += time.perf_counter() - start - (account.generation_s - generated)
    return step


def _warm_up(W: Float[Array, "L P K"], causal: bool) -> None:
    """Compile everything, outside of the time."""
    x = np.zeros((1, 1, H, K), np.float32)
    fill(x.reshape(1, H * K), 0)
    for step in streaming.steps(lambda stage, span: (x,) * len(STAGES[stage]), 1, W, SHARPNESS, causal=causal):
        if step.out is not None:
            _total(step.out)


def _line(told: dict[str, Any], account: Account) -> str:
    run, done = told["run"], told["done"]
    passes = 1 if run["causal"] else 2  # each of them counts half of a token
    behind = (done + (run["tokens"] if told["stage"] == "read" else 0)) / passes
    speed = behind / account.whole_s()
    left, share = (run["tokens"] - behind) / speed, behind / run["tokens"]
    bar = "█" * round(24 * share) + "░" * (24 - round(24 * share))
    return f"{told['stage']:<6} {bar} {share:6.1%}  {speed:,.0f} tokens/s  {int(left) // 60}:{int(left) % 60:02} left"


def _how_to_go_on(run: dict[str, Any], last: streaming.Saved | None, state: str | Path | None) -> str:
    command = f"attnlab bench race --stream {run['tokens']} --planes {run['planes']} --tables {run['tables']}"
    command += " --causal" if run["causal"] else ""
    if last is None or state is None:
        return f"stopped, and nothing is kept of it; begin again with: {command}"
    where = f"{last.told['stage']} {last.told['done']:,} of {run['tokens']:,} tokens"
    return f"stopped after {where}; go on with: {command} --state {shlex.quote(str(state))}"


def _rows(run: dict[str, Any], account: Account) -> list[dict[str, Any]]:
    told, tokens = account.told(), run["tokens"]
    name = f"race.stream.p{run['planes']}l{run['tables']}.{'causal' if run['causal'] else 'noncausal'}"
    times = "generated in one pass" if run["causal"] else "keys and values, then queries, each generated once"
    note = f"{tokens:,} tokens x {H} heads, width {K}, {times}; {numba.get_num_threads()} threads"
    if account.resumed:
        note += f"; resumed {account.resumed} times"
    parts = {"whole": account.whole_s(), "attention": account.attention_s, "generation": account.generation_s}
    result = [
        bench.row(f"{name}.{part}", [tokens / seconds], "tokens/s", better="higher", note=note if not number else "")
        for number, (part, seconds) in enumerate(parts.items())
    ]
    result.append(bench.row(f"{name}.time", [account.whole_s()], "s", better="lower", cpu=[told["cpu_s"]]))
    peak = f"{name}.peak_resident"
    if told["peak_bytes"]:
        result.append(bench.row(peak, [told["peak_bytes"] / 2**30], "GiB", better="lower", target=PEAK_GIB))
    else:
        result.append(bench.left_out(peak, "GiB", _memory.UNTOLD, better="lower", target=PEAK_GIB))
    same = f"sum of all outputs, {account.checksum!r}: the same for every run of this length on this machine"
    return [*result, bench.row(f"{name}.checksum", [account.checksum], "", better="higher", note=same)]


def _total(out: Float[Array, "1 T H V"]) -> float:
    sums = np.empty(out.shape[1])
    _row_sums(out.reshape(len(sums), -1), sums)
    return float(sums.sum())


@njit(parallel=True, cache=True, fastmath={"reassoc"})
def _row_sums(out, sums):
    for t in prange(out.shape[0]):
        total = 0.0
        for c in range(out.shape[1]):
            total += np.float64(out[t, c])
        sums[t] = total
