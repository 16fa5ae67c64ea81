"""`gradtide run --engine ray`: the head of a job is in this process, its agents are actors on a cluster's nodes."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING, Any

from gradtide.errors import ConfigError, OutputError
from gradtide.launch import Spec
from gradtide.launch.head import Head
from gradtide.launch.nodes.door import Visitor
from gradtide.launch.nodes.fleet import FleetNode
from gradtide.launch.nodes.node import JobNode
from gradtide.launch.nodes.secret import SecretInMemory
from gradtide.launch.nodes.wire import NodeJoin
from gradtide.launch.running import RunningJob
from gradtide.ray.connecting import check_that_all_answer, cluster_nodes, connect_to_ray, what_travels
from gradtide.ray.placing import JobSize, share_out
from gradtide.transport.authenticate import Address
from gradtide.transport.keys import Credentials, Key

if TYPE_CHECKING:
    from gradtide.ray.agents import AgentFailure  # which imports Ray

__all__ = ["RayJob", "RayWishes", "run_on_ray"]

_JOIN_S = 120.0  # for processes that Ray has to start, on nodes that may be busy


@dataclass(frozen=True, slots=True)
class RayWishes:
    """What a job on Ray is to be, besides its Spec."""

    size: JobSize
    address: str = ""  # of the cluster; RAY_ADDRESS, or the one that runs here, unless said
    checkpoints: str = ""  # a folder that all nodes must see, where servers may write
    resume: bool = False  # servers begin with the newest checkpoint there


def run_on_ray(spec: Spec, wishes: RayWishes) -> int:
    """The exit code."""
    folder, target = what_travels(spec.target)
    with contextlib.ExitStack() as stack:
        ray = connect_to_ray(wishes.address, folder)
        stack.callback(ray.shutdown)
        check_that_all_answer(ray)
        shares = share_out(wishes.size, cluster_nodes(ray))
        marker = stack.enter_context(_marker_in(wishes.checkpoints))
        job = RayJob(replace(spec, target=target), wishes, ray.util.get_node_ip_address())
        stack.callback(job.end)
        return job.go(shares, marker)


class RayJob(Head):
    """A head whose agents Ray starts, and starts anew elsewhere when a node is lost."""

    def __init__(self, spec: Spec, wishes: RayWishes, host: str) -> None:
        self._wishes, self._host = wishes, host
        self._secret = secrets.token_bytes(32)
        credentials = self._credentials = Credentials((Key(self._secret),))
        self._in_memory = SecretInMemory(credentials)
        self._agents_on_ray: Any = None
        self._servers: Any = None
        self._over = False
        self._joined: set[str] = set()  # agents that are in the job, or were
        super().__init__(spec, listen=Address(host=host, port=0), credentials=credentials)

    def go(self, shares: Any, marker: str) -> int:
        from gradtide.ray.agents import AgentOrders, Agents

        size, checkpoints = self._wishes.size, self._wishes.checkpoints
        orders = AgentOrders(str(self.address), self.spec.target, checkpoints, marker)
        self._agents_on_ray = Agents(size, orders, self._secret)
        names = self._agents_on_ray.start(shares)
        variables = {}
        if size.servers:
            variables["GRADTIDE_STORE"] = self._start_store()
        self.expect(names, _JOIN_S)
        return self.run(variables)

    def _start_store(self) -> str:
        from gradtide.ray.servers import ServersOnNodes, newest_of_store

        size, checkpoints = self._wishes.size, self._wishes.checkpoints
        self._servers = ServersOnNodes(size.servers, size.replicas, self.start_role, checkpoints)
        restore = newest_of_store(checkpoints) if self._wishes.resume else ""
        self._servers.start_coordinator(self._host, self._in_memory.path, restore)
        self.role_ended = self._role_ended
        for name in self.nodes:
            self._servers.settle(self._agents_on_ray.places[name])
        return str(self._servers.address)

    def _role_ended(self, name: str, status: int) -> None:
        self._say_role_ended(name, status)
        self._servers.ended(name)

    def _welcome(self, visitor: Visitor, join: NodeJoin) -> None:
        super()._welcome(visitor, join)
        self._joined.add(join.node)
        if self._servers is not None:
            self._servers.settle(self._agents_on_ray.places[join.node])

    def _node_gone(self, node: JobNode, why: str) -> None:
        place = self._agents_on_ray.places[node.name]
        if self._servers is not None:
            self._servers.lost(place)
        super()._node_gone(node, why)
        if self._running and not self.job.ending:
            self._agents_on_ray.replace(node.name)

    def _bury_node(self, node: FleetNode, why: str, ranks: list[int]) -> None:
        if self._servers is not None and self.spec.elastic and not self.job.ending:
            self._servers.strike_off(ranks, self._credentials)
        super()._bury_node(node, why, ranks)

    def _why_not(self, workers: int) -> str:
        """Ray is asked for what its nodes lack."""
        return RunningJob._why_not(self, workers)

    def _scale(self, workers: int) -> str:
        """More than its nodes have room for come when Ray has found them a place."""
        if why_not := self._why_not(workers):
            return why_not
        staying, room = len(self.job.staying), self._free_slots()
        before, self._owed = self._owed, max(0, workers - staying - room)
        if self._owed > before:
            self._agents_on_ray.add(self._wishes.size.share(self._owed - before, 0))
        done = super()._scale(min(workers, staying + room))
        if not self._owed:
            return done
        self._output.say(f"Ray is asked for room for {self._owed} more")
        return f"{done}, and {self._owed} more as soon as Ray has room for them"

    def _free_slots(self) -> int:
        taken = sum(len(self._ranks_on(node)) for node in self._fleet.values())
        return sum(room.slots for room in self.rooms()) - taken

    def _turn(self) -> None:
        super()._turn()
        if self._servers is not None:
            self._servers.look()
        with contextlib.suppress(Empty):
            self._hear_of_failure(self._agents_on_ray.failures.get_nowait())

    def _hear_of_failure(self, failure: "AgentFailure") -> None:
        """Before the job runs it is a mistake. Then it is one that was to take another's place: it is tried again. Of
        one that was in the job, its connection has told already."""
        if not self._running:
            raise ConfigError(failure.why)
        if failure.name not in self._joined and not self.job.ending:
            self._output.say(failure.why)
            self._agents_on_ray.replace(failure.name, elsewhere=failure.for_good)

    def end(self) -> None:
        """Whatever is left, however it went."""
        if self._over:
            return
        self._over = True
        self.close()
        if self._agents_on_ray is not None:
            self._agents_on_ray.close()
        if self._servers is not None:
            self._servers.close()
        self._in_memory.close()


@contextlib.contextmanager
def _marker_in(folder: str) -> Iterator[str]:
    """A file that every node has to see in the folder; its name."""
    if not folder:
        yield ""
        return
    name = f".gradtide-{secrets.token_hex(8)}"
    path = Path(folder, name)
    try:
        os.makedirs(folder, exist_ok=True)
        path.touch()
    except OSError as error:
        raise OutputError(f"nothing can be written to {folder} ({error.strerror}); choose another folder") from None
    try:
        yield name
    finally:
        path.unlink(missing_ok=True)
