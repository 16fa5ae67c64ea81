"""A server's fast path: a push or pull outside of rounds, with nothing to refuse and nobody to wait for.

path.py     where it is entered: a small push that arrived in one piece, a part of a push, or a pull
repeats.py  a client's small pushes, each like the one before but for its sequence
short.py    what is done with the values: applied to the shard, or sent from it

What can be known beforehand is looked up once for each layout, as long as the table of servers stays, and a request
that is like an earlier one but for its sequence is not decoded anew (message_templates.py). One small push costs a
third of the lines of the general way, and many keys at once none of Python for each.

Entered where a request could be handed to the shard set: `attach` gives the connection whom to ask first of what
arrives whole (most of what a server does), and requests.py asks `try_part` and `try_pull`. Each says whether it is done
and answered. It is left by saying False: nothing was done then, and the general way follows, which also finds mistakes.
"""

from gradtide.store.server.fast.path import ServerFastPath

__all__ = ["ServerFastPath"]
