"""Pushes and pulls of keys that are compressed: encoded before they leave, decoded when they arrive.

A push is encoded once: the session keeps the bytes, and sends the same ones again. What they leave out stays here
(residuals.py). In rounds a worker's pull asks for what the round that it waits for has changed, and adds that to what
it has (copies.py); whoever has not what comes before it asks for the values whole.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradtide.errors import DataError, FrameError, NotMember, PeerTimeout
from gradtide.store.client.engine import Engine
from gradtide.store.client.operations import Done
from gradtide.store.client.pending import AskAgain, Pending, raise_if_refused
from gradtide.store.client.tensors.copies import RoundCopies, RoundCopy
from gradtide.store.client.tensors.residuals import Change, PushResiduals, Shrunk, shrink
from gradtide.store.client.tensors.values import Destination, PieceMap
from gradtide.store.rules.codecs import BlockCodec, answers_whole, block_codec, draw_of
from gradtide.store.rules.tensors import DTYPES, bytes_of
from gradtide.store.wire.layouts import BlockLayout
from gradtide.store.wire.messages import NO_WORKER, KeySpec, Piece, Version
from gradtide.store.wire.placement import block_count, block_elements, block_span, shard_of

__all__ = ["StoreCompression"]

Name = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Push:
    """What is pushed of some keys, by piece, and what that does to their residuals."""

    values: Sequence[memoryview]
    encoded: frozenset[str]
    changes: dict[Name, Change]


class StoreCompression:
    """Of one store."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._session = engine, engine.session
        self._pushing = threading.Lock()  # one after the other: each begins with what the one before has left
        self._count = 0  # of pushes outside of rounds
        self._pulls: dict[str, Pending[Any]] = {}  # by key: the last pull in rounds
        self.residuals, self.copies = PushResiduals(), RoundCopies()
        self.until = 0  # the first round without this worker, once it has said that it goes

    # --- push ---

    def push(
        self,
        what: Callable[[], str],
        piece_map: PieceMap,
        views: Sequence[memoryview],
        weight: float | None,
        *,
        flush: bool,
        whole: bool,
    ) -> Pending[None]:
        """Begins a push. `flush`: with all that earlier ones have left out. `whole`: without, and not encoded."""
        self._wait_for_pulls(piece_map.layout.keys)
        session, keys = self._session, piece_map.layout.keys
        with self._pushing:
            round_ = self._round_of(keys)
            last = bool(self.until) and bool(round_) and round_ >= self.until - 1
            counts = 1.0 if weight is None else weight
            made = _Push(views, frozenset(), {})
            if flush or last or not whole:
                made = self._encode(piece_map, views, counts, round_, flush=flush or last)
            shards = {(piece.key, piece.block): part.shard for part in piece_map.layout.parts for piece in part.pieces}

            def begin(now_s: float) -> Any:
                layout = session.layout(keys, None, made.encoded)
                told = session.push(layout, made.values, now_s=now_s, weight=weight, settles=bool(made.changes))
                self.residuals.put_all(made.changes)
                return told

            def finish(done: Done[memoryview]) -> None:
                if done.refused is not None:  # what was not applied was never pushed
                    undone = {n: c.undone for n, c in made.changes.items() if shards[n] not in done.versions}
                    self.residuals.put_all(undone)
                raise_if_refused(done)

            pending = Pending(self._engine, what, finish)
            self._engine.start(pending, begin)
        return pending

    def _wait_for_pulls(self, keys: Sequence[str]) -> None:
        """Once a push has closed the round after, what a pull asks for may be gone."""
        for key in keys:
            pull = self._pulls.get(key)
            if pull is not None and not pull.over and not pull.ended():
                raise PeerTimeout(f"{pull.what} is not done, and a push of {key!r} must wait for it")

    def _round_of(self, keys: Sequence[str]) -> int:
        if not self._session.ready and not self._engine.closed:
            self._engine.wait_until_ready()
        with self._engine.lock:
            self._count += 1
            return self._session.next_step(keys)

    def _encode(
        self, piece_map: PieceMap, views: Sequence[memoryview], weight: float, round_: int, *, flush: bool
    ) -> _Push:
        specs = {spec.key: spec for spec in piece_map.specs}
        made: dict[int, Shrunk | None] = {}
        for i, piece in enumerate(piece_map.layout.pieces):
            spec = specs[piece.key]
            codec = block_codec(spec, piece.count)
            adds = spec.update.name == "add"
            counts = weight if adds or spec.delay is not None or weight <= 0 else 1.0  # a step of its own is one
            if codec is not None and not (adds and weight < 0):  # what is left out could not be subtracted later
                made[i] = self._shrink(piece, spec, views[i], counts, round_, codec, flush)
        pieces = piece_map.layout.pieces
        whole = {pieces[i].key for i, shrunk in made.items() if shrunk is None}
        kept = {i: shrunk for i, shrunk in made.items() if shrunk is not None and pieces[i].key not in whole}
        values = [bytes_of(kept[i].values) if i in kept else views[i] for i in range(len(pieces))]
        encoded = frozenset(pieces[i].key for i, shrunk in kept.items() if shrunk.encoded)
        changes = {(pieces[i].key, pieces[i].block): s.change for i, s in kept.items() if s.change is not None}
        return _Push(values, encoded, changes)

    def _shrink(
        self, piece: Piece, spec: KeySpec, view: memoryview, weight: float, round_: int, codec: BlockCodec, flush: bool
    ) -> Shrunk | None:
        gradient = torch.frombuffer(view, dtype=DTYPES[spec.dtype])
        with self._engine.lock:
            before = self.residuals.of((piece.key, piece.block))
        who = (round_, self._session.worker) if round_ else (self._session.client, self._count)
        return shrink(gradient, before, weight, codec, draw_of(piece.key, piece.block, *who), flush=flush)

    # --- pull ---

    def pull(
        self,
        what: Callable[[], str],
        piece_map: PieceMap,
        landing: Destination,
        result: Callable[[Done[memoryview]], Any],
        *,
        rows: slice | None,
        at_least: Mapping[int, Version] | None,
    ) -> Pending[Any]:
        """Begins a pull. `result`: of what has landed."""
        keys, session = piece_map.layout.keys, self._session
        if not session.ready and not self._engine.closed:
            self._engine.wait_until_ready()
        receiving = _Receiving(self, piece_map, landing, rows)

        def begin(now_s: float, *, whole: bool = False) -> Any:
            layout = receiving.begin(session.next_step(keys), whole=whole)
            return session.pull(layout, now_s=now_s, round_=receiving.step, at_least=at_least)

        def again(now_s: float) -> Any:
            return begin(now_s, whole=True)

        def finish(done: Done[memoryview]) -> Any:
            asks_again = done.refused is not None and done.refused.reason == "whole" and not receiving.whole
            if asks_again and session.ready:
                raise AskAgain(again)
            for key in keys:
                if self._pulls.get(key) is pending:
                    del self._pulls[key]
            if done.refused is None:
                receiving.finish()
            if asks_again:  # who hears this is who would have to hear that it is in again: it can't wait for that
                raise NotMember(f"worker {session.worker} was struck off while it pulled; pull again")
            return result(done)

        pending: Pending[Any] = Pending(self._engine, what, finish, receiving.targets)
        with self._engine.lock:
            if session.worker != NO_WORKER:  # nobody else is given anything by rounds
                self._pulls.update((key, pending) for key in keys if session.specs[key].delay is not None)
        self._engine.start(pending, begin)
        return pending

    def lost(self, shard: int) -> int:
        """The epoch in which a shard last lost something."""
        table = self._session.table
        return table.lost[shard] if table is not None and table.lost else 0

    def layout(self, keys: Sequence[str], rows: slice | None, encoded: frozenset[str]) -> BlockLayout:
        return self._session.layout(keys, rows, encoded)

    # --- residuals, for who keeps them ---

    def read_residuals(self, keys: Collection[str] | None = None) -> dict[str, Tensor]:
        """By key, as tensors of its shape; of those of these keys that have some."""
        with self._engine.lock:
            found, specs = dict(self.residuals.blocks), dict(self._session.specs)
        whole: dict[str, Tensor] = {}
        for (key, block), values in found.items():
            if keys is not None and key not in keys:
                continue
            if key not in whole:
                whole[key] = torch.zeros(specs[key].shape, dtype=values.dtype)
            start = block * block_elements(values.element_size())
            whole[key].view(-1)[start : start + values.numel()] = values
        return whole

    def add_residuals(self, more: Mapping[str, Tensor], *, instead: bool) -> None:
        """To what is left out already, or instead of it."""
        if instead:
            with self._engine.lock:
                self.residuals.clear()
        for key, values in more.items():
            flat = values.detach().to("cpu").reshape(-1)
            item, count = flat.element_size(), flat.numel()
            for block in range(block_count(count, item)):
                start, stop = block_span(block, count, item)
                with self._engine.lock:
                    self.residuals.add((key, block), flat[start:stop].clone())

    def scale_residuals(self, factor: float, keys: Collection[str] | None) -> None:
        with self._engine.lock:
            names = [name for name in self.residuals.blocks if keys is None or name[0] in keys]
            self.residuals.scale(names, factor)

    def forget(self) -> None:
        """Everything went back: what was left out since was of steps that never were."""
        with self._engine.lock:
            self.residuals.clear()
            self.copies.clear()


