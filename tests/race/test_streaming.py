"""A stream of chunks is one run: from memory maps or generators, in constant memory, stopped and resumed or not."""

import itertools
import json
import tracemalloc
import weakref

import numpy as np
import pytest

from attnlab import backend, draws, parity
from attnlab.race import draw_planes, reference, streaming

B, H, K, V, T = 2, 3, 5, 4, 300
PLANES, SHARPNESS = draw_planes(2, 3, K).astype(np.float32), 2.0
ABSENT = {impl: backend.why_not(impl, "race") for impl in ("numba", "torch")}
IMPLS = ["reference"] + [
    pytest.param(impl, marks=pytest.mark.skipif(bool(why), reason=str(why))) for impl, why in ABSENT.items()
]


def qkv(T=T):
    shapes = ((T, K), (T, K), (T, V))
    return [draws.normal(3, i, B * n, H * w).reshape(B, n, H, w).astype(np.float32) for i, (n, w) in enumerate(shapes)]


def assert_parity(got, q, k, v, causal):
    """Chunks add the same terms in another order, which is what the budget of a fast path is for."""
    exact, low = (
        reference.attention(q, k, v, PLANES, SHARPNESS, causal=causal, dtype=kind) for kind in (np.float64, np.float32)
    )
    seen = parity.compare(got, exact, low, terms=q.shape[1] + 2 * 8)
    assert seen.ok, seen.reason


def cut(arrays, ends):
    """Chunks from 0 to the first end, from there to the next, ..."""
    return (tuple(x[:, a:b] for x in arrays) for a, b in itertools.pairwise((0, *ends)))


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("ends", [(T,), (1, 2, 150, T), (0, 64, 64, T, T), tuple(range(50, T + 1, 50))])
def test_ragged_and_empty_chunks_of_a_generator_are_one_run(impl, ends):
    q, k, v = qkv()
    state = streaming.write(cut((k, v), ends), PLANES, SHARPNESS, impl=impl)
    outs = streaming.read((part for (part,) in cut((q,), ends)), state, PLANES, SHARPNESS, impl=impl)
    assert_parity(np.concatenate(list(outs), axis=1), q, k, v, causal=False)
    outs = streaming.causal(cut((q, k, v), ends), PLANES, SHARPNESS, impl=impl)
    assert_parity(np.concatenate([out for out, _ in outs], axis=1), q, k, v, causal=True)


@pytest.mark.parametrize("impl", IMPLS)
def test_queries_need_not_be_as_many_as_keys_and_options_reach_the_door(impl):
    q, k, v = qkv()
    options = {"normalize": True, "impl": impl}
    state = streaming.write(streaming.slices(k, v, size=128), PLANES, SHARPNESS, **options)
    (out,) = streaming.read([q[:, :7]], state, PLANES, SHARPNESS, **options)
    want = reference.attention(q[:, :7], k, v, PLANES, SHARPNESS, normalize=True)
    np.testing.assert_allclose(out, want, atol=2e-6 * np.abs(want).max())  # 17 roundings of float32, sqrt(300 + 16)


def test_tensors_stream_as_tensors():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    q, k, v = (torch.from_numpy(x) for x in qkv())
    state = streaming.write(streaming.slices(k, v, size=70), PLANES, SHARPNESS, impl="torch")
    outs = list(streaming.read(streaming.slices(q, size=70), state, PLANES, SHARPNESS, impl="torch"))
    assert all(isinstance(out, torch.Tensor) for out in outs)
    assert_parity(torch.cat(outs, dim=1), q.numpy(), k.numpy(), v.numpy(), causal=False)


def test_slices_are_views_and_end_with_what_is_left():
    q, k, _ = qkv(10)
    assert [part.shape[1] for part in streaming.slices(q, size=4)] == [4, 4, 2]
    assert [a.shape[1] for a, b in streaming.slices(q, k, size=4, start=8)] == [2]
    assert next(streaming.slices(q)).base is not None
    assert list(streaming.slices(q[:, :0])) == []


# -- files --


@pytest.fixture
def saved(tmp_path):
    """The paths of q, k, v and out, and what is in the first three."""
    arrays = qkv()
    for name, x in zip("qkv", arrays, strict=True):
        np.save(tmp_path / f"{name}.npy", x)
    return [tmp_path / f"{name}.npy" for name in ("q", "k", "v", "out")], arrays


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("causal", [False, True])
def test_memory_maps_go_in_and_a_memory_map_comes_out(saved, impl, causal):
    paths, (q, k, v) = saved
    streaming.files(*paths, PLANES, SHARPNESS, causal=causal, size=64, impl=impl)
    assert_parity(np.load(paths[3], mmap_mode="r"), q, k, v, causal)


