"""What the rooms that compute with tensors share unchanged: taking arguments in, refusing, giving results back.

Nothing here is part of the operator. `impl` is the name of the room that asks, for the sentence of a refusal.
"""

import numpy as np
import torch

from attnlab.backend import Unsupported
from attnlab.race.params import LARGEST_LOG_SCALE, State, plain_state


def all_numpy(*arrays):
    """Whether no tensor is among the arguments: the results then go back as NumPy arrays."""
    return not any(isinstance(x, torch.Tensor) for x in arrays)


def as_tensor(x):
    """A tensor as it is; NumPy arrays in a form that torch takes: native byte order, writable, no negative strides."""
    if isinstance(x, torch.Tensor):
        return x
    x = np.asarray(x)
    kind = np.dtype(x.dtype.newbyteorder("=")) if x.dtype.itemsize <= 8 else np.float64  # long double: no such tensor
    return torch.from_numpy(np.array(x, dtype=kind, order="C"))


def refuse(impl, variant, planes):
    """Raise Unsupported for variants other than "algorithm", and for planes that want a gradient."""
    if variant != "algorithm":
        raise Unsupported(
            f"the {impl} implementation covers variant='algorithm', not {variant!r}; the reference has it."
        )
    if getattr(planes, "requires_grad", False):
        raise Unsupported(f"the {impl} implementation has no gradient for planes: they are random and fixed (p. 5).")


def in_range(impl, beta, planes, largest):
    """beta as it is; raises Unsupported where 2 beta P is beyond `largest`, and a product of features may underflow."""
    reached = 2 * planes.shape[-2] * float(beta.detach().max()) if beta.numel() else 0.0
    if not reached <= largest:
        raise Unsupported(
            f"the {impl} implementation covers 2 * sharpness * planes <= {largest:g} in {beta.dtype}, got {reached:g}."
        )
    return beta


def unit(x):
    """x over its length; scaled by the largest entry first, so that no square over- or underflows."""
    if not x.shape[-1]:
        return x
    largest = x.detach().abs().amax(-1, keepdim=True)
    x = x / torch.where(largest > 0, largest, 1)
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / torch.where(length > 0, length, 1)


def carried(state, shape, V, device):
    """Mass and content of an earlier call in plain units, float64; zeros if there was none."""
    if state is None:
        mass = torch.zeros(shape, device=device, dtype=torch.float64)
        return mass, torch.zeros(*shape, V, device=device, dtype=torch.float64)
    if all_numpy(*state):
        state = plain_state(state)
    mass, content = (as_tensor(x).to(device, torch.float64) for x in state[:2])
    if len(state) == 3 and state[2] is not None:
        log_scale = as_tensor(state[2]).to(device, torch.float64)
        if not bool((log_scale <= LARGEST_LOG_SCALE).all()):
            raise Unsupported(
                f"a fast path keeps states in plain units; exp({log_scale.max():g}) is too large for them."
            )
        mass, content = log_scale.exp() * mass, log_scale.exp()[..., None] * content
    return mass.reshape(shape), content.reshape(*shape, V)


def given_back(out, mass, content, *, numpy, return_state):
    """What a room's `attention` returns: the output, or (output, State); as NumPy arrays where `numpy`."""
    if numpy:
        out, mass, content = (x.detach().cpu().numpy() for x in (out, mass, content))
    return (out, State(mass, content)) if return_state else out
