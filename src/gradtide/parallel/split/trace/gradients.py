"""The gradients of a chain compared with its model's: tracing does not see torch.no_grad(), or an autograd.Function's
own backward."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gradtide.errors import ConfigError
from gradtide.parallel.split.chain_values import output_of, run_units
from gradtide.parallel.split.trace.inputs import Example
from gradtide.parallel.split.units import Chain

__all__ = ["refuse_other_gradients"]

_ROUNDING = 100  # times the rounding of the largest gradient: what is smaller is nothing else

_CLOSE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.complex128: 1e-9, torch.complex64: 1e-4}  # else a twentieth
Found = dict[
    str, tuple[float, float, torch.dtype]
]  # of each parameter with a gradient: what it comes to, and how large


def refuse_other_gradients(
    chain: Chain, model: nn.Module, example: Example, batch: Mapping[str, Tensor]
) -> tuple[str, ...]:
    """In evaluation, where nothing is random. Gradients are looked at one by one, and not kept. Returns parameters
    whose gradient is nothing but rounding."""
    args, kwargs = example.arguments([tensor.clone() for tensor in batch.values()])
    try:
        expected = _gradients(model, lambda: model(*args, **kwargs))
    except Exception:  # it can't be trained so, split or not
        return ()
    copies = {name: tensor.clone() for name, tensor in batch.items()}
    try:
        given = _gradients(model, lambda: output_of(chain, run_units(chain, copies)))
    except Exception as error:
        said = str(error).strip().partition("\n")[0]
        raise ConfigError(f"the model taken apart ({chain.how}) has no backward: {said}") from error
    for name in sorted(expected.keys() | given.keys()):
        if name not in given or name not in expected or not _same(expected[name], given[name]):
            raise ConfigError(
                f"{name} gets another gradient when the model is taken apart ({chain.how}): torch.no_grad() or a "
                "torch.autograd.Function in forward is not seen by it; write x.detach(), or operations of torch"
            )
    return tuple(_rounded(expected, model))


def _rounded(found: Found, model: nn.Module) -> Iterator[str]:
    """As the bias of an attention's keys has: in exact arithmetic it would be nought."""
    numels = {name: parameter.numel() for name, parameter in model.named_parameters() if name in found}
    sizes = {name: found[name][1] / numel for name, numel in numels.items() if numel}
    largest = max(sizes.values(), default=0.0)
    for name, size in sizes.items():
        if 0 < size < _ROUNDING * torch.finfo(found[name][2]).eps * largest:
            yield name


def _gradients(model: nn.Module, run: Callable[[], Any]) -> Found:
    with torch.enable_grad(), _watched(model) as found:
        ends = [leaf for leaf in pytree.tree_leaves(run()) if isinstance(leaf, Tensor) and leaf.requires_grad]
        if ends:
            torch.autograd.backward(ends, [_pattern(end) for end in ends])
    return found


@contextmanager
def _watched(model: nn.Module) -> Iterator[Found]:
    """Gradients that parameters had before are theirs again afterwards."""
    found: Found = {}
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    before = [parameter.grad for _, parameter in trained]
    handles = []
    for name, parameter in trained:
        parameter.grad = None
        handles.append(parameter.register_post_accumulate_grad_hook(_taker(name, found)))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
        for (_, parameter), gradient in zip(trained, before, strict=True):
            parameter.grad = gradient


def _taker(name: str, found: Found) -> Callable[[Tensor], None]:
    def take(parameter: Tensor) -> None:
        gradient = parameter.grad
        assert gradient is not None
        parameter.grad = None
        if gradient.is_meta:
            found[name] = 0.0, 0.0, gradient.dtype
            return
        numbers = torch.view_as_real(gradient) if gradient.is_complex() else gradient.to_dense()
        product = numbers * _pattern(numbers)
        large = float(product.abs().sum(dtype=torch.float64))
        found[name] = float(product.sum(dtype=torch.float64)), large, gradient.dtype

    return take


def _pattern(like: Tensor) -> Tensor:
    """Numbers that no two elements of a tensor have in common, as far as may be."""
    numbers = torch.arange(like.numel(), device=like.device, dtype=torch.float64)
    return (1.5 + torch.cos(numbers)).reshape(like.shape).to(like.dtype)


def _same(one: tuple[float, float, torch.dtype], other: tuple[float, float, torch.dtype]) -> bool:
    limit = _CLOSE.get(one[2], 0.05) * max(one[1], 1e-30)
    return all(not abs(a - b) > limit for a, b in zip(one[:2], other[:2], strict=True))
