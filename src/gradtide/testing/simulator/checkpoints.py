"""Checkpoints in the simulator: the servers' own cutter with a stand-in for what writes, and what a client does.

A write takes its time, and sometimes fails. Everybody's files are on one disk, as in a shared folder: whoever writes a
file of the same name again writes over it. When a client commits, what its manifest names is noted for the checker.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from random import Random
from typing import TYPE_CHECKING, Any

from gradtide.checkpoint.entries import FileEntry, ShardEntry
from gradtide.errors import StoreError
from gradtide.store.client.checkpointing import TRIES, CutPassed, agreed_answers, round_of_try
from gradtide.store.client.operations import Done
from gradtide.store.rules.tensors import bytes_of
from gradtide.store.wire.messages import BeginCut, BlockImage, CollectCut, CutWritten, KeySpec, Pushed, Snapshot
from gradtide.testing.simulator.history import CutShard, Final, Place, TakenCut
from gradtide.testing.simulator.numbers import Number

if TYPE_CHECKING:
    from gradtide.testing.simulator.actors import ClientActor
    from gradtide.testing.simulator.processes import HostActor

__all__ = ["CheckpointDisk", "SimulatedWriting", "final_of", "take_checkpoint"]

Steps = Generator[float | set[int], None, None]


@dataclass(slots=True)
class CheckpointDisk:
    """What all servers write to. Its chance is its own: a run without checkpoints draws nothing from it."""

    random: Random = field(default_factory=Random)
    fails: float = 0.0  # how likely a server can't write its part
    write_s: float = 0.05  # mean time that it takes
    files: dict[tuple[str, str], tuple[CutShard, ...]] = field(default_factory=dict)  # by folder and name


class SimulatedWriting:
    """Takes what a thread of a real server would write. A server that is killed or stopped writes nothing."""

    seconds_behind = 0.0

    def __init__(self, actor: "HostActor", folder: str, hear: Callable[[], None]) -> None:
        self._actor, self._folder, self._hear = actor, folder, hear
        self._disk = actor.world.checkpoint_disk
        self._copied: list[CutShard] = []
        self._finishing = False
        self.epoch = actor.host.epoch
        self.queued_bytes = 0
        self.files: list[FileEntry] = []
        self.shards: list[ShardEntry] = []
        self.failed = ""
        self.over = False

    def add(self, word: Snapshot, values: Sequence[Any]) -> None:
        self._copied.append(_as_cut_shard(word, values, self._forgotten_clients()))
        rounds = [image.closed for image in word.blocks if image.created.spec.delay is not None]
        version = word.version
        self.shards.append(ShardEntry(word.shard, self._name, version.epoch, version.sequence, min(rounds, default=0)))

    def finish(self) -> None:
        if not self._finishing:
            self._finishing = True
            self._later(self._disk.random.expovariate(1 / self._disk.write_s), self._write)

    def abandon(self, text: str) -> None:
        if not self.over and not self.failed:
            self.failed = text
            self._later(0.0, self._end)

    def join(self) -> None:
        """There is no thread."""

    @property
    def _name(self) -> str:
        return f"{self._actor.host.name}-00001.safetensors"

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        self._actor.world.clock.after(delay_s, partial(self._actor.deliver, action))

    def _write(self) -> None:
        if self.failed:
            return
        if self._disk.random.random() < self._disk.fails:
            self.failed = "no space left on device"
        else:
            self._disk.files[self._folder, self._name] = tuple(self._copied)
            self.files.append(FileEntry(self._name, 0, "", ()))
        self._end()

    def _end(self) -> None:
        self.over = True
        self._hear()

    def _forgotten_clients(self) -> frozenset[str]:
        clients, absent = self._actor.world.clients, self._actor.host.absent
        return frozenset(name for name, client in clients.items() if absent.includes(client.session.incarnation))


def _as_cut_shard(word: Snapshot, values: Sequence[Any], forgotten: frozenset[str]) -> CutShard:
    """As the checker wants it."""
    blocks, left = dict[Place, Final](), iter(values)
    for image in word.blocks:
        blocks[_place(image)] = _final(image, [next(left) for _ in range(image.values)])
    applied = {
        record.client: frozenset({a.sequence for a in record.answers if isinstance(a, Pushed)}.union(record.partial))
        for record in word.records
    }
    return CutShard(word.shard, blocks, applied, forgotten)


def _place(image: BlockImage) -> Place:
    return image.created.spec.key, image.created.block


def _final(image: BlockImage, values: Sequence[Any]) -> Final:
    counted = {round_: frozenset(workers) for round_, workers in image.counted}
    return final_of(
        image.created.spec, values[0], image.closed, counted, dict(zip(image.names, values[1:], strict=True))
    )


def final_of(
    spec: KeySpec, value: Any, closed: int, counted: Mapping[int, frozenset[int]], beside: Mapping[str, Any]
) -> Final:
    """A block as the checker wants it: in most runs its value is a whole number, and nothing is beside it."""
    if isinstance(value, Number):
        return Final(spec, value.number, closed, counted)
    tensors = {"value": value, **beside}
    digest = blake2b(b"".join(map(bytes_of, tensors.values())), digest_size=8)
    return Final(spec, int.from_bytes(digest.digest(), "little"), closed, counted, tensors)


def take_checkpoint(actor: "ClientActor") -> Steps:
    """As store/client/checkpointing.py does it; returns when the cut is made, and commits when all have written."""
    session, heard = actor.session, list[Done[Number]]()
    for number in range(1 if session.member is not None else TRIES):
        if session.member is not None:
            round_ = session.last_round
        else:
            yield {actor.list_keys(heard.append)}
            round_ = round_of_try(_last_closed(heard.pop()), number)
        if not session.ready:
            return  # it was struck off: whoever goes on takes one later
        taken = TakenCut(session.client, round_, actor.world.clock.now_s)
        folder = f"{session.client}/{len(actor.world.history.cuts)}"
        actor.world.history.cuts.append(taken)
        question = BeginCut(0, session.client, session.incarnation, 0, folder, folder, round_)
        yield {actor.ask(question, heard.append)}
        try:
            agreed_answers(heard.pop(), session.table)
        except CutPassed:
            taken.failed = "passed"
            continue
        except StoreError as error:
            taken.failed = str(error)
            return
        if session.ready:
            collect = CollectCut(0, session.client, session.incarnation, 0, folder)
            actor.ask(collect, partial(_commit, actor, taken, folder))
        return


def _last_closed(done: Done[Number]) -> int:
    infos = [info for listed in done.listed for info in listed.keys if info.spec.delay is not None]
    return max((info.round for info in infos), default=0)


def _commit(actor: "ClientActor", taken: TakenCut, folder: str, done: Done[Number]) -> None:
    """The manifest: from now on it is a checkpoint."""
    try:
        answers = agreed_answers(done, actor.session.table)
    except StoreError as error:
        taken.failed = str(error)
        return
    files, listed = actor.world.checkpoint_disk.files, list[CutShard]()
    for written in answers:
        for entry in written.shards if isinstance(written, CutWritten) else ():
            listed += [part for part in files[folder, entry.file] if part.shard == entry.shard]
    taken.shards, taken.committed_s = tuple(listed), actor.world.clock.now_s
