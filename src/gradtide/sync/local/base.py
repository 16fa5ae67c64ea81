"""What servers hold of a training by local steps: the base, the buffers, and what workers compare where they meet."""

from collections.abc import Callable

import torch
from torch import Tensor

from gradtide.errors import ConfigError
from gradtide.store import update
from gradtide.store.wire.messages import UpdateRule
from gradtide.sync.servers.averages import as_real
from gradtide.sync.state import DIGEST_BYTES, Options
from gradtide.sync.trained import Trained

__all__ = ["ServedBase"]

_ALIKE, _BATCHES = "what workers have done", "batches that were given"
_SCALE = 2.0**-40  # of a buffer's weight: no product is larger than its number, so that the least of a type stays


class ServedBase:
    """`values` are where keys are pulled to; `base` are those of parameters, which change on the servers alone.

    Buffers are keys too. In rounds floats become the mean by samples, in double precision, and integers the largest of
    the round. In async there is no round to take a mean of, and adding up changes could make a variance negative: there
    floats are those of who came last, one worker's own, and integers the largest so far. Truths are the first worker's,
    or in async the last one's.
    """

    def __init__(self, trained: Trained, key: Callable[[str], str], outer: UpdateRule, *, in_rounds: bool) -> None:
        self._trained, self._key, self._outer, self._in_rounds = trained, key, outer, in_rounds
        stepped = zip(trained.names, trained.parameters, trained.group_of(), strict=True)
        self._stepped = {key(name): parameter for name, parameter, group in stepped if group >= 0}
        self.base = {name: _own(one, one.dtype) for name, one in self._parameters().items()}
        self._changes = {name: torch.zeros_like(base) for name, base in self.base.items()}
        self._options = Options(trained)  # as this window's steps were taken with them
        self._done = torch.zeros(DIGEST_BYTES, dtype=torch.float64)  # what this worker did in its last window
        self._alike, self._given = key(_ALIKE), key(_BATCHES)
        beside = {self._alike: torch.zeros(DIGEST_BYTES, dtype=torch.float64), self._given: torch.zeros(1).long()}
        self._beside = beside if in_rounds else {}
        self.values = {**self.base, **self._read_buffers(), **self._beside}
        self.rules = {name: self._rule(name) for name in self.values}

    @property
    def size_bytes(self) -> int:
        return sum(base.nbytes for base in self.base.values())

    def _rule(self, key: str) -> UpdateRule:
        if key in self.base:
            return self._outer
        if key in self._beside:
            return update("mean" if key == self._alike else "largest")
        kind = self.values[key].dtype
        if kind.is_floating_point:
            return update("mean" if self._in_rounds else "assign")
        return update("assign" if kind == torch.bool else "largest" if self._in_rounds else "max")

    # --- buffers ---

    def _buffers(self) -> dict[str, Tensor]:
        """As real numbers, the tensors themselves."""
        return {self._key(f"buffer {name}"): as_real(buffer.detach()) for name, buffer in self._trained.buffers}

    def _parameters(self) -> dict[str, Tensor]:
        """The same of parameters."""
        return {key: as_real(parameter.detach()) for key, parameter in self._stepped.items()}

    def take_up_buffers(self) -> dict[str, Tensor]:
        """Those that the program has added, which need keys of their own."""
        found = self._read_buffers()
        for (name, _), (key, one) in zip(self._trained.buffers, found.items(), strict=True):
            if key in self.values and self.values[key].shape != one.shape:
                raise ConfigError(
                    f"the buffer {name} has another shape than when the model was wrapped, and the servers hold it as "
                    "it was; close() the wrapper and wrap the model again, with Servers(..., name='another')"
                )
        new = {key: one for key, one in found.items() if key not in self.values}
        self.values |= new
        self.rules |= {key: self._rule(key) for key in new}
        return new

    def _read_buffers(self) -> dict[str, Tensor]:
        """In memory of their own, as their keys have them."""
        wide = {key: torch.float64 if one.is_floating_point() else one.dtype for key, one in self._buffers().items()}
        return {key: _own(one, wide[key] if self._in_rounds else one.dtype) for key, one in self._buffers().items()}

    # --- where workers meet ---

    def changes(self) -> dict[str, Tensor]:
        """The base minus what this worker has now."""
        for key, own in self._parameters().items():
            torch.sub(self.base[key], own.to("cpu"), out=self._changes[key])
        return self._changes

    def beside(self, samples: float, batches: int, *, led: bool) -> list[tuple[dict[str, Tensor], float | None]]:
        """What is pushed besides, each with its weight. Who has seen nothing has no statistics to give."""
        found = self._read_buffers()
        floats = {key: one for key, one in found.items() if one.is_floating_point()}
        truths = {key: one for key, one in found.items() if one.dtype == torch.bool}
        counters = {key: one for key, one in found.items() if key not in floats and key not in truths}
        if self._in_rounds:
            counters[self._given] = torch.tensor([batches])
            self._done = torch.tensor(list(self._options.digest_at_step()), dtype=torch.float64)
            rest: list[tuple[dict[str, Tensor], float | None]] = [(counters, None), ({self._alike: self._done}, None)]
        else:
            rest = [(counters, None)]
        if samples:
            rest.append((floats, samples * _SCALE if self._in_rounds else None))
        if led or not self._in_rounds:
            rest.append((truths, None))
        return [(named, weight) for named, weight in rest if named]

    def stepped(self) -> None:
        """The optimizer takes a step with its options as they are now."""
        self._options.stepped()

    @torch.no_grad()
    def hand_out(self) -> None:
        """What was pulled becomes this worker's."""
        for key, own in self._parameters().items():
            own.copy_(self.base[key])
        for key, buffer in self._buffers().items():
            buffer.copy_(self.values[key])
        self._options = Options(self._trained)

    def check_alike(self) -> None:
        """All must have taken as many steps in the last window, with the same options."""
        if not torch.equal(self._beside[self._alike], self._done):
            raise ConfigError(
                "a worker took a step that another left out, or took it with other options of its optimizer, or has "
                "another Local(every); decide alike on all workers, and change options before backward"
            )

    @property
    def batches(self) -> int:
        """How many had been given to those who were in the last round."""
        return int(self._beside[self._given]) if self._in_rounds else 0


def _own(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to("cpu", dtype).clone(memory_format=torch.contiguous_format)
