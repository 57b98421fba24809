"""LRKV and what it is compared with, as layers: one token equals the whole, caches hold what accounting says, and other
models' weights come in unchanged.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the package torch is not installed; get it with: pip install torch")

from attnlab import nn  # noqa: E402
from attnlab.lrkv import accounting, conversion, reference, rotary  # noqa: E402
from attnlab.lrkv.cache import FactoredCache  # noqa: E402
from attnlab.nn.lrkv import POSITIONS  # noqa: E402

B, T, WIDTH, H, K, R = 2, 7, 20, 6, 8, 4
SHAPE = {"width": WIDTH, "heads": H, "head_width": K}


def lrkv(position, **more):
    return lambda: nn.LRKVAttention(**SHAPE, **{"rank": R, "position": position, **more})


LRKV = {
    **{position: lrkv(position) for position in POSITIONS},
    **{f"{position}, sum, grouped": lrkv(position, key_norm="sum", groups=2) for position in POSITIONS},
    **{f"{position}, interleaved": lrkv(position, layout="interleaved") for position in ("aligned", "tied", "expand")},
    "aligned, before": lrkv("aligned", key_norm="before"),
    "partial, 2 turn": lrkv("partial", rope_width=2, rank=3),
    "rank 0": lrkv("aligned", rank=0, key_norm="sum"),
    "all of the width": lrkv("aligned", rank=K, output_norm=True, output_gate=True),
}
LAYERS = {
    **LRKV,
    "mha": lambda: nn.GroupedAttention(**SHAPE),
    "gqa": lambda: nn.GroupedAttention(**SHAPE, groups=2, layout="interleaved", theta=50.0),
    "mqa": lambda: nn.GroupedAttention(**SHAPE, groups=1, position="none"),
    "mla": lambda: nn.LatentAttention(**SHAPE, latent_width=5, rope_width=4),
    "mla, interleaved": lambda: nn.LatentAttention(**SHAPE, latent_width=30, rope_width=2, layout="interleaved"),
    "mla, none": lambda: nn.LatentAttention(**SHAPE, latent_width=5, rope_width=0, output_norm=True),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Products of a few numbers lose more to two threads than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def built(name):
    torch.manual_seed(7)
    layer = LAYERS[name]().double()
    with torch.no_grad():  # residuals as large as what is shared
        for x in layer.parameters():
            x.add_(0.3 * torch.randn_like(x))
    return layer


def tokens(seed=0, T=T):
    return torch.randn(B, T, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def same(ours, theirs):
    """To the rounding of float64 in sums of a few hundred terms of order 1."""
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)


# -- one operator, many ways through it --


@pytest.mark.parametrize("name", LAYERS)
def test_a_token_at_a_time_is_the_whole(name):
    """The whole makes all keys and values; a token reads factors or, of MLA, the latents: absorbed equals naive."""
    layer, x, state = built(name), tokens(), None
    whole, last = layer(x, return_state=True)
    assert whole.shape == x.shape
    for t in range(T):
        y, state = layer.step(x[:, t], state)
        same(y, whole[:, t])
    for ours, theirs in zip(state, last, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            same(ours, theirs)


@pytest.mark.parametrize("cuts", [[0, 0], [1, 5], [3, 3], [4, T], [T, T]], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_any_segments_are_one_run(name, cuts):
    layer, x, state, parts = built(name), tokens(), None, []
    for segment in torch.tensor_split(x, cuts, dim=1):
        y, state = layer(segment, state, return_state=True)
        parts.append(y)
    same(torch.cat(parts, dim=1), layer(x))


@pytest.mark.parametrize("name", LAYERS)
def test_nothing_later_is_seen(name):
    layer, x = built(name), tokens()
    same(layer(torch.cat([x, 5 * tokens(1)], dim=1))[:, :T], layer(x))


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_reach_every_parameter_and_the_state(name):
    layer, x = built(name), tokens().requires_grad_()
    _, state = layer(x[:, :3], return_state=True)
    y = layer(x[:, 3:], state)
    (y * tokens(3)[:, 3:]).sum().backward()
    assert not [n for n, p in layer.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    assert (x.grad[:, :3].abs().amax(dim=(0, 2)) > 0).all()  # through the carried state


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_segments_are_those_of_one_run(name):
    layer, x, slopes = built(name), tokens(), []
    for cut in (0, 4):
        _, state = layer(x[:, :cut], return_state=True)
        y = torch.cat([layer(x[:, :cut]), layer(x[:, cut:], state)], dim=1)
        slopes.append(torch.autograd.grad((y * tokens(3)).sum(), layer.parameters()))
    for whole, segments in zip(*slopes, strict=True):
        same(segments, whole)


# -- the operator between the projections --


def projected(layer, x):
    """Unturned q, shared keys and values, latents and factors of a layer, as arrays."""
    with torch.no_grad():
        q, k, v = layer.operands(x)
        latents = [part(x).unflatten(-1, (H, -1)) for part in (layer.k_latent, layer.v_latent)]
        return [part.numpy() for part in (q, k, v, *latents, *layer.factors())]


@pytest.mark.parametrize("name", [name for name in LRKV if name not in ("rank 0", "all of the width")])
def test_the_layer_is_the_reference_between_its_projections(name):
    """Keys of every head made, divided by their size where the sum is normed, then turned whole; "still" turns but the
    shared part.
    """
    layer, x, places = built(name), tokens(), np.arange(T)
    q, k, v, k_latent, v_latent, k_factor, v_factor = projected(layer, x)

    def normed(y):
        return y / np.sqrt((y**2).mean(-1, keepdims=True) + 1e-6)

    norm = layer.config["key_norm"]
    q, k = (q if norm == "none" else normed(q)), (normed(k) if norm == "before" else k)
    keys, values = reference.expand(k, k_latent, k_factor), reference.expand(v, v_latent, v_factor)
    size = np.sqrt((keys**2).mean(-1, keepdims=True) + 1e-6) if norm == "sum" else 1.0
    turned = reference.turn(q, layer.rope, places)
    shared = reference.turn(reference.of_heads(k, H), layer.rope, places)
    added = keys - reference.of_heads(k, H)
    if name.startswith("still"):
        logits = np.einsum("bthk,bshk->bhts", turned, shared / size) + np.einsum("bthk,bshk->bhts", q, added / size)
    else:
        logits = np.einsum("bthk,bshk->bhts", turned, shared / size + reference.turn(added / size, layer.rope, places))
    weights, _ = reference.softmax(K**-0.5 * logits, reference.seen(T, T, None, None, causal=True)[:, None])
    o = torch.from_numpy(np.einsum("bhts,bshv->bthv", weights, values))
    same(layer(x), layer.out(o.flatten(-2)))


@pytest.mark.parametrize("name", ["mha", "gqa", "mqa"])
def test_grouped_attention_is_the_reference_without_latents(name):
    layer, x = built(name), tokens()
    with torch.no_grad():
        q, k, v = (part.numpy() for part in layer.operands(x))
    q = reference.turn(q, layer.rope, np.arange(T))
    o = reference.attention(q, k, v, rope=layer.rope, positions=np.arange(T))
    same(layer(x), layer.out(torch.from_numpy(o).flatten(-2)))


def test_latent_attention_is_mha_of_the_keys_and_values_that_its_latents_make():
    layer, x = built("mla"), tokens()
    with torch.no_grad():
        q, turning, latent = (part.numpy() for part in layer.operands(x))
    keys, values = (np.einsum("btgc,hkc->bthk", latent, up.detach().numpy()) for up in (layer.k_up, layer.v_up))
    places = np.arange(T)
    turning = np.repeat(reference.turn(turning, layer.rope, places), H, axis=2)
    q = np.concatenate([q[..., :K], reference.turn(q[..., K:], layer.rope, places)], axis=-1)
    o = reference.attention(q, np.concatenate([keys, turning], axis=-1), values)
    same(layer(x), layer.out(torch.from_numpy(o).flatten(-2)))


@pytest.mark.parametrize("name", [name for name in LRKV if name.startswith(("aligned", "tied", "partial", "all"))])
def test_a_rotation_passes_through_the_factors_of_an_exact_option(name):
    """What is kept of them is latents turned in r numbers, so each factor's span must come back from every rotation."""
    layer = built(name)
    factor = layer.factors()[0].detach().numpy()
    for h in range(H):
        assert rotary.escape(factor[h], layer.rope, np.array([1.0, 2.0, 500.0])).max() < 1e-12
    if name.startswith("tied"):
        assert len(set(np.round(layer.rope.frequency, 12))) == R // 2


