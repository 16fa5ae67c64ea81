"""What a store begins with, and what becomes of what is lost: from a user's words to the coordinator's rules."""

import logging
from dataclasses import dataclass
from typing import get_args

from gradtide.checkpoint.manifest import Manifest, check_sizes, verify
from gradtide.checkpoint.places import open_place
from gradtide.checkpoint.shelf import Shelf, find_checkpoint
from gradtide.errors import ConfigError, DataError, GradtideError
from gradtide.store.coordinator.loss_policy import Policy, Recovery

__all__ = ["Recovering", "recovery_of"]

_log = logging.getLogger("gradtide.coordinator")


@dataclass(frozen=True, slots=True)
class Recovering:
    """As the user said it."""

    restore: str = ""
    checkpoints: str = ""
    after_loss: Policy = "empty"

    def check(self) -> None:
        """Raises what is wrong with it before anything is started: a checkpoint is read to its last byte."""
        if self.after_loss not in get_args(Policy):
            raise ConfigError(f"after_loss={self.after_loss!r} makes no sense; say 'empty', 'rewind' or 'continue'")
        if self.after_loss != "empty" and not self.checkpoints:
            raise ConfigError(f"after_loss={self.after_loss!r} needs checkpoints= to go back to")
        if self.restore:
            place, _ = find_checkpoint(self.restore)
            _check_that_it_is_a_stores(verify(place), place.address)


def recovery_of(restore: str, checkpoints: str, policy: Policy) -> Recovery:
    """The coordinator's rules."""
    begin_with = None
    if restore:
        place, manifest = find_checkpoint(restore)
        _check_that_it_is_a_stores(manifest, place.address)
        begin_with = place.address, manifest.round
    return Recovery(policy, lambda: _last_of(checkpoints), begin_with)


def _last_of(checkpoints: str) -> tuple[str, int] | None:
    """The newest that has all its files; one that has not is passed over, and that is said."""
    try:
        shelf = Shelf(checkpoints)
        complete = [folder for _, folder in shelf.folders() if shelf.is_complete(folder)]
    except GradtideError as error:
        _log.error("no checkpoint to go back to: %s", error)
        return None
    for folder in reversed(complete):
        try:
            taken = shelf.get(folder)
            check_sizes(open_place(taken.address), "", taken.manifest.files)
        except DataError as error:
            _log.error("passed over a checkpoint: %s", error)
            continue
        return taken.address, taken.manifest.round
    return None


def _check_that_it_is_a_stores(manifest: Manifest, address: str) -> None:
    if not manifest.servers:
        raise DataError(f"{address} is the checkpoint of a run without servers; go on with gradtide train --resume")
