"""Data-parallel training on the devices of one process, in the order a batch meets it.

devices.py        which devices there are; a thread for each
replicas.py       a copy of the model on each device, with its gradients in one flat buffer
batches.py        one batch cut into a shard a device
randomness.py     a random generator a device, for models that draw numbers in forward
batch_norm.py     batch normalisation over the shards of all devices
step.py           one step: forward, backward, synchronise, update
"""

from gradtide.parallel.batch_norm import share_batch_norm
from gradtide.parallel.batches import Shard, split_batch
from gradtide.parallel.devices import Device, DevicePool, find_devices
from gradtide.parallel.replicas import Replica, replicate
from gradtide.parallel.step import BatchResult, train_batch

__all__ = [
    "BatchResult",
    "Device",
    "DevicePool",
    "Replica",
    "Shard",
    "find_devices",
    "replicate",
    "share_batch_norm",
    "split_batch",
    "train_batch",
]
