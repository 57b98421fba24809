"""RACE in PyTorch: differentiable in q, k, v, sharpness and the carried state, with memory linear in T.

What it changes from the reference, and what that bought:
    sigmoid features   phi is a product of sigmoid(+-2 beta u_t) (p. 22), built by doubling; it covers 2 beta P <= 80 in
                       float32 and 600 in float64, where no product underflows
    chunks             a chunk of tokens is a matrix product against the state; a causal chunk adds its own masked block
                       (Phi_Q Phi_K^T * tril) V
    recomputation      a chunk's features are made again when their gradient is needed, so that no feature is kept
    float64 state      the state is small; kept in float64, a stream of any length loses no mass
    two sweeps         dq follows the prefix state forward; dk and dv follow the gradient of the reads backward. Nothing
                       is subtracted from a total, which would round small prefixes away

bfloat16 and float16 inputs compute in float32 and return their own type; float64 stays float64. On the CPU float32 runs
on the kernels of `cpu_kernels.py` where Numba is installed, forward and backward; what follows is for float64 and for
other devices.
"""

import torch

from attnlab import backend
from attnlab.race.tensors import carried, given_back, in_range, refuse
from attnlab.tensors import all_numpy, as_tensor, unit

CHUNK, CAUSAL_CHUNK = 4096, 128
FAST = backend.numba_compiles()
LARGEST = {torch.float32: 80.0, torch.float64: 600.0}  # of 2 beta P: exp of its negative is a normal number


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
    """As `api.attention`, for tensors (NumPy arrays are taken and given back as such). A second derivative raises
    RuntimeError.

    Raises Unsupported beyond 2 beta P = 80 (600 in float64), for variants other than "algorithm", and for planes that
    want a gradient (they are drawn once, never learned).
    """
    refuse("torch", variant, planes)
    numpy = all_numpy(q, k, v, planes, sharpness)
    q, k, v, planes = (as_tensor(x) for x in (q, k, v, planes))
    widest = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    work = torch.float64 if widest == torch.float64 else torch.float32
    B, _, H, _ = q.shape
    beta = in_range("torch", as_tensor(sharpness).to(q.device, work).expand(H), planes, LARGEST[work])
    planes = planes.to(q.device, work)
    planes = (planes if planes.ndim == 4 else planes[None]).expand(H, -1, -1, -1)
    L, R, V = planes.shape[1], 2 ** planes.shape[2], v.shape[-1]
    out_dtype = v.dtype
    with torch.autocast(q.device.type, enabled=False):  # the working precision is the one named above
        q, k, v = (x.to(work) for x in (q, k, v))
        if normalize:
            q, k = unit(q), unit(k)
        on_cpu = FAST and q.device.type == "cpu" and work == torch.float32
        fresh = on_cpu and state is None
        mass, content = (None, None) if fresh else carried(state, (B, H, L * R), V, q.device)
        race = _RaceOnCPU if on_cpu else _Race
        out, mass, content = race.apply(q, k, v, planes, beta, mass, content, causal)
    mass, content = mass.view(B, H, L, R), content.view(B, H, L, R, V)
    return given_back(out.to(out_dtype), mass, content, numpy=numpy, return_state=return_state)


def features(x, planes, beta):
    """phi [B, H, C, L R] of tokens x [B, C, H, K]: bits by doubling, the last plane is the highest bit."""
    u = torch.tanh(torch.einsum("bchk,hlpk->bhclp", x, planes))
    z = 2 * beta[None, :, None, None, None] * u
    on, off = torch.sigmoid(z), torch.sigmoid(-z)
    phi = torch.ones_like(u[..., :1])
    for p in range(planes.shape[2]):
        phi = torch.cat([phi * off[..., p : p + 1], phi * on[..., p : p + 1]], dim=-1)
    return phi.flatten(-2)


