"""One worker tells all: bytes of any length, and the checkpoint that all go on with."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from gradtide.collective import Group
from gradtide.train.keeper import Checkpoints

if TYPE_CHECKING:
    from gradtide.sync import Job

__all__ = ["agree_on_checkpoint", "tell"]


def tell(group: Group, teller: int, data: bytes) -> bytes:
    """What the teller says, on all ranks, which all call this."""
    size = torch.tensor([len(data)])
    group.broadcast(size, teller)
    if not int(size):
        return b""
    told = (
        torch.frombuffer(bytearray(data), dtype=torch.uint8) if group.rank == teller else torch.empty(int(size)).byte()
    )
    group.broadcast(told, teller)
    return bytes(told.tolist())


def agree_on_checkpoint(wanted: Checkpoints, job: "Job") -> Checkpoints:
    """The newest that worker 0 sees: another may still be written while this one looks, or not be seen yet from here.

    Over servers each looks by itself, as does a worker that comes later: they wait for nobody.
    """
    if wanted.resume is not True or job.store is not None or job.elastic is not None or job.group is None:
        return wanted
    found = wanted.find() if job.rank == 0 else None
    address = tell(job.group, 0, found[0].address.encode() if found is not None else b"").decode()
    return replace(wanted, resume=address or False)
