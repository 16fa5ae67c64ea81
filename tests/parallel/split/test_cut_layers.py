"""Every kind of layer in every way it can be cut: outputs, gradients and buffers are the uncut layer's."""

import pytest
import torch
from shard_reference import assert_same, sequential_chain
from torch import nn

from gradtide.errors import ConfigError
from gradtide.parallel.split.cut.stage import cut_stage
from gradtide.parallel.split.layers import LayerPart, LayerWay, Slices, layer
from gradtide.parallel.split.trace import trace
from gradtide.schedule.step.costs import CutWay
from gradtide.schedule.step.layout import Stage

SHARDS = [2, 3, 4]


class Scale(nn.Module):
    """Multiplies each feature, or channel, by a number of its own."""

    def __init__(self, features: int, dims: int = 0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(features, *[1] * dims) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


@layer(Scale)
class ScaleSlices(LayerWay):
    """As a user would add it; as the registry's docstring shows."""

    def way(self, module):
        return CutWay("slices", needs="sliced", gives="sliced", most=module.scale.numel())

    def reads(self, module, part):
        return Slices(-1, part.sizes(module.scale.numel()))

    def pieces(self, module, part):
        return {"scale": (part.given.of(part.shard),)}

    def local(self, module, part):
        return Scale(part.given.sizes[part.shard])


def check(shards: int, x: torch.Tensor, layers: list[nn.Module], **ways: str):
    """A first layer outside the stage, so that what the stage reads has a gradient; then the layers u1, u2, ..."""
    torch.manual_seed(1)
    channels, dims = x.shape[1], x.dim() - 2
    chain = sequential_chain(Scale(channels, dims), *layers)
    for unit in chain.units:
        unit.module.double()
    stage = Stage(1, len(chain.units), tuple(range(shards)), shards, ways=tuple(ways.items()))
    return assert_same(chain, stage, {"x": x})


def kinds_of_exchanges(shards) -> list[str]:
    stage = shards.stages[0]
    return [exchange.kind for segment in stage.segments for exchange in segment.before] + [e.kind for e in stage.after]


def flat(features: int) -> torch.Tensor:
    return torch.randn(5, features, dtype=torch.float64)


def image(channels: int) -> torch.Tensor:
    return torch.randn(2, channels, 6, 5, dtype=torch.float64)


@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("bias", [True, False])
def test_linear_by_columns_and_by_rows_of_odd_sizes(shards, bias):
    found = check(shards, flat(7), [nn.Linear(7, 9, bias=bias)], u1="columns")
    assert kinds_of_exchanges(found) == ["spread", "collect"]
    assert found.stages[1].parameters[0].index == (slice(9 // shards, 18 // shards),)
    assert kinds_of_exchanges(check(shards, flat(7), [nn.Linear(7, 9, bias=bias)], u1="rows")) == ["slice", "sum"]
    check(shards, torch.randn(2, 3, 4, 7, dtype=torch.float64), [nn.Linear(7, 9, bias=bias)], u1="rows")


@pytest.mark.parametrize("shards", [4, 6, 9])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_by_both(shards, bias):
    found = check(shards, flat(7), [nn.Linear(7, 5, bias=bias)], u1="both")
    assert kinds_of_exchanges(found) == ["spread", "sum"]


@pytest.mark.parametrize("shards", SHARDS)
def test_columns_then_rows_need_one_sum_and_the_bias_is_counted_once(shards):
    found = check(shards, flat(6), [nn.Linear(6, 11), nn.Tanh(), nn.Linear(11, 5)], u1="columns", u3="rows")
    assert kinds_of_exchanges(found) == ["spread", "sum"]
    holders = [any(p.name == "3.bias" for p in stage.parameters) for stage in found.stages]
    assert holders == [True] + [False] * (shards - 1)


@pytest.mark.parametrize("shards", SHARDS)
def test_columns_after_columns_gather_and_rows_after_rows_sum_and_slice(shards):
    layers = [nn.Linear(6, 11), nn.ReLU(inplace=True), nn.Linear(11, 7), nn.Linear(7, 5)]
    assert kinds_of_exchanges(check(shards, flat(6), layers, u1="columns", u3="columns")) == [
        "spread",
        "gather",
        "collect",
    ]
    layers = [nn.Linear(6, 7), nn.Linear(7, 5)]
    assert kinds_of_exchanges(check(shards, flat(6), layers, u1="rows", u2="rows")) == ["slice", "sum", "slice", "sum"]


@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("options", [{}, {"stride": 2, "bias": False}, {"padding": "same", "padding_mode": "circular"}])
def test_convolution_by_channels(shards, options):
    check(shards, image(3), [nn.Conv2d(3, 7, 3, **options)], u1="channels")


@pytest.mark.parametrize("shards", SHARDS)
def test_grouped_convolutions_from_slices_and_from_the_whole(shards):
    grouped = nn.Conv2d(8, 12, 3, groups=4, padding=1)
    found = check(shards, image(3), [nn.Conv2d(3, 8, 3), nn.ReLU(), grouped], u1="channels", u3="groups")
    if shards in (2, 4):
        assert kinds_of_exchanges(found) == ["spread", "collect"]  # the slices are whole groups: nothing is sent
    check(shards, image(8), [nn.Conv2d(8, 12, 3, groups=4)], u1="channels")
    check(shards, image(8), [nn.Conv2d(8, 8, 3, groups=8)], u1="groups")


@pytest.mark.parametrize("shards", SHARDS)
def test_convolutions_of_one_and_three_dimensions(shards):
    x = torch.randn(2, 4, 9, dtype=torch.float64)
    check(shards, x, [nn.Conv1d(4, 6, 3), nn.Conv1d(6, 6, 3, groups=6)], u1="channels", u2="groups")
    x = torch.randn(2, 4, 4, 4, 4, dtype=torch.float64)
    check(shards, x, [nn.Conv3d(4, 5, 3)], u1="channels")


@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("way", ["columns", "rows"])
@pytest.mark.parametrize("padding", [None, 5])
def test_embedding_by_columns_and_by_rows(shards, way, padding):
    torch.manual_seed(1)
    chain = sequential_chain(nn.Embedding(11, 7, padding_idx=padding).double())
    words = torch.tensor([[0, 5, 10, 5], [3, 9, 1, 0]])
    assert_same(chain, Stage(0, 1, tuple(range(shards)), shards, ways=(("u0", way),)), {"x": words})


@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize(
    "norm", [nn.BatchNorm2d(9), nn.BatchNorm2d(9, affine=False, momentum=None), nn.GroupNorm(9, 9)]
)
def test_norms_on_slices_of_channels(shards, norm):
    found = check(shards, image(3), [nn.Conv2d(3, 9, 3), norm, nn.ReLU()], u1="channels", u2="channels")
    assert kinds_of_exchanges(found) == ["spread", "collect"]


@pytest.mark.parametrize("shards", [2, 3])
def test_norms_whose_groups_or_slices_do_not_match_get_others(shards):
    layers = [nn.Conv2d(3, 12, 3), nn.GroupNorm(3, 12)]
    check(shards, image(3), layers, u1="channels", u2="channels")
    check(shards, image(9), [nn.InstanceNorm2d(9, affine=True, track_running_stats=True)], u1="channels")


def test_batch_norm_of_features_is_cut_but_not_of_channels_before_features():
    check(2, flat(3), [nn.Linear(3, 5), nn.BatchNorm1d(5)], u1="columns", u2="channels")
    x = torch.randn(4, 5, 3, dtype=torch.float64)
    with pytest.raises(ConfigError, match="BatchNorm1d"):
        check(2, x, [nn.Linear(3, 5), nn.BatchNorm1d(5)], u1="columns", u2="channels")


@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_response_norm_across_slices_borrows_a_halo(shards, size):
    layers = [nn.Conv2d(3, 9, 3), nn.LocalResponseNorm(size, alpha=0.5, k=2.0)]
    found = check(shards, image(3), layers, u1="channels", u2="halo")
    assert kinds_of_exchanges(found) == ["spread", "halo", "collect"]


@pytest.mark.parametrize("shards", SHARDS)
def test_layers_that_follow_slices_send_nothing(shards):
    layers = [nn.Conv2d(3, 7, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.ELU(), nn.Linear(14, 5)]
    found = check(shards, image(3), layers, u1="channels", u6="rows")
    assert kinds_of_exchanges(found) == ["spread", "sum"]
    assert found.stages[0].parameters[2].index[1] == slice(0, 7 // shards * 2)


@pytest.mark.parametrize("shards", SHARDS)
def test_layers_without_a_way_are_whole_between_others(shards):
    layers = [nn.Linear(6, 8), nn.LayerNorm(8), nn.Softmax(-1), nn.Linear(8, 7), nn.PReLU(), nn.Linear(7, 4)]
    found = check(shards, flat(6), layers, u1="columns", u4="columns", u6="rows")
    assert kinds_of_exchanges(found) == ["spread", "collect", "spread", "collect", "slice", "sum"]
    check(shards, image(3), [nn.Conv2d(3, 8, 3), nn.PReLU(8)], u1="channels", u2="channels")


@pytest.mark.parametrize("shards", SHARDS)
def test_a_flatten_whose_length_nobody_tells_is_whole(shards):
    found = check(shards, image(3), [nn.Conv2d(3, 7, 3), nn.Flatten()], u1="channels")
    assert kinds_of_exchanges(found) == ["spread", "collect"]


@pytest.mark.parametrize("shards", [2, 3])
def test_a_layer_of_the_users_own_is_cut_once_it_is_registered(shards):
    found = check(shards, flat(5), [nn.Linear(5, 7), Scale(7), nn.Linear(7, 2)], u1="columns", u2="slices", u3="rows")
    assert kinds_of_exchanges(found) == ["spread", "sum"]


class Scaled(nn.Module):
    """A model with such a layer, which isn't a Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.scale, self.last = nn.Linear(5, 7), Scale(7), nn.Linear(7, 2)

    def forward(self, x):
        return self.last(self.scale(self.first(x)))


def test_a_layer_that_is_registered_is_one_unit_when_traced():
    chain = trace(Scaled().double(), flat(5))
    assert [unit.name for unit in chain.units] == ["first", "scale", "last"]
    ways = (("first", "columns"), ("scale", "slices"), ("last", "rows"))
    assert_same(chain, Stage(0, 3, (0, 1), 2, ways=ways), {"x": flat(5)})


@pytest.mark.parametrize("shards", [2, 3])
def test_frozen_parameters_and_layers_before_any_trained_one(shards):
    torch.manual_seed(1)
    chain = sequential_chain(nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3))
    for unit in chain.units:
        unit.module.double()
    chain.units[0].module.requires_grad_(False)
    ways = (("u0", "columns"), ("u1", "columns"), ("u2", "rows"))
    found = assert_same(chain, Stage(0, 3, tuple(range(shards)), shards, ways=ways), {"x": flat(4)})
    assert kinds_of_exchanges(found) == ["collect", "sum"]  # nobody needs a gradient of the first two values


@pytest.mark.parametrize("shards", [2, 3])
def test_tied_parameters_that_are_cut_alike_are_one_tensor_and_others_are_refused(shards):
    torch.manual_seed(1)
    chain = sequential_chain(nn.Embedding(11, 6).double(), nn.Tanh(), nn.Linear(6, 11, bias=False).double())
    chain.units[2].module.weight = chain.units[0].module.weight
    chain.units[2].parameters["weight"] = "0.weight"
    words = torch.tensor([[0, 5, 10], [3, 9, 1]])
    devices = tuple(range(shards))
    for first, second in (("rows", "columns"), ("columns", "rows")):
        found = assert_same(chain, Stage(0, 3, devices, shards, ways=(("u0", first), ("u2", second))), {"x": words})
        assert [p.name for p in found.stages[0].parameters] == ["0.weight"]
    with pytest.raises(ConfigError, match=r"u0 and u2 share 0\.weight but cut it differently"):
        cut_stage(chain, Stage(0, 3, devices, shards, ways=(("u0", "rows"),)), 0)


@pytest.mark.parametrize(
    ("layers", "ways", "shards", "message"),
    [
        ([nn.LayerNorm(4)], {"u1": "columns"}, 2, r"u1 \(LayerNorm\) can't be cut by 'columns'; choose one of: whole"),
        ([nn.Linear(4, 3)], {"u1": "columns"}, 4, r"u1 \(Linear\) can be cut by columns into 3 shards at most, not 4"),
        ([nn.Linear(4, 4)], {"u1": "both"}, 3, "one of 4, 6, 8.* shards, not 3"),
        ([nn.Linear(4, 4)], {"u7": "rows"}, 2, "'u7' is given, but the stage has no such unit; it has u1"),
        (
            [nn.Linear(4, 4), nn.LocalResponseNorm(3)],
            {"u2": "halo"},
            2,
            "can't be cut by halo here: what it reads is not sliced",
        ),
        ([nn.Embedding(4, 4, max_norm=1.0)], {"u1": "rows"}, 2, "can't be cut by 'rows'"),
    ],
)
def test_what_can_not_be_cut_is_refused_by_name(layers, ways, shards, message):
    chain = sequential_chain(nn.Identity(), *layers)
    with pytest.raises(ConfigError, match=message):
        cut_stage(chain, Stage(1, len(chain.units), tuple(range(shards)), shards, ways=tuple(ways.items())), 0)


def test_a_part_is_an_even_share():
    assert LayerPart(1, 3).of(10) == slice(3, 6)
    assert LayerPart(0, 3).sizes(10) == (3, 3, 4)
    assert Slices(1, (3, 3, 4)).of(2) == slice(6, 10)
