"""The shell around host.py: receives requests into tensors, hands them over, sends what is answered.

A request is handed over shard by shard, as soon as the values of a shard are there, so a large push is received, added
and answered in a stream. Answers point into the shards' own memory; what the kernel does not take at once is copied
only if that shard is touched again before it has left.

Credit: a client may have WINDOW_BYTES of values on their way. What was handed over is given back, unless the client
has more than two rounds of everything here waiting for others: whoever is that far ahead is not who is waited for.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import torch
from torch import Tensor

from gradtide.errors import CommunicationError, FrameError
from gradtide.store.host import LAYOUTS_KEPT, Host
from gradtide.store.messages import (
    Configure,
    Fenced,
    Init,
    Inspect,
    Keys,
    Message,
    Noted,
    Part,
    Pull,
    Pulled,
    Push,
    Pushed,
    Refused,
    Replicate,
    Replicated,
    Request,
    ServerMessage,
    Snapshot,
    decode,
    encode,
)
from gradtide.store.parts import Answer
from gradtide.store.peers import Arriving, Peers
from gradtide.store.placement import BLOCK_BYTES
from gradtide.store.tensors import DTYPES, bytes_of
from gradtide.store.uplink import Uplink
from gradtide.transport.authenticate import HANDSHAKE_S, Address, listen
from gradtide.transport.connection import Connection
from gradtide.transport.service import Service

__all__ = ["WINDOW_BYTES", "Server"]

WINDOW_BYTES = 64 << 20  # above what a session sends before it hears something
_TICK_S = 0.05
_WITH_VALUES = (Push, Init)  # a tuple: isinstance takes half as long as with a union
_REQUESTS = (*_WITH_VALUES, Pull, Configure, Keys)
_BETWEEN_SERVERS = (Replicate, Replicated, Snapshot, Fenced)
_log = logging.getLogger("gradtide.server")


@dataclass(frozen=True, slots=True, eq=False)
class _PartPlan:
    """How the values of one part of a layout are received."""

    part: Part
    size_bytes: int
    dtypes: tuple[torch.dtype, ...]  # by piece
    counts: tuple[int, ...]
    uniform: bool  # all of one dtype and small enough for one piece of memory
    passing: bool = False  # outside of rounds: applied when they are handed over, so their memory is free again


@dataclass(slots=True)
class _Request:
    """A request whose values are arriving."""

    message: Push | Init
    plan: tuple[_PartPlan, ...]
    index: int = 0  # of the part that is arriving
    values: Sequence[Tensor] = ()  # of this part, as far as there is memory for them


@dataclass(slots=True, eq=False)
class _Client:
    connection: Connection
    request: _Request | None = None
    arriving: Arriving | None = None  # from another server
    handed_over: int = 0  # body bytes that credit was not given back for
    noted: dict[tuple[int, int], int] = field(default_factory=dict)  # (sequence, shard) -> bytes that wait here
    noted_bytes: int = 0
    scratch: Tensor | None = None  # where passing values are received, again and again: new pages cost more than adding
    landings: dict[_PartPlan, tuple[Sequence[Tensor], memoryview]] = field(default_factory=dict)  # views of scratch


class Server:
    """One process that holds parameters."""

    def __init__(
        self,
        host: Host[Tensor],
        address: Address,
        uplink: Uplink,
        *,
        insecure_network: bool = False,
        advertise: str = "",
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        listener = listen(address, uplink.secret, insecure_network)
        self.address = address if address.path else Address(host=address.host, port=listener.getsockname()[1])
        host.address = advertise or str(self.address)
        self._host = host
        self._service = Service(listener, uplink.secret, "server", self._greet, handshake_s)
        self._uplink = uplink
        self._peers = Peers(self._service, uplink.secret, host.peer_is_up)
        self._routes: dict[str, _Client] = {}  # by the client's name: the connection it has now
        self._lent: dict[int, list[Connection]] = {}  # shard -> who may still have to send its memory
        self._plans: dict[bytes, tuple[_PartPlan, ...]] = {}  # by layout, as long as all its keys are known
        self._stopped = False

    def run(self) -> None:
        """Until somebody calls `stop`."""
        self._uplink.start(self._service, self._hear_coordinator)
        next_tick_s = 0.0
        while not self._stopped:
            now_s = time.monotonic()
            if now_s >= next_tick_s:
                next_tick_s = now_s + _TICK_S
                self._uplink.tell(self._host.tick(now_s))
                self._uplink.poll(now_s)
            self._peers.poll()
            if self._host.replication.outbox:
                self._send_to_peers()
            self._service.run_once(next_tick_s - now_s)
        self.close()

    def close(self) -> None:
        """Closes every socket."""
        self._uplink.close()
        self._peers.close()
        self._service.close()

    def stop(self) -> None:
        self._stopped = True
        self._service.wake()

    # --- the coordinator ---

    def _hear_coordinator(self, message: Message) -> None:
        for number in list(self._lent):
            self._keep(number)
        words, answers = self._host.hear(message, time.monotonic())
        self._uplink.tell(words)
        self._deliver(answers)

    # --- clients ---

    def _greet(self, connection: Connection) -> Callable[[CommunicationError], None]:
        client = _Client(connection)
        connection.on_messages(lambda data: self._begin(client, data), lambda: self._filled(client))
        connection.give_credit(WINDOW_BYTES)
        connection.flush()
        return lambda error: self._forget(client, error)

    def _forget(self, client: _Client, error: CommunicationError) -> None:
        if isinstance(error, FrameError):
            _log.warning("dropped %s: %s", client.connection.peer, error)
        self._routes = {name: known for name, known in self._routes.items() if known is not client}

    def _begin(self, client: _Client, data: memoryview) -> memoryview | None:
        try:
            message = decode(data)
        except (msgspec.DecodeError, ValueError, UnicodeDecodeError):
            raise FrameError("it sent something that is no message of the store") from None
        if isinstance(message, Inspect):
            client.connection.send(encode(self._host.describe()))
            self._service.watch(client.connection)
            return None
        if isinstance(message, _BETWEEN_SERVERS):
            return self._begin_from_server(client, message)
        if not isinstance(message, _REQUESTS):
            raise FrameError("it sent a server what belongs to others")
        if self._routes.get(message.client) is not client:
            self._routes[message.client] = client
            client.connection.peer = message.client
        if isinstance(message, _WITH_VALUES):
            return self._begin_values(client, message)
        if isinstance(message, Pull):
            for part in message.parts:
                _plan_part(part, [None] * len(part.pieces), must_know=False)
        self._handle(message)
        return None

    def _handle(self, message: Request) -> None:
        for number in list(self._lent):  # whatever this request may let happen
            self._keep(number)
        try:
            answers = self._host.handle(message)
        except Exception:
            answers = self._failed(message)
        self._deliver(answers)

    def _begin_values(self, client: _Client, message: Push | Init) -> memoryview | None:
        parts = self._host.parts(message)
        if parts is None or not self._host.accepts(message, parts):
            client.connection.skip_body()
            self._handle(message)  # refuses, whatever the values are
            return None
        plan = self._plans.get(message.layout) if isinstance(message, Push) else None
        if plan is None:
            plan = self._make_plan(message, parts)
        if isinstance(message, Push) and message.after and len(message.after) != len(plan):
            raise FrameError("it sent a push whose parts are not those of its layout")
        client.request = _Request(message, plan)
        return self._next(client)

    def _make_plan(self, message: Push | Init, parts: tuple[Part, ...]) -> tuple[_PartPlan, ...]:
        made, all_known, passing = [], True, False
        for part in parts:
            if isinstance(message, Init):
                dtypes = [DTYPES.get(message.spec.dtype)] * len(part.pieces)
            else:
                shard = self._host.shards.get(part.shard)
                blocks = shard.blocks if shard is not None else {}
                known = [blocks.get((piece.key, piece.block)) for piece in part.pieces]
                all_known = all_known and None not in known
                passing = all(block is not None and block.spec.delay is None for block in known)
                passing = passing and not self._host.is_replicated  # else the log keeps them
                # An unknown key will be refused when it has arrived; until then its bytes are just bytes.
                dtypes = [DTYPES[block.spec.dtype] if block else None for block in known]
            made.append(_plan_part(part, dtypes, isinstance(message, Init), passing))
        plan = tuple(made)
        if isinstance(message, Push) and all_known:
            if len(self._plans) >= LAYOUTS_KEPT:
                self._plans.clear()
            self._plans[message.layout] = plan
        return plan

    def _filled(self, client: _Client) -> memoryview | None:
        return self._next(client) if client.arriving is None else self._next_from_server(client, client.arriving)

    # --- other servers ---

    def _begin_from_server(self, client: _Client, message: ServerMessage) -> memoryview | None:
        if isinstance(message, Replicated | Fenced):
            self._deliver(self._host.hear_server(message, (), time.monotonic()))
            return None
        client.arriving = Arriving(message)
        return self._next_from_server(client, client.arriving)

    def _next_from_server(self, client: _Client, arriving: Arriving) -> memoryview | None:
        place = arriving.next()
        if place is None:
            client.arriving = None
            client.handed_over += sum(value.nbytes for value in arriving.values)
            self._deliver(self._host.hear_server(arriving.message, arriving.values, time.monotonic()))
            if client.handed_over >= WINDOW_BYTES // 4:
                self._give_back(client)
        return place

    def _send_to_peers(self) -> None:
        table = self._host.table
        addresses = {server.name: server.address for server in table.servers} if table else {}
        for send in self._host.take_outbox():
            if send.name in addresses:
                connection = self._peers.send(send.name, addresses[send.name], send.message, send.values)
                if connection is not None and isinstance(send.message, Snapshot):
                    self._lent.setdefault(send.message.shard, []).append(connection)

    def _next(self, client: _Client) -> memoryview | None:
        """Hands over every part that is complete; the memory for what comes next, None when the request is complete."""
        request = client.request
        assert request is not None
        while request.index < len(request.plan):
            plan = request.plan[request.index]
            if len(request.values) == len(plan.counts):
                self._hand_over(client, request, plan)
                request.index += 1
                request.values = ()
            elif plan.uniform and plan.passing and plan.size_bytes:
                request.values, view = client.landings.get(plan) or _land(client, plan)
                return view
            elif plan.uniform:
                flat = torch.empty(sum(plan.counts), dtype=plan.dtypes[0])
                request.values = flat.split(plan.counts) if len(plan.counts) > 1 else (flat,)
                if plan.size_bytes:
                    return bytes_of(flat)
            else:
                number = len(request.values)
                value = torch.empty(plan.counts[number], dtype=plan.dtypes[number])
                request.values = [*request.values, value]
                if plan.counts[number]:
                    return bytes_of(value)
        client.request = None
        return None

    def _hand_over(self, client: _Client, request: _Request, plan: _PartPlan) -> None:
        message, part = request.message, plan.part
        client.handed_over += plan.size_bytes
        if message.epoch != self._host.epoch:  # it has changed since the request was accepted
            refused = Refused(message.sequence, -1, "epoch", "the table of servers has changed", self._host.epoch)
            self._deliver([Answer(message.client, refused)])
            return
        if part.shard in self._lent:
            self._keep(part.shard)
        try:
            answers = self._host.deliver(message, request.index, part, request.values)
        except Exception:
            answers = self._failed(message)
        if answers and isinstance(answers[-1].message, Noted):
            self._note(client, message.sequence, part.shard, plan.size_bytes)
        self._deliver(answers)
        if client.handed_over >= WINDOW_BYTES // 4:
            self._give_back(client)

    def _failed(self, message: Request) -> list[Answer[Tensor]]:
        """Whatever went wrong in here is for our own log; the client gets one line."""
        _log.exception("request %d of %s failed", message.sequence, message.client)
        text = f"server {self._host.name} could not do this; its log says why"
        return [Answer(message.client, Refused(message.sequence, -1, "rule", text, self._host.epoch))]

    # --- answers ---

    def _deliver(self, answers: Sequence[Answer[Tensor]]) -> None:
        if self._host.replication.outbox:
            self._send_to_peers()
        for answer in answers:
            client = self._routes.get(answer.client)
            if client is None:
                continue  # it will ask again when it is back
            message = answer.message
            connection = client.connection
            if client.noted and isinstance(message, (Pushed, Refused)):
                self._settled(client, message.sequence, message.shard)
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
                self._service.watch(connection)
                if answer.values and isinstance(message, Pushed | Pulled):
                    self._lent.setdefault(message.shard, []).append(connection)

    def _keep(self, shard: int) -> None:
        """This shard's values may change now: what has not left must be copied."""
        for connection in self._lent.pop(shard, ()):
            connection.keep_copies()

    def _note(self, client: _Client, sequence: int, shard: int, size_bytes: int) -> None:
        if (sequence, shard) not in client.noted:
            client.noted[sequence, shard] = size_bytes
            client.noted_bytes += size_bytes

    def _settled(self, client: _Client, sequence: int, shard: int) -> None:
        client.noted_bytes -= client.noted.pop((sequence, shard), 0)
        if client.handed_over >= WINDOW_BYTES // 4:
            self._give_back(client)

    def _give_back(self, client: _Client) -> None:
        if client.noted_bytes > WINDOW_BYTES and client.noted_bytes > 2 * self._held_bytes():
            return
        with contextlib.suppress(CommunicationError):
            client.connection.give_credit(client.handed_over)
            client.handed_over = 0
            client.connection.flush()
        self._service.watch(client.connection)

    def _held_bytes(self) -> int:
        return sum(block.size_bytes for shard in self._host.shards.values() for block in shard.blocks.values())


