"""What HashAttention's kernels request of memory: within the stated bounds, and to the last byte what the sizes say."""

import json

import pytest

for package in ("torch", "triton"):
    pytest.importorskip(package, reason=f"the package {package} is not installed; get it with: pip install {package}")

import torch  # noqa: E402

from attnlab_kernels import hashattention  # noqa: E402
from attnlab_kernels.testing import traffic  # noqa: E402
from attnlab_kernels.testing.operations import HashCase  # noqa: E402

pytestmark = pytest.mark.interpreted

SMALL = HashCase(torch.float32, bits=40, K=24, V=40, S=300, H=6, G=2, budget=20, config="short")


@pytest.mark.parametrize("case", traffic.hash_cases(), ids=lambda case: case.id)
def test_the_bounds_are_kept_and_close(case):
    for operation, count in traffic.hash_counted(case).items():
        bound = traffic.HASH_TARGETS["gather.shared" if (operation, case.lists) == ("gather", 2) else operation]
        assert 0.98 * bound < count.ratio <= bound, (operation, count.ratio, count.kernels)


@pytest.mark.parametrize(
    "case",
    [SMALL, SMALL._replace(dtype=torch.float16, lists=2), SMALL._replace(bits=96, budget=11, interleaved=True)],
    ids=lambda case: case.id,
)
def test_bytes_are_those_of_the_formulas(case):
    """In several chunks and spans, the last of them not full, heads in two blocks."""
    counted = {operation: count.kernels for operation, count in traffic.hash_counted(case).items()}
    assert counted == traffic.hash_predicted(case)


def test_long_caches_read_codes_twice_and_little_else():
    case = HashCase(torch.bfloat16, S=2**20, H=8, G=2)
    scan = sum(traffic.hash_predicted(case)["scan"].values()) / traffic.hash_compulsory(case)["scan"]
    assert 2.0 < scan < 2.06


def test_compulsory_bytes_are_those_of_the_tensors_that_go_in_and_come_out():
    def size(*tensors):
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    codes = [torch.empty(rows, 2, dtype=torch.int32) for rows in (6, 600)]
    index = torch.empty(6, 276, dtype=torch.int32)
    q, k, v, out = (torch.empty(rows, width) for rows, width in ((6, 24), (6 * 276, 24), (6 * 276, 40), (6, 40)))
    assert traffic.hash_compulsory(SMALL) == {
        "scan": size(*codes, index),
        "gather": size(index, q, k, v, out, torch.empty(6)),
    }


def test_an_operation_that_runs_twice_misses_the_bound(monkeypatch):
    once = hashattention.gather
    case = SMALL._replace(S=280, H=2)
    plain = traffic.hash_counted(case)["gather"].ratio
    monkeypatch.setattr(hashattention, "gather", lambda *given: [once(*given), once(*given)][1])
    assert traffic.hash_counted(case)["gather"].ratio == 2 * plain


def test_the_command_prints_counts(capsys):
    assert traffic.main(["--hashattention", "--tokens", "300", "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)
    assert counts["tokens"] == 300
    assert set(counts["cases"]) == {case.id for case in traffic.hash_cases()}
