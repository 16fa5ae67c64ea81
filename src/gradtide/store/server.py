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
from functools import partial

import msgspec
import torch
from torch import Tensor

from gradtide.errors import CommunicationError, FrameError
from gradtide.store.at_once import Short, find_short
from gradtide.store.cutter import Cutter
from gradtide.store.draining import DRAIN_S, Draining
from gradtide.store.familiar import Familiar
from gradtide.store.host import LAYOUTS_KEPT, Host
from gradtide.store.incoming import Client, Incoming, PartPlan, land, make_plan, plan_part, use_in_place
from gradtide.store.loading import Loader
from gradtide.store.messages import (
    BeginCut,
    CollectCut,
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
    Question,
    Refused,
    Replicate,
    Replicated,
    Request,
    ServerMessage,
    Snapshot,
    Version,
    decode,
    encode,
)
from gradtide.store.parts import Answer
from gradtide.store.peers import Arriving, Peers
from gradtide.store.tensors import bytes_of
from gradtide.store.uplink import Uplink
from gradtide.transport.authenticate import HANDSHAKE_S, Address, listen
from gradtide.transport.connection import Connection
from gradtide.transport.service import Service

__all__ = ["WINDOW_BYTES", "Server"]

WINDOW_BYTES = 64 << 20  # above what a session sends before it hears something
_CREDIT_BYTES = WINDOW_BYTES // 4  # are given back at a time
_TICK_S = 0.05
_WITH_VALUES = (Push, Init)  # a tuple: isinstance takes half as long as with a union
_REQUESTS = (*_WITH_VALUES, Pull, Configure, Keys)
_BETWEEN_SERVERS = (Replicate, Replicated, Snapshot, Fenced)
_log = logging.getLogger("gradtide.server")


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
        drain_s: float = DRAIN_S,
    ) -> None:
        listener = listen(address, uplink.secret, insecure_network)
        self.address = address if address.path else Address(host=address.host, port=listener.getsockname()[1])
        host.address = advertise or str(self.address)
        self._host = host
        self._service = Service(listener, uplink.secret, "server", self._greet, handshake_s)
        self._uplink = uplink
        self._peers = Peers(self._service, uplink.secret, host.peer_is_up)
        self._routes: dict[str, Client] = {}  # by the client's name: the connection it has now
        self._lent: dict[int, list[Connection]] = {}  # shard -> who may still have to send its memory
        self._plans: dict[bytes, tuple[PartPlan, ...]] = {}  # by layout, as long as all its keys are known
        self._cutter = Cutter(host, self._service.wake)
        self._loader = Loader(host, self._service.wake)
        self._draining = Draining(host, drain_s)
        self._stopped = False

    def run(self) -> None:
        """Until somebody calls `stop`, or it may go."""
        self._uplink.start(self._service, self._hear_coordinator)
        next_tick_s = 0.0
        while not self._stopped:
            now_s = time.monotonic()
            if now_s >= next_tick_s:
                next_tick_s = now_s + _TICK_S
                self._uplink.tell(self._host.tick(now_s))
                self._uplink.poll(now_s)
            self._peers.poll()
            if self._cutter.active:
                self._deliver(self._cutter.poll(now_s))
            if self._loader.active:
                self._deliver(self._loader.poll(now_s))
            if self._host.replication.outbox:
                self._send_to_peers()
            self._service.run_once(next_tick_s - now_s)
            if self._draining.is_over(now_s):
                break
        self.close()
        if not self._stopped:
            self._draining.check()

    def close(self) -> None:
        """Closes every socket."""
        self._cutter.close()
        self._uplink.close()
        self._peers.close()
        self._service.close()

    def stop(self) -> None:
        self._stopped = True
        self._service.wake()

    def drain(self) -> None:
        """Goes when its shards are elsewhere; called twice, at once."""
        self._draining.ask()
        self._service.wake()

    # --- the coordinator ---

    def _hear_coordinator(self, message: Message) -> None:
        for number in list(self._lent):
            self._keep(number)
        epoch = self._host.epoch
        words, answers = self._host.hear(message, time.monotonic())
        if self._host.epoch != epoch:
            self._plans.clear()  # shards may have gone, and come back with other keys
        self._uplink.tell(words)
        self._deliver(answers)

    # --- clients ---

    def _greet(self, connection: Connection) -> Callable[[CommunicationError], None]:
        client = Client(connection)
        connection.on_messages(
            partial(self._begin, client), partial(self._filled, client), at_once=partial(self._at_once, client),
            in_place=partial(use_in_place, client), skipped=partial(self._skipped, client),
        )  # fmt: skip
        connection.give_credit(WINDOW_BYTES)
        connection.flush()
        return lambda error: self._forget(client, error)

    def _forget(self, client: Client, error: CommunicationError) -> None:
        if isinstance(error, FrameError):
            _log.warning("dropped %s: %s", client.connection.peer, error)
        self._routes = {name: known for name, known in self._routes.items() if known is not client}

    def _begin(self, client: Client, data: memoryview) -> memoryview | None:
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
        if isinstance(message, BeginCut | CollectCut):
            self._meet(client, message)
            self._deliver(self._cutter.handle(message, time.monotonic()))
            return None
        if not isinstance(message, _REQUESTS):
            raise FrameError("it sent a server what belongs to others")
        self._meet(client, message)
        if isinstance(message, _WITH_VALUES):
            return self._begin_values(client, message)
        if isinstance(message, Pull):
            for part in message.parts:
                plan_part(part, [None] * len(part.pieces), must_know=False)
            if self._pull(client, message):
                return None
        self._handle(message)
        return None

    def _meet(self, client: Client, message: Request | Question) -> None:
        if self._routes.get(message.client) is not client:
            self._routes[message.client] = client
            client.connection.peer = message.client

    def _handle(self, message: Request) -> None:
        for number in list(self._lent):  # whatever this request may let happen
            self._keep(number)
        try:
            answers = self._host.handle(message)
        except Exception:
            answers = self._failed(message)
        self._deliver(answers)

    def _begin_values(self, client: Client, message: Push | Init) -> memoryview | None:
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
        client.request = Incoming(message, plan)
        return self._next(client)

    def _make_plan(self, message: Push | Pull | Init, parts: tuple[Part, ...]) -> tuple[PartPlan, ...]:
        plan, all_known = make_plan(self._host, message, parts)
        if all_known and not isinstance(message, Init):
            if len(self._plans) >= LAYOUTS_KEPT:
                self._plans.clear()
            self._plans[message.layout] = plan
        return plan

    def _skipped(self, client: Client, size_bytes: int) -> None:
        """The values of a request that was refused have passed."""
        client.handed_over += size_bytes
        self._give_back_enough(client)

    def _filled(self, client: Client) -> memoryview | None:
        return self._next(client) if client.arriving is None else self._next_from_server(client, client.arriving)

    # --- other servers ---

    def _begin_from_server(self, client: Client, message: ServerMessage) -> memoryview | None:
        if isinstance(message, Replicated | Fenced):
            self._deliver(self._host.hear_server(message, (), time.monotonic()))
            return None
        client.arriving = Arriving(message)
        return self._next_from_server(client, client.arriving)

    def _next_from_server(self, client: Client, arriving: Arriving) -> memoryview | None:
        place = arriving.next()
        if place is None:
            client.arriving = None
            client.handed_over += sum(value.nbytes for value in arriving.values)
            self._deliver(self._host.hear_server(arriving.message, arriving.values, time.monotonic()))
            self._give_back_enough(client)
        return place

    def _send_to_peers(self) -> None:
        table = self._host.table
        addresses = {server.name: server.address for server in table.servers} if table else {}
        for send in self._host.take_outbox():
            if send.name in addresses:
                connection = self._peers.send(send.name, addresses[send.name], send.message, send.values)
                if connection is not None and isinstance(send.message, Snapshot):
                    self._lent.setdefault(send.message.shard, []).append(connection)

    # --- the short way ---

    def _at_once(self, client: Client, data: memoryview, body: memoryview) -> bool:
        """A small push to one shard, arrived in one piece, for which memory is ready: most of what a server does. All
        else goes the general way, which also finds what is wrong."""
        known = client.familiar.find(data)
        if known is None or known.short.table is not self._host.table:
            return self._first_at_once(client, data, body)
        if len(body) != known.size_bytes or self._lent or self._routes.get(known.message.client) is not client:
            return False
        known.view[:] = body
        if not self._push_again(client, known, client.familiar.sequence(data)):
            return False
        client.handed_over += known.size_bytes
        if client.handed_over >= _CREDIT_BYTES:
            self._give_back_enough(client)
        self._service.settled += 1
        return True

    def _first_at_once(self, client: Client, data: memoryview, body: memoryview) -> bool:
        """One that is not like any before; the next may be."""
        try:
            message = decode(data)
        except (msgspec.DecodeError, ValueError, UnicodeDecodeError):
            return False
        if type(message) is not Push or message.parts or self._lent or self._routes.get(message.client) is not client:
            return False
        plans, table = self._plans.get(message.layout), self._host.table
        if plans is None or len(plans) != 1 or table is None or message.epoch != table.epoch:
            return False
        landing, short = client.landings.get(plans[0]), self._short(plans[0])
        if short is None or landing is None or len(landing[1]) != len(body):
            return False
        landing[1][:] = body
        if not self._push(client, message, message.after[0] if message.after else 0, short, landing[0]):
            return False
        client.familiar.remember(data, message, short, *landing)
        client.handed_over += short.size_bytes
        self._give_back_enough(client)
        self._service.settled += 1
        return True

    def _push_again(self, client: Client, known: Familiar, sequence: int) -> bool:
        """Whether this went the short way, and was answered."""
        short, connection = known.short, client.connection
        try:
            pushed = short.push(known.message, sequence, 0, known.values)
        except Exception:
            self._deliver(self._failed(msgspec.structs.replace(known.message, sequence=sequence)))
            return True
        if pushed is None:
            return False
        try:
            if not connection.send_frame(known.answer(pushed), short.values(), short.size_bytes):
                self._watch(connection, pushed)
        except CommunicationError:
            pass  # its socket will say so itself
        return True

    def _short(self, plan: PartPlan) -> Short | None:
        """How pushes of this part can go the short way; looked up once for each table."""
        short, table = plan.short, self._host.table
        if short is None or short.table is not table:
            shard = plan.part.shard
            owned = plan.passing and shard in self._host.owned
            short = plan.short = find_short(table, self._host.shards.get(shard), plan.part) if owned else None
        return short

    def _pull(self, client: Client, message: Pull) -> bool:
        """Whether all of it went the short way."""
        parts = self._host.parts(message)
        if parts is None or not self._host.accepts(message, parts):
            return False
        plan, zero = self._plans.get(message.layout) or self._make_plan(message, parts), Version()
        shorts = [short for part in plan if (short := self._short(part)) is not None]
        if len(shorts) < len(plan):
            return False
        after, at_least = message.after or (0,) * len(plan), message.at_least or (zero,) * len(plan)
        if not len(after) == len(at_least) == len(plan):
            raise FrameError("it sent a pull whose parts are not those of its layout")
        pulled = [s.pull(message, a, least) for s, a, least in zip(shorts, after, at_least, strict=True)]
        answers = [answer for answer in pulled if answer is not None]
        if len(answers) < len(plan):
            return False
        for short, answer in zip(shorts, answers, strict=True):
            try:
                if not client.connection.send(encode(answer), short.values(), short.size_bytes):
                    self._watch(client.connection, answer)
            except CommunicationError:
                break  # its socket will say so itself
        return True

    def _push(self, client: Client, message: Push, after: int, short: Short, values: Sequence[Tensor]) -> bool:
        """Whether this went the short way, and was answered."""
        try:
            pushed = short.push(message, message.sequence, after, values)
        except Exception:
            self._deliver(self._failed(message))
            return True
        if pushed is None:
            return False
        connection = client.connection
        try:
            if message.pull:
                all_left = connection.send(encode(pushed), short.values(), short.size_bytes)
            else:
                all_left = connection.send(encode(pushed))
        except CommunicationError:
            return True  # its socket will say so itself
        if not all_left:
            self._watch(connection, pushed if message.pull else None)
        return True

    def _next(self, client: Client) -> memoryview | None:
        """Hands over every part that is complete; the memory for what comes next, None when the request is complete."""
        request = client.request
        assert request is not None
        while request.index < len(request.plan):
            plan = request.plan[request.index]
            if len(request.values) == len(plan.counts):
                self._hand_over(client, request.message, request.index, plan, request.values)
                request.index += 1
                request.values = ()
            elif plan.uniform and plan.passing and plan.size_bytes:
                request.values, view = client.landings.get(plan) or land(client, plan)
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

    def _hand_over(
        self, client: Client, message: Push | Init, index: int, plan: PartPlan, values: Sequence[Tensor]
    ) -> None:
        part = plan.part
        client.handed_over += plan.size_bytes
        if message.epoch != self._host.epoch:  # it has changed since the request was accepted
            refused = Refused(message.sequence, -1, "epoch", "the table of servers has changed", self._host.epoch)
            self._deliver([Answer(message.client, refused)])
            return
        if part.shard in self._lent:
            self._keep(part.shard)
        short = self._short(plan) if plan.passing else None
        if short is not None and type(message) is Push and self._routes.get(message.client) is client:
            after = message.after[index] if message.after else 0
            if self._push(client, message, after, short, values):
                self._give_back_enough(client)
                return
        try:
            answers = self._host.deliver(message, index, part, values)
        except Exception:
            answers = self._failed(message)
        if answers and isinstance(answers[-1].message, Noted):
            self._note(client, message.sequence, part.shard, plan.size_bytes)
        self._deliver(answers)
        self._give_back_enough(client)

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
                self._watch(connection, message if answer.values and isinstance(message, Pushed | Pulled) else None)

    def _watch(self, connection: Connection, lent: Pushed | Pulled | None) -> None:
        """See to what has not left yet, and remember whose memory it is."""
        self._service.watch(connection)
        if lent is not None:
            self._lent.setdefault(lent.shard, []).append(connection)

    def _keep(self, shard: int) -> None:
        """This shard's values may change now: what has not left must be copied."""
        for connection in self._lent.pop(shard, ()):
            connection.keep_copies()

    def _note(self, client: Client, sequence: int, shard: int, size_bytes: int) -> None:
        if (sequence, shard) not in client.noted:
            client.noted[sequence, shard] = size_bytes
            client.noted_bytes += size_bytes

    def _settled(self, client: Client, sequence: int, shard: int) -> None:
        client.noted_bytes -= client.noted.pop((sequence, shard), 0)
        self._give_back_enough(client)

    def _give_back_enough(self, client: Client) -> None:
        """Gives credit back a quarter of a window at a time."""
        if client.handed_over < _CREDIT_BYTES:
            return
        if client.noted_bytes > WINDOW_BYTES and client.noted_bytes > 2 * self._held_bytes():
            return
        with contextlib.suppress(CommunicationError):
            client.connection.give_credit(client.handed_over)
            client.handed_over = 0
            client.connection.flush()
        self._service.watch(client.connection)

    def _held_bytes(self) -> int:
        return sum(block.size_bytes for shard in self._host.shards.values() for block in shard.blocks.values())
