"""What the operations of `attnlab_kernels.race` do on a CPU: the same chunks and the same sums, in plain torch.

It is the body that tracing, compiling and opcheck see where there is no GPU, and a twin to read beside the kernels.
attnlab/race/reference.py is the definition. Letters as there; S stands for L 2^P, the buckets of a head.
"""

import itertools
from collections.abc import Iterator

import torch

__all__ = ["backward", "chunk_count", "decode", "forward"]


def chunk_count(x: torch.Tensor, cu_seqlens: torch.Tensor | None, chunk: int) -> int:
    """How many chunks an operation makes room for; with `cu_seqlens` as many as there can be, whatever it holds."""
    B, T = x.shape[:2]
    return B * ((T + chunk - 1) // chunk) if cu_seqlens is None else T // chunk + cu_seqlens.shape[0] - 1


@torch.autocast("cpu", enabled=False)  # the working precision is the one named here
def forward(q, k, v, planes, beta, mass, content, cu_seqlens, causal: bool, chunk: int, keep: bool):
    """(out, den, prefix mass, prefix content, last mass, last content), as `race.forward`."""
    wide = _wide(q)
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=v.dtype)
    den = torch.zeros(q.shape[:3], dtype=wide)
    last_mass, last_content = _own(mass.flatten(2)), _own(content.flatten(2, 3))
    count = chunk_count(k, cu_seqlens, chunk) if causal else 0
    before_mass = torch.zeros(count, *last_mass.shape[1:], dtype=wide)
    before_content = torch.zeros(count, *last_content.shape[1:], dtype=wide)
    for c, n, at in _chunks(k, cu_seqlens, chunk):
        phi_k, v_c = _features(_take(k, at), planes, beta)[0], _take(v, at)
        if causal:
            phi_q = _features(_take(q, at), planes, beta)[0]
            before_mass[c], before_content[c] = last_mass[n], last_content[n]
            block = (phi_q @ phi_k.mT).tril()
            total = (phi_q @ before_mass[c][..., None]).squeeze(-1) + block.sum(-1)
            _put(out, at, _over(phi_q @ before_content[c] + block @ v_c, total))
            _put(den, at, total)
        last_mass[n] += phi_k.sum(-2)
        last_content[n] += phi_k.mT @ v_c
    if not causal:
        for _, n, at in _chunks(q, cu_seqlens, chunk):
            phi_q = _features(_take(q, at), planes, beta)[0]
            total = (phi_q @ last_mass[n].to(wide)[..., None]).squeeze(-1)
            _put(out, at, _over(phi_q @ last_content[n].to(wide), total))
            _put(den, at, total)
    none = q.new_empty(0, dtype=wide)
    before = (before_mass, before_content) if causal else (none, none.clone())
    return out, den if keep else none.clone(), *before, last_mass.view_as(mass), last_content.view_as(content)


@torch.autocast("cpu", enabled=False)  # the working precision is the one named here
def backward(d_out, d_mass, d_content, q, k, v, planes, beta, mass, content, cu_seqlens, causal: bool, chunk: int):
    """(dq, dk, dv, d beta, d mass, d content), as `race.backward`: forward for dq, then backward for dk, dv."""
    wide = _wide(q)
    d_q, d_k, d_v = (torch.zeros(x.shape, dtype=x.dtype) for x in (q, k, v))
    d_beta = torch.zeros(beta.shape, dtype=wide)
    first_mass, first_content = _own(d_mass.flatten(2)), _own(d_content.flatten(2, 3))
    sent = {}  # what the reads of a chunk need again on the way back: w = phi / Den, delta = dO . O, dO
    for c, n, at in _chunks(q, cu_seqlens, chunk):
        state = (mass[c], content[c]) if causal else (mass[n].flatten(1), content[n].flatten(1, 2))
        A, B = (x.to(wide) for x in state)
        phi_q, through = _features(_take(q, at), planes, beta)
        g, den = _take(d_out, at), (phi_q @ A[..., None]).squeeze(-1)
        d_phi = g @ B.mT
        delta = (phi_q * d_phi).sum(-1)
        if causal:
            phi_k, v_c = _features(_take(k, at), planes, beta)[0], _take(v, at)
            block, d_block = (phi_q @ phi_k.mT).tril(), (g @ v_c.mT).tril()
            den, delta = den + block.sum(-1), delta + (block * d_block).sum(-1)
        over = _over(torch.ones_like(den)[..., None], den).squeeze(-1)
        delta = delta * over
        d_phi = d_phi - delta[..., None] * A[:, None]
        if causal:
            d_phi = d_phi + (d_block - delta[..., None]).tril() @ phi_k
        d_x, d_b = through(d_phi * over[..., None])
        _put(d_q, at, d_x)
        d_beta += d_b
        sent[c] = phi_q * over[..., None], delta, g
        if not causal:
            _receive(first_mass[n], first_content[n], *sent[c])
    for c, n, at in reversed(list(_chunks(k, cu_seqlens, chunk))):
        phi_k, through = _features(_take(k, at), planes, beta)
        v_c, dA, dB = _take(v, at), first_mass[n].to(wide), first_content[n].to(wide)
        d_phi, d_v_c = v_c @ dB.mT + dA[:, None], phi_k @ dB
        if causal:
            w, delta, g = sent[c]
            d_phi = d_phi + (g @ v_c.mT - delta[..., None]).tril().mT @ w
            d_v_c = d_v_c + (w @ phi_k.mT).tril().mT @ g
            _receive(first_mass[n], first_content[n], w, delta, g)
        d_x, d_b = through(d_phi)
        _put(d_k, at, d_x)
        _put(d_v, at, d_v_c)
        d_beta += d_b
    state = first_mass.view_as(d_mass), first_content.view_as(d_content)
    return d_q, d_k, d_v, d_beta.to(beta.dtype), *state


