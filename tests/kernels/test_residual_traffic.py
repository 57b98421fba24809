"""What the residual kernels request of memory: within the stated bounds, and no more for a longer sequence."""

import json

import pytest

for package in ("torch", "triton"):
    pytest.importorskip(package, reason=f"the package {package} is not installed; get it with: pip install {package}")

import torch  # noqa: E402

from attnlab_kernels import residual  # noqa: E402
from attnlab_kernels.testing import traffic  # noqa: E402
from attnlab_kernels.testing.operations import ResidualCase  # noqa: E402

pytestmark = pytest.mark.interpreted

SMALL = ResidualCase(torch.bfloat16, K=24, V=40, T=40, H=1)


@pytest.mark.parametrize("case", traffic.residual_cases()[:2], ids=lambda case: case.id)
def test_the_bounds_are_kept_and_close(case):
    for operation, count in traffic.residual_counted(case).items():
        bound = traffic.RESIDUAL_TARGETS[operation, case.rule]
        assert 0.98 * bound < count.ratio <= bound, (operation, count.ratio, count.kernels)


@pytest.mark.parametrize("rule", ["rdn", "linear"])
def test_compulsory_bytes_are_those_of_the_tensors_that_go_in_and_come_out(rule):
    case = SMALL._replace(rule=rule)
    q, k, v, out = (torch.empty(40, width, dtype=torch.bfloat16) for width in (24, 24, 40, 40))
    gates = [torch.empty(40)] * (3 if rule == "rdn" else 0)
    states = [torch.empty(24, 40)] * (2 if rule == "rdn" else 1)

    def size(*tensors):
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    assert traffic.residual_compulsory(case) == {
        "forward": size(q, k, v, *gates, out, *states),
        "backward": size(q, k, v, *gates, out) + size(q, k, v, *gates),  # dO has the shape of out
    }


def test_bytes_of_a_token_do_not_depend_on_the_length():
    """Every 16 tokens more ask for the same."""
    totals = []
    for T in (32, 64, 96):
        counts = traffic.residual_counted(SMALL._replace(T=T))
        totals.append([sum(count.kernels.values()) for count in counts.values()])
    (one, two, three) = totals
    assert [b - a for a, b in zip(one, two, strict=True)] == [b - a for a, b in zip(two, three, strict=True)]


def test_rows_of_k_and_q_are_asked_for_by_every_block_of_columns():
    """Three blocks of 16, 16 and 8 columns. Each of the two stages recalls with k and reads with q, and then writes
    with k; where a compiler joins equal loads, it asks for less.
    """
    count = traffic.residual_counted(SMALL)["forward"].requested["residual_forward_kernel"]
    assert count["q"] == 3 * 2 * 40 * 24 * 2
    assert count["k"] == 2 * count["q"]
    assert count["v"] == count["out"] == 40 * 40 * 2


def test_an_operation_that_runs_twice_misses_the_bound(monkeypatch):
    case, once = traffic.residual_cases()[1], residual.forward
    monkeypatch.setattr(residual, "forward", lambda **arguments: [once(**arguments), once(**arguments)][1])
    count = traffic.residual_counted(case._replace(T=16))["forward"]
    monkeypatch.undo()
    assert count.ratio > 1.9 * traffic.residual_counted(case._replace(T=16))["forward"].ratio


def test_the_command_prints_counts(capsys):
    assert traffic.main(["--residual", "--tokens", "3", "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)
    assert counts["tokens"] == 3
    assert set(counts["cases"]) == {case.id for case in traffic.residual_cases()}
