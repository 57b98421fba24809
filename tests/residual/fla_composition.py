"""Residual memory composed of flash-linear-attention's public operations: another hand's kernels, forward and backward.

Its operations read a memory after the token has been written; a shift of the queries by one token reads it before. One
call recalls the keys, one reads the queries, one more with the residuals as values is the second memory; autograd runs
through all three. Run as a script with TRITON_INTERPRET=1: cases in, answers out, both .npz files (`answers`).
"""

import builtins
import importlib
import sys
from pathlib import Path

import numpy as np
import torch


def let_the_interpreter_run_it() -> None:
    """Two things that fla-core 0.6.0 needs where Triton interprets: no kernel is timed to choose among settings, and a
    loop over `range` gives numbers of Triton's, which have `.to` as in the compiled kernel.
    """
    import triton.language as tl
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.interpreter import TensorHandle

    tuned = Autotuner.run

    def first_setting(self, *args, **kwargs):
        self.configs = self.configs[:1]
        return tuned(self, *args, **kwargs)

    def counted(*bounds):
        for i in builtins.range(*bounds):
            yield tl.core.tensor(TensorHandle(np.array([i], np.int32), tl.int32), tl.int32)

    Autotuner.run = first_setting
    for name in ("chunk_h", "chunk_delta_h", "fused_chunk"):
        importlib.import_module(f"fla.ops.common.{name}").range = counted


def memory(delta, queries, keys, values, log_retention, rate, initial):
    """(what the memory answers to each query after each token, the memory at the end)."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from fla.ops.simple_gla import chunk_simple_gla

    options = {"scale": 1.0, "initial_state": initial, "output_final_state": True}
    if delta:
        return chunk_gated_delta_rule(queries, keys, values, log_retention, rate, **options)
    return chunk_simple_gla(queries, keys, rate[..., None] * values, log_retention, **options)


def before(delta, x, keys, values, log_retention, rate, initial):
    """(x_t S_{t-1} at each token, S at the end)."""
    ahead = torch.cat([x[:, 1:], torch.zeros_like(x[:, :1])], dim=1)
    after, last = memory(delta, ahead, keys, values, log_retention, rate, initial)
    first = torch.einsum("bhk,bhkv->bhv", x[:, 0], initial)
    return torch.cat([first[:, None], after[:, :-1]], dim=1), last


def compose(x, rule, clip):
    """(o, S_T, R_T), or (o, S_T) of a rule with one memory."""
    delta = rule in ("rdn", "gdn")
    first = (x["k"], x["v"], x["log_retention"], x["write"], x["base"])
    if rule in ("gdn", "sgla"):
        return memory(delta, x["q"], *first)
    recalled, base = before(delta, x["k"], *first)
    read, _ = before(delta, x["q"], *first)
    r = torch.clamp(x["v"] - recalled, -clip, clip)
    second = (x["k"], r, x["log_retention"], x["correction"], x["residual"])
    corrected, residual = memory(delta, x["q"], *second)
    alpha, gamma = x["log_retention"].exp()[..., None], x["correction"][..., None]
    return alpha * read + gamma * corrected, base, residual


def answers(case: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Results and gradients of one case: float32 arguments by name, cotangents as d_out, d_base, d_residual."""
    rule, clip = str(case.pop("rule")), float(case.pop("clip"))
    sent = [torch.tensor(case.pop(name)) for name in ("d_out", "d_base", "d_residual") if name in case]
    x = {name: torch.tensor(array, requires_grad=True) for name, array in case.items()}
    found = compose(x, rule, clip)
    loss = sum((y * d).sum() for y, d in zip(found, sent, strict=True))
    gradients = torch.autograd.grad(loss, list(x.values()))
    results = dict(zip(("out", "base", "residual"), found, strict=False))
    named = results | {f"gradient of {name}": d for name, d in zip(x, gradients, strict=True)}
    return {name: y.detach().numpy() for name, y in named.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    let_the_interpreter_run_it()
    for path in map(Path, sys.argv[1:]):
        with np.load(path) as case:
            given = dict(case)
        np.savez(path.with_name(path.name.replace("case", "answer")), **answers(given))
