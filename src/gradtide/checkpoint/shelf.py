"""The checkpoints of one job, side by side in one place: a folder each, `step-00000100-a1b2c3`."""

import os
import re
import time
from dataclasses import dataclass
from typing import Any

from gradtide.checkpoint.entries import FileEntry, ShardEntry
from gradtide.checkpoint.manifest import MANIFEST, Manifest, check_sizes, read_manifest, write_manifest
from gradtide.checkpoint.places import Place, open_place
from gradtide.errors import ConfigError, DataError

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
        taken = [self.get(name) for _, name in self.folders() if self.is_complete(name)]
        return sorted(taken, key=lambda each: (each.manifest.step, each.manifest.taken))

    def get(self, folder: str) -> Taken:
        return Taken(folder, f"{self.place.address}/{folder}", read_manifest(self.place, folder))

    def newest(self) -> Taken | None:
        """The newest complete one; a manifest that can't be read is not passed over in silence."""
        found = self.complete()
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

    def keep_last(self, count: int) -> list[str]:
        """Removes all but the last so many, and what was begun before them and never finished; what was removed."""
        if count < 1:
            raise ConfigError(f"keeping the last {count} checkpoints would leave none; keep 1 or more")
        complete = self.complete()
        kept = {each.folder for each in complete[-count:]}
        newest = complete[-1].manifest.step if complete else -1
        gone = [name for step, name in self.folders() if name not in kept and (step < newest or self.is_complete(name))]
        for name in gone:
            self.place.remove(f"{name}/{MANIFEST}")  # first of all: half of a checkpoint must not look whole
            self.place.remove(name)
        return gone


def find_checkpoint(address: str | os.PathLike[str]) -> tuple[Place, Manifest]:
    """A checkpoint's own folder, or the newest in a folder of checkpoints."""
    place = open_place(address)
    if place.size(MANIFEST) is not None:
        return place, read_manifest(place)
    newest = Shelf(address).newest()
    if newest is None:
        raise DataError(f"{place.address} is no checkpoint and has none in it; give a folder with a {MANIFEST}")
    return open_place(newest.address), newest.manifest
