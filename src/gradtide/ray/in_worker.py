"""What happens in a process of Ray's that becomes a worker of a job."""

from collections.abc import Mapping
from typing import Any

from gradtide.environment import extend_environment
from gradtide.launch.nodes.secret import SecretInMemory
from gradtide.transport.keys import Credentials, Key

__all__ = ["Storage", "enter_job", "find_storage"]

_kept: list[SecretInMemory] = []  # the secret, which is there as long as this process is

Storage = tuple[str, str]  # the run's folder, and the checkpoint in it to go on with; empty: none


def enter_job(variables: Mapping[str, str], secret: bytes) -> None:
    """From here on `gradtide.DataParallel` and `gradtide.fit` find the job. The secret comes as a call's argument: what
    Ray sets up for actors and tasks, it also keeps and shows."""
    more = {}
    if secret:
        _kept.append(SecretInMemory(Credentials((Key(secret),))))
        more["GRADTIDE_SECRET_FILE"] = _kept[-1].path
    extend_environment({**variables, **more})


def find_storage() -> Storage:
    """Of the Ray Train run that this process works for."""
    import ray.train

    context: Any = ray.train.get_context()
    found = ray.train.get_checkpoint()
    return context.get_storage().experiment_fs_path, "" if found is None else found.path