def test_heads_have_planes_of_their_own_where_there_are_enough():
    layer = nn.LRKVAttention(64, 4, rank=4, head_width=16)
    assert layer.planes.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert nn.LRKVAttention(64, 4, rank=6, head_width=8).planes[2].tolist() == [2, 3, 0]


# -- what is kept --


@pytest.mark.parametrize("name", LAYERS)
def test_the_state_holds_as_many_numbers_as_accounting_says(name):
    layer = built(name)
    _, state = layer(tokens(), return_state=True)
    sizes = {"heads": H, "head_width": K, "groups": layer.groups}
    if name.startswith("mla"):
        a_token = accounting.elements("mla", latent_width=layer.latent_width, rope_width=layer.rope_width, **sizes)
    elif name in ("mha", "gqa", "mqa"):
        a_token = accounting.elements(name, **sizes)
    else:
        scale = layer.config["key_norm"] == "sum"
        a_token = accounting.elements("lrkv", rank=layer.rank, key_scale=scale, **sizes)
    assert sum(x[0].numel() for x in state if x is not None) == layer.state_elements(T) == T * a_token


@pytest.mark.parametrize("name", ["aligned", "expand, sum, grouped", "mha"])
def test_the_parameters_of_keys_and_values_are_those_of_the_paper(name):
    """Eq. 10, p. 4; a factor that is fixed has none."""
    layer = built(name)
    scheme, sizes = ("mha", {}) if name == "mha" else ("lrkv", {"rank": R, "groups": layer.groups})
    wanted = accounting.parameters(scheme, width=WIDTH, heads=H, head_width=K, **sizes)
    got = sum(x.numel() for part, x in layer.named_parameters() if not part.startswith(("q.", "out.")))
    assert got == wanted - (H * K * R if name == "aligned" else 0)


