"""What happened in a run, as clients saw it, and whether the store kept its promises.

The checker knows nothing of shards, filters or sessions: it compares what clients asked and were answered with a
simple model. Of the servers it looks at the final values only, and at who was counted in each round.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice, product
from typing import Any

from gradtide.store.wire.messages import KeySpec, Pushed, Table, Version
from gradtide.testing.simulator.numbers import digits, fold, fold_round

__all__ = [
    "CutShard",
    "Final",
    "Operated",
    "Place",
    "SimulationHistory",
    "TakenCut",
    "Violation",
    "check",
    "check_ack",
    "check_counted",
    "check_cut_counted",
    "cut_name",
]

Place = tuple[str, int]  # key, block
Slots = dict[int, dict[int, "Operated"]]  # round -> worker -> its push

_MOST_CHOICES = 256


@dataclass(slots=True)
class Operated:
    """One operation of a client, from asking to answer."""

    client: str
    worker: int
    sequence: int
    kind: str
    asked_s: float
    places: tuple[Place, ...]
    round: int = 0
    weight: float = 1.0
    pushed: dict[Place, int] = field(default_factory=dict)
    digit: int = -1  # which digit of the sums this push is
    done_s: float | None = None
    refused: str = ""
    values: dict[Place, int] = field(default_factory=dict)
    staleness: int = 0
    versions: dict[int, Version] = field(default_factory=dict)  # shard -> as was answered, outside of rounds


@dataclass(frozen=True, slots=True)
class Final:
    """A block at the end of a run."""

    spec: KeySpec
    value: int  # of a compressed key: a digest
    closed: int
    counted: Mapping[int, frozenset[int]]
    tensors: Mapping[str, Any] = field(default_factory=dict)  # of a compressed key: all that the block is, by name


@dataclass(frozen=True, slots=True)
class CutShard:
    """A shard as a checkpoint has it."""

    shard: int
    blocks: Mapping[Place, Final]
    applied: Mapping[str, frozenset[int]]  # client -> its pushes of which the filter says that they are in the values
    forgotten: frozenset[str]  # clients that are gone, of whom it need not know anything


@dataclass(slots=True)
class TakenCut:
    """A checkpoint that a client began: it says that it is complete, or that it failed, or its client died."""

    client: str
    round: int
    asked_s: float
    committed_s: float | None = None
    failed: str = ""
    shards: tuple[CutShard, ...] = ()


@dataclass(slots=True)
class SimulationHistory:
    """All operations in the order they were asked, and what the run was told to do."""

    operations: list[Operated] = field(default_factory=list)
    joined: dict[int, int] = field(default_factory=dict)  # worker -> its first round
    left: dict[int, float] = field(default_factory=dict)  # worker -> when it left or was killed
    until: dict[int, int] = field(default_factory=dict)  # worker -> the first round it said it would not be in
    rates: dict[str, tuple[int, int, Operated]] = field(default_factory=dict)  # key -> (from round, rate, who asked)
    finals: dict[Place, Final] = field(default_factory=dict)
    tables: dict[int, Table] = field(default_factory=dict)  # by epoch, as they were journalled
    acks: dict[tuple[int, Version], tuple[str, int]] = field(default_factory=dict)  # (shard, version) -> whose push
    broken: list["Violation"] = field(default_factory=list)  # what was seen while it ran
    cuts: list[TakenCut] = field(default_factory=list)
    struck_off: set[int] = field(default_factory=set)  # shards of which a holder that was well was struck off too late

    def note_table(self, table: Table) -> None:
        known = self.tables.setdefault(table.epoch, table)
        same = (known.owners, known.backups, known.servers) == (table.owners, table.backups, table.servers)
        if not same:
            self.broken.append(Violation("journal", f"epoch {table.epoch} was decided twice, differently"))

    def note_ack(self, client: str, server: str, answer: Pushed) -> None:
        """Outside of rounds each push makes a version of its own; two of one version are two primaries at once."""
        push = (client, answer.sequence)
        first = self.acks.setdefault((answer.shard, answer.version), push)
        if first != push:
            text = f"{server} acknowledged {push} as version {answer.version} of shard {answer.shard}, which is {first}"
            self.broken.append(Violation("fence", text))
        heads = [t.servers[t.owners[answer.shard]].name for e, t in self.tables.items() if e >= answer.version.epoch]
        if server not in heads:
            text = f"{server} acknowledged {push} for shard {answer.shard}, of which it was not primary any more"
            self.broken.append(Violation("fence", text))

    def digest(self) -> str:
        """The same for the same history only."""
        text = repr((self.operations, sorted(self.joined.items()), sorted(self.left.items()), sorted(self.finals)))
        finals = repr([(place, final.value, final.closed) for place, final in sorted(self.finals.items())])
        return blake2b((text + finals).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken."""

    promise: str
    text: str


