"""HashAttention on this CPU: its scan, its choice and a whole decode step beside what else one would type.

top64.CODES.over_faiss       time of faiss over ours, the 64 nearest of 1,048,576 codes of 32 bits: the faster of its
                             two modes, in each round
top64.CODES.over_bare_scan   its kernel over that of the distances alone, one block over the other; both are handed the
                             memory that they write to
top64.bitsB.over_faiss       the same at 64, 128 and 256 bits
top64.queries32.over_faiss   32 queries at once, 8,388,608 codes
sixteenth.over_faiss         the n/16 nearest of n = 131,072, the budget of HashAttention at 16 times sparsity
sixteenth.over_topk          over torch.topk on distances that are there already, in no order
sixteenth.over_argpartition  over NumPy's argpartition on the same as bytes
decode.over_sdpa             a whole decode step over 131,072 cached tokens of width 128 at 32 times sparsity: the
                             query's code made, keys scanned, tokens selected, attended to; torch's attention of a
                             query over the same cache, over ours
decode.all_over_sdpa         the same with a budget of all tokens: how much of it is torch's kernel for one query
encode.of_sgemm              the rate of coding 16,384 keys (128-128-128-32), over that of sgemm
decode.two_threads           what a second thread gains the step over 1,048,576 tokens
decode.extra_memory          peak of resident memory of the step beside cache and output
CASE.differences             how many of our indices are not those of a stable sort of the distances
times.NAME                   the times themselves; decode.encode and decode.select are parts of decode.ours

All begin with "hashattention.".

CODES: `random` are uniform, of which a small part lies near a query; `crowded` has 500 different codes, as trained
middle layers have, so that many tie at the cut. float32, one thread but for the row of two, one head. Tasks take turns;
a ratio is taken inside a round, and its row is the median over rounds; what takes less than a millisecond is done
several times. Indices of ours come in rising order, ties by lowest index; faiss sorts by distance, torch in no order of
equals.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attnlab import bench
from attnlab.bench import Seconds, _machine, _memory, ratios
from attnlab.bench._machine import Rows, Tasks, Times
from attnlab.hashattention import Maps

__all__ = ["MEMORY", "NEEDS", "about", "rows"]

NEEDS = ("faiss", "numba", "threadpoolctl", "torch")
N_SCAN, N_MANY, N_CHOICE, N_STEP, N_LONG, N_ENCODE = 2**20, 2**23, 2**17, 2**17, 2**20, 2**14
QUERIES, TOP, PART, SPARSITY, FIXED = 32, 64, 16, 32, 128
K, HIDDEN, BITS, CROWDED = 128, 128, 32, 500
STEPS = 16  # with different queries
AGAIN = 50  # searches in a sample, so that who comes first does not pay for all: the codes fit the last cache
WIDER = (64, 128, 256)  # bits
ROUNDS, MANY_ROUNDS, STEP_ROUNDS = 11, 5, 11

OVER_FAISS, OF_SCAN, OVER_FAISS_MANY, OVER_FAISS_PART, OVER_TOPK, OVER_SDPA = 2.5, 1.3, 3.0, 6.0, 10.0, 15.0  # targets
EXTRA_MIB = 1.0
MEMORY_LENGTHS = (2**16, 2**17)
ALL: dict[str, Any] = {"sinks": 0, "window": 0, "causal": False}
STEP: dict[str, Any] = {"sinks": FIXED, "window": FIXED, "causal": True}


def about() -> dict[str, Any]:
    """What else was measured on: one thread."""
    return {"threads": 1}


def rows() -> Rows:
    """Measure everything, about two minutes."""
    import faiss
    import numba

    memory = memory_rows()  # while this process is small
    cores = numba.get_num_threads()
    bench.single_threaded()
    faiss.omp_set_num_threads(1)
    scans, differences = _measured(scan_cases(), ROUNDS)
    many, more = _measured(many_cases(), MANY_ROUNDS)
    with _memory.freed_is_kept():
        steps = Step(N_STEP)
        step = bench.measure(step_tasks(steps), STEP_ROUNDS)
        threads = bench.measure(long_tasks(), MANY_ROUNDS) if cores > 1 else None
    bench.threads(1)
    wrong = steps.differences()
    more.append(bench.row("hashattention.decode.differences", [wrong], "indices", better="lower", target=0))
    result = [*scan_rows(scans), *many_rows(many), *step_rows(step), thread_row(threads), *memory]
    return [*result, *differences, *more, *_machine.rows(step, N_ENCODE * K), *time_rows(scans, many, step)]


# -- codes --


def codes(stream: int, n: int, *, bits: int = BITS, distinct: int | None = None) -> np.ndarray:
    """N codes of so many bits, a multiple of 32, uint32 [1, n, 1, W], uniform; or so many different ones, each drawn
    again and again.
    """
    random = np.random.Generator(np.random.Philox(key=stream))
    if distinct is None:
        return random.integers(0, 2**32, (1, n, 1, bits // 32), dtype=np.uint32)
    return codes(stream + 1, distinct)[:, random.integers(0, distinct, n)]


class Case:
    """`k` nearest of the codes for each query, by us and by others; one call is done `times` times."""

    def __init__(self, queries: np.ndarray, keys: np.ndarray, k: int, times: int = 1):
        from attnlab.hashattention import cpu_kernels

        self.queries, self.keys, self.k, self.times = queries, keys, k, times
        self.ours = partial(cpu_kernels.select, queries, keys, budget=k, **ALL, threads=1)

    def tasks(self, *peers: str) -> Tasks:
        """Ours and the named peers."""
        every: dict[str, Callable[[], Any]] = {"ours": self.ours}
        every |= {peer: getattr(self, f"_{peer}")() for peer in peers}
        return {name: partial(_again, task, self.times) for name, task in every.items()}

    def differences(self) -> int:
        """Of our indices from those of a stable sort."""
        found = self.ours()[0, :, 0]
        wrong = 0
        for query, set_ in zip(self.queries[0, :, 0], found, strict=True):
            near = np.argsort(_far(query, self.keys), kind="stable")[: self.k]
            wrong += int((np.sort(near) != set_).sum())
        return wrong

    def _kernel(self) -> Callable[[], Any]:
        from attnlab.hashattention import cpu_kernels

        call = cpu_kernels.Call(self.queries, self.keys, budget=self.k, **ALL)
        return partial(call.choose, call.jobs, call.desk(), np.zeros((len(call.jobs), call.largest), np.int64))

    def _faiss(self, heap: bool) -> Callable[[], Any]:
        import faiss

        words = self.keys.shape[-1]
        index: Any = faiss.IndexBinaryFlat(32 * words)
        index.add(self.keys.reshape(-1, words).view(np.uint8))
        index.use_heap = heap
        return partial(index.search, self.queries.reshape(-1, words).view(np.uint8), self.k)

    def _faiss_heap(self) -> Callable[[], Any]:
        return self._faiss(True)

    def _faiss_counting(self) -> Callable[[], Any]:
        return self._faiss(False)

    def _bare_scan(self) -> Callable[[], Any]:
        from attnlab.bench import _hash_scan
        from attnlab.lanes import address

        self.block = np.empty(_hash_scan.BLOCK, np.uint8)
        return partial(
            _hash_scan.bare, address(self.keys), address(self.queries), self.keys.shape[1], address(self.block)
        )

    def _argpartition(self) -> Callable[[], Any]:
        far = np.bitwise_count(self.keys.ravel() ^ self.queries.ravel()).astype(np.uint8)
        return partial(np.argpartition, far, self.k)

    def _topk(self) -> Callable[[], Any]:
        import torch

        far = np.bitwise_count(self.keys.reshape(1, -1) ^ self.queries.reshape(-1, 1)).astype(np.int32)
        return partial(torch.topk, torch.from_numpy(far), self.k, largest=False, sorted=False)


def _far(query: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Hamming distances [n] of keys [1, n, 1, W] from a query [W]."""
    return np.bitwise_count(keys[0, :, 0] ^ query).sum(axis=-1, dtype=np.uint16)


