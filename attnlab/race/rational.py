"""RACE in rational arithmetic: soft bits are given, and everything after them is exact.

A bit a in (-1, 1) stands for tanh(beta tanh(w.x)); a token is an array of bits [L, P]. Arrays hold `fractions.Fraction`
or int objects, so nothing is rounded and equality means equality.
"""

from fractions import Fraction
from math import lcm

import numpy as np

from attnlab.arrays import Array, Float

__all__ = ["attention", "bucket_means", "features", "fractions", "rank", "scores"]

Exact = Array  # dtype object, filled with Fractions or ints


def fractions(numerators: Array, denominator: int = 1) -> Exact:
    """An array of whole numbers over one denominator."""
    return np.vectorize(lambda n: Fraction(int(n), denominator), otypes=[object])(numerators)


def features(bits: Float[Exact, "N L P"]) -> Float[Exact, "N L R"]:
    """phi_r = prod_t (1 + v_rt a_t)/2; corners v_r as in `reference.corners`: bit t of r is set where v_rt = +1."""
    phi = np.full((*bits.shape[:-1], 1), Fraction(1), dtype=object)
    for t in range(bits.shape[-1]):
        set_share = (1 + bits[..., t : t + 1]) / Fraction(2)
        phi = np.concatenate([phi * (1 - set_share), phi * set_share], axis=-1)
    return phi


def scores(phi_q: Float[Exact, "T L R"], phi_k: Float[Exact, "S L R"]) -> Float[Exact, "T S"]:
    """S_hat = (1/L) sum_l phi(q) . phi(k)."""
    tables = phi_q.shape[1]
    return phi_q.reshape(len(phi_q), -1) @ phi_k.reshape(len(phi_k), -1).T / Fraction(tables)


def attention(
    phi_q: Float[Exact, "T L R"], phi_k: Float[Exact, "S L R"], v: Float[Exact, "S V"]
) -> Float[Exact, "T V"]:
    """Algorithm 1: one ratio after summing the tables, through the buckets' mass and content."""
    mass = phi_k.sum(axis=0)  # A, [L, R]
    content = np.tensordot(phi_k.transpose(1, 2, 0), v, axes=1)  # B, [L, R, V]
    numerator = np.tensordot(phi_q, content, axes=2)
    return numerator / np.tensordot(phi_q, mass, axes=2)[:, None]


def bucket_means(
    phi_q: Float[Exact, "T L R"], phi_k: Float[Exact, "S L R"], v: Float[Exact, "S V"]
) -> Float[Exact, "T V"]:
    """What Fig. 7 draws: the mean value of each bucket, mixed by the query's features, averaged over tables."""
    mass = phi_k.sum(axis=0)
    content = np.tensordot(phi_k.transpose(1, 2, 0), v, axes=1)
    return np.tensordot(phi_q, content / mass[..., None], axes=2) / Fraction(phi_q.shape[1])


def rank(matrix: Float[Exact, "T S"]) -> int:
    """The exact rank, by fraction-free elimination (Bareiss) over the integers."""
    rows = [[int(x * scale) for x in row] for row in matrix for scale in [lcm(*(Fraction(x).denominator for x in row))]]
    found, previous = 0, 1
    for column in range(len(rows[0])):
        pivot = next((i for i in range(found, len(rows)) if rows[i][column]), None)
        if pivot is None:
            continue
        rows[found], rows[pivot] = rows[pivot], rows[found]
        top = rows[found]
        for i in range(found + 1, len(rows)):
            row = rows[i]
            rows[i] = [(top[column] * row[j] - row[column] * top[j]) // previous for j in range(len(row))]
        previous = top[column]
        found += 1
        if found == len(rows):
            break
    return found
