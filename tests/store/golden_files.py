"""Files as gradtide writes them, from values that are the same every time; and what reading them must give.

Each entry of FILES writes one, and reads the one that was kept to compare what it finds.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from golden_structs import build

from gradtide import events
from gradtide.checkpoint.manifest import Manifest, read_manifest, write_manifest
from gradtide.checkpoint.places import open_place
from gradtide.checkpoint.tensor_file import DTYPES, TensorFile, TensorGroup, write_file
from gradtide.observe.event_log import EventLog, LogReader
from gradtide.observe.meter import Timed
from gradtide.schedule.model import Op, Schedule
from gradtide.schedule.serialize import schedule_from_json, schedule_to_json
from gradtide.store.coordinator.journal import Journal
from gradtide.store.coordinator.membership import Membership, Record
from gradtide.store.rules.updates import TorchArithmetic
from gradtide.store.shard.image import restore, snapshot
from gradtide.store.shard.shard import Shard
from gradtide.store.shard.shard_events import InitPart, PushPart
from gradtide.store.snapshot.shard_file import entry_of, part_of, read_shards
from gradtide.store.wire import messages
from gradtide.train.record import RunFolder, read_metrics
from gradtide.train.together.merge import merge

__all__ = ["FILES"]


# --- the coordinator's journal ---


def _record() -> Record:
    """Of a store with three servers, a replica each and two workers, one of whom is coming."""
    membership = Membership()
    for i in range(3):
        membership.hear(messages.Join("server", f"server-{i}", 1, f"unix:/s/{i}", expected=3, replicas=1), 0.0)
    for i in range(2):
        membership.hear(messages.Join("worker", f"worker-{i}", 1, worker=i, expected=2), 0.5)
    record = membership.take_unwritten()
    assert record is not None
    return record


def _write_journal(path: Path) -> None:
    with Journal(path) as journal:
        journal.write(_record())


def _read_journal(path: Path) -> None:
    with Journal(path) as journal:
        assert journal.read() == _record()


# --- checkpoints ---


def _write_manifest(path: Path) -> None:
    write_manifest(open_place(path.parent), "", build(Manifest))
    (path.parent / "manifest.json").replace(path)


def _read_manifest(path: Path) -> None:
    assert read_manifest(open_place(path.parent)) == build(Manifest)


def _shard() -> Shard[torch.Tensor]:
    """Two keys in rounds and one outside, with what their rules keep and what a client was answered.

    The values are powers of two, and Adam sees zeros, so that every processor computes the same bits.
    """
    shard, numbers = Shard(42, TorchArithmetic()), torch.tensor([1.0, -2.0, 4.0])
    momentum = messages.UpdateRule("sgd", {"lr": 0.5, "momentum": 0.5}, "sum")
    specs = [
        messages.KeySpec("layer.weight", (3,), "float32", momentum, 0, True),
        messages.KeySpec("layer.bias", (3,), "float64", messages.UpdateRule("adam", {"lr": 0.25}), 2),
        messages.KeySpec("counts", (3,), "int64", messages.UpdateRule("add")),
    ]
    gradients = [0.25 * numbers, torch.zeros(3), torch.tensor([1, 2, 3])]
    shard.handle(messages.Decree(1, 1, (messages.Member(0, 1, "worker-0", 7),)))
    for i, (spec, gradient) in enumerate(zip(specs, gradients, strict=True), start=1):
        dtype = getattr(torch, spec.dtype)
        piece = messages.Piece(spec.key, 0, 0, 3, 3 * dtype.itemsize)
        part = messages.Part(42, (piece,))
        shard.handle(InitPart(messages.Init(1, "worker-0", 7, i, spec, (part,)), part, [numbers.to(dtype)]))
        for round_ in (1, 2):
            number = 0 if spec.delay is None else round_
            push = messages.Push(1, "worker-0", 7, 10 * round_ + i, b"layout", round=number, worker=0, decree=1)
            shard.handle(PushPart(push, part, 0, [gradient.to(dtype)]))
    return shard


def _write_shard(path: Path) -> None:
    word, values = snapshot(_shard(), 1, "server-0")
    write_file(open_place(path.parent), "", path.name, [part_of(word, values)])


def _read_shard(path: Path) -> None:
    word, values = snapshot(_shard(), 1, "server-0")
    folder = path.parent / "fresh"
    folder.mkdir()
    entry = write_file(open_place(folder), "", path.name, [part_of(word, values)])
    manifest = Manifest(2, "now", (entry,), (entry_of(word, path.name),))
    ((read, found),) = read_shards(open_place(path.parent), manifest)
    assert read == word
    assert [value.tolist() for value in found] == [value.tolist() for value in values]
    assert snapshot(restore(read, found, TorchArithmetic()), 1, "server-0")[0] == word


def _parts() -> list[TensorGroup]:
    """A tensor of each type, a number, nothing, and what is not contiguous."""
    typed = {name: torch.arange(5).to(dtype) for name, dtype in DTYPES.items()}
    odd = {"number": torch.tensor(2.5), "nothing": torch.zeros(0, 3), "turned": torch.arange(6.0).view(2, 3).t()}
    return [TensorGroup("typed", typed), TensorGroup("odd ü", odd)]


def _write_tensors(path: Path) -> None:
    write_file(open_place(path.parent), "", path.name, _parts())


def _read_tensors(path: Path) -> None:
    wanted = {name: tensor for part in _parts() for name, tensor in part.tensors.items()}
    with TensorFile(open_place(path.parent), path.name) as file:
        found, _ = file.read(file.slots[0].start, file.slots[-1].end)
    for name, tensor in wanted.items():
        assert found[name].dtype is tensor.dtype
        assert torch.equal(found[name], tensor)


# --- schedules ---


def _schedule() -> Schedule:
    ops = (Op(0, 0, 1, 0, "copy"), Op(1, 1, 2, 1, "reduce", (0,), 3), Op(2, 2, 0, 0, "copy", (0, 1)))
    return Schedule("by hand ü", "reduce_scatter", ("gpu0", "gpu1", "host"), 2, (1, 3), ops, (1, 0))


def _write_schedule(path: Path) -> None:
    path.write_text(schedule_to_json(_schedule()), encoding="utf-8")


def _read_schedule(path: Path) -> None:
    assert schedule_from_json(path.read_text(encoding="utf-8")) == _schedule()


# --- what is said of a run ---


def _events() -> list[events.Event]:
    kinds = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, events.Event)]
    return [build(kind) for kind in kinds if kind is not events.Event]


def _write_events(path: Path) -> None:
    """The lines are sorted: in which order the kinds are defined is nobody's business."""
    log = EventLog(path, clock=lambda: 12.34567891)
    for event in _events():
        log.observe(event)
    log.close()
    path.write_text("".join(sorted(path.read_text().splitlines(True))))


