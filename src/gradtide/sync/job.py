"""The processes that train together, as this one sees them."""

import copy
import functools
import weakref
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from gradtide.collective import Group
from gradtide.environment import read_environment
from gradtide.errors import CommunicationError, ConfigError
from gradtide.events import Emit, Event
from gradtide.processes.job_protocol import Ask, Dismissed, Lost, Notice, Roster, Watcher, ask
from gradtide.sync.watching.stopwatch import Stopwatch
from gradtide.timeouts import Timeouts, default_timeouts
from gradtide.transport.authenticate import parse_address
from gradtide.transport.hosts import LookingStore, local_address, store_at
from gradtide.transport.keys import read_credentials
from gradtide.transport.registrar_line import RegistrarLine

__all__ = ["BatchShare", "Elastic", "Job", "LoopBegin", "current_job"]


@dataclass(frozen=True, slots=True)
class BatchShare:
    """This rank's part of a global batch."""

    samples: int
    of: int  # in the whole batch

    @property
    def weight(self) -> float:
        """How much a mean over this part counts in the mean over the whole batch."""
        return self.samples / self.of


class LoopBegin(msgspec.Struct, frozen=True, array_like=True):
    """How a loop over `shard` began, for workers over servers who come to it later."""

    batches: int  # that were given before it
    digest: str  # of its first batch
    generator: str  # the state of what its order is drawn from, if it is drawn


@dataclass(slots=True)
class Elastic:
    """What a worker of a job that outlives its workers knows: whom to ask, and where the job stands."""

    address: str  # of the registrar: an abstract socket's name, or host and port
    name: str  # of the job
    number: int  # this worker's, which stays when ranks change
    generation: int = 0  # of the group that it is in; 0: of none yet
    newcomer: bool = False  # whether it came when the others were under way
    _watcher: Watcher | RegistrarLine | None = None
    _told: Notice | None = None

    def ask(self, *, keeps: bool, busy: bool, done: tuple[int, int], timeout_s: float) -> Roster:
        """Who works together next, once all who live have asked."""
        return self._ask(Ask(self.number, self.generation, keeps, busy=busy, done=done), timeout_s)

    def living(self, timeout_s: float) -> set[int]:
        """Who lives just now, or is being started."""
        return set(self._ask(Ask(self.number, self.generation, living=True), timeout_s).ranks)

    def _ask(self, question: Ask, timeout_s: float) -> Roster:
        line = self._line()
        if isinstance(line, RegistrarLine):
            return line.ask(question, timeout_s)
        return ask(self.address, question, timeout_s)

    def join(self, decree: Roster, timeout_s: float) -> Group:
        """The group of that generation, on one machine or on several."""
        name, rank, size = (
            f"{self.name}-generation-{decree.generation}",
            decree.ranks.index(self.number),
            len(decree.ranks),
        )
        line = self._line()
        if not isinstance(line, RegistrarLine):
            return Group.join(name, rank, size, timeout_s=timeout_s)
        host, port = line.address.host, decree.store
        store = LookingStore(store_at(host, port, timeout_s), lambda: line.check(decree.generation))
        group = Group.from_store(name, store, rank, size, lambda: local_address(host, port), timeout_s=timeout_s)
        known = weakref.ref(group)

        def tell(lost: Lost) -> None:
            """A wire that was cut says nothing for long: the registrar knows sooner."""
            found = known()
            if found is not None and lost.generation == decree.generation:
                found.lose([decree.ranks.index(number) for number in lost.ranks if number in decree.ranks])

        line.on_lost = tell
        line.check(decree.generation)  # what it has said before it knew whom to tell
        return group

    def _line(self) -> Watcher | RegistrarLine:
        if self._watcher is None:
            self._watcher = _reach(self.address, self.number)
        return self._watcher

    def notice(self) -> Notice | None:
        """What the launcher has said since the last time: that somebody comes or is to go."""
        found = self._line().notice()
        self._told = found or self._told
        return found

    @property
    def going(self) -> tuple[int, ...]:
        """Who is to go, of those who work together now, as far as this worker was ever told."""
        self.notice()
        return () if self._told is None or self._told.generation != self.generation else tuple(self._told.going)


