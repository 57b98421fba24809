"""LRKV's decode step on this CPU beside torch's attention over an MHA cache, the same step in torch's operations, and
the least a pass over the cache can take: reading it.

decode.nN.rR.of_read        time to read the cache once, over ours: the faster of torch's sum and a loop of our own
                            that reads and adds, on as many threads
decode.nN.rR.over_sdpa      torch's attention over the MHA cache of as many heads, over ours
decode.nN.rR.over_products  the same MHA as two products and a softmax, over ours: faster still for one query
decode.nN.rR.over_torch     the same factored step in torch's operations (`torch_impl`), over ours
decode.nN.rR.of_tolerance   our largest error over what the error budget of `attnlab.parity` allows
turned.over_cached          a cache that is turned as it is read, pair-aligned, over one that was turned when written
expanded.over_factored      keys made whole and turned as they are read, over latents that turn: what any factor costs
two_threads                 what a second thread gains
decode.extra_memory         peak of resident memory of a step beside cache and output
times.NAME                  the times themselves

All begin with "lrkv.".

N tokens are cached, 32 heads of width 128, latents of rank R for keys and for values, one shared pair; float32, one
query. Bytes of an MHA cache over those of LRKV: 2.13, 3.56 and 6.40 at ranks 56, 32 and 16. All cores are used but for
the last rows. Tasks take turns; a ratio is taken inside a round, and its row is the median over rounds.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from attnlab import bench, parity
from attnlab.bench import Seconds, _machine, _memory, ratios
from attnlab.bench._machine import Rows, Tasks, Times

__all__ = ["MEMORY", "NEEDS", "about", "rows"]

NEEDS = ("numba", "threadpoolctl", "torch")
HEADS, K = 32, 128
RANKS = (56, 32, 16)
LENGTHS = {2**13: 8, 2**17: 1}  # cached tokens, and how many steps a sample has
ROUNDS = 11
TURNED, TURNED_RANK = 2**13, 16

OF_READ, OVER_TORCH = 0.85, 1.5  # targets
OVER_SDPA = {56: 2.1, 32: 3.5, 16: 6.0}
EXTRA_MIB = 2.0
MEMORY_LENGTHS = (2**15, 2**16)
LIMIT = 2**31  # bytes that have to stay free beside the caches


def about() -> dict[str, Any]:
    """What else was measured on: all threads."""
    import torch

    return {"threads": torch.get_num_threads()}


def rows() -> Rows:
    """Measure everything, some minutes."""
    import torch  # before Numba starts its threads: with these there first, its attention takes twelve times as long

    memory = memory_rows()  # while this process is small
    cores = torch.get_num_threads()
    bench.threads(cores)
    result: Rows = []
    with _memory.freed_is_kept():
        seconds: dict[str, list[Seconds]] = {}
        for n, again in LENGTHS.items():
            missing = _missing(n)
            if missing:
                result += left_out_rows(n, missing)
                continue
            steps = Steps(n)
            times = bench.measure(step_tasks(steps, again, cores), ROUNDS)
            result += [*step_rows(n, times), *error_rows(steps)]
            seconds |= {f"n{n}.{name}": [Seconds(*(x / again for x in s)) for s in of] for name, of in times.items()}
            del steps
        turned = bench.measure(turned_tasks(), ROUNDS)
        threads = bench.measure(thread_tasks(), ROUNDS) if cores > 1 else None
    bench.threads(cores)
    machine = bench.measure(machine_tasks(), ROUNDS)
    return [*result, *turned_rows(turned), thread_row(threads), *memory, *machine_rows(machine, cores),
            *time_rows(seconds | turned)]  # fmt: skip


# -- caches --


class Steps:
    """One decode step over so many tokens: an MHA cache as torch likes it best, and one in factors of each rank."""

    def __init__(self, n: int, ranks: tuple[int, ...] = RANKS, dense: bool = True):
        from attnlab.bench._tokens import tokens

        self.n = n
        self.q = tokens(1, 1, HEADS, K)
        self.dense = [tokens(stream, HEADS * n, 1, K).reshape(1, HEADS, n, K) for stream in (2, 3) if dense]
        shared = {"k_shared": tokens(4, n, 1, K), "v_shared": tokens(5, n, 1, K)}
        self.factored = {rank: {**shared, **_latents(n, rank)} for rank in ranks}

    def ours(self, rank: int) -> np.ndarray:
        """The step in Numba."""
        from attnlab.lrkv import numba_impl

        return numba_impl.attention(self.q, **self.factored[rank])

    def torch(self, rank: int) -> Callable[[], Any]:
        """The step in torch's operations."""
        import torch

        from attnlab.lrkv import torch_impl

        given = {name: torch.from_numpy(x) for name, x in {"q": self.q, **self.factored[rank]}.items()}

        def step() -> Any:
            with torch.no_grad():
                return torch_impl.attention(**given)

        return step

    def mha(self) -> dict[str, Callable[[], Any]]:
        """Ways to have torch attend to a whole cache of every head."""
        import torch
        from torch.nn.functional import scaled_dot_product_attention

        q, (k, v) = torch.from_numpy(self.q).transpose(1, 2), map(torch.from_numpy, self.dense)
        one, flat_k, flat_v = q[0], k[0], v[0]

        def products() -> Any:
            return torch.bmm(torch.softmax(torch.bmm(one, flat_k.transpose(1, 2)) * K**-0.5, -1), flat_v)

        return {"sdpa": partial(scaled_dot_product_attention, q, k, v), "products": products}

    def read(self, rank: int, threads: int) -> dict[str, Callable[[], Any]]:
        """The ways to read a cache in factors once."""
        import torch

        from attnlab.bench._read import read

        cache = [x for name, x in self.factored[rank].items() if "factor" not in name]
        tensors = [torch.from_numpy(x) for x in cache]
        return {"torch": lambda: [x.sum() for x in tensors], "ours": partial(read, cache, threads)}


