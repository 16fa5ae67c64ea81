"""How a store is: asked of the coordinator and of each server by itself, so that one that hangs is seen to hang."""

import time
from contextlib import suppress
from dataclasses import dataclass

from gradtide.errors import CommunicationError, FrameError, PeerLost, PeerTimeout
from gradtide.store.coordinator.assignment import host_of
from gradtide.store.wire.coordinators import Coordinators, parse_coordinators
from gradtide.store.wire.messages import (
    Elsewhere,
    Health,
    Inspect,
    Inspected,
    Message,
    PeerState,
    Resize,
    ServerEntry,
    Table,
    decode,
    encode,
    too_few_servers,
)
from gradtide.transport.authenticate import Address
from gradtide.transport.authenticate import dial as reach
from gradtide.transport.connection import Connection, open_connection
from gradtide.transport.keys import Credentials

__all__ = [
    "Status",
    "StatusAsker",
    "ask",
    "ask_status",
    "complaints",
    "holds_nothing",
    "inspect",
    "notes",
    "servers_of",
]


_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Status:
    """What the coordinator says, and each server of its table; None for one that does not answer."""

    coordinator: Inspected
    servers: dict[str, Health | None]


def ask_status(address: str, credentials: Credentials | None = None, timeout_s: float = 2.0) -> Status:
    """Raises when even the coordinator does not answer."""
    with StatusAsker(credentials, timeout_s) as asker:
        told = asker.inspect(address)
        return Status(told, {entry.name: asker.health(entry) for entry in servers_of(told)})


def servers_of(told: Inspected) -> tuple[ServerEntry, ...]:
    """Of the table, if there is one yet."""
    return told.table.servers if told.table is not None else ()


def inspect(address: str, credentials: Credentials | None = None, timeout_s: float = 2.0) -> Inspected:
    """What the coordinator there says of its store."""
    with StatusAsker(credentials, timeout_s) as asker:
        return asker.inspect(address)


def ask(
    address: str,
    credentials: Credentials | None = None,
    question: Inspect | Resize | None = None,
    *,
    timeout_s: float = 2.0,
) -> Message:
    """One question, see StatusAsker.ask."""
    with StatusAsker(credentials, timeout_s) as asker:
        return asker.ask(address, question)


class StatusAsker:
    """Asks, and keeps its connections for the next questions. Not for several threads at once."""

    def __init__(self, credentials: Credentials | None = None, timeout_s: float = 2.0) -> None:
        """`timeout_s`: for each question."""
        self._credentials, self._timeout_s = credentials or Credentials(), timeout_s
        self._connections: dict[Address, Connection] = {}

    def __enter__(self) -> "StatusAsker":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        for where in tuple(self._connections):
            self._forget(where)

    def inspect(self, address: str) -> Inspected:
        """What the coordinator there says of its store."""
        told = self.ask(address)
        if not isinstance(told, Inspected):
            raise FrameError(f"there is no coordinator of a store at {address}; give its address")
        return told

    def health(self, server: ServerEntry) -> Health | None:
        """What a server says of itself; None if it does not answer."""
        try:
            answer = self.ask(server.address)
        except CommunicationError:
            return None
        return answer if isinstance(answer, Health) else None

    def ask(self, address: str, question: Inspect | Resize | None = None) -> Message:
        """The answer of whoever listens there; how it is, unless there is another question. Of several coordinators,
        with commas, the one that leads answers."""
        coordinators, refused = parse_coordinators(address), dict[Address, CommunicationError]()
        deadline_s = time.monotonic() + self._timeout_s * len(coordinators.known)
        while time.monotonic() < deadline_s:
            if coordinators.rests:
                time.sleep(_LOOK_S)
                continue
            where = coordinators.next
            try:
                answer = self._ask_one(
                    where, question or Inspect(), min(self._timeout_s, deadline_s - time.monotonic())
                )
            except CommunicationError as error:
                refused[where] = error
                if set(coordinators.known) <= {at for at, why in refused.items() if _is_final(why, coordinators)}:
                    raise
                coordinators.missed(where)
                time.sleep(_LOOK_S)
                continue
            if not isinstance(answer, Elsewhere):
                return answer
            coordinators.hear(answer, where)
        why = coordinators.trouble or next(map(str, refused.values()), "")
        raise PeerTimeout(f"no coordinator at {address} leads: {why}")

    def _ask_one(self, where: Address, question: Inspect | Resize, timeout_s: float) -> Message:
        deadline_s = time.monotonic() + timeout_s
        known = self._connections.get(where)
        try:
            if known is not None:
                with suppress(PeerLost):  # it was started again, perhaps
                    return _exchange(known, question, deadline_s)
                self._forget(where)
            return _exchange(self._connect(where, timeout_s), question, deadline_s)
        except CommunicationError:
            self._forget(where)  # a late answer is not one to the next question
            raise

    def _connect(self, where: Address, timeout_s: float) -> Connection:
        connection = open_connection(reach(where, self._credentials, "operator", timeout_s), str(where))
        self._connections[where] = connection
        return connection

    def _forget(self, where: Address) -> None:
        connection = self._connections.pop(where, None)
        if connection is not None:
            connection.close()


