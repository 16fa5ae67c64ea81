"""The launcher: a job whose workers are all on this machine, and one whose workers call a function of the program."""

import os
import signal
import sys
from collections.abc import Callable, Iterable
from typing import Any

from gradtide.environment import in_notebook, read_environment
from gradtide.errors import ConfigError, WorkerFailed
from gradtide.launch.members import Members
from gradtide.launch.nodes.local_node import BeginServer, LocalNode, fresh_server
from gradtide.launch.nodes.node import JobNode
from gradtide.launch.output import Output
from gradtide.launch.registrar import Registrar
from gradtide.launch.running import MakeOutput, RunningJob
from gradtide.launch.spec import Spec, check_spec, describe, free_port, variables_of
from gradtide.launch.target import Target

__all__ = ["Launcher", "launch"]


class Launcher(RunningJob):
    """A job on this machine. Making it begins to load torch; `run` starts the workers and returns the exit code."""

    def __init__(self, spec: Spec, output: MakeOutput = Output, begin: BeginServer | None = None) -> None:
        """`begin`: what starts the fork server, if workers are not to be forked from a Python of its own."""
        super().__init__(spec, output)
        if spec.elastic:
            members = Members(patience_s=spec.patience_s)
            self._registrar = Registrar(self._scale, members)
            self._registrar.listen(spec.name, self._selector)
        self._port = free_port()
        threads = {"OMP_NUM_THREADS": str(spec.threads_each)}
        self._node = LocalNode(
            begin or fresh_server(spec.target, spec.preload, threads),
            self._output.open,
            lambda event: self._heard(self._node, event),
        )
        self._take_signals()

    def run(self, variables: dict[str, str]) -> int:
        """Starts the workers, with these variables besides the usual ones, and stays until all are gone."""
        members = {} if self._registrar is None else {"GRADTIDE_MEMBERS": self._registrar.address}
        self._variables, self._running = variables | members, True
        self._output.say(describe(self.spec))
        self._node.watch(self._selector)
        for rank in range(self.spec.workers):
            self._start(rank, 0)
        self._stay()
        self.close()
        return self._conclude()

    def _nodes(self) -> Iterable[JobNode]:
        return (self._node,)

    def _home_of(self, rank: int) -> JobNode:
        return self._node

    def _start(self, rank: int, incarnation: int) -> None:
        usual = variables_of(self.spec, self._port, rank, incarnation)
        self._node.start(rank, usual | self._variables)

    def _node_gone(self, node: JobNode, why: str) -> None:
        self._given_up = True

    def _conclude(self) -> int:
        self._last_words()
        if not self._given_up or self.job.ending:
            return 128 + self.job.signalled if self._given_up else self.job.exit_code()
        how = f"exit code {self._node.process.returncode}; what it wrote is above"
        self._output.say(f"the process that makes workers, and so every worker, has ended ({how})")
        return 1

    def _close_nodes(self) -> None:
        if not self._running:
            self._node.kill()  # nobody was asked of it: a mistake is told without waiting for what it loads
        self._node.close()


def launch(function: Callable[[], Any], workers: int = 2, threads: int | None = None) -> Any:
    """Calls a function in each of so many workers of a job on this machine: from a notebook, where there is no script.

    `fit`, `DataParallel` and the rest find their job there, as under `gradtide run`. Workers are forks of this process:
    they have all that it has, and what they change is theirs. What the first worker's function returns is returned, if
    it is plain (numbers, text, lists and dicts of these, a History); `model.share_memory()` before gives the model
    here what `fit` has learnt. `threads` of each worker: an even share of the cores, unless said.

    Raises WorkerFailed for the worker that failed first, when all others have ended; KeyboardInterrupt, when they have,
    for Ctrl-C or a cell's interrupt; and ConfigError, before anything is started, where a fork could not compute.
    """
    from gradtide.launch.nodes.forked import check_fork, forked_server
    from gradtide.launch.nodes.result import Result

    if not callable(function):
        raise ConfigError(f"gradtide.launch takes a function, not a {type(function).__name__}; write launch(train)")
    if read_environment().launch is not None:
        raise ConfigError("this process is a worker of a job already; call the function itself")
    name = getattr(function, "__name__", type(function).__name__)
    spec = Spec(target=Target(name), workers=workers, threads=threads, preload="gradtide.parallel.preload")
    check_spec(spec)
    check_fork()
    with Result(name) as result:
        begin = forked_server(lambda rank: result.keep(rank, function()), name, spec.preload, spec.threads_each)
        with Launcher(spec, _InCell, begin) as launcher:
            code = launcher.run({"OMP_NUM_THREADS": str(spec.threads_each)})
        _tell_end(launcher, code)
        return result.read()


def _tell_end(launcher: Launcher, code: int) -> None:
    number, cause = launcher.job.signalled, launcher.job.cause
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    if number:
        os.kill(os.getpid(), number)  # now that nobody is left that it should reach, too
    if cause is not None:
        raise WorkerFailed(launcher.first_told)
    if code:
        raise WorkerFailed(f"the job ended with exit code {code}; what it wrote is above")


class _InCell(Output):
    """What workers write goes where this program's `print` does: a notebook's cell is no file. There it all goes to the
    standard output, since what goes to the other is shown as an error."""

    def _put(self, to: int, data: bytes) -> None:
        stream = sys.stdout if to == 1 or in_notebook() else sys.stderr
        try:
            stream.write(data.decode(errors="replace"))
            stream.flush()
        except (OSError, ValueError):
            self.reader_gone = True
