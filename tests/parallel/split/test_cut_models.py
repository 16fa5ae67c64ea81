"""Whole models in shards: AlexNet in its two towers and by default, LeNet, a transformer's block; bytes to the byte."""

import pytest
import torch
from shard_reference import assert_same, sequential_chain
from torch import nn

from gradtide.parallel.split.cut.exchanges import exchange_bytes
from gradtide.parallel.split.cut.stage import cut_stage
from gradtide.parallel.split.cut.ways import default_ways, ways_of
from gradtide.parallel.split.trace import trace
from gradtide.parallel.split.units import Chain, Unit
from gradtide.schedule.step.layout import Stage
from gradtide.train.models import alexnet, lenet, transformer

TOWERS = {
    "conv1": "channels",
    "conv2": "groups",
    "conv3": "channels",
    "conv4": "groups",
    "conv5": "groups",
    "fc6": "columns",
    "fc7": "columns",
    "fc8": "columns",
}


def named_chain(model: nn.Sequential) -> Chain:
    """The chain of a Sequential, with its layers' own names."""
    value, units = "x", []
    for name, module in model.named_children():
        parameters = {n: f"{name}.{n}" for n, _ in module.named_parameters()}
        units.append(Unit(name, module, (value,), (name,), parameters))
        value = name
    return Chain(tuple(units), ("x",), (value,))


def small_alexnet(lrn: str) -> Chain:
    torch.manual_seed(3)
    return named_chain(alexnet(width=1 / 8, classes=10, size=67, lrn=lrn).double())


def stage_of(chain: Chain, shards: int, ways: dict[str, str]) -> Stage:
    return Stage(0, len(chain.units), tuple(range(shards)), shards, ways=tuple(ways.items()))


@pytest.mark.parametrize("lrn", ["tower", "across"])
def test_alexnet_in_two_towers_is_alexnet(lrn):
    chain = small_alexnet(lrn)
    ways = TOWERS | ({"norm1": "halo", "norm2": "halo"} if lrn == "across" else {})
    found = assert_same(chain, stage_of(chain, 2, ways), {"x": torch.randn(3, 3, 67, 67, dtype=torch.float64)})
    kinds = [exchange.kind for segment in found.stages[0].segments for exchange in segment.before]
    halos = ["halo", "halo"] if lrn == "across" else []
    assert kinds == [*halos, "gather", "gather", "gather", "gather"]
    assert [exchange.kind for exchange in found.stages[0].after] == ["collect"]


def test_a_gpu_of_the_two_tower_split_sends_30336_floats_a_sample_and_pass():
    with torch.device("meta"):
        chain = named_chain(alexnet())
    assert sum(p.numel() for unit in chain.units for p in unit.module.parameters()) == 60_965_224
    stage = stage_of(chain, 2, TOWERS)
    values = {"x": torch.empty(1, 3, 227, 227, device="meta")}
    for unit in chain.units:
        values[unit.name] = unit.module.eval()(values[unit.reads[0]])
    for shard in range(2):
        local = cut_stage(chain, stage, shard, torch.device("meta"))
        exchanges = [exchange for segment in local.segments for exchange in segment.before]
        floats = [exchange_bytes(e, shard, 2, values[e.value.split("/")[0]].numel()) for e in exchanges]
        assert [there for there, _ in floats] == [21_632, 4_608, 2_048, 2_048]
        assert [sum(way) for way in zip(*floats, strict=True)] == [30_336, 30_336]
        assert local.after[0].value == "fc8/sliced"  # the logits, which the paper's figures leave out
        assert sum(p.tensor.numel() for p in local.parameters) == 60_965_224 // 2


@pytest.mark.parametrize("shards", [2, 3])
@pytest.mark.parametrize("lrn", ["tower", "across"])
def test_alexnet_and_lenet_cut_by_default_are_the_same(shards, lrn):
    chain = small_alexnet(lrn)
    stage = stage_of(chain, shards, {})
    assert_same(chain, stage, {"x": torch.randn(3, 3, 67, 67, dtype=torch.float64)})
    ways = dict(default_ways(chain, stage))
    dense = ("rows", "columns", "rows") if shards == 2 else ("columns", "rows", "columns")  # conv5 has two groups
    assert (ways["conv1"], ways["fc6"], ways["fc7"], ways["fc8"]) == ("channels", *dense)
    chain = named_chain(lenet().double())
    assert_same(chain, stage_of(chain, shards, {}), {"x": torch.randn(3, 1, 28, 28, dtype=torch.float64)})


class Block(nn.Module):
    """Attention with one head on what three layers made, as functions between layers are."""

    def forward(self, q, k, v):
        return (q @ k.transpose(1, 2)).softmax(-1) @ v


