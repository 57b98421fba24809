"""Residual linear attention a chunk at a time, in NumPy float64: the formulas that the fast rooms and the kernels
follow, forward and backward, in the order in which they are computed. To be read, not to be fast.

One head, one chunk of n tokens, row layout: Q, K [n, K], V [n, V]; gates [n, 1], which scale rows; S and R [K, V] are
the memories before the chunk, S1 and R1 those after it.
    P = k_i S_{i-1}     what S recalls before each token        RP    the same of R
    U                   what each token adds to S: k_i^T u_i    W     the same of R
    D_ij                decay from token j to i: alpha_{j+1} ... alpha_i; the diagonal is 1
    E_ij                the same without alpha_i, for a read before token i's decay; 0 on the diagonal
    a, before, h        decay from the chunk's start up to i with and without alpha_i, and from i to the chunk's end
The decays are products, never exponentials of sums: exact at alpha = 0. A rule with one memory is the second stage
alone, taught V in place of the residuals. The prefix d means the gradient of the loss by what follows it.
Source of the recurrence: arXiv:2509.25223v1, pp. 4-5. Its chunked form and the gradient are ours.
"""

from typing import Any, NamedTuple

import numpy as np

from attnlab.arrays import Array, Float, as_float, dial
from attnlab.backend import Unsupported
from attnlab.dense import unit
from attnlab.residual.params import RULES, Gradient, State, gate_gradients, gates, segments

__all__ = ["Gradient", "attention", "gradient"]

Rows = Float[Array, "n V"]
Column = Float[Array, "n 1"]
Memory = Float[Array, "K V"]
LONGEST = 1024  # tokens of a chunk: its tables hold the square of that


class Switches(NamedTuple):
    """What of a call is the same for all its chunks."""

    delta: bool
    residual: bool
    clip: float
    target: str
    fitting: bool
    read_gates: bool


class Chunk(NamedTuple):
    """The tokens of one chunk of one head."""

    Q: Float[Array, "n K"]
    K: Float[Array, "n K"]
    V: Rows
    alpha: Column
    beta: Column
    gamma: Column


class Decay(NamedTuple):
    """The decays within a chunk."""

    D: Float[Array, "n n"]
    E: Float[Array, "n n"]
    a: Column
    before: Column
    h: Column


class Kept(NamedTuple):
    """What the backward takes over from the forward of a chunk, so that it solves nothing again."""

    S: Memory
    R: Memory
    P: Rows
    U: Rows
    error: Rows
    Rc: Rows
    RP: Rows
    W: Rows


# -- pieces of both directions --


def decay(alpha: Column) -> Decay:
    """One cumulative product down the columns of a table that holds alpha_i below the diagonal and 1 elsewhere."""
    below = np.tri(len(alpha), k=-1, dtype=bool)
    D = np.tril(np.cumprod(np.where(below, alpha, 1.0), axis=0))
    E = np.vstack([np.zeros_like(D[:1]), D[:-1]])
    a = np.cumprod(alpha, axis=0)
    before = np.vstack([np.ones((1, 1)), a[:-1]])
    return Decay(D, E, a, before, h=D[-1:].T)


def residual_target(error: Rows, s: Switches) -> Rows:
    """What R is taught of an error."""
    return np.tanh(error) if s.target == "log_cosh" else np.clip(error, -s.clip, s.clip)


def residual_slope(error: Rows, Rc: Rows, s: Switches) -> Rows:
    """Its derivative; of the clip at |error| = c it is 1, as torch.clamp has it."""
    return 1.0 - Rc**2 if s.target == "log_cosh" else np.where(np.abs(error) <= s.clip, 1.0, 0.0)


def pseudo_values(P: Rows, X: Rows, Le: Array, alpha: Column, rate: Column, *, delta: bool) -> tuple[Rows, Rows]:
    """(P, U) from P = before (K M), the part of it that was there before the chunk, and the values X to be written.

    P += Le U; U = rate (X - alpha P) where `delta`, else rate X. Le is strictly lower: a forward substitution.
    """
    P, U = P.copy(), rate * X
    for i in range(len(U)):
        P[i] += Le[i, :i] @ U[:i]
        if delta:
            U[i] = rate[i] * (X[i] - alpha[i] * P[i])
    return P, U


