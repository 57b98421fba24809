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

The slope is one head's: see `_cost`.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from attnlab import bench, progress
from attnlab.bench import _cost, _machine, _memory, ratios
from attnlab.bench._cost import Cost, Curve
from attnlab.bench._machine import Rows, Tasks, Times
from attnlab.race import draw_planes

__all__ = ["MEMORY", "NEEDS", "about", "rows"]

NEEDS = ("numba", "threadpoolctl", "torch")
H, K = 4, 128
T, T_PEERS, T_SOFTMAX = 65_536, 16_384, 4_096
SHARPNESS = 2.0
MASKS = ("noncausal", "causal")
BUDGETS = ((2, 2), (3, 3), (4, 4))  # (planes, tables), as in the paper's Tables 1-4
ROUNDS, PEER_ROUNDS, COST_ROUNDS = 9, 5, 5

OF_SGEMM, OF_COPY, CAUSAL, BOTH, THREADS = 0.80, 0.60, 1.2, 3.2, 0.9  # the targets
EXTRA_MIB, MILLION_GIB, SLOPE_OFF = 1.0, 17.0, 0.03

MEMORY_LENGTHS, MILLION = (65_536, 262_144), 2**20
COST_LENGTHS = tuple(2**n for n in range(12, 23))
SOFTMAX_LENGTHS = tuple(2**n for n in range(10, 15))

# what stands in the way of a row that is short; docs/papers/race-speed.md has the profile
BOTH_BIND = "memory and arithmetic both bind here, and have to overlap"


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

        with _memory.freed_is_kept():
            return _race_stream.stream(stream, causal=causal, planes=planes, tables=tables, state=state)
    import numba

    memory = [*memory_rows(), *(million_rows() if long else [])]  # while this process is small
    cores = numba.get_num_threads()
    bench.single_threaded()
    kernels = bench.measure(kernel_tasks(), ROUNDS)
    with _memory.freed_is_kept():
        threads = bench.measure(_machine.thread_tasks(forward_on_threads()), ROUNDS) if cores > 1 else None
        bench.threads(1)
        peers = bench.measure(peer_tasks(), PEER_ROUNDS)
        cost = cost_times()
    gain = _machine.thread_rows("race.p4l4.two_threads.of_sgemm", threads, THREADS)
    targets = [*target_rows(kernels), *gain, *memory, *slope_rows(cost)]
    machine = _machine.rows(kernels, T * H * K)
    return [*targets, *machine, *time_rows(kernels), *peer_rows(peers), *cost_rows(cost)]


# -- the kernels --


