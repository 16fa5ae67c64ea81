"""The short way: push_pull of one small key, in the caller's own thread, while nothing else is under way.

What the general way does anew for each request is kept here from one to the next: the encoded request, of which only
the sequence changes, and the memory of the tensors that were passed last. Between two processes that share a processor
every line of Python runs with cold caches, so it is their number that counts: half of the general way's.

The session does not know of such a push until it is answered or given up: see `Session.quick_push`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradtide.errors import CommunicationError
from gradtide.store.familiar import Template
from gradtide.store.pending import Pending
from gradtide.store.session import Session
from gradtide.store.tensors import bytes_of
from gradtide.store.values import Destination, Plan

if TYPE_CHECKING:
    from gradtide.store.engine import Engine
    from gradtide.store.links import Link

__all__ = ["Lane", "is_small"]

_SMALL_BYTES = 1 << 16  # what the kernel takes in one go
_RECEIVE_S = 0.25


def is_small(plan: Plan) -> bool:
    """Whether the plan is of one small key outside of rounds."""
    return plan.whole and plan.specs[0].delay is None and 0 < plan.layout.pieces[0].size_bytes <= _SMALL_BYTES


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
    """One key's short way. Used by one thread at a time: whoever holds the engine's `reading`."""

    __slots__ = (
        "_dtype", "_engine", "_landing", "_link", "_make_pending", "_out", "_plan", "_shape", "_source", "_table",
        "_template", "_weight", "done", "sequence", "size_bytes", "target", "view",
    )  # fmt: skip

    def __init__(self, engine: "Engine", plan: Plan, make_pending: Callable[[Destination], Pending[Any]]) -> None:
        self._engine, self._plan, self._make_pending = engine, plan, make_pending
        self._shape, self._dtype = plan.shapes[0], plan.dtypes[0]
        self._source, self._landing = _Memory(), _Memory()
        self._table: object = None
        self._link: Link | None = None
        self._weight: float | None = None
        self._template: Any = None  # until _prepare
        self._out = torch.empty(0)
        self.size_bytes = plan.layout.pieces[0].size_bytes
        self.view = self.target = memoryview(b"")
        self.sequence, self.done = 0, False

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
        self.sequence = session.sequence = session.sequence + 1
        self.view, self.target, self.done, engine.quick = view, target, False, self
        try:
            link.connection.send_frame(self._template.push(self.sequence), (view,), self.size_bytes)
        except CommunicationError:
            link.connection.shut()  # which shows when it is received from
        return True

    def _prepare(self, weight: float | None) -> "Link | None":
        """The request in full but for its sequence, as long as the table and the connection stay. (A sequence that
        was not used is a gap, and gaps are allowed.)"""
        engine = self._engine
        ready = engine.session.quick_push(self._plan.layout, weight)
        link = engine.links.get(ready[0].name) if ready is not None else None
        if ready is None or link is None or link.entry is not ready[0]:
            return None
        self._template = Template(ready[1], self.size_bytes)
        self._table, self._link, self._weight = engine.session.table, link, weight
        return link

    def _receive(self) -> bool:
        """Until it is answered, or until it is time to send it again, which is the session's to do."""
        engine, link = self._engine, self._link
        assert link is not None
        connection = link.connection
        try:
            while connection.receive_within(_RECEIVE_S):
                if self.done:
                    return True
                if engine.quick is not self or connection.can_flush:
                    return False
        except CommunicationError:
            engine.drop(link)
        return self.done

    def _give_up(self) -> Pending[Any]:
        engine = self._engine
        with engine.lock:
            engine.give_up_quick()
            return engine.handed_on.pop(self.sequence)

    def as_pending(self) -> Pending[Any]:
        """The push that is under way, as an operation like any other."""
        return self._make_pending(Destination([self.target], [self._out]))

    def register(self, session: Session[memoryview], now_s: float) -> int:
        """Tells the session of it; its sequence."""
        return session.quick_register(self._plan.layout, [self.view], self._weight, now_s)
