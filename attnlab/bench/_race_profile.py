"""Where the time of RACE's CPU kernels goes: each step alone, over tokens that stay in the cache, so that what a whole
pass takes beyond the sum of its steps is waiting for memory.

python -m attnlab.bench._race_profile prints the table of docs/papers/race-speed.md.
"""

import time
from typing import Any

import numba
import numpy as np

from attnlab.bench._tokens import tokens
from attnlab.lanes import NOTHING, Rows, address, aligned, take
from attnlab.race import cpu_kernels as kernels

H, K = 4, 128
TILES, ROUNDS = 10, 15  # a tile of 24 tokens of 4 heads is 48 KB; ten of them fit the second cache

__all__ = ["profile", "table"]


# Each step takes (x, t, h, z, p, bank, d); x are rows of tokens.


@numba.njit
def features(x, t, h, z, p, bank, d):
    kernels._phi(x, t, h, z.tile, z, p, d, d.phi, z.tile)


@numba.njit
def copy_values(x, t, h, z, p, bank, d):
    take(x, t, h, z.tile, z.tile, z.V, z.row, d.zeros, d.v)


@numba.njit
def write_state(x, t, h, z, p, bank, d):
    kernels._gather(d.psi, z.tile, z.S, kernels._lanes(z, h, bank))
    kernels._gathered(z, h, d.psi, d.v, bank, NOTHING, NOTHING)


@numba.njit
def read_state(x, t, h, z, p, bank, d):
    mass, _ = kernels._state(z, h, bank)
    kernels._weigh(d.phi, z.tile, mass, z.S, d.den)
    kernels._inverse(d.den, z.tile)
    kernels._read_tile(x, t, h, z.tile, z, d, bank, False, NOTHING)


@numba.njit
def meet_own(x, t, h, z, p, bank, d):
    kernels._meeting(d.phi, 1, z.tile, d.psi, z.S, d.meet, 0, NOTHING)
    kernels._earlier(d.meet, d.zeros)
    for i in range(0, z.tile, 8):
        kernels._row_sums(d.meet + 4 * i * z.tile, i + 8, d.den + 4 * i)


@numba.njit
def read_both(x, t, h, z, p, bank, d):
    kernels._mass_now(z, h, bank, d)
    kernels._weigh(d.phi, z.tile, d.mass, z.S, d.den)
    kernels._inverse(d.den, z.tile)
    kernels._read_tile(x, t, h, z.tile, z, d, bank, True, NOTHING)


STEPS = {  # step -> how often a pass takes it: forward, forward causal
    "features of q and k": (features, 2, 2),
    "v, copied": (copy_values, 1, 1),
    "keys into the state": (write_state, 1, 1),
    "queries from the state": (read_state, 1, 0),
    "queries and keys of the tile meet": (meet_own, 0, 1),
    "queries from the state and the tile": (read_both, 0, 1),
}


def profile(P: int, L: int, causal: bool) -> dict[str, float]:
    """Nanoseconds a token-head of each step of a forward pass, times how often it is taken."""
    q, planes, beta = tokens(0, 24, H, K), 0.1 * tokens(3, L, P, K)[0], np.full(H, 2, np.float32)
    call = kernels._Call(q, q, q, planes, beta, causal, 1, [])
    z = call.z._replace(past_cache=1)
    size, places, shapes = kernels._layout(z, True)
    memory = aligned(size)
    memory[...] = np.abs(tokens(1, 1, 1, size)[0, 0, 0])
    at = [address(memory) + 4 * start for start, _ in places]
    d, bank = kernels.Desk(*at[: -len(shapes)]), kernels.Bank(*at[-len(shapes) :])
    p, x = kernels.Heads(*(at for at, _ in call.p)), aligned(1, TILES * z.tile, H, K)
    x[...] = tokens(2, *x.shape[1:])
    rows = Rows(address(x), H * K, K)
    return {
        name: times[causal] * _nanoseconds(step, rows, z, p, bank, d)
        for name, (step, *times) in STEPS.items()
        if times[causal]
    }


def _nanoseconds(step: Any, rows: Any, z: Any, p: Any, bank: Any, d: Any) -> float:
    @numba.njit(error_model="numpy")
    def run(rows, z, p, bank, d):
        for _ in range(TILES):
            for tile in range(TILES):
                for h in range(z.H):
                    step(rows, tile * z.tile, h, z, p, bank, d)

    run(rows, z, p, bank, d)
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run(rows, z, p, bank, d)
        times.append(time.perf_counter() - start)
    return 1e9 * float(np.median(times)) / TILES / TILES / z.tile / z.H


def table() -> str:
    """Markdown: steps by budget and mask."""
    columns = [(P, causal) for P in (2, 4) for causal in (False, True)]
    found = [profile(P, P, causal) for P, causal in columns]
    head = ["step", *(f"({P}, {P}){', causal' * causal}" for P, causal in columns)]
    lines = [[name, *(f"{x[name]:.1f}" if name in x else "" for x in found)] for name in STEPS]
    lines.append(["all steps, in the cache", *(f"{sum(x.values()):.1f}" for x in found)])
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))


if __name__ == "__main__":
    print(table())
