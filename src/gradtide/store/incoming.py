"""How the values of a request are received on a server: which memory each part of it goes to."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradtide.errors import FrameError
from gradtide.store.at_once import Short
from gradtide.store.familiar import Acquaintance
from gradtide.store.host import LAYOUTS_KEPT, Host
from gradtide.store.messages import Init, Part, Pull, Push
from gradtide.store.peers import Arriving
from gradtide.store.placement import BLOCK_BYTES
from gradtide.store.tensors import DTYPES, bytes_of
from gradtide.transport.connection import Connection

__all__ = ["Client", "Incoming", "PartPlan", "land", "make_plan", "plan_part", "use_in_place"]


@dataclass(slots=True, eq=False)
class PartPlan:
    """How the values of one part of a layout are received."""

    part: Part
    size_bytes: int
    dtypes: tuple[torch.dtype, ...]  # by piece
    counts: tuple[int, ...]
    uniform: bool  # all of one dtype and small enough for one piece of memory
    passing: bool = False  # outside of rounds: applied when they are handed over, so their memory is free again
    short: Short | None = None


@dataclass(slots=True)
class Incoming:
    """A request whose values are arriving."""

    message: Push | Init
    plan: tuple[PartPlan, ...]
    index: int = 0  # of the part that is arriving
    values: Sequence[Tensor] = ()  # of this part, as far as there is memory for them


@dataclass(slots=True, eq=False)
class Client:
    connection: Connection
    request: Incoming | None = None
    arriving: Arriving | None = None  # from another server
    handed_over: int = 0  # body bytes that credit was not given back for
    noted: dict[tuple[int, int], int] = field(default_factory=dict)  # (sequence, shard) -> bytes that wait here
    noted_bytes: int = 0
    scratch: Tensor | None = None  # where passing values are received, again and again: new pages cost more than adding
    landings: dict[PartPlan, tuple[Sequence[Tensor], memoryview]] = field(default_factory=dict)  # views of scratch
    familiar: Acquaintance = field(default_factory=Acquaintance)  # what it has asked for the short way


def use_in_place(client: Client, body: memoryview) -> bool:
    """Whether the values of the part that is arriving can be read where they lie: they are applied at once."""
    request = client.request
    plan = request.plan[request.index] if request is not None else None
    if request is None or plan is None or not (plan.uniform and plan.passing) or len(body) != plan.size_bytes:
        return False
    flat = torch.frombuffer(body, dtype=plan.dtypes[0])
    if flat.data_ptr() % flat.element_size():
        return False
    request.values = flat.split(plan.counts) if len(plan.counts) > 1 else (flat,)
    return True


def land(client: Client, plan: PartPlan) -> tuple[Sequence[Tensor], memoryview]:
    """Memory for values that pass: the same for every part of this client, as one after the other arrives."""
    if client.scratch is None or client.scratch.nbytes < plan.size_bytes:
        client.scratch = torch.empty(plan.size_bytes, dtype=torch.uint8)
        client.landings.clear()
        client.familiar = Acquaintance()
    elif len(client.landings) >= LAYOUTS_KEPT:
        client.landings.clear()
        client.familiar = Acquaintance()
    flat = client.scratch[: plan.size_bytes].view(plan.dtypes[0])
    landing = client.landings[plan] = (flat.split(plan.counts), bytes_of(flat))
    return landing


def make_plan(
    host: Host[Tensor], message: Push | Pull | Init, parts: tuple[Part, ...]
) -> tuple[tuple[PartPlan, ...], bool]:
    """How the values of a request are received; and whether all of its keys are known, so that this can be kept."""
    made, all_known, passing = [], True, False
    for part in parts:
        if isinstance(message, Init):
            dtypes = [DTYPES.get(message.spec.dtype)] * len(part.pieces)
        else:
            shard = host.shards.get(part.shard)
            blocks = shard.blocks if shard is not None else {}
            known = [blocks.get((piece.key, piece.block)) for piece in part.pieces]
            all_known = all_known and None not in known
            passing = all(block is not None and block.spec.delay is None for block in known)
            passing = passing and not host.is_replicated  # else the log keeps them
            # An unknown key will be refused when it has arrived; until then its bytes are just bytes.
            dtypes = [DTYPES[block.spec.dtype] if block else None for block in known]
        made.append(plan_part(part, dtypes, isinstance(message, Init), passing))
    return tuple(made), all_known


def plan_part(part: Part, dtypes: Sequence[torch.dtype | None], must_know: bool, passing: bool = False) -> PartPlan:
    """Checks a part that came over the wire, and says how its values are received."""
    counts, chosen = [], []
    for piece, dtype in zip(part.pieces, dtypes, strict=True):
        size = piece.size_bytes
        if not 0 <= size <= BLOCK_BYTES or piece.count < 0 or piece.start < 0 or piece.block < 0:
            raise FrameError("it sent a piece that is larger than a block, or negative")
        if dtype is None and must_know:
            raise FrameError("it sent values of a dtype that the store does not have")
        if dtype is not None and size != piece.count * dtype.itemsize:
            raise FrameError("it sent a piece whose bytes don't match its dtype")
        chosen.append(dtype or torch.uint8)
        counts.append(piece.count if dtype else size)
    total = sum(piece.size_bytes for piece in part.pieces)
    uniform = len(set(chosen)) == 1 and total <= BLOCK_BYTES
    return PartPlan(part, total, tuple(chosen), tuple(counts), uniform, passing)
