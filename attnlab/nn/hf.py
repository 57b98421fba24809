"""Sparse decoding of a Hugging Face model: who chooses the tokens is a name of attention, as "sdpa" is one.

    from attnlab.nn import hf

    hf.register()
    model.set_attn_implementation("attnlab_hash")       or attn_implementation= where the model is loaded
    decoding = hf.configure(model, budget=96, sinks=16, window=16, maps=maps, dense=(0, 1), record=True)
    model.generate(...)
    decoding.report()                                   recall, mass, error and tokens read of each layer

There is a name for each of attnlab.hashattention.selectors: "attnlab_hash", "attnlab_exact", "attnlab_quest" and so on.
A step of several tokens, as a prompt is, runs dense by torch's SDPA; a step of one token reads what is selected.

Codes are kept from step to step, each key encoded once. An attention function is handed all keys and not told where
they come from, so a layer keeps a copy of the keys that its codes are of, and compares: codes of the longest common
beginning stay, all others are forgotten. That is right for every way a cache can change (cropped, reordered, reset,
another sequence, another batch), and costs one reading of the keys a step; transformers' DynamicCache, which copies all
keys and values in each step, costs more. So this is for what a choice does to a model. How fast it can be is a question
for the operator itself, attnlab.hashattention.attention.

Needs torch and, from `register` on, transformers.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch

from attnlab.arrays import Array, as_float, as_numpy, dial, flag
from attnlab.backend import Unsupported, load
from attnlab.growing import Growing
from attnlab.hashattention import selectors
from attnlab.hashattention.api import attention, encode, select
from attnlab.hashattention.cache import CodeCache
from attnlab.hashattention.params import Maps, check_maps, check_size, tokens_of
from attnlab.hashattention.selectors import Head, Options

__all__ = ["PREFIX", "REMEMBERING", "Decoding", "LayerReport", "configure", "register"]

PREFIX = "attnlab_"
REMEMBERING = ("past_mean", "h2o", "double_sparsity")  # selectors that look at past queries
NOT_PLAIN = ("softcap", "s_aux", "position_bias")  # what some models add to softmax attention, and nothing here has

Pair = tuple[Maps, Maps]  # of queries, of keys
Span = tuple[int, int]  # what the newest query of a row sees: from, to


class LayerReport(NamedTuple):
    """Means over the sparse queries of one layer, all heads and rows; defined as in `selectors.measure`."""

    layer: int
    queries: int  # how many the means are over: tokens x rows x heads
    visible: float  # tokens
    tokens_read: float
    recall: float  # of the `top` largest logits outside sinks and window, which part is read
    mass: float  # of the dense softmax, on the tokens that are read
    middle_mass: float  # the same of what lies outside sinks and window
    output_error: float  # |o - o'| / |o|


# -- names --


def register() -> tuple[str, ...]:
    """Make the names known to transformers, and give them back; again is fine.

    Raises ImportError where transformers is not installed.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    names = tuple(PREFIX + name for name in selectors.SELECTORS)
    for name in names:
        AttentionInterface.register(name, _function(name.removeprefix(PREFIX)))
        AttentionMaskInterface.register(name, AttentionMaskInterface()["sdpa"])
    return names


def configure(
    model: torch.nn.Module,
    *,
    budget: int | float,
    sinks: int | float = 128,
    window: int | float = 128,
    maps: Mapping[int, Pair] | None = None,
    dense: Iterable[int] = (),
    several: bool = False,
    impl: str = "torch",
    options: Options = Options(),  # noqa: B008
    record: bool = False,
    top: int = 64,
) -> "Decoding":
    """Say what all attnlab names do in this model, until told anew.

    `budget`, `sinks`, `window` as of `attention`: a whole number of tokens, or a fraction of the visible ones. Layers
    in `dense` stay dense. "attnlab_hash" needs `maps`, (of the queries, of the keys) for each other layer: those of the
    queries for every query head, those of the keys for every key/value head or every query head; `impl` is its
    implementation. `options` are those of the other selectors. With `record` every sparse step is also computed dense,
    and compared; `top` is the k of recall@k.

    With `several`, steps of several tokens behind others are sparse too, each token as if it came alone; the first
    step stays dense. It makes it cheap to judge a given text. Selectors that take a statistic of all keys or queries
    they are given (lsh_centred, lsh_lifted, magicpig) take it of the whole step then.

    Raises ValueError naming the argument, TypeError for a model that is none of transformers', backend.Unavailable
    where `impl` cannot run here.
    """
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "get_text_config"):
        raise TypeError(f"model must be one of transformers', got {type(model).__name__}")
    config = config.get_text_config()
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    sizes = {"budget": budget, "sinks": sinks, "window": window}
    for name, size in sizes.items():
        check_size(name, size)
    maps, dense = dict(maps or {}), tuple(dense)
    for layer in (*maps, *dense):
        dial("a layer of maps or dense", layer, 0, config.num_hidden_layers - 1, integer=True)
    for layer, pair in maps.items():
        if not isinstance(pair, tuple) or len(pair) != 2 or isinstance(pair, Maps):
            raise ValueError(f"maps[{layer}] must be (maps of the queries, maps of the keys), got {pair!r:.80}")
        check_maps(f"maps[{layer}][0]", pair[0], heads, width)
        CodeCache(pair[1])  # which checks them
        if pair[0].bits != pair[1].bits:
            raise ValueError(f"maps[{layer}] must have one number of bits, got {pair[0].bits} and {pair[1].bits}")
    load(impl, "hashattention")
    dial("top", top, 1, 2**40, integer=True)
    decoding = Decoding(
        sizes, maps, frozenset(dense), flag("several", several), impl, options, flag("record", record), int(top)
    )
    for module in model.modules():
        _DECODINGS[module] = decoding
    return decoding


