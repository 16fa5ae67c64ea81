"""Names of hosts as Slurm writes them: node[00-15,20],login1."""

import re
from itertools import product
from math import prod

from gradtide.errors import TopologyError
from gradtide.topology.wording import shown

__all__ = ["expand_hosts"]

MOST_HOSTS = 20_000
PART = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


def expand_hosts(text: str, where: str) -> list[str]:
    """Every name: numbers keep the zeros in front. `where` is what an error begins with.

    >>> expand_hosts("n[08-10]-ib,login", "here")
    ['n08-ib', 'n09-ib', 'n10-ib', 'login']
    """
    parts = PART.findall(text)
    if not parts or ",".join(parts) != text:
        raise TopologyError(f"{where}: {shown(text)} is no list of hosts; write for example node[0-15]")
    names: list[str] = []
    for part in parts:
        pieces = re.split(r"\[([^\[\]]*)\]", part)  # texts and what stands in brackets, in turn
        choices = [[piece] if at % 2 == 0 else _numbers(piece, where) for at, piece in enumerate(pieces)]
        if len(names) + prod(len(choice) for choice in choices) > MOST_HOSTS:
            raise TopologyError(f"{where}: {shown(text)} is more than {MOST_HOSTS:,} hosts; check the numbers")
        names += ["".join(choice) for choice in product(*choices)]
    return names


def _numbers(text: str, where: str) -> list[str]:
    numbers: list[str] = []
    for piece in text.split(","):
        match = RANGE.fullmatch(piece)
        if not match:
            raise TopologyError(f"{where}: [{text[:40]}] is no range of numbers; write for example [0-15,20]")
        first, last = match[1], match[2] or match[1]
        if int(first) > int(last) or int(last) - int(first) >= MOST_HOSTS:
            raise TopologyError(f"{where}: [{text[:40]}] runs from {first} to {last}; write the smaller one first")
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return numbers
