"""The way of workers that step by themselves and meet over collectives."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from gradtide.collective import Group
from gradtide.collective.groups.device_group import DeviceGroup
from gradtide.events import Emit, GradientsSynchronised, Waiting
from gradtide.store.rules.updates import make_optimizer
from gradtide.sync.job import Job
from gradtide.sync.local.outer import ChangeRoom, OuterState, state_like
from gradtide.sync.local.settings import Local
from gradtide.sync.reduce import Reduce
from gradtide.sync.state import Options
from gradtide.sync.trained import Trained

__all__ = ["LocalSteps"]


class LocalSteps:
    """The way of workers that step by themselves and meet now and then; `dense` is theirs until then."""

    is_collective, store, servers_step, workers_step, one_weight = True, None, False, True, False

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
        self._steps = 0  # since the last meeting
        self._samples = 0.0  # and what this worker has seen in them
        self._terms: float | None = None  # what the user said that the next backward's loss is a mean over
        stepped = zip(trained.names, trained.parameters, trained.group_of(), strict=True)
        self._stepped = {name: parameter for name, parameter, group in stepped if group >= 0}
        with torch.no_grad():
            self._base = {name: nn.Parameter(p.detach().clone()) for name, p in self._stepped.items()}
        self._outer = make_optimizer(local.rule, list(self._base.values()))
        for name, base in self._base.items():
            if name in known.of:
                self._outer.state[base] = {key: state_like(value, base) for key, value in known.of[name].items()}
        self._room = ChangeRoom(list(self._base.values()))
        self.reason = self._explain()

    def _explain(self) -> str:
        size = sum(base.nbytes for base in self._base.values())
        begin = f"after {self._local.after} steps taken together, " if self._local.after else ""
        how = "averaged" if self._local.outer is None else f"stepped by an outer {self._local.rule.name}"
        return (
            f"local steps: {begin}each worker steps by itself, and every {self._local.every} steps they are {how}: "
            f"{size / self._local.every / 1e6:.3g} MB to be synchronised a step instead of {size / 1e6:.3g}"
        )

    @property
    def _together(self) -> bool:
        """Whether this step is still taken together."""
        return self._known.steps < self._local.after

    # --- a gradient's way ---

    def measure(self, weight: float) -> float:
        return weight if self._together else float(weight > 0)

    def ready(self, index: int, weight: float) -> None:
        if self._together and self._dense is not None:
            self._dense.ready(index, weight)

    def synchronise(self, weights: Sequence[float], late: bool) -> None:
        if self._together and self._dense is not None:
            self._dense.synchronise(weights, late)
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
        if self._together and self._dense is not None:
            self._dense.check_step()
        else:
            self._options.stepped()

    def step(self, weights: Sequence[float]) -> None:
        """The optimizers take it."""

    def stepped(self) -> None:
        together = self._together
        self._known.steps += 1
        if together:
            self._samples = 0.0
            if not self._together:
                self._begin()
            return
        self._steps += 1
        if self._steps >= self._local.every:
            self._meet()

    def weigh(self, terms: float, otherwise: float) -> float:
        if self._together and self._dense is not None:
            return self._dense.weigh(terms, otherwise)
        self._terms = terms
        return float(terms > 0)

    # --- where workers meet ---

    def _begin(self) -> None:
        """From here on each steps by itself."""
        with torch.no_grad():
            for name, parameter in self._stepped.items():
                self._base[name].copy_(parameter)

    def _meet(self) -> None:
        """Everybody's parameters become the base, stepped by what all have changed."""
        self._emit(Waiting())
        if self._group is not None:
            told = self._options.told()
            self._group.all_reduce(told, "max")
            self._options.settle(told, self._group)
        total = float(self.add_up(torch.tensor([self._samples], dtype=torch.float64)))
        counts = self._samples if total else 1.0
        with torch.no_grad():
            for change, base, own in zip(self._room.views, self._base.values(), self._stepped.values(), strict=True):
                torch.sub(base, own, out=change)
            for flat in self._room.flat:
                self._average(flat, counts, total or float(self._job.size))
            for change, base in zip(self._room.views, self._base.values(), strict=True):
                base.grad = change
            self._outer.step()
            for base, own in zip(self._base.values(), self._stepped.values(), strict=True):
                base.grad = None
                own.copy_(base)
        self._average_buffers(counts, total or float(self._job.size))
        self._emit(GradientsSynchronised(sum(flat.nbytes for flat in self._room.flat)))
        self._steps, self._samples = 0, 0.0

    def _average(self, tensor: Tensor, counts: float, total: float) -> None:
        if self._group is not None:
            tensor.mul_(counts)
            self._group.all_reduce(tensor)
            tensor.div_(total)

    def _average_buffers(self, counts: float, total: float) -> None:
        """Running statistics are averaged as parameters are; counters become the largest."""
        if self._group is None:
            return
        for _, buffer in self._trained.buffers:
            if buffer.is_floating_point() or buffer.is_complex():
                self._average_one(buffer, counts / total)
            elif buffer.dtype == torch.bool:
                self._group.broadcast(buffer)
            else:
                self._group.all_reduce(buffer, "max")

    def _average_one(self, buffer: Tensor, share: float) -> None:
        """In double precision and by shares, so that masks (-inf, or the least number of their type) stay what they
        are: no product is larger than its number, and who has seen nothing gives nothing, not 0 times infinity."""
        assert self._group is not None
        wide = torch.promote_types(buffer.dtype, torch.float64)
        mean = buffer.to(wide).mul_(share) if share else torch.zeros_like(buffer, dtype=wide)
        self._group.all_reduce(mean)
        buffer.copy_(mean)

    # --- besides gradients ---

    @contextmanager
    def edit(self) -> Iterator[None]:
        """All meet first, so that what is changed is the same on all."""
        self.finish()
        yield
        if self._group is not None:
            for _, parameter in self._trained.everything:
                self._group.broadcast(parameter.data)
        self._begin()

    def share_buffers(self, root: int = 0) -> None:
        if self._together and self._dense is not None:
            self._dense.share_buffers(root)

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
        return self._steps

    def depart(self) -> None:
        """Nobody comes or goes in such a job."""

    def finish(self) -> None:
        """The last window may be a shorter one."""
        if self._steps:
            self._meet()

    def begin_again(self) -> None:
        """There are no servers that could have lost anything."""

    def close(self) -> None:
        self._known.of |= {  # also of those that are frozen just now
            name: dict(self._outer.state[base]) for name, base in self._base.items() if base in self._outer.state
        }
