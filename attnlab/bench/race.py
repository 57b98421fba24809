"""RACE on this CPU against what the machine can do, and beside its peers in the same run.

race.p4l4.forward.of_sgemm         the rate of the forward pass, 4 d (L P + L R) flops a token-head, over that of sgemm
race.p2l2.forward.of_copy          its traffic, 16 d bytes a token-head (read q, k, v, write the output), over a copy's
race.PxLy.causal_over_noncausal    time of the causal forward pass over that of the other
race.p4l4.MASK.both_over_forward   time of forward and backward over that of forward
race.p4l4.two_threads.of_sgemm     what a second thread gains, over what sgemm gains from it
race.p4l4.PASS.MASK.extra_memory   peak of resident memory beside inputs, output and gradients; allowed are 1 MiB and
                                   4 bytes a token-head
race.p4l4.both.million_tokens      peak of resident memory with all of these, at 2^20 tokens (`--long` only)
race.p4l4.cost.slope_off_1         how far the slope of log time on log tokens is from 1, 4K to 4M tokens; noisy where
                                   twice its standard error is more than is allowed
race.PxLy...., race.peers....      the times themselves, in ns a token-head, and peers over ours at the same length

float32, batch 1, 4 heads of width 128, 65,536 tokens, one thread (all but the threads' row and the million tokens).
Tasks take turns; a ratio is taken inside a round, and its row is the median over rounds. Where torch and NumPy differ,
sgemm and copy are the faster one's.

The kernels write into arrays that are there, as sgemm and copy do; race.p2l2.forward.fresh_pages says what an output
in pages that the system hands out anew would add, as a call of `impl="numba"` has it. Inputs begin on cache lines, as
torch's do; race.p2l2.forward.off_lines says what 16 bytes off, as large NumPy arrays lie, would add. Elsewhere malloc
keeps what it frees.

The slope is one head's, of calls on ever other parts of arrays that no cache holds, with outputs kept until others have
taken their place in the caches: else short sequences would be read from the cache, and the slope would be too steep.
"""

import itertools
import math
import os
import statistics
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from attnlab import bench, progress
from attnlab.bench import Seconds, _race_memory, ratios
from attnlab.race import draw_planes

__all__ = ["NEEDS", "about", "fit", "rows"]

NEEDS = ("numba", "threadpoolctl", "torch")
H, K = 4, 128
T, T_PEERS, T_SOFTMAX = 65_536, 16_384, 4_096
SHARPNESS = 2.0
MASKS = ("noncausal", "causal")
BUDGETS = ((2, 2), (3, 3), (4, 4))  # (planes, tables), as in the paper's Tables 1-4
SQUARE = 2048  # rows of sgemm's matrices
ROUNDS, PEER_ROUNDS, COST_ROUNDS = 9, 5, 5

OF_SGEMM, OF_COPY, CAUSAL, BOTH, THREADS = 0.80, 0.60, 1.2, 3.2, 0.9  # the targets
EXTRA_MIB, MILLION_GIB, SLOPE_OFF, CORE_SHARE = 1.0, 17.0, 0.03, 0.95

MEMORY_LENGTHS, MILLION = (65_536, 262_144), 2**20
COST_LENGTHS = tuple(2**n for n in range(12, 23))
SOFTMAX_LENGTHS = tuple(2**n for n in range(10, 15))
LEAST_GAIN = 1.3  # of sgemm from a second core that is free
CALL_TOKENS = 2**18  # a short length is called so often in a round that this many tokens go through
OUT_OF_CACHE = 2**27  # bytes: what no cache holds

# what stands in the way of a row that is short; docs/papers/race-speed.md has the profile
BOTH_BIND = "memory and arithmetic both bind here, and have to overlap"

Times = Mapping[str, list[Seconds]]
Rows = list[dict[str, Any]]


def about(*, stream: int | None = None, **_: Any) -> dict[str, Any]:
    """What else was measured on: one thread, and all of Numba's for a stream."""
    import numba

    return {"threads": 1 if stream is None else numba.get_num_threads()}


