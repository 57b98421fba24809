"""RACE over several processes is RACE on one: to the last bit where ranks begin on the grid, to rounding elsewhere.

Four processes, started once, run all cases; ranks 1 and 3 are also the group of two.
"""

import itertools
import json
import os
import re
import runpy
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the package torch is not installed; get it with: pip install torch")

from attnlab import backend  # noqa: E402
from attnlab.race import attention, draw_planes  # noqa: E402
from attnlab.race import sequence_parallel as parallel  # noqa: E402

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not hasattr(os, "fork"), reason="needs torch.distributed and fork"
)
ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("sequence_parallel_worker.py")
TWO, FOUR = [1, 3], [0, 1, 2, 3]
N = 12 * 16 + 5  # thirteen chunks of 16 tokens, the last one ragged
ON_GRID = {1: [N], 2: [112, 85], 4: [48, 64, 0, 85]}
OFF_GRID = {2: [50, 147], 4: [50, 3, 0, 144]}  # three ranks share the chunk of tokens 48 to 63
STATE = {"state": True, "options": {"return_state": True}}
EXTRAS = {
    "plain": {},
    "a sharpness a head": {"sharpness": [0.5, 1.0, 2.0]},
    "unit q and k": {"options": {"normalize": True}},
    "a state before and after": STATE,
}


def case(name, ranks, lengths, causal=True, dtype="float64", **rest):
    return {"name": name, "ranks": ranks, "lengths": lengths, "causal": causal, "dtype": dtype, **rest}


def name(*parts):
    return ", ".join(map(str, parts))


WORLDS = {2: TWO, 4: FOUR}
SETTINGS = list(itertools.product((False, True), ("float32", "float64"), EXTRAS))
CASES = [
    case(name(kind, W, *setting), WORLDS[W], lengths[W], *setting[:2], **EXTRAS[setting[2]])
    for setting in SETTINGS
    for kind, lengths in (("on", ON_GRID), ("off", OFF_GRID))
    for W in WORLDS
]
ODD = ("planes", "sharpness", "heads", "nan", "list", "state", "causal", "chunk")
CASES += [case(name("odd", odd), FOUR, ON_GRID[4], odd=odd, refused=True) for odd in ODD]
CASES += [case("odd, planes on two", FOUR, ON_GRID[4], odd="planes", odd_ranks=[1, 3], refused=True)]
CASES += [case("odd, gradient", TWO, ON_GRID[2], wanting=[[3], []], refused=True)]
DOUBLINGS = range(4)
CASES += [case(name("traffic", W, j), WORLDS[W], [16 * 2**j] * W) for W in WORLDS for j in DOUBLINGS]
CASES += [case("traffic, ragged", FOUR, [16 * 37, 16 * 27, 16 * 45, 16 * 3])]
CASES += [case("nobody", FOUR, [0] * 4), case("twice", FOUR, ON_GRID[4], twice=True, refused=True)]
CASES += [case("only keys", FOUR, ON_GRID[4], wanting=[[], [1], [], []])]
MUTANTS = [("all_reduce", False), ("inclusive", True), ("forward_again", True)]
CASES += [case(name("mutant", m), FOUR, ON_GRID[4], causal, mutant=m) for m, causal in MUTANTS]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """The number of threads may change the order of a product's sums; the ranks have one each."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def worker():
    return runpy.run_path(str(WORKER))


@pytest.fixture(scope="module")
def found(tmp_path_factory, worker):
    """What every rank of every case saw: {name of the case: [of rank 0, of rank 1, ...]}."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "cases.json").write_text(json.dumps(CASES))
    for causal in (False, True):  # a kernel that is not compiled yet is compiled here, not by four ranks at a time
        alone(worker, (causal, "float32", "plain"))
    done = launch(sys.executable, "-W", "error", WORKER, folder, "4")
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    ranks = [torch.load(folder / f"{rank}.pt") for rank in FOUR]
    return {case["name"]: [ranks[rank][case["name"]] for rank in case["ranks"]] for case in CASES}


def launch(*command):
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment = {**os.environ, **one_thread, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")])}
    command = [str(part) for part in command]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)


def whole(ranks):
    """The shards of one case put together: output, dq, dk, dv; and what is the same on all ranks, from each."""
    assert not [rank["error"] for rank in ranks if "error" in rank]
    columns = [[rank["out"], *rank["gradients"][:3]] for rank in ranks]
    return [torch.cat(shards, 1) for shards in zip(*columns, strict=True)]


