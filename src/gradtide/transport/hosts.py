"""How ranks find each other through a launcher's store, and which are on the same host: those whose abstract UNIX
sockets connect.

A store may outlive the processes that use it: torchrun's agent keeps one while it starts workers again, so it holds
what earlier ones have said. Nor do restart counts tell them apart: agents count their own failures only. So every rank
calls itself by a name that was never used, and rank 0 answers each name with the token of the group that begins now.
"""

import contextlib
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from gradtide.environment import Launch
from gradtide.errors import PeerTimeout
from gradtide.transport.rendezvous import NOTICE_S

__all__ = [
    "Hosts",
    "LookingStore",
    "agree_on_token",
    "delete_keys",
    "find_hosts",
    "keys_to_find",
    "local_address",
    "open_store",
    "read_key",
    "store_at",
]


_PAUSES_S = (0.0005, 0.02)  # first and longest, between two looks at who has come
_TCP_STORE: Any = vars(dist)["TCPStore"]  # torch does not declare it
# Of this process's jobs, kept while it lives: when rank 0 leaves a group, others may just be joining the next one.
_stores: dict[tuple[Launch, int], Any] = {}


@dataclass(frozen=True, slots=True)
class Hosts:
    """Who is where. A host's leader is its lowest rank."""

    token: str  # of the job
    leaders: tuple[int, ...]  # of each rank, the leader of its host

    def together_with(self, rank: int) -> list[int]:
        return [other for other, leader in enumerate(self.leaders) if leader == self.leaders[rank]]

    def all_leaders(self) -> list[int]:
        return sorted(set(self.leaders))

    def rail_of(self, rank: int) -> list[int]:
        """The ranks of the other hosts that are there what this one is here: first, second and so on. None if not every
        host has that many."""
        here, others = (
            self.together_with(rank),
            [leader for leader in self.all_leaders() if leader != self.leaders[rank]],
        )
        found = [self.together_with(leader)[here.index(rank) :][:1] for leader in others]
        return [other for ranks in found for other in ranks] if all(found) else []


def open_store(launch: Launch, timeout_s: float) -> Any:
    """The key-value store that a launcher's MASTER_ADDR and MASTER_PORT name; rank 0 holds it unless an agent does."""
    try:
        store = _store_of_job(launch, timeout_s)
        store.set_timeout(timedelta(seconds=timeout_s))
        return store
    except RuntimeError as error:  # torch's own errors are this one's children
        where = f"{launch.master_addr}:{launch.master_port}"
        raise PeerTimeout(
            f"rank {launch.rank} can't meet the others at {where} ({str(error).splitlines()[0][:120]}); "
            "check MASTER_ADDR and MASTER_PORT, and that rank 0 runs"
        ) from None


def store_at(host: str, port: int, timeout_s: float) -> Any:
    """Torch's store that somebody else holds there."""
    try:
        return _TCP_STORE(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))
    except RuntimeError as error:  # torch's own errors are this one's children
        why = str(error).splitlines()[0][:120]
        raise PeerTimeout(f"the store of this group at {host}:{port} can't be reached ({why})") from None


class LookingStore:
    """A store of torch's for who must not wait in it for somebody that is dead: `look`, called now and then while this
    rank waits, raises then."""

    def __init__(self, store: Any, look: Callable[[], None]) -> None:
        self.store, self.look = store, look

    def set(self, key: str, value: str) -> None:
        self.store.set(key, value)

    def get(self, key: str) -> bytes:
        return bytes(self.store.get(key))

    def check(self, keys: list[str]) -> bool:
        self.look()
        return bool(self.store.check(keys))

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        deadline_s, pause_s = time.monotonic() + timeout.total_seconds(), _PAUSES_S[0]
        while not self.check(keys):
            if time.monotonic() >= deadline_s:
                raise RuntimeError("nobody has said it")  # as torch's own do
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSES_S[1])

    def delete_key(self, key: str) -> bool:
        return bool(self.store.delete_key(key))


def _store_of_job(launch: Launch, timeout_s: float) -> Any:
    key = launch, os.getpid()
    if key not in _stores:
        _stores[key] = _TCP_STORE(
            launch.master_addr,
            launch.master_port,
            launch.size,
            is_master=launch.rank == 0 and not launch.agent_store,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
            multi_tenant=True,  # torch.distributed may hold one at the same address, in the same process
        )
    return _stores[key]


