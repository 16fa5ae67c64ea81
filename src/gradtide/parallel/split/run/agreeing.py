"""Before the ranks do something together: that all of them want the same, or which one does not."""

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradtide.errors import ConfigError, DataError, GradtideError
from gradtide.parallel.split.run.speaking.communicator import Communicator, Packet

__all__ = ["Agreement", "Wish", "digest", "options_digest"]

_CALLS = ("model.step()", "model(x)", "model.state_dict()", "model.optimizer_state_dict()")
_TAG = (1 << 40) + 2  # of wishes: beside all tasks
_LOOKED_AT = 4096  # elements of a tensor that a digest is of: all ranks must have the same batch, and it must be quick


class Wish(NamedTuple):
    """What a rank is about to do, in numbers that differ where wishes do."""

    call: int  # of _CALLS
    batch: int = 0
    loaded: int = 0
    options: int = 0
    steps: int = 0
    seed: int = 0


class Agreement:
    """All ranks make one and, before they wait for each other or change anything, check it.

    Between the two each may compute what is its own. Ranks that share no memory compare wishes at once: one that fails
    takes its connections with it, and another might then learn of nothing but that.
    """

    def __init__(self, wish: Wish, communicator: Communicator) -> None:
        self._wish, self._communicator, self._checked = wish, communicator, False
        self._others = [rank for rank in range(communicator.size) if rank != communicator.rank]
        if communicator.keeps_messages:
            for other in self._others:
                communicator.send(wish, other, _TAG)
        else:
            self.check()

    def check(self) -> None:
        """Raises on all ranks where one wants something else than rank 0."""
        if self._checked:
            return
        self._checked = True
        every = self._told_by_messages() if self._communicator.keeps_messages else self._told_at_once()
        for rank, other in enumerate(every):
            if other != every[0]:
                raise _told(rank, other, every[0])

    def _told_by_messages(self) -> list[Wish]:
        said = {rank: Wish(*map(_whole, self._communicator.receive(rank, _TAG))) for rank in self._others}
        return [said.get(rank, self._wish) for rank in range(self._communicator.size)]

    def _told_at_once(self) -> list[Wish]:
        mine, size = torch.tensor(self._wish), self._communicator.size
        return [Wish(*row.tolist()) for row in self._communicator.gather(mine, range(size), [mine.shape] * size)]


def _whole(value: Packet) -> int:
    assert isinstance(value, int)
    return value


def _told(rank: int, other: Wish, first: Wish) -> GradtideError:
    if other.call != first.call:
        return ConfigError(
            f"rank {rank} calls {_CALLS[other.call]} while rank 0 calls {_CALLS[first.call]}; a split model's ranks "
            "call the same, in one order, whoever uses the result"
        )
    if other.loaded != first.loaded:
        return DataError(f"rank {rank} has loaded another state than rank 0; load the same on all ranks")
    if other.options != first.options:
        return ConfigError(
            f"rank {rank}'s optimizer has other options than rank 0's, such as its rate, or clips otherwise; "
            "set the same on all ranks"
        )
    if (other.steps, other.seed) != (first.steps, first.seed):
        return ConfigError(
            f"rank {rank} has seed {other.seed} and {other.steps} steps, and rank 0 seed {first.seed} and "
            f"{first.steps}: dropout would differ; set the same on all ranks"
        )
    return DataError(
        f"rank {rank} was given another batch than rank 0, and a split model's ranks need the same one: give all "
        "of them the whole batch, in one order (a sampler's generator with one seed)"
    )


def digest(named: Mapping[str, Any], before: int = 0) -> int:
    """A number that differs where tensors do, most likely."""
    found = before
    for tensor in named.values():
        if isinstance(tensor, Tensor):
            flat = tensor.detach().reshape(-1)
            some = flat[:: max(1, len(flat) // _LOOKED_AT)].cpu().contiguous()
            found = zlib.crc32(some.view(torch.uint8).numpy().tobytes(), found)
            found = zlib.crc32(str(tuple(tensor.shape)).encode(), found)
    return found


def options_digest(groups: Sequence[Mapping[str, Any]], *others: float | None) -> int:
    """Of what an optimizer's groups say as numbers and words, and of which parameters ask for a gradient."""
    said: list[Any] = [[parameter.requires_grad for parameter in group["params"]] for group in groups]
    for group in groups:
        options = {key: value.tolist() if isinstance(value, Tensor) else value for key, value in group.items()}
        said.append({key: value for key, value in options.items() if _is_plain(value)})
    return zlib.crc32(json.dumps([said, others], sort_keys=True).encode())


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)
