"""Notices that somebody changed tensors which are not theirs to change: gradients or parameters that ways share.

Looked at are each tensor's identity and version, which torch counts up with every change that it sees, and 64
elements of one of them, drawn anew each time; everything in the first three looks, and a sum of everything in every
hundredth. That is a net and no proof: a change of a few elements through `.data` may slip through for a hundred steps.

An optimizer's state that somebody else holds (with shared parameters it is in memory that all ranks see, where servers
step it is with them) is kept from the user instead: a change would be dropped without a word.
"""

import operator
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from gradtide.errors import ConfigError
from gradtide.sync.trained import Trained

__all__ = ["Guard", "HeldState", "LateGuard", "StateKeeper", "Trial", "checksum"]

_ELEMENTS, _FIRST, _EVERY = 64, 3, 100
_ROW_BYTES = 4095 * 8


class Guard:
    """Remembers some tensors, and says which of them is not as it was."""

    def __init__(self, count: int) -> None:
        self._random, self._looks, self._count = np.random.default_rng(0), 0, count
        self._tensors: list[Tensor | None] = [None] * count
        self._versions: list[int | None] = [None] * count
        self._contents: dict[int, Any] = {}
        self.next_look()

    def next_look(self) -> None:
        """Forgets what it saw; what is remembered next is looked at as its turn demands."""
        self._looks += 1
        self._drawn = int(self._random.random() * self._count)
        self._contents.clear()
        self._tensors = [None] * self._count

    def remember(self, index: int, tensor: Tensor | None) -> None:
        """As it is now."""
        self._tensors[index] = tensor
        self._versions[index] = None if tensor is None else tensor._version
        self._look_into(index, tensor)

    def _look_into(self, index: int, tensor: Tensor | None) -> None:
        if tensor is None:
            return
        if self._looks <= _FIRST:
            self._contents[index] = tensor.detach().clone()
        elif self._looks % _EVERY == 0:
            self._contents[index] = checksum(tensor)
        elif index == self._drawn and tensor.numel() and not tensor.is_sparse:
            places = torch.from_numpy((self._random.random(_ELEMENTS) * tensor.numel()).astype(np.int64))
            self._contents[index] = places, _elements(tensor, places)

    def remember_all(self, tensors: Sequence[Tensor | None]) -> None:
        self.next_look()
        self._tensors, self._versions = list(tensors), _versions(tensors)
        whole = self._looks <= _FIRST or self._looks % _EVERY == 0
        for index in range(self._count) if whole else (self._drawn,):
            self._look_into(index, tensors[index])

    def knows(self, index: int) -> bool:
        return self._tensors[index] is not None

    def is_changed(self, index: int, tensor: Tensor | None) -> bool:
        """Whether it is another one, or no longer holds what it held."""
        if tensor is not self._tensors[index]:
            return True
        if tensor is None:
            return False
        if tensor._version != self._versions[index]:
            return True
        return self._holds_other(index, tensor)

    def _holds_other(self, index: int, tensor: Tensor) -> bool:
        content = self._contents.get(index)
        if content is None:
            return False
        if isinstance(content, tuple):
            return not _same(_elements(tensor, content[0]), content[1])
        return checksum(tensor) != content if isinstance(content, int) else not _same(tensor.detach(), content)

    def changed(self, tensors: Sequence[Tensor | None]) -> int | None:
        """The first that is not as it was."""
        suspects: Iterable[int] = self._contents  # the only ones, if all are the same and none was changed openly
        if _versions(tensors) != self._versions or not all(map(operator.is_, tensors, self._tensors)):
            suspects = range(self._count)
        return next((index for index in suspects if self.is_changed(index, tensors[index])), None)


class LateGuard:
    """A rank that gives its part at the step gets a gradient that nobody has edited: no other rank may edit it."""

    def __init__(self, trained: Trained) -> None:
        self._trained = trained
        self._guard: Guard | None = None

    def watch(self, somebody_late: bool) -> None:
        """After each synchronisation."""
        self._guard = None
        if somebody_late:
            self._guard = Guard(len(self._trained.parameters))
            self._guard.remember_all(self._gradients)

    def check(self) -> None:
        """Before the optimizer steps."""
        guard, self._guard = self._guard, None
        edited = None if guard is None else guard.changed(self._gradients)
        if edited is not None:
            raise ConfigError(
                f"the gradient of {self._trained.names[edited]} was changed after backward, but on another worker no "
                "backward reached a parameter, so that one can't change it; call backward on every worker, with a loss "
                "times nought where there is nothing to learn"
            )

    @property
    def _gradients(self) -> list[Tensor | None]:
        return [parameter.grad for parameter in self._trained.parameters]


