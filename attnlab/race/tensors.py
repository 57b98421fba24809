"""What RACE's rooms that compute with tensors share unchanged: refusing, states in, results back.

Nothing here is part of the operator. `impl` is the name of the room that asks, for the sentence of a refusal.
"""

import torch

from attnlab.backend import Unsupported
from attnlab.race.params import LARGEST_LOG_SCALE, State, plain_state
from attnlab.tensors import all_numpy, as_tensor


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