_DECODINGS: WeakKeyDictionary[torch.nn.Module, "Decoding"] = WeakKeyDictionary()


def _function(name: str) -> Any:
    """The attention function of a selector, as transformers calls it."""
    from transformers import AttentionInterface

    sdpa = AttentionInterface()["sdpa"]

    def attend(module, query, key, value, attention_mask, *, dropout=0.0, scaling=None, **others):
        decoding = _DECODINGS.get(module)
        if decoding is None:
            raise ValueError(f"{PREFIX}{name} must be told what to read: attnlab.nn.hf.configure(model, budget=...)")
        for other in NOT_PLAIN:
            if others.get(other) is not None:
                raise ValueError(f"{other} must be None for {PREFIX}{name}, which is plain softmax attention")
        if decoding.reads(name, module.layer_idx, query.shape[2], attention_mask):
            if dropout:
                raise ValueError(f"dropout must be 0 for {PREFIX}{name}, got {dropout}; use model.eval()")
            return decoding.attend(name, module.layer_idx, query, key, value, attention_mask, scaling), None
        decoding.watch(name, module.layer_idx, query, key, attention_mask, scaling)
        return sdpa(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others)

    return attend


# -- what a model reads --


class Decoding:
    """The settings of one model, what its layers keep from step to step, and what was recorded; `configure` makes it.

    Layers keep a copy of the keys that they saw last, until `reset` or until the model is gone.
    """

    def __init__(self, sizes, maps, dense, several, impl, options, record, top):
        self.sizes: dict[str, Any] = sizes
        self.maps: dict[int, Pair] = maps
        self.dense: frozenset[int] = dense
        self.several: bool = several
        self.impl: str = impl
        self.options: Options = options
        self.record: bool = record
        self.top: int = top
        self._layers: dict[int, _Layer] = {}
        self._records: dict[int, list[tuple[float, ...]]] = {}

    def reset(self) -> None:
        """Forget keys, codes and records. No new sequence needs it: keys are compared."""
        self._layers.clear()
        self._records.clear()

    def report(self) -> list[LayerReport]:
        """What was recorded since `configure` or `reset`, one line for each sparse layer that ran.

        Raises ValueError where nothing is recorded.
        """
        if not self.record:
            raise ValueError("record must be True in configure for a report, got False")
        return [
            LayerReport(layer, len(rows), *map(float, np.mean(rows, axis=0)))
            for layer, rows in sorted(self._records.items())
        ]

    def reads(self, name: str, number: int, T: int, mask: Any) -> bool:
        """Whether a step of T tokens is sparse in this layer. Raises ValueError for a layer without maps.

        A step is behind others where its first query sees more than itself.
        """
        if number in self.dense:
            return False
        if name == "hash" and number not in self.maps:
            raise ValueError(f"layer {number} must have maps, or be listed as dense: configure(model, maps=, dense=)")
        if T == 1 or mask is None or not self.several:
            return T == 1
        return (
            mask.dtype != torch.bool or int(mask[:, 0, 0].sum(-1).max()) > 1
        )  # `attend` says what is wrong with others

    def watch(self, name: str, number: int, query: Any, key: Any, mask: Any, scaling: float | None) -> None:
        """What a dense step leaves behind for selectors that look at past queries."""
        if name in REMEMBERING and number not in self.dense:
            if mask is None:
                key = key[:, :, : query.shape[2]]  # the first step of a static cache, as SDPA sees it
            visible = _visible(mask, query, key)
            key = key[:, :, : visible.shape[-1]]
            with _plain():
                self._layer(number).remembered(name, query, key).watch(query, key, visible, _scale(scaling, query))

    def attend(
        self, name: str, number: int, query: Any, key: Any, value: Any, mask: Any, scaling: float | None
    ) -> torch.Tensor:
        """O [B, T, H, V] of a sparse step: query [B, H, T, K], key and value [B, G, S, K or V], and SDPA's boolean mask
        of the visible tokens [B, 1, T, S], which in each row are neighbours up to the query's own.

        Raises ValueError for another mask, Unsupported for gradients that would be lost.
        """
        spans = _spans(_visible(mask, query, key))
        end = max(end for _, end in spans)
        key, value = key[:, :, :end], value[:, :, :end]
        layer, scale = self._layer(number), _scale(scaling, query)
        if name == "hash":
            return self._by_codes(layer, number, query, key, value, spans, scale)
        if query.requires_grad and torch.is_grad_enabled():
            raise Unsupported(f"{PREFIX}{name} has no gradients, and its query requires one; use torch.no_grad()")
        past = None
        if name in REMEMBERING:
            with _plain():
                past = layer.remembered(name, query, key)
        q, k, v = (as_float(x) for x in (query, key, value))
        (B, H, T), G = q.shape[:3], k.shape[1]
        out = np.empty((B, H, T, v.shape[-1]))
        for b, (start, end) in enumerate(spans):
            chosen = np.zeros((H, T, end - start), bool)
            for h in range(H):
                head = Head(q[b, h], k[b, h * G // H, start:end], v[b, h * G // H, start:end], scale)
                if past is None:
                    selection = selectors.select(name, head, **self.sizes, options=self.options)
                else:
                    selection = selectors.plain(past.select(head, b, h, start, self.sizes, self.options))
                chosen[h], out[b, h] = selection.chosen, selectors.outputs(head, selection)
            if past is not None:
                past.queries[b] += T
            if self.record:
                self._note(number, q[b], k[b, :, start:end], v[b, :, start:end], scale, chosen, out[b])
        return torch.as_tensor(out, dtype=query.dtype, device=query.device).transpose(1, 2).contiguous()

    def _by_codes(
        self, layer: "_Layer", number: int, query: Any, key: Any, value: Any, spans: list[Span], scale: float
    ) -> torch.Tensor:
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))
        with _plain():
            key_codes = layer.codes_of(key)
        query_codes = encode(q, self.maps[number][0], impl=self.impl)
        out = q.new_empty((*q.shape[:3], v.shape[-1]))
        for start, end in dict.fromkeys(spans):  # rows of one length at once
            rows = [b for b, span in enumerate(spans) if span == (start, end)]
            at: Any = slice(None) if len(rows) == len(spans) else rows  # a slice copies nothing
            codes = query_codes[at], key_codes[at, start:end]
            o = attention(q[at], k[at, start:end], v[at, start:end], *codes, **self.sizes, scale=scale, impl=self.impl)
            out[at] = torch.as_tensor(o, dtype=out.dtype, device=out.device)
            if self.record:
                sets = as_numpy(select(*codes, **self.sizes, impl=self.impl)).swapaxes(1, 2)
                chosen = np.zeros((*sets.shape[:3], end - start + 1), bool)
                np.put_along_axis(chosen, sets, True, axis=-1)  # -1 fills up, and falls on the one behind the last
                for row, b in enumerate(rows):
                    seen = as_float(query[b]), as_float(key[b, :, start:end]), as_float(value[b, :, start:end])
                    self._note(number, *seen, scale, chosen[row, ..., :-1], as_float(o[row]).swapaxes(0, 1))
        return out

    def _note(self, number: int, q: Any, k: Any, v: Any, scale: float, chosen: Any, o: Any) -> None:
        """Record one row of the batch: q [H, T, K], k and v [G, S, K or V], chosen [H, T, S], o [H, T, V]."""
        (H, T, S), G = chosen.shape, len(k)
        n, index = np.arange(S - T + 1, S + 1)[:, None], np.arange(S)  # n are visible, of each query
        first, last = (np.array([[tokens_of(self.sizes[x], int(m))] for m in n[:, 0]]) for x in ("sinks", "window"))
        rows, share = (H * T, S), selectors.share
        free = np.broadcast_to((index >= first) & (index < n - last), chosen.shape).reshape(rows)
        chosen, o = chosen.reshape(rows), o.reshape(H * T, -1)
        logits = (scale * q.reshape(G, -1, q.shape[-1]) @ k.mT).reshape(H, T, S)
        logits = np.where(index < n, logits, -np.inf).reshape(rows)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        dense = (weights.reshape(G, -1, S) @ v).reshape(H * T, -1)
        true, kept = selectors.best(logits, free, np.full(H * T, self.top)), weights * chosen
        columns = (
            np.tile(n[:, 0], H),
            chosen.sum(axis=1),
            share((true & chosen).sum(axis=1), true.sum(axis=1)),
            kept.sum(axis=1),
            share((kept * free).sum(axis=1), (weights * free).sum(axis=1)),
            share(np.linalg.norm(o - dense, axis=1), np.linalg.norm(dense, axis=1), empty=0.0),
        )
        self._records.setdefault(number, []).extend(zip(*columns, strict=True))

    def _layer(self, number: int) -> "_Layer":
        if number not in self._layers:
            self._layers[number] = _Layer(self.maps.get(number), self.impl)
        return self._layers[number]


