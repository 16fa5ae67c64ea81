"""How this process's C library keeps memory that was freed."""

import ctypes

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # malloc.h
_MOST = 2**31 - 1


def keep_freed_memory(most_bytes: int | None = None) -> None:
    """Lets glibc use freed memory again instead of handing it back; of any size, or at most `most_bytes` of small ones.

    Every training step frees and allocates the same gradients and activations. glibc asks the kernel for each block
    above 32 MiB and gives it back at once, so every step pays for fresh zeroed pages: 16,400 page faults for a gradient
    of 64 MB, half of the step of a 20-million-parameter model on a virtual machine. Other threads wait meanwhile, too.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # other C libraries have none, and do as they like
        return
    if most_bytes is None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, _MOST)
    else:
        mallopt(_MMAP_THRESHOLD, 32 << 20)  # the most that glibc takes
        mallopt(_TRIM_THRESHOLD, min(most_bytes, _MOST))
