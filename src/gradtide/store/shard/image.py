"""A shard on its way to another server: a replica follows the log entry by entry, or takes a snapshot of all. Pure.

A snapshot holds what is closed and settled. What waits for its round is not in it: whoever pushed it has no answer and
will push it again.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from gradtide.store.rules.arithmetic import Arithmetic
from gradtide.store.shard.filter import Filter
from gradtide.store.shard.rounds import Block
from gradtide.store.shard.shard import Shard
from gradtide.store.wire.messages import (
    BlockImage,
    Came,
    Configured,
    Created,
    RecordImage,
    Replicate,
    RoundsClosed,
    Settled,
    Snapshot,
    Step,
    Updated,
    Version,
)

__all__ = ["image_of", "put_together", "replay", "restore", "revive", "snapshot"]

V = TypeVar("V")


def replay(shard: Shard[V], entry: Replicate, values: Sequence[V]) -> None:
    """Do what the primary did."""
    left = iter(values)
    for step in entry.steps:
        _replay_step(shard, step, left)
    shard.version, shard.position = entry.version, entry.position


def _replay_step(shard: Shard[V], step: Step, values: Iterator[V]) -> None:
    match step:
        case Created():
            value = next(values)
            state = shard.arithmetic.create(step.spec, value)
            shard.blocks[step.spec.key, step.block] = Block(
                step.spec, step.elements, step.size_bytes, step.digest, state
            )
        case Updated():
            shard.blocks[step.key, step.block].replay(step, next(values))
        case Came():
            shard.blocks[step.key, step.block].come_by_without_push(step.worker, step.round)
        case RoundsClosed():
            shard.blocks[step.key, step.block].end(step.round)
        case Configured():
            for (key, _), block in shard.blocks.items():
                if key == step.key:
                    block.configure(step.changes, step.from_round)
        case Settled():
            shard.filter.replay(step)


def snapshot(shard: Shard[V], epoch: int, server: str) -> tuple[Snapshot, tuple[V, ...]]:
    """All of a shard. The values are its own memory: send or copy them before its next event."""
    images = [image_of(number, block) for (_, number), block in shard.blocks.items()]
    return put_together(shard, images, shard.filter.images(), epoch, server)


def image_of(number: int, block: Block[V]) -> tuple[BlockImage, tuple[V, ...]]:
    """One block; the values are its own memory."""
    beside = block.state.beside()
    image = BlockImage(
        block.created(number),
        block.closed,
        tuple((round_, tuple(sorted(workers))) for round_, workers in block.counted.items()),
        tuple(block.changes),
        tuple(block.came.items()),
        block.state.arguments(),
        tuple(beside),
        1 + len(beside),
    )
    return image, (block.state.value(), *beside.values())


def put_together(
    shard: Shard[V],
    images: Iterable[tuple[BlockImage, tuple[V, ...]]],
    records: tuple[RecordImage, ...],
    epoch: int = 0,
    server: str = "",
) -> tuple[Snapshot, tuple[V, ...]]:
    """A shard from the images of its blocks."""
    pairs = list(images)
    values = tuple(value for _, own in pairs for value in own)
    slots = tuple(map(shard.arithmetic.slot, values))
    blocks = tuple(image for image, _ in pairs)
    return Snapshot(epoch, server, shard.number, shard.position, shard.version, blocks, records, slots), values


def restore(word: Snapshot, values: Sequence[V], arithmetic: Arithmetic[V]) -> Shard[V]:
    """The shard of a snapshot."""
    shard = Shard(word.shard, arithmetic, word.version)
    shard.position = word.position
    shard.filter = Filter.from_images(word.records)
    first = 0
    for image in word.blocks:
        own = values[first : first + image.values]
        first += image.values
        spec = image.created.spec
        state = arithmetic.restore(spec, own[0], image.arguments, dict(zip(image.names, own[1:], strict=True)))
        shard.blocks[spec.key, image.created.block] = Block(
            spec, image.created.elements, image.created.size_bytes, image.created.digest, state,
            closed=image.closed,
            counted={round_: frozenset(workers) for round_, workers in image.counted},
            changes=list(image.changes),
            came=dict(image.reached),
            reached=dict(image.reached),
        )  # fmt: skip
    return shard


def revive(word: Snapshot, values: Sequence[V], arithmetic: Arithmetic[V]) -> Shard[V]:
    """The shard of a checkpoint: who had come by which open round was of another time, and so were its replicas."""
    shard = restore(word, values, arithmetic)
    shard.position = Version(0, 1)  # not the one of an empty shard: whoever follows needs a snapshot
    shard.take_over()
    for block in shard.blocks.values():
        block.retain(())
    return shard
