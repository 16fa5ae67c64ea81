"""Runs collectives on real tensors.

in_process.py    all_reduce between the devices of one process: root, host, sharded
group.py         Group: join, then all_reduce, broadcast, send, ...; blocking or a handle
lane.py          work that must happen in order, now or in the background
signature.py     what a rank wants, as a text and as a number that ranks compare
reductions.py    the reductions by name, and who computes them
one_host.py      every collective between ranks of one host, through slots or in place
segments.py      tensors in memory that all ranks see
channel.py       messages from one rank to another
board.py         the meeting place in shared memory, and waiting that notices the dead and the late
kernels.py       the compiled part: atomics, copying, reducing
"""

import importlib
from typing import TYPE_CHECKING

from gradtide.collective.in_process import STRATEGIES, all_reduce

if TYPE_CHECKING:
    from gradtide.collective.group import Group

__all__ = ["STRATEGIES", "Group", "all_reduce"]

_LAZY = {"Group": "gradtide.collective.group"}  # brings in numba, which one process alone does not need


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'gradtide.collective' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
