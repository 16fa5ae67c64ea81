"""halving-doubling: exchange halves with one partner after the other, so n devices need 2 log2(n) steps."""

from collections.abc import Iterator

from gradtide.schedule.build.wiring import Wiring, need, wiring_of
from gradtide.schedule.build.writer import Rounds, TreePart, assemble
from gradtide.schedule.model import Schedule
from gradtide.schedule.request import Request, strategy

SEARCH_STEPS = 20_000  # about 30 ms; a DGX-1 needs 30


@strategy("halving-doubling")
def halving_doubling(request: Request) -> Schedule:
    """Devices stand on the corners of a cube of 2^bits corners; those left over hang on a corner each."""
    need(request.collective not in ("broadcast", "reduce"), "every device would own a part, but there is one root")
    wiring, count = wiring_of(request), len(request.devices)
    corners = 1 << (count.bit_length() - 1)
    cube = _place(wiring, corners)
    hanging = _hang(wiring, cube)
    parts = [_part(cube, hanging, corner) for corner in range(corners)]
    if request.collective != "all_reduce":
        parts += [_part(cube, hanging, cube.index(corner), guest) for guest, corner in hanging.items()]
    return assemble(request, "halving-doubling", parts)


def _part(cube: list[int], hanging: dict[int, int], corner: int, guest: int | None = None) -> TreePart:
    """The part that gathers at this corner, or at the guest who hangs there."""
    up = [tuple((rank, host) for rank, host in hanging.items() if rank != guest)]
    bit = len(cube) >> 1
    while bit:  # all that share the higher bits with the corner, and differ in this one, send across it
        # Who has the farthest to go first: its receiver passes the part on while the lane brings the next one.
        for rest in reversed(range(bit)):
            at = corner ^ bit ^ rest
            up.append(((cube[at], cube[at ^ bit]),))
        bit >>= 1
    up += [] if guest is None else [((cube[corner], guest),)]
    rounds: Rounds = tuple(edges for edges in up if edges)
    down = tuple(tuple((dst, src) for src, dst in edges) for edges in reversed(rounds))
    return TreePart(1, cube[corner] if guest is None else guest, rounds, down)


def _place(wiring: Wiring, corners: int) -> list[int]:
    """A rank for each corner, neighbours having routes both ways. Backtracking.

    The first exchange, of half the buffer, crosses the highest bit: it should stay within a machine, where devices
    have neighbouring numbers. So ranks are tried in the order of their number's bits reversed.
    """
    bits = corners.bit_length() - 1
    wanted = [int(f"{at:0{bits}b}"[::-1], 2) if bits else 0 for at in range(corners)]
    cube: list[int] = []
    options = [_fitting(wiring, cube, wanted[0])]
    for _ in range(SEARCH_STEPS):
        rank = next(options[-1], None)
        if rank is not None:
            cube.append(rank)
            if len(cube) == corners:
                return cube
            options.append(_fitting(wiring, list(cube), wanted[len(cube)]))
            continue
        options.pop()
        if not options:
            break
        cube.pop()
    need(False, "the routes between these devices hold no cube")
    return cube


def _fitting(wiring: Wiring, cube: list[int], wanted: int) -> Iterator[int]:
    """Free ranks, the wanted one first, with routes to the neighbours that are placed already."""
    at, count = len(cube), len(wiring.paths)
    neighbours = [cube[at ^ (1 << bit)] for bit in range(at.bit_length()) if at ^ (1 << bit) < at]
    for rank in [wanted, *(rank for rank in range(count) if rank != wanted)]:
        if rank not in cube and all(wiring.both(rank, other) for other in neighbours):
            yield rank


def _hang(wiring: Wiring, cube: list[int]) -> dict[int, int]:
    """A corner for each rank that got none: the nearest free one with routes both ways."""
    hanging: dict[int, int] = {}
    for rank in range(len(wiring.paths)):
        if rank in cube:
            continue
        free = [other for other in cube if other not in hanging.values() and wiring.both(rank, other)]
        need(bool(free), "a device beyond the power of two has no free neighbour")
        hanging[rank] = min(free, key=lambda other: wiring.path(rank, other).latency_s)
    return hanging
