"""The process that says who is alive, who holds what and who is in the rounds.

coordinator.py   shell of membership.py
membership.py    pure: who is alive, who holds what, who is in the rounds
clerk.py         what is decided is written before anybody hears of it
chronicle.py     pure: what has happened, as events
admission.py     pure: who may be who: incarnations, and why somebody is refused
tables.py        pure: how one table of shards follows the other
peers.py         pure: the processes that it knows, and what it sends them
round_members.py pure: who is in the rounds: its decrees, and how they come to be
assignment.py    pure: who is primary of a shard and who follows it, when servers come and go
shard_moves.py   pure: which shards move when a server has come
loss_policy.py   pure: what becomes of shards that are lost
journal.py       its state on disk
recovery.py      what a store begins with and falls back to, from a user's words
election/        one of several leads, and the journal is where all see it: in etcd
"""
