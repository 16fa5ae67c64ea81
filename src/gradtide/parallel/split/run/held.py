"""The parameters and buffers that a device holds, and what becomes of their gradients between backward and update."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradtide.parallel.split.cut.local import LocalParameter, LocalStage
from gradtide.parallel.split.run.speaking.communicator import Communicator, PendingSum
from gradtide.schedule.step.model import StepPlan

__all__ = ["DeviceStage", "GradientSums", "Held", "Holding", "clip_factor", "scale_gradients"]

_TINY = 1e-6  # as torch.nn.utils.clip_grad_norm_ adds to the norm


@dataclass(frozen=True, slots=True, eq=False)
class DeviceStage:
    """A stage as one device runs it."""

    number: int
    copy: int
    shard: int
    local: LocalStage


@dataclass(slots=True, eq=False)
class Holding:
    """A parameter or buffer on this device, by the model's name: in one stage or, where it is tied, in several.

    The first holder's tensor is the one that is updated; the others follow it.
    """

    name: str
    counts: bool  # whether it is this device that counts its part in norms and checkpoints
    holders: list[tuple[int, LocalParameter]] = field(default_factory=list)  # (stage, what it holds)

    @property
    def local(self) -> LocalParameter:
        return self.holders[0][1]

    @property
    def tensor(self) -> Tensor:
        return self.local.tensor

    def take_gradient(self, *, first_shards: bool = False) -> Tensor | None:
        """Of all holders, the latest stage's first; of those that are no first shard nothing, where asked for."""
        total: Tensor | None = None
        for _, local in reversed(self.holders):
            gradient, local.tensor.grad = local.tensor.grad, None
            if gradient is not None and (local.first_shard or not first_shards):
                total = gradient if total is None else total + gradient
        return total

    def follow(self) -> None:
        """After an update, or after loading."""
        with torch.no_grad():
            for _, local in self.holders[1:]:
                local.tensor.copy_(self.tensor)


class Held:
    """All that a device holds."""

    def __init__(self, stages: Sequence[DeviceStage], first_stages: Mapping[str, int]) -> None:
        """first_stages: the first stage of the layout that holds each name."""
        self.stages = tuple(stages)
        self.parameters = self._collect("parameters", first_stages)
        self.buffers = self._collect("buffers", first_stages)

    def _collect(self, kind: str, first_stages: Mapping[str, int]) -> dict[str, Holding]:
        found: dict[str, Holding] = {}
        for stage in self.stages:
            for local in getattr(stage.local, kind):
                holding = found.setdefault(local.name, Holding(local.name, False))
                holding.holders.append((stage.number, local))
                first = stage.number == first_stages[local.name] and stage.copy == 0
                holding.counts |= first and local.first_shard
        return found

    def trained(self) -> Iterator[Holding]:
        return (holding for holding in self.parameters.values() if holding.tensor.requires_grad)

    def clear_gradients(self) -> None:
        for holding in self.parameters.values():
            for _, local in holding.holders:
                local.tensor.grad = None


class GradientSums:
    """One step's sums: each leaves as soon as its gradients are there, and is awaited before the update.

    Beside the gradients goes a number for each parameter that says who had one: a parameter that nobody used keeps
    none, as in plain PyTorch.
    """

    def __init__(self, held: Held, plan: StepPlan, communicator: Communicator) -> None:
        self._held, self._plan, self._communicator = held, plan, communicator
        self._tied = {tie.name for tie in plan.shape.ties}
        self._pending: list[tuple[PendingSum, list[Holding], Tensor]] = []
        self._summed: set[str] = set()

    def begin(self, number: int, at_once: bool) -> None:
        """at_once: this device has nothing to do meanwhile."""
        wanted = self._plan.sums[number]
        if wanted.tie >= 0:
            chosen = [self._held.parameters[self._plan.shape.ties[wanted.tie].name]]
        else:
            chosen = [
                holding
                for holding in self._held.trained()
                if holding.name not in self._tied and any(stage == wanted.stage for stage, _ in holding.holders)
            ]
        self._summed |= {holding.name for holding in chosen}
        for dtype in dict.fromkeys(holding.tensor.dtype for holding in chosen):
            alike = [holding for holding in chosen if holding.tensor.dtype == dtype]
            flat = _flattened(alike, first_shards=wanted.shard < 0)
            self._pending.append((self._communicator.begin_sum(flat, wanted.devices, at_once), alike, flat))

    def finish(self) -> None:
        """Afterwards every parameter's gradient is that of the whole batch."""
        for pending, holdings, flat in self._pending:
            pending.wait()
            _hand_out(holdings, flat)
        self._pending = []
        for holding in self._held.trained():
            if holding.name not in self._summed and len(holding.holders) > 1:
                holding.tensor.grad = holding.take_gradient()


def _flattened(holdings: Sequence[Holding], *, first_shards: bool) -> Tensor:
    like, sizes = holdings[0].tensor, [holding.tensor.numel() for holding in holdings]
    flat = torch.zeros(sum(sizes) + len(sizes), dtype=like.dtype, device=like.device)
    *views, used = flat.split([*sizes, len(sizes)])
    for number, (holding, view) in enumerate(zip(holdings, views, strict=True)):
        gradient = holding.take_gradient(first_shards=first_shards)
        if gradient is not None:
            view.copy_(gradient.reshape(-1))
            used[number] = 1
    return flat


def _hand_out(holdings: Sequence[Holding], flat: Tensor) -> None:
    sizes = [holding.tensor.numel() for holding in holdings]
    *views, used = flat.split([*sizes, len(sizes)])
    for holding, view, count in zip(holdings, views, used.tolist(), strict=True):
        holding.tensor.grad = view.view(holding.tensor.shape) if count else None


def clip_factor(held: Held, limit: float, members: Sequence[int], communicator: Communicator) -> Tensor:
    """What all gradients are multiplied by: every part of every parameter is counted once, in rank order."""
    squares = torch.zeros((), dtype=torch.float64)
    for holding in held.trained():
        if holding.counts and holding.tensor.grad is not None:
            gradient = holding.tensor.grad
            parts = torch.view_as_real(gradient) if gradient.is_complex() else gradient
            squares += torch.linalg.vector_norm(parts, dtype=torch.float64).cpu() ** 2
    total = communicator.add_up(squares.reshape(1), members) if len(members) > 1 else squares.reshape(1)
    return torch.clamp(limit / (total.sqrt() + _TINY), max=1.0)[0]


def scale_gradients(held: Held, factor: Tensor) -> None:
    for holding in held.trained():
        gradient = holding.tensor.grad
        if gradient is not None:
            gradient.mul_(factor.to(gradient.device, gradient.dtype))