class Stopped(Exception):
    pass


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize(("causal", "steps"), [(False, 2), (False, 5), (False, 7), (True, 3)])
def test_a_stopped_run_goes_on_to_the_same_bits(saved, tmp_path, monkeypatch, impl, causal, steps):
    """Five chunks a pass: stopped while keys are written, right after them, while queries are read."""
    paths, _ = saved
    settings = {"causal": causal, "size": 64, "impl": impl}
    streaming.files(*paths, PLANES, SHARPNESS, **settings)
    whole = np.load(paths[3])

    save, left = streaming.save, [steps]

    def save_and_stop(*state, **told):
        save(*state, **told)
        left[0] -= 1
        if not left[0]:
            raise Stopped

    checkpoint = tmp_path / "state.npz"
    monkeypatch.setattr(streaming, "save", save_and_stop)
    with pytest.raises(Stopped):
        streaming.files(*paths, PLANES, SHARPNESS, checkpoint=checkpoint, **settings)
    assert checkpoint.exists()
    asked = []
    attention = streaming.attention

    def counted(q, k, *rest, **options):
        asked.extend([0] * bool(q.shape[1] + k.shape[1]))  # a call without a token only checks the arguments
        return attention(q, k, *rest, **options)

    monkeypatch.setattr(streaming, "attention", counted)
    streaming.files(*paths, PLANES, SHARPNESS, checkpoint=checkpoint, **settings)
    assert np.array_equal(np.load(paths[3]), whole)
    assert len(asked) == (5 if causal else 10) - steps  # what was done is not done again
    assert not checkpoint.exists()


def test_a_checkpoint_of_another_run_is_refused_by_what_differs(saved, tmp_path):
    paths, _ = saved
    checkpoint = tmp_path / "state.npz"
    state = reference.empty_state(B, H, 2, 8, V)
    streaming.save(checkpoint, state, run={"shapes": [[B, T, H, K], [B, T, H, K], [B, T, H, V]], "causal": True})
    with pytest.raises(ValueError, match=r"state.npz must be of this run, with causal = False, got one with True"):
        streaming.files(*paths, PLANES, SHARPNESS, checkpoint=checkpoint, impl="reference")


def test_files_of_different_lengths_are_refused(saved, tmp_path):
    paths, (_, k, _) = saved
    np.save(paths[1], k[:, :-1])
    with pytest.raises(ValueError, match=r"q, k and v must have one number of positions T in common, got \[300, 299"):
        streaming.files(*paths, PLANES, impl="reference")


@pytest.mark.parametrize("impl", IMPLS)
def test_a_state_comes_back_from_disk_as_it_was(tmp_path, impl):
    _, k, v = qkv()
    state = streaming.write([(k, v)], PLANES, SHARPNESS, impl=impl)
    told = {"done": 2**60, "sum": 0.1 + 0.2, "stage": "write"}
    streaming.save(tmp_path / "s", state, **told)
    back = streaming.load(tmp_path / "s")
    assert back.told == told
    for name, x in reference.State(*state)._asdict().items():
        assert (x is None and getattr(back.state, name) is None) or np.array_equal(getattr(back.state, name), x)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


@pytest.mark.parametrize("content", [b"", b"words", b"PK\x03\x04 torn"])
def test_a_file_that_is_no_state_is_refused(tmp_path, content):
    path = tmp_path / "state.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"path must be a file that streaming.save wrote, got .*state.npz"):
        streaming.load(path)
    np.savez(path, mass=np.ones(3))
    with pytest.raises(ValueError, match=r"path must be a file that streaming\.save wrote"):
        streaming.load(path)
    np.savez(path, told=np.array(json.dumps({})), mass=np.ones(3))
    with pytest.raises(ValueError, match=r"path must be a file that streaming\.save wrote"):
        streaming.load(path)


# -- memory --


@pytest.mark.parametrize("impl", IMPLS)
def test_memory_does_not_grow_with_the_stream(impl):
    size = 1024

    def peak(chunks):
        made, most = [], [0]

        class Chunk(np.ndarray):  # which has weak references
            pass

        def generated(*widths):
            for number in range(chunks):
                arrays = tuple(np.full((1, size, H, w), 0.01 * number, np.float32).view(Chunk) for w in widths)
                made.append(weakref.ref(arrays[0]))
                most[0] = max(most[0], sum(chunk() is not None for chunk in made))
                yield arrays
                del arrays

        tracemalloc.start()
        try:
            state = streaming.write(generated(K, V), PLANES, SHARPNESS, impl=impl)
            queries = (q for (q,) in generated(K))
            assert sum(out.shape[1] for out in streaming.read(queries, state, PLANES, impl=impl)) == size * chunks
            assert (
                sum(out.shape[1] for out, _ in streaming.causal(generated(K, K, V), PLANES, impl=impl)) == size * chunks
            )
            return tracemalloc.get_traced_memory()[1], most[0]
        finally:
            tracemalloc.stop()

    peak(2)  # whatever is imported and compiled at first use
    (short, alive_short), (long, alive_long) = peak(4), peak(16)
    assert alive_short == alive_long <= 2  # the next one is made before the last is let go
    assert long < short + 4 * size * H * (2 * K + V)  # 36 more chunks do not add up to one


