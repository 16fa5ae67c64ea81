"""The two roles of the store as processes: what `gradtide serve`, `gradtide coordinator` and local_servers run."""

import logging
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec
import torch

from gradtide.errors import ConfigError
from gradtide.observe.bounded_log import BoundedLog, bounded_path
from gradtide.processes.malloc import keep_freed_memory
from gradtide.store.coordinator.coordinator import Coordinator
from gradtide.store.coordinator.election.etcd_place import is_in_etcd, parse_place
from gradtide.store.coordinator.election.etcd_register import EtcdRegister
from gradtide.store.coordinator.journal import Journal
from gradtide.store.coordinator.loss_policy import Policy
from gradtide.store.coordinator.membership import WORKER_LEASE_S
from gradtide.store.coordinator.recovery import recovery_of
from gradtide.store.local.advertise import find_advertised
from gradtide.store.local.figures import serve_metrics
from gradtide.store.rules.reductions import load_semiring
from gradtide.store.rules.updates import TorchArithmetic
from gradtide.store.server.draining import DRAIN_S
from gradtide.store.server.server import Server
from gradtide.store.server.uplink import Uplink
from gradtide.store.shard.shard_set import ShardSet
from gradtide.store.wire.coordinators import parse_coordinators
from gradtide.store.wire.messages import new_token
from gradtide.transport.authenticate import Address, parse_address
from gradtide.transport.keys import Credentials, read_credentials

__all__ = ["Role", "make_process", "run_role"]


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """What a process of the store is to be."""

    role: Literal["coordinator", "server"]
    name: str
    address: str  # where it listens
    advertise: str = ""  # where others reach it, if that is not where it listens
    coordinator: str = ""  # servers: where the coordinator listens, or several with commas
    expected: int = 1  # servers: how many the first table waits for
    lease_s: float = 2.0
    worker_lease_s: float = WORKER_LEASE_S  # the coordinator's: how long a worker may hang
    secret_file: str = ""  # unless its credentials are handed to it
    threads: int = 1
    semirings: tuple[str, ...] = ()  # servers: reductions of one's own, by import path
    replicas: int = 0  # servers: how many copies of each shard there should be beside the primary
    journal: str = ""  # the coordinator's file, or etcd://; without one it can't be started again
    etcd_ca: str = ""  # the coordinator's: files in PEM for a journal at etcds://
    etcd_certificate: str = ""
    etcd_key: str = ""
    restore: str = ""  # the coordinator's: a checkpoint that the store begins with
    checkpoints: str = ""  # the coordinator's: where the last one is found when shards are lost
    after_loss: Policy = "empty"
    accept_loss: bool = False  # the coordinator's: go on with a journal that is not the last one
    roots: tuple[str, ...] | None = None  # servers: where checkpoints may be written; None: anywhere
    metrics: str = ""  # the coordinator's: where it serves /metrics, as port or host:port
    events: str = ""  # a folder where it writes down what happens here; "": nobody watches
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
    end_metrics = serve_metrics(role.metrics, str(process.address), credentials) if role.metrics else lambda: None
    tell(str(process.address))
    try:
        process.run()
    finally:
        end_metrics()


def _journal_of(role: Role, credentials: Credentials) -> Journal | EtcdRegister | None:
    if is_in_etcd(role.journal):
        place = parse_place(role.journal, role.etcd_ca, role.etcd_certificate, role.etcd_key)
        marks = tuple(key.derive("journal", place.job).hex() for key in credentials.keys if key.is_root)
        return EtcdRegister(place, marks or ("",))
    if role.etcd_ca or role.etcd_certificate or role.etcd_key:
        raise ConfigError("certificates for etcd are of no use without a journal there; give --journal etcds://...")
    if role.advertise:
        raise ConfigError("only a coordinator whose journal is in etcd tells others where it is; leave out --advertise")
    return Journal(role.journal) if role.journal else None


def make_process(role: Role, credentials: Credentials) -> Coordinator | Server:
    """What a role runs; it listens already."""
    address = parse_address(role.address)
    log = BoundedLog(bounded_path(Path(role.events), role.name)) if role.events else None
    if role.role == "coordinator":
        return Coordinator(
            address, credentials, lease_s=role.lease_s, journal=_journal_of(role, credentials),
            advertise=lambda listens: find_advertised(role.advertise, listens, Address()),
            recovery=recovery_of(role.restore, role.checkpoints, role.after_loss), accept_loss=role.accept_loss,
            worker_lease_s=role.worker_lease_s, log=log,
        )  # fmt: skip
    arithmetic = TorchArithmetic({path: load_semiring(path) for path in role.semirings})
    shard_set = ShardSet(
        role.name, 0, role.address, arithmetic, expected=role.expected, replicas=role.replicas, token=new_token()
    )
    first, *others = parse_coordinators(role.coordinator).known
    uplink = Uplink(first, credentials, *others)
    return Server(
        shard_set, address, uplink,
        advertise=lambda listens: find_advertised(role.advertise, listens, uplink.address), drain_s=role.drain_s,
        roots=role.roots, log=log,
    )  # fmt: skip