# -- what a layer keeps --


class _Layer:
    """The keys that a layer saw last [B, G, S, K], and what was made of them."""

    def __init__(self, maps: Pair | None, impl: str):
        self.keys = Growing(axis=2)
        self.codes = CodeCache(maps[1], impl=impl) if maps else None
        self.past: _Past | None = None

    def codes_of(self, key: torch.Tensor) -> Any:
        """The codes of these keys [B, S, C, W]; what begins as the keys before did has them already."""
        assert self.codes is not None
        self._agree(key)
        new: Any = key[:, :, len(self.codes) :].transpose(1, 2)
        self.codes.append(new)
        return self.codes.codes

    def remembered(self, name: str, query: torch.Tensor, key: torch.Tensor) -> "_Past":
        """The sums over past queries, which must have been at all keys but the last ones."""
        (B, H, T, K), S = query.shape, key.shape[2]
        self._agree(key)
        if T == S:
            self.past = _Past(name, B, H, K)
        elif self.past is None or (self.past.name, self.past.tokens) != (name, S - T):
            raise ValueError(
                f"{PREFIX}{name} sums over all queries since the prompt began, so its cache must hold what they saw "
                f"and nothing else; of the {S - T} keys before this step that is not known. Give the whole prompt "
                "again, or use a selector that does not look at past queries"
            )
        self.past.grow(S)
        return self.past

    def _agree(self, key: torch.Tensor) -> None:
        """Keep these keys in place of those of before, and what was made of the beginning that both have."""
        held, same = self.keys.view, 0
        if held is not None and (held.dtype, held.device) == (key.dtype, key.device):
            if (*held.shape[:2], held.shape[3]) == (*key.shape[:2], key.shape[3]):
                n = min(held.shape[2], key.shape[2])
                one, other = held[:, :, :n], key[:, :, :n]
                same = n if torch.equal(one, other) else int((one == other).all(3).all(1).all(0).int().argmin())
        if self.past is not None and same < self.past.tokens:
            self.past = None  # a sum cannot be taken apart
        if same:
            self.keys.truncate(same)
        else:
            self.keys.reset()
        if self.codes is not None:
            if same:
                self.codes.truncate(min(same, len(self.codes)))
            else:
                self.codes.reset()
        self.keys.append(key[:, :, same:])


