"""The tables of docs/papers/lrkv.md that are computed: which ways to bring position into factored keys are exact, what
a small angle costs, the caches of the paper's models, and the bytes that a decode query moves.

python docs/papers/lrkv_tables.py rope > docs/papers/lrkv_rope.txt      # or angle, cache, sweep, traffic; seconds
"""

import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import floor

import numpy as np

from attnlab import draws
from attnlab.lrkv import accounting, reference, rotary
from attnlab.lrkv.params import rope

HEADS, WIDTH, RANK = 8, 128, 32
TOKENS, QUERIES, APART = 64, 16, 8  # the last 16 of 64 tokens ask, which stand at every eighth of 512 positions
PRICE = {  # operations are those of one head's residual logit of one key
    "none": "there is no position",
    "still": "the residual has no position; the query meets it unturned",
    "aligned": "a head's residual lies in r of the d coordinates",
    "tied": "r/2 = 16 frequencies in place of 64; B has d numbers for d r",
    "partial": "half of the coordinates turn, the residual lies in the others",
    "expand": "8,576 operations in place of 2 r = 64",
    "query_side": "8,640 in place of 64: q is turned and multiplied by B for each key",
    "latents_turned": "–",
    "latents_unturned": "–",
    "best_latent_map": "–",
    "other_layout": "–",
}
DEGREES = (0, 0.5, 1, 2, 5, 10, 20, 30, 45)


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def head(*titles: str) -> list[str]:
    return [line(*titles), line(*["---"] * len(titles))]


def rounded(x: Fraction, digits: int) -> str:
    """Halves of the last digit rounded up."""
    return f"{floor(x * 10**digits + Fraction(1, 2)) / 10**digits:,.{digits}f}"


def normal(stream: int, *shape: int) -> np.ndarray:
    return draws.normal(0, stream, int(np.prod(shape[:-1])), shape[-1]).reshape(shape)


def measured(option: str) -> tuple[float, float]:
    """The error of an option's logits, root mean square over that of the logits; and of outputs, largest over largest.
    Causal; all arrays standard normal, factors over the root of the rank.
    """
    case = rotary.case(option, heads=HEADS, width=WIDTH, rank=RANK)
    q, shared = normal(800, 1, QUERIES, HEADS, WIDTH), normal(801, 1, TOKENS, 1, WIDTH)
    latent, v = normal(802, 1, TOKENS, HEADS, RANK), normal(803, 1, TOKENS, HEADS, WIDTH)
    keys = APART * np.arange(float(TOKENS))
    queries = keys[-QUERIES:]
    got = rotary.factored_logits(option, q, shared, latent, case.factor, case.rope, case.latent_rope, queries, keys)
    wanted = rotary.rotated_logits(option, q, shared, latent, case.factor, case.rope, queries, keys)
    visible = reference.seen(QUERIES, TOKENS, None, None, causal=True)[:, None]
    outputs = [np.einsum("bhts,bshv->bthv", reference.softmax(x * WIDTH**-0.5, visible)[0], v) for x in (got, wanted)]
    logits = np.sqrt(np.mean((got - wanted) ** 2) / np.mean(wanted**2))
    return float(logits), float(np.abs(outputs[0] - outputs[1]).max() / np.abs(outputs[1]).max())


def shown(error: float) -> str:
    return "< 10⁻¹⁴" if error < 1e-14 else f"{error:.2f}"


def ways() -> list[str]:
    rows = head("`option`", "what is done", "exact", "error of logits", "error of outputs", "price")
    for name, option in rotary.OPTIONS.items():
        errors = map(shown, measured(name))
        rows.append(line(f"`{name}`", option.says, "yes" if option.exact else "no", *errors, PRICE[name]))
    return rows


