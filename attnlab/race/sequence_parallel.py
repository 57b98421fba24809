"""RACE over a sequence that is cut among processes: exact sequence parallelism on torch.distributed.

A rank holds a contiguous shard of the tokens and gets its shard of the output. What ranks exchange is the state, mass A
and content B: L R (V + 1) numbers a head, however many tokens stand behind it.

    non-causal   every query reads the sum of all states                          (Algorithm 1, p. 5)
    causal       a query reads the sum of all states before it, and its own chunk  (Algorithm 2, p. 27)
    backward     the same sums of the states' gradients, taken from the other end of the sequence

Exact means: the same operator as on one machine, and the same bits wherever ranks begin on the grid of chunks.
    one grid     the whole sequence is cut every `chunk` tokens. A chunk's state is computed by one call of the
                 implementation with these tokens alone, wherever they lie
    one tree     states are added in float64 in the order of a binary tree over the chunks: block (level, i) holds
                 chunks i 2^level to (i + 1) 2^level - 1. A prefix is the sum of the blocks that its length has as
                 binary digits, the largest first, as in Fenwick's tree
    no reduce    the order of a backend's all_reduce is its own choice. Ranks gather the roots of the largest blocks
                 that each of them holds, O(log chunks) of them, and every rank adds them in the tree's order
A chunk that ranks share is added piece by piece, so a cut off the grid moves results by rounding only.

The docs page papers/race-sequence-parallel says how to start it, and what it sends.
"""

import hashlib
import itertools
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from attnlab import backend
from attnlab.arrays import as_float, dial, one_of
from attnlab.race.params import State, check_arguments
from attnlab.race.tensors import carried
from attnlab.tensors import as_tensor

__all__ = ["CHUNK", "attention"]

CHUNK = 4096
IMPLEMENTATIONS = tuple(row.name for row in backend.ROWS if row.gradients)
AGREED = (
    "impl", "causal", "chunk", "normalize", "return_state", "gradient mode", "q", "k", "v", "planes", "sharpness",
    "state",
)  # fmt: skip


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, planes: Any, sharpness: Any = 1.0, *, causal: bool = False,
    state: Any = None, return_state: bool = False, normalize: bool = False, group: Any = None, impl: str = "torch",
    chunk: int = CHUNK,
) -> Any:  # fmt: skip
    """This rank's shard [B, T, H, V] of RACE attention over the whole sequence, differentiable in q, k, v, sharpness
    and the carried state. With `return_state`, (output, state after the last token of the last rank).

    q, k [B, T, H, K] and v [B, T, H, V] are this rank's tokens: rank r's come right before rank r + 1's, T may differ
    from rank to rank and may be 0. Everything else is the same on every rank, which is checked: planes, sharpness and
    `state`, which counts once, before the first token. `group` is the process group (None: the default one); without
    one this process is the only rank. `impl` is "torch" or "triton". `chunk` is the grid's spacing in tokens.

    Forward and backward are collective: every rank of the group calls both, in the same order. The loss is the sum of
    the ranks' losses. So q, k and v get their own gradients; sharpness and state, being the same everywhere, get the
    SUM over ranks, on every rank and with the same bits: do not reduce it again.

    Raises, on every rank alike and before any waits for another, TypeError or ValueError that names the argument and
    the ranks; backend.Unavailable and backend.Unsupported as `api.attention`. A second derivative raises RuntimeError.
    Source: arXiv:2510.04008v5, Algorithms 1 and 2 (pp. 5 and 27).
    """
    world, rank = _place(group)
    facts, written, problem = dict.fromkeys(AGREED, ""), False, None
    try:
        for name, x in (("q", q), ("k", k), ("v", v)):
            if not isinstance(x, torch.Tensor):
                raise TypeError(f"{name} must be a torch tensor, got {type(x).__name__}")
        check_arguments(q, k, v, planes, sharpness, causal, state, return_state, "algorithm", normalize)
        if k.shape[1] != q.shape[1]:
            raise ValueError(f"k must have as many positions as q, {q.shape[1]}, got {k.shape[1]}")
        chunk = dial("chunk", chunk, 1, 2**31, integer=True)
        room = backend.load(one_of("impl", impl, IMPLEMENTATIONS), "race")
        no_q, no_k, no_v = (x.detach()[:, :0] for x in (q, k, v))
        # what the implementation itself refuses, it refuses here, while nobody waits for this rank
        room.attention(no_q, no_k, no_v, planes, sharpness, causal=causal, normalize=normalize)
        words = [str(x) for x in (impl, causal, chunk, normalize, return_state, torch.is_grad_enabled())]
        words += [*map(_shape, (q, k, v)), *map(_digest, (planes, sharpness))]
        words += [" and ".join(_digest(x) for x in state or () if x is not None)]
        facts = dict(zip(AGREED, words, strict=True))
        written = any(getattr(x, "requires_grad", False) for x in (k, v, sharpness, *(state or ())))
    except Exception as error:
        problem = error
    lengths, differentiable = _agree(facts, q, written, problem, group, world)

    planes = as_tensor(planes).to(q.device)
    (B, _, H, _), V, (L, P) = q.shape, v.shape[-1], planes.shape[-3:-1]
    ranks, sizes = _cut(lengths, chunk)
    where = (ranks, rank, group, world)
    # contiguous, so that not even the strides of a chunk depend on where it lies
    qs, ks, vs = ([piece.contiguous() for piece in x.split(sizes[rank], 1)] for x in (q, k, v))
    betas = _Replicated.apply(as_tensor(sharpness).to(q.device, torch.float64), len(qs), where).unbind(0)

    own = []
    for k_c, v_c, beta in zip(ks, vs, betas, strict=True):
        _, state_c = room.attention(no_q, k_c, v_c, planes, beta, return_state=True, normalize=normalize)
        own.append(_packed(*state_c[:2]))
    shape = (B, H, L, 2**P)
    first = _packed(*(x.view(*shape, *x.shape[3:]) for x in carried(state, (B, H, L * 2**P), V, q.device)))
    # a rank whose own keys want no gradient must still take part in the backward exchange of those that do
    anchor = torch.zeros((), device=q.device, requires_grad=differentiable)
    read, last = _Exchange.apply(torch.stack(own), first, anchor, causal, return_state, where)

    out = []
    for q_c, k_c, v_c, beta, before in zip(qs, ks, vs, betas, read.unbind(0), strict=True):
        keys = (k_c, v_c) if causal else (no_k, no_v)
        state_c = _unpacked(before)
        out.append(room.attention(q_c, *keys, planes, beta, causal=causal, state=state_c, normalize=normalize))
    return (torch.cat(out, 1), State(*_unpacked(last))) if return_state else torch.cat(out, 1)