class _Receiving:
    """One pull: what is received encoded, and what becomes of it."""

    def __init__(self, owner: StoreCompression, piece_map: PieceMap, landing: Destination, rows: slice | None) -> None:
        self._owner, self._piece_map, self._landing, self._rows = owner, piece_map, landing, rows
        self._specs = {spec.key: spec for spec in piece_map.specs}
        self.step, self.whole = 0, False
        self._bodies: dict[int, Tensor] = {}  # by piece: where encoded ones are received
        self._bases: dict[int, Tensor | None] = {}  # by piece: what they are added to

    def begin(self, step: int, *, whole: bool) -> BlockLayout:
        """Under the engine's lock: what is asked for."""
        self.step, self.whole = step, whole
        keys, copies = self._piece_map.layout.keys, self._owner.copies
        bases: dict[int, Tensor | None] = {}
        refused = set[str]()
        for i, piece in enumerate(self._piece_map.layout.pieces):
            spec = self._specs[piece.key]
            if not spec.compress:
                continue
            round_ = self._round(spec)
            base = copies.take((piece.key, piece.block), round_ - 1, self._lost(i)) if self._rows is None else None
            bases[i] = base
            lacks = base is None and not answers_whole(spec) and block_codec(spec, piece.count) is not None
            if whole or lacks or round_ < 1 or self._leaves or self._rows is not None or spec.delay is None:
                refused.add(piece.key)
        encoded = frozenset(self._specs) - refused - {key for key in keys if not self._specs[key].compress}
        layout = self._owner.layout(keys, self._rows, encoded)
        sizes = {i: piece.size_bytes for i, piece in enumerate(layout.pieces) if piece.encoded}
        self._bodies = {i: torch.empty(size_bytes, dtype=torch.uint8) for i, size_bytes in sizes.items()}
        self._bases = bases
        return layout

    def targets(self, shard: int) -> list[memoryview]:
        """The memory of a shard's pieces, the first one last."""
        first, last = self._piece_map.of_shard[shard]
        if not self._bodies:
            return self._landing.targets(first, last)
        views = self._landing.views
        return [bytes_of(self._bodies[i]) if i in self._bodies else views[i] for i in range(first, last)][::-1]

    def finish(self) -> None:
        """All of it is there."""
        if self._rows is not None:
            return
        for i, piece in enumerate(self._piece_map.layout.pieces):
            spec = self._specs[piece.key]
            codec = block_codec(spec, piece.count) if spec.delay is not None and self.step else None
            if codec is None:
                continue
            target = torch.frombuffer(self._landing.views[i], dtype=DTYPES[spec.dtype])
            values = target.clone() if i not in self._bodies else self._decode(i, codec)
            if i in self._bodies:
                target.copy_(values)
            if not answers_whole(spec) and not self._leaves:
                copy = RoundCopy(self._round(spec), self._lost(i), values)
                self._owner.copies.put((piece.key, piece.block), copy)

    def _decode(self, i: int, codec: BlockCodec) -> Tensor:
        body, values = self._bodies[i], self._bases.get(i)
        try:
            if values is None:
                return codec.read(body)
            codec.check(body)
        except DataError as error:
            raise FrameError(f"a server sent what makes no sense: {error}") from None
        codec.decode(body, values, add=True)
        return values

    def _round(self, spec: KeySpec) -> int:
        """The round that this worker is given."""
        return self.step - 1 - (spec.delay or 0)

    def _lost(self, i: int) -> int:
        piece = self._piece_map.layout.pieces[i]
        return self._owner.lost(shard_of(piece.key, piece.block))

    @property
    def _leaves(self) -> bool:
        """Whether nobody waits for this worker any more: then what it would be given may be gone."""
        return bool(self._owner.until) and self.step >= self._owner.until
