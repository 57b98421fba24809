"""What went wrong elsewhere: reports from other projects, each as one small test of what must hold here.

The comment above a test names the reports it answers; fla is fla-org/flash-linear-attention. Some are answered beside
the tests of the room that they concern:
    gradients that are expanded or not contiguous: fla 871, 1138
        test_torch.test_a_gradient_that_is_expanded_transposed_or_absent
    the gradient of the decay from the final state: fla 459
        test_torch.test_a_loss_on_one_final_state_alone
    a last chunk that is not whole reads what is not there, and drops a gate's gradient: fla 1142
        test_torch.test_no_uninitialised_number_reaches_a_result, test_torch.test_every_gradient_is_autograds_...
    autocast mixes types: fla 301, 1264
        test_torch.test_autocast_does_not_lower_the_working_precision
    torch.compile gives other numbers: fla 52
        test_torch.test_it_goes_through_torch_compile
    a result depends on its neighbours in the batch: fla 671
        test_fast_paths.test_every_row_of_a_batch_is_computed_as_if_alone_bit_for_bit
    heads and tokens in the other order are taken in silence: fla 547
        test_torch.test_heads_and_tokens_in_the_other_order_are_refused_where_sizes_disagree
    the naive form was wrong itself: fla 850
        test_reference (by hand, the paper's lines, a closed form), test_chunked, test_oracle
    the interpreter's bfloat16, and NumPy 2.4: triton-lang/triton 4972, 9171, 11584
        only the Triton room is concerned: tests/kernels
    more sequences than a GPU's launch may have in one direction: fla 1077
        below for the CPU, where there is no launch; kernels/test_residual_gpu for the Triton room
"""

import importlib.util
import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from attnlab import backend, parity
from attnlab.residual import State, attention, chunked, reference
from tests.residual.cases import RESIDUAL, arguments, assert_rows, cut, flat, normal, row_error

ABSENT = {impl: backend.why_not(impl, "residual") for impl in ("numba", "torch")}
FAST = [pytest.param(impl, marks=pytest.mark.skipif(bool(why), reason=str(why))) for impl, why in ABSENT.items()]
MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux's number, where Python has no name for it
FASTEST = next((impl for impl, why in ABSENT.items() if not why), None)
needs_torch = pytest.mark.skipif(bool(ABSENT["torch"]), reason=str(ABSENT["torch"]))


def run(impl, **given):
    return flat(*attention(**given, return_state=True, impl=impl))


def single(given):
    return {name: x.astype(np.float32) if isinstance(x, np.ndarray) else x for name, x in given.items()}


def assert_reference(impl, terms, **given):
    """The reference's numbers row by row, to the tolerance that float32 has of itself."""
    got = run(impl, **given)
    kinds = (np.float64, np.float32)
    exact, low = (flat(*reference.attention(**given, return_state=True, dtype=kind)) for kind in kinds)
    for name in exact:
        seen = parity.compare(got[name], exact[name], low[name], terms=terms)
        assert seen.ok, (name, seen.reason)
    return got


def gradients(given, loss, wanted):
    """Gradients of loss(out, S, R) in float64 by the torch room, by name; `base` and `residual` are the state's."""
    import torch

    tensors = {name: torch.tensor(x, requires_grad=True) for name, x in given.items() if isinstance(x, np.ndarray)}
    rest = {name: x for name, x in given.items() if name not in tensors}
    if given.get("state") is not None:
        memories = {name: torch.tensor(x, requires_grad=True) for name, x in given["state"]._asdict().items()}
        rest["state"] = tuple(memories.values())
        named = tensors | memories
    else:
        named = tensors
    out, state = attention(**tensors, **rest, return_state=True, impl="torch")
    found = torch.autograd.grad(loss(out, *state), [named[name] for name in wanted])
    return {name: x.numpy() for name, x in zip(wanted, found, strict=True)}


def slope(given, place, step, loss):
    """The slope of loss(out, S, R) of the reference in one number, by a central difference; place = (name, index)."""
    name, index = place

    def at(change):
        x = given[name].copy()
        x[index] += change
        out, state = reference.attention(**given | {name: x}, return_state=True)
        return loss(out, *state)

    return (at(step) - at(-step)) / (2 * step)


