"""Runs collectives on real tensors: all_reduce, broadcast, all_gather, send and the rest.

host/        what the ranks of one host share, and every collective through it
links/       links of our own between hosts: one compiled exchange a collective; messages and schedules
executors/   runs a verified schedule: on devices of one process, over shared memory, over links, over torch.distributed
groups/      groups of ranks on one host or many: what a user joins and calls
c10d/        torch.distributed over all this: init_process_group("gradtide")
"""

import importlib
from typing import TYPE_CHECKING

from gradtide.collective.executors.execute import execute_in_process
from gradtide.collective.executors.in_process import check_strategy, sum_over_devices
from gradtide.importing import without_collection
from gradtide.linux import require_linux

if TYPE_CHECKING:
    from gradtide.collective.executors.torch_wire import execute_over_torch
    from gradtide.collective.groups.group import Group

__all__ = ["Group", "check_strategy", "execute_in_process", "execute_over_torch", "sum_over_devices"]

_LAZY = {  # they bring in numba, which the devices of one process don't need
    "Group": "gradtide.collective.groups.group",
    "execute_over_torch": "gradtide.collective.executors.torch_wire",
    "all_reduce": "gradtide.collective.executors.in_process",  # an old name that warns
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'gradtide.collective' has no attribute {name!r}")
    require_linux(f"gradtide.collective.{name}")
    with without_collection():
        return getattr(importlib.import_module(_LAZY[name]), name)
