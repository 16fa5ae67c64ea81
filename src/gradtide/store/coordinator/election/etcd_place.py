"""Where a job's journal is in etcd, from a user's words."""

import os
from dataclasses import dataclass

from gradtide.errors import ConfigError

__all__ = ["EtcdPlace", "is_in_etcd", "parse_place"]

_PORT = 2379
_SCHEMES = ("etcd://", "etcds://")


@dataclass(frozen=True, slots=True)
class EtcdPlace:
    """The members of etcd, and the job."""

    hosts: tuple[tuple[str, int], ...]
    job: str
    tls: bool = False
    ca: str = ""  # whom to trust, in PEM; empty: whom this machine trusts
    certificate: str = ""  # this client's own, in PEM
    certificate_key: str = ""

    def __str__(self) -> str:
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return f"{_SCHEMES[self.tls]}{hosts}/{self.job}"


def is_in_etcd(journal: str) -> bool:
    """Or is it a file?"""
    return journal.startswith(_SCHEMES)


def parse_place(text: str, ca: str = "", certificate: str = "", certificate_key: str = "") -> EtcdPlace:
    """`etcd://h1:2379,h2:2379,h3:2379/job`, or `etcds://` for TLS."""
    tls = text.startswith(_SCHEMES[1])
    hosts, _, job = text.removeprefix(_SCHEMES[tls]).partition("/")
    members = tuple(_member(text, part.strip()) for part in hosts.split(","))
    if not job or "/" in job or job != job.strip():
        raise ConfigError(f"--journal {text} names no job; write etcd://host:2379/job, with a name of its own a job")
    if not tls and (ca or certificate or certificate_key):
        raise ConfigError(f"--journal {text} is not encrypted, so certificates are of no use; write etcds://")
    if bool(certificate) != bool(certificate_key):
        raise ConfigError("a client certificate for etcd and its key go together; give --etcd-cert and --etcd-key")
    for path in filter(None, (ca, certificate, certificate_key)):
        if not os.access(path, os.R_OK):
            raise ConfigError(f"{path}, which is for etcd, can't be read; give a file in PEM")
    return EtcdPlace(members, job, tls, ca, certificate, certificate_key)


def _member(text: str, part: str) -> tuple[str, int]:
    host, colon, port = part.rpartition(":") if not part.endswith("]") else (part, "", "")
    if not colon:
        host, port = part, str(_PORT)
    if not host.strip("[]") or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"--journal {text}: {part!r} is no member of etcd; write etcd://h1:2379,h2:2379,h3:2379/job")
    return host.strip("[]"), int(port)
