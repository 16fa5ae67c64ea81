"""Processes that are ranks: started once, fed functions of this folder to run, their answers collected."""

import ctypes
import multiprocessing
import multiprocessing.connection
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

process_context = multiprocessing.get_context("forkserver")
process_context.set_forkserver_preload(["warm"])
# Python 3.11 does not tell the server our sys.path, and it skips in silence what it can't import.
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)

_CLONE_NEWNET = 0x40000000


class Failed(Exception):
    """What went wrong in a rank, as text."""


class Ranks:
    """So many processes. `run` calls function(rank, size, *arguments) in the first `size` of them at the same time."""

    def __init__(self, count: int) -> None:
        self._pipes, self.processes = [], []
        for rank in range(count):
            here, there = process_context.Pipe()
            process = process_context.Process(target=_serve, args=(there, rank), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self.processes.append(process)

    def start(self, function: Callable[..., Any], size: int, *arguments: Any) -> None:
        for rank in range(size):
            self._pipes[rank].send((function, size, arguments))

    def answer(self, rank: int, timeout_s: float = 120) -> Any:
        assert self._pipes[rank].poll(timeout_s), f"rank {rank} did not answer"
        ok, value = self._pipes[rank].recv()
        if not ok:
            raise Failed(f"rank {rank}: {value}")
        return value

    def run(self, function: Callable[..., Any], size: int, *arguments: Any) -> list[Any]:
        self.start(function, size, *arguments)
        return self.answers(size)

    def answers(self, size: int) -> list[Any]:
        answers, failures = [], []
        for rank in range(size):  # all of them, so that none is left for the next call
            try:
                answers.append(self.answer(rank))
            except Failed as error:
                failures.append(str(error))
        if failures:
            raise Failed("\n".join(failures))
        return answers

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self.processes:
            process.kill()
            process.join()
            process.close()


def _serve(pipe: multiprocessing.connection.Connection, rank: int) -> None:
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            function, size, arguments = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)
        try:
            answer = True, function(rank, size, *arguments)
        except BaseException:
            answer = False, traceback.format_exc()
        pipe.send(answer)


def own(name: str) -> str:
    """A name for a group that no other run of these tests on this machine uses: its ranks have another parent."""
    return f"{name}-{os.getppid()}"


def enter(host: str) -> None:
    """This thread, and those that it starts, go to a host."""
    with open(f"/run/netns/{host}") as namespace:
        assert ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET) == 0


def move(rank: int, size: int, hosts: list[str]) -> None:
    """Goes to a host, half of the ranks to each, and says as a launcher would which rank this is."""
    enter(hosts[rank * len(hosts) // size])
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29654"}
