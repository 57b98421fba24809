"""Residual linear attention in PyTorch: differentiable in q, k, v, every gate and both states, with memory linear in T.

What it changes from the reference, and what that bought:
    chunks            C tokens become products of C x C and C x K matrices, by the formulas of `chunked.py`. What
                      needs no state is made for a group of chunks at once, and the rest one chunk after the other
    decay tables      products of retentions by multiplication, never by logarithms: exact at retention 0
    one system        a delta rule's writes within a chunk are one triangular system, the same matrix up to a factor for
                      both memories
    own gradient      it goes back over what the forward kept beside its arguments: the recalls of every token (V
                      numbers a memory) and the states before every group (K V a memory for 512 tokens). Writes follow
                      from recalls token by token, so no system is solved twice; states inside a group are summed again
    decay's gradient  what an entry of a decay table passes on to the ones above it is a product with that same table

Letters as in `chunked.py`. Inside, tensors are [chunks, B H, C, ...], and a number a token stands as a column.

bfloat16 and float16 inputs compute in float32 and return their own type; float64 stays float64; states are as wide as
the computation. Sequences of `cu_seqlens` are computed one after the other, and so are the rows of a batch on a CPU:
there the bits of a small product depend on where its matrices lie, and a row shall not depend on its neighbours. On the
CPU float32 runs on the kernels of `cpu_kernels.py` where Numba is installed, forward and backward; what is said above
is for float64 and for other devices.
"""

from typing import Any, NamedTuple

import torch

from attnlab import backend
from attnlab.residual.params import RULES, segments
from attnlab.residual.tensors import carried, gates, given_back, parts, refuse, sequences
from attnlab.tensors import all_numpy, as_tensor, unit

CHUNK, GROUP = 32, 16  # tokens a chunk; chunks side by side
FAST = backend.numba_compiles()


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
    """As `api.attention`, for tensors (where no argument is one, NumPy arrays are given back). A second derivative
    raises RuntimeError. Where an error stands at the clip itself, its gradient passes, as torch.clamp's does.

    Raises Unsupported for `fitting=False`.
    """
    refuse("torch", rule, fitting)
    numpy = all_numpy(q, k, v, retention, write, correction, log_retention, *(state or ()))
    q, k, v = (as_tensor(x) for x in (q, k, v))
    widest = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    own = {"dtype": torch.float64 if widest == torch.float64 else torch.float32, "device": q.device}
    (B, T, H, K), V, out_dtype = q.shape, v.shape[-1], v.dtype
    with torch.autocast(q.device.type, enabled=False):  # the working precision is the one named above
        q, k, v = (x.to(own["dtype"]) for x in (q, k, v))
        if normalize:
            q, k = unit(q), unit(k)
        q = q if scale == 1 else scale * q
        alpha, beta, gamma = gates((B, T, H), retention, write, correction, log_retention, **own)
        S, R = carried(state, rule, (sequences(cu_seqlens, B), H, K, V), **own)
        if FAST and q.device.type == "cpu" and own["dtype"] == torch.float32:
            options = {"rule": rule, "clip": float(clip), "target": target, "read_gates": read_gates}
            options["parts"] = segments(cu_seqlens, B, T)
            out, S, R = _ResidualOnCPU.apply(q, k, v, alpha, beta, gamma, S, R, options)
        else:
            how = _How(RULES[rule].delta, RULES[rule].residual, float(clip), target, read_gates)
            where = parts(cu_seqlens, B, T, together=q.device.type != "cpu")
            out, S, R = _Residual.apply(q, k, v, alpha, beta, gamma, S, R, how, where)
    return given_back(out.to(out_dtype), S, R, numpy=numpy, return_state=return_state)


class _How(NamedTuple):
    """What a call computes: the rule's two properties, and the switches of its residual."""

    delta: bool
    residual: bool
    clip: float
    target: str
    read_gates: bool

    def taught(self, error):
        """What the second memory is given for an error of the first."""
        return torch.tanh(error) if self.target == "log_cosh" else error.clamp(-self.clip, self.clip)

    def through_taught(self, error, slope):
        """Its gradient."""
        if self.target == "log_cosh":
            return slope * (1 - torch.tanh(error).square())
        return torch.where(error.abs() <= self.clip, slope, 0)


