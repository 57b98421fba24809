"""Solutions of the exercises on RACE, and the usual mistakes."""

import numpy as np

from attnlab.exercises.exercise import Mistake

# -- features ---------------------------------------------------------------------------------------------------------


def features(x, planes, sharpness):
    """Each table's softmax over the corners of its cube (Algorithm 1, p. 5)."""
    P = planes.shape[1]
    corners = 2 * (np.arange(2**P)[:, None] >> np.arange(P) & 1) - 1
    u = np.tanh(np.einsum("tk,lpk->tlp", x, planes))
    logits = sharpness * u @ corners.T
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)


def _over_all_tables(x, planes, sharpness):
    u = np.tanh(np.einsum("tk,lpk->tlp", x, planes))
    size = np.exp(sharpness * (np.abs(u).sum(axis=-1) - np.abs(u).sum(axis=-1).max(axis=1, keepdims=True)))
    size *= np.prod(1 + np.exp(-2 * sharpness * np.abs(u)), axis=-1)  # of a table's exponentials, up to one factor
    return features(x, planes, sharpness) * (size / size.sum(axis=1, keepdims=True))[..., None]


def _bits_from_the_left(x, planes, sharpness):
    return features(x, planes[:, ::-1], sharpness)


def _without_tanh(x, planes, sharpness):
    P = planes.shape[1]
    corners = 2 * (np.arange(2**P)[:, None] >> np.arange(P) & 1) - 1
    logits = sharpness * np.einsum("tk,lpk->tlp", x, planes) @ corners.T
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)


def _half_the_sharpness(x, planes, sharpness):
    return features(x, planes, sharpness / 2)


# -- attend -----------------------------------------------------------------------------------------------------------


def attend(phi_q, phi_k, v):
    """Keys write, queries read, and the tables are summed before the one division (Algorithm 1, p. 5)."""
    mass = phi_k.sum(axis=0)
    content = np.einsum("slr,sv->lrv", phi_k, v)
    numerator = np.einsum("tlr,lrv->tv", phi_q, content)
    denominator = np.einsum("tlr,lr->t", phi_q, mass)[:, None]
    out = np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)
    return mass, content, out


def _a_ratio_for_each_table(phi_q, phi_k, v):
    mass, content, _ = attend(phi_q, phi_k, v)
    ratios = np.einsum("tlr,lrv->tlv", phi_q, content) / np.einsum("tlr,lr->tl", phi_q, mass)[..., None]
    return mass, content, ratios.mean(axis=1)


def _bucket_means(phi_q, phi_k, v):
    mass, content, out = _bucket_means_summed(phi_q, phi_k, v)
    return mass, content, out / phi_q.shape[1]


def _bucket_means_summed(phi_q, phi_k, v):
    mass, content, _ = attend(phi_q, phi_k, v)
    return mass, content, np.einsum("tlr,lrv->tv", phi_q, content / mass[..., None])


def _not_divided(phi_q, phi_k, v):
    mass, content, _ = attend(phi_q, phi_k, v)
    return mass, content, np.einsum("tlr,lrv->tv", phi_q, content)


# -- causal -----------------------------------------------------------------------------------------------------------


def causal(phi_q, phi_k, v, mass, content):
    """Running sums of numerator and denominator, the token itself included, and then the ratio (Algorithm 2, p. 27)."""
    written = np.einsum("tlr,tv->tlrv", phi_k, v)
    masses, contents = mass + np.cumsum(phi_k, axis=0), content + np.cumsum(written, axis=0)
    numerator = np.einsum("tlr,tlrv->tv", phi_q, contents)
    denominator = np.einsum("tlr,tlr->t", phi_q, masses)
    return numerator / denominator[:, None], mass + phi_k.sum(axis=0), content + written.sum(axis=0)


def _table_by_table(phi_q, phi_k, v, mass, content):
    _, *state = causal(phi_q, phi_k, v, mass, content)
    tables = [slice(table, table + 1) for table in range(len(mass))]
    outs = [causal(phi_q[:, one], phi_k[:, one], v, mass[one], content[one])[0] for one in tables]
    return np.mean(outs, axis=0), *state


def _without_itself(phi_q, phi_k, v, mass, content):
    out, *state = causal(phi_q, phi_k, v, mass, content)
    for t in range(len(v)):
        _, before, held = causal(phi_q[:t], phi_k[:t], v[:t], mass, content)
        out[t] = np.einsum("lr,lrv->v", phi_q[t], held) / (phi_q[t] * before).sum()
    return out, *state


