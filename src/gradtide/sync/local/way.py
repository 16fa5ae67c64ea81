"""The way of workers that step by themselves and meet over collectives."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gradtide.collective import Group
from gradtide.collective.groups.device_group import DeviceGroup
from gradtide.errors import CommunicationError, ConfigError
from gradtide.events import Emit, GradientsSynchronised, Waiting
from gradtide.sync.compressed.state import holds_something
from gradtide.sync.job import Job
from gradtide.sync.local.inside import InsideHost
from gradtide.sync.local.outer import ChangeRoom, OuterState, WindowBase
from gradtide.sync.local.progress import APART, GATHERED, MEETING, WindowMembers, WindowProgress, gather_progress
from gradtide.sync.local.settings import Local
from gradtide.sync.local.smaller import SmallerChanges
from gradtide.sync.reduce import Reduce
from gradtide.sync.state import Options, share_buffers, share_named, share_place
from gradtide.sync.trained import Trained
from gradtide.sync.watching.alike import is_due_at_meeting, look_whether_alike

__all__ = ["LocalSteps"]


class LocalSteps:
    """The way of workers that step by themselves and meet now and then; `dense` is theirs until then."""

    is_collective, store, servers_step, workers_step, one_weight = True, None, False, True, False
    asked_to_look = False

    def __init__(
        self,
        trained: Trained,
        job: Job,
        group: Group | DeviceGroup | None,
        local: Local,
        known: OuterState,
        dense: Reduce | None,
        emit: Emit,
    ) -> None:
        self._trained, self._job, self._group, self._local, self._emit = trained, job, group, local, emit
        self._dense, self._known, self._options = dense, known, Options(trained)
        self.inside: InsideHost | None = None  # who takes every step with this worker
        self._smaller: SmallerChanges | None = None
        self._steps = 0  # since the last meeting
        self._began_one = False  # since then: of several optimizers one has stepped, and the last one may not have
        self._samples = self._counted = 0.0  # and what this worker has seen in them, and before the last meeting
        self._terms: float | None = None  # what the user said that the next backward's loss is a mean over
        self._stage = APART
        self._calling, self._called = 0.0, False  # how many say in a meeting that somebody comes or goes; it was said
        self._awaited = False  # whether somebody may wait for the next meeting, since one of the others has died
        self._mean_buffers: list[tuple[Tensor, Tensor]] = []  # of the meeting that is under way, when it is GATHERED
        self._cut = self._met_as = job.rank, job.size  # by which this window's batches are cut, and the next one's
        stepped = zip(trained.names, trained.parameters, trained.group_of(), strict=True)
        own = {name: parameter for name, parameter, group in stepped if group >= 0}
        self._base = WindowBase(local.rule, own, known)
        known.generation, known.alike = job.generation, False
        self.reason = self._explain()

    def make_smaller(self, smaller: SmallerChanges) -> None:
        """What workers have changed is compressed where they meet."""
        self._smaller = smaller
        self.reason = f"{self._explain()}; {smaller.describe(self._job.group)}"

    def _explain(self) -> str:
        size = self._base.nbytes
        sent = size if self._smaller is None else self._smaller.size_bytes
        begin = f"after {self._local.after} steps taken together, " if self._local.after else ""
        who = "worker" if self._local.within is None else "host"
        how = "averaged" if self._local.outer is None else f"stepped by an outer {self._local.rule.name}"
        return (
            f"local steps: {begin}each {who} steps by itself, and every {self._local.every} steps they are {how}: "
            f"{sent / self._local.every / 1e6:.3g} MB to be synchronised a step instead of {size / 1e6:.3g}"
        )

    def go_on_from(self, before: "LocalSteps") -> None:
        """Other parameters are trained from now on, or by others: a backward that was is one of this window's."""
        self._samples, self._counted, self._terms = before._samples, before._counted, before._terms

    @property
    def room(self) -> ChangeRoom:
        """Where changes are averaged."""
        return self._base.room

    @property
    def together(self) -> bool:
        """Whether this step is still taken together."""
        return self._known.steps < self._local.after

    # --- a gradient's way ---

    @property
    def _reduce(self) -> Reduce | None:
        """How this step's gradients are added up, if it is taken together: by all, or inside of a host."""
        if self.together:
            return self._dense
        return None if self.inside is None else self.inside.reduce

    def measure(self, weight: float) -> float:
        if self.together:
            return weight
        return float(weight > 0) if self.inside is None else self.inside.measure(weight)

    def ready(self, index: int, weight: float) -> None:
        if (reduce := self._reduce) is not None:
            reduce.ready(index, weight)

    def synchronise(self, weights: Sequence[float], late: bool) -> None:
        if (reduce := self._reduce) is not None:
            reduce.synchronise(weights, late)
            if not self.together and self.inside is not None and self.inside.saw_nothing:
                for parameter in self._trained.parameters:
                    parameter.grad = None
            return
        for parameter, weight in zip(self._trained.parameters, weights, strict=True):
            if weight == 0.0:  # of a part that counts nothing: no step is taken with it
                parameter.grad = None
        self._emit(GradientsSynchronised(0))

    def saw(self) -> None:
        share = self._job.share
        samples = 1.0 if share is None else float(share.samples)
        self._samples += samples if self._terms is None else self._terms
        self._terms = None

    def check_step(self) -> None:
        if (reduce := self._reduce) is not None:
            reduce.check_step()
        if not self.together:
            self._began_one = True
            self._options.stepped()

    def step(self, weights: Sequence[float]) -> None:
        """The optimizers take it."""

    def stepped(self) -> None:
        together = self.together
        self._known.steps += 1
        if together:
            self._samples = 0.0
            if not self.together:  # from here on each steps by itself
                self._base.take()
            return
        self._steps += 1
        if self._steps >= self._local.every:
            self.meet()

    def weigh(self, terms: float, otherwise: float) -> float:
        if self.together and self._dense is not None:
            return self._dense.weigh(terms, otherwise)
        self._terms = terms
        if self.inside is not None:
            return self.inside.reduce.weigh(terms, self.inside.measure(otherwise))
        return float(terms > 0)

    # --- where workers meet ---

    def meet(self) -> None:
        """Everybody's parameters become the base, stepped by what all have changed.

        In a job that goes on without a worker that dies, nobody ends the meeting before all have what it needs. That
        all went on from the same base is found out first: who dies meanwhile is missing in a meeting as in any other.
        """
        self._emit(Waiting())
        self._stage, self._met_as = MEETING, (self._job.rank, self._job.size)
        self._look()
        if self._group is not None:
            told = self._options.told()
            self._group.all_reduce(told, "max")
            self._options.settle(told, self._group)
        calls = self._job.is_noticed() or self._awaited
        sums = torch.tensor([self._samples, self._counted, calls], dtype=torch.float64)
        total, counted, self._calling = self.add_up(sums).tolist()
        if not total:  # a second step with the gradients of the last window
            self._samples, total = self._counted, counted
        counts = self._counts() if total else 1.0
        self._base.note_changes()
        sent_bytes = self._average_changes(counts, total or float(self._job.size))
        self._mean_buffers = self._average_buffers(counts, total or float(self._job.size))
        self._stage = GATHERED
        if self._job.elastic is not None and self._job.group is not None:
            self._job.group.barrier()
        self._end_meeting()
        self._emit(GradientsSynchronised(sent_bytes))

    def _look(self) -> None:
        """A base that is not the same on all is refused, before anything becomes of it."""
        if self._job.group is not None and is_due_at_meeting(self._known.windows + 1, self._local.every):
            look_whether_alike(self._trained, self, self._job.group, base=self._base.by_parameter)

    @torch.no_grad()
    def _average_changes(self, counts: float, total: float) -> int:
        """Returns how many bytes were sent of them."""
        smaller, flats = self._smaller, self._base.room.flat
        if smaller is None or smaller.is_whole(self._known.steps):
            for flat in flats:
                self._average(flat, counts, total)
            return sum(flat.nbytes for flat in flats)
        assert not isinstance(self._group, DeviceGroup)
        smaller.average(self._group, counts / total, self._known.windows)
        if self.inside is not None and smaller.is_of_leaders:
            for flat in flats:
                self.inside.spread(flat)
        return smaller.sent_bytes

    def _counts(self) -> float:
        """What this worker's change counts: its samples, or, of workers that are alike, those of all by one of them."""
        if self.inside is None:
            return self._samples
        all_here = self.inside.add_up(self._samples)
        return all_here if self.inside.leads else 0.0

    def _end_meeting(self) -> None:
        self._base.step()
        if self._smaller is not None:
            self._smaller.ended()
        for buffer, mean in self._mean_buffers:
            buffer.copy_(mean)
        self._mean_buffers = []
        self._stage, self._steps, self._began_one = APART, 0, False
        self._counted, self._samples = self._samples, 0.0
        self._called = self._called or self._calling > 0
        self._known.windows += 1
        self._options.met()
        self._job.held, self._cut = None, self._met_as

    @torch.no_grad()
    def _average(self, tensor: Tensor, counts: float, total: float) -> None:
        if self._group is not None:
            tensor.mul_(counts)
            self._group.all_reduce(tensor)
            tensor.div_(total)

    def _average_buffers(self, counts: float, total: float) -> list[tuple[Tensor, Tensor]]:
        """Running statistics are averaged as parameters are; counters become the largest."""
        if self._group is None:
            return []
        found = []
        for _, buffer in self._trained.buffers:
            if buffer.is_floating_point() or buffer.is_complex():
                mean = self._average_one(buffer, counts / total)
            elif buffer.dtype == torch.bool:
                mean = self._group.broadcast(buffer.clone())
            else:
                mean = self._group.all_reduce(buffer.clone(), "max")
            found.append((buffer, mean))
        return found

    def _average_one(self, buffer: Tensor, share: float) -> Tensor:
        """In double precision and by shares, so that masks (-inf, or the least number of their type) stay what they
        are: no product is larger than its number, and who has seen nothing gives nothing, not 0 times infinity."""
        assert self._group is not None
        wide = torch.promote_types(buffer.dtype, torch.float64)
        mean = buffer.to(wide).mul_(share) if share else torch.zeros_like(buffer, dtype=wide)
        self._group.all_reduce(mean)
        return mean

    # --- when workers come, go and die ---

    def rejoin(self, group: Group | DeviceGroup | None, *, asking: bool) -> bool:
        """Goes on with the next members, from where this worker is. False: steps are still taken together, so all of
        them begin from the last one, as on other ways."""
        self._group, self._called = group, False
        members = gather_progress(self._progress(asking), self._job.group)
        self._known.generation = self._job.generation
        if members.steps < self._local.after:
            return False
        self._awaited, self._job.called = self._job.called, False
        members.check()
        if members.ends(self._progress(asking)):
            self._end_meeting()
        self._called = members.fresh and self._awaited
        self._begin_among(members)
        return True

    def join(self, members: WindowMembers) -> None:
        """A newcomer begins from the base, with a window of the others."""
        members.check()
        if self._job.batches or not members.fresh:
            raise CommunicationError("this worker lost the others before it had begun with them; start the job again")
        place = members.all[0]
        self._known.steps, self._known.windows = place.steps, place.windows
        self._job.exchanges = place.exchanges
        self._begin_among(members, newcomer=True)

    @property
    def is_called(self) -> bool:
        """Whether it was said where all met that somebody comes or goes, and no window has begun since."""
        return self._called and not self._has_begun

    @property
    def _has_begun(self) -> bool:
        return self._steps > 0 or self._samples > 0

    def hand_over(self, number: int, going: Sequence[int]) -> None:
        """All ranks, when somebody comes or goes: nothing that compression has left out goes with it."""
        if self._smaller is not None and self._job.group is not None:
            self._smaller.hand_over(self._job.group, number, going)

    @property
    def is_meeting(self) -> bool:
        """Whether a meeting was begun that has not ended."""
        return self._stage != APART

    def _begin_among(self, members: WindowMembers, *, newcomer: bool = False) -> None:
        if members.fresh:
            self._job.held, self._cut = None, (self._job.rank, self._job.size)
        else:
            self._job.held = self._cut
        if members.newcomers:
            self._share_base(newcomer)

    def _share_base(self, newcomer: bool, root: int = 0) -> None:
        """Newcomers get the base, what the outer optimizer remembers, and one worker's place and optimizer state."""
        group = self._group
        assert group is not None
        assert self._job.group is not None
        for name, parameter in self._trained.everything:
            value = self._base.values.get(name, parameter).data
            group.broadcast(value if newcomer else value.clone(), root)  # what differs on the others is found out later
        for _, buffer in self._trained.buffers:
            group.broadcast(buffer if newcomer else buffer.clone(), root)
        self._base.tell(self._known)
        of = share_named(self._known.of, self._job.group, group, root)
        share_place(self._trained, self._job, group, root, newcomer)
        if newcomer:
            self._known.of = of
            self._base.remember(self._known)
            self._base.give()

    def _progress(self, asking: bool) -> WindowProgress:
        known, job = self._known, self._job
        return WindowProgress(
            1, known.steps, known.windows, self._steps, self._has_begun, self._stage, asking, job.exchanges
        )

    # --- what a checkpoint holds besides the model and each worker's optimizer ---

    def state(self) -> dict[str, Any]:
        """What the outer optimizer remembers, by names of parameters, and how many steps and windows there were."""
        self._check_met("kept")
        self._base.tell(self._known)
        outer = {name: _copied(state) for name, state in self._known.of.items()}
        smaller = {} if self._smaller is None else {"compression": self._smaller.state()}
        known, rule = self._known, self._local.rule.name
        return {"steps": known.steps, "windows": known.windows, "rule": rule, "outer": outer, **smaller}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """All workers go on with what worker 0 was given, and each with what compression had left out of its own."""
        self._check_met("loaded")
        left = state.get("compression")
        if left and self._smaller is None and holds_something(left):
            raise ConfigError("this state has what compression left out; load it with the same compress=")
        if (rule := state.get("rule", self._local.rule.name)) != self._local.rule.name:
            raise ConfigError(
                f"the state is of an outer {rule}, and this one is {self._local.rule.name}; load it with the same"
            )
        outer = {name: dict(of) for name, of in state["outer"].items()}
        parameters = dict(self._trained.everything)
        for name, of in outer.items():
            if name not in parameters:
                raise ConfigError(f"the state is of another model: it has {name!r}, and this one has not")
            shapes = [tuple(v.shape) for v in of.values() if isinstance(v, Tensor) and v.dim()]
            if any(shape != tuple(parameters[name].shape) for shape in shapes):
                raise ConfigError(f"the state is of another model: there {name!r} is {shapes[0]}")
        numbers = torch.tensor([state["steps"], state["windows"]])
        if self._group is not None and self._job.group is not None:
            outer = share_named(outer, self._job.group, self._group, 0)
            self._job.group.broadcast(numbers)
        self._known.of = outer
        self._known.steps, self._known.windows = numbers.tolist()
        self._base.remember(self._known)
        self._base.take()
        if left and self._smaller is not None:
            self._smaller.load_state(left)
        if self._smaller is not None and self._smaller.is_of_leaders and self.inside is not None:
            self._smaller.leave_to_leader(self.inside)

    def _check_met(self, done: str) -> None:
        if self.apart:
            raise ConfigError(
                f"each worker has taken {self.apart} steps by itself since they last met, and this can't be {done} in "
                "between; do it at a multiple of Local's steps, or call model.meet() on all workers first"
            )

    # --- besides gradients ---

    @contextmanager
    def edit(self) -> Iterator[None]:
        """All meet first, so that what is changed is the same on all."""
        self.finish()
        yield
        if self._group is not None:
            for _, parameter in self._trained.everything:
                self._group.broadcast(parameter.data)
            share_buffers(self._trained, self._group)
        self._base.take()

    def begin_with(self, names: Sequence[str]) -> None:
        """All have loaded the same values of these parameters, where they have just met."""
        self._base.take(names)

    def share_buffers(self, root: int = 0) -> None:
        if (reduce := self._reduce) is not None:
            reduce.share_buffers(root)

    def add_up(self, numbers: Tensor) -> Tensor:
        if self._group is not None:
            self._group.all_reduce(numbers)
        return numbers

    @property
    def led(self) -> bool:
        return self._job.rank == 0

    @property
    def apart(self) -> int:
        """How many steps each worker has taken by itself since the last meeting."""
        return self._steps or int(self._began_one)

    def depart(self) -> None:
        """What this worker has, it gives where all meet; the next group is formed without it."""

    def finish(self) -> None:
        """The last window may be a shorter one, and end between the steps of two optimizers."""
        if self.apart:
            self.meet()

    def has_in_common(self, tensor: Tensor) -> bool:
        return False

    def ask_to_look(self) -> None:
        """They look where they meet."""

    def begin_again(self) -> None:
        """There are no servers that could have lost anything."""

    def close(self) -> None:
        self._base.tell(self._known)


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.detach().clone() if isinstance(value, Tensor) else value for key, value in state.items()}
