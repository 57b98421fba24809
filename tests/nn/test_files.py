"""A layer's numbers under names that do not change, and a layer on disk that comes back as it was."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the package torch is not installed; get it with: pip install torch")

from safetensors import safe_open  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from attnlab import nn  # noqa: E402

PROJECTIONS = ["k.weight", "norm.weight", "out.weight", "q.weight", "v.weight"]
RETENTION = ["rate", "retention.bias", "retention.weight"]
WRITE = ["write.bias", "write.weight"]
CORRECTION = ["correction.bias", "correction.weight"]

# Whoever changes a name here makes saved models unreadable.
KEYS = {
    "rla": PROJECTIONS + RETENTION + WRITE + CORRECTION,
    "rdn": PROJECTIONS + RETENTION + WRITE + CORRECTION,
    "gdn": PROJECTIONS + RETENTION + WRITE,
    "sgla": PROJECTIONS + RETENTION + WRITE,
    "deltanet": PROJECTIONS + WRITE,
    "linear": PROJECTIONS,
    "retnet": PROJECTIONS,
}


@pytest.mark.parametrize("rule", KEYS)
def test_the_keys_of_a_memory_layer(rule):
    assert sorted(nn.MemoryAttention(12, 3, rule=rule).state_dict()) == sorted(KEYS[rule])


def test_the_keys_of_the_other_layers():
    assert sorted(nn.RACEAttention(12, 3).state_dict()) == sorted([*PROJECTIONS, "planes", "raw_sharpness"])
    assert sorted(nn.SoftmaxAttention(12, 3).state_dict()) == sorted(set(PROJECTIONS) - {"norm.weight"})
    options = {"tied": True, "output_gate": True, "output_norm": False}
    wanted = {*KEYS["gdn"], "gate.weight"} - {"norm.weight"}
    assert sorted(nn.ResidualDeltaNet(12, 3, **options).state_dict()) == sorted(wanted)


def test_shapes_of_the_numbers():
    layer = nn.ResidualDeltaNet(12, 3, key_width=5, value_width=2, output_gate=True)
    shapes = {name: tuple(x.shape) for name, x in layer.state_dict().items()}
    assert shapes == {
        "q.weight": (15, 12),
        "k.weight": (15, 12),
        "v.weight": (6, 12),
        "gate.weight": (6, 12),
        "norm.weight": (2,),
        "out.weight": (12, 6),
        "rate": (3,),
        **{f"{gate}.weight": (3, 12) for gate in ("retention", "write", "correction")},
        **{f"{gate}.bias": (3,) for gate in ("retention", "write", "correction")},
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.ResidualLinearAttention(12, 2, key_width=5, clip=float("inf"), read_gates=False, output_gate=True),
        lambda: nn.ResidualDeltaNet(12, 3, value_width=7, target="log_cosh", tied=True, output_norm=False),
        lambda: nn.MemoryAttention(12, 3, rule="retnet"),
        lambda: nn.RACEAttention(12, 3, planes=2, tables=5, seed=9, normalize=True, sharpness=1.5),
        lambda: nn.SoftmaxAttention(12, 3, key_width=6, output_norm=True),
    ],
)
def test_a_layer_comes_back_as_it_was(layer, dtype, tmp_path):
    torch.manual_seed(1)
    layer = layer().to(dtype)
    nn.save(layer, tmp_path / "layer.safetensors")
    again = nn.load(tmp_path / "layer.safetensors")
    assert type(again) is type(layer)
    assert again.config == layer.config
    assert again.state_dict().keys() == layer.state_dict().keys()
    assert all(torch.equal(x, layer.state_dict()[name]) for name, x in again.state_dict().items())
    x = torch.randn(2, 7, 12, dtype=dtype)
    assert torch.equal(again(x), layer(x))
    assert [path.name for path in tmp_path.iterdir()] == ["layer.safetensors"]


def test_any_program_that_reads_safetensors_can_read_it(tmp_path):
    layer = nn.ResidualDeltaNet(12, 3)
    nn.save(layer, tmp_path / "layer.safetensors")
    with safe_open(tmp_path / "layer.safetensors", framework="numpy") as stored:
        assert set(stored.keys()) == set(layer.state_dict())
        told = json.loads(stored.metadata()["attnlab.nn"])
    assert told["layer"] == "ResidualDeltaNet"
    assert told["config"]["rule"] == "rdn"


def test_a_file_of_another_kind_is_refused(tmp_path):
    save_file({"x": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"path must be a file that attnlab\.nn\.save wrote"):
        nn.load(tmp_path / "other.safetensors")
    told = {"layer": "load", "config": {}}
    save_file({"x": torch.zeros(2)}, tmp_path / "odd.safetensors", metadata={"attnlab.nn": json.dumps(told)})
    with pytest.raises(
        ValueError, match=r"path must hold one of GroupedAttention, LRKVAttention, .*, got one named 'load'"
    ):
        nn.load(tmp_path / "odd.safetensors")
    with pytest.raises(FileNotFoundError):
        nn.load(tmp_path / "none.safetensors")
    with pytest.raises(TypeError, match=r"layer must be one of attnlab\.nn's, got Linear"):
        nn.save(torch.nn.Linear(2, 2), tmp_path / "linear.safetensors")


def test_numbers_of_numpy_are_stored_like_others(tmp_path):
    layer = nn.RACEAttention(24, 3, planes=np.int64(2), tables=np.int64(3), sharpness=np.float32(2), seed=np.int64(5))
    nn.save(layer, tmp_path / "layer.safetensors")
    assert nn.load(tmp_path / "layer.safetensors").config == layer.config
