"""A key-value store over many servers whose update rule you choose: push adds a contribution, pull reads.

messages.py      every request, reply and word of the coordinator, as small structs; payloads stay raw bytes
placement.py     which shard a block belongs to, and which server holds a shard
layouts.py       the pieces of a set of keys, by shard and by server
operations.py    what a client has asked for and not yet got
session.py       pure: a client's routes, sequences, resends, credits
host.py          pure: the shards of one server; cuts requests into shards' events
shard.py         pure: admit, accumulate, update, reply
filter.py        the exactly-once filter inside a shard
rounds.py        the rounds of a block: who is waited for, when it closes
arithmetic.py    what a shard needs of numbers, as a protocol
reductions.py    semirings, their laws, means
updates.py       update rules on tensors: reductions and torch.optim
refusals.py      what a shard says when it says no
membership.py    pure: who is alive, who holds what, who is in the rounds
beats.py         a member's side of its lease
"""
