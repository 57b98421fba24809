"""The layers: one token equals the whole, segments equal one run, gradients arrive everywhere, errors have names."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the package torch is not installed; get it with: pip install torch")

from attnlab import nn  # noqa: E402
from attnlab.nn.memory import FORGETTING  # noqa: E402
from attnlab.race import draw_planes  # noqa: E402
from attnlab.residual import RULES, attention, retnet_retention  # noqa: E402

ROOT = Path(__file__).parents[2]
B, T, WIDTH, HEADS, K, V = 2, 11, 10, 3, 5, 4
SHAPE = {"key_width": K, "value_width": V}

LAYERS = {
    **{rule: lambda rule=rule, **more: nn.MemoryAttention(WIDTH, HEADS, rule=rule, **SHAPE, **more) for rule in RULES},
    "race": lambda **more: nn.RACEAttention(WIDTH, HEADS, planes=2, tables=3, **SHAPE, **more),
    "softmax": lambda **more: nn.SoftmaxAttention(WIDTH, HEADS, **SHAPE, **more),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Products of a few numbers lose more to two threads than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def built(name, **more):
    torch.manual_seed(7)
    layer = LAYERS[name](**more).double()
    with torch.no_grad():  # gates that differ from token to token by more than a rounding error
        for x in layer.parameters():
            x.add_(0.3 * torch.randn_like(x))
    return layer


def tokens(seed=0, T=T):
    return torch.randn(B, T, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def same(ours, theirs):
    """To the rounding of float64 in sums of a few hundred terms of order 1."""
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)


# -- one operator, many ways through it --


@pytest.mark.parametrize("name", LAYERS)
def test_shapes_and_type(name):
    x = tokens()
    y, state = built(name)(x, return_state=True)
    assert y.shape == x.shape
    assert y.dtype == torch.float64
    single = built(name).float()(x.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single, y.float(), rtol=1e-4, atol=1e-4)
    assert isinstance(state, tuple)


@pytest.mark.parametrize("name", LAYERS)
def test_a_token_at_a_time_is_the_whole(name):
    layer, x, state = built(name), tokens(), None
    whole, last = layer(x, return_state=True)
    for t in range(T):
        y, state = layer.step(x[:, t], state)
        assert y.shape == (B, WIDTH)
        same(y, whole[:, t])
    for ours, theirs in zip(state, last, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            same(ours, theirs)


@pytest.mark.parametrize("cut", [0, 1, 6, T])
@pytest.mark.parametrize("name", LAYERS)
def test_segments_are_one_run(name, cut):
    layer, x = built(name), tokens()
    first, state = layer(x[:, :cut], return_state=True)
    same(torch.cat([first, layer(x[:, cut:], state)], dim=1), layer(x))


@pytest.mark.parametrize("name", LAYERS)
def test_nothing_later_is_seen(name):
    """So padding on the right leaves the outputs before it alone."""
    layer, x = built(name), tokens()
    same(layer(torch.cat([x, 5 * tokens(1)], dim=1))[:, :T], layer(x))


@pytest.mark.parametrize("name", ["rdn", "gdn"])
def test_padding_on_the_left_is_written_like_any_token(name):
    layer, x = built(name), tokens()
    padded = layer(torch.cat([torch.ones_like(x), x], dim=1))[:, T:]
    assert (padded - layer(x)).abs().max() > 1e-3


@pytest.mark.parametrize("rule", RULES)
def test_a_cut_row_is_sequences_of_their_own(rule):
    layer, x, cuts = built(rule), tokens()[:1], [0, 4, 4, T]
    y, state = layer(x, cu_seqlens=torch.tensor(cuts), return_state=True)
    for n, (start, end) in enumerate(itertools.pairwise(cuts)):
        alone, its_state = layer(x[:, start:end], return_state=True)
        same(y[:, start:end], alone)
        same(state.base[n], its_state.base[0])


@pytest.mark.parametrize("rule", ["rla", "rdn", "gdn"])
def test_the_layer_is_the_reference_between_its_projections(rule):
    layer, x = built(rule, output_gate=True), tokens()
    with torch.no_grad():
        q, k, v = ((x @ part.weight.T).unflatten(-1, (HEADS, -1)) for part in (layer.q, layer.k, layer.v))
        made = {name: gate.numpy() for name, gate in layer.gates(x).items()}
        q, k = (torch.nn.functional.silu(part).numpy() for part in (q, k))
        o = torch.from_numpy(attention(q, k, v.numpy(), **made, rule=rule, normalize=True))
        o = o / (o.square().mean(-1, keepdim=True) + 1e-6).sqrt() * layer.norm.weight
        o = o.flatten(-2) * torch.nn.functional.silu(x @ layer.gate.weight.T)
        same(layer(x), o @ layer.out.weight.T)


def test_all_rules_are_different_layers():
    x, outs = tokens(), {}
    for rule in RULES:
        layer = built(rule)
        layer.load_state_dict({n: p for n, p in built("rdn").state_dict().items() if n in layer.state_dict()})
        outs[rule] = layer(x)
    for one in RULES:
        for other in RULES:
            assert one == other or (outs[one] - outs[other]).abs().max() > 1e-3, (one, other)


@pytest.mark.parametrize(
    "switch", [{"clip": 0.05}, {"target": "log_cosh"}, {"read_gates": False}, {"tied": True}], ids=str
)
def test_every_switch_reaches_the_operator(switch):
    x = tokens()
    assert (built("rdn", **switch)(x) - built("rdn")(x)).abs().max() > 1e-4


# -- gradients --


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_reach_every_parameter_and_the_state(name):
    layer, x = built(name, output_gate=True), tokens().requires_grad_()
    _, state = layer(x[:, :5], return_state=True)
    y = layer(x[:, 5:], state)
    (y * tokens(3)[:, 5:]).sum().backward()
    assert not [n for n, p in layer.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    assert (x.grad[:, :5].abs().amax(dim=(0, 2)) > 0).all()  # through the carried state
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("name", ["rdn", "rla", "race"])
def test_the_gradient_is_the_slope(name):
    """Along one random direction in all parameters: central differences, whose own error is of order h^2 = 1e-10."""
    layer, x, weight, h = built(name), tokens(), tokens(4), 1e-5
    with torch.no_grad():
        direction = [torch.randn_like(p) for p in layer.parameters()]
    (layer(x) * weight).sum().backward()
    slope = sum((p.grad * d).sum() for p, d in zip(layer.parameters(), direction, strict=True))
    ends = []
    for side in (h, -h):
        with torch.no_grad():
            for p, d in zip(layer.parameters(), direction, strict=True):
                p.add_(d, alpha=side)
            ends.append((layer(x) * weight).sum())
            for p, d in zip(layer.parameters(), direction, strict=True):
                p.sub_(d, alpha=side)
    assert slope.item() == pytest.approx(((ends[0] - ends[1]) / (2 * h)).item(), rel=1e-6)


# -- how a layer starts --


def test_the_same_seed_is_the_same_layer():
    same_, other = [], []
    for seed, into in ((3, same_), (3, same_), (4, other)):
        torch.manual_seed(seed)
        into.append(nn.ResidualDeltaNet(WIDTH, HEADS, **SHAPE)(tokens().float()))
    assert torch.equal(*same_)
    assert not torch.equal(same_[0], other[0])


def test_gates_start_where_the_documentation_says():
    torch.manual_seed(0)
    gates = nn.ResidualLinearAttention(WIDTH, HEADS, **SHAPE).gates(torch.zeros(1, 1, WIDTH))
    forgetting = -torch.expm1(gates["log_retention"][0, 0])
    low, high = FORGETTING
    torch.testing.assert_close(forgetting, torch.tensor([low, (low * high) ** 0.5, high]), rtol=1e-5, atol=0)
    for name in ("write", "correction"):
        assert torch.equal(gates[name], torch.full((1, 1, HEADS), 0.5))


def test_one_head_forgets_a_thousandth_at_first():
    gates = nn.MemoryAttention(WIDTH, 1, rule="gdn").gates(torch.zeros(1, 1, WIDTH))
    assert -torch.expm1(gates["log_retention"]).item() == pytest.approx(1e-3, rel=1e-4)


@pytest.mark.parametrize("rule", RULES)
def test_gates_lie_in_their_ranges_for_any_input(rule):
    for name, gate in built(rule).float().gates(1e4 * tokens().float()).items():
        low, high = (-float("inf"), 0.0) if name == "log_retention" else (0.0, 1.0)
        assert ((gate >= low) & (gate <= high)).all(), name


def test_retnet_forgets_as_its_paper_says():
    retention = built("retnet").gates(tokens())["retention"]
    assert torch.equal(retention, torch.from_numpy(retnet_retention(HEADS)))


def test_bfloat16_computes_in_float32_inside():
    layer, x = built("rdn").bfloat16(), tokens().bfloat16()
    y = layer(x)
    assert y.dtype == torch.bfloat16
    exact = built("rdn")(tokens())
    assert ((y.double() - exact).norm() / exact.norm()) < 0.1  # 8 bits, through five roundings


def test_planes_are_drawn_from_the_seed_and_never_learned():
    layer = nn.RACEAttention(WIDTH, HEADS, planes=2, tables=3, seed=5, **SHAPE)
    assert torch.equal(layer.planes, torch.from_numpy(draw_planes(3, 2, K, 5)).float())
    assert "planes" not in dict(layer.named_parameters())
    assert not torch.equal(layer.planes, nn.RACEAttention(WIDTH, HEADS, planes=2, tables=3, seed=6, **SHAPE).planes)


def test_sharpness_starts_as_asked_and_stays_in_the_range_of_the_fast_paths():
    layer = nn.RACEAttention(WIDTH, HEADS, planes=4, tables=2, sharpness=3.0, **SHAPE)
    torch.testing.assert_close(layer.sharpness(), torch.full((HEADS,), 3.0), rtol=1e-6, atol=0)
    with torch.no_grad():
        layer.raw_sharpness.fill_(1e3)
    assert layer.sharpness().max() * 2 * 4 <= 80
    layer(tokens().float())


@pytest.mark.parametrize("name", LAYERS)
def test_the_state_is_as_large_as_the_layer_says(name):
    _, state = built(name)(tokens(), return_state=True)
    assert sum(x[0].numel() for x in state if x is not None) == built(name).state_elements(T)


# -- errors --


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: nn.MemoryAttention(WIDTH, HEADS, rule="mamba", **SHAPE), "rule must be one of"),
        (lambda: nn.ResidualDeltaNet(WIDTH, HEADS, rule="gdn", **SHAPE), "rule must be 'rdn' here, got 'gdn'"),
        (lambda: nn.ResidualDeltaNet(WIDTH, HEADS), "heads must divide width = 10"),
        (lambda: nn.ResidualDeltaNet(WIDTH, 0), "heads must lie in"),
        (lambda: nn.ResidualDeltaNet(WIDTH, 2.5), "heads must be a whole number"),
        (lambda: nn.ResidualDeltaNet(WIDTH, HEADS, key_width=-1, value_width=2), "key_width must lie in"),
        (lambda: nn.ResidualDeltaNet(WIDTH, 2, clip=float("nan")), "clip must lie in"),
        (lambda: nn.ResidualDeltaNet(WIDTH, 2, target="huber"), "target must be one of"),
        (lambda: nn.ResidualDeltaNet(WIDTH, 2, output_norm=1), "output_norm must be True or False"),
        (lambda: nn.RACEAttention(WIDTH, 2, planes=9), r"planes must lie in \[1, 8\]"),
        (lambda: nn.RACEAttention(WIDTH, 2, planes=4, sharpness=10.0), "sharpness must lie in"),
        (lambda: nn.SoftmaxAttention(WIDTH, 2)(torch.zeros(2, 3, 4)), r"x must be \[B, T, width\] with width = 10"),
        (lambda: nn.SoftmaxAttention(WIDTH, 2)(torch.zeros(3, WIDTH)), r"x must be \[B, T, width\]"),
        (lambda: nn.SoftmaxAttention(WIDTH, 2).step(torch.zeros(1, 3, WIDTH)), r"x must be one token \[B, width\]"),
        (lambda: nn.SoftmaxAttention(WIDTH, 2)(torch.zeros(1, 3, WIDTH), 5), "state must be the Cache"),
        (lambda: nn.SoftmaxAttention(WIDTH, 2)(torch.zeros(1, 3, WIDTH), cu_seqlens=[0, 3]), "cu_seqlens must be None"),
        (lambda: nn.RACEAttention(WIDTH, 2)(torch.zeros(1, 3, WIDTH), cu_seqlens=[0, 3]), "cu_seqlens must be None"),
        (lambda: nn.ResidualDeltaNet(WIDTH, 2)(torch.zeros(1, 3, WIDTH), (1, 2, 3)), "state must be the State"),
        (lambda: nn.ResidualDeltaNet(WIDTH, 2)(torch.full((1, 3, WIDTH), torch.nan)), "must be finite"),
        (lambda: nn.ResidualDeltaNet(WIDTH, 2, impl="magic")(torch.zeros(1, 3, WIDTH)), "impl must be one of"),
    ],
)
def test_errors_name_the_argument(build, words):
    with pytest.raises(ValueError, match=words):
        build()


def test_without_torch_the_import_says_what_to_install():
    code = "import sys; sys.modules['torch'] = None\nimport attnlab\nimport attnlab.nn"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    wanted = "attnlab.nn needs the package torch, which is not installed; get it with: pip install torch"
    assert done.stderr.strip().endswith(f"ImportError: {wanted}")


# -- the page --


def test_the_code_on_the_page_runs():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "nn.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 6
    torch.manual_seed(0)
    seen: dict = {}
    for block in blocks:
        exec(block, seen)
    assert isinstance(seen["block"].attn, nn.ResidualDeltaNet)


# -- compiled, moved, stored --


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # torch's own look
@pytest.mark.parametrize("name", ["rdn", "gdn", "retnet", "race", "softmax"])
def test_a_compiled_layer_gives_what_it_gives_eagerly(name):
    layer, x = built(name), tokens()
    same(torch.compile(layer, backend="eager")(x), layer(x))


def test_the_fixed_decays_of_retnet_survive_any_way_a_layer_is_made():
    """On the meta device, and through 16 bits with as many heads as have decays that float16 does not hold."""
    made = LAYERS["retnet"]().double()
    with torch.device("meta"):
        empty = LAYERS["retnet"]().double()
    empty = empty.to_empty(device="cpu")
    empty.load_state_dict(made.state_dict())
    same(empty(tokens()), made(tokens()))
    many = nn.MemoryAttention(64, 32, rule="retnet")
    decays = many.half().float().gates(torch.zeros(1, 1, 64))["retention"]
    assert torch.equal(decays, torch.from_numpy(retnet_retention(32)))


def test_gates_keep_their_precision_under_autocast():
    layer, x = built("sgla").float(), tokens().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = layer.gates(x)["log_retention"]
    torch.testing.assert_close(ours, layer.gates(x)["log_retention"])


def test_a_layer_is_only_of_what_can_be_trained():
    with pytest.raises(ValueError, match="impl must be one of 'torch', 'triton', got 'numba'"):
        nn.SoftmaxAttention(8, 2, impl="numba")


def test_a_layer_without_an_operator_says_so():
    bare = nn.layer.Layer(8, 2, None, None, True, False, "torch")
    with pytest.raises(NotImplementedError, match="Layer must have an `attend`"):
        bare(torch.zeros(1, 1, 8))
    with pytest.raises(NotImplementedError, match="Layer must have a `state_elements`"):
        bare.state_elements(3)
