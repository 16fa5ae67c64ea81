"""What the launcher, its fork server and the workers say to each other, over sockets that keep messages whole."""

import socket
from typing import TypeVar

import msgspec

__all__ = ["COMMANDS", "EVENTS", "Command", "Ended", "Event", "Failure", "Forward", "Ready", "Start", "receive", "send"]

_MESSAGE_BYTES = 1 << 18
T = TypeVar("T")


class Start(msgspec.Struct, frozen=True, tag=True):
    """Launcher to fork server: make a worker. Descriptors for its standard output and standard error come along."""

    rank: int
    variables: dict[str, str]


class Forward(msgspec.Struct, frozen=True, tag=True):
    """Launcher to fork server: send these workers a signal; who still lives after `grace_s` is killed."""

    number: int
    ranks: tuple[int, ...]
    grace_s: float


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Fork server to launcher: everything is loaded."""


class Ended(msgspec.Struct, frozen=True, tag=True):
    """Fork server to launcher: a worker is gone, with this exit code, or minus the signal that killed it."""

    rank: int
    status: int
    at_s: float  # on the monotonic clock, which all processes of a host share


class Failure(msgspec.Struct, frozen=True, tag=True):
    """Worker to launcher: my script raised this. The launcher makes one itself for a worker that just died."""

    rank: int
    at_s: float
    kind: str  # the exception's class; empty when there was none
    message: str
    where: str = ""  # file and line
    traceback: str = ""  # empty when it was shown already, or there is none
    fell: bool = False  # because of a peer, by the look of it
    refused: bool = False  # the script asks for what can't be, and would ask again
    exit_code: int = 1


Command = Start | Forward
Event = Ready | Ended | Failure
COMMANDS: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
EVENTS: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def send(to: socket.socket, message: Command | Event, descriptors: tuple[int, ...] = ()) -> None:
    socket.send_fds(to, [msgspec.json.encode(message)], list(descriptors))


def receive(source: socket.socket, decoder: msgspec.json.Decoder[T]) -> tuple[T, list[int]] | None:
    """The next message and its descriptors; None when the other side is gone. Raises BlockingIOError as sockets do."""
    try:
        data, descriptors, _, _ = socket.recv_fds(source, _MESSAGE_BYTES, 2)
    except ConnectionError:
        return None
    return (decoder.decode(data), descriptors) if data else None
