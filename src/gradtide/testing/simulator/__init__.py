"""A store in one process, on a virtual clock and a bad network; and a checker of what it promised.

clock.py       time that passes only when everything due has happened
network.py     delays, reorders, drops, duplicates and cuts, by a seed
process.py     what every process can suffer
disk.py        the coordinator's, which may be full or slow
numbers.py     integers for values, that show every wrong order or count
wire.py        bytes back to messages, the large ones once
actors.py      the shell around clients
processes.py   the shells around servers and coordinator, that can be killed, stopped and started
trouble.py     lets faults happen, within what the replicas can make up for or beyond it
checkpoints.py what servers write, without a disk, and what a client that takes a checkpoint does
scripts.py     what simulated workers and clients do
history.py     what happened, and the checker
outcome.py     what the servers hold in the end
election/      several coordinators on one register
compressed/    the same with keys that are compressed: real tensors, and whether everything counts once
"""
