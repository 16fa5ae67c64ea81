"""A key-value store over many servers whose update rule you choose: push adds a contribution, pull reads.

client.py        what a user sees: connect, Store
values.py        from a user's keys and tensors to pieces of memory, and back
taking.py        a client's part in a checkpoint: announces the cut, collects what was written, writes the manifest
status.py        how a store is, asked of each of its processes
packed.py        many small keys in one request, without Python per key
summary.py       what a user is told about a key; how consistency is written
pending.py       an operation under way, as a handle
lane.py          the short way of one small key's push_pull
engine.py        shell of session.py: a client's sockets, threads and clock
links.py         a client's connections to the servers
inbox.py         where what servers send belongs
upkeep.py        a client's background thread, and its connection to the coordinator
tensors.py       tensors as raw memory
messages/        every request, reply and word of the coordinator, as small structs; payloads stay raw bytes
placement.py     which shard a block belongs to, and which server holds a shard
layouts.py       the pieces of a set of keys, by shard and by server
operations.py    what a client has asked for and not yet got
sending.py       pure: what a client has on its way, sent as credit allows and again
session.py       pure: a client's routes, sequences, resends, credits
host.py          pure: the shards of one server; cuts requests into shards' events
parts.py         what happens to a shard, and what it answers
shard.py         pure: admit, accumulate, update, reply
log.py           pure: what replicas must do too, and the answers that wait for them
image.py         a shard on its way to another server, entry by entry or whole
cut.py           pure: a checkpoint's cut through the shards of a server
replication.py   pure: a server as primary of its shards and as replica of others'
filter.py        the exactly-once filter inside a shard
rounds.py        the rounds of a block: who is waited for, when it closes
arithmetic.py    what a shard needs of numbers, as a protocol
reductions.py    semirings, their laws, means
updates.py       update rules on tensors: reductions and torch.optim
refusals.py      what a shard says when it says no
membership.py    pure: who is alive, who holds what, who is in the rounds
assignment.py    who is primary of a shard and who follows it, when servers come and go
moving.py        which shards move when a server has come
beats.py         a member's side of its lease
server.py        shell of host.py: receives into tensors, sends from them
copies.py        memory for the copies of checkpoints, kept from one to the next
cutter.py        a server's part in checkpoints: copies its shards at the cut, writes them in a thread
loading.py       a server's shards from a checkpoint
shard_file.py    shards as parts of a checkpoint's files, and back
draining.py      how a server goes: when its shards are elsewhere
peers.py         a server's connections to other servers
incoming.py      which memory the values of a request go to
at_once.py       the short way of what needs no second look
familiar.py      messages that are like the one before but for a number
uplink.py        a server's connection to the coordinator
coordinator.py   shell of membership.py
journal.py       the coordinator's state on disk
exchange.py      a checkpoint as one plain file of tensors, and back
recovering.py    what a store begins with, and what becomes of what is lost
roles.py         server and coordinator as processes
scaling.py       more or fewer servers for a store that is at work
starter.py       where a fork server is asked for more servers
forkserver.py    makes such processes by fork, and again when they die
local.py         a store on this machine
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradtide.store.client import Store, connect
    from gradtide.store.local import local_servers
    from gradtide.store.updates import update

__all__ = ["Store", "connect", "local_servers", "update"]

_LAZY = {  # the pure machines load no torch
    "Store": "gradtide.store.client",
    "connect": "gradtide.store.client",
    "local_servers": "gradtide.store.local",
    "update": "gradtide.store.updates",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'gradtide.store' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
