"""The models that are split, where each is cut in two, and a batch for it."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from gradtide.bench.peers.training import random_batch
from gradtide.errors import ConfigError
from gradtide.train.models import build_model

__all__ = ["CASES", "SplitCase", "find_case"]


@dataclass(frozen=True, slots=True)
class SplitCase:
    """A model of layers in a row, which torch's pipelines can run too."""

    name: str
    cut: int  # the first layer of the second stage: about half of the work is before it
    batch: Callable[[int], tuple[Tensor, Tensor]] = random_batch
    batch_size: int = 256

    def model(self) -> nn.Sequential:
        model = build_model(self.name, 0)
        assert isinstance(model, nn.Sequential)
        return model


CASES = {case.name: case for case in (SplitCase("mlp", 3), SplitCase("deep", 17), SplitCase("lenet", 3))}


def find_case(name: str) -> SplitCase:
    if name not in CASES:
        raise ConfigError(f"unknown model {name!r}; choose one of {', '.join(CASES)}")
    return CASES[name]
