"""What each worker of `gradtide train --workers` runs, with its settings as one JSON argument."""

import sys
from pathlib import Path

from gradtide.errors import CommunicationError, GradtideError
from gradtide.sync import current_job
from gradtide.train.loop import fit
from gradtide.train.models import build_model
from gradtide.train.settings import Settings
from gradtide.train.together.log import EventLog, log_path

__all__ = ["main"]


def main(argument: str) -> None:
    settings = Settings.from_json(argument)
    log = EventLog(log_path(Path(settings.folder), current_job().rank))
    train, test = settings.load()
    try:
        model, keeping = build_model(settings.model, settings.fit["seed"]), settings.keeping()
        given = {"devices": settings.devices, "sync": settings.how(), "checkpoints": keeping, **settings.fit}
        fit(model, train, test_data=test, emit=log.observe, **given)
    finally:
        log.close()


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except CommunicationError:
        raise  # the launcher finds out whom it fell with
    except GradtideError as error:
        print(f"gradtide: {error}", file=sys.stderr)
        sys.exit(2)