def replicated(rank):
    return [*rank["gradients"][3:], *rank["last"]]


def alone(worker, setting):
    causal, dtype, extra = setting
    return worker["run"](case("alone", [0], ON_GRID[1], causal, dtype, **EXTRAS[extra]))


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_same_bits_on_one_two_and_four_ranks(found, worker, setting):
    one = alone(worker, setting)
    for W in WORLDS:
        ranks = found[name("on", W, *setting)]
        # the loss weighs the last state of rank r with r + 1, so its gradients differ with the number of ranks
        if "state" not in setting[2]:
            assert all(map(torch.equal, whole(ranks), whole([one])))
            assert all(
                torch.equal(a, b) for rank in ranks for a, b in zip(replicated(rank), replicated(one), strict=True)
            )
        assert torch.equal(whole(ranks)[0], one["out"])
        assert all(torch.equal(a, b) for rank in ranks for a, b in zip(rank["last"], one["last"], strict=True))
        assert all(
            torch.equal(a, b) for rank in ranks for a, b in zip(replicated(rank), replicated(ranks[0]), strict=True)
        )


def exactly(worker, setting, W):
    """Output, gradients and last state by the torch room over the whole sequence in float64."""
    causal, _, extra = setting
    q, k, v, target = worker["arrays"](N, "float64")
    extras, options = EXTRAS[extra], EXTRAS[extra].get("options", {})
    beta = torch.tensor(extras.get("sharpness", 1.5), dtype=torch.float64)
    state = worker["earlier"]() if "state" in extras else None
    leaves = [x.requires_grad_() for x in (q, k, v, beta, *(state or ()))]
    planes = draw_planes(worker["L"], worker["P"], worker["K"])
    out, last = attention(
        q, k, v, torch.from_numpy(planes), beta, causal=causal, state=state, impl="torch", return_state=True,
        normalize=options.get("normalize", False),
    )  # fmt: skip
    loss = (out * target).sum()
    if "state" in extras:
        loss = loss + sum((r + 1) * x.square().sum() for r in range(W) for x in last[:2])
    gradients = torch.autograd.grad(loss, leaves)
    return [out, *gradients[:3]], [*gradients[3:], *(last[:2] if "state" in extras else ())]


@pytest.mark.parametrize("kind", ["on", "off"])
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_it_is_the_operator_of_one_machine_forward_and_backward(found, worker, setting, kind):
    """float64: rounding of sums of 197 terms. float32: a chunk's 16 terms, and products of 12 buckets, at 6e-8 each."""
    for W in WORLDS:
        ranks = found[name(kind, W, *setting)]
        shards, same = exactly(worker, setting, W)
        tolerance = 1e-12 if setting[1] == "float64" else 2e-6
        for got, want in zip([*whole(ranks), *replicated(ranks[-1])], [*shards, *same], strict=True):
            assert (got - want).abs().max() <= tolerance * max(1, want.abs().max())


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_cuts_off_the_grid_move_results_by_rounding_only(found, worker, setting):
    out = alone(worker, setting)["out"]
    for W in WORLDS:
        assert (whole(found[name("off", W, *setting)])[0] - out).abs().max() <= 1e-6


@pytest.mark.parametrize(("mutant", "causal"), MUTANTS)
def test_these_checks_see_a_wrong_order_an_inclusive_prefix_and_a_gradient_that_flows_forward(
    found, worker, mutant, causal
):
    setting = (causal, "float64", "plain")
    ranks, one = found[name("mutant", mutant)], alone(worker, setting)
    assert not all(map(torch.equal, whole(ranks), whole([one])))
    error = max((a - b).abs().max() for a, b in zip(whole(ranks), exactly(worker, setting, 4)[0], strict=True))
    assert (error < 1e-12) == (mutant == "all_reduce")  # another order is only rounding; the others are wrong


