"""Bytes between processes.

memory.py       shared memory from memfd, sealed against shrinking, and tensors over it
futex.py        sleeping until a word of it changes
peers.py        the open sockets to the other ranks of this host: one that closes is a rank that died
rendezvous.py   how the processes of a group on one host find each other
hosts.py        which ranks of a job are on the same host
"""
