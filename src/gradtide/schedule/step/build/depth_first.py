"""1f1b where a row has several blocks in any order: backward first, else the deepest forward that can begin."""

from gradtide.schedule.step.build.rows import Rows, StageTurn, turns

__all__ = ["depth_first"]


def depth_first(rows: Rows, micros: int) -> list[list[StageTurn]]:
    """Plays the step in unit times (forward 1, backward 2) and writes down what each row does.

    Block b of n never has more than n - b micro-batches under way, as in 1f1b. The oldest micro-batch is never held up
    by that, so it always ends.
    """
    deep = len(rows.blocks)
    begun, ended, returned = (
        [0] * deep,
        [0] * deep,
        [0] * deep,
    )  # micro-batches: forward begun and ended, backward ended
    busy_until = [0] * rows.count
    doing: list[tuple[bool, int] | None] = [None] * rows.count  # (backward, block)
    found: list[list[StageTurn]] = [[] for _ in range(rows.count)]
    now = 0
    while returned[0] < micros:
        for row in range(rows.count):
            task = doing[row]
            if task and busy_until[row] <= now:
                (returned if task[0] else ended)[task[1]] += 1
                doing[row] = None
        for row in range(rows.count):
            if doing[row] is None:
                choice = _choose(rows, row, micros, begun, ended, returned)
                if choice is not None:
                    back, block = doing[row] = choice
                    micro = returned[block] if back else begun[block]
                    begun[block] += not back
                    busy_until[row] = now + 1 + back
                    found[row] += turns(rows, "backward" if back else "forward", block, micro)
        now += 1
    return found


def _choose(
    rows: Rows, row: int, micros: int, begun: list[int], ended: list[int], returned: list[int]
) -> tuple[bool, int] | None:
    """What a row that is free does next: (backward, block), or nothing yet."""
    deep = len(rows.blocks)
    for block in reversed(rows.of(row)):
        below = returned[block + 1] if block + 1 < deep else ended[block]
        if returned[block] < min(below, ended[block]):
            return True, block
    for block in reversed(rows.of(row)):
        above = ended[block - 1] if block else micros
        if begun[block] < above and begun[block] - returned[block] < deep - block:
            return False, block
    return None
