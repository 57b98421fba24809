"""What a cache holds, what is read of it, and what the paper prints about both: whole numbers and exact fractions.

One token and one layer, batch 1, H query heads of width d, G shared ones, r latents a head:
    scheme   numbers kept           flop of one query over the token
    mha      2 H d                  4 H d
    gqa      2 G d                  4 H d
    mqa      2 d                    4 H d
    mla      c + p                  2 H (2 c + p)        c `latent_width`, p `rope_width`; absorbed decoding
    lrkv     2 (G d + H r)          4 H (d + r)          and H more of each with a cached key scale
Queries, weights and activations are no part of a cache. Source: arXiv:2601.11471v3, Eqs. 9-10, p. 4.
"""

from fractions import Fraction
from typing import Any, NamedTuple

from attnlab.arrays import dial, flag, one_of

__all__ = [
    "CONFIGURATIONS",
    "HEAD_WIDTH",
    "LAYERS_2_5B",
    "SCHEMES",
    "TABLE_8",
    "TABLE_12",
    "TABLE_12_RANK",
    "Configuration",
    "Megabytes",
    "Swept",
    "cache_bytes",
    "elements",
    "flop",
    "intensity",
    "parameters",
    "ratio",
    "traffic",
]  # fmt: skip

SCHEMES = ("mha", "gqa", "mqa", "mla", "lrkv")
LARGEST = 2**31


def _checked(scheme: str, **sizes: int) -> list[int]:
    """The sizes as ints, in the order given, with as many groups as the scheme shares out."""
    one_of("scheme", scheme, SCHEMES)
    for name, value in sizes.items():
        least = 0 if name in ("rank", "latent_width", "rope_width") else 1
        sizes[name] = dial(name, value, least, LARGEST, integer=True)
    heads = sizes["heads"]
    sizes["groups"] = groups = {"mha": heads, "mqa": 1, "mla": 1}.get(scheme, sizes["groups"])
    if heads % groups:
        raise ValueError(f"groups must divide heads = {heads}, got {groups}")
    return list(sizes.values())


def elements(
    scheme: str, *, heads: int, head_width: int, groups: int = 1, rank: int = 0, latent_width: int = 0,
    rope_width: int = 0, key_scale: bool = False,
) -> int:  # fmt: skip
    """Numbers that one token leaves in the cache of one layer. A scheme looks only at the sizes it has.

    Raises ValueError for another scheme, for a size that is no whole number, and where groups do not divide heads.
    """
    heads, head_width, groups, rank, latent_width, rope_width = _checked(
        scheme, heads=heads, head_width=head_width, groups=groups, rank=rank, latent_width=latent_width,
        rope_width=rope_width,
    )  # fmt: skip
    key_scale = flag("key_scale", key_scale)
    if scheme == "mla":
        return latent_width + rope_width
    if scheme == "lrkv":
        return 2 * (groups * head_width + heads * rank) + heads * key_scale
    return 2 * groups * head_width


def cache_bytes(scheme: str, *, tokens: int, layers: int, bytes_each: int, **sizes: Any) -> int:
    """Bytes of the cache of `tokens` tokens in `layers` layers; sizes, and what raises, as of `elements`."""
    tokens = dial("tokens", tokens, 0, 2**62, integer=True)
    layers = dial("layers", layers, 0, LARGEST, integer=True)
    return elements(scheme, **sizes) * tokens * layers * dial("bytes_each", bytes_each, 1, 16, integer=True)


def ratio(scheme: str, *, heads: int, head_width: int, **sizes: Any) -> Fraction:
    """The cache beside that of MHA with the same heads, exact: 1/H + r/d for LRKV with one group (Eq. 9, p. 4).

    Sizes, and what raises, as of `elements`.
    """
    return Fraction(
        elements(scheme, heads=heads, head_width=head_width, **sizes),
        elements("mha", heads=heads, head_width=head_width),
    )


def parameters(
    scheme: str, *, width: int, heads: int, head_width: int, groups: int = 1, rank: int = 0, latent_width: int = 0,
    rope_width: int = 0,
) -> int:  # fmt: skip
    """Weights that make keys and values from a token of `width` numbers: Eq. 10, p. 4, for LRKV with one group.

    MLA: down to the latent, up to every head's keys and values, and the one rotary key. Raises as `elements`.
    """
    width, heads, head_width, groups, rank, latent_width, rope_width = _checked(
        scheme, width=width, heads=heads, head_width=head_width, groups=groups, rank=rank, latent_width=latent_width,
        rope_width=rope_width,
    )  # fmt: skip
    if scheme == "mla":
        return width * (latent_width + rope_width) + 2 * latent_width * heads * head_width
    residual = 2 * heads * rank * (width + head_width) if scheme == "lrkv" else 0
    return 2 * groups * width * head_width + residual