class _Residual(torch.autograd.Function):
    """(out, S, R) from (q, k, v, alpha, beta, gamma, S, R), all of one type; R is None where the rule has none."""

    @staticmethod
    @torch.compiler.disable
    def forward(ctx, q, k, v, alpha, beta, gamma, S, R, how, where):
        out, keep, kept = v.new_empty(v.shape), any(ctx.needs_input_grad), []
        last = [None if x is None else x.new_empty(x.shape) for x in (S, R)]
        for rows, tokens, states in where:
            memories = tuple(None if x is None else _copied(x[states].flatten(0, 1)) for x in (S, R))
            for span in _spans(tokens):
                group = _Group(how, *(_chunks(x[rows], span) for x in (q, k, v, alpha, beta, gamma)))
                entering = memories
                reads, recalls, memories = group.run(*entering)
                _put(reads, out[rows], span)
                if keep:
                    kept += [*recalls, *entering]
            _leave(memories, last, states)
        ctx.save_for_backward(q, k, v, alpha, beta, gamma, *kept)
        ctx.how, ctx.where = how, where
        return out, *last

    @staticmethod
    @torch.compiler.disable
    def backward(ctx, d_out, d_base, d_residual):
        with torch.autocast(d_out.device.type, enabled=False):
            return _Gradient.apply(d_out, d_base, d_residual, ctx.how, ctx.where, *ctx.saved_tensors)


class _Once(torch.autograd.Function):
    """The gradient as a function of its own, so that whoever differentiates it again is told why that cannot be."""

    @staticmethod
    def backward(ctx, *gradients):
        raise RuntimeError(
            "residual attention in torch has no second derivative: its gradient is computed in sweeps that keep no "
            "graph."
        )


class _Gradient(_Once):
    @staticmethod
    def forward(ctx, d_out, d_base, d_residual, how, where, q, k, v, alpha, beta, gamma, *kept):
        arrays = (q, k, v, alpha, beta, gamma)
        slopes = [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in arrays]
        at, d_last = len(kept), (d_base, d_residual)
        d_first = [None if x is None else x.new_empty(x.shape) for x in d_last]
        for rows, tokens, states in reversed(where):
            memories = tuple(None if x is None else _copied(x[states].flatten(0, 1)) for x in d_last)
            for span in reversed(list(_spans(tokens))):
                at -= 4
                group = _Group(how, *(_chunks(x[rows], span) for x in arrays))
                found, memories = group.back(_chunks(d_out[rows], span), *memories, *kept[at : at + 4])
                for x, slope in zip(slopes, found, strict=True):
                    _put(slope, x[rows], span)
            _leave(memories, d_first, states)
        return *slopes, *d_first, None, None


class _ResidualOnCPU(torch.autograd.Function):
    """The same function by the kernels for the CPU. It keeps the arguments and what `cpu_kernels.Kept` says."""

    @staticmethod
    @torch.compiler.disable
    def forward(ctx, q, k, v, alpha, beta, gamma, S, R, options):
        from attnlab.residual import cpu_kernels

        memories = [x.clone(memory_format=torch.contiguous_format) for x in (S, R) if x is not None]
        out, kept = v.new_empty(v.shape), None
        arrays, gate_arrays = [_numpy(x) for x in (q, k, v)], [_numpy(x) for x in (alpha, beta, gamma)]
        if any(ctx.needs_input_grad):
            kept = cpu_kernels.keep(arrays[0], arrays[2], rule=options["rule"], parts=options["parts"])
            ctx.save_for_backward(q, k, v, alpha, beta, gamma, *(torch.from_numpy(x) for x in kept))
        states, threads = [_numpy(x) for x in memories], torch.get_num_threads()
        ours = {"kept": kept, "threads": threads, **options}
        cpu_kernels.forward(arrays[0], arrays[1], arrays[2], gate_arrays, states, _numpy(out), **ours)
        ctx.options = options
        return out, memories[0], memories[1] if len(memories) == 2 else None

    @staticmethod
    @torch.compiler.disable
    def backward(ctx, d_out, d_base, d_residual):
        return _GradientOnCPU.apply(d_out, d_base, d_residual, ctx.options, *ctx.saved_tensors)


