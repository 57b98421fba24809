"""What RACE's kernels request of memory: within the targets at 4,096 tokens, and at any size what the formulas say."""

import json

import pytest

for package in ("torch", "triton"):
    pytest.importorskip(package, reason=f"the package {package} is not installed; get it with: pip install {package}")

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from attnlab_kernels import race  # noqa: E402
from attnlab_kernels.launch import launch  # noqa: E402
from attnlab_kernels.testing import interpreter, traffic  # noqa: E402
from attnlab_kernels.testing.operations import RaceCase  # noqa: E402

pytestmark = pytest.mark.interpreted

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["noncausal", "causal"])


def tiles(size):
    """The fields of a configuration that say how many tokens a tile has."""
    return {field: size for field in race.Config._fields if field.endswith("tile")}


@pytest.fixture
def small(monkeypatch):
    """Configurations for short sequences: "tiny" has chunks of two tiles, "grouped" programs of 16 buckets too."""
    tiny = race.CONFIGS["short"]._replace(chunk=32)
    monkeypatch.setitem(race.CONFIGS, "tiny", tiny)
    monkeypatch.setitem(race.CONFIGS, "grouped", tiny._replace(state=256, grad_state=256))


@pytest.mark.slow
@CAUSAL
def test_the_targets_are_met_at_4096_tokens(causal):
    """In tiles of 128 tokens, which are quicker to interpret; below, bytes do not depend on the tile."""
    case = RaceCase(BF16, 4, 4, 128, 128, causal, T=4096, H=1)
    with traffic.changed(case, **tiles(128)) as in_large_tiles:
        counts = traffic.counted(in_large_tiles)
    formulas = traffic.predicted(case)
    for operation, count in counts.items():
        assert 1 < count.ratio <= traffic.TARGETS[operation, causal], count.kernels
        assert count.kernels == formulas[operation]


def test_each_operation_and_mask_has_a_target():
    assert traffic.TARGETS.keys() == {(name, causal) for name in ("forward", "backward") for causal in (False, True)}
    assert traffic.cases()[:2] == [RaceCase(BF16, 4, 4, 128, 128, causal, T=4096, H=1) for causal in (False, True)]


@CAUSAL
@pytest.mark.parametrize(
    ("case", "config"),
    [
        (RaceCase(BF16, 4, 4, 24, 40, T=70, H=2), "tiny"),
        (RaceCase(FP32, 2, 3, 20, 12, T=33, H=1), "tiny"),
        (RaceCase(FP16, 1, 1, 16, 16, T=1, H=1), "tiny"),
        (RaceCase(BF16, 3, 3, 24, 16, T=40, H=2), "grouped"),
        (RaceCase(FP32, 6, 2, 12, 16, T=40, H=1), "grouped"),
        (RaceCase(FP32, 1, 2, 140, 132, T=20, H=1), "tiny"),
        (RaceCase(BF16, 4, 4, 24, 40, T=0, H=2), "tiny"),
    ],
    ids=lambda part: part if isinstance(part, str) else f"{part.id}-{part.T}",
)
def test_the_formulas_are_exact(case, config, causal, small):
    case = case._replace(causal=causal, config=config)
    counts = traffic.counted(case)
    assert {operation: count.kernels for operation, count in counts.items()} == traffic.predicted(case)


@CAUSAL
def test_bytes_do_not_depend_on_the_tile_and_fall_with_the_chunk(causal):
    case = RaceCase(BF16, 4, 4, 16, 16, causal, T=160, H=1)
    totals = {}
    for tile, chunk in ((16, 64), (32, 64), (16, 160)):
        with traffic.changed(case, **tiles(tile), chunk=chunk) as cut:
            totals[tile, chunk] = {name: sum(count.kernels.values()) for name, count in traffic.counted(cut).items()}
            assert totals[tile, chunk] == {name: sum(x.values()) for name, x in traffic.predicted(cut).items()}
    assert totals[16, 64] == totals[32, 64]
    assert all(totals[16, 160][name] < totals[16, 64][name] for name in ("forward", "backward"))
    assert "changed" not in race.CONFIGS


def test_a_changed_configuration_may_be_changed_again():
    default = race.CONFIGS[race.default_config(BF16)]
    with traffic.changed(RaceCase(BF16), chunk=512) as one:
        with traffic.changed(one, tile=16) as two:
            assert race.CONFIGS[two.config] == default._replace(chunk=512, tile=16)
        assert race.CONFIGS[one.config] == default._replace(chunk=512)


