"""What else is measured on the validation data.

Every metric sees the outputs of whole batches, in the data's order, whatever devices and workers computed them: so it
gives what it gives on one device and one worker. A plain function is taken for a mean over samples, and batches count
by their samples; whether that is so is compared on the first batch. One that is no such mean (F1, AUC) is an object
with `update(outputs, targets)`, `compute()` and `reset()`, as torchmetrics' are, or `OverAll(function)`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from gradtide.errors import ConfigError

__all__ = ["Metrics", "OverAll"]

_RESERVED = ("loss", "accuracy", "lr", "epoch", "validation_loss", "validation_accuracy")


class OverAll:
    """A metric for `fit` and `evaluate` that is a function of all outputs and all targets of the data at once.

    `function` takes (outputs, targets) and gives a number; both are kept in memory until the data has been gone over.
    """

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.reset()

    def update(self, outputs: Any, targets: Any) -> None:
        """Keeps a batch."""
        self._seen.append((outputs, targets))

    def compute(self) -> Any:
        """The function of all that was kept."""
        outputs, targets = zip(*self._seen, strict=True)
        return self.function(_joined(outputs), _joined(targets))

    def reset(self) -> None:
        """Forgets what was kept."""
        self._seen: list[tuple[Any, Any]] = []


class Metrics:
    """All metrics of a run, over one pass of the data at a time."""

    def __init__(self, wanted: Mapping[str, Any] | Sequence[Any] | None) -> None:
        self._by_name = _named(wanted)
        self._sums: dict[str, float] = {}
        self._samples, self._compared = 0, False

    def __bool__(self) -> bool:
        return bool(self._by_name)

    @property
    def names(self) -> list[str]:
        return list(self._by_name)

    def reset(self) -> None:
        self._sums, self._samples = dict.fromkeys(self._by_name, 0.0), 0
        for metric in self._by_name.values():
            if _is_object(metric):
                metric.reset()

    def update(self, outputs: Any, targets: Any, samples: int) -> None:
        """With a whole batch, on the CPU."""
        with torch.no_grad():
            for name, metric in self._by_name.items():
                if _is_object(metric):
                    metric.update(outputs, targets)
                else:
                    value = _number(name, metric(outputs, targets))
                    if not self._compared and samples > 1:
                        _check_mean(name, metric, (outputs, targets), value, samples)
                    self._sums[name] += value * samples
        self._samples, self._compared = self._samples + samples, self._compared or samples > 1

    def compute(self) -> dict[str, float]:
        if not self._samples:
            return {}
        return {
            name: _number(name, metric.compute()) if _is_object(metric) else self._sums[name] / self._samples
            for name, metric in self._by_name.items()
        }


def _is_object(metric: Any) -> bool:
    return all(callable(getattr(metric, name, None)) for name in ("update", "compute", "reset"))


def _named(wanted: Mapping[str, Any] | Sequence[Any] | None) -> dict[str, Any]:
    if wanted is None:
        return {}
    if isinstance(wanted, Mapping):
        pairs = list(wanted.items())
    elif isinstance(wanted, list | tuple):
        pairs = [(getattr(metric, "__name__", type(metric).__name__), metric) for metric in wanted]
    else:
        raise ConfigError(
            f"metrics is a {type(wanted).__name__}; give a list of functions, or a dict from names to them"
        )
    for name, metric in pairs:
        if not isinstance(name, str) or name in _RESERVED or sum(name == other for other, _ in pairs) > 1:
            raise ConfigError(f"a metric can't be called {name!r}, or not twice; give a dict with names of your own")
        if isinstance(metric, type) or not (callable(metric) or _is_object(metric)):
            raise ConfigError(
                f"the metric {name!r} is {metric!r}; give a function of (outputs, targets), or an object with update, "
                "compute and reset"
            )
    return dict(pairs)


def _number(name: str, value: Any) -> float:
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        return float(value)
    if isinstance(value, Tensor) or not hasattr(value, "__float__") or isinstance(value, str):
        found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise ConfigError(f"the metric {name!r} gave {found}; it must give one number for outputs and targets")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"the metric {name!r} gave {value!r}; it must give one number") from None


def _check_mean(name: str, metric: Any, batch: tuple[Any, Any], value: float, samples: int) -> None:
    """A mean over samples is made up of those of two halves."""
    leaves = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]
    if any(not leaf.dim() or len(leaf) != samples for leaf in leaves):
        return  # outputs that don't go by samples, such as a state beside them
    middle = samples // 2
    parts = [(slice(0, middle), middle), (slice(middle, None), samples - middle)]
    halves = [(pytree.tree_map(lambda leaf, cut=cut: leaf[cut], batch), count) for cut, count in parts]
    made = sum(_number(name, metric(*half)) * count for half, count in halves) / samples
    floating = [leaf.dtype for leaf in leaves if leaf.is_floating_point()] or [torch.float32]
    tolerance = max(torch.finfo(dtype).eps for dtype in floating) ** 0.6
    if not abs(made - value) <= tolerance * max(abs(value), abs(made), 1e-3) and made == made:
        raise ConfigError(
            f"the metric {name!r} of {samples} samples is {value:.6g}, but its two halves make {made:.6g}: it is no "
            "mean over samples, so batches can't make up the data; give gradtide.OverAll(function), or an object with "
            "update, compute and reset"
        )


def _joined(parts: Sequence[Any]) -> Any:
    leaves = [pytree.tree_flatten(part)[0] for part in parts]
    joined = [torch.cat(list(same)) for same in zip(*leaves, strict=True)]
    return pytree.tree_unflatten(joined, pytree.tree_flatten(parts[0])[1])
