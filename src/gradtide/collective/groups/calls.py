"""A group's calls: one at a time and in order, now or in the background, and none after it broke."""

import atexit
import functools
import os
import sys
import time
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Literal, TypeVar, overload

import torch

from gradtide.collective.groups.explaining import Now, Timings
from gradtide.collective.groups.many_hosts import ManyHosts
from gradtide.collective.groups.ordered_queue import OrderedQueue
from gradtide.collective.host.one_host import Call, OneHost
from gradtide.collective.host.prepare import give_back, held, overlap, plain
from gradtide.collective.host.signature import Signature, sign
from gradtide.errors import CommunicationError, ConfigError, Mismatch, PeerLost, PeerTimeout
from gradtide.handle import Handle
from gradtide.kernels import DONE

__all__ = ["Calls"]

T = TypeVar("T")
Tensor = torch.Tensor
_REMEMBERED = 1024  # plans
_ENDING_S = 5.0  # a thread that nothing keeps any more ends at once, or when it gets a processor
_ending: list[bool] = []  # whether the program is at its end
_alive: "weakref.WeakSet[Calls]" = weakref.WeakSet()


class Calls:
    """Runs what a group is asked for."""

    def __init__(self, name: str, backend: OneHost | ManyHosts, timeout_s: float) -> None:
        self._name, self._backend, self.timeout_s = name, backend, timeout_s
        self._board = (backend if isinstance(backend, OneHost) else backend.host).board
        self.lane = OrderedQueue()
        # What may be run without asking here, as the backend takes it; none once the group is broken.
        self.plans: dict[Hashable, Any] = {}
        self.timings = Timings() if isinstance(backend, ManyHosts) else None
        self._broken = ""
        self._broken_by: type[CommunicationError] = CommunicationError
        self._at_end = weakref.finalize(self, _leave, backend)
        _expect_the_end()
        _alive.add(self)

    def finish(self) -> None:
        """Lets what was asked for end."""
        self.lane.close(self.timeout_s)

    def close(self, *, in_good_order: bool) -> None:
        """in_good_order: this rank has done all that it was to do, as far as it knows."""
        if not in_good_order:
            self._backend.in_good_order = False
        self._break(self._broken or "it was closed")
        if self._at_end.detach() is not None:
            self._backend.close()
        self.lane.close(self.timeout_s)
        self.lane.join(_ENDING_S)

    def remember(self, key: Hashable, plan: Any, size_bytes: int) -> None:
        if self.timings is not None:
            self.timings.plan(plan.address, size_bytes)
        if len(self.plans) >= _REMEMBERED:
            self.plans.clear()
        self.plans[key] = plan
        if self._broken:  # by the background, just now
            self.plans.clear()

    def _break(self, why: str) -> None:
        self._broken = why
        self.plans.clear()

    # --- Between hosts: flows, and how long calls take ---

    def use_flows(self, wanted: int, *, keep: bool) -> None:
        """See ManyHosts.use_flows. What was planned before is planned anew."""
        backend = self._backend

        def work(call: Call) -> None:
            if isinstance(backend, ManyHosts):
                backend.use_flows(call, wanted, keep)
                self.plans.clear()

        self.run(sign(f"use {wanted} flows"), work, False, None)

    def timed(self, now: Now) -> Now:
        return now if self.timings is None else self.timings.timed(now)

    def note(self, signature: Signature, size_bytes: int, began: float) -> None:
        if self.timings is not None and " by schedule " not in signature.text:
            operation = signature.text.split("(", 1)[0].split(" of ", 1)[0]
            self.timings.note(operation, size_bytes, time.perf_counter() - began)

    # --- Running them ---

    def call(self, signature: Signature, timeout_s: float | None) -> Call:
        return Call(signature, self.timeout_s if timeout_s is None else timeout_s)

    def in_place(
        self,
        signature: Signature,
        tensor: Tensor,
        work: Callable[[Call, Tensor], None],
        async_op: bool,
        timeout_s: float | None,
    ) -> Any:
        """Work that changes a tensor, which is what comes back."""
        if not async_op and self._now(signature, tensor, None, timeout_s):
            return tensor
        memory = held(tensor)

        def whole(call: Call) -> Tensor:
            began, prepared = time.perf_counter(), plain(memory)
            work(call, prepared)
            self.note(signature, prepared.nbytes, began)
            return give_back(prepared, tensor)

        return self.run(signature, whole, async_op, timeout_s)

    def into(
        self,
        signature: Signature,
        tensor: Tensor,
        out: Tensor,
        work: Callable[[Call, Tensor, Tensor], None],
        async_op: bool,
        timeout_s: float | None,
    ) -> Any:
        """Work that fills `out` from a tensor."""
        if not async_op and self._now(signature, tensor, out, timeout_s):
            return out
        given, taking = held(tensor), held(out)

        def whole(call: Call) -> Tensor:
            began, source, target = time.perf_counter(), plain(given), plain(taking)
            work(call, source, target)
            self.note(signature, max(source.nbytes, target.nbytes), began)
            return give_back(target, out)

        return self.run(signature, whole, async_op, timeout_s)

    def _now(self, signature: Signature, tensor: Tensor, into: Tensor | None, timeout_s: float | None) -> bool:
        """Runs it the shortest way, if there is one: between hosts, and as an operation of its kind went before. Not
        what may look contiguous and yet be changed when it is read: a conjugate, or a single number of one. Nor what
        its result lies over. into: None if that is the tensor itself."""
        backend, out = self._backend, tensor if into is None else into
        if isinstance(backend, OneHost) or self._broken or (plan := backend.planned(signature)) is None:
            return False
        if not (tensor.is_cpu and tensor.is_contiguous() and out.is_cpu and out.is_contiguous()):
            return False
        if tensor.numel() < 2 or tensor.is_complex() or (into is not None and overlap(tensor, out)):
            return False
        if not self.lane.enter():
            return False
        began = time.perf_counter()
        try:
            self._board.check_process()
            try:
                code = backend.run_now(plan, tensor.data_ptr(), out.data_ptr())
            except BaseException as error:  # a signal's, such as Ctrl-C: it came in the middle
                self.give_up(error)
                raise
            if code != DONE:
                limit_s = self.timeout_s if timeout_s is None else timeout_s
                self.guarded(lambda: backend.finish(plan, tensor, code, limit_s))
        finally:
            self.lane.leave()
        self.note(signature, max(tensor.nbytes, out.nbytes), began)
        return True

    @overload
    def run(
        self, signature: Signature, work: Callable[[Call], T], async_op: Literal[False], timeout_s: float | None
    ) -> T: ...

    @overload
    def run(
        self, signature: Signature, work: Callable[[Call], T], async_op: bool, timeout_s: float | None
    ) -> T | Handle[T]: ...

    def run(
        self, signature: Signature, work: Callable[[Call], T], async_op: bool, timeout_s: float | None
    ) -> T | Handle[T]:
        call = self.call(signature, timeout_s)

        def guarded() -> T:
            return self.guarded(lambda: work(call))

        if async_op:
            return self.lane.submit(signature.text, guarded)
        return self.lane.run(signature.text, guarded)

    def guarded(self, work: Callable[[], T]) -> T:
        """Runs it, unless the group is broken; remembers if it breaks. After a mismatch nobody is ahead."""
        self.check()
        try:
            return work()
        except (Mismatch, ConfigError):
            raise
        except BaseException as error:
            self.give_up(error)
            raise

    def check(self) -> None:
        """Raises if nothing more can be asked for."""
        self._board.check_process()
        if self._broken:
            raise self.refusal()

    def refusal(self) -> CommunicationError:
        why = self._broken or "it was closed"
        return self._broken_by(f"group {self._name!r} can't be used any more ({why}); join a new one")

    def give_up(self, error: BaseException) -> None:
        """After an operation that did not end: nothing that follows could be trusted."""
        if not self._broken:  # what follows from that is no news
            self._broken_by = type(error) if isinstance(error, (PeerLost, PeerTimeout)) else CommunicationError
            self._break(f"{type(error).__name__}: {error}".rstrip(": "))
        self._backend.in_good_order = False
        if isinstance(self._backend, ManyHosts):
            self._backend.watch.give_up(error)  # the others wait for us, not for who is lost: tell them at once


def _leave(backend: OneHost | ManyHosts) -> None:
    """Of a group that nobody closed: at the end of a program that went well that is good order; else who knows why."""
    if not _ending or getattr(sys, "last_value", None) is not None:
        backend.in_good_order = False
    backend.close()


@functools.cache
def _expect_the_end() -> None:
    """To be called after the first group has its finalizer: what was registered last is called first."""
    atexit.register(_ending.append, True)


def _forget_in_child() -> None:
    # A forked child must not go on as the rank that its parent is: without plans it is told so.
    for calls in list(_alive):
        calls.plans.clear()


os.register_at_fork(after_in_child=_forget_in_child)
