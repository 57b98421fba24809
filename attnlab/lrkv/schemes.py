"""MHA, GQA, MQA, MLA and LRKV as layers, from weights, in NumPy float64, with a cache: what each keeps of a token, and
that reading it in factors gives what its full keys and values give.

    layer = draw("lrkv", width=48, heads=6, head_width=8, rank=4, option="aligned")
    layer.prefill(x)          o [B, T, H, V] of a text from its beginning, x [B, T, width]
    layer.step(x)             o of the tokens that follow, one or several
    layer.cache_elements      how many numbers it holds

Keys of an `Lrkv` layer, token at position t (MHA, GQA and MQA are this without latents):
    s = x W_s, z = x U_h                                   Eqs. 4-5, p. 3; one s for a group of heads
    k = g c (s + B_h z)                                    g a gain, c what a norm divides by; 1 without a norm
    P_t k meets P_m q                                      q as it is, then turned; where "still", P_t s and B_h z apart
`factored=False` is this, kept as it stands: full keys and values of every head, as many numbers as MHA. `factored=True`
keeps s and z, turned where the option lets them turn, and c.
"""

from typing import Any, NamedTuple

import numpy as np

from attnlab import draws
from attnlab.arrays import Array, Axes, Float, as_float, check, dial, flag, one_of
from attnlab.growing import Growing
from attnlab.lrkv import rotary
from attnlab.lrkv.cache import FactoredCache
from attnlab.lrkv.params import LAYOUTS, STILL, Rope, rope
from attnlab.lrkv.reference import attention, of_heads, turn

__all__ = [
    "NORMS", "NORM_FLOOR", "OPTIONS", "RESIDUAL", "UNTURNED", "Lrkv", "LrkvWeights", "Mla", "MlaWeights", "Turning",
    "draw", "inverse_rms", "turning",
]  # fmt: skip

OPTIONS = ("none", "still", "aligned", "tied", "partial", "expand")  # those of rotary.py that a layer can be built on
NORMS = {
    "none": "keys as they are",
    "before": "shared keys and latents, each by its own rms, before they are added: a model of its own",
    "sum": "s + B z by its rms, one number a token and head, which the cache keeps",
    "paths": "s by its rms plus B z by its rms: what takes the norm of a sum for the sum of the norms, and is wrong",
}
NORM_FLOOR = 1e-6  # added to the mean square, as models do
RESIDUAL = 0.1  # |U_h B_h^T| beside |W_s| at the beginning of training (p. 3)


class Turning(NamedTuple):
    """How positions come in: what turns shared keys and queries, and what turns the latents of each head."""

    option: str
    rope: Rope = STILL
    latent: tuple[Rope, ...] = ()  # one a head where latents turn


UNTURNED = Turning("none")


class LrkvWeights(NamedTuple):
    """Weights of one layer; no latents (None) is MHA, GQA or MQA by the number of groups."""

    query: Float[Array, "H width K"]
    key: Float[Array, "G width K"]
    value: Float[Array, "G width V"]
    key_up: Any = None  # [H, width, R]
    value_up: Any = None  # [H, width, Rv]
    key_factor: Any = None  # [H, K, R]
    value_factor: Any = None  # [H, V, Rv]


class MlaWeights(NamedTuple):
    """Weights of multi-head latent attention with its rotary slice apart: D of the K + D numbers of a query turn."""

    query: Float[Array, "H width K+D"]
    down: Float[Array, "width C"]
    rotary_key: Float[Array, "width D"]  # one for all heads
    key_up: Float[Array, "H C K"]
    value_up: Float[Array, "H C V"]


def project(x: Float[Array, "B T width"], w: Float[Array, "H width K"]) -> Float[Array, "B T H K"]:
    """x W_h for every head."""
    return np.einsum("btw,hwk->bthk", x, w)


def inverse_rms(x: Float[Array, "... K"]) -> Float[Array, "... 1"]:
    """What an RMS norm multiplies its rows by."""
    return 1 / np.sqrt((x**2).mean(axis=-1, keepdims=True) + NORM_FLOOR)


# -- LRKV, MHA, GQA, MQA --


