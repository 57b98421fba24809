"""What a user would take instead of RACE, each as its authors or torch's own documentation would write it on a CPU.

Axes [B, H, T, K], contiguous, which all of them like best. float32 in, float32 out, no gradients.
"""

import importlib.metadata
import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import elu, scaled_dot_product_attention

__all__ = ["NO_PERFORMER", "algorithm_1", "linear", "linear_causal", "performer", "softmax"]

CHUNK = 128  # tokens of linear_causal: as many as the width, so that a chunk and the state cost alike
NO_PERFORMER = "performer-pytorch is not installed; get it with: pip install performer-pytorch"

softmax = scaled_dot_product_attention


def algorithm_1(q, k, v, planes, sharpness):
    """Algorithm 1 (arXiv:2510.04008v5, p. 5) as one would first write it: features in full, softmax over corners."""
    P = planes.shape[1]
    corners = (2 * (torch.arange(2**P)[:, None] >> torch.arange(P) & 1) - 1).to(q)

    def features(x):
        u = torch.tanh(torch.einsum("bhtk,lpk->bhtlp", x, planes))
        return torch.softmax(sharpness * u @ corners.T, dim=-1).flatten(-2)

    phi_q, phi_k = features(q), features(k)
    return phi_q @ (phi_k.mT @ v) / (phi_q @ phi_k.sum(-2)[..., None])


def linear(q, k, v):
    """Linear attention with features elu(x) + 1 (Katharopoulos et al., arXiv:2006.16236, Sec. 3.2)."""
    phi_q, phi_k = elu(q) + 1, elu(k) + 1
    content = torch.einsum("bhsk,bhsv->bhkv", phi_k, v)
    mass = torch.einsum("bhtk,bhk->bht", phi_q, phi_k.sum(-2))
    return torch.einsum("bhtk,bhkv->bhtv", phi_q, content) / mass[..., None]


def linear_causal(q, k, v):
    """The same, causal (Sec. 3.3): a state from chunk to chunk, a masked block inside."""
    phi_q, phi_k, out = elu(q) + 1, elu(k) + 1, torch.empty_like(v)
    content, mass = v.new_zeros(*v.shape[:2], k.shape[-1], v.shape[-1]), v.new_zeros(*v.shape[:2], k.shape[-1], 1)
    for q_t, k_t, v_t, out_t in zip(*(x.split(CHUNK, dim=-2) for x in (phi_q, phi_k, v, out)), strict=True):
        block = (q_t @ k_t.mT).tril()
        out_t.copy_((q_t @ content + block @ v_t) / (q_t @ mass + block.sum(-1, keepdim=True)))
        content += k_t.mT @ v_t
        mass += k_t.sum(-2)[..., None]
    return out


def performer(width: int) -> Callable[..., Any] | None:
    """performer-pytorch's FastAttention with its default number of features, non-causal; None where it is not there.

    (Its causal form needs a CUDA extension, or walks over chunks in Python.)
    """
    if importlib.util.find_spec("performer_pytorch") is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it imports
        from performer_pytorch import FastAttention
    torch.manual_seed(0)
    return torch.no_grad()(FastAttention(dim_heads=width, causal=False))
