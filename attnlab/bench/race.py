"""RACE on this CPU beside its peers: the readable Numba version, the torch version, Algorithm 1 written plainly in
torch, and softmax attention.

One thread, float32, 4 heads of width 128, Gaussian input. Values are nanoseconds per token and head, medians over
rounds in which all tasks take turns; ratios are medians of the ratios within a round. Softmax attention grows with the
square of the length, so its row is at 4,096 tokens.
"""

from functools import partial
from typing import Any

import numpy as np

from attnlab import bench, draws
from attnlab.race import draw_planes

NEEDS = ("numba", "threadpoolctl", "torch")
H, K = 4, 128
T, T_SOFTMAX = 16_384, 4_096
SHARPNESS = 2.0
BUDGETS = ((2, 2), (4, 4))  # (planes, tables), as in the paper's Tables 1-4


def about() -> dict[str, Any]:
    """What else was measured on."""
    return {"threads": 1}


def rows() -> list[dict[str, Any]]:
    """Measure everything; about a minute."""
    import torch

    from attnlab.race import numba_impl, torch_impl

    bench.single_threaded()
    q, k, v = (draws.normal(7, stream, T, H * K).reshape(1, T, H, K).astype(np.float32) for stream in range(3))
    tensors = [torch.from_numpy(x) for x in (q, k, v)]
    heads_first = [x.transpose(1, 2).contiguous() for x in tensors]
    short = [x[:, :, :T_SOFTMAX].contiguous() for x in heads_first]
    square = torch.randn(1024, 1024)

    softmax = torch.nn.functional.scaled_dot_product_attention

    def plain(planes):
        q, k, v = heads_first
        return algorithm_1(q, k, v, planes, SHARPNESS)

    tasks: dict[str, Any] = {
        "softmax.noncausal": lambda: softmax(short[0], short[1], short[2]),
        "softmax.causal": lambda: softmax(short[0], short[1], short[2], is_causal=True),
        "sgemm": lambda: square @ square,
    }
    for P, L in BUDGETS:
        planes = draw_planes(L, P, K).astype(np.float32)
        for causal in (False, True):
            for room, arrays in ((numba_impl, (q, k, v, planes)), (torch_impl, (*tensors, torch.from_numpy(planes)))):
                name = f"{room.__name__.split('.')[-1].removesuffix('_impl')}.{_mask(causal)}.p{P}l{L}"
                tasks[name] = partial(room.attention, *arrays, SHARPNESS, causal=causal)
        tasks[f"plain.noncausal.p{P}l{L}"] = partial(plain, torch.from_numpy(planes))
    seconds = bench.measure(tasks, rounds=5)

    result = []
    for name, samples in seconds.items():
        if name == "sgemm":
            rates = [2 * 1024**3 / s / 1e9 for s in samples]
            result.append(
                bench.row("machine.sgemm", rates, "GF/s", better="higher", note="1024 x 1024 float32 product in torch")
            )
            continue
        tokens = T_SOFTMAX if name.startswith("softmax") else T
        per_token = [1e9 * s / tokens / H for s in samples]
        result.append(
            bench.row(f"race.{name}.forward", per_token, "ns/token-head", better="lower", note=f"{tokens:,} tokens")
        )
    for P, L in BUDGETS:
        ours, theirs = seconds[f"numba.noncausal.p{P}l{L}"], seconds[f"plain.noncausal.p{P}l{L}"]
        ratio = [b / a for a, b in zip(ours, theirs, strict=True)]
        note = "time of Algorithm 1 written plainly in torch over Numba's; below 1 torch is faster"
        result.append(bench.row(f"race.plain_torch_over_numba.p{P}l{L}", ratio, "x", better="higher", note=note))
    return result


def algorithm_1(q, k, v, planes, sharpness):
    """The peer: Algorithm 1 (p. 5) as one would first write it in torch, features in full, softmax over the corners;
    [B, H, T, K] axes.
    """
    import torch

    P = planes.shape[1]
    corners = (2 * (torch.arange(2**P)[:, None] >> torch.arange(P) & 1) - 1).to(q)

    def features(x):
        u = torch.tanh(torch.einsum("bhtk,lpk->bhtlp", x, planes))
        return torch.softmax(sharpness * u @ corners.T, dim=-1).flatten(-2)

    phi_q, phi_k = features(q), features(k)
    return phi_q @ (phi_k.mT @ v) / (phi_q @ phi_k.sum(-2)[..., None])


def _mask(causal: bool) -> str:
    return "causal" if causal else "noncausal"
