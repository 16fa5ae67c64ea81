"""Workers and agents, as far as a job's life goes: they ask, join, step together, beat, and end themselves."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from itertools import repeat
from random import Random
from typing import Any

import msgspec

from gradtide.launch.messages import Ended
from gradtide.launch.nodes.node import CLOSED, Hear, NodeGone
from gradtide.processes.job_protocol import Answer, Ask, LeaseAnswer, Lost, Notice, Roster, Watch, WorkerBeat
from gradtide.processes.lease import WorkerLease
from gradtide.testing.fleet.checks import Batch, TrainedBatches, Witness
from gradtide.testing.fleet.network import HEAD, OneWay, Wires

__all__ = ["FleetWorld", "Generation", "SimulatedNode", "SimulatedWorker"]

_DECODER: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)
_STEP_S = 0.2
_TICK_S = 0.4
_GUARD_S = 0.6
_BREAK_S = 5.0  # after which a kernel gives up a wire that was cut


@dataclass(slots=True)
class Generation:
    """A generation's group: who has joined it, what each adds to the step, who is gone from it."""

    roster: Roster
    joined: dict[int, "SimulatedWorker"] = field(default_factory=dict)
    added: dict[int, int] = field(default_factory=dict)  # by number, how many steps it has begun
    called: dict[int, bool] = field(default_factory=dict)  # by step, whether somebody comes or goes after it
    leavers: list["SimulatedWorker"] = field(default_factory=list)  # who is in it no more
    left: bool = False  # somebody gave it up before all had joined

    batches: dict[int, Batch] = field(default_factory=dict)  # by step

    def is_whole(self, step: int) -> bool:
        return min(map(self.added.get, self.roster.ranks, repeat(0))) >= step

    def batch(self, step: int) -> Batch:
        """Each worker's part counts by how many they are, as it knows."""
        workers = tuple(sorted(number for number, steps in self.added.items() if steps >= step))
        return Batch(workers, len(workers) * Fraction(1, len(self.roster.ranks)))


@dataclass(slots=True)
class FleetWorld:
    """What all of them share."""

    wires: Wires
    draw: Random
    witness: Witness
    steps: int
    lease_s: float
    heed_lease: bool = True  # False: a mutation, for a test that it is noticed
    meetings: dict[int, Generation] = field(default_factory=dict)
    greet: Callable[["WorkerGuest"], None] = lambda guest: None

    @property
    def now_s(self) -> float:
        return self.wires.clock.now_s

    def later(self, delay_s: float, place: int, action: Callable[[], None]) -> None:
        """Does it when time has passed and the place does not stand still."""

        def act() -> None:
            awake_s = self.wires.awake_at_s(place)
            if awake_s > self.now_s:
                self.wires.clock.after(awake_s - self.now_s, act)
            else:
                action()

        self.wires.clock.after(delay_s, act)


class WorkerGuest:
    """A worker's line, as the head sees it."""

    def __init__(self, world: FleetWorld, place: int, arrive: Callable[[bytes], None]) -> None:
        self.hear: Callable[[bytes], None] = lambda message: None
        self.lost: Callable[[str], None] = lambda why: None
        self.patient = False
        self.open = True
        self._back = OneWay(world.wires, HEAD, place, arrive)
        self._there = OneWay(world.wires, place, HEAD, self._arrived)

    def name(self, name: str) -> None:
        pass

    def say(self, message: Any) -> None:
        self._there.send(msgspec.json.encode(message))

    def close(self) -> None:
        """By the worker's end."""
        self._there.send(b"")

    def _arrived(self, message: bytes) -> None:
        if not self.open:
            return
        if message:
            self.hear(message)
        else:
            self.open = False
            self.lost(CLOSED)

    def tell(self, message: bytes) -> None:
        if self.open:
            self._back.send(message)

    def hang_up(self) -> None:
        self.open = False


