"""Runs collectives on real tensors.

in_process.py    all_reduce between the devices of one process

group.py         Group: join, then all_reduce, broadcast, send, ...; blocking or a handle
calls.py         its calls: one at a time and in order, now or in the background, none after it broke
messages.py      its messages between two ranks: by tag, from anybody, now or in the background
joining.py       how a group comes to be, on one host or on many
lane.py          work that must happen in order, now or in the background
prepare.py       tensors as the collectives take them, and results where they were asked for
signature.py     what a rank wants, as a text and as a number that ranks compare
reductions.py    the reductions by name, and who computes them
elements.py      what kernels need of them
one_host.py      every collective between ranks of one host, through slots or in place
many_hosts.py    every collective between hosts: shared memory inside, one leader a host between

choose.py        from what a user calls a strategy to a schedule
programme.py     from a schedule to what one process has to do
execute.py       does it: on devices of one process, over memory, over messages
runner.py        the same for a group's ranks
torch_wire.py    messages over torch.distributed
gloo.py          a Gloo group of our own, and waiting on it that looks around
watch.py         who is lost and who is late, in a job on several hosts
probing.py       measures the links between the ranks

segments.py      tensors in memory that all ranks see
channel.py       messages from one rank to another on the same host
announcement.py  what goes before a message
board.py         the meeting place in shared memory, and waiting that notices the dead and the late
kernels/         the compiled part: atomics, meeting, copying, reducing
c10d/            torch.distributed over all this: init_process_group("gradtide")
preload.py       all of this loaded ahead, by a process that makes workers by fork
"""

import importlib
from typing import TYPE_CHECKING

from gradtide.collective.execute import execute_in_process
from gradtide.collective.in_process import all_reduce, check_strategy

if TYPE_CHECKING:
    from gradtide.collective.group import Group
    from gradtide.collective.torch_wire import execute_over_torch

__all__ = ["Group", "all_reduce", "check_strategy", "execute_in_process", "execute_over_torch"]

_LAZY = {  # they bring in numba, which the devices of one process don't need
    "Group": "gradtide.collective.group",
    "execute_over_torch": "gradtide.collective.torch_wire",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'gradtide.collective' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