def agree_on_token(store: Any, rank: int, size: int, timeout_s: float) -> str:
    """A name for the group that these ranks begin now, which no other has or had, whatever is in the store.

    Who leaves here, and then hears of rank 0 under that name, knows that rank 0 has left too: groups that are joined
    one after the other are not mixed up.
    """
    if rank == 0:
        return _welcome_all(store, size, time.monotonic() + timeout_s, timeout_s)
    mine = secrets.token_hex(8)
    store.set(f"hello/{rank}", mine)
    token = read_key(store, f"welcome/{mine}", 0, timeout_s)
    store.set(f"{token}/ready/{rank}", "yes")
    return token


def _welcome_all(store: Any, size: int, deadline: float, timeout_s: float) -> str:
    """Rank 0: gives everybody who says hello the token, until all have it. Some hellos are of ranks long gone. Nobody
    says hello again before rank 0 has gone on, so what was said here can go."""
    token, pause_s = secrets.token_hex(8), _PAUSES_S[0]
    missing, welcomed = list(range(1, size)), set[str]()
    while missing := [rank for rank in missing if not store.check([f"{token}/ready/{rank}"])]:
        for rank in missing:
            name = read_key(store, f"hello/{rank}", rank, max(0.001, deadline - time.monotonic()))
            if name not in welcomed:
                store.set(f"welcome/{name}", token)
                welcomed.add(name)
        if time.monotonic() >= deadline:
            raise PeerTimeout(_missing(missing[0], timeout_s))
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _PAUSES_S[1])
    delete_keys(store, [f"welcome/{name}" for name in welcomed])
    for rank in range(1, size):
        delete_keys(store, [f"hello/{rank}", f"{token}/ready/{rank}"])
    return token


def delete_keys(store: Any, keys: Iterable[str]) -> None:
    """What everybody has read, so that groups that come and go leave nothing in the store."""
    with contextlib.suppress(RuntimeError):  # not every kind of store can
        for key in keys:
            store.delete_key(key)


def find_hosts(store: Any, token: str, rank: int, size: int, timeout_s: float) -> Hosts:
    """Every rank listens, then connects to the ranks below it: the first that answers leads its host."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(_address(token, rank))
        listener.listen(size + 8)
        store.set(f"listening/{rank}", "yes")
        leader = next((other for other in range(rank) if _answers(store, token, other, timeout_s)), rank)
        store.set(f"leader/{rank}", str(leader))
        leaders = [int(read_key(store, f"leader/{other}", other, timeout_s)) for other in range(size)]
    return Hosts(token, tuple(leaders))


def keys_to_find(rank: int) -> list[str]:
    """What this rank has said in find_hosts."""
    return [f"listening/{rank}", f"leader/{rank}"]


def local_address(master_addr: str, master_port: int) -> str:
    """The address of ours that the master's host would see. Sends nothing."""
    family, _, _, _, target = socket.getaddrinfo(master_addr, master_port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def _address(token: str, rank: int) -> str:
    return f"\0gradtide-{os.getuid()}-{token}-{rank}"


def _answers(store: Any, token: str, rank: int, timeout_s: float) -> bool:
    read_key(store, f"listening/{rank}", rank, timeout_s)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        return probe.connect_ex(_address(token, rank)) == 0


def read_key(store: Any, key: str, rank: int, timeout_s: float) -> str:
    try:
        with contextlib.suppress(RuntimeError):
            store.wait([key], timedelta(seconds=min(NOTICE_S, timeout_s)))
            return bytes(store.get(key)).decode()
        if timeout_s > NOTICE_S:
            print(f"gradtide: has waited {NOTICE_S:g} s for rank {rank} to join the job", file=sys.stderr, flush=True)
            store.wait([key], timedelta(seconds=timeout_s - NOTICE_S))
        return bytes(store.get(key)).decode()
    except RuntimeError:
        raise PeerTimeout(_missing(rank, timeout_s)) from None


def _missing(rank: int, timeout_s: float) -> str:
    return f"rank {rank} did not join the job within {timeout_s:g} s; is it started?"
