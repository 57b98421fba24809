"""The interpreter that rounds as a GPU does, and the tracer: each test plants a fault or a known number and sees it
found.
"""

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

for package in ("torch", "triton"):
    pytest.importorskip(package, reason=f"the package {package} is not installed; get it with: pip install {package}")

import torch  # noqa: E402
import triton  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

from attnlab_kernels.testing import interpreter  # noqa: E402
from tests.kernels import planted  # noqa: E402

pytestmark = pytest.mark.interpreted

ROOT = Path(__file__).parents[2]
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture(autouse=True)
def shim():
    interpreter.install()


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = FP32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def eighths(*shape: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Small multiples of 1/8: their products and sums are exact in float32, in any order."""
    drawn = torch.randint(-99, 100, shape, generator=torch.Generator().manual_seed(seed))
    return (drawn / 8).to(dtype)


def any_bits(n: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers of all sizes and kinds, subnormal, infinite and (quiet) NaN too, with bits drawn evenly."""
    drawn = torch.randint(
        -(2**63), 2**63 - 1, (n * dtype.itemsize // 8,), generator=torch.Generator().manual_seed(seed)
    )
    values = drawn.view(dtype)
    return torch.where(torch.isnan(values), torch.nan, values)


def assert_same_bits(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Equal to the last bit and the sign of zero; a NaN equals any NaN."""
    assert got.dtype == wanted.dtype
    assert torch.equal(torch.isnan(got), torch.isnan(wanted))
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[got.dtype.itemsize]
    assert torch.equal(torch.nan_to_num(got).view(integers), torch.nan_to_num(wanted).view(integers))


def process(code: str, **environment: str) -> str:
    """What `code` prints in a new interpreter whose environment has these variables and no other TRITON_INTERPRET."""
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    path = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=kept | path | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- which process ----------------------------------------------------------------------------------------------------


def test_a_process_that_does_not_interpret_imports_the_module_and_is_told():
    told = process("""
from attnlab_kernels.testing import interpreter
print(interpreter.interpreting())
for start in interpreter.install, interpreter.traced().__enter__:
    try:
        start()
    except RuntimeError as error:
        print(error)
""")
    sentence = (
        "this process does not interpret kernels: TRITON_INTERPRET=1 has to be in the environment before triton is "
        "imported."
    )
    assert told.splitlines() == ["False", sentence, sentence]
    assert interpreter.interpreting()


def test_importing_the_module_changes_nothing_and_the_bare_interpreter_is_wrong():
    """What the shim is for: without it the tests below fail."""
    told = process(
        """
import warnings, torch, triton
from attnlab_kernels.testing import interpreter
from tests.kernels import planted
warnings.simplefilter("ignore")
def bf16(*x): return torch.tensor(x, dtype=torch.bfloat16)
out = bf16(0, 0)
planted.elementwise[(1,)](bf16(1.0, 2.0), bf16(1.0, 3.0), out, 2, "add", 2)
print(out.tolist() == [2.0, 5.0])
x, out = torch.tensor([1 + 3 * 2**-9]), torch.zeros(1, dtype=torch.bfloat16)
planted.elementwise[(1,)](x, x, out, 1, "copy", 1)
print(out.item() == x.bfloat16().item())
a = torch.eye(16) * (1 + 2.0**-12)
out = torch.empty(16, 16)
planted.product[(1,)](a, torch.eye(16), out, 16, 16, 16, "tf32")
print(torch.equal(out, torch.eye(16)))
interpreter.install()
planted.product[(1,)](a, torch.eye(16), out, 16, 16, 16, "tf32")
print(torch.equal(out, torch.eye(16)))
""",
        TRITON_INTERPRET="1",
    )
    assert told.split() == ["False", "False", "False", "True"]


# -- rounding ---------------------------------------------------------------------------------------------------------


def test_bf16_rounds_to_nearest_even_as_torch_does():
    halves = (torch.arange(2**16, dtype=torch.int32) << 16)[:, None] + torch.tensor([0, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    values = torch.cat([halves.to(torch.int32).view(-1), any_bits(2**16, 1, FP32).view(torch.int32)]).view(FP32)
    got = torch.from_numpy(interpreter.round_to_bf16(values.numpy())).view(BF16)
    assert_same_bits(got, values.to(BF16))


def test_every_bf16_number_survives_widening_and_rounding():
    bits = np.arange(2**16, dtype=np.uint16)
    wide = interpreter.widen_bf16(bits)
    number = ~np.isnan(wide)
    assert_same_bits(torch.from_numpy(wide), torch.from_numpy(bits).view(BF16).float())
    assert np.array_equal(interpreter.round_to_bf16(wide)[number], bits[number])
    assert np.all(interpreter.round_to_bf16(wide)[~number] == 0x7FC0)


def test_bf16_rounds_toward_zero_where_asked():
    values = any_bits(4096, 2, FP32)
    out = torch.empty(4096, dtype=BF16)
    planted.elementwise[(1,)](values, values, out, 4096, "truncate", 4096)
    wanted = torch.where(torch.isnan(values), torch.nan, (values.view(torch.int32) & -65536).view(FP32))
    assert_same_bits(out, wanted.to(BF16))


def test_tf32_keeps_ten_mantissa_bits_and_rounds_ties_away():
    values = any_bits(2**16, 3, FP32).numpy()
    values = np.concatenate(
        [values, np.float32(1) + np.arange(64, dtype=np.float32) * np.float32(2**-13), [-1 - 2**-11]]
    )
    values = values[np.abs(values) >= np.finfo(np.float32).tiny].astype(np.float32)
    mantissa, exponent = np.frexp(values.astype(np.float64))
    wanted = np.copysign(np.floor(np.abs(mantissa) * 2**11 + 0.5), mantissa) * 2.0 ** (exponent - 11.0)
    finite = np.isfinite(values) & (np.abs(wanted) < 2.0**128)
    assert np.array_equal(interpreter.round_to_tf32(values)[finite], wanted[finite])
    assert interpreter.round_to_tf32(np.float32([1 + 2**-11, -1 - 2**-11])).tolist() == [1 + 2**-10, -1 - 2**-10]
    assert np.array_equal(interpreter.round_to_tf32(np.float32([np.inf, -np.inf])), [np.inf, -np.inf])
    assert np.isnan(interpreter.round_to_tf32(np.float32([np.nan]))).all()


# -- bfloat16 arithmetic ----------------------------------------------------------------------------------------------

TORCH = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "negate": lambda a, b: 0 - a,  # Triton's own definition: -0 gives +0
    "absolute": lambda a, b: a.abs(),
    "scale": lambda a, b: a * torch.tensor(2.6, dtype=BF16) - 1.0,
    "sum of products": lambda a, b: (a.float() * b.float() + a.float()).to(BF16),
    "smaller": torch.fmin,
    "larger": torch.fmax,
    "clamp": lambda a, b: torch.fmin(torch.fmax(a, torch.tensor(-1.5, dtype=BF16)), torch.tensor(2.5, dtype=BF16)),
    "select": lambda a, b: torch.where(a < b, a, torch.where(a == b, 0.0, b)),
    "not less": lambda a, b: torch.where(~(a < b), a, b),
    "less": lambda a, b: (a < b).to(BF16),
    "at least": lambda a, b: (a >= b).to(BF16),
    "different": lambda a, b: (a != b).to(BF16),
    "copy": lambda a, b: a,
}


@pytest.mark.parametrize("name", TORCH)
def test_bf16_arithmetic_equals_torch_bit_for_bit(name):
    a, b = (torch.cat([numbers(2000, seed=seed, dtype=BF16), any_bits(6000, seed, BF16)]) for seed in (0, 1))
    b[::7] = a[::7]
    out = torch.empty_like(a)
    planted.elementwise[(2,)](a, b, out, len(a), name, 4096)
    assert_same_bits(out, TORCH[name](a, b))


@pytest.mark.parametrize("name", ["exp", "sigmoid"])
def test_bf16_functions_equal_torch_bit_for_bit(name):
    """But for the few results so near the middle of two numbers that the last bit of a float32 exp decides."""
    a = torch.linspace(-12, 12, 2048).to(BF16)
    exact = getattr(torch, name)(a.double())
    plain = (exact * (1 - 2**-21)).to(BF16) == (exact * (1 + 2**-21)).to(BF16)
    out = torch.empty_like(a)
    planted.elementwise[(1,)](a, a, out, len(a), name, 2048)
    assert_same_bits(out[plain], getattr(torch, name)(a)[plain])
    assert plain.double().mean() > 0.99


@pytest.mark.parametrize("source", [BF16, FP16, FP32, torch.float64, torch.int32, torch.int64])
def test_casts_to_and_from_bf16_equal_torch_bit_for_bit(source):
    if source.is_floating_point:
        x = torch.cat([numbers(2048, dtype=source), any_bits(2048, 5, source)])
        x = x[torch.isfinite(x)]
    else:
        x = torch.randint(-(2**30), 2**30, (4096,), generator=torch.Generator().manual_seed(0)).to(source)
    targets = [BF16, FP16, FP32, torch.float64] + [torch.int32, torch.int64] * (source == BF16)
    for target in targets:
        y = x[x.abs() < 2**30] if target in (torch.int32, torch.int64) else x  # beyond, each machine has its own answer
        out = torch.empty(len(y), dtype=target)
        planted.elementwise[(1,)](y, y, out, len(y), "copy", 4096)
        assert_same_bits(out, y.to(target))


def test_bf16_sums_and_extremes_equal_torch_bit_for_bit():
    x = eighths(16, 64, seed=3, dtype=BF16)
    for name, wanted in {
        "sum": x.sum(1),
        "sum of all": x.sum(1).sum()[None],
        "max": x.amax(1),
        "argmin": x.float().argmin(1).int(),
        "cumsum": x.float().cumsum(1).to(BF16),
    }.items():
        out = torch.empty_like(wanted)
        planted.reduced[(1,)](x, out, name, 16, 64)
        assert_same_bits(out, wanted)


def test_a_combine_function_rounds_to_bf16_after_each_step():
    x = numbers(4, 16, dtype=BF16)
    running = [x[:, 0]]
    for column in x.T[1:]:
        running.append(running[-1] + column)
    sums, scan = torch.empty(4, dtype=BF16), torch.empty_like(x)
    planted.reduced[(1,)](x, sums, "stepwise sum", 4, 16)
    planted.reduced[(1,)](x, scan, "stepwise cumsum", 4, 16)
    assert_same_bits(sums, running[-1])
    assert_same_bits(scan, torch.stack(running, 1))
    assert not torch.equal(sums, x.sum(1)), "the inputs are to tell one rounding from many"


@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_minimum_and_maximum_drop_nan_as_a_gpu_does(dtype):
    a, b = torch.tensor([[1.0, torch.nan, torch.nan, 3.0], [torch.nan, 2.0, torch.nan, 4.0]], dtype=dtype)
    for name, wanted in {"smaller": torch.fmin(a, b), "larger": torch.fmax(a, b)}.items():
        out = torch.empty_like(a)
        planted.elementwise[(1,)](a, b, out, 4, name, 4)
        assert_same_bits(out, wanted)
    planted.elementwise[(1,)](a, b, out, 4, "clamp", 4)
    assert out.tolist() == [1.0, -1.5, -1.5, 2.5]


# -- dots -------------------------------------------------------------------------------------------------------------


def dot(a: torch.Tensor, b: torch.Tensor, precision: str = "tf32", dtype: torch.dtype = FP32) -> torch.Tensor:
    out = torch.full((a.shape[0], b.shape[1]), torch.nan, dtype=dtype)
    planted.product[(1,)](a, b, out, a.shape[0], b.shape[1], a.shape[1], precision)
    return out


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_dots_of_halves_have_exact_products_and_float32_sums(dtype):
    a, b = eighths(32, 64, seed=0, dtype=dtype), eighths(64, 16, seed=1, dtype=dtype)
    assert_same_bits(dot(a, b), a.float() @ b.float())
    assert_same_bits(dot(a, b, dtype=dtype), a @ b)
    a, b = numbers(32, 64, seed=2, dtype=dtype), numbers(64, 16, seed=3, dtype=dtype)
    exact = a.double() @ b.double()
    assert (dot(a, b) - exact).abs().max() <= 64 * 2**-24 * (a.double().abs() @ b.double().abs()).max()


def test_tf32_rounding_is_seen_in_a_float32_dot_and_can_be_switched_off():
    a, b = numbers(32, 64, seed=4), numbers(64, 32, seed=5)
    exact = a.double() @ b.double()

    def error(precision):
        return float((dot(a, b, precision) - exact).norm() / exact.norm())

    assert 1e-4 < error("tf32") < 1e-3
    assert error("ieee") < 1e-6
    interpreter.install(tf32=False)
    assert error("tf32") < 1e-6
    interpreter.install()
    rounded = [torch.from_numpy(interpreter.round_to_tf32(x.numpy())).double() for x in (a, b)]
    assert float((dot(a, b) - rounded[0] @ rounded[1]).norm() / exact.norm()) < 1e-6


# -- launches ---------------------------------------------------------------------------------------------------------


def test_what_gpus_do_in_silence_raises_no_warning_within_a_launch_and_does_outside():
    x = torch.full((8,), 200.0)
    out = torch.zeros(8)
    errors, filters = np.geterr(), list(warnings.filters)
    planted.overflowing[(1,)](x, out, 8)
    assert torch.isinf(out).all()
    assert (np.geterr(), list(warnings.filters)) == (errors, filters)
    with pytest.warns(RuntimeWarning, match="overflow"):
        np.exp(np.float32([200.0]))


def test_device_functions_are_right_and_the_language_is_patched_once_however_often_they_are_called(monkeypatch):
    patched = []
    stock = interpreter.upstream._patch_builtin
    monkeypatch.setattr(interpreter.upstream, "_patch_builtin", lambda *a: (patched.append(1), stock(*a)))
    before, counts = triton.language.load, []
    for times in (1, 8):
        x, out = eighths(2, 16, seed=6, dtype=FP32), torch.zeros(2)
        planted.many_reductions[(2,)](x, out, times, 16)
        assert torch.equal(out, times * (2 * x.sum(1) + x.amax(1)))
        counts.append(len(patched))
        patched.clear()
    assert counts[0] == counts[1] > 0
    assert triton.language.load is before


# -- traffic ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1024, 1000])
@pytest.mark.parametrize("dtype", [FP32, FP16, torch.float64, torch.int64, torch.int8, torch.bool])
def test_a_copy_asks_for_each_byte_once(n, dtype):
    x = torch.ones(n, dtype=dtype)
    out = torch.zeros_like(x)
    with interpreter.traced() as record:
        planted.copy[(4,)](x, out, n, 1, 256)
    assert torch.equal(out, x)
    assert record.ratio(x, out) == 1.0
    record.check()
    (launch,) = record.launches
    assert (launch.kernel, launch.grid, list(launch.tensors)) == ("copy", (4, 1, 1), ["x", "out"])
    assert launch.requested_bytes() == launch.unique_bytes() == 2 * n * dtype.itemsize
    loads, stores = launch.tensors.values()
    assert (loads.load_bytes, loads.store_bytes) == (n * dtype.itemsize, 0)
    assert (stores.load_bytes, stores.store_bytes) == (0, n * dtype.itemsize)
    assert (loads.dtype, loads.shape, loads.itemsize) == (str(dtype).removeprefix("torch."), (n,), dtype.itemsize)
    assert loads.masked_share == (1024 - n) / 1024


def test_reading_twice_is_half_as_much_again():
    x, out = torch.ones(512), torch.zeros(512)
    with interpreter.traced() as record:
        planted.copy[(2,)](x, out, 512, 2, 256)
    assert record.ratio(x, out) == 1.5
    assert record.launches[0].tensors["x"].unique_load_bytes == 512 * 4


def test_the_ratio_counts_all_launches_and_an_expanded_tensor_once():
    x, out = torch.ones(512), torch.zeros(512)
    with interpreter.traced() as record:
        for _ in range(3):
            planted.copy[(2,)](x, out, 512, 1, 256)
    assert len(record.launches) == 3
    assert record.requested_bytes() == 3 * 2 * 2048
    assert record.ratio(x, out) == 3.0
    assert record.ratio(x, out, out) == 2.0
    assert record.ratio(x[:1].expand(512), out[:511]) == 6.0
    with pytest.raises(ValueError, match="compulsory: wanted tensors that hold at least one byte, got 1 without"):
        record.ratio(torch.ones(0, 3))


@pytest.mark.parametrize("tile", [16, 64])
def test_flash_attention_loads_the_keys_once_a_tile_of_queries(tile):
    N, D = 128, 32
    q, k, v = numbers(3, N, D).unbind()
    q, k, v, out = q.clone(), k.clone(), v.clone(), torch.empty(N, D)
    with interpreter.traced() as record:
        planted.flash[(N // tile,)](q, k, v, out, N, D, tile, 32)
    tensors = record.launches[0].tensors
    assert tensors["k"].load_bytes + tensors["v"].load_bytes == 2 * (N // tile) * N * D * 4
    assert tensors["k"].unique_load_bytes == tensors["v"].unique_load_bytes == N * D * 4
    assert tensors["q"].load_bytes == tensors["out"].store_bytes == N * D * 4
    assert {tensor.sector_efficiency for tensor in tensors.values()} == {1.0}
    assert record.launches[0].dot_flops == 2 * 2 * N * N * D


def test_tracing_changes_no_result():
    N, D = 64, 16
    q, k, v = (numbers(N, D, seed=seed, dtype=BF16) for seed in range(3))
    bare, traced = torch.empty(2, N, D)
    planted.flash[(4,)](q.float(), k.float(), v.float(), bare, N, D, 16, 16)
    with interpreter.traced(keep_accesses=True):
        planted.flash[(4,)](q.float(), k.float(), v.float(), traced, N, D, 16, 16)
    assert_same_bits(traced, bare)


def test_dot_flops_are_twice_the_product_of_the_sides():
    a, b, c = numbers(32, 64), numbers(64, 16), numbers(2, 16, 16)
    with interpreter.traced() as record:
        dot(a, b)
        planted.batched_product[(3,)](c, c, torch.empty(2, 16, 16), 2, 16)
    assert [launch.dot_flops for launch in record.launches] == [2 * 32 * 64 * 16, 3 * 2 * 2 * 16**3]


@pytest.mark.parametrize(("step", "efficiency"), [(1, 1.0), (2, 0.5), (8, 0.125), (16, 0.125), (0, 8.0)])
def test_strided_loads_waste_sectors(step, efficiency):
    x, out = numbers(2, 64 * 16), torch.empty(2, 64)
    with interpreter.traced() as record:
        planted.copy_by_stride[(2,)](x, out, x.stride(0), step, 64)
    tensors = record.launches[0].tensors
    assert tensors["x"].sector_efficiency == efficiency
    assert tensors["x"].unique_load_bytes == 2 * 4 * (64 if step else 1)
    assert tensors["out"].sector_efficiency == 1.0
    assert torch.equal(out, x[:, : 64 * step : step] if step else x[:, :1].expand(2, 64))


def test_requests_that_are_masked_off_are_lanes_and_no_bytes():
    x, out = torch.ones(64), torch.zeros(64)
    with interpreter.traced() as record:
        planted.copy[(4,)](x, out, 16, 1, 16)  # three of the four programs have nothing to do
    loads = record.launches[0].tensors["x"]
    assert (loads.load_bytes, loads.lanes, loads.masked_lanes, loads.requests) == (64, 64, 48, 4)
    record.check()


def test_an_untouched_tensor_has_no_shares():
    trace = interpreter.TensorTrace("x", "float32", (4,), 4)
    assert np.isnan([trace.sector_efficiency, trace.masked_share]).all()
    assert trace.as_dict()["masked_share"] is None


# -- which argument ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", ["interleaved", "stacked", "offset"])
def test_views_of_one_storage_are_told_apart(packing):
    rows, width = 8, 16
    if packing == "interleaved":
        q, k, v = numbers(rows, 3, width).unbind(1)
    elif packing == "stacked":
        q, k, v = numbers(3, rows, width).unbind(0)
    else:
        q, k, v = (numbers(4, rows, width)[i, :, :] for i in (1, 2, 3))
    out = torch.empty(rows, width)
    with interpreter.traced(keep_accesses=True) as record:
        planted.add_views[(rows,)](q, k, v, out, q.stride(0), width)
    assert torch.equal(out, q + k + v)
    (launch,) = record.launches
    for name in "qkv":
        assert launch.tensors[name].load_bytes == launch.tensors[name].unique_load_bytes == rows * width * 4
        mine = [access for access in launch.accesses if access.tensor == name]
        assert [access.offsets[0] for access in mine] == [row * q.stride(0) for row in range(rows)]
    record.check()


def test_a_transposed_view_is_counted_by_its_elements():
    x = numbers(64, 128)
    out = torch.empty(64, 64)
    with interpreter.traced() as record:
        planted.copy_by_stride[(64,)](x.T, out, x.T.stride(0), x.T.stride(1), 64)
    assert torch.equal(out, x.T[:64])
    assert record.launches[0].tensors["x"].unique_load_bytes == 64 * 64 * 4
    assert record.launches[0].tensors["x"].sector_efficiency == 0.125


def test_a_tensor_passed_twice_is_counted_under_the_name_that_the_kernel_used():
    x = torch.ones(256)
    with interpreter.traced() as record:
        planted.copy[(1,)](x, x, 256, 1, 256)
    tensors = record.launches[0].tensors
    assert (tensors["x"].load_bytes, tensors["x"].store_bytes) == (1024, 0)
    assert (tensors["out"].load_bytes, tensors["out"].store_bytes) == (0, 1024)
    assert record.ratio(x, x) == 1.0


@pytest.mark.parametrize("first", [0, 16, 6])
def test_pointers_chosen_between_two_arguments_are_found_by_their_addresses(first):
    x, y, out = numbers(16, seed=1), numbers(16, seed=2), torch.empty(16)
    with interpreter.traced() as record:
        planted.copy_one_of_two[(1,)](x, y, out, first, 16)
    assert torch.equal(out, torch.cat([x[:first], y[first:]]) * (torch.arange(16) < 15))
    from_x, from_y, _ = record.launches[0].tensors.values()
    assert from_x.load_bytes == 4 * min(first, 15)
    assert from_y.load_bytes == 4 * max(15 - first, 0)
    assert from_x.lanes + from_y.lanes == 16
    assert from_x.masked_lanes + from_y.masked_lanes == 1
    record.check()


def test_a_pointer_made_from_an_integer_goes_to_the_nearest_argument_of_its_storage():
    storage = torch.arange(64.0)
    x, out = storage[:16], storage[48:]
    with interpreter.traced() as record:
        planted.copy_by_address[(2,)](storage[30:].data_ptr(), x, out, 16)
    assert out.tolist() == [*range(30, 46)]
    assert [tensor.load_bytes for tensor in record.launches[0].tensors.values()] == [128, 0]
    with interpreter.traced() as record:
        planted.copy_by_address[(2,)](storage[32:].data_ptr(), x, out, 16)
    assert [tensor.load_bytes for tensor in record.launches[0].tensors.values()] == [0, 128]


def test_a_pointer_made_from_an_integer_is_found_by_its_address_and_kept_within_the_arguments():
    memory = np.arange(64, dtype=np.float32)
    x, out = torch.from_numpy(memory[:16]), torch.from_numpy(memory[48:])
    with interpreter.traced() as record:
        planted.copy_by_address[(1,)](x.data_ptr() + 32, x, out, 16)
    assert out.tolist() == [*range(8, 16), *[0] * 8]
    assert record.launches[0].tensors["x"].load_bytes == 32
    assert [fault[2:] for fault in record.launches[0].out_of_bounds] == [("load", "x", 16, 8)]


def test_inside_the_storage_of_a_view_is_within_bounds():
    x = numbers(128)
    out = torch.empty(16)
    with interpreter.traced() as record:
        planted.load_at[(1,)](x[64:80], out, 8, 16)
        planted.load_at[(1,)](x[64:80], out, -64, 16)
    assert torch.equal(out, x[:16])
    record.check()


def test_descriptors_made_on_the_host_and_in_the_kernel_are_traced():
    x, out = numbers(24, 32), torch.full((32, 24), torch.nan)
    descriptor = TensorDescriptor.from_tensor(x, [16, 16])
    with interpreter.traced() as record:
        planted.transposed_by_descriptor[(2, 2)](descriptor, out, 24, 32, 16, 16)
    assert torch.equal(out, x.T)
    assert record.ratio(x, out) == 1.0
    assert record.launches[0].grid == (2, 2, 1)
    assert record.launches[0].tensors["x"].masked_share == 0.25
    record.check()


def test_scalar_loads_of_wide_types_and_the_grid_of_a_function():
    counts, x, out = torch.tensor([3, 0, 2]), numbers(8).double(), torch.zeros(3, dtype=torch.float64)
    with interpreter.traced() as record:
        planted.scalar_by_scalar[lambda meta: (3,)](counts, x, out, 4)
    assert torch.equal(out, x[4 + counts])
    (launch,) = record.launches
    assert [tensor.requested_bytes() for tensor in launch.tensors.values()] == [24, 24, 24]
    assert launch.grid == (3, 1, 1)


def test_the_tensors_of_a_tuple_have_names():
    x, y, out = numbers(16, seed=1), numbers(16, seed=2), torch.empty(16)
    with interpreter.traced() as record:
        planted.sum_of_tuple[(1,)]((x, y), out, 16)
    assert torch.equal(out, x + y)
    assert {name: t.requested_bytes() for name, t in record.launches[0].tensors.items()} == dict.fromkeys(
        ("pair[0]", "pair[1]", "out"), 64
    )


def test_a_pointer_to_smaller_elements_counts_no_byte_twice():
    with interpreter.traced() as record:
        planted.read_in_pieces[(1,)](torch.zeros(8, dtype=torch.int32), 8)
    trace = record.launches[0].tensors["x"]
    assert (trace.load_bytes, trace.unique_load_bytes, trace.sectors) == (8 + 1 + 32, 32, 3)


# -- out of bounds ----------------------------------------------------------------------------------------------------


def test_a_forgotten_mask_is_reported_with_its_program_and_the_nearest_argument():
    x, out = numbers(1000), torch.empty(1000)
    with interpreter.traced() as record:
        planted.copy_with_tail[(4,)](x, out, 1000, 1, 256)
    assert torch.equal(out, x)
    assert record.launches[0].out_of_bounds == [
        interpreter.OutOfBounds("copy_with_tail", (3, 0, 0), "load", "x", 1000, 24)
    ]
    assert record.launches[0].tensors["x"].load_bytes == 4000
    sentence = r"copy_with_tail: program \(3, 0, 0\): load out of bounds, 24 lanes, the first at x\[1000\]"
    with pytest.raises(AssertionError, match=sentence):
        record.check()
    with interpreter.traced() as record:
        planted.copy_with_tail[(4,)](x, out, 1000, 3, 256)
    assert [fault.lanes for fault in record.launches[0].out_of_bounds] == [3 * 24]


@pytest.mark.parametrize("offset", [2**40, -(2**40), 2**61])
def test_far_out_of_bounds_neither_crashes_nor_reads(offset):
    x, out = torch.ones(16), torch.full((16,), torch.nan)
    with interpreter.traced() as record:
        planted.load_at[(1,)](x, out, offset, 16)
        assert out.tolist() == [0.0] * 16
        planted.load_at_or_seven[(1,)](x, out, offset, 16)
        assert out.tolist() == [7.0] * 16
    assert [fault.lanes for launch in record.launches for fault in launch.out_of_bounds] == [16, 16]
    with pytest.raises(AssertionError, match=r"load_at: .*16 lanes.*\nload_at_or_seven: .*16 lanes"):
        record.check()


@pytest.mark.parametrize("dtype", [np.float32, np.bool_])  # Triton reads the latter through a pointer to int8
def test_the_next_argument_in_memory_is_out_of_bounds_too(dtype):
    memory = np.ones(64, dtype)
    x, out = torch.from_numpy(memory[:32]), torch.from_numpy(memory[32:])
    with interpreter.traced() as record:
        planted.load_at[(1,)](x, out, 24, 16)
    assert memory.tolist() == [1] * 40 + [0] * 8 + [1] * 16
    assert [fault[2:] for fault in record.launches[0].out_of_bounds] == [("load", "x", 32, 8)]


def test_a_store_out_of_bounds_is_dropped():
    memory = np.zeros(64, np.float32)
    x = torch.from_numpy(memory[:32])
    with interpreter.traced() as record:
        planted.store_ones_at[(1,)](x, 24, 16)
    assert memory.tolist() == [0.0] * 24 + [1.0] * 8 + [0.0] * 32
    assert record.launches[0].out_of_bounds == [
        interpreter.OutOfBounds("store_ones_at", (0, 0, 0), "store", "out", 32, 8)
    ]
    planted.store_ones_at[(1,)](x, 24, 16)
    assert memory.tolist() == [0.0] * 24 + [1.0] * 16 + [0.0] * 24, "without a trace it is written"


def test_atomics_out_of_bounds_are_dropped():
    memory, found = np.zeros(64, np.int32), torch.full((16,), 9, dtype=torch.int32)
    memory[30] = 5
    x = torch.from_numpy(memory[:32])
    with interpreter.traced() as record:
        planted.count_at[(1,)](x, 24, 16)
        planted.swap_at[(1,)](x, found, 16, 16)
        assert found.tolist() == [0] * 8 + [1] * 6 + [6, 1]
        planted.swap_at[(1,)](x, found, 20, 16)
        assert found.tolist() == [1] * 10 + [6, 1] + [0] * 4
        planted.swap_at[(1,)](x, found, 2**40, 16)
        assert found.tolist() == [0] * 16
    assert memory.tolist() == [0] * 16 + [1] * 14 + [6, 1] + [0] * 32
    faults = [fault[2:] for launch in record.launches for fault in launch.out_of_bounds]
    assert faults == [("atomic", "out", 32, 8), ("atomic", "out", 32, 4), ("atomic", "out", 2**40, 16)]
    assert [launch.tensors["out"].atomic_bytes for launch in record.launches] == [32, 64, 48, 0]


def test_all_faults_are_counted_and_ten_are_written_out():
    x, out = torch.ones(16), torch.empty(16)
    with interpreter.traced() as record:
        for _ in range(13):
            planted.load_at[(1,)](x, out, 16, 16)
    with pytest.raises(AssertionError) as error:
        record.check()
    lines = str(error.value).splitlines()
    assert len(lines) == 11
    assert lines[-1] == "and 3 more"


# -- races ------------------------------------------------------------------------------------------------------------


def test_a_racy_accumulation_is_reported_although_its_result_is_right():
    x, out = torch.ones(4, 16), torch.zeros(8)[3:4]
    with interpreter.traced() as record:
        planted.accumulate[(4,)](x, out, False, 16)
    assert out.item() == 64.0
    races = record.launches[0].races
    assert {frozenset(race.kinds) for race in races} == {frozenset({"store"}), frozenset({"store", "load"})}
    assert all((race.tensor, race.offset, race.addresses) == ("out", 0, 1) for race in races)
    assert all(race.programs == ((0, 0, 0), (1, 0, 0)) for race in races)
    sentence = "accumulate: store of program (0, 0, 0) and load of program (1, 0, 0) race at out[0], 1 such address"
    with pytest.raises(AssertionError, match=re.escape(sentence)):
        record.check()
    record.check(races=False)


def test_an_atomic_accumulation_is_no_race():
    x, out = torch.ones(4, 16), torch.zeros(1)
    with interpreter.traced() as record:
        planted.accumulate[(4,)](x, out, True, 16)
    assert out.item() == 64.0
    assert record.launches[0].tensors["out"].atomic_bytes == 16
    assert record.launches[0].tensors["out"].unique_atomic_bytes == 4
    record.check()


def test_one_program_does_not_race_with_itself():
    x, out = torch.ones(1, 16), torch.zeros(1)
    with interpreter.traced() as record:
        planted.accumulate[(1,)](x, out, False, 16)
        planted.accumulate[(1,)](x, out, False, 16)  # another launch waits for the first
    assert out.item() == 32.0
    record.check()


@pytest.mark.parametrize(
    ("step", "kinds"),
    [(-1, ("store", "load")), (1, ("load", "store"))],
    ids=["reads what was written", "reads what will be written"],
)
def test_a_load_of_what_another_program_stores_is_a_race_in_either_order(step, kinds):
    x, out = torch.zeros(8), torch.zeros(8)
    with interpreter.traced() as record:
        planted.read_neighbour[(8,)](x, out, step)
    assert record.launches[0].races == [
        interpreter.Race("read_neighbour", "x", kinds, ((0, 0, 0), (1, 0, 0)), 0 if step < 0 else 1, 7)
    ]


@pytest.mark.parametrize("plain", ["load", "store"])
@pytest.mark.parametrize("counting", [0, 1])
def test_an_atomic_and_a_plain_access_of_another_program_race(counting, plain):
    out, seen = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    with interpreter.traced() as record:
        planted.count_beside[(2,)](out, seen, counting, plain)
    kinds = (plain, "atomic") if counting else ("atomic", plain)
    assert [(race.tensor, race.kinds) for race in record.launches[0].races] == [("out", kinds)]


def test_programs_of_a_race_are_named_in_three_axes():
    out = torch.zeros(4)
    with interpreter.traced() as record:
        planted.store_ones_at[(2, 3, 4)](out, 0, 4)
    (race,) = record.launches[0].races
    assert (race.kinds, race.programs, race.addresses) == (("store", "store"), ((0, 0, 0), (0, 0, 1)), 4)


# -- the record -------------------------------------------------------------------------------------------------------


def test_accesses_are_kept_where_asked_in_lane_order():
    x, out = torch.ones(1024), torch.zeros(1024)
    with interpreter.traced(keep_accesses=True) as record:
        planted.copy[(4,)](x, out, 1000, 1, 256)
    loads = [access for access in record.launches[0].accesses if access.kind == "load"]
    assert [(access.program, access.tensor) for access in loads] == [((p, 0, 0), "x") for p in range(4)]
    assert np.array_equal(np.concatenate([access.offsets for access in loads]), np.arange(1000))
    with interpreter.traced() as record:
        planted.copy[lambda meta: (triton.cdiv(meta["N"], meta["BLOCK"]),)](x, out, 1000, 1, 256)
    assert record.launches[0].accesses == []
    assert record.launches[0].grid == (4, 1, 1)


def test_the_record_is_plain_json():
    x, out = torch.ones(4, 16), torch.zeros(1)
    with interpreter.traced(keep_accesses=True) as record:
        planted.accumulate[(4,)](x, out, False, 16)
        planted.load_at[(1,)](x, out, 2**40, 1)
    plain = record.as_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    first, second = plain["launches"]
    assert first["tensors"]["x"]["load_bytes"] == 256
    assert first["tensors"]["x"]["sector_efficiency"] == 1.0
    assert first["races"][0]["programs"] == [[0, 0, 0], [1, 0, 0]]
    assert first["accesses"][0]["offsets"] == list(range(16))
    assert second["out_of_bounds"][0]["tensor"] == "x"
    assert second["tensors"]["x"]["sector_efficiency"] is None


def test_traces_do_not_nest_and_close_when_a_kernel_fails():
    x = torch.zeros(1)
    with interpreter.traced():
        with pytest.raises(RuntimeError, match=r"^traces do not nest: a trace is open already;"):
            interpreter.traced().__enter__()
        with pytest.raises(Exception, match="AssertionError"):
            planted.fails[(1,)](x)
    with interpreter.traced() as record:
        with pytest.raises(Exception, match="AssertionError"):
            planted.fails[(1,)](x)
        planted.store_ones_at[(1,)](x, 0, 1)
    assert [(launch.kernel, launch.requested_bytes()) for launch in record.launches] == [
        ("fails", 4),
        ("store_ones_at", 4),
    ]
