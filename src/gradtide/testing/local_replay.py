"""An asynchronous run of local steps once more, in one process, in the order that its servers recorded.

Each worker's `LocalWindow` events say where every shard was in its order of updates when the worker pulled a window's
base, and when its change was applied. So each window can be computed again as soon as what it began with is there, and
each shard applies changes in its own order: the base comes out with the same bits.
"""

import copy
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from gradtide.events import LocalWindow
from gradtide.store.rules.updates import make_optimizer
from gradtide.store.wire.messages import UpdateRule, Version
from gradtide.store.wire.placement import block_count, block_span, shard_of

__all__ = ["Replay"]

Batch = tuple[Tensor, Tensor]


@dataclass(slots=True)
class _Block:
    """A block of a parameter, as its shard holds it: its values by version."""

    name: str
    begin: int
    end: int
    value: nn.Parameter
    optimizer: torch.optim.Optimizer
    versions: list[Version] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def note(self, version: Version) -> None:
        self.versions.append(version)
        self.values.append(self.value.detach().clone())

    def at(self, version: Version) -> Tensor:
        return self.values[bisect_right(self.versions, version) - 1]


@dataclass(slots=True)
class _Worker:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: Iterator[Batch]
    windows: Sequence[LocalWindow]
    changes: list[dict[str, Tensor]] = field(default_factory=list)  # of the windows that are computed

    @property
    def next_window(self) -> LocalWindow | None:
        return self.windows[len(self.changes)] if len(self.changes) < len(self.windows) else None


class Replay:
    """`windows` and `batches` are those of each worker by number. `key` is the name that a parameter has on the
    servers. A batch without samples gives no gradient."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
        loss: Callable[[Tensor, Tensor], Tensor],
        outer: UpdateRule,
        windows: Mapping[int, Sequence[LocalWindow]],
        batches: Mapping[int, Iterable[Batch]],
        key: Callable[[str], str] = str,
    ) -> None:
        self._loss, self._workers, self._shards = loss, dict[int, _Worker](), dict[int, list[_Block]]()
        for name, parameter in model.named_parameters():
            flat = parameter.detach().reshape(-1)
            for number in range(block_count(flat.numel(), flat.element_size())):
                begin, end = block_span(number, flat.numel(), flat.element_size())
                value = nn.Parameter(flat[begin:end].clone())
                block = _Block(name, begin, end, value, make_optimizer(outer, [value]))
                block.note(Version())
                self._shards.setdefault(shard_of(key(name), number), []).append(block)
        for worker, of_worker in windows.items():
            own = copy.deepcopy(model)
            self._workers[worker] = _Worker(own, optimizer(own.parameters()), iter(batches[worker]), of_worker)
        self._orders = {shard: self._order(shard) for shard in self._shards}

    def _order(self, shard: int) -> list[tuple[Version, int, int]]:
        """The changes that a shard applied: when, which worker's, and which of its windows."""
        return sorted(
            (_version(window.applied, shard), worker, number)
            for worker, state in self._workers.items()
            for number, window in enumerate(state.windows)
        )

    def run(self) -> dict[str, Tensor]:
        """The base after the last change, by name."""
        goes_on = True
        while goes_on:
            computed = [self._compute(worker) for worker in self._workers.values()]
            goes_on = any([*computed, *(self._apply(shard) for shard in self._shards)])
        assert not any(self._orders.values()), "a window began with a base that none of the others have made"
        return {name: self._whole(name) for blocks in self._shards.values() for name in {b.name for b in blocks}}

    def _whole(self, name: str) -> Tensor:
        blocks = [block for blocks in self._shards.values() for block in blocks if block.name == name]
        return torch.cat([block.value.detach() for block in sorted(blocks, key=lambda block: block.begin)])

    @torch.no_grad()
    def _begin(self, worker: _Worker, window: LocalWindow) -> dict[str, Tensor] | None:
        """The base that a window began with; None while it is not there."""
        parameters = dict(worker.model.named_parameters())
        base = {name: torch.empty_like(parameter).reshape(-1) for name, parameter in parameters.items()}
        for shard, blocks in self._shards.items():
            version, order = _version(window.began, shard), self._orders[shard]
            if order and order[0][0] <= version:
                return None
            for block in blocks:
                base[block.name][block.begin : block.end] = block.at(version)
        for name, parameter in parameters.items():
            parameter.copy_(base[name].view_as(parameter))
        return base

    def _compute(self, worker: _Worker) -> bool:
        """Its next window, if what it began with is there."""
        window = worker.next_window
        base = None if window is None else self._begin(worker, window)
        if window is None or base is None:
            return False
        for _ in range(window.steps):
            x, y = next(worker.batches)
            worker.optimizer.zero_grad()
            if len(x):
                self._loss(worker.model(x), y).backward()
            worker.optimizer.step()
        own = dict(worker.model.named_parameters())
        worker.changes.append({name: base[name] - own[name].detach().reshape(-1) for name in base})
        return True

    def _apply(self, shard: int) -> bool:
        """What is computed, as far as the shard's order goes."""
        order, before = self._orders[shard], len(self._orders[shard])
        while order and order[0][2] < len(self._workers[order[0][1]].changes):
            version, number, window = order.pop(0)
            worker = self._workers[number]
            for block in self._shards[shard]:
                if worker.windows[window].samples:  # else there was no step to take
                    block.value.grad = worker.changes[window][block.name][block.begin : block.end]
                    block.optimizer.step()
                block.note(version)
        return len(order) < before


def _version(told: Sequence[Sequence[int]], shard: int) -> Version:
    return next(Version(epoch, sequence) for number, epoch, sequence in told if number == shard)
