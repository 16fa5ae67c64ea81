"""A client's fast path: push_pull of one small key, in the caller's own thread, while nothing else is under way.

lanes.py    where it is entered: which keys may go it
lane.py     one key's way: sends, and receives the answer
path.py     where the answer is taken, and where it is left

What the general way does anew for each request is kept from one to the next: the encoded request, of which only the
sequence changes, and the memory of the tensors that were passed last. Between two processes that share a processor
every line of Python runs with cold caches, so it is their number that counts: half of the general way's.

Entered by `Store.push_pull`, which asks `Lanes.try_push_pull` first: where a key is not small, in rounds, or anything
else is under way, that says None, nothing was sent, and the general way follows. The session knows nothing of such a
push. Left when the answer is there (`ClientFastPath.take`), or as soon as anybody wants to tell the session something
or the answer takes long: `Engine.turn` calls `ClientFastPath.leave`, which makes the push an operation like any other.
"""

from gradtide.store.client.fast.lanes import Lanes
from gradtide.store.client.fast.path import ClientFastPath

__all__ = ["ClientFastPath", "Lanes"]
