"""The public door of LRKV: check the arguments, pick the implementation, run it."""

from typing import Any

from attnlab import backend
from attnlab.arrays import Array, Float
from attnlab.lrkv.params import Rope, check_arguments

__all__ = ["attention"]


def attention(
    q: Float[Array, "B T H K"],
    k_shared: Float[Array, "B S G K"],
    v_shared: Float[Array, "B S G V"],
    k_latent: Float[Array, "B S H R"] | None = None,
    v_latent: Float[Array, "B S H Rv"] | None = None,
    k_factor: Float[Array, "H K R"] | None = None,
    v_factor: Float[Array, "H V Rv"] | None = None,
    *,
    q_residual: Float[Array, "B T H K"] | None = None,
    k_scale: Float[Array, "B S H"] | None = None,
    rope: Rope | None = None,
    latent_rope: Rope | None = None,
    positions: Float[Array, " S"] | None = None,
    starts: Array | None = None,
    ends: Array | None = None,
    causal: bool = True,
    scale: float | None = None,
    return_lse: bool = False,
    impl: str = "reference",
) -> Any:
    """Softmax attention over keys and values that lie in factors: o [B, T, H, V]. With `return_lse`, (o, lse [B, T,
    H]), lse the logarithm of the softmax's denominator, by which parts of a cache are merged.

    Head h reads keys K_s + R_h B_h^T, and values likewise, without any of them being made: logits are
    q K_s^T + (q B_h) R_h^T, outputs a V_s + (a R_h) B_h^T. H query heads share G shared keys and values, neighbours the
    same: 1 in the paper, and with latents left away G = 1 is MQA, G < H is GQA, G = H is MHA.

    Keys as they lie in the cache are what q meets, so what turns with position was turned when it was written, q too;
    a residual that turns otherwise than the shared keys meets a query of its own, `q_residual`. Where the cache is kept
    unturned (so that tokens can be moved or dropped), `rope` turns shared keys by `positions` [S] or [B, S] as they are
    read, and `latent_rope` the latents: exact if the factors are made for it (`attnlab.lrkv.rotary`). Without
    `latent_rope`, keys are expanded and turned whole: exact for any factor, at about 2 K flop for each of R numbers.
    `k_scale` multiplies each key's logit: with 1 / rms(K_h), an RMS norm after the sum.

    The newest query stands at the last key; where `causal`, earlier ones see as many keys fewer. `starts` and `ends`
    [B] cut each row of the batch: only keys from starts[b] to before ends[b] are there, and the newest query stands at
    the last of them; beyond them the cache may hold anything. A query that sees no key has o = 0 and lse = -inf. The
    cache is checked for shapes and types, not number by number: NaN in a key that is read comes out as NaN,
    and in a value it may reach earlier queries of the same call too.
    `scale` is 1/sqrt(K) unless given.

    `impl` is one of "reference", "numba", "torch", "triton". "numba" and "triton" compute in float32, "torch" too
    unless something given is float64: a logit that this does not hold comes out as NaN. "torch" has gradients; the
    others refuse a tensor that requires one. Raises ValueError or TypeError naming the argument; backend.Unavailable
    where `impl` cannot run here; backend.Unsupported where it runs but does not cover these arguments. No
    implementation stands in for another.
    Source: arXiv:2601.11471v3, Eqs. 4-7, pp. 3-4; rope, k_scale: this project.
    """
    options: dict[str, Any] = {
        "q_residual": q_residual,
        "k_scale": k_scale,
        "rope": rope,
        "latent_rope": latent_rope,
        "positions": positions,
        "starts": starts,
        "ends": ends,
        "causal": causal,
        "scale": scale,
        "return_lse": return_lse,
    }
    arrays = {
        "q": q,
        "k_shared": k_shared,
        "v_shared": v_shared,
        "k_latent": k_latent,
        "v_latent": v_latent,
        "k_factor": k_factor,
        "v_factor": v_factor,
    }
    check_arguments(**arrays, **options)
    room = backend.load(impl, "lrkv")
    backend.refuse_gradients(impl, only=("torch",), **arrays, q_residual=q_residual, k_scale=k_scale)
    return room.attention(*arrays.values(), **options)