def _packed(mass, content):
    """Mass and content side by side, [..., R, 1 + V]: one tensor to send."""
    return torch.cat([mass[..., None], content], -1)


def _unpacked(x):
    mass, content = x.split([1, x.shape[-1] - 1], -1)
    return mass.squeeze(-1), content


# -- the grid and the tree --


def _cut(lengths, chunk):
    """For each rank the chunks that it holds tokens of, a range, and how many tokens of each. An empty rank has one
    piece of no tokens, so that its output hangs on the exchange as everybody's does.
    """
    ranks, sizes = [], []
    for start, stop in itertools.pairwise([0, *itertools.accumulate(lengths)]):
        chunks = range(start // chunk, -(-stop // chunk)) if start < stop else range(0)
        ranks.append(chunks)
        sizes.append([min((c + 1) * chunk, stop) - max(c * chunk, start) for c in chunks] or [0])
    return ranks, sizes


def _shared(ranks):
    """The chunks of which several ranks hold a piece."""
    holders = [chunks for chunks in ranks if chunks]
    return {after.start for before, after in itertools.pairwise(holders) if after.start < before.stop}


def _roots(chunks, shared):
    """What a rank sends, in order: the largest blocks (level, i) of its whole chunks, and (-1, c) for its piece of a
    chunk c that it shares.
    """
    roots, c = [], chunks.start
    stop = chunks.stop - (chunks.stop - 1 in shared)
    while c < chunks.stop:
        if c in shared:
            roots.append((-1, c))
            c += 1
            continue
        level = (stop - c).bit_length() - 1  # the largest that fits ...
        if c:
            level = min(level, (c & -c).bit_length() - 1)  # ... and begins at c
        roots.append((level, c >> level))
        c += 1 << level
    return roots


class _Tree:
    """Sums of blocks of chunks, and of prefixes, each computed once, from `blocks` that are known."""

    def __init__(self, first, blocks):
        self.blocks, self.prefixes = blocks, {0: first}

    def block(self, level, i):
        if (level, i) not in self.blocks:
            self.blocks[level, i] = self.block(level - 1, 2 * i) + self.block(level - 1, 2 * i + 1)
        return self.blocks[level, i]

    def before(self, c):
        """What stands before chunk c: the first state and chunks 0 to c - 1."""
        if c not in self.prefixes:
            level = (c & -c).bit_length() - 1
            self.prefixes[c] = self.before(c & c - 1) + self.block(level, (c >> level) - 1)
        return self.prefixes[c]


def _sums(parts, first, where, *, causal, backward=False):
    """(what each of this rank's pieces reads, what stands after all), from the pieces' own `parts` [pieces, ...] and
    what stands before all: everything before the piece where causal, else everything. Backward, the sequence is read
    from its other end.
    """
    ranks, rank, group, world = where
    chunks = max(held.stop for held in ranks)
    if backward:
        ranks = [range(chunks - held.stop, chunks - held.start) for held in reversed(ranks)]
        rank, parts = world - 1 - rank, parts.flip(0)
    shared = _shared(ranks)
    roots = [_roots(held, shared) for held in ranks]
    mine = dict(zip(ranks[rank], parts, strict=False))  # an empty rank's one part is of no chunk
    tree = _Tree(first, {(0, c): part for c, part in mine.items() if c not in shared})

    sent = [mine[i] if level < 0 else tree.block(level, i) for level, i in roots[rank]]
    longest = max(1, *map(len, roots))  # at least one, where nobody has a token
    padding = [torch.zeros_like(first)] * (longest - len(sent))
    everyone = _gather(torch.stack(sent + padding), group, world)
    ahead = {}
    for r, rows in enumerate(everyone.flip(0) if backward else everyone):
        for (level, i), row in zip(roots[r], rows, strict=False):
            if level < 0:  # pieces of a shared chunk come one after the other
                earlier = tree.blocks.get((0, i))
                if r == rank and earlier is not None:
                    ahead[i] = earlier
                tree.blocks[0, i] = row if earlier is None else earlier + row
            else:
                tree.blocks[level, i] = row

    last = tree.before(chunks)
    if not causal:
        return last.expand_as(parts), last.clone()
    before = [tree.before(c) + ahead[c] if c in ahead else tree.before(c) for c in mine]
    reads = torch.stack(before) if before else torch.zeros_like(parts)
    return reads.flip(0) if backward else reads, last.clone()


class _Exchange(torch.autograd.Function):
    """(what each piece reads, what stands after all) from (the pieces' states, what stands before all)."""

    @staticmethod
    def forward(ctx, parts, first, anchor, causal, return_state, where):
        ctx.options = causal, return_state, where
        return _sums(parts, first, where, causal=causal)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_read, d_last):
        causal, return_state, where = ctx.options
        if return_state:  # every rank holds the last state, and may use it
            d_last = _gather(d_last.contiguous(), *where[2:]).sum(0)
        d_parts, d_first = _sums(d_read, d_last, where, causal=causal, backward=True)
        return d_parts, d_first, None, None, None, None


