"""Residual memory on this CPU against what the machine can do, and beside its peers in the same run.

residual.rdn.forward.of_sgemm            the rate of RDN's forward pass over that of sgemm, in the 14 d^2 flops a
                                         token-head that the recurrence has: four recalls and two writes, 2 d^2 each,
                                         and two decays
residual.rdn.forward.over_token_loop     time of a Python loop of torch calls over ours, a token
residual.rdn.forward.over_torch_chunked  time of chunks as batched products in torch over ours
residual.rdn.both_over_forward           time of forward, with what a gradient needs, and backward over that of forward
                                         alone
residual.rdn.two_threads.of_sgemm        what a second thread gains, over what sgemm gains from it
residual.rdn.PASS.extra_memory           peak of resident memory of the kernels beside inputs, output and gradients;
                                         allowed are 1 MiB, both memories of every head, and 12 bytes a token-head, a
                                         copy of the gates; for both passes also what is kept, and the memories and
                                         writes of a span
residual.rdn.ROOM.PASS.extra_memory      the same of `impl="numba"` and of torch's autograd
residual.rdn.cost.slope_off_1            how far the slope of log time on log tokens is from 1, 4K to 256K tokens; noisy
                                         where twice its standard error is more than is allowed
residual.rdn.slider                      a call as a slider would make it: `impl="numba"` through the public door
residual.RULE.dWIDTH...., residual.peers....   the times themselves, in ns a token-head, and peers over ours

float32, batch 1, 4 heads of width 128, 16,384 tokens, one thread (all but the threads' row). Keys and queries have
length 1; retention lies in [0.9, 1], write and correction in [0, 1]. Tasks take turns; a ratio is taken inside a round,
and its row is the median over rounds. Where torch and NumPy differ, sgemm and copy are the faster one's. The kernels
write into arrays that are there, as sgemm and copy do. The slope is one head's: see `_cost`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attnlab import bench
from attnlab.bench import _cost, _machine, _memory, ratios
from attnlab.bench._cost import Cost, Curve
from attnlab.bench._machine import Rows, Tasks, Times
from attnlab.residual import RULES, attention

__all__ = ["MEMORY", "NEEDS", "about", "rows"]

NEEDS = ("numba", "threadpoolctl", "torch")
H, K, NARROW = 4, 128, 64
T, T_LOOP, T_SOFTMAX = 16_384, 2_048, 4_096
T_SLIDER, H_SLIDER, K_SLIDER = 512, 1, 64
TWICE = ("rdn", "rla")  # the rules whose gradient is measured
ROUNDS, PEER_ROUNDS, COST_ROUNDS = 9, 5, 5

OF_SGEMM, OVER_LOOP, OVER_CHUNKED, BOTH, THREADS = 0.75, 15.0, 2.5, 3.5, 0.9  # the targets
EXTRA_MIB, SLOPE_OFF, SLIDER_MS = 1.0, 0.03, 5.0

MEMORY_LENGTHS = (16_384, 65_536)
COST_LENGTHS = tuple(2**n for n in range(12, 19))
TILE, BLOCK, SPAN = 24, 8, 8  # of the kernels: tokens a chunk, rows solved at a time, chunks between kept states
SWITCHES: dict[str, Any] = {"clip": 1.0, "target": "clip", "read_gates": True}


def about() -> dict[str, Any]:
    """What else was measured on: one thread."""
    return {"threads": 1}


def rows() -> Rows:
    """Measure everything, about three minutes."""
    import numba

    memory = memory_rows()  # while this process is small
    cores = numba.get_num_threads()
    bench.single_threaded()
    kernels = bench.measure(kernel_tasks(), ROUNDS)
    with _memory.freed_is_kept():
        threads = bench.measure(_machine.thread_tasks(forward_on_threads()), ROUNDS) if cores > 1 else None
        bench.threads(1)
        peers = bench.measure(peer_tasks(), PEER_ROUNDS)
        cost = cost_times()
    targets = [
        *kernel_rows(kernels),
        *over_rows(peers),
        *_machine.thread_rows("residual.rdn.two_threads.of_sgemm", threads, THREADS),
        *memory,
        _cost.slope_off_1_row("residual.rdn.cost.slope_off_1", cost, SLOPE_OFF),
    ]
    machine = _machine.rows(kernels, T * H * K)
    return [*targets, *machine, *time_rows(kernels), *peer_rows(peers), *_cost.rows("residual.rdn.cost", cost)]


# -- what is attended to --


class Inputs(NamedTuple):
    """Of all benchmarks here, float32."""

    q: np.ndarray  # [1, T, H, K]
    k: np.ndarray
    v: np.ndarray
    alpha: np.ndarray  # [1, T, H]
    beta: np.ndarray
    gamma: np.ndarray


def inputs(T: int, H: int, K: int) -> Inputs:
    """The first T tokens: q and k of length 1, as the delta rules need them."""
    from attnlab.bench._tokens import tokens

    q, k, v = (tokens(stream, T, H, K) for stream in range(3))
    for x in (q, k):
        x /= np.sqrt(np.einsum("bthk,bthk->bth", x, x))[..., None]
    alpha, beta, gamma = (tokens(stream, T, H, 1)[..., 0] for stream in range(4, 7))
    for gate in (alpha, beta, gamma):
        gate += 3.5  # no token lies further from 0
        gate /= 7
    alpha *= 0.1
    alpha += 0.9
    return Inputs(q, k, v, alpha, beta, gamma)


def forward(x: Inputs, rule: str, out: np.ndarray, threads: int = 1, kept: Any = None) -> None:
    """The kernels' forward pass from empty memories, into an array that is there."""
    from attnlab.residual import cpu_kernels

    q, k, v, *gates = x
    parts, memories = [(0, 0, q.shape[1])], _memories(x, rule)
    cpu_kernels.forward(q, k, v, gates, memories, out, rule=rule, parts=parts, threads=threads, kept=kept, **SWITCHES)


