"""What every panel and notebook feeds to attention: toy tokens in clusters, or a window of a real head.

Toy tokens are drawn from the seed by the counter-based generator of `attnlab.draws`; panels/inputs.js draws the same
ones. A real head is a few layers' post-RoPE q, k, v of a language model on real text (`attnlab.data`).
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from attnlab import draws
from attnlab.arrays import Array, Float, one_of
from attnlab.dense import unit

__all__ = ["INPUTS", "STREAMS", "TOY", "Inputs", "data", "inputs", "spec", "width"]

TOY = "toy"
INPUTS = (TOY, *(f"layer {layer}, head {head}" for layer in (2, 9, 21) for head in range(3)))
STREAMS = {"centres": 2, "queries": 3, "keys": 4, "value centres": 5, "values": 6}  # stream 1 is each mechanism's own
CLUSTERS = 4
SPREAD = 0.6  # of a token around its cluster's centre
REAL_WIDTH = 64  # of the shipped model's heads
REAL_START = 344  # first token of the shipped text that a panel shows: code and prose alternate there
SHORTEST_WINDOW = 64  # that travels to a browser; longer ones double it


class Inputs(NamedTuple):
    """One sequence, one head, and a word for each token."""

    q: Float[Array, "1 T 1 K"]
    k: Float[Array, "1 T 1 K"]
    v: Float[Array, "1 T 1 V"]
    tokens: tuple[str, ...]


def inputs(name: str, tokens: int, head_width: int, seed: int) -> Inputs:
    """The first `tokens` positions of the input of this name, one of INPUTS; width and seed are those of toy tokens."""
    return _toy(tokens, head_width, seed) if one_of("input", name, INPUTS) == TOY else _real(name, tokens)


def width(name: str, head_width: int) -> int:
    """The head width in force: the dial's for toy tokens, the model's for a real head."""
    return head_width if name == TOY else REAL_WIDTH


def spec() -> dict[str, Any]:
    """What panels/inputs.js has to know to draw the same toy tokens, and to read a real head."""
    toy = {"toy": TOY, "streams": STREAMS, "clusters": CLUSTERS, "spread": SPREAD}
    return toy | {"real_width": REAL_WIDTH, "shortest_window": SHORTEST_WINDOW}


def data(name: str, tokens: int) -> dict[str, Any] | None:
    """What a browser cannot draw: None for toy tokens; of a real head q, k, v as float16 bytes and its words.

    The window is the shortest of 64, 128, 256, ... tokens that holds `tokens`, so that a dial has room to move.
    """
    if one_of("input", name, INPUTS) == TOY:
        return None
    longest = SHORTEST_WINDOW
    while longest < tokens:
        longest *= 2
    return _window(name, longest)


@lru_cache(maxsize=4)  # the same object each time, so that nothing travels twice
def _window(name: str, tokens: int) -> dict[str, Any]:
    real = _real(name, tokens)
    arrays = {part: getattr(real, part)[0, :, 0].astype("<f2").tobytes() for part in "qkv"}
    return {"input": name, "width": REAL_WIDTH, "tokens": list(real.tokens), **arrays}


def _toy(T: int, K: int, seed: int) -> Inputs:
    """Tokens in four clusters, in order; q and k are unit vectors around the same centre, v is noise around another
    one.
    """
    cluster = np.arange(T) * CLUSTERS // T
    centre = unit(draws.normal(seed, STREAMS["centres"], CLUSTERS, K))[cluster]
    noise = {name: draws.normal(seed, STREAMS[name], T, K) for name in ("queries", "keys", "values")}
    q, k = (unit(centre + SPREAD / np.sqrt(K) * noise[name]) for name in ("queries", "keys"))
    v = draws.normal(seed, STREAMS["value centres"], CLUSTERS, K)[cluster] + SPREAD * noise["values"]
    names = tuple(f"{'abcd'[c]}{1 + t - int(np.argmax(cluster == c))}" for t, c in enumerate(cluster))
    q, k, v = (x[None, :, None] for x in (q, k, v))
    return Inputs(q, k, v, names)


def _real(name: str, tokens: int) -> Inputs:
    from attnlab import data  # reads the shipped file, so only where it is asked for

    layer, head = (int(part.split()[1]) for part in name.split(","))
    heads = data.real_heads()
    window = slice(REAL_START, REAL_START + tokens)
    q, k, v = (x[:, window, head : head + 1].astype(np.float64) for x in heads.layer(layer))
    return Inputs(q, k, v, tuple(heads.tokens[window]))
