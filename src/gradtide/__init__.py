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
    from gradtide.collective.c10d.starting import init
    from gradtide.compress import Compress
    from gradtide.launch.launcher import launch
    from gradtide.parallel import (
        DataParallel,
        DevicePool,
        ModelParallel,
        find_devices,
        replicate,
        shard,
        split_batch,
        train_batch,
    )
    from gradtide.parallel.split.planning import split
    from gradtide.schedule.plan import plan
    from gradtide.schedule.step.layout import Layout
    from gradtide.store import Store, connect, local_servers, update
    from gradtide.sync import Local, Servers
    from gradtide.sync.own_loop import is_main, mean_over_workers, rank, workers
    from gradtide.timeouts import Timeouts
    from gradtide.train import (
        BestModel,
        Checkpoints,
        CSVLog,
        EarlyStopping,
        EpochEnd,
        FitEnd,
        OverAll,
        TensorBoardLog,
        evaluate,
        fit,
        predict,
    )

__version__ = "0.2.0"

# Where each public name lives.
_EXPORTS = {
    "BestModel": "gradtide.train",
    "CSVLog": "gradtide.train",
    "Checkpoints": "gradtide.train",
    "Compress": "gradtide.compress",
    "DataParallel": "gradtide.parallel",
    "DevicePool": "gradtide.parallel",
    "EarlyStopping": "gradtide.train",
    "EpochEnd": "gradtide.train",
    "FitEnd": "gradtide.train",
    "Group": "gradtide.collective",
    "Layout": "gradtide.schedule.step.layout",
    "Local": "gradtide.sync",
    "ModelParallel": "gradtide.parallel",
    "OverAll": "gradtide.train",
    "Servers": "gradtide.sync",
    "Store": "gradtide.store",
    "TensorBoardLog": "gradtide.train",
    "Timeouts": "gradtide.timeouts",
    "connect": "gradtide.store",
    "ddp_hook": "gradtide.collective.c10d.hook",
    "evaluate": "gradtide.train",
    "find_devices": "gradtide.parallel",
    "fit": "gradtide.train",
    "init": "gradtide.collective.c10d.starting",
    "is_main": "gradtide.sync.own_loop",
    "local_servers": "gradtide.store",
    "mean_over_workers": "gradtide.sync.own_loop",
    "plan": "gradtide.schedule.plan",
    "predict": "gradtide.train",
    "rank": "gradtide.sync.own_loop",
    "replicate": "gradtide.parallel",
    "shard": "gradtide.parallel",
    "split": "gradtide.parallel.split.planning",
    "split_batch": "gradtide.parallel",
    "sum_over_devices": "gradtide.collective",
    "train_batch": "gradtide.parallel",
    "update": "gradtide.store",
    "workers": "gradtide.sync.own_loop",
}
_EVERYWHERE = {"Layout", "Timeouts", "plan"}  # all others need Linux
_OLD = {"all_reduce": "gradtide.collective"}  # they warn who calls them, and go with 0.3.0

__all__ = [
    "BestModel",
    "CSVLog",
    "Checkpoints",
    "Compress",
    "DataParallel",
    "DevicePool",
    "EarlyStopping",
    "EpochEnd",
    "FitEnd",
    "Group",
    "Layout",
    "Local",
    "ModelParallel",
    "OverAll",
    "Servers",
    "Store",
    "TensorBoardLog",
    "Timeouts",
    "__version__",
    "connect",
    "ddp_hook",
    "errors",
    "evaluate",
    "find_devices",
    "fit",
    "init",
    "is_main",
    "launch",
    "local_servers",
    "mean_over_workers",
    "plan",
    "predict",
    "rank",
    "replicate",
    "shard",
    "split",
    "split_batch",
    "sum_over_devices",
    "train_batch",
    "update",
    "workers",
]


def __getattr__(name: str) -> object:
    where = _EXPORTS.get(name) or _OLD.get(name)
    if name not in _EVERYWHERE and not name.startswith("_"):
        from gradtide.failure_line import show_failures_in_short  # here: programs that import torch import this file
        from gradtide.linux import require_linux

        if where is not None:
            require_linux(f"gradtide.{name}")
        show_failures_in_short()
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
