"""The public door of RACE: check the arguments, pick the implementation, run it."""

from typing import Any

from attnlab import backend
from attnlab.arrays import Array, Float
from attnlab.race.params import check_arguments

__all__ = ["attention"]


def attention(
    q: Float[Array, "B T H K"],
    k: Float[Array, "B S H K"],
    v: Float[Array, "B S H V"],
    planes: Float[Array, "L P K"],
    sharpness: float | Float[Array, " H"] = 1.0,
    *,
    causal: bool = False,
    state: Any = None,
    return_state: bool = False,
    variant: str = "algorithm",
    normalize: bool = False,
    impl: str = "reference",
) -> Any:
    """RACE attention [B, T, H, V]: every query's convex combination of values, in time linear in T. With
    `return_state`, (output, state).

    `planes` [L, P, K] (or [H, L, P, K]) are standard normal, from `draw_planes`; `sharpness` (beta, 1e-6 to 1e4) may
    differ by head. `causal` lets query t see keys 0 .. t. `state` carries (mass [B, H, L, 2^P], content [B, H, L, 2^P,
    V]) of earlier tokens; one run equals any segmentation of it. `variant`: "algorithm" (Algorithms 1 and 2),
    "bucket_mean" (the operator of the authors' released code), "hard" (hashing without softness). `normalize` divides q
    and k by their lengths first. `impl` is one of "reference", "numba", "torch", "triton".

    Raises ValueError or TypeError naming the argument; backend.Unavailable where `impl` cannot run here;
    backend.Unsupported where it runs but does not cover these arguments. No implementation stands in for another.
    Source: arXiv:2510.04008v5, Algorithm 1 (p. 5) and Algorithm 2 (p. 27).
    """
    check_arguments(q, k, v, planes, sharpness, causal, state, return_state, variant, normalize)
    room = backend.load(impl, "race")
    memories = {} if state is None else {"state.mass": state[0], "state.content": state[1]}
    backend.refuse_gradients(impl, q=q, k=k, v=v, planes=planes, sharpness=sharpness, **memories)
    return room.attention(
        q,
        k,
        v,
        planes,
        sharpness,
        causal=causal,
        state=state,
        return_state=return_state,
        variant=variant,
        normalize=normalize,
    )
