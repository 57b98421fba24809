"""Inputs that the tests of LRKV share: all axes of other sizes."""

from typing import Any

import numpy as np

from attnlab import draws
from attnlab.lrkv import STILL, rope, rotary

__all__ = ["OPTIONS", "arguments", "normal", "with_option"]

OPTIONS = ("plain", "q_residual", "k_scale", "latent_rope", "expand", "still", "ragged")  # of the door


def normal(seed: int, stream: int, *shape: int) -> np.ndarray:
    """Standard normal numbers of any shape."""
    return draws.normal(seed, stream, int(np.prod(shape[:-1])), shape[-1]).reshape(shape)


def arguments(
    *, B: int = 2, T: int = 3, S: int = 11, H: int = 6, G: int = 2, K: int = 8, V: int = 5, R: int = 4, Rv: int = 7,
    seed: int = 0, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """Keyword arguments of `attention`: normal arrays, and what `options` say."""
    return {
        "q": normal(seed, 1, B, T, H, K),
        "k_shared": normal(seed, 2, B, S, G, K),
        "v_shared": normal(seed, 3, B, S, G, V),
        "k_latent": normal(seed, 4, B, S, H, R),
        "v_latent": normal(seed, 5, B, S, H, Rv),
        "k_factor": normal(seed, 6, H, K, R) / np.sqrt(max(R, 1)),
        "v_factor": normal(seed, 7, H, V, Rv) / np.sqrt(max(Rv, 1)),
        **options,
    }


def with_option(option: str, **sizes: Any) -> dict[str, Any]:
    """Arguments that use one thing the door offers: one of OPTIONS. K must be even, and R even where latents turn."""
    given = arguments(**sizes)
    (B, T, H, K), S, R = given["q"].shape, given["k_shared"].shape[1], given["k_latent"].shape[-1]
    turning = {"rope": rope(K - K % 2), "positions": 3.0 + 2.0 * np.arange(S)}
    if option == "q_residual":
        given["q_residual"] = normal(0, 8, B, T, H, K)
    if option == "k_scale":
        given["k_scale"] = np.exp(0.3 * normal(0, 9, B, S, H))
    if option == "latent_rope":
        planes = np.arange(R // 2)
        given["k_factor"] = rotary.aligned_factor(H, K, planes)
        given |= turning | {"latent_rope": rotary.Rope(turning["rope"].frequency[planes])}
    if option == "expand":
        given |= turning | {"positions": turning["positions"] + np.arange(B)[:, None]}
    if option == "still":
        given |= turning | {"latent_rope": STILL, "q_residual": normal(0, 8, B, T, H, K)}
    if option == "ragged":
        given |= {
            "starts": np.arange(B) % max(S, 1),
            "ends": np.maximum(S - 2 * np.arange(B), np.arange(B) % max(S, 1)),
        }
        for b in range(B):
            for name in ("k_shared", "v_shared", "k_latent", "v_latent"):
                given[name][b, given["ends"][b] :] = np.nan
                given[name][b, : given["starts"][b]] = np.nan
    return given
