"""What a server sends: answers to the connections that clients have now, and what other servers are to do too.

Answers point into the shards' own memory. What the kernel does not take at once is copied only if that shard is touched
again before it has left.
"""

import logging
from collections.abc import Sequence

from torch import Tensor

from gradtide.errors import CommunicationError
from gradtide.store.rules.tensors import bytes_of
from gradtide.store.server.granting import Granting
from gradtide.store.server.incoming import Client
from gradtide.store.server.peers import Peers
from gradtide.store.server.watching import ServerWatch
from gradtide.store.shard.shard_events import Answer
from gradtide.store.shard.shard_set import ShardSet
from gradtide.store.wire.messages import Pulled, Pushed, Question, Refused, Request, Snapshot, encode
from gradtide.transport.connection import Connection
from gradtide.transport.service import Service

__all__ = ["Outgoing"]

_log = logging.getLogger("gradtide.server")


class Outgoing:
    """Who is where, and who still has to be sent what of the shards' memory."""

    def __init__(
        self,
        shard_set: ShardSet[Tensor],
        service: Service,
        peers: Peers,
        granting: Granting,
        watch: ServerWatch | None = None,
    ) -> None:
        self._shard_set, self._service, self._peers, self._granting = shard_set, service, peers, granting
        self._watch = watch
        self.routes: dict[str, Client] = {}  # by the client's name: the connection it has now
        self.lent: dict[int, list[Connection]] = {}  # shard -> who may still have to send its memory

    def meet(self, client: Client, message: Request | Question) -> None:
        """From now on this is where that client is."""
        if self.routes.get(message.client) is not client:
            self.routes[message.client] = client
            client.connection.peer = message.client

    def forget(self, client: Client) -> None:
        for name in [name for name, known in self.routes.items() if known is client]:
            del self.routes[name]

    def deliver(self, answers: Sequence[Answer[Tensor]]) -> None:
        """After each call of the shard set: first to other servers, then to clients."""
        if self._shard_set.replication.outbox:
            self.send_to_peers()
        for answer in answers:
            client = self.routes.get(answer.client)
            if client is None:
                continue  # it will ask again when it is back
            message = answer.message
            connection = client.connection
            if self._watch is not None:
                self._watch.answers(answer.client, message)
            if client.noted and isinstance(message, (Pushed, Refused)):
                self._granting.settled(client, message.sequence, message.shard)
            try:
                if len(answer.values) == 1:
                    body = bytes_of(answer.values[0])
                    connection.send(encode(message), (body,), len(body))
                elif answer.values:
                    bodies = [bytes_of(value) for value in answer.values]
                    connection.send(encode(message), bodies, sum(map(len, bodies)))
                else:
                    connection.send(encode(message))
            except CommunicationError:
                continue  # its socket will say so itself
            if connection.can_flush:
                self.watch(connection, message if answer.values and isinstance(message, Pushed | Pulled) else None)

    def fail(self, message: Request) -> None:
        """Whatever went wrong in here is for our own log; the client gets one line."""
        _log.exception("request %d of %s failed", message.sequence, message.client)
        text = f"server {self._shard_set.name} could not do this; its log says why"
        self.deliver([Answer(message.client, Refused(message.sequence, -1, "rule", text, self._shard_set.epoch))])

    def send_to_peers(self) -> None:
        """What replicas are to do, and shards that move."""
        table = self._shard_set.table
        addresses = {server.name: server.address for server in table.servers} if table else {}
        for send in self._shard_set.take_outbox():
            if send.name in addresses:
                connection = self._peers.send(send.name, addresses[send.name], send.message, send.values)
                if connection is not None and isinstance(send.message, Snapshot):
                    self.lent.setdefault(send.message.shard, []).append(connection)

    # --- memory that is being sent ---

    def watch(self, connection: Connection, lent: Pushed | Pulled | None) -> None:
        """See to what has not left yet, and remember whose memory it is."""
        self._service.watch(connection)
        if lent is not None:
            self.lent.setdefault(lent.shard, []).append(connection)

    def keep(self, shard: int) -> None:
        """This shard's values may change now: what has not left must be copied."""
        for connection in self.lent.pop(shard, ()):
            connection.keep_copies()

    def keep_all(self) -> None:
        """Those of any shard may."""
        for shard in list(self.lent):
            self.keep(shard)