class _GradientOnCPU(_Once):
    @staticmethod
    def forward(ctx, d_out, d_base, d_residual, options, q, k, v, alpha, beta, gamma, *kept):
        from attnlab.residual import cpu_kernels

        d_memories = [x.clone(memory_format=torch.contiguous_format) for x in (d_base, d_residual) if x is not None]
        slopes = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v)]
        arrays, gate_arrays = [_numpy(x) for x in (q, k, v)], [_numpy(x) for x in (alpha, beta, gamma)]
        given: Any = (*arrays, gate_arrays, cpu_kernels.Kept(*(_numpy(x) for x in kept)), _numpy(d_out))
        into: Any = ([_numpy(x) for x in d_memories], *(_numpy(x) for x in slopes))
        of_gates = cpu_kernels.backward(*given, *into, threads=torch.get_num_threads(), **options)
        of_gates = [torch.from_numpy(x).transpose(1, 2) for x in of_gates]
        return *slopes, *of_gates, d_memories[0], d_memories[1] if len(d_memories) == 2 else None, None


def _numpy(x):
    """The same memory as a NumPy array."""
    return x.detach().resolve_neg().numpy()


class _Group:
    """Some chunks of equal length: q, k [chunks, B H, C, K], v [..., V], gates [..., 1], and the tables that no state
    is needed for.
    """

    def __init__(self, how, q, k, v, alpha, beta, gamma):
        self.q, self.k, self.v, self.alpha, self.beta, self.gamma, self.how = q, k, v, alpha, beta, gamma, how
        self.C = C = q.shape[-2]
        earlier = torch.ones(C, C, dtype=torch.bool, device=q.device).tril(-1)
        self.D = torch.where(earlier, alpha, 1).cumprod(-2).tril()
        self.E = _one_later(self.D, 0)
        self.a = alpha.cumprod(-2)
        self.before = _one_later(self.a, 1)
        self.h, self.all = self.D[..., -1:, :].mT, self.a[..., -1:, :]  # to the end, of writes and of what entered
        self.kq = torch.cat([k, q], -2)
        self.G, self.A = (self.kq @ k.mT).split(C, -2)
        self.Le = self.G * self.E
        # what a query reads: all up to its token; of the first memory of two, without its token, or before any decay
        self.new = _Read(self.D, self.a, before=False)
        self.old = self.new
        if how.residual and how.read_gates:
            self.old = _Read(self.D.tril(-1), self.a, before=False)
        elif how.residual:
            self.old = _Read(self.E, self.before, before=True)

    # -- forward --

    def run(self, S, R):
        """(out, (P, RP), (S, R)): the reads [chunks, B H, C, V]; what each key recalls before its token, None where
        nothing asks; and the memories [B H, K, V] after the last chunk.
        """
        how, RP = self.how, None
        U, keys, queries, S = self.sweep(S, self.v, self.beta)
        P = self.before * keys + self.Le @ U if how.delta or how.residual else None
        out = self.old.a * queries + (self.A * self.old.D) @ U
        if how.residual:
            W, keys, queries, R = self.sweep(R, how.taught(self.v - P), self.gamma)
            RP = self.before * keys + self.Le @ W if how.delta else None
            Y = self.a * queries + (self.A * self.D) @ W
            out += self.gamma * Y if how.read_gates else Y
        return out, (P, RP), (S, R)

    def sweep(self, M, target, rate):
        """(writes, what keys and queries read of the memory that enters their chunk, the last memory)."""
        reads, writes = target.new_empty(*self.kq.shape[:-1], target.shape[-1]), rate * target
        hk, system, rate_a = (self.h * self.k).mT, rate * self.alpha * self.Le, rate * self.a
        for c in range(len(reads)):
            torch.bmm(self.kq[c], M, out=reads[c])
            if self.how.delta:
                missing = writes[c] - rate_a[c] * reads[c, :, : self.C]
                writes[c] = torch.linalg.solve_triangular(system[c], missing, upper=False, unitriangular=True)
            M = torch.baddbmm(self.all[c] * M, hk[c], writes[c])
        return writes, *reads.split(self.C, -2), M

    # -- gradient --

    def back(self, g, dS, dR, P, RP, S, R):
        """(dq, dk, dv, dalpha, dbeta, dgamma), (dS, dR): `g` is the gradient of `out`, dS and dR come in as those of
        the last memories and leave as those of the first; the rest is what `run` has kept, and was given.
        """
        how, sums, dP, dgamma = self.how, _Sums(self), None, torch.zeros_like(self.gamma)
        if how.residual:
            error, rate = self.v - P, self.gamma if how.read_gates else None
            taught, dgamma, read, dR = self.memory(sums, R, dR, how.taught(error), RP, self.gamma, g, rate, self.new)
            if how.read_gates:
                dgamma += read
            dP = -how.through_taught(error, taught)
        dv, dbeta, _, dS = self.memory(sums, S, dS, self.v, P, self.beta, g, None, self.old, dP)
        dq, dk, dalpha = sums.gathered()
        return (dq, dk, dv if dP is None else dv - dP, dalpha, dbeta, dgamma), (dS, dR)

    def memory(self, sums, M, dM, target, recalled, rate, g, read_rate, read, dP=None):
        """The gradients of a memory's target and rate, the product of `g` with what was read [..., 1], and the gradient
        of the first memory. `dP` is the gradient of what the keys recalled that comes from elsewhere.
        """
        lack = target - self.alpha * recalled if self.how.delta else target
        writes = rate * lack
        Ms = self.entering(M, writes)
        own = g if read_rate is None else read_rate * g
        d = (self.A * read.D).mT @ own
        if dP is not None:
            d += self.Le.mT @ dP
        d, dP, dMs, dM = self.back_sweep(dM, d, own, rate, read.a, dP)
        if self.how.delta:
            sums.alpha -= rate * _rows(d * recalled)
        to, table = g @ Ms.mT, g @ writes.mT
        product = read.a * _rows(self.q * to) + _rows(self.A * read.D * table)
        if read_rate is not None:
            to, table = read_rate * to, read_rate * table
        sums.read(to, table, read)
        sums.written(writes @ dMs.mT, (dMs * Ms).sum((-2, -1), keepdim=True))
        if dP is not None:
            sums.recalled(dP @ Ms.mT, dP @ writes.mT)
        return rate * d, _rows(d * lack), product, dM

    def entering(self, M, writes):
        """The memory that enters each chunk, [chunks, B H, K, V]."""
        Ms = (self.h * self.k).mT @ writes  # first what each chunk adds
        for c in range(len(Ms)):
            Ms[c], M = M, torch.addcmul(Ms[c], self.all[c], M)
        return Ms

    def back_sweep(self, dM, d, g, rate, a, dP):
        """The gradient of the writes, from `d`, what the reads in their own chunk say; that of all recalls, None where
        there are none; that of the memory that leaves each chunk; and that of the first memory.
        """
        recalls = dP is not None or self.how.delta
        kq, slopes = a * self.q, g
        if recalls:
            kq = torch.cat([self.before * self.k, kq], -2)
            slopes = torch.cat([torch.zeros_like(g) if dP is None else dP, g], -2)
        dMs = g.new_empty(*g.shape[:2], *dM.shape[1:])
        system, rate_a = rate * self.alpha * self.Le, rate * self.alpha
        for c in reversed(range(len(d))):
            dMs[c] = dM
            d[c] += self.h[c] * (self.k[c] @ dM)
            if self.how.delta:
                d[c] = torch.linalg.solve_triangular(system[c].mT, d[c], upper=True, unitriangular=True)
                slopes[c, :, : self.C] -= rate_a[c] * d[c]
            dM = torch.baddbmm(self.all[c] * dM, kq[c].mT, slopes[c])
        return d, slopes[..., : self.C, :] if recalls else None, dMs, dM