@CAUSAL
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=["bf16", "fp32"])
def test_compulsory_bytes_are_those_of_the_tensors_that_go_in_and_come_out(dtype, causal):
    case = RaceCase(dtype, 3, 2, 24, 8, causal, T=50, H=2)
    q, k, v, out = (torch.empty(50, 2, width, dtype=dtype) for width in (24, 24, 8, 8))
    planes, mass, content = torch.empty(2, 2, 3, 24), torch.empty(2, 2, 8), torch.empty(2, 2, 8, 8)

    def size(*tensors):
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    assert traffic.compulsory(case) == {
        "forward": size(q, k, v, planes, out, mass, content),
        "backward": size(q, k, v, out, planes) + size(q, k, v),  # dO has the shape of out; dq, dk, dv that of q, k, v
    }


def test_a_count_names_kernels_and_tensors_and_counts_flops(small):
    T, width, LP, LR = 32, 128, 16, 64
    count = traffic.counted(RaceCase(BF16, 4, 4, width, width, T=T, H=1, config="tiny"))["forward"]
    assert count.requested["read_kernel"]["q"] == count.requested["read_kernel"]["out"] == T * width * 2
    assert count.ratio == sum(count.kernels.values()) / count.compulsory
    assert count.intensity == count.dot_flops / sum(count.kernels.values())
    projections, features, values = 2 * T * width * LP, 2 * T * 2 * LP * LR, 2 * T * LR * width
    write = 2 * projections + 2 * features + values  # planes, and logarithms of features, are split in two parts
    read = 2 * projections + 2 * features + 2 * values  # and so is content
    assert count.dot_flops == write + read


@triton.jit
def naive_kernel(x, y, N: tl.constexpr, TWICE: tl.constexpr):
    """y = x / sum(x) of a row; TWICE reads the row again where one_pass keeps it."""
    o_n = tl.program_id(0) * N + tl.arange(0, N)
    b_x = tl.load(x + o_n)
    total = tl.sum(b_x, 0)
    if TWICE:
        b_x = tl.load(x + o_n)
    tl.store(y + o_n, b_x / total)


@pytest.mark.parametrize(("twice", "ratio"), [(False, 1.0), (True, 1.5)])
def test_a_kernel_that_reads_twice_is_told_apart(twice, ratio):
    x, y = torch.ones(8, 16), torch.empty(8, 16)
    with interpreter.traced() as record:
        launch(naive_kernel, (8,), x, y, N=16, TWICE=twice)
    record.check()
    assert record.ratio(x, y) == ratio
    assert (record.ratio(x, y) <= traffic.TARGETS["forward", False]) is not twice


def test_an_operation_that_runs_twice_misses_the_target(monkeypatch):
    case, once = RaceCase(BF16, 1, 1, 64, 64, T=256, H=1), race.forward
    assert traffic.counted(case)["forward"].ratio <= traffic.TARGETS["forward", False]
    monkeypatch.setattr(race, "forward", lambda **arguments: [once(**arguments), once(**arguments)][1])
    assert traffic.counted(case)["forward"].ratio > traffic.TARGETS["forward", False]


def test_a_fault_of_a_kernel_fails_the_count(monkeypatch):
    """Room for one number of each state in place of all of them."""
    states = race._Operation.states
    monkeypatch.setattr(race._Operation, "states", lambda self, at: [x[..., :1].clone() for x in states(self, at)])
    with pytest.raises(AssertionError, match="out of bounds"):
        traffic.counted(RaceCase(BF16, 2, 2, 16, 16, T=20, H=1))


def test_the_command_prints_counts(capsys):
    assert traffic.main(["--tokens", "20"]) == 0
    text = capsys.readouterr().out
    assert "bf16-p4l4-k128v128-causal backward" in text
    assert traffic.main(["--tokens", "20", "--json"]) == 0
    out, err = capsys.readouterr()
    counts = json.loads(out)
    assert counts["tokens"] == 20
    assert set(counts["cases"]) == {case.id for case in traffic.cases()}
    count = counts["cases"]["fp32-p4l4-k128v128"]["backward"]
    assert count["ratio"] == sum(sum(x.values()) for x in count["requested"].values()) / count["compulsory"]
    assert "[6/6] bf16-p2l2-k128v128-causal" in err


def test_the_command_wants_a_token(capsys):
    with pytest.raises(SystemExit):
        traffic.main(["--tokens", "0"])
    assert "--tokens must be at least 1, got 0" in capsys.readouterr().err