def transformer_block(width: int) -> Chain:
    torch.manual_seed(3)
    add = torch.fx.symbolic_trace(lambda a, b: a + b)
    layers = {name: nn.Linear(width, width) for name in ("query", "key", "value", "out")}
    layers |= {"up": nn.Linear(width, 4 * width), "down": nn.Linear(4 * width, width)}
    layers |= {"norm1": nn.LayerNorm(width), "norm2": nn.LayerNorm(width), "act": nn.GELU(), "attend": Block()}
    layers |= {"skip1": add, "skip2": add, "token": nn.Embedding(13, width)}
    reads = {
        "token": ("x",),
        "norm1": ("token",),
        "query": ("norm1",),
        "key": ("norm1",),
        "value": ("norm1",),
        "attend": ("query", "key", "value"),
        "out": ("attend",),
        "skip1": ("token", "out"),
        "norm2": ("skip1",),
        "up": ("norm2",),
        "act": ("up",),
        "down": ("act",),
        "skip2": ("skip1", "down"),
    }
    units = []
    for name, values in reads.items():
        module = layers[name].double()
        parameters = {n: f"{name}.{n}" for n, _ in module.named_parameters()}
        units.append(Unit(name, module, values, (name,), parameters))
    return Chain(tuple(units), ("x",), ("skip2",))


@pytest.mark.parametrize("shards", [2, 3])
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(
    "ways",
    [
        {},
        {"up": "columns", "down": "rows"},
        {"query": "columns", "key": "columns", "value": "columns", "out": "rows", "up": "columns", "down": "columns"},
        {"out": "columns", "up": "rows", "down": "rows"},
        {"query": "columns", "key": "rows", "down": "columns"},
    ],
)
def test_a_transformers_block_with_skips_is_the_same(shards, first, ways):
    chain = transformer_block(6)
    stage = Stage(first, 13, tuple(range(shards)), shards, ways=tuple(ways.items()))
    found = assert_same(chain, stage, {"x": torch.randint(13, (2, 5))})
    if len(ways) == 2:
        kinds = [exchange.kind for segment in found.stages[0].segments for exchange in segment.before]
        assert kinds == ["spread", "sum"]


def test_query_key_and_value_share_one_spread():
    ways = {"query": "columns", "key": "columns", "value": "columns"}
    chain = transformer_block(6)
    local = cut_stage(chain, stage_of(chain, 2, ways), 0)
    exchanges = [(e.kind, e.value, e.gives) for segment in local.segments for e in segment.before]
    assert exchanges[0] == ("spread", "norm1", "norm1/spread")
    assert [kind for kind, *_ in exchanges] == ["spread", "collect", "collect", "collect"]
    assert len(local.segments) == 3


def test_a_stage_in_the_middle_is_the_same_too():
    chain = transformer_block(6)
    ways = (("out", "columns"), ("up", "columns"))
    assert_same(chain, Stage(3, 10, (0, 1), 2, ways=ways), {"x": torch.randint(13, (2, 5))})


def test_what_a_planner_is_told():
    chain = named_chain(alexnet(width=1 / 8, lrn="across"))
    units = {unit.name: unit for unit in chain.units}
    assert {way.name: way.most for way in ways_of(units["conv2"], chain)} == {"groups": 2, "channels": 2}
    assert [way.name for way in ways_of(units["fc6"], chain)] == ["both", "rows", "columns"]
    (halo,) = ways_of(units["norm1"], chain, (12, 55, 55))
    assert (halo.halo_bytes, halo.most) == (2 * 55 * 55 * 4, 6)
    (follows,) = ways_of(units["relu1"], chain)
    assert (follows.needs, follows.gives) == ("any", "any")
    assert ways_of(sequential_chain(nn.LayerNorm(3)).units[0], chain) == ()


@pytest.mark.parametrize("shards", [2, 3])
@pytest.mark.parametrize("tied", [{}, {"token": "rows", "head": "columns"}, {"token": "columns", "head": "rows"}])
def test_a_traced_transformer_with_dropout_skips_and_a_tie_is_the_same(shards, tied):
    torch.manual_seed(3)
    tokens = torch.randint(11, (4, 7))
    chain = trace(transformer(vocabulary=11, length=7, width=6, heads=2, layers=1).double(), tokens)
    ways = tied and tied | {"blocks.0.up": "columns", "blocks.0.down": "rows", "blocks.0.attention.out": "columns"}
    found = assert_same(chain, stage_of(chain, shards, ways), {"tokens": tokens})
    names = [parameter.name for parameter in found.stages[0].parameters]
    assert names.count("token.weight") == 1
    assert "head.weight" not in names


class Flat(nn.Module):
    """Flattens as many models do, with a skip beside it."""

    def __init__(self, by_size: bool) -> None:
        super().__init__()
        self.by_size = by_size
        self.conv, self.other, self.dense = nn.Conv2d(3, 7, 3), nn.Conv2d(3, 7, 3), nn.Linear(7 * 3 * 3, 5)

    def forward(self, x):
        both = torch.relu(self.conv(x)) + self.other(x) * 0.5
        return self.dense(both.view(both.size(0), -1) if self.by_size else both.reshape(both.shape[0], -1))


@pytest.mark.parametrize("shards", [2, 3])
@pytest.mark.parametrize("by_size", [True, False])
def test_functions_between_layers_follow_slices(shards, by_size):
    x = torch.randn(4, 3, 5, 5, dtype=torch.float64)
    chain = trace(Flat(by_size).double(), x)
    found = assert_same(chain, stage_of(chain, shards, {}), {"x": x})
    assert len(found.stages[0].segments) == 1
    assert [exchange.kind for exchange in found.stages[0].after] == ["sum"]
