"""Inputs and oracles that the tests of HashAttention's kernels share. The oracle is attnlab/hashattention/reference.py
in float64.
"""

from typing import Any, NamedTuple

import numpy as np
import torch

from attnlab import parity
from attnlab.hashattention import reference

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
# Of a weight of the softmax: float32 itself; or two parts of what tensor cores take.
ROUNDING = {FP32: 2.0**-22, FP16: 2.0**-21, BF16: 2.0**-15}


class Case(NamedTuple):
    """Sizes, type and set of one call; `codes` says how codes are drawn."""

    B: int = 1
    T: int = 1
    S: int = 100
    H: int = 2
    G: int = 1
    C: int = 1
    bits: int = 32
    K: int = 12
    V: int = 20
    budget: int | float = 20
    sinks: int | float = 3
    window: int | float = 5
    causal: bool = True
    dtype: torch.dtype = FP32
    codes: str = "random"

    @property
    def sizes(self) -> dict[str, Any]:
        """What says how many tokens are read."""
        return {"budget": self.budget, "sinks": self.sinks, "window": self.window, "causal": self.causal}

    def coded(self, seed: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes of queries and keys: int32."""
        draw = torch.Generator().manual_seed(seed)
        W = -(-self.bits // 32)
        shapes = ((self.B, self.T, self.H, W), (self.B, self.S, self.C, W))
        queries, keys = (torch.randint(-(2**31), 2**31, shape, generator=draw).int() for shape in shapes)
        last = self.bits - 32 * (W - 1)
        if last < 32:
            for codes in (queries, keys):
                codes[..., -1] &= 2**last - 1
        return DRAWN[self.codes](queries), DRAWN[self.codes](keys)

    def rows(self, seed: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k, v."""
        draw = torch.Generator().manual_seed(seed)
        shapes = ((self.B, self.T, self.H, self.K), (self.B, self.S, self.G, self.K), (self.B, self.S, self.G, self.V))
        q, k, v = (torch.randn(shape, generator=draw).to(self.dtype) for shape in shapes)
        return q, k, v


DRAWN = {
    "random": lambda codes: codes,
    "equal": torch.zeros_like,
    "far": lambda codes: torch.where(codes % 3 > 0, -1, 0).int(),  # at no distance, or at the largest there is
    "few": lambda codes: codes & 3,
}


def words(codes: torch.Tensor) -> np.ndarray:
    """As the reference takes them."""
    return codes.cpu().contiguous().numpy().view(np.uint32)


def wanted_lists(case: Case, query_codes: torch.Tensor, key_codes: torch.Tensor) -> np.ndarray:
    """What `select` must return."""
    return reference.select(words(query_codes), words(key_codes), **case.sizes)


def over_lists(q, k, v, index, lengths, scale: float, dtype: type = np.float64) -> tuple[np.ndarray, np.ndarray]:
    """(o, lse) of the reference over lists [B, T, L, N]: the first so many tokens of each, as sets, -1 left out."""
    q, k, v = (x.double().cpu().numpy().astype(dtype) for x in (q, k, v))
    (B, T, H), G, L = q.shape[:3], k.shape[2], index.shape[2]
    out, lse = np.zeros((B, T, H, v.shape[-1])), np.zeros((B, T, H))
    for b, t, h in np.ndindex(B, T, H):
        tokens = np.unique(np.asarray(index[b, t, h * L // H])[: int(lengths[b, t, h * L // H])])
        tokens = tokens[tokens >= 0]
        g = h * G // H
        _, out[b, t, h], lse[b, t, h] = reference.gathered(q[b, t, h], k[b, tokens, g], v[b, tokens, g], dtype(scale))
    return out, lse


def assert_near(got: torch.Tensor, exact: np.ndarray, low: np.ndarray, *, terms: int, dtype: torch.dtype) -> None:
    """Outputs, by the error that the reference itself has in float32, and rounding."""
    coarse = torch.finfo(got.dtype).eps if got.dtype != FP32 else None
    have = got.double().cpu().numpy()
    seen = parity.compare(have, exact, low, terms=terms, dtype=ROUNDING[dtype], out_dtype=coarse)
    assert seen.ok, seen.reason


def assert_same_lse(got: torch.Tensor, exact: np.ndarray, *, dtype: torch.dtype, terms: int) -> None:
    """-inf in the same places, else near: an error of the logits, and of the sum."""
    have = got.double().cpu().numpy()
    assert got.dtype == FP32
    assert np.array_equal(np.isneginf(have), np.isneginf(exact))
    some = np.isfinite(exact)
    size = 1 + np.abs(exact[some]).max(initial=0.0)
    assert np.abs(have[some] - exact[some]).max(initial=0.0) <= 8 * ROUNDING[FP32] * np.sqrt(terms) * size


def nan_beside(x: torch.Tensor, index: np.ndarray) -> torch.Tensor:
    """Keys or values [B, S, G, ...] of which all rows that no list [B, T, H, N] names are NaN."""
    B, S, G = x.shape[:3]
    H = index.shape[2]
    kept = torch.zeros(B, S, G, dtype=torch.bool)
    for b, t, h in np.ndindex(index.shape[:3]):
        tokens = index[b, t, h]
        kept[b, tokens[tokens >= 0], h * G // H] = True
    return torch.where(kept[..., None].to(x.device), x, torch.nan)