class SimulatedWorker:
    """One process. Its group steps when all of it have begun the step, and reach each other."""

    def __init__(self, world: FleetWorld, node: "SimulatedNode", number: int, incarnation: int) -> None:
        self.world, self.node, self.number, self._incarnation = world, node, number, incarnation
        self.alive, self.generation, self.progress = True, 0, TrainedBatches()
        self._lease, self._notice = WorkerLease(), False
        self._line = WorkerGuest(world, node.place, self._hear)
        self._meeting: Generation | None = None
        self._finished = 0  # steps of this generation
        self.silent = False  # it died with its machine, which closed nothing
        world.later(world.draw.uniform(0.3, 3.0), node.place, self._begin)

    def _begin(self) -> None:
        if not self.alive:
            return
        self.world.greet(self._line)
        self._line.say(Watch(self.number, self._incarnation))
        self._line.say(WorkerBeat(self._lease.begin(self.world.now_s)))
        self._ask()
        self._tick()

    def _ask(self) -> None:
        self._leave()
        self._notice = False
        self._line.say(Ask(self.number, self.generation))

    def _leave(self) -> None:
        if self._meeting is not None:
            self._meeting.left = True
            self._meeting.leavers.append(self)
            self._meeting = None

    def _tick(self) -> None:
        if not self.alive:
            return
        now_s = self.world.now_s
        if self._lease.is_over(now_s) and self.world.heed_lease:
            self.world.witness.note(now_s, f"worker {self.number} ends itself")
            self.end(1)
            return
        if self._lease.is_due(now_s):
            self._line.say(WorkerBeat(self._lease.begin(now_s)))
        self.world.later(_TICK_S, self.node.place, self._tick)

    def _hear(self, message: bytes) -> None:
        if not self.alive:
            return
        match _DECODER.decode(message):
            case LeaseAnswer(number, lease_s):
                self._lease.answered(number, lease_s)
            case Roster() as roster:
                self._join(roster)
            case Notice(generation):
                self._notice |= generation == self.generation
            case Lost(generation):
                if self._meeting is not None and self._meeting.roster.generation == generation:
                    self._ask()

    def _join(self, roster: Roster) -> None:
        world = self.world
        world.witness.decreed(roster.generation, roster.ranks)
        self.generation = roster.generation
        if self.number not in roster.ranks:
            self.end(0)
            return
        self._finished = 0
        meeting = self._meeting = world.meetings.setdefault(roster.generation, Generation(roster))
        meeting.joined[self.number] = self
        if len(meeting.joined) == len(roster.ranks) and not meeting.left:
            first = meeting.joined[roster.ranks[0]].progress
            for worker in meeting.joined.values():
                worker.progress = first  # its rank 0 knows where the job stands
                worker._step(meeting)

    def _step(self, meeting: Generation) -> None:
        self.world.later(_STEP_S * self.world.draw.uniform(0.5, 1.5), self.node.place, lambda: self._add(meeting))

    def _add(self, meeting: Generation) -> None:
        """What this worker adds to the next step is with the others. The last one makes the step whole."""
        if not self.alive or self._meeting is not meeting:
            return
        step = meeting.added[self.number] = meeting.added.get(self.number, 0) + 1
        if meeting.is_whole(step):
            meeting.batches[step] = meeting.batch(step)
            meeting.called[step] = any(worker._notice for worker in meeting.joined.values())
            for worker in meeting.joined.values():
                if worker._reaches_all(meeting):
                    delay_s = self.world.wires.delay_s(self.node.place, worker.node.place)
                    self.world.later(delay_s, worker.node.place, partial(worker._finish, meeting, step))
        self._guard(meeting, step, self.world.now_s)

    def _reaches_all(self, meeting: Generation) -> bool:
        wires = self.world.wires
        if wires.is_whole:
            return True
        return all(wires.reaches(self.node.place, place) for place in {w.node.place for w in meeting.joined.values()})

    def _guard(self, meeting: Generation, step: int, since_s: float) -> None:
        """While the step is not finished: somebody may be dead, and its socket closed; or a wire is cut, and a kernel
        gives it up."""
        if not self.alive or self._meeting is not meeting or self._finished >= step:
            return
        world, reaches = self.world, self._reaches_all(meeting)
        if meeting.is_whole(step) and reaches:
            self._finish(meeting, step)
            return
        missing = [worker for worker in meeting.leavers if meeting.added.get(worker.number, 0) < step]
        if any(world.wires.reaches(self.node.place, worker.node.place) and not worker.silent for worker in missing) or (
            world.now_s - since_s > _BREAK_S and (missing or not reaches)
        ):
            self._ask()
        else:
            world.later(_GUARD_S, self.node.place, lambda: self._guard(meeting, step, since_s))

    def _finish(self, meeting: Generation, step: int) -> None:
        """A lease that has run out is waited for first: the others may have gone on."""
        world = self.world
        if not self.alive or self._meeting is not meeting or self._finished >= step:
            return
        if not self._lease.is_good(world.now_s) and world.heed_lease:
            world.later(_GUARD_S, self.node.place, lambda: self._finish(meeting, step))
            return
        self._finished = step
        world.witness.stepped(world.now_s, self.generation, self.number)
        self.progress = self.progress.then(meeting.batches[step])
        if len(self.progress.batches) == world.steps:
            world.witness.finished(self.number, self.generation, self.progress, world.steps)
            self.end(0)
        elif meeting.called[step]:  # all leave at the end of the same step
            self._ask()
        else:
            self._step(meeting)

    def fall_silent(self) -> None:
        """It dies with its machine."""
        self.alive, self.silent = False, True
        self._leave()

    def end(self, status: int) -> None:
        if self.alive:
            self.alive = False
            self._leave()
            self._line.close()
            self.node.ended(self, status)


