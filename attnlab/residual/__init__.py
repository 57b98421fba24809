"""Residual linear attention: a second recurrent memory of what the first one got wrong.

Paper: Enhancing Linear Attention with Residual Learning, arXiv:2509.25223v1 (24 September 2025). Not to be confused
with the residual linear attention of RAttention (a linear branch beside a window), which shares only the name.

Where what stands:
    RLA, RDN, pp. 4-5; Listing 1, p. 15    reference.py (token by token, with the baselines and every ablation);
                                           chunked.py (a chunk at a time, and the gradient, as formulas to read)
    the same, fast                         numba_impl.py, torch_impl.py (with gradients), triton_impl.py; cpu_kernels.py
                                           is what the first two run on a CPU
    what is nearly RDN, and is not         near_misses.py
    the recurrence in exact fractions      rational.py
    capacity of a memory                   theory.py, capacity.py (measured)
    statements, all of them checked        claims.py
    dials, gates, rules                    params.py
    the live panel                         view.py (its numbers), mathematics.js, panel.js, widget.py
"""

from attnlab.residual.api import attention
from attnlab.residual.params import RULES, ResidualParams, State, retnet_retention

__all__ = ["RULES", "ResidualParams", "State", "attention", "retnet_retention"]
