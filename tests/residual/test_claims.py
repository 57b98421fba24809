"""The claims about RLA and RDN: the table they were agreed in, what each check sees, and wrong formulas that it must
notice.
"""

import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from attnlab.claim import NOBODY, Outcome, Verdict
from attnlab.residual import chunked, claims, rational, reference

TABLE = {
    "rla.prediction-correction": ("HOLDS", "identity"),
    "rla.inner-loss": ("HOLDS", "identity"),
    "rla.appendix-b": ("REFUTED", "exact"),
    "rla.unrolled": ("HOLDS", "identity"),
    "rla.decoupled": ("HOLDS", "identity"),
    "rla.one-sweep": ("HOLDS", "identity"),
    "rla.huber": ("HOLDS", "identity"),
    "rla.old-state": ("REFUTED", "exact"),
    "rla.gdn-twice": ("REFUTED", "exact"),
    "rla.log-decay": ("REFUTED", "exact"),
    "rla.state-budget": ("HOLDS", "exact"),
    "rla.table-gains": ("HOLDS", "exact"),
    "rla.table4-text": ("REFUTED", "exact"),
    "rla.table5": ("REFUTED", "exact"),
    "rdn.inner-error": ("REFUTED", "exact"),
    "rdn.contraction": ("HOLDS", "identity"),
    "rdn.table-every-task": ("REFUTED", "exact"),
}
PROOFS = Path(__file__).parents[2] / "docs" / "papers" / "residual-proofs.md"
ARITHMETIC = {"rla.state-budget", "rla.table-gains", "rla.table4-text", "rla.table5", "rdn.table-every-task"}


def by_id(claim):
    return claim.id


# -- the claims -------------------------------------------------------------------------------------------------------


def test_the_claims_are_those_of_the_table_in_its_order():
    assert [(c.id, str(c.recorded), str(c.evidence)) for c in claims.CLAIMS] == [
        (name, *row) for name, row in TABLE.items()
    ]


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=by_id)
def test_what_is_observed_is_what_was_recorded(claim):
    record = claim.run()
    assert record["observed"] == record["recorded"], record
    assert record["agrees"] is True
    assert record["evidence"] == claim.evidence
    assert record["measured"]
    assert record["bound"]


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=by_id)
def test_a_claim_is_one_sentence_with_its_place(claim):
    assert claim.says[0].isupper()
    assert claim.says.endswith(".")
    assert "\n" not in claim.says
    assert ". " not in claim.says
    assert "p. " in claim.source or "pp. " in claim.source or claim.source.startswith("this project")


def test_a_refutation_counts_against_the_paper_only_where_the_paper_says_the_sentence():
    refuted = {claim.id: claim.said_by for claim in claims.CLAIMS if claim.recorded is Verdict.REFUTED}
    assert {name for name, who in refuted.items() if who == "the paper"} == {"rla.appendix-b", "rla.table4-text"}
    assert {who for name, who in refuted.items() if name not in ("rla.appendix-b", "rla.table4-text")} == {NOBODY}


def test_the_proofs_open_with_every_claim_that_is_not_arithmetic_on_printed_numbers():
    openings = re.findall(
        r"^\*((?:`r..\.[a-z0-9-]+`(?:, )?)+)[^*]*\*", PROOFS.read_text(encoding="utf-8"), re.MULTILINE
    )
    proved = [name for opening in openings for name in re.findall(r"`(.*?)`", opening)]
    assert len(proved) == len(set(proved))
    assert set(proved) == TABLE.keys() - ARITHMETIC


def test_the_cases_hold_what_breaks_a_wrong_formula():
    """Gates that are not tied, a retention of 0 and of 1, errors on both sides of the clip, sizes all different."""
    for case, clip in zip(claims._cases(), claims.CLIPS, strict=True):
        sizes = (*case.q.shape, case.v.shape[-1])
        assert len(set(sizes)) == len(sizes)
        assert {0.0, 1.0} < set(case.alpha.ravel())
        assert np.abs(case.beta - case.gamma).min() > 0
        assert np.allclose(np.linalg.norm(case.k, axis=-1), 1)
        error = np.abs(reference.trace(*case, rule="rla", clip=clip).error)
        assert clip == np.inf or error.min() < clip < error.max()