def test_a_state_goes_into_a_factored_cache_as_it_is():
    layer = built("still, sum, grouped").requires_grad_(False)
    _, state = layer(tokens(), return_state=True)
    cache = FactoredCache(*layer.factors())
    cache.append(*state)
    assert cache.elements == B * layer.state_elements(T)


# -- how a layer starts --


@pytest.mark.parametrize("position", POSITIONS)
def test_a_residual_starts_at_a_tenth_of_what_is_shared(position):
    """P. 3. The fewest numbers that a head's ratio rests on are the 64 of a tied factor: it spreads by 9 %, one over
    sqrt(128), and the mean of 8 heads by 3 %. Allowed are four and three times that.
    """
    torch.manual_seed(0)
    layer = nn.LRKVAttention(256, 8, rank=16, head_width=64, position=position).requires_grad_(False)
    for shared, latent, factor in zip(
        (layer.k, layer.v), (layer.k_latent, layer.v_latent), layer.factors(), strict=True
    ):
        residual = latent.weight.unflatten(0, (8, 16)).mT @ factor.mT
        ratio = torch.linalg.matrix_norm(residual) / torch.linalg.matrix_norm(shared.weight)
        assert ratio.mean().item() == pytest.approx(0.1, rel=0.09)
        assert ((ratio > 0.064) & (ratio < 0.136)).all()


def test_the_same_seed_is_the_same_layer():
    layers = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        layers.append(LAYERS["tied"]().state_dict())
    assert all(torch.equal(x, layers[1][name]) for name, x in layers[0].items())
    assert not torch.equal(layers[0]["k_factor"], layers[2]["k_factor"])


# -- from other weights --


def weights(layer):
    """[heads, width, K] of keys and of values."""
    return [part.weight.detach().unflatten(0, (layer.groups, K)).mT.numpy() for part in (layer.k, layer.v)]


