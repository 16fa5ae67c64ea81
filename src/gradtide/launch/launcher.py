"""The launcher: a job whose workers are all on this machine."""

from collections.abc import Iterable

from gradtide.launch.members import Members
from gradtide.launch.nodes.local_node import LocalNode
from gradtide.launch.nodes.node import JobNode
from gradtide.launch.output import Output
from gradtide.launch.registrar import Registrar
from gradtide.launch.running import MakeOutput, RunningJob
from gradtide.launch.spec import Spec, describe, free_port, variables_of

__all__ = ["Launcher"]


class Launcher(RunningJob):
    """A job on this machine. Making it begins to load torch; `run` starts the workers and returns the exit code."""

    def __init__(self, spec: Spec, output: MakeOutput = Output) -> None:
        super().__init__(spec, output)
        if spec.elastic:
            members = Members(patience_s=spec.patience_s)
            self._registrar = Registrar(self._scale, members)
            self._registrar.listen(spec.name, self._selector)
        self._port = free_port()
        threads = {"OMP_NUM_THREADS": str(spec.threads_each)}
        self._node = LocalNode(
            spec.target,
            spec.preload,
            threads,
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