class SimulatedNode:
    """A machine with an agent on it, as the head sees it and as it is."""

    def __init__(self, world: FleetWorld, place: int, name: str, slots: int) -> None:
        self.world, self.place, self.name, self.slots = world, place, name, slots
        self.ready, self.alive = True, True
        self.hear: Hear = lambda event: None
        self.workers: dict[int, SimulatedWorker] = {}
        self._heard_s = self._head_heard_s = world.now_s
        self._known = True  # to the head
        self._there = OneWay(world.wires, HEAD, place, self._arrived)
        self._back = OneWay(world.wires, place, HEAD, self._arrived_at_head)
        self._beat()
        self._watch()

    # --- the head's side ---

    def start(self, rank: int, variables: Mapping[str, str]) -> None:
        self._there.send(msgspec.json.encode(["start", rank, int(variables["GRADTIDE_INCARNATION"])]))

    def forward(self, number: int, ranks: tuple[int, ...], grace_s: float) -> None:
        for rank in ranks:
            self._there.send(msgspec.json.encode(["kill", rank, 0]))

    def kill(self) -> None:
        self._there.send(msgspec.json.encode(["leave", 0, 0]))

    def close(self) -> None:
        pass

    def _arrived_at_head(self, message: bytes) -> None:
        if not self._known:
            return
        self._head_heard_s = self.world.now_s
        word, rank, status = msgspec.json.decode(message)
        if word == "ended":
            self.hear(Ended(rank, status, self.world.now_s))
        elif word == "closed":
            self._known = False
            self.hear(NodeGone(CLOSED))

    def _watch(self) -> None:
        """What the head's door does: asks the quiet, and gives up who does not answer."""
        if not self._known:
            return
        if self.world.now_s - self._head_heard_s > self.world.lease_s:
            self._known = False
            self.hear(NodeGone("it has not answered"))
            return
        self._there.send(msgspec.json.encode(["beat", 0, 0]))
        self.world.wires.clock.after(self.world.lease_s / 4, self._watch)

    # --- the machine's side ---

    def _arrived(self, message: bytes) -> None:
        if not self.alive:
            return
        self._heard_s = self.world.now_s
        word, rank, incarnation = msgspec.json.decode(message)
        if word == "start":
            self.workers[rank] = SimulatedWorker(self.world, self, rank, incarnation)
        elif word == "kill" and rank in self.workers:
            self.workers[rank].end(-9)
        elif word == "leave":
            self.die()

    def _beat(self) -> None:
        if not self.alive:
            return
        if self.world.now_s - self._heard_s > 2 * self.world.lease_s and self.world.heed_lease:
            self.die()
            return
        self._back.send(msgspec.json.encode(["beat", 0, 0]))
        self.world.later(self.world.lease_s / 4, self.place, self._beat)

    def ended(self, worker: SimulatedWorker, status: int) -> None:
        if self.alive:
            self._back.send(msgspec.json.encode(["ended", worker.number, status]))

    def leave_orphans(self) -> None:
        """The agent dies, and its workers live on: their fork server stands still, for example."""
        if self.alive:
            self.alive = False
            self._back.send(msgspec.json.encode(["closed", 0, 0]))

    def die(self, *, silently: bool = False) -> None:
        """With all its workers. `silently`: a machine that loses power closes nothing."""
        if not self.alive:
            return
        self.alive = False
        if not silently:
            self._back.send(msgspec.json.encode(["closed", 0, 0]))
        for worker in self.workers.values():
            if silently:
                worker.fall_silent()
            else:
                worker.end(-9)
