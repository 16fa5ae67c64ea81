"""The shell around shard_set.py: a server's sockets and clock.

What clients ask for is received by requests.py, what is answered leaves by outgoing.py; here is the loop, and what the
coordinator and other servers say.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from gradtide.errors import CommunicationError, FrameError, StoreError
from gradtide.observe.bounded_log import BoundedLog
from gradtide.store.server.copies import CopiesNotice
from gradtide.store.server.draining import DRAIN_S, Draining
from gradtide.store.server.fast import ServerFastPath
from gradtide.store.server.granting import Granting
from gradtide.store.server.incoming import Client, PartShapes, use_in_place
from gradtide.store.server.outgoing import Outgoing
from gradtide.store.server.peers import Arriving, Peers
from gradtide.store.server.requests import Requests
from gradtide.store.server.uplink import Uplink
from gradtide.store.server.watching import ServerWatch
from gradtide.store.shard.inventory import describe_health
from gradtide.store.shard.lease import LEASE_S
from gradtide.store.shard.shard_set import ShardSet
from gradtide.store.snapshot.file_writing import file_cutter
from gradtide.store.snapshot.loading import Loader
from gradtide.store.wire.credit import CREDIT_BYTES
from gradtide.store.wire.messages import (
    BeginCut,
    CollectCut,
    Configure,
    Fenced,
    Init,
    Inspect,
    Keys,
    Message,
    Pull,
    Push,
    Refused,
    Replicate,
    Replicated,
    ServerMessage,
    Snapshot,
    Welcome,
    decode_from,
    encode,
    find_request,
)
from gradtide.store.wire.rights import check_rights
from gradtide.transport.authenticate import HANDSHAKE_S, Address, listen
from gradtide.transport.connection import Connection
from gradtide.transport.service import Service

__all__ = ["Server"]

_TICK_S = 0.05
_REQUESTS = (Push, Init, Pull, Configure, Keys)  # a tuple: isinstance takes half as long as with a union
_BETWEEN_SERVERS = (Replicate, Replicated, Snapshot, Fenced)
_log = logging.getLogger("gradtide.server")


class Server:
    """One process that holds parameters."""

    def __init__(
        self,
        shard_set: ShardSet[Tensor],
        address: Address,
        uplink: Uplink,
        *,
        advertise: Callable[[Address], Address] = lambda listens: listens,
        handshake_s: float = HANDSHAKE_S,
        drain_s: float = DRAIN_S,
        roots: Sequence[str] | None = None,
        log: BoundedLog | None = None,
    ) -> None:
        """`roots`: the folders under which it may write checkpoints; None: anywhere. `log`: where it tells what happens
        here, for who watches; None: nobody does."""
        credentials = uplink.credentials
        listener = listen(address, credentials)
        self.address = address if address.path else replace(address, port=listener.getsockname()[1])
        shard_set.address = str(advertise(self.address))  # where others reach it
        self._shard_set = shard_set
        self._service = Service(listener, credentials, "server", self._greet, handshake_s, address.tls)
        self._uplink = uplink
        self._peers = Peers(self._service, credentials, shard_set.peer_is_up)
        self._granting = Granting(shard_set, self._service)
        self._log, self._watch = log, None if log is None else ServerWatch(log.observe)
        self._outgoing = Outgoing(shard_set, self._service, self._peers, self._granting, self._watch)
        self._shapes = PartShapes(shard_set)
        self._fast = ServerFastPath(shard_set, self._service, self._outgoing, self._granting, self._shapes)
        self._requests = Requests(shard_set, self._outgoing, self._granting, self._shapes, self._fast, self._watch)
        self._cutter = file_cutter(shard_set, self._service.wake, roots)
        self._loader = Loader(shard_set, self._service.wake)
        self._draining = Draining(shard_set, drain_s)
        self._stopped = False
        self._copies = CopiesNotice(shard_set.replicas)

    def run(self) -> None:
        """Until somebody calls `stop`, or it may go."""
        self._uplink.start(self._service, self._hear_coordinator)
        next_tick_s = 0.0
        while not self._stopped:
            now_s = time.monotonic()
            if now_s >= next_tick_s:
                next_tick_s = now_s + _TICK_S
                self._tick(now_s)
            self._peers.poll()
            if self._cutter.active:
                self._outgoing.deliver(self._cutter.poll(now_s))
            if self._loader.active:
                self._outgoing.deliver(self._loader.poll(now_s))
            if self._shard_set.replication.outbox:
                self._outgoing.send_to_peers()
            self._service.run_once(next_tick_s - now_s)
            if self._draining.is_over(now_s):
                break
            if self._shard_set.gave_up:
                self.close()
                raise StoreError(f"the coordinator does not let this server in: {self._shard_set.gave_up}")
        self.close()
        if not self._stopped:
            self._draining.check()

    def _tick(self, now_s: float) -> None:
        self._uplink.tell(self._shard_set.tick(now_s))
        self._uplink.poll(self._shard_set.lease.lease_s)
        self._peers.drop_lost(now_s, self._shard_set.lease.lease_s or LEASE_S)
        if self._log is not None and self._watch is not None:
            if self._watch.wants_lag(now_s):
                self._watch.lags(describe_health(self._shard_set).lag)
            self._log.flush()

    def close(self) -> None:
        """Closes every socket."""
        self._cutter.close()
        self._uplink.close()
        self._peers.close()
        self._service.close()
        if self._log is not None:
            self._log.close()

    def stop(self) -> None:
        self._stopped = True
        self._service.wake()

    def drain(self) -> None:
        """Goes when its shards are elsewhere; called twice, at once."""
        self._draining.ask()
        self._service.wake()

    # --- the coordinator ---

    def _hear_coordinator(self, message: Message) -> None:
        now_s = time.monotonic()
        if self._watch is not None and isinstance(message, Welcome):
            self._watch.welcomed(message, now_s)
        self._outgoing.keep_all()
        epoch = self._shard_set.epoch
        words, answers = self._shard_set.hear(message, now_s)
        if self._shard_set.epoch != epoch:
            self._shapes.clear()
            for line in self._copies.look(self._shard_set.table):
                _log.warning(line)
        self._uplink.tell(words)
        self._outgoing.deliver(answers)

    # --- clients ---

    def _greet(self, connection: Connection) -> Callable[[CommunicationError], None]:
        client = Client(connection)
        connection.on_messages(
            partial(self._guarded, client, self._begin), partial(self._guarded, client, self._filled),
            at_once=self._fast.attach(client) if self._watch is None else None, in_place=partial(use_in_place, client),
            skipped=partial(self._requests.skipped, client),
        )  # fmt: skip
        connection.give_credit(CREDIT_BYTES)
        connection.flush()
        return lambda error: self._forget(client, error)

    def _forget(self, client: Client, error: CommunicationError) -> None:
        if isinstance(error, FrameError):
            _log.warning("dropped %s: %s", client.connection.peer, error)
        self._outgoing.forget(client)

    def _guarded(self, client: Client, take: Callable[..., memoryview | None], *data: memoryview) -> memoryview | None:
        try:
            return take(client, *data)
        except CommunicationError:
            raise
        except Exception as error:  # no word of a peer ends this process
            _log.exception("what %s said could not be dealt with", client.connection.peer)
            why = f"{type(error).__name__}: {error}".replace("\n", " ")
            raise FrameError(f"what {client.connection.peer} said could not be dealt with: {why}") from None

    def _begin(self, client: Client, data: memoryview) -> memoryview | None:
        try:
            message = decode_from("it", data)
        except FrameError:
            if not self._refuse_by_name(client, data):
                raise
            return None
        if isinstance(message, Inspect):
            client.connection.send(encode(describe_health(self._shard_set)))
            self._service.watch(client.connection)
            return None
        if isinstance(message, _BETWEEN_SERVERS):
            identity = client.connection.identity
            check_rights(message, identity.role, identity.name)
            return self._begin_from_server(client, message)
        if isinstance(message, BeginCut | CollectCut):
            self._outgoing.meet(client, message)
            self._outgoing.deliver(self._cutter.handle(message, time.monotonic()))
            return None
        if not isinstance(message, _REQUESTS):
            raise FrameError("it sent a server what belongs to others")
        return self._requests.begin(client, message)

    def _refuse_by_name(self, client: Client, data: memoryview) -> bool:
        """Whether it is a request, though one that can't be taken: then its client is told why, and stays."""
        found = find_request(data)
        if found is None:
            return False
        name, sequence, why = found
        client.connection.skip_body()
        text = f"server {self._shard_set.name} can't take this request of {name}: {why}"
        client.connection.send(encode(Refused(sequence, -1, "rule", text, self._shard_set.epoch)))
        self._service.watch(client.connection)
        return True

    def _filled(self, client: Client) -> memoryview | None:
        arriving = client.arriving
        return self._requests.next(client) if arriving is None else self._next_from_server(client, arriving)

    # --- other servers ---

    def _begin_from_server(self, client: Client, message: ServerMessage) -> memoryview | None:
        if isinstance(message, Replicated | Fenced):
            self._hear_server(message, ())
            return None
        client.arriving = Arriving(message)
        return self._next_from_server(client, client.arriving)

    def _next_from_server(self, client: Client, arriving: Arriving) -> memoryview | None:
        place = arriving.next()
        if place is None:
            client.arriving = None
            client.handed_over += sum(value.nbytes for value in arriving.values)
            self._hear_server(arriving.message, arriving.values)
            self._granting.give_back(client)
        return place

    def _hear_server(self, message: ServerMessage, values: Sequence[Tensor]) -> None:
        answers = self._shard_set.hear_server(message, values, time.monotonic())
        self._outgoing.deliver(answers)