def _land(client: _Client, plan: _PartPlan) -> tuple[Sequence[Tensor], memoryview]:
    """Memory for values that pass: the same for every part of this client, as one after the other arrives."""
    if client.scratch is None or client.scratch.nbytes < plan.size_bytes:
        client.scratch = torch.empty(plan.size_bytes, dtype=torch.uint8)
        client.landings.clear()
    elif len(client.landings) >= LAYOUTS_KEPT:
        client.landings.clear()
    flat = client.scratch[: plan.size_bytes].view(plan.dtypes[0])
    landing = client.landings[plan] = (flat.split(plan.counts), bytes_of(flat))
    return landing


def _plan_part(part: Part, dtypes: Sequence[torch.dtype | None], must_know: bool, passing: bool = False) -> _PartPlan:
    """Checks a part that came over the wire, and says how its values are received."""
    counts, chosen = [], []
    for piece, dtype in zip(part.pieces, dtypes, strict=True):
        size = piece.size_bytes
        if not 0 <= size <= BLOCK_BYTES or piece.count < 0 or piece.start < 0 or piece.block < 0:
            raise FrameError("it sent a piece that is larger than a block, or negative")
        if dtype is None and must_know:
            raise FrameError("it sent values of a dtype that the store does not have")
        if dtype is not None and size != piece.count * dtype.itemsize:
            raise FrameError("it sent a piece whose bytes don't match its dtype")
        chosen.append(dtype or torch.uint8)
        counts.append(piece.count if dtype else size)
    total = sum(piece.size_bytes for piece in part.pieces)
    uniform = len(set(chosen)) == 1 and total <= BLOCK_BYTES
    return _PartPlan(part, total, tuple(chosen), tuple(counts), uniform, passing)
