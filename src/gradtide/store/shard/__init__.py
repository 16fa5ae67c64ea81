"""The pure machines of a server: state in, answers out; no socket, no clock, no tensor library.

shard_set.py      the shards of one server: cuts requests into shards' events, hears the coordinator
shard_events.py   what happens to a shard, and what it answers
shard.py          admit, accumulate, update, reply
filter.py         the exactly-once filter inside a shard
rounds.py         the rounds of a block: who is waited for, when it closes
refusals.py       what a shard says when it says no
log.py            what replicas must do too, and the answers that wait for them
replication.py    a server as primary of its shards and as replica of others'
image.py          a shard on its way to another server, entry by entry or whole
cut.py            a checkpoint's cut through the shards of a server
inventory.py      which keys a server's shards hold, and how they are
lease.py          a member's side of its lease: joining until welcomed, then beating well within it
"""
