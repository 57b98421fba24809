"""Tokens by the billion, for benchmarks: a function of their position, so that none is stored and all runs meet the
same ones.

`draws.normal` would do, at 124 ns a number (one core of the machine where these take 0.5 ns, and attention about 1).
A row's key is 64 bits of its mixed index (D. Stafford's Mix13, in Better bit mixing, 2011); a number's hash the two
multiplications of C. Wellons' lowbias32 (hash-prospector, 2018) with that key around them; and the number the sum of
the hash's four bytes, standardised: mean 0, variance 1, nearly Gaussian (kurtosis 2.7 where a Gaussian has 3; nothing
beyond 3.5).
"""

import numpy as np
from numba import njit, prange

from attnlab.arrays import Array, Float
from attnlab.lanes import aligned

__all__ = ["fill", "tokens"]

MEAN, DEVIATION = np.float32(510), np.float32((4 * (256**2 - 1) / 12) ** 0.5)  # of the sum of four uniform bytes
U32, U64 = np.uint32, np.uint64


def tokens(stream: int, T: int, H: int, K: int) -> Float[Array, "1 T H K"]:
    """The first T tokens of a stream, with every page of them in memory, each row of widths of 16 on cache lines of its
    own, as torch's are.
    """
    out = aligned(T, H * K, fill=False)
    fill(out, stream)
    return out.reshape(1, T, H, K)


def fill(out: Float[Array, "T N"], stream: int, first: int = 0) -> None:
    """Lay the numbers of tokens `first`, `first` + 1, ... of a stream (0 to 255) into rows of float32."""
    _fill(out, U64(stream << 56), U64(first))


@njit(parallel=True, cache=True)
def _fill(out, stream, first):
    for t in prange(out.shape[0]):
        word = stream ^ (first + U64(t))
        word = (word ^ (word >> U64(30))) * U64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> U64(27))) * U64(0x94D049BB133111EB)
        word ^= word >> U64(31)
        low, high = U32(word), U32(word >> U64(32))
        for c in range(out.shape[1]):
            # every step in 32 bits: eight numbers to a vector
            h = U32(low + U32(U32(c) * U32(0x9E3779B9)))
            h = U32(h ^ U32(h >> U32(16)))
            h = U32(U32(h * U32(0x7FEB352D)) ^ high)
            h = U32(h ^ U32(h >> U32(15)))
            h = U32(h * U32(0x846CA68B))
            h = U32(h ^ U32(h >> U32(16)))
            pairs = U32(U32(h & U32(0x00FF00FF)) + U32(U32(h >> U32(8)) & U32(0x00FF00FF)))
            total = U32(U32(pairs & U32(0xFFFF)) + U32(pairs >> U32(16)))
            out[t, c] = (np.float32(np.int32(total)) - MEAN) / DEVIATION