def pseudo_values_back(dP: Rows, dU: Rows, Le: Array, alpha: Column, rate: Column, *, delta: bool) -> tuple[Rows, Rows]:
    """(dP, dU), complete, from what came from elsewhere. Backward substitution: dU_i needs dP_j of all later j."""
    dP, dU = dP.copy(), dU.copy()
    for i in reversed(range(len(dU))):
        dU[i] += Le[i + 1 :, i] @ dP[i + 1 :]
        if delta:
            dP[i] -= alpha[i] * rate[i] * dU[i]
    return dP, dU


def rowsum(x: Array) -> Column:
    """The sum of each row, as a column."""
    return x.sum(axis=1, keepdims=True)


# -- forward --


def chunk_forward(x: Chunk, S: Memory, R: Memory, s: Switches) -> tuple[Rows, Memory, Memory, Kept]:
    """(O, S1, R1, what the backward needs)."""
    Q, K, V, alpha, beta, gamma = x
    D, E, a, before, h = decay(alpha)
    G, A = K @ K.T, Q @ K.T
    Le, Ai = np.tril(G, -1) * E, A * D
    read, Aq = (a, np.tril(A, -1) * D) if s.read_gates else (before, A * E)

    P = U = error = np.zeros_like(V)
    Rc = V
    if s.residual:
        P, U = pseudo_values(before * (K @ S), V, Le, alpha, beta, delta=s.delta)
        error = V - P
        Rc = residual_target(error, s)
    if not s.fitting:  # R is k_t^T r_t alone: it holds nothing of before, and gamma does not scale what it is taught
        Y, R1 = rowsum(Q * K) * Rc, K[-1:].T @ Rc[-1:]
        RP, W = np.zeros_like(Rc), Rc
    else:
        RP, W = pseudo_values(before * (K @ R), Rc, Le, alpha, gamma, delta=s.delta)
        Y = a * (Q @ R) + Ai @ W
        R1 = a[-1] * R + (h * K).T @ W

    O = Y  # noqa: E741 - the paper's letter
    if s.residual:
        O = read * (Q @ S) + Aq @ U + (gamma * Y if s.read_gates else Y)  # noqa: E741
    S1 = a[-1] * S + (h * K).T @ U
    return O, S1, R1, Kept(S.copy(), R.copy(), P, U, error, Rc, RP, W)


# -- backward --


def chunk_backward(
    x: Chunk, kept: Kept, dO: Rows, dS1: Memory, dR1: Memory, s: Switches
) -> tuple[Chunk, Memory, Memory]:
    """(gradients of the tokens, dS, dR)."""
    Q, K, V, alpha, beta, gamma = x
    S, R, P, U, error, Rc, RP, W = kept
    D, E, a, before, h = decay(alpha)
    G, A = K @ K.T, Q @ K.T
    Le, Ai = np.tril(G, -1) * E, A * D
    read, Aq = (a, np.tril(A, -1) * D) if s.read_gates else (before, A * E)
    dalpha, dbeta, dgamma = np.zeros_like(alpha), np.zeros_like(beta), np.zeros_like(gamma)

    # the second memory
    gated = s.residual and s.read_gates
    dY = gamma * dO if gated else dO
    if gated:
        dgamma += rowsum(dO * (a * (Q @ R) + Ai @ W))
    dRP, dW = pseudo_values_back(np.zeros_like(RP), Ai.T @ dY + h * (K @ dR1), Le, alpha, gamma, delta=s.delta)
    dRc = gamma * dW
    if s.delta:
        dgamma += rowsum(dW * (Rc - alpha * RP))
        dalpha -= rowsum(dRc * RP)
    else:
        dgamma += rowsum(dW * Rc)

    # the first memory, and the error between them
    dP = dU = np.zeros_like(V)
    dV = dRc
    if s.residual:
        dError = dRc * residual_slope(error, Rc, s)
        dP, dU = pseudo_values_back(-dError, Aq.T @ dO + h * (K @ dS1), Le, alpha, beta, delta=s.delta)
        dV = dError + beta * dU
        dbeta += rowsum(dU * (V - alpha * P)) if s.delta else rowsum(dU * V)
        dalpha -= rowsum(beta * dU * P) if s.delta else 0.0

    # the tables
    dLe = np.tril(dP @ U.T + dRP @ W.T, -1)
    dAq = np.tril(dO @ U.T, -1)
    dAi = np.tril(dY @ W.T)
    dG = dLe * E
    dA = dAi * D + dAq * (D if s.read_gates else E)

    # keys, queries, and the memories before the chunk
    dQ = dA @ K + a * (dY @ R.T) + read * (dO @ S.T)
    dK = (dG + dG.T) @ K + dA.T @ Q + h * (U @ dS1.T + W @ dR1.T) + before * (dP @ S.T + dRP @ R.T)
    dS = a[-1] * dS1 + (before * K).T @ dP + (read * Q).T @ dO
    dR = a[-1] * dR1 + (before * K).T @ dRP + (a * Q).T @ dY

    # the decays
    dD, dE = dAi * A, dLe * G
    da, dbefore = rowsum(Q * (dY @ R.T)), rowsum(K * (dP @ S.T + dRP @ R.T))
    dD[-1:] += rowsum(K * (U @ dS1.T + W @ dR1.T)).T
    da[-1] += np.sum(dS1 * S) + np.sum(dR1 * R)
    if s.read_gates:
        dD, da = dD + dAq * A, da + rowsum(Q * (dO @ S.T))
    else:
        dE, dbefore = dE + dAq * A, dbefore + rowsum(Q * (dO @ S.T))
    dalpha += decay_back(alpha, E, before, dD, dE, da, dbefore)
    return Chunk(dQ, dK, dV, dalpha, dbeta, dgamma), dS, dR


