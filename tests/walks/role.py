"""A server or coordinator whose walk is recorded."""

from multiprocessing.connection import Connection
from pathlib import Path

from recorder import Recorder

from gradtide.store.local.roles import Role, run_role


def live(folder: Path, role: Role, listening: Connection) -> None:
    recorder = Recorder(folder, role.name)
    recorder.install()
    run_role(role, tell=listening.send)
    recorder.write()
