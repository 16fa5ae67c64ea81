"""A client's part in a checkpoint: announces the cut, collects what servers wrote, writes the manifest."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradtide.checkpoint.entries import FileEntry
from gradtide.checkpoint.places import Place
from gradtide.checkpoint.shelf import Shelf, Taken
from gradtide.errors import StoreError
from gradtide.handle import Handle
from gradtide.store.client.operations import Done
from gradtide.store.client.pending import Pending
from gradtide.store.wire.messages import BeginCut, CollectCut, CutBegun, CutWritten, Question, Table

if TYPE_CHECKING:
    from gradtide.store.client.engine import Engine

__all__ = ["TRIES", "Beside", "CheckpointOptions", "CutPassed", "agreed_answers", "begin_checkpoint", "round_of_try"]

# What somebody else adds to a checkpoint while its servers write: (place, folder) -> files, and lines for the manifest.
Beside = Callable[[Place, str], tuple[tuple[FileEntry, ...], dict[str, Any] | None]]
_CHANGED = "the checkpoint failed: the table of servers has changed meanwhile; take it again"
TRIES = 8  # to find a round that nobody has closed yet: each time further ahead


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """What of a checkpoint the user chose."""

    keep: int | None = None  # remove all but the last so many
    step: int | None = None  # what it is called by; None: the round of the cut, or one more than the last
    folder: str | None = None  # its name, where others write to it too
    timeout_s: float = 600.0
    beside: Beside | None = None


class CutPassed(Exception):
    """The round was closed before everybody had heard of the cut."""


def round_of_try(round_now: int, number: int) -> int:
    """The round of a cut that no worker takes: each time further ahead of the last that any shard has closed."""
    return round_now + (1 << number) - 1


def agreed_answers(done: Done[Any], table: Table | None) -> tuple[CutBegun | CutWritten, ...]:
    """What all servers said to a question about a cut; raises when one said no, or they are not all of one table."""
    if done.refused is not None and done.refused.reason == "passed":
        raise CutPassed
    if done.refused is not None:
        raise StoreError(done.refused.text)
    # Whoever holds shards of the table was asked; a cut of an earlier one is not through all of them.
    if table is None or any(told.epoch != table.epoch for told in done.told):
        raise StoreError(_CHANGED)
    return done.told


def begin_checkpoint(
    engine: "Engine", shelf: Shelf, options: CheckpointOptions, round_now: Callable[[], int]
) -> Handle[Taken]:
    """When this returns the cut is made for good: rounds go on, and what is written is as of the cut.

    `round_now` is asked when this client is no worker: the last round that any shard has closed.
    """
    session = engine.session
    tries = [session.last_round] if session.member is not None else [None] * TRIES
    for number, own in enumerate(tries):
        round_ = own if own is not None else round_of_try(round_now(), number)
        step = options.step if options.step is not None else round_ or shelf.next_step()
        folder = options.folder if options.folder is not None else shelf.new_folder(step)
        address = f"{shelf.place.address}/{folder}"
        try:
            question = BeginCut(0, session.client, session.incarnation, 0, address, address, round_)
            _ask(engine, question, CutBegun, "the checkpoint's cut").wait()
        except BaseException as error:
            shelf.discard(folder)
            if isinstance(error, CutPassed):
                continue
            raise
        return _Collecting(engine, shelf, options, step, folder, round_).start()
    raise StoreError(f"rounds close faster than a cut can be announced ({TRIES} tries); take it from a worker")


def _ask(engine: "Engine", question: Question, kind: type[Any], what: str) -> Pending[list[Any]]:
    def finish(done: Done[memoryview]) -> list[Any]:
        return [told for told in agreed_answers(done, engine.session.table) if isinstance(told, kind)]

    pending = Pending(engine, lambda: what, finish)
    engine.start(pending, lambda now_s: engine.session.ask(question, now_s))
    return pending


class _Collecting:
    """What is left of a checkpoint after the cut, in a thread of its own."""

    def __init__(
        self, engine: "Engine", shelf: Shelf, options: CheckpointOptions, step: int, folder: str, round_: int
    ) -> None:
        self._engine, self._shelf, self._options = engine, shelf, options
        self._step, self._folder, self._round = step, folder, round_
        self._handle: Handle[Taken] = Handle(f"checkpoint {folder}")

    def start(self) -> Handle[Taken]:
        session, address = self._engine.session, f"{self._shelf.place.address}/{self._folder}"
        question = CollectCut(0, session.client, session.incarnation, 0, address)
        what = f"checkpoint {self._folder}" + (f", which is of round {self._round}," if self._round else "")
        pending = _ask(self._engine, question, CutWritten, what)
        threading.Thread(target=self._run, args=(pending,), name="gradtide-checkpoint", daemon=True).start()
        return self._handle

    def _run(self, pending: Pending[list[CutWritten]]) -> None:
        try:
            taken = self._commit(pending)
        except BaseException as error:
            self._shelf.discard(self._folder)
            self._handle.fail(error)
            return
        if self._options.keep is not None:  # it is a checkpoint now, whatever becomes of the old ones
            self._shelf.keep_last(self._options.keep)
        self._handle.finish(taken)

    def _commit(self, pending: Pending[list[CutWritten]]) -> Taken:
        options, place = self._options, self._shelf.place
        files, train = options.beside(place, self._folder) if options.beside is not None else ((), None)
        written = pending.wait(options.timeout_s)
        theirs = sorted((file for told in written for file in told.files), key=lambda file: file.name)
        shards = sorted((shard for told in written for shard in told.shards), key=lambda entry: entry.shard)
        return self._shelf.commit(
            self._folder, self._step, (*files, *theirs), shards=tuple(shards), servers=len(written),
            round_=self._round, train=train,
        )  # fmt: skip


def shelf_of(path: str | os.PathLike[str]) -> Shelf:
    """Where a checkpoint goes; made if it is not there."""
    shelf = Shelf(path)
    shelf.place.make_folder("")
    return shelf
