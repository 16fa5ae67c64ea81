"""A client's request, from its first frame until the last of its parts is handed over to the shard set.

A request is handed over shard by shard, as soon as the values of a shard are there, so a large push is received, added
and answered in a stream.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradtide.errors import FrameError
from gradtide.store.rules.codecs import is_ready
from gradtide.store.rules.tensors import bytes_of
from gradtide.store.server.fast import ServerFastPath
from gradtide.store.server.granting import Granting
from gradtide.store.server.incoming import Client, Incoming, PartShape, PartShapes, check_part, land, restore_values
from gradtide.store.server.outgoing import Outgoing
from gradtide.store.server.watching import ServerWatch
from gradtide.store.shard.shard_events import Answer
from gradtide.store.shard.shard_set import ShardSet
from gradtide.store.wire.messages import Configure, Init, Noted, Pull, Push, Refused, Request

__all__ = ["Requests"]

_WITH_VALUES = (Push, Init)  # a tuple: isinstance takes half as long as with a union


class Requests:
    """Of all clients; each has at most one whose values are arriving."""

    def __init__(
        self,
        shard_set: ShardSet[Tensor],
        outgoing: Outgoing,
        granting: Granting,
        shapes: PartShapes,
        fast: ServerFastPath,
        watch: ServerWatch | None = None,
    ) -> None:
        self._shard_set, self._outgoing, self._granting = shard_set, outgoing, granting
        self._shapes, self._fast, self._watch = shapes, fast, watch

    def begin(self, client: Client, message: Request) -> memoryview | None:
        """Where the first of its values go; None when there are none to come."""
        self._outgoing.meet(client, message)
        if isinstance(message, _WITH_VALUES):
            return self._begin_values(client, message)
        if isinstance(message, Pull):
            for part in message.parts:
                check_part(part, [None] * len(part.pieces), must_know=False)
            if self._watch is not None:
                self._watch.asked(message, len(self._shard_set.parts(message) or ()))
            elif self._fast.try_pull(client, message):
                return None
        self._handle(message)
        return None

    def _handle(self, message: Request) -> None:
        self._check_lengths(message)
        self._outgoing.keep_all()  # whatever this request may let happen
        try:
            answers = self._shard_set.handle(message)
        except Exception:
            self._outgoing.fail(message)
            return
        self._outgoing.deliver(answers)

    def _check_lengths(self, message: Request) -> None:
        """What is said about each part, or shard, is said about all of them."""
        if isinstance(message, Configure):
            lengths = {len(message.shards), len(message.after) or len(message.shards)}
        elif isinstance(message, Pull):
            parts = self._shard_set.parts(message) or ()
            lengths = {len(said) for said in (parts, message.after, message.at_least) if said}
        else:
            return
        if len(lengths) > 1:
            raise FrameError("it sent a request whose parts are not those of its layout")

    def _begin_values(self, client: Client, message: Push | Init) -> memoryview | None:
        parts = self._shard_set.parts(message)
        if parts is None or not self._shard_set.accepts(message, parts):
            client.connection.skip_body()
            self._handle(message)  # refuses, whatever the values are
            return None
        shapes = self._shapes.of(message, parts)
        if isinstance(message, Push) and message.after and len(message.after) != len(shapes):
            raise FrameError("it sent a push whose parts are not those of its layout")
        client.request = Incoming(message, shapes)
        if self._watch is not None and isinstance(message, Push):
            self._watch.arriving(message, len(shapes))
        return self.next(client)

    def skipped(self, client: Client, size_bytes: int) -> None:
        """The values of a request that was refused have passed."""
        client.handed_over += size_bytes
        self._granting.give_back(client)

    def next(self, client: Client) -> memoryview | None:
        """Hands over every part that is complete; the memory for what comes next, None when the request is complete."""
        request = client.request
        assert request is not None
        while request.index < len(request.shapes):
            shape = request.shapes[request.index]
            if len(request.values) == len(shape.counts):
                if self._watch is not None and request.is_whole and isinstance(request.message, Push):
                    self._watch.taken(request.message, sum(part.size_bytes for part in request.shapes))
                self._hand_over(client, request.message, request.index, shape, request.values)
                request.index += 1
                request.values = ()
            elif shape.uniform and shape.passing and shape.size_bytes:
                request.values, view = client.landings.get(shape) or land(client, shape)
                return view
            elif shape.uniform:
                flat = torch.empty(sum(shape.counts), dtype=shape.dtypes[0])
                request.values = flat.split(shape.counts) if len(shape.counts) > 1 else (flat,)
                if shape.size_bytes:
                    return bytes_of(flat)
            else:
                number = len(request.values)
                value = torch.empty(shape.counts[number], dtype=shape.dtypes[number])
                request.values = [*request.values, value]
                if shape.counts[number]:
                    return bytes_of(value)
        client.request = None
        return None

    def _hand_over(
        self, client: Client, message: Push | Init, index: int, shape: PartShape, values: Sequence[Tensor]
    ) -> None:
        client.handed_over += shape.size_bytes
        if message.epoch != self._shard_set.epoch:  # it has changed since the request was accepted
            refused = Refused(message.sequence, -1, "epoch", "the table of servers has changed", self._shard_set.epoch)
            self._outgoing.deliver([Answer(message.client, refused)])
            return
        if self._is_too_early(message, shape):
            refused = Refused(message.sequence, shape.part.shard, "busy", "codecs are being made ready")
            self._outgoing.deliver([Answer(message.client, refused)])
            return
        values = restore_values(shape, values)
        self._outgoing.keep(shape.part.shard)
        if self._watch is not None or not self._fast.try_part(client, message, index, shape, values):
            self._deliver(client, message, index, shape, values)
        self._granting.give_back(client)

    def _is_too_early(self, message: Push | Init, shape: PartShape) -> bool:
        """Whether a codec is not there yet; or a push began before its key was known, so that nobody can decode it."""
        if isinstance(message, Init):
            return not is_ready(message.spec.compress, message.spec.dtype)
        if not all(codec is None or codec.is_ready for codec in shape.codecs):
            return True
        shard = self._shard_set.shards.get(shape.part.shard)
        return any(
            piece.encoded and codec is None and shard is not None and (piece.key, piece.block) in shard.blocks
            for piece, codec in zip(shape.part.pieces, shape.codecs, strict=False)
        )

    def _deliver(
        self, client: Client, message: Push | Init, index: int, shape: PartShape, values: Sequence[Tensor]
    ) -> None:
        try:
            answers = self._shard_set.deliver(message, index, shape.part, values)
        except Exception:
            self._outgoing.fail(message)
            return
        if answers and isinstance(answers[-1].message, Noted):
            held_bytes = sum(value.nbytes for value in values) if shape.codecs else shape.size_bytes
            self._granting.note(client, message.sequence, shape.part.shard, held_bytes)
        self._outgoing.deliver(answers)
