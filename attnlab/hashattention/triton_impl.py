"""HashAttention in Triton, on a GPU: the door of attnlab to `attnlab_kernels.hashattention`. The first lines there say
what the kernels change from the reference, and what that buys. This room decides what goes into them:

    types        float32, float16 and bfloat16 tensors go in as they are, different ones in the widest, which is a copy
                 of the cache; the output has the type of v. NumPy arrays are computed in float32 and come back so,
                 float16 ones in float16. lse is float32
    codes        words of 32 bits go in as int32. Codes come back uint32 for NumPy arrays, else int32
    maps         of one 16-bit type go in as they are, all others in float32. They are packed at every call; who decodes
                 token by token packs them once and calls `attnlab_kernels.hashattention.decode_step`
    place        q, k and v lie on one GPU, and so do the results; no tensor among them is moved in silence. Codes and
                 maps follow. NumPy arrays travel to the GPU and back
    gradients    there are none: a tensor that requires one is refused

In a process with TRITON_INTERPRET=1 the same kernels run interpreted, on the CPU.
"""

from typing import Any

import numpy as np
import torch

from attnlab.backend import Unsupported
from attnlab.hashattention.params import Maps
from attnlab.tensors import all_numpy, as_tensor, in_float32, on_one_gpu
from attnlab_kernels import hashattention


class _Codes:
    """What `on_one_gpu` asks of kernels, for codes: where they run, and the types that they take."""

    INTERPRETED = hashattention.INTERPRETED
    DTYPES = (torch.int32, torch.uint32)


def attention(
    q, k, v, query_codes, key_codes, *, budget, sinks=128, window=128, causal=True, scale=None, return_lse=False
):
    """As `api.attention`, without gradients.

    Raises Unsupported for a tensor that requires a gradient, beyond K = 256, V = 256 or 1,024 bits, for float64 tensors
    and arrays with numbers too large for float32, and for tensors that are not on a GPU. ValueError if they are on
    several.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if getattr(x, "requires_grad", False) and torch.is_grad_enabled():
            raise Unsupported(
                f"the triton implementation of hashattention has no gradients, and {name} requires one; detach it, or "
                "use impl='torch'."
            )
    numpy = all_numpy(q, k, v)
    device = on_one_gpu(hashattention, q=q, k=k, v=v)
    q, k, v = (as_tensor(x).to(device) for x in (q, k, v))
    for name, width in (("key widths", q.shape[-1]), ("value widths", v.shape[-1])):
        if not 1 <= width <= hashattention.MAX_WIDTH:
            raise Unsupported(
                f"the triton implementation covers {name} from 1 to {hashattention.MAX_WIDTH}, got {width}."
            )
    out_dtype = torch.float32 if v.dtype == torch.float64 else v.dtype
    q, k, v = in_float32("q", q), _read_in_part("k", k), _read_in_part("v", v)
    widest = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    sizes = _sizes(budget=budget, sinks=sinks, window=window)
    codes = (_words(x, device) for x in (query_codes, key_codes))
    out, lse = hashattention.attention(
        *(x.to(widest) for x in (q, k, v)), *codes, **sizes, causal=bool(causal), scale=scale, return_lse=True
    )
    out = out.to(out_dtype)
    if numpy:
        out, lse = out.cpu().numpy(), lse.cpu().numpy()
    return (out, lse) if return_lse else out


def encode(x, maps: Maps):
    """As `api.encode`. Raises Unsupported beyond rows or hidden layers of 256 numbers, and as `attention` does."""
    widths = [weight.shape[1] for weight in maps.weights]
    if not all(1 <= width <= hashattention.MAX_WIDTH for width in widths):
        raise Unsupported(
            f"the triton implementation covers rows and hidden layers of 1 to {hashattention.MAX_WIDTH} numbers, got "
            f"{', '.join(map(str, widths))}."
        )
    numpy = all_numpy(x)
    device = on_one_gpu(hashattention, x=x)
    x = in_float32("x", as_tensor(x).to(device))
    layers = [[as_tensor(part).to(device) for part in parts] for parts in maps]
    kinds = {part.dtype for parts in layers for part in parts}
    kind = kinds.pop() if len(kinds) == 1 and kinds <= {torch.float16, torch.bfloat16} else torch.float32
    layers = [[in_float32("maps", part).to(kind) for part in parts] for parts in layers]
    codes = hashattention.encode(x, hashattention.pack(*layers))
    return codes.cpu().numpy().view(np.uint32) if numpy else codes


def select(query_codes, key_codes, *, budget, sinks=128, window=128, causal=True):
    """As `api.select`. Raises Unsupported beyond 1,024 bits, and for tensors that are not on a GPU."""
    numpy = all_numpy(query_codes, key_codes)
    device = on_one_gpu(_Codes, query_codes=query_codes, key_codes=key_codes)
    codes = (_words(x, device) for x in (query_codes, key_codes))
    sizes = _sizes(budget=budget, sinks=sinks, window=window)
    index = hashattention.select(*codes, **sizes, causal=bool(causal)).to(torch.int64)
    return index.cpu().numpy() if numpy else index


def _words(codes: Any, device: torch.device) -> torch.Tensor:
    """Codes as the kernels take them."""
    if not 1 <= codes.shape[-1] <= hashattention.MAX_WORDS:
        raise Unsupported(
            f"the triton implementation covers codes of 1 to {hashattention.MAX_WORDS} words, got {codes.shape[-1]}."
        )
    return as_tensor(codes).to(device).view(torch.int32)


def _sizes(**sizes: Any) -> dict[str, Any]:
    """Plain numbers: whole ones stay whole."""
    return {name: int(x) if isinstance(x, (int, np.integer)) else float(x) for name, x in sizes.items()}


def _read_in_part(name: str, x: torch.Tensor) -> torch.Tensor:
    """`in_float32` of what may hold anything where it is not read: only numbers too large for float32 are refused."""
    if x.dtype != torch.float64:
        return x
    narrow = x.to(torch.float32)
    if bool((narrow.isinf() & ~x.isinf()).any()):
        raise Unsupported(f"the triton implementation computes in float32, and {name} has numbers too large for it.")
    return narrow