# 1: pytorch/executorch 21417, 21439
@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("rule", ["rla", "rdn", "gdn"])
def test_a_retention_of_a_millionth_of_a_millionth_is_finite_and_right(impl, rule):
    given = single(arguments(rule, T=64, K=16, V=12))
    assert_reference(impl, 80, **given | {"retention": np.full((2, 64, 3), 1e-12, np.float32)})


# 2: fla 77
@needs_torch
@pytest.mark.parametrize("rule", ["rla", "rdn", "gdn"])
def test_gradients_under_very_negative_logarithms_are_finite_and_those_of_forgetting(rule):
    """exp(-1e4) is 0, so every token is the first one: no gradient reaches across, and none is NaN."""
    given = arguments(rule, T=70)
    given.pop("retention")
    names = [name for name in ("q", "k", "v", "write", "correction", "log_retention") if name in given]
    for log in (-1e4, -1e30, -np.inf):
        given["log_retention"] = np.full((2, 70, 3), log)
        found = gradients(given, lambda out, *_: out.sum(), [*names, "log_retention"])
        assert all(np.isfinite(x).all() for x in found.values())
        assert not found["log_retention"].any()
        alone = {name: x[:, 5:6] if isinstance(x, np.ndarray) else x for name, x in given.items()}
        if rule == "gdn":  # one memory: the token's own gradient is that of a sequence of one
            own = gradients(alone, lambda out, *_: out.sum(), names)
            assert_rows({name: found[name][:, 5:6] for name in names}, own, 1e-12)


