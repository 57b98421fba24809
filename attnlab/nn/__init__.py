"""Attention layers for training: the operators of this package with their projections, gates and output, as torch
modules that know how to decode token by token.

Where what stands:
    residual memory and its baselines          memory.py: MemoryAttention, ResidualLinearAttention, ResidualDeltaNet
    RACE                                       race.py: RACEAttention
    softmax, for comparison                    softmax.py: SoftmaxAttention
    what a cache is made of                    lrkv.py: LRKVAttention, GroupedAttention (MHA, GQA, MQA), LatentAttention
    what they share; a layer on disk           layer.py: save, load
    an experiment with all of them             associative_recall.py (python -m attnlab.nn.associative_recall)
    what a cache is spent on, trained          cache_budget.py (python -m attnlab.nn.cache_budget)
    HashAttention in transformers              hf.py: register, configure
    what sparse decoding does to a real model  sparse_decode.py (python -m attnlab.nn.sparse_decode)

All take x [B, T, width] and give back [B, T, width]; docs/nn.md shows how one takes the place of a block's attention.
Importing this package needs torch, which `import attnlab` alone does not.
"""

from attnlab.backend import found

if not found("torch"):
    raise ImportError("attnlab.nn needs the package torch, which is not installed; get it with: pip install torch")

from attnlab.nn.layer import load, save
from attnlab.nn.lrkv import GroupedAttention, LatentAttention, LRKVAttention
from attnlab.nn.memory import MemoryAttention, ResidualDeltaNet, ResidualLinearAttention
from attnlab.nn.race import RACEAttention
from attnlab.nn.softmax import SoftmaxAttention

__all__ = [
    "GroupedAttention",
    "LRKVAttention",
    "LatentAttention",
    "MemoryAttention",
    "RACEAttention",
    "ResidualDeltaNet",
    "ResidualLinearAttention",
    "SoftmaxAttention",
    "load",
    "save",
]
