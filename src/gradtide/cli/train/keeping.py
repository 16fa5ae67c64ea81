"""What `gradtide train` does about checkpoints: its options, what is kept of an interrupted run, what failed."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradtide.errors import ConfigError
from gradtide.events import CheckpointFailed, Event

if TYPE_CHECKING:
    from gradtide.checkpoint.shelf import Taken
    from gradtide.train.settings import Settings

__all__ = ["before_resuming", "check_keeping", "plan_keeping", "tell_failure"]


def check_keeping(keeping: dict[str, Any], name: str | None, servers: int, baseline: bool) -> None:
    """Raises what makes no sense, before anything is loaded."""
    if keeping["every"] < 0 or keeping["keep"] < 1:
        raise ConfigError("--checkpoint-every takes 0 or more steps, and --keep 1 or more checkpoints")
    if keeping["resume"] and name is None and keeping["to"] is None:
        raise ConfigError("--resume needs the --name of the run that is to go on, or --checkpoint-to")
    if baseline and (keeping["every"] or keeping["resume"]):
        raise ConfigError("--baseline trains twice, and checkpoints are of one run; leave one of them out")
    if keeping["after_loss"] is not None and keeping["after_loss"] not in ("stop", "rewind", "continue"):
        raise ConfigError(f"--after-loss {keeping['after_loss']} makes no sense; say stop, rewind or continue")
    if keeping["after_loss"] in ("rewind", "continue") and not (servers and keeping["every"]):
        raise ConfigError(
            "--after-loss goes back to checkpoints of servers; add --servers 2 and --checkpoint-every 100"
        )


def plan_keeping(keeping: dict[str, Any], settings: "Settings", path: Path, sync: str | None) -> dict[str, Any] | None:
    """The fields of Checkpoints; None when the run keeps none. Which one it goes on with is chosen here, for all."""
    if not keeping["every"] and not keeping["resume"]:
        return None
    from gradtide.checkpoint.shelf import Shelf
    from gradtide.parallel import find_devices

    where = keeping["to"] or str(path.absolute() / "checkpoints")
    newest = Shelf(where).newest() if keeping["resume"] else None
    alike = ("batch_size", "accumulate", "lr", "scale_batch", "lr_scaling", "warmup_epochs", "seed")
    options = {name: settings.fit[name] for name in alike}
    options |= {"model": settings.model, "data": settings.data}
    if "split" not in settings.fit:  # a split model goes on under any other layout
        options["devices"] = len(find_devices(settings.devices))
    options |= {"sync": sync} if sync is not None else {}
    if keeping["resume"]:
        _check_resume(newest, options, settings.fit["epochs"], where, path)
    if newest is not None and settings.fit["progress"] is False:  # else fit says so
        at = f"after step {newest.manifest.step}, from {newest.address}"
        print(f"gradtide: going on {at}", file=sys.stderr, flush=True)
    return {
        "path": where,
        "every": keeping["every"],
        "keep": keeping["keep"],
        "resume": newest.address if newest is not None else "",
        "token": os.urandom(3).hex(),
        "options": options,
    }


def _check_resume(newest: "Taken | None", options: dict[str, Any], epochs: int, where: str, path: Path) -> None:
    """Says that a run begins, or why it can't go on, before anything of what is there is touched."""
    if newest is None:
        if any((path / name).exists() for name in ("metrics.jsonl", "worker-0.jsonl")):
            raise ConfigError(
                f"{path} holds a run, and there is no checkpoint in {where} to go on from; choose another --name"
            )
        print(f"gradtide: no checkpoint in {where} yet; beginning with step 1", file=sys.stderr, flush=True)
        return
    train = newest.manifest.train
    if train is not None:  # else it is a store's, which is refused when it is read
        from gradtide.train.keeper import check_same

        check_same(train["options"], options, newest.address)
        at = train["lines"][0]["position"]
        if (at["epoch"], at["in_epoch"]) > (epochs + 1, 0) or (at["epoch"] > epochs and at["in_epoch"]):
            raise ConfigError(
                f"{newest.address} is in epoch {at['epoch']}, beyond --epochs {epochs}; say a larger number"
            )


def before_resuming(
    path: Path, checkpoints: dict[str, Any] | None, read: Callable[[Path], list[dict[str, Any]]]
) -> list[dict[str, Any]] | None:
    """The lines of the interrupted run up to where it goes on; None when this run is a new one."""
    if checkpoints is None or not checkpoints["resume"]:
        return None
    from gradtide.checkpoint.shelf import find_checkpoint
    from gradtide.errors import DataError
    from gradtide.train.record import lines_before

    place, manifest = find_checkpoint(checkpoints["resume"])
    if manifest.train is None:
        raise DataError(f"{place.address} is a store's, not a training run's; begin with gradtide restore")
    at, metrics = manifest.train["lines"][0]["position"], path / "metrics.jsonl"
    return lines_before(read(metrics) if metrics.exists() else [], at["step"], at["epoch"])


def tell_failure(event: Event) -> None:
    """A checkpoint that failed is one line; training goes on."""
    if isinstance(event, CheckpointFailed):
        print(f"gradtide: no checkpoint of step {event.step}: {event.text}", file=sys.stderr, flush=True)
