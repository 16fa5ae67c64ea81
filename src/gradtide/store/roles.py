"""The two roles of the store as processes: what `gradtide serve`, `gradtide coordinator` and local_servers run."""

import logging
import signal
import time
from collections.abc import Callable
from typing import Literal

import msgspec
import torch

from gradtide.heap import keep_freed_memory
from gradtide.store.coordinator import Coordinator
from gradtide.store.draining import DRAIN_S
from gradtide.store.host import Host
from gradtide.store.journal import Journal
from gradtide.store.membership import Policy
from gradtide.store.recovering import recovery_of
from gradtide.store.reductions import load_semiring
from gradtide.store.server import Server
from gradtide.store.updates import TorchArithmetic
from gradtide.store.uplink import Uplink
from gradtide.transport.authenticate import parse_address

__all__ = ["Role", "run_role"]


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """What a process of the store is to be."""

    role: Literal["coordinator", "server"]
    name: str
    address: str  # where it listens
    advertise: str = ""  # servers: where clients reach it, if that is not where it listens
    coordinator: str = ""  # servers: where the coordinator listens
    expected: int = 1  # servers: how many the first table waits for
    lease_s: float = 2.0
    insecure_network: bool = False
    threads: int = 1
    semirings: tuple[str, ...] = ()  # servers: reductions of one's own, by import path
    replicas: int = 0  # servers: how many copies of each shard there should be beside the primary
    journal: str = ""  # the coordinator's file; without one it can't be started again
    restore: str = ""  # the coordinator's: a checkpoint that the store begins with
    checkpoints: str = ""  # the coordinator's: where the last one is found when shards are lost
    after_loss: Policy = "empty"
    drain_s: float = DRAIN_S  # servers: how long they may take to hand over their shards when they are asked to go


def run_role(role: Role, secret: bytes = b"", tell: Callable[[str], object] = lambda address: None) -> None:
    """Runs until SIGTERM or SIGINT. `tell` hears the address once it listens.

    At SIGTERM a server hands over its shards before it goes, unless it is the second one; SIGINT ends it at once.
    """
    logging.basicConfig(format=f"{role.name}: %(message)s")
    torch.set_num_threads(role.threads)
    keep_freed_memory(256 << 20)  # blocks of 4 MiB come and go
    process = _make(role, secret)
    leave = process.drain if isinstance(process, Server) else process.stop
    signal.signal(signal.SIGTERM, lambda number, frame: leave())
    signal.signal(signal.SIGINT, lambda number, frame: process.stop())
    tell(str(process.address))
    process.run()


def _make(role: Role, secret: bytes) -> Coordinator | Server:
    address = parse_address(role.address)
    if role.role == "coordinator":
        journal = Journal(role.journal) if role.journal else None
        return Coordinator(
            address, secret, lease_s=role.lease_s, insecure_network=role.insecure_network, journal=journal,
            recovery=recovery_of(role.restore, role.checkpoints, role.after_loss),
        )  # fmt: skip
    incarnation = time.time_ns() // 1000
    arithmetic = TorchArithmetic({path: load_semiring(path) for path in role.semirings})
    host = Host(role.name, incarnation, role.address, arithmetic, expected=role.expected, replicas=role.replicas)
    uplink = Uplink(parse_address(role.coordinator), secret)
    return Server(
        host, address, uplink,
        insecure_network=role.insecure_network, advertise=role.advertise, drain_s=role.drain_s,
    )  # fmt: skip
