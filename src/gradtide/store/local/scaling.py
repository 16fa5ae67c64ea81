"""`gradtide scale` and `servers.scale(n)`: more or fewer servers for a store that is at work.

Too many: the coordinator lets some go, and their shards move to the others first. Too few: where the store was started
by `local_servers` its fork server makes more (it listens beside the coordinator's socket); elsewhere somebody must
start them. Either way shards move in the background, and this waits until everything is where it is to stay.
"""

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from gradtide.errors import CommunicationError, ConfigError, FrameError, PeerTimeout, StoreError
from gradtide.store.coordinator.shard_moves import is_settled
from gradtide.store.local.status import ask, inspect
from gradtide.store.wire.coordinators import parse_coordinators
from gradtide.store.wire.messages import Resize, Resized, Table
from gradtide.transport.keys import Credentials

__all__ = ["SCALE_S", "STARTER", "More", "Scaled", "scale"]

STARTER = "starter"  # the name of a fork server's socket, in the folder of its store
SCALE_S = 300.0
_LOOK_S = 0.05
_ASK_AGAIN_S = 1.0
_START_S = 60.0
_BEGIN_S = 10.0


class More(msgspec.Struct, frozen=True):
    """What a fork server is asked for: so many servers, with other names than these. It answers with their names."""

    count: int
    taken: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scaled:
    """What was done."""

    servers: tuple[str, ...]
    started: tuple[str, ...]
    dismissed: tuple[str, ...]
    seconds: float


def scale(
    address: str,
    servers: int,
    credentials: Credentials | None = None,
    *,
    timeout_s: float = SCALE_S,
    tell: Callable[[str], None] = lambda text: None,
) -> Scaled:
    """Returns when so many servers share what the store holds."""
    begun_s = time.monotonic()
    before = _wait_for_the_first_table(address, credentials)
    answer = _resize(address, credentials, servers)
    started = _start_missing(address, before, servers - len(answer.staying))
    asked_s = time.monotonic()
    while not _is_settled(address, credentials, servers, tell):
        now_s = time.monotonic()
        if now_s > begun_s + timeout_s:
            raise PeerTimeout(
                f"the store has not become one of {servers} servers within {timeout_s:g} s; it goes on trying, and "
                f"gradtide status {address} says what it waits for"
            )
        if now_s > asked_s + _ASK_AGAIN_S:  # who was started again meanwhile has not been asked to go
            asked_s = now_s
            _resize(address, credentials, servers)
        time.sleep(_LOOK_S)
    now = _listed(address, credentials)
    return Scaled(now, started, tuple(name for name in before if name not in now), time.monotonic() - begun_s)


def _listed(address: str, credentials: Credentials | None) -> tuple[str, ...]:
    table = inspect(address, credentials).table
    return tuple(server.name for server in table.servers) if table is not None else ()


def _wait_for_the_first_table(address: str, credentials: Credentials | None) -> tuple[str, ...]:
    deadline_s = time.monotonic() + _BEGIN_S
    while not (listed := _listed(address, credentials)) and time.monotonic() < deadline_s:
        time.sleep(_LOOK_S)
    return listed


def _resize(address: str, credentials: Credentials | None, servers: int) -> Resized:
    answer = ask(address, credentials, Resize(servers))
    if not isinstance(answer, Resized):
        raise FrameError(f"there is no coordinator of a store at {address}; give its address")
    if answer.text:
        raise ConfigError(answer.text)
    return answer


def _is_settled(address: str, credentials: Credentials | None, servers: int, tell: Callable[[str], None]) -> bool:
    try:
        told = inspect(address, credentials)
    except CommunicationError:
        tell("the coordinator does not answer")  # it may be on its way back
        return False
    table, living = told.table, frozenset(peer.name for peer in told.peers if peer.alive)
    if table is None:
        return False
    tell(_progress(table, servers))
    return len(table.servers) == servers and is_settled(table, living)


def _progress(table: Table, servers: int) -> str:
    moving = sum(bool(names) for names in table.joining)
    leaving = ", ".join(table.servers[i].name for i in table.leaving)
    return (
        f"{len(table.servers) - len(table.leaving)} of {servers} servers, {moving} shards on their way"
        + (f"; {leaving} will go" if leaving else "")
    )  # fmt: skip


# --- more servers ---


def _start_missing(address: str, there: tuple[str, ...], count: int) -> tuple[str, ...]:
    if count <= 0:
        return ()
    folder = os.path.dirname(parse_coordinators(address).known[0].path)
    try:
        return _ask_starter(f"{folder}/{STARTER}", More(count, there))
    except (FileNotFoundError, ConnectionRefusedError):
        name = next(f"server-{i}" for i in range(len(there) + 1) if f"server-{i}" not in there)
        raise ConfigError(
            f"nobody here can start servers of the store at {address}; start {count} more by hand, as in: "
            f"gradtide serve tcp:HOST:0 --coordinator {address} --name {name}"
        ) from None


def _ask_starter(path: str, wish: More) -> tuple[str, ...]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as starter:
        starter.settimeout(_START_S)
        starter.connect(path)
        try:
            starter.send(msgspec.json.encode(wish))
            answer = starter.recv(1 << 16)
        except TimeoutError:
            raise PeerTimeout(f"the process that makes servers did not answer within {_START_S:g} s") from None
        except OSError as error:
            raise CommunicationError(f"the process that makes servers is gone: {error.strerror}") from None
    try:
        return msgspec.json.decode(answer, type=tuple[str, ...])
    except msgspec.MsgspecError:
        raise StoreError("the process that makes servers is gone, or is none; start the store again") from None
