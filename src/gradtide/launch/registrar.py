"""Where workers of a job that outlives them ask who works together, and others for more or fewer of them."""

import contextlib
import os
import selectors
import socket
import time
from collections.abc import Callable

import msgspec

from gradtide.launch.members import Members
from gradtide.processes.credentials import user_of
from gradtide.processes.job_protocol import Ask, Question, Watch, address_of

__all__ = ["Registrar"]

_MESSAGE_BYTES = 4096


class Registrar:
    """Hears what workers ask, and tells them what members.py decides; `scale` is told how many somebody wants."""

    def __init__(
        self, name: str, selector: selectors.BaseSelector, scale: Callable[[int], str], members: Members
    ) -> None:
        self.address = address_of(name)
        self._selector, self._scale, self.members = selector, scale, members
        self._watching: dict[int, socket.socket] = {}  # who hears of changes, by rank
        self._waiting: dict[int, socket.socket] = {}  # for an answer, by rank
        self._open: set[socket.socket] = set()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(f"\0{self.address}")
        self._listener.listen(64)
        selector.register(self._listener, selectors.EVENT_READ)

    def owns(self, thing: object) -> bool:
        return thing is self._listener or thing in self._open

    def hear(self, thing: object) -> None:
        """Something can be read."""
        if thing is self._listener:
            worker, _ = self._listener.accept()
            if user_of(worker) != os.getuid():
                worker.close()
                return
            self._open.add(worker)
            self._selector.register(worker, selectors.EVENT_READ)
        elif isinstance(thing, socket.socket):
            try:
                self._take(thing, msgspec.json.decode(thing.recv(_MESSAGE_BYTES), type=Question))
            except (OSError, msgspec.MsgspecError):  # hung up, or no worker of ours
                self._drop(thing)

    def _take(self, asker: socket.socket, question: Question) -> None:
        if isinstance(question, Ask):
            self._waiting[question.rank] = asker
            self.members.asked(question, time.monotonic())
        elif isinstance(question, Watch):
            self._watching[question.rank] = asker
            if self.members.noticed is not None:  # it begins to listen after it was said
                asker.send(msgspec.json.encode(self.members.noticed))
        else:
            asker.send(self._scale(question.workers).encode())
            self._drop(asker)

    def gone(self, rank: int) -> None:
        self.members.gone(rank)
        if rank in self._waiting:
            self._drop(self._waiting[rank])

    def answer(self, living: set[int]) -> None:
        """Tells everybody who waits, once everybody has asked; and everybody else when they should."""
        notice = self.members.notice()
        for rank, worker in list(self._watching.items()) if notice is not None else ():
            if rank not in self._waiting:
                with contextlib.suppress(OSError):  # it ends already
                    worker.send(msgspec.json.encode(notice))
        decree = self.members.decree(living)
        if decree is None:
            return
        for worker in list(self._waiting.values()):
            with contextlib.suppress(OSError):  # it has just died, and the others will notice
                worker.send(msgspec.json.encode(decree))
            self._drop(worker)

    def _drop(self, worker: socket.socket) -> None:
        self._open.discard(worker)
        self._waiting = {rank: other for rank, other in self._waiting.items() if other is not worker}
        self._watching = {rank: other for rank, other in self._watching.items() if other is not worker}
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(worker)
        worker.close()

    def close(self) -> None:
        for worker in list(self._open):
            self._drop(worker)
        self._listener.close()
