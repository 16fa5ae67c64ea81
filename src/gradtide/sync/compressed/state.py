"""What outlives a way: what was asked for, what was left out, and how many steps were taken."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradtide.calling import users_level
from gradtide.collective import Group
from gradtide.compress import AUTO, CODECS, Compress, Form, Residuals
from gradtide.compress.compiled import Array
from gradtide.errors import ConfigError
from gradtide.sync.job import Job
from gradtide.sync.trained import Trained

__all__ = [
    "COUNTS",
    "LEFT",
    "RATE",
    "BucketPart",
    "Compression",
    "ResidualRates",
    "Round",
    "hand_over",
    "holds_something",
    "left_out",
    "parts_of",
    "rate_tensor",
    "working_dtype",
]

COUNTS, LEFT, RATE, _FACTOR = "counts", "left ", "rate ", "factor "  # a checkpoint's names


@dataclass(slots=True)
class Compression:
    """Of one worker."""

    settings: Compress
    residuals: Residuals = field(default_factory=Residuals)
    steps: int = 0  # of all workers together
    rounds: int = 0  # synchronisations so far
    decided: str = ""  # what "auto" has come to
    _unstepped: set[str] = field(default_factory=set)  # parameters whose gradient no optimizer has taken yet
    _regrouped: bool = False
    _died: bool = False
    _said: bool = False

    def regrouped(self, *, died: bool) -> None:
        """Other workers go on from the last finished step; which one that is they find out together."""
        self._regrouped = True
        self._died |= died

    def settle(self, job: Job) -> None:
        """Now it is known: a step that is taken again leaves what was left out as it was before."""
        if not self._regrouped:
            return
        self._regrouped = False
        self.residuals.settle(undone=bool(job.undone))
        if job.undone:
            self._unstepped.clear()
        if self._died:
            self.tell_of_death(job)

    def forget(self, name: str) -> None:
        """Another parameter has this name from now on, or none."""
        self._unstepped.discard(name)
        self.residuals.take(name)

    # --- what a checkpoint holds of this worker ---

    def state(self, factors: Mapping[str, Array]) -> dict[str, Tensor]:
        """What was left out so far, by parameter, and what thin matrices go on from (`factors`). A gradient that no
        optimizer has taken is in no checkpoint, so what was left out is as it was before it."""
        found = {COUNTS: torch.tensor([self.steps, self.rounds])}
        for name, (left, rate) in self.residuals.state(self._unstepped).items():
            found[f"{LEFT}{name}"] = torch.from_numpy(left)
            found[f"{RATE}{name}"] = rate_tensor(rate)
        return found | {f"{_FACTOR}{name}": torch.from_numpy(factor.copy()) for name, factor in factors.items()}

    def load_state(self, state: Mapping[str, Tensor], trained: Trained) -> dict[str, Array]:
        """Returns what thin matrices go on from. What this worker has left out until now is forgotten."""
        if COUNTS not in state:
            raise ConfigError(
                "what compression left out was kept over servers; load it with sync=gradtide.Servers(...)"
            )
        lefts = left_out(state, trained)
        self.residuals.clear()
        for name, (left, rate) in lefts.items():
            self.residuals.put_back(name, left.numpy(), rate)
        self.steps, self.rounds = state[COUNTS].tolist()
        return {name.removeprefix(_FACTOR): f.numpy().copy() for name, f in state.items() if name.startswith(_FACTOR)}

    @property
    def feedback(self) -> bool:
        """Whether anything is left out, to be sent later."""
        return self.settings.codec != AUTO and self.settings.make().feedback

    def tell_of_death(self, job: Job) -> None:
        if self.feedback and not self._said and job.rank == 0:
            self._said = True
            warnings.warn(
                "a worker died, and with it what compression had left out of its gradients so far; the others keep "
                "theirs (said once)",
                stacklevel=users_level(),
            )

    # --- what goes with values that are loaded (`LeftOut`) ---

    @property
    def moment(self) -> int:
        return self.residuals.round

    def take(self, name: str) -> Any:
        return self.residuals.take(name)

    def give_back(self, name: str, taken: Any) -> None:
        self.residuals.give_back(name, taken)

    # --- gradients that nobody steps with ---

    @property
    def _leaves_out(self) -> bool:
        kind = CODECS.get(self.settings.codec)
        return kind is not None and kind.feedback

    def synchronised(self, trained: Trained) -> None:
        """Every gradient is that of all workers. One of a parameter that no optimizer has is the user's to take."""
        if self._leaves_out:
            named = zip(trained.names, trained.parameters, trained.group_of(), strict=True)
            self._unstepped |= {
                n for n, p, group in named if group >= 0 and p.grad is not None and not p.grad.is_sparse
            }

    def took(self, trained: Trained, optimizer: torch.optim.Optimizer) -> None:
        if not self._unstepped:
            return
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for name, parameter in zip(trained.names, trained.parameters, strict=True):
            if id(parameter) in own and name in self._unstepped:
                self._unstepped.remove(name)
                self.residuals.took(name)

    def begins(self, name: str, held: Tensor | None, *, over_servers: bool) -> None:
        """A backward is about to add to what is `held`. If that is nothing, and no optimizer took what was there, it
        was thrown away."""
        if name not in self._unstepped or (held is not None and held.any()):
            return
        self._unstepped.remove(name)
        if over_servers:
            raise ConfigError(
                f"the gradient of {name} was dropped without a step (by zero_grad, or GradScaler), but servers keep "
                f"what {self.settings} left out of it, and would send it later; use int8, or train without servers"
            )
        self.residuals.dropped(name)


