"""The public door of residual linear attention: check the arguments, pick the implementation, run it."""

from typing import Any

from attnlab import backend
from attnlab.arrays import Array, Float
from attnlab.residual.params import State, check_arguments

__all__ = ["attention"]


def attention(
    q: Float[Array, "B T H K"],
    k: Float[Array, "B T H K"],
    v: Float[Array, "B T H V"],
    retention: Float[Array, "B T H"] | None = None,
    write: Float[Array, "B T H"] | None = None,
    correction: Float[Array, "B T H"] | None = None,
    *,
    rule: str = "rdn",
    log_retention: Float[Array, "B T H"] | None = None,
    clip: float = 1.0,
    target: str = "clip",
    fitting: bool = True,
    read_gates: bool = True,
    normalize: bool = False,
    scale: float = 1.0,
    cu_seqlens: Any = None,
    state: State | None = None,
    return_state: bool = False,
    impl: str = "reference",
) -> Any:
    """Residual linear attention, or one of the recurrences it is compared with: o [B, T, H, V] in time linear in T.
    With `return_state`, (o, State(base, residual)), each [B, H, K, V] (residual None where the rule has none).

    `rule`: "rla", "rdn", or the baselines "linear", "retnet", "sgla", "deltanet", "gdn". Gates are [B, T, H], or [H]
    where fixed in time: `retention` (alpha, in [0, 1]; 0 forgets all that was before) or `log_retention` (<= 0, -inf
    allowed), exactly one of them; `write` (beta, in [0, 2]); `correction` (gamma, in [0, 2]), tied to `write` where it
    is not given. A gate that the rule does not have must be None. The gradient is of the one given.

    `scale` multiplies q and is 1.0, as in the paper: flash-linear-attention divides by sqrt(K) unless told otherwise.
    `normalize` divides q and k by their lengths first, which the paper's layer does (p. 5); without it a delta rule
    grows wherever retention |1 - write |k|^2| exceeds 1. `clip` bounds the errors that are remembered (inf allowed; the
    paper's is 1). `target="log_cosh"` remembers tanh of them (App. B, p. 14). `fitting=False` remembers the newest
    error alone (Table 4); `read_gates=False` reads o = S q + R q (Table 5). These four concern "rla" and "rdn" only.

    `cu_seqlens` [N + 1] cuts one row (B = 1) into N sequences, empty ones allowed; states are then [N, H, K, V].
    `state` is what earlier tokens left; one run equals any segmentation of it. `impl` is one of "reference", "numba",
    "torch", "triton".

    Raises ValueError or TypeError naming the argument; backend.Unavailable where `impl` cannot run here;
    backend.Unsupported where it runs but does not cover these arguments. No implementation stands in for another.
    Source: arXiv:2509.25223v1, pp. 4-5 and Listing 1 (p. 15).
    """
    options: dict[str, Any] = {
        "rule": rule,
        "log_retention": log_retention,
        "clip": clip,
        "target": target,
        "fitting": fitting,
        "read_gates": read_gates,
        "normalize": normalize,
        "scale": scale,
        "cu_seqlens": cu_seqlens,
        "state": state,
        "return_state": return_state,
    }
    check_arguments(q, k, v, retention, write, correction, **options)
    room = backend.load(impl, "residual")
    gates: dict[str, Any] = {
        "retention": retention,
        "log_retention": log_retention,
        "write": write,
        "correction": correction,
    }
    memories: dict[str, Any] = {} if state is None else {"state.base": state[0], "state.residual": state[1]}
    backend.refuse_gradients(impl, q=q, k=k, v=v, **gates, **memories)
    return room.attention(q, k, v, retention, write, correction, **options)
