"""Softmax attention, rotary positions and RMS norm: the yardstick that every mechanism is held against.

Paper: Attention Is All You Need, arXiv:1706.03762v7 (2 August 2023).

Where what stands:
    Eq. 1, p. 4: softmax attention    reference.py, torch_impl.py (fused, with gradients)
    RoPE, RMS norm, unit vectors      reference.py
    dials, toy tokens                 params.py
    the live panel                    view.py (its numbers), mathematics.js, panel.js, widget.py

Only the reference is imported here: `attnlab.inputs`, which the other rooms stand on, needs it.
"""

from attnlab.dense.reference import attention, rms_norm, rope, softmax_attention, softmax_weights, unit, visible

__all__ = ["attention", "rms_norm", "rope", "softmax_attention", "softmax_weights", "unit", "visible"]
