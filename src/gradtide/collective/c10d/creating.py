"""Makes the process group that torch asks for. torch gives it a store that this group alone uses."""

from pathlib import Path
from typing import Any

from gradtide.collective.c10d.errors import BadArgument, as_torch_error
from gradtide.collective.c10d.process_group import ProcessGroup
from gradtide.collective.c10d.reconfigure import Unformed
from gradtide.collective.c10d.splitting import Splitter
from gradtide.collective.c10d.versions import as_backend, introduce, is_asked_as_backend
from gradtide.collective.groups.group import Group
from gradtide.collective.groups.joining import address_seen
from gradtide.environment import read_environment
from gradtide.errors import GradtideError
from gradtide.topology.model import NodeKind, Topology

__all__ = ["create"]

_PROBE_S = 0.5


def create(settings: Any, options: Any) -> Any:
    """settings: what torch knows of the group. options: pg_options, a topology or the name of one.

    Ranks of several hosts reduce large tensors as the planner finds best on that topology, if one is given; else they
    go straight between the hosts, and nothing needs to be measured.
    """
    store, rank, size = settings.store, settings.group_rank, settings.group_size
    timeout_s = settings.timeout.total_seconds()
    name, splitter = f"process group {settings.group_id}", Splitter(store, create, options)
    try:
        wanted_as_backend, topology = is_asked_as_backend(), _topology(options)

        def prepare(group: Group) -> bool:
            """Whether large tensors go as planned."""
            if group.on_one_host or topology is None:
                return False
            if _devices(topology) != group.size:
                _measure(group)
            else:
                group.topology = topology
            return True

        if getattr(settings, "enable_reconfigure", False):  # from torch 2.14 on
            made = ProcessGroup(Unformed(rank, size), store, splitter, name, timeout_s, prepare)
        else:
            group = Group.from_store(name, store, rank, size, lambda: address_seen(store), timeout_s=timeout_s)
            made = ProcessGroup(group, store, splitter, name, timeout_s, prepare)
    except GradtideError as error:
        raise as_torch_error(error) from None
    if wanted_as_backend:
        return as_backend(made)
    introduce(made)
    return made


def _measure(group: Group) -> None:
    try:
        group.probe(_PROBE_S, remembered=True)
    except BaseException:
        group.close()  # nobody else will
        raise


def _topology(options: Any) -> Topology | None:
    given = options if options is not None else read_environment().topology or None
    if given is None or isinstance(given, Topology):
        return given
    if not isinstance(given, str | Path):
        raise BadArgument(f"pg_options of gradtide is a topology or the name of one, not a {type(given).__name__}")
    from gradtide.topology.files import topology_named  # every format that people have

    return topology_named(str(given))


def _devices(topology: Topology) -> int:
    return sum(node.kind is NodeKind.DEVICE for node in topology.nodes)
