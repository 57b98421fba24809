"""Small kernels with a known answer, a known traffic or a planted fault, for the tests of the interpreter."""

import triton
import triton.language as tl

# -- arithmetic -------------------------------------------------------------------------------------------------------


@triton.jit
def elementwise(x, y, out, N, NAME: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, i < N)
    b = tl.load(y + i, i < N)
    if NAME == "add":
        c = a + b
    elif NAME == "subtract":
        c = a - b
    elif NAME == "multiply":
        c = a * b
    elif NAME == "divide":
        c = a / b
    elif NAME == "negate":
        c = -a
    elif NAME == "absolute":
        c = tl.abs(a)
    elif NAME == "scale":
        c = 2.6 * a - 1.0
    elif NAME == "sum of products":
        c = tl.fma(a, b, a)
    elif NAME == "smaller":
        c = tl.minimum(a, b)
    elif NAME == "larger":
        c = tl.maximum(a, b)
    elif NAME == "clamp":
        c = tl.clamp(a, -1.5, 2.5)
    elif NAME == "select":
        c = tl.where(a < b, a, tl.where(a == b, 0.0, b))
    elif NAME == "not less":
        c = tl.where(~(a < b), a, b)
    elif NAME == "less":
        c = (a < b).to(a.dtype)
    elif NAME == "at least":
        c = (a >= b).to(a.dtype)
    elif NAME == "different":
        c = a != b
    elif NAME == "exp":
        c = tl.exp(a.to(tl.float32))
    elif NAME == "sigmoid":
        c = tl.sigmoid(a.to(tl.float32))
    elif NAME == "truncate":
        c = a.to(tl.bfloat16, fp_downcast_rounding="rtz")
    else:
        tl.static_assert(NAME == "copy")
        c = a
    tl.store(out + i, c, i < N)


@triton.jit
def plus(a, b):
    return a + b