# -- wrong formulas ---------------------------------------------------------------------------------------------------


def tied_stages(x, rule, clip):
    """The second stage at the rate of the first."""
    return claims._two_stages(x._replace(gamma=x.beta), rule, clip)


def leaking(*call, clip, rule, state=None):
    """A millionth of R in what is called S."""
    seen = reference.trace(*call, clip=clip, rule=rule, state=state)
    return seen._replace(S=seen.S + 1e-6 * seen.R)


def clipped_by_length(q, k, v, alpha, beta, gamma, *, rule, clip, chunk=None):
    """RLA or RDN with an error that is scaled as a vector, instead of cut entry by entry."""
    delta, (B, T, H, K), V = rule == "rdn", q.shape, v.shape[-1]
    S, R, out = np.zeros((B, H, K, V)), np.zeros((B, H, K, V)), np.zeros((B, T, H, V))
    for t in range(T):
        error = v[:, t] - reference.recall(S, k[:, t])
        r = error * np.minimum(1.0, clip / np.linalg.norm(error, axis=-1, keepdims=True))
        R = reference.written(R, k[:, t], r, alpha[:, t], gamma[:, t], delta=delta)
        out[:, t] = alpha[:, t, :, None] * reference.recall(S, q[:, t])
        out[:, t] += gamma[:, t, :, None] * reference.recall(R, q[:, t])
        S = reference.written(S, k[:, t], v[:, t], alpha[:, t], beta[:, t], delta=delta)
    return out


def chunks_that_forget(*call, chunk, **options):
    """No memory carried from one chunk to the next."""
    parts = [
        chunked.attention(*(x[:, start : start + chunk] for x in call), chunk=chunk, **options)
        for start in range(0, call[0].shape[1], chunk)
    ]
    return np.concatenate(parts, axis=1)


def without_the_last_step(alpha):
    """Multiplied, but without the decay of the later token: E in place of D."""
    return chunked.decay(alpha[:, None]).E + np.eye(len(alpha))


def shifted_calls(x, clip):
    """Two calls of a baseline that is asked one token late, with the gates of the read-out."""
    S = rational.memories(x.k, x.v, x.alpha, x.beta, delta=True)[:-1]
    r = rational.clipped(x.v - rational.recalled(S, x.k), clip)
    R = rational.memories(x.k, r, x.alpha, x.gamma, delta=True)[1:]
    return x.alpha[:, None] * rational.recalled(S, x.q) + x.gamma[:, None] * rational.recalled(R, x.q)


def improved(row):
    return row._replace(method=row.baseline + 1)


