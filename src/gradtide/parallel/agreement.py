"""What workers tell each other before they train on a batch: in the group that the steps go through, or over a store.

In a job that outlives its workers any of this may find one dead. Then those who are left go on as after a step that was
lost: in the next generation all of them agree once more.
"""

from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import closing, nullcontext
from typing import TypeVar

import torch

from gradtide.collective import Group
from gradtide.errors import CommunicationError, DataError, StoreError
from gradtide.store import connect, update
from gradtide.sync import Job
from gradtide.sync.job import LoopBegin

__all__ = [
    "PURPOSE",
    "comes_and_goes",
    "compare",
    "compare_over_store",
    "note_loop",
    "set_state",
    "share_bytes",
    "state_of",
    "take_up_loop",
    "together",
]

T = TypeVar("T")
_AT_ONCE_BYTES = 4096  # a batch's indices: what is not longer takes one exchange
_LENGTH_BYTES = 8
PURPOSE = "in gradtide.shard, which all workers go over together; one that validates alone takes the loader itself"
_HELP = (
    "seed what makes them, or use a DataLoader over a Dataset with a length, whose order shard agrees on; if they may "
    "differ (by augmentation, say): check=False"
)


def compare(job: Job, digest: Callable[[], bytes]) -> None:
    """Refuses what is next, on all workers alike, where it is not the same for all."""
    if not job.meets or job.group is None:
        job.agreed = job.generation
        return
    group = job.group
    try:
        own = torch.frombuffer(bytearray(digest()), dtype=torch.uint8)
        with group.purpose(PURPOSE):
            seen = [bytes(row.tolist()) for row in group.all_gather(own)]
    except CommunicationError:
        if job.elastic is None:
            raise
        return  # the next step finds the dead one, and in the next generation it is compared again
    job.agreed = job.generation
    others = [str(rank) for rank, row in enumerate(seen) if row != seen[0]]
    if others:
        who = f"worker {others[0]} has" if len(others) == 1 else f"workers {', '.join(others)} have"
        raise DataError(
            f"shard needs the same batches on all workers, but {who} another first batch than worker 0; {_HELP}"
        )


def comes_and_goes(job: Job) -> bool:
    """Whether each worker does by itself, over servers, so that they never meet."""
    return job.elastic is not None and not job.meets


def compare_over_store(job: Job, digest: Callable[[], bytes]) -> None:
    """Where each worker comes and goes by itself: the first leaves word of its first batch, and others must have it."""
    if not comes_and_goes(job) or job.store is None or job.batches:
        return
    assert job.elastic is not None
    own = torch.frombuffer(bytearray(digest()), dtype=torch.int64)
    key = f"the first batch of {job.elastic.name}"
    with closing(connect(job.store)) as store:
        try:
            store.init(key, own, update=update("assign"), consistency="async")
        except StoreError as error:
            if torch.equal(store.pull(key), own):
                raise
            raise DataError(
                f"shard needs the same batches on all workers, but worker {job.elastic.number} has another first batch "
                f"than the first one to come; {_HELP}"
            ) from error


def take_up_loop(job: Job, generator: torch.Generator | None) -> LoopBegin | None:
    """A worker over servers that came later goes over this loop as the others did. Returns how it began; None: this
    worker is the first to know."""
    known = next((loop for loop in job.loops if loop.batches == job.batches), None) if comes_and_goes(job) else None
    if known is not None and generator is not None:
        set_state(generator, known.generator)
    return known


def note_loop(job: Job, digest: Callable[[], bytes], generator: str, known: LoopBegin | None) -> None:
    """For those who will come later; in the first epoch they go over all that came before themselves. Who came later is
    refused if it begins the loop with another batch."""
    if not comes_and_goes(job) or "epoch" not in job.state:
        return
    loop = LoopBegin(job.batches, digest().hex(), generator)
    if known is None:
        job.loops.append(loop)
    elif loop.digest != known.digest:
        raise DataError(
            f"shard needs the same batches on all workers, but worker {job.number}, which came later, begins this loop "
            f"with another batch than the others did; {_HELP}"
        )


def state_of(generator: torch.Generator | None) -> str:
    return "" if generator is None else b64encode(generator.get_state().numpy().tobytes()).decode()


def set_state(generator: torch.Generator, state: str) -> None:
    generator.set_state(torch.frombuffer(bytearray(b64decode(state)), dtype=torch.uint8))


def together(job: Job, work: Callable[[Group | None], T]) -> T:
    """Does it with those who are left, where one dies meanwhile and the job goes on without it."""
    while True:
        try:
            group = job.group if job.meets else None
            with nullcontext() if group is None else group.purpose(PURPOSE):
                done = work(group)
            job.exchanges += 1
            return done
        except CommunicationError as error:
            if job.elastic is None:
                raise
            job.recover(error)


def share_bytes(group: Group, root: int, data: bytes = b"") -> bytes:
    """The root's bytes, on all ranks."""
    first = torch.zeros(_AT_ONCE_BYTES, dtype=torch.uint8)
    short = _AT_ONCE_BYTES - _LENGTH_BYTES
    if group.rank == root:
        message = len(data).to_bytes(_LENGTH_BYTES, "little") + data[:short]
        first[: len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
    group.broadcast(first, root)
    raw = first.numpy().tobytes()
    length = int.from_bytes(raw[:_LENGTH_BYTES], "little")
    if length <= short:
        return raw[_LENGTH_BYTES : _LENGTH_BYTES + length]
    rest = torch.zeros(length, dtype=torch.uint8)
    if group.rank == root:
        rest = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    group.broadcast(rest, root)
    return rest.numpy().tobytes()
