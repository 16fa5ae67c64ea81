"""Models that no chain is exact for, refused by name before they are traced."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gradtide.errors import ConfigError
from gradtide.parallel.split.snapshot import ModelSnapshot
from gradtide.parallel.split.trace.inputs import Example, on_device_of
from gradtide.parallel.split.trace.leaves import is_layer
from gradtide.parallel.split.trace.random_watch import GeneratorWatch
from gradtide.parallel.split.trace.symbolic import in_mode, said_at

__all__ = ["refuse_example", "refuse_model"]

_HOOKS = {
    "_forward_hooks": "a forward hook",
    "_forward_pre_hooks": "a forward hook",
    "_backward_hooks": "a backward hook",
    "_backward_pre_hooks": "a backward hook",
}
_RANDOM = (nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)  # for some inputs they happen to draw none


def refuse_model(model: nn.Module) -> None:
    """Raises what stands in the way, and what to do about it."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"a model is split, an nn.Module; this is of type {type(model).__name__}")
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise ConfigError(f"{name} has no shape yet; run the model on a batch once before it is split")
        _refuse_tensor_hooks(name, parameter)
    for name, module in model.named_modules():
        if isinstance(module, _RANDOM):
            raise ConfigError(
                f"{name or 'the model'} ({type(module).__name__}) draws random numbers in training, which nothing can "
                "reproduce on another device; use another layer"
            )
        for attribute, kind in _HOOKS.items():
            if getattr(module, attribute):
                raise ConfigError(_why_no_hook(f"{name or 'the model'} ({type(module).__name__})", kind))


def refuse_example(model: nn.Module, example: Example) -> None:
    """Raises the model's own words where it can't be run on the example, and what it keeps from call to call."""

    def run() -> None:
        batch = on_device_of(model, example.first(2))
        args, kwargs = example.arguments([tensor.clone() for tensor in batch.values()])
        model(*args, **kwargs)

    watch = GeneratorWatch() if any(map(_is_users, model.modules())) else nullcontext()
    with torch.no_grad(), torch.random.fork_rng(devices=[]), watch:
        try:
            told = in_mode([model], False, lambda: _kept(model, run))
        except Exception as error:
            raise ConfigError(f"{type(model).__name__} can't be run on the example: {said_at(error)}") from error
        told = told or in_mode([model], True, lambda: _kept(model, run, quiet=True))
    if isinstance(watch, GeneratorWatch) and watch.drawn:
        raise ConfigError(
            f"the model's forward draws from {watch.drawn}, as LayerDrop does, and a split model would go on with what "
            "it drew when it was taken apart; draw before the step and give it to the model as an input, or use "
            "nn.Dropout"
        )
    if told:
        raise ConfigError(
            f"in the model's forward {told}, which its parts on other devices would not do; keep nothing from call to "
            "call but the statistics of batch norms"
        )


def _is_users(module: nn.Module) -> bool:
    """Whether its forward may be anything."""
    return not type(module).__module__.startswith("torch.nn.")


def _kept(model: nn.Module, run: Callable[[], None], *, quiet: bool = False) -> str:
    """What a call changes in the model, which afterwards is as before. Layers are looked at one by one later on."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    before = ModelSnapshot(model)
    try:
        run()
    except Exception:
        if not quiet:
            raise
    inside = {part for module in model.modules() if is_layer(module) for part in module.modules()}
    told = before.change(leave_out=inside)
    before.restore()
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    return told


def _refuse_tensor_hooks(name: str, parameter: Any) -> None:
    if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
        raise ConfigError(f"{name} has a gradient hook, which would see parts of its gradient; take it off")


def _why_no_hook(where: str, kind: str) -> str:
    return (
        f"{where} has {kind}, which would be called for every micro-batch on every device; take it off "
        "(torch.nn.utils.parametrizations has weight_norm without hooks)"
    )