# -- refusals --


def bad(array):
    array = array.copy()
    array[0, 3, 1, 2] = np.nan
    return array


@pytest.mark.parametrize("impl", IMPLS)
def test_a_nan_is_refused_by_name_and_place_when_its_turn_comes(impl):
    q, k, v = qkv(20)
    chunks = [(q, k, v), (q, k, bad(v))]
    stream = streaming.causal(chunks, PLANES, impl=impl)
    next(stream)
    with pytest.raises(ValueError, match=r"v must be finite, got nan at \[0, 3, 1, 2\]") as caught:
        next(stream)
    assert caught.value.__notes__ == ["This was chunk 1 of the stream, counted from 0."]
    with pytest.raises(ValueError, match="k must be finite"):
        streaming.write([(bad(k), v)], PLANES, impl=impl)
    state = streaming.write([(k, v)], PLANES, impl=impl)
    with pytest.raises(ValueError, match="q must be finite"):
        next(streaming.read([bad(q)], state, PLANES, impl=impl))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda q, k, v: streaming.write([], PLANES),
            r"chunks must hold at least one \(k, v\) where no state is given",
        ),
        (lambda q, k, v: streaming.write([k], PLANES), r"each of chunks must be \(k, v\), got ndarray in chunk 0"),
        (lambda q, k, v: streaming.write([(q, k, v)], PLANES), r"each of chunks must be \(k, v\), got 3 of them"),
        (lambda q, k, v: next(streaming.causal([(k, v)], PLANES)), r"each of chunks must be \(q, k, v\), got 2"),
        (lambda q, k, v: streaming.write([(k[0], v)], PLANES), r"k must be \[B, T, H, K\], got 3 axes"),
        (
            lambda q, k, v: next(streaming.read([q], None, PLANES)),
            "state must be the State that write returned, got No",
        ),
        (lambda q, k, v: streaming.slices(q, k[:, 1:]), r"arrays must have one number of positions T in common, got"),
        (lambda q, k, v: streaming.slices(q, size=0), r"size must lie in \[1, .*\], got 0"),
        (lambda q, k, v: streaming.slices(q, start=21), r"start must lie in \[0, 20\], got 21"),
        (lambda q, k, v: list(streaming.steps(None, 5, PLANES, causal=1)), "causal must be True or False, got 1"),
    ],
)
def test_what_is_wrong_is_named(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call(*qkv(20))


@pytest.mark.parametrize("impl", IMPLS)
def test_a_chunk_of_another_shape_does_not_fit_the_state(impl):
    _, k, v = qkv(20)
    with pytest.raises(ValueError, match=r"state.content must be \[B, H, L, R, V\] with V = 3 as in v"):
        streaming.write([(k, v), (k, v[..., :3])], PLANES, impl=impl)


def test_a_file_that_stands_there_is_not_lost_to_a_mistake(tmp_path):
    q, k, v = (draws.normal(4, i, 40, 16).reshape(1, 40, 2, 8).astype(np.float32) for i in range(3))
    paths = [tmp_path / f"{name}.npy" for name in "qkv"]
    for path, x in zip(paths, (q, k, v), strict=True):
        np.save(path, x)
    planes = draw_planes(2, 2, 8)
    for changed, message in (
        ({"out": paths[0]}, "out must be another file than q"),
        ({"impl": "none"}, "impl must be one of"),
        ({"size": 0}, "size must"),
        ({"sharpness": -1.0}, "sharpness must"),
    ):
        arguments = {"out": paths[2].with_name("out.npy"), "planes": planes, "sharpness": 1.0, "impl": "reference"}
        arguments["out"].write_bytes(b"what stood there")
        with pytest.raises(ValueError, match=message):
            streaming.files(*paths, **arguments | changed)
        assert (tmp_path / "out.npy").read_bytes() == b"what stood there"
    assert np.array_equal(np.load(paths[0]), q)
    np.save(tmp_path / "flat.npy", q[0])
    with pytest.raises(ValueError, match="k must be a file of"):
        streaming.files(paths[0], tmp_path / "flat.npy", paths[2], tmp_path / "o.npy", planes, impl="reference")