class Lrkv:
    """A layer of heads that share keys and values by groups, with latents of their own or without.

    `norm` is one of NORMS; with one, queries are divided by their rms too, and `gain` [K] multiplies keys. Raises
    ValueError for weights that do not fit, a norm or option there is not, and factors that are not made for the option
    (a gain that differs within a plane breaks tied ones).
    """

    def __init__(
        self, weights: LrkvWeights, positions: Turning = UNTURNED, *, norm: str = "none",
        gain: Float[Array, " K"] | None = None, factored: bool = True,
    ) -> None:  # fmt: skip
        sizes: Axes = {}
        axes = ("H width K", "G width K", "G width V", "H width R", "H width Rv", "H K R", "H V Rv")
        self.residual = any(part is not None for part in weights[3:])
        for name, weight, letters in zip(weights._fields, weights, axes, strict=True):
            if weight is not None:
                check(name, weight, letters, sizes)
            elif self.residual:
                raise ValueError(f"{name} must be given where other parts of the residual are, got None")
        (H, _), (G, _), (K, _) = sizes["H"], sizes["G"], sizes["K"]
        if not G or H % G:
            raise ValueError(f"key must have a number of groups that divides the {H} heads of query, got {G}")
        one_of("option", positions.option, OPTIONS)
        one_of("norm", norm, tuple(NORMS))
        if positions.latent and len(positions.latent) != H:
            raise ValueError(f"positions.latent must have a Rope for each of {H} heads, got {len(positions.latent)}")
        if gain is not None:
            check("gain", gain, "K", sizes)
        parts: Any = (None if w is None else as_float(w) for w in weights)
        self.weights = LrkvWeights(*parts)
        self.positions, self.norm, self.factored = positions, norm, flag("factored", factored)
        self.gain = np.ones(K) if gain is None else as_float(gain)
        self.starts: Any = None
        self.cache = FactoredCache()
        if factored and self.residual:  # B_h = E_S of aligned planes stays, for its gain moves into the latents
            key_factor = self.weights.key_factor
            folded = key_factor if positions.option == "aligned" else self.gain[:, None] * key_factor
            _check_factor(folded, positions)
            self.cache = FactoredCache(folded, self.weights.value_factor)

    def prefill(self, x: Float[Array, "B T width"], *, starts: Array | None = None) -> Float[Array, "B T H V"]:
        """o of a text from its beginning; what was held is forgotten. `starts` [B] says where each row begins, what is
        before it being there to fill up, now and in later steps.
        """
        self.cache.reset()
        self.starts = starts
        return self.step(x)

    def step(self, x: Float[Array, "B T width"]) -> Float[Array, "B T H V"]:
        """o of the tokens that follow those which are held; T = 1 is decoding."""
        x = as_float(x)
        at = self.cache.next_position + np.arange(x.shape[1])
        q = project(x, self.weights.query)
        if self.norm != "none":
            q = q * inverse_rms(q)
        self.cache.append(*(self._factors(x, at) if self.factored and self.residual else self._whole(x, at)))
        read: dict[str, Any] = {"starts": self.starts, "scale": max(q.shape[3], 1) ** -0.5}
        turned = turn(q, self.positions.rope, at)
        if self.positions.option == "still" and self.residual:
            if not self.factored:
                turned = np.concatenate([turned, q], axis=-1)
            else:
                read["q_residual"] = q
        expand = self.positions.rope if self.positions.option == "expand" and self.factored and self.residual else None
        return attention(turned, **self.cache.arguments(rope=expand), **read)

    @property
    def cache_elements(self) -> int:
        """How many numbers are held of all tokens."""
        return self.cache.elements

    def _whole(self, x: Float[Array, "B T width"], at: Array) -> tuple[Array, Array]:
        """Keys and values of every head (of every group, without latents)."""
        w, rope = self.weights, self.positions.rope
        shared, latent, scale, residual_scale = self._parts(x)
        if not self.residual:
            return turn(self.gain * scale * shared, rope, at), project(x, w.value)
        residual = self.gain * residual_scale * np.einsum("bthr,hkr->bthk", latent, w.key_factor)
        shared = self.gain * scale * of_heads(shared, len(w.query))
        value = project(x, w.value_up)
        value = of_heads(project(x, w.value), len(w.query)) + np.einsum("bthr,hvr->bthv", value, w.value_factor)
        if self.positions.option == "still":  # two queries: [P q, q] . [P s, B z]
            return np.concatenate([turn(shared, rope, at), residual], axis=-1), value
        return turn(shared + residual, rope, at), value

    def _factors(self, x: Float[Array, "B T width"], at: Array) -> tuple[Array, ...]:
        """What the cache keeps: shared keys and values, latents of both, and the keys' scale where there is one."""
        w, (option, rope, latent_ropes) = self.weights, self.positions
        shared, latent, scale, residual_scale = self._parts(x)
        if self.norm == "paths":
            shared, latent, scale = scale[:, :, :: len(w.query) // len(w.key)] * shared, residual_scale * latent, None
        shared = self.gain * shared
        if option == "aligned":  # column j of B_h = E_S is one coordinate
            latent = np.einsum("k,hkr->hr", self.gain, w.key_factor) * latent
        if option != "expand":
            shared = turn(shared, rope, at)
        if latent_ropes:
            latent = np.stack([turn(latent[:, :, [h]], each, at)[:, :, 0] for h, each in enumerate(latent_ropes)], 2)
        parts = (shared, project(x, w.value), latent, project(x, w.value_up))
        return (*parts, scale[..., 0]) if self.norm == "sum" else parts

    def _parts(self, x: Float[Array, "B T width"]) -> tuple[Any, Any, Any, Any]:
        """(s, z, what the norm multiplies s by, and B z by), before any gain and unturned."""
        w = self.weights
        shared = project(x, w.key)
        if not self.residual:
            return shared, None, 1.0 if self.norm == "none" else inverse_rms(shared), None
        latent = project(x, w.key_up)
        if self.norm == "before":
            shared, latent = shared * inverse_rms(shared), latent * inverse_rms(latent)
        if self.norm in ("none", "before"):
            return shared, latent, 1.0, 1.0
        s, residual = of_heads(shared, len(w.query)), np.einsum("bthr,hkr->bthk", latent, w.key_factor)
        if self.norm == "paths":
            return shared, latent, inverse_rms(s), inverse_rms(residual)
        scale = inverse_rms(s + residual)
        return shared, latent, scale, scale


def _check_factor(factor: Float[Array, "H K R"], positions: Turning) -> None:
    """Refuse a factor that rotations do not pass through: P B = B P~ at position 1, and so at all that follow."""
    option, rope, latent_ropes = positions
    (H, K, R), picks = factor.shape, (np.isin(factor, (0, 1)).all() and (factor.sum(axis=1) == 1).all())
    if option == "aligned" and not picks:
        raise ValueError("key_factor must pick coordinates, one a column, where aligned: see rotary.aligned_factor")
    if option not in ("aligned", "tied", "partial"):
        return
    for h, each in enumerate(latent_ropes or (STILL,) * H):
        missed = rotary.rotation(rope, K, 1.0) @ factor[h] - factor[h] @ rotary.rotation(each, R, 1.0)
        missed = np.abs(missed).max(initial=0.0)
        if not missed <= 1e-9 * np.abs(factor[h]).max(initial=1.0):
            raise ValueError(f"key_factor, times gain, must let rotations pass where {option}, missed by {missed:.2g}")


# -- MLA --


class Mla:
    """Multi-head latent attention: a token leaves one latent [C] and one rotary key [D], which all heads share.

    Absorbed, a query is brought to the latent, q W_up^T, and the cache is read as it is, like MQA with keys of C + D
    and values of C; else keys and values of every head are made from all latents, at every step. The two are one model:
    latents need not be expanded to be read (Appendix F, pp. 27-28, knows it; its Table 10 does not).
    Raises ValueError for weights that do not fit.
    """

    def __init__(self, weights: MlaWeights, rope: Rope = STILL, *, absorbed: bool = True) -> None:
        sizes: Axes = {}
        axes = ("H width KD", "width C", "width D", "H C K", "H C V")
        for name, weight, letters in zip(weights._fields, weights, axes, strict=True):
            check(name, weight, letters, sizes)
        if sizes["KD"][0] != sizes["K"][0] + sizes["D"][0]:
            raise ValueError(f"query must have K + D = {sizes['K'][0] + sizes['D'][0]} columns, got {sizes['KD'][0]}")
        self.weights, self.rope = MlaWeights(*map(as_float, weights)), rope
        self.absorbed = flag("absorbed", absorbed)
        self._held = Growing()
        self.starts: Any = None

    def prefill(self, x: Float[Array, "B T width"], *, starts: Array | None = None) -> Float[Array, "B T H V"]:
        """As of `Lrkv`."""
        self._held.reset()
        self.starts = starts
        return self.step(x)

    def step(self, x: Float[Array, "B T width"]) -> Float[Array, "B T H V"]:
        """As of `Lrkv`."""
        w, x = self.weights, as_float(x)
        (C, K), at = w.key_up.shape[1:], len(self._held) + np.arange(x.shape[1])
        written = turn(project(x, w.rotary_key[None]), self.rope, at)
        self._held.append(np.concatenate([project(x, w.down[None]), written], axis=-1))
        held = self._held.view  # [B, S, 1, C + D]
        q, turned = np.split(project(x, w.query), [K], axis=-1)
        turned = turn(turned, self.rope, at)
        read: dict[str, Any] = {"starts": self.starts, "scale": max(w.query.shape[2], 1) ** -0.5}
        if self.absorbed:
            q = np.concatenate([np.einsum("bthk,hck->bthc", q, w.key_up), turned], axis=-1)
            return np.einsum("bthc,hcv->bthv", attention(q, held, held[..., :C], **read), w.value_up)
        rotary_key = of_heads(held[..., C:], len(w.query))
        k = np.concatenate([project(held[:, :, 0, :C], w.key_up), rotary_key], axis=-1)
        return attention(np.concatenate([q, turned], axis=-1), k, project(held[:, :, 0, :C], w.value_up), **read)

    @property
    def cache_elements(self) -> int:
        """How many numbers are held of all tokens."""
        return 0 if self._held.view is None else self._held.view.size


# -- layers to try --


def turning(
    option: str, *, heads: int, head_width: int, rank: int = 0, layout: str = "half", theta: float = 10_000.0
) -> Turning:
    """A `Turning` of OPTIONS. Where "aligned" each head has planes of its own, where "partial" half of the planes turn.

    Raises ValueError for an option there is not, and for a rank or width that does not fill planes.
    """
    one_of("option", option, OPTIONS)
    one_of("layout", layout, LAYOUTS)
    if option == "none":
        return UNTURNED
    if option == "partial":  # frequencies of the part that turns, not of the whole head
        return Turning(option, rope(2 * (head_width // 4), theta=theta, layout=layout))
    if option == "tied":
        shared, latent = rotary.tied(head_width, rank, theta=theta, layout=layout)
        return Turning(option, shared, (latent,) * heads)
    usual = rope(head_width, theta=theta, layout=layout)
    if option == "aligned":
        planes = _planes(heads, head_width, rank)
        return Turning(option, usual, tuple(Rope(usual.frequency[own]) for own in planes))
    return Turning(option, usual)


def draw(
    scheme: str, *, width: int, heads: int, head_width: int, groups: int = 1, rank: int = 0, latent_width: int = 0,
    rope_width: int = 0, option: str = "none", layout: str = "half", seed: int = 0, **how: Any,
) -> Lrkv | Mla:  # fmt: skip
    """A layer with random weights, of variance 1/width where they meet a token; residuals have a tenth of the norm of
    what is shared (p. 3), and factors are made for the option. `how`: norm, gain, factored; absorbed for "mla".

    Sizes as of `accounting.elements`. Raises ValueError where they do not fit.
    """
    one_of("scheme", scheme, ("mha", "gqa", "mqa", "mla", "lrkv"))
    for name, value in (("width", width), ("heads", heads), ("head_width", head_width)):
        dial(name, value, 1, 2**20, integer=True)
    H, K, stream = heads, head_width, iter(range(20, 40))

    def normal(*shape: int, fan_in: int) -> Array:
        numbers = draws.normal(seed, next(stream), int(np.prod(shape[:-1])), shape[-1])
        return numbers.reshape(shape) / np.sqrt(max(fan_in, 1))

    if scheme == "mla":
        C, D = latent_width, rope_width
        weights = MlaWeights(
            normal(H, width, K + D, fan_in=width), normal(width, C, fan_in=width), normal(width, D, fan_in=width),
            normal(H, C, K, fan_in=C), normal(H, C, K, fan_in=C),
        )  # fmt: skip
        return Mla(weights, STILL if option == "none" else rope(D, layout=layout), **how)
    groups = {"mha": heads, "mqa": 1}.get(scheme, groups)
    positions = turning(option, heads=H, head_width=K, rank=rank, layout=layout)
    q, k, v = normal(H, width, K, fan_in=width), *(normal(groups, width, K, fan_in=width) for _ in "kv")
    if scheme != "lrkv":
        return Lrkv(LrkvWeights(q, k, v), positions, **how)
    ups, factors = [normal(H, width, rank, fan_in=width) for _ in "kv"], [normal(H, K, rank, fan_in=rank) for _ in "kv"]
    if option == "aligned":
        one_head = [rotary.aligned_factor(1, K, own, layout=layout)[0] for own in _planes(H, K, rank)]
        factors[0] = np.stack(one_head)
    if option == "tied":
        weight = normal(2 * H, K // 2, fan_in=rank)
        factors[0] = rotary.tied_factor(weight[:H], weight[H:], rank, layout=layout)
    if option == "partial":
        factors[0][:, : 2 * len(positions.rope.frequency)] = 0
    for shared, up, factor in zip((k, v), ups, factors, strict=True):
        norm = np.linalg.norm(up @ factor.mT, axis=(1, 2), keepdims=True)
        up *= RESIDUAL * np.linalg.norm(shared) / np.sqrt(groups) / np.where(norm > 0, norm, 1)
    return Lrkv(LrkvWeights(q, k, v, *ups, *factors), positions, **how)


def _planes(heads: int, width: int, rank: int) -> Array:
    """Planes of each head, [H, rank/2]: one after the other, round and round."""
    if dial("rank", rank, 0, width, integer=True) % 2 or width % 2:
        raise ValueError(f"rank must be even, and the heads' width too, to fill planes, got {rank} and {width}")
    return (np.arange(rank // 2)[None] + rank // 2 * np.arange(heads)[:, None]) % (width // 2)