class _Race(torch.autograd.Function):
    """(out, mass, content) from (q, k, v, planes, beta, mass, content): the state in float64, the rest as it came."""

    @staticmethod
    def forward(ctx, q, k, v, planes, beta, mass, content, causal):
        out = q.new_zeros(*q.shape[:3], v.shape[-1])
        den = q.new_zeros(q.shape[0], q.shape[2], q.shape[1])
        first_mass, first_content = mass, content
        if not causal:
            for s in _chunks(k.shape[1], CHUNK):
                mass, content = _written(mass, content, features(k[:, s], planes, beta), _heads_first(v[:, s]))
        for t in _chunks(q.shape[1], CAUSAL_CHUNK if causal else CHUNK):
            phi_q = features(q[:, t], planes, beta)
            num = phi_q @ content.to(q.dtype)
            den[:, :, t] = (phi_q @ mass.to(q.dtype)[..., None]).squeeze(-1)
            if causal:
                phi_k, v_t = features(k[:, t], planes, beta), _heads_first(v[:, t])
                block = (phi_q @ phi_k.mT).tril()
                num = num + block @ v_t
                den[:, :, t] += block.sum(-1)
                mass, content = _written(mass, content, phi_k, v_t)
            out[:, t] = _over(num, den[:, :, t]).transpose(1, 2)
        ctx.save_for_backward(q, k, v, planes, beta, first_mass, first_content, mass, content, out, den)
        ctx.causal = causal
        return out, mass, content

    @staticmethod
    def backward(ctx, d_out, d_mass, d_content):
        with torch.autocast(d_out.device.type, enabled=False):
            saved = (*ctx.saved_tensors, d_out, d_mass, d_content, ctx.causal)
            dq, dk, dv, dbeta, d_mass, d_content = _Gradient.apply(*saved)
        return dq, dk, dv, None, dbeta, d_mass, d_content, None


class _Once(torch.autograd.Function):
    """The gradient as a function of its own, so that whoever differentiates it again is told why that cannot be."""

    @staticmethod
    def backward(ctx, *gradients):
        raise RuntimeError(
            "RACE in torch has no second derivative: its gradient is computed in two sweeps that keep no graph."
        )


class _Gradient(_Once):
    @staticmethod
    def forward(
        ctx,
        q,
        k,
        v,
        planes,
        beta,
        first_mass,
        first_content,
        last_mass,
        last_content,
        out,
        den,
        d_out,
        d_mass,
        d_content,
        causal,
    ):
        dq, dk, dv, dbeta = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v), torch.zeros_like(beta)
        # O = Num/Den: every query sends its numerator d_num and its denominator d_den
        d_num = _over(_heads_first(d_out), den)  # [B, H, T, V]
        d_den = -(d_num * _heads_first(out)).sum(-1)  # [B, H, T]
        step = CAUSAL_CHUNK if causal else CHUNK

        mass, content = (first_mass, first_content) if causal else (last_mass, last_content)
        for t in _chunks(q.shape[1], step):  # forward: dq against the state that each query read
            d_phi = d_num[:, :, t] @ content.to(q.dtype).mT + d_den[:, :, t, None] * mass.to(q.dtype)[:, :, None]
            if causal:
                phi_k, v_t = features(k[:, t], planes, beta), _heads_first(v[:, t])
                d_phi = d_phi + (d_num[:, :, t] @ v_t.mT + d_den[:, :, t, None]).tril() @ phi_k
                mass, content = _written(mass, content, phi_k, v_t)
            dq[:, t], db = _through_features(q[:, t], planes, beta, d_phi)
            dbeta += db

        # the gradient of the final state, to which every read below adds its own; float64 like the state
        if not causal:
            for t in _chunks(q.shape[1], step):
                phi_q = features(q[:, t], planes, beta)
                d_mass, d_content = _written(d_mass, d_content, phi_q, d_num[:, :, t], d_den[:, :, t])
        # backward: dk and dv against the gradient of the state they were written to
        for s in reversed(list(_chunks(k.shape[1], step))):
            phi_k, v_s = features(k[:, s], planes, beta), _heads_first(v[:, s])
            d_phi = v_s @ d_content.to(q.dtype).mT + d_mass.to(q.dtype)[:, :, None]
            dv_s = phi_k @ d_content.to(q.dtype)
            if causal:
                phi_q = features(q[:, s], planes, beta)
                d_phi = d_phi + (d_num[:, :, s] @ v_s.mT + d_den[:, :, s, None]).tril().mT @ phi_q
                dv_s = dv_s + (phi_q @ phi_k.mT).tril().mT @ d_num[:, :, s]
                d_mass, d_content = _written(d_mass, d_content, phi_q, d_num[:, :, s], d_den[:, :, s])
            dv[:, s] = dv_s.transpose(1, 2)
            dk[:, s], db = _through_features(k[:, s], planes, beta, d_phi)
            dbeta += db
        return dq, dk, dv, dbeta, d_mass, d_content


