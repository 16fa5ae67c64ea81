"""torch's tensors and lists of tensors as the flat rows that a Group takes, and back.

Ranks may give tensors of different shapes or strides, as long as they have as many elements: elements are counted in
the order of the indices.
"""

from collections.abc import Iterable, Sequence

import torch

from gradtide.collective.host.prepare import plain
from gradtide.errors import ConfigError

__all__ = ["are_alike", "check_count", "check_device", "fill", "flat", "put_back", "stacked"]

Tensor = torch.Tensor


def check_device(tensor: Tensor) -> None:
    if not tensor.is_cpu:
        raise ConfigError(
            f"the gradtide backend takes CPU tensors, not one on {tensor.device}. It replaces the whole process group: "
            "'cpu:gradtide,cuda:nccl' can't be mixed; use new_group(backend=...) for another device"
        )


def flat(tensor: Tensor) -> Tensor:
    """Its elements in one row: the tensor's own memory if it is contiguous, else a copy."""
    if tensor.is_cpu and tensor.is_contiguous() and tensor.numel() != 1:
        return tensor if tensor.dim() == 1 else tensor.detach().view(-1)
    check_device(tensor)
    return plain(tensor).view(-1)


def put_back(row: Tensor, tensor: Tensor) -> None:
    """What is in the row that flat() gave becomes the tensor's content, if that lies elsewhere."""
    if row.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(row.view(tensor.shape))


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """A row a tensor."""
    check_count(tensors, tensors[0])
    return torch.stack([flat(tensor) for tensor in tensors])


def fill(targets: Iterable[Tensor], rows: Iterable[Tensor]) -> None:
    """Each target gets its row."""
    for target, row in zip(targets, rows, strict=True):
        target.detach().copy_(row.view(target.shape))


def are_alike(tensors: Sequence[Tensor]) -> bool:
    """Whether all have as many elements. They must be of one dtype."""
    for tensor in tensors:
        if tensor.dtype != tensors[0].dtype:
            raise _unlike(tensor, tensors[0])
    return all(tensor.numel() == tensors[0].numel() for tensor in tensors)


def check_count(tensors: Sequence[Tensor], like: Tensor) -> None:
    for tensor in tensors:
        if tensor.numel() != like.numel() or tensor.dtype != like.dtype:
            raise _unlike(tensor, like)


def _unlike(tensor: Tensor, like: Tensor) -> ConfigError:
    return ConfigError(
        f"the tensors of one call must be alike: {tensor.dtype}{list(tensor.shape)} beside "
        f"{like.dtype}{list(like.shape)}"
    )
