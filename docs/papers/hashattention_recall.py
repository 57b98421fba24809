"""What each selector finds of the true top 64 on the shipped heads: prints the table of docs/papers/hashattention.md.

python docs/papers/hashattention_recall.py > docs/papers/hashattention_recall.txt      # a minute or two
"""

from collections.abc import Sequence

import numpy as np

from attnlab import data
from attnlab.hashattention import encode, selectors

LAYERS = (2, 9, 21)
FIRST = 1024  # queries from here on
SEEDS = 4  # of random projections, averaged
RANDOM = ("lsh", "lsh_centred", "lsh_lifted", "lsh_both_lifted")
ROWS = ("key_norm", "past_mean", *RANDOM, "quest", "infllm", "double_sparsity", "hash")


def lifted(x: np.ndarray) -> np.ndarray:
    """Rows with one more number, which makes all of them as long as the longest."""
    square = (x * x).sum(axis=1)
    return np.column_stack([x, np.sqrt(np.maximum(square.max() - square, 0.0))])


def both_lifted(head: selectors.Head, options: selectors.Options) -> np.ndarray:
    """As the released code does it: the queries too, to the longest of them."""
    return selectors.lsh(head._replace(q=lifted(head.q), k=lifted(head.k)), options)


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def heads_of(layer: int) -> list[selectors.Head]:
    q, k, v = (np.asarray(x, np.float64) for x in data.real_heads().layer(layer))
    query_codes, key_codes = (encode(x, maps) for x, maps in zip((q, k), data.hash_maps(layer), strict=True))
    heads = range(q.shape[2])
    return [selectors.head_of(q, k, v, 0, h, query_codes=query_codes, key_codes=key_codes) for h in heads]


def late(name: str, head: selectors.Head) -> selectors.Head:
    """The head with the queries that are counted; past_mean needs those before them too."""
    if name == "past_mean":
        return head
    return head._replace(q=head.q[FIRST:], query_codes=head.query_codes[FIRST:])


def measured(name: str, heads: Sequence[selectors.Head]) -> tuple[float, float]:
    """Mean recall@64 and mean mass beyond the windows, over heads, queries from FIRST on, and seeds."""
    counted = len(heads[0].q) - FIRST
    found = [
        selectors.measure(name, late(name, head), budget=64, options=selectors.Options(seed=seed))
        for head in heads
        for seed in range(SEEDS if name in RANDOM else 1)
    ]
    recall, mass = ([getattr(x, part)[-counted:].mean() for x in found] for part in ("recall", "middle_mass"))
    return float(np.mean(recall)), float(np.mean(mass))


def main() -> None:
    selectors.SELECTORS["lsh_both_lifted"] = selectors.SELECTORS["lsh"]._replace(score=both_lifted)
    heads = {layer: heads_of(layer) for layer in LAYERS}
    titles = [f"{what}, layer {layer}" for what in ("recall", "mass") for layer in LAYERS]
    print(line(["choice", "bits a token", *titles]), line(["---"] * (2 + len(titles))), sep="\n")
    for name in ROWS:
        bits = selectors.SELECTORS[name].auxiliary_bits(heads[LAYERS[0]][0], selectors.Options())
        found = [measured(name, heads[layer]) for layer in LAYERS]
        print(line([f"`{name}`", f"{bits:g}", *(f"{x:.3f}" for part in zip(*found, strict=True) for x in part)]))


if __name__ == "__main__":
    main()
