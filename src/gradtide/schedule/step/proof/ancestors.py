"""Which pairs of tasks no deps order, directly or through others."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

__all__ = ["unordered"]

BLOCK = 8192  # ancestors looked at in one pass: 1 KiB a task, whatever the step's length


def unordered(pairs: Iterable[tuple[int, int]], deps: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    """Those (earlier, later) whose earlier task is no ancestor of the later. Bit i of a mask is task low + i."""
    blocks: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for earlier, later in pairs:
        if earlier not in deps[later]:
            blocks[earlier // BLOCK].append((earlier, later))
    for block, members in blocks.items():
        low, last = block * BLOCK, max(later for _, later in members)
        masks: list[int] = []
        for at in range(low, last + 1):
            mask = 1 << (at - low) if at < low + BLOCK else 0
            for dep in deps[at]:
                if dep >= low:
                    mask |= masks[dep - low]
            masks.append(mask)
        yield from (pair for pair in members if pair[1] < low or not masks[pair[1] - low] >> (pair[0] - low) & 1)
