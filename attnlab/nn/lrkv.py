"""What a cache of keys and values may be made of, as layers that differ in nothing else: LRKV (arXiv:2601.11471v3), the
grouped heads between MHA and MQA, and the latents of MLA.

    MHA, GQA, MQA    GroupedAttention      k, v of each group                             G (K + V) numbers a token
    LRKV             LRKVAttention         k, v of each group, latents of each head       G (K + V) + 2 H r
    MLA              LatentAttention       one latent for all heads, one turned slice     latent_width + rope_width

A run from the start makes all keys and values and goes through torch's fused attention, as training does in the paper
(p. 3). A run that has a state reads it as it lies there, by `attnlab.lrkv.attention`; MLA's maps from the latent are
absorbed into the query and the output then. Both give the same numbers to rounding.

LRKV of a token x in head h: k_h = x W + (x U_h) B_h^T, v_h likewise with its own (Eqs. 2-5, p. 3). At the start
U_h B_h^T has a tenth of the norm of W (p. 3). B carries that tenth, and latents have the size of x; only where B is
fixed ("aligned") does U carry it. Positions turn keys as `attnlab.lrkv.rotary` says, and what is kept has turned
already, save where `position` is "expand". The paper turns its keys too, and does not say how factors come through it
(p. 4): "aligned" and "tied" are this project's ways.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from attnlab import lrkv
from attnlab.arrays import dial, one_of
from attnlab.lrkv import STILL, Rope, rotary
from attnlab.lrkv.conversion import Fit
from attnlab.lrkv.params import LAYOUTS
from attnlab.lrkv.torch_impl import expand, fused, turn
from attnlab.nn.layer import Layer, projection, split, whole

__all__ = ["POSITIONS", "GroupedAttention", "KeyValues", "LRKVAttention", "LatentAttention", "Latents"]

POSITIONS = ("aligned", "tied", "still", "partial", "expand", "none")  # exact ones of `lrkv.rotary`
KEY_NORMS = ("none", "before", "sum")
RESIDUAL = 0.1  # of the shared norm, at the start (p. 3)
EPS = 1e-6  # of the RMS norm

operator = torch.compiler.disable(lrkv.attention)  # a break in a compiled layer: its checks look at numbers


class KeyValues(NamedTuple):
    """What a sequence leaves behind, token by token, as `lrkv.FactoredCache.append` takes it; latents are there with a
    rank, the scale where keys are normed after the sum.
    """

    k_shared: torch.Tensor  # [B, S, G, K]
    v_shared: torch.Tensor  # [B, S, G, V]
    k_latent: torch.Tensor | None = None  # [B, S, H, r]
    v_latent: torch.Tensor | None = None  # [B, S, H, r]
    k_scale: torch.Tensor | None = None  # [B, S, H]


class Latents(NamedTuple):
    """What MLA leaves behind: [latent, turned slice] of every token, one for all heads."""

    latent: torch.Tensor  # [B, S, 1, latent_width + rope_width]


class GroupedAttention(Layer):
    """Causal softmax attention with `groups` heads of keys and values: MHA with as many as query heads (what it is
    unless given), MQA with one, GQA between. RoPE turns all coordinates of q and k; `position` "none" leaves them.

    `head_width` is width / heads unless given. The state is a KeyValues. `impl` is what reads it; a run from the start
    is torch's. Raises ValueError naming the argument.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        groups: int | None = None,
        head_width: int | None = None,
        position: str = "rope",
        theta: float = 10_000.0,
        layout: str = "half",
        output_norm: bool = False,
        output_gate: bool = False,
        impl: str = "torch",
    ):
        head_width = _head_width(width, heads, head_width)
        super().__init__(width, heads, head_width, head_width, output_norm, output_gate, impl, groups)
        one_of("position", position, ("rope", "none"))
        one_of("layout", layout, LAYOUTS)
        theta = dial("theta", theta, 1e-6, 1e30)
        self.rope = lrkv.rope(self.key_width, theta=theta, layout=layout) if position == "rope" else STILL
        _describe(self, groups=self.groups, position=position, theta=theta, layout=layout)

    def attend(self, x: Any, q: Any, k: Any, v: Any, state: Any, cu_seqlens: Any) -> tuple[Any, KeyValues]:
        """(o, KeyValues). Raises ValueError where sequences are cut, or for another state."""
        past = _past(state, KeyValues(k, v), cu_seqlens)
        positions = _positions(x, past)
        q, k = (turn(part, self.rope, positions) for part in (q, k))
        if past is None:
            return fused(q, k, v), KeyValues(k, v)
        held = _joined(past, KeyValues(k, v))
        return operator(q, held.k_shared, held.v_shared, impl=self.impl), held

    def state_elements(self, tokens: int) -> int:
        """tokens x groups x 2 head_width."""
        return tokens * self.groups * (self.key_width + self.value_width)


