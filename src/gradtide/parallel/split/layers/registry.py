"""Which layers can be cut into shards, in which ways; a user's own layers can be added."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from torch import fx, nn

from gradtide.even_share import even_share
from gradtide.schedule.step.costs import CutWay

__all__ = ["Index", "LayerPart", "LayerWay", "Slices", "is_registered", "layer", "layer_ways"]

Index = tuple[slice, ...]  # the part of a tensor that a shard holds; (): all of it


@dataclass(frozen=True, slots=True)
class Slices:
    """How a value is dealt out to the shards: along which dimension, and how long each one's slice is."""

    dim: int
    sizes: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.sizes)

    def of(self, shard: int) -> slice:
        begin = sum(self.sizes[:shard])
        return slice(begin, begin + self.sizes[shard])


@dataclass(frozen=True, slots=True)
class LayerPart:
    """Whose part of a layer it is: shard `shard` of `shards`."""

    shard: int
    shards: int
    given: Slices | None = None  # of what it reads; None: that is whole
    features: int | None = None  # how many it makes of a sample, where a later layer tells

    def of(self, things: int, grain: int = 1) -> slice:
        """This shard's even share, in whole grains."""
        return slice(*even_share(things, self.shard, self.shards, grain))

    def sizes(self, things: int, grain: int = 1) -> tuple[int, ...]:
        """All shards' even shares."""
        spans = [even_share(things, shard, self.shards, grain) for shard in range(self.shards)]
        return tuple(end - begin for begin, end in spans)


class LayerWay(ABC):
    """One way to cut a kind of layer. Register it with `@layer(TheLayer)`; it needs no constructor.

    A layer of one's own, say one that scales every feature, is cut like this:

        @layer(Scale)
        class ScaleSlices(LayerWay):
            def way(self, module):
                return CutWay("slices", needs="sliced", gives="sliced", most=module.scale.numel())
            def reads(self, module, part):
                return Slices(-1, part.sizes(module.scale.numel()))
            def pieces(self, module, part):
                return {"scale": (part.given.of(part.shard),)}
            def local(self, module, part):
                return Scale(part.given.sizes[part.shard])
    """

    @abstractmethod
    def way(self, module: nn.Module) -> CutWay | None:
        """What a planner has to know; None where this very module can't be cut in this way."""

    def reads(self, module: nn.Module, part: LayerPart) -> Slices | None:
        """The slices to read, where the way needs them; part.given are those that there are. None: it can't."""
        return part.given

    def writes(self, module: nn.Module, part: LayerPart) -> Slices | None:
        """The slices that it makes, where the way gives slices; part.given are those that it reads. None: it can't."""
        return part.given

    def pieces(self, module: nn.Module, part: LayerPart) -> Mapping[str, Index | None]:
        """What this shard holds of the module's parameters and buffers (None: nothing); of others it holds all."""
        return {}

    def local(self, module: nn.Module, part: LayerPart) -> nn.Module:
        """The module that this shard runs. What its parameters and buffers hold is filled in afterwards, by name."""
        return copy.deepcopy(module)

    def halo(self, module: nn.Module) -> int:
        """How many rows of each neighbour's slice it has to read besides its own."""
        return 0


_ways: dict[type[nn.Module], list[LayerWay]] = {}
AnyWay = TypeVar("AnyWay", bound=type[LayerWay])


def layer(*kinds: type[nn.Module]) -> Callable[[AnyWay], AnyWay]:
    """Registers a way to cut layers of these classes (not of classes derived from them: those may compute otherwise).

    From then on such a layer is one unit when a model is traced. A way of the same name that was registered before is
    replaced.
    """

    def register(way: AnyWay) -> AnyWay:
        for kind in kinds:
            _ways.setdefault(kind, []).insert(0, way())
        return way

    return register


def is_registered(kind: type) -> bool:
    """Whether a class has ways to be cut; then tracing takes such a module as one unit, whatever its forward does."""
    return kind in _ways


def layer_ways(module: nn.Module) -> dict[str, tuple[CutWay, LayerWay]]:
    """The ways to cut this module, by name. A module with hooks has none: a part of it wouldn't call them."""
    found: dict[str, tuple[CutWay, LayerWay]] = {}
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return found
    # torch.fx makes a class of its own for every graph
    for kind in _ways.get(fx.GraphModule if isinstance(module, fx.GraphModule) else type(module), ()):
        way = kind.way(module)
        if way is not None:
            found.setdefault(way.name, (way, kind))
    return found