def flop(
    scheme: str, *, heads: int, head_width: int, rank: int = 0, latent_width: int = 0, rope_width: int = 0,
    groups: int = 1, key_scale: bool = False, expand: bool = False,
) -> int:  # fmt: skip
    """Operations of one decode query over one cached token, all heads: a multiplication or an addition is one. Softmax,
    and what is done once a query (q B_h, the last B_h^T), are left out.

    With `expand`, LRKV makes K_h = K_s + B_h R_h and turns it as it is read: r multiplications and r additions, 3 for
    the rotation (6 a plane) and 2 for the logit, for each of the H d coordinates. Raises as `elements`; ValueError for
    `expand` with another scheme.
    """
    heads, head_width, groups, rank, latent_width, rope_width = _checked(
        scheme, heads=heads, head_width=head_width, groups=groups, rank=rank, latent_width=latent_width,
        rope_width=rope_width,
    )  # fmt: skip
    if flag("expand", expand) and scheme != "lrkv":
        raise ValueError(f"expand must be False for {scheme}, got True")
    key_scale = flag("key_scale", key_scale)
    if scheme == "mla":
        return 2 * heads * (2 * latent_width + rope_width)
    if scheme != "lrkv":
        return 4 * heads * head_width
    keys = (2 * rank + 5) * head_width if expand else 2 * (head_width + rank)
    return heads * (keys + 2 * (head_width + rank) + key_scale)


def traffic(scheme: str, *, bytes_each: int, program_a_head: bool = False, **sizes: Any) -> int:
    """Bytes that one decode query moves for one cached token: the cache once, or, with one program a head, what heads
    share once for each head: 2 H (d + r) numbers for LRKV, which is more than MHA has. Raises as `elements`.
    """
    bytes_each = dial("bytes_each", bytes_each, 1, 16, integer=True)
    once = elements(scheme, **sizes)
    if not flag("program_a_head", program_a_head):
        return once * bytes_each
    names = ("heads", "head_width", "groups")
    heads, width, groups = _checked(scheme, **{name: sizes.get(name, 1) for name in names})
    if scheme == "mla":
        return heads * once * bytes_each
    return (2 * heads * width + once - 2 * width * groups) * bytes_each


def intensity(scheme: str, *, bytes_each: int, expand: bool = False, program_a_head: bool = False, **sizes: Any) -> Any:
    """Operations for each byte moved, an exact Fraction: below what a machine offers, memory decides the speed."""
    moved = traffic(scheme, bytes_each=bytes_each, program_a_head=program_a_head, **sizes)
    return Fraction(flop(scheme, expand=expand, **sizes), moved)


# -- what the paper prints --


class Configuration(NamedTuple):
    """A row of Table 7 (p. 24); all have heads of 128. `printed` is the cache in percent of MHA as the paper prints it
    for this model (Table 12, p. 28), None where our notes of the paper have no such figure.
    """

    label: str
    heads: int
    rank: int
    printed: float | None

    @property
    def ratio(self) -> Fraction:
        """Eq. 9 for this row, exact."""
        return ratio("lrkv", heads=self.heads, head_width=HEAD_WIDTH, rank=self.rank)


HEAD_WIDTH = 128  # of every model of the paper (p. 24)
CONFIGURATIONS = (
    Configuration("128M", 6, 46, 52.6),
    Configuration("1.2B", 12, 51, None),
    Configuration("2.5B", 18, 55, 48.4),
    Configuration("6.3B", 32, 54, 45.1),
)


class Swept(NamedTuple):
    """A row of Table 8 (p. 25): 128M, 100B tokens, H = 6. `size` is the rank of LRKV, the latent width of MLA."""

    scheme: str
    size: int
    printed: float  # percent of MHA's cache
    cross_entropy: float
    bits_per_byte: float


TABLE_8 = (
    Swept("lrkv", 8, 22.9, 2.908, 0.881),
    Swept("lrkv", 16, 29.2, 2.905, 0.880),
    Swept("lrkv", 32, 41.7, 2.896, 0.877),
    Swept("lrkv", 64, 66.7, 2.888, 0.875),
    Swept("lrkv", 128, 116.7, 2.877, 0.873),
    Swept("mla", 128, 8.3, 2.901, 0.876),
    Swept("mla", 192, 12.5, 2.898, 0.876),  # printed "12-5%"
    Swept("mla", 384, 25.0, 2.894, 0.875),
    Swept("mha", 0, 100.0, 2.903, 0.878),
)


class Megabytes(NamedTuple):
    """A row of Table 12 (p. 28), whose caption says rank 64: what LRKV and MHA hold, and the percentage beside it."""

    label: str
    heads: int
    lrkv: int
    mha: int
    printed: float


TABLE_12_RANK = 64
TABLE_12 = (
    Megabytes("128M", 6, 48, 72, 52.6),
    Megabytes("2.5B", 18, 360, 648, 48.4),
    Megabytes("6.3B", 32, 612, 1152, 45.1),
)

LAYERS_2_5B = {"Table 5, p. 23": 18, "Figs. 7-8, pp. 8-9": 36}  # the same model
