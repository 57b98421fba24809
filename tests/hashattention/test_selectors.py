"""Every selector against a slow version of its own or numbers by hand, and what may change its choice."""

import itertools
from math import acos, pi

import numpy as np
import pytest

from attnlab import dense, draws
from attnlab.hashattention import attention, encode, random_maps, reference, selectors
from attnlab.hashattention import select as select_by_codes
from attnlab.hashattention.selectors import LSH_STREAM, SELECTORS, Head, Options, Selection, head_of, measure, select
from tests.hashattention.cases import arguments, as_sets, codes, normal, selecting

# these take a statistic of all queries or keys that are given, as their docstrings say; no other sees a later one
OF_ALL = ("lsh_centred", "lsh_lifted", "double_sparsity", "magicpig")
SMALL = Options(page=4, representatives=2, channels=3, planes=3, bits=16)
SIZES = {"budget": 4, "sinks": 1, "window": 2}
T, S, K, V = 9, 14, 6, 3


def head(*, T: int = T, S: int = S, K: int = K, V: int = V, seed: int = 0) -> Head:
    """One head of normal numbers with codes of four bits."""
    return Head(
        normal(seed, 1, T, K), normal(seed, 2, S, K), normal(seed, 3, S, V), K**-0.5, codes(seed, 4, T, bits=4),
        codes(seed, 5, S, bits=4),
    )  # fmt: skip


def score(name: str, of: Head, options: Options = SMALL) -> np.ndarray:
    return np.asarray(SELECTORS[name].score(of, options))


def softmax(logits) -> list[float]:
    weights = [float(np.exp(x - max(logits))) for x in logits]
    return [x / sum(weights) for x in weights]


# -- what all of them share --


@pytest.mark.parametrize("name", SELECTORS)
def test_a_choice_is_the_fixed_windows_and_as_many_as_the_budget_says(name):
    """And none that the query does not see; the statistical one keeps its budget in the mean over queries."""
    of = head()
    for budget, sinks, window in itertools.product((0, 3, 0.5, 99), (0, 2), (0, 3)):
        chosen = select(name, of, budget=budget, sinks=sinks, window=window, options=SMALL).chosen
        extra = []
        for t in range(T):
            n = S - T + t + 1
            fixed = {i for i in range(n) if i < sinks or i >= n - window}
            members = set(np.flatnonzero(chosen[t]))
            assert fixed <= members <= set(range(n))
            room = min(int(budget * n) if isinstance(budget, float) else budget, n)
            want = 0 if name == "sinks_window" else min(room, n - len(fixed))
            extra.append((len(members - fixed), want, room))
        if name == "magicpig":
            assert sum(got for got, *_ in extra) <= sum(room for *_, room in extra)
        elif name == "h2o" and isinstance(budget, float):  # what was thrown away when less fitted in is gone
            assert all(got <= want for got, want, _ in extra)
        elif name == "h2o":
            assert all(got == want for got, want, _ in extra)
        else:
            assert all(got == want for got, want, _ in extra), (name, budget, sinks, window)


@pytest.mark.parametrize("name", SELECTORS)
def test_only_the_named_ones_look_at_what_comes_later(name):
    of = head()
    want = select(name, of, **SIZES, options=SMALL).chosen
    later, changed = 5, False  # queries, and the keys from that of query 5 on
    at = S - T + later
    for factor in (-3.0, 20.0):
        other = Head(*(x.copy() if isinstance(x, np.ndarray) else x for x in of))
        for x, first in ((other.q, later), (other.k, at), (other.v, at)):
            x[first:] *= factor
        other.query_codes[later:] ^= 15
        other.key_codes[at:] ^= 15
        got = select(name, other, **SIZES, options=SMALL).chosen
        changed |= not np.array_equal(got[:later], want[:later])
    assert changed is (name in OF_ALL)


@pytest.mark.parametrize("name", OF_ALL)
def test_a_selector_that_looks_at_everything_says_so(name):
    assert name in selectors.__doc__.split("all that are given: ")[1].replace(".", "").replace("\n", " ")


