"""The least that a search of codes can do: measure every distance, into a block that is overwritten."""

from attnlab.hashattention import scan
from attnlab.lanes import compiled

__all__ = ["BLOCK", "bare"]

BLOCK = 4096


@compiled
def bare(codes, query, n, block):
    """Distances of n codes of 32 bits, n a multiple of BLOCK."""
    for start in range(0, n, BLOCK):
        scan.singles8(codes + 4 * start, query, BLOCK, block)
