"""What a head and its agents say to each other between machines: launch/messages.py's words, and a few more.

Clocks of machines differ, so what has a time goes as how long ago it was.
"""

import time
from typing import Any

import msgspec

from gradtide.launch.messages import Ended, Failure, Forward, Ready, Start

__all__ = [
    "FROM_AGENT",
    "FROM_HEAD",
    "Greeting",
    "HoldOutput",
    "LeaveJob",
    "NodeJoin",
    "NotInJob",
    "RoleEnded",
    "StartRole",
    "Wrote",
    "aged",
    "encode",
    "here",
]


class NodeJoin(msgspec.Struct, frozen=True, tag=True):
    """Agent to head: this node can take so many workers (0: as many as the head likes)."""

    node: str
    slots: int
    cores: int
    gradtide: str  # versions, which have to be the head's
    python: str
    torch: str


class Greeting(msgspec.Struct, frozen=True, tag=True):
    """Head to agent: be ready to start these workers. `together`: standard output and error go to the same place."""

    target: tuple[str, ...]
    preload: str
    threads: int  # of each worker; 0: an even share of the node's cores
    workers: int  # that this node will have, about
    together: bool
    lease_s: float


class NotInJob(msgspec.Struct, frozen=True, tag=True):
    """Head to agent: you can't be in this job."""

    why: str


class LeaveJob(msgspec.Struct, frozen=True, tag=True):
    """Head to agent: the job is over here; end what is left."""


class StartRole(msgspec.Struct, frozen=True, tag=True):
    """Head to agent: run `python -m gradtide ARGUMENTS` (a server, a coordinator), which dies with you."""

    name: str
    arguments: tuple[str, ...]


class RoleEnded(msgspec.Struct, frozen=True, tag=True):
    """Agent to head: that process is gone, with this exit code, or minus the signal that killed it."""

    name: str
    status: int


class Wrote(msgspec.Struct, frozen=True, tag=True):
    """Agent to head: a worker, or a role by its name, has written this to its standard output (1) or error (2)."""

    who: int | str
    to: int
    data: bytes


class HoldOutput(msgspec.Struct, frozen=True, tag=True):
    """Head to agent: what workers write is not read for now, or is read again. They wait once their pipes are full."""

    held: bool


FromHead = Greeting | NotInJob | LeaveJob | Start | Forward | StartRole | HoldOutput
FromAgent = NodeJoin | Ready | Ended | Failure | Wrote | RoleEnded
FROM_HEAD: msgspec.msgpack.Decoder[FromHead] = msgspec.msgpack.Decoder(FromHead)
FROM_AGENT: msgspec.msgpack.Decoder[FromAgent] = msgspec.msgpack.Decoder(FromAgent)


def encode(message: Any) -> bytes:
    return msgspec.msgpack.encode(message)


def aged(event: Ended | Failure) -> Ended | Failure:
    """Before it leaves this machine: how long ago it was, instead of when."""
    return msgspec.structs.replace(event, at_s=time.monotonic() - event.at_s)


def here(event: Ended | Failure) -> Ended | Failure:
    """What came from another machine: when it was, on our clock."""
    return msgspec.structs.replace(event, at_s=time.monotonic() - event.at_s)