def test_the_gradient_of_sharpness_is_the_sum_over_ranks_on_every_rank(found, worker):
    """The sum of what the shards of queries contribute, each loss by itself, and not their mean."""
    q, k, v, target = worker["arrays"](N, "float64")
    beta = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    planes = torch.from_numpy(draw_planes(worker["L"], worker["P"], worker["K"]))
    out = attention(q, k, v, planes, beta, causal=True, impl="torch") * target
    shares = [torch.autograd.grad(x.sum(), beta, retain_graph=True)[0] for x in out.split(ON_GRID[4], 1)]
    assert min(abs(share) for share in shares[:2]) > 0.01  # else a mean could not be told from a sum
    for rank in found[name("on", 4, True, "float64", "plain")]:
        torch.testing.assert_close(rank["gradients"][3], sum(shares), rtol=1e-11, atol=0)


SENTENCES = {
    "planes": r"ValueError: planes must be the same on every rank, got \[3, 2, 5\] of digest \w{16} on ranks 0, 2, 3; "
    r"\[3, 2, 5\] of digest \w{16} on rank 1",
    "planes on two": r"ValueError: planes must .* on ranks 0, 2; .* on ranks 1, 3",
    "sharpness": r"ValueError: sharpness must be the same on every rank, got .* on rank 1",
    "heads": r"ValueError: rank 1: k must be \[B, S, H, K\] with H = 3 as in q, got .*",
    "nan": r"ValueError: rank 1: k must be finite, got nan at .*",
    "list": r"TypeError: rank 1: v must be a torch tensor, got list",
    "state": r"ValueError: rank 1: state must be the State of an earlier call, or a tuple .*, got int",
    "causal": r"ValueError: causal must be the same on every rank, got True on ranks 0, 2, 3; False on rank 1",
    "chunk": r"ValueError: chunk must be the same on every rank, got 16 on ranks 0, 2, 3; 32 on rank 1",
    "gradient": r"ValueError: sharpness must be .* that wants a gradient on rank 0; .* on rank 1",
}


@pytest.mark.parametrize("odd", SENTENCES)
def test_what_differs_on_one_rank_raises_the_same_sentence_on_all(found, odd):
    errors = {rank["error"] for rank in found[name("odd", odd)]}
    assert len(errors) == 1
    assert re.fullmatch(SENTENCES[odd], *errors), errors


def test_ranks_that_want_no_gradient_help_the_one_that_does(found, worker):
    dk = exactly(worker, (True, "float64", "plain"), 4)[0][2]
    start, stop = ON_GRID[4][0], sum(ON_GRID[4][:2])
    gradients = [rank["gradients"] for rank in found["only keys"]]
    torch.testing.assert_close(gradients[1][1], dk[:, start:stop], rtol=0, atol=1e-12)
    assert [sum(x is not None for x in each) for each in gradients] == [0, 1, 0, 0]


def test_a_second_derivative_is_refused_on_every_rank(found):
    assert all("no second derivative" in rank["error"] for rank in found["twice"])


def test_no_token_anywhere_is_no_output(found):
    assert all(rank["out"].shape == (2, 0, 3, 4) and rank["gradients"][3] == 0 for rank in found["nobody"])


def test_traffic_is_the_state_and_does_not_grow_with_the_sequence(found, worker):
    B, H, L, P, V = (worker[letter] for letter in "BHLPV")
    state, agreement, sharpness = 8 * B * H * L * 2**P * (V + 1), 8 * (3 + len(parallel.AGREED)), 8
    for W, j in itertools.product(WORLDS, DOUBLINGS):
        for rank in found[name("traffic", W, j)]:
            assert rank["sent"] == [agreement, state, state, sharpness]
    # 37 = 32 + 4 + 1 chunks are three blocks; 27 from chunk 37 on are 1 + 2 + 8 + 16; what all send is as long as that
    for rank in found["traffic, ragged"]:
        assert rank["sent"][1] == max(len(parallel._roots(c, set())) for c in RAGGED) * state


RAGGED = [range(37), range(37, 64), range(64, 109), range(109, 112)]


def test_blocks_are_the_largest_aligned_ones_and_few():
    assert parallel._roots(range(37), set()) == [(5, 0), (2, 8), (0, 36)]
    assert parallel._roots(range(37, 64), set()) == [(0, 37), (1, 19), (3, 5), (4, 3)]
    assert parallel._roots(range(3, 9), {3, 8}) == [(-1, 3), (2, 1), (-1, 8)]
    for start, stop in itertools.combinations(range(70), 2):
        blocks = parallel._roots(range(start, stop), set())
        covered = [c for level, i in blocks for c in range(i << level, i + 1 << level)]
        assert covered == list(range(start, stop))
        assert len(blocks) <= 2 * (stop - start).bit_length()


