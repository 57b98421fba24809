"""What LRKV's kernels request of memory: within the stated bounds, and to the last byte what the sizes say."""

import json

import pytest

for package in ("torch", "triton"):
    pytest.importorskip(package, reason=f"the package {package} is not installed; get it with: pip install {package}")

import torch  # noqa: E402

from attnlab_kernels import lrkv  # noqa: E402
from attnlab_kernels.testing import traffic  # noqa: E402
from attnlab_kernels.testing.operations import LrkvCase  # noqa: E402

pytestmark = pytest.mark.interpreted

SMALL = LrkvCase(torch.float32, 24, 20, 40, S=300, H=6, G=2, scaled=True, config="short")


@pytest.mark.parametrize("case", traffic.lrkv_cases(), ids=lambda case: case.id)
def test_the_bounds_are_kept_and_close(case):
    (count,) = traffic.lrkv_counted(case).values()
    bound = traffic.LRKV_TARGETS[case.R]
    assert 0.98 * bound < count.ratio <= bound, (count.ratio, count.kernels)


@pytest.mark.parametrize(
    "case",
    [
        SMALL,
        SMALL._replace(turned=(9, 4), S=70),
        SMALL._replace(dtype=torch.bfloat16, H=38, R=10),
        SMALL._replace(dtype=torch.float16, R=0, H=40, G=1, S=50),
    ],
    ids=lambda case: case.id,
)
def test_bytes_are_those_of_the_formulas(case):
    """In several spans, the last of them not full, heads in two blocks, queries read anew with every tile."""
    (count,) = traffic.lrkv_counted(case).values()
    assert count.kernels == traffic.lrkv_predicted(case)


@pytest.mark.parametrize("tokens", [2**12, 2**15, 2**20])
@pytest.mark.parametrize("rank", traffic.LRKV_TARGETS)
def test_longer_caches_are_read_as_well(rank, tokens):
    (case,) = (case for case in traffic.lrkv_cases(tokens) if case.R == rank)
    (least,) = traffic.lrkv_compulsory(case).values()
    assert 1 < sum(traffic.lrkv_predicted(case).values()) / least <= traffic.LRKV_TARGETS[rank]


def test_heads_beyond_32_read_shared_rows_once_more_for_each_block():
    case = LrkvCase(torch.bfloat16, 16, H=64)
    rows = 2 * case.S * (case.K + case.V)
    once = (
        traffic.lrkv_predicted(case)["lrkv_decode_kernel"]
        / traffic.lrkv_predicted(case._replace(H=32))["lrkv_decode_kernel"]
    )
    (least,) = traffic.lrkv_compulsory(case).values()
    extra = sum(traffic.lrkv_predicted(case).values()) - least
    assert 1.9 < once < 2.0
    assert rows < extra < 1.6 * rows


def test_compulsory_bytes_are_those_of_the_tensors_that_go_in_and_come_out():
    def size(*shapes):
        return sum(4 * torch.Size(shape).numel() for shape in shapes)

    cache = ((300, 2, 20), (300, 2, 40), (300, 6, 24), (300, 6, 24), (300, 6))
    assert traffic.lrkv_compulsory(SMALL) == {
        "decode": size((6, 20), *cache, (6, 20, 24), (6, 40, 24), (6, 40), (6,)),
    }


def test_an_operation_that_runs_twice_misses_the_bound(monkeypatch):
    once, case = lrkv.forward, SMALL._replace(S=40)
    plain = traffic.lrkv_counted(case)["decode"].ratio
    monkeypatch.setattr(lrkv, "forward", lambda **given: [once(**given), once(**given)][1])
    assert traffic.lrkv_counted(case)["decode"].ratio == 2 * plain


def test_the_command_prints_counts(capsys):
    assert traffic.main(["--lrkv", "--tokens", "100", "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)
    assert counts["tokens"] == 100
    assert set(counts["cases"]) == {case.id for case in traffic.lrkv_cases()}