@torch.autocast("cpu", enabled=False)  # the working precision is the one named here
def decode(q, k, v, planes, beta, mass, content) -> torch.Tensor:
    """One token in every row; mass and content are updated in place, in their type."""
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=v.dtype)
    for b in range(q.shape[0]):
        at = (b, slice(0, 1))
        phi_q, phi_k = (_features(_take(x, at), planes, beta)[0] for x in (q, k))
        mass[b] += phi_k.sum(-2).view_as(mass[b])
        content[b] += (phi_k.mT @ _take(v, at)).view_as(content[b])
        A, B = mass[b].flatten(1).to(phi_q.dtype), content[b].flatten(1, 2).to(phi_q.dtype)
        _put(out, at, _over(phi_q @ B, (phi_q @ A[..., None]).squeeze(-1)))
    return out


def _features(x: torch.Tensor, planes: torch.Tensor, beta: torch.Tensor):
    """phi [H, C, S] of tokens x [H, C, K], and the function that leads d phi back to (dx, d beta [H])."""
    H, L, P, K = planes.shape
    corners = (torch.arange(2**P)[:, None] >> torch.arange(P) & 1).to(x.dtype)  # [R, P]: which planes a bucket has set
    u = torch.tanh(x @ planes.view(H, L * P, K).mT)  # [H, C, L P]
    logit = 2 * beta[:, None, None] * u
    on, off = (torch.nn.functional.logsigmoid(sign * logit).unflatten(-1, (L, P)) for sign in (1, -1))
    phi = torch.exp(on @ corners.mT + off @ (1 - corners).mT).flatten(-2)

    def through(d_phi: torch.Tensor):
        share = (d_phi * phi).unflatten(-1, (L, 2**P))
        d_logit = ((share @ corners) * off.exp() - (share @ (1 - corners)) * on.exp()).flatten(-2)
        d_y = 2 * beta[:, None, None] * (1 - u * u) * d_logit
        return d_y @ planes.view(H, L * P, K), (2 * u * d_logit).sum((1, 2))

    return phi, through


def _receive(d_mass, d_content, w, delta, g) -> None:
    """Add to the gradient of a state what the reads of a chunk send to it."""
    d_mass -= (w * delta[..., None]).sum(-2)
    d_content += w.mT @ g


def _chunks(x: torch.Tensor, cu_seqlens: torch.Tensor | None, chunk: int) -> Iterator[tuple[int, int, tuple]]:
    """(number of the chunk, number of its sequence, where its tokens are) for every chunk."""
    if cu_seqlens is None:
        rows = [(b, 0, x.shape[1]) for b in range(x.shape[0])]
    else:
        rows = [(0, start, stop) for start, stop in itertools.pairwise(cu_seqlens.tolist())]
    pieces = (
        (n, (row, slice(t, min(t + chunk, stop))))
        for n, (row, start, stop) in enumerate(rows)
        for t in range(start, stop, chunk)
    )
    for c, (n, at) in enumerate(pieces):
        yield c, n, at


def _take(x: torch.Tensor, at: tuple) -> torch.Tensor:
    """The tokens of a chunk, heads first, in the working type: [H, C, width]."""
    return x[at].transpose(0, 1).to(_wide(x))


def _put(x: torch.Tensor, at: tuple, part: torch.Tensor) -> None:
    x[at] = part.transpose(0, 1).to(x.dtype)


def _over(num: torch.Tensor, den: torch.Tensor) -> torch.Tensor:
    """num / den, and 0 where a query met no mass."""
    empty = den == 0  # NaN is not empty, and stays NaN
    return torch.where(empty[..., None], 0, num / torch.where(empty, 1, den)[..., None])


def _own(x: torch.Tensor) -> torch.Tensor:
    """A contiguous copy, whatever the strides of x."""
    return x.clone(memory_format=torch.contiguous_format)


def _wide(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
