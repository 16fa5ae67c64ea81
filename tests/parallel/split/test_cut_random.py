"""Random models, cut at random: the same as the model that isn't cut."""

import random

import pytest
import torch
from shard_reference import assert_same
from torch import nn

from gradtide.parallel.split.cut.ways import ways_of
from gradtide.parallel.split.layers.response_norm import GroupedResponseNorm
from gradtide.parallel.split.units import Chain, Unit
from gradtide.schedule.step.layout import Stage

ADD = torch.fx.symbolic_trace(lambda a, b: a + 0.5 * b)
# Norms of features that ReLU has left constant divide by the root of eps. One after the other, with torch's 1e-5, they
# make gradients of 1e6 that cancel: the rounding of torch alone, on slices of channels, then is more than 1e-12.
EPS = 0.1


class RandomModel:
    """Layers one after the other, with skips where the shapes allow it: convolutions, then dense layers."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        torch.manual_seed(seed)
        self.units: list[Unit] = []
        self.shapes: dict[str, tuple[int, ...]] = {"x": (self.random.randint(4, 9), 6, 6)}
        self.value = "x"
        self.add(
            nn.Conv2d(self.shape[0], self.random.randint(4, 9), 1)
        )  # outside the stage: what it reads has a gradient
        for _ in range(self.random.randint(1, 5)):
            self.add(self.image_layer())
        self.add(nn.Flatten())
        for _ in range(self.random.randint(1, 5)):
            self.add(self.flat_layer())

    @property
    def shape(self) -> tuple[int, ...]:
        return self.shapes[self.value]

    def image_layer(self) -> nn.Module:
        channels = self.shape[0]
        groups = self.random.choice([g for g in range(1, channels + 1) if channels % g == 0])
        out = groups * self.random.randint(1, max(1, 9 // groups))
        kinds = [
            lambda: nn.Conv2d(channels, self.random.randint(4, 9), 3, padding=1, bias=self.random.random() < 0.7),
            lambda: nn.Conv2d(channels, out, 3, padding=1, groups=groups),
            lambda: nn.BatchNorm2d(channels, eps=EPS),
            lambda: nn.GroupNorm(groups, channels, eps=EPS),
            lambda: nn.ReLU(),
            lambda: nn.AvgPool2d(3, 1, 1),
            lambda: nn.LocalResponseNorm(3, alpha=0.3),
            lambda: GroupedResponseNorm(3, alpha=0.3, groups=groups),
            lambda: nn.PReLU(channels),
            lambda: nn.Dropout(0.3),
        ]
        return self.random.choice(kinds)()

    def flat_layer(self) -> nn.Module:
        features = self.shape[0]
        kinds = [
            lambda: nn.Linear(features, self.random.randint(4, 11), bias=self.random.random() < 0.7),
            lambda: nn.Linear(features, features),
            lambda: nn.Tanh(),
            lambda: nn.LayerNorm(features, eps=EPS),
            lambda: nn.BatchNorm1d(features, eps=EPS),
            lambda: nn.Dropout(0.3),
        ]
        return self.random.choice(kinds)()

    def add(self, layer: nn.Module) -> None:
        self.unit(layer.double(), (self.value,))
        alike = [name for name, shape in self.shapes.items() if shape == self.shape and name != self.value]
        if alike and self.random.random() < 0.4:
            self.unit(ADD, (self.random.choice(alike), self.value))

    def unit(self, module: nn.Module, reads: tuple[str, ...]) -> None:
        name = f"u{len(self.units)}"
        parameters = {n: f"{name}.{n}" for n, _ in module.named_parameters()}
        buffers = {n: f"{name}.{n}" for n, _ in module.named_buffers()}
        self.units.append(Unit(name, module, reads, (name,), parameters, buffers))
        inputs = [torch.zeros(3, *self.shapes[read], dtype=torch.float64) for read in reads]
        state = {n: b.clone() for n, b in module.named_buffers()}
        self.shapes[name] = tuple(module(*inputs).shape[1:])
        for n, buffer in module.named_buffers():
            buffer.copy_(state[n])
        self.value = name

    def ways(self, chain: Chain, shards: int) -> tuple[tuple[str, str], ...]:
        found = []
        for unit in chain.units[1:]:
            ways = [w for w in ways_of(unit, chain) if w.most >= shards and (not w.at or shards in w.at)]
            ways = [w for w in ways if w.name != "halo"]  # needs slices, which aren't known here
            if ways and self.random.random() < 0.8:
                found.append((unit.name, self.random.choice([*ways]).name))
        return tuple(found)


def check(seed: int) -> None:
    model = RandomModel(seed)
    outputs = (model.value, *model.random.sample(list(model.shapes)[2:], 1))
    chain = Chain(tuple(model.units), ("x",), tuple(dict.fromkeys(outputs)))
    shards = model.random.choice([2, 3, 4])
    last = model.random.choice([len(chain.units), model.random.randint(2, len(chain.units))])
    ways = () if model.random.random() < 0.3 else model.ways(chain, shards)
    names = {unit.name for unit in chain.units[1:last]}
    stage = Stage(1, last, tuple(range(shards)), shards, ways=tuple(way for way in ways if way[0] in names))
    assert_same(chain, stage, {"x": torch.randn(4, *model.shapes["x"], dtype=torch.float64)})


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_models_cut_at_random_are_the_same(first):
    for seed in range(first, first + 10):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(40, 1040, 100))
def test_many_models_cut_at_random_are_the_same(first):
    for seed in range(first, first + 100):
        check(seed)
