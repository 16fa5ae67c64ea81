"""How a group comes to be: on one host by name, or from a launcher's environment on as many hosts as there are."""

import functools
import socket
import sys
import weakref
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import torch.distributed as dist

from gradtide.calling import check_whole
from gradtide.collective.executors.runner import Runner
from gradtide.collective.groups.many_hosts import Between, ManyHosts
from gradtide.collective.host.board import Board, BoardLayout
from gradtide.collective.host.one_host import OneHost
from gradtide.collective.host.rank_watch import RankWatch
from gradtide.collective.links.connecting import (
    FLOWS,
    agree_on_flows,
    congestion_for,
    connect_far,
    connect_flows,
    connect_later,
)
from gradtide.collective.links.links import HostLinks, shut
from gradtide.collective.links.rank_links import RankLinks
from gradtide.collective.links.transfers import LinkSet
from gradtide.collective.links.wire import ScheduleLinks
from gradtide.environment import Launch, read_environment
from gradtide.errors import ConfigError
from gradtide.transport.hosts import (
    LookingStore,
    agree_on_token,
    delete_keys,
    find_hosts,
    keys_to_find,
    local_address,
    open_store,
)
from gradtide.transport.lifelines import LinkEnd, job_credentials, join_lifelines, keys_of
from gradtide.transport.rendezvous import Seat, join_host

__all__ = [
    "address_seen",
    "join_beside",
    "join_job",
    "join_one_host",
    "join_store",
    "store_beside",
    "store_of_job",
]

_MESSAGES = "message"
_joined = count(1)  # of this process's groups: ranks join them in the same order


def join_one_host(
    name: str, rank: int, size: int, timeout_s: float, called: Sequence[int] | None = None
) -> tuple[OneHost, Runner]:
    """called: the number by which each rank is named when it is late or lost, where that is not its rank here."""
    _check(rank, size)
    host = _meet(Seat(name, rank, size), range(size) if called is None else called, timeout_s)
    return host, Runner(host, rank, [0] * size)


def join_job(launch: Launch, timeout_s: float) -> tuple[OneHost | ManyHosts, Runner, list[int]]:
    """The backend, the runner, and each rank's host by number."""
    rank, size = launch.rank, launch.size
    _check(rank, size)
    if launch.job and not launch.several_hosts:  # no need for torch's store to find out: that takes 0.25 s
        host, runner = join_one_host(f"{launch.job}-{next(_joined)}", rank, size, timeout_s)
        return host, runner, [0] * size
    store, address = store_of_job(launch, timeout_s)
    return join_store(store, rank, size, timeout_s, address)


def store_of_job(launch: Launch, timeout_s: float) -> tuple[Any, Callable[[], str | None]]:
    """Torch's store of a launcher's job, and the address at which its host sees this one."""
    store = _prefix("gradtide", open_store(launch, timeout_s))
    return store, lambda: local_address(launch.master_addr, launch.master_port)


