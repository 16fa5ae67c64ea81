"""A process that holds shards: moves bytes for shard/shard_set.py.

server.py     its loop: clock, coordinator, other servers
requests.py   receives what clients ask for into tensors, and hands it to the shards
incoming.py   which memory the values of a request go to
outgoing.py   what is answered, and memory that is lent until it has left
granting.py   credit for what was handed over
peers.py      its connections to other servers
uplink.py     its connection to the coordinator
copies.py     what it says of how many copies there are
watching.py   what it tells while somebody watches
draining.py   how it goes: when its shards are elsewhere
fast/         the fast path: what needs no second look
"""
