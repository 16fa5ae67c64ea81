"""Bytes between processes.

keys.py          the root secret of a job, the keys by role that follow from it, and their files
tls/             TLS 1.3 and certificates that nobody has to issue: on connections, and behind plain sockets
handshake.py     the mutual challenge before anything else is parsed: who talks, and that nobody is in between
authenticate.py  addresses, and sockets whose other end has proven itself
frames.py        a fixed header, a small message, raw tensor bytes received where they belong
connection.py    one authenticated socket as a stream of messages with bodies, with credit for what may be sent
spin.py          looking again before sleeping, on a processor that nobody else wants
service.py       the event loop of who listens: newcomers, deadlines, bytes for all
dialer.py        connections that are dialled in the background, again where that failed
shared_ring.py   large bodies through memory that the two ends of a connection share
memory.py        shared memory from memfd, sealed against shrinking, and tensors over it
peer_watch.py    the open sockets to the other ranks of this host: one that closes is a rank that died
rendezvous.py    how the processes of a group on one host find each other
hosts.py         which ranks of a job are on the same host
lifelines.py     a socket between each two ranks of several hosts: who left, who died, how far everybody is
registrar_line.py  a worker's line to the registrar of a job on several machines, and its lease
"""

from gradtide.linux import require_linux

require_linux("gradtide.transport")  # here, since all that can't do without it imports this room
