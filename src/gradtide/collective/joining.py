"""How a group comes to be: on one host by name, or from a launcher's environment on as many hosts as there are."""

import socket
from collections.abc import Callable
from itertools import count
from typing import Any

import torch.distributed as dist

from gradtide.collective.board import Board, Layout
from gradtide.collective.gloo import open_gloo
from gradtide.collective.many_hosts import ManyHosts
from gradtide.collective.one_host import OneHost
from gradtide.collective.runner import Runner
from gradtide.collective.torch_wire import WatchedWire
from gradtide.collective.watch import Watch
from gradtide.environment import Launch
from gradtide.errors import ConfigError
from gradtide.transport.hosts import find_hosts, local_address, open_store
from gradtide.transport.lifelines import join_lifelines
from gradtide.transport.rendezvous import Place, join_host

__all__ = ["address_seen", "join_beside", "join_job", "join_one_host", "join_store"]

_joined = count(1)  # of this process's groups: ranks join them in the same order


def join_one_host(name: str, rank: int, size: int, timeout_s: float) -> tuple[OneHost, Runner]:
    _check(rank, size)
    host = _meet(Place(name, rank, size), range(size), timeout_s)
    return host, Runner(host, rank, range(size), size, None)


def join_job(launch: Launch, timeout_s: float) -> tuple[OneHost | ManyHosts, Runner, list[int]]:
    """The backend, the runner, and each rank's host by number."""
    rank, size = launch.rank, launch.size
    _check(rank, size)
    if launch.job:  # all ranks are here: no need for torch's store to find out, which takes a quarter of a second
        host, runner = join_one_host(f"{launch.job}-{next(_joined)}", rank, size, timeout_s)
        return host, runner, [0] * size
    store = _prefix("gradtide", open_store(launch, timeout_s))
    store = _prefix(f"group{_number_of_group(store, rank)}", store)
    return join_store(store, rank, size, timeout_s, lambda: local_address(launch.master_addr, launch.master_port))


def join_store(
    store: Any, rank: int, size: int, timeout_s: float, address: Callable[[], str | None]
) -> tuple[OneHost | ManyHosts, Runner, list[int]]:
    """The same, for ranks that share a store of torch's for this group alone.

    address: where ranks of other hosts find this one, if there are any; None: by this host's name.
    """
    hosts = find_hosts(store, rank, size, timeout_s)
    here, leaders = hosts.together_with(rank), hosts.all_leaders()
    host_of = [leaders.index(leader) for leader in hosts.leaders]
    place = Place(f"{hosts.token}-host{host_of[rank]}", here.index(rank), len(here))
    host = _meet(place, here, timeout_s)
    if len(leaders) == 1:
        return host, Runner(host, rank, here, size, None), host_of
    found = address() or socket.gethostbyname(socket.gethostname())
    gloo = open_gloo(store, rank, size, found, timeout_s)
    lines = join_lifelines(store, rank, size, found, timeout_s)
    watch = host.board.watch = Watch(rank, lines, gloo.interrupt)
    runner = Runner(host, rank, here, size, lambda timeout_s: WatchedWire(gloo, watch, timeout_s))
    return ManyHosts(host, hosts, rank, gloo, watch), runner, host_of


def join_beside(process_group: Any, timeout_s: float) -> tuple[OneHost | ManyHosts, Runner, list[int]]:
    """The same, for the ranks of a process group of torch's, through its store."""
    store = _prefix("gradtide beside", dist.distributed_c10d._get_process_group_store(process_group))
    rank, size = process_group.rank(), process_group.size()
    store = _prefix(f"group{_number_of_group(store, rank)}", store)
    return join_store(store, rank, size, timeout_s, lambda: address_seen(store))


def address_seen(store: Any) -> str | None:
    """The address of this host that the store's host sees; None if the store is not reached over a network."""
    while isinstance(store, vars(dist)["PrefixStore"]):
        store = store.underlying_store
    return local_address(store.host, store.port) if isinstance(store, vars(dist)["TCPStore"]) else None


def _meet(place: Place, names: Any, timeout_s: float) -> OneHost:
    peers, mapping = join_host(place, Layout(place.size).total_bytes, timeout_s)
    return OneHost(Board(place.rank, list(names), peers, mapping))


def _number_of_group(store: Any, rank: int) -> int:
    """How many groups this rank joined in this job before: ranks join them in the same order."""
    return int(store.add(f"joined/{rank}", 1))


def _prefix(name: str, store: Any) -> Any:
    return vars(dist)["PrefixStore"](name, store)  # torch does not declare it


def _check(rank: int, size: int) -> None:
    if size < 1 or not 0 <= rank < size:
        raise ConfigError(f"rank {rank} of {size} makes no sense; ranks go from 0 to size - 1")
