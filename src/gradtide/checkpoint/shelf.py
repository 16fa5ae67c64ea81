"""The checkpoints of one job, side by side in one place: a folder each, `step-00000100-a1b2c3`."""

import contextlib
import os
import re
import time
import warnings
from dataclasses import dataclass
from typing import Any

from gradtide.checkpoint.entries import FileEntry, ShardEntry
from gradtide.checkpoint.manifest import MANIFEST, Manifest, check_sizes, read_manifest, write_manifest
from gradtide.checkpoint.places import Place, open_place
from gradtide.errors import ConfigError, DataError, GradtideError, OutputError

__all__ = ["Shelf", "Taken", "find_checkpoint", "folder_name"]

_NAME = re.compile(r"step-(\d{8,})(-\w+)?")


def folder_name(step: int, token: str = "") -> str:
    return f"step-{step:08d}-{token}" if token else f"step-{step:08d}"


@dataclass(frozen=True, slots=True)
class Taken:
    """A complete checkpoint."""

    folder: str  # its name
    address: str
    manifest: Manifest


class Shelf:
    """The checkpoints in one place."""

    def __init__(self, address: str | os.PathLike[str]) -> None:
        self.place: Place = open_place(address)

    def folders(self) -> list[tuple[int, str]]:
        """What looks like a checkpoint, complete or not: (step, name), oldest first."""
        found = [(match, name) for name in self.place.names() if (match := _NAME.fullmatch(name))]
        return sorted((int(match[1]), name) for match, name in found)

    def is_complete(self, folder: str) -> bool:
        return self.place.size(f"{folder}/{MANIFEST}") is not None

    def complete(self) -> list[Taken]:
        """Those that have a manifest, oldest first."""
        unreadable: list[tuple[int, GradtideError]] = []
        found = self._read(unreadable)
        for _, error in unreadable:
            raise error
        return found

    def _read(self, unreadable: list[tuple[int, GradtideError]]) -> list[Taken]:
        """The same; those whose manifest can't be read are noted, with their steps."""
        taken = []
        for step, name in self.folders():
            try:
                if self.is_complete(name):
                    taken.append(self.get(name))
            except GradtideError as error:
                unreadable.append((step, error))
        return sorted(taken, key=lambda each: (each.manifest.step, each.manifest.taken))

    def get(self, folder: str) -> Taken:
        return Taken(folder, f"{self.place.address}/{folder}", read_manifest(self.place, folder))

    def newest(self) -> Taken | None:
        """The newest complete one; a manifest that can't be read is passed over only if it is of an earlier step."""
        unreadable: list[tuple[int, GradtideError]] = []
        found = self._read(unreadable)
        for step, error in unreadable:
            if not found or step >= found[-1].manifest.step:
                raise error
        return found[-1] if found else None

    def next_step(self) -> int:
        """One more than the highest there is, for those who count no steps."""
        return max((step for step, _ in self.folders()), default=0) + 1

    def new_folder(self, step: int) -> str:
        """One that nobody else writes to."""
        name = folder_name(step, os.urandom(3).hex())
        self.place.make_folder(name)
        return name

    def commit(
        self,
        folder: str,
        step: int,
        files: tuple[FileEntry, ...],
        *,
        shards: tuple[ShardEntry, ...] = (),
        servers: int = 0,
        round_: int = 0,
        train: dict[str, Any] | None = None,
    ) -> Taken:
        """Looks whether all is there, then writes the manifest: from here on it is a checkpoint."""
        try:
            check_sizes(self.place, folder, files)
        except DataError as error:
            raise DataError(
                f"{error}: does everybody who writes a checkpoint see the same {self.place.address}?"
            ) from None
        now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + f".{time.time_ns() // 1000 % 1_000_000:06d}Z"
        manifest = Manifest(step, now, files, shards, servers, round_, train)
        write_manifest(self.place, folder, manifest)
        return Taken(folder, f"{self.place.address}/{folder}", manifest)

    def discard(self, folder: str) -> None:
        """What was begun and will be no checkpoint; if that can't be removed, it stays unfinished."""
        with contextlib.suppress(GradtideError):
            self.place.remove(folder)

    def keep_last(self, count: int) -> None:
        """Removes all but the last so many, and what was begun before them and never finished. What can't be removed,
        or read, stays, and a warning says so: the new checkpoint is none the worse for it."""
        if count < 1:
            raise ConfigError(f"keeping the last {count} checkpoints would leave none; keep 1 or more")
        try:
            self._remove_all_but(count)
        except GradtideError as error:
            warnings.warn(f"old checkpoints in {self.place.address} stay: {error}", stacklevel=2)

    def _remove_all_but(self, count: int) -> None:
        unreadable: list[tuple[int, GradtideError]] = []
        complete = self._read(unreadable)
        kept = {each.folder for each in complete[-count:]}
        newest = complete[-1].manifest.step if complete else -1
        known = {each.folder for each in complete}
        failed = [error for _, error in unreadable]
        for step, name in self.folders():
            if name in kept or not (name in known or (step < newest and not self.is_complete(name))):
                continue
            try:
                self.place.remove(f"{name}/{MANIFEST}")  # first of all: half of a checkpoint must not look whole
                self.place.remove(name)
            except GradtideError as error:
                failed.append(error)
        if failed:
            raise OutputError("; ".join(map(str, failed)))


def find_checkpoint(address: str | os.PathLike[str]) -> tuple[Place, Manifest]:
    """A checkpoint's own folder, or the newest in a folder of checkpoints."""
    place = open_place(address)
    if place.size(MANIFEST) is not None:
        return place, read_manifest(place)
    newest = Shelf(address).newest()
    if newest is None:
        inside = f"{os.fspath(address).rstrip('/')}/checkpoints"
        if Shelf(inside).newest() is not None:
            raise DataError(f"{place.address} is the folder of a run; its checkpoints are in {inside}")
        raise DataError(f"{place.address} is no checkpoint and has none in it; give a folder with a {MANIFEST}")
    return open_place(newest.address), newest.manifest
