"""Residual linear attention in Triton, on a GPU: the door of attnlab to `attnlab_kernels.residual`. The first lines
there say what the kernels change from the reference, and what that buys. This room decides what goes into them:

    types        float32, float16 and bfloat16 tensors go in as they are, different ones in the widest; the output has
                 the type of v. NumPy arrays are computed in float32 and come back so, float16 ones in float16. Gates
                 and states are float32
    gates        log_retention is exponentiated here, so that the kernels see retentions alone: exact at -inf
    normalize    lengths are taken in float32 (float64 for float64 arrays), and q and k go in as float32 then
    few tokens   up to DECODED tokens that want no gradient go through the recurrent kernel, on a copy of the state
    place        q, k and v lie on one GPU, and so do the results; no tensor among them is moved in silence. Gates and
                 state follow. NumPy arrays travel to the GPU and back

In a process with TRITON_INTERPRET=1 the same kernels run interpreted, on the CPU.
"""

import torch

from attnlab.backend import Unsupported
from attnlab.residual.params import RULES
from attnlab.residual.tensors import carried, gates, given_back, refuse, sequences
from attnlab.tensors import all_numpy, as_tensor, in_float32, on_one_gpu, unit
from attnlab_kernels import residual

DECODED = 4  # tokens; a chunk's tables cost more than these one after another


def attention(
    q,
    k,
    v,
    retention=None,
    write=None,
    correction=None,
    *,
    rule="rdn",
    log_retention=None,
    clip=1.0,
    target="clip",
    fitting=True,
    read_gates=True,
    normalize=False,
    scale=1.0,
    cu_seqlens=None,
    state=None,
    return_state=False,
):
    """As `api.attention`, differentiable in q, k, v, every gate and both states. A second derivative raises
    RuntimeError.

    Raises Unsupported for `fitting=False`, beyond K = 256 or V = 256, for float64 tensors and arrays with numbers too
    large for float32, and for tensors that are not on a GPU. ValueError if they are on several.
    """
    refuse("triton", rule, fitting)
    numpy = all_numpy(q, k, v, retention, write, correction, log_retention, *(state or ()))
    device = on_one_gpu(residual, q=q, k=k, v=v)
    q, k, v = (as_tensor(x).to(device) for x in (q, k, v))
    (B, T, H, K), V, out_dtype = q.shape, v.shape[-1], v.dtype
    for name, width in (("key widths", K), ("value widths", V)):
        if not 1 <= width <= residual.MAX_WIDTH:
            raise Unsupported(f"the triton implementation covers {name} from 1 to {residual.MAX_WIDTH}, got {width}.")
    with torch.autocast(device.type, enabled=False):  # the types are the ones named above
        if normalize:
            q, k = (unit(x if x.dtype == torch.float64 else x.float()) for x in (q, k))
        q, k, v = (in_float32(name, x) for name, x in (("q", q), ("k", k), ("v", v)))
        if out_dtype == torch.float64:
            out_dtype = torch.float32
        widest = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
        q, k, v = (x.to(widest) for x in (q, k, v))
        own = {"dtype": torch.float32, "device": device}
        has, tied = RULES[rule].gates, correction is None
        alpha, beta, gamma = gates((B, T, H), retention, write, correction, log_retention, **own)
        given = (
            alpha if "retention" in has else None,
            beta if "write" in has else None,
            None if tied or not RULES[rule].residual else gamma,
        )
        base, other = carried(state, rule, (sequences(cu_seqlens, B), H, K, V), **own)
        options = {"rule": rule, "clip": clip, "target": target, "read_gates": read_gates, "scale": scale}
        wanted = torch.is_grad_enabled() and any(
            x is not None and x.requires_grad for x in (q, k, v, *given, base, other)
        )
        if 0 < T <= DECODED and cu_seqlens is None and not wanted:
            dense = {"memory_format": torch.contiguous_format}
            base, other = base.clone(**dense), None if other is None else other.clone(**dense)
            out = residual.decode_step(q, k, v, *given, base, other, **options)
        else:
            cuts = None if cu_seqlens is None else as_tensor(cu_seqlens).to(torch.int64)
            out, base, other = residual.attention(q, k, v, *given, **options, state=(base, other), cu_seqlens=cuts)
    return given_back(out.to(out_dtype), base, other, numpy=numpy, return_state=return_state)
