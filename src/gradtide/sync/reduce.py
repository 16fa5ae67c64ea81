"""Collectives: all-reduce the buckets while backward goes on; when it ends, every rank has the whole gradient."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gradtide.collective import Group
from gradtide.collective.executors.choose import Strategy
from gradtide.collective.groups.device_group import DeviceGroup
from gradtide.events import Emit, GradientsSynchronised, LinksPlanned, Waiting
from gradtide.handle import Handle
from gradtide.schedule.predict.sent import bytes_sent
from gradtide.schedule.predict.simulate import simulate
from gradtide.sync.buckets import Bucket, BucketMemory, Buckets
from gradtide.sync.in_group import InGroup
from gradtide.sync.job import Job
from gradtide.sync.state import DIGEST_BYTES, Options
from gradtide.sync.trained import Trained
from gradtide.sync.watching.guard import LateGuard

__all__ = ["Reduce"]


class Reduce(InGroup):
    """The way of ranks that hold a copy of the parameters each, and step it themselves."""

    workers_step = True

    def __init__(
        self,
        trained: Trained,
        job: Job,
        group: Group | DeviceGroup,
        strategy: Strategy | None,
        reason: str,
        emit: Emit,
        *,
        overlap: bool = True,
    ) -> None:
        super().__init__(trained, group)
        self.reason, self._emit, self._strategy, self._job = reason, emit, strategy, job
        self._handles: list[Handle[Any]] = []
        self.asked_to_look, self._asks = False, False
        self._late = set[int]()  # buckets that left before their gradients were whole
        self._options, self._late_guard = Options(trained), LateGuard(trained)
        self._buckets = Buckets(trained.parameters, overlap=overlap)
        self._memory = BucketMemory(self._buckets.all, trained.parameters, group.shared_tensor)
        if strategy is not None:
            for flat in self._memory.flat:  # one that does not fit is said now, not in backward
                group.schedule(strategy, flat.nbytes)
            if isinstance(group, Group):
                self._links = _plan_links(group, strategy, [flat.nbytes for flat in self._memory.flat])

    def uses(self, group: Group) -> bool:
        """Whether gradients go over this group, as it sees fit."""
        return self._group is group and self._strategy is None

    def ready(self, index: int, weight: float) -> None:
        leaving = self._buckets.put(index)
        if leaving is None:
            self._late.add(self._buckets.of(index).number)
            return
        self._memory.gather(index, weight)
        for bucket in leaving:
            self._leave(bucket)

    def _leave(self, bucket: Bucket) -> None:
        flat = self._memory.flat[bucket.number]
        self._handles.append(self._group.all_reduce(flat, strategy=self._strategy, async_op=True))

    # --- the end of a backward ---

    def synchronise(self, weights: Sequence[float], late: bool) -> None:
        for index in self._buckets.missing():
            self._memory.gather(index, weights[index])
        for bucket in self._buckets.rest():
            self._leave(bucket)
        flags = _Flags(len(self._trained.parameters), len(self._buckets.all))
        self._tell(flags, late)
        self._handles.append(self._group.all_reduce(flags.all, "max", async_op=True))
        self._wait()
        for number in flags.late.nonzero().flatten().tolist():  # somebody's was not whole: once more
            for index in self._buckets.all[number].indices:
                self._memory.gather(index, weights[index])
            self._leave(self._buckets.all[number])
        self._wait()
        self._emit_bytes()
        self._hand_out(flags, weights)
        self._late.clear()
        self._buckets.restart()
        self._late_guard.watch(bool(flags.at_step))
        self._options.settle(flags.digest, self._group, self._job.batches)
        self.asked_to_look = bool(flags.look)

    def _emit_bytes(self) -> None:
        if self._links is not None:
            self._tell_links(self._emit)
        self._emit(GradientsSynchronised(sum(flat.nbytes for flat in self._memory.flat)))

    def _tell(self, flags: "_Flags", late: bool) -> None:
        for index, parameter in enumerate(self._trained.parameters):
            gradient = parameter.grad
            if gradient is not None:
                flags.used[index] = 1
                flags.sparse[index] = gradient.is_sparse
        for number in self._late:
            flags.late[number] = 1
        flags.at_step.fill_(late)
        flags.look.fill_(self._asks)
        self._asks = False
        flags.digest.copy_(self._options.told(self._job.batches))

    def _wait(self) -> None:
        self._emit(Waiting())
        for handle in self._handles:
            handle.wait()
        self._handles.clear()

    def _hand_out(self, flags: "_Flags", weights: Sequence[float]) -> None:
        """A parameter that no rank used keeps None, as in plain PyTorch. Nobody's .grad is a view of a bucket: who
        keeps one must find in it tomorrow what it held today."""
        own, of_all = [], []
        used, sparse = flags.used.tolist(), flags.sparse.tolist()
        for index, parameter in enumerate(self._trained.parameters):
            view = self._memory.views[index]
            if sparse[index]:
                parameter.grad = self._sum_sparse(parameter, weights[index])
            elif not used[index]:
                parameter.grad = None
            elif parameter.grad is None or parameter.grad.requires_grad:
                parameter.grad = view.clone()
            else:
                own.append(parameter.grad)
                of_all.append(view)
        if own:
            torch._foreach_copy_(own, of_all)

    def _sum_sparse(self, parameter: Tensor, weight: float) -> Tensor:
        """The sum by index of the ranks' sparse gradients, which have rows of their own each."""
        gradient = parameter.grad
        if gradient is None:
            gradient = torch.zeros_like(parameter).to_sparse(1)
        own = (gradient if gradient.is_sparse else gradient.to_sparse(1)).coalesce()
        indices, values = own.indices().T.contiguous(), own.values() * weight
        counts = self._group.all_gather(torch.tensor([len(indices)]))
        most = int(counts.max())
        if not most:
            return torch.sparse_coo_tensor(own.indices(), own.values(), own.shape)
        all_indices = self._group.all_gather(_filled(indices, most))
        all_values = self._group.all_gather(_filled(values, most))
        rows = [slice(0, int(count)) for count in counts]
        found = torch.cat([of_rank[row] for of_rank, row in zip(all_indices, rows, strict=True)]).T
        summed = torch.cat([of_rank[row] for of_rank, row in zip(all_values, rows, strict=True)])
        return torch.sparse_coo_tensor(found, summed, parameter.shape).coalesce()

    def check_step(self) -> None:
        """Before the optimizer steps."""
        self._options.stepped()
        self._late_guard.check()

    @contextmanager
    def edit(self) -> Iterator[None]:
        yield
        self.share_parameters()

    def ask_to_look(self) -> None:
        self._asks = True

    def close(self) -> None:
        pass