def rows(
    *,
    long: bool = False,
    stream: int | None = None,
    causal: bool = False,
    planes: int = 4,
    tables: int = 4,
    state: str | Path | None = None,
) -> Rows:
    """Measure everything, about three minutes; `long` adds what takes 17 GiB. Or, with `stream`, run over that many
    tokens: see `_race_stream.stream`, which takes the other options.
    """
    if stream is not None:
        from attnlab.bench import _race_stream

        with _race_memory.freed_is_kept():
            return _race_stream.stream(stream, causal=causal, planes=planes, tables=tables, state=state)
    import numba

    memory = [*memory_rows(), *(million_rows() if long else [])]  # while this process is small
    cores = numba.get_num_threads()
    bench.single_threaded()
    kernels = bench.measure(kernel_tasks(), ROUNDS)
    with _race_memory.freed_is_kept():
        threads = bench.measure(thread_tasks(), ROUNDS) if cores > 1 else None
        bench.threads(1)
        peers = bench.measure(peer_tasks(), PEER_ROUNDS)
        cost = cost_times()
    targets = [*target_rows(kernels), *thread_rows(threads), *memory, *slope_rows(cost)]
    return [*targets, *machine_rows(kernels), *time_rows(kernels), *peer_rows(peers), *cost_rows(cost)]


# -- the kernels --


def kernel_tasks() -> dict[str, Callable[[], Any]]:
    """Forward and backward passes, each next to the limit that it is measured by."""
    import torch

    from attnlab.bench._race_tokens import tokens
    from attnlab.lanes import aligned
    from attnlab.race import cpu_kernels, numba_impl, torch_impl

    q, k, v, d_out = (tokens(stream, T, H, K) for stream in range(4))
    W, beta = {_name(P, L): draw_planes(L, P, K).astype(np.float32) for P, L in BUDGETS}, np.full(H, SHARPNESS)
    out, dq, dk, dv = (aligned(1, T, H, K) for _ in range(4))
    den = aligned(1, T, H, 1)

    def state(planes: Any) -> tuple[Any, Any]:
        S = planes.shape[0] << planes.shape[1]
        return np.zeros((1, H, S)), np.zeros((1, H, S, K))

    def forward(budget: str, causal: bool, keep: bool = False, back: bool = False) -> Callable[[], None]:
        """The kernels, into arrays that are there, as sgemm and copy have them."""
        planes = W[budget]

        def run() -> None:
            mass, content = state(planes)
            dens = den if keep and causal else None
            cpu_kernels.forward(q, k, v, planes, beta, mass, content, out, causal=causal, threads=1, den=dens)
            if back:
                read, d_state = (None, None) if causal else ((mass, content), state(planes))
                kept = {"out": out, "den": den} if causal else {}
                cpu_kernels.backward(
                    q, k, v, planes, beta, read, d_out, d_state, dq, dk, dv, causal=causal, threads=1, **kept
                )

        return run

    q_leaf, k_leaf, v_leaf = leaves = [torch.from_numpy(x).requires_grad_() for x in (q, k, v)]
    gradient, planes = torch.from_numpy(d_out), torch.from_numpy(W["p4l4"])

    def through_torch(causal: bool) -> None:
        for x in leaves:
            x.grad = None
        torch_impl.attention(q_leaf, k_leaf, v_leaf, planes, SHARPNESS, causal=causal).backward(gradient)

    def off_line(x: Any) -> Any:
        memory = aligned(x.size + 4)
        memory[4:] = x.ravel()
        return memory[4:].reshape(x.shape)

    def in_fresh_pages() -> None:
        numba_impl.attention(q, k, v, W["p2l2"], SHARPNESS)

    q_off, k_off, v_off = (off_line(x) for x in (q, k, v))

    def off_lines() -> None:
        mass, content = state(W["p2l2"])
        cpu_kernels.forward(q_off, k_off, v_off, W["p2l2"], beta, mass, content, out, causal=False, threads=1)

    square = tokens(4, SQUARE, 1, SQUARE)[0, :, 0]
    product, a = np.empty_like(square), torch.from_numpy(square)
    c, target = torch.from_numpy(product), torch.empty_like(gradient)
    return {
        "sgemm.numpy": lambda: np.matmul(square, square, out=product),
        "p4l4.noncausal": forward("p4l4", False),
        "sgemm.torch": lambda: torch.mm(a, a, out=c),
        "p4l4.causal": forward("p4l4", True),
        "copy.numpy": lambda: np.copyto(target.numpy(), d_out),
        "p2l2.noncausal": forward("p2l2", False),
        "copy.torch": lambda: target.copy_(gradient),
        "p2l2.causal": forward("p2l2", True),
        "p2l2.fresh": in_fresh_pages,
        "p2l2.off": off_lines,
        "p3l3.noncausal": forward("p3l3", False),
        "p3l3.causal": forward("p3l3", True),
        "p4l4.noncausal.kept": forward("p4l4", False, keep=True),
        "p4l4.noncausal.both": forward("p4l4", False, keep=True, back=True),
        "p4l4.causal.kept": forward("p4l4", True, keep=True),
        "p4l4.causal.both": forward("p4l4", True, keep=True, back=True),
        "p4l4.noncausal.torch": partial(through_torch, False),
        "p4l4.causal.torch": partial(through_torch, True),
    }


