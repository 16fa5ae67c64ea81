"""What servers that only average keep of a model: its gradients, and which of them there are in a round."""

from collections.abc import Callable

import torch
from torch import Tensor

from gradtide.errors import ConfigError
from gradtide.sync.servers.smaller import Smaller
from gradtide.sync.state import DIGEST_BYTES, Options
from gradtide.sync.trained import Trained

__all__ = ["Averages", "as_real"]

# Keys beside those of parameters and buffers.
_USED, _SPARSE = "which parameters have a gradient, and norms", "which rows have a gradient: "
_FIRST, _EVERY, _ALIKE = 3, 100, 1e-4  # the rounds in which parameters are compared, by norm, and how closely


class Averages:
    """`room` is where they are pulled to, by key."""

    def __init__(self, trained: Trained, key: Callable[[str], str], smaller: Smaller, *, in_step: bool) -> None:
        """`in_step`: all workers are in the same step, so that their options can be compared."""
        self._trained, self._key, self._in_step, self._smaller = trained, key, in_step, smaller
        self._used = key(f"{_USED}, of {len(trained.parameters)}")
        self._sparse = _find_sparse(trained)
        self._norms: Tensor | None = None  # of the parameters, as this worker told of them in this round
        smaller.follow(trained, key, never=[trained.names[index] for index in self._sparse])
        named = zip(trained.names, trained.parameters, strict=True)
        self.room = {key(name): torch.zeros_like(as_real(parameter)) for name, parameter in named}
        self.room[self._used] = torch.zeros(3 * len(trained.parameters) + DIGEST_BYTES + 1)
        for index in self._sparse:
            self.room[key(_SPARSE + trained.names[index])] = torch.zeros(trained.parameters[index].shape[0])

    def flags(self, late: bool, round_: int) -> dict[str, Tensor]:
        """What this worker pushes beside its gradients. Now and then that is its parameters' norms, too."""
        looks = self._in_step and (round_ <= _FIRST or round_ % _EVERY == 0)
        parameters = [parameter.detach() for parameter in self._trained.parameters]
        self._norms = torch.stack(torch._foreach_norm(parameters)).float().cpu() if looks else None
        gradients = [parameter.grad for parameter in self._trained.parameters]
        used = [float(g is not None) for g in gradients] + [float(g is not None and g.is_sparse) for g in gradients]
        norms = [0.0] * len(parameters) if self._norms is None else self._norms.tolist()
        flags = {self._used: torch.tensor([*used, *norms, *map(float, Options(self._trained).digest()), float(late)])}
        for index in self._sparse:
            gradient = gradients[index]
            rows = torch.zeros(self._trained.parameters[index].shape[0])
            if gradient is not None:
                rows[gradient.coalesce().indices()[0] if gradient.is_sparse else slice(None)] = 1.0
            flags[self._key(_SPARSE + self._trained.names[index])] = rows
        return flags

    def hand_out(self) -> bool:
        """Each .grad is a tensor of its own, as backward made it. Returns whether a worker was late."""
        count = len(self._trained.parameters)
        used, sparse, norms, digest, late = self.room[self._used].split([count, count, count, DIGEST_BYTES, 1])
        self._check_options(digest)
        self._check_norms(norms)
        for index, parameter in enumerate(self._trained.parameters):
            name = self._trained.names[index]
            gradient = self.room[self._key(name)]
            if not used[index]:
                parameter.grad = None
                self._smaller.carry(self._key(name), gradient)
            elif sparse[index]:
                rows = self.room[self._key(_SPARSE + name)].nonzero().flatten()
                parameter.grad = torch.sparse_coo_tensor(rows[None], gradient[rows], parameter.shape).coalesce()
            else:
                whole = self._smaller.with_carried(self._key(name), gradient.clone())
                parameter.grad = torch.view_as_complex(whole) if parameter.is_complex() else whole
        return bool(late)

    def _check_options(self, mean: Tensor) -> None:
        """The mean of the workers' digests must be everybody's own."""
        own = torch.tensor(list(Options(self._trained).digest()), dtype=mean.dtype)
        if self._in_step and not torch.allclose(mean, own, rtol=0, atol=1e-3):
            raise ConfigError(
                "the options of the optimizers (the learning rate, say) differ between workers, and over servers that "
                "only average each worker steps with its own; set them alike on all"
            )

    def _check_norms(self, mean: Tensor) -> None:
        """Every worker steps by itself, and must have what the others have."""
        own = self._norms
        if own is None:
            return
        same = torch.isclose(mean, own.to(mean.dtype), rtol=_ALIKE, atol=1e-30, equal_nan=True)
        if not same.all():
            raise ConfigError(
                f"{self._trained.names[int(same.long().argmin())]} is no longer the same on all workers: the program "
                "changes it on one alone, or by its own part of a batch; change parameters alike on all"
            )


def as_real(tensor: Tensor) -> Tensor:
    """Servers know no complex numbers: they get their real and imaginary parts, in the same memory."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _find_sparse(trained: Trained) -> list[int]:
    """Parameters whose gradients are sparse: those of Embedding(sparse=True)."""
    modules = [module for module in trained.module.modules() if getattr(module, "sparse", False) is True]
    found = {id(getattr(module, "weight", None)) for module in modules}
    return [index for index, parameter in enumerate(trained.parameters) if id(parameter) in found]
