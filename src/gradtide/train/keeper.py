"""A run's checkpoints: every so many steps, written beside the training; and where a run goes on.

Every worker writes a file with what only it has, and a line about it; the first worker writes the model, or has the
servers write it, waits for all lines, and then writes the manifest. A checkpoint that fails is told as an event, and
training goes on.
"""

import contextlib
import os
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any

import msgspec
from torch import Tensor

from gradtide.calling import check_whole
from gradtide.checkpoint.entries import FileEntry
from gradtide.checkpoint.manifest import Manifest, check_header, check_part, check_sizes
from gradtide.checkpoint.places import Place, open_place
from gradtide.checkpoint.shelf import Shelf, Taken, find_checkpoint, folder_name
from gradtide.checkpoint.tensor_file import TensorFile, TensorGroup, write_file
from gradtide.errors import ConfigError, DataError, GradtideError, PeerTimeout
from gradtide.events import CheckpointFailed, CheckpointTaken, Emit
from gradtide.handle import Handle
from gradtide.train.position import Position, share_positions
from gradtide.train.run_state import (
    add_left_out,
    collect,
    has_left_out,
    load_groups,
    load_model,
    load_optimizer,
    only_of_all,
    put_back,
    sync_state,
    without_draws,
    without_left_out,
)
from gradtide.train.together.reporting import find_reports

if TYPE_CHECKING:
    from gradtide.store import Store
    from gradtide.train.run import Run

__all__ = ["Checkpoints", "Keeper", "Resumed", "check_same"]

_LOOK_S = 0.02
_LAST_S = 10.0  # for what is being written when a run is interrupted
_BEFORE = {"accumulate": 1, "compress": None, "split": False}  # what checkpoints of old don't say
_WORKERS_S = 120.0  # for the other workers to write theirs


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Where a run keeps checkpoints: `fit(..., checkpoints=Checkpoints("runs/ck", every=100, resume=True))`.

    `path` is a folder, or an address that fsspec knows; all workers and servers must see it. One is written every
    `every` steps (0: none), and the last `keep` stay. `resume=True` goes on with the newest, if there is one;
    `resume="folder"` with that one. `token` stands in the names of this run's checkpoints, and is the same for all
    workers. `options` are values that a run must have in common with the checkpoint it goes on with. Raises ConfigError
    for numbers that make no sense.
    """

    path: str  # a folder, or any address that fsspec knows; all workers and servers must see it
    every: int = 0  # so many steps; 0: none are written
    keep: int = 3  # the last so many
    resume: bool | str = False  # go on with the newest, if there is one; or with the one in this folder
    token: str = ""  # in the names of this run's checkpoints; the same for all workers
    options: dict[str, Any] = field(default_factory=dict)  # what must be as it was to go on

    def __post_init__(self) -> None:
        check_whole("Checkpoints", every=self.every, keep=self.keep)
        path: object = self.path
        resume: object = self.resume
        if not isinstance(path, str | PathLike) or not isinstance(resume, bool | str | PathLike):
            wrong = f"path={path!r}, resume={resume!r}"
            raise ConfigError(f"Checkpoints({wrong}) makes no sense; name a folder, and say resume=True or a folder")
        if self.every and not os.fspath(self.path):
            raise ConfigError(f"Checkpoints: every={self.every} needs a folder; say Checkpoints('runs/ck', every=100)")
        if self.every < 0 or self.keep < 1:
            raise ConfigError(
                f"a checkpoint every {self.every} steps, keeping {self.keep}, makes no sense; keep 1 or more"
            )

    def check_place(self) -> None:
        """A folder that can't be one is refused before the run, and not at its first checkpoint."""
        if self.every:
            place = open_place(self.path)
            if os.path.isfile(place.address):
                raise ConfigError(f"Checkpoints: {place.address} is a file; name a folder")

    def find(self) -> tuple[Place, Manifest] | None:
        """The checkpoint to go on with; None if there is none. Raises DataError if `resume` names no checkpoint."""
        if isinstance(self.resume, str) and self.resume:
            return find_checkpoint(self.resume)
        newest = Shelf(self.path).newest() if self.resume else None
        return None if newest is None else (open_place(newest.address), newest.manifest)


class _FileLine(msgspec.Struct):
    """What a worker says about its file."""

    file: FileEntry
    position: Position
    state: dict[str, dict[str, Any]] = {}  # of its optimizer, if that is its own: what is no tensor


@dataclass(frozen=True, slots=True)
class Resumed:
    """A checkpoint as one worker needs it."""

    address: str
    position: Position
    tensors: dict[str, Tensor]
    optimizer: dict[str, Any]


