"""A part of a group: some of its ranks join a group of their own, through the whole one."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gradtide.collective.executors.runner import Runner
from gradtide.collective.groups.joining import join_one_host, join_store
from gradtide.collective.groups.many_hosts import ManyHosts
from gradtide.collective.host.one_host import OneHost
from gradtide.errors import ConfigError

if TYPE_CHECKING:
    from gradtide.collective.groups.group import Group

__all__ = ["MeetingPlace", "join_part"]

_TAG = -(1 << 40)  # of the message that says under which name they meet: no user's message has it
_TOKEN_BYTES = 8


@dataclass(frozen=True, slots=True)
class MeetingPlace:
    """Where ranks of several hosts found each other: a store of torch's, and how others reach this one."""

    store: Any
    address: Callable[[], str | None]


def join_part(
    group: "Group", place: Callable[[], MeetingPlace] | None, ranks: Sequence[int], timeout_s: float
) -> tuple[str, OneHost | ManyHosts, Runner, list[int]]:
    """The name, the backend, the runner and each rank's host. The ranks of the part call it, in the same order."""
    part = sorted(ranks)
    if not part or len(part) != len(set(part)) or not 0 <= part[0] <= part[-1] < group.size:
        raise ConfigError(f"ranks {list(ranks)} are no part of a group with ranks 0 to {group.size - 1}")
    if group.rank not in part:
        raise ConfigError(f"rank {group.rank} is not one of {part}; only those who are in a part join it")
    token = _agree(group, part, timeout_s)
    rank, size = part.index(group.rank), len(part)
    hosts = {group.host_of[member] for member in part}
    if len(hosts) == 1:
        return token, *join_one_host(f"part-{token}", rank, size, timeout_s, part), [0] * size
    assert place is not None, "a group of several hosts met somewhere"
    met = place()
    store = vars(dist)["PrefixStore"](f"part {token}", met.store)  # torch does not declare it
    return token, *join_store(store, rank, size, timeout_s, met.address)


def _agree(group: "Group", part: Sequence[int], timeout_s: float) -> str:
    """The first of them says under which name they meet: one that no other group has or had."""
    token = torch.empty(_TOKEN_BYTES, dtype=torch.uint8)
    if group.rank != part[0]:
        group.recv(token, part[0], tag=_TAG, timeout_s=timeout_s)
        return bytes(token.tolist()).hex()
    token.copy_(torch.frombuffer(bytearray(secrets.token_bytes(_TOKEN_BYTES)), dtype=torch.uint8))
    for member in part[1:]:
        group.send(token, member, tag=_TAG, timeout_s=timeout_s)
    return bytes(token.tolist()).hex()
