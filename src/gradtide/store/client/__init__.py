"""The store as a user sees it, and how a request reaches the servers, in the order a push meets them.

store.py           what a user sees: connect, Store
catalogue.py       the keys: which there are, what a user is told of each, and where its memory lies
tensors/           a user's tensors as pieces of memory, and back: one by one, packed, compressed
pending.py         an operation under way, as a handle
engine.py          shell of session.py: a client's sockets, threads and clock
waiting.py         one wait: who is late, who can't be reached
session.py         pure: a client's routes, sequences, resends, credits
losses.py          pure: what a client has seen of each shard, and what was lost since
operations.py      what a client has asked for and not yet got
sending.py         pure: what a client has on its way, sent as credit allows and again
links.py           a client's connections to the servers
inbox.py           where what servers send belongs
upkeep.py          a client's background thread, and its connection to the coordinator
checkpointing.py   a client's part in a checkpoint: announces the cut, collects what was written, writes the manifest
fast/              the fast path: push_pull of one small key
"""
