"""Data-parallel training.

devices/          the devices of one process: a copy of the model and a part of the batch for each

And on many processes:

sharding.py       each worker's part of every batch
batch_parts.py    what of a batch is cut, entered or refused
reading/          where batches come from, the same for all workers, and what of them a worker reads
part_costs.py     what parts of a batch cost one worker or device, from noisy measurements
balance.py        who takes how much of a batch: shares that follow measured speed
agreed_shares.py  the shares that all workers agree on
agreement.py      what workers tell each other before a batch
workers_norm.py   batch normalisation over the parts of all workers
worker_random.py  random numbers of a worker's own inside the model's forward
pace.py           how long steps take, and what of it goes into synchronising
data_parallel.py  a model whose parameters all workers update alike
model_parallel.py a model that is split over devices or processes
split/            a model that is split: by layers, within layers, and with copies
preload.py        all of this loaded ahead, by a process that makes workers by fork
"""

import importlib
from typing import TYPE_CHECKING

from gradtide.parallel.devices.batch_norm import has_batch_norm, share_batch_norm
from gradtide.parallel.devices.batches import DeviceBatch, split_batch
from gradtide.parallel.devices.pool import Device, DevicePool, find_devices
from gradtide.parallel.devices.replicas import FirstEdited, Replica, replicate
from gradtide.parallel.devices.step import BatchResult, train_batch, train_part

if TYPE_CHECKING:
    from gradtide.parallel.data_parallel import DataParallel
    from gradtide.parallel.model_parallel import ModelParallel
    from gradtide.parallel.sharding import shard

__all__ = [
    "BatchResult",
    "DataParallel",
    "Device",
    "DeviceBatch",
    "DevicePool",
    "FirstEdited",
    "ModelParallel",
    "Replica",
    "find_devices",
    "has_batch_norm",
    "replicate",
    "shard",
    "share_batch_norm",
    "split_batch",
    "train_batch",
    "train_part",
]

_LAZY = {  # they bring in numba and the store, which the devices of one process don't need
    "DataParallel": "gradtide.parallel.data_parallel",
    "ModelParallel": "gradtide.parallel.model_parallel",
    "shard": "gradtide.parallel.sharding",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'gradtide.parallel' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value
