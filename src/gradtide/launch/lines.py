"""A worker's output, cut into whole lines with the worker's mark before each."""

import re

__all__ = ["Lines", "mark"]

# A line that grows beyond this is cut, so that output without line ends can't fill the memory.
_LONGEST_BYTES = 16 << 20
# What libraries bound with nanobind (Triton, of torch's CUDA builds) say at the end of a worker: the launcher has told
# Python to leave alone what was loaded before the fork, and they take that for a leak. Nothing of the worker's own.
_LEAK = re.compile(rb"nanobind: leaked \d+ \w+!")
_OF_A_LEAK = (
    b" - leaked ",
    b" - ... skipped remainder",
    b"nanobind: this is likely caused by a reference counting issue",
    b"See https://nanobind.readthedocs.io/",
)
_COLOURS = (36, 33, 35, 32, 34, 31)  # of a terminal: cyan, yellow, magenta, green, blue, red


def mark(rank: int, workers: int, coloured: bool) -> bytes:
    """`[1] `, as wide as the widest of the job."""
    text = f"[{rank:>{len(str(workers - 1))}}]"
    return (f"\033[{_COLOURS[rank % len(_COLOURS)]}m{text}\033[0m " if coloured else f"{text} ").encode()


class Lines:
    """Takes bytes as they come, gives back whole lines. A progress bar (text that returns to the line's beginning) is
    shown as a terminal would leave it: the last state of each line, and now and then the one it is in."""

    def __init__(self, before: bytes) -> None:
        self._before = before
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._in_leak = False  # whether the last line was one of nanobind's about a leak

    def feed(self, data: bytes) -> bytes:
        """Whole lines; what comes after the last line end waits for its own."""
        cut = data.rfind(b"\n") + 1
        if cut:
            whole = b"".join((*self._rest, data[:cut]))
            self._keep(data[cut:])
            return self._marked(whole[:-1])
        self._keep(data, *self._rest)
        return self.flush() if self._rest_bytes > _LONGEST_BYTES else b""

    @property
    def in_progress(self) -> bool:
        """Whether there may be a progress bar to show."""
        return self._rest_bytes > 1 and any(b"\r" in piece for piece in self._rest)

    def progress(self) -> bytes:
        """The state that an unfinished progress bar is in, as a line; empty if there is none or nothing changed."""
        rest = b"".join(self._rest)
        before, found, state = rest.rpartition(b"\r")
        if not found:
            return b""
        self._keep(b"\r")  # what comes next is the next state
        return self._marked(state or before.rpartition(b"\r")[2]) if (state or before) else b""

    def flush(self) -> bytes:
        """What was left without a line end, as a line."""
        rest = b"".join(self._rest)
        self._keep(b"")
        return self._marked(rest) if rest.strip(b"\r") else b""

    def without_mark(self, line: bytes) -> bytes:
        """What the worker wrote of a line that was given back."""
        return line.removeprefix(self._before).strip()

    def _keep(self, last: bytes, *earlier: bytes) -> None:
        self._rest = [*earlier, last] if last else list(earlier)
        self._rest_bytes = sum(map(len, self._rest))

    def _marked(self, text: bytes) -> bytes:
        if b"\r" in text:
            text = b"\n".join(line.rstrip(b"\r").rpartition(b"\r")[2] for line in text.split(b"\n"))
        if self._in_leak or b"nanobind: " in text:
            lines = [line for line in text.split(b"\n") if not self._is_of_leak(line)]
            if not lines:
                return b""
            text = b"\n".join(lines)
        return self._before + text.replace(b"\n", b"\n" + self._before) + b"\n"

    def _is_of_leak(self, line: bytes) -> bool:
        self._in_leak = bool(_LEAK.fullmatch(line)) or (self._in_leak and line.startswith(_OF_A_LEAK))
        return self._in_leak