def check(history: SimulationHistory) -> list[Violation]:
    """Every promise that this history breaks."""
    found = [*history.broken, *_check_real_time(history.operations)]
    for place, final in sorted(history.finals.items()):
        operations = [o for o in history.operations if place in o.places]
        if final.spec.compress:
            continue  # that is checked for itself (compressed/conservation.py)
        if final.spec.delay is not None:
            found += _check_rounds(history, place, final, operations)
        elif final.spec.update.name == "add":
            found += _check_sums(place, final, operations)
        else:
            found += _check_last(place, final, operations)
    for cut in history.cuts:
        if cut.committed_s is not None:
            found += _check_cut(history, cut)
    return found


# --- async ---


def _check_real_time(operations: list[Operated]) -> Iterable[Violation]:
    """Whatever began after a push was acknowledged, to whomever, comes after it: by a later version if it is a push
    too, by one that is no earlier if it reads."""
    shards = {shard for operation in operations for shard in operation.versions}
    for shard in sorted(shards):
        here = [o for o in operations if shard in o.versions]
        pushes = sorted((o for o in here if o.kind == "push"), key=lambda o: o.done_s or 0.0)
        latest: Operated | None = None
        done = 0
        for operation in sorted(here, key=lambda o: o.asked_s):
            while done < len(pushes) and (pushes[done].done_s or 0.0) < operation.asked_s:
                if latest is None or pushes[done].versions[shard] > latest.versions[shard]:
                    latest = pushes[done]
                done += 1
            if latest is None:
                continue
            version, before = operation.versions[shard], latest.versions[shard]
            if version < before or (operation.kind == "push" and version == before):
                text = f"{_name(operation)} is version {version} of shard {shard}, and began after {_name(latest)}"
                yield Violation("real time", f"{text} was acknowledged as {before}")


def _check_sums(place: Place, final: Final, operations: list[Operated]) -> Iterable[Violation]:
    pushes = {o.digit: o for o in operations if o.kind == "push"}
    count = 1 + max(pushes, default=-1)
    inside = digits(final.value, count)
    for digit, push in pushes.items():
        if inside[digit] > 1:
            yield Violation("exactly once", f"{_name(push)} is {inside[digit]} times in {place}")
        if push.done_s is not None and not push.refused and inside[digit] == 0:
            yield Violation("exactly once", f"{_name(push)} was acknowledged and is not in {place}")
    reads = [o for o in operations if place in o.values]
    for read in reads:
        yield from _check_read(place, read, digits(read.values[place], count), pushes, reads, count)


def _check_read(
    place: Place, read: Operated, inside: list[int], pushes: dict[int, Operated], reads: list[Operated], count: int
) -> Iterable[Violation]:
    """One read of a sum: own writes in it, in order, and nothing gone that an earlier read had."""
    for digit, push in pushes.items():
        own = push.client == read.client and push.sequence <= read.sequence and not push.refused
        if own and inside[digit] == 0:
            yield Violation("reads own writes", f"{_name(read)} of {place} misses {_name(push)}")
        if push.asked_s > (read.done_s or 0.0) and inside[digit]:
            yield Violation("order", f"{_name(read)} of {place} has {_name(push)} before it was pushed")
    yield from _check_prefix(place, read, inside, pushes)
    for earlier in reads:
        before = earlier.client == read.client and earlier.done_s is not None and earlier.done_s < read.asked_s
        if before and any(a > b for a, b in zip(digits(earlier.values[place], count), inside, strict=True)):
            yield Violation("monotonic reads", f"{_name(read)} of {place} is older than {_name(earlier)}")


def _check_prefix(place: Place, read: Operated, inside: list[int], pushes: dict[int, Operated]) -> Iterable[Violation]:
    """Of each client's pushes a value holds the first few: nobody's words are turned around."""
    missing: dict[str, Operated] = {}
    for digit, push in sorted(pushes.items(), key=lambda item: item[1].sequence):
        if push.refused:
            continue
        if inside[digit] == 0:
            missing.setdefault(push.client, push)
        elif push.client in missing:
            yield Violation(
                "order", f"{_name(read)} of {place} has {_name(push)} but not {_name(missing[push.client])}"
            )


def _check_last(place: Place, final: Final, operations: list[Operated]) -> Iterable[Violation]:
    """The final value is the last push of somebody, not an earlier one that came late."""
    last: dict[str, set[int]] = {}  # a push that another shard refused, or never answered, may be in this one, or not
    for push in operations:
        if push.kind == "push":
            number, is_in = push.pushed[place], push.done_s is not None and not push.refused
            last[push.client] = {number} if is_in else last.get(push.client, set()) | {number}
    possible = set().union(*last.values())
    if not any(o.kind == "push" and o.done_s is not None and not o.refused for o in operations):
        possible.add(0)  # as it began: nobody was told that a push is in
    if last and final.value not in possible:
        yield Violation("order", f"{place} ends as {final.value}, which is nobody's last push: {sorted(possible)}")


