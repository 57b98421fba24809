"""Solutions of the exercises on LRKV, and the usual mistakes."""

import numpy as np

from attnlab.exercises.exercise import Mistake

# -- count --


def count_cache(heads, head_width, groups, rank, latent_width, rope_width):
    """Keys and values, but for MLA, which makes both of the same numbers (Eq. 9, p. 4)."""
    mha = 2 * heads * head_width
    gqa = 2 * groups * head_width
    mqa = 2 * head_width
    mla = latent_width + rope_width
    lrkv = 2 * (head_width + heads * rank)
    return mha, gqa, mqa, mla, lrkv


def _keys_alone(heads, head_width, groups, rank, latent_width, rope_width):
    keys = heads * head_width, groups * head_width, head_width
    return *keys, latent_width + rope_width, head_width + heads * rank


def _with_weights(heads, head_width, groups, rank, latent_width, rope_width):
    *others, lrkv = count_cache(heads, head_width, groups, rank, latent_width, rope_width)
    return *others, lrkv + 2 * heads * head_width * rank


def _latents_once(heads, head_width, groups, rank, latent_width, rope_width):
    *others, _ = count_cache(heads, head_width, groups, rank, latent_width, rope_width)
    return *others, 2 * (head_width + rank)


def _shared_by_none(heads, head_width, groups, rank, latent_width, rope_width):
    *others, _ = count_cache(heads, head_width, groups, rank, latent_width, rope_width)
    return *others, 2 * heads * (head_width + rank)


def _latent_twice(heads, head_width, groups, rank, latent_width, rope_width):
    mha, gqa, mqa, _, lrkv = count_cache(heads, head_width, groups, rank, latent_width, rope_width)
    return mha, gqa, mqa, 2 * latent_width + rope_width, lrkv


