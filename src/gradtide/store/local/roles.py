"""The two roles of the store as processes: what `gradtide serve`, `gradtide coordinator` and local_servers run."""

import logging
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import msgspec
import torch

from gradtide.processes.malloc import keep_freed_memory
from gradtide.store.coordinator.coordinator import Coordinator
from gradtide.store.coordinator.journal import Journal
from gradtide.store.coordinator.loss_policy import Policy
from gradtide.store.coordinator.membership import WORKER_LEASE_S
from gradtide.store.coordinator.recovery import recovery_of
from gradtide.store.local.advertise import find_advertised
from gradtide.store.rules.reductions import load_semiring
from gradtide.store.rules.updates import TorchArithmetic
from gradtide.store.server.draining import DRAIN_S
from gradtide.store.server.server import Server
from gradtide.store.server.uplink import Uplink
from gradtide.store.shard.shard_set import ShardSet
from gradtide.store.wire.messages import new_token
from gradtide.transport.authenticate import parse_address
from gradtide.transport.keys import Credentials, read_credentials

__all__ = ["Role", "make_process", "run_role"]


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """What a process of the store is to be."""

    role: Literal["coordinator", "server"]
    name: str
    address: str  # where it listens
    advertise: str = ""  # servers: where clients reach it, if that is not where it listens
    coordinator: str = ""  # servers: where the coordinator listens
    expected: int = 1  # servers: how many the first table waits for
    lease_s: float = 2.0
    worker_lease_s: float = WORKER_LEASE_S  # the coordinator's: how long a worker may hang
    secret_file: str = ""  # unless its credentials are handed to it
    threads: int = 1
    semirings: tuple[str, ...] = ()  # servers: reductions of one's own, by import path
    replicas: int = 0  # servers: how many copies of each shard there should be beside the primary
    journal: str = ""  # the coordinator's file; without one it can't be started again
    restore: str = ""  # the coordinator's: a checkpoint that the store begins with
    checkpoints: str = ""  # the coordinator's: where the last one is found when shards are lost
    after_loss: Policy = "empty"
    accept_loss: bool = False  # the coordinator's: go on with a journal that is not the last one
    roots: tuple[str, ...] | None = None  # servers: where checkpoints may be written; None: anywhere
    drain_s: float = DRAIN_S  # servers: how long they may take to hand over their shards when they are asked to go


def run_role(
    role: Role, credentials: Credentials | None = None, tell: Callable[[str], object] = lambda address: None
) -> None:
    """Runs until SIGTERM or SIGINT. `tell` hears the address once it listens.

    At SIGTERM a server hands over its shards before it goes, unless it is the second one; SIGINT ends it at once.
    """
    logging.basicConfig(format=f"{role.name}: %(message)s")
    torch.set_num_threads(role.threads)
    keep_freed_memory(256 << 20)  # blocks of 4 MiB come and go
    if credentials is None:
        credentials = read_credentials(role.secret_file) if role.secret_file else Credentials()
    process = make_process(role, replace(credentials, name=role.name))
    leave = process.drain if isinstance(process, Server) else process.stop
    signal.signal(signal.SIGTERM, lambda number, frame: leave())
    signal.signal(signal.SIGINT, lambda number, frame: process.stop())
    tell(str(process.address))
    process.run()


def make_process(role: Role, credentials: Credentials) -> Coordinator | Server:
    """What a role runs; it listens already."""
    address = parse_address(role.address)
    if role.role == "coordinator":
        journal = Journal(role.journal) if role.journal else None
        return Coordinator(
            address, credentials, lease_s=role.lease_s, journal=journal,
            recovery=recovery_of(role.restore, role.checkpoints, role.after_loss), accept_loss=role.accept_loss,
            worker_lease_s=role.worker_lease_s,
        )  # fmt: skip
    arithmetic = TorchArithmetic({path: load_semiring(path) for path in role.semirings})
    shard_set = ShardSet(
        role.name, 0, role.address, arithmetic, expected=role.expected, replicas=role.replicas, token=new_token()
    )
    uplink = Uplink(parse_address(role.coordinator), credentials)
    return Server(
        shard_set, address, uplink,
        advertise=lambda listens: find_advertised(role.advertise, listens, uplink.address), drain_s=role.drain_s,
        roots=role.roots,
    )  # fmt: skip
