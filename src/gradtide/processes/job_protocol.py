"""How a worker asks its launcher who works together, in a job that outlives its workers, and how that is changed.

What is said is the same on one machine, over abstract sockets (here), and on several (transport/registrar_line.py).
"""

import contextlib
import socket

import msgspec

from gradtide.errors import CommunicationError, ConfigError
from gradtide.processes.ready import can_read

__all__ = [
    "Answer",
    "Ask",
    "Dismissed",
    "LeaseAnswer",
    "Lost",
    "Notice",
    "Question",
    "Roster",
    "Scale",
    "Watch",
    "Watcher",
    "WorkerBeat",
    "address_of",
    "ask",
    "scale",
]

_MESSAGE_BYTES = 1 << 16
_SCALE_S = 10.0


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Worker to launcher: whom do I work with? The generation it was in; 0 for one that has just started. `keeps`: it
    has what nobody else has, so it can't go before it has left that to somebody in the next generation. `again`: it
    has asked before, over a connection that broke. `busy`: it is in the middle of a batch, where nobody can join or go.
    `done`: how many batches it has behind it, and what it has finished with the others otherwise. `living`: only
    who lives, or is being started; answered at once."""

    rank: int
    generation: int
    keeps: bool = False
    again: bool = False
    busy: bool = False
    done: tuple[int, int] = (0, 0)
    living: bool = False


class Watch(msgspec.Struct, frozen=True, tag=True):
    """Worker to launcher: tell me when somebody is to come or to go. On several machines one of an earlier incarnation
    may still live somewhere: it is not listened to."""

    rank: int
    incarnation: int = 0


class Scale(msgspec.Struct, frozen=True, tag=True):
    """Anybody of this user to launcher: so many workers, please. Answered with a line of text."""

    workers: int


class WorkerBeat(msgspec.Struct, frozen=True, tag=True):
    """Worker to registrar, several times a lease: I live. Answered with the lease."""

    number: int


Question = Ask | Watch | Scale | WorkerBeat


class LeaseAnswer(msgspec.Struct, frozen=True, tag=True):
    """Registrar to worker: so long you may go on from when you sent the beat of this number."""

    number: int
    lease_s: float


class Roster(msgspec.Struct, frozen=True, tag=True):
    """Launcher to workers: these work together. Those who know where the job stands come first. `store`: the port, at
    the registrar's host, of the torch store in which they find each other; 0: all are on one machine. `busy`: one of
    them was, so all ask again before their next batch."""

    generation: int
    ranks: tuple[int, ...]
    store: int = 0
    busy: bool = False


class Lost(msgspec.Struct, frozen=True, tag=True):
    """Registrar to workers of a generation: these of them are dead. Nobody need wait for what their wires would say."""

    generation: int
    ranks: tuple[int, ...]


class Notice(msgspec.Struct, frozen=True, tag=True):
    """Launcher to workers of a generation: somebody has come, or these are to go; ask between two batches who works
    together then."""

    generation: int
    going: tuple[int, ...]


Answer = LeaseAnswer | Roster | Lost | Notice


class Dismissed(SystemExit):
    """The launcher has let this worker go: it ends, and its job goes on. Its exit code is 0."""


def address_of(job: str) -> str:
    """Where the launcher of that job listens: an abstract UNIX socket."""
    return f"gradtide-members-{job}"


def ask(address: str, question: Ask, timeout_s: float) -> Roster:
    """Waits until all who live have asked; the launcher, at that (abstract) address, then answers everybody."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as launcher:
        launcher.settimeout(timeout_s)
        try:
            launcher.connect(f"\0{address}")
            launcher.send(msgspec.json.encode(question))
            answer = launcher.recv(_MESSAGE_BYTES)
        except TimeoutError:
            late = f"the launcher has not said who goes on within {timeout_s:g} s; is a worker stuck?"
            raise CommunicationError(late) from None
        except OSError as error:
            gone = f"the launcher can't be asked who goes on ({error.strerror}); is it gone?"
            raise CommunicationError(gone) from None
    if not answer:
        raise CommunicationError("the launcher hung up instead of saying who goes on; the job is ending")
    return msgspec.json.decode(answer, type=Roster)


def scale(job: str, workers: int) -> str:
    """Asks a job for so many workers; returns what its launcher answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as launcher:
        launcher.settimeout(_SCALE_S)
        try:
            launcher.connect(f"\0{address_of(job)}")
            launcher.send(msgspec.json.encode(Scale(workers)))
            answer = launcher.recv(_MESSAGE_BYTES).decode()
        except TimeoutError:
            raise CommunicationError(f"the launcher of {job} did not answer within {_SCALE_S:g} s") from None
        except OSError:
            text = (
                f"no job {job} that can grow or shrink was started on this machine; say it where it was, and start it "
                "with --max-workers or --min-workers"
            )
            raise ConfigError(text) from None
    if not answer.startswith("ok: "):
        raise ConfigError(answer or f"the launcher of {job} hung up; the job is ending")
    return answer.removeprefix("ok: ")


class Watcher:
    """A worker's ear for what its launcher says between steps. `notice` costs one system call."""

    def __init__(self, address: str, rank: int) -> None:
        self._launcher: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._launcher.setblocking(False)
        try:
            self._launcher.connect(f"\0{address}")
            self._launcher.send(msgspec.json.encode(Watch(rank)))
        except OSError:
            self.close()

    def notice(self) -> Notice | None:
        """The latest that was said since the last time."""
        found = None
        while self._launcher is not None and can_read([self._launcher], 0):
            try:
                data = self._launcher.recv(_MESSAGE_BYTES)
            except OSError:
                data = b""
            if not data:
                self.close()  # the launcher is gone, and this process in a moment
                break
            found = msgspec.json.decode(data, type=Notice)
        return found

    def close(self) -> None:
        launcher, self._launcher = self._launcher, None
        if launcher is not None:
            with contextlib.suppress(OSError):
                launcher.close()