@pytest.mark.parametrize("name", [name for name in SELECTORS if SELECTORS[name].score])
def test_scores_that_are_equal_go_to_the_lowest_index(name):
    """Keys all alike: the first ones after the sinks, even if a page's end cuts them off. Whole numbers, so that no
    score is rounded.
    """
    of = head()
    of = of._replace(q=np.round(3 * of.q), k=np.tile(np.round(3 * of.k[0]), (S, 1)), scale=0.5)
    of.v[:], of.key_codes[:] = of.v[0], 3
    if name == "past_mean":  # a token that was seen for longer was given less each time
        of = of._replace(q=of.q[:1], query_codes=of.query_codes[:1])
    chosen = select(name, of, **SIZES, options=SMALL).chosen
    for row, n in zip(chosen, range(S - len(of.q) + 1, S + 1), strict=True):
        want = {0, n - 2, n - 1} | (set() if name == "sinks_window" else {1, 2, 3, 4})
        assert set(np.flatnonzero(row)) == want


def test_the_best_by_score_are_those_of_sorted_pairs():
    scores = np.round(normal(3, 1, 6, 9))
    scores[2, 3:7] = -np.inf
    among, budget = normal(3, 2, 6, 9) > -0.8, np.arange(6)
    chosen = selectors.best(scores, among, budget)
    for t in range(6):
        ranked = sorted((-scores[t, i], i) for i in range(9) if among[t, i] and scores[t, i] > -np.inf)
        assert np.flatnonzero(chosen[t]).tolist() == sorted(i for _, i in ranked[: budget[t]])


def test_codes_choose_what_hash_attention_reads():
    """The same sets from `select` of the room, and the same output from its `attention`."""
    given = arguments(T=6, S=11)
    sets, out = as_sets(select_by_codes(**selecting(given))), attention(**given)
    names = ("q", "k", "v")
    for b, h in np.ndindex(2, 6):
        of = head_of(*(given[x] for x in names), b, h, query_codes=given["query_codes"], key_codes=given["key_codes"])
        selection = select("hash", of, budget=3, sinks=2, window=4)
        assert [np.flatnonzero(row).tolist() for row in selection.chosen] == [sets[b, t, h] for t in range(6)]
        np.testing.assert_allclose(selectors.outputs(of, selection), out[b, :, h], rtol=0, atol=1e-13)


def test_weights_over_everything_are_dense_attention():
    given = arguments(T=6, S=11)
    of = head_of(given["q"], given["k"], given["v"], 1, 4)
    dense_out = dense.attention(*(given[name] for name in "qkv"), causal=True)
    np.testing.assert_allclose(selectors.outputs(of), dense_out[1, :, 4], rtol=0, atol=1e-13)
    none = Selection(np.zeros((6, 11), bool), np.zeros((6, 11)))
    assert not selectors.outputs(of, none).any()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "best"}, "name must be one of 'exact', 'exact_value', 'hash'"),
        ({"budget": 2.5}, "budget must be a whole number of tokens up to 2^40, or a fraction from 0.0 to 1.0, got 2.5"),
        ({"sinks": -1}, "sinks must be a whole number of tokens"),
        ({"window": True}, "window must be a whole number of tokens up to 2^40, or a fraction from 0.0 to 1.0, got Tr"),
        ({"options": Options(page=0)}, "options.page must lie in [1, "),
        ({"options": Options(representatives=0)}, "options.representatives must lie in [1, "),
        ({"options": Options(channels=1.5)}, "options.channels must be a whole number in [1, "),
        ({"options": Options(planes=33)}, "options.planes must lie in [1, 32], got 33"),
        ({"options": Options(bits=0)}, "options.bits must lie in [1, 4096], got 0"),
        ({"options": Options(seed=-1)}, "options.seed must lie in [0, "),
        ({"head": head(T=3, S=2)}, "head must have at least as many keys as its 3 queries, got 2"),
        ({"head": head()._replace(key_codes=None)}, "head must have query_codes and key_codes for the selector 'hash'"),
        ({"head": head()._replace(key_codes=codes(0, 5, S - 1, bits=4))}, "head.key_codes must be [S, W] with S = 14"),
    ],
    ids=lambda x: None if isinstance(x, dict) else x[:12],
)  # fmt: skip
def test_bad_input_is_named_with_what_was_wanted_and_what_came(change, words):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words are compared below
        select(**{"name": "hash", "head": head(), **SIZES} | change)
    assert words in str(caught.value), str(caught.value)


# -- scores, one by one --