class HeldState(defaultdict[Any, Any]):
    """Stands where the state was, and refuses whatever is asked of it."""

    def __init__(self, refusal: str) -> None:
        super().__init__(dict)
        self._refusal = refusal

    def _refuse(self, *arguments: Any, **named: Any) -> NoReturn:
        raise ConfigError(self._refusal)

    __getitem__ = __setitem__ = __delitem__ = __contains__ = __iter__ = __len__ = __eq__ = _refuse
    items = keys = values = get = pop = popitem = clear = update = setdefault = copy = _refuse
    __copy__ = __deepcopy__ = __reduce__ = __or__ = __ror__ = __ior__ = _refuse

    def __repr__(self) -> str:
        return f"HeldState({self._refusal!r})"


class StateKeeper:
    """Keeps an optimizer's own state away from its user, but while `state_dict` and `load_state_dict` run.

    `show` fills the state before it is saved, `loaded` hears that another was loaded.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        refusal: str,
        show: Callable[[], None] = lambda: None,
        loaded: Callable[[], None] = lambda: None,
    ) -> None:
        self._optimizer, self._held = optimizer, HeldState(refusal)
        self._own, self._show, self._loaded = optimizer.state, show, loaded
        self._lost = False
        self._hooks = [
            optimizer.register_state_dict_pre_hook(lambda _: self._before_saving()),
            optimizer.register_state_dict_post_hook(lambda *_: self._hold()),
            optimizer.register_load_state_dict_post_hook(lambda _: self._after_loading()),
        ]
        self._hold()

    def _hold(self) -> None:
        self._optimizer.state = self._held

    def _before_saving(self) -> None:
        self._optimizer.state = self._own
        try:
            self._show()
        except BaseException:
            self._hold()
            raise

    def _after_loading(self) -> None:
        self._own = self._optimizer.state
        if self._lost:
            self.give_back()
        else:
            self._loaded()
            self._hold()

    def fill(self) -> None:
        """Its own state becomes what it would be saved as now."""
        self._before_saving()
        self._hold()

    def forget(self) -> None:
        """It will be filled anew before it is looked at."""
        self._own.clear()

    def give_back(self) -> None:
        """The optimizer has its own state again."""
        for hook in self._hooks:
            hook.remove()
        self._optimizer.state = self._own

    def lose(self, refusal: str) -> None:
        """Nobody has it any more, until another one is loaded."""

        def refuse() -> NoReturn:
            raise ConfigError(refusal)

        self._held, self._lost, self._show = HeldState(refusal), True, refuse
        self._hold()


def _versions(tensors: Sequence[Tensor | None]) -> list[int | None]:
    return [None if tensor is None else tensor._version for tensor in tensors]


def _elements(tensor: Tensor, places: Tensor) -> Tensor:
    return torch.take(tensor.detach(), places)


def checksum(tensor: Tensor) -> int:
    """Of its bits: in their order, but for words within a row of a large tensor, so that it takes one pass at the speed
    of memory (13 GB/s where CRC-32 reached 2). Rows are odd, else the signs of a whole one would cancel."""
    values = tensor.detach()
    if values.is_sparse:
        values = values.coalesce().values()
    if values.device.type != "cpu":
        return hash(values.double().sum().item())
    as_it_reads = values.resolve_conj().resolve_neg().contiguous()
    raw = as_it_reads.reshape(-1).view(torch.uint8).numpy()
    whole = len(raw) // _ROW_BYTES * _ROW_BYTES
    rows = raw[:whole].view(np.int64).reshape(-1, _ROW_BYTES // 8).sum(1)
    return zlib.crc32(raw[whole:].data, zlib.crc32(rows.data))


def _same(a: Tensor, b: Tensor) -> bool:
    """NaN is NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.is_sparse:
        a, b = a.coalesce(), b.coalesce()
        return _same(a.indices(), b.indices()) and _same(a.values(), b.values())
    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())


class Trial:
    """Looks on while a program takes its first steps: does it edit gradients or parameters, or step by hand?"""

    def __init__(self, trained: Trained, steps: int = 0) -> None:
        self._parameters = trained.parameters
        self._gradients, self._values = Guard(len(self._parameters)), Guard(len(self._parameters))
        self.steps, self.edits, self._known = steps, False, False
        self._values.remember_all(self._parameters)

    def synchronised(self) -> None:
        self._gradients.remember_all([parameter.grad for parameter in self._parameters])
        self._known = True

    def stepping(self, *, by_hand: bool) -> None:
        gradients = [parameter.grad for parameter in self._parameters]
        edited = self._known and self._gradients.changed(gradients) is not None
        self.edits = self.edits or by_hand or edited or self._values.changed(self._parameters) is not None

    def stepped(self) -> None:
        self.steps, self._known = self.steps + 1, False
        self._values.remember_all(self._parameters)

    def edited_properly(self) -> None:
        self._values.remember_all(self._parameters)
