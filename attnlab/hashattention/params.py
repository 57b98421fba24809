"""What HashAttention is told: learned maps, codes, budgets; the checks of its public doors; the dials of the panel.

Letters: b `bits`, m `budget`, h codes, F maps. What is learned is data: a map is an array argument, and so are the
codes that it made. B batch, T queries, S keys, H query heads, G key/value heads (a divisor of H), K and V widths,
W = ceil(b / 32) words of a code.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlab import draws, inputs
from attnlab.arrays import Array, Axes, Float, as_float, check, check_shape, dial, flag
from attnlab.data import Maps
from attnlab.dials import Dials, knob
from attnlab.inputs import INPUTS, TOY, Inputs

__all__ = [
    "LARGEST_BITS",
    "PROJECTIONS_STREAM",
    "HashParams",
    "Maps",
    "check_arguments",
    "check_codes",
    "check_maps",
    "check_selection",
    "check_size",
    "first_bits",
    "random_maps",
    "tokens_of",
    "words",
]

PROJECTIONS_STREAM = 1
ROWS_PER_HEAD = 8192  # of the stream of projections
LARGEST_BITS = 4096
LARGEST_SIZE = 2**40
Size = int | float  # of a set of tokens: a whole number of them, or a fraction of those that are visible


def words(bits: int) -> int:
    """W: how many 32-bit words hold so many bits."""
    return -(-bits // 32)


def random_maps(
    bits: int, heads: int, head_width: int, seed: int = 0, centre: Float[Array, "H K"] | None = None
) -> Maps:
    """Standard normal projections, the random-projection LSH: bit i is the sign of w_i . x, or of w_i . (x - centre).

    Row 8192 h + i of stream 1 is projection i of head h, so one more bit, head or column never changes the others.
    """
    dial("bits", bits, 1, LARGEST_BITS, integer=True)
    dial("heads", heads, 1, 2**19, integer=True)  # rows are counted in 32 bits
    dial("head_width", head_width, 1, 2**20, integer=True)
    rows = (ROWS_PER_HEAD * np.arange(heads)[:, None] + np.arange(bits)).ravel()
    w = draws.normal(seed, PROJECTIONS_STREAM, rows, head_width).reshape(heads, bits, head_width)
    shift = np.zeros((heads, bits))
    if centre is not None:
        check("centre", centre, "H K", {"H": (heads, "heads"), "K": (head_width, "head_width")})
        shift = -np.einsum("hbk,hk->hb", w, as_float(centre))
    return Maps((np.ascontiguousarray(np.swapaxes(w, 1, 2)),), (shift,))


def first_bits(maps: Maps, bits: int) -> Maps:
    """The maps of the first `bits` bits alone."""
    dial("bits", bits, 1, maps.bits, integer=True)
    return Maps((*maps.weights[:-1], maps.weights[-1][..., :bits]), (*maps.biases[:-1], maps.biases[-1][..., :bits]))


def tokens_of(size: Size, visible: int) -> int:
    """How many tokens a size is, where so many are visible: itself if whole, else that fraction of them, rounded down;
    never more than there are. A fraction as it is written: 0.29 of 100 are 29, though 0.29 in binary is a little less.
    """
    part = size if isinstance(size, (int, np.integer)) else float(size) * visible * (1 + 2**-50)
    return min(int(part), visible)


# -- the checks of the public doors --


def check_size(name: str, size: Any) -> None:
    """A whole number of tokens from 0 on, or a fraction in [0, 1] with a point: 1 is one token, 1.0 all of them."""
    whole = isinstance(size, (int, np.integer))
    number = isinstance(size, (int, float, np.integer, np.floating)) and not isinstance(size, (bool, np.bool_))
    if not number or not 0 <= size <= (LARGEST_SIZE if whole else 1):  # NaN fails this too
        raise ValueError(
            f"{name} must be a whole number of tokens up to 2^40, or a fraction from 0.0 to 1.0, got {size!r}"
        )


def check_codes(name: str, codes: Any, axes: str, sizes: Axes) -> None:
    """Codes are words of 32 bits: uint32, or int32 with the same bits, which is what torch computes with."""
    if not hasattr(codes, "shape") or str(codes.dtype).removeprefix("torch.") not in ("uint32", "int32"):
        came = str(codes.dtype).removeprefix("torch.") if hasattr(codes, "dtype") else type(codes).__name__
        raise TypeError(f"{name} must be words of 32 bits, uint32 or int32, got {came}")
    check_shape(name, codes, axes, sizes)
    if codes.shape[-1] == 0:
        raise ValueError(f"{name} must have at least one word a code, got shape {tuple(codes.shape)}")


def check_maps(name: str, maps: Any, heads: int, width: int, owner: str = "x") -> None:
    """Maps for so many heads of such a width, those of `owner`; layers that fit one another, finite numbers."""
    whole = isinstance(maps, Maps) and all(isinstance(part, (tuple, list)) for part in maps)
    if not whole or len(maps.weights) != len(maps.biases) or not maps.weights:
        came = f"{len(maps.weights)} and {len(maps.biases)}" if whole else type(maps).__name__
        raise ValueError(f"{name} must be Maps(weights, biases), as many of one as of the other, got {came}")
    before = (width, owner)
    for n, (weight, bias) in enumerate(zip(*maps, strict=True)):
        sizes: Axes = {"H": (heads, owner), "I": before}
        check(f"{name}.weights[{n}]", weight, "H I O", sizes)
        check(f"{name}.biases[{n}]", bias, "H O", sizes)
        before = (sizes["O"][0], f"{name}.weights[{n}]")
    dial(f"bits of {name}", before[0], 1, LARGEST_BITS, integer=True)


def check_arguments(q, k, v, query_codes, key_codes, *, budget, sinks, window, causal, scale, return_lse) -> None:
    """Refuse what no implementation can compute; each error names the argument, what was wanted and what came.

    q must be finite. k and v are not read for this: what is not selected may hold anything, as the spare end of a cache
    does.
    """
    of_q: Axes = {}
    check("q", q, "B T H K", of_q)
    sizes: Axes = {letter: of_q[letter] for letter in "BK"}
    check_shape("k", k, "B S G K", sizes, floating=True)
    check_shape("v", v, "B S G V", sizes, floating=True)
    _divides("k", sizes["G"][0], of_q["H"])
    known = {**{letter: of_q[letter] for letter in "BTH"}, "S": sizes["S"]}
    options: dict[str, Any] = {"budget": budget, "sinks": sinks, "window": window, "causal": causal}
    check_selection(query_codes, key_codes, **options, known=known, groups=sizes["G"][0])
    if scale is not None:
        dial("scale", scale, -1e30, 1e30)
    flag("return_lse", return_lse)


def check_selection(
    query_codes, key_codes, *, budget, sinks, window, causal, known: Axes | None = None, groups: int | None = None
) -> None:
    """The same for the codes and the sizes of sets; `known` sizes are those of q and k, `groups` is G."""
    sizes: Axes = dict(known or {})
    check_codes("query_codes", query_codes, "B T H W", sizes)
    of_keys: Axes = {letter: sizes[letter] for letter in "BSW" if letter in sizes}
    check_codes("key_codes", key_codes, "B S C W", of_keys)
    heads, coded = sizes["H"][0], of_keys["C"][0]
    _divides("key_codes", coded, sizes["H"])
    if groups is not None and coded not in (groups, heads):
        raise ValueError(
            f"key_codes must have a code a key/value head ({groups}) or a query head ({heads}), got {coded}"
        )
    (T, asking), (S, asked) = sizes["T"], of_keys["S"]
    if flag("causal", causal) and T > S:
        raise ValueError(f"{asked} must have at least the {T} positions of {asking} where causal, got S = {S}")
    for name, size in {"budget": budget, "sinks": sinks, "window": window}.items():
        check_size(name, size)


def _divides(name: str, heads: int, known: tuple[int, str]) -> None:
    of_q, owner = known
    if heads != of_q and (heads == 0 or of_q % heads):
        axes = "[B, S, C, W]" if name == "key_codes" else "[B, S, G, ...]"
        raise ValueError(
            f"{name} must be {axes} with a number of heads that divides the {of_q} of {owner}, got {heads}"
        )


# -- the dials of the panel --

LENGTHS_STREAM, ORDER_STREAM = 9, 10  # of the draws: how long a toy key is, where a toy token stands
QUERY_LENGTH = 8.0  # of a toy query, times sqrt(K): what a key of length 1 and the same direction has as its logit
LENGTH_SPREAD = 0.25  # of the logarithm of a toy key's length
LEARNED, CENTRED, RANDOM = "learned", "centred", "random"
SHOWN = ("hash", "lsh_centred", "key_norm", "past_mean", "quest", "exact")  # of the selectors: those a panel can show


@dataclass(frozen=True)
class HashParams(Dials):
    """The dials of the panel with their ranges and the paper's letters; slider, test and notebook use the same ones.

    Codes are learned, or the signs of random projections: of the keys as they are, or of the keys minus their mean.
    Where no map was learned, as for toy tokens, learned codes are the centred ones. A query past the last token is the
    last one. Raises ValueError with the dial's name, its range and what came.
    """

    selector: str = knob("hash", label="selector", choices=SHOWN)
    codes: str = knob(CENTRED, label="codes", choices=(LEARNED, CENTRED, RANDOM))
    bits: int = knob(32, 1, 64, label="bits", paper="b")
    budget: int = knob(8, 0, 128, label="budget", paper="m")
    sinks: int = knob(4, 0, 64, label="first tokens")
    window: int = knob(8, 0, 64, label="newest tokens")
    top: int = knob(8, 1, 64, label="true top", paper="k")
    query: int = knob(64, 1, 256, label="query")
    tokens: int = knob(64, 8, 256, label="tokens", paper="n")
    head_width: int = knob(16, 2, 64, label="head width", paper="d")
    seed: int = knob(0, 0, 9999, label="seed")
    input: str = knob(TOY, label="input", choices=INPUTS)

    @property
    def width(self) -> int:
        """The head width in force: the dial's for toy tokens, the model's for a real head."""
        return inputs.width(self.input, self.head_width)

    @property
    def row(self) -> int:
        """The index of the query whose codes and orders are shown."""
        return min(self.query, self.tokens) - 1

    def inputs(self) -> Inputs:
        """The first `tokens` positions of a window of a real head, or toy clusters drawn from the seed: in a drawn
        order, so that a query's own cluster is not all in the window; keys of different lengths; and long queries, so
        that softmax tells keys apart.
        """
        given = inputs.inputs(self.input, self.tokens, self.head_width, self.seed)
        if self.input != TOY:
            return given
        order = np.argsort(draws.uniform(self.seed, ORDER_STREAM, self.tokens, 1)[:, 0], kind="stable")
        lengths = np.exp(LENGTH_SPREAD * draws.normal(self.seed, LENGTHS_STREAM, self.tokens, 1))
        q, k, v = (x[:, order] for x in given[:3])
        clusters = [given.tokens[n][0] for n in order]
        words = tuple(f"{c}{1 + clusters[:t].count(c)}" for t, c in enumerate(clusters))
        return Inputs(QUERY_LENGTH * np.sqrt(self.width) * q, lengths[:, None] * k, v, words)

    def maps(self) -> tuple[Maps, Maps]:
        """The maps in force, of queries and of keys, for one head; learned ones have as many bits as there are, or
        their first `bits`.
        """
        learned = learned_maps(self.input) if self.codes == LEARNED else None
        if learned is not None:
            query_maps, key_maps = (first_bits(maps, min(self.bits, maps.bits)) for maps in learned)
            return query_maps, key_maps
        centre = None if self.codes == RANDOM else self.inputs().k[0].mean(axis=0)
        plain = random_maps(self.bits, 1, self.width, self.seed)
        return plain, plain if centre is None else random_maps(self.bits, 1, self.width, self.seed, centre)


def learned_maps(name: str) -> tuple[Maps, Maps] | None:
    """The shipped maps of queries and of keys for the input of this name, one head; None where none were learned."""
    if name == TOY:
        return None
    from attnlab import data  # reads the shipped file, so only where it is asked for

    layer, head = (int(part.split()[1]) for part in name.split(","))
    shipped = data.shipped_maps()
    if layer not in shipped.layers:
        return None
    both = shipped.layer(layer)
    query_maps, key_maps = (Maps(*(tuple(x[head : head + 1] for x in part) for part in maps)) for maps in both)
    return query_maps, key_maps
