"""Whether everything that was pushed to compressed keys counts once: whole numbers, to the last bit.

In two halves that together are the promise. Of each client: what it pushed is what its bytes stand for, and what it has
left out. Of each block: its value is what stands in the bytes of those that count, each once; and what workers have of
it, and the servers' own residual, are those of a reference. What is neither in a value nor left out is lost with a
client that died.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, product

import torch
from torch import Tensor

from gradtide.store.rules.codecs import block_codec
from gradtide.store.rules.tensors import DTYPES, bytes_of
from gradtide.store.rules.updates import TorchArithmetic
from gradtide.store.wire.messages import KeySpec
from gradtide.store.wire.placement import block_span
from gradtide.testing.simulator.compressed.keys import start_of
from gradtide.testing.simulator.compressed.ledger import Ledger, PushEntry
from gradtide.testing.simulator.compressed.reference import Contributions, Trail, follow
from gradtide.testing.simulator.history import (
    CutShard,
    Final,
    Operated,
    Place,
    SimulationHistory,
    TakenCut,
    Violation,
    check_ack,
    check_counted,
    check_cut_counted,
    cut_name,
)

__all__ = ["check_compressed"]

Slots = dict[tuple[int, int], PushEntry]  # (round, worker) -> the push that counts

_MOST_CHOICES = 256


def check_compressed(history: SimulationHistory, ledger: Ledger) -> list[Violation]:
    """Every promise about compressed keys that a run broke."""
    found = list(ledger.broken)
    cuts = [cut for cut in history.cuts if cut.committed_s is not None]
    for place, final in sorted(history.finals.items()):
        entries = [entry for entry in ledger.pushes.values() if place in entry.sent]
        found += _check_clients(ledger, place, final.spec, entries)
        if final.spec.delay is None:
            found += _check_sum(ledger, place, final, entries, cuts)
        else:
            found += _check_rounds(history, ledger, place, final, entries, cuts)
    return found


# --- what clients keep ---


def _check_clients(ledger: Ledger, place: Place, spec: KeySpec, entries: list[PushEntry]) -> Iterator[Violation]:
    """What was pushed is what the bytes stand for, and what is left out; but for what was refused, and never was."""
    for client in sorted({entry.operated.client for entry in entries}):
        own = [entry for entry in entries if entry.operated.client == client]
        codec, left = block_codec(spec, own[0].sent[place].count), ledger.residuals[client].get(place)
        remains = torch.zeros_like(own[0].sent[place].gradient)
        for entry in own:
            if not entry.is_undone(place):
                pushed = entry.sent[place].gradient - _arrives(spec, entry, place)
                remains += pushed * entry.operated.weight
        if (codec is None or not codec.feedback) and left is not None:
            yield Violation("residuals", f"{client} has left something out of {place}, of which nothing can be")
        elif codec is not None and codec.feedback and not torch.equal(remains, remains * 0 if left is None else left):
            yield Violation("residuals", f"{client} pushed {place}, but what it sent and has left out is not that")
        undone = any(entry.is_undone(place) for entry in own)
        if (client, place) in ledger.flushed and left is not None and left.any() and not undone:
            yield Violation("flush", f"{client} went, and has not sent all that it had left out of {place}")


def _arrives(spec: KeySpec, entry: PushEntry, place: Place) -> Tensor:
    """The values that a server makes of a push."""
    sent = entry.sent[place]
    if not sent.encoded:
        return torch.frombuffer(bytearray(sent.body), dtype=DTYPES[spec.dtype])
    codec = block_codec(spec, sent.count)
    assert codec is not None
    return codec.read(torch.frombuffer(bytearray(sent.body), dtype=torch.uint8))


def _start(spec: KeySpec, block: int) -> Tensor:
    values = start_of(spec)
    first, last = block_span(block, values.numel(), values.element_size())
    return values[first:last]


# --- outside of rounds ---


def _check_sum(
    ledger: Ledger, place: Place, final: Final, entries: list[PushEntry], cuts: list[TakenCut]
) -> Iterator[Violation]:
    """All that was acknowledged is in, once; and of what nobody was told, some of each client's first."""
    known = [entry for entry in entries if entry.is_acknowledged(place)]
    doubtful = [e for e in entries if e.operated.client in ledger.gone and not e.is_acknowledged(place)]
    if not _is_sum(place, final, known, doubtful):
        yield Violation("exactly once", f"{place} is not what was pushed to it, each once")
    for cut in cuts:
        for part in (part for part in cut.shards if place in part.blocks):
            known = [entry for entry in entries if _is_in_filter(part, entry)]
            doubtful = [entry for entry in entries if entry.operated.client in part.forgotten and entry not in known]
            if not _is_sum(place, part.blocks[place], known, doubtful):
                yield Violation("exact cut", f"{cut_name(cut)} has {place} not as its filter says")


def _is_in_filter(part: CutShard, entry: PushEntry) -> bool:
    operated = entry.operated
    return operated.sequence in part.applied.get(operated.client, ()) and operated.client not in part.forgotten


