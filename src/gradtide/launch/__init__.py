"""Starts a job's processes, on this machine (`gradtide run`, `gradtide.launch`) or on several.

target.py      what workers run: a script or a module
spec.py        what a job is to be, and what each worker finds around it
running.py     a job under way: hears of workers, hands on signals, carries out what job.py decides
launcher.py    a job whose workers are all on this machine
head.py        a job on several machines: beside the driver, it decides, shows output, hosts the registrar
agent.py       on each of those machines: starts workers and ends them, sends back what becomes of them
nodes/         the machines of a job, as the head and each of them see it
members.py     who works together in a job that outlives its workers: pure decisions
registrar.py   where workers ask for that
job.py         what becomes of a job as workers fail and end: pure decisions
wording.py     how failures are told
output.py      what workers write, on its way to our own output
lines.py       cuts it into whole lines, each marked by rank
messages.py    what launcher or agent, fork server and workers say to each other
forkserver.py  a process with torch loaded that makes workers
worker.py      a worker's life: it becomes what `python script.py` would be
"""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from gradtide.launch.launcher import Launcher, launch
from gradtide.launch.spec import Spec, check_spec
from gradtide.launch.target import Target, check_target

__all__ = ["Launcher", "Spec", "Target", "check_spec", "check_target"]


class _Launch(ModuleType):
    """`gradtide.launch(function, workers=2)`: this room's name is also what it does."""

    def __call__(self, function: Callable[[], Any], workers: int = 2, threads: int | None = None) -> Any:
        return launch(function, workers, threads)


__doc__ = launch.__doc__ or ""  # for who asks for help on what they call
sys.modules[__name__].__class__ = _Launch