@triton.jit
def reduced(x, out, NAME: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Sums, maxima and so on along the rows of x [ROWS, COLUMNS]."""
    i, j = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    tile = tl.load(x + i[:, None] * COLUMNS + j[None, :])
    if NAME == "sum":
        tl.store(out + i, tl.sum(tile, 1))
    elif NAME == "sum of all":
        tl.store(out, tl.sum(tl.sum(tile, 1), 0))
    elif NAME == "max":
        tl.store(out + i, tl.max(tile, 1))
    elif NAME == "argmin":
        tl.store(out + i, tl.argmin(tile, 1))
    elif NAME == "stepwise sum":
        tl.store(out + i, tl.reduce(tile, 1, plus))
    elif NAME == "cumsum":
        tl.store(out + i[:, None] * COLUMNS + j[None, :], tl.cumsum(tile, 1))
    else:
        tl.static_assert(NAME == "stepwise cumsum")
        tl.store(out + i[:, None] * COLUMNS + j[None, :], tl.associative_scan(tile, 1, plus))


@triton.jit
def product(a, b, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + m[:, None] * K + k[None, :])
    right = tl.load(b + k[:, None] * N + n[None, :])
    tl.store(out + m[:, None] * N + n[None, :], tl.dot(left, right, input_precision=PRECISION))


@triton.jit
def batched_product(a, b, out, B: tl.constexpr, M: tl.constexpr):
    i = tl.arange(0, B)[:, None, None] * M * M + tl.arange(0, M)[None, :, None] * M + tl.arange(0, M)[None, None, :]
    tl.store(out + i, tl.dot(tl.load(a + i), tl.load(b + i)))


@triton.jit
def many_reductions(x, out, TIMES: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.load(x + tl.program_id(0) * WIDTH + tl.arange(0, WIDTH))
    total = 0.0
    for _ in range(TIMES):
        total += tl.sum(plus(row, row), 0) + tl.max(row, 0)
    tl.store(out + tl.program_id(0), total)


@triton.jit
def overflowing(x, out, WIDTH: tl.constexpr):
    """What GPUs do without a word: exp over the range, infinity minus infinity, 0 / 0, a maximum of NaN alone."""
    i = tl.arange(0, WIDTH)
    big = tl.exp(tl.load(x + i))
    nothing = (big - big) / (big - big)
    tl.store(out + i, big + tl.where(tl.max(nothing, 0) > 0, 1.0, 2.0) + big.to(tl.float16).to(tl.float32))


# -- traffic ----------------------------------------------------------------------------------------------------------


@triton.jit
def copy(x, out, N, TIMES: tl.constexpr, BLOCK: tl.constexpr):
    """Reads x TIMES times."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, i < N)
    for _ in range(TIMES - 1):
        value = tl.load(x + i, i < N)
    tl.store(out + i, value, i < N)


@triton.jit
def copy_by_stride(x, out, x_stride, STEP: tl.constexpr, WIDTH: tl.constexpr):
    """Row by row of x, every STEP-th element."""
    i = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    tl.store(out + i, tl.load(x + tl.program_id(0) * x_stride + tl.arange(0, WIDTH) * STEP))


@triton.jit
def flash(q, k, v, out, N, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Softmax attention of one head [N, D] in one pass over the keys."""
    c = tl.arange(0, D)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    b_q = tl.load(q + rows[:, None] * D + c[None, :])
    top = tl.full([BM], float("-inf"), tl.float32)
    mass = tl.zeros([BM], tl.float32)
    b_out = tl.zeros([BM, D], tl.float32)
    for first in range(0, N, BN):
        s = first + tl.arange(0, BN)
        b_k = tl.load(k + s[None, :] * D + c[:, None])
        b_v = tl.load(v + s[:, None] * D + c[None, :])
        score = tl.dot(b_q, b_k)
        new_top = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp(score - new_top[:, None])
        decay = tl.exp(top - new_top)
        mass = mass * decay + tl.sum(weight, 1)
        b_out = b_out * decay[:, None] + tl.dot(weight, b_v)
        top = new_top
    tl.store(out + rows[:, None] * D + c[None, :], b_out / mass[:, None])


@triton.jit
def add_views(q, k, v, out, q_stride, WIDTH: tl.constexpr):
    """out[row] = q[row] + k[row] + v[row], rows of q, k and v q_stride apart."""
    row, c = tl.program_id(0), tl.arange(0, WIDTH)
    total = tl.load(q + row * q_stride + c) + tl.load(k + row * q_stride + c) + tl.load(v + row * q_stride + c)
    tl.store(out + row * WIDTH + c, total)


@triton.jit
def transposed_by_descriptor(x, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Tile by tile; `x` is a descriptor made on the host, that of `out` is made here."""
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    target = tl.make_tensor_descriptor(out, [N, M], [M, 1], [BN, BM])
    target.store([j, i], tl.trans(x.load([i, j])))


@triton.jit
def scalar_by_scalar(counts, x, out, first):
    """out[p] = x[first + counts[p]], each address a scalar."""
    p = tl.program_id(0)
    tl.store(out + p, tl.load(x + first + tl.load(counts + p)))


@triton.jit
def sum_of_tuple(pair, out, WIDTH: tl.constexpr):
    i = tl.arange(0, WIDTH)
    tl.store(out + i, tl.load(pair[0] + i) + tl.load(pair[1] + i))


@triton.jit
def copy_one_of_two(x, y, out, first, WIDTH: tl.constexpr):
    """The first elements from x, the others from y but for the last one, by a choice between pointers."""
    i = tl.arange(0, WIDTH)
    tl.store(out + i, tl.load(tl.where(i < first, x + i, y + i), i < WIDTH - 1, 0.0))


@triton.jit
def copy_by_address(address, x, out, WIDTH: tl.constexpr):
    i = tl.arange(0, WIDTH)
    tl.store(out + i, tl.load(address.to(tl.pointer_type(tl.float32)) + i))


@triton.jit
def read_in_pieces(x, WIDTH: tl.constexpr):
    """The first two words of x, then its first byte, then all words."""
    tl.load(x + tl.arange(0, 2))
    tl.load(x.to(tl.pointer_type(tl.uint8)))
    tl.load(x + tl.arange(0, WIDTH))


# -- faults -----------------------------------------------------------------------------------------------------------


@triton.jit
def copy_with_tail(x, out, N, TIMES: tl.constexpr, BLOCK: tl.constexpr):
    """The loads forget their mask."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    for _ in range(TIMES):
        tl.store(out + i, tl.load(x + i), i < N)


@triton.jit
def load_at(x, out, offset, WIDTH: tl.constexpr):
    i = tl.arange(0, WIDTH)
    tl.store(out + i, tl.load(x + offset + i))


@triton.jit
def load_at_or_seven(x, out, offset, WIDTH: tl.constexpr):
    i = tl.arange(0, WIDTH)
    tl.store(out + i, tl.load(x + offset + i, i >= 0, 7.0))


@triton.jit
def store_ones_at(out, offset, WIDTH: tl.constexpr):
    tl.store(out + offset + tl.arange(0, WIDTH), 1.0)


@triton.jit
def count_at(out, offset, WIDTH: tl.constexpr):
    tl.atomic_add(out + offset + tl.arange(0, WIDTH), 1)


@triton.jit
def swap_at(out, found, offset, WIDTH: tl.constexpr):
    i = tl.arange(0, WIDTH)
    old = tl.atomic_cas(out + offset + i, tl.zeros([WIDTH], tl.int32), tl.full([WIDTH], 1, tl.int32))
    tl.store(found + i, old)


@triton.jit
def accumulate(x, out, ATOMIC: tl.constexpr, WIDTH: tl.constexpr):
    """out[0] += sum of the program's row, with or without an atomic."""
    total = tl.sum(tl.load(x + tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)), 0)
    if ATOMIC:
        tl.atomic_add(out, total)
    else:
        tl.store(out, tl.load(out) + total)


@triton.jit
def read_neighbour(x, out, STEP: tl.constexpr):
    """x[p] += 1 in place; out[p] = x[p + STEP], which another program writes."""
    p = tl.program_id(0)
    neighbour = tl.load(x + p + STEP, (p + STEP >= 0) & (p + STEP < tl.num_programs(0)), 0.0)
    tl.store(out + p, neighbour)
    tl.store(x + p, tl.load(x + p) + 1)


@triton.jit
def count_beside(out, seen, COUNTING: tl.constexpr, NAME: tl.constexpr):
    """Program COUNTING counts with an atomic, the other one reads or writes the counter without one."""
    if tl.program_id(0) == COUNTING:
        tl.atomic_add(out, 1)
    elif NAME == "load":
        tl.store(seen, tl.load(out))
    else:
        tl.store(out, 7)


@triton.jit
def fails(x):
    tl.store(x + tl.program_id(0), 1.0)
    tl.static_assert(False)