class _Past:
    """Sums over the queries so far, float64: what each key was given, whether H2O still has it, and how large the
    queries' channels are. `queries` counts them in each row, padding not.
    """

    def __init__(self, name: str, B: int, H: int, K: int):
        self.name = name
        self.given, self.kept = np.zeros((B, H, 0)), np.ones((B, H, 0), bool)
        self.channels, self.queries = np.zeros((B, H, K)), np.zeros(B, np.int64)

    @property
    def tokens(self) -> int:
        """How many keys there are sums for."""
        return self.given.shape[2]

    def grow(self, S: int) -> None:
        """Room for S keys; new ones were given nothing."""
        more = ((0, 0), (0, 0), (0, S - self.tokens))
        self.given, self.kept = np.pad(self.given, more), np.pad(self.kept, more, constant_values=True)

    def watch(
        self, query: torch.Tensor, key: torch.Tensor, visible: torch.Tensor, scale: float, part: int = 128
    ) -> None:
        """Add dense queries [B, H, T, K] that see `visible` [B, T, S]."""
        query, key = query.double(), key.double().repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        for x, mask in zip(query.split(part, dim=2), visible.split(part, dim=1), strict=True):
            logits = (scale * x @ key.mT).masked_fill(~mask[:, None], -torch.inf)
            weights = logits.softmax(-1).masked_fill(~mask[:, None], 0.0)  # a query that sees nothing gives nothing
            self.given += as_numpy(weights.sum(2))
            real = mask.any(2)
            self.channels += as_numpy((x.abs() * real[:, None, :, None]).sum(2))
            self.queries += as_numpy(real.sum(1))

    def select(self, head: Head, b: int, h: int, start: int, sizes: dict[str, Any], options: Options) -> Array:
        """What the selector reads for some queries [T, S], one after another; the sums after them."""
        T, S = len(head.q), len(head.k)
        chosen = np.zeros((T, S), bool)
        for t, n in enumerate(range(S - T + 1, S + 1)):
            one = Head(head.q[t : t + 1], head.k[:n], head.v[:n], head.scale)
            chosen[t, :n] = self._next(one, b, h, slice(start, start + n), t, sizes, options)
        return chosen

    def _next(self, head: Head, b: int, h: int, at: slice, t: int, sizes: dict[str, Any], options: Options) -> Array:
        n, given, kept = len(head.k), self.given[b, h, at], self.kept[b, h, at]
        count, first, last = (np.array([tokens_of(sizes[x], n)]) for x in ("budget", "sinks", "window"))
        always = selectors.fixed(head, first, last)
        self.channels[b, h] += np.abs(head.q[0])
        if self.name == "h2o":
            kept &= (always | selectors.best(given[None], kept[None] & ~always, count))[0]
            given += selectors.weights_of(head, selectors.plain(kept[None]))[0]
            return kept
        if self.name == "past_mean":
            seen = np.arange(n - 1, -1, -1)  # by so many queries before this one
            score = np.divide(given, seen, out=np.zeros(n), where=seen > 0)
            given += selectors.weights_of(head)[0]
        else:
            mean = self.channels[b, h] / (self.queries[b] + t + 1) * np.abs(head.k).mean(axis=0)
            label = np.argsort(-mean, kind="stable")[: options.channels]
            score = head.k[:, label] @ head.q[0, label]
        return (always | selectors.best(score[None], ~always, count))[0]