def target_rows(seconds: Times) -> Rows:
    """The passes against sgemm, copy and each other."""
    sgemm, gemm_library = _faster(seconds, "sgemm")
    copy, copy_library = _faster(seconds, "copy")
    flops, traffic = T * H * forward_flops(4, 4), T * H * 16 * K
    of_sgemm = ratios(sgemm, seconds["p4l4.noncausal"], flops / (2 * SQUARE**3))
    of_copy = ratios(copy, seconds["p2l2.noncausal"], traffic / (2 * 4 * T * H * K))
    result = [
        bench.row("race.p4l4.forward.of_sgemm", of_sgemm, "", better="higher", target=OF_SGEMM, note=gemm_library),
        bench.row(
            "race.p2l2.forward.of_copy",
            of_copy,
            "",
            better="higher",
            target=OF_COPY,
            note=f"{copy_library}; {BOTH_BIND}",
        ),
    ]
    for budget in ("p4l4", "p3l3", "p2l2"):
        over = ratios(seconds[f"{budget}.causal"], seconds[f"{budget}.noncausal"])
        target, size = CAUSAL if budget == "p4l4" else None, (int(budget[1]), int(budget[3]))
        note = f"the flops are {causal_flops(*size) / forward_flops(*size):.2f} to 1"
        name = f"race.{budget}.causal_over_noncausal"
        result.append(bench.row(name, over, "", better="lower", target=target, note=note))
    for mask, of_forward in zip(MASKS, (forward_flops, causal_flops), strict=True):
        over = ratios(seconds[f"p4l4.{mask}.both"], seconds[f"p4l4.{mask}.kept"])
        note = f"the flops are {1 + backward_flops(4, 4, mask == 'causal') / of_forward(4, 4):.2f} to 1"
        result.append(
            bench.row(f"race.p4l4.{mask}.both_over_forward", over, "", better="lower", target=BOTH, note=note)
        )
    fresh = ratios(seconds["p2l2.fresh"], seconds["p2l2.noncausal"])
    note = "time with an output in new pages over that in pages the process has"
    result.append(bench.row("race.p2l2.forward.fresh_pages", fresh, "", better="lower", note=note))
    off = ratios(seconds["p2l2.off"], seconds["p2l2.noncausal"])
    note = "time with rows that begin inside a cache line over that with rows that begin on one"
    return [*result, bench.row("race.p2l2.forward.off_lines", off, "", better="lower", note=note)]


def forward_flops(P: int, L: int) -> int:
    """Of a token and head: projections of q and k, a write and a read of all buckets."""
    return 4 * K * (L * P + L * 2**P)


def causal_flops(P: int, L: int) -> int:
    """The same, and what the 24 tokens of a tile are to each other: scores up to a query's block of 8, and values up to
    its block of 6.
    """
    S = L * 2**P
    return forward_flops(P, L) + 2 * 16 * S + 2 * 15 * K


def backward_flops(P: int, L: int, causal: bool) -> int:
    """Of a token and head: features again, the way back through them, and four products with the state. Causal walks
    twice, sums the state again on the way, and has the tile's own products of both sweeps.
    """
    S, features = L * 2**P, 2 * K * L * P
    if not causal:
        return 4 * features + 4 * 2 * S * K
    own = 2 * (2 * 16 * K + 2 * 24 * S) + 2 * 16 * S + 2 * 15 * K
    return 6 * features + 5 * 2 * S * K + own


def machine_rows(seconds: Times) -> Rows:
    """The machine's limits, and whether it was this process's alone."""
    gemm, gemm_library = _faster(seconds, "sgemm")
    copy, copy_library = _faster(seconds, "copy")
    rounds = list(zip(*seconds.values(), strict=True))
    shares = [sum(s.cpu for s in turn) / sum(s.wall for s in turn) for turn in rounds]
    return [
        bench.row(
            "machine.sgemm", [2e-9 * SQUARE**3 / s.wall for s in gemm], "GF/s", better="higher", note=gemm_library
        ),
        bench.row(
            "machine.copy", [8e-9 * T * H * K / s.wall for s in copy], "GB/s", better="higher", note=copy_library
        ),
        bench.row(
            *("machine.core_share", [min(share, 1 / share) for share in shares], ""),
            better="higher",
            target=CORE_SHARE,
            note="CPU time over wall time, less where others had the core; or its inverse, where a second thread ran",
        ),
    ]


