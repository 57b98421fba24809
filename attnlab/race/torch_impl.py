"""RACE in PyTorch: differentiable in q, k, v, sharpness and the carried state, with memory linear in T.

What it changes from the reference, and what that bought:
    sigmoid features   phi is a product of sigmoid(+-2 beta u_t) (p. 22), built by doubling; it covers 2 beta P <= 80 in
                       float32 and 600 in float64, where no product underflows
    chunks             a chunk of tokens is a matrix product against the state; a causal chunk adds its own masked block
                       (Phi_Q Phi_K^T * tril) V
    recomputation      a chunk's features are made again when their gradient is needed, so that no feature is kept
    two sweeps         dq follows the prefix state forward; dk and dv follow the gradient of the reads backward. Nothing
                       is subtracted from a total, which would round small prefixes away

bfloat16 and float16 inputs compute in float32 and return their own type; float64 stays float64.
"""

import numpy as np
import torch

from attnlab.backend import Unsupported
from attnlab.race.params import State, plain_state

CHUNK, CAUSAL_CHUNK = 4096, 128
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
    if variant != "algorithm":
        raise Unsupported(
            f"the torch implementation covers variant='algorithm', not {variant!r}; the reference has it."
        )
    from_numpy = isinstance(q, np.ndarray)
    q, k, v, planes = (torch.as_tensor(_writable(x)) for x in (q, k, v, planes))
    if planes.requires_grad:
        raise Unsupported(
            "the torch implementation has no gradient for planes: they are random and fixed (Algorithm 1, p. 5)."
        )
    work = torch.float64 if v.dtype == torch.float64 else torch.float32
    H, P = q.shape[2], planes.shape[-2]
    beta = torch.as_tensor(_writable(sharpness)).to(device=q.device, dtype=work).expand(H)
    largest = 2 * P * float(beta.detach().max()) if H else 0.0
    if not largest <= LARGEST[work]:
        raise Unsupported(
            f"the torch implementation covers 2 * sharpness * planes <= {LARGEST[work]:g} in {work}, got {largest:g}."
        )
    planes = planes.to(device=q.device, dtype=work)
    planes = (planes if planes.ndim == 4 else planes[None]).expand(H, -1, -1, -1)
    out_dtype = v.dtype
    q, k, v = (x.to(work) for x in (q, k, v))
    if normalize:
        q, k = _unit(q), _unit(k)
    B, V, L, R = q.shape[0], v.shape[-1], planes.shape[1], 2**P
    mass, content = _carried(state, (B, H, L * R), V, q.device, work)
    out, mass, content = _Race.apply(q, k, v, planes, beta, mass, content, causal)
    out = out.to(out_dtype)
    mass, content = mass.view(B, H, L, R), content.view(B, H, L, R, V)
    if from_numpy:
        out, mass, content = out.numpy(), mass.numpy(), content.numpy()
    return (out, State(mass, content)) if return_state else out


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
    """(out, mass, content) from (q, k, v, planes, beta, mass, content); everything in the working precision."""

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
            num = phi_q @ content
            den[:, :, t] = (phi_q @ mass[..., None]).squeeze(-1)
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
        dq, dk, dv, dbeta, d_mass, d_content = _Gradient.apply(*ctx.saved_tensors, d_out, d_mass, d_content, ctx.causal)
        return dq, dk, dv, None, dbeta, d_mass, d_content, None


class _Gradient(torch.autograd.Function):
    """The gradient as a function of its own, so that whoever differentiates it again is told that this is not
    covered.
    """

    @staticmethod
    def backward(ctx, *gradients):
        raise RuntimeError(
            "RACE in torch has no second derivative: its gradient is computed in two sweeps that keep no graph."
        )

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
            d_phi = d_num[:, :, t] @ content.mT + d_den[:, :, t, None] * mass[:, :, None]
            if causal:
                phi_k, v_t = features(k[:, t], planes, beta), _heads_first(v[:, t])
                d_phi = d_phi + (d_num[:, :, t] @ v_t.mT + d_den[:, :, t, None]).tril() @ phi_k
                mass, content = _written(mass, content, phi_k, v_t)
            dq[:, t], db = _through_features(q[:, t], planes, beta, d_phi)
            dbeta += db

        d_mass, d_content = d_mass.clone(), d_content.clone()  # of the final state; grows by every read below
        if not causal:
            for t in _chunks(q.shape[1], step):
                phi_q = features(q[:, t], planes, beta)
                d_mass, d_content = (
                    d_mass + (phi_q.mT @ d_den[:, :, t, None]).squeeze(-1),
                    d_content + phi_q.mT @ d_num[:, :, t],
                )
        for s in reversed(
            list(_chunks(k.shape[1], step))
        ):  # backward: dk and dv against the gradient of the state they were written to
            phi_k, v_s = features(k[:, s], planes, beta), _heads_first(v[:, s])
            d_phi = v_s @ d_content.mT + d_mass[:, :, None]
            dv_s = phi_k @ d_content
            if causal:
                phi_q = features(q[:, s], planes, beta)
                d_phi = d_phi + (d_num[:, :, s] @ v_s.mT + d_den[:, :, s, None]).tril().mT @ phi_q
                dv_s = dv_s + (phi_q @ phi_k.mT).tril().mT @ d_num[:, :, s]
                d_mass, d_content = (
                    d_mass + (phi_q.mT @ d_den[:, :, s, None]).squeeze(-1),
                    d_content + phi_q.mT @ d_num[:, :, s],
                )
            dv[:, s] = dv_s.transpose(1, 2)
            dk[:, s], db = _through_features(k[:, s], planes, beta, d_phi)
            dbeta += db
        return dq, dk, dv, dbeta, d_mass, d_content


def _through_features(x, planes, beta, d_phi):
    """(dx, dbeta) from the gradient of phi, through features made again from x."""
    with torch.enable_grad():
        x, beta = x.detach().requires_grad_(), beta.detach().requires_grad_()
        return torch.autograd.grad(features(x, planes, beta), (x, beta), d_phi)


def _written(mass, content, phi_k, v):
    return mass + phi_k.sum(-2), content + phi_k.mT @ v


def _over(num, den):
    """num / den, and 0 where a query met no mass (no keys at all)."""
    return torch.where(den[..., None] > 0, num / torch.where(den > 0, den, 1)[..., None], 0)


def _heads_first(x):
    return x.transpose(1, 2)


def _chunks(length, size):
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def _unit(x):
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / torch.where(length > 0, length, 1)


def _carried(state, shape, V, device, dtype):
    if state is None:
        return torch.zeros(shape, device=device, dtype=dtype), torch.zeros(*shape, V, device=device, dtype=dtype)
    if state[0] is not None and isinstance(state[0], np.ndarray):
        state = plain_state(state)
    mass, content = (torch.as_tensor(_writable(x)).to(device=device, dtype=dtype) for x in state[:2])
    return mass.reshape(shape), content.reshape(*shape, V)


def _writable(x):
    """A read-only or reversed NumPy view copied, since torch takes neither; anything else as it is."""
    return np.array(x) if isinstance(x, np.ndarray) and (not x.flags.writeable or min(x.strides, default=0) < 0) else x
