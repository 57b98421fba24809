"""What the panel of the RoPE subspace shows, as plain arrays; `computer` in mathematics.js returns the same names,
shapes, numbers.

B is plane i leaning towards plane j, two columns; their coordinates are x_i1, x_i2, x_j1, x_j2. P_t turns them by t
positions. n tokens, at positions 0 to n - 1; [t, s] is what query t has of key s, 0 above the diagonal.

basis, turned, within [2, 4]     B, P_t B, and what of P_t B lies in span(B)
overlap [2, 2]                   cosines and sines of the angles between P_t span(B) and span(B), smallest angle first
trail [257, 4]                   the first column of B at each of PLACES
law [4, 257]                     at each of them: how much leaves span(B), by linear algebra and by the closed form; the
                                 closed form at 45 degrees; how far the repair's keys are from where they should be
factored, wanted [n, n]          the first head's logits by the repair of the dial, and from whole keys
here [2]                         root mean square of their difference, and of what is wanted
meter [2, 7]                     bytes of each of METERED: of a token, of the context
diversity [2, 34]                effective rank before and after centring at each of SHARES, and at the dial's own
"""

from typing import Any, NamedTuple

import numpy as np

from attnlab.arrays import Array, Float
from attnlab.dials import described
from attnlab.inputs import STREAMS
from attnlab.lrkv import accounting, diversity, rotary
from attnlab.lrkv.params import BYTES, KEY_LATENTS_STREAM, STILL, LrkvParams, Rope, rope
from attnlab.lrkv.reference import turn
from attnlab.lrkv.rotary import FACTORS_STREAM, OPTIONS
from attnlab.panels.still import Curve, Picture

__all__ = ["METERED", "PARAMS", "PLACES", "SHARES", "compute", "data", "spec", "still", "verification"]

PARAMS = LrkvParams

PLACES = np.arange(257) / 4  # positions, also between tokens: the curve is smooth
SHARES = np.arange(33) / 32
METERED = ("mha", "gqa", "mqa", "mla", "lrkv", "scaled", "apart")


class Case(NamedTuple):
    """A repair with a factor that it is shown on."""

    rope: Rope
    latent_rope: Rope
    factor: Float[Array, "H K r"]


