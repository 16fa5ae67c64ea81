"""A Ray actor in `bench recovery`: recovery_ray FOLDER; for each line on standard input it is killed once.

The actor adds a tensor to its own and writes that to a checkpoint, which it reads when Ray starts it again. The driver
asks for one step after the other, and again as long as the actor is gone.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy
import ray

from gradtide.bench.peers.recovery_ranks import ELEMENTS
from gradtide.bench.peers.recovery_rivals import CALM_S, HUNG_S

__all__ = ["Holder", "main"]


class Holder:
    """What the actor is; with numpy alone, so that Ray need not load torch to start it again."""

    def __init__(self, checkpoint: str, elements: int) -> None:
        self._checkpoint = Path(checkpoint)
        self._value = numpy.zeros(elements, dtype=numpy.float32)
        if self._checkpoint.exists():
            self._value[:] = numpy.frombuffer(self._checkpoint.read_bytes(), dtype=numpy.float32)

    def step(self, gradient: Any) -> Any:
        self._value += gradient
        fresh = self._checkpoint.with_suffix(".new")
        fresh.write_bytes(self._value.data)
        fresh.replace(self._checkpoint)
        return self._value

    def process(self) -> int:
        return os.getpid()


def main(folder: Path) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Ray writes what it has to say about the dead to standard output
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, _temp_dir=str(folder))
    actor = ray.remote(Holder).options(max_restarts=-1, num_cpus=1).remote(str(folder / "checkpoint"), ELEMENTS)
    gradient = numpy.ones(ELEMENTS, dtype=numpy.float32)
    ray.get(actor.step.remote(gradient))
    print("ready", file=answers)
    for _ in sys.stdin:
        until_s = time.monotonic() + CALM_S
        while time.monotonic() < until_s:
            ray.get(actor.step.remote(gradient))
        victim = ray.get(actor.process.remote())
        begun_s = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        print(_next_step_s(actor, gradient, begun_s) - begun_s, file=answers)
    ray.shutdown()


def _next_step_s(actor: Any, gradient: Any, begun_s: float) -> float:
    while (left_s := begun_s + HUNG_S - time.monotonic()) > 0:
        try:
            ray.get(actor.step.remote(gradient), timeout=left_s)
            return time.monotonic()
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
            time.sleep(0.005)
    return begun_s + HUNG_S


if __name__ == "__main__":
    main(Path(sys.argv[1]))