class Keeper:
    """The checkpoints of one run, as one of its workers sees them."""

    def __init__(
        self, wanted: Checkpoints, rank: int, size: int, emit: Emit, *, apart: bool = False, alike: bool = False
    ) -> None:
        """`apart`: each worker has optimizer state of its own (Local). `alike`: no worker has anything of its own, so
        another number of them may go on (a split model)."""
        self._wanted, self._rank, self._size, self._emit, self._apart = wanted, rank, size, emit, apart
        self._alike = alike
        self._due = False  # since a step that workers took by themselves
        self._options = {**wanted.options, "workers": size, **({"apart": True} if apart else {})}
        self._writing: Handle[Taken | None] | None = None
        self._told = (0.0, 0)  # when it began, and with which step
        self._reports = find_reports()
        found = wanted.find()
        self.resumed = self._load(*found) if found is not None else None

    # --- going on ---

    def load_model(self, model: Any) -> None:
        if self.resumed is not None and self.has_model:
            load_model(model, self.resumed.tensors, self.resumed.address)

    def load_optimizer(self, optimizer: Any) -> Any:
        """Its options and its state, unless that is on servers."""
        if self.resumed is not None and self.has_model:
            load_optimizer(optimizer, self.resumed.tensors, self.resumed.optimizer)
        elif self.resumed is not None:
            load_groups(optimizer, self.resumed.optimizer)
        return optimizer

    def sync_state(self) -> dict[str, Any]:
        """What workers that step by themselves have besides, and what compression has left out."""
        return {} if self.resumed is None else sync_state(self.resumed.tensors, self.resumed.optimizer)

    @property
    def has_left_out(self) -> bool:
        """Whether what the run goes on from has something that compression left out, to be sent later."""
        return self.resumed is not None and has_left_out(self.resumed.tensors)

    @property
    def has_model(self) -> bool:
        """Whether what it goes on from holds the parameters; otherwise servers do."""
        return self.resumed is not None and any(name.startswith("model/") for name in self.resumed.tensors)

    def begin(self, run: "Run") -> Position:
        """Where the run begins: generators and buffers are put back."""
        if self.resumed is None:
            return Position()
        put_back(run, self.resumed.tensors, self.resumed.position.draws)
        return self.resumed.position

    def go_back(self, run: "Run", folder: str) -> Position:
        """All shards went back to this checkpoint, and so does this worker."""
        self.finish()
        self.resumed = self._load(*find_checkpoint(folder))
        if self.has_model:
            self.load_model(run.replicas[0].module)
        self.load_optimizer(run.optimizers[0])
        run.load_sync_state(self.sync_state())
        return self.begin(run)

    def _load(self, place: Place, manifest: Manifest) -> Resumed:
        train = manifest.train
        if train is None:
            raise DataError(f"{place.address} is a store's, not a training run's; begin with gradtide restore")
        self._check_options(train["options"], place.address)
        lines = [msgspec.convert(line, _FileLine) for line in train["lines"]]
        check_sizes(place, "", manifest.files)
        if self._alike:
            return Resumed(place.address, lines[0].position, _read(place, lines[0].file), train["optimizer"])
        self._tell_of_others(len(lines), place.address)
        own = lines[self._rank % len(lines)]
        tensors = _read(place, own.file)
        if own is not lines[0]:
            tensors |= only_of_all(_read(place, lines[0].file), apart=self._apart)
        if self._rank >= len(lines):  # two workers must not draw the same random numbers, nor send the same later
            tensors = without_left_out(without_draws(tensors))
        tensors = add_left_out(
            tensors, [_read(place, line.file) for line in lines[self._rank + self._size :: self._size]]
        )
        position = share_positions([line.position for line in lines], self._rank, self._size)
        optimizer = {**train["optimizer"], "state": own.state} if self._apart else train["optimizer"]
        return Resumed(place.address, position, tensors, optimizer)

    def _tell_of_others(self, before: int, where: str) -> None:
        if self._rank or before == self._size:
            return
        how = "each batch is cut into as many parts from now on"
        if self._apart:
            how = f"worker i goes on with the optimizer state that worker i mod {before} had"
        warnings.warn(
            f"{where} is of {before} workers, and there are {self._size}: {how}, and what compression had left out of "
            "all is kept in sum",
            stacklevel=2,
        )

    def _check_options(self, saved: dict[str, Any], where: str) -> None:
        if self._apart != bool(saved.get("apart")):
            raise ConfigError(f"{where} was made {'without' if self._apart else 'with'} Local; resume with the same")
        check_same(saved, self._options, where)

    # --- writing ---

    def after_step(self, run: "Run", at: Position) -> None:
        """Begins a checkpoint if it is time for one; a failure is told, and nothing else happens."""
        if not self._wanted.every:
            return
        self._due = self._due or at.step % self._wanted.every == 0
        if not self._due or not run.is_alike:  # who steps by itself waits until all have met
            return
        self._due = False
        began_s, step = time.monotonic(), at.step
        self.finish()
        try:
            self._told, self._writing = (began_s, step), self._begin(run, at)
        except GradtideError as error:
            self._emit(CheckpointFailed(step, str(error)))
            self._writing = _done(None)

    def finish(self) -> None:
        """Until what is being written is written, or has failed."""
        writing, self._writing = self._writing, None
        if writing is None:
            return
        began_s, step = self._told
        taken = None
        try:
            taken = writing.wait()
        except GradtideError as error:
            self._emit(CheckpointFailed(step, str(error)))
        if taken is not None:
            self._emit(CheckpointTaken(step, taken.address, taken.manifest.size_bytes, time.monotonic() - began_s))
        self._reports.checkpoint(step, "" if taken is None else taken.address)

    def after_epoch(self, at: Position) -> None:
        self._reports.epoch(at)

    def close(self) -> None:
        """The run is over, well or badly: what is nearly written may still become a checkpoint."""
        if self._writing is not None:
            with contextlib.suppress(GradtideError):
                self._writing.wait(_LAST_S)
            self._writing = None

    def _begin(self, run: "Run", at: Position) -> "Handle[Taken | None]":
        shelf, folder = Shelf(self._wanted.path), folder_name(at.step, self._wanted.token)
        if shelf.is_complete(folder):  # a run that was rewound comes by once more
            return _done(None)
        shelf.place.make_folder(folder)
        store = run.store
        mine = _Mine(shelf.place, folder, self._rank, msgspec.json.encode(at))
        first = run.has_model and self._rank == 0
        with run.whole():
            with_state = first or (run.has_model and self._apart)
            mine.tensors, optimizer = collect(run, with_model=first, with_state=with_state)
        mine.state = optimizer["state"] if self._apart else {}
        if self._rank:
            return _in_background(mine.write_line)
        if store is None:
            return _in_background(lambda: self._commit(shelf, folder, at.step, mine, optimizer))
        return self._with_servers(store, mine, optimizer, at.step)

    def _commit(self, shelf: Shelf, folder: str, step: int, mine: "_Mine", optimizer: dict[str, Any]) -> Taken:
        try:
            files, train = self._gather(mine, optimizer)
            taken = shelf.commit(folder, step, files, train=train)
        except BaseException:
            shelf.discard(folder)
            raise
        shelf.keep_last(self._wanted.keep)
        return taken

    def _with_servers(
        self, store: "Store", mine: "_Mine", optimizer: dict[str, Any], step: int
    ) -> "Handle[Taken | None]":
        from gradtide.store.client.checkpointing import CheckpointOptions

        options = CheckpointOptions(
            self._wanted.keep, step, mine.folder, beside=lambda place, folder: self._gather(mine, optimizer)
        )
        return store.begin_checkpoint(self._wanted.path, options)  # type: ignore[return-value]

    def _gather(self, mine: "_Mine", optimizer: dict[str, Any]) -> tuple[tuple[FileEntry, ...], dict[str, Any]]:
        """Our own file, then the lines of all workers."""
        mine.write_line()
        lines = [self._wait_for_line(mine, rank) for rank in range(self._size)]
        train = {"options": self._options, "optimizer": optimizer, "lines": msgspec.to_builtins(lines)}
        return tuple(line.file for line in lines), train

    def _wait_for_line(self, mine: "_Mine", rank: int) -> _FileLine:
        name, deadline_s = f"{mine.folder}/worker-{rank}.json", time.monotonic() + _WORKERS_S
        while mine.place.size(name) is None:
            if time.monotonic() > deadline_s:
                raise PeerTimeout(f"worker {rank} has not written its part within {_WORKERS_S:g} s")
            time.sleep(_LOOK_S)
        with mine.place.read(name) as file:
            return msgspec.json.decode(file.read(), type=_FileLine)


