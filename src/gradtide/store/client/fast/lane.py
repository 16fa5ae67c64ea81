"""One small key's fast path: the request that is kept, and how it is sent and its answer received."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradtide.errors import CommunicationError
from gradtide.store.client.pending import Pending
from gradtide.store.client.session import Session
from gradtide.store.client.tensors.values import Destination, PieceMap
from gradtide.store.rules.tensors import bytes_of
from gradtide.store.wire.layouts import BlockLayout
from gradtide.store.wire.message_templates import Template
from gradtide.store.wire.messages import KeySpec, Push, ServerEntry

if TYPE_CHECKING:
    from gradtide.store.client.engine import Engine
    from gradtide.store.client.links import ServerLink

__all__ = ["Lane"]

_RECEIVE_S = 0.25


class _Memory:
    """The tensor that was passed last, and its memory."""

    __slots__ = ("pointer", "tensor", "view")

    def __init__(self) -> None:
        self.tensor: Tensor | None = None
        self.pointer = 0
        self.view = memoryview(b"")

    def keep(self, tensor: Tensor) -> memoryview:
        self.view = bytes_of(tensor.detach())
        self.tensor, self.pointer = tensor, tensor.data_ptr()
        return self.view


class Lane:
    """One key's fast path. Used by one thread at a time: whoever holds the engine's `reading`."""

    __slots__ = (
        "_dtype", "_engine", "_handed_on", "_landing", "_link", "_make_pending", "_out", "_path", "_piece_map",
        "_shape", "_source", "_table", "_template", "_weight", "done", "sequence", "size_bytes", "target", "view",
    )  # fmt: skip

    def __init__(
        self, engine: "Engine", piece_map: PieceMap, make_pending: Callable[[Destination], Pending[Any]]
    ) -> None:
        self._engine, self._path, self._piece_map, self._make_pending = engine, engine.fast, piece_map, make_pending
        self._shape, self._dtype = piece_map.shapes[0], piece_map.dtypes[0]
        self._source, self._landing = _Memory(), _Memory()
        self._table: object = None
        self._link: ServerLink | None = None
        self._weight: float | None = None
        self._template: Any = None  # until _prepare
        self._out = torch.empty(0)
        self.size_bytes = piece_map.layout.pieces[0].size_bytes
        self.view = self.target = memoryview(b"")
        self.sequence, self.done = 0, False
        self._handed_on: Pending[Any] | None = None  # what its push became when the fast path was left

    def push_pull(self, value: Any, out: Any, weight: float | None) -> Tensor | Pending[Any] | None:
        """The values; or an operation to wait for, where that took longer; None: not this way, and nothing was sent."""
        engine = self._engine
        if not engine.reading.acquire(False):
            return None
        try:
            view = self._memory(self._source, value)
            if out is None:
                out = torch.empty(self._shape, dtype=self._dtype)
                target: memoryview | None = bytes_of(out)
            else:
                target = self._memory(self._landing, out)
            if view is None or target is None:
                return None
            with engine.lock:
                self._out = out
                if not self._send(view, target, weight):
                    return None
            return out if self._receive() else self._give_up()
        finally:
            engine.stop_reading()

    def _memory(self, kept: _Memory, tensor: Any) -> memoryview | None:
        """Of a tensor that is as it should be; None for any other, which the general way copies or complains about."""
        if type(tensor) is not Tensor or tensor.shape != self._shape or tensor.dtype is not self._dtype:
            return None
        if not tensor.is_contiguous():
            return None
        if tensor is kept.tensor and tensor.data_ptr() == kept.pointer:
            return kept.view
        return None if tensor.is_cuda else kept.keep(tensor)

    def _send(self, view: memoryview, target: memoryview, weight: float | None) -> bool:
        engine = self._engine
        session, link = engine.session, self._link
        if session.operations or engine.closed:
            return False
        if session.table is not self._table or link is None or link.gone or weight != self._weight:
            link = self._prepare(weight)
            if link is None:
                return False
        self.sequence = session.take_sequence()
        self.view, self.target, self.done, self._path.lane = view, target, False, self
        try:
            link.connection.send_frame(self._template.push(self.sequence), (view,), self.size_bytes)
        except CommunicationError:
            link.connection.shut()  # which shows when it is received from
        return True

    def _prepare(self, weight: float | None) -> "ServerLink | None":
        """The request in full but for its sequence, as long as the table and the connection stay."""
        engine = self._engine
        ready = _request(engine.session, self._piece_map.layout, self._piece_map.specs[0], weight)
        link = engine.links.get(ready[0].name) if ready is not None else None
        if ready is None or link is None or link.entry is not ready[0]:
            return None
        self._template = Template(ready[1], self.size_bytes)
        self._table, self._link, self._weight = engine.session.table, link, weight
        return link

    def _receive(self) -> bool:
        """Until it is answered, or until it is time to send it again, which is the session's to do."""
        link = self._link
        assert link is not None
        connection = link.connection
        try:
            while connection.receive_within(_RECEIVE_S):
                if self.done:
                    return True
                if self._path.lane is not self or connection.can_flush:
                    return False
        except CommunicationError:
            self._engine.drop(link)
        return self.done

    def _give_up(self) -> Pending[Any]:
        with self._engine.turn:
            pending, self._handed_on = self._handed_on, None
        assert pending is not None
        return pending

    def hand_on(self, now_s: float) -> Pending[Any]:
        """The push that is under way becomes an operation like any other, which the session knows of."""
        self._engine.session.adopt_push(self.sequence, self._piece_map.layout, [self.view], self._weight, now_s)
        self._handed_on = pending = self._make_pending(Destination([self.target], [self._out]))
        pending.sequence = self.sequence
        return pending


def _request(
    session: Session[memoryview], layout: BlockLayout, spec: KeySpec, weight: float | None
) -> tuple[ServerEntry, Push] | None:
    """A push of one piece that also pulls, and to whom; None when that needs the general way."""
    table = session.table
    if table is None or session.operations or session.losses.rolled_back or session.specs.get(spec.key) != spec:
        return None
    (share,) = layout.shares(table)
    if not session.knows_layout(share):
        return None
    # A sequence of its own, which the template then replaces: a gap, which is allowed, and filters as they always were.
    head = (table.epoch, session.client, session.incarnation, session.take_sequence(), share.name)
    return table.servers[share.server], Push(*head, weight=weight, worker=session.worker, pull=True)