def _is_sum(place: Place, final: Final, known: list[PushEntry], doubtful: list[PushEntry]) -> bool:
    spec = final.spec
    total = _start(spec, place[1]).clone()
    for entry in known:
        total += entry.operated.weight * _arrives(spec, entry, place)
    missing = final.tensors["value"] - total
    sums: list[list[Tensor]] = []
    for client in sorted({entry.operated.client for entry in doubtful}):
        sums.append([torch.zeros_like(total)])
        for entry in doubtful:
            if entry.operated.client == client:
                sums[-1].append(sums[-1][-1] + entry.operated.weight * _arrives(spec, entry, place))
    return any(torch.equal(sum(choice, torch.zeros_like(total)), missing) for choice in product(*sums))


# --- rounds ---


def _check_rounds(
    history: SimulationHistory,
    ledger: Ledger,
    place: Place,
    final: Final,
    entries: list[PushEntry],
    cuts: list[TakenCut],
) -> Iterator[Violation]:
    given = {round_: values for (where, round_), (values, _) in ledger.given.items() if where == place}
    chosen, trail = _likely(place, final, entries, given)
    yield from _check_members(history, ledger, place, final, entries, chosen)
    if not torch.equal(trail.values[final.closed], final.tensors["value"]):
        yield Violation("deterministic rounds", f"{place} ends with other values than the reference")
    for round_, seen in trail.seen.items():
        if not seen:
            yield Violation("one answer", f"what workers have of {place} after round {round_} is not the reference")
            return
    for round_ in given:
        if round_ > final.closed:
            yield Violation("bound", f"somebody was given round {round_} of {place}, which is not closed")
    yield from _check_published("the end", place, final, trail, given)
    for cut in cuts:
        for part in (part for part in cut.shards if place in part.blocks):
            copied = part.blocks[place]
            yield from check_cut_counted(cut, place, copied, final)
            if not torch.equal(copied.tensors["value"], trail.values[min(cut.round, final.closed)]):
                yield Violation("one cut", f"{cut_name(cut)} has {place} with other values than the reference")
            yield from _check_published(cut_name(cut), place, copied, trail, given)


def _check_members(
    history: SimulationHistory, ledger: Ledger, place: Place, final: Final, entries: list[PushEntry], chosen: Slots
) -> Iterator[Violation]:
    slots: dict[int, dict[int, Operated]] = {}
    for entry in [*entries, *chosen.values()]:
        slots.setdefault(entry.operated.round, {})[entry.operated.worker] = entry.operated
    yield from check_counted(history, place, final, slots)
    for entry in chosen.values():
        operated = entry.operated
        if entry.is_undone(place) and operated.client not in ledger.gone:
            text = f"push {operated.sequence} of {operated.client} was refused ({operated.refused})"
            yield Violation("exactly once", f"{text}, and is in round {operated.round} of {place}")
        if operated.done_s is not None and not operated.refused:
            yield from check_ack(history, place, operated, slots)


def _likely(place: Place, final: Final, entries: list[PushEntry], given: Mapping[int, bytes]) -> tuple[Slots, Trail]:
    """Whose bytes are in each round. Where a worker was started again, and both pushed for one, those that make the
    value."""
    claims: dict[tuple[int, int], list[PushEntry]] = {}
    for entry in entries:
        slot = entry.operated.round, entry.operated.worker
        if slot[1] in final.counted.get(slot[0], ()):
            claims.setdefault(slot, []).append(entry)
    found: tuple[Slots, Trail] | None = None
    for choice in islice(product(*claims.values()), _MOST_CHOICES):
        chosen = dict(zip(claims, choice, strict=True))
        contributions = _contributions(place, final.spec, chosen)
        tried = chosen, follow(final.spec, _start(final.spec, place[1]), contributions, final.closed, given)
        found = found or tried
        if torch.equal(tried[1].values[final.closed], final.tensors["value"]) and all(tried[1].seen.values()):
            return tried
    assert found is not None
    return found


def _contributions(place: Place, spec: KeySpec, chosen: Slots) -> Contributions:
    rounds: dict[int, list[tuple[float, Tensor]]] = {}
    for round_, _ in sorted(chosen):
        rounds[round_] = []
    for (round_, _), entry in sorted(chosen.items(), key=lambda item: item[0]):
        rounds[round_].append((entry.operated.weight, _arrives(spec, entry, place)))
    return rounds


def _check_published(
    where: str, place: Place, copied: Final, trail: Trail, given: Mapping[int, bytes]
) -> Iterable[Violation]:
    """Whoever goes on from here gives workers what everybody has, and has left out what was left out."""
    beside = {name: value for name, value in copied.tensors.items() if name != "value"}
    block = TorchArithmetic().restore(copied.spec, copied.tensors["value"], copied.spec.update.arguments, beside)
    if block.published is None:
        return
    tip, residual = block.published.whole(copied.closed), beside.get("published residual")
    if not any(torch.equal(seen.tip, tip) and _equal(seen.residual, residual) for seen in trail.seen[copied.closed]):
        yield Violation(
            "newcomers", f"{where}: who comes is given other values of {place} than those who are there have"
        )
    for round_ in range(max(0, copied.closed - (copied.spec.delay or 0)), copied.closed):
        if given.get(round_) not in (None, bytes(bytes_of(block.published.whole(round_)))):
            yield Violation("newcomers", f"{where}: round {round_} of {place} is not what workers were given")


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other or (one is not None and other is not None and torch.equal(one, other))