class _Mine:
    """What one worker adds to a checkpoint."""

    def __init__(self, place: Place, folder: str, rank: int, position: bytes) -> None:
        self.place, self.folder, self._rank = place, folder, rank
        self._position = msgspec.json.decode(position, type=Position)
        self.tensors: dict[str, Tensor] = {}
        self.state: dict[str, dict[str, Any]] = {}

    def write_line(self) -> None:
        name = f"worker-{self._rank}"
        entry = write_file(self.place, self.folder, f"{name}.safetensors", [TensorGroup(name, self.tensors)])
        self.place.commit(
            f"{self.folder}/{name}.json", msgspec.json.encode(_FileLine(entry, self._position, self.state))
        )


def check_same(saved: dict[str, Any], options: dict[str, Any], where: str) -> None:
    """Raises ConfigError if a run can't go on because it was begun in another way."""
    for name, value in options.items():
        before = saved.get(name, _BEFORE.get(name, value))
        if before != value and name != "workers":
            raise ConfigError(f"{where} was made with {name} {before}, not {value}; resume with the same")


def _read(place: Place, entry: FileEntry) -> dict[str, Tensor]:
    with TensorFile(place, entry.name) as file:
        check_header(file, entry)
        (part,) = entry.parts
        tensors, checksum = file.read(part.start, part.end)
        check_part(file, part, checksum)
    return tensors


def _done(result: None) -> "Handle[Taken | None]":
    handle: Handle[Taken | None] = Handle("checkpoint")
    handle.finish(result)
    return handle


def _in_background(work: Callable[[], Taken | None]) -> "Handle[Taken | None]":
    handle: Handle[Taken | None] = Handle("checkpoint")

    def run() -> None:
        try:
            handle.finish(work())
        except BaseException as error:
            handle.fail(error)

    threading.Thread(target=run, name="gradtide-checkpoint", daemon=True).start()
    return handle
