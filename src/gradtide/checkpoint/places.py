"""Where checkpoints are: a folder on this machine, or any address that fsspec knows (memory://, s3:// with s3fs).

On this machine what `write` and `commit` wrote is on disk when they return, its name included. Elsewhere a file is one
put, which is there whole or not at all.
"""

import contextlib
import os
import shutil
from collections.abc import Iterable
from typing import Any, BinaryIO, Protocol

from gradtide.checkpoint.direct import write_file
from gradtide.errors import ConfigError, DataError, OutputError

__all__ = ["Place", "open_place", "sync_folder"]

Buffer = bytes | memoryview


class Place(Protocol):
    """One folder; names are of files in it or in folders below."""

    address: str

    @property
    def real_address(self) -> str:
        """Where it leads in the end, through links."""

    def make_folder(self, name: str) -> None:
        """Makes it, and what is above it; fine if it is there."""

    def write(self, name: str, content: Iterable[Buffer]) -> None:
        """A file, from one buffer after the other; its folder is there."""

    def commit(self, name: str, content: bytes) -> None:
        """A small file that is there whole or not at all, whatever happens."""

    def names(self, folder: str = "") -> list[str]:
        """What is in a folder; nothing when it is not there."""

    def size(self, name: str) -> int | None:
        """Of a file, in bytes; None when it is not there."""

    def read(self, name: str) -> BinaryIO:
        """Opens a file."""

    def remove(self, name: str) -> None:
        """A file or a folder with all that is in it; fine if it is not there."""


def open_place(address: str | os.PathLike[str]) -> Place:
    """The place at an address: a path, file://..., or whatever fsspec has a file system for."""
    text = os.fspath(address)
    protocol, found, rest = text.partition("://")
    if not found or protocol in ("file", "local"):
        return _Local(os.path.abspath(os.path.expanduser(rest if found else text)))
    import fsspec

    try:
        filesystem, root = fsspec.core.url_to_fs(text)
    except ImportError as error:
        raise ConfigError(f"{text} needs a package that is not installed: {error}") from None
    except Exception as error:
        raise ConfigError(f"{text} is no address that fsspec knows: {_line(error)}") from None
    return _Remote(text.rstrip("/"), filesystem, root.rstrip("/"))


class _Local:
    def __init__(self, path: str) -> None:
        self.address = path

    @property
    def real_address(self) -> str:
        return os.path.realpath(self.address)

    def make_folder(self, name: str) -> None:
        path = self._path(name)
        try:
            made = []
            while not os.path.isdir(path):
                made.append(path)
                path = os.path.dirname(path)
            for each in reversed(made):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(each)
                sync_folder(os.path.dirname(each))
        except OSError as error:
            raise _cannot(self._path(name), error) from None

    def write(self, name: str, content: Iterable[Buffer]) -> None:
        path = self._path(name)
        try:
            write_file(path, content)
            sync_folder(os.path.dirname(path))
        except OSError as error:
            raise _cannot(path, error) from None

    def commit(self, name: str, content: bytes) -> None:
        self.write(f"{name}.part", [content])
        path = self._path(name)
        try:
            os.replace(f"{path}.part", path)
            sync_folder(os.path.dirname(path))
        except OSError as error:
            raise _cannot(path, error) from None

    def names(self, folder: str = "") -> list[str]:
        try:
            return sorted(os.listdir(self._path(folder)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise DataError(f"{self._path(folder)} can't be read: {error.strerror}") from None

    def size(self, name: str) -> int | None:
        try:
            return os.stat(self._path(name)).st_size
        except OSError:
            return None

    def read(self, name: str) -> BinaryIO:
        try:
            return open(self._path(name), "rb", buffering=0)  # whoever asked for it closes it
        except OSError as error:
            raise DataError(f"{self._path(name)} can't be read: {error.strerror}") from None

    def remove(self, name: str) -> None:
        path = self._path(name)
        try:
            if os.path.isdir(path):
                shutil.rmtree(path)
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
        except OSError as error:
            raise OutputError(f"{path} can't be removed: {error.strerror}") from None

    def _path(self, name: str) -> str:
        return os.path.join(self.address, name) if name else self.address


class _Remote:
    def __init__(self, address: str, filesystem: Any, root: str) -> None:
        self.address, self._files, self._root = address, filesystem, root

    @property
    def real_address(self) -> str:
        return self.address

    def make_folder(self, name: str) -> None:
        """An object store has no folders; where there are some, they are made with their files."""

    def write(self, name: str, content: Iterable[Buffer]) -> None:
        try:
            with self._files.open(self._path(name), "wb") as file:
                for buffer in content:
                    file.write(buffer)
        except OutputError:
            raise
        except Exception as error:
            raise OutputError(f"{self.address}/{name} can't be written: {_line(error)}") from None

    def commit(self, name: str, content: bytes) -> None:
        try:
            self._files.pipe_file(self._path(name), content)
        except Exception as error:
            raise OutputError(f"{self.address}/{name} can't be written: {_line(error)}") from None

    def names(self, folder: str = "") -> list[str]:
        try:
            self._files.invalidate_cache()
            found = self._files.ls(self._path(folder), detail=False)
        except FileNotFoundError:
            return []
        except Exception as error:
            raise DataError(f"{self.address}/{folder} can't be read: {_line(error)}") from None
        return sorted(path.rstrip("/").rpartition("/")[2] for path in found)

    def size(self, name: str) -> int | None:
        try:
            self._files.invalidate_cache()
            return int(self._files.size(self._path(name)))
        except Exception:
            return None

    def read(self, name: str) -> BinaryIO:
        try:
            file: BinaryIO = self._files.open(self._path(name), "rb")
        except Exception as error:
            raise DataError(f"{self.address}/{name} can't be read: {_line(error)}") from None
        return file

    def remove(self, name: str) -> None:
        try:
            if self._files.exists(self._path(name)):
                self._files.rm(self._path(name), recursive=True)
        except Exception as error:
            raise OutputError(f"{self.address}/{name} can't be removed: {_line(error)}") from None

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Afterwards the names in it are on disk."""
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _cannot(path: str, error: OSError) -> OutputError:
    return OutputError(f"{path} can't be written: {error.strerror}")


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
