"""How contributions become one: commutative semirings over tensors, and the check of their laws.

A semiring has a `combine` (its sum) that a round's contributions go through in worker order, and a `multiply` (its
product) by which a weight counts: in sum-product a weight multiplies, in max-plus it is added, in product it is an
exponent. `finish` turns the combined tensor into the value.

A semiring of one's own is named by its import path ("package.module:name") in the server's own configuration;
`load_semiring` imports it, checks the laws on samples and says which failed. Nothing on the wire can name code.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradtide.errors import ConfigError

__all__ = ["SEMIRINGS", "Semiring", "broken_laws", "load_semiring", "reduce_in_order", "trimmed_mean", "weighted_mean"]


def same(value: Tensor) -> Tensor:
    return value


@dataclass(frozen=True, slots=True)
class Semiring:
    """`zero` is neutral to combine, `one` to multiply; all functions are elementwise and change nothing in place."""

    name: str
    zero: float
    one: float
    combine: Callable[[Tensor, Tensor], Tensor]
    multiply: Callable[[Tensor, float], Tensor]
    lift: Callable[[Tensor], Tensor] = same
    finish: Callable[[Tensor], Tensor] = same
    floats_only: bool = False
    samples: tuple[float, ...] = (-2.0, -0.5, 0.0, 0.25, 1.0, 3.0)  # values that the laws are checked on
    weights: tuple[float, ...] = (0.5, 1.0, 2.0)


def _or(a: Tensor, b: Tensor) -> Tensor:
    return torch.logical_or(a, b).to(a.dtype)


def _and(a: Tensor, b: Tensor) -> Tensor:
    return torch.logical_and(a, b).to(a.dtype)


def _truth(value: Tensor) -> Tensor:
    return (value != 0).to(value.dtype)


_TRUTHS = (0.0, 1.0)
_SUM = Semiring("add", 0.0, 1.0, torch.add, torch.mul)
_MAX = Semiring("max", -torch.inf, 0.0, torch.maximum, torch.add)
_MIN = Semiring("min", torch.inf, 0.0, torch.minimum, torch.add)
# A weight in `product` is an exponent: (a b)^w = a^w b^w, and 1 leaves a value as it is.
_PRODUCT = Semiring("product", 1.0, 1.0, torch.mul, torch.pow, samples=(0.25, 1.0, 1.5, 3.0))
_LOGSUMEXP = Semiring("logsumexp", -torch.inf, 0.0, torch.logaddexp, torch.add, floats_only=True)
_ANY = Semiring(
    "any", 0.0, 1.0, _or, lambda x, w: x if w else torch.zeros_like(x), _truth, samples=_TRUTHS, weights=_TRUTHS
)
# The dual of any: a weight that is true makes a contribution true, so it no longer decides.
_ALL = Semiring(
    "all", 1.0, 0.0, _and, lambda x, w: torch.ones_like(x) if w else x, _truth, samples=_TRUTHS, weights=_TRUTHS
)

SEMIRINGS = {semiring.name: semiring for semiring in (_SUM, _MAX, _MIN, _PRODUCT, _LOGSUMEXP, _ANY, _ALL)}

Weighted = Sequence[tuple[float | None, Tensor]]


def reduce_in_order(semiring: Semiring, contributions: Weighted) -> Tensor:
    """Contributions as one, combined in the order given."""
    total: Tensor | None = None
    for weight, value in contributions:
        term = semiring.lift(value)
        if weight is not None and weight != semiring.one:
            whole = weight.is_integer() and not term.is_floating_point()  # integers stay exact
            term = semiring.multiply(term, int(weight) if whole else weight)
        total = term if total is None else semiring.combine(total, term)
    assert total is not None, "a round without contributions has nothing to combine"
    return total


def weighted_mean(contributions: Weighted, *, divide: bool = True) -> Tensor:
    """The mean (or, without `divide`, the sum) in the order given, in two passes fewer than a general semiring."""
    weights = [1.0 if weight is None else weight for weight, _ in contributions]
    first = contributions[0][1]
    if len(contributions) == 1:
        return first if divide or weights[0] == 1.0 else first * weights[0]
    if divide and sum(weights) == 0:  # nobody had a sample: nothing to learn from this round
        return torch.zeros_like(first)
    total = first * weights[0] if weights[0] != 1.0 else None
    for weight, (_, value) in zip(weights[1:], contributions[1:], strict=True):
        total = torch.add(first, value, alpha=weight) if total is None else total.add_(value, alpha=weight)
    assert total is not None
    return total.div_(sum(weights)) if divide else total


def trimmed_mean(contributions: Weighted, trim: float) -> Tensor:
    """The mean of what is left when, element by element, the lowest and highest `trim` of all are taken away.

    Every contribution counts alike: a weight would let one of them be more than the share that is cut.
    """
    stacked = torch.stack([value for _, value in contributions])
    cut = int(trim * len(contributions))
    if cut == 0:
        return stacked.mean(dim=0)
    return stacked.sort(dim=0).values[cut : len(contributions) - cut].mean(dim=0)


def broken_laws(semiring: Semiring) -> list[str]:
    """The laws that a semiring breaks on its samples, by name."""
    size = len(semiring.samples)
    values = semiring.lift(torch.tensor(semiring.samples, dtype=torch.float64))
    a = values.repeat_interleave(size * size)
    b = values.repeat_interleave(size).repeat(size)
    c = values.repeat(size * size)
    zero = semiring.lift(torch.full_like(values, semiring.zero))
    combine, multiply = semiring.combine, semiring.multiply
    laws = {
        "combine is associative": _close(combine(combine(a, b), c), combine(a, combine(b, c))),
        "combine is commutative": _close(combine(a, b), combine(b, a)),
        "zero is neutral to combine": _close(combine(values, zero), values),
        "one is neutral to multiply": _close(multiply(values, semiring.one), values),
        "multiply distributes over combine": all(
            _close(multiply(combine(a, b), w), combine(multiply(a, w), multiply(b, w))) for w in semiring.weights
        ),
        "nothing is changed in place": _close(
            values, semiring.lift(torch.tensor(semiring.samples, dtype=torch.float64))
        ),
    }
    return [law for law, holds in laws.items() if not holds]


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-9, atol=1e-12, equal_nan=True)


def load_semiring(path: str) -> Semiring:
    """The semiring at "package.module:name", once its laws have been checked."""
    module_name, _, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"no semiring at {path!r} ({error}); write package.module:name") from error
    if not isinstance(found, Semiring):
        raise ConfigError(f"{path!r} is a {type(found).__name__}, not a gradtide.store.rules.reductions.Semiring")
    broken = broken_laws(found)
    if broken:
        raise ConfigError(
            f"{path!r} is no commutative semiring on its samples: it is not true that {'; '.join(broken)}"
        )
    return found
