"""Inputs and oracles that the tests of LRKV's kernels share. The oracle is attnlab/lrkv/reference.py in float64."""

from functools import partial
from typing import Any

import numpy as np
import torch

from attnlab import parity
from attnlab.lrkv import reference
from tests.lrkv.cases import arguments, with_option

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
# Of a weight of the softmax, a turned key, q B: float32 itself; or two parts of what tensor cores take.
ROUNDING = {FP32: 2.0**-21, FP16: 2.0**-20, BF16: 2.0**-15}
PLAIN = ("positions", "starts", "ends")  # they keep their type


def tensors(given: dict[str, Any], dtype: torch.dtype, device: str) -> dict[str, Any]:
    """Arguments of the reference for the kernels: arrays as tensors of this type."""
    found = {}
    for name, x in given.items():
        kind = None if name in PLAIN else dtype
        found[name] = torch.from_numpy(x).to(device, kind) if isinstance(x, np.ndarray) else x
    return found


def as_reference(given: dict[str, Any]) -> dict[str, Any]:
    """The same numbers for the reference, in float64."""
    found = {}
    for name, x in given.items():
        wide = x.double() if isinstance(x, torch.Tensor) and name not in PLAIN else x
        found[name] = wide.cpu().numpy() if isinstance(wide, torch.Tensor) else wide
    return found


def drawn(option: str, dtype: torch.dtype, device: str, **sizes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """(for the kernels, for the reference): the same numbers, as they are in this type."""
    given = tensors((arguments if option == "plain" else partial(with_option, option))(**sizes), dtype, device)
    return given, as_reference(given)


def assert_reference(got: Any, exact: dict[str, Any], dtype: torch.dtype) -> None:
    """(o, lse) of the kernels, by the error that the reference itself has in float32, and rounding."""
    out, lse = got
    assert (out.dtype, lse.dtype) == (dtype, FP32)
    have, logarithm = out.double().cpu().numpy(), lse.double().cpu().numpy()
    wanted, wanted_lse = reference.attention(**exact, return_lse=True)
    low, low_lse = reference.attention(**exact, return_lse=True, dtype=np.float32)
    terms = exact["q"].shape[-1] + exact["k_shared"].shape[1]
    coarse = torch.finfo(dtype).eps if dtype != FP32 else None
    seen = parity.compare(have, wanted, low, terms=terms, dtype=ROUNDING[dtype], out_dtype=coarse)
    assert seen.ok, seen.reason
    assert np.array_equal(np.isneginf(logarithm), np.isneginf(wanted_lse))
    some = np.isfinite(wanted_lse)
    # an error of logits, which are as large as their terms together, up to 16 here
    allowed = 2 * np.abs(low_lse[some] - wanted_lse[some]).max(initial=0.0) + 16 * ROUNDING[dtype] * np.sqrt(terms)
    assert np.abs(logarithm[some] - wanted_lse[some]).max(initial=0.0) <= allowed