def _heads_of_a_group(heads, head_width, groups, rank, latent_width, rope_width):
    return count_cache(heads, head_width, heads // groups, rank, latent_width, rope_width)


# -- read and merge --


def factored_logits(q, k_shared, k_latent, k_factor):
    """The query goes to the latents, and not the latents to the keys (Eq. 6, p. 4)."""
    projected = np.einsum("thk,hkr->thr", q, k_factor)
    shared = np.einsum("thk,sk->hts", q, k_shared)
    residual = np.einsum("thr,shr->hts", projected, k_latent)
    return projected, (shared + residual) / np.sqrt(q.shape[-1])


def _unscaled(q, k_shared, k_latent, k_factor):
    projected, logits = factored_logits(q, k_shared, k_latent, k_factor)
    return projected, logits * np.sqrt(q.shape[-1])


def _scaled_by_the_rank(q, k_shared, k_latent, k_factor):
    projected, logits = _unscaled(q, k_shared, k_latent, k_factor)
    return projected, logits / np.sqrt(k_factor.shape[-1])


def _each_by_its_own_width(q, k_shared, k_latent, k_factor):
    projected = np.einsum("thk,hkr->thr", q, k_factor)
    shared = np.einsum("thk,sk->hts", q, k_shared) / np.sqrt(q.shape[-1])
    return projected, shared + np.einsum("thr,shr->hts", projected, k_latent) / np.sqrt(k_factor.shape[-1])


def _reshaped(q, k_shared, k_latent, k_factor):
    H, K, R = k_factor.shape
    return factored_logits(q, k_shared, k_latent, k_factor.reshape(H, R, K).swapaxes(1, 2))


def _summed_over_heads(q, k_shared, k_latent, k_factor):
    every = np.repeat(k_latent.sum(axis=1, keepdims=True), q.shape[1], axis=1)
    return factored_logits(q, k_shared, every, k_factor)


def merge_parts(lse, shared, latent, factor):
    """A softmax over parts, once for both; B_h after it (Eq. 7, p. 4)."""
    top = lse.max(axis=0)
    share = np.exp(lse - np.where(np.isneginf(top), 0.0, top))
    total = share.sum(axis=0)
    weights = share / np.where(total > 0, total, 1.0)
    whole_shared = np.einsum("ph,phv->hv", weights, shared)
    whole_latent = np.einsum("ph,phr->hr", weights, latent)
    return whole_shared + np.einsum("hr,hvr->hv", whole_latent, factor)


def _parts_alike(lse, shared, latent, factor):
    return merge_parts(np.zeros_like(lse), shared, latent, factor)


def _softmax_over_heads(lse, shared, latent, factor):
    share = np.exp(lse - lse.max(axis=1, keepdims=True))
    weights = (share / share.sum(axis=1, keepdims=True))[..., None]
    return (weights * shared).sum(axis=0) + np.einsum("hr,hvr->hv", (weights * latent).sum(axis=0), factor)


def _not_divided(lse, shared, latent, factor):
    share = np.exp(lse)[..., None]
    return (share * shared).sum(axis=0) + np.einsum("hr,hvr->hv", (share * latent).sum(axis=0), factor)


def _latents_alike(lse, shared, latent, factor):
    return merge_parts(lse, shared, np.broadcast_to(latent.mean(axis=0), latent.shape), factor)


# -- turn --


def rotate(x, positions, theta):
    """Each plane by its own angle; plane i is (i, i + K/2) (RoFormer, Eq. 15)."""
    K = x.shape[-1]
    angle = positions[:, None, None] * theta ** (-2 * np.arange(K // 2) / K)
    cos, sin = np.cos(angle), np.sin(angle)
    a, b = x[..., : K // 2], x[..., K // 2 :]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def _interleaved(x, positions, theta):
    K = x.shape[-1]
    order = np.arange(K).reshape(K // 2, 2).T.ravel()  # 0, 2, 4 ... 1, 3, 5 ...
    return rotate(x[..., order], positions, theta)[..., np.argsort(order)]


def _backwards(x, positions, theta):
    return rotate(x, -positions, theta)


def _one_further(x, positions, theta):
    return rotate(x, positions + 1, theta)


def _by_place(x, positions, theta):
    return rotate(x, np.arange(len(x)), theta)


def _half_the_exponent(x, positions, theta):
    return rotate(x, positions, np.sqrt(theta))


def _already_overwritten(x, positions, theta):
    K = x.shape[-1]
    angle = positions[:, None, None] * theta ** (-2 * np.arange(K // 2) / K)
    out = x.copy()
    a, b = out[..., : K // 2], out[..., K // 2 :]  # views
    a[:] = a * np.cos(angle) - b * np.sin(angle)
    b[:] = a * np.sin(angle) + b * np.cos(angle)
    return out


def passing_factor(frequency, rank, every_row):
    """Whole planes; among planes of one frequency, all that follow one complex latent (this project)."""
    n = len(frequency)
    follows = np.unique(frequency, return_inverse=True)[1] if every_row else np.arange(n)
    factor = np.zeros((2 * n, rank))
    for plane, latent in enumerate(follows):
        if latent < rank // 2:
            factor[plane, latent] = 1.0
            factor[n + plane, rank // 2 + latent] = 1.0
    return factor


def _first_coordinates(frequency, rank, every_row):
    return np.eye(2 * len(frequency))[:, :rank]


def _whole_planes_alone(frequency, rank, every_row):
    return passing_factor(frequency, rank, every_row=False)


def _in_turn(frequency, rank, every_row):
    return passing_factor(np.arange(len(frequency)) % (rank // 2), rank, every_row=True)


def _conjugates(frequency, rank, every_row):
    factor = passing_factor(frequency, rank, every_row)
    n = len(frequency)
    first = np.unique(frequency, return_index=True)[1]
    factor[n + np.setdiff1d(np.arange(n), first)] *= -1
    return factor


def leaning_factor(frequency, position, angle_rad):
    """sin(angle) = |sin 2φ| |sin((θ_i - θ_j) t/2)|, solved for φ (this project)."""
    most = np.abs(np.sin((frequency[:, None] - frequency) * position / 2))
    i, j = np.unravel_index(most.argmax(), most.shape)
    return _leaning(len(frequency), i, j, np.arcsin(np.sin(angle_rad) / most[i, j]) / 2)


def _leaning(n, i, j, lean):
    factor = np.zeros((2 * n, 2))
    factor[[i, n + i], [0, 1]] = np.cos(lean)
    factor[[j, n + j], [0, 1]] = np.sin(lean)
    return factor


def _pair(frequency, position):
    most = np.abs(np.sin((frequency[:, None] - frequency) * position / 2))
    return *np.unravel_index(most.argmax(), most.shape), most.max()


def _leans_by_the_angle(frequency, position, angle_rad):
    i, j, _ = _pair(frequency, position)
    return _leaning(len(frequency), i, j, angle_rad)


def _not_halved(frequency, position, angle_rad):
    i, j, most = _pair(frequency, position)
    return _leaning(len(frequency), i, j, np.arcsin(np.sin(angle_rad) / most))


def _whole_difference(frequency, position, angle_rad):
    i, j, _ = _pair(frequency, position)
    most = np.abs(np.sin((frequency[i] - frequency[j]) * position))
    return _leaning(len(frequency), i, j, np.arcsin(min(np.sin(angle_rad) / most, 1.0)) / 2)


def _other_way_round(frequency, position, angle_rad):
    factor = leaning_factor(frequency, position, angle_rad)
    factor[len(frequency) + _pair(frequency, position)[1]] *= -1
    return factor


def _leaning_interleaved(frequency, position, angle_rad):
    factor, n = leaning_factor(frequency, position, angle_rad), len(frequency)
    return factor.reshape(2, n, 2).swapaxes(0, 1).reshape(2 * n, 2)


# -- compare --


def head_ranks(wq, wk):
    """Cosines of the operators, the mean taken away, and exp of the entropy of what is left (App. C.1, p. 15)."""
    return _ranks(_cosines(wq, wk))


def _cosines(wq, wk):
    operators = (wq @ wk.swapaxes(1, 2)).reshape(len(wq), -1)
    operators = operators / np.linalg.norm(operators, axis=1, keepdims=True)
    return operators @ operators.T


def _ranks(gram):
    H = len(gram)
    J = np.eye(H) - 1 / H
    centred = J @ gram @ J
    return centred, _effective(centred), H - 1


def _effective(centred):
    values = np.linalg.eigvalsh(centred)
    share = values[values > 1e-12 * values.max()]
    share = share / share.sum()
    return np.exp(-(share * np.log(share)).sum())


def _not_normalised(wq, wk):
    operators = (wq @ wk.swapaxes(1, 2)).reshape(len(wq), -1)
    return _ranks(operators @ operators.T)


def _one_side(wq, wk):
    gram = _cosines(wq, wk)
    centred = gram - gram.mean(axis=0)
    return centred, _effective(centred), len(gram) - 1


def _not_centred(wq, wk):
    gram = _cosines(wq, wk)
    return gram, _effective(gram), len(gram) - 1


def _operators_centred(wq, wk):
    operators = (wq @ wk.swapaxes(1, 2)).reshape(len(wq), -1)
    operators = operators - operators.mean(axis=0)
    operators = operators / np.linalg.norm(operators, axis=1, keepdims=True)
    gram = operators @ operators.T
    return gram, _effective(gram), len(gram) - 1


def _bits(wq, wk):
    centred, rank, most = head_ranks(wq, wk)
    return centred, np.exp(np.log(rank) / np.log(2)), most


def _ceiling_of_all(wq, wk):
    centred, rank, most = head_ranks(wq, wk)
    return centred, rank, most + 1


MISTAKES = {
    "count_cache": (
        Mistake(
            "keys alone", "values are kept too, as many numbers as keys. MLA makes both of one latent.", _keys_alone
        ),
        Mistake(
            "the factors in every token",
            "B_h is a weight: there is one for all tokens, and it is no part of the cache.",
            _with_weights,
        ),
        Mistake(
            "one head's latents",
            "each head has latents of its own: H r for keys, and as many for values.",
            _latents_once,
        ),
        Mistake(
            "the shared key once a head",
            "that is what a kernel with one program a head reads; the cache holds K_s and V_s once.",
            _shared_by_none,
        ),
        Mistake(
            "MLA's latent twice", "keys and values of MLA are made of the same latent: it is there once.", _latent_twice
        ),
        Mistake(
            "heads of a group for groups",
            "`groups` is how many keys there are; heads / groups heads share one.",
            _heads_of_a_group,
        ),
    ),
    "factored_logits": (
        Mistake("no scale", "the softmax of the paper takes logits over √K.", _unscaled),
        Mistake(
            "scaled by the rank",
            "latents are a short way to write a key of width K: the scale is 1/√K, not 1/√R.",
            _scaled_by_the_rank,
        ),
        Mistake(
            "each part by its own width",
            "both parts are one logit of one key of width K: 1/√K for both.",
            _each_by_its_own_width,
        ),
        Mistake(
            "factor reshaped",
            "`k_factor` is [H, K, R]. To have R before K, transpose: a reshape gives other numbers.",
            _reshaped,
        ),
        Mistake(
            "latents of all heads",
            "the head must be an index of the result too, or einsum sums the latents of all heads.",
            _summed_over_heads,
        ),
    ),
    "merge_parts": (
        Mistake(
            "parts count alike",
            "a part counts by what it saw: exp(lse), which also says how well its keys match.",
            _parts_alike,
        ),
        Mistake("softmax over heads", "weights sum to 1 over the parts, axis 0, for each head.", _softmax_over_heads),
        Mistake(
            "not divided",
            "exp(lse) are the parts' denominators; divide by their sum, the denominator of the whole.",
            _not_divided,
        ),
        Mistake("latents count alike", "the same weights merge shared values and latents.", _latents_alike),
    ),
    "rotate": (
        Mistake(
            "interleaved layout",
            "this turns 2i with 2i + 1, as GPT-J has it; here plane i holds i and i + K/2.",
            _interleaved,
        ),
        Mistake("turned backwards", "a sign: (a, b) goes to (a cos - b sin, a sin + b cos).", _backwards),
        Mistake("one position further", "position 0 does not turn: use `positions` as they are.", _one_further),
        Mistake(
            "rows counted from 0", "a row stands where `positions` says, not where it lies in the array.", _by_place
        ),
        Mistake(
            "half the exponent",
            "with K/2 planes the exponents -2i/K run from 0 to nearly -1; these stop half-way.",
            _half_the_exponent,
        ),
        Mistake(
            "the first half was turned already",
            "the second line takes the first coordinate as it was before: keep a copy.",
            _already_overwritten,
        ),
    ),
    "passing_factor": (
        Mistake(
            "the first coordinates",
            "coordinates 0 ... rank - 1 are planes in the interleaved layout; here they are halves of planes.",
            _first_coordinates,
        ),
        Mistake(
            "whole planes alone",
            "they pass, but reach only `rank` coordinates; equal frequencies allow more.",
            _whole_planes_alone,
        ),
        Mistake(
            "planes in turn",
            "planes may follow the same latent only if they turn alike; look at `frequency`, not at the number.",
            _in_turn,
        ),
        Mistake(
            "planes the other way round",
            "this adds conjugates: a latent that turns to the left turns them to the right.",
            _conjugates,
        ),
    ),
    "leaning_factor": (
        Mistake(
            "a lean by the angle",
            "the lean φ belongs to the factor; the angle is what a rotation makes of it: sin 2φ times a sine of t.",
            _leans_by_the_angle,
        ),
        Mistake("not halved", "it is sin 2φ that counts, so the arcsine is twice the lean.", _not_halved),
        Mistake(
            "the whole difference",
            "two arrows that come apart by an angle are 2 sin(angle / 2) away from each other.",
            _whole_difference,
        ),
        Mistake(
            "one plane the other way round",
            "with a sign exchanged, the sum of the angles stands where their difference should.",
            _other_way_round,
        ),
        Mistake(
            "planes of the interleaved layout",
            "the rows of plane i are i and i + K/2, not 2i and 2i + 1.",
            _leaning_interleaved,
        ),
    ),
    "head_ranks": (
        Mistake("not normalised", "G holds cosines, 1 on the diagonal: size is no difference.", _not_normalised),
        Mistake("centred on one side", "J stands on both sides: take the mean off columns and off rows.", _one_side),
        Mistake("not centred", "the effective rank is that of J G J, not of G.", _not_centred),
        Mistake(
            "operators centred before they are normalised",
            "the paper normalises the A_h first; then it centres their cosines.",
            _operators_centred,
        ),
        Mistake("an entropy in bits", "exp undoes the natural logarithm; with log2 it must be 2 to that power.", _bits),
        Mistake(
            "a ceiling of H", "J G J takes (1, ..., 1) to 0, so one of H directions is always lost.", _ceiling_of_all
        ),
    ),
}
