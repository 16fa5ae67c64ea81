"""Memory that several processes see: made with memfd, sealed against shrinking, mapped while a tensor needs it.

Nothing has a name in a file system, so nothing is left behind when a process is killed. A mapping is never closed by
hand: torch keeps a reference to it but does not lock it, so closing it under a live tensor would segfault. It goes when
the last tensor over it goes.

Large pieces are mapped where the kernel can use pages of 2 MiB, and asked to be made of them. In a virtual machine, two
processes that added 64 MB in place took 5 ms with such pages, and up to 12 ms with those of 4 KiB.
"""

import contextlib
import ctypes
import fcntl
import mmap
import os
import resource
import weakref

import numpy as np
import torch

from gradtide.errors import CommunicationError, ConfigError
from gradtide.even_share import even_share

__all__ = [
    "PrivatePages",
    "address_of",
    "can_see_private_pages",
    "create_memory",
    "gather_pages",
    "map_memory",
    "tensor_over",
    "view_of",
]

_PAGE_BYTES, _HUGE_BYTES = mmap.PAGESIZE, 2 << 20
_PAGEMAP = "/proc/self/pagemap"  # 8 bytes a page; of their top bits: present, swapped out, of a file
_OWN, _OWN_SWAPPED_OUT = 0b100, 0b010  # of a private mapping: pages that are no longer the file's
_COLLAPSE = 25  # MADV_COLLAPSE, since Linux 6.1
_FIXED, _NO_RESERVE = 0x10, 0x4000  # MAP_FIXED and MAP_NORESERVE, which Python's mmap doesn't name
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
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


def map_memory(descriptor: int, size_bytes: int, *, private: bool = False) -> mmap.mmap:
    """Maps a descriptor that came from us or from a peer, and closes it. What is not sealed is refused.

    `private`: what is written to this mapping nobody else sees (copy on write), and what others write to theirs is seen
    in all pages that were never written here. Linux does so; POSIX leaves it open.

    Reading a page that another process cut off is SIGBUS, which nobody can catch: hence the seal.
    """
    kind = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
    try:
        if not _seals_of(descriptor) & fcntl.F_SEAL_SHRINK:
            raise CommunicationError("a peer sent memory that is not sealed against shrinking; is it running gradtide?")
        found = os.fstat(descriptor).st_size
        if found < size_bytes:
            raise CommunicationError(
                f"a peer sent {found} bytes of shared memory where {size_bytes} were expected; do the versions differ?"
            )
        if size_bytes < _HUGE_BYTES:
            return mmap.mmap(descriptor, size_bytes, flags=kind, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        return _map_aligned(descriptor, size_bytes, kind)
    except OSError as error:
        raise ConfigError(
            f"can't map {size_bytes} bytes of shared memory ({error.strerror}); ask for less, or free some"
        ) from None
    finally:
        os.close(descriptor)


class _Aligned(mmap.mmap):
    """A reservation of addresses, in which the memory is mapped from a multiple of 2 MiB on. It unmaps both."""

    begin = 0


def _map_aligned(descriptor: int, size_bytes: int, kind: int) -> mmap.mmap:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    reserved = _Aligned(-1, size_bytes + _HUGE_BYTES, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    reserved.begin = -_first_address(reserved) % _HUGE_BYTES
    address = _first_address(reserved) + reserved.begin
    flags, protection = kind | _FIXED, mmap.PROT_READ | mmap.PROT_WRITE
    if _libc.mmap(address, size_bytes, protection, flags, descriptor, 0) != address:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return reserved


def gather_pages(mapping: mmap.mmap, part: int, parts: int) -> None:
    """Makes large pages of one of so many parts of a mapping. Whether that works changes nothing but the speed.

    A part that is not used yet is filled with zeroes by this, which its first use would do otherwise.
    """
    if not isinstance(mapping, _Aligned):
        return
    pages = (len(mapping) - _HUGE_BYTES) // _HUGE_BYTES
    first, last = even_share(pages, part, parts)
    if last > first:
        begin, size_bytes = first * _HUGE_BYTES, (last - first) * _HUGE_BYTES
        # What was never touched is not collapsed. Read, don't write: a page may reach into another rank's part.
        tensor_over(mapping, torch.uint8, (size_bytes,), begin)[::_HUGE_BYTES].max()
        with contextlib.suppress(OSError):  # an older kernel, or no 2 MiB in one piece
            mapping.madvise(_COLLAPSE, mapping.begin + begin, size_bytes)


class PrivatePages:
    """Which pages of a private mapping were written to, and so are this process's own."""

    def __init__(self, mapping: mmap.mmap, size_bytes: int) -> None:
        self._mapping, self._size_bytes = mapping, size_bytes
        self._first = address_of(mapping) // _PAGE_BYTES
        self._entries = np.zeros(-(-size_bytes // _PAGE_BYTES), np.uint64)
        self._pagemap = os.open(_PAGEMAP, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._pagemap)
        self._faults = -1

    def any(self) -> bool:
        """Costs nothing where this process had no page fault since it was asked last: a page's first write is one."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        faults = used.ru_minflt + used.ru_majflt
        if faults == self._faults:
            return False
        os.preadv(self._pagemap, [self._entries.data], self._first * 8)
        kinds = self._entries >> 61
        found = bool(((kinds == _OWN) | (kinds == _OWN_SWAPPED_OUT)).any())
        if not found:
            self._faults = faults
        return found

    def forget(self) -> None:
        """What was written is gone, and the mapping shows what all see."""
        self._mapping.madvise(mmap.MADV_DONTNEED, _begin(self._mapping), self._size_bytes)


def can_see_private_pages() -> bool:
    return os.access(_PAGEMAP, os.R_OK)


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
    return torch.frombuffer(mapping, dtype=dtype, count=count, offset=_begin(mapping) + offset_bytes).view(shape)


def view_of(mapping: mmap.mmap, size_bytes: int) -> memoryview:
    """The mapped bytes; keeps the mapping alive."""
    begin = _begin(mapping)
    return memoryview(mapping)[begin : begin + size_bytes]


def address_of(mapping: mmap.mmap) -> int:
    return _first_address(mapping) + _begin(mapping)


def _begin(mapping: mmap.mmap) -> int:
    return mapping.begin if isinstance(mapping, _Aligned) else 0


def _first_address(mapping: mmap.mmap) -> int:
    return torch.frombuffer(mapping, dtype=torch.uint8, count=1).data_ptr()
