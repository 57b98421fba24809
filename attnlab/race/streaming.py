"""RACE over more tokens than memory holds: chunks come from memory maps or from a generator, outputs leave chunk by
chunk. What stays is one chunk and the state, L R (V + 1) float64 numbers a head, however long the stream.

Non-causal attention (Algorithm 1, p. 5) reads what all keys have written, so it takes two passes; causal attention
(Algorithm 2, p. 27) takes one:

    state = streaming.write(streaming.slices(k, v), planes)
    outs = streaming.read(streaming.slices(q), state, planes)

    for out, state in streaming.causal(streaming.slices(q, k, v), planes): ...

`steps` does either over chunks that a function gives, `files` from .npy files into a .npy file. `save` and `load` keep
a state on disk: whoever goes on from it with the same chunks gets the same bits as a run that never stopped. Other
chunks add the same terms in another order, so they agree as a fast path agrees with the reference: to the rounding of
sums inside a chunk (float32), while the sum over chunks is float64 and adds none that shows.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np

from attnlab.arrays import Array, Float, as_numpy, check, dial, flag
from attnlab.race.api import attention
from attnlab.race.params import State

__all__ = [
    "CHUNK", "Saved", "Step", "causal", "files", "load", "read", "resume", "save", "slices", "spans", "steps", "write",
]  # fmt: skip

CHUNK = 65_536  # tokens


def spans(tokens: int, size: int = CHUNK, start: int = 0) -> Iterator[slice]:
    """The positions `start` to `tokens` in slices of `size`, the last one as long as what is left.

    Raises ValueError for a size below 1 or a start outside [0, tokens].
    """
    dial("size", size, 1, 2**62, integer=True)
    dial("start", start, 0, tokens, integer=True)
    return (slice(first, min(first + size, tokens)) for first in range(start, tokens, size))


def slices(*arrays: Float[Array, "B T H K"], size: int = CHUNK, start: int = 0) -> Iterator[Any]:
    """Views of `size` tokens of one array (a memory map, a tensor), or tuples of views where several are given.

    Raises ValueError where the arrays differ in T, and as `spans`.
    """
    lengths = {np.shape(x)[1] for x in arrays}
    if len(lengths) != 1:
        raise ValueError(f"arrays must have one number of positions T in common, got {sorted(lengths)}")
    parts = (tuple(x[:, span] for x in arrays) for span in spans(lengths.pop(), size, start))
    return (part[0] for part in parts) if len(arrays) == 1 else parts


def write(
    chunks: Iterable[tuple[Float[Array, "B S H K"], Float[Array, "B S H V"]]],
    planes: Float[Array, "L P K"],
    sharpness: float | Float[Array, " H"] = 1.0,
    *,
    state: State | None = None,
    impl: str = "numba",
    **options: Any,
) -> State:
    """The state that all keys and values leave behind, on top of a carried one. `options` as of `api.attention`.

    Raises what `api.attention` raises, and ValueError for a chunk that is no pair (k, v), and for no chunk at all on no
    state, of which nobody knows the shape.
    """
    for number, (k, v) in enumerate(_tuples(chunks, "k", "v")):
        with _in_chunk(number):
            _, state = attention(
                _no_tokens("k", k), k, v, planes, sharpness, state=state, return_state=True, impl=impl, **options
            )
    if state is None:
        raise ValueError("chunks must hold at least one (k, v) where no state is given, got none")
    return state


def read(
    queries: Iterable[Float[Array, "B T H K"]],
    state: State,
    planes: Float[Array, "L P K"],
    sharpness: float | Float[Array, " H"] = 1.0,
    *,
    impl: str = "numba",
    **options: Any,
) -> Iterator[Float[Array, "B T H V"]]:
    """The output of each chunk of queries against all that was written. `options` as of `api.attention`.

    Raises what `api.attention` raises, when the chunk's turn comes.
    """
    if not isinstance(state, tuple) or len(state) not in (2, 3):
        raise ValueError(f"state must be the State that write returned, got {type(state).__name__}")
    V = state[1].shape[-1]
    for number, q in enumerate(queries):
        with _in_chunk(number):
            k = _no_tokens("q", q)
            shape = (*k.shape[:3], V)
            v = k.new_zeros(shape) if hasattr(k, "new_zeros") else np.zeros(shape, k.dtype)
            out = attention(q, k, v, planes, sharpness, state=state, impl=impl, **options)
        yield out


def causal(
    chunks: Iterable[tuple[Float[Array, "B T H K"], Float[Array, "B T H K"], Float[Array, "B T H V"]]],
    planes: Float[Array, "L P K"],
    sharpness: float | Float[Array, " H"] = 1.0,
    *,
    state: State | None = None,
    impl: str = "numba",
    **options: Any,
) -> Iterator[tuple[Float[Array, "B T H V"], State]]:
    """The output of each chunk (q, k, v), and the state after it. `options` as of `api.attention`.

    Raises what `api.attention` raises, and ValueError for a chunk that is no triple, when its turn comes.
    """
    for number, (q, k, v) in enumerate(_tuples(chunks, "q", "k", "v")):
        with _in_chunk(number):
            out, state = attention(
                q, k, v, planes, sharpness, causal=True, state=state, return_state=True, impl=impl, **options
            )
        yield out, state


_causal = causal  # below, the word is an argument


class Step(NamedTuple):
    """A chunk that is done: at which stage ("write" and "read", or "causal"), where it stands, the state after it, and
    its output, None where it was written.
    """

    stage: str
    span: slice
    state: State
    out: Any

    def place(self) -> dict[str, Any]:
        """The stage and the number of tokens that it has done, to be saved with the state."""
        return {"stage": self.stage, "done": self.span.stop}


def steps(
    source: Callable[[str, slice], tuple[Any, ...]],
    tokens: int,
    planes: Float[Array, "L P K"],
    sharpness: float | Float[Array, " H"] = 1.0,
    *,
    causal: bool = False,
    size: int = CHUNK,
    after: "Saved | None" = None,
    impl: str = "numba",
    **options: Any,
) -> Iterator[Step]:
    """Attention over `tokens` positions, chunk by chunk in both passes: `source(stage, span)` gives (k, v) to write,
    (q,) to read, (q, k, v) where causal. `after`, what was saved with a step's `place()`, goes on behind that step.

    Raises what `api.attention` and `spans` raise, when the chunk's turn comes.
    """
    flag("causal", causal)
    stages = ("causal",) if causal else ("write", "read")
    state: Any = after.state if after else None
    begin, done = (stages.index(after.told["stage"]), after.told["done"]) if after else (0, 0)
    settings: dict[str, Any] = {"sharpness": sharpness, "impl": impl, **options}
    for stage in stages[begin:]:
        for span in spans(tokens, size, done):
            part, out = source(stage, span), None
            if stage == "write":
                state = write([part], planes, state=state, **settings)
            elif stage == "read":
                (out,) = read(part, state, planes, **settings)
            else:
                ((out, state),) = _causal([part], planes, state=state, **settings)
            yield Step(stage, span, state, out)
        done = 0


# -- a state on disk --


class Saved(NamedTuple):
    """A state, and the words and numbers that were saved with it."""

    state: State
    told: dict[str, Any]


def save(path: str | Path, state: State, **told: Any) -> None:
    """Write the state, and what is `told` beside it (words, whole numbers, float64: all come back as they were), to a
    .npz file. Who reads it finds the old file or the new one, never half of one.
    """
    path = Path(path)
    arrays: dict[str, Any] = {name: as_numpy(x) for name, x in State(*state)._asdict().items() if x is not None}
    beside = path.with_name(path.name + ".part")
    with beside.open("wb") as file:
        np.savez(file, **arrays, told=np.array(json.dumps(told)))
    os.replace(beside, path)


def load(path: str | Path) -> Saved:
    """What `save` wrote. Raises ValueError for a file that it did not write, FileNotFoundError where there is none."""
    try:
        with Path(path).open("rb") as opened, np.load(opened) as file:
            log_scale = file["log_scale"] if "log_scale" in file else None
            return Saved(State(file["mass"], file["content"], log_scale), json.loads(str(file["told"])))
    except (ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
        raise ValueError(f"path must be a file that streaming.save wrote, got {str(path)!r}") from error


def resume(path: str | Path | None, **run: Any) -> Saved | None:
    """What `save(path, state, run=run, ...)` wrote of this same run, or None where there is no such file.

    Raises ValueError where the file is of another run, with the first thing that differs.
    """
    if path is None or not Path(path).exists():
        return None
    saved = load(path)
    other = saved.told.get("run", {})
    for name, value in json.loads(json.dumps(run)).items():
        if other.get(name) != value:
            raise ValueError(
                f"{path} must be of this run, with {name} = {value}, got one with {other.get(name)}; "
                "delete it, or name another"
            )
    return saved


def files(
    q: str | Path,
    k: str | Path,
    v: str | Path,
    out: str | Path,
    planes: Float[Array, "L P K"],
    sharpness: float | Float[Array, " H"] = 1.0,
    *,
    causal: bool = False,
    size: int = CHUNK,
    checkpoint: str | Path | None = None,
    impl: str = "numba",
    **options: Any,
) -> None:
    """Attention of the .npy files q, k [B, T, H, K] and v [B, T, H, V], into the new .npy file `out` (float32).

    With `checkpoint`, a path, the state is saved there after each chunk of `size` tokens, a run that finds the file
    goes on behind that chunk, and a finished one removes it. Nobody else may change `out` in between.
    Raises what `api.attention` raises, and ValueError where the files differ in T, and for a checkpoint of another run.
    """
    paths = {"causal": (q, k, v), "write": (k, v), "read": (q,)}
    shapes = [np.load(path, mmap_mode="r").shape for path in paths["causal"]]
    for name, shape in zip("qkv", shapes, strict=True):
        if len(shape) != 4:
            raise ValueError(f"{name} must be a file of [B, T, H, width], got {len(shape)} axes of sizes {shape}")
    if len({shape[1] for shape in shapes}) != 1:
        raise ValueError(f"q, k and v must have one number of positions T in common, got {[s[1] for s in shapes]}")
    digest = hashlib.sha256(as_numpy(planes).tobytes()).hexdigest()
    run = {"shapes": shapes, "causal": causal, "size": size, "planes": digest, "impl": impl, **options}
    run["sharpness"] = as_numpy(sharpness).tolist()
    saved = resume(checkpoint, **run)
    # all that may be wrong is found before a file that stands at `out` is lost
    for name, path in zip("qkv", paths["causal"], strict=True):
        if Path(out).exists() and os.path.samefile(out, path):
            raise ValueError(f"out must be another file than {name}, got {out} for both")
    no_q, no_k, no_v = (np.load(path, mmap_mode="r")[:, :0] for path in paths["causal"])
    attention(no_q, no_k, no_v, planes, sharpness, causal=causal, impl=impl, **options)
    dial("size", size, 1, 2**31, integer=True)
    if saved is not None and not Path(out).exists():
        raise ValueError(f"out must be the file that the run of checkpoint began, and there is none at {out}")
    if saved is None:
        np.lib.format.open_memmap(out, "w+", np.float32, (*shapes[0][:3], shapes[2][3]))

    def source(stage: str, span: slice) -> tuple[Array, ...]:
        return tuple(np.load(path, mmap_mode="r")[:, span] for path in paths[stage])  # mapped for this chunk only

    for step in steps(
        source, shapes[0][1], planes, sharpness, causal=causal, size=size, after=saved, impl=impl, **options
    ):
        if step.out is not None:
            np.load(out, mmap_mode="r+")[:, step.span] = as_numpy(step.out)
        if checkpoint is not None:
            save(checkpoint, step.state, run=run, **step.place())
    if checkpoint is not None:
        Path(checkpoint).unlink(missing_ok=True)


# -- chunks as they come --


def _tuples(chunks: Iterable[Any], *names: str) -> Iterator[tuple[Any, ...]]:
    for number, chunk in enumerate(chunks):
        if not isinstance(chunk, tuple | list) or len(chunk) != len(names):
            came = f"{len(chunk)} of them" if isinstance(chunk, tuple | list) else type(chunk).__name__
            raise ValueError(f"each of chunks must be ({', '.join(names)}), got {came} in chunk {number}")
        yield tuple(chunk)


def _no_tokens(name: str, x: Any) -> Any:
    """The same batch, heads and width without a token. Raises as `arrays.check` where x has not four axes."""
    if len(np.shape(x)) != 4:
        check(name, x, "B T H K", {})
    return x[:, :0] if hasattr(x, "shape") else np.asarray(x)[:, :0]


@contextmanager
def _in_chunk(number: int) -> Iterator[None]:
    """Where in the stream an error stands."""
    try:
        yield
    except (TypeError, ValueError) as error:
        error.add_note(f"This was chunk {number} of the stream, counted from 0.")
        raise
