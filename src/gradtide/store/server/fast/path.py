"""Where a server's fast path is entered, and left by saying False."""

from collections.abc import Sequence

import msgspec
from torch import Tensor

from gradtide.errors import CommunicationError, FrameError
from gradtide.store.server.fast.repeats import RepeatedPush
from gradtide.store.server.fast.short import Short, find_short
from gradtide.store.server.granting import Granting
from gradtide.store.server.incoming import Client, PartShape, PartShapes
from gradtide.store.server.outgoing import Outgoing
from gradtide.store.shard.shard_set import ShardSet
from gradtide.store.wire.credit import CREDIT_STEP_BYTES
from gradtide.store.wire.message_templates import Repeats
from gradtide.store.wire.messages import Init, Pull, Push, Version, decode, encode
from gradtide.transport.frames import AtOnce
from gradtide.transport.service import Service

__all__ = ["ServerFastPath"]


class ServerFastPath:
    """Of all clients. All else goes the general way."""

    def __init__(
        self, shard_set: ShardSet[Tensor], service: Service, outgoing: Outgoing, granting: Granting, shapes: PartShapes
    ) -> None:
        self.shard_set, self.service, self.outgoing = shard_set, service, outgoing
        self.granting, self.shapes = granting, shapes

    def attach(self, client: Client) -> AtOnce:
        """Who is to be asked of what arrives from this client in one piece."""
        return _SmallPushes(self, client).try_push

    def try_part(
        self, client: Client, message: Push | Init, index: int, shape: PartShape, values: Sequence[Tensor]
    ) -> bool:
        """Whether this part of a push is done, and answered."""
        short = self.short(shape) if shape.passing else None
        if short is None or type(message) is not Push or self.outgoing.routes.get(message.client) is not client:
            return False
        return self.push(client, message, message.after[index] if message.after else 0, short, values)

    def try_pull(self, client: Client, message: Pull) -> bool:
        """Whether all of it is answered."""
        parts = self.shard_set.parts(message)
        if parts is None or not self.shard_set.accepts(message, parts):
            return False
        shapes, zero = self.shapes.of(message, parts), Version()
        shorts = [short for shape in shapes if (short := self.short(shape)) is not None]
        if len(shorts) < len(shapes):
            return False
        after, at_least = message.after or (0,) * len(shapes), message.at_least or (zero,) * len(shapes)
        if not len(after) == len(at_least) == len(shapes):
            raise FrameError("it sent a pull whose parts are not those of its layout")
        pulled = [s.pull(message, a, least) for s, a, least in zip(shorts, after, at_least, strict=True)]
        answers = [answer for answer in pulled if answer is not None]
        if len(answers) < len(shapes):
            return False
        for short, answer in zip(shorts, answers, strict=True):
            try:
                if not client.connection.send(encode(answer), short.values(), short.size_bytes):
                    self.outgoing.watch(client.connection, answer)
            except CommunicationError:
                break  # its socket will say so itself
        return True

    def push(self, client: Client, message: Push, after: int, short: Short, values: Sequence[Tensor]) -> bool:
        """Whether these values were applied, and that answered."""
        try:
            pushed = short.push(message, message.sequence, after, values)
        except Exception:
            self.outgoing.fail(message)
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
            self.outgoing.watch(connection, pushed if message.pull else None)
        return True

    def short(self, shape: PartShape) -> Short | None:
        """How pushes of this part go; looked up once for each table."""
        short, table = shape.short, self.shard_set.table
        if short is None or short.table is not table:
            shard = shape.part.shard
            owned = shape.passing and shard in self.shard_set.owned
            short = shape.short = find_short(table, self.shard_set.shards.get(shard), shape.part) if owned else None
        return short


class _SmallPushes:
    """Of one client: each to one shard, arrived in one piece, when memory for its values is there already."""

    __slots__ = ("_client", "_fast", "_lent", "_outgoing", "_repeats", "_routes", "_scratch", "_service", "_shard_set")

    def __init__(self, fast: ServerFastPath, client: Client) -> None:
        self._fast, self._client = fast, client
        self._shard_set, self._outgoing, self._service = fast.shard_set, fast.outgoing, fast.service
        self._lent, self._routes = fast.outgoing.lent, fast.outgoing.routes
        self._repeats = Repeats[RepeatedPush]()
        self._scratch: Tensor | None = None  # the memory that their values are received in

    def try_push(self, data: memoryview, body: memoryview) -> bool:
        """Whether this was such a one, and is answered."""
        repeats, client = self._repeats, self._client
        known = repeats.find(data)
        if known is None or known.short.table is not self._shard_set.table:
            return self._first(data, body)
        if len(body) != known.size_bytes or self._lent or self._routes.get(known.message.client) is not client:
            return False
        known.view[:] = body
        if not self._again(known, repeats.sequence(data)):
            return False
        client.handed_over += known.size_bytes
        if client.handed_over >= CREDIT_STEP_BYTES:
            self._fast.granting.give_back(client)
        self._service.settled += 1
        return True

    def _again(self, known: RepeatedPush, sequence: int) -> bool:
        """Whether it was applied, and that answered."""
        short, connection = known.short, self._client.connection
        try:
            pushed = short.push(known.message, sequence, 0, known.values)
        except Exception:
            self._outgoing.fail(msgspec.structs.replace(known.message, sequence=sequence))
            return True
        if pushed is None:
            return False
        try:
            if not connection.send_frame(known.answer(pushed), short.values(), short.size_bytes):
                self._outgoing.watch(connection, pushed)
        except CommunicationError:
            pass  # its socket will say so itself
        return True

    def _first(self, data: memoryview, body: memoryview) -> bool:
        """One that is not like any before; the next may be."""
        fast, client = self._fast, self._client
        try:
            message = decode(data)
        except (msgspec.DecodeError, ValueError, UnicodeDecodeError):
            return False
        if type(message) is not Push or message.parts or self._lent or self._routes.get(message.client) is not client:
            return False
        shapes, table = fast.shapes.known(message.layout), self._shard_set.table
        if shapes is None or len(shapes) != 1 or table is None or message.epoch != table.epoch:
            return False
        landing, short = client.landings.get(shapes[0]), fast.short(shapes[0])
        if short is None or landing is None or len(landing[1]) != len(body):
            return False
        landing[1][:] = body
        if not fast.push(client, message, message.after[0] if message.after else 0, short, landing[0]):
            return False
        if self._scratch is not client.scratch:  # what was remembered would keep the old memory
            self._repeats, self._scratch = Repeats[RepeatedPush](), client.scratch
        self._repeats.remember(data, message, RepeatedPush(message, short, *landing, short.size_bytes))
        client.handed_over += short.size_bytes
        fast.granting.give_back(client)
        self._service.settled += 1
        return True