def _exchange(connection: Connection, question: Inspect | Resize, deadline_s: float) -> Message:
    heard: list[Message] = []
    connection.on_messages(lambda data: heard.append(decode(data)), lambda: None)
    connection.send(encode(question))
    while not heard:
        connection.wait(deadline_s - time.monotonic(), "how it is")
        connection.receive()
    return heard[0]


def _is_final(error: CommunicationError, coordinators: Coordinators) -> bool:
    """Whether it is of no use to ask again: of several that can't be reached one may yet come."""
    return len(coordinators.known) == 1 or not isinstance(error, PeerLost | PeerTimeout)


def holds_nothing(status: Status) -> bool:
    """Whether nobody has put anything into the store, as far as its servers say."""
    return all(health is not None and not health.size_bytes for health in status.servers.values())


def complaints(status: Status) -> list[str]:
    """What is wrong, or less safe than was asked for, worst first, one line each; nothing when all is well."""
    told, table = status.coordinator, status.coordinator.table
    silent = {peer.name: peer.silent_s for peer in told.peers if not peer.alive}
    if table is None:
        there = sum(peer.role == "server" for peer in told.peers)
        return [f"no table yet: {there} of {told.expected_servers} servers have come; start the others"]
    found = []
    for i, entry in enumerate(table.servers):
        if entry.name in silent:
            held = table.owners.count(i)
            what = f"and {held} shards have no other copy: start it again" if held else "others have taken over"
            found.append(f"{entry.name} has not been heard of for {silent[entry.name]:.1f} s, {what}")
        elif status.servers[entry.name] is None:
            found.append(f"{entry.name} at {entry.address} does not answer: is it stopped or overloaded?")
    found += told.worries
    if table.short_of_copies:
        joining = sum(bool(names) for names in table.joining)
        line = f"{table.short_of_copies} of {len(table.owners)} shards lack a replica; for {joining} one is being made"
        too_few = len(table.servers) <= table.replicas
        found.append(line + (f"; {too_few_servers(table)}" if too_few else ""))
    elif table.replicas and (together := _on_one_machine(table)):
        found.append(f"all copies of {together} shards are on one machine: start servers on others")
    known = {source.epoch: source for source in table.sources}
    lost = sum(epoch > 0 and epoch not in known for epoch in table.lost)
    if lost:
        found.append(f"{lost} shards had to begin anew: more servers died than there were replicas")
    for epoch in sorted(set(table.lost) & set(known) - {1}):
        count, source = table.lost.count(epoch), known[epoch]
        found.append(f"{count} shards went back to {source.folder}: more servers died than there were replicas")
    for health in status.servers.values():
        if health is not None:
            found += _of_server(health, table.epoch)
    return found


def _on_one_machine(table: Table) -> int:
    """How many shards die with one machine; all servers on UNIX sockets are on this one, as they are meant to be."""
    hosts = [host_of(server) for server in table.servers]
    if set(hosts) == {""}:
        return 0
    return sum(
        len({hosts[i] for i in (owner, *backups)}) == 1
        for owner, backups in zip(table.owners, table.backups, strict=True)
    )


def _of_server(health: Health, epoch: int) -> list[str]:
    found = []
    if health.epoch != epoch:
        found.append(f"{health.server} is at epoch {health.epoch}, the table at {epoch}: can it reach the coordinator?")
    if health.lapsed:
        found.append(f"{health.server} answers nobody: neither coordinator nor replicas confirm that it is primary")
    if health.held:
        behind = ", ".join(f"{name} by {lag}" for name, lag in health.lag.items() if lag)
        found.append(
            f"{health.held} answers of {health.server} wait for replicas that are behind: {behind or 'unknown'}"
        )
    return found


def notes(status: Status) -> list[str]:
    """What goes on, and is no reason to worry; one line each."""
    table, found = status.coordinator.table, []
    for i in table.leaving if table is not None else ():
        assert table is not None
        held = table.owners.count(i)
        found.append(f"{table.servers[i].name} is on its way out, and still primary of {held} shards")
    workers = {peer.worker: peer for peer in status.coordinator.peers if peer.role == "worker"}
    for round_ in (round_ for health in status.servers.values() if health is not None for round_ in health.rounds):
        late = [f"worker {w}" + _silence(workers.get(w)) for w in round_.waits_for]
        found.append(f"round {round_.round} of {round_.key} waits for {', '.join(late) or 'the next decree'}")
    return found


def _silence(peer: PeerState | None) -> str:
    return " (alive)" if peer is not None and peer.alive else " (silent)"
