"""The ways out of each machine: which devices send over which NIC, and how fast that is."""

from dataclasses import dataclass

from gradtide.schedule.build.wiring import machines_of, need
from gradtide.schedule.request import Request
from gradtide.topology.model import Link
from gradtide.topology.routes import Route

__all__ = ["Exit", "MachineExits", "exits_of"]


@dataclass(frozen=True, slots=True)
class Exit:
    """One NIC, or whatever a machine's traffic leaves through."""

    number: int  # among those of all machines
    place: int  # in its machine, of the first device that sends over it: what has the same place is one rail
    ranks: tuple[int, ...]  # whose traffic takes it
    bytes_per_s: float  # out or in, whichever is slower


@dataclass(frozen=True, slots=True)
class MachineExits:
    """The devices of a machine and its ways out; a device whose NIC is dead has none."""

    ranks: tuple[int, ...]
    exits: tuple[Exit, ...]


def exits_of(request: Request) -> list[MachineExits]:
    """Every machine with its ways out; NotApplicable where one has none, or devices are all in one machine."""
    machines = machines_of(request)
    need(len(machines) > 1, "all devices are in one machine")
    found: list[MachineExits] = []
    number = 0
    for ranks in machines:
        outside = [rank for others in machines if others is not ranks for rank in others]
        users: dict[Link, list[int]] = {}
        rates: dict[Link, float] = {}
        for rank in ranks:
            way = _way_out(request, rank, outside)
            if way:
                users.setdefault(way[0], []).append(rank)
                rates[way[0]] = min(way[1], rates.get(way[0], way[1]))
        need(bool(users), "a machine has no way out that leads back in, too")
        exits = tuple(
            Exit(number + at, ranks.index(users[link][0]), tuple(users[link]), rates[link])
            for at, link in enumerate(users)
        )
        number += len(exits)
        found.append(MachineExits(tuple(ranks), exits))
    return found


def _way_out(request: Request, rank: int, outside: list[int]) -> tuple[Link, float] | None:
    """The link by which a device's traffic leaves its machine, and the rate there and back inside the machine."""
    find, names = request.routes.find, request.devices
    home = {node.name for node in request.topology.nodes if node.machine == _machine(request, names[rank])}
    for other in outside:
        there, back = find(names[rank], names[other]), find(names[other], names[rank])
        if there is not None and back is not None:
            leaving = [link for link in there if link.source in home]
            return leaving[-1], min(_width(leaving), _width([link for link in back if link.target in home]))
    return None


def _machine(request: Request, name: str) -> str:
    return next(node.machine for node in request.topology.nodes if node.name == name)


def _width(links: Route | list[Link]) -> float:
    return min(link.bytes_per_s * link.count for link in links)