class _Read(NamedTuple):
    """How a query's read decays: from each token of its chunk, and from the memory that enters it. `before`: these are
    E and `before` of the group, else D and a.
    """

    D: Any
    a: Any
    before: bool


class _Sums:
    """Gradients that both memories and all their uses add to: of G and A, of decays, and of products with memories."""

    def __init__(self, group):
        self.group = group
        self.q, self.k, self.write = (torch.zeros_like(group.k) for _ in range(3))
        self.A, self.Le, self.D, self.E = (torch.zeros_like(group.D) for _ in range(4))
        self.alpha, self.a, self.before = (torch.zeros_like(group.a) for _ in range(3))
        self.all = torch.zeros_like(group.all)

    def read(self, to, table, read):
        """Of queries: `to` is the product of the gradient of `out` with entering memories, `table` with writes."""
        self.A += table * read.D
        self.q += read.a * to
        D, a = (self.E, self.before) if read.before else (self.D, self.a)
        D += table * self.group.A
        a += _rows(self.group.q * to)

    def recalled(self, to, table):
        """Of keys, the same."""
        self.k += to
        self.Le += table

    def written(self, to, over_all):
        """Of writes: products with the gradient of the memory that leaves, and of both ends of the chunk."""
        self.write += to
        self.all += over_all

    def gathered(self):
        """dq, dk, dalpha."""
        x = self.group
        dG = self.Le * x.E
        dq = self.q + self.A @ x.k
        dk = (dG + dG.mT) @ x.k + self.A.mT @ x.q + x.h * self.write + x.before * self.k
        self.E += self.Le * x.G
        self.before += _rows(x.k * self.k)
        self.D[..., -1:, :] += _rows(x.k * self.write).mT
        self.a[..., -1:, :] += self.all
        # an entry of D or a is made of the one above it; what is below passes on what of it goes through
        made = torch.cat([self.D + _one_earlier(self.E), self.a + _one_earlier(self.before)], -1)
        above = torch.cat([x.E, x.before], -1)
        return dq, dk, self.alpha + _rows((x.D.mT @ made) * above)