# -- masks --


def _visible(mask: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Which keys each query sees, [B, T, S]; S ends at the last key that any of them sees.

    Raises ValueError for a mask that is not SDPA's boolean one for all heads.
    """
    (B, _, T, _), S = query.shape, key.shape[2]
    if mask is None:
        index = torch.arange(S, device=key.device)
        return (index <= index[S - T :, None]).expand(B, T, S)
    if mask.dtype != torch.bool or mask.ndim != 4 or mask.shape[1] != 1:
        raise ValueError(
            "attention_mask must be 2-D, [rows, tokens] of 0 and 1 (or boolean [rows, 1, queries, tokens]), got "
            f"{mask.dtype} of shape {tuple(mask.shape)}"
        )
    seen = mask[:, 0].any(0).any(0).nonzero()
    return mask[:, 0, :, : int(seen.max()) + 1 if len(seen) else 0].expand(B, -1, -1)


def _spans(visible: torch.Tensor) -> list[Span]:
    """What the newest query of each row sees [B, T, S]: its first token, and the one behind its last.

    Raises ValueError where that is nothing or has gaps, or where an earlier query sees another number than one less.
    """
    spans = []
    for b, rows in enumerate(as_numpy(visible)):
        (T, S), index = rows.shape, np.flatnonzero(rows[-1])
        start, end = (int(index[0]), int(index[-1]) + 1) if len(index) else (0, 0)
        wanted = (np.arange(S) >= start) & (np.arange(S) < end - T + 1 + np.arange(T)[:, None])
        if end - start < T or not np.array_equal(rows, wanted):
            what = "others" if len(index) else "none"
            raise ValueError(
                f"attention_mask must leave each query the neighbouring tokens up to its own, got {what} in row {b}"
            )
        spans.append((start, end))
    return spans


def _scale(scaling: float | None, query: torch.Tensor) -> float:
    return query.shape[-1] ** -0.5 if scaling is None else scaling


@contextmanager
def _plain() -> Iterator[None]:
    """Tensors that are kept are plain ones, whatever mode the model runs in now and will run in later."""
    with torch.inference_mode(False), torch.no_grad():
        yield