def time_rows(seconds: Times) -> Rows:
    """Each pass by itself."""
    names = [name for name in seconds if name.startswith("p") and name not in ("p2l2.fresh", "p2l2.off")]
    return [_per_token(f"race.{_words(name)}", seconds[name], T) for name in names]


def _words(name: str) -> str:
    """p4l4.causal is the kernels' forward pass, p4l4.causal.kept with what a gradient needs, p4l4.causal.both both
    passes, and p4l4.causal.torch both through autograd.
    """
    end = {"kept": ".kernels.kept", "both": ".kernels.both", "torch": ".torch.both"}
    head, _, last = name.rpartition(".")
    return head + end[last] if last in end else f"{name}.numba.forward"


# -- a second thread --


def thread_tasks() -> dict[str, Callable[[], Any]]:
    """sgemm and the forward pass with one thread and with two."""
    import torch

    from attnlab.bench._race_tokens import tokens
    from attnlab.lanes import aligned
    from attnlab.race import cpu_kernels

    q, k, v = (tokens(stream, T, H, K) for stream in range(3))
    W, beta, out = draw_planes(4, 4, K).astype(np.float32), np.full(H, SHARPNESS), aligned(1, T, H, K)
    a = torch.from_numpy(tokens(4, SQUARE, 1, SQUARE)[0, :, 0])
    c = torch.empty_like(a)

    def product(number: int) -> None:
        bench.threads(number)
        torch.mm(a, a, out=c)

    def forward(number: int) -> None:
        mass, content = np.zeros((1, H, 64)), np.zeros((1, H, 64, K))
        cpu_kernels.forward(q, k, v, W, beta, mass, content, out, causal=False, threads=number)

    tasks = {"sgemm": product, "ours": forward}
    return {f"{name}.{number}": partial(task, number) for number in (1, 2) for name, task in tasks.items()}


def thread_rows(seconds: Times | None) -> Rows:
    """What the second thread gains beside sgemm's gain; a sentence on a machine with one core. Noisy where sgemm gains
    next to nothing: to gain as much is no merit then.
    """
    id = "race.p4l4.two_threads.of_sgemm"
    if seconds is None:
        return [bench.left_out(id, "", "this machine has one core", better="higher", target=THREADS)]
    gains = {name: ratios(seconds[f"{name}.1"], seconds[f"{name}.2"]) for name in ("ours", "sgemm")}
    share = [a / b for a, b in zip(gains["ours"], gains["sgemm"], strict=True)]
    note = ", ".join(f"{name} {statistics.median(gain):.2f} times as fast" for name, gain in gains.items())
    note += "; the threads share the way to memory, which a product hardly needs"
    judged = bench.row(id, share, "", better="higher", target=THREADS, note=note)
    if statistics.median(gains["sgemm"]) < LEAST_GAIN:
        judged |= {"status": "noisy", "note": f"the second core was not free; {judged['note']}"}
    return [judged]


# -- memory --


def memory_rows() -> Rows:
    """What each pass takes beside what it was given and what it gives back."""
    result: Rows = []
    for case in _race_memory.CASES:
        id = f"race.p4l4.{case}.extra_memory"
        if _race_memory.peak_bytes() is None:
            result.append(bench.left_out(id, "MiB", _race_memory.UNTOLD, target=_allowed_mib(MEMORY_LENGTHS[-1])))
            continue
        progress.show(f"memory of {case}")
        told = {
            each["tokens"]: round(each["extra_bytes"] / 2**20, 2)
            for each in _race_memory.measured(case, *MEMORY_LENGTHS, threads=1)
        }
        *shorter, longest = told
        note = f"at {longest:,} tokens"
        note += "".join(f", {told[tokens]:g} of {_allowed_mib(tokens):g} at {tokens:,}" for tokens in shorter)
        extra, allowed = told[longest], _allowed_mib(longest)
        result.append(bench.row(id, [extra], "MiB", better="lower", target=allowed, note=note))
    progress.show("")
    return result


def _allowed_mib(tokens: int) -> float:
    return EXTRA_MIB + 4 * tokens * H / 2**20