# 3: fla 99, 736
@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("rule", ["rdn", "gdn"])
def test_keys_that_are_not_normalised_diverge_as_the_door_says_and_normalised_ones_do_not(impl, rule):
    given = arguments(rule, B=1, T=64, H=2, K=64, V=64, retention="one")
    given["k"] = normal(3, 3, 1, 64, 2, 64)  # |k|^2 about 64
    narrow = {name: x.astype(np.float16) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    out = attention(**narrow, normalize=True, impl=impl)
    want = reference.attention(**narrow, normalize=True)
    assert np.isfinite(out).all()
    assert row_error(out, want) < 2e-3  # float16 arrays may come back rounded to it
    assert "grows wherever retention" in attention.__doc__
    assert np.abs(reference.attention(**given)).max() > 1e6 * np.abs(want).max()
    assert np.abs(reference.attention(**given)[:, -1]).max() > 1e20
    if impl == "torch":  # in float64 even these are computed
        assert row_error(attention(**given, impl=impl), reference.attention(**given)) < 1e-9


# 4: fla 104
@pytest.mark.parametrize("impl", FAST)
def test_a_gate_that_is_always_one_is_no_gate(impl):
    given = single(arguments("deltanet", T=300))
    one = np.ones(given["write"].shape, np.float32)
    want = run(impl, **given)
    for gate in ({"retention": one}, {"log_retention": 0 * one}):
        got = run(impl, **given | gate | {"rule": "gdn"})
        assert all(np.array_equal(got[name], want[name]) for name in want)


# 5: fla 537
@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("write", [0.5, 1.0, 1.9, 2.0])
def test_one_key_again_and_again_stays_bounded(impl, write):
    given = single(arguments("rdn", T=200, H=1, retention="one"))
    given["k"][:] = given["k"][:, :1]
    given["write"][:], given["correction"][:] = write, 1
    terms = 200**2 if write == 2 else 205  # at 2 no rounding is ever forgotten: it grows with T, not its root
    out = assert_reference(impl, terms, **given)["out"]
    assert np.abs(out).max() < 1e3  # at write 2 what is recalled swings, and grows no faster than tokens are added


# 6: fla 88
@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("rule", RESIDUAL)
def test_one_to_eight_tokens(impl, rule):
    for T in range(1, 9):
        assert_reference(impl, T + 5, **single(arguments(rule, T=T, carried=True)))


# 7: fla 98
@pytest.mark.parametrize("impl", FAST)
def test_a_length_that_no_chunk_divides(impl):
    assert_reference(impl, 1334 + 5, **single(arguments("rdn", B=1, T=1334, H=2)))


# 8: fla 285, 494; huggingface/transformers 46190
@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("rule", RESIDUAL)
def test_a_run_cut_anywhere_is_one_run_with_both_memories(impl, rule):
    given = single(arguments(rule, T=41))
    whole = run(impl, **given)
    for t in range(42):
        first, state = attention(**cut(given, 0, t), return_state=True, impl=impl)
        later = run(impl, **cut(given, t, 41) | {"state": state})
        later["out"] = np.concatenate([first, later["out"]], 1)
        assert_rows(later, whole, 2e-5, t)


# 9, 10: fla 1272; huggingface/transformers 46773
@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("batch", [1, 2])
def test_padding_by_gates_changes_no_token_that_follows_and_no_memory(impl, batch):
    given = single(arguments("rdn", B=batch, T=40, carried=True))
    pad = np.arange(40) % 7 == 3
    for name, value in {"retention": 1, "write": 0, "correction": 0, "k": 5, "v": -9}.items():
        given[name][:, pad] = value
    short = {name: x[:, ~pad] if isinstance(x, np.ndarray) and x.ndim > 1 else x for name, x in given.items()}
    got = run(impl, **given)
    got["out"] = got["out"][:, ~pad]
    assert_rows(got, run(impl, **short), 1e-5)


# 13: fla 1140
@needs_torch
@pytest.mark.parametrize("rule", RESIDUAL)
@pytest.mark.parametrize("T", [1, 2, 3])
def test_gradients_of_very_short_runs_with_a_state(rule, T):
    given = arguments(rule, B=1, T=T, H=1, K=3, V=2, carried=True)
    loss = lambda out, S, R: (out**2).sum() + (S**2).sum() + (R**2).sum()  # noqa: E731
    found = gradients(given, loss, ["q", "k", "v", "retention", "write", "correction"])
    for name, x in found.items():
        for index in np.ndindex(x.shape):
            # a central difference of step h is right to h^2 and loses 1e-16 / h
            assert x[index] == pytest.approx(slope(given, (name, index), 1e-5, loss), rel=1e-6, abs=1e-7)


# 16: fla 37
@needs_torch
def test_gradients_of_states_keep_float32_where_the_input_is_bfloat16():
    import torch

    given = arguments("rdn", B=1, T=200, H=2, retention="nearly one", carried=True)
    narrow = {name: torch.tensor(x).bfloat16() for name, x in given.items() if isinstance(x, np.ndarray)}
    found = []
    for kind, arrays in ((torch.float32, narrow), (torch.float64, {name: x.double() for name, x in narrow.items()})):
        state = [torch.tensor(x, dtype=kind, requires_grad=True) for x in given["state"]]
        out, last = attention(**arrays, state=tuple(state), return_state=True, impl="torch")
        found.append(torch.autograd.grad(out.sum() + last.base.sum() + last.residual.sum(), state))
    for x, y in zip(*found, strict=True):
        assert x.dtype == torch.float32
        assert row_error(x, y) < 2e-5


# 17: fla 1080, 1173
@pytest.mark.skipif(sys.platform != "linux", reason="memory is reserved without being taken by Linux's number for it")
@pytest.mark.parametrize("impl", FAST)
def test_numbers_that_lie_further_apart_than_32_bits_can_count(impl):
    """q, k and v as views of memory that is never touched in between."""
    T, apart = 5, 2**29 + 16  # 2^31 numbers, 8 GB, from the first token to the last
    given = single(arguments("rdn", B=1, T=T, H=2))
    far = dict(given)
    maps = []
    for name in ("q", "k", "v"):
        size = 4 * ((T - 1) * apart + 16)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        maps.append(mmap.mmap(-1, size, flags=flags))
        whole = np.frombuffer(maps[-1], np.float32)
        x = given[name]
        far[name] = np.lib.stride_tricks.as_strided(whole, x.shape, (4 * T * apart, 4 * apart, 4 * x.shape[-1], 4))
        far[name][:] = x
    if impl == "torch":  # arrays are copied on the way in, tensors are not
        import torch

        far = {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in far.items()}
        assert far["q"].stride(1) == apart
    got, want = (run(impl, **x) for x in (far, given))
    assert all(np.array_equal(got[name], want[name]) for name in want)


# 18: fla 906
@pytest.mark.skipif(FASTEST is None, reason="neither numba nor torch is installed")
def test_tokens_after_the_65536th_are_not_skipped():
    """The last hundred tokens row by row, from a state that the chunked form brings there in float64."""
    T, tail = 65_537, 65_437
    given = single(arguments("rdn", B=1, T=T, H=1, K=3, V=2))
    got = run(FASTEST, **given)
    before, state = chunked.attention(**cut(given, 0, tail), chunk=256, return_state=True)
    last = cut(given, tail, T) | {"state": state, "return_state": True}
    exact, low = (flat(*reference.attention(**last, dtype=kind)) for kind in (np.float64, np.float32))
    assert row_error(got["out"][:, :tail], before) < 1e-4  # a thousandth of the largest is the least a row may count
    got["out"] = got["out"][:, tail:]
    for name in exact:
        seen = parity.compare(got[name], exact[name], low[name], terms=100 + 3)
        assert seen.ok, (name, seen.reason)


# 20: fla 838
def test_a_mask_beside_the_sequences_of_a_row_is_not_taken():
    given = arguments("rdn", B=1, T=6)
    with pytest.raises(TypeError, match="attention_mask"):
        attention(**given, cu_seqlens=np.array([0, 2, 6]), attention_mask=np.ones((1, 6)))


# 21: fla-org/native-sparse-attention 23; fla 837
@pytest.mark.parametrize("impl", FAST)
def test_sequences_that_no_chunk_divides_and_the_batch_they_need(impl):
    cuts = np.array([0, 781, 2048])
    given = single(arguments("rdn", B=1, T=2048, H=1, K=4, V=3))
    assert_reference(impl, 2048 + 4, **given, cu_seqlens=cuts)
    two = {name: np.repeat(x, 2, 0) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    with pytest.raises(ValueError, match="so B = 1 in q, got B = 2"):
        attention(**two, cu_seqlens=cuts, impl=impl)


# 23: fla 624
@pytest.mark.parametrize("impl", FAST)
def test_values_with_more_heads_than_keys_are_refused(impl):
    given = single(arguments("rdn", T=6))
    given["v"] = np.repeat(given["v"], 2, axis=2)
    with pytest.raises(ValueError, match=r"v must be \[B, T, H, V\] with H = 3 as in q"):
        attention(**given, impl=impl)


# 25: fla 231, 668
def test_it_is_imported_and_called_without_a_gpu():
    names = ["reference", *(impl for impl, why in ABSENT.items() if not why)]
    program = (
        "import numpy as np, sys, attnlab\n"
        "assert not {'torch', 'numba', 'triton'} & set(sys.modules), 'imported before they were asked for'\n"
        "x = np.ones((1, 3, 1, 2), np.float32)\n"
        f"for impl in {names}:\n"
        "    out = attnlab.residual.attention(x, x, x, [0.5], [0.5], impl=impl)\n"
        "    assert np.isfinite(out).all()\n"
        "print('called', len(out))"
    )
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, env=hidden, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "called 1"


# 25, the room that needs one
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the package torch is not installed")
def test_a_room_that_cannot_run_here_says_so_and_no_other_stands_in():
    reason = backend.why_not("triton", "residual")
    if reason is None:
        pytest.skip("the Triton room can run here")
    with pytest.raises(backend.Unavailable, match="impl='triton' cannot run here"):
        attention(**arguments("rdn", T=6), impl="triton")


def test_a_state_has_both_memories_by_name():
    """8 again: what is carried cannot lose the second memory, or take one for the other."""
    given = arguments("rdn", T=6, carried=True)
    with pytest.raises(ValueError, match=r"state\.residual must be given"):
        attention(**given | {"state": State(given["state"].base, None)})


# fla 1077
@pytest.mark.skipif(bool(backend.why_not("numba", "residual")), reason=str(backend.why_not("numba", "residual")))
def test_seventy_thousand_sequences_are_each_their_own():
    """Of one token each, which reads what it wrote."""
    N = 70_000
    given = {
        name: x.astype(np.float32)
        for name, x in arguments("gdn", B=1, T=N, H=1, K=2, V=3).items()
        if name != "rule" and x is not None
    }
    out = attention(**given, rule="gdn", cu_seqlens=np.arange(N + 1), impl="numba")
    overlap = np.einsum("bthk,bthk->bth", given["q"], given["k"])
    np.testing.assert_allclose(out, (overlap * given["write"])[..., None] * given["v"], rtol=1e-5, atol=1e-6)