def angle() -> list[str]:
    """Planes 0 and 1 of the usual frequencies, 512 positions."""
    turning, positions = rope(WIDTH), np.arange(float(APART * TOKENS))
    rows = head("phi, degrees", *(f"{phi:g}" for phi in DEGREES))
    factors = [rotary.mixed_factor(WIDTH, 0, 1, np.radians(phi)) for phi in DEGREES]
    escapes = [rotary.escape(factor, turning, positions) for factor in factors]
    rows.append(line("largest", *(f"{x.max():.3f}" for x in escapes)))
    rows.append(line("root mean square", *(f"{np.sqrt(np.mean(x**2)):.3f}" for x in escapes)))
    return rows


def cache() -> list[str]:
    rows = head("label", "H", "r", "numbers a token and layer", "MHA", "cache / MHA, %", "printed, %", "at r = 64, %")
    for row in accounting.CONFIGURATIONS:
        sizes = {"heads": row.heads, "head_width": accounting.HEAD_WIDTH}
        held = (accounting.elements("lrkv", rank=row.rank, **sizes), accounting.elements("mha", **sizes))
        wide = accounting.ratio("lrkv", rank=accounting.TABLE_12_RANK, **sizes)
        printed = "–" if row.printed is None else f"{row.printed:g}"
        shares = rounded(100 * row.ratio, 2), printed, rounded(100 * wide, 2)
        rows.append(line(row.label, f"{row.heads}", f"{row.rank}", *(f"{n:,}" for n in held), *shares))
    return rows


def sweep() -> list[str]:
    """Table 8 (p. 25), its percentages recomputed."""
    rows = head("128M, Table 8", "cache / MHA, %", "printed, %", "cross-entropy", "bits a byte")
    for row in accounting.TABLE_8:
        share = accounting.ratio(row.scheme, heads=6, head_width=128, rank=row.size, latent_width=row.size)
        size = {"lrkv": f", r = {row.size}", "mla": f", latents of {row.size}"}.get(row.scheme, "")
        rounded_share, losses = rounded(100 * share, 2), (f"{row.cross_entropy:.3f}", f"{row.bits_per_byte:.3f}")
        rows.append(line(f"{row.scheme.upper()}{size}", rounded_share, f"{row.printed:.1f}", *losses))
    return rows


def traffic() -> list[str]:
    """One decode query, one cached token, one layer: H = 32, d = 128, bfloat16."""
    schemes: list[tuple[str, str, dict]] = [
        ("MHA", "mha", {}),
        ("GQA, 8 groups", "gqa", {"groups": 8}),
        ("MQA", "mqa", {}),
        *((f"LRKV, r = {r}", "lrkv", {"rank": r}) for r in (16, 32, 54, 64)),
        ("LRKV, r = 54, one number more for a norm", "lrkv", {"rank": 54, "key_scale": True}),
        ("LRKV, r = 54, keys expanded and turned as they are read", "lrkv", {"rank": 54, "expand": True}),
        ("LRKV, r = 54, one program a head", "lrkv", {"rank": 54, "program_a_head": True}),
        ("MLA, 512 and 64 that turn", "mla", {"latent_width": 512, "rope_width": 64}),
    ]
    rows = head("H = 32, d = 128, 16-bit numbers", "numbers moved", "bytes", "of MHA's, %", "operations", "a byte")
    whole = accounting.traffic("mha", heads=32, head_width=128, bytes_each=2)
    for title, scheme, more in schemes:
        sizes = {"heads": 32, "head_width": 128, **more}
        expand, alone = sizes.pop("expand", False), sizes.pop("program_a_head", False)
        moved = accounting.traffic(scheme, bytes_each=2, program_a_head=alone, **sizes)
        done = accounting.flop(scheme, expand=expand, **sizes)
        share, dense = rounded(Fraction(100 * moved, whole), 1), rounded(Fraction(done, moved), 1)
        rows.append(line(title, f"{moved // 2:,}", f"{moved:,}", share, f"{done:,}", dense))
    return rows


TABLES: dict[str, Callable[[], list[str]]] = {
    "rope": ways,
    "angle": angle,
    "cache": cache,
    "sweep": sweep,
    "traffic": traffic,
}


def main(names: Sequence[str]) -> None:
    for name in names:
        print(*TABLES[name](), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
