"""Low-rank key-value attention: heads share keys and values, and each adds a few latents of its own.

Paper: Low-Rank Key Value Attention, arXiv:2601.11471v3 (7 April 2026).

Where what stands:
    factored and expanded attention (Eqs. 4-7, pp. 3-4)       reference.py
    the same, fast                                            numba_impl.py, torch_impl.py (with gradients),
                                                              triton_impl.py
    what may turn with position, and what may not (p. 4)      rotary.py
    a cache that grows, is cut and evicts                     cache.py
    MHA, GQA, MQA, MLA and LRKV from weights (pp. 1-4)        schemes.py
    elements and bytes of a cache, tables recomputed          accounting.py
    from another model's weights                              conversion.py
    head diversity (Sec. 4.3, App. C.1)                       diversity.py
    statements, all of them checked                           claims.py; rational.py has the exact counterexamples
    the live panel                                            view.py (its numbers), mathematics.js, view3d.js (its
                                                              depth), panel.js, widget.py
"""

from attnlab.lrkv.api import attention
from attnlab.lrkv.params import STILL, Rope, rope

__all__ = ["STILL", "Rope", "attention", "rope"]
