"""The models that `gradtide train --model` takes: for 28x28 grey images in ten classes."""

from collections.abc import Callable

import torch
from torch import nn

from gradtide.errors import ConfigError
from gradtide.train.models.own import find_own, is_own, make_own
from gradtide.train.models.small import deep, lenet, mlp
from gradtide.train.models.towers import alexnet

__all__ = ["MODELS", "build_model", "check_model"]


def enlarged_alexnet() -> nn.Module:
    """AlexNet in its full width, with images enlarged to its 227x227: slow without a GPU."""
    return _ready_to_learn(alexnet(channels=1, classes=10, enlarge=True))


def small_alexnet() -> nn.Module:
    """An eighth of AlexNet's width, with images enlarged to 67x67, the least that its layers leave anything of."""
    return _ready_to_learn(alexnet(width=1 / 8, size=67, channels=1, classes=10, enlarge=True))


def _ready_to_learn(model: nn.Module) -> nn.Module:
    """He's first values: from torch's own, plain SGD had not left the start after six epochs of the digits."""
    for layer in model.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "lenet": lenet,
    "mlp": mlp,
    "deep": deep,
    "alexnet": enlarged_alexnet,
    "alexnet-small": small_alexnet,
}


def check_model(name: str) -> None:
    if is_own(name):
        find_own(name, "the model")
    elif name not in MODELS:
        raise ConfigError(
            f"unknown model {name!r}; choose one of {', '.join(MODELS)}, or a function of yours: my_module:make_model"
        )


def build_model(name: str, seed: int) -> nn.Module:
    """A model by name; the same seed gives the same first parameters."""
    check_model(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = make_own(name, "the model") if is_own(name) else MODELS[name]()
    if not isinstance(made, nn.Module):
        raise ConfigError(f"{name} gave a {type(made).__name__}; it must give a torch.nn.Module")
    return made