def _latents(n: int, rank: int) -> dict[str, np.ndarray]:
    from attnlab.bench._tokens import tokens

    factor = {name: tokens(stream, HEADS, K, rank)[0] * rank**-0.5 for name, stream in (("k", 8), ("v", 9))}
    return {
        "k_latent": tokens(6, n, HEADS, rank),
        "v_latent": tokens(7, n, HEADS, rank),
        "k_factor": factor["k"],
        "v_factor": factor["v"],
    }


def cache_bytes(n: int, rank: int) -> int:
    """Of a cache in factors."""
    return 4 * n * 2 * (K + HEADS * rank)


def _missing(n: int) -> str:
    """What stands in the way of this length: a sentence, or nothing."""
    needed = 8 * n * HEADS * K + sum(cache_bytes(n, rank) for rank in RANKS) + LIMIT
    free = _memory.available_bytes()
    if free is None or free >= needed:
        return ""
    return f"caches of {n:,} tokens need {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} are free"


# -- the step --


def step_tasks(steps: Steps, again: int, threads: int) -> Tasks:
    """Ours, torch's, and reading, for every rank; so many steps a sample."""
    tasks: Tasks = {f"mha.{way}": task for way, task in steps.mha().items()}
    for rank in steps.factored:
        tasks |= {f"r{rank}.read.{who}": task for who, task in steps.read(rank, threads).items()}
        tasks |= {f"r{rank}.ours": partial(steps.ours, rank), f"r{rank}.torch": steps.torch(rank)}
    return {name: partial(_again, task, again) for name, task in tasks.items()}


def _again(task: Callable[[], Any], times: int) -> Any:
    for _ in range(times):
        result = task()
    return result


def fastest(seconds: Times, *names: str) -> list[Seconds]:
    """The fastest of these tasks in each round."""
    return [min(turn) for turn in zip(*(seconds[name] for name in names), strict=True)]


