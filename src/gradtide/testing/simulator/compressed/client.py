"""A client of compressed keys in the simulator: it encodes and decodes as the store does."""

import threading
from collections.abc import Callable
from typing import Any, cast

import torch

from gradtide.errors import PeerTimeout
from gradtide.store.client.engine import Engine, Start
from gradtide.store.client.operations import Done, Send, SessionInstruction
from gradtide.store.client.pending import Pending, raise_if_refused
from gradtide.store.client.session import Session
from gradtide.store.client.tensors.compressed import StoreCompression
from gradtide.store.client.tensors.values import Destination, PieceMap, make_piece_map, pieces
from gradtide.store.rules.codecs import block_codec
from gradtide.store.rules.tensors import bytes_of
from gradtide.store.wire.layouts import ITEM_BYTES
from gradtide.store.wire.messages import KeySpec, Push
from gradtide.store.wire.placement import block_elements
from gradtide.testing.simulator.actors import ClientActor, Script, World
from gradtide.testing.simulator.compressed.keys import gradient_of, start_of, weight_of
from gradtide.testing.simulator.compressed.ledger import Ledger, PushEntry, Sent
from gradtide.testing.simulator.history import Operated, Violation

__all__ = ["CompressedActor"]


class CompressedActor(ClientActor):
    """Pushes and pulls as `Store` does it, but for sockets and threads."""

    session: Session[Any]
    keeps_what_is_left_out = True

    def __init__(self, world: World, session: Session[Any], script: Script, ledger: Ledger) -> None:
        self.ledger = ledger
        self.pending: dict[int, Pending[Any]] = {}
        self.compression = StoreCompression(cast(Engine, _Engine(self, session)))
        self._begins: Callable[[int], Operated] | None = None  # what begins now, once it has a sequence
        self._kinds: dict[int, Callable[[int], Operated]] = {}  # the same of what may have to begin again
        super().__init__(world, session, script)
        ledger.residuals[session.client] = self.compression.residuals.blocks

    # --- for scripts ---

    def init(self, spec: KeySpec) -> int:
        self.session.learn(spec)
        piece_map = make_piece_map(self.session.layout((spec.key,)), (spec,), None)
        sequence, told = self.session.init(spec, pieces(piece_map, [bytes_of(start_of(spec))]), self.now_s)
        return self._asked(sequence, told, Operated(self.session.client, -1, sequence, "init", 0.0, ()))

    def push(self, keys: tuple[str, ...], weight: float = 1.0, *, pull: bool = False) -> int:
        """A weight is given as a small whole number, and stands for a power of two. (Nothing compressed is pulled with
        the same request.)"""
        digit = self.world.next_digit
        self.world.next_digit += 1
        gradients = {key: gradient_of(self.session.specs[key], digit) for key in keys}
        counts = weight_of(int(weight) - 1 if self.session.worker >= 0 else digit)
        return self._push(gradients, counts, digit, flush=False)

    def flush(self) -> set[int]:
        """As `store.flush_residuals` does."""
        left = self.compression.read_residuals()
        zeros = {key: torch.zeros_like(values) for key, values in left.items()}
        return {self._push({key: values}, 1.0, -1, flush=True) for key, values in zeros.items()}

    def _push(self, gradients: dict[str, torch.Tensor], weight: float, digit: int, *, flush: bool) -> int:
        piece_map = self._piece_map(tuple(gradients))
        views = pieces(piece_map, [bytes_of(gradient) for gradient in gradients.values()])

        def begins(sequence: int) -> Operated:
            operated = self._operated(sequence, "push", piece_map.layout)
            operated.digit, operated.weight = digit, weight
            last = bool(self.compression.until) and operated.round >= self.compression.until - 1
            self._note_push(operated, gradients, flush=flush or last)
            return operated

        self._begins = begins
        push = self.compression.push(lambda: "push", piece_map, views, weight, flush=flush, whole=False)
        return push.sequence

    def pull(self, keys: tuple[str, ...]) -> int:
        piece_map = self._piece_map(keys)
        tensors = [
            torch.empty(shape, dtype=dtype) for shape, dtype in zip(piece_map.shapes, piece_map.dtypes, strict=True)
        ]
        landing = Destination(pieces(piece_map, [bytes_of(tensor) for tensor in tensors]), tensors)

        def result(done: Done[memoryview]) -> None:
            raise_if_refused(done)
            self._note_given(piece_map, landing, done.sequence)

        self._begins = lambda sequence: self._operated(sequence, "pull", piece_map.layout)
        pull = self.compression.pull(lambda: "pull", piece_map, landing, result, rows=None, at_least=None)
        return pull.sequence

    def announce_leave(self) -> int:
        self.compression.until = super().announce_leave()
        return self.compression.until

    def _piece_map(self, keys: tuple[str, ...]) -> PieceMap:
        return make_piece_map(self.session.layout(keys), [self.session.specs[key] for key in keys], None)

    # --- what is noted ---

    def _note_push(self, operated: Operated, gradients: dict[str, torch.Tensor], *, flush: bool) -> None:
        operation = self.session.operations.get(operated.sequence)
        if operation is None:
            return  # what it builds on was lost, and it is over already
        shards = {(p.key, p.block): part.shard for part in operation.layout.parts for p in part.pieces}
        sent = {}
        for piece, body in zip(operation.layout.pieces, operation.values, strict=True):
            place = piece.key, piece.block
            start = piece.block * block_elements(ITEM_BYTES[self.session.specs[piece.key].dtype])
            own = gradients[piece.key][start : start + piece.count]
            sent[place] = Sent(shards[place], piece.count, own, bytes(body), piece.encoded)
        self.ledger.pushes[operated.client, operated.sequence] = PushEntry(operated, sent)
        if flush:
            self.ledger.flushed.update((operated.client, place) for place in sent)

    def _note_given(self, piece_map: PieceMap, landing: Destination, sequence: int) -> None:
        operated = self.open[sequence]
        if not self._is_waited_for(operated.round):
            return  # it is given what is there
        for piece, view in zip(piece_map.layout.pieces, landing.views, strict=True):
            spec = self.session.specs[piece.key]
            delay = spec.delay if block_codec(spec, piece.count) is not None else None
            if operated.round and delay is not None:
                round_ = max(0, operated.round - 1 - delay)
                self.ledger.note_given((piece.key, piece.block), round_, bytes(view), operated.client)

    def _is_waited_for(self, step: int) -> bool:
        """Not who has said that it goes, nor who was struck off and comes again later."""
        record, until = self.world.disk.record, self.compression.until
        members = record.decree.members if record is not None and record.decree is not None else ()
        first = [member.from_round for member in members if member.client == self.session.client]
        return bool(first) and step >= first[0] and not (until and step >= until)

    # --- for the world ---

    def began(self, pending: Pending[Any], sequence: int, told: list[SessionInstruction[Any]]) -> None:
        begins = self._kinds.get(id(pending), self._begins)
        assert begins is not None
        self.pending[sequence], self._kinds[id(pending)] = pending, begins
        operated = begins(sequence)
        if operated.kind == "pull" and operated.round:
            asked = self.session.operations.get(sequence)
            encoded = asked is not None and any(piece.encoded for piece in asked.layout.pieces)
            self.ledger.encoded, self.ledger.whole = self.ledger.encoded + encoded, self.ledger.whole + (not encoded)
        self._asked(sequence, told, operated)

    def _send(self, send: Send[Any]) -> None:
        if isinstance(send.message, Push):
            self.ledger.sends += 1
        bodies: tuple[Any, ...] = tuple(map(bytes, send.values))
        super()._send(Send(send.server, send.message, bodies))

    def _note(self, done: Done[Any]) -> None:
        pending, entry = (
            self.pending.pop(done.sequence, None),
            self.ledger.pushes.get((self.session.client, done.sequence)),
        )
        if entry is not None:
            entry.applied = frozenset(done.versions)
        if done.refused is not None and done.refused.reason == "incarnation":
            self.ledger.gone.add(self.session.client)
        if pending is not None:
            self._finish(pending, done)
        super()._note(done)

    def _finish(self, pending: Pending[Any], done: Done[Any]) -> None:
        for shard, values in done.values.items() if done.refused is None else ():
            for target, value in zip(reversed(pending.targets(shard)), values, strict=True):
                target[:] = bytes_of(value)
        pending.finish(done)
        if not pending.over:  # it was asked for in another way
            if self._waits is not None and done.sequence in self._waits:
                self._waits.add(pending.sequence)
            return
        del self._kinds[id(pending)]
        if done.refused is None:
            try:
                pending.result()
            except Exception as error:
                self.ledger.broken.append(Violation("decoded", f"{self.session.client}: {error!r}"))

    def _note_values(self, operated: Operated, done: Done[Any]) -> None:
        """They are in the ledger."""


class _Engine:
    """What `StoreCompression` needs of a client's shell, without threads: nobody waits here."""

    closed = False

    def __init__(self, actor: CompressedActor, session: Session[Any]) -> None:
        self._actor, self.session, self.lock = actor, session, threading.RLock()

    def start(self, pending: Pending[Any], begin: Start) -> None:
        if not self.session.ready:
            self.wait_until_ready()
        pending.sequence, told = begin(self._actor.now_s)
        self._actor.began(pending, pending.sequence, told)

    def poll(self, pending: Pending[Any]) -> bool:
        return pending.over

    def wait(self, pending: Pending[Any], timeout_s: float | None) -> None:
        raise PeerTimeout(f"{pending.what} is not done")

    def wait_until_ready(self) -> None:
        raise PeerTimeout("this worker is in no rounds now")
