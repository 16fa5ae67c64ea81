"""Where workers of a job that outlives them ask who works together, and others for more or fewer of them.

On one machine they come by an abstract UNIX socket, one connection a question. On others they come in at the head's
door, each with one connection that stays: what they say there, and what it is answered, is the same. Who wants more
workers, or fewer, comes by the abstract socket, beside the driver.
"""

import contextlib
import os
import selectors
import socket
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from gradtide.launch.members import Members
from gradtide.processes.credentials import user_of
from gradtide.processes.job_protocol import Ask, Lost, Question, Roster, Scale, Watch, address_of

__all__ = ["Asker", "GenerationStores", "Registrar"]

_MESSAGE_BYTES = 4096


class Asker(Protocol):
    """One who asks. Neither waits nor raises: whoever is gone will be noticed."""

    @property
    def stays(self) -> bool:
        """Whether the connection is for more than one question."""

    def tell(self, message: bytes) -> None: ...

    def hang_up(self) -> None: ...


class GenerationStores(Protocol):
    """Stores of torch's, each at a port of this machine."""

    @property
    def ready(self) -> bool: ...

    def take(self) -> int: ...

    def give_back(self, port: int) -> None: ...


class _Caller:
    """One who came by the abstract socket."""

    stays = False

    def __init__(self, sock: socket.socket, selector: selectors.BaseSelector) -> None:
        self.sock, self._selector = sock, selector

    def tell(self, message: bytes) -> None:
        with contextlib.suppress(OSError):
            self.sock.send(message)

    def hang_up(self) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self.sock)
        self.sock.close()


class Registrar:
    """Hears what workers ask, and tells them what members.py decides; `scale` is told how many somebody wants."""

    def __init__(
        self, scale: Callable[[int], str], members: Members, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.address, self._clock = "", clock
        self._scale, self.members = scale, members
        self._watching: dict[int, Asker] = {}  # who hears of changes, by rank
        self._waiting: dict[int, Asker] = {}  # for an answer, by rank
        self._looking: list[Asker] = []  # who only wants to know who lives
        self._callers: set[_Caller] = set()
        self.stores: GenerationStores | None = None  # of a job on several machines
        self.roster: Roster | None = None  # the last that was decreed
        self._listener: socket.socket | None = None

    def listen(self, job: str, selector: selectors.BaseSelector) -> None:
        """For processes of this user on this machine."""
        self.address = address_of(job)
        listener = self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(f"\0{self.address}")
        listener.listen(64)
        selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener, selector))

    def _accept(self, listener: socket.socket, selector: selectors.BaseSelector) -> None:
        sock, _ = listener.accept()
        if user_of(sock) != os.getuid():
            sock.close()
            return
        caller = _Caller(sock, selector)
        self._callers.add(caller)
        selector.register(sock, selectors.EVENT_READ, lambda: self._hear_caller(caller))

    def _hear_caller(self, caller: _Caller) -> None:
        try:
            self.take(caller, msgspec.json.decode(caller.sock.recv(_MESSAGE_BYTES), type=Question))
        except (OSError, msgspec.MsgspecError):  # hung up, or no worker of ours
            self.drop(caller)

    def take(self, asker: Asker, question: Question) -> None:
        if isinstance(question, Ask) and question.living:
            self._looking.append(asker)
        elif isinstance(question, Ask):
            self._ask(asker, question)
        elif isinstance(question, Watch):
            self._watching[question.rank] = asker
            if self.members.noticed is not None:  # it begins to listen after it was said
                asker.tell(msgspec.json.encode(self.members.noticed))
        elif isinstance(question, Scale):
            asker.tell(self._scale(question.workers).encode())
            self.drop(asker)

    def _ask(self, asker: Asker, ask: Ask) -> None:
        known = self.roster
        if ask.again and known is not None and ask.rank in known.ranks and ask.generation != known.generation:
            asker.tell(msgspec.json.encode(known))  # it was told already, when its connection broke
            return
        self._waiting[ask.rank] = asker
        self.members.asked(ask, self._clock())

    def has_met(self, rank: int) -> bool:
        """Whether it works with others. Who never asks works by itself, or over servers."""
        return self.roster is not None and rank in self.roster.ranks

    def gone(self, rank: int, *, died: bool = True) -> None:
        """A worker has ended. If it died, those of other machines who work with it are told: a wire that was cut says
        nothing. One that came to its end has told them itself, as far as it was in something with them."""
        self.members.gone(rank)
        if rank in self._waiting:
            self.drop(self._waiting[rank])
        if died and self.roster is not None and rank in self.roster.ranks:
            lost = msgspec.json.encode(Lost(self.roster.generation, (rank,)))
            for other, asker in self._watching.items():
                if asker.stays and other != rank:
                    asker.tell(lost)

    def answer(self, living: set[int]) -> None:
        """Tells everybody who waits, once everybody has asked; and everybody else when they should."""
        looking, self._looking = self._looking, []
        here = msgspec.json.encode(Roster(0, tuple(sorted(living - self.members.absent))))
        for asker in looking:
            self._tell(asker, here)
        notice = self.members.notice()
        for rank, asker in list(self._watching.items()) if notice is not None else ():
            if rank not in self._waiting:
                asker.tell(msgspec.json.encode(notice))
        if self.stores is not None and not self.stores.ready:
            return
        decree = self.members.decree(living)
        if decree is None:
            return
        if self.stores is not None:
            decree = self._with_store(self.stores, decree)
        self.roster, asking = decree, self.members.asking
        answered = [asker for rank, asker in self._waiting.items() if rank not in asking]
        self._waiting = {rank: asker for rank, asker in self._waiting.items() if rank in asking}
        for asker in answered:
            self._tell(asker, msgspec.json.encode(decree))

    def _tell(self, asker: Asker, answer: bytes) -> None:
        asker.tell(answer)
        if not asker.stays:
            self.drop(asker)

    def _with_store(self, stores: "GenerationStores", decree: Roster) -> Roster:
        """Nobody is in the last generation any more when there is a next: its store can go."""
        if self.roster is not None:
            stores.give_back(self.roster.store)
        return msgspec.structs.replace(decree, store=stores.take())

    def forget(self, asker: Asker) -> None:
        """Nobody is at the other end any more; who asked stays on record, as long as it lives."""
        self._waiting = {rank: other for rank, other in self._waiting.items() if other is not asker}
        self._watching = {rank: other for rank, other in self._watching.items() if other is not asker}
        self._looking = [other for other in self._looking if other is not asker]

    def drop(self, asker: Asker) -> None:
        self.forget(asker)
        if isinstance(asker, _Caller):
            self._callers.discard(asker)
        asker.hang_up()

    def close(self) -> None:
        for caller in list(self._callers):
            self.drop(caller)
        if self._listener is not None:
            self._listener.close()