@pytest.mark.parametrize("name", ["mha", "mqa"])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_what_rank_0_and_the_full_rank_hold_comes_over_unchanged(name, layout):
    torch.manual_seed(2)
    given = {"groups": {"mha": H, "mqa": 1}[name], "layout": layout, "output_gate": True, "output_norm": True}
    for position, options in (("rope", (None, "aligned", "expand")), ("none", (None,))):
        layer, x = nn.GroupedAttention(**SHAPE, **given, position=position).double(), tokens()
        fits = [conversion.from_mha(w) if name == "mha" else conversion.from_mqa(w[0], H) for w in weights(layer)]
        for option in options:
            converted = nn.LRKVAttention.from_attention(layer, *fits, position=option)
            assert converted.rank == (K if name == "mha" else 0)
            same(converted(x), layer(x))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_factors_within_planes_come_over_whatever_basis_they_have(layout):
    """Heads that differ from each other in two planes each: nothing is lost at rank 4, and a fit finds them."""
    torch.manual_seed(2)
    layer, x = nn.GroupedAttention(**SHAPE, layout=layout).double(), tokens()
    draw = np.random.default_rng(0)
    shared, up = draw.standard_normal((WIDTH, K)), draw.standard_normal((H, WIDTH, R))
    planes = np.array([[0, 1], [2, 3], [0, 3], [1, 2], [0, 2], [1, 3]])
    basis = np.concatenate([rotary.aligned_factor(1, K, each, layout=layout) for each in planes])
    factor = basis @ draw.standard_normal((H, R, R))
    with torch.no_grad():
        for part in (layer.k, layer.v):
            made = shared + up @ factor.mT
            part.weight.copy_(torch.from_numpy(made).mT.flatten(0, 1) / WIDTH**0.5)
    keys = conversion.Fit(shared / WIDTH**0.5, up / WIDTH**0.5, factor, 0.0)
    converted = nn.LRKVAttention.from_attention(layer, keys, keys)
    assert converted.planes.tolist() == planes.tolist()
    same(converted(x), layer(x))


def test_a_fit_loses_less_the_larger_its_rank():
    torch.manual_seed(2)
    layer, x, apart = nn.GroupedAttention(**SHAPE).double(), tokens(), []
    for rank in (0, 2, 4, 6, 8):
        fits = [
            conversion.fit(w, rank, planes=planes) for w, planes in zip(weights(layer), ("aligned", None), strict=True)
        ]
        apart.append((nn.LRKVAttention.from_attention(layer, *fits)(x) - layer(x)).norm().item())
    assert apart == sorted(apart, reverse=True)
    assert apart[-1] < 1e-12 < apart[-2]


# -- on disk, compiled --


@pytest.mark.parametrize("name", ["aligned", "tied, sum, grouped", "partial, 2 turn", "rank 0", "gqa", "mla"])
def test_a_layer_comes_back_as_it_was(name, tmp_path):
    layer, x = built(name), tokens()
    nn.save(layer, tmp_path / "layer.safetensors")
    again = nn.load(tmp_path / "layer.safetensors")
    assert type(again) is type(layer)
    assert again.config == layer.config
    assert torch.equal(again(x), layer(x))


def test_a_converted_layer_keeps_its_planes_on_disk(tmp_path):
    torch.manual_seed(2)
    layer, x = nn.GroupedAttention(**SHAPE).double(), tokens()
    converted = nn.LRKVAttention.from_attention(layer, *(conversion.from_mha(w) for w in weights(layer)))
    nn.save(converted, tmp_path / "layer.safetensors")
    same(nn.load(tmp_path / "layer.safetensors")(x), layer(x))


# Whoever changes a name here makes saved models unreadable.
KEYS = {
    "aligned": ["k_latent.weight", "planes", "v_factor", "v_latent.weight"],
    "tied": ["k_factor", "k_latent.weight", "v_factor", "v_latent.weight"],
    "rank 0": [],
    "mha": [],
}


@pytest.mark.parametrize("name", KEYS)
def test_the_keys_of_the_layers(name):
    assert sorted(built(name).state_dict()) == sorted([*KEYS[name], *(f"{x}.weight" for x in ("q", "k", "v", "out"))])


def test_the_keys_of_a_latent_layer():
    parts = ("q", "latent", "k_turned", "out")
    assert sorted(built("mla").state_dict()) == sorted(["k_up", "v_up", *(f"{part}.weight" for part in parts)])


def test_a_layer_may_be_made_without_numbers_and_filled_later():
    made = built("aligned")
    with torch.device("meta"):
        empty = LAYERS["aligned"]().double()
    empty = empty.to_empty(device="cpu")
    empty.load_state_dict(made.state_dict())
    same(empty(tokens()), made(tokens()))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # torch's own look
@pytest.mark.parametrize("name", ["aligned", "expand", "mla"])
def test_a_compiled_layer_gives_what_it_gives_eagerly(name):
    layer, x = built(name), tokens()
    compiled = torch.compile(layer, backend="eager")
    same(compiled(x), layer(x))
    _, state = layer(x, return_state=True)
    same(compiled(x, state), layer(x, state))


