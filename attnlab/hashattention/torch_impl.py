"""HashAttention in PyTorch: differentiable in q, k and v of the tokens that are read, with memory linear in them.

What it changes from the reference, and what that bought:
    popcount       torch has none on a CPU: sums of neighbouring bits, of pairs and of nibbles, in place on int32; two
                   to five times as fast as a table of bytes
    counting       a query's nearest are those below the distance at which a histogram reaches the budget, and of those
                   at it the first ones. No faster than torch.topk of distance and index in one number, but a set comes
                   out in rising order, any budget costs the same, and each query has its own
    blocks         distances are made and used for BLOCK pairs at a time, causal ones only as far as the block sees
    gathering      keys and values are read where the set says, for GATHERED numbers at a time, and again in the
                   gradient; nothing of the size of the gathered tokens is kept
    own gradient   the slopes of a block's keys and values are one product with the block's weights laid out over all S
                   keys, zeros between them: forward and gradient together take half the time that adding row by row
                   takes. Where a slope is not finite the rows are added one by one, so that it reaches no token that
                   its query did not read

bfloat16 and float16 inputs compute in float32 and return their own type; float64 stays float64. `lse` is as wide as the
computation.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from attnlab.hashattention.params import tokens_of, words
from attnlab.tensors import all_numpy, as_tensor

BLOCK, GATHERED = 2**17, 2**20
PAIRS, NIBBLES, BYTES = 0x55555555, 0x33333333, 0x0F0F0F0F


def attention(
    q,
    k,
    v,
    query_codes,
    key_codes,
    *,
    budget,
    sinks=128,
    window=128,
    causal=True,
    scale=None,
    return_lse=False,
):
    """As `api.attention`, for tensors (where q, k and v are none, NumPy arrays are given back). A second derivative
    raises RuntimeError.
    """
    numpy = all_numpy(q, k, v)
    q, k, v = (as_tensor(x) for x in (q, k, v))
    widest = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    work = torch.float64 if widest == torch.float64 else torch.float32
    scale = max(q.shape[-1], 1) ** -0.5 if scale is None else float(scale)
    asked, keyed = (_as_words(x, q.device) for x in (query_codes, key_codes))
    index = _selected(asked, keyed, budget, sinks, window, causal)
    with torch.autocast(q.device.type, enabled=False):  # the working precision is the one named above
        out, lse = _Gathered.apply(q.to(work), k, v, index, scale)
    out = out.to(v.dtype)
    if numpy:
        out, lse = out.numpy(), lse.numpy()
    return (out, lse) if return_lse else out


@torch.no_grad()
def encode(x, maps):
    """As `api.encode`: int32 for a tensor, uint32 for a NumPy array; computed in float64 if x is that, else in float32.
    NaN gives 0.
    """
    numpy = all_numpy(x)
    x = as_tensor(x)
    work = torch.float64 if x.dtype == torch.float64 else torch.float32
    layers = [tuple(as_tensor(part).to(x.device, work) for part in layer) for layer in zip(*maps, strict=True)]
    (B, T, H, _), b = x.shape, maps[1][-1].shape[-1]
    codes = torch.empty(B, T, H, words(b), dtype=torch.int32, device=x.device)
    widest = max(weight.shape[-1] for weight, _ in layers)
    with torch.autocast(x.device.type, enabled=False):
        for span in _spans(T, BLOCK // max(B * H * widest, 1)):
            y = x[:, span].movedim(2, 0).to(work).flatten(1, 2)
            for n, (weight, bias) in enumerate(layers):
                y = torch.baddbmm(bias[:, None], torch.nn.functional.silu(y) if n else y, weight)
            codes[:, span] = _packed(y > 0).view(H, B, span.stop - span.start, words(b)).movedim(0, 2)
    return codes.numpy().view(np.uint32) if numpy else codes


@torch.no_grad()
def select(query_codes, key_codes, *, budget, sinks=128, window=128, causal=True):
    """As `api.select`: a tensor if the codes are tensors."""
    numpy = all_numpy(query_codes, key_codes)
    device = next((x.device for x in (query_codes, key_codes) if isinstance(x, torch.Tensor)), None)
    asked, keyed = (_as_words(x, device) for x in (query_codes, key_codes))
    index = _selected(asked, keyed, budget, sinks, window, causal)
    return index.numpy() if numpy else index


# -- codes --


def _as_words(codes, device):
    """The same bits as int32."""
    return as_tensor(codes).view(torch.int32).to(device)


def _packed(bits):
    """True and False [..., b] as words [..., W], int32."""
    room = bits.new_zeros((*bits.shape[:-1], 32 * words(bits.shape[-1])), dtype=torch.int32)
    room[..., : bits.shape[-1]] = bits
    room = room.unflatten(-1, (-1, 32)) << torch.arange(32, dtype=torch.int32, device=bits.device)
    return room.sum(-1, dtype=torch.int32)  # no two of them share a bit


def popcount(x):
    """How many bits of each int32 are set; x is used up."""
    x -= (x >> 1) & PAIRS
    pairs = x >> 2
    pairs &= NIBBLES
    x &= NIBBLES
    x += pairs
    x += x >> 4
    x &= BYTES
    x *= 0x01010101  # the highest byte is the sum of all four
    x >>= 24
    return x


def _distances(query_words, key_words):
    """Hamming, int32 [g, R, t, n], of words [g, R, t, W] and [g, n, W]."""
    query_words = query_words.contiguous()
    total: Any = 0
    for w in range(key_words.shape[-1]):
        total = total + popcount(query_words[..., w, None] ^ key_words[:, None, None, :, w])
    return total.contiguous()


# -- the set --


def _selected(query_words, key_words, budget, sinks, window, causal):
    """I of every query, [B, T, H, N] int64 in rising order, -1 beyond its end."""
    (B, T, H, W), (S, C), device = query_words.shape, key_words.shape[1:3], query_words.device
    visible = np.arange(S - T + 1, S + 1) if causal else np.full(T, S)
    wanted, first, last = (
        np.array([tokens_of(size, n) for n in visible], np.int64) for size in (budget, sinks, window)
    )
    begin = np.minimum(first, visible)
    end = np.maximum(visible - last, begin)  # what may be chosen lies between
    taken = np.minimum(wanted, end - begin)
    size = visible - (end - begin) + taken
    N = int(size.max(initial=0)) if B * H else 0
    if not N:
        return torch.full((B, T, H, 0), -1, dtype=torch.int64, device=device)
    index = torch.full((B * C, H // C, T, N), -1, dtype=torch.int64, device=device)
    queries = query_words.reshape(B, T, C, -1, W).permute(0, 2, 3, 1, 4).flatten(0, 1)
    keys = key_words.transpose(1, 2).reshape(B * C, S, W)
    a_token = index.shape[1] * S
    for t in _spans(T, BLOCK // a_token):
        n = int(visible[t.stop - 1])
        begin_t, end_t, taken_t, size_t = (
            torch.from_numpy(x[t]).to(device)[:, None] for x in (begin, end, taken, size)
        )
        sees = torch.from_numpy(visible[t]).to(device)[:, None]
        token = torch.arange(n, device=device)
        free = (token >= begin_t) & (token < end_t)
        fixed = (token < sees) & ~free
        ends = torch.arange(N, device=device) < size_t
        for g in _spans(B * C, BLOCK // (a_token * (t.stop - t.start))):
            distance = _distances(queries[g, :, t], keys[g, :n])
            chosen = _nearest(distance, free, taken_t, 32 * W) | fixed
            place = index[g, :, t]
            place.masked_scatter_(ends.expand_as(place), chosen.flatten().nonzero()[:, 0] % n)
    return index.view(B, C, -1, T, N).permute(0, 3, 1, 2, 4).reshape(B, T, H, N)


def _nearest(distance, free, count, bits):
    """Where the `count` [t, 1] nearest of the free [t, n] tokens are, as `distance` [g, R, t, n] int32."""
    distance = distance.masked_fill_(~free, bits + 1)
    *rows, n = distance.shape
    bins = bits + 2
    offset = torch.arange(0, distance.numel() // n * bins, bins, dtype=torch.int32, device=distance.device)
    histogram = torch.bincount((distance.view(-1, n) + offset[:, None]).flatten(), minlength=len(offset) * bins)
    reached = histogram.view(*rows, bins).cumsum(-1)
    last = (reached < count).sum(-1, keepdim=True)  # the distance of the furthest; there are `count` free ones
    missing = (count - (reached - histogram.view(*rows, bins)).gather(-1, last)).int()
    last = last.int()
    at = distance == last
    return (distance < last) | (at & (at.cumsum(-1, dtype=torch.int32) <= missing))


# -- attention --


class _Gathered(torch.autograd.Function):
    """(out, lse) of q [B, T, H, K], k, v and the sets [B, T, H, N]; computed in the type of q."""

    @staticmethod
    @torch.compiler.disable
    def forward(ctx, q, k, v, index, scale):
        out = q.new_zeros((*q.shape[:3], v.shape[-1]))
        lse = q.new_full(q.shape[:3], -torch.inf)
        for place, table in _parts(q, k, v, index):
            keys, values, none, _ = _read(k[table], v[table], index[place].flatten(0, 1), q.dtype)
            weights, norm = _softmax(q[place].flatten(0, 1), keys, none, scale)
            out[place] = (weights[:, None] @ values).view(out[place].shape)
            lse[place] = norm.view(lse[place].shape)
        ctx.save_for_backward(q, k, v, index, out, lse)
        ctx.scale = scale
        return out, lse

    @staticmethod
    @torch.compiler.disable
    def backward(ctx, d_out, d_lse):
        with torch.autocast(d_out.device.type, enabled=False):
            return *_Gradient.apply(d_out, d_lse, ctx.scale, *ctx.saved_tensors), None, None


class _Once(torch.autograd.Function):
    """The gradient as a function of its own, so that whoever differentiates it again is told why that cannot be."""

    @staticmethod
    def backward(ctx, *gradients):
        raise RuntimeError(
            "HashAttention in torch has no second derivative: its gradient gathers the tokens again and keeps no graph."
        )


class _Gradient(_Once):
    @staticmethod
    def forward(ctx, d_out, d_lse, scale, q, k, v, index, out, lse):
        dq = torch.zeros_like(q, memory_format=torch.contiguous_format)
        dk, dv = (torch.zeros(x.shape, dtype=q.dtype, device=q.device) for x in (k, v))
        from_lse = d_lse - (d_out * out).sum(-1)
        for place, table in _parts(q, k, v, index):
            keys, values, none, rows = _read(k[table], v[table], index[place].flatten(0, 1), q.dtype)
            query, slope = q[place].flatten(0, 1), d_out[place].flatten(0, 1)
            weights, _ = _softmax(query, keys, none, scale)
            inner = (slope[:, None] @ values.mT)[:, 0] + from_lse[place].flatten()[:, None]
            d_logits = torch.where(none, 0, scale * weights * inner)
            dq[place] = (d_logits[:, None] @ keys).view(dq[place].shape)
            _add(dk[table], rows, none, d_logits, query)
            _add(dv[table], rows, none, weights, slope)
        return dq, dk.to(k.dtype), dv.to(v.dtype)


def _parts(q, k, v, index) -> Iterator[tuple[Any, Any]]:
    """(where queries and sets of a part lie, where their keys and values do): a key/value head, some tokens."""
    (B, T, H), (S, G), N = q.shape[:3], k.shape[1:3], index.shape[-1]
    if not N:
        return
    shared = H // G
    for b in range(B):
        for g in range(G):
            for t in _spans(T, GATHERED // (shared * max(N * (k.shape[-1] + v.shape[-1]), S, 1))):
                yield (b, t, slice(g * shared, (g + 1) * shared)), (b, slice(None), g)


def _read(k, v, index, dtype):
    """Keys [r, N, K] and values [r, N, V] of the sets [r, N], where a set has no token (zeros there), and the rows."""
    none = index < 0
    rows = index.clamp(min=0)
    keys, values = (x.index_select(0, rows.flatten()).view(*rows.shape, -1).to(dtype) for x in (k, v))
    if bool(none.any()):
        keys, values = (x.masked_fill(none[..., None], 0) for x in (keys, values))
    return keys, values, none, rows


def _softmax(query, keys, none, scale):
    """(weights [r, N], lse [r]) over each set; 0 and -inf where it is empty."""
    logits = scale * (query[:, None] @ keys.mT)[:, 0]
    logits = logits.masked_fill(none, -torch.inf)
    top = logits.amax(-1, keepdim=True)
    weights = torch.exp(logits - torch.where(top == -torch.inf, 0, top))
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total == 0, 1, total), (top + total.log())[:, 0]


def _add(table, rows, none, weights, vectors):
    """Add weights[r, n] vectors[r] to row rows[r, n] of the table, where there is one."""
    if bool(vectors.isfinite().all() & weights.isfinite().all()):
        spread = weights.new_zeros(len(rows), len(table)).scatter_add_(1, rows, weights)  # 0 where there is none
        table += spread.mT @ vectors
    else:
        each = (weights[..., None] * vectors[:, None])[~none]
        table.index_add_(0, rows[~none], each)


def _spans(length: int, step: int) -> Iterator[slice]:
    """0 to `length` in pieces of `step`, of one at least."""
    step = max(step, 1)
    return (slice(start, min(start + step, length)) for start in range(0, length, step))
