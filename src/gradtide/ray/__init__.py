"""At home on a Ray cluster (`pip install gradtide[ray]`).

config.py       GradtideConfig: what Ray Train's TorchTrainer takes as torch_config
store.py        servers and their coordinator as actors
in_worker.py    what happens in a process of Ray's that becomes a worker of a job
keeping.py      fit's checkpoints as directories of a Ray Train run
versions.py     whether all workers have the same gradtide and torch
engine.py       `gradtide run --engine ray`: the head of a job, whose agents Ray starts
connecting.py   joins a cluster as a driver; what can go wrong is one line
placing.py      what a job needs of a cluster's nodes, and whether it has that: pure
agents.py       an actor on each node, in placement groups; what is lost with a node runs elsewhere
servers.py      the job's store: its coordinator beside the driver, its servers on the nodes
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradtide.ray.config import GradtideConfig
    from gradtide.ray.keeping import checkpoints

__all__ = ["GradtideConfig", "checkpoints"]

_WHERE = {"GradtideConfig": "gradtide.ray.config", "checkpoints": "gradtide.ray.keeping"}


def __getattr__(name: str) -> Any:
    """Ray Train takes a second to import, for which `gradtide run` and its agents need not wait."""
    if name not in _WHERE:
        raise AttributeError(f"module 'gradtide.ray' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_WHERE[name]), name)
    return value