def decay_back(
    alpha: Column, E: Array, before: Column, dD: Array, dE: Array, da: Column, dbefore: Column
) -> Column:  # fmt: skip
    """dalpha of the tables, where D_ij = alpha_i E_ij and E_ij = D_{i-1,j}: from the last row up, and no division."""
    dD, dE, da, dbefore, dalpha = dD.copy(), dE.copy(), da.copy(), dbefore.copy(), np.zeros_like(alpha)
    for i in reversed(range(len(alpha))):
        dalpha[i] = dD[i, :i] @ E[i, :i] + da[i] * before[i]
        dE[i, :i] += alpha[i] * dD[i, :i]
        dbefore[i] += alpha[i] * da[i]
        if i > 0:
            dD[i - 1, : i - 1] += dE[i, : i - 1]  # E_{i,i-1} is 1, whatever alpha
            da[i - 1] += dbefore[i]
    return dalpha


# -- sweeps over chunks --


def attention(
    q: Any, k: Any, v: Any, retention: Any = None, write: Any = None, correction: Any = None, *,
    state: State | None = None, return_state: bool = False, chunk: int = 32, **options: Any,
) -> Any:  # fmt: skip
    """o [B, T, H, V] of `api.attention`, whose arguments these are, `chunk` tokens at a time; computed in float64.

    Raises ValueError where `chunk` is not a whole number in [1, 1024].
    """
    call = _Call(q, k, v, retention, write, correction, chunk=chunk, **options)
    S, R = call.entering(state)
    out = np.zeros(call.arrays[2].shape)
    for n, h, tokens in call.chunks():
        out[tokens], S[n, h], R[n, h], _ = chunk_forward(call.tokens(tokens), S[n, h], R[n, h], call.switches)
    return (out, call.state(S, R)) if return_state else out


