"""What the kernels of several mechanisms share: products on tensor cores, where they run, the words of a refusal."""

import torch
import triton
import triton.language as tl

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
REGISTERS = 255  # a thread may have them all: left to itself NVIDIA's assembler spills a few to make room for a block


# -- products --


@triton.jit
def _tf32(x):
    """x rounded to the ten mantissa bits of tf32, nearest."""
    return ((x.to(tl.uint32, bitcast=True) + 0x1000) & 0xFFFFE000).to(tl.float32, bitcast=True)


@triton.jit
def _high(x, EXACT: tl.constexpr, WORK: tl.constexpr):
    """The part of x that the tensor core takes exactly: all of it where x is EXACT."""
    if EXACT or WORK == tl.bfloat16:
        high = x.to(WORK)
    else:
        high = _tf32(x)
    return high


@triton.jit
def _dot(a, b, out, A: tl.constexpr, B: tl.constexpr, WORK: tl.constexpr):
    """out + a @ b in float32, on tensor cores. A, B say which operand the tensor core takes exactly; another one is
    split in two parts, and the product of the two small parts, 2^-16 (bfloat16) or 2^-22 (tf32) of the whole, is left
    out.
    """
    a_high = _high(a, A, WORK)
    b_high = _high(b, B, WORK)
    out = tl.dot(a_high, b_high, out, input_precision="tf32")
    if not A:
        out = tl.dot((a - a_high.to(tl.float32)).to(WORK), b_high, out, input_precision="tf32")
    if not B:
        out = tl.dot(a_high, (b - b_high.to(tl.float32)).to(WORK), out, input_precision="tf32")
    return out


# -- where they run, what they take --

# TRITON_INTERPRET was set when Triton was imported
INTERPRETED = not isinstance(_tf32, triton.runtime.JITFunction)


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def _described(x) -> str:
    """What came where a tensor of another shape was wanted."""
    if isinstance(x, torch.Tensor):
        return str(list(x.shape))
    return f"{type(x).__name__} {list(getattr(x, 'shape', ())) or ''}".rstrip()


def _expect(name: str, x, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...], q: torch.Tensor) -> None:
    if not isinstance(x, torch.Tensor) or tuple(x.shape) != shape:
        raise ValueError(f"{name} must be a tensor {list(shape)}, got {_described(x)}")
    if x.dtype not in dtypes:
        raise TypeError(f"{name} must be {' or '.join(str(dtype) for dtype in dtypes)}, got {x.dtype}")
    if x.device != q.device:
        raise ValueError(f"{name} must be where q is, on {q.device}, got {x.device}")
