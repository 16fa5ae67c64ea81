"""Gradtide trains one PyTorch model on many devices and machines, however they are wired.

`import gradtide` is instant: each name below is imported when it is first used (PEP 562).
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradtide.collective import all_reduce
    from gradtide.collective.c10d.hook import ddp_hook
    from gradtide.parallel import DataParallel, DevicePool, find_devices, replicate, shard, split_batch, train_batch
    from gradtide.schedule.plan import plan
    from gradtide.store import Store, connect, local_servers, update
    from gradtide.sync import Servers
    from gradtide.train import Checkpoints, evaluate, fit

__version__ = "0.1.0"

# Where each public name lives.
_EXPORTS = {
    "Checkpoints": "gradtide.train",
    "DataParallel": "gradtide.parallel",
    "DevicePool": "gradtide.parallel",
    "Servers": "gradtide.sync",
    "Store": "gradtide.store",
    "all_reduce": "gradtide.collective",
    "connect": "gradtide.store",
    "ddp_hook": "gradtide.collective.c10d.hook",
    "evaluate": "gradtide.train",
    "find_devices": "gradtide.parallel",
    "fit": "gradtide.train",
    "local_servers": "gradtide.store",
    "plan": "gradtide.schedule.plan",
    "replicate": "gradtide.parallel",
    "shard": "gradtide.parallel",
    "split_batch": "gradtide.parallel",
    "train_batch": "gradtide.parallel",
    "update": "gradtide.store",
}

__all__ = [
    "Checkpoints",
    "DataParallel",
    "DevicePool",
    "Servers",
    "Store",
    "__version__",
    "all_reduce",
    "connect",
    "ddp_hook",
    "evaluate",
    "find_devices",
    "fit",
    "local_servers",
    "plan",
    "replicate",
    "shard",
    "split_batch",
    "train_batch",
    "update",
]


def __getattr__(name: str) -> object:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'gradtide' has no attribute {name!r}")
    value = getattr(importlib.import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