def backward(x: Inputs, rule: str, kept: Any, d_out: np.ndarray, slopes: list[np.ndarray]) -> list[np.ndarray]:
    """The kernels' backward pass into arrays that are there; the gradients of the gates."""
    from attnlab.residual import cpu_kernels

    q, k, v, *gates = x
    options: dict[str, Any] = {"rule": rule, "parts": [(0, 0, q.shape[1])], "threads": 1, **SWITCHES}
    return cpu_kernels.backward(q, k, v, gates, kept, d_out, _memories(x, rule), *slopes, **options)


def keep(x: Inputs, rule: str) -> Any:
    """Room for what a forward pass keeps."""
    from attnlab.residual import cpu_kernels

    return cpu_kernels.keep(x.q, x.v, rule=rule, parts=[(0, 0, x.q.shape[1])])


def _memories(x: Inputs, rule: str) -> list[np.ndarray]:
    (_, _, H, K), V = x.q.shape, x.v.shape[-1]
    return [np.zeros((1, H, K, V), np.float32) for _ in range(1 + RULES[rule].residual)]


# -- the kernels --


def kernel_tasks() -> Tasks:
    """Passes of all rules in two widths, the first ones next to the limits of the machine."""
    import torch

    from attnlab.bench._tokens import tokens
    from attnlab.lanes import aligned
    from attnlab.residual import torch_impl

    given = {width: inputs(T, H, width) for width in (K, NARROW)}
    d_out = {width: tokens(3, T, H, width) for width in given}
    outs = {width: [aligned(1, T, H, width) for _ in range(4)] for width in given}
    room = {(rule, width): keep(given[width], rule) for rule in TWICE for width in given}

    def pass_of(rule: str, width: int, keeps: bool = False, back: bool = False) -> Callable[[], None]:
        x, (out, *slopes) = given[width], outs[width]
        kept = room[rule, width] if keeps else None

        def run() -> None:
            forward(x, rule, out, kept=kept)
            if back:
                backward(x, rule, kept, d_out[width], slopes)

        return run

    leaves = [torch.from_numpy(x).requires_grad_() for x in given[K]]
    gradient = torch.from_numpy(d_out[K])

    def through_torch(rule: str) -> None:
        for x in leaves:
            x.grad = None
        torch_impl.attention(*leaves, rule=rule).backward(gradient)

    def twice(rule: str, width: int) -> Tasks:
        return {
            f"{rule}.d{width}.forward": pass_of(rule, width),
            f"{rule}.d{width}.kept": pass_of(rule, width, keeps=True),
            f"{rule}.d{width}.both": pass_of(rule, width, keeps=True, back=True),
        }

    small = inputs(T_SLIDER, H_SLIDER, K_SLIDER)
    tasks = twice("rdn", K) | twice("rla", K) | twice("rdn", NARROW) | twice("rla", NARROW)
    once = [rule for rule in RULES if rule not in TWICE]
    tasks |= {f"{rule}.d{width}.forward": pass_of(rule, width) for width in given for rule in once}
    tasks |= {f"{rule}.d{K}.torch": partial(through_torch, rule) for rule in TWICE}
    tasks["slider"] = partial(attention, *small, rule="rdn", impl="numba")
    return _machine.beside(tasks, d_out[K])


