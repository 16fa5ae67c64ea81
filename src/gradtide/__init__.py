"""Gradtide trains one PyTorch model on many devices and machines, however they are wired.

`import gradtide` is instant: each name below, and each module and package of this folder (`gradtide.collective`), is
imported when it is first used (PEP 562).
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradtide import errors
    from gradtide.collective import Group, sum_over_devices
    from gradtide.collective.c10d.hook import ddp_hook
    from gradtide.compress import Compress
    from gradtide.parallel import DataParallel, DevicePool, find_devices, replicate, shard, split_batch, train_batch
    from gradtide.schedule.plan import plan
    from gradtide.store import Store, connect, local_servers, update
    from gradtide.sync import Local, Servers
    from gradtide.timeouts import Timeouts
    from gradtide.train import Checkpoints, evaluate, fit

__version__ = "0.1.0"

# Where each public name lives.
_EXPORTS = {
    "Checkpoints": "gradtide.train",
    "Compress": "gradtide.compress",
    "DataParallel": "gradtide.parallel",
    "DevicePool": "gradtide.parallel",
    "Group": "gradtide.collective",
    "Local": "gradtide.sync",
    "Servers": "gradtide.sync",
    "Store": "gradtide.store",
    "Timeouts": "gradtide.timeouts",
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
    "sum_over_devices": "gradtide.collective",
    "train_batch": "gradtide.parallel",
    "update": "gradtide.store",
}
_OLD = {"all_reduce": "gradtide.collective"}  # they warn who calls them, and go with the next release

__all__ = [
    "Checkpoints",
    "Compress",
    "DataParallel",
    "DevicePool",
    "Group",
    "Local",
    "Servers",
    "Store",
    "Timeouts",
    "__version__",
    "connect",
    "ddp_hook",
    "errors",
    "evaluate",
    "find_devices",
    "fit",
    "local_servers",
    "plan",
    "replicate",
    "shard",
    "split_batch",
    "sum_over_devices",
    "train_batch",
    "update",
]


def __getattr__(name: str) -> object:
    where = _EXPORTS.get(name) or _OLD.get(name)
    value = _room(name) if where is None else getattr(importlib.import_module(where), name)
    globals()[name] = value
    return value


def _room(name: str) -> object:
    """A module or package of this folder."""
    if not name.startswith("_"):
        try:
            return importlib.import_module(f"gradtide.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"gradtide.{name}":  # it is there, but something that it needs is not
                raise
    raise AttributeError(f"module 'gradtide' has no attribute {name!r}")


def __dir__() -> list[str]:
    import pkgutil

    rooms = (name for _, name, _ in pkgutil.iter_modules(__path__) if not name.startswith("_"))
    return sorted({*globals(), *_EXPORTS, *rooms} - {*_OLD})