def _plan_links(group: Group, strategy: Strategy, sizes: Sequence[int]) -> LinksPlanned:
    """What this rank sends by the buckets' schedules, and how long they take one after the other."""
    sent, seconds, name = [0.0] * group.size, 0.0, ""
    for size in sizes:
        schedule = group.schedule(strategy, size)
        name = schedule.name
        seconds += simulate(schedule, group.topology, size).seconds if schedule.ops else 0.0
        for to, part in bytes_sent(schedule, size, group.rank, group.size).items():
            sent[to] += part
    loads: list[list[str | int]] = [
        [f"worker {group.rank}", f"worker {to}", round(n)] for to, n in enumerate(sent) if n
    ]
    return LinksPlanned(f"all-reduce, {name}", loads, seconds, group.topology.name)


class _Flags:
    """What every rank tells all others with each synchronisation: the largest of each byte counts."""

    def __init__(self, parameters: int, buckets: int) -> None:
        sizes = [parameters, parameters, buckets, 1, 1, 6 * DIGEST_BYTES]
        self.all = torch.zeros(sum(sizes), dtype=torch.uint8)
        self.used, self.sparse, self.late, self.at_step, self.look, self.digest = self.all.split(sizes)


def _filled(rows: Tensor, count: int) -> Tensor:
    filled = rows.new_zeros((count, *rows.shape[1:]))
    filled[: len(rows)] = rows
    return filled
