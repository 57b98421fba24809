"""Ranks for test_sequence_parallel: `python sequence_parallel_worker.py FOLDER WORLD` forks WORLD processes that run
the cases of FOLDER/cases.json together, and leaves what each rank saw in FOLDER/RANK.pt.

`run` is one rank's part of a case; the tests call it too, for all tokens on one rank and no process group at all.
"""

import importlib
import json
import multiprocessing
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from attnlab import draws
from attnlab.race import draw_planes
from attnlab.race import sequence_parallel as parallel

B, H, K, V, L, P = 2, 3, 5, 4, 3, 2
CHUNK = 16
PATIENCE = timedelta(seconds=60)  # then a rank that waits for another one fails


def arrays(tokens, dtype):
    """q, k, v and what the output is weighed with, of the whole sequence."""
    widths = (K, K, V, V)
    drawn = [draws.normal(8, i, B * tokens, H * n).reshape(B, tokens, H, n) for i, n in enumerate(widths)]
    return [torch.from_numpy(x).to(getattr(torch, dtype)) for x in drawn]


def earlier():
    """Mass and content of a sequence that went before."""
    drawn = torch.from_numpy(draws.normal(8, 9, B * H * L * 2**P, 1 + V)).view(B, H, L, 2**P, 1 + V)
    return drawn[..., 0].abs() + 1, drawn[..., 1:].clone()


def run(case, rank=0, group=None):
    """This rank's output, gradients, error and bytes sent, in a dictionary."""
    start, own = sum(case["lengths"][:rank]), case["lengths"][rank]
    q, k, v, target = (x[:, start : start + own].clone() for x in arrays(sum(case["lengths"]), case["dtype"]))
    planes, beta = torch.from_numpy(draw_planes(L, P, K)), torch.tensor(case.get("sharpness", 1.5)).to(q.dtype)
    options = {"causal": case["causal"], "chunk": CHUNK, **case.get("options", {})}
    state = earlier() if case.get("state") else None
    leaves = [q, k, v, beta, *(state or ())]
    wanting = dict(enumerate(case.get("wanting", ()))).get(rank, range(len(leaves)))
    for i in wanting:
        leaves[i].requires_grad_()

    odd = case.get("odd") if rank in case.get("odd_ranks", [1]) else None
    if odd == "planes":
        planes[0, 0, 0] += 1e-15  # one bit
    elif odd == "sharpness":
        beta = beta.detach() * 2
    elif odd == "heads":
        k = k[:, :, :-1]
    elif odd == "nan":
        k = k.detach().clone().index_fill_(1, torch.tensor([0]), float("nan"))
    elif odd == "state":
        state = 5
    elif odd == "list":
        v = v.tolist()
    elif odd:
        options |= {"causal": {"causal": not case["causal"]}, "chunk": {"chunk": 2 * CHUNK}}[odd]

    sent = []

    def counted(rows, mine, group=None):
        sent.append(mine.numel() * mine.element_size())
        ALL_GATHER(rows, mine, group=group)

    dist.all_gather = counted
    parallel._sums = MUTANTS.get(case.get("mutant"), SUMS)
    found = {"sent": sent}
    try:
        given = parallel.attention(q, k, v, planes, beta, state=state, group=group, **options)
        out, *last = (given[0], *given[1][:2]) if options.get("return_state") else (given,)
        loss = (out * target).sum() + sum((rank + 1) * x.square().sum() for x in last)
        if case.get("twice"):
            (dq,) = torch.autograd.grad(loss, q, create_graph=True)
            dq.square().sum().backward()
        else:
            loss.backward()
        found |= {"out": out.detach(), "last": [x.detach() for x in last], "gradients": [x.grad for x in leaves]}
    except (TypeError, ValueError, RuntimeError) as error:
        if not case.get("refused"):
            raise  # this rank ends, and the others hear of it
        found["error"] = f"{type(error).__name__}: {error}"
    finally:
        dist.all_gather = ALL_GATHER
        parallel._sums = SUMS
    return found


# -- what the tests must be able to see --

ALL_GATHER, SUMS = dist.all_gather, parallel._sums


def reduced(parts, first, where, *, causal, backward=False):
    """The sum over ranks in the backend's order."""
    total = parts.sum(0)
    if where[3] > 1:
        dist.all_reduce(total, group=where[2])
    return (first + total).expand_as(parts), first + total


def inclusive(parts, first, where, *, causal, backward=False):
    """The chunk itself stands in the state before it."""
    read, last = SUMS(parts, first, where, causal=causal, backward=backward)
    return (read + parts, last) if causal and not backward else (read, last)


def forward_again(parts, first, where, *, causal, backward=False):
    """Gradients flow the way that states did."""
    return SUMS(parts, first, where, causal=causal)


MUTANTS = {"all_reduce": reduced, "inclusive": inclusive, "forward_again": forward_again}


def rank_of(folder, rank, world):
    """One process: every case that it has a part in."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=PATIENCE)
    try:
        cases = json.loads((folder / "cases.json").read_text())
        groups = {
            ranks: dist.new_group(ranks, timeout=PATIENCE) for ranks in sorted({tuple(case["ranks"]) for case in cases})
        }
        found = {
            case["name"]: run(case, case["ranks"].index(rank), groups[tuple(case["ranks"])])
            for case in cases
            if rank in case["ranks"]
        }
        torch.save(found, folder / f"{rank}.pt")
        dist.barrier()
    finally:
        dist.destroy_process_group()


def main(folder, world):
    """Start the ranks; where one fails, end the others and fail."""
    importlib.import_module("attnlab.race.torch_impl")  # once, before the processes part
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=rank_of, args=(folder, rank, world)) for rank in range(world)]
    for process in ranks:
        process.start()
    while any(process.is_alive() for process in ranks) and not any(process.exitcode for process in ranks):
        time.sleep(0.05)
    for process in ranks:
        process.terminate()
        process.join()
    sys.exit(any(process.exitcode for process in ranks))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
