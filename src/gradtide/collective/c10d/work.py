"""What torch's operations return: something to wait for, and a future for DDP and for hooks.

torch calls wait() and get_future() from C++ too. A future that is completed with an exception in Python looks fine from
there, so an error is raised by a callback in between. All that torch keeps of it is its text: when a future is asked
for during a backward pass, by DDP or one of its hooks, the error itself is raised at the end of that pass.
"""

from collections.abc import Sequence
from datetime import timedelta
from threading import Lock
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from gradtide.collective.c10d.compiling import never_compiled
from gradtide.collective.c10d.errors import TorchPeerTimeout, as_torch_error
from gradtide.collective.groups.group import Group
from gradtide.collective.groups.messages import Receipt
from gradtide.handle import Handle

__all__ = ["Finished", "Work", "finished"]

_Tensors = Sequence[Any]
_NO_LIMIT = timedelta(0)
_Base: Any = vars(dist)["Work"]


@never_compiled
class Finished(_Base):  # type: ignore[misc]
    """An operation that is over. It went wrong if there is an error."""

    _result: _Tensors
    _error: BaseException | None = None

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> _Tensors:
        self.wait()
        return self._result

    def get_future(self) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_result(self._result)
        return future.then(self._checked)

    def _checked(self, future: "Future[Any]") -> Any:
        if self._error is not None:
            raise self._error
        return future.value()

    def source_rank(self) -> int:
        raise ValueError("only a receive has a source")

    _source_rank = source_rank


def finished(result: _Tensors, error: BaseException | None = None) -> Finished:
    work = Finished()  # without an __init__ in Python, which would take 1 us
    work._result, work._error = result, error
    return work


@never_compiled
class Work(Finished):
    """An operation under way."""

    def __init__(self, group: Group, handle: Handle[Any], result: _Tensors) -> None:
        super().__init__()
        self._group, self._handle, self._result = group, handle, result
        self._lock = Lock()
        self._begin: Future[Any] | None = None  # completed by us; callbacks of torch's hang on what follows from it
        self._future: Future[Any] | None = None
        self._ended = False
        handle.when_done(self._end)

    def _end(self, error: BaseException | None) -> None:
        with self._lock:
            self._error = None if error is None else as_torch_error(error)
            self._ended, begin = True, self._begin
        if begin is not None:
            begin.set_result(self._result)  # callbacks run here

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        limit_s = timeout.total_seconds()
        self._group.help(self._handle)
        if not self._handle.ended(limit_s if limit_s > 0 else None):
            raise TorchPeerTimeout(
                f"{self._handle.what} is not done after {limit_s:g} s; wait longer, or see who is late"
            )
        if (error := self._handle.error()) is not None:
            raise as_torch_error(error)
        return True

    def is_completed(self) -> bool:
        return self._handle.done()

    def exception(self) -> BaseException | None:
        error = self._handle.error()
        return None if error is None else as_torch_error(error)

    def is_success(self) -> bool:
        return self._handle.done() and self._handle.error() is None

    def get_future(self) -> "Future[Any]":
        with self._lock:
            if self._future is None:
                self._begin = Future()
                self._future = self._begin.then(self._checked)
                if self._ended:
                    self._begin.set_result(self._result)
        if torch._C._current_graph_task_id() != -1:
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self.wait)
        return self._future

    def source_rank(self) -> int:
        if not isinstance(self._handle, Receipt) or self._handle.source is None:
            return int(super().source_rank())
        return self._handle.source

    _source_rank = source_rank
