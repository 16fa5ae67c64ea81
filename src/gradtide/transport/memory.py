"""Memory that several processes see: made with memfd, sealed against shrinking, mapped while a tensor needs it.

Nothing has a name in a file system, so nothing is left behind when a process is killed. A mapping is never closed by
hand: torch keeps a reference to it but does not lock it, so closing it under a live tensor would segfault. It goes when
the last tensor over it goes.
"""

import fcntl
import mmap
import os

import torch

from gradtide.errors import CommunicationError, ConfigError

__all__ = ["address_of", "create_memory", "map_memory", "tensor_over"]

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def create_memory(label: str, size_bytes: int) -> int:
    """A descriptor of `size_bytes` of zeroes that can be passed on and never shrinks; /proc/PID/maps shows label."""
    descriptor = os.memfd_create(f"gradtide-{label}"[:200], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.truncate(descriptor, size_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except OSError as error:
        os.close(descriptor)
        raise ConfigError(
            f"can't make {size_bytes} bytes of shared memory for {label}: {error.strerror}; ask for less"
        ) from None
    return descriptor


def map_memory(descriptor: int, size_bytes: int) -> mmap.mmap:
    """Maps a descriptor that came from us or from a peer, and closes it. What is not sealed is refused.

    Reading a page that another process cut off is SIGBUS, which nobody can catch: hence the seal.
    """
    try:
        if not _seals_of(descriptor) & fcntl.F_SEAL_SHRINK:
            raise CommunicationError("a peer sent memory that is not sealed against shrinking; is it running gradtide?")
        found = os.fstat(descriptor).st_size
        if found < size_bytes:
            raise CommunicationError(
                f"a peer sent {found} bytes of shared memory where {size_bytes} were expected; do the versions differ?"
            )
        return mmap.mmap(descriptor, size_bytes)
    except OSError as error:
        raise ConfigError(
            f"can't map {size_bytes} bytes of shared memory ({error.strerror}); ask for less, or free some"
        ) from None
    finally:
        os.close(descriptor)


def _seals_of(descriptor: int) -> int:
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:  # an ordinary file or a pipe has no seals
        return 0


def tensor_over(mapping: mmap.mmap, dtype: torch.dtype, shape: tuple[int, ...], offset_bytes: int = 0) -> torch.Tensor:
    """A tensor over part of a mapping; it keeps the mapping alive."""
    count = 1
    for extent in shape:
        count *= extent
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(mapping, dtype=dtype, count=count, offset=offset_bytes).view(shape)


def address_of(mapping: mmap.mmap) -> int:
    return torch.frombuffer(mapping, dtype=torch.uint8, count=1).data_ptr()