def kernel_rows(seconds: Times) -> Rows:
    """RDN against sgemm and itself, and the slider's call."""
    of_sgemm, library = _machine.of_sgemm(seconds, f"rdn.d{K}.forward", T * H * recurrence_flops(K, K))
    own = f"{library}; the products of the chunks are {forward_flops(K, K) / K**2:.1f} d^2 flops"
    over = ratios(seconds[f"rdn.d{K}.both"], seconds[f"rdn.d{K}.forward"])
    flops = f"the flops are {1 + backward_flops(K, K) / forward_flops(K, K):.2f} to 1"
    slider = seconds["slider"]
    note = f"{T_SLIDER} tokens, {H_SLIDER} head of width {K_SLIDER}"
    return [
        bench.row("residual.rdn.forward.of_sgemm", of_sgemm, "", better="higher", target=OF_SGEMM, note=own),
        bench.row("residual.rdn.both_over_forward", over, "", better="lower", target=BOTH, note=flops),
        bench.row(
            *("residual.rdn.slider", [1e3 * s.wall for s in slider], "ms"),
            better="lower",
            target=SLIDER_MS,
            note=note,
            cpu=[1e3 * s.cpu for s in slider],
        ),
    ]


def recurrence_flops(K: int, V: int) -> int:
    """Of RDN, a token and head: what k and q recall of both memories, the writes of both, and their decay."""
    return 14 * K * V


def forward_flops(K: int, V: int) -> float:
    """Of RDN's products as the kernels do them, a token and head: k and q meet both memories; k and q meet k; the
    writes of the chunk, solved; the reads of them; both memories written.
    """
    met, own = 2 * 2 * K * 2 * V, 2 * 2 * TILE * K
    return met + own + _solved(V) + _read(V) + 2 * K * 2 * V


def backward_flops(K: int, V: int) -> float:
    """The same of the way back. The states inside a span are summed again; then the gradient of the memories meets k,
    and what the output and the recalls send meets both memories, each in both directions.
    """
    again = 2 * K * 2 * V * (SPAN - 1) / SPAN
    states = 2 * K * (2 * V + V + V + 2 * V + 2 * V + 2 * 2 * V)
    tables = 2 * TILE * (2 * V + V + V)
    pairs = 2 * TILE * (2 * K + 2 * K + K)
    return again + states + tables + pairs + _solved(V) + _read(V) + 2 * K * 2 * V / TILE


def _solved(V: int) -> float:
    """Both triangular systems: the rows of earlier blocks, and those of the own one."""
    return 2 * 2 * V * ((TILE - BLOCK) / 2 + (BLOCK - 1) / 2)


def _read(V: int) -> float:
    """Two triangular products, up to a row's block."""
    return 2 * 2 * V * (TILE + BLOCK) / 2


def time_rows(seconds: Times) -> Rows:
    """Each pass by itself."""
    ends = {"forward": "kernels.forward", "kept": "kernels.kept", "both": "kernels.both", "torch": "torch.both"}
    passes = [(name, *name.rpartition(".")) for name in seconds if name.partition(".")[0] in RULES]
    return [_machine.per_token(f"residual.{of}.{ends[end]}", seconds[name], T, H) for name, of, _, end in passes]


def forward_on_threads() -> Callable[[int], None]:
    """RDN's forward pass on a number of threads."""
    from attnlab.lanes import aligned

    x, out = inputs(T, H, K), aligned(1, T, H, K)
    return lambda number: forward(x, "rdn", out, threads=number)


# -- memory --


def _kernels(back: bool) -> _memory.Case:
    """The kernels, with the output and the gradients among what they are given."""
    from attnlab.bench._tokens import tokens
    from attnlab.lanes import aligned

    def given(length: int) -> list[np.ndarray]:
        results = [aligned(1, length, H, K) for _ in range(4 if back else 1)]
        for x in results:
            x.fill(0)  # every page is there
        return [*inputs(length, H, K), tokens(3, length, H, K), *results]

    def run(*arrays: np.ndarray) -> list[Any]:
        x, (d_out, out, *slopes) = Inputs(*arrays[:6]), arrays[6:]
        kept = keep(x, "rdn") if back else None
        forward(x, "rdn", out, kept=kept)
        return backward(x, "rdn", kept, d_out, slopes) if back else []

    return _memory.Case(given, run)


def _numba_forward() -> _memory.Case:
    from attnlab.residual import numba_impl

    return _memory.Case(lambda length: [*inputs(length, H, K)], lambda *x: [numba_impl.attention(*x, rule="rdn")])


