"""All-reduce of sparse tensors: everybody gathers everybody's entries and adds them up."""

import torch

from gradtide.collective.c10d.shapes import check_device
from gradtide.collective.groups.group import Group
from gradtide.errors import ConfigError

__all__ = ["all_reduce_sparse"]


def all_reduce_sparse(group: Group, tensor: torch.Tensor, op: str, timeout_s: float | None) -> None:
    """Entries are added in rank order. The ranks may have different numbers of entries."""
    if op not in ("sum", "mean") or tensor.layout != torch.sparse_coo:
        raise ConfigError(f"a tensor of layout {tensor.layout} can be reduced by sum and mean of COO only, not by {op}")
    check_device(tensor)
    mine = tensor.detach().coalesce()
    counts = group.all_gather(torch.tensor([mine._nnz()]), timeout_s=timeout_s)[:, 0].tolist()
    indices = _gather(group, mine.indices().t().contiguous(), counts, timeout_s)
    values = _gather(group, mine.values(), counts, timeout_s)
    total = torch.sparse_coo_tensor(indices.t(), values, tensor.shape, check_invariants=False).coalesce()
    with torch.no_grad():  # a detached sparse tensor would have entries of its own
        tensor.copy_(total / group.size if op == "mean" else total)


def _gather(group: Group, rows: torch.Tensor, counts: list[int], timeout_s: float | None) -> torch.Tensor:
    """Everybody's rows, one after the other. Each rank pads its own to the longest."""
    padded = rows.new_zeros((max(counts), *rows.shape[1:]))
    padded[: len(rows)] = rows
    gathered = group.all_gather(padded, timeout_s=timeout_s)
    return torch.cat([gathered[rank, :count] for rank, count in enumerate(counts)])