def _all_tokens(phi_q, phi_k, v, mass, content):
    _, mass, content = causal(phi_q, phi_k, v, mass, content)
    return np.einsum("tlr,lrv->tv", phi_q, content) / np.einsum("tlr,lr->t", phi_q, mass)[:, None], mass, content


def _begun_anew(phi_q, phi_k, v, mass, content):
    return causal(phi_q, phi_k, v, np.zeros_like(mass), np.zeros_like(content))


# -- tables_needed ----------------------------------------------------------------------------------------------------


def tables_needed(angle, first, second, planes, error):
    """Tables divide the variance and leave the bias (Theorem 2, p. 8, has both terms)."""
    bias = first**planes - (1 - angle / np.pi) ** planes
    variance = second**planes - first ** (2 * planes)
    room = error**2 - bias**2
    tables = np.ceil(variance / np.where(room > 0, room, np.inf))
    return np.where(room > 0, np.maximum(tables, 1), 0).astype(int)


def _no_bias(angle, first, second, planes, error):
    return np.maximum(np.ceil((second**planes - first ** (2 * planes)) / error**2), 1).astype(int)


def _bias_alone_judged(angle, first, second, planes, error):
    enough = np.abs(first**planes - (1 - angle / np.pi) ** planes) < error
    return np.where(enough, _no_bias(angle, first, second, planes, error), 0)


def _bias_divided_too(angle, first, second, planes, error):
    bias = first**planes - (1 - angle / np.pi) ** planes
    variance = second**planes - first ** (2 * planes)
    return np.maximum(np.ceil((variance + bias**2) / error**2), 1).astype(int)


def _variance_of_a_plane(angle, first, second, planes, error):
    room = error**2 - (first**planes - (1 - angle / np.pi) ** planes) ** 2
    tables = np.ceil((second - first**2) ** planes / np.where(room > 0, room, np.inf))
    return np.where(room > 0, np.maximum(tables, 1), 0).astype(int)


def _any_bias(angle, first, second, planes, error):
    bias = first**planes - (1 - angle / np.pi) ** planes
    return np.ceil((second**planes - first ** (2 * planes)) / (error**2 - bias**2)).astype(int)


def _rounded_down(angle, first, second, planes, error):
    room = error**2 - (first**planes - (1 - angle / np.pi) ** planes) ** 2
    tables = np.floor((second**planes - first ** (2 * planes)) / np.where(room > 0, room, np.inf))
    return np.where(room > 0, np.maximum(tables, 1), 0).astype(int)


def _kernel_without_power(angle, first, second, planes, error):
    room = error**2 - (first**planes - (1 - angle / np.pi)) ** 2
    tables = np.ceil((second**planes - first ** (2 * planes)) / np.where(room > 0, room, np.inf))
    return np.where(room > 0, np.maximum(tables, 1), 0).astype(int)


# -- break_lemma10 ----------------------------------------------------------------------------------------------------


def break_lemma10(planes, sharpness, tables, tokens, delta):
    """The smallest C1 of which the lemma speaks (p. 24): a target below what any soft score can be."""
    C1 = np.sqrt(2 * np.log(2 * tokens**2 / delta) / tables)
    kappa = C1 ** (1 / planes)
    return np.pi * (1 - kappa)


def _equal_vectors(planes, sharpness, tables, tokens, delta):
    return 0.0


def _opposite_vectors(planes, sharpness, tables, tokens, delta):
    return np.pi


def _power_forgotten(planes, sharpness, tables, tokens, delta):
    return break_lemma10(1, sharpness, tables, tokens, delta)


def _in_degrees(planes, sharpness, tables, tokens, delta):
    return np.degrees(break_lemma10(planes, sharpness, tables, tokens, delta))


# -- hash_alike -------------------------------------------------------------------------------------------------------


def hash_alike(planes, sharpness):
    """One part that all planes see alike, and one, much longer, that no plane sees (Theorem 2, p. 8, fixes tokens
    before planes).
    """
    L, P, K = planes.shape
    rows = planes.reshape(L * P, K)
    seen = np.linalg.pinv(rows) @ np.full(L * P, 5.0)
    unseen = np.linalg.svd(rows)[2][-1]
    far = 300 * np.linalg.norm(seen) * unseen
    return seen + far, seen - far


def _opposite_for_all_planes(planes, sharpness):
    x = np.linalg.pinv(planes.reshape(-1, planes.shape[-1])) @ np.full(planes[..., 0].size, 5.0)
    return x, -x


def _unseen_alone(planes, sharpness):
    unseen = np.linalg.svd(planes.reshape(-1, planes.shape[-1]))[2][-1]
    return unseen, -unseen


def _unit_vectors(planes, sharpness):
    q, k = hash_alike(planes, sharpness)
    return q / np.linalg.norm(q), k / np.linalg.norm(k)


