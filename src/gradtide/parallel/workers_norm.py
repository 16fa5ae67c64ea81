"""Batch normalisation over the parts of all workers, as batch_norm.py does it over those of one process's devices.

The devices of a worker meet first; one of them then meets the other workers, in a group of its own, so that gradients
which leave while backward goes on wait for nothing. Sums of gradients are exchanged as what they count in the batch.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradtide.collective import Group
from gradtide.errors import ConfigError, DataError
from gradtide.parallel.devices.batch_norm import combine
from gradtide.parallel.devices.pool import Meeting

if TYPE_CHECKING:
    from gradtide.sync import Job

__all__ = ["WorkersMeeting", "refuse_batch_norm"]


def refuse_batch_norm(job: "Job", sync: object) -> None:
    """Raises ConfigError where workers don't take every step at the same time."""
    if job.elastic is not None:
        raise ConfigError(
            "batch_norm='shared' needs all workers in every layer; leave --min-workers, --max-workers and "
            "--max-restarts out, or use batch_norm='own'"
        )
    if not isinstance(sync, str):
        raise ConfigError(
            f"batch_norm='shared' is for workers that take each step together, not for {type(sync).__name__}; leave it "
            "out, or train with sync='auto'"
        )


class WorkersMeeting:
    """As a Meeting of one worker's devices; what comes back is one value, of all devices of all workers."""

    def __init__(self, devices: Meeting, group: Group, count: int) -> None:
        self._devices, self._group, self._several = devices, group, count > 1
        self._scale, self._counts = 1.0, True

    def begin(self, scale: float, *, counts: bool) -> None:
        """Before a step: what this worker's gradient counts, and whether its samples are any of the batch's."""
        if counts and not scale:
            raise DataError(
                "batch_norm='shared': no target of this worker's part of a batch counts, but its samples are in the "
                "statistics; shuffle the data, or make batches larger"
            )
        self._scale, self._counts = scale, counts

    def exchange(self, index: int, value: Any) -> list[Any]:
        own = self._devices.exchange(index, value) if self._several else [value]
        found = self._meet(own) if index == 0 else None
        return [self._devices.exchange(index, found)[0] if self._several else found]

    def _meet(self, own: list[Any]) -> Any:
        return self._forward(own) if len(own[0]) == 3 else self._backward(own)

    def _forward(self, own: list[tuple[Tensor, Tensor, int]]) -> tuple[Tensor, Tensor, int]:
        mean, variance, count = combine(own, own[0][0].device)
        rows = self._gather(torch.stack([mean, variance]), count if self._counts else 0)
        return combine([(row[0], row[1], seen) for row, seen in rows], mean.device)

    def _backward(self, own: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        device = own[0][0].device
        sums = sum(torch.stack([one.to(device), other.to(device)]) for one, other in own)
        assert isinstance(sums, Tensor)
        rows = self._gather(sums * self._scale, 0)
        total = sum((row for row, _ in rows), start=torch.zeros_like(sums))
        whole = total / self._scale if self._counts else torch.zeros_like(sums)
        return whole[0], whole[1]

    def _gather(self, rows: Tensor, count: int) -> list[tuple[Tensor, int]]:
        wide = torch.float64 if rows.dtype == torch.float64 else torch.float32
        flat = torch.cat([rows.detach().to("cpu", wide).flatten(), torch.tensor([count], dtype=wide)])
        if count >= 1 << 24 and wide == torch.float32:
            raise ConfigError(f"batch_norm='shared' over {count} values a channel is more than float32 counts")
        found: Tensor = self._group.all_gather(flat)
        return [(row[:-1].view(rows.shape).to(rows), int(row[-1])) for row in found]

    def close(self) -> None:
        self._group.close()
