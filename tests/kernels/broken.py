"""Kernels for the tests of the compile table: some that are sound, and those that are broken on purpose."""

import os
import signal

import torch
import triton
import triton.language as tl

from attnlab_kernels.launch import launch
from attnlab_kernels.testing import aot

# ---------------------------------------------------------------- sound, if started with sound options


@triton.jit
def scaled(X, Y, factor, N, BLOCK: tl.constexpr):
    """Y = factor * X for rows of N numbers."""
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(1) * N
    x = tl.load(X + row + n, mask=n < N, other=0.0)
    tl.store(Y + row + n, (factor * x).to(Y.dtype.element_ty), mask=n < N)


@triton.jit
def chatty(X, Y, factor, N, BLOCK: tl.constexpr):
    """As `scaled`, but something prints while it is compiled."""
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(1) * N
    x = tl.load(X + row + n, mask=n < N, other=0.0)
    tl.store(Y + row + n, (factor * x).to(Y.dtype.element_ty), mask=n < N)


chatty.add_pre_run_hook(lambda *_, **__: os.write(1, b"compiling\n"))


@triton.jit
def dot(X, Y, Z, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr):
    """Z [M, N] = X [M, K] Y [K, N], one block."""
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(X + m[:, None] * K + k[None, :])
    y = tl.load(Y + k[:, None] * N + n[None, :])
    tl.store(Z + m[:, None] * N + n[None, :], tl.dot(x, y, input_precision=PRECISION))


@triton.jit
def softmax(X, Y, N: tl.constexpr, D: tl.constexpr):
    """The softmax of each row of a block [N, D], which lies in registers."""
    at = tl.arange(0, N)[:, None] * D + tl.arange(0, D)[None, :]
    x = tl.load(X + at)
    x = tl.exp(x - tl.max(x, 1)[:, None])
    tl.store(Y + at, x / tl.sum(x, 1)[:, None])


# ---------------------------------------------------------------- broken


@triton.jit
def unequal_shapes(X, Y, N: tl.constexpr):
    x = tl.load(X + tl.arange(0, N))
    tl.store(Y + tl.arange(0, N), x + tl.load(X + tl.arange(0, 2 * N)))


@triton.jit
def breaks_out(X, Y, N):
    for i in range(N):
        if i > 2:
            break
        tl.store(Y + i, tl.load(X + i))


@triton.jit
def no_such_instruction(X, Y, N: tl.constexpr):
    x = tl.load(X + tl.arange(0, N))
    y = tl.inline_asm_elementwise("nosuchop.b32 $0, $1;", "=r,r", [x], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(Y + tl.arange(0, N), y)


@triton.jit
def deep_pipeline(X, Y, Z, L, M: tl.constexpr, K: tl.constexpr):
    """Sound with few stages; with five of 64 KB it needs more shared memory than there is."""
    m, k = tl.arange(0, M), tl.arange(0, K)
    z = tl.zeros((M, M), tl.float32)
    for s in range(0, L, K):
        x = tl.load(X + m[:, None] * L + s + k[None, :])
        y = tl.load(Y + (s + k)[:, None] * M + m[None, :])
        z = tl.dot(x, y, z)
    tl.store(Z + m[:, None] * M + m[None, :], z)


@triton.jit
def kills_the_compiler(X):
    """From outside it looks like a compiler that runs out of memory."""
    tl.store(X, 0.0)


kills_the_compiler.add_pre_run_hook(lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))


# ---------------------------------------------------------------- operations on tensors without data


def tensor(size, dtype=torch.float32, offset=0):
    return torch.empty(size + offset, dtype=dtype, device="meta")[offset:]


def scale(N, dtype=torch.float32, offset=0, kernel=scaled):
    return lambda: launch(kernel, (4, 8), tensor(8 * N, dtype, offset), tensor(8 * N, dtype), 0.5, N, BLOCK=1024)


def multiply(M, N, K, dtype=torch.float32, precision="tf32"):
    x, y, z = tensor(M * K, dtype), tensor(K * N, dtype), tensor(M * N)
    return lambda: launch(dot, (1,), x, y, z, M=M, N=N, K=K, PRECISION=precision)


def normalise(**options):
    return lambda: launch(softmax, (1,), tensor(4096), tensor(4096), N=32, D=128, num_warps=1, **options)


def pipeline(stages):
    x, y = tensor(128 * 1024, torch.bfloat16), tensor(128 * 1024, torch.bfloat16)
    options = {"M": 128, "K": 128, "num_warps": 8, "num_stages": stages}
    return lambda: launch(deep_pipeline, (1,), x, y, tensor(128 * 128), 1024, **options)


def start(kernel, *args, **constexprs):
    return lambda: launch(kernel, (1,), *args, **constexprs)


OPERATIONS = {
    "killed": start(kills_the_compiler, tensor(1)),  # first, so that the others need a new worker
    "even": scale(4096),
    "odd": scale(4097),
    "half": scale(4097, torch.float16),
    "prints": scale(4096, kernel=chatty),
    "bf16": multiply(64, 64, 64, torch.bfloat16),
    "tf32": multiply(64, 64, 64),
    "ieee": multiply(32, 32, 32, precision="ieee"),
    "large-ieee": multiply(64, 64, 64, precision="ieee"),
    "free": normalise(),
    "capped": normalise(maxnreg=40),
    "two-stages": pipeline(2),
    "five-stages": pipeline(5),
    "shapes": start(unequal_shapes, tensor(32), tensor(16), N=16),
    "break": start(breaks_out, tensor(8), tensor(8), 8),
    "assembly": start(no_such_instruction, tensor(128, torch.int32), tensor(128, torch.int32), N=128),
}


def cases():
    """A case of each operation; the float32 dot in ieee precision is said to be meant for tensor cores."""
    return [
        case
        for name, run in OPERATIONS.items()
        for case in aot.cases(name, run, tensor_cores={"dot"} if name == "ieee" else ())
    ]
