"""Other members for a process group that stays: torch's reconfigure(), from its version 2.14 on.

A process's handle names a store of torch's that it holds itself. Members meet in the store of the first of them, so no
other process has to have survived: not the one that held the store in which the group was first made.
"""

import hashlib
import re
import secrets
import socket
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from gradtide.collective.c10d.errors import BadArgument
from gradtide.collective.groups.group import Group
from gradtide.collective.groups.joining import address_seen
from gradtide.errors import GradtideError, Mismatch, PeerTimeout
from gradtide.transport.hosts import store_at

__all__ = ["Reconfiguring", "Unformed"]

_HANDLE = re.compile(r"gradtide:([0-9a-f]{16})@(.+):(\d+)")


class Unformed:
    """Stands for the group of a process group that was made without members (`enable_reconfigure=True`)."""

    timeout_s = 0.0

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def __getattr__(self, name: str) -> Any:
        raise BadArgument(
            "this process group has no members yet: exchange torch.distributed._get_reconfigure_handle() of each, and "
            "call _reconfigure(uuid, handles) before collectives"
        )

    def set_timeout(self, timeout_s: float) -> None:
        """What reconfigure() says counts."""

    def close(self) -> None:
        """There is nothing to leave."""

    abort = close


class Reconfiguring:
    """How one process is found by those it is to work with, and how they meet."""

    def __init__(self, store: Any) -> None:
        self._store = store  # in which the group was made, as long as its host lives
        self._own: Any = None
        self._handle = ""
        self._used = set[int]()

    @property
    def handle(self) -> str:
        if not self._handle:
            host = address_seen(self._store) or _own_address()
            self._own = vars(dist)["TCPStore"](host, 0, is_master=True, wait_for_workers=False)
            self._handle = f"gradtide:{secrets.token_hex(8)}@{host}:{self._own.port}"
        return self._handle

    def join(self, name: str, opts: Any, otherwise_s: float, leave: Callable[[], None]) -> Group:
        """The group of those whose handles are given; a list of them is in the order of their ranks. `leave` is called
        once it is clear that they can meet: what was refused has changed nothing."""
        handles = _ordered(opts.handles)
        timeout_s = otherwise_s if opts.timeout is None else opts.timeout.total_seconds()
        if opts.uuid in self._used:
            raise BadArgument(f"reconfigure: uuid {opts.uuid} was already used for this group; give a new one")
        if self.handle not in handles:
            raise BadArgument(
                "reconfigure: this process's handle is not among those that were given; a process that is to be in no "
                "group does not call it"
            )
        self._used.add(opts.uuid)
        leave()
        rank = handles.index(self.handle)
        store = vars(dist)["PrefixStore"](f"{opts.uuid}", self._store_of(handles[0], timeout_s))
        store.set_timeout(timedelta(seconds=timeout_s))
        _check_alike(store, rank, handles)
        return Group.from_store(
            f"{name}, {opts.uuid}", store, rank, len(handles), lambda: address_seen(store), timeout_s=timeout_s
        )

    def _store_of(self, handle: str, timeout_s: float) -> Any:
        if handle == self.handle:
            return self._own
        found = _HANDLE.fullmatch(handle)
        assert found is not None
        return store_at(found[2], int(found[3]), timeout_s)


def _ordered(given: Iterable[str]) -> list[str]:
    handles = list(given) if isinstance(given, list | tuple) else sorted(given)
    wrong = next((handle for handle in handles if not _HANDLE.fullmatch(handle)), None)
    if wrong is not None:
        raise BadArgument(f"reconfigure: {wrong[:80]!r} is no handle of gradtide's, as get_reconfigure_handle() gives")
    if len(set(handles)) != len(handles):
        raise BadArgument("reconfigure: one handle is there twice; give each member's once")
    return handles


def _check_alike(store: Any, rank: int, handles: list[str]) -> None:
    """Members that were told of different ones would wait for each other in vain."""
    mine = hashlib.sha256(" ".join(handles).encode()).hexdigest()
    try:
        if rank == 0:
            store.set("members", mine)
        elif store.get("members").decode() != mine:
            raise Mismatch(f"reconfigure: rank {rank} was given other handles, or another order, than rank 0")
    except GradtideError:
        raise
    except RuntimeError as error:  # torch's own errors are this one's children
        raise PeerTimeout(f"reconfigure: rank 0 of the new members did not come ({str(error)[:120]})") from None


def _own_address() -> str:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"  # a host without a name of its own: members on it find each other, others do not
