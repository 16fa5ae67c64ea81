"""From bytes to tensors where they arrive in the simulator, by what a real server decodes with."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradtide.store.server.incoming import PartShapes, restore_values
from gradtide.store.shard.shard_set import ShardSet
from gradtide.store.wire.messages import Init, Push, Request
from gradtide.testing.simulator.compressed.ledger import Ledger

__all__ = ["unpack"]


def unpack(ledger: Ledger, shard_set: ShardSet[Any], message: Request, bodies: Sequence[bytes]) -> Sequence[Tensor]:
    """The values of a request; none if it will be refused whatever they are."""
    parts = shard_set.parts(message) if isinstance(message, Push | Init) else None
    if parts is None or not isinstance(message, Push | Init) or not shard_set.accepts(message, parts):
        return ()
    if isinstance(message, Push):
        ledger.note_arrival(message, [piece for part in parts for piece in part.pieces], bodies)
    values: list[Tensor] = []
    for shape in PartShapes(shard_set).of(message, parts):
        own = bodies[len(values) : len(values) + len(shape.counts)]
        arrived = [
            torch.frombuffer(bytearray(body), dtype=dtype) for body, dtype in zip(own, shape.dtypes, strict=True)
        ]
        values += restore_values(shape, arrived)
    return values