@dataclass(frozen=True, slots=True)
class BucketPart:
    """A parameter's place in its bucket."""

    index: int
    name: str
    form: Form
    place: slice


@dataclass(frozen=True, slots=True)
class Round:
    """What a bucket needs to know of a synchronisation."""

    number: int
    given: frozenset[int]  # the parameters that have a gradient here
    rates: dict[int, float | None]  # by which what is left out counts: SGD's learning rates


def parts_of(indices: Sequence[int], trained: Trained) -> list[BucketPart]:
    parts, at = [], 0
    for index in indices:
        parameter = trained.parameters[index]
        rows = parameter.shape[0] if parameter.dim() > 1 and parameter.numel() else 1
        form = Form(parameter.numel(), np.dtype(working_dtype(parameter)), rows)
        parts.append(BucketPart(index, trained.names[index], form, slice(at, at + form.count)))
        at += form.count
    return parts


def working_dtype(parameter: nn.Parameter) -> Any:
    """What codecs work with, and what is left out is kept in."""
    return np.float64 if parameter.dtype == torch.float64 else np.float32


class ResidualRates:
    """With SGD what was left out of a step counts by the learning rate of that step. Not with momentum, which keeps
    what it is given from one rate to the next: scaled up while the rate falls, it would be far too much when that
    rises."""

    def __init__(self, trained: Trained) -> None:
        self._trained = trained
        owners = [trained.owner(parameter) for parameter in trained.parameters]
        self._group_of = [
            group if isinstance(owner, torch.optim.SGD) else -1
            for owner, group in zip(owners, trained.group_of(), strict=True)
        ]

    def now(self, indices: Sequence[int]) -> dict[int, float | None]:
        groups = self._trained.groups
        rates = {index: groups[self._group_of[index]] for index in indices if self._group_of[index] >= 0}
        return {i: None if i not in rates or rates[i]["momentum"] else float(rates[i]["lr"]) for i in indices}


def _number(rate: float | None) -> float:
    """A rate as a tensor has it."""
    return math.nan if rate is None else rate


def _rate(number: float) -> float | None:
    return None if math.isnan(number) else number


def left_out(state: Mapping[str, Tensor], trained: Trained) -> dict[str, tuple[Tensor, float | None]]:
    """Of what was kept: what was left out of each parameter, flat, and the rate by which it counts."""
    sizes = {name: parameter.numel() for name, parameter in trained.everything}
    lefts = {name.removeprefix(LEFT): left for name, left in state.items() if name.startswith(LEFT)}
    for name, left in lefts.items():
        if sizes.get(name) != left.numel():
            raise ConfigError(f"the state is of another model: there {name!r} has {left.numel()} values")
    return {name: (left, _rate(float(state[f"{RATE}{name}"]))) for name, left in lefts.items()}


def rate_tensor(rate: float | None) -> Tensor:
    """A rate as a checkpoint has it."""
    return torch.tensor([_number(rate)], dtype=torch.float64)


def holds_something(state: Mapping[str, Tensor]) -> bool:
    """Whether anything is left out in what was kept."""
    return any(name.startswith(LEFT) and bool(left.any()) for name, left in state.items())


def hand_over(residuals: Residuals, trained: Trained, group: Group, number: int, going: Sequence[int]) -> None:
    """All ranks, when somebody comes or goes: what those who go have left out becomes the first one's who stays.

    number: this worker's; going: those who go, as far as this one was told. One who goes may not know it yet. It is
    given when all of it is there: if somebody dies meanwhile, whoever has it keeps it.
    """
    numbers = group.all_gather(torch.tensor([number])).flatten().tolist()
    told = torch.tensor([int(worker in going) for worker in numbers])
    leaving = [bool(goes) for goes in group.all_reduce(told, "max").tolist()]
    if not any(leaving) or all(leaving):
        return
    heir, inherited = leaving.index(False), list[tuple[str, Array, float | None]]()
    every = trained.everything  # also what is frozen now: what was left out of it counts when it is trained again
    for rank in [rank for rank, goes in enumerate(leaving) if goes]:
        known = [[float(name in residuals), _number(residuals.rate(name))] for name, _ in every] or [[0.0, 0.0]]
        told_rates = group.broadcast(torch.tensor(known, dtype=torch.float64), rank).tolist()
        for (name, parameter), (is_there, rate) in zip(every, told_rates, strict=False):
            if not is_there:
                continue
            like = np.zeros(parameter.numel(), working_dtype(parameter))
            mine = residuals.value(name, like)
            left = torch.from_numpy(mine.copy() if group.rank == rank else like)
            group.broadcast(left, rank)
            inherited.append((name, left.numpy(), _rate(rate)))
    group.barrier()
    for name, theirs, by_rate in inherited if group.rank == heir else []:
        residuals.add(name, theirs, by_rate)
    if leaving[group.rank]:
        residuals.clear()
