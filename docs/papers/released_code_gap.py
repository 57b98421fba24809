"""How far the released code's operator is from Algorithms 1 and 2: prints the table of docs/papers/race.md.

python docs/papers/released_code_gap.py > docs/papers/released_code_gap.md
"""

from collections.abc import Sequence

import numpy as np

from attnlab import draws
from attnlab.race import draw_planes, reference

TOKENS, WIDTH = 2048, 128
SHARPNESS = (WIDTH**-0.5, 1.0, 2.0, 5.0)  # the first is the one that the released language models freeze
BUDGETS = ((2, 2), (4, 4))  # (planes, tables)

COLUMNS = (
    "sharpness",
    "planes, tables",
    "largest over smallest $\\hat S_{ij}$",
    "Algorithm 1 from the plain mean",
    "released code from Algorithm 1",
    "from Algorithm 2, causal",
    "first token from its own value",
)


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def row(q: np.ndarray, k: np.ndarray, v: np.ndarray, sharpness: float, planes: int, tables: int) -> str:
    w = draw_planes(tables, planes, WIDTH)
    full, causal = (reference.attention(q, k, v, w, sharpness, causal=c) for c in (False, True))
    released, released_causal = (
        reference.attention(q, k, v, w, sharpness, causal=c, variant="bucket_mean") / tables for c in (False, True)
    )
    phi_q, phi_k = (reference.features(x, w, sharpness)[0, :, 0].reshape(TOKENS, -1) for x in (q, k))
    scores = phi_q @ phi_k.T
    distances = (
        distance(full, np.broadcast_to(v.mean(axis=1, keepdims=True), full.shape)),
        distance(released, full),
        distance(released_causal, causal),
        distance(released_causal[:, 0], v[:, 0]),
    )
    ratio = scores.max() / scores.min()
    return line([f"{sharpness:.3g}", f"{planes}, {tables}", f"{ratio:.3g}", *(f"{x:.2g}" for x in distances)])


def main() -> None:
    q, k, v = (draws.normal(0, stream, TOKENS, WIDTH)[None, :, None] for stream in (2, 3, 4))
    print(line(COLUMNS), line(["---"] * len(COLUMNS)), sep="\n")
    for sharpness in SHARPNESS:
        for planes, tables in BUDGETS:
            print(row(q, k, v, sharpness, planes, tables))


if __name__ == "__main__":
    main()