def _torch_both() -> _memory.Case:
    import torch

    from attnlab.bench._tokens import tokens
    from attnlab.residual import torch_impl

    def run(d_out: np.ndarray, *arrays: np.ndarray) -> list[Any]:
        leaves = [torch.from_numpy(x).requires_grad_() for x in arrays]
        out = torch_impl.attention(*leaves, rule="rdn")
        out.backward(torch.from_numpy(d_out))
        return [out, *(x.grad for x in leaves)]

    return _memory.Case(lambda length: [tokens(3, length, H, K), *inputs(length, H, K)], run)


MEMORY: dict[str, Callable[[], _memory.Case]] = {
    "rdn.forward": partial(_kernels, False),
    "rdn.both": partial(_kernels, True),
    "rdn.numba.forward": _numba_forward,
    "rdn.torch.both": _torch_both,
}


def memory_rows() -> Rows:
    """What each pass takes beside what it was given and what it gives back."""
    return _memory.rows("residual", [*MEMORY], MEMORY_LENGTHS, _allowed_mib)


def _allowed_mib(case: str, tokens: int) -> float | None:
    """None for the rooms, which are told beside the kernels."""
    numbers = H * (3 * tokens + 2 * K * K)
    if case == "rdn.both":
        numbers += H * kept_numbers(tokens) + SPAN * 2 * K * (K + TILE)
    return round(EXTRA_MIB + 4 * numbers / 2**20, 2) if case in ("rdn.forward", "rdn.both") else None


def kept_numbers(tokens: int) -> int:
    """Of a head of RDN: what every key recalls of both memories, and both memories before each span."""
    return 2 * K * tokens + -(-tokens // (SPAN * TILE)) * 2 * K * K


# -- peers --


def peer_tasks() -> Tasks:
    """RDN's forward pass, ours and theirs; the torch loop and softmax on fewer tokens."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from attnlab.bench import _residual_peers
    from attnlab.residual import numba_impl, torch_impl

    x = inputs(T, H, K)
    tensors = [torch.from_numpy(array) for array in x]
    loop = [array[:, :T_LOOP].contiguous() for array in tensors]
    q, k, v = (array[:, :T_SOFTMAX].transpose(1, 2).contiguous() for array in tensors[:3])
    return {
        "ours": partial(numba_impl.attention, *x, rule="rdn"),
        "torch_room": partial(torch_impl.attention, *tensors, rule="rdn"),
        "torch_chunked": partial(_residual_peers.torch_chunked, *tensors),
        "torch_loop": partial(_residual_peers.torch_loop, *loop),
        "numba_loop": partial(_residual_peers.numba_loop, *x),
        "softmax": lambda: scaled_dot_product_attention(q, k, v, is_causal=True),
    }


def _length(peer: str) -> int:
    return {"torch_loop": T_LOOP, "softmax": T_SOFTMAX}.get(peer, T)


def _over(seconds: Times, peer: str) -> list[float]:
    """A token's time of a peer over ours."""
    return ratios(seconds[peer], seconds["ours"], T / _length(peer))


def over_rows(seconds: Times) -> Rows:
    """Theirs over ours where there is a target."""
    loop, chunked = (_over(seconds, peer) for peer in ("torch_loop", "torch_chunked"))
    note = f"a token of {T_LOOP:,} over one of {T:,}: the loop takes as long for each"
    return [
        bench.row("residual.rdn.forward.over_token_loop", loop, "", better="higher", target=OVER_LOOP, note=note),
        bench.row("residual.rdn.forward.over_torch_chunked", chunked, "", better="higher", target=OVER_CHUNKED),
    ]


def peer_rows(seconds: Times) -> Rows:
    """Each in ns a token-head, and over ours."""
    result = []
    for peer, times in seconds.items():
        result.append(_machine.per_token(f"residual.peers.{peer}", times, _length(peer), H))
        if peer not in ("ours", "torch_loop", "torch_chunked"):  # these two stand above
            result.append(bench.row(f"residual.peers.{peer}.over_ours", _over(seconds, peer), "", better="higher"))
    return result


# -- cost against length --


def cost_times() -> Cost:
    """RDN, one head."""
    from attnlab.residual import numba_impl

    lengths = _cost.fitting(COST_LENGTHS, 5 * 4 * K)  # q, k, v, the output, and room
    curve = Curve(lengths, partial(numba_impl.attention, rule="rdn"), [*inputs(lengths[-1], 1, K)], axis=1)
    return _cost.times("rdn", curve, COST_ROUNDS)