# --- rounds ---


def _check_rounds(
    history: SimulationHistory, place: Place, final: Final, operations: list[Operated]
) -> Iterable[Violation]:
    slots, values = _likely_slots(history, place, final, [o for o in operations if o.kind == "push"])
    yield from check_counted(history, place, final, slots)
    if final.value != values[final.closed]:
        yield Violation(
            "deterministic rounds", f"{place} ends as {final.value}, the reference as {values[final.closed]}"
        )
    delay = final.spec.delay or 0
    for read in operations:
        if place in read.values and read.worker >= 0:
            yield from _check_step(place, read, values, delay)
    for rounds in slots.values():
        for push in rounds.values():
            if push.done_s is not None and not push.refused:
                yield from check_ack(history, place, push, slots)


def _likely_slots(
    history: SimulationHistory, place: Place, final: Final, pushes: list[Operated]
) -> tuple[Slots, dict[int, int]]:
    """Who pushed what for each round, and the reference. Where a worker was started again and both pushed for a round,
    one of the two counts: that which makes the value."""
    said: dict[tuple[int, int], list[Operated]] = {}
    for push in pushes:
        said.setdefault((push.round, push.worker), []).append(push)
    found: tuple[Slots, dict[int, int]] | None = None
    for choice in islice(product(*said.values()), _MOST_CHOICES):
        slots: Slots = {}
        for push in choice:
            slots.setdefault(push.round, {})[push.worker] = push
        tried = slots, _likely_reference(history, place, final, slots)
        found = found or tried
        if tried[1][final.closed] == final.value:
            return tried
    assert found is not None
    return found


def check_counted(history: SimulationHistory, place: Place, final: Final, slots: Slots) -> Iterable[Violation]:
    """Who pushed is counted, once; only of those who left some may be missing (a goer never learns which)."""
    for round_ in range(1, final.closed + 1):
        pushed = set(slots.get(round_, {}))
        counted = final.counted.get(round_, frozenset())
        if not counted <= pushed:
            yield Violation(
                "exactly once", f"round {round_} of {place} counts {sorted(counted - pushed)}, who pushed nothing"
            )
        for worker in sorted(pushed - counted):
            push = slots[round_][worker]
            if worker not in history.left or (push.done_s is not None and not push.refused):
                yield Violation("exactly once", f"{_name(push)} is not in round {round_} of {place}")


def _likely_reference(history: SimulationHistory, place: Place, final: Final, slots: Slots) -> dict[int, int]:
    """The reference; where a change of rate was not acknowledged, or came too late for some shard, with or without it,
    as the block has it."""
    from_round, rate, asked = history.rates.get(place[0], (0, 1, None))
    changed = _reference(final, place, slots, from_round, rate)
    acknowledged = asked is not None and asked.done_s is not None and not asked.refused
    if asked is None or acknowledged or changed[final.closed] == final.value:
        return changed
    return _reference(final, place, slots, 0, 1)


def _reference(final: Final, place: Place, slots: Slots, from_round: int, rate: int) -> dict[int, int]:
    """The value after each round, computed one after the other by one pair of hands."""
    value, values = 0, {0: 0}
    for round_ in range(1, final.closed + 1):
        counted = final.counted.get(round_, frozenset())
        pushes = [slots[round_][w] for w in sorted(counted) if w in slots.get(round_, {})]
        if pushes:
            combined = fold([(push.weight, push.pushed[place]) for push in pushes])
            value = fold_round(value, combined, rate if round_ >= from_round else 1)
        values[round_] = value
    return values


def _check_step(place: Place, read: Operated, values: dict[int, int], delay: int) -> Iterable[Violation]:
    """A step starts with the value after a round that its delay allows."""
    first = max(0, read.round - 1 - delay)
    if read.kind == "push":  # the values that came with the answer: its own round is in them
        first = read.round
    allowed = [values[round_] for round_ in range(first, max(values) + 1)]
    if read.values[place] not in allowed:
        rounds = [round_ for round_, value in values.items() if value == read.values[place]]
        yield Violation(
            "bound", f"{_name(read)} of {place} began step {read.round} with the value after round {rounds}"
        )


