"""Tensors as the collectives take them, contiguous and on the CPU, and their results where they were asked for."""

import torch

from gradtide.errors import ConfigError, Mismatch

__all__ = ["as_bytes", "check_split", "give_back", "held", "output", "overlap", "plain"]

Tensor = torch.Tensor


def plain(tensor: Tensor) -> Tensor:
    """The tensor itself if it is contiguous memory of the CPU, or else a copy that is."""
    _check_layout(tensor)
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def held(tensor: Tensor) -> Tensor:
    """The tensor's memory as it is now, whatever becomes of the tensor, for plain() when its turn comes: an operation
    asked for before this one may still change what is in it. Of another device: a copy."""
    _check_layout(tensor)
    return tensor.detach() if tensor.is_cpu else plain(tensor)


def overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two contiguous tensors have memory in common."""
    begin, others = one.data_ptr(), other.data_ptr()
    return begin < others + other.nbytes and others < begin + one.nbytes


def _check_layout(tensor: Tensor) -> None:
    if tensor.layout != torch.strided:
        raise ConfigError(f"a tensor of layout {tensor.layout} can't be communicated; make it dense first")


def as_bytes(tensor: Tensor) -> Tensor:
    """The memory of a contiguous tensor. A single element's stride may be anything, and torch then views no bytes."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def give_back(prepared: Tensor, tensor: Tensor) -> Tensor:
    """Puts the result where it was asked for, if that is elsewhere."""
    if (
        prepared.data_ptr() != tensor.data_ptr()
        or prepared.device != tensor.device
        or prepared.is_conj() != tensor.is_conj()
    ):
        tensor.detach().copy_(prepared)
    return tensor


def output(tensor: Tensor, shape: tuple[int, ...], out: Tensor | None) -> Tensor:
    if out is None:
        return torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
    if tuple(out.shape) != shape or out.dtype != tensor.dtype:
        raise ConfigError(
            f"expected {str(tensor.dtype).removeprefix('torch.')}{list(shape)}, "
            f"got {str(out.dtype).removeprefix('torch.')}{list(out.shape)}"
        )
    return out


def check_split(given: Tensor, wanted: Tensor) -> None:
    """That what each rank gives each other, given[from, to], is what that one takes, wanted[to, from]."""
    for source, target in (given != wanted.t()).nonzero().tolist():
        raise Mismatch(
            f"all_to_all: rank {source} sends {given[source, target]} elements to rank {target}, which takes "
            f"{wanted[target, source]}; make the split sizes agree"
        )