def million_rows() -> Rows:
    """Forward and backward over 2^20 tokens: all of the process."""
    id, available = "race.p4l4.both.million_tokens", _race_memory.available_bytes()
    if available is None:
        return [bench.left_out(id, "GiB", _race_memory.UNTOLD, target=MILLION_GIB)]
    if available < MILLION_GIB * 2**30:
        why = f"this takes up to {MILLION_GIB:g} GiB, and {available / 2**30:.1f} GiB are available"
        return [bench.left_out(id, "GiB", why, target=MILLION_GIB)]
    progress.show("memory of a million tokens")
    (told,) = _race_memory.measured("both.noncausal", MILLION, threads=min(2, os.cpu_count() or 1))
    progress.show("")
    note = f"{told['tokens']:,} tokens x {H} heads, forward and backward in {told['time_s']:.1f} s"
    samples = [round(told["peak_bytes"] / 2**30, 3)]
    return [bench.row(id, samples, "GiB", better="lower", target=MILLION_GIB, note=note)]


# -- peers --


def peer_tasks() -> dict[str, Callable[[], Any]]:
    """Ours and theirs at a length that all of them bear; softmax at a shorter one."""
    import torch

    from attnlab.bench import _race_peers
    from attnlab.bench._race_tokens import tokens
    from attnlab.race import numba_impl, numba_plain

    q_flat, k_flat, v_flat = (tokens(stream, T_PEERS, H, K) for stream in range(3))
    q, k, v = (torch.from_numpy(x).transpose(1, 2).contiguous() for x in (q_flat, k_flat, v_flat))
    q_short, k_short, v_short = (x[:, :, :T_SOFTMAX].contiguous() for x in (q, k, v))
    tasks: dict[str, Callable[[], Any]] = {}

    def both_masks(peer: str, attention: Callable[..., Any], budget: str, W: np.ndarray) -> None:
        for mask in MASKS:
            call = partial(attention, q_flat, k_flat, v_flat, W, SHARPNESS, causal=mask == "causal")
            tasks[f"{peer}.{mask}.{budget}"] = call

    for P, L in ((2, 2), (4, 4)):
        budget, W = _name(P, L), draw_planes(L, P, K).astype(np.float32)
        both_masks("ours", numba_impl.attention, budget, W)
        tasks[f"algorithm_1.noncausal.{budget}"] = partial(
            _race_peers.algorithm_1, q, k, v, torch.from_numpy(W), SHARPNESS
        )
    both_masks("numba_plain", numba_plain.attention, budget, W)
    tasks["linear.noncausal"] = partial(_race_peers.linear, q, k, v)
    tasks["linear.causal"] = partial(_race_peers.linear_causal, q, k, v)
    if (performer := _race_peers.performer(K)) is not None:
        tasks["performer.noncausal"] = partial(performer, q, k, v)
    tasks["softmax.noncausal"] = partial(_race_peers.softmax, q_short, k_short, v_short)
    tasks["softmax.causal"] = partial(_race_peers.softmax, q_short, k_short, v_short, is_causal=True)
    return tasks


def peer_rows(seconds: Times) -> Rows:
    """Each in ns a token-head, and over ours with the same mask: at its own budget where it has one, else at (4, 4)."""
    result = []
    for name, times in seconds.items():
        peer, mask, *budget = name.split(".")
        tokens = T_SOFTMAX if peer == "softmax" else T_PEERS
        result.append(_per_token(f"race.peers.{name}", times, tokens))
        if peer != "ours":
            ours = seconds[f"ours.{mask}.{budget[0] if budget else 'p4l4'}"]
            over = ratios(times, ours, T_PEERS / tokens)
            result.append(bench.row(f"race.peers.{name}.over_ours", over, "", better="higher"))
    if "performer.noncausal" not in seconds:
        from attnlab.bench._race_peers import NO_PERFORMER

        result.append(bench.left_out("race.peers.performer.noncausal", "ns/token-head", NO_PERFORMER))
    return result


# -- cost against length --


