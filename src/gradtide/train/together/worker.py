"""What each worker of `gradtide train --workers` runs, with its settings as one JSON argument."""

import sys
from pathlib import Path

from gradtide.errors import CommunicationError, GradtideError
from gradtide.observe.event_log import EventLog, log_path
from gradtide.sync import current_job
from gradtide.train.loop import fit
from gradtide.train.models import build_model
from gradtide.train.settings import Settings
from gradtide.train.steering.best import without_old_model, write_model

__all__ = ["main"]


def main(argument: str) -> None:
    settings = Settings.from_json(argument)
    log = EventLog(log_path(Path(settings.folder), current_job().rank))
    train, test = settings.load()
    final = Path(settings.folder) / "model.safetensors"
    emit = without_old_model(final, log.observe) if current_job().rank == 0 else log.observe
    try:
        model, keeping = build_model(settings.model, settings.fit["seed"]), settings.keeping()
        given = {"devices": settings.devices, "sync": settings.how(), "checkpoints": keeping, **settings.arguments()}
        fit(model, train, validation=test, emit=emit, **given)
        if current_job().rank == 0:
            write_model(final, model.state_dict())
    finally:
        log.close()


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except CommunicationError:
        raise  # the launcher finds out whom it fell with
    except GradtideError:
        sys.excepthook = lambda *told: None  # the launcher says what it was, once for all workers
        raise
