"""What a process is called in `ps`, `top` and `pstree`: those that a fork server makes would all look alike."""

import ctypes
import sys
from pathlib import Path

__all__ = ["name_process"]

_PR_SET_NAME = 15
_NAME_BYTES = 15  # what the kernel keeps
_ARG_START = 45  # fields of /proc/PID/stat behind the command's name: where the command line begins, and where it ends


def name_process(name: str, doing: str = "") -> None:
    """`worker-1` for `ps -e` and `top`, and `gradtide worker-1: doing` for `ps aux`; where neither can be, nothing."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:_NAME_BYTES], 0, 0, 0)
    _write_command_line(f"gradtide {name}: {doing}" if doing else f"gradtide {name}")


def _write_command_line(text: str) -> None:
    """Over the arguments that the kernel shows. Python has copies of its own; what does not fit is cut off."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return
    start, end = int(fields[_ARG_START]), int(fields[_ARG_START + 1])
    if end > start > 0:
        room = end - start
        ctypes.memmove(start, text.encode()[: room - 1].ljust(room, b"\0"), room)
