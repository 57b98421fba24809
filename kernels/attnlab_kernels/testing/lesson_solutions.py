"""One solution of each exercise of notebooks/07_read_the_kernel. Reading it before trying costs you the exercise."""

import triton
import triton.language as tl

__all__ = ["SOLUTIONS"]


@triton.jit
def sum_chunks(v, content, T, V: tl.constexpr, CHUNK: tl.constexpr, BT: tl.constexpr, BV: tl.constexpr):
    """The store has the mask that the load had: a row of content has V numbers and not BV."""
    i_c = tl.program_id(0)
    o_v = tl.arange(0, BV)
    b_sum = tl.zeros([BV], tl.float32)
    for t in range(i_c * CHUNK, (i_c + 1) * CHUNK, BT):
        o_t = t + tl.arange(0, BT)
        here = (o_t < T)[:, None] & (o_v < V)[None, :]
        b_v = tl.load(v + o_t[:, None] * V + o_v[None, :], mask=here, other=0.0)
        b_sum += tl.sum(b_v, 0)
    tl.store(content + i_c * V + o_v, b_sum, mask=o_v < V)


@triton.jit
def add_up(v, content, T, V: tl.constexpr, BT: tl.constexpr, PROGRAMS: tl.constexpr):
    """A program owns columns in place of tokens: each sum has one owner, which adds in the order of the tokens."""
    i = tl.program_id(0)
    o_v = i * (V // PROGRAMS) + tl.arange(0, V // PROGRAMS)
    b_sum = tl.zeros([V // PROGRAMS], tl.float32)
    for t in range(0, T, BT):
        o_t = t + tl.arange(0, BT)
        b_v = tl.load(v + o_t[:, None] * V + o_v[None, :], mask=(o_t < T)[:, None], other=0.0)
        b_sum += tl.sum(b_v, 0)
    tl.store(content + o_v, b_sum)


@triton.jit
def write_buckets(phi, v, content, T, R: tl.constexpr, V: tl.constexpr, CHUNK: tl.constexpr, BT: tl.constexpr):
    """All buckets at once, as a matrix product: a tile of phi and of v is loaded one time."""
    i_c = tl.program_id(0)
    o_r, o_v = tl.arange(0, R), tl.arange(0, V)
    b_content = tl.zeros([R, V], tl.float32)
    for t in range(i_c * CHUNK, (i_c + 1) * CHUNK, BT):
        o_t = t + tl.arange(0, BT)
        live = (o_t < T)[:, None]
        b_phi = tl.load(phi + o_t[:, None] * R + o_r[None, :], mask=live, other=0.0)
        b_v = tl.load(v + o_t[:, None] * V + o_v[None, :], mask=live, other=0.0)
        b_content = tl.dot(tl.trans(b_phi), b_v, b_content)
    tl.store(content + (i_c * R + o_r[:, None]) * V + o_v[None, :], b_content)


SOLUTIONS = {"bounds": sum_chunks, "order": add_up, "traffic": write_buckets}