MISTAKES = {
    "features": (
        Mistake(
            "one softmax over all tables",
            "each table is hashed for itself: its shares sum to 1, not those of all L tables together.",
            _over_all_tables,
        ),
        Mistake(
            "bits from the left",
            "bit 0, the least significant, belongs to plane 0; here plane 0 has the most significant.",
            _bits_from_the_left,
        ),
        Mistake(
            "no tanh",
            "u is tanh(W x), not W x: without it a long token has sharper buckets than β allows.",
            _without_tanh,
        ),
        Mistake(
            "half the sharpness",
            "a soft bit is σ(2 β u), since the two corners differ by 2 β u (p. 22); here it is σ(β u).",
            _half_the_sharpness,
        ),
    ),
    "attend": (
        Mistake(
            "a ratio for each table",
            "sum numerators and denominators over the tables first, and divide once; the mean of L ratios is another "
            "operator.",
            _a_ratio_for_each_table,
        ),
        Mistake(
            "bucket means",
            "content is divided by mass inside each bucket, as Fig. 7 (p. 28) draws it; Algorithm 1 divides after the "
            "query has read both.",
            _bucket_means,
        ),
        Mistake(
            "bucket means, summed over tables",
            "this is the operator of the authors' released code: a mean inside each bucket, and L times too large. "
            "Algorithm 1 divides once, after the query has read mass and content.",
            _bucket_means_summed,
        ),
        Mistake(
            "not divided",
            "this is the numerator. Divide it by what the query reads of the masses.",
            _not_divided,
        ),
    ),
    "causal": (
        Mistake(
            "a ratio for each table",
            "sum over the tables before the division; here each table divides, and the ratios are averaged.",
            _table_by_table,
        ),
        Mistake(
            "the token itself left out",
            "a token writes first and reads then, so that the first token of all meets itself and gets its own value.",
            _without_itself,
        ),
        Mistake(
            "every token sees all",
            "token t must not read what later tokens write: use running sums, not whole ones.",
            _all_tokens,
        ),
        Mistake(
            "the state left out",
            "the tokens before these are in mass and content: the running sums begin there, not at 0.",
            _begun_anew,
        ),
    ),
    "tables_needed": (
        Mistake(
            "no bias",
            "this asks for a small standard deviation only. Ŝ may be close to its mean, and its mean far from κ^P.",
            _no_bias,
        ),
        Mistake(
            "the whole error left to the noise",
            "what the bias takes of error² is not left for variance/L.",
            _bias_alone_judged,
        ),
        Mistake(
            "the bias divided by L as well",
            "tables average the noise away, not the bias: it stays however many there are.",
            _bias_divided_too,
        ),
        Mistake(
            "the variance of a plane, to the power P",
            "moments multiply, variances do not: a table has E[X²]^P - E[X]^(2P), not Var[X]^P.",
            _variance_of_a_plane,
        ),
        Mistake(
            "less than no error left",
            "where the bias alone exceeds the error, error² - bias² is negative, and no number of tables helps.",
            _any_bias,
        ),
        Mistake(
            "rounded down",
            "so many tables are a fraction of a table too few: round up.",
            _rounded_down,
        ),
        Mistake(
            "κ without its power",
            "P planes estimate κ^P, not κ.",
            _kernel_without_power,
        ),
    ),
    "break_lemma10": (
        Mistake(
            "equal vectors",
            "at angle 0 the target is 1 and C1 as large as can be, but where P = 1 every score is above 1/2.",
            _equal_vectors,
        ),
        Mistake(
            "opposite vectors",
            "there the target is 0 and C1 too. Stay as near as the lemma still speaks.",
            _opposite_vectors,
        ),
        Mistake(
            "C1 without its root",
            "C1 is κ^P, so κ is the P-th root of C1; with κ = C1 the target is far smaller than the lemma allows.",
            _power_forgotten,
        ),
        Mistake(
            "degrees",
            "the angle is wanted in radians.",
            _in_degrees,
        ),
    ),
    "hash_alike": (
        Mistake(
            "opposite for all planes",
            "each plane has q on one side and -q on the other, so these hash as unlike as can be.",
            _opposite_for_all_planes,
        ),
        Mistake(
            "what no plane sees, alone",
            "they do have the same shares, but 2^-P in every bucket, and so the score 2^-P. Add a part that all planes "
            "see, the same to both.",
            _unseen_alone,
        ),
        Mistake(
            "made unit vectors",
            "the part that the planes see shrinks with the rest, and tanh is far from ±1. Algorithm 1 does not do it.",
            _unit_vectors,
        ),
    ),
}
