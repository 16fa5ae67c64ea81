"""Bytes between processes.

authenticate.py  addresses, the secret file, and the mutual challenge before anything else is parsed
frames.py        a fixed header, a small message, raw tensor bytes received where they belong
connection.py    one authenticated socket as a stream of messages with bodies, with credit for what may be sent
patience.py      looking again before sleeping, on a processor that nobody else wants
service.py       the event loop of who listens: newcomers, deadlines, bytes for all
window.py       large bodies through memory that the two ends of a connection share
memory.py       shared memory from memfd, sealed against shrinking, and tensors over it
futex.py        sleeping until a word of it changes
peers.py        the open sockets to the other ranks of this host: one that closes is a rank that died
rendezvous.py   how the processes of a group on one host find each other
hosts.py        which ranks of a job are on the same host
lifelines.py    a socket between each two ranks of several hosts: who left, who died, how far everybody is
"""