def compute(params: LrkvParams) -> dict[str, Float[Array, "..."]]:
    """Every view of these dials, float64."""
    K, _ = params.sizes
    i, j = params.pair
    mixed = rotary.mixed_factor(K, i, j, np.radians(params.angle), opposite=params.opposite)
    basis = rotary.orthonormal(mixed)
    moved = _moved(mixed, rope(K), PLACES)
    now = moved[4 * params.position]
    four = [i, K // 2 + i, j, K // 2 + j]
    factored, wanted = _logits(params)
    error = (factored - wanted)[np.tril_indices(params.tokens)]
    return {
        "basis": mixed[four].T,
        "turned": now[four].T,
        "within": (basis @ (basis.T @ now))[four].T,
        "overlap": _overlap(now, basis),
        "trail": moved[:, four, 0],
        "law": np.stack([*_law(params, mixed), _missed(params)]),
        "factored": factored,
        "wanted": wanted,
        "here": np.array([_rms(error), _rms(wanted[np.tril_indices(params.tokens)])]),
        "meter": np.array([_bytes(params, name) for name in METERED], np.float64).T,
        "diversity": np.array([_ranks(params.heads, share) for share in (*SHARES.tolist(), params.shared)]).T,
    }


def data(params: LrkvParams) -> dict[str, Any] | None:
    """None: the browser draws all there is."""
    return None


def still(params: LrkvParams) -> dict[str, Any]:
    """The pictures and numbers that stand where nothing is live; `attnlab.panels.still.html` shows them."""
    views = compute(params)
    error, (wrong, size) = views["factored"] - views["wanted"], views["here"]
    top = np.abs(views["wanted"]).max()
    above = np.triu_indices(params.tokens, 1)
    error[above] = np.nan
    lines = {
        "leaves the subspace": views["law"][0],
        "closed form": views["law"][1],
        "the repair's keys": views["law"][3],
    }
    before, after = views["diversity"]
    ranks = {"before": before[:-1], "after centring": after[:-1]}
    sine = views["overlap"][1, -1]
    return {
        "title": f"RoPE subspace: {OPTIONS[params.option].says}",
        "source": "arXiv:2601.11471v3, p. 4; the law, the repairs and their errors: this project",
        "pictures": [
            Curve("What a rotation takes out of span(B)", PLACES, lines, x_name="position", y_name="share"),
            Picture("Error of a head's logits", error, top, low=-top),
            Curve("Effective rank of heads", SHARES, ranks, x_name="shared part", y_name="heads"),
        ],
        "numbers": [
            (
                f"leaves span(B) at t = {params.position}",
                f"{sine:.6g}, {np.degrees(np.arcsin(min(sine, 1.0))):.6g} degrees",
            ),
            ("error of logits, relative", f"{wrong / size:.4g}"),
            *(
                (f"cache of {_NAMES[name]}", f"{a:,.0f} B a token")
                for name, a in zip(METERED, views["meter"][0], strict=True)
            ),
            ("effective rank, before and after centring", f"{before[-1]:.6g}, {after[-1]:.6g}"),
        ],
    }


def verification(params: LrkvParams) -> tuple[dict[str, Any], int]:
    """The arguments of `attention` for these dials, all heads, and how many terms an output adds up: the tokens, and
    the K and K + r of both parts of a logit, which count as often as the square of its size: exp makes their rounding
    relative to a weight.

    A wrong repair is verified too: every implementation has to be wrong by the same.
    """
    (K, r), n, H = params.sizes, params.tokens, params.heads
    q, k_shared, v_shared, k_latent, v_latent, v_factor, _ = params.inputs()
    case = _case(params, r, heads=H)
    places = np.arange(n, dtype=np.float64)
    turned = turn(q, case.rope, places)
    arguments: dict[str, Any] = {"q": turned, "k_shared": k_shared, "v_shared": v_shared}
    if params.option == "best_latent_map":
        k_latent = _mapped(case, k_latent, places)
    if r:
        arguments |= {"k_latent": k_latent, "v_latent": v_latent, "k_factor": case.factor, "v_factor": v_factor}
    if params.option == "still" and r:
        arguments["q_residual"] = q
    if len(case.rope.frequency):
        arguments |= {"rope": case.rope, "positions": places}
        if r and params.option not in ("expand", "query_side"):
            arguments["latent_rope"] = case.latent_rope
    wanted = np.abs(_logits(params)[1]).max()
    return arguments, n + int(np.ceil((2 * K + r) * wanted**2))


def spec() -> dict[str, Any]:
    """All that panel.js has to know, as JSON: the dials, the streams of the draws, what the paper prints."""
    return {
        "mechanism": "lrkv",
        "title": "RoPE subspace",
        "paper": "arXiv:2601.11471v3",
        "widget": "LrkvPanel",
        "version": 1,
        "dials": described(LrkvParams),
        "options": {"shown": ["error", "factored"]},
        "views": ["repair", "subspace", "law", "meter", "prints", "diversity"],
        "axes": ["query", "key", "place", "scheme", "print", "share"],
        "draws": {
            "queries": STREAMS["queries"],
            "keys": STREAMS["keys"],
            "latents": KEY_LATENTS_STREAM,
            "factors": FACTORS_STREAM,
        },
        "places": [int(PLACES[-1]), 4],
        "exact": [name for name, option in OPTIONS.items() if option.exact],
        "bytes": BYTES,
        "metered": list(METERED),
        "prints": _prints(),
        "table3": [list(row) for row in diversity.TABLE_3],
    }


_NAMES = {
    "mha": "MHA", "gqa": "GQA", "mqa": "MQA", "mla": "MLA", "lrkv": "LRKV", "scaled": "LRKV with a key scale",
    "apart": "LRKV as one program a head reads it",
}  # fmt: skip


# -- a repair, and what it makes of a key --


def _case(params: LrkvParams, r: int, *, heads: int = 1) -> Case:
    """The repair with a factor of r columns: planes from i on that lean towards those from j on, where any factor will
    do, or where it should not matter.
    """
    (K, _), (i, j) = params.sizes, params.pair
    planes = (i + np.arange(r // 2)) % (K // 2)
    usual, option = rope(K), params.option
    if not r:
        return Case(STILL if option == "none" else usual, STILL, np.zeros((heads, K, 0)))
    if option in ("tied", "partial"):
        return Case(*rotary.case(option, heads=heads, width=K, rank=r, seed=params.seed)[1:])
    if option in ("aligned", "other_layout"):
        layout = "interleaved" if option == "other_layout" else "half"
        factor = rotary.aligned_factor(heads, K, planes, layout=layout)
    else:
        lean = np.radians(params.angle)
        one, other = (rotary.aligned_factor(heads, K, (planes + shift) % (K // 2)) for shift in (0, j - i))
        other[:, :, r // 2 :] *= -1 if params.opposite else 1
        factor = np.cos(lean) * one + np.sin(lean) * other
    turning = option in ("aligned", "other_layout", "latents_turned")
    return Case(STILL if option == "none" else usual, Rope(usual.frequency[planes]) if turning else STILL, factor)


def _moved(factor: Float[Array, "K r"], turning: Rope, places: Float[Array, " P"]) -> Float[Array, "P K r"]:
    """P_t B at each place."""
    columns = np.broadcast_to(factor.T, (len(places), *factor.T.shape))[None]
    return turn(columns, turning, places)[0].transpose(0, 2, 1)


def _mapped(case: Case, latent: Float[Array, "B S H r"], places: Float[Array, " S"]) -> Float[Array, "B S H r"]:
    """B^+ P_s B z: the latents of the closest map there is."""
    out = np.empty_like(latent)
    for h, factor in enumerate(case.factor):
        best = np.linalg.pinv(factor) @ _moved(factor, case.rope, places)
        out[:, :, h] = np.einsum("sab,Bsb->Bsa", best, latent[:, :, h])
    return out


def _logits(params: LrkvParams) -> tuple[Float[Array, "n n"], Float[Array, "n n"]]:
    """The first head's logits by the repair, and what they have to be; 0 above the diagonal."""
    K, r = params.sizes
    drawn = params.inputs()
    q, k_latent = drawn.q[:, :, :1], drawn.k_latent[:, :, :1]
    case, places = _case(params, r), np.arange(params.tokens, dtype=np.float64)
    given = q, drawn.k_shared, k_latent, case.factor, case.rope
    factored = rotary.factored_logits(params.option, *given, case.latent_rope, places, places)
    wanted = rotary.rotated_logits(params.option, *given, places, places)
    return np.tril(factored[0, 0]) / np.sqrt(K), np.tril(wanted[0, 0]) / np.sqrt(K)


# -- how far it is out --


def _overlap(now: Float[Array, "K 2"], basis: Float[Array, "K n"]) -> Float[Array, "2 2"]:
    """Cosines, falling, and sines, rising, of the principal angles between span(P_t B) and span(B)."""
    turned = rotary.orthonormal(now)
    inner = basis.T @ turned
    sines = np.linalg.svd(turned - basis @ inner, compute_uv=False)
    return np.stack([np.linalg.svd(inner, compute_uv=False), sines[::-1]])


def _law(params: LrkvParams, mixed: Float[Array, "K 2"]) -> Float[Array, "3 257"]:
    turning, lean = rope(params.sizes[0]), np.radians(params.angle)
    closed, steepest = (
        rotary.angle_law(turning, *params.pair, angle, PLACES, opposite=params.opposite) for angle in (lean, np.pi / 4)
    )
    return np.stack([rotary.escape(mixed, turning, PLACES), closed, steepest])


def _missed(params: LrkvParams) -> Float[Array, "257"]:
    """How far the repair's own factor of two columns is from where it should be at each place, relative to its size:
    the logit error to be expected for latents of any direction.
    """
    case, option = _case(params, 2), params.option
    factor = case.factor[0]
    should = _moved(factor, STILL if option == "still" else case.rope, PLACES)
    latent = _moved(np.eye(2), case.latent_rope, PLACES)
    is_at = should if option in ("expand", "query_side") else factor @ latent
    if option == "best_latent_map":
        basis = rotary.orthonormal(factor)
        is_at = basis @ (basis.T @ should)
    return np.linalg.norm(is_at - should, axis=(1, 2)) / np.linalg.norm(factor)


def _rms(numbers: Float[Array, " n"]) -> float:
    return float(np.sqrt(np.mean(numbers**2)))


# -- a cache, and heads --


def _bytes(params: LrkvParams, name: str) -> tuple[int, int]:
    """Of a token in all layers, and of the whole context. `apart` is traffic: what is shared is read once a head."""
    sizes = {"heads": params.heads, "head_width": params.head_width, "rank": params.rank, "groups": 1}
    each = BYTES[params.stored]
    if name == "apart":
        a_token = accounting.traffic("lrkv", bytes_each=each, program_a_head=True, **sizes) * params.layers
        return a_token, a_token * params.context
    if name == "gqa":
        sizes["groups"] = params.sharing
    scheme = "lrkv" if name == "scaled" else name
    more = {"latent_width": params.latent_width, "key_scale": name == "scaled", "bytes_each": each}
    a_token, all_of_them = (
        accounting.cache_bytes(scheme, **sizes, **more, layers=params.layers, tokens=tokens)
        for tokens in (1, params.context)
    )
    return a_token, all_of_them


def _ranks(heads: int, share: float) -> tuple[float, float]:
    """Effective rank of heads at a cosine of `share` to each other, before and after centring."""
    gram = (1 - share) * np.eye(heads) + share
    return diversity.effective_rank(gram), diversity.effective_rank(diversity.centred(gram))


def _prints() -> list[list[Any]]:
    """Cache percentages of the paper: table, row, as printed, and from the sizes or megabytes beside them. A size whose
    printed percentage we do not know stands at its own ratio, and says so.
    """
    sizes = {"heads": accounting.CONFIGURATIONS[0].heads, "head_width": accounting.HEAD_WIDTH}
    rows: list[tuple[int, str, Any, Any]] = [
        *((7, f"{row.label} at r = {row.rank}", row.printed, row.ratio) for row in accounting.CONFIGURATIONS),
        *(
            (8, f"{row.scheme.upper()} {row.size or ''}".strip(), row.printed,
             accounting.ratio(row.scheme, **sizes, rank=row.size, latent_width=row.size))
            for row in accounting.TABLE_8
        ),
        *((12, row.label, row.printed, row.lrkv / row.mha) for row in accounting.TABLE_12),
    ]  # fmt: skip
    result = []
    for table, label, printed, ratio in rows:
        own, unknown = round(100 * float(ratio), 4), " (print unknown)"
        name = f"{label}, Table {table}{unknown if printed is None else ''}"
        result.append([table, name, own if printed is None else printed, own])
    return result