class _RaceOnCPU(torch.autograd.Function):
    """The same function by the kernels for the CPU. It keeps the arguments, the state and, where causal, the output
    with 4 bytes of denominator a token and head.
    """

    @staticmethod
    @torch.compiler.disable
    def forward(ctx, q, k, v, planes, beta, mass, content, causal):
        from attnlab.race import cpu_kernels

        (B, T, H, _), V, S = q.shape, v.shape[-1], planes.shape[1] << planes.shape[2]
        out, den = v.new_empty(B, T, H, V), q.new_empty(B, T, H, 1) if causal and any(ctx.needs_input_grad) else None
        first = [] if mass is None else [mass, content]
        if first:
            mass, content = (x.clone(memory_format=torch.contiguous_format) for x in first)
        else:
            mass, content = (torch.zeros(shape, dtype=torch.float64) for shape in ((B, H, S), (B, H, S, V)))
        arrays = (_numpy(x) for x in (q, k, v, planes, beta, mass, content, out))
        cpu_kernels.forward(*arrays, causal=causal, threads=torch.get_num_threads(), den=_numpy(den))
        ctx.causal, ctx.carried = causal, bool(first)
        ctx.save_for_backward(q, k, v, planes, beta, *((out, den, *first) if causal else (mass, content)))
        ctx.set_materialize_grads(False)
        return out, mass, content

    @staticmethod
    @torch.compiler.disable
    def backward(ctx, d_out, d_mass, d_content):
        return _GradientOnCPU.apply(d_out, d_mass, d_content, ctx.causal, ctx.carried, *ctx.saved_tensors)


class _GradientOnCPU(_Once):
    @staticmethod
    def forward(ctx, d_out, d_mass, d_content, causal, carried_in, q, k, v, planes, beta, *kept):
        from attnlab.race import cpu_kernels

        (B, T, H, _), V, S = q.shape, v.shape[-1], planes.shape[1] << planes.shape[2]
        out, den, *state = kept if causal else (None, None, *kept)
        d_out = v.new_zeros(B, T, H, V) if d_out is None else d_out
        d_state = None
        if not causal or carried_in or d_mass is not None or d_content is not None:
            d_state = [
                torch.zeros(shape, dtype=torch.float64) if d is None else d.clone(memory_format=torch.contiguous_format)
                for d, shape in ((d_mass, (B, H, S)), (d_content, (B, H, S, V)))
            ]
        slopes = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v)]
        arrays = (_numpy(x) for x in (q, k, v, planes, beta, state or None, d_out, d_state, *slopes))
        options = {"causal": causal, "threads": torch.get_num_threads(), "out": _numpy(out), "den": _numpy(den)}
        dbeta = cpu_kernels.backward(*arrays, **options)
        d_first = d_state if d_state and carried_in else (None, None)
        return *slopes, None, torch.from_numpy(dbeta).to(beta), *d_first, None


def _numpy(x):
    """The same memory as a NumPy array; of each tensor of a list; None for None."""
    return [_numpy(y) for y in x] if isinstance(x, list) else x if x is None else x.resolve_neg().numpy()


def _through_features(x, planes, beta, d_phi):
    """(dx, dbeta) from the gradient of phi, through features made again from x."""
    with torch.enable_grad():
        x, beta = x.detach().requires_grad_(), beta.detach().requires_grad_()
        return torch.autograd.grad(features(x, planes, beta), (x, beta), d_phi)


def _written(mass, content, phi, v, ones=None):
    """A chunk's own sums in the working precision, added to the state in float64: no length of stream loses mass."""
    own = phi.sum(-2) if ones is None else (phi.mT @ ones[..., None]).squeeze(-1)
    return mass + own, content + phi.mT @ v


def _over(num, den):
    """num / den, and 0 where a query met no mass (no keys at all)."""
    return torch.where(den[..., None] > 0, num / torch.where(den > 0, den, 1)[..., None], 0)


def _heads_first(x):
    return x.transpose(1, 2)


def _chunks(length, size):
    return (slice(start, min(start + size, length)) for start in range(0, length, size))
