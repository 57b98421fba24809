"""LRKV in PyTorch: differentiable in every array, and a second time where torch's fused softmax has not computed.

What it changes from the reference, and what that bought:
    few queries     factored as Eqs. 6-7 (pp. 3-4), a row of the batch at a time: one product for all heads of a group
                    with the shared keys and with the shared values, one batched over heads for the latents. Nothing of
                    [S, H, K] is made, a single query needs no mask, and the cache is read in place, strided as it is.
                    On a CPU without gradients, latents are read READ numbers at a time: a head's are far apart, and
                    all heads' of a few tokens stay at hand (32 heads, rank 54, 8192 tokens: a quarter less time in all)
    many queries    MANY or more: keys and values of all heads are made once, and torch's fused softmax keeps no [T, S]
                    numbers but, with fewer queries than keys, one boolean mask. On one core with heads of 128 numbers
                    the two ways meet between 200 and 400 queries, at ranks 0 to 54
    rows            of a cut batch are slices of their own: what lies outside is never read, and has gradient 0
    turning back    a single query over keys that would have to be made and turned (`rope` without `latent_rope`) is
                    turned back to each key's place instead. That is a sum over planes of cosines and sines, so that one
                    product of their table with all heads' projected queries stands for turning S H keys

bfloat16 and float16 inputs compute in float32 and return their own type; float64 stays float64. `lse` is as wide as the
computation, and where it is asked for nothing is fused: logits are made LOGITS numbers at a time.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from attnlab.arrays import as_numpy
from attnlab.lrkv.params import Rope, edges, pairs
from attnlab.tensors import all_numpy, as_tensor

MANY = 256  # queries
READ, LOGITS, BACK = 2**16, 2**22, 2**20  # numbers at a time: of latents, of logits, of queries turned back


def attention(
    q,
    k_shared,
    v_shared,
    k_latent=None,
    v_latent=None,
    k_factor=None,
    v_factor=None,
    *,
    q_residual=None,
    k_scale=None,
    rope=None,
    latent_rope=None,
    positions=None,
    starts=None,
    ends=None,
    causal=True,
    scale=None,
    return_lse=False,
):
    """As `api.attention`, for tensors (where no argument is one, NumPy arrays are given back). A second derivative
    raises RuntimeError where many queries went through the fused softmax.
    """
    arrays = (q, k_shared, v_shared, k_latent, v_latent, k_factor, v_factor, q_residual, k_scale)
    numpy = all_numpy(*arrays)
    q, k_shared, v_shared, k_latent, v_latent, k_factor, v_factor, q_residual, k_scale = (
        None if x is None else as_tensor(x) for x in arrays
    )
    given = (q, k_shared, v_shared, k_latent, v_latent, k_factor, v_factor, q_residual, k_scale)
    double = any(x is not None and x.dtype == torch.float64 for x in given)
    own = {"device": q.device, "dtype": torch.float64 if double else torch.float32}
    scale = max(q.shape[-1], 1) ** -0.5 if scale is None else float(scale)
    if k_latent is not None and not k_latent.shape[-1]:  # rank 0
        k_latent = k_factor = q_residual = None
    if v_latent is not None and not v_latent.shape[-1]:
        v_latent = v_factor = None
    with torch.autocast(q.device.type, enabled=False):  # the working precision is the one named above
        q, k_factor, v_factor = (None if x is None else x.to(**own) for x in (q, k_factor, v_factor))
        q, call = scale * q, _Call(k_factor, v_factor, rope, latent_rope, q_residual is not None, causal, return_lse)
        asked = q if q_residual is None else scale * q_residual.to(**own)
        asked = None if k_latent is None else torch.einsum("bthk,hkr->bthr", asked, k_factor)
        cache: Any = k_shared, v_shared, k_latent, v_latent, k_scale
        outs, lses = [], []
        for rows, tokens in _spans(starts, ends, *k_shared.shape[:2]):
            cut = (None if x is None else x[rows, tokens].to(**own) for x in cache)
            held = _Held._make([*cut, _cut(positions, rows, tokens)])
            out, lse = _rows(q[rows], None if asked is None else asked[rows], held, call)
            outs.append(out)
            lses.append(lse)
    out = torch.cat(outs).to(v_shared.dtype)
    if not return_lse:
        return out.numpy() if numpy else out
    lse = torch.cat(lses)
    return (out.numpy(), lse.numpy()) if numpy else (out, lse)


class _Call(NamedTuple):
    """What holds for all rows."""

    k_factor: Any  # [H, K, R], or None
    v_factor: Any  # [H, V, Rv], or None
    rope: Any
    latent_rope: Any
    asks_twice: bool  # the residual meets a query of its own
    causal: bool
    return_lse: bool

    def turns_what_is_made(self) -> bool:
        """Whether latents mean nothing to the rotation, so that only whole keys turn."""
        return self.rope is not None and self.latent_rope is None


class _Held(NamedTuple):
    """The cache of some rows, those tokens alone that are there."""

    k_shared: torch.Tensor  # [B, S, G, K]
    v_shared: torch.Tensor  # [B, S, G, V]
    k_latent: Any  # [B, S, H, R], or None
    v_latent: Any  # [B, S, H, Rv], or None
    k_scale: Any  # [B, S, H], or None
    positions: Any  # [S] or [B, S], or None


def _spans(starts: Any, ends: Any, B: int, S: int) -> Iterator[tuple[slice, slice]]:
    """(rows, their tokens): all rows at once where they have the same tokens."""
    start, end = edges(starts, ends, B, S)
    if not B or (np.all(start == start[0]) and np.all(end == end[0])):
        yield slice(0, B), slice(int(start[0]), int(end[0])) if B else slice(0, S)
    else:
        yield from ((slice(b, b + 1), slice(int(start[b]), int(end[b]))) for b in range(B))


def _cut(positions: Any, rows: slice, tokens: slice) -> Any:
    if positions is None:
        return None
    positions = as_numpy(positions).astype(np.float64)
    return torch.from_numpy(positions[tokens] if positions.ndim == 1 else positions[rows, tokens])


def _rows(q, asked, held, call):
    """(out [B, T, H, V], lse [B, T, H]) of some rows; without an lse unless it is asked for."""
    (B, T, H), (S, _, V) = q.shape[:3], held.v_shared.shape[1:]
    see = min(T, S) if call.causal else T * (S > 0)  # so many queries see a key, the newest ones
    if not B * H:
        return q.new_zeros(B, T, H, V), q.new_full((B, T, H), -torch.inf)
    q, asked = q[:, T - see :], None if asked is None else asked[:, T - see :]
    if call.turns_what_is_made() and held.k_latent is not None and see != 1:
        keys = turn(expand(held.k_shared, held.k_latent, call.k_factor, H), call.rope, held.positions)
        held = held._replace(k_shared=keys, k_latent=None)
    elif call.rope is not None:
        held = held._replace(k_shared=turn(held.k_shared, call.rope, held.positions))
        if call.latent_rope is not None and held.k_latent is not None:
            held = held._replace(k_latent=turn(held.k_latent, call.latent_rope, held.positions))
    if see >= MANY and not call.return_lse:
        out, lse = _made(q, asked, held, call), None
    else:
        outs, lses = zip(*(_factored(b, q, asked, held, call) for b in range(B)), strict=True)
        out, lse = torch.stack(outs), torch.stack(lses) if call.return_lse else None
    out = pad(out, (0, 0, 0, 0, T - see, 0))
    return out, None if lse is None else pad(lse, (0, 0, T - see, 0), value=-torch.inf)


# -- many queries --


def _made(q, asked, held, call):
    """out [B, T, H, V], every key and value made."""
    H = q.shape[2]
    if held.k_latent is not None and call.asks_twice:  # two queries, so both parts of a key, side by side
        q = torch.cat([q, asked], dim=-1)
        keys = torch.cat([expand(held.k_shared, None, None, H), held.k_latent], dim=-1)
    else:
        keys = expand(held.k_shared, held.k_latent, call.k_factor, H)
    if held.k_scale is not None:
        keys = keys * held.k_scale[..., None]
    return fused(q, keys, expand(held.v_shared, held.v_latent, call.v_factor, H), causal=call.causal, scale=1.0)


def expand(shared, latent, factor, heads):
    """K_h = K_s + R_h B_h^T of all heads [B, S, H, K], or V_h; without latents, what heads share."""
    (B, S, G, K), of_a_group = shared.shape, heads // shared.shape[2]
    if latent is None:
        return shared[:, :, :, None].expand(-1, -1, -1, of_a_group, -1).flatten(2, 3)
    added = torch.bmm(latent.permute(2, 0, 1, 3).flatten(1, 2), factor.mT)  # one product a head, tokens of all rows
    made = added.unflatten(0, (G, of_a_group)) + shared.permute(2, 0, 1, 3).reshape(G, 1, B * S, K)
    return made.flatten(0, 1).unflatten(1, (B, S)).permute(1, 2, 0, 3)


def fused(q, k, v, *, causal=True, scale=None):
    """Torch's fused softmax attention of q [B, T, H, K], k and v [B, S, G, ...], the newest query at the last key, with
    no more queries than keys where causal. Widths may differ: zeros fill the smaller one.
    """
    (K, V), (T, S) = (q.shape[-1], v.shape[-1]), (q.shape[1], k.shape[1])
    scale = max(K, 1) ** -0.5 if scale is None else scale
    q, k, v = (pad(x, (0, max(K, V) - x.shape[-1])).transpose(1, 2) for x in (q, k, v))
    mask = None
    if causal and 1 < T < S:
        mask = torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)
    whole, grouped = causal and T == S, q.shape[1] != k.shape[1]
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=whole, scale=scale, enable_gqa=grouped)
    return out.transpose(1, 2)[..., :V]


# -- few queries --


def _factored(b, q, asked, held, call):
    """(out [T, H, V], lse [T, H]) of row b, where every query sees a key."""
    (T, H, K), (S, G) = q.shape[1:], held.k_shared.shape[1:3]
    groups = held.v_shared.shape[2]
    k_shared, v_shared = held.k_shared[b].permute(1, 2, 0), held.v_shared[b].transpose(0, 1)  # [G, K, S], [G, S, V]
    step = max(LOGITS // max(H * S, 1), 1)
    outs, lses = [], []
    for t in range(0, max(T, 1), step):  # no query is a block too, so that gradients find a way
        t_end = min(t + step, T)
        n = S - T + t_end if call.causal else S  # keys that one of these queries sees
        query = q[b, t:t_end].transpose(0, 1)
        logits = torch.bmm(query.reshape(G, H // G * (t_end - t), K), k_shared[..., :n])  # q K_s^T of Eq. 6
        logits = logits.view(H, t_end - t, n)
        if held.k_latent is not None:
            latent = held.k_latent[b, :n]
            if call.turns_what_is_made():
                logits = logits + _turned_back(query[:, 0], latent, held.positions, b, call)[:, None]
            else:
                logits = logits + _asked_of(latent, asked[b, t:t_end].transpose(0, 1))
        if held.k_scale is not None:
            logits = logits * held.k_scale[b, :n].T[:, None]
        if call.causal and t_end - t > 1:
            unseen = torch.ones(t_end - t, n, dtype=torch.bool, device=q.device).triu(n - (t_end - t) + 1)
            logits = logits.masked_fill(unseen, -torch.inf)
        weights = torch.softmax(logits, -1)
        out = torch.bmm(weights.view(groups, H // groups * (t_end - t), n), v_shared[:, :n])  # Eq. 7
        out = out.view(H, t_end - t, v_shared.shape[-1])
        if held.v_latent is not None:
            out = out.baddbmm(_mean_of(held.v_latent[b, :n], weights), call.v_factor.mT)
        outs.append(out)
        if call.return_lse:
            lses.append(torch.logsumexp(logits, -1))
    return torch.cat(outs, dim=1).transpose(0, 1), torch.cat(lses, dim=1).T if lses else None


def _asked_of(latent, query):
    """Logits [H, T, S] of latents [S, H, R] for queries [H, T, R] that are projected already."""
    return torch.cat([torch.bmm(query, part.permute(1, 2, 0)) for part in _pieces(latent, query)], dim=-1)


def _mean_of(latent, weights):
    """Latents [S, H, R] under weights [H, T, S]: [H, T, R]."""
    pieces, out = _pieces(latent, weights), latent.new_zeros(*weights.shape[:2], latent.shape[-1])
    for part, weight in zip(pieces, weights.split([len(part) for part in pieces], dim=-1), strict=True):
        out = torch.baddbmm(out, weight, part.transpose(0, 1))
    return out


def _pieces(latent, other):
    """Tokens whose latents, of all heads, a core has at hand; all of them where that is no CPU, or for a gradient."""
    whole = latent.device.type != "cpu" or latent.requires_grad or other.requires_grad
    S, H, R = latent.shape
    return latent.split(max(S if whole else READ // (H * R), 1))


def _turned_back(q, latent, positions, b, call):
    """q . P_s B z_s of one query [H, K] and latents z [S, H, R], as [H, S]: P_s^T q, projected by B_h, is a sum over
    planes of cos(angle) (q1 B1 + q2 B2) + sin(angle) (q2 B1 - q1 B2), and q B of the coordinates that stay.
    """
    H, (S, _, R), n = len(q), latent.shape, len(call.rope.frequency)
    first, second = pairs(call.rope)
    each = q[..., None] * call.k_factor  # of each coordinate, [H, K, R]
    cross = q[:, second, None] * call.k_factor[:, first] - q[:, first, None] * call.k_factor[:, second]
    stays = each[:, 2 * n :].sum(1, keepdim=True)
    parts = torch.cat([each[:, first] + each[:, second], cross, stays], dim=1)
    parts = parts.transpose(0, 1).reshape(2 * n + 1, H * R)
    cos, sin = (x[..., 0, :] for x in _waves(call.rope, positions if positions.ndim == 1 else positions[b], latent))
    table = torch.cat([cos, sin, cos.new_ones(S, 1)], dim=-1)
    step, ones = max(BACK // (H * R), 1), q.new_ones(R, 1)
    logits = []
    for s in range(0, S, step):
        products = (table[s : s + step] @ parts) * latent[s : s + step].flatten(1)
        logits.append((products.view(-1, R) @ ones).view(-1, H))  # a sum over the last axis, in half the time of `sum`
    return torch.cat(logits).T


# -- turning --


def turn(x, rope, positions):
    """P_t x of x [B, S, H, K] at positions [S] or [B, S]; frequencies may be [H, planes] where heads differ."""
    n = rope.frequency.shape[-1]
    if not n:
        return x
    cos, sin = _waves(rope, positions, x)
    first, second = (x[..., part] for part in pairs(Rope(np.zeros(n), rope.layout)))
    both = first * cos - second * sin, first * sin + second * cos
    turned = torch.cat(both, -1) if rope.layout == "half" else torch.stack(both, -1).flatten(-2)
    return torch.cat([turned.to(x.dtype), x[..., 2 * n :]], dim=-1)


def _waves(rope, positions, like):
    """(cos, sin) [..., S, H or 1, planes] of every plane's angle, made in float64."""
    frequency = torch.atleast_2d(torch.as_tensor(rope.frequency, dtype=torch.float64, device=like.device))
    angle = positions.to(like.device, torch.float64)[..., None, None] * frequency
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    return angle.cos().to(dtype), angle.sin().to(dtype)
