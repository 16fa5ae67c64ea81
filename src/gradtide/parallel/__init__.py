"""Data-parallel training on the devices of one process, in the order a batch meets it.

devices.py        which devices there are; a thread for each
replicas.py       a copy of the model on each device, with its gradients in one flat buffer
batches.py        one batch cut into a shard a device
randomness.py     a random generator a device, for models that draw numbers in forward
batch_norm.py     batch normalisation over the shards of all devices
step.py           one step: forward, backward, synchronise, update; alone or with other workers

And on many processes:

shard.py          each worker's part of every batch
data_parallel.py  a model whose parameters all workers update alike
"""

import importlib
from typing import TYPE_CHECKING

from gradtide.parallel.batch_norm import share_batch_norm
from gradtide.parallel.batches import Shard, split_batch
from gradtide.parallel.devices import Device, DevicePool, find_devices
from gradtide.parallel.replicas import Replica, replicate
from gradtide.parallel.step import BatchResult, train_batch, train_part

if TYPE_CHECKING:
    from gradtide.parallel.data_parallel import DataParallel
    from gradtide.parallel.shard import shard

__all__ = [
    "BatchResult",
    "DataParallel",
    "Device",
    "DevicePool",
    "Replica",
    "Shard",
    "find_devices",
    "replicate",
    "shard",
    "share_batch_norm",
    "split_batch",
    "train_batch",
    "train_part",
]

_LAZY = {  # they bring in numba and the store, which the devices of one process don't need
    "DataParallel": "gradtide.parallel.data_parallel",
    "shard": "gradtide.parallel.shard",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'gradtide.parallel' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value  # in the place of the module of the same name
    return value
