"""A model on the meta device: each device makes first values for what it holds, and nobody holds all of it."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from gradtide.parallel.split.meta import initial_tensors
from gradtide.parallel.split.run.held import Held, Holding

__all__ = ["fill_first_values", "is_on_meta"]


def is_on_meta(model: nn.Module) -> bool:
    return any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


def fill_first_values(held: Held, model: nn.Module, seed: int, device: torch.device) -> None:
    """Module by module, the same values under every layout."""
    every: Mapping[str, Holding] = {**held.buffers, **held.parameters}
    for name, whole in initial_tensors(model, seed, wanted=set(every)):
        for _, local in every[name].holders:
            part = whole.detach()[local.index] if local.index else whole.detach()
            _become(local.tensor, part.to(device, copy=True))


def _become(tensor: Tensor, value: Tensor) -> None:
    """In place: the local modules hold this very tensor."""
    if isinstance(tensor, nn.Parameter):
        torch.utils.swap_tensors(tensor, nn.Parameter(value, tensor.requires_grad))
    else:
        torch.utils.swap_tensors(tensor, value)
