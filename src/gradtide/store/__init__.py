"""A key-value store over many servers whose update rule you choose: push adds a contribution, pull reads.

Its rooms, the lowest first; each imports only those before it in this list, and client, server and coordinator not each
other:

wire/         what goes between processes: every message, and which blocks, shards and servers it is about
rules/        what a push does to a value: arithmetic, reductions, torch.optim rules, consistency
shard/        pure: a shard, its rounds, its exactly-once filter, its log and replicas, and all shards of a server
snapshot/     shards to files and back: checkpoints as a server takes and loads them
client/       what a user sees (connect, Store), and how a request reaches the servers
server/       a process that holds shards
coordinator/  the process that says who is alive, who holds what and who is in the rounds
local/        the processes of a store: started here, looked at, made more or fewer
"""

import importlib
from typing import TYPE_CHECKING

from gradtide.linux import require_linux

if TYPE_CHECKING:
    from gradtide.store.client.store import Store, connect
    from gradtide.store.local.servers import local_servers
    from gradtide.store.rules.updates import update

__all__ = ["Store", "connect", "local_servers", "update"]

_LAZY = {  # the pure machines load no torch
    "Store": "gradtide.store.client.store",
    "connect": "gradtide.store.client.store",
    "local_servers": "gradtide.store.local.servers",
    "update": "gradtide.store.rules.updates",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'gradtide.store' has no attribute {name!r}")
    require_linux(f"gradtide.store.{name}")
    return getattr(importlib.import_module(_LAZY[name]), name)
