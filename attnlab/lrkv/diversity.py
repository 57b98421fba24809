"""How different heads are: the Gram matrix of what they compute, and how many of them it is worth (Sec. 4.3, pp. 7-9).

A head scores x_i against x_j by x_i A_h x_j^T with A_h = W_h^Q (W_h^K)^T. Only A_h counts: coordinates in which Q and K
are both turned, W^Q M and W^K M^-T, give the same one, so a measure of W^Q or W^K alone would measure coordinates.
A_h is width x width, but an inner product of two needs none of them (trace identity):
    <A_g, A_h> = tr(A_g^T A_h) = sum of (W_g^Q^T W_h^Q) * (W_g^K^T W_h^K), entry by entry, K x K each
"""

from typing import NamedTuple

import numpy as np

from attnlab.arrays import Array, Float, as_float, check, dial

__all__ = ["TABLE_3", "UNCENTRED_MQA_2_5B", "Diversity", "ceiling", "centred", "effective_rank", "gram"]

TINY = np.finfo(np.float64).tiny


def gram(wq: Float[Array, "H width K"], wk: Float[Array, "H width K"]) -> Float[Array, "H H"]:
    """Cosines between heads: <A_g, A_h> / (|A_g| |A_h|), 1 on the diagonal, unchanged by W^Q M and W^K M^-T.

    Raises ValueError where shapes differ, a number is not finite, or a head's operator is 0 and so has no direction.
    """
    sizes: dict = {}
    check("wq", wq, "H width K", sizes)
    check("wk", wk, "H width K", sizes)
    # a number that multiplies a head's weights leaves its direction as it is; squares could overflow, or be 0
    wq, wk = (
        x / np.maximum(np.abs(x).max(axis=(1, 2), keepdims=True, initial=0), TINY) for x in map(as_float, (wq, wk))
    )
    inner = np.empty((len(wq), len(wq)))
    for g in range(len(wq)):  # H K^2 numbers at a time
        inner[g] = ((wq[g].T @ wq) * (wk[g].T @ wk)).sum(axis=(1, 2))
    norm = np.sqrt(np.maximum(np.diagonal(inner), 0.0))
    if not (norm > 0).all():
        raise ValueError(f"wq and wk must give every head an operator other than 0, got 0 in head {norm.argmin()}")
    return inner / np.outer(norm, norm)


def centred(gram: Float[Array, "H H"]) -> Float[Array, "H H"]:
    """J G J with J = I - 1 1^T / H: inner products after the mean over heads is taken away (App. C.1, p. 15).

    Entries that rounding of G explains are 0, so that heads which are all alike leave nothing.
    """
    gram = _square(gram)
    rows = gram - gram.mean(axis=0, keepdims=True)
    out = rows - rows.mean(axis=1, keepdims=True)
    rounding = 1e3 * np.finfo(np.float64).eps * np.abs(gram).max(initial=0.0)  # of sums of a million products
    return np.where(np.abs(out) > rounding, out, 0.0)


def effective_rank(gram: Float[Array, "H H"]) -> float:
    """exp of the entropy of the eigenvalues' shares: how many equal directions are as spread as these. 0 for a matrix
    of zeros.

    Eigenvalues that rounding makes negative are 0. Raises ValueError for one that is negative beyond that, for then the
    matrix is no Gram matrix. Source: arXiv:2601.11471v3, App. C.1, p. 15.
    """
    gram = _square(gram)
    values = np.linalg.eigvalsh((gram + gram.T) / 2)
    largest = np.abs(values).max(initial=0.0)
    rounding = 4 * len(gram) * np.finfo(np.float64).eps * largest
    if not values.min(initial=0.0) >= -1e3 * rounding:  # a product of rounded factors may lose some digits more
        raise ValueError(f"gram must have no negative eigenvalue, got {values.min():g} beside {largest:g}")
    values = values[values > rounding]
    if not len(values):
        return 0.0
    share = values / values.sum()
    return float(np.exp(-(share * np.log(share)).sum()))


def ceiling(heads: int) -> int:
    """The most that the effective rank of a centred Gram matrix can be: H - 1, for (1, .., 1) is an eigenvector of 0.

    Orthogonal heads have H before, H - 1 after. Raises ValueError where there is no head.
    """
    return dial("heads", heads, 1, 2**31, integer=True) - 1


def _square(gram: Array) -> Array:
    sizes: dict = {}
    check("gram", gram, "H H", sizes)
    return as_float(gram)


class Diversity(NamedTuple):
    """A row of Table 3 (p. 16): the centred effective rank in percent of H, LRKV with rank 64."""

    scheme: str
    heads_6: float  # 128M
    heads_18: float  # 2.5B


TABLE_3 = (
    Diversity("mha", 82.4, 94.0),
    Diversity("lrkv", 83.0, 93.5),
    Diversity("mqa", 78.4, 91.0),
    Diversity("mla", 78.5, 91.6),
)
UNCENTRED_MQA_2_5B = 86.2  # percent of 18, before the mean is taken away (p. 16)
