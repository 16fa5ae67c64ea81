"""Credit, as a server gives it: what was handed over is given back to who sent it, unless it runs too far ahead.

A client that has more than two rounds of everything here waiting for others is not who is waited for: it gets no credit
until some of that is settled. That bounds what the contributions to open rounds can hold.
"""

import contextlib

from torch import Tensor

from gradtide.errors import CommunicationError
from gradtide.store.server.incoming import Client
from gradtide.store.shard.shard_set import ShardSet
from gradtide.store.wire.credit import CREDIT_BYTES, CREDIT_STEP_BYTES
from gradtide.transport.service import Service

__all__ = ["Granting"]


class Granting:
    """Counts by client."""

    def __init__(self, shard_set: ShardSet[Tensor], service: Service) -> None:
        self._shard_set, self._service = shard_set, service

    def note(self, client: Client, sequence: int, shard: int, size_bytes: int) -> None:
        """These values wait for others."""
        if (sequence, shard) not in client.noted:
            client.noted[sequence, shard] = size_bytes
            client.noted_bytes += size_bytes

    def settled(self, client: Client, sequence: int, shard: int) -> None:
        """They no longer do."""
        client.noted_bytes -= client.noted.pop((sequence, shard), 0)
        self.give_back(client)

    def give_back(self, client: Client) -> None:
        """When it is worth a message."""
        if client.handed_over < CREDIT_STEP_BYTES:
            return
        if client.noted_bytes > CREDIT_BYTES and client.noted_bytes > 2 * self._held_bytes():
            return
        with contextlib.suppress(CommunicationError):
            client.connection.give_credit(client.handed_over)
            client.handed_over = 0
            client.connection.flush()
        self._service.watch(client.connection)

    def _held_bytes(self) -> int:
        return sum(block.size_bytes for shard in self._shard_set.shards.values() for block in shard.blocks.values())
