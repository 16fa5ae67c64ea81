"""Whom a run tells how it goes, besides its own observer: Ray Train, where it runs there."""

import os
from typing import Any, Protocol

from gradtide.environment import read_environment
from gradtide.train.position import Position

__all__ = ["NoReports", "RayTrainReports", "Reports", "find_reports"]


class Reports(Protocol):
    """Every worker says the same things in the same order."""

    def epoch(self, at: Position) -> None:
        """An epoch has ended; the position is at the next one's beginning."""

    def checkpoint(self, step: int, address: str) -> None:
        """One was due at that step. Its address; empty for a worker that does not know it, or if it failed."""


class NoReports:
    def epoch(self, at: Position) -> None:
        pass

    def checkpoint(self, step: int, address: str) -> None:
        pass


class RayTrainReports:
    """ray.train.report waits for all workers, so each says everything, and the first says what it was."""

    def epoch(self, at: Position) -> None:
        seen: dict[str, Any] = {"epoch": at.epoch - 1, "step": at.step}
        columns = {name: getattr(at.history, name) for name in ("loss", "accuracy", "test_loss", "test_accuracy", "lr")}
        for name, values in (columns | at.history.metrics).items():
            if values and values[-1] is not None:
                seen[name] = values[-1]
        _ray_train().report(seen)

    def checkpoint(self, step: int, address: str) -> None:
        train = _ray_train()
        storage = train.get_context().get_storage()
        own = os.path.realpath(storage.experiment_fs_path)
        inside = bool(address) and os.path.realpath(address).startswith(own + os.sep)
        made = train.Checkpoint(address, storage.storage_filesystem) if inside else None
        train.report({"step": step}, checkpoint=made, checkpoint_upload_mode=train.CheckpointUploadMode.NO_UPLOAD)


def _ray_train() -> Any:
    import ray.train

    return ray.train


def find_reports() -> Reports:
    return RayTrainReports() if read_environment().reports.startswith("ray-train:") else NoReports()
