"""What a compressed block is after each round, and what workers have of it, worked out by one pair of hands.

A round that somebody pushed for is encoded when it closes. Of those that nobody pushed for some are, depending on how
many closed at once: there several things are possible, and what workers were given tells which it was.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from torch import Tensor

from gradtide.store.rules.codecs import BlockCodec, answers_whole, block_codec, draw_of
from gradtide.store.rules.reductions import SEMIRINGS, reduce_in_order, weighted_mean
from gradtide.store.rules.tensors import bytes_of
from gradtide.store.wire.messages import KeySpec

__all__ = ["Contributions", "Seen", "Trail", "follow"]

Contributions = Mapping[int, Sequence[tuple[float, Tensor]]]  # round -> weight and value, in worker order

_MOST = 256  # possibilities that are followed


@dataclass(frozen=True, slots=True)
class Seen:
    """What workers have, and, where averages go back, what these have left out."""

    tip: Tensor
    residual: Tensor | None = None


@dataclass(slots=True)
class Trail:
    """After each round."""

    values: dict[int, Tensor]
    seen: dict[int, list[Seen]] = field(default_factory=dict)  # what is possible; nothing where it is not encoded


def follow(
    spec: KeySpec, start: Tensor, contributions: Contributions, closed: int, given: Mapping[int, bytes]
) -> Trail:
    """`given`: what workers were given after some rounds."""
    codec = block_codec(spec, start.numel())
    trail = Trail({0: start}, {0: [Seen(start)]} if codec is not None else {})
    for round_ in range(1, closed + 1):
        value = trail.values[round_ - 1]
        here = contributions.get(round_, ())
        trail.values[round_] = value = _update(spec, value, here) if here else value
        if codec is None:
            continue
        surely = bool(here) or round_ == closed or bool(contributions.get(round_ + 1))
        possible = list(islice(_go_on(spec, codec, trail, round_, fresh=bool(here), surely=surely), _MOST))
        known = given.get(round_)
        trail.seen[round_] = [seen for seen in possible if known in (None, bytes(bytes_of(seen.tip)))]
    return trail


def _update(spec: KeySpec, value: Tensor, contributions: Sequence[tuple[float, Tensor]]) -> Tensor:
    if spec.update.name == "mean":
        return weighted_mean(contributions)
    return value + reduce_in_order(SEMIRINGS["add"], contributions)


def _go_on(spec: KeySpec, codec: BlockCodec, trail: Trail, round_: int, *, fresh: bool, surely: bool) -> Iterator[Seen]:
    whole, value = answers_whole(spec), trail.values[round_]
    for seen in trail.seen[round_ - 1]:
        if not surely or (whole and not fresh):
            yield seen
        if whole and fresh:
            yield _average(codec, value, seen, draw_of(spec.key, round_))
        elif not whole:
            yield _difference(codec, value, seen, draw_of(spec.key, round_))


def _average(codec: BlockCodec, value: Tensor, seen: Seen, draw: int) -> Seen:
    answer = value.clone() if seen.residual is None else value + seen.residual
    body = codec.encode(answer, draw)
    assert body is not None
    return Seen(codec.read(body), answer if codec.feedback else None)


def _difference(codec: BlockCodec, value: Tensor, seen: Seen, draw: int) -> Seen:
    body, tip = codec.encode(value - seen.tip, draw), seen.tip.clone()
    assert body is not None
    codec.decode(body, tip, add=True)
    return Seen(tip)
