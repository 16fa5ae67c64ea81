"""fit's checkpoints as directories of a Ray Train run."""

from typing import Any

from gradtide.checkpoint.shelf import Shelf, find_checkpoint
from gradtide.environment import read_environment
from gradtide.errors import ConfigError
from gradtide.ray.in_worker import find_storage
from gradtide.train import Checkpoints

__all__ = ["checkpoints"]

_ALL = 1_000_000_000  # Ray removes them, by its own CheckpointConfig


def checkpoints(every: int) -> Checkpoints:
    """`gradtide.fit(..., checkpoints=gradtide.ray.checkpoints(every=100))` inside `train_loop_per_worker`: one every so
    many steps in the run's own storage, each reported to Ray, which keeps as many as its CheckpointConfig says. The run
    goes on with the one that Ray gives it, if it does."""
    kind, _, token = read_environment().reports.partition(":")
    if kind != "ray-train":
        raise ConfigError(
            "gradtide.ray.checkpoints is for train_loop_per_worker with torch_config=gradtide.ray.GradtideConfig(...); "
            "elsewhere give fit a folder: gradtide.Checkpoints(path, every=...)"
        )
    folder, begin_with = find_storage()
    _check_that_it_is_a_folder()
    _remove_what_ray_does_not_know(folder, begin_with)
    return Checkpoints(folder, every=every, keep=_ALL, resume=begin_with or False, token=token)


def _remove_what_ray_does_not_know(folder: str, begin_with: str) -> None:
    """Checkpoints of an attempt that died before it could report them: this one will take them again."""
    import ray.train

    if ray.train.get_context().get_world_rank():
        return
    known = find_checkpoint(begin_with)[1].step if begin_with else 0
    shelf = Shelf(folder)
    for step, name in shelf.folders():
        if step > known:
            shelf.discard(name)


def _check_that_it_is_a_folder() -> None:
    import ray.train
    from pyarrow.fs import LocalFileSystem

    storage: Any = ray.train.get_context().get_storage()
    if not isinstance(storage.storage_filesystem, LocalFileSystem):
        raise ConfigError(
            f"the run's storage is {storage.storage_filesystem.type_name}, and gradtide writes its part of a "
            "checkpoint to folders that all nodes see; give RunConfig(storage_path=...) one"
        )