def _read_events(path: Path) -> None:
    found = LogReader(path).read()
    assert sorted(map(repr, found)) == sorted(repr(Timed(12.3456789, event)) for event in _events())


def _write_metrics(path: Path) -> None:
    times = iter([10.0, 10.5, 11.0, 12.25])
    folder = RunFolder(path.parent / "run", clock=lambda: next(times))
    observe = folder.observer("2 devices")
    batch, epoch = build(events.BatchDone), build(events.EpochDone)
    for event in (batch, epoch, replace(batch, correct=None)):
        observe(event)
    folder.summary("2 devices", {"samples": 10, "train_s": 0.5})
    logs = {rank: [Timed(rank + 0.5, batch), Timed(rank + 0.75, epoch)] for rank in range(2)}
    for line in merge("2 workers", logs):
        folder.write(line)
    folder.close()
    folder.metrics.replace(path)


def _read_metrics(path: Path) -> None:
    assert [line["kind"] for line in read_metrics(path)] == ["batch", "epoch", "batch", "summary", "batch", "epoch"]
    assert path.read_text() == "".join(json.dumps(line) + "\n" for line in read_metrics(path))


@dataclass(frozen=True, slots=True)
class Kept:
    """How a file is written, and what reading it must give."""

    write: Callable[[Path], None]
    read: Callable[[Path], None]


FILES = {
    "journal": Kept(_write_journal, _read_journal),
    "manifest.json": Kept(_write_manifest, _read_manifest),
    "shard.safetensors": Kept(_write_shard, _read_shard),
    "tensors.safetensors": Kept(_write_tensors, _read_tensors),
    "schedule.json": Kept(_write_schedule, _read_schedule),
    "events.jsonl": Kept(_write_events, _read_events),
    "metrics.jsonl": Kept(_write_metrics, _read_metrics),
}
