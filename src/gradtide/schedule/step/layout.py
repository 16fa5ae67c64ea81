"""How a model is split: stages of layers, each with copies and shards, as plain data."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Layout", "Order", "Stage"]

Order = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]


@dataclass(frozen=True, slots=True)
class Stage:
    """The units first to last - 1 of a model, on copies x shards devices.

    Copies take different samples of each micro-batch (even shares of it, in order); the shards of one copy take the
    same samples, and a part of each layer. Copy c and shard s are on devices[c * shards + s].
    """

    first: int
    last: int
    devices: tuple[int, ...]
    shards: int = 1
    recompute: bool = False  # activations are computed again in backward instead of being kept
    ways: tuple[tuple[str, str], ...] = ()  # (unit, way) of each unit that is cut into shards; the others are whole

    @property
    def copies(self) -> int:
        return len(self.devices) // self.shards

    def device(self, copy: int, shard: int) -> int:
        return self.devices[copy * self.shards + shard]


@dataclass(frozen=True, slots=True)
class Layout:
    """Who computes what of a model, and in which order.

    `units` are the names of the model's units, so that another model is refused. `stages` say which units are computed
    on which devices; two stages have the same devices (in any order) or none in common. A batch is computed in
    `micro_batches` pieces. `order` is "gpipe", "1f1b", "interleaved" or "zero-bubble".
    """

    units: tuple[str, ...]  # the names of the model's units, so that another model is refused
    stages: tuple[Stage, ...]
    micro_batches: int = 1
    order: Order = "1f1b"

    @property
    def devices(self) -> int:
        """How many devices it is for."""
        return 1 + max(device for stage in self.stages for device in stage.devices)
