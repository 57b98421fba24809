"""RACE attention: softmax-free attention in linear time through soft hash buckets.

Paper: RACE Attention: A Strictly Linear-Time Attention Layer for Training on Outrageously Large Contexts,
arXiv:2510.04008v5 (18 April 2026).

Where what stands:
    Algorithms 1 and 2, pp. 5 and 27    reference.py, numba_impl.py (fast, readable), torch_impl.py (with gradients)
    Eqs. 3-4, p. 6: angular attention   reference.angular_attention
    Theorem 2, p. 8; Lemma 10, p. 24    theory.py (exact bias and variance, failure regions), claims.py (all statements)
    dials, planes, toy tokens           params.py
    the live panel                      view.py (its numbers), panel.js, widget.py
"""

from attnlab.race.api import attention
from attnlab.race.params import RaceParams, draw_planes

__all__ = ["RaceParams", "attention", "draw_planes"]
