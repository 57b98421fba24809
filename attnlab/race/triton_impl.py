"""RACE in Triton, on a GPU: the door of attnlab to `attnlab_kernels.race`. The first lines there say what the kernels
change from the reference, and what that buys. This room decides what goes into them:

    types        float32, float16 and bfloat16 tensors go in as they are, different ones in the widest; the output has
                 the type of v. NumPy arrays are computed in float32 and come back so, float16 ones in float16
    normalize    lengths are taken in float32 (float64 for float64 arrays), and q and k go in as float32 then
    state        it enters and leaves in float64, so that no length of stream loses mass
    place        q, k and v lie on one GPU, and so do the results; no tensor among them is moved in silence. Planes,
                 sharpness and state follow. NumPy arrays travel to the GPU and back

In a process with TRITON_INTERPRET=1 the same kernels run interpreted, on the CPU.
"""

import torch

from attnlab.backend import Unsupported
from attnlab.race.tensors import carried, given_back, in_range, refuse
from attnlab.tensors import all_numpy, as_tensor, in_float32, on_one_gpu, unit
from attnlab_kernels import race


def attention(
    q,
    k,
    v,
    planes,
    sharpness=1.0,
    *,
    causal=False,
    state=None,
    return_state=False,
    variant="algorithm",
    normalize=False,
):
    """As `api.attention`, differentiable in q, k, v, sharpness and the carried state. A second derivative raises
    RuntimeError.

    Raises Unsupported beyond 2 beta P = 80, P = 6, K = 256 or V = 256, for variants other than "algorithm", for planes
    that want a gradient, for float64 tensors and arrays with numbers too large for float32, and for tensors that are
    not on a GPU. ValueError if they are on several.
    """
    refuse("triton", variant, planes)
    numpy, device = all_numpy(q, k, v, planes, sharpness), on_one_gpu(race, q=q, k=k, v=v)
    q, k, v, planes, beta = (as_tensor(x) for x in (q, k, v, planes, sharpness))
    (L, P, K), (B, _, H, V) = planes.shape[-3:], v.shape
    _covers("planes", P, race.MAX_PLANES)
    _covers("key widths", K, race.MAX_WIDTH)
    _covers("value widths", V, race.MAX_WIDTH)
    beta = in_range("triton", beta.to(torch.float32).expand(H), planes, race.MAX_LOGIT).to(device)
    q, k, v, planes = (x.to(device) for x in (q, k, v, planes))
    with torch.autocast(device.type, enabled=False):  # the types are the ones named above
        if normalize:
            q, k = (unit(x if x.dtype == torch.float64 else x.float()) for x in (q, k))
        q, k, v, planes = (in_float32(name, x) for name, x in (("q", q), ("k", k), ("v", v), ("planes", planes)))
        out_dtype, widest = v.dtype, torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
        q, k, v = (x.to(widest) for x in (q, k, v))
        state = carried(state, (B, H, L, 2**P), V, device)
        out, mass, content = race.attention(q, k, v, planes.float(), beta, causal=causal, state=state)
    return given_back(out.to(out_dtype), mass, content, numpy=numpy, return_state=return_state)


def _covers(name, size, largest):
    if not 1 <= size <= largest:
        raise Unsupported(f"the triton implementation covers {name} from 1 to {largest}, got {size}.")