@pytest.mark.parametrize("name", ["aligned", "still", "mla"])
def test_sixteen_bits_and_autocast_run_both_ways(name):
    """bfloat16 has 8 bits, and a layer some five roundings in a row."""
    exact, x = built(name)(tokens()), tokens().bfloat16()
    layer = built(name).bfloat16()
    _, state = layer(x[:, :4], return_state=True)
    for y in (layer(x), torch.cat([layer(x[:, :4]), layer(x[:, 4:], state)], dim=1)):
        assert y.dtype == torch.bfloat16
        assert ((y.double() - exact).norm() / exact.norm()) < 0.1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = built(name).float()(tokens().float())
    assert ((y.double() - exact).norm() / exact.norm()) < 0.1


# -- errors --


def left_by(name):
    return built(name)(tokens(), return_state=True)[1]


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: nn.LRKVAttention(20, 6, rank=2), "heads must divide width = 20 where head_width is not given, got 6"),
        (lambda: nn.LRKVAttention(**SHAPE, rank=3), "rank must be even where position is 'aligned'"),
        (lambda: nn.LRKVAttention(**SHAPE, rank=9), r"rank must lie in \[0, 8\], got 9"),
        (lambda: nn.LRKVAttention(**SHAPE, rank=6, position="tied"), "rank must be even and divide width = 8"),
        (lambda: nn.LRKVAttention(**SHAPE, rank=2, position="rope"), "position must be one of 'aligned', 'tied'"),
        (lambda: nn.LRKVAttention(**SHAPE, rank=2, groups=4), "groups must divide heads = 6, got 4"),
        (lambda: nn.LRKVAttention(**SHAPE, rank=2, key_norm="rms"), "key_norm must be one of"),
        (lambda: nn.LRKVAttention(**SHAPE, rank=2, rope_width=4), "rope_width must be None where position is"),
        (lambda: nn.LRKVAttention(**SHAPE, rank=2, position="partial", rope_width=3), "width must be even"),
        (lambda: nn.LRKVAttention(**SHAPE, rank=2, position="none", layout="neox"), "layout must be one of"),
        (lambda: nn.LRKVAttention(**SHAPE, rank=2, theta=0), "theta must lie in"),
        (lambda: nn.GroupedAttention(WIDTH, 4, groups=2, head_width=5), "width must be even to form rotary planes"),
        (lambda: nn.GroupedAttention(**SHAPE, position="aligned"), "position must be one of 'rope', 'none'"),
        (lambda: nn.LatentAttention(**SHAPE, latent_width=0, rope_width=2), "latent_width must lie in"),
        (lambda: nn.LatentAttention(**SHAPE, latent_width=4, rope_width=3), "width must be even to form rotary planes"),
        (lambda: built("mha")(tokens(), cu_seqlens=[0, T]), "cu_seqlens must be None"),
        (lambda: built("mha")(tokens(), left_by("mla")), "state must be the KeyValues"),
        (lambda: built("mqa")(tokens(), left_by("rank 0")), r"state.k_scale must be as this layer leaves it, None"),
        (lambda: built("aligned")(tokens()[:1], left_by("tied")), r"state.k_shared must be .* \(1, 1, 8\) .* got \(2,"),
        (lambda: built("mla")(tokens(), 5), "state must be the Latents of an earlier call, got int"),
        (lambda: built("mla")(tokens()[..., :3]), r"x must be \[B, T, width\]"),
    ],
)  # fmt: skip
def test_errors_name_the_argument(build, words):
    with pytest.raises(ValueError, match=words):
        build()


def test_what_cannot_come_over_is_refused():
    torch.manual_seed(2)
    layer = nn.GroupedAttention(**SHAPE).double()
    fits = [conversion.fit(w, 4) for w in weights(layer)]
    with pytest.raises(ValueError, match="keys must have factors in 2 planes a head where position is 'aligned', got"):
        nn.LRKVAttention.from_attention(layer, *fits)
    with pytest.raises(ValueError, match="position must turn keys as the attention does, got 'still'"):
        nn.LRKVAttention.from_attention(layer, *fits, position="still")
    with pytest.raises(ValueError, match=r"values must have factors of shape \(6, 8, 4\), got \(6, 8, 2\)"):
        nn.LRKVAttention.from_attention(layer, fits[0], conversion.fit(weights(layer)[1], 2))