def kernel_tasks() -> Tasks:
    """Forward and backward passes, each next to the limit that it is measured by."""
    import torch

    from attnlab.bench._tokens import tokens
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

    tasks: Tasks = {
        "p4l4.noncausal": forward("p4l4", False),
        "p4l4.causal": forward("p4l4", True),
        "p2l2.noncausal": forward("p2l2", False),
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
    return _machine.beside(tasks, d_out)


def target_rows(seconds: Times) -> Rows:
    """The passes against sgemm, copy and each other."""
    of_sgemm, gemm_library = _machine.of_sgemm(seconds, "p4l4.noncausal", T * H * forward_flops(4, 4))
    copy, copy_library = _machine.faster(seconds, "copy")
    of_copy = ratios(copy, seconds["p2l2.noncausal"], T * H * 16 * K / (2 * 4 * T * H * K))
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


def time_rows(seconds: Times) -> Rows:
    """Each pass by itself."""
    names = [name for name in seconds if name.startswith("p") and name not in ("p2l2.fresh", "p2l2.off")]
    return [_machine.per_token(f"race.{_words(name)}", seconds[name], T, H) for name in names]


def _words(name: str) -> str:
    """p4l4.causal is the kernels' forward pass, p4l4.causal.kept with what a gradient needs, p4l4.causal.both both
    passes, and p4l4.causal.torch both through autograd.
    """
    end = {"kept": ".kernels.kept", "both": ".kernels.both", "torch": ".torch.both"}
    head, _, last = name.rpartition(".")
    return head + end[last] if last in end else f"{name}.numba.forward"


def forward_on_threads() -> Callable[[int], None]:
    """The forward pass at (4, 4) on a number of threads."""
    from attnlab.bench._tokens import tokens
    from attnlab.lanes import aligned
    from attnlab.race import cpu_kernels

    q, k, v = (tokens(stream, T, H, K) for stream in range(3))
    W, beta, out = draw_planes(4, 4, K).astype(np.float32), np.full(H, SHARPNESS), aligned(1, T, H, K)

    def forward(number: int) -> None:
        mass, content = np.zeros((1, H, 64)), np.zeros((1, H, 64, K))
        cpu_kernels.forward(q, k, v, W, beta, mass, content, out, causal=False, threads=number)

    return forward


# -- memory --


def _forward(causal: bool) -> _memory.Case:
    from attnlab.race import numba_impl

    planes = draw_planes(4, 4, K).astype(np.float32)
    return _memory.Case(
        partial(_arrays, 3), lambda q, k, v: [numba_impl.attention(q, k, v, planes, SHARPNESS, causal=causal)]
    )


def _both(causal: bool) -> _memory.Case:
    import torch

    from attnlab.race import torch_impl

    planes = torch.from_numpy(draw_planes(4, 4, K).astype(np.float32))

    def run(q: Any, k: Any, v: Any, d_out: Any) -> list[Any]:
        q, k, v = (torch.from_numpy(x).requires_grad_() for x in (q, k, v))
        out = torch_impl.attention(q, k, v, planes, SHARPNESS, causal=causal)
        out.backward(torch.from_numpy(d_out))
        return [out, q.grad, k.grad, v.grad]

    return _memory.Case(partial(_arrays, 4), run)


def _arrays(count: int, length: int) -> list[np.ndarray]:
    from attnlab.bench._tokens import tokens

    return [tokens(stream, length, H, K) for stream in range(count)]


MEMORY = {
    "p4l4.forward.noncausal": partial(_forward, False),
    "p4l4.forward.causal": partial(_forward, True),
    "p4l4.both.noncausal": partial(_both, False),
    "p4l4.both.causal": partial(_both, True),
}


def memory_rows() -> Rows:
    """What each pass takes beside what it was given and what it gives back."""
    return _memory.rows("race", [*MEMORY], MEMORY_LENGTHS, _allowed_mib)


def _allowed_mib(case: str, tokens: int) -> float:
    return EXTRA_MIB + 4 * tokens * H / 2**20


def million_rows() -> Rows:
    """Forward and backward over 2^20 tokens: all of the process."""
    id, available = "race.p4l4.both.million_tokens", _memory.available_bytes()
    if available is None:
        return [bench.left_out(id, "GiB", _memory.UNTOLD, target=MILLION_GIB)]
    if available < MILLION_GIB * 2**30:
        why = f"this takes up to {MILLION_GIB:g} GiB, and {available / 2**30:.1f} GiB are available"
        return [bench.left_out(id, "GiB", why, target=MILLION_GIB)]
    progress.show("memory of a million tokens")
    (told,) = _memory.measured("race", "p4l4.both.noncausal", MILLION, threads=min(2, os.cpu_count() or 1))
    progress.show("")
    note = f"{told['tokens']:,} tokens x {H} heads, forward and backward in {told['time_s']:.1f} s"
    samples = [round(told["peak_bytes"] / 2**30, 3)]
    return [bench.row(id, samples, "GiB", better="lower", target=MILLION_GIB, note=note)]


# -- peers --


def peer_tasks() -> Tasks:
    """Ours and theirs at a length that all of them bear; softmax at a shorter one."""
    import torch

    from attnlab.bench import _race_peers
    from attnlab.bench._tokens import tokens
    from attnlab.race import numba_impl, numba_plain

    q_flat, k_flat, v_flat = (tokens(stream, T_PEERS, H, K) for stream in range(3))
    q, k, v = (torch.from_numpy(x).transpose(1, 2).contiguous() for x in (q_flat, k_flat, v_flat))
    q_short, k_short, v_short = (x[:, :, :T_SOFTMAX].contiguous() for x in (q, k, v))
    tasks: Tasks = {}

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
        result.append(_machine.per_token(f"race.peers.{name}", times, tokens, H))
        if peer != "ours":
            ours = seconds[f"ours.{mask}.{budget[0] if budget else 'p4l4'}"]
            over = ratios(times, ours, T_PEERS / tokens)
            result.append(bench.row(f"race.peers.{name}.over_ours", over, "", better="higher"))
    if "performer.noncausal" not in seconds:
        from attnlab.bench._race_peers import NO_PERFORMER

        result.append(bench.left_out("race.peers.performer.noncausal", "ns/token-head", NO_PERFORMER))
    return result


# -- cost against length --


def cost_times() -> dict[str, Cost]:
    """RACE at (4, 4) and softmax, one head."""
    import torch

    from attnlab.bench import _race_peers
    from attnlab.bench._tokens import tokens
    from attnlab.race import numba_impl

    lengths = _cost.fitting(COST_LENGTHS, 5 * 4 * K)  # q, k, v, the output, and room
    arrays = [tokens(stream, lengths[-1], 1, K) for stream in range(3)]
    W = draw_planes(4, 4, K).astype(np.float32)
    heads_first = [torch.from_numpy(x).transpose(1, 2) for x in arrays]
    curves = {
        "race": Curve(lengths, lambda q, k, v: numba_impl.attention(q, k, v, W, SHARPNESS), arrays, axis=1),
        "softmax": Curve(SOFTMAX_LENGTHS, _race_peers.softmax, heads_first, axis=2, repeated=False),
    }
    return {name: _cost.times(name, curve, COST_ROUNDS) for name, curve in curves.items()}


def slope_rows(cost: dict[str, Cost]) -> Rows:
    """The slopes of the medians, and their standard errors."""
    return [
        _cost.slope_off_1_row("race.p4l4.cost.slope_off_1", cost["race"], SLOPE_OFF),
        _cost.slope_row("race.softmax.cost.slope", cost["softmax"]),
    ]


def cost_rows(cost: dict[str, Cost]) -> Rows:
    """The times of a call, which the figure shows."""
    ids = {"race": "race.p4l4.cost", "softmax": "race.softmax.cost"}
    return [row for name, times in cost.items() for row in _cost.rows(ids[name], times)]


def _name(P: int, L: int) -> str:
    return f"p{P}l{L}"
