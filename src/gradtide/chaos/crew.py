"""Processes of one run: each says when it is ready, works until its standard input ends, and then says what it did."""

import subprocess
from collections.abc import Sequence
from typing import Self

__all__ = ["Crew"]

_END_S = 60.0


class Crew:
    """Those who do not end by themselves are killed."""

    def __init__(self, commands: Sequence[Sequence[str]], *, speaks: bool = True) -> None:
        """Who does not speak has our own standard input and output."""
        pipe = subprocess.PIPE if speaks else None
        self.processes = [
            subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=speaks)
            for command in commands
        ]  # a terminal's Ctrl-C reaches us alone, which end them

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            process.kill()
            with process:  # closes its pipes, and waits for it
                pass

    def read_lines(self) -> list[str]:
        """The next line of each; none of one that has ended."""
        return [process.stdout.readline() for process in self.processes if process.stdout is not None]

    def finish(self) -> list[str]:
        """Tells them to stop; what each says then, nothing of one that failed."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        ends = zip(self.read_lines(), self.processes, strict=True)
        return ["" if process.wait(_END_S) else line for line, process in ends]