def test_exact_is_the_logit_and_exact_value_its_contribution():
    """The order of log(a |v|) is that of a |v| (Lemma 4.1, p. 5); a zero value is never chosen."""
    of = head()
    np.testing.assert_allclose(score("exact", of), K**-0.5 * of.q @ of.k.T, rtol=1e-14)
    of.v[3] = 0
    contribution = selectors.weights_of(of) * np.linalg.norm(of.v, axis=1)
    for t in range(T):
        n = S - T + t + 1
        order = np.argsort(-score("exact_value", of)[t, :n], kind="stable")
        assert np.array_equal(order, np.argsort(-contribution[t, :n], kind="stable"))
    assert not select("exact_value", of, budget=99, sinks=0, window=0).chosen[:, 3].any()


def test_smallest_key_norms_are_the_same_for_every_query():
    of = head()
    norms = [sum(x * x for x in key) ** 0.5 for key in of.k]
    chosen = select("key_norm", of._replace(q=of.q[-1:]), budget=3, sinks=0, window=0).chosen[0]
    assert np.flatnonzero(chosen).tolist() == sorted(np.argsort(norms)[:3])


def test_past_mean_is_a_mean_over_the_queries_before():
    of = head()
    got = score("past_mean", of)
    for t in range(T):
        for i in range(S):
            past = [
                softmax([K**-0.5 * of.q[u] @ of.k[j] for j in range(S - T + u + 1)])[i]
                for u in range(t)
                if i <= S - T + u
            ]
            assert got[t, i] == pytest.approx(sum(past) / len(past) if past else 0.0, rel=1e-12)
    assert not got[0].any()


