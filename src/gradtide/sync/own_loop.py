"""For loops of one's own: who this worker is, and a mean over all; under plain `python` too, as one worker."""

from typing import Any, TypeVar

import torch
from torch import Tensor

from gradtide.errors import ConfigError
from gradtide.sync.job import current_job

__all__ = ["is_main", "mean_over_workers", "rank", "workers"]

T = TypeVar("T", float, Tensor, dict[str, float])


def rank() -> int:
    """Which of the job's workers this is, from 0."""
    return current_job().rank


def workers() -> int:
    """How many workers the job has; 1 under plain `python`."""
    return current_job().size


def is_main() -> bool:
    """Whether this worker is the one that prints and writes for all."""
    return rank() == 0


def mean_over_workers(value: T, weight: float = 1.0) -> T:
    """The mean of all workers' values, on all of them: of a number, a tensor (floating), or a dict of numbers.

    `weight` says how much this worker's value counts: the number of samples that it is a mean over, say. All workers
    call it.
    """
    if isinstance(value, dict):
        names = sorted(value)
        numbers = _mean(torch.tensor([_number(value[name]) for name in names], dtype=torch.float64), weight).tolist()
        found = dict(zip(names, numbers, strict=True))
        return {name: found[name] for name in value}
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            raise ConfigError(f"a mean of {value.dtype} is no {value.dtype}; give value.double()")
        return _mean(value.detach().clone(), weight)
    return float(_mean(torch.tensor([_number(value)], dtype=torch.float64), weight))


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{value!r} has no mean; give a number, a floating tensor, or a dict of numbers") from None


def _mean(values: Tensor, weight: float) -> Tensor:
    if not weight >= 0:
        raise ConfigError(f"weight={weight!r}; it must be 0 or more")
    job = current_job()
    # Every product is computed in float64, so that all workers have the same and equal values stay what they are.
    own = torch.cat([values.double().cpu().flatten() * weight, torch.tensor([float(weight)]).double()])

    def add_up(own: Tensor) -> Tensor:
        if job.group is None:
            return own
        with job.group.purpose("in mean_over_workers, which all workers call"):
            sums: Tensor = job.group.all_reduce(own)
        return sums

    trained = [one for one in job.living if one.can_go_on]
    if not trained and job.group is None:
        return values
    sums = trained[-1].mean(add_up, own) if trained else add_up(own)  # where one may die meanwhile
    if not float(sums[-1]):
        raise ConfigError("mean_over_workers: the weights of all workers are 0; give one of them something")
    mean: Tensor = (sums[:-1] / sums[-1]).view(values.shape).to(values)
    return mean