def cost_times() -> dict[str, dict[int, list[Seconds]]]:
    """Seconds of a call at each length, round by round: RACE at (4, 4) and softmax, one head."""
    import torch

    from attnlab.bench import _race_peers
    from attnlab.bench._race_tokens import tokens
    from attnlab.race import numba_impl

    available = _race_memory.available_bytes()
    fits = [n for n in COST_LENGTHS if available is None or 5 * 4 * K * n < available]  # q, k, v, the output, and room
    arrays = [tokens(stream, fits[-1], 1, K) for stream in range(3)]
    W = draw_planes(4, 4, K).astype(np.float32)
    heads_first = [torch.from_numpy(x).transpose(1, 2) for x in arrays]
    passes: dict[str, tuple[Any, ...]] = {
        "race": (fits, CALL_TOKENS, 1, arrays, lambda q, k, v: numba_impl.attention(q, k, v, W, SHARPNESS)),
        "softmax": (SOFTMAX_LENGTHS, 0, 2, heads_first, _race_peers.softmax),
    }
    result: dict[str, dict[int, list[Seconds]]] = {}
    for name, (lengths, least, axis, whole, function) in passes.items():
        calls = {n: max(1, least // n) for n in lengths}
        tasks = {f"{name} at {n:,} tokens": _in_turn(function, whole, axis, n, calls[n]) for n in lengths}
        seconds = bench.measure(tasks, COST_ROUNDS)
        result[name] = {
            n: [Seconds(s.wall / calls[n], s.cpu / calls[n]) for s in times]
            for n, times in zip(lengths, seconds.values(), strict=True)
        }
    return result


def _in_turn(function: Any, arrays: list[Any], axis: int, tokens: int, calls: int) -> Callable[[], None]:
    """`calls` on one part of the arrays after another, over and over, with the latest outputs kept."""
    starts = itertools.cycle(range(0, arrays[0].shape[axis] - tokens + 1, tokens))

    def run() -> None:
        kept: deque[Any] = deque(maxlen=max(1, OUT_OF_CACHE // (4 * K * tokens)))
        for start in itertools.islice(starts, calls):
            part = (*(slice(None),) * axis, slice(start, start + tokens))
            kept.append(function(*(x[part] for x in arrays)))

    return run


def fit(lengths: list[int], seconds: list[float]) -> tuple[float, float]:
    """Slope of log seconds on log length by least squares, and its standard error."""
    x, y = np.log(lengths), np.log(seconds)
    x, y = x - x.mean(), y - y.mean()
    slope = float(x @ y / (x @ x))
    rest = y - slope * x
    return slope, math.sqrt(float(rest @ rest) / (len(x) - 2) / float(x @ x))


def slope_rows(cost: dict[str, dict[int, list[Seconds]]]) -> Rows:
    """The slopes of the medians, and their standard errors."""
    fits = {
        name: fit([*times], [statistics.median(s.wall for s in each) for each in times.values()])
        for name, times in cost.items()
    }
    notes = {
        name: f"slope {slope:.3f} ± {error:.3f} from {min(cost[name]):,} to {max(cost[name]):,} tokens"
        for name, (slope, error) in fits.items()
    }
    (slope, error), (softmax, _) = fits["race"], fits["softmax"]
    off = bench.row(
        *("race.p4l4.cost.slope_off_1", [round(abs(slope - 1), 4)], ""),
        better="lower",
        target=SLOPE_OFF,
        note=notes["race"],
    )
    return [
        off | ({"status": "noisy"} if abs(abs(slope - 1) - SLOPE_OFF) <= 2 * error and 2 * error > SLOPE_OFF else {}),
        bench.row("race.softmax.cost.slope", [round(softmax, 4)], "", better="lower", note=notes["softmax"]),
    ]


def cost_rows(cost: dict[str, dict[int, list[Seconds]]]) -> Rows:
    """The times of a call, which the figure shows."""
    ids = {"race": "race.p4l4.cost", "softmax": "race.softmax.cost"}
    return [
        bench.row(
            f"{ids[name]}.{tokens}", [1e3 * s.wall for s in each], "ms", better="lower", cpu=[1e3 * s.cpu for s in each]
        )
        for name, times in cost.items()
        for tokens, each in times.items()
    ]


# -- in common --


def _name(P: int, L: int) -> str:
    return f"p{P}l{L}"


def _faster(seconds: Times, task: str) -> tuple[list[Seconds], str]:
    """The times of the library that does it in less, and its name."""
    best = min(
        (f"{task}.{it}" for it in ("numpy", "torch")), key=lambda n: statistics.median(s.wall for s in seconds[n])
    )
    return seconds[best], f"{task} of {best.split('.')[1]}"


def _per_token(id: str, seconds: list[Seconds], tokens: int) -> dict[str, Any]:
    per = 1e9 / tokens / H
    wall, cpu = [per * s.wall for s in seconds], [per * s.cpu for s in seconds]
    return bench.row(id, wall, "ns/token-head", better="lower", note=f"{tokens:,} tokens", cpu=cpu)