def test_quest_bounds_every_logit_of_a_page_and_is_reached_by_one_key_alone():
    """Of all that the query sees; a key alone in its page is its own bound."""
    of = head()
    logits = of.q @ of.k.T
    for page in (1, 3, 4, 20):
        bound = score("quest", of, SMALL._replace(page=page))
        assert bound.shape == (T, S)
        for t in range(T):
            n = S - T + t + 1
            assert (bound[t, :n] >= logits[t, :n] - 1e-12).all()
            for start in range(0, n, page):
                seen = of.k[start : min(start + page, n)]
                want = sum(
                    max(q * low, q * high) for q, low, high in zip(of.q[t], seen.min(0), seen.max(0), strict=True)
                )
                np.testing.assert_allclose(bound[t, start : min(start + page, n)], want, rtol=1e-12)
    np.testing.assert_allclose(score("quest", of, SMALL._replace(page=1)), logits, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("page", [1, 4, 5])
def test_infllm_scores_a_block_by_the_keys_that_are_most_like_it(page):
    of, options = head(), SMALL._replace(page=page)
    got = score("infllm", of, options)
    for t in range(T):
        n = S - T + t + 1
        for start in range(0, n, page):
            block = of.k[start : min(start + page, n)]
            likeness = [sum(key @ other for other in block) / len(block) for key in block]
            standing = sorted(range(len(block)), key=lambda i: (-likeness[i], i))[:2]
            want = sum(of.q[t] @ block[i] for i in standing) / len(standing)
            np.testing.assert_allclose(got[t, start : start + len(block)], want, rtol=1e-10)


def test_infllm_by_hand():
    """Keys 1, 4, 2 in one block, mean 7/3: the two most like it are 4 and 2; the query 3 gives (12 + 6) / 2."""
    of = Head(np.array([[3.0]]), np.array([[1.0], [4.0], [2.0]]), np.ones((3, 1)), 1.0)
    assert score("infllm", of).tolist() == [[9.0] * 3]


def test_double_sparsity_keeps_the_channels_of_the_largest_mean_product():
    of = head()
    mean = [np.mean([abs(q[c] * k[c]) for q in of.q for k in of.k]) for c in range(K)]
    label = sorted(range(K), key=lambda c: -mean[c])[:3]
    want = [[sum(q[c] * k[c] for c in label) for k in of.k] for q in of.q]
    np.testing.assert_allclose(score("double_sparsity", of), want, rtol=1e-12, atol=1e-14)
    full = score("double_sparsity", of, SMALL._replace(channels=K))
    np.testing.assert_allclose(full, of.q @ of.k.T, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["lsh", "lsh_centred", "lsh_lifted"])
def test_lsh_counts_the_signs_that_differ_one_by_one(name):
    of = head()
    q, k = of.q.tolist(), of.k.tolist()
    if name == "lsh_centred":
        k = (of.k - of.k.sum(axis=0) / S).tolist()
    if name == "lsh_lifted":
        longest = max(sum(x * x for x in key) for key in k)
        k = [[*key, max(longest - sum(x * x for x in key), 0) ** 0.5] for key in k]
        q = [[*query, 0.0] for query in q]
    planes = draws.normal(SMALL.seed, LSH_STREAM, SMALL.bits, len(q[0])).tolist()
    above = lambda x: [sum(a * b for a, b in zip(x, plane, strict=True)) > 0 for plane in planes]  # noqa: E731
    want = [[-sum(a != b for a, b in zip(above(x), above(y), strict=True)) for y in k] for x in q]
    assert score(name, of).tolist() == want


def test_random_maps_and_lsh_are_the_same_idea():
    """A random projection as a one-layer map gives codes whose distance is that of signs."""
    of, maps = head(), random_maps(300, 1, K)
    asked, keyed = (encode(x[None, :, None], maps)[0, :, 0] for x in (of.q, of.k))
    signs = [np.where(x @ maps.weights[0][0] > 0, 1, -1) for x in (of.q, of.k)]
    of = of._replace(query_codes=asked, key_codes=keyed)
    assert np.array_equal(score("hash", of), (signs[0] @ signs[1].T - 300) // 2)


@pytest.mark.parametrize("name", ["lsh_centred", "lsh_lifted"])
def test_the_angle_that_a_lifted_signature_estimates_orders_keys_as_the_logit_does(name):
    """Infinitely many bits give the angle. Lifted, all keys have one length, so the angle falls as q . k grows."""
    of = head(T=1)
    k = np.column_stack([of.k, np.sqrt(np.maximum((of.k**2).sum(1).max() - (of.k**2).sum(1), 0))])
    if name == "lsh_lifted":
        cosine = np.column_stack([of.q, [0]])[0] @ k.T / np.linalg.norm(k, axis=1)
        assert np.array_equal(np.argsort(-cosine), np.argsort(-(of.q[0] @ of.k.T)))
    moved = of._replace(k=of.k + 100 * of.q)  # one vector added to every key moves all logits of a query alike
    same = np.array_equal(score("lsh_centred", moved), score("lsh_centred", of))
    assert same
    assert not np.array_equal(score("lsh", moved), score("lsh", of))
    distance = -score(name, of, SMALL._replace(bits=4096))[0] / 4096
    keyed = of.k - of.k.mean(axis=0) if name == "lsh_centred" else k
    asked = of.q[0] if name == "lsh_centred" else np.append(of.q[0], 0)
    angle = np.arccos(dense.unit(asked) @ dense.unit(keyed).T) / pi
    assert np.abs(distance - angle).max() < 5 * 0.5 / np.sqrt(4096)  # 5 standard deviations of a share of 4096


# -- choices of another kind --


@pytest.mark.parametrize("sizes", [(3, 1, 2), (0, 0, 0), (4, 0, 0), (0.3, 0.2, 0.2), (2, 0, 99)])
def test_h2o_never_brings_a_token_back(sizes):
    of = head(T=14)
    budget, sinks, window = sizes
    chosen = select("h2o", of, budget=budget, sinks=sinks, window=window).chosen
    for before, after in itertools.pairwise(range(14)):
        gone = ~chosen[before, : before + 1]
        assert not chosen[after, : before + 1][gone].any()


def test_h2o_throws_away_what_gathered_least():
    """Step by step with a list of what is kept."""
    of = head(T=14)
    chosen = select("h2o", of, budget=3, sinks=1, window=2).chosen
    kept, gathered = [], dict.fromkeys(range(S), 0.0)
    for t in range(14):
        kept.append(t)
        free = [i for i in kept if i >= 1 and i <= t - 2]
        while len(free) > 3:
            lightest = min(free, key=lambda i: (gathered[i], -i))  # of equals the later one goes
            free.remove(lightest)
            kept.remove(lightest)
        assert np.flatnonzero(chosen[t]).tolist() == kept
        for i, weight in zip(kept, softmax([K**-0.5 * of.q[t] @ of.k[i] for i in kept]), strict=True):
            gathered[i] += weight


def test_h2o_before_anything_was_gathered_keeps_the_lowest_indices():
    chosen = select("h2o", head(T=1), budget=3, sinks=1, window=2).chosen
    assert np.flatnonzero(chosen[0]).tolist() == [0, 1, 2, 3, S - 2, S - 1]


def in_two_tables(p: float, tables: int) -> float:
    """The probability of at least two successes in so many trials, summed over what is left out."""
    return 1 - sum(c * p**n * (1 - p) ** (tables - n) for n, c in ((0, 1), (1, tables)))


def test_magicpig_weighs_a_token_by_how_likely_it_was():
    of, options = head(), SMALL._replace(planes=6)
    selection = select("magicpig", of, budget=2, sinks=1, window=1, options=options)
    tables = selection.auxiliary_bits / 6
    assert tables == int(tables)
    centred = of.k - of.k.mean(axis=0)
    fixed = selectors.fixed(of, np.full(T, 1), np.full(T, 1))
    drawn = selection.chosen & ~fixed
    assert drawn.any()
    for t, i in np.argwhere(selection.chosen):
        cosine = of.q[t] @ centred[i] / np.linalg.norm(of.q[t]) / np.linalg.norm(centred[i])
        want = 0.0 if fixed[t, i] else -np.log(in_two_tables((1 - acos(cosine) / pi) ** 6, int(tables)))
        assert selection.log_weight[t, i] == pytest.approx(want, rel=1e-9)
    for t, row in enumerate(selection.chosen):
        members = np.flatnonzero(row)
        shares = softmax([of.q[t] @ of.k[i] * K**-0.5 + selection.log_weight[t, i] for i in members])
        np.testing.assert_allclose(selectors.outputs(of, selection)[t], shares @ of.v[members], rtol=1e-10)


def test_magicpigs_weights_make_sums_over_tokens_right_in_the_mean():
    """Over seeds, 1/probability of a token that is drawn, 0 of one that is not, has the mean 1.

    A budget of all keeps every table, so that their number does not depend on the draw. The bound is five standard
    deviations of the mean, sqrt((1 - p) / (p N)) each.
    """
    N, of = 150, head(T=2, S=7, K=3)
    ratio, likely = np.zeros((2, 7)), np.full((2, 7), np.nan)
    for seed in range(N):
        options = Options(planes=12, seed=seed)
        selection = select("magicpig", of, budget=1.0, sinks=0, window=0, options=options)
        assert selection.auxiliary_bits == 12 * selectors.MOST_TABLES
        ratio += np.where(selection.chosen, np.exp(selection.log_weight), 0.0) / N
        likely = np.where(selection.chosen, np.exp(-selection.log_weight), likely)
    often = likely > 0.05
    assert often.sum() >= 4
    assert (likely[often] < 0.95).sum() >= 2
    assert (np.abs(ratio - 1)[often] <= 5 * np.sqrt((1 - likely[often]) / (likely[often] * N)) + 1e-9).all()


def test_magicpig_draws_what_meets_the_query_in_two_tables():
    """Bucket by bucket: all bits of a table alike, in two tables or more. One more table would draw too many."""
    of = head()
    selection = select("magicpig", of, budget=4, sinks=0, window=0, options=SMALL)
    tables = int(selection.auxiliary_bits / SMALL.planes)
    rows = (selectors.ROWS_PER_TABLE * np.arange(tables + 1)[:, None] + np.arange(SMALL.planes)).ravel()
    w = draws.normal(SMALL.seed, selectors.TABLES_STREAM, rows, K).reshape(tables + 1, SMALL.planes, K)
    centred = of.k - of.k.mean(axis=0)
    following = 0
    for t in range(T):
        for i in range(S - T + t + 1):
            met = [all((plane @ of.q[t] > 0) == (plane @ centred[i] > 0) for plane in table) for table in w]
            assert selection.chosen[t, i] == (sum(met[:-1]) >= 2)
            following += sum(met) >= 2
    assert selection.chosen.sum() <= 4 * T < following


# -- how good a choice is --


def by_hand() -> Head:
    """One query over five keys whose weights are 1, 2, 3, 4 and 10 twentieths; values of one number."""
    k = np.log([[1.0], [2.0], [3.0], [4.0], [10.0]])
    return Head(np.ones((1, 1)), k, np.array([[20.0], [10.0], [0.0], [-5.0], [2.0]]), 1.0, codes(0, 1, 1, bits=4),
                np.array([[15], [15], [0], [0], [0]], np.uint32) ^ codes(0, 1, 1, bits=4))  # fmt: skip


def test_metrics_by_hand():
    """Sink 0, window 4, one of 1, 2, 3 by codes: 2, though 3 is heavier. o = (20 + 20 + 0 - 20 + 20) / 20 = 2; over the
    set {0, 2, 4} it is (20 + 0 + 20) / 14.
    """
    got = measure("hash", by_hand(), budget=1, sinks=1, window=1, top=2, element_bytes=4, options=Options(bits=4))
    assert got.recall.tolist() == [0.5]  # of 2 and 3
    np.testing.assert_allclose(got.mass, [14 / 20], rtol=1e-14)
    np.testing.assert_allclose(got.middle_mass, [3 / 9], rtol=1e-14)
    np.testing.assert_allclose(got.output_error, [abs(40 / 14 - 2) / 2], rtol=1e-13)
    assert got.tokens_read.tolist() == [3.0]
    assert got.auxiliary_bits == 32  # a code takes whole words
    assert got.bytes_read.tolist() == [3 * (1 + 1) * 4 + 5 * 32 / 8]


@pytest.mark.parametrize("name", SELECTORS)
def test_metrics_of_a_choice_of_everything_and_of_nothing(name):
    of = head()
    everything = measure(name, of, budget=0, sinks=0, window=99, options=SMALL)
    for value, want in zip(everything[:5], (1.0, 1.0, 1.0, 0.0, np.arange(S - T + 1, S + 1)), strict=True):
        np.testing.assert_allclose(value, np.broadcast_to(want, T), rtol=1e-13, atol=1e-13)
    nothing = measure(name, of, budget=0, sinks=0, window=0, options=SMALL)
    for value, want in zip(nothing[:5], (0.0, 0.0, 0.0, 1.0, 0.0), strict=True):
        np.testing.assert_allclose(value, np.broadcast_to(want, T), rtol=1e-13, atol=1e-13)
    assert np.array_equal(nothing.bytes_read, np.arange(S - T + 1, S + 1) * nothing.auxiliary_bits / 8)


def test_recall_is_all_for_the_oracle_and_none_for_the_fixed_windows():
    of = head()
    assert measure("exact", of, **SIZES, top=4).recall.tolist() == [1.0] * T
    assert measure("exact", of, **SIZES, top=2).recall.tolist() == [1.0] * T
    short = measure("exact", of, **SIZES, top=6).recall
    assert short.tolist() == [4 / min(6, max(n - 3, 4)) for n in range(S - T + 1, S + 1)]
    assert measure("sinks_window", of, **SIZES, top=4).recall.tolist() == [0.0] * T
    masses = {name: measure(name, of, **SIZES).middle_mass for name in SELECTORS}
    assert all((masses["exact"] >= mass - 1e-12).all() for name, mass in masses.items() if name != "magicpig")


def test_bits_that_are_kept_beside_keys_and_values():
    of = head(S=40, K=64)
    bits = {name: selector.auxiliary_bits(of, Options()) for name, selector in SELECTORS.items()}
    assert bits == {
        "exact": 0, "exact_value": 0, "hash": 32, "lsh": 32, "lsh_centred": 32, "lsh_lifted": 32, "key_norm": 16,
        "past_mean": 16, "sinks_window": 0, "h2o": 16, "quest": 2 * 64 * 16 / 16, "infllm": 4 * 64 * 16 / 16,
        "double_sparsity": 4 * 16, "magicpig": 8 * 256,
    }  # fmt: skip
    few = measure("magicpig", of, budget=2, sinks=0, window=0)
    assert 8 <= few.auxiliary_bits < 8 * 256  # the tables that were really used
    assert few.auxiliary_bits % 8 == 0


def test_axes_of_nothing():
    for name in SELECTORS:
        for sizes in ({"T": 0}, {"T": 0, "S": 0}):
            of = head(**sizes)
            assert select(name, of, **SIZES, options=SMALL).chosen.shape == (len(of.q), len(of.k))
            assert all(np.shape(x) == (0,) for x in measure(name, of, **SIZES, options=SMALL)[:6])


@pytest.mark.parametrize(
    ("change", "words"), [({"top": -1}, "top must lie in"), ({"element_bytes": 0}, "element_bytes")]
)
def test_metrics_refuse_by_name(change, words):
    with pytest.raises(ValueError, match=words):
        measure("exact", head(), **SIZES, **change)


def test_a_head_is_one_of_the_query_heads_with_the_keys_it_shares():
    given = arguments(coded=6)
    got = head_of(
        given["q"], given["k"], given["v"], 1, 5, query_codes=given["query_codes"], key_codes=given["key_codes"]
    )
    assert np.array_equal(got.q, given["q"][1, :, 5])
    assert np.array_equal(got.k, given["k"][1, :, 2])
    assert np.array_equal(got.v, given["v"][1, :, 2])
    assert np.array_equal(got.key_codes, given["key_codes"][1, :, 5])
    assert got.scale == 7**-0.5
    assert reference.as_words(got.query_codes).shape == (5, 1)
