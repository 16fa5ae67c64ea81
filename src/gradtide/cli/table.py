"""The table of every command: headings above columns in which words stand left and figures right.

Written without rich, whose import takes a tenth of the second in which a plan should be there.
"""

import os
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = ["BOLD", "DIM", "GREEN", "print_table", "styled", "table_lines", "tell_written"]

BOLD, GREEN, DIM, PLAIN = "\x1b[1m", "\x1b[1;32m", "\x1b[2m", "\x1b[0m"
GAP = "  "
NARROWEST = 20  # a last column that would have less room than that is not folded
UNKNOWN = ("", "-", "?")  # what stands for a figure that is not there


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Prints the title, if there is one, and the table; what is too wide for the terminal is folded."""
    head, *lines = table_lines(headings, rows, os.get_terminal_size().columns if sys.stdout.isatty() else None)
    if title:
        print(styled(BOLD, title))
    print("\n".join([styled(BOLD, head), *lines]))


def table_lines(headings: Sequence[str], rows: Iterable[Sequence[object]], width: int | None = None) -> list[str]:
    """The headings and each row as a line; with a width, words in the last column go on below where they end.

    >>> table_lines(("strategy", "time"), [("tree", "9.455 ms"), ("ring", "780 us")])
    [' strategy      time', ' tree      9.455 ms', ' ring        780 us']
    """
    cells = [list(headings), *([str(cell) for cell in row] for row in rows)]
    columns = list(zip(*cells, strict=True))
    right = [_are_figures(column[1:]) for column in columns]
    widths = [max(map(len, column)) for column in columns]
    room = width - sum(widths[:-1]) - len(GAP) * (len(widths) - 1) - 1 if width else 0
    fold = room >= NARROWEST and not right[-1]
    lines = []
    for row in cells:
        parts = textwrap.wrap(row[-1], room) if fold and len(row[-1]) > room else [row[-1]]
        lines.append(_line([*row[:-1], parts[0]], widths, right))
        lines += [_line([""] * (len(row) - 1) + [part], widths, right) for part in parts[1:]]
    return lines


def _are_figures(cells: Iterable[str]) -> bool:
    """Whether a column stands right: each of its cells begins with a digit, or a sign, or is unknown."""
    known = [cell for cell in cells if cell not in UNKNOWN]
    return bool(known) and all(cell.lstrip("+-")[:1].isdigit() for cell in known)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    placed = [
        cell.rjust(width) if figures else cell.ljust(width)
        for cell, width, figures in zip(cells, widths, right, strict=True)
    ]
    return f" {GAP.join(placed)}".rstrip()


def styled(style: str, text: str) -> str:
    """The text in that style, if it goes to a terminal."""
    return f"{style}{text}{PLAIN}" if sys.stdout.isatty() else text


def tell_written(*paths: Path | None, as_data: bool = False) -> None:
    """Says which files there are now; beside data that a program reads, where it is not in the way."""
    if written := [str(path) for path in paths if path is not None]:
        print(f"written: {', '.join(written)}", file=sys.stderr if as_data else sys.stdout)