def step_rows(n: int, seconds: Times) -> Rows:
    """Each rank against its limits."""
    result = []
    for rank, id in _ids(n):
        ours = seconds[f"r{rank}.ours"]
        reading = fastest(seconds, f"r{rank}.read.torch", f"r{rank}.read.ours")
        fewer = HEADS * K / (K + HEADS * rank)
        again = LENGTHS[n]
        rate = [again * cache_bytes(n, rank) / 1e9 / s.wall for s in reading]
        result += [
            bench.row(f"{id}.of_read", ratios(reading, ours), "", better="higher", target=OF_READ,
                      note=f"read at {np.median(rate):.1f} GB/s"),
            bench.row(f"{id}.over_sdpa", ratios(seconds["mha.sdpa"], ours), "", better="higher",
                      target=OVER_SDPA[rank], note=f"bytes are {fewer:.2f} to 1"),
            bench.row(f"{id}.over_products", ratios(seconds["mha.products"], ours), "", better="higher"),
            bench.row(f"{id}.over_torch", ratios(seconds[f"r{rank}.torch"], ours), "", better="higher",
                      target=OVER_TORCH),
        ]  # fmt: skip
    return result


def left_out_rows(n: int, why: str) -> Rows:
    """The same rows where there is no room for the caches."""
    targets = {"of_read": dict.fromkeys(RANKS, OF_READ), "over_sdpa": OVER_SDPA,
               "over_torch": dict.fromkeys(RANKS, OVER_TORCH)}  # fmt: skip
    return [
        bench.left_out(f"{id}.{name}", "", why, better="higher", target=target[rank])
        for rank, id in _ids(n)
        for name, target in targets.items()
    ]


def _ids(n: int) -> Iterator[tuple[int, str]]:
    for rank in RANKS:
        yield rank, f"lrkv.decode.n{n}.r{rank}"


def error_rows(steps: Steps) -> Rows:
    """Our outputs against the float64 reference, by the budget of a float32 implementation."""
    from attnlab.lrkv import numba_impl, reference

    result = []
    for rank, id in _ids(steps.n):
        if rank not in steps.factored:
            continue
        few = slice(0, 2**13)
        given: dict[str, Any] = {name: x if "factor" in name else x[:, few] for name, x in steps.factored[rank].items()}
        exact, low = (reference.attention(steps.q, **given, dtype=dtype) for dtype in (np.float64, np.float32))
        seen = parity.compare(numba_impl.attention(steps.q, **given), exact, low, terms=exact_terms(given))
        note = f"error {seen.max_rel:.1e}, allowed {seen.tolerance:.1e}; {given['k_shared'].shape[1]:,} tokens"
        result.append(bench.row(f"{id}.of_tolerance", [seen.max_rel / seen.tolerance], "", better="lower", target=1.0,
                                note=note))  # fmt: skip
    return result


def exact_terms(given: dict[str, Any]) -> int:
    """How many terms an output adds up: tokens, and those of a logit."""
    return int(given["k_shared"].shape[1] + K)


# -- turning --