def _leave(memories, into, states):
    """Memories [B H, K, V] in their place among the states of a call; a rule may have only the first."""
    for memory, place in zip(memories, into, strict=True):
        if memory is not None:
            place[states] = memory.view_as(place[states])


def _rows(x):
    return x.sum(-1, keepdim=True)


def _one_later(x, first):
    """Rows moved down by one, the first filled."""
    return torch.cat([torch.full_like(x[..., :1, :], first), x[..., :-1, :]], -2)


def _one_earlier(x):
    """Rows moved up by one, the last filled with 0."""
    return torch.cat([x[..., 1:, :], torch.zeros_like(x[..., :1, :])], -2)


def _spans(tokens):
    """(first token, chunks, tokens a chunk) of groups of equal chunks: whole ones, then what is left."""
    start = tokens.start
    while start < tokens.stop:
        chunks, C = min((tokens.stop - start) // CHUNK, GROUP), CHUNK
        if not chunks:
            chunks, C = 1, tokens.stop - start
        yield start, chunks, C
        start += chunks * C


def _chunks(x, span):
    """Tokens [B, T, H, n], or numbers [B, T, H], of a span as [chunks, B H, C, n or 1]."""
    start, chunks, C = span
    x = x[:, start : start + chunks * C].unflatten(1, (chunks, C))
    x = x.unsqueeze(-1) if x.ndim == 4 else x
    return _copied(x.permute(1, 0, 3, 2, 4).flatten(1, 2))


def _copied(x):
    """In memory of its own, which starts on a cache line wherever x stands among others."""
    return x.clone(memory_format=torch.contiguous_format)


def _put(x, into, span):
    """The way back."""
    start, chunks, C = span
    place = into[:, start : start + chunks * C].unflatten(1, (chunks, C))
    place = place.unsqueeze(-1) if place.ndim == 4 else place
    place.permute(1, 0, 3, 2, 4).copy_(x.unflatten(1, (into.shape[0], into.shape[2])))