def check_ack(history: SimulationHistory, place: Place, push: Operated, slots: Slots) -> Iterable[Violation]:
    """A push is acknowledged only when everybody who is waited for has come by."""
    for worker, first in history.joined.items():
        other = slots.get(push.round, {}).get(worker)
        gone = worker in history.left and history.left[worker] <= (push.done_s or 0.0)
        gone = gone or 0 < history.until.get(worker, 0) <= push.round
        if first <= push.round and not gone and (other is None or other.asked_s > (push.done_s or 0.0)):
            yield Violation(
                "ack", f"{_name(push)} to {place} was acknowledged before worker {worker} pushed round {push.round}"
            )


# --- checkpoints ---


def _check_cut(history: SimulationHistory, cut: TakenCut) -> Iterable[Violation]:
    """It has every shard once, all of them as of the same round."""
    parts = {part.shard: part for part in cut.shards}
    if cut.failed or len(parts) < len(cut.shards):
        yield Violation("whole cut", f"{cut_name(cut)} was committed with a shard twice, or although it had failed")
    where = {place: part for part in parts.values() for place in part.blocks}
    for place, final in sorted(history.finals.items()):
        operations = [o for o in history.operations if place in o.places]
        if place not in where:
            if any(_was_acknowledged(o, cut.asked_s) for o in operations):
                yield Violation("whole cut", f"{cut_name(cut)} misses {place}")
        elif final.spec.compress:
            continue
        elif final.spec.delay is not None:
            yield from _check_cut_of_rounds(history, cut, place, where[place].blocks[place], final, operations)
        elif final.spec.update.name == "add":
            yield from _check_cut_of_sums(cut, place, where[place], operations)
        else:
            yield from _check_cut_of_last(cut, place, where[place], operations)


def _check_cut_of_rounds(
    history: SimulationHistory, cut: TakenCut, place: Place, copied: Final, final: Final, operations: list[Operated]
) -> Iterable[Violation]:
    yield from check_cut_counted(cut, place, copied, final)
    _, values = _likely_slots(history, place, final, [o for o in operations if o.kind == "push"])
    expected_value = values[min(cut.round, final.closed)]
    if copied.value != expected_value:
        yield Violation("one cut", f"{cut_name(cut)} has {place} as {copied.value}, the reference {expected_value}")


def check_cut_counted(cut: TakenCut, place: Place, copied: Final, final: Final) -> Iterable[Violation]:
    """Who was counted up to the cut's round is in it, and nobody who was later."""
    for round_ in range(1, 1 + max((cut.round, *copied.counted))):
        expected = final.counted.get(round_, frozenset()) if round_ <= cut.round else frozenset()
        if copied.counted.get(round_, frozenset()) != expected:
            text = f"{cut_name(cut)} has {sorted(copied.counted.get(round_, ()))} in round {round_} of {place}"
            yield Violation("one cut", f"{text}, and not {sorted(expected)}")


def _check_cut_of_sums(cut: TakenCut, place: Place, part: CutShard, operations: list[Operated]) -> Iterable[Violation]:
    """What the filter says is in the value is in it once, and nothing else; and all that was acknowledged before."""
    pushes = [o for o in operations if o.kind == "push"]
    inside = digits(part.blocks[place].value, 1 + max((push.digit for push in pushes), default=-1))
    for push in pushes:
        times, said = inside[push.digit], push.sequence in part.applied.get(push.client, ())
        if times > 1 or (times != said and push.client not in part.forgotten):
            text = f"{cut_name(cut)} has {_name(push)} {times} times in {place}"
            yield Violation("exact cut", f"{text}; its filter says {int(said)}")
        if times == 0 and _was_acknowledged(push, cut.asked_s):
            yield Violation("exact cut", f"{cut_name(cut)} misses {_name(push)} in {place}, acknowledged before")


def _check_cut_of_last(cut: TakenCut, place: Place, part: CutShard, operations: list[Operated]) -> Iterable[Violation]:
    """The value is the last push of somebody, of those that the filter says are in it."""
    last: dict[str, set[int]] = {}
    for push in operations:
        if push.kind == "push" and push.client in part.forgotten:
            last.setdefault(push.client, set()).add(push.pushed[place])
        elif push.kind == "push" and push.sequence in part.applied.get(push.client, ()):
            last[push.client] = {push.pushed[place]}
    if part.blocks[place].value not in set().union(*last.values(), () if last.keys() - part.forgotten else {0}):
        yield Violation("exact cut", f"{cut_name(cut)} has {part.blocks[place].value} in {place}, nobody's last push")


def _was_acknowledged(operation: Operated, before_s: float) -> bool:
    return operation.done_s is not None and operation.done_s < before_s and not operation.refused


def cut_name(cut: TakenCut) -> str:
    return f"the checkpoint of round {cut.round} that {cut.client} took at {cut.asked_s:.2f} s"


def _name(operation: Operated) -> str:
    return f"{operation.kind} {operation.sequence} of {operation.client}"
