"""Random arrays that Python and the browser draw alike: Threefry-2x32 with 20 rounds, a generator without state.

The number at (row, column) depends on seed, stream, row and column alone, so one more row or column never changes the
others. `panels/draws.js` is the twin: integers and uniforms agree bit for bit, normals to 1e-12.
Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
"""

import numpy as np

ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
PARITY = 0x1BD11BDA  # the key schedule's constant, from Skein


def bits(seed: int, stream: int, rows: int | np.ndarray, columns: int | np.ndarray) -> np.ndarray:
    """Two random 32-bit words for each (row, column): uint32 [rows, columns, 2].

    `rows` and `columns` are counts, or one-axis arrays of the numbers wanted.
    Raises ValueError when seed, stream, a row, a column or a count is not a whole number in [0, 2^32).
    """
    k0, k1 = _words("seed", seed), _words("stream", stream)
    key = (k0, k1, k0 ^ k1 ^ np.uint32(PARITY))
    x0, x1 = np.broadcast_arrays(_axis("rows", rows)[:, None], _axis("columns", columns)[None, :])
    x0, x1 = x0 + key[0], x1 + key[1]  # uint32 arrays wrap around, as the generator wants
    for turn in range(20):
        left = np.uint32(ROTATIONS[turn % 8])
        x0 = x0 + x1
        x1 = (x1 << left | x1 >> np.uint32(32) - left) ^ x0
        if turn % 4 == 3:
            inject = turn // 4 + 1
            x0 = x0 + key[inject % 3]
            x1 = x1 + key[(inject + 1) % 3] + np.uint32(inject)
    return np.stack([x0, x1], axis=-1)


def uniform(seed: int, stream: int, rows: int | np.ndarray, columns: int | np.ndarray) -> np.ndarray:
    """Uniform numbers in [0, 1) with 53 bits: float64 [rows, columns]; arguments as in `bits`."""
    words = bits(seed, stream, rows, columns)
    return ((words[..., 0] >> np.uint32(5)) * 2.0**26 + (words[..., 1] >> np.uint32(6))) / 2.0**53


def normal(seed: int, stream: int, rows: int | np.ndarray, columns: int) -> np.ndarray:
    """Standard normal numbers by Box and Muller's cosine branch: float64 [rows, columns], two uniforms each.

    Raises ValueError as `bits`; `columns` is a count below 2^31.
    """
    pairs = uniform(seed, stream, rows, 2 * columns)
    return np.sqrt(-2.0 * np.log(1.0 - pairs[:, 0::2])) * np.cos(2.0 * np.pi * pairs[:, 1::2])


def _axis(name: str, numbers: int | np.ndarray) -> np.ndarray:
    numbers = _words(name, numbers)
    return np.arange(int(numbers), dtype=np.uint32) if numbers.ndim == 0 else numbers


def _words(name: str, numbers: int | np.ndarray) -> np.ndarray:
    numbers = np.asarray(numbers)
    if numbers.dtype.kind not in "iu" or numbers.ndim > 1 or np.any(numbers < 0) or np.any(numbers >= 2**32):
        raise ValueError(f"{name} must be a whole number in [0, 2^32) or a one-axis array of such, got {numbers!r}")
    return numbers.astype(np.uint32)