@dataclass(slots=True)
class Job:
    """Who works together. `shard` notes here which part of the batch is ours, and the model reads it."""

    rank: int = 0
    size: int = 1
    store: str | None = None  # the address of the job's parameter servers, if it has any
    elastic: Elastic | None = None  # set when the job goes on without a worker that dies
    incarnation: int = 0  # how often this worker was started again
    timeout_s: float = field(default_factory=lambda: default_timeouts().step_s)
    share: BatchShare | None = None  # of the batch that is being worked on; None when nobody said
    shares: dict[object, BatchShare] = field(default_factory=dict)  # of each loop over `shard` that is under way
    batches: int = 0  # that `shard` has given so far
    in_windows: bool = False  # whether workers take local steps, and meet now and then
    window: int = 0  # so many steps of them, as far as that is to be looked at
    held: tuple[int, int] | None = None  # until local steps meet: the rank (-1: none) and size that batches are cut by
    exchanges: int = 0  # about what is in batches that this worker has finished
    behind: int = 0  # batches that the others were given before this worker came
    begun: int = 0  # batches that `shard` had given before the first one of the step that is under way
    undone: int = 0  # batches whose step was lost with a worker: `shard` gives them again
    inside: int = 0  # loops over `shard` whose body is under way, one within another
    called: bool = False  # somebody comes or goes: who works together is asked before the next batch
    done: int = 0  # steps, and what was done together besides them (edits, means), that are finished
    stayed: bool = False  # what failed here when a worker died had been finished by another
    last_mean: list[float] = field(default_factory=list)  # of all workers' values
    edits: int = 0  # and means between loops, since the last batch or since the script said its epoch
    edits_before: int = 0  # the same before the first batch of the step that is under way
    arrived: bool = True  # not a newcomer that goes over what the others have done before it came
    past_edits: int = 0  # what they had done of `edits` by then
    apart: bool = False  # each worker comes and goes by itself, so they can't agree on anything but through servers
    agreed: int = 0  # the generation whose workers have agreed on what they go on with
    served: set[str] = field(default_factory=set)  # the addresses of servers that a model is trained through
    ended: set[str] = field(default_factory=set)  # clients of servers that were in trainings which ended here
    state: dict[str, Any] = field(default_factory=dict)  # the script's own, of plain values, which newcomers are told
    state_before: dict[str, Any] = field(default_factory=dict)  # the same before the step that is under way
    epoch_began: int = 0  # how many batches were given before this epoch of the script
    resumed: bool = False  # told, and not asked for yet
    loops: list[LoopBegin] = field(default_factory=list)  # of this epoch of the script, where newcomers need them
    least_part: int = 1  # samples that a part of a batch must have, where shares follow speed: 2 with batch norm
    nobody_waits: bool = False  # for anybody: a model is trained in async
    balance: Any = field(default=None, repr=False)  # what decides on the shares of the last loop that follow speed
    stopwatch: Stopwatch | None = field(default=None, repr=False)  # of the part that is being worked on
    reading: str = ""  # how the data of the last loop over `shard` is read, where that is worth a word
    news: list[Event] = field(default_factory=list)  # for whoever watches the model
    timeouts: Timeouts = field(default_factory=default_timeouts)
    trainings: "list[weakref.ref[Any]]" = field(default_factory=list, repr=False)  # the synchronisers that live
    stepped: int = 0  # batches that were given when the last step ended
    _group: Group | None = field(default=None, repr=False)
    _is_watched: bool = field(default=False, repr=False)

    @classmethod
    def of(cls, group: Group, store: str | None = None) -> "Job":
        return cls(group.rank, group.size, store, timeout_s=group.timeout_s, _group=group)

    @property
    def group(self) -> Group | None:
        """The ranks' group, joined when it is first asked for: training over servers needs none. None: one worker."""
        if self._group is None and self.elastic is not None and self.elastic.generation == 0:
            self.regroup()
        elif self._group is None and self.size > 1:
            self._group = Group.from_environment(timeout_s=self.timeout_s)
            self._group.set_notice(self.timeouts.notice_s)
            self._follow_clock()
        return self._group

    def wait_as(self, timeouts: Timeouts) -> None:
        """How long to wait for the others from now on."""
        self.timeouts, self.timeout_s = timeouts, timeouts.step_s
        if self._group is not None:
            self._group.timeout_s = timeouts.step_s
            self._group.set_notice(timeouts.notice_s)

    @property
    def epoch(self) -> int:
        """The script's epoch, as it says itself. One that came later, and asks, begins with this epoch's batches."""
        if self.resumed:
            self.resumed = False
            self.batches, self.behind = self.epoch_began, self.behind - self.epoch_began
        return int(self.state.get("epoch", 0))

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.resumed, self.state["epoch"], self.epoch_began, self.edits = False, epoch, self.batches, 0
        self.loops = [loop for loop in self.loops if loop.batches >= self.batches]

    @property
    def number(self) -> int:
        """This worker's, which stays when ranks change."""
        return self.rank if self.elastic is None else self.elastic.number

    @property
    def generation(self) -> int:
        """Of the workers who train together: it grows when one dies, comes or goes."""
        return 0 if self.elastic is None else self.elastic.generation

    @property
    def meets(self) -> bool:
        """Whether its workers can agree on something together; not when each comes and goes by itself over servers."""
        if self.elastic is not None:
            return not self.apart and (self.elastic.generation > 0 or self.store is None)
        return self._group is not None or (self.size > 1 and read_environment().launch is not None)

    def is_noticed(self) -> bool:
        """Whether the launcher has told this worker, since the last time, that somebody comes or goes."""
        notice = None if self.elastic is None else self.elastic.notice()
        return notice is not None and notice.generation == self.generation

    def _follow_clock(self) -> None:
        """Whoever watches is told how this host's clock stands to that of the first worker."""
        if self._group is not None and self._is_watched:
            self._group.compare_clocks(self.news.append)

    # --- what was lost with a worker ---

    @property
    def living(self) -> list[Any]:
        """The synchronisers; a job outlives the models that it trains, and does not keep them."""
        return [found for known in self.trainings if (found := known()) is not None]

    @property
    def keeps_gradients(self) -> bool:
        """Whether there are gradients that no step has taken yet, of batches that were given."""
        return any(one.keeps_gradients for one in self.living)

    @property
    def by_rounds(self) -> bool:
        """Whether who comes later finds its place by the servers' rounds, so that each batch must be one of them."""
        return self.apart and not self.in_windows and not self.nobody_waits

    def recover(self, error: CommunicationError) -> None:
        """Goes on with those who are left, where one died while all agreed on something between two steps."""
        trained = [one for one in self.living if one.can_go_on]
        if not trained:
            raise error
        trained[-1].recover(error)
        self.admit()

    def admit(self) -> None:
        """Between two batches: those who come join, and those who are to go leave. What they find is of whole batches,
        with all that the script's loop does for one."""
        while not self.inside and (called := [one for one in self.living if one.can_go_on and one.is_called]):
            called[-1].admit()

    def begin_step(self) -> None:
        """Its first batch is about to be given."""
        self.begun, self.edits_before, self.edits = self.batches, self.edits, 0
        if self.elastic is not None and not self.apart:
            self.state_before = copy.deepcopy(self.state)

    def take_state(self, state: dict[str, Any]) -> None:
        """The script has this very dict."""
        self.state.clear()
        self.state.update(copy.deepcopy(state))

    def arrive(self) -> None:
        """A newcomer is where the others are: what its script did to the model on the way never was."""
        if not self.arrived:
            self.arrived = True
            for one in self.living:
                one.arrive()

    def skips(self) -> bool:
        """Whether what the script does together with others now comes again, with a step that was lost, or was done by
        them before this worker came."""
        if self.undone or not self.arrived:
            return True
        if self.past_edits:
            self.past_edits, self.edits = self.past_edits - 1, self.edits + 1
            return True
        return False

    def did(self, *, told: bool) -> None:
        """All have done it. `told`: by one who had finished it, and has counted it."""
        self.done += not (told or self.before_step)
        self.edits += not self.inside

    @property
    def before_step(self) -> bool:
        """Whether what is done now comes again if the step that is under way is lost."""
        return bool(self.inside) and self.stepped != self.batches

    def take_back(self) -> int:
        """How many batches are to be given again; what their step did besides, on this worker, never was."""
        if self.undone:
            for one in self.living:
                one.take_back()
        return self.undone

    def watched(self, emit: Emit) -> Emit:
        """An observer that tells `emit`, and the stopwatch of a part that is measured."""

        def observe(event: Event) -> None:
            if self.stopwatch is not None:
                self.stopwatch.note(event, over_servers=bool(self.served))
            while self.news:
                emit(self.news.pop(0))
            emit(event)

        if not self._is_watched:
            self._is_watched = True
            self._follow_clock()
        return observe

    def leave(self) -> None:
        """One that was told nothing yet leaves its group, and comes anew when it asks for one."""
        assert self.elastic is not None
        if self._group is not None:
            self._group.close()
        self._group, self.elastic.generation = None, 0

    def regroup(self, *, keeps: bool = False, busy: bool = False, done: tuple[int, int] = (0, 0)) -> None:
        """Joins those who are left, and those who have come, once all of them ask. `keeps`: this worker has what nobody
        else has, and is not let go before it has handed that over. `busy`: it is in the middle of a batch, so whoever
        comes waits for the end of it. `done`: who is furthest tells the others."""
        assert self.elastic is not None
        if self._group is not None:
            self._group.close()
            self._group = None
        state = self.elastic
        decree = state.ask(keeps=keeps, busy=busy, done=done, timeout_s=2 * self.timeout_s)
        self.called = decree.busy
        state.newcomer = state.generation == 0 and decree.generation > 1
        state.generation = decree.generation
        if state.number not in decree.ranks:
            raise Dismissed(0)
        self.rank, self.size = decree.ranks.index(state.number), len(decree.ranks)
        if self.size > 1:
            self._group = state.join(decree, self.timeout_s)
            self._group.set_notice(self.timeouts.notice_s)
            self._follow_clock()

    @property
    def weight(self) -> float:
        """What this rank's gradient counts: its share of the samples, or, as in DDP, one part in as many as we are."""
        if len({share.weight for share in self.shares.values()}) > 1:
            raise ConfigError(
                "two loops over gradtide.shard are under way, and this worker's parts of their batches differ; give "
                "both sizes that are multiples of the number of workers, without balance, or zip the loaders inside of "
                "one shard"
            )
        return 1.0 / self.size if self.share is None else self.share.weight


def _reach(address: str, number: int) -> Watcher | RegistrarLine:
    """A job's registrar: on this machine by the name of a socket, else by host and port."""
    if not address.startswith(("tcp:", "tls:")):
        return Watcher(address, number)
    around = read_environment()
    credentials = read_credentials(around.secret_file or None)
    credentials = replace(credentials, insecure_network=around.insecure_network)
    return RegistrarLine(parse_address(address), credentials, number, around.incarnation)


@functools.cache
def current_job() -> Job:
    """The job that this process was started for: by gradtide run, by torchrun, or, with neither, one worker.

    The one thing a process keeps for itself, because `shard(loader)` and `DataParallel(model)` are about the same job.
    """
    around = read_environment()
    store = around.store or None
    if around.launch is None:
        return Job(store=store)
    launch = around.launch
    elastic = Elastic(around.members, launch.job, launch.rank) if around.members else None
    return Job(launch.rank, launch.size, store, elastic, around.incarnation)