def join_store(
    store: Any, rank: int, size: int, timeout_s: float, address: Callable[[], str | None]
) -> tuple[OneHost | ManyHosts, Runner, list[int]]:
    """The same, for ranks that share a store of torch's, which may hold what earlier groups have said.

    address: where ranks of other hosts find this one, if there are any; None: by this host's name.
    """
    token = agree_on_token(store, rank, size, timeout_s)
    store = _prefix(token, store)
    hosts = find_hosts(store, token, rank, size, timeout_s)
    here, leaders = hosts.together_with(rank), hosts.all_leaders()
    host_of = [leaders.index(leader) for leader in hosts.leaders]
    place = Seat(f"{hosts.token}-host{host_of[rank]}", here.index(rank), len(here))
    look = store.look if isinstance(store, LookingStore) else None
    host = _meet(place, here, timeout_s, look)
    if len(leaders) == 1:
        delete_keys(store, keys_to_find(rank))  # all have met, and so have read them
        return host, Runner(host, rank, host_of), host_of
    lines: dict[int, socket.socket] = {}
    messages: dict[int, socket.socket] = {}
    flows: list[dict[int, socket.socket]] = []
    elsewhere = [other for other in range(size) if other not in here]
    try:
        found = address() or socket.gethostbyname(socket.gethostname())
        credentials = job_credentials(store, rank, timeout_s)
        wanted = agree_on_flows(store, rank, read_environment().flows, timeout_s)
        lines = join_lifelines(store, rank, size, found, timeout_s, credentials, look)
        end = LinkEnd(rank, found, credentials, congestion_for(lines[other] for other in elsewhere))
        messages = connect_far(store, end, _MESSAGES, elsewhere, timeout_s, look)
        purposes = connect_flows(wanted, lambda link: connect_far(store, end, link, elsewhere, timeout_s, look), flows)
    except BaseException:
        for sockets in (lines, messages, *flows):
            for line in sockets.values():
                line.close()
        host.in_good_order = False
        host.close()
        raise
    # Who had to read them has come this far: it has a lifeline and, on another host, links to this rank.
    delete_keys(store, [*keys_to_find(rank), *keys_of(rank, [_MESSAGES, *purposes])])
    if rank == 0:
        delete_keys(store, [FLOWS])
        _say_whether_in_clear(read_environment().encrypt)

    link_sets = LinkSet(messages), LinkSet({})  # of messages, and of schedules

    def interrupt() -> None:
        for sockets in flows:
            shut(sockets.values())
        for links in link_sets:
            links.shut()

    watch = host.board.watch = RankWatch(rank, lines, interrupt)
    links = HostLinks(hosts.rail_of(rank), flows, watch)

    def gather(line: str) -> list[str]:
        backend = found_again()
        assert backend is not None
        return backend.gather_lines(line)

    connect = connect_later(end, gather)
    backend = ManyHosts(host, hosts, rank, Between(links, RankLinks(link_sets[0], watch), link_sets, watch, connect))
    found_again = weakref.ref(backend)  # which has `connect`: its memory is free as soon as nobody uses the group
    return backend, Runner(host, rank, host_of, ScheduleLinks(rank, link_sets[1], connect, watch)), host_of


@functools.cache
def _say_whether_in_clear(encrypts: bool) -> None:
    """Once a process."""
    how = (
        "encrypted (TLS 1.3)"
        if encrypts
        else "unencrypted; keep them on a network of your own, or set GRADTIDE_ENCRYPT"
    )
    print(f"gradtide: tensors between hosts go {how}", file=sys.stderr, flush=True)


def join_beside(process_group: Any, timeout_s: float) -> tuple[OneHost | ManyHosts, Runner, list[int]]:
    """The same, for the ranks of a process group of torch's, through its store."""
    store = store_beside(process_group)
    rank, size = process_group.rank(), process_group.size()
    return join_store(store, rank, size, timeout_s, lambda: address_seen(store))


def store_beside(process_group: Any) -> Any:
    """A store of torch's process group's, for groups beside it."""
    return _prefix("gradtide beside", dist.distributed_c10d._get_process_group_store(process_group))


def address_seen(store: Any) -> str | None:
    """The address of this host that the store's host sees; None if the store is not reached over a network."""
    store = store.store if isinstance(store, LookingStore) else store
    while isinstance(store, vars(dist)["PrefixStore"]):
        store = store.underlying_store
    return local_address(store.host, store.port) if isinstance(store, vars(dist)["TCPStore"]) else None


def _meet(place: Seat, names: Any, timeout_s: float, look: Callable[[], None] | None = None) -> OneHost:
    peers, mapping = join_host(place, BoardLayout(place.size).total_bytes, timeout_s, look=look)
    return OneHost(Board(place.rank, list(names), peers, mapping))


def _prefix(name: str, store: Any) -> Any:
    if isinstance(store, LookingStore):
        return LookingStore(_prefix(name, store.store), store.look)
    return vars(dist)["PrefixStore"](name, store)  # torch does not declare it


def _check(rank: int, size: int) -> None:
    check_whole("Group", rank=rank, size=size)
    if size < 1 or not 0 <= rank < size:
        raise ConfigError(f"rank {rank} of {size} makes no sense; ranks go from 0 to size - 1")