MUTANTS = {
    "rla.prediction-correction": [
        lambda: claims.prediction_correction(additive=lambda q_S, k_S, v, kq, alpha, beta: q_S + (v - k_S) * kq),
        lambda: claims.prediction_correction(
            gated_delta=lambda q_S, k_S, v, kq, alpha, beta: alpha * q_S + beta * (v - k_S) * kq
        ),
    ],
    "rla.inner-loss": [
        lambda: claims.inner_loss(additive=lambda M, k, v: np.sum((k @ M) * v)),
        lambda: claims.inner_loss(delta=lambda M, k, v: np.sum((k @ M - v) ** 2)),
    ],
    "rla.appendix-b": [lambda: claims.appendix_b(printed=lambda M, k, x: M + np.outer(k, x))],
    "rla.unrolled": [
        lambda: claims.unrolled(weight=lambda gamma_t, gamma_i, decay: gamma_i * decay),
        lambda: claims.unrolled(weight=lambda gamma_t, gamma_i, decay: gamma_t * gamma_i),
    ],
    "rla.decoupled": [
        lambda: claims.decoupled(stages=tied_stages),
        lambda: claims.decoupled(run=leaking),
    ],
    "rla.one-sweep": [
        lambda: claims.one_sweep(sweep=chunks_that_forget),
        lambda: claims.one_sweep(sweep=clipped_by_length, whole=clipped_by_length),
    ],
    "rla.huber": [
        lambda: claims.huber(target=lambda error, clip, target: error),
        lambda: claims.huber(target=lambda error, clip, target: np.clip(error, -clip, clip)),
    ],
    "rla.old-state": [
        lambda: claims.old_state(readings={"S_{t-1}": lambda old, new, alpha: old}),
    ],
    "rla.gdn-twice": [lambda: claims.gdn_twice(composed=shifted_calls)],
    "rla.log-decay": [lambda: claims.log_decay(table=claims._multiplied)],
    "rla.state-budget": [lambda: claims.state_budget(elements=lambda H, K, V: H * K * (V + 1))],
    "rla.table-gains": [lambda: claims.table_gains(table=(improved(claims.GAINS[0]), *claims.GAINS[1:]))],
    "rla.table4-text": [
        lambda: claims.table4_text(table=tuple(row for row in claims.FITTING if "LAMBADA" not in row.what))
    ],
    "rla.table5": [lambda: claims.table5(table=tuple(map(improved, claims.GATED)))],
    "rdn.inner-error": [
        lambda: claims.inner_error(
            memories=lambda k, r, alpha, gamma: rational.memories(k, r, alpha, gamma, delta=False)
        )
    ],
    "rdn.contraction": [
        lambda: claims.contraction(rates=(2.5,)),
        lambda: claims.contraction(key=lambda x: x),
        lambda: claims.contraction(transition=lambda k, alpha, gamma: np.eye(len(k)) - alpha * gamma * np.outer(k, k)),
    ],
    "rdn.table-every-task": [
        lambda: claims.table_every_task(table=tuple(row for row in claims.TASKS if row.method > row.baseline))
    ],
}
EVERY_MUTANT = [
    pytest.param(name, mutant, id=f"{name}-{i}")
    for name, mutants in MUTANTS.items()
    for i, mutant in enumerate(mutants)
]


def test_every_claim_has_a_mutant():
    assert list(MUTANTS) == list(TABLE)
    assert all(MUTANTS.values())


@pytest.mark.parametrize(("name", "mutant"), EVERY_MUTANT)
def test_a_wrong_formula_turns_the_verdict(name, mutant):
    outcome = mutant()
    assert isinstance(outcome, Outcome)
    assert outcome.observed in Verdict
    assert outcome.observed != TABLE[name][0], outcome


@pytest.mark.parametrize("name", list(claims.READINGS))
def test_each_of_the_two_readings_alone_is_another_operator(name):
    assert claims.old_state(readings={name: claims.READINGS[name]}).observed is Verdict.REFUTED


def test_the_two_tokens_by_hand_are_told_in_full():
    assert "RDN from alpha_t S_{t-1}: 3/8 instead of 11/32" in claims.old_state().measured
    assert claims.gdn_twice().measured == "outputs 3/8 and 13/16"


def test_logarithms_are_refuted_by_a_nan_and_only_there():
    assert "nan" in claims.log_decay().measured
    table = claims._through_logs(np.array([0.5, 0.25, 0.5]))
    assert np.allclose(table, claims._multiplied(np.array([0.5, 0.25, 0.5])), rtol=1e-15, atol=0)


def test_the_multiplied_table_must_itself_be_right():
    with pytest.raises(ArithmeticError, match="multiplied table"):
        claims.log_decay(products=without_the_last_step)


def test_the_appendix_raises_the_loss_that_descent_lowers():
    start, printed = map(Fraction, claims.appendix_b().measured.removeprefix("the loss goes from ").split(" to "))
    descended = Fraction(claims.appendix_b().bound.removeprefix("to ").removesuffix(", by descent"))
    assert descended < start < printed


def test_a_row_that_is_equal_is_no_gain():
    level = tuple(row._replace(method=row.baseline) for row in claims.GATED)
    assert claims.table5(table=level).observed is Verdict.REFUTED