class Meeting:
    """A gather among threads, so that sixteen ranks need one process."""

    def __init__(self, world):
        self.rows, self.barrier = [None] * world, threading.Barrier(world, timeout=60)

    def gather(self, x, rank):
        self.rows[rank] = x
        self.barrier.wait()
        return torch.stack(self.rows)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_the_tree_has_the_same_bits_for_any_cut_on_the_grid(monkeypatch, causal, backward):
    monkeypatch.setattr(parallel, "_gather", lambda x, group, world: group[0].gather(x, group[1]) if group else x[None])
    chunks = 45
    parts = torch.from_numpy(np.random.default_rng(0).normal(size=(chunks, 3)))
    first = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    one, last = parallel._sums(parts, first, ([range(chunks)], 0, None, 1), causal=causal, backward=backward)
    running = first + (parts.flip(0) if backward else parts).cumsum(0)
    want = torch.cat([first[None], running[:-1]]) if causal else running[-1:].expand(chunks, -1)
    torch.testing.assert_close(one, want.flip(0) if backward else want, rtol=0, atol=1e-13)
    for world in (2, 3, 4, 16):
        cuts = [0, *sorted(np.random.default_rng(world).integers(0, chunks + 1, world - 1).tolist()), chunks]
        ranks = [range(a, b) if a < b else range(0) for a, b in itertools.pairwise(cuts)]
        meeting, got = Meeting(world), [None] * world

        def rank_of(r, ranks=ranks, meeting=meeting, got=got, world=world):
            own = parts[ranks[r].start : ranks[r].stop] if ranks[r] else torch.zeros_like(parts[:1])
            got[r] = parallel._sums(own, first, (ranks, r, (meeting, r), world), causal=causal, backward=backward)

        threads = [threading.Thread(target=rank_of, args=(r,)) for r in range(world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert torch.equal(torch.cat([read for held, (read, _) in zip(ranks, got, strict=True) if held]), one)
        assert all(torch.equal(after, last) for _, after in got)


@pytest.mark.parametrize("change", [{"impl": "numba"}, {"chunk": 0}, {"causal": 1}, {"sharpness": 0.0}])
def test_bad_arguments_are_named_where_a_process_is_alone(worker, change):
    q, k, v, _ = worker["arrays"](4, "float32")
    with pytest.raises(ValueError, match=next(iter(change))):
        parallel.attention(q, k, v, draw_planes(3, 2, 5), **{"sharpness": 1.0} | change)


def test_what_the_implementation_refuses_is_refused_before_any_exchange(worker):
    q, k, v, _ = worker["arrays"](4, "float32")
    with pytest.raises(backend.Unsupported, match="covers 2"):
        parallel.attention(q, k, v, draw_planes(3, 2, 5), 30.0)
    with pytest.raises(backend.Unsupported, match="no gradient for planes"):
        parallel.attention(q, k, v, torch.from_numpy(draw_planes(3, 2, 5)).requires_grad_())
    with pytest.raises(ValueError, match="k must have as many positions as q, 4, got 3"):
        parallel.attention(q, k[:, :3], v[:, :3], draw_planes(3, 2, 5))


@pytest.mark.slow
def test_the_script_of_the_docs_page_runs_alone_and_under_torchrun_with_the_same_bits(tmp_path):
    page = (ROOT / "docs" / "papers" / "race-sequence-parallel.md").read_text(encoding="utf-8")
    script = tmp_path / "long_sequence.py"
    script.write_text(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1])
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    alone, together = launch(sys.executable, script), launch(sys.executable, *torchrun, script)
    assert (alone.returncode, together.returncode) == (0, 0), alone.stderr + together.stderr
    assert re.search("rank 0 of 1: 32,768 tokens", alone.stdout)
    assert re.search("rank 1 of 2: 16,384 tokens", together.stdout)
    # A number's own characters alone: where output is not buffered, a rank's line can begin before another's has ended.
    gradients = re.findall(r"sharpness = (-?0x[0-9a-f.]+p[+-][0-9]+)", alone.stdout + together.stdout)
    assert len(gradients) == 3
    assert len(set(gradients)) == 1
