"""Triton kernels for the mechanisms of attnlab: tensors and numbers in, tensors out, nothing of attnlab imported.

One file a mechanism, named as in attnlab; kernels/README.md says which have landed and what was measured.
"""

__version__ = "0.1.0"