def gradient(
    q: Any, k: Any, v: Any, retention: Any = None, write: Any = None, correction: Any = None, *,
    d_out: Any = None, d_state: State | None = None, state: State | None = None, chunk: int = 32, **options: Any,
) -> Gradient:  # fmt: skip
    """The gradient of sum(o * d_out) + sum(S_T * d_state.base) + sum(R_T * d_state.residual), in float64.

    The arguments of `attention`, `d_out` [B, T, H, V] and a `d_state` of two [B, H, K, V]; None stands for zeros, also
    within `d_state`. The gradient of `retention` is exact at 0; that of `log_retention` is alpha times it.

    Raises ValueError as `attention`; backend.Unsupported for `fitting=False`.
    """
    call = _Call(q, k, v, retention, write, correction, chunk=chunk, **options)
    if not call.switches.fitting:
        raise Unsupported("residual.chunked has no gradient for fitting=False, where R holds one error and no history")
    S, R = call.entering(state)
    kept = []
    for n, h, tokens in call.chunks():
        *_, S[n, h], R[n, h], last = chunk_forward(call.tokens(tokens), S[n, h], R[n, h], call.switches)
        kept.append((n, h, tokens, last))
    dS, dR = call.entering(d_state)
    d_arrays = [np.zeros(x.shape) for x in call.arrays]
    dO = np.zeros(call.arrays[2].shape) if d_out is None else as_float(d_out)
    for n, h, tokens, last in reversed(kept):
        here = call.tokens(tokens)
        d_here, dS[n, h], dR[n, h] = chunk_backward(here, last, dO[tokens], dS[n, h], dR[n, h], call.switches)
        for d_array, d in zip(d_arrays, d_here, strict=True):
            d_array[tokens] = d.reshape(d_array[tokens].shape)
    return call.gradient(d_arrays, dS, dR)


class _Call:
    """The arguments of one call as six arrays, cut into chunks; and the way back from their gradients."""

    def __init__(
        self, q, k, v, retention, write, correction, *, chunk, rule="rdn", log_retention=None, clip=1.0, target="clip",
        fitting=True, read_gates=True, normalize=False, scale=1.0, cu_seqlens=None,
    ):  # fmt: skip
        self.rule, self.chunk = RULES[rule], dial("chunk", chunk, 1, LONGEST, integer=True)
        self.given = {"retention": retention, "log_retention": log_retention, "write": write, "correction": correction}
        self.lengths, self.scale = None, scale
        q, k, v = (as_float(x) for x in (q, k, v))
        if normalize:
            self.lengths = [np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k)]
            q, k = unit(q), unit(k)
        self.units = (q, k)
        (B, T, H, K), V = q.shape, v.shape[-1]
        # gamma is beta where no correction is given, so also where one memory is the second stage alone
        self.arrays = [scale * q, k, v, *gates(rule, (B, T, H), retention, write, correction, log_retention)]
        self.parts = segments(cu_seqlens, B, T)
        self.memory = (len(self.parts), H, K, V)
        self.switches = Switches(
            self.rule.delta, self.rule.residual, clip, target, fitting or not self.rule.residual, read_gates
        )

    def chunks(self):
        """(sequence, head, where its tokens stand in [B, T, H]) of every chunk, in the order of time."""
        for n, (b, first, end) in enumerate(self.parts):
            for h in range(self.memory[1]):
                for start in range(first, end, self.chunk):
                    yield n, h, (b, slice(start, min(start + self.chunk, end)), h)

    def tokens(self, where) -> Chunk:
        """The tokens of one chunk."""
        return Chunk(*(x[where] if x.ndim == 4 else x[where][:, None] for x in self.arrays))

    def entering(self, state: State | None) -> list[Array]:
        """[S, R] of every sequence, copied; 0 where None. The memory of a rule that has one is the second."""
        parts = (None, None) if state is None else state
        S, R = (np.zeros(self.memory) if x is None else as_float(x).copy() for x in parts)
        return [S, R] if self.rule.residual else [R, S]

    def state(self, S: Array, R: Array) -> State:
        """`entering`, backwards."""
        return State(S, R) if self.rule.residual else State(R, None)

    def gradient(self, d_arrays: list[Array], dS: Array, dR: Array) -> Gradient:
        """From the gradients of the six arrays to those of the arguments."""
        dq, dk, dv, dalpha, dbeta, dgamma = d_arrays
        dq = self.scale * dq
        if self.lengths is not None:
            dq, dk = (
                np.divide(d - x * np.sum(d * x, axis=-1, keepdims=True), length, out=np.zeros_like(d), where=length > 0)
                for d, x, length in zip((dq, dk), self.units, self.lengths, strict=True)
            )
        of_gates = gate_gradients((dalpha, dbeta, dgamma), self.arrays[3], **self.given)
        return Gradient(dq, dk, dv, **of_gates, state=self.state(dS, dR))
