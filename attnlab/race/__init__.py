"""RACE attention: softmax-free attention in linear time through soft hash buckets.

Paper: RACE Attention: A Strictly Linear-Time Attention Layer for Training on Outrageously Large Contexts,
arXiv:2510.04008v5 (18 April 2026).

Where what stands:
    Algorithms 1 and 2, pp. 5 and 27    reference.py, numba_plain.py (loops to read), numba_impl.py, torch_impl.py (with
                                        gradients), triton_impl.py; cpu_kernels.py is what the first two run on a CPU
    more tokens than memory holds       streaming.py, sequence_parallel.py (several machines)
    the operators it is compared with   comparisons.py
    Eqs. 3-4, p. 6: angular attention   reference.angular_attention
    Theorem 2, p. 8; Lemma 10, p. 24    theory.py (exact bias and variance, failure regions), claims.py (all statements)
    dials, planes, toy tokens           params.py
    the live panel                      view.py (its numbers), panel.js, widget.py
"""

from attnlab.race.api import attention
from attnlab.race.params import RaceParams, draw_planes

__all__ = ["RaceParams", "attention", "draw_planes"]
