"""A job on several nodes: which worker is where, what becomes of those whose node is lost, and who takes their place.

It knows no socket: head.py brings nodes and workers' lines in, and the simulator (testing/fleet/) does so on a virtual
clock.
"""

import signal
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from gradtide.launch.members import Members
from gradtide.launch.messages import Ended, Event, Failure
from gradtide.launch.nodes.node import Hear, JobNode, NodeGone
from gradtide.launch.nodes.placement import NodeRoom, place_workers, room_on, slots_of
from gradtide.launch.nodes.worker_lines import WorkerLines
from gradtide.launch.registrar import GenerationStores, Registrar
from gradtide.launch.running import MakeOutput, RunningJob
from gradtide.launch.spec import Spec, variables_between

__all__ = ["FleetJob", "FleetNode"]


class FleetNode(JobNode, Protocol):
    """A node that says how many workers it takes (0: as many as the job likes)."""

    slots: int
    hear: Hear


class FleetJob(RunningJob):
    """`join` takes a node in, `start_all` starts the workers; whatever happens to them comes by the nodes' `hear`."""

    def __init__(
        self,
        spec: Spec,
        output: MakeOutput,
        stores: GenerationStores,
        *,
        lease_s: float,
        workers_per_node: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(spec, output, clock)
        self.workers_per_node = workers_per_node
        self._fleet: dict[str, FleetNode] = {}  # that live, by name
        self._homes: dict[int, FleetNode] = {}  # of every worker that was started
        self._local_ranks: dict[int, int] = {}  # of the same, on their nodes
        self._homeless: list[tuple[int, int]] = []  # workers, and their incarnations, for which there is no room yet
        self._stuck_since_s: float | None = None  # since when the job waits for room, and does nothing else
        self._told: set[tuple[int, int]] = set()  # of whom it was said that they wait
        self._owed = 0  # workers that died with their nodes, and may be replaced
        self._expected = 1  # nodes
        self._dying: list[tuple[FleetNode, str]] = []  # nodes that are lost, until their workers have stopped
        self.lines: WorkerLines | None = None
        if spec.elastic:
            self._registrar = Registrar(self._scale, Members(patience_s=spec.patience_s), clock)
            self._registrar.stores = stores
            self.lines = WorkerLines(self._registrar, lease_s, clock)

    # --- nodes ---

    def join(self, node: FleetNode) -> None:
        """An agent has come."""
        node.hear = lambda event: self._heard(node, event)
        self._fleet[node.name] = node
        if self._running:
            self._output.say(f"node {node.name} has joined")
            self._use_room()

    def rooms(self) -> list[NodeRoom]:
        return [NodeRoom(node.name, self._slots(node.slots)) for node in self._fleet.values()]

    def _slots(self, offered: int) -> int:
        return slots_of(offered, self.workers_per_node, self.spec.workers, self._expected)

    def _heard(self, node: JobNode, event: Event | NodeGone) -> None:
        super()._heard(node, event)
        if isinstance(event, Ended):
            self._use_room()

    def _node_gone(self, node: JobNode, why: str) -> None:
        """All its workers have failed, at once: as soon as none of them can go on any more."""
        if self._fleet.get(node.name) is not node:
            return
        lost = self._fleet.pop(node.name)
        self._dying.append((lost, why))
        if self.lines is not None:
            self.lines.condemn(self._ranks_on(lost))
        if not self.job.ending:
            self._output.say(f"node {node.name} is lost: {why}")
        self.bury_nodes()

    def bury_nodes(self) -> None:
        """To be called several times a lease."""
        now_s = self._clock()
        for dying in list(self._dying):
            node, why = dying
            lines, ranks = self.lines, self._ranks_on(node)
            if lines is None or all(lines.may_live_until_s(rank) <= now_s for rank in ranks):
                self._dying.remove(dying)
                self._bury_node(node, why, sorted(ranks))
        if self._stuck_since_s is not None and now_s > self._stuck_since_s + self.spec.patience_s:
            for rank, _ in list(self._homeless):
                self._end_late(rank)

    def _bury_node(self, node: FleetNode, why: str, ranks: list[int]) -> None:
        now_s = self._clock()
        if self.spec.elastic and not self.spec.max_restarts:
            self._owed += len([rank for rank in ranks if rank not in self.job.going])
        for rank in ranks:
            how = f"was lost with node {node.name}: {why}"
            self._act(self.job.reported(Failure(rank, now_s, "", how)))
        for rank in ranks:
            self._bury(rank)
            self._act(self.job.ended(rank, -signal.SIGKILL, now_s))
        self._use_room()

    # --- workers ---

    def start_all(self, places: list[str]) -> None:
        """`places`: each worker's node, as `placed` says."""
        self._running = True
        for rank, name in enumerate(places):
            self._settle_down(rank, self._fleet[name])
        for rank in range(self.spec.workers):
            self._launch(rank, 0)

    def placed(self) -> list[str]:
        return place_workers(self.spec.workers, self.rooms())

    def _nodes(self) -> Iterable[JobNode]:
        return list(self._fleet.values())

    def _home_of(self, rank: int) -> JobNode | None:
        return self._homes.get(rank)

    def _start(self, rank: int, incarnation: int) -> None:
        """Where there is room, or else when there is."""
        self._homes.pop(rank, None)
        name = self._room()
        if name is None:
            self._wait_for_room(rank, incarnation)
        else:
            self._settle_down(rank, self._fleet[name])
            self._launch(rank, incarnation)

    def _wait_for_room(self, rank: int, incarnation: int) -> None:
        """The others work on meanwhile, if they are enough."""
        self._homeless.append((rank, incarnation))
        homes = len(self.job.running) - len(self._homeless)
        goes_on = homes >= self.spec.needed and self._registrar is not None
        if goes_on and self._registrar is not None:
            self._registrar.members.absent.update(other for other, _ in self._homeless)
        elif self._stuck_since_s is None:
            self._stuck_since_s = self._clock()
        if (rank, incarnation) not in self._told:
            self._told.add((rank, incarnation))
            self._output.say(
                f"worker {rank} waits for a node with room" + ("" if goes_on else ", and the others for it")
            )

    def _end_late(self, rank: int) -> None:
        if rank not in [other for other, _ in self._homeless]:
            super()._end_late(rank)
            return
        self._homeless = [(other, incarnation) for other, incarnation in self._homeless if other != rank]
        self._bury(rank)
        how = "found no node with room; add nodes, or offer more slots"
        self._act(self.job.gave_up(Failure(rank, self._clock(), "", how)))

    def _room(self) -> str | None:
        taken = {node.name: len(self._ranks_on(node)) for node in self._fleet.values()}
        return room_on(self.rooms(), taken)

    def _ranks_on(self, node: FleetNode) -> list[int]:
        return [rank for rank in self.job.running if self._homes.get(rank) is node]

    def _settle_down(self, rank: int, node: FleetNode) -> None:
        taken = {self._local_ranks[other] for other in self._ranks_on(node) if other != rank}
        self._homes[rank] = node
        self._local_ranks[rank] = next(local for local in range(len(taken) + 1) if local not in taken)

    def _launch(self, rank: int, incarnation: int) -> None:
        home = self._homes[rank]
        place = list(self._fleet).index(home.name), len(self._fleet)
        local = self._local_ranks[rank], len(self._ranks_on(home))
        usual = variables_between(self.spec, rank, incarnation, local, place)
        if self._registrar is not None:
            self._registrar.members.absent.discard(rank)
        if self.lines is not None:
            self.lines.began(rank, incarnation)
        home.start(rank, usual | self._variables)

    def _bury(self, rank: int, *, died: bool = True) -> None:
        super()._bury(rank, died=died)
        if self.lines is not None:
            self.lines.ended(rank)

    def _unstick(self) -> float | None:
        before_s, self._stuck_since_s = self._stuck_since_s, None
        return before_s

    def _use_room(self) -> None:
        """There may be room now for those who wait for it, and for more in place of those who died with a node."""
        if self.job.ending or not self._running:
            return
        waiting, self._homeless = self._homeless, []
        if self.job.finished:  # they would do it all over again, alone
            for rank, _ in waiting:
                self._bury(rank)
                self.job.leave_out(rank)
            return
        before_s = self._unstick()
        for rank, incarnation in waiting:
            self._start(rank, incarnation)
        if self._stuck_since_s is not None:
            self._stuck_since_s = before_s or self._stuck_since_s  # still
        while self._owed and self._registrar is not None and self._room() is not None:
            self._owed -= 1
            rank = self._add()
            self._output.say(f"worker {rank} is started on node {self._homes[rank].name}, and will join the others")

    def _why_not(self, workers: int) -> str:
        slots = sum(room.slots for room in self.rooms())
        short = f"{workers} workers need {workers} slots, and the nodes have {slots}; add nodes, or offer more slots"
        return super()._why_not(workers) or (short if workers > slots else "")
