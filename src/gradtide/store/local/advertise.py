"""Where a server is reached, and what it is called, if its operator does not say."""

import hashlib
import os
import socket
from dataclasses import replace

from gradtide.errors import ConfigError
from gradtide.transport.authenticate import Address, parse_address

__all__ = ["default_name", "find_advertised"]

_EVERYWHERE = ("0.0.0.0", "::", "*")
_MACHINE = 24  # characters; a name has 64 bytes


def find_advertised(advertise: str, listens: Address, coordinator: Address) -> Address:
    """The address that clients and other servers are told; refused if nobody could reach it there."""
    if advertise:
        told = parse_address(advertise)
        if told.host in _EVERYWHERE:
            raise ConfigError(f"--advertise {advertise} is no address that others can reach; name this machine")
        if told.host:
            _check_that_it_resolves(told)
        return replace(told, port=told.port or listens.port, tls=told.tls or listens.tls) if told.host else told
    if listens.host not in _EVERYWHERE:
        return listens
    if not coordinator.host:
        raise ConfigError(f"{listens} is all addresses of this machine; say by which one it is reached: --advertise")
    return replace(listens, host=_own_address_towards(coordinator))


def default_name(address: Address) -> str:
    """The machine and where on it, which stay the same when a server is started again."""
    machine = socket.gethostname()[:_MACHINE]
    if address.path:
        digest = hashlib.blake2b(address.path.encode(), digest_size=4).hexdigest()
        return f"{machine}:{os.path.basename(address.path)[:_MACHINE]}-{digest}"
    host = machine if address.host in _EVERYWHERE else address.host[:_MACHINE]
    return f"{host}:{address.port}" if address.port else f"{host}-{os.getpid()}"


def _check_that_it_resolves(address: Address) -> None:
    try:
        socket.getaddrinfo(address.host, address.port or None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"{address.host} can't be resolved ({error.strerror}); advertise another name") from None


def _own_address_towards(peer: Address) -> str:
    """By which address of this machine a packet to a peer leaves; none is sent."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(peer.host, peer.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as asked:
            asked.connect(where)
            return str(asked.getsockname()[0])
    except OSError as error:
        raise ConfigError(
            f"the coordinator at {peer} can't be reached from here ({error.strerror}); say where this server is "
            "reached: --advertise"
        ) from None
