"""Residual memory against flash-linear-attention's kernels, composed: code that shares nothing with ours.

Skipped where fla-core is not installed: pip install -e ".[oracle]". The kernels run interpreted, in a process of their
own, on the CPU; the paper gives no code to compare with.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from attnlab.backend import found
from attnlab.residual import RULES, State, chunked, reference
from tests.residual.cases import arguments, flat, normal, row_error

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    not all(map(found, ("fla", "torch", "triton"))),
    reason='the oracle, flash-linear-attention, is not installed; get it with: pip install ".[oracle]"',
)

B, H, K, V = 1, 3, 16, 12
CLIP = 1.0
CHUNK = 64  # tokens that its kernels take at once
CASES = [(rule, T) for rule in ("rla", "rdn", "sgla", "gdn") for T in (1, 17, 70)]
LETTERS = ("q", "k", "v", "log_retention", "write", "correction")


def case(rule, T):
    """Arguments and cotangents of one call in float32, so that both sides see the same numbers."""
    given = arguments(rule, B=B, T=T, H=H, K=K, V=V, carried=True, seed=T)
    given["log_retention"] = np.log(given.pop("retention"))
    arrays = {name: given[name] for name in LETTERS if name in given}
    for i, (name, memory) in enumerate(given["state"]._asdict().items()):
        if memory is not None:
            arrays |= {name: 0.3 * memory, f"d_{name}": normal(9, i, B, H, K, V)}
    arrays["d_out"] = normal(9, 2, B, T, H, V)
    return {name: x.astype(np.float32) for name, x in arrays.items()}


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    """The oracle's answer to every case, by (rule, T)."""
    folder = tmp_path_factory.mktemp("oracle")
    paths = [folder / f"case_{rule}_{T}.npz" for rule, T in CASES]
    for path, (rule, T) in zip(paths, CASES, strict=True):
        np.savez(path, rule=rule, clip=CLIP, **case(rule, T))
    done = subprocess.run(
        [sys.executable, "-m", "tests.residual.fla_composition", *map(str, paths)],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answered = {}
    for key, path in zip(CASES, paths, strict=True):
        with np.load(path.with_name(path.name.replace("case", "answer"))) as answer:
            answered[key] = dict(answer)
    return answered


def ours(rule, T):
    """Results of the reference and gradients of the chunked form, in float64."""
    given = {name: x.astype(np.float64) for name, x in case(rule, T).items()}
    d_out, *d_state = (given.pop(name, None) for name in ("d_out", "d_base", "d_residual"))
    given |= {"state": State(given.pop("base"), given.pop("residual", None)), "rule": rule, "clip": CLIP}
    backward = chunked.gradient(**given, d_out=d_out, d_state=State(*d_state))
    gradients = {name: getattr(backward, name) for name in LETTERS if name in given} | backward.state._asdict()
    results = flat(*reference.attention(**given, return_state=True))
    return results | {f"gradient of {name}": x for name, x in gradients.items() if x is not None}


@pytest.mark.parametrize(("rule", "T"), CASES)
def test_the_oracle_agrees_forward_and_backward(oracle, rule, T):
    got, want = oracle[rule, T], ours(rule, T)
    assert got.keys() == want.keys()
    errors = {name: row_error(got[name], want[name], floor=0.1) for name in want}
    # Its float32 has two sources of error: sums of up to T + K V terms, as in the gradient of a gate, and decays
    # exp(b_i - b_j), with b the sum of logarithms since the chunk began, which is rounded in proportion to its size.
    logs = np.abs(case(rule, T)["log_retention"][:, :CHUNK]).sum(axis=1).max()
    assert all(error <= 2.0**-23 * (logs + np.sqrt(T + K * V)) for error in errors.values()), errors


@pytest.mark.parametrize(("rule", "T"), [(rule, T) for rule, T in CASES if RULES[rule].residual])
def test_no_error_of_a_case_is_so_near_the_clip_that_rounding_could_move_it_across(rule, T):
    given = {name: x.astype(np.float64) for name, x in case(rule, T).items() if not name.startswith("d_")}
    state = State(given.pop("base"), given.pop("residual"))
    error = np.abs(reference.trace(**given, state=state, rule=rule).error)
    assert np.abs(error - CLIP).min() > 2e-5
    assert 0.1 < np.mean(error > CLIP) < 0.9