def turned_tasks() -> Tasks:
    """A cache that was turned when it was written, one that is turned as it is read, one whose keys are made whole."""
    from attnlab.lrkv import Rope, numba_impl, rope, rotary

    steps = Steps(TURNED, (TURNED_RANK,), dense=False)
    given, usual = steps.factored[TURNED_RANK], rope(K)
    planes = np.arange(TURNED_RANK // 2)
    given["k_factor"] = rotary.aligned_factor(HEADS, K, planes).astype(np.float32)
    turning: dict[str, Any] = {"rope": usual, "positions": np.arange(TURNED)}
    latent: dict[str, Any] = {"latent_rope": Rope(usual.frequency[planes])}
    again = LENGTHS[2**13]
    tasks = {
        "turned.cached": partial(numba_impl.attention, steps.q, **given),
        "turned.read": partial(numba_impl.attention, steps.q, **given, **turning, **latent),
        "turned.expanded": partial(numba_impl.attention, steps.q, **given, **turning),
    }
    return {name: partial(_again, task, 1 if "expanded" in name else again) for name, task in tasks.items()}


def turned_rows(seconds: Times) -> Rows:
    """What turning costs, and what making keys costs."""
    again = LENGTHS[2**13]
    note = f"{TURNED:,} tokens, rank {TURNED_RANK}"
    return [
        bench.row("lrkv.turned.over_cached", ratios(seconds["turned.read"], seconds["turned.cached"]), "",
                  better="lower", note=note),
        bench.row("lrkv.expanded.over_factored", ratios(seconds["turned.expanded"], seconds["turned.read"], again), "",
                  better="lower", note=note),
    ]  # fmt: skip


# -- threads, memory, machine, times --


def thread_tasks() -> Tasks:
    """The step with one thread and with two."""
    steps = Steps(2**15, (RANKS[-1],), dense=False)

    def on(number: int) -> None:
        bench.threads(number)
        steps.ours(RANKS[-1])

    return {f"long.{number}": partial(on, number) for number in (1, 2)}


def thread_row(seconds: Times | None) -> dict[str, Any]:
    """What the second thread gains."""
    id = "lrkv.two_threads"
    if seconds is None:
        return bench.left_out(id, "", "this machine has one core", better="higher")
    return bench.row(id, ratios(seconds["long.1"], seconds["long.2"]), "", better="higher",
                     note=f"{2**15:,} tokens, rank {RANKS[-1]}")  # fmt: skip


def _step_memory() -> _memory.Case:
    def case(length: int) -> list[np.ndarray]:
        steps = Steps(length, (RANKS[-1],), dense=False)
        return [steps.q, *steps.factored[RANKS[-1]].values()]

    def run(*given: np.ndarray) -> list[Any]:
        from attnlab.lrkv import numba_impl

        q, k_shared, v_shared, k_latent, v_latent, k_factor, v_factor = given
        return [numba_impl.attention(q, k_shared, v_shared, k_latent, v_latent, k_factor, v_factor)]

    return _memory.Case(case, run)


MEMORY: dict[str, Callable[[], _memory.Case]] = {"decode": _step_memory}


def memory_rows() -> Rows:
    """What a step takes beside what it was given and gives back: the same at any length."""
    return _memory.rows("lrkv", [*MEMORY], MEMORY_LENGTHS, lambda *_: EXTRA_MIB)


def machine_tasks() -> Tasks:
    """A product on all threads."""
    import torch

    from attnlab.bench._tokens import tokens

    a = torch.from_numpy(tokens(4, _machine.SQUARE, 1, _machine.SQUARE)[0, :, 0])
    c = torch.empty_like(a)
    return {"sgemm": lambda: torch.mm(a, a, out=c)}


def machine_rows(seconds: Times, threads: int) -> Rows:
    """What the machine can do on all threads, and whether it was this process's alone."""
    gemm = seconds["sgemm"]
    return [
        bench.row("machine.sgemm", [2e-9 * _machine.SQUARE**3 / s.wall for s in gemm], "GF/s", better="higher",
                  note=f"torch, {threads} threads"),
        bench.row("machine.core_share", [s.cpu / s.wall / threads for s in gemm], "", better="higher",
                  target=_machine.CORE_SHARE, note="CPU time of the product over wall time and threads"),
    ]  # fmt: skip


def time_rows(seconds: Times) -> Rows:
    """Each by itself, in milliseconds a step."""
    result = []
    for name, times in seconds.items():
        again = LENGTHS[2**13] if name in ("turned.cached", "turned.read") else 1
        wall, cpu = ([1e3 / again * x for x in part] for part in zip(*times, strict=True))
        result.append(bench.row(f"lrkv.times.{name}", wall, "ms", better="lower", cpu=cpu))
    return result
