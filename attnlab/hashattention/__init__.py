"""HashAttention: learned bits say which keys a query reads.

Paper: HashAttention: Semantic Sparsity for Faster Inference, arXiv:2412.14468v2 (3 June 2025; ICML 2025).

Where what stands:
    codes, Hamming score, set, attention (Sec. 4, pp. 4-5)    reference.py
    the same, fast                                            numba_impl.py, torch_impl.py (with gradients),
                                                              triton_impl.py
    who else could choose the tokens (Sec. 2.2, App. A)       selectors.py, and how well: the same file
    codes that grow with the cache                            cache.py
    maps, and how they learn (Sec. 4.2, p. 5)                 params.py, training.py
    statements, all of them checked                           claims.py; rational.py finds counterexamples
    the live panel                                            view.py (its numbers), mathematics.js, panel.js, widget.py
"""

from attnlab.hashattention.api import attention, encode, select
from attnlab.hashattention.params import HashParams, Maps, first_bits, random_maps

__all__ = ["HashParams", "Maps", "attention", "encode", "first_bits", "random_maps", "select"]