def _again(task: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        task()


def scan_cases() -> dict[str, tuple[Case, tuple[str, ...]]]:
    """One query each."""
    faiss = ("faiss_heap", "faiss_counting")
    return {
        "top64.random": (Case(codes(1, 1), codes(2, N_SCAN), TOP, AGAIN), (*faiss, "kernel", "bare_scan")),
        "top64.crowded": (
            Case(codes(1, 1), codes(3, N_SCAN, distinct=CROWDED), TOP, AGAIN),
            (*faiss, "kernel", "bare_scan"),
        ),
        "sixteenth": (Case(codes(1, 1), codes(5, N_CHOICE), N_CHOICE // PART, AGAIN), (*faiss, "topk", "argpartition")),
        **{f"top64.bits{b}": (Case(codes(1, 1, bits=b), codes(9, N_SCAN, bits=b), TOP, AGAIN), faiss) for b in WIDER},
    }


def many_cases() -> dict[str, tuple[Case, tuple[str, ...]]]:
    """32 queries over a database that no cache holds."""
    return {"top64.queries32": (Case(codes(6, QUERIES), codes(7, N_MANY), TOP), ("faiss_heap", "faiss_counting"))}


def _measured(cases: dict[str, tuple[Case, tuple[str, ...]]], rounds: int) -> tuple[Times, Rows]:
    tasks = {f"{name}.{who}": task for name, (case, peers) in cases.items() for who, task in case.tasks(*peers).items()}
    wrong = [
        bench.row(f"hashattention.{name}.differences", [case.differences()], "indices", better="lower", target=0)
        for name, (case, _) in cases.items()
    ]
    return bench.measure(tasks, rounds), wrong


def _faster_faiss(seconds: Times, case: str) -> list[Seconds]:
    modes = zip(seconds[f"{case}.faiss_heap"], seconds[f"{case}.faiss_counting"], strict=True)
    return [min(pair, key=lambda s: s.wall) for pair in modes]


def _over_faiss(seconds: Times, case: str, target: float, id: str) -> dict[str, Any]:
    over = ratios(_faster_faiss(seconds, case), seconds[f"{case}.ours"])
    return bench.row(id, over, "", better="higher", target=target)


def scan_rows(seconds: Times) -> Rows:
    """One query against faiss, the bare scan and torch."""
    result = []
    for kind in ("random", "crowded"):
        case = f"top64.{kind}"
        of_scan = ratios(seconds[f"{case}.kernel"], seconds[f"{case}.bare_scan"])
        result += [
            _over_faiss(seconds, case, OVER_FAISS, f"hashattention.{case}.over_faiss"),
            bench.row(f"hashattention.{case}.over_bare_scan", of_scan, "", better="lower", target=OF_SCAN),
        ]
    topk = ratios(seconds["sixteenth.topk"], seconds["sixteenth.ours"])
    others = ratios(seconds["sixteenth.argpartition"], seconds["sixteenth.ours"])
    for bits in WIDER:
        over = ratios(_faster_faiss(seconds, f"top64.bits{bits}"), seconds[f"top64.bits{bits}.ours"])
        result.append(bench.row(f"hashattention.top64.bits{bits}.over_faiss", over, "", better="higher"))
    return [
        *result,
        bench.row("hashattention.sixteenth.over_argpartition", others, "", better="higher"),
        _over_faiss(seconds, "sixteenth", OVER_FAISS_PART, "hashattention.sixteenth.over_faiss"),
        bench.row("hashattention.sixteenth.over_topk", topk, "", better="higher", target=OVER_TOPK),
    ]


def many_rows(seconds: Times) -> Rows:
    """32 queries against faiss."""
    return [_over_faiss(seconds, "top64.queries32", OVER_FAISS_MANY, "hashattention.top64.queries32.over_faiss")]


# -- a decode step --


def maps() -> Maps:
    """A map of the paper's size, 128-128-128-32, with weights that nobody trained: a step takes as long for any."""
    random = np.random.Generator(np.random.Philox(key=8))
    sizes = ((K, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, BITS))
    weights = tuple(random.normal(size=(1, *size)) / size[0] ** 0.5 for size in sizes)
    return Maps(weights, tuple(np.zeros((1, size[1])) for size in sizes))


def cache(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """STEPS queries [1, STEPS, 1, K], and n keys and values [1, n, 1, K]."""
    from attnlab.bench._tokens import tokens

    return tokens(0, STEPS, 1, K), tokens(1, n, 1, K), tokens(2, n, 1, K)


def _budget(n: int) -> int:
    """What is retrieved, so that with the fixed windows one in SPARSITY is read."""
    return max(0, n // SPARSITY - 2 * FIXED)


class Step:
    """Decode steps over n cached tokens, one for each of STEPS queries: what they select is more than the caches hold,
    and the next query finds none of it there.
    """

    def __init__(self, n: int):
        from attnlab.hashattention import numba_impl

        q, self.k, self.v = cache(n)
        self.queries = [q[:, t : t + 1] for t in range(STEPS)]
        self.decoder = numba_impl.Decoder(maps())
        self.key_codes = numba_impl.encode(self.k, maps())
        self.query_codes = [self.decoder.encode(q) for q in self.queries]
        self.sizes = {"budget": _budget(n), **STEP}

    def whole(self) -> list[np.ndarray]:
        """Code, scan, choice, attention."""
        return [self.decoder.step(q, self.k, self.v, self.key_codes, **self.sizes) for q in self.queries]

    def all(self) -> np.ndarray:
        """One step that reads everything."""
        return self.decoder.step(self.queries[0], self.k, self.v, self.key_codes, budget=1.0, **STEP)

    def differences(self) -> int:
        """How many indices of the first step are not those of a stable sort between the windows."""
        n, budget = self.k.shape[1], self.sizes["budget"]
        far = _far(self.query_codes[0][0, 0, 0], self.key_codes[:, FIXED : n - FIXED])
        near = np.sort(FIXED + np.argsort(far, kind="stable")[:budget])
        expected = np.concatenate([np.arange(FIXED), near, np.arange(n - FIXED, n)])
        return int((self.select()[0][0, 0, 0] != expected).sum())

    def encode(self) -> list[np.ndarray]:
        """The codes of the queries alone."""
        return [self.decoder.encode(q) for q in self.queries]

    def select(self) -> list[np.ndarray]:
        """Scan and choice alone."""
        from attnlab.hashattention import numba_impl

        return [numba_impl.select(code, self.key_codes, **self.sizes) for code in self.query_codes]


def step_tasks(ours: Step) -> Tasks:
    """The step, its parts, torch's attention over the same cache, and keys coded beside the machine's limits."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from attnlab.bench._tokens import tokens
    from attnlab.hashattention import cpu_kernels

    q, k, v = (torch.from_numpy(x).transpose(1, 2) for x in (ours.queries[0], ours.k, ours.v))
    keys = tokens(3, N_ENCODE, 1, K)
    tasks: Tasks = {
        "decode.ours": ours.whole,
        "decode.encode": ours.encode,
        "decode.select": ours.select,
        "decode.all": ours.all,
        "decode.sdpa": lambda: scaled_dot_product_attention(q, k, v),
        "encode": partial(cpu_kernels.encode, keys, cpu_kernels.Prepared(maps()), threads=1),
    }
    return _machine.beside(tasks, keys)


def step_rows(seconds: Times) -> Rows:
    """The step against dense attention; coding against the product."""
    over = ratios(seconds["decode.sdpa"], seconds["decode.ours"], STEPS)
    whole = ratios(seconds["decode.sdpa"], seconds["decode.all"])
    read = N_STEP // SPARSITY
    fewer = 2 * K * N_STEP / (2 * K * read + N_STEP)
    note = f"{read:,} of {N_STEP:,} tokens are read; the bytes that must be are {fewer:.1f} to 1"
    flops = 2 * N_ENCODE * (2 * K * HIDDEN + HIDDEN * BITS)
    of_sgemm, library = _machine.of_sgemm(seconds, "encode", flops)
    return [
        bench.row("hashattention.decode.over_sdpa", over, "", better="higher", target=OVER_SDPA, note=note),
        bench.row("hashattention.decode.all_over_sdpa", whole, "", better="higher"),
        bench.row("hashattention.encode.of_sgemm", of_sgemm, "", better="higher", note=library),
    ]


def long_tasks() -> Tasks:
    """The step over a longer cache, with one thread and with two."""
    ours = Step(N_LONG)

    def on(number: int) -> None:
        bench.threads(number)
        ours.whole()

    return {f"long.{number}": partial(on, number) for number in (1, 2)}


def thread_row(seconds: Times | None) -> dict[str, Any]:
    """What the second thread gains."""
    id = "hashattention.decode.two_threads"
    if seconds is None:
        return bench.left_out(id, "", "this machine has one core", better="higher")
    note = f"{N_LONG:,} tokens; the keys are shared out, and reading rows here and there is bound by memory"
    return bench.row(id, ratios(seconds["long.1"], seconds["long.2"]), "", better="higher", note=note)


# -- memory --


def _step_memory() -> _memory.Case:
    def case(length: int) -> list[np.ndarray]:
        from attnlab.hashattention import numba_impl

        q, k, v = cache(length)
        return [q, k, v, numba_impl.encode(k, maps())]

    def run(q: np.ndarray, k: np.ndarray, v: np.ndarray, key_codes: np.ndarray) -> list[Any]:
        from attnlab.hashattention import numba_impl

        decoder = numba_impl.Decoder(maps())
        return [decoder.step(q[:, :1], k, v, key_codes, budget=_budget(k.shape[1]), **STEP)]

    return _memory.Case(case, run)


MEMORY: dict[str, Callable[[], _memory.Case]] = {"decode": _step_memory}


def memory_rows() -> Rows:
    """What a step takes beside what it was given and gives back; allowed are a byte a key, the set, and a MiB."""
    return _memory.rows(
        "hashattention", [*MEMORY], MEMORY_LENGTHS, lambda _, n: EXTRA_MIB + (n + 8 * n // SPARSITY) / 2**20
    )


# -- times --


def time_rows(scans: Times, many: Times, step: Times) -> Rows:
    """Each by itself: searches in ns a code and query, parts of a step in microseconds."""
    result = []
    for name, times in {**scans, **many}.items():
        case = name.rpartition(".")[0]
        n, queries, again = {"sixteenth": (N_CHOICE, 1, AGAIN), "top64.queries32": (N_MANY, QUERIES, 1)}.get(
            case, (N_SCAN, 1, AGAIN)
        )
        per = 1e9 / n / queries / again
        result.append(_time(f"hashattention.times.{name}", times, per, "ns/code", f"{n:,} codes"))
    for name in ("ours", "encode", "select", "all", "sdpa"):
        per = 1e6 if name in ("all", "sdpa") else 1e6 / STEPS
        result.append(_time(f"hashattention.times.decode.{name}", step[f"decode.{name}"], per, "us", ""))
    return [
        *result,
        _time("hashattention.times.encode", step["encode"], 1e9 / N_ENCODE, "ns/key", f"{N_ENCODE:,} keys"),
    ]


def _time(id: str, seconds: list[Seconds], per: float, unit: str, note: str) -> dict[str, Any]:
    cpu = [per * s.cpu for s in seconds]
    return bench.row(id, [per * s.wall for s in seconds], unit, better="lower", note=note, cpu=cpu)