class _Replicated(torch.autograd.Function):
    """One copy for each of this rank's pieces of a number that all ranks share; its gradient is the sum over all."""

    @staticmethod
    def forward(ctx, x, pieces, where):
        ctx.where = where
        return x.repeat(pieces, *[1] * x.ndim)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_copies):
        return _sums(d_copies, torch.zeros_like(d_copies[0]), ctx.where, causal=False)[1], None, None


# -- what goes over the wire --


def _place(group):
    """(number of ranks, this one's number in the group); (1, 0) where no process group was started."""
    if group is None and not (dist.is_available() and dist.is_initialized()):
        return 1, 0
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError(f"group must contain this process, rank {dist.get_rank()} of all; it does not")
    return dist.get_world_size(group), rank


def _gather(x, group, world):
    """[ranks, ...]: the x of every rank, all of one shape, in the order of ranks."""
    if world == 1:
        return x[None]
    mine = x.to("cuda" if "nccl" in dist.get_backend(group) else "cpu")
    rows = mine.new_empty(world, *x.shape)
    dist.all_gather(list(rows.unbind(0)), mine, group=group)
    return rows.to(x.device)


def _gather_objects(x, group, world):
    """The x of every rank, any that pickle takes: for the words of an error."""
    rows = [x] * world
    if world > 1:
        dist.all_gather_object(rows, x, group=group)
    return rows


def _agree(facts, q, written, problem, group, world):
    """(every rank's number of tokens, whether any rank wants a gradient of what it writes).

    Where a rank has a problem, or ranks differ in one of the facts, every rank raises the same error. Ranks compare
    hashes, 8 bytes a fact; words travel only on the way to an error.
    """
    tokens = 0 if problem else q.shape[1]
    row = [tokens, int(written), int(problem is not None), *(_hash(fact.encode()) for fact in facts.values())]
    table = _gather(torch.tensor(row), group, world).tolist()
    lengths, wanting, troubled, *columns = zip(*table, strict=True)
    if any(troubled):
        found = _gather_objects(problem and (type(problem), str(problem)), group, world)
        at, (kind, text) = next((r, error) for r, error in enumerate(found) if error)
        raise kind(f"rank {at}: {text}" if world > 1 else text) from problem
    for name, column in zip(AGREED, columns, strict=True):
        if len(set(column)) > 1:
            by_value: dict[str, list[str]] = {}
            for r, value in enumerate(_gather_objects(facts[name], group, world)):
                by_value.setdefault(value or "none", []).append(str(r))
            came = "; ".join(f"{value} on rank{'s' * (len(at) > 1)} {', '.join(at)}" for value, at in by_value.items())
            raise ValueError(f"{name} must be the same on every rank, got {came}")
    return lengths, any(wanting)


def _shape(x):
    B, _, H, width = x.shape
    return f"[{B}, T, {H}, {width}] of {str(x.dtype).removeprefix('torch.')}"


def _digest(x):
    """Words that are the same for the same numbers."""
    numbers = as_float(x)
    gradient = " that wants a gradient" if getattr(x, "requires_grad", False) else ""
    return f"{list(numbers.shape)} of digest {_hash(numbers.tobytes()) % 2**64:016x}{gradient}"


def _hash(data):
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)