class LRKVAttention(Layer):
    """Low-rank key-value attention: `groups` shared keys and values (one in the paper), to which each head adds
    `rank` latents of its own through a factor. Rank 0 is GroupedAttention ("tied" has no rank 0).

    `position` says how keys turn:
        "aligned"   the key factor of a head is planes of its own, latents turn with these; the rank is even
        "tied"      rank / 2 frequencies for all planes, the key factor a complex weight a plane; rank divides
                    head_width
        "still"     shared keys turn; latents do not, and meet the query as it was before it turned
        "partial"   the first `rope_width` coordinates turn (half of them unless given), where the key factor is 0
        "expand"    any key factor; keys are kept unturned, made whole and turned whenever they are read
        "none"      nothing turns
    `key_norm` divides by the root mean square: shared keys "before" a residual is added, or the "sum", with one number
    more a head and token in the state; queries are divided alike. There are no gains.

    `head_width` is width / heads unless given. The state is a KeyValues. `impl` is what reads it; a run from the start
    is torch's. Raises ValueError naming the argument. Source: arXiv:2601.11471v3, pp. 3-4; positions: this project.
    """

    planes: Any  # the buffer: where the latents of each head turn, [H, rank / 2]
    k_factor: Any  # parameters, by position; None with rank 0
    v_factor: Any

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        rank: int,
        head_width: int | None = None,
        groups: int = 1,
        position: str = "aligned",
        rope_width: int | None = None,
        theta: float = 10_000.0,
        layout: str = "half",
        key_norm: str = "none",
        output_norm: bool = False,
        output_gate: bool = False,
        impl: str = "torch",
    ):
        head_width = K = _head_width(width, heads, head_width)
        super().__init__(width, heads, head_width, head_width, output_norm, output_gate, impl, groups)
        self.rank = rank = dial("rank", rank, 0, K, integer=True)
        self.position = one_of("position", position, POSITIONS)
        self.key_norm = one_of("key_norm", key_norm, KEY_NORMS)
        theta = dial("theta", theta, 1e-6, 1e30)
        one_of("layout", layout, LAYOUTS)
        if rope_width is not None and position != "partial":
            raise ValueError(f"rope_width must be None where position is {position!r}, got {rope_width}")
        rope_width = None if rope_width is None else dial("rope_width", rope_width, 0, K - 1, integer=True)
        turned = K // 4 * 2 if rope_width is None else rope_width
        if position == "aligned" and rank % 2:
            raise ValueError(f"rank must be even where position is 'aligned', for latents turn in planes, got {rank}")
        if position == "tied":
            self.rope, self.latent_rope = rotary.tied(K, rank, theta=theta, layout=layout)
        else:
            usual = lrkv.rope(turned if position == "partial" else K, theta=theta, layout=layout)
            self.rope, self.latent_rope = STILL if position == "none" else usual, STILL
        told = {"rank": rank, "groups": self.groups, "position": position, "rope_width": rope_width, "theta": theta}
        _describe(self, **told, layout=layout, key_norm=key_norm)
        self.k_latent = self.v_latent = None
        self.k_factor = self.v_factor = None
        if not rank:
            return
        self.k_latent, self.v_latent = (projection(self.width, self.heads * rank) for _ in "kv")
        self.v_factor = _normal(self.heads, self.value_width, rank, std=RESIDUAL * rank**-0.5)
        if position == "aligned":
            planes = np.arange(rank // 2) + rank // 2 * np.arange(self.heads)[:, None]
            self.register_buffer("planes", torch.from_numpy(planes % (K // 2)))
            nn.init.normal_(self.k_latent.weight, std=RESIDUAL * (K / (self.width * rank)) ** 0.5)
        elif position == "tied":  # real and imaginary part of the weight of each plane
            self.k_factor = _normal(self.heads, 2, K // 2, std=RESIDUAL * 0.5**0.5)
        else:
            free = K - turned if position == "partial" else K
            self.k_factor = _normal(self.heads, free, rank, std=RESIDUAL * (K / (free * rank)) ** 0.5)

    @classmethod
    def from_attention(
        cls, attention: GroupedAttention, keys: Fit, values: Fit, *, position: str | None = None
    ) -> "LRKVAttention":
        """A layer with the queries and the output of another one, and keys and values as `lrkv.conversion` has factored
        that one's: the same function where nothing was lost.

        `position` is "aligned" or "expand" (any factor) where that layer turns, "none" where it does not, which is also
        what it is unless given; with "aligned", each key factor must lie in rank / 2 planes. Raises ValueError naming
        the argument.
        """
        heads, rank, turns = attention.heads, keys.up.shape[-1], attention.config["position"] == "rope"
        position = one_of("position", position or ("aligned" if turns else "none"), POSITIONS)
        if position not in (("aligned", "expand") if turns else ("none",)):
            raise ValueError(f"position must turn keys as the attention does, got {position!r}")
        shape = (heads, attention.key_width, rank)
        for name, fit in (("keys", keys), ("values", values)):
            if fit.up.shape != (heads, attention.width, rank) or fit.factor.shape != shape:
                raise ValueError(f"{name} must have factors of shape {shape}, got {fit.factor.shape}")
        config = {name: x for name, x in attention.config.items() if name != "groups"} | {"position": position}
        layer = cls(**config, rank=rank)
        k_up, tensors = keys.up, {"k.weight": keys.shared.T, "v.weight": values.shared.T}
        if rank and position == "aligned":
            planes, inside = _planes(keys.factor, layer.rope)
            k_up, tensors["planes"] = keys.up @ inside.mT, planes
        elif rank:
            tensors["k_factor"] = keys.factor
        if rank:
            tensors |= {"v_factor": values.factor, "k_latent.weight": _rows(k_up), "v_latent.weight": _rows(values.up)}
        same = {name: x for name, x in attention.state_dict().items() if name not in ("k.weight", "v.weight")}
        like = attention.out.weight
        made = {name: torch.from_numpy(np.array(x)) for name, x in tensors.items()}
        layer.to(like).load_state_dict(same | made)
        return layer

    def factors(self) -> tuple[Any, Any]:
        """(k_factor [H, K, rank], v_factor [H, V, rank]) as `lrkv.attention` takes them; None with rank 0."""
        if not self.rank:
            return None, None
        v, shape = self.v_factor, (self.heads, self.key_width, self.rank)
        if self.position == "aligned":
            k = torch.zeros(shape, dtype=v.dtype, device=v.device)
            return k.scatter(1, self._coordinates()[:, None], 1.0), v
        given = self.k_factor
        if self.position == "tied":
            real, imaginary = given.unbind(1)
            k = torch.zeros(shape, dtype=v.dtype, device=v.device)
            planes = torch.arange(self.key_width // 2, device=v.device)
            latent = planes // (self.key_width // self.rank)  # as in `rotary.tied_factor`
            first, second = self._halves(planes)
            for rows, columns, part in (
                (first, latent, real),
                (second, latent, imaginary),
                (first, latent + self.rank // 2, -imaginary),
                (second, latent + self.rank // 2, real),
            ):
                k[:, rows, columns] = part
            return k, v
        if self.position == "partial":
            given = functional.pad(given, (0, 0, self.key_width - given.shape[1], 0))
        return given, v

    def attend(self, x: Any, q: Any, k: Any, v: Any, state: Any, cu_seqlens: Any) -> tuple[Any, KeyValues]:
        """(o, KeyValues). Raises ValueError where sequences are cut, or for another state."""
        k_latent = v_latent = None
        if self.k_latent is not None and self.v_latent is not None:
            k_latent, v_latent = (split(part(x), self.heads) for part in (self.k_latent, self.v_latent))
        k_factor, v_factor = self.factors()
        if self.key_norm != "none":
            q = _normed(q)
        if self.key_norm == "before":
            k = _normed(k)
        k_scale = None
        if self.key_norm == "sum":
            k_scale = (expand(k, k_latent, k_factor, self.heads).square().mean(-1) + EPS).rsqrt()
        new = KeyValues(k, v, k_latent, v_latent, k_scale)
        past = _past(state, new, cu_seqlens)
        positions = _positions(x, past)
        asked = q
        q = turn(q, self.rope, positions)
        if self.position != "expand":
            new = new._replace(k_shared=turn(k, self.rope, positions), k_latent=self._turned(k_latent, positions))
        if past is None:
            return self._whole(q, asked, new, k_factor, v_factor, positions), new
        held, options = _joined(past, new), {}
        if self.position == "expand":
            options = {"rope": self.rope, "positions": np.arange(held.k_shared.shape[1])}
        if self.position == "still" and self.rank:
            options = {"q_residual": asked}
        parts = (held.k_shared, held.v_shared, held.k_latent, held.v_latent, k_factor, v_factor)
        return operator(q, *parts, k_scale=held.k_scale, **options, impl=self.impl), held

    def state_elements(self, tokens: int) -> int:
        """tokens x (2 groups head_width + 2 heads rank), and heads more where the sum is normed."""
        shared = self.groups * (self.key_width + self.value_width)
        return tokens * (shared + self.heads * (2 * self.rank + (self.key_norm == "sum")))

    def _whole(self, q: Any, asked: Any, new: KeyValues, k_factor: Any, v_factor: Any, positions: Any) -> Any:
        """o of a run from the start, every key and value of every head made."""
        if self.position == "still" and new.k_latent is not None:
            asked = torch.einsum("bthk,hkr->bthr", asked, k_factor)
            q = torch.cat([q, asked], dim=-1)
            k = torch.cat([expand(new.k_shared, None, None, self.heads), new.k_latent], dim=-1)
        else:
            k = expand(new.k_shared, new.k_latent, k_factor, self.heads)
        if self.position == "expand":
            k = turn(k, self.rope, positions)
        if new.k_scale is not None:
            k = k * new.k_scale[..., None]
        return fused(q, k, expand(new.v_shared, new.v_latent, v_factor, self.heads), scale=self.key_width**-0.5)

    def _turned(self, latent: Any, positions: Any) -> Any:
        """Latents as they are kept."""
        if latent is None or self.position not in ("aligned", "tied"):
            return latent
        if self.position == "tied":
            return turn(latent, self.latent_rope, positions)
        frequency = torch.as_tensor(self.rope.frequency, device=latent.device)
        return turn(latent, Rope(frequency[self.planes]), positions)

    def _halves(self, planes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Where the first and where the second coordinates of these planes stand."""
        if self.rope.layout == "half":
            return planes, planes + self.key_width // 2
        return 2 * planes, 2 * planes + 1

    def _coordinates(self) -> torch.Tensor:
        """Which coordinate each latent of each head stands for, [H, rank]."""
        return torch.cat(self._halves(self.planes), dim=-1)


class LatentAttention(Layer):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): one latent of `latent_width` numbers, from which
    every head makes keys and values of `head_width`, and beside each key the same slice of `rope_width` turned numbers.
    With rope_width 0 there are no positions. Logits are over the square root of head_width + rope_width.

    `head_width` is width / heads unless given. The state is a Latents. It is read as it lies there, with the maps from
    it absorbed into queries and outputs. `impl` is what reads it; a run from the start is torch's. There is no norm of
    the latent. Raises ValueError naming the argument.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        latent_width: int,
        rope_width: int,
        head_width: int | None = None,
        theta: float = 10_000.0,
        layout: str = "half",
        output_norm: bool = False,
        output_gate: bool = False,
        impl: str = "torch",
    ):
        head_width = _head_width(width, heads, head_width)
        rope_width = dial("rope_width", rope_width, 0, 2**20, integer=True)
        theta = dial("theta", theta, 1e-6, 1e30)
        super().__init__(width, heads, head_width + rope_width, head_width, output_norm, output_gate, impl, 1)
        del self.k, self.v  # a latent stands in their place
        self.latent_width, self.rope_width = whole("latent_width", latent_width), rope_width
        self.rope = lrkv.rope(rope_width, theta=theta, layout=layout)
        self.latent = projection(self.width, self.latent_width)
        self.k_turned = projection(self.width, rope_width) if rope_width else None
        self.k_up = _normal(self.heads, head_width, self.latent_width, std=self.latent_width**-0.5)
        self.v_up = _normal(self.heads, head_width, self.latent_width, std=self.latent_width**-0.5)
        _describe(self, latent_width=self.latent_width, rope_width=rope_width, theta=theta, layout=layout)
        self.config["head_width"] = head_width

    def operands(self, x: torch.Tensor) -> tuple[Any, Any, Any]:
        """q [B, T, H, head_width + rope_width], the slice [B, T, 1, rope_width], the latent [B, T, 1, latent_width]."""
        latent = self.latent(x)
        slice_ = latent[..., :0] if self.k_turned is None else self.k_turned(x)
        return split(self.q(x), self.heads), slice_[:, :, None], latent[:, :, None]

    def attend(self, x: Any, q: Any, k: Any, v: Any, state: Any, cu_seqlens: Any) -> tuple[Any, Latents]:
        """(o, Latents). Raises ValueError where sequences are cut, or for another state."""
        past = _past(state, Latents(torch.cat([v, k], dim=-1)), cu_seqlens)
        positions, scale = _positions(x, past), self.key_width**-0.5
        asking, turning = q.split([self.value_width, self.rope_width], dim=-1)
        turning, k = (turn(part, self.rope, positions) for part in (turning, k))
        new = Latents(torch.cat([v, k], dim=-1))
        if past is None:
            keys = torch.einsum("btgc,hkc->bthk", v, self.k_up)
            keys = torch.cat([keys, k.expand(-1, -1, self.heads, -1)], dim=-1)
            values = torch.einsum("btgc,hvc->bthv", v, self.v_up)
            return fused(torch.cat([asking, turning], dim=-1), keys, values), new
        held = _joined(past, new)
        absorbed = torch.cat([torch.einsum("bthk,hkc->bthc", asking, self.k_up), turning], dim=-1)
        read = operator(absorbed, held.latent, held.latent[..., : self.latent_width], scale=scale, impl=self.impl)
        return torch.einsum("bthc,hvc->bthv", read, self.v_up), held

    def state_elements(self, tokens: int) -> int:
        """tokens x (latent_width + rope_width)."""
        return tokens * (self.latent_width + self.rope_width)


def _head_width(width: Any, heads: Any, given: Any) -> int:
    if given is not None:
        return whole("head_width", given)
    if whole("width", width) % whole("heads", heads):
        raise ValueError(f"heads must divide width = {width} where head_width is not given, got {heads}")
    return int(width) // int(heads)


def _describe(layer: Any, **told: Any) -> None:
    """What it takes to build the layer again, where a head has one width for keys and values."""
    config = layer.config
    config["head_width"] = config.pop("key_width")
    del config["value_width"]
    layer.config = config | told


def _rows(up: Any) -> Any:
    """U_h [H, width, r] as the weight of one projection, [H r, width]."""
    return up.transpose(0, 2, 1).reshape(-1, up.shape[1])


def _planes(factor: Any, rope: Rope) -> tuple[Any, Any]:
    """(S [H, r/2], M [H, r, r]) with factor_h = E_S M_h: the planes each factor lies in, and what it does there."""
    heads, width, rank = factor.shape
    by_plane = factor[:, rotary.plane_coordinates(width, np.arange(width // 2), layout=rope.layout)]
    used = np.abs(by_plane).reshape(heads, 2, width // 2, rank).max(axis=(1, 3), initial=0.0) > 0
    if rank % 2 or (used.sum(axis=1) > rank // 2).any():
        raise ValueError(
            f"keys must have factors in {rank // 2} planes a head where position is 'aligned', got one in "
            f"{used.sum(axis=1).max()}; fit them with planes='aligned', or give position='expand'"
        )
    planes = np.sort(np.argsort(~used, axis=1, kind="stable")[:, : rank // 2], axis=1)
    basis = np.concatenate([rotary.aligned_factor(1, width, each, layout=rope.layout) for each in planes])
    return planes, basis.mT @ factor


def _normal(*shape: int, std: float) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape) * std)


def _normed(x: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, x.shape[-1:], eps=EPS)


def _positions(x: torch.Tensor, past: Any) -> torch.Tensor:
    """Where these tokens stand: behind those of the state."""
    start = 0 if past is None else past[0].shape[1]
    return torch.arange(start, start + x.shape[1], device=x.device)


def _past(state: Any, new: Any, cu_seqlens: Any) -> Any:
    """The state, if each part of it differs from the new one in its length alone."""
    if cu_seqlens is not None:
        raise ValueError("cu_seqlens must be None for a layer with a cache, which takes whole rows, got one")
    if state is None:
        return None
    if type(state) is not type(new):
        raise ValueError(f"state must be the {type(new).__name__} of an earlier call, got {type(state).__name__}")
    for name, part, old in zip(new._fields, new, state, strict=True):
        wanted, got = (None if x is None else (x.shape[0], *x.shape[2:]) for x in (part, old))
        if wanted != got:
            raise ValueError(f"state.{name} must be as this layer leaves it, {wanted} beside its length, got {got}")
    return state


def _joined(past: Any, new: Any) -> Any:
    """The state with these tokens behind it."""
    both = zip(past, new, strict=True)
    return type(new)(*(None if part is None else torch.cat([old, part], dim=1) for old, part in both))
